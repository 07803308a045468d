/* pool.h - device memory pool: blocks of one device's memory inside one budget.
 *
 * Reserves address space for its limit, commits memory in chunks, and hands out
 * blocks without calling the driver. Accounting is exact: live bytes plus free
 * bytes equal what is committed, at every return.
 *
 *     lt_pool_desc d = lt_pool_desc_default();
 *     d.limit_bytes  = 6ull << 30;
 *     lt_pool *pool;  lt_block b;  lt_err err;
 *     if (lt_pool_create(dev, &d, &pool, &err) != LT_OK) {
 *         puts(err.text);
 *         return 1;
 *     }
 *     if (lt_pool_alloc(pool, 1 << 20, 0, LT_USE_WEIGHT, queue, &b, &err) == LT_OK)
 *         lt_pool_free(pool, b, queue);
 *     lt_pool_destroy(pool);
 *
 * Order      alloc and free take the queue they happen on (NULL: the host, after a sync).
 *            A freed block is reused on the same queue at once, on another queue only
 *            after an event; callers never synchronise for the pool's sake. What other queues
 *            do with a block must be over, or awaited by that queue, when it is freed there.
 *            Events are recorded only once a second queue has appeared.
 * Queues     before a queue is destroyed while the pool lives on: lt_pool_forget_queue.
 *            Blocks freed on it need nothing more.
 * Lifetime   borrows the device, which must outlive it. Blocks are freed before
 *            lt_pool_destroy; it logs the names and uses of those that were not.
 * Threads    any thread, any time; one internal lock, never held in a callback.
 * Errors     LT_E_DEVICE_OOM is an ordinary answer, changes nothing, and its text says
 *            wanted, free, largest free, limit and who holds what.
 */
#ifndef LT_POOL_H
#define LT_POOL_H

#include "lowtide/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_pool lt_pool;
typedef struct lt_trace lt_trace; /* trace.h */

/* A value, not an object: copy it freely, free it once. All zero means none. */
typedef struct lt_block {
    lt_addr  addr;
    uint64_t bytes;        /* usable size, >= the size asked for */
    uint32_t slot, serial; /* private: lets the pool reject a stale or double free */
} lt_block;

/* What the memory is for: statistics, traces and error texts are split by it. */
#define LT_USE_LIST(X) \
    X(WEIGHT, "weight") X(KV, "kv") X(ACTIVATION, "activation") X(RING, "ring") \
    X(STAGING, "staging") X(OPTIMIZER, "optimizer") X(OTHER, "other")
typedef enum lt_use {
#define LT_X(name, text) LT_USE_##name,
    LT_USE_LIST(LT_X)
#undef LT_X
    LT_USE_COUNT
} lt_use;
LT_API const char *lt_use_name(lt_use use);

/* Called when `need` bytes are missing. Free something and return the bytes given
 * back, or return 0 to let the request fail. It is asked again only while it makes
 * progress, so it cannot loop. Runs on the requesting thread with no pool lock held;
 * it may free to this pool and must not allocate from it. */
typedef uint64_t lt_pool_pressure_fn(void *user, lt_pool *pool, uint64_t need);

typedef struct lt_pool_desc {
    uint32_t    struct_bytes; /* set by the default; versions the ABI */
    uint64_t    limit_bytes;  /* 0: all the device reports as free */
    uint64_t    chunk_bytes;  /* commit step, a power of two; 0: 32 MiB or the limit if less */
    bool        commit_all;   /* commit the whole limit at create: nothing grows later */
    const char *name;         /* copied; appears in logs and traces */
    lt_trace   *trace;        /* NULL: none; borrowed */
} lt_pool_desc;

typedef struct lt_pool_stats {
    uint64_t limit, committed, peak_committed;
    uint64_t live, peak_live, free_bytes, largest_free, pending; /* pending: freed, event not yet passed */
    uint64_t allocs, frees, failures, bad_frees, pressure_calls, commits, decommits;
    uint64_t waits; /* a queue was made to wait for another one's event */
    uint64_t live_by_use[LT_USE_COUNT], peak_by_use[LT_USE_COUNT];
} lt_pool_stats;

LT_API lt_pool_desc lt_pool_desc_default(void);
LT_API LT_NODISCARD lt_status
lt_pool_create(lt_device *dev, const lt_pool_desc *desc, lt_pool **out, lt_err *err);
LT_API void lt_pool_destroy(lt_pool *pool); /* NULL is fine */
LT_API lt_device *lt_pool_device(const lt_pool *pool);

/* align: power of two, 0 for the device's natural one. On failure *out is zero; zero
 * bytes succeed with the zero block. */
LT_API LT_NODISCARD lt_status
lt_pool_alloc(lt_pool *pool, uint64_t bytes, uint64_t align, lt_use use,
              lt_queue *queue, lt_block *out, lt_err *err);
/* A zero block is fine. A stale or foreign block is refused, counted and logged. */
LT_API void lt_pool_free(lt_pool *pool, lt_block block, lt_queue *queue);

/* The pool will not touch `queue` any more. Waits for nothing. */
LT_API void lt_pool_forget_queue(lt_pool *pool, lt_queue *queue);

/* Gives unused chunks back until at most `keep` bytes stay committed. Returns what is. */
LT_API uint64_t lt_pool_trim(lt_pool *pool, uint64_t keep);
/* At most one listener; NULL removes it. The residency manager installs itself. */
LT_API void lt_pool_set_pressure(lt_pool *pool, lt_pool_pressure_fn *fn, void *user);
/* Lowering below what is live is allowed: nothing is taken, growth stops. Raising
 * above the limit at create is E_INVALID: the address space was sized by it. */
LT_API LT_NODISCARD lt_status lt_pool_set_limit(lt_pool *pool, uint64_t bytes, lt_err *err);

LT_API void lt_pool_get_stats(const lt_pool *pool, lt_pool_stats *out);
/* Walks every invariant, O(blocks). Tests call it after each step. */
LT_API LT_NODISCARD lt_status lt_pool_check(const lt_pool *pool, lt_err *err);

#ifdef __cplusplus
}
#endif
#endif
