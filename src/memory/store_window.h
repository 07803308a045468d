/* store_window.h - a window of file reads in flight, for one thread at a time.
 *
 * Reads are queued ahead of need; the window keeps up to LT__READ_DEPTH of
 * LT__READ_UNIT bytes in flight across the borders of reads, because a disk earns
 * its speed from depth, not from order. */
#ifndef LT_MEMORY_STORE_WINDOW_H
#define LT_MEMORY_STORE_WINDOW_H

#include "lowtide/store.h"

enum { LT__READ_BLOCK = 4096, LT__READ_UNIT = 1 << 20, LT__READ_DEPTH = 16, LT__READ_BOUNCES = 8 };

typedef struct lt__window lt__window;

/* Owned by the caller and kept where it is from queue to finish. */
typedef struct lt__fetch {
    uint32_t file;
    uint64_t offset, bytes;
    void    *dst;
    bool     spill; /* the rest of the first and last 4096-byte block around dst may be written too */
    /* private */
    lt_status        status;
    lt_err           err;
    uint64_t         issued;   /* bytes from offset handed to the disk */
    uint32_t         inflight; /* pieces */
    bool             queued;
    struct lt__fetch *next;
} lt__fetch;

LT_NODISCARD lt_status lt__window_create(lt_store *s, lt__window **out, lt_err *err);
/* Reads through the page cache with several threads at once, whatever the file's mode: for copying out of memory
 * faster than one thread can. Before the first read. */
void lt__window_through_cache(lt__window *w);
void lt__window_destroy(lt__window *w); /* waits for what is in flight */
void lt__window_queue(lt__window *w, lt__fetch *r);
/* Hands as much to the disk as the window takes; does not wait. */
void lt__window_pump(lt__window *w);
bool lt__window_done(const lt__fetch *r);
/* Waits for this read; later ones go on meanwhile. */
LT_NODISCARD lt_status lt__window_finish(lt__window *w, lt__fetch *r, lt_err *err);

/* MAPPED, DIRECT or PLAIN: how this very file is read now. */
lt_store_mode lt__store_file_mode(lt_store *s, uint32_t file);
/* lt_store_map after asking the file system that the span is still there; NULL with
 * *err set when the file changed its size, NULL with LT_OK when it is not mapped. */
LT_NODISCARD lt_status lt__store_map_checked(lt_store *s, uint32_t file, uint64_t offset, uint64_t bytes,
                                             const void **out, lt_err *err);
/* The whole mapping of a file; NULL when it is not mapped. */
const void *lt__store_map_whole(lt_store *s, uint32_t file, uint64_t *bytes);
void lt__store_forbid_uring(lt_store *s); /* tests: as if the kernel had none */

#endif
