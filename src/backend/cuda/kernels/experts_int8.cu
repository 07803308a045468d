/* experts_int8.cu - the products of gemm_int8.cuh for the pairs of each expert: an image of tiles of pairs, and one of the
 * weights of those experts that have enough of them. */
#include "gemm_int8.cuh"

/* Rows of x in the order of tiles of pairs. */
struct lt_pair_rows {
    const lt_cuda_expert_pack &b;
    LT_DEV const uint8_t *operator()(int t) const
    {
        const int4 tile = __ldg((const int4 *)b.tiles + t / TOKENS); /* expert, at, count */
        if (t % TOKENS >= tile.z)
            return 0;
        const int pair = __ldg((const int *)b.pairs + tile.y + t % TOKENS);
        return lt_at<const uint8_t>(b.p.tokens.src, pair / b.picks * b.p.tokens.src_stride + pair % b.picks * b.x_pick);
    }
};

/* The first blocks of the grid pack weights, the others pairs. What no product reads is not written. */
template <int dt> LT_DEV void pack(const lt_cuda_expert_pack &b)
{
    const uint32_t parts = (uint32_t)b.p.parts, weights = (uint32_t)b.count * parts;
    if (blockIdx.x < weights) {
        const int e = (int)(blockIdx.x / parts);
        if (__ldg((const int *)b.counts + b.first + e) < b.least)
            return;
        lt_cuda_pack w = b.p.weight;
        w.src += (uint64_t)(b.first + e) * (uint64_t)b.w_expert;
        w.image += (uint64_t)e * (uint64_t)b.image_expert;
        pack_weight<dt>(w, (int)(blockIdx.x % parts));
        return;
    }
    const int64_t unit = (int64_t)(blockIdx.x - weights) * PACKERS + (int)threadIdx.x;
    if (unit >= b.p.token_units)
        return;
    const int tile = (int)(unit / (8 * lt_room(b.p.tokens.cols / 32) * TOKENS));
    if (__ldg((const int4 *)b.tiles + tile).z)
        pack_tokens(b.p.tokens, lt_pair_rows{b}, unit, lt_token_kind<dt>::sign, lt_token_kind<dt>::halves);
}

/* Tiles of a weight's rows, of each tile of pairs. */
struct lt_pair_tiles {
    const lt_cuda_expert_gemm8 &b;
    const int4                  tile;
    LT_DEV int row_tile() const { return (int)blockIdx.x % b.a.tiles; }
    LT_DEV int token_tile() const { return (int)blockIdx.x / b.a.tiles; }
    LT_DEV uint64_t w() const { return b.a.w + (uint64_t)(tile.x - b.first) * (uint64_t)b.image_expert; }
    LT_DEV void put(int r, int t, float v) const
    {
        const int i = t % TOKENS;
        if (r >= b.a.rows || i >= tile.z)
            return;
        const int pair = __ldg((const int *)b.pairs + tile.y + i);
        *lt_at<float>(b.a.y, pair / b.picks * b.a.y_stride + pair % b.picks * b.y_pick + 4 * (int64_t)r) = v;
    }
};

template <bool halves, bool mins> LT_DEV void gemm(const lt_cuda_expert_gemm8 &b)
{
    const lt_pair_tiles where = {b, __ldg((const int4 *)b.tiles + blockIdx.x / (uint32_t)b.a.tiles)};
    if (where.tile.z && (uint32_t)(where.tile.x - b.first) < (uint32_t)b.count)
        gemm_int8<halves, mins>(b.a, where);
}

#define PACK(name) \
    extern "C" __global__ void __launch_bounds__(PACKERS) expert_pack_##name(lt_cuda_expert_pack b) { pack<LT_W_##name>(b); }
PACK(Q4_0) PACK(Q4_1) PACK(Q5_0) PACK(Q5_1) PACK(Q8_0) PACK(Q2_K) PACK(Q3_K) PACK(Q4_K) PACK(Q5_K) PACK(Q6_K)
PACK(IQ4_NL) PACK(IQ4_XS) PACK(MXFP4)

/* Blocks a multiprocessor: as in gemm_int8.cu. */
#define GEMM(name, halves, mins) \
    extern "C" __global__ void __launch_bounds__(2 * TOKENS, halves ? 4 : 5) expert_gemm_##name(lt_cuda_expert_gemm8 b) { gemm<halves, mins>(b); }
GEMM(plain, false, false) GEMM(mins, false, true) GEMM(halves, true, false) GEMM(halves_mins, true, true)
