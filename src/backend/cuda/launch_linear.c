/* launch_linear.c - LINEAR: eight, four, two or one token a block, whatever makes up their number. */
#include <stdio.h>

#include "backend/cuda/launch.h"

#define WARPS 4 /* as in kernels/linear.cu */

static bool aligned16(const lt_op_args *a)
{
    uint64_t bits = a->src[0].addr | a->src[1].addr | (uint64_t)a->src[0].stride[0] | (uint64_t)a->src[1].stride[0];
    return (bits & 15) == 0 && a->src[1].dim[1] % 8 == 0;
}

static lt_status launch_linear(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *y = &args->dst;
    const lt_dtype_traits *t = lt_dtype_get(w->dtype);
    bool quant = t->kind == LT_DTYPE_KIND_QUANT, wide = quant || aligned16(args);
    static const int sizes_wide[] = {8, 4, 2, 1}, sizes_any[] = {4, 1};
    const int *sizes = wide ? sizes_wide : sizes_any;
    for (int64_t done = 0, i = 0; done < x->dim[0]; i++) {
        int64_t tiles = (x->dim[0] - done) / sizes[i];
        if (!tiles)
            continue;
        lt_cuda_linear a = {.x = x->addr + (uint64_t)(done * x->stride[0]), .w = w->addr, .y = y->addr + (uint64_t)(done * y->stride[0]),
                            .x_stride = x->stride[0], .w_stride = w->stride[0], .y_stride = y->stride[0],
                            .rows = (int32_t)w->dim[0], .cols = (int32_t)w->dim[1], .tiles = (int32_t)tiles};
        char name[48];
        snprintf(name, sizeof name, "linear_%s_%s%d", t->name, wide ? "" : "any_", sizes[i]);
        int64_t rows = quant ? 4 * WARPS : WARPS; /* of a block: four groups of lanes a warp, or one row */
        lt_cuda_dim grid = {(uint32_t)tiles * lt__cuda_blocks(w->dim[0], rows), 1, 1}, block = {32 * WARPS, 1, 1};
        lt_status s = lt__cuda_launch(dev, "linear", name, grid, block, 0, stream, (void *[]){&a}, args, err);
        if (s != LT_OK)
            return s;
        done += tiles * sizes[i];
    }
    return LT_OK;
}

static bool accepts_linear(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    *why = "a product of over two billion blocks, rows or columns";
    int64_t blocks = (a->src[1].dim[0] + 3) / 4;
    return a->src[1].dim[0] < INT32_MAX && a->src[1].dim[1] < INT32_MAX && (a->src[0].dim[0] == 0 || blocks < INT32_MAX / a->src[0].dim[0]);
}

const lt_cuda_row lt__cuda_rows_linear[] = {{LT_OP_LINEAR, accepts_linear, launch_linear, NULL}};
const size_t lt__cuda_rows_linear_n = 1;
