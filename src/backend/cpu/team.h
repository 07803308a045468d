/* team.h - a fixed team of threads for data-parallel loops: fork, barrier, join.
 *
 * The caller of lt__team_run is rank 0. A partition that depends only on rank and ranks
 * (lt__team_range) is the same at every run. One lt__team_run at a time on one team; it
 * does not nest. */
#ifndef LT_CPU_TEAM_H
#define LT_CPU_TEAM_H

#include "lowtide/base.h"

typedef struct lt_team lt_team;
typedef void lt_team_fn(void *arg, uint32_t rank, uint32_t ranks);

#define LT_TEAM_MAX 1024

/* threads counts the caller; 1 starts no thread at all. */
LT_NODISCARD lt_status lt__team_create(lt_ctx *ctx, uint32_t threads, lt_team **out, lt_err *err);
void lt__team_destroy(lt_team *team); /* NULL is fine */
uint32_t lt__team_threads(const lt_team *team);

/* Runs fn once on each rank and returns when all are done; what they wrote is visible. */
void lt__team_run(lt_team *team, lt_team_fn *fn, void *arg);
/* Inside fn only, and then by every rank. What was written before is visible after. */
void lt__team_barrier(lt_team *team, uint32_t rank);
/* Inside fn: takes the next `step` work items; returns the first of them. Counts from 0 in each run. */
uint64_t lt__team_next(lt_team *team, uint64_t step);
/* Inside fn, between two barriers, by one rank: lets lt__team_next count from 0 again. */
void lt__team_rewind(lt_team *team);

/* [*first, *end) of n items for this rank: contiguous, sizes differ by one at most, boundaries on
 * multiples of `grain` (1: any). */
static inline void lt__team_range(uint64_t n, uint64_t grain, uint32_t rank, uint32_t ranks, uint64_t *first,
                                  uint64_t *end)
{
    uint64_t grains = (n + grain - 1) / grain, each = grains / ranks, more = grains % ranks;
    uint64_t a = each * rank + (rank < more ? rank : more);
    uint64_t b = a + each + (rank < more);
    *first = a * grain < n ? a * grain : n;
    *end = b * grain < n ? b * grain : n;
}

#endif
