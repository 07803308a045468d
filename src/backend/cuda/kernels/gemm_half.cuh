/* gemm_half.cuh - tiles of halves in shared memory, shared by gemm_half.cu and gemm_sm90a.cu.
 *
 * A tile row is 64 halves, 128 bytes, in 16-byte pieces permuted by xor with row mod 8: no bank conflict for
 * ldmatrix, and what wgmma calls the 128-byte swizzle. */
#ifndef LT_CUDA_GEMM_HALF_CUH
#define LT_CUDA_GEMM_HALF_CUH

#include <cuda_bf16.h>

#include "mma.cuh"

#define LT_DEEP 64 /* columns a tile */

#if LT_HAS_MMA
/* `rows` rows from row `first` of a matrix of `limit` rows, columns k .. k+63; what lies outside is zeros. */
template <int rows, int threads> LT_DEV void lt_fetch_tile(uint32_t dst, uint64_t base, int64_t stride, int first, int limit, int k, int cols)
{
#pragma unroll
    for (int i = 0; i < rows * 8; i += threads) {
        const int id = i + (int)threadIdx.x, r = id / 8, c = id % 8;
        if (rows * 8 % threads && id >= rows * 8)
            break;
        const int row = first + r, col = k + 8 * c, left = row < limit && col < cols ? 2 * (cols - col) : 0;
        lt_async16(dst + (uint32_t)(128 * r + 16 * (c ^ (r & 7))), lt_at<const uint8_t>(base, (left ? row * stride + 2 * (int64_t)col : 0)),
                   left < 16 ? left : 16);
    }
}
#endif

LT_DEV uint32_t lt_pair(float x, float y) { return (uint32_t)__half_as_ushort(__float2half_rn(x)) | (uint32_t)__half_as_ushort(__float2half_rn(y)) << 16; }
LT_DEV float lt_rest(float x) /* what bf16 leaves of it */
{
    const float rest = lt_sub(x, __bfloat162float(__float2bfloat16_rn(x)));
    return rest - rest == 0.0f ? rest : 0.0f; /* inf - inf */
}
LT_DEV uint32_t lt_brain_pair(float x, float y)
{
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(x)) | (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(y)) << 16;
}

/* A row of activations to halves by a block, four elements a thread at a time: rows of a multiple of 8 elements, at multiples of
 * 16 bytes. Of each image, so that one load brings all a product needs. */
LT_DEV void halve_row(const lt_cuda_halve &a, const float4 *x, uint32_t row)
{
    __shared__ uint32_t most[8];
    const int n = a.cols / 4;
    uint32_t m = 0;
    for (int i = (int)threadIdx.x; i < n && !a.brain; i += 256) {
        const float4 v = x[i];
        m = max(max(m, __float_as_uint(v.x) & 0x7fffffffu), __float_as_uint(v.y) & 0x7fffffffu);
        m = max(max(m, __float_as_uint(v.z) & 0x7fffffffu), __float_as_uint(v.w) & 0x7fffffffu);
    }
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        m = max(m, __shfl_xor_sync(LT_FULL, m, s));
    if (threadIdx.x % 32 == 0)
        most[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++)
        m = max(m, most[i]);
    /* 14 - exponent, kept where both it and its inverse are normal; 0 for zeros, infinities and NaN */
    const int e = (int)(m >> 23), up = e == 0 || e == 255 ? 0 : min(max(141 - e, -126), 126);
    const float factor = __uint_as_float((uint32_t)(127 + up) << 23);
    if (threadIdx.x == 0)
        *lt_at<float>(a.scale, 4 * (int64_t)row) = __uint_as_float((uint32_t)(127 - up) << 23);
    uint2 *y = lt_at<uint2>(a.y, row * a.y_stride), *low = lt_at<uint2>(a.y_low, row * a.y_stride);
    for (int i = (int)threadIdx.x; i < n; i += 256) {
        const float4 v = x[i];
        if (a.brain) {
            y[i] = make_uint2(lt_brain_pair(v.x, v.y), lt_brain_pair(v.z, v.w));
            low[i] = make_uint2(lt_brain_pair(lt_rest(v.x), lt_rest(v.y)), lt_brain_pair(lt_rest(v.z), lt_rest(v.w)));
        } else {
            y[i] = make_uint2(lt_pair(lt_mul(v.x, factor), lt_mul(v.y, factor)), lt_pair(lt_mul(v.z, factor), lt_mul(v.w, factor)));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) gemm_halve(lt_cuda_halve a) { halve_row(a, lt_at<const float4>(a.x, blockIdx.x * a.x_stride), blockIdx.x); }

/* Sums of weight row r and token t: y = sum * scale[t]. */
LT_DEV void lt_put(const lt_cuda_gemm &a, int r, int t, float sum)
{
    if (r < a.rows && t < a.tokens)
        *lt_at<float>(a.y, t * a.y_stride + 4 * (int64_t)r) = lt_mul(sum, __ldg(lt_at<const float>(a.scale, 4 * (int64_t)t)));
}

/* Tiles of the weight's rows by tiles of tokens. */
struct lt_token_tiles {
    const lt_cuda_gemm &a;
    LT_DEV int row_tile() const { return (int)blockIdx.x / a.tiles; }
    LT_DEV int token_tile() const { return (int)blockIdx.x % a.tiles; }
    LT_DEV uint64_t w() const { return a.w; }
#if LT_HAS_MMA
    template <int rows, int threads> LT_DEV void fetch(uint32_t to, uint64_t x, int t0, int k) const
    {
        lt_fetch_tile<rows, threads>(to, x, a.x_stride, t0, a.tokens, k, a.cols);
    }
#endif
    LT_DEV void put(int r, int t, float sum) const { lt_put(a, r, t, sum); }
};

#endif
