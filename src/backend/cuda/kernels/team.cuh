/* team.cuh - quantised rows, a lane a row: a block of threads owns `rows` rows; thread (r, j) owns the accumulators
 * j * own .. j * own + own - 1 of row r, so a warp of 32 rows reads the same activations at the same time and nothing is
 * exchanged before the tree. Rows come through a ring of `stages` segments of `seg` groups of 256 columns. */
#ifndef LT_CUDA_TEAM_CUH
#define LT_CUDA_TEAM_CUH

#include "stage.cuh"
#include "weights.cuh"

template <int dt> struct lt_whole;
#define LT_WHOLE(name, bytes, whole) template <> struct lt_whole<LT_W_##name> { enum { value = whole }; };
LT_CUDA_QUANTS(LT_WHOLE)
#undef LT_WHOLE

/* A block as the product wants it: words of bytes, and how far their sum is to be shifted down. */
template <int dt, typename M = lt_shared> struct lt_staged {
    enum { bare = 0 };
    static LT_DEV void read(const uint8_t *row, int b, lt_group &g) { lt_weight<dt>::template read<M>(row, b, g); }
    static LT_DEV int down(int) { return 0; }
};
/* High nibbles stay where they are: sixteen times the sum. */
template <typename M> struct lt_staged<LT_W_Q4_K, M> {
    enum { bare = 1 };
    static LT_DEV void read(const uint8_t *row, int b, lt_group &g)
    {
        const uint8_t *p = row + 144 * (b >> 3);
        const int k = b & 7;
        const uint4 head = *(const uint4 *)p, v0 = *(const uint4 *)(p + 16 + 32 * (k >> 1)), v1 = *(const uint4 *)(p + 32 + 32 * (k >> 1));
        const uint32_t mask = k & 1 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        uint32_t sc, mn;
        lt_k4_scales(head.y, head.z, head.w, k, sc, mn);
        g.d = lt_mul(lt_half(head.x & 0xffff), (float)sc);
        g.m = lt_mul(lt_half(head.x >> 16), (float)mn);
        g.mn0 = g.mn1 = -1;
        g.w[0] = v0.x & mask, g.w[1] = v0.y & mask, g.w[2] = v0.z & mask, g.w[3] = v0.w & mask;
        g.w[4] = v1.x & mask, g.w[5] = v1.y & mask, g.w[6] = v1.z & mask, g.w[7] = v1.w & mask;
    }
    static LT_DEV int down(int k) { return 4 * (k & 1); }
};

/* Bytes of w unsigned (bare) or signed, of x signed. */
template <bool bare> LT_DEV int lt_dot4(uint32_t w, uint32_t x, int sum)
{
    if (!bare)
        return __dp4a((int)w, (int)x, sum);
    int r;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(w), "r"(x), "r"(sum));
    return r;
}


/* A byte of v as a float: 2^23 + byte, less 2^23. */
template <int byte> LT_DEV float lt_byte(uint32_t v)
{
    return lt_sub(__uint_as_float(__byte_perm(v, 0x4b000000u, 0x7440 + byte)), 8388608.0f);
}

/* `own` blocks from block b on, of one group of eight. */
template <int dt, int own, typename M> struct lt_team_read {
    static LT_DEV void read(const uint8_t *row, int b, lt_group (&g)[own])
    {
#pragma unroll
        for (int i = 0; i < own; i++)
            lt_staged<dt, M>::read(row, b + i, g[i]);
    }
};
/* Two blocks share 32 bytes and the header; their scales are neighbours in it. */
template <typename M> struct lt_team_read<LT_W_Q4_K, 2, M> {
    static LT_DEV void read(const uint8_t *row, int b, lt_group (&g)[2])
    {
        const uint8_t *p = row + 144 * (b >> 3);
        const int k = b & 7, j = 8 * (k & 2);
        const uint4 head = *(const uint4 *)p, v0 = *(const uint4 *)(p + 16 + 16 * k), v1 = *(const uint4 *)(p + 32 + 16 * k);
        const uint32_t v[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
        const float d = lt_half(head.x & 0xffff), m = lt_half(head.x >> 16);
        const uint32_t s0 = head.y >> j, s1 = head.z >> j, s2 = head.w >> j;
        const uint32_t sc = k < 4 ? s0 & 0x3f3f : (s2 & 0x0f0f) | (s0 >> 2 & 0x3030);
        const uint32_t mn = k < 4 ? s1 & 0x3f3f : (s2 >> 4 & 0x0f0f) | (s1 >> 2 & 0x3030);
        g[0].d = lt_mul(d, lt_byte<0>(sc));
        g[1].d = lt_mul(d, lt_byte<1>(sc));
        g[0].m = lt_mul(m, lt_byte<0>(mn));
        g[1].m = lt_mul(m, lt_byte<1>(mn));
#pragma unroll
        for (int n = 0; n < 8; n++) {
            g[0].w[n] = v[n] & 0x0f0f0f0fu;
            g[1].w[n] = v[n] & 0xf0f0f0f0u;
        }
    }
};

/* What a block's sums are wanted for, prepared once: as they are, the float of the minimum's update, or what the offset takes. */
template <int dt> LT_DEV uint32_t team_sum(uint32_t sums)
{
    typedef lt_weight<dt> W;
    const int s = (int16_t)(sums & 0xffff) + ((int)sums >> 16);
    if (W::halves)
        return sums;
    if (W::mins)
        return __float_as_uint((float)(dt == LT_W_Q4_K || dt == LT_W_Q5_K ? -s : s));
    return (uint32_t)(W::offset * s);
}

template <int dt> LT_DEV float team_add(const lt_group &g, const uint32_t (&q)[8], float d, uint32_t sums, int c, bool real, float acc)
{
    typedef lt_weight<dt> W;
    typedef lt_staged<dt> S;
    int i0 = 0, i1 = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        i0 = lt_dot4<S::bare>(g.w[k], q[k], i0);
        i1 = lt_dot4<S::bare>(g.w[4 + k], q[4 + k], i1);
    }
    const int s0 = (int16_t)(sums & 0xffff), s1 = (int)sums >> 16;
    int sum;
    if (W::halves)
        sum = g.sc0 * (i0 - W::offset * s0) + g.sc1 * (i1 - W::offset * s1);
    else
        sum = ((i0 + i1) >> S::down(c)) - (W::offset ? (int)sums : 0);
    const float next = lt_fma((float)sum, lt_mul(g.d, d), acc);
    if (!W::mins)
        return real ? next : acc;
    const float m = W::halves ? (float)(g.mn0 * s0 + g.mn1 * s1) : __uint_as_float(sums);
    return real ? lt_fma(m, lt_mul(g.m, d), next) : acc;
}

template <bool yes, typename A, typename B> struct lt_pick { typedef A type; };
template <typename A, typename B> struct lt_pick<false, A, B> { typedef B type; };

template <int dt, int rows_, int own, int seg, int stages, int tokens> struct lt_team {
    enum { rows = rows_, threads = rows * 8 / own, bytes = seg * lt_weight<dt>::bytes, steady = bytes % 16 == 0 /* the alignment of a segment is its row's */,
           whole = lt_whole<dt>::value, chunks = LT_CUDA_TEAM_CHUNKS(bytes, whole), pitch = (chunks | 1) * 16, slot = rows * pitch,
           sums = tokens * rows * 32,
           lanes = 8 / own /* that copy a row */, per = (chunks + lanes - 1) / lanes };
    typedef typename lt_pick<(rows > 8), lt_shared16, lt_shared>::type Memory;
    const uint8_t *from;
    int            limit, to;

    static LT_DEV int skew(const uint8_t *w) { return whole ? 0 : (int)((uintptr_t)w & 15); }
    LT_DEV void begin(uint64_t w, const lt_cuda_linear_part &p, int row, int row_bytes)
    {
        const int r = (int)threadIdx.x / lanes, j = (int)threadIdx.x % lanes;
        from = lt_at<const uint8_t>(w, (row + r < p.rows ? row + r : p.rows - 1) * p.w_stride) + 16 * j;
        limit = row_bytes - 16 * j;
        to = r * pitch + 16 * j;
    }
    LT_DEV void copy(uint8_t *slot_at, int segment) const
    {
        const int j = (int)threadIdx.x % lanes, at = segment * bytes - skew(from + (steady ? 0 : segment * bytes));
#pragma unroll
        for (int m = 0; m < per; m++)
            if (at + 16 * lanes * m < limit && ((m + 1) * lanes <= chunks || j + lanes * m < chunks))
                lt_copy16(slot_at + to + 16 * lanes * m, from + at + 16 * lanes * m);
    }
    static LT_DEV void sync()
    {
        if (threads == 32)
            __syncwarp();
        else
            __syncthreads();
    }
};

/* Activations: q of whole groups, then {d, sum} a block. */
template <int dt> LT_DEV void team_x(uint8_t *to, const uint8_t *x, int cols)
{
    const int groups = (cols + 255) / 256, n = cols / 8, step = (int)blockDim.x, blocks = cols / 32;
    for (int first = (int)threadIdx.x; first < n; first += 8 * step) { /* eight loads in flight */
        uint2 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (first + k * step < n)
                v[k] = __ldcg((const uint2 *)x + first + k * step);
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (first + k * step < n)
                ((uint2 *)to)[first + k * step] = v[k];
    }
    for (int first = (int)threadIdx.x; first < blocks; first += 2 * step) {
        uint2 v[2];
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (first + k * step < blocks) {
                v[k].x = __ldcg((const uint32_t *)(x + cols) + first + k * step);
                v[k].y = __ldcg((const uint32_t *)(x + cols + cols / 8) + first + k * step);
            }
#pragma unroll
        for (int k = 0; k < 2; k++)
            if (first + k * step < blocks)
                ((uint2 *)(to + groups * 256))[first + k * step] = make_uint2(v[k].x, team_sum<dt>(v[k].y));
    }
}

template <int dt, int tokens, int rows, int own, int seg, int stages, typename Who> LT_DEV void linear_team(const lt_cuda_linear &a, const Who &who)
{
    typedef lt_weight<dt> W;
    typedef lt_team<dt, rows, own, seg, stages, tokens> Team;
    extern __shared__ uint4 lt_dynamic[];
    const int r = (int)threadIdx.x % rows, c = (int)threadIdx.x / rows * own, blocks = a.cols / 32, groups = (blocks + 7) / 8;
    const int xb = LT_CUDA_TEAM_X(a.cols), segments = (groups + seg - 1) / seg;
    const int row_bytes = blocks * (W::bytes / 8) + blocks * (W::bytes % 8) / 8;
    const bool super = W::bytes % 8 != 0 || lt_whole<dt>::value || dt == LT_W_IQ4_XS; /* no part of a group */
    float *sums = (float *)lt_dynamic; /* [tokens][8][rows] */
    uint8_t *xs = (uint8_t *)lt_dynamic + Team::sums, *ring = xs + tokens * xb;
    int unit = (int)blockIdx.x, ahead_unit = unit, ahead_segment = 0, ahead_slot = 0, slot = 0;
    Team copies;

    if (ahead_unit < a.units) {
        const lt_cuda_linear_part *p = lt_part_of(a, ahead_unit);
        copies.begin(who.w(*p), *p, (ahead_unit - p->first) * rows, row_bytes);
    }
    auto ahead = [&]() {
        if (ahead_unit < a.units) {
            copies.copy(ring + ahead_slot * Team::slot, ahead_segment);
            ahead_slot = ahead_slot + 1 == stages ? 0 : ahead_slot + 1;
            if (++ahead_segment == segments) {
                ahead_segment = 0;
                ahead_unit += (int)gridDim.x;
                if (ahead_unit < a.units) {
                    const lt_cuda_linear_part *p = lt_part_of(a, ahead_unit);
                    copies.begin(who.w(*p), *p, (ahead_unit - p->first) * rows, row_bytes);
                }
            }
        }
        lt_copy_commit();
    };
#pragma unroll
    for (int i = 0; i < stages - 1; i++)
        ahead();
    if (Who::early)
        lt_begin();
#pragma unroll
    for (int t = 0; t < tokens; t++)
        team_x<dt>(xs + t * xb, who.x(who.at(tokens, t)), a.cols);
    for (; unit < a.units; unit += (int)gridDim.x) {
        const lt_cuda_linear_part *p = lt_part_of(a, unit);
        const int row = (unit - p->first) * rows + r;
        const uint8_t *w = lt_at<const uint8_t>(who.w(*p), (row < p->rows ? row : p->rows - 1) * p->w_stride);
        float acc[tokens][own];
#pragma unroll
        for (int t = 0; t < tokens; t++)
#pragma unroll
            for (int i = 0; i < own; i++)
                acc[t][i] = 0;
        for (int s = 0; s < segments; s++) {
            lt_copy_wait<stages - 2>();
            Team::sync(); /* this segment is there, the one before is used up */
            ahead();
            const uint8_t *raw = ring + slot * Team::slot + r * Team::pitch + Team::skew(w + (Team::steady ? 0 : s * Team::bytes));
#pragma unroll (tokens > 1 ? 1 : seg)
            for (int k = 0; k < seg; k++) {
                const int group = s * seg + k;
                if (group >= groups)
                    break;
                lt_group g[own];
                lt_team_read<dt, own, typename Team::Memory>::read(raw, k * 8 + c, g);
#pragma unroll
                for (int t = 0; t < tokens; t++)
#pragma unroll
                    for (int i = 0; i < own; i++) {
                        const uint8_t *x = xs + t * xb + group * 256 + c * 32;
                        const uint4 q0 = ((const uint4 *)x)[2 * i], q1 = ((const uint4 *)x)[2 * i + 1];
                        const uint32_t q[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
                        const uint2 ds = ((const uint2 *)(xs + t * xb + groups * 256 + group * 64 + c * 8))[i];
                        const bool real = super || group * 8 + c + i < blocks;
                        acc[t][i] = team_add<dt>(g[i], q, __uint_as_float(ds.x), ds.y, own == 1 ? c : i, real, acc[t][i]);
                    }
            }
            slot = slot + 1 == stages ? 0 : slot + 1;
        }
#pragma unroll
        for (int t = 0; t < tokens; t++)
#pragma unroll
            for (int i = 0; i < own; i++)
                sums[(t * 8 + c + i) * rows + r] = acc[t][i];
        Team::sync();
        for (int i = (int)threadIdx.x; i < tokens * rows; i += Team::threads) {
            const int t = i / rows, at = who.at(tokens, t), n = (unit - p->first) * rows + i % rows;
            const float *v = sums + t * 8 * rows + i % rows;
            float b[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                b[k] = lt_add(v[k * rows], v[(k + 4) * rows]);
            if (n < p->rows && who.has(at))
                who.put(*p, at, n, lt_add(lt_add(b[0], b[2]), lt_add(b[1], b[3])));
        }
    }
    lt_copy_wait<0>();
}

#endif
