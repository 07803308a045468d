/* list.h - the steps a list of launches is made of, shared by list.c and fuse.c. */
#ifndef LT_CUDA_LIST_H
#define LT_CUDA_LIST_H

#include "backend/cuda/device.h"
#include "backend/cuda/launch.h"

/* Ops first .. first + n of a list, given to the driver at once: an op by its row, products of one x as a group,
 * or neighbours by a kernel of the family `fused`. */
typedef struct lt_cuda_step {
    size_t             first, n;
    const lt_cuda_row *row;    /* of an op that stays alone, else NULL */
    const char        *kernel; /* of the family, else NULL: a group of products */
    lt_cuda_dim        grid, block;
    uint32_t           shared_bytes;
    union {
        lt_cuda_chain chain;
        lt_cuda_gate  gate;
        lt_cuda_heads heads;
    } u;
} lt_cuda_step;

/* Fills in a step for as many ops from `first` on as one kernel can do; false: the op stays alone. */
bool lt__cuda_fuse(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out);

#endif
