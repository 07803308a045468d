/* linear.cu - rows of activations times a weight, one to eight tokens a pass over it.
 *
 * Quantised rows by blocks of threads that stage them in shared memory (team.cuh), float rows by warps that load ahead
 * into registers (wide.cuh); one token's rows in host memory by whole lines (lines.cuh, and wide.cuh again). plain.cuh takes
 * what those do not. All sum in the orders of docs/arithmetic.md, so a CPU gets the same bits. */
#include "lines.cuh"
#include "plain.cuh"
#include "team.cuh"
#include "wide.cuh"

#define KERNEL_OF(name, threads, body, who) \
    extern "C" __global__ void __launch_bounds__(threads) linear_##name(const __grid_constant__ lt_cuda_linear a) { body(a, who{a, (int)blockIdx.y}); }
#define KERNEL(name, threads, body) KERNEL_OF(name, threads, body, lt_tokens)
#define ALONE(name, body) KERNEL_OF(name, 32 * WARPS, body, lt_token)

#define PLAIN(name, bytes, whole) ALONE(name##_plain, plain_quant<LT_W_##name>)
LT_CUDA_QUANTS(PLAIN)
#define LINES(name, bytes, whole) KERNEL_OF(name##_lines, 32 * LT_CUDA_LINES_WARPS, linear_lines<LT_W_##name>, lt_token)
LT_CUDA_QUANTS(LINES)
#define TEAM(name, bytes, whole, tokens, rows, own, seg, stages) \
    KERNEL(name##_##tokens, rows * 8 / own, (linear_team<LT_W_##name, tokens, rows, own, seg, stages>))
LT_CUDA_TEAMS(TEAM)

ALONE(F32_plain, plain_float<float>)
ALONE(F16_plain, plain_float<__half>)
ALONE(BF16_plain, plain_float<unsigned short>)
#define WIDE(tokens, rows, batch, warps)                                       \
    KERNEL(F32_##tokens, 32 * warps, (linear_wide<0, tokens, rows, batch, false>))    \
    KERNEL(F16_##tokens, 32 * warps, (linear_wide<1, tokens, rows, batch, false>))    \
    KERNEL(BF16_##tokens, 32 * warps, (linear_wide<2, tokens, rows, batch, false>))
LT_CUDA_WIDES(WIDE)
KERNEL(F16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, (linear_wide<1, 1, 1, 4, true>))
KERNEL(BF16_lines, 32 * LT_CUDA_WIDE_LINES_WARPS, (linear_wide<2, 1, 1, 4, true>))
