/* ctx.h - the context's inside; only src/base looks. */
#ifndef LT_BASE_CTX_H
#define LT_BASE_CTX_H

#include <stdatomic.h>

#include "base/mem.h"

struct lt_ctx {
    lt_allocator     allocator;
    lt_log_fn       *log;
    void            *log_user;
    lt_fault_fn     *fault;
    void            *fault_user;
    _Atomic uint64_t fail_in[LT_FAULT_COUNT]; /* lt__fault_at */
    _Atomic uint64_t host_bytes, host_peak;
};

#endif
