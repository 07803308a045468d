/* weights_avx2.h - weight blocks as 32 bytes in element order, and their scales in lanes.
 *
 * Signed formats with few bits are kept unsigned by an offset that the kernels take out as an
 * exact integer: sum((w - off) q) = sum(w q) - off (s0 + s1). */
#ifndef LT_CPU_WEIGHTS_AVX2_H
#define LT_CPU_WEIGHTS_AVX2_H

#include "backend/cpu/avx2.h"

/* How a block's integers become a term. */
typedef enum lt__wkind {
    WK_OFF, /* one scale, unsigned with a constant offset */
    WK_MIN, /* a scale and a minimum, unsigned */
    WK_S8,  /* one scale, signed bytes */
    WK_SC,  /* integer scales per 16, unsigned with a constant offset */
    WK_SCM  /* integer scales and minima per 16, unsigned */
} lt__wkind;

LT_ALWAYS lt__wkind lt__wkind_of(lt_dtype t)
{
    switch (t) {
    case LT_DTYPE_Q4_1: case LT_DTYPE_Q5_1: case LT_DTYPE_Q4_K: case LT_DTYPE_Q5_K:
        return WK_MIN;
    case LT_DTYPE_Q8_0: case LT_DTYPE_IQ4_NL: case LT_DTYPE_IQ4_XS:
        return WK_S8;
    case LT_DTYPE_Q3_K: case LT_DTYPE_Q6_K:
        return WK_SC;
    case LT_DTYPE_Q2_K:
        return WK_SCM;
    default:
        return WK_OFF;
    }
}
LT_ALWAYS int lt__woffset(lt_dtype t)
{
    switch (t) {
    case LT_DTYPE_Q4_0: return 8;
    case LT_DTYPE_Q5_0: return 16;
    case LT_DTYPE_MXFP4: return 12;
    case LT_DTYPE_Q3_K: return 4;
    case LT_DTYPE_Q6_K: return 32;
    default: return 0;
    }
}
/* How many maddubs results (two products each, |q| <= 127) an int16 holds; at most one block's 8,
 * or the 4 of a half where scales are per 16. */
LT_ALWAYS int lt__wchain(lt_dtype t)
{
    switch (t) {
    case LT_DTYPE_Q4_0: case LT_DTYPE_Q4_1: case LT_DTYPE_Q4_K:
        return 8;
    case LT_DTYPE_Q5_0: case LT_DTYPE_Q5_1: case LT_DTYPE_Q5_K: case LT_DTYPE_MXFP4:
    case LT_DTYPE_Q2_K: case LT_DTYPE_Q3_K:
        return 4;
    case LT_DTYPE_Q6_K:
        return 2;
    default:
        return 1;
    }
}

/* Low nibbles, then high nibbles. */
LT_ALWAYS __m256i lt__nibbles(const uint8_t *p)
{
    __m128i x = lt__load128(p);
    __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
    return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
/* Bit i of the dword at p as 16 in byte i. */
LT_ALWAYS __m256i lt__bits16(const uint8_t *p)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(lt__set1_u32_at(p), spread), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(16));
}
LT_ALWAYS __m256i lt__iq4_table(void)
{
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113));
}

/* 12 + twice the E2M1 value. */
LT_ALWAYS __m256i lt__mxfp4_table(void)
{
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

/* A block of 32 of a format whose blocks have 32. */
LT_ALWAYS __m256i lt__unpack32(lt_dtype t, const uint8_t *p)
{
    switch (t) {
    case LT_DTYPE_Q4_0: return lt__nibbles(p + 2);
    case LT_DTYPE_Q4_1: return lt__nibbles(p + 4);
    case LT_DTYPE_Q5_0: return _mm256_or_si256(lt__nibbles(p + 6), lt__bits16(p + 2));
    case LT_DTYPE_Q5_1: return _mm256_or_si256(lt__nibbles(p + 8), lt__bits16(p + 4));
    case LT_DTYPE_IQ4_NL: return _mm256_shuffle_epi8(lt__iq4_table(), lt__nibbles(p + 2));
    case LT_DTYPE_MXFP4: return _mm256_shuffle_epi8(lt__mxfp4_table(), lt__nibbles(p + 1));
    default: return lt__load256(p + 2); /* Q8_0 */
    }
}

/* Block b (0..7) of a super-block of 256; b a constant. */
LT_ALWAYS __m256i lt__unpack256(lt_dtype t, const uint8_t *p, const int b)
{
    const __m256i m4 = _mm256_set1_epi8(15), m2 = _mm256_set1_epi8(3);
    switch (t) {
    case LT_DTYPE_Q4_K: {
        __m256i x = lt__load256(p + 16 + b / 2 * 32);
        return _mm256_and_si256(b % 2 ? _mm256_srli_epi16(x, 4) : x, m4);
    }
    case LT_DTYPE_Q5_K: {
        __m256i x = lt__load256(p + 48 + b / 2 * 32), h = lt__load256(p + 16);
        h = b < 4 ? _mm256_slli_epi16(h, 4 - b) : _mm256_srli_epi16(h, b - 4);
        x = _mm256_and_si256(b % 2 ? _mm256_srli_epi16(x, 4) : x, m4);
        return _mm256_or_si256(x, _mm256_and_si256(h, _mm256_set1_epi8(16)));
    }
    case LT_DTYPE_Q6_K: {
        const int n = b / 4, j = b % 4;
        __m256i x = lt__load256(p + n * 64 + j % 2 * 32), h = lt__load256(p + 128 + n * 32);
        x = _mm256_and_si256(j >= 2 ? _mm256_srli_epi16(x, 4) : x, m4);
        h = j == 0 ? _mm256_slli_epi16(h, 4) : j == 1 ? _mm256_slli_epi16(h, 2) : j == 2 ? h : _mm256_srli_epi16(h, 2);
        return _mm256_or_si256(x, _mm256_and_si256(h, _mm256_set1_epi8(48)));
    }
    case LT_DTYPE_Q2_K:
        return _mm256_and_si256(_mm256_srli_epi16(lt__load256(p + 16 + b / 4 * 32), b % 4 * 2), m2);
    case LT_DTYPE_Q3_K: {
        __m256i x = _mm256_and_si256(_mm256_srli_epi16(lt__load256(p + 32 + b / 4 * 32), b % 4 * 2), m2);
        __m256i h = lt__load256(p);
        h = b <= 2 ? _mm256_slli_epi16(h, 2 - b) : _mm256_srli_epi16(h, b - 2);
        return _mm256_or_si256(x, _mm256_and_si256(h, _mm256_set1_epi8(4)));
    }
    default: /* IQ4_XS */
        return _mm256_shuffle_epi8(lt__iq4_table(), lt__nibbles(p + 8 + b * 16));
    }
}

/* Formats of nibbles: where they start in a block, and the scaled high bits. */
LT_ALWAYS bool lt__is_nibbles(lt_dtype t) { return t != LT_DTYPE_Q8_0; }
LT_ALWAYS int lt__nibbles_at(lt_dtype t)
{
    return t == LT_DTYPE_Q4_1 ? 4 : t == LT_DTYPE_Q5_0 ? 6 : t == LT_DTYPE_Q5_1 ? 8 : t == LT_DTYPE_MXFP4 ? 1 : 2;
}
/* Two blocks side by side: elements 0-15 of p | q in *lo, 16-31 in *hi. No shuffle crosses lanes,
 * and sums of eight rows need none either. high: the four bytes of high bits of eight rows, of which
 * p and q are r and r + 4. */
LT_ALWAYS void lt__unpack_pair(lt_dtype t, const uint8_t *p, const uint8_t *q, __m256i high, const int r, __m256i *lo,
                               __m256i *hi)
{
    const __m256i m4 = _mm256_set1_epi8(15);
    const int at = lt__nibbles_at(t);
    __m256i x = _mm256_inserti128_si256(_mm256_castsi128_si256(lt__load128(p + at)), lt__load128(q + at), 1);
    *lo = _mm256_and_si256(x, m4);
    *hi = _mm256_and_si256(_mm256_srli_epi16(x, 4), m4);
    if (t == LT_DTYPE_Q5_0 || t == LT_DTYPE_Q5_1) {
        const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201), b16 = _mm256_set1_epi8(16);
        const long long b0 = 0x0101010101010101 * (4 * r), one = 0x0101010101010101;
        __m256i h0 = _mm256_shuffle_epi8(high, _mm256_setr_epi64x(b0, b0 + one, b0, b0 + one));
        __m256i h1 = _mm256_shuffle_epi8(high, _mm256_setr_epi64x(b0 + 2 * one, b0 + 3 * one, b0 + 2 * one, b0 + 3 * one));
        h0 = _mm256_cmpeq_epi8(_mm256_and_si256(h0, bit), bit);
        h1 = _mm256_cmpeq_epi8(_mm256_and_si256(h1, bit), bit);
        *lo = _mm256_or_si256(*lo, _mm256_and_si256(h0, b16));
        *hi = _mm256_or_si256(*hi, _mm256_and_si256(h1, b16));
    } else if (t == LT_DTYPE_IQ4_NL) {
        *lo = _mm256_shuffle_epi8(lt__iq4_table(), *lo);
        *hi = _mm256_shuffle_epi8(lt__iq4_table(), *hi);
    } else if (t == LT_DTYPE_MXFP4) {
        *lo = _mm256_shuffle_epi8(lt__mxfp4_table(), *lo);
        *hi = _mm256_shuffle_epi8(lt__mxfp4_table(), *hi);
    }
}
/* The dwords at p, p + stride, ...: rows 0-3 in the low lane, 4-7 in the high one. */
LT_ALWAYS __m256i lt__u32_column(const uint8_t *p, size_t stride)
{
    const uint8_t *q = p + 3 * stride;
    __m128i x = _mm_cvtsi32_si128((int)lt__load_u32(p)), y = _mm_cvtsi32_si128((int)lt__load_u32(p + 4 * stride));
    x = _mm_insert_epi32(x, (int)lt__load_u32(p + stride), 1);
    y = _mm_insert_epi32(y, (int)lt__load_u32(q + 2 * stride), 1);
    x = _mm_insert_epi32(x, (int)lt__load_u32(p + 2 * stride), 2);
    y = _mm_insert_epi32(y, (int)lt__load_u32(q + 3 * stride), 2);
    x = _mm_insert_epi32(x, (int)lt__load_u32(q), 3);
    y = _mm_insert_epi32(y, (int)lt__load_u32(q + 4 * stride), 3);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(x), y, 1);
}

/* The f16 at p, p + stride, ... in eight lanes. */
LT_ALWAYS __m256 lt__f16_column(const uint8_t *p, size_t stride)
{
    const uint8_t *q = p + 3 * stride;
    __m128i x = _mm_cvtsi32_si128(lt__load_u16(p));
    x = _mm_insert_epi16(x, lt__load_u16(p + stride), 1);
    x = _mm_insert_epi16(x, lt__load_u16(p + 2 * stride), 2);
    x = _mm_insert_epi16(x, lt__load_u16(q), 3);
    x = _mm_insert_epi16(x, lt__load_u16(p + 4 * stride), 4);
    x = _mm_insert_epi16(x, lt__load_u16(q + 2 * stride), 5);
    x = _mm_insert_epi16(x, lt__load_u16(q + 3 * stride), 6);
    x = _mm_insert_epi16(x, lt__load_u16(q + 4 * stride), 7);
    return _mm256_cvtph_ps(x);
}
/* Pairs of f16: scales in *d, minima in *m. */
LT_ALWAYS void lt__f16_pair_column(const uint8_t *p, size_t stride, __m256 *d, __m256 *m)
{
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i v = _mm256_shuffle_epi8(lt__u32_column(p, stride), order); /* d 0-3, m 0-3 | d 4-7, m 4-7 */
    v = _mm256_permute4x64_epi64(v, 0xd8);
    *d = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
    *m = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
}
/* Half of the E8M0 scales: 2^(e - 128), NaN for 255. */
LT_ALWAYS __m256 lt__e8m0_column(const uint8_t *p, size_t stride)
{
    __m256i e = _mm256_setr_epi32(p[0], p[stride], p[2 * stride], p[3 * stride], p[4 * stride], p[5 * stride],
                                  p[6 * stride], p[7 * stride]);
    __m256i low = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e); /* subnormal for e of 0 and 1 */
    __m256i v = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    v = _mm256_blendv_epi8(v, low, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
    return _mm256_castsi256_ps(
        _mm256_blendv_epi8(v, _mm256_set1_epi32(0x7fc00000), _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255))));
}
/* Scales (and minima) of eight rows' blocks of 32. */
LT_ALWAYS void lt__scale_column(lt_dtype t, const uint8_t *p, size_t stride, __m256 *d, __m256 *m)
{
    if (lt__wkind_of(t) == WK_MIN)
        lt__f16_pair_column(p, stride, d, m);
    else if (t == LT_DTYPE_MXFP4)
        *d = lt__e8m0_column(p, stride);
    else
        *d = lt__f16_column(p, stride);
}

LT_ALWAYS __m256 lt__bytes_f32(uint64_t eight)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)eight)));
}
/* Q4_K, Q5_K, IQ4_XS: lane b holds block b's scale as f32, and the negated minimum. */
LT_ALWAYS void lt__scales256(lt_dtype t, const uint8_t *p, __m256 *d, __m256 *m)
{
    if (t == LT_DTYPE_IQ4_XS) {
        const __m256i b2 = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        __m256i hi = _mm256_srlv_epi32(_mm256_set1_epi32(lt__load_u16(p + 2)), b2);
        __m256i lo = _mm256_srlv_epi32(lt__set1_u32_at(p + 4), _mm256_add_epi32(b2, b2));
        __m256i ls = _mm256_or_si256(_mm256_and_si256(lo, _mm256_set1_epi32(15)),
                                     _mm256_slli_epi32(_mm256_and_si256(hi, _mm256_set1_epi32(3)), 4));
        ls = _mm256_sub_epi32(ls, _mm256_set1_epi32(32));
        *d = _mm256_mul_ps(_mm256_set1_ps(lt__f16_at(p)), _mm256_cvtepi32_ps(ls));
        return;
    }
    uint32_t a = lt__load_u32(p + 4), b = lt__load_u32(p + 8), c = lt__load_u32(p + 12);
    uint32_t sc_hi = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), m_hi = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
    uint64_t sc = (a & 0x3f3f3f3f) | (uint64_t)sc_hi << 32, mn = (b & 0x3f3f3f3f) | (uint64_t)m_hi << 32;
    *d = _mm256_mul_ps(_mm256_set1_ps(lt__f16_at(p)), lt__bytes_f32(sc));
    *m = _mm256_mul_ps(_mm256_set1_ps(-lt__f16_at(p + 2)), lt__bytes_f32(mn));
}
/* Q2_K, Q3_K, Q6_K: sixteen integer scales in element order, and Q2_K's minima. */
LT_ALWAYS __m256i lt__int_scales256(lt_dtype t, const uint8_t *p, __m256i *mins)
{
    if (t == LT_DTYPE_Q6_K)
        return _mm256_cvtepi8_epi16(lt__load128(p + 192));
    if (t == LT_DTYPE_Q2_K) {
        __m128i x = lt__load128(p), m4 = _mm_set1_epi8(15);
        *mins = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(x, 4), m4));
        return _mm256_cvtepu8_epi16(_mm_and_si128(x, m4));
    }
    uint32_t a = lt__load_u32(p + 96), b = lt__load_u32(p + 100), c = lt__load_u32(p + 104);
    const uint32_t f = 0x0f0f0f0f, h = 0x30303030;
    __m128i x = _mm_setr_epi32((int)((a & f) | (c << 4 & h)), (int)((b & f) | (c << 2 & h)),
                               (int)((a >> 4 & f) | (c & h)), (int)((b >> 4 & f) | (c >> 2 & h)));
    return _mm256_sub_epi16(_mm256_cvtepu8_epi16(x), _mm256_set1_epi16(32));
}
/* d (and dmin) of a super-block with integer scales. */
LT_ALWAYS float lt__super_d(lt_dtype t, const uint8_t *p)
{
    return lt__f16_at(p + (t == LT_DTYPE_Q6_K ? 208 : t == LT_DTYPE_Q3_K ? 108 : 80));
}

#endif
