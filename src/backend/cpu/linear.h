/* linear.h - products: one token, and many by whichever instruction set. */
#ifndef LT_CPU_LINEAR_H
#define LT_CPU_LINEAR_H

#include "backend/cpu/ops.h"

typedef struct lt__gemm {
    lt_dtype t;
    const uint8_t *w, *act;
    uint8_t *dst;
    size_t w_stride, act_stride, dst_stride;
    uint64_t rows, cols, tokens;
} lt__gemm;

typedef struct lt__gemm_isa {
    /* Rows [first, end) of the product for all tokens; scratch of its own for each thread. */
    void (*run)(const lt__gemm *g, uint64_t first, uint64_t end, void *scratch);
    size_t (*scratch)(lt_dtype t, uint64_t cols);
    /* Rows worth taking at a time, so that what is unpacked of them stays in the second-level cache. */
    uint64_t (*rows)(lt_dtype t, uint64_t cols);
} lt__gemm_isa;
extern const lt__gemm_isa lt__gemm_avx2, lt__gemm_avx512;

/* out[r] = weight row r times the one row of Q8A at act. */
void lt__matvec_avx2(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                     float *out);

/* LINEAR with a quantised weight; one token goes to matvec whatever the isa: it waits for memory. */
void lt__linear_quant(const lt__gemm_isa *isa, const lt_op_args *args, lt_team *team, void *scratch);
size_t lt__linear_quant_scratch(const lt__gemm_isa *isa, const lt_op_args *args, uint32_t threads);

/* LINEAR with an f32, f16 or bf16 weight, many tokens. */
lt_cpu_fn lt__linear_float_avx512;
size_t lt__linear_float_scratch_avx512(const lt_op_args *args, uint32_t threads);

#endif
