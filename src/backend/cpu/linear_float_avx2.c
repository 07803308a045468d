/* LINEAR over f32, f16 and bf16 weights: S(256), 32 registers of accumulators.
 *
 * One token: the registers live in the first-level cache, and the row is read in its order, a line at a time.
 * Many: gemm_float.h, four rows by three tokens a tile. */
#include "backend/cpu/avx2.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/rows_avx2.h"

#define GF_LANES 8
#define GF_ROWS 4
#define GF_TOKENS 3

typedef __m256 vflt;
LT_ALWAYS vflt v_zero_f32(void) { return _mm256_setzero_ps(); }
LT_ALWAYS vflt v_load_f32(const float *p) { return _mm256_loadu_ps(p); }
LT_ALWAYS void v_store_f32(float *p, vflt v) { _mm256_storeu_ps(p, v); }
LT_ALWAYS vflt v_add_f32(vflt a, vflt b) { return _mm256_add_ps(a, b); }
LT_ALWAYS vflt v_fma(vflt a, vflt b, vflt c) { return _mm256_fmadd_ps(a, b, c); }
LT_ALWAYS vflt v_widen(lt_dtype t, const uint8_t *p)
{
    if (t == LT_DTYPE_F16)
        return _mm256_cvtph_ps(lt__load128(p));
    if (t == LT_DTYPE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(lt__load128(p)), 16));
    return _mm256_loadu_ps((const float *)(const void *)p);
}
LT_ALWAYS void v_store_sums(float *out, const vflt *a, uint64_t n) { lt__store_lanes(out, lt__lanes_tree4(a), n < 4 ? n : 4); }

#include "backend/cpu/gemm_float.h"

/* The last n of a row, n in 1..7, zeros behind. */
LT_ALWAYS __m256 widen_tail(lt_dtype t, const uint8_t *p, uint64_t n)
{
    uint8_t b[32] = {0};
    memcpy(b, p, n * (t == LT_DTYPE_F32 ? 4 : 2));
    return v_widen(t, b);
}
/* Lanes beyond n keep what they had: an fma with zero would turn -0 into +0. */
LT_ALWAYS __m256 fma_tail(__m256 w, const float *x, __m256 a, uint64_t n)
{
    const __m256i m = lt__lane_mask(n);
    return _mm256_blendv_ps(a, _mm256_fmadd_ps(w, _mm256_maskload_ps(x, m), a), _mm256_castsi256_ps(m));
}

LT_ALWAYS float dot(lt_dtype t, const uint8_t *w, const float *x, uint64_t cols)
{
    const size_t bytes = t == LT_DTYPE_F32 ? 4 : 2;
    __m256 acc[32];
    for (int k = 0; k < 32; k++)
        acc[k] = _mm256_setzero_ps();
    uint64_t i = 0;
    for (; i + 256 <= cols; i += 256)
        for (uint64_t k = 0; k < 32; k += 4) {
            for (size_t at = 0; at < 32 * bytes; at += 64)
                _mm_prefetch((const char *)w + (i + 8 * k) * bytes + at + 1024, _MM_HINT_T0);
            LT_UNROLL
            for (uint64_t n = 0; n < 4; n++) {
                const uint64_t c = i + 8 * (k + n);
                acc[k + n] = _mm256_fmadd_ps(v_widen(t, w + c * bytes), _mm256_loadu_ps(x + c), acc[k + n]);
            }
        }
    for (; i + 8 <= cols; i += 8)
        acc[i / 8 % 32] = _mm256_fmadd_ps(v_widen(t, w + i * bytes), _mm256_loadu_ps(x + i), acc[i / 8 % 32]);
    if (i < cols)
        acc[i / 8 % 32] = fma_tail(widen_tail(t, w + i * bytes, cols - i), x + i, acc[i / 8 % 32], cols - i);
    return lt__regs_tree256(acc);
}

#include "backend/cpu/matvec_float.h"

lt_status lt__linear_float_avx2(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes,
                                lt_err *err)
{
    (void)scratch_bytes, (void)err;
    if (args->src[0].dim[0] > 1) {
        gf_run(args, NULL, team, scratch);
        return LT_OK;
    }
    mf_run(args, team);
    return LT_OK;
}

size_t lt__linear_float_scratch_avx2(const lt_op_args *args, uint32_t threads)
{
    return args->src[0].dim[0] > 1 ? gf_scratch(args, threads) : 0;
}

const lt__gemm_float lt__gemm_float_avx2 = {gf_run, gf_scratch_most};

void lt__matvec_float_avx2(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                         float *out)
{
    mf_rows(t, w, row_bytes, rows, cols, (const float *)(const void *)act, out);
}
