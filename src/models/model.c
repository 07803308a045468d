#include "base/mem.h"
#include "models/arch.h"

#include <stdio.h>
#include <string.h>

static const lt_arch *const archs[] = {&lt__arch_llama, &lt__arch_qwen2, &lt__arch_qwen3, &lt__arch_qwen3moe,
                                       &lt__arch_gemma2, &lt__arch_gemma3, &lt__arch_phi3, &lt__arch_gpt_oss,
                                       &lt__arch_olmoe};
#define N_ARCHS (sizeof archs / sizeof *archs)

const char *lt_model_arch_at(uint32_t i, const char **text)
{
    if (i >= N_ARCHS)
        return NULL;
    if (text)
        *text = archs[i]->text;
    return archs[i]->name;
}

const lt_model_info *lt_model_get_info(const lt_model *m) { return &m->info; }
const lt_modelfile *lt_model_get_file(const lt_model *m) { return m->file; }

static lt_status choose_arch(struct lt_model *m, lt_err *err)
{
    const char *name = lt_modelfile_str(m->file, "general.architecture", NULL);
    char list[256] = "";
    if (!name)
        return lt__fail(err, LT_E_FORMAT, "%s: key 'general.architecture' is missing or no string", lt__model_path(m));
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(name, archs[i]->name) == 0) {
            m->arch = archs[i];
            return LT_OK;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", archs[i]->name);
    }
    return lt__fail(err, LT_E_UNSUPPORTED, "%s: architecture '%s' is not supported; supported: %s", lt__model_path(m),
                    name, list);
}

static bool reads_key(const lt_arch *a, const char *key)
{
    for (size_t i = 0; i < a->n_hparams; i++)
        if (strcmp(a->hparams[i].key, key) == 0)
            return true;
    return false;
}

/* Keys that ask for arithmetic which the architecture here does not have. Reading past them would give wrong text. */
static lt_status refuse_keys(const struct lt_model *m, lt_err *err)
{
    static const struct { const char *key, *what; } refused[] = {
        {"expert_count", "a mixture of experts"},
        {"attn_logit_softcapping", "capped attention scores"},
        {"final_logit_softcapping", "capped logits"},
        {"attention.max_alibi_bias", "position bias instead of rope"},
        {"attention.clamp_kqv", "clamped projections"},
        {"expert_shared_count", "an expert of every token"},
        {"expert_group_count", "experts in groups"},
        {"expert_group_used_count", "experts in groups"},
        {"expert_chunk_feed_forward_length", "experts in chunks"},
        {"leading_dense_block_count", "layers without experts before those with"},
        {"moe_latent_size", "experts between two more projections"},
        {"router_logit_softcapping", "capped scores of experts"},
        {"swiglu_clamp_exp", "a feed-forward unit clamped by a key"},
        {"swiglu_clamp_shexp", "a feed-forward unit clamped by a key"},
        {"nextn_predict_layers", "a draft head among the layers"},
        {"rope.scaling.yarn_log_multiplier", "another magnitude of yarn"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        double v = 0;
        if (reads_key(m->arch, refused[i].key))
            continue;
        lt_status s = lt__rows_f64(m, refused[i].key, -1e300, 1e300, &v, err);
        if (s != LT_OK)
            return s;
        if (v != 0)
            return lt__fail(err, LT_E_UNSUPPORTED, "%s: key '%s.%s' is %g: %s is not supported for %s",
                            lt__model_path(m), m->arch->name, refused[i].key, v, refused[i].what, m->arch->name);
    }
    return LT_OK;
}

/* Values of a key that name the one arithmetic there is, or none at all, pass. */
static lt_status refuse_values(const struct lt_model *m, lt_err *err)
{
    /* Shares of experts by softmax over all (1), made to sum to 1 or not, or over the chosen ones (3). */
    const struct { const char *key; double fine[3]; const char *what; } refused[] = {
        {"expert_gating_func", {0, 1, m->arch->share_all ? 1 : 3}, "shares of experts by another function"},
        {"expert_weights_scale", {0, 1, 1}, "scaled shares of experts"},
        {"moe_every_n_layers", {0, 1, 1}, "layers without experts between those with"},
        {"interleave_moe_layer_step", {0, 1, 1}, "layers without experts between those with"},
        {"rope.scaling.yarn_ext_factor", {-1, 1, 1}, "yarn's frequencies by another rule"},
        {"rope.scaling.yarn_attn_factor", {1, 1, 1}, "other magnitudes of yarn"},
        {"embedding_scale", {0, 1, 1}, "scaled embeddings"},
        {"residual_scale", {0, 1, 1}, "scaled residuals"},
        {"logit_scale", {0, 1, 1}, "scaled logits"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        double v = refused[i].fine[0];
        lt_status s = lt__rows_f64(m, refused[i].key, -1e300, 1e300, &v, err);
        if (s != LT_OK)
            return s;
        if (v != refused[i].fine[0] && v != refused[i].fine[1] && v != refused[i].fine[2])
            return lt__fail(err, LT_E_UNSUPPORTED, "%s: key '%s.%s' is %g, expected %g or none: %s are not supported",
                            lt__model_path(m), m->arch->name, refused[i].key, v, refused[i].fine[1], refused[i].what);
    }
    return LT_OK;
}

static lt_status refuse_flags(const struct lt_model *m, lt_err *err)
{
    const struct { const char *key; bool fine; const char *what; } refused[] = {
        {"expert_weights_norm", !m->arch->share_all, m->arch->share_all ? "shares that sum to 1" : "shares that do not sum to 1"},
        {"attention.causal", true, "tokens that see later ones"},
        {"use_parallel_residual", false, "a feed-forward unit beside attention"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        bool v = refused[i].fine;
        lt_status s = lt__rows_bool(m, refused[i].key, &v, err);
        if (s != LT_OK)
            return s;
        if (v != refused[i].fine)
            return lt__fail(err, LT_E_UNSUPPORTED, "%s: key '%s.%s' is %s, expected %s or none: %s are not supported for %s",
                            lt__model_path(m), m->arch->name, refused[i].key, v ? "true" : "false", v ? "false" : "true",
                            refused[i].what, m->arch->name);
    }
    return LT_OK;
}

static lt_status find_vocab(struct lt_model *m, lt_err *err)
{
    const lt_tensor_info *t = lt_modelfile_tensor(m->file, "token_embd.weight");
    const lt_key *tokens = lt_modelfile_key(m->file, "tokenizer.ggml.tokens");
    if (!t)
        return lt__fail(err, LT_E_FORMAT, "%s: tensor 'token_embd.weight' is missing", lt__model_path(m));
    if (t->ndim != 2 || t->dim[0] < 1 || t->dim[0] > 1u << 24)
        return lt__fail(err, LT_E_FORMAT,
                        "%s: tensor 'token_embd.weight' has %llu rows and %u dimensions; expected 1 to 16777216 rows "
                        "and 2",
                        lt__model_path(m), (unsigned long long)t->dim[0], t->ndim);
    if (tokens && tokens->type == LT_KEY_ARRAY && tokens->n > t->dim[0])
        return lt__fail(err, LT_E_FORMAT, "%s: the tokenizer has %llu tokens and 'token_embd.weight' only %llu rows",
                        lt__model_path(m), (unsigned long long)tokens->n, (unsigned long long)t->dim[0]);
    m->hp.vocab = (uint32_t)t->dim[0];
    return LT_OK;
}

static const char *dims_text(const uint64_t *dim, uint32_t ndim, char buf[112])
{
    size_t n = 0;
    buf[0] = 0;
    for (uint32_t i = 0; i < ndim && i < 4; i++)
        n += (size_t)snprintf(buf + n, 112 - n, "%s%llu", i ? ", " : "", (unsigned long long)dim[i]);
    return buf;
}

static lt_status unsupported_type(const struct lt_model *m, const char *name, const char *type, bool vector,
                                  lt_err *err)
{
    static const char *const floats = "F32, F16, BF16";
    char list[256] = "";
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        const lt_dtype_traits *tr = lt_dtype_get((lt_dtype)t);
        size_t n = strlen(list);
        if (tr->kind == LT_DTYPE_KIND_FLOAT || tr->kind == LT_DTYPE_KIND_QUANT)
            snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", tr->name);
    }
    return lt__fail(err, LT_E_UNSUPPORTED, "%s: tensor '%s' has type %s, which is not supported%s; supported: %s",
                    lt__model_path(m), name, type, vector ? " for a vector" : "", vector ? floats : list);
}

static uint64_t rows_of(const lt_weight *w)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i + 1 < w->ndim; i++)
        n *= w->dim[i]; /* at most two, each below 2^32 */
    return n;
}

/* "experts by expert_ff by embd" */
static const char *shape_text(const lt_tensor_row *row, char buf[112])
{
    snprintf(buf, 112, "%s%s%s%s", row->flags & LT_ROW_EACH ? "experts by " : "", row->rows, row->cols ? " by " : "",
             row->cols ? row->cols : "");
    return buf;
}

static lt_status check_dims(const struct lt_model *m, const lt_tensor_row *row, const lt_tensor_info *t,
                            lt_weight *w, lt_err *err)
{
    char have[112], want[112], shape[112];
    const char *const parts[] = {row->flags & LT_ROW_EACH ? "experts" : NULL, row->rows, row->cols};
    for (size_t i = 0; i < 3; i++)
        if (parts[i] && !lt__rows_eval(&m->hp, parts[i], &w->dim[w->ndim++]))
            return lt__fail(err, LT_E_FORMAT, "%s: the size of '%s' (%s) does not follow from the hyperparameters",
                            lt__model_path(m), w->name, parts[i]);
    /* Leading ones mean nothing: writers of GGUF leave them out, or put them before a vector. */
    uint32_t skip = 0, skip_want = 0;
    while (t->ndim - skip > 1 && t->dim[skip] == 1)
        skip++;
    while (w->ndim - skip_want > 1 && w->dim[skip_want] == 1)
        skip_want++;
    uint32_t n = w->ndim - skip_want;
    if (t->ndim - skip != n || memcmp(t->dim + skip, w->dim + skip_want, n * sizeof *w->dim) != 0)
        return lt__fail(err, LT_E_FORMAT, "%s: tensor '%s' is [%s]; expected [%s], which is %s", lt__model_path(m),
                        w->name, dims_text(t->dim, t->ndim, have), dims_text(w->dim, w->ndim, want), shape_text(row, shape));
    return LT_OK;
}

static lt_status check_type(const struct lt_model *m, const lt_tensor_row *row, const lt_tensor_info *t,
                            lt_weight *w, lt_err *err)
{
    const lt_dtype_traits *tr = t->dtype < LT_DTYPE_COUNT ? lt_dtype_get(t->dtype) : NULL;
    bool vector = !row->cols || (row->flags & LT_ROW_F32); /* the bias vectors of experts are a matrix */
    if (!tr || (tr->kind != LT_DTYPE_KIND_FLOAT && (vector || tr->kind != LT_DTYPE_KIND_QUANT)))
        return unsupported_type(m, w->name, t->type_name, vector, err);
    w->converted = (row->flags & LT_ROW_F32) && (t->dtype != LT_DTYPE_F32 || t->add != 0.0f);
    w->dtype = row->flags & LT_ROW_F32 ? LT_DTYPE_F32 : t->dtype;
    w->on_host = row->flags & LT_ROW_HOST;
    uint64_t stored, cols = w->dim[w->ndim - 1], rows = rows_of(w);
    if (!lt_dtype_row_bytes(t->dtype, cols, &stored) || !lt__mul_u64(stored, rows, &stored))
        return lt__fail(err, LT_E_FORMAT, "%s: tensor '%s' has rows of %llu elements; %s needs a multiple of %u",
                        lt__model_path(m), w->name, (unsigned long long)cols, tr->name, tr->block_elems);
    if (stored != t->bytes)
        return lt__fail(err, LT_E_FORMAT, "%s: tensor '%s' has %llu bytes; expected %llu", lt__model_path(m), w->name,
                        (unsigned long long)t->bytes, (unsigned long long)stored);
    if (!lt_dtype_row_bytes(w->dtype, cols, &w->bytes) || !lt__mul_u64(w->bytes, rows, &w->bytes))
        return lt__fail(err, LT_E_FORMAT, "%s: tensor '%s' overflows 64 bits as f32", lt__model_path(m), w->name);
    return LT_OK;
}

static lt_status add_weight(struct lt_model *m, const lt_tensor_row *row, uint32_t layer, uint32_t *slot, lt_err *err)
{
    lt_weight w = {.name = ""};
    char n[16], shape[112];
    const char *mark = strstr(row->name, "%u");
    snprintf(n, sizeof n, "%u", layer);
    snprintf(w.name, sizeof w.name, "%.*s%s%s", mark ? (int)(mark - row->name) : (int)sizeof w.name, row->name,
             mark ? n : "", mark ? mark + 2 : "");
    *slot = UINT32_MAX;
    w.info = lt_modelfile_tensor(m->file, w.name);
    if (!w.info && (row->flags & LT_ROW_TIED))
        w.info = lt_modelfile_tensor(m->file, "token_embd.weight");
    if (!w.info) {
        if (row->flags & LT_ROW_OPTIONAL)
            return LT_OK;
        return lt__fail(err, LT_E_FORMAT, "%s: tensor '%s' is missing; %s needs it as %s", lt__model_path(m), w.name,
                        m->arch->name, shape_text(row, shape));
    }
    lt_status s = check_dims(m, row, w.info, &w, err);
    if (s == LT_OK)
        s = check_type(m, row, w.info, &w, err);
    if (s == LT_OK)
        s = lt__grow(m->ctx, (void **)&m->weights, &m->cap_weights, m->n_weights + 1, sizeof *m->weights, err);
    if (s != LT_OK)
        return s;
    *slot = (uint32_t)m->n_weights;
    m->weights[m->n_weights++] = w;
    return LT_OK;
}

/* Whether the row is of the kind of model that this is. */
static bool row_applies(const struct lt_model *m, const lt_tensor_row *row)
{
    return !(row->flags & (m->hp.experts ? LT_ROW_DENSE : LT_ROW_EXPERTS));
}

/* In the order of use: what comes once, then layer by layer. */
static lt_status add_weights(struct lt_model *m, lt_err *err)
{
    const lt_arch *a = m->arch;
    size_t layers = m->hp.layers;
    lt_status s;
    m->slots = lt__alloc_array(m->ctx, a->n_tensors * layers, sizeof *m->slots);
    if (!m->slots)
        return lt__fail_oom(err, a->n_tensors * layers * sizeof *m->slots, "index of the tensors");
    memset(m->slots, 0xff, a->n_tensors * layers * sizeof *m->slots);
    for (size_t r = 0; r < a->n_tensors; r++)
        if (!strstr(a->tensors[r].name, "%u") &&
            (s = add_weight(m, &a->tensors[r], 0, &m->slots[r * layers], err)) != LT_OK)
            return s;
    for (uint32_t l = 0; l < layers; l++)
        for (size_t r = 0; r < a->n_tensors; r++)
            if (strstr(a->tensors[r].name, "%u") && row_applies(m, &a->tensors[r]) &&
                (s = add_weight(m, &a->tensors[r], l, &m->slots[r * layers + l], err)) != LT_OK)
                return s;
    m->embd_weight = lt__model_find(m, -1, "token_embd.weight");
    return LT_OK;
}

uint32_t lt__model_find(const struct lt_model *m, int32_t layer, const char *name)
{
    for (size_t r = 0; r < m->arch->n_tensors; r++) {
        const char *row = m->arch->tensors[r].name, *mark = strstr(row, "%u.");
        if (layer < 0 && !mark && strcmp(row, name) == 0)
            return m->slots[r * m->hp.layers];
        if (layer >= 0 && mark && strcmp(mark + 3, name) == 0)
            return m->slots[r * m->hp.layers + (uint32_t)layer];
    }
    return UINT32_MAX;
}

static bool row_matches(const char *row, const char *name, uint32_t layers)
{
    const char *mark = strstr(row, "%u");
    if (!mark)
        return strcmp(row, name) == 0;
    size_t head = (size_t)(mark - row), digits;
    if (strncmp(row, name, head) != 0)
        return false;
    digits = strspn(name + head, "0123456789");
    if (digits == 0 || digits > 6 || strcmp(mark + 2, name + head + digits) != 0)
        return false;
    unsigned layer = 0;
    for (size_t i = 0; i < digits; i++)
        layer = layer * 10 + (unsigned)(name[head + i] - '0');
    return layer < layers;
}

static bool any_row(const lt_arch *a, const char *name, uint32_t layers)
{
    for (size_t r = 0; r < a->n_tensors; r++)
        if (row_matches(a->tensors[r].name, name, layers))
            return true;
    return false;
}

static bool model_uses(const struct lt_model *m, const char *name)
{
    const lt_arch *a = m->arch;
    for (size_t r = 0; r < a->n_tensors; r++)
        if (row_applies(m, &a->tensors[r]) && row_matches(a->tensors[r].name, name, m->hp.layers))
            return true;
    return false;
}

/* A tensor that has its place in the arithmetic of a layer or of the head, but none in this
 * architecture's: leaving it out would give wrong text without a word. */
static bool changes_result(const char *name, uint32_t layers)
{
    static const char *const known[] = {
        "output.bias",               "output_norm.bias",           "token_embd_norm.weight",
        "position_embd.weight",      "blk.%u.attn_norm.bias",      "blk.%u.ffn_norm.bias",
        "blk.%u.attn_norm_2.weight", "blk.%u.attn_sub_norm.weight", "blk.%u.ffn_sub_norm.weight",
        "blk.%u.ffn_gate_up_exps.weight", "blk.%u.exp_probs_b.bias", "blk.%u.ffn_gate_inp_shexp.weight",
        "blk.%u.ffn_gate_shexp.weight", "blk.%u.ffn_up_shexp.weight", "blk.%u.ffn_down_shexp.weight",
        "blk.%u.attn_qkv.bias",      "blk.%u.attn_gate.weight",    "blk.%u.ffn_norm_exps.weight",
        "blk.%u.ffn_gate_chexps.weight", "blk.%u.ffn_up_chexps.weight", "blk.%u.ffn_down_chexps.weight",
        "blk.%u.ffn_latent_down.weight", "blk.%u.ffn_latent_up.weight",
    };
    static const char scale[] = ".scale"; /* of a product: a factor beside the weight of that name */
    char weight[64];
    size_t n = strlen(name), stem = n > sizeof scale - 1 ? n - (sizeof scale - 1) : 0;
    if (stem && strcmp(name + stem, scale) == 0 && stem + sizeof ".weight" <= sizeof weight) {
        snprintf(weight, sizeof weight, "%.*s.weight", (int)stem, name);
        return changes_result(weight, layers);
    }
    for (size_t i = 0; i < N_ARCHS; i++)
        if (any_row(archs[i], name, layers))
            return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (row_matches(known[i], name, layers))
            return true;
    return false;
}

static void log_skipped(const struct lt_model *m, const char *list, size_t n)
{
    if (n)
        lt__log(m->ctx, LT_LOG_WARN, "model", "%s: skipped, no part of %s: %s", lt__model_path(m), m->arch->name, list);
}

static lt_status find_skipped(struct lt_model *m, lt_err *err)
{
    char list[320];
    size_t used = 0;
    uint64_t n = lt_modelfile_tensor_count(m->file);
    for (uint64_t i = 0; i < n; i++) {
        const char *name = lt_modelfile_tensor_at(m->file, i)->name;
        if (model_uses(m, name))
            continue;
        if (changes_result(name, m->hp.layers))
            return lt__fail(err, LT_E_UNSUPPORTED,
                            "%s: tensor '%s' would change the result, but %s as supported here has no place for it",
                            lt__model_path(m), name, m->arch->name);
        m->info.skipped++;
        if (used && used + strlen(name) + 3 > sizeof list) {
            log_skipped(m, list, used);
            used = 0;
        }
        int more = snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", name);
        used = lt__min_u64(used + (size_t)more, sizeof list - 1);
    }
    log_skipped(m, list, used);
    if (m->info.skipped)
        lt__log(m->ctx, LT_LOG_WARN, "model", "%s: %llu of %llu tensors skipped", lt__model_path(m),
                (unsigned long long)m->info.skipped, (unsigned long long)n);
    return LT_OK;
}

static void fill_info(struct lt_model *m)
{
    lt_model_info *i = &m->info;
    const lt_hparams *hp = &m->hp;
    uint64_t by_type[LT_DTYPE_COUNT] = {0}, most = 0;
    i->arch = m->arch->name;
    i->name = lt_modelfile_str(m->file, "general.name", "");
    i->layers = hp->layers;
    i->embd = hp->embd;
    i->ff = hp->ff;
    i->heads = hp->heads;
    i->kv_heads = hp->kv_heads;
    i->head_dim = hp->head_dim;
    i->vocab = hp->vocab;
    i->context = hp->context;
    i->window = hp->window;
    i->experts = hp->experts;
    i->experts_used = hp->experts_used;
    i->tensors = lt_modelfile_tensor_count(m->file);
    i->main_dtype = "";
    for (size_t w = 0; w < m->n_weights; w++) {
        const lt_weight *x = &m->weights[w];
        if (w != m->embd_weight && x->info == m->weights[m->embd_weight].info)
            continue; /* tied */
        i->params += rows_of(x) * x->dim[x->ndim - 1];
        i->weight_bytes += x->bytes;
        by_type[x->info->dtype] += x->info->bytes;
    }
    for (int t = 0; t < LT_DTYPE_COUNT; t++)
        if (by_type[t] > most) {
            most = by_type[t];
            i->main_dtype = lt_dtype_get((lt_dtype)t)->name;
        }
}

lt_status lt_model_open(lt_ctx *ctx, const char *path, lt_model **out, lt_err *err)
{
    *out = NULL;
    struct lt_model *m = lt__zalloc(ctx, sizeof *m);
    if (!m)
        return lt__fail_oom(err, sizeof *m, "model");
    m->ctx = ctx;
    lt_status s = lt_modelfile_open(ctx, path, &m->file, err);
    if (s == LT_OK)
        s = choose_arch(m, err);
    if (s == LT_OK)
        s = refuse_keys(m, err);
    if (s == LT_OK)
        s = refuse_values(m, err);
    if (s == LT_OK)
        s = refuse_flags(m, err);
    if (s == LT_OK)
        s = lt__rows_hparams(m, err);
    if (s == LT_OK)
        s = find_vocab(m, err);
    if (s == LT_OK)
        s = m->arch->derive(m, err);
    if (s == LT_OK)
        s = add_weights(m, err);
    if (s == LT_OK)
        s = lt__rope_load(m, err);
    if (s == LT_OK)
        s = find_skipped(m, err);
    if (s != LT_OK) {
        lt_model_close(m);
        return s;
    }
    fill_info(m);
    *out = m;
    return LT_OK;
}

void lt_model_close(lt_model *m)
{
    if (!m)
        return;
    lt_ctx *ctx = m->ctx;
    if (m->slots)
        lt__free(ctx, m->slots, m->arch->n_tensors * m->hp.layers * sizeof *m->slots);
    lt__free(ctx, m->weights, m->cap_weights * sizeof *m->weights);
    lt__free(ctx, m->factors, m->n_factors * sizeof *m->factors);
    lt_modelfile_close(m->file);
    lt__free(ctx, m, sizeof *m);
}
