/* A queue: one worker thread that takes commands in order.
 *
 * One producer at a time, one consumer: commands lie in chunks of an endless list, so that a
 * producer running ahead is never blocked (a host call may wait for it) and old chunks are used
 * again, without an allocation per command. Counts of commands are 32 bits and wrap. */
#include "backend/cpu/hostdev.h"
#include "backend/cpu/thread.h"

#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>

#define CHUNK_CMDS 32
/* Launches follow one another closely; between copies lies the time of a copy. */
#define SPIN_COMPUTE_NS 50000
#define SPIN_COPY_NS 5000
/* An awaited copy is often just about done; the spin holds up nobody but this queue. */
#define SPIN_EVENT_NS 10000
#define SPIN_SYNC_NS 3000

typedef enum cmd_kind { CMD_COPY_IN, CMD_COPY_OUT, CMD_COPY, CMD_FILL, CMD_CALL, CMD_LAUNCH, CMD_RECORD, CMD_WAIT } cmd_kind;

typedef struct cmd {
    cmd_kind kind;
    bool     fault;
    uint64_t issue_ns; /* device time at which the host gave it */
    union {
        struct {
            void    *host;
            lt_addr  dst, src;
            uint64_t bytes;
            uint8_t  value;
        } mem;
        struct {
            lt_host_fn *fn;
            void       *user;
        } call;
        lt_mark *mark;
        struct {
            const lt_cpu_row *row;
            lt_op_args        args;
        } launch;
    } u;
} cmd;

typedef struct chunk {
    struct chunk *next;
    cmd           cmds[CHUNK_CMDS];
} chunk;

struct lt_hostqueue {
    lt_queue      base; /* first */
    lt_ctx       *ctx;
    lt_hostqueue *prev, *next;
    pthread_t     thread;

    /* Producer. */
    _Alignas(64) chunk *fill;
    uint32_t         fill_at; /* in it */
    _Atomic uint32_t tail;    /* commands given */
    _Atomic uint32_t sleeping, bell, stop;

    /* Worker. */
    _Alignas(64) _Atomic uint32_t done; /* commands finished */
    _Atomic uint32_t sync_sleepers, sync_target;
    _Atomic uint32_t failed;
    _Atomic uint64_t time_ns; /* virtual time, or the moment the last paced copy was due */
    _Atomic(chunk *) spare;   /* pushed by the worker, popped by the producer alone: no ABA */
    lt_err           err;     /* written once, before failed */
    chunk           *take;

    void            *block; /* what lt__alloc gave */
};

static lt_hostdev *dev_of(const lt_queue *q)
{
    return (lt_hostdev *)q->dev;
}

/* --- worker ------------------------------------------------------------------------- */

static void become_sticky(lt_hostqueue *q, const lt_err *err)
{
    if (atomic_load_explicit(&q->failed, memory_order_relaxed))
        return;
    q->err = *err;
    atomic_store_explicit(&q->failed, 1, memory_order_release);
}

/* Device time at which work given at issue_ns can start here. */
static uint64_t ready_ns(const lt_hostqueue *q, const cmd *c)
{
    return lt__max_u64(atomic_load_explicit(&q->time_ns, memory_order_relaxed), c->issue_ns);
}

static void set_time(lt_hostqueue *q, uint64_t ns)
{
    lt_hostdev *d = dev_of(&q->base);
    atomic_store_explicit(&q->time_ns, ns, memory_order_relaxed);
    if (d->clock.virt)
        lt__hostclock_raise(&d->clock.latest_ns, ns);
}

static const struct {
    const char *name;
    lt_copy_dir dir;
} copy_kind[] = {
    [CMD_COPY_IN] = {"copy_in", LT_COPY_H2D}, [CMD_COPY_OUT] = {"copy_out", LT_COPY_D2H}, [CMD_COPY] = {"copy", LT_COPY_D2D}};

static lt_status run_copy(lt_hostqueue *q, cmd *c, lt_err *err)
{
    lt_hostdev *d = dev_of(&q->base);
    lt_hostclock *clock = &d->clock;
    const char *name = copy_kind[c->kind].name;
    lt_copy_dir dir = copy_kind[c->kind].dir;
    uint64_t bytes = c->u.mem.bytes;
    void *dst = c->u.mem.host, *src = c->u.mem.host;
    if (c->fault)
        return lt__fail(err, LT_E_DEVICE_LOST, "%s of %" PRIu64 " bytes failed: fault injected", name, bytes);
    lt_status s = LT_OK;
    if (dir != LT_COPY_D2H)
        s = lt__hostdev_resolve(d, name, c->u.mem.dst, bytes, &dst, err);
    if (s == LT_OK && dir != LT_COPY_H2D)
        s = lt__hostdev_resolve(d, name, c->u.mem.src, bytes, &src, err);
    if (s != LT_OK)
        return s;
    uint64_t busy;
    if (lt__hostclock_paced(clock, dir)) {
        uint64_t end = lt__hostclock_book(clock, dir, bytes, ready_ns(q, c));
        memcpy(dst, src, bytes);
        if (!clock->virt) {
            uint64_t now = lt__hostclock_now_ns(clock);
            if (now > end)
                end = now; /* memory is slower than the link it plays */
            else
                lt__hostclock_sleep(clock, end);
        }
        set_time(q, end);
        busy = lt__hostclock_copy_ns(clock, dir, bytes);
    } else {
        uint64_t start = lt__now_ns();
        memmove(dst, src, bytes);
        busy = clock->virt ? 0 : lt__now_ns() - start;
    }
    atomic_fetch_add_explicit(&d->copies, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->bytes[dir], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->copy_busy_ns, busy, memory_order_relaxed);
    return LT_OK;
}

static lt_status run_fill(lt_hostqueue *q, cmd *c, lt_err *err)
{
    void *dst;
    lt_status s = lt__hostdev_resolve(dev_of(&q->base), "fill", c->u.mem.dst, c->u.mem.bytes, &dst, err);
    if (s == LT_OK)
        memset(dst, c->u.mem.value, c->u.mem.bytes);
    return s;
}

/* Work without a duration of its own: none on a virtual clock. */
static void set_time_now(lt_hostqueue *q, const cmd *c)
{
    const lt_hostclock *clock = &dev_of(&q->base)->clock;
    set_time(q, clock->virt ? ready_ns(q, c) : lt__hostclock_now_ns(clock));
}

/* What the op reads once and never again: the weight of a product. */
static uint64_t virtual_launch_ns(const lt_hostclock *clock, const lt_op_args *args)
{
    if (args->virtual_ns)
        return args->virtual_ns;
    uint64_t bytes = lt_op_cuts(args->op) ? lt__hostdev_weight_bytes(args) : 0;
    return lt__hostclock_span_ns(bytes, clock->compute_rate);
}

static lt_status run_launch(lt_hostqueue *q, cmd *c, lt_err *err)
{
    lt_hostdev *d = dev_of(&q->base);
    lt_op_args *args = &c->u.launch.args;
    if (c->fault)
        return lt__fail(err, LT_E_DEVICE_LOST, "%s: launch failed: fault injected",
                        args->name ? args->name : lt_op_get(args->op)->name);
    uint64_t start = d->clock.virt ? ready_ns(q, c) : lt__hostclock_now_ns(&d->clock), end, mapped;
    lt_status s = lt__hostdev_launch(d, c->u.launch.row, args, &mapped, err);
    if (s != LT_OK)
        return s;
    if (!d->clock.virt)
        end = lt__hostclock_now_ns(&d->clock);
    else if (!lt__add_u64(start, virtual_launch_ns(&d->clock, args), &end))
        end = UINT64_MAX;
    if (mapped && lt__hostclock_paced(&d->clock, LT_COPY_H2D)) { /* what is read in place comes over the link meanwhile */
        uint64_t there = lt__hostclock_book(&d->clock, LT_COPY_H2D, mapped, start);
        if (!d->clock.virt && there > end)
            lt__hostclock_sleep(&d->clock, there);
        end = lt__max_u64(end, there);
    }
    set_time(q, end);
    atomic_fetch_add_explicit(&d->launches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&d->compute_busy_ns, end - start, memory_order_relaxed);
    return LT_OK;
}

static void run_wait(lt_hostqueue *q, cmd *c)
{
    lt_hostdev *d = dev_of(&q->base);
    lt_mark *m = c->u.mark;
    uint64_t from = ready_ns(q, c), stall = 0;
    if (!atomic_load_explicit(&m->reached, memory_order_acquire)) {
        uint64_t start = lt__now_ns();
        lt__mark_wait(m, q->base.kind == LT_QUEUE_COMPUTE ? SPIN_EVENT_NS : 0);
        stall = lt__now_ns() - start;
    }
    if (d->clock.virt)
        stall = m->time_ns > from ? m->time_ns - from : 0;
    set_time(q, lt__max_u64(from, m->time_ns));
    if (q->base.kind == LT_QUEUE_COMPUTE && stall)
        atomic_fetch_add_explicit(&d->compute_stall_ns, stall, memory_order_relaxed);
    if (m->err.status != LT_OK)
        become_sticky(q, &m->err);
    lt__mark_unref(d, m);
}

static void run_record(lt_hostqueue *q, cmd *c)
{
    lt_hostdev *d = dev_of(&q->base);
    uint64_t t = d->clock.virt ? ready_ns(q, c) : lt__hostclock_now_ns(&d->clock);
    lt__mark_reach(c->u.mark, t, atomic_load_explicit(&q->failed, memory_order_relaxed) ? &q->err : NULL);
    lt__mark_unref(d, c->u.mark);
}

/* A failed queue still waits and still reaches events, so that nobody hangs on it and no memory
 * is thought free before those who use it are done. */
static void run_cmd(lt_hostqueue *q, cmd *c)
{
    if (c->kind == CMD_WAIT) {
        run_wait(q, c);
        return;
    }
    if (c->kind == CMD_RECORD) {
        run_record(q, c);
        return;
    }
    if (atomic_load_explicit(&q->failed, memory_order_relaxed))
        return;
    lt_err err = {0};
    lt_status s = LT_OK;
    switch (c->kind) {
    case CMD_COPY_IN:
    case CMD_COPY_OUT:
    case CMD_COPY:
        s = run_copy(q, c, &err);
        break;
    case CMD_FILL:
        s = run_fill(q, c, &err);
        set_time_now(q, c);
        break;
    case CMD_LAUNCH:
        s = run_launch(q, c, &err);
        break;
    case CMD_CALL:
        s = c->u.call.fn(c->u.call.user, &err);
        if (s != LT_OK && err.status != s)
            s = lt__fail(&err, s, "a host call on a queue failed: %s", lt_status_text(s));
        set_time_now(q, c);
        break;
    default:
        break;
    }
    if (s != LT_OK)
        become_sticky(q, &err);
}

/* Returns the tail once it is past `head`, or `head` when the queue is to end. `stop` is read first: the tail
 * read behind it is the last one. The other way round a thread held up between the two saw an old tail and the
 * stop, and left without the last commands; who waited for an event among them waited for ever. */
static uint32_t await_work(lt_hostqueue *q, uint32_t head)
{
    uint64_t spin = q->base.kind == LT_QUEUE_COMPUTE ? SPIN_COMPUTE_NS : SPIN_COPY_NS, until = 0;
    for (uint32_t i = 0;; i++) {
        bool stop = atomic_load_explicit(&q->stop, memory_order_acquire);
        uint32_t tail = atomic_load_explicit(&q->tail, memory_order_acquire);
        if (tail != head || stop)
            return tail;
        if (i % 16 == 0) {
            uint64_t now = lt__now_ns();
            until = i ? until : now + spin;
            if (now >= until)
                break;
        }
        lt__pause();
    }
    for (;;) {
        uint32_t bell = atomic_load_explicit(&q->bell, memory_order_acquire);
        atomic_store_explicit(&q->sleeping, 1, memory_order_seq_cst);
        bool stop = atomic_load_explicit(&q->stop, memory_order_seq_cst);
        uint32_t tail = atomic_load_explicit(&q->tail, memory_order_seq_cst);
        bool end = tail != head || stop;
        if (!end)
            lt__futex_wait(&q->bell, bell);
        atomic_store_explicit(&q->sleeping, 0, memory_order_relaxed);
        if (end)
            return tail;
    }
}

static void give_spare(lt_hostqueue *q, chunk *c)
{
    chunk *top = atomic_load_explicit(&q->spare, memory_order_relaxed);
    do
        c->next = top;
    while (!atomic_compare_exchange_weak_explicit(&q->spare, &top, c, memory_order_release, memory_order_relaxed));
}

/* Wakes a sync at its target, not at each command on the way; several syncs share one target, and
 * those whose own was overwritten are woken when the queue runs empty. */
static void finish_cmd(lt_hostqueue *q, uint32_t head, bool empty)
{
    atomic_store_explicit(&q->done, head, memory_order_seq_cst);
    if (atomic_load_explicit(&q->sync_sleepers, memory_order_seq_cst) &&
        (empty || atomic_load_explicit(&q->sync_target, memory_order_seq_cst) == head))
        lt__futex_wake(&q->done, INT32_MAX);
}

static void *queue_main(void *p)
{
    lt_hostqueue *q = p;
    uint32_t head = 0, at = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* ns; paced copies sleep to a moment */
    for (uint32_t tail; (tail = await_work(q, head)) != head;) {
        while (head != tail) {
            if (at == CHUNK_CMDS) {
                chunk *old = q->take;
                q->take = old->next;
                give_spare(q, old);
                at = 0;
            }
            run_cmd(q, &q->take->cmds[at++]);
            head++;
            finish_cmd(q, head, head == tail);
        }
    }
    return NULL;
}

/* --- producer ----------------------------------------------------------------------- */

static lt_status sticky_error(lt_hostqueue *q, lt_err *err)
{
    if (!atomic_load_explicit(&q->failed, memory_order_acquire))
        return LT_OK;
    if (err)
        *err = q->err;
    return q->err.status;
}

static chunk *take_spare(lt_hostqueue *q)
{
    chunk *c = atomic_load_explicit(&q->spare, memory_order_acquire);
    while (c && !atomic_compare_exchange_weak_explicit(&q->spare, &c, c->next, memory_order_acquire, memory_order_acquire))
        ;
    return c ? c : lt__alloc(q->ctx, sizeof *c);
}

/* The next free command, not yet given. */
static lt_status begin_cmd(lt_hostqueue *q, cmd_kind kind, cmd **out, lt_err *err)
{
    lt_status s = sticky_error(q, err);
    if (s != LT_OK)
        return s;
    if (q->fill_at == CHUNK_CMDS) {
        chunk *c = take_spare(q);
        if (!c)
            return lt__fail_oom(err, sizeof *c, "commands of a queue");
        q->fill->next = c;
        q->fill = c;
        q->fill_at = 0;
    }
    const lt_hostclock *clock = &dev_of(&q->base)->clock;
    cmd *c = &q->fill->cmds[q->fill_at];
    c->kind = kind;
    c->fault = false;
    c->issue_ns = 0;
    if (clock->virt)
        c->issue_ns = atomic_load_explicit(&clock->host_ns, memory_order_relaxed);
    else if (kind <= CMD_COPY && lt__hostclock_paced(clock, copy_kind[kind].dir))
        c->issue_ns = lt__hostclock_now_ns(clock);
    *out = c;
    return LT_OK;
}

static void ring_bell(lt_hostqueue *q)
{
    if (atomic_load_explicit(&q->sleeping, memory_order_seq_cst)) {
        atomic_fetch_add_explicit(&q->bell, 1, memory_order_seq_cst);
        lt__futex_wake(&q->bell, 1);
    }
}

static void give_cmd(lt_hostqueue *q)
{
    q->fill_at++;
    uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
    atomic_store_explicit(&q->tail, tail + 1, memory_order_seq_cst);
    ring_bell(q);
}

static lt_status give_mem(lt_queue *handle, cmd_kind kind, void *host, lt_addr dst, lt_addr src, uint8_t value,
                          uint64_t bytes, lt_err *err)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    cmd *c = NULL;
    lt_status s = begin_cmd(q, kind, &c, err);
    if (s != LT_OK)
        return s;
    c->u.mem.host = host;
    c->u.mem.dst = dst;
    c->u.mem.src = src;
    c->u.mem.value = value;
    c->u.mem.bytes = bytes;
    c->fault = kind != CMD_FILL && lt__hostdev_fault(dev_of(handle), LT_FAULT_COPY);
    give_cmd(q);
    return LT_OK;
}

lt_status lt__hostqueue_copy_in(lt_queue *q, lt_addr dst, const void *src, uint64_t bytes, lt_err *err)
{
    return give_mem(q, CMD_COPY_IN, (void *)src, dst, 0, 0, bytes, err);
}

lt_status lt__hostqueue_copy_out(lt_queue *q, void *dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    return give_mem(q, CMD_COPY_OUT, dst, 0, src, 0, bytes, err);
}

lt_status lt__hostqueue_copy(lt_queue *q, lt_addr dst, lt_addr src, uint64_t bytes, lt_err *err)
{
    return give_mem(q, CMD_COPY, NULL, dst, src, 0, bytes, err);
}

lt_status lt__hostqueue_fill(lt_queue *q, lt_addr dst, uint8_t value, uint64_t bytes, lt_err *err)
{
    return give_mem(q, CMD_FILL, NULL, dst, 0, value, bytes, err);
}

lt_status lt__hostqueue_call(lt_queue *handle, lt_host_fn *fn, void *user, lt_err *err)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    cmd *c = NULL;
    lt_status s = begin_cmd(q, CMD_CALL, &c, err);
    if (s != LT_OK)
        return s;
    c->u.call.fn = fn;
    c->u.call.user = user;
    give_cmd(q);
    return LT_OK;
}

static const char no_row[] = "no CPU function for this op with these dtypes";

lt_status lt__hostqueue_launch(lt_queue *handle, const lt_op_args *args, lt_err *err)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    lt_hostdev *d = dev_of(handle);
    cmd *c = NULL;
    lt_status s = begin_cmd(q, CMD_LAUNCH, &c, err);
    if (s != LT_OK)
        return s;
    const lt_cpu_row *row = lt__cpu_find(d->isa, args);
    if (!row)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: %s: %s", args->name ? args->name : "launch",
                        lt_op_get(args->op)->name, no_row);
    c->u.launch.row = row;
    c->u.launch.args = *args;
    c->fault = lt__hostdev_fault(d, LT_FAULT_LAUNCH);
    give_cmd(q);
    return LT_OK;
}

bool lt__hostdev_supports(const lt_device *dev, const lt_op_args *args, const char **why)
{
    if (args->op == LT_OP_ATTENTION && args->params.ATTENTION.how == LT_ATTENTION_SAGE) {
        if (why)
            *why = "sage attention is there on cuda only; this device computes it exactly";
        return false;
    }
    if (lt__cpu_find(((const lt_hostdev *)dev)->isa, args))
        return true;
    if (why)
        *why = no_row;
    return false;
}

lt_status lt__hostqueue_record(lt_hostqueue *q, lt_mark *m, lt_err *err)
{
    cmd *c = NULL;
    lt_status s = begin_cmd(q, CMD_RECORD, &c, err);
    if (s != LT_OK)
        return s;
    c->u.mark = m;
    give_cmd(q);
    return LT_OK;
}

lt_status lt__hostqueue_wait(lt_queue *handle, lt_event *ev, lt_err *err)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    cmd *c = NULL;
    lt_status s = begin_cmd(q, CMD_WAIT, &c, err);
    if (s != LT_OK)
        return s;
    lt_mark *m = lt__hostevent_mark((lt_hostevent *)ev);
    if (!m)
        return LT_OK;
    c->u.mark = m;
    give_cmd(q);
    return LT_OK;
}

lt_status lt__hostqueue_sync(lt_queue *handle, lt_err *err)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    lt_hostdev *d = dev_of(handle);
    uint32_t target = atomic_load_explicit(&q->tail, memory_order_acquire), done;
    atomic_store_explicit(&q->sync_target, target, memory_order_seq_cst);
    while ((done = atomic_load_explicit(&q->done, memory_order_acquire)), (int32_t)(done - target) < 0)
        lt__wait_change(&q->done, done, &q->sync_sleepers, SPIN_SYNC_NS);
    if (d->clock.virt)
        lt__hostclock_raise(&d->clock.host_ns, atomic_load_explicit(&q->time_ns, memory_order_relaxed));
    return sticky_error(q, err);
}

static void free_chunks(lt_ctx *ctx, chunk *c)
{
    for (chunk *next; c; c = next) {
        next = c->next;
        lt__free(ctx, c, sizeof *c);
    }
}

lt_status lt__hostqueue_create(lt_device *dev, lt_queue_kind kind, lt_queue **out, lt_err *err)
{
    lt_hostdev *d = (lt_hostdev *)dev;
    lt_status s = kind == LT_QUEUE_COMPUTE ? lt__hostdev_start_team(d, err) : LT_OK;
    if (s != LT_OK)
        return s;
    const size_t bytes = sizeof(lt_hostqueue) + 64;
    void *block = lt__zalloc(dev->ctx, bytes);
    chunk *first = lt__alloc(dev->ctx, sizeof *first);
    if (!block || !first) {
        s = lt__fail_oom(err, bytes + sizeof *first, "queue");
        goto fail;
    }
    lt_hostqueue *q = (lt_hostqueue *)lt__round_up((uintptr_t)block, 64);
    q->base = (lt_queue){.dev = dev, .kind = kind};
    q->block = block;
    q->ctx = dev->ctx;
    q->fill = q->take = first;
    s = lt__thread_start(&q->thread, kind == LT_QUEUE_COMPUTE ? "lt-compute" : "lt-copy", queue_main, q, err);
    if (s != LT_OK)
        goto fail;
    pthread_mutex_lock(&d->lock);
    q->next = d->queues;
    if (q->next)
        q->next->prev = q;
    d->queues = q;
    pthread_mutex_unlock(&d->lock);
    *out = &q->base;
    return LT_OK;
fail:
    lt__free(dev->ctx, first, sizeof *first);
    lt__free(dev->ctx, block, bytes);
    return s;
}

void lt__hostqueue_destroy(lt_queue *handle)
{
    lt_hostqueue *q = (lt_hostqueue *)handle;
    lt_hostdev *d = dev_of(handle);
    atomic_store_explicit(&q->stop, 1, memory_order_seq_cst);
    ring_bell(q);
    pthread_join(q->thread, NULL);
    pthread_mutex_lock(&d->lock);
    if (q->prev)
        q->prev->next = q->next;
    else
        d->queues = q->next;
    if (q->next)
        q->next->prev = q->prev;
    pthread_mutex_unlock(&d->lock);
    q->fill->next = NULL;
    free_chunks(q->ctx, q->take);
    free_chunks(q->ctx, q->spare);
    lt__free(q->ctx, q->block, sizeof *q + 64);
}
