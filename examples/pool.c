/* A program of a stranger's: a budget of 8 MiB on a simulated card, a cache that gives way under
 * pressure, and two queues, with public headers only. */
#include <stdio.h>

#include "lowtide/pool.h"

enum { CACHED = 16 };

typedef struct cache {
    lt_block blocks[CACHED];
    unsigned n;
} cache;

/* The pool is short of memory: forget cached blocks until it has what it needs. */
static uint64_t give_way(void *user, lt_pool *pool, uint64_t need)
{
    cache *c = user;
    uint64_t given = 0;
    while (c->n && given < need) {
        lt_block b = c->blocks[--c->n];
        given += b.bytes;
        lt_pool_free(pool, b, NULL);
    }
    return given;
}

static int fail(const char *what, const lt_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->text);
    return 1;
}

static int use(lt_device *dev, lt_pool *pool)
{
    lt_err err;
    cache c = {.n = 0};
    lt_queue *compute, *copy;
    lt_block scratch, big, too_big;
    if (lt_queue_create(dev, LT_QUEUE_COMPUTE, &compute, &err) != LT_OK) return fail("queue", &err);
    if (lt_queue_create(dev, LT_QUEUE_COPY, &copy, &err) != LT_OK) return fail("queue", &err);

    /* Fill the budget with what can be had again. */
    while (c.n < CACHED && lt_pool_alloc(pool, 1 << 20, 0, LT_USE_WEIGHT, NULL, &c.blocks[c.n], NULL) == LT_OK) c.n++;
    printf("cached %u blocks of 1 MiB\n", c.n);

    /* Work on one queue, free on it, reuse on the other: the pool orders the two by an event. */
    lt_pool_set_pressure(pool, give_way, &c);
    if (lt_pool_alloc(pool, 2 << 20, 0, LT_USE_ACTIVATION, compute, &scratch, &err) != LT_OK) return fail("scratch", &err);
    if (lt_queue_fill(compute, scratch.addr, 1, scratch.bytes, &err) != LT_OK) return fail("fill", &err);
    lt_pool_free(pool, scratch, compute);
    if (lt_pool_alloc(pool, 8 << 20, 0, LT_USE_KV, copy, &big, &err) != LT_OK) return fail("big", &err);
    if (lt_queue_fill(copy, big.addr, 2, big.bytes, &err) != LT_OK) return fail("fill", &err);
    printf("all 8 MiB in one block, %u cached blocks left\n", c.n);

    /* Over budget is an answer, not a crash. */
    if (lt_pool_alloc(pool, 1, 0, LT_USE_KV, copy, &too_big, &err) != LT_E_DEVICE_OOM) return 1;
    printf("refused: %s\n", err.text);

    lt_pool_free(pool, big, copy);
    lt_pool_forget_queue(pool, compute);
    lt_pool_forget_queue(pool, copy);
    lt_queue_destroy(compute);
    lt_queue_destroy(copy);

    lt_pool_stats s;
    lt_pool_get_stats(pool, &s);
    printf("peak %llu of %llu bytes, %llu allocations, %llu refused, pressure met %llu times\n", (unsigned long long)s.peak_committed,
           (unsigned long long)s.limit, (unsigned long long)s.allocs, (unsigned long long)s.failures, (unsigned long long)s.pressure_calls);
    return s.peak_committed <= s.limit && s.live == 0 && lt_pool_check(pool, &err) == LT_OK ? 0 : 1;
}

int main(void)
{
    lt_err err;
    lt_ctx *ctx;
    lt_device *dev;
    lt_pool *pool;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK) return fail("context", &err);
    if (lt_device_open(ctx, "sim:vram=64M,h2d=12G,d2h=12G", &dev, &err) != LT_OK) return fail("device", &err);
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = 8 << 20;
    d.chunk_bytes = 1 << 20;
    d.name = "example";
    if (lt_pool_create(dev, &d, &pool, &err) != LT_OK) return fail("pool", &err);
    int rc = use(dev, pool);
    lt_pool_destroy(pool);
    lt_device_close(dev);
    if (lt_ctx_host_bytes(ctx) != 0) rc = 1;
    lt_ctx_destroy(ctx);
    return rc;
}
