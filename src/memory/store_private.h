/* store_private.h - what store.c, store_window.c and the two disk engines share. */
#ifndef LT_MEMORY_STORE_PRIVATE_H
#define LT_MEMORY_STORE_PRIVATE_H

#include "memory/store_window.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct store_file {
    char       *path;
    size_t      path_bytes; /* with the 0 */
    int         fd, fd_direct; /* -1: none */
    uint64_t    bytes;
    void       *map;
    atomic_bool direct; /* cleared for good when the file system refuses */
} store_file;

struct lt_store {
    lt_ctx         *ctx;
    lt_store_mode   asked;
    uint64_t        cache_bytes;
    pthread_mutex_t lock; /* files, used, idle windows */
    store_file    **files;
    size_t          files_cap;
    uint32_t        files_len;
    uint64_t        total_bytes;
    lt_store_mode   used;
    lt__window    **idle;
    size_t          idle_cap, idle_len;
    atomic_bool     no_uring, said_uring, said_direct;
    atomic_uint_fast64_t reads, bytes, direct_bytes, busy_ns;
};

store_file *lt__store_file(lt_store *s, uint32_t file); /* NULL: no such */
void lt__store_refuse_direct(lt_store *s, store_file *f, int why);
lt_status lt__store_check_size(lt_store *s, store_file *f, lt_err *err);
lt_status lt__store_read_plain(lt_store *s, store_file *f, uint64_t offset, void *dst, uint64_t bytes,
                               lt_err *err);

/* One transfer of an engine: at most LT__READ_UNIT bytes, whole blocks. */
typedef struct disk_piece {
    lt__fetch *read;
    store_file *file;
    int       fd;
    uint64_t  offset;
    size_t    bytes, got;
    char     *buf;
    int       bounce;    /* index, -1: straight to dst */
    uint64_t  want_from; /* file range that the read asked for */
    size_t    want_bytes;
    int       result;    /* bytes, or -errno */
    bool      used;
    struct disk_piece *next;
} disk_piece;

/* Depth-first disk access; one is made per window. */
typedef struct disk_engine disk_engine;
struct disk_engine {
    void (*destroy)(disk_engine *e);
    int (*submit)(disk_engine *e, disk_piece *p); /* 0 or -errno; p stays until reaped */
    void (*flush)(disk_engine *e);                /* what was submitted must start now */
    disk_piece *(*reap)(disk_engine *e, bool wait); /* NULL: none is ready */
};
/* NULL when the kernel or the container has no io_uring; *why is an errno then. */
disk_engine *lt__disk_uring_create(lt_ctx *ctx, int *why);
disk_engine *lt__disk_threads_create(lt_ctx *ctx, lt_err *err);

#endif
