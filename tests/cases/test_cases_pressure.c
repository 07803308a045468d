/* Others on the card while a model runs: the reserve is held all along, and what they leave is taken back.
 * The neighbour is a second device on the same simulated card; time is the card's virtual clock. */
#include "base/mem.h"
#include "session_common.h"

#define M (UINT64_C(1) << 20)

static char model[64], card[64], spec[256];
static lt_ctx *ctx;

static int teardown(void **state)
{
    (void)state;
    unlink(model);
    unlink(card);
    int left = lt_ctx_host_bytes(ctx) != 0;
    lt_ctx_destroy(ctx);
    return left;
}

typedef struct rig { lt_device *dev, *other; lt_model *m; lt_plan *p; lt_session *s; lt_err err; uint64_t hash; int32_t next; lt_addr at; uint64_t taken; } rig;

static rig open_rig(uint64_t budget, uint64_t reserve)
{
    rig r = {.hash = 1};
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.budget_bytes = budget;
    d.reserve_bytes = reserve;
    d.ctx = 2048;
    d.batch = 32;
    lt_session_desc sd = lt_session_desc_default();
    sd.give_way = reserve > 0;
    sd.reserve_bytes = reserve;
    if (lt_device_open(ctx, spec, &r.dev, &r.err) != LT_OK || lt_device_open(ctx, spec, &r.other, &r.err) != LT_OK ||
        lt_model_open(ctx, model, &r.m, &r.err) != LT_OK || lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err) != LT_OK ||
        lt_session_create(r.m, r.dev, r.p, &sd, &r.s, &r.err) != LT_OK)
        fail_msg("%s", r.err.text);
    return r;
}

static void leave(rig *r)
{
    if (r->at)
        lt_device_unreserve(r->other, r->at, r->taken);
    r->at = 0;
}

static void close_rig(rig *r)
{
    leave(r);
    lt_session_destroy(r->s);
    lt_plan_destroy(r->p);
    lt_model_close(r->m);
    lt_device_close(r->dev);
    lt_device_close(r->other);
}

static void take(rig *r, uint64_t bytes)
{
    r->taken = bytes & ~UINT64_C(0x1fffff);
    assert_int_equal(lt_device_reserve(r->other, r->taken, &r->at, &r->err), LT_OK);
    if (lt_device_commit(r->other, r->at, r->taken, &r->err) != LT_OK)
        fail_msg("%s", r->err.text);
}

static void take_all_but(rig *r, uint64_t left)
{
    uint64_t free_bytes = lt_device_free_bytes(r->other);
    assert_true(free_bytes > left);
    take(r, free_bytes - left);
}

static void feed(rig *r, const int32_t *ids, size_t n)
{
    const float *l;
    if (lt_session_eval(r->s, ids, n, &l, &r->err) != LT_OK)
        fail_msg("%s", r->err.text);
    r->hash = hash_bytes(r->hash, l, 512 * sizeof *l);
    r->next = 0;
    for (int i = 1; i < 512; i++)
        if (l[i] > l[r->next])
            r->next = i;
}

static void prompt(rig *r)
{
    int32_t ids[100];
    for (int i = 0; i < 100; i++)
        ids[i] = (int32_t)((uint32_t)(i * 7919 + 13) % 512);
    feed(r, ids, 100);
}

static uint64_t device_ns(const rig *r)
{
    lt_device_stats d;
    lt_device_get_stats(r->dev, &d);
    return d.now_ns;
}

/* Virtual nanoseconds a token. */
static double decode(rig *r, int n)
{
    uint64_t t0 = device_ns(r);
    for (int i = 0; i < n; i++) {
        int32_t id = r->next;
        feed(r, &id, 1);
    }
    return (double)(device_ns(r) - t0) / n;
}

/* Issue "Pressure": another process takes all but a little while a model decodes. */
static void pressure_all_but_a_little_is_taken_while_a_model_decodes(void **state)
{
    (void)state;
    rig quiet = open_rig(24 * M, 0);
    prompt(&quiet);
    decode(&quiet, 300);
    uint64_t right = quiet.hash;
    close_rig(&quiet);

    rig r = open_rig(24 * M, 8 * M);
    prompt(&r);
    double before = decode(&r, 40);
    assert_int_equal(lt_session_budget_change_count(r.s), 0);
    take_all_but(&r, 2 * M);
    assert_true(lt_device_free_bytes(r.dev) < 8 * M);
    /* Within one step, or the interval between two looks where that is longer. */
    uint64_t t0 = device_ns(&r);
    int steps = 0;
    while (lt_device_free_bytes(r.dev) < 8 * M) {
        uint64_t step0 = device_ns(&r);
        decode(&r, 1);
        steps++;
        if (lt_device_free_bytes(r.dev) >= 8 * M)
            break;
        assert_true(step0 - t0 < 20000000);
    }
    assert_int_equal(lt_session_budget_change_count(r.s), 1);
    lt_budget_change c = lt_session_budget_change_at(r.s, 0);
    assert_string_equal(c.why, "pressure");
    assert_int_equal(c.missed_bytes, 0);
    double during = decode(&r, 100 - steps);
    assert_int_equal(lt_session_budget_change_count(r.s), 1); /* one plan, not one a step */
    leave(&r);
    /* A second of room, and some. */
    for (uint64_t t1 = device_ns(&r); device_ns(&r) < t1 + 1200000000;)
        decode(&r, 1);
    assert_int_equal(lt_session_budget_change_count(r.s), 2);
    c = lt_session_budget_change_at(r.s, 1);
    assert_string_equal(c.why, "relief");
    assert_int_equal(c.to, 24 * M);
    double after = decode(&r, 40);
    print_message("virtual ms a token: %.2f before, %.2f under pressure (%.1f MiB), %.2f after\n", before * 1e-6, during * 1e-6,
                  (double)lt_session_budget_change_at(r.s, 0).to / 1048576, after * 1e-6);
    assert_true(during > before);
    assert_true(before / after >= 0.95);
    decode(&r, 300 - (int)(lt_session_length(r.s) - 100));
    assert_true(r.hash == right);
    lt_report rep;
    lt_session_get_report(r.s, &rep);
    assert_true(rep.peak_bytes <= 24 * M);
    assert_int_equal(rep.reserve_missed_bytes, 0);
    assert_int_equal(lt_session_check(r.s, &r.err), LT_OK);
    close_rig(&r);
}

/* Case 1 (Comfy aimdo 117): after pressure ends, what is moved a step is what it was at first. */
static void memory_01_traffic_is_back_after_pressure(void **state)
{
    (void)state;
    rig r = open_rig(24 * M, 8 * M);
    prompt(&r);
    lt_device_stats d[4];
    lt_device_get_stats(r.dev, &d[0]);
    decode(&r, 50);
    lt_device_get_stats(r.dev, &d[1]);
    take_all_but(&r, 2 * M);
    decode(&r, 100);
    leave(&r);
    decode(&r, 400);
    lt_device_get_stats(r.dev, &d[2]);
    decode(&r, 50);
    lt_device_get_stats(r.dev, &d[3]);
    assert_true(lt_session_budget_change_count(r.s) >= 2);
    assert_true((double)(d[3].h2d_bytes - d[2].h2d_bytes) <= 1.1 * (double)(d[1].h2d_bytes - d[0].h2d_bytes));
    close_rig(&r);
}

/* Case 11 (ComfyUI 15666): the reserve is what stays free, at every sample. */
static void memory_11_the_reserve_is_held(void **state)
{
    (void)state;
    rig r = open_rig(0, 16 * M);
    prompt(&r);
    for (int i = 0; i < 60; i++) {
        decode(&r, 1);
        assert_true(lt_device_free_bytes(r.dev) >= 16 * M);
    }
    close_rig(&r);
}

/* The plan cannot get that small: the smallest one runs, and says by how much the reserve is missed. */
static void the_smallest_plan_says_what_is_missed(void **state)
{
    (void)state;
    rig r = open_rig(24 * M, 72 * M);
    uint64_t start = lt_plan_get_info(r.p)->budget_bytes;
    assert_true(start < 24 * M);
    prompt(&r);
    take_all_but(&r, 2 * M);
    decode(&r, 60);
    lt_report rep;
    lt_session_get_report(r.s, &rep);
    assert_true(rep.reserve_missed_bytes > 0);
    assert_int_equal(rep.reserve_missed_bytes, 72 * M - lt_device_free_bytes(r.dev));
    assert_int_equal(lt_session_budget_change_count(r.s), 1);
    leave(&r);
    decode(&r, 600);
    lt_session_get_report(r.s, &rep);
    assert_int_equal(rep.reserve_missed_bytes, 0);
    assert_true(rep.budget_now_bytes > rep.reserve_missed_bytes);
    close_rig(&r);
}

/* A neighbour who takes every byte the moment it is free, also between the old arena and the new: called before each
 * commit, in a context of its own. */
static struct greedy { lt_device *dev; lt_addr at[64]; uint64_t bytes[64], most, held; int n; } greedy;

static bool take_what_is_free(void *user, lt_fault_point point)
{
    (void)user;
    struct greedy *g = &greedy;
    if (point != LT_FAULT_COMMIT || !g->dev || g->n == 64)
        return false;
    uint64_t free_bytes = lt_device_free_bytes(g->dev) & ~UINT64_C(0x3ffff);
    uint64_t bytes = g->held + free_bytes > g->most ? g->most - g->held : free_bytes;
    if (!bytes || lt_device_reserve(g->dev, bytes, &g->at[g->n], NULL) != LT_OK)
        return false;
    if (lt_device_commit(g->dev, g->at[g->n], bytes, NULL) != LT_OK) {
        lt_device_unreserve(g->dev, g->at[g->n], bytes);
        return false;
    }
    g->held += bytes;
    g->bytes[g->n++] = bytes;
    return false;
}

static void a_greedy_neighbour_gets_only_what_is_given(void **state)
{
    (void)state;
    lt_ctx *other;
    lt_err err;
    assert_int_equal(lt_ctx_create(NULL, &other, NULL), LT_OK);
    rig r = open_rig(24 * M, 4 * M);
    prompt(&r);
    assert_int_equal(lt_device_open(other, spec, &greedy.dev, &err), LT_OK);
    greedy.most = 76 * M;
    take_what_is_free(NULL, LT_FAULT_COMMIT);
    decode(&r, 120);
    size_t n = lt_session_budget_change_count(r.s);
    assert_true(n >= 1 && greedy.n > 1);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(lt_session_budget_change_at(r.s, i).why, "pressure");
    print_message("%zu changes, the last to %.1f MiB\n", n, (double)lt_session_budget_change_at(r.s, n - 1).to / 1048576);
    for (int i = 0; i < greedy.n; i++)
        lt_device_unreserve(greedy.dev, greedy.at[i], greedy.bytes[i]);
    lt_device_close(greedy.dev);
    greedy.dev = NULL;
    lt_ctx_destroy(other);
    rig quiet = open_rig(24 * M, 0);
    prompt(&quiet);
    decode(&quiet, 120);
    assert_true(quiet.hash == r.hash);
    close_rig(&quiet);
    close_rig(&r);
}

/* Case 19 (stable-diffusion.cpp 1878): a neighbour whose use goes up and down does not cost a plan each step. */
static void images_19_an_unsteady_neighbour_costs_few_plans(void **state)
{
    (void)state;
    rig r = open_rig(24 * M, 8 * M);
    prompt(&r);
    int flips = 0;
    for (int i = 0; i < 600; i++) {
        if (i % 10 == 0) {
            if (r.at)
                leave(&r);
            else if (r.taken)
                take(&r, r.taken);
            else
                take_all_but(&r, 6 * M);
            flips++;
        }
        decode(&r, 1);
    }
    print_message("%d changes of the neighbour, %zu of the budget\n", flips, lt_session_budget_change_count(r.s));
    assert_in_range(lt_session_budget_change_count(r.s), 1, 4);
    close_rig(&r);
}

static int setup(void **state)
{
    (void)state;
    make_model(model, "--arch llama --layers 8 --embd 256 --ff 1024 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 4096 "
                      "--type F16 --seed 5");
    snprintf(card, sizeof card, "/tmp/lt-card-%d-XXXXXX", (int)getpid());
    close(mkstemp(card));
    snprintf(spec, sizeof spec, "sim:vram=96M,fixed=4M,h2d=1G,d2h=1G,latency=5us,clock=virtual,compute=4G,threads=1,card=%s", card);
    lt_ctx_desc d = lt_ctx_desc_default();
    d.fault = take_what_is_free;
    return lt_ctx_create(&d, &ctx, NULL) != LT_OK;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pressure_all_but_a_little_is_taken_while_a_model_decodes),
        cmocka_unit_test(memory_01_traffic_is_back_after_pressure),
        cmocka_unit_test(memory_11_the_reserve_is_held),
        cmocka_unit_test(the_smallest_plan_says_what_is_missed),
        cmocka_unit_test(a_greedy_neighbour_gets_only_what_is_given),
        cmocka_unit_test(images_19_an_unsteady_neighbour_costs_few_plans),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
