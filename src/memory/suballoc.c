#include "memory/suballoc.h"

#include <string.h>

/* How many blocks of its own step a request looks at. Large requests are rare and decide how
 * an arena fragments, so they look longer. */
enum { SCAN_SMALL = 4, SCAN_LARGE = 64 };
#define LARGE_BYTES (256u << 10)

static void class_of(const lt__sub *s, uint64_t bytes, uint32_t *fl, uint32_t *sl)
{
    uint64_t units = bytes >> s->shift;
    if (units < LT__SL) {
        *fl = 0;
        *sl = (uint32_t)units;
        return;
    }
    uint32_t top = 63u - (uint32_t)__builtin_clzll(units);
    *fl = top - LT__SL_BITS + 1;
    *sl = (uint32_t)(units >> (top - LT__SL_BITS)) & (LT__SL - 1);
}

static void free_link(lt__sub *s, lt__blk *b)
{
    uint32_t fl, sl;
    class_of(s, b->bytes, &fl, &sl);
    lt__blk *head = s->heads[fl][sl];
    b->state = LT__BLK_FREE;
    b->prev = NULL;
    b->next = head;
    if (head) head->prev = b;
    s->heads[fl][sl] = b;
    s->sl_map[fl] |= 1u << sl;
    s->fl_map |= 1ull << fl;
    s->free_bytes += b->bytes;
}

static void free_unlink(lt__sub *s, lt__blk *b)
{
    s->free_bytes -= b->bytes;
    if (b->next) b->next->prev = b->prev;
    if (b->prev) {
        b->prev->next = b->next;
        return;
    }
    uint32_t fl, sl;
    class_of(s, b->bytes, &fl, &sl);
    s->heads[fl][sl] = b->next;
    if (b->next) return;
    s->sl_map[fl] &= ~(1u << sl);
    if (!s->sl_map[fl]) s->fl_map &= ~(1ull << fl);
}

static void hole_link(lt__sub *s, lt__blk *b)
{
    b->state = LT__BLK_HOLE;
    b->prev = NULL;
    b->next = s->holes;
    if (s->holes) s->holes->prev = b;
    s->holes = b;
    s->hole_bytes += b->bytes;
}

static void hole_unlink(lt__sub *s, lt__blk *b)
{
    s->hole_bytes -= b->bytes;
    if (b->next) b->next->prev = b->prev;
    if (b->prev)
        b->prev->next = b->next;
    else
        s->holes = b->next;
}

void lt__sub_retire(lt__blk *b)
{
    if (++b->serial == 0) b->serial = 1; /* 0 marks "no block" in a handle */
}

static lt__blk *record_take(lt__sub *s)
{
    LT_ASSERT(s->unused != NULL);
    lt__blk *b = s->unused;
    s->unused = b->next;
    s->n_unused--;
    b->prev = b->next = NULL;
    return b;
}

static void record_drop(lt__sub *s, lt__blk *b)
{
    b->state = LT__BLK_UNUSED;
    b->next = s->unused;
    s->unused = b;
    s->n_unused++;
}

lt_status lt__sub_prepare(lt__sub *s, uint32_t n, lt_err *err)
{
    while (s->n_unused < n) {
        if (s->n_segs >= (1u << (32 - LT__SEG_BITS)) - 1)
            return lt__fail(err, LT_E_HOST_OOM, "pool: %zu block records are all a pool can number",
                            s->n_segs * LT__SEG);
        lt_status st = lt__grow(s->ctx, (void **)&s->segs, &s->cap_segs, s->n_segs + 1, sizeof *s->segs, err);
        if (st != LT_OK) return st;
        lt__blk *seg = lt__zalloc(s->ctx, LT__SEG * sizeof *seg);
        if (!seg) return lt__fail_oom(err, LT__SEG * sizeof *seg, "block records of a pool");
        s->segs[s->n_segs] = seg;
        for (uint32_t i = LT__SEG; i-- > 0;) {
            seg[i].slot = (uint32_t)(s->n_segs << LT__SEG_BITS) + i;
            seg[i].serial = 1;
            record_drop(s, &seg[i]);
        }
        s->n_segs++;
    }
    return LT_OK;
}

lt_status lt__sub_init(lt__sub *s, lt_ctx *ctx, uint64_t base, uint64_t bytes, uint64_t granule, lt_err *err)
{
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->base = base;
    s->bytes = bytes;
    s->shift = (uint32_t)__builtin_ctzll(granule);
    LT_ASSERT((granule & (granule - 1)) == 0 && ((base | bytes) & (granule - 1)) == 0 && bytes > 0);
    lt_status st = lt__sub_prepare(s, 1, err);
    if (st != LT_OK) {
        lt__sub_deinit(s);
        return st;
    }
    lt__blk *b = record_take(s);
    b->addr = base;
    b->bytes = bytes;
    s->lowest = b;
    hole_link(s, b);
    return LT_OK;
}

void lt__sub_deinit(lt__sub *s)
{
    for (size_t i = 0; i < s->n_segs; i++) lt__free(s->ctx, s->segs[i], LT__SEG * sizeof(lt__blk));
    lt__free(s->ctx, s->segs, s->cap_segs * sizeof *s->segs);
    memset(s, 0, sizeof *s);
}

/* Cuts b at addr; the new upper record is in no list. b's own list is the caller's matter. */
static lt__blk *cut(lt__sub *s, lt__blk *b, uint64_t addr)
{
    LT_DASSERT(addr > b->addr && addr < b->addr + b->bytes);
    lt__blk *hi = record_take(s);
    hi->addr = addr;
    hi->bytes = b->addr + b->bytes - addr;
    b->bytes = addr - b->addr;
    hi->lower = b;
    hi->upper = b->upper;
    if (hi->upper) hi->upper->lower = hi;
    b->upper = hi;
    hi->state = b->state;
    hi->use = b->use;
    hi->owner = b->owner;
    hi->seq = b->seq;
    return hi;
}

/* b swallows its upper neighbour, whose lists are already left. */
static void swallow_upper(lt__sub *s, lt__blk *b)
{
    lt__blk *hi = b->upper;
    b->bytes += hi->bytes;
    b->upper = hi->upper;
    if (b->upper) b->upper->lower = b;
    record_drop(s, hi);
}

lt__blk *lt__sub_split(lt__sub *s, lt__blk *b, uint64_t addr)
{
    lt__blk *hi;
    switch (b->state) {
    case LT__BLK_FREE:
        free_unlink(s, b);
        hi = cut(s, b, addr);
        free_link(s, b);
        free_link(s, hi);
        return hi;
    case LT__BLK_HOLE:
        hole_unlink(s, b);
        hi = cut(s, b, addr);
        hole_link(s, b);
        hole_link(s, hi);
        return hi;
    case LT__BLK_PENDING:
        hi = cut(s, b, addr);
        hi->prev = b;
        hi->next = b->next;
        if (b->next) b->next->prev = hi;
        b->next = hi;
        return hi;
    default: return cut(s, b, addr);
    }
}

static lt__blk *merge_free(lt__sub *s, lt__blk *b)
{
    lt__blk *lo = b->lower, *hi = b->upper;
    if (hi && hi->state == LT__BLK_FREE) {
        free_unlink(s, hi);
        swallow_upper(s, b);
    }
    if (lo && lo->state == LT__BLK_FREE) {
        free_unlink(s, lo);
        swallow_upper(s, lo);
        b = lo;
    }
    free_link(s, b);
    return b;
}

void lt__sub_commit(lt__sub *s, uint64_t addr, uint64_t bytes)
{
    lt__blk *b = s->holes;
    while (b && !(b->addr <= addr && addr - b->addr < b->bytes)) b = b->next;
    LT_ASSERT(b && bytes <= b->bytes - (addr - b->addr));
    hole_unlink(s, b);
    if (addr > b->addr) {
        lt__blk *hi = cut(s, b, addr);
        hole_link(s, b);
        b = hi;
    }
    if (bytes < b->bytes) hole_link(s, cut(s, b, addr + bytes));
    merge_free(s, b);
}

lt__blk *lt__sub_leave(lt__sub *s, lt__blk *b, uint64_t addr, uint64_t bytes)
{
    LT_ASSERT(b->state == LT__BLK_FREE && addr >= b->addr && bytes <= b->bytes - (addr - b->addr));
    free_unlink(s, b);
    if (addr > b->addr) {
        lt__blk *hi = cut(s, b, addr);
        free_link(s, b);
        b = hi;
    }
    if (bytes < b->bytes) free_link(s, cut(s, b, addr + bytes));
    b->state = LT__BLK_LEAVING;
    return b;
}

void lt__sub_uncommit(lt__sub *s, lt__blk *b)
{
    LT_ASSERT(b->state == LT__BLK_LEAVING);
    lt__blk *lo = b->lower, *hi = b->upper;
    if (hi && hi->state == LT__BLK_HOLE) {
        hole_unlink(s, hi);
        swallow_upper(s, b);
    }
    if (lo && lo->state == LT__BLK_HOLE) {
        hole_unlink(s, lo);
        swallow_upper(s, lo);
        b = lo;
    }
    hole_link(s, b);
}

/* Where the request would lie inside [addr, addr + have); false if it does not fit. */
static bool place(uint64_t addr, uint64_t have, uint64_t bytes, uint64_t align, bool high, uint64_t *at)
{
    if (have < bytes) return false;
    if (high) {
        uint64_t a = lt__round_down(addr + (have - bytes), align);
        *at = a;
        return a >= addr;
    }
    uint64_t pad = -addr & (align - 1);
    *at = addr + pad;
    return pad <= have - bytes;
}

static bool better(const lt__blk *b, const lt__blk *best, bool high)
{
    if (!best || b->bytes != best->bytes) return !best || b->bytes < best->bytes;
    return high ? b->addr > best->addr : b->addr < best->addr;
}

static lt__blk *scan(lt__blk *head, uint64_t bytes, uint64_t align, bool high, uint32_t limit)
{
    lt__blk *best = NULL;
    uint64_t at;
    for (lt__blk *b = head; b && limit; b = b->next, limit--)
        if (b->bytes >= bytes && better(b, best, high) && place(b->addr, b->bytes, bytes, align, high, &at))
            best = b;
    return best;
}

/* The lowest step above fl.sl that has a block; false at the end. */
static inline bool next_step(const lt__sub *s, uint32_t *fl, uint32_t *sl)
{
    uint32_t map = *sl + 1 < LT__SL ? s->sl_map[*fl] & (~0u << (*sl + 1)) : 0;
    if (!map) {
        uint64_t up = *fl + 1 < LT__FL ? s->fl_map & (~0ull << (*fl + 1)) : 0;
        if (!up) return false;
        *fl = (uint32_t)__builtin_ctzll(up);
        map = s->sl_map[*fl];
    }
    *sl = (uint32_t)__builtin_ctz(map);
    return true;
}

static lt__blk *find_fit(const lt__sub *s, uint64_t bytes, uint64_t align, bool high)
{
    bool small = bytes < LARGE_BYTES;
    uint32_t own_fl, own_sl;
    class_of(s, bytes, &own_fl, &own_sl);
    lt__blk *b = s->heads[own_fl][own_sl];
    if (b && (b = scan(b, bytes, align, high, small ? SCAN_SMALL : SCAN_LARGE)) != NULL) return b;
    /* Every block above the own step is large enough; only alignment can refuse it. */
    uint32_t fl = own_fl, sl = own_sl;
    while (next_step(s, &fl, &sl)) {
        b = s->heads[fl][sl];
        if (small && align >> s->shift == 1) return b;
        if ((b = scan(b, bytes, align, high, small ? SCAN_SMALL : SCAN_LARGE)) != NULL) return b;
    }
    /* About to say no: look at all of them. */
    for (fl = own_fl; fl < LT__FL; fl++)
        for (sl = fl == own_fl ? own_sl : 0; s->sl_map[fl] && sl < LT__SL; sl++)
            if ((b = scan(s->heads[fl][sl], bytes, align, high, UINT32_MAX)) != NULL) return b;
    return NULL;
}

lt__blk *lt__sub_alloc(lt__sub *s, uint64_t bytes, uint64_t align, bool high)
{
    lt__blk *b = s->free_bytes >= bytes ? find_fit(s, bytes, align, high) : NULL;
    if (!b) return NULL;
    uint64_t at = 0;
    bool fits = place(b->addr, b->bytes, bytes, align, high, &at);
    LT_DASSERT(fits);
    (void)fits;
    free_unlink(s, b);
    if (at > b->addr) {
        lt__blk *hi = cut(s, b, at);
        free_link(s, b);
        b = hi;
    }
    if (bytes < b->bytes) free_link(s, cut(s, b, at + bytes));
    b->state = LT__BLK_LIVE;
    return b;
}

void lt__sub_free(lt__sub *s, lt__blk *b)
{
    lt__sub_retire(b);
    merge_free(s, b);
}

lt__blk *lt__sub_find_run(const lt__sub *s, uint64_t bytes, uint64_t align, bool high,
                          lt__sub_usable_fn *usable, void *user, uint64_t *addr)
{
    lt__blk *found = NULL, *start = NULL;
    for (lt__blk *b = s->lowest; b; b = b->upper) {
        if (b->state != LT__BLK_FREE && !usable(user, b)) {
            start = NULL;
            continue;
        }
        if (!start) start = b;
        uint64_t at, have = b->addr + b->bytes - start->addr;
        if (!place(start->addr, have, bytes, align, high, &at)) continue;
        *addr = at;
        found = start;
        if (!high) return found;
    }
    return found;
}

lt__blk *lt__sub_fuse(lt__sub *s, lt__blk *first, lt__blk *last)
{
    uint64_t end = last->addr + last->bytes;
    for (lt__blk *b = first;; b = b->upper) {
        if (b->state == LT__BLK_FREE) free_unlink(s, b);
        if (b == last) break;
    }
    while (first->addr + first->bytes < end) swallow_upper(s, first);
    first->state = LT__BLK_LIVE;
    first->prev = first->next = NULL;
    return first;
}

uint64_t lt__sub_largest_free(const lt__sub *s)
{
    if (!s->fl_map) return 0;
    uint32_t fl = 63u - (uint32_t)__builtin_clzll(s->fl_map),
             sl = 31u - (uint32_t)__builtin_clz(s->sl_map[fl]);
    uint64_t most = 0;
    for (lt__blk *b = s->heads[fl][sl]; b; b = b->next) most = lt__max_u64(most, b->bytes);
    return most;
}

static lt_status check_lists(const lt__sub *s, const lt__sub_sums *sums, lt_err *err)
{
    uint64_t n = 0, bytes = 0;
    for (uint32_t fl = 0; fl < LT__FL; fl++) {
        if (!!s->sl_map[fl] != !!(s->fl_map >> fl & 1))
            return lt__fail(err, LT_E_INVALID, "pool check: first-level bit %u is wrong", fl);
        for (uint32_t sl = 0; sl < LT__SL; sl++) {
            if (!!s->heads[fl][sl] != !!(s->sl_map[fl] >> sl & 1))
                return lt__fail(err, LT_E_INVALID, "pool check: second-level bit %u.%u is wrong", fl, sl);
            const lt__blk *prev = NULL;
            for (const lt__blk *b = s->heads[fl][sl]; b; prev = b, b = b->next) {
                uint32_t f, l;
                class_of(s, b->bytes, &f, &l);
                if (b->state != LT__BLK_FREE || f != fl || l != sl || b->prev != prev)
                    return lt__fail(err, LT_E_INVALID, "pool check: slot %u is in the wrong free list %u.%u",
                                    b->slot, fl, sl);
                n++;
                bytes += b->bytes;
                if (n > sums->blocks[LT__BLK_FREE])
                    return lt__fail(err, LT_E_INVALID, "pool check: free lists hold too many blocks");
            }
        }
    }
    if (n != sums->blocks[LT__BLK_FREE] || bytes != s->free_bytes)
        return lt__fail(err, LT_E_INVALID,
                        "pool check: free lists hold %llu blocks of %llu bytes, the range %llu of %llu",
                        (unsigned long long)n, (unsigned long long)bytes,
                        (unsigned long long)sums->blocks[LT__BLK_FREE],
                        (unsigned long long)sums->bytes[LT__BLK_FREE]);
    n = 0;
    for (const lt__blk *b = s->holes; b && n <= sums->blocks[LT__BLK_HOLE]; b = b->next)
        n += b->state == LT__BLK_HOLE;
    if (n != sums->blocks[LT__BLK_HOLE])
        return lt__fail(err, LT_E_INVALID, "pool check: the list of holes is wrong");
    return LT_OK;
}

lt_status lt__sub_check(const lt__sub *s, lt__sub_sums *out, lt_err *err)
{
    memset(out, 0, sizeof *out);
    uint64_t at = s->base, records = 0, mask = (1ull << s->shift) - 1;
    const lt__blk *lower = NULL;
    for (const lt__blk *b = s->lowest; b; lower = b, b = b->upper) {
        if (b->addr != at || b->lower != lower || b->bytes == 0 || (b->bytes & mask) ||
            b->bytes > s->base + s->bytes - at)
            return lt__fail(
                err, LT_E_INVALID,
                "pool check: slot %u at 0x%llx of %llu bytes does not follow its neighbour at 0x%llx",
                b->slot, (unsigned long long)b->addr, (unsigned long long)b->bytes, (unsigned long long)at);
        if (b->state == LT__BLK_UNUSED || b->state > LT__BLK_LEAVING || b->serial == 0)
            return lt__fail(err, LT_E_INVALID, "pool check: slot %u has state %u, serial %u", b->slot,
                            b->state, b->serial);
        if (lower && lower->state == b->state && b->state == LT__BLK_FREE)
            return lt__fail(err, LT_E_INVALID, "pool check: slots %u and %u are free neighbours not merged",
                            lower->slot, b->slot);
        if (&s->segs[b->slot >> LT__SEG_BITS][b->slot & (LT__SEG - 1)] != b)
            return lt__fail(err, LT_E_INVALID, "pool check: slot %u is not where its number says", b->slot);
        out->bytes[b->state] += b->bytes;
        out->blocks[b->state]++;
        at += b->bytes;
        records++;
    }
    if (at != s->base + s->bytes)
        return lt__fail(err, LT_E_INVALID, "pool check: blocks end at 0x%llx, the range at 0x%llx",
                        (unsigned long long)at, (unsigned long long)(s->base + s->bytes));
    uint64_t unused = 0;
    for (const lt__blk *b = s->unused; b && unused <= s->n_unused; b = b->next) unused++;
    if (unused != s->n_unused || unused + records != (uint64_t)s->n_segs * LT__SEG)
        return lt__fail(err, LT_E_INVALID, "pool check: %llu records in use and %llu unused of %llu",
                        (unsigned long long)records, (unsigned long long)unused,
                        (unsigned long long)(s->n_segs * LT__SEG));
    if (out->bytes[LT__BLK_FREE] != s->free_bytes || out->bytes[LT__BLK_HOLE] != s->hole_bytes)
        return lt__fail(err, LT_E_INVALID,
                        "pool check: counters say %llu free and %llu uncommitted, the range %llu and %llu",
                        (unsigned long long)s->free_bytes, (unsigned long long)s->hole_bytes,
                        (unsigned long long)out->bytes[LT__BLK_FREE],
                        (unsigned long long)out->bytes[LT__BLK_HOLE]);
    return check_lists(s, out, err);
}
