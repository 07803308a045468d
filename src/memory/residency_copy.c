/* residency_copy.c - device copies and events: taking, giving back, discarding. */
#include "memory/residency_impl.h"

lt_event *lt__res_event_take(lt_residency *r, lt_err *err)
{
    if (r->spare_len > 0) return r->spare[--r->spare_len];
    lt_event *ev = NULL;
    return lt_event_create(r->dev, &ev, err) == LT_OK ? ev : NULL;
}

void lt__res_event_give(lt_residency *r, lt_event *ev)
{
    if (!ev) return;
    if (lt__grow(r->ctx, (void **)&r->spare, &r->spare_cap, r->spare_len + 1, sizeof *r->spare, NULL) ==
        LT_OK)
        r->spare[r->spare_len++] = ev;
    else lt_event_destroy(ev);
}

uint64_t lt__res_shift(const res_item *it)
{
    return it->source.store ? it->source.offset % LT__READ_BLOCK : 0;
}

uint64_t lt_residency_slot_bytes(uint64_t offset, uint64_t bytes)
{
    uint64_t n;
    if (!lt__add_u64(bytes, offset % LT__READ_BLOCK + LT__READ_BLOCK - 1, &n)) return UINT64_MAX;
    return lt__round_down(n, LT__READ_BLOCK);
}

uint64_t lt__res_slot_bytes(const res_item *it)
{
    return lt_residency_slot_bytes(lt__res_shift(it), it->bytes);
}

res_copy *lt__res_copy_new(lt_residency *r, uint32_t item, lt_err *err)
{
    res_copy *c = r->copies_free;
    if (c) r->copies_free = c->next;
    else c = lt__zalloc(r->ctx, sizeof *c);
    if (!c) {
        (void)lt__fail_oom(err, sizeof *c, "a device copy's record");
        return NULL;
    }
    res_use *uses = c->uses;
    lt_event **deps = c->deps;
    size_t uses_cap = c->uses_cap, deps_cap = c->deps_cap;
    *c = (res_copy){.item = item,
                    .bytes = r->items[item].bytes,
                    .uses = uses,
                    .uses_cap = uses_cap,
                    .deps = deps,
                    .deps_cap = deps_cap};
    r->copies_live++;
    r->items[item].loaded = r->clock;
    return c;
}

void lt__res_copy_free(lt_residency *r, res_copy *c)
{
    for (size_t i = 0; i < c->uses_len; i++) lt__res_event_give(r, c->uses[i].ev);
    for (size_t i = 0; i < c->deps_len; i++) lt__res_event_give(r, c->deps[i]);
    lt__res_event_give(r, c->ready);
    c->uses_len = c->deps_len = 0;
    c->ready = NULL;
    c->next = r->copies_free;
    r->copies_free = c;
    r->copies_live--;
}

void lt__res_push(lt_residency *r, res_copy *c, bool urgent)
{
    res_jobs *l = urgent ? &r->urgent : &r->normal;
    c->next = NULL;
    if (l->last) l->last->next = c;
    else l->first = c;
    l->last = c;
    r->moving++;
    pthread_cond_signal(&r->work);
}

void lt__res_discard(lt_residency *r, res_copy *c)
{
    LT_ASSERT(c->leases == 0);
    if (c->item != LT__NO_ITEM && r->items[c->item].copy == c) r->items[c->item].copy = NULL;
    c->item = LT__NO_ITEM;
    c->pending = 0;
    if (c->in_ring) {
        c->state = RES_FAILED; /* a dead slot, popped in its turn */
        return;
    }
    lt_pool_free(r->pool, c->block, NULL);
    r->stats.resident -= c->bytes;
    lt__res_copy_free(r, c);
}
