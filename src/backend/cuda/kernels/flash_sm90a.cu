/* flash_sm90a.cu - causal attention over a prompt on Hopper: wgmma, compiled for sm_90a only.
 *
 * GROUPS warp groups of 64 rows each compute, one more feeds them: tiles of BN keys in a ring of two, K and V apart.
 * The products of the next tile run under the softmax of this one, and with two groups one's softmax
 * under the other's products (TURNS). */
#include "flash.cuh"
#include "flash_shape.h"
#include "wgmma.cuh"

#define STAGES LT_FLASH90_STAGES

template <int D, int BN, int GROUPS> struct shape {
    static constexpr int BM = 64 * GROUPS, HALF = LT_FLASH90_PANEL(D, BN);
    static constexpr int Q = 1024, K = Q + LT_FLASH90_PANEL(D, BM), V = K + STAGES * HALF;
    static_assert(V + STAGES * HALF + 1024 == LT_FLASH90_BYTES(D, BN, BM), "launches ask for as much");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { FULL, EMPTY = 2 * STAGES, BARS = 4 * STAGES }; /* full K, full V, empty K, empty V, each a stage */

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

/* The feeding group. A half tile is reported full when the copies have landed; before waiting for room all that was
 * started is reported, so that nobody waits for a report kept back. */
template <int D, int KV, int BN, int GROUPS> LT_DEV void feed(const lt_cuda_attention &a, uint32_t smem, uint32_t bars, int begin, int end, int kv_head, const flash_span &sp)
{
    typedef shape<D, BN, GROUPS> S;
    const int halves = 2 * (end - begin + 1);
    const int64_t v = (int64_t)(a.kv.v_offset - a.kv.k_offset);
    const uint8_t *page = NULL;
    int page_of = -1, told = 0;
    const auto tell = [&](int upto) {
        wg_proxy();
        for (; told < upto; told++)
            bar_arrive(bars + 8 * (FULL + told % 2 * STAGES + told / 2 % STAGES));
    };
    for (int h = 0; h < halves; h++) {
        const int value = h % 2, tile = begin + h / 2, stage = h / 2 % STAGES, round = h / 2 / STAGES;
        const uint32_t room = bars + 8 * (EMPTY + value * STAGES + stage);
        if (round && !bar_test(room, (round - 1) & 1)) {
            flash_wait<0>();
            tell(h);
            bar_wait(room, (round - 1) & 1);
        }
        if (tile * BN / LT_PAGE != page_of) {
            page_of = tile * BN / LT_PAGE;
            page = flash_page(a, tile * BN, kv_head);
        }
        const uint8_t *rows = page ? page + (uint64_t)(tile * BN % LT_PAGE) * a.kv.row_bytes + (value ? v : 0) : NULL;
        feed_half<D, KV, BN>(a, smem + (value ? S::V : S::K) + stage * S::HALF, rows, tile * BN, sp);
        flash_commit();
        if (KV == 2) {
            tell(h + 1);
        } else if (h - told >= 2) {
            flash_wait<2>();
            tell(told + 1);
        }
    }
    flash_wait<0>();
    tell(halves);
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

template <int D, int BN, int GROUPS, bool TURNS>
LT_DEV void compute(const lt_cuda_attention &a, uint8_t *mem, uint32_t smem, uint32_t bars, int begin, int end, int row0, int group, int kv_head, const flash_span &sp)
{
    typedef shape<D, BN, GROUPS> S;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, wg = warp / 4;
    flash_rows r;
    for (int i = 0; i < 16; i++) {
        const int row = warp * 16 + i;
        const float *q = flash_row(a, a.q, a.q_token, a.q_head, row0 + row, group, kv_head);
        const float f = flash_stage_row<D>(q, a.scale, [&](int j) { return mem + S::Q + wg_at<S::BM>(row, j / 8) + j % 8 * 2; });
        if (lane / 4 == i)
            r.scale[0] = f;
        if (lane / 4 + 8 == i)
            r.scale[1] = f;
    }
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
    const auto full = [&](int value, int n) { fed &= bar_wait(bars + 8 * (FULL + value * STAGES + n % STAGES), n / STAGES & 1); };
    const auto empty = [&](int value, int n) {
        if (lane == 0)
            bar_arrive(bars + 8 * (EMPTY + value * STAGES + n % STAGES));
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

template <int D, int KV, int BN, int GROUPS, bool TURNS> LT_DEV void flash90(const lt_cuda_attention &a)
{
    typedef shape<D, BN, GROUPS> S;
    extern __shared__ uint8_t shared[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(shared), smem = (raw + 1023) / 1024 * 1024, bars = smem;
    const int group = a.heads / a.kv.kv_heads, kv_head = (int)blockIdx.x;
    const int row0 = (int)(gridDim.y - 1 - blockIdx.y) * S::BM; /* the longest first */
    const flash_span sp = flash_span_of(a, row0, S::BM, group);
    if (sp.last < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < BARS; i++)
            bar_init(bars + 8 * i, i < EMPTY ? 128 : 4 * GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const int begin = sp.first / BN, end = sp.last / BN;
    if (threadIdx.x / 128 == GROUPS) {
        if constexpr (GROUPS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        else
            asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        feed<D, KV, BN, GROUPS>(a, smem, bars, begin, end, kv_head, sp);
    } else {
        if constexpr (GROUPS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        compute<D, BN, GROUPS, TURNS>(a, shared + (smem - raw), smem, bars, begin, end, row0, group, kv_head, sp);
    }
}
#define BODY(...) flash90<__VA_ARGS__>(a)
#else
#define BODY(...) (void)a
#endif

#define FLASH90(name, D, KV, BN, GROUPS, TURNS)                                                                        \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1) name(lt_cuda_attention a) { BODY(D, KV, BN, GROUPS, TURNS); }
#include "flash_sm90a.def"
