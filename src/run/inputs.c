/* inputs.c - what the host makes for a pass: rows of the embedding, positions, angles. Nothing is computed
 * before they are there, so those of a long prompt are made by several threads. */
#include <pthread.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "memory/store_window.h"
#include "run/session_impl.h"

enum { PARTS_MOST = 8, PART_LEAST = 128 };

typedef struct part {
    lt_session     *s;
    const lt__rows *rows;
    uint32_t        first, n;
    lt_status       status;
    lt_err          err;
    pthread_t       thread;
    bool            started;
} part;

/* Embedding rows come from the file at every budget: a few KiB a token, and never a place to differ. */
static lt_status gather(lt_session *s, const int32_t *ids, uint32_t n, float *embd, bool alone, lt_err *err)
{
    const lt_tensor_info *t = s->model->weights[s->model->embd_weight].info;
    uint32_t width = s->model->hp.embd, file = s->files[t->file];
    void *own = NULL, *buf = alone ? s->row_buf : NULL;
    lt_status st = LT_OK;
    for (uint32_t i = 0; i < n && st == LT_OK; i++) {
        uint64_t at = t->offset + (uint64_t)ids[i] * s->row_bytes;
        const void *row = NULL;
        st = lt__store_map_checked(s->store, file, at, s->row_bytes, &row, err);
        if (st == LT_OK && !row) {
            if (!buf && !(buf = own = lt__alloc(s->ctx, s->row_bytes)))
                return lt__fail_oom(err, s->row_bytes, "a row of the embedding");
            st = lt_store_read(s->store, file, at, buf, s->row_bytes, err);
            row = buf;
        }
        if (st == LT_OK)
            lt_dtype_to_f32(t->dtype, row, embd + (size_t)i * width, width);
    }
    lt__free(s->ctx, own, s->row_bytes);
    return st;
}

static void *fill_part(void *arg)
{
    part *p = arg;
    lt_session *s = p->s;
    const lt_hparams *hp = &s->model->hp;
    const lt__rows *rows = p->rows;
    int32_t *pos = rows->pos + p->first;
    for (uint32_t i = 0; i < p->n; i++)
        pos[i] = (int32_t)(s->length + p->first + i);
    const float *ready = s->next_rope;
    for (uint32_t r = 0; r < hp->rope_sets; ready += hp->rope[r++].rotated) {
        float *out = rows->rope[r] ? rows->rope[r] + (size_t)p->first * hp->rope[r].rotated : NULL;
        if (out && rows->n == 1 && pos[0] == s->next_pos) /* made while the last token was computed */
            memcpy(out, ready, hp->rope[r].rotated * sizeof(float));
        else if (out)
            lt__model_rope(s->model, r, s->plan->info.ctx, pos, p->n, out);
    }
    p->status = gather(s, rows->ids + p->first, p->n, rows->embd + (size_t)p->first * hp->embd, p->n == rows->n,
                       &p->err);
    return NULL;
}

lt_status lt__session_fill_rows(lt_session *s, const lt__rows *rows, lt_err *err)
{
    part parts[PARTS_MOST] = {0};
    uint32_t n = 1;
    if (rows->n >= 2 * PART_LEAST) {
        lt__host_limits l;
        lt__host_limits_get(&l);
        n = (uint32_t)lt__min_u64(lt__min_u64(l.cores, PARTS_MOST), rows->n / PART_LEAST);
    }
    for (uint32_t k = 0; k < n; k++) {
        uint32_t first = (uint32_t)((uint64_t)rows->n * k / n), end = (uint32_t)((uint64_t)rows->n * (k + 1) / n);
        parts[k] = (part){.s = s, .rows = rows, .first = first, .n = end - first};
        parts[k].started = k + 1 < n && pthread_create(&parts[k].thread, NULL, fill_part, &parts[k]) == 0;
        if (!parts[k].started)
            fill_part(&parts[k]);
    }
    lt_status st = LT_OK;
    for (uint32_t k = 0; k < n; k++) {
        if (parts[k].started)
            pthread_join(parts[k].thread, NULL);
        if (parts[k].status == LT_OK || st != LT_OK)
            continue;
        st = parts[k].status;
        if (err)
            *err = parts[k].err;
    }
    return st;
}
