/* launch_gemm_half.c - LINEAR and EXPERT_LINEAR of a prompt and an f16 or bf16 weight by tensor cores: warpgroups on Hopper, mma elsewhere. */
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

/* --- experts ------------------------------------------------------------------------------ */

static bool accepts_experts(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    *why = "the card has no tensor cores with asynchronous copies (compute capability 8.0)";
    if (lt__cuda_device_props(dev)->major < 8 || !lt__cuda_expert_sizes_ok(a, why))
        return false;
    *why = "not a prompt's product with f16 or bf16 rows of 16-byte pieces";
    if (!a->prefill || (w->dtype != LT_DTYPE_F16 && w->dtype != LT_DTYPE_BF16) || w->dim[2] % 8 || w->dim[2] >= INT32_MAX / 64 ||
        ((w->stride[0] | w->stride[1] | x->stride[0] | (x->ndim == 3 ? x->stride[1] : 0)) & 15))
        return false;
    return (w->dim[1] + ROWS - 1) / ROWS < INT32_MAX / (LT_CUDA_PAIRS / 32 + w->dim[0]);
}

/* Rows of x of a turn: a token's, or each pair's own. */
static int64_t rows_of_x(const lt_op_args *a) { return lt__cuda_turn(a) * (a->src[0].ndim == 3 ? a->src[0].dim[1] : 1); }

typedef struct expert_places { uint64_t row_bytes, low, scale, list; } expert_places;

static expert_places places_of(const lt_op_args *a)
{
    expert_places p = {.row_bytes = lt__round_up(2 * (uint64_t)a->src[1].dim[2], 16)};
    uint64_t rows = (uint64_t)rows_of_x(a), part = lt__round_up(rows * p.row_bytes, 256);
    p.low = a->scratch + part;
    p.scale = p.low + (brain(a) ? part : 0);
    p.list = p.scale + lt__round_up(4 * rows, 256);
    return p;
}

/* As for the narrow tile, of which there are more. */
static uint64_t scratch_experts(const lt_cuda_device *dev, const lt_op_args *a)
{
    (void)dev;
    return places_of(a).list - a->scratch + lt__cuda_group_pairs(a, 0, 0, 32, 1).bytes;
}

static lt_status give_expert_halves(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *y = &args->dst;
    const expert_places at = places_of(args);
    const uint32_t wide_bytes = STAGE * (uint32_t)(ROWS + 128 * (brain(args) ? 2 : 1)) * LT_GEMM_MMA_STAGES + 1024;
    bool wide = x->dim[0] * y->dim[1] > 32 * w->dim[0] && wide_bytes + 128 * 8 <= lt__cuda_device_props(dev)->shared_optin_bytes;
    const int tile = wide ? 128 : 32;
    lt_cuda_grouped g = lt__cuda_group_pairs(args, at.list, 0, tile, 1);
    lt_status s = lt__cuda_give_list(dev, stream, args, &g, err);
    if (s != LT_OK)
        return s;
    lt_cuda_halve h = {.x = x->addr, .y = args->scratch, .y_low = at.low, .scale = at.scale, .x_stride = x->stride[0],
                       .y_stride = (int64_t)at.row_bytes, .cols = (int32_t)w->dim[2], .brain = brain(args)};
    int64_t x_pick = x->ndim == 3 ? x->stride[1] : 0;
    lt_cuda_dim grid = {(uint32_t)x->dim[0], x->ndim == 3 ? (uint32_t)x->dim[1] : 1, 1}, block = {256, 1, 1};
    s = lt__cuda_launch(dev, "experts_half", "expert_halve", grid, block, 0, stream, (void *[]){&h, &x_pick}, args, err);
    if (s != LT_OK)
        return s;
    lt_cuda_expert_gemm a = {.a = {.x = h.y, .x_low = h.y_low, .scale = h.scale, .w = w->addr, .y = y->addr, .x_stride = h.y_stride,
                                   .w_stride = w->stride[1], .y_stride = y->stride[0], .rows = (int32_t)w->dim[1], .cols = (int32_t)w->dim[2],
                                   .tiles = (int32_t)lt__cuda_blocks(w->dim[1], ROWS)},
                             .pairs = g.list.pairs, .tiles = g.list.many, .w_expert = w->stride[0], .y_pick = y->stride[1], .picks = g.list.picks,
                             .x_pairs = x->ndim == 3};
    char name[40];
    snprintf(name, sizeof name, "expert_gemm_%s_%d", lt_dtype_get(w->dtype)->name, tile);
    grid = (lt_cuda_dim){(uint32_t)(a.a.tiles * g.list.many_slots), 1, 1};
    block.x = wide ? 256 : 64;
    uint32_t bytes = wide ? wide_bytes : STAGE * (uint32_t)(ROWS + 32 * (brain(args) ? 2 : 1)) * LT_GEMM_MMA_STAGES + 1024;
    return lt__cuda_launch(dev, "experts_half", name, grid, block, bytes, stream, (void *[]){&a}, args, err);
}

static lt_status launch_experts(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const int64_t turn = lt__cuda_turn(args);
    lt_status s = LT_OK;
    for (int64_t done = 0; s == LT_OK && done < args->dst.dim[0]; done += turn) {
        lt_op_args part = lt__cuda_some_tokens(args, done, turn);
        s = give_expert_halves(dev, stream, &part, err);
    }
    return s;
}

const lt_cuda_row lt__cuda_rows_experts_half[] = {{LT_OP_EXPERT_LINEAR, accepts_experts, launch_experts, scratch_experts}};
const size_t lt__cuda_rows_experts_half_n = 1;
