/* thread.h - what team and queue share: spin briefly, then sleep on a futex; start a thread.
 *
 * Sleeping follows one pattern. The sleeper announces itself (`sleepers`, sequentially
 * consistent), then lets the kernel compare the word. The waker changes the word first and looks
 * at `sleepers` afterwards. One of the two sees the other, so no wake is lost and none is paid
 * for when nobody sleeps. */
#ifndef LT_CPU_THREAD_H
#define LT_CPU_THREAD_H

#include "base/mem.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void lt__futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static inline void lt__futex_wake(_Atomic uint32_t *word, uint32_t n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static inline void lt__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns when *word is no longer `seen`: spins up to spin_ns, then sleeps. The value read is an acquire. */
uint32_t lt__wait_change(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers, uint64_t spin_ns);

/* After the word was changed with memory_order_seq_cst. */
static inline void lt__wake_sleepers(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    if (atomic_load_explicit(sleepers, memory_order_seq_cst))
        lt__futex_wake(word, INT32_MAX);
}

/* Signals stay with the threads of the program: all are blocked here. name: at most 15 characters. */
LT_NODISCARD lt_status lt__thread_start(pthread_t *out, const char *name, void *(*fn)(void *), void *arg, lt_err *err);

#endif
