/* Managed memory of the CUDA device on a fake driver: what is on the card, what never may be, what goes where. */
#include "fake_cuda/fake_rig.h"
#include "lowtide/pool.h"

#define MANAGED "cuda:kernels=0,managed=1," LT_CUDA_FAKE
#define PLAIN SPEC
#define OLD "cuda:kernels=0,managed=1,driver=" LT_CUDA_OLD_FILE ",nvml=" LT_CUDA_OLD_FILE
#define DISCARD "cuMemDiscardAndPrefetchBatchAsync"

static const fake_cuda_control *fake_new, *fake_old;

static lt_device_stats stats(const rig *r)
{
    lt_device_stats st;
    lt_device_get_stats(r->dev, &st);
    return st;
}

static uint64_t prefetches(void)
{
    return fake->calls("cuMemPrefetchAsync") + fake->calls("cuMemPrefetchAsync_v2") + fake->calls(DISCARD);
}

/* ---- opening ---- */

static void refused(const char *spec, lt_status want, const char *in_text)
{
    lt_ctx *ctx = open_ctx();
    lt_device *dev = NULL;
    lt_err err = {0};
    lt_status s = lt_device_open(ctx, spec, &dev, &err);
    if (s != want || err.status != want || !strstr(err.text, in_text))
        fail_msg("%s: status %d, \"%s\"; expected %d and \"%s\"", spec, s, err.text, want, in_text);
    if (want == LT_E_UNSUPPORTED)
        assert_non_null(strstr(err.text, "--memory device"));
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
    assert_nothing_left();
}

static void refusals_name_the_attribute(void **state)
{
    (void)state;
    fake->reset();
    fake->set_attribute(LT_CU_ATTR_MANAGED, 0);
    refused(MANAGED, LT_E_UNSUPPORTED, "Fake Card has no CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY");
    fake->reset();
    fake->set_attribute(LT_CU_ATTR_CONCURRENT_MANAGED, 0);
    refused(MANAGED, LT_E_UNSUPPORTED, "Fake Card has no CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS");
    fake->reset();
    fake->set_devices(2);
    refused(MANAGED, LT_E_UNSUPPORTED, "device 1 beside it, Old Fake, has no CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS");
    fake->reset();
    refused("cuda:kernels=0,managed=2," LT_CUDA_FAKE, LT_E_INVALID, "managed=2");
    refused(MANAGED ",recycle=64M", LT_E_INVALID, "recycle=");
    refused("sim:managed=1", LT_E_INVALID, "only cuda");
    refused("cpu:managed=1", LT_E_INVALID, "only cuda");
    for (uint64_t n = 1; n <= 2; n++) {
        fake->reset();
        fake->fail_call("cuStreamCreate", n, LT_CU_OUT_OF_MEMORY); /* of prefetches, of time */
        refused(MANAGED, LT_E_DEVICE_OOM, "CUDA_ERROR_OUT_OF_MEMORY");
    }
}

/* ---- commit ---- */

static void what_is_committed_is_on_the_card(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    assert_int_equal(r.mem % LT_CUDA_GRANULE, 0); /* the fake's allocations are not */
    lt_device_info info;
    lt_device_get_info(r.dev, &info);
    assert_string_equal(info.memory_mode, "managed");
    assert_non_null(strstr(info.name, "managed memory"));
    assert_int_equal(info.free_bytes, FAKE_CUDA_MEMORY - FAKE_CUDA_CONTEXT_BYTES - LT_CUDA_MANAGED_MARGIN);
    assert_int_equal(held(&r), 0); /* address space is not memory */
    OK(lt_device_commit(r.dev, r.mem + 6 * MIB, 100 * MIB, &r.err));
    assert_int_equal(held(&r), 100 * MIB);
    assert_int_equal(counts().advised_bytes, 2 * 100 * MIB);
    assert_int_equal(prefetches(), 4);
    assert_int_equal(counts().handles, 0);
    assert_int_equal(lt_device_free_bytes(r.dev), info.free_bytes - 100 * MIB);
    assert_int_equal(lt_device_commit(r.dev, r.mem + 96 * MIB, 20 * MIB, &r.err), LT_E_INVALID);
    assert_int_equal(lt_device_commit(r.dev, r.mem + MIB, 2 * MIB, &r.err), LT_E_INVALID);
    uint8_t in[64], out[64];
    memset(in, 0x5a, sizeof in);
    OK(lt_queue_copy_in(r.q, r.mem + 106 * MIB - 64, in, 64, &r.err));
    OK(lt_queue_copy(r.q, r.mem + 6 * MIB, r.mem + 106 * MIB - 64, 64, &r.err));
    OK(lt_queue_copy_out(r.q, out, r.mem + 6 * MIB, 64, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    assert_memory_equal(in, out, 64);
    close_rig(&r);
}

static void nothing_is_asked_that_would_spill(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    lt_addr more;
    OK(lt_device_reserve(r.dev, 4096 * MIB, &more, &r.err));
    uint64_t free = lt_device_free_bytes(r.dev);
    char number[24];
    assert_int_equal(lt_device_commit(r.dev, more, free + 2 * MIB, &r.err), LT_E_DEVICE_OOM);
    snprintf(number, sizeof number, "%llu", (unsigned long long)(free + 2 * MIB));
    assert_non_null(strstr(r.err.text, number));
    snprintf(number, sizeof number, "%llu", (unsigned long long)(free + LT_CUDA_MANAGED_MARGIN));
    assert_non_null(strstr(r.err.text, number));
    assert_int_equal(prefetches(), 0);
    assert_int_equal(fake->calls("cuMemAdvise_v2"), 0);
    OK(lt_device_commit(r.dev, more, free, &r.err));
    assert_int_equal(lt_device_free_bytes(r.dev), 0);
    assert_int_equal(lt_device_commit(r.dev, more + free, 2 * MIB, &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(held(&r), free);
    lt_device_unreserve(r.dev, more, 4096 * MIB); /* takes the commits along, past the host */
    assert_int_equal(held(&r), 0);
    assert_int_equal(stats(&r).peak_committed_bytes, free);
    assert_int_equal(stats(&r).peak_host_bytes, 0);
    close_rig(&r);
}

/* Five pieces, the fourth and fifth of 4 and 28 MiB around one that is there; every call of every step fails once. */
static void commit_rolls_back(void **state)
{
    (void)state;
    static const char *const steps[] = {"cuMemAdvise_v2", "cuMemPrefetchAsync_v2", "cuStreamSynchronize", "cuMemGetInfo_v2"};
    for (size_t i = 0; i < 6; i++)
        for (uint64_t n = 1; n <= (i == 0 ? 2 : 3); n++) {
            rig r = open_rig(MANAGED);
            uint8_t mark[64], back[64];
            memset(mark, 0x5a, sizeof mark);
            OK(lt_device_commit(r.dev, r.mem + 30 * MIB, 4 * MIB, &r.err));
            OK(lt_queue_copy_in(r.q, r.mem + 32 * MIB, mark, sizeof mark, &r.err));
            OK(lt_queue_sync(r.q, &r.err));
            if (i < 4)
                fake->fail_call(steps[i], n, i % 2 ? LT_CU_OUT_OF_MEMORY : LT_CU_UNKNOWN);
            else
                arm(i == 4 ? LT_FAULT_MAP : LT_FAULT_COMMIT, i == 4 ? (long)n : 1);
            memset(&r.err, 0, sizeof r.err);
            assert_int_not_equal(lt_device_commit(r.dev, r.mem + 34 * MIB, 96 * MIB, &r.err), LT_OK);
            assert_true(r.err.text[0]);
            assert_int_equal(held(&r), 4 * MIB);
            OK(lt_device_commit(r.dev, r.mem + 34 * MIB, 96 * MIB, &r.err));
            assert_int_equal(held(&r), 100 * MIB);
            OK(lt_queue_copy_out(r.q, back, r.mem + 32 * MIB, sizeof back, &r.err));
            OK(lt_queue_sync(r.q, &r.err));
            assert_memory_equal(mark, back, sizeof mark);
            close_rig(&r);
        }
}

static void faults_of_the_spec_hit_the_nth_call(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED ",fail=managed:7"); /* reserve; advice twice, prefetch; advice twice, prefetch */
    OK(lt_device_commit(r.dev, r.mem, 32 * MIB, &r.err));
    assert_int_equal(lt_device_commit(r.dev, r.mem + 32 * MIB, 32 * MIB, &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(held(&r), 32 * MIB);
    assert_int_equal(stats(&r).host_bytes, 0);
    OK(lt_device_commit(r.dev, r.mem + 32 * MIB, 32 * MIB, &r.err));
    close_rig(&r);
    fake->reset();
    lt_ctx *ctx = open_ctx();
    lt_device *dev;
    lt_err err;
    OK(lt_device_open(ctx, MANAGED ",fail=managed:1", &dev, &err));
    assert_int_equal(lt_device_reserve(dev, MIB, &(lt_addr){0}, &err), LT_E_DEVICE_OOM);
    lt_device_close(dev);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
    assert_nothing_left();
}

/* ---- giving back ---- */

/* With either version of the driver's functions; the older ones copy what they move. */
static void what_is_given_back_leaves_the_card(void **state)
{
    (void)state;
    for (int old = 0; old < 2; old++) {
        fake = old ? fake_old : fake_new;
        rig r = open_rig(old ? OLD : MANAGED);
        OK(lt_device_commit(r.dev, r.mem, 64 * MIB, &r.err));
        lt_device_decommit(r.dev, r.mem + 2 * MIB, 40 * MIB);
        assert_int_equal(held(&r), 24 * MIB);
        assert_int_equal(stats(&r).host_bytes, 40 * MIB);
        assert_int_equal(counts().advised_bytes, 2 * 24 * MIB);
        assert_int_equal(counts().moved_bytes, old ? 40 * MIB : 0);
        OK(lt_device_commit(r.dev, r.mem + 2 * MIB, 8 * MIB, &r.err));
        assert_int_equal(held(&r), 32 * MIB);
        assert_int_equal(stats(&r).host_bytes, 40 * MIB); /* nobody promises that those leave */
        assert_int_equal(counts().moved_bytes, old ? 48 * MIB : 0);
        lt_device_decommit(r.dev, r.mem + 2 * MIB, 8 * MIB);
        assert_int_equal(stats(&r).host_bytes, 40 * MIB); /* the same again */
        assert_int_equal(fake->calls("cuMemAdvise") > 0, old);
        assert_int_equal(fake->calls("cuMemPrefetchAsync") > 0, old);
        lt_device_unreserve(r.dev, r.mem, 256 * MIB);
        r.mem = 0;
        assert_int_equal(held(&r), 0);
        assert_int_equal(stats(&r).host_bytes, 0);
        assert_int_equal(stats(&r).peak_host_bytes, 40 * MIB);
        close_rig(&r);
    }
    fake = fake_new;
}

/* A driver that has the function and refuses it: the memory is copied. */
static void discarding_may_be_refused(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    OK(lt_device_commit(r.dev, r.mem, 8 * MIB, &r.err));
    fake->fail_call(DISCARD, 1, LT_CU_NOT_SUPPORTED);
    lt_device_decommit(r.dev, r.mem, 4 * MIB);
    assert_int_equal(held(&r), 4 * MIB);
    lt_device_decommit(r.dev, r.mem + 4 * MIB, 4 * MIB);
    assert_int_equal(held(&r), 0);
    assert_int_equal(fake->calls(DISCARD), 1);
    assert_int_equal(counts().moved_bytes, 8 * MIB);
    close_rig(&r);
}

/* What cannot go to the host stays, is counted, and is committed again without the driver. */
static void the_host_may_have_no_room(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = open_rig(MANAGED);
        OK(lt_device_commit(r.dev, r.mem, 64 * MIB, &r.err));
        if (i)
            fake->fail_call(DISCARD, 1, LT_CU_UNKNOWN);
        else
            arm(LT_FAULT_HOST_ALLOC, 1);
        lt_device_decommit(r.dev, r.mem, 32 * MIB);
        assert_int_equal(held(&r), 64 * MIB);
        assert_int_equal(stats(&r).host_bytes, 0);
        uint64_t before = prefetches();
        OK(lt_device_commit(r.dev, r.mem, 32 * MIB, &r.err));
        assert_int_equal(prefetches(), before);
        lt_device_decommit(r.dev, r.mem, 32 * MIB);
        assert_int_equal(held(&r), 32 * MIB);
        close_rig(&r);
    }
}

/* The way of an engine's arena: not a byte goes to the host. */
static void a_pool_goes_whole(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    lt_pool_desc d = lt_pool_desc_default();
    lt_pool *p;
    d.limit_bytes = 100 * MIB;
    d.commit_all = true;
    OK(lt_pool_create(r.dev, &d, &p, &r.err));
    assert_int_equal(held(&r), 100 * MIB);
    lt_pool_destroy(p);
    assert_int_equal(held(&r), 0);
    fake->fail_call("cuMemPrefetchAsync_v2", 3, LT_CU_OUT_OF_MEMORY);
    assert_int_equal(lt_pool_create(r.dev, &d, &p, &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(held(&r), 0);
    assert_int_equal(stats(&r).peak_host_bytes, 0);
    d.commit_all = false;
    OK(lt_pool_create(r.dev, &d, &p, &r.err));
    lt_block b;
    OK(lt_pool_alloc(p, 64 * MIB, 256, LT_USE_WEIGHT, NULL, &b, &r.err));
    lt_pool_free(p, b, NULL);
    assert_int_equal(held(&r), 64 * MIB);
    lt_pool_trim(p, 0);
    assert_int_equal(held(&r), 0);
    assert_int_equal(stats(&r).host_bytes, 64 * MIB);
    lt_pool_destroy(p);
    assert_int_equal(stats(&r).host_bytes, 0);
    close_rig(&r);
}

/* ---- neighbours ---- */

/* Another device of the same card that takes all that is free, as plain memory. */
static lt_device *greedy(rig *r, uint64_t bytes, lt_addr *at)
{
    lt_device *other;
    OK(lt_device_open(r->ctx, PLAIN ",vmm=0", &other, &r->err));
    OK(lt_device_reserve(other, bytes, at, &r->err));
    return other;
}

/* A budget that shrinks or grows: what is kept is held between two arenas, so that nobody takes it, and the sum never
 * exceeds the larger one. Without cuMemCreate, or not asked to, nothing is held. */
static void what_is_kept_is_held_between_two_ranges(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        rig r = open_rig(i == 2 ? MANAGED ",vmm=0" : MANAGED);
        OK(lt_device_commit(r.dev, r.mem, 128 * MIB, &r.err));
        lt_device_keep(r.dev, i == 1 ? 0 : 70 * MIB); /* three pieces */
        lt_device_unreserve(r.dev, r.mem, 256 * MIB);
        r.mem = 0;
        assert_int_equal(held(&r), i ? 0 : 96 * MIB);
        assert_int_equal(counts().peak_held_bytes, 128 * MIB);
        uint64_t free = FAKE_CUDA_MEMORY - FAKE_CUDA_CONTEXT_BYTES - counts().held_bytes;
        lt_addr theirs;
        lt_device *other = greedy(&r, free, &theirs);
        OK(lt_device_reserve(r.dev, 256 * MIB, &r.mem, &r.err));
        assert_int_equal(lt_device_commit(r.dev, r.mem, 70 * MIB, &r.err), i ? LT_E_DEVICE_OOM : LT_OK);
        if (!i) {
            assert_int_equal(stats(&r).committed_bytes, 70 * MIB); /* each piece made way for its own */
            assert_int_equal(lt_device_commit(r.dev, r.mem + 70 * MIB, 32 * MIB, &r.err), LT_E_DEVICE_OOM);
        }
        lt_device_keep(r.dev, 0);
        assert_int_equal(stats(&r).committed_bytes, i ? 0 : 70 * MIB);
        assert_int_equal(counts().evicted_bytes, 0);
        assert_int_equal(stats(&r).peak_committed_bytes, 128 * MIB);
        lt_device_unreserve(other, theirs, free);
        lt_device_close(other);
        close_rig(&r);
    }
}

/* Growing: kept pieces and new ones are never more than the larger range. */
static void kept_and_new_are_never_more_than_the_larger(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    OK(lt_device_commit(r.dev, r.mem + 2 * MIB, 96 * MIB, &r.err));
    lt_device_keep(r.dev, 96 * MIB);
    lt_device_unreserve(r.dev, r.mem, 256 * MIB);
    OK(lt_device_reserve(r.dev, 256 * MIB, &r.mem, &r.err));
    OK(lt_device_commit(r.dev, r.mem, 2 * MIB, &r.err));
    OK(lt_device_commit(r.dev, r.mem + 2 * MIB, 126 * MIB, &r.err));
    assert_int_equal(held(&r), 128 * MIB);
    assert_int_equal(counts().peak_held_bytes, 128 * MIB);
    assert_int_equal(counts().handles, 0);
    lt_device_decommit(r.dev, r.mem, 64 * MIB); /* what is kept of a part */
    assert_int_equal(held(&r), 128 * MIB);
    assert_int_equal(counts().handles, 2);
    lt_device_keep(r.dev, 0);
    assert_int_equal(held(&r), 64 * MIB);
    close_rig(&r);
}

/* A neighbour's plain memory takes pages of ours: nothing fails, and the session sees that nothing is free. */
static void a_neighbour_pushes_pages_out(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    uint8_t mark[64], back[64];
    memset(mark, 0x5a, sizeof mark);
    OK(lt_device_commit(r.dev, r.mem, 256 * MIB, &r.err));
    OK(lt_queue_copy_in(r.q, r.mem, mark, sizeof mark, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    lt_addr theirs;
    lt_device *other = greedy(&r, 800 * MIB, &theirs);
    assert_int_equal(counts().evicted_bytes, 800 * MIB + 256 * MIB + FAKE_CUDA_CONTEXT_BYTES - FAKE_CUDA_MEMORY);
    assert_int_equal(lt_device_free_bytes(r.dev), 0);
    OK(lt_queue_copy_out(r.q, back, r.mem, sizeof back, &r.err));
    OK(lt_queue_sync(r.q, &r.err));
    assert_memory_equal(mark, back, sizeof mark);
    lt_device_unreserve(other, theirs, 800 * MIB);
    lt_device_close(other);
    close_rig(&r);
}

/* ---- whatever fails ---- */

static lt_status tour(lt_ctx *ctx, lt_err *err)
{
    lt_device *dev = NULL;
    lt_addr mem = 0;
    lt_status s = lt_device_open(ctx, MANAGED, &dev, err);
    if (s != LT_OK)
        return s;
    s = lt_device_reserve(dev, 64 * MIB, &mem, err);
    if (s == LT_OK)
        s = lt_device_commit(dev, mem, 34 * MIB, err);
    if (s == LT_OK) {
        lt_device_keep(dev, 64 * MIB);
        lt_device_decommit(dev, mem, 2 * MIB);
    }
    if (mem)
        lt_device_unreserve(dev, mem, 64 * MIB);
    lt_device_close(dev); /* with what is kept */
    return s;
}

static void every_host_allocation_may_fail(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        fake->reset();
        lt_ctx *ctx = open_ctx();
        lt_err err = {0};
        arm(LT_FAULT_HOST_ALLOC, n);
        lt_status s = tour(ctx, &err);
        bool reached = atomic_load(&g_hook.left) <= 0;
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
        assert_nothing_left();
        if (!reached) {
            OK(s);
            assert_true(n > 4);
            return;
        }
        assert_true(s == LT_E_HOST_OOM || s == LT_OK); /* keep and decommit do without */
    }
}

static void a_lost_device_is_closed(void **state)
{
    (void)state;
    rig r = open_rig(MANAGED);
    OK(lt_device_commit(r.dev, r.mem, 64 * MIB, &r.err));
    lt_device_keep(r.dev, 64 * MIB);
    fake->break_context(LT_CU_ILLEGAL_ADDRESS);
    OK(lt_queue_fill(r.q, r.mem, 1, 64, &r.err));
    assert_int_equal(lt_queue_sync(r.q, &r.err), LT_E_DEVICE_LOST);
    assert_int_not_equal(lt_device_commit(r.dev, r.mem + 64 * MIB, 2 * MIB, &r.err), LT_OK);
    lt_device_decommit(r.dev, r.mem, 64 * MIB);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_the_attribute),
        cmocka_unit_test(what_is_committed_is_on_the_card),
        cmocka_unit_test(nothing_is_asked_that_would_spill),
        cmocka_unit_test(commit_rolls_back),
        cmocka_unit_test(faults_of_the_spec_hit_the_nth_call),
        cmocka_unit_test(what_is_given_back_leaves_the_card),
        cmocka_unit_test(discarding_may_be_refused),
        cmocka_unit_test(the_host_may_have_no_room),
        cmocka_unit_test(a_pool_goes_whole),
        cmocka_unit_test(what_is_kept_is_held_between_two_ranges),
        cmocka_unit_test(kept_and_new_are_never_more_than_the_larger),
        cmocka_unit_test(a_neighbour_pushes_pages_out),
        cmocka_unit_test(every_host_allocation_may_fail),
        cmocka_unit_test(a_lost_device_is_closed),
    };
    fake = fake_new = open_fake(LT_CUDA_FAKE_FILE);
    fake_old = open_fake(LT_CUDA_OLD_FILE);
    return fake_new && fake_old ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
