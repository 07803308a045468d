#include "backend/cpu/thread.h"

#include <signal.h>

/* Reading the clock costs about 25 ns; a pause 10 to 40. */
#define PAUSES_PER_LOOK 16

uint32_t lt__wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers, uint64_t spin_ns)
{
    uint32_t v = atomic_load_explicit(word, memory_order_acquire);
    if (v != seen)
        return v;
    for (uint64_t until = spin_ns ? lt__now_ns() + spin_ns : 0; spin_ns;) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            lt__pause();
            v = atomic_load_explicit(word, memory_order_acquire);
            if (v != seen)
                return v;
        }
        if (lt__now_ns() >= until)
            break;
    }
    atomic_fetch_add_explicit(sleepers, 1, memory_order_seq_cst);
    while ((v = atomic_load_explicit(word, memory_order_seq_cst)) == seen)
        lt__futex_wait(word, seen);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_relaxed);
    return v;
}

lt_status lt__thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg, lt_err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(out, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e)
        return lt__fail_native(err, LT_E_HOST_OOM, e, "thread %s could not be started: error %d", name, e);
    pthread_setname_np(*out, name);
    return LT_OK;
}
