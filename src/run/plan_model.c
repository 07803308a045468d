/* plan_model.c - lt_plan_create: what the planner needs to know, read off a model. */
#include <string.h>

#include "base/host.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "models/arch.h"
#include "plan/plan_internal.h"

/* Threads' stacks and scratch, tokenizer tables, buffers of the reader: measured on the models of the
 * tests at 9 to 21 MiB, so a budget of RAM counts this much beside what the process holds already. */
#define HOST_EXTRA (UINT64_C(24) << 20)

/* What products read by rows or by experts; the rest stays whole. */
static void fill_cuts(lt__plan_input *in)
{
    const lt_graph *g = in->graph;
    for (size_t n = 0; n < g->n_nodes; n++) {
        const lt_node *node = &g->nodes[n];
        if (!lt_op_cuts(node->op))
            continue;
        const lt_tensor *w = &g->tensors[node->src[1]];
        lt__plan_weight *pw = &in->weights[w->weight];
        pw->whole = false;
        pw->rows = (uint64_t)w->dim[0];
        pw->row_bytes = pw->bytes / pw->rows;
        pw->unit = node->op == LT_OP_LINEAR ? 8 : 1; /* kernels take rows by 8 */
        if (node->op == LT_OP_EXPERT_LINEAR)
            pw->active = (double)g->tensors[node->src[2]].dim[1] / (double)pw->rows;
    }
}

static lt_status fill_weights(const lt_model *m, lt__plan_input *in, lt_err *err)
{
    in->n_weights = m->n_weights;
    in->weights = lt__alloc_array(m->ctx, m->n_weights, sizeof *in->weights);
    if (!in->weights)
        return lt__fail_oom(err, m->n_weights * sizeof *in->weights, "the plan's weights");
    for (size_t i = 0; i < m->n_weights; i++) {
        const lt_weight *w = &m->weights[i];
        if (w->on_host) {
            in->host_weight_bytes += w->info->bytes;
            continue;
        }
        lt__plan_weight *pw = &in->weights[i];
        *pw = (lt__plan_weight){.name = w->name, .dtype = w->dtype, .bytes = w->bytes, .rows = 1, .row_bytes = w->bytes,
                                .unit = 1, .active = 1, .whole = true};
    }
    fill_cuts(in);
    return LT_OK;
}

static uint64_t file_bytes(const lt_model *m)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < lt_modelfile_parts(m->file); i++)
        sum += lt_modelfile_part_bytes(m->file, i);
    return sum;
}

/* A model with long and short rope factors computes other angles past its original context. A context
 * nobody asked for stays below it, so that the budget, which chooses that context, does not choose the angles. */
static void keep_angles(const lt_model *m, lt_plan_desc *d)
{
    for (uint32_t r = 0; r < m->hp.rope_sets; r++) {
        uint32_t original = m->hp.rope[r].original_context;
        if (!m->hp.rope[r].factors_short || d->ctx || d->ctx_least > original)
            continue;
        d->ctx_most = d->ctx_most && d->ctx_most < original ? d->ctx_most : original;
    }
}

/* host_fixed: what counts as fixed where the device's memory is the host's; 0: what the process holds now. */
static lt_status make_plan(const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc,
                           uint64_t host_fixed, lt_plan **out, lt_err *err)
{
    *out = NULL;
    lt_plan_desc d = *desc;
    keep_angles(m, &d);
    lt_device_info info;
    lt_device_get_info(dev, &info);
    if (info.host_visible)
        info.fixed_bytes = host_fixed ? host_fixed : info.fixed_bytes + lt__host_anon() + HOST_EXTRA;

    lt_graph g;
    lt_kv_group groups[2] = {{0}};
    lt__plan_input in = {.ctx = m->ctx, .graph = &g, .context = m->hp.context, .scratch = lt__engine_scratch, .scratch_user = dev};
    lt_kv_desc kv = {.dtype = d.kv_dtype, .attention = d.attention};
    lt_status s = lt__model_build(m, &kv, &g, groups, &in.n_groups, err);
    if (s != LT_OK)
        return s;
    if ((s = lt__engine_supports(dev, &g, err)) != LT_OK) { /* before a byte is loaded, not at the first prompt */
        lt__graph_deinit(&g);
        return s;
    }
    for (uint32_t i = 0; i < in.n_groups; i++)
        in.groups[i] = (lt__plan_group){groups[i].window, groups[i].page_bytes};
    in.attend_width = (uint64_t)m->hp.layers * m->hp.heads * m->hp.head_dim;
    in.file_bytes = file_bytes(m);
    if (!info.host_visible && (s = lt__engine_prepare(dev, &g, err)) == LT_OK)
        lt_device_get_info(dev, &info); /* with what kernels took, once they are loaded */
    if (s == LT_OK && (s = fill_weights(m, &in, err)) == LT_OK)
        s = lt__plan_make(&in, &info, prof, &d, out, err);
    if (s != LT_OK) {
        lt__graph_deinit(&g);
        lt__free(m->ctx, in.weights, in.n_weights * sizeof *in.weights);
        return s;
    }
    (*out)->model = m;
    (*out)->desc = *desc;
    return LT_OK;
}

lt_status lt_plan_create(const lt_model *m, lt_device *dev, const lt_profile *prof, const lt_plan_desc *desc,
                         lt_plan **out, lt_err *err)
{
    lt_plan_desc d = desc ? *desc : lt_plan_desc_default();
    return make_plan(m, dev, prof, &d, 0, out, err);
}

lt_status lt__plan_again(const lt_plan *p, lt_device *dev, uint64_t budget_bytes, lt_plan **out, lt_err *err)
{
    lt_plan_desc d = p->desc;
    d.budget_bytes = budget_bytes;
    d.reserve_bytes = 0; /* the caller has seen what is free, some of it in the arena of p */
    d.ctx = p->info.ctx;
    if (d.batch) { /* passes may become smaller: no bit depends on it */
        d.expect_prompt = d.batch;
        d.batch = 0;
    }
    if (!p->direct) /* files that are mapped stay so: page-locked by now, they are missing from what is available */
        d.ram_bytes = lt__max_u64(d.ram_bytes, file_bytes(p->model));
    lt_device_info info;
    lt_device_get_info(dev, &info);
    return make_plan(p->model, dev, &p->profile, &d, info.host_visible ? p->info.fixed_bytes : 0, out, err);
}
