/* Managed memory, `managed=1`: a reservation is one managed allocation, which the driver may move between card
 * and host. It has no memory at first; commit prefetches granules to the card, so that no kernel meets a page
 * fault, and never more than is free there: the driver would make room by moving other pages of ours to the
 * host, and say nothing. What is given back while the reservation lives can only go to the host; the memory
 * of a whole reservation just goes. */
#include "backend/cuda/device.h"
#include "base/host.h"

#include <inttypes.h>
#include <stdio.h>

/* The smallest and the largest piece the driver is asked to move; a piece is checked against what is free. */
#define PIECE_BYTES (LT_CUDA_GRANULE * LT_CUDA_PIECE)
#define HOST_RESERVE ((uint64_t)1 << 30) /* left to the host, or an eighth of it where that is less */

static const lt_cumemlocation the_host = {LT_CU_MEM_LOCATION_HOST, 0};
static lt_cumemlocation card_of(const lt_cuda_device *d)
{
    return (lt_cumemlocation){LT_CU_MEM_LOCATION_DEVICE, d->device};
}

static const char *lacks(const lt_cuda_device *d, CUdevice device)
{
    int value = 0;
    if (d->cu.device_attribute(&value, LT_CU_ATTR_MANAGED, device) != LT_CU_OK || !value)
        return "CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY";
    value = 0;
    if (d->cu.device_attribute(&value, LT_CU_ATTR_CONCURRENT_MANAGED, device) != LT_CU_OK || !value)
        return "CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS (as on Windows, in WSL, before Pascal)";
    return NULL;
}

/* Of all devices: where one cannot share pages with the processor, the driver populates the managed memory of all
 * at once, and in places it does not promise. */
lt_status lt__cuda_managed_check(lt_cuda_device *d, lt_err *err)
{
    int n = 0;
    CUdevice other;
    char name[64] = "?";
    if (!d->cu.has_managed)
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "cuda: managed=1: the driver is too old: it has not all of cuMemAllocManaged, cuMemAdvise and "
                        "cuMemPrefetchAsync; use --memory device");
    const char *what = lacks(d, d->device);
    if (what)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: managed=1: %s has no %s; use --memory device", d->name, what);
    lt_curesult r = d->cu.device_count(&n);
    for (int i = 0; i < n && r == LT_CU_OK; i++) {
        if ((r = d->cu.device_get(&other, i)) != LT_CU_OK || !(what = lacks(d, other)))
            continue;
        (void)d->cu.device_name(name, sizeof name, other);
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "cuda: managed=1: device %d beside it, %.63s, has no %s; use --memory device, or hide that one "
                        "(CUDA_VISIBLE_DEVICES)",
                        i, name, what);
    }
    if (r == LT_CU_OK)
        r = d->cu.stream_create(&d->memory.stream, LT_CU_STREAM_NON_BLOCKING);
    return r == LT_CU_OK ? LT_OK : lt__cuda_fail(d, err, r, "cuda: managed=1: the devices cannot be asked, or no stream");
}

/* --- what the driver is told ------------------------------------------------------------- */

static lt_curesult advise(lt_cuda_device *d, CUdeviceptr at, uint64_t bytes, int advice)
{
    if (lt__cuda_fault(d, LT_CUDA_FAULT_managed))
        return LT_CU_OUT_OF_MEMORY;
    if (d->cu.mem_advise)
        return d->cu.mem_advise(at, bytes, advice, card_of(d));
    return d->cu.mem_advise_v1(at, bytes, advice, d->device);
}

static lt_curesult prefetch(lt_cuda_device *d, CUdeviceptr at, uint64_t bytes, lt_cumemlocation where)
{
    CUstream stream = d->memory.stream;
    if (d->cu.mem_prefetch)
        return d->cu.mem_prefetch(at, bytes, where, 0, stream);
    return d->cu.mem_prefetch_v1(at, bytes, where.type == LT_CU_MEM_LOCATION_HOST ? LT_CU_DEVICE_CPU : where.id, stream);
}

/* Nobody wants the content of what is moved: with CUDA 13 it is not copied. */
static lt_curesult move(lt_cuda_device *d, CUdeviceptr at, uint64_t bytes, lt_cumemlocation where, bool has_content)
{
    size_t size = (size_t)bytes, first = 0;
    lt_curesult r = LT_CU_NOT_SUPPORTED;
    if (lt__cuda_fault(d, LT_CUDA_FAULT_managed))
        return LT_CU_OUT_OF_MEMORY;
    if (has_content && d->cu.mem_discard_prefetch) {
        r = d->cu.mem_discard_prefetch(&at, &size, 1, &where, &first, 1, 0, d->memory.stream);
        if (r == LT_CU_NOT_SUPPORTED) {
            lt__log(d->base.ctx, LT_LOG_WARN, "cuda", "managed memory cannot be discarded here: it is copied instead");
            d->cu.mem_discard_prefetch = NULL;
        }
    }
    if (r == LT_CU_NOT_SUPPORTED)
        r = prefetch(d, at, bytes, where);
    return r;
}

/* --- reservations ------------------------------------------------------------------------ */

/* Begins on a granule, which is what the driver moves at once: a neighbour in the same would move along. */
lt_status lt__cuda_managed_reserve(lt_cuda_device *d, lt_cuda_range *r, lt_err *err)
{
    lt_curesult e = lt__cuda_fault(d, LT_CUDA_FAULT_managed)
                        ? LT_CU_OUT_OF_MEMORY
                        : d->cu.mem_managed(&r->allocated, r->bytes + LT_CUDA_GRANULE, LT_CU_MEM_ATTACH_GLOBAL);
    if (e != LT_CU_OK)
        return lt__cuda_fail(d, err, e, "cuda: no managed memory for a reservation of %" PRIu64 " bytes", r->bytes);
    r->base = lt__round_up(r->allocated, LT_CUDA_GRANULE);
    return LT_OK;
}

/* What goes is held by pieces that nobody uses, as far as lt_device_keep asked: others cannot take it in between. */
static void hold_place(lt_cuda_device *d, uint64_t granules)
{
    lt_cuda_memory *m = &d->memory;
    lt_cumemprop prop = {.type = LT_CU_MEM_PINNED, .location = card_of(d)};
    for (uint64_t n = granules / LT_CUDA_PIECE; d->places && n && m->n_spare < m->max_spare; n--) {
        if (d->cu.mem_create(&m->spare[m->n_spare], PIECE_BYTES, &prop, 0) != LT_CU_OK)
            return; /* somebody was quicker */
        m->n_spare++;
        lt__cuda_add_held(m, PIECE_BYTES);
    }
}

void lt__cuda_managed_free(lt_cuda_device *d, lt_cuda_range *r)
{
    uint64_t here = 0, there = 0;
    for (size_t i = 0; i < r->n; i++) {
        here += r->granules[i].mapped;
        there += r->granules[i].hosted;
    }
    lt__cuda_note(d, d->cu.mem_free(r->allocated), "cuMemFree");
    lt__cuda_drop_held(&d->memory, here * LT_CUDA_GRANULE);
    atomic_fetch_sub(&d->memory.hosted, there * LT_CUDA_GRANULE);
    hold_place(d, here);
}

/* --- to the host --------------------------------------------------------------------------- */

static bool host_has_room(lt_cuda_device *d, uint64_t bytes)
{
    lt__host_limits l;
    if (!bytes)
        return true;
    lt__host_limits_get(&l);
    uint64_t all = lt__min_u64(l.ram_bytes, l.available_bytes), reserve = lt__min_u64(l.ram_bytes / 8, HOST_RESERVE);
    return !lt__fault(d->base.ctx, LT_FAULT_HOST_ALLOC) && all > reserve && bytes <= all - reserve;
}

static void count_hosted(lt_cuda_memory *m, uint64_t bytes)
{
    uint64_t now = atomic_fetch_add(&m->hosted, bytes) + bytes;
    if (now > atomic_load(&m->hosted_peak))
        atomic_store(&m->hosted_peak, now);
}

/* One run of granules that are on the card and committed no more. What cannot go stays, and counts as held. */
static bool send_run(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t n)
{
    CUdeviceptr at = r->base + first * LT_CUDA_GRANULE;
    uint64_t bytes = n * LT_CUDA_GRANULE, fresh = 0;
    for (size_t i = first; i < first + n; i++)
        fresh += !r->granules[i].hosted;
    if (!host_has_room(d, fresh * LT_CUDA_GRANULE)) {
        lt__log(d->base.ctx, LT_LOG_WARN, "cuda",
                "%" PRIu64 " bytes of managed memory that were given back stay on the card: the host has no room for them", bytes);
        return false;
    }
    lt__cuda_note(d, advise(d, at, bytes, LT_CU_ADVISE_UNACCESSED), "cuMemAdvise (unset accessed by)");
    lt__cuda_note(d, advise(d, at, bytes, LT_CU_ADVISE_UNPREFER), "cuMemAdvise (unset preferred location)");
    lt_curesult e = move(d, at, bytes, the_host, true);
    if (e == LT_CU_OK)
        e = d->cu.stream_sync(d->memory.stream);
    if (e != LT_CU_OK) {
        lt__cuda_note(d, e, "managed memory that was given back stays on the card");
        return false;
    }
    for (size_t i = first; i < first + n; i++) {
        r->granules[i].mapped = false;
        r->granules[i].hosted = true;
    }
    count_hosted(&d->memory, fresh * LT_CUDA_GRANULE); /* until the reservation goes: nobody says that they leave before */
    lt__cuda_drop_held(&d->memory, bytes);
    return true;
}

static void send_back(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end)
{
    uint64_t sent = 0;
    for (size_t at = first, n; at < end; at += n) {
        for (n = 0; at + n < end && r->granules[at + n].mapped && !r->granules[at + n].committed;)
            n++;
        if (n && send_run(d, r, at, n))
            sent += n;
        n += !n;
    }
    hold_place(d, sent);
}

void lt__cuda_managed_decommit(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        r->granules[i].committed = false;
    send_back(d, r, first, end);
}

/* --- to the card --------------------------------------------------------------------------- */

/* Refused here, with numbers, or the driver would take other pages of ours for it. */
static lt_status check_room(lt_cuda_device *d, uint64_t bytes, uint64_t kept, uint64_t margin, lt_err *err)
{
    size_t free = 0, total = 0;
    lt_curesult e = d->cu.memory_info(&free, &total);
    if (e != LT_CU_OK)
        return lt__cuda_fail(d, err, e, "cuda: the free memory cannot be asked");
    if (bytes <= kept + (free - lt__min_u64(free, margin)))
        return LT_OK;
    return lt__fail_native(err, LT_E_DEVICE_OOM, LT_CU_OUT_OF_MEMORY,
                           "cuda: out of memory: %" PRIu64 " bytes of managed memory wanted, which would not all lie on the card: "
                           "%zu free of %zu, %" PRIu64 " of them left alone, %" PRIu64 " kept, %" PRIu64 " held by this device",
                           bytes, free, total, margin, kept, atomic_load_explicit(&d->memory.held, memory_order_relaxed));
}

static lt_status bring_piece(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t n, lt_err *err)
{
    lt_cuda_memory *m = &d->memory;
    uint64_t bytes = n * LT_CUDA_GRANULE;
    bool hosted = false;
    for (size_t i = first; i < first + n; i++)
        hosted |= r->granules[i].hosted;
    /* One kept piece makes room for one new: together they are never more than was committed, and need no margin. */
    bool kept = m->n_spare > 0;
    if (kept)
        lt__cuda_release_piece(d, m->spare[--m->n_spare], LT_CUDA_PIECE);
    lt_status s = check_room(d, bytes, 0, kept ? 0 : LT_CUDA_MANAGED_MARGIN, err);
    if (s != LT_OK)
        return s;
    lt_curesult e = lt__fault(d->base.ctx, LT_FAULT_MAP) ? LT_CU_OUT_OF_MEMORY
                                                         : move(d, r->base + first * LT_CUDA_GRANULE, bytes, card_of(d), hosted);
    if (e == LT_CU_OK) {
        for (size_t i = first; i < first + n; i++)
            r->granules[i].mapped = true;
        lt__cuda_add_held(m, bytes); /* under way, whatever the wait says */
        e = d->cu.stream_sync(m->stream);
    }
    return e == LT_CU_OK ? LT_OK
                         : lt__cuda_fail(d, err, e, "cuda: %" PRIu64 " bytes of managed memory cannot be prefetched to the card", bytes);
}

/* The preferred place and "accessed by" keep the mapping when the driver has to move pages out all the same, for a
 * neighbour's plain memory: kernels read them over the link then, instead of pulling them in and others out. */
lt_status lt__cuda_managed_commit(lt_cuda_device *d, lt_cuda_range *r, size_t first, size_t end, lt_err *err)
{
    CUdeviceptr base = r->base + first * LT_CUDA_GRANULE;
    uint64_t bytes = (end - first) * LT_CUDA_GRANULE, missing = 0;
    for (size_t i = first; i < end; i++)
        missing += !r->granules[i].mapped;
    lt_status s = check_room(d, missing * LT_CUDA_GRANULE, d->memory.n_spare * PIECE_BYTES, LT_CUDA_MANAGED_MARGIN, err);
    if (s != LT_OK)
        return s;
    lt_curesult e = advise(d, base, bytes, LT_CU_ADVISE_PREFER);
    if (e == LT_CU_OK)
        e = advise(d, base, bytes, LT_CU_ADVISE_ACCESSED);
    if (e != LT_CU_OK)
        return lt__cuda_fail(d, err, e, "cuda: managed memory: %" PRIu64 " bytes take no advice", bytes);
    for (size_t at = first, n; at < end && s == LT_OK; at += n) {
        for (n = 0; at + n < end && n < LT_CUDA_PIECE && !r->granules[at + n].mapped;)
            n++;
        if (n)
            s = bring_piece(d, r, at, n, err);
        n += !n;
    }
    for (size_t i = first; i < end && s == LT_OK; i++)
        r->granules[i].committed = true;
    if (s != LT_OK)
        send_back(d, r, first, end);
    return s;
}
