/* rows_avx512.c - where 512 bits pay; for the rest the AVX2 rows are found next. */
#include "backend/cpu/linear.h"

static bool is_quant(const lt_op_args *args) { return lt_dtype_get(args->src[1].dtype)->kind == LT_DTYPE_KIND_QUANT; }
static bool is_float(const lt_op_args *args) { return !is_quant(args); }
/* One token of a quantised weight waits for memory, which AVX2 keeps busy. */
static bool is_quant_of_many(const lt_op_args *args) { return is_quant(args) && args->src[0].dim[0] > 1; }

static lt_status linear_quant(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes, (void)err;
    lt__linear_quant(&lt__gemm_avx512, args, team, scratch);
    return LT_OK;
}
static size_t linear_quant_scratch(const lt_op_args *args, uint32_t threads)
{
    return lt__linear_quant_scratch(&lt__gemm_avx512, args, threads);
}

static const lt__expert_isa experts = {lt__matvec_avx2, lt__matvec_float_avx512, &lt__gemm_avx512, &lt__gemm_float_avx512};

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

const lt_cpu_row lt__cpu_rows_avx512[] = {
    {LT_OP_LINEAR, is_quant_of_many, linear_quant, linear_quant_scratch},
    {LT_OP_LINEAR, is_float, lt__linear_float_avx512, lt__linear_float_scratch_avx512},
    {LT_OP_EXPERT_LINEAR, NULL, expert_linear, expert_linear_scratch},
};
const size_t lt__cpu_rows_avx512_n = sizeof lt__cpu_rows_avx512 / sizeof lt__cpu_rows_avx512[0];
