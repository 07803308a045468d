/* modelfile.h - a model on disk: keys and tensors, validated once, whatever the format.
 *
 *     lt_modelfile *f;
 *     lt_modelfile_open(ctx, "model.gguf", &f, &err);       // also -00001-of-0000N, DIR, *.safetensors
 *     const char *arch = lt_modelfile_str(f, "general.architecture", NULL);
 *     const lt_tensor_info *t = lt_modelfile_tensor(f, "token_embd.weight");
 *     lt_modelfile_close(f);
 *
 * One vocabulary: keys and tensor names are GGUF's. A Hugging Face folder (config.json,
 * tokenizer.json, *.safetensors) is translated when opened: names, hyperparameters,
 * tokenizer; `lowtide.rope_style` is "halves" there, and absent in GGUF files.
 * A bare .safetensors file without config.json keeps its own names (inspect, convert).
 *
 * Order      none after open.
 * Lifetime   strings and arrays are borrowed until close.
 * Threads    immutable after open.
 * Errors     E_FORMAT names the file, the key or tensor, the value and what was expected.
 *            Nothing is allocated by a length from the file before it was checked
 *            against the bytes that remain.
 */
#ifndef LT_MODELFILE_H
#define LT_MODELFILE_H

#include "lowtide/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lt_modelfile lt_modelfile;

typedef struct lt_tensor_info {
    const char *name;
    const char *type_name;  /* of the file, also when we do not support it: "IQ2_XXS" */
    lt_dtype    dtype;      /* LT_DTYPE_COUNT: not supported */
    uint32_t    ndim;
    uint64_t    dim[4];     /* outermost first: [rows, cols] for a matrix */
    uint64_t    bytes;
    uint32_t    file;       /* index into the parts */
    uint64_t    offset;     /* from the start of that file */
    float       add;        /* added to each element when read as f32: 1 for HF Gemma norms, else 0 */
} lt_tensor_info;

typedef enum lt_key_type { LT_KEY_BOOL, LT_KEY_INT, LT_KEY_UINT, LT_KEY_FLOAT, LT_KEY_STRING, LT_KEY_ARRAY } lt_key_type;
/* Arrays keep their elements in one contiguous run of one of these types. */
typedef struct lt_key {
    const char *name;
    lt_key_type type, elem_type; /* elem_type for arrays, never ARRAY */
    uint64_t    n;               /* elements of an array, else 1 */
    union {
        const bool *b; const int64_t *i; const uint64_t *u; const double *f;
        const char *const *s; /* NUL-terminated copies; embedded NUL is E_FORMAT in keys and names, kept by length in s_len */
    } v;
    const uint32_t *s_len;       /* byte lengths of strings */
} lt_key;

LT_API LT_NODISCARD lt_status
lt_modelfile_open(lt_ctx *ctx, const char *path, lt_modelfile **out, lt_err *err);
LT_API void lt_modelfile_close(lt_modelfile *f); /* NULL is fine */

LT_API const char *lt_modelfile_format(const lt_modelfile *f); /* "gguf 3", "safetensors" */
LT_API uint32_t    lt_modelfile_parts(const lt_modelfile *f);
LT_API const char *lt_modelfile_part_path(const lt_modelfile *f, uint32_t part);
LT_API uint64_t    lt_modelfile_part_bytes(const lt_modelfile *f, uint32_t part);
LT_API uint64_t    lt_modelfile_tensor_count(const lt_modelfile *f);
LT_API const lt_tensor_info *lt_modelfile_tensor_at(const lt_modelfile *f, uint64_t i);
LT_API const lt_tensor_info *lt_modelfile_tensor(const lt_modelfile *f, const char *name); /* NULL: none */
LT_API uint64_t    lt_modelfile_key_count(const lt_modelfile *f);
LT_API const lt_key *lt_modelfile_key_at(const lt_modelfile *f, uint64_t i);
LT_API const lt_key *lt_modelfile_key(const lt_modelfile *f, const char *name); /* NULL: none */
/* Typed reads with a default for an absent key; a key of another type is `false`/default too,
 * so required keys are read with lt_modelfile_key and checked by the caller's row. */
LT_API const char *lt_modelfile_str(const lt_modelfile *f, const char *name, const char *dflt);
LT_API bool        lt_modelfile_u64(const lt_modelfile *f, const char *name, uint64_t *out);
LT_API bool        lt_modelfile_f64(const lt_modelfile *f, const char *name, double *out);
LT_API bool        lt_modelfile_bool(const lt_modelfile *f, const char *name, bool dflt);

#ifdef __cplusplus
}
#endif
#endif
