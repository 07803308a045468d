/* rows.cu - quantisation, norm, rotation, cache writes and elementwise ops. */
#include "rows.cuh"

/* extra 8: four elements a thread, rows at multiples of 16 bytes; extra 32: one. b is not used. many: rows are [outer][inner]. */
template <bool many> LT_DEV void quantize_some(const lt_cuda_rows &a)
{
    lt_begin();
    const uint32_t lanes = (uint32_t)a.extra, blocks = (uint32_t)a.cols / 32, id = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t lane = id % lanes, t = id / lanes / blocks, b = id / lanes % blocks;
    if (t >= (uint32_t)a.outer * (many ? (uint32_t)a.inner : 1))
        return;
    const uint32_t o = many ? t / (uint32_t)a.inner : t, n = many ? t % (uint32_t)a.inner : 0;
    const float *x = lt_at<const float>(a.a, o * a.a_outer + (many ? n * a.a_inner : 0)) + 32 * b;
    uint8_t *y = lt_at<uint8_t>(a.y, o * a.y_outer + (many ? n * a.y_inner : 0));
    if (lanes == 32)
        quantize_block(x[lane], y, a.cols, (int)b, (int)lane);
    else
        quantize_four(((const float4 *)x)[lane], y, a.cols, (int)b, (int)lane);
}
extern "C" __global__ void quantize_rows(lt_cuda_rows a) { quantize_some<false>(a); }
extern "C" __global__ void quantize_apart(lt_cuda_rows a) { quantize_some<true>(a); }

/* One block of 256 threads a row; thread i owns accumulator i. b: weights. value: eps. */
extern "C" __global__ void rms_norm(lt_cuda_rows a)
{
    __shared__ float sh[256];
    lt_begin();
    const int o = (int)blockIdx.x / a.inner, n = (int)blockIdx.x % a.inner;
    const float *x = lt_at<const float>(a.a, o * a.a_outer + n * a.a_inner), *w = (const float *)a.b;
    float *y = lt_at<float>(a.y, o * a.y_outer + n * a.y_inner), ss = 0;
    for (int i = (int)threadIdx.x; i < a.cols; i += 256)
        ss = lt_fma(x[i], x[i], ss);
    ss = lt_tree_block(ss, sh);
    const float r = lt_div(1.0f, __fsqrt_rn(lt_add(lt_div(ss, (float)a.cols), a.value)));
    for (int i = (int)threadIdx.x; i < a.cols; i += 256)
        y[i] = lt_mul(lt_mul(x[i], r), w[i]);
}

/* Rows [token][head] of cols elements; b: (cos, sin) of the token, b_outer apart; extra: rotated elements,
 * negative for pairs (0,1), (2,3); positive for halves. */
extern "C" __global__ void rope(lt_cuda_rows a)
{
    lt_begin();
    const int rotated = a.extra < 0 ? -a.extra : a.extra, pairs = rotated / 2, units = pairs + (a.cols - rotated);
    const int64_t id = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (id >= (int64_t)a.outer * a.inner * units)
        return;
    const int i = (int)(id % units), n = (int)(id / units % a.inner), o = (int)(id / units / a.inner);
    const float *x = lt_at<const float>(a.a, o * a.a_outer + n * a.a_inner);
    float *y = lt_at<float>(a.y, o * a.y_outer + n * a.y_inner);
    if (i >= pairs) {
        y[rotated + i - pairs] = x[rotated + i - pairs];
        return;
    }
    const float *cs = lt_at<const float>(a.b, o * a.b_outer);
    const float c = cs[2 * i], s = cs[2 * i + 1];
    const int j = a.extra < 0 ? 2 * i : i, k = a.extra < 0 ? 2 * i + 1 : i + pairs;
    rotate(x[j], x[k], c, s, y[j], y[k]);
}

/* Element i of row (o, n), or, four of them from column 4i of rows at multiples of 16 bytes. */
template <typename T, typename F> LT_DEV void each(const lt_cuda_rows &a, F f)
{
    const int cols = a.cols / (int)(sizeof(T) / 4);
    const int64_t all = (int64_t)a.outer * a.inner * cols, id = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int i, n, o;
    if (id >= all)
        return;
    if (all <= 0xffffffffll) { /* a division of 64 bits costs more than the rest */
        const uint32_t at = (uint32_t)id, row = at / (uint32_t)cols;
        i = (int)(at % (uint32_t)cols), n = (int)(row % (uint32_t)a.inner), o = (int)(row / (uint32_t)a.inner);
    } else {
        i = (int)(id % cols), n = (int)(id / cols % a.inner), o = (int)(id / cols / a.inner);
    }
    const T x = lt_at<const T>(a.a, o * a.a_outer + n * a.a_inner)[i];
    T z = T(), y;
    if (a.b)
        z = lt_at<const T>(a.b, o * a.b_outer + n * (int64_t)a.extra)[i];
#pragma unroll
    for (int k = 0; k < (int)(sizeof(T) / 4); k++)
        ((float *)&y)[k] = f(((const float *)&x)[k], ((const float *)&z)[k]);
    lt_at<T>(a.y, o * a.y_outer + n * a.y_inner)[i] = y;
}

/* b_outer is 0 for ADD_ROW; extra is b's inner stride in bytes. *_4: four elements a thread. */
#define EACH(name, expression)                                                                        \
    extern "C" __global__ void name(lt_cuda_rows a)                                                   \
    {                                                                                                 \
        lt_begin();                                                                                   \
        const float value = a.value, limit = a.limit;                                                 \
        (void)value, (void)limit;                                                                     \
        each<float>(a, [=](float x, float z) { (void)z; return expression; });                        \
    }                                                                                                 \
    extern "C" __global__ void name##_4(lt_cuda_rows a)                                               \
    {                                                                                                 \
        lt_begin();                                                                                   \
        const float value = a.value, limit = a.limit;                                                 \
        (void)value, (void)limit;                                                                     \
        each<float4>(a, [=](float x, float z) { (void)z; return expression; });                       \
    }
EACH(add_rows, lt_add(x, z))
EACH(scale_rows, lt_mul(x, value))
EACH(softcap_rows, lt_softcap(x, value))
EACH(silu_mul, silu_times(x, z))
EACH(gelu_mul, gelu_times(x, z))
EACH(clamp_mul, clamp_times(x, z, value, limit))

/* y[n] = a[b[n]]; an index out of range is reported. outer: rows of y, inner: rows of a. */
extern "C" __global__ void take_rows(lt_cuda_rows a)
{
    lt_begin();
    const int64_t id = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (id >= (int64_t)a.outer * a.cols)
        return;
    const int n = (int)(id / a.cols), i = (int)(id % a.cols), from = ((const int *)a.b)[n];
    if (from < 0 || from >= a.inner) {
        lt_wrong(a.wrong, a.name, LT_CUDA_WRONG_ROW, from);
        return;
    }
    lt_at<uint32_t>(a.y, n * a.y_outer)[i] = lt_at<const uint32_t>(a.a, from * a.a_outer)[i];
}

/* One warp for 32 elements of one row; grid.y 0 writes K, 1 writes V. */
extern "C" __global__ void kv_store(lt_cuda_kv_store a)
{
    lt_begin();
    const int lane = (int)threadIdx.x % 32, pieces = (a.kv.head_dim + 31) / 32;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (unit >= (int64_t)a.tokens * a.kv.kv_heads * pieces)
        return;
    const int piece = (int)(unit % pieces), h = (int)(unit / pieces % a.kv.kv_heads), t = (int)(unit / pieces / a.kv.kv_heads);
    const bool value = blockIdx.y;
    const float *x = value ? lt_at<const float>(a.v, t * a.v_token + h * a.v_head) : lt_at<const float>(a.k, t * a.k_token + h * a.k_head);
    uint8_t *row = cache_row(a.kv, a.cache, ((const int *)a.pos)[t], a.table, h, value);
    if (row)
        store_piece(a.kv, x, row, piece, lane);
}
