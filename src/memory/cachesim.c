#include "memory/cachesim.h"

#include <string.h>

typedef struct slot {
    uint64_t have;     /* bytes of the item in the cache; a policy keeps all or none */
    uint32_t pins, at; /* at: position in the list of what is resident */
    lt_item_view view;
} slot;

typedef struct sim {
    lt_ctx *ctx;
    const lt__cachesim_item *items;
    slot *slots;
    uint32_t *resident;
    uint64_t *next; /* per step: lease count of the item's next lease */
    size_t n_items, n_steps, n_resident;
    uint64_t used, budget;
} sim;

static void sim_deinit(sim *s)
{
    lt__free(s->ctx, s->slots, s->n_items * sizeof *s->slots);
    lt__free(s->ctx, s->resident, s->n_items * sizeof *s->resident);
    lt__free(s->ctx, s->next, s->n_steps * sizeof *s->next);
}

static lt_status sim_init(sim *s, lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                          const lt__cachesim_step *steps, size_t n_steps, uint64_t budget, lt_err *err)
{
    *s = (sim){.ctx = ctx, .items = items, .n_items = n_items, .n_steps = n_steps, .budget = budget};
    if (n_items > UINT32_MAX)
        return lt__fail(err, LT_E_INVALID, "cache simulation: %zu items, at most 2^32 - 1 expected", n_items);
    uint64_t leases = 0;
    for (size_t i = 0; i < n_steps; i++) {
        if (steps[i].item >= n_items)
            return lt__fail(err, LT_E_INVALID, "cache simulation: step %zu names item %u of %zu", i,
                            steps[i].item, n_items);
        leases += !steps[i].release;
    }
    if (!n_items || !n_steps) return LT_OK;
    s->slots = lt__alloc_array(ctx, n_items, sizeof *s->slots);
    s->resident = lt__alloc_array(ctx, n_items, sizeof *s->resident);
    s->next = lt__alloc_array(ctx, n_steps, sizeof *s->next);
    if (!s->slots || !s->resident || !s->next) {
        sim_deinit(s);
        return lt__fail_oom(err, n_items * sizeof *s->slots + n_steps * sizeof *s->next,
                            "a cache simulation");
    }
    for (size_t i = 0; i < n_items; i++)
        s->slots[i].view = (lt_item_view){.item = {(uint32_t)i, 1},
                                          .bytes = items[i].bytes,
                                          .priority = items[i].priority,
                                          .next_use = LT_NEXT_USE_NEVER};
    for (size_t i = n_steps; i-- > 0;) { /* next_use serves as scratch, and ends at the first use */
        if (steps[i].release) continue;
        s->next[i] = s->slots[steps[i].item].view.next_use;
        s->slots[steps[i].item].view.next_use = leases--;
    }
    return LT_OK;
}

static void leave(sim *s, uint32_t item)
{
    slot *gone = &s->slots[item];
    uint32_t last = s->resident[--s->n_resident];
    s->resident[gone->at] = last;
    s->slots[last].at = gone->at;
    s->used -= gone->have;
    gone->have = 0;
}

static void enter(sim *s, uint32_t item, uint64_t bytes)
{
    slot *v = &s->slots[item];
    if (!v->have && bytes) {
        v->at = (uint32_t)s->n_resident;
        s->resident[s->n_resident++] = item;
    }
    v->have += bytes;
    s->used += bytes;
}

/* The unpinned resident item with the lowest score; ties go to the lower number. */
static bool pick(const sim *s, uint32_t but, lt_policy_fn *policy, void *user, uint64_t now, uint32_t *victim)
{
    bool found = false;
    double low = 0;
    for (size_t k = 0; k < s->n_resident; k++) {
        uint32_t i = s->resident[k];
        if (s->slots[i].pins || i == but) continue;
        double score = policy(user, &s->slots[i].view, now);
        if (found && (score > low || (score == low && i > *victim))) continue;
        found = true;
        low = score;
        *victim = i;
    }
    return found;
}

static uint64_t pinned_bytes(const sim *s, uint32_t but)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < s->n_resident; k++)
        if (s->slots[s->resident[k]].pins && s->resident[k] != but) sum += s->slots[s->resident[k]].have;
    return sum;
}

static bool pin(sim *s, const lt__cachesim_step *step, size_t i, uint64_t now)
{
    slot *v = &s->slots[step->item];
    if (step->release) {
        if (v->pins) v->pins--;
        return false;
    }
    v->view.last_use = now;
    v->view.next_use = s->next[i];
    v->view.uses++;
    return true;
}

/* whole: evicted items leave as a whole (a policy); else byte by byte (the bound). */
static lt_status run(lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                     const lt__cachesim_step *steps, size_t n_steps, uint64_t budget, lt_policy_fn *policy,
                     void *user, bool whole, lt__cachesim_result *out, lt_err *err)
{
    sim s;
    memset(out, 0, sizeof *out);
    lt_status st = sim_init(&s, ctx, items, n_items, steps, n_steps, budget, err);
    if (st != LT_OK) return st;
    for (size_t i = 0; i < n_steps; i++) {
        slot *v = &s.slots[steps[i].item];
        if (!pin(&s, &steps[i], i, out->leases + 1)) continue;
        uint64_t now = ++out->leases, need = v->view.bytes - v->have;
        v->pins++;
        if (!need) {
            out->hits++;
            continue;
        }
        out->loads++;
        if (!lt__add_u64(out->bytes_in, need, &out->bytes_in)) {
            st = lt__fail(err, LT_E_INVALID, "cache simulation: more than 2^64 bytes moved after %zu steps",
                          i);
            break;
        }
        uint64_t held = pinned_bytes(&s, steps[i].item);
        if (v->view.bytes > s.budget || held > s.budget - v->view.bytes) {
            out->unplaced++;
            v->pins--;
            continue;
        }
        while (s.used > s.budget - need) {
            uint32_t victim = 0;
            bool found = pick(&s, steps[i].item, policy, user, now, &victim);
            LT_ASSERT(found);
            uint64_t excess = s.used - (s.budget - need);
            out->evictions++;
            if (!whole && s.slots[victim].have > excess) {
                s.slots[victim].have -= excess;
                s.used -= excess;
            } else {
                leave(&s, victim);
            }
        }
        v->view.loaded = now;
        enter(&s, steps[i].item, need);
    }
    sim_deinit(&s);
    return st;
}

lt_status lt__cachesim_run(lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                           const lt__cachesim_step *steps, size_t n_steps, uint64_t budget,
                           lt_policy_fn *policy, void *user, lt__cachesim_result *out, lt_err *err)
{
    return run(ctx, items, n_items, steps, n_steps, budget, policy, user, true, out, err);
}

lt_status lt__cachesim_optimal(lt_ctx *ctx, const lt__cachesim_item *items, size_t n_items,
                               const lt__cachesim_step *steps, size_t n_steps, uint64_t budget,
                               lt__cachesim_result *out, lt_err *err)
{
    bool equal = n_items > 0;
    for (size_t i = 1; equal && i < n_items; i++) equal = items[i].bytes == items[0].bytes;
    if (equal && items[0].bytes) budget -= budget % items[0].bytes;
    return run(ctx, items, n_items, steps, n_steps, budget, lt_policy_next_use, NULL, false, out, err);
}
