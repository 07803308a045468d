/* Faults that users met elsewhere, as tests: "Memory and offload" and "Text models" of the cases,
 * those that concern residency, the store and the host tiers. */
#include "residency_rig.h"

#include <sys/resource.h>
#include <time.h>

#include "base/host.h"
#include "memory/hosttier.h"
#include "memory/pins.h"

static char path[256];
enum { FILE_BYTES = 24 << 20 };

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

#define SIM "sim:vram=64M,threads=1"
#define SIM_VIRTUAL "sim:vram=64M,threads=1,clock=virtual,h2d=1000000000,d2h=1000000000"

static uint64_t h2d(rig *g)
{
    lt_device_stats s;
    lt_err err;
    assert_ok(lt_residency_sync(g->res, &err), err);
    lt_device_get_stats(g->dev, &s);
    return s.h2d_bytes;
}

static void memory_01_h2d_returns_after_pressure(void **state)
{
    (void)state;
    static lt_policy_fn *const policies[] = {lt_policy_lru, lt_policy_next_use};
    for (int p = 0; p < 2; p++) {
        rig g;
        lt_residency_desc d = lt_residency_desc_default();
        d.policy = policies[p];
        d.ring_bytes = 1 << 20;
        rig_open(&g, SIM, 10 << 20, path, LT_STORE_MAPPED, &d);
        size_t order[10];
        for (size_t i = 0; i < 10; i++) {
            rig_add(&g, 1000000, i >= 7); /* seven stay, three stream */
            order[i] = i;
        }
        rig_plan(&g, order, 10, true);
        rig_pass(&g, order, 10);
        uint64_t before = h2d(&g);
        rig_pass(&g, order, 10);
        uint64_t first = h2d(&g) - before;
        lt_err err;
        lt_block heavy;
        assert_ok(lt_pool_alloc(g.pool, 6 << 20, 0, LT_USE_ACTIVATION, g.q, &heavy, &err), err);
        rig_pass(&g, order, 10);
        assert_true(rig_stats(&g).evictions > 0);
        lt_pool_free(g.pool, heavy, g.q);
        rig_pass(&g, order, 10); /* one step to come back */
        before = h2d(&g);
        for (int step = 0; step < 3; step++) rig_pass(&g, order, 10);
        uint64_t after = (h2d(&g) - before) / 3;
        print_message("h2d per step: %llu before, %llu after\n", (unsigned long long)first,
                      (unsigned long long)after);
        assert_true((double)after <= 1.1 * (double)first);
        rig_close(&g);
    }
}

static void memory_02_nothing_is_pinned_and_leaving(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc d = lt_residency_desc_default();
    d.high_water = 4 << 20;
    d.low_water = 2 << 20;
    d.ring_bytes = 1 << 20;
    rig_open(&g, SIM, 8 << 20, path, LT_STORE_MAPPED, &d);
    for (size_t i = 0; i < 12; i++) rig_add(&g, 700000, i % 4 == 3);
    unsigned seed = 5;
    lt_lease held[3] = {{0}};
    for (int k = 0; k < 400; k++) {
        lt_err err;
        size_t slot = (size_t)rand_r(&seed) % 3, i = (size_t)rand_r(&seed) % 12;
        if (held[slot].addr) lt_residency_release(g.res, held[slot], g.q);
        held[slot] = (lt_lease){0};
        lt_status st = lt_residency_lease(g.res, g.item[i], g.q, &held[slot], &err);
        assert_true(st == LT_OK || st == LT_E_DEVICE_OOM);
        rig_check(&g); /* the invariant is one of those it walks */
    }
    for (int i = 0; i < 3; i++)
        if (held[i].addr) lt_residency_release(g.res, held[i], g.q);
    rig_close(&g);

    /* All fits and no watermark is passed: nothing ever leaves. */
    d.high_water = 8 << 20;
    rig_open(&g, SIM, 16 << 20, path, LT_STORE_MAPPED, &d);
    size_t order[8];
    for (size_t i = 0; i < 8; i++) {
        rig_add(&g, 1000000, false);
        order[i] = i;
    }
    for (int k = 0; k < 5; k++) rig_pass(&g, order, 8);
    assert_int_equal(rig_stats(&g).evictions, 0);
    rig_close(&g);
}

static void memory_04_one_large_request_evicts_all_it_needs(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc d = lt_residency_desc_default();
    rig_open(&g, SIM, 16 << 20, path, LT_STORE_MAPPED, &d);
    size_t order[15];
    for (size_t i = 0; i < 15; i++) {
        rig_add(&g, 1 << 20, false);
        order[i] = i;
    }
    rig_pass(&g, order, 15);
    lt_err err;
    lt_lease l;
    assert_ok(lt_residency_lease(g.res, g.item[7], g.q, &l, &err), err); /* in the middle, pinned */
    lt_block b;
    assert_int_equal(lt_pool_alloc(g.pool, 15 << 20, 0, LT_USE_ACTIVATION, g.q, &b, &err), LT_E_DEVICE_OOM);
    lt_residency_release(g.res, l, g.q);
    assert_ok(lt_pool_alloc(g.pool, 15 << 20, 0, LT_USE_ACTIVATION, g.q, &b, &err), err);
    lt_pool_free(g.pool, b, g.q);
    rig_check(&g);
    rig_close(&g);
}

static void memory_05_zero_budget_refuses_with_numbers(void **state)
{
    (void)state;
    for (int ring = 0; ring < 2; ring++) {
        rig g;
        lt_residency_desc d = lt_residency_desc_default();
        d.ring_bytes = ring ? 4096 : 0;
        rig_open(&g, SIM, 64 << 10, path, LT_STORE_MAPPED, &d);
        rig_add(&g, 1 << 20, false);
        rig_add(&g, 1 << 20, true);
        rig_add(&g, 4096, ring != 0); /* what fits goes on */
        time_t t0 = time(NULL);
        for (size_t i = 0; i < 2; i++) {
            lt_err err;
            lt_lease l;
            assert_int_equal(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), LT_E_DEVICE_OOM);
            if (i == 1) assert_non_null(strstr(err.text, "1048576"));
            assert_non_null(strstr(err.text, i ? "w1" : "w0"));
            assert_int_equal(lt_residency_prefetch(g.res, g.item[i], &err), LT_E_DEVICE_OOM);
        }
        size_t third = 2;
        rig_pass(&g, &third, 1);
        assert_true(time(NULL) - t0 < 10);
        rig_close(&g);
    }
}

/* A gate on a queue: what is behind it does not run before the host opens it. */
typedef struct gate { atomic_int open, passed; } gate;
static lt_status pass_gate(void *user, lt_err *err)
{
    (void)err;
    gate *g = user;
    while (!atomic_load(&g->open)) usleep(200);
    atomic_store(&g->passed, 1);
    return LT_OK;
}

static void memory_14_no_reuse_before_the_consumer(void **state)
{
    (void)state;
    static const lt_store_mode modes[] = {LT_STORE_MAPPED, LT_STORE_DIRECT, LT_STORE_PLAIN};
    for (int dev = 0; dev < 2; dev++)
        for (int m = 0; m < 3; m++)
            for (int kept = 0; kept < 2; kept++) {
                rig g;
                lt_residency_desc d = lt_residency_desc_default();
                d.ring_bytes = kept ? 0 : 3 * 131072;
                rig_open(&g, dev ? SIM : "cpu:threads=1", 3 * 131072, path, modes[m], &d);
                size_t order[6];
                for (size_t i = 0; i < 6; i++) {
                    rig_add(&g, 120000, !kept);
                    order[i] = i;
                }
                rig_plan(&g, order, 6, true);
                lt_err err;
                gate door = {0};
                uint8_t *out = malloc(3 * 120000);
                /* The consumers of three slots wait at the gate; meanwhile the transfers ahead want the room.
                 */
                assert_ok(lt_queue_call(g.q, pass_gate, &door, &err), err);
                for (size_t i = 0; i < 3; i++) assert_ok(rig_use(&g, i, out + i * 120000, &err), err);
                usleep(30000);
                assert_int_equal(atomic_load(&door.passed), 0);
                rig_check(&g);
                atomic_store(&door.open, 1);
                for (size_t i = 3; i < 6; i++) {
                    uint8_t more[120000];
                    assert_ok(rig_use(&g, i, more, &err), err);
                    assert_ok(lt_queue_sync(g.q, &err), err);
                    rig_verify(&g, i, more);
                }
                for (size_t i = 0; i < 3; i++) rig_verify(&g, i, out + i * 120000);
                free(out);
                rig_close(&g);
            }
}

/* Every slot is overwritten with poison by its consumer, so a slot handed out before its copy ran shows. */
static void memory_14_poisoned_slots_are_filled_anew(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc d = lt_residency_desc_default();
    d.ring_bytes = 3 * 131072;
    rig_open(&g, SIM ",h2d=2000000000,latency=50us", 1 << 20, path, LT_STORE_MAPPED, &d);
    size_t order[8];
    for (size_t i = 0; i < 8; i++) {
        rig_add(&g, 120000, true);
        order[i] = i;
    }
    rig_plan(&g, order, 8, true);
    lt_err err;
    uint8_t *out = malloc(48 * 120000);
    for (size_t k = 0; k < 48; k++) {
        lt_lease l;
        assert_ok(lt_residency_lease(g.res, g.item[k % 8], g.q, &l, &err), err);
        assert_ok(lt_queue_copy_out(g.q, out + k * 120000, l.addr, 120000, &err), err);
        assert_ok(lt_queue_fill(g.q, l.addr, 0xee, 120000, &err), err);
        lt_residency_release(g.res, l, g.q);
    }
    assert_ok(lt_queue_sync(g.q, &err), err);
    for (size_t k = 0; k < 48; k++) rig_verify(&g, k % 8, out + k * 120000);
    free(out);
    rig_close(&g);
}

static void memory_16_copies_overlap_compute(void **state)
{
    (void)state;
    static const double ratios[] = {0.25, 0.8, 1.0, 1.25, 4.0};
    enum { LAYERS = 12, EACH = 1 << 20, ROUNDS = 5 };
    for (size_t k = 0; k < 5; k++) {
        rig g;
        lt_residency_desc d = lt_residency_desc_default();
        d.ring_bytes = 3 * EACH;
        rig_open(&g, SIM_VIRTUAL, 8 << 20, path, LT_STORE_MAPPED, &d);
        lt_err err;
        lt_block scratch;
        lt_event *first, *last;
        assert_ok(lt_pool_alloc(g.pool, 4096, 0, LT_USE_ACTIVATION, g.q, &scratch, &err), err);
        assert_ok(lt_queue_fill(g.q, scratch.addr, 0, 4096, &err), err);
        assert_ok(lt_event_create(g.dev, &first, &err), err);
        assert_ok(lt_event_create(g.dev, &last, &err), err);
        size_t order[LAYERS];
        for (size_t i = 0; i < LAYERS; i++) {
            rig_add(&g, EACH, true);
            order[i] = i;
        }
        rig_plan(&g, order, LAYERS, true);
        uint64_t copy_ns = EACH, work_ns = (uint64_t)(ratios[k] * EACH); /* 1 GB/s: a byte a ns */
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t i = 0; i < LAYERS; i++) {
                lt_lease l;
                assert_ok(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), err);
                rig_work(&g, scratch.addr, work_ns);
                lt_residency_release(g.res, l, g.q);
            }
            assert_ok(lt_event_record(round == 0 ? first : last, g.q, &err), err);
            assert_ok(lt_queue_sync(g.q, &err), err);
        }
        double step = (double)(lt_event_time_ns(last) - lt_event_time_ns(first)) / (ROUNDS - 1);
        double floor = (double)(LAYERS * (copy_ns > work_ns ? copy_ns : work_ns));
        print_message("compute %.2f of copy: step %.3f of the larger\n", ratios[k], step / floor);
        assert_true(step <= 1.15 * floor);
        lt_event_destroy(first);
        lt_event_destroy(last);
        lt_pool_free(g.pool, scratch, g.q);
        rig_close(&g);
    }
}

static void memory_17_any_tensor_with_any_staging(void **state)
{
    (void)state;
    static const uint64_t staging[] = {1, 4096, 20000, 1 << 20};
    static const uint64_t sizes[] = {1, 4095, 4097, 1000003, 5 << 20};
    static const lt_store_mode modes[] = {LT_STORE_MAPPED, LT_STORE_DIRECT, LT_STORE_PLAIN};
    for (size_t m = 0; m < 3; m++)
        for (size_t s = 0; s < 4; s++) {
            rig g;
            lt_residency_desc d = lt_residency_desc_default();
            d.ring_bytes = 6 << 20;
            d.staging_bytes = staging[s];
            rig_open(&g, SIM, 13 << 20, path, modes[m], &d);
            size_t order[10];
            for (size_t i = 0; i < 10; i++) {
                rig_add(&g, sizes[i / 2], i % 2 == 0);
                order[i] = i;
            }
            rig_pass(&g, order, 10);
            rig_close(&g);
        }
}

static void memory_19_what_fits_is_copied_once(void **state)
{
    (void)state;
    for (int streamed = 0; streamed < 2; streamed++) /* even through the ring, when it holds all */
        for (int ahead = 0; ahead < 2; ahead++) {
            rig g;
            lt_residency_desc d = lt_residency_desc_default();
            d.ring_bytes = streamed ? 9 << 20 : 0;
            d.ahead_bytes = ahead ? 2 << 20 : 0;
            rig_open(&g, SIM, 10 << 20, path, LT_STORE_MAPPED, &d);
            size_t order[8];
            uint64_t sum = 0;
            for (size_t i = 0; i < 8; i++) {
                rig_add(&g, 1 << 20, streamed != 0);
                order[i] = i;
                sum += g.bytes[i];
            }
            rig_plan(&g, order, 8, true);
            rig_pass(&g, order, 8);
            uint64_t first = h2d(&g);
            assert_int_equal(first, sum);
            for (int k = 0; k < 5; k++) rig_pass(&g, order, 8);
            assert_int_equal(h2d(&g), first);
            assert_int_equal(rig_stats(&g).hits, 40);
            rig_close(&g);
        }
}

static void memory_10_host_budget_follows_the_limit(void **state)
{
    (void)state;
    lt__host_limits lim;
    lt__host_limits_get(&lim);
    uint64_t budget = lt__host_budget();
    assert_true(budget < lim.ram_bytes);
    assert_true(budget <= lim.available_bytes || budget == 0);
    lt_ctx *ctx;
    lt_device *sim;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    assert_int_equal(lt_device_open(ctx, "sim:vram=1M", &sim, NULL), LT_OK);
    /* At run time: what may be locked is asked for anew each time. */
    struct rlimit old, less;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
    uint64_t before = lt__pin_budget(sim, 1 << 20);
    less = (struct rlimit){65536, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &less), 0);
    uint64_t after = lt__pin_budget(sim, 1 << 20);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
    assert_true(after <= 65536);
    assert_int_equal(lt__pin_budget(sim, 1 << 20), before);
    lt_device_close(sim);
    lt_ctx_destroy(ctx);
}

static void text_14_pinning_refused_falls_back_and_says_so(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct rlimit old, none;
        assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
        none = (struct rlimit){0, old.rlim_max};
        if (how == 0) assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
        rig g;
        lt_residency_desc d = lt_residency_desc_default();
        d.ring_bytes = 2 << 20;
        rig_open(&g, SIM, 6 << 20, path, LT_STORE_PLAIN, &d);
        if (how == 1) test_ctx_arm(&g.t, LT_FAULT_PIN, 1);
        size_t order[6];
        for (size_t i = 0; i < 6; i++) {
            rig_add(&g, 500000, true);
            order[i] = i;
        }
        rig_plan(&g, order, 6, true);
        for (int k = 0; k < 3; k++) rig_pass(&g, order, 6);
        assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
        assert_int_equal(atomic_load(&g.t.warnings), 1);
        assert_non_null(strstr(g.t.last_log, "pageable"));
        rig_close(&g);
    }
}

/* Where mappings of files cannot be locked, as in some containers and under WSL, several threads copy what the page
 * cache holds into a ring that can be. */
static void text_14_mappings_refused_go_through_a_locked_ring(void **state)
{
    (void)state;
    rig g;
    size_t order[8];
    lt_residency_desc d = lt_residency_desc_default();
    d.ring_bytes = 2 << 20;
    d.staging_bytes = 64 << 10;
    d.pin_bytes = 1 << 20;
    rig_open(&g, SIM, 6 << 20, path, LT_STORE_MAPPED, &d);
    if (lt__pin_budget(g.dev, 1 << 20) < 128 << 10) { /* the machine locks nothing for us, not even a ring */
        rig_close(&g);
        skip();
    }
    lt__pins pins;
    lt__pins_init(&pins, g.t.ctx, g.dev, 0);
    pins.left = FILE_BYTES;
    lt__residency_lend_pins(g.res, &pins);
    test_ctx_arm(&g.t, LT_FAULT_PIN, 1);
    for (size_t i = 0; i < 8; i++) {
        rig_add(&g, 500001, i % 4 != 1);
        order[i] = i;
    }
    rig_plan(&g, order, 8, true);
    for (int k = 0; k < 3; k++) rig_pass(&g, order, 8);
    assert_int_equal(atomic_load(&g.t.warnings), 1);
    assert_non_null(strstr(g.t.last_log, "stays pageable"));
    lt_store_stats st;
    lt_store_get_stats(g.store, &st);
    assert_int_equal(pins.left, FILE_BYTES);
    assert_int_equal(atomic_load(&g.t.seen[LT_FAULT_PIN]), 2); /* the mapping, the ring */
    assert_true(st.bytes > 8 * 500001 && st.direct_bytes == 0);
    lt_residency_destroy(g.res);
    g.res = NULL;
    lt__pins_deinit(&pins);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_01_h2d_returns_after_pressure),
        cmocka_unit_test(memory_02_nothing_is_pinned_and_leaving),
        cmocka_unit_test(memory_04_one_large_request_evicts_all_it_needs),
        cmocka_unit_test(memory_05_zero_budget_refuses_with_numbers),
        cmocka_unit_test(memory_10_host_budget_follows_the_limit),
        cmocka_unit_test(memory_14_no_reuse_before_the_consumer),
        cmocka_unit_test(memory_14_poisoned_slots_are_filled_anew),
        cmocka_unit_test(memory_16_copies_overlap_compute),
        cmocka_unit_test(memory_17_any_tensor_with_any_staging),
        cmocka_unit_test(memory_19_what_fits_is_copied_once),
        cmocka_unit_test(text_14_pinning_refused_falls_back_and_says_so),
        cmocka_unit_test(text_14_mappings_refused_go_through_a_locked_ring),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
