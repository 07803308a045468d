/* flash.cu - causal attention over a prompt, mma.sync on half: sm_80 and later.
 *
 * WARPS warps of 16 rows each; tiles of BN keys, two in flight. Queries stay in registers where they fit.
 * Rows in shared memory are 16 bytes longer than they need: ldmatrix then meets no bank twice. */
#include "flash.cuh"
#include "flash_shape.h"
#include "mma.cuh"

#if __CUDA_ARCH__ >= 800
template <int D, int BN, int MT, int WARPS, bool QREG> struct shape {
    static constexpr int BM = 16 * MT * WARPS, THREADS = 32 * WARPS, PITCH = 2 * D + 16;
    static constexpr int HALF = LT_FLASH_HALF(D, BN), Q_AT = QREG ? 0 : 4 * HALF; /* K or V of a tile; two tiles of both */
    static_assert(!QREG || BM * PITCH <= 4 * HALF, "queries pass through the tiles");
};

/* Tile of BN keys from `base`; positions outside first .. last become 0. */
template <class S, int D, int BN> LT_DEV void load_tile(const lt_cuda_attention &a, uint32_t to, const uint8_t *page, int base, const flash_span &sp)
{
    constexpr int CHUNKS = D / 8;
    const uint8_t *k = page + (base % LT_PAGE) * (2 * D);
    const int64_t v = (int64_t)(a.kv.v_offset - a.kv.k_offset);
#pragma unroll
    for (int i = 0; i < (BN * CHUNKS + S::THREADS - 1) / S::THREADS; i++) {
        const int n = i * S::THREADS + (int)threadIdx.x, row = n / CHUNKS, c = n % CHUNKS;
        if (BN * CHUNKS % S::THREADS && n >= BN * CHUNKS)
            break;
        const bool there = page && base + row >= sp.first && base + row <= sp.last;
        const uint8_t *from = there ? k + 16 * n : (const uint8_t *)a.cache;
        lt_async16(to + row * S::PITCH + 16 * c, from, there ? 16 : 0);
        lt_async16(to + S::HALF + row * S::PITCH + 16 * c, there ? from + v : from, there ? 16 : 0);
    }
}

/* s += queries . keys of a tile at k_at. */
template <class S, int D, int BN, int MT, bool QREG>
LT_DEV void score(float (&s)[MT][BN / 8][4], const uint32_t (&qr)[QREG ? MT : 1][QREG ? D / 16 : 1][4], uint32_t q_at, uint32_t k_at)
{
    constexpr int NT = BN / 8, KD = D / 16;
    const int lane = (int)threadIdx.x % 32;
    const uint32_t kf = k_at + (lane % 8 + lane / 16 * 8) * S::PITCH + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < KD; k++) {
        uint32_t q[MT][4];
#pragma unroll
        for (int t = 0; t < MT; t++)
            if (QREG)
#pragma unroll
                for (int x = 0; x < 4; x++)
                    q[t][x] = qr[t][k][x];
            else
                lt_ldmatrix4(q[t], q_at + t * 16 * S::PITCH + 32 * k);
#pragma unroll
        for (int i = 0; i < NT; i += 2) {
            uint32_t b[4];
            lt_ldmatrix4(b, kf + i * 8 * S::PITCH + 32 * k);
#pragma unroll
            for (int t = 0; t < MT; t++) {
                lt_mma_f16(s[t][i], q[t], b[0], b[1]);
                lt_mma_f16(s[t][i + 1], q[t], b[2], b[3]);
            }
        }
    }
}

/* o += weights . values of a tile at v_at. */
template <class S, int D, int BN, int MT> LT_DEV void weigh(float (&o)[MT][D / 8][4], const float (&s)[MT][BN / 8][4], uint32_t v_at)
{
    constexpr int OT = D / 8;
    const int lane = (int)threadIdx.x % 32;
    const uint32_t vf = v_at + lane % 16 * S::PITCH + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < BN / 16; k++) {
        uint32_t p[MT][4];
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                p[t][x] = flash_pack(s[t][2 * k + x / 2][x % 2 * 2], s[t][2 * k + x / 2][x % 2 * 2 + 1]);
#pragma unroll
        for (int i = 0; i < OT; i += 2) {
            uint32_t b[4];
            lt_ldmatrix4_trans(b, vf + k * 16 * S::PITCH + 16 * i);
#pragma unroll
            for (int t = 0; t < MT; t++) {
                lt_mma_f16(o[t][i], p[t], b[0], b[1]);
                lt_mma_f16(o[t][i + 1], p[t], b[2], b[3]);
            }
        }
    }
}

template <int D, int BN, int MT, int WARPS, bool QREG> LT_DEV void flash_mma(const lt_args &a)
{
    typedef shape<D, BN, MT, WARPS, QREG> S;
    constexpr int NT = BN / 8, KD = D / 16, OT = D / 8;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t base_at = (uint32_t)__cvta_generic_to_shared(shared);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = a.heads / a.kv.kv_heads;
    const int kv_head = (int)blockIdx.x, row0 = (int)(gridDim.y - 1 - blockIdx.y) * S::BM; /* the longest first */
    const flash_span sp = flash_span_of<S::BM>(a, row0, group);
    if (sp.last < 0)
        return;
    uint8_t *const sq = shared + S::Q_AT;
    flash_rows r[MT];
#pragma unroll
    for (int t = 0; t < MT; t++) {
        const int top = (warp * MT + t) * 16;
        flash_stage<D>(
            a, row0 + top, group, kv_head, [&](int i, int j) { return sq + (top + i) * S::PITCH + 2 * j; },
            [&](int i, float f) {
                if (i % 8 == lane / 4)
                    r[t].scale[i / 8] = f;
            });
        flash_bend(a, r[t]);
    }
    __syncthreads();
    const uint32_t q_at = base_at + S::Q_AT + (warp * 16 * MT + lane % 16) * S::PITCH + lane / 16 * 16;
    uint32_t qr[QREG ? MT : 1][QREG ? KD : 1][4];
    if (QREG) {
#pragma unroll
        for (int t = 0; t < MT; t++)
#pragma unroll
            for (int k = 0; k < KD; k++)
                lt_ldmatrix4(qr[t][k], q_at + t * 16 * S::PITCH + 32 * k);
        __syncthreads();
    }
    float o[MT][OT][4];
#pragma unroll
    for (int t = 0; t < MT; t++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = warp * 16 * MT + 16 * t + 8 * h + lane / 4;
            r[t].m[h] = LT_NEG_INF;
            r[t].l[h] = 0.0f;
            r[t].last[h] = flash_pos(a, (row0 + row) / group);
            r[t].first[h] = flash_first(a.window, r[t].last[h]);
        }
#pragma unroll
        for (int i = 0; i < OT; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                o[t][i][k] = 0.0f;
    }
    const int begin = sp.first / BN, end = sp.last / BN;
    const uint8_t *page = NULL;
    int page_of = -1;
    const auto fetch = [&](int tile, int stage) {
        if (tile <= end) {
            if (tile * BN / LT_PAGE != page_of) {
                page_of = tile * BN / LT_PAGE;
                page = flash_page(a, tile * BN, kv_head);
            }
            load_tile<S, D, BN>(a, base_at + stage * 2 * S::HALF, page, tile * BN, sp);
        }
        lt_copy_commit();
    };
    fetch(begin, 0);
    for (int tile = begin, stage = 0; tile <= end; tile++, stage ^= 1) {
        lt_copy_wait<0>();
        __syncthreads();
        fetch(tile + 1, stage ^ 1);
        const uint32_t k_at = base_at + stage * 2 * S::HALF;
        float s[MT][NT][4] = {};
        score<S, D, BN, MT, QREG>(s, qr, q_at, k_at);
        const bool whole = tile * BN >= sp.all_first && tile * BN + BN - 1 <= sp.all_last;
#pragma unroll
        for (int t = 0; t < MT; t++) {
            float fix[2];
            flash_cap<NT>(a, s[t], r[t]);
            if (!whole)
                flash_mask<NT>(s[t], r[t], tile * BN);
            flash_softmax<NT>(s[t], r[t], fix);
            if (__any_sync(LT_FULL, fix[0] != 1.0f || fix[1] != 1.0f))
#pragma unroll
                for (int i = 0; i < OT; i++)
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        o[t][i][k] *= fix[k / 2];
        }
        weigh<S, D, BN, MT>(o, s, k_at + S::HALF);
    }
    lt_copy_wait<0>();
    __syncthreads(); /* the tiles are places for results now */
#pragma unroll
    for (int t = 0; t < MT; t++) {
        const int row = row0 + warp * 16 * MT + 16 * t;
        flash_total(a, r[t], row + lane / 4, group, kv_head);
        flash_store<D, 2>(a, o[t], r[t], row, group, kv_head, [&](int i) { return shared + (2 * warp + i) * 2048; });
    }
}
#endif

#if __CUDA_ARCH__ >= 800
#define BODY(...) flash_mma<__VA_ARGS__>(a)
#else
#define BODY(...) (void)a
#endif
#define FLASH(name, D, BN, MT, WARPS, QREG, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) name(lt_args a)                                   \
    {                                                                                                                  \
        BODY(D, BN, MT, WARPS, QREG);                                                                                  \
    }
#include "flash.def"
