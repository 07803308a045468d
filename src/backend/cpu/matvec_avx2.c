/* One token times quantised rows, reading each weight byte once.
 *
 * Formats in blocks of 32 put eight rows in the lanes; formats in super-blocks of 256 and Q8_0 put
 * eight blocks of one row there, whose lanes then are the eight accumulators of docs/arithmetic.md. */
#include "backend/cpu/linear.h"
#include "backend/cpu/weights_avx2.h"

#define PREFETCH_BYTES 2048 /* beyond what is read next; 1 to 8 KiB did not differ */

/* Brings lines of the n bytes at p, in the order of memory: the hardware then runs ahead as well. */
LT_ALWAYS void prefetch(const uint8_t *p, uint32_t n)
{
    for (uint32_t k = 0; k < n; k += 64)
        _mm_prefetch((const char *)p + k, _MM_HINT_T0);
}

/* Eight vectors of products to eight sums: fewest widenings the format's range allows. */
LT_ALWAYS __m256i sum_blocks(lt_dtype t, const __m256i *v)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int chain = lt__wchain(t);
    if (chain == 8)
        return _mm256_madd_epi16(lt__sum8_join16(lt__sum8_half16(v[0], v[1], v[2], v[3]),
                                                 lt__sum8_half16(v[4], v[5], v[6], v[7])), ones);
    if (chain == 4)
        return lt__sum8_join(_mm256_madd_epi16(lt__sum8_half16(v[0], v[1], v[2], v[3]), ones),
                             _mm256_madd_epi16(lt__sum8_half16(v[4], v[5], v[6], v[7]), ones));
    return lt__sum8_join(lt__sum8_half(v[0], v[1], v[2], v[3]), lt__sum8_half(v[4], v[5], v[6], v[7]));
}

/* One block's products with 32 activations: int16 pairs where they may be added further, else int32. */
LT_ALWAYS __m256i block_products(lt_dtype t, __m256i w, __m256i q)
{
    if (lt__wkind_of(t) != WK_S8)
        return _mm256_maddubs_epi16(w, q);
    /* |w| <= 128 and |q| <= 127: two products stay below 2^15. */
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)), _mm256_set1_epi16(1));
}

LT_ALWAYS __m256i rows8_bytes(lt_dtype t, const uint8_t *w, size_t stride, const int8_t *act)
{
    const __m256i q = lt__load256(act);
    __m256i v[8];
    LT_UNROLL
    for (int r = 0; r < 8; r++, w += stride) {
        v[r] = block_products(t, lt__unpack32(t, w), q);
    }
    return sum_blocks(t, v);
}
LT_ALWAYS __m256i rows8_nibbles(lt_dtype t, const uint8_t *w, size_t stride, const int8_t *act)
{
    const __m256i q0 = _mm256_broadcastsi128_si256(lt__load128(act)), q1 = _mm256_broadcastsi128_si256(lt__load128(act + 16));
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i v[4], high = ones;
    if (t == LT_DTYPE_Q5_0 || t == LT_DTYPE_Q5_1)
        high = lt__u32_column(w + lt__nibbles_at(t) - 4, stride);
    LT_UNROLL
    for (int r = 0; r < 4; r++, w += stride) {
        __m256i lo, hi;
        lt__unpack_pair(t, w, w + 4 * stride, high, r, &lo, &hi);
        lo = block_products(t, lo, q0);
        hi = block_products(t, hi, q1);
        v[r] = lt__wkind_of(t) == WK_S8 ? _mm256_add_epi32(lo, hi) : _mm256_add_epi16(lo, hi);
    }
    if (lt__wchain(t) == 8)
        return _mm256_madd_epi16(lt__sum8_half16(v[0], v[1], v[2], v[3]), ones);
    if (lt__wchain(t) == 1)
        return lt__sum8_half(v[0], v[1], v[2], v[3]);
    __m256i a = _mm256_add_epi16(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    __m256i b = _mm256_add_epi16(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    a = _mm256_madd_epi16(a, ones);
    b = _mm256_madd_epi16(b, ones);
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

/* Groups of eight blocks of one row of Q8_0, blocks in the lanes: it costs so little arithmetic that
 * the order of reading decides, and that of one row after another is the fastest. */
LT_ALWAYS __m256 row_q8_0(const uint8_t *w, uint64_t groups, lt__q8a_row a)
{
    __m256 acc = _mm256_setzero_ps();
    for (uint64_t i = 0; i < groups; i++, w += 8 * 34) {
        __m256i v[8];
        prefetch(w + PREFETCH_BYTES, 8 * 34);
        LT_UNROLL
        for (int k = 0; k < 8; k++)
            v[k] = block_products(LT_DTYPE_Q8_0, lt__unpack32(LT_DTYPE_Q8_0, w + 34 * k),
                                  lt__load256(a.q + 256 * i + 32 * k));
        const __m256 d = _mm256_mul_ps(lt__f16_column(w, 34), _mm256_loadu_ps(a.d + 8 * i));
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum_blocks(LT_DTYPE_Q8_0, v)), d, acc);
    }
    return acc;
}

/* Eight rows of a format in blocks of 32. */
LT_ALWAYS __m256 rows8(lt_dtype t, const uint8_t *w, size_t stride, uint64_t nb, lt__q8a_row a)
{
    const uint32_t bytes = t == LT_DTYPE_Q4_1 ? 20 : t == LT_DTYPE_Q5_0 ? 22 : t == LT_DTYPE_Q5_1 ? 24
                         : t == LT_DTYPE_Q8_0 ? 34 : t == LT_DTYPE_MXFP4 ? 17 : 18;
    __m256 acc[8];
    LT_UNROLL
    for (int i = 0; i < 8; i++)
        acc[i] = _mm256_setzero_ps();
    uint64_t b = 0;
    if (t == LT_DTYPE_Q8_0) {
        __m256i rows[8];
        b = nb / 8 * 8;
        for (int r = 0; r < 8; r++)
            rows[r] = _mm256_castps_si256(row_q8_0(w + (size_t)r * stride, nb / 8, a));
        lt__transpose8(rows);
        for (int i = 0; i < 8; i++)
            acc[i] = _mm256_castsi256_ps(rows[i]);
        w += b * bytes;
    }
    const uint8_t *ahead = w + 8 * stride + PREFETCH_BYTES;
    for (; b < nb; b++, w += bytes, ahead += 8 * bytes) {
        if (t != LT_DTYPE_Q8_0)
            prefetch(ahead, 8 * bytes);
        __m256i sum = lt__is_nibbles(t) ? rows8_nibbles(t, w, stride, a.q + 32 * b) : rows8_bytes(t, w, stride, a.q + 32 * b);
        const __m256i s = lt__set1_u32_at(a.s + 2 * b);
        const __m256 da = _mm256_set1_ps(a.d[b]);
        __m256 d, m;
        lt__scale_column(t, w, stride, &d, &m);
        if (lt__woffset(t))
            sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(s, _mm256_set1_epi16((short)lt__woffset(t))));
        __m256 x = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, da), acc[b % 8]);
        if (lt__wkind_of(t) == WK_MIN) {
            __m256 sf = _mm256_cvtepi32_ps(_mm256_madd_epi16(s, _mm256_set1_epi16(1)));
            x = _mm256_fmadd_ps(sf, _mm256_mul_ps(m, da), x);
        }
        acc[b % 8] = x;
    }
    return lt__regs_tree(acc);
}

LT_ALWAYS void matvec32(lt_dtype t, const uint8_t *w, size_t stride, uint64_t rows, uint64_t cols, lt__q8a_row a,
                        float *out)
{
    uint64_t r = 0;
    for (; r + 8 <= rows; r += 8)
        _mm256_storeu_ps(out + r, rows8(t, w + r * stride, stride, cols / 32, a));
    for (; r < rows; r++) /* the last few, one row in all lanes */
        out[r] = _mm256_cvtss_f32(rows8(t, w + r * stride, 0, cols / 32, a));
}

/* One super-block: its eight blocks' terms onto the eight accumulators. */
LT_ALWAYS __m256 super_block(lt_dtype t, const uint8_t *p, const int8_t *q, const float *da8, const int16_t *s16,
                             __m256 acc)
{
    const lt__wkind kind = lt__wkind_of(t);
    __m256i v[8], even = _mm256_setzero_si256(), mins = even, sc = even;
    if (kind == WK_SC || kind == WK_SCM) {
        sc = lt__int_scales256(t, p, &mins);
        /* Blocks' first scales in the low half, second ones in the high half. */
        even = _mm256_packs_epi32(_mm256_srai_epi32(_mm256_slli_epi32(sc, 16), 16), _mm256_srai_epi32(sc, 16));
        even = _mm256_permute4x64_epi64(even, 0xd8);
    }
    LT_UNROLL
    for (int b = 0; b < 8; b++) {
        v[b] = block_products(t, lt__unpack256(t, p, b), lt__load256(q + 32 * b));
        if (kind == WK_SC || kind == WK_SCM)
            v[b] = _mm256_madd_epi16(v[b], _mm256_shuffle_epi8(even, _mm256_set1_epi16((short)(2 * b | (2 * b + 1) << 8))));
    }
    __m256i sum = kind == WK_SC || kind == WK_SCM
        ? lt__sum8_join(lt__sum8_half(v[0], v[1], v[2], v[3]), lt__sum8_half(v[4], v[5], v[6], v[7]))
        : sum_blocks(t, v);
    const __m256 da = _mm256_loadu_ps(da8);
    const __m256i s = lt__load256(s16);
    __m256 d, m = _mm256_setzero_ps();
    if (kind == WK_SC || kind == WK_SCM)
        d = _mm256_set1_ps(lt__super_d(t, p));
    else
        lt__scales256(t, p, &d, &m);
    if (kind == WK_SC)
        sum = _mm256_sub_epi32(sum, _mm256_mullo_epi32(_mm256_madd_epi16(sc, s), _mm256_set1_epi32(lt__woffset(t))));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(d, da), acc);
    if (kind == WK_MIN) /* m is negated */
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(s, _mm256_set1_epi16(1))), _mm256_mul_ps(m, da), acc);
    if (kind == WK_SCM) {
        m = _mm256_set1_ps(lt__f16_at(p + 82));
        acc = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(mins, s)), _mm256_mul_ps(m, da), acc);
    }
    return acc;
}

LT_ALWAYS void matvec256(lt_dtype t, const uint8_t *w, size_t stride, uint64_t rows, uint64_t cols, lt__q8a_row a,
                         float *out)
{
    const uint32_t bytes = t == LT_DTYPE_Q4_K ? 144 : t == LT_DTYPE_Q5_K ? 176 : t == LT_DTYPE_Q6_K ? 210
                         : t == LT_DTYPE_Q2_K ? 84 : t == LT_DTYPE_Q3_K ? 110 : 136;
    for (uint64_t r = 0; r < rows; r++, w += stride) {
        __m256 acc = _mm256_setzero_ps();
        const uint8_t *p = w;
        for (uint64_t i = 0; i < cols / 256; i++, p += bytes) {
            prefetch(p + PREFETCH_BYTES, bytes);
            acc = super_block(t, p, a.q + 256 * i, a.d + 8 * i, a.s + 16 * i, acc);
        }
        out[r] = lt__lanes_tree(acc);
    }
}

typedef void matvec_fn(const uint8_t *w, size_t stride, uint64_t rows, uint64_t cols, lt__q8a_row a, float *out);
#define MATVEC(T, N) \
    static void matvec_##T(const uint8_t *w, size_t stride, uint64_t rows, uint64_t cols, lt__q8a_row a, float *out) { \
        matvec##N(LT_DTYPE_##T, w, stride, rows, cols, a, out); \
    }
MATVEC(Q4_0, 32)
MATVEC(Q4_1, 32)
MATVEC(Q5_0, 32)
MATVEC(Q5_1, 32)
MATVEC(Q8_0, 32)
MATVEC(IQ4_NL, 32)
MATVEC(MXFP4, 32)
MATVEC(Q2_K, 256)
MATVEC(Q3_K, 256)
MATVEC(Q4_K, 256)
MATVEC(Q5_K, 256)
MATVEC(Q6_K, 256)
MATVEC(IQ4_XS, 256)

void lt__matvec_avx2(lt_dtype t, const uint8_t *w, size_t row_bytes, uint64_t rows, uint64_t cols, const uint8_t *act,
                     float *out)
{
    static matvec_fn *const fns[LT_DTYPE_COUNT] = {
        [LT_DTYPE_Q4_0] = matvec_Q4_0, [LT_DTYPE_Q4_1] = matvec_Q4_1, [LT_DTYPE_Q5_0] = matvec_Q5_0,
        [LT_DTYPE_Q5_1] = matvec_Q5_1, [LT_DTYPE_Q8_0] = matvec_Q8_0, [LT_DTYPE_IQ4_NL] = matvec_IQ4_NL,
        [LT_DTYPE_MXFP4] = matvec_MXFP4, [LT_DTYPE_Q2_K] = matvec_Q2_K, [LT_DTYPE_Q3_K] = matvec_Q3_K,
        [LT_DTYPE_Q4_K] = matvec_Q4_K, [LT_DTYPE_Q5_K] = matvec_Q5_K, [LT_DTYPE_Q6_K] = matvec_Q6_K,
        [LT_DTYPE_IQ4_XS] = matvec_IQ4_XS,
    };
    fns[t](w, row_bytes, rows, cols, lt__q8a_at(act, cols), out);
}
