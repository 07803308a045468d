/* flash.cuh - what the kernels of prompt attention share: rows of a block, online softmax, instructions.
 *
 * A block takes BM rows of one kv head; row R of it is token R / group, query head R % group of the group
 * that shares the kv head. Keys come in tiles at absolute positions, in ascending order, and a row's sums
 * depend on nothing but its own tiles: no other row, no number of rows, no tile where it sees nothing
 * (that multiplies by 1 and adds 0) changes a bit of it. docs/arithmetic.md, "Attention over a prompt". */
#ifndef LT_CUDA_FLASH_CUH
#define LT_CUDA_FLASH_CUH

#include "common.cuh"

#define LT_NEG_INF __int_as_float(0xff800000)

/* Kernels of attention are compiled twice: without soft caps and sinks, and, by *_capped*.cu, with both. */
#ifdef LT_CAPPED
#define CAPPED true
struct lt_args : lt_cuda_attention { uint64_t sinks; };
static_assert(sizeof(lt_args) == sizeof(lt_cuda_capped), "as launches lay it out");
#else
#define CAPPED false
typedef lt_cuda_attention lt_args;
#endif

/* Positions any row of the block sees: first .. last; those that every row sees: all_first .. all_last. */
typedef struct flash_span { int first, last, all_first, all_last; } flash_span;

LT_DEV int flash_first(int window, int pos) { return window && pos - window + 1 > 0 ? pos - window + 1 : 0; }

/* False for a position that cannot be served, which the host is told. */
LT_DEV bool flash_served(const lt_cuda_attention &a, int pos)
{
    const int span = pos / LT_PAGE - flash_first(a.window, pos) / LT_PAGE + 1;
    if (pos >= 0 && span <= a.kv.pages)
        return true;
    if (pos < 0)
        lt_wrong(a.kv.wrong, a.kv.name, LT_CUDA_WRONG_POSITION, pos);
    else
        lt_wrong(a.kv.wrong, a.kv.name, LT_CUDA_WRONG_SPAN, span);
    return false;
}

/* Position of a token; -1 where there is none or it cannot be served. */
LT_DEV int flash_pos(const lt_cuda_attention &a, int token)
{
    if (token >= a.tokens)
        return -1;
    const int pos = __ldg((const int *)a.pos + token);
    return flash_served(a, pos) ? pos : -1;
}

#if __CUDA_ARCH__ >= 800
/* By each warp for itself. last < first: nothing to do. */
template <int ROWS> LT_DEV flash_span flash_span_of(const lt_cuda_attention &a, int row0, int group)
{
    constexpr int N = (ROWS + 31) / 32; /* tokens are as many as rows at most: their loads are in flight together */
    const int begin = row0 / group + (int)threadIdx.x % 32, end = min((row0 + ROWS + group - 1) / group, a.tokens);
    int lo = 0x7fffffff, hi = -1, pos[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        pos[i] = begin + 32 * i < end ? __ldg((const int *)a.pos + begin + 32 * i) : 0;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (begin + 32 * i < end && flash_served(a, pos[i])) {
            lo = min(lo, pos[i]);
            hi = max(hi, pos[i]);
        }
    lo = __reduce_min_sync(LT_FULL, lo);
    hi = __reduce_max_sync(LT_FULL, hi);
    if (hi < 0)
        return flash_span{0, -1, 0, -1};
    return flash_span{flash_first(a.window, lo), hi, flash_first(a.window, hi), lo};
}

/* A row's place in memory; NULL where the block has no such row. */
LT_DEV float *flash_row(const lt_cuda_attention &a, uint64_t at, int64_t token_bytes, int64_t head_bytes, int row, int group, int kv_head)
{
    const int t = row / group;
    return t < a.tokens ? lt_at<float>(at, t * token_bytes + (kv_head * group + row % group) * head_bytes) : NULL;
}

/* Sixteen rows of queries from row0 to half, by a warp, their loads in flight together. A row is scaled by the power
 * of two that brings its largest element into [2^14, 2^15), so that half neither overflows nor loses small rows; a row
 * with NaN or infinity becomes all NaN. put(row, what a product must be multiplied with). */
template <int D, class AT, class PUT> LT_DEV void flash_stage(const lt_cuda_attention &a, int row0, int group, int kv_head, AT at, PUT put)
{
    constexpr int R = D <= 128 ? 16 : 8, C = (D + 63) / 64;
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < 16; b += R) {
        float x[R][C][2];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float *q = flash_row(a, a.q, a.q_token, a.q_head, row0 + b + r, group, kv_head);
#pragma unroll
            for (int i = 0; i < C; i++) {
                const int j = 64 * i + 2 * lane;
                const float2 v = q && j < D ? __ldg((const float2 *)(q + j)) : make_float2(0, 0);
                x[r][i][0] = v.x;
                x[r][i][1] = v.y;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            uint32_t top = 0;
#pragma unroll
            for (int i = 0; i < C; i++)
                top = max(top, max(__float_as_uint(x[r][i][0]) & 0x7fffffffu, __float_as_uint(x[r][i][1]) & 0x7fffffffu));
            top = __reduce_max_sync(LT_FULL, top);
            const int e = (int)(top >> 23), field = e == 255 ? 127 : min(268 - e, 253);
            const float up = e == 255 ? __int_as_float(0x7fffffff) : __int_as_float(field << 23);
#pragma unroll
            for (int i = 0; i < C; i++) {
                const int j = 64 * i + 2 * lane;
                if (j < D)
                    *(__half2 *)at(b + r, j) = __floats2half2_rn(x[r][i][0] * up, x[r][i][1] * up);
            }
            put(b + r, a.scale * 1.44269504f * __int_as_float((254 - field) << 23));
        }
    }
}

LT_DEV float flash_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

LT_DEV uint32_t flash_pack(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* The running state of the two rows of a thread: largest product, sum over this thread's columns. */
typedef struct flash_rows {
    float m[2], l[2], scale[2]; /* scale: log2(e) / sqrt(d) and the row's power of two */
    float bend[2];              /* with a soft cap: what a product is multiplied with for 2 log2(e) score / cap */
    int   first[2], last[2];    /* positions seen */
} flash_rows;

/* Products of keys at base + 8 i + 2 (lane % 4) + {0, 1}: those a row does not see become -inf. */
template <int NT> LT_DEV void flash_mask(float (&s)[NT][4], const flash_rows &r, int base)
{
    const int col = base + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int pos = col + 8 * i + k % 2;
            if (pos < r.first[k / 2] || pos > r.last[k / 2])
                s[i][k] = LT_NEG_INF;
        }
}

/* Products become weights; back come the factors for what was summed before. SUM: r.l is kept. */
template <int NT, bool SUM = true> LT_DEV void flash_softmax(float (&s)[NT][4], flash_rows &r, float (&fix)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most[4] = {r.m[h], s[0][2 * h], s[0][2 * h + 1], s[1][2 * h]}; /* four chains, for each waits for itself */
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                most[i % 2 * 2 + k] = fmaxf(most[i % 2 * 2 + k], s[i][2 * h + k]);
        float m = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        m = fmaxf(m, __shfl_xor_sync(LT_FULL, m, 1));
        m = fmaxf(m, __shfl_xor_sync(LT_FULL, m, 2));
        const float base = (m == LT_NEG_INF ? 0.0f : m) * r.scale[h];
        fix[h] = flash_exp2(lt_fma(r.m[h], r.scale[h], -base));
        if (r.m[h] == m)
            fix[h] = 1.0f; /* exactly, though m * scale was rounded in base */
        r.m[h] = m;
        float l = r.l[h] * fix[h];
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                s[i][2 * h + k] = flash_exp2(lt_fma(s[i][2 * h + k], r.scale[h], -base));
                if (SUM)
                    l += s[i][2 * h + k];
            }
        r.l[h] = l;
    }
}

/* Once the scales are there. A capped product is tanh(score / cap), and its scale that of the cap. */
LT_DEV void flash_bend(const lt_args &a, flash_rows &r)
{
    if constexpr (CAPPED)
        if (a.cap > 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                r.bend[h] = r.scale[h] * (2.0f / a.cap);
                r.scale[h] = a.cap * 1.44269504f;
            }
        }
}

/* tanh(x) = 1 - 2 / (1 + e^2x): 2e-7 off at most, which is that of the cap in a score. */
template <int NT> LT_DEV void flash_cap(const lt_args &a, float (&s)[NT][4], const flash_rows &r)
{
    if constexpr (CAPPED)
        if (a.cap > 0) {
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float y;
                    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + flash_exp2(s[i][k] * r.bend[k / 2])));
                    s[i][k] = lt_fma(-2.0f, y, 1.0f);
                }
        }
}

/* Sums become factors of the results; row: the first of this thread's. */
LT_DEV void flash_total(const lt_args &a, flash_rows &r, int row, int group, int kv_head)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        r.l[h] += __shfl_xor_sync(LT_FULL, r.l[h], 1);
        r.l[h] += __shfl_xor_sync(LT_FULL, r.l[h], 2);
#ifdef LT_CAPPED
        if (a.sinks) { /* one more key of that score, without a value */
            const float z = __ldg((const float *)a.sinks + kv_head * group + (row + 8 * h) % group) * 1.44269504f;
            const float base = (r.m[h] == LT_NEG_INF ? 0.0f : r.m[h]) * r.scale[h], n = fmaxf(base, z), w = flash_exp2(base - n);
            r.l[h] = w / (r.l[h] * w + flash_exp2(z - n));
            continue;
        }
#endif
        r.l[h] = 1.0f / r.l[h];
    }
}

/* A warp's sixteen results, from row0 on, through 2 KiB of shared memory at a time so that lines leave whole: as the
 * products lie, each store would touch eight of them. at(i): place of columns 32 i .. 32 i + 31, PLACES of them. */
template <int D, int PLACES, int N, class AT>
LT_DEV void flash_store(const lt_cuda_attention &a, const float (&o)[N][4], const flash_rows &r, int row0, int group, int kv_head, AT at,
                        int lane = (int)threadIdx.x % 32)
{
    float *y[4];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int i = 4 * k + lane / 8, last = __shfl_sync(LT_FULL, r.last[k / 2], i % 8 * 4);
        y[k] = last < 0 ? NULL : flash_row(a, a.y, a.y_token, a.y_head, row0 + i, group, kv_head);
    }
#pragma unroll
    for (int c = 0; c < D; c += 32) {
        uint8_t *const to = at(c / 32 % PLACES);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                if (c + 8 * i < D)
                    *(float2 *)(to + (8 * h + lane / 4) * 128 + ((2 * i + lane % 4 / 2) ^ lane / 4) * 16 + lane % 2 * 8) =
                        make_float2(o[c / 8 + i][2 * h] * r.l[h], o[c / 8 + i][2 * h + 1] * r.l[h]);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int i = 4 * k + lane / 8, chunk = lane % 8;
            const float4 v = *(const float4 *)(to + i * 128 + (chunk ^ i % 8) * 16);
            if (y[k] && c + 4 * chunk < D)
                *(float4 *)(y[k] + c + 4 * chunk) = v;
        }
        if (PLACES == 1)
            __syncwarp();
    }
}

/* First byte of the K rows of one kv head in the page of a position; NULL, reported, when the page is none. */
LT_DEV const uint8_t *flash_page(const lt_cuda_attention &a, int pos, int kv_head)
{
    const int page = lt_page(a.kv, a.table, pos / LT_PAGE);
    return page < 0 ? NULL
                    : lt_at<const uint8_t>(a.cache, (int64_t)((uint64_t)page * a.kv.page_bytes + a.kv.k_offset +
                                                              (uint64_t)kv_head * LT_PAGE * a.kv.row_bytes));
}

/* For kernels of 256 threads that prepare a place of the table: the page of the launch's span that lies there, and its rows
 * from .. to that are seen; -1 where there is none. */
LT_DEV int flash_slot(const lt_cuda_attention &a, int slot, int &from, int &to)
{
    __shared__ int lo[8], hi[8];
    int least = 0x7fffffff, most = -1;
    const int quads = a.pos % 16 ? 0 : a.tokens / 4;
#pragma unroll 4
    for (int t = (int)threadIdx.x; t < quads; t += 256) {
        const int4 p = __ldg((const int4 *)a.pos + t);
        least = min(least, min(min(p.x, p.y), min(p.z, p.w)));
        most = max(most, max(max(p.x, p.y), max(p.z, p.w)));
    }
#pragma unroll 1
    for (int t = 4 * quads + (int)threadIdx.x; t < a.tokens; t += 256) {
        const int pos = __ldg((const int *)a.pos + t);
        least = min(least, pos);
        most = max(most, pos);
    }
    least = __reduce_min_sync(LT_FULL, least);
    most = __reduce_max_sync(LT_FULL, most);
    if (threadIdx.x % 32 == 0) {
        lo[threadIdx.x / 32] = least;
        hi[threadIdx.x / 32] = most;
    }
    __syncthreads();
    for (int w = 0; w < 8; w++) {
        least = min(least, lo[w]);
        most = max(most, hi[w]);
    }
    const int first = flash_first(a.window, max(least, 0)), begin = first / LT_PAGE;
    const int page = begin + (slot - begin % a.kv.pages + a.kv.pages) % a.kv.pages;
    from = max(first - page * LT_PAGE, 0);
    to = min(most - page * LT_PAGE, LT_PAGE - 1);
    return most < 0 || page > most / LT_PAGE ? -1 : page;
}
#endif

#endif
