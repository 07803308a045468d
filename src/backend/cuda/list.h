/* list.h - the steps a list of launches is made of, shared by list.c and fuse.c. */
#ifndef LT_CUDA_LIST_H
#define LT_CUDA_LIST_H

#include "backend/cuda/device.h"
#include "backend/cuda/launch.h"

typedef struct lt_cuda_step lt_cuda_step;
typedef lt_status lt_cuda_give(lt_cuda_device *d, CUstream stream, const lt_launch_list *list, const lt_cuda_step *step, lt_err *err);

/* Ops first .. first + n of a list, given to the driver at once. */
struct lt_cuda_step {
    size_t             first, n;
    lt_cuda_give      *give;
    const lt_cuda_row *row;    /* of an op that stays alone */
    const char        *kernel; /* of the family `fused`, which does them all; with what follows */
    lt_cuda_dim        grid, block;
    uint32_t           shared_bytes;
    union {
        lt_cuda_chain chain;
        lt_cuda_gate  gate;
        lt_cuda_heads heads;
    } u;
};

/* Puts launches that could go together beside each other; what they compute stays the same. */
void lt__cuda_arrange(const lt_op_args **args, size_t n);
/* Fills in a step for as many ops from `first` on as go together; false: the op stays alone. */
bool lt__cuda_fuse(lt_cuda_device *d, const lt_launch_list *list, size_t first, lt_cuda_step *out);

#endif
