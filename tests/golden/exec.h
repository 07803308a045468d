/* exec.h - runs a model's graph node by node with the reference ops: everything resident, one
 * thread, nothing planned. Tests hold builders and the engine against it. */
#ifndef LT_TESTS_GOLDEN_EXEC_H
#define LT_TESTS_GOLDEN_EXEC_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/ops.h"
#include "base/mem.h"
#include "models/arch.h"

typedef struct exec_opts {
    lt_dtype   kv;
    lt_cpu_isa isa;
    uint32_t   pass;    /* tokens a pass; 0: all at once */
    uint32_t   context; /* 0: as many as there are tokens */
    uint32_t   slice;   /* experts a launch; 0: all at once */
    void (*edit)(lt_graph *g, void *user); /* plants a bug */
    void (*spoil)(const lt_weight *w, void *bytes); /* likewise, in each weight */
    void *user;
} exec_opts;

static bool exec_read(const lt_modelfile *f, const lt_tensor_info *t, uint64_t offset, void *dst, uint64_t bytes)
{
    int fd = open(lt_modelfile_part_path(f, t->file), O_RDONLY);
    uint64_t done = 0;
    while (fd >= 0 && done < bytes) {
        ssize_t n = pread(fd, (char *)dst + done, bytes - done, (off_t)(t->offset + offset + done));
        if (n <= 0)
            break;
        done += (uint64_t)n;
    }
    if (fd >= 0)
        close(fd);
    return done == bytes;
}

static void *exec_load(const struct lt_model *m, const lt_weight *w)
{
    uint64_t n = w->dim[0];
    for (uint32_t i = 1; i < w->ndim; i++)
        n *= w->dim[i];
    void *raw = malloc(w->info->bytes);
    if (!raw || !exec_read(m->file, w->info, 0, raw, w->info->bytes)) {
        free(raw);
        return NULL;
    }
    if (!w->converted)
        return raw;
    float *f = malloc(n * sizeof *f);
    if (f) {
        lt_dtype_to_f32(w->info->dtype, raw, f, n);
        for (uint64_t i = 0; i < n; i++)
            f[i] += w->info->add;
    }
    free(raw);
    return f;
}

typedef struct exec {
    const struct lt_model *m;
    lt_graph g;
    lt_kv_group groups[2];
    uint32_t n_groups, pages, capacity, context;
    void **weights;
    char *acts, *io, *kv[2];
    float *embd; /* [vocab, embd] */
    lt_team *team;
    lt_cpu_isa isa;
    uint32_t slice;
} exec;

static void exec_close(exec *e)
{
    for (size_t i = 0; e->weights && i < e->m->n_weights; i++)
        free(e->weights[i]);
    free(e->weights);
    free(e->acts);
    free(e->io);
    free(e->kv[0]);
    free(e->kv[1]);
    free(e->embd);
    lt__team_destroy(e->team);
    lt__graph_deinit(&e->g);
}

/* For sequences of at most n tokens, `pass` at a time. */
static lt_status exec_open(exec *e, const struct lt_model *m, uint32_t n, const exec_opts *o, lt_err *err)
{
    memset(e, 0, sizeof *e);
    e->m = m;
    e->isa = o->isa;
    e->slice = o->slice;
    e->capacity = o->pass ? o->pass : n;
    e->context = o->context ? o->context : n;
    e->pages = (n + LT_KV_PAGE - 1) / LT_KV_PAGE;
    lt_kv_desc kv = {.dtype = o->kv};
    uint64_t acts, io, vocab = m->hp.vocab, embd = m->hp.embd;
    lt_status s = lt__model_build(m, &kv, &e->g, e->groups, &e->n_groups, err);
    if (s != LT_OK)
        return s;
    if (o->edit)
        o->edit(&e->g, o->user);
    for (size_t i = 0; i < e->g.n_tensors; i++)
        if (e->g.tensors[i].role == LT_ROLE_TABLE)
            e->g.tensors[i].dim[0] = e->pages;
    if ((s = lt__graph_layout(&e->g, e->capacity, e->capacity, 64, &acts, err)) != LT_OK ||
        (s = lt__graph_layout_io(&e->g, e->capacity, e->capacity, 64, &io, err)) != LT_OK ||
        (s = lt__team_create(m->ctx, 1, &e->team, err)) != LT_OK)
        goto fail;
    s = lt__fail(err, LT_E_HOST_OOM, "exec: out of memory or unreadable weights");
    e->weights = calloc(m->n_weights, sizeof *e->weights);
    e->acts = aligned_alloc(64, lt__round_up(acts + 64, 64));
    e->io = aligned_alloc(64, lt__round_up(io + 64, 64));
    e->embd = malloc(vocab * embd * sizeof *e->embd);
    if (!e->weights || !e->acts || !e->io || !e->embd)
        goto fail;
    memset(e->acts, 0xff, acts); /* NaN: what is read before it was written shows */
    for (uint32_t i = 0; i < e->n_groups; i++)
        if (!(e->kv[i] = calloc(e->pages, e->groups[i].page_bytes)))
            goto fail;
    for (size_t i = 0; i < m->n_weights; i++)
        if (!(e->weights[i] = exec_load(m, &m->weights[i])))
            goto fail;
    for (size_t i = 0; o->spoil && i < m->n_weights; i++)
        o->spoil(&m->weights[i], e->weights[i]);
    const lt_weight *w = &m->weights[m->embd_weight];
    lt_dtype_to_f32(w->dtype, e->weights[m->embd_weight], e->embd, vocab * embd);
    return LT_OK;
fail:
    exec_close(e);
    return s;
}

static lt_view exec_view(const exec *e, lt_tid id, uint32_t tokens)
{
    const lt_tensor *t = &e->g.tensors[id];
    char *at = t->kind == LT_TENSOR_WEIGHT ? e->weights[t->weight]
             : t->kind == LT_TENSOR_ACT    ? e->acts + t->offset
             : t->kind == LT_TENSOR_STATE  ? e->kv[t->group]
                                           : e->io + t->offset;
    lt_view v;
    lt__tensor_view(t, (lt_addr)(uintptr_t)at, tokens, tokens, &v);
    if (t->kind == LT_TENSOR_STATE)
        v.dim[0] = (int64_t)(e->pages * e->groups[t->group].page_bytes);
    return v;
}

static void exec_inputs(exec *e, const int32_t *ids, uint32_t first, uint32_t n)
{
    size_t embd = e->m->hp.embd;
    int32_t *pos = malloc(n * sizeof *pos);
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)(first + i);
    for (size_t i = 0; i < e->g.n_tensors; i++) {
        const lt_tensor *t = &e->g.tensors[i];
        if (t->kind != LT_TENSOR_INPUT || t->base != LT_NO_TENSOR)
            continue;
        char *at = e->io + t->offset;
        switch (t->role) {
        case LT_ROLE_EMBD:
            for (uint32_t k = 0; k < n; k++)
                memcpy(at + k * embd * sizeof(float), e->embd + (size_t)ids[first + k] * embd, embd * sizeof(float));
            break;
        case LT_ROLE_POS: memcpy(at, pos, n * sizeof *pos); break;
        case LT_ROLE_ROWS:
            for (uint32_t k = 0; k < n; k++)
                ((int32_t *)at)[k] = (int32_t)k;
            break;
        case LT_ROLE_TABLE: /* backwards: a page is found through the table only */
            for (uint32_t k = 0; k < e->pages; k++)
                ((int32_t *)at)[k] = (int32_t)(e->pages - 1 - k);
            break;
        case LT_ROLE_ROPE: lt__model_rope(e->m, t->group, e->context, pos, n, (float *)at); break;
        default: break;
        }
    }
    free(pos);
}

static lt_status exec_launch(exec *e, const lt_op_args *a, lt_err *err)
{
    lt_status s = lt_op_check(a, err);
    if (s != LT_OK)
        return s;
    const lt_cpu_row *row = lt__cpu_find(e->isa, a);
    if (!row)
        return lt__fail(err, LT_E_UNSUPPORTED, "exec: no op runs %s", a->name);
    size_t bytes = row->scratch ? row->scratch(a, 1) : 0;
    void *scratch = aligned_alloc(64, lt__round_up(bytes + 64, 64));
    s = row->run(a, e->team, scratch, bytes, err);
    free(scratch);
    return s;
}

static lt_status exec_node(exec *e, const lt_node *node, uint32_t n, lt_err *err)
{
    lt_op_args a = {.op = node->op, .n_src = node->n_src, .params = node->params, .name = node->name};
    for (uint32_t k = 0; k < node->n_src; k++)
        a.src[k] = exec_view(e, node->src[k], n);
    a.dst = exec_view(e, node->dst, n);
    if (node->op != LT_OP_EXPERT_LINEAR || !e->slice)
        return exec_launch(e, &a, err);
    int64_t experts = a.src[1].dim[0];
    lt_status s = LT_OK;
    for (int64_t first = 0; first < experts && s == LT_OK; first += e->slice) {
        lt_op_args part = a;
        part.params.EXPERT_LINEAR.first += (uint32_t)first;
        part.src[1].addr += (lt_addr)(first * a.src[1].stride[0]);
        part.src[1].dim[0] = experts - first < e->slice ? experts - first : e->slice;
        s = exec_launch(e, &part, err);
    }
    return s;
}

static lt_status exec_pass(exec *e, const int32_t *ids, uint32_t first, uint32_t n, float *logits, lt_err *err)
{
    exec_inputs(e, ids, first, n);
    for (size_t i = 0; i < e->g.n_nodes; i++) {
        lt_status s = exec_node(e, &e->g.nodes[i], n, err);
        if (s != LT_OK)
            return s;
    }
    for (size_t i = 0; i < e->g.n_tensors; i++)
        if (e->g.tensors[i].role == LT_ROLE_LOGITS)
            memcpy(logits, e->io + e->g.tensors[i].offset, (size_t)n * e->m->hp.vocab * sizeof *logits);
    return LT_OK;
}

/* Logits [n, vocab] of a sequence from its beginning. */
static lt_status exec_logits(const struct lt_model *m, const int32_t *ids, uint32_t n, const exec_opts *o,
                             float *logits, lt_err *err)
{
    exec e;
    lt_status s = exec_open(&e, m, n, o, err);
    if (s != LT_OK)
        return s;
    for (uint32_t at = 0; at < n && s == LT_OK; at += e.capacity) {
        uint32_t k = n - at < e.capacity ? n - at : e.capacity;
        s = exec_pass(&e, ids, at, k, logits + (size_t)at * m->hp.vocab, err);
    }
    exec_close(&e);
    return s;
}

static double exec_nmse(const float *got, const float *want, size_t n)
{
    double num = 0, den = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        num += d * d;
        den += (double)want[i] * (double)want[i];
    }
    return num / den;
}

#endif
