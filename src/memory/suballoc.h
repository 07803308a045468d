/* suballoc.h - blocks of one address range, kept outside the range itself.
 *
 * Two-level segregated lists (a power of two, 32 steps inside it) find a fit in O(1); inside
 * the request's own step a bounded scan prefers the smallest fit and, among equals, the end
 * of the range the request grows from. Before it says no, it looks at every block that could
 * fit: a request fails only if no free block can hold it.
 *
 * Long-lived blocks grow from the low end, short-lived ones from the high end. No lock, no
 * device: the pool brings both. Sizes and addresses are multiples of the granule.
 *
 *     HOLE --commit--> FREE --alloc--> LIVE --free--> FREE      (neighbours of equal state merge,
 *     FREE --uncommit--> HOLE          LIVE --pend--> PENDING --free--> FREE   PENDING excepted)
 */
#ifndef LT_MEMORY_SUBALLOC_H
#define LT_MEMORY_SUBALLOC_H

#include "base/mem.h"
#include "lowtide/pool.h"

/* Whether blocks of this use are short-lived, and grow from the high end. */
static inline bool lt__use_grows_down(lt_use use)
{
    return use == LT_USE_ACTIVATION || use == LT_USE_STAGING || use == LT_USE_OTHER;
}

enum { LT__SL_BITS = 5, LT__SL = 1 << LT__SL_BITS, LT__FL = 60 };

typedef enum lt__blk_state {
    LT__BLK_UNUSED,  /* the record itself waits for use */
    LT__BLK_HOLE,    /* no memory behind it */
    LT__BLK_FREE,
    LT__BLK_LIVE,
    LT__BLK_PENDING, /* freed on a queue that may still work on it */
    LT__BLK_LEAVING, /* being given back to the device */
} lt__blk_state;

/* One cache line. Records never move, and a slot's serial changes when its block is freed. */
typedef struct lt__blk {
    uint64_t addr, bytes;
    struct lt__blk *lower, *upper; /* neighbours by address */
    struct lt__blk *prev, *next;   /* by state: free list of the class, holes, pending list, unused records */
    uint32_t slot, serial;
    uint8_t  state, use;
    uint16_t owner; /* PENDING: the pool's queue number */
    uint32_t seq;   /* PENDING: position in that queue's frees */
} lt__blk;

typedef struct lt__sub {
    lt_ctx  *ctx;
    uint64_t base, bytes;
    uint32_t shift; /* log2 of the granule */
    uint64_t fl_map;
    uint32_t sl_map[LT__FL];
    lt__blk *heads[LT__FL][LT__SL];
    lt__blk *holes;
    lt__blk *lowest;
    uint64_t free_bytes, hole_bytes;
    lt__blk **segs; /* of LT__SEG records each */
    size_t   n_segs, cap_segs;
    lt__blk *unused;
    uint32_t n_unused;
} lt__sub;

enum { LT__SEG_BITS = 10, LT__SEG = 1 << LT__SEG_BITS };

/* The whole range starts as one hole. base and bytes are multiples of granule, a power of two. */
LT_NODISCARD lt_status
lt__sub_init(lt__sub *s, lt_ctx *ctx, uint64_t base, uint64_t bytes, uint64_t granule, lt_err *err);
void lt__sub_deinit(lt__sub *s);

/* Makes sure that the next operations can take `n` records without host memory. */
LT_NODISCARD lt_status lt__sub_prepare(lt__sub *s, uint32_t n, lt_err *err);

/* Commit and uncommit need two prepared records. The span must be wholly in one HOLE, or
 * wholly in one block of the state given. */
void lt__sub_commit(lt__sub *s, uint64_t addr, uint64_t bytes);
lt__blk *lt__sub_leave(lt__sub *s, lt__blk *free_blk, uint64_t addr, uint64_t bytes); /* FREE -> LEAVING */
void lt__sub_uncommit(lt__sub *s, lt__blk *leaving);                                  /* LEAVING -> HOLE */

/* bytes: multiple of the granule, not 0; align: power of two >= granule. Needs two prepared
 * records. NULL: no free block can hold it. */
lt__blk *lt__sub_alloc(lt__sub *s, uint64_t bytes, uint64_t align, bool high);
void lt__sub_free(lt__sub *s, lt__blk *b); /* from LIVE, LEAVING or PENDING (already unlinked); merges; changes the serial */
void lt__sub_retire(lt__blk *b);           /* changes the serial: handles to b are stale from now on */

/* A run of neighbours that are all FREE or accepted by `usable`, long enough for the request. */
typedef bool lt__sub_usable_fn(void *user, const lt__blk *b);
lt__blk *lt__sub_find_run(const lt__sub *s, uint64_t bytes, uint64_t align, bool high,
                          lt__sub_usable_fn *usable, void *user, uint64_t *addr);
/* Splits b, of any state but UNUSED, at addr inside it; returns the upper part, same state,
 * owner and seq, linked behind b where b is in a list of the pool's. One prepared record. */
lt__blk *lt__sub_split(lt__sub *s, lt__blk *b, uint64_t addr);
/* Merges first..last, which hold no list any more except FREE ones, into one LIVE block. */
lt__blk *lt__sub_fuse(lt__sub *s, lt__blk *first, lt__blk *last);

/* NULL unless the slot holds a LIVE block of that serial. */
static inline lt__blk *lt__sub_lookup(const lt__sub *s, uint32_t slot, uint32_t serial)
{
    size_t seg = slot >> LT__SEG_BITS;
    if (seg >= s->n_segs) return NULL;
    lt__blk *b = &s->segs[seg][slot & (LT__SEG - 1)];
    return b->state == LT__BLK_LIVE && b->serial == serial ? b : NULL;
}
uint64_t lt__sub_largest_free(const lt__sub *s);

/* Sums by state, for the pool to compare with its own counters. */
typedef struct lt__sub_sums { uint64_t bytes[LT__BLK_LEAVING + 1], blocks[LT__BLK_LEAVING + 1]; } lt__sub_sums;
LT_NODISCARD lt_status lt__sub_check(const lt__sub *s, lt__sub_sums *out, lt_err *err);

#endif
