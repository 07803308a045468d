/* hosttier.c - host budget, pin budget, staging ring. */
#include "memory/hosttier.h"

#include "base/host.h"
#include "base/mem.h"

#include <string.h>

enum { SEG_ALIGN = 4096, SEG_WISHED = 4 << 20 /* below that a link loses speed */, SEGS_MAX = 64 };

uint64_t lt__host_budget(void)
{
    lt__host_limits lim;
    lt__host_limits_get(&lim);
    uint64_t reserve = lt__min_u64(lim.ram_bytes / 8, 1ull << 30);
    return lt__min_u64(lim.ram_bytes, lim.available_bytes) > reserve
               ? lt__min_u64(lim.ram_bytes, lim.available_bytes) - reserve : 0;
}

uint64_t lt__pin_limit(const lt_device_info *info)
{
    lt__host_limits lim;
    lt__host_limits_get(&lim);
    return info->memlock ? lt__min_u64(lim.ram_bytes / 2, lim.memlock_bytes) : lim.ram_bytes / 2;
}

uint64_t lt__pin_budget(const lt_device *dev, uint64_t asked)
{
    lt_device_info info;
    lt_device_get_info(dev, &info);
    return lt__min_u64(asked, lt__pin_limit(&info));
}

lt_status lt__staging_init(lt__staging *st, lt_ctx *ctx, lt_device *dev, uint64_t bytes, uint64_t *pin_left,
                           lt_err *err)
{
    *st = (lt__staging){.ctx = ctx, .dev = dev};
    bytes = lt__max_u64(bytes, 4 * SEG_ALIGN);
    uint64_t segs = lt__min_u64(lt__max_u64(bytes / SEG_WISHED, 2), SEGS_MAX);
    st->seg_bytes = lt__round_down(bytes / segs, SEG_ALIGN);
    if (segs * st->seg_bytes > SIZE_MAX - SEG_ALIGN) return lt__fail_oom(err, SIZE_MAX, "the staging ring");
    st->memory_bytes = (size_t)(segs * st->seg_bytes + SEG_ALIGN);
    st->memory = lt__alloc(ctx, st->memory_bytes);
    st->seg = lt__alloc_array(ctx, segs, sizeof *st->seg);
    st->segs = (uint32_t)segs;
    lt_status s = LT_OK;
    if (!st->memory || !st->seg) s = lt__fail_oom(err, st->memory_bytes, "the staging ring");
    for (uint32_t i = 0; i < st->segs && s == LT_OK; i++) s = lt_event_create(dev, &st->seg[i].ev, err);
    if (s != LT_OK) {
        lt__staging_deinit(st);
        return s;
    }
    st->base = (char *)(uintptr_t)lt__round_up((uintptr_t)st->memory, SEG_ALIGN);
    uint64_t all = segs * st->seg_bytes;
    lt_err why = {0};
    char a[32], b[32];
    if (all > *pin_left)
        lt__log(ctx, LT_LOG_WARN, "hosttier", "staging ring of %s stays pageable: only %s may be page-locked",
                lt__format_bytes(all, a, sizeof a), lt__format_bytes(*pin_left, b, sizeof b));
    else if (lt_device_pin(dev, st->base, (size_t)all, &why) != LT_OK)
        lt__log(ctx, LT_LOG_WARN, "hosttier", "staging ring of %s stays pageable: %s",
                lt__format_bytes(all, a, sizeof a), why.text);
    else {
        st->pinned = true;
        *pin_left -= all;
    }
    return LT_OK;
}

void lt__staging_deinit(lt__staging *st)
{
    if (st->pinned) lt_device_unpin(st->dev, st->base, (size_t)(st->segs * st->seg_bytes));
    for (uint32_t i = 0; st->seg && i < st->segs; i++) lt_event_destroy(st->seg[i].ev);
    lt__free(st->ctx, st->seg, st->segs * sizeof *st->seg);
    lt__free(st->ctx, st->memory, st->memory_bytes);
    *st = (lt__staging){0};
}

int lt__staging_take(lt__staging *st, bool wait)
{
    struct lt__segment *s = &st->seg[st->next];
    if (s->taken) return -1;
    if (s->flying) {
        if (!lt_event_done(s->ev)) {
            if (!wait) return -1;
            lt__ignore(lt_event_sync(s->ev, NULL)); /* over either way */
        }
        s->flying = false;
    }
    s->taken = true;
    int i = (int)st->next;
    st->next = (st->next + 1) % st->segs;
    return i;
}

char *lt__staging_at(const lt__staging *st, int i) { return st->base + (uint64_t)i * st->seg_bytes; }

lt_status lt__staging_fly(lt__staging *st, int i, lt_queue *q, lt_err *err)
{
    lt_status s = lt_event_record(st->seg[i].ev, q, err);
    if (s == LT_OK) st->seg[i].flying = true;
    else lt__ignore(lt_queue_sync(q, NULL)); /* no event to wait for: wait for all of it */
    st->seg[i].taken = false;
    return s;
}

void lt__staging_give(lt__staging *st, int i) { st->seg[i].taken = false; }
