/* test_cases_experts.c - reported problems of other tools with mixtures of experts, each as a test of the whole engine on
 * synthetic models. Numbers are those of the list of cases. */
#include "session_common.h"

#define SIZES "--layers 6 --embd 128 --heads 4 --kv-heads 2 --head-dim 32 --vocab 512 --ctx 512 --experts 16 --experts-used 4 --seed 11 "
#define GPT_OSS "--arch gpt-oss --expert-ff 128 --type Q8_0 --type-of exps.weight=MXFP4 " SIZES
#define QWEN3 "--arch qwen3moe --expert-ff 96 --type Q8_0 " SIZES
#define OLMOE "--arch olmoe --ff 64 --type F16 " SIZES
#define MIXTRAL "--arch llama --ff 256 --type Q4_0 " SIZES

static bool is_expert(const char *tensor) { return strstr(tensor, "_exps.weight") != NULL; }

/* Bytes of matrices that do not stay, of experts that do and that do not, and the largest expert weight. */
typedef struct split { uint64_t matrices_out, experts_in, experts_out, largest; lt_plan_info info; } split;

static split split_at(const char *model, const char *device, uint64_t budget, const lt_profile *prof)
{
    split s = {0};
    lt_ctx *ctx;
    lt_device *dev;
    lt_model *m;
    lt_plan *p;
    lt_err err;
    lt_plan_desc d = lt_plan_desc_default();
    d.budget_bytes = budget, d.ctx = 256, d.batch = 16;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    if (lt_device_open(ctx, device, &dev, &err) != LT_OK || lt_model_open(ctx, model, &m, &err) != LT_OK ||
        lt_plan_create(m, dev, prof, &d, &p, &err) != LT_OK)
        fail_msg("%s", err.text);
    s.info = *lt_plan_get_info(p);
    for (size_t i = 0; i < lt_plan_item_count(p); i++) {
        lt_plan_item t = lt_plan_item_at(p, i);
        bool out = t.place != LT_PLACE_RESIDENT;
        *(is_expert(t.tensor) ? out ? &s.experts_out : &s.experts_in : out ? &s.matrices_out : &(uint64_t){0}) += t.bytes;
        if (is_expert(t.tensor) && out && t.bytes > s.largest)
            s.largest = t.bytes;
    }
    lt_plan_destroy(p);
    lt_model_close(m);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return s;
}

/* Attention and what else every token uses stays first, then as many experts as there is room for. */
static void text_16_matrices_stay_and_experts_fill_the_card(void **state)
{
    (void)state;
    const char *device = "sim:vram=64M", *models[] = {GPT_OSS, QWEN3};
    for (int k = 0; k < 2; k++) {
        char model[64];
        lt_profile prof = test_profile();
        make_model(model, models[k]);
        split all = split_at(model, device, 0, &prof);
        assert_int_equal(all.experts_out + all.matrices_out, 0);
        uint64_t least = all.info.smallest_budget_bytes, most = all.info.predicted_peak_bytes, last_in = 0;
        int mixed = 0, mapped = 0;
        for (int step = 0; step <= 24; step++) {
            uint64_t budget = least + (most - least) * (uint64_t)step / 24;
            split s = split_at(model, device, budget, &prof);
            if (s.matrices_out)
                assert_int_equal(s.experts_in, 0);
            if (!s.matrices_out && s.experts_out) { /* less room is left than the next slice wants */
                assert_true(budget - s.info.predicted_peak_bytes < s.largest + (UINT64_C(64) << 10));
                mixed++;
            }
            mapped += s.info.mapped_bytes == s.experts_out && s.experts_out > 0;
            assert_true(s.experts_in + s.largest >= last_in); /* a smaller ring may cost a slice */
            last_in = s.experts_in;
        }
        assert_true(mixed >= 6);
        assert_true(mapped >= 6); /* a token reads what it uses of them in place */
        unlink(model);
    }
}

/* A token brings four of sixteen experts over the link, not sixteen, and the plan says so beforehand. */
static void text_16_a_token_brings_the_experts_it_uses(void **state)
{
    (void)state;
    char model[64];
    make_model(model, GPT_OSS);
    lt_profile prof = test_profile();
    prof.link_rate = prof.mapped_rate = (double)(64 << 20);
    const char *device = "sim:vram=64M,h2d=64M,latency=0us,clock=virtual,compute=2G";
    split all = split_at(model, device, 0, &prof), few = split_at(model, device, all.info.predicted_peak_bytes - all.experts_in * 3 / 4, &prof);
    assert_int_equal(few.matrices_out, 0);
    assert_true(few.experts_out > all.experts_in / 2);
    lt_ctx *ctx;
    lt_device *dev;
    lt_device_stats before, after;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    session_rig r = open_session(ctx, model, device, all.info.predicted_peak_bytes - all.experts_in * 3 / 4, 256, 16, 1, NULL);
    dev = r.dev;
    const float *logits;
    int32_t id = 7;
    enum { WARM = 4, TOKENS = 24 };
    for (int i = 0; i < WARM + TOKENS; i++) {
        if (i == WARM)
            lt_device_get_stats(dev, &before);
        if (lt_session_eval(r.s, &id, 1, &logits, &r.err) != LT_OK)
            fail_msg("%s", r.err.text);
        id = (int32_t)((id * 31 + 5) % 512);
    }
    lt_device_get_stats(dev, &after);
    double seconds = (double)(after.compute_busy_ns - before.compute_busy_ns) * 1e-9 / TOKENS;
    double used = (double)few.experts_out / 4 / prof.link_rate, whole = (double)few.experts_out / prof.link_rate;
    print_message("%.2f ms a token; %.2f to bring a quarter of the experts outside, %.2f all of them; predicted %.2f\n", seconds * 1e3, used * 1e3,
                  whole * 1e3, 1e3 / few.info.predicted_decode_tps);
    assert_int_equal(after.h2d_bytes - before.h2d_bytes < 64 * 1024, 1); /* ids, positions: no weight is copied */
    assert_true(seconds < 0.5 * whole);
    assert_true(fabs(1 / few.info.predicted_decode_tps / seconds - 1) < 0.25); /* which experts are outside is chance */
    close_session(&r);
    lt_ctx_destroy(ctx);
    unlink(model);
}

/* The same bits wherever experts lie, and also where the host refuses to lock what would be read in place. */
static void text_19_logits_are_equal_wherever_experts_lie(void **state)
{
    (void)state;
    const char *models[] = {GPT_OSS, QWEN3, OLMOE, MIXTRAL};
    const char *devices[] = {"sim:vram=64M,threads=2", "sim:vram=64M,threads=2,fail=pin:1", "cpu:threads=2,mem=1G"};
    /* A sanitizer keeps what was freed, so that what this process holds, the least on cpu, grows from run to run. */
    bool grows = getenv("ASAN_OPTIONS") || getenv("LT_SANITIZED");
    for (int k = 0; k < 4; k++) {
        char model[64];
        lt_ctx *ctx;
        make_model(model, models[k]);
        assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
        job j = {model, devices[0], 0, 256, 16, 40, 12, LT_OFFLOAD_STREAM};
        outcome want = must_run(ctx, &j);
        assert_int_equal(want.plan.streamed_bytes, 0);
        int streamed = 0, mapped = 0;
        for (int d = 0; d < 3; d++) {
            j.device = devices[d], j.budget = 0;
            outcome all = must_run(ctx, &j);
            assert_true(all.logits_hash == want.logits_hash);
            for (int step = d == 2; step <= 6 && !(d == 2 && grows); step++) { /* on cpu the least is what this process holds and more, and changes */
                j.budget = all.plan.smallest_budget_bytes + (all.plan.predicted_peak_bytes - all.plan.smallest_budget_bytes) * (uint64_t)step / 6;
                outcome got = must_run(ctx, &j);
                assert_true(got.logits_hash == want.logits_hash);
                assert_memory_equal(got.ids, want.ids, sizeof want.ids);
                streamed += got.plan.streamed_bytes > 0;
                mapped += got.report.mapped_bytes > 0;
            }
        }
        assert_true(streamed >= 12);
        assert_true(mapped >= 4);
        assert_int_equal(lt_ctx_host_bytes(ctx), 0);
        lt_ctx_destroy(ctx);
        unlink(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_16_matrices_stay_and_experts_fill_the_card),
        cmocka_unit_test(text_16_a_token_brings_the_experts_it_uses),
        cmocka_unit_test(text_19_logits_are_equal_wherever_experts_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
