/* gemm_mma.cuh - a prompt's rows times f16 or bf16 weights on tensor cores.
 *
 * Activations become halves: f16 after division by a power of two that brings the row's largest magnitude to
 * 2^14 .. 2^15 (nothing overflows, and what is 2^28 times smaller still has all its bits); for bf16
 * weights a sum of two bf16, 16 bits in all. Each output is one chain of m16n8k16 products along the columns,
 * whatever the tile, so that the number of rows in the batch changes no bit. */
#ifndef LT_CUDA_GEMM_MMA_CUH
#define LT_CUDA_GEMM_MMA_CUH

#include "gemm_half.cuh"

#define STAGES LT_GEMM_MMA_STAGES

#if LT_HAS_MMA
/* 128 rows of the weight by 32*wn tokens; 2 x wn warps of 64 x 32. Where: which tiles, and where sums go. */
template <bool brain, int wn, typename Where> LT_DEV void gemm_half(const lt_cuda_gemm &a, const Where &where)
{
    enum { threads = 64 * wn, tokens = 32 * wn, of_w = 128 * 128, of_x = tokens * 128, bytes = of_w + of_x * (brain ? 2 : 1) };
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t base = lt_shared(shared);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = warp % 2 * 64, token = warp / 2 * 32;
    const int r0 = where.row_tile() * 128, t0 = where.token_tile() * tokens, n = (a.cols + LT_DEEP - 1) / LT_DEEP;
    float acc[4][4][4] = {{{0}}};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < n) {
            lt_fetch_tile<128, threads>(base + s * bytes, where.w(), a.w_stride, r0, a.rows, s * LT_DEEP, a.cols);
            where.template fetch<tokens, threads>(base + s * bytes + of_w, a.x, t0, s * LT_DEEP);
            if (brain)
                where.template fetch<tokens, threads>(base + s * bytes + of_w + of_x, a.x_low, t0, s * LT_DEEP);
        }
        lt_copy_commit();
    }
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        lt_copy_wait<STAGES - 2>();
        __syncthreads();
        const int next = k + STAGES - 1;
        if (next < n) {
            const uint32_t to = base + next % STAGES * bytes;
            lt_fetch_tile<128, threads>(to, where.w(), a.w_stride, r0, a.rows, next * LT_DEEP, a.cols);
            where.template fetch<tokens, threads>(to + of_w, a.x, t0, next * LT_DEEP);
            if (brain)
                where.template fetch<tokens, threads>(to + of_w + of_x, a.x_low, t0, next * LT_DEEP);
        }
        lt_copy_commit();
        const uint32_t w = base + k % STAGES * bytes, x = w + of_w;
#pragma unroll
        for (int s = 0; s < LT_DEEP / 16; s++) {
            uint32_t f[4][4], g[2][4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const int r = row + 16 * m + lane % 16;
                lt_ldmatrix4(f[m], w + (uint32_t)(128 * r + 16 * ((2 * s + lane / 16) ^ (r & 7))));
            }
#pragma unroll
            for (int part = 0; part < (brain ? 2 : 1); part++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int t = token + 16 * h + lane / 16 * 8 + lane % 8;
                    lt_ldmatrix4(g[h], x + (uint32_t)(part * of_x + 128 * t + 16 * ((2 * s + lane / 8 % 2) ^ (t & 7))));
                }
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int h = 0; h < 4; h++)
                        if (brain)
                            lt_mma_bf16(acc[m][h], f[m], g[h / 2][2 * (h % 2)], g[h / 2][2 * (h % 2) + 1]);
                        else
                            lt_mma_f16(acc[m][h], f[m], g[h / 2][2 * (h % 2)], g[h / 2][2 * (h % 2) + 1]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 4; h++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                where.put(r0 + row + 16 * m + 8 * (e / 2) + lane / 4, t0 + token + 8 * h + 2 * (lane % 4) + e % 2, acc[m][h][e]);
}
#else
template <bool brain, int wn, typename Where> LT_DEV void gemm_half(const lt_cuda_gemm &, const Where &) {}
#endif

#endif
