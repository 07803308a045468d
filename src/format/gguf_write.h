/* gguf_write.h - GGUF files written for tests and tools, in bounded memory.
 *
 *     lt__gguf_writer *w;
 *     lt__gguf_writer_create(ctx, "tiny.gguf", 32, &w, err);
 *     lt__gguf_put_str(w, "general.architecture", "llama");
 *     lt__gguf_put_tensor(w, "output_norm.weight", LT_DTYPE_F32, 1, (uint64_t[]){64});
 *     lt__gguf_write(w, data, 256, err);      // the tensors' bytes, in the order they were put
 *     lt__gguf_writer_commit(w, err);         // or _abandon
 *
 * A put that fails is remembered; the next write or commit returns it. The file appears
 * under its name at commit only. */
#ifndef LT_FORMAT_GGUF_WRITE_H
#define LT_FORMAT_GGUF_WRITE_H

#include "lowtide/dtype.h"

typedef struct lt__gguf_writer lt__gguf_writer;

/* alignment is written as a key when it is not 32. */
LT_NODISCARD lt_status
lt__gguf_writer_create(lt_ctx *ctx, const char *path, uint32_t alignment, lt__gguf_writer **out, lt_err *err);
void lt__gguf_put_u16(lt__gguf_writer *w, const char *key, uint16_t v);
void lt__gguf_put_u32(lt__gguf_writer *w, const char *key, uint32_t v);
void lt__gguf_put_i32(lt__gguf_writer *w, const char *key, int32_t v);
void lt__gguf_put_u64(lt__gguf_writer *w, const char *key, uint64_t v);
void lt__gguf_put_f32(lt__gguf_writer *w, const char *key, float v);
void lt__gguf_put_bool(lt__gguf_writer *w, const char *key, bool v);
void lt__gguf_put_str(lt__gguf_writer *w, const char *key, const char *s);
void lt__gguf_put_strs(lt__gguf_writer *w, const char *key, const char *const *s, uint64_t n);
void lt__gguf_put_f32s(lt__gguf_writer *w, const char *key, const float *v, uint64_t n);
void lt__gguf_put_i32s(lt__gguf_writer *w, const char *key, const int32_t *v, uint64_t n);
/* dim: outermost first. All keys come before the first tensor. */
void lt__gguf_put_tensor(lt__gguf_writer *w, const char *name, lt_dtype t, uint32_t ndim, const uint64_t *dim);

LT_NODISCARD lt_status lt__gguf_write(lt__gguf_writer *w, const void *data, uint64_t bytes, lt_err *err);
/* E_INVALID when bytes are missing. Frees w in any case. */
LT_NODISCARD lt_status lt__gguf_writer_commit(lt__gguf_writer *w, lt_err *err);
void lt__gguf_writer_abandon(lt__gguf_writer *w); /* NULL is fine */

#endif
