/* flash_sm90a.cu - causal attention over a prompt on Hopper: wgmma, compiled for sm_90a only.
 *
 * GROUPS warp groups of 64 rows each compute, one more feeds them: tiles of BN keys in a ring of two, K and V apart.
 * The products of the next tile run under the softmax of this one, and with two groups one's softmax
 * under the other's products (TURNS). */
#include "flash.cuh"
#include "flash_shape.h"
#include "wgmma.cuh"

template <int D, int BN, int GROUPS, int STAGES> struct shape {
    static constexpr int BM = 64 * GROUPS, HALF = LT_FLASH90_PANEL(D, BN);
    static constexpr int Q = 1024, K = Q + LT_FLASH90_PANEL(D, BM), V = K + STAGES * HALF;
    static constexpr int FULL = 0, EMPTY = 2 * STAGES, BARS = 4 * STAGES; /* full K, full V, empty K, empty V, each a stage */
    static_assert(V + STAGES * HALF + 1024 == LT_FLASH90_BYTES(D, BN, BM, STAGES), "launches ask for as much");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Bytes b of Q8_0 to two halves: exact integers, then one rounding with the scale. */
LT_DEV __half2 q8_pair(uint32_t b, __half2 d)
{
    const uint32_t u = __byte_perm(b ^ 0x8080u, 0x64646464u, 0x4140);
    const __half2 h = __hsub2(*(const __half2 *)&u, __float2half2_rn(1152.0f));
    return __hmul2(h, d);
}

/* K or V of a tile. Positions outside first .. last become 0. */
template <int D, int KV, int BN> LT_DEV void feed_half(const lt_cuda_attention &a, uint32_t to, const uint8_t *rows, int base, const flash_span &sp)
{
    const int tid = (int)threadIdx.x % 128;
    if (KV == 1) {
        constexpr int CHUNKS = D / 8;
#pragma unroll 4 /* more would not fit the registers */
        for (int i = 0; i < BN * CHUNKS / 128; i++) {
            const int n = i * 128 + tid, row = n / CHUNKS, c = n % CHUNKS;
            const bool there = rows && base + row >= sp.first && base + row <= sp.last;
            flash_copy16(to + wg_at<BN>(row, c), there ? rows + 16 * n : (const uint8_t *)a.cache, there);
        }
        return;
    }
    constexpr int BLOCKS = D / 32;
#pragma unroll 2
    for (int i = 0; i < BN * BLOCKS / 128; i++) {
        const int n = i * 128 + tid, row = n / BLOCKS, c = n % BLOCKS;
        const bool there = rows && base + row >= sp.first && base + row <= sp.last;
        uint32_t w[17];
        const unsigned short *b = (const unsigned short *)(rows + 34 * n);
#pragma unroll
        for (int j = 0; j < 17; j++)
            w[j] = there ? __ldg(b + j) : 0;
        const __half2 d = __half2half2(__ushort_as_half((unsigned short)w[0]));
#pragma unroll
        for (int q = 0; q < 4; q++) {
            __half2 h[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                h[j] = q8_pair(w[1 + 4 * q + j], d);
            const uint32_t *u = (const uint32_t *)h;
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to + wg_at<BN>(row, 4 * c + q)), "r"(u[0]), "r"(u[1]), "r"(u[2]),
                         "r"(u[3]));
        }
    }
}

/* The feeding group. Its first thread has the copy engine bring what the rows see all of; what they see in part, and
 * Q8_0, all threads bring. */
template <int D, int KV, int BN, int GROUPS, int STAGES>
LT_DEV void feed(const lt_cuda_attention &a, const lt_cuda_flash_maps &maps, uint32_t smem, uint32_t bars, int begin, int end, int kv_head,
                 const flash_span &sp)
{
    typedef shape<D, BN, GROUPS, STAGES> S;
    const bool lead = threadIdx.x % 128 == 0;
    int page = -1, page_of = -1;
    bool taken = true; /* false: the computing groups are stuck, which they report */
    for (int h = 0; h < 2 * (end - begin + 1); h++) {
        const int value = h % 2, tile = begin + h / 2, stage = h / 2 % STAGES, round = h / 2 / STAGES, base = tile * BN;
        const uint32_t room = bars + 8 * (S::EMPTY + value * STAGES + stage), full = bars + 8 * (S::FULL + value * STAGES + stage);
        const uint32_t to = smem + (value ? S::V : S::K) + stage * S::HALF;
        if (base / LT_PAGE != page_of) {
            page_of = base / LT_PAGE;
            page = lt_page(a.kv, a.table, page_of);
        }
        if (KV == 1 && page >= 0 && (!value || (base >= sp.first && base + BN - 1 <= sp.last))) {
            if (!lead)
                continue;
            taken = taken && (!round || bar_wait(room, (round - 1) & 1));
            bar_expect(full, S::HALF);
#pragma unroll
            for (int x = 0; x < D; x += 64)
                box_copy(to + x * BN * 2, value ? &maps.v : &maps.k, x, kv_head * LT_PAGE + base % LT_PAGE, page, full);
            continue;
        }
        named_sync(15, 128); /* the first thread has seen all room before this: the phase is not mistaken for an older one */
        taken = taken && (!round || bar_wait(room, (round - 1) & 1));
        const uint8_t *rows = page < 0 ? NULL : lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)page * a.kv.page_bytes +
                (value ? a.kv.v_offset : a.kv.k_offset) + ((uint64_t)kv_head * LT_PAGE + base % LT_PAGE) * a.kv.row_bytes));
        feed_half<D, KV, BN>(a, to, rows, base, sp);
        flash_commit();
        flash_wait<0>();
        wg_proxy();
        named_sync(15, 128);
        if (lead)
            bar_arrive(full);
    }
}

template <int D, int BN, int ROWS> LT_DEV void scores(float (&s)[BN / 8][4], uint32_t q, uint32_t k)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wg_product<BN>(s, wg_desc(q + i / 4 * ROWS * 128 + i % 4 * 32, 16), wg_desc(k + i / 4 * BN * 128 + i % 4 * 32, 16), i > 0);
    wg_commit();
}

template <int D, int BN> LT_DEV void weigh(float (&o)[D / 8][4], const uint32_t (&p)[BN / 16][4], uint32_t v)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < BN / 16; i++)
        wg_weighted<D>(o, p[i], wg_desc(v + i * 2048, BN * 128));
    wg_commit();
}

template <int BN> LT_DEV void pack(uint32_t (&p)[BN / 16][4], const float (&s)[BN / 8][4])
{
#pragma unroll
    for (int k = 0; k < BN / 16; k++)
#pragma unroll
        for (int x = 0; x < 4; x++)
            p[k][x] = flash_pack(s[2 * k + x / 2][x % 2 * 2], s[2 * k + x / 2][x % 2 * 2 + 1]);
}

template <int OT> LT_DEV void rescale(float (&o)[OT][4], const float (&fix)[2])
{
#pragma unroll
    for (int i = 0; i < OT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o[i][k] *= fix[k / 2];
}

template <int D, int BN, int GROUPS, bool TURNS, int STAGES>
LT_DEV void compute(const lt_cuda_attention &a, uint8_t *mem, uint32_t smem, uint32_t bars, int begin, int end, int row0, int group, int kv_head, const flash_span &sp)
{
    typedef shape<D, BN, GROUPS, STAGES> S;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, wg = warp / 4;
    flash_rows r;
    flash_stage<D>(
        a, row0 + warp * 16, group, kv_head,
        [&](int i, int j) { return mem + S::Q + wg_at<S::BM>(warp * 16 + i, j / 8) + j % 8 * 2; },
        [&](int i, float f) {
            if (i % 8 == lane / 4)
                r.scale[i / 8] = f;
        });
    wg_proxy();
    named_sync(1 + wg, 128);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.m[h] = LT_NEG_INF;
        r.l[h] = 0.0f;
        r.last[h] = flash_pos(a, (row0 + warp * 16 + 8 * h + lane / 4) / group);
        r.first[h] = flash_first(a.window, r.last[h]);
    }
    float o[D / 8][4], s[BN / 8][4], fix[2];
    uint32_t p[BN / 16][4];
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o[i][k] = 0.0f;
    const uint32_t q = smem + S::Q + wg * 64 * 128;
    bool fed = true;
    const auto full = [&](int value, int n) { fed = fed && bar_wait(bars + 8 * (S::FULL + value * STAGES + n % STAGES), n / STAGES & 1); };
    const auto empty = [&](int value, int n) {
        if (lane == 0)
            bar_arrive(bars + 8 * (S::EMPTY + value * STAGES + n % STAGES));
    };
    const auto soften = [&](int tile) {
        if (!(tile * BN >= sp.all_first && tile * BN + BN - 1 <= sp.all_last))
            flash_mask<BN / 8>(s, r, tile * BN);
        flash_softmax<BN / 8>(s, r, fix);
    };
    if (TURNS && wg == 1)
        named_arrive(8, 256); /* the first turn is group 0's */
    full(0, 0);
    scores<D, BN, S::BM>(s, q, smem + S::K);
    wg_wait<0>();
    wg_hold(s);
    empty(0, 0);
    soften(begin);
    pack<BN>(p, s);
    full(1, 0);
    for (int n = 1; n <= end - begin; n++) {
        full(0, n);
        if (TURNS)
            named_sync(8 + wg, 256);
        scores<D, BN, S::BM>(s, q, smem + S::K + n % STAGES * S::HALF);
        weigh<D, BN>(o, p, smem + S::V + (n - 1) % STAGES * S::HALF);
        if (TURNS)
            named_arrive(8 + (wg ^ 1), 256);
        wg_wait<1>();
        wg_hold(s);
        empty(0, n);
        soften(begin + n);
        wg_hold(s);
        full(1, n); /* a branch, which keeps the softmax before the wait, under the products */
        wg_wait<0>();
        wg_hold(o);
        wg_hold(p);
        empty(1, n - 1);
        if (__any_sync(LT_FULL, fix[0] != 1.0f || fix[1] != 1.0f))
            rescale<D / 8>(o, fix);
        pack<BN>(p, s);
    }
    if (TURNS && wg == 0)
        named_sync(8, 256);
    weigh<D, BN>(o, p, smem + S::V + (end - begin) % STAGES * S::HALF);
    wg_wait<0>();
    wg_hold(o);
    flash_total(r);
    if (!fed)
        r.l[0] = r.l[1] = __int_as_float(0x7fffffff);
    flash_store<D / 8>(a, o, r, row0 + warp * 16 + lane / 4, group, kv_head);
}

template <int D, int KV, int BN, int GROUPS, bool TURNS, int STAGES> LT_DEV void flash90(const lt_cuda_attention &a, const lt_cuda_flash_maps &maps)
{
    typedef shape<D, BN, GROUPS, STAGES> S;
    extern __shared__ uint8_t shared[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(shared), smem = (raw + 1023) / 1024 * 1024, bars = smem;
    const int group = a.heads / a.kv.kv_heads, kv_head = (int)blockIdx.x;
    const int row0 = (int)(gridDim.y - 1 - blockIdx.y) * S::BM; /* the longest first */
    const flash_span sp = flash_span_of(a, row0, S::BM, group);
    if (sp.last < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::BARS; i++)
            bar_init(bars + 8 * i, i < S::EMPTY ? 1 : 4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int begin = sp.first / BN, end = sp.last / BN;
    if (threadIdx.x / 128 == GROUPS) {
        if constexpr (GROUPS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        feed<D, KV, BN, GROUPS, STAGES>(a, maps, smem, bars, begin, end, kv_head, sp);
    } else {
        if constexpr (GROUPS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        compute<D, BN, GROUPS, TURNS, STAGES>(a, shared + (smem - raw), smem, bars, begin, end, row0, group, kv_head, sp);
    }
}
#define BODY(...) flash90<__VA_ARGS__>(a, maps)
#else
#define BODY(...) (void)a, (void)maps
#endif

#define FLASH90(name, D, KV, BN, GROUPS, TURNS, STAGES)                                                                \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)                                                \
        name(lt_cuda_attention a, const __grid_constant__ lt_cuda_flash_maps maps)                                     \
    {                                                                                                                  \
        BODY(D, KV, BN, GROUPS, TURNS, STAGES);                                                                        \
    }
#include "flash_sm90a.def"
