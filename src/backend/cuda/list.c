/* Lists of launches: looked up once, and where one comes again and again captured as a graph, which the
 * driver replays whole. Without graphs (old drivers, graphs=0) the launches are given one by one. */
#include "backend/cuda/list.h"

#include <inttypes.h>

#define GRAPH_LEAST 4 /* steps: fewer are given faster than a graph */

typedef struct compiled {
    lt_launch_list list;  /* as it runs: perhaps in another order */
    const lt_op_args **args;
    lt_cuda_step *steps;
    size_t      n, cap;
    CUgraphExec graph;   /* NULL: none */
    uint64_t    kernels; /* of the graph */
    bool        refused; /* at least one replay */
} compiled;

void lt__cuda_lists_init(lt_cuda_device *d) { pthread_mutex_init(&d->lists.lock, NULL); }

void lt__cuda_lists_deinit(lt_cuda_device *d)
{
    if (d->lists.stream)
        (void)d->cu.stream_destroy(d->lists.stream);
    d->lists.stream = NULL;
    pthread_mutex_destroy(&d->lists.lock);
}

static const char *name_of(const lt_op_args *a) { return a->name ? a->name : lt_op_get(a->op)->name; }

/* --- compiling ------------------------------------------------------------------------ */

static lt_status give_alone(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *p, lt_err *err)
{
    return p->row->launch(d, stream, list->args[p->first], err);
}

static lt_status make_steps(lt_cuda_device *d, const lt_launch_list *list, compiled *c, lt_err *err)
{
    bool fuse = d->fuse && !atomic_load(&d->fail_in[LT_CUDA_FAULT_launch]);
    c->cap = list->n;
    c->args = lt__alloc_array(d->base.ctx, list->n, sizeof *c->args);
    c->steps = lt__alloc_array(d->base.ctx, list->n, sizeof *c->steps);
    if (!c->args || !c->steps)
        return lt__fail_oom(err, list->n * sizeof *c->steps, "the steps of a list of launches");
    for (size_t i = 0; i < list->n; i++)
        c->args[i] = list->args[i];
    if (fuse)
        lt__cuda_arrange(c->args, list->n);
    c->list = *list;
    c->list.args = c->args;
    for (size_t i = 0; i < list->n;) {
        lt_cuda_step *p = &c->steps[c->n++];
        if (!fuse || !lt__cuda_fuse(d, &c->list, i, p)) {
            *p = (lt_cuda_step){.first = i, .n = 1, .give = give_alone};
            lt_status s = lt__cuda_row_of(d, c->args[i], &p->row, err);
            if (s != LT_OK)
                return s;
        }
        i += p->n;
    }
    return LT_OK;
}

static lt_status run_step(lt_cuda_device *d, CUstream stream, const compiled *c, size_t i, lt_err *err)
{
    return c->steps[i].give(d, stream, &c->list, &c->steps[i], err);
}

/* A capture that went wrong on the way still has to be ended. */
static lt_status capture(lt_cuda_device *d, compiled *c, CUgraph *out, lt_err *err)
{
    CUstream stream = d->lists.stream;
    d->lists.captured = 0;
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_graph) ? LT_CU_OUT_OF_MEMORY
                                                           : d->cu.capture_begin(stream, LT_CU_CAPTURE_RELAXED);
    if (r != LT_CU_OK)
        return lt__cuda_fail(d, err, r, "cuda: a graph of %zu launches cannot be begun", c->list.n);
    lt_status s = LT_OK;
    for (size_t i = 0; i < c->n && s == LT_OK; i++)
        s = run_step(d, stream, c, i, err);
    r = d->cu.capture_end(stream, out);
    if (r != LT_CU_OK)
        *out = NULL;
    if (s == LT_OK && r != LT_CU_OK)
        s = lt__cuda_fail(d, err, r, "cuda: a graph of %zu launches cannot be ended", c->list.n);
    c->kernels = d->lists.captured;
    return s;
}

/* Uploaded too, so that the first replay takes nothing more from the driver. */
static lt_status instantiate(lt_cuda_device *d, compiled *c, CUgraph graph, lt_err *err)
{
    CUstream stream = d->lists.stream;
    lt_curesult r = d->cu.graph_instantiate(&c->graph, graph, 0);
    if (r != LT_CU_OK)
        c->graph = NULL;
    else if ((r = d->cu.graph_upload(c->graph, stream)) == LT_CU_OK)
        r = d->cu.stream_sync(stream);
    if (r == LT_CU_OK)
        return LT_OK;
    if (c->graph)
        (void)d->cu.graph_exec_destroy(c->graph);
    c->graph = NULL;
    return lt__cuda_fail(d, err, r, "cuda: a graph of %" PRIu64 " kernels cannot be made ready", c->kernels);
}

static lt_status capture_and_instantiate(lt_cuda_device *d, compiled *c, bool early, lt_err *err)
{
    CUgraph graph = NULL;
    d->lists.early = early;
    lt_status s = capture(d, c, &graph, err);
    d->lists.early = false;
    if (s == LT_OK)
        s = instantiate(d, c, graph, err);
    if (graph)
        (void)d->cu.graph_destroy(graph);
    return s;
}

/* Early launches came with CUDA 12.3 to graphs; a driver that refuses them gets a graph without. Under the lists' lock. */
static lt_status make_graph(lt_cuda_device *d, compiled *c, lt_err *err)
{
    size_t before = 0, after = 0, total = 0;
    CUstream stream = atomic_load_explicit(&d->lists.stream, memory_order_relaxed);
    if (!stream) {
        lt_curesult r = d->cu.stream_create(&stream, LT_CU_STREAM_NON_BLOCKING);
        if (r != LT_CU_OK)
            return lt__cuda_fail(d, err, r, "cuda: no stream to capture graphs on");
        atomic_store_explicit(&d->lists.stream, stream, memory_order_relaxed);
    }
    (void)d->cu.memory_info(&before, &total);
    bool early = d->early && d->cu.launch_ex && d->props.major >= 9 && d->cu.version >= 12030;
    lt_status s = capture_and_instantiate(d, c, early, err);
    if (s != LT_OK && early && !atomic_load_explicit(&d->lost, memory_order_acquire)) {
        early = false;
        s = capture_and_instantiate(d, c, false, err);
    }
    (void)d->cu.memory_info(&after, &total);
    if (s == LT_OK)
        lt__log(d->base.ctx, LT_LOG_DEBUG, "cuda", "a graph of %" PRIu64 " kernels%s for %zu launches took %zu bytes of the device",
                c->kernels, early ? ", launched early," : "", c->list.n, before > after ? before - after : 0);
    return s;
}

static void free_compiled(lt_cuda_device *d, compiled *c)
{
    if (c->graph && lt__cuda_enter(d, NULL) == LT_OK) {
        (void)d->cu.graph_exec_destroy(c->graph);
        lt__cuda_leave(d);
    }
    lt__free(d->base.ctx, c->args, c->cap * sizeof *c->args);
    lt__free(d->base.ctx, c->steps, c->cap * sizeof *c->steps);
    lt__free(d->base.ctx, c, sizeof *c);
}

/* A graph only saves time: what refuses one leaves a list that runs launch by launch, and says so. */
lt_status lt__cuda_list_compile(lt_device *dev, lt_launch_list *list, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(dev);
    if (list->compiled || !list->n)
        return LT_OK;
    compiled *c = lt__zalloc(dev->ctx, sizeof *c);
    if (!c)
        return lt__fail_oom(err, sizeof *c, "a list of launches");
    lt_status s = make_steps(d, list, c, err);
    bool faults = atomic_load(&d->fail_in[LT_CUDA_FAULT_launch]) != 0; /* counts launches, not captures */
    if (s == LT_OK && list->replay && c->n >= GRAPH_LEAST && d->graphs && d->cu.has_graphs && !d->sync_check && !faults &&
        (s = lt__cuda_enter(d, err)) == LT_OK) {
        lt_err why = {0};
        pthread_mutex_lock(&d->lists.lock);
        lt_status made = make_graph(d, c, &why);
        pthread_mutex_unlock(&d->lists.lock);
        lt__cuda_leave(d);
        if (made != LT_OK && atomic_load_explicit(&d->lost, memory_order_acquire)) {
            s = made;
            if (err)
                *err = why;
        } else if (made != LT_OK) {
            lt__log(dev->ctx, LT_LOG_WARN, "cuda", "%s; its launches are given one by one", why.text);
        }
    }
    if (s != LT_OK) {
        free_compiled(d, c);
        return s;
    }
    list->compiled = c;
    return LT_OK;
}

void lt__cuda_list_free(lt_device *dev, lt_launch_list *list)
{
    if (list->compiled)
        free_compiled(lt__cuda_of(dev), list->compiled);
    list->compiled = NULL;
}

/* --- running -------------------------------------------------------------------------- */

static lt_status run_singly(lt_queue *q, const lt_launch_list *list, lt_err *err)
{
    lt_status s = LT_OK;
    for (size_t i = 0; i < list->n && s == LT_OK; i++)
        s = lt__cuda_queue_launch(q, list->args[i], err);
    return s;
}

static lt_status run_steps(lt_cuda_queue *q, const compiled *c, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(q->base.dev);
    lt_status s = LT_OK;
    for (size_t i = 0; i < c->n && s == LT_OK; i++) {
        const lt_cuda_step *p = &c->steps[i];
        const char *name = name_of(c->list.args[p->first]);
        if ((s = lt__cuda_begin(q, name, err)) != LT_OK)
            return s;
        for (size_t k = 1; k < p->n; k++)
            lt__cuda_note_name(q, name_of(c->list.args[p->first + k]));
        s = run_step(d, q->stream, c, i, err);
        if (s != LT_OK)
            lt__cuda_leave(d);
        else
            s = lt__cuda_end(q, LT_CU_OK, name, err);
    }
    return s;
}

/* Fails late as the launches would: the latest names are the list's last. */
static lt_status run_graph(lt_cuda_queue *q, const lt_launch_list *list, compiled *c, bool *given, lt_err *err)
{
    lt_cuda_device *d = lt__cuda_of(q->base.dev);
    lt_status s = lt__cuda_begin(q, name_of(list->args[0]), err);
    *given = s == LT_OK;
    if (s != LT_OK)
        return s;
    lt_curesult r = lt__cuda_fault(d, LT_CUDA_FAULT_graph) ? LT_CU_OUT_OF_MEMORY : d->cu.graph_launch(c->graph, q->stream);
    if (r == LT_CU_OK || lt__cu_fatal(r)) {
        for (size_t i = list->n > LT_CUDA_NAMES ? list->n - LT_CUDA_NAMES : 1; i < list->n; i++)
            lt__cuda_note_name(q, name_of(list->args[i]));
    } else {
        *given = false;
    }
    if (r == LT_CU_OK) {
        atomic_fetch_add_explicit(&d->launches, c->kernels, memory_order_relaxed);
        atomic_fetch_add_explicit(&d->graph_runs, 1, memory_order_relaxed);
    }
    return lt__cuda_end(q, r, "a graph of launches", err);
}

lt_status lt__cuda_list_run(lt_queue *handle, lt_launch_list *list, lt_err *err)
{
    lt_cuda_queue *q = (lt_cuda_queue *)handle;
    lt_cuda_device *d = lt__cuda_of(handle->dev);
    if (d->sync_check || atomic_load_explicit(&d->fail_in[LT_CUDA_FAULT_launch], memory_order_relaxed))
        return run_singly(handle, list, err);
    lt_status s = lt__cuda_list_compile(handle->dev, list, err);
    compiled *c = list->compiled;
    if (s != LT_OK || !c)
        return s;
    if (!c->graph)
        return run_steps(q, c, err);
    bool given = false;
    lt_err own = {0};
    s = run_graph(q, list, c, &given, &own);
    if (s == LT_OK || given || atomic_load_explicit(&d->lost, memory_order_acquire)) {
        if (err && s != LT_OK)
            *err = own;
        return s;
    }
    if (!c->refused && own.text[0])
        lt__log(handle->dev->ctx, LT_LOG_WARN, "cuda", "%s; its launches are given one by one", own.text);
    c->refused = true;
    return run_steps(q, c, err);
}
