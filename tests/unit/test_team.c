/* The thread team: every rank once, barriers, counters, more threads than cores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <stdatomic.h>

#include "backend/cpu/team.h"
#include "base/mem.h"

static lt_ctx *make_ctx(void)
{
    lt_ctx *ctx;
    assert_int_equal(lt_ctx_create(NULL, &ctx, NULL), LT_OK);
    return ctx;
}

static lt_team *make_team(lt_ctx *ctx, uint32_t threads)
{
    lt_team *t;
    assert_int_equal(lt__team_create(ctx, threads, &t, NULL), LT_OK);
    assert_int_equal(lt__team_threads(t), threads);
    return t;
}

static void drop(lt_team *t, lt_ctx *ctx)
{
    lt__team_destroy(t);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

typedef struct tally {
    uint32_t seen[16]; /* not atomic: a rank writes its own, the caller reads after the join */
    uint32_t ranks[16];
} tally;

static void count_rank(void *arg, uint32_t rank, uint32_t ranks)
{
    tally *t = arg;
    t->seen[rank]++;
    t->ranks[rank] = ranks;
}

static void every_rank_once(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 8};
    for (size_t i = 0; i < 4; i++) {
        lt_ctx *ctx = make_ctx();
        lt_team *team = make_team(ctx, sizes[i]);
        tally t = {0};
        for (uint32_t k = 1; k <= 2000; k++) {
            lt__team_run(team, count_rank, &t);
            for (uint32_t r = 0; r < 16; r++)
                assert_int_equal(t.seen[r], r < sizes[i] ? k : 0);
        }
        assert_int_equal(t.ranks[sizes[i] - 1], sizes[i]);
        drop(team, ctx);
    }
}

/* Each round every rank reads what its neighbour wrote the round before. */
enum { ROUNDS = 500 };
typedef struct relay {
    lt_team *team;
    uint32_t cell[2][16];
    _Atomic uint32_t wrong;
} relay;

static void run_relay(void *arg, uint32_t rank, uint32_t ranks)
{
    relay *y = arg;
    for (uint32_t k = 0; k < ROUNDS; k++) {
        y->cell[k & 1][rank] = k * 31 + rank;
        lt__team_barrier(y->team, rank);
        uint32_t from = (rank + 1) % ranks;
        if (y->cell[k & 1][from] != k * 31 + from)
            atomic_fetch_add(&y->wrong, 1);
    }
}

static void barriers_separate_rounds(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 5};
    for (size_t i = 0; i < 3; i++) {
        lt_ctx *ctx = make_ctx();
        relay y = {.team = make_team(ctx, sizes[i])};
        for (int k = 0; k < 5; k++)
            lt__team_run(y.team, run_relay, &y);
        assert_int_equal(y.wrong, 0);
        drop(y.team, ctx);
    }
}

enum { ITEMS = 1003 };
typedef struct bag {
    lt_team *team;
    uint8_t taken[2][ITEMS];
} bag;

static void empty_bag(void *arg, uint32_t rank, uint32_t ranks)
{
    (void)ranks;
    bag *b = arg;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i; (i = lt__team_next(b->team, 10)) < ITEMS;)
            for (uint64_t k = i; k < i + 10 && k < ITEMS; k++)
                b->taken[pass][k]++;
        lt__team_barrier(b->team, rank);
        if (rank == 0)
            lt__team_rewind(b->team);
        lt__team_barrier(b->team, rank);
    }
}

static void each_item_is_taken_once(void **state)
{
    (void)state;
    lt_ctx *ctx = make_ctx();
    static bag b;
    b.team = make_team(ctx, 4);
    for (int run = 1; run <= 20; run++) {
        lt__team_run(b.team, empty_bag, &b);
        for (int i = 0; i < ITEMS; i++)
            assert_true(b.taken[0][i] == run && b.taken[1][i] == run);
    }
    drop(b.team, ctx);
}

static void ranges_cover_exactly(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 70; n++)
        for (uint64_t grain = 1; grain < 9; grain++)
            for (uint32_t ranks = 1; ranks < 9; ranks++) {
                uint64_t at = 0, lo = UINT64_MAX, hi = 0;
                for (uint32_t r = 0; r < ranks; r++) {
                    uint64_t a, b;
                    lt__team_range(n, grain, r, ranks, &a, &b);
                    assert_true(a == at && b >= a && (b == n || b % grain == 0));
                    uint64_t grains = (b - a + grain - 1) / grain;
                    lo = grains < lo ? grains : lo;
                    hi = grains > hi ? grains : hi;
                    at = b;
                }
                assert_int_equal(at, n);
                assert_true(hi - lo <= 1);
            }
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    lt_ctx *ctx = make_ctx();
    lt_team *t;
    lt_err err;
    assert_int_equal(lt__team_create(ctx, 0, &t, &err), LT_E_INVALID);
    assert_int_equal(lt__team_create(ctx, LT_TEAM_MAX + 1, &t, &err), LT_E_INVALID);
    lt__team_destroy(NULL);
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

static void teams_come_and_go(void **state)
{
    (void)state;
    lt_ctx *ctx = make_ctx();
    for (int i = 0; i < 200; i++) {
        lt_team *t = make_team(ctx, 3);
        tally y = {0};
        if (i % 2)
            lt__team_run(t, count_rank, &y);
        lt__team_destroy(t);
    }
    assert_int_equal(lt_ctx_host_bytes(ctx), 0);
    lt_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_once),         cmocka_unit_test(barriers_separate_rounds),
        cmocka_unit_test(each_item_is_taken_once), cmocka_unit_test(ranges_cover_exactly),
        cmocka_unit_test(sizes_out_of_range_are_refused), cmocka_unit_test(teams_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
