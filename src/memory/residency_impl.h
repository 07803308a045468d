/* residency_impl.h - what the files of the residency manager share.
 *
 * One lock. Lock order: residency, pool, device, trace. It is recursive because our own
 * requests to the pool come back through the pressure callback on the same thread. The
 * transfer thread alone feeds the copy queues. Events are waited for with the lock released. */
#ifndef LT_MEMORY_RESIDENCY_IMPL_H
#define LT_MEMORY_RESIDENCY_IMPL_H

#include <pthread.h>

#include "backend/backend.h"
#include "lowtide/residency.h"
#include "memory/hosttier.h"
#include "memory/pins.h"
#include "memory/ring.h"
#include "memory/store_window.h"
#include "memory/timeline.h"
#include "memory/trace.h"

#define LT__NO_ITEM UINT32_MAX
enum { LT__PIECES = 16 };

typedef enum res_state {
    RES_QUEUED,  /* waits for the transfer thread */
    RES_MOVING,  /* the transfer thread has it */
    RES_READY,   /* bytes are there, or `ready` says when */
    RES_FAILED,  /* status says why; owned by the leases that wait for it, or a dead slot */
    RES_WRITING  /* dirty, being written back */
} res_state;

typedef struct res_use { lt_queue *queue; lt_event *ev; } res_use;

/* A device copy of an item, in the ring or in a block of the pool. */
typedef struct res_copy {
    lt__ring_slot slot; /* first */
    bool      in_ring;
    uint32_t  item;     /* LT__NO_ITEM: detached */
    uint64_t  bytes;    /* of the item */
    res_state state;
    lt_addr   addr;
    lt_block  block;    /* kept */
    lt_event *ready;    /* NULL: nothing to wait for */
    res_use  *uses;     /* the last release on each queue */
    size_t    uses_len, uses_cap;
    lt_event **deps;    /* what the transfer waits for: releases of earlier slots */
    size_t    deps_len, deps_cap;
    uint32_t  leases;
    uint64_t  pending;  /* planned leases this copy is held for */
    bool      leased_once, prefetched, evicting, dirty, write_failed;
    bool      lost;     /* failed with its queue, not by itself: a lease may simply load again */
    bool      cut;      /* the transfer thread made its last piece */
    uint32_t  pieces;   /* in flight */
    uint32_t  in_serial; /* the copy queue that has its first piece */
    uint64_t  begun_ns;
    lt_status status;
    lt_err    err;
    struct res_copy *next; /* job list or free list */
} res_copy;

typedef struct res_item {
    char     *name;
    size_t    name_bytes;
    uint64_t  bytes;
    lt_source source;
    lt_use    use;
    int32_t   priority;
    bool      streamed, live;
    uint32_t  serial, next_free;
    res_copy *copy;
    lt_block  room; /* of a load ahead that failed: kept for the next, so that nobody takes it in pieces */
    uint64_t  last_use, uses, loaded, load_cost_ns; /* times count leases */
    size_t    at, at_len; /* its positions in the plan: plan.at[at .. at + at_len) */
} res_item;

typedef struct res_lease {
    res_copy *copy; /* NULL: free */
    lt_event *ev;   /* reserved for the release */
    pthread_t owner;
    uint32_t  serial, next_free;
} res_lease;

typedef struct res_plan {
    uint32_t *order;
    size_t    n;
    bool      cyclic;
    size_t   *at;      /* positions grouped by item, increasing */
    uint64_t  cursor;  /* absolute: position + rounds * n */
    uint64_t  ring_pos, kept_pos; /* prefetched up to here */
} res_plan;

typedef struct res_window { lt_store *store; bool cached; lt__window *w; } res_window;
typedef struct res_waiter { pthread_t thread; struct res_waiter *next; } res_waiter;

typedef struct res_piece {
    res_copy *copy;
    uint64_t  off, bytes;
    int       seg;    /* of the staging ring; -1: straight to the device copy */
    uint64_t  begun_ns;
    bool      fetched; /* through a window; else a callback's turn */
    lt__window *w;
    lt__fetch fetch;
} res_piece;

typedef struct res_jobs { res_copy *first, *last; } res_jobs;

struct lt_residency {
    pthread_mutex_t lock;
    pthread_cond_t  work, moved; /* for the transfer thread; for those who wait for it or for room */
    lt_pool   *pool;
    lt_device *dev;
    lt_ctx    *ctx;
    lt_trace  *trace;
    uint32_t   scope;
    lt_residency_desc desc;
    bool       host_visible, virtual_clock;

    res_item  *items;
    size_t     items_cap;
    uint32_t   items_len, items_free;
    res_lease *leases;
    size_t     leases_cap;
    uint32_t   leases_len, leases_free, leases_held;
    res_plan   plan;
    uint64_t   clock; /* leases so far */

    lt__ring   ring;
    lt_block   ring_block;
    lt_event **carry; /* releases of popped slots, for the next slot to wait for */
    size_t     carry_len, carry_cap;

    lt_event **spare;
    size_t     spare_len, spare_cap;
    res_copy  *copies_free;
    size_t     copies_live;

    res_waiter *waiters;
    uint32_t   ring_waiting; /* leases that wait for room in the ring: no prefetch may take it */
    bool       own_alloc, many_busy, trimming, stop, thread_started;

    /* Transfer thread; the two lists under the lock, the rest its own. */
    pthread_t  thread;
    res_jobs   urgent, normal;
    uint64_t   moving;     /* jobs not finished, queued or under way */
    lt_queue  *in, *out;
    uint32_t   in_serial; /* of `in`: a failed queue is replaced */
    lt__staging staging;
    bool       staging_made;
    uint64_t   pin_left;
    lt__track  track; /* of `in` */
    lt__pins   own_pins, *pins; /* own_pins, or lent */
    res_window *windows;
    size_t     windows_len, windows_cap;
    res_piece  pieces[LT__PIECES];
    uint32_t   piece_first, piece_len;
    res_copy  *cur;
    res_item   cur_item; /* as it was when the job began: the array may move */
    uint64_t   cur_off;
    void      *wb_buf;
    size_t     wb_bytes;
    lt_status  lost_status; /* first failure of the copy queue since the last sync */
    lt_err     lost_err;

    lt_residency_stats stats;
};

static inline void res_lock(lt_residency *r) { pthread_mutex_lock(&r->lock); }
static inline void res_unlock(lt_residency *r) { pthread_mutex_unlock(&r->lock); }
static inline void res_trace(lt_residency *r, lt__trace_action a, uint64_t object, uint64_t bytes,
                             uint64_t aux)
{
    lt__trace_record(r->trace, 0, a, object, bytes, aux);
}

/* residency_copy.c: copies and events. Lock held. */
res_copy *lt__res_copy_new(lt_residency *r, uint32_t item, lt_err *err);
void lt__res_copy_free(lt_residency *r, res_copy *c);
lt_event *lt__res_event_take(lt_residency *r, lt_err *err);
void lt__res_event_give(lt_residency *r, lt_event *ev);
/* Where the bytes of a store's item lie inside of a slot, so that direct reads need no bounce. */
uint64_t lt__res_shift(const res_item *it);
uint64_t lt__res_slot_bytes(const res_item *it); /* UINT64_MAX on overflow */
void lt__res_push(lt_residency *r, res_copy *c, bool urgent);
/* Takes the copy from its item and gives its memory back; its transfer is over, its uses are waited
 * for by the next slot (ring) or were waited for (kept). */
void lt__res_discard(lt_residency *r, res_copy *c);

/* residency_ring.c. Lock held. */
bool lt__res_ring_try(lt_residency *r, uint32_t item, res_copy **out, lt_status *st, lt_err *err);
void lt__res_ring_forget(lt_residency *r); /* no prefetched slot is held for the plan any longer */
void lt__res_ring_restart(lt_residency *r); /* pops all that is idle; an empty ring begins at 0 */
void lt__res_pump(lt_residency *r);
void lt__res_plan_lease(lt_residency *r, uint32_t item);
uint64_t lt__res_next_use(const lt_residency *r, const res_item *it);

/* residency_evict.c. Lock held; given up meanwhile when *gave_up comes back true. */
uint64_t lt__res_drop_rooms(lt_residency *r); /* bytes given back */
res_copy *lt__res_victim(lt_residency *r, bool demand);
bool lt__res_victim_before(lt_residency *r, const res_copy *victim, const res_item *than);
bool lt__res_copy_idle(const res_copy *c); /* all uses have passed */
bool lt__res_evict(lt_residency *r,
                   res_copy *c); /* false: could not be written back, or must not wait here */
void lt__res_trim(lt_residency *r);
uint64_t lt__res_pressure(void *user, lt_pool *pool, uint64_t need);

/* residency_move.c. */
void *lt__res_thread(void *arg);
lt_status lt__res_write_back(lt_residency *r, res_copy *c, lt_err *err); /* transfer thread, lock not held */

#endif
