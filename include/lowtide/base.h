/* base.h - the vocabulary every other header speaks: status, error, context.
 *
 *     lt_err err;
 *     lt_ctx *ctx;
 *     if (lt_ctx_create(NULL, &ctx, &err) != LT_OK) {
 *         fprintf(stderr, "%s\n", err.text);
 *         return 1;
 *     }
 *     // everything else is created from ctx
 *     lt_ctx_destroy(ctx);
 *
 * Order      the context comes first and goes last; everything else is created from it.
 * Lifetime   objects borrow the context they were created from.
 * Threads    a context may be used from any thread; its callbacks must allow that.
 * Errors     every fallible function returns lt_status and fills the optional lt_err.
 */
#ifndef LT_BASE_H
#define LT_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#  define LT_API __attribute__((visibility("default")))
#  define LT_NODISCARD __attribute__((warn_unused_result))
#  define LT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#  define LT_API
#  define LT_NODISCARD
#  define LT_PRINTF(f, a)
#endif

/* One list; enum, names and texts are all expanded from it. */
#define LT_STATUS_LIST(X)                                                    \
    X(OK,             0,   "success")                                        \
    X(E_INVALID,      -1,  "argument violates the documented contract")      \
    X(E_HOST_OOM,     -2,  "out of host memory")                             \
    X(E_DEVICE_OOM,   -3,  "device budget or device memory exhausted")       \
    X(E_BUSY,         -4,  "object is in use")                               \
    X(E_UNSUPPORTED,  -5,  "not supported by this backend or this build")    \
    X(E_FORMAT,       -6,  "input file is malformed")                        \
    X(E_IO,           -7,  "read or write failed")                           \
    X(E_CANCELED,     -8,  "stopped by the caller")                          \
    X(E_DEVICE_LOST,  -9,  "device failed; its objects can only be destroyed") \
    X(E_NO_FIT,       -10, "does not fit the budget")                        \
    X(E_NOT_FOUND,    -11, "no such file or object")

typedef enum lt_status {
#define LT_X(name, value, text) LT_##name = value,
    LT_STATUS_LIST(LT_X)
#undef LT_X
    LT_STATUS_FORCE_INT = 0x7fffffff
} lt_status;

/* Filled in by the callee on failure only; may be NULL when not wanted.
 * Plain storage: nothing to free, safe to copy, safe on the stack. */
typedef struct lt_err {
    lt_status status;
    int32_t   native;    /* CUresult, errno, ...; 0 when there is none */
    char      text[496]; /* one line: what, which object, how much */
} lt_err;

LT_API const char *lt_status_name(lt_status s); /* "LT_E_IO" */
LT_API const char *lt_status_text(lt_status s); /* "read or write failed" */
LT_API const char *lt_version(void);            /* "0.1.0" */

typedef enum lt_log_level { LT_LOG_ERROR, LT_LOG_WARN, LT_LOG_INFO, LT_LOG_DEBUG } lt_log_level;

/* `area` is the component ("pool", "store"); `text` has no newline. */
typedef void lt_log_fn(void *user, lt_log_level level, const char *area, const char *text);

/* Host allocations of the library go through one table, so that a host can
 * account for them and a test can fail the Nth. realloc and free get the old
 * size. All return memory aligned for any C type. */
typedef struct lt_allocator {
    void *(*alloc)(void *user, size_t bytes);
    void *(*realloc)(void *user, void *ptr, size_t old_bytes, size_t new_bytes);
    void (*free)(void *user, void *ptr, size_t bytes);
    void *user;
} lt_allocator;

/* Places where a fault can be injected. The hook returns true to make this
 * very call fail as the world would make it fail. It must not call the library. */
typedef enum lt_fault_point {
    LT_FAULT_HOST_ALLOC, LT_FAULT_COMMIT, LT_FAULT_COPY, LT_FAULT_LAUNCH,
    LT_FAULT_READ, LT_FAULT_WRITE, LT_FAULT_MAP, LT_FAULT_PIN, LT_FAULT_COUNT
} lt_fault_point;
typedef bool lt_fault_fn(void *user, lt_fault_point point);

typedef struct lt_ctx_desc {
    uint32_t     struct_bytes; /* set by the default; versions the ABI */
    lt_allocator allocator;    /* all NULL: malloc */
    lt_log_fn   *log;          /* NULL: silent */
    void        *log_user;
    lt_fault_fn *fault;        /* NULL: nothing fails by itself */
    void        *fault_user;
} lt_ctx_desc;

typedef struct lt_ctx lt_ctx;

LT_API lt_ctx_desc lt_ctx_desc_default(void);
/* desc may be NULL for the default. */
LT_API LT_NODISCARD lt_status lt_ctx_create(const lt_ctx_desc *desc, lt_ctx **out, lt_err *err);
LT_API void lt_ctx_destroy(lt_ctx *ctx); /* NULL is fine */
/* Bytes the library holds in host allocations of this context, now and at most. */
LT_API uint64_t lt_ctx_host_bytes(const lt_ctx *ctx);
LT_API uint64_t lt_ctx_host_peak_bytes(const lt_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
