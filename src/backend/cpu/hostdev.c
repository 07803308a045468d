#include "backend/cpu/hostdev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void lt__hostdev_init(lt_hostdev *d, const lt_device_vt *vt, lt_ctx *ctx, const char *kind, lt_cpu_isa isa,
                      uint32_t threads)
{
    memset(d, 0, sizeof *d);
    d->base = (lt_device){.vt = vt, .ctx = ctx};
    strncpy(d->kind, kind, sizeof d->kind - 1);
    d->isa = isa;
    d->threads = threads;
    lt__hostmem_init(&d->mem, ctx, d->kind);
    lt__hostclock_init(&d->clock);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->team_lock, NULL);
}

void lt__hostdev_deinit(lt_hostdev *d)
{
    lt_ctx *ctx = d->base.ctx;
    size_t queues = 0, events = 0;
    for (; d->queues; queues++)
        lt__hostqueue_destroy((lt_queue *)d->queues);
    for (; d->events; events++)
        lt__hostevent_destroy((lt_event *)d->events);
    if (queues || events)
        lt__log(ctx, LT_LOG_WARN, d->kind, "closed with %zu queues and %zu events still there", queues, events);
    for (lt_mark *m = d->free_marks, *next; m; m = next) {
        next = m->next;
        lt__free(ctx, m, sizeof *m);
    }
    lt__team_destroy(d->team);
    if (d->scratch)
        lt__free(ctx, d->scratch, d->scratch_bytes + 64);
    lt__hostmem_deinit(&d->mem);
    lt__hostclock_deinit(&d->clock);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->team_lock);
}

void lt__hostdev_stats(const lt_hostdev *d, lt_device_stats *out)
{
    memset(out, 0, sizeof *out);
    lt__hostmem_usage((lt_hostmem *)&d->mem, &out->committed_bytes, &out->peak_committed_bytes);
    out->copies = atomic_load(&d->copies);
    out->h2d_bytes = atomic_load(&d->bytes[LT_COPY_H2D]);
    out->d2h_bytes = atomic_load(&d->bytes[LT_COPY_D2H]);
    out->d2d_bytes = atomic_load(&d->bytes[LT_COPY_D2D]);
    out->launches = atomic_load(&d->launches);
    out->copy_busy_ns = atomic_load(&d->copy_busy_ns);
    out->compute_busy_ns = atomic_load(&d->compute_busy_ns);
    out->compute_stall_ns = atomic_load(&d->compute_stall_ns);
    out->now_ns = lt__hostclock_now_ns(&d->clock);
}

bool lt__hostdev_fault(lt_hostdev *d, lt_fault_point point)
{
    _Atomic uint64_t *left = &d->fail_in[point];
    uint64_t v = atomic_load_explicit(left, memory_order_relaxed);
    while (v)
        if (atomic_compare_exchange_weak_explicit(left, &v, v - 1, memory_order_relaxed, memory_order_relaxed))
            return v == 1;
    return false;
}

lt_status lt__hostdev_option(const char *key, const char *value, uint32_t *threads, lt_cpu_isa *isa, lt_err *err)
{
    if (!strcmp(key, "threads")) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(value, &end, 10);
        if (*value < '0' || *value > '9' || *end || errno || n < 1 || n > LT_TEAM_MAX)
            return lt__fail(err, LT_E_INVALID, "threads=%s: expected 1 to %d", value, LT_TEAM_MAX);
        *threads = (uint32_t)n;
        return LT_OK;
    }
    if (!strcmp(key, "isa")) {
        if (!lt__cpu_isa_from_name(value, isa))
            return lt__fail(err, LT_E_INVALID, "isa=%s: expected ref, avx2 or avx512", value);
        if (!lt__cpu_isa_supported(*isa))
            return lt__fail(err, LT_E_UNSUPPORTED, "isa=%s: this processor has at most %s", value,
                            lt__cpu_isa_name(lt__cpu_isa_best()));
        return LT_OK;
    }
    if (!strcmp(key, "managed"))
        return lt__fail(err, LT_E_INVALID,
                        "managed=%s: managed memory moves between a card and the host; this device's memory is the host's "
                        "already (only cuda has it)",
                        value);
    return LT_E_NOT_FOUND;
}

uint64_t lt__hostdev_scratch_bytes(const lt_device *dev, const lt_op_args *args)
{
    (void)dev;
    (void)args;
    return 0; /* scratch is host memory, grown by the device itself */
}
