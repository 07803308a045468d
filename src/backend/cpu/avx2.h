/* avx2.h - small vector pieces shared by the AVX2 kernels. */
#ifndef LT_CPU_AVX2_H
#define LT_CPU_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/ops.h"
#include "graph/half.h"

/* Sanitized, a kernel unfolded for every type and shape takes the compiler minutes: there it stays one function. */
#ifdef LT_OUTLINE
#  define LT_ALWAYS static inline
#  define LT_UNROLL
#else
#  define LT_ALWAYS static inline __attribute__((always_inline))
#  define LT_UNROLL _Pragma("GCC unroll 16")
#endif

/* A running sum stays one: left alone, the compiler turns chains of integer adds into trees, and
 * what they keep alive spills. */
#define LT_KEEP(v) __asm__("" : "+x"(v))

LT_ALWAYS __m256i lt__load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
LT_ALWAYS __m128i lt__load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
LT_ALWAYS void lt__store256(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
LT_ALWAYS __m256i lt__set1_u32_at(const void *p) { return _mm256_set1_epi32((int)lt__load_u32(p)); }
LT_ALWAYS float lt__f16_at(const void *p) { return _cvtsh_ss(lt__load_u16(p)); }

/* The halving tree over eight lanes. */
LT_ALWAYS float lt__lanes_tree(__m256 a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* The halving tree over eight registers, lane by lane. */
LT_ALWAYS __m256 lt__regs_tree(const __m256 *a)
{
    __m256 b0 = _mm256_add_ps(a[0], a[4]), b1 = _mm256_add_ps(a[1], a[5]);
    __m256 b2 = _mm256_add_ps(a[2], a[6]), b3 = _mm256_add_ps(a[3], a[7]);
    return _mm256_add_ps(_mm256_add_ps(b0, b2), _mm256_add_ps(b1, b3));
}

/* The halving tree over 256 accumulators, register k holding 8 k to 8 k + 7. */
LT_ALWAYS float lt__regs_tree256(const __m256 *a)
{
    __m256 b[16];
    LT_UNROLL
    for (int i = 0; i < 16; i++)
        b[i] = _mm256_add_ps(a[i], a[i + 16]);
    LT_UNROLL
    for (int i = 0; i < 8; i++)
        b[i] = _mm256_add_ps(b[i], b[i + 8]);
    return lt__lanes_tree(lt__regs_tree(b));
}

/* Lane r of the result is the halving tree of a[r]'s lanes: eight trees at once. */
LT_ALWAYS __m256 lt__lanes_tree8(const __m256 *a)
{
    __m256 b[4], c[2];
    LT_UNROLL
    for (int i = 0; i < 4; i++) /* lanes: four halves of a[i], then four of a[i + 4] */
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20), _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    LT_UNROLL
    for (int i = 0; i < 2; i++) { /* [x0 x1 y0 y1], x of b[i], y of b[i + 2] */
        __m256d x = _mm256_castps_pd(b[i]), y = _mm256_castps_pd(b[i + 2]);
        c[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    /* c[0] = rows 0, 2 and 4, 6; c[1] = rows 1, 3 and 5, 7; two lanes each. */
    __m256 even = _mm256_shuffle_ps(c[0], c[1], 0x88), odd = _mm256_shuffle_ps(c[0], c[1], 0xdd);
    __m256 sum = _mm256_add_ps(even, odd); /* rows 0 2 1 3 | 4 6 5 7 */
    return _mm256_permute_ps(sum, 0xd8);
}

/* The same of four, in the lower four lanes. */
LT_ALWAYS __m256 lt__lanes_tree4(const __m256 *a)
{
    __m256 b[2];
    LT_UNROLL
    for (int i = 0; i < 2; i++) /* lanes: four halves of a[i], then four of a[i + 2] */
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 2], 0x20), _mm256_permute2f128_ps(a[i], a[i + 2], 0x31));
    __m256d x = _mm256_castps_pd(b[0]), y = _mm256_castps_pd(b[1]);
    __m256 c = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    c = _mm256_add_ps(c, _mm256_movehdup_ps(c)); /* rows 0 . 1 . | 2 . 3 . */
    return _mm256_permutevar8x32_ps(c, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

/* Lane r of the result is the sum of the eight dwords of v[r]. */
LT_ALWAYS __m256i lt__sum8_half(__m256i v0, __m256i v1, __m256i v2, __m256i v3)
{
    __m256i a = _mm256_add_epi32(_mm256_unpacklo_epi32(v0, v1), _mm256_unpackhi_epi32(v0, v1));
    __m256i b = _mm256_add_epi32(_mm256_unpacklo_epi32(v2, v3), _mm256_unpackhi_epi32(v2, v3));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
LT_ALWAYS __m256i lt__sum8_join(__m256i lo, __m256i hi)
{
    return _mm256_add_epi32(_mm256_permute2x128_si256(lo, hi, 0x20), _mm256_permute2x128_si256(lo, hi, 0x31));
}
/* The same on pairs of words: each dword of v holds two int16 that are added word by word. */
LT_ALWAYS __m256i lt__sum8_half16(__m256i v0, __m256i v1, __m256i v2, __m256i v3)
{
    __m256i a = _mm256_add_epi16(_mm256_unpacklo_epi32(v0, v1), _mm256_unpackhi_epi32(v0, v1));
    __m256i b = _mm256_add_epi16(_mm256_unpacklo_epi32(v2, v3), _mm256_unpackhi_epi32(v2, v3));
    return _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
LT_ALWAYS __m256i lt__sum8_join16(__m256i lo, __m256i hi)
{
    return _mm256_add_epi16(_mm256_permute2x128_si256(lo, hi, 0x20), _mm256_permute2x128_si256(lo, hi, 0x31));
}

/* Eight registers of eight dwords, transposed in place. */
LT_ALWAYS void lt__transpose8(__m256i *v)
{
    __m256i a[8], b[8];
    LT_UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    LT_UNROLL
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    LT_UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* exp of docs/arithmetic.md in eight lanes. */
LT_ALWAYS __m256 lt__exp8(__m256 x)
{
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    __m256i k = _mm256_cvtps_epi32(n);
    __m256i top = _mm256_cmpeq_epi32(k, _mm256_set1_epi32(128)); /* 2^128 has no f32: p * 2 * 2^127 */
    p = _mm256_add_ps(p, _mm256_and_ps(p, _mm256_castsi256_ps(top)));
    k = _mm256_slli_epi32(_mm256_add_epi32(_mm256_add_epi32(k, top), _mm256_set1_epi32(127)), 23);
    __m256 y = _mm256_mul_ps(p, _mm256_castsi256_ps(k));
    y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ), y);
    y = _mm256_blendv_ps(y, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, _mm256_set1_ps(88.72f), _CMP_GT_OQ));
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* cap * tanh(x / cap) likewise. */
LT_ALWAYS __m256 lt__softcap8(__m256 x, __m256 cap)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f), u = _mm256_div_ps(x, cap);
    const __m256 a = _mm256_andnot_ps(sign, u), s = _mm256_mul_ps(u, u);
    __m256 p = _mm256_set1_ps(-5.70498872745e-3f);
    p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(2.06390887954e-2f));
    p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-5.37397155531e-2f));
    p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(1.33314422036e-1f));
    p = _mm256_fmadd_ps(p, s, _mm256_set1_ps(-3.33332819422e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, s), u, u);
    __m256 far = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(lt__exp8(_mm256_add_ps(a, a)), one)));
    far = _mm256_or_ps(far, _mm256_and_ps(u, sign));
    return _mm256_mul_ps(cap, _mm256_blendv_ps(p, far, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_GE_OQ)));
}

/* The first n lanes, n in 1..7. */
LT_ALWAYS __m256i lt__lane_mask(uint64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LT_ALWAYS void lt__store_lanes(float *p, __m256 v, uint64_t n)
{
    if (n >= 8)
        _mm256_storeu_ps(p, v);
    else
        _mm256_maskstore_ps(p, lt__lane_mask(n), v);
}

LT_ALWAYS float lt__max8(__m256 a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

/* The largest |x| of 32 elements by bit pattern, so that NaN wins. */
LT_ALWAYS float lt__amax32(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    LT_UNROLL
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(_mm256_and_si256(mask, _mm256_castps_si256(_mm256_loadu_ps(x + 8 * i))), m);
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

LT_ALWAYS __m256i lt__quantize8(const float *x, __m256 id)
{
    __m256 y = _mm256_round_ps(_mm256_mul_ps(_mm256_loadu_ps(x), id), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    y = _mm256_and_ps(y, _mm256_cmp_ps(y, y, _CMP_ORD_Q)); /* NaN gives 0 */
    y = _mm256_max_ps(_mm256_min_ps(y, _mm256_set1_ps(127.0f)), _mm256_set1_ps(-127.0f));
    return _mm256_cvtps_epi32(y);
}
LT_ALWAYS __m256i lt__quantize32(const float *x, float id)
{
    const __m256 v = _mm256_set1_ps(id);
    __m256i a = _mm256_packs_epi32(lt__quantize8(x, v), lt__quantize8(x + 8, v));
    __m256i b = _mm256_packs_epi32(lt__quantize8(x + 16, v), lt__quantize8(x + 24, v));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Rows of Q8A: int8 q[cols], f32 d[cols/32], int16 s[cols/16]. */
typedef struct lt__q8a_row {
    const int8_t *q;
    const float *d;
    const int16_t *s;
} lt__q8a_row;
LT_ALWAYS lt__q8a_row lt__q8a_at(const uint8_t *base, uint64_t cols)
{
    lt__q8a_row r = {(const int8_t *)base, (const float *)(const void *)(base + cols),
                     (const int16_t *)(const void *)(base + cols + cols / 8)};
    return r;
}

#endif
