/* profile.c - measures what this machine and device do, once, and keeps it in the cache folder.
 *
 * Everything is measured through the device interface with the ops a model will use, on data that
 * fits the caches for the arithmetic rates and does not for the memory rate; a product then takes the
 * longer of the two. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "backend/backend.h"
#include "base/host.h"
#include "base/mem.h"
#include "lowtide/plan.h"
#include "lowtide/store.h"

/* LT_KERNELS names the build's kernels and flags: other code, or a sanitized build, has other rates. */
#define PROFILE_VERSION 4
#define ROWS 256
#define COLS 2048
#define TOKENS 64
#define READ_BYTES (UINT64_C(128) << 20)
#define DISK_BYTES (UINT64_C(32) << 20)
#define LINK_BYTES (UINT64_C(32) << 20)
/* A card is measured in rows and tokens that keep all of it busy, and in runs that hide the way there. */
#define CARD_ROWS 8192
#define CARD_TOKENS 512
#define CARD_BYTES (UINT64_C(120) << 20) /* f32 weight, activations, outputs and scratch of such a product */
#define CARD_LAUNCHES 8
#define LISTED 64 /* small launches behind each other */

typedef struct bench {
    lt_ctx    *ctx;
    lt_device *dev;
    lt_queue  *queue;
    lt_addr    mem;
    uint64_t   mem_bytes;
    lt_device_info info;
} bench;

/* Least seconds of several runs of `n` launches; the first, cold, does not count. Others' load only ever
 * adds time, so many short runs find a quiet one: at least 5, at most 16, for `patience` altogether. */
static lt_status time_launches(bench *b, const lt_op_args *args, int n, double patience, double *out, lt_err *err)
{
    *out = 1e30;
    uint64_t begun = lt__now_ns();
    for (int run = 0; run < 16 && (run < 6 || (double)(lt__now_ns() - begun) * 1e-9 < patience); run++) {
        uint64_t t0 = lt__now_ns();
        for (int i = 0; i < n; i++) {
            lt_status s = lt__queue_launch(b->queue, args, err);
            if (s != LT_OK)
                return s;
        }
        lt_status s = lt_queue_sync(b->queue, err);
        if (s != LT_OK)
            return s;
        double t = (double)(lt__now_ns() - t0) * 1e-9;
        if (run && t < *out)
            *out = t;
    }
    return LT_OK;
}

/* The same as a list, where lists are more than their launches: as a pass gives them. */
static lt_status time_list(bench *b, const lt_op_args *args, double *out, lt_err *err)
{
    const lt_op_args *all[LISTED];
    lt_launch_list list = {.args = all, .n = LISTED, .replay = true};
    *out = 1e30;
    for (int i = 0; i < LISTED; i++)
        all[i] = args;
    lt_status s = LT_OK;
    for (int run = 0; run < 8 && s == LT_OK; run++) {
        uint64_t t0 = lt__now_ns();
        s = lt__list_run(b->queue, &list, err);
        if (s == LT_OK)
            s = lt_queue_sync(b->queue, err);
        double t = (double)(lt__now_ns() - t0) * 1e-9;
        if (run && t < *out)
            *out = t;
    }
    lt__list_free(b->dev, &list);
    return s;
}

static lt_view view2(lt_addr addr, lt_dtype t, int64_t rows, int64_t cols)
{
    uint64_t row = 0;
    bool ok = lt_dtype_row_bytes(t, (uint64_t)cols, &row);
    LT_ASSERT(ok);
    const lt_dtype_traits *tr = lt_dtype_get(t);
    return (lt_view){.addr = addr, .dtype = t, .ndim = 2, .dim = {rows, cols}, .stride = {(int64_t)row, tr->block_bytes}};
}

static bool is_card(const bench *b) { return !b->info.host_visible && b->mem_bytes >= CARD_BYTES; }

/* Gives a launch its scratch, behind `used` bytes of the bench's memory. */
static lt_status give_scratch(const bench *b, lt_op_args *a, uint64_t used, lt_err *err)
{
    uint64_t bytes = lt__device_scratch_bytes(b->dev, a);
    used = lt__round_up(used, 256);
    if (used > b->mem_bytes || bytes > b->mem_bytes - used)
        return lt__fail(err, LT_E_DEVICE_OOM, "measuring %s needs %lu bytes of scratch behind %lu, there are %lu in all",
                        lt_op_get(a->op)->name, bytes, used, b->mem_bytes);
    a->scratch = bytes ? b->mem + used : 0;
    return LT_OK;
}

/* LINEAR of every weight dtype the device takes: rates at one row of activations and at those of a prompt. */
static lt_status measure_products(bench *b, lt_profile *p, lt_err *err)
{
    int64_t rows = is_card(b) ? CARD_ROWS : ROWS, tokens = is_card(b) ? CARD_TOKENS : TOKENS;
    lt_addr w = b->mem, x = b->mem + (uint64_t)rows * COLS * 4, y = x + (uint64_t)tokens * COLS * 4;
    uint64_t used = y - b->mem + (uint64_t)(tokens * rows) * 4;
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        const lt_dtype_traits *tr = lt_dtype_get((lt_dtype)t);
        if (tr->kind != LT_DTYPE_KIND_FLOAT && tr->kind != LT_DTYPE_KIND_QUANT)
            continue;
        lt_op_args a = {.op = LT_OP_LINEAR, .n_src = 2, .name = "profile"};
        a.src[0] = view2(x, tr->kind == LT_DTYPE_KIND_QUANT ? LT_DTYPE_Q8A : LT_DTYPE_F32, 1, COLS);
        a.src[1] = view2(w, (lt_dtype)t, rows, COLS);
        a.dst = view2(y, LT_DTYPE_F32, 1, rows);
        const char *why;
        if (!lt__device_supports(b->dev, &a, &why))
            continue;
        double s1, sn;
        lt_status s = give_scratch(b, &a, used, err);
        if (s != LT_OK || (s = time_launches(b, &a, 8, 0.005, &s1, err)) != LT_OK)
            return s;
        a.src[0].dim[0] = a.dst.dim[0] = tokens;
        a.prefill = true;
        if ((s = give_scratch(b, &a, used, err)) != LT_OK || (s = time_launches(b, &a, 1, 0.015, &sn, err)) != LT_OK)
            return s;
        double dot = 8.0 * (double)a.src[1].stride[0] * (double)rows / s1, gemm = (double)tokens * (double)rows * COLS / sn;
        p->dot_rate[t] = dot > p->dot_rate[t] ? dot : p->dot_rate[t];
        p->gemm_rate[t] = gemm > p->gemm_rate[t] ? gemm : p->gemm_rate[t];
    }
    return LT_OK;
}

static lt_status measure_small(bench *b, lt_profile *p, lt_err *err)
{
    double s;
    lt_op_args add = {.op = LT_OP_ADD, .n_src = 2, .name = "profile"};
    add.src[0] = add.dst = view2(b->mem, LT_DTYPE_F32, 1, 256);
    add.src[1] = view2(b->mem + 4096, LT_DTYPE_F32, 1, 256);
    lt_status st = lt__device_has_lists(b->dev) ? time_list(b, &add, &s, err) : time_launches(b, &add, LISTED, 0.01, &s, err);
    if (st != LT_OK)
        return st;
    p->launch_ns = s * 1e9 / LISTED;

    /* Attention over 1024 positions of 4 kv heads, 8 query heads of 64. */
    lt_kv_layout kv = {.k_offset = 0, .kv_heads = 4, .head_dim = 64, .dtype = LT_DTYPE_F16};
    kv.v_offset = (uint64_t)kv.kv_heads * LT_KV_PAGE * kv.head_dim * 2;
    kv.page_bytes = 2 * kv.v_offset;
    const int n = is_card(b) ? CARD_TOKENS : 16;
    int32_t pos[CARD_TOKENS], table[4] = {0, 1, 2, 3};
    for (int i = 0; i < n; i++)
        pos[i] = 1024 - n + i;
    lt_addr q = b->mem + 4 * kv.page_bytes, o = q + (uint64_t)n * 2048, pa = o + (uint64_t)n * 2048, ta = pa + sizeof pos;
    if ((st = lt_queue_copy_in(b->queue, pa, pos, (uint64_t)n * sizeof *pos, err)) != LT_OK ||
        (st = lt_queue_copy_in(b->queue, ta, table, sizeof table, err)) != LT_OK ||
        (st = lt_queue_sync(b->queue, err)) != LT_OK)
        return st;
    lt_op_args at = {.op = LT_OP_ATTENTION, .n_src = 4, .name = "profile", .prefill = true};
    at.params.ATTENTION = (lt_attention_params){.kv = kv, .heads = 8, .scale = 0.125f};
    at.src[0] = at.dst = (lt_view){.addr = q, .dtype = LT_DTYPE_F32, .ndim = 3, .dim = {n, 8, 64}, .stride = {2048, 256, 4}};
    at.dst.addr = o;
    at.src[1] = (lt_view){.addr = b->mem, .dtype = LT_DTYPE_I8, .ndim = 1, .dim = {(int64_t)(4 * kv.page_bytes)}, .stride = {1}};
    at.src[2] = (lt_view){.addr = pa, .dtype = LT_DTYPE_I32, .ndim = 1, .dim = {n}, .stride = {4}};
    at.src[3] = (lt_view){.addr = ta, .dtype = LT_DTYPE_I32, .ndim = 1, .dim = {4}, .stride = {4}};
    if ((st = give_scratch(b, &at, ta + sizeof table - b->mem, err)) != LT_OK)
        return st;
    if ((st = time_launches(b, &at, 2, 0.02, &s, err)) != LT_OK)
        return st;
    p->attend_rate = 2.0 * 2 * 8 * 64 * n * (1024 - (n - 1) / 2.0) / s;
    return LT_OK;
}

/* Reading weights at full tilt: f16 rows, far more bytes than any cache. */
static lt_status measure_memory(bench *b, lt_profile *p, lt_err *err)
{
    double s;
    uint64_t rows = (b->mem_bytes - (UINT64_C(1) << 20)) / (COLS * 2);
    lt_op_args a = {.op = LT_OP_LINEAR, .n_src = 2, .name = "profile"};
    a.src[0] = view2(b->mem, LT_DTYPE_F32, 1, COLS);
    a.src[1] = view2(b->mem + 65536, LT_DTYPE_F16, (int64_t)rows - 64, COLS);
    a.dst = view2(b->mem + b->mem_bytes - (UINT64_C(1) << 20), LT_DTYPE_F32, 1, (int64_t)rows - 64);
    int n = b->info.host_visible ? 1 : CARD_LAUNCHES;
    lt_status st = time_launches(b, &a, n, 0.15, &s, err);
    if (st != LT_OK)
        return st;
    p->memory_rate = n * (double)a.src[1].stride[0] * (double)a.src[1].dim[0] / s;
    return LT_OK;
}

/* The same bytes as the weight of a product that reads them where they lie. */
static lt_status measure_mapped(bench *b, const char *buf, uint64_t bytes, lt_profile *p, lt_err *err)
{
    lt_err why;
    double s;
    lt_op_args a = {.op = LT_OP_LINEAR, .n_src = 2, .name = "profile"};
    int64_t rows = (int64_t)(bytes / (COLS * 2));
    a.src[0] = view2(b->mem, LT_DTYPE_F32, 1, COLS);
    a.src[1] = view2(0, LT_DTYPE_F16, rows, COLS);
    a.dst = view2(b->mem + COLS * 4, LT_DTYPE_F32, 1, rows);
    if (lt_device_map_host(b->dev, buf, bytes, &a.src[1].addr, &why) != LT_OK) {
        lt__log(b->ctx, LT_LOG_WARN, "profile", "reading in place is not measured: %s", why.text);
        return LT_OK;
    }
    lt_status st = time_launches(b, &a, 1, 0.02, &s, err);
    if (st == LT_OK)
        p->mapped_rate = (double)a.src[1].stride[0] * (double)rows / s;
    return st;
}

/* Best of some copies to the card, from pinned memory where the system lets us pin. */
static lt_status measure_link(bench *b, lt_profile *p, lt_err *err)
{
    uint64_t bytes = lt__min_u64(LINK_BYTES, b->mem_bytes);
    char *buf = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buf == MAP_FAILED)
        return lt__fail_oom(err, bytes, "measuring the link");
    lt_err why;
    bool pinned = lt_device_pin(b->dev, buf, bytes, &why) == LT_OK;
    if (!pinned)
        lt__log(b->ctx, LT_LOG_WARN, "profile", "the link is measured from pageable memory: %s", why.text);
    lt_status s = LT_OK;
    for (int run = 0; s == LT_OK && run < 8; run++) {
        uint64_t t0 = lt__now_ns();
        s = lt_queue_copy_in(b->queue, b->mem, buf, bytes, err);
        if (s == LT_OK)
            s = lt_queue_sync(b->queue, err);
        double rate = (double)bytes / ((double)(lt__now_ns() - t0) * 1e-9);
        if (run && rate > p->link_rate)
            p->link_rate = rate;
    }
    if (s == LT_OK && pinned && b->info.maps_host)
        s = measure_mapped(b, buf, bytes, p, err);
    if (pinned)
        lt_device_unpin(b->dev, buf, bytes);
    munmap(buf, bytes);
    return s;
}

/* Best rate of two reads of the whole file by the store, the way weights are read. */
static double read_rate(lt_ctx *ctx, const char *path, lt_store_mode mode, char *dst)
{
    double best = 0;
    lt_store *store;
    uint32_t file;
    if (lt_store_create(ctx, mode, 0, &store, NULL) != LT_OK)
        return 0;
    if (lt_store_add_file(store, path, &file, NULL) == LT_OK)
        for (int run = 0; run < 2; run++) {
            uint64_t t0 = lt__now_ns();
            if (lt_store_read(store, file, 0, dst, DISK_BYTES, NULL) != LT_OK)
                break;
            double rate = (double)DISK_BYTES / ((double)(lt__now_ns() - t0) * 1e-9);
            best = rate > best ? rate : best;
        }
    lt_store_destroy(store);
    return best;
}

/* A file in the cache folder, written through, read around the page cache and from it. Rates that could not
 * be measured (a full disk) are guesses of a slow one. */
static void measure_disk(lt_ctx *ctx, const char *folder, lt_profile *p)
{
    char path[4096];
    p->cached_rate = 4e9;
    p->read_rate = 0.5e9;
    if ((size_t)snprintf(path, sizeof path, "%s/.disk-XXXXXX", folder) >= sizeof path)
        return;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return;
    char *buf = mmap(NULL, DISK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf == MAP_FAILED)
        goto out;
    for (size_t i = 0; i < DISK_BYTES; i += 8)
        memcpy(buf + i, &(uint64_t){i * UINT64_C(0x9E3779B97F4A7C15)}, 8);
    uint64_t done = 0;
    for (ssize_t n; done < DISK_BYTES && (n = write(fd, buf + done, DISK_BYTES - done)) > 0;)
        done += (uint64_t)n;
    if (done == DISK_BYTES && fdatasync(fd) == 0) {
        double cached = read_rate(ctx, path, LT_STORE_PLAIN, buf), direct = read_rate(ctx, path, LT_STORE_DIRECT, buf);
        p->cached_rate = cached > 0 ? cached : p->cached_rate;
        p->read_rate = direct > 0 ? direct : p->cached_rate;
    }
    munmap(buf, DISK_BYTES);
out:
    close(fd);
    unlink(path);
}

/* cpu and sim compute alike, and either may be capped too low to measure in: a cpu device of the same
 * threads and instructions stands for both. */
static lt_status open_twin(lt_ctx *ctx, const lt_device_info *info, lt_device **out, lt_err *err)
{
    char spec[64];
    snprintf(spec, sizeof spec, "cpu:threads=%u,isa=%s", info->compute_threads, info->isa);
    return lt_device_open(ctx, spec, out, err);
}

static lt_status measure(lt_ctx *ctx, lt_device *dev, const char *folder, lt_profile *p, lt_err *err)
{
    bench b = {.ctx = ctx, .dev = dev};
    lt_device_get_info(dev, &b.info);
    b.mem_bytes = lt__round_down(lt__min_u64(READ_BYTES, b.info.free_bytes / 2), b.info.commit_bytes);
    if (b.mem_bytes < (UINT64_C(9) << 20))
        return lt__fail(err, LT_E_DEVICE_OOM, "measuring the device needs %lu bytes of it, %lu are free",
                        UINT64_C(18) << 20, b.info.free_bytes);
    lt_status s = lt_device_reserve(dev, b.mem_bytes, &b.mem, err);
    if (s != LT_OK)
        return s;
    if ((s = lt_device_commit(dev, b.mem, b.mem_bytes, err)) != LT_OK)
        goto unreserve;
    if ((s = lt_queue_create(dev, LT_QUEUE_COMPUTE, &b.queue, err)) != LT_OK)
        goto unreserve;
    /* 0x11 everywhere: finite scales of every dtype, no subnormals. */
    if ((s = lt_queue_fill(b.queue, b.mem, 0x11, b.mem_bytes, err)) == LT_OK &&
        (s = measure_products(&b, p, err)) == LT_OK && (s = measure_memory(&b, p, err)) == LT_OK &&
        (s = measure_small(&b, p, err)) == LT_OK)
        s = measure_products(&b, p, err); /* once more: a burst of load hit the first sweep or this one, seldom both */
    if (s == LT_OK && !b.info.host_visible)
        s = measure_link(&b, p, err);
    lt_queue_destroy(b.queue);
    if (s == LT_OK)
        measure_disk(ctx, folder, p);
unreserve: /* takes the commit along */
    lt_device_unreserve(dev, b.mem, b.mem_bytes);
    return s;
}

/* Scalars in one list, for reading and writing. */
#define SCALARS(X) X(read_rate) X(cached_rate) X(link_rate) X(mapped_rate) X(memory_rate) X(attend_rate) X(launch_ns)

static bool load_profile(const char *path, const char *machine, lt_profile *p)
{
    json_error_t e;
    json_t *j = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!j)
        return false;
    const char *m = json_string_value(json_object_get(j, "machine"));
    const char *k = json_string_value(json_object_get(j, "kernels"));
    bool ok = m && strcmp(m, machine) == 0 && k && strcmp(k, LT_KERNELS) == 0 && json_integer_value(json_object_get(j, "version")) == PROFILE_VERSION;
#define X(name) p->name = json_number_value(json_object_get(j, #name)); ok = ok && p->name >= 0;
    SCALARS(X)
#undef X
    for (int t = 0; t < LT_DTYPE_COUNT && ok; t++) {
        const char *name = lt_dtype_get((lt_dtype)t)->name;
        p->dot_rate[t] = json_number_value(json_object_get(json_object_get(j, "dot_rate"), name));
        p->gemm_rate[t] = json_number_value(json_object_get(json_object_get(j, "gemm_rate"), name));
        ok = p->dot_rate[t] >= 0 && p->gemm_rate[t] >= 0;
    }
    ok = ok && p->memory_rate > 0 && p->dot_rate[LT_DTYPE_F16] > 0;
    json_decref(j);
    return ok;
}

static void save_profile(lt_ctx *ctx, const char *path, const lt_profile *p)
{
    json_t *j = json_object(), *dot = json_object(), *gemm = json_object();
    json_object_set_new(j, "version", json_integer(PROFILE_VERSION));
    json_object_set_new(j, "machine", json_string(p->machine));
    json_object_set_new(j, "kernels", json_string(LT_KERNELS));
#define X(name) json_object_set_new(j, #name, json_real(p->name));
    SCALARS(X)
#undef X
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        json_object_set_new(dot, lt_dtype_get((lt_dtype)t)->name, json_real(p->dot_rate[t]));
        json_object_set_new(gemm, lt_dtype_get((lt_dtype)t)->name, json_real(p->gemm_rate[t]));
    }
    json_object_set_new(j, "dot_rate", dot);
    json_object_set_new(j, "gemm_rate", gemm);
    char *text = json_dumps(j, JSON_INDENT(1));
    lt_err err;
    lt__outfile *f;
    if (text && lt__outfile_open(ctx, path, &f, &err) == LT_OK) {
        lt_status s = lt__outfile_write(f, text, strlen(text), &err);
        if (s == LT_OK)
            s = lt__outfile_commit(f, &err);
        else
            lt__outfile_abandon(f);
        if (s != LT_OK)
            lt__log(ctx, LT_LOG_WARN, "profile", "not kept: %s", err.text);
    } else {
        lt__log(ctx, LT_LOG_WARN, "profile", "not kept: %s", text ? err.text : "out of host memory");
    }
    free(text);
    json_decref(j);
}

/* Rates a simulated device was told, instead of measured ones. */
static void apply_sim(const lt_device_info *info, lt_profile *p)
{
    if (info->link_rate > 0)
        p->link_rate = info->link_rate;
    if (info->virtual_clock && info->compute_rate > 0) {
        /* A virtual launch lasts bytes / rate whatever the number of tokens. */
        for (int t = 0; t < LT_DTYPE_COUNT; t++) {
            p->dot_rate[t] = info->compute_rate;
            p->gemm_rate[t] = 1e30;
        }
        p->memory_rate = info->compute_rate;
        p->launch_ns = 0;
    }
}

lt_status lt_profile_get(lt_ctx *ctx, lt_device *dev, const char *path, lt_profile *out, lt_err *err)
{
    lt_device_info info;
    lt_device_get_info(dev, &info);
    char machine[96], folder[3000] = "/tmp", file[4096];
    lt_device *twin = NULL;
    memset(out, 0, sizeof *out);
    if (strcmp(info.kind, "cpu") == 0 || strcmp(info.kind, "sim") == 0) {
        lt_status s = open_twin(ctx, &info, &twin, err);
        if (s != LT_OK)
            return s;
    }
    lt_device_info twin_info;
    lt_device_get_info(twin ? twin : dev, &twin_info);
    memcpy(machine, twin_info.name, sizeof machine);
    if (path) {
        snprintf(file, sizeof file, "%s", path);
        snprintf(folder, sizeof folder, "%s", path);
        char *slash = strrchr(folder, '/');
        snprintf(slash ? slash : folder, slash ? 1 : 2, "%s", slash ? "" : ".");
    } else if (lt__cache_folder(folder, sizeof folder)) {
        uint64_t h = UINT64_C(14695981039346656037);
        for (const char *c = machine; *c; c++)
            h = (h ^ (uint8_t)*c) * UINT64_C(1099511628211);
        for (const char *c = LT_KERNELS; *c; c++)
            h = (h ^ (uint8_t)*c) * UINT64_C(1099511628211);
        snprintf(file, sizeof file, "%s/profile-%016lx.json", folder, h);
    } else {
        file[0] = 0;
        lt__log(ctx, LT_LOG_WARN, "profile", "no cache folder (HOME is not set or not writable): measured at each start");
    }
    if (!file[0] || !load_profile(file, machine, out)) {
        memset(out, 0, sizeof *out);
        out->version = PROFILE_VERSION;
        memcpy(out->machine, machine, sizeof machine);
        lt_status s = measure(ctx, twin ? twin : dev, folder, out, err);
        if (s != LT_OK) {
            lt_device_close(twin);
            return s;
        }
        if (file[0])
            save_profile(ctx, file, out);
    }
    lt_device_close(twin);
    out->version = PROFILE_VERSION;
    memcpy(out->machine, machine, sizeof machine);
    apply_sim(&info, out);
    return LT_OK;
}
