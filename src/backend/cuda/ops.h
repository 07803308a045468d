/* ops.h - what the CUDA device asks of an op: rows of functions beside embedded kernels.
 *
 * A family is one kernels/<family>.cu (its kernels extern "C"), one image per build, and one
 * launch_<family>.c with its rows. Families are listed in families.def. A row sees a contract
 * already checked by lt_op_check and addresses of the device. The first row that accepts wins.
 * A family named *_sm90a is compiled for sm_90a alone, and left out of builds without 9.0: its rows ask. */
#ifndef LT_CUDA_OPS_H
#define LT_CUDA_OPS_H

#include "backend/cuda/abi.h"
#include "base/mem.h"
#include "graph/op.h"

typedef struct lt_cuda_device lt_cuda_device;

typedef struct lt_cuda_props {
    int      major, minor, sm_count;
    uint32_t shared_bytes;       /* of a block without asking */
    uint32_t shared_optin_bytes; /* of a block at most; lt__cuda_launch asks when dynamic shared memory needs it */
    uint64_t l2_bytes, total_bytes;
    bool     sm90a;              /* families of sm_90a may be used: a card of 9.0, and not switched off by sm90a=0 */
} lt_cuda_props;
const lt_cuda_props *lt__cuda_device_props(const lt_cuda_device *dev);

/* Device address of the lt_cuda_wrong that kernels report bad data to (kernels/args.h). */
uint64_t lt__cuda_wrong(const lt_cuda_device *dev);

typedef struct lt_cuda_row {
    lt_op op;
    /* NULL: anything the op's contract allows. On refusal *why is a static sentence; why is never NULL.
     * Looks at dtypes, dims, strides and parameters, never at addresses: it is also asked before there are any. */
    bool (*accepts)(const lt_cuda_device *dev, const lt_op_args *args, const char **why);
    /* Enqueues on the stream; allocates nothing, waits for nothing. A view with 0 tokens launches nothing. */
    lt_status (*launch)(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err);
    /* NULL: none. Else bytes of device memory in args->scratch, aligned to 256, any content. */
    uint64_t (*scratch)(const lt_cuda_device *dev, const lt_op_args *args);
} lt_cuda_row;

#define LT_CUDA_FAMILY(name, waits)                                                                                     \
    extern const lt_cuda_row lt__cuda_rows_##name[];                                                                   \
    extern const size_t lt__cuda_rows_##name##_n;
#include "backend/cuda/families.def"
#undef LT_CUDA_FAMILY

typedef struct lt_cuda_dim { uint32_t x, y, z; } lt_cuda_dim;

/* Launches a kernel of a family; loads the family at its first use. params points to the arguments
 * as cuLaunchKernel wants them. A failure names args->name and the kernel. Grid dims are 1 or more;
 * y and z at most 65535. */
LT_NODISCARD lt_status
lt__cuda_launch(lt_cuda_device *dev, const char *family, const char *kernel, lt_cuda_dim grid, lt_cuda_dim block,
                uint32_t shared_bytes, CUstream stream, void **params, const lt_op_args *args, lt_err *err);

/* A tensor for the copy engine of sm_90 (kernels/args.h): halves [n2][n1][n0], n0 contiguous, boxes of box0 x box1, swizzled
 * by 128 bytes. at and strides are multiples of 16. */
struct lt_cuda_tensor;
bool lt__cuda_has_tensors(const lt_cuda_device *dev);
LT_NODISCARD lt_status lt__cuda_tensor_encode(lt_cuda_device *dev, struct lt_cuda_tensor *out, uint64_t at, const uint64_t n[3],
                                              const uint64_t stride[2], uint32_t box0, uint32_t box1, const char *name, lt_err *err);

/* Whether this build has the image of a family. */
bool lt__cuda_has_family(const char *family);

#endif
