/* ring.c - placement in a ring of slots. */
#include "memory/ring.h"

#include <inttypes.h>

void lt__ring_init(lt__ring *r, uint64_t bytes) { *r = (lt__ring){.bytes = bytes}; }

bool lt__ring_place(const lt__ring *r, uint64_t bytes, uint64_t *off)
{
    if (bytes > r->bytes || bytes == 0) return false;
    *off = r->head;
    if (!r->first) {
        if (bytes > r->bytes - r->head) *off = 0;
        return true;
    }
    uint64_t tail = r->first->off;
    if (r->last->off >= tail && r->head > tail) { /* live: [tail, head) */
        if (bytes <= r->bytes - r->head) return true;
        *off = 0;
        return bytes <= tail;
    }
    return bytes <= tail - r->head; /* wrapped; live: [tail, end) and [0, head) */
}

void lt__ring_push(lt__ring *r, lt__ring_slot *s, uint64_t off, uint64_t bytes)
{
    *s = (lt__ring_slot){.off = off, .bytes = bytes};
    if (r->last) r->last->next = s;
    else r->first = s;
    r->last = s;
    r->head = off + bytes;
    r->used += bytes;
    r->peak = lt__max_u64(r->peak, r->used);
}

lt__ring_slot *lt__ring_pop(lt__ring *r)
{
    lt__ring_slot *s = r->first;
    if (!s) return NULL;
    r->first = s->next;
    if (!r->first) r->last = NULL;
    s->next = NULL;
    r->used -= s->bytes;
    return s;
}

lt_status lt__ring_check(const lt__ring *r, lt_err *err)
{
    uint64_t used = 0, at = r->first ? r->first->off : 0;
    int wraps = 0;
    const lt__ring_slot *last = NULL;
    for (const lt__ring_slot *s = r->first; s; last = s, s = s->next) {
        if (s->off < at && wraps++ == 0) at = 0;
        if (s->off < at || s->bytes == 0 || s->bytes > r->bytes || s->off > r->bytes - s->bytes)
            return lt__fail(err, LT_E_INVALID,
                            "ring: slot %" PRIu64 "+%" PRIu64 " is out of order (ring of %" PRIu64 ")",
                            s->off, s->bytes, r->bytes);
        at = s->off + s->bytes;
        used += s->bytes;
        if (wraps && at > r->first->off)
            return lt__fail(err, LT_E_INVALID,
                            "ring: slot %" PRIu64 "+%" PRIu64 " runs into the oldest at %" PRIu64, s->off,
                            s->bytes, r->first->off);
    }
    if (last != r->last || used != r->used || (last && r->head != at))
        return lt__fail(err, LT_E_INVALID, "ring: %" PRIu64 " bytes counted, %" PRIu64 " on record", used,
                        r->used);
    return LT_OK;
}
