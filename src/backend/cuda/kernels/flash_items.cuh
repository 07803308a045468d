/* flash_items.cuh - a block an SM that takes items, blocks of 128 rows of one kv head, one after the other: int8 products,
 * heads of 128. Part of flash_sm90a.cu.
 *
 * What begins and ends an item is hidden under the products of others: of the feeding group, one warp has the tiles of the
 * next item brought while this one's last are used, the other three prepare its queries; a computing group stores its
 * results while the other one computes. Every role walks the same items and skips the same ones. */
template <int HEAD, int BN, int STAGES> struct items {
    static_assert(HEAD == 128 && BN == 128 && STAGES == 3, "the places below");
    static constexpr int D = HEAD, TILE = BN, RING = STAGES, GROUPS = 2, BM = 64 * GROUPS, PLACE = LT_SAGE_PLACE;
    static constexpr bool ITEMS = true, ONES = true; /* a panel of ones beside the values: products sum the weights */
    static constexpr int N = D + 8, K_TILE = PLACE, V_BYTES = 2 * PLACE;
    /* One panel of ones is the third of the values of every stage, whose panels lie 1, 3 and 4 places apart before it. */
    static constexpr int LAST = 8;
    __host__ __device__ static constexpr int apart(int stage) { return (int)(3u * (unsigned)(stage + 1) / 2); }
    __host__ __device__ static constexpr int panel(int stage, int p) { return (LAST - (2 - p) * apart(stage)) * PLACE; }
    static constexpr int RESULTS = 1 * PLACE, Q = 3 * PLACE, K = 9 * PLACE, ASKED = 12 * PLACE, V = panel(0, 0), V_STEP = PLACE;
    static constexpr int BARS = ASKED + LT_SAGE_ASKED, ITEM = BARS + 128, SCALES = BARS + 256, ROWS = SCALES + STAGES * BN * 4;
    static constexpr int END = ROWS + BM * 8; /* a row: scale; then, of all: last position */
    static constexpr int FULL = 0, EMPTY = 2 * STAGES, Q_FULL = 4 * STAGES, Q_EMPTY = Q_FULL + 1;
    static constexpr int PREPARE = 3, SLOTS = 4; /* warps; rows, by four, each has on their way */
    static_assert(END + 1024 == LT_SAGE90_BYTES(D, BN, BM, STAGES) && END + 1024 <= 232448, "launches ask for as much");
    static_assert(8 * (Q_EMPTY + 1) <= 128 && BN * D <= PLACE && BM * D <= PLACE && BN * 128 <= PLACE && PREPARE * SLOTS * 2048 == LT_SAGE_ASKED, "");
    static constexpr bool apart_from_each_other()
    {
        int used = 1 << RESULTS / PLACE | 1 << Q / PLACE | 1 << LAST, n = 3;
        for (int s = 0; s < STAGES; s++, n += 3)
            used |= 1 << (K / PLACE + s) | 1 << panel(s, 0) / PLACE | 1 << panel(s, 1) / PLACE;
        for (int i = 0; i < 12; i++)
            n -= used >> i & 1;
        return n == 0 && used >> 12 == 0;
    }
    static_assert(apart_from_each_other() && apart(0) == 1 && apart(1) == 3 && apart(2) == 4, "twelve places, each used once");
    /* The descriptor of a stage's values from the first one's: where they begin is its bits 0 .. 13, the step 16 .. 29. */
    static LT_DEV uint64_t values(uint64_t first, int stage)
    {
        constexpr uint32_t further = (PLACE >> 4 << 16) - 2 * (PLACE >> 4);
        return (first & 0xffffffff00000000u) | (uint32_t)((uint32_t)first + (uint32_t)(apart(stage) - apart(0)) * further);
    }
};

typedef struct flash_item {
    int        row0, kv_head;
    flash_span sp;
} flash_item;

/* Where a block is in its `turn`: kv heads fastest, the longest rows first. Every other turn goes backwards through the
 * blocks, else the first would have the longest of every turn, 12 % above the mean at 4k tokens. False: no more. */
template <int BM> LT_DEV bool item_at(const lt_cuda_attention &a, int turn, int &row0, int &kv_head)
{
    const int group = a.heads / a.kv.kv_heads, blocks = (a.tokens * group + BM - 1) / BM, all = (int)gridDim.x;
    const int n = turn * all + (turn % 2 ? all - 1 - (int)blockIdx.x : (int)blockIdx.x);
    row0 = (blocks - 1 - n / a.kv.kv_heads) * BM;
    kv_head = n % a.kv.kv_heads;
    return row0 >= 0;
}

/* By each warp for itself: the next item with something to do, from `turn` on. */
template <int BM> LT_DEV bool item_next(const lt_cuda_attention &a, int &turn, flash_item &it)
{
    while (item_at<BM>(a, turn++, it.row0, it.kv_head)) {
        it.sp = flash_span_of<BM>(a, it.row0, a.heads / a.kv.kv_heads);
        if (it.sp.last >= 0)
            return true;
    }
    return false;
}

/* What is made of x is made again in each round of a loop: kept over the loop it would not fit the registers. */
LT_DEV int items_again(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* x, the same in all lanes, which the compiler is to know: what leads to products must lie in uniform registers. */
LT_DEV int items_same(int x) { return __reduce_max_sync(LT_FULL, x); }

/* Values of a tile that are seen in part, by a warp. Positions outside first .. last become 0. */
template <class S> LT_DEV void items_feed_part(const lt_cuda_attention &a, uint32_t to, uint32_t step, const uint8_t *rows, int base, const flash_span &sp)
{
    const int lane = items_again(threadIdx.x % 32), c = lane & 15;
    to += (lane & 8) / 8 * step;
#pragma unroll 4 /* more would not fit the registers */
    for (int row = lane >> 4; row < S::TILE; row += 2) {
        const bool there = rows && base + row >= sp.first && base + row <= sp.last;
        lt_async16(to + wg_at<S::TILE>(row, c & 7), there ? rows + row * (2 * S::D) + c * 16 : (const uint8_t *)a.cache, there ? 16 : 0);
    }
    lt_copy_commit();
    lt_copy_wait<0>();
    wg_proxy();
    __syncwarp();
}

/* The warp that feeds: keys and values of all items through the one ring. The copy engine brings what rows see all of, told
 * by the first lane; the warp itself brings what they see in part. */
template <class S> LT_DEV void items_feed(const lt_cuda_attention &a, const lt_cuda_flash_maps &maps, uint32_t smem, uint32_t bars)
{
    const bool lead = threadIdx.x % 32 == 0;
    const int keys = a.kv.pages * LT_PAGE;
    bool taken = true; /* false: the computing groups are stuck, which they report */
    int stage = 0, round = 0, turn = 0;
    flash_item it;
    while (item_next<S::BM>(a, turn, it))
        for (int tile = it.sp.first / S::TILE; tile <= it.sp.last / S::TILE; tile++) {
            const int base = tile * S::TILE, key = base % keys, in_page = it.kv_head * LT_PAGE + base % LT_PAGE;
            const uint32_t k_full = bars + 8 * (S::FULL + stage), v_full = k_full + 8 * S::RING;
            const uint32_t to = smem + S::panel(stage, 0), step = S::apart(stage) * S::PLACE;
            const int page = lt_page(a.kv, a.table, base / LT_PAGE);
            const bool whole = page >= 0 && base >= it.sp.first && base + S::TILE - 1 <= it.sp.last;
            if (lead) {
                taken = taken && (!round || bar_wait(bars + 8 * (S::EMPTY + stage), (round - 1) & 1));
                if (taken) {
                    bar_expect(k_full, S::K_TILE + 4 * S::TILE);
                    box_copy(smem + S::K + stage * S::K_TILE, &maps.k, 0, key, it.kv_head, k_full);
                    const uint64_t scales = a.scratch + (uint64_t)a.kv.kv_heads * keys * LT_SAGE_PITCH(S::D);
                    bulk_copy(smem + S::SCALES + stage * S::TILE * 4, lt_at<float>(scales, ((int64_t)it.kv_head * keys + key) * 4), 4 * S::TILE, k_full);
                }
                taken = taken && (!round || bar_wait(bars + 8 * (S::EMPTY + S::RING + stage), (round - 1) & 1));
                if (taken && whole) {
                    bar_expect(v_full, S::V_BYTES);
                    box_copy(to, &maps.v, 0, in_page, page, v_full);
                    box_copy(to + step, &maps.v, 64, in_page, page, v_full);
                }
            }
            if (!whole && __shfl_sync(LT_FULL, taken, 0)) {
                __syncwarp(); /* the first lane has seen the room for all */
                items_feed_part<S>(a, to, step, page < 0 ? NULL : lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)page * a.kv.page_bytes +
                                   a.kv.v_offset + (uint64_t)in_page * a.kv.row_bytes)), base, it.sp);
                if (lead)
                    bar_arrive(v_full);
            }
            stage = stage + 1 < S::RING ? stage + 1 : 0;
            round += stage == 0;
        }
}

/* Four rows of queries from row on to shared memory, eight lanes a row, each what it will read itself. */
LT_DEV void items_ask(const lt_cuda_attention &a, uint32_t to, int row, int kv_head)
{
    const int lane = (int)threadIdx.x % 32;
    const float *q = flash_row(a, a.q, a.q_token, a.q_head, row + lane / 8, a.heads / a.kv.kv_heads, kv_head);
#pragma unroll
    for (int e = 0; e < 4; e++) /* eight floats a lane, 64 a row, as in sage_stage */
        lt_async16(to + e * 512, q ? (const void *)(q + e / 2 * 64 + lane % 8 * 8 + e % 2 * 4) : (const void *)a.q, q ? 16 : 0);
}

/* The warps that prepare, `mine` of them: queries as int8, their scales, the positions and the span of the next item, while
 * the computing groups are at this one. After the last item comes one that sees nothing. */
template <class S> LT_DEV void items_prepare(const lt_cuda_attention &a, uint8_t *mem, uint32_t smem, uint32_t bars, int mine)
{
    constexpr int STEPS = S::BM / 4;
    const int lane = (int)threadIdx.x % 32, one = mine * 32 + lane, group = a.heads / a.kv.kv_heads;
    const uint32_t asked = smem + S::ASKED + mine * S::SLOTS * 2048 + lane * 16;
    float *const scale = (float *)(mem + S::ROWS);
    int *const last = (int *)(mem + S::ROWS + 4 * S::BM);
    flash_item it;
    bool more = true;
    for (int n = 0, turn = 0; more; n++) {
        more = item_next<S::BM>(a, turn, it);
        int ahead = mine;
        const auto ask = [&](int slot) {
            if (more && ahead < STEPS)
                items_ask(a, asked + slot % S::SLOTS * 2048, it.row0 + 4 * ahead, it.kv_head);
            lt_copy_commit();
            ahead += S::PREPARE;
        };
#pragma unroll 1
        for (int i = 0; i < S::SLOTS - 1; i++)
            ask(i);
        int pos[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            pos[i] = more && one + 32 * S::PREPARE * i < S::BM ? flash_pos(a, (it.row0 + one + 32 * S::PREPARE * i) / group) : -1;
        if (!__all_sync(LT_FULL, !n || bar_wait(bars + 8 * S::Q_EMPTY, (n - 1) & 1)))
            return; /* the computing groups are stuck, which they report */
        if (one == 0) {
            *(int4 *)(mem + S::ITEM) = more ? make_int4(it.sp.first, it.sp.last, it.sp.all_first, it.sp.all_last) : make_int4(0, -1, 0, -1);
            *(int2 *)(mem + S::ITEM + 16) = make_int2(it.row0, it.kv_head);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (one + 32 * S::PREPARE * i < S::BM)
                last[one + 32 * S::PREPARE * i] = pos[i];
#pragma unroll 1
        for (int step = mine, slot = 0; more && step < STEPS; step += S::PREPARE, slot++) {
            float x[16];
            uint32_t q8[4];
            ask(slot + S::SLOTS - 1);
            lt_copy_wait<S::SLOTS - 1>();
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 v = *(const float4 *)(mem + (asked - smem) + slot % S::SLOTS * 2048 + e * 512);
                x[4 * e] = v.x, x[4 * e + 1] = v.y, x[4 * e + 2] = v.z, x[4 * e + 3] = v.w;
            }
            hadamard<16>(x);
            const float d = round8<16>(x, q8);
            const int row = 4 * step + lane / 8;
            put8<16>(mem + S::Q + wg_at<S::BM>(row, lane % 8), q8);
            if (lane % 8 == 0)
                scale[row] = a.scale * 1.44269504f * (d / S::D);
        }
        bar_arrive(bars + 8 * S::Q_FULL);
    }
}

/* A wait ended without what was waited for: all rows of this warp in all items of the block become NaN. */
template <class S> LT_DEV void items_spoil(const lt_cuda_attention &a)
{
    const int lane = (int)threadIdx.x % 32, group = a.heads / a.kv.kv_heads;
    const float nan = __int_as_float(0x7fffffff);
    int row0, kv_head;
#pragma unroll 1
    for (int turn = 0; item_at<S::BM>(a, turn, row0, kv_head); turn++)
#pragma unroll 1
        for (int i = 0; i < 16; i++) {
            float *y = flash_row(a, a.y, a.y_token, a.y_head, row0 + (int)threadIdx.x / 32 * 16 + i, group, kv_head);
            if (y)
                *(float4 *)(y + 4 * lane) = make_float4(nan, nan, nan, nan);
        }
}

template <class S> LT_DEV void items_compute(const lt_args &a, uint8_t *mem, uint32_t smem, uint32_t bars)
{
    ring at = {0, 0, true};
    for (int n = 0;; n++) {
        const int thread = items_again(threadIdx.x), lane = thread % 32, warp = thread / 32;
        /* all of a group go on, or none: products are made by all of it */
        if (!__all_sync(LT_FULL, named_all(1 + warp / 4, 128, at.fed && bar_wait(bars + 8 * S::Q_FULL, n & 1)))) {
            items_spoil<S>(a);
            return;
        }
        const int4 seen = *(const int4 *)(mem + S::ITEM);
        const int2 place = *(const int2 *)(mem + S::ITEM + 16);
        const flash_span sp = {items_same(seen.x), items_same(seen.y), items_same(seen.z), items_same(seen.w)};
        const int row = items_same(place.x) + warp * 16, kv_head = items_same(place.y);
        at.stage = items_same(at.stage), at.phase = items_same(at.phase);
        if (sp.last < 0)
            return;
        products<S::D, S::TILE, S::BM, true, true> product;
#pragma unroll
        for (int i = 0; i < S::D / 32; i++)
            lt_ldmatrix4(product.qr[i], smem + S::Q + wg_at<S::BM>(warp * 16 + lane % 16, 2 * i + lane / 16));
        flash_rows r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = warp * 16 + lane / 4 + 8 * h;
            r.m[h] = LT_NEG_INF;
            r.l[h] = 0.0f;
            r.scale[h] = ((const float *)(mem + S::ROWS))[i];
            r.last[h] = ((const int *)(mem + S::ROWS + 4 * S::BM))[i];
            r.first[h] = flash_first(a.window, r.last[h]);
        }
        bar_arrive(bars + 8 * S::Q_EMPTY);
        flash_bend(a, r);
        float o[S::N / 8][4];
        attend<S, S::D, S::TILE, S::GROUPS, false, S::RING, true, true>(a, mem, smem, bars, sp.first / S::TILE, sp.last / S::TILE, sp, product, r, o, at);
        const int group = items_again(a.heads / a.kv.kv_heads);
        flash_total(a, r, row + lane / 4, group, kv_head);
        if (!at.fed)
            r.l[0] = r.l[1] = __int_as_float(0x7fffffff);
        flash_store<S::D, 1>(a, o, r, row, group, kv_head, [&](int) { return mem + S::RESULTS + warp * 2048; }, lane);
    }
}

template <class S> LT_DEV void flash90_items(const lt_args &a, const lt_cuda_flash_maps &maps)
{
    extern __shared__ uint8_t shared[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(shared), smem = (raw + 1023) / 1024 * 1024, bars = smem + S::BARS;
    uint8_t *const mem = shared + (smem - raw);
    if (threadIdx.x == 0) {
        for (int i = 0; i <= S::Q_EMPTY; i++)
            bar_init(bars + 8 * i, i < S::EMPTY ? 1 : i == S::Q_FULL ? 32 * S::PREPARE : i >= S::EMPTY + S::RING && i < S::Q_FULL ? 4 * S::GROUPS : 128 * S::GROUPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int i = (int)threadIdx.x; i < S::PLACE / 16; i += 128 * (S::GROUPS + 1))
        *(uint4 *)(mem + S::LAST * S::PLACE + i * 16) = make_uint4(0x3c003c00u, 0x3c003c00u, 0x3c003c00u, 0x3c003c00u);
    wg_proxy();
    __syncthreads();
    if (threadIdx.x / 128 == S::GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        const int warp = __shfl_sync(LT_FULL, (int)threadIdx.x / 32, 0) - 4 * S::GROUPS;
        if (warp == 0)
            items_feed<S>(a, maps, smem, bars);
        else
            items_prepare<S>(a, mem, smem, bars, warp - 1);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        items_compute<S>(a, mem, smem, bars);
    }
}
