/* experts_half.cu - the products of gemm_mma.cuh for the pairs of each expert. Rows of x are halved where they lie; a tile
 * gathers its pairs' and scatters their sums. */
#include "gemm_mma.cuh"

/* grid.y: rows of a token, x_pick apart. */
extern "C" __global__ void __launch_bounds__(256) expert_halve(lt_cuda_halve a, int64_t x_pick)
{
    halve_row(a, lt_at<const float4>(a.x, blockIdx.x * a.x_stride + blockIdx.y * x_pick), blockIdx.x * gridDim.y + blockIdx.y);
}

struct lt_pair_tiles {
    const lt_cuda_expert_gemm &b;
    const lt_cuda_expert_tile  tile;
    const int2                *pairs; /* in shared memory: pair, or -1, and row of x */
    LT_DEV int row_tile() const { return (int)blockIdx.x % b.a.tiles; }
    LT_DEV int token_tile() const { return 0; }
    LT_DEV uint64_t w() const { return b.a.w + (uint64_t)tile.expert * (uint64_t)b.w_expert; }
#if LT_HAS_MMA
    /* lt_fetch_tile of rows that lie anywhere. */
    template <int rows, int threads> LT_DEV void fetch(uint32_t to, uint64_t x, int, int k) const
    {
#pragma unroll
        for (int i = 0; i < rows * 8; i += threads) {
            const int id = i + (int)threadIdx.x, r = id / 8, c = id % 8, col = k + 8 * c;
            const int2 from = pairs[r];
            const int left = from.x >= 0 && col < b.a.cols ? 2 * (b.a.cols - col) : 0;
            lt_async16(to + (uint32_t)(128 * r + 16 * (c ^ (r & 7))), lt_at<const uint8_t>(x, left ? from.y * b.a.x_stride + 2 * (int64_t)col : 0),
                       left < 16 ? left : 16);
        }
    }
#endif
    LT_DEV void put(int r, int t, float sum) const
    {
        const int2 to = pairs[t];
        if (r < b.a.rows && to.x >= 0)
            *lt_at<float>(b.a.y, to.x / b.picks * b.a.y_stride + to.x % b.picks * b.y_pick + 4 * (int64_t)r) =
                lt_mul(sum, __ldg(lt_at<const float>(b.a.scale, 4 * (int64_t)to.y)));
    }
};

template <bool brain, int wn> LT_DEV void gemm(const lt_cuda_expert_gemm &b)
{
    __shared__ int2 pairs[32 * wn];
    const lt_cuda_expert_tile tile = ((const lt_cuda_expert_tile *)b.tiles)[blockIdx.x / (uint32_t)b.a.tiles];
    const int i = (int)threadIdx.x;
    if (!tile.count)
        return;
    if (i < 32 * wn) {
        const int pair = i < tile.count ? ((const int *)b.pairs)[tile.at + i] : -1;
        pairs[i] = make_int2(pair, b.x_pairs ? pair : pair / b.picks);
    }
    __syncthreads();
    gemm_half<brain, wn>(b.a, lt_pair_tiles{b, tile, pairs});
}

#define GEMM(name, brain)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256, 1) expert_gemm_##name##_128(lt_cuda_expert_gemm b) { gemm<brain, 4>(b); }       \
    extern "C" __global__ void __launch_bounds__(64, 4) expert_gemm_##name##_32(lt_cuda_expert_gemm b) { gemm<brain, 1>(b); }
GEMM(F16, false) GEMM(BF16, true)
