/* pins.h - page-locked mappings of files, a chunk at a time, as they are first copied from.
 *
 * Locking costs some 20 ms a GiB, so who replaces one residency manager by another over the same
 * store keeps the pins and lends them to each in turn. */
#ifndef LT_MEMORY_PINS_H
#define LT_MEMORY_PINS_H

#include "lowtide/device.h"
#include "lowtide/store.h"

#define LT__PIN_PART_CHUNK (UINT64_C(32) << 20) /* of a file that does not fit the budget */

typedef struct lt__pin {
    lt_store *store;
    uint32_t  file;
    char     *map;
    uint64_t  bytes, chunk;
    uint8_t  *locked; /* by chunk */
    size_t    chunks;
    bool      whole;  /* the budget holds all of it */
    bool      refused;
} lt__pin;

typedef struct lt__pins {
    lt_ctx    *ctx;
    lt_device *dev;
    uint64_t   left; /* that may still be locked */
    uint64_t   whole_chunk, part_chunk; /* sizes of chunks, multiples of a page */
    lt__pin   *pin;
    size_t     n, cap;
} lt__pins;

void lt__pins_init(lt__pins *p, lt_ctx *ctx, lt_device *dev, uint64_t most_bytes);
void lt__pins_deinit(lt__pins *p); /* unlocks; every copy from the mappings has run */
/* Locks what it may of a mapped file from `offset` on, and returns how many of `bytes` one copy may take: what is
 * locked by one call, or by none. `again`: these bytes are copied again and again; of a file larger than the budget
 * only such are locked. That, and a refusal, is logged once for the file and costs speed only. */
uint64_t lt__pins_span(lt__pins *p, lt_store *store, uint32_t file, uint64_t offset, uint64_t bytes, bool again);
/* Locks all chunks of the span, as bytes that are read again and again, and says where it is mapped. NULL: it is not all
 * locked; the reason was logged, or the budget is used up. */
const void *lt__pins_lock(lt__pins *p, lt_store *store, uint32_t file, uint64_t offset, uint64_t bytes);
/* The system would not lock the file's mapping. */
bool lt__pins_refused(const lt__pins *p, const lt_store *store, uint32_t file);

/* r locks mappings in *p, which outlives it; before r's first load. Its own pin_bytes then bound the staging ring only. */
void lt__residency_lend_pins(lt_residency *r, lt__pins *p);

#endif
