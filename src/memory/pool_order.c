/* Order between queues: who may reuse a freed block, and behind which event. */
#include "memory/pool_impl.h"

/* How many of a queue's newest pending blocks are looked at for an exact reuse. */
enum { EXACT_SCAN = 16 };

lt__mark *lt__mark_take(lt_pool *p, lt_err *err)
{
    lt__mark *m = p->idle_marks;
    if (m) {
        p->idle_marks = m->next;
        m->next = NULL;
        return m;
    }
    m = lt__zalloc(p->ctx, sizeof *m);
    if (!m) {
        (void)lt__fail_oom(err, sizeof *m, "an event of a pool");
        return NULL;
    }
    if (lt_event_create(p->dev, &m->event, err) != LT_OK) {
        lt__free(p->ctx, m, sizeof *m);
        return NULL;
    }
    return m;
}

void lt__mark_drop(lt_pool *p, lt__mark *m)
{
    m->next = p->idle_marks;
    p->idle_marks = m;
}

static void list_unlink(lt__pool_queue *q, lt__blk *b)
{
    if (b->next)
        b->next->prev = b->prev;
    else
        q->tail = b->prev;
    if (b->prev)
        b->prev->next = b->next;
    else
        q->head = b->next;
    b->prev = b->next = NULL;
}

static void retire_queue(lt_pool *p, lt__pool_queue *q)
{
    while (q->first && lt_event_done(q->first->event)) {
        lt__mark *m = q->first;
        q->first = m->next;
        if (!q->first) q->last = NULL;
        while (q->head && (int32_t)(q->head->seq - m->seq) <= 0) {
            lt__blk *b = q->head;
            list_unlink(q, b);
            p->pending -= b->bytes;
            lt__sub_free(&p->sub, b);
        }
        lt__mark_drop(p, m);
    }
}

void lt__order_retire(lt_pool *p)
{
    for (size_t i = 0; i < p->n_queues; i++)
        if (p->queues[i].first) retire_queue(p, &p->queues[i]);
    if (p->base_mark && lt_event_done(p->base_mark->event)) {
        lt__mark_drop(p, p->base_mark);
        p->base_mark = NULL;
    }
}

/* The number of a queue, met now for the first time or before. */
static lt_status number_of(lt_pool *p, lt_queue *queue, uint16_t *own, lt_err *err)
{
    size_t spare = p->n_queues;
    for (size_t i = 0; i < p->n_queues; i++) {
        if (p->queues[i].queue == queue) {
            *own = (uint16_t)i;
            return LT_OK;
        }
        if (!p->queues[i].queue && !p->queues[i].first && spare == p->n_queues) spare = i;
    }
    if (spare >= LT__NO_OWNER)
        return lt__fail(err, LT_E_INVALID, "pool '%s': more than %d queues", p->name, LT__NO_OWNER);
    if (spare == p->n_queues) {
        lt_status st =
            lt__grow(p->ctx, (void **)&p->queues, &p->cap_queues, spare + 1, sizeof *p->queues, err);
        if (st != LT_OK) return st;
    }
    /* The free blocks hold what the lone queue freed without events: wait for that once. */
    if (p->base_mark && queue != p->lone) {
        lt_status st = lt_queue_wait(queue, p->base_mark->event, err);
        if (st != LT_OK) return st;
        p->waits++;
    }
    if (spare == p->n_queues) p->n_queues++;
    p->queues[spare] = (lt__pool_queue){.queue = queue};
    *own = (uint16_t)spare;
    return LT_OK;
}

/* A queue that failed runs nothing any more: its error is told by its own calls, and what it
 * freed is free. */
static void sync_unlocked(lt_pool *p, lt_queue *queue, lt_event *event)
{
    lt_err err;
    lt__pool_unlock(p);
    if ((event ? lt_event_sync(event, &err) : lt_queue_sync(queue, &err)) != LT_OK)
        lt__log(p->ctx, LT_LOG_WARN, "pool", "'%s': a queue failed: %s", p->name, err.text);
    lt__pool_lock(p);
}

/* Waits once for what the lone queue freed without events. Only the thread that feeds a queue
 * may record on it, so an event cannot be had afterwards. */
void lt__order_settle(lt_pool *p)
{
    while (p->lone && p->lone_dirty) {
        lt_queue *q = p->lone;
        bool ends = p->multi; /* else it goes on freeing without events */
        sync_unlocked(p, q, NULL);
        if (p->lone == q && ends) p->lone_dirty = false;
        p->waits++;
        if (!ends) return;
    }
}

lt_status lt__order_enter(lt_pool *p, lt_queue *queue, bool alloc, uint16_t *own, lt_err *err)
{
    *own = LT__NO_OWNER;
    if (!p->multi) {
        if (queue && (!p->lone || p->lone == queue)) {
            p->lone = queue;
            return LT_OK;
        }
        if (!queue && (!alloc || !p->lone_dirty)) return LT_OK;
        p->multi = true; /* from here on every free has its event */
    }
    if (alloc && queue != p->lone) lt__order_settle(p);
    if (queue) return number_of(p, queue, own, err);
    while (alloc && p->base_mark) {
        lt__order_retire(p);
        if (p->base_mark) sync_unlocked(p, NULL, p->base_mark->event);
    }
    return LT_OK;
}

void lt__order_pend_host(lt_pool *p, lt__blk *b, lt_queue *queue, const lt_err *why)
{
    lt__sub_retire(b);
    b->state = LT__BLK_PENDING;
    b->owner = LT__NO_OWNER;
    p->pending += b->bytes;
    p->waits++;
    lt__pool_unlock(p);
    lt__log(p->ctx, LT_LOG_WARN, "pool", "'%s': a free waits for its queue: %s", p->name, why->text);
    lt__pool_lock(p);
    sync_unlocked(p, queue, NULL);
    p->pending -= b->bytes;
    lt__sub_free(&p->sub, b);
}

void lt__order_pend(lt_pool *p, lt__blk *b, lt_queue *queue, uint16_t own)
{
    lt_err err;
    lt__mark *m = lt__mark_take(p, &err);
    if (m && lt_event_record(m->event, queue, &err) != LT_OK) {
        lt__mark_drop(p, m);
        m = NULL;
    }
    if (!m) {
        lt__order_pend_host(p, b, queue, &err);
        return;
    }
    lt__pool_queue *q = &p->queues[own];
    m->seq = ++q->seq;
    m->next = NULL;
    if (q->last)
        q->last->next = m;
    else
        q->first = m;
    q->last = m;
    lt__sub_retire(b);
    b->state = LT__BLK_PENDING;
    b->owner = own;
    b->seq = m->seq;
    b->next = NULL;
    b->prev = q->tail;
    if (q->tail)
        q->tail->next = b;
    else
        q->head = b;
    q->tail = b;
    p->pending += b->bytes;
}

lt__blk *lt__order_exact(lt_pool *p, uint16_t own, uint64_t bytes, uint64_t align)
{
    lt__pool_queue *q = &p->queues[own];
    lt__blk *b = q->tail;
    for (uint32_t i = 0; b && i < EXACT_SCAN; b = b->prev, i++) {
        if (b->bytes != bytes || (b->addr & (align - 1))) continue;
        list_unlink(q, b);
        p->pending -= b->bytes;
        b->state = LT__BLK_LIVE;
        return b;
    }
    return NULL;
}

static bool usable_own(void *user, const lt__blk *b)
{
    return b->state == LT__BLK_PENDING && b->owner == *(const uint16_t *)user;
}

static bool usable_any(void *user, const lt__blk *b)
{
    (void)user;
    return b->state == LT__BLK_PENDING && b->owner != LT__NO_OWNER;
}

/* Makes `queue` wait for every pending block of [addr, addr + bytes) freed elsewhere. */
static lt_status wait_for(lt_pool *p, lt_queue *queue, uint16_t own, lt__blk *first, uint64_t end,
                          lt_err *err)
{
    for (size_t i = 0; i < p->n_queues; i++) p->queues[i].needed = false;
    for (lt__blk *b = first; b && b->addr < end; b = b->upper) {
        if (b->state != LT__BLK_PENDING || b->owner == own) continue;
        lt__pool_queue *q = &p->queues[b->owner];
        if (!q->needed || (int32_t)(b->seq - q->need_seq) > 0) q->need_seq = b->seq;
        q->needed = true;
    }
    for (size_t i = 0; i < p->n_queues; i++) {
        lt__pool_queue *q = &p->queues[i];
        if (!q->needed) continue;
        lt__mark *m = q->first;
        while (m && (int32_t)(m->seq - q->need_seq) < 0) m = m->next;
        LT_ASSERT(m != NULL);
        lt_status st = lt_queue_wait(queue, m->event, err);
        if (st != LT_OK) return st;
        p->waits++;
    }
    return LT_OK;
}

static void split_at(lt_pool *p, lt__blk **b, uint64_t addr)
{
    lt__blk *hi = lt__sub_split(&p->sub, *b, addr);
    if ((*b)->state == LT__BLK_PENDING && p->queues[(*b)->owner].tail == *b) p->queues[(*b)->owner].tail = hi;
    *b = hi;
}

lt_status lt__order_run(lt_pool *p, lt_queue *queue, uint16_t own, bool any, uint64_t bytes, uint64_t align,
                        bool high, lt__blk **out, lt_err *err)
{
    *out = NULL;
    uint64_t addr = 0;
    lt__blk *first =
        lt__sub_find_run(&p->sub, bytes, align, high, any ? usable_any : usable_own, &own, &addr);
    if (!first) return LT_OK;
    uint64_t end = addr + bytes;
    while (first->addr + first->bytes <= addr) first = first->upper;
    lt_status st = wait_for(p, queue, own, first, end, err);
    if (st != LT_OK) return st;
    if (first->addr < addr) split_at(p, &first, addr);
    lt__blk *last = first;
    while (last->addr + last->bytes < end) last = last->upper;
    if (last->addr + last->bytes > end) {
        lt__blk *hi = last;
        split_at(p, &hi, end);
    }
    for (lt__blk *b = first;; b = b->upper) {
        if (b->state == LT__BLK_PENDING) {
            list_unlink(&p->queues[b->owner], b);
            p->pending -= b->bytes;
        }
        if (b == last) break;
    }
    *out = lt__sub_fuse(&p->sub, first, last);
    return LT_OK;
}

void lt__order_drain(lt_pool *p)
{
    for (size_t i = 0; i < p->n_queues; i++)
        if (p->queues[i].last) sync_unlocked(p, NULL, p->queues[i].last->event);
    lt__order_retire(p);
}

void lt__order_forget(lt_pool *p, lt_queue *queue)
{
    for (size_t i = 0; i < p->n_queues; i++)
        if (p->queues[i].queue == queue) p->queues[i].queue = NULL;
    if (p->lone != queue) return;
    if (p->lone_dirty) {
        /* Called by whoever feeds the queue: an event is possible. Queues already met have
         * passed the place where they would wait for it. */
        lt__mark *m = p->n_queues ? NULL : lt__mark_take(p, NULL);
        if (m && lt_event_record(m->event, queue, NULL) != LT_OK) {
            lt__mark_drop(p, m);
            m = NULL;
        }
        if (m) {
            p->base_mark = m;
            p->multi = true;
        } else {
            sync_unlocked(p, queue, NULL);
        }
    }
    if (p->lone != queue) return; /* forgotten twice at once */
    p->lone = NULL;
    p->lone_dirty = false;
}

static void destroy_marks(lt_pool *p, lt__mark *m)
{
    while (m) {
        lt__mark *next = m->next;
        lt_event_destroy(m->event);
        lt__free(p->ctx, m, sizeof *m);
        m = next;
    }
}

void lt__order_deinit(lt_pool *p)
{
    for (size_t i = 0; i < p->n_queues; i++) destroy_marks(p, p->queues[i].first);
    destroy_marks(p, p->base_mark);
    destroy_marks(p, p->idle_marks);
    lt__free(p->ctx, p->queues, p->cap_queues * sizeof *p->queues);
}

lt_status lt__order_check(const lt_pool *p, lt_err *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->n_queues; i++) {
        const lt__pool_queue *q = &p->queues[i];
        const lt__blk *prev = NULL;
        for (const lt__blk *b = q->head; b; prev = b, b = b->next) {
            if (b->state != LT__BLK_PENDING || b->owner != i || b->prev != prev)
                return lt__fail(err, LT_E_INVALID,
                                "pool check: slot %u is in the pending list of queue %zu, state %u", b->slot,
                                i, b->state);
            if (prev && (int32_t)(b->seq - prev->seq) < 0)
                return lt__fail(err, LT_E_INVALID, "pool check: pending slots %u and %u are out of order",
                                prev->slot, b->slot);
            bytes += b->bytes;
        }
        if (q->tail != prev)
            return lt__fail(err, LT_E_INVALID, "pool check: the pending list of queue %zu ends wrongly", i);
        if (prev && (!q->last || (int32_t)(q->last->seq - prev->seq) < 0))
            return lt__fail(err, LT_E_INVALID, "pool check: pending slot %u has no event", prev->slot);
    }
    /* Blocks whose free waits on the host right now belong to no list. */
    for (const lt__blk *b = p->sub.lowest; b; b = b->upper)
        if (b->state == LT__BLK_PENDING && b->owner == LT__NO_OWNER) bytes += b->bytes;
    if (bytes != p->pending)
        return lt__fail(err, LT_E_INVALID, "pool check: %llu bytes pending in lists, %llu counted",
                        (unsigned long long)bytes, (unsigned long long)p->pending);
    return LT_OK;
}
