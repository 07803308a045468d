/* residency_rig.h - a device, a pool, a store and a manager for tests. */
#ifndef TESTS_RESIDENCY_RIG_H
#define TESTS_RESIDENCY_RIG_H

#include "memory_common.h"

#include "backend/backend.h"
#include "lowtide/residency.h"

enum { RIG_ITEMS_MAX = 256 };

typedef struct rig {
    test_ctx t;
    lt_device *dev;
    lt_pool *pool;
    lt_store *store;
    lt_residency *res;
    lt_queue *q;
    lt_item item[RIG_ITEMS_MAX];
    uint64_t bytes[RIG_ITEMS_MAX], offset[RIG_ITEMS_MAX];
    size_t items;
    uint64_t at; /* next offset in the file */
    uint8_t *out; /* what the device held, item after item */
    size_t out_bytes;
} rig;

#define RIG_SEED 7

static inline lt_status rig_try_open(rig *g, const char *spec, uint64_t pool_bytes, const char *file,
                                     lt_store_mode mode, const lt_residency_desc *d, lt_err *err)
{
    lt_status st = lt_device_open(g->t.ctx, spec, &g->dev, err);
    if (st != LT_OK) return st;
    lt_pool_desc p = lt_pool_desc_default();
    p.limit_bytes = pool_bytes;
    p.commit_all = true;
    p.name = "test";
    if ((st = lt_pool_create(g->dev, &p, &g->pool, err)) != LT_OK) return st;
    if (file) {
        uint32_t f;
        if ((st = lt_store_create(g->t.ctx, mode, 0, &g->store, err)) != LT_OK) return st;
        if ((st = lt_store_add_file(g->store, file, &f, err)) != LT_OK) return st;
    }
    if ((st = lt_queue_create(g->dev, LT_QUEUE_COMPUTE, &g->q, err)) != LT_OK) return st;
    return lt_residency_create(g->pool, d, &g->res, err);
}

static inline void rig_open(rig *g, const char *spec, uint64_t pool_bytes, const char *file,
                            lt_store_mode mode, const lt_residency_desc *d)
{
    lt_err err;
    memset(g, 0, sizeof *g);
    test_ctx_open(&g->t);
    assert_ok(rig_try_open(g, spec, pool_bytes, file, mode, d, &err), err);
}

static inline lt_status rig_try_add(rig *g, uint64_t bytes, bool streamed, int32_t priority, lt_err *err)
{
    size_t i = g->items;
    char name[32];
    snprintf(name, sizeof name, "w%zu", i);
    g->bytes[i] = bytes;
    g->offset[i] = g->at;
    lt_item_desc d = {.name = name, .bytes = bytes, .source = {.store = g->store, .offset = g->at},
                      .use = LT_USE_WEIGHT, .priority = priority, .streamed = streamed};
    lt_status st = lt_residency_add(g->res, &d, &g->item[i], err);
    if (st != LT_OK) return st;
    g->at += (bytes + 31) / 32 * 32;
    g->items++;
    return LT_OK;
}

static inline void rig_add(rig *g, uint64_t bytes, bool streamed)
{
    lt_err err;
    assert_ok(rig_try_add(g, bytes, streamed, 0, &err), err);
}

static inline void rig_check(rig *g)
{
    lt_err err;
    assert_ok(lt_residency_check(g->res, &err), err);
    assert_ok(lt_pool_check(g->pool, &err), err);
}

/* Takes the item's bytes back to the host, on the compute queue, as a kernel would read them. */
static inline lt_status rig_use(rig *g, size_t i, uint8_t *out, lt_err *err)
{
    lt_lease l;
    lt_status st = lt_residency_lease(g->res, g->item[i], g->q, &l, err);
    if (st != LT_OK) return st;
    st = lt_queue_copy_out(g->q, out, l.addr, g->bytes[i], err);
    lt_residency_release(g->res, l, g->q);
    return st;
}

static inline void rig_verify(rig *g, size_t i, const uint8_t *got)
{
    size_t bad = pattern_check(got, RIG_SEED, g->offset[i], g->bytes[i]);
    if (bad != g->bytes[i]) fail_msg("item %zu: byte %zu of %zu is wrong", i, bad, (size_t)g->bytes[i]);
}

/* One pass over order: the host runs ahead, everything is compared at the end. */
static inline lt_status rig_try_pass(rig *g, const size_t *order, size_t n, bool check, lt_err *err)
{
    size_t total = 0;
    for (size_t k = 0; k < n; k++) total += g->bytes[order[k]];
    uint8_t *buf = malloc(total), *at = buf;
    memset(buf, 0x5c, total);
    lt_status st = LT_OK;
    size_t k = 0;
    for (; k < n && st == LT_OK; k++) {
        st = rig_use(g, order[k], at, err);
        at += g->bytes[order[k]];
        if (check) rig_check(g);
    }
    lt_err e2;
    lt_status s2 = lt_queue_sync(g->q, &e2);
    if (st == LT_OK && s2 != LT_OK) {
        st = s2;
        *err = e2;
    }
    at = buf;
    for (k = 0; k < n && st == LT_OK; k++) {
        rig_verify(g, order[k], at);
        at += g->bytes[order[k]];
    }
    free(buf);
    return st;
}

static inline void rig_pass(rig *g, const size_t *order, size_t n)
{
    lt_err err;
    assert_ok(rig_try_pass(g, order, n, true, &err), err);
}

static inline void rig_plan(rig *g, const size_t *order, size_t n, bool cyclic)
{
    lt_err err;
    lt_item *items = calloc(n, sizeof *items);
    for (size_t i = 0; i < n; i++) items[i] = g->item[order[i]];
    assert_ok(lt_residency_plan(g->res, items, n, cyclic, &err), err);
    free(items);
}

static inline void rig_shut(rig *g) { /* whatever was opened */
    lt_residency_destroy(g->res);
    if (g->q) lt_queue_destroy(g->q);
    lt_store_destroy(g->store);
    if (g->pool) {
        lt_pool_stats st;
        lt_pool_get_stats(g->pool, &st);
        assert_int_equal(st.live, 0);
    }
    lt_pool_destroy(g->pool);
    lt_device_close(g->dev);
    g->res = NULL;
    g->q = NULL;
    g->store = NULL;
    g->pool = NULL;
    g->dev = NULL;
    g->items = 0;
    g->at = 0;
}

static inline void rig_close(rig *g)
{
    rig_shut(g);
    test_ctx_close(&g->t);
}

static inline lt_residency_stats rig_stats(rig *g)
{
    lt_residency_stats s;
    lt_residency_get_stats(g->res, &s);
    return s;
}

/* Virtual work of a set duration that reads the leased item's first bytes. */
static inline void rig_work(rig *g, lt_addr scratch, uint64_t ns)
{
    lt_err err;
    lt_view v = {.addr = scratch, .dtype = LT_DTYPE_F32, .ndim = 1, .dim = {16}, .stride = {4}};
    lt_op_args a = {.op = LT_OP_SCALE, .n_src = 1, .src = {v}, .dst = v, .name = "work", .virtual_ns = ns};
    a.params.SCALE.factor = 1.0f;
    assert_ok(lt__queue_launch(g->q, &a, &err), err);
}

#endif
