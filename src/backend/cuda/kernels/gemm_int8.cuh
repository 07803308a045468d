/* gemm_int8.cuh - many rows of activations times a quantised weight, on int8 tensor cores.
 *
 * To the bit of docs/arithmetic.md: a product of tensor cores is the integer sum I of one block of 32 columns,
 * exact in any order. The eight accumulators are walked one after the other (blocks j, j + 8, ... of a row), in
 * the order 0 4 2 6 1 5 3 7, so that the halving tree needs three partial results beside the one at work.
 *
 * gemm_pack_* writes both operands in that order first: a stage is four blocks of 64 rows (or of 64
 * tokens), the int8 as shared memory wants them and the f32 factors behind, copied by the product as they lie. So
 * every dtype is one of four kinds in the product, and a weight is taken apart once, not once a tile of tokens.
 *
 * I comes as the bits of 1.5 * 2^23 + I: the integer accumulator begins there, and a float subtraction, exact
 * while |I| < 2^22, replaces the slow conversion. */
#ifndef LT_CUDA_GEMM_INT8_CUH
#define LT_CUDA_GEMM_INT8_CUH

#include "mma.cuh"
#include "weights.cuh"

#define DEPTH LT_GEMM_DEPTH
#define ROWS LT_GEMM_ROWS
#define TOKENS LT_GEMM_TOKENS
#define PACKERS LT_GEMM_PACKERS
#define MAGIC 0x4b400000
#define MAGIC_F 12582912.0f

/* Kinds by what a block has beside d: minima; scales of halves. Factors of a row: d, [m] or d, sc0, sc1, [m, mn0, mn1];
 * of a token: d, [s0 + s1, with the sign of the minimum's update] or d, [s0, s1]. */
template <bool halves, bool mins> struct lt_kind {
    enum { of_row = (halves ? 3 : 1) + (mins ? (halves ? 3 : 1) : 0), of_token = mins ? (halves ? 3 : 2) : 1 };
};

LT_DEV int lt_accumulator(int step) { return (int)(0x73516240u >> (4 * step) & 7); } /* and the step of an accumulator: it is its own inverse */
LT_DEV int lt_count(int blocks, int j) { return (blocks - j + 7) / 8; }

/* Slots for the blocks of one accumulator, the fullest one's; eight times as many threads pack a row. */
LT_DEV int lt_room(int blocks) { return (lt_count(blocks, 0) + DEPTH - 1) / DEPTH * DEPTH; }

/* Stages before those of a step; of all with step 8. */
LT_DEV int lt_stages_before(int blocks, int step)
{
    int n = 0;
    for (int s = 0; s < step; s++)
        n += (lt_count(blocks, lt_accumulator(s)) + DEPTH - 1) / DEPTH;
    return n;
}

/* Where an int8 and a factor of block i of row r lie in a stage of n rows. Factors of a warp's 32 rows are in the order of
 * its lanes' needs: lane/4 has rows 8k + lane/4 of a weight; lane%4 has tokens 8k + 2(lane%4) and the next. */
LT_DEV int lt_piece(int r, int i, int half) { return 128 * r + 16 * ((2 * i + half) ^ (r & 7)); }
LT_DEV int lt_row_factor(int n, int f, int i, int r) { return 128 * n + 4 * ((f * DEPTH + i) * n + r / 32 * 32 + r % 8 * 4 + r / 8 % 4); }
LT_DEV int lt_token_factor(int n, int f, int i, int t)
{
    return 128 * n + 4 * ((f * DEPTH + i) * n + t / 32 * 32 + t / 2 % 4 * 8 + t / 8 % 4 * 2 + t % 2);
}

/* u - offset, four bytes at once; u < 128, offset <= 128 */
template <int offset> LT_DEV uint32_t lt_signed(uint32_t u)
{
    return offset ? ((u | 0x80808080u) - 0x01010101u * offset) ^ 0x80808080u : u;
}

LT_DEV void put_float(uint8_t *stage, int at, float v) { *(float *)(stage + at) = v; }

/* Half a tile, 32 rows, of 32 blocks: its part of a stage of each accumulator, put together in shared memory. What lies
 * behind the last row or block is zeros. */
template <int dt> LT_DEV void pack_weight(const lt_cuda_pack &a, int part)
{
    typedef lt_weight<dt> W;
    enum { n = ROWS / 2, of_row = lt_kind<W::halves, W::mins>::of_row, bytes = n * (128 + 4 * DEPTH * of_row),
           apart = bytes + 16 }; /* neighbours in a row go to different accumulators: to other banks too */
    extern __shared__ __align__(128) uint8_t shared[];
    const int blocks = a.cols / 32, across = lt_room(blocks) / DEPTH, half = part / across, k0 = part % across * DEPTH;
#pragma unroll 4
    for (int unit = (int)threadIdx.x; unit < n * 8 * DEPTH; unit += PACKERS) {
        const int r = unit / (8 * DEPTH), slot = unit % (8 * DEPTH), j = slot % 8, i = slot / 8, row = half * n + r;
        uint8_t *stage = shared + lt_accumulator(j) * apart;
        lt_group g;
        uint4 v[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        uint32_t *p = (uint32_t *)v;
        g.d = g.m = 0;
        g.sc0 = g.sc1 = g.mn0 = g.mn1 = 0;
        if (row < a.rows && k0 + i < lt_count(blocks, j)) {
            W::group(lt_at<const uint8_t>(a.src, row * a.src_stride), j + 8 * (k0 + i), g);
#pragma unroll
            for (int w = 0; w < 8; w++)
                p[w] = lt_signed<W::offset>(g.w[w]);
        }
        *(uint4 *)(stage + lt_piece(r, i, 0)) = v[0];
        *(uint4 *)(stage + lt_piece(r, i, 1)) = v[1];
        put_float(stage, lt_row_factor(n, 0, i, r), g.d);
        if (W::halves) {
            put_float(stage, lt_row_factor(n, 1, i, r), (float)g.sc0);
            put_float(stage, lt_row_factor(n, 2, i, r), (float)g.sc1);
            if (W::mins) {
                put_float(stage, lt_row_factor(n, 3, i, r), g.m);
                put_float(stage, lt_row_factor(n, 4, i, r), (float)g.mn0);
                put_float(stage, lt_row_factor(n, 5, i, r), (float)g.mn1);
            }
        } else if (W::mins) {
            put_float(stage, lt_row_factor(n, 1, i, r), g.m);
        }
    }
    __syncthreads();
    int before = 0;
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
        const int stages = (lt_count(blocks, lt_accumulator(step)) + DEPTH - 1) / DEPTH;
        uint8_t *to = lt_at<uint8_t>(a.image, ((int64_t)(half / 2) * a.stages + before + k0 / DEPTH) * 2 * bytes);
        for (int i = (int)threadIdx.x; k0 / DEPTH < stages && i < bytes / 16; i += PACKERS) {
            /* the rows' int8 lie together; of factors, 32 rows' follow the other half's */
            const int f = i - n * 128 / 16, at = f < 0 ? half % 2 * n * 128 + 16 * i : 2 * n * 128 + f / 8 * 256 + half % 2 * 128 + f % 8 * 16;
            *(uint4 *)(to + at) = ((const uint4 *)(shared + step * apart))[i];
        }
        before += stages;
    }
}

/* Rows of x, in the order of the image's: tokens, as they lie. NULL: a row of zeros. */
struct lt_token_rows {
    const lt_cuda_pack &a;
    LT_DEV const uint8_t *operator()(int t) const { return t < a.rows ? lt_at<const uint8_t>(a.src, t * a.src_stride) : 0; }
};

/* A thread a block of a Q8A row. */
template <typename Rows> LT_DEV void pack_tokens(const lt_cuda_pack &a, const Rows &rows, int64_t unit, int sign, bool halves)
{
    const int per_row = 8 * lt_room(a.cols / 32), t = (int)(unit / per_row), slot = (int)(unit % per_row), blocks = a.cols / 32;
    const int j = slot % 8, k = slot / 8, n = lt_count(blocks, j), first = lt_stages_before(blocks, lt_accumulator(j));
    if (k >= (n + DEPTH - 1) / DEPTH * DEPTH)
        return;
    const int bytes = TOKENS * (128 + 4 * DEPTH * (halves ? 3 : sign ? 2 : 1)), i = k % DEPTH, r = t % TOKENS, b = j + 8 * k;
    uint8_t *stage = lt_at<uint8_t>(a.image, ((int64_t)(t / TOKENS) * a.stages + first + k / DEPTH) * bytes);
    uint4 v[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    float d = 0;
    int s0 = 0, s1 = 0;
    const uint8_t *q = k < n ? rows(t) : 0;
    if (q) { /* rows of 32 times an odd number of columns lie at multiples of 8 bytes */
        uint2 *p = (uint2 *)v;
#pragma unroll
        for (int w = 0; w < 4; w++)
            p[w] = __ldg((const uint2 *)(q + 32 * b) + w);
        d = __ldg((const float *)(q + a.cols + 4 * b));
        const uint32_t sums = __ldg((const uint32_t *)(q + a.cols + a.cols / 8 + 4 * b));
        s0 = (int16_t)(sums & 0xffff);
        s1 = (int16_t)(sums >> 16);
    }
    *(uint4 *)(stage + lt_piece(r, i, 0)) = v[0];
    *(uint4 *)(stage + lt_piece(r, i, 1)) = v[1];
    put_float(stage, lt_token_factor(TOKENS, 0, i, r), d);
    if (halves) {
        put_float(stage, lt_token_factor(TOKENS, 1, i, r), (float)s0);
        put_float(stage, lt_token_factor(TOKENS, 2, i, r), (float)s1);
    } else if (sign) {
        put_float(stage, lt_token_factor(TOKENS, 1, i, r), (float)(sign * (s0 + s1)));
    }
}

/* What the image of tokens keeps of s0 and s1. */
template <int dt> struct lt_token_kind {
    typedef lt_weight<dt> W;
    enum { sign = !W::mins ? 0 : dt == LT_W_Q4_1 || dt == LT_W_Q5_1 ? 1 : -1, halves = W::mins && W::halves };
};

#if LT_HAS_MMA
/* One block of 32 columns of a warp's 32 rows by 32 tokens. w, x: stages; row, token: of the warp; wa, xa: addresses of the
 * lane's pieces of block 0, from which those of block i differ in bits 5 and 6, and those 16 rows on by 2,048. */
template <bool halves, bool mins>
LT_DEV void add_block(const uint8_t *w, const uint8_t *x, uint32_t wa, uint32_t xa, int i, int row, int token, float (&acc)[2][4][4])
{
    typedef lt_kind<halves, mins> K;
    const int lane = (int)threadIdx.x % 32;
    uint32_t a[2][4], b[2][4];
    const uint32_t wi = wa ^ (uint32_t)(32 * i), xi = xa ^ (uint32_t)(32 * i);
    lt_ldmatrix4(a[0], wi);
    lt_ldmatrix4(b[0], xi);
    lt_ldmatrix4(a[1], wi + 2048);
    lt_ldmatrix4(b[1], xi + 2048);
    float wf[K::of_row][4], xf[K::of_token][8];
#pragma unroll
    for (int f = 0; f < K::of_row; f++)
        *(float4 *)wf[f] = *(const float4 *)(w + lt_row_factor(ROWS, f, i, row + lane / 4));
#pragma unroll
    for (int f = 0; f < K::of_token; f++) {
        const float4 *p = (const float4 *)(x + lt_token_factor(TOKENS, f, i, token + 2 * (lane % 4)));
        *(float4 *)&xf[f][0] = p[0];
        *(float4 *)&xf[f][4] = p[1];
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            int c[4], h[4];
            if (halves) {
                lt_mma_s8_k16(c, a[m][0], a[m][1], b[n / 2][2 * (n % 2)], MAGIC);
                lt_mma_s8_k16(h, a[m][2], a[m][3], b[n / 2][2 * (n % 2) + 1], MAGIC);
            } else {
                lt_mma_s8(c, a[m], b[n / 2][2 * (n % 2)], b[n / 2][2 * (n % 2) + 1], MAGIC);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = 2 * m + e / 2, t = 2 * n + e % 2;
                float sum = lt_sub(__int_as_float(c[e]), MAGIC_F);
                if (halves) /* below 2^24: exact; + 0 because an integer has no -0 */
                    sum = lt_fma(lt_sub(__int_as_float(h[e]), MAGIC_F), wf[2][r], lt_fma(sum, wf[1][r], 0.0f));
                float y = lt_fma(sum, lt_mul(wf[0][r], xf[0][t]), acc[m][n][e]);
                if (mins && !halves)
                    y = lt_fma(xf[1][t], lt_mul(wf[1][r], xf[0][t]), y);
                if (mins && halves)
                    y = lt_fma(lt_fma(xf[2][t], wf[5][r], lt_fma(xf[1][t], wf[4][r], 0.0f)), lt_mul(wf[3][r], xf[0][t]), y);
                acc[m][n][e] = y;
            }
        }
}

template <int bytes, int threads> LT_DEV void copy_stage(uint32_t to, uint64_t from)
{
#pragma unroll
    for (int i = 0; i < bytes; i += 16 * threads) {
        const int at = i + 16 * (int)threadIdx.x;
        if (bytes % (16 * threads) == 0 || at < bytes)
            lt_async16(to + at, (const void *)(from + at), 16);
    }
}

/* 64 rows by 64 tokens, four warps of 32 x 32. Where: which tiles, and where sums go. */
template <bool halves, bool mins, typename Where> LT_DEV void gemm_int8(const lt_cuda_gemm8 &a, const Where &where)
{
    typedef lt_kind<halves, mins> K;
    enum { of_w = ROWS * (128 + 4 * DEPTH * K::of_row), of_x = TOKENS * (128 + 4 * DEPTH * K::of_token), bytes = of_w + of_x, threads = 2 * TOKENS, unroll = halves ? 2 : 1 };
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t base = lt_shared(shared);
    const int blocks = a.cols / 32, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row_tile = where.row_tile(), token_tile = where.token_tile(), row = warp % 2 * 32, token = warp / 2 * 32;
    const uint64_t w = where.w() + (uint64_t)row_tile * (uint64_t)a.stages * of_w, x = a.x + (uint64_t)token_tile * (uint64_t)a.stages * of_x;
    float acc[2][4][4], kept[3][32]; /* kept lies in local memory: touched eight times in all */
    const uint32_t w_piece = lt_piece(row + lane % 16, 0, lane / 16), x_piece = lt_piece(token + lane / 16 * 8 + lane % 8, 0, lane / 8 % 2);
    int depth = 0, at = 0, slot = 0;
    copy_stage<of_w, threads>(base, w);
    copy_stage<of_x, threads>(base + of_w, x);
    lt_copy_commit();
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
#pragma unroll
        for (int k = 0; k < 32; k++)
            acc[k / 16][k / 4 % 4][k % 4] = 0;
#pragma unroll 1
        for (int left = lt_count(blocks, lt_accumulator(step)); left > 0; left -= DEPTH) {
            lt_copy_wait<0>();
            __syncthreads(); /* the stage is there, and the other one is done with */
            if (at + 1 < a.stages) {
                copy_stage<of_w, threads>(base + (slot ^ 1) * bytes, w + (uint64_t)(at + 1) * of_w);
                copy_stage<of_x, threads>(base + (slot ^ 1) * bytes + of_w, x + (uint64_t)(at + 1) * of_x);
                lt_copy_commit();
            }
            const uint8_t *here = shared + slot * bytes;
            const uint32_t wa = base + slot * bytes + w_piece, xa = base + slot * bytes + of_w + x_piece;
            if (left >= DEPTH) {
#pragma unroll unroll
                for (int i = 0; i < DEPTH; i++)
                    add_block<halves, mins>(here, here + of_w, wa, xa, i, row, token, acc);
            } else {
#pragma unroll 1
                for (int i = 0; i < left; i++)
                    add_block<halves, mins>(here, here + of_w, wa, xa, i, row, token, acc);
            }
            at++;
            slot ^= 1;
        }
        /* ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7)): a binary counter of partial sums */
#pragma unroll 1
        for (int bits = step; bits & 1; bits >>= 1) {
            depth--;
#pragma unroll
            for (int k = 0; k < 32; k++)
                acc[k / 16][k / 4 % 4][k % 4] = lt_add(kept[depth][k], acc[k / 16][k / 4 % 4][k % 4]);
        }
        if (step < 7) {
#pragma unroll
            for (int k = 0; k < 32; k++)
                kept[depth][k] = acc[k / 16][k / 4 % 4][k % 4];
            depth++;
        }
    }
#pragma unroll
    for (int k = 0; k < 32; k++) {
        const int r = row_tile * ROWS + row + 16 * (k / 16) + 8 * (k / 2 % 2) + lane / 4;
        const int t = token_tile * TOKENS + token + 8 * (k / 4 % 4) + 2 * (lane % 4) + k % 2;
        where.put(r, t, acc[k / 16][k / 4 % 4][k % 4]);
    }
}
#else
template <bool halves, bool mins, typename Where> LT_DEV void gemm_int8(const lt_cuda_gemm8 &, const Where &) {}
#endif

#endif
