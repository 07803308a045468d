/* Policies as tables, and every policy's regret against Belady on the classic orders. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "memory/cachesim.h"

static const char *const policies[] = {"lru", "fifo", "lfu", "priority", "next-use"};
enum { POLICIES = 5 };

static lt_ctx *ctx;
static uint64_t seed = 42;
static uint64_t rnd(uint64_t n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static void names(void **state)
{
    (void)state;
    for (int i = 0; i < POLICIES; i++) assert_non_null(lt_policy_by_name(policies[i]));
    assert_null(lt_policy_by_name("LRU"));
    assert_null(lt_policy_by_name(""));
    assert_null(lt_policy_by_name(NULL));
}

static void scores(void **state)
{
    (void)state;
    const struct {
        const char *policy;
        lt_item_view first, second; /* the first goes first */
    } rows[] = {
        {"lru", {.last_use = 3}, {.last_use = 4}},
        {"lru", {.last_use = 3, .uses = 9, .priority = 9}, {.last_use = 4}},
        {"fifo", {.loaded = 1, .last_use = 9}, {.loaded = 2, .last_use = 8}},
        {"lfu", {.uses = 1, .last_use = 9}, {.uses = 2, .last_use = 1}},
        {"lfu", {.uses = 2, .last_use = 1}, {.uses = 2, .last_use = 2}},
        {"priority", {.priority = -1, .last_use = 9}, {.priority = 0, .last_use = 1}},
        {"priority", {.priority = INT32_MAX - 1, .last_use = 9}, {.priority = INT32_MAX, .last_use = 1}},
        {"priority", {.priority = INT32_MIN, .last_use = 1}, {.priority = INT32_MIN, .last_use = 2}},
        {"next-use", {.next_use = 20}, {.next_use = 11}},
        {"next-use", {.next_use = LT_NEXT_USE_NEVER}, {.next_use = 1ull << 62}},
        {"next-use", {.next_use = 11}, {.next_use = 3}}, /* overdue: the plan was wrong, keep it */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_policy_fn *fn = lt_policy_by_name(rows[i].policy);
        assert_true(fn(NULL, &rows[i].first, 10) < fn(NULL, &rows[i].second, 10));
    }
}

enum { MAX_STEPS = 40000, MAX_ITEMS = 256 };
typedef struct order {
    char name[40];
    lt__cachesim_item items[MAX_ITEMS];
    lt__cachesim_step steps[2 * MAX_STEPS];
    size_t n_items, n_steps;
    uint64_t budget;
    bool equal;
} order;

static void use(order *o, uint32_t item)
{
    o->steps[o->n_steps++] = (lt__cachesim_step){item, false};
    o->steps[o->n_steps++] = (lt__cachesim_step){item, true};
}

static void begin(order *o, const char *name, uint32_t n, uint64_t budget_items)
{
    memset(o, 0, sizeof *o);
    snprintf(o->name, sizeof o->name, "%s", name);
    o->n_items = n;
    o->equal = true;
    o->budget = budget_items << 20;
    for (uint32_t i = 0; i < n; i++) o->items[i] = (lt__cachesim_item){1 << 20, (int32_t)(i % 7)};
}

static void make_cyclic(order *o, uint32_t n, uint32_t c)
{
    char name[40];
    snprintf(name, sizeof name, "cyclic %u/%u", n, c);
    begin(o, name, n, c);
    for (int sweep = 0; sweep < 60; sweep++)
        for (uint32_t i = 0; i < n; i++) use(o, i);
}

static void make_there_and_back(order *o)
{
    begin(o, "forward-backward 80/40", 80, 40);
    for (int sweep = 0; sweep < 60; sweep++)
        for (uint32_t i = 0; i < 80; i++) use(o, sweep & 1 ? 79 - i : i);
}

static void make_zipf(order *o)
{
    begin(o, "zipf(1.0) 128/32", 128, 32);
    double sum[128], all = 0;
    for (int i = 0; i < 128; i++) sum[i] = all += 1.0 / (i + 1);
    for (int s = 0; s < 8000; s++) {
        double at = (double)rnd(1 << 30) / (1 << 30) * all;
        uint32_t i = 0;
        while (i < 127 && sum[i] < at) i++;
        use(o, i * 37 % 128);
    }
}

static void make_skips(order *o)
{
    begin(o, "cyclic 80/40, 10% skipped", 80, 40);
    for (int sweep = 0; sweep < 60; sweep++)
        for (uint32_t i = 0; i < 80; i++)
            if (rnd(10)) use(o, i);
}

static void make_mixed(order *o)
{
    begin(o, "cyclic, sizes x64, half fits", 120, 0);
    uint64_t all = 0;
    for (uint32_t i = 0; i < 120; i++) {
        o->items[i].bytes = (1ull << (14 + rnd(7))) + rnd(4096) * 64;
        all += o->items[i].bytes;
    }
    o->equal = false;
    o->budget = all / 2;
    for (int sweep = 0; sweep < 40; sweep++)
        for (uint32_t i = 0; i < 120; i++) use(o, i);
}

static void make_mixed_zipf(order *o)
{
    make_zipf(o);
    snprintf(o->name, sizeof o->name, "zipf(1.0), sizes x64");
    uint64_t all = 0;
    for (uint32_t i = 0; i < 128; i++) {
        o->items[i].bytes = (1ull << (14 + rnd(7))) + rnd(4096) * 64;
        all += o->items[i].bytes;
    }
    o->equal = false;
    o->budget = all / 4;
}

static void regret_table(void **state)
{
    (void)state;
    static order orders[9];
    size_t n = 0;
    make_cyclic(&orders[n++], 80, 72);
    make_cyclic(&orders[n++], 80, 40);
    make_cyclic(&orders[n++], 32, 31);
    make_cyclic(&orders[n++], 80, 10);
    make_there_and_back(&orders[n++]);
    make_zipf(&orders[n++]);
    make_skips(&orders[n++]);
    make_mixed(&orders[n++]);
    make_mixed_zipf(&orders[n++]);
    printf("regret in bytes against Belady, %% (hits, %%); mixed sizes: against a lower bound\n%-30s", "order");
    for (int p = 0; p < POLICIES; p++) printf("%18s", policies[p]);
    printf("%14s\n", "optimum hits");
    for (size_t k = 0; k < n; k++) {
        order *o = &orders[k];
        lt__cachesim_result best, got;
        assert_int_equal(lt__cachesim_optimal(ctx, o->items, o->n_items, o->steps, o->n_steps, o->budget, &best, NULL), LT_OK);
        printf("%-30s", o->name);
        for (int p = 0; p < POLICIES; p++) {
            assert_int_equal(lt__cachesim_run(ctx, o->items, o->n_items, o->steps, o->n_steps, o->budget,
                                              lt_policy_by_name(policies[p]), NULL, &got, NULL), LT_OK);
            assert_int_equal(got.hits + got.loads, got.leases);
            assert_true(got.bytes_in >= best.bytes_in);
            double regret = (double)got.bytes_in / (double)best.bytes_in - 1;
            printf("%9.1f (%5.1f)", 100 * regret, 100.0 * (double)got.hits / (double)got.leases);
            if (strncmp(o->name, "cyclic", 6) == 0 && o->equal && !strchr(o->name, ',')) {
                if (!strcmp(policies[p], "lru") || !strcmp(policies[p], "fifo")) assert_int_equal(got.hits, 0);
            }
            if (!strcmp(policies[p], "next-use")) {
                if (o->equal) assert_true(regret == 0.0);
                else assert_true(regret < 0.10);
            }
        }
        printf("%14.1f\n", 100.0 * (double)best.hits / (double)best.leases);
    }
    fflush(stdout);
}

static void cyclic_optimum_is_the_closed_form(void **state)
{
    (void)state;
    static order o;
    const uint32_t cases[][2] = {{80, 72}, {80, 40}, {32, 31}, {80, 10}};
    for (size_t k = 0; k < 4; k++) {
        lt__cachesim_result best;
        make_cyclic(&o, cases[k][0], cases[k][1]);
        assert_int_equal(lt__cachesim_optimal(ctx, o.items, o.n_items, o.steps, o.n_steps, o.budget, &best, NULL), LT_OK);
        double want = (double)(cases[k][1] - 1) / (double)(cases[k][0] - 1); /* hits in the steady state */
        double got = (double)best.hits / (double)(best.leases - cases[k][0]); /* the first sweep only loads */
        assert_true(fabs(got - want) < 0.01);
    }
}

/* The exact whole-item optimum by dynamic programming over all subsets. */
static uint64_t brute(const lt__cachesim_item *items, uint32_t n, const uint32_t *uses, uint32_t n_uses, uint64_t budget)
{
    static uint64_t cost[2][1 << 6];
    memset(cost[0], 0xff, sizeof cost[0]);
    cost[0][0] = 0;
    for (uint32_t t = 0; t < n_uses; t++) {
        uint64_t *from = cost[t & 1], *to = cost[~t & 1];
        memset(to, 0xff, sizeof cost[0]);
        for (uint32_t s = 0; s < 1u << n; s++) {
            if (from[s] == UINT64_MAX) continue;
            uint32_t with = s | 1u << uses[t];
            uint64_t c = from[s] + (s >> uses[t] & 1 ? 0 : items[uses[t]].bytes);
            for (uint32_t sub = with;; sub = (sub - 1) & with) { /* may drop any, not what is in use */
                uint64_t held = 0;
                for (uint32_t i = 0; i < n; i++) held += sub >> i & 1 ? items[i].bytes : 0;
                if (sub >> uses[t] & 1 && held <= budget && c < to[sub]) to[sub] = c;
                if (!sub) break;
            }
        }
    }
    uint64_t best = UINT64_MAX;
    for (uint32_t s = 0; s < 1u << n; s++) best = lt__min_u64(best, cost[n_uses & 1][s]);
    return best;
}

static void bound_against_every_schedule(void **state)
{
    (void)state;
    uint64_t slack = 0;
    for (int round = 0; round < 150; round++) {
        lt__cachesim_item items[6];
        lt__cachesim_step steps[48];
        uint32_t uses[24], n = 4 + (uint32_t)rnd(3);
        bool equal = round & 1;
        uint64_t biggest = 0, all = 0;
        for (uint32_t i = 0; i < n; i++) {
            items[i] = (lt__cachesim_item){equal ? 8 : 1 + rnd(12), 0};
            biggest = lt__max_u64(biggest, items[i].bytes);
            all += items[i].bytes;
        }
        uint64_t budget = biggest + rnd(all - biggest);
        for (uint32_t t = 0; t < 24; t++) {
            uses[t] = (uint32_t)rnd(n);
            steps[2 * t] = (lt__cachesim_step){uses[t], false};
            steps[2 * t + 1] = (lt__cachesim_step){uses[t], true};
        }
        lt__cachesim_result bound, got;
        assert_int_equal(lt__cachesim_optimal(ctx, items, n, steps, 48, budget, &bound, NULL), LT_OK);
        uint64_t exact = brute(items, n, uses, 24, budget);
        if (equal) assert_int_equal(bound.bytes_in, exact);
        assert_true(bound.bytes_in <= exact);
        slack += exact - bound.bytes_in;
        for (int p = 0; p < POLICIES; p++) {
            assert_int_equal(lt__cachesim_run(ctx, items, n, steps, 48, budget, lt_policy_by_name(policies[p]), NULL, &got, NULL), LT_OK);
            assert_true(got.bytes_in >= exact);
        }
    }
    assert_true(slack > 0);
}

static void leases_that_overlap(void **state)
{
    (void)state;
    const lt__cachesim_item items[] = {{10, 0}, {10, 0}, {10, 0}};
    const lt__cachesim_step steps[] = {{0, false}, {1, false}, {2, false}, {0, false}, {1, false},
                                       {0, true},  {0, true},  {2, false}, {2, true}};
    lt__cachesim_result got;
    assert_int_equal(lt__cachesim_run(ctx, items, 3, steps, 9, 20, lt_policy_lru, NULL, &got, NULL), LT_OK);
    assert_int_equal(got.unplaced, 1); /* 0 and 1 are held when 2 comes */
    assert_int_equal(got.hits, 2);
    assert_int_equal(got.evictions, 1); /* the second 2 takes the place of 0 */
    const lt__cachesim_step wrong[] = {{3, false}};
    lt_err err;
    assert_int_equal(lt__cachesim_run(ctx, items, 3, wrong, 1, 20, lt_policy_lru, NULL, &got, &err), LT_E_INVALID);
    assert_int_equal(lt__cachesim_run(ctx, items, 3, steps, 9, 5, lt_policy_lru, NULL, &got, NULL), LT_OK);
    assert_int_equal(got.unplaced, got.leases);
    assert_int_equal(lt__cachesim_optimal(ctx, NULL, 0, NULL, 0, 5, &got, NULL), LT_OK);
}

static int setup(void **state)
{
    (void)state;
    return lt_ctx_create(NULL, &ctx, NULL) == LT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    int leaked = lt_ctx_host_bytes(ctx) != 0;
    lt_ctx_destroy(ctx);
    return leaked;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(scores),
        cmocka_unit_test(regret_table),
        cmocka_unit_test(cyclic_optimum_is_the_closed_form),
        cmocka_unit_test(bound_against_every_schedule),
        cmocka_unit_test(leases_that_overlap),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
