/* launch_attention.c - ATTENTION: few tokens spread their pages over blocks, many walk them. */
#include "backend/cuda/launch.h"

/* Pages a query can see at most. */
static int64_t visible_pages(const lt_op_args *args)
{
    int64_t pages = args->src[3].dim[0], w = args->params.ATTENTION.window;
    int64_t in_window = w ? (w + LT_KV_PAGE - 2) / LT_KV_PAGE + 1 : pages;
    return in_window < pages ? in_window : pages;
}

/* Splitting pays while tokens and heads alone leave the card half empty. */
static int64_t parts_of(const lt_cuda_device *dev, const lt_op_args *args)
{
    int64_t blocks = args->src[0].dim[0] * args->params.ATTENTION.heads;
    return blocks < 2 * lt__cuda_device_props(dev)->sm_count ? visible_pages(args) : 1;
}

/* Of this many tokens or fewer: fewer may split where more don't. */
static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *args)
{
    int64_t heads = args->params.ATTENTION.heads, parts = visible_pages(args);
    int64_t most = (2 * lt__cuda_device_props(dev)->sm_count - 1) / heads; /* tokens that still split */
    int64_t tokens = args->src[0].dim[0] < most ? args->src[0].dim[0] : most;
    return parts <= 1 ? 0 : (uint64_t)(tokens * heads * parts) * (2 + args->params.ATTENTION.kv.head_dim) * sizeof(float);
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    (void)dev;
    *why = "over 65535 tokens in one pass, or heads of over 1024 elements";
    return args->src[0].dim[0] <= 65535 && args->params.ATTENTION.kv.head_dim <= 1024;
}

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    int64_t parts = parts_of(dev, args);
    lt_cuda_attention a = {.q = args->src[0].addr, .cache = args->src[1].addr, .pos = args->src[2].addr, .table = args->src[3].addr,
                           .y = args->dst.addr, .scratch = args->scratch, .q_token = args->src[0].stride[0],
                           .q_head = args->src[0].stride[1], .y_token = args->dst.stride[0], .y_head = args->dst.stride[1],
                           .tokens = (int32_t)args->src[0].dim[0], .heads = (int32_t)p->heads, .window = (int32_t)p->window,
                           .parts = (int32_t)(args->scratch ? parts : 1), .scale = p->scale};
    lt__cuda_kv_fill(&a.kv, dev, args, &p->kv, &args->src[1]);
    if (!a.tokens)
        return LT_OK;
    lt_cuda_dim grid = {(uint32_t)a.heads, (uint32_t)a.tokens, (uint32_t)a.parts}, block = {256, 1, 1};
    lt_status s = lt__cuda_launch(dev, "attention", "attention", grid, block, 0, stream, (void *[]){&a}, args, err);
    if (s == LT_OK && a.parts > 1) {
        grid.z = 1;
        s = lt__cuda_launch(dev, "attention", "attention_merge", grid, block, 0, stream, (void *[]){&a}, args, err);
    }
    return s;
}

const lt_cuda_row lt__cuda_rows_attention[] = {{LT_OP_ATTENTION, accepts, launch, scratch}};
const size_t lt__cuda_rows_attention_n = 1;
