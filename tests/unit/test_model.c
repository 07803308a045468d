/* Opening a model: what rows accept and what they refuse, in words; faults at every allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

#include "base/mem.h"
#include "format/gguf_write.h"
#include "models/arch.h"

enum { LAYERS = 2, EMBD = 256, FF = 512, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 64, VOCAB = 40, EXPERTS = 4, USED = 2 };

/* One thing that differs from a right model. */
typedef struct change {
    const char *arch;        /* NULL: llama */
    const char *drop;        /* key or tensor left out */
    const char *key;         /* set to: */
    enum { K_NONE, K_U32, K_F32, K_STR, K_I32S, K_BOOL } kind;
    uint32_t    u;
    float       f;
    const char *s;
    int32_t     list[LAYERS];
    const char *tensor;      /* gets: */
    uint64_t    d0, d1;      /* 0: as it should be */
    lt_dtype    dtype;       /* F32 is 0 */
    const char *extra[4];    /* tensors nobody asked for */
    bool        embd_norms;  /* post_attention_norm and post_ffw_norm of each layer */
    bool        experts;     /* EXPERTS of them, in the place of each feed-forward unit */
    uint64_t    mats;        /* of `tensor`, likewise */
    uint32_t    patch_type;  /* raw type id written over that of `tensor` */
} change;

typedef struct log_lines { char text[4096]; size_t n; } log_lines;

static void keep_log(void *user, lt_log_level level, const char *area, const char *text)
{
    log_lines *l = user;
    (void)level;
    (void)area;
    l->n += (size_t)snprintf(l->text + l->n, l->n < sizeof l->text ? sizeof l->text - l->n : 0, "%s\n", text);
}

static lt_ctx *ctx;
static log_lines lines;
static char path[128];
static struct { char name[64]; lt_dtype t; uint64_t dim[3]; uint32_t ndim; } put[128];
static size_t n_put;

static bool wanted(const change *c, const char *name) { return !c->drop || strcmp(c->drop, name) != 0; }

static void put_u32(lt__gguf_writer *w, const change *c, const char *key, uint32_t v)
{
    if (wanted(c, key) && (!c->key || strcmp(c->key, key) != 0))
        lt__gguf_put_u32(w, key, v);
}

static void put_matrices(lt__gguf_writer *w, const change *c, const char *name, uint64_t mats, uint64_t d0, uint64_t d1)
{
    if (!wanted(c, name))
        return;
    bool changed = c->tensor && strcmp(c->tensor, name) == 0;
    const uint64_t all[3] = {changed && c->mats ? c->mats : mats, changed && c->d0 ? c->d0 : d0, changed && c->d1 ? c->d1 : d1};
    uint32_t skip = all[0] == 0;
    snprintf(put[n_put].name, sizeof put[n_put].name, "%s", name);
    put[n_put].t = changed ? c->dtype : LT_DTYPE_F32;
    put[n_put].ndim = (all[2] ? 3 : 2) - skip;
    memcpy(put[n_put].dim, all + skip, (3 - skip) * sizeof *all);
    lt__gguf_put_tensor(w, name, put[n_put].t, put[n_put].ndim, put[n_put].dim);
    n_put++;
}

static void put_tensor(lt__gguf_writer *w, const change *c, const char *name, uint64_t d0, uint64_t d1)
{
    put_matrices(w, c, name, 0, d0, d1);
}

static void put_keys(lt__gguf_writer *w, const change *c, const char *arch)
{
    char k[96];
    static const struct { const char *key; uint32_t v; } keys[] = {
        {"block_count", LAYERS},         {"context_length", 512},            {"embedding_length", EMBD},
        {"feed_forward_length", FF},     {"attention.head_count", HEADS},    {"attention.head_count_kv", KV_HEADS},
        {"rope.dimension_count", HEAD_DIM}, {"attention.key_length", HEAD_DIM}, {"attention.value_length", HEAD_DIM},
    };
    if (wanted(c, "general.architecture"))
        lt__gguf_put_str(w, "general.architecture", arch);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(k, sizeof k, "%s.%s", arch, keys[i].key);
        put_u32(w, c, k, keys[i].v);
    }
    if (c->experts) {
        snprintf(k, sizeof k, "%s.expert_count", arch);
        put_u32(w, c, k, EXPERTS);
        snprintf(k, sizeof k, "%s.expert_used_count", arch);
        put_u32(w, c, k, USED);
    }
    snprintf(k, sizeof k, "%s.attention.layer_norm_rms_epsilon", arch);
    if (wanted(c, k) && (!c->key || strcmp(c->key, k) != 0))
        lt__gguf_put_f32(w, k, 1e-5f);
    switch (c->kind) {
    case K_U32: lt__gguf_put_u32(w, c->key, c->u); break;
    case K_F32: lt__gguf_put_f32(w, c->key, c->f); break;
    case K_STR: lt__gguf_put_str(w, c->key, c->s); break;
    case K_I32S: lt__gguf_put_i32s(w, c->key, c->list, LAYERS); break;
    case K_BOOL: lt__gguf_put_bool(w, c->key, true); break;
    case K_NONE: break;
    }
}

static void put_tensors(lt__gguf_writer *w, const change *c)
{
    char b[64];
    const uint64_t q = HEADS * HEAD_DIM, kv = KV_HEADS * HEAD_DIM;
    const struct { const char *name; uint64_t d0, d1; } rows[] = {
        {"attn_norm.weight", EMBD, 0}, {"attn_q.weight", q, EMBD},    {"attn_k.weight", kv, EMBD},
        {"attn_v.weight", kv, EMBD},   {"attn_output.weight", EMBD, q}, {"ffn_norm.weight", EMBD, 0},
        {"ffn_gate.weight", FF, EMBD}, {"ffn_up.weight", FF, EMBD},   {"ffn_down.weight", EMBD, FF},
    }, experts[] = {{"ffn_gate_exps.weight", FF, EMBD}, {"ffn_up_exps.weight", FF, EMBD}, {"ffn_down_exps.weight", EMBD, FF}};
    size_t n_rows = sizeof rows / sizeof *rows - (c->experts ? 3 : 0);
    n_put = 0;
    put_tensor(w, c, "token_embd.weight", VOCAB, EMBD);
    put_tensor(w, c, "output_norm.weight", EMBD, 0);
    put_tensor(w, c, "output.weight", VOCAB, EMBD);
    for (int l = 0; l < LAYERS; l++)
        for (size_t r = 0; r < n_rows; r++) {
            snprintf(b, sizeof b, "blk.%d.%s", l, rows[r].name);
            put_tensor(w, c, b, rows[r].d0, rows[r].d1);
        }
    for (int l = 0; c->experts && l < LAYERS; l++) {
        snprintf(b, sizeof b, "blk.%d.ffn_gate_inp.weight", l);
        put_tensor(w, c, b, EXPERTS, EMBD);
        for (size_t r = 0; r < 3; r++) {
            snprintf(b, sizeof b, "blk.%d.%s", l, experts[r].name);
            put_matrices(w, c, b, EXPERTS, experts[r].d0, experts[r].d1);
        }
    }
    for (int l = 0; c->embd_norms && l < 2 * LAYERS; l++) {
        snprintf(b, sizeof b, "blk.%d.%s.weight", l / 2, l % 2 ? "post_ffw_norm" : "post_attention_norm");
        put_tensor(w, c, b, EMBD, 0);
    }
    for (int i = 0; i < 4 && c->extra[i]; i++)
        put_tensor(w, c, c->extra[i], HEAD_DIM / 2, 0);
}

/* In the file, a tensor's type stands behind its name, the count of its dims and its dims. */
static void patch_type(const change *c)
{
    FILE *f = fopen(path, "r+b");
    static char head[1 << 16];
    size_t n = fread(head, 1, sizeof head, f), k = strlen(c->tensor);
    for (size_t i = 0; i + k + 24 < n; i++)
        if (memcmp(head + i, c->tensor, k) == 0) {
            assert_int_equal(fseek(f, (long)(i + k + 4 + 16), SEEK_SET), 0);
            assert_int_equal(fwrite(&c->patch_type, 4, 1, f), 1);
            fclose(f);
            return;
        }
    fail_msg("no tensor %s to patch", c->tensor);
}

static void write_model(const change *c)
{
    lt__gguf_writer *w;
    lt_err err;
    static float numbers[EXPERTS * FF * EMBD];
    for (size_t i = 0; i < EXPERTS * FF * EMBD; i++)
        numbers[i] = 1;
    assert_int_equal(lt__gguf_writer_create(ctx, path, 32, &w, &err), LT_OK);
    put_keys(w, c, c->arch ? c->arch : "llama");
    put_tensors(w, c);
    for (size_t i = 0; i < n_put; i++) {
        uint64_t row;
        assert_true(lt_dtype_row_bytes(put[i].t, put[i].dim[put[i].ndim - 1], &row));
        uint64_t bytes = row;
        for (uint32_t d = 0; d + 1 < put[i].ndim; d++)
            bytes *= put[i].dim[d];
        assert_true(bytes <= sizeof numbers);
        if (lt__gguf_write(w, numbers, bytes, &err) != LT_OK)
            fail_msg("%s", err.text);
    }
    if (lt__gguf_writer_commit(w, &err) != LT_OK)
        fail_msg("%s", err.text);
    if (c->patch_type)
        patch_type(c);
}

static lt_model *open_good(const change *c)
{
    lt_model *m;
    lt_err err;
    write_model(c);
    if (lt_model_open(ctx, path, &m, &err) != LT_OK)
        fail_msg("%s", err.text);
    return m;
}

static void open_bad(const change *c, lt_status status, const char *words)
{
    lt_model *m = (lt_model *)&m;
    lt_err err = {0};
    uint64_t before = lt_ctx_host_bytes(ctx);
    write_model(c);
    lt_status s = lt_model_open(ctx, path, &m, &err);
    if (s != status || !strstr(err.text, words))
        fail_msg("%s '%s'; expected %s with '%s'", lt_status_name(s), err.text, lt_status_name(status), words);
    assert_int_equal(err.status, status);
    assert_null(m);
    assert_int_equal(lt_ctx_host_bytes(ctx), before);
}

static void a_right_model_opens(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){0});
    const lt_model_info *i = lt_model_get_info(m);
    assert_string_equal(i->arch, "llama");
    assert_int_equal(i->layers, LAYERS);
    assert_int_equal(i->vocab, VOCAB);
    assert_int_equal(i->skipped, 0);
    assert_string_equal(i->main_dtype, "F32");
    uint64_t layer = 2 * EMBD + 2 * EMBD * HEADS * HEAD_DIM + 2 * EMBD * KV_HEADS * HEAD_DIM + 3 * EMBD * FF;
    assert_int_equal(i->params, 2 * VOCAB * EMBD + EMBD + LAYERS * layer);
    assert_int_equal(i->weight_bytes, 4 * i->params);
    assert_true(m->weights[m->embd_weight].on_host);
    lt_model_close(m);
}

static void tied_output_is_listed_twice_and_counts_once(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){.drop = "output.weight"});
    uint32_t head = lt__model_find(m, -1, "output.weight");
    assert_int_not_equal(head, UINT32_MAX);
    assert_int_not_equal(head, m->embd_weight);
    assert_ptr_equal(m->weights[head].info, m->weights[m->embd_weight].info);
    assert_false(m->weights[head].on_host);
    assert_string_equal(m->weights[head].name, "output.weight");
    uint64_t layer = 2 * EMBD + 2 * EMBD * HEADS * HEAD_DIM + 2 * EMBD * KV_HEADS * HEAD_DIM + 3 * EMBD * FF;
    assert_int_equal(m->info.params, VOCAB * EMBD + EMBD + LAYERS * layer);
    lt_model_close(m);
}

static void norms_are_f32_in_memory(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){.tensor = "blk.1.ffn_norm.weight", .dtype = LT_DTYPE_F16});
    const lt_weight *w = &m->weights[lt__model_find(m, 1, "ffn_norm.weight")];
    assert_int_equal(w->dtype, LT_DTYPE_F32);
    assert_int_equal(w->bytes, 4 * EMBD);
    assert_true(w->converted);
    assert_false(m->weights[lt__model_find(m, 0, "ffn_norm.weight")].converted);
    lt_model_close(m);
}

/* cases.md, Text 23: a file with a vision tower or a draft head opens, and says what it left out. */
static void text_23_unknown_extra_tensors_are_skipped_with_a_list(void **state)
{
    (void)state;
    lines.n = 0;
    change c = {.extra = {"v.blk.0.attn_q.weight", "mm.input_projection.weight", "blk.2.nextn.eh_proj.weight", "mtp.fc.weight"}};
    lt_model *m = open_good(&c);
    assert_int_equal(m->info.skipped, 4);
    assert_int_equal(m->info.tensors, 3 + LAYERS * 9 + 4);
    for (int i = 0; i < 4; i++)
        if (!strstr(lines.text, c.extra[i]))
            fail_msg("'%s' is not in the log:\n%s", c.extra[i], lines.text);
    lt_model_close(m);
}

/* Left out as the others, this one would change every answer. */
static void a_known_part_without_a_place_is_refused(void **state)
{
    (void)state;
    open_bad(&(change){.extra = {"blk.1.attn_q_norm.weight"}}, LT_E_UNSUPPORTED, "'blk.1.attn_q_norm.weight' would change the result");
    open_bad(&(change){.extra = {"blk.0.attn_sinks.weight"}}, LT_E_UNSUPPORTED, "attn_sinks");
    lt_model *m = open_good(&(change){.extra = {"blk.7.attn_q_norm.weight"}}); /* of no layer of this model */
    assert_int_equal(m->info.skipped, 1);
    lt_model_close(m);
}

/* What a file leaves out is as in the vendor's code: every second layer of 4,096 positions, caps of 50 and 30. */
static void gemma2_has_caps(void **state)
{
    (void)state;
    static const struct { const char *key; float f, attn, logit; } caps[] = {
        {NULL, 0, 50, 30}, {"gemma2.attn_logit_softcapping", 20, 20, 30}, {"gemma2.final_logit_softcapping", 0, 50, 0}};
    for (size_t i = 0; i < 3; i++) {
        change c = {.arch = "gemma2", .embd_norms = true, .key = caps[i].key, .kind = caps[i].key ? K_F32 : K_NONE, .f = caps[i].f};
        lt_model *m = open_good(&c);
        lt_graph g;
        lt_kv_group groups[2];
        uint32_t n_groups, capped = 0, windowed = 0, softcaps = 0;
        assert_true(m->hp.attn_cap == caps[i].attn && m->hp.logit_cap == caps[i].logit);
        assert_int_equal(m->hp.window, 4096);
        assert_true(!lt__layer_global(&m->hp, 0) && lt__layer_global(&m->hp, 1));
        assert_true(m->hp.attn_scale == 0.125f && m->hp.embd_scale == 16);
        assert_int_equal(lt__model_build(m, &(lt_kv_desc){.dtype = LT_DTYPE_F16}, &g, groups, &n_groups, NULL), LT_OK);
        assert_int_equal(n_groups, 2);
        for (size_t n = 0; n < g.n_nodes; n++) {
            const lt_node *node = &g.nodes[n];
            capped += node->op == LT_OP_ATTENTION && node->params.ATTENTION.cap == caps[i].attn;
            windowed += node->op == LT_OP_ATTENTION && node->params.ATTENTION.window == 4096;
            softcaps += node->op == LT_OP_SOFTCAP && node->params.SOFTCAP.cap == caps[i].logit;
        }
        assert_int_equal(capped, LAYERS);
        assert_int_equal(windowed, 1);
        assert_int_equal(softcaps, caps[i].logit > 0);
        lt__graph_deinit(&g);
        lt_model_close(m);
    }
}

/* A matrix of each expert is one weight of three dimensions; its launches are in the graph. */
static void experts_open(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){.experts = true, .tensor = "blk.1.ffn_down_exps.weight", .dtype = LT_DTYPE_Q4_K});
    assert_int_equal(m->info.experts, EXPERTS);
    assert_int_equal(m->info.experts_used, USED);
    assert_int_equal(m->hp.expert_ff, FF);
    uint64_t layer = 2 * EMBD + 2 * EMBD * HEADS * HEAD_DIM + 2 * EMBD * KV_HEADS * HEAD_DIM + EXPERTS * (EMBD + 3 * EMBD * FF);
    assert_int_equal(m->info.params, 2 * VOCAB * EMBD + EMBD + LAYERS * layer);
    const lt_weight *w = &m->weights[lt__model_find(m, 1, "ffn_down_exps.weight")];
    const uint64_t dim[3] = {EXPERTS, EMBD, FF};
    assert_int_equal(w->ndim, 3);
    assert_memory_equal(w->dim, dim, sizeof dim);
    assert_int_equal(w->bytes, EXPERTS * EMBD * (FF / 256) * 144);
    assert_int_equal(lt__model_find(m, 1, "ffn_down.weight"), UINT32_MAX);

    lt_graph g;
    lt_kv_group groups[2];
    uint32_t n_groups, products = 0, quantised = 0;
    uint64_t area;
    assert_int_equal(lt__model_build(m, &(lt_kv_desc){.dtype = LT_DTYPE_F16}, &g, groups, &n_groups, NULL), LT_OK);
    for (size_t i = 0; i < g.n_nodes; i++) {
        const lt_node *n = &g.nodes[i];
        products += n->op == LT_OP_EXPERT_LINEAR;
        quantised += n->op == LT_OP_QUANTIZE && g.tensors[n->dst].ndim == 3;
        if (n->op == LT_OP_TOP_K)
            assert_int_equal(n->params.TOP_K.k, USED);
        if (n->op == LT_OP_TOP_SHARE)
            assert_false(n->params.TOP_SHARE.all);
    }
    assert_int_equal(products, 3 * LAYERS);
    assert_int_equal(quantised, 1);
    assert_int_equal(lt__graph_layout(&g, 7, 1, 64, &area, NULL), LT_OK);
    lt__graph_deinit(&g);
    lt_model_close(m);

    m = open_good(&(change){.key = "llama.expert_count", .kind = K_U32, .u = 0}); /* says that it is dense */
    assert_int_equal(m->info.experts, 0);
    lt_model_close(m);
    for (uint32_t func = 1; func <= 3; func += 2) { /* softmax over all, made to sum to 1, is that over the chosen */
        m = open_good(&(change){.experts = true, .key = "llama.expert_gating_func", .kind = K_U32, .u = func});
        lt_model_close(m);
    }
}

static void wrong_experts_are_named(void **state)
{
    (void)state;
    static const struct { change c; lt_status s; const char *words; } bad[] = {
        {{.arch = "qwen2", .key = "qwen2.expert_count", .kind = K_U32, .u = 8}, LT_E_UNSUPPORTED, "a mixture of experts is not supported for qwen2"},
        {{.key = "llama.expert_count", .kind = K_U32, .u = 8}, LT_E_FORMAT, "'llama.expert_used_count' is 0; expected 1 to expert_count, which is 8"},
        {{.experts = true, .key = "llama.expert_used_count", .kind = K_U32, .u = 5}, LT_E_FORMAT, "'llama.expert_used_count' is 5; expected 1 to expert_count, which is 4"},
        {{.experts = true, .key = "llama.expert_count", .kind = K_U32, .u = 5000}, LT_E_FORMAT, "'llama.expert_count' is 5000; expected an integer from 0 to 4096"},
        {{.experts = true, .key = "llama.expert_count", .kind = K_U32, .u = 8}, LT_E_FORMAT,
         "'blk.0.ffn_gate_inp.weight' is [4, 256]; expected [8, 256], which is experts by embd"},
        {{.experts = true, .drop = "blk.1.ffn_up_exps.weight"}, LT_E_FORMAT, "'blk.1.ffn_up_exps.weight' is missing; llama needs it as experts by expert_ff by embd"},
        {{.experts = true, .tensor = "blk.0.ffn_up_exps.weight", .mats = 3}, LT_E_FORMAT,
         "'blk.0.ffn_up_exps.weight' is [3, 512, 256]; expected [4, 512, 256], which is experts by expert_ff by embd"},
        {{.experts = true, .tensor = "blk.0.attn_q.weight", .mats = 2}, LT_E_FORMAT, "'blk.0.attn_q.weight' is [2, 256, 256]; expected [256, 256]"},
        {{.experts = true, .extra = {"blk.0.ffn_down.weight"}}, LT_E_UNSUPPORTED, "'blk.0.ffn_down.weight' would change the result"},
        {{.extra = {"blk.0.ffn_gate_inp.weight"}}, LT_E_UNSUPPORTED, "'blk.0.ffn_gate_inp.weight' would change the result"},
        {{.experts = true, .extra = {"blk.1.ffn_up_shexp.weight"}}, LT_E_UNSUPPORTED, "'blk.1.ffn_up_shexp.weight' would change the result"},
        {{.experts = true, .key = "llama.expert_shared_count", .kind = K_U32, .u = 1}, LT_E_UNSUPPORTED, "an expert of every token is not supported"},
        {{.experts = true, .key = "llama.expert_gating_func", .kind = K_U32, .u = 2}, LT_E_UNSUPPORTED, "'llama.expert_gating_func' is 2, expected 1 or none"},
        {{.experts = true, .key = "llama.expert_weights_scale", .kind = K_F32, .f = 2.5f}, LT_E_UNSUPPORTED, "is 2.5, expected 1 or none: scaled shares"},
        {{.experts = true, .key = "llama.expert_weights_norm", .kind = K_U32, .u = 0}, LT_E_UNSUPPORTED,
         "'llama.expert_weights_norm' is false, expected true or none: shares that do not sum to 1 are not supported for llama"},
        {{.arch = "olmoe", .experts = true, .key = "olmoe.expert_weights_norm", .kind = K_BOOL}, LT_E_UNSUPPORTED,
         "'olmoe.expert_weights_norm' is true, expected false or none: shares that sum to 1"},
        {{.experts = true, .key = "llama.expert_weights_norm", .kind = K_STR, .s = "true"}, LT_E_FORMAT, "is a string; expected a bool"},
        {{.experts = true, .key = "llama.expert_weights_norm", .kind = K_U32, .u = 2}, LT_E_FORMAT, "is an integer; expected a bool"},
        {{.experts = true, .key = "llama.expert_group_used_count", .kind = K_U32, .u = 2}, LT_E_UNSUPPORTED, "experts in groups"},
        {{.experts = true, .key = "llama.expert_chunk_feed_forward_length", .kind = K_U32, .u = 64}, LT_E_UNSUPPORTED, "experts in chunks"},
        {{.experts = true, .key = "llama.moe_latent_size", .kind = K_U32, .u = 64}, LT_E_UNSUPPORTED, "experts between two more projections"},
        {{.experts = true, .key = "llama.router_logit_softcapping", .kind = K_F32, .f = 30}, LT_E_UNSUPPORTED, "capped scores of experts"},
        {{.experts = true, .key = "llama.swiglu_clamp_exp", .kind = K_F32, .f = 10}, LT_E_UNSUPPORTED, "clamped by a key"},
        {{.experts = true, .key = "llama.swiglu_clamp_shexp", .kind = K_F32, .f = 10}, LT_E_UNSUPPORTED, "clamped by a key"},
        {{.experts = true, .key = "llama.moe_every_n_layers", .kind = K_U32, .u = 2}, LT_E_UNSUPPORTED, "is 2, expected 1 or none: layers without experts"},
        {{.experts = true, .key = "llama.interleave_moe_layer_step", .kind = K_U32, .u = 2}, LT_E_UNSUPPORTED, "is 2, expected 1 or none: layers without experts"},
        {{.experts = true, .extra = {"blk.1.ffn_gate_exps.scale"}}, LT_E_UNSUPPORTED, "'blk.1.ffn_gate_exps.scale' would change the result"},
        {{.experts = true, .extra = {"blk.1.ffn_up_chexps.weight"}}, LT_E_UNSUPPORTED, "'blk.1.ffn_up_chexps.weight' would change the result"},
        {{.experts = true, .extra = {"blk.1.ffn_latent_up.weight"}}, LT_E_UNSUPPORTED, "'blk.1.ffn_latent_up.weight' would change the result"},
        {{.arch = "qwen3moe", .experts = true}, LT_E_FORMAT, "'qwen3moe.expert_feed_forward_length' is missing"},
        {{.arch = "olmoe", .experts = true}, LT_E_FORMAT, "'blk.0.attn_q_norm.weight' is missing; olmoe needs it as heads*head_dim"},
        {{.arch = "gpt-oss", .experts = true, .drop = "gpt-oss.expert_count"}, LT_E_FORMAT, "'gpt-oss.expert_count' is missing; expected an integer from 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        open_bad(&bad[i].c, bad[i].s, bad[i].words);
}

/* Each asks for other arithmetic than there is: read past, the text would be wrong without a word. */
static void other_arithmetic_is_named(void **state)
{
    (void)state;
    static const struct { change c; lt_status s; const char *words; } bad[] = {
        {{.key = "llama.nextn_predict_layers", .kind = K_U32, .u = 1}, LT_E_UNSUPPORTED, "a draft head among the layers"},
        {{.key = "llama.logit_scale", .kind = K_F32, .f = 0.5f}, LT_E_UNSUPPORTED, "is 0.5, expected 1 or none: scaled logits"},
        {{.key = "llama.residual_scale", .kind = K_F32, .f = 0.5f}, LT_E_UNSUPPORTED, "scaled residuals"},
        {{.key = "llama.embedding_scale", .kind = K_F32, .f = 12}, LT_E_UNSUPPORTED, "scaled embeddings"},
        {{.key = "llama.attention.causal", .kind = K_U32, .u = 0}, LT_E_UNSUPPORTED, "'llama.attention.causal' is false, expected true or none"},
        {{.key = "llama.use_parallel_residual", .kind = K_BOOL}, LT_E_UNSUPPORTED, "'llama.use_parallel_residual' is true, expected false or none"},
        {{.key = "llama.rope.scaling.yarn_ext_factor", .kind = K_F32, .f = 0.5f}, LT_E_UNSUPPORTED, "yarn's frequencies by another rule"},
        {{.key = "llama.rope.scaling.yarn_attn_factor", .kind = K_F32, .f = 0.5f}, LT_E_UNSUPPORTED, "other magnitudes of yarn"},
        {{.key = "llama.rope.scaling.yarn_log_multiplier", .kind = K_F32, .f = 0.5f}, LT_E_UNSUPPORTED, "another magnitude of yarn"},
        {{.key = "llama.rope.scaling.type", .kind = K_U32, .u = 2}, LT_E_FORMAT, "'llama.rope.scaling.type' is an integer; expected a string"},
        {{.key = "lowtide.rope_style", .kind = K_U32, .u = 2}, LT_E_FORMAT, "'lowtide.rope_style' is an integer; expected a string"},
        {{.extra = {"blk.1.attn_gate.weight"}}, LT_E_UNSUPPORTED, "'blk.1.attn_gate.weight' would change the result"},
        {{.extra = {"blk.0.attn_q.scale"}}, LT_E_UNSUPPORTED, "'blk.0.attn_q.scale' would change the result"},
        {{.extra = {"output.scale"}}, LT_E_UNSUPPORTED, "'output.scale' would change the result"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        open_bad(&bad[i].c, bad[i].s, bad[i].words);
    static const struct { float key, scale; } scales[] = {{0, 0}, {0.25f, 0.25f}};
    lt_model *m = open_good(&(change){0});
    const float usual = m->hp.attn_scale;
    lt_model_close(m);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        m = open_good(&(change){.key = "llama.attention.scale", .kind = K_F32, .f = scales[i].key});
        assert_float_equal(m->hp.attn_scale, scales[i].scale != 0 ? scales[i].scale : usual, 0);
        lt_model_close(m);
    }
    open_bad(&(change){.key = "llama.attention.scale", .kind = K_F32, .f = -1}, LT_E_FORMAT, "'llama.attention.scale' is -1; expected a number from 0 to 1000000");
    static const change good[] = { /* what writers put where there is nothing */
        {.experts = true, .key = "llama.expert_weights_norm", .kind = K_BOOL},
        {.experts = true, .key = "llama.moe_every_n_layers", .kind = K_U32, .u = 1},
        {.key = "llama.rope.scaling.yarn_ext_factor", .kind = K_F32, .f = -1},
        {.key = "llama.rope.scaling.yarn_attn_factor", .kind = K_F32, .f = 1},
        {.key = "llama.logit_scale", .kind = K_F32, .f = 0},
        {.extra = {"blk.0.vision.scale"}},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        lt_model_close(open_good(&good[i]));
}

static void equal_arrays_are_one_value(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){.key = "llama.attention.head_count_kv", .kind = K_I32S, .list = {2, 2}});
    assert_int_equal(m->hp.kv_heads, 2);
    lt_model_close(m);
    open_bad(&(change){.key = "llama.attention.head_count_kv", .kind = K_I32S, .list = {2, 4}}, LT_E_UNSUPPORTED,
             "'llama.attention.head_count_kv' differs between layers (2 and 4)");
}

static void wrong_keys_are_named(void **state)
{
    (void)state;
    static const struct { change c; lt_status s; const char *words; } bad[] = {
        {{.drop = "general.architecture"}, LT_E_FORMAT, "general.architecture"},
        {{.arch = "mamba"}, LT_E_UNSUPPORTED, "'mamba' is not supported; supported: llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, gpt-oss, olmoe"},
        {{.drop = "llama.block_count"}, LT_E_FORMAT, "'llama.block_count' is missing; expected an integer from 1 to 4096"},
        {{.drop = "llama.attention.layer_norm_rms_epsilon"}, LT_E_FORMAT, "epsilon' is missing"},
        {{.key = "llama.block_count", .kind = K_U32, .u = 0}, LT_E_FORMAT, "'llama.block_count' is 0"},
        {{.key = "llama.block_count", .kind = K_U32, .u = 3}, LT_E_FORMAT, "'blk.2.attn_norm.weight' is missing"},
        {{.key = "llama.block_count", .kind = K_U32, .u = UINT32_MAX}, LT_E_FORMAT, "is 4294967295"},
        {{.key = "llama.block_count", .kind = K_STR, .s = "two"}, LT_E_FORMAT, "is a string; expected an integer"},
        {{.key = "llama.block_count", .kind = K_F32, .f = 2}, LT_E_FORMAT, "is a float; expected an integer"},
        {{.key = "llama.block_count", .kind = K_BOOL}, LT_E_FORMAT, "is a bool; expected an integer"},
        {{.key = "llama.attention.head_count", .kind = K_U32, .u = 3}, LT_E_FORMAT, "is 3; expected a multiple of head_count_kv"},
        {{.key = "llama.embedding_length", .kind = K_U32, .u = 512}, LT_E_FORMAT, "'token_embd.weight' is [40, 256]; expected [40, 512]"},
        {{.key = "llama.rope.dimension_count", .kind = K_U32, .u = 63}, LT_E_FORMAT, "63 elements of a head are rotated"},
        {{.key = "llama.rope.dimension_count", .kind = K_U32, .u = 128}, LT_E_FORMAT, "128 elements of a head are rotated"},
        {{.key = "llama.attention.value_length", .kind = K_U32, .u = 32}, LT_E_UNSUPPORTED, "values of 32 elements a head and keys of 64"},
        {{.key = "llama.attention.layer_norm_rms_epsilon", .kind = K_F32, .f = -1}, LT_E_FORMAT, "is -1"},
        {{.key = "llama.attention.layer_norm_rms_epsilon", .kind = K_F32, .f = NAN}, LT_E_FORMAT, "nan"},
        {{.key = "llama.rope.freq_base", .kind = K_F32, .f = 0}, LT_E_FORMAT, "rope.freq_base' is 0"},
        {{.key = "llama.rope.scaling.type", .kind = K_STR, .s = "dynamic"}, LT_E_UNSUPPORTED, "'dynamic', which is not supported"},
        {{.key = "llama.rope.scaling.type", .kind = K_STR, .s = "linear"}, LT_E_FORMAT, "'linear' with factor 0"},
        {{.key = "llama.final_logit_softcapping", .kind = K_F32, .f = 30}, LT_E_UNSUPPORTED, "capped logits"},
        {{.arch = "gemma3", .key = "gemma3.attn_logit_softcapping", .kind = K_F32, .f = 50}, LT_E_UNSUPPORTED, "capped attention scores"},
        {{.arch = "gemma2", .key = "gemma2.attn_logit_softcapping", .kind = K_F32, .f = -50}, LT_E_FORMAT, "'gemma2.attn_logit_softcapping' is -50"},
        {{.arch = "gemma2", .key = "gemma2.final_logit_softcapping", .kind = K_F32, .f = NAN}, LT_E_FORMAT, "softcapping' is nan"},
        {{.key = "lowtide.rope_style", .kind = K_STR, .s = "thirds"}, LT_E_FORMAT, "'thirds'; expected 'halves' or 'pairs'"},
        {{.key = "lowtide.rope.factors", .kind = K_I32S, .list = {1, 2}}, LT_E_FORMAT, "is not an array of 32 floats"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        open_bad(&bad[i].c, bad[i].s, bad[i].words);
}

static void wrong_tensors_are_named(void **state)
{
    (void)state;
    static const struct { change c; lt_status s; const char *words; } bad[] = {
        {{.drop = "token_embd.weight"}, LT_E_FORMAT, "'token_embd.weight' is missing"},
        {{.drop = "output_norm.weight"}, LT_E_FORMAT, "'output_norm.weight' is missing"},
        {{.drop = "blk.1.ffn_down.weight"}, LT_E_FORMAT, "'blk.1.ffn_down.weight' is missing; llama needs it as embd by ff"},
        {{.tensor = "blk.0.attn_k.weight", .d0 = 64}, LT_E_FORMAT,
         "'blk.0.attn_k.weight' is [64, 256]; expected [128, 256], which is kv_heads*head_dim by embd"},
        {{.tensor = "blk.0.attn_norm.weight", .d0 = 128}, LT_E_FORMAT, "'blk.0.attn_norm.weight' is [128]; expected [256]"},
        {{.tensor = "blk.0.attn_norm.weight", .d0 = 2, .d1 = 128}, LT_E_FORMAT, "is [2, 128]; expected [256]"},
        {{.tensor = "output.weight", .d0 = 41}, LT_E_FORMAT, "'output.weight' is [41, 256]; expected [40, 256]"},
        {{.tensor = "blk.0.ffn_up.weight", .dtype = LT_DTYPE_I32}, LT_E_UNSUPPORTED, "has type I32, which is not supported; supported: F32, F16, BF16, Q4_0"},
        {{.tensor = "blk.0.ffn_norm.weight", .dtype = LT_DTYPE_Q8_0}, LT_E_UNSUPPORTED, "has type Q8_0, which is not supported for a vector"},
        {{.tensor = "blk.1.attn_q.weight", .patch_type = 16}, LT_E_UNSUPPORTED, "'blk.1.attn_q.weight' has type IQ2_XXS, which is not supported"},
        {{.extra = {"rope_factors_long.weight"}}, LT_E_UNSUPPORTED, "'rope_factors_long.weight' would change the result"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        open_bad(&bad[i].c, bad[i].s, bad[i].words);
}

static void expressions(void **state)
{
    (void)state;
    lt_hparams hp = {.layers = 3, .embd = 8, .heads = 4, .kv_heads = 2, .head_dim = 6, .ff = 32, .vocab = 100, .experts = 5, .expert_ff = 7};
    static const struct { const char *text; bool ok; uint64_t v; } e[] = {
        {"embd", true, 8},           {"heads*head_dim+2*kv_heads*head_dim", true, 48}, {"2*ff", true, 64},
        {"experts*expert_ff", true, 35},
        {"head_dim/2", true, 3},     {"head_dim/4", false, 0},   {"head", false, 0},    {"", false, 0},
        {"embd+", false, 0},         {"embd-1", false, 0},       {"2x", false, 0},      {"embd/0", false, 0},
        {"18446744073709551615+1", false, 0}, {"99999999999999999999", false, 0},        {"9223372036854775808*2", false, 0},
    };
    for (size_t i = 0; i < sizeof e / sizeof *e; i++) {
        uint64_t v;
        bool ok = lt__rows_eval(&hp, e[i].text, &v);
        if (ok != e[i].ok || (ok && v != e[i].v))
            fail_msg("'%s' gives %d, %llu", e[i].text, ok, (unsigned long long)v);
    }
}

static void rope_scalings(void **state)
{
    (void)state;
    lt_hparams hp = {.rope = {{.base = 10000, .rotated = 4, .magnitude = 1, .factor = 1}}};
    struct lt_model m = {.hp = hp};
    const float longer[2] = {2, 4}, shorter[2] = {1, 2};
    int32_t pos[2] = {0, 3};
    float a[8];
    lt__model_rope(&m, 0, 100, pos, 2, a);
    const double w[2] = {1, 0.01}; /* 10000^(-2i/4) */
    for (int i = 0; i < 2; i++) {
        assert_true(a[2 * i] == 1 && a[2 * i + 1] == 0);
        assert_float_equal(a[4 + 2 * i], cos(3 * w[i]), 1e-7);
        assert_float_equal(a[5 + 2 * i], sin(3 * w[i]), 1e-7);
    }
    lt_rope_set *r = &m.hp.rope[0];
    r->scaling = LT_ROPE_SCALE_LINEAR;
    r->factor = 8;
    lt__model_rope(&m, 0, 100, pos, 2, a);
    assert_float_equal(a[5], sin(3.0 / 8), 1e-7);
    r->scaling = LT_ROPE_SCALE_FACTORS;
    r->factors = longer;
    r->factors_short = shorter;
    r->original_context = 50;
    r->magnitude = 1.5;
    lt__model_rope(&m, 0, 100, pos, 2, a);
    assert_float_equal(a[0], 1.5, 0);
    assert_float_equal(a[7], 1.5 * sin(3 * 0.01 / 4), 1e-7);
    lt__model_rope(&m, 0, 50, pos, 2, a); /* a session no longer than the trained length */
    assert_float_equal(a[7], 1.5 * sin(3 * 0.01 / 2), 1e-7);
    r->scaling = LT_ROPE_SCALE_YARN;
    r->rotated = 2;
    r->factor = 4;
    r->magnitude = 1;
    r->beta_fast = 32;
    r->beta_slow = 1;
    lt__model_rope(&m, 0, 50, pos, 2, a); /* the first pair turns many times within 50: kept */
    assert_float_equal(a[2], cos(3.0), 1e-7);
    /* A ramp from 1 to 2 of a second pair, or as far as its ends are from those. */
    float both[2][8];
    *r = (lt_rope_set){.base = 100, .rotated = 6, .scaling = LT_ROPE_SCALE_YARN, .factor = 4, .magnitude = 1, .original_context = 50, .beta_fast = 3, .beta_slow = 1};
    const double two_pi = 6.283185307179586, low = 3 * log(50 / (3 * two_pi)) / log(100), high = 3 * log(50 / two_pi) / log(100);
    for (int exact = 0; exact < 2; exact++) {
        float out[12];
        const double from = exact ? low : floor(low), to = exact ? high : ceil(high), keep = 1 - (1 - from) / (to - from), f = pow(100, -2.0 / 6);
        r->ramp_exact = exact;
        lt__model_rope(&m, 0, 50, pos, 2, out);
        assert_float_equal(out[6 + 3], sin(3 * (f * keep + f / 4 * (1 - keep))), 1e-6);
        memcpy(both[exact], out, sizeof both[exact]);
    }
    assert_true(low > 0 && high < 2 && low != floor(low));
}

/* Layers share pages as their windows say; no two caches of a group overlap, none leaves its page. */
static void caches_tile_their_pages(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){0});
    struct lt_model copy = *m;
    static const struct { uint32_t window, every, groups, counts[2]; } cases[] = {
        {0, 0, 1, {2, 0}}, {100, 0, 1, {2, 0}}, {100, 2, 2, {1, 1}}, {100, 6, 1, {2, 0}}};
    for (size_t c = 0; c < 4; c++) {
        copy.hp.window = cases[c].window;
        copy.hp.window_every = cases[c].every;
        lt_kv_desc kv = {.dtype = LT_DTYPE_Q8_0};
        lt_graph g;
        lt_kv_group groups[2];
        uint32_t n;
        assert_int_equal(lt__model_build(&copy, &kv, &g, groups, &n, NULL), LT_OK);
        assert_int_equal(n, cases[c].groups);
        uint64_t part = KV_HEADS * LT_KV_PAGE * (HEAD_DIM / 32 * 34), stores = 0;
        unsigned char seen[2][2 * LAYERS] = {{0}};
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(groups[i].layers, cases[c].counts[i]);
            assert_int_equal(groups[i].page_bytes, 2 * part * groups[i].layers);
        }
        assert_int_equal(groups[0].window, cases[c].groups == 2 ? 0 : cases[c].window);
        for (size_t i = 0; i < g.n_nodes; i++) {
            if (g.nodes[i].op != LT_OP_KV_STORE)
                continue;
            const lt_kv_layout *k = &g.nodes[i].params.KV_STORE.kv;
            uint32_t group = g.tensors[g.nodes[i].dst].group;
            stores++;
            const uint64_t at[2] = {k->k_offset, k->v_offset};
            for (int x = 0; x < 2; x++) {
                assert_int_equal(at[x] % part, 0);
                assert_true(at[x] + part <= groups[group].page_bytes);
                assert_int_equal(seen[group][at[x] / part]++, 0);
            }
            assert_memory_equal(k, &g.nodes[i + 1].params.ATTENTION.kv, sizeof *k);
        }
        assert_int_equal(stores, LAYERS);
        lt__graph_deinit(&g);
    }
    lt_model_close(m);
}

static void a_cache_type_that_does_not_divide_a_head_is_refused(void **state)
{
    (void)state;
    lt_model *m = open_good(&(change){0});
    struct lt_model copy = *m;
    lt_graph g;
    lt_kv_group groups[2];
    uint32_t n;
    lt_err err;
    copy.hp.head_dim = 80;
    assert_int_equal(lt__model_build(&copy, &(lt_kv_desc){.dtype = LT_DTYPE_Q8_0}, &g, groups, &n, &err), LT_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Q8_0 needs heads of a multiple of 32 elements"));
    assert_int_equal(lt__model_build(m, &(lt_kv_desc){.dtype = LT_DTYPE_Q4_K}, &g, groups, &n, &err), LT_E_UNSUPPORTED);
    lt_model_close(m);
}

typedef struct nth { lt_fault_point point; long left; } nth;

static bool fail_nth(void *user, lt_fault_point p)
{
    nth *f = user;
    return p == f->point && f->left-- == 1;
}

/* Every allocation and read of an open and a build, failed once: typed error, nothing kept. */
static void faults_leave_nothing(void **state)
{
    (void)state;
    write_model(&(change){.extra = {"rope_freqs.weight"}});
    const lt_fault_point points[] = {LT_FAULT_HOST_ALLOC, LT_FAULT_READ, LT_FAULT_MAP};
    for (size_t p = 0; p < 3; p++) {
        nth f = {points[p], 0};
        lt_ctx_desc d = lt_ctx_desc_default();
        d.fault = fail_nth;
        d.fault_user = &f;
        lt_ctx *c;
        assert_int_equal(lt_ctx_create(&d, &c, NULL), LT_OK);
        long n = 1;
        for (;; n++) {
            lt_model *m = NULL;
            lt_graph g;
            lt_kv_group groups[2];
            uint32_t n_groups;
            uint64_t bytes;
            lt_err err = {0};
            f.left = n;
            lt_status s = lt_model_open(c, path, &m, &err);
            if (s == LT_OK) {
                s = lt__model_build(m, &(lt_kv_desc){.dtype = LT_DTYPE_F16}, &g, groups, &n_groups, &err);
                if (s == LT_OK) {
                    s = lt__graph_layout(&g, 16, 1, 64, &bytes, &err);
                    lt__graph_deinit(&g);
                }
            }
            lt_model_close(m);
            assert_int_equal(lt_ctx_host_bytes(c), 0);
            if (f.left > 0)
                break;
            if (s != (points[p] == LT_FAULT_HOST_ALLOC ? LT_E_HOST_OOM : LT_E_IO) && s != LT_OK)
                fail_msg("fault %d number %ld: %s '%s'", (int)points[p], n, lt_status_name(s), err.text);
            if (points[p] == LT_FAULT_HOST_ALLOC || s != LT_OK)
                assert_int_equal(err.status, s);
        }
        printf("fault point %d: %ld places\n", (int)points[p], n - 1);
        lt_ctx_destroy(c);
    }
}

static int setup(void **state)
{
    (void)state;
    const char *b = getenv("LT_BUILD");
    snprintf(path, sizeof path, "%s/test_model-%d.gguf", b ? b : "build", (int)getpid());
    lt_ctx_desc d = lt_ctx_desc_default();
    d.log = keep_log;
    d.log_user = &lines;
    return lt_ctx_create(&d, &ctx, NULL) == LT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    uint64_t left = lt_ctx_host_bytes(ctx);
    lt_ctx_destroy(ctx);
    return left ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_model_opens),
        cmocka_unit_test(tied_output_is_listed_twice_and_counts_once),
        cmocka_unit_test(norms_are_f32_in_memory),
        cmocka_unit_test(text_23_unknown_extra_tensors_are_skipped_with_a_list),
        cmocka_unit_test(a_known_part_without_a_place_is_refused),
        cmocka_unit_test(gemma2_has_caps),
        cmocka_unit_test(experts_open),
        cmocka_unit_test(wrong_experts_are_named),
        cmocka_unit_test(other_arithmetic_is_named),
        cmocka_unit_test(equal_arrays_are_one_value),
        cmocka_unit_test(wrong_keys_are_named),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(expressions),
        cmocka_unit_test(rope_scalings),
        cmocka_unit_test(caches_tile_their_pages),
        cmocka_unit_test(a_cache_type_that_does_not_divide_a_head_is_refused),
        cmocka_unit_test(faults_leave_nothing),
    };
    return cmocka_run_group_tests_name("model", tests, setup, teardown);
}
