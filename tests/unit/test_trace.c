/* Traces: written whole, read strictly, replayed exactly. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "memory/trace.h"

#define HEAD "lowtide-trace 1\ntime_ns,thread,queue,action,object,bytes,aux\n"

static char dir[] = "/tmp/lt_trace_XXXXXX", path[64];
static lt_ctx *ctx;
static int faults_left;
static lt_fault_point faulty;

static bool fault(void *user, lt_fault_point point)
{
    (void)user;
    return point == faulty && faults_left > 0 && --faults_left == 0;
}

static int setup(void **state)
{
    (void)state;
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = fault;
    if (!mkdtemp(dir) || lt_ctx_create(&d, &ctx, NULL) != LT_OK) return -1;
    snprintf(path, sizeof path, "%s/run.trace", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    int bad = rmdir(dir) != 0 || lt_ctx_host_bytes(ctx) != 0; /* a temporary left behind, or memory */
    lt_ctx_destroy(ctx);
    return bad;
}

typedef struct seen {
    uint64_t n, by_action[LT__TRACE_COUNT], last_time[64], objects;
} seen;

static lt_status see(void *user, const lt__trace_event *e, lt_err *err)
{
    (void)err;
    seen *s = user;
    s->n++;
    s->by_action[e->action]++;
    s->objects += e->object;
    assert_true(e->thread < 64 && e->time_ns >= s->last_time[e->thread]);
    s->last_time[e->thread] = e->time_ns;
    return LT_OK;
}

static void *record(void *t)
{
    for (uint64_t i = 0; i < 20000; i++) lt__trace_record(t, 0, (lt__trace_action)(i % LT__TRACE_COUNT), i, i * 3, UINT64_MAX);
    return NULL;
}

static void eight_threads_lose_nothing(void **state)
{
    (void)state;
    lt_trace *t;
    lt_err err = {0};
    pthread_t th[8];
    assert_int_equal(lt_trace_create(ctx, path, &t, &err), LT_OK);
    for (int i = 0; i < 8; i++) pthread_create(&th[i], NULL, record, t);
    for (int i = 0; i < 8; i++) pthread_join(th[i], NULL);
    assert_int_not_equal(access(path, F_OK), 0); /* not before it is whole */
    assert_int_equal(lt_trace_close(t, &err), LT_OK);
    seen s = {0};
    assert_int_equal(lt__trace_read(ctx, path, see, &s, &err), LT_OK);
    assert_int_equal(s.n, 160000);
    assert_int_equal(s.objects, 8ull * 20000 * 19999 / 2);
    assert_int_equal(s.by_action[LT__TRACE_ALLOC], 8ull * ((20000 + LT__TRACE_COUNT - 1) / LT__TRACE_COUNT));
    lt__trace_record(NULL, 0, LT__TRACE_STEP, 1, 2, 3);
    assert_int_equal(lt_trace_close(NULL, NULL), LT_OK);
}

static void failed_write_leaves_no_file(void **state)
{
    (void)state;
    unlink(path);
    for (int n = 1;; n++) {
        lt_trace *t;
        lt_err err = {0};
        faulty = LT_FAULT_WRITE;
        faults_left = n;
        lt_status st = lt_trace_create(ctx, path, &t, &err);
        if (st == LT_OK) {
            record(t);
            st = lt_trace_close(t, &err);
        }
        bool fired = faults_left == 0;
        faults_left = 0;
        assert_int_equal(access(path, F_OK) == 0, st == LT_OK);
        if (!fired) {
            assert_int_equal(st, LT_OK);
            assert_true(n > 1);
            break;
        }
        assert_int_equal(st, LT_E_IO);
        assert_true(err.text[0] != 0);
    }
    lt_err err;
    seen s = {0};
    faulty = LT_FAULT_READ;
    faults_left = 1;
    assert_int_equal(lt__trace_read(ctx, path, see, &s, &err), LT_E_IO);
    assert_int_equal(lt__trace_read(ctx, path, see, &s, &err), LT_OK);
    for (int n = 1;; n++) { /* every host allocation */
        lt_trace *t = NULL;
        faulty = LT_FAULT_HOST_ALLOC;
        faults_left = n;
        lt_status st = lt_trace_create(ctx, path, &t, &err);
        if (st == LT_OK) {
            record(t);
            (void)lt__trace_queue(t, (const lt_queue *)&st);
            st = lt_trace_close(t, &err);
        }
        bool fired = faults_left == 0;
        faults_left = 0;
        assert_true(st == LT_OK || st == LT_E_HOST_OOM);
        if (!fired) break;
        assert_true(n < 100);
    }
    assert_int_equal(lt__trace_read(ctx, "/nonexistent/x", see, &s, &err), LT_E_NOT_FOUND);
}

static void parser_is_strict(void **state)
{
    (void)state;
    const char *good[] = {HEAD, HEAD "0,0,0,step,0,0,0\n",
                          HEAD "18446744073709551615,4294967295,4294967295,plan,18446744073709551615,1,2\n"};
    const char *bad[] = {"", "lowtide-trace 1", "lowtide-trace 2\n", "lowtide-trace 1\nx\n",
                         HEAD "\n", HEAD "0,0,0,step,0,0,0", HEAD "0,0,0,step,0,0\n", HEAD "0,0,0,step,0,0,0,0\n",
                         HEAD "0,0,0,steps,0,0,0\n", HEAD "0,0,0,,0,0,0\n", HEAD "-1,0,0,step,0,0,0\n",
                         HEAD "0,4294967296,0,step,0,0,0\n", HEAD "0,0,0,step,18446744073709551616,0,0\n",
                         HEAD "0,0,0,step,99999999999999999999999,0,0\n", HEAD "00,0,0,step,0,0,0\n",
                         HEAD " 0,0,0,step,0,0,0\n", HEAD "0,0,0,step,0,0,0\r\n", HEAD "0,0,0,step,0,0x1,0\n",
                         HEAD "0,0,0,STEP,0,0,0\n", HEAD "0"};
    lt_err err;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        seen s = {0};
        if (i == 2) {
            lt_replay_result r;
            assert_int_equal(lt__trace_replay_text(ctx, "t", good[i], strlen(good[i]), NULL, &r, &err), LT_OK);
            continue;
        }
        assert_int_equal(lt__trace_parse("t", good[i], strlen(good[i]), see, &s, &err), LT_OK);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        seen s = {0};
        memset(&err, 0, sizeof err);
        if (lt__trace_parse("t", bad[i], strlen(bad[i]), see, &s, &err) != LT_E_FORMAT) fail_msg("accepted: %s", bad[i]);
        assert_true(strncmp(err.text, "t: ", 3) == 0);
    }
}

static lt_status replay(const char *text, uint64_t budget, const char *policy, lt_replay_result *r, lt_err *err)
{
    lt_replay_desc d = lt_replay_desc_default();
    d.budget_bytes = budget;
    if (policy) d.policy = policy;
    return lt__trace_replay_text(ctx, "t", text, strlen(text), &d, r, err);
}

static void replay_refuses_nonsense(void **state)
{
    (void)state;
    const char *bad[] = {
        HEAD "0,0,0,free,1,64,0\n",
        HEAD "0,0,0,alloc,1,64,0\n0,0,0,alloc,1,64,0\n",
        HEAD "0,0,0,alloc,1,64,0\n0,0,0,free,1,65,0\n",
        HEAD "0,0,0,alloc,1,64,0\n0,0,0,free,1,64,0\n0,0,0,free,1,64,0\n",
        HEAD "0,0,0,alloc,1,0,0\n",
        HEAD "0,0,0,alloc,1,18446744073709551615,0\n",
        HEAD "0,0,0,alloc,1,64,7\n",
        HEAD "0,0,0,alloc,1,64,16128\n", /* alignment 2^63 */
        HEAD "0,0,0,add,1,64,0\n0,0,0,add,1,64,0\n",
        HEAD "0,0,0,remove,1,64,0\n",
        HEAD "0,0,0,add,1,64,0\n0,0,0,lease,1,65,0\n",
        HEAD "0,0,0,lease,1,18446744073709551615,0\n",
    };
    lt_replay_result r;
    lt_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (replay(bad[i], 0, NULL, &r, &err) != LT_E_FORMAT) fail_msg("accepted: %s", bad[i]);
    assert_int_equal(replay(HEAD, 0, "clock", &r, &err), LT_E_INVALID);
    assert_non_null(strstr(err.text, "clock"));
    assert_int_equal(replay(HEAD, 0, NULL, &r, &err), LT_OK);
    assert_int_equal(r.events + r.peak_live + r.smallest_arena + r.leases, 0);
}

static void replay_finds_the_arena(void **state)
{
    (void)state;
    lt_replay_result r;
    lt_err err;
    /* Four blocks, two gaps of 1000 that never join: the 2000 go behind them. */
    const char *gaps = HEAD "0,0,0,alloc,1,1000,0\n0,0,0,alloc,2,1000,0\n0,0,0,alloc,3,1000,0\n0,0,0,alloc,4,1000,0\n"
                            "0,0,0,free,1,1000,0\n0,0,0,free,3,1000,0\n0,0,0,alloc,5,2000,0\n";
    assert_int_equal(replay(gaps, 0, NULL, &r, &err), LT_OK);
    assert_int_equal(r.peak_live, 4000);
    assert_int_equal(r.smallest_arena, 6000);
    assert_int_equal(replay(gaps, 6000, NULL, &r, &err), LT_OK);
    assert_int_equal(r.failures, 0);
    assert_int_equal(replay(gaps, 5999, NULL, &r, &err), LT_OK);
    assert_int_equal(r.failures, 1);
    assert_int_equal(replay(gaps, 1, NULL, &r, &err), LT_OK);
    assert_int_equal(r.failures, 5);
    /* The same with the short-lived ones at the other end: no gap. */
    const char *ends = HEAD "0,0,0,alloc,1,1000,2\n0,0,0,alloc,2,1000,0\n0,0,0,alloc,3,1000,2\n0,0,0,alloc,4,1000,0\n"
                            "0,0,0,free,1,1000,2\n0,0,0,free,3,1000,2\n0,0,0,alloc,5,2000,0\n";
    assert_int_equal(replay(ends, 0, NULL, &r, &err), LT_OK);
    assert_int_equal(r.smallest_arena, 4000);
    /* Objects of two pools do not mix. */
    const char *two = HEAD "0,0,0,alloc,1,64,65536\n0,0,0,alloc,1,64,131072\n0,0,0,free,1,64,65536\n0,0,0,free,1,64,131072\n";
    assert_int_equal(replay(two, 0, NULL, &r, &err), LT_OK);
    assert_int_equal(r.peak_live, 128);
}

static void replay_measures_regret(void **state)
{
    (void)state;
    char text[65536];
    size_t n = (size_t)sprintf(text, "%s", HEAD);
    for (int i = 0; i < 8; i++) n += (size_t)sprintf(text + n, "0,1,0,add,%d,1000,0\n", i);
    for (int s = 0; s < 20; s++)
        for (int i = 0; i < 8; i++)
            n += (size_t)sprintf(text + n, "0,1,0,lease,%d,1000,0\n0,1,0,load,%d,1000,0\n0,1,0,release,%d,1000,0\n", i, i, i);
    lt_replay_result lru, best;
    lt_err err;
    assert_int_equal(replay(text, 4999, "lru", &lru, &err), LT_OK);
    assert_int_equal(lru.hits, 0);
    assert_int_equal(lru.bytes_in, 160000);
    assert_int_equal(replay(text, 4999, "next-use", &best, &err), LT_OK);
    assert_true(best.regret == 0.0 && best.bytes_in == best.optimal_bytes_in && best.hits > 60);
    assert_true(lru.regret > 0.7 && lru.optimal_bytes_in == best.bytes_in);
    assert_int_equal(replay(text, 0, "lru", &lru, &err), LT_OK); /* everything fits */
    assert_int_equal(lru.loads, 8);
}

/* A pool's own trace, replayed, says what the pool said. */
static void recorded_pool_replays(void **state)
{
    (void)state;
    lt_device *dev;
    lt_trace *t;
    lt_pool *pool;
    lt_err err = {0};
    lt_block b[64];
    assert_int_equal(lt_device_open(ctx, "sim:vram=256M", &dev, &err), LT_OK);
    assert_int_equal(lt_trace_create(ctx, path, &t, &err), LT_OK);
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = 64 << 20;
    d.chunk_bytes = 1 << 20;
    d.trace = t;
    assert_int_equal(lt_pool_create(dev, &d, &pool, &err), LT_OK);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 64; i++)
            assert_int_equal(lt_pool_alloc(pool, 100u + (unsigned)(i * round) * 37u, i % 3 ? 0 : 512, (lt_use)(i % LT_USE_COUNT), NULL, &b[i], &err), LT_OK);
        for (int i = 0; i < 64; i++) lt_pool_free(pool, b[(i * 29) % 64], NULL);
    }
    (void)lt_pool_trim(pool, 0);
    lt_pool_stats s;
    lt_pool_get_stats(pool, &s);
    lt_pool_destroy(pool);
    assert_int_equal(lt_trace_close(t, &err), LT_OK);
    seen ev = {0};
    assert_int_equal(lt__trace_read(ctx, path, see, &ev, &err), LT_OK);
    assert_int_equal(ev.by_action[LT__TRACE_ALLOC], s.allocs);
    assert_int_equal(ev.by_action[LT__TRACE_FREE], s.frees);
    assert_int_equal(ev.by_action[LT__TRACE_COMMIT], s.commits);
    assert_true(s.decommits > 0 && ev.by_action[LT__TRACE_DECOMMIT] > 0);
    lt_replay_result r;
    assert_int_equal(lt_trace_replay(ctx, path, NULL, &r, &err), LT_OK);
    assert_int_equal(r.allocs, s.allocs);
    assert_int_equal(r.peak_live, s.peak_live);
    assert_true(r.smallest_arena >= r.peak_live && r.smallest_arena < r.peak_live * 2);
    lt_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_threads_lose_nothing), cmocka_unit_test(failed_write_leaves_no_file),
        cmocka_unit_test(parser_is_strict),           cmocka_unit_test(replay_refuses_nonsense),
        cmocka_unit_test(replay_finds_the_arena),     cmocka_unit_test(replay_measures_regret),
        cmocka_unit_test(recorded_pool_replays),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
