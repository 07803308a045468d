#include "backend/sim/card.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/proc.h"

#define MAGIC UINT64_C(0x31647261636d6973) /* "simcard1" */
enum { SLOTS = 62 };

typedef struct slot { lt__proc proc; _Atomic uint64_t taken; } slot;
typedef struct page { uint64_t magic, vram; slot slots[SLOTS]; } page;

struct lt_simcard {
    lt_ctx *ctx;
    page   *page;
    int     fd, slot;
};

static void lock(const lt_simcard *c)
{
    while (flock(c->fd, LOCK_EX) != 0 && errno == EINTR) {
    }
}

static void unlock(const lt_simcard *c) { (void)flock(c->fd, LOCK_UN); }

/* Under the lock. */
static void sweep(page *p)
{
    for (int i = 0; i < SLOTS; i++)
        if (p->slots[i].proc.pid && !lt__proc_alive(&p->slots[i].proc, 0)) {
            atomic_store(&p->slots[i].taken, 0);
            p->slots[i].proc = (lt__proc){0};
        }
}

static uint64_t taken(page *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < SLOTS; i++)
        sum += atomic_load_explicit(&p->slots[i].taken, memory_order_relaxed);
    return sum;
}

/* Under the lock. */
static lt_status take_slot(lt_simcard *c, const char *path, uint64_t vram, lt_err *err)
{
    page *p = c->page;
    char a[24], b[24];
    if (!p->magic) {
        p->vram = vram;
        p->magic = MAGIC;
    }
    if (p->magic != MAGIC)
        return lt__fail(err, LT_E_INVALID, "sim: card=%s is no file of a simulated card", path);
    if (p->vram != vram)
        return lt__fail(err, LT_E_INVALID, "sim: card=%s has %s, this device says vram=%s", path,
                        lt__format_bytes(p->vram, a, sizeof a), lt__format_bytes(vram, b, sizeof b));
    sweep(p);
    for (int i = 0; i < SLOTS; i++)
        if (!p->slots[i].proc.pid) {
            p->slots[i].proc = lt__proc_self();
            c->slot = i;
            return LT_OK;
        }
    return lt__fail(err, LT_E_BUSY, "sim: card=%s has %d users already, which is the most", path, SLOTS);
}

lt_status lt__simcard_open(lt_ctx *ctx, const char *path, uint64_t vram_bytes, lt_simcard **out, lt_err *err)
{
    *out = NULL;
    lt_simcard *c = lt__zalloc(ctx, sizeof *c);
    if (!c)
        return lt__fail_oom(err, sizeof *c, "a simulated card");
    c->ctx = ctx;
    c->slot = -1;
    lt_status s = LT_OK;
    struct stat st;
    c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->fd < 0) {
        s = lt__fail_errno(err, errno, "sim: card=%s cannot be opened", path);
        goto fail;
    }
    lock(c);
    if (fstat(c->fd, &st) != 0 || (st.st_size < (off_t)sizeof(page) && ftruncate(c->fd, sizeof(page)) != 0)) {
        s = lt__fail_errno(err, errno, "sim: card=%s cannot be made %zu bytes long", path, sizeof(page));
        goto fail_locked;
    }
    c->page = mmap(NULL, sizeof(page), PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (c->page == MAP_FAILED) {
        s = lt__fail_errno(err, errno, "sim: card=%s cannot be mapped", path);
        c->page = NULL;
        goto fail_locked;
    }
    s = take_slot(c, path, vram_bytes, err);
    if (s != LT_OK)
        goto fail_locked;
    unlock(c);
    *out = c;
    return LT_OK;
fail_locked:
    unlock(c);
fail:
    lt__simcard_close(c);
    return s;
}

void lt__simcard_close(lt_simcard *c)
{
    if (!c)
        return;
    if (c->slot >= 0) {
        lock(c);
        atomic_store(&c->page->slots[c->slot].taken, 0);
        c->page->slots[c->slot].proc = (lt__proc){0};
        unlock(c);
    }
    if (c->page)
        munmap(c->page, sizeof(page));
    if (c->fd >= 0)
        close(c->fd);
    lt__free(c->ctx, c, sizeof *c);
}

bool lt__simcard_take(lt_simcard *c, uint64_t bytes, uint64_t *free_bytes)
{
    lock(c);
    uint64_t used = taken(c->page);
    if (used > c->page->vram || bytes > c->page->vram - used) {
        sweep(c->page);
        used = taken(c->page);
    }
    *free_bytes = used < c->page->vram ? c->page->vram - used : 0;
    bool fits = bytes <= *free_bytes;
    if (fits)
        atomic_fetch_add(&c->page->slots[c->slot].taken, bytes);
    unlock(c);
    return fits;
}

void lt__simcard_give(lt_simcard *c, uint64_t bytes)
{
    lock(c);
    atomic_fetch_sub(&c->page->slots[c->slot].taken, bytes);
    unlock(c);
}

static void name_file(const struct stat *st, char *out, size_t bytes)
{
    snprintf(out, bytes, "sim-%llx-%llx", (unsigned long long)st->st_dev, (unsigned long long)st->st_ino);
}

void lt__simcard_id(const lt_simcard *c, char *out, size_t bytes)
{
    struct stat st = {0};
    (void)fstat(c->fd, &st);
    name_file(&st, out, bytes);
}

bool lt__simcard_id_of(const char *path, char *out, size_t bytes)
{
    struct stat st;
    bool found = stat(path, &st) == 0;
    if (found)
        name_file(&st, out, bytes);
    return found;
}

uint64_t lt__simcard_free(lt_simcard *c)
{
    lock(c);
    sweep(c->page);
    uint64_t used = taken(c->page);
    unlock(c);
    return used < c->page->vram ? c->page->vram - used : 0;
}
