/* lines.cuh - quantised rows that lie in host memory, one token: a warp takes a few rows that follow each other, asks for
 * their whole span at once, 512 bytes an instruction from a multiple of 128 on, and multiplies what has come.
 *
 * Over the link only the size of a request counts: in pieces of 128 bytes that lie across two lines, as team.cuh loads
 * rows, 21 GB/s came where whole lines come at 51. Arithmetic costs nothing beside that. */
#ifndef LT_CUDA_LINES_CUH
#define LT_CUDA_LINES_CUH

#include "plain.cuh"

/* n rows from `from` on, `stride` apart and `row_bytes` long, to shared memory, where the first is at the address that
 * comes back; a warp. What is on its way is not waited for. */
LT_DEV const uint8_t *lines_fetch(uint8_t *to, const uint8_t *from, int64_t stride, int row_bytes, int n)
{
    const uint8_t *const base = from - ((uintptr_t)from & 127), *const end = from + (n - 1) * stride + row_bytes;
    for (const uint8_t *at = base + 16 * ((int)threadIdx.x % 32); at < end; at += 512)
        if (at + 16 > from)
            lt_copy16(to + (at - base), at);
    lt_copy_commit();
    return to + (from - base);
}

/* The token's Q8A row, by the block: its loads would otherwise be the longest wait behind those of the weight. */
LT_DEV void lines_x(uint8_t *to, const uint8_t *x, int cols)
{
    const int n = cols / 32 * 5, step = 32 * LT_CUDA_LINES_WARPS; /* of eight bytes */
    for (int first = (int)threadIdx.x; first < n; first += 4 * step) {
        uint2 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * step < n)
                v[k] = __ldcg((const uint2 *)x + first + k * step);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * step < n)
                ((uint2 *)to)[first + k * step] = v[k];
    }
}

/* Eight lanes a row, lane c owns accumulator c and walks blocks c, c + 8, ...; all in shared memory. */
template <int dt> LT_DEV float lines_row(const uint8_t *row, const uint8_t *x, int cols)
{
    float acc = 0;
#pragma unroll 2
    for (int b = (int)threadIdx.x % 8; b < cols / 32; b += 8) {
        lt_group g;
        lt_block_x v;
        lt_weight<dt>::template read<lt_shared>(row, b, g);
        load_x<true>(x, cols, b, v);
        acc = add_block<dt>(g, v, acc);
    }
    return lt_tree<8>(acc);
}

/* Shared memory: the activations, then LT_CUDA_LINES_PITCH of the rows a warp. A unit is a.rows_of rows. */
template <int dt, typename Who> LT_DEV void linear_lines(const lt_cuda_linear &a, const Who &who)
{
    extern __shared__ uint4 lt_dynamic[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, unit = (int)blockIdx.x * LT_CUDA_LINES_WARPS + warp;
    const int row_bytes = a.cols / 32 * (lt_weight<dt>::bytes / 8) + a.cols / 32 * (lt_weight<dt>::bytes % 8) / 8;
    const bool some = unit < a.units;
    const lt_cuda_linear_part *p = lt_part_of(a, some ? unit : a.units - 1);
    const int row0 = (unit - p->first) * a.rows_of, n = some ? min(a.rows_of, p->rows - row0) : 0, r = min(lane / 8, n - 1);
    uint8_t *xs = (uint8_t *)lt_dynamic, *to = xs + LT_CUDA_LINES_X(a.cols);
    to += (int64_t)warp * LT_CUDA_LINES_PITCH((a.rows_of - 1) * p->w_stride + row_bytes);
    const uint8_t *rows = to;
    if (n > 0)
        rows = lines_fetch(to, lt_at<const uint8_t>(who.w(*p), row0 * p->w_stride), p->w_stride, row_bytes, n);
    if (Who::early)
        lt_begin();
    lines_x(xs, who.x(who.at(1, 0)), a.cols);
    __syncthreads(); /* x, while the rows are on their way */
    if (n <= 0)
        return;
    lt_copy_wait<0>();
    __syncwarp();
    const float y = lines_row<dt>(rows + r * p->w_stride, xs, a.cols);
    if (lane % 8 == 0 && lane / 8 < n)
        who.put(*p, who.at(1, 0), row0 + r, y);
}

#endif
