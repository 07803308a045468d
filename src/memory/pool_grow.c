/* Committing and giving back chunks of the pool's range. */
#include "memory/pool_impl.h"

static size_t cell_of(const lt_pool *p, uint64_t addr) { return (size_t)((addr - p->base) / p->chunk); }
static uint64_t cell_addr(const lt_pool *p, size_t i) { return p->base + (uint64_t)i * p->chunk; }
static uint64_t cell_bytes(const lt_pool *p, size_t i)
{
    return lt__min_u64(p->chunk, p->range - (uint64_t)i * p->chunk);
}

static uint64_t missing(const lt_pool *p, uint64_t addr, uint64_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = cell_of(p, addr), last = cell_of(p, addr + bytes - 1); i <= last; i++)
        if (!p->cells[i]) sum += cell_bytes(p, i);
    return sum;
}

/* Commits what is missing of first..last, or nothing. fresh: on failure the whole range goes, commits with it. */
static lt_status commit_cells(lt_pool *p, size_t first, size_t last, bool fresh, lt_err *err)
{
    size_t at = first;
    lt_err why = {0};
    lt_status st = LT_OK;
    for (; at <= last; at++) {
        if (p->cells[at]) continue;
        st = lt_device_commit(p->dev, cell_addr(p, at), cell_bytes(p, at), &why);
        if (st != LT_OK) break;
        p->cells[at] = 2; /* by this call */
    }
    for (size_t i = first; i <= last; i++) {
        if (p->cells[i] != 2) continue;
        if (st != LT_OK) {
            if (!fresh)
                lt_device_decommit(p->dev, cell_addr(p, i), cell_bytes(p, i));
            p->cells[i] = 0;
            continue;
        }
        p->cells[i] = 1;
        lt__sub_commit(&p->sub, cell_addr(p, i), cell_bytes(p, i));
        p->committed += cell_bytes(p, i);
        p->commits++;
        lt__trace_record(p->trace, 0, LT__TRACE_COMMIT, cell_addr(p, i) - p->base, cell_bytes(p, i),
                         lt__trace_aux(p->scope, 0, 0));
    }
    p->peak_committed = lt__max_u64(p->peak_committed, p->committed);
    if (st != LT_OK && err) *err = why;
    return st;
}

/* The cheapest place: the one with the least to commit, nearest to the request's end. */
static bool find_place(const lt_pool *p, uint64_t bytes, uint64_t align, bool high, uint64_t *addr,
                       uint64_t *cost)
{
    bool found = false;
    for (const lt__blk *h = p->sub.holes; h; h = h->next) {
        const lt__blk *lo = h, *hi = h;
        while (lo->lower && (lo->lower->state == LT__BLK_FREE || lo->lower->state == LT__BLK_HOLE))
            lo = lo->lower;
        while (hi->upper && (hi->upper->state == LT__BLK_FREE || hi->upper->state == LT__BLK_HOLE))
            hi = hi->upper;
        uint64_t start = lo->addr, end = hi->addr + hi->bytes;
        if (end - start < bytes) continue;
        for (int side = 0; side < 2; side++) {
            uint64_t pad = -start & (align - 1);
            uint64_t at = side ? lt__round_down(end - bytes, align) : start + pad;
            if (side ? at < start : pad > end - start - bytes) continue;
            uint64_t c = missing(p, at, bytes);
            if (found && (c > *cost || (c == *cost && (high ? at <= *addr : at >= *addr)))) continue;
            found = true;
            *addr = at;
            *cost = c;
        }
    }
    return found;
}

static bool transient(lt_status s)
{
    return s != LT_OK && s != LT_E_DEVICE_OOM && s != LT_E_HOST_OOM && s != LT_E_DEVICE_LOST &&
           s != LT_E_INVALID;
}

lt_status lt__grow_for(lt_pool *p, uint64_t bytes, uint64_t align, bool high, bool *grew, lt_err *err)
{
    *grew = false;
    for (int attempt = 0;; attempt++) {
        uint64_t addr = 0, cost = 0;
        if (!find_place(p, bytes, align, high, &addr, &cost)) return LT_OK;
        if (cost > p->limit || p->committed > p->limit - cost) {
            /* Unused chunks elsewhere can move here, if their number suffices. */
            if (attempt || cost > p->limit) return LT_OK;
            uint64_t before = p->committed;
            if (lt__grow_trim(p, p->limit - cost) == before) return LT_OK;
            continue;
        }
        size_t first = cell_of(p, addr), last = cell_of(p, addr + bytes - 1);
        lt_status st =
            lt__sub_prepare(&p->sub, (uint32_t)lt__min_u64(2 * (last - first + 1) + 2, UINT32_MAX), err);
        if (st != LT_OK) return st;
        st = commit_cells(p, first, last, false, err);
        if (transient(st) && !attempt) { /* "not ready": once more, when the device has settled */
            lt__pool_unlock(p);
            lt__log(p->ctx, LT_LOG_WARN, "pool", "'%s': a commit failed, tried once more after a wait", p->name);
            lt__pool_lock(p);
            lt__order_drain(p);
            continue;
        }
        *grew = st == LT_OK;
        return st;
    }
}

lt_status lt__grow_all(lt_pool *p, lt_err *err)
{
    lt_status st = lt__sub_prepare(&p->sub, (uint32_t)lt__min_u64(2 * p->n_cells + 2, UINT32_MAX), err);
    return st == LT_OK ? commit_cells(p, 0, p->n_cells - 1, true, err) : st;
}

/* Work may still run on what became free without an event, or behind the base event. */
static void settle(lt_pool *p)
{
    lt__order_settle(p);
    while (p->base_mark) {
        lt_event *ev = p->base_mark->event;
        lt__pool_unlock(p);
        (void)!lt_event_sync(ev, NULL); /* reached also when its queue failed */
        lt__pool_lock(p);
        lt__order_retire(p);
    }
}

uint64_t lt__grow_trim(lt_pool *p, uint64_t keep)
{
    lt__order_retire(p);
    lt__blk *leaving = NULL;
    uint64_t staying = p->committed - p->leaving;
    for (lt__blk *b = p->sub.lowest; b && staying > keep; b = b->upper) {
        if (b->state != LT__BLK_FREE) continue;
        uint64_t end = b->addr + b->bytes - p->base, first = (b->addr - p->base + p->chunk - 1) / p->chunk,
                 stop = first, got = 0;
        while (stop < p->n_cells && staying - got > keep && stop * p->chunk + cell_bytes(p, stop) <= end)
            got += cell_bytes(p, stop++);
        if (!got || lt__sub_prepare(&p->sub, 2, NULL) != LT_OK) continue;
        b = lt__sub_leave(&p->sub, b, cell_addr(p, first), got);
        b->next = leaving;
        leaving = b;
        staying -= got;
        p->leaving += got;
    }
    if (leaving) settle(p);
    while (leaving) {
        lt__blk *b = leaving;
        leaving = b->next;
        b->next = NULL;
        uint64_t bytes = b->bytes;
        lt_device_decommit(p->dev, b->addr, bytes);
        lt__trace_record(p->trace, 0, LT__TRACE_DECOMMIT, b->addr - p->base, bytes,
                         lt__trace_aux(p->scope, 0, 0));
        for (size_t i = cell_of(p, b->addr), last = cell_of(p, b->addr + bytes - 1); i <= last; i++) {
            p->cells[i] = 0;
            p->decommits++;
        }
        p->committed -= bytes;
        p->leaving -= bytes;
        lt__sub_uncommit(&p->sub, b);
    }
    return p->committed;
}
