#include "backend/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CU_LIBRARY "libcuda.so.1"
#define NVML_LIBRARY "libnvidia-ml.so.1"

typedef struct symbol {
    const char *name;
    size_t      at; /* of the pointer in the table */
    int         required;
} symbol;

static const symbol cu_symbols[] = {
#define X(member, name, required, parameters) {name, offsetof(lt_cu, member), required},
    LT_CU_FUNCTIONS(X)
#undef X
};
static const symbol nvml_symbols[] = {
#define X(member, name, required, parameters) {name, offsetof(lt_nvml, member), required},
    LT_NVML_FUNCTIONS(X)
#undef X
};

/* Returns the first required name that is missing. POSIX lets dlsym's result be a function. */
static const char *load_symbols(void *library, void *table, const symbol *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        void *p = dlsym(library, list[i].name);
        if (!p && list[i].required)
            return list[i].name;
        memcpy((char *)table + list[i].at, &p, sizeof p);
    }
    return NULL;
}

bool lt__cu_fatal(lt_curesult r)
{
    static const lt_curesult list[] = {LT_CU_DEINITIALIZED, LT_CU_ECC_UNCORRECTABLE, LT_CU_ILLEGAL_ADDRESS,
                                       LT_CU_LAUNCH_TIMEOUT, LT_CU_CONTEXT_IS_DESTROYED, LT_CU_ASSERT};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (r == list[i])
            return true;
    return r >= LT_CU_HARDWARE_STACK_ERROR && r <= LT_CU_LAUNCH_FAILED;
}

static lt_status status_of(lt_curesult r)
{
    switch (r) {
    case LT_CU_OUT_OF_MEMORY:
        return LT_E_DEVICE_OOM;
    case LT_CU_NO_DEVICE:
    case LT_CU_STUB_LIBRARY:
    case LT_CU_NO_BINARY_FOR_GPU:
    case LT_CU_NOT_FOUND:
    case LT_CU_LAUNCH_OUT_OF_RESOURCES:
    case LT_CU_UNSUPPORTED_PTX_VERSION:
    case LT_CU_NOT_SUPPORTED:
    case LT_CU_NOT_PERMITTED:
    case LT_CU_SYSTEM_DRIVER_MISMATCH:
        return LT_E_UNSUPPORTED;
    case LT_CU_INVALID_VALUE:
    case LT_CU_INVALID_DEVICE:
        return LT_E_INVALID;
    default:
        return LT_E_DEVICE_LOST;
    }
}

lt_status lt__cu_fail(const lt_cu *cu, lt_err *err, lt_curesult r, const char *fmt, ...)
{
    char text[sizeof err->text];
    const char *name = NULL, *meaning = NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (cu->error_name)
        (void)cu->error_name(r, &name);
    if (cu->error_string)
        (void)cu->error_string(r, &meaning);
    return lt__fail_native(err, status_of(r), r, "%s: %s (%s)", text, name ? name : "unnamed CUDA error",
                           meaning ? meaning : "the driver has no words for it");
}

static bool vmm_complete(const lt_cu *cu)
{
    return cu->mem_granularity && cu->mem_reserve && cu->mem_unreserve && cu->mem_create && cu->mem_release &&
           cu->mem_map && cu->mem_unmap && cu->mem_access;
}

/* Either version of the two that have two. */
static bool managed_complete(const lt_cu *cu)
{
    return cu->mem_managed && (cu->mem_advise || cu->mem_advise_v1) && (cu->mem_prefetch || cu->mem_prefetch_v1);
}

static bool graphs_complete(const lt_cu *cu)
{
    return cu->capture_begin && cu->capture_end && cu->graph_instantiate && cu->graph_upload && cu->graph_launch &&
           cu->graph_exec_destroy && cu->graph_destroy;
}

lt_status lt__cu_open(lt_cu *cu, const char *path, lt_err *err)
{
    memset(cu, 0, sizeof *cu);
    path = path ? path : CU_LIBRARY;
    /* Its threads outlive contexts: the code stays mapped once it was. */
    cu->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!cu->library)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: no NVIDIA driver on this machine: %s", dlerror());
    lt_status s;
    const char *missing = load_symbols(cu->library, cu, cu_symbols, sizeof cu_symbols / sizeof *cu_symbols);
    if (cu->driver_version && cu->driver_version(&cu->version) != LT_CU_OK)
        cu->version = 0;
    if (missing) {
        s = lt__fail(err, LT_E_UNSUPPORTED, "cuda: the driver is too old: %s, which speaks CUDA %d.%d, has no %s", path,
                     cu->version / 1000, cu->version % 1000 / 10, missing);
        goto fail;
    }
    lt_curesult r = cu->init(0);
    if (r != LT_CU_OK) {
        (void)lt__cu_fail(cu, err, r, "cuda: the driver finds no usable device (cuInit)");
        s = LT_E_UNSUPPORTED; /* whatever the reason, here is no device to use */
        if (err)
            err->status = s;
        goto fail;
    }
    cu->has_vmm = vmm_complete(cu);
    cu->has_managed = managed_complete(cu);
    cu->has_graphs = graphs_complete(cu);
    return LT_OK;
fail:
    lt__cu_close(cu);
    return s;
}

void lt__cu_close(lt_cu *cu)
{
    if (cu->library)
        dlclose(cu->library);
    memset(cu, 0, sizeof *cu);
}

bool lt__nvml_open(lt_nvml *n, const char *path, const char *pci, char *why, size_t why_bytes)
{
    memset(n, 0, sizeof *n);
    path = path ? path : NVML_LIBRARY;
    n->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!n->library) {
        snprintf(why, why_bytes, "%s", dlerror());
        return false;
    }
    const char *missing = load_symbols(n->library, n, nvml_symbols, sizeof nvml_symbols / sizeof *nvml_symbols);
    lt_nvmlreturn r = 0;
    bool ready = false;
    if (missing)
        snprintf(why, why_bytes, "%s has no %s", path, missing);
    else if ((r = n->init()) != 0)
        snprintf(why, why_bytes, "nvmlInit says %d", r);
    else if ((r = n->by_pci(pci, &n->device)) != 0)
        snprintf(why, why_bytes, "NVML knows no device at %s (%d)", pci, r), ready = true;
    else
        return true;
    if (ready)
        (void)n->shutdown();
    dlclose(n->library);
    memset(n, 0, sizeof *n);
    return false;
}

void lt__nvml_close(lt_nvml *n)
{
    if (!n->library)
        return;
    (void)n->shutdown();
    dlclose(n->library);
    memset(n, 0, sizeof *n);
}

bool lt__nvml_used(const lt_nvml *n, uint64_t *out)
{
    lt_nvmlmemory m = {0};
    if (!n->library || n->memory(n->device, &m) != 0)
        return false;
    *out = m.used;
    return true;
}

bool lt__nvml_process_used(const lt_nvml *n, uint64_t *out)
{
    /* In a container the process may be listed by another number, or not at all. */
    lt_nvmlprocess list[256];
    unsigned count = sizeof list / sizeof *list;
    if (!n->library || !n->processes || n->processes(n->device, &count, list) != 0)
        return false;
    for (unsigned i = 0; i < count && i < sizeof list / sizeof *list; i++)
        if (list[i].pid == (unsigned)getpid() && list[i].used != UINT64_MAX) {
            *out = list[i].used;
            return true;
        }
    return false;
}
