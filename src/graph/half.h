/* half.h - f16 and bf16 to f32 and back, by bits: exact one way, nearest even the other.
 *
 * Agrees with the F16C instructions in every bit, NaN included (payload kept, made quiet). */
#ifndef LT_GRAPH_HALF_H
#define LT_GRAPH_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t lt__f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float lt__bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

/* Little endian, any alignment: block fields are not aligned. */
static inline uint16_t lt__load_u16(const void *p) { uint16_t u; memcpy(&u, p, 2); return u; }
static inline uint32_t lt__load_u32(const void *p) { uint32_t u; memcpy(&u, p, 4); return u; }

static inline float lt__f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
    if (exponent == 31)
        return lt__bits_f32(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0));
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24, exact */
        float x = (float)mantissa * 0x1p-24f;
        return lt__bits_f32(lt__f32_bits(x) | sign);
    }
    return lt__bits_f32(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline uint16_t lt__f32_to_f16(float x)
{
    uint32_t u = lt__f32_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520, half a step above the largest, and all beyond */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* 2^-14, the smallest normal; a carry moves to the next exponent */
        a += 0xfffu + ((a >> 13) & 1u);
        return (uint16_t)(sign | ((a - 0x38000000u) >> 13));
    }
    if (a < 0x33000000u) /* 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    uint32_t shift = 126u - (a >> 23), m = (a & 0x7fffffu) | 0x800000u;
    uint32_t q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
    q += rest > half || (rest == half && (q & 1));
    return (uint16_t)(sign | q);
}

static inline float lt__bf16_to_f32(uint16_t h) { return lt__bits_f32((uint32_t)h << 16); }

static inline uint16_t lt__f32_to_bf16(float x)
{
    uint32_t u = lt__f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
