/* flash_sm90a.cu - causal attention over a prompt on Hopper: wgmma, compiled for sm_90a only.
 *
 * GROUPS warp groups of 64 rows each compute, one more feeds them: tiles of BN keys in a ring of two, K and V apart.
 * The products of the next tile run under the softmax of this one, and with two groups one's softmax
 * under the other's products (TURNS).
 *
 * SAGE: queries and keys are turned by the Hadamard matrix, which leaves their products and spreads what stands out in
 * one channel over all, and rounded to int8 with a scale a row. sage_keys does it once a launch, into scratch. */
#include "flash.cuh"
#include "flash_shape.h"
#include "mma.cuh"
#include "wgmma.cuh"

template <int D, int BN, int GROUPS, int STAGES, bool SAGE> struct shape {
    static constexpr int BM = 64 * GROUPS, K_TILE = SAGE ? LT_SAGE_PITCH(D) * BN : LT_FLASH90_PANEL(D, BN), V_TILE = LT_FLASH90_PANEL(D, BN);
    static constexpr int Q = 1024, K = Q + (SAGE ? LT_SAGE_PITCH(D) * BM : LT_FLASH90_PANEL(D, BM)), V = K + STAGES * K_TILE;
    static constexpr int SCALES = V + STAGES * V_TILE, END = SCALES + (SAGE ? STAGES * BN * 4 : 0);
    static constexpr int FULL = 0, EMPTY = 2 * STAGES, BARS = 4 * STAGES; /* full K, full V, empty K, empty V, each a stage */
    static_assert(END + 1024 == (SAGE ? LT_SAGE90_BYTES(D, BN, BM, STAGES) : LT_FLASH90_BYTES(D, BN, BM, STAGES)), "launches ask for as much");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* K or V of a tile. Positions outside first .. last become 0. */
template <int D, int BN> LT_DEV void feed_part(const lt_cuda_attention &a, uint32_t to, const uint8_t *rows, int base, const flash_span &sp)
{
    constexpr int CHUNKS = D / 8;
    const int tid = (int)threadIdx.x % 128;
#pragma unroll 4 /* more would not fit the registers */
    for (int i = 0; i < BN * CHUNKS / 128; i++) {
        const int n = i * 128 + tid, row = n / CHUNKS, c = n % CHUNKS;
        const bool there = rows && base + row >= sp.first && base + row <= sp.last;
        lt_async16(to + wg_at<BN>(row, c), there ? rows + 16 * n : (const uint8_t *)a.cache, there ? 16 : 0);
    }
}

/* The feeding group. Its first thread has the copy engine bring what the rows see all of; what they see in part
 * all threads bring. */
template <int D, int BN, int GROUPS, int STAGES, bool SAGE>
LT_DEV void feed(const lt_cuda_attention &a, const lt_cuda_flash_maps &maps, uint32_t smem, uint32_t bars, int begin, int end, int kv_head,
                 const flash_span &sp)
{
    typedef shape<D, BN, GROUPS, STAGES, SAGE> S;
    const bool lead = threadIdx.x % 128 == 0;
    int page = -1, page_of = -1;
    bool taken = true; /* false: the computing groups are stuck, which they report */
    for (int h = 0; h < 2 * (end - begin + 1); h++) {
        const int value = h % 2, tile = begin + h / 2, stage = h / 2 % STAGES, round = h / 2 / STAGES, base = tile * BN;
        const uint32_t room = bars + 8 * (S::EMPTY + value * STAGES + stage), full = bars + 8 * (S::FULL + value * STAGES + stage);
        const uint32_t to = smem + (value ? S::V + stage * S::V_TILE : S::K + stage * S::K_TILE);
        if (base / LT_PAGE != page_of) {
            page_of = base / LT_PAGE;
            page = lt_page(a.kv, a.table, page_of);
        }
        if (SAGE && !value) {
            if (!lead)
                continue;
            const int keys = a.kv.pages * LT_PAGE, key = page_of % a.kv.pages * LT_PAGE + base % LT_PAGE;
            const float *scales = (const float *)(a.scratch + (uint64_t)a.kv.kv_heads * keys * LT_SAGE_PITCH(D)) + (int64_t)kv_head * keys + key;
            taken = taken && (!round || bar_wait(room, (round - 1) & 1));
            bar_expect(full, S::K_TILE + 4 * BN);
#pragma unroll
            for (int x = 0; x < D; x += 128)
                box_copy(to + x * BN, &maps.k, x / 2, key, kv_head, full);
            bulk_copy(smem + S::SCALES + stage * BN * 4, scales, 4 * BN, full);
            continue;
        }
        if (page >= 0 && (!value || (base >= sp.first && base + BN - 1 <= sp.last))) {
            if (!lead)
                continue;
            taken = taken && (!round || bar_wait(room, (round - 1) & 1));
            bar_expect(full, S::V_TILE);
#pragma unroll
            for (int x = 0; x < D; x += 64)
                box_copy(to + x * BN * 2, value ? &maps.v : &maps.k, x, kv_head * LT_PAGE + base % LT_PAGE, page, full);
            continue;
        }
        named_sync(15, 128); /* the first thread has seen all room before this: the phase is not mistaken for an older one */
        taken = taken && (!round || bar_wait(room, (round - 1) & 1));
        const uint8_t *rows = page < 0 ? NULL : lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)page * a.kv.page_bytes +
                (value ? a.kv.v_offset : a.kv.k_offset) + ((uint64_t)kv_head * LT_PAGE + base % LT_PAGE) * a.kv.row_bytes));
        feed_part<D, BN>(a, to, rows, base, sp);
        lt_copy_commit();
        lt_copy_wait<0>();
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

template <int D, int BN, int ROWS> LT_DEV void scores8(uint32_t (&s)[BN / 8][4], uint32_t q, uint32_t k)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        wg_product8<BN>(s, wg_desc(q + i / 4 * ROWS * 128 + i % 4 * 32, 16), wg_desc(k + i / 4 * BN * 128 + i % 4 * 32, 16), i > 0);
    wg_commit();
}

/* Integers below 2^22 to floats, times the scale of their key. */
template <int BN> LT_DEV void to_floats(float (&s)[BN / 8][4], const uint32_t (&n)[BN / 8][4], uint32_t scales)
{
    scales += threadIdx.x % 4 * 8;
#pragma unroll
    for (int i = 0; i < BN / 8; i++) {
        float d[2];
        asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(d[0]), "=f"(d[1]) : "r"(scales + 32 * i));
#pragma unroll
        for (int k = 0; k < 4; k++)
            s[i][k] = (__uint_as_float(0x4b400000u + n[i][k]) - 12582912.0f) * d[k % 2];
    }
}

/* The elements x of a lane, lane * E + e of a row of 32 E, times the Hadamard matrix of that size. */
template <int E> LT_DEV void hadamard(float (&x)[E])
{
#pragma unroll
    for (int h = 1; h < E; h *= 2)
#pragma unroll
        for (int e = 0; e < E; e++)
            if (!(e & h)) {
                const float u = x[e], v = x[e | h];
                x[e] = u + v;
                x[e | h] = u - v;
            }
#pragma unroll
    for (int h = 1; h < 32; h *= 2)
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float v = __shfl_xor_sync(LT_FULL, x[e], h);
            x[e] = (threadIdx.x & h) ? v - x[e] : x[e] + v;
        }
}

/* A row to int8; returns the scale, NaN for a row that is not finite. */
template <int E> LT_DEV float round8(const float (&x)[E], int8_t (&n)[E])
{
    uint32_t top = 0;
#pragma unroll
    for (int e = 0; e < E; e++)
        top = max(top, __float_as_uint(x[e]) & 0x7fffffffu);
    top = __reduce_max_sync(LT_FULL, top);
    const float most = __uint_as_float(top), by = top >= 0x7f800000u || most < 1e-36f ? 0.0f : 127.0f / most;
#pragma unroll
    for (int e = 0; e < E; e++)
        n[e] = (int8_t)__float2int_rn(x[e] * by);
    return top >= 0x7f800000u ? __int_as_float(0x7fffffff) : by > 0 ? most / 127.0f : 0.0f;
}

/* Sixteen rows of queries, as flash_stage. */
template <int D, class AT, class PUT> LT_DEV void sage_stage(const lt_cuda_attention &a, int row0, int group, int kv_head, AT at, PUT put)
{
    constexpr int E = D / 32, R = 8;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 1
    for (int b = 0; b < 16; b += R) {
        float x[R][E];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float *q = flash_row(a, a.q, a.q_token, a.q_head, row0 + b + r, group, kv_head);
#pragma unroll
            for (int e = 0; e < E; e++)
                x[r][e] = q ? __ldg(q + lane * E + e) : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            int8_t n[E];
            hadamard<E>(x[r]);
            const float d = round8<E>(x[r], n);
            uint8_t *to = at(b + r, lane * E);
#pragma unroll
            for (int e = 0; e < E; e += 2)
                *(uint16_t *)(to + e) = (uint16_t)((uint8_t)n[e] | (uint8_t)n[e + 1] << 8);
            put(b + r, a.scale * 1.44269504f * (d / D));
        }
    }
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

/* A warp's queries to shared memory, from row `at` of the block on; r: their scales. */
template <int D, int BM, bool SAGE>
LT_DEV void stage_queries(const lt_cuda_attention &a, uint8_t *to, int at, int row0, int group, int kv_head, flash_rows &r)
{
    const int lane = (int)threadIdx.x % 32;
    r.scale[0] = r.scale[1] = 0.0f;
    const auto keep = [&](int i, float f) {
        if (i % 8 == lane / 4) {
            r.scale[0] = i < 8 ? f : r.scale[0];
            r.scale[1] = i < 8 ? r.scale[1] : f;
        }
    };
    if constexpr (SAGE)
        sage_stage<D>(
            a, row0 + at, group, kv_head,
            [&](int i, int j) { return to + wg_at<BM>(at + i, j / 16) + j % 16; }, keep);
    else
        flash_stage<D>(
            a, row0 + at, group, kv_head,
            [&](int i, int j) { return to + wg_at<BM>(at + i, j / 8) + j % 8 * 2; }, keep);
}

template <int D, int BN, int GROUPS, bool TURNS, int STAGES, bool SAGE>
LT_DEV void compute(const lt_args &a, uint8_t *mem, uint32_t smem, uint32_t bars, int begin, int end, int row0, int group, int kv_head, const flash_span &sp)
{
    typedef shape<D, BN, GROUPS, STAGES, SAGE> S;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, wg = warp / 4;
    flash_rows r;
    stage_queries<D, S::BM, SAGE>(a, mem + S::Q, warp * 16, row0, group, kv_head, r);
    flash_bend(a, r);
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
    uint32_t n8[SAGE ? BN / 8 : 1][4];
    const auto begin_scores = [&](int n) {
        const uint32_t k = smem + S::K + n % STAGES * S::K_TILE;
        if constexpr (SAGE)
            scores8<D, BN, S::BM>(n8, q, k);
        else
            scores<D, BN, S::BM>(s, q, k);
    };
    const auto end_scores = [&](int n) { /* after their wait */
        if constexpr (SAGE) {
            wg_hold(n8);
            to_floats<BN>(s, n8, smem + S::SCALES + n % STAGES * BN * 4);
        } else {
            wg_hold(s);
        }
        empty(0, n);
    };
    const auto soften = [&](int tile) {
        flash_cap<BN / 8>(a, s, r);
        if (!(tile * BN >= sp.all_first && tile * BN + BN - 1 <= sp.all_last))
            flash_mask<BN / 8>(s, r, tile * BN);
        flash_softmax<BN / 8>(s, r, fix);
    };
    if (TURNS && wg == 1)
        named_arrive(8, 256); /* the first turn is group 0's */
    full(0, 0);
    begin_scores(0);
    wg_wait<0>();
    end_scores(0);
    soften(begin);
    pack<BN>(p, s);
    full(1, 0);
    for (int n = 1; n <= end - begin; n++) {
        full(0, n);
        if (TURNS)
            named_sync(8 + wg, 256);
        begin_scores(n);
        weigh<D, BN>(o, p, smem + S::V + (n - 1) % STAGES * S::V_TILE);
        if (TURNS)
            named_arrive(8 + (wg ^ 1), 256);
        wg_wait<1>();
        end_scores(n);
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
    weigh<D, BN>(o, p, smem + S::V + (end - begin) % STAGES * S::V_TILE);
    wg_wait<0>();
    wg_hold(o);
    const int row = row0 + warp * 16 + lane / 4;
    flash_total(a, r, row, group, kv_head);
    if (!fed)
        r.l[0] = r.l[1] = __int_as_float(0x7fffffff);
    flash_store<D / 8>(a, o, r, row, group, kv_head);
}

template <int D, int BN, int GROUPS, bool TURNS, int STAGES, bool SAGE> LT_DEV void flash90(const lt_args &a, const lt_cuda_flash_maps &maps)
{
    typedef shape<D, BN, GROUPS, STAGES, SAGE> S;
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
        feed<D, BN, GROUPS, STAGES, SAGE>(a, maps, smem, bars, begin, end, kv_head, sp);
    } else {
        if constexpr (GROUPS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
        compute<D, BN, GROUPS, TURNS, STAGES, SAGE>(a, shared + (smem - raw), smem, bars, begin, end, row0, group, kv_head, sp);
    }
}

/* A page of keys of one kv head to int8, a warp a row. */
template <int D> LT_DEV void sage_keys(const lt_cuda_attention &a)
{
    constexpr int E = D / 32;
    const int lane = (int)threadIdx.x % 32, slot = (int)blockIdx.x, kv_head = (int)blockIdx.y;
    int from, to;
    const int logical = flash_slot(a, slot, from, to);
    const uint8_t *page = logical < 0 ? NULL : flash_page(a, logical * LT_PAGE, kv_head);
    if (!page)
        return;
    const uint64_t key0 = ((uint64_t)kv_head * a.kv.pages + slot) * LT_PAGE;
    float *scales = (float *)(a.scratch + (uint64_t)a.kv.kv_heads * a.kv.pages * LT_PAGE * LT_SAGE_PITCH(D)) + key0;
#pragma unroll 2
    for (int i = from + (int)threadIdx.x / 32; i <= to; i += 8) {
        const unsigned short *row = (const unsigned short *)(page + (uint64_t)i * a.kv.row_bytes) + lane * E;
        float x[E];
        int8_t n[E];
#pragma unroll
        for (int e = 0; e < E; e++)
            x[e] = lt_half(__ldg(row + e));
        hadamard<E>(x);
        const float d = round8<E>(x, n);
        uint8_t *out = (uint8_t *)a.scratch + (key0 + i) * LT_SAGE_PITCH(D) + lane * E;
#pragma unroll
        for (int e = 0; e < E; e += 2)
            *(uint16_t *)(out + e) = (uint16_t)((uint8_t)n[e] | (uint8_t)n[e + 1] << 8);
        if (lane == 0)
            scales[i] = d;
    }
}
#define KEYS(D) sage_keys<D>(a)
#define BODY(...) flash90<__VA_ARGS__>(a, maps)
#else
#define BODY(...) (void)a, (void)maps
#define KEYS(D) (void)a
#endif

#define FLASH90(name, D, BN, GROUPS, TURNS, STAGES)                                                                    \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)                                                \
        name(lt_args a, const __grid_constant__ lt_cuda_flash_maps maps)                                     \
    {                                                                                                                  \
        BODY(D, BN, GROUPS, TURNS, STAGES, false);                                                                        \
    }
#define SAGE90(name, D, BN, GROUPS, TURNS, STAGES)                                                                     \
    extern "C" __global__ void __launch_bounds__(128 * (GROUPS + 1), 1)                                                \
        name(lt_args a, const __grid_constant__ lt_cuda_flash_maps maps)                                     \
    {                                                                                                                  \
        BODY(D, BN, GROUPS, TURNS, STAGES, true);                                                                  \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(256) name##_keys(lt_args a) { KEYS(D); }
#include "flash_sm90a.def"
