#include "format/modelfile_impl.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/reader.h"

/* The header is walked twice: the first walk validates and counts, allocating nothing a count
 * in the file asks for; the second copies into one block of the size counted. The second walk checks as
 * much as the first, since the file may have changed between them. */

enum {
    KEY_MIN_BYTES = 8 + 1 + 4 + 1,            /* length, one letter, type, one byte */
    TENSOR_MIN_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* length, one letter, ndim, one dimension, type, offset */
    KEY_NAME_MAX = 65535,
    TENSOR_NAME_MAX = 63,
    ALIGN_MIN = 8,
    ALIGN_MAX = 1024 * 1024
};

enum gguf_type {
    G_U8, G_I8, G_U16, G_I16, G_U32, G_I32, G_F32, G_BOOL, G_STRING, G_ARRAY, G_U64, G_I64, G_F64, G_TYPES
};

static const struct { uint8_t bytes; uint8_t type; const char *name; } gguf_types[G_TYPES] = {
    [G_U8] = {1, LT_KEY_UINT, "u8"},     [G_I8] = {1, LT_KEY_INT, "i8"},          [G_U16] = {2, LT_KEY_UINT, "u16"},
    [G_I16] = {2, LT_KEY_INT, "i16"},    [G_U32] = {4, LT_KEY_UINT, "u32"},       [G_I32] = {4, LT_KEY_INT, "i32"},
    [G_F32] = {4, LT_KEY_FLOAT, "f32"},  [G_BOOL] = {1, LT_KEY_BOOL, "bool"},     [G_STRING] = {8, LT_KEY_STRING, "string"},
    [G_ARRAY] = {12, LT_KEY_ARRAY, "array"}, [G_U64] = {8, LT_KEY_UINT, "u64"},   [G_I64] = {8, LT_KEY_INT, "i64"},
    [G_F64] = {8, LT_KEY_FLOAT, "f64"},
};

typedef struct gguf_part {
    uint32_t version, file;
    uint64_t alignment, split_no, split_count, split_tensors;
    bool     has_split, has_split_tensors;
    uint64_t tensors; /* of this part */
} gguf_part;

typedef struct walk {
    lt_modelfile *f;
    lt__reader    r;
    lt_err       *err;
    gguf_part    *part;
    bool          build, keep_keys; /* keep_keys: of the first part only */
    uint64_t      need, left;       /* bytes the build will take, counted by the first walk; bytes of it left */
    char         *bump;
    uint64_t      at_item, n_keys, n_tensors;
    char          what[64];
    char          name[KEY_NAME_MAX + 1];
} walk;

#define FAIL(w, ...) lt__fail((w)->err, LT_E_FORMAT, __VA_ARGS__)
#define PATH(w) lt__path_tail((w)->r.path)

/* Counts in the first walk, takes in the second. */
static lt_status take(walk *w, uint64_t n, size_t elem, size_t align, void **out)
{
    uint64_t bytes;
    *out = NULL;
    if (!lt__mul_u64(n, elem, &bytes) || !lt__add_u64(bytes, align - 1, &bytes) || !lt__add_u64(w->need, bytes, &w->need))
        return FAIL(w, "%s: %s needs more bytes than can be counted", PATH(w), w->what);
    if (!w->build) return LT_OK;
    if (bytes > w->left) return lt__fail(w->err, LT_E_IO, "%s changed while it was read", PATH(w));
    char *p = (char *)lt__round_up((uintptr_t)w->bump, align);
    *out = p;
    w->left -= bytes;
    w->bump = p + n * elem;
    return LT_OK;
}

/* ---- values ---- */

static lt_status read_length(walk *w, uint64_t *n)
{
    lt_status s = lt__reader_u64(&w->r, n, w->what, w->err);
    if (s != LT_OK || (*n <= lt__reader_left(&w->r) && *n < UINT32_MAX)) return s;
    s = lt__reader_need(&w->r, *n, w->what, w->err);
    return s != LT_OK ? s : FAIL(w, "%s: %s is a string of %" PRIu64 " bytes; less than 4 GiB was expected", PATH(w), w->what, *n);
}

static lt_status skip_strings(walk *w, uint64_t n, uint64_t *bytes)
{
    lt_status s = LT_OK;
    uint64_t len;
    *bytes = n; /* of the terminators */
    for (uint64_t i = 0; i < n && s == LT_OK; i++) {
        s = read_length(w, &len);
        if (s == LT_OK) s = lt__reader_skip(&w->r, len, w->what, w->err);
        if (s == LT_OK) *bytes += len; /* at most the file's size */
    }
    return s;
}

static lt_status walk_strings(walk *w, uint64_t n, bool keep, lt_key *k)
{
    const char **text = NULL;
    uint32_t *lens = NULL;
    uint64_t bytes;
    void *p;
    lt_status s;

    if (keep && ((s = take(w, n, sizeof *text, sizeof *text, (void **)&text)) != LT_OK ||
                 (s = take(w, n, sizeof *lens, sizeof *lens, (void **)&lens)) != LT_OK))
        return s;
    if (!keep || !w->build) {
        s = skip_strings(w, n, &bytes);
        return s == LT_OK && keep ? take(w, bytes, 1, 1, &p) : s;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len;
        if ((s = read_length(w, &len)) != LT_OK || (s = take(w, len + 1, 1, 1, &p)) != LT_OK ||
            (s = lt__reader_bytes(&w->r, p, (size_t)len, w->what, w->err)) != LT_OK)
            return s;
        ((char *)p)[len] = 0;
        text[i] = p;
        lens[i] = (uint32_t)len;
    }
    k->v.s = text;
    k->s_len = lens;
    return LT_OK;
}

#define WIDEN(from, to) \
    for (size_t i = 0; i < n; i++) { from x; memcpy(&x, p + i * sizeof x, sizeof x); to y = (to)x; memcpy(out + 8 * i, &y, 8); } break

/* Numbers of the file's type as the widest of their kind. */
static void widen(uint32_t type, const uint8_t *p, uint8_t *out, size_t n)
{
    switch (type) {
    case G_U8: WIDEN(uint8_t, uint64_t);
    case G_U16: WIDEN(uint16_t, uint64_t);
    case G_U32: WIDEN(uint32_t, uint64_t);
    case G_I8: WIDEN(int8_t, int64_t);
    case G_I16: WIDEN(int16_t, int64_t);
    case G_I32: WIDEN(int32_t, int64_t);
    case G_F32: WIDEN(float, double);
    default: memcpy(out, p, n * 8); /* u64, i64, f64 */
    }
}

static lt_status walk_numbers(walk *w, uint32_t type, uint64_t n, bool keep, lt_key *k)
{
    size_t size = gguf_types[type].bytes, wide = type == G_BOOL ? 1 : 8;
    uint8_t chunk[4096], *out = NULL;
    uint64_t bytes;
    lt_status s;

    if (!lt__mul_u64(n, size, &bytes)) bytes = UINT64_MAX;
    if ((s = lt__reader_need(&w->r, bytes, w->what, w->err)) != LT_OK) return s;
    if (keep && (s = take(w, n, wide, 8, (void **)&out)) != LT_OK) return s;
    if (type != G_BOOL && !out) return lt__reader_skip(&w->r, bytes, w->what, w->err);
    for (uint64_t done = 0; done < n;) {
        size_t m = (size_t)lt__min_u64(sizeof chunk / size, n - done);
        if ((s = lt__reader_bytes(&w->r, chunk, m * size, w->what, w->err)) != LT_OK) return s;
        for (size_t i = 0; i < m && type == G_BOOL; i++)
            if (chunk[i] > 1) return FAIL(w, "%s: %s is a bool of value %u; 0 or 1 was expected", PATH(w), w->what, chunk[i]);
        if (out && type == G_BOOL) memcpy(out + done, chunk, m);
        else if (out) widen(type, chunk, out + 8 * done, m);
        done += m;
    }
    k->v.u = (const uint64_t *)(const void *)out;
    return LT_OK;
}

static lt_status walk_array(walk *w, bool keep, lt_key *k)
{
    uint32_t type;
    uint64_t n, least;
    lt_status s;

    if ((s = lt__reader_u32(&w->r, &type, w->what, w->err)) != LT_OK ||
        (s = lt__reader_u64(&w->r, &n, w->what, w->err)) != LT_OK)
        return s;
    if (type == G_ARRAY) return FAIL(w, "%s: %s is an array of arrays, which no model needs", PATH(w), w->what);
    if (type >= G_TYPES) return FAIL(w, "%s: %s is an array of type %" PRIu32 "; 0 to 12 was expected", PATH(w), w->what, type);
    if (!lt__mul_u64(n, gguf_types[type].bytes, &least)) least = UINT64_MAX;
    if (least > lt__reader_left(&w->r))
        return FAIL(w, "%s: %s claims %" PRIu64 " elements of type %s, but only %" PRIu64 " bytes remain", PATH(w), w->what, n,
                    gguf_types[type].name, lt__reader_left(&w->r));
    k->type = LT_KEY_ARRAY;
    k->elem_type = (lt_key_type)gguf_types[type].type;
    k->n = n;
    return type == G_STRING ? walk_strings(w, n, keep, k) : walk_numbers(w, type, n, keep, k);
}

/* ---- keys ---- */

static lt_status read_name(walk *w, size_t max, const char *kind)
{
    uint64_t n;
    lt_status s;

    snprintf(w->what, sizeof w->what, "the name of %s %" PRIu64, kind, w->at_item);
    if ((s = lt__reader_u64(&w->r, &n, w->what, w->err)) != LT_OK) return s;
    if (n == 0 || n > max)
        return FAIL(w, "%s: %s is %" PRIu64 " bytes long; 1 to %zu was expected", PATH(w), w->what, n, max);
    if ((s = lt__reader_bytes(&w->r, w->name, (size_t)n, w->what, w->err)) != LT_OK) return s;
    w->name[n] = 0;
    if (!lt__mf_name_ok(w->name, (size_t)n))
        return FAIL(w, "%s: %s is not valid UTF-8 or holds a control character", PATH(w), w->what);
    return LT_OK;
}

/* Keys that the reader itself obeys; always read, in both walks. */
static lt_status obey_key(walk *w, uint32_t type)
{
    static const char *const names[] = {"general.alignment", "split.no", "split.count", "split.tensors.count"};
    gguf_part *p = w->part;
    uint64_t *const dst[] = {&p->alignment, &p->split_no, &p->split_count, &p->split_tensors};
    uint8_t raw[8] = {0};
    uint64_t v;
    size_t i = 0;
    lt_status s;

    while (i < 4 && strcmp(w->name, names[i]) != 0) i++;
    if (i == 4) return LT_OK;
    bool is_uint = gguf_types[type].type == LT_KEY_UINT, is_int = gguf_types[type].type == LT_KEY_INT;
    if (!is_uint && !is_int)
        return FAIL(w, "%s: %s is of type %s; an unsigned integer was expected", PATH(w), names[i], gguf_types[type].name);
    uint64_t at = w->r.at;
    if ((s = lt__reader_bytes(&w->r, raw, gguf_types[type].bytes, w->what, w->err)) != LT_OK) return s;
    w->r.at = at;
    widen(type, raw, (uint8_t *)&v, 1);
    if (is_int && (int64_t)v < 0) return FAIL(w, "%s: %s is %" PRId64 "; it cannot be negative", PATH(w), names[i], (int64_t)v);
    *dst[i] = v;
    if (i == 0 && (v < ALIGN_MIN || v > ALIGN_MAX || (v & (v - 1))))
        return FAIL(w, "%s: general.alignment is %" PRIu64 "; a power of two from %d to %d was expected", PATH(w), v, ALIGN_MIN,
                    ALIGN_MAX);
    if (i == 2) p->has_split = true;
    if (i == 3) p->has_split_tensors = true;
    return LT_OK;
}

static lt_status walk_key(walk *w)
{
    lt_key k = {.n = 1};
    uint32_t type;
    void *name = NULL;
    bool keep = w->keep_keys;
    lt_status s;

    if ((s = read_name(w, KEY_NAME_MAX, "key")) != LT_OK) return s;
    snprintf(w->what, sizeof w->what, "the value of key %.40s", w->name);
    if ((s = lt__reader_u32(&w->r, &type, w->what, w->err)) != LT_OK) return s;
    if (type >= G_TYPES)
        return FAIL(w, "%s: key %.80s is of type %" PRIu32 "; 0 to 12 was expected", PATH(w), w->name, type);
    if ((s = obey_key(w, type)) != LT_OK) return s;
    size_t n = strlen(w->name);
    if (keep && (s = take(w, n + 1, 1, 1, &name)) != LT_OK) return s;
    if (name) memcpy(name, w->name, n + 1);
    k.name = name;
    k.type = k.elem_type = (lt_key_type)gguf_types[type].type;
    if (type == G_ARRAY) s = walk_array(w, keep, &k);
    else if (type == G_STRING) s = walk_strings(w, 1, keep, &k);
    else s = walk_numbers(w, type, 1, keep, &k);
    if (s == LT_OK && keep && w->build) s = lt__mf_add_key(w->f, &k, w->err);
    return s;
}

/* ---- tensors ---- */

static lt_status read_dims(walk *w, lt_tensor_info *t, uint64_t *elems)
{
    lt_status s;
    *elems = 1;
    if ((s = lt__reader_u32(&w->r, &t->ndim, w->what, w->err)) != LT_OK) return s;
    if (t->ndim < 1 || t->ndim > 4)
        return FAIL(w, "%s: tensor %s has %" PRIu32 " dimensions; 1 to 4 was expected", PATH(w), w->name, t->ndim);
    for (uint32_t i = 0; i < t->ndim; i++) {
        uint64_t d; /* innermost first in the file */
        if ((s = lt__reader_u64(&w->r, &d, w->what, w->err)) != LT_OK) return s;
        if (d < 1 || d > INT64_MAX)
            return FAIL(w, "%s: dimension %" PRIu32 " of tensor %s is %" PRId64 "; at least 1 was expected", PATH(w), i, w->name,
                        (int64_t)d);
        if (!lt__mul_u64(*elems, d, elems) || *elems > INT64_MAX)
            return FAIL(w, "%s: the dimensions of tensor %s multiply to more than 2^63 elements", PATH(w), w->name);
        t->dim[t->ndim - 1 - i] = d;
    }
    return LT_OK;
}

static lt_status type_tensor(walk *w, lt_tensor_info *t, uint32_t type, uint64_t elems)
{
    uint64_t row, cols = t->dim[t->ndim - 1];
    lt_status s;

    t->type_name = lt_dtype_gguf_name(type);
    if (!lt_dtype_from_gguf(type, &t->dtype)) t->dtype = LT_DTYPE_COUNT;
    if (!t->type_name) { /* the name of an unknown type is its number */
        char text[24];
        void *p;
        snprintf(text, sizeof text, "type %" PRIu32, type);
        if ((s = take(w, sizeof text, 1, 1, &p)) != LT_OK) return s;
        if (p) memcpy(p, text, sizeof text);
        t->type_name = p;
    }
    if (t->dtype == LT_DTYPE_COUNT) return LT_OK; /* its size is what lies before its neighbour */
    if (cols % lt_dtype_get(t->dtype)->block_elems)
        return FAIL(w, "%s: tensor %s has rows of %" PRIu64 " elements, but %s comes in blocks of %" PRIu32, PATH(w), w->name, cols,
                    t->type_name, lt_dtype_get(t->dtype)->block_elems);
    if (!lt_dtype_row_bytes(t->dtype, cols, &row) || !lt__mul_u64(row, elems / cols, &t->bytes) || t->bytes > INT64_MAX)
        return FAIL(w, "%s: tensor %s of type %s has more than 2^63 bytes", PATH(w), w->name, t->type_name);
    return LT_OK;
}

static lt_status walk_tensor(walk *w)
{
    lt_tensor_info t = {.file = w->part->file};
    uint64_t elems;
    uint32_t type;
    void *name;
    lt_status s;

    if ((s = read_name(w, TENSOR_NAME_MAX, "tensor")) != LT_OK) return s;
    snprintf(w->what, sizeof w->what, "the entry of tensor %.40s", w->name);
    if ((s = read_dims(w, &t, &elems)) != LT_OK || (s = lt__reader_u32(&w->r, &type, w->what, w->err)) != LT_OK ||
        (s = lt__reader_u64(&w->r, &t.offset, w->what, w->err)) != LT_OK || (s = type_tensor(w, &t, type, elems)) != LT_OK)
        return s;
    if (t.offset % w->part->alignment)
        return FAIL(w, "%s: tensor %s starts at offset %" PRIu64 ", which is not a multiple of the alignment %" PRIu64, PATH(w),
                    w->name, t.offset, w->part->alignment);
    if (t.offset > w->r.size || t.bytes > w->r.size - t.offset)
        return FAIL(w, "%s: tensor %s covers %" PRIu64 " bytes at offset %" PRIu64 " of the data, but the whole file has %" PRIu64,
                    PATH(w), w->name, t.bytes, t.offset, w->r.size);
    size_t n = strlen(w->name);
    if ((s = take(w, n + 1, 1, 1, &name)) != LT_OK) return s;
    if (!w->build) return LT_OK;
    memcpy(name, w->name, n + 1);
    t.name = name;
    return lt__mf_add_tensor(w->f, &t, w->err);
}

/* Offsets become absolute; ranges must lie in the file and apart from one another. */
static lt_status place_tensors(walk *w)
{
    lt_modelfile *f = w->f;
    size_t n = (size_t)w->n_tensors, first = f->n_tensors - n;
    uint64_t data = lt__round_up(w->r.at, w->part->alignment);
    lt_status s = LT_OK;
    lt__mf_span *v;

    if (!n) return LT_OK; /* a vocabulary by itself */
    if (data > w->r.size)
        return FAIL(w, "%s: the data begins at offset %" PRIu64 ", but the file ends at %" PRIu64, PATH(w), data, w->r.size);
    v = lt__alloc_array(f->ctx, n, sizeof *v);
    if (!v) return lt__fail_oom(w->err, n * sizeof *v, "the tensors' ranges");
    for (size_t i = 0; i < n && s == LT_OK; i++) {
        lt_tensor_info *t = &f->tensors[first + i];
        if (t->offset > w->r.size - data || t->bytes > w->r.size - data - t->offset)
            s = FAIL(w, "%s: tensor %s covers bytes %" PRIu64 " to %" PRIu64 ", but the file ends at %" PRIu64, PATH(w), t->name,
                     data + t->offset, data + t->offset + t->bytes, w->r.size);
        t->offset += data;
        v[i] = (lt__mf_span){t->offset, t->offset + t->bytes, first + i};
    }
    if (s == LT_OK) lt__mf_sort_spans(v, n);
    for (size_t i = 0; i < n && s == LT_OK; i++) {
        lt_tensor_info *t = &f->tensors[v[i].tensor];
        uint64_t next = i + 1 < n ? v[i + 1].begin : w->r.size;
        if (t->dtype == LT_DTYPE_COUNT) t->bytes = next - v[i].begin;
        else if (v[i].end > next)
            s = FAIL(w, "%s: tensors %s and %s overlap at offset %" PRIu64, PATH(w), t->name, f->tensors[v[i + 1].tensor].name, next);
    }
    lt__free(f->ctx, v, n * sizeof *v);
    return s;
}

/* ---- one file ---- */

static lt_status walk_head(walk *w)
{
    char magic[4];
    uint32_t version;
    uint64_t least_k, least_t;
    lt_status s;

    if ((s = lt__reader_bytes(&w->r, magic, sizeof magic, "the magic number", w->err)) != LT_OK) return s;
    if (memcmp(magic, "GGUF", sizeof magic) != 0) return FAIL(w, "%s does not begin with GGUF", PATH(w));
    if ((s = lt__reader_u32(&w->r, &version, "the version", w->err)) != LT_OK) return s;
    if (version > 0xffff && __builtin_bswap32(version) <= 0xffff)
        return FAIL(w, "%s is a big-endian GGUF file; only little-endian ones are read", PATH(w));
    if (version != 2 && version != 3)
        return FAIL(w, "%s is of GGUF version %" PRIu32 "; versions 2 and 3 are read", PATH(w), version);
    w->part->version = version;
    if ((s = lt__reader_u64(&w->r, &w->n_tensors, "the number of tensors", w->err)) != LT_OK ||
        (s = lt__reader_u64(&w->r, &w->n_keys, "the number of keys", w->err)) != LT_OK)
        return s;
    if (!lt__mul_u64(w->n_keys, KEY_MIN_BYTES, &least_k) || least_k > lt__reader_left(&w->r))
        return FAIL(w, "%s claims %" PRIu64 " keys, but only %" PRIu64 " bytes remain", PATH(w), w->n_keys, lt__reader_left(&w->r));
    if (!lt__mul_u64(w->n_tensors, TENSOR_MIN_BYTES, &least_t) || least_t > lt__reader_left(&w->r) - least_k)
        return FAIL(w, "%s claims %" PRIu64 " tensors, but only %" PRIu64 " bytes remain", PATH(w), w->n_tensors,
                    lt__reader_left(&w->r));
    return LT_OK;
}

static lt_status walk_file(walk *w, bool build)
{
    lt_status s;

    w->build = build;
    w->need = 0;
    *w->part = (gguf_part){.file = w->part->file, .alignment = 32};
    if ((s = lt__reader_seek(&w->r, 0, "the start", w->err)) != LT_OK || (s = walk_head(w)) != LT_OK) return s;
    if (build && w->keep_keys &&
        (s = lt__grow(w->f->ctx, (void **)&w->f->keys, &w->f->cap_keys, w->f->n_keys + (size_t)w->n_keys, sizeof(lt_key), w->err)) != LT_OK)
        return s;
    for (w->at_item = 0; w->at_item < w->n_keys; w->at_item++)
        if ((s = walk_key(w)) != LT_OK) return s;
    if (build && (s = lt__grow(w->f->ctx, (void **)&w->f->tensors, &w->f->cap_tensors, w->f->n_tensors + (size_t)w->n_tensors,
                               sizeof(lt_tensor_info), w->err)) != LT_OK)
        return s;
    for (w->at_item = 0; w->at_item < w->n_tensors; w->at_item++)
        if ((s = walk_tensor(w)) != LT_OK) return s;
    w->part->tensors = w->n_tensors;
    return LT_OK;
}

static lt_status reserve(walk *w)
{
    w->left = w->need;
    w->bump = w->need < SIZE_MAX ? lt__mf_take(w->f, (size_t)w->need, 1) : NULL;
    return w->bump ? LT_OK : lt__fail_oom(w->err, (size_t)w->need, "a model file's keys");
}

static lt_status open_part(lt_modelfile *f, const char *path, gguf_part *part, lt_err *err)
{
    lt_status s;
    walk *w = lt__zalloc(f->ctx, sizeof *w);

    if (!w) return lt__fail_oom(err, sizeof *w, "the GGUF reader");
    w->f = f;
    w->err = err;
    w->part = part;
    w->keep_keys = f->n_parts == 0;
    s = lt__reader_open(f->ctx, path, &w->r, err);
    if (s == LT_OK) s = lt__mf_add_part(f, path, w->r.size, &part->file, err);
    if (s == LT_OK) s = walk_file(w, false);
    if (s == LT_OK) s = reserve(w);
    if (s == LT_OK) s = walk_file(w, true);
    if (s == LT_OK) s = place_tensors(w);
    lt__reader_close(&w->r);
    lt__free(f->ctx, w, sizeof *w);
    return s;
}

/* ---- split files ---- */

enum { SPLIT_TAIL = 20 }; /* "-00001-of-00002.gguf" */

static bool parse_split(const char *path, unsigned *no, unsigned *count)
{
    size_t n = strlen(path);
    if (n <= SPLIT_TAIL) return false;
    const char *t = path + n - SPLIT_TAIL;
    if (t[0] != '-' || memcmp(t + 6, "-of-", 4) != 0 || strcmp(t + 15, ".gguf") != 0) return false;
    for (int i = 1; i < 15; i++)
        if ((i < 6 || i > 9) && !isdigit((unsigned char)t[i])) return false;
    *no = (unsigned)strtoul(t + 1, NULL, 10);
    *count = (unsigned)strtoul(t + 10, NULL, 10);
    return *no >= 1 && *no <= *count;
}

static lt_status check_split(const char *path, const gguf_part *p, const gguf_part *first, unsigned i, unsigned count, lt_err *err)
{
    if (!p->has_split && count == 1) return LT_OK;
    if (!p->has_split)
        return lt__fail(err, LT_E_FORMAT, "%s is named as part %u of %u, but has no key split.count", lt__path_tail(path), i + 1, count);
    if (p->split_count != count)
        return lt__fail(err, LT_E_FORMAT, "%s: split.count is %" PRIu64 ", but the name says %u", lt__path_tail(path), p->split_count, count);
    if (p->split_no != i)
        return lt__fail(err, LT_E_FORMAT, "%s: split.no is %" PRIu64 "; %u was expected by the name", lt__path_tail(path), p->split_no, i);
    if (p->has_split_tensors && first->has_split_tensors && p->split_tensors != first->split_tensors)
        return lt__fail(err, LT_E_FORMAT, "%s: split.tensors.count is %" PRIu64 ", but the first part says %" PRIu64, lt__path_tail(path),
                        p->split_tensors, first->split_tensors);
    return LT_OK;
}

static lt_status open_split(lt_modelfile *f, const char *path, unsigned count, gguf_part *first, lt_err *err)
{
    size_t n = strlen(path);
    char *name = lt__strndup(f->ctx, path, n);
    gguf_part part = {0};
    lt_status s = LT_OK;

    if (!name) return lt__fail_oom(err, n + 1, "a file name");
    for (unsigned i = 0; i < count && s == LT_OK; i++) {
        snprintf(name + n - SPLIT_TAIL, SPLIT_TAIL + 1, "-%05u-of-%05u.gguf", (i + 1) % 100000, count % 100000);
        s = open_part(f, name, &part, err);
        if (s == LT_E_NOT_FOUND)
            lt__fail(err, s, "part %u of %u is missing: there is no %s", i + 1, count, lt__path_tail(name));
        if (i == 0) *first = part;
        if (s == LT_OK) s = check_split(name, &part, first, i, count, err);
    }
    if (s == LT_OK && first->has_split_tensors && first->split_tensors != f->n_tensors)
        s = lt__fail(err, LT_E_FORMAT, "%s: split.tensors.count is %" PRIu64 ", but the %u parts hold %zu tensors",
                     lt__path_tail(f->parts[0].path), first->split_tensors, count, f->n_tensors);
    lt__free(f->ctx, name, n + 1);
    return s;
}

lt_status lt__gguf_open(lt_modelfile *f, const char *path, lt_err *err)
{
    unsigned no, count;
    gguf_part first = {0};
    lt_status s;

    if (parse_split(path, &no, &count)) s = open_split(f, path, count, &first, err);
    else {
        s = open_part(f, path, &first, err);
        if (s == LT_OK && first.has_split && first.split_count > 1)
            s = lt__fail(err, LT_E_FORMAT, "%s is part %" PRIu64 " of %" PRIu64 ", but its name does not end in -%05" PRIu64 "-of-%05" PRIu64 ".gguf, "
                         "so the other parts cannot be found", lt__path_tail(path), first.split_no + 1, first.split_count,
                         first.split_no + 1, first.split_count);
    }
    if (s == LT_OK) snprintf(f->format, sizeof f->format, "gguf %" PRIu32, first.version);
    return s;
}
