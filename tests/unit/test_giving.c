/* When a session gives way and when it takes again: the pure rules, on numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "run/giving.h"

#define M (UINT64_C(1) << 20)
#define S UINT64_C(1000000000)

static lt__giving rules(uint64_t reserve, uint64_t want, uint64_t least)
{
    lt__giving g;
    lt__giving_init(&g, 8192 * M, 2 * M, reserve, want);
    g.least = least;
    return g;
}

static lt__give_act ask(lt__giving *g, uint64_t now, uint64_t free_bytes, uint64_t held, uint64_t *to, uint64_t *missed)
{
    lt__give_facts f = {.now_ns = now, .free_bytes = free_bytes, .held = held, .budget = held, .useful = UINT64_MAX};
    return lt__giving_decide(g, &f, to, missed);
}

static void gives_what_is_missing_and_a_slack(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    assert_int_equal(g.slack, 128 * M);
    assert_int_equal(ask(&g, S, 512 * M, 6000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, S, 500 * M, 6000 * M, &to, &missed), LT__GIVE_SHRINK);
    assert_int_equal(to, 6000 * M - 12 * M - 128 * M);
    assert_int_equal(missed, 0);
}

static void pressure_again_and_again_gives_more(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    ask(&g, S, 500 * M, 6000 * M, &to, &missed);
    assert_int_equal(ask(&g, S + S / 2, 412 * M, 5860 * M, &to, &missed), LT__GIVE_SHRINK);
    assert_int_equal(to, 5860 * M - 100 * M - 2 * 128 * M);
    ask(&g, 2 * S, 412 * M, to, &to, &missed);
    assert_int_equal(to, 5504 * M - 100 * M - 4 * 128 * M);
    ask(&g, 4 * S, 412 * M, 4000 * M, &to, &missed);
    assert_int_equal(to, 4000 * M - 100 * M - 128 * M);
}

static void says_by_how_much_the_reserve_is_missed(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    assert_int_equal(ask(&g, S, 0, 600 * M, &to, &missed), LT__GIVE_SHRINK);
    assert_int_equal(to, 300 * M);
    assert_int_equal(missed, 212 * M);
    assert_int_equal(ask(&g, S, 300 * M, 300 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(missed, 212 * M);
    assert_int_equal(ask(&g, S, 512 * M, 300 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(missed, 0);
}

static void grows_after_a_second_of_room_to_the_least_room_seen(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    assert_int_equal(ask(&g, 10 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 10 * S + S / 2, 3000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 11 * S - 1, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 11 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_GROW);
    assert_int_equal(to, 3000 * M + 3000 * M - 512 * M - 32 * M);
    /* Room that goes away in between starts the second anew. */
    g = rules(512 * M, 6000 * M, 300 * M);
    assert_int_equal(ask(&g, 10 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 10 * S + S / 2, 520 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 11 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 12 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_GROW);
    assert_int_equal(to, 6000 * M);
}

static void little_gains_and_useless_ones_are_not_worth_a_plan(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    for (uint64_t t = 0; t < 10; t++) /* 100 MiB of 3000 */
        assert_int_equal(ask(&g, t * S, 644 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    for (uint64_t t = 0; t < 10; t++) {
        lt__give_facts f = {.now_ns = t * S, .free_bytes = 4000 * M, .held = 3000 * M, .budget = 3000 * M, .useful = 3000 * M};
        assert_int_equal(lt__giving_decide(&g, &f, &to, &missed), LT__GIVE_STAY);
    }
    for (uint64_t t = 0; t < 10; t++)
        assert_int_equal(ask(&g, t * S, 4000 * M, 6000 * M, &to, &missed), LT__GIVE_STAY);
    for (uint64_t t = 0; t < 10; t++) { /* a plan for all of it that did not need the last bytes */
        lt__give_facts f = {.now_ns = t * S, .free_bytes = 4000 * M, .held = 5999 * M, .budget = 6000 * M, .useful = UINT64_MAX};
        assert_int_equal(lt__giving_decide(&g, &f, &to, &missed), LT__GIVE_STAY);
    }
}

/* A neighbour who takes and leaves each few seconds is followed ever more slowly, not every second. */
static void oscillation_is_damped(void **state)
{
    (void)state;
    uint64_t held = 6000 * M, now = 0, to, missed, changes = 0;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    for (; now < 600 * S; now += S / 50) {
        bool there = now / S % 4 < 2; /* two seconds there, two away */
        uint64_t others = there ? 2000 * M : 1000 * M, left = 8192 * M - held;
        lt__give_act act = ask(&g, now, left > others ? left - others : 0, held, &to, &missed);
        if (act == LT__GIVE_STAY)
            continue;
        held = to;
        changes++;
        if (act == LT__GIVE_GROW)
            lt__giving_grew(&g, now);
    }
    assert_in_range(changes, 1, 12);
}

static void a_refusal_waits_longer(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(512 * M, 6000 * M, 300 * M);
    ask(&g, S, 4000 * M, 3000 * M, &to, &missed);
    assert_int_equal(ask(&g, 2 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_GROW);
    lt__giving_refused(&g);
    ask(&g, 3 * S, 4000 * M, 3000 * M, &to, &missed);
    assert_int_equal(ask(&g, 4 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_STAY);
    assert_int_equal(ask(&g, 5 * S, 4000 * M, 3000 * M, &to, &missed), LT__GIVE_GROW);
}

static void another_process_asks(void **state)
{
    (void)state;
    uint64_t to, missed;
    lt__giving g = rules(0, 6000 * M, 300 * M);
    lt__give_facts f = {.now_ns = S, .free_bytes = 2000 * M, .held = 6000 * M, .budget = 6000 * M, .useful = 6000 * M, .asked = 500 * M};
    assert_int_equal(lt__giving_decide(&g, &f, &to, &missed), LT__GIVE_SHRINK);
    assert_int_equal(to, 6000 * M - 628 * M);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_what_is_missing_and_a_slack),
        cmocka_unit_test(pressure_again_and_again_gives_more),
        cmocka_unit_test(says_by_how_much_the_reserve_is_missed),
        cmocka_unit_test(grows_after_a_second_of_room_to_the_least_room_seen),
        cmocka_unit_test(little_gains_and_useless_ones_are_not_worth_a_plan),
        cmocka_unit_test(oscillation_is_damped),
        cmocka_unit_test(a_refusal_waits_longer),
        cmocka_unit_test(another_process_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
