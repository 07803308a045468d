/* math.h - scalar arithmetic of docs/arithmetic.md, and the decoders of block.h, for the
 * reference and for the tails of the fast kernels. */
#ifndef LT_CPU_MATH_H
#define LT_CPU_MATH_H

#include <math.h>
#include <string.h>

#include "graph/block.h"
#include "graph/half.h"

static inline float lt__expf(float x)
{
    if (x != x)
        return x;
    if (x > 88.72f)
        return INFINITY;
    if (x < -87.33f)
        return 0.0f;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r);
    p = p + 1.0f;
    int k = (int)n;
    if (k == 128) /* 2^128 has no f32 */
        return p * 2.0f * 0x1p127f;
    return p * lt__bits_f32((uint32_t)(k + 127) << 23);
}

static inline float lt__siluf(float x)
{
    return x / (1.0f + lt__expf(-x));
}

static inline float lt__geluf(float x)
{
    float u = 0.79788456f * fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + lt__expf(-2.0f * u));
}

/* Both comparisons are false for NaN, which stays. */
static inline float lt__clamp_mulf(float g, float u, float alpha, float limit)
{
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return g / (1.0f + lt__expf(-(alpha * g))) * (u + 1.0f);
}

static inline float lt__tanhf(float x)
{
    float a = fabsf(x);
    if (a >= 0.625f)
        return copysignf(1.0f - 2.0f / (lt__expf(a + a) + 1.0f), x);
    float s = x * x;
    float p = -5.70498872745e-3f;
    p = fmaf(p, s, 2.06390887954e-2f);
    p = fmaf(p, s, -5.37397155531e-2f);
    p = fmaf(p, s, 1.33314422036e-1f);
    p = fmaf(p, s, -3.33332819422e-1f);
    return fmaf(p * s, x, x);
}

static inline float lt__softcapf(float x, float cap)
{
    return cap * lt__tanhf(x / cap);
}

/* The larger of m and |x| by bit pattern: as by value, but NaN is above infinity and wins. */
static inline float lt__amax(float m, float x)
{
    uint32_t a, b;
    memcpy(&a, &m, sizeof a);
    memcpy(&b, &x, sizeof b);
    b &= 0x7fffffffu;
    a = b > a ? b : a;
    memcpy(&m, &a, sizeof m);
    return m;
}

/* rint(x * id) in [-127, 127]; NaN gives 0. */
static inline int8_t lt__quantize(float x, float id)
{
    float q = rintf(x * id);
    if (q != q)
        return 0;
    return (int8_t)(q < -127.0f ? -127.0f : q > 127.0f ? 127.0f : q);
}

/* a[i] += a[i+s] for s = n/2 .. 1; n a power of two. */
static inline float lt__halving_tree(float *a, int n)
{
    for (int s = n / 2; s; s /= 2) {
        for (int i = 0; i < s; i++)
            a[i] = a[i] + a[i + s];
    }
    return a[0];
}

/* A row of Q8A: where the parts of `cols` elements lie. */
static inline const float *lt__q8a_scales(const int8_t *row, uint64_t cols)
{
    return (const float *)(const void *)(row + cols);
}
static inline const int16_t *lt__q8a_sums(const int8_t *row, uint64_t cols)
{
    return (const int16_t *)(const void *)(row + cols + cols / 32 * 4);
}

#endif
