/* Trace files from anybody: parsed strictly, replayed without a device. */
#include <stdlib.h>

#include "memory/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    lt_ctx *ctx;
    if (lt_ctx_create(NULL, &ctx, NULL) != LT_OK) return 0;
    static const char *const policies[] = {"lru", "lfu", "priority", "next-use", "fifo"};
    lt_replay_desc d = lt_replay_desc_default();
    d.policy = policies[size % 5];
    d.budget_bytes = size & 1 ? 100000 : 0;
    lt_replay_result r;
    lt_err err;
    lt_status st = lt__trace_replay_text(ctx, "fuzz", (const char *)data, size, &d, &r, &err);
    if (st == LT_OK) {
        if (r.bytes_in < r.optimal_bytes_in || r.hits + r.loads != r.leases) abort();
        if (!d.budget_bytes && r.allocs && r.smallest_arena < r.peak_live) abort();
    }
    if (lt_ctx_host_bytes(ctx) != 0) abort();
    lt_ctx_destroy(ctx);
    return 0;
}
