/* plan.h - what goes where, the peak and the speed to expect, before a byte is loaded.
 *
 *     lt_profile prof;
 *     lt_profile_get(ctx, dev, NULL, &prof, &err);       // measured once per machine, cached
 *     lt_plan_desc d = lt_plan_desc_default();
 *     d.budget_bytes = 64 << 20;
 *     lt_plan *p;
 *     if (lt_plan_create(model, dev, &prof, &d, &p, &err) == LT_E_NO_FIT)
 *         puts(err.text);                                // says how many bytes are missing
 *     lt_plan_destroy(p);
 *
 * Order      model and device first; a session is created from a plan.
 * Lifetime   borrows the model; the device only during create.
 * Threads    immutable after create.
 * Errors     E_NO_FIT with the smallest budget that would do; E_INVALID names the option.
 */
#ifndef LT_PLAN_H
#define LT_PLAN_H

#include "lowtide/device.h"
#include "lowtide/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rates of this machine and device, bytes a second unless named. */
typedef struct lt_profile {
    uint32_t version;
    char     machine[96];       /* what it was measured on; another machine measures again */
    double   read_rate;         /* file to host memory, page cache cold (direct) */
    double   cached_rate;       /* file to host memory from the page cache */
    double   link_rate;         /* host to device */
    double   mapped_rate;       /* of a product's weight read in place from host memory; 0: the device cannot, or it is link_rate */
    double   memory_rate;       /* device memory, reading, all threads */
    double   dot_rate[LT_DTYPE_COUNT];  /* weights in one-row products */
    double   gemm_rate[LT_DTYPE_COUNT]; /* multiply-adds a second in many-row products */
    double   attend_rate;       /* KV bytes a second in one-row attention */
    double   launch_ns;         /* cost of one small op */
} lt_profile;

/* path NULL: the user's cache folder. `measure` again when the file is absent, damaged or of
 * another machine; takes a few seconds. sim gets its figures from its spec. */
LT_API LT_NODISCARD lt_status
lt_profile_get(lt_ctx *ctx, lt_device *dev, const char *path, lt_profile *out, lt_err *err);

/* How a pass of one token reads weights that do not stay on the device; passes of more always stream them. */
typedef enum lt_offload {
    LT_OFFLOAD_STREAM, /* copied ahead through a ring; but experts are read in place where the device can and the host locks enough */
    LT_OFFLOAD_MAPPED, /* read in place from host memory that stays page-locked; E_INVALID where the device cannot, */
                       /* E_NO_FIT where that much cannot be locked */
    LT_OFFLOAD_COUNT
} lt_offload;

typedef struct lt_plan_desc {
    uint32_t struct_bytes;
    uint64_t budget_bytes;  /* of the device, fixed costs included; 0: what is free less reserve */
    uint64_t reserve_bytes; /* left free for others: lowers the budget where less than both is free now */
    uint64_t ram_bytes;     /* host memory the process may use; 0: 3/4 of what is available */
    uint32_t ctx;           /* positions of KV; 0: the model's context or what fits, at most 8192 */
    uint32_t ctx_least, ctx_most; /* with ctx 0: positions that will be needed and used; 0: unknown */
    uint32_t batch;         /* most tokens a pass; 0: 512 or what fits; where a long prompt streams over a link, up to 2048 */
    uint32_t rows;          /* logit rows a pass wished for, fewer when the budget is tight; 0: 1 */
    lt_dtype kv_dtype;      /* F16 (default), Q8_0, F32 */
    lt_attention attention; /* FLASH (default), EXACT, SAGE */
    lt_offload offload;     /* STREAM (default), MAPPED */
    uint32_t expect_prompt; /* prefill is predicted for it, and with batch 0 no pass is larger; 0: 512 */
} lt_plan_desc;

/* MAPPED: read in place by passes of one token, streamed by others. */
typedef enum lt_place { LT_PLACE_RESIDENT, LT_PLACE_STREAMED, LT_PLACE_MAPPED, LT_PLACE_HOST, LT_PLACE_COUNT } lt_place;
LT_API const char *lt_place_name(lt_place p); /* "resident", ... */

typedef struct lt_plan_info {
    uint64_t budget_bytes, fixed_bytes;
    uint64_t weight_bytes, resident_bytes, streamed_bytes, host_bytes; /* weights by place */
    uint64_t mapped_bytes; /* of streamed_bytes: what a pass of one token reads in place; of experts, what it may: it reads those it uses */
    uint64_t ring_bytes, activation_bytes, kv_bytes, io_bytes, scratch_bytes; /* arena areas */
    uint64_t predicted_peak_bytes, predicted_host_bytes, smallest_budget_bytes;
    double   predicted_prefill_tps, predicted_decode_tps, floor_prefill_tps, floor_decode_tps;
    uint32_t ctx, batch, rows, items, streamed_items, mapped_items;
    lt_dtype kv_dtype;
    const char *decode_bound, *prefill_bound; /* "disk", "link", "memory", "compute" */
} lt_plan_info;

typedef struct lt_plan_item { /* one tensor, or a slice of its rows; of experts' tensors rows are experts */
    const char *tensor; uint64_t row0, rows, bytes; lt_dtype dtype; lt_place place;
} lt_plan_item;

typedef struct lt_plan lt_plan;
LT_API lt_plan_desc lt_plan_desc_default(void);
LT_API LT_NODISCARD lt_status
lt_plan_create(const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc,
               lt_plan **out, lt_err *err);
LT_API void lt_plan_destroy(lt_plan *p);
LT_API const lt_plan_info *lt_plan_get_info(const lt_plan *p);
LT_API size_t lt_plan_item_count(const lt_plan *p);
LT_API lt_plan_item lt_plan_item_at(const lt_plan *p, size_t i);
LT_API size_t lt_plan_reason_count(const lt_plan *p);
LT_API const char *lt_plan_reason_at(const lt_plan *p, size_t i); /* one sentence each */

#ifdef __cplusplus
}
#endif
#endif
