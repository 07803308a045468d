/* gemm_half.cu - the products of gemm_mma.cuh of tokens that lie behind each other. */
#include "gemm_mma.cuh"

#define GEMM(name, brain)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(256, 1) gemm_##name##_128(lt_cuda_gemm a) { gemm_half<brain, 4>(a, lt_token_tiles{a}); }           \
    extern "C" __global__ void __launch_bounds__(64, 4) gemm_##name##_32(lt_cuda_gemm a) { gemm_half<brain, 1>(a, lt_token_tiles{a}); }
GEMM(F16, false) GEMM(BF16, true)
