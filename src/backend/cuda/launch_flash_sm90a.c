/* launch_flash_sm90a.c - ATTENTION over a prompt by the warp groups of Hopper. */
#include "backend/cuda/flash.h"

static const lt_cuda_flash kernels[] = {
#define FLASH90(name, D, KV, BN, GROUPS, TURNS, STAGES)                                                                \
    {#name, D, 64 * GROUPS, 128 * (GROUPS + 1), LT_FLASH90_BYTES(D, BN, 64 * GROUPS, STAGES),                          \
     KV == 1 ? LT_DTYPE_F16 : LT_DTYPE_Q8_0, KV == 1 ? BN : 0},
#include "backend/cuda/kernels/flash_sm90a.def"
#undef FLASH90
};

static const lt_cuda_flash *find(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    const lt_cuda_props *p = lt__cuda_device_props(dev);
    *why = "warp groups and the copy engine of sm_90 only";
    if (p->major != 9 || p->minor != 0 || !lt__cuda_has_family("flash_sm90a") || !lt__cuda_has_tensors(dev))
        return NULL;
    return lt__cuda_flash_find(kernels, sizeof kernels / sizeof *kernels, dev, args, why);
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why) { return find(dev, args, why) != NULL; }

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const char *why;
    return lt__cuda_flash_launch(find(dev, args, &why), "flash_sm90a", dev, stream, args, err);
}

const lt_cuda_row lt__cuda_rows_flash_sm90a[] = {{LT_OP_ATTENTION, accepts, launch, NULL}};
const size_t lt__cuda_rows_flash_sm90a_n = 1;
