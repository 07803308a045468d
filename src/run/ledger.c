#include "run/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

#define MAGIC UINT64_C(0x31656764656c746c) /* "ltledge1" */

typedef struct page { uint64_t magic, record_bytes; lt__ledger_record record[LT__LEDGER_RECORDS]; } page;

struct lt__ledger {
    lt_ctx  *ctx;
    page    *page;
    int      fd, own; /* own: index of this one's record, -1: none */
    lt__proc me;
    uint32_t serial; /* where this one lies: what tells its record from others of this process */
};

static bool own_folder(const char *path)
{
    struct stat st;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return false;
    /* Somebody else's folder of that name, or a link to one, would let them write our records. */
    return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022) &&
           access(path, W_OK | X_OK) == 0;
}

lt_status lt__shared_folder(char *out, size_t bytes, lt_err *err)
{
    const char *set = getenv("LOWTIDE_SHARED_DIR"), *runtime = getenv("XDG_RUNTIME_DIR");
    const char *base[] = {"/dev/shm", runtime, "/tmp"};
    if (set && *set) {
        snprintf(out, bytes, "%s", set);
        return own_folder(out) ? LT_OK : lt__fail(err, LT_E_IO, "LOWTIDE_SHARED_DIR=%s is no folder of this user that can be written", set);
    }
    for (size_t i = 0; i < sizeof base / sizeof *base; i++) {
        if (!base[i] || *base[i] != '/')
            continue;
        int n = snprintf(out, bytes, "%s/lowtide-%u", base[i], (unsigned)geteuid());
        if (n > 0 && (size_t)n < bytes && own_folder(out))
            return LT_OK;
    }
    return lt__fail(err, LT_E_IO, "no folder for shared records can be written: not /dev/shm, $XDG_RUNTIME_DIR, /tmp");
}

bool lt__ledger_lock(lt__ledger *l, uint64_t wait_ns)
{
    for (uint64_t end = lt__now_ns() + wait_ns;;) {
        if (flock(l->fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        if ((errno != EWOULDBLOCK && errno != EINTR) || lt__now_ns() >= end)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
}

void lt__ledger_unlock(lt__ledger *l) { (void)flock(l->fd, LOCK_UN); }

static uint64_t sum_of(const lt__ledger_record *r)
{
    uint64_t h = UINT64_C(14695981039346656037);
    const uint8_t *p = (const uint8_t *)r;
    for (size_t i = 0; i < offsetof(lt__ledger_record, sum); i++)
        h = (h ^ p[i]) * UINT64_C(1099511628211);
    return h;
}

static bool valid(const lt__ledger_record *r)
{
    return r->proc.pid && r->sum == sum_of(r) && memchr(r->label, 0, sizeof r->label);
}

static bool mine(const lt__ledger *l, const lt__ledger_record *r) { return lt__proc_same(&r->proc, &l->me) && r->serial == l->serial; }

lt_status lt__ledger_open(lt_ctx *ctx, const char *folder, const char *id, lt__ledger **out, lt_err *err)
{
    char path[512];
    *out = NULL;
    lt__ledger *l = lt__zalloc(ctx, sizeof *l);
    if (!l)
        return lt__fail_oom(err, sizeof *l, "a ledger");
    *l = (lt__ledger){.ctx = ctx, .own = -1, .me = lt__proc_self(), .serial = (uint32_t)((uintptr_t)l / 16)};
    lt_status s = LT_OK;
    struct stat st;
    snprintf(path, sizeof path, "%s/%s.ledger", folder, id);
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0) {
        s = lt__fail_errno(err, errno, "%s cannot be opened", path);
        goto fail;
    }
    if (!lt__ledger_lock(l, UINT64_C(1000000000))) {
        s = lt__fail(err, LT_E_BUSY, "%s is locked by a process that does not go on", path);
        goto fail;
    }
    /* Written, not only made longer: on a full file system touching a hole would be a SIGBUS. */
    if (fstat(l->fd, &st) != 0 || (st.st_size < (off_t)sizeof(page) && posix_fallocate(l->fd, 0, sizeof(page)) != 0))
        s = lt__fail(err, LT_E_IO, "%s cannot be made %zu bytes long", path, sizeof(page));
    if (s == LT_OK && (l->page = mmap(NULL, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0)) == MAP_FAILED) {
        l->page = NULL;
        s = lt__fail_errno(err, errno, "%s cannot be mapped", path);
    }
    if (s == LT_OK && (l->page->magic != MAGIC || l->page->record_bytes != sizeof(lt__ledger_record))) {
        memset(l->page, 0, sizeof *l->page);
        l->page->magic = MAGIC;
        l->page->record_bytes = sizeof(lt__ledger_record);
    }
    lt__ledger_unlock(l);
    if (s != LT_OK)
        goto fail;
    *out = l;
    return LT_OK;
fail:
    lt__ledger_close(l);
    return s;
}

void lt__ledger_close(lt__ledger *l)
{
    if (!l)
        return;
    if (l->own >= 0 && lt__ledger_lock(l, UINT64_C(200000000))) {
        if (mine(l, &l->page->record[l->own]))
            memset(&l->page->record[l->own], 0, sizeof *l->page->record);
        lt__ledger_unlock(l);
    }
    if (l->page)
        munmap(l->page, sizeof(page));
    if (l->fd >= 0)
        close(l->fd);
    lt__free(l->ctx, l, sizeof *l);
}

uint32_t lt__ledger_others(lt__ledger *l, lt__ledger_record *out, bool sweep)
{
    uint32_t n = 0;
    for (int i = 0; i < LT__LEDGER_RECORDS; i++) {
        lt__ledger_record *r = &l->page->record[i];
        if (!r->proc.pid && !r->sum)
            continue;
        if (!valid(r) || (sweep && !lt__proc_alive(&r->proc, r->beat_ns))) {
            memset(r, 0, sizeof *r);
            continue;
        }
        if (!mine(l, r))
            out[n++] = *r;
    }
    return n;
}

lt_status lt__ledger_write(lt__ledger *l, const lt__ledger_record *r, lt_err *err)
{
    if (l->own >= 0 && !mine(l, &l->page->record[l->own]))
        l->own = -1; /* swept by a process that could not see us */
    for (int i = 0; i < LT__LEDGER_RECORDS && l->own < 0; i++)
        if (!valid(&l->page->record[i]))
            l->own = i;
    if (l->own < 0)
        return lt__fail(err, LT_E_BUSY, "the ledger holds %d processes already, which is the most", LT__LEDGER_RECORDS);
    lt__ledger_record own = *r;
    own.proc = l->me;
    own.serial = l->serial;
    own.beat_ns = lt__now_ns();
    own.label[sizeof own.label - 1] = 0;
    own.sum = sum_of(&own);
    l->page->record[l->own] = own;
    return LT_OK;
}
