/* lock.h - a lock for sections of some tens of nanoseconds: spins a little, then sleeps.
 *
 * Taken and given inline, about a third of a pthread mutex's instructions; an allocation is
 * short enough for that to show. All zero is an open lock; nothing to destroy. */
#ifndef LT_MEMORY_LOCK_H
#define LT_MEMORY_LOCK_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct lt__lock {
    _Atomic uint32_t state; /* 0: open, 1: taken, 2: taken and somebody may sleep */
} lt__lock;

void lt__lock_wait(lt__lock *l);
void lt__lock_wake(lt__lock *l);

static inline void lt__lock_take(lt__lock *l)
{
    uint32_t open = 0;
    /* Acquire pairs with the release of the last owner's lt__lock_give. */
    if (!atomic_compare_exchange_strong_explicit(&l->state, &open, 1, memory_order_acquire, memory_order_relaxed))
        lt__lock_wait(l);
}

static inline void lt__lock_give(lt__lock *l)
{
    if (atomic_exchange_explicit(&l->state, 0, memory_order_release) == 2) lt__lock_wake(l);
}

#endif
