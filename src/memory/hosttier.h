/* hosttier.h - host memory between files and the device: how much, pinned or not. */
#ifndef LT_MEMORY_HOSTTIER_H
#define LT_MEMORY_HOSTTIER_H

#include "lowtide/device.h"

/* Where a failure has been answered already. */
static inline void lt__ignore(lt_status s) { (void)s; }

/* min(cgroup limit, RAM) less a reserve, and no more than what is available now. Read anew
 * at each call: a container's limit changes at run time. */
uint64_t lt__host_budget(void);
/* Bytes that may be page-locked: a share of the memory this process may use and, where the device's
 * page-locking counts against it, RLIMIT_MEMLOCK. The budget: of `asked`. */
uint64_t lt__pin_limit(const lt_device_info *info);
uint64_t lt__pin_budget(const lt_device *dev, uint64_t asked);

/* A ring of equal segments of host memory, each busy until its event has passed. */
typedef struct lt__staging {
    lt_ctx    *ctx;
    lt_device *dev;
    void      *memory; /* as allocated */
    size_t     memory_bytes;
    char      *base;   /* block-aligned */
    uint64_t   seg_bytes;
    uint32_t   segs, next;
    bool       pinned;
    struct lt__segment { lt_event *ev; bool taken, flying; } *seg;
} lt__staging;

/* `bytes` in all; pinned when *pin_left allows it, which is then lowered. A refusal to pin
 * is logged once and costs speed only. */
LT_NODISCARD lt_status lt__staging_init(lt__staging *st, lt_ctx *ctx, lt_device *dev, uint64_t bytes,
                                        uint64_t *pin_left, lt_err *err);
void lt__staging_deinit(lt__staging *st); /* the copies of all segments must have run */
/* Index of the next segment in turn, once it is free; -1 when it is not and `wait` is false or it is
 * still being filled. A copy that failed is the queue's to report, not the ring's. */
int lt__staging_take(lt__staging *st, bool wait);
char *lt__staging_at(const lt__staging *st, int i);
/* What q holds so far is what the segment waits for. */
LT_NODISCARD lt_status lt__staging_fly(lt__staging *st, int i, lt_queue *q, lt_err *err);
void lt__staging_give(lt__staging *st, int i); /* nothing was enqueued */

#endif
