/* launch_experts.c - mixtures of experts: routing, biases and sums, and products without tensor cores.
 *
 * Few pairs of a token and an expert go a block each; more are listed by experts first, on the device, and go by tiles of
 * eight. The host never learns which expert a token took: grids are those of the worst case, and blocks without work end. */
#include <stdio.h>

#include "backend/cuda/device.h"
#include "backend/cuda/launch.h"

#define FEW_PAIRS 16
#define TURN 32768      /* pairs a launch where each has a row of the grid, whose y holds 65535 */
#define TOP_TOKENS 4    /* as in kernels/experts.cu */
#define THREADS 128
#define MOST_EXPERTS 16384 /* with the tiles of LT_CUDA_PAIRS within a grid's y */

/* --- routing ---------------------------------------------------------------------------- */

static bool accepts_top(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    *why = "over 1024 experts, or over two billion tokens";
    return a->src[0].dim[1] <= LT_CUDA_TOP_MOST && a->src[0].dim[0] < INT32_MAX - TOP_TOKENS && a->dst.dim[1] < INT32_MAX - 32;
}

static lt_status give_top(lt_cuda_device *dev, CUstream stream, const char *kernel, const lt_op_args *args, const lt_view *ids, const lt_view *y,
                          bool all, lt_err *err)
{
    const lt_view *x = &args->src[0];
    lt_cuda_top a = {.scores = x->addr, .ids = ids->addr, .y = y ? y->addr : 0, .scores_row = x->stride[0], .ids_row = ids->stride[0],
                     .y_row = y ? y->stride[0] : 0, .tokens = (int32_t)x->dim[0], .experts = (int32_t)x->dim[1], .picks = (int32_t)ids->dim[1],
                     .all = all, .wrong = lt__cuda_wrong(dev), .name = (uint64_t)(uintptr_t)(args->name ? args->name : "top_share")};
    if (!a.tokens)
        return LT_OK;
    lt_cuda_dim grid = {lt__cuda_blocks(a.tokens, TOP_TOKENS), 1, 1}, block = {32 * TOP_TOKENS, 1, 1};
    return lt__cuda_launch(dev, "experts", kernel, grid, block, 0, stream, (void *[]){&a}, args, err);
}

static lt_status launch_top(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    return give_top(dev, stream, "top_k", args, &args->dst, NULL, false, err);
}

static lt_status launch_share(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    return give_top(dev, stream, "top_share", args, &args->src[1], &args->dst, args->params.TOP_SHARE.all, err);
}

lt_status lt__cuda_top_share(lt_cuda_device *dev, CUstream stream, const lt_op_args *top, const lt_op_args *share, lt_err *err)
{
    return give_top(dev, stream, "top_k_share", top, &top->dst, &share->dst, share->params.TOP_SHARE.all, err);
}

/* --- rows of pairs ----------------------------------------------------------------------- */

static bool accepts_pairs(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    const lt_view *x = &a->src[0];
    *why = "over two billion pairs of a token and an expert, or rows of over eight million columns";
    return x->dim[0] < INT32_MAX && x->dim[1] < INT32_MAX && x->dim[0] * x->dim[1] < INT32_MAX && x->dim[2] <= (int64_t)THREADS * 65535 &&
           a->src[1].dim[0] < INT32_MAX;
}

static lt_status launch_pairs(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const lt_view *x = &args->src[0], *b = &args->src[1], *y = &args->dst;
    bool sum = args->op == LT_OP_EXPERT_SUM;
    lt_cuda_pairs a = {.x = x->addr, .b = b->addr, .y = y->addr, .x_token = x->stride[0], .x_pick = x->stride[1], .b_row = b->stride[0],
                       .y_token = y->stride[0], .y_pick = sum ? 0 : y->stride[1], .tokens = (int32_t)x->dim[0], .picks = (int32_t)x->dim[1],
                       .cols = (int32_t)x->dim[2], .experts = (int32_t)b->dim[0], .wrong = lt__cuda_wrong(dev),
                       .name = (uint64_t)(uintptr_t)(args->name ? args->name : "expert_bias")};
    uint64_t bits = a.x | a.y | (uint64_t)(a.x_token | a.x_pick | a.y_token | a.y_pick);
    if (!sum)
        a.ids = args->src[2].addr, a.ids_row = args->src[2].stride[0], bits |= a.b | (uint64_t)a.b_row;
    bool four = (bits & 15) == 0 && a.cols % 4 == 0;
    if (!a.tokens || !a.picks || !a.cols)
        return LT_OK;
    lt_cuda_dim block = {THREADS, 1, 1};
    lt_cuda_dim grid = {(uint32_t)a.tokens * (sum ? 1 : (uint32_t)a.picks), lt__cuda_blocks(a.cols, four ? 4 * THREADS : THREADS), 1};
    const char *kernel = sum ? four ? "expert_sum_4" : "expert_sum" : four ? "expert_bias_4" : "expert_bias";
    return lt__cuda_launch(dev, "experts", kernel, grid, block, 0, stream, (void *[]){&a}, args, err);
}

/* --- pairs by experts -------------------------------------------------------------------- */

bool lt__cuda_expert_sizes_ok(const lt_op_args *a, const char **why)
{
    const lt_view *w = &a->src[1];
    *why = "a product of over two billion rows or columns";
    if (w->dim[1] >= INT32_MAX - 64 || w->dim[2] >= INT32_MAX - 256)
        return false;
    *why = "over 16,384 experts, or over 32,768 of them a token";
    return w->dim[0] <= MOST_EXPERTS && a->dst.dim[1] <= TURN;
}

lt_op_args lt__cuda_some_tokens(const lt_op_args *args, int64_t first, int64_t tokens)
{
    lt_op_args part = *args;
    lt_view *v[] = {&part.src[0], &part.src[2], &part.dst};
    for (int i = 0; i < 3; i++) {
        v[i]->addr += (uint64_t)(first * v[i]->stride[0]);
        v[i]->dim[0] = args->dst.dim[0] - first < tokens ? args->dst.dim[0] - first : tokens;
    }
    return part;
}

lt_cuda_grouped lt__cuda_group_pairs(const lt_op_args *args, uint64_t at, int few_tile, int many_tile, int least)
{
    const lt_view *ids = &args->src[2];
    int64_t experts = args->src[1].dim[0], pairs = lt__cuda_turn(args) * ids->dim[1];
    int32_t few = few_tile ? (int32_t)(pairs / few_tile + experts) : 0, many = many_tile ? (int32_t)(pairs / many_tile + experts) : 0;
    uint64_t of_pairs = lt__round_up(4 * (uint64_t)pairs, 256), of_counts = lt__round_up(4 * (uint64_t)experts, 256),
             of_few = lt__round_up(sizeof(lt_cuda_expert_tile) * (uint64_t)few, 256), of_many = lt__round_up(sizeof(lt_cuda_expert_tile) * (uint64_t)many, 256);
    return (lt_cuda_grouped){
        .list = {.ids = ids->addr, .pairs = at, .counts = at + of_pairs, .few = at + of_pairs + of_counts, .many = at + of_pairs + of_counts + of_few,
                 .ids_row = ids->stride[0], .picks = (int32_t)ids->dim[1], .n_pairs = (int32_t)pairs, .first = (int32_t)args->params.EXPERT_LINEAR.first,
                 .experts = (int32_t)experts, .few_tile = few_tile, .many_tile = many_tile, .few_slots = few, .many_slots = many, .least = least},
        .bytes = of_pairs + of_counts + of_few + of_many};
}

lt_status lt__cuda_give_list(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_grouped *g, lt_err *err)
{
    lt_cuda_expert_list a = g->list;
    lt_cuda_dim grid = {(uint32_t)a.experts, 1, 1}, block = {256, 1, 1};
    return lt__cuda_launch(dev, "experts", "expert_list", grid, block, 0, stream, (void *[]){&a}, args, err);
}

/* --- products ---------------------------------------------------------------------------- */

static bool accepts_products(const lt_cuda_device *dev, const lt_op_args *a, const char **why)
{
    (void)dev;
    return lt__cuda_expert_sizes_ok(a, why);
}

static bool aligned(const lt_view *v)
{
    uint64_t bits = v->addr;
    for (uint32_t d = 0; d + 1 < v->ndim; d++)
        bits |= v->dim[d] > 1 ? (uint64_t)v->stride[d] : 0;
    return (bits & 15) == 0;
}

static bool way_of(const lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n, int tile, lt_cuda_way *out)
{
    const lt_view *w = &args[0]->src[1];
    bool w_aligned = true;
    for (uint32_t i = 0; i < n; i++)
        w_aligned = w_aligned && aligned(&args[i]->src[1]);
    return lt__cuda_linear_tile(dev, w->dtype, w->dim[2], tile, w_aligned, aligned(&args[0]->src[0]), out);
}

bool lt__cuda_few_ok(const lt_cuda_device *dev, const lt_op_args *args, lt_cuda_way *out) { return way_of(dev, &args, 1, LT_CUDA_FEW, out); }

/* One pair after another. */
static lt_cuda_way way_of_each(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
{
    const lt_view *w = &args[0]->src[1];
    bool w_aligned = true, packed = true;
    lt_cuda_way how;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t row_bytes;
        w_aligned = w_aligned && aligned(&args[i]->src[1]);
        packed = packed && lt_dtype_row_bytes(w->dtype, (uint64_t)w->dim[2], &row_bytes) && row_bytes == (uint64_t)args[i]->src[1].stride[1];
    }
    if (packed && lt__cuda_on_host(dev, w->addr) && lt__cuda_linear_lines(dev, w->dtype, w->dim[2], w_aligned, aligned(&args[0]->src[0]), &how))
        return how;
    return way_of(dev, args, n, 1, &how) ? how : lt__cuda_linear_plain(w->dtype);
}

static lt_cuda_experts products_of(const lt_op_args *const *args, uint32_t n, const lt_cuda_way *how)
{
    const lt_view *x = &args[0]->src[0], *ids = &args[0]->src[2];
    lt_cuda_experts e = {.a = {.x = x->addr, .x_stride = x->stride[0], .cols = (int32_t)x->dim[x->ndim - 1], .parts = (int32_t)n,
                               .tokens = (int32_t)(ids->dim[0] * ids->dim[1]), .rows_of = how->rows},
                         .ids = ids->addr, .ids_row = ids->stride[0], .x_pick = x->ndim == 3 ? x->stride[1] : 0, .picks = (int32_t)ids->dim[1]};
    for (uint32_t i = 0; i < n; i++) {
        const lt_view *w = &args[i]->src[1], *y = &args[i]->dst;
        e.a.part[i] = (lt_cuda_linear_part){.w = w->addr, .y = y->addr, .w_stride = w->stride[1], .y_stride = y->stride[0], .rows = (int32_t)w->dim[1],
                                            .first = e.a.units * (how->plain ? how->rows : 1)};
        e.of[i] = (lt_cuda_expert_part){.w_expert = w->stride[0], .y_pick = y->stride[1], .first = (int32_t)args[i]->params.EXPERT_LINEAR.first,
                                        .experts = (int32_t)w->dim[0]};
        /* whole blocks: one looks at one part's experts */
        e.a.units += (int32_t)(lt__cuda_blocks(lt__cuda_blocks(w->dim[1], how->rows), how->units_of_block) * how->units_of_block);
    }
    return e;
}

static void name_of(char (*name)[40], const lt_op_args *args, const lt_cuda_way *how)
{
    if (how->plain)
        snprintf(*name, sizeof *name, "expert_%s_plain", lt_dtype_get(args->src[1].dtype)->name);
    else if (how->lines)
        snprintf(*name, sizeof *name, "expert_%s_lines", lt_dtype_get(args->src[1].dtype)->name);
    else
        snprintf(*name, sizeof *name, "expert_%s_%d", lt_dtype_get(args->src[1].dtype)->name, how->tokens);
}

/* A row of the grid for each pair: at most TURN of them. biases: NULL, or of each EXPERT_BIAS that is done on the way, or NULL. */
static lt_status give_each(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, const lt_op_args *const *biases,
                           lt_err *err)
{
    const lt_cuda_way how = way_of_each(dev, args, n);
    char name[40];
    lt_cuda_experts e = products_of(args, n, &how);
    for (uint32_t i = 0; biases && i < n; i++)
        if (biases[i]) {
            e.of[i].bias = biases[i]->src[1].addr;
            e.of[i].bias_row = biases[i]->src[1].stride[0];
            e.all = (int32_t)biases[i]->src[1].dim[0];
            e.wrong = lt__cuda_wrong(dev);
            e.name = (uint64_t)(uintptr_t)(biases[i]->name ? biases[i]->name : "expert_bias");
        }
    name_of(&name, args[0], &how);
    lt_cuda_dim grid = {(uint32_t)e.a.units / how.units_of_block, (uint32_t)e.a.tokens, 1}, block = {how.threads, 1, 1};
    return lt__cuda_launch(dev, "experts", name, grid, block, how.shared, stream, (void *[]){&e}, args[0], err);
}

lt_status lt__cuda_give_few(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, const lt_cuda_grouped *g, const lt_cuda_way *how, lt_err *err)
{
    lt_cuda_experts e = products_of(&args, 1, how);
    char name[40];
    e.pairs = g->list.pairs;
    e.tiles = g->list.few;
    name_of(&name, args, how);
    /* A block does some units of rows for the x it reads; all tiles' blocks together fill the card twice. */
    uint32_t blocks = lt__cuda_blocks(e.a.units, how->units_of_block), slots = (uint32_t)g->list.few_slots;
    uint32_t least = (blocks + 7) / 8, fill = 2 * how->blocks_of_sm * (uint32_t)lt__cuda_device_props(dev)->sm_count / slots;
    lt_cuda_dim grid = {fill > blocks ? blocks : fill > least ? fill : least, slots, 1}, block = {how->threads, 1, 1};
    return lt__cuda_launch(dev, "experts", name, grid, block, how->shared, stream, (void *[]){&e}, args, err);
}

/* Bits are the same either way, so the number of pairs may choose. A token's experts are different ones: nothing to share. */
static bool lists(const lt_op_args *a) { return a->dst.dim[0] > 1 && a->dst.dim[0] * a->dst.dim[1] > FEW_PAIRS; }

static uint64_t scratch_products(const lt_cuda_device *dev, const lt_op_args *a)
{
    (void)dev;
    return lists(a) ? lt__cuda_group_pairs(a, 0, LT_CUDA_FEW, 0, INT32_MAX).bytes : 0;
}

static lt_status launch_products(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    lt_cuda_way how;
    const bool listed = lists(args) && lt__cuda_few_ok(dev, args, &how);
    const int64_t turn = listed ? lt__cuda_turn(args) : TURN / args->dst.dim[1];
    lt_status s = LT_OK;
    for (int64_t done = 0; s == LT_OK && done < args->dst.dim[0]; done += turn) {
        lt_op_args part = lt__cuda_some_tokens(args, done, turn);
        const lt_op_args *one = &part;
        if (!listed) {
            s = give_each(dev, stream, &one, 1, NULL, err);
            continue;
        }
        lt_cuda_grouped g = lt__cuda_group_pairs(&part, args->scratch, LT_CUDA_FEW, 0, INT32_MAX);
        s = lt__cuda_give_list(dev, stream, &part, &g, err);
        if (s == LT_OK)
            s = lt__cuda_give_few(dev, stream, &part, &g, &how, err);
    }
    return s;
}

static bool same_rows(const lt_view *a, const lt_view *b)
{
    if (a->addr != b->addr || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->dim[d] != b->dim[d] || a->stride[d] != b->stride[d])
            return false;
    return true;
}

bool lt__cuda_expert_group_ok(lt_cuda_device *dev, const lt_op_args *const *args, uint32_t n)
{
    if (n < 1 || n > LT_CUDA_LINEAR_PARTS)
        return false;
    int64_t rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        const lt_op_args *a = args[i];
        const char *why;
        if (a->op != LT_OP_EXPERT_LINEAR || a->prefill || lists(a) || !accepts_products(dev, a, &why) ||
            !same_rows(&a->src[0], &args[0]->src[0]) || !same_rows(&a->src[2], &args[0]->src[2]) || a->src[1].dtype != args[0]->src[1].dtype ||
            lt__cuda_on_host(dev, a->src[1].addr) != lt__cuda_on_host(dev, args[0]->src[1].addr))
            return false;
        rows += a->src[1].dim[1] + 64;
    }
    return rows < INT32_MAX;
}

/* The experts of the products that write where the bias is added: all of them, or another launch's results would want it too. */
bool lt__cuda_bias_ok(const lt_op_args *const *args, uint32_t n, const lt_op_args *bias)
{
    int64_t covered = 0;
    if (bias->op != LT_OP_EXPERT_BIAS || !same_rows(&bias->src[0], &bias->dst) || !same_rows(&bias->src[2], &args[0]->src[2]))
        return false;
    for (int64_t before = -1; before != covered;) { /* slices in any order */
        before = covered;
        for (uint32_t i = 0; i < n; i++)
            if (same_rows(&args[i]->dst, &bias->dst) && (int64_t)args[i]->params.EXPERT_LINEAR.first == covered)
                covered += args[i]->src[1].dim[0];
    }
    return covered == bias->src[1].dim[0];
}

lt_status lt__cuda_expert_group(lt_cuda_device *dev, CUstream stream, const lt_op_args *const *args, uint32_t n, uint32_t n_biases, lt_err *err)
{
    const lt_op_args *biases[LT_CUDA_LINEAR_PARTS] = {0};
    LT_ASSERT(lt__cuda_expert_group_ok(dev, args, n));
    for (uint32_t k = 0; k < n_biases; k++)
        for (uint32_t i = 0; i < n; i++)
            if (same_rows(&args[i]->dst, &args[n + k]->dst))
                biases[i] = args[n + k];
    return give_each(dev, stream, args, n, biases, err);
}

const lt_cuda_row lt__cuda_rows_experts[] = {
    {LT_OP_TOP_K, accepts_top, launch_top, NULL},           {LT_OP_TOP_SHARE, accepts_top, launch_share, NULL},
    {LT_OP_EXPERT_BIAS, accepts_pairs, launch_pairs, NULL}, {LT_OP_EXPERT_SUM, accepts_pairs, launch_pairs, NULL},
    {LT_OP_EXPERT_LINEAR, accepts_products, launch_products, scratch_products},
};
const size_t lt__cuda_rows_experts_n = sizeof lt__cuda_rows_experts / sizeof *lt__cuda_rows_experts;
