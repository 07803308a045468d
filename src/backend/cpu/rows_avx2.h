/* rows_avx2.h - the AVX2 ops, a file each, gathered by rows_avx2.c. */
#ifndef LT_CPU_ROWS_AVX2_H
#define LT_CPU_ROWS_AVX2_H

#include "backend/cpu/ops.h"

lt_cpu_fn lt__linear_float_avx2, lt__quantize_avx2, lt__rms_norm_avx2, lt__rope_avx2,
    lt__binary_avx2, lt__scale_avx2, lt__softcap_avx2, lt__kv_store_avx2, lt__attention_avx2,
    lt__top_k_avx2, lt__top_share_avx2, lt__expert_bias_avx2, lt__expert_sum_avx2, lt__clamp_mul_avx2;

size_t lt__linear_float_scratch_avx2(const lt_op_args *args, uint32_t threads);
size_t lt__attention_scratch_avx2(const lt_op_args *args, uint32_t threads);
bool lt__kv_accepts_avx2(const lt_op_args *args);

/* Waking the team costs a few microseconds: an op below this many elements runs on its caller. */
#define LT_SMALL_ELEMS 8192
static inline void lt__run_small(lt_team *team, lt_team_fn *fn, void *arg, uint64_t elems)
{
    if (elems < LT_SMALL_ELEMS)
        fn(arg, 0, 1);
    else
        lt__team_run(team, fn, arg);
}

#endif
