/* plain.cuh - what team.cuh and wide.cuh do not take: rows off their alignment, activations that do not fit shared memory.
 * One token. */
#ifndef LT_CUDA_PLAIN_CUH
#define LT_CUDA_PLAIN_CUH

#include "stage.cuh"
#include "weights.cuh"
#include "wide.cuh"

#define WARPS 4

/* Activations of one block of 32 columns of one token. */
typedef struct lt_block_x { uint32_t q[8]; float d; int s0, s1; } lt_block_x;

/* shared: q lies there */
template <bool shared> LT_DEV void load_x(const uint8_t *q, int cols, int b, lt_block_x &x)
{
    const auto get = [](auto *p) { return shared ? *p : __ldg(p); };
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint2 v = get((const uint2 *)(q + 32 * b) + k);
        x.q[2 * k] = v.x;
        x.q[2 * k + 1] = v.y;
    }
    x.d = get((const float *)(q + cols + 4 * b));
    const uint32_t sums = get((const uint32_t *)(q + cols + cols / 8 + 4 * b));
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

/* Eight lanes a row, lane c owns accumulator c and walks blocks c, c + 8, ...; one token. */
template <int dt, typename Who> LT_DEV void plain_quant(const lt_cuda_linear &a, const Who &who)
{
    if (Who::early)
        lt_begin();
    const int lane = (int)threadIdx.x % 32, unit = (int)blockIdx.x * 4 * WARPS, t = who.at(1, 0), blocks = a.cols / 32;
    const lt_cuda_linear_part *p = lt_part_of(a, unit);
    const int r = unit - p->first + (int)threadIdx.x / 8;
    const uint8_t *w = lt_at<const uint8_t>(who.w(*p), (r < p->rows ? r : p->rows - 1) * p->w_stride);
    float acc = 0;
#pragma unroll 2
    for (int b = lane % 8; b < blocks; b += 8) {
        lt_group g;
        lt_block_x v;
        lt_weight<dt>::group(w, b, g);
        load_x<false>(who.x(t), a.cols, b, v);
        acc = add_block<dt>(g, v, acc);
    }
    const float y = lt_tree<8>(acc);
    if (lane % 8 == 0 && r < p->rows)
        who.put(*p, t, r, y);
}

template <typename T> LT_DEV float lt_number(const uint8_t *p);
template <> LT_DEV float lt_number<float>(const uint8_t *p) { return __ldg((const float *)p); }
template <> LT_DEV float lt_number<__half>(const uint8_t *p) { return lt_half(lt_u16(p)); }
template <> LT_DEV float lt_number<unsigned short>(const uint8_t *p) { return lt_bf16(lt_u16(p)); }

/* A warp a row, element by element; one token. A lane that has no element left adds nothing: fma(0, x, a) would turn
 * -0 and NaN. */
template <typename T, typename Who> LT_DEV void plain_float(const lt_cuda_linear &a, const Who &who)
{
    if (Who::early)
        lt_begin();
    const int lane = (int)threadIdx.x % 32, unit = (int)blockIdx.x * WARPS, t = who.at(1, 0);
    const lt_cuda_linear_part *p = lt_part_of(a, unit);
    const int r = unit - p->first + (int)threadIdx.x / 32;
    const uint8_t *w = lt_at<const uint8_t>(who.w(*p), (r < p->rows ? r : p->rows - 1) * p->w_stride);
    const float *x = (const float *)who.x(t);
    float acc[8] = {0};
#pragma unroll 2
    for (int i = 8 * lane; i < a.cols; i += 256)
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < a.cols)
                acc[k] = lt_fma(lt_number<T>(w + (int64_t)(i + k) * (int64_t)sizeof(T)), __ldg(x + i + k), acc[k]);
    const float y = lt_tree_256(acc);
    if (lane == 0 && r < p->rows)
        who.put(*p, t, r, y);
}

#endif
