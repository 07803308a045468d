/* linear_avx2.h - the two ways to multiply quantised rows: one token, and many. */
#ifndef LT_CPU_LINEAR_AVX2_H
#define LT_CPU_LINEAR_AVX2_H

#include "backend/cpu/ops.h"

/* out[r] = weight row first + r times the one row of Q8A at act, r < rows. */
void lt__matvec_avx2(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                     float *out);

typedef struct lt__gemm {
    lt_dtype t;
    const uint8_t *w, *act;
    uint8_t *dst;
    size_t w_stride, act_stride, dst_stride;
    uint64_t rows, cols, tokens;
} lt__gemm;
/* Rows [first, end) of the product for all tokens; scratch of lt__gemm_scratch_avx2 bytes. */
void lt__gemm_avx2(const lt__gemm *g, uint64_t first, uint64_t end, void *scratch);
size_t lt__gemm_scratch_avx2(lt_dtype t, uint64_t cols);
/* Rows worth taking at a time so that their unpacked panels stay in the second-level cache. */
uint64_t lt__gemm_rows_avx2(lt_dtype t, uint64_t cols);


#endif
