/* launch_flash.c - ATTENTION over a prompt on tensor cores, sm_80 and later. What it refuses (an F32 cache, head
 * sizes of no kernel, Turing) is computed by launch_attention.c on the device, to the bit of every other device. */
#include "backend/cuda/flash.h"

static const lt_cuda_flash kernels[] = {
#define FLASH(name, D, BN, MT, WARPS, QREG, BLOCKS) {#name, D, 16 * MT * WARPS, 32 * WARPS, LT_FLASH_BYTES(D, BN, 16 * MT * WARPS, QREG), 0, NULL, false},
#include "backend/cuda/kernels/flash.def"
#undef FLASH
};
#define CAP_MOST 1000 /* 2e-7 of it is the error of a capped score */
#define N (sizeof kernels / sizeof *kernels)

const lt_cuda_flash *lt__cuda_flash_find(const lt_cuda_flash *table, size_t n, lt_attention how, const lt_cuda_device *dev,
                                         const lt_op_args *args, const char **why)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    *why = "a soft cap of over 1000";
    if (p->cap > CAP_MOST)
        return NULL;
    *why = "queries or results that lie off multiples of 16 bytes";
    const lt_view *q = &args->src[0], *y = &args->dst;
    if ((q->addr | y->addr | (uint64_t)(q->stride[0] | q->stride[1] | y->stride[0] | y->stride[1])) % 16)
        return NULL;
    *why = "only rows of a prompt, over an F16 or Q8_0 cache, with a scale above zero";
    if (!args->prefill || p->how != how || !(p->scale > 0) || (p->kv.page_bytes | p->kv.k_offset | p->kv.v_offset) % 16)
        return NULL;
    if (p->kv.dtype != LT_DTYPE_F16 && p->kv.dtype != LT_DTYPE_Q8_0)
        return NULL;
    *why = "no kernel for this size of heads";
    for (size_t i = 0; i < n; i++)
        if (table[i].head_dim == p->kv.head_dim && table[i].bytes <= lt__cuda_device_props(dev)->shared_optin_bytes) {
            uint64_t rows = (uint64_t)args->src[0].dim[0] * (p->heads / p->kv.kv_heads);
            *why = "too many tokens in one pass";
            return rows <= UINT64_C(65535) * table[i].rows ? &table[i] : NULL;
        }
    return NULL;
}

lt_cuda_capped lt__cuda_attention_args(const lt_cuda_device *dev, const lt_op_args *args)
{
    const lt_attention_params *p = &args->params.ATTENTION;
    lt_cuda_attention a = {.q = args->src[0].addr, .cache = args->src[1].addr, .pos = args->src[2].addr, .table = args->src[3].addr,
                           .y = args->dst.addr, .scratch = args->scratch, .q_token = args->src[0].stride[0],
                           .q_head = args->src[0].stride[1], .y_token = args->dst.stride[0], .y_head = args->dst.stride[1],
                           .tokens = (int32_t)args->src[0].dim[0], .heads = (int32_t)p->heads, .window = (int32_t)p->window,
                           .parts = 1, .scale = p->scale, .cap = p->cap};
    lt__cuda_kv_fill(&a.kv, dev, args, &p->kv, &args->src[1]);
    return (lt_cuda_capped){a, args->n_src > 4 ? args->src[4].addr : 0};
}

static lt_status encode(const lt_cuda_flash *kernel, lt_cuda_device *dev, const lt_cuda_attention *a, lt_cuda_flash_maps *maps,
                        const char *name, lt_err *err)
{
    uint64_t n[3] = {(uint64_t)a->kv.head_dim, (uint64_t)a->kv.kv_heads * LT_KV_PAGE, (uint64_t)a->kv.limit};
    uint64_t stride[2] = {a->kv.row_bytes, a->kv.page_bytes};
    lt_status s = lt__cuda_tensor_encode(dev, &maps->k, a->cache + a->kv.k_offset, n, stride, 64, kernel->keys, name, err);
    if (s == LT_OK)
        s = lt__cuda_tensor_encode(dev, &maps->v, a->cache + a->kv.v_offset, n, stride, 64, kernel->keys, name, err);
    return s;
}

/* Int8 keys in scratch: [kv head][place in the table x position][pitch], then their scales. */
static lt_status encode_int8(const lt_cuda_flash *kernel, lt_cuda_device *dev, const lt_cuda_attention *a, lt_cuda_flash_maps *maps,
                             const char *name, lt_err *err)
{
    uint64_t pitch = LT_SAGE_PITCH(kernel->head_dim), keys = (uint64_t)a->kv.pages * LT_KV_PAGE;
    uint64_t n[3] = {pitch / 2, keys, (uint64_t)a->kv.kv_heads}, stride[2] = {pitch, keys * pitch};
    return lt__cuda_tensor_encode(dev, &maps->k, a->scratch, n, stride, 64, kernel->keys, name, err);
}

static uint64_t expanded_bytes(const lt_kv_layout *kv, uint64_t pages)
{
    uint64_t page = (uint64_t)kv->kv_heads * LT_KV_PAGE * kv->head_dim * 4;
    return kv->dtype == LT_DTYPE_F16 ? 0 : lt__round_up(pages * (page + sizeof(int32_t)), 256);
}

/* A Q8_0 cache as F16 where the table leads to it, and int8 keys and their scales, by place in the table. */
uint64_t lt__cuda_flash_scratch(const lt_cuda_flash *kernel, const lt_op_args *args)
{
    const lt_kv_layout *kv = &args->params.ATTENTION.kv;
    uint64_t pages = (uint64_t)args->src[3].dim[0];
    uint64_t keys = kernel->sage ? pages * LT_KV_PAGE * kv->kv_heads * (LT_SAGE_PITCH(kv->head_dim) + sizeof(float)) : 0;
    return expanded_bytes(kv, pages) + keys;
}

static lt_status expand(lt_cuda_device *dev, CUstream stream, lt_cuda_attention *a, const lt_op_args *args, lt_err *err)
{
    uint32_t pages = (uint32_t)a->kv.pages;
    lt_cuda_dim grid = {pages, (uint32_t)a->kv.kv_heads, 2}, block = {256, 1, 1};
    lt_status s = lt__cuda_launch(dev, lt__cuda_attention_family(args), "attention_expand", grid, block, 0, stream, (void *[]){a}, args, err);
    a->kv.row_bytes = (uint64_t)a->kv.head_dim * 2;
    a->kv.v_offset = (uint64_t)a->kv.kv_heads * LT_KV_PAGE * a->kv.row_bytes;
    a->kv.k_offset = 0, a->kv.page_bytes = 2 * a->kv.v_offset, a->kv.dtype = 1, a->kv.limit = a->kv.pages;
    a->cache = a->scratch;
    a->table = a->scratch + pages * a->kv.page_bytes;
    a->scratch += expanded_bytes(&args->params.ATTENTION.kv, pages);
    return s;
}

lt_status lt__cuda_flash_launch(const lt_cuda_flash *kernel, const char *family, lt_cuda_device *dev, CUstream stream,
                                const lt_op_args *args, lt_err *err)
{
    lt_cuda_capped c = lt__cuda_attention_args(dev, args);
    lt_cuda_attention *a = &c.a;
    lt_cuda_flash_maps maps = {0};
    const char *name = args->name ? args->name : "attention";
    if (a->cache % 16)
        return lt__fail(err, LT_E_INVALID, "%s: the cache is at %#llx, expected a multiple of 16", name, (unsigned long long)a->cache);
    if (!a->tokens)
        return LT_OK;
    lt_status s = args->params.ATTENTION.kv.dtype == LT_DTYPE_Q8_0 ? expand(dev, stream, a, args, err) : LT_OK;
    if (s == LT_OK && kernel->keys)
        s = encode(kernel, dev, a, &maps, name, err);
    lt_cuda_dim grid = {(uint32_t)a->kv.pages, (uint32_t)a->kv.kv_heads, 1}, block = {256, 1, 1};
    if (s == LT_OK && kernel->sage)
        s = encode_int8(kernel, dev, a, &maps, name, err);
    if (s == LT_OK && kernel->sage)
        s = lt__cuda_launch(dev, family, kernel->sage, grid, block, 0, stream, (void *[]){&c}, args, err);
    if (s != LT_OK)
        return s;
    int64_t rows = (int64_t)a->tokens * (a->heads / a->kv.kv_heads);
    grid = (lt_cuda_dim){(uint32_t)a->kv.kv_heads, lt__cuda_blocks(rows, kernel->rows), 1};
    if (kernel->items) {
        uint64_t items = (uint64_t)grid.x * grid.y, sms = (uint64_t)lt__cuda_device_props(dev)->sm_count;
        grid = (lt_cuda_dim){(uint32_t)lt__min_u64(items, sms), 1, 1};
    }
    block.x = kernel->threads;
    return lt__cuda_launch(dev, family, kernel->name, grid, block, kernel->bytes, stream, (void *[]){&c, &maps}, args, err);
}

static const lt_cuda_flash *find(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    *why = "tensor cores of sm_80 and later";
    return lt__cuda_device_props(dev)->major >= 8 ? lt__cuda_flash_find(kernels, N, LT_ATTENTION_FLASH, dev, args, why) : NULL;
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return !lt__cuda_is_capped(args) && find(dev, args, why) != NULL;
}

static bool accepts_capped(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return lt__cuda_is_capped(args) && find(dev, args, why) != NULL;
}

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const char *why, *family = lt__cuda_is_capped(args) ? "flash_capped" : "flash";
    return lt__cuda_flash_launch(find(dev, args, &why), family, dev, stream, args, err);
}

static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *args)
{
    const char *why;
    return lt__cuda_flash_scratch(find(dev, args, &why), args);
}

const lt_cuda_row lt__cuda_rows_flash[] = {{LT_OP_ATTENTION, accepts, launch, scratch}};
const size_t lt__cuda_rows_flash_n = 1;
const lt_cuda_row lt__cuda_rows_flash_capped[] = {{LT_OP_ATTENTION, accepts_capped, launch, scratch}};
const size_t lt__cuda_rows_flash_capped_n = 1;
