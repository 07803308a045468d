/* Events, and the device's clock.
 *
 * The driver tells only how long after another event one was reached, as a float of milliseconds:
 * the event measured from is renewed before that gets coarser than a microsecond. */
#include "backend/cuda/device.h"

#include <string.h>

#define RENEW_MS 8000.0f

static lt_cuda_event *event_of(const lt_event *ev) { return (lt_cuda_event *)ev; }
static lt_cuda_device *device_of(const lt_cuda_event *ev) { return lt__cuda_of(ev->base.dev); }

lt_status lt__cuda_event_create(lt_device *dev, lt_event **out, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_event *ev = lt__zalloc(dev->ctx, sizeof *ev);
    if (!ev)
        return lt__fail_oom(err, sizeof *ev, "event");
    ev->base.dev = dev;
    lt_status s = lt__cuda_enter(d, err);
    if (s == LT_OK) {
        lt_curesult r = d->cu.event_create(&ev->event, LT_CU_EVENT_DEFAULT);
        lt__cuda_leave(d);
        if (r != LT_CU_OK)
            s = lt__cuda_fail(d, err, r, "cuda: no event");
    }
    if (s != LT_OK) {
        lt__free(dev->ctx, ev, sizeof *ev);
        return s;
    }
    pthread_mutex_init(&ev->lock, NULL);
    pthread_mutex_lock(&d->lock);
    ev->next = d->events;
    if (ev->next)
        ev->next->prev = ev;
    d->events = ev;
    pthread_mutex_unlock(&d->lock);
    *out = &ev->base;
    return LT_OK;
}

void lt__cuda_event_destroy(lt_event *handle)
{
    lt_cuda_event *ev = event_of(handle);
    lt_cuda_device *d = device_of(ev);
    pthread_mutex_lock(&d->lock);
    if (ev->prev)
        ev->prev->next = ev->next;
    else
        d->events = ev->next;
    if (ev->next)
        ev->next->prev = ev->prev;
    pthread_mutex_unlock(&d->lock);
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    (void)d->cu.event_destroy(ev->event);
    if (entered)
        lt__cuda_leave(d);
    pthread_mutex_destroy(&ev->lock);
    lt__free(d->base.ctx, ev, sizeof *ev);
}

lt_status lt__cuda_event_record(lt_event *handle, lt_queue *queue, lt_err *err)
{
    lt_cuda_event *ev = event_of(handle);
    lt_cuda_device *d = device_of(ev);
    lt_cuda_queue *q = (lt_cuda_queue *)queue;
    lt_status s = lt__cuda_begin(q, "record", err);
    if (s != LT_OK)
        return s;
    pthread_mutex_lock(&ev->lock);
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_record) ? LT_CU_UNKNOWN : d->cu.event_record(ev->event, q->stream);
    if (r == LT_CU_OK) {
        ev->clock = q->clock;
        ev->recorded = true;
    }
    pthread_mutex_unlock(&ev->lock);
    return lt__cuda_end(q, r, "record", err);
}

static bool snapshot(lt_cuda_event *ev, lt_cuda_clock *clock)
{
    pthread_mutex_lock(&ev->lock);
    bool recorded = ev->recorded;
    if (recorded && clock)
        *clock = ev->clock;
    pthread_mutex_unlock(&ev->lock);
    return recorded;
}

static lt_status late(lt_cuda_device *d, lt_curesult r, lt_err *err)
{
    lt_err own = {0};
    (void)lt__cu_fail(&d->cu, &own, r, "cuda: work before an event failed; sync-check=1 names it");
    own.status = LT_E_DEVICE_LOST;
    lt__cuda_set_lost(d, &own);
    if (err)
        *err = d->lost_err;
    return LT_E_DEVICE_LOST;
}

/* On a lost device all is over, and so done. */
bool lt__cuda_event_done(const lt_event *handle)
{
    lt_cuda_event *ev = event_of(handle);
    lt_cuda_device *d = device_of(ev);
    if (!snapshot(ev, NULL) || atomic_load_explicit(&d->lost, memory_order_acquire) || lt__cuda_enter(d, NULL) != LT_OK)
        return true;
    lt_curesult r = d->cu.event_query(ev->event);
    lt__cuda_leave(d);
    if (r != LT_CU_OK && r != LT_CU_NOT_READY)
        (void)late(d, r, NULL);
    return r != LT_CU_NOT_READY;
}

lt_status lt__cuda_event_sync(lt_event *handle, lt_err *err)
{
    lt_cuda_event *ev = event_of(handle);
    lt_cuda_device *d = device_of(ev);
    lt_cuda_clock clock;
    if (!snapshot(ev, &clock))
        return LT_OK;
    lt_status s = LT_OK;
    if (!atomic_load_explicit(&d->lost, memory_order_acquire)) {
        s = lt__cuda_enter(d, err);
        if (s != LT_OK)
            return s;
        lt_curesult r = d->cu.event_sync(ev->event);
        lt__cuda_leave(d);
        if (r != LT_CU_OK)
            return late(d, r, err);
    } else {
        if (err)
            *err = d->lost_err;
        return d->lost_err.status;
    }
    lt_err own = {0};
    if (!lt__cuda_clock_failed(d, &clock, atomic_load_explicit(&d->n_slots, memory_order_acquire), &own))
        return LT_OK;
    if (err)
        *err = own;
    return own.status;
}

/* --- time ----------------------------------------------------------------------------- */

static lt_curesult renew_base(lt_cuda_device *d)
{
    lt_curesult r = d->cu.event_record(d->time_base, d->time_stream);
    if (r == LT_CU_OK)
        r = d->cu.event_sync(d->time_base);
    d->time_base_ns = lt__now_ns() - d->opened_ns;
    return r;
}

lt_status lt__cuda_time_init(lt_cuda_device *d, lt_err *err)
{
    d->opened_ns = lt__now_ns();
    lt_curesult r = d->cu.stream_create(&d->time_stream, LT_CU_STREAM_NON_BLOCKING);
    if (r == LT_CU_OK)
        r = d->cu.event_create(&d->time_base, LT_CU_EVENT_DEFAULT);
    if (r == LT_CU_OK)
        r = renew_base(d);
    return r == LT_CU_OK ? LT_OK : lt__cuda_fail(d, err, r, "cuda: no clock of the device");
}

void lt__cuda_time_deinit(lt_cuda_device *d)
{
    if (d->time_base)
        (void)d->cu.event_destroy(d->time_base);
    if (d->time_stream)
        (void)d->cu.stream_destroy(d->time_stream);
}

uint64_t lt__cuda_event_time_ns(const lt_event *handle)
{
    lt_cuda_event *ev = event_of(handle);
    lt_cuda_device *d = device_of(ev);
    float ms = 0;
    if (!snapshot(ev, NULL) || atomic_load_explicit(&d->lost, memory_order_acquire) || lt__cuda_enter(d, NULL) != LT_OK)
        return 0;
    pthread_mutex_lock(&d->time_lock);
    uint64_t ns = 0;
    if (d->cu.event_elapsed(&ms, d->time_base, ev->event) == LT_CU_OK) {
        double at = (double)d->time_base_ns + (double)ms * 1e6;
        ns = at > 0 ? (uint64_t)at : 0;
        if (ms > RENEW_MS) {
            /* The new base is placed on the old one's scale, so that time does not jump. */
            CUevent old = d->time_base;
            CUevent fresh = NULL;
            float between = 0;
            if (d->cu.event_create(&fresh, LT_CU_EVENT_DEFAULT) == LT_CU_OK) {
                if (d->cu.event_record(fresh, d->time_stream) == LT_CU_OK && d->cu.event_sync(fresh) == LT_CU_OK &&
                    d->cu.event_elapsed(&between, old, fresh) == LT_CU_OK) {
                    d->time_base = fresh;
                    d->time_base_ns += (uint64_t)((double)between * 1e6);
                    fresh = old;
                }
                (void)d->cu.event_destroy(fresh);
            }
        }
    }
    pthread_mutex_unlock(&d->time_lock);
    lt__cuda_leave(d);
    return ns;
}
