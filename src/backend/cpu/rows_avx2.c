/* rows_avx2.c - what AVX2 offers; the reference has the rest. */
#include "backend/cpu/rows_avx2.h"

static bool is_quant_linear(const lt_op_args *args) {
    return lt_dtype_get(args->src[1].dtype)->kind == LT_DTYPE_KIND_QUANT;
}

static bool is_flat(const lt_op_args *args) {
    return args->dst.ndim == 2 || args->dst.ndim == 3;
}

const lt_cpu_row lt__cpu_rows_avx2[] = {
    {LT_OP_LINEAR, is_quant_linear, lt__linear_quant_avx2, lt__linear_quant_scratch_avx2},
    {LT_OP_LINEAR, NULL, lt__linear_float_avx2, lt__linear_float_scratch_avx2},
    {LT_OP_QUANTIZE, NULL, lt__quantize_avx2, NULL},
    {LT_OP_RMS_NORM, NULL, lt__rms_norm_avx2, NULL},
    {LT_OP_ROPE, NULL, lt__rope_avx2, NULL},
    {LT_OP_ADD, NULL, lt__binary_avx2, NULL},
    {LT_OP_ADD_ROW, NULL, lt__binary_avx2, NULL},
    {LT_OP_SILU_MUL, NULL, lt__binary_avx2, NULL},
    {LT_OP_GELU_MUL, NULL, lt__binary_avx2, NULL},
    {LT_OP_SCALE, is_flat, lt__scale_avx2, NULL},
    {LT_OP_KV_STORE, lt__kv_accepts_avx2, lt__kv_store_avx2, NULL},
    {LT_OP_ATTENTION, lt__kv_accepts_avx2, lt__attention_avx2, lt__attention_scratch_avx2},
};
const size_t lt__cpu_rows_avx2_n = sizeof lt__cpu_rows_avx2 / sizeof lt__cpu_rows_avx2[0];
