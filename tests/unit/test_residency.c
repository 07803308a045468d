/* The residency manager: every kind of source and device gives the right bytes, the counts are
 * exact, and the virtual clock shows what is hidden. */
#include "residency_rig.h"

#include <pthread.h>
#include <stdatomic.h>

#include "memory/residency_impl.h"

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

static const char *const devices[] = {"cpu:threads=1", "sim:vram=64M,threads=1"};
static const lt_store_mode modes[] = {LT_STORE_MAPPED, LT_STORE_DIRECT, LT_STORE_PLAIN};

static void streamed_items_are_right_everywhere(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (size_t m = 0; m < 3; m++)
            for (int staging = 0; staging < 2; staging++) {
                rig g;
                lt_residency_desc desc = lt_residency_desc_default();
                desc.ring_bytes = 3 << 20;
                desc.staging_bytes = staging ? 64 << 10 : 0; /* items larger than the staging buffer, too */
                rig_open(&g, devices[d], 8 << 20, path, modes[m], &desc);
                for (int i = 0; i < 12; i++) rig_add(&g, (uint64_t)100001 * (i % 5 + 1) + i, true);
                size_t order[] = {0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11};
                size_t wrong[] = {11, 0, 5, 5, 3, 9, 1};
                size_t n = sizeof order / sizeof *order;
                rig_pass(&g, order, n); /* no plan */
                rig_plan(&g, order, n, true);
                for (int k = 0; k < 3; k++) rig_pass(&g, order, n);
                rig_pass(&g, wrong, 7); /* against the plan */
                rig_pass(&g, order, n);
                lt_residency_stats s = rig_stats(&g);
                assert_int_equal(s.leases, 5 * n + 7);
                assert_int_equal(s.failed_loads, 0);
                assert_true(s.ring_peak <= 3 << 20);
                assert_int_equal(s.pinned, 0);
                rig_close(&g);
            }
}

static void mixed_kept_and_streamed(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (size_t m = 0; m < 3; m++) {
            rig g;
            lt_residency_desc desc = lt_residency_desc_default();
            desc.ring_bytes = 1 << 20;
            rig_open(&g, devices[d], 8 << 20, path, modes[m], &desc);
            size_t order[16];
            uint64_t kept = 0, streamed = 0;
            for (size_t i = 0; i < 16; i++) {
                bool s = i % 3 == 0;
                rig_add(&g, 300000 + 1000 * i, s);
                order[i] = i;
                *(s ? &streamed : &kept) += g.bytes[i];
            }
            lt_err err;
            for (size_t i = 0; i < 16; i++)
                if (i % 3) assert_ok(lt_residency_prefetch(g.res, g.item[i], &err), err);
            rig_plan(&g, order, 16, true);
            for (int k = 0; k < 4; k++) rig_pass(&g, order, 16);
            assert_ok(lt_residency_sync(g.res, &err), err);
            lt_residency_stats s = rig_stats(&g);
            assert_int_equal(s.resident, kept);
            assert_int_equal(s.loads, 10);
            assert_int_equal(s.evictions, 0);
            assert_true(s.bytes_in >= kept + 4 * streamed); /* and what is ahead */
            assert_true(s.bytes_in <= kept + 5 * streamed);
            if (d == 0 || m != 0) assert_int_equal(s.disk_bytes, s.bytes_in);
            else assert_int_equal(s.disk_bytes, 0); /* straight from the mapping */
            rig_close(&g);
        }
}

static void kept_items_evict_and_reload(void **state)
{
    (void)state;
    static lt_policy_fn *const policies[] = {lt_policy_lru, lt_policy_lfu, lt_policy_fifo,
                                             lt_policy_next_use};
    for (size_t d = 0; d < 2; d++)
        for (size_t p = 0; p < 4; p++)
            for (int ahead = 0; ahead < 2; ahead++) {
                rig g;
                lt_residency_desc desc = lt_residency_desc_default();
                desc.policy = policies[p];
                desc.ahead_bytes = ahead ? 1 << 20 : 0;
                rig_open(&g, devices[d], 4 << 20, path, LT_STORE_MAPPED, &desc);
                size_t order[20];
                for (size_t i = 0; i < 20; i++) {
                    rig_add(&g, 400000 + i * 64, false);
                    order[i] = i;
                }
                rig_plan(&g, order, 20, true);
                for (int k = 0; k < 3; k++) rig_pass(&g, order, 20);
                lt_residency_stats s = rig_stats(&g);
                assert_true(s.evictions > 0);
                assert_true(s.resident <= 4 << 20);
                if (policies[p] == lt_policy_next_use && !ahead) assert_true(s.hits > 0);
                assert_int_equal(lt_residency_shrink(g.res, 0), 0);
                rig_check(&g);
                rig_close(&g);
            }
}

/* Belady's MIN for equal sizes: loads of the best possible choice. */
static uint64_t belady(const size_t *order, size_t n, size_t room, size_t items)
{
    bool in[64] = {false};
    size_t held = 0;
    uint64_t loads = 0;
    for (size_t k = 0; k < n; k++) {
        if (in[order[k]]) continue;
        if (held == room) {
            size_t worst = 0, far = 0;
            for (size_t i = 0; i < items; i++) {
                if (!in[i]) continue;
                size_t next = k;
                while (next < n && order[next] != i) next++;
                if (next >= far) {
                    far = next;
                    worst = i;
                }
            }
            in[worst] = false;
            held--;
        }
        in[order[k]] = true;
        held++;
        loads++;
    }
    return loads;
}

static void next_use_equals_belady(void **state)
{
    (void)state;
    enum { ITEMS = 12, N = 200, EACH = 256 << 10, ROOM = 5 };
    for (int shape = 0; shape < 3; shape++) {
        rig g;
        lt_residency_desc desc = lt_residency_desc_default();
        desc.policy = lt_policy_next_use;
        rig_open(&g, devices[1], ROOM * EACH, path, LT_STORE_MAPPED, &desc);
        size_t order[N];
        unsigned seed = 3;
        for (size_t i = 0; i < ITEMS; i++) rig_add(&g, EACH, false);
        for (size_t k = 0; k < N; k++) {
            size_t saw = k % (2 * ITEMS);
            unsigned z = (unsigned)rand_r(&seed) % 100;
            order[k] = shape == 0   ? k % ITEMS
                       : shape == 1 ? (saw < ITEMS ? saw : 2 * ITEMS - 1 - saw)
                                    : z * z / 1000 * ITEMS / 10;
        }
        rig_plan(&g, order, N, false);
        rig_pass(&g, order, N);
        assert_int_equal(rig_stats(&g).loads, belady(order, N, ROOM, ITEMS));
        rig_close(&g);
    }
}

static void priority_goes_before_policy(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    rig_open(&g, devices[0], 4 << 20, path, LT_STORE_MAPPED, &desc);
    lt_err err;
    assert_ok(rig_try_add(&g, 1 << 20, false, 5, &err), err);
    for (int i = 0; i < 8; i++) rig_add(&g, 1 << 20, false);
    size_t order[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 0};
    rig_pass(&g, order, 10);
    assert_int_equal(rig_stats(&g).hits, 1); /* item 0, the least recent one, stayed */
    rig_close(&g);
}

static void no_room_says_numbers(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++) {
        rig g;
        lt_residency_desc desc = lt_residency_desc_default();
        desc.ring_bytes = 1 << 20;
        rig_open(&g, devices[d], 4 << 20, path, LT_STORE_MAPPED, &desc);
        rig_add(&g, 2 << 20, true);  /* more than the ring */
        rig_add(&g, 8 << 20, false); /* more than the pool */
        rig_add(&g, 700000, true);
        rig_add(&g, 700000, true);
        lt_err err;
        lt_lease l, l2;
        assert_int_equal(lt_residency_lease(g.res, g.item[0], g.q, &l, &err), LT_E_DEVICE_OOM);
        assert_non_null(strstr(err.text, "1048576"));
        assert_non_null(strstr(err.text, "w0"));
        assert_int_equal(lt_residency_lease(g.res, g.item[1], g.q, &l, &err), LT_E_DEVICE_OOM);
        assert_non_null(strstr(err.text, "w1"));
        assert_ok(lt_residency_lease(g.res, g.item[2], g.q, &l, &err), err);
        /* Only this thread could make room: an answer, not a hang. */
        assert_int_equal(lt_residency_lease(g.res, g.item[3], g.q, &l2, &err), LT_E_DEVICE_OOM);
        lt_item both[] = {g.item[2], g.item[3]};
        lt_lease two[2];
        assert_int_equal(lt_residency_lease_many(g.res, both, 2, g.q, two, &err), LT_E_DEVICE_OOM);
        lt_residency_release(g.res, l, g.q);
        assert_ok(lt_residency_lease(g.res, g.item[3], g.q, &l2, &err), err);
        lt_residency_release(g.res, l2, g.q);
        lt_residency_release(g.res, l2, g.q); /* twice: refused, logged */
        assert_non_null(strstr(g.t.last_log, "not held"));
        rig_check(&g);
        rig_close(&g);
    }
}

static void lease_many_holds_all_or_none(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    desc.ring_bytes = 10 * 65536;
    rig_open(&g, devices[1], 4 << 20, path, LT_STORE_MAPPED, &desc);
    for (int i = 0; i < 3; i++) rig_add(&g, 65536 * 3 - 4096, true);
    rig_add(&g, 65536 * 4, true);
    rig_add(&g, 65536 * 6 - 4096, true);
    lt_err err;
    lt_item sets[][2] = {
        {g.item[0], g.item[1]}, {g.item[3], g.item[4]}, {g.item[4], g.item[3]}, {g.item[2], g.item[2]}};
    for (int k = 0; k < 20; k++) { /* whatever the ring's head, the two that fit together fit */
        lt_lease l[2];
        size_t which = (size_t)k % 4;
        assert_ok(lt_residency_lease_many(g.res, sets[which], 2, g.q, l, &err), err);
        assert_true(which == 3 ? l[0].addr == l[1].addr : l[0].addr != l[1].addr);
        rig_check(&g);
        for (int i = 0; i < 2; i++) lt_residency_release(g.res, l[i], g.q);
        size_t one = (size_t)k % 3;
        rig_pass(&g, &one, 1);
    }
    rig_close(&g);
}

/* Callbacks that keep their bytes in host memory, to be written back to. */
typedef struct home { uint8_t *bytes; size_t n; int reads, writes; bool fail_write; } home;
static lt_status home_read(void *user, uint64_t at, void *dst, uint64_t n, lt_err *err)
{
    home *h = user;
    (void)err;
    h->reads++;
    memcpy(dst, h->bytes + at, n);
    return LT_OK;
}
static lt_status home_write(void *user, uint64_t at, const void *src, uint64_t n, lt_err *err)
{
    home *h = user;
    if (h->fail_write) return lt__fail(err, LT_E_IO, "disk full");
    h->writes++;
    memcpy(h->bytes + at, src, n);
    return LT_OK;
}

static void dirty_items_are_written_back(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (int how = 0; how < 4; how++) {
            rig g;
            lt_residency_desc desc = lt_residency_desc_default();
            desc.staging_bytes = 40000;
            rig_open(&g, devices[d], 2 << 20, path, LT_STORE_MAPPED, &desc);
            home h = {.bytes = calloc(1, 300000), .n = 300000};
            lt_item_desc id = {.name = "state", .bytes = 300000, .use = LT_USE_OPTIMIZER,
                               .source = {.read = home_read, .write = home_write, .user = &h}};
            lt_err err;
            lt_item it;
            assert_ok(lt_residency_add(g.res, &id, &it, &err), err);
            rig_add(&g, 2 << 20, false);
            lt_lease l;
            assert_ok(lt_residency_lease(g.res, it, g.q, &l, &err), err);
            assert_ok(lt_queue_fill(g.q, l.addr, 0x42, 300000, &err), err);
            assert_ok(lt_residency_mark_dirty(g.res, l, &err), err);
            lt_residency_release(g.res, l, g.q);
            h.fail_write = how == 3;
            size_t one = 0;
            if (how == 0) rig_pass(&g, &one, 1); /* evicted for another */
            else if (how == 1) assert_int_equal(lt_residency_shrink(g.res, 0), 0);
            else if (how == 2) assert_ok(lt_residency_remove(g.res, it, &err), err);
            else {
                assert_int_equal(lt_residency_shrink(g.res, 0), 300000); /* never dropped unsaved */
                assert_non_null(strstr(g.t.last_log, "disk full"));
                h.fail_write = false;
            }
            rig_check(&g);
            if (how == 3) { /* destroy saves it */
                lt_residency_destroy(g.res);
                g.res = NULL;
            }
            for (int i = 0; i < 300000; i++) assert_int_equal(h.bytes[i], 0x42);
            rig_close(&g);
            free(h.bytes);
        }
}

static void pressure_gives_room_to_others(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    rig_open(&g, devices[1], 8 << 20, path, LT_STORE_MAPPED, &desc);
    size_t order[7];
    for (size_t i = 0; i < 7; i++) {
        rig_add(&g, 1 << 20, false);
        order[i] = i;
    }
    rig_pass(&g, order, 7);
    lt_err err;
    lt_block b;
    assert_ok(lt_pool_alloc(g.pool, 5 << 20, 0, LT_USE_ACTIVATION, g.q, &b, &err), err);
    rig_check(&g);
    assert_true(rig_stats(&g).evictions >= 4);
    lt_pool_free(g.pool, b, g.q);
    rig_pass(&g, order, 7);
    rig_close(&g);
}

static void watermark_has_two_sides(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    desc.high_water = 6 << 20;
    desc.low_water = 3 << 20;
    rig_open(&g, devices[1], 16 << 20, path, LT_STORE_MAPPED, &desc);
    size_t order[10];
    for (size_t i = 0; i < 10; i++) {
        rig_add(&g, 1 << 20, false);
        order[i] = i;
    }
    rig_pass(&g, order, 6); /* at high, not above: nothing goes */
    usleep(20000);
    assert_int_equal(rig_stats(&g).evictions, 0);
    rig_pass(&g, order + 6, 1);
    for (int i = 0; i < 1000 && rig_stats(&g).resident > 3 << 20; i++) usleep(1000);
    assert_int_equal(rig_stats(&g).resident, 3 << 20);
    rig_pass(&g, order, 3); /* below high again: stays */
    usleep(20000);
    assert_int_equal(rig_stats(&g).resident, 6 << 20);
    rig_close(&g);
}

static void handles_go_stale(void **state)
{
    (void)state;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    desc.ring_bytes = 1 << 20;
    rig_open(&g, devices[1], 4 << 20, path, LT_STORE_MAPPED, &desc);
    rig_add(&g, 50000, true);
    rig_add(&g, 50000, false);
    size_t order[] = {0, 1};
    rig_plan(&g, order, 2, true);
    lt_err err;
    lt_lease l;
    for (int i = 0; i < 2; i++) {
        assert_ok(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), err);
        assert_int_equal(lt_residency_remove(g.res, g.item[i], &err), LT_E_BUSY);
        lt_residency_release(g.res, l, g.q);
        assert_ok(lt_residency_remove(g.res, g.item[i], &err), err);
        assert_int_equal(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), LT_E_INVALID);
        assert_int_equal(lt_residency_remove(g.res, g.item[i], &err), LT_E_INVALID);
        rig_check(&g);
    }
    rig_add(&g, 50000, true); /* uses an old index anew */
    size_t third = 2;
    rig_pass(&g, &third, 1);
    assert_int_equal(lt_residency_lease(g.res, g.item[0], g.q, &l, &err), LT_E_INVALID);
    rig_close(&g);
}

/* --- virtual clock ------------------------------------------------------------------- */

typedef struct timed { uint64_t step_ns, copy_ns, compute_ns; } timed;

/* Equal layers through a ring of `slots`; compute per layer is `ratio` of a copy. The host waits
 * after each sweep, as it does to sample a token, or only at the end. */
static timed sweep(double ratio, size_t slots, bool sync_each)
{
    enum { LAYERS = 16, EACH = 1 << 20, ROUNDS = 6 };
    const uint64_t rate = 1000000000;
    rig g;
    lt_residency_desc desc = lt_residency_desc_default();
    desc.ring_bytes = slots * EACH;
    rig_open(&g, "sim:vram=64M,threads=1,clock=virtual,h2d=1000000000,d2h=1000000000", 16 << 20, path,
             LT_STORE_MAPPED, &desc);
    lt_err err;
    lt_block scratch;
    assert_ok(lt_pool_alloc(g.pool, 4096, 0, LT_USE_ACTIVATION, g.q, &scratch, &err), err);
    assert_ok(lt_queue_fill(g.q, scratch.addr, 0, 4096, &err), err);
    size_t order[LAYERS];
    for (size_t i = 0; i < LAYERS; i++) {
        rig_add(&g, EACH, true);
        order[i] = i;
    }
    rig_plan(&g, order, LAYERS, true);
    uint64_t copy_ns = EACH * 1000000000ull / rate;
    lt_event *first, *last;
    assert_ok(lt_event_create(g.dev, &first, &err), err);
    assert_ok(lt_event_create(g.dev, &last, &err), err);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < LAYERS; i++) {
            lt_lease l;
            assert_ok(lt_residency_lease(g.res, g.item[i], g.q, &l, &err), err);
            rig_work(&g, scratch.addr, (uint64_t)(ratio * (double)copy_ns));
            lt_residency_release(g.res, l, g.q);
        }
        assert_ok(lt_event_record(round == 0 ? first : last, g.q, &err), err);
        if (sync_each) assert_ok(lt_queue_sync(g.q, &err), err);
    }
    assert_ok(lt_queue_sync(g.q, &err), err);
    timed t = {(lt_event_time_ns(last) - lt_event_time_ns(first)) / (ROUNDS - 1), LAYERS * copy_ns,
               (uint64_t)(LAYERS * ratio * (double)copy_ns)};
    lt_event_destroy(first);
    lt_event_destroy(last);
    lt_pool_free(g.pool, scratch, g.q);
    rig_close(&g);
    return t;
}

static void compute_bound_hides_copies(void **state)
{
    (void)state;
    for (size_t slots = 2; slots <= 4; slots++) {
        timed t = sweep(1.2, slots, true);
        double shown = (double)(t.step_ns > t.compute_ns ? t.step_ns - t.compute_ns : 0) / (double)t.copy_ns;
        print_message("slots %zu: %.2f %% of copy time hidden\n", slots, 100 * (1 - shown));
        assert_true(shown <= 0.05);
    }
}

static void link_bound_uses_the_link(void **state)
{
    (void)state;
    for (size_t slots = 2; slots <= 4; slots++) {
        timed t = sweep(0.5, slots, true);
        double share = (double)t.copy_ns / (double)t.step_ns;
        print_message("slots %zu: %.2f %% of the link's rate\n", slots, 100 * share);
        assert_true(share >= 0.95);
    }
}

static void virtual_times_are_repeatable(void **state)
{
    (void)state;
    timed a = sweep(0.9, 3, false);
    for (int i = 0; i < 5; i++) {
        timed b = sweep(0.9, 3, false);
        assert_int_equal(a.step_ns, b.step_ns);
    }
}

/* Mappings are locked by chunks, copies end at their borders; of a file larger than the budget only what streams is. */
static void mappings_are_locked_by_chunks(void **state)
{
    (void)state;
    enum { CHUNK = 64 << 10, ITEMS = 12, EACH = 100000 };
    for (int part = 0; part < 2; part++) {
        rig g;
        lt_residency_desc d = lt_residency_desc_default();
        lt__pins pins;
        size_t order[ITEMS];
        d.ring_bytes = 512 << 10;
        rig_open(&g, "sim:vram=64M,threads=1", 8 << 20, path, LT_STORE_MAPPED, &d);
        lt__pins_init(&pins, g.t.ctx, g.dev, 0);
        pins.whole_chunk = pins.part_chunk = CHUNK;
        pins.left = part ? 5 * CHUNK + 1 : FILE_BYTES;
        lt__residency_lend_pins(g.res, &pins);
        for (size_t i = 0; i < ITEMS; i++) {
            rig_add(&g, EACH, i % 2 == 0);
            order[i] = i;
        }
        rig_plan(&g, order, ITEMS, true);
        for (int k = 0; k < 3; k++) rig_pass(&g, order, ITEMS);
        long tried = atomic_load(&g.t.seen[LT_FAULT_PIN]), touched = (ITEMS * (EACH + 32) + CHUNK - 1) / CHUNK;
        if (!pins.pin[0].refused) { /* the machine may lock nothing for us */
            assert_int_equal(tried, part ? 5 : touched);
            assert_int_equal(pins.left, part ? 1 : 0);
        } else assert_int_equal(tried, 1);
        assert_int_equal(pins.pin[0].whole, !part);
        lt_residency_destroy(g.res);
        g.res = NULL;
        lt__pins_deinit(&pins);
        rig_close(&g);
    }
}

/* --- threads ------------------------------------------------------------------------- */

typedef struct user { rig *g; unsigned seed; int bad, oom; } user;

static void *user_main(void *arg)
{
    user *u = arg;
    rig *g = u->g;
    lt_queue *q;
    lt_err err;
    if (lt_queue_create(g->dev, LT_QUEUE_COMPUTE, &q, &err) != LT_OK) {
        u->bad++;
        return NULL;
    }
    uint8_t *buf = malloc(400000);
    for (int k = 0; k < 60; k++) {
        size_t i = (size_t)rand_r(&u->seed) % g->items;
        lt_lease l;
        lt_status st = lt_residency_lease(g->res, g->item[i], q, &l, &err);
        if (st == LT_E_DEVICE_OOM) {
            u->oom++;
            continue;
        }
        if (st != LT_OK) {
            u->bad++;
            continue;
        }
        if (lt_queue_copy_out(q, buf, l.addr, g->bytes[i], &err) != LT_OK) u->bad++;
        lt_residency_release(g->res, l, q);
        if (lt_queue_sync(q, &err) != LT_OK ||
            pattern_check(buf, RIG_SEED, g->offset[i], g->bytes[i]) != g->bytes[i])
            u->bad++;
        if (lt_residency_check(g->res, &err) != LT_OK) u->bad++;
        if (k % 20 == 0) (void)lt_residency_shrink(g->res, 1 << 20);
    }
    free(buf);
    lt_residency_sync(g->res, &err) == LT_OK ? (void)0 : (void)u->bad++;
    lt_queue_destroy(q);
    return NULL;
}

static void several_threads_lease_at_once(void **state)
{
    (void)state;
    for (size_t d = 0; d < 2; d++)
        for (size_t m = 0; m < 3; m++) {
            rig g;
            lt_residency_desc desc = lt_residency_desc_default();
            desc.ring_bytes = 1 << 20;
            desc.staging_bytes = 128 << 10;
            rig_open(&g, devices[d], 3 << 20, path, modes[m], &desc);
            for (size_t i = 0; i < 14; i++) rig_add(&g, 100000 + 10000 * i, i % 2 == 0);
            pthread_t th[3];
            user u[3];
            for (unsigned i = 0; i < 3; i++) {
                u[i] = (user){&g, i + 1, 0, 0};
                pthread_create(&th[i], NULL, user_main, &u[i]);
            }
            for (int i = 0; i < 3; i++) {
                pthread_join(th[i], NULL);
                assert_int_equal(u[i].bad, 0);
                assert_int_equal(u[i].oom, 0);
            }
            rig_check(&g);
            rig_close(&g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_items_are_right_everywhere),
        cmocka_unit_test(mixed_kept_and_streamed),
        cmocka_unit_test(kept_items_evict_and_reload),
        cmocka_unit_test(next_use_equals_belady),
        cmocka_unit_test(priority_goes_before_policy),
        cmocka_unit_test(no_room_says_numbers),
        cmocka_unit_test(lease_many_holds_all_or_none),
        cmocka_unit_test(dirty_items_are_written_back),
        cmocka_unit_test(pressure_gives_room_to_others),
        cmocka_unit_test(watermark_has_two_sides),
        cmocka_unit_test(handles_go_stale),
        cmocka_unit_test(compute_bound_hides_copies),
        cmocka_unit_test(link_bound_uses_the_link),
        cmocka_unit_test(virtual_times_are_repeatable),
        cmocka_unit_test(mappings_are_locked_by_chunks),
        cmocka_unit_test(several_threads_lease_at_once),
    };
    return cmocka_run_group_tests(tests, make_file, drop_file);
}
