/* The public calls: arguments checked, faults injected, then the backend's row. */
#include "backend/backend.h"

#include "base/mem.h"

#include <inttypes.h>

void lt_device_close(lt_device *dev)
{
    if (dev)
        dev->vt->close(dev);
}

void lt_device_get_info(const lt_device *dev, lt_device_info *out)
{
    dev->vt->get_info(dev, out);
}

void lt_device_get_stats(const lt_device *dev, lt_device_stats *out)
{
    dev->vt->get_stats(dev, out);
}

uint64_t lt_device_free_bytes(const lt_device *dev)
{
    return dev->vt->free_bytes(dev);
}

static lt_status null_argument(lt_err *err, const char *call)
{
    return lt__fail(err, LT_E_INVALID, "%s: an argument that must not be NULL is", call);
}

static lt_status check_span(const char *call, lt_addr base, uint64_t bytes, lt_err *err)
{
    uint64_t end;
    if (!base || !lt__add_u64(base, bytes, &end))
        return lt__fail(err, LT_E_INVALID, "%s: [0x%" PRIx64 ", +%" PRIu64 ") is no range of addresses", call, base, bytes);
    return LT_OK;
}

lt_status lt_device_reserve(lt_device *dev, uint64_t bytes, lt_addr *out, lt_err *err)
{
    if (!dev || !out)
        return null_argument(err, "lt_device_reserve");
    if (!bytes)
        return lt__fail(err, LT_E_INVALID, "lt_device_reserve: 0 bytes; expected at least 1");
    return dev->vt->reserve(dev, bytes, out, err);
}

void lt_device_unreserve(lt_device *dev, lt_addr base, uint64_t bytes)
{
    if (base)
        dev->vt->unreserve(dev, base, bytes);
}

lt_status lt_device_commit(lt_device *dev, lt_addr base, uint64_t bytes, lt_err *err)
{
    if (!dev)
        return null_argument(err, "lt_device_commit");
    if (!bytes)
        return lt__fail(err, LT_E_INVALID, "lt_device_commit: 0 bytes; expected a multiple of commit_bytes");
    lt_status s = check_span("lt_device_commit", base, bytes, err);
    if (s != LT_OK)
        return s;
    if (lt__fault(dev->ctx, LT_FAULT_COMMIT))
        return lt__fail(err, LT_E_DEVICE_OOM, "commit of %" PRIu64 " bytes failed: fault injected", bytes);
    return dev->vt->commit(dev, base, bytes, err);
}

void lt_device_decommit(lt_device *dev, lt_addr base, uint64_t bytes)
{
    if (base && bytes)
        dev->vt->decommit(dev, base, bytes);
}

void lt_device_keep(lt_device *dev, uint64_t bytes)
{
    if (dev->vt->keep)
        dev->vt->keep(dev, bytes);
}

lt_status lt_device_pin(lt_device *dev, void *ptr, size_t bytes, lt_err *err)
{
    if (!dev || !ptr)
        return null_argument(err, "lt_device_pin");
    if (!bytes)
        return lt__fail(err, LT_E_INVALID, "lt_device_pin: 0 bytes; expected at least 1");
    if (lt__fault(dev->ctx, LT_FAULT_PIN))
        return lt__fail(err, LT_E_HOST_OOM, "pinning %zu bytes failed: fault injected", bytes);
    return dev->vt->pin(dev, ptr, bytes, err);
}

void lt_device_unpin(lt_device *dev, void *ptr, size_t bytes)
{
    if (ptr && bytes)
        dev->vt->unpin(dev, ptr, bytes);
}

lt_status lt_device_map_host(lt_device *dev, const void *ptr, size_t bytes, lt_addr *out, lt_err *err)
{
    if (!dev || !ptr || !out)
        return null_argument(err, "lt_device_map_host");
    if (!bytes || bytes > UINTPTR_MAX - (uintptr_t)ptr)
        return lt__fail(err, LT_E_INVALID, "lt_device_map_host: %zu bytes are no range of memory", bytes);
    if (!dev->vt->map_host)
        return lt__fail(err, LT_E_UNSUPPORTED, "this device does not read host memory in place");
    return dev->vt->map_host(dev, ptr, bytes, out, err);
}

/* --- queues ------------------------------------------------------------------------- */

lt_status lt_queue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err)
{
    if (!dev || !out)
        return null_argument(err, "lt_queue_create");
    if ((unsigned)kind >= LT_QUEUE_KIND_COUNT)
        return lt__fail(err, LT_E_INVALID, "lt_queue_create: kind %d; expected LT_QUEUE_COMPUTE or LT_QUEUE_COPY", (int)kind);
    return dev->vt->queue_create(dev, kind, out, err);
}

void lt_queue_destroy(lt_queue *q)
{
    if (q)
        q->dev->vt->queue_destroy(q);
}

lt_status lt_queue_sync(lt_queue *q, lt_err *err)
{
    if (!q)
        return null_argument(err, "lt_queue_sync");
    return q->dev->vt->queue_sync(q, err);
}

/* An injected fault of queued work comes when its turn comes, as the world's would: in place of
 * the work a call is queued that fails. user is the static name of the work. */
static lt_status fail_injected(void *user, lt_err *err)
{
    return lt__fail(err, LT_E_DEVICE_LOST, "%s failed: fault injected", (const char *)user);
}

static lt_status give_fault(lt_queue *q, const char *what, lt_err *err)
{
    return q->dev->vt->call(q, fail_injected, (void *)what, err);
}

lt_status lt_queue_copy_in(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err)
{
    if (!q || (!src && bytes))
        return null_argument(err, "lt_queue_copy_in");
    lt_status s = check_span("lt_queue_copy_in", dst, bytes, err);
    if (s != LT_OK)
        return s;
    if (lt__fault(q->dev->ctx, LT_FAULT_COPY))
        return give_fault(q, "copy_in", err);
    return q->dev->vt->copy_in(q, dst, src, bytes, err);
}

lt_status lt_queue_copy_out(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    if (!q || (!dst && bytes))
        return null_argument(err, "lt_queue_copy_out");
    lt_status s = check_span("lt_queue_copy_out", src, bytes, err);
    if (s != LT_OK)
        return s;
    if (lt__fault(q->dev->ctx, LT_FAULT_COPY))
        return give_fault(q, "copy_out", err);
    return q->dev->vt->copy_out(q, dst, src, bytes, err);
}

lt_status lt_queue_copy(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    if (!q)
        return null_argument(err, "lt_queue_copy");
    lt_status s = check_span("lt_queue_copy", dst, bytes, err);
    if (s == LT_OK)
        s = check_span("lt_queue_copy", src, bytes, err);
    if (s != LT_OK)
        return s;
    if (dst < src + bytes && src < dst + bytes)
        return lt__fail(err, LT_E_INVALID, "lt_queue_copy: %" PRIu64 " bytes from 0x%" PRIx64 " to 0x%" PRIx64 " overlap",
                        bytes, src, dst);
    if (lt__fault(q->dev->ctx, LT_FAULT_COPY))
        return give_fault(q, "copy", err);
    return q->dev->vt->copy(q, dst, src, bytes, err);
}

lt_status lt_queue_fill(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err)
{
    if (!q)
        return null_argument(err, "lt_queue_fill");
    lt_status s = check_span("lt_queue_fill", dst, bytes, err);
    return s == LT_OK ? q->dev->vt->fill(q, dst, value, bytes, err) : s;
}

lt_status lt_queue_call(lt_queue *q, lt_host_fn *fn, void *user, lt_err *err)
{
    if (!q || !fn)
        return null_argument(err, "lt_queue_call");
    return q->dev->vt->call(q, fn, user, err);
}

lt_status lt__queue_launch(lt_queue *q, const lt_op_args *args, lt_err *err)
{
    if (!q || !args)
        return null_argument(err, "lt__queue_launch");
    if (q->kind != LT_QUEUE_COMPUTE)
        return lt__fail(err, LT_E_INVALID, "%s: launched on a copy queue", args->name ? args->name : "op");
    lt_status s = lt_op_check(args, err);
    if (s != LT_OK)
        return s;
    if (lt__fault(q->dev->ctx, LT_FAULT_LAUNCH))
        return give_fault(q, args->name ? args->name : lt_op_get(args->op)->name, err);
    return q->dev->vt->launch(q, args, err);
}

bool lt__device_supports(const lt_device *dev, const lt_op_args *args, const char **why)
{
    return dev->vt->supports(dev, args, why);
}

uint64_t lt__device_scratch_bytes(const lt_device *dev, const lt_op_args *args)
{
    return dev->vt->scratch_bytes(dev, args);
}

lt_status lt__device_prepare(lt_device *dev, const lt_op_args *args, lt_err *err)
{
    return dev->vt->prepare ? dev->vt->prepare(dev, args, err) : LT_OK;
}

/* --- lists -------------------------------------------------------------------------- */

bool lt__device_has_lists(const lt_device *dev) { return dev->vt->list_run != NULL; }

static lt_status check_list(lt_launch_list *list, lt_err *err)
{
    for (size_t i = 0; i < list->n && !list->checked; i++) {
        lt_status s = lt_op_check(list->args[i], err);
        if (s != LT_OK)
            return s;
    }
    list->checked = true;
    return LT_OK;
}

lt_status lt__list_compile(lt_device *dev, lt_launch_list *list, lt_err *err)
{
    lt_status s = check_list(list, err);
    return s == LT_OK && dev->vt->list_compile ? dev->vt->list_compile(dev, list, err) : s;
}

/* Launch `fault` is to fail: those before were asked for already. */
static lt_status run_singly(lt_queue *q, const lt_launch_list *list, size_t fault, lt_err *err)
{
    for (size_t i = 0; i < list->n; i++) {
        const lt_op_args *a = list->args[i];
        lt_status s = i < fault    ? q->dev->vt->launch(q, a, err)
                      : i == fault ? give_fault(q, a->name ? a->name : lt_op_get(a->op)->name, err)
                                   : lt__queue_launch(q, a, err);
        if (s != LT_OK)
            return s;
    }
    return LT_OK;
}

lt_status lt__list_run(lt_queue *q, lt_launch_list *list, lt_err *err)
{
    if (!q || !list)
        return null_argument(err, "lt__list_run");
    if (q->kind != LT_QUEUE_COMPUTE)
        return lt__fail(err, LT_E_INVALID, "a list of %zu launches: given to a copy queue", list->n);
    lt_status s = check_list(list, err);
    if (s != LT_OK)
        return s;
    for (size_t i = 0; i < list->n; i++)
        if (lt__fault(q->dev->ctx, LT_FAULT_LAUNCH))
            return run_singly(q, list, i, err);
    return q->dev->vt->list_run ? q->dev->vt->list_run(q, list, err) : run_singly(q, list, SIZE_MAX, err);
}

void lt__list_free(lt_device *dev, lt_launch_list *list)
{
    if (dev->vt->list_free)
        dev->vt->list_free(dev, list);
    list->compiled = NULL;
    list->checked = false;
}

/* --- events ------------------------------------------------------------------------- */

lt_status lt_event_create(lt_device *dev, lt_event **out, lt_err *err)
{
    if (!dev || !out)
        return null_argument(err, "lt_event_create");
    return dev->vt->event_create(dev, out, err);
}

void lt_event_destroy(lt_event *ev)
{
    if (ev)
        ev->dev->vt->event_destroy(ev);
}

static lt_status check_pair(const char *call, const lt_event *ev, const lt_queue *q, lt_err *err)
{
    if (!ev || !q)
        return null_argument(err, call);
    if (ev->dev != q->dev)
        return lt__fail(err, LT_E_INVALID, "%s: the event and the queue are of different devices", call);
    return LT_OK;
}

lt_status lt_event_record(lt_event *ev, lt_queue *q, lt_err *err)
{
    lt_status s = check_pair("lt_event_record", ev, q, err);
    return s == LT_OK ? ev->dev->vt->event_record(ev, q, err) : s;
}

lt_status lt_queue_wait(lt_queue *q, lt_event *ev, lt_err *err)
{
    lt_status s = check_pair("lt_queue_wait", ev, q, err);
    return s == LT_OK ? q->dev->vt->wait(q, ev, err) : s;
}

bool lt_event_done(const lt_event *ev)
{
    return !ev || ev->dev->vt->event_done(ev);
}

lt_status lt_event_sync(lt_event *ev, lt_err *err)
{
    if (!ev)
        return null_argument(err, "lt_event_sync");
    return ev->dev->vt->event_sync(ev, err);
}

uint64_t lt_event_time_ns(const lt_event *ev)
{
    return ev->dev->vt->event_time_ns(ev);
}
