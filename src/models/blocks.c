#include "models/blocks.h"

#include "base/mem.h"
#include "models/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct text { char s[64]; } text;
#define PART 40 /* of a name, its end included: the longest is post_attention_norm.weight */

/* "blk.3.attn_q", or the name itself outside of the layers. */
static text full_name(const lt__blocks *b, const char *name)
{
    text t;
    if (b->g->layer >= 0 && (uint32_t)b->g->layer < b->m->hp.layers)
        snprintf(t.s, sizeof t.s, "blk.%d.%s", b->g->layer, name);
    else
        snprintf(t.s, sizeof t.s, "%s", name);
    return t;
}

static lt_tid weight(lt__blocks *b, const char *name, const char *kind, bool required)
{
    char full[PART];
    snprintf(full, sizeof full, "%s.%s", name, kind);
    bool in_layer = b->g->layer >= 0 && (uint32_t)b->g->layer < b->m->hp.layers;
    uint32_t at = lt__model_find(b->m, in_layer ? b->g->layer : -1, full);
    if (at == UINT32_MAX) {
        if (required && b->g->status == LT_OK)
            b->g->status = lt__fail(&b->g->err, LT_E_INVALID, "%s: the builder asks for '%s', which no row loads",
                                    b->m->arch->name, full_name(b, full).s);
        return LT_NO_TENSOR;
    }
    const lt_weight *w = &b->m->weights[at];
    return lt__graph_weight(b->g, w->name, at, w->dtype, w->dim, w->ndim);
}

void lt__blocks_begin(lt__blocks *b, const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g)
{
    memset(b, 0, sizeof *b);
    b->m = m;
    b->g = g;
    b->kv_dtype = kv->dtype;
    b->attention = kv->attention;
    g->layer = -1;
    if (g->status == LT_OK)
        g->status = lt__model_groups(m, kv, b->groups, &b->n_groups, &g->err);
    int64_t embd[2] = {LT_DIM_TOKENS, m->hp.embd}, tokens[1] = {LT_DIM_TOKENS}, rows[1] = {LT_DIM_ROWS}, open[1] = {0};
    b->h = lt__graph_input(g, "embd", LT_ROLE_EMBD, 0, LT_DTYPE_F32, embd, 2);
    b->pos = lt__graph_input(g, "pos", LT_ROLE_POS, 0, LT_DTYPE_I32, tokens, 1);
    b->rows = lt__graph_input(g, "rows", LT_ROLE_ROWS, 0, LT_DTYPE_I32, rows, 1);
    for (uint32_t i = 0; i < b->n_groups; i++) {
        char name[32];
        snprintf(name, sizeof name, "table.%u", i);
        b->table[i] = lt__graph_input(g, name, LT_ROLE_TABLE, i, LT_DTYPE_I32, open, 1);
        snprintf(name, sizeof name, "kv.%u", i);
        b->cache[i] = lt__graph_state(g, name, i, LT_DTYPE_I8);
    }
    for (uint32_t i = 0; i < 2; i++)
        b->angles[i] = LT_NO_TENSOR;
}

void lt__block_layer(lt__blocks *b, uint32_t layer)
{
    const lt_hparams *hp = &b->m->hp;
    bool global = lt__layer_global(hp, layer);
    b->g->layer = (int32_t)layer;
    b->group = b->n_groups == 2 && !global;
    b->rope_set = hp->rope_sets == 2 && !global;
    if (b->angles[b->rope_set] == LT_NO_TENSOR) {
        char name[32];
        int64_t dim[3] = {LT_DIM_TOKENS, hp->rope[b->rope_set].rotated / 2, 2};
        snprintf(name, sizeof name, "rope.%u", b->rope_set);
        b->angles[b->rope_set] = lt__graph_input(b->g, name, LT_ROLE_ROPE, b->rope_set, LT_DTYPE_F32, dim, 3);
    }
}

lt__act lt__block_act(lt_tid f32, const char *name)
{
    lt__act a = {f32, LT_NO_TENSOR, name};
    return a;
}

lt__act lt__block_norm(lt__blocks *b, lt_tid x, const char *name)
{
    lt_op_params p = {.RMS_NORM = {b->m->hp.norm_eps}};
    lt_tid src[2] = {x, weight(b, name, "weight", true)};
    return lt__block_act(lt__graph_node(b->g, full_name(b, name).s, LT_OP_RMS_NORM, &p, src, 2), name);
}

void lt__block_norm_inplace(lt__blocks *b, lt_tid x, const char *name)
{
    lt_op_params p = {.RMS_NORM = {b->m->hp.norm_eps}};
    lt_tid src[2] = {x, weight(b, name, "weight", true)};
    lt__graph_inplace(b->g, full_name(b, name).s, LT_OP_RMS_NORM, &p, src, 2);
}

/* What a product with w reads of x. */
static lt_tid factor(lt__blocks *b, lt__act *x, lt_tid w)
{
    if (lt_dtype_get(b->g->tensors[w].dtype)->kind != LT_DTYPE_KIND_QUANT)
        return x->f32;
    if (x->q8a == LT_NO_TENSOR) {
        char q[PART];
        snprintf(q, sizeof q, "%s.q8a", x->name);
        x->q8a = lt__graph_node(b->g, full_name(b, q).s, LT_OP_QUANTIZE, NULL, &x->f32, 1);
    }
    return x->q8a;
}

lt_tid lt__block_linear(lt__blocks *b, lt__act *x, const char *name)
{
    lt_tid w = weight(b, name, "weight", true);
    if (b->g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_tid src[2] = {factor(b, x, w), w};
    lt_tid y = lt__graph_node(b->g, full_name(b, name).s, LT_OP_LINEAR, NULL, src, 2);
    lt_tid bias = weight(b, name, "bias", false);
    if (bias != LT_NO_TENSOR) {
        char n[PART];
        lt_tid add[2] = {y, bias};
        snprintf(n, sizeof n, "%s.bias", name);
        lt__graph_inplace(b->g, full_name(b, n).s, LT_OP_ADD_ROW, NULL, add, 2);
    }
    return y;
}

lt_tid lt__block_columns(lt__blocks *b, lt_tid x, uint64_t first, uint64_t n)
{
    int64_t dim[1] = {(int64_t)n};
    return lt__graph_window(b->g, x, first, dim, 1);
}

lt_tid lt__block_heads(lt__blocks *b, lt_tid x, uint64_t first, uint32_t heads)
{
    int64_t dim[2] = {heads, b->m->hp.head_dim};
    return lt__graph_window(b->g, x, first, dim, 2);
}

/* A page holds the layers of its group one after another: K of all heads, then V of all heads. */
static lt_kv_layout layout_of(const lt__blocks *b)
{
    const lt_hparams *hp = &b->m->hp;
    const lt_kv_group *grp = &b->groups[b->group];
    uint64_t layer_bytes = grp->layers ? grp->page_bytes / grp->layers : 0;
    lt_kv_layout kv = {
        .page_bytes = grp->page_bytes, .kv_heads = hp->kv_heads, .head_dim = hp->head_dim, .dtype = b->kv_dtype};
    kv.k_offset = b->place[b->group] * layer_bytes;
    kv.v_offset = kv.k_offset + layer_bytes / 2;
    return kv;
}

lt__act lt__block_attention(lt__blocks *b, lt_tid q, lt_tid k, lt_tid v)
{
    const lt_hparams *hp = &b->m->hp;
    lt_kv_layout kv = layout_of(b);
    lt_tid cache = b->cache[b->group], table = b->table[b->group], angles = b->angles[b->rope_set];
    lt_op_params p = {.ROPE = {hp->rope_style, hp->rope[b->rope_set].rotated}};
    lt_tid turn_q[2] = {q, angles}, turn_k[2] = {k, angles};
    lt__graph_inplace(b->g, full_name(b, "rope_q").s, LT_OP_ROPE, &p, turn_q, 2);
    lt__graph_inplace(b->g, full_name(b, "rope_k").s, LT_OP_ROPE, &p, turn_k, 2);
    p = (lt_op_params){.KV_STORE = {kv}};
    lt_tid store[4] = {k, v, b->pos, table};
    lt__graph_into(b->g, full_name(b, "kv_store").s, LT_OP_KV_STORE, &p, store, 4, cache);
    p = (lt_op_params){.ATTENTION = {.kv = kv, .heads = hp->heads, .window = b->groups[b->group].window, .scale = hp->attn_scale,
                                     .cap = hp->attn_cap, .how = b->attention}};
    lt_tid attend[5] = {q, cache, b->pos, table, weight(b, "attn_sinks", "weight", false)};
    lt_tid o = lt__graph_node(b->g, full_name(b, "attn").s, LT_OP_ATTENTION, &p, attend, attend[4] == LT_NO_TENSOR ? 4 : 5);
    b->place[b->group]++;
    return lt__block_act(lt__block_columns(b, o, 0, (uint64_t)hp->heads * hp->head_dim), "attn");
}

lt__act lt__block_gated(lt__blocks *b, lt_op op, lt_tid gate, lt_tid up)
{
    lt_tid src[2] = {gate, up};
    return lt__block_act(lt__graph_inplace(b->g, full_name(b, "ffn_act").s, op, NULL, src, 2), "ffn_act");
}

lt_tid lt__block_self_attention(lt__blocks *b)
{
    const lt_hparams *hp = &b->m->hp;
    lt__act x = lt__block_norm(b, b->h, "attn_norm");
    lt_tid rows_q = lt__block_linear(b, &x, "attn_q"), rows_k = lt__block_linear(b, &x, "attn_k");
    lt_tid q = lt__block_heads(b, rows_q, 0, hp->heads);
    lt_tid k = lt__block_heads(b, rows_k, 0, hp->kv_heads);
    lt_tid v = lt__block_heads(b, lt__block_linear(b, &x, "attn_v"), 0, hp->kv_heads);
    uint32_t norm = lt__model_find(b->m, b->g->layer, "attn_q_norm.weight");
    if (norm != UINT32_MAX) {
        bool each = b->m->weights[norm].dim[0] == hp->head_dim; /* head; else over all at once */
        lt__block_norm_inplace(b, each ? q : rows_q, "attn_q_norm");
        lt__block_norm_inplace(b, each ? k : rows_k, "attn_k_norm");
    }
    lt__act o = lt__block_attention(b, q, k, v);
    return lt__block_linear(b, &o, "attn_output");
}

lt_tid lt__block_ffn(lt__blocks *b, lt_op op)
{
    lt__act x = lt__block_norm(b, b->h, "ffn_norm");
    lt_tid gate = lt__block_linear(b, &x, "ffn_gate");
    lt_tid up = lt__block_linear(b, &x, "ffn_up");
    lt__act y = lt__block_gated(b, op, gate, up);
    return lt__block_linear(b, &y, "ffn_down");
}

/* [TOKENS, experts_used, rows of the weight]: x times the weight of each of a token's experts, and its bias. */
static lt_tid expert_linear(lt__blocks *b, lt__act *x, const char *name, lt_tid ids)
{
    lt_tid w = weight(b, name, "weight", true);
    if (b->g->status != LT_OK)
        return LT_NO_TENSOR;
    lt_op_params p = {.EXPERT_LINEAR = {0}};
    lt_tid src[3] = {factor(b, x, w), w, ids};
    lt_tid y = lt__graph_node(b->g, full_name(b, name).s, LT_OP_EXPERT_LINEAR, &p, src, 3);
    lt_tid bias = weight(b, name, "bias", false);
    if (bias != LT_NO_TENSOR) {
        char n[PART];
        lt_tid add[3] = {y, bias, ids};
        snprintf(n, sizeof n, "%s.bias", name);
        lt__graph_inplace(b->g, full_name(b, n).s, LT_OP_EXPERT_BIAS, NULL, add, 3);
    }
    return y;
}

lt_tid lt__block_experts(lt__blocks *b, const char *norm, lt_op op, const lt_op_params *p)
{
    const lt_hparams *hp = &b->m->hp;
    lt__act x = lt__block_norm(b, b->h, norm);
    lt_op_params top = {.TOP_K = {hp->experts_used}}, share = {.TOP_SHARE = {b->m->arch->share_all}};
    lt_tid scores = lt__block_linear(b, &x, "ffn_gate_inp");
    lt_tid ids = lt__graph_node(b->g, full_name(b, "ffn_ids").s, LT_OP_TOP_K, &top, &scores, 1);
    lt_tid of[2] = {scores, ids};
    lt_tid shares = lt__graph_node(b->g, full_name(b, "ffn_shares").s, LT_OP_TOP_SHARE, &share, of, 2);
    lt_tid gate = expert_linear(b, &x, "ffn_gate_exps", ids);
    lt_tid up = expert_linear(b, &x, "ffn_up_exps", ids);
    uint64_t cols = (uint64_t)hp->experts_used * hp->expert_ff;
    lt_tid flat[2] = {lt__block_columns(b, gate, 0, cols), lt__block_columns(b, up, 0, cols)};
    lt__graph_inplace(b->g, full_name(b, "ffn_act").s, op, p, flat, 2);
    lt__act act = lt__block_act(gate, "ffn_act");
    lt_tid sum[2] = {expert_linear(b, &act, "ffn_down_exps", ids), shares};
    return lt__graph_node(b->g, full_name(b, "ffn_out").s, LT_OP_EXPERT_SUM, NULL, sum, 2);
}

void lt__block_add(lt__blocks *b, const char *name, lt_tid x)
{
    lt_tid src[2] = {b->h, x};
    lt__graph_inplace(b->g, full_name(b, name).s, LT_OP_ADD, NULL, src, 2);
}

void lt__blocks_head(lt__blocks *b)
{
    b->g->layer = (int32_t)b->m->hp.layers;
    lt_tid src[2] = {b->h, b->rows};
    lt_tid last = lt__graph_node(b->g, "take_rows", LT_OP_TAKE_ROWS, NULL, src, 2);
    lt__block_norm_inplace(b, last, "output_norm");
    lt__act x = lt__block_act(last, "output_norm");
    lt_tid logits = lt__block_linear(b, &x, "output");
    if (b->m->hp.logit_cap > 0) {
        lt_op_params p = {.SOFTCAP = {b->m->hp.logit_cap}};
        lt__graph_inplace(b->g, "logit_cap", LT_OP_SOFTCAP, &p, &logits, 1);
    }
    lt__graph_output(b->g, logits, LT_ROLE_LOGITS);
}

lt_status lt__gemma_derive(struct lt_model *m, uint32_t layers_of_27b, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    lt_status s = lt__derive_common(m, LT_ROPE_HALVES, err);
    if (s != LT_OK)
        return s;
    hp->embd_scale = (float)sqrt((double)hp->embd);
    double scale = 1 / sqrt(hp->layers == layers_of_27b ? (double)hp->embd / hp->heads : (double)hp->head_dim);
    s = lt__rows_f64(m, "attention.scale", 1e-6, 1e6, &scale, err);
    hp->attn_scale = (float)scale;
    return s;
}

void lt__gemma_build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g)
{
    lt__blocks b;
    lt__blocks_begin(&b, m, kv, g);
    lt_op_params scale = {.SCALE = {m->hp.embd_scale}};
    lt__graph_inplace(g, "embd_scale", LT_OP_SCALE, &scale, &b.h, 1);
    for (uint32_t l = 0; l < m->hp.layers; l++) {
        lt__block_layer(&b, l);
        lt_tid y = lt__block_self_attention(&b);
        lt__block_norm_inplace(&b, y, "post_attention_norm");
        lt__block_add(&b, "attn_residual", y);
        y = lt__block_ffn(&b, LT_OP_GELU_MUL);
        lt__block_norm_inplace(&b, y, "post_ffw_norm");
        lt__block_add(&b, "ffn_residual", y);
    }
    lt__blocks_head(&b);
}

bool lt__layer_global(const lt_hparams *hp, uint32_t layer)
{
    if (hp->window == 0)
        return true;
    return hp->window_every != 0 && layer % hp->window_every == hp->window_every - 1;
}

lt_status lt__model_groups(const struct lt_model *m, const lt_kv_desc *kv, lt_kv_group groups[2], uint32_t *n_groups,
                           lt_err *err)
{
    const lt_hparams *hp = &m->hp;
    uint32_t count[2] = {0, 0};
    uint64_t row;
    if (kv->dtype != LT_DTYPE_F16 && kv->dtype != LT_DTYPE_Q8_0 && kv->dtype != LT_DTYPE_F32)
        return lt__fail(err, LT_E_UNSUPPORTED, "a KV cache of type %s is not supported; supported: F16, Q8_0, F32",
                        lt_dtype_get(kv->dtype) ? lt_dtype_get(kv->dtype)->name : "unknown");
    if (!lt_dtype_row_bytes(kv->dtype, hp->head_dim, &row))
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "a KV cache of type %s needs heads of a multiple of %u elements; '%s' has %u; use F16",
                        lt_dtype_get(kv->dtype)->name, lt_dtype_get(kv->dtype)->block_elems, m->arch->name,
                        hp->head_dim);
    for (uint32_t l = 0; l < hp->layers; l++)
        count[!lt__layer_global(hp, l)]++;
    memset(groups, 0, 2 * sizeof *groups);
    *n_groups = 0;
    for (uint32_t windowed = 0; windowed < 2; windowed++) {
        if (count[windowed] == 0)
            continue;
        lt_kv_group *grp = &groups[(*n_groups)++];
        grp->layers = count[windowed];
        grp->window = windowed ? hp->window : 0;
        uint64_t matrix; /* K or V of one layer */
        if (!lt__mul_u64((uint64_t)hp->kv_heads * LT_KV_PAGE, row, &matrix) ||
            !lt__mul_u64(matrix, 2ull * grp->layers, &grp->page_bytes))
            return lt__fail(err, LT_E_INVALID, "%s: a page of the KV cache overflows 64 bits", lt__model_path(m));
    }
    return LT_OK;
}

lt_status lt__model_build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g, lt_kv_group groups[2],
                          uint32_t *n_groups, lt_err *err)
{
    lt__graph_init(g, m->ctx);
    lt_status s = lt__model_groups(m, kv, groups, n_groups, err);
    if (s != LT_OK)
        return s;
    m->arch->build(m, kv, g);
    if ((s = lt__graph_finish(g, err)) != LT_OK)
        lt__graph_deinit(g);
    return s;
}

void lt__usual_build(const struct lt_model *m, const lt_kv_desc *kv, lt_graph *g)
{
    lt__blocks b;
    lt__blocks_begin(&b, m, kv, g);
    for (uint32_t l = 0; l < m->hp.layers; l++) {
        lt__block_layer(&b, l);
        lt__block_add(&b, "attn_residual", lt__block_self_attention(&b));
        lt__block_add(&b, "ffn_residual", m->hp.experts ? lt__block_experts(&b, "ffn_norm", LT_OP_SILU_MUL, NULL)
                                                        : lt__block_ffn(&b, LT_OP_SILU_MUL));
    }
    lt__blocks_head(&b);
}
