#include "graph/graph.h"

#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

void lt__graph_init(lt_graph *g, lt_ctx *ctx)
{
    memset(g, 0, sizeof *g);
    g->ctx = ctx;
    g->layer = -1;
    g->status = LT_OK;
}

void lt__graph_deinit(lt_graph *g)
{
    lt__free(g->ctx, g->tensors, g->cap_tensors * sizeof *g->tensors);
    lt__free(g->ctx, g->nodes, g->cap_nodes * sizeof *g->nodes);
    lt__graph_init(g, g->ctx);
}

lt_status lt__graph_finish(lt_graph *g, lt_err *err)
{
    if (g->status != LT_OK) {
        if (err)
            *err = g->err;
        return g->status;
    }
    return LT_OK;
}

#define REFUSE(g, ...) ((g)->status = lt__fail(&(g)->err, LT_E_INVALID, __VA_ARGS__), LT_NO_TENSOR)

/* Bytes of one step along dim[0]: all inner dimensions packed. */
static bool packed_stride(const lt_tensor *t, uint64_t *out)
{
    uint64_t outer = 1;
    if (t->ndim == 1)
        return lt_dtype_row_bytes(t->dtype, lt_dtype_get(t->dtype)->block_elems, out);
    for (uint32_t i = 1; i + 1 < t->ndim; i++)
        if (!lt__mul_u64(outer, (uint64_t)t->dim[i], &outer))
            return false;
    uint64_t row;
    return lt_dtype_row_bytes(t->dtype, (uint64_t)t->dim[t->ndim - 1], &row) && lt__mul_u64(row, outer, out);
}

static lt_tid add_tensor(lt_graph *g, const lt_tensor *proto)
{
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    if (!lt_dtype_get(proto->dtype))
        return REFUSE(g, "graph: tensor '%s' has dtype number %d, which does not exist", proto->name, (int)proto->dtype);
    if (proto->ndim < 1 || proto->ndim > LT_MAX_DIMS)
        return REFUSE(g, "graph: tensor '%s' has %u dimensions; expected 1 to %d", proto->name, proto->ndim,
                      LT_MAX_DIMS);
    for (uint32_t i = 1; i < proto->ndim; i++)
        if (proto->dim[i] <= 0)
            return REFUSE(g, "graph: tensor '%s' has dim[%u] = %lld; only the first may be open", proto->name, i,
                          (long long)proto->dim[i]);
    if (proto->dim[0] < LT_DIM_ROWS)
        return REFUSE(g, "graph: tensor '%s' has dim[0] = %lld", proto->name, (long long)proto->dim[0]);
    if (g->n_tensors >= LT_NO_TENSOR)
        return REFUSE(g, "graph: more tensors than an index can name");
    g->status = lt__grow(g->ctx, (void **)&g->tensors, &g->cap_tensors, g->n_tensors + 1, sizeof *g->tensors, &g->err);
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_tensor t = *proto;
    if (t.base == LT_NO_TENSOR && !packed_stride(&t, &t.row_stride))
        return REFUSE(g, "graph: tensor '%s': %lld columns of %s do not divide into blocks, or overflow", t.name,
                      (long long)t.dim[t.ndim - 1], lt_dtype_get(t.dtype)->name);
    g->tensors[g->n_tensors] = t;
    return (lt_tid)g->n_tensors++;
}

static lt_tensor blank(lt_tensor_kind kind, const char *name, lt_dtype dtype)
{
    lt_tensor t;
    memset(&t, 0, sizeof t);
    t.kind = kind;
    t.dtype = dtype;
    t.base = LT_NO_TENSOR;
    t.weight = UINT32_MAX;
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

static bool set_dims(lt_graph *g, lt_tensor *t, const int64_t *dim, uint32_t ndim)
{
    if (ndim < 1 || ndim > LT_MAX_DIMS) {
        (void)REFUSE(g, "graph: tensor '%s' has %u dimensions; expected 1 to %d", t->name, ndim, LT_MAX_DIMS);
        return false;
    }
    t->ndim = ndim;
    memcpy(t->dim, dim, ndim * sizeof *dim);
    return true;
}

lt_tid lt__graph_weight(lt_graph *g, const char *name, uint32_t weight, lt_dtype dtype, const uint64_t *dim,
                        uint32_t ndim)
{
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_tensor t = blank(LT_TENSOR_WEIGHT, name, dtype);
    if (ndim < 1 || ndim > LT_MAX_DIMS)
        return REFUSE(g, "graph: weight '%s' has %u dimensions; expected 1 to %d", name, ndim, LT_MAX_DIMS);
    t.ndim = ndim;
    t.weight = weight;
    for (uint32_t i = 0; i < ndim; i++) {
        if (dim[i] == 0 || dim[i] > INT64_MAX)
            return REFUSE(g, "graph: weight '%s' has dim[%u] = %llu", name, i, (unsigned long long)dim[i]);
        t.dim[i] = (int64_t)dim[i];
    }
    return add_tensor(g, &t);
}

lt_tid lt__graph_input(lt_graph *g, const char *name, lt_role role, uint32_t group, lt_dtype dtype,
                       const int64_t *dim, uint32_t ndim)
{
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_tensor t = blank(LT_TENSOR_INPUT, name, dtype);
    if (!set_dims(g, &t, dim, ndim))
        return LT_NO_TENSOR;
    t.role = role;
    t.group = group;
    return add_tensor(g, &t);
}

lt_tid lt__graph_state(lt_graph *g, const char *name, uint32_t group, lt_dtype dtype)
{
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_tensor t = blank(LT_TENSOR_STATE, name, dtype);
    t.role = LT_ROLE_KV;
    t.group = group;
    t.ndim = 1;
    return add_tensor(g, &t);
}

static const lt_tensor *tensor_of(lt_graph *g, lt_tid id, const char *user)
{
    if (g->status != LT_OK)
        return NULL;
    if (id >= g->n_tensors) {
        (void)REFUSE(g, "graph: %s uses a tensor that does not exist", user);
        return NULL;
    }
    return &g->tensors[id];
}

lt_tid lt__graph_window(lt_graph *g, lt_tid of, uint64_t first_col, const int64_t *dim, uint32_t ndim)
{
    const lt_tensor *src = tensor_of(g, of, "a window");
    if (!src)
        return LT_NO_TENSOR;
    if (lt_dtype_get(src->dtype)->block_elems != 1 || src->kind == LT_TENSOR_STATE || src->ndim < 2)
        return REFUSE(g, "graph: a window of '%s' needs rows of plain elements", src->name);
    uint64_t elem = lt_dtype_get(src->dtype)->block_bytes, have = 1, want = 1, end;
    for (uint32_t i = 1; i < src->ndim; i++)
        have *= (uint64_t)src->dim[i];
    if (ndim < 1 || ndim + 1 > LT_MAX_DIMS)
        return REFUSE(g, "graph: a window of '%s' with %u dimensions", src->name, ndim);
    for (uint32_t i = 0; i < ndim; i++)
        if (dim[i] <= 0 || !lt__mul_u64(want, (uint64_t)dim[i], &want))
            return REFUSE(g, "graph: a window of '%s' with dim %lld", src->name, (long long)dim[i]);
    if (!lt__add_u64(first_col, want, &end) || end > have)
        return REFUSE(g, "graph: columns %llu to %llu of '%s', which has %llu", (unsigned long long)first_col,
                      (unsigned long long)end, src->name, (unsigned long long)have);
    lt_tensor t = *src;
    t.ndim = ndim + 1;
    memset(t.dim + 1, 0, (LT_MAX_DIMS - 1) * sizeof *t.dim);
    memcpy(t.dim + 1, dim, ndim * sizeof *dim);
    /* A window of a window names the tensor that owns the bytes. */
    t.base = src->base == LT_NO_TENSOR ? of : src->base;
    t.base_offset = src->base_offset + first_col * elem;
    return add_tensor(g, &t);
}

/* What dst looks like, from the sources. Returns false after recording the reason. */
static bool infer(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src, lt_tensor *dst)
{
    const lt_tensor *a = &g->tensors[src[0]];
    *dst = blank(LT_TENSOR_ACT, name, LT_DTYPE_F32);
    dst->ndim = a->ndim;
    memcpy(dst->dim, a->dim, sizeof a->dim);
    switch (op) {
    case LT_OP_LINEAR: {
        const lt_tensor *w = &g->tensors[src[1]];
        bool quant = lt_dtype_get(w->dtype)->kind == LT_DTYPE_KIND_QUANT;
        if (a->ndim != 2 || w->ndim != 2 || a->dim[1] != w->dim[1]) {
            (void)REFUSE(g, "graph: %s multiplies rows of %lld by a weight of %lld columns", name,
                         (long long)a->dim[a->ndim - 1], (long long)w->dim[w->ndim - 1]);
            return false;
        }
        if (a->dtype != (quant ? LT_DTYPE_Q8A : LT_DTYPE_F32)) {
            (void)REFUSE(g, "graph: %s multiplies %s activations by a %s weight", name, lt_dtype_get(a->dtype)->name,
                         lt_dtype_get(w->dtype)->name);
            return false;
        }
        dst->dim[1] = w->dim[0];
        return true;
    }
    case LT_OP_QUANTIZE: dst->dtype = LT_DTYPE_Q8A; return true;
    case LT_OP_TAKE_ROWS: dst->dim[0] = g->tensors[src[1]].dim[0]; return true;
    case LT_OP_TOP_K:
        if (!p || !p->TOP_K.k || p->TOP_K.k > a->dim[1]) {
            (void)REFUSE(g, "graph: %s picks %u of %lld columns", name, p ? p->TOP_K.k : 0, (long long)a->dim[1]);
            return false;
        }
        dst->dtype = LT_DTYPE_I32;
        dst->dim[1] = p->TOP_K.k;
        return true;
    case LT_OP_TOP_SHARE: dst->dim[1] = g->tensors[src[1]].dim[1]; return true;
    case LT_OP_EXPERT_LINEAR:
        dst->ndim = 3;
        dst->dim[1] = g->tensors[src[2]].dim[1];
        dst->dim[2] = g->tensors[src[1]].dim[1];
        return true;
    case LT_OP_EXPERT_SUM:
        dst->ndim = 2;
        dst->dim[1] = a->dim[2];
        return true;
    case LT_OP_KV_STORE:
    case LT_OP_COUNT:
        (void)REFUSE(g, "graph: %s writes into a state; use lt__graph_into", name);
        return false;
    default: return true;
    }
}

static bool same_dims(const lt_tensor *a, const lt_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, a->ndim * sizeof *a->dim) == 0;
}

static bool check_experts(const lt_graph *g, lt_op op, const lt_tid *src)
{
    const lt_tensor *a = &g->tensors[src[0]], *b = &g->tensors[src[1]];
    const lt_tensor *ids = op == LT_OP_TOP_SHARE || op == LT_OP_EXPERT_SUM ? b : &g->tensors[src[2]];
    if (op == LT_OP_EXPERT_SUM)
        return a->ndim == 3 && b->ndim == 2 && a->dim[0] == b->dim[0] && a->dim[1] == b->dim[1] && a->dtype == LT_DTYPE_F32 &&
               b->dtype == LT_DTYPE_F32;
    if (ids->dtype != LT_DTYPE_I32 || ids->ndim != 2 || ids->dim[0] != a->dim[0])
        return false;
    if (op == LT_OP_TOP_SHARE)
        return a->ndim == 2 && a->dtype == LT_DTYPE_F32;
    if (a->ndim == 3 && a->dim[1] != ids->dim[1])
        return false;
    if (op == LT_OP_EXPERT_BIAS)
        return a->ndim == 3 && b->ndim == 2 && a->dim[2] == b->dim[1] && a->dtype == LT_DTYPE_F32 && b->dtype == LT_DTYPE_F32;
    bool quant = lt_dtype_get(b->dtype)->kind == LT_DTYPE_KIND_QUANT;
    return a->ndim >= 2 && a->ndim <= 3 && b->ndim == 3 && a->dim[a->ndim - 1] == b->dim[2] &&
           a->dtype == (quant ? LT_DTYPE_Q8A : LT_DTYPE_F32);
}

/* Shapes that inference does not look at. */
static bool check_sources(lt_graph *g, const char *name, lt_op op, const lt_tid *src, uint32_t n_src)
{
    const lt_tensor *a = &g->tensors[src[0]];
    int64_t last = a->dim[a->ndim - 1];
    bool ok = true;
    switch (op) {
    case LT_OP_RMS_NORM:
    case LT_OP_ADD_ROW: {
        const lt_tensor *w = &g->tensors[src[1]];
        ok = w->ndim == 1 && w->dim[0] == last && w->dtype == LT_DTYPE_F32 && a->dtype == LT_DTYPE_F32;
        break;
    }
    case LT_OP_ADD:
    case LT_OP_SILU_MUL:
    case LT_OP_GELU_MUL:
    case LT_OP_CLAMP_MUL: ok = same_dims(a, &g->tensors[src[1]]) && a->dtype == LT_DTYPE_F32; break;
    case LT_OP_ROPE: {
        const lt_tensor *r = &g->tensors[src[1]];
        ok = a->ndim == 3 && r->ndim == 3 && r->dim[2] == 2 && r->dim[1] * 2 <= a->dim[2] && r->dim[0] == a->dim[0];
        break;
    }
    case LT_OP_ATTENTION:
        ok = a->ndim == 3 && g->tensors[src[1]].kind == LT_TENSOR_STATE;
        if (n_src > 4) {
            const lt_tensor *sinks = &g->tensors[src[4]];
            ok = ok && sinks->ndim == 1 && sinks->dim[0] == a->dim[1] && sinks->dtype == LT_DTYPE_F32;
        }
        break;
    case LT_OP_KV_STORE: ok = a->ndim == 3 && same_dims(a, &g->tensors[src[1]]); break;
    case LT_OP_QUANTIZE: ok = (a->ndim == 2 || a->ndim == 3) && last % 32 == 0 && a->dtype == LT_DTYPE_F32; break;
    case LT_OP_TOP_K: ok = a->ndim == 2 && a->dtype == LT_DTYPE_F32; break;
    case LT_OP_TOP_SHARE:
    case LT_OP_EXPERT_LINEAR:
    case LT_OP_EXPERT_BIAS:
    case LT_OP_EXPERT_SUM: ok = check_experts(g, op, src); break;
    default: break;
    }
    if (!ok)
        (void)REFUSE(g, "graph: the shapes or dtypes of %s do not fit %s", name, lt_op_get(op)->name);
    return ok;
}

static lt_tid add_node(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src,
                       uint32_t n_src, lt_tid dst)
{
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    if (g->n_nodes >= UINT32_MAX - 1)
        return REFUSE(g, "graph: more nodes than an index can name");
    g->status = lt__grow(g->ctx, (void **)&g->nodes, &g->cap_nodes, g->n_nodes + 1, sizeof *g->nodes, &g->err);
    if (g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_node *n = &g->nodes[g->n_nodes++];
    memset(n, 0, sizeof *n);
    n->op = op;
    n->n_src = n_src;
    if (p)
        n->params = *p;
    memcpy(n->src, src, n_src * sizeof *src);
    n->dst = dst;
    n->layer = g->layer;
    snprintf(n->name, sizeof n->name, "%s", name);
    return dst;
}

static bool check_node(lt_graph *g, const char *name, lt_op op, const lt_tid *src, uint32_t n_src)
{
    if (g->status != LT_OK)
        return false;
    if ((unsigned)op >= LT_OP_COUNT || n_src < lt_op_get(op)->n_needed || n_src > lt_op_get(op)->n_src) {
        (void)REFUSE(g, "graph: %s has %u sources for op number %d", name, n_src, (int)op);
        return false;
    }
    for (uint32_t i = 0; i < n_src; i++)
        if (!tensor_of(g, src[i], name))
            return false;
    return check_sources(g, name, op, src, n_src);
}

lt_tid lt__graph_node(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src,
                      uint32_t n_src)
{
    lt_tensor dst;
    if (!check_node(g, name, op, src, n_src) || !infer(g, name, op, p, src, &dst))
        return LT_NO_TENSOR;
    return add_node(g, name, op, p, src, n_src, add_tensor(g, &dst));
}

static bool works_in_place(lt_op op)
{
    switch (op) {
    case LT_OP_RMS_NORM:
    case LT_OP_ROPE:
    case LT_OP_ADD:
    case LT_OP_ADD_ROW:
    case LT_OP_SILU_MUL:
    case LT_OP_GELU_MUL:
    case LT_OP_SCALE:
    case LT_OP_SOFTCAP:
    case LT_OP_EXPERT_BIAS:
    case LT_OP_CLAMP_MUL: return true;
    default: return false;
    }
}

lt_tid lt__graph_inplace(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src,
                         uint32_t n_src)
{
    if (!check_node(g, name, op, src, n_src))
        return LT_NO_TENSOR;
    if (!works_in_place(op) || g->tensors[src[0]].kind == LT_TENSOR_WEIGHT)
        return REFUSE(g, "graph: %s: %s does not work in place there", name, lt_op_get(op)->name);
    return add_node(g, name, op, p, src, n_src, src[0]);
}

lt_tid lt__graph_into(lt_graph *g, const char *name, lt_op op, const lt_op_params *p, const lt_tid *src,
                      uint32_t n_src, lt_tid dst)
{
    if (!check_node(g, name, op, src, n_src) || !tensor_of(g, dst, name))
        return LT_NO_TENSOR;
    if (op != LT_OP_KV_STORE || g->tensors[dst].kind != LT_TENSOR_STATE)
        return REFUSE(g, "graph: %s: only KV_STORE writes into a state", name);
    return add_node(g, name, op, p, src, n_src, dst);
}

void lt__graph_output(lt_graph *g, lt_tid id, lt_role role)
{
    const lt_tensor *t = tensor_of(g, id, "an output");
    if (!t)
        return;
    if (t->kind != LT_TENSOR_ACT || t->base != LT_NO_TENSOR) {
        (void)REFUSE(g, "graph: '%s' cannot be an output: it is not an activation of its own", t->name);
        return;
    }
    g->tensors[id].kind = LT_TENSOR_OUTPUT;
    g->tensors[id].role = role;
}

static uint64_t resolve(int64_t dim, uint32_t tokens, uint32_t rows)
{
    return dim == LT_DIM_TOKENS ? tokens : dim == LT_DIM_ROWS ? rows : (uint64_t)dim;
}

uint64_t lt__tensor_bytes(const lt_tensor *t, uint32_t tokens, uint32_t rows)
{
    uint64_t n = resolve(t->dim[0], tokens, rows), bytes;
    if (t->ndim == 1)
        return lt_dtype_row_bytes(t->dtype, n, &bytes) ? bytes : UINT64_MAX;
    return lt__mul_u64(n, t->row_stride, &bytes) ? bytes : UINT64_MAX;
}

void lt__tensor_view(const lt_tensor *t, lt_addr addr, uint32_t tokens, uint32_t rows, lt_view *out)
{
    const lt_dtype_traits *tr = lt_dtype_get(t->dtype);
    memset(out, 0, sizeof *out);
    out->addr = addr;
    out->dtype = t->dtype;
    out->ndim = t->ndim;
    for (uint32_t i = 0; i < t->ndim; i++)
        out->dim[i] = t->dim[i];
    out->dim[0] = (int64_t)resolve(t->dim[0], tokens, rows);
    out->stride[t->ndim - 1] = tr->block_bytes;
    if (t->ndim == 1)
        return;
    int64_t step = t->dim[t->ndim - 1] / (int64_t)tr->block_elems * (int64_t)tr->block_bytes;
    for (uint32_t i = t->ndim - 2; i > 0; i--) {
        out->stride[i] = step;
        step *= t->dim[i];
    }
    out->stride[0] = (int64_t)t->row_stride;
}
