/* clock.h - device time: real, real with copies slowed to a link's speed, or virtual.
 *
 * One arithmetic serves all three. A copy of a queue starts when it was issued, when the queue
 * got there and when the direction's engine is free, whichever is last, and takes
 * latency + bytes / rate. On a paced real clock the queue then sleeps until that moment has come;
 * what it oversleeps is not lost, because the next copy is counted from the moment that was due. */
#ifndef LT_CPU_CLOCK_H
#define LT_CPU_CLOCK_H

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>

typedef enum lt_copy_dir { LT_COPY_H2D, LT_COPY_D2H, LT_COPY_D2D, LT_COPY_DIR_COUNT } lt_copy_dir;

/* A copy this small travels inside the command stream of real cards and leaves the copy engine
 * alone. It keeps a pass's few input bytes from queueing behind megabytes of prefetch. */
#define LT_CLOCK_INLINE_BYTES ((uint64_t)64 << 10)

typedef struct lt_hostclock {
    bool             virt;
    uint64_t         rate[LT_COPY_D2D]; /* bytes a second; 0: as fast as it goes */
    uint64_t         latency_ns;
    uint64_t         compute_rate; /* bytes of weights a second, virtual only; 0: no time */
    uint64_t         epoch_ns;
    pthread_mutex_t  lock;
    uint64_t         free_ns[LT_COPY_D2D]; /* when the engine is free again */
    _Atomic uint64_t host_ns;              /* virtual: what the host has waited for */
    _Atomic uint64_t latest_ns;            /* virtual: the furthest queue */
} lt_hostclock;

void lt__hostclock_init(lt_hostclock *c);
void lt__hostclock_deinit(lt_hostclock *c);
uint64_t lt__hostclock_now_ns(const lt_hostclock *c); /* real: since init; virtual: the furthest queue */
bool lt__hostclock_paced(const lt_hostclock *c, lt_copy_dir dir);
uint64_t lt__hostclock_copy_ns(const lt_hostclock *c, lt_copy_dir dir, uint64_t bytes);
/* bytes * 1e9 / rate, rounded up, saturating; 0 when rate is 0. */
uint64_t lt__hostclock_span_ns(uint64_t bytes, uint64_t rate);
/* Books the engine for a copy that may start at ready_ns; returns its end. */
uint64_t lt__hostclock_book(lt_hostclock *c, lt_copy_dir dir, uint64_t bytes, uint64_t ready_ns);
/* Real clock: returns once `until_ns` has come; late is whether it had gone by already. */
void lt__hostclock_sleep(const lt_hostclock *c, uint64_t until_ns);
void lt__hostclock_raise(_Atomic uint64_t *t, uint64_t to_ns);

#endif
