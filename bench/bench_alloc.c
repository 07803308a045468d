/* Allocating and freeing device memory: the pool beside the driver's own stream-ordered one, in one run.
 *
 *     bench_alloc [DEVICE=cuda] [--ops N]
 *
 * Each loop keeps 64 blocks of 4 KiB to 4 MiB and replaces one at a time, on one queue; both pools are primed, so
 * neither asks the system for memory while it is timed. Without an NVIDIA driver only the pool is measured. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lowtide/pool.h"

enum { LIVE = 64, REPEATS = 5 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t size_of(uint64_t *s)
{
    *s ^= *s << 13, *s ^= *s >> 7, *s ^= *s << 17;
    return (uint64_t)4096 << (*s >> 8) % 11;
}

static void die(const char *what, const lt_err *err)
{
    fprintf(stderr, "bench_alloc: %s: %s\n", what, err->text);
    exit(5);
}

/* Least nanoseconds of a pair over the repeats; the first, which primes, does not count. */
static double time_pool(lt_device *dev, uint64_t ops)
{
    lt_err err;
    lt_queue *q;
    lt_pool *pool;
    lt_pool_desc d = lt_pool_desc_default();
    lt_block b[LIVE];
    double best = 1e30;
    d.limit_bytes = (uint64_t)512 << 20;
    d.commit_all = true;
    if (lt_queue_create(dev, LT_QUEUE_COMPUTE, &q, &err) != LT_OK || lt_pool_create(dev, &d, &pool, &err) != LT_OK)
        die("the pool", &err);
    for (int r = 0; r < REPEATS; r++) {
        uint64_t seed = 88172645463325252u;
        for (int i = 0; i < LIVE; i++)
            if (lt_pool_alloc(pool, size_of(&seed), 256, LT_USE_OTHER, q, &b[i], &err) != LT_OK)
                die("alloc", &err);
        uint64_t t0 = now_ns();
        for (uint64_t i = 0; i < ops; i++) {
            lt_pool_free(pool, b[i % LIVE], q);
            if (lt_pool_alloc(pool, size_of(&seed), 256, LT_USE_OTHER, q, &b[i % LIVE], &err) != LT_OK)
                die("alloc", &err);
        }
        double ns = (double)(now_ns() - t0) / (double)ops;
        if (r && ns < best)
            best = ns;
        for (int i = 0; i < LIVE; i++)
            lt_pool_free(pool, b[i], q);
        if (lt_queue_sync(q, &err) != LT_OK)
            die("sync", &err);
    }
    lt_pool_destroy(pool);
    lt_queue_destroy(q);
    return best;
}

typedef struct driver {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*current)(void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_sync)(void *);
    int (*mempool)(void **, int);
    int (*set)(void *, int, void *);
    int (*alloc)(uint64_t *, size_t, void *);
    int (*release)(uint64_t, void *);
} driver;

static bool load(driver *d, void *lib)
{
    struct { void **at; const char *name; } row[] = {
        {(void **)&d->init, "cuInit"}, {(void **)&d->retain, "cuDevicePrimaryCtxRetain"}, {(void **)&d->current, "cuCtxSetCurrent"},
        {(void **)&d->stream_create, "cuStreamCreate"}, {(void **)&d->stream_sync, "cuStreamSynchronize"},
        {(void **)&d->mempool, "cuDeviceGetDefaultMemPool"}, {(void **)&d->set, "cuMemPoolSetAttribute"},
        {(void **)&d->alloc, "cuMemAllocAsync"}, {(void **)&d->release, "cuMemFreeAsync"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (!(*row[i].at = dlsym(lib, row[i].name)))
            return false;
    return true;
}

/* Negative: no such driver, or it refused. */
static double time_driver(uint64_t ops)
{
    driver d;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context, *stream, *pool;
    uint64_t keep = UINT64_MAX, b[LIVE];
    double best = 1e30;
    enum { RELEASE_THRESHOLD = 4 };
    if (!lib || !load(&d, lib) || d.init(0) || d.retain(&context, 0) || d.current(context) || d.stream_create(&stream, 0) ||
        d.mempool(&pool, 0) || d.set(pool, RELEASE_THRESHOLD, &keep))
        return -1;
    for (int r = 0; r < REPEATS; r++) {
        uint64_t seed = 88172645463325252u;
        for (int i = 0; i < LIVE; i++)
            if (d.alloc(&b[i], size_of(&seed), stream))
                return -1;
        uint64_t t0 = now_ns();
        for (uint64_t i = 0; i < ops; i++)
            if (d.release(b[i % LIVE], stream) || d.alloc(&b[i % LIVE], size_of(&seed), stream))
                return -1;
        double ns = (double)(now_ns() - t0) / (double)ops;
        if (r && ns < best)
            best = ns;
        for (int i = 0; i < LIVE; i++)
            (void)d.release(b[i], stream);
        if (d.stream_sync(stream))
            return -1;
    }
    return best;
}

int main(int argc, char **argv)
{
    const char *spec = "cuda";
    uint64_t ops = 200000;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--ops") && i + 1 < argc)
            ops = strtoull(argv[++i], NULL, 10);
        else
            spec = argv[i];
    }
    lt_err err;
    lt_ctx *ctx;
    lt_device *dev;
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK || lt_device_open(ctx, spec, &dev, &err) != LT_OK)
        die(spec, &err);
    double ours = time_pool(dev, ops), theirs = time_driver(ops);
    if (theirs > 0)
        printf("pool on %s: %.0f ns a pair of alloc and free; cuMemAllocAsync and cuMemFreeAsync %.0f ns: %.2f of it\n", spec, ours, theirs, ours / theirs);
    else
        printf("pool on %s: %.0f ns a pair of alloc and free; no NVIDIA driver to compare with\n", spec, ours);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return 0;
}
