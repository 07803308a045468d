/* publish.c - what a session tells about itself: the page behind `lowtide top`. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "run/session_impl.h"

#define EVERY_NS (UINT64_C(100) * 1000000)

/* Places change with the plan only. */
static void draw_map(lt_session *s)
{
    const lt_plan *p = s->plan;
    uint64_t all = 0, at = 0;
    uint64_t resident[LT_WATCH_MAP] = {0}, part[LT_WATCH_MAP] = {0};
    for (size_t i = 0; i < p->n_slices; i++)
        all += p->slices[i].bytes;
    for (size_t i = 0; i < p->n_slices && all; i++) {
        const lt__plan_slice *sl = &p->slices[i];
        for (uint64_t done = 0; done < sl->bytes;) { /* a slice may cover several cells */
            size_t k = (size_t)((double)at / (double)all * LT_WATCH_MAP);
            k = k < LT_WATCH_MAP ? k : LT_WATCH_MAP - 1;
            uint64_t end = (uint64_t)((double)(k + 1) / LT_WATCH_MAP * (double)all) + 1;
            uint64_t n = lt__min_u64(sl->bytes - done, end > at ? end - at : 1);
            part[k] += n;
            resident[k] += sl->place == LT_PLACE_RESIDENT ? n : 0;
            done += n;
            at += n;
        }
    }
    for (size_t k = 0; k < LT_WATCH_MAP; k++)
        s->page.map[k] = (uint8_t)(part[k] ? resident[k] * 255 / part[k] : 0);
    s->drawn = p;
}

void lt__session_publish(lt_session *s, const char *phase, bool at_once)
{
    uint64_t now = lt__now_ns();
    if (!s->watcher || (!at_once && now < s->next_publish_ns))
        return;
    s->next_publish_ns = now + EVERY_NS;
    lt_watch *w = &s->page;
    const lt_plan_info *p = &s->plan->info;
    lt_residency_stats rs;
    lt_device_stats ds;
    lt_store_stats ss = {0};
    lt_pool_stats ps = s->last_pool;
    lt__session_residency_stats(s, &rs);
    lt_device_get_stats(s->dev, &ds);
    if (s->engine)
        lt_pool_get_stats(lt__engine_pool(s->engine), &ps);
    if (s->store)
        lt_store_get_stats(s->store, &ss);
    if (s->drawn != s->plan)
        draw_map(s);
    snprintf(w->phase, sizeof w->phase, "%s", phase);
    w->budget_bytes = p->budget_bytes;
    w->fixed_bytes = p->fixed_bytes;
    w->card_free_bytes = s->watching && s->free_seen ? s->free_seen : lt_device_free_bytes(s->dev);
    w->reserve_bytes = s->giving.reserve;
    w->reserve_missed_bytes = s->missed;
    w->committed_bytes = p->fixed_bytes + ds.committed_bytes;
    w->peak_bytes = p->fixed_bytes + ds.peak_committed_bytes;
    memcpy(w->live_by_use, ps.live_by_use, sizeof w->live_by_use);
    w->weight_bytes = p->resident_bytes + p->streamed_bytes;
    w->resident_bytes = p->resident_bytes;
    w->streamed_bytes = p->streamed_bytes;
    w->h2d_bytes = ds.h2d_bytes;
    w->d2h_bytes = ds.d2h_bytes;
    w->disk_bytes = s->store_past_bytes + ss.bytes;
    w->leases = rs.leases;
    w->hits = rs.hits;
    w->stall_ns = rs.stall_ns;
    w->prompt_tokens = s->prefill.tokens;
    w->decode_tokens = s->decode.tokens;
    w->prompt_ns = (uint64_t)(s->prefill.seconds * 1e9);
    w->decode_ns = (uint64_t)(s->decode.seconds * 1e9);
    w->length = s->length;
    w->ctx = p->ctx;
    w->budget_changes = (uint32_t)s->n_changes;
    lt__watcher_write(s->watcher, w);
}

void lt__session_open_page(lt_session *s)
{
    if (!s->desc.publish || !(s->watcher = lt__watcher_open(s->ctx)))
        return;
    lt_device_info info;
    lt_device_get_info(s->dev, &info);
    snprintf(s->page.device, sizeof s->page.device, "%s", info.name);
    snprintf(s->page.id, sizeof s->page.id, "%s", info.id);
    snprintf(s->page.model, sizeof s->page.model, "%s", s->desc.label ? s->desc.label : s->model->info.name);
    s->page.card_bytes = info.total_bytes;
    lt__session_publish(s, "loading", true);
}
