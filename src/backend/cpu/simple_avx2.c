/* QUANTIZE, norms, rotation and the elementwise ops, eight columns at a time. */
#include "backend/cpu/avx2.h"
#include "backend/cpu/math.h"
#include "backend/cpu/rows_avx2.h"

static float *row_at(const lt_view *v, uint64_t t)
{
    return (float *)(void *)((char *)lt_cpu_ptr(v->addr) + (int64_t)t * v->stride[0]);
}

/* ---- QUANTIZE ---- */

static void quantize_row(const float *x, int8_t *q, uint64_t cols)
{
    float *d = (float *)(void *)(q + cols);
    int16_t *s = (int16_t *)(void *)(q + cols + cols / 8);
    for (uint64_t b = 0; b < cols / 32; b++) {
        float amax = lt__amax32(x + 32 * b), id = amax > 0 ? 127.0f / amax : 0;
        d[b] = amax / 127.0f;
        if (id > 3.402823466e38f) /* infinite: amax is subnormal */
            id = d[b] = 0;
        __m256i v = lt__quantize32(x + 32 * b, id);
        lt__store256(q + 32 * b, v);
        __m256i sum = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), v), _mm256_set1_epi16(1));
        sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
        sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
        s[2 * b] = (int16_t)_mm256_extract_epi32(sum, 0);
        s[2 * b + 1] = (int16_t)_mm256_extract_epi32(sum, 4);
    }
}

static void quantize_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *x = &a->src[0], *y = &a->dst;
    const uint64_t each = y->ndim == 3 ? (uint64_t)y->dim[1] : 1;
    uint64_t i, end;
    lt__team_range((uint64_t)y->dim[0] * each, 1, rank, ranks, &i, &end);
    for (; i < end; i++) {
        const int64_t t = (int64_t)(i / each), k = (int64_t)(i % each);
        quantize_row((const float *)(const void *)((const char *)lt_cpu_ptr(x->addr) + t * x->stride[0] + k * x->stride[x->ndim - 2]),
                     (int8_t *)lt_cpu_ptr(y->addr) + t * y->stride[0] + k * y->stride[y->ndim - 2], (uint64_t)y->dim[y->ndim - 1]);
    }
}

lt_status lt__quantize_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, quantize_rank, (void *)args, (uint64_t)(args->dst.dim[0] * args->dst.dim[1] * (args->dst.ndim == 3 ? args->dst.dim[2] : 1)));
    return LT_OK;
}

/* ---- RMS_NORM ---- */

static void norm_row(const float *x, const float *w, float *y, uint64_t cols, float eps)
{
    __m256 acc[32];
    for (uint64_t k = 0; k < 32; k++) {
        __m256 a = _mm256_setzero_ps();
        uint64_t i = 8 * k;
        for (; i + 8 <= cols; i += 256)
            a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), a);
        if (i < cols) { /* squares only: lanes of zero leave a sum as it is */
            __m256 v = _mm256_maskload_ps(x + i, lt__lane_mask(cols - i));
            a = _mm256_fmadd_ps(v, v, a);
        }
        acc[k] = a;
    }
    float ss = lt__regs_tree256(acc), r = 1.0f / sqrtf(ss / (float)cols + eps);
    const __m256 rv = _mm256_set1_ps(r);
    uint64_t i = 0;
    for (; i + 8 <= cols; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), rv), _mm256_loadu_ps(w + i)));
    for (; i < cols; i++)
        y[i] = (x[i] * r) * w[i];
}

/* Rows of the last dimension, over one or two outer ones. */
static uint64_t outer_rows(const lt_view *v) { return (uint64_t)(v->ndim == 2 ? v->dim[0] : v->dim[0] * v->dim[1]); }
static float *outer_row(const lt_view *v, uint64_t n)
{
    if (v->ndim == 2)
        return row_at(v, n);
    const uint64_t h = (uint64_t)v->dim[1];
    return (float *)(void *)((char *)row_at(v, n / h) + (int64_t)(n % h) * v->stride[1]);
}

static void norm_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    uint64_t n, end;
    lt__team_range(outer_rows(&a->dst), 1, rank, ranks, &n, &end);
    for (; n < end; n++)
        norm_row(outer_row(&a->src[0], n), lt_cpu_ptr(a->src[1].addr), outer_row(&a->dst, n),
                 (uint64_t)a->dst.dim[a->dst.ndim - 1], a->params.RMS_NORM.eps);
}

lt_status lt__rms_norm_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, norm_rank, (void *)args, outer_rows(&args->dst) * (uint64_t)args->dst.dim[args->dst.ndim - 1]);
    return LT_OK;
}

/* ---- ROPE ---- */

static void rope_pairs(const float *x, const float *table, float *y, uint32_t rotated)
{
    uint32_t i = 0;
    for (; i + 8 <= rotated; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), t = _mm256_loadu_ps(table + i);
        __m256 other = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(t));
        _mm256_storeu_ps(y + i, _mm256_fmaddsub_ps(v, _mm256_moveldup_ps(t), other));
    }
    for (; i < rotated; i += 2) {
        float c = table[i], s = table[i + 1], a = x[i], b = x[i + 1];
        y[i] = fmaf(a, c, -(b * s));
        y[i + 1] = fmaf(b, c, a * s);
    }
}

static void rope_halves(const float *x, const float *table, float *y, uint32_t rotated)
{
    const uint32_t half = rotated / 2;
    uint32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        __m256 t0 = _mm256_loadu_ps(table + 2 * i), t1 = _mm256_loadu_ps(table + 2 * i + 8);
        __m256d c2 = _mm256_castps_pd(_mm256_shuffle_ps(t0, t1, 0x88));
        __m256d s2 = _mm256_castps_pd(_mm256_shuffle_ps(t0, t1, 0xdd));
        __m256 c = _mm256_castpd_ps(_mm256_permute4x64_pd(c2, 0xd8)), s = _mm256_castpd_ps(_mm256_permute4x64_pd(s2, 0xd8));
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + half);
        _mm256_storeu_ps(y + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(y + i + half, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < half; i++) {
        float c = table[2 * i], s = table[2 * i + 1], a = x[i], b = x[i + half];
        y[i] = fmaf(a, c, -(b * s));
        y[i + half] = fmaf(b, c, a * s);
    }
}

static void rope_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_rope_params *p = &a->params.ROPE;
    const uint64_t heads = (uint64_t)a->dst.dim[1];
    uint64_t n, end;
    lt__team_range(outer_rows(&a->dst), 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        const float *x = outer_row(&a->src[0], n), *table = row_at(&a->src[1], n / heads);
        float *y = outer_row(&a->dst, n);
        (p->style == LT_ROPE_PAIRS ? rope_pairs : rope_halves)(x, table, y, p->rotated);
        if (x != y)
            memcpy(y + p->rotated, x + p->rotated, ((size_t)a->dst.dim[2] - p->rotated) * 4);
    }
}

lt_status lt__rope_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, rope_rank, (void *)args, outer_rows(&args->dst) * (uint64_t)args->dst.dim[2]);
    return LT_OK;
}

/* ---- elementwise ---- */

LT_ALWAYS __m256 silu8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    return _mm256_div_ps(x, _mm256_add_ps(one, lt__exp8(_mm256_xor_ps(x, _mm256_set1_ps(-0.0f)))));
}
LT_ALWAYS __m256 gelu8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 c = _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(0.044715f), x), x);
    __m256 u = _mm256_mul_ps(_mm256_set1_ps(0.79788456f), _mm256_fmadd_ps(c, x, x));
    return _mm256_div_ps(x, _mm256_add_ps(one, lt__exp8(_mm256_mul_ps(_mm256_set1_ps(-2.0f), u))));
}
LT_ALWAYS __m256 binary8(lt_op op, __m256 x, __m256 z)
{
    return op == LT_OP_SILU_MUL ? _mm256_mul_ps(silu8(x), z)
         : op == LT_OP_GELU_MUL ? _mm256_mul_ps(gelu8(x), z)
                                : _mm256_add_ps(x, z);
}
LT_ALWAYS void binary_row(lt_op op, const float *x, const float *z, float *y, uint64_t cols)
{
    uint64_t i = 0;
    for (; i + 8 <= cols; i += 8)
        _mm256_storeu_ps(y + i, binary8(op, _mm256_loadu_ps(x + i), _mm256_loadu_ps(z + i)));
    if (i < cols) {
        const __m256i m = lt__lane_mask(cols - i);
        _mm256_maskstore_ps(y + i, m, binary8(op, _mm256_maskload_ps(x + i, m), _mm256_maskload_ps(z + i, m)));
    }
}

static void binary_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const uint64_t cols = (uint64_t)a->dst.dim[1];
    uint64_t t, end;
    lt__team_range((uint64_t)a->dst.dim[0], 1, rank, ranks, &t, &end);
    for (; t < end; t++) {
        const float *x = row_at(&a->src[0], t), *z = row_at(&a->src[1], a->op == LT_OP_ADD_ROW ? 0 : t);
        float *y = row_at(&a->dst, t);
        if (a->op == LT_OP_SILU_MUL)
            binary_row(LT_OP_SILU_MUL, x, z, y, cols);
        else if (a->op == LT_OP_GELU_MUL)
            binary_row(LT_OP_GELU_MUL, x, z, y, cols);
        else
            binary_row(LT_OP_ADD, x, z, y, cols);
    }
}

static void scale_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *v = &a->dst;
    const uint64_t cols = (uint64_t)v->dim[v->ndim - 1];
    const __m256 f = _mm256_set1_ps(a->params.SCALE.factor);
    uint64_t n, end;
    lt__team_range(outer_rows(v), 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        const float *x = outer_row(&a->src[0], n);
        float *y = outer_row(v, n);
        uint64_t i = 0;
        for (; i + 8 <= cols; i += 8)
            _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), f));
        for (; i < cols; i++)
            y[i] = x[i] * a->params.SCALE.factor;
    }
}

lt_status lt__scale_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, scale_rank, (void *)args, outer_rows(&args->dst) * (uint64_t)args->dst.dim[args->dst.ndim - 1]);
    return LT_OK;
}

/* A row of logits is long and there may be one only: pieces of rows are shared out. */
#define PIECE 4096 /* columns */

static void softcap_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *v = &a->dst;
    const float cap = a->params.SOFTCAP.cap;
    const __m256 c = _mm256_set1_ps(cap);
    const uint64_t cols = (uint64_t)v->dim[v->ndim - 1], pieces = (cols + PIECE - 1) / PIECE;
    uint64_t n, end;
    lt__team_range(outer_rows(v) * pieces, 1, rank, ranks, &n, &end);
    for (; n < end; n++) {
        const float *x = outer_row(&a->src[0], n / pieces);
        float *y = outer_row(v, n / pieces);
        uint64_t i = n % pieces * PIECE, to = i + PIECE < cols ? i + PIECE : cols;
        for (; i + 8 <= to; i += 8)
            _mm256_storeu_ps(y + i, lt__softcap8(_mm256_loadu_ps(x + i), c));
        for (; i < to; i++)
            y[i] = lt__softcapf(x[i], cap);
    }
}

lt_status lt__softcap_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, softcap_rank, (void *)args, outer_rows(&args->dst) * (uint64_t)args->dst.dim[args->dst.ndim - 1]);
    return LT_OK;
}

lt_status lt__binary_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__run_small(team, binary_rank, (void *)args, (uint64_t)(args->dst.dim[0] * args->dst.dim[1]));
    return LT_OK;
}
