#include "graph/block.h"

#include "base/mem.h"

const int8_t lt__iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t lt__mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The block layouts, as files hold them: little endian, packed, no padding.
 *   Q4_0, IQ4_NL  f16 d | 16 nibbles          Q4_1  f16 d, m | 16 nibbles
 *   Q5_0          f16 d | u32 high | nibbles  Q5_1  f16 d, m | u32 high | nibbles
 *   Q8_0          f16 d | 32 int8             MXFP4 u8 e | 16 nibbles
 *   Q2_K  16 (min << 4 | scale) | 64 crumbs | f16 d, dmin
 *   Q3_K  32 high | 64 crumbs | 12 scales | f16 d
 *   Q4_K  f16 d, dmin | 12 scales and mins | 128 nibbles
 *   Q5_K  f16 d, dmin | 12 scales and mins | 32 high | 128 nibbles
 *   Q6_K  128 nibbles | 64 crumbs | 16 int8 scales | f16 d
 *   IQ4_XS  f16 d | u16 high of scales | 4 low of scales | 128 nibbles */

/* Low nibbles are elements 0-15 and high ones 16-31. */
static int nibble16(const uint8_t *q, int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

/* The super-blocks with 128 bytes of nibbles: 32 bytes hold two groups, low and high. */
static int nibble32(const uint8_t *q, uint32_t group, int i)
{
    return (q[32 * (group / 2) + i] >> (4 * (group % 2))) & 15;
}

/* 64 bytes of 2-bit fields: 32 bytes hold four groups. */
static int crumb32(const uint8_t *q, uint32_t group, int i)
{
    return (q[32 * (group / 4) + i] >> (2 * (group % 4))) & 3;
}

static void scales(lt__qgroup *g, float d, int32_t sc0, int32_t sc1)
{
    *g = (lt__qgroup){.d = d, .sc = {sc0, sc1}};
}

static void scales_mins(lt__qgroup *g, float d, int32_t sc0, int32_t sc1, float m, int32_t mn0, int32_t mn1)
{
    *g = (lt__qgroup){.d = d, .m = m, .sc = {sc0, sc1}, .mn = {mn0, mn1}, .has_min = true};
}

static float f16_at(const uint8_t *p)
{
    return lt__f16_to_f32(lt__load_u16(p));
}

static void decode_q4(const uint8_t *p, lt__qgroup *g)
{
    scales(g, f16_at(p), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)(nibble16(p + 2, i) - 8);
}

static void decode_q4_1(const uint8_t *p, lt__qgroup *g)
{
    scales_mins(g, f16_at(p), 1, 1, f16_at(p + 2), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)nibble16(p + 4, i);
}

static void decode_q5(const uint8_t *p, lt__qgroup *g)
{
    uint32_t high = lt__load_u32(p + 2);
    scales(g, f16_at(p), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)((nibble16(p + 6, i) | (int)(high >> i & 1) << 4) - 16);
}

static void decode_q5_1(const uint8_t *p, lt__qgroup *g)
{
    uint32_t high = lt__load_u32(p + 4);
    scales_mins(g, f16_at(p), 1, 1, f16_at(p + 2), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)(nibble16(p + 8, i) | (int)(high >> i & 1) << 4);
}

static void decode_q8(const uint8_t *p, lt__qgroup *g)
{
    scales(g, f16_at(p), 1, 1);
    memcpy(g->w, p + 2, 32);
}

static void decode_q2_k(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    const uint8_t *s = p + 2 * b;
    scales_mins(g, f16_at(p + 80), s[0] & 15, s[1] & 15, f16_at(p + 82), -(s[0] >> 4), -(s[1] >> 4));
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)crumb32(p + 16, b, i);
}

static void decode_q3_k(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    scales(g, f16_at(p + 108), lt__q3k_scale(p + 96, 2 * b), lt__q3k_scale(p + 96, 2 * b + 1));
    for (int i = 0; i < 32; i++) /* the mask bit is set where nothing is subtracted */
        g->w[i] = (int8_t)(crumb32(p + 32, b, i) - (p[i] >> b & 1 ? 0 : 4));
}

static void decode_q4_k(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    uint8_t sc, mn;
    lt__k4_scale_min(p + 4, b, &sc, &mn);
    scales_mins(g, f16_at(p) * sc, 1, 1, f16_at(p + 2) * mn, -1, -1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)nibble32(p + 16, b, i);
}

static void decode_q5_k(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    uint8_t sc, mn;
    lt__k4_scale_min(p + 4, b, &sc, &mn);
    scales_mins(g, f16_at(p) * sc, 1, 1, f16_at(p + 2) * mn, -1, -1);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)(nibble32(p + 48, b, i) | (p[16 + i] >> b & 1) << 4);
}

static void decode_q6_k(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    /* 64 bytes of nibbles hold four groups: 0 and 1 low, 2 and 3 high. */
    const uint8_t *low = p + 64 * (b / 4) + 32 * (b % 2), *high = p + 128;
    int shift = b % 4 < 2 ? 0 : 4;
    scales(g, f16_at(p + 208), (int8_t)p[192 + 2 * b], (int8_t)p[193 + 2 * b]);
    for (int i = 0; i < 32; i++)
        g->w[i] = (int8_t)((((low[i] >> shift) & 15) | crumb32(high, b, i) << 4) - 32);
}

static void decode_iq4_nl(const uint8_t *p, lt__qgroup *g)
{
    scales(g, f16_at(p), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = lt__iq4_values[nibble16(p + 2, i)];
}

static void decode_iq4_xs(const uint8_t *p, uint32_t b, lt__qgroup *g)
{
    int low = (p[4 + b / 2] >> (4 * (b % 2))) & 15, high = (lt__load_u16(p + 2) >> (2 * b)) & 3;
    scales(g, f16_at(p) * (float)((low | high << 4) - 32), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = lt__iq4_values[nibble16(p + 8 + 16 * b, i)];
}

static void decode_mxfp4(const uint8_t *p, lt__qgroup *g)
{
    scales(g, lt__e8m0_half(p[0]), 1, 1);
    for (int i = 0; i < 32; i++)
        g->w[i] = lt__mxfp4_values[nibble16(p + 1, i)];
}

void lt__qgroup_decode(lt_dtype t, const void *block, uint32_t index, lt__qgroup *out)
{
    const uint8_t *p = block;
    switch (t) {
    case LT_DTYPE_Q4_0:   decode_q4(p, out); return;
    case LT_DTYPE_Q4_1:   decode_q4_1(p, out); return;
    case LT_DTYPE_Q5_0:   decode_q5(p, out); return;
    case LT_DTYPE_Q5_1:   decode_q5_1(p, out); return;
    case LT_DTYPE_Q8_0:   decode_q8(p, out); return;
    case LT_DTYPE_Q2_K:   decode_q2_k(p, index, out); return;
    case LT_DTYPE_Q3_K:   decode_q3_k(p, index, out); return;
    case LT_DTYPE_Q4_K:   decode_q4_k(p, index, out); return;
    case LT_DTYPE_Q5_K:   decode_q5_k(p, index, out); return;
    case LT_DTYPE_Q6_K:   decode_q6_k(p, index, out); return;
    case LT_DTYPE_IQ4_NL: decode_iq4_nl(p, out); return;
    case LT_DTYPE_IQ4_XS: decode_iq4_xs(p, index, out); return;
    case LT_DTYPE_MXFP4:  decode_mxfp4(p, out); return;
    default:              LT_ASSERT(false && "a QUANT dtype");
    }
}
