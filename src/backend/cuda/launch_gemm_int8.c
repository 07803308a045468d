/* launch_gemm_int8.c - LINEAR and EXPERT_LINEAR of many tokens and a quantised weight by tensor cores, where the card has int8 ones.
 *
 * The bits are those of every other way, so the number of tokens may choose. The weight is packed by as many rows
 * as a thousandth of the card's memory holds, or CHUNK: little of a small budget, and on large cards, which many blocks
 * fill, seldom a part of a weight. (13B on an H200: parts of 32 MiB left a third of its blocks' room empty.) */
#include <stdio.h>

#include "backend/cuda/launch.h"

/* Up to four passes of eight tokens over the weight as it is are no slower: 4 x 13.4 us at 4096 x 4096 of Q4_K, where packing
 * and a product of 32 tokens took 53. */
#define LEAST_TOKENS 33
#define CHUNK ((uint64_t)32 << 20)
#define CHUNK_MOST ((uint64_t)128 << 20)

/* What a block has beside its scale, as in kernels/gemm_int8.cu. */
typedef struct kind { const char *name; int of_row, of_token; } kind;

static kind kind_of(lt_dtype t)
{
    switch (t) {
    case LT_DTYPE_Q4_1:
    case LT_DTYPE_Q5_1:
    case LT_DTYPE_Q4_K:
    case LT_DTYPE_Q5_K: return (kind){"mins", 2, 2};
    case LT_DTYPE_Q3_K:
    case LT_DTYPE_Q6_K: return (kind){"halves", 3, 1};
    case LT_DTYPE_Q2_K: return (kind){"halves_mins", 6, 3};
    default: return (kind){"plain", 1, 1};
    }
}

typedef struct shape {
    kind     k;
    int64_t  blocks, room, stages; /* of 32 columns; slots of the fullest accumulator; stages of a row */
    int64_t  token_tiles, chunk_rows;
    uint64_t weight_bytes, token_bytes; /* of the images; the weight's of a chunk */
} shape;

static uint64_t stage_bytes(int64_t rows, int factors) { return (uint64_t)rows * (128 + 4 * LT_GEMM_DEPTH * (uint64_t)factors); }

/* Half a stage of each of the eight accumulators, 16 bytes apart. */
static uint64_t pack_shared(kind k) { return 8 * (stage_bytes(LT_GEMM_ROWS / 2, k.of_row) + 16); }

static uint64_t chunk_bytes(const lt_cuda_device *dev)
{
    const lt_cuda_props *p = lt__cuda_device_props(dev);
    bool as_others = p->major == 9 && p->minor == 0 && !p->sm90a; /* a Hopper that is to do as cards of less memory */
    return as_others ? CHUNK : lt__max_u64(CHUNK, lt__min_u64(CHUNK_MOST, p->total_bytes / 1024));
}

static shape shape_of(const lt_cuda_device *dev, lt_dtype dtype, int64_t rows, int64_t cols, int64_t tokens)
{
    const uint64_t chunk = chunk_bytes(dev);
    shape s = {.k = kind_of(dtype), .blocks = cols / 32};
    for (int64_t j = 0; j < 8; j++)
        s.stages += ((s.blocks - j + 7) / 8 + LT_GEMM_DEPTH - 1) / LT_GEMM_DEPTH;
    s.room = ((s.blocks + 7) / 8 + LT_GEMM_DEPTH - 1) / LT_GEMM_DEPTH * LT_GEMM_DEPTH;
    s.token_tiles = (tokens + LT_GEMM_TOKENS - 1) / LT_GEMM_TOKENS;
    s.token_bytes = lt__round_up((uint64_t)(s.token_tiles * s.stages) * stage_bytes(LT_GEMM_TOKENS, s.k.of_token), 256);
    uint64_t tile_bytes = (uint64_t)s.stages * stage_bytes(LT_GEMM_ROWS, s.k.of_row);
    int64_t tiles = (rows + LT_GEMM_ROWS - 1) / LT_GEMM_ROWS, most = (int64_t)lt__max_u64(1, chunk / tile_bytes);
    int64_t chunks = (tiles + most - 1) / most, each = (tiles + chunks - 1) / chunks;
    s.chunk_rows = each * LT_GEMM_ROWS;
    s.weight_bytes = lt__round_up((uint64_t)each * tile_bytes, 256);
    return s;
}

static bool card_can(const lt_cuda_device *dev, lt_dtype dtype, const char **why)
{
    *why = "the card has no int8 tensor cores of 32 columns (compute capability 8.0)";
    if (lt__cuda_device_props(dev)->major < 8)
        return false;
    *why = "the card has too little shared memory to pack the weight";
    return pack_shared(kind_of(dtype)) <= lt__cuda_device_props(dev)->shared_optin_bytes;
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    if (!card_can(dev, w->dtype, why))
        return false;
    *why = "few tokens, or a weight that is not quantised, or over two billion blocks";
    return lt_dtype_get(w->dtype)->kind == LT_DTYPE_KIND_QUANT && x->dim[0] >= LEAST_TOKENS && x->dim[0] < INT32_MAX / 64 &&
           w->dim[1] < INT32_MAX / 64 && w->dim[0] > 0 &&
           (w->dim[0] + LT_GEMM_ROWS - 1) / LT_GEMM_ROWS < INT32_MAX / ((x->dim[0] + LT_GEMM_TOKENS - 1) / LT_GEMM_TOKENS) &&
           (x->stride[0] & 7) == 0;
}

static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *a)
{
    shape s = shape_of(dev, a->src[1].dtype, a->src[1].dim[0], a->src[1].dim[1], a->src[0].dim[0]);
    return s.weight_bytes + s.token_bytes;
}

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *y = &args->dst;
    shape s = shape_of(dev, w->dtype, w->dim[0], w->dim[1], x->dim[0]);
    uint64_t image = args->scratch + s.token_bytes;
    char pack_name[40], name[40];
    snprintf(pack_name, sizeof pack_name, "gemm_pack_%s", lt_dtype_get(w->dtype)->name);
    snprintf(name, sizeof name, "gemm_%s", s.k.name);
    for (int64_t row = 0; row < w->dim[0]; row += s.chunk_rows) {
        int64_t rows = w->dim[0] - row < s.chunk_rows ? w->dim[0] - row : s.chunk_rows, tiles = (rows + LT_GEMM_ROWS - 1) / LT_GEMM_ROWS;
        lt_cuda_pack2 p = {.weight = {.src = w->addr + (uint64_t)(row * w->stride[0]), .image = image, .src_stride = w->stride[0],
                                      .rows = (int32_t)rows, .cols = (int32_t)w->dim[1], .stages = (int32_t)s.stages},
                           .tokens = {.src = x->addr, .image = args->scratch, .src_stride = x->stride[0], .rows = (int32_t)x->dim[0],
                                      .cols = (int32_t)w->dim[1], .stages = (int32_t)s.stages},
                           .token_units = row ? 0 : s.token_tiles * LT_GEMM_TOKENS * 8 * s.room, .parts = (int32_t)(2 * tiles * (s.room / LT_GEMM_DEPTH))};
        lt_cuda_dim grid = {(uint32_t)p.parts + lt__cuda_blocks(p.token_units, LT_GEMM_PACKERS), 1, 1}, block = {LT_GEMM_PACKERS, 1, 1};
        lt_status st = lt__cuda_launch(dev, "gemm_int8", pack_name, grid, block, (uint32_t)pack_shared(s.k), stream,
                                       (void *[]){&p}, args, err);
        if (st != LT_OK)
            return st;
        lt_cuda_gemm8 a = {.x = args->scratch, .w = image, .y = y->addr + (uint64_t)row * sizeof(float), .y_stride = y->stride[0],
                           .rows = (int32_t)rows, .cols = (int32_t)w->dim[1], .tiles = (int32_t)s.token_tiles, .tokens = (int32_t)x->dim[0],
                           .stages = (int32_t)s.stages};
        grid.x = (uint32_t)(tiles * s.token_tiles);
        block.x = 2 * LT_GEMM_TOKENS;
        st = lt__cuda_launch(dev, "gemm_int8", name, grid, block,
                             (uint32_t)(2 * (stage_bytes(LT_GEMM_ROWS, s.k.of_row) + stage_bytes(LT_GEMM_TOKENS, s.k.of_token))), stream,
                             (void *[]){&a}, args, err);
        if (st != LT_OK)
            return st;
    }
    return LT_OK;
}

/* --- experts ------------------------------------------------------------------------------ */

/* The weights of as many experts as a chunk holds, or rows of one, are packed at a time; of those with fewer pairs than
 * LEAST_TOKENS none, they go by tiles of eight. Only the device knows which ones they are. */
typedef struct expert_shape {
    shape    s;               /* of one expert's rows, and of tiles of pairs as tokens */
    int64_t  experts, tiles;  /* a chunk; of rows in it */
    uint64_t image_bytes;     /* of an expert in it */
    lt_cuda_grouped g;
} expert_shape;

static expert_shape expert_shape_of(const lt_cuda_device *dev, const lt_op_args *a, bool few)
{
    const lt_view *w = &a->src[1];
    expert_shape e = {.g = lt__cuda_group_pairs(a, a->scratch, few ? LT_CUDA_FEW : 0, LT_GEMM_TOKENS, few ? LEAST_TOKENS : 1)};
    e.s = shape_of(dev, w->dtype, w->dim[1], w->dim[2], (int64_t)e.g.list.many_slots * LT_GEMM_TOKENS);
    e.tiles = e.s.chunk_rows / LT_GEMM_ROWS;
    e.image_bytes = (uint64_t)(e.tiles * e.s.stages) * stage_bytes(LT_GEMM_ROWS, e.s.k.of_row);
    bool whole = e.s.chunk_rows >= w->dim[1];
    e.experts = whole ? (int64_t)lt__max_u64(1, lt__min_u64((uint64_t)w->dim[0], chunk_bytes(dev) / e.image_bytes)) : 1;
    e.s.weight_bytes = lt__round_up((uint64_t)e.experts * e.image_bytes, 256);
    return e;
}

static bool accepts_experts(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    if (!card_can(dev, w->dtype, why) || !lt__cuda_expert_sizes_ok(a, why))
        return false;
    *why = "few tokens, or a weight that is not quantised, or over two billion blocks";
    if (lt_dtype_get(w->dtype)->kind != LT_DTYPE_KIND_QUANT || x->dim[0] < LEAST_TOKENS || w->dim[2] >= INT32_MAX / 64 ||
        ((x->stride[0] | (x->ndim == 3 ? x->stride[1] : 0)) & 7))
        return false;
    expert_shape e = expert_shape_of(dev, a, true);
    int64_t slots = e.g.list.many_slots;
    return e.tiles < INT32_MAX / slots && e.experts * 2 * e.tiles * (e.s.room / LT_GEMM_DEPTH) < INT32_MAX / 2 &&
           slots * LT_GEMM_TOKENS < INT32_MAX / 64 && slots * LT_GEMM_TOKENS * 8 * e.s.room / LT_GEMM_PACKERS < INT32_MAX / 2;
}

static uint64_t scratch_experts(const lt_cuda_device *dev, const lt_op_args *a)
{
    expert_shape e = expert_shape_of(dev, a, true);
    return lt__round_up(e.g.bytes, 256) + e.s.token_bytes + e.s.weight_bytes;
}

/* Rows first_row on of experts `first` on; the pairs are packed with the first of them. */
static lt_status give_chunk(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const expert_shape *e, int64_t first, int64_t first_row,
                            lt_err *err)
{
    const lt_view *x = &args->src[0], *w = &args->src[1], *y = &args->dst;
    const shape *s = &e->s;
    const lt_cuda_expert_list *l = &e->g.list;
    const uint64_t tokens_at = args->scratch + lt__round_up(e->g.bytes, 256), image = tokens_at + s->token_bytes;
    int64_t rows = w->dim[1] - first_row < s->chunk_rows ? w->dim[1] - first_row : s->chunk_rows, tiles = (rows + LT_GEMM_ROWS - 1) / LT_GEMM_ROWS;
    int64_t count = w->dim[0] - first < e->experts ? w->dim[0] - first : e->experts;
    char pack_name[40], name[40];
    snprintf(pack_name, sizeof pack_name, "expert_pack_%s", lt_dtype_get(w->dtype)->name);
    snprintf(name, sizeof name, "expert_gemm_%s", s->k.name);
    lt_cuda_expert_pack p = {
        .p = {.weight = {.src = w->addr + (uint64_t)(first_row * w->stride[1]), .image = image, .src_stride = w->stride[1], .rows = (int32_t)rows,
                         .cols = (int32_t)w->dim[2], .stages = (int32_t)s->stages},
              .tokens = {.src = x->addr, .image = tokens_at, .src_stride = x->stride[0], .rows = l->many_slots * LT_GEMM_TOKENS,
                         .cols = (int32_t)w->dim[2], .stages = (int32_t)s->stages},
              .token_units = first || first_row ? 0 : (int64_t)l->many_slots * LT_GEMM_TOKENS * 8 * s->room,
              .parts = (int32_t)(2 * tiles * (s->room / LT_GEMM_DEPTH))},
        .counts = l->counts, .pairs = l->pairs, .tiles = l->many, .w_expert = w->stride[0], .image_expert = (int64_t)e->image_bytes,
        .x_pick = x->ndim == 3 ? x->stride[1] : 0, .first = (int32_t)first, .count = (int32_t)count, .least = l->least, .picks = l->picks};
    lt_cuda_dim grid = {(uint32_t)(count * p.p.parts) + lt__cuda_blocks(p.p.token_units, LT_GEMM_PACKERS), 1, 1}, block = {LT_GEMM_PACKERS, 1, 1};
    lt_status st = lt__cuda_launch(dev, "experts_int8", pack_name, grid, block, (uint32_t)pack_shared(s->k), stream, (void *[]){&p}, args, err);
    if (st != LT_OK)
        return st;
    lt_cuda_expert_gemm8 g = {.a = {.x = tokens_at, .w = image, .y = y->addr + (uint64_t)first_row * sizeof(float), .y_stride = y->stride[0],
                                    .rows = (int32_t)rows, .cols = (int32_t)w->dim[2], .tiles = (int32_t)tiles, .stages = (int32_t)s->stages},
                              .pairs = l->pairs, .tiles = l->many, .image_expert = (int64_t)e->image_bytes, .y_pick = y->stride[1],
                              .first = (int32_t)first, .count = (int32_t)count, .picks = l->picks};
    grid.x = (uint32_t)(tiles * l->many_slots);
    block.x = 2 * LT_GEMM_TOKENS;
    return lt__cuda_launch(dev, "experts_int8", name, grid, block,
                           (uint32_t)(2 * (stage_bytes(LT_GEMM_ROWS, s->k.of_row) + stage_bytes(LT_GEMM_TOKENS, s->k.of_token))), stream,
                           (void *[]){&g}, args, err);
}

static lt_status launch_experts(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    lt_cuda_way how;
    const bool few = lt__cuda_few_ok(dev, args, &how);
    const int64_t turn = lt__cuda_turn(args);
    lt_status s = LT_OK;
    for (int64_t done = 0; s == LT_OK && done < args->dst.dim[0]; done += turn) {
        lt_op_args part = lt__cuda_some_tokens(args, done, turn);
        expert_shape e = expert_shape_of(dev, &part, few);
        s = lt__cuda_give_list(dev, stream, &part, &e.g, err);
        if (s == LT_OK && few)
            s = lt__cuda_give_few(dev, stream, &part, &e.g, &how, err);
        for (int64_t first = 0; s == LT_OK && first < part.src[1].dim[0]; first += e.experts)
            for (int64_t row = 0; s == LT_OK && row < part.src[1].dim[1]; row += e.s.chunk_rows)
                s = give_chunk(dev, stream, &part, &e, first, row, err);
    }
    return s;
}

const lt_cuda_row lt__cuda_rows_gemm_int8[] = {{LT_OP_LINEAR, accepts, launch, scratch}};
const size_t lt__cuda_rows_gemm_int8_n = 1;
const lt_cuda_row lt__cuda_rows_experts_int8[] = {{LT_OP_EXPERT_LINEAR, accepts_experts, launch_experts, scratch_experts}};
const size_t lt__cuda_rows_experts_int8_n = 1;
