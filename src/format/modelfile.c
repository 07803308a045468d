#include "format/modelfile_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "base/reader.h"

enum { BLOCK_BYTES = 64 * 1024 };

/* ---- memory that lives until close ---- */

static lt__mf_block *add_block(lt_modelfile *f, size_t payload)
{
    size_t bytes;
    if (__builtin_add_overflow(payload, sizeof(lt__mf_block), &bytes)) return NULL;
    lt__mf_block *b = lt__alloc(f->ctx, bytes);
    if (!b) return NULL;
    *b = (lt__mf_block){.next = f->blocks, .bytes = bytes, .used = sizeof *b};
    f->blocks = b;
    return b;
}

void *lt__mf_take(lt_modelfile *f, size_t bytes, size_t align)
{
    lt__mf_block *b = f->blocks;
    size_t at = b ? (size_t)lt__round_up(b->used, align) : 0;
    if (!b || at > b->bytes || bytes > b->bytes - at) {
        size_t want;
        if (__builtin_add_overflow(bytes, align, &want)) return NULL;
        b = add_block(f, want > BLOCK_BYTES ? want : BLOCK_BYTES);
        if (!b) return NULL;
        at = (size_t)lt__round_up(b->used, align);
    }
    b->used = at + bytes;
    return (char *)b + at;
}

char *lt__mf_strndup(lt_modelfile *f, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? lt__mf_take(f, n + 1, 1) : NULL;
    if (!p) return NULL;
    if (n) memcpy(p, s, n);
    p[n] = 0;
    return p;
}

bool lt__mf_name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7f) return false;
        if (c < 0x80) {
            i++;
            continue;
        }
        utf8proc_int32_t cp;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &cp);
        if (k <= 0) return false;
        i += (size_t)k;
    }
    return true;
}

/* ---- filling ---- */

lt_status lt__mf_add_part(lt_modelfile *f, const char *path, uint64_t bytes, uint32_t *out, lt_err *err)
{
    lt_status s = lt__grow(f->ctx, (void **)&f->parts, &f->cap_parts, f->n_parts + 1, sizeof *f->parts, err);
    if (s != LT_OK) return s;
    char *copy = lt__mf_strndup(f, path, strlen(path));
    if (!copy) return lt__fail_oom(err, strlen(path) + 1, "a file name");
    f->parts[f->n_parts] = (lt__mf_part){copy, bytes};
    *out = (uint32_t)f->n_parts++;
    return LT_OK;
}

lt_status lt__mf_add_tensor(lt_modelfile *f, const lt_tensor_info *t, lt_err *err)
{
    lt_status s = lt__grow(f->ctx, (void **)&f->tensors, &f->cap_tensors, f->n_tensors + 1, sizeof *t, err);
    if (s == LT_OK) f->tensors[f->n_tensors++] = *t;
    return s;
}

lt_status lt__mf_add_key(lt_modelfile *f, const lt_key *k, lt_err *err)
{
    lt_status s = lt__grow(f->ctx, (void **)&f->keys, &f->cap_keys, f->n_keys + 1, sizeof *k, err);
    if (s == LT_OK) f->keys[f->n_keys++] = *k;
    return s;
}

static lt_status put_scalar(lt_modelfile *f, const char *name, lt_key_type type, const void *v, size_t bytes, lt_err *err)
{
    char *n = lt__mf_strndup(f, name, strlen(name));
    void *p = lt__mf_take(f, bytes, 8);
    if (!n || !p) return lt__fail_oom(err, bytes, "a key");
    memcpy(p, v, bytes);
    return lt__mf_add_key(f, &(lt_key){.name = n, .type = type, .elem_type = type, .n = 1, .v.u = p}, err);
}

lt_status lt__mf_put_u64(lt_modelfile *f, const char *name, uint64_t v, lt_err *err)
{
    return put_scalar(f, name, LT_KEY_UINT, &v, sizeof v, err);
}

lt_status lt__mf_put_f64(lt_modelfile *f, const char *name, double v, lt_err *err)
{
    return put_scalar(f, name, LT_KEY_FLOAT, &v, sizeof v, err);
}

lt_status lt__mf_put_bool(lt_modelfile *f, const char *name, bool v, lt_err *err)
{
    return put_scalar(f, name, LT_KEY_BOOL, &v, sizeof v, err);
}

lt_status lt__mf_put_str(lt_modelfile *f, const char *name, const char *s, size_t n, lt_err *err)
{
    char *k = lt__mf_strndup(f, name, strlen(name)), *text = lt__mf_strndup(f, s, n);
    const char **p = lt__mf_take(f, sizeof *p, sizeof *p);
    uint32_t *len = lt__mf_take(f, sizeof *len, sizeof *len);
    if (!k || !text || !p || !len) return lt__fail_oom(err, n + 1, "a key");
    *p = text;
    *len = (uint32_t)n;
    return lt__mf_add_key(f, &(lt_key){.name = k, .type = LT_KEY_STRING, .elem_type = LT_KEY_STRING, .n = 1, .v.s = p, .s_len = len}, err);
}

/* Heap sort: in place, no allocation outside the context's account, no bad case. */
static void sift_down(lt__mf_span *v, size_t i, size_t n)
{
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && v[c].begin < v[c + 1].begin) c++;
        if (v[i].begin >= v[c].begin) return;
        lt__mf_span t = v[i];
        v[i] = v[c];
        v[c] = t;
    }
}

void lt__mf_sort_spans(lt__mf_span *v, size_t n)
{
    size_t i = 1;
    while (i < n && v[i - 1].begin <= v[i].begin) i++;
    if (i >= n) return; /* the usual file is in order */
    for (i = n / 2; i-- > 0;) sift_down(v, i, n);
    for (size_t end = n; end-- > 1;) {
        lt__mf_span t = v[0];
        v[0] = v[end];
        v[end] = t;
        sift_down(v, 0, end);
    }
}

/* ---- look-up ---- */

static uint64_t hash_name(uint64_t seed, const char *s)
{
    uint64_t h = seed;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return h ^ (h >> 32);
}

static const char *name_at(const lt_modelfile *f, bool tensors, uint64_t i)
{
    return tensors ? f->tensors[i].name : f->keys[i].name;
}

/* The slot that holds `name`, or the empty one where it belongs. */
static uint64_t find_slot(const lt_modelfile *f, bool tensors, const char *name)
{
    const lt__mf_index *x = tensors ? &f->tensor_index : &f->key_index;
    uint64_t at = hash_name(f->seed, name) & (x->n - 1);
    while (x->slots[at] && strcmp(name_at(f, tensors, x->slots[at] - 1), name) != 0) at = (at + 1) & (x->n - 1);
    return at;
}

lt_status lt__mf_index_names(lt_modelfile *f, bool tensors, lt_err *err)
{
    lt__mf_index *x = tensors ? &f->tensor_index : &f->key_index;
    size_t count = tensors ? f->n_tensors : f->n_keys;

    if (count >= UINT32_MAX / 4)
        return lt__fail(err, LT_E_FORMAT, "%s holds %zu %s, more than any model has", lt__path_tail(f->parts[0].path), count,
                        tensors ? "tensors" : "keys");
    lt__free(f->ctx, x->slots, (size_t)x->n * sizeof *x->slots);
    x->slots = NULL;
    x->n = 8;
    while (x->n < 2 * count) x->n *= 2;
    x->slots = lt__alloc_array(f->ctx, (size_t)x->n, sizeof *x->slots);
    if (!x->slots) return lt__fail_oom(err, (size_t)x->n * sizeof *x->slots, "the index of names");
    for (size_t i = 0; i < count; i++) {
        uint64_t at = find_slot(f, tensors, name_at(f, tensors, i));
        if (x->slots[at])
            return lt__fail(err, LT_E_FORMAT, "%s: the %s %.80s appears twice; names must be unique",
                            lt__path_tail(f->parts[tensors ? f->tensors[i].file : 0].path), tensors ? "tensor" : "key",
                            name_at(f, tensors, i));
        x->slots[at] = (uint32_t)i + 1;
    }
    return LT_OK;
}

lt_status lt__mf_read_text(lt_ctx *ctx, const char *path, uint64_t max, char **text, size_t *n, lt_err *err)
{
    lt__reader r;
    lt_status s = lt__reader_open(ctx, path, &r, err);

    *text = NULL;
    if (s != LT_OK) return s;
    *n = (size_t)r.size;
    if (r.size == 0 || r.size > max)
        s = lt__fail(err, LT_E_FORMAT, "%s is %" PRIu64 " bytes long; 1 to %" PRIu64 " was expected", lt__path_tail(path), r.size, max);
    else if (!(*text = lt__alloc(ctx, *n)))
        s = lt__fail_oom(err, *n, "a text file");
    else
        s = lt__reader_bytes(&r, *text, *n, "the text", err);
    if (s != LT_OK) {
        lt__free(ctx, *text, *n);
        *text = NULL;
    }
    lt__reader_close(&r);
    return s;
}

/* ---- what the tokenizer's keys owe one another ---- */

static const char *type_word(lt_key_type t)
{
    static const char *const words[] = {"boolean", "integer", "unsigned integer", "float", "string", "array"};
    return (unsigned)t < sizeof words / sizeof *words ? words[t] : "?";
}

static lt_status check_parallel(const lt_modelfile *f, const char *name, uint64_t tokens, bool numbers, lt_err *err)
{
    const lt_key *k = lt_modelfile_key(f, name);
    if (!k) return LT_OK;
    if (k->type != LT_KEY_ARRAY || (k->elem_type == LT_KEY_STRING) == numbers)
        return lt__fail(err, LT_E_FORMAT, "%s: %s is %s%s; an array of %s was expected", lt__path_tail(f->parts[0].path), name,
                        k->type == LT_KEY_ARRAY ? "an array of type " : "of type ",
                        type_word(k->type == LT_KEY_ARRAY ? k->elem_type : k->type), numbers ? "numbers" : "strings");
    if (numbers && k->n != tokens)
        return lt__fail(err, LT_E_FORMAT, "%s: %s has %" PRIu64 " elements, but tokenizer.ggml.tokens has %" PRIu64,
                        lt__path_tail(f->parts[0].path), name, k->n, tokens);
    return LT_OK;
}

static lt_status check_vocabulary(const lt_modelfile *f, lt_err *err)
{
    static const char prefix[] = "tokenizer.ggml.", suffix[] = "_token_id";
    const lt_key *tokens = lt_modelfile_key(f, "tokenizer.ggml.tokens");
    lt_status s;

    if (!tokens) return LT_OK;
    if ((s = check_parallel(f, "tokenizer.ggml.tokens", 0, false, err)) != LT_OK ||
        (s = check_parallel(f, "tokenizer.ggml.merges", 0, false, err)) != LT_OK ||
        (s = check_parallel(f, "tokenizer.ggml.scores", tokens->n, true, err)) != LT_OK ||
        (s = check_parallel(f, "tokenizer.ggml.token_type", tokens->n, true, err)) != LT_OK)
        return s;
    for (size_t i = 0; i < f->n_keys; i++) {
        const lt_key *k = &f->keys[i];
        size_t n = strlen(k->name);
        uint64_t id;
        if (n < sizeof prefix + sizeof suffix || strncmp(k->name, prefix, sizeof prefix - 1) != 0 ||
            strcmp(k->name + n - (sizeof suffix - 1), suffix) != 0)
            continue;
        if (!lt_modelfile_u64(f, k->name, &id))
            return lt__fail(err, LT_E_FORMAT, "%s: %.80s is of type %s or negative; a token id was expected",
                            lt__path_tail(f->parts[0].path), k->name, type_word(k->type));
        if (id >= tokens->n)
            return lt__fail(err, LT_E_FORMAT, "%s: %.80s is %" PRIu64 ", but there are only %" PRIu64 " tokens",
                            lt__path_tail(f->parts[0].path), k->name, id, tokens->n);
    }
    return LT_OK;
}

/* ---- open and close ---- */

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* What a file that is no model most likely is, from its first bytes. */
static const char *guess_kind(const uint8_t *b, uint64_t n)
{
    if (n >= 4 && memcmp(b, "PK\3\4", 4) == 0) return " (a zip archive, perhaps a PyTorch checkpoint)";
    if (n >= 4 && (memcmp(b, "tjgg", 4) == 0 || memcmp(b, "fmgg", 4) == 0 || memcmp(b, "lmgg", 4) == 0))
        return " (GGML, the format before GGUF)";
    if (n >= 9 && memcmp(b, "version h", 9) == 0) return " (a Git LFS pointer; the real file was not fetched)";
    if (n >= 1 && (b[0] == '<' || b[0] == '{')) return " (text)";
    return "";
}

static lt_status open_file(lt_modelfile *f, const char *path, lt_err *err)
{
    uint8_t head[9] = {0};
    uint64_t header = 0, size;
    lt__reader r;
    lt_status s = lt__reader_open(f->ctx, path, &r, err);

    if (s != LT_OK) return s;
    size = r.size;
    s = lt__reader_bytes(&r, head, (size_t)lt__min_u64(sizeof head, size), "the first bytes", err);
    lt__reader_close(&r);
    if (s != LT_OK) return s;
    memcpy(&header, head, sizeof header);

    if (size >= 4 && memcmp(head, "GGUF", 4) == 0) return lt__gguf_open(f, path, err);
    if (ends_with(path, ".safetensors.index.json")) return lt__safetensors_open_index(f, path, err);
    if (ends_with(path, ".safetensors") || (size >= 9 && head[8] == '{' && header <= size - 8))
        return lt__safetensors_open(f, path, true, err);
    return lt__fail(err, LT_E_FORMAT,
                    "%s is neither GGUF nor safetensors: it is %" PRIu64 " bytes long and begins %02x %02x %02x %02x%s",
                    lt__path_tail(path), size, head[0], head[1], head[2], head[3], guess_kind(head, size));
}

static lt_status open_any(lt_modelfile *f, const char *path, lt_err *err)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;

    if (stat(path, &st) != 0) return lt__fail_errno(err, errno, "cannot open %s", lt__path_tail(path));
    if (S_ISDIR(st.st_mode)) return lt__hf_open(f, path, err);
    if (strcmp(base, "model.safetensors") == 0 || strcmp(base, "model.safetensors.index.json") == 0) {
        size_t n = slash ? (size_t)(slash - path) : 1;
        char *dir = lt__mf_strndup(f, slash ? path : ".", n ? n : 1);
        if (!dir) return lt__fail_oom(err, n + 1, "a file name");
        if (lt__hf_is_folder(dir)) return lt__hf_open(f, dir, err);
    }
    return open_file(f, path, err);
}

lt_status lt_modelfile_open(lt_ctx *ctx, const char *path, lt_modelfile **out, lt_err *err)
{
    lt_status s;
    lt_modelfile *f;

    if (!ctx || !path || !out) return lt__fail(err, LT_E_INVALID, "lt_modelfile_open needs a context, a path and an out");
    f = lt__zalloc(ctx, sizeof *f);
    if (!f) return lt__fail_oom(err, sizeof *f, "a model file");
    f->ctx = ctx;
    if (getrandom(&f->seed, sizeof f->seed, GRND_NONBLOCK) != (ssize_t)sizeof f->seed) f->seed = lt__now_ns();
    s = open_any(f, path, err);
    if (s == LT_OK) s = lt__mf_index_names(f, false, err);
    if (s == LT_OK) s = lt__mf_index_names(f, true, err);
    if (s == LT_OK) s = check_vocabulary(f, err);
    if (s != LT_OK) {
        lt_modelfile_close(f);
        return s;
    }
    *out = f;
    return LT_OK;
}

void lt_modelfile_close(lt_modelfile *f)
{
    if (!f) return;
    lt__free(f->ctx, f->parts, f->cap_parts * sizeof *f->parts);
    lt__free(f->ctx, f->tensors, f->cap_tensors * sizeof *f->tensors);
    lt__free(f->ctx, f->keys, f->cap_keys * sizeof *f->keys);
    lt__free(f->ctx, f->key_index.slots, (size_t)f->key_index.n * sizeof *f->key_index.slots);
    lt__free(f->ctx, f->tensor_index.slots, (size_t)f->tensor_index.n * sizeof *f->tensor_index.slots);
    for (lt__mf_block *b = f->blocks, *next; b; b = next) {
        next = b->next;
        lt__free(f->ctx, b, b->bytes);
    }
    lt__free(f->ctx, f, sizeof *f);
}

/* ---- accessors ---- */

const char *lt_modelfile_format(const lt_modelfile *f) { return f->format; }
uint32_t lt_modelfile_parts(const lt_modelfile *f) { return (uint32_t)f->n_parts; }
const char *lt_modelfile_part_path(const lt_modelfile *f, uint32_t part)
{
    return part < f->n_parts ? f->parts[part].path : NULL;
}
uint64_t lt_modelfile_part_bytes(const lt_modelfile *f, uint32_t part) { return part < f->n_parts ? f->parts[part].bytes : 0; }
uint64_t lt_modelfile_tensor_count(const lt_modelfile *f) { return f->n_tensors; }
const lt_tensor_info *lt_modelfile_tensor_at(const lt_modelfile *f, uint64_t i)
{
    return i < f->n_tensors ? &f->tensors[i] : NULL;
}
uint64_t lt_modelfile_key_count(const lt_modelfile *f) { return f->n_keys; }
const lt_key *lt_modelfile_key_at(const lt_modelfile *f, uint64_t i) { return i < f->n_keys ? &f->keys[i] : NULL; }

const lt_tensor_info *lt_modelfile_tensor(const lt_modelfile *f, const char *name)
{
    uint32_t at = f->tensor_index.slots[find_slot(f, true, name)];
    return at ? &f->tensors[at - 1] : NULL;
}

const lt_key *lt_modelfile_key(const lt_modelfile *f, const char *name)
{
    uint32_t at = f->key_index.slots[find_slot(f, false, name)];
    return at ? &f->keys[at - 1] : NULL;
}

const char *lt_modelfile_str(const lt_modelfile *f, const char *name, const char *dflt)
{
    const lt_key *k = lt_modelfile_key(f, name);
    return k && k->type == LT_KEY_STRING ? k->v.s[0] : dflt;
}

bool lt_modelfile_u64(const lt_modelfile *f, const char *name, uint64_t *out)
{
    const lt_key *k = lt_modelfile_key(f, name);
    if (k && k->type == LT_KEY_UINT) return *out = k->v.u[0], true;
    if (k && k->type == LT_KEY_INT && k->v.i[0] >= 0) return *out = (uint64_t)k->v.i[0], true;
    return false;
}

bool lt_modelfile_f64(const lt_modelfile *f, const char *name, double *out)
{
    const lt_key *k = lt_modelfile_key(f, name);
    if (k && k->type == LT_KEY_FLOAT) return *out = k->v.f[0], true;
    if (k && k->type == LT_KEY_UINT) return *out = (double)k->v.u[0], true;
    if (k && k->type == LT_KEY_INT) return *out = (double)k->v.i[0], true;
    return false;
}

bool lt_modelfile_bool(const lt_modelfile *f, const char *name, bool dflt)
{
    const lt_key *k = lt_modelfile_key(f, name);
    return k && k->type == LT_KEY_BOOL ? k->v.b[0] : dflt;
}
