/* An NVIDIA card: opening, what opening took, options, the table. */
#include "backend/cuda/device.h"
#include "backend/cuda/images.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES (LT_CUDA_GRANULE * LT_CUDA_PIECE)
#define PROBE_BYTES ((uint64_t)32 << 20)
#define MEASURE_SLACK ((uint64_t)64 << 20)

bool lt__cuda_fault(lt_cuda_device *d, lt_cuda_fault point)
{
    _Atomic uint64_t *left = &d->fail_in[point];
    uint64_t v = atomic_load_explicit(left, memory_order_relaxed);
    while (v)
        if (atomic_compare_exchange_weak_explicit(left, &v, v - 1, memory_order_relaxed, memory_order_relaxed))
            return v == 1;
    return false;
}

lt_status lt__cuda_enter(lt_cuda_device *d, lt_err *err)
{
    lt_curesult r = d->cu.context_push(d->context);
    return r == LT_CU_OK ? LT_OK : lt__cuda_fail(d, err, r, "cuda: the context cannot be entered");
}

void lt__cuda_leave(lt_cuda_device *d)
{
    CUcontext gone;
    (void)d->cu.context_pop(&gone);
}

void lt__cuda_set_lost(lt_cuda_device *d, const lt_err *err)
{
    pthread_mutex_lock(&d->lock);
    if (!atomic_load_explicit(&d->lost, memory_order_relaxed)) {
        d->lost_err = *err;
        atomic_store_explicit(&d->lost, true, memory_order_release);
    }
    pthread_mutex_unlock(&d->lock);
}

lt_status lt__cuda_fail(lt_cuda_device *d, lt_err *err, lt_curesult r, const char *fmt, ...)
{
    char text[400];
    lt_err own = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    lt_status s = lt__cu_fail(&d->cu, &own, r, "%s", text);
    if (lt__cu_fatal(r))
        lt__cuda_set_lost(d, &own);
    if (err)
        *err = own;
    return s;
}

const lt_cuda_props *lt__cuda_device_props(const lt_cuda_device *dev) { return &dev->props; }

/* --- opening -------------------------------------------------------------------------- */

typedef struct cuda_options {
    uint64_t ordinal, recycle_bytes, fail[LT_CUDA_FAULT_COUNT];
    bool     sync_check, vmm, managed, kernels, graphs, fuse, early, sm90a;
    char     driver[256], nvml[256];
} cuda_options;

static lt_status parse_number(const char *key, const char *value, uint64_t min, uint64_t max, uint64_t *out, lt_err *err)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || n < min || n > max)
        return lt__fail(err, LT_E_INVALID, "%s=%s: expected a number from %" PRIu64 " to %" PRIu64, key, value, min, max);
    *out = n;
    return LT_OK;
}

static lt_status parse_fail(const char *value, cuda_options *o, lt_err *err)
{
    static const char *const names[] = {
#define X(name) #name,
        LT_CUDA_FAULTS(X)
#undef X
    };
    const char *colon = strchr(value, ':');
    for (size_t i = 0; colon && i < LT_CUDA_FAULT_COUNT; i++)
        if (strlen(names[i]) == (size_t)(colon - value) && !strncmp(value, names[i], (size_t)(colon - value)))
            return parse_number("fail", colon + 1, 1, UINT64_MAX, &o->fail[i], err);
    char list[160] = "";
    for (size_t i = 0; i < LT_CUDA_FAULT_COUNT; i++) {
        strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, names[i], sizeof list - strlen(list) - 1);
    }
    return lt__fail(err, LT_E_INVALID, "fail=%s: expected CALL:N, where CALL is one of %s", value, list);
}

static lt_status parse_path(const char *key, const char *value, char *out, size_t bytes, lt_err *err)
{
    if (!*value || strlen(value) >= bytes)
        return lt__fail(err, LT_E_INVALID, "%s=%s: expected the path of a library, below %zu characters", key, value, bytes);
    memcpy(out, value, strlen(value) + 1);
    return LT_OK;
}

static lt_status cuda_option(void *user, const char *key, const char *value, lt_err *err)
{
    cuda_options *o = user;
    const struct {
        const char *key;
        bool       *out;
    } flags[] = {{"sync-check", &o->sync_check}, {"vmm", &o->vmm}, {"managed", &o->managed}, {"kernels", &o->kernels}, {"graphs", &o->graphs}, {"fuse", &o->fuse}, {"early", &o->early}, {"sm90a", &o->sm90a}};
    uint64_t n = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(key, flags[i].key)) {
            lt_status s = parse_number(key, value, 0, 1, &n, err);
            *flags[i].out = n;
            return s;
        }
    if (!strcmp(key, "device"))
        return parse_number(key, value, 0, 1023, &o->ordinal, err);
    if (!strcmp(key, "recycle")) {
        if (!lt__parse_bytes(value, &o->recycle_bytes) || o->recycle_bytes > (uint64_t)1 << 40)
            return lt__fail(err, LT_E_INVALID, "recycle=%s: expected a size such as 256M, at most 1024G", value);
        return LT_OK;
    }
    if (!strcmp(key, "driver"))
        return parse_path(key, value, o->driver, sizeof o->driver, err);
    if (!strcmp(key, "nvml"))
        return parse_path(key, value, o->nvml, sizeof o->nvml, err);
    if (!strcmp(key, "fail"))
        return parse_fail(value, o, err);
    return lt__fail(err, LT_E_INVALID,
                    "cuda has no option '%s'; it has device, sync-check, vmm, managed, recycle, kernels, graphs, fuse, early, sm90a, driver, nvml, fail", key);
}

/* SASS of one compute capability runs on later ones of the same major; PTX of the last on all above. */
static bool images_fit(int major, int minor)
{
    int last = 0;
    for (const int *a = lt__cuda_image_archs; *a; a++) {
        last = *a;
        if (*a / 10 == major && *a % 10 <= minor)
            return true;
    }
    return last && major * 10 + minor >= last;
}

void lt__cuda_list_archs(char *out, size_t bytes)
{
    size_t used = 0;
    int last = 0;
    *out = 0;
    for (const int *a = lt__cuda_image_archs; *a && used < bytes; a++) {
        used += (size_t)snprintf(out + used, bytes - used, "%ssm_%d", used ? " " : "", *a);
        last = *a;
    }
    if (last && used < bytes)
        snprintf(out + used, bytes - used, " and PTX of %d", last);
}

static lt_status check_kernels(const lt_cuda_device *d, lt_err *err)
{
    char archs[128];
    lt__cuda_list_archs(archs, sizeof archs);
    if (!images_fit(d->props.major, d->props.minor))
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: %s has compute capability %d.%d; this build's kernels are for %s", d->name,
                        d->props.major, d->props.minor, archs);
    /* Within a major release of CUDA older drivers run what newer toolkits made; across majors not. */
    if (d->cu.version / 1000 < lt__cuda_image_toolkit / 1000)
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "cuda: the driver is too old: it speaks CUDA %d.%d, this build's kernels need %d.0 or later; update the "
                        "driver or build with an older toolkit",
                        d->cu.version / 1000, d->cu.version % 1000 / 10, lt__cuda_image_toolkit / 1000);
    return LT_OK;
}

static int attribute(const lt_cuda_device *d, int which)
{
    int v = 0;
    return d->cu.device_attribute(&v, which, d->device) == LT_CU_OK ? v : 0;
}

static lt_status find_device(lt_cuda_device *d, uint64_t ordinal, lt_err *err)
{
    int n = 0;
    size_t total = 0;
    lt_curesult r = d->cu.device_count(&n);
    if (r != LT_CU_OK || n < 1)
        return lt__fail_native(err, LT_E_UNSUPPORTED, r, "cuda: the driver is there, but it lists no device");
    if (ordinal >= (uint64_t)n)
        return lt__fail(err, LT_E_INVALID, "cuda: device=%" PRIu64 ": there are %d devices, counted from 0", ordinal, n);
    r = d->cu.device_get(&d->device, (int)ordinal);
    if (r == LT_CU_OK)
        r = d->cu.device_name(d->name, sizeof d->name, d->device);
    if (r == LT_CU_OK)
        r = d->cu.device_memory(&total, d->device);
    if (r != LT_CU_OK)
        return lt__cu_fail(&d->cu, err, r, "cuda: device %" PRIu64 " cannot be asked", ordinal);
    d->name[sizeof d->name - 1] = 0;
    d->total_bytes = total;
    d->props = (lt_cuda_props){.major = attribute(d, LT_CU_ATTR_CC_MAJOR),
                               .minor = attribute(d, LT_CU_ATTR_CC_MINOR),
                               .sm_count = attribute(d, LT_CU_ATTR_SM_COUNT),
                               .shared_bytes = (uint32_t)attribute(d, LT_CU_ATTR_SHARED_PER_BLOCK),
                               .shared_optin_bytes = (uint32_t)attribute(d, LT_CU_ATTR_SHARED_PER_BLOCK_OPTIN),
                               .l2_bytes = (uint64_t)attribute(d, LT_CU_ATTR_L2_BYTES), .total_bytes = total};
    d->read_only_register = attribute(d, LT_CU_ATTR_READ_ONLY_HOST_REGISTER) != 0;
    d->maps_host = attribute(d, LT_CU_ATTR_MAPS_HOST) && attribute(d, LT_CU_ATTR_UNIFIED_ADDRESSING);
    return LT_OK;
}

/* By its UUID, which is a MIG slice's own; by its place on the bus where the driver does not tell. */
static void find_id(lt_cuda_device *d)
{
    uint8_t uuid[16];
    size_t n = (size_t)snprintf(d->id, sizeof d->id, "cuda-");
    if (d->cu.device_uuid && d->cu.device_uuid(uuid, d->device) == LT_CU_OK)
        for (int i = 0; i < 16; i++)
            n += (size_t)snprintf(d->id + n, sizeof d->id - n, "%02x", uuid[i]);
    else
        snprintf(d->id + n, sizeof d->id - n, "%08x.%02x.%02x", (unsigned)attribute(d, LT_CU_ATTR_PCI_DOMAIN),
                 (unsigned)attribute(d, LT_CU_ATTR_PCI_BUS), (unsigned)attribute(d, LT_CU_ATTR_PCI_DEVICE));
}

static void open_nvml(lt_cuda_device *d, const char *path)
{
    char pci[32], why[192] = "";
    snprintf(pci, sizeof pci, "%08x:%02x:%02x.0", (unsigned)attribute(d, LT_CU_ATTR_PCI_DOMAIN),
             (unsigned)attribute(d, LT_CU_ATTR_PCI_BUS), (unsigned)attribute(d, LT_CU_ATTR_PCI_DEVICE));
    if (!lt__nvml_open(&d->nvml, *path ? path : NULL, pci, why, sizeof why))
        lt__log(d->base.ctx, LT_LOG_WARN, "cuda",
                "no NVML (%s): all that is in use on the device counts as this process's fixed cost", why);
}

/* In a container the process's number may be another's in NVML's list. A piece of memory tells: it is counted at once.
 * *known: there was room for it. */
static bool is_listed(lt_cuda_device *d, uint64_t own, bool *known)
{
    CUdeviceptr at;
    uint64_t then = 0;
    *known = d->cu.mem_alloc(&at, PROBE_BYTES) == LT_CU_OK;
    if (!*known)
        return false;
    bool asked = lt__nvml_process_used(&d->nvml, &then);
    (void)d->cu.mem_free(at);
    return asked && then >= own + PROBE_BYTES && then <= own + PROBE_BYTES + PROBE_BYTES / 4;
}

/* What the context took: as the driver lists it for the process, else by the change of what is in use, in which
 * others' that starts or ends meanwhile is counted too. */
static uint64_t measure_fixed(lt_cuda_device *d, bool have_before, uint64_t before)
{
    uint64_t used = 0, own = 0, more = 0;
    size_t free = 0, total = 0;
    bool changed = have_before && lt__nvml_used(&d->nvml, &used), known, have = lt__nvml_process_used(&d->nvml, &own);
    more = changed && used > before ? used - before : 0;
    d->listed = have && is_listed(d, own, &known);
    if (d->listed || (have && !known && (!changed || own + MEASURE_SLACK >= more)))
        return own;
    if (changed)
        return more;
    if (d->cu.memory_info(&free, &total) != LT_CU_OK || free > total)
        return 0;
    return total - free;
}

/* Managed memory needs none; it keeps what is given back with it. */
static lt_status check_vmm(lt_cuda_device *d, bool wanted, lt_err *err)
{
    size_t step = 0;
    lt_cumemprop prop = {.type = LT_CU_MEM_PINNED, .location = {LT_CU_MEM_LOCATION_DEVICE, d->device}};
    d->vmm = wanted && d->cu.has_vmm && attribute(d, LT_CU_ATTR_VMM);
    if (!d->vmm) {
        if (wanted && !d->managed)
            lt__log(d->base.ctx, LT_LOG_WARN, "cuda",
                    "no virtual memory management on this %s: the arena is one plain allocation and cannot shrink",
                    d->cu.has_vmm ? "device" : "driver");
        return LT_OK;
    }
    lt_curesult r = d->cu.mem_granularity(&step, &prop, LT_CU_GRANULARITY_MINIMUM);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: the granularity of memory cannot be asked");
    if (!step || LT_CUDA_GRANULE % step)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: memory comes in steps of %zu bytes; %" PRIu64 " or a divisor is expected (vmm=0 does without)",
                        step, LT_CUDA_GRANULE);
    d->places = d->managed;
    d->vmm = !d->managed;
    return LT_OK;
}

static const lt_device_vt cuda_vt;

static void cuda_close(lt_device *dev)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_ctx *ctx = dev->ctx;
    size_t queues = 0, events = 0;
    for (; d->queues; queues++)
        lt__cuda_queue_destroy(&d->queues->base);
    for (; d->events; events++)
        lt__cuda_event_destroy(&d->events->base);
    if (queues || events)
        lt__log(ctx, LT_LOG_WARN, "cuda", "closed with %zu queues and %zu events still there", queues, events);
    bool entered = d->context && lt__cuda_enter(d, NULL) == LT_OK;
    lt__cuda_bounce_deinit(d);
    lt__cuda_lists_deinit(d);
    lt__cuda_wrong_deinit(d);
    lt__cuda_memory_deinit(d);
    lt__cuda_modules_deinit(d);
    if (d->context)
        lt__cuda_time_deinit(d);
    if (entered)
        lt__cuda_leave(d);
    lt__nvml_close(&d->nvml);
    if (d->context)
        (void)d->cu.context_release(d->device);
    lt__cu_close(&d->cu);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->time_lock);
    lt__free(ctx, d, sizeof *d);
}

/* Past the driver: on failure the caller closes. */
static lt_status start_device(lt_cuda_device *d, const cuda_options *o, lt_err *err)
{
    uint64_t before = 0;
    lt_status s = find_device(d, o->ordinal, err);
    if (s == LT_OK && d->kernels)
        s = check_kernels(d, err);
    if (s != LT_OK)
        return s;
    find_id(d);
    open_nvml(d, o->nvml);
    bool have_before = lt__nvml_used(&d->nvml, &before);
    lt_curesult r = d->cu.context_retain(&d->context, d->device);
    if (r != LT_CU_OK) {
        d->context = NULL;
        return lt__cu_fail(&d->cu, err, r, "cuda: no context on %s", d->name);
    }
    s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        return s;
    if (d->managed)
        s = lt__cuda_managed_check(d, err);
    if (s == LT_OK)
        s = check_vmm(d, o->vmm, err);
    if (s == LT_OK)
        s = lt__cuda_time_init(d, err);
    if (s == LT_OK)
        s = lt__cuda_wrong_init(d, err);
    if (s == LT_OK) {
        atomic_store(&d->fixed_bytes, measure_fixed(d, have_before, before) + LT_CUDA_MARGIN);
        size_t free = 0, total = 0;
        if (d->cu.memory_info(&free, &total) == LT_CU_OK)
            d->total_bytes = total;
    }
    lt__cuda_leave(d);
    return s;
}

static lt_status cuda_open(lt_ctx *ctx, const char *opts, lt_device **out, lt_err *err)
{
    cuda_options o = {.vmm = true, .kernels = true, .graphs = true, .fuse = true, .early = true, .sm90a = true};
    lt_status s = lt__spec_parse(opts, cuda_option, &o, err);
    if (s != LT_OK)
        return s;
    if (o.kernels && !lt__cuda_image_archs[0])
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: this build has no kernels: nvcc was not found when it was configured");
    if (o.managed && o.recycle_bytes)
        return lt__fail(err, LT_E_INVALID, "cuda: recycle=%" PRIu64 " with managed=1: managed memory has no pieces to use again", o.recycle_bytes);
    lt_cuda_device *d = lt__zalloc(ctx, sizeof *d);
    if (!d)
        return lt__fail_oom(err, sizeof *d, "cuda device");
    d->base = (lt_device){.vt = &cuda_vt, .ctx = ctx};
    d->sync_check = o.sync_check;
    d->managed = o.managed;
    d->kernels = o.kernels;
    d->graphs = o.graphs;
    d->fuse = o.fuse;
    d->early = o.early;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->time_lock, NULL);
    pthread_mutex_init(&d->bounce.lock, NULL);
    pthread_cond_init(&d->bounce.freed, NULL);
    lt__cuda_memory_init(d);
    lt__cuda_modules_init(d);
    lt__cuda_lists_init(d);
    for (int i = 0; i < LT_CUDA_FAULT_COUNT; i++)
        atomic_init(&d->fail_in[i], o.fail[i]);
    d->memory.max_spare = d->memory.recycle = (size_t)(o.recycle_bytes / PIECE_BYTES);
    s = lt__grow(ctx, (void **)&d->memory.spare, &d->memory.spare_cap, d->memory.max_spare, sizeof *d->memory.spare, err);
    if (s == LT_OK)
        s = lt__cu_open(&d->cu, *o.driver ? o.driver : NULL, err);
    if (s == LT_OK)
        s = start_device(d, &o, err);
    d->props.sm90a = o.sm90a && d->props.major == 9 && d->props.minor == 0;
    if (s != LT_OK) {
        cuda_close(&d->base);
        return s;
    }
    *out = &d->base;
    return LT_OK;
}

/* --- what it is ------------------------------------------------------------------------ */

static uint64_t cuda_free_bytes(const lt_device *dev)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    size_t free = 0, total = 0;
    if (!atomic_load_explicit(&d->lost, memory_order_acquire) && lt__cuda_enter(d, NULL) == LT_OK) {
        (void)d->cu.memory_info(&free, &total);
        lt__cuda_leave(d);
    }
    if (d->managed)
        free -= lt__min_u64(free, LT_CUDA_MANAGED_MARGIN);
    return lt__round_down(free, LT_CUDA_GRANULE);
}

static void cuda_get_info(const lt_device *dev, lt_device_info *out)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "cuda: %.40s, sm_%d%d, CUDA %d.%d%s", d->name, d->props.major, d->props.minor,
             d->cu.version / 1000, d->cu.version % 1000 / 10, d->managed ? ", managed memory" : d->vmm ? "" : ", plain memory");
    snprintf(out->kind, sizeof out->kind, "cuda");
    snprintf(out->id, sizeof out->id, "%s", d->id);
    snprintf(out->memory_mode, sizeof out->memory_mode, d->managed ? "managed" : "device");
    out->total_bytes = d->total_bytes;
    out->free_bytes = cuda_free_bytes(dev);
    out->fixed_bytes = atomic_load_explicit(&d->fixed_bytes, memory_order_relaxed);
    out->commit_bytes = LT_CUDA_GRANULE;
    out->align_bytes = 256;
    out->maps_host = d->maps_host && d->cu.host_pointer;
    snprintf(out->isa, sizeof out->isa, "sm_%d%d", d->props.major, d->props.minor);
}

/* Only a trace of events could say how long the engines worked: those stay 0. */
static void cuda_get_stats(const lt_device *dev, lt_device_stats *out)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    memset(out, 0, sizeof *out);
    out->committed_bytes = atomic_load(&d->memory.held);
    out->peak_committed_bytes = atomic_load(&d->memory.peak);
    out->host_bytes = atomic_load(&d->memory.hosted);
    out->peak_host_bytes = atomic_load(&d->memory.hosted_peak);
    out->copies = atomic_load(&d->copies);
    out->h2d_bytes = atomic_load(&d->h2d_bytes);
    out->d2h_bytes = atomic_load(&d->d2h_bytes);
    out->d2d_bytes = atomic_load(&d->d2d_bytes);
    out->launches = atomic_load(&d->launches);
    out->graphs = atomic_load(&d->graph_runs);
    out->now_ns = lt__now_ns() - d->opened_ns;
}

static bool cuda_identify(lt_ctx *ctx, const char *opts, char *id, size_t bytes)
{
    cuda_options o = {.vmm = true, .kernels = true};
    bool found = false;
    lt_cuda_device *d = lt__zalloc(ctx, sizeof *d);
    if (!d)
        return false;
    d->base.ctx = ctx;
    if (lt__spec_parse(opts, cuda_option, &o, NULL) == LT_OK && lt__cu_open(&d->cu, *o.driver ? o.driver : NULL, NULL) == LT_OK) {
        found = find_device(d, o.ordinal, NULL) == LT_OK;
        if (found) {
            find_id(d);
            snprintf(id, bytes, "%s", d->id);
        }
        lt__cu_close(&d->cu);
    }
    lt__free(ctx, d, sizeof *d);
    return found;
}

static const lt_device_vt cuda_vt = {
    .close = cuda_close,
    .get_info = cuda_get_info,
    .get_stats = cuda_get_stats,
    .free_bytes = cuda_free_bytes,
    .reserve = lt__cuda_reserve,
    .unreserve = lt__cuda_unreserve,
    .commit = lt__cuda_commit,
    .decommit = lt__cuda_decommit,
    .keep = lt__cuda_keep,
    .pin = lt__cuda_pin,
    .unpin = lt__cuda_unpin,
    .map_host = lt__cuda_map_host,
    .queue_create = lt__cuda_queue_create,
    .queue_destroy = lt__cuda_queue_destroy,
    .queue_sync = lt__cuda_queue_sync,
    .copy_in = lt__cuda_copy_in,
    .copy_out = lt__cuda_copy_out,
    .copy = lt__cuda_copy,
    .fill = lt__cuda_fill,
    .call = lt__cuda_call_host,
    .launch = lt__cuda_queue_launch,
    .wait = lt__cuda_wait,
    .event_create = lt__cuda_event_create,
    .event_destroy = lt__cuda_event_destroy,
    .event_record = lt__cuda_event_record,
    .event_done = lt__cuda_event_done,
    .event_sync = lt__cuda_event_sync,
    .event_time_ns = lt__cuda_event_time_ns,
    .supports = lt__cuda_supports,
    .scratch_bytes = lt__cuda_scratch_bytes,
    .prepare = lt__cuda_prepare,
    .list_compile = lt__cuda_list_compile,
    .list_run = lt__cuda_list_run,
    .list_free = lt__cuda_list_free,
};

const lt_backend lt__backend_cuda = {
    .name = "cuda",
    .help = "cuda[:device=N,managed=1,sync-check=1,vmm=0,graphs=0,fuse=0,recycle=SIZE,...]  an NVIDIA card",
    .open = cuda_open,
    .identify = cuda_identify,
    .probe = lt__cuda_probe,
};
