/* The builder's refusals, shapes and views; the layout against a brute-force check of overlaps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "graph/graph.h"

static lt_ctx *ctx;

static lt_tid input(lt_graph *g, const char *name, int64_t cols)
{
    int64_t dim[2] = {LT_DIM_TOKENS, cols};
    return lt__graph_input(g, name, LT_ROLE_EMBD, 0, LT_DTYPE_F32, dim, 2);
}

static lt_tid weight(lt_graph *g, lt_dtype t, uint64_t rows, uint64_t cols)
{
    uint64_t dim[2] = {rows, cols};
    return lt__graph_weight(g, "w", 0, t, dim, 2);
}

static void shapes_follow_from_ops(void **state)
{
    (void)state;
    lt_graph g;
    lt__graph_init(&g, ctx);
    lt_tid x = input(&g, "x", 64), q = lt__graph_node(&g, "q", LT_OP_QUANTIZE, NULL, &x, 1);
    lt_tid src[2] = {q, weight(&g, LT_DTYPE_Q8_0, 96, 64)};
    lt_tid y = lt__graph_node(&g, "y", LT_OP_LINEAR, NULL, src, 2);
    int64_t heads[2] = {3, 16};
    lt_tid w = lt__graph_window(&g, y, 32, heads, 2);
    assert_int_equal(lt__graph_finish(&g, NULL), LT_OK);
    assert_int_equal(g.tensors[q].dtype, LT_DTYPE_Q8A);
    assert_int_equal(g.tensors[q].row_stride, 80); /* 1.25 bytes an element */
    assert_int_equal(g.tensors[y].dim[1], 96);
    assert_int_equal(lt__tensor_bytes(&g.tensors[y], 5, 1), 5 * 96 * 4);
    lt_view v;
    lt__tensor_view(&g.tensors[w], 1000, 5, 1, &v);
    assert_int_equal(v.ndim, 3);
    assert_int_equal(v.dim[0], 5);
    assert_int_equal(v.stride[0], 96 * 4);
    assert_int_equal(v.stride[1], 16 * 4);
    assert_int_equal(v.stride[2], 4);
    lt__tensor_view(&g.tensors[src[1]], 1000, 5, 1, &v);
    assert_int_equal(v.stride[0], 68);
    assert_int_equal(v.stride[1], 34);
    int64_t inner[1] = {8};
    lt_tid w2 = lt__graph_window(&g, w, 4, inner, 1);
    assert_int_equal(g.tensors[w2].base, y);
    assert_int_equal(g.tensors[w2].base_offset, (32 + 4) * 4);
    lt__graph_deinit(&g);
}

enum { BAD_COLS, BAD_DTYPE, BAD_BLOCKS, BAD_WINDOW, BAD_SOURCES, BAD_PLACE, BAD_TENSOR, BAD_QUANT_WINDOW, BAD_OUTPUT, N_BAD };

static void build_bad(lt_graph *g, int kind)
{
    lt_tid x = input(g, "x", 64), q = lt__graph_node(g, "q", LT_OP_QUANTIZE, NULL, &x, 1);
    lt_tid w = weight(g, LT_DTYPE_F32, 96, 64), other = weight(g, LT_DTYPE_F32, 96, 32);
    lt_tid a[2] = {x, other}, b[2] = {q, w}, c[2] = {x, w}, d[2] = {x, 1000};
    int64_t dim[1] = {64};
    switch (kind) {
    case BAD_COLS: lt__graph_node(g, "n", LT_OP_LINEAR, NULL, a, 2); break;
    case BAD_DTYPE: lt__graph_node(g, "n", LT_OP_LINEAR, NULL, b, 2); break;
    case BAD_BLOCKS: weight(g, LT_DTYPE_Q4_K, 96, 64); break;
    case BAD_WINDOW: lt__graph_window(g, x, 1, dim, 1); break;
    case BAD_SOURCES: lt__graph_node(g, "n", LT_OP_LINEAR, NULL, c, 1); break;
    case BAD_PLACE: lt__graph_inplace(g, "n", LT_OP_LINEAR, NULL, c, 2); break;
    case BAD_TENSOR: lt__graph_node(g, "n", LT_OP_ADD, NULL, d, 2); break;
    case BAD_QUANT_WINDOW: lt__graph_window(g, q, 0, dim, 1); break;
    case BAD_OUTPUT: lt__graph_output(g, x, LT_ROLE_LOGITS); break;
    default: break;
    }
}

/* The first failure stays, later calls do nothing, finish reports it. */
static void failures_are_remembered(void **state)
{
    (void)state;
    for (int kind = 0; kind < N_BAD; kind++) {
        lt_graph g;
        lt_err err, first;
        lt__graph_init(&g, ctx);
        build_bad(&g, kind);
        if (g.status != LT_E_INVALID)
            fail_msg("kind %d was accepted", kind);
        first = g.err;
        size_t nodes = g.n_nodes;
        assert_int_equal(input(&g, "later", 8), LT_NO_TENSOR);
        build_bad(&g, (kind + 1) % N_BAD);
        assert_int_equal(g.n_nodes, nodes);
        assert_int_equal(lt__graph_finish(&g, &err), LT_E_INVALID);
        assert_string_equal(err.text, first.text);
        lt__graph_deinit(&g);
    }
}

static uint64_t next(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* A random graph of widths, windows, in-place nodes, long and short lives. */
static void random_graph(lt_graph *g, uint64_t seed, size_t nodes)
{
    lt_tid pool[512];
    size_t n = 0;
    uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
    pool[n++] = input(g, "x", 64);
    for (size_t i = 0; i < nodes && n < 512; i++) {
        lt_tid a = pool[n - 1 - next(&s) % (n < 6 ? n : 6)];
        if (next(&s) % 16 == 0)
            a = pool[next(&s) % n];
        const int64_t cols = g->tensors[a].dim[1];
        lt_op_params p = {.SCALE = {2}};
        switch (next(&s) % 5) {
        case 0: lt__graph_inplace(g, "scale", LT_OP_SCALE, &p, &a, 1); break;
        case 1: {
            int64_t half[1] = {cols / 2};
            if (cols > 32)
                pool[n++] = lt__graph_window(g, a, (uint64_t)(cols / 2) * (next(&s) & 1), half, 1);
            break;
        }
        case 2: {
            lt_tid src[2] = {a, weight(g, LT_DTYPE_F32, 32 << next(&s) % 6, (uint64_t)cols)};
            pool[n++] = lt__graph_node(g, "linear", LT_OP_LINEAR, NULL, src, 2);
            break;
        }
        case 3:
            if (cols % 32 == 0)
                lt__graph_node(g, "quantize", LT_OP_QUANTIZE, NULL, &a, 1);
            break;
        default: pool[n++] = lt__graph_node(g, "copy", LT_OP_SCALE, &p, &a, 1); break;
        }
    }
}

static bool own_act(const lt_tensor *t) { return t->kind == LT_TENSOR_ACT && t->base == LT_NO_TENSOR; }

/* Lives computed once more, from the nodes. */
static void lives(const lt_graph *g, lt_tid id, size_t *first, size_t *last)
{
    *first = SIZE_MAX;
    *last = 0;
    for (size_t n = 0; n < g->n_nodes; n++)
        for (uint32_t s = 0; s <= g->nodes[n].n_src; s++) {
            lt_tid t = s < g->nodes[n].n_src ? g->nodes[n].src[s] : g->nodes[n].dst;
            if (t != id && g->tensors[t].base != id)
                continue;
            if (*first == SIZE_MAX)
                *first = n;
            *last = n;
        }
}

static double check_layout(lt_graph *g, uint32_t tokens)
{
    uint64_t bytes, most = 0;
    assert_int_equal(lt__graph_layout(g, tokens, 1, 64, &bytes, NULL), LT_OK);
    size_t *first = calloc(g->n_tensors, sizeof *first), *last = calloc(g->n_tensors, sizeof *last);
    for (size_t i = 0; i < g->n_tensors; i++)
        lives(g, (lt_tid)i, &first[i], &last[i]);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const lt_tensor *a = &g->tensors[i];
        if (a->kind == LT_TENSOR_ACT && a->base != LT_NO_TENSOR)
            assert_int_equal(a->offset, g->tensors[a->base].offset + a->base_offset);
        if (!own_act(a) || first[i] == SIZE_MAX)
            continue;
        uint64_t end = a->offset + lt__tensor_bytes(a, tokens, 1);
        assert_int_equal(a->offset % 64, 0);
        assert_true(end <= bytes);
        for (size_t k = 0; k < i; k++) {
            const lt_tensor *b = &g->tensors[k];
            if (!own_act(b) || first[k] == SIZE_MAX || last[k] < first[i] || last[i] < first[k])
                continue;
            if (a->offset < b->offset + lt__tensor_bytes(b, tokens, 1) && b->offset < end)
                fail_msg("tensors %zu and %zu live together and overlap", k, i);
        }
    }
    for (size_t n = 0; n < g->n_nodes; n++) {
        uint64_t live = 0;
        for (size_t i = 0; i < g->n_tensors; i++)
            if (own_act(&g->tensors[i]) && first[i] <= n && n <= last[i])
                live += lt__round_up(lt__tensor_bytes(&g->tensors[i], tokens, 1), 64);
        most = live > most ? live : most;
    }
    free(first);
    free(last);
    return most ? (double)bytes / (double)most : 1;
}

static void layout_never_overlaps_what_lives_together(void **state)
{
    (void)state;
    double worst = 1, sum = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        lt_graph g;
        lt__graph_init(&g, ctx);
        random_graph(&g, seed, 20 + seed);
        assert_int_equal(lt__graph_finish(&g, NULL), LT_OK);
        double r = check_layout(&g, (uint32_t)(1 + seed % 40));
        worst = r > worst ? r : worst;
        sum += r;
        lt__graph_deinit(&g);
    }
    printf("area over the most bytes live at once: mean %.4f, worst %.4f of 200 random graphs\n", sum / 200, worst);
    assert_true(worst < 1.35);
}

static void layout_is_deterministic(void **state)
{
    (void)state;
    lt_graph a, b;
    uint64_t x, y;
    lt__graph_init(&a, ctx);
    lt__graph_init(&b, ctx);
    random_graph(&a, 77, 150);
    random_graph(&b, 77, 150);
    assert_int_equal(lt__graph_layout(&a, 9, 1, 256, &x, NULL), LT_OK);
    assert_int_equal(lt__graph_layout(&b, 3, 1, 256, &y, NULL), LT_OK); /* another size in between */
    assert_int_equal(lt__graph_layout(&b, 9, 1, 256, &y, NULL), LT_OK);
    assert_int_equal(x, y);
    for (size_t i = 0; i < a.n_tensors; i++)
        assert_int_equal(a.tensors[i].offset, b.tensors[i].offset);
    lt__graph_deinit(&a);
    lt__graph_deinit(&b);
}

static void io_is_laid_out_without_reuse(void **state)
{
    (void)state;
    lt_graph g;
    uint64_t bytes;
    lt_err err;
    lt__graph_init(&g, ctx);
    lt_tid x = input(&g, "x", 8), src[2] = {x, weight(&g, LT_DTYPE_F32, 100, 8)};
    lt_tid y = lt__graph_node(&g, "y", LT_OP_LINEAR, NULL, src, 2);
    int64_t open[1] = {0};
    lt_tid table = lt__graph_input(&g, "table", LT_ROLE_TABLE, 0, LT_DTYPE_I32, open, 1);
    lt__graph_output(&g, y, LT_ROLE_LOGITS);
    assert_int_equal(lt__graph_layout_io(&g, 4, 1, 64, &bytes, &err), LT_E_INVALID);
    assert_non_null(strstr(err.text, "'table'"));
    g.tensors[table].dim[0] = 3;
    assert_int_equal(lt__graph_layout_io(&g, 4, 1, 64, &bytes, &err), LT_OK);
    assert_int_equal(bytes, 128 + 1600 + 64);
    assert_int_equal(g.tensors[y].offset, 128);
    assert_int_equal(lt__graph_layout(&g, 4, 1, 64, &bytes, &err), LT_OK);
    assert_int_equal(bytes, 0); /* nothing is left that is only an activation */
    assert_int_equal(lt__graph_layout(&g, 4, 1, 48, &bytes, &err), LT_E_INVALID);
    lt__graph_deinit(&g);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    lt_graph g;
    uint64_t bytes;
    lt_err err;
    lt__graph_init(&g, ctx);
    lt_tid x = input(&g, "x", INT64_MAX / 8), p = lt__graph_node(&g, "y", LT_OP_SCALE, NULL, &x, 1);
    assert_int_not_equal(p, LT_NO_TENSOR);
    assert_int_equal(lt__tensor_bytes(&g.tensors[p], 8, 1), UINT64_MAX);
    assert_int_equal(lt__graph_layout(&g, 8, 1, 64, &bytes, &err), LT_E_INVALID);
    assert_int_equal(lt__graph_layout_io(&g, 8, 1, 64, &bytes, &err), LT_E_INVALID);
    lt__graph_deinit(&g);
}

static int setup(void **state)
{
    (void)state;
    return lt_ctx_create(NULL, &ctx, NULL) == LT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    uint64_t left = lt_ctx_host_bytes(ctx);
    lt_ctx_destroy(ctx);
    return left ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_follow_from_ops),
        cmocka_unit_test(failures_are_remembered),
        cmocka_unit_test(layout_never_overlaps_what_lives_together),
        cmocka_unit_test(layout_is_deterministic),
        cmocka_unit_test(io_is_laid_out_without_reuse),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests_name("graph", tests, setup, teardown);
}
