/* rows_avx2.c - what AVX2 offers; the reference has the rest. */
#include "backend/cpu/linear_avx2.h"
#include "backend/cpu/ops.h"

static bool is_quant_linear(const lt_op_args *args) {
    return lt_dtype_get(args->src[1].dtype)->kind == LT_DTYPE_KIND_QUANT;
}

const lt_cpu_row lt__cpu_rows_avx2[] = {
    {LT_OP_LINEAR, is_quant_linear, lt__linear_quant_avx2, lt__linear_quant_scratch_avx2},
};
const size_t lt__cpu_rows_avx2_n = sizeof lt__cpu_rows_avx2 / sizeof lt__cpu_rows_avx2[0];
