/* hostmem.h - reservations of address space and what is committed in them.
 *
 * Address space is mapped without access and without being charged; commit opens it, decommit
 * maps it anew, which gives back memory and charge. Every committed granule is one bit, so a
 * decommit can never need memory to succeed. */
#ifndef LT_CPU_HOSTMEM_H
#define LT_CPU_HOSTMEM_H

#include "base/mem.h"

#include <pthread.h>

/* Why 64 KiB: a budget of 10 MiB is used to within a percent, and large commits get huge pages
 * all the same, since reservations start on 2 MiB and a commit spanning an aligned 2 MiB is
 * eligible. A granule of 2 MiB would gain nothing and could strand a fifth of such a budget. */
#define LT_HOSTMEM_GRANULE ((uint64_t)64 << 10)

typedef struct lt_hostmem_range {
    uint8_t  *base;
    uint64_t  bytes;
    uint64_t *bits; /* one a granule */
    size_t    words;
} lt_hostmem_range;

typedef struct lt_hostmem {
    lt_ctx           *ctx;
    pthread_mutex_t   lock;
    lt_hostmem_range *ranges; /* ascending */
    size_t            n, cap;
    uint64_t          committed, peak;
    uint8_t           poison;     /* fills what is committed, when poisoned */
    bool              poisoned;
    const char       *what;       /* names the memory in errors: "sim" */
} lt_hostmem;

void lt__hostmem_init(lt_hostmem *m, lt_ctx *ctx, const char *what);
void lt__hostmem_deinit(lt_hostmem *m); /* logs what was not unreserved */
LT_NODISCARD lt_status lt__hostmem_reserve(lt_hostmem *m, uint64_t bytes, uint8_t **out, lt_err *err);
void lt__hostmem_unreserve(lt_hostmem *m, uint8_t *base, uint64_t bytes);
/* limit: what all committed bytes together may come to. */
LT_NODISCARD lt_status
lt__hostmem_commit(lt_hostmem *m, uint8_t *base, uint64_t bytes, uint64_t limit, lt_err *err);
void lt__hostmem_decommit(lt_hostmem *m, uint8_t *base, uint64_t bytes);
/* Whether all of [p, p + bytes) is committed. */
bool lt__hostmem_holds(lt_hostmem *m, const uint8_t *p, uint64_t bytes);
void lt__hostmem_usage(lt_hostmem *m, uint64_t *committed, uint64_t *peak);

#endif
