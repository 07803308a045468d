#include "base/mem.h"
#include "models/arch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PI 3.14159265358979323846

/* The pair index at which `turns` full turns fit the trained length. */
static double yarn_pair(const lt_rope_set *r, double turns)
{
    return r->rotated * log(r->original_context / (turns * 2 * PI)) / (2 * log(r->base));
}

/* 1 where the angle is kept, 0 where positions are divided by the factor. */
static double yarn_keep(const lt_rope_set *r, uint32_t i)
{
    double low = yarn_pair(r, r->beta_fast), high = yarn_pair(r, r->beta_slow);
    if (!r->ramp_exact) {
        low = floor(low);
        high = ceil(high);
    }
    if (low < 0)
        low = 0;
    if (high > r->rotated - 1)
        high = r->rotated - 1;
    double width = high - low > 0.001 ? high - low : 0.001, x = (i - low) / width;
    return 1 - (x < 0 ? 0 : x > 1 ? 1 : x);
}

static double frequency(const lt_rope_set *r, uint32_t context, uint32_t i)
{
    double f = pow(r->base, -2.0 * i / r->rotated);
    switch (r->scaling) {
    case LT_ROPE_SCALE_LINEAR: return f / r->factor;
    case LT_ROPE_SCALE_FACTORS: {
        bool is_short = r->factors_short && context <= r->original_context;
        return f / (double)(is_short ? r->factors_short : r->factors)[i];
    }
    case LT_ROPE_SCALE_YARN: {
        double keep = yarn_keep(r, i);
        return f * keep + f / r->factor * (1 - keep);
    }
    case LT_ROPE_SCALE_NONE: break;
    }
    return f;
}

void lt__model_rope(const struct lt_model *m, uint32_t set, uint32_t context, const int32_t *pos, uint32_t n,
                    float *out)
{
    const lt_rope_set *r = &m->hp.rope[set];
    uint32_t half = r->rotated / 2;
    for (uint32_t i = 0; i < half; i++) {
        double f = frequency(r, context, i);
        for (uint32_t t = 0; t < n; t++) {
            float *at = out + ((size_t)t * half + i) * 2;
            at[0] = (float)(cos(pos[t] * f) * r->magnitude);
            at[1] = (float)(sin(pos[t] * f) * r->magnitude);
        }
    }
}

static lt_status read_scaling(struct lt_model *m, lt_rope_set *r, lt_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "%s.rope.scaling.type", m->arch->name);
    const char *type;
    double factor = 0;
    lt_status s = lt__rows_str(m, name, &type, err);
    if (s != LT_OK)
        return s;
    if ((s = lt__rows_f64(m, "rope.scale_linear", 1e-3, 1e6, &factor, err)) != LT_OK) /* files of 2023 */
        return s;
    if ((s = lt__rows_f64(m, "rope.scaling.factor", 0, 1e6, &factor, err)) != LT_OK)
        return s;
    r->original_context = m->hp.context;
    r->beta_fast = 32;
    r->beta_slow = 1;
    if ((s = lt__rows_u32(m, "rope.scaling.original_context_length", 1, 1u << 30, &r->original_context, err)) != LT_OK ||
        (s = lt__rows_f64(m, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &r->beta_fast, err)) != LT_OK ||
        (s = lt__rows_f64(m, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &r->beta_slow, err)) != LT_OK)
        return s;
    if (!type ? factor == 0 || factor == 1 : strcmp(type, "none") == 0 || strcmp(type, "longrope") == 0)
        return LT_OK; /* longrope: its factors are tensors */
    if (type && strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "%s: key '%s' is '%s', which is not supported; supported: none, linear, yarn, longrope",
                        lt__model_path(m), name, type);
    if (factor < 1e-3)
        return lt__fail(err, LT_E_FORMAT, "%s: rope scaling '%s' with factor %g; expected 0.001 to 1000000",
                        lt__model_path(m), type ? type : "linear", factor);
    r->factor = factor;
    r->scaling = LT_ROPE_SCALE_LINEAR;
    if (type && strcmp(type, "yarn") == 0) {
        double attn = 1;
        r->scaling = LT_ROPE_SCALE_YARN;
        if ((s = lt__rows_f64(m, "rope.scaling.attn_factor", 1e-3, 1e3, &attn, err)) != LT_OK)
            return s;
        r->magnitude = attn * (factor > 1 ? 1 + 0.1 * log(factor) : 1);
    }
    return LT_OK;
}

static lt_status derive_experts(struct lt_model *m, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    if (!hp->experts) {
        hp->experts_used = 0;
        return LT_OK;
    }
    if (!hp->experts_used || hp->experts_used > hp->experts)
        return lt__fail(err, LT_E_FORMAT, "%s: key '%s.expert_used_count' is %u; expected 1 to expert_count, which is %u",
                        lt__model_path(m), m->arch->name, hp->experts_used, hp->experts);
    if (!hp->expert_ff)
        hp->expert_ff = hp->ff;
    return LT_OK;
}

lt_status lt__derive_common(struct lt_model *m, lt_rope_style style, lt_err *err)
{
    lt_hparams *hp = &m->hp;
    const char *path = lt__model_path(m), *arch = m->arch->name;
    lt_status s;
    if (hp->kv_heads == 0)
        hp->kv_heads = hp->heads;
    if (hp->heads % hp->kv_heads != 0)
        return lt__fail(err, LT_E_FORMAT,
                        "%s: key '%s.attention.head_count' is %u; expected a multiple of head_count_kv, which is %u",
                        path, arch, hp->heads, hp->kv_heads);
    if (hp->head_dim == 0) {
        if (hp->embd % hp->heads != 0)
            return lt__fail(err, LT_E_FORMAT,
                            "%s: key '%s.embedding_length' is %u; expected a multiple of head_count, which is %u, "
                            "since there is no attention.key_length",
                            path, arch, hp->embd, hp->heads);
        hp->head_dim = hp->embd / hp->heads;
    }
    uint32_t value_dim = hp->head_dim, rotated = hp->head_dim;
    if ((s = lt__rows_u32(m, "attention.value_length", 1, 1u << 16, &value_dim, err)) != LT_OK ||
        (s = lt__rows_u32(m, "rope.dimension_count", 2, 1u << 16, &rotated, err)) != LT_OK)
        return s;
    if (value_dim != hp->head_dim)
        return lt__fail(err, LT_E_UNSUPPORTED,
                        "%s: values of %u elements a head and keys of %u: different sizes are not supported", path,
                        value_dim, hp->head_dim);
    if (rotated % 2 != 0 || rotated > hp->head_dim)
        return lt__fail(err, LT_E_FORMAT,
                        "%s: %u elements of a head are rotated (%s.rope.dimension_count); expected an even number of "
                        "at most the head's %u",
                        path, rotated, arch, hp->head_dim);
    const char *named;
    if ((s = lt__rows_str(m, "lowtide.rope_style", &named, err)) != LT_OK)
        return s;
    if (named && strcmp(named, "halves") != 0 && strcmp(named, "pairs") != 0)
        return lt__fail(err, LT_E_FORMAT, "%s: key 'lowtide.rope_style' is '%s'; expected 'halves' or 'pairs'", path,
                        named);
    hp->rope_style = !named ? style : named[0] == 'h' ? LT_ROPE_HALVES : LT_ROPE_PAIRS;
    double scale = 0; /* none: what a writer puts where there is nothing to say */
    if ((s = lt__rows_f64(m, "attention.scale", 0, 1e6, &scale, err)) != LT_OK)
        return s;
    hp->attn_scale = (float)(scale != 0 ? scale : 1 / sqrt((double)hp->head_dim));
    hp->embd_scale = 1;
    hp->rope[0].rotated = rotated;
    hp->rope[0].magnitude = 1;
    hp->rope[0].factor = 1;
    hp->rope_sets = 1;
    if ((s = derive_experts(m, err)) != LT_OK)
        return s;
    return read_scaling(m, &hp->rope[0], err);
}

typedef struct source { const lt_weight *weight; const lt_key *key; } source;

static source find_source(const struct lt_model *m, const char *tensor, const char *key)
{
    source src = {NULL, lt_modelfile_key(m->file, key)};
    uint32_t at = lt__model_find(m, -1, tensor);
    if (at != UINT32_MAX)
        src.weight = &m->weights[at];
    return src;
}

/* A few hundred bytes, once: not worth a store. */
static lt_status read_span(lt_ctx *ctx, const char *path, uint64_t offset, char *dst, uint64_t bytes, lt_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return lt__fail_errno(err, errno, "%s: cannot be opened", path);
    lt_status s = LT_OK;
    for (uint64_t done = 0; done < bytes && s == LT_OK;) {
        ssize_t n = lt__fault(ctx, LT_FAULT_READ) ? (errno = EIO, -1)
                                                  : pread(fd, dst + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno != EINTR)
            s = lt__fail_errno(err, errno, "%s: reading %llu bytes at %llu failed", path, (unsigned long long)bytes,
                               (unsigned long long)offset);
        if (n == 0)
            s = lt__fail(err, LT_E_IO, "%s: ends before byte %llu", path, (unsigned long long)(offset + bytes));
        if (n > 0)
            done += (uint64_t)n;
    }
    close(fd);
    return s;
}

static lt_status read_tensor(struct lt_model *m, const lt_weight *w, float *out, lt_err *err)
{
    const lt_tensor_info *info = w->info;
    void *raw = lt__alloc(m->ctx, info->bytes);
    if (!raw)
        return lt__fail_oom(err, info->bytes, w->name);
    lt_status s =
        read_span(m->ctx, lt_modelfile_part_path(m->file, info->file), info->offset, raw, info->bytes, err);
    if (s == LT_OK)
        lt_dtype_to_f32(info->dtype, raw, out, w->dim[0]);
    lt__free(m->ctx, raw, info->bytes);
    return s;
}

static lt_status load_one(struct lt_model *m, source src, const char *name, float *out, lt_err *err)
{
    uint32_t half = m->hp.rope[0].rotated / 2;
    if (src.weight) {
        lt_status s = read_tensor(m, src.weight, out, err);
        if (s != LT_OK)
            return s;
    } else {
        if (src.key->type != LT_KEY_ARRAY || src.key->elem_type != LT_KEY_FLOAT || src.key->n != half)
            return lt__fail(err, LT_E_FORMAT, "%s: key '%s' is not an array of %u floats", lt__model_path(m), name,
                            half);
        for (uint32_t i = 0; i < half; i++)
            out[i] = (float)src.key->v.f[i];
    }
    for (uint32_t i = 0; i < half; i++)
        if (!(out[i] > 0 && out[i] < 1e9f))
            return lt__fail(err, LT_E_FORMAT, "%s: rope factor %u of '%s' is %g; expected a positive number",
                            lt__model_path(m), i, src.weight ? src.weight->name : name, (double)out[i]);
    return LT_OK;
}

lt_status lt__rope_load(struct lt_model *m, lt_err *err)
{
    lt_rope_set *r = &m->hp.rope[0];
    source one = find_source(m, "rope_freqs.weight", "lowtide.rope.factors");
    source lng = find_source(m, "rope_factors_long.weight", "lowtide.rope.factors_long");
    source sht = find_source(m, "rope_factors_short.weight", "lowtide.rope.factors_short");
    bool has_one = one.weight || one.key, has_long = lng.weight || lng.key, has_short = sht.weight || sht.key;
    uint32_t half = r->rotated / 2;
    lt_status s;
    if (has_long != has_short)
        return lt__fail(err, LT_E_FORMAT, "%s: %s rope factors are missing, %s ones are there", lt__model_path(m),
                        has_long ? "short" : "long", has_long ? "long" : "short");
    if (!has_one && !has_long)
        return LT_OK;
    if ((has_one && has_long) || r->scaling != LT_ROPE_SCALE_NONE)
        return lt__fail(err, LT_E_UNSUPPORTED, "%s: rope factors together with another rope scaling",
                        lt__model_path(m));
    m->n_factors = (size_t)half * (has_long ? 2 : 1);
    m->factors = lt__alloc_array(m->ctx, m->n_factors, sizeof *m->factors);
    if (!m->factors)
        return lt__fail_oom(err, m->n_factors * sizeof *m->factors, "rope factors");
    if ((s = load_one(m, has_long ? lng : one, has_long ? "lowtide.rope.factors_long" : "lowtide.rope.factors",
                      m->factors, err)) != LT_OK)
        return s;
    if (has_long && (s = load_one(m, sht, "lowtide.rope.factors_short", m->factors + half, err)) != LT_OK)
        return s;
    r->scaling = LT_ROPE_SCALE_FACTORS;
    r->factors = m->factors;
    r->factors_short = has_long ? m->factors + half : NULL;
    return LT_OK;
}
