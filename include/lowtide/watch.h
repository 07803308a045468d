/* watch.h - looking at every Lowtide process of this user, from outside.
 *
 *     lt_watch w[64];
 *     size_t n = lt_watch_list(w, 64);
 *     for (size_t i = 0; i < n; i++)
 *         printf("%u %s %s\n", w[i].pid, w[i].model, w[i].phase);
 *
 * A session with `publish` set writes a page of numbers to a small file of its own, ten times a second at most and
 * with no lock; what a killed process left is removed by whoever lists.
 *
 * Order      none.
 * Lifetime   values; nothing to free.
 * Threads    any.
 * Errors     none: what cannot be read is not there.
 */
#ifndef LT_WATCH_H
#define LT_WATCH_H

#include "lowtide/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LT_WATCH_MAP 96

typedef struct lt_watch {
    uint32_t pid;
    char     model[64], device[96], id[48]; /* id: lt_device_info's */
    char     phase[16];         /* "loading", "prompt", "decode", "idle" */
    uint64_t started_ns, age_ns; /* age: since the last sign of life */
    uint64_t budget_bytes, fixed_bytes, card_bytes, card_free_bytes, reserve_bytes, reserve_missed_bytes;
    uint64_t committed_bytes, peak_bytes, live_by_use[LT_USE_COUNT];
    uint64_t weight_bytes, resident_bytes, streamed_bytes;
    uint64_t h2d_bytes, d2h_bytes, disk_bytes; /* so far; rates are for the reader to make */
    uint64_t leases, hits, stall_ns;
    uint64_t prompt_tokens, decode_tokens, prompt_ns, decode_ns, now_ns; /* now: of the writer, monotonic */
    uint32_t length, ctx, budget_changes;
    uint8_t  map[LT_WATCH_MAP]; /* along a pass: of each part of the weights, the share that is resident, of 255 */
} lt_watch;

LT_API size_t lt_watch_list(lt_watch *out, size_t most); /* oldest process first */

#ifdef __cplusplus
}
#endif
#endif
