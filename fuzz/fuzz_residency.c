/* The API sequence of the residency manager: each byte or two of input is a call; every invariant is
 * walked after each, every byte an item shows is compared, and a fault may strike on the way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "lowtide/residency.h"
#include "lowtide/store.h"
#include "memory/residency_impl.h"

enum { FILE_BYTES = 256 << 10, ITEMS = 16, HELD = 8, STEPS = 200 };

typedef struct world {
    const uint8_t *data;
    size_t left;
    lt_ctx *ctx;
    lt_device *dev;
    lt_pool *pool;
    lt_store *store;
    lt_residency *res;
    lt_queue *q;
    struct thing {
        lt_item item;
        uint64_t offset, bytes;
        bool live, writable;
        uint8_t *home;
        uint32_t held;
    } thing[ITEMS];
    lt_lease held[HELD];
    size_t held_thing[HELD];
    int fault_in, fault_point; /* calls until one fails */
    bool failed;
} world;

static uint8_t file_bytes[FILE_BYTES];
static char file_path[64];

static uint32_t take(world *w)
{
    if (w->left == 0) return 0;
    w->left--;
    return *w->data++;
}

static bool fault(void *user, lt_fault_point point)
{
    world *w = user;
    if ((int)point != __atomic_load_n(&w->fault_point, __ATOMIC_RELAXED)) return false;
    bool now = __atomic_fetch_sub(&w->fault_in, 1, __ATOMIC_RELAXED) == 1;
    if (now) __atomic_store_n(&w->failed, true, __ATOMIC_RELAXED);
    return now;
}

#define MUST(x) do { if (!(x)) { fprintf(stderr, "fuzz_residency: %s\n", #x); abort(); } } while (0)

static lt_status home_read(void *user, uint64_t at, void *dst, uint64_t n, lt_err *err)
{
    (void)err;
    memcpy(dst, ((struct thing *)user)->home + at, n);
    return LT_OK;
}
static lt_status home_write(void *user, uint64_t at, const void *src, uint64_t n, lt_err *err)
{
    (void)err;
    memcpy(((struct thing *)user)->home + at, src, n);
    return LT_OK;
}

static void check(world *w)
{
    lt_err err;
    if (lt_residency_check(w->res, &err) != LT_OK || lt_pool_check(w->pool, &err) != LT_OK) {
        fprintf(stderr, "fuzz_residency: %s\n", err.text);
        abort();
    }
}

/* A queue that failed stays failed; whoever uses it makes a new one. */
static void mend(world *w)
{
    lt_err err;
    if (lt_queue_sync(w->q, &err) == LT_OK) return;
    MUST(__atomic_load_n(&w->failed, __ATOMIC_RELAXED));
    __atomic_store_n(&w->fault_point, -1, __ATOMIC_RELAXED);
    lt_pool_forget_queue(w->pool, w->q);
    lt_queue_destroy(w->q);
    MUST(lt_queue_create(w->dev, LT_QUEUE_COMPUTE, &w->q, &err) == LT_OK);
    lt_status st = lt_residency_sync(w->res, &err);
    MUST(st == LT_OK || err.text[0]);
}

static void add(world *w)
{
    struct thing *t = &w->thing[take(w) % ITEMS];
    if (t->live) return;
    uint32_t kind = take(w);
    t->bytes = (take(w) * 251 + take(w)) % 40000 + 1;
    t->offset = (take(w) * 997u) % (FILE_BYTES - t->bytes);
    t->writable = kind % 4 == 3;
    lt_item_desc d = {.name = "thing",
                      .bytes = t->bytes,
                      .use = LT_USE_WEIGHT,
                      .priority = (int32_t)(kind >> 6),
                      .streamed = kind % 4 == 1 || kind % 4 == 2};
    if (t->writable) {
        t->home = malloc(t->bytes);
        memset(t->home, (int)kind, t->bytes);
        d.source = (lt_source){.read = home_read, .write = home_write, .user = t};
    } else d.source = (lt_source){.store = w->store, .offset = t->offset};
    t->live = lt_residency_add(w->res, &d, &t->item, NULL) == LT_OK;
    if (!t->live) {
        free(t->home);
        t->home = NULL;
    }
}

/* False: the queue failed, and what was leased on it is worth nothing. */
static bool compare(world *w, size_t i, lt_addr addr)
{
    struct thing *t = &w->thing[i];
    static uint8_t got[40001];
    lt_err err;
    if (t->writable && t->held > 1) return true; /* another lease may be writing */
    if (lt_queue_copy_out(w->q, got, addr, t->bytes, &err) != LT_OK || lt_queue_sync(w->q, &err) != LT_OK) {
        mend(w);
        return false;
    }
    MUST(memcmp(got, t->writable ? t->home : file_bytes + t->offset, t->bytes) == 0);
    return true;
}

static void let_go(world *w, size_t h)
{
    if (!w->held[h].addr) return;
    lt_residency_release(w->res, w->held[h], w->q);
    w->thing[w->held_thing[h]].held--;
    w->held[h] = (lt_lease){0};
}

static void lease(world *w)
{
    size_t h = take(w) % HELD, i = take(w) % ITEMS;
    struct thing *t = &w->thing[i];
    lt_err err = {0};
    let_go(w, h);
    lt_status st = lt_residency_lease(w->res, t->item, w->q, &w->held[h], &err);
    if (st != LT_OK) {
        MUST(err.text[0] && err.status == st);
        mend(w);
        return;
    }
    MUST(t->live);
    w->held_thing[h] = i;
    t->held++;
    (void)compare(w, i, w->held[h].addr);
}

static void lease_many(world *w)
{
    lt_item items[3];
    lt_lease l[3];
    size_t n = take(w) % 3 + 1, which[3];
    for (size_t k = 0; k < n; k++) items[k] = w->thing[which[k] = take(w) % ITEMS].item;
    if (lt_residency_lease_many(w->res, items, n, w->q, l, NULL) != LT_OK) {
        mend(w);
        return;
    }
    for (size_t k = 0; k < n; k++) w->thing[which[k]].held++;
    for (size_t k = 0; k < n && compare(w, which[k], l[k].addr); k++) {}
    for (size_t k = 0; k < n; k++) {
        lt_residency_release(w->res, l[k], w->q);
        w->thing[which[k]].held--;
    }
}

static void dirty(world *w)
{
    size_t h = take(w) % HELD;
    struct thing *t = &w->thing[w->held_thing[h]];
    lt_err err;
    if (!w->held[h].addr || lt_residency_mark_dirty(w->res, w->held[h], &err) != LT_OK) return;
    MUST(t->writable);
    uint8_t value = (uint8_t)take(w);
    if (lt_queue_fill(w->q, w->held[h].addr, value, t->bytes, &err) != LT_OK ||
        lt_queue_sync(w->q, &err) != LT_OK)
        mend(w);
    else memset(t->home, value, t->bytes); /* what it must be once it is here again */
}

static void plan(world *w)
{
    lt_item order[24];
    size_t n = take(w) % 24, k = 0;
    for (size_t i = 0; i < n; i++) {
        struct thing *t = &w->thing[take(w) % ITEMS];
        if (t->live) order[k++] = t->item;
    }
    (void)!lt_residency_plan(w->res, order, k, take(w) % 2, NULL);
}

static void remove_thing(world *w)
{
    struct thing *t = &w->thing[take(w) % ITEMS];
    lt_status st = lt_residency_remove(w->res, t->item, NULL);
    if (st == LT_OK) {
        MUST(t->live && t->held == 0);
        free(t->home);
        *t = (struct thing){0};
    } else MUST(!t->live || t->held > 0 || st == LT_E_IO || t->writable);
}

static void step(world *w)
{
    lt_err err;
    switch (take(w) % 11) {
    case 0: add(w); break;
    case 1: case 2: case 3: lease(w); break;
    case 4: let_go(w, take(w) % HELD); break;
    case 5: lease_many(w); break;
    case 6: plan(w); break;
    case 7: (void)!lt_residency_prefetch(w->res, w->thing[take(w) % ITEMS].item, &err); break;
    case 8: (void)lt_residency_shrink(w->res, take(w) * 1000u); break;
    case 9: {
        uint32_t what = take(w);
        if (what % 3 == 0) remove_thing(w);
        else if (what % 3 == 1) dirty(w);
        else {
            lt_block b;
            if (lt_pool_alloc(w->pool, take(w) * 2000u + 1, 0, LT_USE_ACTIVATION, w->q, &b, NULL) == LT_OK)
                lt_pool_free(w->pool, b, w->q);
        }
        break;
    }
    default:
        if (!w->failed) {
            uint32_t b = take(w);
            __atomic_store_n(&w->fault_in, (int)(b >> 3) + 1, __ATOMIC_RELAXED);
            __atomic_store_n(&w->fault_point,
                             (int)(b % 2   ? LT_FAULT_READ
                                   : b % 4 ? LT_FAULT_COPY
                                           : LT_FAULT_HOST_ALLOC),
                             __ATOMIC_RELAXED);
        }
    }
    check(w);
}

static void make_file(void)
{
    if (file_path[0]) return;
    snprintf(file_path, sizeof file_path, "/tmp/lowtide-fuzz-%d", (int)getpid());
    for (size_t i = 0; i < FILE_BYTES; i++) file_bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    FILE *f = fopen(file_path, "wb");
    MUST(f && fwrite(file_bytes, 1, FILE_BYTES, f) == FILE_BYTES && fclose(f) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    make_file();
    world *w = calloc(1, sizeof *w);
    w->data = data;
    w->left = size;
    w->fault_point = -1;
    uint32_t shape = take(w);
    lt_ctx_desc cd = lt_ctx_desc_default();
    cd.fault = fault;
    cd.fault_user = w;
    lt_pool_desc pd = lt_pool_desc_default();
    lt_residency_desc rd = lt_residency_desc_default();
    pd.limit_bytes = 256 << 10;
    rd.ring_bytes = shape % 4 ? 96 << 10 : 0;
    rd.staging_bytes = 16 << 10;
    rd.pin_bytes = shape % 4 > 1 ? 1 << 20 : 0; /* more than the file */
    rd.ahead_bytes = shape & 8 ? 60000 : 0;
    rd.high_water = shape & 16 ? 100000 : 0;
    rd.low_water = rd.high_water / 2;
    rd.policy = shape & 32 ? lt_policy_next_use : lt_policy_lru;
    uint32_t f;
    MUST(lt_ctx_create(&cd, &w->ctx, NULL) == LT_OK);
    MUST(lt_device_open(w->ctx, shape & 4 ? "cpu:threads=1" : "sim:vram=1M,threads=1", &w->dev, NULL) ==
         LT_OK);
    MUST(lt_pool_create(w->dev, &pd, &w->pool, NULL) == LT_OK);
    MUST(lt_store_create(w->ctx,
                         shape & 64    ? LT_STORE_MAPPED
                         : shape & 128 ? LT_STORE_DIRECT
                                       : LT_STORE_PLAIN,
                         0, &w->store, NULL) == LT_OK);
    MUST(lt_store_add_file(w->store, file_path, &f, NULL) == LT_OK);
    MUST(lt_queue_create(w->dev, LT_QUEUE_COMPUTE, &w->q, NULL) == LT_OK);
    MUST(lt_residency_create(w->pool, &rd, &w->res, NULL) == LT_OK);
    for (int i = 0; i < STEPS && w->left > 0; i++) step(w);
    for (size_t h = 0; h < HELD; h++) let_go(w, h);
    mend(w);
    check(w);
    lt_residency_destroy(w->res);
    lt_queue_destroy(w->q);
    lt_store_destroy(w->store);
    lt_pool_stats ps;
    lt_pool_get_stats(w->pool, &ps);
    MUST(ps.live == 0);
    lt_pool_destroy(w->pool);
    lt_device_close(w->dev);
    MUST(lt_ctx_host_bytes(w->ctx) == 0);
    lt_ctx_destroy(w->ctx);
    for (size_t i = 0; i < ITEMS; i++) free(w->thing[i].home);
    free(w);
    return 0;
}
