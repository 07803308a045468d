/* rows_avx2.c - what AVX2 offers; the reference has the rest. */
#include "backend/cpu/linear.h"
#include "backend/cpu/rows_avx2.h"

static bool is_quant_linear(const lt_op_args *args)
{
    return lt_dtype_get(args->src[1].dtype)->kind == LT_DTYPE_KIND_QUANT;
}

static lt_status linear_quant(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes, (void)err;
    lt__linear_quant(&lt__gemm_avx2, args, team, scratch);
    return LT_OK;
}
static size_t linear_quant_scratch(const lt_op_args *args, uint32_t threads)
{
    return lt__linear_quant_scratch(&lt__gemm_avx2, args, threads);
}

static const lt__expert_isa experts = {lt__matvec_avx2, lt__matvec_float_avx2, &lt__gemm_avx2, &lt__gemm_float_avx2};

static lt_status expert_linear(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes, (void)err;
    lt__expert_linear(&experts, args, team, scratch);
    return LT_OK;
}
static size_t expert_linear_scratch(const lt_op_args *args, uint32_t threads)
{
    return lt__expert_linear_scratch(&experts, args, threads);
}

static bool is_flat(const lt_op_args *args)
{
    return args->dst.ndim == 2 || args->dst.ndim == 3;
}

const lt_cpu_row lt__cpu_rows_avx2[] = {
    {LT_OP_LINEAR, is_quant_linear, linear_quant, linear_quant_scratch},
    {LT_OP_LINEAR, NULL, lt__linear_float_avx2, lt__linear_float_scratch_avx2},
    {LT_OP_QUANTIZE, NULL, lt__quantize_avx2, NULL},
    {LT_OP_RMS_NORM, NULL, lt__rms_norm_avx2, NULL},
    {LT_OP_ROPE, NULL, lt__rope_avx2, NULL},
    {LT_OP_ADD, NULL, lt__binary_avx2, NULL},
    {LT_OP_ADD_ROW, NULL, lt__binary_avx2, NULL},
    {LT_OP_SILU_MUL, NULL, lt__binary_avx2, NULL},
    {LT_OP_GELU_MUL, NULL, lt__binary_avx2, NULL},
    {LT_OP_SCALE, is_flat, lt__scale_avx2, NULL},
    {LT_OP_SOFTCAP, is_flat, lt__softcap_avx2, NULL},
    {LT_OP_KV_STORE, lt__kv_accepts_avx2, lt__kv_store_avx2, NULL},
    {LT_OP_TOP_K, NULL, lt__top_k_avx2, NULL},
    {LT_OP_TOP_SHARE, NULL, lt__top_share_avx2, NULL},
    {LT_OP_EXPERT_LINEAR, NULL, expert_linear, expert_linear_scratch},
    {LT_OP_EXPERT_BIAS, NULL, lt__expert_bias_avx2, NULL},
    {LT_OP_EXPERT_SUM, NULL, lt__expert_sum_avx2, NULL},
    {LT_OP_CLAMP_MUL, NULL, lt__clamp_mul_avx2, NULL},
    {LT_OP_ATTENTION, lt__kv_accepts_avx2, lt__attention_avx2, lt__attention_scratch_avx2},
};
const size_t lt__cpu_rows_avx2_n = sizeof lt__cpu_rows_avx2 / sizeof lt__cpu_rows_avx2[0];
