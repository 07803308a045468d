/* wrong.c - what kernels found wrong in their data: a page, a position, a row that is not there.
 *
 * A kernel that sees one writes 16 bytes of host memory and leaves the bad element alone; the next sync of
 * any queue makes that its error. A trap instead would cost the context. */
#include <string.h>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/args.h"

#define PAGE 4096

lt_status lt__cuda_wrong_init(lt_cuda_device *d, lt_err *err)
{
    lt_cuda_wrong_page *w = &d->wrong;
    w->block = lt__zalloc(d->base.ctx, 2 * PAGE);
    if (!w->block)
        return lt__fail_oom(err, 2 * PAGE, "the page kernels report to");
    w->host = (lt_cuda_wrong *)(void *)(((uintptr_t)w->block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    lt_curesult r = d->cu.host_register(w->host, PAGE, LT_CU_HOST_REGISTER_PORTABLE | LT_CU_HOST_REGISTER_DEVICEMAP);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: the page kernels report to cannot be mapped");
    w->registered = true;
    w->device = (CUdeviceptr)(uintptr_t)w->host; /* so with unified addressing; asked where the driver can tell */
    if (d->cu.host_pointer && (r = d->cu.host_pointer(&w->device, w->host, 0)) != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: the page kernels report to has no device address");
    return LT_OK;
}

void lt__cuda_wrong_deinit(lt_cuda_device *d)
{
    if (d->wrong.registered)
        (void)d->cu.host_unregister(d->wrong.host);
    lt__free(d->base.ctx, d->wrong.block, 2 * PAGE);
    memset(&d->wrong, 0, sizeof d->wrong);
}

uint64_t lt__cuda_wrong(const lt_cuda_device *d) { return d->wrong.device; }

lt_status lt__cuda_wrong_check(lt_cuda_device *d, lt_err *err)
{
    volatile lt_cuda_wrong *w = d->wrong.host;
    if (!w || !w->name)
        return LT_OK;
    const char *name = (const char *)(uintptr_t)w->name;
    int32_t kind = w->kind, value = w->value;
    w->name = 0;
    switch (kind) {
    case LT_CUDA_WRONG_POSITION: return lt__fail(err, LT_E_INVALID, "%s: position %d, expected 0 or more", name, value);
    case LT_CUDA_WRONG_SPAN: return lt__fail(err, LT_E_INVALID, "%s: a position reads %d pages back, more than its table has", name, value);
    case LT_CUDA_WRONG_PAGE: return lt__fail(err, LT_E_INVALID, "%s: page %d is not in the cache", name, value);
    case LT_CUDA_WRONG_EXPERT: return lt__fail(err, LT_E_INVALID, "%s: expert %d is not one of the router's", name, value);
    default: return lt__fail(err, LT_E_INVALID, "%s: row index %d is out of range", name, value);
    }
}
