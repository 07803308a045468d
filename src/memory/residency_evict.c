/* residency_evict.c - kept items: whom to evict, evicting, pressure, watermark. */
#include "memory/residency_impl.h"

static double score(const lt_residency *r, uint32_t i)
{
    const res_item *it = &r->items[i];
    lt_item_view v = {.item = {i, it->serial}, .bytes = it->bytes, .last_use = it->last_use,
                      .next_use = lt__res_next_use(r, it), .uses = it->uses, .loaded = it->loaded,
                      .load_cost_ns = it->load_cost_ns, .priority = it->priority};
    return r->desc.policy(r->desc.policy_user, &v, r->clock);
}

static bool evictable(const res_copy *c)
{
    return c && !c->in_ring && c->state == RES_READY && c->leases == 0 && !c->evicting && !c->write_failed;
}

res_copy *lt__res_victim(lt_residency *r, bool demand)
{
    res_copy *best = NULL;
    double best_score = 0;
    int32_t best_priority = 0;
    for (uint32_t i = 0; i < r->items_len; i++) {
        const res_item *it = &r->items[i];
        res_copy *c = it->live ? it->copy : NULL;
        if (!evictable(c) || (!demand && c->prefetched && !c->leased_once)) continue;
        if (best && it->priority > best_priority) continue;
        double s = score(r, i);
        if (best && it->priority == best_priority && !(s < best_score)) continue;
        best = c;
        best_score = s;
        best_priority = it->priority;
    }
    return best;
}

bool lt__res_victim_before(lt_residency *r, const res_copy *victim, const res_item *than)
{
    const res_item *v = &r->items[victim->item];
    if (v->priority != than->priority) return v->priority < than->priority;
    return score(r, victim->item) < score(r, (uint32_t)(than - r->items));
}

bool lt__res_copy_idle(const res_copy *c)
{
    for (size_t i = 0; i < c->uses_len; i++)
        if (!lt_event_done(c->uses[i].ev)) return false;
    return !c->ready || lt_event_done(c->ready);
}

/* The copy is marked, so nobody takes it while the lock is away. */
static void wait_idle(lt_residency *r, res_copy *c)
{
    if (lt__res_copy_idle(c)) return;
    res_unlock(r);
    for (size_t i = 0; i < c->uses_len; i++) lt__ignore(lt_event_sync(c->uses[i].ev, NULL));
    if (c->ready) lt__ignore(lt_event_sync(c->ready, NULL));
    res_lock(r);
}

static lt_status write_back(lt_residency *r, res_copy *c)
{
    lt_err err = {0};
    lt_status st;
    if (pthread_equal(pthread_self(), r->thread)) {
        res_unlock(r);
        st = lt__res_write_back(r, c, &err);
        res_lock(r);
    } else {
        c->state = RES_WRITING;
        lt__res_push(r, c, true);
        while (c->state == RES_WRITING) pthread_cond_wait(&r->moved, &r->lock);
        st = c->status;
        err = c->err;
    }
    if (st != LT_OK) lt__log(r->ctx, LT_LOG_ERROR, "residency", "%s", err.text);
    return st;
}

bool lt__res_evict(lt_residency *r, res_copy *c)
{
    LT_ASSERT(evictable(c));
    c->evicting = true;
    if (c->dirty && write_back(r, c) != LT_OK) {
        c->evicting = false;
        c->write_failed = true; /* stays here, whole, until its user leases it again */
        pthread_cond_broadcast(&r->moved);
        return false;
    }
    c->dirty = false;
    wait_idle(r, c);
    r->stats.evictions++;
    if (c->prefetched && !c->leased_once) r->stats.prefetch_wasted++;
    res_trace(r, LT__TRACE_EVICT, c->item, c->bytes, 0);
    lt__res_discard(r, c);
    pthread_cond_broadcast(&r->moved);
    return true;
}

/* Lock held. Above high down to low, then quiet until above high again. */
void lt__res_trim(lt_residency *r)
{
    while (r->trimming) {
        res_copy *v = r->stats.resident > r->desc.low_water ? lt__res_victim(r, true) : NULL;
        if (!v) r->trimming = false;
        else if (!lt__res_evict(r, v)) continue;
        if (r->urgent.first || r->normal.first) return; /* transfers first */
    }
}

uint64_t lt__res_drop_rooms(lt_residency *r)
{
    uint64_t given = 0;
    for (uint32_t i = 0; i < r->items_len; i++) {
        lt_block *room = &r->items[i].room;
        given += room->bytes;
        lt_pool_free(r->pool, *room, NULL);
        *room = (lt_block){0};
    }
    return given;
}

uint64_t lt__res_pressure(void *user, lt_pool *pool, uint64_t need)
{
    (void)pool;
    lt_residency *r = user;
    uint64_t given = 0;
    res_lock(r);
    if (!r->own_alloc) given = lt__res_drop_rooms(r);
    while (!r->own_alloc && given < need) { /* our own requests choose their victims themselves */
        res_copy *v = lt__res_victim(r, true);
        if (!v) break;
        uint64_t bytes = v->block.bytes;
        if (lt__res_evict(r, v)) given += bytes;
    }
    res_unlock(r);
    return given;
}

uint64_t lt_residency_shrink(lt_residency *r, uint64_t bytes)
{
    res_lock(r);
    (void)lt__res_drop_rooms(r);
    while (r->stats.resident > bytes) {
        res_copy *v = lt__res_victim(r, true);
        if (!v) break;
        (void)lt__res_evict(r, v);
    }
    uint64_t left = r->stats.resident;
    res_unlock(r);
    return left;
}
