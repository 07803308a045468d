/* prompt.cuh - what fused.cu does for a few tokens by blocks, here for many by warps and by four elements a lane. */
#ifndef LT_CUDA_PROMPT_CUH
#define LT_CUDA_PROMPT_CUH

#include "rows.cuh"

LT_DEV void put_kv(const lt_cuda_kv &kv, uint8_t *row, int i, float v)
{
    if (kv.dtype == 1)
        ((unsigned short *)row)[i] = lt_to_half(v);
    else
        ((float *)row)[i] = v;
}

/* A warp a (head, token), q's heads first, then k's, then v's; no norms, a cache of halves or floats. A lane owns its pairs, so
 * writing them back in place disturbs nobody. */
LT_DEV void turn_head(const lt_cuda_heads &a, int h, int token, int lane)
{
    const int dim = a.kv.head_dim, which = h < a.heads ? 0 : h < a.heads + a.kv.kv_heads ? 1 : 2;
    h -= which == 0 ? 0 : which == 1 ? a.heads : a.heads + a.kv.kv_heads;
    float *x = which == 0   ? lt_at<float>(a.q, token * a.q_token + h * a.q_head)
               : which == 1 ? lt_at<float>(a.k, token * a.k_token + h * a.k_head)
                            : lt_at<float>(a.v, token * a.v_token + h * a.v_head);
    const float *bias = (const float *)(which == 0 ? a.bq : which == 1 ? a.bk : a.bv);
    const bool keep = which == 0 || (which == 1 ? a.keep_k : a.keep_v);
    uint8_t *row = 0;
    if (bias)
        bias += h * dim;
    if (which) {
        row = cache_row(a.kv, a.cache, ((const int *)a.pos)[token], a.table, h, which == 2);
        if (!row)
            return;
    }
    const int rotated = which == 2 ? 0 : a.rotated < 0 ? -a.rotated : a.rotated, pairs = rotated / 2;
    const float *cs = lt_at<const float>(a.angles, token * a.angles_token);
    for (int i = lane; i < dim - pairs; i += 32) {
        if (i >= pairs) {
            const int j = rotated + i - pairs;
            const float v = bias ? lt_add(x[j], bias[j]) : x[j];
            if (keep && bias)
                x[j] = v;
            if (row)
                put_kv(a.kv, row, j, v);
            continue;
        }
        const int j = a.rotated < 0 ? 2 * i : i, k = a.rotated < 0 ? 2 * i + 1 : i + pairs;
        float u = x[j], v = x[k];
        if (bias)
            u = lt_add(u, bias[j]), v = lt_add(v, bias[k]);
        rotate(u, v, cs[2 * i], cs[2 * i + 1], u, v);
        if (keep)
            x[j] = u, x[k] = v;
        if (row) {
            put_kv(a.kv, row, j, u);
            put_kv(a.kv, row, k, v);
        }
    }
}

template <bool clamp> LT_DEV float gate_times(const lt_cuda_gate &a, float x, float z)
{
    return clamp ? clamp_times(x, z, a.alpha, a.limit) : a.gelu ? gelu_times(x, z) : silu_times(x, z);
}

/* Eight lanes a block of 32 columns; rows at multiples of 16 bytes. */
template <bool clamp> LT_DEV void gate_block(const lt_cuda_gate &a, uint32_t id)
{
    const uint32_t blocks = (uint32_t)a.cols / 32, lane = id % 8, row = id / 8 / blocks, b = id / 8 % blocks;
    if (row >= (uint32_t)a.rows)
        return;
    const float4 x = lt_at<const float4>(a.a, row * a.a_row)[8 * b + lane], z = lt_at<const float4>(a.b, row * a.b_row)[8 * b + lane];
    const float4 v = make_float4(gate_times<clamp>(a, x.x, z.x), gate_times<clamp>(a, x.y, z.y), gate_times<clamp>(a, x.z, z.z), gate_times<clamp>(a, x.w, z.w));
    if (a.y)
        lt_at<float4>(a.y, row * a.y_row)[8 * b + lane] = v;
    quantize_four(v, lt_at<uint8_t>(a.q, row * a.q_row), a.cols, (int)b, (int)lane);
}

#endif
