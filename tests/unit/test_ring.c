/* The ring's placement against a byte map kept by hand. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "memory/ring.h"

enum { BYTES = 64, SLOTS = 64 };

static void slots_never_overlap_and_pop_in_order(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 300; seed++) {
        unsigned s = seed;
        lt__ring r;
        lt__ring_init(&r, BYTES);
        uint8_t map[BYTES] = {0};
        lt__ring_slot slot[SLOTS];
        size_t first = 0, last = 0; /* numbers of live slots */
        for (int step = 0; step < 500; step++) {
            lt_err err;
            uint64_t want = (uint64_t)(rand_r(&s) % 20 + 1), off = 0;
            if (rand_r(&s) % 3 && last - first < SLOTS && lt__ring_place(&r, want, &off)) {
                assert_true(off + want <= BYTES);
                for (uint64_t i = off; i < off + want; i++) {
                    assert_int_equal(map[i], 0);
                    map[i] = 1;
                }
                lt__ring_push(&r, &slot[last++ % SLOTS], off, want);
            } else if (first < last) {
                lt__ring_slot *p = lt__ring_pop(&r);
                assert_ptr_equal(p, &slot[first++ % SLOTS]);
                memset(map + p->off, 0, p->bytes);
            }
            assert_int_equal(lt__ring_check(&r, &err), LT_OK);
            uint64_t used = 0;
            for (int i = 0; i < BYTES; i++) used += map[i];
            assert_int_equal(used, r.used);
        }
    }
}

static void everything_that_fits_is_placed_once_empty(void **state)
{
    (void)state;
    for (uint64_t head = 1; head <= BYTES; head++)
        for (uint64_t want = 1; want <= BYTES + 1; want++) {
            lt__ring r;
            lt__ring_slot a;
            uint64_t off;
            lt__ring_init(&r, BYTES);
            assert_true(lt__ring_place(&r, head, &off));
            lt__ring_push(&r, &a, off, head);
            assert_ptr_equal(lt__ring_pop(&r), &a);
            assert_int_equal(lt__ring_place(&r, want, &off), want <= BYTES);
        }
}

static void zero_and_full(void **state)
{
    (void)state;
    lt__ring r;
    lt__ring_slot a, b;
    uint64_t off;
    lt__ring_init(&r, 0);
    assert_false(lt__ring_place(&r, 1, &off));
    lt__ring_init(&r, BYTES);
    assert_false(lt__ring_place(&r, 0, &off));
    lt__ring_push(&r, &a, 0, 40);
    lt__ring_push(&r, &b, 40, 24);
    assert_false(lt__ring_place(&r, 1, &off)); /* full: the head stands at the end */
    lt__ring_pop(&r);
    assert_true(lt__ring_place(&r, 40, &off));
    assert_int_equal(off, 0);
    lt__ring_push(&r, &a, 0, 40);
    assert_false(lt__ring_place(&r, 1, &off)); /* full and wrapped: head == tail */
}

static void check_sees_damage(void **state)
{
    (void)state;
    lt__ring r;
    lt__ring_slot a, b;
    lt_err err;
    lt__ring_init(&r, BYTES);
    lt__ring_push(&r, &a, 0, 30);
    lt__ring_push(&r, &b, 30, 30);
    assert_int_equal(lt__ring_check(&r, &err), LT_OK);
    b.off = 29;
    assert_int_not_equal(lt__ring_check(&r, &err), LT_OK);
    b.off = 30;
    r.used--;
    assert_int_not_equal(lt__ring_check(&r, &err), LT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_never_overlap_and_pop_in_order),
        cmocka_unit_test(everything_that_fits_is_placed_once_empty),
        cmocka_unit_test(zero_and_full),
        cmocka_unit_test(check_sees_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
