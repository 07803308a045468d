/* mkmodel.c - synthetic GGUF models: every architecture, every dtype, any size, the same bytes for the same seed.
 *
 *     mkmodel --arch qwen3 --preset tiny --type Q4_K --type-of attn_v=Q6_K --seed 7 -o tiny.gguf
 *     mkmodel --arch llama --preset 4g -o big.gguf
 *     mkmodel --preset gpt-oss-20b --repeat -o experts.gguf
 *
 * Blocks are random bits with chosen scales: a weight's variance is about 1/cols, so activations stay in
 * range. Streams to disk; memory does not grow with the model. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/gguf_write.h"
#include "graph/block.h"

enum { MAX_RULES = 32, CHUNK = 16 << 20, MAX_PARTS = 32, STOCK = 16 << 20, MAX_STOCKS = 16 };
#define STEP UINT64_C(0x9e3779b97f4a7c15) /* of the random numbers */

typedef struct rule { regex_t re; lt_dtype type; } rule;

typedef struct options {
    const char *arch, *out, *pre, *tokenizer;
    uint64_t layers, embd, ff, heads, kv_heads, head_dim, vocab, ctx, seed, split, align, window, attn_cap, logit_cap;
    uint64_t experts, experts_used, expert_ff; /* experts 0: dense */
    lt_dtype type;
    rule     rules[MAX_RULES];
    size_t   n_rules;
    bool     tied, rope_factors, repeat;
} options;

typedef struct row {
    char     name[64];
    lt_dtype type;
    uint32_t ndim;
    uint64_t dim[3]; /* outermost first */
    double   std;    /* of weights */
    enum { FILL_WEIGHT, FILL_NORM, FILL_BIAS, FILL_SINK, FILL_FACTORS } fill;
} row;

typedef struct rows { row *v; size_t n, cap; } rows;

/* With --repeat: weights of one type and deviation, that tensors begin at different places of. */
typedef struct stock { lt_dtype type; double std; uint8_t *p; uint64_t blocks; } stock;
typedef struct stocks { stock v[MAX_STOCKS]; size_t n; } stocks;

static const struct preset {
    const char *name;
    uint64_t layers, embd, ff, heads, kv_heads, head_dim, vocab, ctx;
} presets[] = {
    {"tiny", 2, 256, 512, 4, 2, 64, 512, 512},
    {"1b", 22, 2048, 5632, 32, 4, 64, 32000, 2048},
    {"4g", 34, 4096, 11008, 32, 32, 128, 32000, 4096}, /* 4.0e9 bytes in Q4_K */
    {"7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096},
    {"13b", 40, 5120, 13824, 40, 40, 128, 32000, 4096},
    {"20b", 50, 6144, 16384, 48, 8, 128, 32000, 8192},
    {"gpt-oss-20b", 24, 2880, 2880, 64, 8, 64, 201088, 131072},
    {"qwen3-30b-a3b", 48, 2048, 6144, 32, 4, 128, 151936, 32768},
};

/* What presets of one architecture set besides. The types as published: experts in MXFP4 and the rest in Q8_0; Q4_K with
 * Q6_K where llama.cpp's Q4_K_M has it. */
static const struct mix {
    const char *preset, *arch;
    uint64_t experts, experts_used, expert_ff, window;
    lt_dtype type;
    const char *rule; /* goes before those given */
} mixes[] = {
    {"gpt-oss-20b", "gpt-oss", 32, 4, 2880, 128, LT_DTYPE_Q8_0, "_exps[.]weight=MXFP4"},
    {"qwen3-30b-a3b", "qwen3moe", 128, 8, 768, 512, LT_DTYPE_Q4_K,
     "^output[.]|blk[.]([0-5]|4[2-7]|8|11|14|17|20|23|26|29|32|35|38|41)[.](attn_v|ffn_down_exps)=Q6_K"},
};

static void die(const char *fmt, ...) LT_PRINTF(1, 2) __attribute__((noreturn));
static void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("mkmodel: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(2);
}

/* ---- random numbers ---- */

static uint64_t next_u64(uint64_t *s) /* splitmix64 */
{
    uint64_t z = *s += STEP;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double next_unit(uint64_t *s) { return (double)(next_u64(s) >> 11) * 0x1p-53; }

/* A tensor's bytes depend on the seed and its name only, not on its place in the file. */
static uint64_t seed_of(uint64_t seed, const char *name)
{
    uint64_t h = seed ^ 0x6c6f777469646531u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return next_u64(&h);
}

/* ---- blocks ---- */

static void put_f16(uint8_t *p, double x)
{
    uint16_t h = lt__f32_to_f16((float)x);
    memcpy(p, &h, 2);
}

/* Root mean square of what the random bits of one weight stand for, less the centre. */
static double table_rms(const int8_t *t)
{
    double s = 0;
    for (int i = 0; i < 16; i++) s += (double)t[i] * t[i];
    return sqrt(s / 16);
}

static const double RMS4 = 4.61, RMS5 = 9.23, RMS_SC6 = 36.7, RMS_SC6S = 18.5, RMS_SC4 = 8.8;

/* 12 bytes of 6-bit scales and minima, each minimum equal to its scale, so that blocks are centred. */
static void put_k4_scales(uint8_t *s, uint64_t *rng)
{
    uint8_t v[8];
    for (int j = 0; j < 8; j++) v[j] = (uint8_t)(next_u64(rng) & 63);
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(v[j] | (v[j + 4] >> 4) << 6);
        s[j + 4] = s[j];
        s[j + 8] = (uint8_t)((v[j + 4] & 15) | (v[j + 4] & 15) << 4);
    }
}

/* `b` holds random bits; sets the scales so that weights have deviation std. */
static void scale_block(lt_dtype t, uint8_t *b, double std, uint64_t *rng)
{
    double f = std * (0.7 + 0.6 * next_unit(rng));
    switch (t) {
    case LT_DTYPE_Q4_0: put_f16(b, f / RMS4); break;
    case LT_DTYPE_Q4_1: put_f16(b, f / RMS4), put_f16(b + 2, -7.5 * f / RMS4); break;
    case LT_DTYPE_Q5_0: put_f16(b, f / RMS5); break;
    case LT_DTYPE_Q5_1: put_f16(b, f / RMS5), put_f16(b + 2, -15.5 * f / RMS5); break;
    case LT_DTYPE_Q8_0:
        put_f16(b, f / 73.3);
        for (int i = 2; i < 34; i++)
            if (b[i] == 0x80) b[i] = 0x81; /* no quantiser writes -128 */
        break;
    case LT_DTYPE_Q2_K:
        for (int i = 0; i < 16; i++) b[i] = (uint8_t)((b[i] & 15) | (b[i] & 15) << 4);
        f /= RMS_SC4 * 1.118;
        put_f16(b + 80, f), put_f16(b + 82, 1.5 * f);
        break;
    case LT_DTYPE_Q3_K: put_f16(b + 108, f / (RMS_SC6S * 2.35)); break;
    case LT_DTYPE_Q4_K:
        put_k4_scales(b + 4, rng);
        f /= RMS_SC6 * RMS4;
        put_f16(b, f), put_f16(b + 2, 7.5 * f);
        break;
    case LT_DTYPE_Q5_K:
        put_k4_scales(b + 4, rng);
        f /= RMS_SC6 * RMS5;
        put_f16(b, f), put_f16(b + 2, 15.5 * f);
        break;
    case LT_DTYPE_Q6_K:
        for (int i = 192; i < 208; i++)
            if (b[i] == 0x80) b[i] = 0x81;
        put_f16(b + 208, f / (73.3 * 18.5));
        break;
    case LT_DTYPE_IQ4_NL: put_f16(b, f / table_rms(lt__iq4_values)); break;
    case LT_DTYPE_IQ4_XS: put_f16(b, f / (RMS_SC6S * table_rms(lt__iq4_values))); break;
    case LT_DTYPE_MXFP4: /* the table is doubled, the scale halved */
        b[0] = (uint8_t)(127 + (int)lrint(log2(2 * std / table_rms(lt__mxfp4_values)) + 0.34) - (int)(next_u64(rng) & 1));
        break;
    default: die("%s is no weight type", lt_dtype_get(t)->name);
    }
}

typedef struct floats { pthread_t thread; lt_dtype type; uint8_t *p; uint64_t n, rng; double std; bool started; } floats;

static void *fill_part(void *arg)
{
    floats *f = arg;
    for (uint64_t i = 0; i < f->n; i++) {
        float x = (float)(f->std * 1.7320508075688772 * (2 * next_unit(&f->rng) - 1));
        uint16_t h = f->type == LT_DTYPE_F16 ? lt__f32_to_f16(x) : lt__f32_to_bf16(x);
        if (f->type == LT_DTYPE_F32) memcpy(f->p + 4 * i, &x, 4);
        else memcpy(f->p + 2 * i, &h, 2);
    }
    return NULL;
}

/* The generator's state is a counter, so parts can be filled at once: the bytes are those of one thread. */
static void fill_floats(lt_dtype t, uint8_t *p, uint64_t n, double std, uint64_t *rng)
{
    static long cores;
    if (!cores) cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t parts = n < 1 << 16 || cores < 2 ? 1 : (uint64_t)(cores < MAX_PARTS ? cores : MAX_PARTS), bytes = t == LT_DTYPE_F32 ? 4 : 2;
    floats f[MAX_PARTS];
    for (uint64_t k = 0; k < parts; k++) {
        uint64_t from = n * k / parts, to = n * (k + 1) / parts;
        f[k] = (floats){.type = t, .p = p + from * bytes, .n = to - from, .rng = *rng + from * STEP, .std = std};
        f[k].started = k + 1 < parts && pthread_create(&f[k].thread, NULL, fill_part, &f[k]) == 0;
        if (!f[k].started) fill_part(&f[k]);
    }
    for (uint64_t k = 0; k < parts; k++)
        if (f[k].started) pthread_join(f[k].thread, NULL);
    *rng += n * STEP;
}

static void fill_blocks(lt_dtype t, uint8_t *p, uint64_t blocks, double std, uint64_t *rng)
{
    const lt_dtype_traits *tr = lt_dtype_get(t);
    uint64_t total = blocks * tr->block_bytes;
    for (uint64_t i = 0; i < total; i += 8) {
        uint64_t x = next_u64(rng);
        memcpy(p + i, &x, (size_t)lt__min_u64(8, total - i));
    }
    for (uint64_t i = 0; i < blocks; i++) scale_block(t, p + i * tr->block_bytes, std, rng);
}

static const stock *find_stock(stocks *all, const row *r, uint64_t seed)
{
    const lt_dtype_traits *tr = lt_dtype_get(r->type);
    for (size_t i = 0; i < all->n; i++)
        if (all->v[i].type == r->type && all->v[i].std == r->std) return &all->v[i];
    if (all->n == MAX_STOCKS) die("--repeat: more than %d kinds of weights", MAX_STOCKS);
    stock *s = &all->v[all->n++];
    *s = (stock){.type = r->type, .std = r->std, .blocks = STOCK / tr->block_bytes};
    s->p = malloc(s->blocks * tr->block_bytes + 8);
    if (!s->p) die("out of memory");
    uint64_t rng = seed_of(seed, tr->name) + all->n;
    if (tr->kind == LT_DTYPE_KIND_QUANT) fill_blocks(r->type, s->p, s->blocks, r->std, &rng);
    else fill_floats(r->type, s->p, s->blocks, r->std, &rng);
    return s;
}

static lt_status write_repeated(lt__gguf_writer *w, const row *r, uint64_t blocks, stocks *all, uint64_t seed, lt_err *err)
{
    const lt_dtype_traits *tr = lt_dtype_get(r->type);
    const stock *from = find_stock(all, r, seed);
    uint64_t at = seed_of(seed, r->name) % from->blocks;
    lt_status s = LT_OK;
    for (uint64_t n; blocks && s == LT_OK; blocks -= n, at = 0) {
        n = lt__min_u64(blocks, from->blocks - at);
        s = lt__gguf_write(w, from->p + at * tr->block_bytes, n * tr->block_bytes, err);
    }
    return s;
}

static lt_status write_row(lt__gguf_writer *w, const row *r, uint64_t seed, stocks *repeat, uint8_t *buf, lt_err *err)
{
    const lt_dtype_traits *tr = lt_dtype_get(r->type);
    uint64_t rng = seed_of(seed, r->name), elems = r->dim[0];
    for (uint32_t i = 1; i < r->ndim; i++) elems *= r->dim[i];
    uint64_t blocks = elems / tr->block_elems, step = CHUNK / tr->block_bytes, done = 0;
    lt_status s = LT_OK;

    if (repeat && r->fill == FILL_WEIGHT) return write_repeated(w, r, blocks, repeat, seed, err);
    for (; done < blocks && s == LT_OK; done += step) {
        uint64_t n = lt__min_u64(step, blocks - done);
        if (r->fill == FILL_WEIGHT && tr->kind == LT_DTYPE_KIND_QUANT) fill_blocks(r->type, buf, n, r->std, &rng);
        else if (r->fill == FILL_WEIGHT) fill_floats(r->type, buf, n, r->std, &rng);
        else
            for (uint64_t i = 0; i < n; i++) {
                double u = next_unit(&rng), k = (double)(done + i) / (double)elems;
                float x = (float)(r->fill == FILL_NORM   ? 0.9 + 0.2 * u
                                  : r->fill == FILL_BIAS ? 0.2 * (u - 0.5)
                                  : r->fill == FILL_SINK ? 4 * (u - 0.5)
                                                         : 1 + r->std * k * k);
                memcpy(buf + 4 * i, &x, 4);
            }
        s = lt__gguf_write(w, buf, n * tr->block_bytes, err);
    }
    return s;
}

/* ---- tensors of each architecture ---- */

static row *add_row(rows *rs, const options *o, const char *name, uint64_t d0, uint64_t d1)
{
    if (rs->n == rs->cap) {
        rs->cap = rs->cap ? 2 * rs->cap : 256;
        rs->v = realloc(rs->v, rs->cap * sizeof *rs->v);
        if (!rs->v) die("out of memory");
    }
    row *r = &rs->v[rs->n++];
    *r = (row){.type = o->type, .ndim = d1 ? 2 : 1, .dim = {d0, d1}, .std = d1 ? 1 / sqrt((double)d1) : 1};
    snprintf(r->name, sizeof r->name, "%s", name);
    for (size_t i = 0; i < o->n_rules; i++)
        if (regexec(&o->rules[i].re, r->name, 0, NULL, 0) == 0) r->type = o->rules[i].type;
    const lt_dtype_traits *tr = lt_dtype_get(r->type);
    if (d1 && d1 % tr->block_elems)
        die("%s has rows of %" PRIu64 " elements, but %s comes in blocks of %" PRIu32 "; choose another --type-of for it", r->name, d1,
            tr->name, tr->block_elems);
    return r;
}

static row *add_matrices(rows *rs, const options *o, const char *name, uint64_t n, uint64_t d0, uint64_t d1)
{
    row *r = add_row(rs, o, name, d0, d1);
    r->ndim = 3;
    r->dim[0] = n, r->dim[1] = d0, r->dim[2] = d1;
    return r;
}

static void add_vector(rows *rs, const options *o, const char *name, uint64_t n, int fill)
{
    row *r = add_row(rs, o, name, n, 0);
    r->type = LT_DTYPE_F32;
    r->fill = fill;
}

static const char *in_layer(char *buf, uint64_t l, const char *name)
{
    snprintf(buf, 64, "blk.%" PRIu64 ".%s", l, name);
    return buf;
}

static void add_vectors(rows *rs, const options *o, const char *name, uint64_t n, uint64_t each, int fill)
{
    add_vector(rs, o, name, n, fill);
    rs->v[rs->n - 1].ndim = 2;
    rs->v[rs->n - 1].dim[1] = each;
}

static bool is_arch(const options *o, const char *name) { return strcmp(o->arch, name) == 0; }
static bool is_gemma(const options *o) { return strncmp(o->arch, "gemma", 5) == 0; }

static void add_attention(rows *rs, const options *o, uint64_t l)
{
    char b[64];
    uint64_t q = o->heads * o->head_dim, kv = o->kv_heads * o->head_dim;

    if (strcmp(o->arch, "phi3") == 0) add_row(rs, o, in_layer(b, l, "attn_qkv.weight"), q + 2 * kv, o->embd);
    else {
        add_row(rs, o, in_layer(b, l, "attn_q.weight"), q, o->embd);
        add_row(rs, o, in_layer(b, l, "attn_k.weight"), kv, o->embd);
        add_row(rs, o, in_layer(b, l, "attn_v.weight"), kv, o->embd);
    }
    if (is_arch(o, "qwen2") || is_arch(o, "gpt-oss")) {
        add_vector(rs, o, in_layer(b, l, "attn_q.bias"), q, FILL_BIAS);
        add_vector(rs, o, in_layer(b, l, "attn_k.bias"), kv, FILL_BIAS);
        add_vector(rs, o, in_layer(b, l, "attn_v.bias"), kv, FILL_BIAS);
    }
    bool each = is_arch(o, "gemma3") || is_arch(o, "qwen3") || is_arch(o, "qwen3moe");
    if (each || is_arch(o, "olmoe")) {
        add_vector(rs, o, in_layer(b, l, "attn_q_norm.weight"), each ? o->head_dim : q, FILL_NORM);
        add_vector(rs, o, in_layer(b, l, "attn_k_norm.weight"), each ? o->head_dim : kv, FILL_NORM);
    }
    /* What joins the residual is smaller, so that it stays in range over any number of layers. */
    add_row(rs, o, in_layer(b, l, "attn_output.weight"), o->embd, q)->std *= 1 / sqrt(2.0 * (double)o->layers);
    if (is_arch(o, "gpt-oss")) {
        add_vector(rs, o, in_layer(b, l, "attn_output.bias"), o->embd, FILL_BIAS);
        add_vector(rs, o, in_layer(b, l, "attn_sinks.weight"), o->heads, FILL_SINK);
    }
    if (is_gemma(o)) add_vector(rs, o, in_layer(b, l, "post_attention_norm.weight"), o->embd, FILL_NORM);
}

/* Where the unit clamps, gate and up are large enough to be clamped, and down makes up for it. */
static void add_experts(rows *rs, const options *o, uint64_t l)
{
    char b[64];
    bool oss = is_arch(o, "gpt-oss");
    double large = oss ? 4 : 1, down = 1 / sqrt(2.0 * (double)o->layers) / (oss ? 8 : 1);

    add_row(rs, o, in_layer(b, l, "ffn_gate_inp.weight"), o->experts, o->embd);
    add_matrices(rs, o, in_layer(b, l, "ffn_gate_exps.weight"), o->experts, o->expert_ff, o->embd)->std *= large;
    add_matrices(rs, o, in_layer(b, l, "ffn_up_exps.weight"), o->experts, o->expert_ff, o->embd)->std *= large;
    add_matrices(rs, o, in_layer(b, l, "ffn_down_exps.weight"), o->experts, o->embd, o->expert_ff)->std *= down;
    if (!oss) return;
    add_vector(rs, o, in_layer(b, l, "ffn_gate_inp.bias"), o->experts, FILL_BIAS);
    add_vectors(rs, o, in_layer(b, l, "ffn_gate_exps.bias"), o->experts, o->expert_ff, FILL_BIAS);
    add_vectors(rs, o, in_layer(b, l, "ffn_up_exps.bias"), o->experts, o->expert_ff, FILL_BIAS);
    add_vectors(rs, o, in_layer(b, l, "ffn_down_exps.bias"), o->experts, o->embd, FILL_BIAS);
}

static void add_layer(rows *rs, const options *o, uint64_t l)
{
    char b[64];
    bool phi = is_arch(o, "phi3");

    add_vector(rs, o, in_layer(b, l, "attn_norm.weight"), o->embd, FILL_NORM);
    add_attention(rs, o, l);
    if (o->experts) {
        add_vector(rs, o, in_layer(b, l, is_arch(o, "gpt-oss") ? "post_attention_norm.weight" : "ffn_norm.weight"), o->embd, FILL_NORM);
        add_experts(rs, o, l);
        return;
    }
    add_vector(rs, o, in_layer(b, l, "ffn_norm.weight"), o->embd, FILL_NORM);
    if (!phi) add_row(rs, o, in_layer(b, l, "ffn_gate.weight"), o->ff, o->embd);
    add_row(rs, o, in_layer(b, l, "ffn_up.weight"), phi ? 2 * o->ff : o->ff, o->embd);
    add_row(rs, o, in_layer(b, l, "ffn_down.weight"), o->embd, o->ff)->std *= 1 / sqrt(2.0 * (double)o->layers);
    if (is_gemma(o)) add_vector(rs, o, in_layer(b, l, "post_ffw_norm.weight"), o->embd, FILL_NORM);
}

static void add_factors(rows *rs, const options *o, const char *name, double growth)
{
    add_vector(rs, o, name, o->head_dim / 2, FILL_FACTORS);
    rs->v[rs->n - 1].std = growth;
}

static void add_tensors(rows *rs, const options *o)
{
    row *r = add_row(rs, o, "token_embd.weight", o->vocab, o->embd);
    if (!o->tied) r->std = 1;
    add_vector(rs, o, "output_norm.weight", o->embd, FILL_NORM);
    if (!o->tied) add_row(rs, o, "output.weight", o->vocab, o->embd)->std *= 3;
    if (o->rope_factors && strcmp(o->arch, "phi3") == 0) {
        add_factors(rs, o, "rope_factors_long.weight", 30);
        add_factors(rs, o, "rope_factors_short.weight", 0.5);
    } else if (o->rope_factors)
        add_factors(rs, o, "rope_freqs.weight", 7);
    for (uint64_t l = 0; l < o->layers; l++) add_layer(rs, o, l);
}

/* ---- vocabulary ---- */

typedef struct vocab { char **tokens, **merges; float *scores; int32_t *types; uint64_t n, n_merges, cap; } vocab;

static void add_token(vocab *v, const char *s, float score, int32_t type)
{
    if (v->n == v->cap) die("the vocabulary is smaller than its bytes and letters; give --vocab of at least 300");
    v->tokens[v->n] = strdup(s);
    if (!v->tokens[v->n]) die("out of memory");
    v->scores[v->n] = score;
    v->types[v->n++] = type;
}

/* Words over a..z in breadth-first order behind the letters themselves: each is a known word and one letter more,
 * so each has exactly one merge. `space` is the mark of a word's beginning. */
static void add_words(vocab *v, const char *space)
{
    char (*word)[32] = calloc(v->cap + 27, sizeof *word), m[80];
    uint64_t head = 0, tail = 0;
    if (!word) die("out of memory");
    snprintf(word[tail++], sizeof *word, "%s", space);
    for (char c = 'a'; c <= 'z'; c++) snprintf(word[tail++], sizeof *word, "%c", c);
    for (; v->n < v->cap; head++)
        for (char c = 'a'; c <= 'z' && v->n < v->cap; c++) {
            char longer[sizeof *word]; /* gcc 12 cannot see that tail is not head */
            snprintf(longer, sizeof longer, "%.28s%c", word[head], c);
            memcpy(word[tail], longer, sizeof longer);
            snprintf(m, sizeof m, "%s %c", word[head], c);
            add_token(v, word[tail++], -(float)v->n_merges, 1);
            v->merges[v->n_merges] = strdup(m);
            if (!v->merges[v->n_merges++]) die("out of memory");
        }
    free(word);
}

static void add_control(vocab *v, const char *const *names, size_t n, int unknown)
{
    for (size_t i = 0; i < n; i++) add_token(v, names[i], 0, (int)i == unknown ? 2 : 3);
}

/* Byte-level BPE spells bytes as characters: printable ones as themselves, the others from U+0100 on. */
static void add_byte_letters(vocab *v)
{
    for (int printable = 1; printable >= 0; printable--)
        for (int b = 0, other = 0; b < 256; b++) {
            bool p = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            int cp = p ? b : 256 + other++;
            char s[3] = {(char)cp, 0, 0};
            if (cp >= 0x80) s[0] = (char)(0xc0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63));
            if (p == (bool)printable) add_token(v, s, 0, 1);
        }
}

static void put_vocab(lt__gguf_writer *w, const options *o)
{
    static const char *const bpe[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, *const spm[] = {"<unk>", "<s>", "</s>"},
        *const gemma[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"};
    bool is_spm = strcmp(o->tokenizer, "spm") == 0, of_gemma = is_gemma(o);
    vocab v = {.cap = o->vocab};
    char s[16];

    v.tokens = calloc(v.cap, sizeof *v.tokens);
    v.merges = calloc(v.cap, sizeof *v.merges);
    v.scores = calloc(v.cap, sizeof *v.scores);
    v.types = calloc(v.cap, sizeof *v.types);
    if (!v.tokens || !v.merges || !v.scores || !v.types) die("out of memory");
    if (!is_spm) {
        add_control(&v, bpe, 3, -1);
        add_byte_letters(&v);
        add_words(&v, "\xc4\xa0");
    } else {
        if (of_gemma) add_control(&v, gemma, 6, 3);
        else add_control(&v, spm, 3, 0);
        for (int b = 0; b < 256; b++) snprintf(s, sizeof s, "<0x%02X>", b), add_token(&v, s, 0, 6);
        add_token(&v, "\xe2\x96\x81", -1e6f, 1);
        for (char c = 'a'; c <= 'z'; c++) snprintf(s, sizeof s, "%c", c), add_token(&v, s, -1e6f, 1);
        add_words(&v, "\xe2\x96\x81");
    }
    lt__gguf_put_str(w, "tokenizer.ggml.model", is_spm ? "llama" : "gpt2");
    lt__gguf_put_str(w, "tokenizer.ggml.pre", o->pre);
    lt__gguf_put_strs(w, "tokenizer.ggml.tokens", (const char *const *)v.tokens, v.n);
    if (is_spm) lt__gguf_put_f32s(w, "tokenizer.ggml.scores", v.scores, v.n);
    lt__gguf_put_i32s(w, "tokenizer.ggml.token_type", v.types, v.n);
    if (!is_spm) lt__gguf_put_strs(w, "tokenizer.ggml.merges", (const char *const *)v.merges, v.n_merges);
    lt__gguf_put_u32(w, "tokenizer.ggml.bos_token_id", of_gemma ? 2 : 1);
    lt__gguf_put_u32(w, "tokenizer.ggml.eos_token_id", of_gemma ? 1 : 2);
    if (is_spm) lt__gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", of_gemma ? 3 : 0);
    lt__gguf_put_bool(w, "tokenizer.ggml.add_bos_token", is_spm);
    lt__gguf_put_bool(w, "tokenizer.ggml.add_eos_token", false);
    lt__gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", is_spm && !of_gemma);
    for (uint64_t i = 0; i < v.n; i++) free(v.tokens[i]);
    for (uint64_t i = 0; i < v.n_merges; i++) free(v.merges[i]);
    free(v.tokens), free(v.merges), free(v.scores), free(v.types);
}

/* ---- keys ---- */

static bool of_ff(const options *o) { return is_arch(o, "llama") || is_arch(o, "olmoe"); } /* its experts have --ff rows */

static void put_keys(lt__gguf_writer *w, const options *o)
{
    char k[96];
#define KEY(name) (snprintf(k, sizeof k, "%s." name, o->arch), k)
    bool gemma = is_gemma(o), gemma2 = strcmp(o->arch, "gemma2") == 0, qwen = strncmp(o->arch, "qwen", 4) == 0;
    lt__gguf_put_str(w, "general.architecture", o->arch);
    lt__gguf_put_str(w, "general.name", "synthetic");
    lt__gguf_put_u32(w, "general.quantization_version", 2);
    lt__gguf_put_u32(w, KEY("block_count"), (uint32_t)o->layers);
    lt__gguf_put_u32(w, KEY("context_length"), (uint32_t)o->ctx);
    lt__gguf_put_u32(w, KEY("embedding_length"), (uint32_t)o->embd);
    lt__gguf_put_u32(w, KEY("feed_forward_length"), (uint32_t)o->ff);
    lt__gguf_put_u32(w, KEY("attention.head_count"), (uint32_t)o->heads);
    lt__gguf_put_u32(w, KEY("attention.head_count_kv"), (uint32_t)o->kv_heads);
    lt__gguf_put_u32(w, KEY("attention.key_length"), (uint32_t)o->head_dim);
    lt__gguf_put_u32(w, KEY("attention.value_length"), (uint32_t)o->head_dim);
    lt__gguf_put_f32(w, KEY("attention.layer_norm_rms_epsilon"), gemma || qwen ? 1e-6f : 1e-5f);
    lt__gguf_put_f32(w, KEY("rope.freq_base"), (gemma && !gemma2) || qwen ? 1e6f : is_arch(o, "gpt-oss") ? 150000 : 1e4f);
    lt__gguf_put_u32(w, KEY("rope.dimension_count"), (uint32_t)o->head_dim);
    lt__gguf_put_u32(w, KEY("vocab_size"), (uint32_t)o->vocab);
    if (gemma || is_arch(o, "gpt-oss")) lt__gguf_put_u32(w, KEY("attention.sliding_window"), (uint32_t)o->window);
    if (o->experts) {
        lt__gguf_put_u32(w, KEY("expert_count"), (uint32_t)o->experts);
        lt__gguf_put_u32(w, KEY("expert_used_count"), (uint32_t)o->experts_used);
        if (!of_ff(o)) lt__gguf_put_u32(w, KEY("expert_feed_forward_length"), (uint32_t)o->expert_ff);
    }
    if (is_arch(o, "gpt-oss")) { /* trained at a 32nd of its context */
        lt__gguf_put_str(w, KEY("rope.scaling.type"), "yarn");
        lt__gguf_put_f32(w, KEY("rope.scaling.factor"), 32);
        lt__gguf_put_u32(w, KEY("rope.scaling.original_context_length"), (uint32_t)(o->ctx < 32 ? 1 : o->ctx / 32));
    }
    if (gemma2) {
        lt__gguf_put_f32(w, KEY("attn_logit_softcapping"), (float)o->attn_cap);
        lt__gguf_put_f32(w, KEY("final_logit_softcapping"), (float)o->logit_cap);
    }
    if (strcmp(o->arch, "phi3") == 0) lt__gguf_put_u32(w, KEY("rope.scaling.original_context_length"), (uint32_t)(o->rope_factors ? (o->ctx + 1) / 2 : o->ctx));
    put_vocab(w, o);
#undef KEY
}

/* ---- the command line ---- */

static const char usage[] =
    "usage: mkmodel [options] -o FILE\n"
    "  --arch llama|qwen2|qwen3|qwen3moe|gemma2|gemma3|phi3|gpt-oss|olmoe   (llama)\n"
    "  --preset tiny|1b|4g|7b|13b|20b         (tiny) sizes; each of the next overrides one\n"
    "  --preset gpt-oss-20b|qwen3-30b-a3b     sizes, architecture and types of those\n"
    "  --layers N --embd N --ff N --heads N --kv-heads N --head-dim N --vocab N --ctx N --window N\n"
    "  --experts N --experts-used N --expert-ff N   (qwen3moe, gpt-oss: 16, 4, 256; olmoe: 16, 4, --ff; llama: 0, 2, --ff)\n"
    "  --type DTYPE          of all matrices (Q4_K); norms and biases are F32\n"
    "  --type-of REGEX=DTYPE of the tensors whose name matches; the last match counts\n"
    "  --tokenizer bpe|spm --pre NAME\n"
    "  --attn-cap N --logit-cap N   of gemma2 (50, 30; 0: none)\n"
    "  --tied                no output.weight (gemma2, gemma3: always)\n"
    "  --rope-factors        rope_freqs, or phi3's long and short factors\n"
    "  --repeat              weights repeat after 16 MiB: a file for measurements, as fast as the disk takes it\n"
    "  --seed N  --align N   general.alignment (32)\n"
    "  --split N             N files, FILE ending in .gguf becomes ...-00001-of-0000N.gguf\n";

static uint64_t number(const char *name, const char *s)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || !*s || *end || *s == '-' || v > 1u << 30) die("--%s %s: a number up to 2^30 was expected", name, s);
    return v;
}

static lt_dtype dtype_of(const char *s)
{
    lt_dtype t;
    if (!lt_dtype_from_name(s, &t) || lt_dtype_get(t)->kind == LT_DTYPE_KIND_ACT || lt_dtype_get(t)->kind == LT_DTYPE_KIND_INT)
        die("%s is no weight type", s);
    return t;
}

static void add_rule(options *o, char *arg)
{
    char *eq = strrchr(arg, '=');
    if (!eq || o->n_rules == MAX_RULES) die("--type-of %s: up to %d of REGEX=DTYPE were expected", arg, MAX_RULES);
    *eq = 0;
    rule *r = &o->rules[o->n_rules++];
    if (regcomp(&r->re, arg, REG_EXTENDED | REG_NOSUB) != 0) die("--type-of %s: not a regular expression", arg);
    r->type = dtype_of(eq + 1);
}

static void set_size(options *o, const char *name, const char *arg)
{
    const struct { const char *name; uint64_t *dst; } sizes[] = {
        {"layers", &o->layers}, {"embd", &o->embd}, {"ff", &o->ff}, {"heads", &o->heads}, {"kv-heads", &o->kv_heads},
        {"head-dim", &o->head_dim}, {"vocab", &o->vocab}, {"ctx", &o->ctx}, {"window", &o->window}, {"seed", &o->seed},
        {"split", &o->split}, {"align", &o->align}, {"attn-cap", &o->attn_cap}, {"logit-cap", &o->logit_cap},
        {"experts", &o->experts}, {"experts-used", &o->experts_used}, {"expert-ff", &o->expert_ff},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) *sizes[i].dst = number(name, arg);
}

static void set_mix(options *o, const char *preset)
{
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++) {
        const struct mix *m = &mixes[i];
        char text[128];
        if (strcmp(m->preset, preset) != 0) continue;
        o->arch = m->arch, o->type = m->type, o->window = m->window;
        o->experts = m->experts, o->experts_used = m->experts_used, o->expert_ff = m->expert_ff;
        snprintf(text, sizeof text, "%s", m->rule);
        add_rule(o, text);
    }
}

static void set_preset(options *o, const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        const struct preset *p = &presets[i];
        if (strcmp(p->name, name) != 0) continue;
        o->layers = p->layers, o->embd = p->embd, o->ff = p->ff, o->heads = p->heads, o->kv_heads = p->kv_heads;
        o->head_dim = p->head_dim, o->vocab = p->vocab, o->ctx = p->ctx;
        set_mix(o, name);
        return;
    }
    die("--preset %s: tiny, 1b, 4g, 7b, 13b, 20b, gpt-oss-20b or qwen3-30b-a3b was expected", name);
}

enum { OPT_SIZE = 256, OPT_ARCH, OPT_PRESET, OPT_TYPE, OPT_TYPE_OF, OPT_TOKENIZER, OPT_PRE, OPT_TIED, OPT_FACTORS, OPT_REPEAT };

static void parse(options *o, int argc, char **argv)
{
    static const struct option opts[] = {
        {"layers", 1, 0, OPT_SIZE}, {"embd", 1, 0, OPT_SIZE}, {"ff", 1, 0, OPT_SIZE}, {"heads", 1, 0, OPT_SIZE},
        {"kv-heads", 1, 0, OPT_SIZE}, {"head-dim", 1, 0, OPT_SIZE}, {"vocab", 1, 0, OPT_SIZE}, {"ctx", 1, 0, OPT_SIZE},
        {"window", 1, 0, OPT_SIZE}, {"seed", 1, 0, OPT_SIZE}, {"split", 1, 0, OPT_SIZE}, {"align", 1, 0, OPT_SIZE},
        {"attn-cap", 1, 0, OPT_SIZE}, {"logit-cap", 1, 0, OPT_SIZE},
        {"experts", 1, 0, OPT_SIZE}, {"experts-used", 1, 0, OPT_SIZE}, {"expert-ff", 1, 0, OPT_SIZE},
        {"arch", 1, 0, OPT_ARCH}, {"preset", 1, 0, OPT_PRESET}, {"type", 1, 0, OPT_TYPE}, {"type-of", 1, 0, OPT_TYPE_OF},
        {"tokenizer", 1, 0, OPT_TOKENIZER}, {"pre", 1, 0, OPT_PRE}, {"tied", 0, 0, OPT_TIED}, {"rope-factors", 0, 0, OPT_FACTORS},
        {"repeat", 0, 0, OPT_REPEAT},
        {"help", 0, 0, 'h'}, {0, 0, 0, 0}};
    int c, i;

    for (int pass = 0; pass < 2; pass++) { /* the preset first, wherever it stands */
        optind = 0; /* GNU: scan anew */
        while ((c = getopt_long(argc, argv, "o:h", opts, &i)) != -1) {
            if (c == '?') die("see mkmodel --help");
            if (pass == 0 && c == OPT_PRESET) set_preset(o, optarg);
            if (pass == 0) continue;
            switch (c) {
            case 'o': o->out = optarg; break;
            case 'h': fputs(usage, stdout); exit(0);
            case OPT_SIZE: set_size(o, opts[i].name, optarg); break;
            case OPT_ARCH: o->arch = optarg; break;
            case OPT_TYPE: o->type = dtype_of(optarg); break;
            case OPT_TYPE_OF: add_rule(o, optarg); break;
            case OPT_TOKENIZER: o->tokenizer = optarg; break;
            case OPT_PRE: o->pre = optarg; break;
            case OPT_TIED: o->tied = true; break;
            case OPT_FACTORS: o->rope_factors = true; break;
            case OPT_REPEAT: o->repeat = true; break;
            default: break;
            }
        }
    }
    if (optind != argc) die("%s: no such argument", argv[optind]);
}

static void check_experts(options *o)
{
    bool always = is_arch(o, "qwen3moe") || is_arch(o, "gpt-oss") || is_arch(o, "olmoe"), llama = is_arch(o, "llama");
    if (always && !o->experts) o->experts = 16;
    if (!o->experts) return;
    if (!always && !llama) die("--experts %" PRIu64 ": %s has none", o->experts, o->arch);
    if (!o->experts_used) o->experts_used = llama ? 2 : 4;
    if (of_ff(o) && o->expert_ff && o->expert_ff != o->ff) die("--expert-ff %" PRIu64 ": experts of %s are of --ff, %" PRIu64, o->expert_ff, o->arch, o->ff);
    if (!o->expert_ff) o->expert_ff = of_ff(o) ? o->ff : 256;
    if (o->experts_used > o->experts) die("--experts-used %" PRIu64 " of --experts %" PRIu64, o->experts_used, o->experts);
}

static void check(options *o)
{
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt-oss", "olmoe"};
    const size_t n = sizeof archs / sizeof *archs;
    size_t i = 0;
    while (i < n && strcmp(archs[i], o->arch) != 0) i++;
    if (i == n) die("--arch %s: llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3, gpt-oss or olmoe was expected", o->arch);
    check_experts(o);
    if (!o->out) die("-o FILE is missing");
    if (!o->layers || !o->embd || !o->ff || !o->heads || !o->kv_heads || !o->head_dim || !o->vocab || !o->ctx || !o->window)
        die("all sizes must be at least 1");
    if (o->heads % o->kv_heads) die("--heads %" PRIu64 " is not a multiple of --kv-heads %" PRIu64, o->heads, o->kv_heads);
    if (o->head_dim % 2) die("--head-dim %" PRIu64 " is odd", o->head_dim);
    bool spm = is_gemma(o) || strcmp(o->arch, "phi3") == 0;
    if (is_gemma(o)) o->tied = true;
    if (!o->tokenizer) o->tokenizer = spm ? "spm" : "bpe";
    if (strcmp(o->tokenizer, "spm") != 0 && strcmp(o->tokenizer, "bpe") != 0) die("--tokenizer %s: bpe or spm was expected", o->tokenizer);
    if (!o->pre)
        o->pre = strcmp(o->tokenizer, "spm") == 0 ? "default" : strncmp(o->arch, "qwen", 4) == 0 ? "qwen2"
               : is_arch(o, "gpt-oss") ? "gpt-4o" : "smollm";
    if (!o->split || o->split > 99999) die("--split %" PRIu64 ": 1 to 99999 was expected", o->split);
}

static lt_status write_part(lt_ctx *ctx, const options *o, const rows *rs, uint64_t part, stocks *all, uint8_t *buf, lt_err *err)
{
    size_t n = strlen(o->out), first = (size_t)(rs->n * part / o->split), end = (size_t)(rs->n * (part + 1) / o->split);
    char *path = malloc(n + 32);
    lt__gguf_writer *w = NULL;
    lt_status s;

    if (!path) die("out of memory");
    if (o->split == 1) snprintf(path, n + 32, "%s", o->out);
    else {
        if (n < 5 || strcmp(o->out + n - 5, ".gguf") != 0) die("with --split, -o must end in .gguf");
        snprintf(path, n + 32, "%.*s-%05u-of-%05u.gguf", (int)(n - 5), o->out, (unsigned)part + 1, (unsigned)o->split);
    }
    s = lt__gguf_writer_create(ctx, path, (uint32_t)o->align, &w, err);
    free(path);
    if (s != LT_OK) return s;
    if (part == 0) put_keys(w, o);
    if (o->split > 1) {
        lt__gguf_put_u16(w, "split.no", (uint16_t)part);
        lt__gguf_put_u16(w, "split.count", (uint16_t)o->split);
        lt__gguf_put_i32(w, "split.tensors.count", (int32_t)rs->n);
    }
    for (size_t i = first; i < end; i++) lt__gguf_put_tensor(w, rs->v[i].name, rs->v[i].type, rs->v[i].ndim, rs->v[i].dim);
    for (size_t i = first; i < end && s == LT_OK; i++) s = write_row(w, &rs->v[i], o->seed, o->repeat ? all : NULL, buf, err);
    if (s == LT_OK) return lt__gguf_writer_commit(w, err);
    lt__gguf_writer_abandon(w);
    return s;
}

int main(int argc, char **argv)
{
    options o = {.arch = "llama", .type = LT_DTYPE_Q4_K, .seed = 1, .split = 1, .align = 32, .window = 512, .attn_cap = 50, .logit_cap = 30};
    rows rs = {0};
    stocks all = {0};
    lt_ctx *ctx;
    lt_err err;
    uint8_t *buf = malloc(CHUNK + 8);

    char router[] = "ffn_gate_inp=F32"; /* as every published file has it */
    set_preset(&o, "tiny");
    add_rule(&o, router);
    parse(&o, argc, argv);
    check(&o);
    add_tensors(&rs, &o);
    if (!buf || lt_ctx_create(NULL, &ctx, &err) != LT_OK) die("out of memory");
    lt_status s = LT_OK;
    for (uint64_t part = 0; part < o.split && s == LT_OK; part++) s = write_part(ctx, &o, &rs, part, &all, buf, &err);
    if (s != LT_OK) fprintf(stderr, "mkmodel: %s\n", err.text);
    for (size_t i = 0; i < o.n_rules; i++) regfree(&o.rules[i].re);
    lt_ctx_destroy(ctx);
    for (size_t i = 0; i < all.n; i++) free(all.v[i].p);
    free(rs.v);
    free(buf);
    return s == LT_OK ? 0 : 1;
}
