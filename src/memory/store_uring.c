/* store_uring.c - the two ways to keep many reads in flight: io_uring, else threads. */
#include "base/mem.h"
#include "memory/store_private.h"

#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef struct uring_slot {
    struct iovec iov;
    disk_piece  *piece;
} uring_slot;

typedef struct uring_engine {
    disk_engine     base;
    lt_ctx         *ctx;
    struct io_uring ring;
    uring_slot      slots[LT__READ_DEPTH];
} uring_engine;

static void uring_destroy(disk_engine *e)
{
    uring_engine *u = (uring_engine *)e;
    io_uring_queue_exit(&u->ring);
    lt__free(u->ctx, u, sizeof *u);
}

static int uring_submit(disk_engine *e, disk_piece *p)
{
    uring_engine *u = (uring_engine *)e;
    uring_slot *slot = NULL;
    for (int i = 0; i < LT__READ_DEPTH && !slot; i++)
        if (!u->slots[i].piece) slot = &u->slots[i];
    struct io_uring_sqe *sqe = slot ? io_uring_get_sqe(&u->ring) : NULL;
    if (!sqe) return -EAGAIN;
    slot->piece = p;
    slot->iov.iov_base = p->buf + p->got;
    slot->iov.iov_len = p->bytes - p->got;
    io_uring_prep_readv(sqe, p->fd, &slot->iov, 1, p->offset + p->got);
    io_uring_sqe_set_data(sqe, slot);
    return 0;
}

static void uring_flush(disk_engine *e)
{
    uring_engine *u = (uring_engine *)e;
    /* EAGAIN and EBUSY pass by themselves once completions are reaped; reap submits again. */
    while (io_uring_sq_ready(&u->ring) > 0) {
        int n = io_uring_submit(&u->ring);
        if (n != -EINTR) break;
    }
}

static disk_piece *uring_reap(disk_engine *e, bool wait)
{
    uring_engine *u = (uring_engine *)e;
    struct io_uring_cqe *cqe = NULL;
    for (;;) {
        if (io_uring_peek_cqe(&u->ring, &cqe) == 0 && cqe) break;
        if (!wait) return NULL;
        /* What is in flight writes to the caller's memory, so there is no giving up: an
         * error here (EAGAIN, EBUSY, ENOMEM) is the kernel asking to come back later. */
        int n = io_uring_submit_and_wait(&u->ring, 1);
        if (n < 0 && n != -EINTR) usleep(100);
    }
    uring_slot *slot = io_uring_cqe_get_data(cqe);
    disk_piece *p = slot->piece;
    p->result = cqe->res;
    slot->piece = NULL;
    io_uring_cqe_seen(&u->ring, cqe);
    return p;
}

disk_engine *lt__disk_uring_create(lt_ctx *ctx, int *why)
{
    uring_engine *u = lt__zalloc(ctx, sizeof *u);
    *why = ENOMEM;
    if (!u) return NULL;
    u->ctx = ctx;
    int e = io_uring_queue_init(LT__READ_DEPTH, &u->ring, 0);
    if (e < 0) {
        *why = -e;
        lt__free(ctx, u, sizeof *u);
        return NULL;
    }
    u->base = (disk_engine){uring_destroy, uring_submit, uring_flush, uring_reap};
    return &u->base;
}

enum { DISK_THREADS = 8 };

typedef struct threads_engine {
    disk_engine     base;
    lt_ctx         *ctx;
    pthread_mutex_t lock;
    pthread_cond_t  todo_changed, done_changed;
    disk_piece     *todo, **todo_end, *done;
    pthread_t       thread[DISK_THREADS];
    int             started;
    bool            stop;
} threads_engine;

static void *threads_main(void *arg)
{
    threads_engine *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->todo && !t->stop) pthread_cond_wait(&t->todo_changed, &t->lock);
        if (!t->todo) break;
        disk_piece *p = t->todo;
        t->todo = p->next;
        if (!t->todo) t->todo_end = &t->todo;
        pthread_mutex_unlock(&t->lock);
        ssize_t n =
            pread(p->fd, p->buf + p->got, p->bytes - p->got, (off_t)(p->offset + p->got));
        int result = n < 0 ? -errno : (int)n;
        pthread_mutex_lock(&t->lock);
        p->result = result;
        p->next = t->done;
        t->done = p;
        pthread_cond_signal(&t->done_changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void threads_destroy(disk_engine *e)
{
    threads_engine *t = (threads_engine *)e;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->todo_changed);
    pthread_mutex_unlock(&t->lock);
    for (int i = 0; i < t->started; i++) pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->done_changed);
    pthread_cond_destroy(&t->todo_changed);
    pthread_mutex_destroy(&t->lock);
    lt__free(t->ctx, t, sizeof *t);
}

static int threads_submit(disk_engine *e, disk_piece *p)
{
    threads_engine *t = (threads_engine *)e;
    p->next = NULL;
    pthread_mutex_lock(&t->lock);
    *t->todo_end = p;
    t->todo_end = &p->next;
    pthread_cond_signal(&t->todo_changed);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static void threads_flush(disk_engine *e) { (void)e; }

static disk_piece *threads_reap(disk_engine *e, bool wait)
{
    threads_engine *t = (threads_engine *)e;
    pthread_mutex_lock(&t->lock);
    while (!t->done && wait) pthread_cond_wait(&t->done_changed, &t->lock);
    disk_piece *p = t->done;
    if (p) t->done = p->next;
    pthread_mutex_unlock(&t->lock);
    return p;
}

disk_engine *lt__disk_threads_create(lt_ctx *ctx, lt_err *err)
{
    threads_engine *t = lt__zalloc(ctx, sizeof *t);
    if (!t) {
        (void)lt__fail_oom(err, sizeof *t, "reading threads of a store");
        return NULL;
    }
    t->ctx = ctx;
    t->todo_end = &t->todo;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->todo_changed, NULL);
    pthread_cond_init(&t->done_changed, NULL);
    t->base = (disk_engine){threads_destroy, threads_submit, threads_flush, threads_reap};
    int e = 0;
    while (t->started < DISK_THREADS) {
        e = pthread_create(&t->thread[t->started], NULL, threads_main, t);
        if (e) break;
        t->started++;
    }
    if (t->started == 0) {
        (void)lt__fail_native(err, LT_E_HOST_OOM, e, "store: cannot start a reading thread: %s", strerror(e));
        threads_destroy(&t->base);
        return NULL;
    }
    return &t->base;
}
