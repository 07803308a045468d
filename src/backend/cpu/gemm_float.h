/* gemm_float.h - many tokens times f32, f16 and bf16 rows, for any register width.
 *
 * S(256) is GF_REGS registers of accumulators; register g takes columns GF_LANES g and on of each 256.
 * Rows (widened) and tokens are laid apart by register once: [register][step of 256 columns][row or token of
 * a tile], so that a tile of GF_ROWS by up to GF_TOKENS sums reads two plain streams.
 * Registers come in the order of reversed bits. That makes the halving tree a binary counter: the sum of the
 * nth register is added to one waiting sum for each trailing one of n, then waits itself.
 * A walk takes some registers of a block of rows through many tokens: that part of the rows stays in the
 * first-level cache, or near it.
 *
 * A file that includes this defines GF_LANES, GF_ROWS (4) and GF_TOKENS (3 or 5), the type vflt, and v_zero_f32,
 * v_load_f32, v_store_f32, v_add_f32, v_fma, v_widen and v_store_sums on it. */
#ifndef LT_CPU_GEMM_FLOAT_H
#define LT_CPU_GEMM_FLOAT_H

#include "backend/cpu/avx2.h"

#define GF_REGS (256 / GF_LANES)
#define GF_LEVELS (GF_REGS == 32 ? 5 : 4) /* of waiting sums */
#define GF_TILE (GF_ROWS * GF_TOKENS * GF_LANES)
#define GF_BLOCK 32                     /* rows packed at a time by a thread */
#define GF_L1_ROWS ((size_t)16 << 10)   /* of a first-level cache of 32 KiB */
#define GF_L3_TOKENS ((size_t)4 << 20)  /* packed at a time for all threads, if that is not fewer than ... */
#define GF_MIN_TOKENS 64                /* since the rows are packed again for the next */
#define GF_ALONE ((size_t)16 << 20)     /* of packed tokens that each thread has of its own, for all threads */
#define GF_WALK_TILES 16                /* of tokens in a walk */
#define GF_FEW_TILES 2                  /* of tokens: rows are packed tile by tile while the next are fetched */

typedef struct gf_job {
    const lt_op_args *args;
    const lt__pair *pairs; /* NULL: tokens and outputs by the strides of args */
    lt_team *team;
    uint64_t rows, cols, tokens, steps;
    uint64_t turn;         /* rows that a thread takes at a time */
    uint64_t block, chunk; /* rows, and tokens, packed at a time */
    uint64_t regs, near;   /* of a walk: a power of two from 4 on, and the levels of sums that wait among them */
    size_t x_plane, w_plane, each; /* floats from one register to the next, and of a thread's scratch */
    bool alone; /* each thread packs all tokens for itself */
    float *xs, *scratch;
} gf_job;

typedef struct gf_args {
    const float *w, *x; /* of register 0 */
    size_t w_plane, x_plane;
    uint64_t cols;
    uint64_t first, end;     /* registers of this walk, counted in their order */
    float *level[GF_LEVELS]; /* waiting sums of this tile */
    float *out[GF_TOKENS];
    uint64_t rows;           /* from this tile on that exist */
} gf_args;

static const uint8_t gf_order[] = {
#if GF_REGS == 32
    0, 16, 8, 24, 4, 20, 12, 28, 2, 18, 10, 26, 6, 22, 14, 30, 1, 17, 9, 25, 5, 21, 13, 29, 3, 19, 11, 27, 7, 23, 15, 31
#else
    0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15
#endif
};

/* n rows or tokens of one tile. pad fills the lanes behind the end: -0 in rows, +0 in tokens, whose product, -0, added
 * to a sum changes nothing of it, not even -0. ahead: bytes that a fetch goes before the reading; 0 fetches nothing. */
LT_ALWAYS void gf_pack(lt_dtype t, const int n, const uint8_t *const *row, uint64_t cols, size_t ahead, float pad,
                       size_t plane, float *out)
{
    const size_t bytes = t == LT_DTYPE_F32 ? 4 : 2;
    uint64_t c = 0;
    for (uint64_t s = 0; c + GF_LANES <= cols; s++)
        for (uint64_t g = 0; g < GF_REGS && c + GF_LANES <= cols; g++, c += GF_LANES) {
            float *o = out + gf_order[g] * plane + s * (uint64_t)n * GF_LANES;
            LT_UNROLL
            for (int i = 0; i < n; i++) {
                if (ahead && c * bytes % 64 == 0)
                    _mm_prefetch((const char *)row[i] + c * bytes + ahead, _MM_HINT_T0);
                v_store_f32(o + i * GF_LANES, v_widen(t, row[i] + c * bytes));
            }
        }
    if (c == cols)
        return;
    float *o = out + gf_order[c / GF_LANES % GF_REGS] * plane + c / 256 * (uint64_t)n * GF_LANES;
    for (int i = 0; i < n; i++) {
        uint8_t b[4 * GF_LANES];
        float f[GF_LANES];
        memset(b, 0, sizeof b);
        memcpy(b, row[i] + c * bytes, (cols - c) * bytes);
        v_store_f32(f, v_widen(t, b));
        for (uint64_t k = cols - c; k < GF_LANES; k++)
            f[k] = pad;
        memcpy(o + i * GF_LANES, f, sizeof f);
    }
}

/* ---- tiles ---- */

typedef vflt gf_sums[GF_ROWS][GF_TOKENS];

LT_ALWAYS void gf_zero(const int nt, gf_sums acc)
{
    LT_UNROLL
    for (int r = 0; r < GF_ROWS; r++)
        LT_UNROLL
        for (int j = 0; j < nt; j++)
            acc[r][j] = v_zero_f32();
}
LT_ALWAYS void gf_store(const int nt, float *to, gf_sums acc)
{
    LT_UNROLL
    for (int r = 0; r < GF_ROWS; r++)
        LT_UNROLL
        for (int j = 0; j < nt; j++)
            v_store_f32(to + (r * nt + j) * GF_LANES, acc[r][j]);
}
LT_ALWAYS void gf_add(const int nt, const float *waiting, gf_sums acc)
{
    LT_UNROLL
    for (int r = 0; r < GF_ROWS; r++)
        LT_UNROLL
        for (int j = 0; j < nt; j++)
            acc[r][j] = v_add_f32(v_load_f32(waiting + (r * nt + j) * GF_LANES), acc[r][j]);
}

/* The products of the nth register. */
LT_ALWAYS void gf_products(const int nt, const gf_args *a, uint64_t n, gf_sums acc)
{
    const float *w = a->w + n * a->w_plane, *x = a->x + n * a->x_plane;
    uint64_t c = gf_order[n] * (uint64_t)GF_LANES;
    for (; c < a->cols; c += 256, w += GF_ROWS * GF_LANES, x += nt * GF_LANES) {
        vflt v[GF_TOKENS];
        LT_UNROLL
        for (int j = 0; j < nt; j++)
            v[j] = v_load_f32(x + j * GF_LANES);
        LT_UNROLL
        for (int r = 0; r < GF_ROWS; r++) {
            const vflt wr = v_load_f32(w + r * GF_LANES);
            LT_UNROLL
            for (int j = 0; j < nt; j++)
                acc[r][j] = v_fma(wr, v[j], acc[r][j]);
        }
    }
}

/* The sum of the nth register, the last of four: adds what waits above those, and waits, or is the result. */
LT_ALWAYS void gf_carry(const int nt, const gf_args *a, uint64_t n, gf_sums acc)
{
    int l = 2;
    for (; n >> l & 1; l++)
        gf_add(nt, a->level[l], acc);
    if (n + 1 < GF_REGS) {
        gf_store(nt, a->level[l], acc);
        return;
    }
    LT_UNROLL
    for (int j = 0; j < nt; j++) {
        vflt y[GF_ROWS];
        LT_UNROLL
        for (int r = 0; r < GF_ROWS; r++)
            y[r] = acc[r][j];
        v_store_sums(a->out[j], y, a->rows);
    }
}

/* Four registers at a time, so that of the counter's branches one in four is left. */
LT_ALWAYS void gf_tile(const int nt, const gf_args *a)
{
    for (uint64_t n = a->first; n < a->end; n += 4) {
        gf_sums acc;
        LT_UNROLL
        for (int q = 0; q < 4; q++) {
            gf_zero(nt, acc);
            gf_products(nt, a, n + (uint64_t)q, acc);
            if (q & 1)
                gf_add(nt, a->level[0], acc);
            if (q == 3)
                gf_add(nt, a->level[1], acc);
            else
                gf_store(nt, a->level[q & 1], acc);
        }
        gf_carry(nt, a, n + 3, acc);
    }
}

#define GF_TILE_FN(T) \
    static void gf_tile##T(const gf_args *a) { gf_tile(T, a); }
GF_TILE_FN(1) GF_TILE_FN(2) GF_TILE_FN(3)
#if GF_TOKENS == 5
GF_TILE_FN(4) GF_TILE_FN(5)
static void (*const gf_tiles[GF_TOKENS])(const gf_args *a) = {gf_tile1, gf_tile2, gf_tile3, gf_tile4, gf_tile5};
#else
static void (*const gf_tiles[GF_TOKENS])(const gf_args *a) = {gf_tile1, gf_tile2, gf_tile3};
#endif

/* ---- packing ---- */

/* The tiles of m tokens, sizes differing by one at most, and where the ith begins. */
static uint64_t gf_tile_count(uint64_t m) { return (m + GF_TOKENS - 1) / GF_TOKENS; }
static uint64_t gf_tile_at(uint64_t m, uint64_t i) { return i * m / gf_tile_count(m); }

static void gf_pack_tokens(const gf_job *j, uint64_t t0, uint64_t m, uint64_t i, float *xs)
{
    const lt_view *x = &j->args->src[0];
    const uint64_t at = gf_tile_at(m, i), n = gf_tile_at(m, i + 1) - at;
    const uint8_t *row[GF_TOKENS];
    for (uint64_t k = 0; k < n; k++)
        row[k] = j->pairs ? j->pairs[t0 + at + k].act
                          : (const uint8_t *)lt_cpu_ptr(x->addr) + (t0 + at + k) * (uint64_t)x->stride[0];
    gf_pack(LT_DTYPE_F32, (int)n, row, j->cols, 0, 0.0f, j->x_plane, xs + at * j->steps * GF_LANES);
}

static void gf_pack_rows(const gf_job *j, uint64_t first, uint64_t n, float *out)
{
    const lt_view *w = &j->args->src[1];
    /* Rows shorter than a page end before the processor has found out what to fetch, and tile by tile it stops and
     * starts: ask for the next tile's rows. */
    const size_t ahead = w->stride[0] < 4096 || j->block == GF_ROWS ? GF_ROWS * (size_t)w->stride[0] : 0;
    for (uint64_t r = 0; r < n; r += GF_ROWS, out += GF_ROWS * j->steps * GF_LANES) {
        const uint8_t *row[GF_ROWS];
        for (uint64_t i = 0; i < GF_ROWS; i++) /* rows that do not exist repeat the last */
            row[i] = (const uint8_t *)lt_cpu_ptr(w->addr) + (first + (r + i < n ? r + i : n - 1)) * (uint64_t)w->stride[0];
        if (w->dtype == LT_DTYPE_F16)
            gf_pack(LT_DTYPE_F16, GF_ROWS, row, j->cols, ahead, -0.0f, j->w_plane, out);
        else if (w->dtype == LT_DTYPE_BF16)
            gf_pack(LT_DTYPE_BF16, GF_ROWS, row, j->cols, ahead, -0.0f, j->w_plane, out);
        else
            gf_pack(LT_DTYPE_F32, GF_ROWS, row, j->cols, ahead, -0.0f, j->w_plane, out);
    }
}

/* ---- the whole ---- */

/* The n packed rows from `first` on, by the token tiles [i, end) of the m tokens from t0 on. */
static void gf_walk(const gf_job *j, uint64_t first, uint64_t n, uint64_t t0, uint64_t m, uint64_t i, uint64_t end,
                    const float *xs, float *mine)
{
    const lt_view *y = &j->args->dst;
    const uint64_t row_tiles = (n + GF_ROWS - 1) / GF_ROWS;
    float *hot = mine + GF_REGS * j->w_plane, *far = hot + j->near * GF_TILE;
    for (uint64_t reg = 0; reg < GF_REGS; reg += j->regs)
        for (uint64_t k = i; k < end; k++) {
            const uint64_t at = gf_tile_at(m, k), nt = gf_tile_at(m, k + 1) - at;
            gf_args a = {.x = xs + at * j->steps * GF_LANES, .w_plane = j->w_plane, .x_plane = j->x_plane,
                         .cols = j->cols, .first = reg, .end = reg + j->regs};
            float *out[GF_TOKENS];
            for (uint64_t q = 0; q < nt; q++)
                out[q] = (float *)(void *)(j->pairs ? j->pairs[t0 + at + q].dst
                                                    : (uint8_t *)lt_cpu_ptr(y->addr) + (t0 + at + q) * (uint64_t)y->stride[0]) + first;
            for (uint64_t r = 0; r < row_tiles; r++) {
                a.w = mine + r * GF_ROWS * j->steps * GF_LANES;
                a.rows = n - r * GF_ROWS;
                for (uint64_t l = 0; l < GF_LEVELS; l++)
                    a.level[l] = l < j->near ? hot + l * GF_TILE
                                             : far + (((l - j->near) * GF_WALK_TILES + k - i) * row_tiles + r) * GF_TILE;
                for (uint64_t q = 0; q < nt; q++)
                    a.out[q] = out[q] + r * GF_ROWS;
                gf_tiles[nt - 1](&a);
            }
        }
}

static void gf_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    const gf_job *j = arg;
    float *mine = j->scratch + rank * j->each, *xs = j->xs + (j->alone ? rank * GF_REGS * j->x_plane : 0);
    for (uint64_t t0 = 0; t0 < j->tokens; t0 += j->chunk) {
        const uint64_t m = j->tokens - t0 < j->chunk ? j->tokens - t0 : j->chunk, tiles = gf_tile_count(m);
        uint64_t i, end;
        if (t0) /* now all are done with the tokens of before, and with lt__team_next */
            lt__team_barrier(j->team, rank);
        if (t0 && rank == 0)
            lt__team_rewind(j->team);
        lt__team_range(tiles, 1, j->alone ? 0 : rank, j->alone ? 1 : ranks, &i, &end);
        for (; i < end; i++)
            gf_pack_tokens(j, t0, m, i, xs);
        if (!j->alone || t0) /* the tokens are there, or the count begins anew */
            lt__team_barrier(j->team, rank);
        for (uint64_t r; (r = lt__team_next(j->team, j->turn)) < j->rows;) {
            const uint64_t stop = j->rows - r < j->turn ? j->rows : r + j->turn;
            for (; r < stop; r += j->block) {
                const uint64_t n = stop - r < j->block ? stop - r : j->block;
                gf_pack_rows(j, r, n, mine);
                for (i = 0; i < tiles; i += GF_WALK_TILES)
                    gf_walk(j, r, n, t0, m, i, tiles - i < GF_WALK_TILES ? tiles : i + GF_WALK_TILES, xs, mine);
            }
        }
    }
}

static uint64_t gf_chunk_most(uint64_t steps)
{
    const uint64_t fit = GF_L3_TOKENS / (steps * 1024);
    return fit < GF_MIN_TOKENS ? GF_MIN_TOKENS : fit;
}

static gf_job gf_plan(const lt_op_args *args, uint32_t threads)
{
    const lt_view *w = &args->src[1];
    gf_job j = {.args = args, .rows = (uint64_t)w->dim[0], .cols = (uint64_t)w->dim[1],
                .tokens = (uint64_t)args->src[0].dim[0], .regs = GF_REGS, .near = GF_LEVELS, .block = GF_ROWS};
    j.steps = (j.cols + 255) / 256;
    const uint64_t most = gf_chunk_most(j.steps), chunks = (j.tokens + most - 1) / most;
    j.chunk = (j.tokens + chunks - 1) / chunks;
    const uint64_t share = (j.rows + 8 * threads - 1) / (8 * threads); /* eight turns a thread, at least */
    j.turn = ((share < GF_BLOCK ? share : GF_BLOCK) + GF_ROWS - 1) / GF_ROWS * GF_ROWS;
    if (gf_tile_count(j.chunk) > GF_FEW_TILES) {
        j.block = j.steps > 4 ? GF_BLOCK : GF_BLOCK / 2; /* few columns: rather more registers a walk */
        j.block = j.turn < j.block ? j.turn : j.block;
        for (j.regs = 4, j.near = 2; j.regs < GF_REGS && 2 * j.regs * j.block * j.steps * GF_LANES * 4 <= GF_L1_ROWS; j.near++)
            j.regs *= 2;
    }
    /* A line more from register to register: packing writes to all in turn, and they would meet in one set. */
    j.w_plane = j.block * j.steps * GF_LANES + 16;
    j.x_plane = j.chunk * j.steps * GF_LANES + 16;
    /* Lines that another core has written cost more to read than a pass over all tokens. */
    j.alone = threads * GF_REGS * j.x_plane * sizeof(float) <= GF_ALONE;
    j.each = GF_REGS * j.w_plane + (j.near + (GF_LEVELS - j.near) * GF_WALK_TILES * (j.block / GF_ROWS)) * GF_TILE;
    return j;
}

static size_t gf_scratch(const lt_op_args *args, uint32_t threads)
{
    const gf_job j = gf_plan(args, threads);
    return (GF_REGS * j.x_plane * (j.alone ? threads : 1) + threads * j.each) * sizeof(float);
}

/* Enough for as many tokens and for fewer, whose plan may have a larger chunk, each thread packing all of it for itself, or
 * rows in smaller blocks, for which more sums wait. */
static size_t gf_scratch_most(const lt_op_args *args, uint32_t threads)
{
    lt_op_args few = *args;
    few.src[0].dim[0] = 1;
    const gf_job j = gf_plan(args, threads), f = gf_plan(&few, threads);
    const uint64_t most = gf_chunk_most(j.steps), chunk = j.tokens < most ? j.tokens : most;
    const size_t all = GF_REGS * (chunk * j.steps * GF_LANES + 16), own = threads * all, each = j.each > f.each ? j.each : f.each;
    const size_t alone = own < GF_ALONE / sizeof(float) ? own : GF_ALONE / sizeof(float);
    return ((alone > all ? alone : all) + threads * each) * sizeof(float);
}

static void gf_run(const lt_op_args *args, const lt__pair *pairs, lt_team *team, void *scratch)
{
    gf_job j = gf_plan(args, lt__team_threads(team));
    j.team = team;
    j.pairs = pairs;
    j.xs = scratch;
    j.scratch = j.xs + GF_REGS * j.x_plane * (j.alone ? lt__team_threads(team) : 1);
    lt__team_run(team, gf_rank, &j);
}

#endif
