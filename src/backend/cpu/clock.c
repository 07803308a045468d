#include "backend/cpu/clock.h"

#include "backend/cpu/thread.h"

#include <string.h>
#include <time.h>

/* Below this a sleep costs more than it saves. */
#define SPIN_BELOW_NS 20000

__extension__ typedef unsigned __int128 u128; /* bytes * 1e9 */

void lt__hostclock_init(lt_hostclock *c)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->epoch_ns = lt__now_ns();
}

void lt__hostclock_deinit(lt_hostclock *c)
{
    pthread_mutex_destroy(&c->lock);
}

uint64_t lt__hostclock_now_ns(const lt_hostclock *c)
{
    return c->virt ? atomic_load(&c->latest_ns) : lt__now_ns() - c->epoch_ns;
}

bool lt__hostclock_paced(const lt_hostclock *c, lt_copy_dir dir)
{
    return dir != LT_COPY_D2D && (c->virt || c->rate[dir] || c->latency_ns);
}

uint64_t lt__hostclock_span_ns(uint64_t bytes, uint64_t rate)
{
    if (!rate)
        return 0;
    uint64_t whole = bytes / rate, rest = bytes % rate, ns;
    if (!lt__mul_u64(whole, 1000000000u, &ns))
        return UINT64_MAX;
    uint64_t part = (uint64_t)(((u128)rest * 1000000000u + (rate - 1)) / rate);
    return lt__add_u64(ns, part, &ns) ? ns : UINT64_MAX;
}

uint64_t lt__hostclock_copy_ns(const lt_hostclock *c, lt_copy_dir dir, uint64_t bytes)
{
    uint64_t ns;
    if (dir == LT_COPY_D2D)
        return 0;
    return lt__add_u64(c->latency_ns, lt__hostclock_span_ns(bytes, c->rate[dir]), &ns) ? ns : UINT64_MAX;
}

uint64_t lt__hostclock_book(lt_hostclock *c, lt_copy_dir dir, uint64_t bytes, uint64_t ready_ns)
{
    uint64_t end, span = lt__hostclock_copy_ns(c, dir, bytes);
    if (dir == LT_COPY_D2D || bytes <= LT_CLOCK_INLINE_BYTES)
        return lt__add_u64(ready_ns, span, &end) ? end : UINT64_MAX;
    pthread_mutex_lock(&c->lock);
    uint64_t start = lt__max_u64(ready_ns, c->free_ns[dir]);
    if (!lt__add_u64(start, span, &end))
        end = UINT64_MAX;
    c->free_ns[dir] = end;
    pthread_mutex_unlock(&c->lock);
    return end;
}

void lt__hostclock_sleep(const lt_hostclock *c, uint64_t until_ns)
{
    uint64_t until = until_ns + c->epoch_ns, now;
    while ((now = lt__now_ns()) < until) {
        if (until - now < SPIN_BELOW_NS) {
            lt__pause();
            continue;
        }
        struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
}

void lt__hostclock_raise(_Atomic uint64_t *t, uint64_t to_ns)
{
    uint64_t v = atomic_load_explicit(t, memory_order_relaxed);
    while (v < to_ns && !atomic_compare_exchange_weak_explicit(t, &v, to_ns, memory_order_relaxed, memory_order_relaxed))
        ;
}
