/* modelfile_impl.h - what the format readers fill and modelfile.c looks up. */
#ifndef LT_FORMAT_MODELFILE_IMPL_H
#define LT_FORMAT_MODELFILE_IMPL_H

#include "lowtide/modelfile.h"

typedef struct lt__mf_part { char *path; uint64_t bytes; } lt__mf_part;

/* Names, strings and arrays live in blocks that only the close frees. */
typedef struct lt__mf_block { struct lt__mf_block *next; size_t bytes, used; } lt__mf_block;

typedef struct lt__mf_index { uint32_t *slots; uint64_t n; } lt__mf_index; /* n: a power of two; slot: index + 1 */

struct lt_modelfile {
    lt_ctx         *ctx;
    char            format[24];
    lt__mf_part    *parts;
    size_t          n_parts, cap_parts;
    lt_tensor_info *tensors;
    size_t          n_tensors, cap_tensors;
    lt_key         *keys;
    size_t          n_keys, cap_keys;
    lt__mf_block   *blocks;
    lt__mf_index    key_index, tensor_index;
    uint64_t        seed; /* of the name hash: names made to collide must not */
};

/* NULL when out of host memory. Not zeroed. */
void *lt__mf_take(lt_modelfile *f, size_t bytes, size_t align);
char *lt__mf_strndup(lt_modelfile *f, const char *s, size_t n);
LT_NODISCARD lt_status lt__mf_add_part(lt_modelfile *f, const char *path, uint64_t bytes, uint32_t *out, lt_err *err);
LT_NODISCARD lt_status lt__mf_add_tensor(lt_modelfile *f, const lt_tensor_info *t, lt_err *err);
LT_NODISCARD lt_status lt__mf_add_key(lt_modelfile *f, const lt_key *k, lt_err *err);
LT_NODISCARD lt_status lt__mf_put_u64(lt_modelfile *f, const char *name, uint64_t v, lt_err *err);
LT_NODISCARD lt_status lt__mf_put_f64(lt_modelfile *f, const char *name, double v, lt_err *err);
LT_NODISCARD lt_status lt__mf_put_bool(lt_modelfile *f, const char *name, bool v, lt_err *err);
LT_NODISCARD lt_status lt__mf_put_str(lt_modelfile *f, const char *name, const char *s, size_t n, lt_err *err);

/* Builds what look-up by name needs, anew when there is one; E_FORMAT for a name that appears twice. */
LT_NODISCARD lt_status lt__mf_index_names(lt_modelfile *f, bool tensors, lt_err *err);
/* A whole text file of at most `max` bytes; freed with its length. */
LT_NODISCARD lt_status lt__mf_read_text(lt_ctx *ctx, const char *path, uint64_t max, char **text, size_t *n, lt_err *err);

/* A name of a key or tensor: valid UTF-8 without control characters. */
bool lt__mf_name_ok(const char *s, size_t n);

/* A range of one file that a tensor covers, to be held against its neighbours. */
typedef struct lt__mf_span { uint64_t begin, end, tensor; } lt__mf_span;
void lt__mf_sort_spans(lt__mf_span *v, size_t n);

/* `path` is any part; fills keys, tensors and parts. */
LT_NODISCARD lt_status lt__gguf_open(lt_modelfile *f, const char *path, lt_err *err);
/* One .safetensors file: its tensors under their own names. meta: also its __metadata__ as keys. */
LT_NODISCARD lt_status lt__safetensors_open(lt_modelfile *f, const char *path, bool meta, lt_err *err);
/* All shards that a .safetensors.index.json names. */
LT_NODISCARD lt_status lt__safetensors_open_index(lt_modelfile *f, const char *path, lt_err *err);
/* A folder with config.json: tensors and keys in GGUF's words. */
LT_NODISCARD lt_status lt__hf_open(lt_modelfile *f, const char *dir, lt_err *err);
bool lt__hf_is_folder(const char *dir);

#endif
