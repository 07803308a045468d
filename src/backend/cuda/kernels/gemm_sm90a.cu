/* gemm_sm90a.cu - gemm_half.cu's products by Hopper's warpgroup instructions: two warpgroups of 64 rows of the
 * weight each, both operands read from shared memory by the tensor cores themselves.
 *
 * Sums are those of wgmma, another order inside 16 columns than mma's: which one runs is the card's choice, not
 * the batch's. Loads aim two tiles behind the product at work: a slot is written when every warp is known to
 * have finished with it at the barrier before, so that no product waits for another warpgroup. */
#include "gemm_half.cuh"
#include "wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define HOPPER 1
#else
#define HOPPER 0
#endif

#if HOPPER
#define ADD(N, TYPE, TEXT, OUT, A, B)                                                                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TEXT "}, %" A ", %" B ", 1, 1, 1, 0, 0;"            \
                 : OUT                                                                                                                     \
                 : "l"(a), "l"(b))
#define TEXT_128 WG_T0 WG_T32 WG_T40 WG_T48 WG_T56
/* d[64 x N] += a[64 x 16] . b[N x 16]^T, of f16 or bf16 */
template <bool brain, int N> LT_DEV void add_product(float (&d)[N / 8][4], uint64_t a, uint64_t b)
{
    static_assert(N == 64 || N == 128, "tokens of a tile");
    if constexpr (N == 64 && !brain)
        ADD(64, "f16", WG_T0, WG_32(d, 0), "32", "33");
    else if constexpr (N == 64)
        ADD(64, "bf16", WG_T0, WG_32(d, 0), "32", "33");
    else if constexpr (!brain)
        ADD(128, "f16", TEXT_128, WG_64(d, 0), "64", "65");
    else
        ADD(128, "bf16", TEXT_128, WG_64(d, 0), "64", "65");
}

template <bool brain, int tokens> LT_DEV void fetch_tiles(const lt_cuda_gemm &a, uint32_t to, int r0, int t0, int k)
{
    lt_fetch_tile<128, 256>(to, a.w, a.w_stride, r0, a.rows, k * LT_DEEP, a.cols);
    lt_fetch_tile<tokens, 256>(to + 128 * 128, a.x, a.x_stride, t0, a.tokens, k * LT_DEEP, a.cols);
    if (brain)
        lt_fetch_tile<tokens, 256>(to + 128 * 128 + tokens * 128, a.x_low, a.x_stride, t0, a.tokens, k * LT_DEEP, a.cols);
}

template <bool brain, int tokens, int stages> LT_DEV void gemm_wg(const lt_cuda_gemm &a)
{
    enum { of_w = 128 * 128, of_x = tokens * 128, bytes = of_w + of_x * (brain ? 2 : 1) };
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t base = (lt_shared(shared) + 1023) & ~1023u;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, row = warp / 4 * 64;
    const int r0 = (int)blockIdx.x / a.tiles * 128, t0 = (int)blockIdx.x % a.tiles * tokens, n = (a.cols + LT_DEEP - 1) / LT_DEEP;
    float acc[tokens / 8][4];
#pragma unroll
    for (int i = 0; i < tokens / 2; i++)
        acc[i / 4][i % 4] = 0;
#pragma unroll
    for (int s = 0; s < stages - 2; s++) {
        if (s < n)
            fetch_tiles<brain, tokens>(a, base + s * bytes, r0, t0, s);
        lt_copy_commit();
    }
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        lt_copy_wait<stages - 3>();
        wg_proxy();
        __syncthreads();
        const uint32_t w = base + k % stages * bytes, x = w + of_w;
        wg_fence();
#pragma unroll
        for (int s = 0; s < LT_DEEP / 16; s++)
#pragma unroll
            for (int part = 0; part < (brain ? 2 : 1); part++)
                add_product<brain, tokens>(acc, wg_desc(w + row * 128 + 32 * s, 16), wg_desc(x + part * of_x + 32 * s, 16));
        wg_commit();
        const int next = k + stages - 2;
        if (next < n)
            fetch_tiles<brain, tokens>(a, base + next % stages * bytes, r0, t0, next);
        lt_copy_commit();
        wg_wait<1>();
    }
    wg_wait<0>();
#pragma unroll
    for (int i = 0; i < tokens / 2; i++)
        lt_put(a, r0 + row + warp % 4 * 16 + i / 2 % 2 * 8 + lane / 4, t0 + i / 4 * 8 + 2 * (lane % 4) + i % 2, acc[i / 4][i % 4]);
}
#else
template <bool brain, int tokens, int stages> LT_DEV void gemm_wg(const lt_cuda_gemm &) {}
#endif

#define GEMM(name, brain, stages)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_wg_##name##_128(lt_cuda_gemm a) { gemm_wg<brain, 128, stages>(a); }           \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_wg_##name##_64(lt_cuda_gemm a) { gemm_wg<brain, 64, stages>(a); }
GEMM(F16, false, LT_GEMM_WG_F16_STAGES) GEMM(BF16, true, LT_GEMM_WG_BF16_STAGES)
