/* trace.h - memory events, recorded so that they can be replayed.
 *
 *     lt_trace *t;
 *     lt_trace_create(ctx, "run.trace", &t, &err);
 *     pool_desc.trace = t;
 *     // pools and residency managers made from pool_desc and the like write to it
 *     lt_trace_close(t, &err);   // run.trace appears now, whole
 *
 * Order      records have increasing time per thread.
 * Lifetime   pools and residency managers borrow it; close it after them.
 * Threads    any thread.
 * Errors     a write that fails is remembered and returned by close; nothing else stops.
 *
 * The file is CSV: a header line `lowtide-trace 1`, a line of column names, then
 * time_ns,thread,queue,action,object,bytes,aux  with action one of alloc free commit
 * decommit add remove lease release load evict stream prefetch stall step plan budget.
 *
 * A path that ends in .json makes a timeline instead, an array of events for chrome://tracing or Perfetto: what each queue
 * ran and when, copies and reads with their bytes, waits, evictions, memory by use, changes of budget. It cannot be replayed.
 */
#ifndef LT_TRACE_H
#define LT_TRACE_H

#include "lowtide/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

LT_API LT_NODISCARD lt_status
lt_trace_create(lt_ctx *ctx, const char *path, lt_trace **out, lt_err *err);
/* Renames the temporary file to its path. NULL is fine. */
LT_API LT_NODISCARD lt_status lt_trace_close(lt_trace *t, lt_err *err);

typedef struct lt_replay_desc {
    uint32_t    struct_bytes;
    uint64_t    budget_bytes; /* 0: smallest that completes is searched for the pool's events */
    const char *policy;       /* "lru", "lfu", "priority", "next-use", "fifo" */
} lt_replay_desc;

typedef struct lt_replay_result {
    uint64_t events, allocs, failures;
    uint64_t peak_live, smallest_arena;  /* of the pool's events */
    uint64_t leases, hits, loads, bytes_in, evictions;
    uint64_t optimal_loads, optimal_bytes_in; /* Belady's MIN on the same order (equal sizes: exact) */
    double   regret; /* bytes_in / optimal_bytes_in - 1 */
} lt_replay_result;

LT_API lt_replay_desc lt_replay_desc_default(void);
/* Runs a trace without a device: the pool's events against the pool's own allocator on an
 * arena of budget_bytes (several pools share it), the leases against a cache of budget_bytes
 * (0: all items fit) under the policy. Mixed sizes: optimal_bytes_in is a lower bound, because
 * it may keep items in part; regret is then an upper bound. */
LT_API LT_NODISCARD lt_status
lt_trace_replay(lt_ctx *ctx, const char *path, const lt_replay_desc *desc,
                lt_replay_result *out, lt_err *err);

#ifdef __cplusplus
}
#endif
#endif
