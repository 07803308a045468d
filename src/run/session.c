/* session.c - one sequence of a model at work: passes, KV positions, logits, accounting. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "lowtide/session.h"
#include "lowtide/store.h"
#include "models/arch.h"

/* Reads a weight that is kept as f32 whatever the file holds. */
typedef struct converted { struct lt_session *s; const lt_weight *w; } converted;

struct lt_session {
    lt_ctx          *ctx;
    const lt_model  *model;
    const lt_plan   *plan;
    lt_device       *dev;
    lt_session_desc  desc;
    lt_store        *store;
    uint32_t        *files; uint32_t n_files; /* store's index of each part of the model */
    lt_source       *sources;
    converted       *converted;
    lt__engine      *engine;
    atomic_bool      cancel;
    uint32_t         length; /* positions whose KV is right */
    uint32_t         deepest; /* positions ever written: what windowed groups have overwritten */

    /* Host side of inputs and outputs, for the plan's batch and rows. */
    float   *embd, *rope[2], *logits;
    int32_t *pos, *table[2], *rows;
    uint8_t *row_buf; size_t row_bytes;
    size_t   embd_bytes, rope_bytes[2], logits_bytes, pos_bytes, table_bytes[2], rows_bytes;
    lt_tid   t_embd, t_pos, t_table[2], t_rope[2], t_rows, t_logits;

    lt_phase prefill, decode;
    double   prefill_floor, decode_floor, load_seconds;
    uint64_t in_after_load, in_first_pass;
    bool     first_done;
};

lt_session_desc lt_session_desc_default(void) { return (lt_session_desc){.struct_bytes = sizeof(lt_session_desc)}; }

static lt_status read_converted(void *user, uint64_t offset, void *dst, uint64_t bytes, lt_err *err)
{
    const converted *c = user;
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

static lt_status open_store(lt_session *s, lt_err *err)
{
    const lt_modelfile *f = s->model->file;
    s->n_files = lt_modelfile_parts(f);
    s->files = lt__alloc_array(s->ctx, s->n_files, sizeof *s->files);
    s->sources = lt__alloc_array(s->ctx, s->model->n_weights, sizeof *s->sources);
    s->converted = lt__alloc_array(s->ctx, s->model->n_weights, sizeof *s->converted);
    if (!s->files || !s->sources || !s->converted)
        return lt__fail_oom(err, s->model->n_weights * sizeof *s->sources, "the weights' sources");
    lt_status st = lt_store_create(s->ctx, s->plan->direct ? LT_STORE_DIRECT : LT_STORE_MAPPED, 0, &s->store, err);
    for (uint32_t i = 0; i < s->n_files && st == LT_OK; i++)
        st = lt_store_add_file(s->store, lt_modelfile_part_path(f, i), &s->files[i], err);
    if (st != LT_OK)
        return st;
    for (size_t i = 0; i < s->model->n_weights; i++) {
        const lt_weight *w = &s->model->weights[i];
        if (w->converted) {
            s->converted[i] = (converted){s, w};
            s->sources[i] = (lt_source){.read = read_converted, .user = &s->converted[i]};
        } else {
            s->sources[i] = (lt_source){.store = s->store, .file = s->files[w->info->file], .offset = w->info->offset};
        }
    }
    return LT_OK;
}

static lt_status alloc_host(lt_session *s, lt_err *err)
{
    const lt_hparams *hp = &s->model->hp;
    const lt_plan *p = s->plan;
    uint64_t batch = p->info.batch, rows = p->info.rows;
    uint64_t row = s->model->weights[s->model->embd_weight].info->bytes / hp->vocab;
    s->row_bytes = row;
    s->embd_bytes = batch * hp->embd * sizeof(float);
    s->pos_bytes = batch * sizeof(int32_t);
    s->rows_bytes = rows * sizeof(int32_t);
    s->logits_bytes = rows * hp->vocab * sizeof(float);
    s->embd = lt__alloc(s->ctx, s->embd_bytes);
    s->pos = lt__alloc(s->ctx, s->pos_bytes);
    s->rows = lt__alloc(s->ctx, s->rows_bytes);
    s->logits = lt__alloc(s->ctx, s->logits_bytes);
    s->row_buf = lt__alloc(s->ctx, s->row_bytes);
    bool ok = s->embd && s->pos && s->rows && s->logits && s->row_buf;
    for (uint32_t g = 0; g < p->n_groups && ok; g++) {
        s->table_bytes[g] = p->pages[g] * sizeof(int32_t);
        ok = (s->table[g] = lt__alloc(s->ctx, s->table_bytes[g])) != NULL;
        for (uint32_t i = 0; ok && i < p->pages[g]; i++)
            s->table[g][i] = (int32_t)i;
    }
    for (uint32_t r = 0; r < hp->rope_sets && ok; r++) {
        s->rope_bytes[r] = batch * hp->rope[r].rotated * sizeof(float);
        ok = (s->rope[r] = lt__alloc(s->ctx, s->rope_bytes[r])) != NULL;
    }
    return ok ? LT_OK : lt__fail_oom(err, s->logits_bytes + s->embd_bytes, "the session's inputs and outputs");
}

static lt_status find_tensors(lt_session *s, lt_err *err)
{
    s->t_embd = lt__engine_find(s->engine, LT_ROLE_EMBD, 0);
    s->t_pos = lt__engine_find(s->engine, LT_ROLE_POS, 0);
    s->t_rows = lt__engine_find(s->engine, LT_ROLE_ROWS, 0);
    s->t_logits = lt__engine_find(s->engine, LT_ROLE_LOGITS, 0);
    for (uint32_t g = 0; g < 2; g++) {
        s->t_table[g] = lt__engine_find(s->engine, LT_ROLE_TABLE, g);
        s->t_rope[g] = lt__engine_find(s->engine, LT_ROLE_ROPE, g);
    }
    lt_status st = LT_OK;
    if (s->t_embd == LT_NO_TENSOR || s->t_logits == LT_NO_TENSOR)
        return lt__fail(err, LT_E_INVALID, "%s: its graph has no embedding input or no logits", s->model->info.arch);
    for (uint32_t g = 0; g < s->plan->n_groups && st == LT_OK; g++)
        if (s->t_table[g] != LT_NO_TENSOR)
            st = lt__engine_write(s->engine, s->t_table[g], s->table[g], s->table_bytes[g], err);
    return st == LT_OK ? lt__engine_sync(s->engine, err) : st;
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
    s->plan = plan;
    s->dev = dev;
    s->desc = d;
    lt_status st = open_store(s, err);
    if (st == LT_OK)
        st = alloc_host(s, err);
    if (st == LT_OK) {
        lt__engine_desc ed = {.dev = dev, .plan = plan, .sources = s->sources, .cancel = &s->cancel, .trace = d.trace,
                              .progress = d.progress, .progress_user = d.progress_user};
        st = lt__engine_create(s->ctx, &ed, &s->engine, err);
    }
    if (st == LT_OK)
        st = find_tensors(s, err);
    if (st != LT_OK) {
        lt_session_destroy(s);
        return st;
    }
    s->load_seconds = (double)(lt__now_ns() - t0) * 1e-9;
    lt_residency_stats rs;
    lt_residency_get_stats(lt__engine_residency(s->engine), &rs);
    s->in_after_load = rs.bytes_in;
    *out = s;
    return LT_OK;
}

void lt_session_destroy(lt_session *s)
{
    if (!s)
        return;
    lt__engine_destroy(s->engine);
    lt_store_destroy(s->store);
    lt_ctx *ctx = s->ctx;
    lt__free(ctx, s->files, s->n_files * sizeof *s->files);
    lt__free(ctx, s->sources, s->model->n_weights * sizeof *s->sources);
    lt__free(ctx, s->converted, s->model->n_weights * sizeof *s->converted);
    lt__free(ctx, s->embd, s->embd_bytes);
    lt__free(ctx, s->pos, s->pos_bytes);
    lt__free(ctx, s->rows, s->rows_bytes);
    lt__free(ctx, s->logits, s->logits_bytes);
    lt__free(ctx, s->row_buf, s->row_bytes);
    for (int g = 0; g < 2; g++) {
        lt__free(ctx, s->table[g], s->table_bytes[g]);
        lt__free(ctx, s->rope[g], s->rope_bytes[g]);
    }
    lt__free(ctx, s, sizeof *s);
}

/* Embedding rows come from the file at every budget: a few KiB a token, and never a place to differ. */
static lt_status gather_rows(lt_session *s, const int32_t *ids, uint32_t n, lt_err *err)
{
    const lt_tensor_info *t = s->model->weights[s->model->embd_weight].info;
    uint32_t width = s->model->hp.embd;
    for (uint32_t i = 0; i < n; i++) {
        lt_status st = lt_store_read(s->store, s->files[t->file], t->offset + (uint64_t)ids[i] * s->row_bytes, s->row_buf,
                                     s->row_bytes, err);
        if (st != LT_OK)
            return st;
        lt_dtype_to_f32(t->dtype, s->row_buf, s->embd + (size_t)i * width, width);
    }
    return LT_OK;
}

static lt_status write_inputs(lt_session *s, const int32_t *ids, uint32_t n, lt_err *err)
{
    const lt_hparams *hp = &s->model->hp;
    lt_status st = gather_rows(s, ids, n, err);
    if (st != LT_OK)
        return st;
    for (uint32_t i = 0; i < n; i++)
        s->pos[i] = (int32_t)(s->length + i);
    st = lt__engine_write(s->engine, s->t_embd, s->embd, (uint64_t)n * hp->embd * sizeof(float), err);
    if (st == LT_OK && s->t_pos != LT_NO_TENSOR)
        st = lt__engine_write(s->engine, s->t_pos, s->pos, n * sizeof(int32_t), err);
    for (uint32_t r = 0; r < hp->rope_sets && st == LT_OK; r++) {
        if (s->t_rope[r] == LT_NO_TENSOR)
            continue;
        lt__model_rope(s->model, r, s->plan->info.ctx, s->pos, n, s->rope[r]);
        st = lt__engine_write(s->engine, s->t_rope[r], s->rope[r], (uint64_t)n * hp->rope[r].rotated * sizeof(float), err);
    }
    return st;
}

/* One pass of n tokens; with `head`, logits of the last one. */
static lt_status run_pass(lt_session *s, const int32_t *ids, uint32_t n, lt__part parts, bool prefill, bool check, lt_err *err)
{
    lt_status st = write_inputs(s, ids, n, err);
    if (st == LT_OK && parts & LT__PART_HEAD) {
        s->rows[0] = (int32_t)n - 1;
        st = lt__engine_write(s->engine, s->t_rows, s->rows, sizeof(int32_t), err);
    }
    if (st == LT_OK)
        st = lt__engine_run(s->engine, parts, n, 1, prefill, check, err);
    if (st == LT_OK && parts & LT__PART_HEAD)
        st = lt__engine_read(s->engine, s->t_logits, s->logits, s->model->hp.vocab * sizeof(float), err);
    lt_err late;
    lt_status sync = lt__engine_sync(s->engine, st == LT_OK ? err : &late);
    return st == LT_OK ? sync : st;
}

/* A prefix sum that is not finite tells that some logit is not; cheaper than a test each. */
static bool logits_finite(const float *v, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i] * 0.0f;
    return sum == 0.0f;
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
    p->seconds += (double)(lt__now_ns() - t0) * 1e-9;
    *(prefill ? &s->prefill_floor : &s->decode_floor) += lt__plan_floor_seconds(s->plan, n, s->length);
    s->length += n;
    s->deepest = s->length > s->deepest ? s->length : s->deepest;
    if (!s->first_done) {
        lt_residency_stats rs;
        lt_residency_get_stats(lt__engine_residency(s->engine), &rs);
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
        uint32_t m = (uint32_t)lt__min_u64(n - done, s->plan->info.batch);
        lt__part parts = done + m == n ? LT__PART_ALL : LT__PART_BODY;
        uint64_t t0 = lt__now_ns();
        if ((st = lt__engine_expect(s->engine, parts, err)) == LT_OK)
            st = run_pass(s, ids + done, m, parts, prefill, s->desc.check_finite, err);
        if (st == LT_OK && parts == LT__PART_ALL && !logits_finite(s->logits, s->model->hp.vocab)) {
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
        *logits = s->logits;
    return st;
}

/* The head over all rows of the pass, as many at a time as the plan has room for. */
static lt_status score_rows(lt_session *s, uint32_t n, size_t first, lt_logits_fn *fn, void *user, lt_err *err)
{
    uint32_t vocab = s->model->hp.vocab;
    for (uint32_t r = 0; r < n;) {
        uint32_t m = (uint32_t)lt__min_u64(n - r, s->plan->info.rows);
        for (uint32_t i = 0; i < m; i++)
            s->rows[i] = (int32_t)(r + i);
        lt_status st = lt__engine_write(s->engine, s->t_rows, s->rows, m * sizeof(int32_t), err);
        if (st == LT_OK)
            st = lt__engine_run(s->engine, LT__PART_HEAD, n, m, true, s->desc.check_finite, err);
        if (st == LT_OK)
            st = lt__engine_read(s->engine, s->t_logits, s->logits, (uint64_t)m * vocab * sizeof(float), err);
        if (st == LT_OK)
            st = lt__engine_sync(s->engine, err);
        for (uint32_t i = 0; i < m && st == LT_OK; i++)
            st = fn(user, first + r + i, s->logits + (size_t)i * vocab, err);
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
        uint32_t m = (uint32_t)lt__min_u64(n - done, s->plan->info.batch);
        uint64_t t0 = lt__now_ns();
        /* One sweep of the head a pass keeps the streaming order whole; more sweeps re-declare it. */
        bool single = m <= s->plan->info.rows;
        st = lt__engine_expect(s->engine, single ? LT__PART_ALL : LT__PART_BODY, err);
        if (st == LT_OK)
            st = run_pass(s, ids + done, m, LT__PART_BODY, true, s->desc.check_finite, err);
        if (st == LT_OK && !single)
            st = lt__engine_expect(s->engine, LT__PART_HEAD, err);
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
        if (newest >= need + s->plan->pages[g])
            return lt__fail(err, LT_E_INVALID, "cannot go back to %u: the window of %u before it was overwritten at %u; go back to 0",
                            length, w, s->deepest);
    }
    s->length = length;
    if (!length)
        s->deepest = 0;
    return LT_OK;
}

void lt_session_cancel(lt_session *s) { atomic_store(&s->cancel, true); }

lt_status lt_session_check(lt_session *s, lt_err *err)
{
    lt_status st = lt_pool_check(lt__engine_pool(s->engine), err);
    return st == LT_OK ? lt_residency_check(lt__engine_residency(s->engine), err) : st;
}

void lt_session_get_report(const lt_session *s, lt_report *r)
{
    memset(r, 0, sizeof *r);
    lt_pool_get_stats(lt__engine_pool(s->engine), &r->pool);
    lt_residency_get_stats(lt__engine_residency(s->engine), &r->residency);
    lt_device_get_stats(s->dev, &r->device);
    lt_store_stats ss;
    lt_store_get_stats(s->store, &ss);
    const lt_plan_info *i = &s->plan->info;
    r->budget_bytes = i->budget_bytes;
    r->fixed_bytes = i->fixed_bytes;
    r->peak_bytes = i->fixed_bytes + r->device.peak_committed_bytes;
    r->host_peak_bytes = lt__host_rss_peak();
    r->host_swapped_bytes = lt__host_swapped();
    r->h2d_bytes = r->device.h2d_bytes;
    r->d2h_bytes = r->device.d2h_bytes;
    r->disk_bytes = ss.bytes;
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
