/* The simulated card: its memory is apart, its clock is arithmetic, its faults come when told. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "base/mem.h"

#define OK(x) assert_int_equal((x), LT_OK)
#define MIB ((uint64_t)1 << 20)

typedef struct rig {
    lt_ctx *ctx;
    lt_device *dev;
    lt_queue *compute, *copy;
    lt_addr mem;
    uint64_t bytes;
    lt_err err;
} rig;

static rig open_rig(const char *spec)
{
    rig r = {.bytes = 8 * MIB};
    OK(lt_ctx_create(NULL, &r.ctx, &r.err));
    OK(lt_device_open(r.ctx, spec, &r.dev, &r.err));
    OK(lt_queue_create(r.dev, LT_QUEUE_COMPUTE, &r.compute, &r.err));
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &r.copy, &r.err));
    OK(lt_device_reserve(r.dev, r.bytes, &r.mem, &r.err));
    OK(lt_device_commit(r.dev, r.mem, r.bytes, &r.err));
    return r;
}

static lt_device_stats stats(const rig *r)
{
    lt_device_stats s;
    lt_device_get_stats(r->dev, &s);
    return s;
}

static void close_rig(rig *r)
{
    lt_queue_destroy(r->compute);
    lt_queue_destroy(r->copy);
    lt_device_unreserve(r->dev, r->mem, r->bytes);
    lt_device_close(r->dev);
    assert_int_equal(lt_ctx_host_bytes(r->ctx), 0);
    lt_ctx_destroy(r->ctx);
}

static lt_op_args add_at(lt_addr a, lt_addr b, lt_addr dst, int64_t cols)
{
    lt_view v = {.addr = a, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, cols}, .stride = {cols * 4, 4}};
    lt_op_args args = {.op = LT_OP_ADD, .n_src = 2, .src = {v, v}, .dst = v, .name = "blk.3.add"};
    args.src[1].addr = b;
    args.dst.addr = dst;
    return args;
}

static void memory_is_apart(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M");
    uint64_t top = r.mem >> 47;
    assert_true(top != 0 && top != 0x1ffff);       /* no pointer with 4 page table levels */
    assert_true(r.mem >> 56 != 0 && r.mem >> 56 != 0xff); /* nor with 5 */
    uint8_t got[300];
    for (int round = 0; round < 2; round++) {
        OK(lt_queue_copy_out(r.copy, got, r.mem + 5, sizeof got, &r.err));
        OK(lt_queue_sync(r.copy, &r.err));
        for (size_t i = 0; i < sizeof got; i++)
            assert_int_equal(got[i], 0xFF);
        OK(lt_queue_fill(r.copy, r.mem, 1, 4096, &r.err));
        OK(lt_queue_sync(r.copy, &r.err));
        lt_device_decommit(r.dev, r.mem, r.bytes);
        OK(lt_device_commit(r.dev, r.mem, r.bytes, &r.err));
    }
    close_rig(&r);
}

static void a_launch_computes_in_device_memory(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M");
    float a[64], b[64], c[64];
    for (int i = 0; i < 64; i++) {
        a[i] = (float)i;
        b[i] = 0.5f * (float)i;
    }
    lt_op_args add = add_at(r.mem, r.mem + 1024, r.mem + 2048, 64);
    OK(lt_queue_copy_in(r.compute, r.mem, a, sizeof a, &r.err));
    OK(lt_queue_copy_in(r.compute, r.mem + 1024, b, sizeof b, &r.err));
    OK(lt__queue_launch(r.compute, &add, &r.err));
    OK(lt_queue_copy_out(r.compute, c, r.mem + 2048, sizeof c, &r.err));
    OK(lt_queue_sync(r.compute, &r.err));
    for (int i = 0; i < 64; i++)
        assert_true(c[i] == a[i] + b[i]);
    assert_int_equal(stats(&r).launches, 1);
    assert_int_equal(lt__queue_launch(r.copy, &add, &r.err), LT_E_INVALID);
    close_rig(&r);
}

static void sticky(rig *r, lt_queue *q, const char *name, lt_addr a)
{
    char range[40];
    memset(&r->err, 0, sizeof r->err);
    assert_int_equal(lt_queue_sync(q, &r->err), LT_E_INVALID);
    snprintf(range, sizeof range, "0x%llx", (unsigned long long)a);
    if (!strstr(r->err.text, name) || !strstr(r->err.text, range))
        fail_msg("'%s' names not both '%s' and '%s'", r->err.text, name, range);
}

static void work_outside_committed_memory_is_named(void **state)
{
    (void)state;
    uint8_t b[64] = {0};
    for (int k = 0; k < 8; k++) {
        rig r = open_rig("sim:vram=16M,threads=1");
        lt_addr end = r.mem + r.bytes, hole = r.mem + 2 * MIB;
        lt_op_args add = add_at(r.mem, r.mem + 4096, end - 32, 16);
        lt_device_decommit(r.dev, hole, 64 << 10);
        switch (k) {
        case 0:
            OK(lt_queue_copy_in(r.copy, end - 63, b, 64, &r.err));
            sticky(&r, r.copy, "copy_in", end - 63);
            break;
        case 1:
            OK(lt_queue_copy_out(r.copy, b, hole - 1, 2, &r.err));
            sticky(&r, r.copy, "copy_out", hole - 1);
            break;
        case 2:
            OK(lt_queue_fill(r.copy, hole - MIB, 0, 3 * MIB, &r.err));
            sticky(&r, r.copy, "fill", hole - MIB);
            break;
        case 3:
            OK(lt_queue_copy(r.copy, r.mem, hole, 1, &r.err));
            sticky(&r, r.copy, "copy", hole);
            break;
        case 4: /* a host pointer is no address here */
            OK(lt_queue_copy_in(r.copy, (lt_addr)(uintptr_t)b, b, 8, &r.err));
            sticky(&r, r.copy, "copy_in", (lt_addr)(uintptr_t)b);
            break;
        case 5:
            OK(lt__queue_launch(r.compute, &add, &r.err));
            sticky(&r, r.compute, "blk.3.add", end - 32);
            break;
        case 6:
            add = add_at(r.mem, hole, r.mem + 8192, 16);
            OK(lt__queue_launch(r.compute, &add, &r.err));
            sticky(&r, r.compute, "blk.3.add", hole);
            break;
        default: /* right up to the edges is fine */
            OK(lt_queue_copy_in(r.copy, end - 64, b, 64, &r.err));
            OK(lt_queue_copy_in(r.copy, hole - 64, b, 64, &r.err));
            OK(lt_queue_copy_in(r.copy, hole + (64 << 10), b, 64, &r.err));
            OK(lt_queue_sync(r.copy, &r.err));
        }
        close_rig(&r);
    }
}

/* 1 MiB at 1 GiB/s is 976562.5 ns, rounded up. */
#define COPY_NS (976563u + 10000u)

static void virtual_time_is_arithmetic(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M,clock=virtual,h2d=1G,d2h=2G,latency=10us");
    static uint8_t host[1 << 20], back[1 << 20];
    lt_queue *second;
    lt_event *a, *b;
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &second, &r.err));
    OK(lt_event_create(r.dev, &a, &r.err));
    OK(lt_event_create(r.dev, &b, &r.err));
    OK(lt_queue_copy_in(r.copy, r.mem, host, MIB, &r.err));
    OK(lt_event_record(a, r.copy, &r.err));
    /* The same direction shares one engine, the other has its own. */
    OK(lt_queue_wait(second, a, &r.err));
    OK(lt_queue_copy_in(second, r.mem + MIB, host, MIB, &r.err));
    OK(lt_event_record(b, second, &r.err));
    OK(lt_queue_copy_out(r.copy, back, r.mem, MIB, &r.err));
    OK(lt_event_record(a, r.copy, &r.err));
    OK(lt_event_sync(a, &r.err));
    OK(lt_event_sync(b, &r.err));
    assert_int_equal(lt_event_time_ns(b), 2 * COPY_NS);
    assert_int_equal(lt_event_time_ns(a), COPY_NS + 488282 + 10000);
    assert_int_equal(stats(&r).now_ns, 2 * COPY_NS);
    assert_int_equal(stats(&r).copy_busy_ns, 2 * COPY_NS + 498282);
    /* What the host waited for is the earliest start of what it gives next. */
    OK(lt_queue_copy_out(r.copy, back, r.mem, 64, &r.err)); /* 30 ns and latency; inline */
    OK(lt_queue_sync(r.copy, &r.err));
    assert_int_equal(stats(&r).now_ns, 2 * COPY_NS + 10030);
    assert_int_equal(stats(&r).compute_stall_ns, 0);
    lt_event_destroy(a);
    lt_event_destroy(b);
    lt_queue_destroy(second);
    close_rig(&r);
}

static lt_status dawdle(void *user, lt_err *err)
{
    (void)err;
    usleep((useconds_t)(uintptr_t)user);
    return LT_OK;
}

/* Layers streamed through two slots under compute; returns the card's time for all. */
static lt_device_stats stream(uint64_t compute_ns, int layers, unsigned seed)
{
    rig r = open_rig("sim:vram=16M,clock=virtual,h2d=1G,latency=10us,threads=1");
    static uint8_t host[1 << 20];
    lt_event *full[2], *used[2];
    lt_op_args add = add_at(r.mem, r.mem, r.mem + 4096, 16);
    add.virtual_ns = compute_ns;
    for (int i = 0; i < 2; i++) {
        OK(lt_event_create(r.dev, &full[i], &r.err));
        OK(lt_event_create(r.dev, &used[i], &r.err));
    }
    for (int k = 0; k < layers; k++) {
        int s = k % 2;
        OK(lt_queue_wait(r.copy, used[s], &r.err));
        OK(lt_queue_copy_in(r.copy, r.mem + (uint64_t)(s + 1) * MIB, host, MIB, &r.err));
        OK(lt_event_record(full[s], r.copy, &r.err));
        OK(lt_queue_wait(r.compute, full[s], &r.err));
        if (seed) /* real time must not show */
            OK(lt_queue_call((seed + (unsigned)k) % 3 ? r.compute : r.copy, dawdle, (void *)(uintptr_t)(seed * (unsigned)k % 300),
                             &r.err));
        OK(lt__queue_launch(r.compute, &add, &r.err));
        OK(lt_event_record(used[s], r.compute, &r.err));
    }
    OK(lt_queue_sync(r.compute, &r.err));
    lt_device_stats st = stats(&r);
    for (int i = 0; i < 2; i++) {
        lt_event_destroy(full[i]);
        lt_event_destroy(used[i]);
    }
    close_rig(&r);
    return st;
}

static void overlap_is_exact_and_repeatable(void **state)
{
    (void)state;
    enum { LAYERS = 40 };
    for (unsigned seed = 0; seed < 4; seed++) {
        /* Compute longer than a copy: only the first copy shows. */
        uint64_t c = COPY_NS + COPY_NS / 5;
        lt_device_stats st = stream(c, LAYERS, seed);
        assert_int_equal(st.now_ns, COPY_NS + LAYERS * c);
        assert_int_equal(st.compute_stall_ns, COPY_NS);
        assert_int_equal(st.compute_busy_ns, LAYERS * c);
        assert_int_equal(st.copy_busy_ns, (uint64_t)LAYERS * COPY_NS);
        /* The link bounds: it never rests, and compute shows once, at the end. */
        c = COPY_NS / 2;
        st = stream(c, LAYERS, seed);
        assert_int_equal(st.now_ns, (uint64_t)LAYERS * COPY_NS + c);
        assert_int_equal(st.compute_stall_ns, (uint64_t)LAYERS * COPY_NS - (LAYERS - 1) * c);
    }
}

static void products_take_the_time_of_their_weight(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M,clock=virtual,compute=1G,threads=1");
    lt_view x = {.addr = r.mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 256}, .stride = {1024, 4}};
    lt_view w = {.addr = r.mem + MIB, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1024, 256}, .stride = {1024, 4}};
    lt_view y = {.addr = r.mem + 4096, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 1024}, .stride = {4096, 4}};
    lt_op_args linear = {.op = LT_OP_LINEAR, .n_src = 2, .src = {x, w}, .dst = y, .name = "w"};
    OK(lt_queue_fill(r.compute, r.mem, 0, 4 * MIB, &r.err));
    OK(lt__queue_launch(r.compute, &linear, &r.err));
    OK(lt_queue_sync(r.compute, &r.err));
    assert_int_equal(stats(&r).now_ns, 976563);
    assert_int_equal(stats(&r).compute_busy_ns, 976563);
    close_rig(&r);
}

/* A weight in host memory comes over the link while the product runs: the longer of the two counts, and copies queue behind it. */
static void what_is_read_in_place_takes_the_link(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M,clock=virtual,compute=1G,h2d=512M,threads=1");
    uint8_t *host = aligned_alloc(4096, MIB);
    memset(host, 0, MIB);
    lt_view x = {.addr = r.mem, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 256}, .stride = {1024, 4}};
    lt_view w = {.dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1024, 256}, .stride = {1024, 4}};
    lt_view y = {.addr = r.mem + 4096, .dtype = LT_DTYPE_F32, .ndim = 2, .dim = {1, 1024}, .stride = {4096, 4}};
    OK(lt_device_pin(r.dev, host, MIB, &r.err));
    OK(lt_device_map_host(r.dev, host, MIB, &w.addr, &r.err));
    lt_op_args linear = {.op = LT_OP_LINEAR, .n_src = 2, .src = {x, w}, .dst = y, .name = "w"};
    OK(lt_queue_fill(r.compute, r.mem, 0, 4 * MIB, &r.err));
    OK(lt__queue_launch(r.compute, &linear, &r.err));
    OK(lt_queue_sync(r.compute, &r.err));
    assert_int_equal(stats(&r).now_ns, 1953125);
    assert_int_equal(stats(&r).h2d_bytes, 0);
    OK(lt_queue_copy_in(r.copy, r.mem + 4 * MIB, host, MIB, &r.err));
    OK(lt_queue_sync(r.copy, &r.err));
    assert_int_equal(stats(&r).now_ns, 2 * 1953125);

    linear.dst.addr = w.addr; /* to be read only */
    linear.src[1].addr = r.mem + MIB;
    linear.dst.dim[1] = linear.src[1].dim[0] = 16;
    OK(lt__queue_launch(r.compute, &linear, &r.err));
    assert_int_not_equal(lt_queue_sync(r.compute, &r.err), LT_OK);
    lt_device_unpin(r.dev, host, MIB);
    free(host);
    close_rig(&r);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Six copies over a shared link: never faster than it. Returns whether they slept most of the time. */
static bool paced_copies_sleep(rig *r, lt_queue *second)
{
    static uint8_t host[1 << 20];
    uint64_t busy = stats(r).copy_busy_ns, start = lt__now_ns(), cpu = cpu_ns();
    for (int k = 0; k < 3; k++) {
        OK(lt_queue_copy_in(r->copy, r->mem, host, MIB, &r->err));
        OK(lt_queue_copy_in(second, r->mem + MIB, host, MIB, &r->err));
    }
    OK(lt_queue_sync(r->copy, &r->err));
    OK(lt_queue_sync(second, &r->err));
    uint64_t took = lt__now_ns() - start;
    assert_true(took >= 6 * 11000000u);
    assert_int_equal(stats(r).copy_busy_ns - busy, 6 * 11000000u);
    return cpu_ns() - cpu < took / 2;
}

/* How much slower the machine is that day gates nothing, and others' load can only add to what we burn: once
 * in some rounds is enough to tell sleeping from spinning. */
static void real_copies_keep_to_the_link(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=16M,h2d=100M,latency=1ms,threads=1");
    lt_queue *second;
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &second, &r.err));
    bool slept = false;
    for (int round = 0; round < 10 && !slept; round++)
        slept = paced_copies_sleep(&r, second);
    assert_true(slept);
    lt_queue_destroy(second);
    close_rig(&r);
}

/* --- faults ------------------------------------------------------------------------- */

typedef struct plan {
    lt_fault_point point;
    _Atomic uint64_t left; /* host memory is also asked for by a queue's thread */
    _Atomic bool fired;
} plan;

static bool fault_at(void *user, lt_fault_point point)
{
    plan *p = user;
    if (point != p->point || !p->left || atomic_fetch_sub(&p->left, 1) != 1)
        return false;
    p->fired = true;
    return true;
}

/* A short run of everything. LT_OK or the first error, with nothing left behind. */
static lt_status short_run(lt_ctx *ctx, const char *spec, lt_err *err)
{
    lt_device *dev = NULL;
    lt_queue *compute = NULL, *copy = NULL;
    lt_event *ev = NULL;
    lt_addr mem = 0;
    float x[16] = {1, 2, 3}, y[16] = {0};
    lt_status s = lt_device_open(ctx, spec, &dev, err);
    if (s != LT_OK)
        return s;
    if ((s = lt_queue_create(dev, LT_QUEUE_COMPUTE, &compute, err)) || (s = lt_queue_create(dev, LT_QUEUE_COPY, &copy, err)) ||
        (s = lt_event_create(dev, &ev, err)) || (s = lt_device_reserve(dev, MIB, &mem, err)))
        goto end;
    for (int k = 0; k < 3; k++)
        if ((s = lt_device_commit(dev, mem + (uint64_t)k * (64 << 10), 64 << 10, err)))
            goto end;
    for (int k = 0; k < 40; k++) {
        lt_op_args add = add_at(mem, mem, mem + 4096, 16);
        if ((s = lt_queue_copy_in(copy, mem, x, sizeof x, err)) || (s = lt_event_record(ev, copy, err)) ||
            (s = lt_queue_wait(compute, ev, err)) || (s = lt__queue_launch(compute, &add, err)) ||
            (s = lt_queue_copy_out(compute, y, mem + 4096, sizeof y, err)) || (s = lt_queue_sync(compute, err)))
            goto end;
        if (y[1] != 4 || y[2] != 6)
            s = lt__fail(err, LT_E_FORMAT, "wrong answer");
    }
    s = lt_queue_sync(copy, err);
end:
    lt_queue_destroy(compute);
    lt_queue_destroy(copy);
    lt_event_destroy(ev);
    lt_device_unreserve(dev, mem, MIB);
    lt_device_close(dev);
    return s;
}

static void every_fault_is_a_typed_error(void **state)
{
    (void)state;
    static const struct {
        lt_fault_point point;
        lt_status status;
        unsigned calls;
    } kinds[] = {{LT_FAULT_HOST_ALLOC, LT_E_HOST_OOM, 10}, {LT_FAULT_COMMIT, LT_E_DEVICE_OOM, 3},
                 {LT_FAULT_COPY, LT_E_DEVICE_LOST, 80}, {LT_FAULT_LAUNCH, LT_E_DEVICE_LOST, 40}};
    static const char *const specs[] = {"cpu:threads=2", "sim:vram=16M,threads=2", "sim:vram=16M,clock=virtual,threads=1"};
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            for (unsigned n = 1;; n++) {
                plan p = {kinds[i].point, n, false};
                lt_ctx_desc desc = lt_ctx_desc_default();
                lt_ctx *ctx;
                lt_err err = {0};
                desc.fault = fault_at;
                desc.fault_user = &p;
                lt_status s = lt_ctx_create(&desc, &ctx, &err);
                if (s == LT_OK) {
                    s = short_run(ctx, specs[d], &err);
                    if (p.fired) {
                        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
                        lt_err again = {0};
                        if (short_run(ctx, specs[d], &again) != LT_OK)
                            fail_msg("after fault %d:%u: %s", (int)p.point, n, again.text);
                    }
                    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
                    lt_ctx_destroy(ctx);
                }
                if (!p.fired) {
                    OK(s);
                    assert_true(n > kinds[i].calls);
                    break;
                }
                assert_int_equal(s, kinds[i].status);
                assert_true(err.text[0] && err.status == s);
            }
}

static void faults_of_the_spec_come_once(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *names;
        lt_status status;
    } faults[] = {{"sim:vram=16M,fail=commit:2", "commit", LT_E_DEVICE_OOM},
                  {"sim:vram=16M,fail=copy:1", "copy_in", LT_E_DEVICE_LOST},
                  {"sim:vram=16M,fail=copy:80", "copy_out", LT_E_DEVICE_LOST},
                  {"sim:vram=16M,fail=launch:40", "blk.3.add", LT_E_DEVICE_LOST},
                  {"sim:vram=16M,fail=alloc:3", "", LT_E_HOST_OOM},
                  {"sim:vram=16M,fail=alloc:5000", "", LT_OK}, /* taken back at close */
                  {"sim:vram=16M,fail=copy:81", "", LT_OK},
                  {"sim:vram=16M,fail=launch:41,fail=commit:4", "", LT_OK}};
    lt_ctx *ctx;
    OK(lt_ctx_create(NULL, &ctx, NULL));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        lt_err err = {0};
        assert_int_equal(short_run(ctx, faults[i].spec, &err), faults[i].status);
        assert_non_null(strstr(err.text, faults[i].names));
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    }
    lt_device *dev;
    lt_err err;
    static uint8_t page[4096];
    OK(lt_device_open(ctx, "sim:fail=pin:1", &dev, &err));
    assert_int_equal(lt_device_pin(dev, page, sizeof page, &err), LT_E_HOST_OOM);
    lt_status s = lt_device_pin(dev, page, sizeof page, &err); /* the machine may refuse it by itself */
    assert_true(s == LT_OK || s == LT_E_HOST_OOM);
    if (s == LT_OK)
        lt_device_unpin(dev, page, sizeof page);
    lt_device_close(dev);
    OK(lt_device_open(ctx, "sim:fail=read:2", &dev, &err));
    assert_false(lt__fault(ctx, LT_FAULT_READ));
    assert_true(lt__fault(ctx, LT_FAULT_READ));
    assert_false(lt__fault(ctx, LT_FAULT_READ));
    lt_device_close(dev);
    OK(lt_device_open(ctx, "sim:fail=read:1", &dev, &err));
    lt_device_close(dev);
    assert_false(lt__fault(ctx, LT_FAULT_READ));
    lt_ctx_destroy(ctx);
}

static lt_status count(void *user, lt_err *err)
{
    (void)err;
    ++*(int *)user;
    return LT_OK;
}

/* On one processor our waking holds the queue's thread up at any place of its loop, so what only falls between two
 * of its reads does fall there in some of the rounds. */
static void what_was_given_before_destroy_runs(void **state)
{
    (void)state;
    enum { ROUNDS = 3000 };
    cpu_set_t all, one;
    lt_err err;
    lt_ctx *ctx;
    lt_device *dev;
    int ran = 0, first = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    OK(lt_ctx_create(NULL, &ctx, &err));
    OK(lt_device_open(ctx, "sim:vram=8M,clock=virtual", &dev, &err));
    for (int i = 0; i < ROUNDS; i++) {
        lt_queue *q;
        OK(lt_queue_create(dev, i % 2 ? LT_QUEUE_COMPUTE : LT_QUEUE_COPY, &q, &err));
        nanosleep(&(struct timespec){.tv_nsec = i % 4 * 10000}, NULL);
        OK(lt_queue_call(q, count, &ran, &err));
        lt_queue_destroy(q);
        if (ran != i + 1)
            fail_msg("round %d: the queue ended without the call given last", i);
    }
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_apart), cmocka_unit_test(what_was_given_before_destroy_runs),
        cmocka_unit_test(a_launch_computes_in_device_memory),
        cmocka_unit_test(work_outside_committed_memory_is_named),
        cmocka_unit_test(virtual_time_is_arithmetic),
        cmocka_unit_test(what_is_read_in_place_takes_the_link),
        cmocka_unit_test(overlap_is_exact_and_repeatable),
        cmocka_unit_test(products_take_the_time_of_their_weight),
        cmocka_unit_test(real_copies_keep_to_the_link),
        cmocka_unit_test(every_fault_is_a_typed_error),
        cmocka_unit_test(faults_of_the_spec_come_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
