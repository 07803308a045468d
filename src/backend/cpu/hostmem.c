#include "backend/cpu/hostmem.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE ((uint64_t)2 << 20)

void lt__hostmem_init(lt_hostmem *m, lt_ctx *ctx, const char *what)
{
    memset(m, 0, sizeof *m);
    m->ctx = ctx;
    m->what = what;
    pthread_mutex_init(&m->lock, NULL);
}

static void drop_range(lt_hostmem *m, lt_hostmem_range *r)
{
    munmap(r->base, r->bytes);
    lt__free(m->ctx, r->bits, r->words * sizeof *r->bits);
}

void lt__hostmem_deinit(lt_hostmem *m)
{
    for (size_t i = 0; i < m->n; i++) {
        lt__log(m->ctx, LT_LOG_WARN, m->what, "%" PRIu64 " bytes of address space were never unreserved",
                m->ranges[i].bytes);
        drop_range(m, &m->ranges[i]);
    }
    lt__free(m->ctx, m->ranges, m->cap * sizeof *m->ranges);
    pthread_mutex_destroy(&m->lock);
}

/* Index of the first range that starts above p. */
static size_t range_above(const lt_hostmem *m, const uint8_t *p)
{
    size_t lo = 0, hi = m->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (m->ranges[mid].base > p)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static lt_hostmem_range *range_of(lt_hostmem *m, const uint8_t *p, uint64_t bytes)
{
    size_t i = range_above(m, p);
    if (!i)
        return NULL;
    lt_hostmem_range *r = &m->ranges[i - 1];
    uint64_t at = (uint64_t)(p - r->base);
    return at < r->bytes && bytes <= r->bytes - at ? r : NULL;
}

/* Calls with n granules from `first`: all set, none set, or set or clear them; words at a time. */
static uint64_t word_mask(uint64_t first, uint64_t end, uint64_t word)
{
    uint64_t mask = UINT64_MAX;
    if (first > word * 64)
        mask &= UINT64_MAX << (first - word * 64);
    if (end < word * 64 + 64)
        mask &= UINT64_MAX >> (word * 64 + 64 - end);
    return mask;
}

static bool bits_all(const uint64_t *bits, uint64_t first, uint64_t end)
{
    for (uint64_t w = first / 64; w * 64 < end; w++) {
        uint64_t mask = word_mask(first, end, w);
        if ((bits[w] & mask) != mask)
            return false;
    }
    return true;
}

static uint64_t bits_count(const uint64_t *bits, uint64_t first, uint64_t end)
{
    uint64_t n = 0;
    for (uint64_t w = first / 64; w * 64 < end; w++)
        n += (uint64_t)__builtin_popcountll(bits[w] & word_mask(first, end, w));
    return n;
}

static void bits_set(uint64_t *bits, uint64_t first, uint64_t end, bool on)
{
    for (uint64_t w = first / 64; w * 64 < end; w++) {
        uint64_t mask = word_mask(first, end, w);
        bits[w] = on ? bits[w] | mask : bits[w] & ~mask;
    }
}

/* Address space that starts on a huge page. */
static uint8_t *map_aligned(uint64_t bytes)
{
    uint64_t all;
    if (!lt__add_u64(bytes, HUGE, &all) || all > SIZE_MAX)
        return NULL;
    uint8_t *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint8_t *base = (uint8_t *)lt__round_up((uintptr_t)p, HUGE);
    uint64_t before = (uint64_t)(base - p), behind = all - before - bytes;
    if (before)
        munmap(p, before);
    if (behind)
        munmap(base + bytes, behind);
    return base;
}

lt_status lt__hostmem_reserve(lt_hostmem *m, uint64_t bytes, uint8_t **out, lt_err *err)
{
    if (bytes > UINT64_MAX / 2)
        return lt__fail(err, LT_E_DEVICE_OOM, "%s: %" PRIu64 " bytes of address space cannot exist", m->what, bytes);
    lt_hostmem_range r = {.bytes = lt__round_up(bytes, LT_HOSTMEM_GRANULE)};
    r.words = (size_t)((r.bytes / LT_HOSTMEM_GRANULE + 63) / 64);
    r.bits = lt__alloc_array(m->ctx, r.words, sizeof *r.bits);
    if (!r.bits)
        return lt__fail_oom(err, r.words * sizeof *r.bits, "the table of a reservation");
    r.base = map_aligned(r.bytes);
    if (!r.base) {
        int e = errno;
        lt__free(m->ctx, r.bits, r.words * sizeof *r.bits);
        return lt__fail_native(err, LT_E_DEVICE_OOM, e, "%s: no address space for a reservation of %" PRIu64 " bytes",
                               m->what, bytes);
    }
    pthread_mutex_lock(&m->lock);
    lt_status s = lt__grow(m->ctx, (void **)&m->ranges, &m->cap, m->n + 1, sizeof *m->ranges, err);
    if (s == LT_OK) {
        size_t i = range_above(m, r.base);
        memmove(&m->ranges[i + 1], &m->ranges[i], (m->n - i) * sizeof *m->ranges);
        m->ranges[i] = r;
        m->n++;
        *out = r.base;
    }
    pthread_mutex_unlock(&m->lock);
    if (s != LT_OK)
        drop_range(m, &r);
    return s;
}

void lt__hostmem_unreserve(lt_hostmem *m, uint8_t *base, uint64_t bytes)
{
    pthread_mutex_lock(&m->lock);
    lt_hostmem_range *r = range_of(m, base, 1);
    if (!r || r->base != base || r->bytes != lt__round_up(bytes, LT_HOSTMEM_GRANULE)) {
        pthread_mutex_unlock(&m->lock);
        lt__log(m->ctx, LT_LOG_ERROR, m->what, "unreserve of %" PRIu64 " bytes that were not reserved so; ignored",
                bytes);
        return;
    }
    m->committed -= bits_count(r->bits, 0, r->bytes / LT_HOSTMEM_GRANULE) * LT_HOSTMEM_GRANULE;
    lt_hostmem_range gone = *r;
    m->n--;
    memmove(r, r + 1, (size_t)(&m->ranges[m->n] - r) * sizeof *r);
    /* Unmapped under the lock: otherwise a new reservation could get these addresses first. */
    drop_range(m, &gone);
    pthread_mutex_unlock(&m->lock);
}

static lt_status open_pages(lt_hostmem *m, uint8_t *base, uint64_t bytes, lt_err *err)
{
    if (mprotect(base, bytes, PROT_READ | PROT_WRITE)) {
        int e = errno;
        mprotect(base, bytes, PROT_NONE); /* it may have got halfway */
        return lt__fail_native(err, LT_E_DEVICE_OOM, e,
                               "%s: the system grants no commit of %" PRIu64 " bytes (%" PRIu64 " committed already): %s",
                               m->what, bytes, m->committed, e == ENOMEM ? "out of commit charge or mappings" : "refused");
    }
    madvise(base, bytes, MADV_HUGEPAGE); /* a wish; kernels without huge pages say no */
    if (m->poisoned)
        memset(base, m->poison, bytes);
    return LT_OK;
}

lt_status lt__hostmem_commit(lt_hostmem *m, uint8_t *base, uint64_t bytes, uint64_t limit, lt_err *err)
{
    pthread_mutex_lock(&m->lock);
    lt_status s = LT_OK;
    lt_hostmem_range *r = range_of(m, base, bytes);
    uint64_t at = r ? (uint64_t)(base - r->base) : 0;
    uint64_t first = at / LT_HOSTMEM_GRANULE, end = (at + bytes) / LT_HOSTMEM_GRANULE;
    if (!r || at % LT_HOSTMEM_GRANULE || bytes % LT_HOSTMEM_GRANULE)
        s = lt__fail(err, LT_E_INVALID,
                     "%s: commit of %" PRIu64 " bytes is not whole granules of %" PRIu64 " inside one reservation",
                     m->what, bytes, LT_HOSTMEM_GRANULE);
    else if (bits_count(r->bits, first, end))
        s = lt__fail(err, LT_E_INVALID, "%s: commit of %" PRIu64 " bytes of which %" PRIu64 " are committed already",
                     m->what, bytes, bits_count(r->bits, first, end) * LT_HOSTMEM_GRANULE);
    else if (m->committed > limit || bytes > limit - m->committed)
        s = lt__fail(err, LT_E_DEVICE_OOM,
                     "%s: out of memory: %" PRIu64 " bytes wanted, %" PRIu64 " free of %" PRIu64 ", %" PRIu64 " committed",
                     m->what, bytes, m->committed < limit ? limit - m->committed : 0, limit, m->committed);
    else
        s = open_pages(m, base, bytes, err);
    if (s == LT_OK) {
        bits_set(r->bits, first, end, true);
        m->committed += bytes;
        m->peak = lt__max_u64(m->peak, m->committed);
    }
    pthread_mutex_unlock(&m->lock);
    return s;
}

/* A fresh mapping returns the commit charge too; MADV_DONTNEED would keep it. */
static void close_pages(uint8_t *base, uint64_t bytes)
{
    if (mmap(base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
        madvise(base, bytes, MADV_DONTNEED);
        mprotect(base, bytes, PROT_NONE);
    }
}

void lt__hostmem_decommit(lt_hostmem *m, uint8_t *base, uint64_t bytes)
{
    pthread_mutex_lock(&m->lock);
    lt_hostmem_range *r = range_of(m, base, bytes);
    uint64_t at = r ? (uint64_t)(base - r->base) : 0;
    uint64_t first = at / LT_HOSTMEM_GRANULE, end = (at + bytes) / LT_HOSTMEM_GRANULE;
    bool good = r && at % LT_HOSTMEM_GRANULE == 0 && bytes % LT_HOSTMEM_GRANULE == 0 && bits_all(r->bits, first, end);
    if (good) {
        close_pages(base, bytes);
        bits_set(r->bits, first, end, false);
        m->committed -= bytes;
    }
    pthread_mutex_unlock(&m->lock);
    if (!good)
        lt__log(m->ctx, LT_LOG_ERROR, m->what, "decommit of %" PRIu64 " bytes that are not all committed; ignored", bytes);
}

bool lt__hostmem_holds(lt_hostmem *m, const uint8_t *p, uint64_t bytes)
{
    if (!bytes)
        return true;
    pthread_mutex_lock(&m->lock);
    lt_hostmem_range *r = range_of(m, p, bytes);
    bool holds = false;
    if (r) {
        uint64_t at = (uint64_t)(p - r->base);
        holds = bits_all(r->bits, at / LT_HOSTMEM_GRANULE, (at + bytes - 1) / LT_HOSTMEM_GRANULE + 1);
    }
    pthread_mutex_unlock(&m->lock);
    return holds;
}

void lt__hostmem_usage(lt_hostmem *m, uint64_t *committed, uint64_t *peak)
{
    pthread_mutex_lock(&m->lock);
    *committed = m->committed;
    *peak = m->peak;
    pthread_mutex_unlock(&m->lock);
}
