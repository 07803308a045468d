/* LINEAR over f32, f16 and bf16 weights: four rows by five tokens a tile of 512-bit sums; one token, whose 256 sums are
 * sixteen registers. */
#include "backend/cpu/avx2.h"
#include "backend/cpu/linear.h"

#define GF_LANES 16
#define GF_ROWS 4
#define GF_TOKENS 5

typedef __m512 vflt;
LT_ALWAYS vflt v_zero_f32(void) { return _mm512_setzero_ps(); }
LT_ALWAYS vflt v_load_f32(const float *p) { return _mm512_loadu_ps(p); }
LT_ALWAYS void v_store_f32(float *p, vflt v) { _mm512_storeu_ps(p, v); }
LT_ALWAYS vflt v_add_f32(vflt a, vflt b) { return _mm512_add_ps(a, b); }
LT_ALWAYS vflt v_fma(vflt a, vflt b, vflt c) { return _mm512_fmadd_ps(a, b, c); }
LT_ALWAYS vflt v_widen(lt_dtype t, const uint8_t *p)
{
    if (t == LT_DTYPE_F16)
        return _mm512_cvtph_ps(lt__load256(p));
    if (t == LT_DTYPE_BF16)
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(lt__load256(p)), 16));
    return _mm512_loadu_ps(p);
}
LT_ALWAYS void v_store_sums(float *out, const vflt *a, uint64_t n)
{
    __m256 b[4];
    LT_UNROLL
    for (int r = 0; r < 4; r++)
        b[r] = _mm256_add_ps(_mm512_castps512_ps256(a[r]), _mm512_extractf32x8_ps(a[r], 1));
    lt__store_lanes(out, lt__lanes_tree4(b), n < 4 ? n : 4);
}

#include "backend/cpu/gemm_float.h"

/* The last n of sixteen, n in 1..15: lanes beyond keep what they had, an fma with zero would turn -0 into +0. */
LT_ALWAYS vflt fma_tail(lt_dtype t, const uint8_t *w, const float *x, vflt a, uint64_t n)
{
    const __mmask16 m = (__mmask16)((1u << n) - 1);
    uint8_t b[64] = {0};
    memcpy(b, w, n * (t == LT_DTYPE_F32 ? 4 : 2));
    return _mm512_mask3_fmadd_ps(v_widen(t, b), _mm512_maskz_loadu_ps(m, x), a, m);
}

LT_ALWAYS float dot(lt_dtype t, const uint8_t *w, const float *x, uint64_t cols)
{
    const size_t bytes = t == LT_DTYPE_F32 ? 4 : 2;
    vflt acc[16];
    LT_UNROLL
    for (int k = 0; k < 16; k++)
        acc[k] = v_zero_f32();
    uint64_t i = 0;
    for (; i + 256 <= cols; i += 256) {
        LT_UNROLL
        for (uint64_t k = 0; k < 16; k++)
            acc[k] = v_fma(v_widen(t, w + (i + 16 * k) * bytes), v_load_f32(x + i + 16 * k), acc[k]);
    }
    LT_UNROLL
    for (uint64_t k = 0; k < 16; k++) {
        const uint64_t c = i + 16 * k;
        if (c + 16 <= cols)
            acc[k] = v_fma(v_widen(t, w + c * bytes), v_load_f32(x + c), acc[k]);
        else if (c < cols)
            acc[k] = fma_tail(t, w + c * bytes, x + c, acc[k], cols - c);
    }
    __m256 b[32];
    LT_UNROLL
    for (int k = 0; k < 16; k++) {
        b[2 * k] = _mm512_castps512_ps256(acc[k]);
        b[2 * k + 1] = _mm512_extractf32x8_ps(acc[k], 1);
    }
    return lt__regs_tree256(b);
}

#include "backend/cpu/matvec_float.h"

lt_status lt__linear_float_avx512(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes, (void)err;
    if (args->src[0].dim[0] > 1)
        gf_run(args, NULL, team, scratch);
    else
        mf_run(args, team);
    return LT_OK;
}

size_t lt__linear_float_scratch_avx512(const lt_op_args *args, uint32_t threads)
{
    return args->src[0].dim[0] > 1 ? gf_scratch(args, threads) : 0;
}

const lt__gemm_float lt__gemm_float_avx512 = {gf_run, gf_scratch_most};

void lt__matvec_float_avx512(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                         float *out)
{
    mf_rows(t, w, row_bytes, rows, cols, (const float *)(const void *)act, out);
}
