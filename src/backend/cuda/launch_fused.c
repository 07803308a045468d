/* launch_fused.c - the family of fuse.c: its kernels run for neighbours of a list, never for an op alone. */
#include "backend/cuda/launch.h"

const lt_cuda_row lt__cuda_rows_fused[] = {{LT_OP_COUNT, NULL, NULL, NULL}};
const size_t lt__cuda_rows_fused_n = 0;
