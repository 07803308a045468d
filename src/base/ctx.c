/* ctx.c - the context: allocator, log sink, fault hook, host accounting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ctx.h"

static void *sys_alloc(void *user, size_t bytes)
{
    (void)user;
    return malloc(bytes);
}

static void *sys_realloc(void *user, void *ptr, size_t old_bytes, size_t new_bytes)
{
    (void)user, (void)old_bytes;
    return realloc(ptr, new_bytes);
}

static void sys_free(void *user, void *ptr, size_t bytes)
{
    (void)user, (void)bytes;
    free(ptr);
}

lt_ctx_desc lt_ctx_desc_default(void) { return (lt_ctx_desc){.struct_bytes = sizeof(lt_ctx_desc)}; }

lt_status lt_ctx_create(const lt_ctx_desc *desc, lt_ctx **out, lt_err *err)
{
    *out = NULL;
    lt_ctx_desc d = desc ? *desc : lt_ctx_desc_default();
    if (d.struct_bytes != sizeof d)
        return lt__fail(err, LT_E_INVALID, "lt_ctx_desc: struct_bytes is %u, expected %zu (use lt_ctx_desc_default)",
                        d.struct_bytes, sizeof d);
    bool any = d.allocator.alloc || d.allocator.realloc || d.allocator.free;
    bool all = d.allocator.alloc && d.allocator.realloc && d.allocator.free;
    if (any && !all)
        return lt__fail(err, LT_E_INVALID, "lt_ctx_desc: the allocator needs alloc, realloc and free, or none of them");
    if (!any)
        d.allocator = (lt_allocator){sys_alloc, sys_realloc, sys_free, NULL};
    lt_ctx *ctx = d.allocator.alloc(d.allocator.user, sizeof *ctx);
    if (!ctx)
        return lt__fail_oom(err, sizeof *ctx, "the context");
    memset(ctx, 0, sizeof *ctx);
    ctx->allocator = d.allocator;
    ctx->log = d.log;
    ctx->log_user = d.log_user;
    ctx->fault = d.fault;
    ctx->fault_user = d.fault_user;
    *out = ctx;
    return LT_OK;
}

void lt_ctx_destroy(lt_ctx *ctx)
{
    if (ctx)
        ctx->allocator.free(ctx->allocator.user, ctx, sizeof *ctx);
}

uint64_t lt_ctx_host_bytes(const lt_ctx *ctx) { return atomic_load_explicit(&ctx->host_bytes, memory_order_relaxed); }
uint64_t lt_ctx_host_peak_bytes(const lt_ctx *ctx) { return atomic_load_explicit(&ctx->host_peak, memory_order_relaxed); }

void lt__fault_at(lt_ctx *ctx, lt_fault_point point, uint64_t n) { atomic_store(&ctx->fail_in[point], n); }

static bool count_down(_Atomic uint64_t *left)
{
    uint64_t v = atomic_load_explicit(left, memory_order_relaxed);
    while (v)
        if (atomic_compare_exchange_weak_explicit(left, &v, v - 1, memory_order_relaxed, memory_order_relaxed))
            return v == 1;
    return false;
}

bool lt__fault(const lt_ctx *ctx, lt_fault_point point)
{
    if (count_down(&((lt_ctx *)ctx)->fail_in[point]))
        return true;
    return ctx->fault && ctx->fault(ctx->fault_user, point);
}

/* The peak may miss a few bytes between two threads' updates, never the sum. */
static void count_bytes(lt_ctx *ctx, size_t add, size_t sub)
{
    uint64_t now = atomic_fetch_add_explicit(&ctx->host_bytes, (uint64_t)add - sub, memory_order_relaxed) + add - sub;
    uint64_t peak = atomic_load_explicit(&ctx->host_peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&ctx->host_peak, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed))
        ;
}

void *lt__alloc(lt_ctx *ctx, size_t bytes)
{
    if (bytes == 0 || lt__fault(ctx, LT_FAULT_HOST_ALLOC))
        return NULL;
    void *p = ctx->allocator.alloc(ctx->allocator.user, bytes);
    if (p)
        count_bytes(ctx, bytes, 0);
    return p;
}

void *lt__zalloc(lt_ctx *ctx, size_t bytes)
{
    void *p = lt__alloc(ctx, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void *lt__alloc_array(lt_ctx *ctx, size_t n, size_t elem_bytes)
{
    size_t bytes;
    return __builtin_mul_overflow(n, elem_bytes, &bytes) ? NULL : lt__zalloc(ctx, bytes);
}

void *lt__realloc(lt_ctx *ctx, void *ptr, size_t old_bytes, size_t new_bytes)
{
    if (!ptr)
        return lt__alloc(ctx, new_bytes);
    if (new_bytes == 0 || lt__fault(ctx, LT_FAULT_HOST_ALLOC))
        return NULL;
    void *p = ctx->allocator.realloc(ctx->allocator.user, ptr, old_bytes, new_bytes);
    if (p)
        count_bytes(ctx, new_bytes, old_bytes);
    return p;
}

void lt__free(lt_ctx *ctx, void *ptr, size_t bytes)
{
    if (!ptr)
        return;
    ctx->allocator.free(ctx->allocator.user, ptr, bytes);
    count_bytes(ctx, 0, bytes);
}

char *lt__strndup(lt_ctx *ctx, const char *s, size_t n)
{
    char *p = lt__alloc(ctx, n + 1);
    if (!p)
        return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

lt_status lt__grow(lt_ctx *ctx, void **array, size_t *cap, size_t want, size_t elem_bytes, lt_err *err)
{
    if (want <= *cap)
        return LT_OK;
    size_t n = *cap < 8 ? 8 : *cap;
    while (n < want && n <= SIZE_MAX / 2)
        n *= 2;
    size_t bytes;
    if (n < want || __builtin_mul_overflow(n, elem_bytes, &bytes))
        return lt__fail(err, LT_E_HOST_OOM, "out of host memory: an array of %zu elements of %zu bytes", want, elem_bytes);
    char *p = lt__realloc(ctx, *array, *cap * elem_bytes, bytes);
    if (!p)
        return lt__fail_oom(err, bytes, "a growing array");
    memset(p + *cap * elem_bytes, 0, bytes - *cap * elem_bytes);
    *array = p;
    *cap = n;
    return LT_OK;
}

void lt__log(const lt_ctx *ctx, lt_log_level level, const char *area, const char *fmt, ...)
{
    if (!ctx->log)
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ctx->log(ctx->log_user, level, area, text);
}

void lt__assert_failed(const char *expr, const char *file, int line)
{
    fprintf(stderr, "lowtide: bug: %s is false at %s:%d\n", expr, file, line);
    abort();
}
