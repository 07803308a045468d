/* pool_impl.h - what pool.c, pool_order.c and pool_grow.c share. Lock order: pool, device, trace. */
#ifndef LT_MEMORY_POOL_IMPL_H
#define LT_MEMORY_POOL_IMPL_H

#include <pthread.h>

#include "backend/backend.h"
#include "lowtide/pool.h"
#include "memory/lock.h"
#include "memory/suballoc.h"
#include "memory/trace.h"

/* An event behind some free; recycled, and destroyed only with the pool, so that a thread
 * may wait for one with no lock held. */
typedef struct lt__mark {
    lt_event *event;
    uint32_t  seq;
    struct lt__mark *next;
} lt__mark;

typedef struct lt__pool_queue {
    lt_queue *queue; /* compared, never followed, except in calls that were given it; NULL: forgotten */
    lt__blk  *head, *tail; /* pending blocks in the order of their frees */
    lt__mark *first, *last;
    uint32_t  seq;       /* of the latest free */
    uint32_t  need_seq;  /* scratch of lt__order_wait */
    bool      needed;
} lt__pool_queue;

enum { LT__NO_OWNER = 0xffff };

typedef struct lt__pressing { pthread_t thread; struct lt__pressing *next; } lt__pressing;

struct lt_pool {
    lt__lock lock;
    lt_device *dev;
    lt_ctx    *ctx;
    char      *name;
    size_t     name_bytes;
    lt_trace  *trace;
    uint32_t   scope;
    lt__sub    sub;

    uint64_t base, range, chunk, granule;
    uint64_t limit, create_limit;
    uint8_t *cells; /* 1: the chunk is committed */
    size_t   n_cells;

    /* While one queue alone has freed blocks, order comes free: its frees are reusable on it
     * at once and no event is recorded. The second queue ends that (lt__order_enter). */
    lt_queue *lone;
    bool      lone_dirty, multi;
    lt__mark *base_mark; /* what the lone queue still held when it stopped being alone */
    lt__mark *idle_marks;
    lt__pool_queue *queues;
    size_t    n_queues, cap_queues;

    lt_pool_pressure_fn *pressure;
    void         *pressure_user;
    lt__pressing *pressing;

    uint64_t live, peak_live, committed, peak_committed, pending, leaving;
    uint64_t allocs, frees, failures, bad_frees, pressure_calls, commits, decommits, waits;
    uint64_t live_by_use[LT_USE_COUNT], peak_by_use[LT_USE_COUNT];
};

static inline void lt__pool_lock(const lt_pool *p) { lt__lock_take((lt__lock *)&p->lock); }
static inline void lt__pool_unlock(const lt_pool *p) { lt__lock_give((lt__lock *)&p->lock); }

/* pool_order.c; all with the lock held. Those that say so give it up for a while. */

/* Meets `queue` (NULL: host). *own is its number, LT__NO_OWNER while the pool has one queue
 * or for the host. May give the lock up when the host has to wait. */
lt_status lt__order_enter(lt_pool *p, lt_queue *queue, bool alloc, uint16_t *own, lt_err *err);
void lt__order_retire(lt_pool *p); /* what events say is done becomes free */
/* Takes b out of use behind what `queue` holds now. May give the lock up. */
void lt__order_pend_host(lt_pool *p, lt__blk *b, lt_queue *queue, const lt_err *why); /* waits for the queue here: slow, needs no memory */
void lt__order_pend(lt_pool *p, lt__blk *b, lt_queue *queue, uint16_t own);
lt__blk *lt__order_exact(lt_pool *p, uint16_t own, uint64_t bytes, uint64_t align);
/* From free and pending blocks; only own ones, or any, for which `queue` is made to wait. */
lt_status lt__order_run(lt_pool *p, lt_queue *queue, uint16_t own, bool any, uint64_t bytes, uint64_t align, bool high,
                        lt__blk **out, lt_err *err);
void lt__order_drain(lt_pool *p); /* host waits for all pending; gives the lock up */
lt__mark *lt__mark_take(lt_pool *p, lt_err *err);
void lt__mark_drop(lt_pool *p, lt__mark *m);
void lt__order_settle(lt_pool *p); /* host waits for what one lone queue freed; gives the lock up */
void lt__order_forget(lt_pool *p, lt_queue *queue);
void lt__order_deinit(lt_pool *p);
lt_status lt__order_check(const lt_pool *p, lt_err *err);

/* pool_grow.c; with the lock held. */
LT_NODISCARD lt_status lt__grow_for(lt_pool *p, uint64_t bytes, uint64_t align, bool high, bool *grew, lt_err *err);
LT_NODISCARD lt_status lt__grow_all(lt_pool *p, lt_err *err);
uint64_t lt__grow_trim(lt_pool *p, uint64_t keep); /* gives the lock up while it waits */

#endif
