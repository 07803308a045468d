/* LINEAR over f32, f16 and bf16 weights, many tokens: four rows by five tokens a tile of 512-bit sums. */
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

lt_status lt__linear_float_avx512(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch_bytes, (void)err;
    gf_run(args, team, scratch);
    return LT_OK;
}

size_t lt__linear_float_scratch_avx512(const lt_op_args *args, uint32_t threads)
{
    return gf_scratch(args, threads);
}
