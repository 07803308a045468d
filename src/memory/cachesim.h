/* cachesim.h - a cache of items on paper: what a policy moves on a recorded order, and what
 * the best possible schedule moves.
 *
 * The optimum is Belady's rule on bytes: what is needed furthest in the future goes first, and
 * an item may be kept in part. For items of equal size (the budget counts as whole items) that
 * is MIN itself, exact. For mixed sizes the whole-item optimum is NP-hard, and this is a lower
 * bound of it: regret against it is an upper bound of the true regret. */
#ifndef LT_MEMORY_CACHESIM_H
#define LT_MEMORY_CACHESIM_H

#include "base/mem.h"
#include "lowtide/residency.h"

typedef struct lt__cachesim_item {
    uint64_t bytes;
    int32_t priority;
} lt__cachesim_item;

typedef struct lt__cachesim_step {
    uint32_t item;
    bool release; /* else a lease: the item must be there until as many releases */
} lt__cachesim_step;

typedef struct lt__cachesim_result {
    uint64_t leases, hits, loads, bytes_in, evictions;
    uint64_t unplaced; /* of the loads: what is leased leaves no room, so the item passes through */
} lt__cachesim_result;

/* Demand loading: an item comes in at its lease, and the lowest scores leave until it fits. */
LT_NODISCARD lt_status lt__cachesim_run(lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                                        const lt__cachesim_step *steps, size_t n_steps, uint64_t budget,
                                        lt_policy_fn *policy, void *user, lt__cachesim_result *out, lt_err *err);
/* loads counts leases that found less than the whole item; only bytes_in is a bound. */
LT_NODISCARD lt_status lt__cachesim_optimal(lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                                            const lt__cachesim_step *steps, size_t n_steps, uint64_t budget,
                                            lt__cachesim_result *out, lt_err *err);

#endif
