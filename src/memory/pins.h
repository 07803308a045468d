/* pins.h - page-locked mappings of files, whole or not at all, once per file.
 *
 * Locking costs some 20 ms a GiB, so who replaces one residency manager by another over the same
 * store keeps the pins and lends them to each in turn. */
#ifndef LT_MEMORY_PINS_H
#define LT_MEMORY_PINS_H

#include "lowtide/device.h"
#include "lowtide/store.h"

typedef struct lt__pin { lt_store *store; uint32_t file; void *ptr; size_t bytes; } lt__pin; /* ptr NULL: refused */
typedef struct lt__pins {
    lt_ctx    *ctx;
    lt_device *dev;
    uint64_t   left; /* that may still be locked */
    lt__pin   *pin;
    size_t     n, cap;
} lt__pins;

void lt__pins_init(lt__pins *p, lt_ctx *ctx, lt_device *dev, uint64_t most_bytes);
void lt__pins_deinit(lt__pins *p); /* unlocks; every copy from the mappings has run */
/* A refusal is logged once for the file and costs speed only. */
void lt__pins_file(lt__pins *p, lt_store *store, uint32_t file);

/* r locks mappings in *p, which outlives it; before r's first load. Its own pin_bytes then bound the staging ring only. */
void lt__residency_lend_pins(lt_residency *r, lt__pins *p);

#endif
