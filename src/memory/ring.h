/* ring.h - first-in first-out slots of one span: offsets only, no memory, no locks. */
#ifndef LT_MEMORY_RING_H
#define LT_MEMORY_RING_H

#include "base/mem.h"

typedef struct lt__ring_slot {
    uint64_t off, bytes;
    struct lt__ring_slot *next;
} lt__ring_slot;

typedef struct lt__ring {
    uint64_t bytes, head; /* head: where the next slot is tried first */
    uint64_t used, peak;
    lt__ring_slot *first, *last;
} lt__ring;

void lt__ring_init(lt__ring *r, uint64_t bytes);
/* Where `bytes` would go now; false when older slots have to be popped first. A slot never
 * wraps: what is left at the end is skipped. Depends on the history of sizes only, never on time. */
bool lt__ring_place(const lt__ring *r, uint64_t bytes, uint64_t *off);
void lt__ring_push(lt__ring *r, lt__ring_slot *s, uint64_t off, uint64_t bytes);
lt__ring_slot *lt__ring_pop(lt__ring *r); /* the oldest */
LT_NODISCARD lt_status lt__ring_check(const lt__ring *r, lt_err *err);

#endif
