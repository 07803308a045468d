/* test_cases_plan.c - reported problems of other tools' planners, each as a test of the whole engine on
 * synthetic models. Numbers are those of the list of cases: text_NN and memory_NN. */
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/host.h"
#include "session_common.h"

#include <math.h>

#define SIM "sim:vram=64M,clock=virtual"

static char llama[64], gemma[64];

static int make_models(void **state)
{
    (void)state;
    make_model(llama, TINY_LLAMA);
    make_model(gemma, TINY_GEMMA);
    return 0;
}

static int drop_models(void **state)
{
    (void)state;
    unlink(llama);
    unlink(gemma);
    return 0;
}

/* A plan alone, closed again; *info only on success. */
static lt_status plan_only(const char *model, const char *device, const lt_plan_desc *d, lt_plan_info *info, lt_err *err)
{
    lt_ctx *ctx;
    lt_device *dev;
    lt_model *m;
    lt_plan *p;
    lt_profile prof = test_profile();
    assert_int_equal(lt_ctx_create(NULL, &ctx, err), LT_OK);
    assert_int_equal(lt_device_open(ctx, device, &dev, err), LT_OK);
    assert_int_equal(lt_model_open(ctx, model, &m, err), LT_OK);
    lt_status s = lt_plan_create(m, dev, &prof, d, &p, err);
    if (s == LT_OK) {
        *info = *lt_plan_get_info(p);
        lt_plan_destroy(p);
    }
    lt_model_close(m);
    lt_device_close(dev);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
    return s;
}

static lt_plan_info must_plan(const char *model, const char *device, const lt_plan_desc *d)
{
    lt_plan_info info;
    lt_err err;
    if (plan_only(model, device, d, &info, &err) != LT_OK)
        fail_msg("%s", err.text);
    return info;
}

static lt_ctx *new_ctx(void)
{
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    return ctx;
}

static void text_01_auto_context_never_evicts_a_layer_that_fitted(void **state)
{
    (void)state;
    const char *models[] = {llama, gemma};
    for (int k = 0; k < 2; k++) {
        lt_plan_desc d = lt_plan_desc_default();
        uint64_t all = must_plan(models[k], SIM, &d).predicted_peak_bytes;
        uint32_t last_ctx = 0;
        int resident = 0;
        for (uint64_t budget = all / 6; budget <= all + (1 << 16); budget += all / 97) {
            lt_plan_info automatic, fixed;
            lt_err err;
            d = lt_plan_desc_default();
            d.budget_bytes = budget;
            if (plan_only(models[k], SIM, &d, &automatic, &err) != LT_OK)
                continue;
            assert_true(automatic.predicted_peak_bytes <= budget); /* after rounding, too */
            assert_true(automatic.ctx >= last_ctx || automatic.streamed_bytes == 0 || last_ctx == 0);
            last_ctx = automatic.streamed_bytes ? automatic.ctx : last_ctx;
            for (uint32_t ctx = 256; ctx <= 1024; ctx *= 2) { /* does any context keep all? then so does the chosen one */
                d.ctx = ctx;
                d.batch = 64;
                if (plan_only(models[k], SIM, &d, &fixed, &err) == LT_OK && fixed.streamed_bytes == 0)
                    assert_int_equal(automatic.streamed_bytes, 0);
            }
            resident += automatic.streamed_bytes == 0;
        }
        assert_true(resident > 3);
    }
}

static void text_02_every_allocation_is_in_the_plan(void **state)
{
    (void)state;
    const char *models[] = {llama, gemma};
    for (int k = 0; k < 2; k++) {
        lt_plan_desc d = lt_plan_desc_default();
        d.ctx = 512;
        lt_plan_info full = must_plan(models[k], SIM, &d);
        uint64_t budgets[] = {0, full.smallest_budget_bytes + full.weight_bytes / 2, full.smallest_budget_bytes};
        for (int b = 0; b < 3; b++) {
            lt_ctx *ctx = new_ctx();
            lt_device *dev;
            lt_model *m;
            lt_plan *p;
            lt_session *s;
            lt_profile prof = test_profile();
            d.budget_bytes = budgets[b];
            assert_int_equal(lt_device_open(ctx, SIM, &dev, NULL), LT_OK);
            assert_int_equal(lt_model_open(ctx, models[k], &m, NULL), LT_OK);
            assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, NULL), LT_OK);
            assert_int_equal(lt_session_create(m, dev, p, NULL, &s, NULL), LT_OK);
            const lt_plan_info *i = lt_plan_get_info(p);
            lt_report before, after;
            lt_session_get_report(s, &before);
            const float *logits;
            int32_t ids[512];
            for (int t = 0; t < 512; t++)
                ids[t] = t * 31 % 512;
            /* Requests of every kind: long, short, one token, back, to the end of the context. */
            size_t lengths[] = {3, 1, 200, 17, 1, 512};
            for (int r = 0; r < 6; r++) {
                assert_int_equal(lt_session_truncate(s, 0, NULL), LT_OK);
                assert_int_equal(lt_session_eval(s, ids, lengths[r], &logits, NULL), LT_OK);
            }
            lt_session_get_report(s, &after);
            assert_int_equal(after.device.committed_bytes, before.device.committed_bytes);
            assert_int_equal(after.device.peak_committed_bytes, i->predicted_peak_bytes - i->fixed_bytes);
            assert_true(after.pool.peak_live <= i->predicted_peak_bytes - i->fixed_bytes);
            assert_true(after.pool.peak_by_use[LT_USE_KV] <= i->kv_bytes);
            assert_true(after.pool.peak_by_use[LT_USE_ACTIVATION] <= i->activation_bytes);
            assert_true(after.pool.peak_by_use[LT_USE_STAGING] <= i->io_bytes);
            assert_true(after.pool.peak_by_use[LT_USE_RING] <= i->ring_bytes);
            assert_int_equal(after.pool.allocs, before.pool.allocs);
            assert_int_equal(after.pool.failures, 0);
            assert_int_equal(lt_session_check(s, NULL), LT_OK);
            lt_session_destroy(s);
            lt_plan_destroy(p);
            lt_model_close(m);
            lt_device_close(dev);
            assert_int_equal(lt_ctx_host_bytes(ctx), 0);
            lt_ctx_destroy(ctx);
        }
    }
}

static void text_04_the_plan_uses_the_context_that_will_be_used(void **state)
{
    (void)state;
    lt_plan_desc d = lt_plan_desc_default();
    lt_plan_info whole = must_plan(llama, SIM, &d);
    assert_int_equal(whole.ctx, 512); /* what the model was made for */
    d.ctx_least = 20;
    d.ctx_most = 60;
    lt_plan_info used = must_plan(llama, SIM, &d);
    assert_int_equal(used.ctx, 60);
    assert_true(used.kv_bytes < whole.kv_bytes);
    d.ctx_most = 1u << 30;
    assert_int_equal(must_plan(llama, SIM, &d).ctx, 512);
    d.ctx_least = 400; /* at the least budget too */
    d.budget_bytes = must_plan(llama, SIM, &d).smallest_budget_bytes;
    assert_true(must_plan(llama, SIM, &d).ctx >= 400);
    lt_err err;
    d.budget_bytes--;
    assert_int_equal(plan_only(llama, SIM, &d, &used, &err), LT_E_NO_FIT);
}

static void text_05_the_reserve_is_left_and_little_more(void **state)
{
    (void)state;
    char model[64];
    make_model(model, "--arch llama --preset 1b --layers 4 --vocab 2000 --ctx 8192 --type Q8_0");
    for (uint64_t reserve = 0; reserve <= 220; reserve += 44) {
        lt_plan_desc d = lt_plan_desc_default();
        d.reserve_bytes = reserve << 20;
        lt_plan_info i = must_plan(model, "sim:vram=256M", &d);
        uint64_t left = (UINT64_C(256) << 20) - i.predicted_peak_bytes;
        assert_true(left >= d.reserve_bytes);
        if (i.streamed_bytes) /* with all weights resident nothing more is wanted */
            assert_true(left <= d.reserve_bytes + (64 << 20));
    }
    unlink(model);
}

static void text_07_batch_and_context_shrink_until_it_starts(void **state)
{
    (void)state;
    lt_plan_desc d = lt_plan_desc_default();
    lt_plan_info full = must_plan(gemma, SIM, &d);
    assert_int_equal(full.batch, 512);
    lt_ctx *ctx = new_ctx();
    uint32_t batch = UINT32_MAX, ctx_len = UINT32_MAX;
    for (uint64_t budget = full.predicted_peak_bytes; budget > full.smallest_budget_bytes; budget = budget * 3 / 4) {
        d.budget_bytes = budget;
        lt_plan_info i = must_plan(gemma, SIM, &d);
        batch = i.batch < batch ? i.batch : batch;
        ctx_len = i.ctx < ctx_len ? i.ctx : ctx_len;
    }
    assert_true(batch < 64 && ctx_len < 512);
    job j = {gemma, SIM, full.smallest_budget_bytes, 0, 0, 9, 3, LT_OFFLOAD_STREAM};
    outcome o = must_run(ctx, &j);
    assert_int_equal(o.n, 3);
    lt_ctx_destroy(ctx);
}

static void text_08_out_of_memory_is_reported_as_that(void **state)
{
    (void)state;
    lt_ctx *ctx = new_ctx();
    lt_device *dev;
    lt_pool *hog;
    lt_block b;
    lt_model *m;
    lt_plan *p;
    lt_session *s;
    lt_err err;
    lt_profile prof = test_profile();
    assert_int_equal(lt_device_open(ctx, "sim:vram=8M", &dev, &err), LT_OK);
    assert_int_equal(lt_model_open(ctx, llama, &m, &err), LT_OK);
    assert_int_equal(lt_plan_create(m, dev, &prof, NULL, &p, &err), LT_OK);
    /* Someone takes the memory between plan and load. */
    lt_pool_desc pd = lt_pool_desc_default();
    pd.limit_bytes = (8 << 20) - (256 << 10);
    assert_int_equal(lt_pool_create(dev, &pd, &hog, &err), LT_OK);
    assert_int_equal(lt_pool_alloc(hog, pd.limit_bytes, 0, LT_USE_OTHER, NULL, &b, &err), LT_OK);
    assert_int_equal(lt_session_create(m, dev, p, NULL, &s, &err), LT_E_DEVICE_OOM);
    assert_non_null(strstr(err.text, "arena"));  /* the consumer */
    assert_non_null(strstr(err.text, "free"));
    char wanted[24];
    snprintf(wanted, sizeof wanted, "%lu", lt_plan_get_info(p)->predicted_peak_bytes - lt_plan_get_info(p)->fixed_bytes);
    assert_non_null(strstr(err.text, wanted));
    lt_pool_free(hog, b, NULL);
    lt_pool_destroy(hog);
    assert_int_equal(lt_session_create(m, dev, p, NULL, &s, &err), LT_OK); /* and works once it is given back */
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_model_close(m);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    /* A budget that is too small says how much is missing. */
    lt_plan_desc d = lt_plan_desc_default();
    lt_plan_info i = must_plan(llama, SIM, &d);
    d.budget_bytes = i.smallest_budget_bytes - 4096;
    assert_int_equal(plan_only(llama, SIM, &d, &i, &err), LT_E_NO_FIT);
    assert_non_null(strstr(err.text, "4096 bytes"));
}

static void text_19_logits_are_equal_at_every_split(void **state)
{
    (void)state;
    const char *models[] = {llama, gemma};
    lt_ctx *ctx = new_ctx();
    for (int k = 0; k < 2; k++) {
        job j = {models[k], SIM, 0, 512, 16, 40, 12, LT_OFFLOAD_STREAM};
        outcome want = must_run(ctx, &j);
        assert_int_equal(want.plan.streamed_bytes, 0);
        uint64_t least = want.plan.smallest_budget_bytes, most = want.plan.predicted_peak_bytes;
        int splits = 0;
        for (int step = 0; step <= 12; step++) {
            j.budget = least + (most - least) * (uint64_t)step / 12;
            outcome got = must_run(ctx, &j);
            assert_true(got.logits_hash == want.logits_hash);
            assert_memory_equal(got.ids, want.ids, sizeof want.ids);
            splits += got.plan.streamed_bytes > 0;
        }
        assert_true(splits >= 6);
    }
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

typedef struct kept { double nll, se, sq; const int32_t *ids; size_t n; float *ref; uint32_t vocab; bool first; } kept;

static lt_status keep_logits(void *user, size_t index, const float *v, lt_err *err)
{
    kept *k = user;
    (void)err;
    double top = v[0], sum = 0;
    for (uint32_t i = 1; i < k->vocab; i++)
        top = v[i] > top ? v[i] : top;
    for (uint32_t i = 0; i < k->vocab; i++) {
        float *ref = &k->ref[index * k->vocab + i];
        sum += exp((double)v[i] - top);
        if (k->first)
            *ref = v[i];
        k->se += ((double)v[i] - *ref) * ((double)v[i] - *ref);
        k->sq += (double)*ref * *ref;
    }
    if (index + 1 < k->n)
        k->nll += log(sum) + top - v[k->ids[index + 1]];
    return LT_OK;
}

static void text_20_quantised_kv_changes_little(void **state)
{
    (void)state;
    enum { N = 300 };
    static const lt_dtype types[] = {LT_DTYPE_F32, LT_DTYPE_F16, LT_DTYPE_Q8_0};
    static const double nmse[] = {0, 1e-6, 2e-4}, delta[] = {0, 1e-4, 1e-3};
    /* Weights in F32: activations are not rounded to 8 bits, whose noise would hide that of the KV. */
    char models[2][64];
    make_model(models[0], TINY_LLAMA " --type F32");
    make_model(models[1], TINY_GEMMA " --type F32");
    for (int k = 0; k < 2; k++) {
        double base = 0;
        int32_t ids[N];
        kept kp = {.ids = ids, .n = N};
        for (int i = 0; i < N; i++)
            ids[i] = (i * i * 7 + i * 3) % 512;
        for (int t = 0; t < 3; t++) {
            lt_ctx *ctx = new_ctx();
            lt_device *dev;
            lt_model *m;
            lt_plan *p;
            lt_session *s;
            lt_err err;
            lt_profile prof = test_profile();
            lt_plan_desc d = lt_plan_desc_default();
            d.kv_dtype = types[t];
            assert_int_equal(lt_device_open(ctx, SIM, &dev, &err), LT_OK);
            assert_int_equal(lt_model_open(ctx, models[k], &m, &err), LT_OK);
            assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, &err), LT_OK);
            assert_int_equal(lt_session_create(m, dev, p, NULL, &s, &err), LT_OK);
            kp.vocab = lt_model_get_info(m)->vocab;
            kp.first = t == 0;
            kp.nll = kp.se = kp.sq = 0;
            if (!kp.ref)
                kp.ref = malloc((size_t)N * kp.vocab * sizeof *kp.ref);
            assert_non_null(kp.ref);
            assert_int_equal(lt_session_score(s, ids, N, keep_logits, &kp, &err), LT_OK);
            base = t ? base : kp.nll;
            print_message("%s: KV %s: NMSE %.2e, perplexity %+.4f%%\n", k ? "gemma3" : "llama", lt_dtype_get(types[t])->name, kp.se / kp.sq,
                          100 * (exp((kp.nll - base) / N) - 1));
            assert_true(kp.se / kp.sq <= nmse[t]);
            assert_true(fabs(exp((kp.nll - base) / N) - 1) <= delta[t]);
            assert_true(t == 0 || kp.se > 0); /* it is another type */
            lt_session_destroy(s);
            lt_plan_destroy(p);
            lt_model_close(m);
            lt_device_close(dev);
            lt_ctx_destroy(ctx);
        }
        free(kp.ref);
        unlink(models[k]);
    }
}

/* Decode of a model on a virtual clock: device time, copy time and bytes of the passes after warming up. */
typedef struct steady { double seconds, copy, compute; uint64_t bytes, after_first; lt_plan_info plan; } steady;

static steady decode_steadily(const char *model, const char *device, double share)
{
    lt_ctx *ctx = new_ctx();
    lt_device *dev;
    lt_model *m;
    lt_plan *p;
    lt_session *s;
    lt_err err = {0};
    lt_profile prof;
    lt_report a, b;
    lt_plan_desc d = lt_plan_desc_default();
    d.ctx = 256;
    d.batch = 8;
    const float *logits;
    int32_t id = 1;
    assert_int_equal(lt_device_open(ctx, device, &dev, &err), LT_OK);
    prof = test_profile();
    assert_int_equal(lt_model_open(ctx, model, &m, &err), LT_OK);
    assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, &err), LT_OK);
    if (share < 1) {
        const lt_plan_info *i = lt_plan_get_info(p);
        d.budget_bytes = i->predicted_peak_bytes - (uint64_t)((1 - share) * (double)i->resident_bytes);
        lt_plan_destroy(p);
        assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, &err), LT_OK);
    }
    steady r = {.plan = *lt_plan_get_info(p)};
    assert_int_equal(lt_session_create(m, dev, p, NULL, &s, &err), LT_OK);
    for (int t = 0; t < 4; t++)
        assert_int_equal(lt_session_eval(s, &id, 1, &logits, &err), LT_OK);
    lt_session_get_report(s, &a);
    for (int t = 0; t < 12; t++)
        assert_int_equal(lt_session_eval(s, &id, 1, &logits, &err), LT_OK);
    lt_session_get_report(s, &b);
    r.seconds = (double)(b.device.now_ns - a.device.now_ns) * 1e-9;
    r.copy = (double)(b.device.copy_busy_ns - a.device.copy_busy_ns) * 1e-9;
    r.compute = (double)(b.device.compute_busy_ns - a.device.compute_busy_ns) * 1e-9;
    r.bytes = b.residency.bytes_in - a.residency.bytes_in;
    r.after_first = b.h2d_after_first;
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_model_close(m);
    lt_device_close(dev);
    lt_ctx_destroy(ctx);
    return r;
}

#define WIDE "--arch llama --layers 12 --embd 512 --ff 1536 --heads 8 --kv-heads 4 --head-dim 64 --vocab 1024 --ctx 512 --type Q8_0 --seed 9"

static void memory_16_copies_hide_behind_compute(void **state)
{
    (void)state;
    char model[64];
    make_model(model, WIDE);
    /* Half of the weights are streamed. Compute at 1.2 times the copies' need: their time hides. */
    steady r = decode_steadily(model, "sim:vram=256M,h2d=1G,latency=0us,clock=virtual,compute=1530M", 0.5);
    double share = (double)r.bytes / 12 / (double)r.plan.weight_bytes;
    double hidden = 1 - (r.seconds - r.compute) / r.copy;
    print_message("compute %.3f ms, copies %.3f ms, step %.3f ms a token, %.0f%% streamed: %.1f%% of copy time hidden\n", r.compute / 12 * 1e3,
                  r.copy / 12 * 1e3, r.seconds / 12 * 1e3, 100 * share, 100 * hidden);
    assert_true(r.compute >= 1.15 * r.copy && r.compute <= 1.5 * r.copy);
    assert_true(hidden >= 0.95);
    /* The link bounds: it is never idle for long. */
    r = decode_steadily(model, "sim:vram=256M,h2d=1G,latency=0us,clock=virtual,compute=20G", 0.5);
    double rate = (double)r.bytes / r.seconds / (double)(UINT64_C(1) << 30);
    print_message("bound by the link: %.1f%% of its rate\n", 100 * rate);
    /* Between two looks the bytes copied ahead may grow by what the ring holds. */
    assert_true(rate >= 0.95 && rate <= 1.001 + (double)r.plan.ring_bytes / (double)r.bytes);
    unlink(model);
}

/* A pass brings the streamed weights over the link whole: a long prompt is one pass, not several. */
static void memory_16_a_long_prompt_streams_the_weights_once(void **state)
{
    (void)state;
    char model[64];
    make_model(model, WIDE " --ctx 2048");
    lt_plan_desc d = lt_plan_desc_default();
    d.expect_prompt = 1500;
    d.ctx = 2048;
    lt_plan_info all = must_plan(model, "sim:vram=256M,clock=virtual", &d);
    assert_int_equal(all.batch, 512); /* nothing streams: more rows at a time would only take room */
    d.budget_bytes = all.predicted_peak_bytes - all.resident_bytes / 4;
    lt_plan_info some = must_plan(model, "sim:vram=256M,clock=virtual", &d);
    assert_true(some.streamed_bytes > 0);
    assert_true(some.batch >= 750); /* as many as activations have room for */
    d.batch = 512;
    lt_plan_info asked = must_plan(model, "sim:vram=256M,clock=virtual", &d);
    assert_int_equal(asked.batch, 512);
    assert_true(some.predicted_prefill_tps > asked.predicted_prefill_tps);
    unlink(model);
}

static void memory_19_nothing_is_copied_when_all_fits(void **state)
{
    (void)state;
    char model[64];
    make_model(model, WIDE);
    steady r = decode_steadily(model, "sim:vram=256M,h2d=1G,clock=virtual,compute=10G", 1);
    assert_int_equal(r.plan.streamed_bytes, 0);
    assert_int_equal(r.bytes, 0);
    assert_int_equal(r.after_first, 0);
    unlink(model);
}

static void text_11_a_larger_budget_is_never_slower(void **state)
{
    (void)state;
    char model[64];
    make_model(model, WIDE);
    double last = 1e30;
    for (double share = 0.2; share <= 1.0; share += 0.2) {
        steady r = decode_steadily(model, "sim:vram=256M,h2d=1G,latency=10us,clock=virtual,compute=4G", share > 0.99 ? 1 : share);
        print_message("%.0f%% resident: %.3f ms a token\n", 100 * share, r.seconds / 12 * 1e3);
        assert_true(r.seconds <= last * 1.05);
        last = r.seconds;
    }
    unlink(model);
}

/* The address sanitizer's mlock does nothing: there the kernel has nothing to count. */
static bool mlock_works(void)
{
    static char page[8192];
    uint64_t before = lt__host_locked();
    bool works = mlock(page, sizeof page) == 0 && lt__host_locked() > before;
    munlock(page, sizeof page);
    return works;
}

/* Weights can be held in RAM, what is not is refused by name, and what lies on swap is in the report. */
static void text_13_weights_stay_in_ram_and_swap_is_told(void **state)
{
    (void)state;
    lt_ctx *c;
    lt_device *dev;
    lt_addr at;
    lt_err err;
    const uint64_t bytes = 256 << 10;
    assert_int_equal(lt_ctx_create(NULL, &c, NULL), LT_OK);
    assert_int_equal(lt_device_open(c, "cpu:threads=1,lock=2", &dev, &err), LT_E_INVALID);
    assert_non_null(strstr(err.text, "lock=2"));
    assert_int_equal(lt_device_open(c, "cpu:threads=1,lock=1", &dev, &err), LT_OK);
    assert_int_equal(lt_device_reserve(dev, bytes, &at, &err), LT_OK);
    uint64_t before = lt__host_locked();
    struct rlimit old, none;
    getrlimit(RLIMIT_MEMLOCK, &old);
    if (geteuid() != 0) { /* the limit does not bind root */
        none = (struct rlimit){0, old.rlim_max};
        setrlimit(RLIMIT_MEMLOCK, &none);
        assert_int_equal(lt_device_commit(dev, at, bytes, &err), LT_E_HOST_OOM);
        assert_non_null(strstr(err.text, "ulimit -l"));
        setrlimit(RLIMIT_MEMLOCK, &old);
    }
    assert_int_equal(lt_device_commit(dev, at, bytes, &err), LT_OK);
    if (mlock_works())
        assert_int_equal(lt__host_locked(), before + bytes);
    else
        print_message("locked memory is not counted under this sanitizer\n");
    lt_device_decommit(dev, at, bytes);
    assert_int_equal(lt__host_locked(), before);
    lt_device_unreserve(dev, at, bytes);
    lt_device_close(dev);
    lt_ctx_destroy(c);
    /* Nothing was swapped out by this test itself; the report says what the kernel says. */
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long kib = 0;
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmSwap: %lu", &kib);
    fclose(f);
    assert_int_equal(lt__host_swapped(), kib << 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_01_auto_context_never_evicts_a_layer_that_fitted),
        cmocka_unit_test(text_02_every_allocation_is_in_the_plan),
        cmocka_unit_test(text_04_the_plan_uses_the_context_that_will_be_used),
        cmocka_unit_test(text_05_the_reserve_is_left_and_little_more),
        cmocka_unit_test(text_07_batch_and_context_shrink_until_it_starts),
        cmocka_unit_test(text_08_out_of_memory_is_reported_as_that),
        cmocka_unit_test(text_11_a_larger_budget_is_never_slower),
        cmocka_unit_test(text_13_weights_stay_in_ram_and_swap_is_told),
        cmocka_unit_test(text_19_logits_are_equal_at_every_split),
        cmocka_unit_test(text_20_quantised_kv_changes_little),
        cmocka_unit_test(memory_16_copies_hide_behind_compute),
        cmocka_unit_test(memory_16_a_long_prompt_streams_the_weights_once),
        cmocka_unit_test(memory_19_nothing_is_copied_when_all_fits),
    };
    return cmocka_run_group_tests(tests, make_models, drop_models);
}
