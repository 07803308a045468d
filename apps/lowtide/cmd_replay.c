/* cmd_replay.c - runs a memory trace again on a simulated device. */
#include <inttypes.h>

#include "app.h"

int cmd_replay(const opts *o)
{
    app a;
    lt_replay_result r;
    lt_replay_desc d = lt_replay_desc_default();
    d.budget_bytes = o->v[OPT_budget].u;
    d.policy = o->v[OPT_policy].set ? o->v[OPT_policy].s : "lru";
    lt_status s = app_open(&a, o);
    if (s == LT_OK)
        s = lt_trace_replay(a.ctx, o->arg, &d, &r, &a.err);
    if (s != LT_OK) {
        int code = app_fail(&a);
        app_close(&a);
        return code;
    }
    double ratio = r.peak_live ? (double)r.smallest_arena / (double)r.peak_live : 0;
    if (o->v[OPT_json].set) {
        app_print_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "policy",
                                 d.policy, "budget_bytes", (json_int_t)d.budget_bytes, "events", (json_int_t)r.events, "allocs",
                                 (json_int_t)r.allocs, "failures", (json_int_t)r.failures, "peak_live_bytes",
                                 (json_int_t)r.peak_live, "smallest_arena_bytes", (json_int_t)r.smallest_arena, "arena_ratio",
                                 ratio, "leases", (json_int_t)r.leases, "hits", (json_int_t)r.hits, "loads", (json_int_t)r.loads,
                                 "evictions", (json_int_t)r.evictions, "bytes_in", (json_int_t)r.bytes_in, "optimal_loads",
                                 (json_int_t)r.optimal_loads, "optimal_bytes_in", (json_int_t)r.optimal_bytes_in, "regret",
                                 r.regret));
    } else {
        char b[4][24];
        printf("pool       %" PRIu64 " events, %" PRIu64 " allocations, %" PRIu64 " failed; peak live %s, smallest arena %s (%.4fx)\n",
               r.events, r.allocs, r.failures, app_bytes(r.peak_live, b[0]), app_bytes(r.smallest_arena, b[1]), ratio);
        printf("residency  policy %s: %" PRIu64 " leases, %" PRIu64 " hits, %" PRIu64 " loads, %" PRIu64 " evictions, %s in; optimum %" PRIu64
               " loads, %s in; regret %.4f\n",
               d.policy, r.leases, r.hits, r.loads, r.evictions, app_bytes(r.bytes_in, b[2]), r.optimal_loads,
               app_bytes(r.optimal_bytes_in, b[3]), r.regret);
    }
    app_close(&a);
    return 0;
}
