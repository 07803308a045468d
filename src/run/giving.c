#include "run/giving.h"

#include "base/mem.h"

#define SLACK_MOST (UINT64_C(256) << 20)

void lt__giving_init(lt__giving *g, uint64_t total_bytes, uint64_t commit_bytes, uint64_t reserve, uint64_t want)
{
    uint64_t slack = lt__min_u64(total_bytes / 64, SLACK_MOST);
    *g = (lt__giving){.reserve = reserve, .want = want, .slack = lt__max_u64(slack, commit_bytes), .hold_ns = LT__GIVE_HOLD_NS};
}

static void hold_longer(lt__giving *g) { g->hold_ns = lt__min_u64(2 * g->hold_ns, LT__GIVE_HOLD_MOST_NS); }

void lt__giving_grew(lt__giving *g, uint64_t now_ns)
{
    g->relief_since = 0;
    g->grown_at = now_ns;
}

void lt__giving_refused(lt__giving *g)
{
    g->relief_since = 0;
    hold_longer(g);
}

static lt__give_act shrink(lt__giving *g, const lt__give_facts *f, uint64_t deficit, uint64_t *to, uint64_t *missed)
{
    g->relief_since = 0;
    /* A neighbour who takes what it is given, again and again: larger steps cost fewer plans. */
    bool again = g->streak && f->now_ns - g->shrunk_at < LT__GIVE_STREAK_NS;
    uint64_t slacks = again ? lt__min_u64(2 * g->streak, 8) : 1;
    uint64_t less = deficit + slacks * g->slack;
    *to = lt__max_u64(f->held > less ? f->held - less : 0, g->least);
    uint64_t given = f->held > *to ? f->held - *to : 0, own = g->reserve > f->free_bytes ? g->reserve - f->free_bytes : 0;
    *missed = own > given ? own - given : 0;
    if (*to >= f->held)
        return LT__GIVE_STAY;
    if (g->grown_at && f->now_ns - g->grown_at < LT__GIVE_RELAPSE_NS)
        hold_longer(g);
    else
        g->hold_ns = LT__GIVE_HOLD_NS;
    g->grown_at = 0;
    g->shrunk_at = f->now_ns;
    g->streak = slacks;
    return LT__GIVE_SHRINK;
}

lt__give_act lt__giving_decide(lt__giving *g, const lt__give_facts *f, uint64_t *to, uint64_t *missed)
{
    *to = f->held;
    *missed = 0;
    uint64_t deficit = (g->reserve > f->free_bytes ? g->reserve - f->free_bytes : 0);
    deficit = lt__max_u64(deficit, f->asked);
    if (deficit)
        return shrink(g, f, deficit, to, missed);
    uint64_t top = lt__min_u64(g->want, f->useful), keep = g->reserve + g->slack / 4 + f->spoken_for;
    if (top <= f->budget || f->free_bytes <= keep) {
        g->relief_since = 0;
        return LT__GIVE_STAY;
    }
    uint64_t could = lt__min_u64(g->want, f->held + (f->free_bytes - keep));
    /* A quarter of what is missing at least, or all of it: a plan costs a reload. */
    uint64_t gain = lt__min_u64(top - f->held, lt__max_u64(4 * g->slack, (top - f->held) / 4));
    if (could < f->held + gain) {
        g->relief_since = 0;
        return LT__GIVE_STAY;
    }
    if (!g->relief_since) {
        g->relief_since = f->now_ns ? f->now_ns : 1;
        g->relief_to = could;
    }
    g->relief_to = lt__min_u64(g->relief_to, could);
    if (f->now_ns - g->relief_since < g->hold_ns)
        return LT__GIVE_STAY;
    *to = g->relief_to;
    return LT__GIVE_GROW;
}
