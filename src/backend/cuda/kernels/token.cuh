/* token.cuh - attention of one token with what comes before and after it: a block a (head, page), the page in shared
 * memory, the head of q made there, and by each block that sees it the token's own row of k and v; then the merge, quantised.
 *
 * The operations of rows.cu and attention.cu in their order, so their bits. Rows of the cache come by asynchronous
 * copies, all at once, and before the launches in front of this one are done: none of them writes those. */
#ifndef LT_CUDA_TOKEN_CUH
#define LT_CUDA_TOKEN_CUH

#include "heads.cuh"

#define PAD 16 /* bytes behind a row: neighbours' chunks lie in other banks */

LT_DEV void copy16(void *shared, const void *global)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}

/* Rows first .. end of K or V, of `chunks` 16 bytes each. */
LT_DEV void copy_rows(uint8_t *to, const uint8_t *from, int first, int end, int chunks)
{
    const int n = (end - first) * chunks;
    for (int i = (int)threadIdx.x; i < n; i += 256) {
        const int r = first + i / chunks, c = 16 * (i % chunks);
        copy16(to + r * (16 * chunks + PAD) + c, from + r * 16 * chunks + c);
    }
}

/* S(8; q_j, k_j) over the head. */
LT_DEV float dot(const float *q, const uint8_t *k, int dim)
{
    float acc[8] = {0};
#pragma unroll 4
    for (int j = 0; j < dim; j += 8) {
        const uint4 v = *(const uint4 *)(k + 2 * j);
        const float4 a = *(const float4 *)(q + j), b = *(const float4 *)(q + j + 4);
        acc[0] = lt_fma(a.x, lt_half(v.x & 0xffff), acc[0]);
        acc[1] = lt_fma(a.y, lt_half(v.x >> 16), acc[1]);
        acc[2] = lt_fma(a.z, lt_half(v.y & 0xffff), acc[2]);
        acc[3] = lt_fma(a.w, lt_half(v.y >> 16), acc[3]);
        acc[4] = lt_fma(b.x, lt_half(v.z & 0xffff), acc[4]);
        acc[5] = lt_fma(b.y, lt_half(v.z >> 16), acc[5]);
        acc[6] = lt_fma(b.z, lt_half(v.w & 0xffff), acc[6]);
        acc[7] = lt_fma(b.w, lt_half(v.w >> 16), acc[7]);
    }
    return lt_tree_8(acc);
}

/* The first position this query sees; -1, reported, when the table does not hold what it sees. */
LT_DEV int first_of(const lt_cuda_attention &a, int pos)
{
    const int from = a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0;
    const int span = pos / LT_PAGE - from / LT_PAGE + 1;
    if (pos >= 0 && span <= a.kv.pages)
        return from;
    lt_wrong(a.kv.wrong, a.kv.name, pos < 0 ? LT_CUDA_WRONG_POSITION : LT_CUDA_WRONG_SPAN, pos < 0 ? pos : span);
    return -1;
}

LT_DEV float *partial(const lt_cuda_attention &a, int t, int head, int part)
{
    return (float *)a.scratch + (((int64_t)t * a.heads + head) * a.parts + part) * (2 + a.kv.head_dim);
}

extern "C" __global__ void __launch_bounds__(256) attend_token(lt_cuda_token b)
{
    extern __shared__ __align__(16) uint8_t rows[];
    __shared__ __align__(16) float q[256], p[LT_PAGE], turn[512];
    __shared__ float sh[ACCS];
    const lt_cuda_attention &a = b.a;
    const lt_cuda_heads &h = b.h;
    const int head = (int)blockIdx.x, part = (int)blockIdx.z, dim = a.kv.head_dim, chunks = dim / 8;
    const int i = (int)threadIdx.x, stride = 16 * chunks + PAD, group = a.heads / a.kv.kv_heads, kv_head = head / group;
    uint8_t *sk = rows, *sv = rows + LT_PAGE * stride;
    const int pos = ((const int *)a.pos)[0], from = first_of(a, pos), logical = from / LT_PAGE + part;
    if (from < 0 || logical > pos / LT_PAGE) {
        lt_begin();
        return;
    }
    const int base = logical * LT_PAGE, first = part ? 0 : from - base, last = pos - base < LT_PAGE - 1 ? pos - base : LT_PAGE - 1;
    const int page = lt_page(a.kv, a.table, logical);
    const uint8_t *k = lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)(page < 0 ? 0 : page) * a.kv.page_bytes + a.kv.k_offset +
                                                              (uint64_t)kv_head * LT_PAGE * a.kv.row_bytes));
    const uint8_t *v = k - a.kv.k_offset + a.kv.v_offset;
    const bool own = base + last == pos; /* the token's own row is on this page */
    copy_rows(sk, k, first, own ? last : last + 1, chunks);
    lt_copy_commit();
    copy_rows(sv, v, first, own ? last : last + 1, chunks);
    lt_copy_commit();
    lt_begin();
    const float *y = turned(h, 0, lt_at<const float>(h.q, head * h.q_head), head, 0, turn, sh);
    for (int j = i; j < dim; j += 256)
        q[j] = y[j];
    for (int which = 1; own && which < 3; which++) {
        __syncthreads();
        const float *x = which == 1 ? lt_at<const float>(h.k, kv_head * h.k_head) : lt_at<const float>(h.v, kv_head * h.v_head);
        unsigned short *row = (unsigned short *)((which == 1 ? sk : sv) + last * stride);
        unsigned short *cache = (unsigned short *)((which == 1 ? k : v) + (int64_t)last * a.kv.row_bytes);
        y = turned(h, which, x, kv_head, 0, turn, sh);
        for (int j = i; j < dim; j += 256) {
            row[j] = lt_to_half(y[j]);
            if (head % group == 0 && page >= 0)
                cache[j] = row[j];
        }
    }
    lt_copy_wait<1>();
    __syncthreads();
    const bool seen = i >= first && i <= last;
    const float s = seen ? lt_mul(dot(q, sk + i * stride, dim), a.scale) : __int_as_float(0xff800000);
    float m = s;
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        m = fmaxf(m, __shfl_xor_sync(LT_FULL, m, d));
    if (i % 32 == 0)
        sh[i / 32] = m;
    __syncthreads();
    m = sh[0];
#pragma unroll
    for (int w = 1; w < 256 / 32; w++)
        m = fmaxf(m, sh[w]);
    p[i] = seen ? lt_exp(lt_sub(s, m)) : 0.0f;
    lt_copy_wait<0>();
    __syncthreads();
    float *out = partial(a, 0, head, part);
    if (page < 0) { /* reported; the output is not looked at any more */
        if (i < 2)
            out[i] = 0;
        return;
    }
    if (i >= 256 - 32) { /* eight accumulators by position mod 8; what is not seen adds +0, which changes none */
        const int c = i - (256 - 32);
        float l = 0;
        if (c < 8)
#pragma unroll 8
            for (int j = c; j < LT_PAGE; j += 8)
                l = lt_add(l, p[j]);
        l = lt_tree<8>(l);
        if (c == 0)
            out[0] = m, out[1] = l;
    }
    for (int j = i; j < dim; j += 256) {
        float o = 0;
        const uint8_t *row = sv + 2 * j;
#pragma unroll 16
        for (int x = first; x <= last; x++)
            o = lt_fma(p[x], lt_half(*(const unsigned short *)(row + x * stride)), o);
        out[2 + j] = o;
    }
}

/* What the pages say of one element, in ascending order. */
typedef struct merged { float m, l, o; } merged;
LT_DEV merged merge_pages(const float *in, int pages, int dim, int j)
{
    merged s = {in[0], in[1], j < dim ? in[2 + j] : 0.0f};
#pragma unroll 4
    for (int part = 1; part < pages; part++) {
        const float *c = in + (int64_t)part * (2 + dim);
        const float cm = c[0], cl = c[1], co = j < dim ? c[2 + j] : 0.0f;
        const float n = cm > s.m ? cm : s.m, wa = lt_exp(lt_sub(s.m, n)), wb = lt_exp(lt_sub(cm, n));
        s.l = lt_fma(s.l, wa, lt_mul(cl, wb));
        s.o = lt_fma(s.o, wa, lt_mul(co, wb));
        s.m = n;
    }
    return s;
}

LT_DEV void write_merged(const lt_cuda_merge &b, int t, int head, int j, int dim, float y)
{
    const lt_cuda_attention &a = b.a;
    if (a.y && j < dim)
        *(lt_at<float>(a.y, t * a.y_token + head * a.y_head) + j) = y;
    if (b.q) /* heads are whole blocks of 32 then */
        quantize_block(y, lt_at<uint8_t>(b.q, t * b.q_token), a.heads * dim, (head * dim + j) / 32, j % 32);
}

/* A thread an element. y 0: only quantised to q, a row of heads * head_dim. */
extern "C" __global__ void __launch_bounds__(256) merge_quantize(lt_cuda_merge b)
{
    const lt_cuda_attention &a = b.a;
    const int head = (int)blockIdx.x, t = (int)blockIdx.y, j = (int)threadIdx.x, dim = a.kv.head_dim, pos = ((const int *)a.pos)[t];
    const int from = a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0, pages = pos / LT_PAGE - from / LT_PAGE + 1;
    lt_begin();
    if (pos < 0 || pages > a.kv.pages)
        return;
    const merged s = merge_pages(partial(a, t, head, 0), pages, dim, j);
    write_merged(b, t, head, j, dim, lt_div(s.o, s.l));
}

extern "C" __global__ void __launch_bounds__(256) merge_quantize_sinks(lt_cuda_merge_sinks b)
{
    const lt_cuda_attention &a = b.m.a;
    const int head = (int)blockIdx.x, t = (int)blockIdx.y, j = (int)threadIdx.x, dim = a.kv.head_dim, pos = ((const int *)a.pos)[t];
    const int from = a.window && pos - a.window + 1 > 0 ? pos - a.window + 1 : 0, pages = pos / LT_PAGE - from / LT_PAGE + 1;
    lt_begin();
    if (pos < 0 || pages > a.kv.pages)
        return;
    merged s = merge_pages(partial(a, t, head, 0), pages, dim, j);
    s.o = lt_mul(s.o, lt_join_sink(((const float *)b.sinks)[head], s.m, s.l));
    write_merged(b.m, t, head, j, dim, lt_div(s.o, s.l));
}

#endif
