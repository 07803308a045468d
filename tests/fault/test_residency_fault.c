/* Fails the Nth host allocation, commit, copy, read, map, pin and write of a short run, for every N
 * until none is left: a typed error or a right result, sound books, nothing leaked, and the next run
 * in the same process, on the same objects where they exist, is right. */
#include "residency_rig.h"

static char path[256];
enum { FILE_BYTES = 2 << 20, STATE_BYTES = 70000 };

static int make_file(void **state)
{
    (void)state;
    pattern_file(path, sizeof path, RIG_SEED, FILE_BYTES);
    return 0;
}
static int drop_file(void **state)
{
    (void)state;
    return unlink(path);
}

static uint8_t home[STATE_BYTES];
static lt_status home_read(void *user, uint64_t at, void *dst, uint64_t n, lt_err *err)
{
    (void)user, (void)err;
    memcpy(dst, home + at, n);
    return LT_OK;
}
static lt_status home_write(void *user, uint64_t at, const void *src, uint64_t n, lt_err *err)
{
    (void)user, (void)err;
    memcpy(home + at, src, n);
    return LT_OK;
}

static const size_t order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3};
enum { N = sizeof order / sizeof *order };

static lt_status open_all(rig *g, const char *spec, lt_store_mode mode, lt_item *st_item, lt_err *err)
{
    lt_residency_desc d = lt_residency_desc_default();
    d.ring_bytes = 256 << 10;
    d.staging_bytes = 64 << 10;
    d.pin_bytes = 16 << 20;
    d.policy = lt_policy_next_use;
    lt_status st = rig_try_open(g, spec, 704 << 10, path, mode, &d, err);
    for (size_t i = 0; i < 10 && st == LT_OK; i++) st = rig_try_add(g, 90000 + 100 * i, i % 2 == 0, 0, err);
    lt_item_desc id = {.name = "state", .bytes = STATE_BYTES, .use = LT_USE_OPTIMIZER,
                       .source = {.read = home_read, .write = home_write}};
    return st == LT_OK ? lt_residency_add(g->res, &id, st_item, err) : st;
}

/* A dirty item, a plan, two sweeps that stream and evict. */
static lt_status run(rig *g, lt_item st_item, lt_err *err)
{
    lt_item items[N];
    for (size_t i = 0; i < N; i++) items[i] = g->item[order[i]];
    lt_lease l;
    lt_status st = lt_residency_lease(g->res, st_item, g->q, &l, err);
    if (st != LT_OK) return st;
    st = lt_queue_fill(g->q, l.addr, 0x17, STATE_BYTES, err);
    if (st == LT_OK) st = lt_residency_mark_dirty(g->res, l, err);
    lt_residency_release(g->res, l, g->q);
    if (st == LT_OK) st = lt_residency_plan(g->res, items, N, true, err);
    for (int k = 0; k < 2 && st == LT_OK; k++) st = rig_try_pass(g, order, N, false, err);
    if (st == LT_OK) st = lt_queue_sync(g->q, err);
    return st;
}

static void expect_typed(lt_status st, const lt_err *err)
{
    if (st == LT_OK) return;
    bool ok = st == LT_E_HOST_OOM || st == LT_E_DEVICE_OOM || st == LT_E_IO || st == LT_E_DEVICE_LOST;
    if (!ok || err->text[0] == 0 || err->status != st) fail_msg("%s: '%s'", lt_status_name(st), err->text);
}

/* A failed queue stays failed: the user makes a new one, and tells the manager. */
static void recover(rig *g)
{
    lt_err err;
    if (lt_queue_sync(g->q, &err) != LT_OK) {
        lt_pool_forget_queue(g->pool, g->q);
        lt_queue_destroy(g->q);
        assert_ok(lt_queue_create(g->dev, LT_QUEUE_COMPUTE, &g->q, &err), err);
    }
    if (lt_residency_sync(g->res, &err) != LT_OK) expect_typed(err.status, &err);
}

static long sweep(const char *spec, lt_store_mode mode, lt_fault_point point)
{
    for (long n = 1;; n++) {
        rig g;
        lt_item state_item;
        lt_err err = {0};
        memset(&g, 0, sizeof g);
        memset(home, 0, sizeof home);
        test_ctx_open(&g.t);
        test_ctx_arm(&g.t, point, n);
        lt_status opened = open_all(&g, spec, mode, &state_item, &err);
        lt_status st = opened;
        if (opened == LT_OK) st = run(&g, state_item, &err);
        bool hit = atomic_load(&g.t.seen[point]) >= n;
        test_ctx_arm(&g.t, point, 0);
        expect_typed(st, &err);
        if (!hit) assert_ok(st, err);
        if (opened == LT_OK) {
            recover(&g);
            rig_check(&g);
            assert_ok(run(&g, state_item, &err), err);
            rig_check(&g);
            (void)lt_residency_shrink(g.res, 0);
            for (size_t i = 0; i < STATE_BYTES; i++) assert_int_equal(home[i], 0x17);
        }
        rig_shut(&g);
        assert_ok(open_all(&g, spec, mode, &state_item, &err), err); /* and from the start */
        assert_ok(run(&g, state_item, &err), err);
        rig_close(&g);
        if (!hit) return n - 1;
    }
}

static const char *const devices[] = {"cpu:threads=1", "sim:vram=64M,threads=1"};
static const lt_store_mode modes[] = {LT_STORE_MAPPED, LT_STORE_DIRECT, LT_STORE_PLAIN};

static void each_nth(lt_fault_point point, bool must_occur)
{
    for (size_t d = 0; d < 2; d++)
        for (size_t m = 0; m < 3; m++) {
            long n = sweep(devices[d], modes[m], point);
            print_message("%s, mode %d: %ld failures\n", devices[d], (int)modes[m], n);
            if (must_occur) assert_true(n > 0);
        }
}

static void each_nth_host_allocation(void **state) { (void)state; each_nth(LT_FAULT_HOST_ALLOC, true); }
static void each_nth_commit(void **state) { (void)state; each_nth(LT_FAULT_COMMIT, true); }
static void each_nth_copy(void **state) { (void)state; each_nth(LT_FAULT_COPY, true); }
static void each_nth_read(void **state) { (void)state; each_nth(LT_FAULT_READ, true); }
static void each_nth_write(void **state) { (void)state; each_nth(LT_FAULT_WRITE, true); }
static void each_nth_map_and_pin(void **state)
{
    (void)state;
    each_nth(LT_FAULT_MAP, false);
    each_nth(LT_FAULT_PIN, false);
}

/* The queue waits in `gate` until the host has asked for everything that is to fail behind it. */
static lt_status gate(void *user, lt_err *err)
{
    (void)err;
    while (!atomic_load((atomic_bool *)user)) usleep(100);
    return LT_OK;
}

/* A lease whose load fails on the device, later, behind the gate: its copy is lost with the queue. It is nothing
 * to write to, and leased again on a new queue the item holds what its home holds. */
static void leases_of_a_failed_queue_are_lost(void **state)
{
    (void)state;
    enum { BYTES = 20000 }; /* one piece: the transfer thread must not wait for the gate */
    rig g;
    lt_item item;
    lt_lease l, again;
    lt_err err = {0};
    static uint8_t got[BYTES];
    atomic_bool open = false;
    memset(&g, 0, sizeof g);
    memset(home, 0x7f, sizeof home);
    test_ctx_open(&g.t);
    assert_ok(open_all(&g, "sim:vram=64M,threads=1", LT_STORE_MAPPED, &item, &err), err);
    lt_item_desc d = {.name = "small", .bytes = BYTES, .use = LT_USE_OPTIMIZER,
                      .source = {.read = home_read, .write = home_write}};
    assert_ok(lt_residency_add(g.res, &d, &item, &err), err);
    assert_ok(lt_queue_call(g.q, gate, &open, &err), err);
    for (size_t i = 0; i < 6; i += 2) { /* the third takes the first one's slot: copies wait for the gate */
        assert_ok(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), err);
        lt_residency_release(g.res, l, g.q);
    }
    test_ctx_arm(&g.t, LT_FAULT_COPY, 1);
    assert_ok(lt_residency_lease(g.res, item, g.q, &l, &err), err);
    test_ctx_arm(&g.t, LT_FAULT_COPY, 0);
    atomic_store(&open, true);
    assert_int_equal(lt_queue_sync(g.q, &err), LT_E_DEVICE_LOST);
    recover(&g);
    assert_int_equal(lt_residency_mark_dirty(g.res, l, &err), LT_E_DEVICE_LOST);
    assert_int_equal(err.status, LT_E_DEVICE_LOST);
    assert_ok(lt_residency_lease(g.res, item, g.q, &again, &err), err);
    assert_true(again.addr != l.addr);
    assert_ok(lt_queue_copy_out(g.q, got, again.addr, BYTES, &err), err);
    assert_ok(lt_queue_sync(g.q, &err), err);
    assert_memory_equal(got, home, BYTES);
    assert_ok(lt_residency_mark_dirty(g.res, again, &err), err);
    rig_check(&g);
    lt_residency_release(g.res, again, g.q);
    lt_residency_release(g.res, l, g.q);
    rig_close(&g);
}

static lt_status read_or_fail(void *user, uint64_t offset, void *dst, uint64_t bytes, lt_err *err)
{
    int *left = user;
    memset(dst, (int)offset & 0xff, bytes);
    return (*left)-- > 0 ? lt__fail(err, LT_E_IO, "not yet") : LT_OK;
}

static void wait_for_failures(rig *g, uint64_t n)
{
    lt_residency_stats st;
    do {
        usleep(1000);
        lt_residency_get_stats(g->res, &st);
    } while (st.failed_loads < n);
}

/* The room of a load ahead that failed is there for the lease, which would else meet it cut up by others, and for
 * whoever needs it before. */
static void a_failed_prefetch_keeps_its_room(void **state)
{
    (void)state;
    enum { BYTES = 64 << 10, ROOM = 256 << 10 };
    lt_residency_desc d = lt_residency_desc_default();
    rig g;
    lt_err err;
    lt_lease l;
    lt_block all = {0};
    lt_pool_stats st;
    int left = 1;
    d.ring_bytes = 128 << 10;
    rig_open(&g, "sim:vram=64M,threads=1", d.ring_bytes + ROOM, NULL, LT_STORE_MAPPED, &d);
    lt_pool_get_stats(g.pool, &st);
    uint64_t before = st.live;
    lt_item_desc it = {.name = "w", .bytes = BYTES, .source = {.read = read_or_fail, .user = &left}, .use = LT_USE_WEIGHT};
    assert_ok(lt_residency_add(g.res, &it, &g.item[0], &err), err);
    assert_ok(lt_residency_prefetch(g.res, g.item[0], &err), err);
    wait_for_failures(&g, 1);
    lt_pool_get_stats(g.pool, &st);
    assert_int_equal(st.live, before + BYTES);
    assert_ok(lt_residency_lease(g.res, g.item[0], g.q, &l, &err), err);
    assert_int_equal(l.kind, LT_LEASE_RESIDENT);
    lt_pool_get_stats(g.pool, &st);
    assert_int_equal(st.live, before + BYTES);
    lt_residency_release(g.res, l, g.q);
    assert_ok(lt_queue_sync(g.q, &err), err);
    assert_int_equal(lt_residency_shrink(g.res, 0), 0);
    left = 1;
    assert_ok(lt_residency_prefetch(g.res, g.item[0], &err), err);
    wait_for_failures(&g, 2);
    assert_ok(lt_pool_alloc(g.pool, ROOM, 0, LT_USE_OTHER, NULL, &all, &err), err);
    lt_pool_free(g.pool, all, NULL);
    left = 1;
    assert_ok(lt_residency_prefetch(g.res, g.item[0], &err), err);
    wait_for_failures(&g, 3);
    assert_ok(lt_residency_remove(g.res, g.item[0], &err), err);
    lt_pool_get_stats(g.pool, &st);
    assert_int_equal(st.live, before);
    rig_check(&g);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_nth_host_allocation),
        cmocka_unit_test(each_nth_commit),
        cmocka_unit_test(each_nth_copy),
        cmocka_unit_test(each_nth_read),
        cmocka_unit_test(each_nth_write),
        cmocka_unit_test(each_nth_map_and_pin),
        cmocka_unit_test(a_failed_prefetch_keeps_its_room),
        cmocka_unit_test(leases_of_a_failed_queue_are_lost),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
