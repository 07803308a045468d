/* flash.h - what the families of prompt attention share: a table of kernels, what they accept, their launch. */
#ifndef LT_CUDA_FLASH_H
#define LT_CUDA_FLASH_H

#include "backend/cuda/launch.h"
#include "backend/cuda/kernels/flash_shape.h"

typedef struct lt_cuda_flash {
    const char *name;
    uint32_t    head_dim, rows, threads, bytes; /* rows: (token, head) pairs of a block; bytes of shared memory */
    uint32_t    keys; /* of a tile, where the copy engine brings them; else 0 */
    const char *sage; /* kernel that rounds the keys to int8, or NULL */
    bool        items; /* a block an SM, which takes blocks of rows one after the other */
} lt_cuda_flash;

/* The kernel of a table that computes `how` for these arguments, or NULL and why. */
const lt_cuda_flash *lt__cuda_flash_find(const lt_cuda_flash *table, size_t n, lt_attention how, const lt_cuda_device *dev,
                                         const lt_op_args *args, const char **why);
/* Maps of K and V are made where the kernel has keys. */
LT_NODISCARD lt_status lt__cuda_flash_launch(const lt_cuda_flash *kernel, const char *family, lt_cuda_device *dev, CUstream stream,
                                             const lt_op_args *args, lt_err *err);
uint64_t lt__cuda_flash_scratch(const lt_cuda_flash *kernel, const lt_op_args *args);
lt_cuda_capped lt__cuda_attention_args(const lt_cuda_device *dev, const lt_op_args *args);

/* Whether the kernels with soft caps and sinks are wanted. They are families of their own: a model without has neither their
 * memory nor their registers. */
static inline bool lt__cuda_is_capped(const lt_op_args *args) { return args->params.ATTENTION.cap > 0 || args->n_src > 4; }
static inline const char *lt__cuda_attention_family(const lt_op_args *args) { return lt__cuda_is_capped(args) ? "attention_capped" : "attention"; }

#endif
