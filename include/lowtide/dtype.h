/* dtype.h - element types: how many elements and bytes a block has.
 *
 *     const lt_dtype_traits *t = lt_dtype_get(LT_DTYPE_Q4_K);
 *     uint64_t row_bytes;
 *     if (!lt_dtype_row_bytes(LT_DTYPE_Q4_K, cols, &row_bytes))
 *         return -1;
 *
 * Order      none.
 * Lifetime   the table is static.
 * Threads    immutable.
 * Errors     a size that overflows or does not divide into blocks gives false.
 */
#ifndef LT_DTYPE_H
#define LT_DTYPE_H

#include "lowtide/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, gguf id, elements per block, bytes per block, kind). The gguf id is -1
 * for what no GGUF holds. Q8A is an activation: see docs/arithmetic.md. */
#define LT_DTYPE_LIST(X)             \
    X(F32,    0,   1,   4,  FLOAT)   \
    X(F16,    1,   1,   2,  FLOAT)   \
    X(BF16,   30,  1,   2,  FLOAT)   \
    X(Q4_0,   2,   32,  18, QUANT)   \
    X(Q4_1,   3,   32,  20, QUANT)   \
    X(Q5_0,   6,   32,  22, QUANT)   \
    X(Q5_1,   7,   32,  24, QUANT)   \
    X(Q8_0,   8,   32,  34, QUANT)   \
    X(Q2_K,   10,  256, 84, QUANT)   \
    X(Q3_K,   11,  256, 110, QUANT)  \
    X(Q4_K,   12,  256, 144, QUANT)  \
    X(Q5_K,   13,  256, 176, QUANT)  \
    X(Q6_K,   14,  256, 210, QUANT)  \
    X(IQ4_NL, 20,  32,  18, QUANT)   \
    X(IQ4_XS, 23,  256, 136, QUANT)  \
    X(MXFP4,  39,  32,  17, QUANT)   \
    X(I32,    26,  1,   4,  INT)     \
    X(I8,     24,  1,   1,  INT)     \
    X(Q8A,    -1,  32,  40, ACT)

typedef enum lt_dtype {
#define LT_X(name, gguf, elems, bytes, kind) LT_DTYPE_##name,
    LT_DTYPE_LIST(LT_X)
#undef LT_X
    LT_DTYPE_COUNT
} lt_dtype;

typedef enum lt_dtype_kind {
    LT_DTYPE_KIND_FLOAT, LT_DTYPE_KIND_QUANT, LT_DTYPE_KIND_INT, LT_DTYPE_KIND_ACT
} lt_dtype_kind;

typedef struct lt_dtype_traits {
    const char   *name;        /* "Q4_K" */
    int32_t       gguf_id;     /* -1: none */
    uint32_t      block_elems;
    uint32_t      block_bytes;
    lt_dtype_kind kind;
} lt_dtype_traits;

LT_API const lt_dtype_traits *lt_dtype_get(lt_dtype t); /* NULL when out of range */
LT_API bool lt_dtype_from_gguf(uint32_t gguf_id, lt_dtype *out);
LT_API bool lt_dtype_from_name(const char *name, lt_dtype *out); /* any case */
/* Name of any GGUF type id, also of those we refuse ("IQ2_XXS"); NULL if unknown. */
LT_API const char *lt_dtype_gguf_name(uint32_t gguf_id);
LT_API bool lt_dtype_row_bytes(lt_dtype t, uint64_t cols, uint64_t *out);
/* The readable definition of every dtype: n elements, n a multiple of block_elems. */
LT_API void lt_dtype_to_f32(lt_dtype t, const void *src, float *dst, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
