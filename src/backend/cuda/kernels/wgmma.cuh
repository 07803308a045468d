/* wgmma.cuh - products of a warp group on sm_90a, in shared memory of 128-byte swizzle, and the barriers around them.
 *
 * A tile of ROWS x D halves lies in panels of 64 columns: panel p, row r, 16-byte chunk c at
 * p * ROWS * 128 + r * 128 + (c ^ r % 8) * 16, from a multiple of 1024. */
#ifndef LT_CUDA_WGMMA_CUH
#define LT_CUDA_WGMMA_CUH

#include "common.cuh"

template <int ROWS> LT_DEV uint32_t wg_at(int row, int chunk)
{
    return (uint32_t)(chunk / 8 * ROWS * 128 + row * 128 + ((chunk ^ row) % 8) * 16);
}

/* Of such a tile. step: bytes between panels, looked at where the 64 columns of a panel lie along the other
 * dimension than the sum's (values). */
LT_DEV uint64_t wg_desc(uint32_t at, uint32_t step)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(step >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same, `bytes` further: tiles lie below 256 KiB, so no carry leaves the low word. */
LT_DEV uint64_t wg_step(uint64_t desc, uint32_t bytes)
{
    return (desc & 0xffffffff00000000u) | (uint32_t)((uint32_t)desc + (bytes >> 4));
}

LT_DEV void wg_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
LT_DEV void wg_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n> LT_DEV void wg_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory"); }
LT_DEV void wg_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* After a wait: nothing that reads or writes x is moved before here. */
template <int n> LT_DEV void wg_hold(float (&x)[n][4])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])::"memory");
}
template <int n> LT_DEV void wg_hold(uint32_t (&x)[n][4])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+r"(x[i][0]), "+r"(x[i][1]), "+r"(x[i][2]), "+r"(x[i][3])::"memory");
}

#define WG_4(d, i) "+f"((d)[i][0]), "+f"((d)[i][1]), "+f"((d)[i][2]), "+f"((d)[i][3])
#define WG_8(d, i) WG_4(d, i), WG_4(d, i + 1)
#define WG_16(d, i) WG_8(d, i), WG_8(d, i + 2)
#define WG_32(d, i) WG_16(d, i), WG_16(d, i + 4)
#define WG_64(d, i) WG_32(d, i), WG_32(d, i + 8)
#define WG_40(d, i) WG_32(d, i), WG_8(d, i + 8)
#define WG_48(d, i) WG_32(d, i), WG_16(d, i + 8)
#define WG_56(d, i) WG_48(d, i), WG_8(d, i + 12)
#define WG_68(d, i) WG_64(d, i), WG_4(d, i + 16)
#define WG_96(d, i) WG_64(d, i), WG_32(d, i + 16)
#define WG_128(d, i) WG_64(d, i), WG_64(d, i + 16)
#define WG_T0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WG_T32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define WG_T40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define WG_T48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define WG_T56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define WG_T64                                                                                                         \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91" \
    ",%92,%93,%94,%95"
#define WG_T96                                                                                                         \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118"  \
    ",%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* d (+)= a . b^T, both from shared memory, the sum along the columns of their panels. */
#define WG_SS(N, TEXT, OUT, A, B, ADD)                                                                                 \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                    \
                 "k16.f32.f16.f16 {" TEXT "}, %" A ", %" B ", p, 1, 1, 0, 0; }"                                        \
                 : OUT                                                                                                 \
                 : "l"(a), "l"(b), "r"(add))
template <int N> LT_DEV void wg_product(float (&d)[N / 8][4], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 64 || N == 128, "keys of a tile");
    if constexpr (N == 64)
        WG_SS(64, WG_T0, WG_32(d, 0), "32", "33", "34");
    else
        WG_SS(128, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56, WG_64(d, 0), "64", "65", "66");
}

/* Integers: d (+)= a . b^T of int8, 32 of the sum a time. */
#define WG_I4(d, i) "+r"((d)[i][0]), "+r"((d)[i][1]), "+r"((d)[i][2]), "+r"((d)[i][3])
#define WG_I16(d, i) WG_I4(d, i), WG_I4(d, i + 1), WG_I4(d, i + 2), WG_I4(d, i + 3)
#define WG_I32(d, i) WG_I16(d, i), WG_I16(d, i + 4)
#define WG_I64(d, i) WG_I32(d, i), WG_I32(d, i + 8)
#define WG_SS8(N, TEXT, OUT, A, B, ADD)                                                                                \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                    \
                 "k32.s32.s8.s8 {" TEXT "}, %" A ", %" B ", p; }"                                                      \
                 : OUT                                                                                                 \
                 : "l"(a), "l"(b), "r"(add))
template <int N> LT_DEV void wg_product8(uint32_t (&d)[N / 8][4], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 64 || N == 128, "keys of a tile");
    if constexpr (N == 64)
        WG_SS8(64, WG_T0, WG_I32(d, 0), "32", "33", "34");
    else
        WG_SS8(128, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56, WG_I64(d, 0), "64", "65", "66");
}

/* The same with a in registers: row l / 4 (and l / 4 + 8), bytes 4 (l % 4) .. and 16 further. */
#define WG_RS8(N, TEXT, OUT, A0, A1, A2, A3, B, ADD)                                                                   \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N                    \
                 "k32.s32.s8.s8 {" TEXT "}, {%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B ", p; }"                           \
                 : OUT                                                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
template <int N> LT_DEV void wg_product8(uint32_t (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    static_assert(N == 64 || N == 128, "keys of a tile");
    if constexpr (N == 64)
        WG_RS8(64, WG_T0, WG_I32(d, 0), "32", "33", "34", "35", "36", "37");
    else
        WG_RS8(128, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56, WG_I64(d, 0), "64", "65", "66", "67", "68", "69");
}

/* d += a . b, a in registers, the rows of b along the sum. */
#define WG_RS(N, TEXT, OUT, A0, A1, A2, A3, B)                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" TEXT "}, {%" A0 ",%" A1 ",%" A2 ",%" A3    \
                 "}, %" B ", 1, 1, 1, 1;"                                                                              \
                 : OUT                                                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <int N> LT_DEV void wg_weighted(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b)
{
    static_assert(N == 64 || N == 80 || N == 96 || N == 112 || N == 128 || N == 136 || N == 192 || N == 256, "head sizes");
    if constexpr (N == 64)
        WG_RS(64, WG_T0, WG_32(d, 0), "32", "33", "34", "35", "36");
    else if constexpr (N == 80)
        WG_RS(80, WG_T0 WG_T32, WG_40(d, 0), "40", "41", "42", "43", "44");
    else if constexpr (N == 96)
        WG_RS(96, WG_T0 WG_T32 WG_T40, WG_48(d, 0), "48", "49", "50", "51", "52");
    else if constexpr (N == 112)
        WG_RS(112, WG_T0 WG_T32 WG_T40 WG_T48, WG_56(d, 0), "56", "57", "58", "59", "60");
    else if constexpr (N == 128)
        WG_RS(128, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56, WG_64(d, 0), "64", "65", "66", "67", "68");
    else if constexpr (N == 136)
        WG_RS(136, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56 ",%64,%65,%66,%67", WG_68(d, 0), "68", "69", "70", "71", "72");
    else if constexpr (N == 192)
        WG_RS(192, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56 WG_T64, WG_96(d, 0), "96", "97", "98", "99", "100");
    else
        WG_RS(256, WG_T0 WG_T32 WG_T40 WG_T48 WG_T56 WG_T64 WG_T96, WG_128(d, 0), "128", "129", "130", "131",
              "132");
}

LT_DEV void bar_init(uint32_t bar, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
LT_DEV void bar_arrive(uint32_t bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
LT_DEV bool bar_try(uint32_t bar, int phase)
{
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(bar), "r"(phase)
                 : "memory");
    return done;
}
/* False after four seconds: a bug, of which the caller must make something that is seen. (A trap here costs the
 * registers that keep the products asynchronous.) */
LT_DEV bool bar_wait(uint32_t bar, int phase)
{
    if (bar_try(bar, phase))
        return true;
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        if (bar_try(bar, phase))
            return true;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < 4000000000u);
    return false;
}
/* One arrival, and bytes that copies to come will bring. */
LT_DEV void bar_expect(uint32_t bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* A box of a tensor to shared memory, 1024-aligned, swizzled as above; its bytes count at the barrier. */
LT_DEV void box_copy(uint32_t to, const lt_cuda_tensor *map, int x, int y, int z, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}
LT_DEV void bulk_copy(uint32_t to, const void *from, int bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
LT_DEV void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/* The same, and whether all had p. */
LT_DEV bool named_all(int id, int threads, bool p)
{
    uint32_t all;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.and.pred q, %1, %2, p; selp.u32 %0, 1, 0, q; }"
                 : "=r"(all)
                 : "r"(id), "r"(threads), "r"((uint32_t)p)
                 : "memory");
    return all;
}
LT_DEV void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

#endif
