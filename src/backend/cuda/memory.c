/* The arena: address space, and physical pieces behind parts of it.
 *
 * A piece is mapped and unmapped whole, so when only a part of one is given back, its memory
 * stays until the rest is; `held` is what is really there. What is given back goes to the system
 * at once, unless `recycle` lets whole pieces of 32 MiB be kept. */
#include "backend/cuda/device.h"

#include <inttypes.h>
#include <string.h>

#define PIECE_BYTES (LT_CUDA_GRANULE * LT_CUDA_PIECE)

void lt__cuda_memory_init(lt_cuda_device *d)
{
    pthread_mutex_init(&d->memory.lock, NULL);
    pthread_rwlock_init(&d->memory.pin_lock, NULL);
}

void lt__cuda_add_held(lt_cuda_memory *m, uint64_t bytes)
{
    uint64_t held = atomic_load_explicit(&m->held, memory_order_relaxed) + bytes;
    atomic_store_explicit(&m->held, held, memory_order_relaxed);
    if (held > atomic_load_explicit(&m->peak, memory_order_relaxed))
        atomic_store_explicit(&m->peak, held, memory_order_relaxed);
}

void lt__cuda_drop_held(lt_cuda_memory *m, uint64_t bytes)
{
    atomic_store_explicit(&m->held, atomic_load_explicit(&m->held, memory_order_relaxed) - bytes, memory_order_relaxed);
}

/* What cannot be undone is said and left to the context's end. */
void lt__cuda_note(lt_cuda_device *d, lt_curesult r, const char *what)
{
    if (r == LT_CU_OK)
        return;
    lt_err err = {0};
    (void)lt__cuda_fail(d, &err, r, "%s", what);
    lt__log(d->base.ctx, LT_LOG_ERROR, "cuda", "%s", err.text);
}

static lt_cuda_range *range_of(lt_cuda_memory *m, lt_addr base, uint64_t bytes)
{
    for (lt_cuda_range *r = m->ranges; r; r = r->next)
        if (base >= r->base && base - r->base < r->bytes && bytes <= r->bytes - (base - r->base))
            return r;
    return NULL;
}

bool lt__cuda_on_host(lt_cuda_device *d, lt_addr at)
{
    pthread_mutex_lock(&d->memory.lock);
    bool here = range_of(&d->memory, at, 0) != NULL;
    pthread_mutex_unlock(&d->memory.lock);
    return !here;
}

static lt_cumemprop piece_prop(const lt_cuda_device *d)
{
    return (lt_cumemprop){.type = LT_CU_MEM_PINNED, .location = {LT_CU_MEM_LOCATION_DEVICE, d->device}};
}

/* --- pieces -------------------------------------------------------------------------- */

void lt__cuda_release_piece(lt_cuda_device *d, lt_cumemhandle handle, uint32_t span)
{
    lt__cuda_note(d, d->cu.mem_release(handle), "cuMemRelease");
    lt__cuda_drop_held(&d->memory, span * LT_CUDA_GRANULE);
}

static void drop_spare(lt_cuda_device *d)
{
    lt_cuda_memory *m = &d->memory;
    while (m->n_spare)
        lt__cuda_release_piece(d, m->spare[--m->n_spare], LT_CUDA_PIECE);
}

static lt_curesult create_piece(lt_cuda_device *d, uint32_t span, lt_cumemhandle *out)
{
    lt_cuda_memory *m = &d->memory;
    if (span == LT_CUDA_PIECE && m->n_spare) {
        *out = m->spare[--m->n_spare];
        return LT_CU_OK;
    }
    /* Otherwise spare pieces and new ones together could exceed what was ever committed. */
    drop_spare(d);
    lt_cumemprop prop = piece_prop(d);
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_create) ? LT_CU_OUT_OF_MEMORY
                                                            : d->cu.mem_create(out, span * LT_CUDA_GRANULE, &prop, 0);
    if (r == LT_CU_OK)
        lt__cuda_add_held(m, span * LT_CUDA_GRANULE);
    return r;
}

static lt_status map_piece(lt_cuda_device *d, lt_cuda_range *r, size_t first, uint32_t span, lt_err *err)
{
    CUdeviceptr at = r->base + first * LT_CUDA_GRANULE;
    uint64_t bytes = span * LT_CUDA_GRANULE;
    lt_cumemaccess access = {{LT_CU_MEM_LOCATION_DEVICE, d->device}, LT_CU_MEM_READWRITE};
    lt_cumemhandle handle = 0;
    const char *step = "cuMemCreate";
    lt_curesult e = create_piece(d, span, &handle);
    if (e != LT_CU_OK)
        goto fail;
    step = "cuMemMap";
    e = lt__fault(d->base.ctx, LT_FAULT_MAP) || lt__cuda_fault(d, LT_CUDA_FAULT_map)
            ? LT_CU_OUT_OF_MEMORY
            : d->cu.mem_map(at, bytes, 0, handle, 0);
    if (e != LT_CU_OK)
        goto fail_map;
    step = "cuMemSetAccess";
    e = lt__cuda_fault(d, LT_CUDA_FAULT_access) ? LT_CU_OUT_OF_MEMORY : d->cu.mem_access(at, bytes, &access, 1);
    if (e != LT_CU_OK)
        goto fail_access;
    for (uint32_t i = 0; i < span; i++)
        r->granules[first + i] = (lt_cuda_granule){.back = (uint8_t)i, .mapped = true, .committed = true};
    r->granules[first].handle = handle;
    r->granules[first].span = r->granules[first].live = (uint8_t)span;
    return LT_OK;
fail_access:
    lt__cuda_note(d, d->cu.mem_unmap(at, bytes), "cuMemUnmap after a failed cuMemSetAccess");
fail_map:
    lt__cuda_release_piece(d, handle, span);
fail:;
    size_t free = 0, total = 0;
    (void)d->cu.memory_info(&free, &total);
    return lt__cuda_fail(d, err, e,
                         "cuda: out of memory at %s: %" PRIu64 " bytes wanted, %zu free of %zu, %" PRIu64
                         " held by this device",
                         step, bytes, free, total, atomic_load_explicit(&d->memory.held, memory_order_relaxed));
}

static void unmap_piece(lt_cuda_device *d, lt_cuda_range *r, size_t first)
{
    lt_cuda_memory *m = &d->memory;
    lt_cuda_granule *g = &r->granules[first];
    uint32_t span = g->span;
    lt_cumemhandle handle = g->handle;
    lt__cuda_note(d, d->cu.mem_unmap(r->base + first * LT_CUDA_GRANULE, span * LT_CUDA_GRANULE), "cuMemUnmap");
    if (span == LT_CUDA_PIECE && m->n_spare < m->max_spare)
        m->spare[m->n_spare++] = handle;
    else
        lt__cuda_release_piece(d, handle, span);
    memset(g, 0, span * sizeof *g);
}

static void uncommit_granule(lt_cuda_device *d, lt_cuda_range *r, size_t i)
{
    lt_cuda_granule *g = &r->granules[i];
    size_t first = i - g->back;
    g->committed = false;
    if (d->vmm && --r->granules[first].live == 0)
        unmap_piece(d, r, first);
}

/* --- the calls ------------------------------------------------------------------------ */

static lt_status reserve_plain(lt_cuda_device *d, lt_cuda_range *r, lt_err *err)
{
    lt_curesult e =
        lt__cuda_fault(d, LT_CUDA_FAULT_alloc) ? LT_CU_OUT_OF_MEMORY : d->cu.mem_alloc(&r->base, r->bytes);
    if (e != LT_CU_OK) {
        size_t free = 0, total = 0;
        (void)d->cu.memory_info(&free, &total);
        return lt__cuda_fail(d, err, e,
                             "cuda: out of memory: without virtual memory management the whole of a reservation is "
                             "allocated, %" PRIu64 " bytes wanted, %zu free of %zu",
                             r->bytes, free, total);
    }
    lt__cuda_add_held(&d->memory, r->bytes);
    return LT_OK;
}

lt_status lt__cuda_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    if (bytes > UINT64_MAX / 4)
        return lt__fail(err, LT_E_DEVICE_OOM, "cuda: %" PRIu64 " bytes of address space cannot exist", bytes);
    lt_cuda_range *r = lt__zalloc(dev->ctx, sizeof *r);
    if (!r)
        return lt__fail_oom(err, sizeof *r, "a reservation");
    r->bytes = lt__round_up(bytes, LT_CUDA_GRANULE);
    r->n = (size_t)(r->bytes / LT_CUDA_GRANULE);
    r->granules = lt__alloc_array(dev->ctx, r->n, sizeof *r->granules);
    lt_status s = LT_OK;
    if (!r->granules) {
        s = lt__fail_oom(err, r->n * sizeof *r->granules, "the table of a reservation");
        goto fail;
    }
    s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        goto fail;
    pthread_mutex_lock(&m->lock);
    if (d->managed) {
        s = lt__cuda_managed_reserve(d, r, err);
    } else if (d->vmm) {
        lt_curesult e = lt__cuda_fault(d, LT_CUDA_FAULT_reserve) ? LT_CU_OUT_OF_MEMORY
                                                                 : d->cu.mem_reserve(&r->base, r->bytes, 0, 0, 0);
        if (e != LT_CU_OK)
            s = lt__cuda_fail(d, err, e, "cuda: no address space for a reservation of %" PRIu64 " bytes", r->bytes);
    } else {
        s = reserve_plain(d, r, err);
    }
    if (s == LT_OK) {
        r->next = m->ranges;
        m->ranges = r;
        *out = r->base;
    }
    pthread_mutex_unlock(&m->lock);
    lt__cuda_leave(d);
    if (s == LT_OK)
        return LT_OK;
fail:
    lt__free(dev->ctx, r->granules, r->n * sizeof *r->granules);
    lt__free(dev->ctx, r, sizeof *r);
    return s;
}

/* Under the lock, in the context. */
static void free_range(lt_cuda_device *d, lt_cuda_range *r)
{
    if (d->managed) {
        lt__cuda_managed_free(d, r);
    } else if (d->vmm) {
        for (size_t i = 0; i < r->n; i++)
            if (r->granules[i].span)
                unmap_piece(d, r, i);
        lt__cuda_note(d, d->cu.mem_unreserve(r->base, r->bytes), "cuMemAddressFree");
    } else {
        lt__cuda_note(d, d->cu.mem_free(r->base), "cuMemFree");
        lt__cuda_drop_held(&d->memory, r->bytes);
    }
    lt__free(d->base.ctx, r->granules, r->n * sizeof *r->granules);
    lt__free(d->base.ctx, r, sizeof *r);
}

void lt__cuda_unreserve(lt_device *dev, lt_addr base, uint64_t bytes)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    pthread_mutex_lock(&m->lock);
    lt_cuda_range **at = &m->ranges;
    while (*at && ((*at)->base != base || (*at)->bytes != lt__round_up(bytes, LT_CUDA_GRANULE)))
        at = &(*at)->next;
    lt_cuda_range *r = *at;
    if (r) {
        *at = r->next;
        free_range(d, r);
    }
    pthread_mutex_unlock(&m->lock);
    if (entered)
        lt__cuda_leave(d);
    if (!r)
        lt__log(dev->ctx, LT_LOG_ERROR, "cuda", "unreserve of %" PRIu64 " bytes that were not reserved so; ignored", bytes);
}

static bool all_committed(const lt_cuda_range *r, size_t first, size_t end, bool as)
{
    for (size_t i = first; i < end; i++)
        if (r->granules[i].committed != as)
            return false;
    return true;
}

/* Granules of first..end that this call committed are given back when a later one fails. */
static lt_status commit_granules(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end, lt_err *err)
{
    size_t at = first;
    lt_status s = LT_OK;
    while (at < end) {
        if (!d->vmm || r->granules[at].mapped) {
            r->granules[at].committed = true;
            if (d->vmm)
                r->granules[at - r->granules[at].back].live++;
            at++;
            continue;
        }
        size_t stop = lt__min_u64(end, (at / LT_CUDA_PIECE + 1) * LT_CUDA_PIECE), n = at;
        while (n < stop && !r->granules[n].mapped)
            n++;
        s = map_piece(d, r, at, (uint32_t)(n - at), err);
        if (s != LT_OK)
            break;
        at = n;
    }
    if (s != LT_OK)
        while (at-- > first)
            uncommit_granule(d, r, at);
    return s;
}

lt_status lt__cuda_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    lt_status s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        return s;
    pthread_mutex_lock(&m->lock);
    lt_cuda_range *r = range_of(m, base, bytes);
    uint64_t at = r ? base - r->base : 0;
    size_t first = (size_t)(at / LT_CUDA_GRANULE), end = (size_t)((at + bytes) / LT_CUDA_GRANULE);
    if (!r || at % LT_CUDA_GRANULE || bytes % LT_CUDA_GRANULE)
        s = lt__fail(err, LT_E_INVALID,
                     "cuda: commit of %" PRIu64 " bytes is not whole granules of %" PRIu64 " inside one reservation", bytes,
                     LT_CUDA_GRANULE);
    else if (!all_committed(r, first, end, false))
        s = lt__fail(err, LT_E_INVALID, "cuda: commit of %" PRIu64 " bytes of which some are committed already", bytes);
    else
        s = d->managed ? lt__cuda_managed_commit(d, r, first, end, err) : commit_granules(d, r, first, end, err);
    pthread_mutex_unlock(&m->lock);
    lt__cuda_leave(d);
    return s;
}

void lt__cuda_decommit(lt_device *dev, lt_addr base, uint64_t bytes)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    pthread_mutex_lock(&m->lock);
    lt_cuda_range *r = range_of(m, base, bytes);
    uint64_t at = r ? base - r->base : 0;
    size_t first = (size_t)(at / LT_CUDA_GRANULE), end = (size_t)((at + bytes) / LT_CUDA_GRANULE);
    bool good = r && at % LT_CUDA_GRANULE == 0 && bytes % LT_CUDA_GRANULE == 0 && all_committed(r, first, end, true);
    if (good && d->managed)
        lt__cuda_managed_decommit(d, r, first, end);
    for (size_t i = first; good && !d->managed && i < end; i++)
        uncommit_granule(d, r, i);
    pthread_mutex_unlock(&m->lock);
    if (entered)
        lt__cuda_leave(d);
    if (!good)
        lt__log(dev->ctx, LT_LOG_ERROR, "cuda", "decommit of %" PRIu64 " bytes that are not all committed; ignored", bytes);
}

void lt__cuda_keep(lt_device *dev, uint64_t bytes)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    pthread_mutex_lock(&m->lock);
    size_t most = lt__max_u64(m->recycle, (bytes + PIECE_BYTES - 1) / PIECE_BYTES);
    if (lt__grow(dev->ctx, (void **)&m->spare, &m->spare_cap, most, sizeof *m->spare, NULL) != LT_OK)
        most = m->spare_cap; /* fewer stay */
    m->max_spare = most;
    while (entered && m->n_spare > most)
        lt__cuda_release_piece(d, m->spare[--m->n_spare], LT_CUDA_PIECE);
    pthread_mutex_unlock(&m->lock);
    if (entered)
        lt__cuda_leave(d);
}

void lt__cuda_memory_deinit(lt_cuda_device *d)
{
    lt_cuda_memory *m = &d->memory;
    while (m->ranges) {
        lt_cuda_range *r = m->ranges;
        m->ranges = r->next;
        lt__log(d->base.ctx, LT_LOG_WARN, "cuda", "%" PRIu64 " bytes of address space were never unreserved", r->bytes);
        free_range(d, r);
    }
    drop_spare(d);
    if (m->stream)
        lt__cuda_note(d, d->cu.stream_destroy(m->stream), "cuStreamDestroy");
    lt__free(d->base.ctx, m->spare, m->spare_cap * sizeof *m->spare);
    while (m->pins) {
        lt_cuda_pin *p = m->pins;
        m->pins = p->next;
        lt__log(d->base.ctx, LT_LOG_WARN, "cuda", "%zu bytes of host memory were never unpinned", p->bytes);
        lt__cuda_note(d, d->cu.host_unregister((void *)p->at), "cuMemHostUnregister");
        lt__free(d->base.ctx, p, sizeof *p);
    }
    pthread_mutex_destroy(&m->lock);
    pthread_rwlock_destroy(&m->pin_lock);
}
