/* fused.cu - neighbours of a list of launches in one kernel: the operations of rows.cu in their order, so
 * their bits, without the way through memory in between. Launched by fuse.c alone. */
#include "rows.cuh"

#define ACCS 256 /* accumulators of a norm */

/* 1 / rms of the row in shared memory, for every thread; blocks of 256 threads or more. sh: ACCS floats. */
LT_DEV float norm_factor(const float *t, int cols, float eps, float *sh)
{
    const int i = (int)threadIdx.x;
    if (i < ACCS) {
        float ss = 0;
        for (int j = i; j < cols; j += ACCS)
            ss = lt_fma(t[j], t[j], ss);
        sh[i] = ss;
    }
    __syncthreads();
#pragma unroll
    for (int s = ACCS / 2; s >= 32; s /= 2) {
        if (i < s)
            sh[i] = lt_add(sh[i], sh[i + s]);
        __syncthreads();
    }
    if (i < 32) {
        const float x = lt_tree<32>(sh[i]);
        if (i == 0)
            sh[0] = lt_div(1.0f, __fsqrt_rn(lt_add(lt_div(x, (float)cols), eps)));
    }
    __syncthreads();
    const float r = sh[0];
    __syncthreads();
    return r;
}

/* One block a row; the row stands in shared memory. Other rows' inputs are never written: fuse.c saw to it. */
extern "C" __global__ void __launch_bounds__(1024) chain(lt_cuda_chain a)
{
    extern __shared__ float t[];
    __shared__ float sh[ACCS];
    lt_begin();
    const int64_t row = blockIdx.x;
    const int first = (int)threadIdx.x, step = (int)blockDim.x;
    const float *x = lt_at<const float>(a.a, row * a.a_row), *b = lt_at<const float>(a.b, row * a.b_row);
    float *s = lt_at<float>(a.s, row * a.s_row), *y1 = lt_at<float>(a.y1, row * a.y1_row), *y2 = lt_at<float>(a.y2, row * a.y2_row);
    if (a.w1) {
        for (int i = first; i < a.cols; i += step)
            t[i] = x[i];
        __syncthreads();
        const float r = norm_factor(t, a.cols, a.eps1, sh);
        for (int i = first; i < a.cols; i += step)
            t[i] = lt_mul(lt_mul(t[i], r), ((const float *)a.w1)[i]);
        if (a.y1)
            for (int i = first; i < a.cols; i += step)
                y1[i] = t[i];
        x = t; /* each thread its own elements */
    }
    for (int i = first; i < a.cols; i += step) {
        const float v = a.b ? lt_add(b[i], x[i]) : x[i];
        t[i] = v;
        if (a.s)
            s[i] = v;
    }
    __syncthreads();
    if (a.w2) {
        const float r = norm_factor(t, a.cols, a.eps2, sh);
        for (int i = first; i < a.cols; i += step) {
            const float v = lt_mul(lt_mul(t[i], r), ((const float *)a.w2)[i]);
            t[i] = v;
            if (a.y2)
                y2[i] = v;
        }
    }
    if (a.q) /* thread and element have the same lane */
        for (int i = first; i < a.cols; i += step)
            quantize_block(t[i], lt_at<uint8_t>(a.q, row * a.q_row), a.cols, i / 32, i % 32);
}

extern "C" __global__ void __launch_bounds__(256) gate_quantize(lt_cuda_gate a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, blocks = a.cols / 32;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= (int64_t)a.rows * blocks)
        return;
    const int64_t row = unit / blocks;
    const int b = (int)(unit % blocks), i = 32 * b + lane;
    const float x = lt_at<const float>(a.a, row * a.a_row)[i], z = lt_at<const float>(a.b, row * a.b_row)[i];
    const float v = a.gelu ? gelu_times(x, z) : silu_times(x, z);
    if (a.y)
        lt_at<float>(a.y, row * a.y_row)[i] = v;
    quantize_block(v, lt_at<uint8_t>(a.q, row * a.q_row), a.cols, b, lane);
}

/* A block a (head, token): q's heads first, then k's, then v's. */
extern "C" __global__ void __launch_bounds__(256) heads_store(lt_cuda_heads a)
{
    extern __shared__ float t[]; /* the head as it came, and rotated */
    __shared__ float sh[ACCS];
    lt_begin();
    const int dim = a.kv.head_dim, token = (int)blockIdx.y, first = (int)threadIdx.x;
    int h = (int)blockIdx.x;
    const int which = h < a.heads ? 0 : h < a.heads + a.kv.kv_heads ? 1 : 2;
    h -= which == 0 ? 0 : which == 1 ? a.heads : a.heads + a.kv.kv_heads;
    float *x = which == 0   ? lt_at<float>(a.q, token * a.q_token + h * a.q_head)
               : which == 1 ? lt_at<float>(a.k, token * a.k_token + h * a.k_head)
                            : lt_at<float>(a.v, token * a.v_token + h * a.v_head);
    float *y = t + dim;
    const uint64_t bias = which == 0 ? a.bq : which == 1 ? a.bk : a.bv;
    for (int i = first; i < dim; i += 256)
        t[i] = bias ? lt_add(x[i], ((const float *)bias)[h * dim + i]) : x[i];
    __syncthreads();
    const uint64_t w = which == 0 ? a.wq : which == 1 ? a.wk : 0;
    if (w) {
        const float r = norm_factor(t, dim, which ? a.eps_k : a.eps_q, sh);
        for (int i = first; i < dim; i += 256)
            t[i] = lt_mul(lt_mul(t[i], r), ((const float *)w)[i]);
        __syncthreads();
    }
    if (which == 2) {
        y = t;
    } else {
        const int rotated = a.rotated < 0 ? -a.rotated : a.rotated, pairs = rotated / 2;
        const float *cs = lt_at<const float>(a.angles, token * a.angles_token);
        for (int i = first; i < dim - pairs; i += 256) {
            if (i >= pairs) {
                y[rotated + i - pairs] = t[rotated + i - pairs];
                continue;
            }
            const int j = a.rotated < 0 ? 2 * i : i, k = a.rotated < 0 ? 2 * i + 1 : i + pairs;
            rotate(t[j], t[k], cs[2 * i], cs[2 * i + 1], y[j], y[k]);
        }
        __syncthreads();
    }
    if (which == 0 || (which == 1 ? a.keep_k : a.keep_v))
        for (int i = first; i < dim; i += 256)
            x[i] = y[i];
    if (which == 0)
        return;
    uint8_t *row = cache_row(a.kv, a.cache, ((const int *)a.pos)[token], a.table, h, which == 2);
    if (row)
        for (int piece = first / 32; piece < (dim + 31) / 32; piece += 8)
            store_piece(a.kv, y, row, piece, first % 32);
}
