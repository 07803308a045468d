/* residency.c - a stranger's program: eight "layers" of a file pass through a device that holds five.
 *
 * It writes a small file, opens a simulated card with less memory than the file, keeps two layers
 * there, streams the others through a ring, and adds up all bytes on the way. Public headers only. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lowtide/residency.h"
#include "lowtide/store.h"

enum { LAYERS = 8, KEPT = 2, LAYER_BYTES = 1 << 20, PASSES = 3 };

typedef struct program {
    lt_ctx       *ctx;
    lt_device    *dev;
    lt_pool      *pool;
    lt_store     *store;
    lt_queue     *queue;
    lt_residency *res;
    lt_item       item[LAYERS];
    char         *out; /* what came back from the device */
} program;

/* Layer i holds the byte i + 1. */
static int write_layers(char *path)
{
    int fd = mkstemp(path);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    static char layer[LAYER_BYTES];
    if (!f) return -1;
    for (int i = 0; i < LAYERS; i++) {
        memset(layer, i + 1, sizeof layer);
        if (fwrite(layer, 1, sizeof layer, f) != sizeof layer) break;
    }
    return fclose(f);
}

static lt_status open_all(program *p, const char *path, lt_err *err)
{
    lt_pool_desc pd = lt_pool_desc_default();
    lt_residency_desc rd = lt_residency_desc_default();
    uint32_t file;
    lt_status st;
    pd.limit_bytes = 5 * LAYER_BYTES;
    rd.ring_bytes = 2 * LAYER_BYTES;
    rd.policy = lt_policy_next_use;
    if ((st = lt_ctx_create(NULL, &p->ctx, err)) != LT_OK) return st;
    if ((st = lt_device_open(p->ctx, "sim:vram=64M,threads=1", &p->dev, err)) != LT_OK) return st;
    if ((st = lt_pool_create(p->dev, &pd, &p->pool, err)) != LT_OK) return st;
    if ((st = lt_store_create(p->ctx, LT_STORE_AUTO, 0, &p->store, err)) != LT_OK) return st;
    if ((st = lt_store_add_file(p->store, path, &file, err)) != LT_OK) return st;
    if ((st = lt_queue_create(p->dev, LT_QUEUE_COMPUTE, &p->queue, err)) != LT_OK) return st;
    if ((st = lt_residency_create(p->pool, &rd, &p->res, err)) != LT_OK) return st;
    for (int i = 0; i < LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer %d", i);
        lt_item_desc d = {.name = name, .bytes = LAYER_BYTES, .use = LT_USE_WEIGHT, .streamed = i >= KEPT,
                          .source = {.store = p->store, .file = file, .offset = (uint64_t)i * LAYER_BYTES}};
        if ((st = lt_residency_add(p->res, &d, &p->item[i], err)) != LT_OK) return st;
    }
    return lt_residency_plan(p->res, p->item, LAYERS, true, err);
}

static void close_all(program *p)
{
    lt_residency_destroy(p->res);
    if (p->queue) lt_queue_destroy(p->queue);
    lt_store_destroy(p->store);
    lt_pool_destroy(p->pool);
    lt_device_close(p->dev);
    lt_ctx_destroy(p->ctx);
}

/* One sweep: lease, enqueue work, release. The host waits for the device only at the end. */
static lt_status sweep(program *p, lt_err *err)
{
    for (int i = 0; i < LAYERS; i++) {
        lt_lease l;
        lt_status st = lt_residency_lease(p->res, p->item[i], p->queue, &l, err);
        if (st != LT_OK) return st;
        st = lt_queue_copy_out(p->queue, p->out + (size_t)i * LAYER_BYTES, l.addr, LAYER_BYTES, err);
        lt_residency_release(p->res, l, p->queue);
        if (st != LT_OK) return st;
    }
    return lt_queue_sync(p->queue, err);
}

static bool run(program *p, const char *path, lt_err *err)
{
    if (open_all(p, path, err) != LT_OK) return false;
    for (int pass = 0; pass < PASSES; pass++) {
        if (sweep(p, err) != LT_OK) return false;
        uint64_t sum = 0, want = (uint64_t)LAYER_BYTES * LAYERS * (LAYERS + 1) / 2;
        for (size_t i = 0; i < (size_t)LAYERS * LAYER_BYTES; i++) sum += (unsigned char)p->out[i];
        printf("pass %d: sum %" PRIu64 "\n", pass, sum);
        if (sum != want) {
            snprintf(err->text, sizeof err->text, "expected %" PRIu64, want);
            return false;
        }
    }
    lt_residency_stats s;
    lt_residency_get_stats(p->res, &s);
    printf("%" PRIu64 " leases, %" PRIu64 " hits, %" PRIu64 " bytes kept, at most %" PRIu64
           " in the ring, host waited %.3f ms\n",
           s.leases, s.hits, s.resident, s.ring_peak, (double)s.stall_ns * 1e-6);
    return true;
}

int main(void)
{
    char path[] = "/tmp/lowtide-example-XXXXXX";
    program p = {.out = malloc((size_t)LAYERS * LAYER_BYTES)};
    lt_err err = {0};
    if (!p.out || write_layers(path) != 0) {
        perror("residency example");
        free(p.out);
        return 1;
    }
    bool ok = run(&p, path, &err);
    if (!ok) fprintf(stderr, "residency example: %s\n", err.text);
    close_all(&p);
    unlink(path);
    free(p.out);
    return ok ? 0 : 1;
}
