/* Norm, rotation and the elementwise ops: one token after another. */
#include "backend/cpu/ops_ref.h"

static float *f32_row(const lt_view *v, int64_t t)
{
    return (float *)(void *)lt__ref_row(v, t);
}

/* Splits the tokens of dst among the team. */
static lt_status run_tokens(const lt_op_args *args, lt_team *team, lt_team_fn *fn)
{
    lt__team_run(team, fn, (void *)args);
    return LT_OK;
}

static void token_range(const lt_op_args *a, uint32_t rank, uint32_t ranks, int64_t *first, int64_t *end)
{
    uint64_t f, e;
    lt__team_range((uint64_t)a->dst.dim[0], 1, rank, ranks, &f, &e);
    *first = (int64_t)f, *end = (int64_t)e;
}

static void norm_row(const float *x, const float *w, float *y, int64_t cols, float eps)
{
    float ss = lt__strided_sum(256, x, x, cols);
    float r = 1.0f / sqrtf(ss / (float)cols + eps);
    for (int64_t i = 0; i < cols; i++)
        y[i] = (x[i] * r) * w[i];
}

static void rms_norm_tokens(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *x = &a->src[0], *y = &a->dst;
    const float *w = lt_cpu_ptr(a->src[1].addr);
    float eps = a->params.RMS_NORM.eps;
    int64_t t, end;
    for (token_range(a, rank, ranks, &t, &end); t < end; t++) {
        if (x->ndim == 2) {
            norm_row(f32_row(x, t), w, f32_row(y, t), x->dim[1], eps);
            continue;
        }
        for (int64_t h = 0; h < x->dim[1]; h++)
            norm_row((const float *)(void *)lt__ref_row2(x, t, h), w, (float *)(void *)lt__ref_row2(y, t, h),
                     x->dim[2], eps);
    }
}

lt_status lt__ref_rms_norm(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    return run_tokens(args, team, rms_norm_tokens);
}

static void rope_head(const float *x, const float *table, float *y, int64_t dim, const lt_rope_params *p)
{
    uint32_t half = p->rotated / 2;
    for (uint32_t i = 0; i < half; i++) {
        uint32_t ia = p->style == LT_ROPE_PAIRS ? 2 * i : i;
        uint32_t ib = p->style == LT_ROPE_PAIRS ? 2 * i + 1 : i + half;
        float c = table[2 * i], s = table[2 * i + 1], a = x[ia], b = x[ib];
        y[ia] = fmaf(a, c, -(b * s));
        y[ib] = fmaf(b, c, a * s);
    }
    for (int64_t i = p->rotated; i < dim; i++)
        y[i] = x[i];
}

static void rope_tokens(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    int64_t t, end;
    for (token_range(a, rank, ranks, &t, &end); t < end; t++) {
        for (int64_t h = 0; h < a->dst.dim[1]; h++)
            rope_head((const float *)(void *)lt__ref_row2(&a->src[0], t, h), f32_row(&a->src[1], t),
                      (float *)(void *)lt__ref_row2(&a->dst, t, h), a->dst.dim[2], &a->params.ROPE);
    }
}

lt_status lt__ref_rope(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    return run_tokens(args, team, rope_tokens);
}

static void binary_tokens(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    int64_t t, end, cols = a->dst.dim[1];
    for (token_range(a, rank, ranks, &t, &end); t < end; t++) {
        const float *x = f32_row(&a->src[0], t), *z = f32_row(&a->src[1], a->op == LT_OP_ADD_ROW ? 0 : t);
        float *y = f32_row(&a->dst, t);
        for (int64_t i = 0; i < cols; i++) {
            switch (a->op) {
            case LT_OP_SILU_MUL: y[i] = lt__siluf(x[i]) * z[i]; break;
            case LT_OP_GELU_MUL: y[i] = lt__geluf(x[i]) * z[i]; break;
            default:             y[i] = x[i] + z[i]; break; /* ADD, ADD_ROW */
            }
        }
    }
}

lt_status lt__ref_add(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    return run_tokens(args, team, binary_tokens);
}

lt_status lt__ref_add_row(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    return lt__ref_add(args, team, scratch, scratch_bytes, err);
}

lt_status lt__ref_silu_mul(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    return lt__ref_add(args, team, scratch, scratch_bytes, err);
}

lt_status lt__ref_gelu_mul(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    return lt__ref_add(args, team, scratch, scratch_bytes, err);
}

/* Byte offset of the n-th innermost run, counted over all outer dimensions. */
static int64_t run_offset(const lt_view *v, int64_t n)
{
    int64_t at = 0;
    for (uint32_t d = v->ndim - 1; d-- > 0; n /= v->dim[d])
        at += n % v->dim[d] * v->stride[d];
    return at;
}

/* SCALE and SOFTCAP: views of any dimensions. */
lt_status lt__ref_scale(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err, (void)team;
    const lt_view *v = &args->dst;
    int64_t runs = 1;
    for (uint32_t d = 0; d + 1 < v->ndim; d++)
        runs *= v->dim[d];
    for (int64_t n = 0; n < runs; n++) {
        const float *x = (const float *)(void *)((char *)lt_cpu_ptr(args->src[0].addr) + run_offset(&args->src[0], n));
        float *y = (float *)(void *)((char *)lt_cpu_ptr(v->addr) + run_offset(v, n));
        for (int64_t i = 0; i < v->dim[v->ndim - 1]; i++)
            y[i] = args->op == LT_OP_SOFTCAP ? lt__softcapf(x[i], args->params.SOFTCAP.cap) : x[i] * args->params.SCALE.factor;
    }
    return LT_OK;
}

lt_status lt__ref_softcap(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    return lt__ref_scale(args, team, scratch, scratch_bytes, err);
}

lt_status lt__ref_take_rows(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team;
    const int32_t *rows = lt_cpu_ptr(args->src[1].addr);
    for (int64_t n = 0; n < args->dst.dim[0]; n++) {
        if (rows[n] < 0 || rows[n] >= args->src[0].dim[0])
            return lt__fail(err, LT_E_INVALID, "%s: row index %d at place %lld, expected 0 to %lld",
                            args->name ? args->name : "TAKE_ROWS", rows[n], (long long)n,
                            (long long)args->src[0].dim[0] - 1);
        memcpy(lt__ref_row(&args->dst, n), lt__ref_row(&args->src[0], rows[n]), (size_t)args->dst.dim[1] * 4);
    }
    return LT_OK;
}
