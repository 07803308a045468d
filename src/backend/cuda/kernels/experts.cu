/* experts.cu - mixtures of experts: which ones, their shares, biases and sum; and their products as linear.cu has them.
 *
 * A product's block learns from ids whose weights it reads, so nothing of a weight is loaded before lt_begin; a block
 * whose expert is another slice's ends there. */
#include "lines.cuh"
#include "plain.cuh"
#include "team.cuh"
#include "wide.cuh"

#define TOP_WARPS 4

/* Scores in the order of TOP_K: NaN lowest, -0 as +0. Above 0 for all but NaN. */
LT_DEV uint32_t score_order(float x)
{
    const uint32_t b = x == 0.0f ? 0 : __float_as_uint(x);
    return x != x ? 0 : b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* The same with the column, the lower one above; never 0. */
LT_DEV unsigned long long score_and_column(uint32_t order, int i) { return (unsigned long long)order << 32 | (0xffffffffu - (uint32_t)i); }

/* A warp a token. Each lane keeps the best of its columns that is not picked yet. */
LT_DEV void pick_top(const lt_cuda_top &a, const float *x, int *ids, uint32_t *order, int lane)
{
    unsigned long long best = 0;
    for (int i = lane; i < a.experts; i += 32) {
        order[i] = score_order(x[i]); /* a lane reads what it wrote itself */
        best = max(best, score_and_column(order[i], i));
    }
    for (int n = 0; n < a.picks; n++) {
        unsigned long long most = best;
#pragma unroll
        for (int s = 16; s > 0; s /= 2)
            most = max(most, __shfl_xor_sync(LT_FULL, most, s));
        if (best != most)
            continue;
        ids[n] = (int)(0xffffffffu - (uint32_t)most);
        best = 0;
        for (int i = lane; i < a.experts; i += 32) {
            const unsigned long long v = score_and_column(order[i], i);
            best = v < most && v > best ? v : best;
        }
    }
}

/* A warp a token; lanes 0 to 7 own the accumulators of the sum. ids are columns. */
LT_DEV void put_shares(const lt_cuda_top &a, const float *x, const int *ids, float *y, int lane)
{
    const int n = a.all ? a.experts : a.picks;
    float m = __int_as_float(0xff800000); /* a NaN among the scores makes the sum NaN, whatever the maximum says of it */
    for (int i = lane; i < n; i += 32) {
        const float s = x[a.all ? i : ids[i]];
        m = s > m ? s : m;
    }
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        m = fmaxf(m, __shfl_xor_sync(LT_FULL, m, s));
    float l = 0;
    if (lane < 8)
#pragma unroll 4
        for (int i = lane; i < n; i += 8)
            l = lt_add(l, lt_exp(lt_sub(x[a.all ? i : ids[i]], m)));
    l = __shfl_sync(LT_FULL, lt_tree<8>(l), 0);
    for (int k = lane; k < a.picks; k += 32)
        y[k] = lt_div(lt_exp(lt_sub(x[ids[k]], m)), l);
}

template <bool share> LT_DEV void top(const lt_cuda_top &a)
{
    __shared__ uint32_t orders[TOP_WARPS][LT_CUDA_TOP_MOST];
    lt_begin();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, t = (int)blockIdx.x * TOP_WARPS + warp;
    if (t >= a.tokens)
        return;
    const float *x = lt_at<const float>(a.scores, t * a.scores_row);
    int *ids = lt_at<int>(a.ids, t * a.ids_row);
    pick_top(a, x, ids, orders[warp], lane);
    if (share) {
        __syncwarp(); /* other lanes' ids */
        put_shares(a, x, ids, lt_at<float>(a.y, t * a.y_row), lane);
    }
}
extern "C" __global__ void __launch_bounds__(32 * TOP_WARPS) top_k(lt_cuda_top a) { top<false>(a); }
extern "C" __global__ void __launch_bounds__(32 * TOP_WARPS) top_k_share(lt_cuda_top a) { top<true>(a); }

extern "C" __global__ void __launch_bounds__(32 * TOP_WARPS) top_share(lt_cuda_top a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, t = (int)blockIdx.x * TOP_WARPS + (int)threadIdx.x / 32;
    if (t >= a.tokens)
        return;
    const int *ids = lt_at<const int>(a.ids, t * a.ids_row);
    bool wrong = false;
    for (int k = lane; k < a.picks; k += 32)
        if ((uint32_t)ids[k] >= (uint32_t)a.experts) {
            lt_wrong(a.wrong, a.name, LT_CUDA_WRONG_EXPERT, ids[k]);
            wrong = true;
        }
    if (!__any_sync(LT_FULL, wrong))
        put_shares(a, lt_at<const float>(a.scores, t * a.scores_row), ids, lt_at<float>(a.y, t * a.y_row), lane);
}

template <typename T, typename F> LT_DEV T each_of(T x, T z, F f)
{
    T y;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); i++)
        ((float *)&y)[i] = f(((const float *)&x)[i], ((const float *)&z)[i]);
    return y;
}

/* grid.x: pairs. T float4: rows of four elements at multiples of 16 bytes. */
template <typename T> LT_DEV void add_bias(const lt_cuda_pairs &a)
{
    lt_begin();
    const int token = (int)blockIdx.x / a.picks, k = (int)blockIdx.x % a.picks, i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int e = lt_at<const int>(a.ids, token * a.ids_row)[k];
    if ((uint32_t)e >= (uint32_t)a.experts) {
        if (i == 0)
            lt_wrong(a.wrong, a.name, LT_CUDA_WRONG_EXPERT, e);
        return;
    }
    if (i >= a.cols / (int)(sizeof(T) / 4))
        return;
    const T x = lt_at<const T>(a.x, token * a.x_token + k * a.x_pick)[i], b = lt_at<const T>(a.b, e * a.b_row)[i];
    lt_at<T>(a.y, token * a.y_token + k * a.y_pick)[i] = each_of(x, b, [](float u, float v) { return lt_add(u, v); });
}
extern "C" __global__ void __launch_bounds__(128) expert_bias(lt_cuda_pairs a) { add_bias<float>(a); }
extern "C" __global__ void __launch_bounds__(128) expert_bias_4(lt_cuda_pairs a) { add_bias<float4>(a); }

/* grid.x: tokens. b: shares. */
template <typename T> LT_DEV void sum_picks(const lt_cuda_pairs &a)
{
    lt_begin();
    const int token = (int)blockIdx.x, i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (i >= a.cols / (int)(sizeof(T) / 4))
        return;
    const float *share = lt_at<const float>(a.b, token * a.b_row);
    T o = T();
#pragma unroll 4
    for (int k = 0; k < a.picks; k++) {
        const float s = share[k];
        o = each_of(lt_at<const T>(a.x, token * a.x_token + k * a.x_pick)[i], o, [=](float u, float v) { return lt_fma(s, u, v); });
    }
    lt_at<T>(a.y, token * a.y_token)[i] = o;
}
extern "C" __global__ void __launch_bounds__(128) expert_sum(lt_cuda_pairs a) { sum_picks<float>(a); }
extern "C" __global__ void __launch_bounds__(128) expert_sum_4(lt_cuda_pairs a) { sum_picks<float4>(a); }

/* --- pairs by experts --------------------------------------------------------------------- */

/* The place of a pair's expert in the slice; outside of it, a number of at least `experts`. */
LT_DEV uint32_t expert_of(const lt_cuda_expert_list &a, int pair)
{
    return (uint32_t)lt_at<const int>(a.ids, pair / a.picks * a.ids_row)[pair % a.picks] - (uint32_t)a.first;
}

/* Slots from this expert's first to the next one's; the last expert's, to the end. */
LT_DEV void put_tiles(uint64_t to, int tile, int slots, int experts, int e, int before, int count, int used)
{
    lt_cuda_expert_tile *out = (lt_cuda_expert_tile *)to;
    const int start = before / tile + e, end = e == experts - 1 ? slots : (before + count) / tile + e + 1;
    for (int i = (int)threadIdx.x; i < end - start; i += (int)blockDim.x) {
        const int left = used - i * tile;
        out[start + i] = lt_cuda_expert_tile{e, before + i * tile, left <= 0 ? 0 : left < tile ? left : tile, 0};
    }
}

/* A block an expert of the slice. Pairs keep their order, so nothing depends on which block comes first. */
extern "C" __global__ void __launch_bounds__(256) expert_list(lt_cuda_expert_list a)
{
    __shared__ int below[8], equal[8];
    lt_begin();
    const int e = (int)blockIdx.x, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int each = (a.n_pairs + 255) / 256 * 32, from = warp * each, to = from + each < a.n_pairs ? from + each : a.n_pairs;
    int n_below = 0, n_equal = 0;
#pragma unroll 4
    for (int i = from + lane; i < to; i += 32) {
        const uint32_t id = expert_of(a, i);
        n_below += id < (uint32_t)e;
        n_equal += id == (uint32_t)e;
    }
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
        n_below += __shfl_xor_sync(LT_FULL, n_below, s);
        n_equal += __shfl_xor_sync(LT_FULL, n_equal, s);
    }
    if (lane == 0) {
        below[warp] = n_below;
        equal[warp] = n_equal;
    }
    __syncthreads();
    int before = 0, count = 0, at = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) {
        before += below[w];
        count += equal[w];
        at += w < warp ? equal[w] : 0;
    }
    at += before;
    for (int i = from; i < to && n_equal; i += 32) {
        const bool mine = i + lane < to && expert_of(a, i + lane) == (uint32_t)e;
        const uint32_t all = __ballot_sync(LT_FULL, mine);
        if (mine)
            ((int *)a.pairs)[at + __popc(all & ((1u << lane) - 1))] = i + lane;
        at += __popc(all);
    }
    if (threadIdx.x == 0)
        ((int *)a.counts)[e] = count;
    if (a.few_tile)
        put_tiles(a.few, a.few_tile, a.few_slots, a.experts, e, before, count, count < a.least ? count : 0);
    if (a.many_tile)
        put_tiles(a.many, a.many_tile, a.many_slots, a.experts, e, before, count, count < a.least ? 0 : count);
}

/* --- products ----------------------------------------------------------------------------- */

/* One pair; its expert lies `skip` bytes into the part. bias: its row, or NULL. */
struct lt_one_pair {
    enum { early = 0 };
    const uint64_t skip;
    const uint8_t *row;
    const int64_t  out;
    const float   *bias;
    LT_DEV uint64_t w(const lt_cuda_linear_part &p) const { return p.w + skip; }
    LT_DEV int at(int, int) const { return 0; }
    LT_DEV bool has(int) const { return true; }
    LT_DEV const uint8_t *x(int) const { return row; }
    LT_DEV void put(const lt_cuda_linear_part &p, int, int r, float v) const
    {
        *lt_at<float>(p.y, out + 4 * (int64_t)r) = bias ? lt_add(v, __ldg(bias + r)) : v;
    }
};

/* A block's units are one part's. */
template <typename F> LT_DEV void one_pair(const lt_cuda_experts &b, int unit, F product)
{
    lt_begin();
    const int part = lt_part_index(b.a, unit), token = (int)blockIdx.y / b.picks, k = (int)blockIdx.y % b.picks;
    const lt_cuda_expert_part &of = b.of[part];
    const int id = lt_at<const int>(b.ids, token * b.ids_row)[k];
    const uint32_t e = (uint32_t)id - (uint32_t)of.first;
    if (b.all && (uint32_t)id >= (uint32_t)b.all && threadIdx.x == 0)
        lt_wrong(b.wrong, b.name, LT_CUDA_WRONG_EXPERT, id);
    if (e < (uint32_t)of.experts)
        product(lt_one_pair{(uint64_t)e * (uint64_t)of.w_expert, lt_at<const uint8_t>(b.a.x, token * b.a.x_stride + k * b.x_pick),
                            token * b.a.part[part].y_stride + k * of.y_pick,
                            of.bias ? lt_at<const float>(of.bias, (int64_t)(e + (uint32_t)of.first) * of.bias_row) : 0});
}

/* Up to eight pairs of one expert. */
struct lt_pair_tile {
    enum { early = 0 };
    const lt_cuda_experts &b;
    const uint64_t         skip;
    const int              count;
    const int2            *pairs; /* token and pick, in shared memory */
    LT_DEV uint64_t w(const lt_cuda_linear_part &p) const { return p.w + skip; }
    LT_DEV int at(int, int t) const { return t; }
    LT_DEV bool has(int at) const { return at < count; }
    LT_DEV const uint8_t *x(int at) const
    {
        const int2 p = pairs[at < count ? at : count - 1];
        return lt_at<const uint8_t>(b.a.x, p.x * b.a.x_stride + p.y * b.x_pick);
    }
    LT_DEV void put(const lt_cuda_linear_part &p, int at, int r, float v) const
    {
        *lt_at<float>(p.y, pairs[at].x * p.y_stride + pairs[at].y * b.of[0].y_pick + 4 * (int64_t)r) = v;
    }
};

template <typename F> LT_DEV void pair_tile(const lt_cuda_experts &b, F product)
{
    __shared__ int2 pairs[8];
    lt_begin();
    const lt_cuda_expert_tile tile = ((const lt_cuda_expert_tile *)b.tiles)[blockIdx.y];
    if (!tile.count)
        return;
    if ((int)threadIdx.x < tile.count) {
        const int pair = ((const int *)b.pairs)[tile.at + (int)threadIdx.x];
        pairs[threadIdx.x] = make_int2(pair / b.picks, pair % b.picks);
    }
    __syncthreads();
    product(lt_pair_tile{b, (uint64_t)tile.expert * (uint64_t)b.of[0].w_expert, tile.count, pairs});
}

#define KERNEL(name, threads, way) \
    extern "C" __global__ void __launch_bounds__(threads) expert_##name(const __grid_constant__ lt_cuda_experts b) { way; }
#define ONE(name, threads, units, body) KERNEL(name, threads, one_pair(b, (int)blockIdx.x * (units), [&](const lt_one_pair &who) { body(b.a, who); }))
#define TILE(name, threads, body) KERNEL(name, threads, pair_tile(b, [&](const lt_pair_tile &who) { body(b.a, who); }))

#define PLAIN(name, bytes, whole) ONE(name##_plain, 32 * WARPS, 4 * WARPS, plain_quant<LT_W_##name>)
LT_CUDA_QUANTS(PLAIN)
#define LINES(name, bytes, whole) ONE(name##_lines, 32 * LT_CUDA_LINES_WARPS, LT_CUDA_LINES_WARPS, linear_lines<LT_W_##name>)
LT_CUDA_QUANTS(LINES)
ONE(F16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, LT_CUDA_WIDE_LINES_WARPS, (linear_wide<1, 1, 1, 4, true>))
ONE(BF16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, LT_CUDA_WIDE_LINES_WARPS, (linear_wide<2, 1, 1, 4, true>))
ONE(F32_plain, 32 * WARPS, WARPS, plain_float<float>)
ONE(F16_plain, 32 * WARPS, WARPS, plain_float<__half>)
ONE(BF16_plain, 32 * WARPS, WARPS, plain_float<unsigned short>)

/* Of LINEAR's tiles those of one and of eight. */
#define TEAM_1(name, rows, own, seg, stages) ONE(name##_1, rows * 8 / own, 1, (linear_team<LT_W_##name, 1, rows, own, seg, stages>))
#define TEAM_2(name, rows, own, seg, stages)
#define TEAM_4(name, rows, own, seg, stages)
#define TEAM_8(name, rows, own, seg, stages) TILE(name##_8, rows * 8 / own, (linear_team<LT_W_##name, 8, rows, own, seg, stages>))
#define TEAM(name, bytes, whole, tokens, rows, own, seg, stages) TEAM_##tokens(name, rows, own, seg, stages)
LT_CUDA_TEAMS(TEAM)

#define WIDE_1(name, kind, rows, batch, warps) ONE(name##_1, 32 * warps, warps, (linear_wide<kind, 1, rows, batch, false>))
#define WIDE_2(name, kind, rows, batch, warps)
#define WIDE_4(name, kind, rows, batch, warps)
#define WIDE_8(name, kind, rows, batch, warps) TILE(name##_8, 32 * warps, (linear_wide<kind, 8, rows, batch, false>))
#define WIDE(tokens, rows, batch, warps)    \
    WIDE_##tokens(F32, 0, rows, batch, warps)  \
    WIDE_##tokens(F16, 1, rows, batch, warps)  \
    WIDE_##tokens(BF16, 2, rows, batch, warps)
LT_CUDA_WIDES(WIDE)
