#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#ifdef FAKE_CUDA_NO_VMM /* a driver from before virtual memory management */
#define VMM __attribute__((visibility("hidden")))
#else
#define VMM API
#endif
#define BIAS FAKE_CUDA_BIAS
#define GRANULE ((uint64_t)2 << 20)

enum { RESERVED, MAPPED, ALLOCATED, REGISTERED, MANAGED };
typedef struct span {
    struct span *next;
    int kind;
    uint64_t at, bytes, handle;
    bool access, lasting;
    uint8_t *pages; /* managed: where each is */
} span;

typedef struct handle {
    struct handle *next;
    uint64_t id, bytes;
    bool released;
    int maps;
} handle;

/* A record is its own thing: a wait keeps the one it was given. None is freed: streams may name them. */
typedef struct record {
    struct record *next;
    bool done;
    uint64_t done_ns;
} record;
struct CUevent_st { record *latest; };
struct CUmod_st { int unused; };
struct CUfunc_st { char name[64]; int shared; };
struct CUctx_st { int refs; };
struct CUgraph_st { uint64_t launches; };
struct CUgraphExec_st { uint64_t launches; bool uploaded; };

typedef enum what { COPY_IN, COPY_OUT, COPY, FILL, CALL, LAUNCH, RECORD, WAIT, PREFETCH } what;
typedef struct work {
    struct work *next;
    what kind;
    uint64_t dst, src, bytes;
    void *host;
    bool owned; /* host was staged; of a prefetch: discards */
    uint8_t value; /* of a prefetch: where to */
    lt_cuhostfn *fn;
    record *mark;
} work;

struct CUstream_st {
    pthread_t thread;
    work *first, *last;
    uint64_t given, done;
    bool stop;
    CUgraph capture; /* being captured into */
};

static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t g_host_turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t g_moved = PTHREAD_COND_INITIALIZER;
static span *g_spans;
static handle *g_handles;
static struct CUctx_st g_context;
static record *g_records;
static struct CUfunc_st g_functions[64];
static int g_n_functions;
static fake_cuda_counts g_counts;
static uint64_t g_total = FAKE_CUDA_MEMORY, g_next_handle = 1;
static lt_curesult g_broken, g_break_with;
static int g_version = 13000, g_devices = 1;
static int g_attributes[256];
static struct { char symbol[64]; uint64_t calls, fail_in; lt_curesult result; } g_calls[96];
static _Thread_local int t_depth;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* --- the rules (under the lock) --- */

static void violate(const char *fn, const char *text)
{
    if (!g_counts.violations++)
        snprintf(g_counts.violation, sizeof g_counts.violation, "%s: %s", fn, text);
}

static int row_of(const char *symbol)
{
    int i = 0;
    while (g_calls[i].symbol[0] && strcmp(g_calls[i].symbol, symbol))
        i++;
    snprintf(g_calls[i].symbol, sizeof g_calls[i].symbol, "%s", symbol);
    return i;
}

/* Counts a call, checks that a context is current, gives the result it is to fail with. */
static lt_curesult enter(const char *symbol, bool context)
{
    pthread_mutex_lock(&g_lock);
    int i = row_of(symbol);
    g_calls[i].calls++;
    if (context && !t_depth)
        violate(symbol, "no context is current on this thread");
    if (g_calls[i].fail_in && --g_calls[i].fail_in == 0)
        return g_calls[i].result;
    return context ? g_broken : LT_CU_OK;
}

static lt_curesult leave(lt_curesult r)
{
    pthread_mutex_unlock(&g_lock);
    return r;
}
#define ENTER(context)                                                                                       \
    lt_curesult r_ = enter(__func__, context);                                                               \
    if (r_ != LT_CU_OK)                                                                                      \
    return leave(r_)
#define BAD(text) (violate(__func__, text), leave(LT_CU_INVALID_VALUE))

static span *find_span(int kind, uint64_t at, uint64_t bytes, bool exact)
{
    for (span *s = g_spans; s; s = s->next)
        if (s->kind == kind && (exact ? s->at == at && (!bytes || s->bytes == bytes)
                                      : at >= s->at && at - s->at < s->bytes && bytes <= s->bytes - (at - s->at)))
            return s;
    return NULL;
}

static bool overlaps(int kind, uint64_t at, uint64_t bytes)
{
    for (span *s = g_spans; s; s = s->next)
        if (s->kind == kind && at < s->at + s->bytes && s->at < at + bytes)
            return true;
    return false;
}

static span *add_span(int kind, uint64_t at, uint64_t bytes)
{
    span *s = calloc(1, sizeof *s);
    *s = (span){.next = g_spans, .kind = kind, .at = at, .bytes = bytes};
    return g_spans = s;
}

static void drop_span(span *s)
{
    span **at = &g_spans;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
}

/* Each byte in an allocation or in mappings with access. */
static bool reachable(uint64_t at, uint64_t bytes)
{
    while (bytes) {
        span *s = find_span(ALLOCATED, at, 1, false);
        if (!s)
            s = find_span(MAPPED, at, 1, false);
        if (!s)
            s = find_span(MANAGED, at, 1, false);
        if (!s || (s->kind == MAPPED && !s->access))
            return false;
        uint64_t n = s->bytes - (at - s->at);
        n = n < bytes ? n : bytes;
        at += n;
        bytes -= n;
    }
    return true;
}

static void hold(int64_t bytes)
{
    g_counts.held_bytes += (uint64_t)bytes;
    if (g_counts.held_bytes > g_counts.peak_held_bytes)
        g_counts.peak_held_bytes = g_counts.held_bytes;
}

static uint64_t g_neighbour_step, g_neighbour;
static bool g_told_apart = true;

static uint64_t used(void)
{
    return g_neighbour + g_counts.held_bytes + (g_context.refs ? FAKE_CUDA_CONTEXT_BYTES : 0) + g_counts.modules * FAKE_CUDA_MODULE_BYTES;
}

static void *host_of(uint64_t at) { return (void *)(uintptr_t)(at - BIAS); }

static uint64_t new_space(uint64_t bytes)
{
    void *p = mmap(NULL, bytes + GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    uint64_t at = ((uint64_t)(uintptr_t)p + GRANULE - 1) & ~(GRANULE - 1), before = at - (uint64_t)(uintptr_t)p;
    if (before)
        munmap(p, before);
    if (before < GRANULE)
        munmap((void *)(uintptr_t)(at + bytes), GRANULE - before);
    return at + BIAS;
}

static bool placed(uint64_t at, uint64_t bytes);
static void run_prefetch(const work *w);
static void evict(uint64_t bytes);
static void drop_pages(span *s);

/* --- streams --- */

static void run_work(work *w)
{
    bool broken;
    pthread_mutex_lock(&g_lock);
    if (w->kind <= LAUNCH && w->kind != CALL && g_break_with)
        g_broken = g_break_with;
    broken = g_broken != 0;
    if (!broken && w->kind <= FILL &&
        ((w->kind != COPY_OUT && !reachable(w->dst, w->bytes)) ||
         ((w->kind == COPY_OUT || w->kind == COPY) && !reachable(w->src, w->bytes)))) {
        violate("stream", "work touches memory that is not mapped");
        g_broken = LT_CU_ILLEGAL_ADDRESS;
        broken = true;
    }
    if (!broken && w->kind <= FILL &&
        ((w->kind != COPY_OUT && !placed(w->dst, w->bytes)) || ((w->kind == COPY_OUT || w->kind == COPY) && !placed(w->src, w->bytes)))) {
        violate("stream", "work touches managed memory that was not prefetched to the card");
        g_broken = LT_CU_ILLEGAL_ADDRESS; /* the real one would only be slow */
        broken = true;
    }
    if (!broken && w->kind == PREFETCH)
        run_prefetch(w);
    while (w->kind == WAIT && !w->mark->done)
        pthread_cond_wait(&g_moved, &g_lock);
    if (w->kind == RECORD) {
        w->mark->done = true;
        w->mark->done_ns = now_ns();
        pthread_cond_broadcast(&g_moved);
    }
    pthread_mutex_unlock(&g_lock);
    if (broken)
        return;
    switch (w->kind) {
    case COPY_IN: memcpy(host_of(w->dst), w->host, w->bytes); break;
    case COPY_OUT: memcpy(w->host, host_of(w->src), w->bytes); break;
    case COPY: memmove(host_of(w->dst), host_of(w->src), w->bytes); break;
    case FILL: memset(host_of(w->dst), w->value, w->bytes); break;
    case CALL:
        pthread_mutex_lock(&g_host_turn);
        w->fn(w->host);
        pthread_mutex_unlock(&g_host_turn);
        break;
    default: break;
    }
}

static void *stream_main(void *p)
{
    CUstream s = p;
    pthread_mutex_lock(&g_lock);
    for (;;) {
        while (!s->first && !s->stop)
            pthread_cond_wait(&g_moved, &g_lock);
        work *w = s->first;
        if (!w)
            break;
        s->first = w->next;
        pthread_mutex_unlock(&g_lock);
        run_work(w);
        if (w->owned)
            free(w->host);
        free(w);
        pthread_mutex_lock(&g_lock);
        s->done++;
        pthread_cond_broadcast(&g_moved);
    }
    pthread_mutex_unlock(&g_lock);
    return NULL;
}

static void give(CUstream s, work w)
{
    if (s->capture) {
        if (w.kind == LAUNCH)
            s->capture->launches++;
        else
            violate("capture", "work that is no launch");
        return;
    }
    work *c = malloc(sizeof *c);
    *c = w;
    c->next = NULL;
    if (s->first)
        s->last->next = c;
    else
        s->first = c;
    s->last = c;
    s->given++;
    pthread_cond_broadcast(&g_moved);
}

static void drain(CUstream s)
{
    if (s->capture)
        violate("capture", "a wait for the stream");
    uint64_t until = s->given;
    while (s->done < until)
        pthread_cond_wait(&g_moved, &g_lock);
}

/* A broken context takes all with it that could not be given back. */
static void bury(void)
{
    while (g_spans) {
        free(g_spans->pages);
        drop_span(g_spans);
    }
    g_counts.host_bytes = g_counts.advised_bytes = 0;
    for (handle *h; (h = g_handles);) {
        g_handles = h->next;
        free(h);
    }
    g_counts.reservations = g_counts.handles = g_counts.mappings = g_counts.allocations = g_counts.registrations = 0;
    g_counts.held_bytes = 0;
    g_broken = g_break_with = 0;
}

/* --- the driver's functions --- */

API lt_curesult cuInit(unsigned flags)
{
    ENTER(false);
    return leave(flags ? LT_CU_INVALID_VALUE : LT_CU_OK);
}

API lt_curesult cuDriverGetVersion(int *version)
{
    ENTER(false);
    *version = g_version;
    return leave(LT_CU_OK);
}

API lt_curesult cuGetErrorName(lt_curesult error, const char **text)
{
    *text = error == LT_CU_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == LT_CU_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
            : error == LT_CU_LAUNCH_FAILED   ? "CUDA_ERROR_LAUNCH_FAILED"
                                             : NULL;
    return *text ? LT_CU_OK : LT_CU_INVALID_VALUE;
}

API lt_curesult cuGetErrorString(lt_curesult error, const char **text)
{
    *text = error == LT_CU_OUT_OF_MEMORY ? "out of memory" : NULL;
    return *text ? LT_CU_OK : LT_CU_INVALID_VALUE;
}

API lt_curesult cuDeviceGetCount(int *count)
{
    ENTER(false);
    *count = g_devices;
    return leave(LT_CU_OK);
}

API lt_curesult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(false);
    *device = ordinal;
    return leave(ordinal >= g_devices ? LT_CU_INVALID_DEVICE : LT_CU_OK);
}

API lt_curesult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    ENTER(false);
    snprintf(name, (size_t)bytes, device ? "Old Fake" : "Fake Card");
    return leave(device >= g_devices ? LT_CU_INVALID_DEVICE : LT_CU_OK);
}

API lt_curesult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER(false);
    if (attribute < 0 || attribute >= 256 || device < 0 || device >= g_devices)
        return BAD("no such attribute or device");
    *value = device && attribute == LT_CU_ATTR_CONCURRENT_MANAGED ? 0 : g_attributes[attribute]; /* others lack it */
    return leave(LT_CU_OK);
}

API lt_curesult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(false);
    *bytes = g_total;
    return leave(device ? LT_CU_INVALID_DEVICE : LT_CU_OK);
}

API lt_curesult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(false);
    if (device)
        return BAD("no such device");
    g_counts.contexts++;
    g_neighbour += g_neighbour_step;
    if (!g_context.refs++)
        g_broken = 0;
    *context = &g_context;
    return leave(LT_CU_OK);
}

API lt_curesult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(false);
    if (device || !g_context.refs)
        return BAD("released more often than retained");
    g_context.refs--;
    g_counts.contexts--;
    if (!g_context.refs && g_broken)
        bury();
    return leave(LT_CU_OK);
}

API lt_curesult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(false);
    if (context != &g_context || !g_context.refs)
        return BAD("no such context");
    t_depth++;
    return leave(LT_CU_OK);
}

API lt_curesult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(false);
    if (!t_depth)
        return BAD("nothing to pop");
    t_depth--;
    *context = &g_context;
    return leave(LT_CU_OK);
}

API lt_curesult cuMemGetInfo_v2(size_t *mem_free, size_t *total)
{
    ENTER(true);
    *total = g_total;
    *mem_free = g_total - used();
    return leave(LT_CU_OK);
}

#include "fake_managed.inc"

API lt_curesult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    ENTER(true);
    evict(bytes);
    if (used() > g_total || bytes > g_total - used())
        return leave(LT_CU_OUT_OF_MEMORY);
    *out = new_space(bytes);
    mprotect(host_of(*out), bytes, PROT_READ | PROT_WRITE);
    add_span(ALLOCATED, *out, bytes);
    g_counts.allocations++;
    hold((int64_t)bytes);
    return leave(LT_CU_OK);
}

API lt_curesult cuMemFree_v2(CUdeviceptr ptr)
{
    ENTER(true);
    span *s = find_span(ALLOCATED, ptr, 0, true);
    if (!s && (s = find_span(MANAGED, ptr, 0, true)) != NULL) {
        drop_pages(s);
        munmap(host_of(ptr - PAGE), s->bytes + PAGE);
        g_counts.allocations--;
        drop_span(s);
        return leave(LT_CU_OK);
    }
    if (!s)
        return BAD("not allocated");
    munmap(host_of(ptr), s->bytes);
    hold(-(int64_t)s->bytes);
    g_counts.allocations--;
    drop_span(s);
    return leave(LT_CU_OK);
}

static bool prop_fine(const lt_cumemprop *p)
{
    return p->type == LT_CU_MEM_PINNED && p->location.type == LT_CU_MEM_LOCATION_DEVICE && !p->location.id &&
           !p->handle_types && !p->windows_only;
}

VMM lt_curesult cuMemGetAllocationGranularity(size_t *bytes, const lt_cumemprop *prop, int option)
{
    ENTER(true);
    if (!prop_fine(prop) || option != LT_CU_GRANULARITY_MINIMUM)
        return BAD("not asked for pinned memory of the device");
    *bytes = GRANULE;
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                    unsigned long long flags)
{
    ENTER(true);
    if (!bytes || bytes % GRANULE || alignment % GRANULE || wanted || flags)
        return BAD("size or alignment is no multiple of the granularity");
    *out = new_space(bytes);
    if (!*out)
        return leave(LT_CU_OUT_OF_MEMORY);
    add_span(RESERVED, *out, bytes);
    g_counts.reservations++;
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
    ENTER(true);
    span *s = find_span(RESERVED, ptr, bytes, true);
    if (!s)
        return BAD("not reserved so");
    if (overlaps(MAPPED, ptr, bytes))
        return BAD("still mapped");
    munmap(host_of(ptr), bytes);
    drop_span(s);
    g_counts.reservations--;
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemCreate(lt_cumemhandle *out, size_t bytes, const lt_cumemprop *prop, unsigned long long flags)
{
    ENTER(true);
    if (!bytes || bytes % GRANULE || !prop_fine(prop) || flags)
        return BAD("size is no multiple of the granularity, or the properties are wrong");
    evict(bytes);
    if (used() > g_total || bytes > g_total - used())
        return leave(LT_CU_OUT_OF_MEMORY);
    handle *h = calloc(1, sizeof *h);
    *h = (handle){.next = g_handles, .id = g_next_handle++, .bytes = bytes};
    g_handles = h;
    g_counts.handles++;
    hold((int64_t)bytes);
    *out = h->id;
    return leave(LT_CU_OK);
}

static handle *find_handle(uint64_t id)
{
    handle *h = g_handles;
    while (h && h->id != id)
        h = h->next;
    return h;
}

/* Memory goes when the handle is released and nothing maps it. */
static void drop_handle(handle *h)
{
    if (!h->released || h->maps)
        return;
    handle **at = &g_handles;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    g_counts.handles--;
    hold(-(int64_t)h->bytes);
    free(h);
}

VMM lt_curesult cuMemRelease(lt_cumemhandle id)
{
    ENTER(true);
    handle *h = find_handle(id);
    if (!h || h->released)
        return BAD("no such handle");
    h->released = true;
    drop_handle(h);
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, lt_cumemhandle id, unsigned long long flags)
{
    ENTER(true);
    handle *h = find_handle(id);
    if (!h || h->released || offset || flags || bytes > h->bytes || bytes % GRANULE)
        return BAD("no such handle, or it is smaller");
    if (!find_span(RESERVED, ptr, bytes, false) || overlaps(MAPPED, ptr, bytes))
        return BAD("not reserved, or mapped already");
    span *s = add_span(MAPPED, ptr, bytes);
    s->handle = id;
    h->maps++;
    g_counts.mappings++;
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
    ENTER(true);
    span *s = find_span(MAPPED, ptr, bytes, true);
    if (!s)
        return BAD("not one whole mapping");
    mmap(host_of(ptr), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    handle *h = find_handle(s->handle);
    h->maps--;
    drop_handle(h);
    drop_span(s);
    g_counts.mappings--;
    return leave(LT_CU_OK);
}

VMM lt_curesult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const lt_cumemaccess *desc, size_t count)
{
    ENTER(true);
    span *s = find_span(MAPPED, ptr, bytes, true);
    if (!s || count != 1 || desc->flags != LT_CU_MEM_READWRITE || desc->location.type != LT_CU_MEM_LOCATION_DEVICE)
        return BAD("not mapped, or not for reading and writing");
    s->access = true;
    mprotect(host_of(ptr), bytes, PROT_READ | PROT_WRITE);
    memset(host_of(ptr), 0xFF, bytes);
    return leave(LT_CU_OK);
}

API lt_curesult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags)
{
    ENTER(true);
    const unsigned mapped = LT_CU_HOST_REGISTER_PORTABLE | LT_CU_HOST_REGISTER_DEVICEMAP; /* the page kernels report to */
    if (flags != mapped && flags & ~(unsigned)LT_CU_HOST_REGISTER_READ_ONLY)
        return BAD("flags");
    if (overlaps(REGISTERED, (uintptr_t)ptr, bytes))
        return leave(LT_CU_HOST_MEMORY_ALREADY_REGISTERED);
    span *s = add_span(REGISTERED, (uintptr_t)ptr, bytes);
    s->access = flags == LT_CU_HOST_REGISTER_READ_ONLY;
    s->lasting = flags == mapped; /* lives as long as the device: not counted */
    g_counts.registrations += !s->lasting;
    return leave(LT_CU_OK);
}

API lt_curesult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *host, unsigned flags)
{
    ENTER(true);
    if (flags || !find_span(REGISTERED, (uintptr_t)host, 1, false))
        return BAD("not registered, or flags");
    *out = (CUdeviceptr)(uintptr_t)host;
    return leave(LT_CU_OK);
}

API lt_curesult cuMemHostUnregister(void *ptr)
{
    ENTER(true);
    span *s = find_span(REGISTERED, (uintptr_t)ptr, 0, true);
    if (!s)
        return BAD("not registered");
    g_counts.registrations -= !s->lasting;
    drop_span(s);
    return leave(LT_CU_OK);
}

API lt_curesult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    ENTER(true);
    work w = {.kind = COPY_IN, .dst = dst, .host = (void *)src, .bytes = bytes};
    if (!find_span(REGISTERED, (uintptr_t)src, bytes, false)) {
        w.host = malloc(bytes);
        w.owned = true;
        memcpy(w.host, src, bytes);
        if (bytes > 65536)
            drain(stream);
    }
    give(stream, w);
    return leave(LT_CU_OK);
}

API lt_curesult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(true);
    span *s = find_span(REGISTERED, (uintptr_t)dst, bytes, false);
    if (s && s->access)
        return BAD("writes into memory registered for reading only");
    give(stream, (work){.kind = COPY_OUT, .src = src, .host = dst, .bytes = bytes});
    if (!s)
        drain(stream);
    return leave(LT_CU_OK);
}

API lt_curesult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    ENTER(true);
    give(stream, (work){.kind = COPY, .dst = dst, .src = src, .bytes = bytes});
    return leave(LT_CU_OK);
}

API lt_curesult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER(true);
    give(stream, (work){.kind = FILL, .dst = dst, .value = value, .bytes = bytes});
    return leave(LT_CU_OK);
}

API lt_curesult cuStreamCreate(CUstream *out, unsigned flags)
{
    ENTER(true);
    if (flags != LT_CU_STREAM_NON_BLOCKING)
        return BAD("a stream that waits for the default one");
    CUstream s = calloc(1, sizeof *s);
    g_counts.streams++;
    pthread_create(&s->thread, NULL, stream_main, s);
    *out = s;
    return leave(LT_CU_OK);
}

API lt_curesult cuStreamDestroy_v2(CUstream s)
{
    (void)enter(__func__, true); /* also of a broken context */
    s->stop = true;
    pthread_cond_broadcast(&g_moved);
    g_counts.streams--;
    pthread_mutex_unlock(&g_lock);
    pthread_join(s->thread, NULL);
    free(s);
    return LT_CU_OK;
}

API lt_curesult cuStreamSynchronize(CUstream s)
{
    ENTER(true);
    drain(s);
    return leave(g_broken);
}

API lt_curesult cuStreamWaitEvent(CUstream s, CUevent event, unsigned flags)
{
    ENTER(true);
    if (flags)
        return BAD("flags");
    if (event->latest)
        give(s, (work){.kind = WAIT, .mark = event->latest});
    return leave(LT_CU_OK);
}

API lt_curesult cuEventCreate(CUevent *out, unsigned flags)
{
    ENTER(true);
    if (flags)
        return BAD("an event without timing");
    CUevent e = calloc(1, sizeof *e);
    g_counts.events++;
    *out = e;
    return leave(LT_CU_OK);
}

API lt_curesult cuEventDestroy_v2(CUevent e)
{
    (void)enter(__func__, true);
    g_counts.events--;
    free(e);
    pthread_mutex_unlock(&g_lock);
    return LT_CU_OK;
}

API lt_curesult cuEventRecord(CUevent e, CUstream s)
{
    ENTER(true);
    record *m = calloc(1, sizeof *m);
    m->next = g_records;
    g_records = e->latest = m;
    give(s, (work){.kind = RECORD, .mark = m});
    return leave(LT_CU_OK);
}

API lt_curesult cuEventQuery(CUevent e)
{
    ENTER(true);
    return leave(e->latest && !e->latest->done ? LT_CU_NOT_READY : LT_CU_OK);
}

API lt_curesult cuEventSynchronize(CUevent e)
{
    ENTER(true);
    record *m = e->latest;
    while (m && !m->done)
        pthread_cond_wait(&g_moved, &g_lock);
    return leave(g_broken);
}

API lt_curesult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    ENTER(true);
    if (!start->latest || !end->latest)
        return BAD("an event that was never recorded");
    if (!start->latest->done || !end->latest->done)
        return leave(LT_CU_NOT_READY);
    *ms = (float)(((double)end->latest->done_ns - (double)start->latest->done_ns) / 1e6);
    return leave(LT_CU_OK);
}

API lt_curesult cuLaunchHostFunc(CUstream s, lt_cuhostfn *fn, void *user)
{
    ENTER(true);
    give(s, (work){.kind = CALL, .fn = fn, .host = user});
    return leave(LT_CU_OK);
}

API lt_curesult cuModuleLoadData(CUmodule *out, const void *image)
{
    ENTER(true);
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic != 0xba55ed50u)
        return BAD("no fat binary");
    *out = calloc(1, sizeof **out);
    g_counts.modules++;
    g_neighbour += g_neighbour_step;
    return leave(LT_CU_OK);
}

API lt_curesult cuModuleUnload(CUmodule module)
{
    (void)enter(__func__, true);
    g_counts.modules--;
    free(module);
    return leave(LT_CU_OK);
}

API lt_curesult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    ENTER(true);
    (void)module;
    int i = 0;
    while (i < g_n_functions && strcmp(g_functions[i].name, name))
        i++;
    if (i == g_n_functions) {
        if (i == 64)
            return BAD("more functions than the fake keeps");
        g_n_functions++;
        snprintf(g_functions[i].name, sizeof g_functions[i].name, "%s", name);
    }
    g_functions[i].shared = 0;
    *out = &g_functions[i];
    return leave(LT_CU_OK);
}

#define FAKE_STATIC_SHARED 1024 /* of every kernel */

API lt_curesult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    ENTER(true);
    if (attribute != LT_CU_FUNC_STATIC_SHARED || !function)
        return BAD("attribute");
    *value = FAKE_STATIC_SHARED;
    return leave(LT_CU_OK);
}

API lt_curesult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    ENTER(true);
    if (attribute != LT_CU_FUNC_MAX_DYNAMIC_SHARED)
        return BAD("attribute");
    function->shared = value;
    return leave(LT_CU_OK);
}

API lt_curesult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **params,
                               void **extra)
{
    ENTER(true);
    if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535 || !block_x || !block_y || !block_z ||
        block_x * block_y * block_z > 1024 || extra || !params)
        return BAD("grid or block");
    if (shared_bytes + FAKE_STATIC_SHARED > 49152 && shared_bytes > (unsigned)function->shared)
        return BAD("more shared memory than allowed");
    g_counts.launches += !stream->capture;
    g_counts.launch_x = grid_x;
    give(stream, (work){.kind = LAUNCH});
    return leave(LT_CU_OK);
}

API lt_curesult cuLaunchKernelEx(const lt_culaunch *c, CUfunction function, void **params, void **extra)
{
    ENTER(true);
    if (!c->stream->capture || c->n_attrs != 1 || c->attrs->id != LT_CU_LAUNCH_EARLY || c->attrs->value.flag != 1)
        return BAD("no early launch into a graph");
    if (!function || !params || extra || !c->grid_x || !c->grid_y || !c->grid_z || c->block_x * c->block_y * c->block_z > 1024)
        return BAD("grid or block");
    if (c->shared_bytes + FAKE_STATIC_SHARED > 49152 && c->shared_bytes > (unsigned)function->shared)
        return BAD("more shared memory than allowed");
    g_counts.launch_x = c->grid_x;
    give(c->stream, (work){.kind = LAUNCH});
    return leave(LT_CU_OK);
}

API lt_curesult cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *at, const uint64_t *dims, const uint64_t *strides,
                                       const unsigned *box, const unsigned *steps, int interleave, int swizzle, int l2, int outside)
{
    ENTER(true);
    (void)steps, (void)interleave, (void)swizzle, (void)l2, (void)outside;
    if (!map || type != LT_CU_TENSOR_HALF || rank != 3 || (uintptr_t)at % 16 || strides[0] % 16 || strides[1] % 16 || !box[0] || box[0] > 256 ||
        box[1] > 256 || !dims[0] || !dims[1] || !dims[2])
        return BAD("tensor map");
    memset(map, 1, 128);
    return leave(LT_CU_OK);
}

API lt_curesult cuStreamBeginCapture_v2(CUstream s, int mode)
{
    ENTER(true);
    if (s->capture || mode != LT_CU_CAPTURE_RELAXED)
        return BAD("captures already, or in another mode");
    s->capture = calloc(1, sizeof *s->capture);
    g_counts.graphs++;
    return leave(LT_CU_OK);
}

API lt_curesult cuStreamEndCapture(CUstream s, CUgraph *out)
{
    lt_curesult r = enter(__func__, true);
    if (!s->capture)
        return BAD("captures nothing");
    *out = s->capture;
    s->capture = NULL;
    if (r != LT_CU_OK) { /* ended all the same, with nothing to show */
        free(*out);
        *out = NULL;
        g_counts.graphs--;
    }
    return leave(r);
}

API lt_curesult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    ENTER(true);
    if (flags)
        return BAD("flags");
    *out = calloc(1, sizeof **out);
    (*out)->launches = graph->launches;
    g_counts.graphs++;
    return leave(LT_CU_OK);
}

API lt_curesult cuGraphUpload(CUgraphExec graph, CUstream s)
{
    ENTER(true);
    graph->uploaded = true;
    give(s, (work){.kind = LAUNCH});
    return leave(LT_CU_OK);
}

API lt_curesult cuGraphLaunch(CUgraphExec graph, CUstream s)
{
    ENTER(true);
    if (!graph->uploaded)
        return BAD("a graph that was not uploaded: its first launch takes memory");
    g_counts.launches += graph->launches;
    give(s, (work){.kind = LAUNCH});
    return leave(LT_CU_OK);
}

API lt_curesult cuGraphExecDestroy(CUgraphExec graph)
{
    (void)enter(__func__, true);
    g_counts.graphs--;
    free(graph);
    return leave(LT_CU_OK);
}

API lt_curesult cuGraphDestroy(CUgraph graph)
{
    (void)enter(__func__, true);
    g_counts.graphs--;
    free(graph);
    return leave(LT_CU_OK);
}

/* --- NVML, in the same library --- */

API lt_nvmlreturn nvmlInit_v2(void) { return 0; }
API lt_nvmlreturn nvmlShutdown(void) { return 0; }
API lt_nvmlreturn nvmlDeviceGetHandleByPciBusId_v2(const char *id, lt_nvmldevice *out)
{
    *out = NULL;
    return strcmp(id, "00000001:0a:00.0") ? 6 : 0;
}
API lt_nvmlreturn nvmlDeviceGetMemoryInfo(lt_nvmldevice device, lt_nvmlmemory *out)
{
    (void)device;
    pthread_mutex_lock(&g_lock);
    *out = (lt_nvmlmemory){g_total, g_total - used(), used()};
    pthread_mutex_unlock(&g_lock);
    return 0;
}
API lt_nvmlreturn nvmlDeviceGetComputeRunningProcesses_v3(lt_nvmldevice device, unsigned *count, lt_nvmlprocess *out)
{
    (void)device;
    if (*count < 2)
        return 7;
    pthread_mutex_lock(&g_lock);
    out[0] = (lt_nvmlprocess){.pid = 1, .used = 1};
    out[1] = (lt_nvmlprocess){.pid = (unsigned)getpid(), .used = g_told_apart ? used() - g_neighbour : g_neighbour};
    *count = 2;
    pthread_mutex_unlock(&g_lock);
    return 0;
}
API lt_nvmlreturn nvmlDeviceGetCurrPcieLinkGeneration(lt_nvmldevice device, unsigned *out) { return (void)device, *out = 1, 0; }
API lt_nvmlreturn nvmlDeviceGetCurrPcieLinkWidth(lt_nvmldevice device, unsigned *out) { return (void)device, *out = 8, 0; }
API lt_nvmlreturn nvmlDeviceGetMaxPcieLinkGeneration(lt_nvmldevice device, unsigned *out) { return (void)device, *out = 4, 0; }
API lt_nvmlreturn nvmlDeviceGetMaxPcieLinkWidth(lt_nvmldevice device, unsigned *out) { return (void)device, *out = 16, 0; }
API lt_nvmlreturn nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    snprintf(text, bytes, "999.99");
    return 0;
}

/* --- control --- */

static void control_reset(void)
{
    pthread_mutex_lock(&g_lock);
    g_neighbour = g_neighbour_step = 0;
    g_told_apart = true;
    fake_cuda_counts keep = g_counts;
    memset(&g_counts, 0, sizeof g_counts);
    g_counts.reservations = keep.reservations;
    g_counts.handles = keep.handles;
    g_counts.streams = keep.streams;
    g_counts.graphs = keep.graphs;
    g_counts.events = keep.events;
    g_counts.contexts = keep.contexts;
    g_counts.held_bytes = g_counts.peak_held_bytes = keep.held_bytes;
    memset(g_calls, 0, sizeof g_calls);
    memset(g_attributes, 0, sizeof g_attributes);
    g_attributes[LT_CU_ATTR_SHARED_PER_BLOCK] = 49152;
    g_attributes[LT_CU_ATTR_SHARED_PER_BLOCK_OPTIN] = 101376;
    g_attributes[LT_CU_ATTR_SM_COUNT] = 16;
    g_attributes[LT_CU_ATTR_PCI_DOMAIN] = 1;
    g_attributes[LT_CU_ATTR_PCI_BUS] = 10;
    g_attributes[LT_CU_ATTR_CC_MAJOR] = 8;
    g_attributes[LT_CU_ATTR_CC_MINOR] = 9;
    g_attributes[LT_CU_ATTR_VMM] = 1;
    g_attributes[LT_CU_ATTR_MAPS_HOST] = 1;
    g_attributes[LT_CU_ATTR_UNIFIED_ADDRESSING] = 1;
    g_attributes[LT_CU_ATTR_MANAGED] = g_attributes[LT_CU_ATTR_CONCURRENT_MANAGED] = 1;
    g_attributes[LT_CU_ATTR_READ_ONLY_HOST_REGISTER] = 1;
    g_total = FAKE_CUDA_MEMORY;
    g_version = 13000;
    g_devices = 1;
    g_broken = g_break_with = 0;
    pthread_mutex_unlock(&g_lock);
}

static void control_counts(fake_cuda_counts *out)
{
    pthread_mutex_lock(&g_lock);
    *out = g_counts;
    pthread_mutex_unlock(&g_lock);
}

static void control_fail(const char *symbol, uint64_t nth, lt_curesult result)
{
    pthread_mutex_lock(&g_lock);
    int i = row_of(symbol);
    g_calls[i].fail_in = nth;
    g_calls[i].result = result;
    pthread_mutex_unlock(&g_lock);
}

static uint64_t control_calls(const char *symbol)
{
    pthread_mutex_lock(&g_lock);
    uint64_t n = g_calls[row_of(symbol)].calls;
    pthread_mutex_unlock(&g_lock);
    return n;
}

static void control_break(lt_curesult result)
{
    pthread_mutex_lock(&g_lock);
    g_break_with = result;
    pthread_mutex_unlock(&g_lock);
}

static void control_attribute(int attribute, int value) { g_attributes[attribute] = value; }
static void control_memory(uint64_t total) { g_total = total; }
static void control_version(int version) { g_version = version; }
static void control_devices(int n) { g_devices = n; }
static void control_neighbour(uint64_t bytes, bool told_apart) { g_neighbour_step = bytes, g_told_apart = told_apart; }

__attribute__((constructor)) static void start(void) { control_reset(); }

API const fake_cuda_control *fake_cuda(void)
{
    static const fake_cuda_control c = {control_reset, control_counts, control_fail, control_calls,
                                        control_break, control_attribute, control_memory, control_version,
                                        control_neighbour, control_devices};
    return &c;
}
