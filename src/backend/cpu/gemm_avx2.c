/* Many tokens times quantised rows.
 *
 * Eight rows are unpacked once into a panel: per block of 32 columns eight registers whose lanes are
 * rows, four consecutive columns each, and behind them the scales. A tile is eight or sixteen rows by
 * a few tokens; four activation bytes are broadcast against each register. Accumulator class after
 * class (b mod 8), so that one f32 register per output is live. */
#include "backend/cpu/linear_avx2.h"
#include "backend/cpu/weights_avx2.h"

#define L2_PANELS ((size_t)192 << 10) /* of a second-level cache of 512 KiB */
#define L2_TOKENS ((size_t)96 << 10)
#define TILE_TOKENS 3
#define TILE_PANELS 2

/* Bytes of a block of a panel: weights, scales, and minima or pairs of integer scales and offsets. */
LT_ALWAYS size_t record_bytes(lt__wkind k) {
    return 256 + (k == WK_OFF || k == WK_S8 ? 32 : k == WK_MIN ? 64 : k == WK_SC ? 96 : 128);
}
enum { REC_D = 256, REC_M = 288, REC_SC = 288, REC_SC2 = 320, REC_DMIN = 352 };

static uint64_t chunk_tokens(uint64_t cols) {
    uint64_t n = L2_TOKENS / (cols + cols / 4) / TILE_TOKENS * TILE_TOKENS;
    return n < TILE_TOKENS ? TILE_TOKENS : n > 64 ? 64 : n;
}
static size_t panel_bytes(lt_dtype t, uint64_t cols) { return record_bytes(lt__wkind_of(t)) * (cols / 32); }

uint64_t lt__gemm_rows_avx2(lt_dtype t, uint64_t cols) {
    uint64_t panels = L2_PANELS / panel_bytes(t, cols);
    return 8 * (panels < 1 ? 1 : panels > 8 ? 8 : panels);
}
size_t lt__gemm_scratch_avx2(lt_dtype t, uint64_t cols) {
    size_t aux = chunk_tokens(cols) * (cols / 32) * 4;
    return (lt__gemm_rows_avx2(t, cols) / 8 * panel_bytes(t, cols) + aux + 63) & ~(size_t)63;
}

/* ---- panels ---- */

LT_ALWAYS void put_block(uint8_t *rec, __m256i *v) {
    lt__transpose8(v);
    LT_UNROLL
    for (int k = 0; k < 8; k++)
        lt__store256(rec + 32 * k, v[k]);
}

/* row[r]: the eight rows; rows that do not exist repeat the last. */
LT_ALWAYS void pack32(lt_dtype t, const uint8_t *const *row, uint64_t nb, uint8_t *rec) {
    const uint32_t bytes = lt_dtype_get(t)->block_bytes;
    const size_t rec_bytes = record_bytes(lt__wkind_of(t));
    for (uint64_t b = 0; b < nb; b++, rec += rec_bytes) {
        __m256i v[8];
        uint8_t head[8][4]; /* the scales, gathered so that they lie at one stride */
        LT_UNROLL
        for (int r = 0; r < 8; r++) {
            v[r] = lt__unpack32(t, row[r] + b * bytes);
            memcpy(head[r], row[r] + b * bytes, 4);
        }
        put_block(rec, v);
        __m256 d, m;
        lt__scale_column(t, head[0], 4, &d, &m);
        _mm256_storeu_ps((float *)(void *)(rec + REC_D), d);
        if (lt__wkind_of(t) == WK_MIN)
            _mm256_storeu_ps((float *)(void *)(rec + REC_M), m);
    }
}

/* v[r] = lane b of row r; stores lane r of block b into the records, `at` bytes in. */
LT_ALWAYS void put_column(uint8_t *rec, size_t rec_bytes, int at, __m256i *v) {
    lt__transpose8(v);
    LT_UNROLL
    for (int b = 0; b < 8; b++)
        lt__store256(rec + b * rec_bytes + at, v[b]);
}

LT_ALWAYS void pack_scales256(lt_dtype t, const uint8_t *const *p, uint8_t *rec) {
    const lt__wkind kind = lt__wkind_of(t);
    const size_t rec_bytes = record_bytes(kind);
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
    put_column(rec, rec_bytes, REC_D, x);
    if (kind == WK_MIN)
        put_column(rec, rec_bytes, REC_M, y);
    if (kind == WK_SC || kind == WK_SCM) {
        put_column(rec, rec_bytes, REC_SC, y);
        put_column(rec, rec_bytes, REC_SC2, z);
    }
    if (kind == WK_SCM)
        put_column(rec, rec_bytes, REC_DMIN, u);
}

LT_ALWAYS void pack256(lt_dtype t, const uint8_t *const *row, uint64_t nb, uint8_t *rec) {
    const uint32_t bytes = lt_dtype_get(t)->block_bytes;
    const size_t rec_bytes = record_bytes(lt__wkind_of(t));
    for (uint64_t i = 0; i < nb / 8; i++, rec += 8 * rec_bytes) {
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
            put_block(rec + (size_t)b * rec_bytes, v);
        }
        pack_scales256(t, p, rec);
    }
}

/* ---- tiles ---- */

/* What a tile multiplies; aux[b] per token is the offset sum (int32) or s0 + s1 (f32). */
typedef struct tile_args {
    const uint8_t *panel[2];
    uint64_t nb;
    lt__q8a_row tok[TILE_TOKENS];
    const void *aux[TILE_TOKENS];
    float *out[TILE_TOKENS];
    uint64_t rows; /* of all panels together that exist */
} tile_args;

/* Integer sums of block b: sum[p * nt + t], lanes are rows. */
LT_ALWAYS void tile_sums(const lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                         uint64_t b, __m256i *sum) {
    const lt__wkind kind = lt__wkind_of(t);
    const int chain = lt__wchain(t);
    LT_UNROLL
    for (int g = 0; g < 8 / chain; g++) {
        __m256i x[2 * TILE_TOKENS];
        LT_UNROLL
        for (int k = 0; k < chain; k++) {
            __m256i w[2], aw[2];
            LT_UNROLL
            for (int p = 0; p < np; p++) {
                w[p] = lt__load256(rec[p] + 32 * (g * chain + k));
                aw[p] = kind == WK_S8 ? _mm256_abs_epi8(w[p]) : w[p];
            }
            LT_UNROLL
            for (int j = 0; j < nt; j++) {
                const __m256i q = lt__set1_u32_at(a->tok[j].q + 32 * b + 4 * (g * chain + k));
                LT_UNROLL
                for (int p = 0; p < np; p++) {
                    __m256i y = _mm256_maddubs_epi16(aw[p], kind == WK_S8 ? _mm256_sign_epi8(q, w[p]) : q);
                    x[p * nt + j] = k ? _mm256_add_epi16(x[p * nt + j], y) : y;
                    LT_KEEP(x[p * nt + j]);
                }
            }
        }
        __m256i scale[2];
        LT_UNROLL
        for (int p = 0; p < np; p++) {
            scale[p] = _mm256_set1_epi16(1);
            if (kind == WK_SC || kind == WK_SCM) { /* the half's scale in both words of a lane */
                __m256i pair = lt__load256(rec[p] + REC_SC);
                scale[p] = g * chain < 4 ? _mm256_blend_epi16(pair, _mm256_slli_epi32(pair, 16), 0xaa)
                                         : _mm256_blend_epi16(pair, _mm256_srli_epi32(pair, 16), 0x55);
            }
        }
        LT_UNROLL
        for (int i = 0; i < np * nt; i++) {
            __m256i y = _mm256_madd_epi16(x[i], scale[i / nt]);
            sum[i] = g ? _mm256_add_epi32(sum[i], y) : y;
            LT_KEEP(sum[i]);
        }
    }
}

/* The f32 terms of block b onto acc. */
LT_ALWAYS void tile_terms(const lt_dtype t, const int np, const int nt, const tile_args *a, const uint8_t *const *rec,
                          uint64_t b, const __m256i *sum, __m256 *acc) {
    const lt__wkind kind = lt__wkind_of(t);
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) {
        const int p = i / nt, j = i % nt;
        const __m256 da = _mm256_set1_ps(a->tok[j].d[b]);
        const __m256i s = kind == WK_SC || kind == WK_SCM ? lt__set1_u32_at(a->tok[j].s + 2 * b)
                                                          : _mm256_setzero_si256();
        __m256i n = sum[i];
        if (kind == WK_OFF)
            n = _mm256_add_epi32(n, lt__set1_u32_at((const int32_t *)a->aux[j] + b));
        if (kind == WK_SC)
            n = _mm256_add_epi32(n, _mm256_madd_epi16(s, lt__load256(rec[p] + REC_SC2)));
        const __m256 d = _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)(rec[p] + REC_D)), da);
        acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(n), d, acc[i]);
        if (kind == WK_MIN) {
            const __m256 m = _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)(rec[p] + REC_M)), da);
            acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(((const float *)a->aux[j])[b]), m, acc[i]);
        }
        if (kind == WK_SCM) {
            const __m256 m = _mm256_mul_ps(_mm256_loadu_ps((const float *)(const void *)(rec[p] + REC_DMIN)), da);
            const __m256i ms = _mm256_madd_epi16(s, lt__load256(rec[p] + REC_SC2));
            acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(ms), m, acc[i]);
        }
    }
}

LT_ALWAYS void tile(const lt_dtype t, const int np, const int nt, const tile_args *a) {
    const size_t rec_bytes = record_bytes(lt__wkind_of(t));
    __m256 cls[2 * TILE_TOKENS][8];
    for (uint64_t c = 0; c < 8; c++) {
        __m256 acc[2 * TILE_TOKENS];
        LT_UNROLL
        for (int i = 0; i < np * nt; i++)
            acc[i] = _mm256_setzero_ps();
        for (uint64_t b = c; b < a->nb; b += 8) {
            const uint8_t *rec[2] = {a->panel[0] + b * rec_bytes, np > 1 ? a->panel[1] + b * rec_bytes : NULL};
            __m256i sum[2 * TILE_TOKENS];
            tile_sums(t, np, nt, a, rec, b, sum);
            tile_terms(t, np, nt, a, rec, b, sum, acc);
        }
        LT_UNROLL
        for (int i = 0; i < np * nt; i++)
            cls[i][c] = acc[i];
    }
    LT_UNROLL
    for (int i = 0; i < np * nt; i++) {
        const uint64_t at = (uint64_t)(i / nt) * 8;
        if (at < a->rows)
            lt__store_lanes(a->out[i % nt] + at, lt__regs_tree(cls[i]), a->rows - at);
    }
}

/* ---- per format ---- */

typedef void pack_fn(const uint8_t *const *row, uint64_t nb, uint8_t *rec);
typedef void tile_fn(const tile_args *a);
typedef struct gemm_fns {
    pack_fn *pack;
    tile_fn *tile[TILE_TOKENS]; /* by tokens - 1 */
} gemm_fns;

#define GEMM(T, N) \
    static void pack_##T(const uint8_t *const *row, uint64_t nb, uint8_t *rec) { pack##N(LT_DTYPE_##T, row, nb, rec); } \
    static void tile1_##T(const tile_args *a) { tile(LT_DTYPE_##T, TILE_PANELS, 1, a); } \
    static void tile2_##T(const tile_args *a) { tile(LT_DTYPE_##T, TILE_PANELS, 2, a); } \
    static void tile3_##T(const tile_args *a) { tile(LT_DTYPE_##T, TILE_PANELS, 3, a); }
GEMM(Q4_0, 32)
GEMM(Q4_1, 32)
GEMM(Q5_0, 32)
GEMM(Q5_1, 32)
GEMM(Q8_0, 32)
GEMM(IQ4_NL, 32)
GEMM(MXFP4, 32)
GEMM(Q2_K, 256)
GEMM(Q3_K, 256)
GEMM(Q4_K, 256)
GEMM(Q5_K, 256)
GEMM(Q6_K, 256)
GEMM(IQ4_XS, 256)

#define FNS(T) [LT_DTYPE_##T] = {pack_##T, {tile1_##T, tile2_##T, tile3_##T}}
static const gemm_fns fns[LT_DTYPE_COUNT] = {
    FNS(Q4_0), FNS(Q4_1), FNS(Q5_0), FNS(Q5_1), FNS(Q8_0), FNS(IQ4_NL), FNS(MXFP4),
    FNS(Q2_K), FNS(Q3_K), FNS(Q4_K), FNS(Q5_K), FNS(Q6_K), FNS(IQ4_XS),
};

/* Per token and block what the kind takes from s0 + s1. */
static void fill_aux(const lt__gemm *g, uint64_t t0, uint64_t n, uint64_t nb, int32_t *aux) {
    const bool is_min = lt__wkind_of(g->t) == WK_MIN;
    const short factor = (short)(is_min ? 1 : -lt__woffset(g->t));
    const __m256i f = _mm256_set1_epi16(factor);
    for (uint64_t j = 0; j < n; j++, aux += nb) {
        const int16_t *s = lt__q8a_at(g->act + (t0 + j) * g->act_stride, g->cols).s;
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

void lt__gemm_avx2(const lt__gemm *g, uint64_t first, uint64_t end, void *scratch) {
    const gemm_fns *f = &fns[g->t];
    const uint64_t nb = g->cols / 32, group = lt__gemm_rows_avx2(g->t, g->cols), chunk = chunk_tokens(g->cols);
    const size_t pb = panel_bytes(g->t, g->cols);
    uint8_t *panels = scratch;
    int32_t *aux = (int32_t *)(void *)(panels + group / 8 * pb);
    for (uint64_t r0 = first; r0 < end; r0 += group) {
        const uint64_t n = end - r0 < group ? end - r0 : group;
        for (uint64_t r = 0; r < n; r += 8) {
            const uint8_t *row[8];
            for (uint64_t i = 0; i < 8; i++)
                row[i] = g->w + (r0 + (r + i < n ? r + i : n - 1)) * g->w_stride;
            f->pack(row, nb, panels + r / 8 * pb);
        }
        for (uint64_t t0 = 0; t0 < g->tokens; t0 += chunk) {
            const uint64_t m = g->tokens - t0 < chunk ? g->tokens - t0 : chunk;
            if (lt__wkind_of(g->t) <= WK_MIN)
                fill_aux(g, t0, m, nb, aux);
            for (uint64_t r = 0; r < n; r += 8 * TILE_PANELS)
                for (uint64_t j = 0; j < m; j += TILE_TOKENS) {
                    const uint64_t nt = m - j < TILE_TOKENS ? m - j : TILE_TOKENS;
                    tile_args a = {.panel = {panels + r / 8 * pb, panels + (r + 8 < n ? r / 8 + 1 : r / 8) * pb}, .nb = nb, .rows = n - r};
                    for (uint64_t k = 0; k < nt; k++) {
                        a.tok[k] = lt__q8a_at(g->act + (t0 + j + k) * g->act_stride, g->cols);
                        a.aux[k] = aux + (j + k) * nb;
                        a.out[k] = (float *)(void *)(g->dst + (t0 + j + k) * g->dst_stride) + r0 + r;
                    }
                    f->tile[nt - 1](&a);
                }
        }
    }
}
