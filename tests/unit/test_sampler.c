/* test_sampler.c - the sampler against its description: what can be drawn, how often, and in which order
 * the cuts come. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "lowtide/session.h"

#define DRAWS 200000

static lt_ctx *ctx;

static int make_ctx(void **state)
{
    (void)state;
    return lt_ctx_create(NULL, &ctx, NULL);
}

static int drop_ctx(void **state)
{
    (void)state;
    int leaked = lt_ctx_host_bytes(ctx) != 0;
    lt_ctx_destroy(ctx);
    return leaked;
}

static lt_sampler_desc plain(float temperature)
{
    lt_sampler_desc d = lt_sampler_desc_default();
    d.temperature = temperature;
    d.top_k = 0;
    d.top_p = 1;
    d.min_p = 0;
    d.seed = 11;
    return d;
}

static lt_sampler *sampler(const lt_sampler_desc *d, uint32_t vocab)
{
    lt_sampler *s;
    lt_err err;
    if (lt_sampler_create(ctx, d, vocab, &s, &err) != LT_OK)
        fail_msg("%s", err.text);
    return s;
}

static void draw(const lt_sampler_desc *d, const float *logits, uint32_t vocab, uint32_t *count)
{
    lt_sampler *s = sampler(d, vocab);
    memset(count, 0, vocab * sizeof *count);
    for (int i = 0; i < DRAWS; i++) {
        int32_t id = lt_sampler_pick(s, logits);
        assert_true(id >= 0 && (uint32_t)id < vocab);
        count[id]++;
    }
    lt_sampler_destroy(s);
}

/* Chi-square of the draws against softmax over the ids in `in`; the bound is that of p = 0.0001. */
static void expect_softmax(const uint32_t *count, const float *logits, uint32_t vocab, double temperature, uint32_t in)
{
    double sum = 0, chi = 0;
    int free_cells = -1;
    for (uint32_t i = 0; i < vocab; i++)
        sum += in >> i & 1 ? exp(logits[i] / temperature) : 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double want = in >> i & 1 ? DRAWS * exp(logits[i] / temperature) / sum : 0;
        if (want == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi += (count[i] - want) * (count[i] - want) / want;
        free_cells++;
    }
    static const double bound[] = {1e-9, 15.2, 18.5, 21.2, 23.6, 25.8, 27.9, 29.9};
    assert_in_range(free_cells, 0, 7);
    if (chi > bound[free_cells])
        fail_msg("chi-square %.1f of %d degrees", chi, free_cells);
}

static const float eight[8] = {2.0f, -1.0f, 0.5f, 1.5f, 0.0f, -3.0f, 1.0f, 0.9f};

static void draws_follow_softmax(void **state)
{
    (void)state;
    uint32_t count[8];
    for (float t = 0.5f; t <= 2; t *= 2) {
        lt_sampler_desc d = plain(t);
        draw(&d, eight, 8, count);
        expect_softmax(count, eight, 8, t, 0xff);
    }
    lt_sampler_desc d = plain(1); /* huge and tiny logits: no overflow, nothing lost */
    float big[8];
    for (int i = 0; i < 8; i++)
        big[i] = eight[i] + 3e4f;
    draw(&d, big, 8, count);
    expect_softmax(count, eight, 8, 1, 0xff);
}

static void top_k_keeps_the_k_best(void **state)
{
    (void)state;
    uint32_t count[8];
    static const uint32_t sets[] = {0xff, 0x01, 0x09, 0x49, 0xc9}; /* by falling logit: 0, 3, 6, 7 */
    for (uint32_t k = 0; k <= 4; k++) {
        lt_sampler_desc d = plain(1);
        d.top_k = k;
        draw(&d, eight, 8, count);
        expect_softmax(count, eight, 8, 1, sets[k]);
    }
    lt_sampler_desc d = plain(1);
    d.top_k = 4000000000u; /* more than there are */
    draw(&d, eight, 8, count);
    expect_softmax(count, eight, 8, 1, 0xff);
    d.top_k = 2; /* among equals the lowest ids */
    float same[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    draw(&d, same, 8, count);
    expect_softmax(count, same, 8, 1, 0x03);
}

static void top_k_of_a_large_vocabulary(void **state)
{
    (void)state;
    enum { V = 50000, K = 40 };
    static float logits[V];
    uint64_t x = 1;
    for (int i = 0; i < V; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        logits[i] = (float)(x >> 40) * 0x1p-24f;
    }
    lt_sampler_desc d = plain(100); /* nearly uniform among those kept */
    d.top_k = K;
    lt_sampler *s = sampler(&d, V);
    static uint8_t seen[V];
    int different = 0;
    for (int i = 0; i < 2000; i++) {
        int32_t id = lt_sampler_pick(s, logits);
        different += !seen[id];
        seen[id] = 1;
        int better = 0;
        for (int j = 0; j < V && better <= K; j++)
            better += logits[j] > logits[id];
        assert_true(better < K);
    }
    assert_int_equal(different, K);
    lt_sampler_destroy(s);
}

static void top_p_is_the_smallest_set_that_reaches_it(void **state)
{
    (void)state;
    /* Shares 0.5, 0.25, 0.125, 0.125. */
    const float logits[4] = {logf(1), logf(4), logf(2), logf(1)};
    uint32_t count[4];
    static const struct { float p; uint32_t set; } at[] = {{1e-6f, 2}, {0.49f, 2}, {0.51f, 6}, {0.74f, 6}, {0.76f, 7}, {0.9f, 15}, {1, 15}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        lt_sampler_desc d = plain(1);
        d.top_p = at[i].p;
        draw(&d, logits, 4, count);
        expect_softmax(count, logits, 4, 1, at[i].set);
    }
}

static void min_p_is_a_share_of_the_best(void **state)
{
    (void)state;
    const float logits[4] = {logf(1), logf(4), logf(2), logf(1)}; /* ratios 0.25, 1, 0.5, 0.25 */
    uint32_t count[4];
    static const struct { float p; uint32_t set; } at[] = {{0, 15}, {0.24f, 15}, {0.26f, 6}, {0.49f, 6}, {0.51f, 2}, {0.99f, 2}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        lt_sampler_desc d = plain(1);
        d.min_p = at[i].p;
        draw(&d, logits, 4, count);
        expect_softmax(count, logits, 4, 1, at[i].set);
    }
    /* After the temperature: 2 makes the ratio 0.25 a 0.5. */
    lt_sampler_desc d = plain(2);
    d.min_p = 0.45f;
    draw(&d, logits, 4, count);
    expect_softmax(count, logits, 4, 2, 15);
    /* top-k comes first: the share of the best two alone reaches 0.9 only with both. */
    d = plain(1);
    d.top_k = 2;
    d.top_p = 0.66f;
    draw(&d, logits, 4, count);
    expect_softmax(count, logits, 4, 1, 2);
}

static void greedy_takes_the_lowest_of_the_best(void **state)
{
    (void)state;
    lt_sampler_desc d = plain(0);
    const float logits[5] = {-INFINITY, 3, 7, 7, -7};
    lt_sampler *s = sampler(&d, 5);
    for (int i = 0; i < 10; i++)
        assert_int_equal(lt_sampler_pick(s, logits), 2);
    lt_sampler_destroy(s);
    d = plain(1e-6f); /* so cold that only the best is left, and no overflow on the way */
    const float one[5] = {1, 3, 7.5f, 7, -7};
    s = sampler(&d, 5);
    for (int i = 0; i < 100; i++)
        assert_int_equal(lt_sampler_pick(s, one), 2);
    lt_sampler_destroy(s);
}

static void minus_infinity_is_never_drawn(void **state)
{
    (void)state;
    float logits[8];
    uint32_t count[8];
    memcpy(logits, eight, sizeof logits);
    logits[0] = logits[6] = -INFINITY;
    lt_sampler_desc d = plain(1);
    draw(&d, logits, 8, count);
    expect_softmax(count, logits, 8, 1, 0xff & ~0x41u);
}

static void penalty_makes_recent_tokens_less_likely(void **state)
{
    (void)state;
    const float logits[4] = {2, 1.5f, -1, -1.5f};
    const float after[4] = {2, 0.75f, -1, -3}; /* 1 halved, 3 doubled */
    uint32_t count[4];
    lt_sampler_desc d = plain(1);
    d.repeat_penalty = 2;
    d.repeat_last = 3;
    lt_sampler *s = sampler(&d, 4);
    memset(count, 0, sizeof count);
    lt_sampler_accept(s, 0); /* pushed out by the next three */
    lt_sampler_accept(s, 1);
    lt_sampler_accept(s, 1);
    lt_sampler_accept(s, 3);
    lt_sampler_accept(s, -5); /* no token: no effect */
    lt_sampler_accept(s, 4);
    for (int i = 0; i < DRAWS; i++)
        count[lt_sampler_pick(s, logits)]++;
    expect_softmax(count, after, 4, 1, 15);
    lt_sampler_accept(s, 2); /* one 1 goes, the other stays */
    const float later[4] = {2, 0.75f, -2, -3};
    memset(count, 0, sizeof count);
    for (int i = 0; i < DRAWS; i++)
        count[lt_sampler_pick(s, logits)]++;
    expect_softmax(count, later, 4, 1, 15);
    lt_sampler_destroy(s);

    d = plain(0); /* greedy, too */
    d.repeat_penalty = 2;
    s = sampler(&d, 4);
    assert_int_equal(lt_sampler_pick(s, logits), 0);
    lt_sampler_accept(s, 0);
    assert_int_equal(lt_sampler_pick(s, logits), 1);
    lt_sampler_destroy(s);
    d.repeat_last = 0; /* nothing to look at */
    s = sampler(&d, 4);
    lt_sampler_accept(s, 0);
    assert_int_equal(lt_sampler_pick(s, logits), 0);
    lt_sampler_destroy(s);
}

static void a_seed_is_a_sequence(void **state)
{
    (void)state;
    int32_t first[64], again[64], other[64];
    int32_t *out[] = {first, again, other};
    for (int k = 0; k < 3; k++) {
        lt_sampler_desc d = plain(1);
        d.seed = k == 2 ? 12 : 11;
        lt_sampler *s = sampler(&d, 8);
        for (int i = 0; i < 64; i++)
            out[k][i] = lt_sampler_pick(s, eight);
        lt_sampler_destroy(s);
    }
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
}

static void one_token_and_wrong_descs(void **state)
{
    (void)state;
    lt_sampler_desc d = plain(1);
    lt_sampler *s = sampler(&d, 1);
    const float one = -5;
    assert_int_equal(lt_sampler_pick(s, &one), 0);
    lt_sampler_destroy(s);
    lt_sampler_destroy(NULL);
    lt_err err;
    assert_int_equal(lt_sampler_create(ctx, &d, 0, &s, &err), LT_E_INVALID);
#define WRONG(field, value)                                              \
    do {                                                                 \
        d = plain(1);                                                    \
        d.field = value;                                                 \
        assert_int_equal(lt_sampler_create(ctx, &d, 4, &s, &err), LT_E_INVALID); \
        assert_null(s);                                                  \
    } while (0)
    WRONG(temperature, -1);
    WRONG(temperature, NAN);
    WRONG(temperature, INFINITY);
    WRONG(top_p, 0);
    WRONG(top_p, 1.5f);
    WRONG(top_p, NAN);
    WRONG(min_p, 1);
    WRONG(min_p, -0.5f);
    WRONG(repeat_penalty, 0);
    WRONG(repeat_penalty, NAN);
    WRONG(repeat_last, 65536);
    WRONG(struct_bytes, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_softmax),
        cmocka_unit_test(top_k_keeps_the_k_best),
        cmocka_unit_test(top_k_of_a_large_vocabulary),
        cmocka_unit_test(top_p_is_the_smallest_set_that_reaches_it),
        cmocka_unit_test(min_p_is_a_share_of_the_best),
        cmocka_unit_test(greedy_takes_the_lowest_of_the_best),
        cmocka_unit_test(minus_infinity_is_never_drawn),
        cmocka_unit_test(penalty_makes_recent_tokens_less_likely),
        cmocka_unit_test(a_seed_is_a_sequence),
        cmocka_unit_test(one_token_and_wrong_descs),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
