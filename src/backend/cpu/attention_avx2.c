/* The paged cache: KV_STORE and ATTENTION in tiles.
 *
 * A tile is the query heads of one kv head for a few tokens. Per page, 32 keys at a time are
 * widened to f32 and met by every query of the tile; likewise the values. Memory is that of a
 * tile, whatever the context. A single token is shared out by pages instead: each page's part is
 * independent until the parts are merged in order. */
#include <math.h>

#include "backend/cpu/avx2.h"
#include "backend/cpu/math.h"
#include "backend/cpu/ops_ref.h"
#include "backend/cpu/rows_avx2.h"

#define KEYS 32      /* widened at a time */
#define QUERIES 48   /* of a tile, more only when one token has more */
#define SMALL_WORK ((uint64_t)1 << 16) /* products below which the team is not woken */

typedef struct att_job {
    const lt_op_args *args;
    const lt_attention_params *p;
    lt_team *team;
    const int32_t *pos, *pages;
    uint64_t n_pages;
    uint32_t group, dim, tile_tokens; /* group: query heads of a kv head */
    uint64_t tokens, tiles;
    size_t row_bytes;
    const float *sinks; /* by query head, or NULL */
    float *scratch;
    size_t scratch_each; /* elements of a rank */
    int64_t first_page;  /* single token: of those it sees */
    float *parts;        /* single token: [page][head][dim + 2] */
} att_job;

/* A rank's working memory, and the visible part of a page for each token of its tile. */
typedef struct att_tile {
    uint32_t kv_head, nt, nq;
    uint64_t t0;
    float *kv, *s, *o, *O, *M, *L, *m, *l;
    uint32_t lo[QUERIES], hi[QUERIES]; /* by token */
} att_tile;

static uint32_t tile_tokens(uint32_t group) { return group >= QUERIES ? 1 : QUERIES / group; }
static size_t tile_elems(uint32_t group, uint32_t dim)
{
    const size_t nq = (size_t)tile_tokens(group) * group;
    return (KEYS * (size_t)dim + nq * (LT_KV_PAGE + 2 * (size_t)dim + 4) + 15) & ~(size_t)15;
}
static int64_t first_visible(int32_t pos, uint32_t window)
{
    return window && pos >= (int64_t)window ? pos - (int64_t)window + 1 : 0;
}

/* ---- KV_STORE ---- */

static void store_row(lt_dtype t, const float *x, uint8_t *out, uint32_t n)
{
    if (t == LT_DTYPE_F32) {
        memcpy(out, x, (size_t)n * 4);
        return;
    }
    if (t == LT_DTYPE_F16) {
        for (uint32_t i = 0; i < n; i += 8)
            _mm_storeu_si128((__m128i *)(void *)(out + 2 * i),
                             _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
        return;
    }
    for (uint32_t b = 0; b < n / 32; b++, out += 34, x += 32) {
        float amax = lt__amax32(x), id = amax > 0 ? 127.0f / amax : 0;
        uint16_t d = (uint16_t)_cvtss_sh(amax / 127.0f, _MM_FROUND_TO_NEAREST_INT);
        memcpy(out, &d, 2);
        lt__store256(out + 2, lt__quantize32(x, isinf(id) ? 0 : id));
    }
}

lt_status lt__kv_store_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team;
    const lt_kv_layout *kv = &args->params.KV_STORE.kv;
    const int32_t *pos = lt_cpu_ptr(args->src[2].addr), *pages = lt_cpu_ptr(args->src[3].addr);
    lt_status s = lt__kv_check_pages(args, kv, &args->dst, 1, err);
    if (s != LT_OK)
        return s;
    uint64_t row_bytes = 0;
    LT_ASSERT(lt_dtype_row_bytes(kv->dtype, kv->head_dim, &row_bytes));
    for (int64_t t = 0; t < args->src[0].dim[0]; t++)
        for (uint32_t h = 0; h < kv->kv_heads; h++) {
            uint8_t *page = (uint8_t *)lt_cpu_ptr(args->dst.addr) +
                            (uint64_t)pages[pos[t] / LT_KV_PAGE % args->src[3].dim[0]] * kv->page_bytes;
            const uint64_t at = ((uint64_t)h * LT_KV_PAGE + (uint64_t)(pos[t] % LT_KV_PAGE)) * row_bytes;
            store_row(kv->dtype, (const float *)(void *)lt__ref_row2(&args->src[0], t, h), page + kv->k_offset + at,
                      kv->head_dim);
            store_row(kv->dtype, (const float *)(void *)lt__ref_row2(&args->src[1], t, h), page + kv->v_offset + at,
                      kv->head_dim);
        }
    return LT_OK;
}

/* ---- pieces of a page ---- */

/* n rows of the cache to f32, packed. */
static void widen_rows(lt_dtype t, const uint8_t *p, size_t row_bytes, uint32_t n, uint32_t dim, float *out)
{
    for (uint32_t i = 0; i < n; i++, p += row_bytes, out += dim) {
        if (t == LT_DTYPE_F32) {
            memcpy(out, p, (size_t)dim * 4);
        } else if (t == LT_DTYPE_F16) {
            for (uint32_t j = 0; j < dim; j += 8)
                _mm256_storeu_ps(out + j, _mm256_cvtph_ps(lt__load128(p + 2 * j)));
        } else {
            for (uint32_t j = 0; j < dim; j += 8) {
                const uint8_t *b = p + j / 32 * 34;
                __m128i q = _mm_loadl_epi64((const __m128i *)(const void *)(b + 2 + j % 32));
                _mm256_storeu_ps(out + j, _mm256_mul_ps(_mm256_set1_ps(lt__f16_at(b)),
                                                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))));
            }
        }
    }
}

/* Scores of nq queries against 8 / nq keys at a time: lanes are the eight accumulators of S(8). */
LT_ALWAYS void scores(const int nq, const float *const *q, const float *kv, uint32_t dim, uint32_t n, float scale,
                      float *const *s)
{
    const int nk = 8 / nq;
    for (uint32_t i = 0; i < n; i += (uint32_t)nk) {
        const float *k = kv + (size_t)i * dim;
        __m256 acc[8];
        LT_UNROLL
        for (int e = 0; e < 8; e++)
            acc[e] = _mm256_setzero_ps();
        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 x[2];
            LT_UNROLL
            for (int a = 0; a < nq; a++)
                x[a] = _mm256_loadu_ps(q[a] + d);
            LT_UNROLL
            for (int b = 0; b < nk; b++) {
                const __m256 y = _mm256_loadu_ps(k + (size_t)b * dim + d);
                LT_UNROLL
                for (int a = 0; a < nq; a++)
                    acc[a * nk + b] = _mm256_fmadd_ps(x[a], y, acc[a * nk + b]);
            }
        }
        const __m256 v = _mm256_mul_ps(lt__lanes_tree8(acc), _mm256_set1_ps(scale));
        if (nq == 1) {
            _mm256_storeu_ps(s[0] + i, v);
        } else {
            _mm_storeu_ps(s[0] + i, _mm256_castps256_ps128(v));
            _mm_storeu_ps(s[1] + i, _mm256_extractf128_ps(v, 1));
        }
    }
}

/* Scores lo..hi of a page capped; those beside them in their registers, which nobody looks at, too. */
static void cap_page(float *s, uint32_t lo, uint32_t hi, float cap)
{
    const __m256 c = _mm256_set1_ps(cap);
    for (uint32_t i = lo & ~7u; i < hi; i += 8)
        _mm256_storeu_ps(s + i, lt__softcap8(_mm256_loadu_ps(s + i), c));
}

/* Scores lo..hi of a page to exp(s - m), zero beside them in their registers; *m and *l. */
static void softmax_page(float *s, uint32_t lo, uint32_t hi, float *m, float *l)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i from = _mm256_set1_epi32((int)lo - 1), to = _mm256_set1_epi32((int)hi);
    __m256 top = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    for (uint32_t i = lo & ~7u; i < hi; i += 8) {
        const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32((int)i));
        const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, from), _mm256_cmpgt_epi32(to, at));
        const __m256 v = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), _mm256_loadu_ps(s + i), _mm256_castsi256_ps(in));
        top = _mm256_max_ps(v, top); /* NaN does not win */
    }
    *m = s[lo] != s[lo] ? s[lo] : lt__max8(top); /* except at the first place */
    for (uint32_t i = lo & ~7u; i < hi; i += 8) {
        const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32((int)i));
        const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, from), _mm256_cmpgt_epi32(to, at));
        __m256 e = lt__exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i), _mm256_set1_ps(*m)));
        e = _mm256_and_ps(e, _mm256_castsi256_ps(in));
        _mm256_storeu_ps(s + i, e);
        sum = _mm256_add_ps(e, sum);
    }
    *l = lt__lanes_tree(sum);
}

/* o[a][0 .. 8 nc) += p[a][i] * v[i] for i in lo..hi, in order. */
LT_ALWAYS void values(const int nq, const int nc, float *const *o, const float *const *p, const float *v, uint32_t dim,
                      uint32_t lo, uint32_t hi)
{
    __m256 acc[4][8];
    LT_UNROLL
    for (int a = 0; a < nq; a++)
        LT_UNROLL
        for (int c = 0; c < nc; c++)
            acc[a][c] = _mm256_loadu_ps(o[a] + 8 * c);
    for (uint32_t i = lo; i < hi; i++) {
        __m256 e[4];
        LT_UNROLL
        for (int a = 0; a < nq; a++)
            e[a] = _mm256_set1_ps(p[a][i]);
        LT_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 x = _mm256_loadu_ps(v + (size_t)i * dim + 8 * c);
            LT_UNROLL
            for (int a = 0; a < nq; a++)
                acc[a][c] = _mm256_fmadd_ps(e[a], x, acc[a][c]);
        }
    }
    LT_UNROLL
    for (int a = 0; a < nq; a++)
        LT_UNROLL
        for (int c = 0; c < nc; c++)
            _mm256_storeu_ps(o[a] + 8 * c, acc[a][c]);
}

/* Up to four queries that see the same keys; as many columns at a time as the registers hold. */
LT_ALWAYS void values_all(const int nq, const int nc, float *const *o, const float *const *p, const float *v,
                          uint32_t dim, uint32_t lo, uint32_t hi)
{
    for (uint32_t d = 0; d < dim;) {
        float *at[4];
        for (int a = 0; a < nq; a++)
            at[a] = o[a] + d;
        if (d + 8 * (uint32_t)nc <= dim) {
            values(nq, nc, at, p, v + d, dim, lo, hi);
            d += 8 * (uint32_t)nc;
        } else {
            values(nq, 1, at, p, v + d, dim, lo, hi);
            d += 8;
        }
    }
}

static void values_of(uint32_t nq, float *const *o, const float *const *p, const float *v, uint32_t dim, uint32_t lo,
                      uint32_t hi)
{
    switch (nq) {
    case 1: values_all(1, 8, o, p, v, dim, lo, hi); return;
    case 2: values_all(2, 4, o, p, v, dim, lo, hi); return;
    case 3: values_all(3, 4, o, p, v, dim, lo, hi); return;
    default: values_all(4, 2, o, p, v, dim, lo, hi); return;
    }
}

/* ---- a page for a tile ---- */

static const float *query_at(const att_job *j, const att_tile *w, uint32_t q)
{
    return (const float *)(void *)lt__ref_row2(&j->args->src[0], (int64_t)(w->t0 + q / j->group),
                                               (int64_t)w->kv_head * j->group + q % j->group);
}

static void page_scores(const att_job *j, att_tile *w, uint32_t b)
{
    const uint32_t g = j->group, dim = j->dim;
    for (uint32_t q = 0; q < w->nq; q += 2) {
        const uint32_t two = q + 1 < w->nq, t = q / g, u = (q + two) / g;
        const bool seen = (w->lo[t] < b + KEYS && w->hi[t] > b) || (w->lo[u] < b + KEYS && w->hi[u] > b);
        if (!seen)
            continue;
        const float *x[2] = {query_at(j, w, q), query_at(j, w, q + two)};
        float *s[2] = {w->s + (size_t)q * LT_KV_PAGE + b, w->s + (size_t)(q + two) * LT_KV_PAGE + b};
        if (two)
            scores(2, x, w->kv, dim, KEYS, j->p->scale, s);
        else
            scores(1, x, w->kv, dim, KEYS, j->p->scale, s);
    }
}

static void page_values(const att_job *j, att_tile *w, uint32_t b)
{
    const uint32_t g = j->group;
    for (uint32_t t = 0; t < w->nt; t++) {
        const uint32_t lo = w->lo[t] > b ? w->lo[t] - b : 0, hi = w->hi[t] < b + KEYS ? w->hi[t] : b + KEYS;
        if (hi <= b + lo)
            continue;
        for (uint32_t q = t * g, n; q < (t + 1) * g; q += n) {
            float *o[4];
            const float *p[4];
            n = (t + 1) * g - q < 4 ? (t + 1) * g - q : 4;
            for (uint32_t a = 0; a < n; a++) {
                o[a] = w->o + (size_t)(q + a) * j->dim;
                p[a] = w->s + (size_t)(q + a) * LT_KV_PAGE + b;
            }
            values_of(n, o, p, w->kv, j->dim, lo, hi - b);
        }
    }
}

/* m, l and o of every query of the tile for one page; queries that see none of it have hi = 0. */
static void attend_page(const att_job *j, att_tile *w, int64_t page)
{
    const lt_kv_layout *kv = &j->p->kv;
    uint32_t from = LT_KV_PAGE, to = 0;
    for (uint32_t t = 0; t < w->nt; t++) {
        const int64_t a = first_visible(j->pos[w->t0 + t], j->p->window) - page * LT_KV_PAGE;
        const int64_t e = (int64_t)j->pos[w->t0 + t] + 1 - page * LT_KV_PAGE;
        w->lo[t] = a < 0 ? 0 : a > LT_KV_PAGE ? LT_KV_PAGE : (uint32_t)a;
        w->hi[t] = e < 0 ? 0 : e > LT_KV_PAGE ? LT_KV_PAGE : (uint32_t)e;
        if (w->lo[t] >= w->hi[t]) {
            w->lo[t] = w->hi[t] = 0;
            continue;
        }
        from = w->lo[t] < from ? w->lo[t] : from;
        to = w->hi[t] > to ? w->hi[t] : to;
    }
    if (from >= to)
        return;
    const uint8_t *rows = (const uint8_t *)lt_cpu_ptr(j->args->src[1].addr) +
                          (uint64_t)j->pages[(uint64_t)page % j->n_pages] * kv->page_bytes +
                          (uint64_t)w->kv_head * LT_KV_PAGE * j->row_bytes;
    for (uint32_t b = from / KEYS * KEYS; b < to; b += KEYS) {
        widen_rows(kv->dtype, rows + kv->k_offset + b * j->row_bytes, j->row_bytes, to - b < KEYS ? to - b : KEYS, j->dim,
                   w->kv); /* rows behind the last seen hold anything: no query looks at their scores */
        page_scores(j, w, b);
    }
    for (uint32_t q = 0; q < w->nq; q++) {
        const uint32_t lo = w->lo[q / j->group], hi = w->hi[q / j->group];
        float *s = w->s + (size_t)q * LT_KV_PAGE;
        if (!hi)
            continue;
        if (j->p->cap > 0)
            cap_page(s, lo, hi, j->p->cap);
        softmax_page(s, lo, hi, &w->m[q], &w->l[q]);
    }
    memset(w->o, 0, (size_t)w->nq * j->dim * 4);
    for (uint32_t b = from / KEYS * KEYS; b < to; b += KEYS) {
        widen_rows(kv->dtype, rows + kv->v_offset + b * j->row_bytes, j->row_bytes, to - b < KEYS ? to - b : KEYS, j->dim,
                   w->kv);
        page_values(j, w, b);
    }
}

/* (M, L, O) joined by (m, l, o) of the next page. */
static void merge(float *M, float *L, float *O, float m, float l, const float *o, uint32_t dim)
{
    float n = m > *M ? m : *M, a = lt__expf(*M - n), b = lt__expf(m - n);
    *L = fmaf(*L, a, l * b);
    const __m256 av = _mm256_set1_ps(a), bv = _mm256_set1_ps(b);
    for (uint32_t d = 0; d < dim; d += 8)
        _mm256_storeu_ps(O + d, _mm256_fmadd_ps(_mm256_loadu_ps(O + d), av, _mm256_mul_ps(_mm256_loadu_ps(o + d), bv)));
    *M = n;
}
static void put_result(const att_job *j, uint64_t t, uint32_t head, float *O, float M, float L)
{
    float *out = (float *)(void *)lt__ref_row2(&j->args->dst, (int64_t)t, head);
    if (j->sinks) { /* a last chunk without a value */
        const float sink = j->sinks[head], n = sink > M ? sink : M, a = lt__expf(M - n);
        L = fmaf(L, a, lt__expf(sink - n));
        for (uint32_t d = 0; d < j->dim; d += 8)
            _mm256_storeu_ps(O + d, _mm256_mul_ps(_mm256_loadu_ps(O + d), _mm256_set1_ps(a)));
    }
    for (uint32_t d = 0; d < j->dim; d += 8)
        _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(O + d), _mm256_set1_ps(L)));
}

static void carve(const att_job *j, uint32_t rank, att_tile *w)
{
    const size_t nq = (size_t)j->tile_tokens * j->group;
    w->kv = j->scratch + rank * j->scratch_each;
    w->s = w->kv + KEYS * (size_t)j->dim;
    w->o = w->s + nq * LT_KV_PAGE;
    w->O = w->o + nq * j->dim;
    w->M = w->O + nq * j->dim;
    w->L = w->M + nq, w->m = w->L + nq, w->l = w->m + nq;
}

/* ---- many tokens: a rank takes tiles ---- */

static void attend_tile(const att_job *j, att_tile *w)
{
    int64_t first = INT64_MAX, last = 0;
    bool begun[QUERIES] = {false}; /* by token */
    for (uint32_t t = 0; t < w->nt; t++) {
        const int64_t a = first_visible(j->pos[w->t0 + t], j->p->window) / LT_KV_PAGE;
        const int64_t e = j->pos[w->t0 + t] / LT_KV_PAGE;
        first = a < first ? a : first;
        last = e > last ? e : last;
    }
    for (int64_t page = first; page <= last; page++) {
        attend_page(j, w, page);
        for (uint32_t q = 0; q < w->nq; q++) {
            const uint32_t t = q / j->group;
            float *O = w->O + (size_t)q * j->dim, *o = w->o + (size_t)q * j->dim;
            if (!w->hi[t])
                continue;
            if (begun[t]) {
                merge(&w->M[q], &w->L[q], O, w->m[q], w->l[q], o, j->dim);
            } else {
                memcpy(O, o, (size_t)j->dim * 4);
                w->M[q] = w->m[q], w->L[q] = w->l[q];
            }
        }
        for (uint32_t t = 0; t < w->nt; t++)
            begun[t] = begun[t] || w->hi[t];
    }
    for (uint32_t q = 0; q < w->nq; q++)
        put_result(j, w->t0 + q / j->group, w->kv_head * j->group + q % j->group, w->O + (size_t)q * j->dim, w->M[q], w->L[q]);
}

static void tiles_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const att_job *j = arg;
    const uint64_t units = j->tiles * j->p->kv.kv_heads;
    att_tile w = {0};
    carve(j, rank, &w);
    for (uint64_t i = 0; ranks == 1 ? i < units : (i = lt__team_next(j->team, 1)) < units; i += ranks == 1) {
        const uint64_t tile = j->tiles - 1 - i / j->p->kv.kv_heads; /* the longest first */
        w.kv_head = (uint32_t)(i % j->p->kv.kv_heads);
        w.t0 = tile * j->tile_tokens;
        w.nt = (uint32_t)(j->tokens - w.t0 < j->tile_tokens ? j->tokens - w.t0 : j->tile_tokens);
        w.nq = w.nt * j->group;
        attend_tile(j, &w);
    }
}

/* ---- one token: a rank takes pages ---- */

static void pages_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const att_job *j = arg;
    const uint32_t kvh = j->p->kv.kv_heads, each = j->dim + 2;
    const uint64_t n = (uint64_t)(j->pos[0] / LT_KV_PAGE - j->first_page) + 1, units = n * kvh;
    att_tile w = {.nt = 1, .nq = j->group};
    carve(j, rank, &w);
    for (uint64_t i = 0; ranks == 1 ? i < units : (i = lt__team_next(j->team, 1)) < units; i += ranks == 1) {
        w.kv_head = (uint32_t)(i % kvh);
        attend_page(j, &w, j->first_page + (int64_t)(i / kvh));
        for (uint32_t q = 0; q < w.nq; q++) {
            float *part = j->parts + ((i / kvh) * j->p->heads + w.kv_head * j->group + q) * each;
            memcpy(part, w.o + (size_t)q * j->dim, (size_t)j->dim * 4);
            part[j->dim] = w.m[q], part[j->dim + 1] = w.l[q];
        }
    }
    if (ranks > 1)
        lt__team_barrier(j->team, rank);
    for (uint32_t h = rank; h < j->p->heads; h += ranks) {
        float *first = j->parts + (size_t)h * each;
        for (uint64_t page = 1; page < n; page++) {
            const float *part = first + page * j->p->heads * each;
            merge(&first[j->dim], &first[j->dim + 1], first, part[j->dim], part[j->dim + 1], part, j->dim);
        }
        put_result(j, 0, h, first, first[j->dim], first[j->dim + 1]);
    }
}

bool lt__kv_accepts_avx2(const lt_op_args *args)
{
    const lt_kv_layout *kv = args->op == LT_OP_ATTENTION ? &args->params.ATTENTION.kv : &args->params.KV_STORE.kv;
    return kv->head_dim % 8 == 0 && (kv->dtype == LT_DTYPE_F16 || kv->dtype == LT_DTYPE_F32 || kv->dtype == LT_DTYPE_Q8_0);
}

static size_t parts_elems(const lt_op_args *args) { /* pages a single token may see */
    const lt_attention_params *p = &args->params.ATTENTION;
    uint64_t pages = (uint64_t)args->src[3].dim[0];
    if (p->window && p->window / LT_KV_PAGE + 2 < pages)
        pages = p->window / LT_KV_PAGE + 2;
    return args->src[0].dim[0] == 1 ? pages * p->heads * (p->kv.head_dim + 2) : 0;
}
size_t lt__attention_scratch_avx2(const lt_op_args *args, uint32_t threads)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    return (threads * tile_elems(p->heads / p->kv.kv_heads, p->kv.head_dim) + parts_elems(args)) * sizeof(float);
}

lt_status lt__attention_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes;
    const lt_attention_params *p = &args->params.ATTENTION;
    lt_status s = lt__kv_check_pages(args, &p->kv, &args->src[1], p->window, err);
    if (s != LT_OK)
        return s;
    uint64_t row_bytes = 0;
    LT_ASSERT(lt_dtype_row_bytes(p->kv.dtype, p->kv.head_dim, &row_bytes));
    att_job j = {.args = args, .p = p, .team = team, .pos = lt_cpu_ptr(args->src[2].addr),
                 .pages = lt_cpu_ptr(args->src[3].addr), .n_pages = (uint64_t)args->src[3].dim[0],
                 .group = p->heads / p->kv.kv_heads, .dim = p->kv.head_dim, .tokens = (uint64_t)args->src[0].dim[0],
                 .row_bytes = row_bytes, .scratch = scratch, .sinks = args->n_src > 4 ? lt_cpu_ptr(args->src[4].addr) : NULL};
    j.tile_tokens = tile_tokens(j.group);
    j.tiles = (j.tokens + j.tile_tokens - 1) / j.tile_tokens;
    j.scratch_each = tile_elems(j.group, j.dim);
    j.parts = j.scratch + lt__team_threads(team) * j.scratch_each;
    if (j.tokens > 1) {
        lt__team_run(team, tiles_rank, &j);
        return LT_OK;
    }
    const int64_t from = first_visible(j.pos[0], p->window);
    j.first_page = from / LT_KV_PAGE;
    if ((uint64_t)(j.pos[0] + 1 - from) * p->heads * j.dim < SMALL_WORK)
        pages_rank(&j, 0, 1);
    else
        lt__team_run(team, pages_rank, &j);
    return LT_OK;
}
