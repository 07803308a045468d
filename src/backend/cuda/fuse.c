/* Which neighbours of a list one kernel does: by what they are, by their shapes and by where they lie.
 *
 * A fused kernel computes what its ops would, bit by bit, so the only questions are of memory: whether what
 * the ops pass on is read later (then it is written too), and whether a row written early lies where another
 * row's input is still to be read (then they stay apart). */
#include "backend/cuda/list.h"

#include <string.h>

/* --- memory --------------------------------------------------------------------------- */

typedef struct span { lt_addr at; uint64_t bytes; bool dense; } span;

static span span_of(const lt_view *v)
{
    uint64_t row = 0;
    uint32_t last = v->ndim - 1;
    if (!lt_dtype_row_bytes(v->dtype, (uint64_t)v->dim[last], &row))
        return (span){v->addr, UINT64_MAX - v->addr, false};
    span s = {v->addr, row, true};
    for (uint32_t d = last; d-- > 0;) {
        if (v->dim[d] == 0)
            return (span){v->addr, 0, true};
        s.dense = s.dense && (uint64_t)v->stride[d] == s.bytes;
        s.bytes += (uint64_t)(v->dim[d] - 1) * (uint64_t)v->stride[d];
    }
    return s;
}

static bool meet(span a, span b) { return a.at < b.at + b.bytes && b.at < a.at + a.bytes; }
static bool views_meet(const lt_view *a, const lt_view *b) { return meet(span_of(a), span_of(b)); }
static bool inside(span a, lt_addr at, uint64_t bytes) { return a.at >= at && a.at - at <= bytes && a.bytes <= bytes - (a.at - at); }

/* Whether anybody from op `from` on reads v before it is written anew. */
static bool read_later(const lt_launch_list *list, size_t from, const lt_view *v)
{
    span s = span_of(v);
    for (size_t i = from; i < list->n; i++) {
        const lt_op_args *a = list->args[i];
        for (uint32_t k = 0; k < a->n_src; k++)
            if (views_meet(&a->src[k], v))
                return true;
        span w = span_of(&a->dst);
        if (w.dense && inside(s, w.at, w.bytes))
            return false;
    }
    return !inside(s, list->dead, list->dead_bytes);
}

static bool same_view(const lt_view *a, const lt_view *b)
{
    if (a->addr != b->addr || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->dim[d] != b->dim[d] || (a->dim[d] > 1 && a->stride[d] != b->stride[d]))
            return false;
    return true;
}

#define PROMPT 8 /* tokens from which rows go to warps and lanes of four elements; timed, and quicker, at 512 */

static bool is_matrix(const lt_view *v) { return v->ndim == 2 && v->dtype == LT_DTYPE_F32 && v->dim[0] > 0; }

/* --- one kernel ------------------------------------------------------------------------ */

static lt_status give_fused(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    lt_cuda_step s = *p; /* parameters are no const to the driver */
    return lt__cuda_launch(d, "fused", s.kernel, s.grid, s.block, s.shared_bytes, stream, (void *[]){&s.u}, list->args[s.first], err);
}

/* --- rows: norm, sum, norm, quantise ---------------------------------------------------- */

/* Rows in blocks of their own: `out` of one may not lie on what another reads. */
static bool apart(const lt_view *out, const lt_view *in, int64_t rows)
{
    return !in || rows == 1 || same_view(out, in) || !views_meet(out, in);
}

/* The kernel that keeps a row in registers, where it is aligned and not too long. */
static const char *wide_chain(const lt_cuda_chain *c)
{
    uint64_t bits = c->a | c->w1 | c->y1 | c->b | c->s | c->w2 | c->y2 | c->q;
    bits |= (uint64_t)(c->a_row | c->y1_row | c->b_row | c->s_row | c->y2_row | c->q_row);
    if (bits % 16 || c->cols % 128 || c->cols > 8192)
        return NULL;
    return c->cols <= 2048 ? "chain_1" : c->cols <= 4096 ? "chain_2" : "chain_4";
}

static bool chain(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *norm1 = NULL, *sum = NULL, *norm2 = NULL, *quant = NULL;
    const lt_view *t = NULL, *in[2] = {NULL, NULL};
    size_t i = first;
    const lt_op_args *a = list->args[i];
    const lt_op_args *next = i + 1 < list->n ? list->args[i + 1] : NULL;
    if (a->op == LT_OP_RMS_NORM && next && next->op == LT_OP_ADD && same_view(&next->src[1], &a->dst)) {
        norm1 = a;
        a = list->args[++i];
    }
    if (a->op == LT_OP_ADD) {
        sum = a;
        in[1] = &sum->src[0];
        a = ++i < list->n ? list->args[i] : NULL;
    }
    in[0] = norm1 ? &norm1->src[0] : sum ? &sum->src[1] : &a->src[0];
    int64_t rows = in[0]->dim[0], cols = in[0]->dim[1];
    t = sum ? &sum->dst : NULL;
    if (a && a->op == LT_OP_RMS_NORM && (!t || same_view(&a->src[0], t))) {
        norm2 = a;
        t = &norm2->dst;
        a = ++i < list->n ? list->args[i] : NULL;
    }
    if (t && a && a->op == LT_OP_QUANTIZE && same_view(&a->src[0], t) && apart(&a->dst, in[0], rows) && apart(&a->dst, in[1], rows)) {
        quant = a;
        i++;
    }
    const lt_op_args *ops[] = {norm1, sum, norm2};
    for (int k = 0; k < 3; k++)
        if (ops[k] && (!is_matrix(&ops[k]->src[0]) || !is_matrix(&ops[k]->dst) || ops[k]->dst.dim[1] != cols ||
                       !apart(&ops[k]->dst, in[0], rows) || !apart(&ops[k]->dst, in[1], rows)))
            return false;
    if (i - first < 2 || !is_matrix(in[0]) || (in[1] && !is_matrix(in[1])) || rows > INT32_MAX || cols > INT32_MAX / 4 ||
        (uint64_t)cols * sizeof(float) + 2048 > d->props.shared_optin_bytes)
        return false;
    lt_cuda_chain c = {.a = in[0]->addr, .a_row = in[0]->stride[0], .cols = (int32_t)cols};
    if (norm1) {
        c.w1 = norm1->src[1].addr;
        c.eps1 = norm1->params.RMS_NORM.eps;
        if (read_later(list, i, &norm1->dst))
            c.y1 = norm1->dst.addr, c.y1_row = norm1->dst.stride[0];
    }
    if (sum) {
        c.b = sum->src[0].addr, c.b_row = sum->src[0].stride[0];
        if (read_later(list, i, &sum->dst))
            c.s = sum->dst.addr, c.s_row = sum->dst.stride[0];
    }
    if (norm2) {
        c.w2 = norm2->src[1].addr;
        c.eps2 = norm2->params.RMS_NORM.eps;
        if (!quant || read_later(list, i, &norm2->dst))
            c.y2 = norm2->dst.addr, c.y2_row = norm2->dst.stride[0];
    }
    if (quant)
        c.q = quant->dst.addr, c.q_row = quant->dst.stride[0];
    const char *wide = wide_chain(&c);
    *out = (lt_cuda_step){.first = first, .n = i - first, .give = give_fused, .kernel = wide ? wide : "chain", .grid = {(uint32_t)rows, 1, 1},
                          .block = {wide ? 512 : 256, 1, 1}, .shared_bytes = (uint32_t)cols * 4, .u.chain = c};
    return true;
}

/* --- gate and up, quantised ------------------------------------------------------------- */

/* Rows of q: the gate's, or what they are made of, a row a pick each behind the other. */
static bool gated_rows(const lt_op_args *a, const lt_op_args *q, lt_cuda_gate *g)
{
    const lt_view *y = &a->dst, *x = &q->src[0];
    *g = (lt_cuda_gate){.a = a->src[0].addr, .b = a->src[1].addr, .q = q->dst.addr, .a_row = a->src[0].stride[0], .b_row = a->src[1].stride[0],
                        .y_row = y->stride[0], .q_row = q->dst.stride[0], .rows = (int32_t)y->dim[0], .cols = (int32_t)y->dim[1]};
    if (same_view(x, y))
        return true;
    const bool one = y->dim[0] == 1;
    int64_t cols = x->dim[2] * (int64_t)sizeof(float), all = x->dim[1] * cols;
    if (x->ndim != 3 || x->addr != y->addr || x->dim[0] != y->dim[0] || x->dim[1] * x->dim[2] != y->dim[1] || (x->dim[1] > 1 && x->stride[1] != cols))
        return false;
    if (!one && (x->stride[0] != all || g->a_row != all || g->b_row != all || g->y_row != all || g->q_row != x->dim[1] * q->dst.stride[1]))
        return false;
    g->a_row = g->b_row = g->y_row = cols;
    g->q_row = q->dst.stride[1];
    g->rows *= (int32_t)x->dim[1];
    g->cols = (int32_t)x->dim[2];
    return true;
}

static bool gate(const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *a = list->args[first], *q = first + 1 < list->n ? list->args[first + 1] : NULL;
    lt_cuda_gate g;
    if (!q || q->op != LT_OP_QUANTIZE || !is_matrix(&a->dst) || !is_matrix(&a->src[0]) || !is_matrix(&a->src[1]) ||
        views_meet(&q->dst, &a->src[0]) || views_meet(&q->dst, &a->src[1]) || a->dst.dim[0] * (a->dst.dim[1] / 32) >= INT32_MAX ||
        !gated_rows(a, q, &g))
        return false;
    const bool clamp = a->op == LT_OP_CLAMP_MUL;
    g.gelu = a->op == LT_OP_GELU_MUL;
    if (clamp)
        g.alpha = a->params.CLAMP_MUL.alpha, g.limit = a->params.CLAMP_MUL.limit;
    if (read_later(list, first + 2, &a->dst))
        g.y = a->dst.addr;
    else
        g.y_row = 0;
    *out = (lt_cuda_step){.first = first, .n = 2, .give = give_fused, .kernel = clamp ? "clamp_quantize" : "gate_quantize", .block = {256, 1, 1},
                          .u.gate = g, .grid = {lt__cuda_blocks((int64_t)g.rows * (g.cols / 32), 8), 1, 1}};
    uint64_t bits = g.a | g.b | g.y | (uint64_t)g.a_row | (uint64_t)g.b_row | (uint64_t)g.y_row;
    if (g.rows >= PROMPT && (bits & 15) == 0 && (int64_t)g.rows * (g.cols / 32) < INT32_MAX / 8) {
        out->kernel = clamp ? "clamp_quantize_prompt" : "gate_quantize_prompt";
        out->grid.x = lt__cuda_blocks((int64_t)g.rows * (g.cols / 32), 32);
    }
    return true;
}

/* --- heads: norms, rotation, the cache --------------------------------------------------- */

static bool in_place(const lt_op_args *a) { return same_view(&a->dst, &a->src[0]); }

static bool is_heads(const lt_view *v, const lt_kv_layout *kv)
{
    return v->ndim == 3 && v->dtype == LT_DTYPE_F32 && v->dim[2] == (int64_t)kv->head_dim;
}

/* A bias added in place to all heads of v at once. */
static bool is_bias_of(const lt_op_args *a, const lt_view *v)
{
    const lt_view *y = &a->dst;
    return a->op == LT_OP_ADD_ROW && in_place(a) && is_matrix(y) && y->addr == v->addr && y->dim[0] == v->dim[0] &&
           y->dim[1] == v->dim[1] * v->dim[2] && v->stride[1] == v->dim[2] * v->stride[2] && (y->dim[0] == 1 || y->stride[0] == v->stride[0]);
}

/* [biases of q, k, v,] [norm q, norm k,] rope q, rope k, store k and v; as the models' blocks have them. */
static bool heads(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *const *a = list->args + first;
    size_t left = list->n - first, biases = a[0]->op == LT_OP_ADD_ROW ? 3 : 0;
    size_t norms = left > biases && a[biases]->op == LT_OP_RMS_NORM ? 2 : 0, all = biases + norms + 3;
    if (left < all || a[all - 3]->op != LT_OP_ROPE || a[all - 2]->op != LT_OP_ROPE || a[all - 1]->op != LT_OP_KV_STORE)
        return false;
    const lt_op_args *rq = a[all - 3], *rk = a[all - 2], *store = a[all - 1], *nq = a[biases], *nk = a[biases + 1];
    const lt_kv_layout *kv = &store->params.KV_STORE.kv;
    const lt_view *q = &rq->src[0], *k = &rk->src[0], *v = &store->src[1];
    if (!in_place(rq) || !in_place(rk) || !same_view(k, &store->src[0]) || !is_heads(q, kv) || !is_heads(k, kv) || !is_heads(v, kv) ||
        !same_view(&rq->src[1], &rk->src[1]) || rq->params.ROPE.style != rk->params.ROPE.style ||
        rq->params.ROPE.rotated != rk->params.ROPE.rotated || views_meet(q, k) || q->dim[0] < 1 || q->dim[0] > 65535 ||
        q->dim[1] + k->dim[1] + v->dim[1] > INT32_MAX || k->dim[1] != (int64_t)kv->kv_heads || v->dim[1] != k->dim[1])
        return false;
    if (biases && (!is_bias_of(a[0], q) || !is_bias_of(a[1], k) || !is_bias_of(a[2], v)))
        return false;
    if (norms && (nk->op != LT_OP_RMS_NORM || !in_place(nq) || !in_place(nk) || !same_view(&nq->dst, q) || !same_view(&nk->dst, k)))
        return false;
    int32_t rotated = (int32_t)rq->params.ROPE.rotated;
    lt_cuda_heads h = {.q = q->addr, .k = k->addr, .v = v->addr, .angles = rq->src[1].addr, .cache = store->dst.addr,
                       .pos = store->src[2].addr, .table = store->src[3].addr, .q_token = q->stride[0], .q_head = q->stride[1],
                       .k_token = k->stride[0], .k_head = k->stride[1], .v_token = v->stride[0], .v_head = v->stride[1],
                       .angles_token = rq->src[1].stride[0], .heads = (int32_t)q->dim[1],
                       .rotated = rq->params.ROPE.style == LT_ROPE_PAIRS ? -rotated : rotated,
                       .keep_k = read_later(list, first + all, k), .keep_v = biases && read_later(list, first + all, v)};
    if (biases)
        h.bq = a[0]->src[1].addr, h.bk = a[1]->src[1].addr, h.bv = a[2]->src[1].addr;
    if (norms)
        h.wq = nq->src[1].addr, h.wk = nk->src[1].addr, h.eps_q = nq->params.RMS_NORM.eps, h.eps_k = nk->params.RMS_NORM.eps;
    lt__cuda_kv_fill(&h.kv, d, store, kv, &store->dst);
    *out = (lt_cuda_step){.first = first, .n = all, .give = give_fused, .kernel = "heads_store", .block = {256, 1, 1},
                          .grid = {(uint32_t)(q->dim[1] + 2 * k->dim[1]), (uint32_t)q->dim[0], 1},
                          .shared_bytes = 2 * kv->head_dim * 4, .u.heads = h};
    if (q->dim[0] >= PROMPT && !norms && kv->dtype != LT_DTYPE_Q8_0) {
        out->kernel = "heads_store_prompt";
        out->grid.x = lt__cuda_blocks(out->grid.x, 8);
        out->shared_bytes = 0;
    }
    return true;
}

/* --- products of one x ------------------------------------------------------------------- */

static lt_status give_group(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    return lt__cuda_linear_group(d, stream, list->args + p->first, (uint32_t)p->n, err);
}

static lt_status give_halves(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    return lt__cuda_halves(d, stream, list->args + p->first, (uint32_t)p->n, err);
}

/* Prompts go to tensor cores where there are some: there products of one x share its halves. */
static bool prompt_products(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    uint32_t n = 1;
    while (first + n < list->n && lt__cuda_halves_ok(d, list->args + first, n + 1))
        n++;
    *out = (lt_cuda_step){.first = first, .n = n, .give = give_halves};
    return n > 1;
}

static bool products(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *const *a = list->args + first;
    uint32_t n = 1;
    if (a[0]->prefill)
        return prompt_products(d, list, first, out);
    while (first + n < list->n && !a[n]->prefill && a[n]->op == LT_OP_LINEAR && lt__cuda_linear_group_ok(d, a, n + 1))
        n++;
    *out = (lt_cuda_step){.first = first, .n = n, .give = give_group};
    return n > 1;
}

/* --- experts ------------------------------------------------------------------------------ */

static lt_status give_experts(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    uint32_t n = 0;
    while (n < p->n && list->args[p->first + n]->op == LT_OP_EXPERT_LINEAR)
        n++;
    return lt__cuda_expert_group(d, stream, list->args + p->first, n, (uint32_t)p->n - n, err);
}

/* Products of one x by the experts of one ids, slices of a weight too; then the biases of what they wrote. */
static bool experts(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *const *a = list->args + first;
    uint32_t n = 0, biases = 0;
    while (first + n < list->n && lt__cuda_expert_group_ok(d, a, n + 1))
        n++;
    while (n && first + n + biases < list->n && lt__cuda_bias_ok(a, n, a[n + biases]))
        biases++;
    *out = (lt_cuda_step){.first = first, .n = n + biases, .give = give_experts};
    return n + biases > 1;
}

static lt_status give_top(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    return lt__cuda_top_share(d, stream, list->args[p->first], list->args[p->first + 1], err);
}

static bool top(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *a = list->args[first], *s = first + 1 < list->n ? list->args[first + 1] : NULL;
    const char *why;
    if (!s || s->op != LT_OP_TOP_SHARE || !same_view(&s->src[0], &a->src[0]) || !same_view(&s->src[1], &a->dst) || views_meet(&a->dst, &a->src[0]) ||
        views_meet(&s->dst, &a->src[0]) || views_meet(&s->dst, &a->dst) || !lt__cuda_supports(&d->base, a, &why))
        return false;
    *out = (lt_cuda_step){.first = first, .n = 2, .give = give_top};
    return true;
}

/* --- attention: what comes before it, and quantised --------------------------------------- */

static lt_status give_attention(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    size_t last = p->first + p->n - 1;
    const lt_op_args *quant = list->args[last]->op == LT_OP_QUANTIZE ? list->args[last--] : NULL, *a = list->args[last];
    bool keep = !quant || read_later(list, p->first + p->n, &quant->src[0]);
    lt_status s = last > p->first ? lt__cuda_token(d, stream, a, &p->u.heads, err) : lt__cuda_attention_spread(d, stream, a, err);
    return s == LT_OK ? lt__cuda_merge_quantize(d, stream, a, quant ? &quant->dst : NULL, keep, err) : s;
}

static bool quantises(const lt_op_args *q, const lt_op_args *a)
{
    const lt_view *y = &a->dst, *x = &q->src[0];
    return q->op == LT_OP_QUANTIZE && a->params.ATTENTION.kv.head_dim % 32 == 0 && is_matrix(x) && x->addr == y->addr &&
           x->dim[0] == y->dim[0] && x->dim[1] == y->dim[1] * y->dim[2] && y->stride[1] == y->dim[2] * y->stride[2] &&
           (x->dim[0] == 1 || x->stride[0] == y->stride[0]) && !views_meet(&q->dst, y);
}

static bool attention(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    const lt_op_args *a = list->args[first], *q = first + 1 < list->n ? list->args[first + 1] : NULL;
    if (!q || a->prefill || a->params.ATTENTION.kv.head_dim > 256 || !quantises(q, a) || lt__cuda_attention_parts(d, a) <= 1)
        return false;
    *out = (lt_cuda_step){.first = first, .n = 2, .give = give_attention};
    return true;
}

static bool same_layout(const lt_kv_layout *a, const lt_kv_layout *b)
{
    return a->page_bytes == b->page_bytes && a->k_offset == b->k_offset && a->v_offset == b->v_offset && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->dtype == b->dtype;
}

/* One token's q, k and v may go where attention needs them without a way through memory. */
static bool heads_and_attention(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    if (!heads(d, list, first, out))
        return false;
    size_t i = first + out->n;
    const lt_op_args *store = list->args[i - 1], *a = i < list->n ? list->args[i] : NULL;
    if (!a || a->op != LT_OP_ATTENTION || !lt__cuda_token_ok(d, a) || !same_view(&a->src[0], &list->args[i - 3]->dst) ||
        !same_view(&a->src[1], &store->dst) || !same_view(&a->src[2], &store->src[2]) || !same_view(&a->src[3], &store->src[3]) ||
        !same_layout(&a->params.ATTENTION.kv, &store->params.KV_STORE.kv))
        return true;
    size_t n = out->n + 1 + (i + 1 < list->n && quantises(list->args[i + 1], a));
    if (out->u.heads.keep_k || out->u.heads.keep_v || read_later(list, first + n, &a->src[0]) || read_later(list, first + n, &store->src[0]))
        return true;
    out->n = n;
    out->give = give_attention;
    out->kernel = NULL;
    return true;
}

/* A product of the same x moves up to its neighbours, past biases it has nothing to do with. */
static bool may_pass(const lt_op_args *later, const lt_op_args *before)
{
    bool clash = views_meet(&before->dst, &later->dst);
    for (uint32_t k = 0; k < later->n_src; k++)
        clash = clash || views_meet(&before->dst, &later->src[k]);
    for (uint32_t k = 0; k < before->n_src; k++)
        clash = clash || views_meet(&before->src[k], &later->dst);
    return !clash;
}

void lt__cuda_arrange(const lt_op_args **args, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        size_t at = i;
        const lt_op_args *a = args[i];
        const lt_op bias = a->op == LT_OP_LINEAR ? LT_OP_ADD_ROW : LT_OP_EXPERT_BIAS;
        if ((a->op != LT_OP_LINEAR && a->op != LT_OP_EXPERT_LINEAR) || a->prefill)
            continue;
        while (at > 0 && args[at - 1]->op == bias && may_pass(a, args[at - 1]))
            at--;
        if (at == i || at == 0 || args[at - 1]->op != a->op || !same_view(&args[at - 1]->src[0], &a->src[0]))
            continue;
        memmove(args + at + 1, args + at, (i - at) * sizeof *args);
        args[at] = a;
    }
}

bool lt__cuda_fuse(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out)
{
    switch (list->args[first]->op) {
    case LT_OP_RMS_NORM: return heads_and_attention(d, list, first, out) || chain(d, list, first, out);
    case LT_OP_ATTENTION: return attention(d, list, first, out);
    case LT_OP_LINEAR: return products(d, list, first, out);
    case LT_OP_ADD: return chain(d, list, first, out);
    case LT_OP_ADD_ROW:
    case LT_OP_ROPE: return heads_and_attention(d, list, first, out);
    case LT_OP_SILU_MUL:
    case LT_OP_GELU_MUL:
    case LT_OP_CLAMP_MUL: return gate(list, first, out);
    case LT_OP_EXPERT_LINEAR: return experts(d, list, first, out);
    case LT_OP_TOP_K: return top(d, list, first, out);
    default: return false;
    }
}
