/* The sub-allocator alone: against a naive model, for alignment, ends of the range, fragmentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory/suballoc.h"

static uint64_t seed = 1;
static uint64_t rnd(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return n ? seed % n : 0;
}

#define CHECK(s) do { lt_err e_; lt__sub_sums sums_; \
    if (lt__sub_check(s, &sums_, &e_) != LT_OK) fail_msg("%s", e_.text); } while (0)

/* What is free, by a byte map of granules: true if some aligned gap holds the request. */
static bool model_fits(const uint8_t *map, uint64_t n, uint64_t units, uint64_t align)
{
    for (uint64_t at = 0; at + units <= n; at += align) {
        uint64_t k = 0;
        while (k < units && !map[at + k]) k++;
        if (k == units) return true;
    }
    return false;
}

static void agrees_with_naive_model(void **state)
{
    (void)state;
    enum { N = 512, G = 64, LIVE = 200 };
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    for (uint64_t round = 1; round <= 20; round++) {
        seed = round * 7919;
        lt__sub s;
        uint64_t base = 1 << 20;
        assert_int_equal(lt__sub_init(&s, ctx, base, N * G, G, NULL), LT_OK);
        assert_int_equal(lt__sub_prepare(&s, 2, NULL), LT_OK);
        lt__sub_commit(&s, base, N * G);
        uint8_t map[N] = {0};
        lt__blk *live[LIVE];
        uint32_t n = 0;
        uint64_t refused = 0;
        for (int step = 0; step < 3000; step++) {
            if (n < LIVE && rnd(100) < 55) {
                uint64_t units = 1 + rnd(rnd(10) ? 12 : 150), align = 1ull << rnd(rnd(4) ? 1 : 6);
                assert_int_equal(lt__sub_prepare(&s, 2, NULL), LT_OK);
                lt__blk *b = lt__sub_alloc(&s, units * G, align * G, rnd(2));
                bool fits = model_fits(map, N, units, align);
                assert_int_equal(b != NULL, fits);
                refused += !b;
                if (!b) continue;
                assert_int_equal(b->bytes, units * G);
                assert_int_equal((b->addr - base) % (align * G), 0);
                for (uint64_t k = 0; k < units; k++) {
                    assert_int_equal(map[(b->addr - base) / G + k], 0);
                    map[(b->addr - base) / G + k] = 1;
                }
                live[n++] = b;
            } else if (n) {
                uint32_t i = (uint32_t)rnd(n);
                lt__blk *b = live[i];
                memset(map + (b->addr - base) / G, 0, b->bytes / G);
                uint32_t slot = b->slot, serial = b->serial;
                lt__sub_free(&s, b);
                assert_null(lt__sub_lookup(&s, slot, serial));
                live[i] = live[--n];
            }
            CHECK(&s);
        }
        assert_true(refused > 10);
        while (n) lt__sub_free(&s, live[--n]);
        CHECK(&s);
        assert_int_equal(lt__sub_largest_free(&s), N * G);
        lt__sub_deinit(&s);
    }
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

static void holes_come_and_go(void **state)
{
    (void)state;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    lt__sub s;
    const uint64_t base = 1 << 20, cell = 4096;
    assert_int_equal(lt__sub_init(&s, ctx, base, 16 * cell, 64, NULL), LT_OK);
    bool have[16] = {0};
    seed = 3;
    for (int step = 0; step < 4000; step++) {
        uint64_t i = rnd(16);
        assert_int_equal(lt__sub_prepare(&s, 2, NULL), LT_OK);
        if (!have[i]) {
            lt__sub_commit(&s, base + i * cell, cell);
            have[i] = true;
        } else {
            lt__blk *b = s.lowest;
            while (b->addr + b->bytes <= base + i * cell) b = b->upper;
            lt__sub_uncommit(&s, lt__sub_leave(&s, b, base + i * cell, cell));
            have[i] = false;
        }
        uint64_t want = 0;
        for (int k = 0; k < 16; k++) want += have[k] * cell;
        assert_int_equal(s.free_bytes, want);
        assert_int_equal(s.hole_bytes, 16 * cell - want);
        CHECK(&s);
    }
    lt__sub_deinit(&s);
    lt_ctx_destroy(ctx);
}

static void ends_of_the_range(void **state)
{
    (void)state;
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    lt__sub s;
    assert_int_equal(lt__sub_init(&s, ctx, 0, 1 << 20, 256, NULL), LT_OK);
    assert_int_equal(lt__sub_prepare(&s, 8, NULL), LT_OK);
    lt__sub_commit(&s, 0, 1 << 20);
    lt__blk *low = lt__sub_alloc(&s, 256, 256, false), *high = lt__sub_alloc(&s, 256, 256, true);
    assert_int_equal(low->addr, 0);
    assert_int_equal(high->addr, (1 << 20) - 256);
    assert_null(lt__sub_alloc(&s, 1 << 20, 256, false));
    lt__blk *rest = lt__sub_alloc(&s, (1 << 20) - 512, 256, true);
    assert_non_null(rest);
    assert_null(lt__sub_alloc(&s, 256, 256, false));
    assert_int_equal(s.free_bytes, 0);
    CHECK(&s);
    lt__sub_deinit(&s);
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_naive_model),
        cmocka_unit_test(holes_come_and_go),
        cmocka_unit_test(ends_of_the_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
