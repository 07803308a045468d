/* The pool's own cost, and how small an arena serves a trace.
 *
 *     bench_pool [--ops N] [--threads N]
 *
 * Everything here is measured on the CPU: our bookkeeping, on simulated memory nobody touches. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "lowtide/pool.h"
#include "memory/trace.h"

enum { LIVE = 16384 };

static void die(const char *what, const lt_err *err)
{
    fprintf(stderr, "bench_pool: %s: %s\n", what, err->text);
    exit(5);
}

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sizes from 512 B to 1 MiB, small ones more often; a few large. */
static uint64_t size_of(uint64_t *seed)
{
    uint64_t r = rnd(seed), step = 9 + r % 12;
    if (r >> 32 & 1) step = 9 + (r >> 8) % 5;
    return (1ull << step) + (r >> 40) % (1ull << step);
}

typedef struct load {
    lt_pool *pool; /* NULL: the same loop without a pool, to know what the loop itself costs */
    lt_queue *queue;
    uint64_t ops, seed, failures;
    uint32_t live; /* at most */
    uint32_t *hist; /* ns of one operation, the clock's own cost taken off; the last row holds the rest */
    float *batch; /* ns per operation, of each BATCH of them */
    uint64_t clock_ns;
} load;
enum { HIST = 100000, BATCH = 64 };

static uint32_t step(load *l, lt_block *b, uint32_t n)
{
    uint64_t dice = rnd(&l->seed);
    if (n == 0 || (n < l->live && dice % 100 < (n < l->live / 2 ? 60u : 45u))) {
        uint64_t bytes = size_of(&l->seed);
        if (!l->pool) b[n].bytes = bytes;
        else if (lt_pool_alloc(l->pool, bytes, 0, (lt_use)(dice >> 8) % LT_USE_COUNT, l->queue, &b[n], NULL) != LT_OK) {
            l->failures++;
            return n;
        }
        return n + 1;
    }
    uint32_t k = (uint32_t)((dice >> 16) % n);
    if (l->pool) lt_pool_free(l->pool, b[k], l->queue);
    b[k] = b[n - 1];
    return n - 1;
}

static void *run_load(void *arg)
{
    load *l = arg;
    static _Thread_local lt_block b[LIVE];
    uint32_t n = 0;
    uint64_t begin = now_ns();
    for (uint64_t i = 0; i < l->ops; i++) {
        uint64_t t0 = l->hist ? now_ns() : 0;
        n = step(l, b, n);
        if (l->hist) {
            uint64_t t = now_ns() - t0;
            t = t > l->clock_ns ? t - l->clock_ns : 0;
            l->hist[t < HIST ? t : HIST - 1]++;
        }
        if (l->batch && i % BATCH == BATCH - 1) {
            uint64_t t = now_ns();
            l->batch[i / BATCH] = (float)(t - begin) / BATCH;
            begin = now_ns();
        }
    }
    while (l->pool && n) lt_pool_free(l->pool, b[--n], l->queue);
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median ns per operation: half of the batches took less. Other processes only add. */
static double batch_median(load l)
{
    size_t n = (size_t)(l.ops / BATCH);
    l.seed = 88172645463325252ull;
    l.hist = NULL;
    l.batch = calloc(n + 1, sizeof *l.batch);
    if (!l.batch) exit(5);
    run_load(&l);
    qsort(l.batch, n, sizeof *l.batch, by_value);
    double m = (double)l.batch[n / 2];
    free(l.batch);
    return m;
}

static uint64_t clock_cost(void)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 20000; i++) {
        uint64_t a = now_ns(), d = now_ns() - a;
        if (d < best) best = d;
    }
    return best;
}

/* Committed at once: what the device's memory costs is not measured here. */
static lt_pool *make_pool(lt_device *dev, uint64_t limit)
{
    lt_err err = {0};
    lt_pool *pool;
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = limit;
    d.commit_all = true;
    d.name = "bench";
    if (lt_pool_create(dev, &d, &pool, &err) != LT_OK) die("pool", &err);
    return pool;
}

static double percentile(const uint32_t *hist, uint64_t n, double q)
{
    uint64_t seen = 0, want = (uint64_t)(q * (double)n);
    for (int i = 0; i < HIST; i++)
        if ((seen += hist[i]) > want) return i;
    return HIST;
}

static void bench_single(lt_device *dev, uint64_t ops, uint32_t live, lt_queue *queue, const char *what)
{
    lt_pool *pool = make_pool(dev, 2ull << 30);
    load l = {.pool = pool, .queue = queue, .ops = ops, .live = live}, dry = {.ops = ops, .live = live};
    double with = batch_median(l), loop = batch_median(dry);
    l.hist = calloc(HIST, sizeof *l.hist);
    if (!l.hist) exit(5);
    l.clock_ns = clock_cost();
    l.seed = 88172645463325252ull;
    run_load(&l);
    printf("%-12s %6u %10" PRIu64 " %9.1f %9.1f %9.1f %9.0f %9.0f %9" PRIu64 "\n", what, live, ops, 2 * (with - loop), with, loop,
           percentile(l.hist, ops, 0.99), percentile(l.hist, ops, 0.999), l.failures);
    free(l.hist);
    if (queue) lt_pool_forget_queue(pool, queue);
    lt_pool_destroy(pool);
}

static void bench_threads(lt_device *dev, uint64_t ops, int threads)
{
    lt_pool *pool = make_pool(dev, 1ull << 30);
    load l[64];
    pthread_t t[64];
    uint64_t begin = now_ns();
    for (int i = 0; i < threads; i++) {
        l[i] = (load){.pool = pool, .ops = ops / (uint64_t)threads, .live = 1024, .seed = 1234567u + 77u * (unsigned)i};
        if (pthread_create(&t[i], NULL, run_load, &l[i])) exit(5);
    }
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    double ns = (double)(now_ns() - begin);
    lt_err err = {0};
    if (lt_pool_check(pool, &err) != LT_OK) die("check", &err);
    printf("%2d threads, one pool: %.1f M operations/s\n", threads, (double)ops / ns * 1e3);
    lt_pool_destroy(pool);
}

/* --- traces ------------------------------------------------------------------------- */
typedef struct text {
    char *at;
    size_t n, cap;
    uint64_t object;
} text;

static void put(text *t, const char *action, uint64_t object, uint64_t bytes, lt_use use)
{
    if (t->cap - t->n < 200) {
        t->cap = t->cap ? 2 * t->cap : 1 << 20;
        t->at = realloc(t->at, t->cap);
        if (!t->at) exit(5);
    }
    t->n += (size_t)snprintf(t->at + t->n, t->cap - t->n, "0,1,0,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", action, object, bytes,
                             lt__trace_aux(1, use, 0));
}

static void start(text *t)
{
    memset(t, 0, sizeof *t);
    put(t, "step", 0, 0, LT_USE_OTHER);
    t->n = (size_t)sprintf(t->at, "lowtide-trace 1\ntime_ns,thread,queue,action,object,bytes,aux\n");
}

static uint64_t grab(text *t, uint64_t bytes, lt_use use, uint64_t *sizes)
{
    bytes = (bytes + 255) & ~255ull;
    put(t, "alloc", ++t->object, bytes, use);
    sizes[t->object] = bytes;
    return t->object;
}

static void drop(text *t, uint64_t object, lt_use use, const uint64_t *sizes) { put(t, "free", object, sizes[object], use); }

enum { OBJECTS = 400000 };

/* t1: weights once, then prefill and decode; KV grows in pages, activations come and go. */
static void trace_llm(text *t, uint64_t *sizes, bool swap)
{
    const uint64_t h = 4096, ff = 11008;
    const uint64_t row[7] = {h * h, h * h, h * h, h * h, h * ff, h * ff, h * ff};
    static uint64_t weight[32][7];
    start(t);
    for (int l = 0; l < 32; l++)
        for (int k = 0; k < 7; k++) weight[l][k] = grab(t, row[k] * (k == 6 ? 210 : 144) / 256, LT_USE_WEIGHT, sizes);
    for (int step = 0; step < 60; step++) {
        uint64_t rows = step ? 1 : 512;
        if (step % 4 == 0)
            for (int l = 0; l < 32; l++) grab(t, 2 * 16 * 4096, LT_USE_KV, sizes);
        for (int l = 0; l < 32; l++) {
            if (swap && l % 2 && step) /* half of the layers are evicted and loaded again */
                for (int k = 0; k < 7; k++) {
                    drop(t, weight[l][k], LT_USE_WEIGHT, sizes);
                    weight[l][k] = grab(t, row[k] * (k == 6 ? 210 : 144) / 256, LT_USE_WEIGHT, sizes);
                }
            uint64_t x = grab(t, rows * h * 4, LT_USE_ACTIVATION, sizes), q = grab(t, rows * h * 12, LT_USE_ACTIVATION, sizes);
            uint64_t f = grab(t, rows * ff * 8, LT_USE_ACTIVATION, sizes);
            drop(t, q, LT_USE_ACTIVATION, sizes);
            drop(t, f, LT_USE_ACTIVATION, sizes);
            drop(t, x, LT_USE_ACTIVATION, sizes);
        }
    }
}

/* t3: encode, denoise, decode: other shapes in each phase. */
static void trace_diffusion(text *t, uint64_t *sizes)
{
    start(t);
    for (int image = 0; image < 4; image++) {
        static uint64_t enc[200], unet[700], vae[140];
        for (int i = 0; i < 200; i++) enc[i] = grab(t, (uint64_t)(768 + i % 5 * 512) * 768 * 2, LT_USE_WEIGHT, sizes);
        uint64_t text_out = grab(t, 77 * 2048 * 2, LT_USE_ACTIVATION, sizes);
        for (int i = 0; i < 200; i++) drop(t, enc[i], LT_USE_WEIGHT, sizes);
        for (int i = 0; i < 700; i++) unet[i] = grab(t, (uint64_t)(320 << i % 3) * (320u << i % 2) * (i % 4 ? 2 : 18), LT_USE_WEIGHT, sizes);
        for (int step = 0; step < 20; step++)
            for (int i = 0; i < 60; i++) {
                uint64_t px = 128 >> (i < 30 ? i / 10 : 5 - i / 10), a = grab(t, px * px * 320 * 2 * (1 + i % 3), LT_USE_ACTIVATION, sizes);
                uint64_t b = grab(t, px * px * 640 * 2, LT_USE_ACTIVATION, sizes);
                drop(t, a, LT_USE_ACTIVATION, sizes);
                drop(t, b, LT_USE_ACTIVATION, sizes);
            }
        for (int i = 0; i < 700; i++) drop(t, unet[i], LT_USE_WEIGHT, sizes);
        for (int i = 0; i < 140; i++) vae[i] = grab(t, (uint64_t)(128 << i % 3) * 512 * 18, LT_USE_WEIGHT, sizes);
        uint64_t big = grab(t, 1024ull * 1024 * 128 * 2, LT_USE_ACTIVATION, sizes);
        drop(t, big, LT_USE_ACTIVATION, sizes);
        for (int i = 0; i < 140; i++) drop(t, vae[i], LT_USE_WEIGHT, sizes);
        drop(t, text_out, LT_USE_ACTIVATION, sizes);
    }
}

/* t6: random sizes and lives at a full cache, the worst of ours: evict until the new one fits. */
static void trace_cache(text *t, uint64_t *sizes, bool classes)
{
    enum { N = 600 };
    static uint64_t at[N], want[N];
    uint64_t seed = 99, used = 0, budget = 0;
    start(t);
    for (int i = 0; i < N; i++) {
        const uint64_t steps[7] = {144, 96, 48, 396, 396, 578, 9};
        want[i] = classes ? steps[i % 7] << 13 : (64 + rnd(&seed) % 8192) << 8;
        at[i] = 0;
        budget += want[i];
    }
    budget /= 2;
    for (int s = 0; s < 40000; s++) {
        int i = (int)(rnd(&seed) % N);
        if (at[i]) continue;
        while (used + want[i] > budget) {
            int v = (int)(rnd(&seed) % N);
            if (!at[v]) continue;
            drop(t, at[v], LT_USE_WEIGHT, sizes);
            used -= want[v];
            at[v] = 0;
        }
        at[i] = grab(t, want[i], LT_USE_WEIGHT, sizes);
        used += want[i];
    }
}

static void bench_trace(lt_ctx *ctx, const char *what, const text *t)
{
    lt_err err = {0};
    lt_replay_result r;
    uint64_t begin = now_ns();
    if (lt__trace_replay_text(ctx, what, t->at, t->n, NULL, &r, &err) != LT_OK) die(what, &err);
    printf("%-34s %9" PRIu64 " %10.1f %10.1f %8.4f %9.2f\n", what, r.events, (double)r.peak_live / 1048576, (double)r.smallest_arena / 1048576,
           (double)r.smallest_arena / (double)r.peak_live, (double)(now_ns() - begin) / 1e9);
    free(t->at);
}

int main(int argc, char **argv)
{
    uint64_t ops = 10000000;
    int threads = 8;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--ops")) ops = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--threads")) threads = atoi(argv[i + 1]);
    }
    if (ops < 1 || threads < 1 || threads > 64) {
        fprintf(stderr, "usage: bench_pool [--ops N] [--threads 1..64]\n");
        return 2;
    }
    lt_err err = {0};
    lt_ctx *ctx;
    lt_device *dev;
    lt_queue *q, *q2;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK) die("context", &err);
    if (lt_device_open(ctx, "sim:vram=20G", &dev, &err) != LT_OK) die("device", &err);
    if (lt_queue_create(dev, LT_QUEUE_COPY, &q, &err) != LT_OK || lt_queue_create(dev, LT_QUEUE_COPY, &q2, &err) != LT_OK) die("queue", &err);
    printf("mixed alloc and free, 512 B to 2 MiB (ns; pair = one alloc + one free, the loop's own cost taken off)\n");
    printf("%-12s %6s %10s %9s %9s %9s %9s %9s %9s\n", "", "live", "operations", "pair p50", "op+loop", "loop", "op p99", "op p99.9", "failures");
    const uint32_t live[] = {256, 1024, 4096, LIVE};
    for (int i = 0; i < 4; i++) bench_single(dev, ops, live[i], NULL, "host");
    bench_single(dev, ops, 1024, q, "one queue");
    bench_threads(dev, ops / 4, 1);
    bench_threads(dev, ops / 4, threads);

    printf("\n%-34s %9s %10s %10s %8s %9s\n", "smallest arena that completes", "events", "peak MiB", "arena MiB", "ratio", "seconds");
    uint64_t *sizes = calloc(OBJECTS, sizeof *sizes);
    text t;
    if (!sizes) return 5;
    trace_llm(&t, sizes, false);
    bench_trace(ctx, "llm, resident", &t);
    trace_llm(&t, sizes, true);
    bench_trace(ctx, "llm, half of the layers swapped", &t);
    trace_diffusion(&t, sizes);
    bench_trace(ctx, "diffusion phases", &t);
    trace_cache(&t, sizes, true);
    bench_trace(ctx, "full cache, a model's sizes", &t);
    trace_cache(&t, sizes, false);
    bench_trace(ctx, "full cache, random sizes", &t);
    free(sizes);
    lt_queue_destroy(q);
    lt_queue_destroy(q2);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return 0;
}
