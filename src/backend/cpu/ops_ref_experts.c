/* Mixtures of experts: which ones, their shares, their products and the sum. */
#include "backend/cpu/ops_ref.h"

static const int32_t *ids_of(const lt_view *v, int64_t t) { return (const int32_t *)(const void *)lt__ref_row(v, t); }

lt_status lt__ref_expert_check(const lt_op_args *args, const lt_view *ids, int64_t experts, lt_err *err)
{
    for (int64_t t = 0; t < ids->dim[0]; t++)
        for (int64_t k = 0; k < ids->dim[1]; k++) {
            int32_t id = ids_of(ids, t)[k];
            if (id < 0 || id >= experts)
                return lt__fail(err, LT_E_INVALID, "%s: expert %d of token %lld, expected 0 to %lld",
                                args->name ? args->name : lt_op_get(args->op)->name, id, (long long)t, (long long)experts - 1);
        }
    return LT_OK;
}

/* NaN is below all else; equal scores keep the order of columns. */
static bool above(float a, float b) { return a > b || (b != b && a == a); }

lt_status lt__ref_top_k(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team, (void)err;
    const int64_t n = args->src[0].dim[1], k = args->dst.dim[1];
    for (int64_t t = 0; t < args->dst.dim[0]; t++) {
        const float *x = (const float *)(void *)lt__ref_row(&args->src[0], t);
        int32_t *y = (int32_t *)(void *)lt__ref_row(&args->dst, t);
        int64_t have = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = have;
            while (at > 0 && above(x[i], x[y[at - 1]]))
                at--;
            if (at == k)
                continue;
            have = have < k ? have + 1 : k;
            memmove(y + at + 1, y + at, (size_t)(have - at - 1) * sizeof *y);
            y[at] = (int32_t)i;
        }
    }
    return LT_OK;
}

lt_status lt__ref_top_share(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team;
    const int64_t n = args->src[0].dim[1], k = args->dst.dim[1];
    const bool all = args->params.TOP_SHARE.all;
    lt_status s = lt__ref_expert_check(args, &args->src[1], n, err);
    for (int64_t t = 0; s == LT_OK && t < args->dst.dim[0]; t++) {
        const float *x = (const float *)(void *)lt__ref_row(&args->src[0], t);
        const int32_t *ids = ids_of(&args->src[1], t);
        float *y = (float *)(void *)lt__ref_row(&args->dst, t), acc[8] = {0};
        const int64_t count = all ? n : k;
        float m = x[all ? 0 : ids[0]];
        for (int64_t i = 1; i < count; i++) {
            float v = x[all ? i : ids[i]];
            m = v > m ? v : m;
        }
        for (int64_t i = 0; i < count; i++)
            acc[i % 8] = acc[i % 8] + lt__expf(x[all ? i : ids[i]] - m);
        float l = lt__halving_tree(acc, 8);
        for (int64_t i = 0; i < k; i++)
            y[i] = lt__expf(x[ids[i]] - m) / l;
    }
    return s;
}

/* Experts of another slice are not this launch's to check. */
lt_status lt__ref_expert_linear(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *ids = &args->src[2], *y = &args->dst;
    lt_status s = LT_OK;
    for (int64_t t = 0; t < ids->dim[0]; t++)
        for (int64_t k = 0; s == LT_OK && k < ids->dim[1]; k++) {
            int64_t e = (int64_t)ids_of(ids, t)[k] - args->params.EXPERT_LINEAR.first;
            if (e < 0 || e >= w->dim[0])
                continue;
            lt_op_args one = {.op = LT_OP_LINEAR, .n_src = 2, .name = args->name, .prefill = args->prefill};
            char *xr = x->ndim == 3 ? lt__ref_row2(x, t, k) : lt__ref_row(x, t);
            one.src[0] = (lt_view){(lt_addr)(uintptr_t)xr, x->dtype, 2, {1, w->dim[2]}, {x->stride[0], x->stride[x->ndim - 1]}};
            one.src[1] = (lt_view){w->addr + (uint64_t)(e * w->stride[0]), w->dtype, 2, {w->dim[1], w->dim[2]}, {w->stride[1], w->stride[2]}};
            one.dst = (lt_view){(lt_addr)(uintptr_t)lt__ref_row2(y, t, k), y->dtype, 2, {1, y->dim[2]}, {y->stride[1], y->stride[2]}};
            s = lt__ref_linear(&one, team, scratch, scratch_bytes, err);
        }
    return s;
}

lt_status lt__ref_expert_bias(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team;
    lt_status s = lt__ref_expert_check(args, &args->src[2], args->src[1].dim[0], err);
    for (int64_t t = 0; s == LT_OK && t < args->dst.dim[0]; t++)
        for (int64_t k = 0; k < args->dst.dim[1]; k++) {
            const float *x = (const float *)(void *)lt__ref_row2(&args->src[0], t, k);
            const float *b = (const float *)(void *)lt__ref_row(&args->src[1], ids_of(&args->src[2], t)[k]);
            float *y = (float *)(void *)lt__ref_row2(&args->dst, t, k);
            for (int64_t i = 0; i < args->dst.dim[2]; i++)
                y[i] = x[i] + b[i];
        }
    return s;
}

lt_status lt__ref_expert_sum(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team, (void)err;
    for (int64_t t = 0; t < args->dst.dim[0]; t++) {
        const float *share = (const float *)(void *)lt__ref_row(&args->src[1], t);
        float *y = (float *)(void *)lt__ref_row(&args->dst, t);
        for (int64_t i = 0; i < args->dst.dim[1]; i++) {
            float o = 0;
            for (int64_t k = 0; k < args->src[0].dim[1]; k++)
                o = fmaf(share[k], ((const float *)(void *)lt__ref_row2(&args->src[0], t, k))[i], o);
            y[i] = o;
        }
    }
    return LT_OK;
}

lt_status lt__ref_clamp_mul(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)team, (void)err;
    const float alpha = args->params.CLAMP_MUL.alpha, limit = args->params.CLAMP_MUL.limit;
    for (int64_t t = 0; t < args->dst.dim[0]; t++) {
        const float *g = (const float *)(void *)lt__ref_row(&args->src[0], t), *u = (const float *)(void *)lt__ref_row(&args->src[1], t);
        float *y = (float *)(void *)lt__ref_row(&args->dst, t);
        for (int64_t i = 0; i < args->dst.dim[1]; i++)
            y[i] = lt__clamp_mulf(g[i], u[i], alpha, limit);
    }
    return LT_OK;
}
