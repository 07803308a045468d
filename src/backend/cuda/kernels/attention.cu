/* attention.cu - causal attention over the paged cache, a block a (token, head), page by page.
 *
 * With many tokens a block walks all its pages and merges as it goes. With few, each page is a block of its
 * own, and attention_merge joins them in ascending order: the same operations, so the same bits.
 * attention_f16_* is the same for an F16 cache: a block takes up to eight heads of one kv head, and the page's keys
 * and values come through shared memory, all of them in flight at once. */
#include "attention_shape.h"
#include "flash.cuh"

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
    return lt_tree_8(acc);
}

LT_DEV float capped(const lt_cuda_attention &a, float score) { return CAPPED && a.cap > 0 ? lt_softcap(score, a.cap) : score; }

#ifdef LT_CAPPED
/* A head's sink joins its sums, of which this thread has n elements. */
template <int n> LT_DEV void join_sink(const lt_args &a, int head, float m, float &l, float (&o)[n])
{
    if (!a.sinks)
        return;
    const float w = lt_join_sink(((const float *)a.sinks)[head], m, l);
#pragma unroll
    for (int i = 0; i < n; i++)
        o[i] = lt_mul(o[i], w);
}
#endif

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
    const float s = seen ? capped(a, lt_mul(dot(a.kv, q, k + (uint64_t)i * a.kv.row_bytes), a.scale)) : __int_as_float(0xff800000);
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

LT_DEV void write_out(const lt_args &a, int t, int head, chunk &sum)
{
    float *y = lt_at<float>(a.y, t * a.y_token + head * a.y_head);
#ifdef LT_CAPPED
    join_sink(a, head, sum.m, sum.l, sum.o);
#endif
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

extern "C" __global__ void __launch_bounds__(THREADS) attention(lt_args a)
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

extern "C" __global__ void __launch_bounds__(THREADS) attention_merge(lt_args a)
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

#if __CUDA_ARCH__ >= 800
/* Rows first .. last of a page, len bytes each, to shared rows of `pitch` bytes. */
LT_DEV void fetch(uint8_t *to, int pitch, const uint8_t *from, int len, int first, int last)
{
    const int chunks = len / 16, end = (last + 1) * chunks;
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    for (int n = first * chunks + (int)threadIdx.x; n < end; n += THREADS) {
        const int row = n / chunks;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + row * pitch + (n - row * chunks) * 16), "l"(from + 16 * n));
    }
    lt_copy_commit();
}

/* s[h] = S(8; q of head h, the row of keys) * scale. */
template <int H> LT_DEV void dots(const float *q, const uint8_t *row, int dim, float scale, float (&s)[H])
{
    float acc[H][8] = {};
    for (int j = 0; j < dim; j += 8) {
        const uint4 w4 = *(const uint4 *)(row + 2 * j);
        const uint32_t w[4] = {w4.x, w4.y, w4.z, w4.w};
        float x[8];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            x[2 * n] = lt_half(w[n] & 0xffff);
            x[2 * n + 1] = lt_half(w[n] >> 16);
        }
#pragma unroll
        for (int h = 0; h < H; h++) {
            const float4 q0 = *(const float4 *)(q + h * dim + j), q1 = *(const float4 *)(q + h * dim + j + 4);
            acc[h][0] = lt_fma(q0.x, x[0], acc[h][0]);
            acc[h][1] = lt_fma(q0.y, x[1], acc[h][1]);
            acc[h][2] = lt_fma(q0.z, x[2], acc[h][2]);
            acc[h][3] = lt_fma(q0.w, x[3], acc[h][3]);
            acc[h][4] = lt_fma(q1.x, x[4], acc[h][4]);
            acc[h][5] = lt_fma(q1.y, x[5], acc[h][5]);
            acc[h][6] = lt_fma(q1.z, x[6], acc[h][6]);
            acc[h][7] = lt_fma(q1.w, x[7], acc[h][7]);
        }
    }
#pragma unroll
    for (int h = 0; h < H; h++)
        s[h] = lt_mul(lt_tree_8(acc[h]), scale);
}

/* Pairs of outputs of this thread: fma(p, v) from +0, positions ascending. */
template <int H, int O> LT_DEV void values(const uint8_t *tv, int len, const float *p, int first, int last, int dim, float (&o)[O][2])
{
    const int i = (int)threadIdx.x;
#pragma unroll
    for (int n = 0; n < O; n++) {
        const int u = i + n * THREADS, h = u / (dim / 2), j = u % (dim / 2);
        o[n][0] = o[n][1] = 0;
        if (h >= H)
            continue;
        const float *w = p + h * LT_PAGE;
        const uint8_t *x = tv + 4 * j;
        int r = first;
        for (; r <= last && r % 4; r++) {
            const uint32_t y = *(const uint32_t *)(x + r * len);
            o[n][0] = lt_fma(w[r], lt_half(y & 0xffff), o[n][0]);
            o[n][1] = lt_fma(w[r], lt_half(y >> 16), o[n][1]);
        }
#pragma unroll 4
        for (; r + 3 <= last; r += 4) {
            const float4 w4 = *(const float4 *)(w + r);
            const float ws[4] = {w4.x, w4.y, w4.z, w4.w};
#pragma unroll
            for (int z = 0; z < 4; z++) {
                const uint32_t y = *(const uint32_t *)(x + (r + z) * len);
                o[n][0] = lt_fma(ws[z], lt_half(y & 0xffff), o[n][0]);
                o[n][1] = lt_fma(ws[z], lt_half(y >> 16), o[n][1]);
            }
        }
        for (; r <= last; r++) {
            const uint32_t y = *(const uint32_t *)(x + r * len);
            o[n][0] = lt_fma(w[r], lt_half(y & 0xffff), o[n][0]);
            o[n][1] = lt_fma(w[r], lt_half(y >> 16), o[n][1]);
        }
    }
}

/* H heads of a kv head over one page: positions first .. last. m and l go to sh[h], sh[H + h]; o[k] is of the pair
 * threadIdx + k THREADS of H x dim / 2. */
template <int H, int O>
LT_DEV void attend_f16(const lt_cuda_attention &a, const uint8_t *k, uint8_t *tiles, const float *q, float *p, float *sh, int first, int last, float (&o)[O][2])
{
    const int dim = a.kv.head_dim, len = 2 * dim, pitch = LT_ATTENTION_PITCH(dim), i = (int)threadIdx.x;
    uint8_t *const tv = tiles + LT_ATTENTION_V(dim);
    const uint8_t *v = k - a.kv.k_offset + a.kv.v_offset;
    fetch(tiles, pitch, k, len, first, last);
    if (LT_ATTENTION_V(dim))
        fetch(tv, len, v, len, first, last);
    if (LT_ATTENTION_V(dim))
        lt_copy_wait<1>();
    else
        lt_copy_wait<0>();
    __syncthreads();
    const bool seen = i >= first && i <= last;
    float s[H];
#pragma unroll
    for (int h = 0; h < H; h++)
        s[h] = __int_as_float(0xff800000);
    if (seen)
        dots<H>(q, tiles + i * pitch, dim, a.scale, s);
#pragma unroll
    for (int h = 0; h < H; h++)
        s[h] = seen ? capped(a, s[h]) : s[h];
    float m[H];
#pragma unroll
    for (int h = 0; h < H; h++) {
        m[h] = s[h];
#pragma unroll
        for (int z = 16; z > 0; z /= 2)
            m[h] = fmaxf(m[h], __shfl_xor_sync(LT_FULL, m[h], z));
        if (i % 32 == 0)
            sh[2 * H + h * (THREADS / 32) + i / 32] = m[h];
    }
    __syncthreads();
    if (!LT_ATTENTION_V(dim))
        fetch(tv, len, v, len, first, last); /* over the keys, which all have read */
#pragma unroll
    for (int h = 0; h < H; h++) {
        m[h] = sh[2 * H + h * (THREADS / 32)];
#pragma unroll
        for (int n = 1; n < THREADS / 32; n++)
            m[h] = fmaxf(m[h], sh[2 * H + h * (THREADS / 32) + n]);
        p[h * LT_PAGE + i] = seen ? lt_exp(lt_sub(s[h], m[h])) : 0.0f;
        if (i == 0)
            sh[h] = m[h];
    }
    lt_copy_wait<0>();
    __syncthreads();
    const int head = THREADS / 32 - 1 - i / 32; /* from the last warp on: with few heads the first have the values */
    if (head < H) { /* eight accumulators by position mod 8; what is not seen adds +0, which changes none */
        float l = 0;
        if (i % 32 < 8)
#pragma unroll 8
            for (int j = i % 32; j < LT_PAGE; j += 8)
                l = lt_add(l, p[head * LT_PAGE + j]);
        l = lt_tree<8>(l);
        if (i % 32 == 0)
            sh[H + head] = l;
    }
    values<H, O>(tv, len, p, first, last, dim, o);
    __syncthreads();
}

template <int H> LT_DEV void attention_f16(const lt_args &a)
{
    constexpr int O = (H + 1) / 2;
    extern __shared__ __align__(16) uint8_t tiles[];
    __shared__ __align__(16) float q[H * LT_ATTENTION_DIM], p[H * LT_PAGE];
    __shared__ float sh[H * (2 + THREADS / 32)];
    lt_begin();
    const int group = a.heads / a.kv.kv_heads, blocks = (group + H - 1) / H, kv_head = (int)blockIdx.x / blocks;
    const int head0 = kv_head * group + (int)blockIdx.x % blocks * H, heads = min(H, (kv_head + 1) * group - head0);
    const int t = (int)blockIdx.y, part = (int)blockIdx.z, dim = a.kv.head_dim, i = (int)threadIdx.x;
    const int pos = ((const int *)a.pos)[t], from = first_visible(a, pos);
    if (!can_see(a, pos, from))
        return;
    int page = from / LT_PAGE + part;
    const int end = a.parts > 1 ? page : pos / LT_PAGE;
    if (page > pos / LT_PAGE)
        return;
    for (int u = i; u < H * dim; u += THREADS)
        q[u] = u / dim < heads ? lt_at<const float>(a.q, t * a.q_token + (head0 + u / dim) * a.q_head)[u % dim] : 0.0f;
    float so[O][2], sm[O], sl[O], o[O][2];
    for (const int begin = page; page <= end; page++) {
        const int there = lt_page(a.kv, a.table, page);
        if (there < 0)
            return;
        const uint8_t *k = lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)there * a.kv.page_bytes + a.kv.k_offset +
                                                                    (uint64_t)kv_head * LT_PAGE * a.kv.row_bytes));
        const int first = max(from - page * LT_PAGE, 0), last = min(pos - page * LT_PAGE, LT_PAGE - 1);
        attend_f16<H, O>(a, k, tiles, q, p, sh, first, last, o);
#pragma unroll
        for (int n = 0; n < O; n++) {
            const int h = (i + n * THREADS) / (dim / 2);
            if (h >= H)
                continue;
            const float m = sh[h], l = sh[H + h];
            if (page == begin) {
                sm[n] = m, sl[n] = l, so[n][0] = o[n][0], so[n][1] = o[n][1];
                continue;
            }
            const float top = m > sm[n] ? m : sm[n], wa = lt_exp(lt_sub(sm[n], top)), wb = lt_exp(lt_sub(m, top));
            sl[n] = lt_fma(sl[n], wa, lt_mul(l, wb));
            so[n][0] = lt_fma(so[n][0], wa, lt_mul(o[n][0], wb));
            so[n][1] = lt_fma(so[n][1], wa, lt_mul(o[n][1], wb));
            sm[n] = top;
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < O; n++) {
        const int u = i + n * THREADS, h = u / (dim / 2), j = u % (dim / 2) * 2;
        if (h >= heads)
            continue;
        if (a.parts > 1) {
            float *out = partial(a, t, head0 + h, part);
            if (j == 0)
                out[0] = sm[n], out[1] = sl[n];
            out[2 + j] = so[n][0], out[3 + j] = so[n][1];
        } else {
            float *y = lt_at<float>(a.y, t * a.y_token + (head0 + h) * a.y_head);
#ifdef LT_CAPPED
            join_sink(a, head0 + h, sm[n], sl[n], so[n]);
#endif
            y[j] = lt_div(so[n][0], sl[n]), y[j + 1] = lt_div(so[n][1], sl[n]);
        }
    }
}
#define BODY(H) attention_f16<H>(a)
#else
#define BODY(H) (void)a
#endif
#define ATTENTION_F16(H)                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_f16_##H(lt_args a) { BODY(H); }
ATTENTION_F16(1)
ATTENTION_F16(2)
ATTENTION_F16(4)
ATTENTION_F16(8)

/* A Q8_0 cache as F16 for kernels of prompts: block (place in the table, kv head, K or V) writes the page's seen rows to
 * scratch, pages by place [K of all kv heads, V of all kv heads], and behind them a table of their own. */
extern "C" __global__ void __launch_bounds__(THREADS) attention_expand(lt_cuda_attention a)
{
    lt_begin();
#if __CUDA_ARCH__ >= 800
    const int slot = (int)blockIdx.x, kv_head = (int)blockIdx.y, value = (int)blockIdx.z, blocks = a.kv.head_dim / 32;
    const uint64_t part = (uint64_t)a.kv.kv_heads * LT_PAGE * a.kv.head_dim * 2;
    int from, to;
    const int logical = flash_slot(a, slot, from, to);
    const uint8_t *page = logical < 0 ? NULL : flash_page(a, logical * LT_PAGE, kv_head);
    if (kv_head == 0 && value == 0 && threadIdx.x == 0)
        ((int *)(a.scratch + 2 * part * a.kv.pages))[slot] = page ? slot : -1;
    if (!page)
        return;
    page += value ? a.kv.v_offset - a.kv.k_offset : 0;
    uint4 *out = (uint4 *)(a.scratch + (2 * (uint64_t)slot + value) * part + (uint64_t)kv_head * LT_PAGE * a.kv.head_dim * 2);
    for (int n = from * blocks + (int)threadIdx.x; n < (to + 1) * blocks; n += THREADS) {
        const unsigned short *b = (const unsigned short *)(page + 34 * n);
        uint32_t w[17];
#pragma unroll
        for (int j = 0; j < 17; j++)
            w[j] = __ldg(b + j);
        const float d = lt_half(w[0]);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t h[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t u = w[1 + 4 * q + j];
                h[j] = flash_pack(d * (float)(int8_t)(u & 0xff), d * (float)(int8_t)(u >> 8));
            }
            out[4 * n + q] = make_uint4(h[0], h[1], h[2], h[3]);
        }
    }
#else
    (void)a;
#endif
}
