/* linear.cu - rows of activations times a weight, one to eight tokens a pass over it.
 *
 * Quantised: eight lanes a row, lane c owns accumulator c and walks blocks c, c + 8, ... Float: a warp a
 * row, lane l owns accumulators 8l .. 8l + 7 of 256. Both are the orders of docs/arithmetic.md, so a CPU
 * that computes the same row gets the same bits. Blocks of one row range and different tokens are
 * neighbours in the grid: the weight comes from memory once and from L2 after. */
#include "weights.cuh"

#define WARPS 4

/* Activations of one block of 32 columns of one token. */
typedef struct lt_block_x { uint32_t q[8]; float d; int s0, s1; } lt_block_x;

LT_DEV void load_x(const uint8_t *q, int cols, int b, lt_block_x &x)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint2 v = __ldg((const uint2 *)(q + 32 * b) + k);
        x.q[2 * k] = v.x;
        x.q[2 * k + 1] = v.y;
    }
    x.d = __ldg((const float *)(q + cols + 4 * b));
    const uint32_t sums = __ldg((const uint32_t *)(q + cols + cols / 8 + 4 * b));
    x.s0 = (int16_t)(sums & 0xffff);
    x.s1 = (int16_t)(sums >> 16);
}

template <int dt> LT_DEV float add_block(const lt_group &g, const lt_block_x &x, float acc)
{
    typedef lt_weight<dt> W;
    int i0 = 0, i1 = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        i0 = __dp4a((int)g.w[k], (int)x.q[k], i0);
        i1 = __dp4a((int)g.w[4 + k], (int)x.q[4 + k], i1);
    }
    i0 -= W::offset * x.s0;
    i1 -= W::offset * x.s1;
    const int sum = W::halves ? g.sc0 * i0 + g.sc1 * i1 : i0 + i1;
    acc = lt_fma((float)sum, lt_mul(g.d, x.d), acc);
    if (W::mins)
        acc = lt_fma((float)(g.mn0 * x.s0 + g.mn1 * x.s1), lt_mul(g.m, x.d), acc);
    return acc;
}

/* Where a block stands: a weight, its rows from `group * per_group` on, tokens from t0 on. */
typedef struct lt_place { const lt_cuda_linear_part *part; int row, t0; } lt_place;

LT_DEV lt_place place_of(const lt_cuda_linear &a, int per_group, int tokens)
{
    const int group = (int)blockIdx.x / a.tiles;
    int p = 0;
#pragma unroll
    for (int i = 1; i < LT_CUDA_LINEAR_PARTS; i++)
        p += i < a.parts && group >= a.part[i].first;
    const lt_place at = {&a.part[p], (group - a.part[p].first) * per_group, (int)blockIdx.x % a.tiles * tokens};
    return at;
}

/* The last tile of tokens may be short: it computes its last token again and stores it once. */
LT_DEV int64_t token_at(const lt_cuda_linear &a, int t) { return (t < a.tokens ? t : a.tokens - 1) * a.x_stride; }

template <int dt, int tokens> LT_DEV void linear_quant(const lt_cuda_linear &a)
{
    lt_begin();
    const lt_place at = place_of(a, 4 * WARPS, tokens);
    const int lane = (int)threadIdx.x % 32, r = at.row + (int)threadIdx.x / 8, blocks = a.cols / 32;
    const uint8_t *w = lt_at<const uint8_t>(at.part->w, (r < at.part->rows ? r : at.part->rows - 1) * at.part->w_stride);
    float acc[tokens] = {0};
#pragma unroll 2
    for (int b = lane % 8; b < blocks; b += 8) {
        lt_group g;
        lt_weight<dt>::group(w, b, g);
#pragma unroll
        for (int t = 0; t < tokens; t++) {
            lt_block_x v;
            load_x(lt_at<const uint8_t>(a.x, token_at(a, at.t0 + t)), a.cols, b, v);
            acc[t] = add_block<dt>(g, v, acc[t]);
        }
    }
#pragma unroll
    for (int t = 0; t < tokens; t++) { /* lanes stay together for the tree */
        const float y = lt_tree<8>(acc[t]);
        if (lane % 8 == 0 && r < at.part->rows && at.t0 + t < a.tokens)
            *lt_at<float>(at.part->y, (at.t0 + t) * at.part->y_stride + 4 * (int64_t)r) = y;
    }
}

/* Eight consecutive weights of a float dtype; `n` of them exist. */
template <typename T> struct lt_floats;
template <> struct lt_floats<float> {
    static LT_DEV void load(const uint8_t *p, int n, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? __ldg((const float *)p + i) : 0.0f;
    }
    static LT_DEV void wide(const uint8_t *p, float (&v)[8])
    {
        const float4 x = __ldg((const float4 *)p), y = __ldg((const float4 *)p + 1);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
};
template <bool brain> struct lt_halves {
    static LT_DEV float one(uint32_t bits) { return brain ? lt_bf16(bits) : lt_half(bits); }
    static LT_DEV void load(const uint8_t *p, int n, float (&v)[8])
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = i < n ? one(lt_u16(p + 2 * i)) : 0.0f;
    }
    static LT_DEV void wide(const uint8_t *p, float (&v)[8])
    {
        const uint4 x = __ldg((const uint4 *)p);
        const uint32_t w[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = one(w[i] & 0xffff);
            v[2 * i + 1] = one(w[i] >> 16);
        }
    }
};
template <> struct lt_floats<__half> : lt_halves<false> {};
template <> struct lt_floats<unsigned short> : lt_halves<true> {};

/* The halving tree of 256 accumulators, eight a lane: lanes first (128 to 8), then within the lane. */
LT_DEV float tree_256(float (&acc)[8])
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i] = lt_add(acc[i], __shfl_down_sync(LT_FULL, acc[i], s));
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            acc[i] = lt_add(acc[i], acc[i + s]);
    return acc[0];
}

/* A lane that has no element left adds nothing: fma(0, x, a) would turn -0 and NaN. */
template <typename T, int tokens, bool aligned> LT_DEV void linear_float(const lt_cuda_linear &a)
{
    lt_begin();
    const lt_place at = place_of(a, WARPS, tokens);
    const int lane = (int)threadIdx.x % 32, r = at.row + (int)threadIdx.x / 32;
    const uint8_t *w = lt_at<const uint8_t>(at.part->w, (r < at.part->rows ? r : at.part->rows - 1) * at.part->w_stride);
    float acc[tokens][8] = {{0}};
#pragma unroll 2
    for (int i = 8 * lane; i < a.cols; i += 256) {
        const int n = a.cols - i < 8 ? a.cols - i : 8;
        float v[8], u[8];
        if (aligned)
            lt_floats<T>::wide(w + (int64_t)i * (int64_t)sizeof(T), v);
        else
            lt_floats<T>::load(w + (int64_t)i * (int64_t)sizeof(T), n, v);
#pragma unroll
        for (int t = 0; t < tokens; t++) {
            const uint8_t *p = lt_at<const uint8_t>(a.x, token_at(a, at.t0 + t) + 4 * (int64_t)i);
            if (aligned)
                lt_floats<float>::wide(p, u);
            else
                lt_floats<float>::load(p, n, u);
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (aligned || k < n)
                    acc[t][k] = lt_fma(v[k], u[k], acc[t][k]);
        }
    }
#pragma unroll
    for (int t = 0; t < tokens; t++) {
        const float y = tree_256(acc[t]);
        if (lane == 0 && r < at.part->rows && at.t0 + t < a.tokens)
            *lt_at<float>(at.part->y, (at.t0 + t) * at.part->y_stride + 4 * (int64_t)r) = y;
    }
}

#define KERNEL(name, body) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) linear_##name(const __grid_constant__ lt_cuda_linear a) { body(a); }

#define QUANT(name)                                    \
    KERNEL(name##_1, (linear_quant<LT_W_##name, 1>))   \
    KERNEL(name##_2, (linear_quant<LT_W_##name, 2>))   \
    KERNEL(name##_4, (linear_quant<LT_W_##name, 4>))   \
    KERNEL(name##_8, (linear_quant<LT_W_##name, 8>))
QUANT(Q4_0) QUANT(Q4_1) QUANT(Q5_0) QUANT(Q5_1) QUANT(Q8_0) QUANT(Q2_K) QUANT(Q3_K) QUANT(Q4_K) QUANT(Q5_K) QUANT(Q6_K)
QUANT(IQ4_NL) QUANT(IQ4_XS) QUANT(MXFP4)

#define FLOATS(name, T)                                \
    KERNEL(name##_1, (linear_float<T, 1, true>))       \
    KERNEL(name##_2, (linear_float<T, 2, true>))       \
    KERNEL(name##_4, (linear_float<T, 4, true>))       \
    KERNEL(name##_8, (linear_float<T, 8, true>))       \
    KERNEL(name##_any_1, (linear_float<T, 1, false>))  \
    KERNEL(name##_any_4, (linear_float<T, 4, false>))
FLOATS(F32, float) FLOATS(F16, __half) FLOATS(BF16, unsigned short)
