/* residency_move.c - the transfer thread: reads ahead, copies in, writes back.
 *
 * A job is one copy's load. It is cut into pieces; pieces are read in a window that runs
 * ahead across the borders of jobs and are handled in their order. Ring jobs begin in the
 * order of their slots, which is what makes the waits of one slot cover the next. */
#include "memory/residency_impl.h"

#include <inttypes.h>

enum { DEFAULT_STAGING = 8 << 20, FILLED_STAGING = 64 << 20 };

static lt_status name_error(lt_err *err, lt_status st, const char *name, const lt_err *why)
{
    return lt__fail_native(err, st, why->native, "item '%s': %s", name, why->text);
}

static res_copy *pop_job(res_jobs *l)
{
    res_copy *c = l->first;
    l->first = c->next;
    if (!l->first) l->last = NULL;
    c->next = NULL;
    return c;
}

static lt_event *undone_dep(const res_copy *c)
{
    for (size_t i = 0; i < c->deps_len; i++)
        if (!lt_event_done(c->deps[i])) return c->deps[i];
    return NULL;
}

/* Lock held. NULL with *blocked set: the next one waits for an event. */
static res_copy *pick_job(lt_residency *r, lt_event **blocked)
{
    *blocked = NULL;
    if (r->urgent.first) return pop_job(&r->urgent);
    res_copy *c = r->normal.first;
    if (!c) return NULL;
    if (r->host_visible && (*blocked = undone_dep(c))) return NULL;
    return pop_job(&r->normal);
}

/* Lock held. The job is over, well or not. */
static void finish_job(lt_residency *r, res_copy *c)
{
    r->moving--;
    if (c->status == LT_OK) {
        c->state = RES_READY;
        r->stats.bytes_in += c->bytes;
        if (c->in_ring) r->stats.streams++;
        else r->stats.loads++;
        if (c->item != LT__NO_ITEM) r->items[c->item].load_cost_ns = lt__now_ns() - c->begun_ns;
        res_trace(r, c->in_ring ? LT__TRACE_STREAM : LT__TRACE_LOAD, c->item, c->bytes, 0);
        if (!c->in_ring && r->desc.high_water && r->stats.resident > r->desc.high_water) r->trimming = true;
    } else {
        c->state = RES_FAILED;
        r->stats.failed_loads++;
        if (c->item != LT__NO_ITEM && r->items[c->item].copy == c) r->items[c->item].copy = NULL;
        if (c->leases == 0) {
            lt__log(r->ctx, LT_LOG_WARN, "residency", "prefetch failed, its lease will load again: %s",
                    c->err.text);
            if (c->item != LT__NO_ITEM && !c->in_ring) {
                r->items[c->item].room = c->block;
                c->block = (lt_block){0};
            }
            lt__res_discard(r, c);
        }
    }
    pthread_cond_broadcast(&r->moved);
}

static lt_status need_queue(lt_residency *r, lt_queue **q, lt_err *err)
{
    return *q ? LT_OK : lt_queue_create(r->dev, LT_QUEUE_COPY, q, err);
}

/* The copy queue failed: what it skipped carries the error in its events. A new one starts clean,
 * once everything the old one should have waited for has passed. */
static void replace_queue(lt_residency *r, const lt_err *why)
{
    lt__ignore(lt_queue_sync(r->in, NULL));
    lt_queue_destroy(r->in);
    r->in = NULL;
    r->in_serial++;
    res_lock(r);
    for (lt__ring_slot *s = r->ring.first; s; s = s->next) {
        res_copy *c = (res_copy *)s;
        if (c->state != RES_QUEUED)
            for (size_t i = 0; i < c->deps_len; i++) lt__ignore(lt_event_sync(c->deps[i], NULL));
    }
    if (r->lost_status == LT_OK) {
        r->lost_status = why->status;
        r->lost_err = *why;
    }
    res_unlock(r);
}

static void fail_job(lt_residency *r, res_copy *c, const char *name, lt_status st, const lt_err *why,
                     bool lost)
{
    if (lost && r->in) replace_queue(r, why);
    if (c->status != LT_OK) return;
    c->lost = lost;
    c->status = name_error(&c->err, st, name, why);
}

/* A mapping is read by several threads, when it is read at all: see ring_is_faster. */
static lt__window *window_of(lt_residency *r, const lt_source *s, lt_err *err)
{
    bool cached = !r->host_visible && lt__store_file_mode(s->store, s->file) == LT_STORE_MAPPED;
    for (size_t i = 0; i < r->windows_len; i++)
        if (r->windows[i].store == s->store && r->windows[i].cached == cached) return r->windows[i].w;
    if (lt__grow(r->ctx, (void **)&r->windows, &r->windows_cap, r->windows_len + 1, sizeof *r->windows,
                 err) != LT_OK)
        return NULL;
    lt__window *w;
    if (lt__window_create(s->store, &w, err) != LT_OK) return NULL;
    if (cached) lt__window_through_cache(w);
    r->windows[r->windows_len++] = (res_window){s->store, cached, w};
    return w;
}

static lt_status need_staging(lt_residency *r, uint64_t least, lt_err *err)
{
    if (r->staging_made) return LT_OK;
    uint64_t bytes = r->desc.staging_bytes ? r->desc.staging_bytes : least;
    lt_status st = lt__staging_init(&r->staging, r->ctx, r->dev, bytes, &r->pin_left, err);
    r->staging_made = st == LT_OK;
    return st;
}

/* Where the system locks no mappings of files, a locked ring that several threads fill is some three times faster
 * than copies from pageable memory. */
static bool ring_is_faster(lt_residency *r, const lt_source *s)
{
    return lt__pins_refused(r->pins, s->store, s->file) && need_staging(r, FILLED_STAGING, NULL) == LT_OK && r->staging.pinned;
}

/* How much of a mapped item from `at` on one copy may take; its own pins share one budget with the staging ring. */
static uint64_t pinned_span(lt_residency *r, const res_item *it, uint64_t at)
{
    const lt_source *s = &it->source;
    bool own = r->pins == &r->own_pins;
    if (own && r->desc.pin_bytes == 0) return it->bytes - at;
    if (own) r->pins->left = r->pin_left;
    uint64_t n = lt__pins_span(r->pins, s->store, s->file, s->offset + at, it->bytes - at, it->streamed);
    if (own) r->pin_left = r->pins->left;
    return n;
}

/* Everything the queue must see before it may write to the copy's bytes. A failed use is over. */
static lt_status enqueue_deps(lt_residency *r, res_copy *c, lt_err *err)
{
    for (size_t i = 0; i < c->deps_len; i++) {
        if (lt_event_done(c->deps[i]) && lt_event_sync(c->deps[i], NULL) != LT_OK) continue;
        lt_status st = lt_queue_wait(r->in, c->deps[i], err);
        if (st != LT_OK) return st;
    }
    return LT_OK;
}

static lt_status record_ready(lt_residency *r, res_copy *c, lt_err *err)
{
    res_lock(r);
    lt_event *ev = lt__res_event_take(r, err);
    res_unlock(r);
    if (!ev) return err->status != LT_OK ? err->status : LT_E_HOST_OOM;
    lt_status st = lt_event_record(ev, r->in, err);
    if (st == LT_OK) {
        c->ready = ev;
        return LT_OK;
    }
    res_lock(r);
    lt__res_event_give(r, ev);
    res_unlock(r);
    return st;
}

/* Straight from a mapping to the device, nothing read here. False: not this way. */
static bool copy_from_mapping(lt_residency *r, res_copy *c, const res_item *it)
{
    const lt_source *s = &it->source;
    lt_err err = {0};
    if (!s->store || lt__store_file_mode(s->store, s->file) != LT_STORE_MAPPED || ring_is_faster(r, s)) return false;
    const void *src;
    lt_status st = lt__store_map_checked(s->store, s->file, s->offset, it->bytes, &src, &err);
    if (st != LT_OK) {
        fail_job(r, c, it->name, st, &err, false);
        return true;
    }
    for (uint64_t at = 0, n; st == LT_OK && at < it->bytes; at += n) {
        n = pinned_span(r, it, at);
        st = lt_queue_copy_in(r->in, c->addr + at, (const char *)src + at, n, &err);
    }
    if (st == LT_OK) lt__track_mark(&r->track, r->in, LT__LANE_IN, "copy in", it->name, it->bytes);
    if (st == LT_OK) st = record_ready(r, c, &err);
    if (st == LT_E_HOST_OOM) lt__ignore(lt_queue_sync(r->in, NULL)); /* a part may be on its way to memory given back now */
    if (st != LT_OK) fail_job(r, c, it->name, st, &err, st != LT_E_HOST_OOM);
    return true;
}

/* True when the job is already over. */
static bool begin_job(lt_residency *r, res_copy *c)
{
    const res_item *it = &r->cur_item;
    lt_err err = {0};
    lt_status st = LT_OK;
    c->begun_ns = lt__now_ns();
    if (r->host_visible) return false;
    st = need_queue(r, &r->in, &err);
    if (st == LT_OK) st = enqueue_deps(r, c, &err);
    if (st != LT_OK) {
        fail_job(r, c, it->name, st, &err, st != LT_E_HOST_OOM);
        if (st == LT_E_HOST_OOM) /* what was not enqueued must have passed before anyone goes on */
            for (size_t i = 0; i < c->deps_len; i++) lt__ignore(lt_event_sync(c->deps[i], NULL));
        return true;
    }
    if (copy_from_mapping(r, c, it)) return true;
    st = need_staging(r, DEFAULT_STAGING, &err);
    if (st != LT_OK) fail_job(r, c, it->name, st, &err, false);
    return st != LT_OK;
}

/* Cuts the next piece of the current job and starts its read. False: no room to read into yet. */
static bool cut_piece(lt_residency *r, bool wait)
{
    res_copy *c = r->cur;
    const res_item *it = &r->cur_item;
    const lt_source *s = &it->source;
    uint64_t at = r->cur_off, shift = 0, bytes = it->bytes - at;
    int seg = -1;
    if (!r->host_visible) {
        seg = lt__staging_take(&r->staging, wait);
        if (seg < 0) return false;
        if (s->store) shift = (s->offset + at) % LT__READ_BLOCK;
        bytes = lt__min_u64(bytes, r->staging.seg_bytes - shift);
    }
    res_piece *p = &r->pieces[(r->piece_first + r->piece_len++) % LT__PIECES];
    *p = (res_piece){.copy = c, .off = at, .bytes = bytes, .seg = seg};
    c->pieces++;
    r->cur_off += bytes;
    if (r->cur_off == it->bytes) {
        c->cut = true;
        r->cur = NULL;
    }
    if (!s->store) return true;
    char *dst = seg >= 0 ? lt__staging_at(&r->staging, seg) + shift : (char *)(uintptr_t)(c->addr + at);
    lt_err err = {0};
    p->w = window_of(r, s, &err);
    if (!p->w) {
        fail_job(r, c, it->name, err.status, &err, false);
        return true;
    }
    /* A ring slot and a segment own the whole blocks around the bytes; a block of the pool does not. */
    p->fetch = (lt__fetch){.file = s->file, .offset = s->offset + at, .bytes = bytes, .dst = dst,
                           .spill = seg >= 0 || c->in_ring};
    p->fetched = true;
    p->begun_ns = lt__trace_is_timeline(r->trace) ? lt__now_ns() : 0;
    lt__window_queue(p->w, &p->fetch);
    lt__window_pump(p->w);
    return true;
}

static void copy_piece(lt_residency *r, const res_piece *p, const char *name, const char *src, bool last)
{
    res_copy *c = p->copy;
    lt_err err = {0};
    lt_status st = need_queue(r, &r->in, &err);
    if (p->off == 0) c->in_serial = r->in_serial;
    if (st == LT_OK && c->in_serial != r->in_serial) { /* replaced meanwhile for another's sake */
        st = lt__fail(&err, LT_E_DEVICE_LOST, "its first bytes were lost with a failed copy queue");
        lt__staging_give(&r->staging, p->seg);
        if (c->status == LT_OK) {
            c->lost = true;
            c->status = name_error(&c->err, st, name, &err);
        }
        return;
    }
    if (st == LT_OK) st = lt_queue_copy_in(r->in, c->addr + p->off, src, p->bytes, &err);
    if (st == LT_OK) {
        lt__track_mark(&r->track, r->in, LT__LANE_IN, "copy in", name, p->bytes);
        st = lt__staging_fly(&r->staging, p->seg, r->in, &err);
        if (st == LT_OK && last) st = record_ready(r, c, &err);
    } else lt__staging_give(&r->staging, p->seg);
    if (st == LT_OK) return;
    fail_job(r, c, name, st, &err, st != LT_E_HOST_OOM);
}

/* Handles the oldest piece. */
static void finish_piece(lt_residency *r)
{
    res_piece *p = &r->pieces[r->piece_first];
    res_copy *c = p->copy;
    lt_err err = {0};
    lt_status st = LT_OK;
    res_lock(r);
    const res_item it = r->items[c->item];
    res_unlock(r);
    char *dst = p->seg >= 0 ? lt__staging_at(&r->staging, p->seg) : (char *)(uintptr_t)(c->addr + p->off);
    if (p->fetched) {
        dst = p->fetch.dst;
        st = lt__window_finish(p->w, &p->fetch, &err);
    } else if (c->status == LT_OK) {
        if (lt__fault(r->ctx, LT_FAULT_READ)) st = lt__fail(&err, LT_E_IO, "its source cannot be read");
        else st = it.source.read(it.source.user, p->off, dst, p->bytes, &err);
        if (st != LT_OK && err.text[0] == 0)
            (void)lt__fail(&err, st, "its source failed at byte %" PRIu64, p->off);
    }
    uint64_t disk = st == LT_OK && p->fetched ? p->bytes : 0;
    if (disk && p->begun_ns)
        lt__trace_span(r->trace, LT__LANE_DISK, (uint64_t)lt__trace_name(r->trace, "read") << 32 | lt__trace_name(r->trace, it.name),
                       p->begun_ns, lt__now_ns(), disk);
    if (st != LT_OK) fail_job(r, c, it.name, st, &err, false);
    if (c->status != LT_OK) {
        c->cut = true;
        if (r->cur == c) r->cur = NULL;
    }
    if (p->seg >= 0) {
        if (c->status == LT_OK) copy_piece(r, p, it.name, dst, c->cut && c->pieces == 1);
        else lt__staging_give(&r->staging, p->seg);
    }
    r->piece_first = (r->piece_first + 1) % LT__PIECES;
    r->piece_len--;
    bool over = --c->pieces == 0 && (c->cut || c->status != LT_OK);
    if (over && r->cur == c) r->cur = NULL;
    /* Pieces of a failed load may still be on their way to memory that is given back now. */
    if (over && c->status != LT_OK && r->in) lt__ignore(lt_queue_sync(r->in, NULL));
    res_lock(r);
    r->stats.disk_bytes += disk;
    if (over) finish_job(r, c);
    res_unlock(r);
}

lt_status lt__res_write_back(lt_residency *r, res_copy *c, lt_err *err)
{
    res_lock(r);
    const res_item it = r->items[c->item];
    res_unlock(r);
    lt_err why = {0};
    lt_status st = LT_OK;
    if (!r->host_visible) st = need_queue(r, &r->out, &why);
    for (size_t i = 0; i < c->uses_len && st == LT_OK; i++)
        st =
            r->host_visible ? lt_event_sync(c->uses[i].ev, &why) : lt_queue_wait(r->out, c->uses[i].ev, &why);
    if (!r->host_visible && !r->wb_buf && st == LT_OK) {
        size_t want = (size_t)lt__min_u64(r->desc.staging_bytes ? r->desc.staging_bytes : 4u << 20, 4u << 20);
        r->wb_buf = lt__alloc(r->ctx, want);
        if (r->wb_buf) r->wb_bytes = want;
        else st = lt__fail_oom(&why, want, "the buffer for writing back");
    }
    for (uint64_t at = 0; at < it.bytes && st == LT_OK;) {
        uint64_t n = it.bytes - at;
        const void *src = (const void *)(uintptr_t)(c->addr + at);
        if (!r->host_visible) {
            n = lt__min_u64(n, r->wb_bytes);
            src = r->wb_buf;
            st = lt_queue_copy_out(r->out, r->wb_buf, c->addr + at, n, &why);
            lt_status s2 = lt_queue_sync(r->out, st == LT_OK ? &why : NULL);
            if (st == LT_OK) st = s2;
        }
        if (st == LT_OK && lt__fault(r->ctx, LT_FAULT_WRITE))
            st = lt__fail(&why, LT_E_IO, "its home cannot be written");
        if (st == LT_OK) st = it.source.write(it.source.user, at, src, n, &why);
        at += n;
    }
    if (st != LT_OK && r->out) { /* sticky or not: the next one starts clean */
        lt_queue_destroy(r->out);
        r->out = NULL;
    }
    if (st != LT_OK) return name_error(err, st, it.name, &why);
    res_lock(r);
    r->stats.bytes_out += it.bytes;
    res_unlock(r);
    return LT_OK;
}

/* Lock held; released while working. */
static void start_job(lt_residency *r, res_copy *c)
{
    if (c->state == RES_WRITING) {
        res_unlock(r);
        lt_err err = {0};
        lt_status st = lt__res_write_back(r, c, &err);
        res_lock(r);
        c->status = st;
        c->err = err;
        c->state = RES_READY;
        r->moving--;
        pthread_cond_broadcast(&r->moved);
        return;
    }
    c->state = RES_MOVING;
    r->cur = c;
    r->cur_item = r->items[c->item];
    r->cur_off = 0;
    res_unlock(r);
    bool over = begin_job(r, c);
    res_lock(r);
    if (over) {
        r->cur = NULL;
        finish_job(r, c);
    }
}

/* Lock held. As many pieces as there is room for. Returns the event that holds up the next job. */
static lt_event *fill_pieces(lt_residency *r)
{
    lt_event *blocked = NULL;
    while (r->piece_len < LT__PIECES) {
        if (!r->cur) {
            res_copy *c = pick_job(r, &blocked);
            if (!c) break;
            start_job(r, c);
            continue;
        }
        res_unlock(r);
        bool cut = cut_piece(r, r->piece_len == 0);
        res_lock(r);
        if (!cut) break;
    }
    return blocked;
}

/* Destroy: what has not begun never will. */
static void cancel_jobs(lt_residency *r)
{
    while (r->urgent.first || r->normal.first) {
        res_copy *c = pop_job(r->urgent.first ? &r->urgent : &r->normal);
        c->status = lt__fail(&c->err, LT_E_CANCELED, "the residency manager is being destroyed");
        r->moving--;
        c->state = RES_FAILED;
        if (c->leases == 0) lt__res_discard(r, c);
    }
}

void *lt__res_thread(void *arg)
{
    lt_residency *r = arg;
    res_lock(r);
    for (;;) {
        if (r->stop) cancel_jobs(r);
        lt_event *blocked = fill_pieces(r);
        if (r->piece_len > 0) {
            res_unlock(r);
            finish_piece(r);
            res_lock(r);
        } else if (blocked) {
            res_unlock(r);
            lt__ignore(lt_event_sync(blocked, NULL));
            res_lock(r);
        } else if (r->stop) break;
        else if (r->trimming) lt__res_trim(r);
        else if (!r->urgent.first && !r->normal.first) pthread_cond_wait(&r->work, &r->lock);
    }
    res_unlock(r);
    return NULL;
}
