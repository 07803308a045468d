/* Events: a handle on the latest mark. A wait keeps the mark it was given, so a later record
 * cannot release it early, even one on another queue that gets there first. */
#include "backend/cpu/hostdev.h"
#include "backend/cpu/thread.h"

static lt_hostdev *dev_of(const lt_event *ev)
{
    return (lt_hostdev *)ev->dev;
}

static lt_mark *take_mark(lt_hostdev *d)
{
    pthread_mutex_lock(&d->lock);
    lt_mark *m = d->free_marks;
    if (m)
        d->free_marks = m->next;
    pthread_mutex_unlock(&d->lock);
    return m ? m : lt__zalloc(d->base.ctx, sizeof *m);
}

void lt__mark_unref(lt_hostdev *d, lt_mark *m)
{
    if (!m || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&d->lock);
    m->next = d->free_marks;
    d->free_marks = m;
    pthread_mutex_unlock(&d->lock);
}

void lt__mark_reach(lt_mark *m, uint64_t time_ns, const lt_err *failed)
{
    m->time_ns = time_ns;
    m->err.status = LT_OK;
    if (failed)
        m->err = *failed;
    atomic_store_explicit(&m->reached, 1, memory_order_seq_cst);
    lt__wake_sleepers(&m->reached, &m->sleepers);
}

void lt__mark_wait(lt_mark *m, uint64_t spin_ns)
{
    lt__wait_change(&m->reached, 0, &m->sleepers, spin_ns);
}

lt_mark *lt__hostevent_mark(lt_hostevent *ev)
{
    pthread_mutex_lock(&ev->lock);
    lt_mark *m = ev->mark;
    if (m)
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&ev->lock);
    return m;
}

lt_status lt__hostevent_create(lt_device *dev, lt_event **out, lt_err *err)
{
    lt_hostdev *d = (lt_hostdev *)dev;
    lt_hostevent *ev = lt__zalloc(dev->ctx, sizeof *ev);
    if (!ev)
        return lt__fail_oom(err, sizeof *ev, "event");
    ev->base.dev = dev;
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

void lt__hostevent_destroy(lt_event *handle)
{
    lt_hostdev *d = dev_of(handle);
    lt_hostevent *ev = (lt_hostevent *)handle;
    pthread_mutex_lock(&d->lock);
    if (ev->prev)
        ev->prev->next = ev->next;
    else
        d->events = ev->next;
    if (ev->next)
        ev->next->prev = ev->prev;
    pthread_mutex_unlock(&d->lock);
    lt__mark_unref(d, ev->mark);
    pthread_mutex_destroy(&ev->lock);
    lt__free(d->base.ctx, ev, sizeof *ev);
}

lt_status lt__hostevent_record(lt_event *handle, lt_queue *q, lt_err *err)
{
    lt_hostdev *d = dev_of(handle);
    lt_hostevent *ev = (lt_hostevent *)handle;
    lt_mark *m = take_mark(d);
    if (!m)
        return lt__fail_oom(err, sizeof *m, "record of an event");
    atomic_store_explicit(&m->reached, 0, memory_order_relaxed);
    atomic_store_explicit(&m->refs, 2, memory_order_relaxed);
    lt_status s = lt__hostqueue_record((lt_hostqueue *)q, m, err);
    if (s != LT_OK) {
        atomic_store_explicit(&m->refs, 1, memory_order_relaxed);
        lt__mark_unref(d, m);
        return s;
    }
    pthread_mutex_lock(&ev->lock);
    lt_mark *old = ev->mark;
    ev->mark = m;
    pthread_mutex_unlock(&ev->lock);
    lt__mark_unref(d, old);
    return LT_OK;
}

bool lt__hostevent_done(const lt_event *handle)
{
    lt_mark *m = lt__hostevent_mark((lt_hostevent *)handle);
    bool done = !m || atomic_load_explicit(&m->reached, memory_order_acquire);
    lt__mark_unref(dev_of(handle), m);
    return done;
}

lt_status lt__hostevent_sync(lt_event *handle, lt_err *err)
{
    lt_hostdev *d = dev_of(handle);
    lt_mark *m = lt__hostevent_mark((lt_hostevent *)handle);
    if (!m)
        return LT_OK;
    lt__mark_wait(m, 0);
    if (d->clock.virt)
        lt__hostclock_raise(&d->clock.host_ns, m->time_ns);
    lt_status s = m->err.status;
    if (s != LT_OK && err)
        *err = m->err;
    lt__mark_unref(d, m);
    return s;
}

uint64_t lt__hostevent_time_ns(const lt_event *handle)
{
    lt_mark *m = lt__hostevent_mark((lt_hostevent *)handle);
    uint64_t t = m && atomic_load_explicit(&m->reached, memory_order_acquire) ? m->time_ns : 0;
    lt__mark_unref(dev_of(handle), m);
    return t;
}
