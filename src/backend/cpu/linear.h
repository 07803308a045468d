/* linear.h - products: one token, and many by whichever instruction set. */
#ifndef LT_CPU_LINEAR_H
#define LT_CPU_LINEAR_H

#include "backend/cpu/ops.h"

/* A row of activations and where its product goes. */
typedef struct lt__pair {
    const uint8_t *act;
    uint8_t *dst;
} lt__pair;

typedef struct lt__gemm {
    lt_dtype t;
    const uint8_t *w, *act;
    uint8_t *dst;
    const lt__pair *pairs; /* of the tokens, in place of act and dst; NULL: those, by their strides */
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

/* out[r] = weight row r times the one row at act, Q8A or f32 as LINEAR takes for the weight. */
typedef void lt__matvec_fn(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                           float *out);
lt__matvec_fn lt__matvec_avx2, lt__matvec_float_avx2, lt__matvec_float_avx512;
#define LT_MATVEC_BYTES ((size_t)32 << 10) /* of weights taken at a time by a thread */

/* Whole registers of rows, of 8 or of 16. */
static inline uint64_t lt__up16(uint64_t x) { return (x + 15) & ~(uint64_t)15; }

/* LINEAR with a quantised weight; one token goes to matvec whatever the isa: it waits for memory. */
void lt__linear_quant(const lt__gemm_isa *isa, const lt_op_args *args, lt_team *team, void *scratch);
size_t lt__linear_quant_scratch(const lt__gemm_isa *isa, const lt_op_args *args, uint32_t threads);

/* LINEAR with an f32, f16 or bf16 weight, many tokens. */
lt_cpu_fn lt__linear_float_avx512;
size_t lt__linear_float_scratch_avx512(const lt_op_args *args, uint32_t threads);

/* The same for rows that lie anywhere: src[0] and dst of args give only their number, 2 and more. */
typedef struct lt__gemm_float {
    void (*run)(const lt_op_args *args, const lt__pair *pairs, lt_team *team, void *scratch);
    size_t (*scratch)(const lt_op_args *args, uint32_t threads); /* that is enough for fewer rows as well */
} lt__gemm_float;
extern const lt__gemm_float lt__gemm_float_avx2, lt__gemm_float_avx512;

/* EXPERT_LINEAR by one instruction set. */
typedef struct lt__expert_isa {
    lt__matvec_fn *matvec_quant, *matvec_float;
    const lt__gemm_isa *quant;
    const lt__gemm_float *real;
} lt__expert_isa;
void lt__expert_linear(const lt__expert_isa *isa, const lt_op_args *args, lt_team *team, void *scratch);
size_t lt__expert_linear_scratch(const lt__expert_isa *isa, const lt_op_args *args, uint32_t threads);

#endif
