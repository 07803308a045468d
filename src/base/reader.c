#include "base/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little endian and read in place");

enum { READER_BUF = 128 * 1024, PATH_TAIL = 160 };

const char *lt__path_tail(const char *path)
{
    size_t n = strlen(path);
    return n <= PATH_TAIL ? path : path + (n - PATH_TAIL);
}

lt_status lt__reader_open(lt_ctx *ctx, const char *path, lt__reader *r, lt_err *err)
{
    struct stat st;
    lt_status s;

    *r = (lt__reader){.ctx = ctx, .path = path, .fd = -1};
    /* Without O_NONBLOCK a pipe with no writer would hang here. */
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->fd < 0) return lt__fail_errno(err, errno, "cannot open %s", lt__path_tail(path));
    if (fstat(r->fd, &st) != 0) {
        s = lt__fail_errno(err, errno, "cannot stat %s", lt__path_tail(path));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        s = lt__fail(err, LT_E_FORMAT, "%s is not a regular file", lt__path_tail(path));
        goto fail;
    }
    r->size = (uint64_t)st.st_size;
    r->buf = lt__alloc(ctx, READER_BUF);
    if (!r->buf) {
        s = lt__fail_oom(err, READER_BUF, "the read buffer");
        goto fail;
    }
    return LT_OK;
fail:
    lt__reader_close(r);
    return s;
}

void lt__reader_close(lt__reader *r)
{
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
    lt__free(r->ctx, r->buf, READER_BUF);
    r->buf = NULL;
}

lt_status lt__reader_need(lt__reader *r, uint64_t bytes, const char *what, lt_err *err)
{
    if (bytes <= lt__reader_left(r)) return LT_OK;
    return lt__fail(err, LT_E_FORMAT, "%s: %s needs %" PRIu64 " bytes at offset %" PRIu64 ", but the file ends at %" PRIu64,
                    lt__path_tail(r->path), what, bytes, r->at, r->size);
}

static lt_status read_at(lt__reader *r, void *dst, size_t bytes, uint64_t at, lt_err *err)
{
    uint8_t *p = dst;
    while (bytes) {
        if (lt__fault(r->ctx, LT_FAULT_READ))
            return lt__fail_errno(err, EIO, "reading %s at offset %" PRIu64, lt__path_tail(r->path), at);
        ssize_t n = pread(r->fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return lt__fail_errno(err, errno, "reading %s at offset %" PRIu64, lt__path_tail(r->path), at);
        if (n == 0)
            return lt__fail(err, LT_E_IO, "%s shrank while it was read: %" PRIu64 " bytes were there, now it ends at %" PRIu64,
                            lt__path_tail(r->path), r->size, at);
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return LT_OK;
}

lt_status lt__reader_read(lt__reader *r, void *dst, size_t bytes, const char *what, lt_err *err)
{
    lt_status s = lt__reader_need(r, bytes, what, err);
    uint8_t *p = dst;

    if (s != LT_OK) return s;
    uint64_t in = r->at - r->buf_at;
    if (in < r->buf_n) {
        size_t have = (size_t)lt__min_u64(r->buf_n - in, bytes);
        memcpy(p, r->buf + in, have);
        p += have;
        bytes -= have;
        r->at += have;
    }
    if (!bytes) return LT_OK;
    if (bytes >= READER_BUF) {
        s = read_at(r, p, bytes, r->at, err);
        if (s == LT_OK) r->at += bytes;
        return s;
    }
    size_t fill = (size_t)lt__min_u64(READER_BUF, lt__reader_left(r));
    r->buf_n = 0;
    s = read_at(r, r->buf, fill, r->at, err);
    if (s != LT_OK) return s;
    r->buf_at = r->at;
    r->buf_n = fill;
    memcpy(p, r->buf, bytes);
    r->at += bytes;
    return LT_OK;
}

lt_status lt__reader_seek(lt__reader *r, uint64_t at, const char *what, lt_err *err)
{
    if (at > r->size)
        return lt__fail(err, LT_E_FORMAT, "%s: %s lies at offset %" PRIu64 ", but the file ends at %" PRIu64,
                        lt__path_tail(r->path), what, at, r->size);
    r->at = at;
    return LT_OK;
}
