/* wide.cuh - f32, f16 and bf16 rows: 16-byte loads, the next `batch` steps of 256 columns in registers while the
 * present ones are multiplied. A warp owns `rows` rows at a time; lane l owns accumulators 8l .. 8l + 7 of 256.
 *
 * `lines`, of one row in halves: a warp's load begins at a multiple of 128 bytes wherever the row does, and lane l owns
 * accumulators 8(l - d) .. of 256, d the 16 bytes between. Over the link a load off the lines asks for more and smaller
 * pieces: 48 GB/s where whole lines come at 51. A GGUF file aligns tensors to 32 bytes. */
#ifndef LT_CUDA_WIDE_CUH
#define LT_CUDA_WIDE_CUH

#include "stage.cuh"

/* The halving tree of 256 accumulators, eight a lane: lanes first (128 to 8), then within the lane. */
LT_DEV float lt_tree_256(float (&acc)[8])
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < 8; i++)
            acc[i] = lt_add(acc[i], __shfl_down_sync(LT_FULL, acc[i], s));
    return lt_tree_8(acc);
}

template <int kind> struct lt_wide; /* 0 f32, 1 f16, 2 bf16 */
template <> struct lt_wide<0> {
    enum { words = 2, bytes = 4 };
    static LT_DEV void numbers(const uint4 (&w)[2], float (&v)[8])
    {
        v[0] = __uint_as_float(w[0].x), v[1] = __uint_as_float(w[0].y), v[2] = __uint_as_float(w[0].z), v[3] = __uint_as_float(w[0].w);
        v[4] = __uint_as_float(w[1].x), v[5] = __uint_as_float(w[1].y), v[6] = __uint_as_float(w[1].z), v[7] = __uint_as_float(w[1].w);
    }
};
template <bool brain> struct lt_wide_half {
    enum { words = 1, bytes = 2 };
    static LT_DEV float one(uint32_t b) { return brain ? lt_bf16(b) : lt_half(b); }
    static LT_DEV void numbers(const uint4 (&w)[1], float (&v)[8])
    {
        const uint32_t u[4] = {w[0].x, w[0].y, w[0].z, w[0].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = one(u[i] & 0xffff);
            v[2 * i + 1] = brain ? __uint_as_float(u[i] & 0xffff0000u) : one(u[i] >> 16);
        }
    }
};
template <> struct lt_wide<1> : lt_wide_half<false> {};
template <> struct lt_wide<2> : lt_wide_half<true> {};

/* A group of 256 columns: first the lower four of each lane's eight, then the upper. */
LT_DEV void stage_floats(uint8_t *to, const uint8_t *x, int cols)
{
    const int n = cols / 4, step = (int)blockDim.x;
    for (int first = (int)threadIdx.x; first < n; first += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k * step < n)
                v[k] = __ldcg((const uint4 *)x + first + k * step);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int i = first + k * step;
            if (i < n)
                *(uint4 *)(to + (i >> 6) * 1024 + (i & 1) * 512 + (i >> 1 & 31) * 16) = v[k];
        }
    }
}

template <bool lines> LT_DEV int wide_lane(const uint8_t *row)
{
    const int lane = (int)threadIdx.x % 32;
    return lines ? lane - (int)((uintptr_t)row >> 4 & 7) : lane;
}

/* lane: of wide_lane, below 0 for what lies before the row. */
template <int kind, int rows, int batch> struct lt_wide_batch {
    uint4 w[rows][batch][lt_wide<kind>::words];
    LT_DEV void load(const uint8_t *const (&row)[rows], int step, int cols, int lane)
    {
#pragma unroll
        for (int r = 0; r < rows; r++)
#pragma unroll
            for (int u = 0; u < batch; u++) {
                const int at = 256 * (step + u) + 8 * lane;
#pragma unroll
                for (int k = 0; k < lt_wide<kind>::words; k++)
                    if ((unsigned)at < (unsigned)cols)
                        w[r][u][k] = lt_load_once(row[r] + (int64_t)at * lt_wide<kind>::bytes + 16 * k);
            }
    }
};

template <int rows, typename Who> LT_DEV void wide_rows(const lt_cuda_linear &a, const Who &who, int unit, const uint8_t *(&row)[rows])
{
    const lt_cuda_linear_part *p = lt_part_of(a, unit);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        const int at = (unit - p->first) * rows + r;
        row[r] = lt_at<const uint8_t>(who.w(*p), (at < p->rows ? at : p->rows - 1) * p->w_stride);
    }
}

template <int kind, int tokens, int rows, int batch, bool lines, typename Who> LT_DEV void linear_wide(const lt_cuda_linear &a, const Who &who)
{
    static_assert(!lines || (rows == 1 && lt_wide<kind>::words == 1), "rows of a warp may lie differently in their lines");
    typedef lt_wide_batch<kind, rows, batch> Batch;
    extern __shared__ uint4 lt_dynamic[];
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    const int workers = (int)gridDim.x * warps, xb = LT_CUDA_WIDE_X(a.cols);
    uint8_t *xs = (uint8_t *)lt_dynamic;
    int unit = (int)blockIdx.x * warps + warp;
    const uint8_t *w[rows];
    Batch now;
    int lane = (int)threadIdx.x % 32;
    if (unit < a.units) {
        wide_rows<rows>(a, who, unit, w);
        lane = wide_lane<lines>(w[0]);
        now.load(w, 0, a.cols, lane);
    }
    if (Who::early)
        lt_begin();
#pragma unroll
    for (int t = 0; t < tokens; t++)
        stage_floats(xs + t * xb, who.x(who.at(tokens, t)), a.cols);
    __syncthreads();
    for (; unit < a.units; unit += workers) {
        float acc[rows][tokens][8];
#pragma unroll
        for (int r = 0; r < rows; r++)
#pragma unroll
            for (int t = 0; t < tokens; t++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    acc[r][t][i] = 0;
        const int own = lane, steps = (a.cols + (lines ? 8 * ((int)threadIdx.x % 32 - own) : 0) + 255) / 256;
        for (int s = 0; s < steps; s += batch) {
            Batch next;
            if (s + batch < steps)
                next.load(w, s + batch, a.cols, own);
            else if (unit + workers < a.units) {
                wide_rows<rows>(a, who, unit + workers, w);
                lane = wide_lane<lines>(w[0]);
                next.load(w, 0, a.cols, lane);
            }
#pragma unroll
            for (int u = 0; u < batch; u++) {
                const int at = 256 * (s + u) + 8 * own;
                if (lines && at < 0)
                    continue;
                if (at >= a.cols)
                    break;
                float v[rows][8];
#pragma unroll
                for (int r = 0; r < rows; r++)
                    lt_wide<kind>::numbers(now.w[r][u], v[r]);
#pragma unroll
                for (int t = 0; t < tokens; t++) {
                    const uint8_t *x = xs + t * xb + (lines ? (at >> 8) * 1024 + (at >> 3 & 31) * 16 : (s + u) * 1024 + own * 16);
                    const float4 x0 = *(const float4 *)x, x1 = *(const float4 *)(x + 512);
                    const float y[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
                    for (int r = 0; r < rows; r++)
#pragma unroll
                        for (int i = 0; i < 8; i++)
                            acc[r][t][i] = lt_fma(v[r][i], y[i], acc[r][t][i]);
                }
            }
            now = next;
        }
        const lt_cuda_linear_part *p = lt_part_of(a, unit);
        const int row = (unit - p->first) * rows;
#pragma unroll
        for (int r = 0; r < rows; r++)
#pragma unroll
            for (int t = 0; t < tokens; t++) {
                if (lines)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        acc[r][t][i] = __shfl_sync(LT_FULL, acc[r][t][i], (int)threadIdx.x % 32 * 2 - own & 31);
                const float y = lt_tree_256(acc[r][t]);
                const int at = who.at(tokens, t);
                if ((int)threadIdx.x % 32 == 0 && row + r < p->rows && who.has(at))
                    who.put(*p, at, row + r, y);
            }
    }
}

#endif
