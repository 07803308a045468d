/* Faults users met with other memory managers; the numbers are those of the cases' list, "Memory and offload". */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "lowtide/pool.h"

#define MiB (1ull << 20)

typedef struct rig {
    lt_ctx *ctx;
    lt_device *dev;
    lt_pool *pool;
    lt_fault_point point;
    int every, count; /* every n-th call of the point fails */
} rig;

static bool fault(void *user, lt_fault_point point)
{
    rig *r = user;
    return r->every && point == r->point && ++r->count % r->every == 0;
}

static void rig_open_chunk(rig *r, uint64_t limit, uint64_t chunk)
{
    lt_ctx_desc cd = lt_ctx_desc_default();
    lt_err err;
    memset(r, 0, sizeof *r);
    cd.fault = fault;
    cd.fault_user = r;
    assert_int_equal(lt_ctx_create(&cd, &r->ctx, NULL), LT_OK);
    assert_int_equal(lt_device_open(r->ctx, "sim:vram=128M", &r->dev, NULL), LT_OK);
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = limit;
    d.chunk_bytes = chunk;
    d.name = "vram";
    if (lt_pool_create(r->dev, &d, &r->pool, &err) != LT_OK) fail_msg("%s", err.text);
}

static void rig_open(rig *r, uint64_t limit)
{
    rig_open_chunk(r, limit, MiB);
}

static void rig_close(rig *r)
{
    lt_err err;
    if (lt_pool_check(r->pool, &err) != LT_OK) fail_msg("%s", err.text);
    lt_pool_destroy(r->pool);
    lt_device_close(r->dev);
    assert_int_equal(lt_ctx_host_bytes(r->ctx), 0);
    lt_ctx_destroy(r->ctx);
}

typedef struct weights {
    lt_block b[64];
    int n;
} weights;

static uint64_t evict(void *user, lt_pool *pool, uint64_t need)
{
    weights *w = user;
    uint64_t given = 0;
    while (w->n && given < need) {
        lt_block b = w->b[--w->n];
        given += b.bytes;
        lt_pool_free(pool, b, NULL);
    }
    return given;
}

static void memory_04_large_allocation_evicts_all_weights_first(void **state)
{
    (void)state;
    rig r;
    weights w = {0};
    lt_err err;
    lt_block act, big, more;
    rig_open(&r, 64 * MiB);
    assert_int_equal(lt_pool_alloc(r.pool, 4 * MiB, 0, LT_USE_ACTIVATION, NULL, &act, &err), LT_OK);
    while (w.n < 60) {
        assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_WEIGHT, NULL, &w.b[w.n], &err), LT_OK);
        w.n++;
    }
    lt_pool_set_pressure(r.pool, evict, &w);
    /* Needs every weight gone, and then fits exactly. */
    assert_int_equal(lt_pool_alloc(r.pool, 60 * MiB, 0, LT_USE_ACTIVATION, NULL, &big, &err), LT_OK);
    assert_int_equal(w.n, 0);
    /* Only when activations alone exceed the budget is it out of memory, and it says who holds it. */
    assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_ACTIVATION, NULL, &more, &err), LT_E_DEVICE_OOM);
    if (!strstr(err.text, "held: activation 64.0 MiB")) fail_msg("%s", err.text);
    lt_pool_free(r.pool, big, NULL);
    lt_pool_free(r.pool, act, NULL);
    rig_close(&r);
}

static void memory_07_transient_commit_failure_rolls_back_200_runs_no_drift(void **state)
{
    (void)state;
    rig r;
    uint64_t host = 0, committed = 0, failed = 0;
    rig_open_chunk(&r, 3 * MiB, MiB / 16);
    r.point = LT_FAULT_COMMIT;
    r.every = 7;
    for (int run = 0; run < 200; run++) {
        lt_block b[6];
        lt_err err;
        for (int i = 0; i < 6; i++) {
            lt_status st;
            int tries = 0;
            while ((st = lt_pool_alloc(r.pool, (uint64_t)(i + 1) * MiB / 8, 0, (lt_use)(i % LT_USE_COUNT), NULL, &b[i], &err)) != LT_OK) {
                assert_int_equal(st, LT_E_DEVICE_OOM);
                failed++;
                assert_int_equal(lt_pool_check(r.pool, NULL), LT_OK); /* never half committed */
                assert_true(++tries < 20);
                r.count++;
                if (tries > 2) r.every = 0; /* the device has recovered */
            }
            r.every = 7;
        }
        for (int i = 0; i < 6; i++) lt_pool_free(r.pool, b[(i * 5) % 6], NULL);
        assert_int_equal(lt_pool_trim(r.pool, 0), 0);
        lt_pool_stats s;
        lt_device_stats ds;
        lt_pool_get_stats(r.pool, &s);
        lt_device_get_stats(r.dev, &ds);
        assert_int_equal(s.live | s.committed | s.pending | s.free_bytes | ds.committed_bytes, 0);
        if (run == 0) {
            host = lt_ctx_host_bytes(r.ctx);
            committed = s.peak_committed;
        }
        assert_int_equal(lt_ctx_host_bytes(r.ctx), host);
        assert_true(s.peak_committed <= committed + MiB);
    }
    assert_true(failed > 100);
    r.every = 0;
    rig_close(&r);
}

static void memory_22_reported_free_is_at_most_the_truth(void **state)
{
    (void)state;
    rig r;
    uint64_t seed = 5;
    lt_block b[200];
    int n = 0;
    lt_err err;
    rig_open_chunk(&r, 8 * MiB, MiB / 2);
    for (int step = 0; step < 3000; step++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        if ((seed >> 33 & 1) && n < 200) {
            if (lt_pool_alloc(r.pool, 1 + (seed >> 40) % (MiB / 8), 0, LT_USE_KV, NULL, &b[n], NULL) == LT_OK) n++;
        } else if (n) {
            int i = (int)((seed >> 34) % (unsigned)n);
            lt_pool_free(r.pool, b[i], NULL);
            b[i] = b[--n];
        }
        if (step % 50) continue;
        lt_pool_stats s;
        lt_pool_get_stats(r.pool, &s);
        assert_true(s.largest_free <= s.free_bytes && s.live + s.free_bytes <= s.limit);
        /* The proof: what is called the largest free block can be had, without another commit. */
        if (!s.largest_free) continue;
        lt_block all;
        uint64_t commits = s.commits;
        assert_int_equal(lt_pool_alloc(r.pool, s.largest_free, 0, LT_USE_KV, NULL, &all, &err), LT_OK);
        lt_pool_get_stats(r.pool, &s);
        assert_int_equal(s.commits, commits);
        lt_pool_free(r.pool, all, NULL);
        lt_device_info info;
        lt_device_get_info(r.dev, &info);
        assert_true(info.free_bytes + s.committed <= info.total_bytes);
    }
    while (n) lt_pool_free(r.pool, b[--n], NULL);
    rig_close(&r);
}

static void memory_23_error_names_the_exhausted_resource(void **state)
{
    (void)state;
    rig r;
    lt_err err;
    lt_block b;
    rig_open(&r, 16 * MiB);
    /* The budget. */
    assert_int_equal(lt_pool_alloc(r.pool, 17 * MiB, 0, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
    assert_non_null(strstr(err.text, "pool 'vram': no 17.0 MiB for kv"));
    assert_non_null(strstr(err.text, "limit 16.0 MiB"));
    assert_null(strstr(err.text, "could not commit"));
    /* The device's memory, with budget left. */
    r.point = LT_FAULT_COMMIT;
    r.every = 1;
    assert_int_equal(lt_pool_alloc(r.pool, MiB, 0, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
    assert_non_null(strstr(err.text, "the device could not commit more"));
    /* The host's memory: another status altogether. */
    r.point = LT_FAULT_HOST_ALLOC;
    lt_pool *other;
    assert_int_equal(lt_pool_create(r.dev, NULL, &other, &err), LT_E_HOST_OOM);
    assert_null(other);
    r.every = 0;
    /* More than the device has, though the limit allows it: 200 MiB asked of 128. */
    lt_pool_desc d = lt_pool_desc_default();
    d.limit_bytes = 200 * MiB;
    d.commit_all = true;
    assert_int_equal(lt_pool_create(r.dev, &d, &other, &err), LT_E_DEVICE_OOM);
    assert_non_null(strstr(err.text, "cannot commit all 200 MiB"));
    /* Address space. */
    d.commit_all = false;
    d.limit_bytes = 1ull << 55;
    assert_int_not_equal(lt_pool_create(r.dev, &d, &other, &err), LT_OK);
    assert_non_null(strstr(err.text, "address space"));
    rig_close(&r);
}

static void memory_25_no_sentinel_enters_byte_arithmetic(void **state)
{
    (void)state;
    rig r;
    lt_err err;
    lt_block b;
    const uint64_t odd[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 255, INT64_MAX, 1ull << 63, (1ull << 63) + 1, UINT64_MAX - (16 * MiB)};
    rig_open(&r, 16 * MiB);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        lt_pool_desc d = lt_pool_desc_default();
        lt_pool *other;
        d.limit_bytes = odd[i]; /* "unlimited" is refused, not rounded to zero or to 10^19 bytes usable */
        assert_int_not_equal(lt_pool_create(r.dev, &d, &other, &err), LT_OK);
        assert_null(other);
        assert_int_equal(lt_pool_alloc(r.pool, odd[i], 0, LT_USE_KV, NULL, &b, &err), LT_E_DEVICE_OOM);
        assert_int_equal(lt_pool_set_limit(r.pool, odd[i], &err), LT_E_INVALID);
        assert_int_equal(lt_pool_trim(r.pool, odd[i]), 0);
    }
    lt_pool_stats s;
    lt_pool_get_stats(r.pool, &s);
    assert_int_equal(s.limit, 16 * MiB);
    assert_int_equal(s.live + s.committed + s.free_bytes, 0);
    /* Zero means "all the device reports as free", a real number. */
    lt_pool *all;
    lt_device_info info;
    lt_device_get_info(r.dev, &info);
    assert_int_equal(lt_pool_create(r.dev, NULL, &all, &err), LT_OK);
    lt_pool_get_stats(all, &s);
    assert_int_equal(s.limit, info.free_bytes / info.commit_bytes * info.commit_bytes);
    lt_pool_destroy(all);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_04_large_allocation_evicts_all_weights_first),
        cmocka_unit_test(memory_07_transient_commit_failure_rolls_back_200_runs_no_drift),
        cmocka_unit_test(memory_22_reported_free_is_at_most_the_truth),
        cmocka_unit_test(memory_23_error_names_the_exhausted_resource),
        cmocka_unit_test(memory_25_no_sentinel_enters_byte_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
