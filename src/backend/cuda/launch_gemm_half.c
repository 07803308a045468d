/* launch_gemm_half.c - LINEAR of a prompt and an f16 or bf16 weight by tensor cores: warpgroups on Hopper, mma elsewhere. */
#include <stdio.h>

#include "backend/cuda/launch.h"

#define ROWS 128  /* of a weight a block */
#define STAGE 128 /* bytes of a row in a stage: 64 halves */

static bool brain(const lt_op_args *a) { return a->src[1].dtype == LT_DTYPE_BF16; }
static uint64_t row_bytes(const lt_op_args *a) { return lt__round_up(2 * (uint64_t)a->src[1].dim[1], 16); }

static bool accepts_half(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    *why = "the card has no tensor cores with asynchronous copies (compute capability 8.0)";
    if (lt__cuda_device_props(dev)->major < 8)
        return false;
    *why = "not a prompt's product with f16 or bf16 rows of 16-byte pieces";
    return a->prefill && (w->dtype == LT_DTYPE_F16 || w->dtype == LT_DTYPE_BF16) && w->dim[1] % 8 == 0 && ((w->stride[0] | x->stride[0]) & 15) == 0 &&
           w->dim[1] < INT32_MAX / 64 && w->dim[0] > 0 && x->dim[0] < INT32_MAX / 64 &&
           (w->dim[0] + ROWS - 1) / ROWS < INT32_MAX / ((x->dim[0] + 31) / 32 + 1);
}

static bool accepts_sm90a(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    const lt_cuda_props *p = lt__cuda_device_props(dev);
    *why = "not a Hopper, or a build without its kernels";
    return p->sm90a && lt__cuda_has_family("gemm_sm90a") && accepts_half(dev, a, why);
}

static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *a)
{
    (void)dev;
    uint64_t tokens = (uint64_t)a->src[0].dim[0];
    return lt__round_up(tokens * row_bytes(a), 256) * (brain(a) ? 2 : 1) + lt__round_up(4 * tokens, 256);
}

/* halved: the scratch holds this x already, from the launch before. */
typedef struct way { const char *family, *name; int tile; uint32_t threads, stages; bool halved; } way;

static lt_status launch_way(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const way *how, lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *y = &args->dst;
    if (!x->dim[0])
        return LT_OK;
    uint64_t part = lt__round_up((uint64_t)x->dim[0] * row_bytes(args), 256), scale = args->scratch + part * (brain(args) ? 2 : 1);
    lt_cuda_halve h = {.x = x->addr, .y = args->scratch, .y_low = args->scratch + part, .scale = scale, .x_stride = x->stride[0],
                       .y_stride = (int64_t)row_bytes(args), .cols = (int32_t)w->dim[1], .brain = brain(args)};
    lt_cuda_dim grid = {(uint32_t)x->dim[0], 1, 1}, block = {256, 1, 1};
    lt_status s = how->halved ? LT_OK : lt__cuda_launch(dev, how->family, "gemm_halve", grid, block, 0, stream, (void *[]){&h}, args, err);
    if (s != LT_OK)
        return s;
    lt_cuda_gemm a = {.x = h.y, .x_low = h.y_low, .scale = scale, .w = w->addr, .y = y->addr, .x_stride = h.y_stride,
                      .w_stride = w->stride[0], .y_stride = y->stride[0], .rows = (int32_t)w->dim[0], .cols = (int32_t)w->dim[1],
                      .tiles = (int32_t)((x->dim[0] + how->tile - 1) / how->tile), .tokens = (int32_t)x->dim[0]};
    char name[40];
    snprintf(name, sizeof name, "%s_%s_%d", how->name, lt_dtype_get(w->dtype)->name, how->tile);
    grid.x = (uint32_t)a.tiles * lt__cuda_blocks(w->dim[0], ROWS);
    block.x = how->threads;
    uint32_t bytes = STAGE * (uint32_t)(ROWS + how->tile * (brain(args) ? 2 : 1)) * how->stages + 1024; /* to align by */
    return lt__cuda_launch(dev, how->family, name, grid, block, bytes, stream, (void *[]){&a}, args, err);
}

/* Tiles of one kind give the same bits, so the number of tokens may choose; a card of little shared memory has the narrow one only. */
static lt_status launch_mma(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, bool halved, lt_err *err)
{
    const way wide = {"gemm_half", "gemm", 128, 256, LT_GEMM_MMA_STAGES, halved}, narrow = {"gemm_half", "gemm", 32, 64, LT_GEMM_MMA_STAGES, halved};
    uint32_t bytes = STAGE * (uint32_t)(ROWS + 128 * (brain(args) ? 2 : 1)) * LT_GEMM_MMA_STAGES + 1024;
    bool fits = bytes <= lt__cuda_device_props(dev)->shared_optin_bytes;
    return launch_way(dev, stream, args, args->src[0].dim[0] > 32 && fits ? &wide : &narrow, err);
}

static lt_status launch_wgmma(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, bool halved, lt_err *err)
{
    const uint32_t stages = brain(args) ? LT_GEMM_WG_BF16_STAGES : LT_GEMM_WG_F16_STAGES;
    const way wide = {"gemm_sm90a", "gemm_wg", 128, 256, stages, halved}, narrow = {"gemm_sm90a", "gemm_wg", 64, 256, stages, halved};
    return launch_way(dev, stream, args, args->src[0].dim[0] > 64 ? &wide : &narrow, err);
}

static lt_status launch_half(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    return launch_mma(dev, stream, args, false, err);
}

static lt_status launch_sm90a(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    return launch_wgmma(dev, stream, args, false, err);
}

bool lt__cuda_halves_ok(const lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
{
    const lt_view *x = &args[0]->src[0];
    for (uint32_t i = 0; i < n; i++) {
        const lt_view *xi = &args[i]->src[0];
        const char *why;
        if (args[i]->op != LT_OP_LINEAR || !accepts_half(dev, args[i], &why) || args[i]->src[1].dtype != args[0]->src[1].dtype ||
            args[i]->scratch != args[0]->scratch || xi->addr != x->addr || xi->dim[0] != x->dim[0] || xi->stride[0] != x->stride[0] ||
            xi->dim[1] != x->dim[1])
            return false;
        /* an output over x would change what the next one reads */
        const lt_view *y = &args[i]->dst;
        if (y->addr < x->addr + (uint64_t)(x->dim[0] * x->stride[0]) && x->addr < y->addr + (uint64_t)(y->dim[0] * y->stride[0]))
            return false;
    }
    return true;
}

lt_status lt__cuda_halves(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, lt_err *err)
{
    const char *why;
    bool hopper = accepts_sm90a(dev, args[0], &why);
    lt_status s = LT_OK;
    for (uint32_t i = 0; s == LT_OK && i < n; i++)
        s = hopper ? launch_wgmma(dev, stream, args[i], i > 0, err) : launch_mma(dev, stream, args[i], i > 0, err);
    return s;
}

const lt_cuda_row lt__cuda_rows_gemm_half[] = {{LT_OP_LINEAR, accepts_half, launch_half, scratch}};
const size_t lt__cuda_rows_gemm_half_n = 1;
const lt_cuda_row lt__cuda_rows_gemm_sm90a[] = {{LT_OP_LINEAR, accepts_sm90a, launch_sm90a, scratch}};
const size_t lt__cuda_rows_gemm_sm90a_n = 1;
