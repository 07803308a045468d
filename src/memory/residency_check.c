/* residency_check.c - statistics and the walk over every invariant. */
#include <inttypes.h>

#include "memory/residency_impl.h"

void lt_residency_get_stats(const lt_residency *cr, lt_residency_stats *out)
{
    lt_residency *r = (lt_residency *)cr;
    res_lock(r);
    *out = r->stats;
    out->ring_bytes = r->ring.used;
    out->ring_peak = r->ring.peak;
    res_unlock(r);
}

typedef struct walk { uint64_t resident, pinned, leases, copies, moving; } walk;

static lt_status check_copy(const lt_residency *r, const res_copy *c, walk *w, lt_err *err)
{
    const char *name = c->item != LT__NO_ITEM ? r->items[c->item].name : "(none)";
    w->copies++;
    w->leases += c->leases;
    if (c->leases > 0) w->pinned += c->bytes;
    if (c->state == RES_QUEUED || c->state == RES_MOVING || c->state == RES_WRITING) w->moving++;
    if (c->leases > 0 && c->evicting)
        return lt__fail(err, LT_E_INVALID, "residency: item '%s' is both pinned and being evicted", name);
    if (c->pending > 0 && (c->item == LT__NO_ITEM || !c->in_ring))
        return lt__fail(err, LT_E_INVALID, "residency: a copy without a planned use is held for one ('%s')",
                        name);
    if (c->uses_len > c->uses_cap)
        return lt__fail(err, LT_E_INVALID, "residency: item '%s' remembers %zu uses", name, c->uses_len);
    if (c->dirty && (c->in_ring || !r->items[c->item].source.write))
        return lt__fail(err, LT_E_INVALID, "residency: item '%s' is dirty and cannot be written back", name);
    if (c->in_ring && c->item != LT__NO_ITEM &&
        (c->addr < r->ring_block.addr + c->slot.off ||
         c->addr + c->bytes > r->ring_block.addr + c->slot.off + c->slot.bytes))
        return lt__fail(err, LT_E_INVALID, "residency: item '%s' lies outside of its slot", name);
    return LT_OK;
}

static lt_status check_locked(const lt_residency *r, lt_err *err)
{
    walk w = {0};
    uint64_t items = 0, held = 0;
    lt_status st = lt__ring_check(&r->ring, err);
    if (st != LT_OK) return st;
    for (uint32_t i = 0; i < r->items_len; i++) {
        const res_item *it = &r->items[i];
        if (!it->live) continue;
        items++;
        if (!it->copy) continue;
        if (it->copy->item != i)
            return lt__fail(err, LT_E_INVALID, "residency: item '%s' points to another's copy", it->name);
        if (it->copy->in_ring) continue;
        w.resident += it->copy->bytes;
        if ((st = check_copy(r, it->copy, &w, err)) != LT_OK) return st;
    }
    for (const lt__ring_slot *s = r->ring.first; s; s = s->next)
        if ((st = check_copy(r, (const res_copy *)s, &w, err)) != LT_OK) return st;
    for (uint32_t i = 0; i < r->leases_len; i++) held += r->leases[i].copy != NULL;
    if (items != r->stats.items)
        return lt__fail(err, LT_E_INVALID, "residency: %" PRIu64 " items, %" PRIu64 " on record", items,
                        r->stats.items);
    /* A copy given up while others hold it belongs to no item and, outside of the ring, is not walked. */
    if (w.copies > r->copies_live)
        return lt__fail(err, LT_E_INVALID, "residency: more copies than live ones");
    if (w.copies == r->copies_live) {
        if (w.resident != r->stats.resident)
            return lt__fail(err, LT_E_INVALID, "residency: %" PRIu64 " bytes resident, %" PRIu64 " on record",
                            w.resident, r->stats.resident);
        if (w.pinned != r->stats.pinned)
            return lt__fail(err, LT_E_INVALID, "residency: %" PRIu64 " bytes pinned, %" PRIu64 " on record",
                            w.pinned, r->stats.pinned);
        if (w.moving != r->moving)
            return lt__fail(err, LT_E_INVALID, "residency: %" PRIu64 " transfers, %" PRIu64 " on record",
                            w.moving, r->moving);
        if (w.leases < r->leases_held)
            return lt__fail(err, LT_E_INVALID,
                            "residency: copies count %" PRIu64 " leases, %" PRIu32 " are held", w.leases,
                            r->leases_held);
    }
    if (held != r->leases_held)
        return lt__fail(err, LT_E_INVALID, "residency: %" PRIu64 " leases, %" PRIu32 " on record", held,
                        r->leases_held);
    const res_plan *p = &r->plan;
    if (p->n && (p->ring_pos < p->cursor || p->ring_pos - p->cursor > p->n))
        return lt__fail(err, LT_E_INVALID,
                        "residency: prefetched up to %" PRIu64 " with the plan at %" PRIu64, p->ring_pos,
                        p->cursor);
    if (r->stats.hits > r->stats.leases)
        return lt__fail(err, LT_E_INVALID, "residency: more hits than leases");
    return LT_OK;
}

lt_status lt_residency_check(lt_residency *r, lt_err *err)
{
    res_lock(r);
    lt_status st = check_locked(r, err);
    res_unlock(r);
    return st;
}
