/* Which item goes first: pure functions from facts to a score; the lowest is evicted. */
#include <math.h>
#include <string.h>

#include "lowtide/residency.h"

/* Orders items of equal rank by their last use: always in [0, 1). */
static double recency(const lt_item_view *v, uint64_t now)
{
    uint64_t last = v->last_use < now ? v->last_use : now;
    return (double)last / ((double)now + 1.0);
}

double lt_policy_lru(void *user, const lt_item_view *v, uint64_t now)
{
    (void)user, (void)now;
    return (double)v->last_use;
}

double lt_policy_lfu(void *user, const lt_item_view *v, uint64_t now)
{
    (void)user;
    return (double)v->uses + recency(v, now);
}

double lt_policy_priority(void *user, const lt_item_view *v, uint64_t now)
{
    (void)user;
    return (double)v->priority + recency(v, now);
}

double lt_policy_next_use(void *user, const lt_item_view *v, uint64_t now)
{
    (void)user;
    if (v->next_use == LT_NEXT_USE_NEVER) return -INFINITY;
    return v->next_use > now ? -(double)(v->next_use - now) : 0.0;
}

double lt_policy_fifo(void *user, const lt_item_view *v, uint64_t now)
{
    (void)user, (void)now;
    return (double)v->loaded;
}

lt_policy_fn *lt_policy_by_name(const char *name)
{
    static const struct {
        const char *name;
        lt_policy_fn *fn;
    } rows[] = {{"lru", lt_policy_lru},
                {"lfu", lt_policy_lfu},
                {"priority", lt_policy_priority},
                {"next-use", lt_policy_next_use},
                {"fifo", lt_policy_fifo}};
    for (size_t i = 0; name && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0) return rows[i].fn;
    return NULL;
}
