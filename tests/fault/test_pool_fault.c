/* The Nth host allocation or commit of a short run fails, for every N: a typed error or none at all,
 * invariants whole, nothing leaked, and the same run in the same pool or process right afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "lowtide/pool.h"
#include "memory/trace.h"

#define MiB (1ull << 20)

typedef struct injector {
    lt_fault_point point;
    int left;
    bool forever, fired;
} injector;

static bool inject(void *user, lt_fault_point point)
{
    injector *f = user;
    if (point != f->point || f->left <= 0) return false;
    if (f->left > 1) {
        f->left--;
        return false;
    }
    if (!f->forever) f->left = 0;
    f->fired = true;
    return true;
}

static bool typed(lt_status s)
{
    return s == LT_OK || s == LT_E_HOST_OOM || s == LT_E_DEVICE_OOM;
}

static void check(lt_pool *pool)
{
    lt_err err;
    if (lt_pool_check(pool, &err) != LT_OK) fail_msg("%s", err.text);
}

/* Two queues, growth, split, reuse, trim, growth again. Returns the first error. */
static lt_status use_pool(lt_pool *pool, lt_queue *q1, lt_queue *q2)
{
    lt_block b[48];
    lt_status first = LT_OK;
    uint32_t n = 0;
    for (uint32_t i = 0; i < 40; i++) {
        lt_err err = {0};
        lt_status st = lt_pool_alloc(pool, (i * 97 % 13 + 1) * 6000, 256, (lt_use)(i % LT_USE_COUNT), i & 1 ? q1 : q2, &b[n], &err);
        assert_true(typed(st));
        if (st == LT_OK) n++;
        else {
            assert_true(err.status == st && err.text[0]);
            if (first == LT_OK) first = st;
        }
        check(pool);
        if (i % 3 == 2 && n) {
            lt_pool_free(pool, b[i % n], i & 2 ? q1 : q2);
            b[i % n] = b[n - 1];
            n--;
            check(pool);
        }
        if (i % 16 == 15) (void)lt_pool_trim(pool, MiB / 4);
    }
    for (; n; n--) lt_pool_free(pool, b[n - 1], n & 1 ? q1 : NULL);
    check(pool);
    return first;
}

static void sweep(lt_fault_point point, bool forever, bool all)
{
    int fired = 0;
    for (int n = 1;; n++) {
        injector f = {.point = point, .forever = forever};
        lt_ctx_desc cd = lt_ctx_desc_default();
        lt_err err = {0};
        lt_ctx *ctx;
        lt_device *dev;
        lt_queue *q1, *q2;
        lt_pool *pool = NULL;
        cd.fault = inject;
        cd.fault_user = &f;
        assert_int_equal(lt_ctx_create(&cd, &ctx, &err), LT_OK);
        assert_int_equal(lt_device_open(ctx, "sim:vram=64M,h2d=100G", &dev, &err), LT_OK);
        assert_int_equal(lt_queue_create(dev, LT_QUEUE_COPY, &q1, &err), LT_OK);
        assert_int_equal(lt_queue_create(dev, LT_QUEUE_COPY, &q2, &err), LT_OK);
        lt_addr warm; /* the device keeps its table of reservations */
        assert_int_equal(lt_device_reserve(dev, MiB, &warm, &err), LT_OK);
        lt_device_unreserve(dev, warm, MiB);
        uint64_t before = lt_ctx_host_bytes(ctx);
        f.left = n; /* counts from here: the devices have their own sweeps */
        lt_pool_desc d = lt_pool_desc_default();
        d.limit_bytes = 5 * MiB / 2;
        d.chunk_bytes = MiB / 8;
        d.commit_all = all;
        lt_status st = lt_pool_create(dev, &d, &pool, &err);
        assert_true(typed(st));
        assert_int_equal(st == LT_OK, pool != NULL);
        if (pool) {
            (void)use_pool(pool, q1, q2);
            f.left = 0;
            assert_int_equal(use_pool(pool, q1, q2), LT_OK); /* the fault is over: nothing is left of it */
            lt_pool_forget_queue(pool, q1);
            lt_pool_forget_queue(pool, q2);
            lt_pool_destroy(pool);
        } else {
            assert_true(err.text[0] != 0);
            assert_int_equal(lt_ctx_host_bytes(ctx), before);
            f.left = 0;
        }
        lt_device_stats ds;
        lt_device_get_stats(dev, &ds);
        assert_int_equal(ds.committed_bytes, 0);
        lt_queue_destroy(q1);
        lt_queue_destroy(q2);
        lt_device_close(dev);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
        fired += f.fired;
        if (!f.fired) break;
        assert_true(n < 5000);
    }
    printf("           %d faults injected\n", fired);
    assert_true(fired > 3);
}

static void nth_host_allocation(void **state)
{
    (void)state;
    sweep(LT_FAULT_HOST_ALLOC, false, false);
}

static void every_host_allocation_from_the_nth(void **state)
{
    (void)state;
    sweep(LT_FAULT_HOST_ALLOC, true, false);
}

static void nth_commit(void **state)
{
    (void)state;
    sweep(LT_FAULT_COMMIT, false, false);
}

static void every_commit_from_the_nth(void **state)
{
    (void)state;
    sweep(LT_FAULT_COMMIT, true, false);
}

static void nth_commit_of_all(void **state)
{
    (void)state;
    sweep(LT_FAULT_COMMIT, false, true);
}

/* A commit of k chunks that fails at the i-th gives the first i - 1 back. */
static void rollback_at_each_chunk(void **state)
{
    (void)state;
    injector f = {.point = LT_FAULT_COMMIT};
    lt_ctx_desc cd = lt_ctx_desc_default();
    lt_err err = {0};
    lt_ctx *ctx;
    lt_device *dev;
    lt_pool *pool;
    cd.fault = inject;
    cd.fault_user = &f;
    assert_int_equal(lt_ctx_create(&cd, &ctx, &err), LT_OK);
    assert_int_equal(lt_device_open(ctx, "sim:vram=64M", &dev, &err), LT_OK);
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = 2 * MiB;
    d.chunk_bytes = MiB / 8;
    assert_int_equal(lt_pool_create(dev, &d, &pool, &err), LT_OK);
    for (int i = 1; i <= 10; i++) {
        lt_block b;
        lt_device_stats ds;
        f.left = i;
        assert_int_equal(lt_pool_alloc(pool, 10 * MiB / 8, 0, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
        assert_non_null(strstr(err.text, "could not commit"));
        lt_device_get_stats(dev, &ds);
        assert_int_equal(ds.committed_bytes, 0);
        check(pool);
        f.left = 0;
        assert_int_equal(lt_pool_alloc(pool, 10 * MiB / 8, 0, LT_USE_KV, NULL, &b, &err), LT_OK);
        lt_pool_free(pool, b, NULL);
        assert_int_equal(lt_pool_trim(pool, 0), 0);
    }
    lt_pool_destroy(pool);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nth_host_allocation), cmocka_unit_test(every_host_allocation_from_the_nth),
        cmocka_unit_test(nth_commit),          cmocka_unit_test(every_commit_from_the_nth),
        cmocka_unit_test(nth_commit_of_all),   cmocka_unit_test(rollback_at_each_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
