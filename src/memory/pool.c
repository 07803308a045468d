#include "memory/pool_impl.h"

#include <stdio.h>
#include <string.h>

#define DEFAULT_CHUNK (32ull << 20)

const char *lt_use_name(lt_use use)
{
    static const char *const names[] = {
#define LT_X(name, text) text,
        LT_USE_LIST(LT_X)
#undef LT_X
    };
    return (unsigned)use < LT_USE_COUNT ? names[use] : "unknown";
}

lt_pool_desc lt_pool_desc_default(void) { return (lt_pool_desc){.struct_bytes = sizeof(lt_pool_desc)}; }

static lt_status size_pool(lt_pool *p, const lt_pool_desc *d, lt_err *err)
{
    char a[24], b[24];
    lt_device_info info;
    lt_device_get_info(p->dev, &info);
    uint64_t unit = info.commit_bytes, align = info.align_bytes;
    if (!unit || !align || (unit & (unit - 1)) || (align & (align - 1)) || unit < align)
        return lt__fail(
            err, LT_E_UNSUPPORTED,
            "pool '%s': device %s commits in units of %llu bytes and aligns to %llu; powers of two expected",
            p->name, info.kind, (unsigned long long)unit, (unsigned long long)align);
    if (d->chunk_bytes & (d->chunk_bytes - 1))
        return lt__fail(err, LT_E_INVALID, "pool '%s': chunk_bytes is %llu, a power of two expected", p->name,
                        (unsigned long long)d->chunk_bytes);
    uint64_t limit = lt__round_down(d->limit_bytes ? d->limit_bytes : info.free_bytes, unit);
    if (!limit)
        return lt__fail(err, LT_E_NO_FIT,
                        "pool '%s': a limit of %s is less than the %s the device commits at least", p->name,
                        lt__format_bytes(d->limit_bytes ? d->limit_bytes : info.free_bytes, a, sizeof a),
                        lt__format_bytes(unit, b, sizeof b));
    if (limit > 1ull << 56)
        return lt__fail(err, LT_E_INVALID,
                        "pool '%s': a limit of %llu bytes is more address space than any device has", p->name,
                        (unsigned long long)limit);
    p->range = p->limit = p->create_limit = limit;
    p->granule = align;
    p->chunk = lt__max_u64(lt__min_u64(d->chunk_bytes ? d->chunk_bytes : DEFAULT_CHUNK, limit), unit);
    p->n_cells = (size_t)((limit + p->chunk - 1) / p->chunk);
    return LT_OK;
}

lt_status lt_pool_create(lt_device *dev, const lt_pool_desc *desc, lt_pool **out, lt_err *err)
{
    *out = NULL;
    lt_pool_desc d = desc ? *desc : lt_pool_desc_default();
    if (d.struct_bytes != sizeof d)
        return lt__fail(err, LT_E_INVALID,
                        "lt_pool_desc.struct_bytes is %u, %zu expected: start from lt_pool_desc_default()",
                        d.struct_bytes, sizeof d);
    lt_ctx *ctx = dev->ctx;
    lt_pool *p = lt__zalloc(ctx, sizeof *p);
    if (!p) return lt__fail_oom(err, sizeof *p, "a pool");
    p->dev = dev;
    p->ctx = ctx;
    p->trace = d.trace;
    const char *name = d.name ? d.name : "pool";
    p->name_bytes = strlen(name) + 1;
    lt_status st = LT_OK;
    p->name = lt__strndup(ctx, name, p->name_bytes - 1);
    if (!p->name) {
        st = lt__fail_oom(err, p->name_bytes, "a pool's name");
        goto fail_name;
    }
    st = size_pool(p, &d, err);
    if (st != LT_OK) goto fail_size;
    p->cells = lt__alloc_array(ctx, p->n_cells, 1);
    if (!p->cells) {
        st = lt__fail_oom(err, p->n_cells, "the chunks of a pool");
        goto fail_size;
    }
    lt_err why = {0};
    st = lt_device_reserve(dev, p->range, &p->base, &why);
    if (st != LT_OK) {
        char a[24];
        st = lt__fail_native(err, st, why.native, "pool '%s': no address space for %s: %s", p->name,
                             lt__format_bytes(p->range, a, sizeof a), why.text);
        goto fail_reserve;
    }
    LT_ASSERT(p->base && p->range < UINT64_MAX - p->base);
    st = lt__sub_init(&p->sub, ctx, p->base, p->range, p->granule, err);
    if (st != LT_OK) goto fail_sub;
    p->scope = lt__trace_scope(p->trace);
    if (d.commit_all && (st = lt__grow_all(p, &why)) != LT_OK) {
        char a[24];
        st = lt__fail_native(err, st, why.native, "pool '%s': cannot commit all %s of its limit: %s", p->name,
                             lt__format_bytes(p->range, a, sizeof a), why.text);
        goto fail_commit;
    }
    *out = p;
    return LT_OK;

fail_commit:
    lt__sub_deinit(&p->sub);
fail_sub:
    lt_device_unreserve(dev, p->base, p->range);
fail_reserve:
    lt__free(ctx, p->cells, p->n_cells);
fail_size:
    lt__free(ctx, p->name, p->name_bytes);
fail_name:
    lt__free(ctx, p, sizeof *p);
    return st;
}

/* "weight 1.00 GiB, kv 64.00 MiB" of what is not zero. */
static void format_holders(const lt_pool *p, char *buf, size_t bytes)
{
    size_t n = 0;
    buf[0] = 0;
    for (int u = 0; u < LT_USE_COUNT; u++) {
        char a[24];
        if (!p->live_by_use[u] || n >= bytes) continue;
        int k = snprintf(buf + n, bytes - n, "%s%s %s", n ? ", " : "", lt_use_name((lt_use)u),
                         lt__format_bytes(p->live_by_use[u], a, sizeof a));
        n += k > 0 ? (size_t)k : 0;
    }
    if (!n) snprintf(buf, bytes, "nothing");
}

void lt_pool_destroy(lt_pool *p)
{
    if (!p) return;
    lt__pool_lock(p);
    lt__order_drain(p);
    if (p->base_mark) (void)!lt_event_sync(p->base_mark->event, NULL);
    lt__pool_unlock(p); /* nobody else may be here any more */
    if (p->live) {
        char held[200];
        uint64_t blocks = 0;
        for (const lt__blk *b = p->sub.lowest; b; b = b->upper) blocks += b->state == LT__BLK_LIVE;
        format_holders(p, held, sizeof held);
        lt__log(p->ctx, LT_LOG_ERROR, "pool", "'%s' destroyed with %llu blocks not freed: %s", p->name,
                (unsigned long long)blocks, held);
    }
    lt__order_deinit(p);
    lt__sub_deinit(&p->sub);
    lt_device_unreserve(p->dev, p->base, p->range);
    lt__free(p->ctx, p->cells, p->n_cells);
    lt__free(p->ctx, p->name, p->name_bytes);
    lt__free(p->ctx, p, sizeof *p);
}

lt_device *lt_pool_device(const lt_pool *p) { return p->dev; }

typedef struct request {
    uint64_t bytes, align;
    lt_use use;
    lt_queue *queue;
    uint16_t own;
    bool high;
} request;

/* Whatever can be had without taking anything from anybody. */
static lt_status find_block(lt_pool *p, const request *r, lt__blk **out, lt_err *grow_err, lt_err *err)
{
    lt_status st;
    bool grew = false;
    *out = NULL;
    if (p->multi) lt__order_retire(p);
    for (int round = 0; round < 3; round++) {
        st = lt__sub_prepare(&p->sub, 2, err);
        if (st != LT_OK) return st;
        if (p->live > p->limit || r->bytes > p->limit - p->live) return LT_OK; /* the limit was lowered */
        if (r->own != LT__NO_OWNER && (*out = lt__order_exact(p, r->own, r->bytes, r->align)) != NULL)
            return LT_OK;
        if ((*out = lt__sub_alloc(&p->sub, r->bytes, r->align, r->high)) != NULL) return LT_OK;
        if (r->own != LT__NO_OWNER && p->pending) {
            st = lt__order_run(p, r->queue, r->own, false, r->bytes, r->align, r->high, out, err);
            if (st != LT_OK || *out) return st;
        }
        st = lt__grow_for(p, r->bytes, r->align, r->high, &grew, grow_err);
        if (st == LT_E_HOST_OOM) {
            if (err) *err = *grow_err;
            return st;
        }
        if (grew) continue;
        st = lt__sub_prepare(&p->sub, 2, err); /* growing may have given the lock up */
        if (st != LT_OK) return st;
        if (r->own != LT__NO_OWNER && p->pending) {
            st = lt__order_run(p, r->queue, r->own, true, r->bytes, r->align, r->high, out, err);
            if (st != LT_OK || *out) return st;
        }
        if (!p->pending) return LT_OK;
        /* Pending and uncommitted neighbours, or a request of the host: the host waits. */
        lt__order_drain(p);
    }
    return LT_OK;
}

/* Bytes whose return could let the request succeed. */
static uint64_t shortage(const lt_pool *p, const request *r)
{
    uint64_t room = p->limit > p->live ? p->limit - p->live : 0;
    if (r->bytes > room) return r->bytes - room;
    uint64_t largest = lt__sub_largest_free(&p->sub);
    return r->bytes > largest ? r->bytes - largest : p->granule;
}

static lt_status explain(lt_pool *p, const request *r, const lt_err *grow, lt_err *err)
{
    char want[24], fr[24], big[24], pend[24], lim[24], held[160], why[160] = "";
    format_holders(p, held, sizeof held);
    lt_status st = grow->status == LT_E_DEVICE_LOST ? LT_E_DEVICE_LOST : LT_E_DEVICE_OOM;
    if (grow->status != LT_OK)
        snprintf(why, sizeof why, "; the device could not commit more: %.110s", grow->text);
    return lt__fail_native(
        err, st, grow->status != LT_OK ? grow->native : 0,
        "pool '%s': no %s for %s: free %s (largest %s), pending %s, limit %s; held: %s%s", p->name,
        lt__format_bytes(r->bytes, want, sizeof want), lt_use_name(r->use),
        lt__format_bytes(p->sub.free_bytes + (p->limit > p->committed ? p->limit - p->committed : 0), fr,
                         sizeof fr),
        lt__format_bytes(lt__sub_largest_free(&p->sub), big, sizeof big),
        lt__format_bytes(p->pending, pend, sizeof pend), lt__format_bytes(p->limit, lim, sizeof lim), held,
        why);
}

static bool in_pressure(const lt_pool *p)
{
    for (const lt__pressing *n = p->pressing; n; n = n->next)
        if (pthread_equal(n->thread, pthread_self())) return true;
    return false;
}

/* One call of the listener, without the lock. True: it freed something. */
static bool press(lt_pool *p, const request *r)
{
    lt_pool_pressure_fn *fn = p->pressure;
    void *user = p->pressure_user;
    uint64_t need = shortage(p, r), frees = p->frees;
    lt__pressing me = {.thread = pthread_self(), .next = p->pressing};
    p->pressing = &me;
    p->pressure_calls++;
    lt__pool_unlock(p);
    uint64_t given = fn(user, p, need);
    lt__pool_lock(p);
    lt__pressing **at = &p->pressing;
    while (*at != &me) at = &(*at)->next;
    *at = me.next;
    return given > 0 && p->frees != frees; /* a listener that only claims progress is not asked again */
}

/* Everything but a free block at hand for the only queue. */
static __attribute__((noinline)) lt_status alloc_slow(lt_pool *p, uint64_t bytes, uint64_t align, lt_use use,
                                                      lt_queue *queue, lt__blk **out, lt_err *err)
{
    request r = {.bytes = bytes,
                 .align = align,
                 .use = use,
                 .queue = queue,
                 .own = LT__NO_OWNER,
                 .high = lt__use_grows_down(use)};
    lt_err grow;
    grow.status = LT_OK;
    lt_status st = LT_OK;
    if (p->multi || queue != p->lone) st = lt__order_enter(p, queue, true, &r.own, err);
    if (st != LT_OK) return st;
    for (;;) {
        grow.status = LT_OK;
        st = find_block(p, &r, out, &grow, err);
        if (st != LT_OK || *out) return st;
        if (grow.status == LT_E_DEVICE_LOST || !p->pressure || in_pressure(p) || !press(p, &r))
            return explain(p, &r, &grow, err);
    }
}

/* No pressure and no waiting: nothing anyone frees could help. */
static __attribute__((noinline)) lt_status alloc_hopeless(lt_pool *p, uint64_t bytes, lt_use use, lt_err *err)
{
    request r = {.bytes = bytes, .use = use};
    lt_err none;
    none.status = LT_OK;
    none.native = 0;
    return explain(p, &r, &none, err);
}

lt_status lt_pool_alloc(lt_pool *p, uint64_t bytes, uint64_t align, lt_use use, lt_queue *queue,
                        lt_block *out, lt_err *err)
{
    *out = (lt_block){0};
    if ((unsigned)use >= LT_USE_COUNT)
        return lt__fail(err, LT_E_INVALID, "pool '%s': use %d is not one of lt_use", p->name, (int)use);
    if (align & (align - 1))
        return lt__fail(err, LT_E_INVALID, "pool '%s': alignment %llu is not a power of two", p->name,
                        (unsigned long long)align);
    if (!bytes) return LT_OK;
    uint64_t least = lt__max_u64(align, p->granule), size = lt__round_up(bytes, p->granule);
    lt_status st = LT_OK;
    lt__blk *b = NULL;
    lt__pool_lock(p);
    if (bytes > p->range) /* also where size has wrapped */
        st = alloc_hopeless(p, bytes, use, err);
    else if (!p->multi && queue == p->lone && p->sub.n_unused >= 2 && p->live <= p->limit &&
             size <= p->limit - p->live)
        b = lt__sub_alloc(&p->sub, size, least, lt__use_grows_down(use));
    if (!b && st == LT_OK) st = alloc_slow(p, size, least, use, queue, &b, err);
    if (st == LT_OK) {
        b->use = (uint8_t)use;
        p->allocs++;
        p->live += b->bytes;
        p->live_by_use[use] += b->bytes;
        p->peak_live = lt__max_u64(p->peak_live, p->live);
        p->peak_by_use[use] = lt__max_u64(p->peak_by_use[use], p->live_by_use[use]);
        *out = (lt_block){.addr = b->addr, .bytes = b->bytes, .slot = b->slot, .serial = b->serial};
        if (__builtin_expect(p->trace != NULL, 0))
            lt__trace_write(p->trace, lt__trace_queue(p->trace, queue), LT__TRACE_ALLOC,
                            (uint64_t)b->serial << 32 | b->slot, b->bytes,
                            lt__trace_aux(p->scope, (uint32_t)use, align));
    } else {
        p->failures++;
    }
    lt__pool_unlock(p);
    return st;
}

void lt_pool_free(lt_pool *p, lt_block block, lt_queue *queue)
{
    if (!block.serial && !block.addr) return;
    lt__pool_lock(p);
    uint16_t own = LT__NO_OWNER;
    lt_err why;
    why.status = LT_OK; /* zeroing all of it would cost more than the rest of a free */
    if (p->multi || queue != p->lone) (void)!lt__order_enter(p, queue, false, &own, &why);
    lt__blk *b = lt__sub_lookup(&p->sub, block.slot, block.serial);
    if (!b || b->addr != block.addr || b->bytes != block.bytes) {
        p->bad_frees++;
        lt__pool_unlock(p);
        lt__log(p->ctx, LT_LOG_ERROR, "pool",
                "'%s': refused to free 0x%llx (slot %u, serial %u): freed before, or not of this pool",
                p->name, (unsigned long long)block.addr, block.slot, block.serial);
        return;
    }
    p->frees++;
    p->live -= b->bytes;
    p->live_by_use[b->use] -= b->bytes;
    if (p->trace)
        lt__trace_write(p->trace, lt__trace_queue(p->trace, queue), LT__TRACE_FREE,
                        (uint64_t)b->serial << 32 | b->slot, b->bytes, lt__trace_aux(p->scope, b->use, 0));
    if (why.status != LT_OK) {
        lt__order_pend_host(p, b, queue, &why); /* no memory to remember the queue */
    } else if (own != LT__NO_OWNER) {
        lt__order_pend(p, b, queue, own);
    } else {
        if (queue) p->lone_dirty = true;
        lt__sub_free(&p->sub, b);
    }
    lt__pool_unlock(p);
}

uint64_t lt_pool_trim(lt_pool *p, uint64_t keep)
{
    lt__pool_lock(p);
    uint64_t left = lt__grow_trim(p, keep);
    lt__pool_unlock(p);
    return left;
}

void lt_pool_forget_queue(lt_pool *p, lt_queue *queue)
{
    if (!queue) return;
    lt__pool_lock(p);
    lt__order_forget(p, queue);
    lt__pool_unlock(p);
}

void lt_pool_set_pressure(lt_pool *p, lt_pool_pressure_fn *fn, void *user)
{
    lt__pool_lock(p);
    p->pressure = fn;
    p->pressure_user = user;
    lt__pool_unlock(p);
}

lt_status lt_pool_set_limit(lt_pool *p, uint64_t bytes, lt_err *err)
{
    char a[24], b[24];
    if (bytes > p->create_limit)
        return lt__fail(err, LT_E_INVALID,
                        "pool '%s': a limit of %s is above the %s its address space was made for", p->name,
                        lt__format_bytes(bytes, a, sizeof a), lt__format_bytes(p->create_limit, b, sizeof b));
    lt__pool_lock(p);
    p->limit = bytes;
    if (p->committed > bytes) (void)lt__grow_trim(p, bytes);
    lt__pool_unlock(p);
    return LT_OK;
}

void lt_pool_get_stats(const lt_pool *p, lt_pool_stats *out)
{
    lt__pool_lock(p);
    *out = (lt_pool_stats){.limit = p->limit,
                           .committed = p->committed,
                           .peak_committed = p->peak_committed,
                           .live = p->live,
                           .peak_live = p->peak_live,
                           .free_bytes = p->sub.free_bytes,
                           .largest_free = lt__sub_largest_free(&p->sub),
                           .pending = p->pending + p->leaving,
                           .allocs = p->allocs,
                           .frees = p->frees,
                           .failures = p->failures,
                           .bad_frees = p->bad_frees,
                           .pressure_calls = p->pressure_calls,
                           .commits = p->commits,
                           .decommits = p->decommits,
                           .waits = p->waits};
    memcpy(out->live_by_use, p->live_by_use, sizeof out->live_by_use);
    memcpy(out->peak_by_use, p->peak_by_use, sizeof out->peak_by_use);
    lt__pool_unlock(p);
}

static lt_status check_locked(const lt_pool *p, lt_err *err)
{
    lt__sub_sums sums;
    lt_status st = lt__sub_check(&p->sub, &sums, err);
    if (st == LT_OK) st = lt__order_check(p, err);
    if (st != LT_OK) return st;
    uint64_t by_use[LT_USE_COUNT] = {0}, cells = 0, use_sum = 0;
    for (const lt__blk *b = p->sub.lowest; b; b = b->upper) {
        if (b->state == LT__BLK_LIVE) by_use[b->use] += b->bytes;
        uint64_t first = (b->addr - p->base) / p->chunk, last = (b->addr + b->bytes - 1 - p->base) / p->chunk;
        for (uint64_t i = first; i <= last; i++)
            if (p->cells[i] != (b->state != LT__BLK_HOLE))
                return lt__fail(err, LT_E_INVALID,
                                "pool check: slot %u of state %u lies in chunk %llu, committed %u", b->slot,
                                b->state, (unsigned long long)i, p->cells[i]);
    }
    for (size_t i = 0; i < p->n_cells; i++)
        if (p->cells[i]) cells += lt__min_u64(p->chunk, p->range - i * p->chunk);
    for (int u = 0; u < LT_USE_COUNT; u++) {
        use_sum += p->live_by_use[u];
        if (by_use[u] != p->live_by_use[u] || p->peak_by_use[u] < by_use[u])
            return lt__fail(err, LT_E_INVALID, "pool check: %s counts %llu bytes, its blocks hold %llu",
                            lt_use_name((lt_use)u), (unsigned long long)p->live_by_use[u],
                            (unsigned long long)by_use[u]);
    }
    if (cells != p->committed || sums.bytes[LT__BLK_LIVE] != p->live || use_sum != p->live ||
        sums.bytes[LT__BLK_LEAVING] != p->leaving || sums.bytes[LT__BLK_PENDING] != p->pending ||
        p->live + p->sub.free_bytes + p->pending + p->leaving != p->committed ||
        p->committed + p->sub.hole_bytes != p->range)
        return lt__fail(err, LT_E_INVALID,
                        "pool check: live %llu + free %llu + pending %llu + leaving %llu != committed %llu "
                        "(chunks say %llu)",
                        (unsigned long long)p->live, (unsigned long long)p->sub.free_bytes,
                        (unsigned long long)p->pending, (unsigned long long)p->leaving,
                        (unsigned long long)p->committed, (unsigned long long)cells);
    if (p->allocs - p->frees != sums.blocks[LT__BLK_LIVE] || p->peak_live < p->live ||
        p->peak_committed < p->committed || p->peak_committed > p->create_limit)
        return lt__fail(
            err, LT_E_INVALID,
            "pool check: %llu allocs - %llu frees but %llu live blocks, or a peak below its value",
            (unsigned long long)p->allocs, (unsigned long long)p->frees,
            (unsigned long long)sums.blocks[LT__BLK_LIVE]);
    return LT_OK;
}

lt_status lt_pool_check(const lt_pool *p, lt_err *err)
{
    lt__pool_lock(p);
    lt_status st = check_locked(p, err);
    lt__pool_unlock(p);
    return st;
}
