/* Lists of launches on a card: small models of every kind give the same bits as graphs, fused, and launch by launch. */
#include "session_common.h"

#define TINY " --layers 3 --embd 256 --ff 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 1024 "
/* Windows, odd widths, heads that are no multiple of 32, grouped queries. */
static const char *const models[] = {
    "--arch llama --type Q4_K --seed 1" TINY,
    "--arch llama --type F16 --seed 2" TINY,
    "--arch llama --type Q8_0 --seed 3 --layers 2 --embd 160 --ff 288 --heads 4 --kv-heads 1 --head-dim 40 --vocab 333 --ctx 1024",
    "--arch llama --type F32 --seed 4 --layers 2 --embd 72 --ff 100 --heads 3 --kv-heads 3 --head-dim 24 --vocab 301 --ctx 1024",
    "--arch qwen2 --type Q5_K --seed 5" TINY,
    "--arch qwen3 --type Q6_K --seed 6" TINY,
    "--arch qwen3 --type Q4_0 --type-of attn_v=Q8_0 --type-of ffn_down=F16 --seed 7" TINY,
    "--arch gemma3 --type Q4_K --seed 8 --layers 7 --embd 256 --ff 512 --heads 4 --kv-heads 2 --head-dim 64 --vocab 512 --ctx 1024",
    "--arch gemma3 --type BF16 --seed 9 --layers 6 --embd 128 --ff 256 --heads 4 --kv-heads 1 --head-dim 256 --vocab 512 --ctx 1024",
    "--arch gemma2 --type Q4_K --seed 14 --attn-cap 2 --logit-cap 5" TINY,
    "--arch gemma2 --type F16 --seed 15 --layers 4 --embd 128 --ff 256 --heads 4 --kv-heads 4 --head-dim 64 --vocab 512 --ctx 1024",
    "--arch phi3 --type Q4_K --seed 10" TINY,
    "--arch llama --type Q4_K --seed 11 --layers 2 --embd 5120 --ff 256 --heads 2 --kv-heads 1 --head-dim 128 --vocab 512 --ctx 1024",
    "--arch llama --type Q8_0 --seed 13 --layers 8 --embd 512 --ff 2048 --heads 8 --kv-heads 8 --head-dim 64 --vocab 512 --ctx 1024",
    "--arch gpt-oss --type Q8_0 --type-of exps.weight=MXFP4 --experts 8 --experts-used 3 --expert-ff 128 --seed 16" TINY,
    "--arch qwen3moe --type Q4_K --experts 32 --experts-used 8 --expert-ff 512 --seed 17" TINY,
    "--arch llama --type F16 --experts 4 --experts-used 2 --seed 18" TINY,
    "--arch gemma3 --type Q8_0 --seed 12 --layers 2 --embd 2176 --ff 256 --heads 2 --kv-heads 2 --head-dim 96 --vocab 512 --ctx 1024",
};
static const char *const ways[] = {"graphs=0,fuse=0", "graphs=1,fuse=0", "graphs=0,fuse=1", "graphs=1,fuse=1,early=0", "graphs=1,fuse=1,early=1"};
enum { MODELS = sizeof models / sizeof *models, WAYS = sizeof ways / sizeof *ways };

static lt_ctx *ctx;
static const char *card;

static outcome run(const char *path, const char *way, uint64_t budget, uint32_t batch, int prompt)
{
    char spec[256];
    snprintf(spec, sizeof spec, "%s%s%s", card, strchr(card, ':') ? "," : ":", way);
    job j = {.model = path, .device = spec, .budget = budget, .ctx = 700, .batch = batch, .prompt = prompt, .generate = 48};
    outcome o = run_job(ctx, &j);
    if (o.status != LT_OK)
        fail_msg("%s: %s", spec, o.err.text);
    return o;
}

static void same(const outcome *a, const outcome *b, const char *model, const char *way, const char *what)
{
    if (a->logits_hash != b->logits_hash || memcmp(a->ids, b->ids, sizeof a->ids) != 0)
        fail_msg("%s: %s: other bits %s", model, way, what);
}

/* LT_CONFORMANCE_PART=K/N: every Nth model from the Kth on, for tools under which all take too long, most of all to load
 * kernels again: the first way and the last one, and the long prompt alone. */
static void every_way_gives_the_same_bits(void **state)
{
    (void)state;
    int streamed = 0, mapped = 0, part = 1, parts = 1;
    const char *text = getenv("LT_CONFORMANCE_PART");
    if (text && (sscanf(text, "%d/%d", &part, &parts) != 2 || part < 1 || part > parts))
        fail_msg("LT_CONFORMANCE_PART=%s: expected K/N, such as 1/8", text);
    for (int m = part - 1; m < MODELS; m += parts) {
        char path[64];
        make_model(path, models[m]);
        uint64_t kernels = 0;
        for (int prompt = parts > 1 ? 300 : 5; prompt <= 300; prompt += 295) { /* the second is more than a page of the cache */
            outcome first = run(path, ways[0], 0, 64, prompt);
            assert_int_equal(first.report.device.graphs, 0);
            kernels = first.report.device.launches;
            for (int w = parts > 1 ? WAYS - 1 : 1; w < WAYS; w++) {
                outcome o = run(path, ways[w], 0, 64, prompt);
                same(&first, &o, models[m], ways[w], "than launch by launch");
                assert_int_equal(o.report.device.graphs, strstr(ways[w], "graphs=1") ? 48 : 0);
                if (strstr(ways[w], "fuse=0"))
                    assert_int_equal(o.report.device.launches, kernels);
                else
                    assert_true(o.report.device.launches < kernels);
                if (w == WAYS - 1)
                    print_message("%s: %lu kernels, fused %lu\n", models[m], kernels, o.report.device.launches);
            }
            uint64_t least = first.plan.smallest_budget_bytes + ((uint64_t)8 << 20); /* what opening takes varies a little */
            outcome tight = run(path, ways[WAYS - 1], least, 16, prompt);
            outcome plain = run(path, ways[0], least, 16, prompt);
            streamed += tight.plan.streamed_bytes > 0;
            mapped += tight.report.mapped_bytes > 0;
            same(&plain, &tight, models[m], ways[WAYS - 1], "with streamed weights");
            same(&first, &tight, models[m], ways[WAYS - 1], "with passes of 16 tokens instead of 64");
        }
        unlink(path);
    }
    assert_true(parts > 1 || streamed > 0); /* the largest of them does not fit its least budget */
    assert_true(parts > 1 || mapped > 0);   /* nor the one of 32 experts, which tokens read in place */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_gives_the_same_bits)};
    lt_err err = {0};
    lt_device *dev = NULL;
    card = getenv("LT_TEST_CARD") ? getenv("LT_TEST_CARD") : "cuda";
    if (lt_ctx_create(NULL, &ctx, &err) != LT_OK || lt_device_open(ctx, card, &dev, &err) != LT_OK) {
        printf("skipped: %s\n", err.text);
        lt_ctx_destroy(ctx);
        return getenv("LT_TEST_CARD") ? 1 : 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL); /* with the device open: its context is made once */
    lt_device_close(dev);
    if (lt_ctx_host_bytes(ctx)) {
        print_error("%lu bytes of the context are left\n", lt_ctx_host_bytes(ctx));
        failed = 1;
    }
    lt_ctx_destroy(ctx);
    return failed;
}
