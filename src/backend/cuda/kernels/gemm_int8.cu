/* gemm_int8.cu - the products of gemm_int8.cuh of tokens that lie behind each other. */
#include "gemm_int8.cuh"

/* The first blocks of the grid pack the weight, the others the tokens. */
template <int dt> LT_DEV void pack(const lt_cuda_pack2 &a)
{
    const int64_t unit = ((int64_t)blockIdx.x - a.parts) * PACKERS + (int)threadIdx.x;
    if ((int)blockIdx.x < a.parts)
        pack_weight<dt>(a.weight, (int)blockIdx.x);
    else if (unit < a.token_units)
        pack_tokens(a.tokens, lt_token_rows{a.tokens}, unit, lt_token_kind<dt>::sign, lt_token_kind<dt>::halves);
}

/* Tiles of the weight's rows by tiles of tokens. */
struct lt_token_tiles {
    const lt_cuda_gemm8 &a;
    LT_DEV int row_tile() const { return (int)blockIdx.x / a.tiles; }
    LT_DEV int token_tile() const { return (int)blockIdx.x % a.tiles; }
    LT_DEV uint64_t w() const { return a.w; }
    LT_DEV void put(int r, int t, float v) const
    {
        if (r < a.rows && t < a.tokens)
            *lt_at<float>(a.y, t * a.y_stride + 4 * (int64_t)r) = v;
    }
};

#define PACK(name) \
    extern "C" __global__ void __launch_bounds__(PACKERS) gemm_pack_##name(lt_cuda_pack2 a) { pack<LT_W_##name>(a); }
PACK(Q4_0) PACK(Q4_1) PACK(Q5_0) PACK(Q5_1) PACK(Q8_0) PACK(Q2_K) PACK(Q3_K) PACK(Q4_K) PACK(Q5_K) PACK(Q6_K)
PACK(IQ4_NL) PACK(IQ4_XS) PACK(MXFP4)

/* Blocks a multiprocessor: what 65,536 registers hold without spills in the loop. */
#define GEMM(name, halves, mins) \
    extern "C" __global__ void __launch_bounds__(2 * TOKENS, halves ? 4 : 5) gemm_##name(lt_cuda_gemm8 a) { gemm_int8<halves, mins>(a, lt_token_tiles{a}); }
GEMM(plain, false, false) GEMM(mins, false, true) GEMM(halves, true, false) GEMM(halves_mins, true, true)
