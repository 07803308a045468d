/* launch_fused.c - the family of fuse.c: its kernels run for neighbours of a list, never for an op alone. */
#include "backend/cuda/flash.h"

const lt_cuda_row lt__cuda_rows_fused[] = {{LT_OP_COUNT, NULL, NULL, NULL}};
const size_t lt__cuda_rows_fused_n = 0;

/* A page's rows of K and V, each row 16 bytes longer. */
static uint32_t token_bytes(const lt_op_args *args) { return 2 * LT_KV_PAGE * (2 * args->params.ATTENTION.kv.head_dim + 16); }

bool lt__cuda_token_ok(const lt_cuda_device *dev, const lt_op_args *args)
{
    const lt_cuda_props *props = lt__cuda_device_props(dev);
    const lt_attention_params *p = &args->params.ATTENTION;
    return !args->prefill && !(p->cap > 0) /* sinks are the merge's */ && props->major >= 8 && args->src[0].dim[0] == 1 && p->kv.dtype == LT_DTYPE_F16 && p->heads == p->kv.kv_heads &&
           p->kv.head_dim % 8 == 0 && p->kv.head_dim <= 256 && token_bytes(args) + 6144 <= props->shared_optin_bytes &&
           (args->src[1].addr | p->kv.page_bytes | p->kv.k_offset | p->kv.v_offset) % 16 == 0 && lt__cuda_attention_parts(dev, args) > 1;
}

lt_status lt__cuda_token(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_heads *heads, lt_err *err)
{
    lt_cuda_token t = {.a = lt__cuda_attention_args(dev, args).a, .h = *heads};
    t.a.parts = lt__cuda_attention_parts(dev, args);
    lt_cuda_dim grid = {(uint32_t)t.a.heads, 1, (uint32_t)t.a.parts}, block = {256, 1, 1};
    return lt__cuda_launch(dev, "fused", "attend_token", grid, block, token_bytes(args), stream, (void *[]){&t}, args, err);
}

lt_status lt__cuda_merge_quantize(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_view *q, bool keep, lt_err *err)
{
    lt_cuda_capped c = lt__cuda_attention_args(dev, args);
    lt_cuda_merge_sinks s = {.m = {.a = c.a, .q = q ? q->addr : 0, .q_token = q ? q->stride[0] : 0}, .sinks = c.sinks};
    lt_cuda_attention *a = &s.m.a;
    a->parts = lt__cuda_attention_parts(dev, args);
    if (!keep)
        a->y = 0;
    lt_cuda_dim grid = {(uint32_t)a->heads, (uint32_t)a->tokens, 1}, block = {(uint32_t)lt__round_up((uint32_t)a->kv.head_dim, 32), 1, 1};
    return lt__cuda_launch(dev, "fused", s.sinks ? "merge_quantize_sinks" : "merge_quantize", grid, block, 0, stream, (void *[]){&s}, args, err);
}
