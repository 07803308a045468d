/* linear.cu - rows of activations times a weight, one to eight tokens a pass over it.
 *
 * Quantised: eight lanes a row, lane c owns accumulator c and walks blocks c, c + 8, ... Float: a warp a
 * row, lane l owns accumulators 8l .. 8l + 7 of 256. Both are the orders of docs/arithmetic.md, so a CPU
 * that computes the same row gets the same bits. Blocks of one row range and different tokens are
 * neighbours in the grid: the weight comes from memory once and from L2 after. */
#include "weights.cuh"

#define WARPS 4
#define ROWS_WARP 4 /* quantised rows of a warp */

template <int dt, int tokens> LT_DEV void dot_blocks(const lt_cuda_linear &a, const uint8_t *row, int c, const uint8_t *x, float (&acc)[tokens])
{
    typedef lt_weight<dt> W;
    const int blocks = a.cols / 32;
    for (int b = c; b < blocks; b += 8) {
        lt_group g;
        W::group(row, b, g);
#pragma unroll
        for (int t = 0; t < tokens; t++) {
            const uint8_t *q = x + (int64_t)t * a.x_stride;
            const float da = __ldg((const float *)(q + a.cols + 4 * b));
            const uint32_t sums = __ldg((const uint32_t *)(q + a.cols + a.cols / 8 + 4 * b));
            const int s0 = (int16_t)(sums & 0xffff), s1 = (int16_t)(sums >> 16);
            int i0 = 0, i1 = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint2 v = __ldg((const uint2 *)(q + 32 * b) + k);
                int &i = k < 2 ? i0 : i1;
                i = __dp4a((int)g.w[2 * k], (int)v.x, i);
                i = __dp4a((int)g.w[2 * k + 1], (int)v.y, i);
            }
            i0 -= W::offset * s0;
            i1 -= W::offset * s1;
            const int sum = W::halves ? g.sc0 * i0 + g.sc1 * i1 : i0 + i1;
            acc[t] = lt_fma((float)sum, lt_mul(g.d, da), acc[t]);
            if (W::mins)
                acc[t] = lt_fma((float)(g.mn0 * s0 + g.mn1 * s1), lt_mul(g.m, da), acc[t]);
        }
    }
}

template <int dt, int tokens> LT_DEV void linear_quant(const lt_cuda_linear &a)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int r = ((int)blockIdx.x / a.tiles * WARPS + warp) * ROWS_WARP + lane / 8, t0 = (int)blockIdx.x % a.tiles * tokens;
    const int row = r < a.rows ? r : a.rows - 1; /* lanes stay together for the tree */
    float acc[tokens] = {0};
    dot_blocks<dt, tokens>(a, lt_at<const uint8_t>(a.w, row * a.w_stride), lane % 8, lt_at<const uint8_t>(a.x, t0 * a.x_stride), acc);
#pragma unroll
    for (int t = 0; t < tokens; t++) {
        const float y = lt_tree<8>(acc[t]);
        if (lane % 8 == 0 && r < a.rows)
            *lt_at<float>(a.y, (t0 + t) * a.y_stride + 4 * (int64_t)r) = y;
    }
}

/* Eight consecutive weights of a float dtype; `n` of them exist. */
template <typename T> struct lt_floats;
template <> struct lt_floats<float> {
    static LT_DEV void load(const uint8_t *p, int n, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? __ldg((const float *)p + i) : 0.0f;
    }
    static LT_DEV void wide(const uint8_t *p, float (&v)[8])
    {
        const float4 x = __ldg((const float4 *)p), y = __ldg((const float4 *)p + 1);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
};
template <bool brain> struct lt_halves {
    static LT_DEV float one(uint32_t bits) { return brain ? lt_bf16(bits) : lt_half(bits); }
    static LT_DEV void load(const uint8_t *p, int n, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? one(lt_u16(p + 2 * i)) : 0.0f;
    }
    static LT_DEV void wide(const uint8_t *p, float (&v)[8])
    {
        const uint4 x = __ldg((const uint4 *)p);
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = one(w[i] & 0xffff);
            v[2 * i + 1] = one(w[i] >> 16);
        }
    }
};
template <> struct lt_floats<__half> : lt_halves<false> {};
template <> struct lt_floats<unsigned short> : lt_halves<true> {};

/* The halving tree of 256 accumulators, eight a lane: lanes first (128 to 8), then within the lane. */
LT_DEV float tree_256(float (&acc)[8])
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i] = lt_add(acc[i], __shfl_down_sync(LT_FULL, acc[i], s));
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            acc[i] = lt_add(acc[i], acc[i + s]);
    return acc[0];
}

/* A lane that has no element left adds nothing: fma(0, x, a) would turn -0 and NaN. */
template <typename T, int tokens, bool aligned> LT_DEV void linear_float(const lt_cuda_linear &a)
{
    const int lane = (int)threadIdx.x % 32, r = (int)blockIdx.x / a.tiles * WARPS + (int)threadIdx.x / 32;
    const int t0 = (int)blockIdx.x % a.tiles * tokens;
    const int row = r < a.rows ? r : a.rows - 1;
    const uint8_t *w = lt_at<const uint8_t>(a.w, row * a.w_stride), *x = lt_at<const uint8_t>(a.x, t0 * a.x_stride);
    float acc[tokens][8] = {{0}};
#pragma unroll 2
    for (int i = 8 * lane; i < a.cols; i += 256) {
        const int n = a.cols - i < 8 ? a.cols - i : 8;
        float v[8], u[8];
        if (aligned)
            lt_floats<T>::wide(w + (int64_t)i * (int64_t)sizeof(T), v);
        else
            lt_floats<T>::load(w + (int64_t)i * (int64_t)sizeof(T), n, v);
#pragma unroll
        for (int t = 0; t < tokens; t++) {
            const uint8_t *p = x + t * a.x_stride + 4 * (int64_t)i;
            if (aligned)
                lt_floats<float>::wide(p, u);
            else
                lt_floats<float>::load(p, n, u);
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (aligned || k < n)
                    acc[t][k] = lt_fma(v[k], u[k], acc[t][k]);
        }
    }
#pragma unroll
    for (int t = 0; t < tokens; t++) {
        const float y = tree_256(acc[t]);
        if (lane == 0 && r < a.rows)
            *lt_at<float>(a.y, (t0 + t) * a.y_stride + 4 * (int64_t)r) = y;
    }
}

#define QUANT(name)                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_1(lt_cuda_linear a) { linear_quant<LT_W_##name, 1>(a); } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_2(lt_cuda_linear a) { linear_quant<LT_W_##name, 2>(a); } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_4(lt_cuda_linear a) { linear_quant<LT_W_##name, 4>(a); } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_8(lt_cuda_linear a) { linear_quant<LT_W_##name, 8>(a); }
QUANT(Q4_0) QUANT(Q4_1) QUANT(Q5_0) QUANT(Q5_1) QUANT(Q8_0) QUANT(Q2_K) QUANT(Q3_K) QUANT(Q4_K) QUANT(Q5_K) QUANT(Q6_K)
QUANT(IQ4_NL) QUANT(IQ4_XS) QUANT(MXFP4)

#define FLOATS(name, T)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_1(lt_cuda_linear a) { linear_float<T, 1, true>(a); }      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_2(lt_cuda_linear a) { linear_float<T, 2, true>(a); }      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_4(lt_cuda_linear a) { linear_float<T, 4, true>(a); }      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_8(lt_cuda_linear a) { linear_float<T, 8, true>(a); }      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_any_1(lt_cuda_linear a) { linear_float<T, 1, false>(a); } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name##_any_4(lt_cuda_linear a) { linear_float<T, 4, false>(a); }
FLOATS(F32, float) FLOATS(F16, __half) FLOATS(BF16, unsigned short)
