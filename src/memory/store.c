/* store.c - files of a store: opening, mapping, modes, and reads through the page cache. */
#include "base/host.h"
#include "base/mem.h"
#include "memory/hosttier.h"
#include "memory/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLAIN_UNIT = 8 << 20 }; /* one pread; large enough that the calls cost nothing */

static lt_store_mode choose_mode(const lt_store *s, uint64_t total)
{
    if (s->asked != LT_STORE_AUTO) return s->asked;
    return total <= s->cache_bytes ? LT_STORE_MAPPED : LT_STORE_DIRECT;
}

lt_status lt_store_create(lt_ctx *ctx, lt_store_mode mode, uint64_t cache_bytes, lt_store **out,
                          lt_err *err)
{
    if (!ctx || !out) return lt__fail(err, LT_E_INVALID, "store: context and result must not be NULL");
    *out = NULL;
    if (mode < LT_STORE_AUTO || mode > LT_STORE_PLAIN)
        return lt__fail(err, LT_E_INVALID, "store: mode %d is none of auto, mapped, direct, plain",
                        (int)mode);
    lt_store *s = lt__zalloc(ctx, sizeof *s);
    if (!s) return lt__fail_oom(err, sizeof *s, "a store");
    s->ctx = ctx;
    s->asked = mode;
    s->cache_bytes = cache_bytes ? cache_bytes : lt__host_budget();
    s->used = choose_mode(s, 0);
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return LT_OK;
}

static void close_file(lt_ctx *ctx, store_file *f)
{
    if (f->map) munmap(f->map, f->bytes);
    if (f->fd_direct >= 0) close(f->fd_direct);
    if (f->fd >= 0) close(f->fd);
    lt__free(ctx, f->path, f->path_bytes);
    lt__free(ctx, f, sizeof *f);
}

void lt_store_destroy(lt_store *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->idle_len; i++) lt__window_destroy(s->idle[i]);
    lt__free(s->ctx, s->idle, s->idle_cap * sizeof *s->idle);
    for (uint32_t i = 0; i < s->files_len; i++) close_file(s->ctx, s->files[i]);
    lt__free(s->ctx, s->files, s->files_cap * sizeof *s->files);
    pthread_mutex_destroy(&s->lock);
    lt__free(s->ctx, s, sizeof *s);
}

void lt__store_refuse_direct(lt_store *s, store_file *f, int why)
{
    atomic_store(&f->direct, false);
    pthread_mutex_lock(&s->lock);
    s->used = LT_STORE_PLAIN;
    pthread_mutex_unlock(&s->lock);
    if (!atomic_exchange(&s->said_direct, true))
        lt__log(s->ctx, LT_LOG_WARN, "store",
                "%s: the file system refuses O_DIRECT (%s): reading through the page cache", f->path,
                strerror(why));
}

static lt_status map_file(lt_store *s, store_file *f, lt_err *err)
{
    if (f->bytes == 0 || f->map) return LT_OK;
    if (f->bytes > SIZE_MAX) return lt__fail(err, LT_E_UNSUPPORTED, "%s: too large to map", f->path);
    void *p = MAP_FAILED;
    if (lt__fault(s->ctx, LT_FAULT_MAP)) errno = ENOMEM;
    else p = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED)
        return lt__fail_errno(err, errno, "%s: cannot map %" PRIu64 " bytes", f->path, f->bytes);
    f->map = p;
    /* Advice only: a refusal costs time at most. */
    if (f->bytes <= s->cache_bytes) (void)madvise(p, f->bytes, MADV_WILLNEED);
    return LT_OK;
}

static void open_direct(lt_store *s, store_file *f)
{
    if (f->fd_direct >= 0) return;
    f->fd_direct = open(f->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (f->fd_direct >= 0) atomic_store(&f->direct, true);
    else {
        int why = errno;
        lt__store_refuse_direct(s, f, why);
    }
}

lt_status lt_store_add_file(lt_store *s, const char *path, uint32_t *out, lt_err *err)
{
    if (!s || !path || !out)
        return lt__fail(err, LT_E_INVALID, "store: store, path and result must not be NULL");
    store_file *f = lt__zalloc(s->ctx, sizeof *f);
    if (!f) return lt__fail_oom(err, sizeof *f, "a file of a store");
    f->fd = f->fd_direct = -1;
    lt_status st = LT_OK;
    f->path_bytes = strlen(path) + 1;
    f->path = lt__strndup(s->ctx, path, f->path_bytes - 1);
    if (!f->path) {
        st = lt__fail_oom(err, f->path_bytes, "the path of a file");
        f->path_bytes = 0;
        goto fail;
    }
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) {
        st = lt__fail_errno(err, errno, "%s: cannot open", path);
        goto fail;
    }
    struct stat sb;
    if (fstat(f->fd, &sb) != 0) {
        st = lt__fail_errno(err, errno, "%s: cannot ask its size", path);
        goto fail;
    }
    if (!S_ISREG(sb.st_mode)) {
        st = lt__fail(err, LT_E_INVALID, "%s: not a regular file", path);
        goto fail;
    }
    f->bytes = (uint64_t)sb.st_size;

    pthread_mutex_lock(&s->lock);
    uint64_t total = s->total_bytes;
    lt_store_mode mode = LT_STORE_PLAIN;
    if (!lt__add_u64(total, f->bytes, &total))
        st = lt__fail(err, LT_E_INVALID, "%s: %" PRIu64 " bytes more overflow the store's total", path,
                      f->bytes);
    else {
        mode = choose_mode(s, total);
        if (mode == LT_STORE_MAPPED) st = map_file(s, f, err);
    }
    if (st == LT_OK)
        st = lt__grow(s->ctx, (void **)&s->files, &s->files_cap, (size_t)s->files_len + 1, sizeof *s->files,
                      err);
    if (st == LT_OK) {
        s->files[s->files_len] = f;
        *out = s->files_len++;
        s->total_bytes = total;
        if (s->used != LT_STORE_PLAIN || s->asked == LT_STORE_PLAIN) s->used = mode;
    }
    uint32_t n = s->files_len;
    pthread_mutex_unlock(&s->lock);
    if (st != LT_OK) goto fail;
    /* AUTO may have turned to DIRECT with this file: the earlier ones follow, their mappings stay. */
    if (mode == LT_STORE_DIRECT)
        for (uint32_t i = 0; i < n; i++) open_direct(s, lt__store_file(s, i));
    else (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return LT_OK;
fail:
    close_file(s->ctx, f);
    return st;
}

store_file *lt__store_file(lt_store *s, uint32_t file)
{
    pthread_mutex_lock(&s->lock);
    store_file *f = file < s->files_len ? s->files[file] : NULL;
    pthread_mutex_unlock(&s->lock);
    return f;
}

uint64_t lt_store_file_bytes(const lt_store *s, uint32_t file)
{
    const store_file *f = lt__store_file((lt_store *)s, file);
    return f ? f->bytes : 0;
}

const char *lt_store_file_path(const lt_store *s, uint32_t file)
{
    const store_file *f = lt__store_file((lt_store *)s, file);
    return f ? f->path : "(no such file of the store)";
}

lt_store_mode lt_store_mode_used(const lt_store *cs)
{
    lt_store *s = (lt_store *)cs;
    pthread_mutex_lock(&s->lock);
    lt_store_mode m = s->used;
    pthread_mutex_unlock(&s->lock);
    return m;
}

lt_store_mode lt__store_file_mode(lt_store *s, uint32_t file)
{
    const store_file *f = lt__store_file(s, file);
    if (!f) return LT_STORE_PLAIN;
    if (atomic_load(&f->direct)) return LT_STORE_DIRECT;
    return f->map ? LT_STORE_MAPPED : LT_STORE_PLAIN;
}

lt_status lt__store_check_size(lt_store *s, store_file *f, lt_err *err)
{
    (void)s;
    struct stat sb;
    if (fstat(f->fd, &sb) != 0) return lt__fail_errno(err, errno, "%s: cannot ask its size", f->path);
    if ((uint64_t)sb.st_size != f->bytes)
        return lt__fail(err, LT_E_IO,
                        "%s: the file changed while in use: it had %" PRIu64 " bytes and has %" PRIu64,
                        f->path, f->bytes, (uint64_t)sb.st_size);
    return LT_OK;
}

static bool span_inside(const store_file *f, uint64_t offset, uint64_t bytes)
{
    uint64_t end;
    return lt__add_u64(offset, bytes, &end) && end <= f->bytes;
}

const void *lt_store_map(const lt_store *s, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const store_file *f = lt__store_file((lt_store *)s, file);
    if (!f || !f->map || !span_inside(f, offset, bytes)) return NULL;
    return (const char *)f->map + offset;
}

const void *lt__store_map_whole(lt_store *s, uint32_t file, uint64_t *bytes)
{
    const store_file *f = lt__store_file(s, file);
    *bytes = f && f->map ? f->bytes : 0;
    return f ? f->map : NULL;
}

lt_status lt__store_map_checked(lt_store *s, uint32_t file, uint64_t offset, uint64_t bytes,
                                const void **out, lt_err *err)
{
    *out = NULL;
    store_file *f = lt__store_file(s, file);
    if (!f || !f->map) return LT_OK;
    if (!span_inside(f, offset, bytes))
        return lt__fail(err, LT_E_INVALID, "%s: bytes %" PRIu64 "+%" PRIu64 " are outside of its %" PRIu64,
                        f->path, offset, bytes, f->bytes);
    lt_status st = lt__store_check_size(s, f, err);
    if (st != LT_OK) return st;
    if (lt__fault(s->ctx, LT_FAULT_READ))
        return lt__fail_errno(err, EIO, "%s: cannot read %" PRIu64 " bytes at %" PRIu64, f->path, bytes,
                              offset);
    *out = (const char *)f->map + offset;
    return LT_OK;
}

lt_status lt__store_read_plain(lt_store *s, store_file *f, uint64_t offset, void *dst, uint64_t bytes,
                               lt_err *err)
{
    uint64_t done = 0;
    while (done < bytes) {
        size_t n = (size_t)lt__min_u64(bytes - done, PLAIN_UNIT);
        ssize_t got = -1;
        if (lt__fault(s->ctx, LT_FAULT_READ)) errno = EIO;
        else got = pread(f->fd, (char *)dst + done, n, (off_t)(offset + done));
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0)
            return lt__fail_errno(err, errno, "%s: cannot read %" PRIu64 " bytes at %" PRIu64, f->path, bytes,
                                  offset);
        if (got == 0)
            return lt__fail(err, LT_E_IO,
                            "%s: ends at byte %" PRIu64 ", %" PRIu64 " bytes at %" PRIu64 " were expected",
                            f->path, offset + done, bytes, offset);
        done += (uint64_t)got;
    }
    return LT_OK;
}

static lt_status take_window(lt_store *s, lt__window **out, lt_err *err)
{
    *out = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->idle_len > 0) *out = s->idle[--s->idle_len];
    pthread_mutex_unlock(&s->lock);
    return *out ? LT_OK : lt__window_create(s, out, err);
}

static void give_window(lt_store *s, lt__window *w)
{
    pthread_mutex_lock(&s->lock);
    bool kept =
        lt__grow(s->ctx, (void **)&s->idle, &s->idle_cap, s->idle_len + 1, sizeof *s->idle, NULL) == LT_OK;
    if (kept) s->idle[s->idle_len++] = w;
    pthread_mutex_unlock(&s->lock);
    if (!kept) lt__window_destroy(w);
}

lt_status lt_store_read(lt_store *s, uint32_t file, uint64_t offset, void *dst, uint64_t bytes, lt_err *err)
{
    if (!s || (!dst && bytes))
        return lt__fail(err, LT_E_INVALID, "store: store and destination must not be NULL");
    if (bytes == 0) return LT_OK;
    lt__window *w;
    lt_status st = take_window(s, &w, err);
    if (st != LT_OK) return st;
    lt__fetch r = {.file = file, .offset = offset, .bytes = bytes, .dst = dst};
    lt__window_queue(w, &r);
    st = lt__window_finish(w, &r, err);
    give_window(s, w);
    return st;
}

void lt_store_get_stats(const lt_store *s, lt_store_stats *out)
{
    *out = (lt_store_stats){atomic_load(&s->reads), atomic_load(&s->bytes), atomic_load(&s->direct_bytes),
                            atomic_load(&s->busy_ns)};
}

void lt__store_forbid_uring(lt_store *s) { atomic_store(&s->no_uring, true); }
