/* mem.h - host allocation through the context, errors, logging, checked arithmetic. */
#ifndef LT_BASE_MEM_H
#define LT_BASE_MEM_H

#include "lowtide/base.h"

/* NULL when the allocator or the fault hook says no. Every free names its size: exact
 * accounting needs it. Zero bytes give NULL. */
void *lt__alloc(lt_ctx *ctx, size_t bytes);
void *lt__zalloc(lt_ctx *ctx, size_t bytes);
void *lt__alloc_array(lt_ctx *ctx, size_t n, size_t elem_bytes); /* NULL on overflow; zeroed */
void *lt__realloc(lt_ctx *ctx, void *ptr, size_t old_bytes, size_t new_bytes);
void  lt__free(lt_ctx *ctx, void *ptr, size_t bytes);
char *lt__strndup(lt_ctx *ctx, const char *s, size_t n); /* free with n + 1 */
/* Grows an array to hold at least `want` elements, doubling; old content kept, rest zeroed.
 * On failure nothing changed. */
LT_NODISCARD lt_status lt__grow(lt_ctx *ctx, void **array, size_t *cap, size_t want, size_t elem_bytes, lt_err *err);

/* Sets *err (which may be NULL) and returns s, so that `return lt__fail(...)` reads well. */
lt_status lt__fail(lt_err *err, lt_status s, const char *fmt, ...) LT_PRINTF(3, 4);
lt_status lt__fail_native(lt_err *err, lt_status s, int32_t native, const char *fmt, ...) LT_PRINTF(4, 5);
/* errno `e` as text behind the sentence; E_NOT_FOUND for ENOENT, else E_IO. */
lt_status lt__fail_errno(lt_err *err, int e, const char *fmt, ...) LT_PRINTF(3, 4);
lt_status lt__fail_oom(lt_err *err, size_t bytes, const char *what);

void lt__log(const lt_ctx *ctx, lt_log_level level, const char *area, const char *fmt, ...) LT_PRINTF(4, 5);
bool lt__fault(const lt_ctx *ctx, lt_fault_point point);
/* Makes the nth call from now at this point fail, once; 0 takes that back. */
void lt__fault_at(lt_ctx *ctx, lt_fault_point point, uint64_t n);

static inline bool lt__add_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool lt__mul_u64(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline uint64_t lt__round_up(uint64_t x, uint64_t pow2) { return (x + (pow2 - 1)) & ~(pow2 - 1); }
static inline uint64_t lt__round_down(uint64_t x, uint64_t pow2) { return x & ~(pow2 - 1); }
static inline uint64_t lt__min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t lt__max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

uint64_t lt__now_ns(void); /* monotonic */

/* "4G", "1.5GiB", "512M", "100000": bytes, binary units. The whole text must be used. */
bool lt__parse_bytes(const char *s, uint64_t *out);
/* "1.50 GiB"; buf of at least 24. */
const char *lt__format_bytes(uint64_t bytes, char *buf, size_t buf_bytes);

/* key=value,key=value: one spec parser for devices and tests. Calls fn for each pair;
 * fn returns E_INVALID to refuse a key. */
typedef lt_status lt__spec_fn(void *user, const char *key, const char *value, lt_err *err);
LT_NODISCARD lt_status lt__spec_parse(const char *text, lt__spec_fn *fn, void *user, lt_err *err);

/* Bug checks. LT_ASSERT stays on in release, in cold paths only; it aborts, because the
 * state is already wrong. Never for input, never for what the world can do. */
void lt__assert_failed(const char *expr, const char *file, int line) __attribute__((noreturn));
#define LT_ASSERT(x) ((x) ? (void)0 : lt__assert_failed(#x, __FILE__, __LINE__))
#ifdef NDEBUG
#  define LT_DASSERT(x) ((void)0)
#else
#  define LT_DASSERT(x) LT_ASSERT(x)
#endif

#endif
