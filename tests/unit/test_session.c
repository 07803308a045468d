/* A session: score and eval agree at every batch, going back, cancelling, the finite check, reports. */
#include <time.h>

#include "base/mem.h"
#include "session_common.h"

static char llama[64], gemma[64];
static lt_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    make_model(llama, TINY_LLAMA);
    make_model(gemma, TINY_GEMMA);
    return lt_ctx_create(NULL, &ctx, NULL) != LT_OK;
}

static int teardown(void **state)
{
    (void)state;
    unlink(llama);
    unlink(gemma);
    if (lt_ctx_host_bytes(ctx))
        print_error("%lu bytes of the context are left\n", lt_ctx_host_bytes(ctx));
    int left = lt_ctx_host_bytes(ctx) != 0;
    lt_ctx_destroy(ctx);
    return left;
}

static int32_t token(int i) { return (int32_t)((uint32_t)(i * 7919 + 13) % 512); }

typedef struct rows { float *v; uint32_t vocab; size_t n; } rows;

static lt_status keep_row(void *user, size_t index, const float *logits, lt_err *err)
{
    rows *k = user;
    (void)err;
    assert_int_equal(index, k->n);
    memcpy(k->v + index * k->vocab, logits, k->vocab * sizeof(float));
    k->n++;
    return LT_OK;
}

/* All logits of n tokens: by score at one batch, and token by token by eval, on another budget. */
static void score_is_eval(const char *path, uint32_t n_ctx, int n, uint32_t batch)
{
    int32_t ids[700];
    for (int i = 0; i < n; i++)
        ids[i] = token(i);
    session_rig a = open_session(ctx, path, "cpu:threads=2", 0, n_ctx, batch, 16, NULL), b = open_session(ctx, path, "sim:vram=64M", 0, n_ctx, 1, 1, NULL);
    rows k = {.vocab = a.vocab};
    k.v = malloc((size_t)n * k.vocab * sizeof(float));
    assert_int_equal(lt_session_score(a.s, ids, (size_t)n, keep_row, &k, &a.err), LT_OK);
    assert_int_equal(k.n, n);
    for (int i = 0; i < n; i++) {
        const float *l;
        assert_int_equal(lt_session_eval(b.s, &ids[i], 1, &l, &b.err), LT_OK);
        if (memcmp(l, k.v + (size_t)i * k.vocab, k.vocab * sizeof(float)) != 0)
            fail_msg("token %d: other bits", i);
    }
    free(k.v);
    close_session(&a);
    close_session(&b);
}

static void score_is_eval_llama(void **state) { (void)state; score_is_eval(llama, 512, 300, 100); }
/* Past the window of the local layers and around their ring of pages. */
static void score_is_eval_gemma(void **state) { (void)state; score_is_eval(gemma, 1024, 690, 512); /* whose rows several threads make */ }

static void going_back(void **state)
{
    (void)state;
    session_rig r = open_session(ctx, llama, "cpu:threads=2", 0, 256, 32, 1, NULL);
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = token(i);
    const float *l;
    assert_int_equal(lt_session_eval(r.s, ids, 40, &l, &r.err), LT_OK);
    float *first = malloc(r.vocab * sizeof *first);
    memcpy(first, l, r.vocab * sizeof *first);
    assert_int_equal(lt_session_length(r.s), 40);
    assert_int_equal(lt_session_truncate(r.s, 41, &r.err), LT_E_INVALID);
    assert_int_equal(lt_session_truncate(r.s, 20, &r.err), LT_OK);
    int32_t other[20] = {3, 1, 4, 1, 5};
    assert_int_equal(lt_session_eval(r.s, other, 20, &l, &r.err), LT_OK);
    assert_int_not_equal(memcmp(first, l, r.vocab * sizeof *first), 0);
    assert_int_equal(lt_session_truncate(r.s, 20, &r.err), LT_OK);
    assert_int_equal(lt_session_eval(r.s, ids + 20, 20, &l, &r.err), LT_OK);
    assert_int_equal(memcmp(first, l, r.vocab * sizeof *first), 0);
    free(first);
    close_session(&r);
}

/* A windowed model cannot go back to where its window was overwritten; it says so, and 0 always works. */
static void going_back_in_a_window(void **state)
{
    (void)state;
    session_rig r = open_session(ctx, gemma, "cpu:threads=2", 0, 1024, 64, 1, NULL);
    assert_true(lt_model_get_info(r.m)->window > 0 && lt_model_get_info(r.m)->window <= 512);
    int32_t ids[1000];
    const float *l;
    for (int i = 0; i < 1000; i++)
        ids[i] = token(i);
    assert_int_equal(lt_session_eval(r.s, ids, 1000, &l, &r.err), LT_OK);
    float *first = malloc(r.vocab * sizeof *first);
    memcpy(first, l, r.vocab * sizeof *first);
    assert_int_equal(lt_session_truncate(r.s, 990, &r.err), LT_OK);
    assert_int_equal(lt_session_eval(r.s, ids + 990, 10, &l, &r.err), LT_OK);
    assert_int_equal(memcmp(first, l, r.vocab * sizeof *first), 0);
    lt_status s = lt_session_truncate(r.s, 10, &r.err);
    if (s == LT_OK) { /* every page still there: then the answer must be right */
        assert_int_equal(lt_session_eval(r.s, ids + 10, 990, &l, &r.err), LT_OK);
    } else {
        assert_int_equal(s, LT_E_INVALID);
        assert_non_null(strstr(r.err.text, "go back to 0"));
        assert_int_equal(lt_session_length(r.s), 1000);
        assert_int_equal(lt_session_truncate(r.s, 0, &r.err), LT_OK);
        assert_int_equal(lt_session_eval(r.s, ids, 1000, &l, &r.err), LT_OK);
    }
    assert_int_equal(memcmp(first, l, r.vocab * sizeof *first), 0);
    free(first);
    close_session(&r);
}

static void bad_tokens_and_full_context(void **state)
{
    (void)state;
    session_rig r = open_session(ctx, llama, "cpu:threads=1", 0, 256, 32, 1, NULL);
    const float *l;
    int32_t bad = 512, negative = -1, ids[257] = {0};
    assert_int_equal(lt_session_eval(r.s, &bad, 1, &l, &r.err), LT_E_INVALID);
    assert_non_null(strstr(r.err.text, "512"));
    assert_int_equal(lt_session_eval(r.s, &negative, 1, &l, &r.err), LT_E_INVALID);
    assert_int_equal(lt_session_eval(r.s, ids, 0, &l, &r.err), LT_E_INVALID);
    assert_int_equal(lt_session_eval(r.s, ids, 257, &l, &r.err), LT_E_NO_FIT);
    assert_int_equal(lt_session_eval(r.s, ids, 256, &l, &r.err), LT_OK);
    assert_int_equal(lt_session_eval(r.s, ids, 1, &l, &r.err), LT_E_NO_FIT);
    close_session(&r);
}

static void cancelling(void **state)
{
    (void)state;
    session_rig r = open_session(ctx, llama, "cpu:threads=1", 0, 256, 16, 1, NULL);
    int32_t ids[64];
    const float *l;
    for (int i = 0; i < 64; i++)
        ids[i] = token(i);
    lt_session_cancel(r.s);
    assert_int_equal(lt_session_eval(r.s, ids, 64, &l, &r.err), LT_E_CANCELED);
    assert_null(l);
    assert_int_equal(lt_session_length(r.s), 0);
    assert_int_equal(lt_session_eval(r.s, ids, 64, &l, &r.err), LT_OK);
    assert_int_equal(lt_session_check(r.s, &r.err), LT_OK);
    close_session(&r);
}

/* One weight's scale is NaN: the answer is no text, it is the name of the op that broke. */
static void what_is_not_finite_is_named(void **state)
{
    (void)state;
    char path[64];
    lt_modelfile *f;
    lt_err err;
    make_model(path, TINY_LLAMA);
    assert_int_equal(lt_modelfile_open(ctx, path, &f, &err), LT_OK);
    uint64_t at = lt_modelfile_tensor(f, "blk.1.ffn_up.weight")->offset;
    lt_modelfile_close(f);
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
    static const uint8_t nan16[2] = {0x00, 0x7e};
    assert_int_equal(fwrite(nan16, 1, 2, file), 2);
    fclose(file);
    session_rig r = open_session(ctx, path, "sim:vram=64M", 0, 256, 16, 1, NULL);
    const float *l;
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = token(i);
    assert_int_equal(lt_session_eval(r.s, ids, 20, &l, &r.err), LT_E_FORMAT);
    assert_non_null(strstr(r.err.text, "blk.1.ffn_up"));
    assert_null(l);
    close_session(&r);
    unlink(path);
}

static void nothing_is_copied_after_the_first_pass_when_all_fits(void **state)
{
    (void)state;
    job j = {llama, "sim:vram=64M", 0, 256, 16, 20, 8, LT_OFFLOAD_STREAM};
    outcome o = run_job(ctx, &j);
    assert_int_equal(o.status, LT_OK);
    assert_int_equal(o.plan.streamed_bytes, 0);
    assert_int_equal(o.report.h2d_after_first, 0);
    assert_int_equal(o.report.peak_bytes, o.plan.predicted_peak_bytes);
    assert_int_equal(o.report.prefill.tokens, 20);
    assert_int_equal(o.report.decode.tokens, 8);
    assert_true(o.report.prefill.floor_tps > 0 && o.report.decode.floor_tps > 0);
}

static void kv_types(void **state)
{
    (void)state;
    uint64_t hash[3];
    static const lt_dtype type[3] = {LT_DTYPE_F32, LT_DTYPE_F16, LT_DTYPE_Q8_0};
    for (int k = 0; k < 3; k++) {
        session_rig r = {0};
        lt_profile prof = test_profile();
        lt_plan_desc d = lt_plan_desc_default();
        d.ctx = 256;
        d.kv_dtype = type[k];
        assert_int_equal(lt_device_open(ctx, "cpu:threads=2", &r.dev, &r.err), LT_OK);
        assert_int_equal(lt_model_open(ctx, llama, &r.m, &r.err), LT_OK);
        assert_int_equal(lt_plan_create(r.m, r.dev, &prof, &d, &r.p, &r.err), LT_OK);
        assert_int_equal(lt_session_create(r.m, r.dev, r.p, NULL, &r.s, &r.err), LT_OK);
        job j = {.prompt = 30, .generate = 4};
        outcome o = {.logits_hash = 1};
        assert_int_equal(run_session(&j, r.s, lt_model_get_info(r.m)->vocab, &o), LT_OK);
        hash[k] = o.logits_hash;
        close_session(&r);
    }
    assert_true(hash[0] != hash[1] && hash[1] != hash[2]);
}

/* Phi 3's long and short angles: a context that the budget chose must not choose between them. */
static void a_budget_does_not_choose_the_angles(void **state)
{
    (void)state;
    char path[64];
    make_model(path, "--arch phi3 --layers 2 --embd 128 --ff 256 --heads 4 --kv-heads 2 --head-dim 32 --vocab 512 --ctx 4096 "
                     "--type Q8_0 --rope-factors --seed 9");
    job j = {path, "sim:vram=64M", 0, 0, 0, 40, 4, LT_OFFLOAD_STREAM};
    outcome all = run_job(ctx, &j);
    assert_int_equal(all.status, LT_OK);
    j.budget = all.plan.smallest_budget_bytes;
    outcome least = run_job(ctx, &j);
    assert_int_equal(least.status, LT_OK);
    assert_true(least.plan.ctx < all.plan.ctx);
    assert_true(least.logits_hash == all.logits_hash);
    j.budget = 0;
    j.ctx = 4096; /* asked for: other angles are right */
    outcome asked = run_job(ctx, &j);
    assert_int_equal(asked.status, LT_OK);
    assert_true(asked.logits_hash != all.logits_hash);
    unlink(path);
}

/* Between two tokens: the mapping is no memory any more, and must not be read. */
/* The prompt's next pass is copied ahead for, and a file cut under a copy is SIGBUS (docs/memory.md): until none runs. */
static void let_copies_end(lt_device *dev)
{
    lt_device_stats before, now;
    lt_device_get_stats(dev, &now);
    do {
        before = now;
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        lt_device_get_stats(dev, &now);
    } while (now.h2d_bytes != before.h2d_bytes);
}

static void a_file_that_is_cut_ends_reading_in_place(void **state)
{
    (void)state;
    char path[64];
    make_model(path, TINY_LLAMA);
    lt_device *dev;
    lt_model *m;
    lt_plan *p;
    lt_session *s;
    lt_err err;
    const float *logits;
    const int32_t ids[] = {3, 5, 7};
    lt_profile prof = test_profile();
    lt_plan_desc d = lt_plan_desc_default();
    assert_int_equal(lt_device_open(ctx, "sim:vram=64M", &dev, &err), LT_OK);
    assert_int_equal(lt_model_open(ctx, path, &m, &err), LT_OK);
    d.ctx = 64;
    assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, &err), LT_OK);
    d.budget_bytes = lt_plan_get_info(p)->smallest_budget_bytes + (64 << 10);
    d.offload = LT_OFFLOAD_MAPPED;
    lt_plan_destroy(p);
    assert_int_equal(lt_plan_create(m, dev, &prof, &d, &p, &err), LT_OK);
    assert_true(lt_plan_get_info(p)->mapped_bytes > 0);
    assert_int_equal(lt_session_create(m, dev, p, NULL, &s, &err), LT_OK);
    assert_int_equal(lt_session_eval(s, ids, 3, &logits, &err), LT_OK);
    assert_int_equal(lt_session_eval(s, ids, 1, &logits, &err), LT_OK);
    let_copies_end(dev);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(lt_session_eval(s, ids, 1, &logits, &err), LT_E_IO);
    assert_non_null(strstr(err.text, "changed while in use"));
    lt_session_destroy(s);
    lt_plan_destroy(p);
    lt_model_close(m);
    lt_device_close(dev);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_that_is_cut_ends_reading_in_place),
        cmocka_unit_test(score_is_eval_llama),
        cmocka_unit_test(score_is_eval_gemma),
        cmocka_unit_test(going_back),
        cmocka_unit_test(going_back_in_a_window),
        cmocka_unit_test(bad_tokens_and_full_context),
        cmocka_unit_test(cancelling),
        cmocka_unit_test(what_is_not_finite_is_named),
        cmocka_unit_test(nothing_is_copied_after_the_first_pass_when_all_fits),
        cmocka_unit_test(kv_types),
        cmocka_unit_test(a_budget_does_not_choose_the_angles),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
