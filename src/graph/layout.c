#include "graph/graph.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct span {
    uint64_t bytes, offset;
    lt_tid   id;
    uint32_t first, last;
} span;

static lt_tid owner_of(const lt_graph *g, lt_tid id)
{
    return g->tensors[id].base == LT_NO_TENSOR ? id : g->tensors[id].base;
}

static void touch(lt_graph *g, lt_tid id, uint32_t node)
{
    lt_tid both[2] = {id, owner_of(g, id)};
    for (int i = 0; i < 2; i++) {
        lt_tensor *t = &g->tensors[both[i]];
        if (t->first > node)
            t->first = node;
        if (t->last < node)
            t->last = node;
    }
}

static void find_lives(lt_graph *g)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->tensors[i].first = UINT32_MAX;
        g->tensors[i].last = 0;
    }
    for (size_t n = 0; n < g->n_nodes; n++) {
        const lt_node *node = &g->nodes[n];
        for (uint32_t s = 0; s < node->n_src; s++)
            touch(g, node->src[s], (uint32_t)n);
        touch(g, node->dst, (uint32_t)n);
        /* A device may do a gated unit and its quantising in one go: what that writes must not lie on what it reads. */
        const lt_node *next = n + 1 < g->n_nodes ? &g->nodes[n + 1] : NULL;
        bool gated = node->op == LT_OP_SILU_MUL || node->op == LT_OP_GELU_MUL;
        if (gated && next && next->op == LT_OP_QUANTIZE && owner_of(g, next->src[0]) == owner_of(g, node->dst))
            for (uint32_t s = 0; s < node->n_src; s++)
                touch(g, node->src[s], (uint32_t)n + 1);
    }
}

/* Largest first; the tie-breakers make the order total, so the layout is the same everywhere. */
static int by_size(const void *pa, const void *pb)
{
    const span *a = pa, *b = pb;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int by_offset(const void *pa, const void *pb)
{
    const span *a = *(span *const *)pa, *b = *(span *const *)pb;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Lowest offset at which s overlaps none of the placed spans that live with it. */
static bool place(span *s, span *all, size_t placed, span **live)
{
    size_t n = 0;
    for (size_t i = 0; i < placed; i++)
        if (all[i].first <= s->last && s->first <= all[i].last)
            live[n++] = &all[i];
    if (n)
        qsort(live, n, sizeof *live, by_offset);
    uint64_t at = 0, end;
    for (size_t i = 0; i < n; i++) {
        if (live[i]->offset >= at && live[i]->offset - at >= s->bytes)
            break;
        if (!lt__add_u64(live[i]->offset, live[i]->bytes, &end))
            return false;
        at = lt__max_u64(at, end);
    }
    s->offset = at;
    return lt__add_u64(at, s->bytes, &end);
}

static lt_status size_of(const lt_tensor *t, uint32_t tokens, uint32_t rows, uint64_t align, uint64_t *out,
                         lt_err *err)
{
    uint64_t bytes = lt__tensor_bytes(t, tokens, rows);
    if (bytes > UINT64_MAX - align)
        return lt__fail(err, LT_E_INVALID, "layout: '%s' for %u tokens and %u rows overflows 64 bits", t->name, tokens,
                        rows);
    *out = lt__round_up(bytes, align);
    return LT_OK;
}

static lt_status check_align(uint64_t align, lt_err *err)
{
    if (align == 0 || (align & (align - 1)) != 0)
        return lt__fail(err, LT_E_INVALID, "layout: alignment %llu is not a power of two", (unsigned long long)align);
    return LT_OK;
}

lt_status lt__graph_layout(lt_graph *g, uint32_t tokens, uint32_t rows, uint64_t align, uint64_t *bytes, lt_err *err)
{
    lt_status s = check_align(align, err);
    if (s != LT_OK)
        return s;
    size_t n = 0, k = 0;
    for (size_t i = 0; i < g->n_tensors; i++)
        n += g->tensors[i].kind == LT_TENSOR_ACT && g->tensors[i].base == LT_NO_TENSOR;
    find_lives(g);
    *bytes = 0;
    if (n == 0)
        return LT_OK;
    span *spans = lt__alloc_array(g->ctx, n, sizeof *spans);
    span **live = lt__alloc_array(g->ctx, n, sizeof *live);
    if (!spans || !live) {
        s = lt__fail_oom(err, n * (sizeof *spans + sizeof *live), "layout of activations");
        goto done;
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_tensor *t = &g->tensors[i];
        if (t->kind != LT_TENSOR_ACT || t->base != LT_NO_TENSOR)
            continue;
        spans[k] = (span){.id = (lt_tid)i, .first = t->first, .last = t->last};
        if ((s = size_of(t, tokens, rows, align, &spans[k].bytes, err)) != LT_OK)
            goto done;
        k++;
    }
    qsort(spans, n, sizeof *spans, by_size);
    for (size_t i = 0; i < n; i++) {
        if (!place(&spans[i], spans, i, live)) {
            s = lt__fail(err, LT_E_INVALID, "layout: activations for %u tokens and %u rows overflow 64 bits", tokens,
                         rows);
            goto done;
        }
        *bytes = lt__max_u64(*bytes, spans[i].offset + spans[i].bytes);
    }
    for (size_t i = 0; i < n; i++)
        g->tensors[spans[i].id].offset = spans[i].offset;
    for (size_t i = 0; i < g->n_tensors; i++) {
        lt_tensor *t = &g->tensors[i];
        if (t->kind == LT_TENSOR_ACT && t->base != LT_NO_TENSOR)
            t->offset = g->tensors[t->base].offset + t->base_offset;
    }
done:
    lt__free(g->ctx, live, n * sizeof *live);
    lt__free(g->ctx, spans, n * sizeof *spans);
    return s;
}

/* An input as long as the pass has tokens or rows; those come first, so that one copy fills all of a pass's. */
static bool of_pass(const lt_tensor *t)
{
    return t->kind == LT_TENSOR_INPUT && t->base == LT_NO_TENSOR && t->dim[0] < 0;
}

static bool in_io(const lt_tensor *t)
{
    return (t->kind == LT_TENSOR_INPUT || t->kind == LT_TENSOR_OUTPUT) && t->base == LT_NO_TENSOR;
}

uint64_t lt__graph_input_offset(const lt_graph *g, lt_tid id, uint32_t tokens, uint32_t rows, uint64_t align)
{
    uint64_t at = 0;
    for (size_t i = 0; i < g->n_tensors && i != id; i++)
        if (of_pass(&g->tensors[i]))
            at += lt__round_up(lt__tensor_bytes(&g->tensors[i], tokens, rows), align);
    return at;
}

lt_status lt__graph_layout_io(lt_graph *g, uint32_t tokens, uint32_t rows, uint64_t align, uint64_t *bytes,
                              lt_err *err)
{
    lt_status s = check_align(align, err);
    if (s != LT_OK)
        return s;
    uint64_t at = 0;
    for (int rest = 0; rest < 2; rest++)
        for (size_t i = 0; i < g->n_tensors; i++) {
            lt_tensor *t = &g->tensors[i];
            if (!in_io(t) || of_pass(t) == rest)
                continue;
            if (t->dim[0] == 0)
                return lt__fail(err, LT_E_INVALID, "layout: the length of '%s' was not set", t->name);
            uint64_t size = 0, end;
            if ((s = size_of(t, tokens, rows, align, &size, err)) != LT_OK)
                return s;
            if (!lt__add_u64(at, size, &end))
                return lt__fail(err, LT_E_INVALID, "layout: inputs and outputs for %u tokens overflow 64 bits", tokens);
            t->offset = at;
            at = end;
        }
    for (size_t i = 0; i < g->n_tensors; i++) {
        lt_tensor *t = &g->tensors[i];
        if ((t->kind == LT_TENSOR_INPUT || t->kind == LT_TENSOR_OUTPUT) && t->base != LT_NO_TENSOR)
            t->offset = g->tensors[t->base].offset + t->base_offset;
    }
    *bytes = at;
    return LT_OK;
}
