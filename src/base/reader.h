/* reader.h - sequential reads of a file nobody vouches for: every length is held against the
 * bytes that remain before it is used.
 *
 *     lt__reader r;
 *     uint64_t n;
 *     lt__reader_open(ctx, path, &r, err);
 *     lt__reader_u64(&r, &n, "the header's length", err);
 *     lt__reader_need(&r, n, "the header", err);      // now n is safe to allocate by
 *     lt__reader_bytes(&r, dst, n, "the header", err);
 *     lt__reader_close(&r);
 *
 * `what` completes "FILE: WHAT needs N bytes at offset O, but the file ends at E".
 * Plain pread, not a mapping: a file truncated meanwhile is an error, not a signal. */
#ifndef LT_BASE_READER_H
#define LT_BASE_READER_H

#include <string.h>

#include "lowtide/base.h"

typedef struct lt__reader {
    lt_ctx     *ctx;
    const char *path;  /* borrowed */
    int         fd;    /* -1 when closed */
    uint64_t    size, at;
    uint8_t    *buf;
    uint64_t    buf_at;
    size_t      buf_n;
} lt__reader;

/* The end of a path that is too long for an error's sentence. */
const char *lt__path_tail(const char *path);

/* Regular files only; a pipe or device is E_INVALID. On failure r is closed. */
LT_NODISCARD lt_status lt__reader_open(lt_ctx *ctx, const char *path, lt__reader *r, lt_err *err);
void lt__reader_close(lt__reader *r); /* a closed or zeroed-with-fd -1 reader is fine */

LT_NODISCARD lt_status lt__reader_need(lt__reader *r, uint64_t bytes, const char *what, lt_err *err);
LT_NODISCARD lt_status lt__reader_read(lt__reader *r, void *dst, size_t bytes, const char *what, lt_err *err);
LT_NODISCARD lt_status lt__reader_seek(lt__reader *r, uint64_t at, const char *what, lt_err *err);

static inline uint64_t lt__reader_left(const lt__reader *r) { return r->size - r->at; }

static inline LT_NODISCARD lt_status
lt__reader_bytes(lt__reader *r, void *dst, size_t bytes, const char *what, lt_err *err)
{
    uint64_t in = r->at - r->buf_at; /* wraps to huge when at lies before the buffer */
    if (in <= r->buf_n && bytes <= r->buf_n - in) {
        if (bytes) memcpy(dst, r->buf + in, bytes);
        r->at += bytes;
        return LT_OK;
    }
    return lt__reader_read(r, dst, bytes, what, err);
}

static inline LT_NODISCARD lt_status lt__reader_skip(lt__reader *r, uint64_t bytes, const char *what, lt_err *err)
{
    if (bytes > lt__reader_left(r)) return lt__reader_need(r, bytes, what, err);
    r->at += bytes;
    return LT_OK;
}

/* Little endian, as this machine is. */
static inline LT_NODISCARD lt_status lt__reader_u32(lt__reader *r, uint32_t *out, const char *what, lt_err *err)
{
    return lt__reader_bytes(r, out, sizeof *out, what, err);
}
static inline LT_NODISCARD lt_status lt__reader_u64(lt__reader *r, uint64_t *out, const char *what, lt_err *err)
{
    return lt__reader_bytes(r, out, sizeof *out, what, err);
}

#endif
