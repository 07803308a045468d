/* Re-running a recorded trace: the pool's events against the pool's own sub-allocator on an
 * address range of any size, the leases against the cache simulator. No memory is touched. */
#include <string.h>

#include "memory/cachesim.h"
#include "memory/suballoc.h"
#include "memory/trace.h"

#define MAX_BLOCK_BYTES (1ull << 48)
#define MAX_LIVE_BYTES (1ull << 56)

/* From (kind and scope, object) to the index of what lives under that name now. Open addressing;
 * an entry stays when its object dies, so a later one of the same name reuses it. */
typedef struct entry {
    uint64_t scope, object;
    uint32_t index; /* + 1; 0: not alive */
    bool used;
} entry;

typedef struct names {
    entry *rows;
    size_t n, cap;
} names;

typedef struct pool_op {
    uint32_t block;
    bool free;
} pool_op;

typedef struct pool_block {
    uint64_t bytes, align;
    bool high;
    lt__blk *at; /* while a replay runs */
} pool_block;

typedef struct replay {
    lt_ctx *ctx;
    const char *name;
    uint64_t events, live, peak_live;
    names names;
    pool_op *ops;
    pool_block *blocks;
    lt__cachesim_item *items;
    lt__cachesim_step *steps;
    size_t n_ops, cap_ops, n_blocks, cap_blocks, n_items, cap_items, n_steps, cap_steps;
} replay;

static void replay_deinit(replay *r)
{
    lt__free(r->ctx, r->names.rows, r->names.cap * sizeof *r->names.rows);
    lt__free(r->ctx, r->ops, r->cap_ops * sizeof *r->ops);
    lt__free(r->ctx, r->blocks, r->cap_blocks * sizeof *r->blocks);
    lt__free(r->ctx, r->items, r->cap_items * sizeof *r->items);
    lt__free(r->ctx, r->steps, r->cap_steps * sizeof *r->steps);
}

static entry *probe(entry *rows, size_t cap, uint64_t scope, uint64_t object)
{
    uint64_t h = (object ^ scope * 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    size_t i = (size_t)(h ^ h >> 29) & (cap - 1);
    while (rows[i].used && (rows[i].scope != scope || rows[i].object != object)) i = (i + 1) & (cap - 1);
    return &rows[i];
}

static lt_status name_get(replay *r, uint64_t scope, uint64_t object, entry **out, lt_err *err)
{
    names *t = &r->names;
    if (t->n * 2 >= t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        entry *rows = lt__alloc_array(r->ctx, cap, sizeof *rows);
        if (!rows) return lt__fail_oom(err, cap * sizeof *rows, "the names of a trace");
        for (size_t i = 0; i < t->cap; i++)
            if (t->rows[i].used) *probe(rows, cap, t->rows[i].scope, t->rows[i].object) = t->rows[i];
        lt__free(r->ctx, t->rows, t->cap * sizeof *rows);
        t->rows = rows;
        t->cap = cap;
    }
    entry *e = probe(t->rows, t->cap, scope, object);
    if (!e->used) {
        *e = (entry){.scope = scope, .object = object, .used = true};
        t->n++;
    }
    *out = e;
    return LT_OK;
}

static lt_status bad(const replay *r, const lt__trace_event *e, const char *why, lt_err *err)
{
    return lt__fail(err, LT_E_FORMAT, "%s: line %llu: %s of object %llu: %s", r->name,
                    (unsigned long long)(r->events + 2), lt__trace_action_name(e->action),
                    (unsigned long long)e->object, why);
}

static lt_status take_alloc(replay *r, const lt__trace_event *e, lt_err *err)
{
    entry *n;
    uint64_t use = e->aux & 0xff, align = e->aux >> 8 & 0xff;
    if (use >= LT_USE_COUNT || align > 62) return bad(r, e, "aux names no use or no alignment", err);
    if (!e->bytes || e->bytes > MAX_BLOCK_BYTES) return bad(r, e, "bytes must be 1 to 2^48", err);
    lt_status st = name_get(r, e->aux >> 16, e->object, &n, err);
    if (st != LT_OK) return st;
    if (n->index) return bad(r, e, "it lives already", err);
    if (r->n_blocks >= UINT32_MAX - 1) return bad(r, e, "more blocks than a replay can number", err);
    st = lt__grow(r->ctx, (void **)&r->blocks, &r->cap_blocks, r->n_blocks + 1, sizeof *r->blocks, err);
    if (st == LT_OK) st = lt__grow(r->ctx, (void **)&r->ops, &r->cap_ops, r->n_ops + 1, sizeof *r->ops, err);
    if (st != LT_OK) return st;
    r->live += e->bytes;
    if (r->live > MAX_LIVE_BYTES) return bad(r, e, "more than 2^56 bytes live", err);
    r->peak_live = lt__max_u64(r->peak_live, r->live);
    r->blocks[r->n_blocks] =
        (pool_block){.bytes = e->bytes, .align = 1ull << align, .high = lt__use_grows_down((lt_use)use)};
    r->ops[r->n_ops++] = (pool_op){(uint32_t)r->n_blocks, false};
    n->index = (uint32_t)++r->n_blocks;
    return LT_OK;
}

static lt_status take_free(replay *r, const lt__trace_event *e, lt_err *err)
{
    entry *n;
    lt_status st = name_get(r, e->aux >> 16, e->object, &n, err);
    if (st == LT_OK) st = lt__grow(r->ctx, (void **)&r->ops, &r->cap_ops, r->n_ops + 1, sizeof *r->ops, err);
    if (st != LT_OK) return st;
    if (!n->index) return bad(r, e, "it was not allocated", err);
    if (r->blocks[n->index - 1].bytes != e->bytes)
        return bad(r, e, "its size was another when it was allocated", err);
    r->live -= e->bytes;
    r->ops[r->n_ops++] = (pool_op){n->index - 1, true};
    n->index = 0;
    return LT_OK;
}

#define ITEM_SCOPE UINT64_MAX

static lt_status take_item(replay *r, const lt__trace_event *e, lt_err *err)
{
    entry *n;
    lt_status st = name_get(r, ITEM_SCOPE, e->object, &n, err);
    if (st != LT_OK) return st;
    if (e->action == LT__TRACE_REMOVE) {
        if (!n->index) return bad(r, e, "it was not added", err);
        n->index = 0;
        return LT_OK;
    }
    if (e->action == LT__TRACE_ADD && n->index) return bad(r, e, "it was added already", err);
    if (e->bytes > MAX_BLOCK_BYTES) return bad(r, e, "bytes must be at most 2^48", err);
    if (!n->index) { /* a lease may be the first we see of an item: recording began later */
        if (r->n_items >= UINT32_MAX - 1) return bad(r, e, "more items than a replay can number", err);
        st = lt__grow(r->ctx, (void **)&r->items, &r->cap_items, r->n_items + 1, sizeof *r->items, err);
        if (st != LT_OK) return st;
        int32_t priority = e->action == LT__TRACE_ADD ? (int32_t)(uint32_t)e->aux : 0;
        r->items[r->n_items] = (lt__cachesim_item){.bytes = e->bytes, .priority = priority};
        n->index = (uint32_t)++r->n_items;
    }
    if (e->action == LT__TRACE_ADD) return LT_OK;
    if (r->items[n->index - 1].bytes != e->bytes) return bad(r, e, "its size was another before", err);
    st = lt__grow(r->ctx, (void **)&r->steps, &r->cap_steps, r->n_steps + 1, sizeof *r->steps, err);
    if (st != LT_OK) return st;
    r->steps[r->n_steps++] = (lt__cachesim_step){n->index - 1, e->action == LT__TRACE_RELEASE};
    return LT_OK;
}

static lt_status take_event(void *user, const lt__trace_event *e, lt_err *err)
{
    replay *r = user;
    r->events++;
    switch (e->action) {
    case LT__TRACE_ALLOC: return take_alloc(r, e, err);
    case LT__TRACE_FREE: return take_free(r, e, err);
    case LT__TRACE_ADD:
    case LT__TRACE_REMOVE:
    case LT__TRACE_LEASE:
    case LT__TRACE_RELEASE: return take_item(r, e, err);
    default: return LT_OK;
    }
}

/* The largest power of two that divides every size: the finest grid the blocks lie on. */
static uint64_t granule_of(const replay *r)
{
    uint64_t bits = 4096;
    for (size_t i = 0; i < r->n_blocks; i++) bits |= r->blocks[i].bytes;
    return bits & -bits;
}

static lt_status run_arena(replay *r, uint64_t arena, uint64_t granule, bool stop, uint64_t *failures,
                           lt_err *err)
{
    lt__sub s;
    *failures = 0;
    lt_status st = lt__sub_init(&s, r->ctx, 0, arena, granule, err);
    if (st != LT_OK) return st;
    st = lt__sub_prepare(&s, 2, err);
    if (st == LT_OK) lt__sub_commit(&s, 0, arena);
    for (size_t i = 0; st == LT_OK && i < r->n_ops; i++) {
        pool_block *b = &r->blocks[r->ops[i].block];
        if (r->ops[i].free) {
            if (b->at) lt__sub_free(&s, b->at);
            b->at = NULL;
            continue;
        }
        st = lt__sub_prepare(&s, 2, err);
        b->at = st == LT_OK ? lt__sub_alloc(&s, b->bytes, lt__max_u64(b->align, granule), b->high) : NULL;
        if (!b->at && (++*failures, stop)) break;
    }
    for (size_t i = 0; i < r->n_blocks; i++) r->blocks[i].at = NULL;
    lt__sub_deinit(&s);
    return st;
}

/* Bisection: whether an arena completes is nearly, not strictly, monotonic in its size, so the
 * answer is one that completes, and the next smaller one tried did not. */
static lt_status search_arena(replay *r, uint64_t granule, uint64_t *smallest, lt_err *err)
{
    uint64_t failures, lo = lt__round_up(r->peak_live, granule), hi = lo;
    lt_status st = run_arena(r, hi, granule, true, &failures, err);
    if (st != LT_OK) return st;
    if (!failures) {
        *smallest = hi;
        return LT_OK;
    }
    for (uint64_t slack = lt__max_u64(granule, lo / 64); failures; slack *= 2) {
        lo = hi;
        hi = lt__round_up(r->peak_live + slack, granule);
        if (slack > MAX_LIVE_BYTES)
            return lt__fail(err, LT_E_NO_FIT, "%s: no arena completes; an alignment asks for too much",
                            r->name);
        st = run_arena(r, hi, granule, true, &failures, err);
        if (st != LT_OK) return st;
    }
    while (hi - lo > granule) {
        uint64_t mid = lt__round_down(lo + (hi - lo) / 2, granule);
        st = run_arena(r, mid, granule, true, &failures, err);
        if (st != LT_OK) return st;
        if (failures)
            lo = mid;
        else
            hi = mid;
    }
    *smallest = hi;
    return LT_OK;
}

static lt_status replay_pool(replay *r, uint64_t budget, lt_replay_result *out, lt_err *err)
{
    out->allocs = r->n_blocks;
    out->peak_live = r->peak_live;
    if (!r->n_blocks) return LT_OK;
    uint64_t granule = granule_of(r);
    if (!budget) return search_arena(r, granule, &out->smallest_arena, err);
    budget = lt__round_down(lt__min_u64(budget, 2 * MAX_LIVE_BYTES), granule);
    if (budget) return run_arena(r, budget, granule, false, &out->failures, err);
    out->failures = r->n_blocks;
    return LT_OK;
}

static lt_status replay_items(replay *r, uint64_t budget, lt_policy_fn *policy, lt_replay_result *out,
                              lt_err *err)
{
    if (!r->n_steps) return LT_OK;
    if (!budget)
        for (size_t i = 0; i < r->n_items; i++)
            if (!lt__add_u64(budget, r->items[i].bytes, &budget))
                return lt__fail(err, LT_E_FORMAT, "%s: the items add up to more than 2^64 bytes", r->name);
    lt__cachesim_result got, best;
    lt_status st =
        lt__cachesim_run(r->ctx, r->items, r->n_items, r->steps, r->n_steps, budget, policy, NULL, &got, err);
    if (st == LT_OK)
        st = lt__cachesim_optimal(r->ctx, r->items, r->n_items, r->steps, r->n_steps, budget, &best, err);
    if (st != LT_OK) return st;
    out->leases = got.leases;
    out->hits = got.hits;
    out->loads = got.loads;
    out->bytes_in = got.bytes_in;
    out->evictions = got.evictions;
    out->optimal_loads = best.loads;
    out->optimal_bytes_in = best.bytes_in;
    out->regret = best.bytes_in ? (double)got.bytes_in / (double)best.bytes_in - 1.0 : 0.0;
    return LT_OK;
}

lt_replay_desc lt_replay_desc_default(void)
{
    return (lt_replay_desc){.struct_bytes = sizeof(lt_replay_desc), .policy = "lru"};
}

static lt_status begin(const lt_replay_desc *desc, lt_replay_desc *d, lt_policy_fn **policy,
                       lt_replay_result *out, lt_err *err)
{
    memset(out, 0, sizeof *out);
    *d = desc ? *desc : lt_replay_desc_default();
    if (d->struct_bytes != sizeof *d)
        return lt__fail(
            err, LT_E_INVALID,
            "lt_replay_desc.struct_bytes is %u, %zu expected: start from lt_replay_desc_default()",
            d->struct_bytes, sizeof *d);
    *policy = lt_policy_by_name(d->policy);
    if (!*policy)
        return lt__fail(err, LT_E_INVALID, "policy '%.40s' is not one of lru, lfu, priority, next-use, fifo",
                        d->policy ? d->policy : "");
    return LT_OK;
}

static lt_status finish(replay *r, lt_status st, const lt_replay_desc *d, lt_policy_fn *policy,
                        lt_replay_result *out, lt_err *err)
{
    out->events = r->events;
    if (st == LT_OK) st = replay_pool(r, d->budget_bytes, out, err);
    if (st == LT_OK) st = replay_items(r, d->budget_bytes, policy, out, err);
    replay_deinit(r);
    if (st != LT_OK) memset(out, 0, sizeof *out);
    return st;
}

lt_status lt__trace_replay_text(lt_ctx *ctx, const char *name, const char *text, size_t bytes,
                                const lt_replay_desc *desc, lt_replay_result *out, lt_err *err)
{
    lt_replay_desc d;
    lt_policy_fn *policy;
    lt_status st = begin(desc, &d, &policy, out, err);
    if (st != LT_OK) return st;
    replay r = {.ctx = ctx, .name = name};
    return finish(&r, lt__trace_parse(name, text, bytes, take_event, &r, err), &d, policy, out, err);
}

lt_status lt_trace_replay(lt_ctx *ctx, const char *path, const lt_replay_desc *desc, lt_replay_result *out,
                          lt_err *err)
{
    lt_replay_desc d;
    lt_policy_fn *policy;
    lt_status st = begin(desc, &d, &policy, out, err);
    if (st != LT_OK) return st;
    replay r = {.ctx = ctx, .name = path};
    return finish(&r, lt__trace_read(ctx, path, take_event, &r, err), &d, policy, out, err);
}
