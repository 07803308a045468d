/* store.h - read-only model files behind one interface: mapped, direct or plain reads.
 *
 *     lt_store *s;  uint32_t f;
 *     lt_store_create(ctx, LT_STORE_AUTO, 0, &s, &err);
 *     lt_store_add_file(s, "model.gguf", &f, &err);
 *     lt_store_read(s, f, offset, buffer, bytes, &err);
 *
 * Order      none; reads are independent.
 * Lifetime   files stay open until destroy. lt_store_map borrows until destroy.
 * Threads    any thread.
 * Errors     a short file, a file that changed its size and a failing disk are E_IO with name
 *            and offset; a span outside of the file is E_INVALID.
 */
#ifndef LT_STORE_H
#define LT_STORE_H

#include "lowtide/residency.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum lt_store_mode {
    LT_STORE_AUTO,   /* MAPPED when the files fit `cache_bytes`, else DIRECT */
    LT_STORE_MAPPED, /* shared read-only mapping; reads are copies from the page cache */
    LT_STORE_DIRECT, /* O_DIRECT through io_uring, several 1 MiB reads in flight; no page cache.
                        Falls back to PLAIN where the file system refuses, and says so once */
    LT_STORE_PLAIN   /* pread */
} lt_store_mode;

/* cache_bytes: how much page cache AUTO counts on; 0: what this machine and container can spare now. */
LT_API LT_NODISCARD lt_status
lt_store_create(lt_ctx *ctx, lt_store_mode mode, uint64_t cache_bytes, lt_store **out, lt_err *err);
LT_API void lt_store_destroy(lt_store *s);
LT_API LT_NODISCARD lt_status
lt_store_add_file(lt_store *s, const char *path, uint32_t *out, lt_err *err);
LT_API uint64_t lt_store_file_bytes(const lt_store *s, uint32_t file);
LT_API const char *lt_store_file_path(const lt_store *s, uint32_t file);
LT_API lt_store_mode lt_store_mode_used(const lt_store *s);

/* Any offset, size and destination. Widest when (dst - offset) is a multiple of 4096:
 * then a direct read goes straight to dst; else through a bounce buffer. */
LT_API LT_NODISCARD lt_status
lt_store_read(lt_store *s, uint32_t file, uint64_t offset, void *dst, uint64_t bytes, lt_err *err);
/* NULL when the mode does not map. Touching it is at the caller's risk: a file that someone
 * truncates meanwhile is a SIGBUS there, where lt_store_read answers E_IO. */
LT_API const void *lt_store_map(const lt_store *s, uint32_t file, uint64_t offset, uint64_t bytes);

typedef struct lt_store_stats { uint64_t reads, bytes, direct_bytes, busy_ns; } lt_store_stats;
LT_API void lt_store_get_stats(const lt_store *s, lt_store_stats *out);

#ifdef __cplusplus
}
#endif
#endif
