/* The ops about a mixture's experts other than their products, eight columns at a time. */
#include "backend/cpu/avx2.h"
#include "backend/cpu/ops_ref.h"
#include "backend/cpu/rows_avx2.h"

/* One token's rows are long: pieces of rows are shared out. */
#define PIECE 1024 /* columns */

typedef struct piece { int64_t row; uint64_t i, end; } piece;

static uint64_t pieces_of(uint64_t cols) { return (cols + PIECE - 1) / PIECE; }
static piece piece_at(uint64_t n, uint64_t cols)
{
    const uint64_t i = n % pieces_of(cols) * PIECE;
    return (piece){(int64_t)(n / pieces_of(cols)), i, cols - i < PIECE ? cols : i + PIECE};
}

static float *floats_at(const lt_view *v, int64_t t) { return (float *)(void *)lt__ref_row(v, t); }
static float *floats_at2(const lt_view *v, int64_t t, int64_t k) { return (float *)(void *)lt__ref_row2(v, t, k); }
static int32_t *ids_at(const lt_view *v, int64_t t) { return (int32_t *)(void *)lt__ref_row(v, t); }

/* ---- TOP_K ---- */

/* NaN is below all else. */
static bool above(float a, float b) { return a > b || (b != b && a == a); }

/* The columns of y, `have` of them in order, with column i among them if it is one of the best k; returns how many. */
static int64_t insert(const float *x, int32_t *y, int64_t have, int64_t k, int64_t i)
{
    int64_t at = have;
    while (at > 0 && above(x[i], x[y[at - 1]]))
        at--;
    if (at == k)
        return have;
    have = have < k ? have + 1 : k;
    memmove(y + at + 1, y + at, (size_t)(have - at - 1) * sizeof *y);
    y[at] = (int32_t)i;
    return have;
}

static void top_k_row(const float *x, int64_t n, int32_t *y, int64_t k)
{
    int64_t have = 0, i = 0;
    for (; i < k; i++)
        have = insert(x, y, have, k, i);
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i), least = _mm256_set1_ps(x[y[k - 1]]);
        int more = _mm256_movemask_ps(_mm256_and_ps(_mm256_cmp_ps(v, least, _CMP_NLE_UQ), _mm256_cmp_ps(v, v, _CMP_ORD_Q)));
        for (; more; more &= more - 1)
            have = insert(x, y, have, k, i + __builtin_ctz((unsigned)more));
    }
    for (; i < n; i++)
        have = insert(x, y, have, k, i);
}

static void top_k_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    uint64_t t, end;
    lt__team_range((uint64_t)a->dst.dim[0], 1, rank, ranks, &t, &end);
    for (; t < end; t++)
        top_k_row(floats_at(&a->src[0], (int64_t)t), a->src[0].dim[1], ids_at(&a->dst, (int64_t)t), a->dst.dim[1]);
}

lt_status lt__top_k_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, top_k_rank, (void *)args, (uint64_t)(args->src[0].dim[0] * args->src[0].dim[1]));
    return LT_OK;
}

/* ---- TOP_SHARE ---- */

/* Scores i to i + 7 of those summed over, picked ones where there are ids; lanes from n on have `rest`. */
LT_ALWAYS __m256 scores8(const float *x, const int32_t *ids, int64_t i, int64_t n, __m256 rest)
{
    const __m256i m = n - i >= 8 ? _mm256_set1_epi32(-1) : lt__lane_mask((uint64_t)(n - i));
    if (ids)
        return _mm256_mask_i32gather_ps(rest, x, _mm256_maskload_epi32(ids + i, m), _mm256_castsi256_ps(m), 4);
    return _mm256_blendv_ps(rest, _mm256_maskload_ps(x + i, m), _mm256_castsi256_ps(m));
}

static void share_row(const float *x, const int32_t *ids, int64_t k, const int32_t *over, int64_t n, float *y)
{
    /* A first score that is NaN stays the maximum in every lane, a later one is passed over. */
    float m = x[over ? over[0] : 0], lane[8];
    const __m256 first = _mm256_set1_ps(m), none = _mm256_set1_ps(-__builtin_inff());
    __m256 m8 = first, acc = _mm256_setzero_ps();
    for (int64_t i = 0; i < n; i += 8)
        m8 = _mm256_max_ps(scores8(x, over, i, n, first), m8);
    _mm256_storeu_ps(lane, m8);
    for (int i = 0; i < 8; i++)
        m = lane[i] > m ? lane[i] : m;
    const __m256 max = _mm256_set1_ps(m);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 e = lt__exp8(_mm256_sub_ps(scores8(x, over, i, n, none), max));
        if (n - i < 8)
            e = _mm256_and_ps(e, _mm256_castsi256_ps(lt__lane_mask((uint64_t)(n - i))));
        acc = _mm256_add_ps(acc, e);
    }
    const __m256 l = _mm256_set1_ps(lt__lanes_tree(acc));
    for (int64_t i = 0; i < k; i += 8) {
        const __m256 e = lt__exp8(_mm256_sub_ps(scores8(x, ids, i, k, none), max));
        lt__store_lanes(y + i, _mm256_div_ps(e, l), (uint64_t)(k - i));
    }
}

static void top_share_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const bool all = a->params.TOP_SHARE.all;
    uint64_t t, end;
    lt__team_range((uint64_t)a->dst.dim[0], 1, rank, ranks, &t, &end);
    for (; t < end; t++) {
        const int32_t *ids = ids_at(&a->src[1], (int64_t)t);
        share_row(floats_at(&a->src[0], (int64_t)t), ids, a->dst.dim[1], all ? NULL : ids, all ? a->src[0].dim[1] : a->dst.dim[1],
                  floats_at(&a->dst, (int64_t)t));
    }
}

lt_status lt__top_share_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes;
    lt_status s = lt__ref_expert_check(args, &args->src[1], args->src[0].dim[1], err);
    if (s == LT_OK)
        lt__run_small(team, top_share_rank, (void *)args, (uint64_t)(args->dst.dim[0] * args->src[0].dim[1]));
    return s;
}

/* ---- EXPERT_BIAS, EXPERT_SUM ---- */

static void expert_bias_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const int64_t each = a->dst.dim[1];
    const uint64_t cols = (uint64_t)a->dst.dim[2];
    uint64_t n, end;
    lt__team_range((uint64_t)(a->dst.dim[0] * each) * pieces_of(cols), 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        piece p = piece_at(n, cols);
        const int64_t t = p.row / each, k = p.row % each;
        const float *x = floats_at2(&a->src[0], t, k), *b = floats_at(&a->src[1], ids_at(&a->src[2], t)[k]);
        float *y = floats_at2(&a->dst, t, k);
        for (; p.i + 8 <= p.end; p.i += 8)
            _mm256_storeu_ps(y + p.i, _mm256_add_ps(_mm256_loadu_ps(x + p.i), _mm256_loadu_ps(b + p.i)));
        for (; p.i < p.end; p.i++)
            y[p.i] = x[p.i] + b[p.i];
    }
}

lt_status lt__expert_bias_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes;
    const lt_view *y = &args->dst;
    lt_status s = lt__ref_expert_check(args, &args->src[2], args->src[1].dim[0], err);
    if (s == LT_OK)
        lt__run_small(team, expert_bias_rank, (void *)args, (uint64_t)(y->dim[0] * y->dim[1] * y->dim[2]));
    return s;
}

static void expert_sum_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *x = &a->src[0];
    const uint64_t cols = (uint64_t)a->dst.dim[1];
    uint64_t n, end;
    lt__team_range((uint64_t)a->dst.dim[0] * pieces_of(cols), 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        piece p = piece_at(n, cols);
        const float *share = floats_at(&a->src[1], p.row);
        float *y = floats_at(&a->dst, p.row);
        for (; p.i + 8 <= p.end; p.i += 8) {
            __m256 o = _mm256_setzero_ps();
            for (int64_t k = 0; k < x->dim[1]; k++)
                o = _mm256_fmadd_ps(_mm256_set1_ps(share[k]), _mm256_loadu_ps(floats_at2(x, p.row, k) + p.i), o);
            _mm256_storeu_ps(y + p.i, o);
        }
        for (; p.i < p.end; p.i++) {
            float o = 0;
            for (int64_t k = 0; k < x->dim[1]; k++)
                o = fmaf(share[k], floats_at2(x, p.row, k)[p.i], o);
            y[p.i] = o;
        }
    }
}

lt_status lt__expert_sum_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    const lt_view *x = &args->src[0];
    lt__run_small(team, expert_sum_rank, (void *)args, (uint64_t)(x->dim[0] * x->dim[1] * x->dim[2]));
    return LT_OK;
}

/* ---- CLAMP_MUL ---- */

/* Of min and max the second operand is the result where one is NaN, which stays so. */
LT_ALWAYS __m256 clamp_mul8(__m256 g, __m256 u, __m256 alpha, __m256 limit)
{
    const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f);
    g = _mm256_min_ps(limit, g);
    u = _mm256_max_ps(_mm256_xor_ps(limit, sign), _mm256_min_ps(limit, u));
    const __m256 e = lt__exp8(_mm256_xor_ps(_mm256_mul_ps(alpha, g), sign));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), _mm256_add_ps(u, one));
}

static void clamp_mul_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_clamp_params *q = &a->params.CLAMP_MUL;
    const __m256 alpha = _mm256_set1_ps(q->alpha), limit = _mm256_set1_ps(q->limit);
    const uint64_t cols = (uint64_t)a->dst.dim[1];
    uint64_t n, end;
    lt__team_range((uint64_t)a->dst.dim[0] * pieces_of(cols), 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        piece p = piece_at(n, cols);
        const float *g = floats_at(&a->src[0], p.row), *u = floats_at(&a->src[1], p.row);
        float *y = floats_at(&a->dst, p.row);
        for (; p.i + 8 <= p.end; p.i += 8)
            _mm256_storeu_ps(y + p.i, clamp_mul8(_mm256_loadu_ps(g + p.i), _mm256_loadu_ps(u + p.i), alpha, limit));
        for (; p.i < p.end; p.i++)
            y[p.i] = lt__clamp_mulf(g[p.i], u[p.i], q->alpha, q->limit);
    }
}

lt_status lt__clamp_mul_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, clamp_mul_rank, (void *)args, (uint64_t)(args->dst.dim[0] * args->dst.dim[1]));
    return LT_OK;
}
