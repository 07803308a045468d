/* bench_residency FILE [RING_MIB] [ITEM_KIB]: streams a file once through the ring of a `cpu` device and
 * prints the rate beside that of plain sequential O_DIRECT reads of the same span. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "lowtide/residency.h"
#include "lowtide/store.h"

enum { PASSES = 3 };

static void die(const char *what)
{
    fprintf(stderr, "bench_residency: %s\n", what);
    exit(1);
}

static double plain_rate(const char *path, uint64_t bytes)
{
    void *buf;
    size_t unit = 1 << 20;
    int fd = open(path, O_RDONLY | O_DIRECT);
    if (fd < 0 || posix_memalign(&buf, 4096, unit) != 0) die("cannot read the file directly");
    uint64_t t0 = lt__now_ns();
    for (uint64_t at = 0; at < bytes; at += unit)
        if (pread(fd, buf, unit, (off_t)at) < 0) die("read failed");
    double s = (double)(lt__now_ns() - t0) * 1e-9;
    free(buf);
    close(fd);
    return (double)bytes / s * 1e-9;
}

static double ring_rate(lt_ctx *ctx, const char *path, uint64_t bytes, uint64_t ring, uint64_t each)
{
    lt_err err;
    lt_device *dev;
    lt_pool *pool;
    lt_store *store;
    lt_residency *res;
    lt_queue *q;
    uint32_t f;
    lt_pool_desc pd = lt_pool_desc_default();
    pd.limit_bytes = ring + (64 << 20);
    lt_residency_desc rd = lt_residency_desc_default();
    rd.ring_bytes = ring;
    size_t n = (size_t)(bytes / each);
    lt_item *items = calloc(n, sizeof *items);
    if (!items || lt_device_open(ctx, "cpu:threads=1", &dev, &err) || lt_pool_create(dev, &pd, &pool, &err) ||
        lt_store_create(ctx, LT_STORE_DIRECT, 0, &store, &err) || lt_store_add_file(store, path, &f, &err) ||
        lt_queue_create(dev, LT_QUEUE_COMPUTE, &q, &err) || lt_residency_create(pool, &rd, &res, &err))
        die(err.text);
    for (size_t i = 0; i < n; i++) {
        lt_item_desc d = {.name = "slice",
                          .bytes = each,
                          .source = {.store = store, .file = f, .offset = i * each + 32 * (i % 7)},
                          .use = LT_USE_WEIGHT,
                          .streamed = true};
        if (d.source.offset + each > bytes) d.source.offset = bytes - each;
        if (lt_residency_add(res, &d, &items[i], &err)) die(err.text);
    }
    uint64_t t0 = lt__now_ns();
    if (lt_residency_plan(res, items, n, false, &err)) die(err.text);
    for (size_t i = 0; i < n; i++) {
        lt_lease l;
        if (lt_residency_lease(res, items[i], q, &l, &err)) die(err.text);
        lt_residency_release(res, l, q);
    }
    if (lt_queue_sync(q, &err)) die(err.text);
    double s = (double)(lt__now_ns() - t0) * 1e-9;
    lt_residency_destroy(res);
    lt_queue_destroy(q);
    lt_store_destroy(store);
    lt_pool_destroy(pool);
    lt_device_close(dev);
    free(items);
    return (double)(n * each) / s * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_residency FILE [RING_MIB] [ITEM_KIB]\n");
        return 2;
    }
    uint64_t ring = argc > 2 ? strtoull(argv[2], NULL, 10) << 20 : 64 << 20;
    uint64_t each = argc > 3 ? strtoull(argv[3], NULL, 10) << 10 : 3 << 20;
    int fd = open(argv[1], O_RDONLY);
    off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (size < (off_t)each) die("cannot open the file, or it is smaller than one item");
    close(fd);
    uint64_t bytes = lt__round_down((uint64_t)size, 1 << 20);
    lt_ctx *ctx;
    lt_err err;
    if (lt_ctx_create(NULL, &ctx, &err)) die(err.text);
    double plain = 0, through = 0;
    for (int i = 0; i < PASSES; i++) { /* alternating: what disturbs the one disturbs the other */
        double p = plain_rate(argv[1], bytes), t = ring_rate(ctx, argv[1], bytes, ring, each);
        if (p > plain) plain = p;
        if (t > through) through = t;
    }
    printf("plain sequential O_DIRECT %.2f GB/s, through the ring %.2f GB/s: %.2f of it (ring %" PRIu64
           " MiB, items %" PRIu64 " KiB)\n",
           plain, through, through / plain, ring >> 20, each >> 10);
    lt_ctx_destroy(ctx);
    return 0;
}
