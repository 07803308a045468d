/* tile.cuh - quantised rows times three to eight tokens on the integer tensor cores: the sums are exact, so any order of
 * theirs gives the bits of docs/arithmetic.md.
 *
 * A block of threads owns 32 rows in a ring as in team.cuh. A lane decodes one block of 32 columns of one row; through
 * shared memory a warp hands its 8 rows by 4 blocks to products of 8 tokens by 16 columns by 8 rows, of which lane
 * (token, pair of rows) gets the sums and makes the updates of 4 accumulators by 2 rows. */
#ifndef LT_CUDA_TILE_CUH
#define LT_CUDA_TILE_CUH

#include "team.cuh"

/* c[token][2 rows] += x[8 tokens][16] w[16][8 rows]; a lane holds four columns of token lane / 4, and of row lane / 4. */
template <bool bare> LT_DEV void tile_mma(int (&c)[2], uint32_t x, uint32_t w)
{
    if (bare)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(x), "r"(w));
    else
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(c[0]), "+r"(c[1]) : "r"(x), "r"(w));
}

/* What 32 lanes hand to each other, in the order of lanes: 4 blocks of 8 rows. */
template <bool halves> struct lt_tile_shared {
    uint4  w[2][32];
    float2 factors[32];
    int2   scales[halves ? 32 : 1]; /* {sc0, sc1} and {mn0, mn1} as int16 */
};

LT_DEV int tile_pack(int a, int b) { return (a & 0xffff) | b << 16; }

template <int dt> LT_DEV void tile_give(lt_tile_shared<lt_weight<dt>::halves> *to, int lane, const lt_group &g)
{
    to->w[0][lane] = make_uint4(g.w[0], g.w[1], g.w[2], g.w[3]);
    to->w[1][lane] = make_uint4(g.w[4], g.w[5], g.w[6], g.w[7]);
    to->factors[lane] = make_float2(g.d, lt_weight<dt>::mins ? g.m : 0);
    if (lt_weight<dt>::halves)
        to->scales[lane] = make_int2(tile_pack(g.sc0, g.sc1), lt_weight<dt>::mins ? tile_pack(g.mn0, g.mn1) : 0);
}

/* Block j of the warp's four: updates acc of token lane / 4 and rows 2 (lane % 4) and the next. x: that token's block. */
template <int dt> LT_DEV void tile_take(const lt_tile_shared<lt_weight<dt>::halves> *from, int lane, int j, const uint8_t *x, uint2 ds, int block,
                                        bool real, float (&acc)[2])
{
    typedef lt_weight<dt> W;
    typedef lt_staged<dt> S;
    const int t = lane % 4, at = 8 * j + 2 * t;
    int lo[2] = {0, 0}, hi[2] = {0, 0};
    tile_mma<S::bare>(lo, ((const uint32_t *)x)[t], ((const uint32_t *)(from->w[0] + 8 * j))[lane]);
    if (W::halves)
        tile_mma<S::bare>(hi, ((const uint32_t *)x)[4 + t], ((const uint32_t *)(from->w[1] + 8 * j))[lane]);
    else
        tile_mma<S::bare>(lo, ((const uint32_t *)x)[4 + t], ((const uint32_t *)(from->w[1] + 8 * j))[lane]);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        lt_group g;
        g.d = from->factors[at + n].x;
        g.m = from->factors[at + n].y;
        if (W::halves) {
            const int2 s = from->scales[at + n];
            g.sc0 = (int16_t)(s.x & 0xffff), g.sc1 = s.x >> 16, g.mn0 = (int16_t)(s.y & 0xffff), g.mn1 = s.y >> 16;
        }
        acc[n] = team_update<dt>(g, lo[n], hi[n], __uint_as_float(ds.x), ds.y, S::down(block), real, acc[n]);
    }
}

template <int dt, int seg, int stages> LT_DEV void linear_tile(const lt_cuda_linear &a)
{
    typedef lt_team<dt, LT_CUDA_TILE_ROWS, 1, seg, stages, 8> Team;
    typedef lt_tile_shared<lt_weight<dt>::halves> Shared;
    static_assert(sizeof(Shared) <= LT_CUDA_TILE_SHARED, "the launch counts less");
    extern __shared__ uint4 lt_dynamic[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, blocks = a.cols / 32, groups = (blocks + 7) / 8;
    const int r = warp / 2 * 8 + lane % 8, first = warp % 2 * 4 /* block of the warp */, t0 = (int)blockIdx.y * a.tile, xb = LT_CUDA_TILE_X(a.cols);
    const int tokens = a.tokens - t0 < a.tile ? a.tokens - t0 : a.tile, token = lane / 4 < tokens ? lane / 4 : 0;
    float *sums = (float *)lt_dynamic;
    Shared *mine = (Shared *)((uint8_t *)lt_dynamic + Team::sums + warp * LT_CUDA_TILE_SHARED);
    uint8_t *xs = (uint8_t *)lt_dynamic + Team::sums + Team::threads / 32 * LT_CUDA_TILE_SHARED, *ring = xs + a.tile * xb;
    const uint8_t *x = xs + token * xb;
    lt_team_ahead<dt, Team, stages> ahead;

    ahead.start(a);
#pragma unroll
    for (int i = 0; i < stages - 1; i++)
        ahead.step(a, ring);
    lt_begin();
    for (int t = 0; t < tokens; t++)
        team_x<dt>(xs + t * xb, lt_at<const uint8_t>(a.x, (t0 + t) * a.x_stride), a.cols);
    for (int unit = (int)blockIdx.x, slot = 0; unit < a.units; unit += (int)gridDim.x) {
        const lt_cuda_linear_part *p = lt_part_of(a, unit);
        const int row = (unit - p->first) * Team::rows + r;
        const uint8_t *w = lt_at<const uint8_t>(p->w, (row < p->rows ? row : p->rows - 1) * p->w_stride);
        float acc[4][2] = {{0}};
        for (int s = 0; s < ahead.segments; s++) {
            lt_copy_wait<stages - 2>();
            Team::sync(); /* this segment is there, the one before is used up */
            ahead.step(a, ring);
            const uint8_t *raw = ring + slot * Team::slot + r * Team::pitch + Team::skew(w + (Team::steady ? 0 : s * Team::bytes));
#pragma unroll 1
            for (int k = 0; k < seg && s * seg + k < groups; k++) {
                const int group = s * seg + k;
                lt_group g;
                lt_staged<dt>::read(raw, 8 * k + first + lane / 8, g);
                tile_give<dt>(mine, lane, g);
                __syncwarp();
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int block = first + j;
                    const uint2 ds = *(const uint2 *)(x + groups * 256 + group * 64 + block * 8);
                    tile_take<dt>(mine, lane, j, x + group * 256 + block * 32, ds, block, lt_super<dt>::value || group * 8 + block < blocks, acc[j]);
                }
                __syncwarp();
            }
            slot = slot + 1 == stages ? 0 : slot + 1;
        }
        if (lane / 4 < tokens)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    sums[(lane / 4 * 8 + first + j) * Team::rows + warp / 2 * 8 + lane % 4 * 2 + n] = acc[j][n];
        Team::sync();
        team_results<Team>(a, p, sums, unit, t0, tokens);
    }
    lt_copy_wait<0>();
}

#endif
