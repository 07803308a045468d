/* Failing the Nth host allocation, commit, copy, read and launch of a short run, for every N: a typed error
 * with a sentence, nothing leaked, and the next run in the same process gives the right bits. */
#include <stdatomic.h>

#include "session_common.h"

typedef struct injector { lt_fault_point point; atomic_int left; atomic_bool hit; } injector;

static bool inject(void *user, lt_fault_point point)
{
    injector *in = user;
    if (point != in->point || atomic_fetch_sub(&in->left, 1) != 1)
        return false;
    atomic_store(&in->hit, true);
    return true;
}

static char model[64];

static int setup(void **state)
{
    (void)state;
    make_model(model, TINY_LLAMA);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(model);
    return 0;
}

static bool typed(lt_status s, lt_fault_point p)
{
    switch (p) {
    case LT_FAULT_HOST_ALLOC: return s == LT_E_HOST_OOM;
    case LT_FAULT_COMMIT: return s == LT_E_DEVICE_OOM || s == LT_E_HOST_OOM;
    case LT_FAULT_READ: return s == LT_E_IO;
    case LT_FAULT_MAP: return s == LT_E_IO || s == LT_E_HOST_OOM;
    case LT_FAULT_PIN: return s == LT_OK; /* a pin refused costs speed */
    default: return s == LT_E_IO || s == LT_E_DEVICE_LOST || s == LT_E_DEVICE_OOM;
    }
}

static void sweep_of(lt_fault_point point, const char *device, bool streamed, lt_offload offload)
{
    injector in = {.point = point};
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = inject;
    d.fault_user = &in;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(&d, &ctx, NULL), LT_OK);
    job j = {model, device, 0, 256, 8, 11, 3, offload};
    outcome right = run_job(ctx, &j);
    if (streamed) {
        uint64_t hash = right.logits_hash;
        j.budget = right.plan.smallest_budget_bytes + (128 << 10);
        right = run_job(ctx, &j);
        assert_true(right.logits_hash == hash);
    }
    if (right.status != LT_OK)
        fail_msg("the clean run failed: %s", right.err.text);
    assert_true((right.plan.streamed_bytes > 0) == streamed);
    assert_true((right.report.mapped_bytes > 0) == (offload == LT_OFFLOAD_MAPPED));
    int n = 0, absorbed = 0;
    for (;;) {
        atomic_store(&in.left, ++n);
        atomic_store(&in.hit, false);
        outcome o = run_job(ctx, &j);
        bool hit = atomic_load(&in.hit);
        atomic_store(&in.left, 0);
        if (o.status == LT_OK) {
            /* A fault may be absorbed (a reason not printed, a pin refused), never change the answer. */
            assert_int_equal(o.n, right.n);
            assert_true(o.logits_hash == right.logits_hash);
            absorbed += hit;
        } else {
            if (!hit)
                fail_msg("fault %d.%d: failed without a fault: %s", point, n, o.err.text);
            if (!typed(o.status, point))
                fail_msg("fault %d.%d: %s, '%s'", point, n, lt_status_name(o.status), o.err.text);
            assert_true(strlen(o.err.text) > 8);
        }
        if (lt_ctx_host_bytes(ctx) != 0)
            fail_msg("fault %d.%d leaked %lu bytes", point, n, lt_ctx_host_bytes(ctx));
        if (!hit)
            break;
        assert_true(n < 20000);
    }
    outcome again = run_job(ctx, &j);
    assert_int_equal(again.status, LT_OK);
    assert_true(again.logits_hash == right.logits_hash);
    assert_true(n > 1);
    print_message("point %d on %s: %d faults, %d absorbed\n", point, device, n - 1, absorbed);
    lt_ctx_destroy(ctx);
}

static void sweep(lt_fault_point point, const char *device, bool streamed) { sweep_of(point, device, streamed, LT_OFFLOAD_STREAM); }
static void mapped(lt_fault_point point) { sweep_of(point, "sim:vram=64M,threads=2", true, LT_OFFLOAD_MAPPED); }

static void host_alloc(void **state) { (void)state; sweep(LT_FAULT_HOST_ALLOC, "sim:vram=64M,threads=2", true); }
static void commit(void **state) { (void)state; sweep(LT_FAULT_COMMIT, "sim:vram=64M,threads=2", true); }
static void copy(void **state) { (void)state; sweep(LT_FAULT_COPY, "sim:vram=64M,threads=2", true); }
static void launch_op(void **state) { (void)state; sweep(LT_FAULT_LAUNCH, "sim:vram=64M,threads=2", true); }
static void read_sim(void **state) { (void)state; sweep(LT_FAULT_READ, "sim:vram=64M,threads=2", true); }
static void read_cpu(void **state) { (void)state; sweep(LT_FAULT_READ, "cpu:threads=2", false); }
static void map_file(void **state) { (void)state; sweep(LT_FAULT_MAP, "sim:vram=64M,threads=2", true); }
static void mapped_alloc(void **state) { (void)state; mapped(LT_FAULT_HOST_ALLOC); }
static void mapped_pin(void **state) { (void)state; mapped(LT_FAULT_PIN); }
static void mapped_map(void **state) { (void)state; mapped(LT_FAULT_MAP); }
static void mapped_launch(void **state) { (void)state; mapped(LT_FAULT_LAUNCH); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_alloc), cmocka_unit_test(commit),   cmocka_unit_test(copy),
        cmocka_unit_test(launch_op),  cmocka_unit_test(read_sim), cmocka_unit_test(read_cpu),
        cmocka_unit_test(map_file),   cmocka_unit_test(mapped_alloc), cmocka_unit_test(mapped_pin),
        cmocka_unit_test(mapped_map), cmocka_unit_test(mapped_launch),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
