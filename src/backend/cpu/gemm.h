/* gemm.h - many tokens times quantised rows, for any register width.
 *
 * GEMM_ROWS rows (as many as a register has f32 lanes) are unpacked once into a panel: per block of
 * 32 columns eight registers whose lanes are rows, four consecutive columns each, and behind them the
 * scales. A tile is GEMM_PANELS panels by up to GEMM_TOKENS tokens; four activation bytes are broadcast
 * against each register. Accumulator class after class (b mod 8), so that one f32 register per output
 * is live.
 *
 * A file that includes this defines GEMM_ROWS, GEMM_PANELS, GEMM_TOKENS, and
 * GEMM_SIGNED_OFFSET: 128 when it wants signed bytes as unsigned ones with that offset, else 0; the
 * types vint and vflt and the v_ functions on them; and behind the include tile_sums, the table and
 * the entry points by GEMM_FORMATS. */
#ifndef LT_CPU_GEMM_H
#define LT_CPU_GEMM_H

#include "backend/cpu/linear.h"
#include "backend/cpu/weights_avx2.h"

#define GEMM_L2_PANELS ((size_t)192 << 10) /* of a second-level cache of 512 KiB */
#define GEMM_L2_TOKENS ((size_t)96 << 10)

/* A block of a panel: eight registers of weights, then a register each of scales, and minima, or
 * integer scales in pairs, their offsets or minima, and the negated f32 minimum. */
enum {
    REG = 4 * GEMM_ROWS,
    REC_D = 8 * REG,
    REC_M = 9 * REG,
    REC_SC = 9 * REG,
    REC_SC2 = 10 * REG,
    REC_DMIN = 11 * REG
};

LT_ALWAYS lt__wkind kind_of(lt_dtype t)
{
    const lt__wkind k = lt__wkind_of(t);
    return k == WK_S8 && GEMM_SIGNED_OFFSET != 0 ? WK_OFF : k;
}
LT_ALWAYS int offset_of(lt_dtype t)
{
    return lt__wkind_of(t) == WK_S8 ? GEMM_SIGNED_OFFSET : lt__woffset(t);
}
LT_ALWAYS size_t record_bytes(lt_dtype t)
{
    const lt__wkind k = kind_of(t);
    return (size_t)REG * (k == WK_OFF || k == WK_S8 ? 9 : k == WK_MIN ? 10 : k == WK_SC ? 11 : 12);
}
static inline size_t panel_bytes(lt_dtype t, uint64_t cols) { return record_bytes(t) * (cols / 32); }

/* Tokens whose activations stay in the second-level cache, and panels that stay beside them. */
static inline uint64_t chunk_tokens(uint64_t cols)
{
    uint64_t n = GEMM_L2_TOKENS / (cols + cols / 4);
    n = (n > 64 ? 64 : n) / GEMM_TOKENS * GEMM_TOKENS;
    return n < GEMM_TOKENS ? GEMM_TOKENS : n;
}
static inline uint64_t group_panels(lt_dtype t, uint64_t cols)
{
    uint64_t n = GEMM_L2_PANELS / panel_bytes(t, cols), most = 64 / GEMM_ROWS;
    return (n < GEMM_PANELS ? GEMM_PANELS : n > most ? most : n) / GEMM_PANELS * GEMM_PANELS;
}

/* ---- panels ---- */

LT_ALWAYS void put_block(lt_dtype t, uint8_t *rec, __m256i *v)
{
    lt__transpose8(v);
    LT_UNROLL
    for (int k = 0; k < 8; k++) {
        if (lt__wkind_of(t) == WK_S8 && GEMM_SIGNED_OFFSET != 0)
            v[k] = _mm256_xor_si256(v[k], _mm256_set1_epi8((char)0x80));
        lt__store256(rec + REG * k, v[k]);
    }
}

/* Eight rows into lanes of records of 32-column blocks. */
LT_ALWAYS void pack32(lt_dtype t, const uint8_t *const *row, uint64_t nb, uint8_t *rec)
{
    const uint32_t bytes = lt_dtype_get(t)->block_bytes;
    for (uint64_t b = 0; b < nb; b++, rec += record_bytes(t)) {
        __m256i v[8];
        uint8_t head[8][4]; /* the scales, gathered so that they lie at one stride */
        LT_UNROLL
        for (int r = 0; r < 8; r++) {
            v[r] = lt__unpack32(t, row[r] + b * bytes);
            memcpy(head[r], row[r] + b * bytes, 4);
        }
        put_block(t, rec, v);
        __m256 d, m;
        lt__scale_column(t, head[0], 4, &d, &m);
        _mm256_storeu_ps((float *)(void *)(rec + REC_D), d);
        if (kind_of(t) == WK_MIN)
            _mm256_storeu_ps((float *)(void *)(rec + REC_M), m);
    }
}

/* v[r] = eight blocks' values of row r; stores lane r of block b into record b, `at` bytes in. */
LT_ALWAYS void put_column(uint8_t *rec, size_t rec_bytes, int at, __m256i *v)
{
    lt__transpose8(v);
    LT_UNROLL
    for (int b = 0; b < 8; b++)
        lt__store256(rec + b * rec_bytes + at, v[b]);
}

LT_ALWAYS void pack_scales256(lt_dtype t, const uint8_t *const *p, uint8_t *rec)
{
    const lt__wkind kind = kind_of(t);
    __m256i x[8], y[8], z[8], u[8];
    LT_UNROLL
    for (int r = 0; r < 8; r++) {
        __m256 d = _mm256_setzero_ps(), m = d;
        x[r] = y[r] = z[r] = u[r] = _mm256_setzero_si256();
        if (kind == WK_SC || kind == WK_SCM) {
            d = _mm256_set1_ps(lt__super_d(t, p[r]));
            y[r] = lt__int_scales256(t, p[r], &z[r]);
            if (kind == WK_SC) /* |scale| <= 128, offset <= 32 */
                z[r] = _mm256_mullo_epi16(y[r], _mm256_set1_epi16((short)-lt__woffset(t)));
            else
                u[r] = _mm256_castps_si256(_mm256_set1_ps(-lt__f16_at(p[r] + 82)));
        } else {
            lt__scales256(t, p[r], &d, &m);
            y[r] = _mm256_castps_si256(m);
        }
        x[r] = _mm256_castps_si256(d);
    }
    put_column(rec, record_bytes(t), REC_D, x);
    if (kind == WK_MIN)
        put_column(rec, record_bytes(t), REC_M, y);
    if (kind == WK_SC || kind == WK_SCM) {
        put_column(rec, record_bytes(t), REC_SC, y);
        put_column(rec, record_bytes(t), REC_SC2, z);
    }
    if (kind == WK_SCM)
        put_column(rec, record_bytes(t), REC_DMIN, u);
}

LT_ALWAYS void pack256(lt_dtype t, const uint8_t *const *row, uint64_t nb, uint8_t *rec)
{
    const uint32_t bytes = lt_dtype_get(t)->block_bytes;
    for (uint64_t i = 0; i < nb / 8; i++, rec += 8 * record_bytes(t)) {
        const uint8_t *p[8];
        LT_UNROLL
        for (int r = 0; r < 8; r++)
            p[r] = row[r] + i * bytes;
        LT_UNROLL
        for (int b = 0; b < 8; b++) {
            __m256i v[8];
            LT_UNROLL
            for (int r = 0; r < 8; r++)
                v[r] = lt__unpack256(t, p[r], b);
            put_block(t, rec + (size_t)b * record_bytes(t), v);
        }
        pack_scales256(t, p, rec);
    }
}

/* ---- tiles ---- */

/* aux[b] per token is the sum for a constant offset (int32), or s0 + s1 (f32). */
typedef struct tile_args {
    const uint8_t *panel[GEMM_PANELS];
    uint64_t nb;
    lt__q8a_row tok[GEMM_TOKENS];
    const int32_t *aux[GEMM_TOKENS];
    float *out[GEMM_TOKENS];
    uint64_t rows; /* of all panels together that exist */
} tile_args;

/* Integer sums of block b: sum[p * nt + t], lanes are rows; by the includer. */
LT_ALWAYS void tile_sums(lt_dtype t, int np, int nt, const tile_args *a, const uint8_t *const *rec, uint64_t b,
                         vint *sum);

/* The f32 terms of block b onto acc. */
LT_ALWAYS void tile_terms(lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                          uint64_t b, const vint *sum, vflt *acc)
{
    const lt__wkind kind = kind_of(t);
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) {
        const int p = i / nt, j = i % nt;
        const vflt da = v_set1_f32(a->tok[j].d[b]);
        vint n = sum[i];
        if (kind == WK_OFF)
            n = v_add_i32(n, v_set1_u32_at(a->aux[j] + b));
        if (kind == WK_SC)
            n = v_add_i32(n, v_madd_i16(v_set1_u32_at(a->tok[j].s + 2 * b), v_load(rec[p] + REC_SC2)));
        acc[i] = v_fma(v_to_f32(n), v_mul(v_load_f32(rec[p] + REC_D), da), acc[i]);
        if (kind == WK_MIN) {
            float s;
            memcpy(&s, a->aux[j] + b, 4);
            acc[i] = v_fma(v_set1_f32(s), v_mul(v_load_f32(rec[p] + REC_M), da), acc[i]);
        }
        if (kind == WK_SCM) {
            const vint ms = v_madd_i16(v_set1_u32_at(a->tok[j].s + 2 * b), v_load(rec[p] + REC_SC2));
            acc[i] = v_fma(v_to_f32(ms), v_mul(v_load_f32(rec[p] + REC_DMIN), da), acc[i]);
        }
    }
}

LT_ALWAYS void tile(lt_dtype t, const int np, const int nt, const tile_args *a)
{
    vflt cls[GEMM_PANELS * GEMM_TOKENS][8];
    for (uint64_t c = 0; c < 8; c++) {
        vflt acc[GEMM_PANELS * GEMM_TOKENS];
        LT_UNROLL
        for (int i = 0; i < np * nt; i++)
            acc[i] = v_zero_f32();
        for (uint64_t b = c; b < a->nb; b += 8) {
            const uint8_t *rec[GEMM_PANELS];
            LT_UNROLL
            for (int p = 0; p < np; p++)
                rec[p] = a->panel[p] + b * record_bytes(t);
            vint sum[GEMM_PANELS * GEMM_TOKENS];
            tile_sums(t, np, nt, a, rec, b, sum);
            tile_terms(t, np, nt, a, rec, b, sum, acc);
        }
        LT_UNROLL
        for (int i = 0; i < np * nt; i++)
            cls[i][c] = acc[i];
    }
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) {
        const uint64_t at = (uint64_t)(i / nt) * GEMM_ROWS;
        vflt *x = cls[i];
        LT_UNROLL
        for (int s = 4; s; s /= 2)
            LT_UNROLL
            for (int k = 0; k < s; k++)
                x[k] = v_add_f32(x[k], x[k + s]);
        if (at < a->rows)
            v_store_rows(a->out[i % nt] + at, x[0], a->rows - at);
    }
}

/* ---- the whole ---- */

typedef void pack_fn(const uint8_t *const *row, uint64_t nb, uint8_t *rec);
typedef void tile_fn(const tile_args *a);
typedef struct gemm_fns {
    pack_fn *pack;
    tile_fn *tile[GEMM_TOKENS]; /* by tokens - 1 */
} gemm_fns;

#define GEMM_FORMATS(X) \
    X(Q4_0, 32) X(Q4_1, 32) X(Q5_0, 32) X(Q5_1, 32) X(Q8_0, 32) X(IQ4_NL, 32) X(MXFP4, 32) \
    X(Q2_K, 256) X(Q3_K, 256) X(Q4_K, 256) X(Q5_K, 256) X(Q6_K, 256) X(IQ4_XS, 256)

LT_ALWAYS const uint8_t *act_of(const lt__gemm *g, uint64_t t)
{
    return g->pairs ? g->pairs[t].act : g->act + t * g->act_stride;
}
LT_ALWAYS float *out_of(const lt__gemm *g, uint64_t t)
{
    return (float *)(void *)(g->pairs ? g->pairs[t].dst : g->dst + t * g->dst_stride);
}

/* Per token and block what the kind takes from s0 + s1. */
static void fill_aux(const lt__gemm *g, uint64_t t0, uint64_t n, int32_t *aux)
{
    const bool is_min = kind_of(g->t) == WK_MIN;
    const short factor = (short)(is_min ? 1 : -offset_of(g->t));
    const __m256i f = _mm256_set1_epi16(factor);
    const uint64_t nb = g->cols / 32;
    for (uint64_t j = 0; j < n; j++, aux += nb) {
        const int16_t *s = lt__q8a_at(act_of(g, t0 + j), g->cols).s;
        uint64_t b = 0;
        for (; b + 8 <= nb; b += 8) {
            __m256i v = _mm256_madd_epi16(lt__load256(s + 2 * b), f);
            lt__store256(aux + b, is_min ? _mm256_castps_si256(_mm256_cvtepi32_ps(v)) : v);
        }
        for (; b < nb; b++) {
            const int32_t v = (s[2 * b] + s[2 * b + 1]) * factor;
            const float x = (float)v;
            memcpy(aux + b, is_min ? (const void *)&x : (const void *)&v, 4);
        }
    }
}

static void pack_rows(const lt__gemm *g, const gemm_fns *f, uint64_t first, uint64_t n, uint8_t *panels)
{
    for (uint64_t r = 0; r < (n + GEMM_ROWS - 1) / GEMM_ROWS * GEMM_ROWS; r += 8) {
        const uint8_t *row[8];
        for (uint64_t i = 0; i < 8; i++) /* rows that do not exist repeat the last */
            row[i] = g->w + (first + (r + i < n ? r + i : n - 1)) * g->w_stride;
        f->pack(row, g->cols / 32, panels + r / GEMM_ROWS * panel_bytes(g->t, g->cols) + r % GEMM_ROWS * 4);
    }
}

/* Tokens [t0, t0 + m) by the n rows in panels. */
static void multiply_chunk(const lt__gemm *g, const gemm_fns *f, uint64_t first, uint64_t n, uint64_t t0, uint64_t m,
                           const uint8_t *panels, const int32_t *aux)
{
    const uint64_t nb = g->cols / 32, last = (n - 1) / GEMM_ROWS;
    const size_t pb = panel_bytes(g->t, g->cols);
    for (uint64_t p = 0; p <= last; p += GEMM_PANELS)
        for (uint64_t j = 0; j < m; j += GEMM_TOKENS) {
            const uint64_t nt = m - j < GEMM_TOKENS ? m - j : GEMM_TOKENS;
            tile_args a = {.nb = nb, .rows = n - p * GEMM_ROWS};
            for (uint64_t k = 0; k < GEMM_PANELS; k++)
                a.panel[k] = panels + (p + k <= last ? p + k : last) * pb;
            for (uint64_t k = 0; k < nt; k++) {
                a.tok[k] = lt__q8a_at(act_of(g, t0 + j + k), g->cols);
                a.aux[k] = aux + (j + k) * nb;
                a.out[k] = out_of(g, t0 + j + k) + first + p * GEMM_ROWS;
            }
            f->tile[nt - 1](&a);
        }
}

static void gemm_run(const lt__gemm *g, const gemm_fns *f, uint64_t first, uint64_t end, void *scratch)
{
    const uint64_t panels = group_panels(g->t, g->cols), group = panels * GEMM_ROWS, chunk = chunk_tokens(g->cols);
    int32_t *aux = (int32_t *)(void *)((uint8_t *)scratch + panels * panel_bytes(g->t, g->cols));
    for (uint64_t r = first; r < end; r += group) {
        const uint64_t n = end - r < group ? end - r : group;
        pack_rows(g, f, r, n, scratch);
        for (uint64_t t = 0; t < g->tokens; t += chunk) {
            const uint64_t m = g->tokens - t < chunk ? g->tokens - t : chunk;
            if (kind_of(g->t) == WK_OFF || kind_of(g->t) == WK_MIN)
                fill_aux(g, t, m, aux);
            multiply_chunk(g, f, r, n, t, m, scratch, aux);
        }
    }
}

static uint64_t gemm_rows(lt_dtype t, uint64_t cols) { return group_panels(t, cols) * GEMM_ROWS; }
static size_t gemm_scratch(lt_dtype t, uint64_t cols)
{
    size_t aux = chunk_tokens(cols) * (cols / 32) * 4;
    return (group_panels(t, cols) * panel_bytes(t, cols) + aux + 63) & ~(size_t)63;
}

#endif
