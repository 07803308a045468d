/* share.c - asking others for room on a card, and seeing that they ask; see share.h. */
#include "lowtide/share.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "plan/plan_internal.h"
#include "run/ledger.h"
#include "run/share_impl.h"

#define WAIT_NS (UINT64_C(10) * 1000000000)
#define CONTEXT_BYTES (UINT64_C(1) << 30) /* asked for a context and its kernels: 0.5 GiB were seen on the largest cards */
#define LOCK_NS (UINT64_C(50) * 1000000)
#define SWEEP_NS (UINT64_C(500) * 1000000)
#define BEAT_NS (UINT64_C(1000) * 1000000)

struct lt_share {
    lt_ctx           *ctx;
    lt_device        *dev;
    lt__ledger       *ledger;
    lt__ledger_record own;
    uint64_t          wait_ns, floor, swept_ns, wrote_ns;
};

lt_share_desc lt_share_desc_default(void) { return (lt_share_desc){.struct_bytes = sizeof(lt_share_desc)}; }

static lt_status write_own(lt_share *s, lt_err *err)
{
    s->wrote_ns = lt__now_ns();
    return lt__ledger_write(s->ledger, &s->own, err);
}

lt_status lt_share_join(lt_ctx *ctx, lt_device *dev, const lt_share_desc *desc, lt_share **out, lt_err *err)
{
    *out = NULL;
    lt_share_desc d = desc ? *desc : lt_share_desc_default();
    if (d.struct_bytes != sizeof d)
        return lt__fail(err, LT_E_INVALID, "lt_share_desc: struct_bytes is %u, expected %zu", d.struct_bytes, sizeof d);
    lt_device_info info;
    lt_device_get_info(dev, &info);
    if (!*info.id)
        return LT_OK;
    lt_share *s = lt__zalloc(ctx, sizeof *s);
    if (!s)
        return lt__fail_oom(err, sizeof *s, "a share");
    *s = (lt_share){.ctx = ctx, .dev = dev, .wait_ns = d.wait_ns ? d.wait_ns : WAIT_NS, .floor = d.floor_bytes};
    snprintf(s->own.label, sizeof s->own.label, "%s", d.label ? d.label : "");
    char folder[256];
    lt_err why;
    lt_status st = lt__shared_folder(folder, sizeof folder, &why);
    if (st == LT_OK)
        st = lt__ledger_open(ctx, folder, info.id, &s->ledger, &why);
    if (st == LT_OK && lt__ledger_lock(s->ledger, LOCK_NS)) {
        st = write_own(s, &why);
        lt__ledger_unlock(s->ledger);
    }
    if (st != LT_OK) {
        lt__log(ctx, LT_LOG_WARN, "share", "other Lowtide processes on this card will not be seen: %s", why.text);
        lt_share_leave(s);
        return LT_OK;
    }
    *out = s;
    return LT_OK;
}

lt_status lt_share_open_device(lt_ctx *ctx, const char *spec, const lt_share_desc *desc, lt_device **out, lt_err *err)
{
    lt_share_desc d = desc ? *desc : lt_share_desc_default();
    char id[48], folder[256];
    lt__ledger *ledger;
    lt_status st = lt_device_open(ctx, spec, out, err);
    if (st != LT_E_DEVICE_OOM || !lt_device_identify(ctx, spec, id, sizeof id) || lt__shared_folder(folder, sizeof folder, NULL) != LT_OK ||
        lt__ledger_open(ctx, folder, id, &ledger, NULL) != LT_OK)
        return st;
    lt__ledger_record own = {.ask = CONTEXT_BYTES}, others[LT__LEDGER_RECORDS];
    snprintf(own.label, sizeof own.label, "%s", d.label ? d.label : "");
    for (uint64_t end = lt__now_ns() + (d.wait_ns ? d.wait_ns : WAIT_NS); st == LT_E_DEVICE_OOM && lt__now_ns() < end;) {
        uint32_t n = 1;
        if (lt__ledger_lock(ledger, LOCK_NS)) {
            n = lt__ledger_others(ledger, others, true);
            (void)!lt__ledger_write(ledger, &own, NULL);
            lt__ledger_unlock(ledger);
        }
        if (!n)
            break; /* nobody there who could give */
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        st = lt_device_open(ctx, spec, out, err);
    }
    lt__ledger_close(ledger);
    return st;
}

void lt_share_leave(lt_share *s)
{
    if (!s)
        return;
    lt__ledger_close(s->ledger);
    lt__free(s->ctx, s, sizeof *s);
}

uint64_t lt__share_floor(const lt_share *s) { return s ? s->floor : 0; }

/* False where the ledger is locked by others for long. */
static bool count_others(lt_share *s, uint32_t *n)
{
    lt__ledger_record others[LT__LEDGER_RECORDS];
    if (!lt__ledger_lock(s->ledger, LOCK_NS))
        return false;
    *n = lt__ledger_others(s->ledger, others, true);
    lt__ledger_unlock(s->ledger);
    return true;
}

uint32_t lt_share_others(lt_share *s)
{
    uint32_t n = 0;
    return s && count_others(s, &n) ? n : 0;
}

/* --- of a session at work ---------------------------------------------------------------- */

void lt__share_publish(lt_share *s, uint64_t have, uint64_t least, uint64_t want)
{
    if (!s)
        return;
    s->own.have = have;
    s->own.least = least;
    s->own.want = want;
    s->own.claim = s->own.ask = 0;
    if (!lt__ledger_lock(s->ledger, LOCK_NS))
        return; /* the next beat writes it */
    if (write_own(s, NULL) != LT_OK)
        lt__log(s->ctx, LT_LOG_DEBUG, "share", "the ledger is full");
    lt__ledger_unlock(s->ledger);
}

void lt__share_keep(lt_share *s, uint64_t bytes)
{
    if (!s)
        return;
    s->own.claim = bytes;
    if (lt__ledger_lock(s->ledger, LOCK_NS)) {
        (void)!write_own(s, NULL);
        lt__ledger_unlock(s->ledger);
    }
}

static uint64_t spoken_for(const lt__ledger_record *r, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += r[i].claim;
    return sum;
}

static uint64_t can_give(const lt__ledger_record *r) { return r->have > r->least && !r->ask ? r->have - r->least : 0; }

bool lt__share_look(lt_share *s, uint64_t free_bytes, lt__share_view *out)
{
    lt__ledger_record others[LT__LEDGER_RECORDS];
    *out = (lt__share_view){0};
    if (!s || !lt__ledger_lock(s->ledger, 0))
        return false;
    uint64_t now = lt__now_ns();
    bool sweep = now - s->swept_ns >= SWEEP_NS;
    uint32_t n = lt__ledger_others(s->ledger, others, sweep);
    if (now - s->wrote_ns >= BEAT_NS)
        (void)!write_own(s, NULL);
    lt__ledger_unlock(s->ledger);
    if (sweep)
        s->swept_ns = now;
    uint64_t asks = 0, give = can_give(&s->own), all = give;
    for (uint32_t i = 0; i < n; i++) {
        asks += others[i].ask;
        all += can_give(&others[i]);
    }
    out->taken = asks + spoken_for(others, n);
    uint64_t missing = asks && out->taken > free_bytes ? out->taken - free_bytes : 0;
    /* Each gives in proportion to what it could: all compute the same from the same records. */
    if (missing && all)
        out->asked = (uint64_t)((double)lt__min_u64(missing, all) * ((double)give / (double)all));
    return true;
}

bool lt__share_claim(lt_share *s, uint64_t bytes, uint64_t free_bytes)
{
    lt__ledger_record others[LT__LEDGER_RECORDS];
    if (!s)
        return true;
    if (!lt__ledger_lock(s->ledger, LOCK_NS))
        return false;
    uint32_t n = lt__ledger_others(s->ledger, others, true);
    uint64_t taken = spoken_for(others, n);
    /* Again, under the lock: what one claimed before has by now been taken, and is no claim any more. */
    free_bytes = lt__min_u64(free_bytes, lt_device_free_bytes(s->dev));
    for (uint32_t i = 0; i < n; i++)
        taken += others[i].ask;
    bool ok = taken <= free_bytes && bytes <= free_bytes - taken;
    if (ok) {
        s->own.claim = bytes;
        (void)!write_own(s, NULL);
    }
    lt__ledger_unlock(s->ledger);
    return ok;
}

/* --- of a newcomer ------------------------------------------------------------------------ */

typedef struct wish { uint64_t fixed, total, reserve, least, want; } wish;

/* Under one lock: claims what is to be had when that is enough, or asks. *enough: the claim was made. */
static lt_status try_claim(lt_share *s, const wish *w, bool last, uint64_t *grant, bool *enough, lt_err *err)
{
    lt__ledger_record others[LT__LEDGER_RECORDS];
    *enough = false;
    if (!lt__ledger_lock(s->ledger, LOCK_NS))
        return LT_OK; /* another is at it; the caller comes again */
    uint32_t n = lt__ledger_others(s->ledger, others, true);
    uint64_t busy = spoken_for(others, n) + w->reserve, free_bytes = lt_device_free_bytes(s->dev);
    uint64_t room = free_bytes > busy ? free_bytes - busy : 0;
    /* An equal share at most is asked of others, of what is free and what these processes hold: the rest of the card is not
     * theirs to give. What is free anyway may be more. */
    uint64_t all = free_bytes + w->fixed;
    for (uint32_t i = 0; i < n; i++)
        all += others[i].have;
    all = lt__min_u64(all, w->total);
    uint64_t fair = (all - lt__min_u64(all, w->reserve)) / (n + 1);
    uint64_t target = lt__max_u64(w->least, lt__min_u64(w->want, fair)) - w->fixed;
    *grant = lt__min_u64(room, w->want - w->fixed);
    *enough = *grant >= target || (last && *grant >= w->least - w->fixed);
    s->own.claim = *enough ? *grant : 0;
    s->own.ask = *enough || last ? 0 : target + w->reserve;
    lt_status st = write_own(s, err);
    lt__ledger_unlock(s->ledger);
    return st;
}

static lt_status say_who(lt_share *s, const wish *w, lt_err *err)
{
    lt__ledger_record o[LT__LEDGER_RECORDS];
    char text[256] = "", a[24], b[24], c[24];
    uint32_t n = 0;
    if (lt__ledger_lock(s->ledger, LOCK_NS)) {
        n = lt__ledger_others(s->ledger, o, true);
        lt__ledger_unlock(s->ledger);
    }
    size_t used = 0;
    for (uint32_t i = 0; i < n && used < sizeof text - 80; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%sprocess %u (%.20s) holds %s, at least %s", i ? "; " : "", o[i].proc.pid,
                                 o[i].label, lt__format_bytes(o[i].have, a, sizeof a), lt__format_bytes(o[i].least, b, sizeof b));
    return lt__fail(err, LT_E_NO_FIT, "the smallest plan needs %s more, %s are free after %.0f s of waiting for others: %s",
                    lt__format_bytes(w->least - w->fixed, a, sizeof a),
                    lt__format_bytes(lt_device_free_bytes(s->dev), c, sizeof c), (double)s->wait_ns * 1e-9, n ? text : "no other Lowtide process holds any");
}

static lt_status wait_for_room(lt_share *s, const wish *w, uint64_t *grant, lt_err *err)
{
    char a[24];
    uint64_t end = lt__now_ns() + s->wait_ns;
    for (bool first = true, last = false;; first = false) {
        bool enough;
        lt_status st = try_claim(s, w, last, grant, &enough, err);
        if (st != LT_OK || enough)
            return st;
        if (last)
            return say_who(s, w, err);
        if (first)
            lt__log(s->ctx, LT_LOG_INFO, "share", "waiting for others to make room for %s",
                    lt__format_bytes(s->own.ask, a, sizeof a));
        last = lt__now_ns() >= end;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
}

/* The least and the most a plan of this wish could use. */
static lt_status size_wish(const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc, wish *w, lt_err *err)
{
    lt_device_info info;
    lt_device_get_info(dev, &info);
    lt_plan_desc d = *desc;
    lt_plan *p;
    d.budget_bytes = info.total_bytes;
    d.reserve_bytes = 0;
    lt_status st = lt_plan_create(m, dev, prof, &d, &p, err);
    if (st != LT_OK)
        return st;
    const lt_plan_info *i = lt_plan_get_info(p);
    *w = (wish){.fixed = i->fixed_bytes, .total = info.total_bytes, .reserve = desc->reserve_bytes, .least = i->smallest_budget_bytes};
    uint64_t most = desc->budget_bytes ? desc->budget_bytes : info.total_bytes - lt__min_u64(info.total_bytes, desc->reserve_bytes);
    w->want = lt__max_u64(lt__min_u64(most, i->predicted_peak_bytes), w->least);
    lt_plan_destroy(p);
    return most < w->least ? lt__fail(err, LT_E_NO_FIT, "a budget of %lu bytes is too small: %lu bytes is the least that works", most, w->least) : LT_OK;
}

/* Whoever holds the lock for long is another. */
static bool alone(lt_share *s)
{
    uint32_t n;
    return count_others(s, &n) && n == 0;
}

lt_status lt_share_make_plan(lt_share *s, const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc,
                             lt_plan **out, lt_err *err)
{
    lt_plan_desc d = desc ? *desc : lt_plan_desc_default();
    lt_status st = lt_plan_create(m, dev, prof, &d, out, err);
    if (!s || (st != LT_OK && st != LT_E_NO_FIT))
        return st;
    if (st == LT_OK) {
        const lt_plan_info *i = lt_plan_get_info(*out);
        /* Alone, the driver says what fits; beside others a claim keeps two from planning for the same bytes. */
        bool claimed = lt__share_claim(s, i->predicted_peak_bytes - i->fixed_bytes, lt_device_free_bytes(dev));
        if (claimed || alone(s))
            return LT_OK;
        lt_plan_destroy(*out);
        *out = NULL;
    } else if (alone(s)) {
        return st;
    }
    wish w;
    uint64_t grant;
    if ((st = size_wish(m, dev, prof, &d, &w, err)) != LT_OK || (st = wait_for_room(s, &w, &grant, err)) != LT_OK)
        return st;
    uint64_t asked = d.budget_bytes;
    if (!asked || w.fixed + grant < w.want)
        d.budget_bytes = w.fixed + grant;
    d.reserve_bytes = 0;
    st = lt_plan_create(m, dev, prof, &d, out, err);
    if (st != LT_OK)
        return st;
    (*out)->desc.budget_bytes = asked; /* what a session grows back to */
    char a[24], b[24];
    lt__plan_reason(*out, "another Lowtide process is on this card: %s of %s that this one could use",
                    lt__format_bytes(w.fixed + grant, a, sizeof a), lt__format_bytes(w.want, b, sizeof b));
    return LT_OK;
}
