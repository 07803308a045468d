/* outfile.c - files that appear under their name only when finished. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"

struct lt__outfile {
    lt_ctx *ctx;
    int     fd;
    char   *path, *temp; /* temp lies in path's folder, so that rename is atomic */
    size_t  path_len, temp_len;
};

static void free_outfile(lt__outfile *f)
{
    lt_ctx *ctx = f->ctx;
    lt__free(ctx, f->path, f->path_len + 1);
    lt__free(ctx, f->temp, f->temp_len + 1);
    lt__free(ctx, f, sizeof *f);
}

lt_status lt__outfile_open(lt_ctx *ctx, const char *path, lt__outfile **out, lt_err *err)
{
    *out = NULL;
    lt__outfile *f = lt__zalloc(ctx, sizeof *f);
    if (!f)
        return lt__fail_oom(err, sizeof *f, "an output file");
    f->ctx = ctx;
    f->path_len = strlen(path);
    f->temp_len = f->path_len + 11;
    f->path = lt__strndup(ctx, path, f->path_len);
    f->temp = lt__alloc(ctx, f->temp_len + 1);
    if (!f->path || !f->temp) {
        size_t bytes = f->temp_len;
        free_outfile(f);
        return lt__fail_oom(err, bytes, "an output file's name");
    }
    snprintf(f->temp, f->temp_len + 1, "%s.tmp-XXXXXX", path);
    f->fd = mkostemp(f->temp, O_CLOEXEC);
    if (f->fd < 0) {
        int e = errno;
        free_outfile(f);
        return lt__fail_errno(err, e, "%s: cannot create a file there", path);
    }
    if (fchmod(f->fd, 0644) != 0)
        lt__log(ctx, LT_LOG_DEBUG, "file", "%s: cannot set its mode: %s", f->temp, strerror(errno));
    *out = f;
    return LT_OK;
}

lt_status lt__outfile_write(lt__outfile *f, const void *data, size_t bytes, lt_err *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = lt__fault(f->ctx, LT_FAULT_WRITE) ? (errno = ENOSPC, -1) : write(f->fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return lt__fail_errno(err, errno, "%s: write of %zu bytes failed", f->path, bytes);
        p += n;
        bytes -= (size_t)n;
    }
    return LT_OK;
}

lt_status lt__outfile_commit(lt__outfile *f, lt_err *err)
{
    lt_status s = LT_OK;
    int e = fsync(f->fd) != 0 ? errno : 0;
    if (close(f->fd) != 0 && !e)
        e = errno;
    if (!e && rename(f->temp, f->path) != 0)
        e = errno;
    if (e) {
        s = lt__fail_errno(err, e, "%s: cannot finish the file", f->path);
        unlink(f->temp);
    }
    free_outfile(f);
    return s;
}

void lt__outfile_abandon(lt__outfile *f)
{
    if (!f)
        return;
    close(f->fd);
    unlink(f->temp);
    free_outfile(f);
}
