/* residency_ring.c - streamed items: slots, the plan's cursor, prefetch along the plan. */
#include "memory/residency_impl.h"

/* A lease of something leased this shortly before is taken for a second use of it, not for
 * a jump of nearly a whole round ahead. */
enum { LOOK_BACK = 8 };

static bool slot_idle(const res_copy *c)
{
    return c->leases == 0 && c->pending == 0 && (c->state == RES_READY || c->state == RES_FAILED);
}

/* Pops the oldest slot; what was enqueued on its bytes is for the next slot to wait for. */
static void pop_slot(lt_residency *r)
{
    res_copy *c = (res_copy *)lt__ring_pop(&r->ring);
    if (c->item != LT__NO_ITEM && r->items[c->item].copy == c) r->items[c->item].copy = NULL;
    if (c->prefetched && !c->leased_once && c->state == RES_READY) r->stats.prefetch_wasted++;
    for (size_t i = 0; i < c->uses_len; i++) {
        lt_event *ev = c->uses[i].ev;
        if (lt__grow(r->ctx, (void **)&r->carry, &r->carry_cap, r->carry_len + 1, sizeof *r->carry, NULL) ==
            LT_OK)
            r->carry[r->carry_len++] = ev;
        else { /* no memory to remember it: see it through */
            lt__ignore(lt_event_sync(ev, NULL));
            lt__res_event_give(r, ev);
        }
    }
    c->uses_len = 0;
    lt__res_copy_free(r, c);
}

bool lt__res_ring_try(lt_residency *r, uint32_t item, res_copy **out, lt_status *st, lt_err *err)
{
    uint64_t need = lt__res_slot_bytes(&r->items[item]), off;
    *st = LT_OK;
    *out = NULL;
    while (!lt__ring_place(&r->ring, need, &off)) {
        res_copy *tail = (res_copy *)r->ring.first;
        if (!tail || !slot_idle(tail)) return false;
        pop_slot(r);
    }
    res_copy *c = lt__res_copy_new(r, item, err);
    if (!c) {
        *st = LT_E_HOST_OOM;
        return false;
    }
    *st = lt__grow(r->ctx, (void **)&c->deps, &c->deps_cap, r->carry_len, sizeof *c->deps, err);
    if (*st != LT_OK) {
        lt__res_copy_free(r, c);
        return false;
    }
    c->deps_len = r->carry_len;
    for (size_t i = 0; i < r->carry_len; i++) c->deps[i] = r->carry[i];
    r->carry_len = 0;
    c->in_ring = true;
    lt__ring_push(&r->ring, &c->slot, off, need);
    c->addr = r->ring_block.addr + off + lt__res_shift(&r->items[item]);
    r->items[item].copy = c;
    *out = c;
    return true;
}

void lt__res_ring_forget(lt_residency *r)
{
    for (lt__ring_slot *s = r->ring.first; s; s = s->next) ((res_copy *)s)->pending = 0;
    r->plan.ring_pos = r->plan.cursor;
}

void lt__res_ring_restart(lt_residency *r)
{
    lt__res_ring_forget(r);
    while (r->ring.first && slot_idle((res_copy *)r->ring.first)) pop_slot(r);
    if (!r->ring.first) r->ring.head = 0;
}

/* Index into plan.at of the item's first position at or after `pos` (within one round). */
static size_t first_at(const res_plan *p, const res_item *it, size_t pos)
{
    size_t lo = it->at, hi = it->at + it->at_len;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (p->at[mid] < pos) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Absolute position of the item's next use; false: none is planned. */
static bool next_pos(const lt_residency *r, const res_item *it, uint64_t *out)
{
    const res_plan *p = &r->plan;
    if (p->n == 0 || it->at_len == 0) return false;
    if (!p->cyclic && p->cursor >= p->n) return false;
    size_t pos = (size_t)(p->cursor % p->n), k = first_at(p, it, pos);
    if (k < it->at + it->at_len) *out = p->cursor + (p->at[k] - pos);
    else if (p->cyclic) *out = p->cursor + (p->n - pos) + p->at[it->at];
    else return false;
    return true;
}

uint64_t lt__res_next_use(const lt_residency *r, const res_item *it)
{
    uint64_t pos;
    return next_pos(r, it, &pos) ? r->clock + (pos - r->plan.cursor) : LT_NEXT_USE_NEVER;
}

static void advance(lt_residency *r, uint64_t to)
{
    res_plan *p = &r->plan;
    uint64_t end = lt__min_u64(to, p->ring_pos);
    for (uint64_t at = p->cursor; at < end; at++) {
        uint32_t i = p->order[at % p->n];
        res_copy *c = i != LT__NO_ITEM ? r->items[i].copy : NULL;
        if (c && c->pending > 0) c->pending--;
    }
    p->cursor = to;
    p->ring_pos = lt__max_u64(p->ring_pos, to);
    p->kept_pos = lt__max_u64(p->kept_pos, to);
}

void lt__res_plan_lease(lt_residency *r, uint32_t item)
{
    res_plan *p = &r->plan;
    uint64_t pos;
    if (!next_pos(r, &r->items[item], &pos)) return;
    if (pos != p->cursor)
        for (uint64_t back = 1; back <= LOOK_BACK && back <= p->cursor && back < p->n; back++)
            if (p->order[(p->cursor - back) % p->n] == item) return;
    advance(r, pos + 1);
}

static void pump_ring(lt_residency *r)
{
    res_plan *p = &r->plan;
    uint64_t end = p->cyclic ? p->cursor + p->n : p->n;
    while (p->ring_pos < end) {
        uint32_t i = p->order[p->ring_pos % p->n];
        res_item *it = i != LT__NO_ITEM ? &r->items[i] : NULL;
        if (it && it->streamed && it->copy && it->copy->item == i) {
            it->copy->pending++;
        } else if (it && it->streamed && !it->copy && lt__res_slot_bytes(it) <= r->ring.bytes) {
            res_copy *c;
            lt_status st;
            if (!lt__res_ring_try(r, i, &c, &st, NULL)) return;
            c->pending = 1;
            c->prefetched = true;
            r->stats.prefetched++;
            res_trace(r, LT__TRACE_PREFETCH, i, it->bytes, 0);
            lt__res_push(r, c, false);
        }
        p->ring_pos++;
    }
}

/* Kept items: only into room that is free or held by something used later, and never waits. */
static bool prefetch_kept(lt_residency *r, uint32_t i)
{
    res_item *it = &r->items[i];
    lt_block b = {0};
    for (;;) {
        r->own_alloc = true;
        lt_status st = lt_pool_alloc(r->pool, it->bytes, 0, it->use, NULL, &b, NULL);
        r->own_alloc = false;
        if (st == LT_OK) break;
        res_copy *v = st == LT_E_DEVICE_OOM ? lt__res_victim(r, false) : NULL;
        if (!v || v->dirty || !lt__res_copy_idle(v) || !lt__res_victim_before(r, v, it)) return false;
        r->stats.evictions++;
        res_trace(r, LT__TRACE_EVICT, v->item, v->bytes, 0);
        lt__res_discard(r, v);
    }
    res_copy *c = lt__res_copy_new(r, i, NULL);
    if (!c) {
        lt_pool_free(r->pool, b, NULL);
        return false;
    }
    c->block = b;
    c->addr = b.addr;
    c->prefetched = true;
    it->copy = c;
    r->stats.resident += c->bytes;
    r->stats.prefetched++;
    res_trace(r, LT__TRACE_PREFETCH, i, it->bytes, 0);
    lt__res_push(r, c, false);
    return true;
}

static void pump_kept(lt_residency *r)
{
    res_plan *p = &r->plan;
    uint64_t end = p->cyclic ? p->cursor + p->n : p->n, sum = 0;
    for (uint64_t at = p->cursor; at < end; at++) {
        uint32_t i = p->order[at % p->n];
        const res_item *it = i != LT__NO_ITEM ? &r->items[i] : NULL;
        if (!it || it->streamed) continue;
        if (!lt__add_u64(sum, it->bytes, &sum) || sum > r->desc.ahead_bytes) return;
        if (at < p->kept_pos) continue;
        if (!it->copy && !prefetch_kept(r, i)) return;
        p->kept_pos = at + 1;
    }
}

void lt__res_pump(lt_residency *r)
{
    if (r->plan.n == 0 || r->stop) return;
    if (r->ring.bytes > 0 && r->ring_waiting == 0) pump_ring(r);
    if (r->desc.ahead_bytes > 0) pump_kept(r);
}
