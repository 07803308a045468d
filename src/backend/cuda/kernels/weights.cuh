/* weights.cuh - 32 weights of any quantised dtype as eight words of int8, and their factors.
 *
 * group(row, b) reads columns 32b .. 32b+31 of a row in the file's layout (src/graph/block.c is the readable
 * form). Signed dtypes keep their nibbles unsigned here and say the offset: sum(w*q) = sum(u*q) - off*sum(q),
 * in integers, is exact. */
#ifndef LT_CUDA_WEIGHTS_CUH
#define LT_CUDA_WEIGHTS_CUH

#include "common.cuh"

enum { LT_W_Q4_0, LT_W_Q4_1, LT_W_Q5_0, LT_W_Q5_1, LT_W_Q8_0, LT_W_Q2_K, LT_W_Q3_K, LT_W_Q4_K, LT_W_Q5_K, LT_W_Q6_K,
       LT_W_IQ4_NL, LT_W_IQ4_XS, LT_W_MXFP4 };

typedef struct lt_group {
    uint32_t w[8];
    float    d, m;            /* factors of the two updates; m unused without minima */
    int      sc0, sc1, mn0, mn1;
} lt_group;

/* Where the bytes are, and N words from any address of them. Pointer arithmetic below, not of integers, keeps the
 * address space known to the compiler. */
struct lt_global { /* reads only words that hold wanted bytes, so never past the span */
    enum { whole = 0 };
    template <typename T> static LT_DEV T get(const T *p) { return __ldg(p); }
    template <int N> static LT_DEV void load(const uint8_t *p, uint32_t (&out)[N])
    {
        const uint32_t shift = 8u * (uint32_t)((uintptr_t)p & 3);
        const uint32_t *q = (const uint32_t *)(p - ((uintptr_t)p & 3));
        uint32_t low = __ldg(q);
        if (shift == 0) {
            out[0] = low;
#pragma unroll
            for (int i = 1; i < N; i++)
                out[i] = __ldg(q + i);
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t high = __ldg(q + i + 1);
            out[i] = __funnelshift_r(low, high, shift);
            low = high;
        }
    }
};
struct lt_shared { /* without a branch; up to four bytes past the span */
    enum { whole = 1 };
    template <typename T> static LT_DEV T get(const T *p) { return *p; }
    template <int N> static LT_DEV void load(const uint8_t *p, uint32_t (&out)[N])
    {
        const uint32_t shift = 8u * (uint32_t)((uintptr_t)p & 3);
        const uint32_t *q = (const uint32_t *)(p - ((uintptr_t)p & 3));
        uint32_t low = q[0];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t high = q[i + 1];
            out[i] = __funnelshift_r(low, high, shift);
            low = high;
        }
    }
};
struct lt_shared16 { /* for lanes whose spans lie 16 bytes times an odd number apart; up to fifteen bytes past the span */
    enum { whole = 1 };
    template <typename T> static LT_DEV T get(const T *p) { return *p; }
    template <int N> static LT_DEV void load(const uint8_t *p, uint32_t (&out)[N])
    {
        enum { pieces = (4 * N + 15 + 15) / 16 };
        const uint32_t off = (uint32_t)((uintptr_t)p & 15);
        const uint4 *q = (const uint4 *)(p - off);
        uint32_t w[4 * pieces], two[N + 2], one[N + 1];
#pragma unroll
        for (int i = 0; i < pieces; i++) {
            const uint4 v = q[i];
            w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < N + 2; i++)
            two[i] = off & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < N + 1; i++)
            one[i] = off & 4 ? two[i + 1] : two[i];
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = __funnelshift_r(one[i], one[i + 1], 8 * (off & 3));
    }
};

template <typename M, int N> LT_DEV void lt_load(const uint8_t *p, uint32_t (&out)[N]) { M::load(p, out); }

/* N words from an address that is a multiple of four. */
template <typename M, int N> LT_DEV void lt_load_words(const uint8_t *p, uint32_t (&out)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] = M::get((const uint32_t *)p + i);
}

/* Four words at a time where the address allows it: tensors of a file may be aligned to 8 bytes only. */
template <typename M, int N> LT_DEV void lt_load_wide(const uint8_t *p, uint32_t (&out)[N])
{
    if (!M::whole && ((uintptr_t)p & 15)) {
        lt_load<M>(p, out);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint4 v = M::get((const uint4 *)p + i / 4);
        out[i] = v.x;
        out[i + 1] = v.y;
        out[i + 2] = v.z;
        out[i + 3] = v.w;
    }
}

template <typename M = lt_global> LT_DEV uint32_t lt_u16(const uint8_t *p) { return M::get((const unsigned short *)p); }
template <typename M = lt_global> LT_DEV uint32_t lt_u8(const uint8_t *p) { return M::get(p); }

/* 16 bytes of nibbles: low ones are elements 0-15, high ones 16-31. */
LT_DEV void lt_nibbles(const uint32_t (&v)[4], uint32_t (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = v[i] & 0x0f0f0f0fu;
        w[4 + i] = (v[i] >> 4) & 0x0f0f0f0fu;
    }
}

/* Bits 4i .. 4i+3 of `high` become bit 4 of four bytes. */
LT_DEV uint32_t lt_fifth(uint32_t high, int i)
{
    uint32_t h = high >> (4 * i);
    return (h << 4 & 0x10u) | (h << 11 & 0x1000u) | (h << 18 & 0x100000u) | (h << 25 & 0x10000000u);
}

/* Four table values for nibbles 0..3 of v: the table's halves by byte permutation, then bit 3 chooses. */
LT_DEV uint32_t lt_lookup(uint32_t v, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3)
{
    uint32_t low = __byte_perm(t0, t1, v & 0x7777u), high = __byte_perm(t2, t3, v & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (v & 0x8888u) >> 1);
}

LT_DEV void lt_table(const uint32_t (&v)[4], uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3, uint32_t (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 4; i++) { /* bytes come as low, high, low, high: 0, 16, 1, 17 and 2, 18, 3, 19 */
        uint32_t a = lt_lookup(v[i], t0, t1, t2, t3), b = lt_lookup(v[i] >> 16, t0, t1, t2, t3);
        w[i] = __byte_perm(a, b, 0x6420);
        w[4 + i] = __byte_perm(a, b, 0x7531);
    }
}

#define LT_IQ4_TABLE 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u /* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113 */
#define LT_FP4_TABLE 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu /* 0 1 2 3 4 6 8 12 and their negatives */

LT_DEV float lt_e8m0_half(uint32_t e)
{
    return __uint_as_float(e == 255 ? 0x7fc00000u : e < 2 ? 0x200000u << e : (e - 1) << 23);
}

/* 6-bit scale and minimum of group g from the 12 bytes s[0..2] of Q4_K and Q5_K. */
LT_DEV void lt_k4_scales(uint32_t s0, uint32_t s1, uint32_t s2, int g, uint32_t &sc, uint32_t &mn)
{
    const int j = 8 * (g & 3);
    const uint32_t a = s0 >> j, b = s1 >> j, c = s2 >> j;
    sc = g < 4 ? a & 63 : (c & 15) | (a & 0xc0) >> 2;
    mn = g < 4 ? b & 63 : (c >> 4 & 15) | (b & 0xc0) >> 2;
}

template <int dt> struct lt_weight;

/* bytes: of 256 columns; blocks of 16-byte pieces (whole) are read so where M::whole says that the row is aligned. */
#define LT_WEIGHT(name, bytes_value, offset_value, halves_value, mins_value)                               \
    template <> struct lt_weight<LT_W_##name> {                                                            \
        enum { bytes = bytes_value, offset = offset_value, halves = halves_value, mins = mins_value };     \
        template <typename M> static LT_DEV void read(const uint8_t *row, int b, lt_group &g);             \
        static LT_DEV void group(const uint8_t *row, int b, lt_group &g) { read<lt_global>(row, b, g); }   \
    };                                                                                                     \
    template <typename M> LT_DEV void lt_weight<LT_W_##name>::read(const uint8_t *row, int b, lt_group &g)

LT_WEIGHT(Q4_0, 144, 8, 0, 0)
{
    const uint8_t *p = row + 18 * (int64_t)b;
    uint32_t v[4];
    g.d = lt_half(lt_u16<M>(p));
    lt_load<M>(p + 2, v);
    lt_nibbles(v, g.w);
}

LT_WEIGHT(Q4_1, 160, 0, 0, 1)
{
    const uint8_t *p = row + 20 * (int64_t)b;
    uint32_t v[5], q[4];
    lt_load_words<M>(p, v);
    g.d = lt_half(v[0] & 0xffff);
    g.m = lt_half(v[0] >> 16);
    g.mn0 = g.mn1 = 1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = v[i + 1];
    lt_nibbles(q, g.w);
}

LT_WEIGHT(Q5_0, 176, 16, 0, 0)
{
    const uint8_t *p = row + 22 * (int64_t)b;
    uint32_t v[5], q[4];
    g.d = lt_half(lt_u16<M>(p));
    lt_load<M>(p + 2, v);
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = v[i + 1];
    lt_nibbles(q, g.w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] |= lt_fifth(v[0], i);
}

LT_WEIGHT(Q5_1, 192, 0, 0, 1)
{
    const uint8_t *p = row + 24 * (int64_t)b;
    uint32_t v[6], q[4];
    lt_load_words<M>(p, v);
    g.d = lt_half(v[0] & 0xffff);
    g.m = lt_half(v[0] >> 16);
    g.mn0 = g.mn1 = 1;
#pragma unroll
    for (int i = 0; i < 4; i++)
        q[i] = v[i + 2];
    lt_nibbles(q, g.w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] |= lt_fifth(v[1], i);
}

LT_WEIGHT(Q8_0, 272, 0, 0, 0)
{
    const uint8_t *p = row + 34 * (int64_t)b;
    g.d = lt_half(lt_u16<M>(p));
    lt_load<M>(p + 2, g.w);
}

/* Two bits a weight: group g of a super-block is bits 2(g mod 4) of 32 bytes. */
template <typename M> LT_DEV void lt_crumbs(const uint8_t *q, int g, uint32_t (&w)[8])
{
    uint32_t v[8];
    lt_load<M>(q + 32 * (g >> 2), v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = v[i] >> (2 * (g & 3)) & 0x03030303u;
}

LT_WEIGHT(Q2_K, 84, 0, 1, 1)
{
    const uint8_t *p = row + 84 * (int64_t)(b >> 3);
    int k = b & 7;
    uint32_t s = lt_u16<M>(p + 2 * k);
    g.d = lt_half(lt_u16<M>(p + 80));
    g.m = lt_half(lt_u16<M>(p + 82));
    g.sc0 = s & 15;
    g.sc1 = s >> 8 & 15;
    g.mn0 = -(int)(s >> 4 & 15);
    g.mn1 = -(int)(s >> 12);
    lt_crumbs<M>(p + 16, k, g.w);
}

template <typename M> LT_DEV int lt_q3k_scale(const uint8_t *s, int j)
{
    uint32_t low = j < 8 ? lt_u8<M>(s + j) & 15 : lt_u8<M>(s + j - 8) >> 4;
    return (int)(low | (lt_u8<M>(s + 8 + (j & 3)) >> (2 * (j >> 2)) & 3) << 4) - 32;
}

LT_WEIGHT(Q3_K, 110, 4, 1, 0)
{
    const uint8_t *p = row + 110 * (int64_t)(b >> 3);
    int k = b & 7;
    uint32_t high[8];
    g.d = lt_half(lt_u16<M>(p + 108));
    g.sc0 = lt_q3k_scale<M>(p + 96, 2 * k);
    g.sc1 = lt_q3k_scale<M>(p + 96, 2 * k + 1);
    lt_crumbs<M>(p + 32, k, g.w);
    lt_load<M>(p, high);
#pragma unroll
    for (int i = 0; i < 8; i++) /* a set bit adds four; then four is taken from all */
        g.w[i] |= (high[i] >> k & 0x01010101u) << 2;
}

LT_WEIGHT(Q4_K, 144, 0, 0, 1)
{
    const uint8_t *p = row + 144 * (int64_t)(b >> 3);
    int k = b & 7;
    uint32_t head[4], v[8], sc, mn;
    lt_load_wide<M>(p, head);
    lt_load_wide<M>(p + 16 + 32 * (k >> 1), v);
    lt_k4_scales(head[1], head[2], head[3], k, sc, mn);
    g.d = lt_mul(lt_half(head[0] & 0xffff), (float)sc);
    g.m = lt_mul(lt_half(head[0] >> 16), (float)mn);
    g.mn0 = g.mn1 = -1;
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] = v[i] >> (4 * (k & 1)) & 0x0f0f0f0fu;
}

LT_WEIGHT(Q5_K, 176, 0, 0, 1)
{
    const uint8_t *p = row + 176 * (int64_t)(b >> 3);
    int k = b & 7;
    uint32_t head[4], v[8], hi[8], sc, mn;
    lt_load_wide<M>(p, head);
    lt_load_wide<M>(p + 16, hi);
    lt_load_wide<M>(p + 48 + 32 * (k >> 1), v);
    lt_k4_scales(head[1], head[2], head[3], k, sc, mn);
    g.d = lt_mul(lt_half(head[0] & 0xffff), (float)sc);
    g.m = lt_mul(lt_half(head[0] >> 16), (float)mn);
    g.mn0 = g.mn1 = -1;
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] = (v[i] >> (4 * (k & 1)) & 0x0f0f0f0fu) | (hi[i] >> k & 0x01010101u) << 4;
}

LT_WEIGHT(Q6_K, 210, 32, 1, 0)
{
    const uint8_t *p = row + 210 * (int64_t)(b >> 3);
    int k = b & 7;
    uint32_t low[8], high[8];
    g.d = lt_half(lt_u16<M>(p + 208));
    uint32_t s = lt_u16<M>(p + 192 + 2 * k);
    g.sc0 = (int8_t)(s & 0xff);
    g.sc1 = (int8_t)(s >> 8);
    lt_load<M>(p + 64 * (k >> 2) + 32 * (k & 1), low);
    lt_load<M>(p + 128 + 32 * (k >> 2), high);
#pragma unroll
    for (int i = 0; i < 8; i++)
        g.w[i] = (low[i] >> (2 * (k & 2)) & 0x0f0f0f0fu) | (high[i] >> (2 * (k & 3)) & 0x03030303u) << 4;
}

LT_WEIGHT(IQ4_NL, 144, 0, 0, 0)
{
    const uint8_t *p = row + 18 * (int64_t)b;
    uint32_t v[4];
    g.d = lt_half(lt_u16<M>(p));
    lt_load<M>(p + 2, v);
    lt_table(v, LT_IQ4_TABLE, g.w);
}

LT_WEIGHT(IQ4_XS, 136, 0, 0, 0)
{
    const uint8_t *p = row + 136 * (int64_t)(b >> 3);
    int k = b & 7;
    uint2 head = M::get((const uint2 *)p), x = M::get((const uint2 *)(p + 8 + 16 * k)), y = M::get((const uint2 *)(p + 16 + 16 * k));
    int ls = (int)((head.y >> (4 * k) & 15) | (head.x >> (16 + 2 * k) & 3) << 4) - 32;
    uint32_t v[4] = {x.x, x.y, y.x, y.y};
    g.d = lt_mul(lt_half(head.x & 0xffff), (float)ls);
    lt_table(v, LT_IQ4_TABLE, g.w);
}

LT_WEIGHT(MXFP4, 136, 0, 0, 0)
{
    const uint8_t *p = row + 17 * (int64_t)b;
    uint32_t v[4];
    g.d = lt_e8m0_half(lt_u8<M>(p));
    lt_load<M>(p + 1, v);
    lt_table(v, LT_FP4_TABLE, g.w);
}

#endif
