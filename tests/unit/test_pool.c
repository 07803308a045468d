/* The pool over the simulated device: accounting, growth, limits, order between queues, threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "lowtide/pool.h"

#define MiB (1ull << 20)

typedef struct rig {
    lt_ctx *ctx;
    lt_device *dev;
    lt_pool *pool;
    int errors_logged;
} rig;

static void count_log(void *user, lt_log_level level, const char *area, const char *text)
{
    (void)area, (void)text;
    if (level == LT_LOG_ERROR) ++*(int *)user;
}

static void rig_open_spec(rig *r, const char *spec, uint64_t limit, uint64_t chunk, bool all)
{
    lt_err err = {0};
    lt_ctx_desc cd = lt_ctx_desc_default();
    memset(r, 0, sizeof *r);
    cd.log = count_log;
    cd.log_user = &r->errors_logged;
    assert_int_equal(lt_ctx_create(&cd, &r->ctx, &err), LT_OK);
    if (lt_device_open(r->ctx, spec, &r->dev, &err) != LT_OK) fail_msg("%s", err.text);
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = limit;
    d.chunk_bytes = chunk;
    d.commit_all = all;
    d.name = "test";
    if (lt_pool_create(r->dev, &d, &r->pool, &err) != LT_OK) fail_msg("%s", err.text);
}

static void rig_open(rig *r, uint64_t limit, uint64_t chunk, bool all)
{
    rig_open_spec(r, "sim:vram=1G,h2d=100G,d2h=100G", limit, chunk, all);
}

static void check(rig *r)
{
    lt_err err = {0};
    if (lt_pool_check(r->pool, &err) != LT_OK) fail_msg("%s", err.text);
}

static void rig_close(rig *r)
{
    check(r);
    lt_pool_destroy(r->pool);
    lt_device_stats ds;
    lt_device_get_stats(r->dev, &ds);
    assert_int_equal(ds.committed_bytes, 0);
    lt_device_close(r->dev);
    assert_int_equal(lt_ctx_host_bytes(r->ctx), 0);
    lt_ctx_destroy(r->ctx);
}

static lt_pool_stats stats(rig *r)
{
    lt_pool_stats s;
    lt_pool_get_stats(r->pool, &s);
    return s;
}

static lt_block take(rig *r, uint64_t bytes, lt_use use, lt_queue *q)
{
    lt_block b;
    lt_err err = {0};
    if (lt_pool_alloc(r->pool, bytes, 0, use, q, &b, &err) != LT_OK) fail_msg("%s", err.text);
    return b;
}

static uint64_t rnd(uint64_t *seed, uint64_t n)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % n;
}

static void random_operations_keep_every_invariant(void **state)
{
    (void)state;
    enum { LIVE = 300 };
    for (uint64_t round = 1; round <= 6; round++) {
        rig r;
        rig_open(&r, 24 * MiB + 4096, round & 1 ? MiB : 4 * MiB, round == 5);
        uint64_t seed = round * 0x9e3779b9, live = 0, peak = 0, oom = 0;
        lt_block b[LIVE];
        lt_use use[LIVE];
        uint64_t by_use[LT_USE_COUNT] = {0};
        uint32_t n = 0;
        for (int step = 0; step < 4000; step++) {
            uint64_t dice = rnd(&seed, 100);
            if (dice < 55 && n < LIVE) {
                uint64_t bytes = 1 + rnd(&seed, rnd(&seed, 8) ? 100000 : 3 * MiB), align = 1ull << rnd(&seed, 14);
                use[n] = (lt_use)rnd(&seed, LT_USE_COUNT);
                lt_status st = lt_pool_alloc(r.pool, bytes, align, use[n], NULL, &b[n], NULL);
                if (st == LT_E_DEVICE_OOM) {
                    assert_int_equal(b[n].addr, 0);
                    oom++;
                } else {
                    assert_int_equal(st, LT_OK);
                    assert_true(b[n].bytes >= bytes && b[n].addr % align == 0);
                    for (uint32_t k = 0; k < n; k++)
                        assert_true(b[k].addr + b[k].bytes <= b[n].addr || b[n].addr + b[n].bytes <= b[k].addr);
                    live += b[n].bytes;
                    by_use[use[n]] += b[n].bytes;
                    n++;
                }
            } else if (dice < 97 && n) {
                uint32_t i = (uint32_t)rnd(&seed, n);
                live -= b[i].bytes;
                by_use[use[i]] -= b[i].bytes;
                lt_pool_free(r.pool, b[i], NULL);
                b[i] = b[--n];
                use[i] = use[n];
            } else if (dice == 97) {
                uint64_t left = lt_pool_trim(r.pool, 4 * MiB);
                assert_int_equal(left, stats(&r).committed);
            }
            peak = lt__max_u64(peak, live);
            lt_pool_stats s = stats(&r);
            assert_int_equal(s.live, live);
            assert_int_equal(s.peak_live, peak);
            assert_int_equal(s.live + s.free_bytes + s.pending, s.committed);
            assert_true(s.committed <= s.limit && s.largest_free <= s.free_bytes);
            for (int u = 0; u < LT_USE_COUNT; u++) assert_int_equal(s.live_by_use[u], by_use[u]);
            lt_device_stats ds;
            lt_device_get_stats(r.dev, &ds);
            assert_int_equal(ds.committed_bytes, s.committed);
            check(&r);
        }
        assert_true(oom > 0);
        while (n) lt_pool_free(r.pool, b[--n], NULL);
        assert_int_equal(lt_pool_trim(r.pool, 0), 0);
        rig_close(&r);
        assert_int_equal(r.errors_logged, 0);
    }
}

static void edge_arguments(void **state)
{
    (void)state;
    rig r;
    lt_err err = {0};
    lt_block b = {1, 1, 1, 1};
    rig_open(&r, 4 * MiB, 0, false);
    assert_int_equal(lt_pool_alloc(r.pool, 0, 0, LT_USE_KV, NULL, &b, &err), LT_OK);
    assert_int_equal(b.addr | b.bytes | b.slot | b.serial, 0);
    lt_pool_free(r.pool, b, NULL);
    assert_int_equal(lt_pool_alloc(r.pool, 1, 3, LT_USE_KV, NULL, &b, &err), LT_E_INVALID);
    assert_int_equal(lt_pool_alloc(r.pool, 1, 0, LT_USE_COUNT, NULL, &b, &err), LT_E_INVALID);
    const uint64_t huge[] = {UINT64_MAX, UINT64_MAX - 63, UINT64_MAX / 2, 1ull << 62, 4 * MiB + 1};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
        for (int a = 0; a < 64; a++)
            assert_int_equal(lt_pool_alloc(r.pool, huge[i], 1ull << a, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
    assert_int_equal(lt_pool_alloc(r.pool, 64, 1ull << 63, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
    assert_int_equal(stats(&r).committed, 0); /* nothing was committed for what cannot be served */
    assert_int_equal(lt_pool_alloc(r.pool, 4 * MiB, 0, LT_USE_KV, NULL, &b, &err), LT_OK);
    lt_block c;
    assert_int_equal(lt_pool_alloc(r.pool, 1, 0, LT_USE_WEIGHT, NULL, &c, &err), LT_E_DEVICE_OOM);
    assert_non_null(strstr(err.text, "kv 4.00 MiB"));
    assert_non_null(strstr(err.text, "limit 4.00 MiB"));
    lt_pool_free(r.pool, b, NULL);
    rig_close(&r);

    lt_pool_desc d = lt_pool_desc_default();
    lt_pool *p;
    assert_int_equal(lt_ctx_create(NULL, &r.ctx, NULL), LT_OK);
    assert_int_equal(lt_device_open(r.ctx, "sim:vram=64M", &r.dev, &err), LT_OK);
    d.chunk_bytes = 3;
    assert_int_equal(lt_pool_create(r.dev, &d, &p, &err), LT_E_INVALID);
    assert_null(p);
    d.chunk_bytes = 0;
    d.limit_bytes = 1;
    assert_int_equal(lt_pool_create(r.dev, &d, &p, &err), LT_E_NO_FIT);
    d.limit_bytes = UINT64_MAX;
    assert_int_equal(lt_pool_create(r.dev, &d, &p, &err), LT_E_INVALID);
    d.limit_bytes = 0;
    d.struct_bytes = 1;
    assert_int_equal(lt_pool_create(r.dev, &d, &p, &err), LT_E_INVALID);
    lt_pool_destroy(NULL);
    lt_device_close(r.dev);
    lt_ctx_destroy(r.ctx);
}

static void misuse_is_refused_and_counted(void **state)
{
    (void)state;
    rig r, other;
    rig_open(&r, 4 * MiB, 0, false);
    rig_open(&other, 4 * MiB, 0, false);
    lt_block a = take(&r, 1000, LT_USE_KV, NULL), b = take(&r, 1000, LT_USE_KV, NULL);
    lt_block foreign = take(&other, 1000, LT_USE_KV, NULL);
    lt_pool_free(r.pool, a, NULL);
    lt_pool_free(r.pool, a, NULL); /* double */
    lt_block again = take(&r, 1000, LT_USE_KV, NULL);
    lt_pool_free(r.pool, a, NULL); /* stale: its memory may be someone else's now */
    lt_pool_free(r.pool, foreign, NULL);
    lt_block inside = b;
    inside.addr += 64;
    lt_pool_free(r.pool, inside, NULL);
    inside = b;
    inside.slot = UINT32_MAX;
    lt_pool_free(r.pool, inside, NULL);
    assert_int_equal(stats(&r).bad_frees, 5);
    assert_int_equal(r.errors_logged, 5);
    assert_int_equal(stats(&r).live, a.bytes + b.bytes);
    check(&r);
    lt_pool_free(r.pool, again, NULL);
    lt_pool_free(other.pool, foreign, NULL);
    rig_close(&other);
    rig_close(&r); /* b is left: destroy says so */
    assert_int_equal(r.errors_logged, 6);
}

static void limit_can_move(void **state)
{
    (void)state;
    rig r;
    lt_err err = {0};
    lt_block b, c;
    rig_open(&r, 16 * MiB, MiB, true);
    assert_int_equal(stats(&r).committed, 16 * MiB);
    b = take(&r, 6 * MiB, LT_USE_WEIGHT, NULL);
    assert_int_equal(lt_pool_set_limit(r.pool, 17 * MiB, &err), LT_E_INVALID);
    assert_int_equal(lt_pool_set_limit(r.pool, 4 * MiB, &err), LT_OK);
    check(&r);
    assert_int_equal(stats(&r).committed, 6 * MiB); /* what is free went back at once */
    assert_int_equal(lt_pool_alloc(r.pool, 1, 0, LT_USE_KV, NULL, &c, &err), LT_E_DEVICE_OOM);
    lt_pool_free(r.pool, b, NULL);
    assert_int_equal(lt_pool_alloc(r.pool, 5 * MiB, 0, LT_USE_KV, NULL, &c, &err), LT_E_DEVICE_OOM);
    b = take(&r, 4 * MiB, LT_USE_KV, NULL);
    assert_true(stats(&r).committed <= 6 * MiB);
    assert_int_equal(lt_pool_set_limit(r.pool, 16 * MiB, &err), LT_OK);
    c = take(&r, 10 * MiB, LT_USE_KV, NULL);
    lt_pool_free(r.pool, b, NULL);
    lt_pool_free(r.pool, c, NULL);
    rig_close(&r);
}

/* Committed chunks that lie unused in the wrong place are moved, not added. */
static void unused_chunks_move(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 8 * MiB, MiB, false);
    assert_int_equal(lt_pool_set_limit(r.pool, 5 * MiB, NULL), LT_OK);
    lt_block low[3], high;
    for (int i = 0; i < 3; i++) low[i] = take(&r, MiB, LT_USE_WEIGHT, NULL);
    high = take(&r, MiB, LT_USE_ACTIVATION, NULL);
    lt_pool_free(r.pool, low[0], NULL);
    lt_pool_free(r.pool, high, NULL);
    assert_int_equal(stats(&r).committed, 4 * MiB);
    lt_block big = take(&r, 3 * MiB, LT_USE_WEIGHT, NULL); /* 2 live + 3 = the limit, nowhere contiguous */
    assert_int_equal(stats(&r).committed, 5 * MiB);
    assert_true(stats(&r).peak_committed <= 5 * MiB);
    check(&r);
    lt_pool_free(r.pool, big, NULL);
    lt_pool_free(r.pool, low[1], NULL);
    lt_pool_free(r.pool, low[2], NULL);
    rig_close(&r);
}

typedef struct presser {
    lt_block blocks[8];
    int n, calls;
    bool lies, allocates;
    uint64_t asked;
    lt_status inner;
} presser;

static uint64_t press(void *user, lt_pool *pool, uint64_t need)
{
    presser *p = user;
    p->calls++;
    p->asked = need;
    if (p->allocates) {
        lt_block b;
        p->inner = lt_pool_alloc(pool, 8 * MiB, 0, LT_USE_OTHER, NULL, &b, NULL);
    }
    if (p->lies) return need;
    if (!p->n) return 0;
    lt_block b = p->blocks[--p->n];
    lt_pool_free(pool, b, NULL);
    return b.bytes;
}

static void pressure_helps_while_it_makes_progress(void **state)
{
    (void)state;
    rig r;
    lt_err err = {0};
    lt_block big;
    rig_open(&r, 8 * MiB, MiB, false);
    presser p = {0};
    for (int i = 0; i < 8; i++) p.blocks[p.n++] = take(&r, MiB, LT_USE_WEIGHT, NULL);
    lt_pool_set_pressure(r.pool, press, &p);
    assert_int_equal(lt_pool_alloc(r.pool, 3 * MiB, 0, LT_USE_KV, NULL, &big, &err), LT_OK);
    assert_int_equal(p.calls, 3);
    assert_int_equal(p.asked, MiB);
    check(&r);
    p.n -= 5; /* keeps five and will not give them */
    lt_block kept[5];
    memcpy(kept, p.blocks, sizeof kept);
    p.calls = 0;
    lt_block c;
    assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_KV, NULL, &c, &err), LT_E_DEVICE_OOM);
    assert_int_equal(p.calls, 1);
    p.lies = true;
    assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_KV, NULL, &c, &err), LT_E_DEVICE_OOM);
    assert_int_equal(p.calls, 2);
    p.allocates = true; /* against the contract: answered, not followed for ever */
    assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_KV, NULL, &c, &err), LT_E_DEVICE_OOM);
    assert_int_equal(p.calls, 3);
    assert_int_equal(p.inner, LT_E_DEVICE_OOM);
    lt_pool_set_pressure(r.pool, NULL, NULL);
    for (int i = 0; i < 5; i++) lt_pool_free(r.pool, kept[i], NULL);
    lt_pool_free(r.pool, big, NULL);
    rig_close(&r);
}

/* A gate holds a queue's work back until the test opens it. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool open;
} gate;

static lt_status pass_gate(void *user, lt_err *err)
{
    (void)err;
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->wake, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return LT_OK;
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->wake);
    pthread_mutex_unlock(&g->lock);
}

#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}

static lt_queue *queue_of(rig *r)
{
    lt_queue *q;
    assert_int_equal(lt_queue_create(r->dev, LT_QUEUE_COPY, &q, NULL), LT_OK);
    return q;
}

static void same_queue_reuses_at_once(void **state)
{
    (void)state;
    rig r;
    gate g = GATE;
    rig_open(&r, 4 * MiB, MiB, true);
    lt_queue *q1 = queue_of(&r), *q2 = queue_of(&r);
    assert_int_equal(lt_queue_call(q1, pass_gate, &g, NULL), LT_OK);
    lt_block a = take(&r, 4 * MiB, LT_USE_KV, q1);
    lt_pool_free(r.pool, a, q1); /* the only queue so far: no event */
    lt_block b = take(&r, 4 * MiB, LT_USE_KV, q1);
    assert_int_equal(a.addr, b.addr);
    lt_block none;
    assert_int_equal(lt_pool_alloc(r.pool, 64, 0, LT_USE_KV, q1, &none, NULL), LT_E_DEVICE_OOM);
    open_gate(&g);
    assert_int_equal(lt_queue_sync(q1, NULL), LT_OK);
    lt_pool_free(r.pool, b, q1);
    lt_block c = take(&r, MiB, LT_USE_KV, q2); /* a second queue: events from here on */
    gate h = GATE;
    assert_int_equal(lt_queue_call(q1, pass_gate, &h, NULL), LT_OK);
    lt_block d = take(&r, 3 * MiB, LT_USE_KV, q1);
    lt_pool_free(r.pool, d, q1);
    check(&r);
    assert_int_equal(stats(&r).pending, 3 * MiB);
    lt_block e = take(&r, 3 * MiB, LT_USE_KV, q1); /* still behind the gate, and reused */
    assert_int_equal(d.addr, e.addr);
    lt_pool_free(r.pool, e, q1);
    e = take(&r, 2 * MiB, LT_USE_KV, q1); /* part of it */
    check(&r);
    assert_int_equal(stats(&r).pending, MiB);
    lt_pool_free(r.pool, e, q1);
    e = take(&r, 3 * MiB, LT_USE_KV, q1); /* two pending neighbours */
    check(&r);
    assert_int_equal(stats(&r).pending, 0);
    open_gate(&h);
    lt_pool_free(r.pool, e, q1);
    lt_pool_free(r.pool, c, q2);
    lt_pool_forget_queue(r.pool, q1);
    lt_pool_forget_queue(r.pool, q2);
    lt_queue_destroy(q1);
    lt_queue_destroy(q2);
    rig_close(&r);
}

static lt_status set_flag(void *user, lt_err *err)
{
    (void)err;
    __atomic_store_n((int *)user, 1, __ATOMIC_SEQ_CST);
    return LT_OK;
}

static void other_queue_waits_for_an_event(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 4 * MiB, MiB, true);
    lt_queue *q1 = queue_of(&r), *q2 = queue_of(&r);
    lt_block x = take(&r, 64, LT_USE_KV, q1), y = take(&r, 64, LT_USE_KV, q2);
    lt_pool_free(r.pool, x, q1);
    lt_pool_free(r.pool, y, q2);
    assert_int_equal(lt_queue_sync(q1, NULL) | lt_queue_sync(q2, NULL), LT_OK);

    gate g = GATE;
    lt_block a = take(&r, 2 * MiB, LT_USE_KV, q1);
    assert_int_equal(lt_queue_call(q1, pass_gate, &g, NULL), LT_OK);
    lt_pool_free(r.pool, a, q1);
    lt_block b = take(&r, MiB, LT_USE_ACTIVATION, q2); /* free memory serves it, at the far end: no wait */
    uint64_t waits = stats(&r).waits;
    lt_block c = take(&r, 3 * MiB, LT_USE_KV, q2); /* only with what q1 may still use */
    assert_int_equal(stats(&r).waits, waits + 1);
    check(&r);
    int ran = 0;
    assert_int_equal(lt_queue_call(q2, set_flag, &ran, NULL), LT_OK);
    struct timespec ts = {0, 20000000};
    nanosleep(&ts, NULL);
    assert_int_equal(__atomic_load_n(&ran, __ATOMIC_SEQ_CST), 0); /* q2 stands behind q1's gate */
    open_gate(&g);
    assert_int_equal(lt_queue_sync(q2, NULL), LT_OK);
    assert_int_equal(ran, 1);
    lt_pool_free(r.pool, b, q2);
    lt_pool_free(r.pool, c, q2);
    /* The host is a user too: it waits here. */
    lt_block h = take(&r, 4 * MiB, LT_USE_KV, NULL);
    check(&r);
    lt_pool_free(r.pool, h, NULL);
    assert_int_equal(stats(&r).pending, 0);
    lt_pool_forget_queue(r.pool, q1);
    lt_pool_forget_queue(r.pool, q2);
    lt_queue_destroy(q1);
    lt_queue_destroy(q2);
    lt_queue *q3 = queue_of(&r);
    lt_block z = take(&r, 4 * MiB, LT_USE_KV, q3);
    lt_pool_free(r.pool, z, q3);
    check(&r);
    lt_pool_forget_queue(r.pool, q3);
    lt_queue_destroy(q3);
    rig_close(&r);
}

static void forgotten_queue_leaves_its_event(void **state)
{
    (void)state;
    rig r;
    gate g = GATE;
    rig_open(&r, 4 * MiB, MiB, true);
    lt_queue *q1 = queue_of(&r), *q2 = queue_of(&r);
    lt_block a = take(&r, 4 * MiB, LT_USE_KV, q1);
    assert_int_equal(lt_queue_call(q1, pass_gate, &g, NULL), LT_OK);
    lt_pool_free(r.pool, a, q1);
    lt_pool_forget_queue(r.pool, q1); /* its work still runs */
    int ran = 0;
    lt_block b = take(&r, MiB, LT_USE_KV, q2);
    assert_int_equal(lt_queue_call(q2, set_flag, &ran, NULL), LT_OK);
    struct timespec ts = {0, 20000000};
    nanosleep(&ts, NULL);
    assert_int_equal(__atomic_load_n(&ran, __ATOMIC_SEQ_CST), 0);
    open_gate(&g);
    lt_queue_destroy(q1);
    assert_int_equal(lt_queue_sync(q2, NULL), LT_OK);
    assert_int_equal(ran, 1);
    lt_pool_free(r.pool, b, q2);
    lt_pool_forget_queue(r.pool, q2);
    lt_queue_destroy(q2);
    rig_close(&r);
}

typedef struct worker {
    rig *r;
    lt_queue *queue;
    uint64_t seed, oom;
    int steps;
    pthread_barrier_t *full; /* passed when every thread holds all it can: together more than the pool has */
} worker;

/* Every block is filled with its owner's byte, on its queue, and read back before it is freed: a block
 * given to two owners at once, or too early, shows. */
static void *work(void *arg)
{
    worker *w = arg;
    enum { LIVE = 24 };
    lt_block b[LIVE];
    unsigned char seen[LIVE][16], mark[LIVE];
    uint32_t n = 0;
    for (int step = 0; step < w->steps; step++) {
        if (step == LIVE) pthread_barrier_wait(w->full);
        if (step < LIVE || (n < LIVE && rnd(&w->seed, 100) < 55)) {
            uint64_t bytes = 64 + rnd(&w->seed, 60000);
            lt_status st = lt_pool_alloc(w->r->pool, bytes, 0, (lt_use)rnd(&w->seed, LT_USE_COUNT), w->queue, &b[n], NULL);
            if (st == LT_E_DEVICE_OOM) {
                w->oom++;
                continue;
            }
            assert_int_equal(st, LT_OK);
            mark[n] = (unsigned char)(1 + rnd(&w->seed, 255));
            if (w->queue) assert_int_equal(lt_queue_fill(w->queue, b[n].addr, mark[n], 64, NULL), LT_OK);
            n++;
        } else if (n) {
            uint32_t i = (uint32_t)rnd(&w->seed, n);
            if (w->queue && rnd(&w->seed, 8) == 0) {
                assert_int_equal(lt_queue_copy_out(w->queue, seen[i], b[i].addr, 16, NULL), LT_OK);
                assert_int_equal(lt_queue_sync(w->queue, NULL), LT_OK);
                for (int k = 0; k < 16; k++) assert_int_equal(seen[i][k], mark[i]);
            }
            lt_pool_free(w->r->pool, b[i], w->queue);
            b[i] = b[--n];
            mark[i] = mark[n];
        }
        if (step % 512 == 0) check(w->r);
        if (step % 777 == 0) (void)lt_pool_trim(w->r->pool, MiB);
    }
    while (n) lt_pool_free(w->r->pool, b[--n], w->queue);
    return NULL;
}

static void run_threads(bool queues, int steps)
{
    enum { T = 8 };
    rig r;
    rig_open(&r, 3 * MiB, MiB / 2, false);
    worker w[T];
    pthread_t t[T];
    pthread_barrier_t full;
    pthread_barrier_init(&full, NULL, T);
    for (int i = 0; i < T; i++) {
        w[i] = (worker){.r = &r, .queue = queues ? queue_of(&r) : NULL, .seed = 17u + (unsigned)i, .steps = steps, .full = &full};
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    uint64_t oom = 0;
    for (int i = 0; i < T; i++) {
        pthread_join(t[i], NULL);
        oom += w[i].oom;
    }
    pthread_barrier_destroy(&full);
    assert_true(oom > 0); /* tight enough to meet the hard paths */
    for (int i = 0; i < T; i++)
        if (w[i].queue) {
            lt_pool_forget_queue(r.pool, w[i].queue);
            lt_queue_destroy(w[i].queue);
        }
    check(&r);
    assert_int_equal(stats(&r).live, 0);
    assert_int_equal(stats(&r).bad_frees, 0);
    rig_close(&r);
    assert_int_equal(r.errors_logged, 0);
}

static void eight_threads_on_the_host(void **state)
{
    (void)state;
    run_threads(false, 20000);
}

static void eight_threads_on_eight_queues(void **state)
{
    (void)state;
    run_threads(true, 1500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_keep_every_invariant),
        cmocka_unit_test(edge_arguments),
        cmocka_unit_test(misuse_is_refused_and_counted),
        cmocka_unit_test(limit_can_move),
        cmocka_unit_test(unused_chunks_move),
        cmocka_unit_test(pressure_helps_while_it_makes_progress),
        cmocka_unit_test(same_queue_reuses_at_once),
        cmocka_unit_test(other_queue_waits_for_an_event),
        cmocka_unit_test(forgotten_queue_leaves_its_event),
        cmocka_unit_test(eight_threads_on_the_host),
        cmocka_unit_test(eight_threads_on_eight_queues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
