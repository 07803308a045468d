/* launch_flash_sm90a.c - ATTENTION over a prompt by the warp groups of Hopper; with int8 keys on request. */
#include "backend/cuda/flash.h"

#define ENTRY(name, D, BN, GROUPS, BYTES, KEYS, ITEMS) {#name, D, 64 * GROUPS, 128 * (GROUPS + 1), BYTES, BN, KEYS, ITEMS},

static const lt_cuda_flash kernels[] = {
#define FLASH90(name, D, BN, GROUPS, TURNS, STAGES) ENTRY(name, D, BN, GROUPS, LT_FLASH90_BYTES(D, BN, 64 * GROUPS, STAGES), NULL, false)
#define SAGE90(name, D, BN, GROUPS, TURNS, STAGES)
#include "backend/cuda/kernels/flash_sm90a.def"
#undef FLASH90
#undef SAGE90
};

static const lt_cuda_flash sage_kernels[] = {
#define FLASH90(name, D, BN, GROUPS, TURNS, STAGES)
#define SAGE90(name, D, BN, GROUPS, TURNS, STAGES)                                                                 \
    ENTRY(name, D, BN, GROUPS, LT_SAGE90_BYTES(D, BN, 64 * GROUPS, STAGES), #name "_keys", LT_SAGE_ITEMS(D))
#include "backend/cuda/kernels/flash_sm90a.def"
#undef FLASH90
#undef SAGE90
};

static const char *family_of(const lt_op_args *args) { return lt__cuda_is_capped(args) ? "flash_capped_sm90a" : "flash_sm90a"; }

static bool on_hopper(const lt_cuda_device *dev, const lt_op_args *args)
{
    return lt__cuda_device_props(dev)->sm90a && lt__cuda_has_family(family_of(args)) && lt__cuda_has_tensors(dev);
}

static const lt_cuda_flash *find(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    *why = "warp groups and the copy engine of sm_90 only";
    if (!on_hopper(dev, args))
        return NULL;
    if (args->params.ATTENTION.how == LT_ATTENTION_SAGE)
        return lt__cuda_flash_find(sage_kernels, sizeof sage_kernels / sizeof *sage_kernels, LT_ATTENTION_SAGE, dev, args, why);
    return lt__cuda_flash_find(kernels, sizeof kernels / sizeof *kernels, LT_ATTENTION_FLASH, dev, args, why);
}

static bool accepts(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return !lt__cuda_is_capped(args) && find(dev, args, why) != NULL;
}

static bool accepts_capped(const lt_cuda_device *dev, const lt_op_args *args, const char **why)
{
    return lt__cuda_is_capped(args) && find(dev, args, why) != NULL;
}

static lt_status launch(lt_cuda_device *dev, CUstream stream, const lt_op_args *args, lt_err *err)
{
    const char *why;
    return lt__cuda_flash_launch(find(dev, args, &why), family_of(args), dev, stream, args, err);
}

static uint64_t scratch(const lt_cuda_device *dev, const lt_op_args *args)
{
    const char *why;
    return lt__cuda_flash_scratch(find(dev, args, &why), args);
}

const lt_cuda_row lt__cuda_rows_flash_sm90a[] = {{LT_OP_ATTENTION, accepts, launch, scratch}};
const size_t lt__cuda_rows_flash_sm90a_n = 1;
const lt_cuda_row lt__cuda_rows_flash_capped_sm90a[] = {{LT_OP_ATTENTION, accepts_capped, launch, scratch}};
const size_t lt__cuda_rows_flash_capped_sm90a_n = 1;
