/* KV_STORE and ATTENTION on every device, against the plain n by n softmax in float64. */
#include "attention_rig.h"

/* NMSE against the cache as read back; against the keys and values that were stored. */
#define BOUND_EXACT 1e-12
static double bound_stored(lt_dtype kv) { return kv == LT_DTYPE_F32 ? 1e-12 : kv == LT_DTYPE_F16 ? 1e-6 : 1e-3; }

static double g_worst_stored[LT_DTYPE_COUNT], g_worst_exact;

static void check_setup(const setup *s)
{
    cache c;
    cache_init(&c, s);
    rig_check(&c.c, setup_name(s), c.y);
    if (s->data == DATA_NORMAL) {
        double exact = error64(&c, true, RIGHT), stored = error64(&c, false, RIGHT);
        assert_within(setup_name(s), exact, BOUND_EXACT);
        assert_within(setup_name(s), stored, bound_stored(s->kv));
        g_worst_exact = fmax(g_worst_exact, exact);
        g_worst_stored[s->kv] = fmax(g_worst_stored[s->kv], stored);
    }
    cache_free(&c);
}

static const lt_dtype kv_types[] = {LT_DTYPE_F32, LT_DTYPE_F16, LT_DTYPE_Q8_0};
static const int32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 512}, lengths[] = {1, 77, 255, 256, 257, 600, 1025},
                     token_counts[] = {1, 3, 7, 40}, ratios[] = {1, 3, 4, 9}, windows[] = {0, 100, 256, 512, 1};

/* Multiply-adds are kept under a limit by fewer tokens, so that a run stays short. */
static setup bounded(setup s, int64_t limit)
{
    while (s.tokens > 1 && (int64_t)s.tokens * s.heads * s.length * s.dim > limit)
        s.tokens--;
    if (s.tokens > s.length)
        s.tokens = s.length;
    return s;
}

/* Cases, text 10: every head size with every type of cache. Lengths, token counts, ratios and
 * windows rotate, with co-prime steps. */
static void text_10_every_head_size_with_every_cache_type(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (int d = 0; d < 8; d++) {
        for (int k = 0; k < 3; k++) {
            if (kv_types[k] == LT_DTYPE_Q8_0 && dims[d] % 32)
                continue; /* 80 and 112 are not whole blocks: refused, see below */
            for (int l = 0; l < 7; l++, n++) {
                int32_t ratio = ratios[n % 4], kv_heads = ratio == 9 || dims[d] > 200 ? 1 : 1 + (int32_t)(n % 3);
                setup s = {.kv = kv_types[k], .dim = dims[d], .length = lengths[l], .tokens = token_counts[(n / 4 + l) % 4],
                           .kv_heads = kv_heads, .heads = kv_heads * ratio, .window = windows[(n + d) % 5]};
                s = bounded(s, 1200000);
                check_setup(&s);
            }
        }
    }
    for (int k = 0; k < 3; k++)
        print_message("ATTENTION, %s cache: NMSE %.2g against what was stored\n", lt_dtype_get(kv_types[k])->name,
                      g_worst_stored[kv_types[k]]);
    print_message("ATTENTION by itself: NMSE %.2g\n", g_worst_exact);
}

static void heads_that_are_not_whole_blocks_are_refused(void **state)
{
    (void)state;
    for (int32_t dim = 80; dim <= 112; dim += 32) {
        lt_op_args a = {.op = LT_OP_ATTENTION, .n_src = 4, .name = "blk.0.attn"};
        a.params.ATTENTION = (lt_attention_params){.heads = 1, .scale = 1,
            .kv = {.page_bytes = 1 << 20, .v_offset = 1 << 19, .kv_heads = 1, .head_dim = (uint32_t)dim, .dtype = LT_DTYPE_Q8_0}};
        a.src[0] = a.dst = view(LT_DTYPE_F32, 3, 1, 1, dim);
        a.src[1] = view(LT_DTYPE_I8, 1, 1 << 20, 0, 0);
        a.src[2] = a.src[3] = view(LT_DTYPE_I32, 1, 1, 0, 0);
        lt_err err = {0};
        assert_int_equal(lt_op_check(&a, &err), LT_E_INVALID);
        assert_non_null(strstr(err.text, "not whole blocks of Q8_0"));
    }
}

static void every_ratio_window_and_batch(void **state)
{
    (void)state;
    for (int r = 0; r < 4; r++) {
        for (int w = 0; w < 5; w++) {
            for (int t = 0; t < 4; t++) {
                setup s = {.kv = kv_types[(r + w + t) % 3], .dim = 64, .length = 600, .tokens = token_counts[t],
                           .kv_heads = 1 + r % 2, .heads = ratios[r] * (1 + r % 2), .window = windows[w]};
                s = bounded(s, 4000000);
                check_setup(&s);
                s.ring = true;
                check_setup(&s);
            }
        }
    }
}

static void tokens_may_be_any_positions(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        setup s = {.kv = kv_types[k], .dim = 64, .length = 700, .tokens = 9, .kv_heads = 2, .heads = 6,
                   .window = k == 1 ? 300 : 0, .scattered = true};
        check_setup(&s);
    }
}

static void hard_data_is_bit_equal(void **state)
{
    (void)state;
    for (int kind = DATA_HEAVY; kind < DATA_KINDS; kind++) {
        for (int k = 0; k < 3; k++) {
            setup s = {.kv = kv_types[k], .dim = 96, .length = 520, .tokens = 5, .kv_heads = 2, .heads = 6,
                       .window = k == 1 ? 300 : 0, .data = (data_kind)kind};
            check_setup(&s);
        }
    }
}

/* Caps and sinks, alone and together: every type of cache, with windows, groups and any number of tokens. */
static void soft_caps_and_sinks(void **state)
{
    (void)state;
    static const int32_t sizes[] = {64, 128, 256, 80, 512};
    static const float caps[] = {0, 50, 2, 0.25f};
    uint32_t n = 0;
    for (int d = 0; d < 5; d++)
        for (int k = 0; k < 3; k++)
            for (int form = 1; form < 8; form++, n++) {
                if (kv_types[k] == LT_DTYPE_Q8_0 && sizes[d] % 32)
                    continue;
                int32_t ratio = ratios[n % 4], kv_heads = ratio == 9 || sizes[d] > 200 ? 1 : 1 + (int32_t)(n % 3);
                setup s = {.kv = kv_types[k], .dim = sizes[d], .length = lengths[(n + d) % 7], .tokens = token_counts[(n / 3 + form) % 4],
                           .kv_heads = kv_heads, .heads = kv_heads * ratio, .window = windows[(n + k) % 5],
                           .cap = caps[form / 2], .sinks = form % 2, .ring = n % 4 == 3};
                s = bounded(s, 1200000);
                check_setup(&s);
            }
    for (int kind = DATA_HEAVY; kind < DATA_KINDS; kind++)
        for (int form = 1; form < 4; form++) {
            setup s = {.kv = kv_types[form % 3], .dim = 96, .length = 520, .tokens = form == 1 ? 1 : 5, .kv_heads = 2, .heads = 6,
                       .window = form == 3 ? 300 : 0, .data = (data_kind)kind, .cap = form & 2 ? 30 : 0, .sinks = form & 1};
            check_setup(&s);
        }
}

static void a_batch_equals_each_token_alone(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        setup s = {.kv = kv_types[k], .dim = 64, .length = 530, .tokens = 40, .kv_heads = 1, .heads = 3, .window = k == 2 ? 260 : 0,
                   .cap = k == 1 ? 3 : 0, .sinks = k > 0};
        cache c;
        cache_init(&c, &s);
        rig_check(&c.c, setup_name(&s), c.y);
        size_t each = (size_t)s.heads * s.dim;
        for (int d = 0, end = rig_share(); d < end; d++) {
            for (int32_t t = 0; t < s.tokens; t++) {
                float one[192];
                rig_case a = c.c;
                a.args.src[0].dim[0] = a.args.dst.dim[0] = a.args.src[2].dim[0] = 1;
                a.args.src[0].addr = (uint64_t)t * each * 4, a.args.src[2].addr = (uint64_t)t * 4;
                a.dst_bytes = sizeof one;
                rig_run(&g_rig.device[d], &a, one);
                rig_same("ATTENTION, a token alone", g_rig.device[d].spec, &a.args.dst, c.y + t * each, one, sizeof one);
            }
        }
        cache_free(&c);
    }
}

/* Stored in two launches or in one, the cache is the same; and what is beside is not touched. */
static void storing_in_parts_equals_storing_at_once(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        setup s = {.kv = kv_types[k], .dim = 64, .length = 300, .tokens = 1, .kv_heads = 3, .heads = 3};
        cache whole;
        cache_init(&whole, &s);
        uint8_t *bytes = malloc(whole.n_bytes);
        memcpy(bytes, whole.bytes, whole.n_bytes);
        memset(whole.bytes, 0xff, whole.n_bytes);
        whole.s.length = 255; /* 0-254, then 200-299: the overlap is written twice */
        store(&whole, 0, false);
        whole.s.length = 300;
        store(&whole, 200, false);
        assert_memory_equal(bytes, whole.bytes, whole.n_bytes);
        size_t written = 0;
        for (int32_t p = 0; p < s.length; p++) {
            for (int32_t h = 0; h < s.kv_heads; h++) {
                uint64_t row;
                assert_true(lt_dtype_row_bytes(s.kv, 64, &row));
                memset(bytes + address(&whole, false, h, p), 0xff, row);
                memset(bytes + address(&whole, true, h, p), 0xff, row);
                written += 2 * row;
            }
        }
        assert_true(written > 0);
        for (size_t i = 0; i < whole.n_bytes; i++)
            assert_int_equal(bytes[i], 0xff);
        free(bytes);
        whole.c.src[1] = NULL;
        cache_free(&whole);
    }
}

static void planted_bugs_are_caught(void **state)
{
    (void)state;
    static const struct { mutant m; const char *bug; } bugs[] = {
        {PAST_ONE_LESS, "attention does not see its own position"}, {SEES_THE_FUTURE, "attention sees the next position"},
        {WINDOW_ONE_MORE, "window one position too wide"}, {HEADS_INTERLEAVED, "kv head by remainder, not quotient"},
        {NO_SCALE, "scores not scaled"}, {PAGE_UNMERGED, "only the last page counts"}, {VALUES_ARE_KEYS, "keys read as values"},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        for (int k = 0; k < 3; k++) {
            setup s = {.kv = kv_types[k], .dim = 64, .length = 600, .tokens = 3, .kv_heads = 2, .heads = 6, .window = 400};
            cache c;
            cache_init(&c, &s);
            rig_run(&g_rig.device[0], &c.c, c.y);
            assert_within("before the bug", error64(&c, true, RIGHT), BOUND_EXACT);
            assert_caught(bugs[i].bug, error64(&c, true, bugs[i].m), BOUND_EXACT);
            cache_free(&c);
        }
    }
}

static void planted_bugs_of_caps_and_sinks_are_caught(void **state)
{
    (void)state;
    static const struct { mutant m; const char *bug; } bugs[] = {
        {CAP_IGNORED, "scores not capped"}, {CAP_BEFORE_SCALE, "scores capped before they are scaled"},
        {CAP_IS_A_CLAMP, "scores clamped to the cap"}, {SINK_IGNORED, "no sinks"}, {SINK_OF_THE_KV_HEAD, "sinks by kv head"},
        {SINK_CAPPED, "sinks capped as scores are"}, {SINK_SCALED, "sinks scaled as scores are"},
        {PAGE_UNMERGED, "only the last page counts, with a sink"},
    };
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        for (int k = 0; k < 3; k++) {
            setup s = {.kv = kv_types[k], .dim = 64, .length = 600, .tokens = 3, .kv_heads = 2, .heads = 6, .window = 400,
                       .cap = k == 2 ? 50 : 2, .sinks = true};
            cache c;
            cache_init(&c, &s);
            for (int h = 0; h < 6; h++)
                c.sinks[h] = 2.0f + (float)h; /* each counts */
            rig_run(&g_rig.device[0], &c.c, c.y);
            assert_within("before the bug", error64(&c, true, RIGHT), BOUND_EXACT);
            assert_caught(bugs[i].bug, error64(&c, true, bugs[i].m), BOUND_EXACT);
            cache_free(&c);
        }
}

/* A sink far above all scores leaves next to nothing of the values, and no infinity; one far below, not a bit of change. */
static void sinks_at_both_ends(void **state)
{
    (void)state;
    setup s = {.kv = LT_DTYPE_F32, .dim = 64, .length = 300, .tokens = 2, .kv_heads = 1, .heads = 2, .sinks = true};
    cache c;
    cache_init(&c, &s);
    c.sinks[0] = c.sinks[1] = 3e38f;
    rig_check(&c.c, "a sink far above", c.y);
    for (int i = 0; i < 2 * 2 * 64; i++)
        assert_true(c.y[i] == 0);
    float *with = malloc(c.c.dst_bytes);
    c.sinks[0] = -3e38f, c.sinks[1] = -INFINITY;
    rig_check(&c.c, "a sink far below", with);
    c.c.args.n_src = 4;
    rig_check(&c.c, "no sink", c.y);
    for (int i = 0; i < 2 * 2 * 64; i++)
        assert_true(c.y[i] == with[i]);
    free(with);
    cache_free(&c);
}

/* Positions and pages are data: a wrong one is an error of the queue, never a wild access. */
static void wild_positions_and_pages_are_errors(void **state)
{
    (void)state;
    static const struct { int32_t pos, page; const char *text; } bad[] = {
        {-1, 0, "position -1"}, {256, 0, "pages back"}, {0, -1, "page -1"}, {0, 7, "page 7"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        for (int d = 0; d < g_rig.n; d++) {
            rig_device *dev = &g_rig.device[d];
            lt_op_args a = {.op = LT_OP_ATTENTION, .n_src = 4, .name = "blk.0.attn"};
            a.params.ATTENTION = (lt_attention_params){.heads = 1, .scale = 1,
                .kv = {.page_bytes = 131072, .v_offset = 65536, .kv_heads = 1, .head_dim = 64, .dtype = LT_DTYPE_F32}};
            a.src[0] = a.dst = view(LT_DTYPE_F32, 3, 1, 1, 64);
            a.src[1] = view(LT_DTYPE_I8, 1, 131072, 0, 0);
            a.src[2] = a.src[3] = view(LT_DTYPE_I32, 1, 1, 0, 0);
            dev->used = 0;
            a.src[0].addr = rig_place(dev, 256), a.dst.addr = rig_place(dev, 256), a.src[1].addr = rig_place(dev, 131072);
            a.src[2].addr = rig_place(dev, 4), a.src[3].addr = rig_place(dev, 4);
            lt_queue *q;
            lt_err err = {0};
            RIG_OK(lt_queue_create(dev->dev, LT_QUEUE_COMPUTE, &q, &e_));
            RIG_OK(lt_queue_copy_in(q, a.src[2].addr, &bad[i].pos, 4, &e_));
            RIG_OK(lt_queue_copy_in(q, a.src[3].addr, &bad[i].page, 4, &e_));
            RIG_OK(lt__queue_launch(q, &a, &e_));
            assert_int_equal(lt_queue_sync(q, &err), LT_E_INVALID);
            if (!strstr(err.text, bad[i].text) || !strstr(err.text, "blk.0.attn"))
                fail_msg("%s: \"%s\" names neither \"%s\" nor the op", dev->spec, err.text, bad[i].text);
            lt_queue_destroy(q);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_10_every_head_size_with_every_cache_type),
        cmocka_unit_test(heads_that_are_not_whole_blocks_are_refused),
        cmocka_unit_test(every_ratio_window_and_batch),
        cmocka_unit_test(tokens_may_be_any_positions),
        cmocka_unit_test(hard_data_is_bit_equal),
        cmocka_unit_test(soft_caps_and_sinks),
        cmocka_unit_test(planted_bugs_of_caps_and_sinks_are_caught),
        cmocka_unit_test(sinks_at_both_ends),
        cmocka_unit_test(a_batch_equals_each_token_alone),
        cmocka_unit_test(storing_in_parts_equals_storing_at_once),
        cmocka_unit_test(planted_bugs_are_caught),
        cmocka_unit_test(wild_positions_and_pages_are_errors),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
