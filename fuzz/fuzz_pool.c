/* Sequences of calls to a pool over the simulated device, with every invariant after each step.
 * Byte 0 chooses limit and chunk; then each call is an opcode and its operands. Each block is written on
 * the queue it was asked for; who frees it elsewhere waits for that first, as the pool demands, and what
 * was written must still be there: no block may be given to two, now or in the order of the queues. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "lowtide/pool.h"

enum { LIVE = 64, QUEUES = 3 };
#define UNIT (64ull << 10)

typedef struct world {
    const uint8_t *at, *end;
    lt_device *dev;
    lt_pool *pool;
    lt_queue *queues[QUEUES];
    lt_block live[LIVE], stale;
    lt_queue *user[LIVE]; /* what last wrote to the block; NULL: nothing under way */
    uint8_t mark[LIVE];   /* what it wrote; 0: nothing, for want of memory */
    lt_event *order;
    uint32_t n, marks, commits_until_fault, allocs_until_fault;
    uint64_t bytes, limit;
} world;

static uint32_t byte(world *w)
{
    return w->at < w->end ? *w->at++ : 0;
}

static bool fault(void *user, lt_fault_point point)
{
    world *w = user;
    uint32_t *left = point == LT_FAULT_COMMIT ? &w->commits_until_fault : point == LT_FAULT_HOST_ALLOC ? &w->allocs_until_fault : NULL;
    return left && *left && --*left == 0;
}

static void need(bool ok, const char *what)
{
    if (ok) return;
    fprintf(stderr, "fuzz_pool: %s\n", what);
    abort();
}

static lt_queue *pick_queue(world *w)
{
    uint32_t k = byte(w) % (QUEUES + 1);
    if (k == QUEUES) return NULL;
    if (!w->queues[k] && lt_queue_create(w->dev, LT_QUEUE_COPY, &w->queues[k], NULL) != LT_OK) w->queues[k] = NULL;
    return w->queues[k];
}

/* What wrote to the block is over before the block is free on `queue` (NULL: on the host). */
static void hand_over(world *w, uint32_t i, lt_queue *queue)
{
    lt_queue *user = w->user[i];
    if (!user || user == queue) return;
    if (!queue || lt_event_record(w->order, user, NULL) != LT_OK || lt_queue_wait(queue, w->order, NULL) != LT_OK)
        need(lt_queue_sync(user, NULL) == LT_OK, "a queue failed");
    w->user[i] = NULL;
}

static void verify(world *w, uint32_t i)
{
    uint8_t got[64] = {0};
    uint64_t n = w->live[i].bytes < 64 ? w->live[i].bytes : 64;
    if (!w->user[i] || !w->mark[i] || lt_queue_copy_out(w->user[i], got, w->live[i].addr, n, NULL) != LT_OK) return;
    need(lt_queue_sync(w->user[i], NULL) == LT_OK, "a queue failed");
    for (uint64_t k = 0; k < n; k++) need(got[k] == w->mark[i], "a block was written to by another's owner");
}

static void drop(world *w, uint32_t i)
{
    w->bytes -= w->live[i].bytes;
    w->n--;
    w->live[i] = w->live[w->n];
    w->user[i] = w->user[w->n];
    w->mark[i] = w->mark[w->n];
}

static uint64_t give(void *user, lt_pool *pool, uint64_t want)
{
    world *w = user;
    (void)want;
    if (!w->n || byte(w) % 4 == 0) return byte(w) % 2; /* nothing, or a lie */
    hand_over(w, w->n - 1, NULL);
    lt_block b = w->live[w->n - 1];
    drop(w, w->n - 1);
    lt_pool_free(pool, b, NULL);
    return b.bytes;
}

static void do_alloc(world *w)
{
    uint64_t bytes = (uint64_t)byte(w) << byte(w) % 16, align = byte(w) % 4 ? 0 : 1ull << byte(w) % 64;
    lt_use use = (lt_use)(byte(w) % LT_USE_COUNT);
    lt_queue *q = pick_queue(w);
    lt_block b;
    lt_err err;
    if (w->n == LIVE) return;
    lt_status st = lt_pool_alloc(w->pool, bytes, align, use, q, &b, &err);
    if (st != LT_OK) {
        need(st == LT_E_DEVICE_OOM || st == LT_E_HOST_OOM, "alloc failed in a way it must not");
        need(!b.addr && !b.serial, "a failed alloc gave a block");
        return;
    }
    if (!bytes) return;
    need(b.bytes >= bytes && (!align || b.addr % align == 0), "a block too small or not aligned");
    for (uint32_t i = 0; i < w->n; i++)
        need(b.addr + b.bytes <= w->live[i].addr || w->live[i].addr + w->live[i].bytes <= b.addr, "two blocks overlap");
    uint8_t mark = (uint8_t)(1 + w->marks++ % 254); /* never the device's poison */
    bool filled = q && lt_queue_fill(q, b.addr, mark, b.bytes < 64 ? b.bytes : 64, NULL) == LT_OK;
    w->user[w->n] = q;
    w->mark[w->n] = filled ? mark : 0;
    w->live[w->n++] = b;
    w->bytes += b.bytes;
}

static void do_free(world *w)
{
    lt_queue *q = pick_queue(w);
    if (!w->n) return;
    uint32_t i = byte(w) % w->n;
    if (w->n % 4 == 0) verify(w, i); /* not each time: the queues must run behind, too */
    hand_over(w, i, q);
    w->stale = w->live[i];
    drop(w, i);
    lt_pool_free(w->pool, w->stale, q);
}

static void do_misuse(world *w)
{
    lt_block b = byte(w) % 2 ? w->stale : w->n ? w->live[0] : (lt_block){1, 2, 3, 4};
    switch (byte(w) % 4) {
    case 0: b.serial ^= 1 + byte(w); break;
    case 1: b.slot += 1 + byte(w) * 1000; break;
    case 2: b.addr += 64; break;
    default: b.bytes ^= 64; break;
    }
    for (uint32_t i = 0; i < w->n; i++)
        if (!memcmp(&w->live[i], &b, sizeof b)) return;
    lt_pool_free(w->pool, b, NULL);
}

static void do_forget(world *w)
{
    uint32_t k = byte(w) % QUEUES;
    if (!w->queues[k]) return;
    lt_pool_forget_queue(w->pool, w->queues[k]);
    if (byte(w) % 2) {
        lt_queue_destroy(w->queues[k]); /* runs what it holds */
        for (uint32_t i = 0; i < w->n; i++)
            if (w->user[i] == w->queues[k]) w->user[i] = NULL;
        w->queues[k] = NULL;
    }
}

static void step(world *w)
{
    switch (byte(w) % 16) {
    default: do_alloc(w); break;
    case 6: case 7: case 8: case 9: case 10: do_free(w); break;
    case 11: (void)lt_pool_trim(w->pool, byte(w) * UNIT / 4); break;
    case 12: {
        uint64_t limit = byte(w) * UNIT / 4;
        if (lt_pool_set_limit(w->pool, limit, NULL) == LT_OK) w->limit = limit;
        break;
    }
    case 13: do_misuse(w); break;
    case 14: do_forget(w); break;
    case 15:
        switch (byte(w) % 3) {
        case 0: w->commits_until_fault = byte(w) % 8; break;
        case 1: w->allocs_until_fault = byte(w) % 8; break;
        default: lt_pool_set_pressure(w->pool, byte(w) % 2 ? give : NULL, w); break;
        }
    }
    lt_err err;
    lt_pool_stats s;
    if (lt_pool_check(w->pool, &err) != LT_OK) need(false, err.text);
    lt_pool_get_stats(w->pool, &s);
    need(s.live == w->bytes, "live bytes are not those of the blocks");
    need(s.live + s.free_bytes + s.pending == s.committed, "the accounting does not add up");
    need(s.committed <= s.limit || s.committed <= s.live + s.pending + UNIT * 256, "over the limit");
}

/* Opening a device starts threads, so one serves many runs; then all host memory must be back. */
static struct {
    lt_ctx *ctx;
    lt_device *dev;
    lt_queue *queues[QUEUES];
    lt_event *order;
    world *now;
    int runs;
} bench;

static bool fault_now(void *user, lt_fault_point point)
{
    (void)user;
    return bench.now && fault(bench.now, point);
}

static void bench_open(void)
{
    lt_ctx_desc cd = lt_ctx_desc_default();
    cd.fault = fault_now;
    need(lt_ctx_create(&cd, &bench.ctx, NULL) == LT_OK, "no context");
    need(lt_device_open(bench.ctx, "sim:vram=16M,threads=1", &bench.dev, NULL) == LT_OK, "no device");
    need(lt_event_create(bench.dev, &bench.order, NULL) == LT_OK, "no event");
}

static void bench_close(void)
{
    for (int k = 0; k < QUEUES; k++) {
        if (bench.queues[k]) lt_queue_destroy(bench.queues[k]);
        bench.queues[k] = NULL;
    }
    lt_event_destroy(bench.order);
    lt_device_close(bench.dev);
    need(lt_ctx_host_bytes(bench.ctx) == 0, "host memory leaked");
    lt_ctx_destroy(bench.ctx);
    bench.ctx = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    if (!bench.ctx) bench_open();
    world w = {.at = data, .end = data + size, .dev = bench.dev, .order = bench.order};
    memcpy(w.queues, bench.queues, sizeof w.queues);
    lt_pool_desc d = lt_pool_desc_default();
    uint32_t shape = byte(&w);
    d.limit_bytes = w.limit = (1 + shape % 32) * UNIT;
    d.chunk_bytes = UNIT << (shape >> 5) % 3;
    d.commit_all = shape >> 7;
    need(lt_pool_create(w.dev, &d, &w.pool, NULL) == LT_OK, "no pool");
    bench.now = &w;
    while (w.at < w.end) step(&w);
    bench.now = NULL;
    for (uint32_t i = 0; i < w.n; i++) verify(&w, i);
    for (int k = 0; k < QUEUES; k++)
        if (w.queues[k]) {
            need(lt_queue_sync(w.queues[k], NULL) == LT_OK, "a queue failed");
            lt_pool_forget_queue(w.pool, w.queues[k]);
        }
    while (w.n) lt_pool_free(w.pool, w.live[--w.n], NULL);
    need(lt_pool_trim(w.pool, 0) == 0, "chunks stay committed with nothing in them");
    lt_pool_destroy(w.pool);
    memcpy(bench.queues, w.queues, sizeof w.queues);
    if (++bench.runs % 500 == 0) bench_close();
    return 0;
}
