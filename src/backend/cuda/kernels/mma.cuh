/* mma.cuh - tensor-core products, matrix loads and copies to shared memory, one line of PTX each.
 *
 * Fragments: lane l holds row l/4 (and l/4 + 8) and columns from 4*(l%4) (bytes) or 2*(l%4) (halves, sums). */
#ifndef LT_CUDA_MMA_CUH
#define LT_CUDA_MMA_CUH

#include "common.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define LT_HAS_MMA 1
#else
#define LT_HAS_MMA 0 /* such cards are never given these kernels: launch_gemm.c */
#endif

LT_DEV uint32_t lt_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

#if LT_HAS_MMA
/* Four 8 x 16-byte matrices; lanes 8i .. 8i+7 give the rows of matrix i. */
LT_DEV void lt_ldmatrix4(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

/* The same, each matrix transposed. */
LT_DEV void lt_ldmatrix4_trans(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

/* d = c + a[16 x 32 int8] . b[32 x 8 int8], every element of c being `c`. */
LT_DEV void lt_mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}

/* The same over 16 columns. */
LT_DEV void lt_mma_s8_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0, int c)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a0), "r"(a1), "r"(b0), "r"(c));
}

/* c += a[16 x 16] . b[16 x 8], halves. */
LT_DEV void lt_mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

LT_DEV void lt_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory past the first cache; `bytes` of them are read, the rest are zeros. */
LT_DEV void lt_async16(uint32_t dst, const void *src, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
#endif

#endif
