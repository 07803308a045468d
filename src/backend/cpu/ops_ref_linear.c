/* QUANTIZE and LINEAR. A weight row is decoded once for a tile of tokens; that changes no
 * bit, because each (token, row) has accumulators of its own. */
#include "backend/cpu/ops_ref.h"

static void quantize_row(const float *x, int8_t *out, int64_t cols)
{
    float *d = (float *)(void *)(out + cols);
    int16_t *sums = (int16_t *)(void *)(out + cols + cols / 32 * 4);
    for (int64_t b = 0; b < cols / 32; b++) {
        float amax = 0;
        for (int i = 0; i < 32; i++)
            amax = lt__amax(amax, x[b * 32 + i]);
        float id = amax > 0 ? 127.0f / amax : 0;
        d[b] = amax / 127.0f;
        if (isinf(id))
            id = d[b] = 0;
        sums[2 * b] = sums[2 * b + 1] = 0;
        for (int i = 0; i < 32; i++) {
            out[b * 32 + i] = lt__quantize(x[b * 32 + i], id);
            sums[2 * b + i / 16] = (int16_t)(sums[2 * b + i / 16] + out[b * 32 + i]);
        }
    }
}

static void quantize_rows(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    const lt_view *x = &a->src[0], *y = &a->dst;
    const int64_t each = y->ndim == 3 ? y->dim[1] : 1;
    uint64_t t, end;
    lt__team_range((uint64_t)y->dim[0], 1, rank, ranks, &t, &end);
    for (; t < end; t++)
        for (int64_t k = 0; k < each; k++)
            quantize_row((const float *)(void *)(lt__ref_row(x, (int64_t)t) + k * x->stride[x->ndim - 2]),
                         (int8_t *)lt__ref_row(y, (int64_t)t) + k * y->stride[y->ndim - 2], y->dim[y->ndim - 1]);
}

lt_status lt__ref_quantize(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__team_run(team, quantize_rows, (void *)args);
    return LT_OK;
}

#define TILE 8 /* tokens that share one decoding of a weight row */

static void dot_quant(const lt_op_args *a, int64_t r, int64_t t0, int64_t n, float *out)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    const lt_dtype_traits *traits = lt_dtype_get(w->dtype);
    int64_t cols = w->dim[1], groups = traits->block_elems / LT_GROUP;
    const char *row = lt__ref_row(w, r);
    float acc[TILE][8] = {{0}};
    for (int64_t b = 0; b < cols / LT_GROUP; b++) {
        lt__qgroup g;
        lt__qgroup_decode(w->dtype, row + b / groups * traits->block_bytes, (uint32_t)(b % groups), &g);
        for (int64_t t = 0; t < n; t++) {
            const int8_t *q = (const int8_t *)lt__ref_row(x, t0 + t);
            float da = lt__q8a_scales(q, (uint64_t)cols)[b];
            const int16_t *s = lt__q8a_sums(q, (uint64_t)cols) + 2 * b;
            int32_t sum[2] = {0, 0};
            for (int i = 0; i < LT_GROUP; i++)
                sum[i / 16] += g.w[i] * q[b * LT_GROUP + i];
            float *A = &acc[t][b % 8];
            *A = fmaf((float)(g.sc[0] * sum[0] + g.sc[1] * sum[1]), g.d * da, *A);
            if (g.has_min)
                *A = fmaf((float)(g.mn[0] * s[0] + g.mn[1] * s[1]), g.m * da, *A);
        }
    }
    for (int64_t t = 0; t < n; t++)
        out[t] = lt__halving_tree(acc[t], 8);
}

static float weight_at(lt_dtype t, const char *row, int64_t i)
{
    switch (t) {
    case LT_DTYPE_F16:  return lt__f16_to_f32(lt__load_u16(row + 2 * i));
    case LT_DTYPE_BF16: return lt__bf16_to_f32(lt__load_u16(row + 2 * i));
    default:            return lt__bits_f32(lt__load_u32(row + 4 * i));
    }
}

static void dot_float(const lt_op_args *a, int64_t r, int64_t t0, int64_t n, float *out)
{
    const lt_view *x = &a->src[0], *w = &a->src[1];
    const char *row = lt__ref_row(w, r);
    float acc[TILE][256] = {{0}};
    for (int64_t i = 0; i < w->dim[1]; i++) {
        float v = weight_at(w->dtype, row, i);
        for (int64_t t = 0; t < n; t++) {
            const float *xt = (const float *)(void *)lt__ref_row(x, t0 + t);
            acc[t][i % 256] = fmaf(v, xt[i], acc[t][i % 256]);
        }
    }
    for (int64_t t = 0; t < n; t++)
        out[t] = lt__halving_tree(acc[t], 256);
}

static void linear_rows(void *arg, uint32_t rank, uint32_t ranks)
{
    const lt_op_args *a = arg;
    bool quant = a->src[0].dtype == LT_DTYPE_Q8A;
    int64_t tokens = a->src[0].dim[0];
    uint64_t r, end;
    lt__team_range((uint64_t)a->src[1].dim[0], 1, rank, ranks, &r, &end);
    for (; r < end; r++) {
        for (int64_t t0 = 0; t0 < tokens; t0 += TILE) {
            int64_t n = tokens - t0 < TILE ? tokens - t0 : TILE;
            float out[TILE];
            (quant ? dot_quant : dot_float)(a, (int64_t)r, t0, n, out);
            for (int64_t t = 0; t < n; t++)
                ((float *)(void *)lt__ref_row(&a->dst, t0 + t))[r] = out[t];
        }
    }
}

lt_status lt__ref_linear(const lt_op_args *args, lt_team *team, void *scratch, size_t scratch_bytes, lt_err *err)
{
    (void)scratch, (void)scratch_bytes, (void)err;
    lt__team_run(team, linear_rows, (void *)args);
    return LT_OK;
}
