/* residency.h - decides which items live on the device, and moves them.
 *
 * An item is a span of bytes with one home (file, host memory) and at most one
 * device copy. Callers never ask where an item is: they take a lease, use the
 * address it holds, and release it. Between leases the manager may evict.
 *
 *     absent --load--> loading --done--> resident --evict--> absent
 *                                        resident --lease--> pinned --release--> resident
 *
 *     lt_residency *res;  lt_item item;
 *     lt_residency_desc d = lt_residency_desc_default();
 *     d.policy = lt_policy_next_use;
 *     lt_residency_create(pool, &d, &res, &err);
 *     lt_residency_add(res, &item_desc, &item, &err);
 *     lt_residency_plan(res, order, n, true, &err);
 *     for (size_t i = 0; i < n; i++) {
 *         lt_lease l;
 *         lt_residency_lease(res, order[i], queue, &l, &err);
 *         // launch work on `queue` that reads l.addr
 *         lt_residency_release(res, l, queue);
 *     }
 *
 * Two kinds of storage. A *kept* item is loaded into the pool and stays until the
 * policy evicts it. A *streamed* item passes through the ring, one block of the pool
 * with slots in first-in first-out order, and is gone after its release; along a
 * plan the transfer thread fills the ring ahead of the leases.
 *
 * Order      copies run on the manager's own queue; a lease makes `queue` wait for the
 *            copy, a release lets later copies wait for what `queue` held by then. The
 *            host waits only for room, never for the device to go idle.
 * Lifetime   borrows pool and sources; both must outlive it. destroy needs every lease
 *            released; it waits for copies under way.
 * Threads    any thread. Sources are read on the transfer thread, with no lock held.
 * Errors     a kept item that finds no room even after evicting degrades to the ring
 *            when one exists and it fits; LT_E_DEVICE_OOM otherwise. A failed load leaves
 *            the item absent and is reported by the lease that waits for it; the next lease
 *            tries again. A prefetch that fails before its lease is logged, and the lease loads.
 *            A copy that fails on the device fails the queue that waited for it.
 *            Whatever is leased on a queue that failed may never have been filled: release it, call
 *            lt_residency_sync, and lease anew on a new queue.
 *            Room that only leases of the calling thread, or of threads that wait themselves,
 *            could give back is LT_E_DEVICE_OOM, never a wait for ever.
 */
#ifndef LT_RESIDENCY_H
#define LT_RESIDENCY_H

#include "lowtide/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_residency lt_residency;
typedef struct lt_store     lt_store; /* store.h */
typedef struct lt_item { uint32_t index, serial; } lt_item; /* handle, not a pointer */

/* Where an item's bytes come from and, if it can change on the device, go back to.
 * Exactly one of: a span of a store's file, or callbacks. write NULL: clean, evicting
 * forgets. Callbacks get host memory. */
typedef struct lt_source {
    lt_store *store;
    uint32_t  file;   /* of the store */
    uint64_t  offset; /* of the item in that file */
    lt_status (*read)(void *user, uint64_t offset, void *dst, uint64_t bytes, lt_err *err);
    lt_status (*write)(void *user, uint64_t offset, const void *src, uint64_t bytes, lt_err *err);
    void *user;
} lt_source;

typedef struct lt_item_desc {
    const char *name;     /* copied */
    uint64_t    bytes;
    lt_source   source;
    lt_use      use;
    int32_t     priority; /* larger stays longer; ties go to the policy */
    bool        streamed; /* always through the ring */
} lt_item_desc;

/* A pure function from facts to a score: lowest is evicted first. No side effects,
 * so every policy is tested by a table of inputs and orders. */
#define LT_NEXT_USE_NEVER UINT64_MAX
typedef struct lt_item_view {
    lt_item  item;
    uint64_t bytes, last_use, next_use, uses, load_cost_ns; /* uses of time: lease counts, absolute like `now` */
    uint64_t loaded; /* lease count when it was last loaded */
    int32_t  priority;
} lt_item_view;
typedef double lt_policy_fn(void *user, const lt_item_view *view, uint64_t now);

LT_API double lt_policy_lru(void *user, const lt_item_view *view, uint64_t now);
LT_API double lt_policy_lfu(void *user, const lt_item_view *view, uint64_t now);
LT_API double lt_policy_priority(void *user, const lt_item_view *view, uint64_t now);
LT_API double lt_policy_next_use(void *user, const lt_item_view *view, uint64_t now); /* Belady along the plan */
LT_API double lt_policy_fifo(void *user, const lt_item_view *view, uint64_t now);
LT_API lt_policy_fn *lt_policy_by_name(const char *name); /* "lru", ...; NULL if unknown */

typedef struct lt_residency_desc {
    uint32_t      struct_bytes;
    lt_policy_fn *policy;        /* default LRU */
    void         *policy_user;
    uint64_t      ring_bytes;    /* 0: no ring; taken from the pool at create */
    uint64_t      ahead_bytes;   /* kept items: prefetch at most this much ahead along the plan */
    uint64_t      low_water, high_water; /* of kept bytes: above high, evict in the background down to low; 0: off */
    uint64_t      staging_bytes; /* host ring for devices that are not host-visible; 0: 8 MiB */
    uint64_t      pin_bytes;     /* at most this much page-locked host memory; 0: the staging ring only */
    lt_trace     *trace;
} lt_residency_desc;

typedef enum lt_lease_kind { LT_LEASE_RESIDENT, LT_LEASE_STREAMED } lt_lease_kind;

/* addr is valid for work submitted to `queue` between lease and release. */
typedef struct lt_lease {
    lt_addr       addr;
    lt_item       item;
    lt_lease_kind kind;
    uint32_t      token;
} lt_lease;

typedef struct lt_residency_stats {
    uint64_t leases, hits, loads, streams, evictions, prefetched, prefetch_wasted, failed_loads;
    uint64_t bytes_in, bytes_out, disk_bytes, stall_ns; /* stall: a lease waited on the host */
    uint64_t pinned, resident, ring_bytes, ring_peak, items;
} lt_residency_stats;

LT_API lt_residency_desc lt_residency_desc_default(void);
LT_API LT_NODISCARD lt_status
lt_residency_create(lt_pool *pool, const lt_residency_desc *desc, lt_residency **out, lt_err *err);
LT_API void lt_residency_destroy(lt_residency *r);

LT_API LT_NODISCARD lt_status
lt_residency_add(lt_residency *r, const lt_item_desc *desc, lt_item *out, lt_err *err);
LT_API LT_NODISCARD lt_status lt_residency_remove(lt_residency *r, lt_item item, lt_err *err); /* E_BUSY while leased */

/* Says what is leased next and in which order; replaces the previous plan. `cyclic`:
 * after the last comes the first again. The manager prefetches along it and knows each
 * item's next use. A hint only: a wrong plan costs time, never a wrong result. n = 0 clears. */
LT_API LT_NODISCARD lt_status
lt_residency_plan(lt_residency *r, const lt_item *order, size_t n, bool cyclic, lt_err *err);

LT_API LT_NODISCARD lt_status
lt_residency_lease(lt_residency *r, lt_item item, lt_queue *queue, lt_lease *out, lt_err *err);
/* All or none, so that two users who each hold half cannot wait for ever. */
LT_API LT_NODISCARD lt_status
lt_residency_lease_many(lt_residency *r, const lt_item *items, size_t n, lt_queue *queue,
                        lt_lease *out, lt_err *err);
LT_API void lt_residency_release(lt_residency *r, lt_lease lease, lt_queue *queue);
/* The device copy was written by work on the lease's queue: evicting writes it back. LT_E_DEVICE_LOST
 * where that copy was lost with a failed queue: what was written to it would be lost, too. */
LT_API LT_NODISCARD lt_status lt_residency_mark_dirty(lt_residency *r, lt_lease lease, lt_err *err);
/* Starts loading without a lease. E_DEVICE_OOM when there is no room that is not held for
 * something else loaded ahead; the lease may still succeed. */
LT_API LT_NODISCARD lt_status lt_residency_prefetch(lt_residency *r, lt_item item, lt_err *err);

/* Waits until every transfer under way is over. Returns the first failure of the device's copy
 * queue since the last sync, and forgets the copies it spoiled. Call it after a queue has
 * failed: what was prefetched behind the failed work is then loaded anew. */
LT_API LT_NODISCARD lt_status lt_residency_sync(lt_residency *r, lt_err *err);
/* Bytes of ring that an item takes: whole 4096-byte blocks of the file, so that direct reads
 * need no bounce. offset is the source's, 0 for callbacks. A ring must hold every item leased
 * at once and what is to be prefetched, plus up to one largest item skipped at its end. */
LT_API uint64_t lt_residency_slot_bytes(uint64_t offset, uint64_t bytes);

/* Evicts until at most `bytes` of kept items are resident; pinned items stay. Returns what is. */
LT_API uint64_t lt_residency_shrink(lt_residency *r, uint64_t bytes);
LT_API void lt_residency_get_stats(const lt_residency *r, lt_residency_stats *out);
/* Walks every invariant: no item both pinned and evicted, bytes add up, ring order. */
LT_API LT_NODISCARD lt_status lt_residency_check(lt_residency *r, lt_err *err);

#ifdef __cplusplus
}
#endif
#endif
