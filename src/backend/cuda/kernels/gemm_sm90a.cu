/* gemm_sm90a.cu - gemm_half.cu's products by Hopper's warpgroup instructions: two warpgroups of 64 rows of the
 * weight each, both operands read from shared memory by the tensor cores themselves.
 *
 * Sums are those of wgmma, another order inside 16 columns than mma's: which one runs is the card's choice, not
 * the batch's. Loads aim two tiles behind the product at work: a slot is written when every warp is known to
 * have finished with it at the barrier before, so that no product waits for another warpgroup. */
#include "gemm_half.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define HOPPER 1
#else
#define HOPPER 0
#endif

#if HOPPER
/* Rows of 128 bytes, swizzled over 128; groups of eight rows 1,024 bytes apart. */
LT_DEV uint64_t lt_matrix(uint32_t addr) { return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62; }
LT_DEV void lt_wgmma_begin(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LT_DEV void lt_wgmma_end(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> LT_DEV void lt_wgmma_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }
/* Shared memory written by this thread, to be read by the tensor cores. */
LT_DEV void lt_publish(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define LT_OUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
/* d[64 x 128] += a[64 x 16] . b[128 x 16]^T */
LT_DEV void lt_wgmma_f16(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
        : LT_OUT4(d, 0), LT_OUT4(d, 4), LT_OUT4(d, 8), LT_OUT4(d, 12),
          LT_OUT4(d, 16), LT_OUT4(d, 20), LT_OUT4(d, 24), LT_OUT4(d, 28),
          LT_OUT4(d, 32), LT_OUT4(d, 36), LT_OUT4(d, 40), LT_OUT4(d, 44),
          LT_OUT4(d, 48), LT_OUT4(d, 52), LT_OUT4(d, 56), LT_OUT4(d, 60)
        : "l"(a), "l"(b));
}
/* d[64 x 128] += a[64 x 16] . b[128 x 16]^T */
LT_DEV void lt_wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
        : LT_OUT4(d, 0), LT_OUT4(d, 4), LT_OUT4(d, 8), LT_OUT4(d, 12),
          LT_OUT4(d, 16), LT_OUT4(d, 20), LT_OUT4(d, 24), LT_OUT4(d, 28),
          LT_OUT4(d, 32), LT_OUT4(d, 36), LT_OUT4(d, 40), LT_OUT4(d, 44),
          LT_OUT4(d, 48), LT_OUT4(d, 52), LT_OUT4(d, 56), LT_OUT4(d, 60)
        : "l"(a), "l"(b));
}
/* d[64 x 64] += a[64 x 16] . b[64 x 16]^T */
LT_DEV void lt_wgmma_f16(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : LT_OUT4(d, 0), LT_OUT4(d, 4), LT_OUT4(d, 8), LT_OUT4(d, 12),
          LT_OUT4(d, 16), LT_OUT4(d, 20), LT_OUT4(d, 24), LT_OUT4(d, 28)
        : "l"(a), "l"(b));
}
/* d[64 x 64] += a[64 x 16] . b[64 x 16]^T */
LT_DEV void lt_wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : LT_OUT4(d, 0), LT_OUT4(d, 4), LT_OUT4(d, 8), LT_OUT4(d, 12),
          LT_OUT4(d, 16), LT_OUT4(d, 20), LT_OUT4(d, 24), LT_OUT4(d, 28)
        : "l"(a), "l"(b));
}
#undef LT_OUT4

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
    float acc[tokens / 2];
#pragma unroll
    for (int i = 0; i < tokens / 2; i++)
        acc[i] = 0;
#pragma unroll
    for (int s = 0; s < stages - 2; s++) {
        if (s < n)
            fetch_tiles<brain, tokens>(a, base + s * bytes, r0, t0, s);
        lt_async_commit();
    }
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        lt_async_wait<stages - 3>();
        lt_publish();
        __syncthreads();
        const uint32_t w = base + k % stages * bytes, x = w + of_w;
        lt_wgmma_begin();
#pragma unroll
        for (int s = 0; s < LT_DEEP / 16; s++)
#pragma unroll
            for (int part = 0; part < (brain ? 2 : 1); part++) {
                const uint64_t wa = lt_matrix(w + row * 128 + 32 * s), xb = lt_matrix(x + part * of_x + 32 * s);
                if (brain)
                    lt_wgmma_bf16(acc, wa, xb);
                else
                    lt_wgmma_f16(acc, wa, xb);
            }
        lt_wgmma_end();
        const int next = k + stages - 2;
        if (next < n)
            fetch_tiles<brain, tokens>(a, base + next % stages * bytes, r0, t0, next);
        lt_async_commit();
        lt_wgmma_wait<1>();
    }
    lt_wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < tokens / 2; i++)
        lt_put(a, r0 + row + warp % 4 * 16 + i / 2 % 2 * 8 + lane / 4, t0 + i / 4 * 8 + 2 * (lane % 4) + i % 2, acc[i]);
}
#else
template <bool brain, int tokens, int stages> LT_DEV void gemm_wg(const lt_cuda_gemm &) {}
#endif

#define GEMM(name, brain, stages)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_wg_##name##_128(lt_cuda_gemm a) { gemm_wg<brain, 128, stages>(a); }           \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_wg_##name##_64(lt_cuda_gemm a) { gemm_wg<brain, 64, stages>(a); }
GEMM(F16, false, 6) GEMM(BF16, true, 4)
