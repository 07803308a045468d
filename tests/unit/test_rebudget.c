/* Another budget in the middle of a sequence: the same bits, nothing lost, whatever fails on the way. */
#include <stdatomic.h>

#include "base/mem.h"
#include "run/session_impl.h"
#include "session_common.h"

static char llama[64], gemma[64];
static lt_ctx *ctx;
static _Atomic int fault_left;
static _Atomic bool fault_hit;
static _Atomic lt_fault_point fault_point = LT_FAULT_COUNT;

static bool inject(void *user, lt_fault_point point)
{
    (void)user;
    if (point != fault_point || atomic_load(&fault_left) <= 0 || atomic_fetch_sub(&fault_left, 1) != 1)
        return false;
    atomic_store(&fault_hit, true);
    return true;
}

static int setup(void **state)
{
    (void)state;
    make_model(llama, TINY_LLAMA);
    make_model(gemma, TINY_GEMMA);
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = inject;
    return lt_ctx_create(&d, &ctx, NULL) != LT_OK;
}

static int teardown(void **state)
{
    (void)state;
    unlink(llama);
    unlink(gemma);
    int left = lt_ctx_host_bytes(ctx) != 0;
    if (left)
        print_error("%lu bytes of the context are left\n", lt_ctx_host_bytes(ctx));
    lt_ctx_destroy(ctx);
    return left;
}

static lt_status feed(session_rig *r, const int32_t *ids, size_t n)
{
    const float *l;
    lt_status st = lt_session_eval(r->s, ids, n, &l, &r->err);
    if (st != LT_OK)
        return st;
    r->hash = hash_bytes(r->hash, l, r->vocab * sizeof *l);
    r->next = 0;
    for (uint32_t i = 1; i < r->vocab; i++)
        if (l[i] > l[r->next])
            r->next = (int32_t)i;
    return LT_OK;
}

static void prompt(session_rig *r, int n)
{
    int32_t ids[1024];
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)((uint32_t)(i * 7919 + 13) % 512);
    if (feed(r, ids, (size_t)n) != LT_OK)
        fail_msg("%s", r->err.text);
}

static void decode(session_rig *r, int n)
{
    while (n--) {
        int32_t id = r->next;
        if (feed(r, &id, 1) != LT_OK)
            fail_msg("%s", r->err.text);
    }
}

static uint64_t least_of(const char *path, const char *spec, uint32_t n_ctx, uint32_t batch)
{
    session_rig r = open_session(ctx, path, spec, 0, n_ctx, batch, 0, NULL);
    assert_int_equal(lt_session_rebudget(r.s, r.p->info.budget_bytes, &r.err), LT_OK);
    uint64_t least = r.s->giving.least;
    close_session(&r);
    return least;
}

/* Down to the least and up again by uneven steps, at uneven places of prompt and answer. */
static void same_bits(const char *path, const char *spec, uint32_t n_ctx, int n)
{
    session_rig a = open_session(ctx, path, spec, 0, n_ctx, 64, 0, NULL), b = open_session(ctx, path, spec, 0, n_ctx, 64, 0, NULL);
    assert_int_equal(lt_session_rebudget(b.s, b.p->info.budget_bytes, &b.err), LT_OK);
    uint64_t full = b.p->info.predicted_peak_bytes, least = b.s->giving.least;
    assert_true(least < full);
    const double share[] = {0.5, 0, 1, 0.1, 0.9, 0.02, 0, 0.7};
    prompt(&a, n);
    prompt(&b, n);
    for (size_t i = 0; i < sizeof share / sizeof *share; i++) {
        decode(&a, 3);
        uint64_t budget = least + (uint64_t)(share[i] * (double)(full - least));
        if (lt_session_rebudget(b.s, budget, &b.err) != LT_OK)
            fail_msg("to %lu: %s", budget, b.err.text);
        assert_true(b.s->plan->info.budget_bytes <= budget);
        decode(&b, 3);
        if (a.hash != b.hash)
            fail_msg("change %zu of %s: other bits", i, path);
        assert_int_equal(lt_session_check(b.s, &b.err), LT_OK);
        prompt(&a, 9); /* a later prompt, in passes of what the plan allows */
        prompt(&b, 9);
        assert_true(a.hash == b.hash);
    }
    lt_report rep;
    lt_session_get_report(b.s, &rep);
    assert_int_equal(lt_session_budget_change_count(b.s), 9);
    assert_true(rep.peak_bytes <= rep.budget_bytes);
    assert_string_equal(lt_session_budget_change_at(b.s, 1).why, "asked");
    assert_int_equal(lt_session_rebudget(b.s, least - 1, &b.err), LT_E_NO_FIT);
    assert_int_equal(lt_session_budget_change_count(b.s), 9);
    assert_int_equal(lt_session_rebudget(b.s, 0, &b.err), LT_OK);
    assert_ptr_equal(b.s->plan, b.p);
    decode(&a, 2);
    decode(&b, 2);
    assert_true(a.hash == b.hash);
    close_session(&a);
    close_session(&b);
}

static void same_bits_on_sim(void **state) { (void)state; same_bits(llama, "sim:vram=64M", 512, 70); }
static void same_bits_on_cpu(void **state) { (void)state; same_bits(llama, "cpu:threads=2", 512, 300); }
static void same_bits_in_a_window(void **state) { (void)state; same_bits(gemma, "sim:vram=64M", 1024, 800); }

/* Windowed pages that a smaller ring of pages could not keep are not gone back to, also when the ring is large again. */
static void going_back_after_a_change(void **state)
{
    (void)state;
    char path[64];
    make_model(path, TINY_GEMMA " --window 256 --ctx 2048");
    const char *spec = "sim:vram=64M";
    uint64_t least = least_of(path, spec, 2048, 0);
    int refused = 0;
    for (int grow = 0; grow < 2; grow++) {
        session_rig a = open_session(ctx, path, spec, 0, 2048, 0, 0, NULL), b = open_session(ctx, path, spec, 0, 2048, 0, 0, NULL);
        assert_int_equal(a.p->n_groups, 2);
        prompt(&a, 1000);
        prompt(&b, 1000);
        prompt(&a, 500);
        prompt(&b, 500);
        uint32_t before = b.s->plan->pages[0] + b.s->plan->pages[1];
        assert_int_equal(lt_session_rebudget(b.s, least, &b.err), LT_OK);
        assert_true(b.s->plan->pages[0] + b.s->plan->pages[1] < before);
        if (grow)
            assert_int_equal(lt_session_rebudget(b.s, 0, &b.err), LT_OK);
        for (uint32_t back = 1495; back > 100; back -= 97) {
            lt_err err;
            lt_status st = lt_session_truncate(b.s, back, &err);
            if (st != LT_OK) {
                assert_int_equal(st, LT_E_INVALID);
                refused++;
                break;
            }
            assert_int_equal(lt_session_truncate(a.s, back, &err), LT_OK);
            prompt(&a, 2);
            prompt(&b, 2);
            if (a.hash != b.hash)
                fail_msg("grown %d, back to %u: other bits", grow, back);
        }
        assert_int_equal(lt_session_truncate(b.s, 0, &b.err), LT_OK);
        assert_int_equal(lt_session_truncate(a.s, 0, &b.err), LT_OK);
        prompt(&a, 600);
        prompt(&b, 600);
        assert_true(a.hash == b.hash);
        close_session(&a);
        close_session(&b);
    }
    assert_int_equal(refused, 2);
    unlink(path);
}

/* Every commit, copy, read and allocation of a change fails once: the change is refused or rolled back, the
 * sequence goes on with the same bits. */
static void faults_of_a_change(void **state)
{
    (void)state;
    static const lt_fault_point points[] = {LT_FAULT_COMMIT, LT_FAULT_HOST_ALLOC, LT_FAULT_READ, LT_FAULT_PIN, LT_FAULT_COPY};
    uint64_t least = least_of(llama, "sim:vram=64M", 512, 64);
    session_rig right = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL);
    prompt(&right, 40);
    decode(&right, 4);
    for (size_t k = 0; k < sizeof points / sizeof *points; k++) {
        int n = 0, failed = 0;
        for (bool more = true; more;) {
            session_rig r = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL);
            prompt(&r, 40);
            decode(&r, 2);
            fault_point = points[k];
            atomic_store(&fault_hit, false);
            atomic_store(&fault_left, ++n);
            lt_status st = lt_session_rebudget(r.s, n % 2 ? least + (128 << 10) : least * 2, &r.err);
            atomic_store(&fault_left, 0);
            fault_point = LT_FAULT_COUNT;
            more = atomic_load(&fault_hit);
            failed += st != LT_OK;
            if (!more && st != LT_OK)
                fail_msg("point %d.%d: failed without a fault: %s", points[k], n, r.err.text);
            if (points[k] == LT_FAULT_COPY && st != LT_OK && r.s->engine) {
                close_session(&r); /* a queue that failed stays so: the device's contract */
                continue;
            }
            int32_t id = r.next;
            lt_status after = feed(&r, &id, 1); /* a load ahead, begun by the change, may have met the fault */
            if (after != LT_OK && points[k] == LT_FAULT_COPY) {
                assert_non_null(strstr(r.err.text, "fault injected"));
                close_session(&r);
                continue;
            }
            if (after != LT_OK) {
                assert_true(atomic_load(&fault_hit));
                decode(&r, 1);
            }
            decode(&r, 1);
            if (r.hash != right.hash)
                fail_msg("point %d.%d: other bits", points[k], n);
            assert_int_equal(lt_session_check(r.s, &r.err), LT_OK);
            close_session(&r);
            assert_true(n < 3000);
        }
        print_message("point %d: %d faults, %d of them refused the change\n", points[k], n - 1, failed);
        assert_true(n > 1 || points[k] == LT_FAULT_PIN || points[k] == LT_FAULT_READ);
    }
    close_session(&right);
}

/* The device refuses what a larger budget needs: the plan before is at work again. */
static void a_refused_growth_rolls_back(void **state)
{
    (void)state;
    char card[] = "/tmp/lt-card-XXXXXX", spec[128];
    close(mkstemp(card));
    snprintf(spec, sizeof spec, "sim:vram=64M,card=%s", card);
    uint64_t least = least_of(llama, "sim:vram=64M", 512, 64);
    session_rig r = open_session(ctx, llama, spec, least, 512, 0, 0, NULL);
    prompt(&r, 40);
    lt_device *other;
    lt_addr at;
    assert_int_equal(lt_device_open(ctx, spec, &other, &r.err), LT_OK);
    uint64_t take = lt_device_free_bytes(other) & ~UINT64_C(0x1fffff);
    assert_int_equal(lt_device_reserve(other, take, &at, &r.err), LT_OK);
    assert_int_equal(lt_device_commit(other, at, take, &r.err), LT_OK);
    uint64_t before = r.s->plan->info.budget_bytes;
    assert_int_equal(lt_session_rebudget(r.s, least + (8 << 20), &r.err), LT_E_DEVICE_OOM);
    assert_int_equal(r.s->plan->info.budget_bytes, before);
    assert_string_equal(lt_session_budget_change_at(r.s, 0).why, "refused");
    decode(&r, 2);
    lt_device_unreserve(other, at, take);
    assert_int_equal(lt_session_rebudget(r.s, least + (8 << 20), &r.err), LT_OK);
    decode(&r, 2);
    session_rig right = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL);
    prompt(&right, 40);
    decode(&right, 4);
    assert_true(right.hash == r.hash);
    lt_device_close(other);
    close_session(&r);
    close_session(&right);
    unlink(card);
}

/* What was read in place stays so under another budget, with the same bits. */
static void reading_in_place_outlives_a_change(void **state)
{
    (void)state;
    uint64_t least = least_of(llama, "sim:vram=64M", 512, 64);
    session_rig right = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL), r = {.hash = 1};
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.ctx = 512;
    d.budget_bytes = least + (right.p->info.predicted_peak_bytes - least) / 2;
    d.offload = LT_OFFLOAD_MAPPED;
    assert_int_equal(lt_device_open(ctx, "sim:vram=64M", &r.dev, &r.err), LT_OK);
    assert_int_equal(lt_model_open(ctx, llama, &r.m, &r.err), LT_OK);
    if (lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err) != LT_OK || lt_session_create(r.m, r.dev, r.p, NULL, &r.s, &r.err) != LT_OK)
        fail_msg("%s", r.err.text);
    r.vocab = right.vocab;
    prompt(&right, 40);
    prompt(&r, 40);
    uint64_t mapped = r.s->plan->info.mapped_bytes;
    assert_true(mapped > 0);
    decode(&right, 6);
    decode(&r, 3);
    assert_int_equal(lt_session_rebudget(r.s, least, &r.err), LT_OK);
    assert_true(r.s->plan->info.mapped_bytes > mapped && !r.s->plan->direct);
    decode(&r, 3);
    lt_report rep;
    lt_session_get_report(r.s, &rep);
    assert_int_equal(rep.mapped_bytes, 3 * (mapped + r.s->plan->info.mapped_bytes));
    assert_true(r.hash == right.hash);
    close_session(&r);
    close_session(&right);
}

/* Between the plan and the arena a neighbour takes what was free: a smaller plan, the same answer; where not even the smallest
 * fits, the first refusal and its numbers. */
static void a_refused_first_arena_becomes_a_smaller_one(void **state)
{
    (void)state;
    char card[] = "/tmp/lt-card-XXXXXX", spec[128];
    close(mkstemp(card));
    snprintf(spec, sizeof spec, "sim:vram=64M,card=%s", card);
    session_rig right = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL);
    prompt(&right, 40);
    decode(&right, 4);
    uint64_t full = right.p->info.predicted_peak_bytes, least = least_of(llama, "sim:vram=64M", 512, 0);
    const uint64_t leave[] = {full - (full - least) / 3, least + (64 << 10), least / 2};
    for (size_t i = 0; i < sizeof leave / sizeof *leave; i++) {
        session_rig r = {.hash = 1};
        lt_profile prof = test_profile();
        lt_plan_desc d = lt_plan_desc_default();
        d.ctx = 512;
        lt_device *other;
        lt_addr at;
        assert_int_equal(lt_device_open(ctx, spec, &r.dev, &r.err), LT_OK);
        assert_int_equal(lt_model_open(ctx, llama, &r.m, &r.err), LT_OK);
        assert_int_equal(lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err), LT_OK);
        assert_int_equal(lt_device_open(ctx, spec, &other, &r.err), LT_OK);
        uint64_t take = lt_device_free_bytes(other) - lt__round_up(leave[i], 64 << 10);
        assert_int_equal(lt_device_reserve(other, take, &at, &r.err), LT_OK);
        assert_int_equal(lt_device_commit(other, at, take, &r.err), LT_OK);
        r.vocab = lt_model_get_info(r.m)->vocab;
        lt_status st = lt_session_create(r.m, r.dev, r.p, NULL, &r.s, &r.err);
        if (leave[i] < least) {
            assert_int_equal(st, LT_E_DEVICE_OOM);
            assert_non_null(strstr(r.err.text, "arena"));
        } else {
            if (st != LT_OK)
                fail_msg("%lu left: %s", leave[i], r.err.text);
            assert_string_equal(lt_session_budget_change_at(r.s, 0).why, "refused");
            assert_true(r.s->plan->info.budget_bytes <= lt__round_up(leave[i], 64 << 10));
            prompt(&r, 40);
            decode(&r, 4);
            assert_true(r.hash == right.hash);
        }
        close_session(&r);
        lt_device_close(other);
    }
    close_session(&right);
    unlink(card);
}

/* On a card: LT_TEST_CARD names it. Sizes that a card's granules can tell apart. */
#define CARD_MODEL "--arch llama --layers 8 --embd 1024 --ff 2816 --heads 16 --kv-heads 4 --head-dim 64 --vocab 2000 --ctx 1024 --type Q8_0 --seed 5"

static void same_bits_on_a_card(void **state)
{
    (void)state;
    const char *card = getenv("LT_TEST_CARD");
    if (!card)
        skip();
    char path[64];
    make_model(path, CARD_MODEL);
    same_bits(path, card, 512, 70);
    unlink(path);
}

/* The Nth piece of memory is refused: of the first arena, or of one of a changed budget. Budgets are of the plan for
 * this very device: what opening it takes differs by some MiB. */
static void refused_pieces(const char *spec, const char *fault, int stride, const char *model)
{
    char path[64], failing[160];
    make_model(path, model);
    session_rig right = open_session(ctx, path, spec, 0, 512, 0, 0, NULL);
    prompt(&right, 40);
    decode(&right, 4);
    int refused = 0, changes = 0, first = 0;
    for (int n = 1; n <= 10; n++) {
        session_rig r = {.hash = 1};
        lt_profile prof = test_profile();
        lt_plan_desc d = lt_plan_desc_default();
        d.ctx = 512;
        snprintf(failing, sizeof failing, "%s%c%s:%d", spec, strchr(spec, ':') ? ',' : ':', fault, n * stride);
        assert_int_equal(lt_device_open(ctx, failing, &r.dev, &r.err), LT_OK);
        assert_int_equal(lt_model_open(ctx, path, &r.m, &r.err), LT_OK);
        assert_int_equal(lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err), LT_OK);
        uint64_t least = r.p->info.smallest_budget_bytes, full = r.p->info.predicted_peak_bytes;
        d.budget_bytes = least + (full - least) / 4;
        lt_plan_destroy(r.p);
        if (lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err) != LT_OK)
            fail_msg("%s", r.err.text);
        r.vocab = lt_model_get_info(r.m)->vocab;
        lt_status st = lt_session_create(r.m, r.dev, r.p, NULL, &r.s, &r.err);
        if (st != LT_OK) /* a piece of the first arena is refused once: a smaller plan comes in its place */
            fail_msg("%s: %s", failing, r.err.text);
        first += lt_session_budget_change_count(r.s) > 0;
        prompt(&r, 40);
        decode(&r, 1);
        for (int i = 0; i < 3; i++, changes++) {
            st = lt_session_rebudget(r.s, i == 1 ? least + (full - least) / 8 : full, &r.err);
            if (st != LT_OK && st != LT_E_DEVICE_OOM)
                fail_msg("%s: %s", failing, r.err.text);
            refused += st != LT_OK;
            decode(&r, 1);
        }
        assert_true(r.hash == right.hash);
        close_session(&r);
    }
    print_message("%d of %d changes and %d first arenas refused\n", refused, changes, first);
    assert_true(refused > 0 && first > 0);
    close_session(&right);
    unlink(path);
}

static void a_sim_that_refuses_pieces(void **state) { (void)state; refused_pieces("sim:vram=1G,threads=2", "fail=commit", 1, TINY_LLAMA); }

static void a_card_that_refuses_pieces(void **state)
{
    (void)state;
    const char *card = getenv("LT_TEST_CARD");
    if (!card || strncmp(card, "cuda", 4) != 0)
        skip();
    if (strstr(card, "managed=1")) /* advice twice and a prefetch for each piece */
        refused_pieces(card, "fail=managed", 3, CARD_MODEL);
    else
        refused_pieces(card, "fail=create", 1, CARD_MODEL);
}

/* Stopped while weights are read again: the call says so, the next one goes on. */
static void a_change_can_be_cancelled(void **state)
{
    (void)state;
    session_rig r = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL), right = open_session(ctx, llama, "sim:vram=64M", 0, 512, 64, 0, NULL);
    uint64_t least = least_of(llama, "sim:vram=64M", 512, 64);
    prompt(&right, 40);
    decode(&right, 4);
    prompt(&r, 40);
    lt_session_cancel(r.s);
    assert_int_equal(lt_session_rebudget(r.s, least * 2, &r.err), LT_E_CANCELED);
    assert_null(r.s->engine);
    lt_report rep;
    lt_session_get_report(r.s, &rep); /* and everything else that takes a session */
    assert_int_equal(rep.prefill.tokens, 40);
    assert_int_equal(lt_session_check(r.s, &r.err), LT_OK);
    assert_int_equal(lt_session_length(r.s), 40);
    decode(&r, 2);
    assert_int_equal(lt_session_rebudget(r.s, least, &r.err), LT_OK);
    decode(&r, 2);
    assert_true(r.hash == right.hash);
    lt_session_cancel(r.s);
    assert_int_equal(lt_session_rebudget(r.s, 0, &r.err), LT_E_CANCELED);
    close_session(&r); /* with KV on the host and no engine */
    close_session(&right);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_sim),
        cmocka_unit_test(same_bits_on_cpu),
        cmocka_unit_test(same_bits_in_a_window),
        cmocka_unit_test(going_back_after_a_change),
        cmocka_unit_test(a_refused_growth_rolls_back),
        cmocka_unit_test(a_refused_first_arena_becomes_a_smaller_one),
        cmocka_unit_test(reading_in_place_outlives_a_change),
        cmocka_unit_test(same_bits_on_a_card),
        cmocka_unit_test(a_sim_that_refuses_pieces),
        cmocka_unit_test(a_card_that_refuses_pieces),
        cmocka_unit_test(a_change_can_be_cancelled),
        cmocka_unit_test(faults_of_a_change),
    };
    if (getenv("LT_TEST_ONLY")) /* a pattern, for tools under which all take too long */
        cmocka_set_test_filter(getenv("LT_TEST_ONLY"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
