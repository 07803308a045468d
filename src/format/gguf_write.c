#include "format/gguf_write.h"

#include <inttypes.h>
#include <string.h>

#include "base/host.h"
#include "base/mem.h"

typedef struct bytes { uint8_t *v; size_t n, cap; } bytes;

struct lt__gguf_writer {
    lt_ctx      *ctx;
    lt__outfile *out;
    bytes        keys, infos, sizes; /* sizes: u64 bytes of each tensor */
    uint64_t     n_keys, n_tensors, data_bytes;
    uint32_t     alignment;
    bool         begun;
    uint64_t     at_tensor, at_byte; /* what the next write belongs to */
    lt_err       first;              /* of the puts */
};

enum { T_U16 = 2, T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_U64 = 10 };

static void add(lt__gguf_writer *w, bytes *b, const void *p, size_t n)
{
    if (w->first.status != LT_OK || !n) return;
    if (lt__grow(w->ctx, (void **)&b->v, &b->cap, b->n + n, 1, &w->first) != LT_OK) return;
    memcpy(b->v + b->n, p, n);
    b->n += n;
}

static void add_str(lt__gguf_writer *w, bytes *b, const char *s)
{
    uint64_t n = strlen(s);
    add(w, b, &n, sizeof n);
    add(w, b, s, (size_t)n);
}

static void add_key(lt__gguf_writer *w, const char *key, uint32_t type)
{
    if (w->n_tensors && w->first.status == LT_OK)
        lt__fail(&w->first, LT_E_INVALID, "key %s was put after the first tensor", key);
    add_str(w, &w->keys, key);
    add(w, &w->keys, &type, sizeof type);
    w->n_keys++;
}

static void put(lt__gguf_writer *w, const char *key, uint32_t type, const void *v, size_t n)
{
    add_key(w, key, type);
    add(w, &w->keys, v, n);
}

static void put_array(lt__gguf_writer *w, const char *key, uint32_t type, const void *v, uint64_t n, size_t elem)
{
    add_key(w, key, T_ARRAY);
    add(w, &w->keys, &type, sizeof type);
    add(w, &w->keys, &n, sizeof n);
    if (v) add(w, &w->keys, v, (size_t)n * elem);
}

void lt__gguf_put_u16(lt__gguf_writer *w, const char *key, uint16_t v) { put(w, key, T_U16, &v, sizeof v); }
void lt__gguf_put_u32(lt__gguf_writer *w, const char *key, uint32_t v) { put(w, key, T_U32, &v, sizeof v); }
void lt__gguf_put_i32(lt__gguf_writer *w, const char *key, int32_t v) { put(w, key, T_I32, &v, sizeof v); }
void lt__gguf_put_u64(lt__gguf_writer *w, const char *key, uint64_t v) { put(w, key, T_U64, &v, sizeof v); }
void lt__gguf_put_f32(lt__gguf_writer *w, const char *key, float v) { put(w, key, T_F32, &v, sizeof v); }
void lt__gguf_put_bool(lt__gguf_writer *w, const char *key, bool v) { put(w, key, T_BOOL, &v, 1); }

void lt__gguf_put_str(lt__gguf_writer *w, const char *key, const char *s)
{
    add_key(w, key, T_STRING);
    add_str(w, &w->keys, s);
}

void lt__gguf_put_strs(lt__gguf_writer *w, const char *key, const char *const *s, uint64_t n)
{
    put_array(w, key, T_STRING, NULL, n, 0);
    for (uint64_t i = 0; i < n; i++) add_str(w, &w->keys, s[i]);
}

void lt__gguf_put_f32s(lt__gguf_writer *w, const char *key, const float *v, uint64_t n) { put_array(w, key, T_F32, v, n, sizeof *v); }
void lt__gguf_put_i32s(lt__gguf_writer *w, const char *key, const int32_t *v, uint64_t n) { put_array(w, key, T_I32, v, n, sizeof *v); }

void lt__gguf_put_tensor(lt__gguf_writer *w, const char *name, lt_dtype t, uint32_t ndim, const uint64_t *dim)
{
    const lt_dtype_traits *tr = lt_dtype_get(t);
    uint64_t total;
    if (w->first.status != LT_OK) return;
    bool ok = tr && tr->gguf_id >= 0 && ndim >= 1 && ndim <= 4 && strlen(name) < 64;
    ok = ok && lt_dtype_row_bytes(t, dim[ndim - 1], &total);
    for (uint32_t i = 0; ok && i + 1 < ndim; i++) ok = lt__mul_u64(total, dim[i], &total);
    if (!ok || total == 0 || total > INT64_MAX) {
        lt__fail(&w->first, LT_E_INVALID, "tensor %s: no GGUF tensor of type %s has this shape (last dimension %" PRIu64 ")", name,
                 tr ? tr->name : "?", ndim >= 1 && ndim <= 4 ? dim[ndim - 1] : 0);
        return;
    }
    uint32_t id = (uint32_t)tr->gguf_id;
    add_str(w, &w->infos, name);
    add(w, &w->infos, &ndim, sizeof ndim);
    for (uint32_t i = ndim; i-- > 0;) add(w, &w->infos, &dim[i], sizeof dim[i]);
    add(w, &w->infos, &id, sizeof id);
    add(w, &w->infos, &w->data_bytes, sizeof w->data_bytes);
    add(w, &w->sizes, &total, sizeof total);
    w->n_tensors++;
    w->data_bytes += lt__round_up(total, w->alignment);
}

lt_status lt__gguf_writer_create(lt_ctx *ctx, const char *path, uint32_t alignment, lt__gguf_writer **out, lt_err *err)
{
    lt_status s;
    lt__gguf_writer *w;

    *out = NULL;
    if (alignment < 8 || alignment > 1024 * 1024 || (alignment & (alignment - 1)))
        return lt__fail(err, LT_E_INVALID, "alignment is %" PRIu32 "; a power of two from 8 to 1048576 was expected", alignment);
    w = lt__zalloc(ctx, sizeof *w);
    if (!w) return lt__fail_oom(err, sizeof *w, "a GGUF writer");
    w->ctx = ctx;
    w->alignment = alignment;
    s = lt__outfile_open(ctx, path, &w->out, err);
    if (s != LT_OK) {
        lt__free(ctx, w, sizeof *w);
        return s;
    }
    if (alignment != 32) lt__gguf_put_u32(w, "general.alignment", alignment);
    *out = w;
    return LT_OK;
}

static lt_status write_zeros(lt__gguf_writer *w, uint64_t n, lt_err *err)
{
    static const uint8_t zeros[4096];
    lt_status s = LT_OK;
    for (; n && s == LT_OK; n -= lt__min_u64(n, sizeof zeros)) s = lt__outfile_write(w->out, zeros, (size_t)lt__min_u64(n, sizeof zeros), err);
    return s;
}

static lt_status begin(lt__gguf_writer *w, lt_err *err)
{
    uint8_t head[24];
    uint32_t version = 3;
    lt_status s;

    if (w->first.status != LT_OK) {
        if (err) *err = w->first;
        return w->first.status;
    }
    memcpy(head, "GGUF", 4);
    memcpy(head + 4, &version, 4);
    memcpy(head + 8, &w->n_tensors, 8);
    memcpy(head + 16, &w->n_keys, 8);
    uint64_t at = sizeof head + w->keys.n + w->infos.n;
    s = lt__outfile_write(w->out, head, sizeof head, err);
    if (s == LT_OK && w->keys.n) s = lt__outfile_write(w->out, w->keys.v, w->keys.n, err);
    if (s == LT_OK && w->infos.n) s = lt__outfile_write(w->out, w->infos.v, w->infos.n, err);
    if (s == LT_OK) s = write_zeros(w, lt__round_up(at, w->alignment) - at, err);
    w->begun = s == LT_OK;
    return s;
}

lt_status lt__gguf_write(lt__gguf_writer *w, const void *data, uint64_t n, lt_err *err)
{
    lt_status s = w->begun ? LT_OK : begin(w, err);
    const uint8_t *p = data;

    while (n && s == LT_OK) {
        uint64_t size;
        if (w->at_tensor == w->n_tensors) return lt__fail(err, LT_E_INVALID, "%" PRIu64 " bytes more than the tensors hold", n);
        memcpy(&size, w->sizes.v + 8 * w->at_tensor, 8);
        size_t m = (size_t)lt__min_u64(n, size - w->at_byte);
        s = lt__outfile_write(w->out, p, m, err);
        p += m;
        n -= m;
        w->at_byte += m;
        if (s == LT_OK && w->at_byte == size) {
            s = write_zeros(w, lt__round_up(size, w->alignment) - size, err);
            w->at_tensor++;
            w->at_byte = 0;
        }
    }
    return s;
}

static void free_writer(lt__gguf_writer *w)
{
    lt__free(w->ctx, w->keys.v, w->keys.cap);
    lt__free(w->ctx, w->infos.v, w->infos.cap);
    lt__free(w->ctx, w->sizes.v, w->sizes.cap);
    lt__free(w->ctx, w, sizeof *w);
}

lt_status lt__gguf_writer_commit(lt__gguf_writer *w, lt_err *err)
{
    lt_status s = w->begun ? LT_OK : begin(w, err);
    if (s == LT_OK && w->at_tensor != w->n_tensors)
        s = lt__fail(err, LT_E_INVALID, "only %" PRIu64 " of %" PRIu64 " tensors were written", w->at_tensor, w->n_tensors);
    if (s == LT_OK) s = lt__outfile_commit(w->out, err);
    else lt__outfile_abandon(w->out);
    free_writer(w);
    return s;
}

void lt__gguf_writer_abandon(lt__gguf_writer *w)
{
    if (!w) return;
    lt__outfile_abandon(w->out);
    free_writer(w);
}
