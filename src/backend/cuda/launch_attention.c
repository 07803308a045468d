/* launch_attention.c - ATTENTION to the bit of docs/arithmetic.md: few tokens spread their pages over blocks, many
 * walk them. An F16 cache goes through shared memory, a block for up to eight heads of a kv head. */
#include <stdio.h>

#include "backend/cuda/flash.h"
#include "backend/cuda/kernels/attention_shape.h"

#define THREADS 256

typedef struct shape { uint32_t heads /* of a block; 0: one, the plain kernel */, blocks /* of a token */, bytes; } shape;

static shape shape_of(const lt_cuda_device *dev, const lt_op_args *args)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    const lt_cuda_props *props = lt__cuda_device_props(dev);
    uint32_t group = p->heads / p->kv.kv_heads, heads = group == 1 ? 1 : group == 2 ? 2 : group <= 4 ? 4 : 8, dim = p->kv.head_dim;
    uint32_t static_bytes = heads * (LT_ATTENTION_DIM + LT_KV_PAGE + 2 + THREADS / 32) * 4 + 64;
    if (props->major < 8 || p->kv.dtype != LT_DTYPE_F16 || dim % 8 || dim > LT_ATTENTION_DIM ||
        (p->kv.page_bytes | p->kv.k_offset | p->kv.v_offset) % 16 || LT_ATTENTION_BYTES(dim) + static_bytes > props->shared_optin_bytes)
        return (shape){0, p->heads, 0};
    return (shape){heads, (group + heads - 1) / heads * p->kv.kv_heads, LT_ATTENTION_BYTES(dim)};
}

/* Pages a query can see at most. */
static int64_t visible_pages(const lt_op_args *args)
{
    int64_t pages = args->src[3].dim[0], w = args->params.ATTENTION.window;
    int64_t in_window = w ? (w + LT_KV_PAGE - 2) / LT_KV_PAGE + 1 : pages;
    return in_window < pages ? in_window : pages;
}

/* Splitting pays while tokens and heads alone leave the card half empty: tokens that still do. */
static int64_t split_tokens(const lt_cuda_device *dev, const shape *s)
{
    return (2 * lt__cuda_device_props(dev)->sm_count - 1) / (int64_t)s->blocks;
}

/* Of this many tokens or fewer: fewer may split where more don't. */
static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *args)
{
    shape s = shape_of(dev, args);
    int64_t heads = args->params.ATTENTION.heads, parts = visible_pages(args), most = split_tokens(dev, &s);
    int64_t tokens = args->src[0].dim[0] < most ? args->src[0].dim[0] : most;
    return parts <= 1 ? 0 : (uint64_t)(tokens * heads * parts) * (2 + args->params.ATTENTION.kv.head_dim) * sizeof(float);
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    (void)dev;
    *why = "sage attention needs sm_90, an F16 or Q8_0 cache, and heads of 64, 128 or 256 elements";
    if (args->prefill && args->params.ATTENTION.how == LT_ATTENTION_SAGE)
        return false;
    *why = "over 65535 tokens in one pass, or heads of over 1024 elements";
    return args->src[0].dim[0] <= 65535 && args->params.ATTENTION.kv.head_dim <= 1024;
}

/* As launched, by where the cache lies. */
static shape shape_at(const lt_cuda_device *dev, const lt_op_args *args)
{
    return args->src[1].addr % 16 ? (shape){0, args->params.ATTENTION.heads, 0} : shape_of(dev, args);
}

int32_t lt__cuda_attention_parts(const lt_cuda_device *dev, const lt_op_args *args)
{
    shape s = shape_at(dev, args);
    return args->scratch && args->src[0].dim[0] <= split_tokens(dev, &s) ? (int32_t)visible_pages(args) : 1;
}

lt_status lt__cuda_attention_spread(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    shape s = shape_at(dev, args);
    lt_cuda_capped c = lt__cuda_attention_args(dev, args);
    c.a.parts = lt__cuda_attention_parts(dev, args);
    char name[32] = "attention";
    if (s.heads)
        snprintf(name, sizeof name, "attention_f16_%u", s.heads);
    lt_cuda_dim grid = {s.blocks, (uint32_t)c.a.tokens, (uint32_t)c.a.parts}, block = {THREADS, 1, 1};
    return lt__cuda_launch(dev, lt__cuda_attention_family(args), name, grid, block, s.bytes, stream, (void *[]){&c}, args, err);
}

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    lt_cuda_capped c = lt__cuda_attention_args(dev, args);
    c.a.parts = lt__cuda_attention_parts(dev, args);
    lt_status st = c.a.tokens ? lt__cuda_attention_spread(dev, stream, args, err) : LT_OK;
    if (st == LT_OK && c.a.tokens && c.a.parts > 1) {
        lt_cuda_dim grid = {(uint32_t)c.a.heads, (uint32_t)c.a.tokens, 1}, block = {THREADS, 1, 1};
        st = lt__cuda_launch(dev, lt__cuda_attention_family(args), "attention_merge", grid, block, 0, stream, (void *[]){&c}, args, err);
    }
    return st;
}

static bool accepts_plain(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return !lt__cuda_is_capped(args) && accepts(dev, args, why);
}

static bool accepts_capped(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return lt__cuda_is_capped(args) && accepts(dev, args, why);
}

const lt_cuda_row lt__cuda_rows_attention[] = {{LT_OP_ATTENTION, accepts_plain, launch, scratch}};
const size_t lt__cuda_rows_attention_n = 1;
const lt_cuda_row lt__cuda_rows_attention_capped[] = {{LT_OP_ATTENTION, accepts_capped, launch, scratch}};
const size_t lt__cuda_rows_attention_capped_n = 1;
