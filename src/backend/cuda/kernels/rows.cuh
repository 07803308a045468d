/* rows.cuh - what rows.cu and fused.cu do to one element, or to one block of 32. */
#ifndef LT_CUDA_ROWS_CUH
#define LT_CUDA_ROWS_CUH

#include "common.cuh"

typedef struct lt_quant { int q; float d; uint32_t bits; } lt_quant;

/* The factor to int8 of a block whose largest magnitude has these bits, and its scale; see QUANTIZE in docs/arithmetic.md. */
LT_DEV float lt_inverse_scale(uint32_t bits, float &d)
{
    const float amax = __uint_as_float(bits);
    float id = amax > 0 ? lt_div(127.0f, amax) : 0.0f;
    d = lt_scale_of(bits);
    if (id == __int_as_float(0x7f800000))
        id = d = 0;
    return id;
}

LT_DEV int lt_round8(float x)
{
    const float v = rintf(x);
    return v != v ? 0 : v < -127.0f ? -127 : v > 127.0f ? 127 : (int)v;
}

/* A warp's 32 elements: the quantised one of this lane, and the block's scale. */
LT_DEV lt_quant lt_quantize(float x)
{
    lt_quant r;
    r.bits = __float_as_uint(x) & 0x7fffffffu;
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
        const uint32_t other = __shfl_xor_sync(LT_FULL, r.bits, s);
        r.bits = other > r.bits ? other : r.bits;
    }
    const float id = lt_inverse_scale(r.bits, r.d);
    r.q = lt_round8(lt_mul(x, id));
    return r;
}

/* Block b of a row of Q8A of cols elements. */
LT_DEV void quantize_block(float x, uint8_t *y, int cols, int b, int lane)
{
    const lt_quant v = lt_quantize(x);
    int sum = v.q;
#pragma unroll
    for (int s = 8; s > 0; s /= 2)
        sum += __shfl_xor_sync(LT_FULL, sum, s);
    ((int8_t *)y)[32 * b + lane] = (int8_t)v.q;
    if (lane == 0)
        ((float *)(y + cols))[b] = v.d;
    if (lane % 16 == 0)
        ((int16_t *)(y + cols + cols / 8))[2 * b + lane / 16] = (int16_t)sum;
}

/* The same, four elements a lane and eight lanes a block. */
LT_DEV void quantize_four(float4 x, uint8_t *y, int cols, int b, int lane)
{
    const float v[4] = {x.x, x.y, x.z, x.w};
    const uint32_t mask = 0xffu << (threadIdx.x & 24);
    uint32_t bits = 0, packed = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
        bits = max(bits, __shfl_xor_sync(mask, bits, s));
    float d, id = lt_inverse_scale(bits, d);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int q = lt_round8(lt_mul(v[i], id));
        sum += q;
        packed |= (uint32_t)(q & 0xff) << (8 * i);
    }
    sum += __shfl_xor_sync(mask, sum, 1);
    sum += __shfl_xor_sync(mask, sum, 2);
    *(uint32_t *)(y + 32 * b + 4 * lane) = packed;
    if (lane == 0)
        ((float *)(y + cols))[b] = d;
    if (lane % 4 == 0)
        ((int16_t *)(y + cols + cols / 8))[2 * b + lane / 4] = (int16_t)sum;
}

LT_DEV void rotate(float u, float v, float c, float s, float &a, float &b)
{
    a = lt_fma(u, c, -lt_mul(v, s));
    b = lt_fma(v, c, lt_mul(u, s));
}

LT_DEV float silu_times(float x, float z) { return lt_mul(lt_div(x, lt_add(1.0f, lt_exp(-x))), z); }

LT_DEV float gelu_times(float x, float z)
{
    const float u = lt_mul(0.79788456f, lt_fma(lt_mul(lt_mul(0.044715f, x), x), x, x));
    return lt_mul(lt_div(x, lt_add(1.0f, lt_exp(lt_mul(-2.0f, u)))), z);
}

/* Both comparisons are false for NaN, which stays. */
LT_DEV float clamp_times(float g, float u, float alpha, float limit)
{
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return lt_mul(lt_div(g, lt_add(1.0f, lt_exp(-lt_mul(alpha, g)))), lt_add(u, 1.0f));
}

/* The row of a position's K or V of one head; NULL, reported, when position or page is wrong. */
LT_DEV uint8_t *cache_row(const lt_cuda_kv &kv, uint64_t cache, int pos, uint64_t table, int h, bool value)
{
    if (pos < 0) {
        lt_wrong(kv.wrong, kv.name, LT_CUDA_WRONG_POSITION, pos);
        return 0;
    }
    const int page = lt_page(kv, table, pos / LT_PAGE);
    if (page < 0)
        return 0;
    return lt_at<uint8_t>(cache, (int64_t)((uint64_t)page * kv.page_bytes + (value ? kv.v_offset : kv.k_offset) +
                                           ((uint64_t)h * LT_PAGE + (uint64_t)(pos % LT_PAGE)) * kv.row_bytes));
}

/* Elements 32 * piece on of a head, by a warp. */
LT_DEV void store_piece(const lt_cuda_kv &kv, const float *x, uint8_t *row, int piece, int lane)
{
    const int i = 32 * piece + lane;
    if (kv.dtype == 2) {
        uint8_t *y = row + 34 * piece;
        const lt_quant v = lt_quantize(x[i]);
        if (lane == 0)
            *(unsigned short *)y = lt_to_half(lt_scale_of(v.bits));
        ((int8_t *)y)[2 + lane] = (int8_t)v.q;
    } else if (i < kv.head_dim) {
        if (kv.dtype == 1)
            ((unsigned short *)row)[i] = lt_to_half(x[i]);
        else
            ((float *)row)[i] = x[i];
    }
}

#endif
