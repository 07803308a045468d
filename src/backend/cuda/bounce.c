/* Copies of pageable memory that stand behind a host call: through a few pinned blocks, filled and
 * emptied by host calls in the queue's order, so that the caller is not held up. */
#include "backend/cuda/device.h"

#include <string.h>
#include <time.h>

#define BOUNCE_BYTES (LT_CUDA_BOUNCE * LT_CUDA_BOUNCES)
#define PAGE 4096

static uint8_t *bounce_at(lt_cuda_device *d, uint32_t i) { return d->bounce.memory + i * LT_CUDA_BOUNCE; }

/* Made before the first host call: pinning may wait for work in flight, and so for that call. That the
 * system refuses to pin is kept, and told to a copy that has no other way. */
lt_status lt__cuda_bounce_ready(lt_cuda_device *d, lt_err *err)
{
    lt_cuda_bounce *b = &d->bounce;
    lt_status s = LT_OK;
    pthread_mutex_lock(&b->lock);
    if (b->ready || b->refused.status != LT_OK)
        goto out;
    b->block = lt__alloc(d->base.ctx, BOUNCE_BYTES + PAGE);
    if (!b->block) {
        s = lt__fail_oom(err, BOUNCE_BYTES + PAGE, "copies behind host calls");
        goto out;
    }
    b->memory = (uint8_t *)lt__round_up((uintptr_t)b->block, PAGE);
    lt_err why = {0};
    if (lt__cuda_pin(&d->base, b->memory, BOUNCE_BYTES, &why) == LT_OK) {
        b->free = (1u << LT_CUDA_BOUNCES) - 1;
        b->ready = true;
    } else {
        b->refused = why;
        lt__free(d->base.ctx, b->block, BOUNCE_BYTES + PAGE);
        b->block = b->memory = NULL;
    }
out:
    pthread_mutex_unlock(&b->lock);
    return s;
}

static lt_status take_bounce(lt_cuda_device *d, uint32_t *out, lt_err *err)
{
    lt_cuda_bounce *b = &d->bounce;
    lt_status s = LT_OK;
    pthread_mutex_lock(&b->lock);
    if (!b->ready)
        s = lt__fail_native(err, b->refused.status, b->refused.native, "cuda: a copy of pageable memory behind a host call: %.400s",
                            b->refused.text);
    while (s == LT_OK && !b->free) {
        struct timespec t;
        if (atomic_load_explicit(&d->lost, memory_order_acquire)) {
            if (err)
                *err = d->lost_err;
            s = d->lost_err.status;
            break;
        }
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += 1; /* to look at `lost` again */
        pthread_cond_timedwait(&b->freed, &b->lock, &t);
    }
    if (s == LT_OK) {
        *out = (uint32_t)__builtin_ctz(b->free);
        b->free &= ~(1u << *out);
    }
    pthread_mutex_unlock(&b->lock);
    return s;
}

static void give_bounce(lt_cuda_device *d, uint32_t i)
{
    lt_cuda_bounce *b = &d->bounce;
    pthread_mutex_lock(&b->lock);
    b->free |= 1u << i;
    pthread_cond_signal(&b->freed);
    pthread_mutex_unlock(&b->lock);
}

static lt_status fill_bounce(void *user, bool failed, lt_err *err)
{
    (void)err;
    lt_cuda_call *c = user;
    if (!failed)
        memcpy(bounce_at(lt__cuda_of(c->queue->base.dev), c->bounce), c->host, c->bytes);
    return LT_OK;
}

static lt_status empty_bounce(void *user, bool failed, lt_err *err)
{
    (void)err;
    lt_cuda_call *c = user;
    lt_cuda_device *d = lt__cuda_of(c->queue->base.dev);
    if (!failed && c->host)
        memcpy(c->host, bounce_at(d, c->bounce), c->bytes);
    give_bounce(d, c->bounce);
    return LT_OK;
}

static lt_status give_dma(lt_cuda_queue *q, lt_addr device, uint32_t bounce, uint64_t bytes, bool in, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(q->base.dev);
    const char *name = in ? "copy_in" : "copy_out";
    lt_status s = lt__cuda_begin(q, name, err);
    if (s != LT_OK)
        return s;
    lt_curesult r = LT_CU_LAUNCH_FAILED;
    if (!lt__cuda_fault(d, LT_CUDA_FAULT_copy))
        r = in ? d->cu.copy_in(device, bounce_at(d, bounce), bytes, q->stream)
               : d->cu.copy_out(bounce_at(d, bounce), device, bytes, q->stream);
    return lt__cuda_end(q, r, name, err);
}

/* A block whose chain of work broke stays taken: the part that was given may still use it. */
static lt_status one_block(lt_cuda_queue *q, lt_addr device, uint8_t *host, uint64_t bytes, bool in, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(q->base.dev);
    lt_cuda_call *before = NULL, *behind = NULL;
    uint32_t bounce = 0;
    lt_status s = take_bounce(d, &bounce, err);
    if (s != LT_OK)
        return s;
    s = lt__cuda_take_call(q, &behind, err);
    if (s == LT_OK && in)
        s = lt__cuda_take_call(q, &before, err);
    if (s != LT_OK) {
        if (behind) { /* spare again by way of a call that has nothing to do */
            behind->inner = NULL;
            lt_cuda_call *top = atomic_load(&q->spare);
            do
                behind->next_spare = top;
            while (!atomic_compare_exchange_weak(&q->spare, &top, behind));
        }
        give_bounce(d, bounce);
        return s;
    }
    behind->inner = empty_bounce;
    behind->host = in ? NULL : host;
    behind->bytes = bytes;
    behind->bounce = bounce;
    if (in) {
        before->inner = fill_bounce;
        before->host = host;
        before->bytes = bytes;
        before->bounce = bounce;
        s = lt__cuda_give_call(q, before, "copy_in", err);
    }
    if (s == LT_OK)
        s = give_dma(q, device, bounce, bytes, in, err);
    return s == LT_OK ? lt__cuda_give_call(q, behind, in ? "copy_in" : "copy_out", err) : s;
}

lt_status lt__cuda_bounce_copy(lt_cuda_queue *q, lt_addr device, void *host, uint64_t bytes, bool in, lt_err *err)
{
    lt_status s = LT_OK;
    for (uint64_t at = 0; s == LT_OK && at < bytes; at += LT_CUDA_BOUNCE)
        s = one_block(q, device + at, (uint8_t *)host + at, lt__min_u64(bytes - at, LT_CUDA_BOUNCE), in, err);
    return s;
}

void lt__cuda_bounce_deinit(lt_cuda_device *d)
{
    lt_cuda_bounce *b = &d->bounce;
    if (b->ready) {
        lt__cuda_unpin(&d->base, b->memory, BOUNCE_BYTES);
        lt__free(d->base.ctx, b->block, BOUNCE_BYTES + PAGE);
    }
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->freed);
}
