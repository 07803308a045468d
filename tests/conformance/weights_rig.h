/* weights_rig.h - random weights of every dtype, and activations as products take them. */
#ifndef LT_TESTS_WEIGHTS_RIG_H
#define LT_TESTS_WEIGHTS_RIG_H

#include "rig.h"

static bool is_quant(lt_dtype t) { return lt_dtype_get(t)->kind == LT_DTYPE_KIND_QUANT; }

static bool is_weight(lt_dtype t) { return is_quant(t) || lt_dtype_get(t)->kind == LT_DTYPE_KIND_FLOAT; }

/* Offsets of the f16 fields of a block; -1 ends. */
static const int *f16_fields(lt_dtype t)
{
    static const int at0[] = {0, -1}, at0_2[] = {0, 2, -1}, q2k[] = {80, 82, -1}, q3k[] = {108, -1},
                     q6k[] = {208, -1}, none[] = {-1};
    switch (t) {
    case LT_DTYPE_Q4_1: case LT_DTYPE_Q5_1: case LT_DTYPE_Q4_K: case LT_DTYPE_Q5_K: return at0_2;
    case LT_DTYPE_Q2_K: return q2k;
    case LT_DTYPE_Q3_K: return q3k;
    case LT_DTYPE_Q6_K: return q6k;
    case LT_DTYPE_MXFP4: return none;
    default: return at0;
    }
}

/* Random bits with a sane scale; wild ones also with zero, subnormal, largest and NaN scales. */
static void rnd_block(lt_dtype t, uint8_t *block, bool wild)
{
    static const uint16_t special[] = {0, 0x8000, 1, 0x83ff, 0x3ff, 0x7bff, 0xfbff, 0x7c00, 0x7e00};
    static const uint8_t special_e[] = {0, 1, 2, 254, 255};
    for (uint32_t i = 0; i < lt_dtype_get(t)->block_bytes; i++)
        block[i] = (uint8_t)rnd();
    if (t == LT_DTYPE_MXFP4)
        block[0] = wild && rnd_below(8) == 0 ? special_e[rnd_below(5)] : (uint8_t)(115 + rnd_below(8));
    for (const int *at = f16_fields(t); *at >= 0; at++) {
        uint16_t h = lt__f32_to_f16((float)(rnd_normal() * 0.02));
        if (wild && rnd_below(8) == 0)
            h = special[rnd_below(9)];
        memcpy(block + *at, &h, 2);
    }
}

static uint8_t *rnd_weight(lt_dtype t, int64_t rows, int64_t cols, bool wild, size_t *bytes)
{
    const lt_dtype_traits *d = lt_dtype_get(t);
    uint64_t row;
    assert_true(lt_dtype_row_bytes(t, (uint64_t)cols, &row));
    *bytes = (size_t)rows * row;
    uint8_t *w = malloc(*bytes);
    for (size_t i = 0; i < *bytes / d->block_bytes; i++) {
        uint8_t *at = w + i * d->block_bytes;
        float x = rnd_float(wild ? DATA_WILD : DATA_NORMAL);
        uint16_t h = t == LT_DTYPE_F16 ? lt__f32_to_f16(x) : lt__f32_to_bf16(x);
        if (is_quant(t))
            rnd_block(t, at, wild);
        else
            memcpy(at, t == LT_DTYPE_F32 ? (void *)&x : (void *)&h, d->block_bytes);
    }
    return w;
}

/* Activations in the form LINEAR takes for this weight, quantised on the reference. */
static void *activations(lt_dtype weight, const float *x, int64_t tokens, int64_t cols, size_t *bytes)
{
    lt_view in = view(LT_DTYPE_F32, 2, tokens, cols, 0);
    void *out;
    if (!is_quant(weight)) {
        *bytes = view_bytes(&in);
        return memcpy(malloc(*bytes), x, *bytes);
    }
    rig_case c = {.args = {.op = LT_OP_QUANTIZE, .n_src = 1, .name = "quantize"}};
    c.args.src[0] = in;
    c.args.dst = view(LT_DTYPE_Q8A, 2, tokens, cols, 0);
    c.src[0] = x, c.src_bytes[0] = view_bytes(&in);
    c.dst_bytes = *bytes = view_bytes(&c.args.dst);
    c.dst = out = calloc(1, *bytes);
    rig_run(&g_rig.device[0], &c, out);
    return out;
}

#endif
