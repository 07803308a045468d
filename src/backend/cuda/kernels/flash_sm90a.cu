/* flash_sm90a.cu - causal attention over a prompt on Hopper: wgmma, compiled for sm_90a only.
 *
 * GROUPS warp groups of 64 rows each compute, one more feeds them: tiles of BN keys in a ring of two, K and V apart.
 * The products of the next tile run under the softmax of this one, and with two groups one's softmax
 * under the other's products (TURNS).
 *
 * SAGE: queries and keys are turned by the Hadamard matrix, which leaves their products and spreads what stands out in
 * one channel over all, and rounded to int8 with a scale a row. sage_keys does it once a launch, into scratch. Heads of
 * 128 have blocks that stay: flash_items.cuh. */
#include "flash.cuh"
#include "flash_shape.h"
#include "mma.cuh"
#include "wgmma.cuh"

template <int D, int BN, int GROUPS, int STAGES, bool SAGE> struct shape {
    static constexpr bool ITEMS = false, ONES = false; /* as in flash_items.cuh */
    static constexpr int BM = 64 * GROUPS, K_TILE = SAGE ? LT_SAGE_PITCH(D) * BN : LT_FLASH90_PANEL(D, BN);
    static constexpr int N = D, V_TILE = LT_FLASH90_PANEL(D, BN), V_STEP = BN * 128; /* columns of the sums; bytes between panels */
    static constexpr int Q = 1024, K = Q + (SAGE ? LT_SAGE_PITCH(D) * BM : LT_FLASH90_PANEL(D, BM)), V = K + STAGES * K_TILE;
    static constexpr int SCALES = V + STAGES * V_TILE, END = SCALES + (SAGE ? STAGES * BN * 4 : 0);
    static constexpr int FULL = 0, EMPTY = 2 * STAGES, BARS = 4 * STAGES; /* full K, full V, empty K, empty V, each a stage */
    static_assert(END + 1024 == (SAGE ? LT_SAGE90_BYTES(D, BN, BM, STAGES) : LT_FLASH90_BYTES(D, BN, BM, STAGES)), "launches ask for as much");
    static LT_DEV uint64_t values(uint64_t first, int stage) { return wg_step(first, stage * V_TILE); }
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
    int stage = 0, round = 0;
    for (int h = 0; h < 2 * (end - begin + 1); h++) {
        const int value = h % 2, tile = begin + h / 2, base = tile * BN;
        if (h && !value) {
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            round += stage == 0;
        }
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

template <int D, int BN, int ROWS> LT_DEV void scores(float (&s)[BN / 8][4], uint64_t q, uint64_t k)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wg_product<BN>(s, wg_step(q, i / 4 * ROWS * 128 + i % 4 * 32), wg_step(k, i / 4 * BN * 128 + i % 4 * 32), i > 0);
    wg_commit();
}

template <int D, int BN, int ROWS> LT_DEV void scores8(uint32_t (&s)[BN / 8][4], uint64_t q, uint64_t k)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        wg_product8<BN>(s, wg_step(q, i / 4 * ROWS * 128 + i % 4 * 32), wg_step(k, i / 4 * BN * 128 + i % 4 * 32), i > 0);
    wg_commit();
}

/* Half of a tile's keys; queries in registers. */
template <int D, int BN> LT_DEV void half_scores8(uint32_t (&s)[BN / 16][4], const uint32_t (&q)[D / 32][4], uint64_t k)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < D / 32; i++)
        wg_product8<BN / 2>(s, q[i], wg_step(k, i / 4 * BN * 128 + i % 4 * 32), i > 0);
    wg_commit();
}

/* Times the scale of their key. */
template <int NT, int N> LT_DEV void to_floats(float (&s)[NT][4], int at, const uint32_t (&n)[N][4], const uint8_t *scales)
{
    const float2 *d = (const float2 *)scales + threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float2 v = d[4 * (at + i)];
        s[at + i][0] = (float)(int)n[i][0] * v.x;
        s[at + i][1] = (float)(int)n[i][1] * v.y;
        s[at + i][2] = (float)(int)n[i][2] * v.x;
        s[at + i][3] = (float)(int)n[i][3] * v.y;
    }
}

/* A row of 8 E elements by eight lanes, times a Hadamard matrix: within a lane, then with lanes 1, 2 and 4 away, each of
 * which takes half of what both have. Which element a lane ends up with, and its sign, is the same for every row. */
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
    for (int h = 1; h < 8; h *= 2) {
        const bool upper = threadIdx.x & h;
#pragma unroll
        for (int e = 0; e < E / 2; e++) {
            const float mine = upper ? x[e + E / 2] : x[e];
            const float theirs = __shfl_xor_sync(LT_FULL, upper ? x[e] : x[e + E / 2], h);
            x[e] = mine + theirs;
            x[e + E / 2] = mine - theirs;
        }
    }
}

/* A row to int8, four in a word; returns the scale, NaN for a row that is not finite. */
template <int E> LT_DEV float round8(const float (&x)[E], uint32_t (&n)[E / 4])
{
    uint32_t top = 0;
#pragma unroll
    for (int e = 0; e < E; e++)
        top = max(top, __float_as_uint(x[e]) & 0x7fffffffu);
#pragma unroll
    for (int h = 1; h < 8; h *= 2)
        top = max(top, __shfl_xor_sync(LT_FULL, top, h));
    const float most = __uint_as_float(top), by = top >= 0x7f800000u || most < 1e-36f ? 0.0f : 127.0f / most;
#pragma unroll
    for (int i = 0; i < E / 4; i++) {
        uint32_t b[4]; /* the low byte of 1.5 * 2^23 + n is that of n */
#pragma unroll
        for (int e = 0; e < 4; e++)
            b[e] = __float_as_uint(lt_fma(x[4 * i + e], by, 12582912.0f));
        n[i] = __byte_perm(__byte_perm(b[0], b[1], 0x0040), __byte_perm(b[2], b[3], 0x0040), 0x5410);
    }
    return top >= 0x7f800000u ? __int_as_float(0x7fffffff) : by > 0 ? most / 127.0f : 1e-30f; /* times -inf, 0 would be NaN */
}

/* What a lane holds of a row, to its E bytes there. */
template <int E> LT_DEV void put8(uint8_t *to, const uint32_t (&n)[E / 4])
{
    if constexpr (E == 8)
        *(uint2 *)to = make_uint2(n[0], n[1]);
    else
#pragma unroll
        for (int i = 0; i < E / 16; i++)
            *(uint4 *)(to + 16 * i) = make_uint4(n[4 * i], n[4 * i + 1], n[4 * i + 2], n[4 * i + 3]);
}

/* Sixteen rows of queries, as flash_stage; at(row, byte). */
template <int D, class AT> LT_DEV void sage_stage(const lt_cuda_attention &a, int row0, int group, int kv_head, AT at, flash_rows &r)
{
    constexpr int E = D / 8, STEPS = D > 128 ? 2 : 4; /* of four rows, whose loads are in flight together */
    const int lane = (int)threadIdx.x % 32;
    float d[4];
#pragma unroll
    for (int b = 0; b < 4; b += STEPS) {
        float x[STEPS][E];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const float *q = flash_row(a, a.q, a.q_token, a.q_head, row0 + 4 * (b + i) + lane / 8, group, kv_head);
#pragma unroll
            for (int e = 0; e < E; e += 4) { /* eight floats a lane, 64 a row */
                const float4 v = q ? __ldg((const float4 *)(q + e / 8 * 64 + lane % 8 * 8 + e % 8)) : make_float4(0, 0, 0, 0);
                x[i][e] = v.x, x[i][e + 1] = v.y, x[i][e + 2] = v.z, x[i][e + 3] = v.w;
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t n[E / 4];
            hadamard<E>(x[i]);
            d[b + i] = round8<E>(x[i], n);
#pragma unroll
            for (int k = 0; k < E / 4; k += E < 16 ? 2 : 4) { /* as put8, to 16 bytes that lie apart */
                uint8_t *to = at(4 * (b + i) + lane / 8, lane % 8 * E + 4 * k);
                if constexpr (E < 16)
                    *(uint2 *)to = make_uint2(n[k], n[k + 1]);
                else
                    *(uint4 *)to = make_uint4(n[k], n[k + 1], n[k + 2], n[k + 3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) { /* to the lanes that hold row lane / 4 + 8 h of a product */
        const float lo = __shfl_sync(LT_FULL, d[2 * h], lane / 4 % 4 * 8), hi = __shfl_sync(LT_FULL, d[2 * h + 1], lane / 4 % 4 * 8);
        r.scale[h] = a.scale * 1.44269504f * ((lane < 16 ? lo : hi) / D);
    }
}

template <int N, int BN> LT_DEV void weigh(float (&o)[N / 8][4], const uint32_t (&p)[BN / 16][4], uint64_t v)
{
    wg_fence();
#pragma unroll
    for (int i = 0; i < BN / 16; i++)
        wg_weighted<N>(o, p[i], wg_step(v, i * 2048));
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
    if constexpr (SAGE)
        sage_stage<D>(a, row0 + at, group, kv_head, [&](int i, int j) { return to + wg_at<BM>(at + i, j / 16) + j % 16; }, r);
    else
        flash_stage<D>(
            a, row0 + at, group, kv_head, [&](int i, int j) { return to + wg_at<BM>(at + i, j / 8) + j % 8 * 2; },
            [&](int i, float f) {
                if (i % 8 == lane / 4) {
                    r.scale[0] = i < 8 ? f : r.scale[0];
                    r.scale[1] = i < 8 ? r.scale[1] : f;
                }
            });
}

/* The products of a tile's keys, begun and, after their wait, ended as floats in s. */
template <int D, int BN, int BM, bool SAGE, bool QREG> struct products {
    uint32_t qr[QREG ? D / 32 : 1][4], n8[SAGE ? QREG ? BN / 16 : BN / 8 : 1][4], more[QREG ? BN / 16 : 1][4];
    LT_DEV void begin(float (&s)[BN / 8][4], uint64_t q, uint64_t k)
    {
        if constexpr (QREG) {
            half_scores8<D, BN>(n8, qr, k);
            half_scores8<D, BN>(more, qr, wg_step(k, BN / 2 * 128));
        } else if constexpr (SAGE) {
            scores8<D, BN, BM>(n8, q, k);
        } else {
            scores<D, BN, BM>(s, q, k);
        }
    }
    /* LATER: products begun after them */
    template <int LATER> LT_DEV void end(float (&s)[BN / 8][4], const uint8_t *scales)
    {
        if constexpr (QREG) { /* the first half under the products of the second */
            wg_wait<LATER + 1>();
            wg_hold(n8);
            to_floats(s, 0, n8, scales);
            wg_hold(s); /* before the wait */
            wg_wait<LATER>();
            wg_hold(more);
            to_floats(s, BN / 16, more, scales);
        } else if constexpr (SAGE) {
            wg_wait<LATER>();
            wg_hold(n8);
            to_floats(s, 0, n8, scales);
        } else {
            wg_wait<LATER>();
            wg_hold(s);
        }
    }
};

/* This thread's two rows of the block, of which `row` is the first. */
LT_DEV void begin_rows(const lt_cuda_attention &a, flash_rows &r, int row, int group)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.m[h] = LT_NEG_INF;
        r.l[h] = 0.0f;
        r.last[h] = flash_pos(a, (row + 8 * h) / group);
        r.first[h] = flash_first(a.window, r.last[h]);
    }
}

/* Where a computing warp stands in the ring. fed: false once a tile did not come. */
struct ring {
    int stage, phase;
    bool fed;
};

/* Tiles begin .. end of the ring: their weighted values in o, the sums of weights in r. */
template <class S, int D, int BN, int GROUPS, bool TURNS, int STAGES, bool SAGE, bool QREG>
LT_DEV void attend(const lt_args &a, uint8_t *mem, uint32_t smem, uint32_t bars, int begin, int end, const flash_span &sp,
                   products<D, BN, S::BM, SAGE, QREG> &product, flash_rows &r, float (&o)[S::N / 8][4], ring &at)
{
    const int lane = (int)threadIdx.x % 32, wg = (int)threadIdx.x / 128;
    constexpr int N = S::N;
    float s[BN / 8][4], fix[2];
    uint32_t p[BN / 16][4];
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            o[i][k] = 0.0f;
    const uint64_t q = wg_desc(smem + S::Q + wg * 64 * 128, 16), keys = wg_desc(smem + S::K, 16), values = wg_desc(smem + S::V, S::V_STEP);
    bool fed = at.fed;
    int stage = at.stage, phase = at.phase;
    const auto look = [&](int value, int at, int turn) { return GROUPS == 2 && bar_try(bars + 8 * (S::FULL + value * STAGES + at), turn); };
    const auto full = [&](int value, bool seen) { fed = fed && (seen || bar_wait(bars + 8 * (S::FULL + value * STAGES + stage), phase)); };
    const auto empty = [&](int value, int at) {
        if ((SAGE && !value) || lane == 0) /* all lanes have read scales of keys, and each says so; products have read the rest */
            bar_arrive(bars + 8 * (S::EMPTY + value * STAGES + at));
    };
    const auto begin_scores = [&]() { product.begin(s, q, wg_step(keys, stage * S::K_TILE)); };
    const auto soften = [&](int tile) {
        flash_cap<BN / 8>(a, s, r);
        if (!(tile * BN >= sp.all_first && tile * BN + BN - 1 <= sp.all_last))
            flash_mask<BN / 8>(s, r, tile * BN);
        flash_softmax<BN / 8, !S::ONES>(s, r, fix);
    };
    if (TURNS && wg == 1)
        named_arrive(8, 256); /* the first turn is group 0's */
    full(0, false);
    begin_scores();
    product.template end<0>(s, mem + S::SCALES + stage * BN * 4);
    empty(0, stage);
    soften(begin);
    pack<BN>(p, s);
    full(1, false);
    bool next = false, there; /* barriers are asked before their answers are needed */
    for (int tile = begin + 1; tile <= end; tile++) {
        const int before = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        phase ^= stage == 0;
        full(0, next);
        if (TURNS)
            named_sync(8 + wg, 256);
        begin_scores();
        weigh<N, BN>(o, p, S::values(values, before));
        if (TURNS)
            named_arrive(8 + (wg ^ 1), 256);
        product.template end<1>(s, mem + S::SCALES + stage * BN * 4);
        empty(0, stage);
        there = look(1, stage, phase);
        next = tile < end && look(0, stage + 1 < STAGES ? stage + 1 : 0, phase ^ (stage + 1 == STAGES));
        soften(tile);
        wg_hold(s);
        full(1, there); /* a branch, which keeps the softmax before the wait, under the products */
        wg_wait<0>();
        wg_hold(o);
        wg_hold(p);
        empty(1, before);
        if (__any_sync(LT_FULL, fix[0] != 1.0f || fix[1] != 1.0f))
            rescale<N / 8>(o, fix);
        pack<BN>(p, s);
    }
    if (TURNS && wg == 0)
        named_sync(8, 256);
    weigh<N, BN>(o, p, S::values(values, stage));
    wg_wait<0>();
    wg_hold(o);
    if constexpr (S::ITEMS) {
        empty(1, stage);
        at.stage = stage + 1 < STAGES ? stage + 1 : 0;
        at.phase = phase ^ (at.stage == 0);
    }
    at.fed = fed;
    if constexpr (S::ONES) { /* every lane has the sum of its rows */
        r.l[0] = lane % 4 ? 0.0f : o[D / 8][0];
        r.l[1] = lane % 4 ? 0.0f : o[D / 8][2];
    }
}

template <int D, int BN, int GROUPS, bool TURNS, int STAGES, bool SAGE>
LT_DEV void compute(const lt_args &a, uint8_t *mem, uint32_t smem, uint32_t bars, int begin, int end, int row0, int group, int kv_head, const flash_span &sp)
{
    typedef shape<D, BN, GROUPS, STAGES, SAGE> S;
    const int warp = (int)threadIdx.x / 32, wg = warp / 4, lane = (int)threadIdx.x % 32;
    flash_rows r;
    stage_queries<D, S::BM, SAGE>(a, mem + S::Q, warp * 16, row0, group, kv_head, r);
    flash_bend(a, r);
    products<D, BN, S::BM, SAGE, false> product;
    wg_proxy();
    named_sync(1 + wg, 128);
    begin_rows(a, r, row0 + warp * 16 + lane / 4, group);
    float o[S::N / 8][4];
    ring at = {0, 0, true};
    attend<S, D, BN, GROUPS, TURNS, STAGES, SAGE, false>(a, mem, smem, bars, begin, end, sp, product, r, o, at);
    const int row = row0 + warp * 16;
    flash_total(a, r, row + lane / 4, group, kv_head);
    if (!at.fed)
        r.l[0] = r.l[1] = __int_as_float(0x7fffffff);
    named_sync(1 + wg, 128); /* all have used the queries, whose place the results take */
    flash_store<D, (SAGE ? LT_SAGE_PITCH(D) : LT_FLASH90_PANEL(D, 1)) / 128>(
        a, o, r, row, group, kv_head, [&](int i) { return mem + S::Q + i * S::BM * 128 + warp * 2048; });
}

template <int D, int BN, int GROUPS, bool TURNS, int STAGES, bool SAGE> LT_DEV void flash90(const lt_args &a, const lt_cuda_flash_maps &maps)
{
    typedef shape<D, BN, GROUPS, STAGES, SAGE> S;
    extern __shared__ uint8_t shared[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(shared), smem = (raw + 1023) / 1024 * 1024, bars = smem;
    const int group = a.heads / a.kv.kv_heads, kv_head = (int)blockIdx.x;
    const int row0 = (int)(gridDim.y - 1 - blockIdx.y) * S::BM; /* the longest first */
    const flash_span sp = flash_span_of<S::BM>(a, row0, group);
    if (sp.last < 0)
        return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::BARS; i++)
            bar_init(bars + 8 * i, i < S::EMPTY ? 1 : SAGE && i < S::EMPTY + STAGES ? 128 * GROUPS : 4 * GROUPS);
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

/* A page of keys of one kv head to int8, four rows a warp. */
template <int D> LT_DEV void sage_keys(const lt_cuda_attention &a)
{
    constexpr int E = D / 8, STEP = 32, N = D > 128 ? 1 : 2; /* rows of the block at a time; such steps loaded ahead */
    const int lane = (int)threadIdx.x % 32, slot = (int)blockIdx.x, kv_head = (int)blockIdx.y;
    int from, to;
    const int logical = flash_slot(a, slot, from, to);
    const uint8_t *page = logical < 0 ? NULL : flash_page(a, logical * LT_PAGE, kv_head);
    if (!page)
        return;
    const uint64_t key0 = ((uint64_t)kv_head * a.kv.pages + slot) * LT_PAGE;
    float *scales = (float *)(a.scratch + (uint64_t)a.kv.kv_heads * a.kv.pages * LT_PAGE * LT_SAGE_PITCH(D)) + key0;
    for (int first = from + (int)threadIdx.x / 8; first - lane / 8 <= to; first += N * STEP) { /* all lanes of a warp, or none */
        uint4 h[N][E / 8];
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int k = 0; k < E / 8; k++)
                h[i][k] = first + i * STEP <= to ? __ldg((const uint4 *)(page + (uint64_t)(first + i * STEP) * a.kv.row_bytes) + 8 * k + lane % 8)
                                                 : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float x[E];
            uint32_t n[E / 4];
#pragma unroll
            for (int k = 0; k < E / 8; k++) {
                const uint32_t u[4] = {h[i][k].x, h[i][k].y, h[i][k].z, h[i][k].w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    x[8 * k + 2 * e] = lt_half(u[e] & 0xffff);
                    x[8 * k + 2 * e + 1] = lt_half(u[e] >> 16);
                }
            }
            hadamard<E>(x);
            const float d = round8<E>(x, n);
            if (first + i * STEP > to)
                continue;
            put8<E>((uint8_t *)a.scratch + (key0 + first + i * STEP) * LT_SAGE_PITCH(D) + lane % 8 * E, n);
            if (lane % 8 == 0)
                scales[first + i * STEP] = d;
        }
    }
}
#include "flash_items.cuh"

#define KEYS(D) sage_keys<D>(a)
#define BODY(D, BN, GROUPS, TURNS, STAGES, SAGE)                                                                       \
    static_assert(!(SAGE && LT_SAGE_ITEMS(D)) || (GROUPS == 2 && !TURNS), "flash_items.cuh has two groups without turns"); \
    if constexpr (SAGE && LT_SAGE_ITEMS(D))                                                                            \
        flash90_items<items<D, BN, STAGES>>(a, maps);                                                                  \
    else                                                                                                               \
        flash90<D, BN, GROUPS, TURNS, STAGES, SAGE>(a, maps)
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
