/* The engine against the executor: a session gives the very bits of the graph run node by node,
 * whatever the device, the batch and the budget; and so the golden tolerances hold for it too. */
#include "golden/golden.h"

#include "lowtide/session.h"

static lt_profile any_profile(void)
{
    lt_profile p = {.version = 1, .read_rate = 1e9, .cached_rate = 4e9, .link_rate = 12e9, .memory_rate = 1e10,
                    .attend_rate = 1e9, .launch_ns = 1000};
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        p.dot_rate[t] = 5e9;
        p.gemm_rate[t] = 5e10;
    }
    return p;
}

typedef struct rows { float *v; size_t vocab, n; } rows;

static lt_status keep_row(void *user, size_t index, const float *logits, lt_err *err)
{
    rows *r = user;
    (void)err;
    memcpy(r->v + index * r->vocab, logits, r->vocab * sizeof *logits);
    r->n++;
    return LT_OK;
}

/* budget: 0 unlimited, 1 the smallest that the plan accepts. Returns the context the plan chose. */
static uint32_t score(const lt_model *m, const char *device, uint32_t batch, int budget, lt_dtype kv, const int32_t *ids,
                      size_t n, float *out)
{
    lt_device *dev;
    lt_plan *p;
    lt_session *s;
    lt_err err;
    lt_profile prof = any_profile();
    lt_plan_desc d = lt_plan_desc_default();
    d.ctx = (uint32_t)n;
    d.batch = batch;
    d.rows = 4;
    d.kv_dtype = kv;
    if (lt_device_open(ctx, device, &dev, &err) != LT_OK || lt_plan_create(m, dev, &prof, &d, &p, &err) != LT_OK)
        fail_msg("%s", err.text);
    if (budget) {
        d.budget_bytes = lt_plan_get_info(p)->smallest_budget_bytes;
        lt_plan_destroy(p);
        if (lt_plan_create(m, dev, &prof, &d, &p, &err) != LT_OK)
            fail_msg("%s", err.text);
        assert_true(lt_plan_get_info(p)->streamed_bytes > 0);
    }
    if (lt_session_create(m, dev, p, NULL, &s, &err) != LT_OK)
        fail_msg("%s", err.text);
    rows r = {out, lt_model_get_info(m)->vocab, 0};
    if (lt_session_score(s, ids, n, keep_row, &r, &err) != LT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(r.n, n);
    uint32_t context = lt_plan_get_info(p)->ctx;
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_device_close(dev);
    return context;
}

static void compare(const json_t *e, const char *device, uint32_t batch, int budget)
{
    lt_model *m = golden_model(e);
    golden g = golden_load(e);
    size_t n = g.n, vocab = m->hp.vocab;
    float *got = malloc(n * vocab * sizeof *got), *want = malloc(n * vocab * sizeof *want);
    lt_err err;
    exec_opts o = {.kv = is_float(e) ? LT_DTYPE_F32 : LT_DTYPE_F16, .isa = lt__cpu_isa_best()};
    o.context = score(m, device, batch, budget, o.kv, g.ids, n, got);
    if (exec_logits(m, g.ids, (uint32_t)n, &o, want, &err) != LT_OK)
        fail_msg("%s", err.text);
    if (memcmp(got, want, n * vocab * sizeof *got) != 0)
        fail_msg("%s on %s, batch %u: the session's logits differ from the graph's by an NMSE of %.3g", text_of(e, "name"),
                 device, batch, exec_nmse(got, want, n * vocab));
    /* A plan may round the context up, past phi3's switch of factors: another model then. */
    double d = golden_error(&g, got, vocab);
    if (o.context == n || !strstr(text_of(e, "name"), "phi3-factors"))
        if (!(d <= number(e, "tolerance")))
            fail_msg("%s: NMSE %.3g", text_of(e, "name"), d);
    free(want);
    free(got);
    golden_free(&g);
    lt_model_close(m);
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Dtypes and architectures meet in the graph, which test_golden.c holds in full; here each dtype
 * once and each architecture in every form is enough, and fast enough under sanitizers. */
static void every_dtype_and_architecture_on_cpu(void **state)
{
    (void)state;
    json_t *e;
    size_t i, tried = 0;
    json_array_foreach(json_object_get(manifest, "models"), i, e) {
        char plain[64];
        snprintf(plain, sizeof plain, "%s-%s", text_of(e, "arch"), text_of(e, "dtype"));
        if (strcmp(text_of(e, "arch"), "llama") != 0 && strcmp(text_of(e, "name"), plain) == 0 && !ends_with(plain, "Q4_K"))
            continue;
        compare(e, "cpu:threads=2", 16, 0);
        tried++;
    }
    printf("%zu models\n", tried);
    assert_true(tried >= 16 + 5 * 3);
}

/* Mixed types, and a long sequence with windows, streamed through the smallest arena, in odd batches. */
static void smallest_budget_changes_no_bit(void **state)
{
    (void)state;
    json_t *e;
    size_t i, tried = 0;
    json_array_foreach(json_object_get(manifest, "models"), i, e)
        if (ends_with(text_of(e, "name"), "-mixed") || strcmp(text_of(e, "name"), "gemma3-far") == 0 ||
            strcmp(text_of(e, "name"), "gemma2-far") == 0 || strcmp(text_of(e, "name"), "gpt-oss-far") == 0 ||
            strncmp(text_of(e, "name"), "gpt-oss-published", 17) == 0) {
            compare(e, "sim:vram=1G,clock=virtual", 7, 1);
            tried++;
        }
    assert_int_equal(tried, 14);
}

/* --- a card: LT_TEST_CARD names it ----------------------------------------------------- */

static double session_error(const lt_model *m, const json_t *e, const char *device)
{
    golden g = golden_load(e);
    float *got = malloc(g.n * m->hp.vocab * sizeof *got);
    score(m, device, 0, 0, is_float(e) ? LT_DTYPE_F32 : LT_DTYPE_F16, g.ids, g.n, got);
    double d = golden_error(&g, got, m->hp.vocab);
    free(got);
    golden_free(&g);
    return d;
}

/* As a user runs it, flash attention and tensor cores: with quantised weights no more than 1.1 times the processor's own
 * error; with floats, whose products sum halves, the classes of the ops (f32: attention alone rounds to halves). */
static double hold_card(const lt_model *m, const json_t *e, const char *card)
{
    const char *t = text_of(e, "dtype");
    bool floats = t && is_float(e);
    double on_card = session_error(m, e, card), on_cpu = session_error(m, e, "cpu");
    double most = !floats ? 1.1 * on_cpu : strcmp(t, "BF16") == 0 ? 1e-4 : strcmp(t, "F16") == 0 ? 1e-5 : 1e-6;
    printf("%-18s NMSE %.3g, the processor's %.3g\n", text_of(e, "name"), on_card, on_cpu);
    if (!(on_card <= most))
        fail_msg("%s on %s: NMSE %.4g, at most %.4g was expected", text_of(e, "name"), card, on_card, most);
    return floats ? 0 : on_card / on_cpu;
}

static void errors_on_a_card(void **state)
{
    (void)state;
    const char *card = getenv("LT_TEST_CARD");
    if (!card)
        skip();
    json_t *e;
    size_t i, real = 0;
    double worst = 0;
    json_array_foreach(json_object_get(manifest, "models"), i, e) {
        lt_model *m = golden_model(e);
        double r = hold_card(m, e, card);
        worst = r > worst ? r : worst;
        lt_model_close(m);
    }
    json_array_foreach(json_object_get(manifest, "real"), i, e) {
        const char *path = getenv(strcmp(text_of(e, "name"), "smollm2") == 0 ? "LT_TEST_SMOLLM2" : "LT_TEST_GEMMA3");
        lt_model *m;
        lt_err err;
        if (!path || !sha256_is(path, text_of(e, "sha256"))) {
            printf("%s: not there, not compared\n", text_of(e, "name"));
            continue;
        }
        if (lt_model_open(ctx, path, &m, &err) != LT_OK)
            fail_msg("%s", err.text);
        double r = hold_card(m, e, card);
        printf("%s: %.3f of the processor's error\n", text_of(e, "name"), r);
        worst = r > worst ? r : worst;
        lt_model_close(m);
        real++;
    }
    printf("on %s: worst %.3f of the processor's error, %zu real models among them\n", card, worst, real);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype_and_architecture_on_cpu),
        cmocka_unit_test(smallest_budget_changes_no_bit),
        cmocka_unit_test(errors_on_a_card),
    };
    return cmocka_run_group_tests_name("golden session", tests, golden_setup, golden_teardown);
}
