#include "format/modelfile_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/reader.h"
#include "format/json.h"

enum { HEADER_MAX = 100 * 1000 * 1000 }; /* of the format's own reader */

static const struct { const char *name; uint32_t bits; int dtype; } types[] = {
    {"F32", 32, LT_DTYPE_F32}, {"F16", 16, LT_DTYPE_F16}, {"BF16", 16, LT_DTYPE_BF16}, {"I32", 32, LT_DTYPE_I32},
    {"I8", 8, LT_DTYPE_I8}, {"F64", 64, -1}, {"I64", 64, -1}, {"U64", 64, -1}, {"U32", 32, -1}, {"I16", 16, -1},
    {"U16", 16, -1}, {"U8", 8, -1}, {"BOOL", 8, -1}, {"F8_E4M3", 8, -1}, {"F8_E5M2", 8, -1}, {"F8_E8M0", 8, -1},
    {"F4", 4, -1}, {"C64", 64, -1}, {"F6_E2M3", 6, -1}, {"F6_E3M2", 6, -1},
};

typedef struct entry {
    lt_tensor_info t;
    char     type[24];
    uint64_t elems, begin, end;
    unsigned seen; /* bits: dtype, shape, data_offsets */
} entry;

typedef struct header {
    lt_modelfile *f;
    lt__json      j;
    lt__mf_span  *spans; /* of this file's tensors, relative to the data */
    size_t        n_spans, cap_spans;
    uint64_t      data, data_bytes;
    uint32_t      part;
    bool          meta, seen_meta;
} header;

/* ---- one tensor ---- */

static bool read_shape(header *h, entry *e)
{
    uint64_t d, dims = 0;
    uint64_t outer = 1; /* all dimensions but the last three, as one */
    lt__json *j = &h->j;

    e->elems = 1;
    if (!lt__json_array(j)) return false;
    while (lt__json_item(j)) {
        if (!lt__json_u64(j, &d)) return false;
        if (d == 0) return lt__json_fail(j, "tensor %.80s has a dimension of 0; at least 1 was expected", e->t.name);
        if (!lt__mul_u64(e->elems, d, &e->elems) || e->elems > INT64_MAX)
            return lt__json_fail(j, "the dimensions of tensor %.80s multiply to more than 2^63 elements", e->t.name);
        if (dims >= 4) {
            outer *= e->t.dim[0]; /* at most elems */
            memmove(e->t.dim, e->t.dim + 1, 3 * sizeof e->t.dim[0]);
            e->t.dim[3] = d;
        } else
            e->t.dim[dims] = d;
        dims++;
    }
    e->t.dim[0] *= outer;
    if (dims == 0) e->t.dim[dims++] = 1; /* a scalar is a vector of one */
    e->t.ndim = (uint32_t)lt__min_u64(dims, 4);
    return j->err.status == LT_OK;
}

static bool read_offsets(header *h, entry *e)
{
    lt__json *j = &h->j;
    if (!lt__json_array(j) || !lt__json_item(j) || !lt__json_u64(j, &e->begin) || !lt__json_item(j) || !lt__json_u64(j, &e->end) ||
        lt__json_item(j))
        return lt__json_fail(j, "data_offsets of tensor %.80s is not a pair of numbers", e->t.name);
    return j->err.status == LT_OK;
}

static bool read_entry(header *h, entry *e)
{
    lt__json *j = &h->j;
    if (!lt__json_object(j)) return false;
    while (lt__json_key(j)) {
        unsigned bit = lt__json_is(j, "dtype") ? 1 : lt__json_is(j, "shape") ? 2 : lt__json_is(j, "data_offsets") ? 4 : 0;
        if (e->seen & bit) return lt__json_fail(j, "tensor %.80s says %.*s twice", e->t.name, (int)j->str_n, j->str);
        e->seen |= bit;
        if (bit == 2 && !read_shape(h, e)) return false;
        if (bit == 4 && !read_offsets(h, e)) return false;
        if (bit == 0 && !lt__json_skip(j)) return false;
        if (bit != 1) continue;
        if (!lt__json_string(j)) return false;
        if (j->str_n == 0 || j->str_n >= sizeof e->type || !lt__mf_name_ok(j->str, j->str_n))
            return lt__json_fail(j, "the dtype of tensor %.80s is not a short name", e->t.name);
        memcpy(e->type, j->str, j->str_n);
    }
    if (j->err.status == LT_OK && e->seen != 7)
        return lt__json_fail(j, "tensor %.80s has no %s", e->t.name, !(e->seen & 1) ? "dtype" : !(e->seen & 2) ? "shape" : "data_offsets");
    return j->err.status == LT_OK;
}

static bool check_entry(header *h, entry *e)
{
    lt__json *j = &h->j;
    uint64_t bits;
    size_t i = 0, n = sizeof types / sizeof *types;

    if (e->begin > e->end || e->end > h->data_bytes)
        return lt__json_fail(j, "tensor %.80s covers bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64 " bytes of data", e->t.name, e->begin,
                             e->end, h->data_bytes);
    while (i < n && strcmp(types[i].name, e->type) != 0) i++;
    e->t.dtype = i < n && types[i].dtype >= 0 ? (lt_dtype)types[i].dtype : LT_DTYPE_COUNT;
    e->t.bytes = e->end - e->begin;
    e->t.offset = h->data + e->begin;
    e->t.file = h->part;
    e->t.type_name = i < n ? types[i].name : lt__mf_strndup(h->f, e->type, strlen(e->type));
    if (!e->t.type_name) return lt__fail_oom(&j->err, sizeof e->type, "a type's name"), false;
    if (i == n) return true;
    if (!lt__mul_u64(e->elems, types[i].bits, &bits) || bits % 8 || bits / 8 != e->t.bytes)
        return lt__json_fail(j, "tensor %.80s has %" PRIu64 " elements of type %s, but data_offsets give it %" PRIu64 " bytes", e->t.name,
                             e->elems, e->type, e->t.bytes);
    return true;
}

static bool read_tensor(header *h)
{
    lt__json *j = &h->j;
    entry e = {.t = {.name = lt__mf_strndup(h->f, j->str, j->str_n)}};

    if (!e.t.name) return lt__fail_oom(&j->err, j->str_n, "a tensor's name"), false;
    if (j->str_n == 0 || j->str_n > 4096 || !lt__mf_name_ok(j->str, j->str_n))
        return lt__json_fail(j, "a tensor's name is empty, longer than 4096 bytes, or holds a control character");
    if (!read_entry(h, &e) || !check_entry(h, &e)) return false;
    if (lt__grow(h->f->ctx, (void **)&h->spans, &h->cap_spans, h->n_spans + 1, sizeof *h->spans, &j->err) != LT_OK) return false;
    h->spans[h->n_spans++] = (lt__mf_span){e.begin, e.end, h->f->n_tensors};
    return lt__mf_add_tensor(h->f, &e.t, &j->err) == LT_OK;
}

static bool read_metadata(header *h)
{
    lt__json *j = &h->j;
    if (h->seen_meta) return lt__json_fail(j, "__metadata__ appears twice");
    h->seen_meta = true;
    if (!lt__json_object(j)) return false;
    while (lt__json_key(j)) {
        char name[256];
        if (j->str_n == 0 || j->str_n >= sizeof name || !lt__mf_name_ok(j->str, j->str_n))
            return lt__json_fail(j, "a key of __metadata__ is empty, longer than 255 bytes, or holds a control character");
        memcpy(name, j->str, j->str_n);
        name[j->str_n] = 0;
        if (lt__json_peek(j) != LT__JSON_STRING) return lt__json_fail(j, "%.80s in __metadata__ is not a string", name);
        if (!lt__json_string(j)) return false;
        if (h->meta && lt__mf_put_str(h->f, name, j->str, j->str_n, &j->err) != LT_OK) return false;
    }
    return j->err.status == LT_OK;
}

/* The format wants every byte of the data to belong to one tensor: what no tensor names could hide another file. */
static lt_status check_tiling(header *h, const char *path, lt_err *err)
{
    uint64_t at = 0;
    lt__mf_sort_spans(h->spans, h->n_spans);
    for (size_t i = 0; i < h->n_spans; i++) {
        const lt__mf_span *v = &h->spans[i];
        if (v->begin < at)
            return lt__fail(err, LT_E_FORMAT, "%s: tensors %.80s and %.80s overlap at byte %" PRIu64 " of the data", lt__path_tail(path),
                            h->f->tensors[h->spans[i - 1].tensor].name, h->f->tensors[v->tensor].name, v->begin);
        if (v->begin > at)
            return lt__fail(err, LT_E_FORMAT, "%s: bytes %" PRIu64 " to %" PRIu64 " of the data belong to no tensor", lt__path_tail(path), at,
                            v->begin);
        at = v->end;
    }
    if (at != h->data_bytes)
        return lt__fail(err, LT_E_FORMAT, "%s: the tensors end at byte %" PRIu64 " of the data, but there are %" PRIu64, lt__path_tail(path), at,
                        h->data_bytes);
    return LT_OK;
}

static lt_status read_header(header *h, const char *path, const char *text, size_t n, lt_err *err)
{
    lt_status s;
    lt__json_init(&h->j, h->f->ctx, path, text, n);
    if (lt__json_object(&h->j))
        while (lt__json_key(&h->j))
            if (!(lt__json_is(&h->j, "__metadata__") ? read_metadata(h) : read_tensor(h))) break;
    s = lt__json_done(&h->j, err);
    if (s == LT_OK) s = check_tiling(h, path, err);
    return s;
}

lt_status lt__safetensors_open(lt_modelfile *f, const char *path, bool meta, lt_err *err)
{
    lt__reader r;
    uint64_t n = 0;
    char *text = NULL;
    header h = {.f = f, .meta = meta};
    lt_status s = lt__reader_open(f->ctx, path, &r, err);

    if (s != LT_OK) return s;
    s = lt__reader_u64(&r, &n, "the header's length", err);
    if (s != LT_OK) goto done;
    if (n < 2 || n > HEADER_MAX || n > lt__reader_left(&r)) {
        s = lt__fail(err, LT_E_FORMAT, "%s: the header claims %" PRIu64 " bytes; 2 to %" PRIu64 " was expected", lt__path_tail(path), n,
                     lt__min_u64(HEADER_MAX, lt__reader_left(&r)));
        goto done;
    }
    text = lt__alloc(f->ctx, (size_t)n);
    if (!text) {
        s = lt__fail_oom(err, (size_t)n, "a safetensors header");
        goto done;
    }
    s = lt__reader_bytes(&r, text, (size_t)n, "the header", err);
    if (s == LT_OK && text[0] != '{')
        s = lt__fail(err, LT_E_FORMAT, "%s: the header begins with byte 0x%02x; '{' was expected", lt__path_tail(path), (unsigned char)text[0]);
    if (s == LT_OK) s = lt__mf_add_part(f, path, r.size, &h.part, err);
    h.data = 8 + n;
    h.data_bytes = r.size - h.data;
    if (s == LT_OK) s = read_header(&h, path, text, (size_t)n, err);
    if (s == LT_OK) snprintf(f->format, sizeof f->format, "safetensors");
done:
    lt__free(f->ctx, h.spans, h.cap_spans * sizeof *h.spans);
    lt__free(f->ctx, text, (size_t)n);
    lt__reader_close(&r);
    return s;
}

/* ---- shards ---- */

enum { INDEX_MAX = 64 * 1024 * 1024 };

typedef struct shards { lt_modelfile *f; const char *path; lt__json j; char name[256]; uint64_t n; } shards;

/* Reads "tensor": "file" pairs; opens files at their first mention, or checks that each tensor is in its file. */
static bool read_pair(shards *x, bool check)
{
    lt__json *j = &x->j;
    lt_modelfile *f = x->f;
    char full[4096], tensor[256];
    const char *slash = strrchr(x->path, '/');
    int dir = slash ? (int)(slash - x->path) + 1 : 0;

    snprintf(tensor, sizeof tensor, "%.*s", (int)lt__min_u64(j->str_n, 255), j->str);
    if (!lt__json_string(j)) return false;
    if (j->str_n == 0 || j->str_n >= sizeof x->name || memchr(j->str, '/', j->str_n) || !lt__mf_name_ok(j->str, j->str_n) || j->str[0] == '.')
        return lt__json_fail(j, "the file of tensor %.80s is not a plain file name", tensor);
    bool same = strlen(x->name) == j->str_n && memcmp(x->name, j->str, j->str_n) == 0;
    memcpy(x->name, j->str, j->str_n);
    x->name[j->str_n] = 0;
    if (same && !check) return true;
    if (snprintf(full, sizeof full, "%.*s%s", dir, x->path, x->name) >= (int)sizeof full)
        return lt__json_fail(j, "the path of shard %.80s is too long", x->name);
    if (check) {
        const lt_tensor_info *t = lt_modelfile_tensor(f, tensor);
        if (!t || strcmp(f->parts[t->file].path, full) != 0)
            return lt__json_fail(j, "tensor %.80s should be in %.80s, but is %s", tensor, x->name, t ? "in another file" : "nowhere");
        return true;
    }
    for (size_t i = 0; i < f->n_parts; i++)
        if (strcmp(f->parts[i].path, full) == 0) return true;
    lt_status s = lt__safetensors_open(f, full, false, &j->err);
    if (s == LT_E_NOT_FOUND)
        lt__fail(&j->err, s, "%s names the shard %.100s, which is missing", lt__path_tail(x->path), x->name);
    return s == LT_OK;
}

static lt_status walk_index(shards *x, const char *text, size_t n, bool check, lt_err *err)
{
    lt__json *j = &x->j;
    bool seen = false;

    lt__json_init(j, x->f->ctx, x->path, text, n);
    x->name[0] = 0;
    if (lt__json_object(j))
        while (lt__json_key(j)) {
            if (!lt__json_is(j, "weight_map")) {
                if (!lt__json_skip(j)) break;
                continue;
            }
            if (seen) lt__json_fail(j, "weight_map appears twice");
            seen = true;
            if (!lt__json_object(j)) break;
            while (lt__json_key(j))
                if (!read_pair(x, check)) break;
        }
    if (j->err.status == LT_OK && !x->f->n_parts) lt__json_fail(j, "there is no weight_map, or an empty one");
    return lt__json_done(j, err);
}

lt_status lt__safetensors_open_index(lt_modelfile *f, const char *path, lt_err *err)
{
    char *text;
    size_t n;
    shards x = {.f = f, .path = path};
    lt_status s = lt__mf_read_text(f->ctx, path, INDEX_MAX, &text, &n, err);

    if (s != LT_OK) return s;
    s = walk_index(&x, text, n, false, err);
    if (s == LT_OK) s = lt__mf_index_names(f, true, err);
    if (s == LT_OK) s = walk_index(&x, text, n, true, err);
    lt__free(f->ctx, text, n);
    return s;
}
