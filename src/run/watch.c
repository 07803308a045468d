#include "run/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/proc.h"
#include "run/ledger.h"

#define MAGIC UINT64_C(0x316863746177746c) /* "ltwatch1" */
#define SUFFIX ".watch"
#define PAGES_MOST 1000 /* of one process, with what an earlier one of its number left */

/* seq is odd while the writer is at it: a reader that saw it change, or odd, looks again. */
typedef struct page { uint64_t magic, bytes; lt__proc proc; _Atomic uint32_t seq; lt_watch now; } page;

struct lt__watcher { lt_ctx *ctx; page *page; uint64_t started_ns; lt__proc me; char path[320]; };

lt__watcher *lt__watcher_open(lt_ctx *ctx)
{
    char folder[256];
    lt_err why;
    if (lt__shared_folder(folder, sizeof folder, &why) != LT_OK) {
        lt__log(ctx, LT_LOG_DEBUG, "watch", "not seen by lowtide top: %s", why.text);
        return NULL;
    }
    lt__watcher *w = lt__zalloc(ctx, sizeof *w);
    if (!w)
        return NULL;
    w->ctx = ctx;
    w->me = lt__proc_self();
    w->started_ns = lt__now_ns();
    int fd = -1;
    for (unsigned k = 1; fd < 0 && k <= PAGES_MOST; k++) { /* a name of one's own: other sessions of this process have theirs */
        snprintf(w->path, sizeof w->path, "%s/%u-%u" SUFFIX, folder, w->me.pid, k);
        fd = open(w->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd >= 0 && posix_fallocate(fd, 0, sizeof(page)) == 0)
        w->page = mmap(NULL, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (!w->page || w->page == MAP_FAILED) {
        if (fd >= 0)
            unlink(w->path);
        lt__free(ctx, w, sizeof *w);
        return NULL;
    }
    w->page->proc = w->me;
    w->page->bytes = sizeof(page);
    w->page->magic = MAGIC;
    return w;
}

void lt__watcher_close(lt__watcher *w)
{
    if (!w)
        return;
    unlink(w->path);
    munmap(w->page, sizeof(page));
    lt__free(w->ctx, w, sizeof *w);
}

/* gcc's thread sanitizer refuses fences; who meets here are processes, which it does not see. */
static void fence(memory_order order)
{
#ifdef __SANITIZE_THREAD__
    atomic_signal_fence(order);
#else
    atomic_thread_fence(order);
#endif
}

void lt__watcher_write(lt__watcher *w, const lt_watch *now)
{
    uint32_t seq = atomic_load_explicit(&w->page->seq, memory_order_relaxed);
    atomic_store_explicit(&w->page->seq, seq + 1, memory_order_relaxed);
    fence(memory_order_release);
    w->page->now = *now;
    w->page->now.pid = w->me.pid;
    w->page->now.started_ns = w->started_ns;
    w->page->now.now_ns = lt__now_ns();
    atomic_store_explicit(&w->page->seq, seq + 2, memory_order_release);
}

static bool read_page(const page *p, lt__proc *proc, lt_watch *out)
{
    if (p->magic != MAGIC || p->bytes != sizeof(page))
        return false;
    for (int tries = 0; tries < 100; tries++) {
        uint32_t seq = atomic_load_explicit(&p->seq, memory_order_acquire);
        *out = p->now;
        *proc = p->proc;
        fence(memory_order_acquire);
        if (seq && seq % 2 == 0 && atomic_load_explicit(&p->seq, memory_order_relaxed) == seq)
            return true;
    }
    return false; /* killed while writing, or nothing written yet */
}

/* Bytes of the UTF-8 character at s, 0 where there is none. */
static int utf8_length(const unsigned char *s)
{
    int n = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool wrong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return wrong ? 0 : n;
}

/* What a reader prints must be text, whatever is in the file. */
static void tidy(char *s, size_t bytes)
{
    s[bytes - 1] = 0;
    while (*s) {
        int n = utf8_length((const unsigned char *)s);
        if (n == 0 || (unsigned char)*s < 32 || *s == 127)
            *s = '?';
        s += n ? n : 1;
    }
}

static bool read_file(int dir, const char *name, lt_watch *out)
{
    struct stat st;
    lt__proc proc = {0};
    bool ok = false, dead = false;
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == (off_t)sizeof(page)) {
        page *p = mmap(NULL, sizeof(page), PROT_READ, MAP_SHARED, fd, 0);
        if (p != MAP_FAILED) {
            ok = read_page(p, &proc, out);
            dead = p->magic == MAGIC && !lt__proc_alive(&p->proc, ok ? out->now_ns : 0);
            munmap(p, sizeof(page));
        }
    }
    close(fd);
    if (dead)
        unlinkat(dir, name, 0);
    if (!ok || dead)
        return false;
    tidy(out->model, sizeof out->model);
    tidy(out->device, sizeof out->device);
    tidy(out->id, sizeof out->id);
    tidy(out->phase, sizeof out->phase);
    uint64_t now = lt__now_ns();
    out->age_ns = now > out->now_ns ? now - out->now_ns : 0;
    return true;
}

static int older_first(const void *a, const void *b)
{
    const lt_watch *x = a, *y = b;
    return x->started_ns < y->started_ns ? -1 : x->started_ns > y->started_ns;
}

size_t lt_watch_list(lt_watch *out, size_t most)
{
    char folder[256];
    size_t n = 0;
    if (lt__shared_folder(folder, sizeof folder, NULL) != LT_OK)
        return 0;
    DIR *d = opendir(folder);
    if (!d)
        return 0;
    for (struct dirent *e; n < most && (e = readdir(d)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len > strlen(SUFFIX) && strcmp(e->d_name + len - strlen(SUFFIX), SUFFIX) == 0 && read_file(dirfd(d), e->d_name, &out[n]))
            n++;
    }
    closedir(d);
    qsort(out, n, sizeof *out, older_first);
    return n;
}
