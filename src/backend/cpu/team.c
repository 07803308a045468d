#include "backend/cpu/team.h"

#include "backend/cpu/thread.h"
#include "base/host.h"

#include <stdio.h>

/* A launch follows the last within a few microseconds while a pass runs; a thread that slept
 * costs the next launch a wake-up of 5 to 50 us. Longer gaps are waits for a copy or for the
 * user, where a spinning thread would take the core from the one that is awaited. */
#define SPIN_NS 30000
/* More threads than cores: the awaited thread may need this very core. */
#define SPIN_CROWDED_NS 1000

#define LINE 64

struct lt_team {
    lt_ctx *ctx;
    uint32_t threads, started;
    uint64_t spin_ns;
    /* Written by the caller, polled by the others: one line to fetch for a fork. */
    _Alignas(LINE) lt_team_fn *fn; /* NULL: leave */
    void *arg;
    _Atomic uint32_t run;
    _Atomic uint32_t run_sleepers;
    _Alignas(LINE) _Atomic uint32_t busy; /* ranks other than 0 that still run */
    _Atomic uint32_t busy_sleepers;
    _Alignas(LINE) _Atomic uint32_t arrived;
    _Alignas(LINE) _Atomic uint32_t phase;
    _Atomic uint32_t phase_sleepers;
    _Alignas(LINE) _Atomic uint64_t next;
    _Alignas(LINE) void *block; /* what lt__alloc gave */
    size_t block_bytes;
    struct member {
        lt_team *team;
        pthread_t thread;
        uint32_t rank;
    } member[];
};

static void *member_main(void *p)
{
    struct member *m = p;
    lt_team *t = m->team;
    uint32_t seen = 0;
    for (;;) {
        seen = lt__wait_change(&t->run, seen, &t->run_sleepers, t->spin_ns);
        lt_team_fn *fn = t->fn;
        if (!fn)
            return NULL;
        fn(t->arg, m->rank, t->threads);
        if (atomic_fetch_sub_explicit(&t->busy, 1, memory_order_seq_cst) == 1)
            lt__wake_sleepers(&t->busy, &t->busy_sleepers);
    }
}

static void start_run(lt_team *t, lt_team_fn *fn, void *arg)
{
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->busy, t->threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->run, 1, memory_order_seq_cst);
    lt__wake_sleepers(&t->run, &t->run_sleepers);
}

lt_status lt__team_create(lt_ctx *ctx, uint32_t threads, lt_team **out, lt_err *err)
{
    if (threads < 1 || threads > LT_TEAM_MAX)
        return lt__fail(err, LT_E_INVALID, "a team of %u threads; expected 1 to %u", threads, LT_TEAM_MAX);
    size_t bytes = sizeof(lt_team) + threads * sizeof(struct member) + LINE;
    char *block = lt__zalloc(ctx, bytes);
    if (!block)
        return lt__fail_oom(err, bytes, "thread team");
    lt_team *t = (lt_team *)lt__round_up((uintptr_t)block, LINE);
    t->block = block;
    t->block_bytes = bytes;
    t->ctx = ctx;
    t->threads = threads;
    lt__host_limits limits;
    lt__host_limits_get(&limits);
    t->spin_ns = threads <= limits.cores ? SPIN_NS : SPIN_CROWDED_NS;
    for (uint32_t i = 1; i < threads; i++) {
        char name[16];
        snprintf(name, sizeof name, "lt-team-%u", i);
        t->member[i].team = t;
        t->member[i].rank = i;
        lt_status s = lt__thread_start(&t->member[i].thread, name, member_main, &t->member[i], err);
        if (s != LT_OK) {
            lt__team_destroy(t);
            return s;
        }
        t->started++;
    }
    *out = t;
    return LT_OK;
}

void lt__team_destroy(lt_team *t)
{
    if (!t)
        return;
    start_run(t, NULL, NULL);
    for (uint32_t i = 1; i <= t->started; i++)
        pthread_join(t->member[i].thread, NULL);
    lt__free(t->ctx, t->block, t->block_bytes);
}

uint32_t lt__team_threads(const lt_team *t)
{
    return t->threads;
}

void lt__team_run(lt_team *t, lt_team_fn *fn, void *arg)
{
    if (t->threads == 1) {
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        fn(arg, 0, 1);
        return;
    }
    start_run(t, fn, arg);
    fn(arg, 0, t->threads);
    for (uint32_t busy; (busy = atomic_load_explicit(&t->busy, memory_order_acquire));)
        lt__wait_change(&t->busy, busy, &t->busy_sleepers, t->spin_ns);
}

void lt__team_barrier(lt_team *t, uint32_t rank)
{
    (void)rank;
    if (t->threads == 1)
        return;
    uint32_t phase = atomic_load_explicit(&t->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == t->threads) {
        atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&t->phase, 1, memory_order_seq_cst);
        lt__wake_sleepers(&t->phase, &t->phase_sleepers);
    } else {
        lt__wait_change(&t->phase, phase, &t->phase_sleepers, t->spin_ns);
    }
}

uint64_t lt__team_next(lt_team *t, uint64_t step)
{
    return atomic_fetch_add_explicit(&t->next, step, memory_order_relaxed);
}

void lt__team_rewind(lt_team *t)
{
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
}
