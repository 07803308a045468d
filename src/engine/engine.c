/* engine.c - executes a plan: see engine.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "memory/store_window.h"
#include "memory/timeline.h"

#define NO_SLICE UINT32_MAX
#define AHEAD 4 /* layers of a prompt the host may be ahead of the device: a canceled one ends after these */

/* One launch of a prepared pass: everything but the address of a streamed slice is fixed. */
typedef struct launch { lt_op_args args; uint32_t slice, node; uint32_t weight_src; } launch;

/* Neighbours of a pass whose addresses are all fixed, for devices that take lists; or one launch of a streamed slice. */
typedef struct segment { size_t first, n; bool fixed; lt_launch_list list; } segment;

/* The launches of a pass of this many tokens and rows; decode uses the same one again and again. */
typedef struct pass {
    uint32_t tokens, rows;
    bool     prefill, whole; /* whole: a segment may cross from the body into the head */
    launch  *launches; size_t n, cap, head;
    const lt_op_args **args; size_t args_cap; /* of launches, in order */
    segment *segments; size_t n_segments, segments_cap;
} pass;

/* Slices that come through the ring along a pass; the body's come first. */
typedef struct order { lt_item *items; size_t n, n_body; } order;

struct lt__engine {
    lt_ctx          *ctx;
    lt__engine_desc  desc;
    const lt_plan   *plan;
    const lt_graph  *graph;
    lt_pool         *pool;
    lt_residency    *residency;
    lt_queue        *queue;
    lt_block         act, io, kv[2], scratch;
    lt_item         *items;     /* by slice */
    lt_lease        *leases;    /* by slice; held for the engine's life for resident ones */
    bool            *leased;
    lt_addr         *mapped;    /* by slice: where passes of one token read it in place; 0: nowhere */
    uint64_t         mapped_bytes; /* read in place so far */
    uint64_t         mapped_pass[2]; /* of a pass of one token: body, head */
    lt_source       *mapped_files; size_t n_mapped_files, cap_mapped_files; /* store and file, each once */
    uint32_t        *first_slice, *n_slices_of; /* by weight */
    order            orders[2]; /* of a pass of one token, of a prompt's */
    int              expected;  /* parts, and above them whether a prompt's; 0: nothing */
    size_t           head_node; /* first node of the head */
    pass             passes[2]; /* [0]: decode; [1]: the last shape of prefill */
    bool             has_lists;
    lt__track        track; /* of `queue` */
    lt_event        *pace[AHEAD]; /* where lists exist: behind the latest layers of a prompt */
    float           *check_buf; size_t check_bytes;
};

static const lt_tensor *tensor_of(const lt__engine *e, lt_tid t) { return &e->graph->tensors[t]; }

lt_pool *lt__engine_pool(lt__engine *e) { return e->pool; }
lt_residency *lt__engine_residency(lt__engine *e) { return e->residency; }

lt_tid lt__engine_find(const lt__engine *e, lt_role role, uint32_t group)
{
    for (size_t i = 0; i < e->graph->n_tensors; i++)
        if (e->graph->tensors[i].role == role && e->graph->tensors[i].group == group)
            return (lt_tid)i;
    return LT_NO_TENSOR;
}

uint64_t lt__engine_input_offset(const lt__engine *e, lt_tid t, uint32_t tokens, uint32_t rows)
{
    return lt__graph_input_offset(e->graph, t, tokens, rows, LT__PLAN_ALIGN);
}

static lt_addr tensor_addr(const lt__engine *e, lt_tid id, uint32_t tokens, uint32_t rows)
{
    const lt_tensor *t = tensor_of(e, id);
    if (t->base != LT_NO_TENSOR)
        return tensor_addr(e, t->base, tokens, rows) + t->base_offset;
    switch (t->kind) {
    case LT_TENSOR_ACT: return e->act.addr + t->offset;
    case LT_TENSOR_INPUT: return e->io.addr + (t->dim[0] < 0 ? lt__engine_input_offset(e, id, tokens, rows) : t->offset);
    case LT_TENSOR_OUTPUT: return e->io.addr + t->offset;
    case LT_TENSOR_STATE: return e->kv[t->group].addr;
    case LT_TENSOR_WEIGHT: break;
    }
    return 0; /* a weight: its slice says */
}

static lt_view tensor_view(const lt__engine *e, lt_tid id, uint32_t tokens, uint32_t rows)
{
    lt_view v;
    lt__tensor_view(tensor_of(e, id), tensor_addr(e, id, tokens, rows), tokens, rows, &v);
    return v;
}

/* A launch of a node as one whole, without addresses: what a device is asked about before there are any. */
static lt_op_args shape_of(const lt_graph *g, size_t n, uint32_t tokens, uint32_t rows, bool prefill)
{
    const lt_node *node = &g->nodes[n];
    lt_op_args a = {.op = node->op, .n_src = node->n_src, .params = node->params, .name = node->name, .prefill = prefill};
    for (uint32_t k = 0; k < node->n_src; k++)
        lt__tensor_view(&g->tensors[node->src[k]], 0, tokens, rows, &a.src[k]);
    lt__tensor_view(&g->tensors[node->dst], 0, tokens, rows, &a.dst);
    return a;
}

uint64_t lt__engine_scratch(void *dev, const lt_graph *g, uint32_t tokens, uint32_t rows)
{
    uint64_t most = 0;
    for (size_t n = 0; n < g->n_nodes; n++) {
        lt_op_args prompt = shape_of(g, n, tokens, rows, true), one = shape_of(g, n, 1, 1, false);
        most = lt__max_u64(most, lt__device_scratch_bytes(dev, &prompt));
        most = lt__max_u64(most, lt__device_scratch_bytes(dev, &one));
    }
    return most;
}

lt_status lt__engine_supports(lt_device *dev, const lt_graph *g, lt_err *err)
{
    for (size_t n = 0; n < g->n_nodes; n++)
        for (int prompt = 0; prompt < 2; prompt++) {
            lt_op_args a = shape_of(g, n, 1, 1, prompt != 0);
            const char *why = "";
            if (!lt__device_supports(dev, &a, &why))
                return lt__fail(err, LT_E_UNSUPPORTED, "%s: the device cannot run %s: %s", a.name, lt_op_get(a.op)->name, why);
        }
    return LT_OK;
}

lt_status lt__engine_prepare(lt_device *dev, const lt_graph *g, lt_err *err)
{
    lt_status s = LT_OK;
    for (size_t n = 0; s == LT_OK && n < g->n_nodes; n++) {
        /* Short and long prompts and single tokens may each want kernels of their own. */
        lt_op_args shapes[] = {shape_of(g, n, 512, 512, true), shape_of(g, n, 1, 1, true), shape_of(g, n, 1, 1, false)};
        for (size_t i = 0; s == LT_OK && i < sizeof shapes / sizeof *shapes; i++)
            s = lt__device_prepare(dev, &shapes[i], err);
    }
    return s;
}

/* Arguments of node `n`, or of its part that multiplies slice `s` of its weight. */
static void fill_launch(const lt__engine *e, uint32_t n, uint32_t s, const pass *p, launch *l)
{
    const lt_node *node = &e->graph->nodes[n];
    memset(l, 0, sizeof *l);
    l->node = n;
    l->slice = NO_SLICE;
    l->args = (lt_op_args){.op = node->op, .n_src = node->n_src, .params = node->params, .name = node->name, .prefill = p->prefill};
    for (uint32_t k = 0; k < node->n_src; k++) {
        const lt_tensor *t = tensor_of(e, node->src[k]);
        l->args.src[k] = tensor_view(e, node->src[k], p->tokens, p->rows);
        if (t->kind != LT_TENSOR_WEIGHT)
            continue;
        bool cut = k == 1 && lt_op_cuts(node->op);
        uint32_t at = cut ? s : e->first_slice[t->weight];
        if (e->leased[at]) {
            l->args.src[k].addr = e->leases[at].addr;
        } else if (!p->prefill && e->mapped[at]) {
            l->args.src[k].addr = e->mapped[at];
        } else {
            l->slice = at;
            l->weight_src = k;
        }
        if (cut)
            l->args.src[k].dim[0] = (int64_t)e->plan->slices[at].rows;
    }
    l->args.dst = tensor_view(e, node->dst, p->tokens, p->rows);
    const lt__plan_slice *sl = &e->plan->slices[s];
    if (node->op == LT_OP_LINEAR) {
        l->args.dst.addr += sl->row0 * sizeof(float);
        l->args.dst.dim[l->args.dst.ndim - 1] = (int64_t)sl->rows;
    } else if (node->op == LT_OP_EXPERT_LINEAR) {
        l->args.params.EXPERT_LINEAR.first = (uint32_t)sl->row0;
    }
}

/* Slices are cut for the ring; those read in place that lie behind each other are one launch. Returns how many more than s. */
static uint32_t join_mapped(const lt__engine *e, launch *l, uint32_t s, uint32_t end)
{
    uint32_t n = 0;
    lt_addr at = l->args.src[1].addr + e->plan->slices[s].bytes;
    for (; l->slice == NO_SLICE && e->mapped[s] && s + n + 1 < end && e->mapped[s + n + 1] == at; n++) {
        const lt__plan_slice *more = &e->plan->slices[s + n + 1];
        l->args.src[1].dim[0] += (int64_t)more->rows;
        if (l->args.op == LT_OP_LINEAR)
            l->args.dst.dim[l->args.dst.ndim - 1] += (int64_t)more->rows;
        at += more->bytes;
    }
    return n;
}

static void free_segments(lt__engine *e, pass *p)
{
    for (size_t i = 0; i < p->n_segments; i++)
        if (p->segments[i].fixed)
            lt__list_free(e->desc.dev, &p->segments[i].list);
    p->n_segments = 0;
}

/* A prompt's segments end with each layer: that is how often a canceled one is looked at. */
static lt_status make_segments(lt__engine *e, pass *p, lt_err *err)
{
    lt_status s = lt__grow(e->ctx, (void **)&p->args, &p->args_cap, p->n, sizeof *p->args, err);
    for (size_t i = 0; i < p->n && s == LT_OK; i++) {
        const launch *l = &p->launches[i];
        bool fixed = l->slice == NO_SLICE;
        segment *last = p->n_segments ? &p->segments[p->n_segments - 1] : NULL;
        bool joins = last && fixed && last->fixed && (p->whole || i != p->head) &&
                     (!p->prefill || e->graph->nodes[l->node].layer == e->graph->nodes[l[-1].node].layer);
        p->args[i] = &l->args;
        if (joins) {
            last->n = ++last->list.n;
            continue;
        }
        s = lt__grow(e->ctx, (void **)&p->segments, &p->segments_cap, p->n_segments + 1, sizeof *p->segments, err);
        if (s == LT_OK)
            p->segments[p->n_segments++] =
                (segment){.first = i, .n = 1, .fixed = fixed, .list = {.args = p->args + i, .n = 1, .replay = !p->prefill}};
    }
    /* What streamed launches read in between must be there; and after a body its head reads the activations. */
    if (s == LT_OK && p->n_segments == 1 && p->whole) {
        p->segments[0].list.dead = e->act.addr;
        p->segments[0].list.dead_bytes = e->plan->info.activation_bytes;
    }
    return s;
}

/* Of another shape than the pass had; on failure it has none. */
static lt_status prepare_pass(lt__engine *e, pass *p, lt_err *err)
{
    if (p->n_segments && !p->prefill) { /* the device may still be at the old lists */
        lt_status s = lt_queue_sync(e->queue, err);
        if (s != LT_OK)
            return s;
    }
    free_segments(e, p);
    p->n = 0;
    for (uint32_t n = 0; n < e->graph->n_nodes; n++) {
        const lt_node *node = &e->graph->nodes[n];
        if (n == e->head_node)
            p->head = p->n;
        uint32_t first = 0, count = 1;
        if (lt_op_cuts(node->op)) {
            uint32_t w = tensor_of(e, node->src[1])->weight;
            first = e->first_slice[w];
            count = e->n_slices_of[w];
        }
        for (uint32_t s = 0; s < count; s++) {
            lt_status st = lt__grow(e->ctx, (void **)&p->launches, &p->cap, p->n + 1, sizeof *p->launches, err);
            if (st != LT_OK)
                return st;
            launch *l = &p->launches[p->n++];
            fill_launch(e, n, first + s, p, l);
            if (!p->prefill && lt_op_cuts(node->op))
                s += join_mapped(e, l, first + s, first + count);
            const char *why = NULL;
            if (!lt__device_supports(e->desc.dev, &l->args, &why))
                return lt__fail(err, LT_E_UNSUPPORTED, "%s: the device cannot run %s of %s: %s", node->name,
                                lt_op_get(node->op)->name, lt_dtype_get(l->args.src[node->n_src > 1].dtype)->name, why);
            uint64_t bytes = lt__device_scratch_bytes(e->desc.dev, &l->args);
            if (bytes > e->plan->info.scratch_bytes)
                return lt__fail(err, LT_E_INVALID, "%s: the device wants %lu bytes of scratch, the plan has %lu", node->name,
                                bytes, e->plan->info.scratch_bytes);
            l->args.scratch = bytes ? e->scratch.addr : 0;
        }
    }
    if (e->head_node == e->graph->n_nodes)
        p->head = p->n;
    return e->has_lists ? make_segments(e, p, err) : LT_OK;
}

static lt_status shape_pass(lt__engine *e, pass *p, uint32_t tokens, uint32_t rows, bool prefill, bool whole, lt_err *err)
{
    p->tokens = tokens;
    p->rows = rows;
    p->prefill = prefill;
    p->whole = whole;
    lt_status s = prepare_pass(e, p, err);
    if (s != LT_OK)
        p->tokens = 0;
    return s;
}

/* One token's pass will come whatever comes: what the device prepares for it, it prepares while loading. */
static lt_status prepare_decode(lt__engine *e, lt_err *err)
{
    pass *p = &e->passes[0];
    lt_status s = e->has_lists ? shape_pass(e, p, 1, 1, false, true, err) : LT_OK;
    for (size_t i = 0; i < p->n_segments && s == LT_OK; i++)
        if (p->segments[i].fixed)
            s = lt__list_compile(e->desc.dev, &p->segments[i].list, err);
    return s;
}

static lt_status alloc_areas(lt__engine *e, lt_err *err)
{
    const lt_plan *p = e->plan;
    struct { uint64_t bytes; lt_use use; lt_block *block; } area[] = {
        {0, LT_USE_KV, &e->kv[0]}, {0, LT_USE_KV, &e->kv[1]},
        {p->info.activation_bytes, LT_USE_ACTIVATION, &e->act}, {p->info.io_bytes, LT_USE_STAGING, &e->io},
        {p->info.scratch_bytes, LT_USE_OTHER, &e->scratch},
    };
    for (uint32_t g = 0; g < p->n_groups; g++)
        area[g].bytes = (uint64_t)p->pages[g] * p->groups[g].page_bytes;
    for (size_t i = 0; i < sizeof area / sizeof *area; i++) {
        if (!area[i].bytes)
            continue;
        lt_status s = lt_pool_alloc(e->pool, area[i].bytes, LT__PLAN_ALIGN, area[i].use, e->queue, area[i].block, err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

/* Items in the order of slices; a slice's source is its weight's, further in. */
static lt_status add_items(lt__engine *e, lt_err *err)
{
    const lt_plan *p = e->plan;
    for (size_t i = 0; i < p->n_slices; i++) {
        const lt__plan_slice *sl = &p->slices[i];
        const lt__plan_weight *w = &p->weights[sl->weight];
        char name[96];
        if (sl->rows == w->rows)
            snprintf(name, sizeof name, "%s", w->name);
        else
            snprintf(name, sizeof name, "%s[%lu:%lu]", w->name, sl->row0, sl->row0 + sl->rows);
        lt_item_desc d = {.name = name, .bytes = sl->bytes, .source = e->desc.sources[sl->weight], .use = LT_USE_WEIGHT,
                          .streamed = sl->place != LT_PLACE_RESIDENT};
        d.source.offset += sl->row0 * w->row_bytes;
        lt_status s = lt_residency_add(e->residency, &d, &e->items[i], err);
        if (s != LT_OK)
            return s;
        if (!e->n_slices_of[sl->weight]++)
            e->first_slice[sl->weight] = (uint32_t)i;
    }
    return LT_OK;
}

static bool know_file(lt__engine *e, const lt_source *src)
{
    for (size_t i = 0; i < e->n_mapped_files; i++)
        if (e->mapped_files[i].store == src->store && e->mapped_files[i].file == src->file)
            return true;
    if (lt__grow(e->ctx, (void **)&e->mapped_files, &e->cap_mapped_files, e->n_mapped_files + 1, sizeof *e->mapped_files, NULL) != LT_OK)
        return false;
    e->mapped_files[e->n_mapped_files++] = *src;
    return true;
}

/* A mapping whose file was cut is no memory any more; who streams asks before each copy. */
static lt_status check_mapped(const lt__engine *e, lt_err *err)
{
    lt_status s = LT_OK;
    const void *at;
    for (size_t i = 0; s == LT_OK && i < e->n_mapped_files; i++)
        s = lt__store_map_checked(e->mapped_files[i].store, e->mapped_files[i].file, 0, 1, &at, err);
    return s;
}

/* What cannot be locked or mapped is streamed to every pass; the answer is the same, and the log says why. */
static void map_slices(lt__engine *e)
{
    const lt_plan *p = e->plan;
    uint64_t missed = 0;
    lt_err why = {0};
    char a[24], b[24];
    for (size_t i = 0; i < p->n_slices; i++) {
        lt__plan_slice sl = p->slices[i];
        const lt_source *src = &e->desc.sources[sl.weight];
        if (sl.place != LT_PLACE_MAPPED)
            continue;
        const void *at = src->store && e->desc.pins
            ? lt__pins_lock(e->desc.pins, src->store, src->file, src->offset + sl.row0 * p->weights[sl.weight].row_bytes, sl.bytes) : NULL;
        if (!at || !know_file(e, src) || lt_device_map_host(e->desc.dev, at, sl.bytes, &e->mapped[i], &why) != LT_OK) {
            e->mapped[i] = 0;
            missed += sl.bytes;
        }
    }
    if (missed)
        lt__log(e->ctx, LT_LOG_WARN, "engine", "%s of %s to be read in place are streamed instead: %s", lt__format_bytes(missed, a, sizeof a),
                lt__format_bytes(p->info.mapped_bytes, b, sizeof b), *why.text ? why.text : "not all of the file could be page-locked");
}

static lt_status load_resident(lt__engine *e, lt_err *err)
{
    const lt_plan *p = e->plan;
    uint64_t done = 0;
    for (size_t i = 0; i < p->n_slices; i++) {
        if (p->slices[i].place != LT_PLACE_RESIDENT)
            continue;
        lt_status s = lt_residency_prefetch(e->residency, e->items[i], err);
        if (s != LT_OK)
            return s;
    }
    for (size_t i = 0; i < p->n_slices; i++) {
        if (p->slices[i].place != LT_PLACE_RESIDENT)
            continue;
        if (e->desc.cancel && atomic_load_explicit(e->desc.cancel, memory_order_relaxed))
            return lt__fail(err, LT_E_CANCELED, "stopped while loading weights");
        lt_status s = lt_residency_lease(e->residency, e->items[i], e->queue, &e->leases[i], err);
        if (s != LT_OK)
            return s;
        e->leased[i] = true;
        done += p->slices[i].bytes;
        if (e->desc.progress)
            e->desc.progress(e->desc.progress_user, "loading", done, p->info.resident_bytes);
    }
    return lt_queue_sync(e->queue, err);
}

static lt_status build_order(lt__engine *e, bool prefill, lt_err *err)
{
    const lt_plan *p = e->plan;
    order *o = &e->orders[prefill];
    o->items = lt__alloc_array(e->ctx, p->n_slices, sizeof *o->items);
    if (!o->items)
        return lt__fail_oom(err, p->n_slices * sizeof *o->items, "the order of streamed slices");
    for (size_t n = 0; n < e->graph->n_nodes; n++) {
        const lt_node *node = &e->graph->nodes[n];
        if (n == e->head_node)
            o->n_body = o->n;
        if (!lt_op_cuts(node->op))
            continue;
        uint32_t w = tensor_of(e, node->src[1])->weight;
        for (uint32_t s = e->first_slice[w]; s < e->first_slice[w] + e->n_slices_of[w]; s++) {
            if (!prefill && e->mapped[s])
                e->mapped_pass[n >= e->head_node] += (uint64_t)((double)p->slices[s].bytes * p->weights[w].active);
            else if (p->slices[s].place != LT_PLACE_RESIDENT)
                o->items[o->n++] = e->items[s];
        }
    }
    if (e->head_node == e->graph->n_nodes)
        o->n_body = o->n;
    return LT_OK;
}

/* Nodes of the head come last in the graph, so their slices come last in the orders. */
static lt_status build_orders(lt__engine *e, lt_err *err)
{
    e->head_node = e->graph->n_nodes;
    for (size_t n = e->graph->n_nodes; n-- > 0 && e->graph->nodes[n].layer == e->graph->layer;)
        e->head_node = n;
    lt_status s = build_order(e, false, err);
    return s == LT_OK ? build_order(e, true, err) : s;
}

lt_status lt__engine_create(lt_ctx *ctx, const lt__engine_desc *desc, lt__engine **out, lt_err *err)
{
    *out = NULL;
    const lt_plan *p = desc->plan;
    lt__engine *e = lt__zalloc(ctx, sizeof *e);
    if (!e)
        return lt__fail_oom(err, sizeof *e, "an engine");
    e->ctx = ctx;
    e->desc = *desc;
    e->plan = p;
    e->graph = &p->graph;
    e->has_lists = lt__device_has_lists(desc->dev);
    lt__track_init(&e->track, desc->trace, desc->dev);
    lt_status s = lt__fail_oom(err, p->n_slices * sizeof *e->items, "the engine's tables");
    e->items = lt__alloc_array(ctx, p->n_slices, sizeof *e->items);
    e->leases = lt__alloc_array(ctx, p->n_slices, sizeof *e->leases);
    e->leased = lt__alloc_array(ctx, p->n_slices, sizeof *e->leased);
    e->mapped = lt__alloc_array(ctx, p->n_slices, sizeof *e->mapped);
    e->first_slice = lt__alloc_array(ctx, p->n_weights, sizeof *e->first_slice);
    e->n_slices_of = lt__alloc_array(ctx, p->n_weights, sizeof *e->n_slices_of);
    if (!e->items || !e->leases || !e->leased || !e->mapped || !e->first_slice || !e->n_slices_of)
        goto fail;
    if ((s = lt_queue_create(desc->dev, LT_QUEUE_COMPUTE, &e->queue, err)) != LT_OK)
        goto fail;
    for (int i = 0; i < AHEAD && e->has_lists; i++)
        if ((s = lt_event_create(desc->dev, &e->pace[i], err)) != LT_OK)
            goto fail;
    lt_pool_desc pd = lt_pool_desc_default();
    pd.limit_bytes = p->arena_bytes;
    pd.commit_all = true;
    pd.name = "arena";
    pd.trace = desc->trace;
    if ((s = lt_pool_create(desc->dev, &pd, &e->pool, err)) != LT_OK)
        goto fail;
    if (desc->arena)
        desc->arena(desc->arena_user);
    if ((s = alloc_areas(e, err)) != LT_OK)
        goto fail;
    lt_residency_desc rd = lt_residency_desc_default();
    rd.ring_bytes = p->info.ring_bytes;
    rd.staging_bytes = p->staging_bytes;
    rd.pin_bytes = p->direct ? 0 : UINT64_MAX; /* mapped files: as much as the host allows */
    rd.trace = desc->trace;
    if ((s = lt_residency_create(e->pool, &rd, &e->residency, err)) != LT_OK)
        goto fail;
    if (desc->pins && rd.pin_bytes)
        lt__residency_lend_pins(e->residency, desc->pins);
    if ((s = add_items(e, err)) != LT_OK)
        goto fail;
    map_slices(e);
    if ((s = build_orders(e, err)) != LT_OK || (s = load_resident(e, err)) != LT_OK || (s = prepare_decode(e, err)) != LT_OK ||
        (s = lt__engine_expect(e, LT__PART_ALL, true, err)) != LT_OK)
        goto fail;
    *out = e;
    return LT_OK;
fail:
    lt__engine_destroy(e);
    return s;
}

void lt__engine_destroy(lt__engine *e)
{
    if (!e)
        return;
    const lt_plan *p = e->plan;
    lt_err ignored; /* a queue that failed has been reported already */
    if (e->queue && lt_queue_sync(e->queue, &ignored) != LT_OK)
        lt__log(e->ctx, LT_LOG_DEBUG, "engine", "at destroy: %s", ignored.text);
    lt__track_deinit(&e->track);
    for (int i = 0; i < 2; i++)
        free_segments(e, &e->passes[i]);
    for (size_t i = 0; e->leased && i < p->n_slices; i++)
        if (e->leased[i])
            lt_residency_release(e->residency, e->leases[i], e->queue);
    lt_residency_destroy(e->residency);
    if (e->pool) {
        lt_pool_free(e->pool, e->kv[0], NULL);
        lt_pool_free(e->pool, e->kv[1], NULL);
        lt_pool_free(e->pool, e->act, NULL);
        lt_pool_free(e->pool, e->io, NULL);
        lt_pool_free(e->pool, e->scratch, NULL);
    }
    lt_pool_destroy(e->pool);
    for (int i = 0; i < AHEAD; i++)
        lt_event_destroy(e->pace[i]);
    lt_queue_destroy(e->queue);
    lt__free(e->ctx, e->items, p->n_slices * sizeof *e->items);
    lt__free(e->ctx, e->leases, p->n_slices * sizeof *e->leases);
    lt__free(e->ctx, e->leased, p->n_slices * sizeof *e->leased);
    lt__free(e->ctx, e->mapped, p->n_slices * sizeof *e->mapped);
    lt__free(e->ctx, e->mapped_files, e->cap_mapped_files * sizeof *e->mapped_files);
    lt__free(e->ctx, e->first_slice, p->n_weights * sizeof *e->first_slice);
    lt__free(e->ctx, e->n_slices_of, p->n_weights * sizeof *e->n_slices_of);
    for (int i = 0; i < 2; i++) {
        lt__free(e->ctx, e->orders[i].items, p->n_slices * sizeof *e->orders[i].items);
        pass *q = &e->passes[i];
        lt__free(e->ctx, q->launches, q->cap * sizeof *q->launches);
        lt__free(e->ctx, q->args, q->args_cap * sizeof *q->args);
        lt__free(e->ctx, q->segments, q->segments_cap * sizeof *q->segments);
    }
    lt__free(e->ctx, e->check_buf, e->check_bytes);
    lt__free(e->ctx, e, sizeof *e);
}

static lt_status copy_in(lt__engine *e, lt_addr to, const void *data, uint64_t bytes, const char *which, lt_err *err)
{
    lt_status s = lt_queue_copy_in(e->queue, to, data, bytes, err);
    if (s == LT_OK)
        lt__track_mark(&e->track, e->queue, LT__LANE_COMPUTE, "copy in", which, bytes);
    return s;
}

static lt_status copy_out(lt__engine *e, void *data, lt_addr from, uint64_t bytes, const char *which, lt_err *err)
{
    lt_status s = lt_queue_copy_out(e->queue, data, from, bytes, err);
    if (s == LT_OK)
        lt__track_mark(&e->track, e->queue, LT__LANE_COMPUTE, "copy out", which, bytes);
    return s;
}

lt_status lt__engine_write(lt__engine *e, lt_tid t, const void *data, uint64_t bytes, lt_err *err)
{
    return copy_in(e, e->io.addr + tensor_of(e, t)->offset, data, bytes, tensor_of(e, t)->name, err);
}

lt_status lt__engine_write_inputs(lt__engine *e, uint64_t offset, const void *data, uint64_t bytes, lt_err *err)
{
    return copy_in(e, e->io.addr + offset, data, bytes, "inputs", err);
}

lt_status lt__engine_read(lt__engine *e, lt_tid t, void *data, uint64_t bytes, lt_err *err)
{
    return copy_out(e, data, e->io.addr + tensor_of(e, t)->offset, bytes, "outputs", err);
}

lt_status lt__engine_save(lt__engine *e, lt_tid t, uint64_t offset, void *data, uint64_t bytes, lt_err *err)
{
    return copy_out(e, data, tensor_addr(e, t, 1, 1) + offset, bytes, "KV", err);
}

lt_status lt__engine_restore(lt__engine *e, lt_tid t, uint64_t offset, const void *data, uint64_t bytes, lt_err *err)
{
    return copy_in(e, tensor_addr(e, t, 1, 1) + offset, data, bytes, "KV", err);
}

lt_status lt__engine_sync(lt__engine *e, lt_err *err)
{
    lt_status s = lt_queue_sync(e->queue, err);
    lt__track_read(&e->track);
    return s;
}

lt_status lt__engine_expect(lt__engine *e, lt__part parts, bool prefill, lt_err *err)
{
    const order *o = &e->orders[prefill];
    /* Where nothing is mapped the orders are the same, and what was loaded ahead for one is right for the other. */
    int expected = (int)parts | (e->orders[0].n != e->orders[1].n ? prefill + 1 : 0) << 2;
    if (expected == e->expected || !e->orders[1].n)
        return LT_OK;
    size_t first = parts & LT__PART_BODY ? 0 : o->n_body, end = parts & LT__PART_HEAD ? o->n : o->n_body;
    lt_status s = lt_residency_plan(e->residency, o->items + first, end - first, true, err);
    if (s == LT_OK)
        e->expected = expected;
    return s;
}

uint64_t lt__engine_mapped_bytes(const lt__engine *e) { return e->mapped_bytes; }

/* Bits of non-finite f32 have all exponent bits set; the output of every op but QUANTIZE and KV_STORE is f32. */
static lt_status check_output(lt__engine *e, const launch *l, lt_err *err)
{
    const lt_view *v = &l->args.dst;
    if (v->dtype != LT_DTYPE_F32)
        return lt_queue_sync(e->queue, err);
    size_t row = sizeof(float);
    for (uint32_t i = 1; i < v->ndim; i++)
        row *= (size_t)v->dim[i];
    if (row > e->check_bytes) {
        lt__free(e->ctx, e->check_buf, e->check_bytes);
        e->check_bytes = 0;
        if (!(e->check_buf = lt__alloc(e->ctx, row)))
            return lt__fail_oom(err, row, "the finite check");
        e->check_bytes = row;
    }
    for (int64_t t = 0; t < v->dim[0]; t++) {
        lt_status s = lt_queue_copy_out(e->queue, e->check_buf, v->addr + (uint64_t)(t * v->stride[0]), row, err);
        if (s == LT_OK)
            s = lt_queue_sync(e->queue, err);
        if (s != LT_OK)
            return s;
        for (size_t i = 0; i < row / sizeof(float); i++)
            if (!isfinite(e->check_buf[i]))
                return lt__fail(err, LT_E_FORMAT, "%s (%s): its output at token %ld, element %zu is %g, not a finite number",
                                l->args.name, lt_op_get(l->args.op)->name, (long)t, i, (double)e->check_buf[i]);
    }
    return LT_OK;
}

static lt_status run_launch(lt__engine *e, launch *l, bool check, lt_err *err)
{
    lt_status s;
    if (l->slice == NO_SLICE) {
        s = lt__queue_launch(e->queue, &l->args, err);
    } else {
        lt_lease lease;
        if ((s = lt_residency_lease(e->residency, e->items[l->slice], e->queue, &lease, err)) != LT_OK)
            return s;
        lt__track_mark(&e->track, e->queue, LT__LANE_COMPUTE, "wait for copy", l->args.name, 0);
        l->args.src[l->weight_src].addr = lease.addr;
        s = lt__queue_launch(e->queue, &l->args, err);
        lt_residency_release(e->residency, lease, e->queue);
    }
    if (s == LT_OK)
        lt__track_mark(&e->track, e->queue, LT__LANE_COMPUTE, lt_op_get(l->args.op)->name, l->args.name,
                       l->slice == NO_SLICE ? 0 : e->plan->slices[l->slice].bytes);
    return s == LT_OK && check ? check_output(e, l, err) : s;
}

static lt_status run_singly(lt__engine *e, pass *p, size_t first, size_t end, bool check, lt_err *err)
{
    for (size_t i = first; i < end; i++) {
        if (e->desc.cancel && atomic_load_explicit(e->desc.cancel, memory_order_relaxed))
            return lt__fail(err, LT_E_CANCELED, "stopped at %s", p->launches[i].args.name);
        bool whole = i + 1 == p->n || p->launches[i + 1].node != p->launches[i].node; /* else not all of the output is there */
        lt_status s = run_launch(e, &p->launches[i], check && (whole || p->launches[i].args.op == LT_OP_LINEAR), err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

static lt_status run_segments(lt__engine *e, pass *p, size_t first, size_t end, lt_err *err)
{
    size_t given = 0;
    lt_status s = LT_OK;
    for (size_t i = 0; i < p->n_segments && s == LT_OK; i++) {
        segment *g = &p->segments[i];
        if (g->first < first || g->first >= end)
            continue;
        lt_event *pace = p->prefill && g->fixed ? e->pace[given++ % AHEAD] : NULL;
        if (pace && given > AHEAD && (s = lt_event_sync(pace, err)) != LT_OK)
            return s;
        if (e->desc.cancel && atomic_load_explicit(e->desc.cancel, memory_order_relaxed))
            return lt__fail(err, LT_E_CANCELED, "stopped at %s", p->launches[g->first].args.name);
        s = g->fixed ? lt__list_run(e->queue, &g->list, err) : run_launch(e, &p->launches[g->first], false, err);
        if (s == LT_OK && g->fixed)
            lt__track_mark(&e->track, e->queue, LT__LANE_COMPUTE, g->n > 1 ? "list" : lt_op_get(p->launches[g->first].args.op)->name,
                           p->launches[g->first].args.name, 0);
        if (s == LT_OK && pace)
            s = lt_event_record(pace, e->queue, err);
    }
    return s;
}

lt_status lt__engine_run(lt__engine *e, lt__part parts, uint32_t tokens, uint32_t rows, bool prefill, bool check, lt_err *err)
{
    pass *p = &e->passes[prefill];
    bool whole = !prefill && parts == LT__PART_ALL;
    if (p->tokens != tokens || (parts & LT__PART_HEAD && p->rows != rows) || (p->whole && !whole)) {
        lt_status s = shape_pass(e, p, tokens, rows, prefill, whole, err);
        if (s != LT_OK)
            return s;
    }
    size_t first = parts & LT__PART_BODY ? 0 : p->head, end = parts & LT__PART_HEAD ? p->n : p->head;
    lt_status s = prefill ? LT_OK : check_mapped(e, err);
    if (s != LT_OK)
        return s;
    if (!prefill)
        e->mapped_bytes += (parts & LT__PART_BODY ? e->mapped_pass[0] : 0) + (parts & LT__PART_HEAD ? e->mapped_pass[1] : 0);
    return check || !e->has_lists ? run_singly(e, p, first, end, check, err) : run_segments(e, p, first, end, err);
}
