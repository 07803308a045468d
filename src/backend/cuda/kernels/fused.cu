/* fused.cu - neighbours of a list of launches in one kernel: the operations of rows.cu in their order, so
 * their bits, without the way through memory in between. Launched by fuse.c alone. */
#include "heads.cuh"
#include "prompt.cuh"
#include "token.cuh"

/* One block a row; the row stands in shared memory. Other rows' inputs are never written: fuse.c saw to it. */
extern "C" __global__ void __launch_bounds__(256) chain(lt_cuda_chain a)
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

#define WIDE 512 /* threads of the chains below */

/* The same for every thread, from four neighbours in registers; one barrier less, one thread at the end. */
LT_DEV float wide_factor(const float *t, int cols, float eps, float *sh)
{
    const int i = (int)threadIdx.x;
    __syncthreads();
    if (i < ACCS) {
        float ss = 0;
#pragma unroll 8
        for (int j = i; j < cols; j += ACCS)
            ss = lt_fma(t[j], t[j], ss);
        sh[i] = ss;
    }
    __syncthreads();
    if (i < 32) {
        float a[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            a[k] = sh[i + 32 * k];
#pragma unroll
        for (int s = 4; s > 0; s /= 2)
#pragma unroll
            for (int k = 0; k < s; k++)
                a[k] = lt_add(a[k], a[k + s]);
        const float x = lt_tree<32>(a[0]);
        if (i == 0)
            sh[ACCS] = lt_div(1.0f, __fsqrt_rn(lt_add(lt_div(x, (float)cols), eps)));
    }
    __syncthreads();
    return sh[ACCS];
}

LT_DEV float4 scaled(float4 x, float r, float4 w)
{
    return make_float4(lt_mul(lt_mul(x.x, r), w.x), lt_mul(lt_mul(x.y, r), w.y), lt_mul(lt_mul(x.z, r), w.z), lt_mul(lt_mul(x.w, r), w.w));
}

/* chain for rows of at most n * 2048 elements, a multiple of 128, everything aligned to 16 bytes: a thread keeps
 * four neighbours n times, and reads the weights of norms before it waits for what they multiply. */
template <int n> LT_DEV void wide_chain(const lt_cuda_chain &a)
{
    extern __shared__ __align__(16) float quad_row[];
    __shared__ float sh[ACCS + 1];
    float *t = quad_row;
    const int64_t row = blockIdx.x;
    const int first = (int)threadIdx.x, quads = a.cols / 4;
    const float4 zero = make_float4(0, 0, 0, 0);
    float4 w1[n], w2[n], x[n], b[n];
#pragma unroll
    for (int k = 0; k < n; k++) {
        const int i = first + k * WIDE;
        w1[k] = a.w1 && i < quads ? __ldg((const float4 *)a.w1 + i) : zero;
        w2[k] = a.w2 && i < quads ? __ldg((const float4 *)a.w2 + i) : zero;
    }
    lt_begin();
#pragma unroll
    for (int k = 0; k < n; k++) {
        const int i = first + k * WIDE;
        x[k] = i < quads ? lt_at<const float4>(a.a, row * a.a_row)[i] : zero;
        b[k] = a.b && i < quads ? lt_at<const float4>(a.b, row * a.b_row)[i] : zero;
    }
    if (a.w1) {
#pragma unroll
        for (int k = 0; k < n; k++)
            if (first + k * WIDE < quads)
                ((float4 *)t)[first + k * WIDE] = x[k];
        const float r = wide_factor(t, a.cols, a.eps1, sh);
#pragma unroll
        for (int k = 0; k < n; k++) {
            x[k] = scaled(x[k], r, w1[k]);
            if (a.y1 && first + k * WIDE < quads)
                lt_at<float4>(a.y1, row * a.y1_row)[first + k * WIDE] = x[k];
        }
    }
#pragma unroll
    for (int k = 0; k < n; k++) {
        const int i = first + k * WIDE;
        if (a.b)
            x[k] = make_float4(lt_add(b[k].x, x[k].x), lt_add(b[k].y, x[k].y), lt_add(b[k].z, x[k].z), lt_add(b[k].w, x[k].w));
        if (i < quads)
            ((float4 *)t)[i] = x[k];
    }
    const float r = a.w2 ? wide_factor(t, a.cols, a.eps2, sh) : 0;
    if (!a.w2)
        __syncthreads(); /* nothing is written before all is read */
#pragma unroll
    for (int k = 0; k < n; k++) {
        const int i = first + k * WIDE;
        if (i >= quads)
            continue; /* whole warps */
        if (a.s)
            lt_at<float4>(a.s, row * a.s_row)[i] = x[k];
        if (a.w2)
            x[k] = scaled(x[k], r, w2[k]);
        if (a.y2)
            lt_at<float4>(a.y2, row * a.y2_row)[i] = x[k];
        if (a.q)
            quantize_four(x[k], lt_at<uint8_t>(a.q, row * a.q_row), a.cols, i / 8, i % 8);
    }
}

extern "C" __global__ void __launch_bounds__(WIDE) chain_1(lt_cuda_chain a) { wide_chain<1>(a); }
extern "C" __global__ void __launch_bounds__(WIDE) chain_2(lt_cuda_chain a) { wide_chain<2>(a); }
extern "C" __global__ void __launch_bounds__(WIDE) chain_4(lt_cuda_chain a) { wide_chain<4>(a); }

template <bool clamp> LT_DEV void gate_rows(const lt_cuda_gate &a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, blocks = a.cols / 32;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= (int64_t)a.rows * blocks)
        return;
    const int64_t row = unit / blocks;
    const int b = (int)(unit % blocks), i = 32 * b + lane;
    const float x = lt_at<const float>(a.a, row * a.a_row)[i], z = lt_at<const float>(a.b, row * a.b_row)[i];
    const float v = gate_times<clamp>(a, x, z);
    if (a.y)
        lt_at<float>(a.y, row * a.y_row)[i] = v;
    quantize_block(v, lt_at<uint8_t>(a.q, row * a.q_row), a.cols, b, lane);
}

extern "C" __global__ void __launch_bounds__(256) gate_quantize(lt_cuda_gate a) { gate_rows<false>(a); }
extern "C" __global__ void __launch_bounds__(256) clamp_quantize(lt_cuda_gate a) { gate_rows<true>(a); }

extern "C" __global__ void __launch_bounds__(256) gate_quantize_prompt(lt_cuda_gate a)
{
    lt_begin();
    gate_block<false>(a, blockIdx.x * 256 + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(256) clamp_quantize_prompt(lt_cuda_gate a)
{
    lt_begin();
    gate_block<true>(a, blockIdx.x * 256 + threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(256) heads_store_prompt(lt_cuda_heads a)
{
    lt_begin();
    const int h = (int)blockIdx.x * 8 + (int)threadIdx.x / 32;
    if (h < a.heads + 2 * a.kv.kv_heads)
        turn_head(a, h, (int)blockIdx.y, (int)threadIdx.x % 32);
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
    const float *y = turned(a, which, x, h, token, t, sh);
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
