#include "memory/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 100 };

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

void lt__lock_wait(lt__lock *l)
{
    for (int i = 0; i < SPINS; i++) {
        uint32_t open = 0;
        if (atomic_load_explicit(&l->state, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong_explicit(&l->state, &open, 1, memory_order_acquire,
                                                    memory_order_relaxed))
            return;
        relax();
    }
    /* Taken as 2: whoever gives it wakes one sleeper, perhaps for nothing. */
    while (atomic_exchange_explicit(&l->state, 2, memory_order_acquire) != 0)
        syscall(SYS_futex, &l->state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void lt__lock_wake(lt__lock *l) { syscall(SYS_futex, &l->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
