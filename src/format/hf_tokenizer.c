#include "format/hf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/reader.h"
#include "format/json.h"

enum { TOKENIZER_MAX = 512 * 1024 * 1024, TOKENIZER_CONFIG_MAX = 64 * 1024 * 1024, RULES_MAX = 256 * 1024, PATH_BYTES = 4096 };
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_UNUSED = 5, TYPE_BYTE = 6 }; /* GGUF's */
enum { FROM_VOCAB = 1, FROM_ADDED = 2 };

typedef struct slice { const char *s; size_t n; } slice;

typedef struct vocab {
    lt__hf       *h;
    lt__json      j;
    const char  **text;      /* NULL: no token has this id */
    uint32_t     *len;
    int64_t      *type;
    double       *score;
    uint8_t      *from;
    uint64_t      n, skipped; /* ids below n; ids beyond the embedding matrix */
    const char  **merge;
    uint32_t     *merge_len;
    uint64_t      n_merges;
    slice         normalizer, pre_tokenizer, post_processor;
    bool          is_bpe, byte_fallback, ignore_merges, byte_level;
    char          model_type[24], unk[64];
    const char   *pre;
    bool          space_prefix, nfc, starts, ends;
    /* of tokenizer_config.json */
    char          name[4][128]; /* bos, eos, unk, pad */
    int           add[2];       /* add_bos_token, add_eos_token; -1: not said */
    const char   *template;
    size_t        template_n;
} vocab;

static const char *const special[4] = {"bos_token", "eos_token", "unk_token", "pad_token"};

#define TRY(x) do { lt_status try_s = (x); if (try_s != LT_OK) return try_s; } while (0)

static bool oom(vocab *v, size_t n) { return lt__fail_oom(&v->j.err, n, "a vocabulary"), false; }

/* ---- tokens ---- */

static bool place(vocab *v, uint64_t id, const char *s, size_t n, int64_t type, uint8_t from)
{
    lt__json *j = &v->j;
    if (id >= v->h->vocab) { /* no row of the matrix is its: the model can neither read nor write it */
        v->skipped++;
        return true;
    }
    if (n == 0 || n > UINT32_MAX / 2) return lt__json_fail(j, "the token of id %" PRIu64 " has a length of %zu", id, n);
    if (v->from[id] & from) return lt__json_fail(j, "two tokens have the id %" PRIu64, id);
    if (from == FROM_VOCAB && (v->from[id] & FROM_ADDED)) { /* the added one says more */
        v->from[id] |= from;
        return true;
    }
    v->from[id] |= from;
    v->text[id] = lt__mf_strndup(v->h->f, s, n);
    if (!v->text[id]) return oom(v, n);
    v->len[id] = (uint32_t)n;
    v->type[id] = type;
    if (id >= v->n) v->n = id + 1;
    return true;
}

static bool read_added(vocab *v)
{
    lt__json *j = &v->j;
    if (!lt__json_array(j)) return false;
    while (lt__json_item(j)) {
        uint64_t id = UINT64_MAX;
        bool control = false;
        char content[512];
        size_t n = 0;
        if (!lt__json_object(j)) return false;
        while (lt__json_key(j)) {
            if (lt__json_is(j, "id")) lt__json_u64(j, &id);
            else if (lt__json_is(j, "special")) lt__json_bool(j, &control);
            else if (lt__json_is(j, "content")) {
                if (!lt__json_string(j)) return false;
                if (j->str_n >= sizeof content) return lt__json_fail(j, "an added token is longer than %zu bytes", sizeof content - 1);
                memcpy(content, j->str, n = j->str_n);
            } else lt__json_skip(j);
        }
        if (id == UINT64_MAX) return lt__json_fail(j, "an added token has no id");
        if (!place(v, id, content, n, control ? TYPE_CONTROL : TYPE_USER, FROM_ADDED)) return false;
    }
    return j->err.status == LT_OK;
}

static bool read_vocab(vocab *v)
{
    lt__json *j = &v->j;
    if (!lt__json_object(j)) return false;
    while (lt__json_key(j)) {
        /* A key without escapes lies in the text; one with them in the scratch, which a number leaves alone. */
        const char *s = j->str;
        size_t n = j->str_n;
        uint64_t id;
        if (!lt__json_u64(j, &id) || !place(v, id, s, n, TYPE_NORMAL, FROM_VOCAB)) return false;
    }
    return j->err.status == LT_OK;
}

/* "a b", or ["a", "b"] since 2024: then a piece may hold a space itself, which "a b" cannot say; GGUF cannot either. */
static bool read_merge(vocab *v, uint64_t at)
{
    lt__json *j = &v->j;
    char *p;
    size_t n;

    if (lt__json_peek(j) == LT__JSON_STRING) {
        if (!lt__json_string(j)) return false;
        const char *sp = memchr(j->str, ' ', j->str_n);
        if (!sp || sp == j->str || sp + 1 == j->str + j->str_n || memchr(sp + 1, ' ', j->str_n - (size_t)(sp + 1 - j->str)))
            return lt__json_fail(j, "merge %" PRIu64 " is not two pieces with one space between", at);
        if (!(p = lt__mf_strndup(v->h->f, j->str, j->str_n))) return oom(v, j->str_n);
        n = j->str_n;
    } else {
        char left[1024];
        size_t m;
        if (!lt__json_array(j) || !lt__json_item(j) || !lt__json_string(j)) return lt__json_fail(j, "merge %" PRIu64 " is no pair of strings", at);
        if (j->str_n == 0 || j->str_n > sizeof left || memchr(j->str, ' ', j->str_n))
            return lt__json_fail(j, "merge %" PRIu64 " has a piece that is empty, too long or holds a space", at);
        memcpy(left, j->str, m = j->str_n);
        if (!lt__json_item(j) || !lt__json_string(j)) return lt__json_fail(j, "merge %" PRIu64 " is no pair of strings", at);
        if (j->str_n == 0 || j->str_n > sizeof left || memchr(j->str, ' ', j->str_n))
            return lt__json_fail(j, "merge %" PRIu64 " has a piece that is empty, too long or holds a space", at);
        n = m + 1 + j->str_n;
        if (!(p = lt__mf_take(v->h->f, n + 1, 1))) return oom(v, n);
        memcpy(p, left, m);
        p[m] = ' ';
        memcpy(p + m + 1, j->str, j->str_n);
        p[n] = 0;
        if (lt__json_item(j)) return lt__json_fail(j, "merge %" PRIu64 " is no pair of strings", at);
    }
    if (n > UINT32_MAX) return lt__json_fail(j, "merge %" PRIu64 " is too long", at);
    v->merge[at] = p;
    v->merge_len[at] = (uint32_t)n;
    return j->err.status == LT_OK;
}

static bool read_merges(vocab *v)
{
    lt__json *j = &v->j, mark;
    uint64_t n = 0;

    if (v->merge) return lt__json_fail(j, "merges appear twice");
    if (!lt__json_array(j)) return false;
    mark = *j;
    for (; lt__json_item(j); n++) lt__json_skip(j);
    if (j->err.status != LT_OK || n == 0) return j->err.status == LT_OK;
    v->merge = lt__mf_take(v->h->f, (size_t)n * sizeof *v->merge, sizeof *v->merge);
    v->merge_len = lt__mf_take(v->h->f, (size_t)n * sizeof *v->merge_len, sizeof *v->merge_len);
    if (!v->merge || !v->merge_len) return oom(v, (size_t)n * sizeof *v->merge);
    j->p = mark.p; /* counted; now read */
    j->depth = mark.depth;
    j->used = mark.used;
    for (v->n_merges = 0; lt__json_item(j); v->n_merges++)
        if (!read_merge(v, v->n_merges)) return false;
    return j->err.status == LT_OK;
}

static bool read_short(vocab *v, char *out, size_t n)
{
    lt__json *j = &v->j;
    if (lt__json_peek(j) == LT__JSON_NULL) return lt__json_skip(j);
    if (!lt__json_string(j)) return false;
    if (j->str_n >= n) return lt__json_fail(j, "a name is longer than %zu bytes", n - 1);
    memcpy(out, j->str, j->str_n);
    out[j->str_n] = 0;
    return true;
}

static bool read_model(vocab *v)
{
    lt__json *j = &v->j;
    if (!lt__json_object(j)) return false;
    while (lt__json_key(j)) {
        if (lt__json_is(j, "type")) read_short(v, v->model_type, sizeof v->model_type);
        else if (lt__json_is(j, "unk_token")) read_short(v, v->unk, sizeof v->unk);
        else if (lt__json_is(j, "byte_fallback")) lt__json_bool(j, &v->byte_fallback);
        else if (lt__json_is(j, "ignore_merges")) lt__json_bool(j, &v->ignore_merges);
        else if (lt__json_is(j, "vocab") && lt__json_peek(j) == LT__JSON_OBJECT) read_vocab(v);
        else if (lt__json_is(j, "merges")) read_merges(v);
        else lt__json_skip(j);
    }
    return j->err.status == LT_OK;
}

static bool take_slice(vocab *v, slice *out)
{
    lt__json_peek(&v->j); /* moves over spaces */
    out->s = v->j.p;
    if (!lt__json_skip(&v->j)) return false;
    out->n = (size_t)(v->j.p - out->s);
    return true;
}

static void read_all(vocab *v)
{
    lt__json *j = &v->j;
    if (!lt__json_object(j)) return;
    while (lt__json_key(j)) {
        if (lt__json_is(j, "added_tokens")) read_added(v);
        else if (lt__json_is(j, "model")) read_model(v);
        else if (lt__json_is(j, "normalizer")) take_slice(v, &v->normalizer);
        else if (lt__json_is(j, "pre_tokenizer")) take_slice(v, &v->pre_tokenizer);
        else if (lt__json_is(j, "post_processor")) take_slice(v, &v->post_processor);
        else lt__json_skip(j);
    }
}

/* ---- rules: what the small parts of tokenizer.json say ---- */

#define LETTERS_UP "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LETTERS_LOW "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct { const char *pre, *pattern; } splits[] = {
    {"llama-bpe", SHORT "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL},
    {"qwen2", SHORT "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" TAIL},
    {"tekken", LEAD LETTERS_UP "*" LETTERS_LOW "+|" LEAD LETTERS_UP "+" LETTERS_LOW "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL},
    {"gpt-4o", LEAD LETTERS_UP "*" LETTERS_LOW "+" SHORT "?|" LEAD LETTERS_UP "+" LETTERS_LOW "*" SHORT
               "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL},
    {"gpt-2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
};

static json_t *parse_rule(vocab *v, slice x, lt_status *s)
{
    json_error_t e;
    json_t *r;
    *s = LT_OK;
    if (!x.s || x.n == 0) return NULL;
    if (x.n > RULES_MAX) {
        *s = lt__fail(v->h->err, LT_E_FORMAT, "%s/tokenizer.json: its rules are %zu bytes long; at most %d was expected", lt__path_tail(v->h->dir),
                      x.n, RULES_MAX);
        return NULL;
    }
    r = json_loadb(x.s, x.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!r) *s = lt__fail(v->h->err, LT_E_FORMAT, "%s/tokenizer.json: %s", lt__path_tail(v->h->dir), e.text);
    return r;
}

static const char *type_of(json_t *r)
{
    const char *t = json_string_value(json_object_get(r, "type"));
    return t ? t : "";
}

static void read_normalizer(vocab *v, json_t *r)
{
    json_t *x;
    size_t i;
    json_array_foreach(json_object_get(r, "normalizers"), i, x) read_normalizer(v, x);
    if (strcmp(type_of(r), "Prepend") == 0) v->space_prefix = true;
    if (strcmp(type_of(r), "NFC") == 0) v->nfc = true;
}

typedef struct pre_rules { const char *pattern; bool digits, byte_level, use_regex, other; } pre_rules;

static void read_pre(vocab *v, json_t *r, pre_rules *p)
{
    const char *type = type_of(r), *scheme;
    json_t *x;
    size_t i;

    json_array_foreach(json_object_get(r, "pretokenizers"), i, x) read_pre(v, x, p);
    if (strcmp(type, "ByteLevel") == 0) {
        x = json_object_get(r, "use_regex");
        p->byte_level = true;
        p->use_regex = !x || json_is_true(x);
    } else if (strcmp(type, "Digits") == 0) {
        if (json_is_true(json_object_get(r, "individual_digits"))) p->digits = true;
        else p->other = true;
    } else if (strcmp(type, "Split") == 0) {
        const char *re = json_string_value(json_object_get(json_object_get(r, "pattern"), "Regex"));
        if (p->pattern || !re) p->other = true;
        else p->pattern = re;
    } else if (strcmp(type, "Metaspace") == 0) {
        scheme = json_string_value(json_object_get(r, "prepend_scheme"));
        x = json_object_get(r, "add_prefix_space");
        if (scheme ? strcmp(scheme, "never") != 0 : !x || json_is_true(x)) v->space_prefix = true;
    } else if (strcmp(type, "Sequence") != 0)
        p->other = true;
}

static lt_status name_pre(vocab *v, const pre_rules *p)
{
    v->byte_level = p->byte_level;
    v->pre = NULL;
    if (!p->byte_level) v->pre = "default";
    else if (!p->other && !p->pattern && p->use_regex) v->pre = p->digits ? "smollm" : "gpt-2";
    else if (!p->other && p->pattern && !p->use_regex && !p->digits)
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++)
            if (strcmp(splits[i].pattern, p->pattern) == 0) v->pre = splits[i].pre;
    if (v->pre) return LT_OK;
    /* Not a failure here: the file can be inspected; the tokenizer refuses the name. */
    v->pre = "unrecognised";
    return p->pattern ? lt__mf_put_str(v->h->f, "lowtide.tokenizer.split", p->pattern, strlen(p->pattern), v->h->err) : LT_OK;
}

static void read_post(vocab *v, json_t *r)
{
    json_t *x, *single = json_object_get(r, "single");
    size_t i, n = json_array_size(single);
    json_array_foreach(json_object_get(r, "processors"), i, x) read_post(v, x);
    if (strcmp(type_of(r), "TemplateProcessing") != 0 || n < 2) return;
    v->starts = json_object_get(json_array_get(single, 0), "SpecialToken") != NULL;
    v->ends = json_object_get(json_array_get(single, n - 1), "SpecialToken") != NULL;
}

static lt_status read_rules(vocab *v)
{
    lt_status s;
    pre_rules p = {0};
    json_t *r = parse_rule(v, v->normalizer, &s);
    TRY(s);
    read_normalizer(v, r);
    json_decref(r);
    r = parse_rule(v, v->pre_tokenizer, &s);
    TRY(s);
    if (r && !json_is_null(r)) read_pre(v, r, &p);
    s = name_pre(v, &p);
    json_decref(r);
    TRY(s);
    r = parse_rule(v, v->post_processor, &s);
    TRY(s);
    read_post(v, r);
    json_decref(r);
    return LT_OK;
}

/* ---- scores from ranks ---- */

typedef struct finder { uint32_t *slot; uint64_t mask; } finder;

static uint64_t hash_bytes(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
}

static uint64_t find(const vocab *v, const finder *t, const char *s, size_t n)
{
    uint64_t at = hash_bytes(v->h->f->seed, s, n) & t->mask;
    while (t->slot[at] && (v->len[t->slot[at] - 1] != n || memcmp(v->text[t->slot[at] - 1], s, n) != 0)) at = (at + 1) & t->mask;
    return at;
}

/* The SentencePiece way merges the neighbours whose union has the best score. The rank of the first merge that makes
 * a piece, negated, orders unions as the ranks order pairs; what no merge makes is never chosen before one that is made. */
static lt_status score_merges(vocab *v, finder *t)
{
    char both[2048];

    for (uint64_t i = 0; i < v->n; i++)
        if (v->text[i]) t->slot[find(v, t, v->text[i], v->len[i])] = (uint32_t)i + 1;
    for (uint64_t i = 0; i < v->n; i++) v->score[i] = -(double)v->n_merges - 1;
    for (uint64_t i = v->n_merges; i-- > 0;) { /* backwards: the first rank stays */
        const char *sp = memchr(v->merge[i], ' ', v->merge_len[i]);
        size_t a = (size_t)(sp - v->merge[i]), n = v->merge_len[i] - 1u;
        if (n > sizeof both) return lt__fail(v->h->err, LT_E_FORMAT, "%s/tokenizer.json: merge %" PRIu64 " is too long", lt__path_tail(v->h->dir), i);
        memcpy(both, v->merge[i], a);
        memcpy(both + a, sp + 1, n - a);
        uint32_t id = t->slot[find(v, t, both, n)];
        if (!id)
            return lt__fail(v->h->err, LT_E_FORMAT, "%s/tokenizer.json: merge %" PRIu64 " makes %.*s, which is no token", lt__path_tail(v->h->dir), i,
                            (int)lt__min_u64(n, 80), both);
        v->score[id - 1] = -(double)i;
    }
    return LT_OK;
}

static lt_status make_scores(vocab *v)
{
    lt_ctx *ctx = v->h->f->ctx;
    finder t = {.mask = 8};
    lt_status s;

    while (t.mask < 2 * v->n) t.mask *= 2;
    size_t n = (size_t)t.mask--;
    t.slot = lt__alloc_array(ctx, n, sizeof *t.slot);
    if (!t.slot) return lt__fail_oom(v->h->err, n * sizeof *t.slot, "an index of tokens");
    s = score_merges(v, &t);
    lt__free(ctx, t.slot, n * sizeof *t.slot);
    return s;
}

/* ---- tokenizer_config.json ---- */

static bool read_special(lt__json *j, char *out, size_t n)
{
    bool have = false;
    switch (lt__json_peek(j)) {
    case LT__JSON_STRING: have = lt__json_string(j); break;
    case LT__JSON_OBJECT:
        if (!lt__json_object(j)) return false;
        while (lt__json_key(j)) {
            if (!lt__json_is(j, "content")) {
                lt__json_skip(j);
                continue;
            }
            if (!lt__json_string(j)) return false;
            if (j->str_n >= n) return lt__json_fail(j, "a special token is longer than %zu bytes", n - 1);
            memcpy(out, j->str, j->str_n);
            out[j->str_n] = 0;
        }
        return j->err.status == LT_OK;
    default: return lt__json_skip(j);
    }
    if (!have || j->str_n >= n) return lt__json_fail(j, "a special token is longer than %zu bytes", n - 1);
    memcpy(out, j->str, j->str_n);
    out[j->str_n] = 0;
    return true;
}

static bool keep_template(vocab *v, lt__json *j)
{
    if (!lt__json_string(j)) return false;
    v->template_n = j->str_n;
    v->template = lt__mf_strndup(v->h->f, j->str, j->str_n);
    return v->template ? true : (lt__fail_oom(&j->err, j->str_n, "a chat template"), false);
}

/* A string, or several templates with names: then the one called default. */
static bool read_template(vocab *v, lt__json *j)
{
    if (lt__json_peek(j) == LT__JSON_STRING) return keep_template(v, j);
    if (lt__json_peek(j) != LT__JSON_ARRAY) return lt__json_skip(j);
    if (!lt__json_array(j)) return false;
    while (lt__json_item(j)) {
        bool is_default = false;
        const char *before = v->template;
        size_t before_n = v->template_n;
        if (!lt__json_object(j)) return false;
        while (lt__json_key(j)) {
            if (lt__json_is(j, "name")) is_default = lt__json_string(j) && lt__json_is(j, "default");
            else if (lt__json_is(j, "template")) keep_template(v, j);
            else lt__json_skip(j);
        }
        if (!is_default) v->template = before, v->template_n = before_n;
    }
    return j->err.status == LT_OK;
}

static void read_config(vocab *v, lt__json *j)
{
    static const char *const adds[2] = {"add_bos_token", "add_eos_token"};
    if (!lt__json_object(j)) return;
    while (lt__json_key(j)) {
        int hit = -1;
        bool on;
        for (int i = 0; i < 4; i++) if (lt__json_is(j, special[i])) hit = i;
        for (int i = 0; i < 2; i++) if (lt__json_is(j, adds[i]) && lt__json_peek(j) == LT__JSON_BOOL) hit = 4 + i;
        if (hit >= 4) v->add[hit - 4] = lt__json_bool(j, &on) && on;
        else if (hit >= 0) read_special(j, v->name[hit], sizeof v->name[hit]);
        else if (lt__json_is(j, "chat_template")) read_template(v, j);
        else lt__json_skip(j);
    }
}

static lt_status load_config(vocab *v)
{
    lt__hf *h = v->h;
    char path[PATH_BYTES], *text;
    size_t n;
    lt__json j;

    if (lt__hf_has(h, "tokenizer_config.json") && lt__hf_path(h, "tokenizer_config.json", path, sizeof path)) {
        TRY(lt__mf_read_text(h->f->ctx, path, TOKENIZER_CONFIG_MAX, &text, &n, h->err));
        lt__json_init(&j, h->f->ctx, path, text, n);
        read_config(v, &j);
        lt_status s = lt__json_done(&j, h->err);
        lt__free(h->f->ctx, text, n);
        TRY(s);
    }
    if (lt__hf_has(h, "chat_template.jinja") && lt__hf_path(h, "chat_template.jinja", path, sizeof path)) {
        TRY(lt__mf_read_text(h->f->ctx, path, TOKENIZER_CONFIG_MAX, &text, &n, h->err));
        v->template = lt__mf_strndup(h->f, text, n);
        v->template_n = n;
        lt__free(h->f->ctx, text, n);
        if (!v->template) return lt__fail_oom(h->err, n, "a chat template");
    }
    return LT_OK;
}

/* ---- keys ---- */

static lt_status put_array(lt__hf *h, const char *name, lt_key_type elem, const void *p, const uint32_t *len, uint64_t n)
{
    char *k = lt__mf_strndup(h->f, name, strlen(name));
    if (!k) return lt__fail_oom(h->err, strlen(name), "a key");
    return lt__mf_add_key(h->f, &(lt_key){.name = k, .type = LT_KEY_ARRAY, .elem_type = elem, .n = n, .v.u = p, .s_len = len}, h->err);
}

static bool find_token(const vocab *v, const char *s, uint64_t *id)
{
    size_t n = strlen(s);
    for (uint64_t i = 0; n && i < v->n; i++)
        if (v->len[i] == n && memcmp(v->text[i], s, n) == 0) return *id = i, true;
    return false;
}

/* Ids of one key of config.json or generation_config.json, a number or a list, added to ids. */
static lt_status add_ids(const vocab *v, json_t *o, const char *name, uint64_t *ids, size_t *n, size_t max)
{
    json_t *a = json_object_get(o, name);
    size_t count = json_is_array(a) ? json_array_size(a) : json_is_integer(a);
    for (size_t i = 0; i < count; i++) {
        json_t *x = json_is_array(a) ? json_array_get(a, i) : a;
        json_int_t id = json_integer_value(x);
        size_t k = 0;
        if (!json_is_integer(x) || id < 0 || (uint64_t)id >= v->n)
            return lt__fail(v->h->err, LT_E_FORMAT, "%s: %s is %" JSON_INTEGER_FORMAT ", but there are only %" PRIu64 " tokens", lt__path_tail(v->h->dir),
                            name, id, v->n);
        while (k < *n && ids[k] != (uint64_t)id) k++;
        if (k < *n) continue;
        if (*n == max) return lt__fail(v->h->err, LT_E_FORMAT, "%s: %s lists more than %zu tokens", lt__path_tail(v->h->dir), name, max);
        ids[(*n)++] = (uint64_t)id;
    }
    return LT_OK;
}

static lt_status put_ends(vocab *v)
{
    lt__hf *h = v->h;
    uint64_t ids[64], id, *copy;
    size_t n = 0;

    if (find_token(v, v->name[1], &id)) ids[n++] = id;
    TRY(add_ids(v, h->generation, "eos_token_id", ids, &n, 64));
    TRY(add_ids(v, h->text, "eos_token_id", ids, &n, 64));
    if (h->text != h->config) TRY(add_ids(v, h->config, "eos_token_id", ids, &n, 64));
    if (!n) return LT_OK;
    copy = lt__mf_take(h->f, n * sizeof *copy, 8);
    if (!copy) return lt__fail_oom(h->err, n * sizeof *copy, "a key");
    memcpy(copy, ids, n * sizeof *copy);
    TRY(lt__mf_put_u64(h->f, "tokenizer.ggml.eos_token_id", ids[0], h->err));
    if (n > 1) TRY(lt__mf_put_u64(h->f, "tokenizer.ggml.eot_token_id", ids[1], h->err));
    return put_array(h, "tokenizer.ggml.eos_token_ids", LT_KEY_UINT, copy, NULL, n);
}

static lt_status put_specials(vocab *v)
{
    lt__hf *h = v->h;
    uint64_t id, ids[1];
    size_t n = 0;

    if (find_token(v, v->name[0], &id)) ids[n++] = id;
    else TRY(add_ids(v, h->text, "bos_token_id", ids, &n, 1));
    if (n) TRY(lt__mf_put_u64(h->f, "tokenizer.ggml.bos_token_id", ids[0], h->err));
    TRY(put_ends(v));
    if (find_token(v, v->name[2][0] ? v->name[2] : v->unk, &id)) TRY(lt__mf_put_u64(h->f, "tokenizer.ggml.unknown_token_id", id, h->err));
    if (find_token(v, v->name[3], &id)) TRY(lt__mf_put_u64(h->f, "tokenizer.ggml.padding_token_id", id, h->err));
    TRY(lt__mf_put_bool(h->f, "tokenizer.ggml.add_bos_token", n && (v->add[0] < 0 ? v->starts : v->add[0] == 1), h->err));
    TRY(lt__mf_put_bool(h->f, "tokenizer.ggml.add_eos_token", v->add[1] < 0 ? v->ends : v->add[1] == 1, h->err));
    TRY(lt__mf_put_bool(h->f, "tokenizer.ggml.add_space_prefix", v->space_prefix, h->err));
    if (v->nfc) TRY(lt__mf_put_bool(h->f, "lowtide.tokenizer.nfc", true, h->err));
    if (v->ignore_merges) TRY(lt__mf_put_bool(h->f, "lowtide.tokenizer.ignore_merges", true, h->err));
    return v->template ? lt__mf_put_str(h->f, "tokenizer.chat_template", v->template, v->template_n, h->err) : LT_OK;
}

static lt_status settle_types(vocab *v)
{
    char pad[32];
    for (uint64_t i = 0; i < v->n; i++) {
        if (!v->text[i]) { /* a hole: an id that no token has */
            int n = snprintf(pad, sizeof pad, "[PAD%" PRIu64 "]", i);
            v->text[i] = lt__mf_strndup(v->h->f, pad, (size_t)n);
            if (!v->text[i]) return lt__fail_oom(v->h->err, (size_t)n, "a vocabulary");
            v->len[i] = (uint32_t)n;
            v->type[i] = TYPE_UNUSED;
        }
        const char *s = v->text[i];
        if (v->byte_fallback && v->len[i] == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>') v->type[i] = TYPE_BYTE;
        if (v->unk[0] && strcmp(s, v->unk) == 0 && !v->byte_level) v->type[i] = TYPE_UNKNOWN;
    }
    return LT_OK;
}

static lt_status put_vocab(vocab *v)
{
    lt__hf *h = v->h;
    bool spm;

    if (v->skipped)
        lt__log(h->f->ctx, LT_LOG_WARN, "format", "%s/tokenizer.json: %" PRIu64 " tokens have ids beyond the %" PRIu64 " rows of the embedding matrix and were left out",
                lt__path_tail(h->dir), v->skipped, h->vocab);
    if (strcmp(v->model_type, "BPE") != 0 || v->n == 0) {
        lt__log(h->f->ctx, LT_LOG_WARN, "format", "%s/tokenizer.json: the model type %s is not read", lt__path_tail(h->dir), v->model_type);
        return lt__mf_put_str(h->f, "tokenizer.ggml.model", v->model_type, strlen(v->model_type), h->err);
    }
    TRY(read_rules(v));
    TRY(settle_types(v));
    spm = !v->byte_level && v->byte_fallback;
    const char *model = spm ? "llama" : v->byte_level ? "gpt2" : "plain-bpe";
    TRY(lt__mf_put_str(h->f, "tokenizer.ggml.model", model, strlen(model), h->err));
    TRY(lt__mf_put_str(h->f, "tokenizer.ggml.pre", v->pre, strlen(v->pre), h->err));
    TRY(put_array(h, "tokenizer.ggml.tokens", LT_KEY_STRING, v->text, v->len, v->n));
    TRY(put_array(h, "tokenizer.ggml.token_type", LT_KEY_INT, v->type, NULL, v->n));
    if (spm) {
        TRY(make_scores(v));
        TRY(put_array(h, "tokenizer.ggml.scores", LT_KEY_FLOAT, v->score, NULL, v->n));
    } else
        TRY(put_array(h, "tokenizer.ggml.merges", LT_KEY_STRING, v->merge, v->merge_len, v->n_merges));
    return put_specials(v);
}

static lt_status alloc_vocab(vocab *v)
{
    lt_modelfile *f = v->h->f;
    size_t n = (size_t)v->h->vocab;

    if (n > UINT32_MAX / 4)
        return lt__fail(v->h->err, LT_E_FORMAT, "%s: the embedding matrix has %zu rows, more than any vocabulary", lt__path_tail(v->h->dir), n);
    v->text = lt__mf_take(f, n * sizeof *v->text, 8);
    v->type = lt__mf_take(f, n * sizeof *v->type, 8);
    v->score = lt__mf_take(f, n * sizeof *v->score, 8);
    v->len = lt__mf_take(f, n * sizeof *v->len, 8);
    v->from = lt__mf_take(f, n, 1);
    if (!v->text || !v->type || !v->score || !v->len || !v->from) return lt__fail_oom(v->h->err, n * 29, "a vocabulary");
    memset(v->text, 0, n * sizeof *v->text);
    memset(v->from, 0, n);
    return LT_OK;
}

static lt_status read_tokenizer(vocab *v)
{
    lt__hf *h = v->h;
    char path[PATH_BYTES], *text;
    size_t n;
    lt_status s;

    if (!lt__hf_path(h, "tokenizer.json", path, sizeof path)) return lt__fail(h->err, LT_E_INVALID, "the path of tokenizer.json is too long");
    TRY(lt__mf_read_text(h->f->ctx, path, TOKENIZER_MAX, &text, &n, h->err));
    lt__json_init(&v->j, h->f->ctx, path, text, n);
    s = alloc_vocab(v);
    if (s == LT_OK) read_all(v);
    lt_status js = lt__json_done(&v->j, s == LT_OK ? h->err : NULL);
    if (s == LT_OK) s = js;
    if (s == LT_OK) s = put_vocab(v); /* its rules are slices of text */
    lt__free(h->f->ctx, text, n);
    return s;
}

lt_status lt__hf_tokenizer(lt__hf *h)
{
    lt_status s;
    vocab *v;

    if (!lt__hf_has(h, "tokenizer.json")) {
        lt__log(h->f->ctx, LT_LOG_WARN, "format", "%s has no tokenizer.json: its text can't be tokenized", lt__path_tail(h->dir));
        return LT_OK;
    }
    v = lt__zalloc(h->f->ctx, sizeof *v);
    if (!v) return lt__fail_oom(h->err, sizeof *v, "a vocabulary");
    v->h = h;
    v->add[0] = v->add[1] = -1;
    s = load_config(v);
    if (s == LT_OK) s = read_tokenizer(v);
    lt__free(h->f->ctx, v, sizeof *v);
    return s;
}
