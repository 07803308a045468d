/* stage.cuh - bytes on their way to shared memory, and launches that begin before the one before has ended. */
#ifndef LT_CUDA_STAGE_CUH
#define LT_CUDA_STAGE_CUH

#include "common.cuh"

/* 16 bytes, asynchronous from sm_80 on; before it they are there at once. */
LT_DEV void lt_copy16(void *shared, const void *global)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
#else
    *(uint4 *)shared = __ldg((const uint4 *)global);
#endif
}

/* Bytes read once: not kept in L1, fetched in large pieces. */
LT_DEV uint4 lt_load_once(const void *p)
{
#if __CUDA_ARCH__ >= 800
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
#else
    return __ldg((const uint4 *)p);
#endif
}

/* The weight of a launch that a unit of rows belongs to. */
LT_DEV int lt_part_index(const lt_cuda_linear &a, int unit)
{
    int p = 0;
#pragma unroll
    for (int i = 1; i < LT_CUDA_LINEAR_PARTS; i++)
        p += i < a.parts && unit >= a.part[i].first;
    return p;
}
LT_DEV const lt_cuda_linear_part *lt_part_of(const lt_cuda_linear &a, int unit) { return &a.part[lt_part_index(a, unit)]; }

/* Whose rows a block multiplies: a tile of tokens that lie behind each other. Weights are known before the launch, so
 * they may be loaded before what makes x is done. experts.cu has others. */
struct lt_tokens {
    enum { early = 1 };
    const lt_cuda_linear &a;
    const int             tile;
    LT_DEV uint64_t w(const lt_cuda_linear_part &p) const { return p.w; }
    LT_DEV int at(int tokens, int t) const { return tile * tokens + t; }
    LT_DEV bool has(int at) const { return at < a.tokens; }
    LT_DEV const uint8_t *x(int at) const { return lt_at<const uint8_t>(a.x, (at < a.tokens ? at : a.tokens - 1) * a.x_stride); }
    LT_DEV void put(const lt_cuda_linear_part &p, int at, int row, float v) const { *lt_at<float>(p.y, at * p.y_stride + 4 * (int64_t)row) = v; }
};
/* The token blockIdx.y alone. */
struct lt_token : lt_tokens {
    LT_DEV const uint8_t *x(int at) const { return lt_at<const uint8_t>(a.x, at * a.x_stride); }
};

#endif
