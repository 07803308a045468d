/* outfile.c - results that appear under their name whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"

static lt_status fail(app *a, opt_id id, const char *path, const char *what, int e)
{
    snprintf(a->err.text, sizeof a->err.text, "--%s %s: %s%s%s", opt_rows[id].name, path, what, e ? ": " : "", e ? strerror(e) : "");
    return a->err.status = LT_E_IO;
}

lt_status app_check_output(app *a, opt_id id)
{
    const char *path = a->o->v[id].s;
    char folder[4096];
    struct stat st;
    if (!path)
        return LT_OK;
    if (!*path || strlen(path) >= sizeof folder - sizeof ".tmp-XXXXXX")
        return fail(a, id, path, *path ? "the name is too long" : "expected a file's name", 0);
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return fail(a, id, path, "it is a folder", 0);
    if (there && !S_ISREG(st.st_mode)) /* a device or pipe can only be written straight */
        return id == OPT_report ? LT_OK : fail(a, id, path, "it is not a regular file", 0);
    snprintf(folder, sizeof folder, "%s", path);
    return access(dirname(folder), W_OK) == 0 ? LT_OK : fail(a, id, path, "no file can be created there", errno);
}

lt_status app_file_open(app *a, opt_id id, app_file *f)
{
    const char *path = a->o->v[id].s;
    struct stat st;
    memset(f, 0, sizeof *f);
    f->id = id;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        f->f = fopen(path, "wbe");
        return f->f ? LT_OK : fail(a, id, path, "cannot be opened", errno);
    }
    /* Through a link, what it names is replaced, not the link. */
    char *real = realpath(path, NULL);
    f->path = real ? real : strdup(path);
    f->temp = f->path ? malloc(strlen(f->path) + sizeof ".tmp-XXXXXX") : NULL;
    int fd = -1;
    if (f->temp) {
        sprintf(f->temp, "%s.tmp-XXXXXX", f->path);
        fd = mkostemp(f->temp, O_CLOEXEC);
    }
    if (fd >= 0 && (fchmod(fd, 0644) != 0 || !(f->f = fdopen(fd, "wb")))) {
        int e = errno;
        close(fd);
        unlink(f->temp);
        errno = e;
        fd = -1;
    }
    if (fd >= 0)
        return LT_OK;
    lt_status s = fail(a, id, path, "cannot be created", errno);
    free(f->path);
    free(f->temp);
    memset(f, 0, sizeof *f);
    return s;
}

lt_status app_file_close(app *a, app_file *f, bool keep)
{
    if (!f->f)
        return LT_OK;
    bool ok = fflush(f->f) == 0 && !ferror(f->f) && (!keep || !f->temp || fsync(fileno(f->f)) == 0);
    int e = ok ? 0 : errno;
    if (fclose(f->f) != 0 && ok) {
        ok = false;
        e = errno;
    }
    if (ok && keep && f->temp && rename(f->temp, f->path) != 0) {
        ok = false;
        e = errno;
    }
    if (f->temp && (!keep || !ok))
        unlink(f->temp);
    free(f->path);
    free(f->temp);
    f->f = NULL;
    return ok || !keep ? LT_OK : fail(a, f->id, a->o->v[f->id].s, "cannot be written", e);
}
