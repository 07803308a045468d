/* rebudget.c - another budget between two passes: KV to the host, the arena given back first, a new plan
 * and engine, KV back. No bit of the sequence depends on it. */
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "memory/trace.h"
#include "run/session_impl.h"

#define HUGE ((size_t)2 << 20)
#define PIN_LEAST ((size_t)16 << 20) /* below, page-locking costs more than it saves */

/* --- KV on the host -------------------------------------------------------------------- */

void lt__session_drop_saved(lt_session *s)
{
    lt__saved_kv *k = &s->saved;
    if (k->pinned)
        lt_device_unpin(s->dev, k->at, k->bytes);
    lt__free(s->ctx, k->block, k->block_bytes);
    *k = (lt__saved_kv){0};
}

/* Pages with positions of the sequence that this plan's ring of pages still holds. */
static void held_pages(const lt_session *s, uint32_t g, uint32_t *first, uint32_t *n)
{
    *first = *n = 0;
    if (!s->length)
        return;
    uint32_t last = (s->length - 1) / LT_KV_PAGE, newest = (s->deepest - 1) / LT_KV_PAGE, pages = s->plan->pages[g];
    uint32_t lowest = newest >= pages ? newest + 1 - pages : 0;
    *first = lowest > s->oldest[g] ? lowest : s->oldest[g];
    *n = *first <= last ? last + 1 - *first : 0;
}

static uint64_t page_at(const lt_plan *p, uint32_t g, uint32_t page)
{
    return page % p->pages[g] * p->groups[g].page_bytes;
}

static lt_status save_kv(lt_session *s, lt_err *err)
{
    lt__saved_kv *k = &s->saved;
    *k = (lt__saved_kv){0};
    for (uint32_t g = 0; g < s->plan->n_groups; g++) {
        held_pages(s, g, &k->first[g], &k->n[g]);
        k->bytes += k->n[g] * s->plan->groups[g].page_bytes;
    }
    if (!k->bytes)
        return LT_OK;
    k->block_bytes = k->bytes + HUGE;
    k->block = lt__alloc(s->ctx, k->block_bytes);
    if (!k->block) {
        *k = (lt__saved_kv){0};
        return lt__fail_oom(err, k->bytes, "the KV cache while the budget changes");
    }
    k->at = (uint8_t *)lt__round_up((uintptr_t)k->block, HUGE);
    madvise(k->at, lt__round_down(k->bytes, HUGE), MADV_HUGEPAGE); /* a wish */
    lt_err why;
    if (k->bytes >= PIN_LEAST) {
        k->pinned = lt_device_pin(s->dev, k->at, k->bytes, &why) == LT_OK;
        if (!k->pinned)
            lt__log(s->ctx, LT_LOG_DEBUG, "budget", "KV goes through pageable memory: %s", why.text);
    }
    lt_status st = LT_OK;
    uint8_t *to = k->at;
    for (uint32_t g = 0; g < s->plan->n_groups; g++)
        for (uint32_t i = 0; i < k->n[g] && st == LT_OK; i++, to += s->plan->groups[g].page_bytes)
            st = lt__engine_save(s->engine, s->t_kv[g], page_at(s->plan, g, k->first[g] + i), to, s->plan->groups[g].page_bytes, err);
    lt_err late;
    lt_status sync = lt__engine_sync(s->engine, st == LT_OK ? err : &late);
    st = st == LT_OK ? sync : st;
    if (st != LT_OK)
        lt__session_drop_saved(s);
    return st;
}

/* A smaller batch needs a shorter ring of pages: the oldest that were saved have no place in it. */
static uint32_t left_out(const lt_session *s, uint32_t g)
{
    uint32_t n = s->saved.n[g], pages = s->plan->pages[g];
    return n > pages ? n - pages : 0;
}

static lt_status restore_kv(lt_session *s, lt_err *err)
{
    const lt__saved_kv *k = &s->saved;
    const uint8_t *from = k->at;
    for (uint32_t g = 0; g < s->plan->n_groups; g++) {
        uint64_t bytes = s->plan->groups[g].page_bytes;
        for (uint32_t i = left_out(s, g); i < k->n[g]; i++) {
            lt_status st = lt__engine_restore(s->engine, s->t_kv[g], page_at(s->plan, g, k->first[g] + i), from + i * bytes, bytes, err);
            if (st != LT_OK)
                return st;
        }
        from += k->n[g] * bytes;
    }
    lt_status st = lt__engine_sync(s->engine, err);
    if (st != LT_OK)
        return st;
    for (uint32_t g = 0; g < s->plan->n_groups; g++)
        s->oldest[g] = k->first[g] + left_out(s, g);
    s->deepest = s->length;
    return LT_OK;
}

/* --- plans and engines ------------------------------------------------------------------ */

static void drop_engine(lt_session *s)
{
    if (!s->engine)
        return;
    lt_residency_stats all;
    lt__session_residency_stats(s, &all);
    lt_pool_get_stats(lt__engine_pool(s->engine), &s->last_pool);
    s->past = all;
    s->past_mapped += lt__engine_mapped_bytes(s->engine);
    lt__engine_destroy(s->engine);
    s->engine = NULL;
}

/* With no engine there: one for p, with the KV that was saved. `own` is p where the session owns it, and is
 * the session's from the moment the arena exists. */
static lt_status try_plan(lt_session *s, const lt_plan *p, lt_plan *own, bool quiet, lt_err *err)
{
    lt__host_io io = {0};
    lt_status st = LT_OK;
    bool fresh = p != s->plan;
    if (fresh && (st = lt__session_alloc_io(s, p, &io, err)) != LT_OK)
        return st;
    if (p->direct != s->store_direct)
        st = lt__session_open_store(s, p->direct, err);
    if (st == LT_OK)
        st = lt__session_make_engine(s, p, quiet, err);
    if (st != LT_OK) {
        lt__session_free_io(s, &io);
        return st;
    }
    if (fresh) {
        lt__session_free_io(s, &s->io);
        s->io = io;
        if (s->own != own)
            lt_plan_destroy(s->own);
        s->own = own;
        s->plan = p;
    }
    st = lt__session_find_tensors(s, err);
    if (st == LT_OK)
        st = restore_kv(s, err);
    if (st != LT_OK) {
        lt_err kept = err ? *err : (lt_err){0};
        drop_engine(s);
        if (err)
            *err = kept;
        return st;
    }
    lt__session_drop_saved(s);
    s->budget_most = lt__max_u64(s->budget_most, p->info.budget_bytes);
    return LT_OK;
}

static bool is_oom(lt_status st) { return st == LT_E_DEVICE_OOM || st == LT_E_HOST_OOM; }

/* The smallest plan that keeps the context. */
static lt_status try_least(lt_session *s, lt_err *err)
{
    lt_plan *p;
    lt_status st = lt__plan_again(s->first, s->dev, s->giving.least, &p, err);
    if (st != LT_OK)
        return st;
    st = try_plan(s, p, p, true, err);
    if (s->own != p)
        lt_plan_destroy(p);
    return st;
}

/* An engine there was lost to a failed change: the plan it was to have, else the smallest. */
static lt_status ensure_engine(lt_session *s, lt_err *err)
{
    if (s->engine)
        return LT_OK;
    lt_status st = try_plan(s, s->plan, s->own, true, err);
    if (is_oom(st) && s->giving.least && s->giving.least < s->plan->info.budget_bytes)
        st = try_least(s, err);
    return st;
}

/* The smallest budget with this context; asked once, and not at all in a run that nobody disturbs. */
static lt_status find_least(lt_session *s, lt_err *err)
{
    lt_plan *p;
    lt_device_info info;
    if (s->giving.least)
        return LT_OK;
    lt_device_get_info(s->dev, &info);
    lt_status st = lt__plan_again(s->first, s->dev, info.total_bytes, &p, err);
    if (st != LT_OK)
        return st;
    s->giving.least = p->info.smallest_budget_bytes;
    lt_plan_destroy(p);
    return LT_OK;
}

static void note_change(lt_session *s, lt_budget_change c)
{
    char a[24], b[24], f[24], m[24];
    s->change_seconds += c.seconds;
    c.decode_tps = s->since.seconds > 0 ? (double)s->since.tokens / s->since.seconds : 0;
    s->since = (lt_phase){0};
    s->missed = c.missed_bytes;
    /* A line lost to memory is not worth failing a run for. */
    if (lt__grow(s->ctx, (void **)&s->changes, &s->cap_changes, s->n_changes + 1, sizeof *s->changes, NULL) == LT_OK)
        s->changes[s->n_changes++] = c;
    lt__trace_record(s->desc.trace, 0, LT__TRACE_BUDGET, c.at_token, c.to, c.from);
    if (c.missed_bytes)
        lt__format_bytes(c.missed_bytes, m, sizeof m);
    lt__log(s->ctx, LT_LOG_WARN, "budget", "%s at token %u: %s -> %s, %s were free, %.3f s%s%s%s", c.why, c.at_token,
            lt__format_bytes(c.from, a, sizeof a), lt__format_bytes(c.to, b, sizeof b),
            lt__format_bytes(c.free_bytes, f, sizeof f), c.seconds, c.missed_bytes ? "; the reserve is missed by " : "",
            c.missed_bytes ? m : "", c.missed_bytes ? ": no smaller plan exists" : "");
}

/* *refused: the device did not give what `to` needs, and another plan is at work. */
static lt_status change_budget(lt_session *s, uint64_t to, lt_budget_change c, bool *refused, lt_err *err)
{
    uint64_t t0 = lt__now_ns();
    lt_plan *next = NULL;
    *refused = false;
    c.at_token = s->length;
    c.from = s->plan->info.budget_bytes;
    lt_status st = LT_OK;
    if (to != s->first->info.budget_bytes && (st = lt__plan_again(s->first, s->dev, to, &next, err)) != LT_OK)
        return st;
    if (s->engine && (st = save_kv(s, err)) != LT_OK) {
        lt_plan_destroy(next);
        return st;
    }
    lt__nvtx_push(&s->nvtx, "change of budget");
    const lt_plan_info *n = &(next ? next : s->first)->info;
    lt__share_keep(s->desc.share, n->predicted_peak_bytes - n->fixed_bytes);
    lt_device_keep(s->dev, lt__min_u64(n->predicted_peak_bytes - n->fixed_bytes, s->plan->arena_bytes));
    drop_engine(s);
    lt__session_publish(s, "loading", true); /* to read weights again takes seconds */
    st = try_plan(s, next ? next : s->first, next, true, err);
    if (is_oom(st)) {
        *refused = true;
        lt_err back;
        lt_status was = c.from < to ? try_plan(s, s->plan, s->own, true, &back) : st;
        if (is_oom(was))
            was = try_least(s, &back);
        st = was == LT_OK ? LT_OK : st;
    }
    lt_device_keep(s->dev, 0);
    lt__nvtx_pop(&s->nvtx);
    if (next && s->own != next)
        lt_plan_destroy(next);
    if (st != LT_OK)
        return st;
    c.to = s->plan->info.budget_bytes;
    s->drawn = NULL; /* a plan's address may be met again */
    c.seconds = (double)(lt__now_ns() - t0) * 1e-9;
    c.why = *refused ? "refused" : c.why;
    note_change(s, c);
    return LT_OK;
}

/* A plan for a smaller budget: what is free now, else a quarter less; the smallest at last. */
static lt_status try_less(lt_session *s, uint64_t *budget, lt_err *err)
{
    uint64_t free_bytes = s->first->info.fixed_bytes + lt_device_free_bytes(s->dev), t0 = lt__now_ns();
    uint64_t to = lt__max_u64(s->giving.least, free_bytes < *budget ? free_bytes : *budget - *budget / 4);
    lt_budget_change c = {.why = "refused", .from = *budget, .to = to, .free_bytes = free_bytes - s->first->info.fixed_bytes};
    lt_plan *p;
    lt_status st = lt__plan_again(s->first, s->dev, to, &p, err);
    if (st != LT_OK)
        return st;
    *budget = to;
    st = try_plan(s, p, p, false, err);
    c.seconds = (double)(lt__now_ns() - t0) * 1e-9;
    if (s->own != p)
        lt_plan_destroy(p);
    if (st == LT_OK)
        note_change(s, c);
    return st;
}

lt_status lt__session_first_engine(lt_session *s, lt_err *err)
{
    uint64_t budget = s->plan->info.budget_bytes;
    lt_err first = {0}, again;
    lt_status st = lt__session_make_engine(s, s->plan, false, &first);
    if (st == LT_OK)
        return lt__session_find_tensors(s, err);
    lt_status less = st == LT_E_DEVICE_OOM ? find_least(s, &again) : st;
    while (less == LT_OK && st == LT_E_DEVICE_OOM && budget > s->giving.least)
        st = try_less(s, &budget, &again);
    if (st == LT_OK)
        return LT_OK;
    if (err)
        *err = first;
    return first.status;
}

lt_status lt_session_rebudget(lt_session *s, uint64_t bytes, lt_err *err)
{
    if (!bytes)
        bytes = s->first->info.budget_bytes;
    lt_err why = {0};
    lt_status st = find_least(s, err);
    if (st != LT_OK)
        return st;
    bool refused;
    lt_budget_change c = {.why = "asked", .free_bytes = lt_device_free_bytes(s->dev)};
    st = change_budget(s, bytes, c, &refused, &why);
    atomic_store(&s->cancel, false);
    if (st == LT_OK && !refused) {
        s->giving.want = bytes;
        return LT_OK;
    }
    if (st == LT_OK)
        return lt__fail_native(err, why.status, why.native, "a budget of %lu bytes was refused, it is %lu now: %.380s", bytes,
                               s->plan->info.budget_bytes, why.text);
    if (s->engine) {
        if (err)
            *err = why;
        return st;
    }
    return lt__fail_native(err, st, why.native, "no arena after a change of budget, the next pass tries again: %.380s", why.text);
}

lt_status lt_session_look(lt_session *s, lt_err *err)
{
    lt_status st = lt__session_before_pass(s, err);
    lt__session_publish(s, "idle", false);
    return st;
}

/* --- giving way ------------------------------------------------------------------------- */

void lt__session_watch(lt_session *s)
{
    lt_device_info info;
    lt_device_get_info(s->dev, &info);
    const lt_plan *p = s->first;
    uint64_t reserve = s->desc.reserve_bytes;
    uint64_t all = info.total_bytes > reserve ? info.total_bytes - reserve : 0;
    uint64_t want = s->desc.want_bytes ? s->desc.want_bytes : p->desc.budget_bytes ? p->desc.budget_bytes : all;
    s->virtual_clock = info.virtual_clock;
    s->watching = s->desc.give_way || s->desc.share;
    lt__giving_init(&s->giving, info.total_bytes, info.commit_bytes, reserve, lt__max_u64(want, p->info.budget_bytes));
}

static uint64_t now_ns(const lt_session *s)
{
    if (!s->virtual_clock)
        return lt__now_ns();
    lt_device_stats d;
    lt_device_get_stats(s->dev, &d);
    return d.now_ns;
}

/* Beyond this a budget would change nothing: all weights resident, passes as large as at first. */
static uint64_t useful_bytes(const lt_session *s)
{
    const lt_plan_info *p = &s->plan->info, *f = &s->first->info;
    uint64_t more = p->streamed_bytes + p->streamed_items * LT__PLAN_ALIGN;
    if (p->batch < f->batch || p->rows < f->rows)
        more += f->activation_bytes + f->io_bytes + f->scratch_bytes + f->kv_bytes -
                lt__min_u64(f->activation_bytes + f->io_bytes + f->scratch_bytes + f->kv_bytes,
                            p->activation_bytes + p->io_bytes + p->scratch_bytes + p->kv_bytes);
    return p->predicted_peak_bytes + more;
}

/* The least is not known before somebody needs room: until then it is the plan at work. */
void lt__session_published(void *session)
{
    lt_session *s = session;
    uint64_t have = s->making->info.predicted_peak_bytes;
    lt__share_publish(s->desc.share, have, s->giving.least ? s->giving.least : have, s->giving.want);
    lt__session_publish(s, "loading", true);
}

/* What others on the card ask for; also makes this session's least known to them, once. */
static lt_status look_at_others(lt_session *s, lt__give_facts *f, lt_err *err)
{
    lt__share_view v;
    if (!s->desc.share)
        return LT_OK;
    if (!s->giving.least) {
        lt_status st = find_least(s, err);
        if (st != LT_OK)
            return st;
        s->giving.least = lt__max_u64(s->giving.least, lt__share_floor(s->desc.share));
        lt__share_publish(s->desc.share, f->held, lt__min_u64(s->giving.least, f->held), s->giving.want);
    }
    if (!lt__share_look(s->desc.share, f->free_bytes, &v))
        return LT_OK;
    f->asked = v.asked;
    f->spoken_for = v.taken;
    return LT_OK;
}

static lt_status give_way(lt_session *s, uint64_t now, lt_err *err)
{
    lt__give_facts f = {.now_ns = now, .free_bytes = lt_device_free_bytes(s->dev),
                        .held = s->plan->info.predicted_peak_bytes, .budget = s->plan->info.budget_bytes, .useful = useful_bytes(s)};
    uint64_t to, missed;
    lt_status st = LT_OK;
    s->free_seen = f.free_bytes;
    if ((st = look_at_others(s, &f, err)) != LT_OK || (f.free_bytes < s->giving.reserve && (st = find_least(s, err)) != LT_OK))
        return st;
    lt__give_act act = lt__giving_decide(&s->giving, &f, &to, &missed);
    s->missed = missed;
    if (act == LT__GIVE_STAY || (st = find_least(s, err)) != LT_OK)
        return st;
    if (act == LT__GIVE_GROW && !lt__share_claim(s->desc.share, to - f.held, f.free_bytes))
        return LT_OK;
    bool refused;
    lt_budget_change c = {.why = act == LT__GIVE_GROW ? "relief" : f.asked ? "another Lowtide asked" : "pressure", .free_bytes = f.free_bytes, .missed_bytes = missed};
    st = change_budget(s, to, c, &refused, err);
    if (st != LT_OK && act == LT__GIVE_GROW)
        lt__share_publish(s->desc.share, s->engine ? f.held : 0, lt__min_u64(s->giving.least, f.held), s->giving.want);
    if (st == LT_OK && act == LT__GIVE_GROW) {
        if (refused)
            lt__giving_refused(&s->giving);
        else
            lt__giving_grew(&s->giving, now_ns(s));
    }
    return st;
}

lt_status lt__session_before_pass(lt_session *s, lt_err *err)
{
    lt_status st = ensure_engine(s, err);
    if (st != LT_OK || !s->watching)
        return st;
    uint64_t now = now_ns(s);
    if (now < s->next_look_ns)
        return LT_OK;
    s->next_look_ns = now + LT__GIVE_LOOK_NS;
    lt_err why;
    st = give_way(s, now, &why);
    if (st == LT_OK)
        return LT_OK;
    if (!s->engine) {
        if (err)
            *err = why;
        return st;
    }
    /* Nothing changed: the run goes on as it was, or its own pass says what is wrong. */
    lt__log(s->ctx, LT_LOG_WARN, "budget", "not changed: %s", why.text);
    s->next_look_ns = now + LT__GIVE_HOLD_NS;
    return LT_OK;
}
