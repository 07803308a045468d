/* residency.c - items, plans, leases: the callers' side of the residency manager. */
#include "lowtide/residency.h"

#include <inttypes.h>
#include <string.h>

#include "memory/residency_impl.h"

enum { TOKEN_BITS = 20, TOKENS_MAX = 1 << TOKEN_BITS };

lt_residency_desc lt_residency_desc_default(void)
{
    return (lt_residency_desc){.struct_bytes = sizeof(lt_residency_desc), .policy = lt_policy_lru};
}

/* --- create, destroy ----------------------------------------------------------------- */

static void free_all(lt_residency *r)
{
    for (size_t i = 0; i < r->windows_len; i++) lt__window_destroy(r->windows[i].w);
    lt__free(r->ctx, r->windows, r->windows_cap * sizeof *r->windows);
    lt__track_deinit(&r->track);
    if (r->in) lt_queue_destroy(r->in);
    if (r->out) lt_queue_destroy(r->out);
    if (r->staging_made) lt__staging_deinit(&r->staging);
    lt__pins_deinit(&r->own_pins);
    lt_pool_free(r->pool, r->ring_block, NULL);
    for (size_t i = 0; i < r->carry_len; i++) lt_event_destroy(r->carry[i]);
    lt__free(r->ctx, r->carry, r->carry_cap * sizeof *r->carry);
    for (size_t i = 0; i < r->spare_len; i++) lt_event_destroy(r->spare[i]);
    lt__free(r->ctx, r->spare, r->spare_cap * sizeof *r->spare);
    while (r->copies_free) {
        res_copy *c = r->copies_free;
        r->copies_free = c->next;
        lt__free(r->ctx, c->uses, c->uses_cap * sizeof *c->uses);
        lt__free(r->ctx, c->deps, c->deps_cap * sizeof *c->deps);
        lt__free(r->ctx, c, sizeof *c);
    }
    for (uint32_t i = 0; i < r->items_len; i++) lt__free(r->ctx, r->items[i].name, r->items[i].name_bytes);
    lt__free(r->ctx, r->items, r->items_cap * sizeof *r->items);
    lt__free(r->ctx, r->leases, r->leases_cap * sizeof *r->leases);
    lt__free(r->ctx, r->plan.order, r->plan.n * sizeof *r->plan.order);
    lt__free(r->ctx, r->plan.at, r->plan.n * sizeof *r->plan.at);
    lt__free(r->ctx, r->wb_buf, r->wb_bytes);
    pthread_cond_destroy(&r->moved);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    lt__free(r->ctx, r, sizeof *r);
}

lt_status lt_residency_create(lt_pool *pool, const lt_residency_desc *desc, lt_residency **out, lt_err *err)
{
    if (!pool || !out) return lt__fail(err, LT_E_INVALID, "residency: pool and result must not be NULL");
    *out = NULL;
    lt_residency_desc d = desc ? *desc : lt_residency_desc_default();
    if (!d.policy) d.policy = lt_policy_lru;
    if (d.high_water && d.low_water > d.high_water)
        return lt__fail(err, LT_E_INVALID, "residency: low_water %" PRIu64 " is above high_water %" PRIu64,
                        d.low_water, d.high_water);
    lt_device *dev = lt_pool_device(pool);
    lt_residency *r = lt__zalloc(dev->ctx, sizeof *r);
    if (!r) return lt__fail_oom(err, sizeof *r, "a residency manager");
    r->ctx = dev->ctx;
    r->dev = dev;
    r->pool = pool;
    r->desc = d;
    r->trace = d.trace;
    r->scope = lt__trace_scope(d.trace);
    r->items_free = r->leases_free = LT__NO_ITEM;
    r->pin_left = lt__pin_budget(r->dev, d.pin_bytes ? d.pin_bytes : d.staging_bytes ? d.staging_bytes : 8u << 20);
    lt__pins_init(&r->own_pins, r->ctx, dev, 0);
    lt__track_init(&r->track, d.trace, dev);
    r->pins = &r->own_pins;
    lt_device_info info;
    lt_device_get_info(dev, &info);
    r->host_visible = info.host_visible;
    r->virtual_clock = info.virtual_clock;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&r->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->moved, NULL);
    lt_status st = LT_OK;
    if (d.ring_bytes > 0) {
        uint64_t bytes = lt__round_down(d.ring_bytes, LT__READ_BLOCK);
        if (bytes == 0)
            st =
                lt__fail(err, LT_E_INVALID,
                         "residency: a ring of %" PRIu64 " bytes holds nothing, 4096 at least", d.ring_bytes);
        else st = lt_pool_alloc(pool, bytes, LT__READ_BLOCK, LT_USE_RING, NULL, &r->ring_block, err);
        if (st == LT_OK) lt__ring_init(&r->ring, bytes);
    }
    if (st == LT_OK) {
        int e = pthread_create(&r->thread, NULL, lt__res_thread, r);
        if (e)
            st = lt__fail_native(err, LT_E_HOST_OOM, e, "residency: cannot start the transfer thread: %s",
                                 strerror(e));
        else r->thread_started = true;
    }
    if (st != LT_OK) {
        free_all(r);
        return st;
    }
    lt_pool_set_pressure(pool, lt__res_pressure, r);
    *out = r;
    return LT_OK;
}

/* Ends the life of every copy; the transfer thread is gone. */
static void drop_copies(lt_residency *r)
{
    (void)lt__res_drop_rooms(r);
    for (uint32_t i = 0; i < r->items_len; i++) {
        res_copy *c = r->items[i].live ? r->items[i].copy : NULL;
        if (!c || c->in_ring) continue;
        for (size_t k = 0; k < c->uses_len; k++) lt__ignore(lt_event_sync(c->uses[k].ev, NULL));
        if (c->ready) lt__ignore(lt_event_sync(c->ready, NULL));
        c->leases = 0;
        lt__res_discard(r, c);
    }
    for (lt__ring_slot *s; (s = lt__ring_pop(&r->ring)) != NULL;) {
        res_copy *c = (res_copy *)s;
        for (size_t k = 0; k < c->uses_len; k++) lt__ignore(lt_event_sync(c->uses[k].ev, NULL));
        if (c->ready) lt__ignore(lt_event_sync(c->ready, NULL));
        lt__res_copy_free(r, c);
    }
    for (size_t i = 0; i < r->carry_len; i++) lt__ignore(lt_event_sync(r->carry[i], NULL));
}

void lt_residency_destroy(lt_residency *r)
{
    if (!r) return;
    lt_pool_set_pressure(r->pool, NULL, NULL);
    res_lock(r);
    if (r->leases_held > 0)
        lt__log(r->ctx, LT_LOG_ERROR, "residency", "destroyed with %" PRIu32 " leases not released",
                r->leases_held);
    for (uint32_t i = 0; i < r->items_len; i++) {
        res_copy *c;
        /* The transfer thread may be evicting this very one, with the lock away. */
        while ((c = r->items[i].live ? r->items[i].copy : NULL) != NULL && (c->evicting || c->state == RES_WRITING))
            pthread_cond_wait(&r->moved, &r->lock);
        if (c && c->dirty && c->leases == 0 && c->state == RES_READY && !c->in_ring) {
            c->write_failed = false;
            (void)lt__res_evict(r, c); /* logs what it could not save */
        }
    }
    for (uint32_t i = 0; i < r->items_len; i++) /* the next manager of this trace counts from 0 again */
        if (r->items[i].live) res_trace(r, LT__TRACE_REMOVE, i, r->items[i].bytes, 0);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    res_unlock(r);
    pthread_join(r->thread, NULL);
    drop_copies(r);
    free_all(r);
}

/* --- items --------------------------------------------------------------------------- */

static lt_status check_desc(const lt_item_desc *d, lt_err *err)
{
    const char *name = d->name ? d->name : "(no name)";
    const lt_source *s = &d->source;
    uint64_t end;
    if (d->bytes == 0) return lt__fail(err, LT_E_INVALID, "item '%s': 0 bytes", name);
    if ((s->store != NULL) == (s->read != NULL))
        return lt__fail(err, LT_E_INVALID, "item '%s': its source must be either a store or a read function",
                        name);
    if (s->store && s->write)
        return lt__fail(err, LT_E_INVALID,
                        "item '%s': a store cannot be written to; give a read function too", name);
    if (s->write && d->streamed)
        return lt__fail(err, LT_E_INVALID, "item '%s': a streamed item cannot be written back", name);
    if ((unsigned)d->use >= LT_USE_COUNT)
        return lt__fail(err, LT_E_INVALID, "item '%s': unknown use %d", name, (int)d->use);
    if (!s->store) return LT_OK;
    uint64_t file_bytes = lt_store_file_bytes(s->store, s->file);
    if (!lt__add_u64(s->offset, d->bytes, &end) || end > file_bytes)
        return lt__fail(err, LT_E_INVALID,
                        "item '%s': bytes %" PRIu64 "+%" PRIu64 " are outside of %s with its %" PRIu64, name,
                        s->offset, d->bytes, lt_store_file_path(s->store, s->file), file_bytes);
    return LT_OK;
}

lt_status lt_residency_add(lt_residency *r, const lt_item_desc *desc, lt_item *out, lt_err *err)
{
    if (!r || !desc || !out)
        return lt__fail(err, LT_E_INVALID, "residency: manager, item and result must not be NULL");
    lt_status st = check_desc(desc, err);
    if (st != LT_OK) return st;
    const char *name = desc->name ? desc->name : "";
    size_t name_bytes = strlen(name) + 1;
    char *copy = lt__strndup(r->ctx, name, name_bytes - 1);
    if (!copy) return lt__fail_oom(err, name_bytes, "an item's name");
    res_lock(r);
    uint32_t i = r->items_free;
    if (i != LT__NO_ITEM) r->items_free = r->items[i].next_free;
    else {
        i = r->items_len;
        if (i == LT__NO_ITEM - 1)
            st = lt__fail(err, LT_E_INVALID, "residency: no more than %" PRIu32 " items", i);
        else st = lt__grow(r->ctx, (void **)&r->items, &r->items_cap, (size_t)i + 1, sizeof *r->items, err);
        if (st == LT_OK) r->items_len++;
    }
    if (st == LT_OK) {
        uint32_t serial = r->items[i].serial + 1;
        r->items[i] = (res_item){.name = copy,
                                 .name_bytes = name_bytes,
                                 .bytes = desc->bytes,
                                 .source = desc->source,
                                 .use = desc->use,
                                 .priority = desc->priority,
                                 .streamed = desc->streamed,
                                 .live = true,
                                 .serial = serial};
        *out = (lt_item){i, serial};
        r->stats.items++;
        res_trace(r, LT__TRACE_ADD, i, desc->bytes, (uint32_t)desc->priority);
    }
    res_unlock(r);
    if (st != LT_OK) lt__free(r->ctx, copy, name_bytes);
    return st;
}

static bool item_live(const lt_residency *r, lt_item item)
{
    return item.index < r->items_len && r->items[item.index].live &&
           r->items[item.index].serial == item.serial;
}

static lt_status no_item(lt_item item, lt_err *err)
{
    return lt__fail(err, LT_E_INVALID, "residency: item %" PRIu32 ".%" PRIu32 " does not exist (any longer)",
                    item.index, item.serial);
}

/* Leases on any copy of an item: one that its queue's failure made useless is no longer the item's, but
 * its holder has not let go yet. */
static uint32_t leases_of(const lt_residency *r, uint32_t item)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->leases_len; i++)
        n += r->leases[i].copy && r->leases[i].copy->item == item;
    return n;
}

lt_status lt_residency_remove(lt_residency *r, lt_item item, lt_err *err)
{
    lt_status st = LT_OK;
    res_lock(r);
    for (;;) {
        if (!item_live(r, item)) {
            st = no_item(item, err);
            break;
        }
        res_item *it = &r->items[item.index];
        res_copy *c = it->copy;
        uint32_t leases = leases_of(r, item.index);
        if (c && c->leases > leases)
            leases = c->leases; /* with those that still wait for it */
        if (leases > 0) {
            st = lt__fail(err, LT_E_BUSY, "item '%s': leased %" PRIu32 " times, cannot be removed", it->name, leases);
            break;
        }
        if (c && (c->evicting || (c->state != RES_READY && c->state != RES_FAILED))) {
            pthread_cond_wait(&r->moved, &r->lock);
            continue;
        }
        if (c && !c->in_ring && c->state == RES_READY) {
            c->write_failed = false;
            if (!lt__res_evict(r, c)) {
                st = lt__fail(err, LT_E_IO, "item '%s': what was written to it cannot be saved",
                              r->items[item.index].name);
                break;
            }
            continue;
        }
        if (c) lt__res_discard(r, c); /* a slot of the ring; popped in its turn */
        lt_pool_free(r->pool, it->room, NULL);
        it->room = (lt_block){0};
        for (size_t k = 0; k < it->at_len; k++) r->plan.order[r->plan.at[it->at + k]] = LT__NO_ITEM;
        res_trace(r, LT__TRACE_REMOVE, item.index, it->bytes, 0);
        lt__free(r->ctx, it->name, it->name_bytes);
        *it = (res_item){.serial = item.serial, .next_free = r->items_free};
        r->items_free = item.index;
        r->stats.items--;
        break;
    }
    res_unlock(r);
    return st;
}

lt_status lt_residency_plan(lt_residency *r, const lt_item *order, size_t n, bool cyclic, lt_err *err)
{
    if (!r || (n && !order))
        return lt__fail(err, LT_E_INVALID, "residency: manager and order must not be NULL");
    uint32_t *copy = lt__alloc_array(r->ctx, n, sizeof *copy);
    size_t *at = lt__alloc_array(r->ctx, n, sizeof *at);
    lt_status st = n && (!copy || !at) ? lt__fail_oom(err, n * (sizeof *copy + sizeof *at), "a plan") : LT_OK;
    res_lock(r);
    for (size_t i = 0; i < n && st == LT_OK; i++) {
        if (!item_live(r, order[i])) st = no_item(order[i], err);
        else copy[i] = order[i].index;
    }
    if (st == LT_OK) {
        lt__free(r->ctx, r->plan.order, r->plan.n * sizeof *r->plan.order);
        lt__free(r->ctx, r->plan.at, r->plan.n * sizeof *r->plan.at);
        r->plan = (res_plan){.order = copy, .n = n, .cyclic = cyclic, .at = at};
        for (uint32_t i = 0; i < r->items_len; i++) r->items[i].at_len = 0;
        for (size_t i = 0; i < n; i++) r->items[copy[i]].at_len++;
        size_t sum = 0;
        for (uint32_t i = 0; i < r->items_len; i++) {
            r->items[i].at = sum;
            sum += r->items[i].at_len;
            r->items[i].at_len = 0;
        }
        for (size_t i = 0; i < n; i++) {
            res_item *it = &r->items[copy[i]];
            at[it->at + it->at_len++] = i;
            res_trace(r, LT__TRACE_PLAN, i, n, copy[i]);
        }
        lt__res_ring_forget(r);
        lt__res_pump(r);
    }
    res_unlock(r);
    if (st != LT_OK) {
        lt__free(r->ctx, copy, n * sizeof *copy);
        lt__free(r->ctx, at, n * sizeof *at);
    }
    return st;
}

/* --- loading ------------------------------------------------------------------------- */

static lt_status ring_too_small(const lt_residency *r, const res_item *it, lt_err *err)
{
    return lt__fail(err, LT_E_DEVICE_OOM,
                    "item '%s': needs %" PRIu64
                    " bytes of the ring with its alignment, the ring has %" PRIu64,
                    it->name, lt__res_slot_bytes(it), r->ring.bytes);
}

/* Nobody who holds the slot can give it back: they are this very caller or wait themselves. */
static bool held_for_ever(const lt_residency *r, const res_copy *c)
{
    uint32_t known = 0;
    for (uint32_t i = 0; i < r->leases_len; i++) {
        const res_lease *l = &r->leases[i];
        if (l->copy != c) continue;
        known++;
        bool stuck = pthread_equal(l->owner, pthread_self());
        for (const res_waiter *w = r->waiters; w && !stuck; w = w->next)
            stuck = pthread_equal(l->owner, w->thread);
        if (!stuck) return false;
    }
    return known == c->leases;
}

static void wait_for_release(lt_residency *r)
{
    res_waiter me = {pthread_self(), r->waiters};
    r->waiters = &me;
    r->ring_waiting++;
    pthread_cond_wait(&r->moved, &r->lock);
    r->ring_waiting--;
    res_waiter **link = &r->waiters;
    while (*link != &me) link = &(*link)->next;
    *link = me.next;
}

/* *again: the lock was given up, look anew. */
static lt_status load_into_ring(lt_residency *r, uint32_t i, res_copy **out, bool *again, lt_err *err)
{
    const res_item *it = &r->items[i];
    if (lt__res_slot_bytes(it) > r->ring.bytes) return ring_too_small(r, it, err);
    for (;;) {
        lt_status st;
        if (lt__res_ring_try(r, i, out, &st, err)) {
            lt__res_push(r, *out, false);
            return LT_OK;
        }
        if (st != LT_OK) return st;
        res_copy *tail = (res_copy *)r->ring.first;
        /* Only expected: brought ahead, or dead since its load failed, and no one on the way who would take it. */
        if (tail->leases == 0 && tail->pending > 0 && (tail->state == RES_READY || tail->state == RES_FAILED)) {
            lt__res_ring_forget(r);
            continue;
        }
        if (tail->leases > 0 && held_for_ever(r, tail))
            return lt__fail(err, LT_E_DEVICE_OOM,
                            "item '%s': needs %" PRIu64 " bytes of the ring, whose %" PRIu64
                            " are blocked by leases that are not released",
                            it->name, lt__res_slot_bytes(it), r->ring.bytes);
        wait_for_release(r);
        *again = true;
        return LT_OK;
    }
}

/* Kept copies that will be evictable without anyone's doing. */
static bool room_is_coming(const lt_residency *r)
{
    for (uint32_t i = 0; i < r->items_len; i++) {
        const res_copy *c = r->items[i].live ? r->items[i].copy : NULL;
        if (!c || c->in_ring) continue;
        if (c->evicting || c->state == RES_WRITING) return true;
        if (c->leases == 0 && (c->state == RES_QUEUED || c->state == RES_MOVING)) return true;
    }
    return false;
}

static lt_status load_into_pool(lt_residency *r, uint32_t i, bool evict_prefetched, res_copy **out,
                                bool *again, lt_err *err)
{
    res_item *it = &r->items[i];
    lt_err why = {0};
    lt_block b = {0};
    lt_status st = LT_OK;
    r->own_alloc = true;
    if (it->room.bytes) {
        b = it->room;
        it->room = (lt_block){0};
    } else st = lt_pool_alloc(r->pool, it->bytes, 0, it->use, NULL, &b, &why);
    r->own_alloc = false;
    if (st == LT_OK) {
        res_copy *c = lt__res_copy_new(r, i, err);
        if (!c) {
            lt_pool_free(r->pool, b, NULL);
            return LT_E_HOST_OOM;
        }
        c->block = b;
        c->addr = b.addr;
        it->copy = *out = c;
        r->stats.resident += c->bytes;
        lt__res_push(r, c, evict_prefetched);
        return LT_OK;
    }
    lt_pool_stats ps;
    lt_pool_get_stats(r->pool, &ps);
    if (st == LT_E_DEVICE_OOM && lt__res_drop_rooms(r)) {
        *again = true;
        return LT_OK;
    }
    if (st == LT_E_DEVICE_OOM && it->bytes <= ps.limit) {
        res_copy *v = lt__res_victim(r, evict_prefetched);
        if (v || (evict_prefetched && room_is_coming(r))) {
            if (v) (void)lt__res_evict(r, v);
            else pthread_cond_wait(&r->moved, &r->lock);
            *again = true;
            return LT_OK;
        }
    }
    if (st == LT_E_DEVICE_OOM && evict_prefetched && !it->source.write &&
        lt__res_slot_bytes(it) <= r->ring.bytes)
        return load_into_ring(r, i, out, again, err);
    return lt__fail(err, st, "item '%s': %s", it->name, why.text);
}

static lt_status start_load(lt_residency *r, uint32_t i, res_copy **out, bool *again, lt_err *err)
{
    return r->items[i].streamed ? load_into_ring(r, i, out, again, err)
                                : load_into_pool(r, i, true, out, again, err);
}

lt_status lt_residency_prefetch(lt_residency *r, lt_item item, lt_err *err)
{
    lt_status st = LT_OK;
    res_lock(r);
    for (bool again = true; again && st == LT_OK;) {
        again = false;
        res_copy *c = NULL;
        if (!item_live(r, item)) {
            st = no_item(item, err);
            break;
        }
        res_item *it = &r->items[item.index];
        if (it->copy) break;
        if (it->streamed && lt__res_slot_bytes(it) > r->ring.bytes) st = ring_too_small(r, it, err);
        else if (it->streamed) {
            if (lt__res_ring_try(r, item.index, &c, &st, err)) lt__res_push(r, c, false);
            else if (st == LT_OK)
                st = lt__fail(err, LT_E_DEVICE_OOM,
                              "item '%s': no room in the ring of %" PRIu64 " bytes to load it ahead",
                              it->name, r->ring.bytes);
        } else st = load_into_pool(r, item.index, false, &c, &again, err);
        if (c) {
            c->prefetched = true;
            r->stats.prefetched++;
            res_trace(r, LT__TRACE_PREFETCH, item.index, c->bytes, 0);
        }
    }
    res_unlock(r);
    return st;
}

/* --- leases -------------------------------------------------------------------------- */

static void hold(lt_residency *r, res_copy *c)
{
    if (c->leases++ == 0) r->stats.pinned += c->bytes;
}

static void unhold(lt_residency *r, res_copy *c)
{
    if (--c->leases == 0) r->stats.pinned -= c->bytes;
}

static lt_status take_record(lt_residency *r, uint32_t *out, lt_err *err)
{
    uint32_t i = r->leases_free;
    lt_event *ev = lt__res_event_take(r, err);
    if (!ev) return err && err->status != LT_OK ? err->status : LT_E_HOST_OOM;
    if (i != LT__NO_ITEM) r->leases_free = r->leases[i].next_free;
    else {
        i = r->leases_len;
        lt_status st = i < TOKENS_MAX
            ? lt__grow(r->ctx, (void **)&r->leases, &r->leases_cap, (size_t)i + 1, sizeof *r->leases, err)
            : lt__fail(err, LT_E_BUSY, "residency: %d leases are held at once", TOKENS_MAX);
        if (st != LT_OK) {
            lt__res_event_give(r, ev);
            return st;
        }
        r->leases_len++;
    }
    r->leases[i] = (res_lease){.ev = ev, .serial = r->leases[i].serial + 1, .next_free = LT__NO_ITEM};
    *out = i;
    return LT_OK;
}

static void give_record(lt_residency *r, uint32_t i)
{
    lt__res_event_give(r, r->leases[i].ev);
    r->leases[i].ev = NULL;
    r->leases[i].copy = NULL;
    r->leases[i].next_free = r->leases_free;
    r->leases_free = i;
}

/* A copy that is useless: its item loads anew; the memory goes when its last holder has gone. */
static void abandon(lt_residency *r, res_copy *c)
{
    if (c->item != LT__NO_ITEM && r->items[c->item].copy == c) r->items[c->item].copy = NULL;
    c->state = RES_FAILED;
    if (c->leases > 0) return;
    if (c->ready) lt__ignore(lt_event_sync(c->ready, NULL));
    lt__res_discard(r, c);
}

/* The queue, or the host where it is NULL, must not touch the copy before its bytes are there. */
static lt_status await_ready(lt_residency *r, res_copy *c, lt_queue *queue, bool *lost, lt_err *err)
{
    *lost = false;
    lt_event *ready = c->ready;
    if (!ready) return LT_OK;
    if (lt_event_done(ready)) {
        lt_status st = lt_event_sync(ready, err);
        *lost = st != LT_OK;
        if (st != LT_OK) return st;
        if (!r->virtual_clock) { /* nobody needs to wait any more */
            c->ready = NULL;
            lt__res_event_give(r, ready);
            return LT_OK;
        }
    }
    if (queue) return lt_queue_wait(queue, ready, err);
    res_unlock(r);
    lt_status st = lt_event_sync(ready, err);
    res_lock(r);
    *lost = st != LT_OK;
    return st;
}

/* Waits until the copy's transfer is under way on a queue or over. Held by the caller. */
static lt_status await_copy(lt_residency *r, res_copy *c, lt_queue *queue, bool *retry, uint64_t *stall_from,
                            lt_err *err)
{
    *retry = false;
    while (c->state == RES_QUEUED || c->state == RES_MOVING) {
        if (!*stall_from) *stall_from = lt__now_ns();
        pthread_cond_wait(&r->moved, &r->lock);
    }
    bool lost = c->lost;
    lt_status st = c->status;
    if (c->state == RES_FAILED) {
        if (err) *err = c->err;
        *retry = lost;
    } else {
        st = lt__grow(r->ctx, (void **)&c->uses, &c->uses_cap, c->uses_len + c->leases, sizeof *c->uses, err);
        if (st == LT_OK) st = await_ready(r, c, queue, retry, err);
        if (st == LT_OK) return LT_OK;
        if (*retry) r->stats.failed_loads++;
    }
    unhold(r, c);
    if (c->state == RES_FAILED || *retry) abandon(r, c);
    pthread_cond_broadcast(&r->moved);
    return st;
}

/* Lock held. On success the record holds the copy. Counts nothing: a lease of many may be undone. */
static lt_status lease_one(lt_residency *r, lt_item item, lt_queue *queue, uint32_t *record, bool *hit,
                           lt_err *err)
{
    lt_err mine = {0};
    if (!err) err = &mine;
    lt_status st = item_live(r, item) ? take_record(r, record, err) : no_item(item, err);
    if (st != LT_OK) return st;
    uint64_t stall_from = 0;
    bool planned = false;
    for (int tries = 0;;) {
        if (!item_live(r, item)) {
            st = no_item(item, err);
            break;
        }
        res_copy *c = r->items[item.index].copy;
        if (c && (c->evicting || c->state == RES_WRITING)) {
            if (!stall_from) stall_from = lt__now_ns();
            pthread_cond_wait(&r->moved, &r->lock);
            continue;
        }
        if (!c) {
            bool again = false;
            uint64_t t0 = lt__now_ns();
            st = start_load(r, item.index, &c, &again, err);
            if (again && !stall_from) stall_from = t0;
            if (st != LT_OK) break;
            if (again) continue;
        }
        hold(r, c);
        if (!planned) lt__res_plan_lease(r, item.index);
        planned = true;
        lt__res_pump(r);
        bool retry;
        st = await_copy(r, c, queue, &retry, &stall_from, err);
        if (st == LT_OK) {
            *hit = c->leased_once;
            c->leased_once = true;
            c->write_failed = false;
            r->leases[*record].copy = c;
            r->leases[*record].owner = pthread_self();
            r->leases_held++;
            break;
        }
        if (!retry || ++tries > 2) break;
    }
    if (stall_from) {
        uint64_t ns = lt__now_ns() - stall_from;
        r->stats.stall_ns += ns;
        res_trace(r, LT__TRACE_STALL, item.index, 0, ns);
    }
    if (st != LT_OK) give_record(r, *record);
    return st;
}

static void count_lease(lt_residency *r, uint32_t record, bool hit, lt_lease *out)
{
    res_lease *l = &r->leases[record];
    res_copy *c = l->copy;
    res_item *it = &r->items[c->item];
    r->stats.leases++;
    r->stats.hits += hit;
    it->uses++;
    it->last_use = ++r->clock;
    *out = (lt_lease){.addr = c->addr, .item = {c->item, it->serial},
                      .kind = c->in_ring ? LT_LEASE_STREAMED : LT_LEASE_RESIDENT,
                      .token = l->serial << TOKEN_BITS | record};
    res_trace(r, LT__TRACE_LEASE, c->item, c->bytes, (uint64_t)out->kind);
}

lt_status lt_residency_lease(lt_residency *r, lt_item item, lt_queue *queue, lt_lease *out, lt_err *err)
{
    if (!r || !out) return lt__fail(err, LT_E_INVALID, "residency: manager and result must not be NULL");
    *out = (lt_lease){0};
    uint32_t record;
    bool hit;
    res_lock(r);
    lt_status st = lease_one(r, item, queue, &record, &hit, err);
    if (st == LT_OK) count_lease(r, record, hit, out);
    res_unlock(r);
    return st;
}

/* The use is over on `queue`, or on the host, as far as the record can say. */
static void end_lease(lt_residency *r, uint32_t record, lt_queue *queue)
{
    res_lease *l = &r->leases[record];
    res_copy *c = l->copy;
    if (queue) {
        if (lt_event_record(l->ev, queue, NULL) != LT_OK)
            lt__ignore(lt_queue_sync(queue, NULL)); /* over, then */
        else {
            size_t i = 0;
            while (i < c->uses_len && c->uses[i].queue != queue) i++;
            lt_event *old = i < c->uses_len ? c->uses[i].ev : NULL;
            LT_ASSERT(i < c->uses_cap);
            c->uses[i] = (res_use){queue, l->ev};
            if (i == c->uses_len) c->uses_len++;
            l->ev = old; /* given back with the record */
        }
    }
    unhold(r, c);
    r->leases_held--;
    give_record(r, record);
    if (c->leases == 0 && c->state == RES_FAILED && !c->in_ring) {
        for (size_t i = 0; i < c->uses_len; i++) lt__ignore(lt_event_sync(c->uses[i].ev, NULL));
        abandon(r, c);
    }
}

static bool find_lease(const lt_residency *r, lt_lease lease, uint32_t *record)
{
    *record = lease.token & (TOKENS_MAX - 1);
    return *record < r->leases_len && r->leases[*record].copy &&
           (r->leases[*record].serial << TOKEN_BITS | *record) == lease.token &&
           r->leases[*record].copy->addr == lease.addr;
}

void lt_residency_release(lt_residency *r, lt_lease lease, lt_queue *queue)
{
    if (!r) return;
    res_lock(r);
    uint32_t record;
    if (!find_lease(r, lease, &record)) {
        if (lease.addr)
            lt__log(r->ctx, LT_LOG_ERROR, "residency",
                    "release of a lease that is not held (token %" PRIu32 ")", lease.token);
    } else {
        res_trace(r, LT__TRACE_RELEASE, lease.item.index, r->leases[record].copy->bytes, 0);
        end_lease(r, record, queue);
        lt__res_pump(r);
        pthread_cond_broadcast(&r->moved);
        if (r->desc.high_water && r->stats.resident > r->desc.high_water) {
            r->trimming = true;
            pthread_cond_signal(&r->work);
        }
    }
    res_unlock(r);
}

/* Bytes of ring that these items take together; one counts once. */
static uint64_t ring_need(const lt_residency *r, const lt_item *items, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!item_live(r, items[i]) || !r->items[items[i].index].streamed) continue;
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++) seen = items[k].index == items[i].index;
        if (!seen && !lt__add_u64(sum, lt__res_slot_bytes(&r->items[items[i].index]), &sum))
            return UINT64_MAX;
    }
    return sum;
}

lt_status lt_residency_lease_many(lt_residency *r, const lt_item *items, size_t n, lt_queue *queue,
                                  lt_lease *out, lt_err *err)
{
    if (!r || (n && (!items || !out)))
        return lt__fail(err, LT_E_INVALID, "residency: manager, items and result must not be NULL");
    if (n == 0) return LT_OK;
    typedef struct { uint32_t record; bool hit; } got;
    got *g = lt__alloc_array(r->ctx, n, sizeof *g);
    if (!g) return lt__fail_oom(err, n * sizeof *g, "a lease of many");
    memset(out, 0, n * sizeof *out);
    res_lock(r);
    while (r->many_busy) pthread_cond_wait(&r->moved, &r->lock); /* so two never hold halves */
    r->many_busy = true;
    uint64_t need = ring_need(r, items, n);
    lt_status st = LT_OK;
    if (need > r->ring.bytes && need > 0)
        st = lt__fail(err, LT_E_DEVICE_OOM,
                      "residency: %zu items need %" PRIu64 " bytes of the ring at once, it has %" PRIu64, n,
                      need, r->ring.bytes);
    for (int tries = 0; need <= r->ring.bytes && tries < 2; tries++) {
        size_t k = 0;
        for (st = LT_OK; k < n; k++)
            if ((st = lease_one(r, items[k], queue, &g[k].record, &g[k].hit, err)) != LT_OK) break;
        if (st == LT_OK) break;
        while (k-- > 0) {
            if (!g[k].hit) r->leases[g[k].record].copy->leased_once = false;
            end_lease(r, g[k].record, queue);
        }
        pthread_cond_broadcast(&r->moved);
        if (st != LT_E_DEVICE_OOM) break;
        /* Slots skipped at the ring's end may be all that was missing: begin at its start. */
        lt__res_ring_restart(r);
    }
    for (size_t k = 0; k < n && st == LT_OK; k++) count_lease(r, g[k].record, g[k].hit, &out[k]);
    r->many_busy = false;
    pthread_cond_broadcast(&r->moved);
    res_unlock(r);
    lt__free(r->ctx, g, n * sizeof *g);
    return st;
}

lt_status lt_residency_mark_dirty(lt_residency *r, lt_lease lease, lt_err *err)
{
    lt_status st = LT_OK;
    uint32_t record;
    res_lock(r);
    if (!find_lease(r, lease, &record))
        st = lt__fail(err, LT_E_INVALID, "residency: token %" PRIu32 " is not a lease that is held",
                      lease.token);
    else if (!r->items[lease.item.index].source.write)
        st = lt__fail(err, LT_E_INVALID, "item '%s': marked dirty, but its source cannot be written",
                      r->items[lease.item.index].name);
    else if (r->items[lease.item.index].copy != r->leases[record].copy) /* nobody would write it back */
        st = lt__fail(err, LT_E_DEVICE_LOST, "item '%s': marked dirty, but this copy was lost with a failed queue; lease it again",
                      r->items[lease.item.index].name);
    else r->leases[record].copy->dirty = true;
    res_unlock(r);
    return st;
}

lt_status lt_residency_sync(lt_residency *r, lt_err *err)
{
    res_lock(r);
    while (r->moving > 0) pthread_cond_wait(&r->moved, &r->lock);
    /* What is enqueued must have run, too: a failure shows only then. */
    lt_err why = {0};
    for (uint32_t i = 0; i < r->items_len; i++) {
        res_copy *c = r->items[i].live ? r->items[i].copy : NULL;
        if (!c || c->state != RES_READY || !c->ready || c->evicting || lt_event_sync(c->ready, &why) == LT_OK)
            continue;
        if (r->lost_status == LT_OK) {
            r->lost_status = why.status;
            r->lost_err = why;
        }
        r->stats.failed_loads++;
        abandon(r, c);
    }
    lt_status st = r->lost_status;
    if (st != LT_OK && err) *err = r->lost_err;
    r->lost_status = LT_OK;
    res_unlock(r);
    return st;
}
