/* linear.cu - rows of activations times a weight, one to eight tokens a pass over it.
 *
 * Quantised rows by blocks of threads that stage them in shared memory (team.cuh), float rows by warps that load ahead
 * into registers (wide.cuh); for one token and rows in host memory, whole lines (lines.cuh, and wide.cuh again). The plain kernels here take what those do not: rows off their alignment, activations that
 * do not fit shared memory. All sum in the orders of docs/arithmetic.md, so a CPU gets the same bits. */
#include "lines.cuh"
#include "wide.cuh"

#define WARPS 4

/* Eight lanes a row, lane c owns accumulator c and walks blocks c, c + 8, ...; one token. */
template <int dt> LT_DEV void plain_quant(const lt_cuda_linear &a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, unit = (int)blockIdx.x * 4 * WARPS, t = (int)blockIdx.y, blocks = a.cols / 32;
    const lt_cuda_linear_part *p = lt_part_of(a, unit);
    const int r = unit - p->first + (int)threadIdx.x / 8;
    const uint8_t *w = lt_at<const uint8_t>(p->w, (r < p->rows ? r : p->rows - 1) * p->w_stride);
    float acc = 0;
#pragma unroll 2
    for (int b = lane % 8; b < blocks; b += 8) {
        lt_group g;
        lt_block_x v;
        lt_weight<dt>::group(w, b, g);
        load_x(lt_at<const uint8_t>(a.x, t * a.x_stride), a.cols, b, v);
        acc = add_block<dt>(g, v, acc);
    }
    const float y = lt_tree<8>(acc);
    if (lane % 8 == 0 && r < p->rows)
        *lt_at<float>(p->y, t * p->y_stride + 4 * (int64_t)r) = y;
}

template <typename T> LT_DEV float lt_number(const uint8_t *p);
template <> LT_DEV float lt_number<float>(const uint8_t *p) { return __ldg((const float *)p); }
template <> LT_DEV float lt_number<__half>(const uint8_t *p) { return lt_half(lt_u16(p)); }
template <> LT_DEV float lt_number<unsigned short>(const uint8_t *p) { return lt_bf16(lt_u16(p)); }

/* A warp a row, element by element; one token. A lane that has no element left adds nothing: fma(0, x, a) would turn
 * -0 and NaN. */
template <typename T> LT_DEV void plain_float(const lt_cuda_linear &a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, unit = (int)blockIdx.x * WARPS, t = (int)blockIdx.y;
    const lt_cuda_linear_part *p = lt_part_of(a, unit);
    const int r = unit - p->first + (int)threadIdx.x / 32;
    const uint8_t *w = lt_at<const uint8_t>(p->w, (r < p->rows ? r : p->rows - 1) * p->w_stride);
    const float *x = lt_at<const float>(a.x, t * a.x_stride);
    float acc[8] = {0};
#pragma unroll 2
    for (int i = 8 * lane; i < a.cols; i += 256)
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < a.cols)
                acc[k] = lt_fma(lt_number<T>(w + (int64_t)(i + k) * (int64_t)sizeof(T)), __ldg(x + i + k), acc[k]);
    const float y = lt_tree_256(acc);
    if (lane == 0 && r < p->rows)
        *lt_at<float>(p->y, t * p->y_stride + 4 * (int64_t)r) = y;
}

#define KERNEL(name, threads, body) \
    extern "C" __global__ void __launch_bounds__(threads) linear_##name(const __grid_constant__ lt_cuda_linear a) { body(a); }

#define PLAIN(name, bytes, whole) KERNEL(name##_plain, 32 * WARPS, plain_quant<LT_W_##name>)
LT_CUDA_QUANTS(PLAIN)
#define LINES(name, bytes, whole) KERNEL(name##_lines, 32 * LT_CUDA_LINES_WARPS, linear_lines<LT_W_##name>)
LT_CUDA_QUANTS(LINES)
#define TEAM(name, bytes, whole, tokens, rows, own, seg, stages) \
    KERNEL(name##_##tokens, rows * 8 / own, (linear_team<LT_W_##name, tokens, rows, own, seg, stages>))
LT_CUDA_TEAMS(TEAM)

KERNEL(F32_plain, 32 * WARPS, plain_float<float>)
KERNEL(F16_plain, 32 * WARPS, plain_float<__half>)
KERNEL(BF16_plain, 32 * WARPS, plain_float<unsigned short>)
#define WIDE(tokens, rows, batch, warps)                                              \
    KERNEL(F32_##tokens, 32 * warps, (linear_wide<0, tokens, rows, batch, false>))    \
    KERNEL(F16_##tokens, 32 * warps, (linear_wide<1, tokens, rows, batch, false>))    \
    KERNEL(BF16_##tokens, 32 * warps, (linear_wide<2, tokens, rows, batch, false>))
LT_CUDA_WIDES(WIDE)
KERNEL(F16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, (linear_wide<1, 1, 1, 4, true>))
KERNEL(BF16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, (linear_wide<2, 1, 1, 4, true>))
