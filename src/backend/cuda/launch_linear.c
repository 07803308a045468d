/* launch_linear.c - LINEAR: tiles of eight, four, two or one token, and up to four weights a launch. */
#include <stdio.h>

#include "backend/cuda/launch.h"

#define WARPS 4 /* as in kernels/linear.cu */
#define GROUP_TOKENS 8

static bool is_quant(const lt_view *w) { return lt_dtype_get(w->dtype)->kind == LT_DTYPE_KIND_QUANT; }

static bool aligned16(const lt_op_args *a)
{
    uint64_t bits = a->src[0].addr | a->src[1].addr | (uint64_t)a->src[0].stride[0] | (uint64_t)a->src[1].stride[0];
    return (bits & 15) == 0 && a->src[1].dim[1] % 8 == 0;
}

/* Smallest of 1, 2, 4, 8 that holds the tokens, or 8. */
static int tile_of(int64_t tokens, bool wide)
{
    if (!wide)
        return tokens == 1 ? 1 : 4;
    return tokens > 4 ? 8 : tokens > 2 ? 4 : (int)tokens;
}

static lt_status launch_parts(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err)
{
    const lt_view *x = &args[0]->src[0], *w = &args[0]->src[1];
    const lt_dtype_traits *t = lt_dtype_get(w->dtype);
    bool quant = is_quant(w), wide = true;
    for (uint32_t i = 0; i < n; i++)
        wide = wide && (quant || aligned16(args[i]));
    int tile = tile_of(x->dim[0], wide);
    int64_t per_block = quant ? 4 * WARPS : WARPS; /* four groups of lanes a warp, or one row */
    lt_cuda_linear a = {.x = x->addr, .x_stride = x->stride[0], .cols = (int32_t)w->dim[1], .tokens = (int32_t)x->dim[0],
                        .tiles = (int32_t)((x->dim[0] + tile - 1) / tile), .parts = (int32_t)n};
    uint32_t groups = 0;
    for (uint32_t i = 0; i < n; i++) {
        const lt_view *v = &args[i]->src[1], *y = &args[i]->dst;
        a.part[i] = (lt_cuda_linear_part){.w = v->addr, .y = y->addr, .w_stride = v->stride[0], .y_stride = y->stride[0],
                                          .rows = (int32_t)v->dim[0], .first = (int32_t)groups};
        groups += lt__cuda_blocks(v->dim[0], per_block);
    }
    char name[48];
    snprintf(name, sizeof name, "linear_%s_%s%d", t->name, wide ? "" : "any_", tile);
    lt_cuda_dim grid = {(uint32_t)a.tiles * groups, 1, 1}, block = {32 * WARPS, 1, 1};
    return lt__cuda_launch(dev, "linear", name, grid, block, 0, stream, (void *[]){&a}, args[0], err);
}

static lt_status launch_linear(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    return args->src[0].dim[0] ? launch_parts(dev, stream, &args, 1, err) : LT_OK;
}

static bool accepts_linear(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    *why = "a product of over two billion blocks, rows or columns";
    int64_t blocks = (a->src[1].dim[0] + 3) / 4;
    return a->src[1].dim[0] < INT32_MAX && a->src[1].dim[1] < INT32_MAX && (a->src[0].dim[0] == 0 || blocks < INT32_MAX / a->src[0].dim[0]);
}

bool lt__cuda_linear_group_ok(const lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
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
            wi->dtype != w->dtype || wi->dim[1] != w->dim[1])
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
