#include "format/hf_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/reader.h"

/* The JSON library's tree is 40 times its text at worst: 512 KiB keep that below 20 MiB. */
enum { CONFIG_MAX = 512 * 1024, PATH_BYTES = 4096 };

/* What config.json may leave out, as the vendors' own code fills it in; 0: derived or none. */
typedef struct family {
    const char *type, *arch;
    double vocab, embd, ff, layers, heads, kv_heads, head_dim, context, eps, theta, window;
    bool tied;
} family;

static const family families[] = {
    {"llama", "llama", 32000, 4096, 11008, 32, 32, 0, 0, 2048, 1e-6, 1e4, 0, false},
    {"mistral", "llama", 32000, 4096, 14336, 32, 32, 8, 0, 131072, 1e-6, 1e4, 4096, false},
    {"qwen2", "qwen2", 151936, 4096, 22016, 32, 32, 32, 0, 32768, 1e-6, 1e4, 0, false},
    {"qwen3", "qwen3", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 1e-6, 1e4, 0, false},
    {"gemma2", "gemma2", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 1e-6, 1e4, 4096, true},
    {"gemma3_text", "gemma3", 262208, 2304, 9216, 26, 8, 4, 256, 131072, 1e-6, 1e6, 4096, true},
    {"phi3", "phi3", 32064, 3072, 8192, 32, 32, 0, 0, 4096, 1e-5, 1e4, 0, false},
};

const char *lt__hf_path(const lt__hf *h, const char *name, char *buf, size_t n)
{
    return snprintf(buf, n, "%s/%s", h->dir, name) < (int)n ? buf : NULL;
}

bool lt__hf_has(const lt__hf *h, const char *name)
{
    char buf[PATH_BYTES];
    return lt__hf_path(h, name, buf, sizeof buf) && access(buf, F_OK) == 0;
}

bool lt__hf_is_folder(const char *dir)
{
    return lt__hf_has(&(lt__hf){.dir = dir}, "config.json");
}

static lt_status load(lt__hf *h, const char *name, json_t **out)
{
    char path[PATH_BYTES], *text;
    size_t n;
    json_error_t e;
    lt_status s;

    if (!lt__hf_path(h, name, path, sizeof path)) return lt__fail(h->err, LT_E_INVALID, "the path of %s is too long", name);
    s = lt__mf_read_text(h->f->ctx, path, CONFIG_MAX, &text, &n, h->err);
    if (s != LT_OK) return s;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    lt__free(h->f->ctx, text, n);
    if (!*out && json_error_code(&e) == json_error_out_of_memory) return lt__fail_oom(h->err, n, "a JSON document");
    if (!*out) return lt__fail(h->err, LT_E_FORMAT, "%s: %s, in line %d", lt__path_tail(path), e.text, e.line);
    if (!json_is_object(*out)) return lt__fail(h->err, LT_E_FORMAT, "%s: an object was expected", lt__path_tail(path));
    return LT_OK;
}

#define BAD(h, ...) lt__fail((h)->err, LT_E_FORMAT, __VA_ARGS__)

/* ---- numbers of the configuration ---- */

/* null counts as absent: that is how these files say "none". */
static json_t *get(json_t *o, const char *name)
{
    json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

static lt_status number(lt__hf *h, json_t *o, const char *name, double dflt, double *out)
{
    json_t *v = get(o, name);
    *out = dflt;
    if (!v) return LT_OK;
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return BAD(h, "%s/config.json: %s is not a number", lt__path_tail(h->dir), name);
    *out = json_number_value(v);
    return LT_OK;
}

static lt_status whole(lt__hf *h, const char *name, double dflt, uint64_t *out)
{
    double v;
    lt_status s = number(h, h->text, name, dflt, &v);
    if (s != LT_OK) return s;
    if (v < 0 || v > 1e9 || v != floor(v))
        return BAD(h, "%s/config.json: %s is %g; a whole number up to 10^9 was expected", lt__path_tail(h->dir), name, v);
    *out = (uint64_t)v;
    return LT_OK;
}

static lt_status put_u64(lt__hf *h, const char *key, uint64_t v)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", h->arch, key);
    return lt__mf_put_u64(h->f, name, v, h->err);
}

static lt_status put_f64(lt__hf *h, const char *key, double v)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", h->arch, key);
    return lt__mf_put_f64(h->f, name, v, h->err);
}

static lt_status put_text(lt__hf *h, const char *key, const char *v)
{
    char name[96];
    snprintf(name, sizeof name, "%s.%s", h->arch, key);
    return lt__mf_put_str(h->f, name, v, strlen(v), h->err);
}

static lt_status put_f64s(lt__hf *h, const char *name, const double *v, uint64_t n)
{
    char *k = lt__mf_strndup(h->f, name, strlen(name));
    double *copy = lt__mf_take(h->f, (size_t)n * sizeof *v, 8);
    if (!k || !copy) return lt__fail_oom(h->err, (size_t)n * sizeof *v, "rope factors");
    memcpy(copy, v, (size_t)n * sizeof *v);
    return lt__mf_add_key(h->f, &(lt_key){.name = k, .type = LT_KEY_ARRAY, .elem_type = LT_KEY_FLOAT, .n = n, .v.f = copy}, h->err);
}

#define TRY(x) do { lt_status try_s = (x); if (try_s != LT_OK) return try_s; } while (0)

/* ---- rope ---- */

enum { ROPE_MAX = 4096 }; /* pairs of a head */

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between blended. */
static lt_status scale_llama3(lt__hf *h, json_t *r, double theta, uint64_t rotated)
{
    double factor, low, high, orig, out[ROPE_MAX];
    TRY(number(h, r, "factor", 0, &factor));
    TRY(number(h, r, "low_freq_factor", 0, &low));
    TRY(number(h, r, "high_freq_factor", 0, &high));
    TRY(number(h, r, "original_max_position_embeddings", 0, &orig));
    if (!(factor >= 1) || !(low > 0) || !(high > low) || !(orig >= 1))
        return BAD(h, "%s/config.json: rope scaling llama3 needs factor >= 1, 0 < low_freq_factor < high_freq_factor and "
                   "original_max_position_embeddings; they are %g, %g, %g and %g", lt__path_tail(h->dir), factor, low, high, orig);
    for (uint64_t i = 0; i < rotated / 2; i++) {
        double turns = orig * pow(theta, -2.0 * (double)i / (double)rotated) / (2 * 3.14159265358979323846); /* within orig */
        double keep = (turns - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        out[i] = 1 / ((1 - keep) / factor + keep);
    }
    return put_f64s(h, "lowtide.rope.factors", out, rotated / 2);
}

static lt_status put_factors(lt__hf *h, json_t *r, const char *name, const char *key, uint64_t rotated)
{
    json_t *a = get(r, name);
    double out[ROPE_MAX];
    if (!json_is_array(a) || json_array_size(a) != rotated / 2)
        return BAD(h, "%s/config.json: %s of rope scaling has %zu elements; %" PRIu64 ", half of the rotated ones, was expected",
                   lt__path_tail(h->dir), name, json_array_size(a), rotated / 2);
    for (uint64_t i = 0; i < rotated / 2; i++) {
        json_t *v = json_array_get(a, (size_t)i);
        out[i] = json_number_value(v);
        if (!json_is_number(v) || !(out[i] > 0) || !isfinite(out[i]))
            return BAD(h, "%s/config.json: element %" PRIu64 " of %s is not a positive number", lt__path_tail(h->dir), i, name);
    }
    return put_f64s(h, key, out, rotated / 2);
}

static lt_status scale_long(lt__hf *h, json_t *r, uint64_t rotated, uint64_t context)
{
    double orig, attn;
    TRY(put_factors(h, r, "long_factor", "lowtide.rope.factors_long", rotated));
    TRY(put_factors(h, r, "short_factor", "lowtide.rope.factors_short", rotated));
    TRY(number(h, r, "original_max_position_embeddings", (double)context, &orig));
    TRY(number(h, h->text, "original_max_position_embeddings", orig, &orig));
    if (!(orig >= 1 && orig <= 1e9)) return BAD(h, "%s/config.json: original_max_position_embeddings is %g", lt__path_tail(h->dir), orig);
    TRY(put_text(h, "rope.scaling.type", "longrope"));
    TRY(put_u64(h, "rope.scaling.original_context_length", (uint64_t)orig));
    TRY(number(h, r, "attention_factor", 0, &attn));
    return attn > 0 ? put_f64(h, "rope.scaling.attn_factor", attn) : LT_OK;
}

static lt_status scale_plain(lt__hf *h, json_t *r, const char *type)
{
    double factor, orig, fast, slow, attn;
    TRY(number(h, r, "factor", 0, &factor));
    if (!(factor >= 1)) return BAD(h, "%s/config.json: rope scaling %s has factor %g; at least 1 was expected", lt__path_tail(h->dir), type, factor);
    TRY(put_text(h, "rope.scaling.type", type));
    TRY(put_f64(h, "rope.scaling.factor", factor));
    if (strcmp(type, "linear") == 0) return LT_OK;
    TRY(number(h, r, "original_max_position_embeddings", 0, &orig));
    TRY(number(h, r, "beta_fast", 32, &fast));
    TRY(number(h, r, "beta_slow", 1, &slow));
    TRY(number(h, r, "attention_factor", 0, &attn));
    if (orig >= 1 && orig <= 1e9) TRY(put_u64(h, "rope.scaling.original_context_length", (uint64_t)orig));
    TRY(put_f64(h, "rope.scaling.yarn_beta_fast", fast));
    TRY(put_f64(h, "rope.scaling.yarn_beta_slow", slow));
    /* Given, it is the whole magnitude; GGUF's is on top of the usual one. */
    return attn > 0 ? put_f64(h, "rope.scaling.attn_factor", attn / (1 + 0.1 * log(factor))) : LT_OK;
}

static lt_status read_rope(lt__hf *h, const family *fam, uint64_t head_dim, uint64_t context)
{
    json_t *r = get(h->text, "rope_scaling"), *p = get(h->text, "rope_parameters"), *local = NULL, *t;
    double theta, theta_local, part;
    uint64_t rotated;

    if (p) r = p;
    if (r && !json_is_object(r)) return BAD(h, "%s/config.json: rope_scaling is not an object", lt__path_tail(h->dir));
    if (get(r, "full_attention")) local = get(r, "sliding_attention"), r = get(r, "full_attention"); /* one per kind of layer */
    TRY(number(h, h->text, "rope_theta", fam->theta, &theta));
    TRY(number(h, r, "rope_theta", theta, &theta));
    TRY(number(h, h->text, "rope_local_base_freq", 1e4, &theta_local));
    TRY(number(h, local, "rope_theta", theta_local, &theta_local));
    TRY(number(h, h->text, "partial_rotary_factor", 1, &part));
    TRY(number(h, r, "partial_rotary_factor", part, &part));
    if (!(theta > 0) || !(theta_local > 0)) return BAD(h, "%s/config.json: rope_theta is %g; a positive number was expected", lt__path_tail(h->dir), theta);
    if (!(part > 0 && part <= 1)) return BAD(h, "%s/config.json: partial_rotary_factor is %g; above 0 to 1 was expected", lt__path_tail(h->dir), part);
    rotated = (uint64_t)((double)head_dim * part);
    if (rotated < 2 || rotated % 2 || rotated / 2 > ROPE_MAX)
        return BAD(h, "%s/config.json: %" PRIu64 " of a head's %" PRIu64 " elements are rotated; an even number up to %d was expected",
                   lt__path_tail(h->dir), rotated, head_dim, 2 * ROPE_MAX);
    TRY(put_f64(h, "rope.freq_base", theta));
    TRY(put_u64(h, "rope.dimension_count", rotated));
    if (strcmp(h->arch, "gemma3") == 0) TRY(put_f64(h, "rope.local.freq_base", theta_local));

    t = get(r, "rope_type");
    if (!t) t = get(r, "type"); /* its name until 2024 */
    const char *type = json_is_string(t) ? json_string_value(t) : "default";
    if (strcmp(type, "default") == 0) return LT_OK;
    if (strcmp(type, "llama3") == 0) return scale_llama3(h, r, theta, rotated);
    if (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0) return scale_long(h, r, rotated, context);
    if (strcmp(type, "linear") == 0 || strcmp(type, "yarn") == 0) return scale_plain(h, r, type);
    return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: rope scaling %.40s is not supported; linear, llama3, yarn and longrope are",
                    lt__path_tail(h->dir), type);
}

/* ---- hyperparameters ---- */

static bool is_gemma(const lt__hf *h) { return strncmp(h->arch, "gemma", 5) == 0; }

static lt_status put_cap(lt__hf *h, const char *name, double dflt)
{
    double v;
    TRY(number(h, h->text, name, json_object_get(h->text, name) ? 0 : dflt, &v)); /* an explicit null is none */
    if (!(v >= 0 && v <= 1e6)) return BAD(h, "%s/config.json: %s is %g; 0 to 1000000 was expected", lt__path_tail(h->dir), name, v);
    return put_f64(h, name, v);
}

static lt_status check_supported(lt__hf *h)
{
    bool gemma2 = strcmp(h->arch, "gemma2") == 0;
    json_t *act = get(h->text, gemma2 ? "hidden_activation" : "hidden_act"); /* gemma2: its code reads no other; hidden_act there is a relic */
    if (!act && !gemma2) act = get(h->text, "hidden_activation");
    const char *name = json_is_string(act) ? json_string_value(act) : NULL, *want = is_gemma(h) ? "gelu_pytorch_tanh" : "silu";
    if (name && strcmp(name, want) != 0)
        return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: activation %.40s is not supported for %s; %s is", lt__path_tail(h->dir), name,
                        h->arch, want);
    if (json_is_true(get(h->text, "use_sliding_window")))
        return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: use_sliding_window is not supported for %s", lt__path_tail(h->dir), h->arch);
    static const char *const caps[] = {"quantization_config", "final_logit_softcapping", "attn_logit_softcapping"};
    for (size_t i = 0; i < (gemma2 ? 1 : 3); i++)
        if (get(h->text, caps[i]) || get(h->config, caps[i]))
            return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: %s is not supported", lt__path_tail(h->dir), caps[i]);
    return LT_OK;
}

static lt_status put_window(lt__hf *h, const family *fam, uint64_t layers)
{
    uint64_t window, pattern;
    json_t *types = get(h->text, "layer_types");
    bool none = json_object_get(h->text, "sliding_window") && !get(h->text, "sliding_window"); /* an explicit null */

    if (strncmp(h->arch, "qwen", 4) == 0) return LT_OK;
    TRY(whole(h, "sliding_window", none ? 0 : fam->window, &window));
    if (window || strcmp(h->arch, "gemma2") == 0) TRY(put_u64(h, "attention.sliding_window", window)); /* absent is 4096 there */
    if (!is_gemma(h) || !window) return LT_OK;
    uint64_t every = strcmp(h->arch, "gemma2") == 0 ? 2 : 6;
    TRY(whole(h, "sliding_window_pattern", (double)every, &pattern));
    bool regular = pattern == every && (!types || json_array_size(types) == layers);
    for (size_t i = 0; regular && i < json_array_size(types); i++) {
        const char *t = json_string_value(json_array_get(types, i));
        regular = t && strcmp(t, (i + 1) % every ? "sliding_attention" : "full_attention") == 0;
    }
    if (!regular)
        return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: only %s before each full one %s supported for %s", lt__path_tail(h->dir),
                        every == 2 ? "one sliding layer" : "five sliding layers", every == 2 ? "is" : "are", h->arch);
    return LT_OK;
}

static lt_status put_sizes(lt__hf *h, const family *fam)
{
    uint64_t layers = 0, embd = 0, ff = 0, heads = 0, kv = 0, dim = 0, context = 0, vocab = 0;
    double eps, scale;

    TRY(whole(h, "num_hidden_layers", fam->layers, &layers));
    TRY(whole(h, "hidden_size", fam->embd, &embd));
    TRY(whole(h, "intermediate_size", fam->ff, &ff));
    TRY(whole(h, "num_attention_heads", fam->heads, &heads));
    TRY(whole(h, "num_key_value_heads", fam->kv_heads != 0 ? fam->kv_heads : (double)heads, &kv));
    if (!heads) return BAD(h, "%s/config.json: num_attention_heads is 0", lt__path_tail(h->dir));
    TRY(whole(h, "head_dim", fam->head_dim != 0 ? fam->head_dim : (double)(embd / heads), &dim));
    TRY(whole(h, "max_position_embeddings", fam->context, &context));
    TRY(whole(h, "vocab_size", fam->vocab, &vocab));
    TRY(number(h, h->text, "rms_norm_eps", fam->eps, &eps));
    if (!layers || !embd || !ff || !kv || !dim || !context || !vocab)
        return BAD(h, "%s/config.json: one of num_hidden_layers, hidden_size, intermediate_size, num_key_value_heads, head_dim, "
                   "max_position_embeddings and vocab_size is 0", lt__path_tail(h->dir));
    TRY(put_u64(h, "block_count", layers));
    TRY(put_u64(h, "context_length", context));
    TRY(put_u64(h, "embedding_length", embd));
    TRY(put_u64(h, "feed_forward_length", ff));
    TRY(put_u64(h, "attention.head_count", heads));
    TRY(put_u64(h, "attention.head_count_kv", kv));
    TRY(put_u64(h, "attention.key_length", dim));
    TRY(put_u64(h, "attention.value_length", dim));
    TRY(put_u64(h, "vocab_size", vocab));
    TRY(put_f64(h, "attention.layer_norm_rms_epsilon", eps));
    if (strcmp(h->arch, "gemma2") == 0) {
        TRY(put_cap(h, "attn_logit_softcapping", 50));
        TRY(put_cap(h, "final_logit_softcapping", 30));
    }
    if (is_gemma(h)) {
        TRY(number(h, h->text, "query_pre_attn_scalar", 256, &scale));
        if (!(scale > 0)) return BAD(h, "%s/config.json: query_pre_attn_scalar is %g; a positive number was expected", lt__path_tail(h->dir), scale);
        TRY(put_f64(h, "attention.scale", 1 / sqrt(scale)));
    }
    TRY(put_window(h, fam, layers));
    return read_rope(h, fam, dim, context);
}

static lt_status choose_family(lt__hf *h, const family **out)
{
    json_t *t = get(h->config, "model_type"), *sub = get(h->config, "text_config");
    const char *type = json_is_string(t) ? json_string_value(t) : NULL;

    if (!type) return BAD(h, "%s/config.json: model_type is missing", lt__path_tail(h->dir));
    h->text = h->config;
    if (strcmp(type, "gemma3") == 0) {
        if (!json_is_object(sub)) return BAD(h, "%s/config.json: text_config is missing", lt__path_tail(h->dir));
        h->text = sub;
        type = "gemma3_text";
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].type, type) == 0) {
            *out = &families[i];
            snprintf(h->arch, sizeof h->arch, "%s", families[i].arch);
            return LT_OK;
        }
    /* Their experts lie in a tensor each, or two to a matrix in blocks of another layout. */
    static const char *const mixtures[] = {"mixtral", "qwen3_moe", "gpt_oss", "olmoe"};
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++)
        if (strcmp(mixtures[i], type) == 0)
            return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: model_type %s, a mixture of experts, is supported from a GGUF file only",
                            lt__path_tail(h->dir), type);
    return lt__fail(h->err, LT_E_UNSUPPORTED, "%s/config.json: model_type %.40s is not supported; llama, mistral, qwen2, qwen3, gemma2, gemma3 and phi3 are",
                    lt__path_tail(h->dir), type);
}

/* ---- names of tensors ---- */

static const struct { const char *hf, *gguf; } ends[] = {
    {"embed_tokens.weight", "token_embd.weight"}, {"norm.weight", "output_norm.weight"},
}, inner[] = {
    {"input_layernorm.", "attn_norm."}, {"self_attn.q_proj.", "attn_q."}, {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."}, {"self_attn.o_proj.", "attn_output."}, {"self_attn.qkv_proj.", "attn_qkv."},
    {"self_attn.q_norm.", "attn_q_norm."}, {"self_attn.k_norm.", "attn_k_norm."}, {"post_attention_layernorm.", "ffn_norm."},
    {"pre_feedforward_layernorm.", "ffn_norm."}, {"post_feedforward_layernorm.", "post_ffw_norm."},
    {"mlp.gate_proj.", "ffn_gate."}, {"mlp.up_proj.", "ffn_up."}, {"mlp.gate_up_proj.", "ffn_up."}, {"mlp.down_proj.", "ffn_down."},
};

static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : NULL;
}

/* GGUF's name in out; false when the tensor is none of the language model's. */
static bool rename_tensor(const lt__hf *h, const char *name, bool tied, char *out, size_t n)
{
    static const char *const wrappers[] = {"language_model.model.", "model.language_model.", "model."};
    const char *p = NULL, *q;
    unsigned layer;
    int len = 0;

    if (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "language_model.lm_head.weight") == 0)
        return !tied && snprintf(out, n, "output.weight"); /* tied: some files store the matrix again */
    for (size_t i = 0; !p && i < 3; i++) p = after(name, wrappers[i]);
    if (!p) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(p, ends[i].hf) == 0) return snprintf(out, n, "%s", ends[i].gguf);
    if (sscanf(p, "layers.%5u.%n", &layer, &len) != 1 || !len) return false;
    p += len;
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        if (!(q = after(p, inner[i].hf)) || (strcmp(q, "weight") != 0 && strcmp(q, "bias") != 0)) continue;
        const char *to = inner[i].gguf;
        if (i == 8 && is_gemma(h)) to = "post_attention_norm.";
        return snprintf(out, n, "blk.%u.%s%s", layer, to, q);
    }
    return false;
}

static lt_status rename_all(lt__hf *h, bool tied)
{
    lt_modelfile *f = h->f;
    bool gemma = is_gemma(h), head = false;

    for (size_t i = 0; i < f->n_tensors; i++) {
        lt_tensor_info *t = &f->tensors[i];
        char name[64];
        if (!rename_tensor(h, t->name, tied, name, sizeof name)) continue;
        t->name = lt__mf_strndup(f, name, strlen(name));
        if (!t->name) return lt__fail_oom(h->err, strlen(name), "a tensor's name");
        if (gemma && strstr(name, "norm.weight")) t->add = 1; /* stored as the distance from one */
        if (strcmp(name, "output.weight") == 0) head = true;
        if (strcmp(name, "token_embd.weight") == 0) h->vocab = t->dim[0];
    }
    if (!h->vocab) return BAD(h, "%s: there is no tensor model.embed_tokens.weight", lt__path_tail(h->dir));
    if (!head && !tied)
        return BAD(h, "%s: there is no tensor lm_head.weight, and tie_word_embeddings is false", lt__path_tail(h->dir));
    return LT_OK;
}

static lt_status open_tensors(lt__hf *h)
{
    static const char *const index = "model.safetensors.index.json", *const single = "model.safetensors";
    char path[PATH_BYTES];
    const char *name = lt__hf_has(h, index) ? index : single;

    if (!lt__hf_path(h, name, path, sizeof path)) return lt__fail(h->err, LT_E_INVALID, "the path of %s is too long", name);
    if (name == index) return lt__safetensors_open_index(h->f, path, h->err);
    if (!lt__hf_has(h, single))
        return lt__fail(h->err, LT_E_NOT_FOUND, "%s has a config.json, but neither model.safetensors nor model.safetensors.index.json%s",
                        lt__path_tail(h->dir), lt__hf_has(h, "pytorch_model.bin") ? "; pytorch_model.bin is not read" : "");
    return lt__safetensors_open(h->f, path, false, h->err);
}

/* The embedding matrix is the same file's; "lowtide.source" says that keys were translated. */
static lt_status translate(lt__hf *h)
{
    const family *fam = NULL;
    const char *base = strrchr(h->dir, '/');

    TRY(load(h, "config.json", &h->config));
    TRY(choose_family(h, &fam));
    if (lt__hf_has(h, "generation_config.json")) TRY(load(h, "generation_config.json", &h->generation));
    TRY(check_supported(h));
    TRY(open_tensors(h));
    snprintf(h->f->format, sizeof h->f->format, "safetensors");
    json_t *tie = get(h->text, "tie_word_embeddings");
    if (!tie) tie = get(h->config, "tie_word_embeddings");
    TRY(rename_all(h, tie ? json_is_true(tie) : fam->tied));
    base = base && base[1] ? base + 1 : h->dir;
    TRY(lt__mf_put_str(h->f, "general.architecture", h->arch, strlen(h->arch), h->err));
    TRY(lt__mf_put_str(h->f, "general.name", base, strlen(base), h->err));
    TRY(lt__mf_put_str(h->f, "lowtide.rope_style", "halves", 6, h->err));
    TRY(put_sizes(h, fam));
    return lt__hf_tokenizer(h);
}

lt_status lt__hf_open(lt_modelfile *f, const char *dir, lt_err *err)
{
    lt__hf h = {.f = f, .dir = dir, .err = err};
    lt_status s;

    if (!lt__hf_has(&h, "config.json"))
        return lt__fail(err, LT_E_NOT_FOUND, "%s is a folder without config.json; a model's folder or a file was expected", lt__path_tail(dir));
    s = translate(&h);
    json_decref(h.config);
    json_decref(h.generation);
    return s;
}
