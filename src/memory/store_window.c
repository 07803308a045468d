/* store_window.c - cuts reads into aligned pieces and keeps a window of them in flight. */
#include "memory/store_window.h"

#include "base/mem.h"
#include "memory/store_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <fcntl.h>

struct lt__window {
    lt_store    *store;
    lt_ctx      *ctx;
    disk_engine *engine;     /* made by the first direct read */
    lt__fetch    *head, **end; /* queued, in order */
    lt__fetch    *next;       /* first that is not wholly issued */
    disk_piece   pieces[LT__READ_DEPTH];
    uint32_t     inflight;
    void        *bounce[LT__READ_BOUNCES]; /* as allocated; used from the first block border on */
    bool         bounce_used[LT__READ_BOUNCES];
    bool         cached;     /* not O_DIRECT */
    uint64_t     busy_since;
};

enum { BOUNCE_BYTES = LT__READ_UNIT + LT__READ_BLOCK };

lt_status lt__window_create(lt_store *s, lt__window **out, lt_err *err)
{
    *out = NULL;
    lt__window *w = lt__zalloc(s->ctx, sizeof *w);
    if (!w) return lt__fail_oom(err, sizeof *w, "a window of a store");
    w->store = s;
    w->ctx = s->ctx;
    w->end = &w->head;
    *out = w;
    return LT_OK;
}

void lt__window_through_cache(lt__window *w) { w->cached = true; }

static void complete_piece(lt__window *w, disk_piece *p);

void lt__window_destroy(lt__window *w)
{
    if (!w) return;
    for (lt__fetch *r = w->head; r; r = r->next) r->issued = r->bytes;
    w->next = NULL;
    while (w->inflight > 0) complete_piece(w, w->engine->reap(w->engine, true));
    if (w->engine) w->engine->destroy(w->engine);
    for (int i = 0; i < LT__READ_BOUNCES; i++) lt__free(w->ctx, w->bounce[i], BOUNCE_BYTES);
    lt__free(w->ctx, w, sizeof *w);
}

static void fail_read(lt__fetch *r, lt_status st)
{
    r->status = st;
    r->issued = r->bytes;
}

static void want_range(lt__window *w, store_file *f, const lt__fetch *r)
{
    /* The kernel reads ahead by itself only a little: say what comes. */
    (void)w;
    if (!atomic_load(&f->direct))
        (void)posix_fadvise(f->fd, (off_t)r->offset, (off_t)r->bytes, POSIX_FADV_WILLNEED);
}

void lt__window_queue(lt__window *w, lt__fetch *r)
{
    r->status = LT_OK;
    r->err = (lt_err){0};
    r->issued = 0;
    r->inflight = 0;
    r->queued = true;
    r->next = NULL;
    store_file *f = lt__store_file(w->store, r->file);
    uint64_t end;
    if (!f)
        fail_read(r, lt__fail(&r->err, LT_E_INVALID, "store: there is no file number %" PRIu32, r->file));
    else if (!lt__add_u64(r->offset, r->bytes, &end) || end > f->bytes)
        fail_read(r, lt__fail(&r->err, LT_E_INVALID,
                              "%s: bytes %" PRIu64 "+%" PRIu64 " are outside of its %" PRIu64, f->path,
                              r->offset, r->bytes, f->bytes));
    else {
        lt_status st = lt__store_check_size(w->store, f, &r->err);
        if (st != LT_OK) fail_read(r, st);
        else want_range(w, f, r);
    }
    *w->end = r;
    w->end = &r->next;
    if (!w->next) w->next = r;
    atomic_fetch_add(&w->store->reads, 1);
}

bool lt__window_done(const lt__fetch *r) { return r->issued == r->bytes && r->inflight == 0; }

static lt_status need_engine(lt__window *w, lt_err *err)
{
    if (w->engine) return LT_OK;
    lt_store *s = w->store;
    if (!w->cached && !atomic_load(&s->no_uring)) { /* it would copy on this very thread what the cache has */
        int why = 0;
        w->engine = lt__disk_uring_create(w->ctx, &why);
        if (w->engine) return LT_OK;
        if (!atomic_exchange(&s->said_uring, true))
            lt__log(w->ctx, LT_LOG_WARN, "store", "io_uring cannot be used here (%s): reading with threads",
                    strerror(why));
    }
    w->engine = lt__disk_threads_create(w->ctx, err);
    if (w->engine) return LT_OK;
    return err && err->status != LT_OK ? err->status : LT_E_HOST_OOM;
}

/* Index of a free bounce buffer, -1 when all are in use, -2 when there is no memory for the first. */
static int take_bounce(lt__window *w)
{
    bool any = false;
    for (int i = 0; i < LT__READ_BOUNCES; i++) {
        if (w->bounce_used[i]) {
            any = true;
            continue;
        }
        if (!w->bounce[i]) w->bounce[i] = lt__alloc(w->ctx, BOUNCE_BYTES);
        if (!w->bounce[i]) break;
        w->bounce_used[i] = true;
        return i;
    }
    return any ? -1 : -2;
}

static char *bounce_base(const lt__window *w, int i)
{
    return (char *)(uintptr_t)lt__round_up((uintptr_t)w->bounce[i], LT__READ_BLOCK);
}

/* Cuts the next piece of r. False when it has to wait for a bounce buffer, or failed. */
static bool cut_piece(lt__window *w, lt__fetch *r, store_file *f, disk_piece *p)
{
    uint64_t pos = r->offset + r->issued, left = r->bytes - r->issued, end = pos + left;
    uint64_t from = lt__round_down(pos, LT__READ_BLOCK), to = lt__round_up(end, LT__READ_BLOCK);
    char *dst = (char *)r->dst + r->issued;
    bool congruent = ((uintptr_t)r->dst - r->offset) % LT__READ_BLOCK == 0;
    bool bounce = !congruent;
    if (congruent && !r->spill) {
        if (pos != from) {
            bounce = true;
            to = lt__min_u64(to, from + LT__READ_BLOCK);
        } else if (left >= LT__READ_BLOCK) to = lt__round_down(end, LT__READ_BLOCK);
        else bounce = true;
    }
    if (to - from > LT__READ_UNIT) to = from + LT__READ_UNIT;
    *p = (disk_piece){.read = r, .file = f, .fd = w->cached ? f->fd : f->fd_direct, .offset = from, .bytes = (size_t)(to - from), .bounce = -1,
                      .want_from = pos, .want_bytes = (size_t)(lt__min_u64(to, end) - pos), .used = true};
    p->buf = dst - (pos - from);
    if (bounce) {
        p->bounce = take_bounce(w);
        if (p->bounce == -2)
            fail_read(r, lt__fail_oom(&r->err, BOUNCE_BYTES, "a bounce buffer for unaligned reads"));
        if (p->bounce < 0) return p->used = false;
        p->buf = bounce_base(w, p->bounce);
    }
    return true;
}

static void drop_piece(lt__window *w, disk_piece *p)
{
    if (p->bounce >= 0) w->bounce_used[p->bounce] = false;
    p->read->inflight--;
    p->used = false;
    if (--w->inflight == 0) atomic_fetch_add(&w->store->busy_ns, lt__now_ns() - w->busy_since);
}

static void submit_piece(lt__window *w, disk_piece *p)
{
    int e = w->engine->submit(w->engine, p);
    LT_ASSERT(e == 0); /* as many slots as pieces */
}

void lt__window_pump(lt__window *w)
{
    bool any = false;
    while (w->inflight < LT__READ_DEPTH) {
        while (w->next && w->next->issued == w->next->bytes) w->next = w->next->next;
        lt__fetch *r = w->next;
        if (!r) break;
        store_file *f = lt__store_file(w->store, r->file);
        if (!w->cached && !atomic_load(&f->direct)) break; /* finish reads it, in its turn */
        lt_status st = need_engine(w, &r->err);
        if (st != LT_OK) {
            fail_read(r, st);
            continue;
        }
        disk_piece *p = w->pieces;
        while (p->used) p++;
        if (!cut_piece(w, r, f, p)) {
            if (r->status != LT_OK) continue;
            break;
        }
        if (lt__fault(w->ctx, LT_FAULT_READ)) {
            if (p->bounce >= 0) w->bounce_used[p->bounce] = false;
            p->used = false;
            fail_read(r, lt__fail_errno(&r->err, EIO, "%s: cannot read %zu bytes at %" PRIu64, f->path,
                                        p->want_bytes, p->want_from));
            continue;
        }
        r->issued += p->want_bytes;
        r->inflight++;
        if (w->inflight++ == 0) w->busy_since = lt__now_ns();
        submit_piece(w, p);
        any = true;
    }
    if (any) w->engine->flush(w->engine);
}

/* The part of a piece from `at` on, through the page cache. */
static void read_rest_plain(lt__window *w, disk_piece *p, uint64_t at)
{
    uint64_t from = lt__max_u64(at, p->want_from), end = p->want_from + p->want_bytes;
    if (from >= end) return;
    lt_err err = {0};
    lt_status st =
        lt__store_read_plain(w->store, p->file, from, p->buf + (from - p->offset), end - from, &err);
    if (st == LT_OK || p->read->status != LT_OK) return;
    p->read->err = err;
    fail_read(p->read, st);
}

static void complete_piece(lt__window *w, disk_piece *p)
{
    lt__fetch *r = p->read;
    int n = p->result;
    if (n == -EAGAIN || n == -EINTR) {
        submit_piece(w, p);
        w->engine->flush(w->engine);
        return;
    }
    size_t need = (size_t)(p->want_from + p->want_bytes - p->offset);
    if (!w->cached && (n == -EINVAL || n == -EOPNOTSUPP)) {
        lt__store_refuse_direct(w->store, p->file, -n);
        read_rest_plain(w, p, p->offset + p->got);
    } else if (n < 0) {
        if (r->status == LT_OK)
            fail_read(r, lt__fail_errno(&r->err, -n, "%s: cannot read %zu bytes at %" PRIu64, p->file->path,
                                        p->want_bytes, p->want_from));
    } else {
        if (!w->cached) atomic_fetch_add(&w->store->direct_bytes, (uint64_t)n);
        p->got += (size_t)n;
        if (p->got < need && n > 0 && p->got % LT__READ_BLOCK == 0) { /* short; ask for the rest */
            submit_piece(w, p);
            w->engine->flush(w->engine);
            return;
        }
        if (p->got < need) read_rest_plain(w, p, p->offset + p->got);
    }
    if (p->bounce >= 0 && r->status == LT_OK)
        memcpy((char *)r->dst + (p->want_from - r->offset), p->buf + (p->want_from - p->offset),
               p->want_bytes);
    drop_piece(w, p);
}

static void unlink_read(lt__window *w, lt__fetch *r)
{
    lt__fetch **link = &w->head;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    if (w->end == &r->next) w->end = link;
    if (w->next == r) w->next = r->next;
    r->queued = false;
}

lt_status lt__window_finish(lt__window *w, lt__fetch *r, lt_err *err)
{
    LT_ASSERT(r->queued);
    store_file *f = lt__store_file(w->store, r->file);
    while (!lt__window_done(r)) {
        lt__window_pump(w);
        if (lt__window_done(r)) break;
        if (w->inflight > 0) {
            disk_piece *p = w->engine->reap(w->engine, true);
            while (p) {
                complete_piece(w, p);
                p = w->engine->reap(w->engine, false);
            }
            continue;
        }
        /* Nothing is in flight, so this file is not read directly. */
        uint64_t t0 = lt__now_ns();
        lt_status st = lt__store_read_plain(w->store, f, r->offset + r->issued, (char *)r->dst + r->issued,
                                            r->bytes - r->issued, &r->err);
        atomic_fetch_add(&w->store->busy_ns, lt__now_ns() - t0);
        if (st != LT_OK) r->status = st;
        r->issued = r->bytes;
    }
    unlink_read(w, r);
    lt__window_pump(w);
    if (r->status != LT_OK) {
        if (err) *err = r->err;
        return r->status;
    }
    atomic_fetch_add(&w->store->bytes, r->bytes);
    return LT_OK;
}
