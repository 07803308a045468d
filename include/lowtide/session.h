/* session.h - a model at work: tokens in, logits out, inside its plan.
 *
 *     lt_session *s;  const float *logits;
 *     lt_session_create(model, dev, plan, NULL, &s, &err);
 *     lt_session_eval(s, prompt, n, &logits, &err);            // logits of the last token
 *     int32_t id = lt_sampler_pick(sampler, logits);
 *     lt_session_eval(s, &id, 1, &logits, &err);
 *     lt_report rep;
 *     lt_session_get_report(s, &rep);
 *     lt_session_destroy(s);
 *
 * Order      create loads what the plan keeps resident; where the device gives less than the plan was made
 *            for, with a smaller plan, which the list of budget changes tells. Tokens continue the sequence;
 *            lt_session_truncate goes back to a length.
 * Lifetime   borrows model, device and plan. Logits live until the next call on the session.
 * Threads    one caller at a time; lt_session_cancel may come from any thread or a signal handler.
 * Errors     E_NO_FIT when the sequence would outgrow the plan's context; after E_CANCELED and
 *            device errors the session's length is what was finished before.
 */
#ifndef LT_SESSION_H
#define LT_SESSION_H

#include "lowtide/plan.h"
#include "lowtide/residency.h"
#include "lowtide/share.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_session lt_session;
typedef struct lt_sampler lt_sampler;

/* done/total in bytes while loading, in tokens while reading a prompt. */
typedef void lt_progress_fn(void *user, const char *what, uint64_t done, uint64_t total);

typedef struct lt_session_desc {
    uint32_t        struct_bytes;
    lt_progress_fn *progress;
    void           *progress_user;
    lt_trace       *trace;
    bool            check_finite; /* after every op; names the layer whose output is not finite */
    bool            give_way;     /* re-plan between passes so that reserve_bytes of the device stay free for others */
    uint64_t        reserve_bytes;
    bool            publish;      /* be seen by lt_watch_list, under this label: copied; NULL: the model's name */
    const char     *label;
    lt_share       *share;        /* others who ask are given way too; implies looking, also with no reserve */
    uint64_t        want_bytes;   /* grow to this when others leave; 0: the budget the plan was asked for */
} lt_session_desc;

LT_API lt_session_desc lt_session_desc_default(void);
LT_API LT_NODISCARD lt_status
lt_session_create(const lt_model *m, lt_device *dev, const lt_plan *plan, const lt_session_desc *desc,
                  lt_session **out, lt_err *err);
LT_API void lt_session_destroy(lt_session *s);

/* n tokens, in passes of at most the plan's batch. *logits: [vocab] of the last token. */
LT_API LT_NODISCARD lt_status
lt_session_eval(lt_session *s, const int32_t *ids, size_t n, const float **logits, lt_err *err);
/* Logits of every token, given row by row in order. */
typedef lt_status lt_logits_fn(void *user, size_t index, const float *logits, lt_err *err);
LT_API LT_NODISCARD lt_status
lt_session_score(lt_session *s, const int32_t *ids, size_t n, lt_logits_fn *fn, void *user, lt_err *err);

/* The budget for the coming passes, with a plan of its own that keeps the context; the sequence goes on and
 * its bits are the same. KV waits in host memory while the arena is made anew; weights are read again.
 * With give_way it is also the most to grow back to. 0: the budget of the plan given at create.
 *   Order    between calls; logits given before are gone.
 *   Threads  as for eval.
 *   Errors   E_NO_FIT names the bytes that are missing, nothing changed; E_DEVICE_OOM: the device did not
 *            give them, the plan before is at work again, or the smallest one, or (the text says so) none:
 *            then the next call of eval or score tries again and nothing of the sequence is lost. */
LT_API LT_NODISCARD lt_status lt_session_rebudget(lt_session *s, uint64_t bytes, lt_err *err);
/* What eval and score do before a pass about others on the device, without a pass: for a session that waits for
 * somebody, a few times a second. Logits given before are gone. Errors as for rebudget. */
LT_API LT_NODISCARD lt_status lt_session_look(lt_session *s, lt_err *err);
typedef struct lt_budget_change {
    uint32_t    at_token;     /* length of the sequence */
    uint64_t    from, to, missed_bytes; /* missed: of the reserve */
    uint64_t    free_bytes;   /* of the device, seen before */
    const char *why;          /* "pressure", "relief", "asked" (rebudget), "another Lowtide asked", "refused" */
    double      seconds;      /* what the change took */
    double      decode_tps;   /* of passes since the change before, 0: none */
} lt_budget_change;
LT_API size_t lt_session_budget_change_count(const lt_session *s);
LT_API lt_budget_change lt_session_budget_change_at(const lt_session *s, size_t i);
LT_API uint32_t lt_session_length(const lt_session *s);
LT_API LT_NODISCARD lt_status lt_session_truncate(lt_session *s, uint32_t length, lt_err *err);
LT_API void lt_session_cancel(lt_session *s);
/* Pool and residency invariants. */
LT_API LT_NODISCARD lt_status lt_session_check(lt_session *s, lt_err *err);

typedef struct lt_phase { uint64_t tokens; double seconds, tps, floor_tps; } lt_phase;
typedef struct lt_report {
    uint64_t budget_bytes, fixed_bytes, peak_bytes, host_peak_bytes; /* budget: the largest so far */
    uint64_t budget_now_bytes, reserve_missed_bytes; /* missed: the smallest plan still leaves less than the reserve */
    uint64_t host_swapped_bytes; /* of this process, on swap now: decode waits for it */
    uint64_t h2d_bytes, d2h_bytes, disk_bytes, mapped_bytes, resident_bytes, streamed_loads; /* mapped: read in place, in no other; of experts the share that tokens use */
    uint64_t h2d_after_first; /* bytes copied in after the first pass, activations and inputs not counted */
    double   stall_seconds, load_seconds, budget_seconds; /* budget: spent on changes of it, in no phase */
    lt_phase prefill, decode, since_change; /* since_change: decode after the last change of budget */
    lt_pool_stats pool;
    lt_residency_stats residency;
    lt_device_stats device;
} lt_report;
LT_API void lt_session_get_report(const lt_session *s, lt_report *out);

typedef struct lt_sampler_desc {
    uint32_t struct_bytes;
    float    temperature;     /* 0: greedy, the lowest id among equals */
    uint32_t top_k;           /* 0: off */
    float    top_p, min_p;    /* 1 and 0: off */
    float    repeat_penalty;  /* 1: off; applied to the last repeat_last tokens */
    uint32_t repeat_last;
    uint64_t seed;
} lt_sampler_desc;
LT_API lt_sampler_desc lt_sampler_desc_default(void); /* temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 */
LT_API LT_NODISCARD lt_status
lt_sampler_create(lt_ctx *ctx, const lt_sampler_desc *desc, uint32_t vocab, lt_sampler **out, lt_err *err);
LT_API void lt_sampler_destroy(lt_sampler *s);
LT_API int32_t lt_sampler_pick(lt_sampler *s, const float *logits);
LT_API void lt_sampler_accept(lt_sampler *s, int32_t id); /* prompt tokens too, for the penalty */

#ifdef __cplusplus
}
#endif
#endif
