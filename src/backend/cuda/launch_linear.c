/* launch_linear.c - LINEAR: tiles of eight, four, two or one token, and up to four weights a launch. */
#include <stdio.h>

#include "backend/cuda/device.h"
#include "backend/cuda/launch.h"

#define GROUP_TOKENS 8
#define PLAIN_WARPS 4 /* as in kernels/linear.cu */

typedef struct team { lt_dtype dtype; bool whole; int tokens, rows, threads, shared; } team;
static const team teams[] = {
#define TEAM(name, bytes, whole, tokens, rows, own, seg, stages)                                       \
    {LT_DTYPE_##name, whole, tokens, rows, (rows)*8 / (own),                                           \
     (tokens) * (rows)*32 + LT_CUDA_TEAM_RING(rows, (bytes) * (seg), whole, stages)},
    LT_CUDA_TEAMS(TEAM)
#undef TEAM
};
typedef struct wide { int tokens, rows, warps; } wide;
static const wide wides[] = {
#define WIDE(tokens, rows, batch, warps) {tokens, rows, warps},
    LT_CUDA_WIDES(WIDE)
#undef WIDE
};

typedef lt_cuda_way way;

static bool is_quant(lt_dtype t) { return lt_dtype_get(t)->kind == LT_DTYPE_KIND_QUANT; }
static bool aligned(const lt_view *v) { return ((v->addr | (uint64_t)v->stride[0]) & 15) == 0; }

static bool fits_team(const team *m, const lt_cuda_props *p, int64_t cols, bool w_aligned, way *out)
{
    int64_t shared = m->shared + m->tokens * LT_CUDA_TEAM_X(cols);
    if (shared > p->shared_optin_bytes || (m->whole && !w_aligned))
        return false;
    uint32_t blocks = (p->shared_optin_bytes + 1024) / ((uint32_t)shared + 1024); /* the driver takes 1 KiB of each */
    *out = (way){.tokens = m->tokens, .rows = m->rows, .threads = (uint32_t)m->threads, .units_of_block = 1,
                 .shared = (uint32_t)shared, .blocks_of_sm = m->tokens == 1 ? 0 : blocks};
    return true;
}

static bool fits_wide(const wide *m, const lt_cuda_props *p, int64_t cols, way *out)
{
    int64_t shared = m->tokens * LT_CUDA_WIDE_X(cols);
    if (shared > p->shared_optin_bytes || cols % 8)
        return false;
    uint32_t blocks = (p->shared_optin_bytes + 1024) / ((uint32_t)shared + 1024);
    /* Registers hold eight warps twice at two tokens, once and a half at four, once at eight. */
    bool half = m->tokens == 4 && blocks > 1;
    uint32_t warps = half ? (uint32_t)m->warps / 2 : (uint32_t)m->warps, most = m->tokens == 2 ? 2 : half ? 3 : 1;
    *out = (way){.tokens = m->tokens, .rows = m->rows, .threads = 32 * warps, .units_of_block = warps,
                 .shared = (uint32_t)shared, .blocks_of_sm = m->tokens == 1 ? 0 : blocks < most ? blocks : most};
    return true;
}

/* Whether the kernels read such rows only where they begin at multiples of 16 bytes. */
static bool is_whole(lt_dtype dtype)
{
    bool whole = false;
    for (size_t i = 0; i < sizeof teams / sizeof *teams; i++)
        whole |= teams[i].dtype == dtype && teams[i].whole;
    return whole;
}

/* Rows in host memory, quantised: the most of four, two and one a warp that leave room for a second block, or fit at all. */
static bool fits_lines(const lt_cuda_props *p, lt_dtype dtype, int64_t cols, bool w_aligned, way *out)
{
    uint64_t row_bytes;
    if (!lt_dtype_row_bytes(dtype, (uint64_t)cols, &row_bytes) || (is_whole(dtype) && !w_aligned))
        return false;
    for (int blocks = 2; blocks >= 1; blocks--)
        for (int rows = 4; rows >= 1; rows /= 2) {
            uint64_t shared = LT_CUDA_LINES_X((uint64_t)cols) + LT_CUDA_LINES_WARPS * LT_CUDA_LINES_PITCH((uint64_t)rows * row_bytes);
            if (shared * (uint64_t)blocks > p->shared_optin_bytes)
                continue;
            *out = (way){.lines = true, .tokens = 1, .rows = rows, .threads = 32 * LT_CUDA_LINES_WARPS, .units_of_block = LT_CUDA_LINES_WARPS,
                         .shared = (uint32_t)shared};
            return true;
        }
    return false;
}

bool lt__cuda_linear_lines(const lt_cuda_device *dev, lt_dtype dtype, int64_t cols, bool w_aligned, bool x_aligned, lt_cuda_way *out)
{
    const lt_cuda_props *p = lt__cuda_device_props(dev);
    if (is_quant(dtype))
        return fits_lines(p, dtype, cols, w_aligned, out);
    if (lt_dtype_get(dtype)->block_bytes != 2 || !w_aligned || !x_aligned || !fits_wide(&wides[0], p, cols, out))
        return false;
    out->lines = true;
    return true;
}

bool lt__cuda_linear_tile(const lt_cuda_device *dev, lt_dtype dtype, int64_t cols, int tile, bool w_aligned, bool x_aligned, lt_cuda_way *out)
{
    const lt_cuda_props *p = lt__cuda_device_props(dev);
    if (is_quant(dtype)) {
        for (size_t i = 0; i < sizeof teams / sizeof *teams; i++)
            if (teams[i].dtype == dtype && teams[i].tokens == tile)
                return fits_team(&teams[i], p, cols, w_aligned, out);
        return false;
    }
    for (size_t i = 0; i < sizeof wides / sizeof *wides; i++)
        if (wides[i].tokens == tile)
            return w_aligned && x_aligned && fits_wide(&wides[i], p, cols, out);
    return false;
}

lt_cuda_way lt__cuda_linear_plain(lt_dtype dtype)
{
    int rows = is_quant(dtype) ? 4 * PLAIN_WARPS : PLAIN_WARPS; /* eight lanes a row, or a warp */
    return (way){.plain = true, .tokens = 1, .rows = rows, .threads = 32 * PLAIN_WARPS, .units_of_block = 1};
}

/* The kernel of the smallest tile that holds the tokens; smaller tiles where shared memory does not hold that many. */
static way choose(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
{
    const lt_view *w = &args[0]->src[1];
    int64_t tokens = args[0]->src[0].dim[0];
    bool w_aligned = true, x_aligned = true;
    way out;
    bool packed = true; /* rows behind each other, as their span is read whole */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row_bytes;
        w_aligned = w_aligned && aligned(&args[i]->src[1]);
        x_aligned = x_aligned && aligned(&args[i]->src[0]);
        packed = packed && lt_dtype_row_bytes(w->dtype, (uint64_t)w->dim[1], &row_bytes) && row_bytes == (uint64_t)args[i]->src[1].stride[0];
    }
    if (tokens == 1 && packed && lt__cuda_on_host(dev, w->addr) && lt__cuda_linear_lines(dev, w->dtype, w->dim[1], w_aligned, x_aligned, &out))
        return out;
    for (int tile = tokens > 4 ? 8 : tokens > 2 ? 4 : (int)tokens; tile >= 1; tile /= 2)
        if (lt__cuda_linear_tile(dev, w->dtype, w->dim[1], tile, w_aligned, x_aligned, &out))
            return out;
    return lt__cuda_linear_plain(w->dtype);
}

static lt_status launch_parts(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err)
{
    const lt_view *x = &args[0]->src[0], *w = &args[0]->src[1];
    way how = choose(dev, args, n);
    lt_cuda_linear a = {.x = x->addr, .x_stride = x->stride[0], .cols = (int32_t)w->dim[1], .tokens = (int32_t)x->dim[0], .parts = (int32_t)n,
                        .rows_of = how.rows};
    for (uint32_t i = 0; i < n; i++) {
        const lt_view *v = &args[i]->src[1], *y = &args[i]->dst;
        int32_t step = how.plain ? how.rows : 1; /* the plain kernels count rows */
        a.part[i] = (lt_cuda_linear_part){.w = v->addr, .y = y->addr, .w_stride = v->stride[0], .y_stride = y->stride[0],
                                          .rows = (int32_t)v->dim[0], .first = a.units * step};
        a.units += (int32_t)lt__cuda_blocks(v->dim[0], how.rows);
    }
    char name[48];
    if (how.plain)
        snprintf(name, sizeof name, "linear_%s_plain", lt_dtype_get(w->dtype)->name);
    else if (how.lines)
        snprintf(name, sizeof name, "linear_%s_lines", lt_dtype_get(w->dtype)->name);
    else
        snprintf(name, sizeof name, "linear_%s_%d", lt_dtype_get(w->dtype)->name, how.tokens);
    uint32_t blocks = lt__cuda_blocks(a.units, how.units_of_block), most = how.blocks_of_sm * (uint32_t)lt__cuda_device_props(dev)->sm_count;
    lt_cuda_dim grid = {most && most < blocks ? most : blocks, lt__cuda_blocks(x->dim[0], how.tokens), 1}, block = {how.threads, 1, 1};
    return lt__cuda_launch(dev, "linear", name, grid, block, how.shared, stream, (void *[]){&a}, args[0], err);
}

/* The grid's y holds 65535 tiles. */
static lt_status launch_linear(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const int64_t at_once = 32768;
    for (int64_t done = 0; done < args->src[0].dim[0]; done += at_once) {
        lt_op_args part = *args;
        const lt_op_args *list = &part;
        int64_t left = args->src[0].dim[0] - done;
        part.src[0].addr += (uint64_t)(done * args->src[0].stride[0]);
        part.dst.addr += (uint64_t)(done * args->dst.stride[0]);
        part.src[0].dim[0] = part.dst.dim[0] = left < at_once ? left : at_once;
        lt_status s = launch_parts(dev, stream, &list, 1, err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

/* Blocks of rows are a grid's x; the plain kernels count rows in an int. */
static bool accepts_linear(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    *why = "a product of over two billion rows or columns";
    return a->src[1].dim[0] < INT32_MAX - 64 && a->src[1].dim[1] < INT32_MAX - 256;
}

bool lt__cuda_linear_group_ok(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
{
    if (n < 1 || n > LT_CUDA_LINEAR_PARTS)
        return false;
    const lt_view *x = &args[0]->src[0], *w = &args[0]->src[1];
    int64_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        const lt_view *xi = &args[i]->src[0], *wi = &args[i]->src[1];
        const char *why;
        if (args[i]->op != LT_OP_LINEAR || !accepts_linear(dev, args[i], &why))
            return false;
        if (xi->addr != x->addr || xi->dtype != x->dtype || xi->dim[0] != x->dim[0] || xi->stride[0] != x->stride[0] ||
            wi->dtype != w->dtype || wi->dim[1] != w->dim[1] || lt__cuda_on_host(dev, wi->addr) != lt__cuda_on_host(dev, w->addr))
            return false;
        rows += wi->dim[0];
    }
    return x->dim[0] >= 1 && x->dim[0] <= GROUP_TOKENS && rows < INT32_MAX / GROUP_TOKENS;
}

lt_status lt__cuda_linear_group(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err)
{
    LT_ASSERT(lt__cuda_linear_group_ok(dev, args, n));
    return launch_parts(dev, stream, args, n, err);
}

const lt_cuda_row lt__cuda_rows_linear[] = {{LT_OP_LINEAR, accepts_linear, launch_linear, NULL}};
const size_t lt__cuda_rows_linear_n = 1;
