/* Every device through one suite: order, events, errors, memory, faults, counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "base/mem.h"

/* From LT_CONFORMANCE_DEVICES, specs separated by ';', or these. */
static const char *specs[16] = {"cpu", "cpu:threads=1,isa=ref", "sim:vram=64M",
                                "sim:vram=64M,clock=virtual,h2d=12G,d2h=12G,latency=10us,compute=40G",
                                "sim:vram=64M,h2d=4G,d2h=4G,latency=20us"};
static size_t n_specs = 5;
#define EACH_SPEC for (size_t i_ = 0; i_ < n_specs; i_++)

#define OK(x) assert_int_equal((x), LT_OK)
#define MIB ((uint64_t)1 << 20)

typedef struct rig {
    lt_ctx *ctx;
    lt_device *dev;
    lt_queue *compute, *copy;
    lt_device_info info;
    lt_addr mem;
    uint64_t bytes;
    lt_err err;
} rig;

static rig open_rig(const char *spec, const lt_ctx_desc *desc)
{
    rig r = {.bytes = 8 * MIB};
    OK(lt_ctx_create(desc, &r.ctx, &r.err));
    OK(lt_device_open(r.ctx, spec, &r.dev, &r.err));
    lt_device_get_info(r.dev, &r.info);
    OK(lt_queue_create(r.dev, LT_QUEUE_COMPUTE, &r.compute, &r.err));
    OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &r.copy, &r.err));
    OK(lt_device_reserve(r.dev, r.bytes, &r.mem, &r.err));
    OK(lt_device_commit(r.dev, r.mem, r.bytes, &r.err));
    return r;
}

static void close_rig(rig *r)
{
    lt_queue_destroy(r->compute);
    lt_queue_destroy(r->copy);
    lt_device_decommit(r->dev, r->mem, r->bytes);
    lt_device_unreserve(r->dev, r->mem, r->bytes);
    lt_device_stats st;
    lt_device_get_stats(r->dev, &st);
    assert_int_equal(st.committed_bytes, 0);
    lt_device_close(r->dev);
    assert_int_equal(lt_ctx_host_bytes(r->ctx), 0);
    lt_ctx_destroy(r->ctx);
}

static uint32_t rnd(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u, *s >> 8;
}

/* A gate a queue stands at until the test opens it. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
} gate;
#define GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false}

static lt_status pass_gate(void *user, lt_err *err)
{
    (void)err;
    gate *g = user;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return LT_OK;
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static lt_status count_up(void *user, lt_err *err)
{
    (void)err;
    ++*(int *)user;
    return LT_OK;
}

static lt_status refuse(void *user, lt_err *err)
{
    return lt__fail(err, LT_E_IO, "%s", (const char *)user);
}

static void info_is_true(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        bool sim = !strncmp(specs[i_], "sim", 3), cpu = !strncmp(specs[i_], "cpu", 3);
        assert_int_equal(strlen(r.info.kind), strcspn(specs[i_], ":"));
        assert_memory_equal(r.info.kind, specs[i_], strlen(r.info.kind));
        assert_int_equal(r.info.host_visible, cpu);
        assert_int_equal(r.info.virtual_clock, strstr(specs[i_], "virtual") != NULL);
        if (sim || cpu)
            assert_true(r.info.compute_threads >= 1);
        assert_true(r.info.commit_bytes && !(r.info.commit_bytes & (r.info.commit_bytes - 1)));
        if (sim) {
            assert_int_equal(r.info.total_bytes, 64 * MIB);
            assert_int_equal(r.info.free_bytes, 64 * MIB);
            lt_device_info now;
            lt_device_get_info(r.dev, &now);
            assert_int_equal(now.free_bytes, 56 * MIB);
        }
        close_rig(&r);
    }
}

static void copies_are_exact(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        size_t n = 1 * MIB;
        uint8_t *model = malloc(n), *host = malloc(n), *back = malloc(n);
        uint32_t seed = 7;
        uint64_t h2d = n, d2h = 0, d2d = 0;
        for (size_t i = 0; i < n; i++)
            model[i] = (uint8_t)rnd(&seed);
        OK(lt_queue_copy_in(r.copy, r.mem, model, n, &r.err));
        OK(lt_queue_sync(r.copy, &r.err));
        for (int step = 0; step < 300; step++) {
            uint32_t len = rnd(&seed) % 5000, at = rnd(&seed) % (uint32_t)(n - 5000);
            switch (rnd(&seed) % 4) {
            case 0:
                for (uint32_t i = 0; i < len; i++)
                    host[i] = model[at + i] = (uint8_t)rnd(&seed);
                OK(lt_queue_copy_in(r.copy, r.mem + at, host, len, &r.err));
                OK(lt_queue_sync(r.copy, &r.err));
                h2d += len;
                break;
            case 1:
                OK(lt_queue_fill(r.copy, r.mem + at, (uint8_t)step, len, &r.err));
                memset(model + at, (uint8_t)step, len);
                break;
            case 2: {
                uint32_t to = (at + 5000 + rnd(&seed) % 5000) % (uint32_t)(n - 5000);
                if (to < at + len && at < to + len)
                    break;
                OK(lt_queue_copy(r.copy, r.mem + to, r.mem + at, len, &r.err));
                memcpy(model + to, model + at, len);
                d2d += len;
                break;
            }
            default:
                OK(lt_queue_copy_out(r.copy, back, r.mem + at, len, &r.err));
                OK(lt_queue_sync(r.copy, &r.err));
                assert_memory_equal(back, model + at, len ? len : 1);
                d2h += len;
            }
            if (!len)
                back[0] = model[0];
        }
        OK(lt_queue_copy_out(r.copy, back, r.mem, n, &r.err));
        OK(lt_queue_sync(r.copy, &r.err));
        assert_memory_equal(back, model, n);
        lt_device_stats st;
        lt_device_get_stats(r.dev, &st);
        assert_int_equal(st.h2d_bytes, h2d);
        assert_int_equal(st.d2h_bytes, d2h + n);
        assert_int_equal(st.d2d_bytes, d2d);
        free(model);
        free(host);
        free(back);
        close_rig(&r);
    }
}

static void events_order_queues(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        lt_event *ready, *used;
        OK(lt_event_create(r.dev, &ready, &r.err));
        OK(lt_event_create(r.dev, &used, &r.err));
        assert_true(lt_event_done(ready));
        OK(lt_event_sync(ready, &r.err));
        static uint32_t in[200], out[200];
        /* One slot, written by one queue and read by the other, 200 times. */
        for (uint32_t k = 0; k < 200; k++) {
            in[k] = k * 2654435761u;
            OK(lt_queue_wait(r.copy, used, &r.err));
            OK(lt_queue_copy_in(r.copy, r.mem + 4, &in[k], 4, &r.err));
            OK(lt_event_record(ready, r.copy, &r.err));
            OK(lt_queue_wait(r.compute, ready, &r.err));
            OK(lt_queue_copy_out(r.compute, &out[k], r.mem + 4, 4, &r.err));
            OK(lt_event_record(used, r.compute, &r.err));
        }
        OK(lt_event_sync(used, &r.err));
        assert_memory_equal(in, out, sizeof in);
        assert_true(lt_event_done(ready) && lt_event_done(used));
        assert_true(lt_event_time_ns(used) >= lt_event_time_ns(ready));
        lt_event_destroy(ready);
        lt_event_destroy(used);
        close_rig(&r);
    }
}

/* A wait keeps the record it was given, even when a later one, on another queue, is reached first. */
static void a_later_record_releases_nobody_early(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        gate g = GATE;
        lt_event *ev, *end;
        lt_queue *other;
        int early = 0;
        uint32_t one = 1, got = 0;
        OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &other, &r.err));
        OK(lt_event_create(r.dev, &ev, &r.err));
        OK(lt_event_create(r.dev, &end, &r.err));
        OK(lt_queue_fill(r.copy, r.mem, 0, 64, &r.err));
        OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
        OK(lt_queue_copy_in(r.copy, r.mem, &one, 4, &r.err));
        OK(lt_event_record(ev, r.copy, &r.err));
        OK(lt_queue_wait(r.compute, ev, &r.err));
        OK(lt_queue_call(r.compute, count_up, &early, &r.err));
        OK(lt_queue_copy_out(r.compute, &got, r.mem, 4, &r.err));
        OK(lt_event_record(end, r.compute, &r.err));
        assert_false(lt_event_done(ev));
        OK(lt_event_record(ev, other, &r.err)); /* reached at once */
        OK(lt_event_sync(ev, &r.err));
        assert_true(lt_event_done(ev));
        usleep(2000);
        assert_false(lt_event_done(end));
        open_gate(&g);
        OK(lt_queue_sync(r.compute, &r.err));
        assert_int_equal(early, 1);
        assert_int_equal(got, 1);
        lt_event_destroy(ev);
        lt_event_destroy(end);
        lt_queue_destroy(other);
        close_rig(&r);
    }
}

static void errors_stick_and_name_the_work(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        gate g = GATE;
        lt_event *ev;
        int ran = 0;
        OK(lt_event_create(r.dev, &ev, &r.err));
        OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
        OK(lt_queue_call(r.copy, refuse, "shelf 7 is empty", &r.err));
        OK(lt_queue_call(r.copy, count_up, &ran, &r.err));
        OK(lt_event_record(ev, r.copy, &r.err));
        OK(lt_queue_wait(r.compute, ev, &r.err));
        OK(lt_queue_call(r.compute, count_up, &ran, &r.err));
        open_gate(&g);
        for (int k = 0; k < 2; k++) {
            memset(&r.err, 0, sizeof r.err);
            assert_int_equal(lt_queue_sync(r.copy, &r.err), LT_E_IO);
            assert_string_equal(r.err.text, "shelf 7 is empty");
        }
        assert_int_equal(lt_queue_fill(r.copy, r.mem, 0, 4, &r.err), LT_E_IO);
        assert_int_equal(lt_event_record(ev, r.copy, &r.err), LT_E_IO);
        /* Who waits for a failed queue fails with its error instead of reading what never came. */
        memset(&r.err, 0, sizeof r.err);
        assert_int_equal(lt_event_sync(ev, &r.err), LT_E_IO);
        assert_int_equal(lt_queue_sync(r.compute, &r.err), LT_E_IO);
        assert_string_equal(r.err.text, "shelf 7 is empty");
        assert_true(lt_event_done(ev));
        assert_int_equal(ran, 0);
        lt_event_destroy(ev);
        /* New queues on the device are sound. */
        lt_queue *fresh;
        OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &fresh, &r.err));
        OK(lt_queue_fill(fresh, r.mem, 1, 4, &r.err));
        OK(lt_queue_sync(fresh, &r.err));
        lt_queue_destroy(fresh);
        close_rig(&r);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    rig r = open_rig("sim:vram=64M", NULL), other = open_rig("cpu", NULL);
    uint8_t b[8];
    lt_event *ev;
    OK(lt_event_create(other.dev, &ev, &r.err));
    assert_int_equal(lt_queue_wait(r.copy, ev, &r.err), LT_E_INVALID);
    assert_int_equal(lt_event_record(ev, r.copy, &r.err), LT_E_INVALID);
    assert_int_equal(lt_queue_copy_in(r.copy, 0, b, 8, &r.err), LT_E_INVALID);
    assert_int_equal(lt_queue_copy_in(r.copy, r.mem, NULL, 8, &r.err), LT_E_INVALID);
    assert_int_equal(lt_queue_copy_in(r.copy, r.mem, b, UINT64_MAX, &r.err), LT_E_INVALID);
    assert_int_equal(lt_queue_copy(r.copy, r.mem, r.mem + 4, 8, &r.err), LT_E_INVALID);
    assert_int_equal(lt_device_commit(r.dev, r.mem, 1, &r.err), LT_E_INVALID);
    assert_int_equal(lt_device_commit(r.dev, r.mem, r.info.commit_bytes, &r.err), LT_E_INVALID); /* already */
    assert_int_equal(lt_device_commit(r.dev, r.mem + r.bytes, r.info.commit_bytes, &r.err), LT_E_INVALID);
    assert_int_equal(lt_device_reserve(r.dev, UINT64_MAX, &(lt_addr){0}, &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(lt_device_reserve(r.dev, 0, &(lt_addr){0}, &r.err), LT_E_INVALID);
    lt_event_destroy(ev);
    close_rig(&r);
    close_rig(&other);
}

/* Pinned in two parts side by side, host memory has one address there, and only while it is pinned. */
static void host_memory_is_mapped_while_pinned(void **state)
{
    (void)state;
    EACH_SPEC {
        rig r = open_rig(specs[i_], NULL);
        const size_t half = 64 << 10;
        uint8_t *host = aligned_alloc(4096, 2 * half);
        assert_non_null(host);
        lt_addr at = 0, part = 0;
        if (!r.info.maps_host) {
            assert_int_equal(lt_device_map_host(r.dev, host, half, &at, &r.err), LT_E_UNSUPPORTED);
            free(host);
            close_rig(&r);
            continue;
        }
        assert_int_equal(lt_device_map_host(r.dev, host, half, &at, &r.err), LT_E_INVALID);
        OK(lt_device_pin(r.dev, host, half, &r.err));
        assert_int_equal(lt_device_map_host(r.dev, host, half + 1, &at, &r.err), LT_E_INVALID);
        assert_non_null(strstr(r.err.text, "pinned"));
        OK(lt_device_pin(r.dev, host + half, half, &r.err));
        OK(lt_device_map_host(r.dev, host, 2 * half, &at, &r.err));
        OK(lt_device_map_host(r.dev, host + half + 100, half - 100, &part, &r.err));
        assert_true(at && part - at == half + 100);
        assert_int_equal(lt_device_map_host(r.dev, host, 0, &at, &r.err), LT_E_INVALID);
        lt_device_unpin(r.dev, host, half);
        assert_int_equal(lt_device_map_host(r.dev, host, 2 * half, &at, &r.err), LT_E_INVALID);
        OK(lt_device_map_host(r.dev, host + half, half, &at, &r.err));
        lt_device_unpin(r.dev, host + half, half);
        free(host);
        close_rig(&r);
    }
}

static void specs_name_the_bad_key(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *in_text;
    } bad[] = {{"gpu", "gpu"},
               {"cpu:thread=2", "thread"},
               {"cpu:threads=0", "threads=0"},
               {"cpu:threads=x", "threads=x"},
               {"cpu:isa=mmx", "isa=mmx"},
               {"cpu:vram=1G", "vram"},
               {"cpu:mem=0", "mem=0"},
               {"sim:vram=", "vram="},
               {"sim:vram=12Q", "vram=12Q"},
               {"sim:latency=5", "latency=5"},
               {"sim:clock=wall", "clock=wall"},
               {"sim:fail=copy", "fail=copy"},
               {"sim:fail=copy:0", "fail=copy:0"},
               {"sim:fail=tea:1", "fail=tea:1"},
               {"sim:poison=yes", "poison=yes"},
               {"sim:vram=1M,fixed=2M", "fixed"},
               {"sim:compute=1G", "clock=virtual"},
               {"sim:vram=1G,", "comma"}};
    lt_ctx *ctx;
    lt_err err;
    OK(lt_ctx_create(NULL, &ctx, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        lt_device *dev;
        assert_int_equal(lt_device_open(ctx, bad[i].spec, &dev, &err), LT_E_INVALID);
        if (!strstr(err.text, bad[i].in_text))
            fail_msg("%s: '%s' does not name '%s'", bad[i].spec, err.text, bad[i].in_text);
    }
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

static void memory_is_limited_by_numbers(void **state)
{
    (void)state;
    static const char *const capped[] = {"sim:vram=10M,fixed=1M", "cpu:mem=9M"};
    for (size_t i = 0; i < 2; i++) {
        lt_ctx *ctx;
        lt_device *dev;
        lt_addr mem;
        lt_err err;
        lt_device_info info;
        OK(lt_ctx_create(NULL, &ctx, &err));
        OK(lt_device_open(ctx, capped[i], &dev, &err));
        lt_device_get_info(dev, &info);
        OK(lt_device_reserve(dev, 1024 * MIB, &mem, &err)); /* address space is not memory */
        assert_int_equal(lt_device_commit(dev, mem, 9 * MIB + info.commit_bytes, &err), LT_E_DEVICE_OOM);
        assert_non_null(strstr(err.text, "9502720")); /* wanted */
        assert_non_null(strstr(err.text, "9437184")); /* free */
        OK(lt_device_commit(dev, mem + 64 * MIB, 4 * MIB, &err));
        OK(lt_device_commit(dev, mem, 5 * MIB, &err));
        assert_int_equal(lt_device_commit(dev, mem + 128 * MIB, info.commit_bytes, &err), LT_E_DEVICE_OOM);
        lt_device_decommit(dev, mem + 2 * MIB, info.commit_bytes);
        OK(lt_device_commit(dev, mem + 128 * MIB, info.commit_bytes, &err));
        lt_device_stats st;
        lt_device_get_stats(dev, &st);
        assert_int_equal(st.committed_bytes, 9 * MIB);
        assert_int_equal(st.peak_committed_bytes, 9 * MIB);
        lt_device_unreserve(dev, mem, 1024 * MIB); /* takes the commits along */
        lt_device_get_stats(dev, &st);
        assert_int_equal(st.committed_bytes, 0);
        lt_device_close(dev);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
    }
}

/* cases, Memory 8: ComfyUI 12763. */
static void memory_08_five_thousand_reservations(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        uint64_t vram = lt__max_u64(r.info.total_bytes, 1024 * MIB);
        if (strstr(r.info.name, "plain memory")) /* there address space is memory */
            vram = lt__round_down(r.info.free_bytes / 2, r.info.commit_bytes);
        uint64_t before = lt_ctx_host_bytes(r.ctx);
        for (int k = 0; k < 5000; k++) {
            lt_addr mem;
            OK(lt_device_reserve(r.dev, vram, &mem, &r.err));
            if (k % 500 == 0) {
                OK(lt_device_commit(r.dev, mem, r.info.commit_bytes, &r.err));
                OK(lt_queue_fill(r.copy, mem, 3, r.info.commit_bytes, &r.err));
                OK(lt_queue_sync(r.copy, &r.err));
            }
            lt_device_unreserve(r.dev, mem, vram);
        }
        /* The list of reservations may have grown once. */
        assert_true(lt_ctx_host_bytes(r.ctx) - before < 4096);
        close_rig(&r);
    }
}

static void destroy_waits_for_work_in_flight(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        enum { N = 500 };
        int ran = 0;
        lt_queue *q;
        OK(lt_queue_create(r.dev, LT_QUEUE_COPY, &q, &r.err));
        for (int k = 0; k < N; k++)
            OK(lt_queue_call(q, count_up, &ran, &r.err));
        lt_queue_destroy(q);
        assert_int_equal(ran, N);
        close_rig(&r);
    }
}

static void close_takes_what_was_left(void **state)
{
    (void)state;
    EACH_SPEC
    {
        lt_ctx *ctx;
        lt_device *dev;
        lt_queue *q;
        lt_event *ev;
        lt_addr mem;
        lt_err err;
        int ran = 0;
        OK(lt_ctx_create(NULL, &ctx, &err));
        OK(lt_device_open(ctx, specs[i_], &dev, &err));
        OK(lt_queue_create(dev, LT_QUEUE_COMPUTE, &q, &err));
        OK(lt_event_create(dev, &ev, &err));
        OK(lt_device_reserve(dev, MIB, &mem, &err));
        for (int k = 0; k < 50; k++) {
            OK(lt_queue_call(q, count_up, &ran, &err));
            OK(lt_event_record(ev, q, &err));
        }
        lt_device_close(dev);
        assert_int_equal(ran, 50);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
    }
}

/* A producer far ahead of a stopped queue is not blocked, and everything is run in order. */
typedef struct ticket {
    uint32_t number, *next;
} ticket;

static lt_status take_turn(void *user, lt_err *err)
{
    ticket *t = user;
    return *t->next == t->number ? ++*t->next, LT_OK : lt__fail(err, LT_E_INVALID, "%u ran out of turn", t->number);
}

static void a_producer_may_run_far_ahead(void **state)
{
    (void)state;
    rig r = open_rig("cpu:threads=1", NULL);
    enum { N = 5000 };
    static ticket tickets[N];
    for (int lap = 0; lap < 2; lap++) {
        uint32_t next = 0;
        gate g = GATE;
        OK(lt_queue_call(r.copy, pass_gate, &g, &r.err));
        for (uint32_t k = 0; k < N; k++) {
            tickets[k] = (ticket){k, &next};
            OK(lt_queue_call(r.copy, take_turn, &tickets[k], &r.err));
        }
        open_gate(&g);
        OK(lt_queue_sync(r.copy, &r.err));
        assert_int_equal(next, N);
    }
    close_rig(&r);
}

enum { RING = 8, LAPS = 60, HANDS = 6 };
typedef struct hand {
    rig *r;
    lt_addr mem;
    int bad;
    uint64_t bytes;
} hand;

static void *work_by_hand(void *p)
{
    hand *h = p;
    lt_queue *in, *out;
    lt_event *full[RING], *empty[RING];
    static const uint32_t len = 777;
    uint8_t *src = malloc((size_t)LAPS * len), *dst = malloc((size_t)LAPS * len);
    uint32_t seed = (uint32_t)h->mem;
    for (uint32_t i = 0; i < LAPS * len; i++)
        src[i] = (uint8_t)rnd(&seed);
    h->bad = lt_queue_create(h->r->dev, LT_QUEUE_COPY, &in, NULL) || lt_queue_create(h->r->dev, LT_QUEUE_COPY, &out, NULL);
    for (int i = 0; i < RING; i++)
        h->bad |= lt_event_create(h->r->dev, &full[i], NULL) || lt_event_create(h->r->dev, &empty[i], NULL);
    for (int k = 0; k < LAPS; k++) {
        int s = k % RING;
        h->bad |= lt_queue_wait(in, empty[s], NULL) ||
                  lt_queue_copy_in(in, h->mem + (uint64_t)s * 1024, src + k * len, len, NULL) ||
                  lt_event_record(full[s], in, NULL) || lt_queue_wait(out, full[s], NULL) ||
                  lt_queue_copy_out(out, dst + k * len, h->mem + (uint64_t)s * 1024, len, NULL) ||
                  lt_event_record(empty[s], out, NULL);
    }
    h->bad |= lt_queue_sync(out, NULL) || lt_queue_sync(in, NULL);
    h->bad |= memcmp(src, dst, (size_t)LAPS * len) != 0;
    h->bytes = (uint64_t)LAPS * len;
    for (int i = 0; i < RING; i++) {
        lt_event_destroy(full[i]);
        lt_event_destroy(empty[i]);
    }
    lt_queue_destroy(in);
    lt_queue_destroy(out);
    free(src);
    free(dst);
    return NULL;
}

static void many_queues_of_many_threads(void **state)
{
    (void)state;
    EACH_SPEC
    {
        rig r = open_rig(specs[i_], NULL);
        pthread_t t[HANDS];
        hand h[HANDS];
        uint64_t bytes = 0;
        for (int k = 0; k < HANDS; k++) {
            h[k] = (hand){.r = &r, .mem = r.mem + (uint64_t)k * MIB};
            pthread_create(&t[k], NULL, work_by_hand, &h[k]);
        }
        for (int k = 0; k < HANDS; k++) {
            pthread_join(t[k], NULL);
            assert_false(h[k].bad);
            bytes += h[k].bytes;
        }
        lt_device_stats st;
        lt_device_get_stats(r.dev, &st);
        assert_int_equal(st.h2d_bytes, bytes);
        assert_int_equal(st.d2h_bytes, bytes);
        assert_int_equal(st.copies, 2 * HANDS * LAPS);
        close_rig(&r);
    }
}

int main(void)
{
    static char list[2048];
    char *save = NULL;
    if (getenv("LT_CONFORMANCE_DEVICES")) {
        snprintf(list, sizeof list, "%s", getenv("LT_CONFORMANCE_DEVICES"));
        n_specs = 0;
        for (char *spec = strtok_r(list, ";", &save); spec && n_specs < 16; spec = strtok_r(NULL, ";", &save))
            specs[n_specs++] = spec;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(info_is_true),
        cmocka_unit_test(copies_are_exact),
        cmocka_unit_test(events_order_queues),
        cmocka_unit_test(a_later_record_releases_nobody_early),
        cmocka_unit_test(errors_stick_and_name_the_work),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(host_memory_is_mapped_while_pinned),
        cmocka_unit_test(specs_name_the_bad_key),
        cmocka_unit_test(memory_is_limited_by_numbers),
        cmocka_unit_test(memory_08_five_thousand_reservations),
        cmocka_unit_test(destroy_waits_for_work_in_flight),
        cmocka_unit_test(close_takes_what_was_left),
        cmocka_unit_test(a_producer_may_run_far_ahead),
        cmocka_unit_test(many_queues_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
