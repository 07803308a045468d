/* launch_decode.c - ATTENTION of few queries over an F16 cache: a block a page, then the pages merged. */
#include "backend/cuda/launch.h"

/* Pages a query can see at most. */
static int64_t visible_pages(const lt_op_args *args)
{
    int64_t pages = args->src[3].dim[0], w = args->params.ATTENTION.window;
    int64_t in_window = w ? (w + LT_KV_PAGE - 2) / LT_KV_PAGE + 1 : pages;
    return in_window < pages ? in_window : pages;
}

/* A page's rows of K and V, each row 16 bytes longer. Without asking a block has 48 KiB for this and the kernel's arrays:
 * what comes near is made to ask. */
static uint32_t shared_bytes(const lt_op_args *args)
{
    uint32_t bytes = 2 * LT_KV_PAGE * (2 * args->params.ATTENTION.kv.head_dim + 16);
    return bytes > (40u << 10) && bytes <= (48u << 10) ? (48u << 10) + 16 : bytes;
}

/* More queries fill the card with a block each, and read a page more often than they need. */
static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    const lt_cuda_props *props = lt__cuda_device_props(dev);
    const lt_kv_layout *kv = &args->params.ATTENTION.kv;
    *why = "few queries over an F16 cache of rows of 16 bytes, and heads of at most 256 elements";
    return !args->prefill && kv->dtype == LT_DTYPE_F16 && kv->head_dim % 8 == 0 && kv->head_dim <= 256 && props->major >= 8 &&
           (kv->page_bytes | kv->k_offset | kv->v_offset) % 16 == 0 && visible_pages(args) <= 65535 &&
           shared_bytes(args) + 6144 <= props->shared_optin_bytes &&
           args->src[0].dim[0] * args->params.ATTENTION.heads < 2 * props->sm_count;
}

static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *args)
{
    (void)dev;
    const lt_attention_params *p = &args->params.ATTENTION;
    return (uint64_t)(args->src[0].dim[0] * p->heads * visible_pages(args)) * (2 + p->kv.head_dim) * sizeof(float);
}

bool lt__cuda_decodes(const lt_cuda_device *dev, const lt_op_args *args)
{
    const char *why;
    return accepts(dev, args, &why) && args->src[1].addr % 16 == 0 && args->scratch && args->src[0].dim[0] > 0;
}

lt_status lt__cuda_decode(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_heads *whole, const lt_view *q,
                          bool keep, lt_err *err)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    lt_cuda_attention a = {.q = args->src[0].addr, .cache = args->src[1].addr, .pos = args->src[2].addr, .table = args->src[3].addr,
                           .y = args->dst.addr, .scratch = args->scratch, .q_token = args->src[0].stride[0],
                           .q_head = args->src[0].stride[1], .y_token = args->dst.stride[0], .y_head = args->dst.stride[1],
                           .tokens = (int32_t)args->src[0].dim[0], .heads = (int32_t)p->heads, .window = (int32_t)p->window,
                           .parts = (int32_t)visible_pages(args), .scale = p->scale};
    lt__cuda_kv_fill(&a.kv, dev, args, &p->kv, &args->src[1]);
    lt_cuda_decode both = {.a = a};
    if (whole)
        both.h = *whole;
    lt_cuda_dim grid = {(uint32_t)a.heads, (uint32_t)a.tokens, (uint32_t)a.parts}, block = {256, 1, 1};
    lt_status s = lt__cuda_launch(dev, "decode", whole ? "decode_token" : "decode_page", grid, block, shared_bytes(args), stream,
                                  (void *[]){&both}, args, err);
    if (s != LT_OK)
        return s;
    lt_cuda_merge m = {.a = a, .q = q ? q->addr : 0, .q_token = q ? q->stride[0] : 0};
    if (!keep)
        m.a.y = 0;
    grid.z = 1;
    block.x = (uint32_t)lt__round_up(p->kv.head_dim, 32);
    return lt__cuda_launch(dev, "decode", "decode_merge", grid, block, 0, stream, (void *[]){&m}, args, err);
}

/* Where the cache lies oddly, the kernels that take anything take it. */
static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    if (!lt__cuda_decodes(dev, args))
        return lt__cuda_rows_attention[0].launch(dev, stream, args, err);
    return lt__cuda_decode(dev, stream, args, NULL, NULL, true, err);
}

const lt_cuda_row lt__cuda_rows_decode[] = {{LT_OP_ATTENTION, accepts, launch, scratch}};
const size_t lt__cuda_rows_decode_n = 1;
