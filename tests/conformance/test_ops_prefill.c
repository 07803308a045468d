/* ATTENTION over rows of a prompt, where a device may sum in its own order: against float64 within a bound, and
 * bit by bit the same whatever the number of rows and wherever a chunk of the prompt begins. */
#include "attention_rig.h"

#define BOUND 2e-6      /* NMSE over what the cache holds: half precision of queries and weights */
#define BOUND_SAGE 1e-3 /* normal data; int8 queries and keys */

static double g_worst[LT_DTYPE_COUNT];

/* Whether the device computes a prompt in another way than row after row. */
static bool has_own_order(const rig_device *d) { return strncmp(d->spec, "cuda", 4) == 0; }

static cache prompt_cache(const setup *s)
{
    cache c;
    cache_init(&c, s);
    c.c.args.prefill = true;
    return c;
}

/* Bits on the devices that have no order of their own are those of the reference. */
static void check_prompt(const setup *s)
{
    cache c = prompt_cache(s);
    float *want = malloc(c.c.dst_bytes);
    rig_run(&g_rig.device[0], &c.c, want);
    for (int d = 1, end = rig_share(); d < end; d++) {
        rig_run(&g_rig.device[d], &c.c, c.y);
        if (!has_own_order(&g_rig.device[d]))
            rig_same(setup_name(s), g_rig.device[d].spec, &c.c.args.dst, want, c.y, c.c.dst_bytes);
        double e = error64(&c, true, RIGHT);
        assert_within(setup_name(s), e, BOUND);
        g_worst[s->kv] = fmax(g_worst[s->kv], e);
    }
    free(want);
    cache_free(&c);
}

static const lt_dtype kv_types[] = {LT_DTYPE_F16, LT_DTYPE_Q8_0, LT_DTYPE_F32};
static const int32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 512};

static setup smaller(setup s)
{
    while (s.tokens > 1 && (int64_t)s.tokens * s.heads * s.length * s.dim > 6000000)
        s.tokens--;
    s.tokens = s.tokens < s.length ? s.tokens : s.length;
    return s;
}

static void every_head_size_ratio_window_and_cache(void **state)
{
    (void)state;
    static const int32_t lengths[] = {1, 63, 129, 256, 300, 600, 1025}, tokens[] = {1, 17, 64, 130, 300},
                         ratios[] = {1, 3, 4, 9}, windows[] = {0, 100, 256, 512, 1};
    uint32_t n = 0;
    for (int d = 0; d < 8; d++)
        for (int k = 0; k < 3; k++)
            for (int l = 0; l < 7; l++, n++) {
                if (kv_types[k] == LT_DTYPE_Q8_0 && dims[d] % 32)
                    continue;
                int32_t ratio = ratios[n % 4], kv_heads = ratio == 9 ? 1 : 1 + (int32_t)(n % 2);
                setup s = {.kv = kv_types[k], .dim = dims[d], .length = lengths[l], .tokens = tokens[(n / 3 + l) % 5],
                           .kv_heads = kv_heads, .heads = kv_heads * ratio, .window = windows[(n + d) % 5], .ring = n % 3 == 0};
                s = smaller(s);
                check_prompt(&s);
            }
    for (int k = 0; k < 3; k++)
        print_message("ATTENTION over a prompt, %s cache: NMSE %.2g, the bound is %.2g\n", lt_dtype_get(kv_types[k])->name,
                      g_worst[kv_types[k]], BOUND);
}

/* Caps and sinks over a prompt; caps beyond what half precision takes go another way. */
static void soft_caps_and_sinks(void **state)
{
    (void)state;
    static const float caps[] = {0, 50, 2, 5000};
    double worst = 0;
    uint32_t n = 0;
    for (int d = 0; d < 8; d++)
        for (int k = 0; k < 3; k++)
            for (int form = 1; form < 8; form++, n++) {
                if (kv_types[k] == LT_DTYPE_Q8_0 && dims[d] % 32)
                    continue;
                setup s = {.kv = kv_types[k], .dim = dims[d], .length = 130 + 77 * form, .tokens = n % 5 ? 70 : 1, .kv_heads = 1 + (int32_t)(n % 2),
                           .heads = (1 + (int32_t)(n % 2)) * (1 + (int32_t)(n % 4)), .window = n % 3 == 1 ? 100 : 0, .ring = n % 3 == 1,
                           .cap = caps[form / 2], .sinks = form % 2};
                s = smaller(s);
                check_prompt(&s);
            }
    for (int k = 0; k < 3; k++)
        worst = fmax(worst, g_worst[kv_types[k]]);
    print_message("with caps and sinks: NMSE %.2g\n", worst);
}

/* One row at a time, and chunks of odd sizes, equal all rows at once. */
static void rows_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    static const int32_t chunks[] = {1, 7, 64, 100};
    for (int d = 0; d < 8; d++) {
        for (int k = 0; k < 3; k++) {
            if (kv_types[k] == LT_DTYPE_Q8_0 && dims[d] % 32)
                continue;
            setup s = {.kv = kv_types[k], .dim = dims[d], .length = 520 + d, .tokens = 150, .kv_heads = 2, .heads = k == 1 ? 2 : 6,
                       .window = d % 2 ? 200 : 0, .cap = (d + k) % 3 == 1 ? 20 : 0, .sinks = (d + k) % 3 != 0};
            cache c = prompt_cache(&s);
            size_t each = (size_t)s.heads * s.dim;
            float *part = malloc(c.c.dst_bytes);
            for (int v = 1, end = rig_share(); v < end; v++) {
                rig_run(&g_rig.device[v], &c.c, c.y);
                for (int n = 0; n < 4; n++)
                    for (int32_t t = 0; t < s.tokens; t += chunks[n]) {
                        int32_t m = chunks[n] < s.tokens - t ? chunks[n] : s.tokens - t;
                        if (chunks[n] == 1 && t % 13 && t + 1 < s.tokens)
                            continue;
                        rig_case a = c.c;
                        a.args.src[0].dim[0] = a.args.dst.dim[0] = a.args.src[2].dim[0] = m;
                        a.src[0] = c.q + (size_t)t * each, a.src[2] = c.pos + t;
                        a.src_bytes[0] = a.dst_bytes = (size_t)m * each * 4, a.src_bytes[2] = (size_t)m * 4;
                        a.dst = a.src[0];
                        rig_run(&g_rig.device[v], &a, part);
                        rig_same("a chunk of a prompt", g_rig.device[v].spec, &a.args.dst, c.y + (size_t)t * each, part, a.dst_bytes);
                    }
            }
            free(part);
            cache_free(&c);
        }
    }
}

/* What was not stored is NaN in the rig's cache, in the pages of the prompt too: none of it is used. Positions may
 * come in any order. */
static void tokens_may_be_any_positions(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        setup s = {.kv = kv_types[k], .dim = 64, .length = 700, .tokens = 40, .kv_heads = 2, .heads = 6, .scattered = true};
        check_prompt(&s);
        s.window = 300;
        check_prompt(&s);
    }
}

/* Queries far outside of half's range, either way, lose nothing by it. */
static void queries_of_any_size_fit(void **state)
{
    (void)state;
    for (int e = -60; e <= 60; e += 20) {
        setup s = {.kv = LT_DTYPE_F16, .dim = 128, .length = 300, .tokens = 70, .kv_heads = 1, .heads = 2};
        cache c = prompt_cache(&s);
        for (size_t i = 0; i < c.c.src_bytes[0] / 4; i++)
            c.q[i] = ldexpf(c.q[i], e + (int)(i / 128 % 5));
        float scale = c.c.args.params.ATTENTION.scale;
        c.c.args.params.ATTENTION.scale = ldexpf(scale, -e - 2);
        for (int v = 1; v < g_rig.n; v++) {
            rig_run(&g_rig.device[v], &c.c, c.y);
            for (size_t i = 0; i < c.c.src_bytes[0] / 4; i++) /* error64 knows one scale only */
                c.q[i] = ldexpf(c.q[i], -e - 2);
            assert_within("queries of any size", error64(&c, true, RIGHT), BOUND);
            for (size_t i = 0; i < c.c.src_bytes[0] / 4; i++)
                c.q[i] = ldexpf(c.q[i], e + 2);
        }
        cache_free(&c);
    }
}

/* A query that is not finite makes its own outputs NaN, and no others. */
static void what_is_not_finite_reaches_the_output(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int b = 0; b < 3; b++) {
        setup s = {.kv = LT_DTYPE_F16, .dim = 64, .length = 200, .tokens = 80, .kv_heads = 1, .heads = 2};
        cache c = prompt_cache(&s);
        c.q[(size_t)(50 * 2 + 1) * 64 + 5] = bad[b];
        for (int v = 1; v < g_rig.n; v++) {
            rig_run(&g_rig.device[v], &c.c, c.y);
            for (int r = 0; r < 160; r++)
                for (int j = 0; j < 64; j++)
                    if (!has_own_order(&g_rig.device[v]))
                        continue;
                    else if (isnan(c.y[r * 64 + j]) != (r == 101))
                        fail_msg("%s: row %d, element %d is %g with %g in the query of row 101", g_rig.device[v].spec, r, j,
                                 c.y[r * 64 + j], bad[b]);
        }
        cache_free(&c);
    }
}

static bool has_sage(const rig_device *d, const rig_case *c, const char **why);

/* A query of zeros weighs all that it sees alike, and nothing that it does not: 0 times minus infinity is no weight. */
static void queries_of_zeros_weigh_all_alike(void **state)
{
    (void)state;
    static const int32_t sizes[] = {64, 128, 256};
    for (int n = 0; n < 6; n++) {
        setup s = {.kv = LT_DTYPE_F16, .dim = sizes[n % 3], .length = 430, .tokens = 150, .kv_heads = 1, .heads = 2, .window = n < 3 ? 0 : 140};
        cache c = prompt_cache(&s);
        memset(c.q + (size_t)(40 * 2) * s.dim, 0, (size_t)(31 * 2) * s.dim * 4);
        for (int v = 1, end = rig_share(); v < end; v++)
            for (int how = 0; how < LT_ATTENTION_COUNT; how++) {
                if (how == LT_ATTENTION_SAGE && !has_sage(&g_rig.device[v], &c.c, NULL))
                    continue;
                c.c.args.params.ATTENTION.how = (lt_attention)how;
                rig_run(&g_rig.device[v], &c.c, c.y);
                assert_within("queries of zeros", error64(&c, true, RIGHT), how == LT_ATTENTION_SAGE ? BOUND_SAGE : BOUND);
            }
        cache_free(&c);
    }
}

static void planted_bugs_are_caught(void **state)
{
    (void)state;
    static const struct { mutant m; const char *bug; } bugs[] = {
        {PAST_ONE_LESS, "a row does not see its own position"}, {SEES_THE_FUTURE, "a row sees the next position"},
        {WINDOW_ONE_MORE, "window one position too wide"}, {HEADS_INTERLEAVED, "kv head by remainder, not quotient"},
        {NO_SCALE, "scores not scaled"}, {PAGE_UNMERGED, "only the last page counts"}, {VALUES_ARE_KEYS, "keys read as values"},
        {CAP_IGNORED, "scores not capped"}, {CAP_BEFORE_SCALE, "scores capped before they are scaled"}, {CAP_IS_A_CLAMP, "scores clamped"},
        {SINK_IGNORED, "no sinks"}, {SINK_OF_THE_KV_HEAD, "sinks by kv head"}, {SINK_CAPPED, "sinks capped"}, {SINK_SCALED, "sinks scaled"},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int k = 0; k < 2; k++) {
            bool bent = bugs[i].m >= CAP_IGNORED;
            setup s = {.kv = kv_types[k], .dim = 64, .length = 600, .tokens = 30, .kv_heads = 2, .heads = 6, .window = 400,
                       .cap = bent ? 2 : 0, .sinks = bent};
            cache c = prompt_cache(&s);
            for (int h = 0; bent && h < 6; h++)
                c.sinks[h] = 2.0f + (float)h; /* each counts */
            rig_run(&g_rig.device[g_rig.n - 1], &c.c, c.y);
            assert_within("before the bug", error64(&c, true, RIGHT), BOUND);
            assert_caught(bugs[i].bug, error64(&c, true, bugs[i].m), BOUND);
            cache_free(&c);
        }
}

static bool has_sage(const rig_device *d, const rig_case *c, const char **why)
{
    rig_case a = *c;
    a.args.params.ATTENTION.how = LT_ATTENTION_SAGE;
    return lt__device_supports(d->dev, &a.args, why);
}

/* Each row by itself has the bits of all at once; the error is bounded; a planted bug is not. */
static void sage_is_bounded_and_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    static const int32_t sizes[] = {64, 128, 256};
    double worst = 0;
    int ran = 0;
    for (int n = 0; n < 12; n++) {
        setup s = {.kv = kv_types[n / 3 % 2], .dim = sizes[n % 3], .length = 300 + 130 * n, .tokens = 140, .kv_heads = 1 + n % 2,
                   .heads = (1 + n % 2) * (1 + n % 4), .window = n % 4 == 3 ? 260 : 0, .ring = n % 4 == 3,
                   .cap = n % 3 == 1 ? 30 : 0, .sinks = n % 4 == 2};
        s = smaller(s);
        cache c = prompt_cache(&s);
        size_t each = (size_t)s.heads * s.dim;
        float one[4096];
        c.c.args.params.ATTENTION.how = LT_ATTENTION_SAGE;
        for (int v = 1, end = rig_share(); v < end; v++) {
            if (!has_sage(&g_rig.device[v], &c.c, NULL))
                continue;
            ran++;
            rig_run(&g_rig.device[v], &c.c, c.y);
            double e = error64(&c, true, RIGHT);
            assert_within(setup_name(&s), e, BOUND_SAGE);
            worst = fmax(worst, e);
            for (int32_t t = 0; t < s.tokens; t += 7) {
                rig_case a = c.c;
                a.args.src[0].dim[0] = a.args.dst.dim[0] = a.args.src[2].dim[0] = 1;
                a.src[0] = a.dst = c.q + (size_t)t * each, a.src[2] = c.pos + t;
                a.src_bytes[0] = a.dst_bytes = each * 4, a.src_bytes[2] = 4;
                rig_run(&g_rig.device[v], &a, one);
                rig_same("sage, a row alone", g_rig.device[v].spec, &a.args.dst, c.y + (size_t)t * each, one, a.dst_bytes);
            }
            assert_caught("keys read as values, sage", error64(&c, true, VALUES_ARE_KEYS), BOUND_SAGE);
        }
        cache_free(&c);
    }
    print_message("sage: %d launches, NMSE %.2g, the bound is %.2g\n", ran, worst, BOUND_SAGE);
}

/* More blocks of rows than a card has room for at once, some of one tile, some seen in part, some by a window, have the bits
 * of a few at a time: what a block keeps from one of them to the next is nothing. */
static void sage_of_many_blocks_of_rows(void **state)
{
    (void)state;
    static const setup all[] = {
        {.dim = 128, .length = 1100, .tokens = 1100, .kv_heads = 8, .heads = 32},
        {.dim = 128, .length = 1500, .tokens = 1100, .kv_heads = 8, .heads = 32, .window = 200, .ring = true},
        {.dim = 128, .length = 1100, .tokens = 1000, .kv_heads = 8, .heads = 32, .window = 1, .cap = 30, .sinks = true},
        {.dim = 128, .length = 700, .tokens = 700, .kv_heads = 24, .heads = 24, .scattered = true},
        {.dim = 128, .length = 1300, .tokens = 900, .kv_heads = 12, .heads = 36, .cap = 30},
        {.dim = 64, .length = 700, .tokens = 700, .kv_heads = 24, .heads = 24},
    };
    const int32_t step = 97;
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        setup s = all[n];
        s.kv = kv_types[n % 2];
        cache c = prompt_cache(&s);
        size_t each = (size_t)s.heads * s.dim;
        float *part = malloc((size_t)step * each * 4);
        assert_non_null(part);
        c.c.args.params.ATTENTION.how = LT_ATTENTION_SAGE;
        for (int v = 1, end = rig_share(); v < end; v++) {
            if (!has_sage(&g_rig.device[v], &c.c, NULL))
                continue;
            rig_run(&g_rig.device[v], &c.c, c.y);
            for (int32_t t = 0; t < s.tokens; t += step) {
                rig_case a = c.c;
                int32_t m = step < s.tokens - t ? step : s.tokens - t;
                a.args.src[0].dim[0] = a.args.dst.dim[0] = a.args.src[2].dim[0] = m;
                a.src[0] = a.dst = c.q + (size_t)t * each, a.src[2] = c.pos + t;
                a.src_bytes[0] = a.dst_bytes = (size_t)m * each * 4, a.src_bytes[2] = (size_t)m * 4;
                rig_run(&g_rig.device[v], &a, part);
                rig_same("sage, many blocks of rows", g_rig.device[v].spec, &a.args.dst, c.y + (size_t)t * each, part, a.dst_bytes);
            }
        }
        free(part);
        cache_free(&c);
    }
}

/* EXACT has the bits of one row after another; SAGE is there or refused in a sentence. */
static void kinds_of_attention(void **state)
{
    (void)state;
    setup s = {.kv = LT_DTYPE_F16, .dim = 128, .length = 400, .tokens = 90, .kv_heads = 1, .heads = 4};
    cache c = prompt_cache(&s);
    c.c.args.params.ATTENTION.how = LT_ATTENTION_EXACT;
    rig_check(&c.c, "exact attention over a prompt", c.y);
    for (int v = 0; v < g_rig.n; v++) {
        const char *why = NULL;
        if (!has_sage(&g_rig.device[v], &c.c, &why)) {
            assert_non_null(why);
            assert_non_null(strstr(why, "sage"));
        }
    }
    cache_free(&c);
}

/* Positions and pages are data: a wrong one is an error of the queue, never a wild access. */
static void wild_positions_and_pages_are_errors(void **state)
{
    (void)state;
    static const struct { int32_t pos, page; const char *text; } bad[] = {
        {-1, 0, "position -1"}, {256, 0, "pages back"}, {0, -1, "page -1"}, {0, 7, "page 7"},
    };
    for (int n = 0; n < 4 * 2 * 2 * 2; n++) {
        int b = n % 4, kv = n / 4 % 2, sage = n / 8 % 2;
        setup s = {.kv = kv_types[kv], .dim = n / 16 ? 128 : 64, .length = 200, .tokens = 20, .kv_heads = 1, .heads = 2};
        cache c = prompt_cache(&s);
        c.c.args.params.ATTENTION.how = sage ? LT_ATTENTION_SAGE : LT_ATTENTION_FLASH;
        c.pos[7] = bad[b].page == 0 ? bad[b].pos : c.pos[7];
        c.table[0] = bad[b].page ? bad[b].page : c.table[0];
        for (int d = 0; d < g_rig.n; d++) {
            rig_device *dev = &g_rig.device[d];
            lt_op_args a = c.c.args;
            lt_queue *q;
            lt_err err = {0};
            if (sage && !has_sage(dev, &c.c, NULL))
                continue;
            dev->used = 0;
            a.dst.addr = rig_place(dev, c.c.dst_bytes);
            RIG_OK(lt_queue_create(dev->dev, LT_QUEUE_COMPUTE, &q, &e_));
            for (uint32_t i = 0; i < a.n_src; i++) {
                a.src[i].addr = rig_place(dev, c.c.src_bytes[i]);
                RIG_OK(lt_queue_copy_in(q, a.src[i].addr, c.c.src[i], c.c.src_bytes[i], &e_));
            }
            uint64_t scratch = lt__device_scratch_bytes(dev->dev, &a);
            a.scratch = scratch ? rig_place(dev, scratch) : 0;
            RIG_OK(lt__queue_launch(q, &a, &e_));
            assert_int_equal(lt_queue_sync(q, &err), LT_E_INVALID);
            if (!strstr(err.text, bad[b].text) || !strstr(err.text, "attention"))
                fail_msg("%s: \"%s\" names neither \"%s\" nor the op", dev->spec, err.text, bad[b].text);
            lt_queue_destroy(q);
        }
        cache_free(&c);
    }
}

/* Memory beside the views grows no faster than the tokens, and never when there are fewer of them. */
static void scratch_is_linear_in_length(void **state)
{
    (void)state;
    setup s = {.kv = LT_DTYPE_F16, .dim = 128, .length = 300, .tokens = 1, .kv_heads = 2, .heads = 8};
    cache c = prompt_cache(&s);
    for (int v = 0; v < g_rig.n; v++)
        for (int how = 0; how < LT_ATTENTION_COUNT; how++) {
            uint64_t last = 0, first = 0;
            lt_op_args a = c.c.args;
            a.params.ATTENTION.how = (lt_attention)how;
            for (int64_t n = 256; n <= 32768; n *= 2) {
                a.src[0] = a.dst = view(LT_DTYPE_F32, 3, n, s.heads, s.dim);
                a.src[2] = view(LT_DTYPE_I32, 1, n, 0, 0);
                a.src[3] = view(LT_DTYPE_I32, 1, n / 256, 0, 0);
                if (!lt__device_supports(g_rig.device[v].dev, &a, NULL))
                    continue;
                uint64_t now = lt__device_scratch_bytes(g_rig.device[v].dev, &a);
                assert_true(now >= last);
                last = now;
                first = first ? first : now;
                assert_true(now <= (first + 65536) * (uint64_t)(n / 256));
            }
        }
    cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_size_ratio_window_and_cache),
        cmocka_unit_test(soft_caps_and_sinks),
        cmocka_unit_test(rows_do_not_depend_on_the_batch),
        cmocka_unit_test(tokens_may_be_any_positions),
        cmocka_unit_test(queries_of_any_size_fit),
        cmocka_unit_test(what_is_not_finite_reaches_the_output),
        cmocka_unit_test(queries_of_zeros_weigh_all_alike),
        cmocka_unit_test(planted_bugs_are_caught),
        cmocka_unit_test(sage_is_bounded_and_does_not_depend_on_the_batch),
        cmocka_unit_test(sage_of_many_blocks_of_rows),
        cmocka_unit_test(kinds_of_attention),
        cmocka_unit_test(wild_positions_and_pages_are_errors),
        cmocka_unit_test(scratch_is_linear_in_length),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
