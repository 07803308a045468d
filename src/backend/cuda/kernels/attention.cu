/* attention.cu - causal attention over the paged cache, a block a (token, head), page by page.
 *
 * With many tokens a block walks all its pages and merges as it goes. With few, each page is a block of its
 * own, and attention_merge joins them in ascending order: the same operations, so the same bits. */
#include "common.cuh"

#define THREADS 256
#define DIM_MAX 1024
#define OUT (DIM_MAX / THREADS) /* output elements a thread */

/* Element j of a K or V row. */
LT_DEV float kv_element(const lt_cuda_kv &kv, const uint8_t *row, int j)
{
    if (kv.dtype == 1)
        return lt_half(__ldg((const unsigned short *)row + j));
    if (kv.dtype == 0)
        return __ldg((const float *)row + j);
    const uint8_t *b = row + 34 * (j / 32);
    return lt_mul(lt_half(__ldg((const unsigned short *)b)), (float)(int8_t)__ldg(b + 2 + j % 32));
}

/* S(8; q_j, k_j) over the head. */
LT_DEV float dot(const lt_cuda_kv &kv, const float *q, const uint8_t *row)
{
    float acc[8] = {0};
    const int dim = kv.head_dim;
    if (kv.dtype == 1 && dim % 8 == 0 && ((uintptr_t)row & 15) == 0) {
        for (int j = 0; j < dim; j += 8) {
            const uint4 v = __ldg((const uint4 *)(row + 2 * j));
            const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                acc[2 * i] = lt_fma(q[j + 2 * i], lt_half(w[i] & 0xffff), acc[2 * i]);
                acc[2 * i + 1] = lt_fma(q[j + 2 * i + 1], lt_half(w[i] >> 16), acc[2 * i + 1]);
            }
        }
    } else {
        for (int j = 0; j < dim; j += 8)
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (j + i < dim)
                    acc[i] = lt_fma(q[j + i], kv_element(kv, row, j + i), acc[i]);
    }
#pragma unroll
    for (int s = 4; s > 0; s /= 2)
#pragma unroll
        for (int i = 0; i < s; i++)
            acc[i] = lt_add(acc[i], acc[i + s]);
    return acc[0];
}

LT_DEV float block_max(float x, float *sh)
{
#pragma unroll
    for (int s = 16; s > 0; s /= 2)
        x = fmaxf(x, __shfl_xor_sync(LT_FULL, x, s));
    if (threadIdx.x % 32 == 0)
        sh[threadIdx.x / 32] = x;
    __syncthreads();
    x = sh[0];
    for (int i = 1; i < THREADS / 32; i++)
        x = fmaxf(x, sh[i]);
    return x;
}

typedef struct chunk { float m, l, o[OUT]; } chunk;

/* Positions first .. last of one page: m, l and this thread's elements of o. q and p in shared memory. */
LT_DEV void attend_page(const lt_cuda_attention &a, int head, int first, int last, const float *q, float *p, float *sh, chunk &c)
{
    const int base = first / LT_PAGE * LT_PAGE, i = (int)threadIdx.x, pos = base + i, kv_head = head / (a.heads / a.kv.kv_heads);
    const int page = lt_page(a.kv, a.table, first / LT_PAGE);
    if (page < 0) { /* the same for the whole block; the output is not looked at any more */
        c.m = c.l = 0;
#pragma unroll
        for (int n = 0; n < OUT; n++)
            c.o[n] = 0;
        return;
    }
    const uint8_t *k = lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)page * a.kv.page_bytes + a.kv.k_offset +
                                                              (uint64_t)kv_head * LT_PAGE * a.kv.row_bytes));
    const uint8_t *v = k - a.kv.k_offset + a.kv.v_offset;
    const bool seen = pos >= first && pos <= last;
    const float s = seen ? lt_mul(dot(a.kv, q, k + (uint64_t)i * a.kv.row_bytes), a.scale) : __int_as_float(0xff800000);
    c.m = block_max(s, sh);
    p[i] = seen ? lt_exp(lt_sub(s, c.m)) : 0.0f;
    __syncthreads();
    if (i < 32) { /* eight accumulators by position mod 8; what is not seen adds +0, which changes none */
        float l = 0;
        if (i < 8)
            for (int j = i; j < LT_PAGE; j += 8)
                l = lt_add(l, p[j]);
        l = lt_tree<8>(l);
        if (i == 0)
            sh[THREADS / 32] = l;
    }
#pragma unroll
    for (int n = 0; n < OUT; n++) {
        const int j = i + n * THREADS;
        float o = 0;
        if (j < a.kv.head_dim)
#pragma unroll 8
            for (int x = first - base; x <= last - base; x++)
                o = lt_fma(p[x], kv_element(a.kv, v + (uint64_t)x * a.kv.row_bytes, j), o);
        c.o[n] = o;
    }
    __syncthreads();
    c.l = sh[THREADS / 32];
    __syncthreads();
}

LT_DEV void merge(chunk &sum, const chunk &c)
{
    const float n = c.m > sum.m ? c.m : sum.m, wa = lt_exp(lt_sub(sum.m, n)), wb = lt_exp(lt_sub(c.m, n));
    sum.l = lt_fma(sum.l, wa, lt_mul(c.l, wb));
#pragma unroll
    for (int k = 0; k < OUT; k++)
        sum.o[k] = lt_fma(sum.o[k], wa, lt_mul(c.o[k], wb));
    sum.m = n;
}

LT_DEV void write_out(const lt_cuda_attention &a, int t, int head, const chunk &sum)
{
    float *y = lt_at<float>(a.y, t * a.y_token + head * a.y_head);
#pragma unroll
    for (int n = 0; n < OUT; n++)
        if ((int)threadIdx.x + n * THREADS < a.kv.head_dim)
            y[threadIdx.x + n * THREADS] = lt_div(sum.o[n], sum.l);
}

LT_DEV float *partial(const lt_cuda_attention &a, int t, int head, int part)
{
    return (float *)a.scratch + (((int64_t)t * a.heads + head) * a.parts + part) * (2 + a.kv.head_dim);
}

LT_DEV int first_visible(const lt_cuda_attention &a, int pos)
{
    return a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
}

/* Whether the position and what it sees are there. */
LT_DEV bool can_see(const lt_cuda_attention &a, int pos, int from)
{
    const int span = pos / LT_PAGE - from / LT_PAGE + 1;
    if (pos < 0)
        lt_wrong(a.kv.wrong, a.kv.name, LT_CUDA_WRONG_POSITION, pos);
    else if (span > a.kv.pages)
        lt_wrong(a.kv.wrong, a.kv.name, LT_CUDA_WRONG_SPAN, span);
    return pos >= 0 && span <= a.kv.pages;
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(lt_cuda_attention a)
{
    __shared__ float q[DIM_MAX], p[LT_PAGE], sh[THREADS / 32 + 1];
    lt_begin();
    const int head = (int)blockIdx.x, t = (int)blockIdx.y, part = (int)blockIdx.z;
    const int pos = ((const int *)a.pos)[t], from = first_visible(a, pos);
    if (!can_see(a, pos, from))
        return;
    const float *src = lt_at<const float>(a.q, t * a.q_token + head * a.q_head);
    for (int j = (int)threadIdx.x; j < a.kv.head_dim; j += THREADS)
        q[j] = src[j];
    __syncthreads();
    chunk sum, c;
    if (a.parts > 1) {
        const int page = from / LT_PAGE + part, first = part ? page * LT_PAGE : from;
        if (page > pos / LT_PAGE)
            return;
        const int end = page * LT_PAGE + LT_PAGE - 1;
        attend_page(a, head, first, end < pos ? end : pos, q, p, sh, c);
        float *out = partial(a, t, head, part);
        if (threadIdx.x == 0) {
            out[0] = c.m;
            out[1] = c.l;
        }
#pragma unroll
        for (int n = 0; n < OUT; n++)
            if ((int)threadIdx.x + n * THREADS < a.kv.head_dim)
                out[2 + threadIdx.x + n * THREADS] = c.o[n];
        return;
    }
    for (int first = from; first <= pos; first = first / LT_PAGE * LT_PAGE + LT_PAGE) {
        const int end = first / LT_PAGE * LT_PAGE + LT_PAGE - 1;
        attend_page(a, head, first, end < pos ? end : pos, q, p, sh, c);
        if (first == from)
            sum = c;
        else
            merge(sum, c);
    }
    write_out(a, t, head, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_merge(lt_cuda_attention a)
{
    lt_begin();
    const int head = (int)blockIdx.x, t = (int)blockIdx.y, pos = ((const int *)a.pos)[t];
    const int pages = pos / LT_PAGE - first_visible(a, pos) / LT_PAGE + 1;
    if (pos < 0 || pages > a.kv.pages)
        return;
    chunk sum, c;
    for (int part = 0; part < pages; part++) {
        const float *in = partial(a, t, head, part);
        c.m = in[0];
        c.l = in[1];
#pragma unroll
        for (int n = 0; n < OUT; n++)
            c.o[n] = (int)threadIdx.x + n * THREADS < a.kv.head_dim ? in[2 + threadIdx.x + n * THREADS] : 0.0f;
        if (part == 0)
            sum = c;
        else
            merge(sum, c);
    }
    write_out(a, t, head, sum);
}
