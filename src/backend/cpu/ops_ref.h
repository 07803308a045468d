/* ops_ref.h - the readable reference: docs/arithmetic.md in scalar C. */
#ifndef LT_CPU_OPS_REF_H
#define LT_CPU_OPS_REF_H

#include "backend/cpu/math.h"
#include "backend/cpu/ops.h"
#include "base/mem.h"

lt_cpu_fn lt__ref_linear, lt__ref_quantize, lt__ref_rms_norm, lt__ref_rope, lt__ref_kv_store,
    lt__ref_attention, lt__ref_add, lt__ref_add_row, lt__ref_silu_mul, lt__ref_gelu_mul, lt__ref_scale,
    lt__ref_softcap, lt__ref_take_rows, lt__ref_top_k, lt__ref_top_share, lt__ref_expert_linear, lt__ref_expert_bias,
    lt__ref_expert_sum, lt__ref_clamp_mul;

/* That every number of ids names one of so many experts. */
lt_status lt__ref_expert_check(const lt_op_args *args, const lt_view *ids, int64_t experts, lt_err *err);

/* Positions and page numbers of src2 and src3 against the cache and the table. */
lt_status lt__kv_check_pages(const lt_op_args *args, const lt_kv_layout *kv, const lt_view *cache, uint32_t window,
                             lt_err *err);

/* Element [i, j, 0] of a view; bytes, since strides are bytes. */
static inline char *lt__ref_row(const lt_view *v, int64_t i)
{
    return (char *)lt_cpu_ptr(v->addr) + i * v->stride[0];
}
static inline char *lt__ref_row2(const lt_view *v, int64_t i, int64_t j)
{
    return lt__ref_row(v, i) + j * v->stride[1];
}

/* S(n; x_i, y_i) of docs/arithmetic.md, n at most 256. */
static inline float lt__strided_sum(int n, const float *x, const float *y, int64_t count)
{
    float a[256] = {0};
    for (int64_t i = 0; i < count; i++)
        a[i % n] = fmaf(x[i], y[i], a[i % n]);
    return lt__halving_tree(a, n);
}

#endif
