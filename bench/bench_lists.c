/* What each step of one token's pass of a 7B costs on a card: lists of the step alone, over as many copies of its
 * weights as there are layers, replayed as a graph. Microseconds a step.
 *
 *     bench_lists [cuda:fuse=1,...] [depth] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/mem.h"

enum { LAYERS = 32, EMBD = 4096, FF = 11008, HEADS = 32, DIM = 128, PAGES = 16, RUNS = 30, STEPS = 24 };

typedef struct bench {
    lt_ctx    *ctx;
    lt_device *dev;
    lt_queue  *q;
    lt_addr    base, at;
    lt_op_args args[LAYERS * STEPS];
    const lt_op_args *ptrs[LAYERS * STEPS];
    size_t     n;
    lt_err     err;
} bench;

static void must(bench *b, lt_status s)
{
    if (s == LT_OK)
        return;
    fprintf(stderr, "%s\n", b->err.text);
    exit(1);
}

static lt_view matrix(bench *b, lt_dtype t, int64_t rows, int64_t cols)
{
    uint64_t bytes = 0;
    lt_view v = {.addr = b->at, .dtype = t, .ndim = 2, .dim = {rows, cols}};
    if (!lt_dtype_row_bytes(t, (uint64_t)cols, &bytes))
        exit(1);
    v.stride[0] = (int64_t)bytes;
    v.stride[1] = (int64_t)lt_dtype_get(t)->block_bytes;
    b->at += lt__round_up((uint64_t)rows * bytes, 256);
    return v;
}

static lt_view row(bench *b, lt_dtype t, int64_t cols)
{
    lt_view v = matrix(b, t, 1, cols);
    v.ndim = 1;
    v.dim[0] = cols;
    v.stride[0] = v.stride[1];
    return v;
}

static lt_view heads_of(lt_view v)
{
    v.ndim = 3;
    v.dim[1] = HEADS, v.dim[2] = DIM;
    v.stride[1] = DIM * 4, v.stride[2] = 4;
    return v;
}

static lt_op_args *add(bench *b, lt_op op, lt_view dst, uint32_t n, const lt_view *src)
{
    lt_op_args *a = &b->args[b->n];
    *a = (lt_op_args){.op = op, .n_src = n, .dst = dst, .name = lt_op_get(op)->name};
    memcpy(a->src, src, n * sizeof *src);
    b->ptrs[b->n++] = a;
    return a;
}

static void measure(bench *b, const char *what, double bytes)
{
    lt_launch_list list = {.args = b->ptrs, .n = b->n, .replay = true, .dead = b->base, .dead_bytes = b->at - b->base};
    lt_device_stats before, after;
    double best = 1e30;
    must(b, lt__list_run(b->q, &list, &b->err));
    must(b, lt_queue_sync(b->q, &b->err));
    lt_device_get_stats(b->dev, &before);
    for (int r = 0; r < RUNS; r++) {
        uint64_t t0 = lt__now_ns();
        must(b, lt__list_run(b->q, &list, &b->err));
        must(b, lt_queue_sync(b->q, &b->err));
        double t = (double)(lt__now_ns() - t0) * 1e-3 / LAYERS;
        best = t < best ? t : best;
    }
    lt_device_get_stats(b->dev, &after);
    printf("%-28s %7.2f us, %4.1f kernels", what, best, (double)(after.launches - before.launches) / RUNS / LAYERS);
    if (bytes > 0)
        printf(", %5.0f GB/s", bytes / best * 1e-3);
    printf("\n");
    lt__list_free(b->dev, &list);
    b->n = 0;
    b->at = b->base;
}

static void products(bench *b, lt_dtype t, const char *what, int64_t cols, int n, const int64_t *rows)
{
    double bytes = 0;
    for (int l = 0; l < LAYERS; l++) {
        lt_view x = matrix(b, lt_dtype_get(t)->kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32, 1, cols);
        for (int i = 0; i < n; i++) {
            lt_view w = matrix(b, t, rows[i], cols), y = matrix(b, LT_DTYPE_F32, 1, rows[i]);
            add(b, LT_OP_LINEAR, y, 2, (lt_view[]){x, w});
            bytes += (double)w.stride[0] * (double)rows[i] / LAYERS;
        }
    }
    char text[64];
    snprintf(text, sizeof text, "%s %s", lt_dtype_get(t)->name, what);
    measure(b, text, bytes);
}

static void residual(bench *b, bool quantise)
{
    for (int l = 0; l < LAYERS; l++) {
        lt_view h = matrix(b, LT_DTYPE_F32, 1, EMBD), y = matrix(b, LT_DTYPE_F32, 1, EMBD), x = matrix(b, LT_DTYPE_F32, 1, EMBD);
        lt_view w = row(b, LT_DTYPE_F32, EMBD), q = matrix(b, LT_DTYPE_Q8A, 1, EMBD);
        add(b, LT_OP_ADD, h, 2, (lt_view[]){h, y});
        add(b, LT_OP_RMS_NORM, x, 2, (lt_view[]){h, w})->params.RMS_NORM.eps = 1e-5f;
        if (quantise)
            add(b, LT_OP_QUANTIZE, q, 1, &x);
    }
    measure(b, quantise ? "add, norm, quantise" : "add, norm", 0);
}

static void gated(bench *b, bool quantise)
{
    for (int l = 0; l < LAYERS; l++) {
        lt_view g = matrix(b, LT_DTYPE_F32, 1, FF), u = matrix(b, LT_DTYPE_F32, 1, FF), q = matrix(b, LT_DTYPE_Q8A, 1, FF);
        add(b, LT_OP_SILU_MUL, g, 2, (lt_view[]){g, u});
        if (quantise)
            add(b, LT_OP_QUANTIZE, q, 1, &g);
    }
    measure(b, quantise ? "silu, quantise" : "silu", 0);
}

typedef struct cached { lt_kv_layout kv; lt_view angles, pos, table; } cached;

static cached make_cache(bench *b, int depth)
{
    int32_t pos = depth, table[PAGES];
    cached c = {.kv = {.page_bytes = 2u * LT_KV_PAGE * HEADS * DIM * 2, .v_offset = LT_KV_PAGE * HEADS * DIM * 2, .kv_heads = HEADS,
                       .head_dim = DIM, .dtype = LT_DTYPE_F16}};
    for (int i = 0; i < PAGES; i++)
        table[i] = i;
    c.angles = (lt_view){.addr = b->at, .dtype = LT_DTYPE_F32, .ndim = 3, .dim = {1, DIM / 2, 2}, .stride = {DIM * 4, 8, 4}};
    b->at += 4096;
    c.pos = row(b, LT_DTYPE_I32, 1);
    c.table = row(b, LT_DTYPE_I32, PAGES);
    must(b, lt_queue_copy_in(b->q, c.pos.addr, &pos, sizeof pos, &b->err));
    must(b, lt_queue_copy_in(b->q, c.table.addr, table, sizeof table, &b->err));
    must(b, lt_queue_sync(b->q, &b->err));
    return c;
}

/* What comes before attention, attention, or both and its quantising; q, k and v are matrices. Returns the last result. */
static lt_view attend(bench *b, const cached *c, lt_view qm, lt_view km, lt_view vm, bool before, bool attention, bool quantise)
{
    lt_view q = heads_of(qm), k = heads_of(km), v = heads_of(vm), o = heads_of(matrix(b, LT_DTYPE_F32, 1, EMBD));
    lt_view cache = row(b, LT_DTYPE_I8, (int64_t)(PAGES * c->kv.page_bytes));
    lt_rope_params turn = {LT_ROPE_PAIRS, DIM};
    if (before) {
        add(b, LT_OP_ROPE, q, 2, (lt_view[]){q, c->angles})->params.ROPE = turn;
        add(b, LT_OP_ROPE, k, 2, (lt_view[]){k, c->angles})->params.ROPE = turn;
        add(b, LT_OP_KV_STORE, cache, 4, (lt_view[]){k, v, c->pos, c->table})->params.KV_STORE.kv = c->kv;
    }
    if (!attention)
        return q;
    lt_op_args *a = add(b, LT_OP_ATTENTION, o, 4, (lt_view[]){q, cache, c->pos, c->table});
    a->params.ATTENTION = (lt_attention_params){.kv = c->kv, .heads = HEADS, .scale = 0.088f};
    uint64_t scratch = lt__device_scratch_bytes(b->dev, a);
    a->scratch = scratch ? b->at : 0;
    b->at += lt__round_up(scratch, 256);
    lt_view x = o;
    x.ndim = 2, x.dim[1] = EMBD, x.stride[1] = 4;
    if (!quantise)
        return x;
    lt_view y = matrix(b, LT_DTYPE_Q8A, 1, EMBD);
    add(b, LT_OP_QUANTIZE, y, 1, &x);
    return y;
}

static void attends(bench *b, int depth, bool before, bool attention)
{
    cached c = make_cache(b, depth);
    for (int l = 0; l < LAYERS; l++) {
        lt_view q = matrix(b, LT_DTYPE_F32, 1, EMBD), k = matrix(b, LT_DTYPE_F32, 1, EMBD), v = matrix(b, LT_DTYPE_F32, 1, EMBD);
        attend(b, &c, q, k, v, before, attention, before);
    }
    char text[64];
    snprintf(text, sizeof text, !attention ? "rope, rope, store" : before ? "all to attention at %d" : "attention at %d", depth);
    measure(b, text, 0);
}

static lt_view product(bench *b, lt_dtype t, lt_view x, int64_t cols, int64_t rows, double *bytes)
{
    lt_view w = matrix(b, t, rows, cols), y = matrix(b, LT_DTYPE_F32, 1, rows);
    *bytes += (double)w.stride[0] * (double)rows / LAYERS;
    add(b, LT_OP_LINEAR, y, 2, (lt_view[]){x, w});
    return y;
}

static lt_view normed(bench *b, lt_view h, lt_view y, bool quantise)
{
    lt_view w = row(b, LT_DTYPE_F32, EMBD), x = matrix(b, LT_DTYPE_F32, 1, EMBD), q = matrix(b, LT_DTYPE_Q8A, 1, EMBD);
    add(b, LT_OP_ADD, h, 2, (lt_view[]){h, y});
    add(b, LT_OP_RMS_NORM, x, 2, (lt_view[]){h, w})->params.RMS_NORM.eps = 1e-5f;
    if (!quantise)
        return x;
    add(b, LT_OP_QUANTIZE, q, 1, &x);
    return q;
}

/* All of a layer in its order. */
static void layers(bench *b, lt_dtype t, int depth)
{
    cached c = make_cache(b, depth);
    bool quant = lt_dtype_get(t)->kind == LT_DTYPE_KIND_QUANT;
    double bytes = 0;
    lt_view h = matrix(b, LT_DTYPE_F32, 1, EMBD), y = matrix(b, LT_DTYPE_F32, 1, EMBD);
    for (int l = 0; l < LAYERS; l++) {
        lt_view x = normed(b, h, y, quant);
        lt_view q = product(b, t, x, EMBD, EMBD, &bytes), k = product(b, t, x, EMBD, EMBD, &bytes), v = product(b, t, x, EMBD, EMBD, &bytes);
        x = attend(b, &c, q, k, v, true, true, quant);
        y = product(b, t, x, EMBD, EMBD, &bytes);
        x = normed(b, h, y, quant);
        lt_view gate = product(b, t, x, EMBD, FF, &bytes), up = product(b, t, x, EMBD, FF, &bytes), z = matrix(b, LT_DTYPE_Q8A, 1, FF);
        add(b, LT_OP_SILU_MUL, gate, 2, (lt_view[]){gate, up});
        if (quant)
            add(b, LT_OP_QUANTIZE, z, 1, &gate);
        y = product(b, t, quant ? z : gate, FF, EMBD, &bytes);
    }
    char text[64];
    snprintf(text, sizeof text, "a layer of %s at %d", lt_dtype_get(t)->name, depth);
    measure(b, text, bytes);
}

int main(int argc, char **argv)
{
    bench *b = calloc(1, sizeof *b);
    const char *spec = argc > 1 ? argv[1] : "cuda";
    const uint64_t bytes = UINT64_C(16) << 30;
    must(b, lt_ctx_create(NULL, &b->ctx, &b->err));
    must(b, lt_device_open(b->ctx, spec, &b->dev, &b->err));
    must(b, lt_queue_create(b->dev, LT_QUEUE_COMPUTE, &b->q, &b->err));
    must(b, lt_device_reserve(b->dev, bytes, &b->base, &b->err));
    must(b, lt_device_commit(b->dev, b->base, bytes, &b->err));
    must(b, lt_queue_fill(b->q, b->base, 0, bytes, &b->err));
    b->at = b->base;
    for (int l = 0; l < LAYERS; l++) {
        lt_view h = matrix(b, LT_DTYPE_F32, 1, 32);
        add(b, LT_OP_SCALE, h, 1, &h)->params.SCALE.factor = 1;
    }
    measure(b, "a kernel of 32 elements", 0);
    residual(b, true);
    residual(b, false);
    gated(b, true);
    gated(b, false);
    attends(b, 64, true, false);
    static const int depths[] = {64, 255, 1023, 4000};
    for (int i = 0; i < 4; i++)
        attends(b, depths[i], false, true);
    for (int i = 0; i < 4; i++)
        attends(b, depths[i], true, true);
    static const lt_dtype types[] = {LT_DTYPE_Q4_K, LT_DTYPE_Q6_K, LT_DTYPE_F16};
    for (int i = 0; i < 3; i++) {
        products(b, types[i], "q, k, v", EMBD, 3, (int64_t[]){EMBD, EMBD, EMBD});
        products(b, types[i], "output", EMBD, 1, (int64_t[]){EMBD});
        products(b, types[i], "gate, up", EMBD, 2, (int64_t[]){FF, FF});
        products(b, types[i], "down", FF, 1, (int64_t[]){EMBD});
    }
    layers(b, LT_DTYPE_Q4_K, 128);
    layers(b, LT_DTYPE_Q4_K, 1023);
    layers(b, LT_DTYPE_F16, 128);
    b->at = b->base;
    lt_queue_destroy(b->q);
    lt_device_unreserve(b->dev, b->base, bytes);
    lt_device_close(b->dev);
    lt_ctx_destroy(b->ctx);
    free(b);
    return 0;
}
