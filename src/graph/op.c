#include "graph/op.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/mem.h"

static const lt_op_traits op_traits[LT_OP_COUNT] = {
#define LT_OP(name, nsrc, params, text) {#name, nsrc, nsrc - (LT_OP_##name == LT_OP_ATTENTION), text},
#include "graph/ops.def"
#undef LT_OP
};

const lt_op_traits *lt_op_get(lt_op op)
{
    return (unsigned)op < LT_OP_COUNT ? &op_traits[op] : NULL;
}

/* What is being checked, so that a helper can name it. */
typedef struct check {
    const lt_op_args *args;
    const char       *label; /* "LINEAR blk.0.attn_q" */
    lt_err           *err;
} check;

static const lt_view *view_of(const check *c, int which)
{
    return which < 0 ? &c->args->dst : &c->args->src[which];
}

static const char *view_name(int which)
{
    static const char *const names[] = {"dst", "src0", "src1", "src2", "src3", "src4", "src5"};
    return names[which + 1];
}

#define DST (-1)

/* A view by itself: known dtype, positive dims, no overlap of its own rows, no overflow. */
static lt_status check_view(const check *c, int which)
{
    const lt_view *v = view_of(c, which);
    const char *name = view_name(which);
    const lt_dtype_traits *t = lt_dtype_get(v->dtype);
    if (!t)
        return lt__fail(c->err, LT_E_INVALID, "%s: %s has unknown dtype %d", c->label, name, (int)v->dtype);
    if (v->ndim < 1 || v->ndim > LT_MAX_DIMS)
        return lt__fail(c->err, LT_E_INVALID, "%s: %s has %u dimensions, expected 1 to %d", c->label, name, v->ndim,
                        LT_MAX_DIMS);
    for (uint32_t i = 0; i < v->ndim; i++) {
        if (v->dim[i] < 1)
            return lt__fail(c->err, LT_E_INVALID, "%s: dimension %u of %s is %" PRId64 ", expected 1 or more",
                            c->label, i, name, v->dim[i]);
    }
    uint32_t last = v->ndim - 1;
    uint64_t need;
    if (!lt_dtype_row_bytes(v->dtype, (uint64_t)v->dim[last], &need))
        return lt__fail(c->err, LT_E_INVALID, "%s: %s has rows of %" PRId64 " elements, not whole blocks of %u (%s)",
                        c->label, name, v->dim[last], t->block_elems, t->name);
    if (v->stride[last] != (int64_t)t->block_bytes)
        return lt__fail(c->err, LT_E_INVALID, "%s: innermost stride of %s is %" PRId64 ", expected %u", c->label,
                        name, v->stride[last], t->block_bytes);
    for (uint32_t i = last; i-- > 0;) {
        if (v->stride[i] < 0 || (uint64_t)v->stride[i] < need)
            return lt__fail(c->err, LT_E_INVALID, "%s: stride %u of %s is %" PRId64 ", expected %" PRIu64 " or more",
                            c->label, i, name, v->stride[i], need);
        uint64_t before;
        if (!lt__mul_u64((uint64_t)v->dim[i] - 1, (uint64_t)v->stride[i], &before) ||
            !lt__add_u64(before, need, &need) || need > INT64_MAX)
            return lt__fail(c->err, LT_E_INVALID, "%s: the bytes of %s overflow", c->label, name);
    }
    return LT_OK;
}

static lt_status want_dtype(const check *c, int which, lt_dtype t)
{
    const lt_view *v = view_of(c, which);
    if (v->dtype == t)
        return LT_OK;
    return lt__fail(c->err, LT_E_INVALID, "%s: %s is %s, expected %s", c->label, view_name(which),
                    lt_dtype_get(v->dtype)->name, lt_dtype_get(t)->name);
}

static lt_status want_ndim(const check *c, int which, uint32_t n)
{
    const lt_view *v = view_of(c, which);
    if (v->ndim == n)
        return LT_OK;
    return lt__fail(c->err, LT_E_INVALID, "%s: %s has %u dimensions, expected %u", c->label, view_name(which),
                    v->ndim, n);
}

static lt_status want_dim(const check *c, int which, uint32_t i, int64_t n)
{
    const lt_view *v = view_of(c, which);
    if (v->dim[i] == n)
        return LT_OK;
    return lt__fail(c->err, LT_E_INVALID, "%s: dimension %u of %s is %" PRId64 ", expected %" PRId64, c->label, i,
                    view_name(which), v->dim[i], n);
}

static lt_status want_shape(const check *c, int which, const lt_view *like)
{
    lt_status s = want_ndim(c, which, like->ndim);
    for (uint32_t i = 0; s == LT_OK && i < like->ndim; i++)
        s = want_dim(c, which, i, like->dim[i]);
    return s;
}

/* dtype, number of dimensions, then each dimension; -1 leaves one free. */
static lt_status want(const check *c, int which, lt_dtype t, uint32_t ndim, int64_t d0, int64_t d1, int64_t d2)
{
    const int64_t dims[3] = {d0, d1, d2};
    lt_status s = want_dtype(c, which, t);
    if (s == LT_OK)
        s = want_ndim(c, which, ndim);
    for (uint32_t i = 0; s == LT_OK && i < ndim; i++)
        s = dims[i] < 0 ? LT_OK : want_dim(c, which, i, dims[i]);
    return s;
}

/* First failure of a list of checks wins; the later ones are not evaluated. */
#define TRY(x) do { lt_status s_ = (x); if (s_ != LT_OK) return s_; } while (0)

static lt_status check_linear(const check *c)
{
    const lt_view *x = &c->args->src[0], *w = &c->args->src[1];
    lt_dtype_kind kind = lt_dtype_get(w->dtype)->kind;
    if (kind != LT_DTYPE_KIND_FLOAT && kind != LT_DTYPE_KIND_QUANT)
        return lt__fail(c->err, LT_E_INVALID, "%s: the weight is %s, expected a float or quantised dtype", c->label,
                        lt_dtype_get(w->dtype)->name);
    TRY(want_ndim(c, 1, 2));
    TRY(want(c, 0, kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32, 2, -1, w->dim[1], 0));
    return want(c, DST, LT_DTYPE_F32, 2, x->dim[0], w->dim[0], 0);
}

static lt_status check_quantize(const check *c)
{
    const lt_view *x = &c->args->src[0];
    TRY(want_dtype(c, 0, LT_DTYPE_F32));
    if (x->ndim != 2)
        TRY(want_ndim(c, 0, 3));
    TRY(want_dtype(c, DST, LT_DTYPE_Q8A));
    return want_shape(c, DST, x);
}

static lt_status check_norm(const check *c)
{
    const lt_view *x = &c->args->src[0];
    float eps = c->args->params.RMS_NORM.eps;
    TRY(want_dtype(c, 0, LT_DTYPE_F32));
    if (x->ndim != 2)
        TRY(want_ndim(c, 0, 3));
    TRY(want(c, 1, LT_DTYPE_F32, 1, x->dim[x->ndim - 1], 0, 0));
    TRY(want_dtype(c, DST, LT_DTYPE_F32));
    TRY(want_shape(c, DST, x));
    if (!(eps >= 0 && eps <= 1))
        return lt__fail(c->err, LT_E_INVALID, "%s: eps is %g, expected 0 to 1", c->label, (double)eps);
    return LT_OK;
}

static lt_status check_rope(const check *c)
{
    const lt_view *x = &c->args->src[0];
    const lt_rope_params *p = &c->args->params.ROPE;
    TRY(want(c, 0, LT_DTYPE_F32, 3, -1, -1, -1));
    if (p->style != LT_ROPE_PAIRS && p->style != LT_ROPE_HALVES)
        return lt__fail(c->err, LT_E_INVALID, "%s: unknown rope style %d", c->label, (int)p->style);
    if (p->rotated < 2 || p->rotated % 2 || p->rotated > (uint64_t)x->dim[2])
        return lt__fail(c->err, LT_E_INVALID, "%s: %u rotated elements of a head of %" PRId64
                        ", expected an even number from 2 up to all", c->label, p->rotated, x->dim[2]);
    TRY(want(c, 1, LT_DTYPE_F32, 3, x->dim[0], p->rotated / 2, 2));
    if (c->args->src[1].stride[1] != 8)
        return lt__fail(c->err, LT_E_INVALID, "%s: stride 1 of the table is %" PRId64 ", expected 8", c->label,
                        c->args->src[1].stride[1]);
    TRY(want_dtype(c, DST, LT_DTYPE_F32));
    return want_shape(c, DST, x);
}

/* The layout of a page, and that the cache holds at least one. */
static lt_status check_kv(const check *c, const lt_kv_layout *kv, int cache)
{
    uint64_t row, part, k_end, v_end;
    if (kv->dtype != LT_DTYPE_F32 && kv->dtype != LT_DTYPE_F16 && kv->dtype != LT_DTYPE_Q8_0)
        return lt__fail(c->err, LT_E_INVALID, "%s: the cache is %s, expected F32, F16 or Q8_0", c->label,
                        lt_dtype_get(kv->dtype) ? lt_dtype_get(kv->dtype)->name : "of unknown dtype");
    if (kv->kv_heads < 1 || kv->head_dim < 1 || kv->head_dim > LT_HEAD_DIM_MAX)
        return lt__fail(c->err, LT_E_INVALID, "%s: %u kv heads of %u elements, expected at least 1 of 1 to %d",
                        c->label, kv->kv_heads, kv->head_dim, LT_HEAD_DIM_MAX);
    if (!lt_dtype_row_bytes(kv->dtype, kv->head_dim, &row))
        return lt__fail(c->err, LT_E_INVALID, "%s: a head of %u elements is not whole blocks of %s", c->label,
                        kv->head_dim, lt_dtype_get(kv->dtype)->name);
    if (!lt__mul_u64(row * LT_KV_PAGE, kv->kv_heads, &part) || !lt__add_u64(part, kv->k_offset, &k_end) ||
        !lt__add_u64(part, kv->v_offset, &v_end) || kv->page_bytes > INT64_MAX)
        return lt__fail(c->err, LT_E_INVALID, "%s: the bytes of a page overflow", c->label);
    if (k_end > kv->page_bytes || v_end > kv->page_bytes || (k_end > kv->v_offset && v_end > kv->k_offset))
        return lt__fail(c->err, LT_E_INVALID, "%s: keys at %" PRIu64 " and values at %" PRIu64 ", %" PRIu64
                        " bytes each, do not fit a page of %" PRIu64 " side by side",
                        c->label, kv->k_offset, kv->v_offset, part, kv->page_bytes);
    TRY(want(c, cache, LT_DTYPE_I8, 1, -1, 0, 0));
    if ((uint64_t)view_of(c, cache)->dim[0] < kv->page_bytes)
        return lt__fail(c->err, LT_E_INVALID, "%s: the cache has %" PRId64 " bytes, less than one page of %" PRIu64,
                        c->label, view_of(c, cache)->dim[0], kv->page_bytes);
    TRY(want(c, 2, LT_DTYPE_I32, 1, c->args->src[0].dim[0], 0, 0));
    return want(c, 3, LT_DTYPE_I32, 1, -1, 0, 0);
}

static lt_status check_kv_store(const check *c)
{
    const lt_kv_layout *kv = &c->args->params.KV_STORE.kv;
    TRY(want(c, 0, LT_DTYPE_F32, 3, -1, kv->kv_heads, kv->head_dim));
    TRY(want(c, 1, LT_DTYPE_F32, 3, c->args->src[0].dim[0], kv->kv_heads, kv->head_dim));
    return check_kv(c, kv, DST);
}

static lt_status check_attention(const check *c)
{
    const lt_attention_params *p = &c->args->params.ATTENTION;
    TRY(want(c, 0, LT_DTYPE_F32, 3, -1, p->heads, p->kv.head_dim));
    TRY(want_dtype(c, DST, LT_DTYPE_F32));
    TRY(want_shape(c, DST, &c->args->src[0]));
    TRY(check_kv(c, &p->kv, 1));
    if ((unsigned)p->how >= LT_ATTENTION_COUNT)
        return lt__fail(c->err, LT_E_INVALID, "%s: attention of kind %d", c->label, (int)p->how);
    if (p->heads % p->kv.kv_heads)
        return lt__fail(c->err, LT_E_INVALID, "%s: %u heads, expected a multiple of the %u kv heads", c->label,
                        p->heads, p->kv.kv_heads);
    if (!(p->cap >= 0 && p->cap < INFINITY))
        return lt__fail(c->err, LT_E_INVALID, "%s: the soft cap is %g, expected 0 for none, or a positive number", c->label,
                        (double)p->cap);
    return c->args->n_src > 4 ? want(c, 4, LT_DTYPE_F32, 1, p->heads, 0, 0) : LT_OK;
}

static lt_status check_binary(const check *c, bool row)
{
    const lt_view *x = &c->args->src[0];
    TRY(want(c, 0, LT_DTYPE_F32, 2, -1, -1, 0));
    if (row)
        TRY(want(c, 1, LT_DTYPE_F32, 1, x->dim[1], 0, 0));
    else
        TRY(want(c, 1, LT_DTYPE_F32, 2, x->dim[0], x->dim[1], 0));
    return want(c, DST, LT_DTYPE_F32, 2, x->dim[0], x->dim[1], 0);
}

static lt_status check_scale(const check *c)
{
    TRY(want_dtype(c, 0, LT_DTYPE_F32));
    TRY(want_dtype(c, DST, LT_DTYPE_F32));
    return want_shape(c, DST, &c->args->src[0]);
}

static lt_status check_softcap(const check *c)
{
    float cap = c->args->params.SOFTCAP.cap;
    if (!(cap > 0 && cap < INFINITY))
        return lt__fail(c->err, LT_E_INVALID, "%s: the soft cap is %g, expected a positive number", c->label, (double)cap);
    return check_scale(c);
}

static lt_status check_take_rows(const check *c)
{
    TRY(want(c, 0, LT_DTYPE_F32, 2, -1, -1, 0));
    TRY(want(c, 1, LT_DTYPE_I32, 1, -1, 0, 0));
    return want(c, DST, LT_DTYPE_F32, 2, c->args->src[1].dim[0], c->args->src[0].dim[1], 0);
}

static lt_status check_top_k(const check *c)
{
    const lt_view *x = &c->args->src[0], *d = &c->args->dst;
    TRY(want(c, 0, LT_DTYPE_F32, 2, -1, -1, 0));
    TRY(want(c, DST, LT_DTYPE_I32, 2, x->dim[0], c->args->params.TOP_K.k, 0));
    if (d->dim[1] > x->dim[1])
        return lt__fail(c->err, LT_E_INVALID, "%s: %" PRId64 " of %" PRId64 " columns", c->label, d->dim[1], x->dim[1]);
    return LT_OK;
}

static lt_status check_top_share(const check *c)
{
    const lt_view *x = &c->args->src[0], *ids = &c->args->src[1];
    TRY(want(c, 0, LT_DTYPE_F32, 2, -1, -1, 0));
    TRY(want(c, 1, LT_DTYPE_I32, 2, x->dim[0], -1, 0));
    return want(c, DST, LT_DTYPE_F32, 2, x->dim[0], ids->dim[1], 0);
}

static lt_status check_expert_linear(const check *c)
{
    const lt_view *x = &c->args->src[0], *w = &c->args->src[1], *ids = &c->args->src[2];
    lt_dtype_kind kind = lt_dtype_get(w->dtype)->kind;
    lt_dtype acts = kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32;
    if (kind != LT_DTYPE_KIND_FLOAT && kind != LT_DTYPE_KIND_QUANT)
        return lt__fail(c->err, LT_E_INVALID, "%s: the weight is %s, expected a float or quantised dtype", c->label,
                        lt_dtype_get(w->dtype)->name);
    TRY(want_ndim(c, 1, 3));
    TRY(want(c, 2, LT_DTYPE_I32, 2, -1, -1, 0));
    if (x->ndim == 2)
        TRY(want(c, 0, acts, 2, ids->dim[0], w->dim[2], 0));
    else
        TRY(want(c, 0, acts, 3, ids->dim[0], ids->dim[1], w->dim[2]));
    if ((int64_t)c->args->params.EXPERT_LINEAR.first > INT32_MAX - w->dim[0])
        return lt__fail(c->err, LT_E_INVALID, "%s: experts from %u on, %" PRId64 " of them", c->label,
                        c->args->params.EXPERT_LINEAR.first, w->dim[0]);
    return want(c, DST, LT_DTYPE_F32, 3, ids->dim[0], ids->dim[1], w->dim[1]);
}

static lt_status check_expert_bias(const check *c)
{
    const lt_view *x = &c->args->src[0];
    TRY(want(c, 0, LT_DTYPE_F32, 3, -1, -1, -1));
    TRY(want(c, 1, LT_DTYPE_F32, 2, -1, x->dim[2], 0));
    TRY(want(c, 2, LT_DTYPE_I32, 2, x->dim[0], x->dim[1], 0));
    return want(c, DST, LT_DTYPE_F32, 3, x->dim[0], x->dim[1], x->dim[2]);
}

static lt_status check_expert_sum(const check *c)
{
    const lt_view *x = &c->args->src[0];
    TRY(want(c, 0, LT_DTYPE_F32, 3, -1, -1, -1));
    TRY(want(c, 1, LT_DTYPE_F32, 2, x->dim[0], x->dim[1], 0));
    return want(c, DST, LT_DTYPE_F32, 2, x->dim[0], x->dim[2], 0);
}

static lt_status check_clamp(const check *c)
{
    const lt_clamp_params *p = &c->args->params.CLAMP_MUL;
    if (!(p->limit > 0 && p->limit < INFINITY && p->alpha > 0 && p->alpha < INFINITY))
        return lt__fail(c->err, LT_E_INVALID, "%s: alpha is %g and the limit %g, expected positive numbers", c->label,
                        (double)p->alpha, (double)p->limit);
    return check_binary(c, false);
}

static bool in_place_allowed(lt_op op)
{
    return op == LT_OP_RMS_NORM || op == LT_OP_ROPE || op == LT_OP_ADD || op == LT_OP_ADD_ROW ||
           op == LT_OP_SILU_MUL || op == LT_OP_GELU_MUL || op == LT_OP_SCALE || op == LT_OP_SOFTCAP ||
           op == LT_OP_EXPERT_BIAS || op == LT_OP_CLAMP_MUL;
}

/* dst at the address of a source: only of src0, where the op allows it, with equal strides. */
static lt_status check_aliases(const check *c)
{
    const lt_view *d = &c->args->dst;
    for (uint32_t i = 0; d->addr && i < c->args->n_src; i++) {
        const lt_view *v = &c->args->src[i];
        if (v->addr != d->addr)
            continue;
        if (i > 0 || !in_place_allowed(c->args->op))
            return lt__fail(c->err, LT_E_INVALID, "%s: dst is %s, which this op cannot write", c->label,
                            view_name((int)i));
        for (uint32_t k = 0; k < d->ndim; k++) {
            if (d->dim[k] > 1 && d->stride[k] != v->stride[k])
                return lt__fail(c->err, LT_E_INVALID, "%s: in place with stride %" PRId64 " in dst, %" PRId64
                                " in src0", c->label, d->stride[k], v->stride[k]);
        }
    }
    return LT_OK;
}

static lt_status check_contract(const check *c)
{
    switch (c->args->op) {
    case LT_OP_LINEAR:    return check_linear(c);
    case LT_OP_QUANTIZE:  return check_quantize(c);
    case LT_OP_RMS_NORM:  return check_norm(c);
    case LT_OP_ROPE:      return check_rope(c);
    case LT_OP_KV_STORE:  return check_kv_store(c);
    case LT_OP_ATTENTION: return check_attention(c);
    case LT_OP_ADD:
    case LT_OP_SILU_MUL:
    case LT_OP_GELU_MUL:  return check_binary(c, false);
    case LT_OP_ADD_ROW:   return check_binary(c, true);
    case LT_OP_SCALE:     return check_scale(c);
    case LT_OP_SOFTCAP:   return check_softcap(c);
    case LT_OP_TAKE_ROWS: return check_take_rows(c);
    case LT_OP_TOP_K:     return check_top_k(c);
    case LT_OP_TOP_SHARE: return check_top_share(c);
    case LT_OP_EXPERT_LINEAR: return check_expert_linear(c);
    case LT_OP_EXPERT_BIAS: return check_expert_bias(c);
    case LT_OP_EXPERT_SUM: return check_expert_sum(c);
    case LT_OP_CLAMP_MUL: return check_clamp(c);
    case LT_OP_COUNT:     break;
    }
    LT_ASSERT(false && "an op in ops.def has no check");
}

lt_status lt_op_check(const lt_op_args *args, lt_err *err)
{
    const lt_op_traits *t = lt_op_get(args->op);
    char label[128];
    check c = {args, label, err};
    if (!t)
        return lt__fail(err, LT_E_INVALID, "unknown op %d", (int)args->op);
    snprintf(label, sizeof label, "%s%s%s", t->name, args->name ? " " : "", args->name ? args->name : "");
    if (args->n_src < t->n_needed || args->n_src > t->n_src)
        return lt__fail(err, LT_E_INVALID, "%s: %u sources, expected %u%s", label, args->n_src, t->n_needed,
                        t->n_src > t->n_needed ? " or one more" : "");
    for (int i = DST; i < (int)args->n_src; i++)
        TRY(check_view(&c, i));
    TRY(check_contract(&c));
    return check_aliases(&c);
}
