/* common.cuh - the arithmetic of docs/arithmetic.md, each operation rounded where that page says.
 *
 * The intrinsics name the rounding, so that no compiler flag can contract or approximate. */
#ifndef LT_CUDA_COMMON_CUH
#define LT_CUDA_COMMON_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "args.h"

#define LT_DEV __device__ __forceinline__
#define LT_PAGE 256 /* positions of a KV page: LT_KV_PAGE */
#define LT_FULL 0xffffffffu

LT_DEV float lt_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
LT_DEV float lt_mul(float a, float b) { return __fmul_rn(a, b); }
LT_DEV float lt_add(float a, float b) { return __fadd_rn(a, b); }
LT_DEV float lt_sub(float a, float b) { return __fsub_rn(a, b); }
LT_DEV float lt_div(float a, float b) { return __fdiv_rn(a, b); }

LT_DEV float lt_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.72f)
        return __int_as_float(0x7f800000);
    if (x < -87.33f)
        return 0.0f;
    float n = rintf(lt_mul(x, 1.44269504f));
    float r = lt_fma(n, -0.693359375f, x);
    r = lt_fma(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = lt_fma(p, r, 1.3981999507e-3f);
    p = lt_fma(p, r, 8.3334519073e-3f);
    p = lt_fma(p, r, 4.1665795894e-2f);
    p = lt_fma(p, r, 1.6666665459e-1f);
    p = lt_fma(p, r, 5.0000001201e-1f);
    p = lt_fma(p, lt_mul(r, r), r);
    p = lt_add(p, 1.0f);
    int e = (int)n;
    if (e == 128)
        return lt_mul(lt_mul(p, 2.0f), __int_as_float(254 << 23));
    return lt_mul(p, __int_as_float((e + 127) << 23));
}

LT_DEV float lt_tanh(float x)
{
    const float a = fabsf(x);
    if (a >= 0.625f)
        return copysignf(lt_sub(1.0f, lt_div(2.0f, lt_add(lt_exp(lt_add(a, a)), 1.0f))), x);
    const float s = lt_mul(x, x);
    float p = -5.70498872745e-3f;
    p = lt_fma(p, s, 2.06390887954e-2f);
    p = lt_fma(p, s, -5.37397155531e-2f);
    p = lt_fma(p, s, 1.33314422036e-1f);
    p = lt_fma(p, s, -3.33332819422e-1f);
    return lt_fma(lt_mul(p, s), x, x);
}

LT_DEV float lt_softcap(float x, float cap) { return lt_mul(cap, lt_tanh(lt_div(x, cap))); }

/* A sink z joins the sum l over scores of at most m: back comes the factor of what those summed. */
LT_DEV float lt_join_sink(float z, float m, float &l)
{
    const float n = z > m ? z : m, w = lt_exp(lt_sub(m, n));
    l = lt_fma(l, w, lt_exp(lt_sub(z, n)));
    return w;
}

LT_DEV float lt_half(uint32_t bits16) { return __half2float(__ushort_as_half((unsigned short)bits16)); }
/* amax / 127 from amax's bits; a NaN keeps its bits, made quiet, as x86 has it. */
LT_DEV float lt_scale_of(uint32_t bits)
{
    return bits > 0x7f800000u ? __uint_as_float(bits | 0x00400000u) : __fdiv_rn(__uint_as_float(bits), 127.0f);
}

/* To half, nearest even; a NaN keeps its sign and upper bits, as x86 has it. */
LT_DEV unsigned short lt_to_half(float x)
{
    const uint32_t b = __float_as_uint(x);
    if (x != x)
        return (unsigned short)((b >> 16 & 0x8000u) | 0x7e00u | (b >> 13 & 0x1ffu));
    return __half_as_ushort(__float2half_rn(x));
}
LT_DEV float lt_bf16(uint32_t bits16) { return __uint_as_float(bits16 << 16); }

/* a[i] = a[i] + a[i+s] for s = width/2 .. 1 over neighbouring lanes; lane 0 of each group has the sum. */
template <int width> LT_DEV float lt_tree(float a)
{
#pragma unroll
    for (int s = width / 2; s > 0; s /= 2)
        a = lt_add(a, __shfl_down_sync(LT_FULL, a, s, width));
    return a;
}

/* The same tree over eight accumulators of one thread. */
LT_DEV float lt_tree_8(float (&a)[8])
{
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            a[i] = lt_add(a[i], a[i + s]);
    return a[0];
}

/* Groups of asynchronous copies to shared memory; before sm_80 copies are there at once. */
LT_DEV void lt_copy_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* All but the last n committed groups of this thread are there. */
template <int n> LT_DEV void lt_copy_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

/* The same tree over the 256 threads of a block; every thread gets the sum. sh holds 256 floats. */
LT_DEV float lt_tree_block(float a, float *sh)
{
    int i = (int)threadIdx.x;
    sh[i] = a;
    __syncthreads();
#pragma unroll
    for (int s = 128; s >= 32; s /= 2) {
        if (i < s)
            sh[i] = lt_add(sh[i], sh[i + s]);
        __syncthreads();
    }
    if (i < 32) {
        float x = lt_tree<32>(sh[i]);
        if (i == 0)
            sh[0] = x;
    }
    __syncthreads();
    float r = sh[0];
    __syncthreads();
    return r;
}

/* First in every kernel: waits for the work before, where a graph may have launched this kernel early
 * (modules.c), and lets the next one be launched. Only what no kernel ever writes may be read above. */
LT_DEV void lt_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The first report stays until the host has seen it. */
LT_DEV void lt_wrong(uint64_t wrong, uint64_t name, int kind, int value)
{
    volatile lt_cuda_wrong *w = (volatile lt_cuda_wrong *)wrong;
    if (w->name == 0)
        *(uint4 *)wrong = make_uint4((uint32_t)name, (uint32_t)(name >> 32), (uint32_t)kind, (uint32_t)value);
}

/* The page behind a place of the table; -1, reported, when it is not in the cache. */
LT_DEV int lt_page(const lt_cuda_kv &kv, uint64_t table, int logical)
{
    const int page = ((const int *)table)[logical % kv.pages];
    if (page >= 0 && page < kv.limit)
        return page;
    lt_wrong(kv.wrong, kv.name, LT_CUDA_WRONG_PAGE, page);
    return -1;
}

template <typename T> LT_DEV T *lt_at(uint64_t addr, int64_t offset) { return (T *)(addr + (uint64_t)offset); }

#endif
