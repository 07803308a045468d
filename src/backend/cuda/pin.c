/* Page-locking host memory.
 *
 * A private mapping of a file is never registered: without the read-only flag the driver refuses,
 * and with it a driver was seen to hang. A shared mapping without write access needs the flag. */
#include "backend/cuda/device.h"
#include "base/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { KIND_PLAIN, KIND_READ_ONLY_FILE, KIND_PRIVATE_FILE, KIND_MIXED, KIND_UNKNOWN } kind;

/* What the system mapped at [at, end). Anonymous memory has inode 0. */
static kind kind_of(uintptr_t at, uintptr_t end)
{
    FILE *f = fopen("/proc/self/maps", "re");
    if (!f)
        return KIND_UNKNOWN;
    char *line = NULL;
    size_t cap = 0;
    bool seen[KIND_MIXED] = {false};
    uintptr_t covered = at;
    while (covered < end && getline(&line, &cap, f) > 0) {
        unsigned long from, to, inode;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s %*x %*x:%*x %lu", &from, &to, mode, &inode) != 4 || to <= covered)
            continue;
        if (from > covered)
            break; /* a hole */
        if (inode && mode[3] == 'p')
            seen[KIND_PRIVATE_FILE] = true;
        else
            seen[mode[1] == 'w' ? KIND_PLAIN : inode ? KIND_READ_ONLY_FILE : KIND_PRIVATE_FILE] = true;
        covered = to;
    }
    free(line);
    fclose(f);
    if (covered < end)
        return KIND_UNKNOWN;
    if (seen[KIND_PRIVATE_FILE])
        return KIND_PRIVATE_FILE;
    if (seen[KIND_PLAIN] && seen[KIND_READ_ONLY_FILE])
        return KIND_MIXED;
    return seen[KIND_PLAIN] ? KIND_PLAIN : KIND_READ_ONLY_FILE;
}

static lt_status flags_for(const lt_cuda_device *d, const void *ptr, size_t bytes, unsigned *flags, lt_err *err)
{
    *flags = 0;
    switch (kind_of((uintptr_t)ptr, (uintptr_t)ptr + bytes)) {
    case KIND_PLAIN:
        return LT_OK;
    case KIND_READ_ONLY_FILE:
        *flags = LT_CU_HOST_REGISTER_READ_ONLY;
        return d->read_only_register
                   ? LT_OK
                   : lt__fail(err, LT_E_UNSUPPORTED, "cuda: this device cannot register %zu bytes of a read-only file mapping",
                              bytes);
    case KIND_PRIVATE_FILE:
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "cuda: %zu bytes lie in a private mapping of a file, or in memory without write access; only "
                        "shared mappings and writable memory can be registered",
                        bytes);
    case KIND_MIXED:
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: %zu bytes lie partly in a read-only file mapping, partly not", bytes);
    default:
        return lt__fail(err, LT_E_INVALID, "cuda: %zu bytes to register are not all mapped", bytes);
    }
}

lt_status lt__cuda_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    unsigned flags = 0;
    if (bytes > UINTPTR_MAX - (uintptr_t)ptr)
        return lt__fail(err, LT_E_INVALID, "cuda: %zu bytes to register are no range of memory", bytes);
    lt_status s = flags_for(d, ptr, bytes, &flags, err);
    if (s != LT_OK)
        return s;
    lt_cuda_pin *p = lt__zalloc(dev->ctx, sizeof *p);
    if (!p)
        return lt__fail_oom(err, sizeof *p, "a pinned range");
    *p = (lt_cuda_pin){.at = (uintptr_t)ptr, .bytes = bytes};
    s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        goto fail;
    lt_curesult r =
        lt__cuda_fault(d, LT_CUDA_FAULT_register) ? LT_CU_OUT_OF_MEMORY : d->cu.host_register(ptr, bytes, flags);
    lt__cuda_leave(d);
    if (r != LT_CU_OK) {
        lt__host_limits l;
        lt__host_limits_get(&l);
        s = lt__cuda_fail(d, err, r, "cuda: the system refuses to pin %zu bytes (RLIMIT_MEMLOCK is %" PRIu64 ")", bytes,
                          l.memlock_bytes);
        if (!lt__cu_fatal(r)) /* an ordinary answer */
            s = r == LT_CU_OUT_OF_MEMORY ? LT_E_HOST_OOM : LT_E_UNSUPPORTED;
        if (err)
            err->status = s;
        goto fail;
    }
    pthread_rwlock_wrlock(&m->pin_lock);
    p->next = m->pins;
    m->pins = p;
    pthread_rwlock_unlock(&m->pin_lock);
    return LT_OK;
fail:
    lt__free(dev->ctx, p, sizeof *p);
    return s;
}

void lt__cuda_unpin(lt_device *dev, void *ptr, size_t bytes)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    pthread_rwlock_wrlock(&m->pin_lock);
    lt_cuda_pin **at = &m->pins;
    while (*at && ((*at)->at != (uintptr_t)ptr || (*at)->bytes != bytes))
        at = &(*at)->next;
    lt_cuda_pin *p = *at;
    if (p)
        *at = p->next;
    pthread_rwlock_unlock(&m->pin_lock);
    if (!p) {
        lt__log(dev->ctx, LT_LOG_ERROR, "cuda", "unpin of %zu bytes that were not pinned so; ignored", bytes);
        return;
    }
    lt__free(dev->ctx, p, sizeof *p);
    bool entered = lt__cuda_enter(d, NULL) == LT_OK;
    lt_curesult r = d->cu.host_unregister(ptr);
    if (entered)
        lt__cuda_leave(d);
    lt_err err = {0};
    if (r != LT_CU_OK) {
        (void)lt__cuda_fail(d, &err, r, "cuda: unpinning %zu bytes", bytes);
        lt__log(dev->ctx, LT_LOG_ERROR, "cuda", "%s", err.text);
    }
}

/* Registered side by side, the parts must also lie side by side for the device, as they do with unified addressing. */
lt_status lt__cuda_map_host(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    lt_cuda_memory *m = &d->memory;
    uintptr_t first = (uintptr_t)ptr, end = first + bytes, at = first;
    if (!d->maps_host || !d->cu.host_pointer)
        return lt__fail(err, LT_E_UNSUPPORTED, "cuda: %s", d->maps_host ? "the driver has no cuMemHostGetDevicePointer"
                                                                        : "the device does not read host memory in place");
    lt_status s = lt__cuda_enter(d, err);
    if (s != LT_OK)
        return s;
    pthread_rwlock_rdlock(&m->pin_lock);
    while (at < end && s == LT_OK) {
        const lt_cuda_pin *p = m->pins;
        while (p && (at < p->at || at - p->at >= p->bytes))
            p = p->next;
        CUdeviceptr here = 0;
        lt_curesult r = p ? d->cu.host_pointer(&here, (void *)at, 0) : LT_CU_OK;
        if (!p)
            s = lt__fail(err, LT_E_INVALID, "cuda: of %zu bytes to read in place, those from byte %zu on are not pinned", bytes, (size_t)(at - first));
        else if (r != LT_CU_OK)
            s = lt__cuda_fail(d, err, r, "cuda: no device address for %zu bytes of pinned memory", bytes);
        else if (at != first && here - *out != at - first)
            s = lt__fail(err, LT_E_UNSUPPORTED, "cuda: %zu bytes of pinned memory have no one address on the device", bytes);
        else if (at == first)
            *out = here;
        at = p ? p->at + p->bytes : end;
    }
    pthread_rwlock_unlock(&m->pin_lock);
    lt__cuda_leave(d);
    return s;
}

bool lt__cuda_pinned(lt_cuda_device *d, const void *ptr, uint64_t bytes)
{
    lt_cuda_memory *m = &d->memory;
    bool found = false;
    pthread_rwlock_rdlock(&m->pin_lock);
    for (const lt_cuda_pin *p = m->pins; p && !found; p = p->next)
        found = (uintptr_t)ptr >= p->at && bytes <= p->bytes && (uintptr_t)ptr - p->at <= p->bytes - bytes;
    pthread_rwlock_unlock(&m->pin_lock);
    return found;
}
