/* heads.cuh - norms of a row in shared memory, and what comes between the products and attention for one head. */
#ifndef LT_CUDA_HEADS_CUH
#define LT_CUDA_HEADS_CUH

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

/* A head of q (which 0), k (1) or v (2) with its bias, normed, rotated, in shared memory: t holds two of them. For
 * blocks of 256 threads. */
LT_DEV const float *turned(const lt_cuda_heads &a, int which, const float *x, int h, int token, float *t, float *sh)
{
    const int dim = a.kv.head_dim, first = (int)threadIdx.x, rotated = a.rotated < 0 ? -a.rotated : a.rotated, pairs = rotated / 2;
    const uint64_t bias = which == 0 ? a.bq : which == 1 ? a.bk : a.bv, w = which == 0 ? a.wq : which == 1 ? a.wk : 0;
    for (int i = first; i < dim; i += 256)
        t[i] = bias ? lt_add(x[i], ((const float *)bias)[h * dim + i]) : x[i];
    __syncthreads();
    if (w) {
        const float r = norm_factor(t, dim, which ? a.eps_k : a.eps_q, sh);
        for (int i = first; i < dim; i += 256)
            t[i] = lt_mul(lt_mul(t[i], r), ((const float *)w)[i]);
        __syncthreads();
    }
    if (which == 2)
        return t;
    float *y = t + dim;
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
    return y;
}

#endif
