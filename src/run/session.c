/* session.c - one sequence of a model at work: passes, KV positions, logits, accounting. */
#include <math.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "run/session_impl.h"

lt_session_desc lt_session_desc_default(void) { return (lt_session_desc){.struct_bytes = sizeof(lt_session_desc)}; }

static lt_status read_converted(void *user, uint64_t offset, void *dst, uint64_t bytes, lt_err *err)
{
    const lt__converted *c = user;
    const lt_tensor_info *t = c->w->info;
    const lt_dtype_traits *tr = lt_dtype_get(t->dtype);
    uint64_t first = offset / sizeof(float), n = bytes / sizeof(float), raw = n / tr->block_elems * tr->block_bytes;
    if (offset % sizeof(float) || bytes % sizeof(float) || n % tr->block_elems || first % tr->block_elems)
        return lt__fail(err, LT_E_INVALID, "%s: a read of %lu bytes at %lu cuts an element", t->name, bytes, offset);
    void *buf = lt__alloc(c->s->ctx, raw);
    if (!buf)
        return lt__fail_oom(err, raw, t->name);
    lt_status s = lt_store_read(c->s->store, c->s->files[t->file], t->offset + first / tr->block_elems * tr->block_bytes,
                                buf, raw, err);
    if (s == LT_OK) {
        lt_dtype_to_f32(t->dtype, buf, dst, n);
        for (uint64_t i = 0; t->add != 0 && i < n; i++)
            ((float *)dst)[i] += t->add;
    }
    lt__free(c->s->ctx, buf, raw);
    return s;
}

/* Sources point into the store: no engine may be there. */
lt_status lt__session_open_store(lt_session *s, bool direct, lt_err *err)
{
    const lt_modelfile *f = s->model->file;
    lt_store *store;
    lt_status st = lt_store_create(s->ctx, direct ? LT_STORE_DIRECT : LT_STORE_MAPPED, 0, &store, err);
    if (st != LT_OK)
        return st;
    for (uint32_t i = 0; i < s->n_files && st == LT_OK; i++)
        st = lt_store_add_file(store, lt_modelfile_part_path(f, i), &s->files[i], err);
    if (st != LT_OK) {
        lt_store_destroy(store);
        return st;
    }
    if (s->store) {
        lt_store_stats ss;
        lt_store_get_stats(s->store, &ss);
        s->store_past_bytes += ss.bytes;
        lt__pins_deinit(&s->pins);
        lt_store_destroy(s->store);
    }
    s->store = store;
    s->store_direct = direct;
    lt__pins_init(&s->pins, s->ctx, s->dev, UINT64_MAX);
    for (size_t i = 0; i < s->model->n_weights; i++) {
        const lt_weight *w = &s->model->weights[i];
        if (w->converted) {
            s->converted[i] = (lt__converted){s, w};
            s->sources[i] = (lt_source){.read = read_converted, .user = &s->converted[i]};
        } else {
            s->sources[i] = (lt_source){.store = store, .file = s->files[w->info->file], .offset = w->info->offset};
        }
    }
    return LT_OK;
}

static lt_status alloc_tables(lt_session *s, lt_err *err)
{
    s->n_files = lt_modelfile_parts(s->model->file);
    s->files = lt__alloc_array(s->ctx, s->n_files, sizeof *s->files);
    s->sources = lt__alloc_array(s->ctx, s->model->n_weights, sizeof *s->sources);
    s->converted = lt__alloc_array(s->ctx, s->model->n_weights, sizeof *s->converted);
    s->row_bytes = s->model->weights[s->model->embd_weight].info->bytes / s->model->hp.vocab;
    s->row_buf = lt__alloc(s->ctx, s->row_bytes);
    for (uint32_t r = 0; r < s->model->hp.rope_sets; r++)
        s->next_rope_bytes += s->model->hp.rope[r].rotated * sizeof(float);
    s->next_rope = lt__alloc(s->ctx, s->next_rope_bytes);
    s->next_pos = -1;
    bool ok = s->files && s->sources && s->converted && s->row_buf && s->next_rope;
    return ok ? LT_OK : lt__fail_oom(err, s->model->n_weights * sizeof *s->sources, "the weights' sources");
}

#define PAGE ((size_t)4096)

static lt_status alloc_area(lt_session *s, lt__host_area *a, uint64_t bytes, lt_err *err)
{
    lt_device_info info;
    lt_err why;
    lt_device_get_info(s->dev, &info);
    a->bytes = (size_t)lt__round_up(bytes, PAGE);
    a->block = lt__alloc(s->ctx, a->bytes + PAGE);
    if (!a->block)
        return lt__fail_oom(err, a->bytes + PAGE, "the session's inputs and outputs");
    a->at = (uint8_t *)lt__round_up((uintptr_t)a->block, PAGE);
    bool gains = !info.host_visible && !info.memlock;
    a->pinned = gains && lt_device_pin(s->dev, a->at, a->bytes, &why) == LT_OK;
    if (gains && !a->pinned)
        lt__log(s->ctx, LT_LOG_DEBUG, "session", "inputs and outputs are copied from pageable memory: %s", why.text);
    return LT_OK;
}

static void free_area(lt_session *s, lt__host_area *a)
{
    if (a->pinned)
        lt_device_unpin(s->dev, a->at, a->bytes);
    lt__free(s->ctx, a->block, a->bytes + PAGE);
}

lt_status lt__session_alloc_io(lt_session *s, const lt_plan *p, lt__host_io *io, lt_err *err)
{
    const lt_hparams *hp = &s->model->hp;
    uint32_t batch = p->info.batch, rows = p->info.rows;
    *io = (lt__host_io){0};
    lt_status st = alloc_area(s, &io->inputs, lt__graph_input_offset(&p->graph, LT_NO_TENSOR, batch, rows, LT__PLAN_ALIGN), err);
    if (st == LT_OK)
        st = alloc_area(s, &io->outputs, (uint64_t)rows * hp->vocab * sizeof(float), err);
    io->logits = (float *)(void *)io->outputs.at;
    for (uint32_t g = 0; g < p->n_groups && st == LT_OK; g++) {
        io->table_bytes[g] = p->pages[g] * sizeof(int32_t);
        if (!(io->table[g] = lt__alloc(s->ctx, io->table_bytes[g])))
            st = lt__fail_oom(err, io->table_bytes[g], "the session's page tables");
        for (uint32_t i = 0; io->table[g] && i < p->pages[g]; i++)
            io->table[g][i] = (int32_t)i;
    }
    if (st != LT_OK)
        lt__session_free_io(s, io);
    return st;
}

void lt__session_free_io(lt_session *s, lt__host_io *io)
{
    free_area(s, &io->inputs);
    free_area(s, &io->outputs);
    for (int g = 0; g < 2; g++)
        lt__free(s->ctx, io->table[g], io->table_bytes[g]);
    *io = (lt__host_io){0};
}

lt_status lt__session_find_tensors(lt_session *s, lt_err *err)
{
    s->t_embd = lt__engine_find(s->engine, LT_ROLE_EMBD, 0);
    s->t_pos = lt__engine_find(s->engine, LT_ROLE_POS, 0);
    s->t_rows = lt__engine_find(s->engine, LT_ROLE_ROWS, 0);
    s->t_logits = lt__engine_find(s->engine, LT_ROLE_LOGITS, 0);
    for (uint32_t g = 0; g < 2; g++) {
        s->t_table[g] = lt__engine_find(s->engine, LT_ROLE_TABLE, g);
        s->t_rope[g] = lt__engine_find(s->engine, LT_ROLE_ROPE, g);
        s->t_kv[g] = lt__engine_find(s->engine, LT_ROLE_KV, g);
    }
    lt_status st = LT_OK;
    if (s->t_embd == LT_NO_TENSOR || s->t_pos == LT_NO_TENSOR || s->t_rows == LT_NO_TENSOR || s->t_logits == LT_NO_TENSOR)
        return lt__fail(err, LT_E_INVALID, "%s: its graph has no embeddings, positions, rows or logits", s->model->info.arch);
    for (uint32_t g = 0; g < s->plan->n_groups && st == LT_OK; g++)
        if (s->t_table[g] != LT_NO_TENSOR)
            st = lt__engine_write(s->engine, s->t_table[g], s->io.table[g], s->io.table_bytes[g], err);
    return st == LT_OK ? lt__engine_sync(s->engine, err) : st;
}

lt_status lt__session_make_engine(lt_session *s, const lt_plan *p, bool quiet, lt_err *err)
{
    lt__engine_desc ed = {.dev = s->dev, .plan = p, .sources = s->sources, .cancel = &s->cancel, .trace = s->desc.trace,
                          .pins = &s->pins, .arena = lt__session_published, .arena_user = s, .progress = quiet ? NULL : s->desc.progress,
                          .progress_user = s->desc.progress_user};
    s->making = p;
    return lt__engine_create(s->ctx, &ed, &s->engine, err);
}

lt_status lt_session_create(const lt_model *m, lt_device *dev, const lt_plan *plan, const lt_session_desc *desc,
                            lt_session **out, lt_err *err)
{
    *out = NULL;
    lt_session_desc d = desc ? *desc : lt_session_desc_default();
    if (d.struct_bytes != sizeof d)
        return lt__fail(err, LT_E_INVALID, "lt_session_desc: struct_bytes is %u, expected %zu", d.struct_bytes, sizeof d);
    if (plan->model != m)
        return lt__fail(err, LT_E_INVALID, "the plan was made for another model");
    uint64_t t0 = lt__now_ns();
    lt_session *s = lt__zalloc(m->ctx, sizeof *s);
    if (!s)
        return lt__fail_oom(err, sizeof *s, "a session");
    s->ctx = m->ctx;
    s->model = m;
    s->plan = s->first = plan;
    s->dev = dev;
    s->desc = d;
    s->budget_most = plan->info.budget_bytes;
    lt__session_watch(s);
    lt__session_open_page(s);
    lt_device_info info;
    lt_device_get_info(dev, &info);
    if (strcmp(info.kind, "cuda") == 0)
        lt__nvtx_open(&s->nvtx);
    lt_status st = alloc_tables(s, err);
    if (st == LT_OK)
        st = lt__session_open_store(s, plan->direct, err);
    if (st == LT_OK)
        st = lt__session_alloc_io(s, plan, &s->io, err);
    if (st == LT_OK)
        st = lt__session_first_engine(s, err);
    if (st != LT_OK) {
        lt_session_destroy(s);
        return st;
    }
    s->load_seconds = (double)(lt__now_ns() - t0) * 1e-9;
    lt_residency_stats rs;
    lt__session_residency_stats(s, &rs);
    s->in_after_load = rs.bytes_in;
    lt__session_publish(s, "idle", true);
    *out = s;
    return LT_OK;
}

void lt_session_destroy(lt_session *s)
{
    if (!s)
        return;
    lt__engine_destroy(s->engine);
    /* At once: to unlock files takes seconds, in which others already use the arena's memory. */
    lt__share_publish(s->desc.share, 0, 0, 0);
    lt__watcher_close(s->watcher);
    lt__session_drop_saved(s);
    lt__pins_deinit(&s->pins);
    lt_store_destroy(s->store);
    lt_plan_destroy(s->own);
    lt_ctx *ctx = s->ctx;
    lt__free(ctx, s->files, s->n_files * sizeof *s->files);
    lt__free(ctx, s->sources, s->model->n_weights * sizeof *s->sources);
    lt__free(ctx, s->converted, s->model->n_weights * sizeof *s->converted);
    lt__free(ctx, s->row_buf, s->row_bytes);
    lt__free(ctx, s->next_rope, s->next_rope_bytes);
    lt__nvtx_close(&s->nvtx);
    lt__session_free_io(s, &s->io);
    lt__free(ctx, s->changes, s->cap_changes * sizeof *s->changes);
    lt__free(ctx, s, sizeof *s);
}

static void *input_at(lt_session *s, lt_tid t, uint32_t n, uint32_t rows)
{
    return s->io.inputs.at + lt__engine_input_offset(s->engine, t, n, rows);
}

static void expect_position(lt_session *s, uint32_t pos)
{
    const lt_hparams *hp = &s->model->hp;
    float *out = s->next_rope;
    s->next_pos = (int32_t)pos;
    for (uint32_t r = 0; r < hp->rope_sets; out += hp->rope[r++].rotated)
        lt__model_rope(s->model, r, s->plan->info.ctx, &s->next_pos, 1, out);
}

/* All inputs of a pass whose head takes the last token's row, in one copy. */
static lt_status write_inputs(lt_session *s, const int32_t *ids, uint32_t n, lt_err *err)
{
    lt__rows rows = {.ids = ids, .n = n, .pos = input_at(s, s->t_pos, n, 1), .embd = input_at(s, s->t_embd, n, 1)};
    for (uint32_t r = 0; r < s->model->hp.rope_sets; r++)
        rows.rope[r] = s->t_rope[r] == LT_NO_TENSOR ? NULL : input_at(s, s->t_rope[r], n, 1);
    lt_status st = lt__session_fill_rows(s, &rows, err);
    if (st != LT_OK)
        return st;
    *(int32_t *)input_at(s, s->t_rows, n, 1) = (int32_t)n - 1;
    return lt__engine_write_inputs(s->engine, 0, s->io.inputs.at, lt__engine_input_offset(s->engine, LT_NO_TENSOR, n, 1), err);
}

/* One pass of n tokens; with the head, logits of the last one. */
static lt_status run_pass(lt_session *s, const int32_t *ids, uint32_t n, lt__part parts, bool prefill, bool check, lt_err *err)
{
    lt__nvtx_push(&s->nvtx, prefill ? "prompt pass" : "decode pass");
    lt_status st = write_inputs(s, ids, n, err);
    if (st == LT_OK)
        st = lt__engine_run(s->engine, parts, n, 1, prefill, check, err);
    if (st == LT_OK && parts & LT__PART_HEAD)
        st = lt__engine_read(s->engine, s->t_logits, s->io.logits, s->model->hp.vocab * sizeof(float), err);
    if (st == LT_OK)
        expect_position(s, s->length + n);
    lt_err late;
    lt_status sync = lt__engine_sync(s->engine, st == LT_OK ? err : &late);
    lt__nvtx_pop(&s->nvtx);
    return st == LT_OK ? sync : st;
}

/* Of infinities and NaNs all bits of the exponent are set. */
static bool logits_finite(const float *v, uint32_t n)
{
    uint32_t most[16] = {0}, i = 0, bits;
    for (; i + 16 <= n; i += 16)
        for (uint32_t k = 0; k < 16; k++) {
            memcpy(&bits, v + i + k, sizeof bits);
            bits &= 0x7fffffffu;
            most[k] = bits > most[k] ? bits : most[k];
        }
    for (; i < n; i++)
        if (!isfinite(v[i]))
            return false;
    for (uint32_t k = 0; k < 16; k++)
        if (most[k] >= 0x7f800000u)
            return false;
    return true;
}

static lt_status check_tokens(lt_session *s, const int32_t *ids, size_t n, lt_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= s->model->hp.vocab)
            return lt__fail(err, LT_E_INVALID, "token %zu is %d: the vocabulary has 0 to %u", i, ids[i], s->model->hp.vocab - 1);
    if (n == 0)
        return lt__fail(err, LT_E_INVALID, "no tokens to evaluate");
    if (n > s->plan->info.ctx - s->length)
        return lt__fail(err, LT_E_NO_FIT, "%zu more tokens after %u: the context of this plan holds %u", n, s->length,
                        s->plan->info.ctx);
    return LT_OK;
}

static void count_pass(lt_session *s, bool prefill, uint32_t n, uint64_t t0)
{
    lt_phase *p = prefill ? &s->prefill : &s->decode;
    p->tokens += n;
    double seconds = (double)(lt__now_ns() - t0) * 1e-9;
    p->seconds += seconds;
    if (!prefill) {
        s->since.tokens += n;
        s->since.seconds += seconds;
    }
    *(prefill ? &s->prefill_floor : &s->decode_floor) += lt__plan_floor_seconds(s->plan, n, s->length);
    s->length += n;
    s->deepest = s->length > s->deepest ? s->length : s->deepest;
    lt__session_publish(s, prefill ? "prompt" : "decode", false);
    if (!s->first_done) {
        lt_residency_stats rs;
        lt__session_residency_stats(s, &rs);
        s->in_first_pass = rs.bytes_in;
        s->first_done = true;
    }
}

lt_status lt_session_eval(lt_session *s, const int32_t *ids, size_t n, const float **logits, lt_err *err)
{
    *logits = NULL;
    lt_status st = check_tokens(s, ids, n, err);
    bool prefill = n > 1 || s->length == 0;
    for (size_t done = 0; done < n && st == LT_OK;) {
        if ((st = lt__session_before_pass(s, err)) != LT_OK)
            break;
        uint32_t m = (uint32_t)lt__min_u64(n - done, s->plan->info.batch);
        lt__part parts = done + m == n ? LT__PART_ALL : LT__PART_BODY;
        uint64_t t0 = lt__now_ns();
        if ((st = lt__engine_expect(s->engine, parts, prefill, err)) == LT_OK)
            st = run_pass(s, ids + done, m, parts, prefill, s->desc.check_finite, err);
        if (st == LT_OK && parts == LT__PART_ALL && !logits_finite(s->io.logits, s->model->hp.vocab)) {
            /* The same pass again writes the same KV; node by node it tells where it broke. */
            st = run_pass(s, ids + done, m, parts, prefill, true, err);
            if (st == LT_OK)
                st = lt__fail(err, LT_E_FORMAT, "the logits are not finite");
        }
        if (st != LT_OK)
            break;
        count_pass(s, prefill, m, t0);
        done += m;
        if (s->desc.progress && n > 1)
            s->desc.progress(s->desc.progress_user, "reading", done, n);
    }
    atomic_store(&s->cancel, false);
    if (st == LT_OK)
        *logits = s->io.logits;
    return st;
}

/* The head over all rows of the pass, as many at a time as the plan has room for. */
static lt_status score_rows(lt_session *s, uint32_t n, size_t first, lt_logits_fn *fn, void *user, lt_err *err)
{
    uint32_t vocab = s->model->hp.vocab;
    for (uint32_t r = 0; r < n;) {
        uint32_t m = (uint32_t)lt__min_u64(n - r, s->plan->info.rows);
        int32_t *rows = input_at(s, s->t_rows, n, m);
        for (uint32_t i = 0; i < m; i++)
            rows[i] = (int32_t)(r + i);
        lt_status st = lt__engine_write_inputs(s->engine, lt__engine_input_offset(s->engine, s->t_rows, n, m), rows,
                                               m * sizeof(int32_t), err);
        if (st == LT_OK)
            st = lt__engine_run(s->engine, LT__PART_HEAD, n, m, true, s->desc.check_finite, err);
        if (st == LT_OK)
            st = lt__engine_read(s->engine, s->t_logits, s->io.logits, (uint64_t)m * vocab * sizeof(float), err);
        if (st == LT_OK)
            st = lt__engine_sync(s->engine, err);
        for (uint32_t i = 0; i < m && st == LT_OK; i++)
            st = fn(user, first + r + i, s->io.logits + (size_t)i * vocab, err);
        if (st != LT_OK)
            return st;
        r += m;
    }
    return LT_OK;
}

lt_status lt_session_score(lt_session *s, const int32_t *ids, size_t n, lt_logits_fn *fn, void *user, lt_err *err)
{
    lt_status st = check_tokens(s, ids, n, err);
    for (size_t done = 0; done < n && st == LT_OK;) {
        if ((st = lt__session_before_pass(s, err)) != LT_OK)
            break;
        uint32_t m = (uint32_t)lt__min_u64(n - done, s->plan->info.batch);
        uint64_t t0 = lt__now_ns();
        /* One sweep of the head a pass keeps the streaming order whole; more sweeps re-declare it. */
        bool single = m <= s->plan->info.rows;
        st = lt__engine_expect(s->engine, single ? LT__PART_ALL : LT__PART_BODY, true, err);
        if (st == LT_OK)
            st = run_pass(s, ids + done, m, LT__PART_BODY, true, s->desc.check_finite, err);
        if (st == LT_OK && !single)
            st = lt__engine_expect(s->engine, LT__PART_HEAD, true, err);
        if (st == LT_OK)
            st = score_rows(s, m, done, fn, user, err);
        if (st != LT_OK)
            break;
        count_pass(s, true, m, t0);
        done += m;
        if (s->desc.progress)
            s->desc.progress(s->desc.progress_user, "scoring", done, n);
    }
    atomic_store(&s->cancel, false);
    return st;
}

uint32_t lt_session_length(const lt_session *s) { return s->length; }

lt_status lt_session_truncate(lt_session *s, uint32_t length, lt_err *err)
{
    if (length > s->length)
        return lt__fail(err, LT_E_INVALID, "cannot go back to %u: the sequence has %u tokens", length, s->length);
    for (uint32_t g = 0; g < s->plan->n_groups && length && s->deepest; g++) {
        /* A windowed group keeps its last pages only; the window before `length` must be among them. */
        uint32_t w = s->plan->groups[g].window;
        uint32_t need = (w && length > w ? length - w : 0) / LT_KV_PAGE, newest = (s->deepest - 1) / LT_KV_PAGE;
        if (newest >= need + s->plan->pages[g] || need < s->oldest[g])
            return lt__fail(err, LT_E_INVALID, "cannot go back to %u: the window of %u before it was overwritten at %u; go back to 0",
                            length, w, s->deepest);
    }
    s->length = length;
    if (!length)
        s->deepest = s->oldest[0] = s->oldest[1] = 0;
    return LT_OK;
}

void lt_session_cancel(lt_session *s) { atomic_store(&s->cancel, true); }

lt_status lt_session_check(lt_session *s, lt_err *err)
{
    if (!s->engine)
        return LT_OK;
    lt_status st = lt_pool_check(lt__engine_pool(s->engine), err);
    return st == LT_OK ? lt_residency_check(lt__engine_residency(s->engine), err) : st;
}

void lt__session_residency_stats(const lt_session *s, lt_residency_stats *out)
{
    lt_residency_stats now = {0}, *a = out;
    const lt_residency_stats *b = &s->past;
    if (s->engine)
        lt_residency_get_stats(lt__engine_residency(s->engine), &now);
    *a = now;
    a->leases += b->leases;
    a->hits += b->hits;
    a->loads += b->loads;
    a->streams += b->streams;
    a->evictions += b->evictions;
    a->prefetched += b->prefetched;
    a->prefetch_wasted += b->prefetch_wasted;
    a->failed_loads += b->failed_loads;
    a->bytes_in += b->bytes_in;
    a->bytes_out += b->bytes_out;
    a->disk_bytes += b->disk_bytes;
    a->stall_ns += b->stall_ns;
    a->ring_peak = lt__max_u64(a->ring_peak, b->ring_peak);
}

size_t lt_session_budget_change_count(const lt_session *s) { return s->n_changes; }
lt_budget_change lt_session_budget_change_at(const lt_session *s, size_t i) { return s->changes[i]; }

void lt_session_get_report(const lt_session *s, lt_report *r)
{
    memset(r, 0, sizeof *r);
    r->pool = s->last_pool;
    if (s->engine)
        lt_pool_get_stats(lt__engine_pool(s->engine), &r->pool);
    lt__session_residency_stats(s, &r->residency);
    lt_device_get_stats(s->dev, &r->device);
    lt_store_stats ss;
    lt_store_get_stats(s->store, &ss);
    const lt_plan_info *i = &s->plan->info;
    r->budget_bytes = s->budget_most;
    r->budget_now_bytes = i->budget_bytes;
    r->reserve_missed_bytes = s->missed;
    r->budget_seconds = s->change_seconds;
    r->since_change = s->since;
    r->since_change.tps = s->since.seconds > 0 ? (double)s->since.tokens / s->since.seconds : 0;
    r->fixed_bytes = i->fixed_bytes;
    r->peak_bytes = i->fixed_bytes + r->device.peak_committed_bytes;
    r->host_peak_bytes = lt__host_rss_peak();
    r->host_swapped_bytes = lt__host_swapped();
    r->h2d_bytes = r->device.h2d_bytes;
    r->d2h_bytes = r->device.d2h_bytes;
    r->disk_bytes = s->store_past_bytes + ss.bytes;
    r->mapped_bytes = s->past_mapped + (s->engine ? lt__engine_mapped_bytes(s->engine) : 0);
    r->resident_bytes = r->residency.resident;
    r->streamed_loads = r->residency.streams;
    r->h2d_after_first = s->first_done ? r->residency.bytes_in - s->in_first_pass : 0;
    r->stall_seconds = (double)r->residency.stall_ns * 1e-9;
    r->load_seconds = s->load_seconds;
    r->prefill = s->prefill;
    r->decode = s->decode;
    r->prefill.tps = s->prefill.seconds > 0 ? (double)s->prefill.tokens / s->prefill.seconds : 0;
    r->decode.tps = s->decode.seconds > 0 ? (double)s->decode.tokens / s->decode.seconds : 0;
    r->prefill.floor_tps = s->prefill_floor > 0 ? (double)s->prefill.tokens / s->prefill_floor : 0;
    r->decode.floor_tps = s->decode_floor > 0 ? (double)s->decode.tokens / s->decode_floor : 0;
}
