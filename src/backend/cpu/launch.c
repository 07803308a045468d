/* A launch on the queue's thread: addresses, scratch, the row. */
#include "backend/cpu/hostdev.h"

#include <inttypes.h>

#define SCRATCH_ALIGN 64

bool lt__view_extent(const lt_view *v, uint64_t *out)
{
    if (v->ndim < 1 || v->ndim > LT_MAX_DIMS)
        return false;
    int64_t last = v->dim[v->ndim - 1];
    uint64_t bytes, more;
    if (last < 0 || !lt_dtype_row_bytes(v->dtype, (uint64_t)last, &bytes))
        return false;
    bool empty = last == 0;
    for (uint32_t i = 0; i + 1 < v->ndim; i++) {
        if (v->dim[i] < 0 || v->stride[i] < 0)
            return false;
        if (v->dim[i] == 0)
            empty = true;
        else if (!lt__mul_u64((uint64_t)v->dim[i] - 1, (uint64_t)v->stride[i], &more) || !lt__add_u64(bytes, more, &bytes))
            return false;
    }
    *out = empty ? 0 : bytes;
    return true;
}

lt_status lt__hostdev_resolve(lt_hostdev *d, const char *what, lt_addr a, uint64_t bytes, void **out, lt_err *err)
{
    uint8_t *p = (uint8_t *)(uintptr_t)(a - d->bias);
    if (d->apart && (a < d->bias || !lt__hostmem_holds(&d->mem, p, bytes)))
        return lt__fail(err, LT_E_INVALID,
                        "%s: [0x%" PRIx64 ", +%" PRIu64 ") is not, or not wholly, committed memory of the device", what, a,
                        bytes);
    *out = p;
    return LT_OK;
}

static bool resolve_mapped(lt_hostdev *d, lt_addr a, uint64_t bytes, void **out)
{
    *out = (void *)(uintptr_t)(a - d->map_bias);
    return d->maps && a >= d->map_bias && d->maps(d, *out, bytes);
}

uint64_t lt__hostdev_weight_bytes(const lt_op_args *args)
{
    enum { MOST = 4096 };
    const lt_view *w = &args->src[1], *ids = &args->src[2];
    bool used[MOST] = {false};
    uint64_t bytes = 0, n = 0;
    (void)lt__view_extent(w, &bytes);
    if (args->op != LT_OP_EXPERT_LINEAR || w->dim[0] > MOST)
        return bytes;
    for (int64_t t = 0; t < ids->dim[0]; t++)
        for (int64_t k = 0; k < ids->dim[1]; k++) {
            int64_t e = ((const int32_t *)(uintptr_t)(ids->addr + (uint64_t)(t * ids->stride[0])))[k] - (int64_t)args->params.EXPERT_LINEAR.first;
            if (e >= 0 && e < w->dim[0] && !used[e])
                used[e] = true, n++;
        }
    return n * (bytes / (uint64_t)w->dim[0]);
}

static lt_status resolve_views(lt_hostdev *d, lt_op_args *args, const char *name, uint64_t *mapped, lt_err *err)
{
    bool weight = false; /* of a product, in place */
    for (uint32_t i = 0; i <= args->n_src; i++) {
        lt_view *v = i < args->n_src ? &args->src[i] : &args->dst;
        uint64_t bytes;
        void *p = NULL;
        if (!lt__view_extent(v, &bytes))
            return lt__fail(err, LT_E_INVALID, "%s: operand %" PRIu32 " has no valid extent", name, i);
        if (i < args->n_src && resolve_mapped(d, v->addr, bytes, &p)) {
            weight |= i == 1 && lt_op_cuts(args->op);
            *mapped += weight && i == 1 ? 0 : bytes;
        } else {
            lt_status s = lt__hostdev_resolve(d, name, v->addr, bytes, &p, err);
            if (s != LT_OK)
                return s;
        }
        v->addr = (lt_addr)(uintptr_t)p;
    }
    if (weight) /* now that ids can be read */
        *mapped += lt__hostdev_weight_bytes(args);
    if (args->scratch) {
        void *p = NULL;
        lt_status s = lt__hostdev_resolve(d, name, args->scratch, 1, &p, err);
        if (s != LT_OK)
            return s;
        args->scratch = (lt_addr)(uintptr_t)p;
    }
    return LT_OK;
}

/* Under team_lock. Old content is not wanted, so the old block goes first. */
static lt_status grow_scratch(lt_hostdev *d, size_t bytes, const char *name, lt_err *err)
{
    if (bytes <= d->scratch_bytes)
        return LT_OK;
    lt_ctx *ctx = d->base.ctx;
    if (d->scratch)
        lt__free(ctx, d->scratch, d->scratch_bytes + SCRATCH_ALIGN);
    d->scratch_bytes = 0;
    d->scratch = lt__alloc(ctx, bytes + SCRATCH_ALIGN);
    if (!d->scratch)
        return lt__fail(err, LT_E_HOST_OOM, "%s: no host memory for %zu bytes of scratch", name, bytes);
    d->scratch_bytes = bytes;
    return LT_OK;
}

lt_status lt__hostdev_launch(lt_hostdev *d, const lt_cpu_row *row, lt_op_args *args, uint64_t *mapped, lt_err *err)
{
    const char *name = args->name ? args->name : lt_op_get(args->op)->name;
    *mapped = 0;
    lt_status s = d->apart ? resolve_views(d, args, name, mapped, err) : LT_OK;
    if (s != LT_OK)
        return s;
    pthread_mutex_lock(&d->team_lock);
    size_t scratch = row->scratch ? row->scratch(args, d->threads) : 0;
    s = grow_scratch(d, scratch, name, err);
    if (s == LT_OK) {
        void *aligned = scratch ? (void *)lt__round_up((uintptr_t)d->scratch, SCRATCH_ALIGN) : NULL;
        lt_err inner = {0};
        s = row->run(args, d->team, aligned, scratch, &inner);
        if (s != LT_OK)
            lt__fail_native(err, s, inner.native, "%s: %s: %s", name, lt_op_get(args->op)->name,
                            inner.status == s ? inner.text : lt_status_text(s));
    }
    pthread_mutex_unlock(&d->team_lock);
    return s;
}

lt_status lt__hostdev_start_team(lt_hostdev *d, lt_err *err)
{
    pthread_mutex_lock(&d->team_lock);
    lt_status s = d->team ? LT_OK : lt__team_create(d->base.ctx, d->threads, &d->team, err);
    pthread_mutex_unlock(&d->team_lock);
    return s;
}
