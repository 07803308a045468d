/* Queues are streams; what the driver does not keep for us is kept here: sticky errors and the
 * names of what was given (see lt_cuda_slot), host calls that can fail. */
#include "backend/cuda/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static lt_cuda_queue *queue_of(lt_queue *q) { return (lt_cuda_queue *)q; }
static lt_cuda_device *device_of(const lt_cuda_queue *q) { return lt__cuda_of(q->base.dev); }

/* --- failures ------------------------------------------------------------------------- */

bool lt__cuda_clock_failed(lt_cuda_device *d, const lt_cuda_clock *clock, uint32_t n, lt_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        lt_cuda_slot *s = &d->slots[i];
        if (!clock->at[i] || !atomic_load_explicit(&s->failed, memory_order_acquire))
            continue;
        pthread_mutex_lock(&d->lock);
        bool failed = atomic_load_explicit(&s->failed, memory_order_relaxed) && s->fail_at < clock->at[i];
        if (failed && err)
            *err = s->err;
        pthread_mutex_unlock(&d->lock);
        if (failed)
            return true;
    }
    return false;
}

static void fail_slot(lt_cuda_device *d, lt_cuda_slot *s, uint64_t at, const lt_err *err)
{
    pthread_mutex_lock(&d->lock);
    if (!atomic_load_explicit(&s->failed, memory_order_relaxed)) {
        s->err = *err;
        s->fail_at = at;
        atomic_store_explicit(&s->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&d->lock);
}

/* The error the queue is stuck with, if any. */
static lt_status queue_state(lt_cuda_queue *q, lt_err *err)
{
    lt_cuda_device *d = device_of(q);
    lt_err own = {0};
    if (atomic_load_explicit(&d->lost, memory_order_acquire))
        own = d->lost_err;
    else if (!lt__cuda_clock_failed(d, &q->clock, atomic_load_explicit(&d->n_slots, memory_order_acquire), &own))
        return LT_OK;
    if (err)
        *err = own;
    return own.status;
}

void lt__cuda_note_name(lt_cuda_queue *q, const char *name)
{
    char *at = q->names[q->n_names++ % LT_CUDA_NAMES];
    size_t n = strnlen(name, LT_CUDA_NAME_BYTES - 1);
    memcpy(at, name, n);
    at[n] = 0;
}

/* An error of work given earlier: nothing says which, so the latest are named. */
static lt_status fail_late(lt_cuda_queue *q, lt_curesult r, const char *at, lt_err *err)
{
    lt_cuda_device *d = device_of(q);
    char list[LT_CUDA_NAMES * (LT_CUDA_NAME_BYTES + 2) + 1] = "";
    uint64_t n = q->n_names < LT_CUDA_NAMES ? q->n_names : LT_CUDA_NAMES;
    size_t used = 0;
    for (uint64_t i = q->n_names - n; i < q->n_names && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", q->names[i % LT_CUDA_NAMES]);
    lt_err own = {0};
    (void)lt__cu_fail(&d->cu, &own, r, "cuda: work failed, seen at %s; last given on this queue: %.260s%s", at,
                      n ? list : "nothing", d->sync_check ? "" : "; sync-check=1 names the one");
    own.status = LT_E_DEVICE_LOST;
    lt__cuda_set_lost(d, &own);
    if (err)
        *err = d->lost_err;
    return LT_E_DEVICE_LOST;
}

lt_status lt__cuda_begin(lt_cuda_queue *q, const char *name, lt_err *err)
{
    lt_status s = queue_state(q, err);
    if (s != LT_OK)
        return s;
    lt__cuda_note_name(q, name);
    return lt__cuda_enter(device_of(q), err);
}

lt_status lt__cuda_end(lt_cuda_queue *q, lt_curesult r, const char *name, lt_err *err)
{
    lt_cuda_device *d = device_of(q);
    lt__cuda_leave(d);
    if (r == LT_CU_OK) {
        q->clock.at[q->slot] = ++d->slots[q->slot].next;
        return LT_OK;
    }
    if (lt__cu_fatal(r))
        return fail_late(q, r, name, err);
    return lt__cuda_fail(d, err, r, "cuda: %s cannot be given to a queue", name);
}

/* --- copies --------------------------------------------------------------------------- */

static lt_curesult copy_fault(lt_cuda_device *d)
{
    return lt__cuda_fault(d, LT_CUDA_FAULT_copy) ? LT_CU_LAUNCH_FAILED : LT_CU_OK;
}

static void count_copy(lt_cuda_device *d, _Atomic uint64_t *total, uint64_t bytes)
{
    atomic_fetch_add_explicit(&d->copies, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(total, bytes, memory_order_relaxed);
}

/* The driver reads and writes pageable memory during the call, or makes the caller wait for all
 * work before: wrong, or deadly, while a host call the copy stands behind is still to run. */
static bool must_bounce(lt_cuda_queue *q, const void *host, uint64_t bytes)
{
    return lt__cuda_host_pending(q) && !lt__cuda_pinned(device_of(q), host, bytes);
}

lt_status lt__cuda_copy_in(lt_queue *handle, lt_addr dst, const void *src, uint64_t bytes, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_status s;
    if (bytes && must_bounce(q, src, bytes)) {
        s = lt__cuda_bounce_copy(q, dst, (void *)src, bytes, true, err);
    } else {
        s = lt__cuda_begin(q, "copy_in", err);
        if (s != LT_OK)
            return s;
        lt_curesult r = copy_fault(d);
        if (r == LT_CU_OK && bytes)
            r = d->cu.copy_in(dst, src, bytes, q->stream);
        s = lt__cuda_end(q, r, "copy_in", err);
    }
    if (s == LT_OK)
        count_copy(d, &d->h2d_bytes, bytes);
    return s;
}

lt_status lt__cuda_copy_out(lt_queue *handle, void *dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_status s;
    if (bytes && must_bounce(q, dst, bytes)) {
        s = lt__cuda_bounce_copy(q, src, dst, bytes, false, err);
    } else {
        s = lt__cuda_begin(q, "copy_out", err);
        if (s != LT_OK)
            return s;
        lt_curesult r = copy_fault(d);
        if (r == LT_CU_OK && bytes)
            r = d->cu.copy_out(dst, src, bytes, q->stream);
        s = lt__cuda_end(q, r, "copy_out", err);
    }
    if (s == LT_OK)
        count_copy(d, &d->d2h_bytes, bytes);
    return s;
}

lt_status lt__cuda_copy(lt_queue *handle, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_status s = lt__cuda_begin(q, "copy", err);
    if (s != LT_OK)
        return s;
    lt_curesult r = copy_fault(d);
    if (r == LT_CU_OK && bytes)
        r = d->cu.copy(dst, src, bytes, q->stream);
    s = lt__cuda_end(q, r, "copy", err);
    if (s == LT_OK)
        count_copy(d, &d->d2d_bytes, bytes);
    return s;
}

lt_status lt__cuda_fill(lt_queue *handle, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_status s = lt__cuda_begin(q, "fill", err);
    if (s != LT_OK)
        return s;
    lt_curesult r = bytes ? d->cu.fill(dst, value, bytes, q->stream) : LT_CU_OK;
    return lt__cuda_end(q, r, "fill", err);
}

/* --- host calls ----------------------------------------------------------------------- */

static void push_spare(lt_cuda_call *c)
{
    lt_cuda_queue *q = c->queue;
    lt_cuda_call *top = atomic_load_explicit(&q->spare, memory_order_relaxed);
    do
        c->next_spare = top;
    while (!atomic_compare_exchange_weak_explicit(&q->spare, &top, c, memory_order_release, memory_order_relaxed));
}

/* On a thread of the driver: no call of it is allowed here. */
static void run_call(void *user)
{
    lt_cuda_call *c = user;
    lt_cuda_queue *q = c->queue;
    lt_cuda_device *d = device_of(q);
    lt_cuda_slot *slot = &d->slots[q->slot];
    lt_err err = {0};
    lt_status s = LT_OK;
    bool failed = lt__cuda_clock_failed(d, &c->clock, c->n_clock, NULL);
    if (c->inner)
        s = c->inner(c, failed, &err);
    else if (!failed)
        s = c->fn(c->user, &err);
    if (s != LT_OK) {
        if (err.status != s)
            (void)lt__fail(&err, s, "a host call on a queue failed: %s", lt_status_text(s));
        fail_slot(d, slot, c->position, &err);
    }
    uint64_t done = c->position + 1;
    push_spare(c); /* before host_done: who sees that finds the node spare */
    atomic_store_explicit(&slot->host_done, done, memory_order_release);
}

bool lt__cuda_host_pending(const lt_cuda_queue *q)
{
    lt_cuda_device *d = device_of(q);
    uint32_t n = atomic_load_explicit(&d->n_slots, memory_order_acquire);
    for (uint32_t i = 0; i < n; i++) {
        lt_cuda_slot *s = &d->slots[i];
        uint64_t done = atomic_load_explicit(&s->host_done, memory_order_acquire);
        if (done < q->clock.at[i] && done < atomic_load_explicit(&s->host_given, memory_order_acquire))
            return true;
    }
    return false;
}

lt_status lt__cuda_take_call(lt_cuda_queue *q, lt_cuda_call **out, lt_err *err)
{
    lt_cuda_call *c = atomic_load_explicit(&q->spare, memory_order_acquire);
    while (c && !atomic_compare_exchange_weak_explicit(&q->spare, &c, c->next_spare, memory_order_acquire,
                                                       memory_order_acquire))
        ;
    if (!c) {
        c = lt__zalloc(q->base.dev->ctx, sizeof *c);
        if (!c)
            return lt__fail_oom(err, sizeof *c, "a host call of a queue");
        c->queue = q;
        c->next_all = q->calls;
        q->calls = c;
    }
    c->fn = NULL;
    c->inner = NULL;
    *out = c;
    return LT_OK;
}

lt_status lt__cuda_give_call(lt_cuda_queue *q, lt_cuda_call *c, const char *name, lt_err *err)
{
    lt_cuda_device *d = device_of(q);
    lt_cuda_slot *slot = &d->slots[q->slot];
    lt_status s = lt__cuda_begin(q, name, err);
    if (s != LT_OK) {
        push_spare(c);
        return s;
    }
    c->position = slot->next;
    c->n_clock = atomic_load_explicit(&d->n_slots, memory_order_acquire);
    memcpy(c->clock.at, q->clock.at, c->n_clock * sizeof *c->clock.at);
    uint64_t before = atomic_load_explicit(&slot->host_given, memory_order_relaxed);
    atomic_store_explicit(&slot->host_given, c->position + 1, memory_order_release);
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_call) ? LT_CU_LAUNCH_FAILED : d->cu.host_call(q->stream, run_call, c);
    if (r != LT_CU_OK) {
        atomic_store_explicit(&slot->host_given, before, memory_order_release);
        push_spare(c);
    }
    return lt__cuda_end(q, r, name, err);
}

lt_status lt__cuda_call_host(lt_queue *handle, lt_host_fn *fn, void *user, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_call *c = NULL;
    lt_status s = queue_state(q, err);
    if (s == LT_OK)
        s = lt__cuda_bounce_ready(device_of(q), err);
    if (s == LT_OK)
        s = lt__cuda_take_call(q, &c, err);
    if (s != LT_OK)
        return s;
    c->fn = fn;
    c->user = user;
    return lt__cuda_give_call(q, c, "host call", err);
}

/* --- launches ------------------------------------------------------------------------- */

lt_status lt__cuda_row_of(lt_cuda_device *d, const lt_op_args *args, const lt_cuda_row **out, lt_err *err)
{
    const char *op = lt_op_get(args->op)->name, *name = args->name ? args->name : op, *why = "";
    const lt_cuda_row *row = *out = lt__cuda_find(d, args, NULL, &why);
    if (!row)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: %s: %s", name, op, why);
    if (row->scratch && !args->scratch && row->scratch(d, args))
        return lt__fail(err, LT_E_INVALID, "%s: %s wants %" PRIu64 " bytes of scratch and was given none", name, op,
                        row->scratch(d, args));
    return LT_OK;
}

lt_status lt__cuda_queue_launch(lt_queue *handle, const lt_op_args *args, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    const char *op = lt_op_get(args->op)->name, *name = args->name ? args->name : op;
    const lt_cuda_row *row = NULL;
    lt_status s = lt__cuda_row_of(d, args, &row, err);
    if (s == LT_OK)
        s = lt__cuda_begin(q, name, err);
    if (s != LT_OK)
        return s;
    s = row->launch(d, q->stream, args, err);
    if (s != LT_OK) {
        lt__cuda_leave(d);
        return s;
    }
    lt_curesult r = d->sync_check ? d->cu.stream_sync(q->stream) : LT_CU_OK;
    if (r != LT_CU_OK) {
        lt_err own = {0};
        (void)lt__cu_fail(&d->cu, &own, r, "%s: the kernel of %s failed", name, op);
        own.status = LT_E_DEVICE_LOST;
        lt__cuda_set_lost(d, &own);
        lt__cuda_leave(d);
        if (err)
            *err = own;
        return own.status;
    }
    return lt__cuda_end(q, LT_CU_OK, name, err);
}

/* --- order ---------------------------------------------------------------------------- */

lt_status lt__cuda_wait(lt_queue *handle, lt_event *ev_handle, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_cuda_event *ev = (lt_cuda_event *)ev_handle;
    lt_status s = lt__cuda_begin(q, "wait", err);
    if (s != LT_OK)
        return s;
    lt_curesult r = LT_CU_OK;
    pthread_mutex_lock(&ev->lock);
    if (ev->recorded) {
        r = lt__cuda_fault(d, LT_CUDA_FAULT_wait) ? LT_CU_UNKNOWN : d->cu.stream_wait(q->stream, ev->event, 0);
        uint32_t n = atomic_load_explicit(&d->n_slots, memory_order_acquire);
        for (uint32_t i = 0; r == LT_CU_OK && i < n; i++)
            q->clock.at[i] = lt__max_u64(q->clock.at[i], ev->clock.at[i]);
    }
    pthread_mutex_unlock(&ev->lock);
    return lt__cuda_end(q, r, "wait", err);
}

lt_status lt__cuda_queue_sync(lt_queue *handle, lt_err *err)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    bool lost = atomic_load_explicit(&d->lost, memory_order_acquire);
    lt_status s = lt__cuda_enter(d, lost ? NULL : err);
    if (s != LT_OK)
        return lost ? queue_state(q, err) : s;
    lt_curesult r = d->cu.stream_sync(q->stream);
    lt__cuda_leave(d);
    if (lost) /* waited for all the same: work given before may run on, over memory that the caller gives back next */
        return queue_state(q, err);
    if (r != LT_CU_OK)
        return fail_late(q, r, "the queue's sync", err);
    q->n_names = 0;
    lt_err wrong;
    if (lt__cuda_wrong_check(d, &wrong) != LT_OK)
        fail_slot(d, &d->slots[q->slot], 0, &wrong);
    return queue_state(q, err);
}

/* --- life ----------------------------------------------------------------------------- */

/* A slot that never failed first: events may still refer to the failure of an earlier queue. */
static lt_status take_slot(lt_cuda_device *d, uint32_t *out, lt_err *err)
{
    lt_status s = LT_OK;
    uint32_t best = LT_CUDA_QUEUES;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < LT_CUDA_QUEUES; i++) {
        if (d->slots[i].used)
            continue;
        if (!atomic_load_explicit(&d->slots[i].failed, memory_order_relaxed)) {
            best = i;
            break;
        }
        if (best == LT_CUDA_QUEUES)
            best = i;
    }
    if (best == LT_CUDA_QUEUES) {
        s = lt__fail(err, LT_E_UNSUPPORTED, "cuda: a device has at most %d queues at a time", LT_CUDA_QUEUES);
    } else {
        lt_cuda_slot *slot = &d->slots[best];
        slot->used = true;
        atomic_store_explicit(&slot->failed, false, memory_order_relaxed);
        if (best >= atomic_load_explicit(&d->n_slots, memory_order_relaxed))
            atomic_store_explicit(&d->n_slots, best + 1, memory_order_release);
        *out = best;
    }
    pthread_mutex_unlock(&d->lock);
    return s;
}

static void give_slot(lt_cuda_device *d, uint32_t slot)
{
    pthread_mutex_lock(&d->lock);
    d->slots[slot].used = false;
    /* Calls that a lost device never ran: nobody is to wait for them. */
    atomic_store_explicit(&d->slots[slot].host_done, d->slots[slot].next, memory_order_release);
    pthread_mutex_unlock(&d->lock);
}

lt_status lt__cuda_queue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_status s = LT_OK;
    if (atomic_load_explicit(&d->lost, memory_order_acquire)) {
        if (err)
            *err = d->lost_err;
        return d->lost_err.status;
    }
    lt_cuda_queue *q = lt__zalloc(dev->ctx, sizeof *q);
    if (!q)
        return lt__fail_oom(err, sizeof *q, "queue");
    q->base = (lt_queue){.dev = dev, .kind = kind};
    s = take_slot(d, &q->slot, err);
    if (s != LT_OK)
        goto fail;
    s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        goto fail_slot_taken;
    lt_curesult r = d->cu.stream_create(&q->stream, LT_CU_STREAM_NON_BLOCKING);
    lt__cuda_leave(d);
    if (r != LT_CU_OK) {
        s = lt__cuda_fail(d, err, r, "cuda: no stream for a queue");
        goto fail_slot_taken;
    }
    pthread_mutex_lock(&d->lock);
    q->next = d->queues;
    if (q->next)
        q->next->prev = q;
    d->queues = q;
    pthread_mutex_unlock(&d->lock);
    *out = &q->base;
    return LT_OK;
fail_slot_taken:
    give_slot(d, q->slot);
fail:
    lt__free(dev->ctx, q, sizeof *q);
    return s;
}

void lt__cuda_queue_destroy(lt_queue *handle)
{
    lt_cuda_queue *q = queue_of(handle);
    lt_cuda_device *d = device_of(q);
    lt_err err = {0};
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    lt_curesult r = d->cu.stream_sync(q->stream);
    if (r != LT_CU_OK && !atomic_load_explicit(&d->lost, memory_order_acquire)) {
        (void)fail_late(q, r, "the queue's end", &err);
        lt__log(d->base.ctx, LT_LOG_ERROR, "cuda", "%s", err.text);
    }
    (void)d->cu.stream_destroy(q->stream);
    if (entered)
        lt__cuda_leave(d);
    give_slot(d, q->slot);
    pthread_mutex_lock(&d->lock);
    if (q->prev)
        q->prev->next = q->next;
    else
        d->queues = q->next;
    if (q->next)
        q->next->prev = q->prev;
    pthread_mutex_unlock(&d->lock);
    for (lt_cuda_call *c = q->calls, *next; c; c = next) {
        next = c->next_all;
        lt__free(d->base.ctx, c, sizeof *c);
    }
    lt__free(d->base.ctx, q, sizeof *q);
}
