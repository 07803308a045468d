#include "lowtide/dtype.h"

#include <strings.h>

#include "base/mem.h"
#include "graph/block.h"

static const lt_dtype_traits traits[LT_DTYPE_COUNT] = {
#define LT_X(name, gguf, elems, bytes, kind) {#name, gguf, elems, bytes, LT_DTYPE_KIND_##kind},
    LT_DTYPE_LIST(LT_X)
#undef LT_X
};

/* Every id ggml gave out, also those it took back (4, 5, 31-33, 36-38): a refusal should
 * name what the file holds. */
static const struct { uint32_t id; const char *name; } gguf_names[] = {
    {0, "F32"}, {1, "F16"}, {2, "Q4_0"}, {3, "Q4_1"}, {4, "Q4_2"}, {5, "Q4_3"}, {6, "Q5_0"}, {7, "Q5_1"},
    {8, "Q8_0"}, {9, "Q8_1"}, {10, "Q2_K"}, {11, "Q3_K"}, {12, "Q4_K"}, {13, "Q5_K"}, {14, "Q6_K"},
    {15, "Q8_K"}, {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"}, {25, "I16"}, {26, "I32"}, {27, "I64"},
    {28, "F64"}, {29, "IQ1_M"}, {30, "BF16"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"},
    {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
    {39, "MXFP4"}, {40, "NVFP4"}, {41, "Q1_0"}, {42, "Q2_0"},
};

const lt_dtype_traits *lt_dtype_get(lt_dtype t)
{
    return (unsigned)t < LT_DTYPE_COUNT ? &traits[t] : NULL;
}

bool lt_dtype_from_gguf(uint32_t gguf_id, lt_dtype *out)
{
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (traits[t].gguf_id >= 0 && (uint32_t)traits[t].gguf_id == gguf_id) {
            *out = (lt_dtype)t;
            return true;
        }
    }
    return false;
}

bool lt_dtype_from_name(const char *name, lt_dtype *out)
{
    for (int t = 0; t < LT_DTYPE_COUNT; t++) {
        if (strcasecmp(name, traits[t].name) == 0) {
            *out = (lt_dtype)t;
            return true;
        }
    }
    return false;
}

const char *lt_dtype_gguf_name(uint32_t gguf_id)
{
    for (size_t i = 0; i < sizeof gguf_names / sizeof *gguf_names; i++) {
        if (gguf_names[i].id == gguf_id)
            return gguf_names[i].name;
    }
    return NULL;
}

bool lt_dtype_row_bytes(lt_dtype t, uint64_t cols, uint64_t *out)
{
    const lt_dtype_traits *d = lt_dtype_get(t);
    if (!d || cols % d->block_elems)
        return false;
    return lt__mul_u64(cols / d->block_elems, d->block_bytes, out);
}

static void quant_to_f32(lt_dtype t, const uint8_t *src, float *dst, uint64_t n)
{
    uint32_t groups = traits[t].block_elems / LT_GROUP;
    for (uint64_t at = 0; at < n; at += LT_GROUP) {
        uint64_t group = at / LT_GROUP;
        lt__qgroup g;
        lt__qgroup_decode(t, src + group / groups * traits[t].block_bytes, (uint32_t)(group % groups), &g);
        for (int h = 0; h < 2; h++) { /* loops of one kind of step, which compilers make vectors of */
            float *out = dst + at + 16 * h, d = g.d * (float)g.sc[h], m = g.has_min ? g.m * (float)g.mn[h] : 0;
            for (int i = 0; i < 16; i++)
                out[i] = d * (float)g.w[16 * h + i];
            for (int i = 0; i < 16 && g.has_min; i++)
                out[i] += m;
        }
    }
}

/* One row: int8 q[n], then f32 d[n/32], then the sums, which the values don't need. */
static void q8a_to_f32(const uint8_t *src, float *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        float d = lt__bits_f32(lt__load_u32(src + n + i / 32 * 4));
        dst[i] = d * (float)(int8_t)src[i];
    }
}

/* lt__f16_to_f32 without branches: the exponent is moved by a product, exact for subnormals too. */
static void f16_to_f32(const uint8_t *src, float *dst, uint64_t n)
{
    const float scale = lt__bits_f32(UINT32_C(239) << 23); /* 2^112 */
    for (uint64_t i = 0; i < n; i++) {
        uint32_t h = lt__load_u16(src + 2 * i), sign = (h & 0x8000) << 16, rest = (h & 0x7fff) << 13;
        uint32_t bits = lt__f32_bits(lt__bits_f32(rest) * scale), inf = UINT32_C(0x7c00) << 13;
        uint32_t special = rest > inf ? UINT32_C(0x7fc00000) : rest == inf ? UINT32_C(0x7f800000) : 0;
        dst[i] = lt__bits_f32(bits | special | sign);
    }
}

static void bf16_to_f32(const uint8_t *src, float *dst, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        dst[i] = lt__bf16_to_f32(lt__load_u16(src + 2 * i));
}

void lt_dtype_to_f32(lt_dtype t, const void *src, float *dst, uint64_t n)
{
    const uint8_t *p = src;
    LT_ASSERT((unsigned)t < LT_DTYPE_COUNT && n % traits[t].block_elems == 0);
    if (traits[t].kind == LT_DTYPE_KIND_QUANT) {
        quant_to_f32(t, p, dst, n);
        return;
    }
    switch (t) {
    case LT_DTYPE_F32: memcpy(dst, p, n * 4); return;
    case LT_DTYPE_Q8A: q8a_to_f32(p, dst, n); return;
    case LT_DTYPE_F16: f16_to_f32(p, dst, n); return;
    case LT_DTYPE_BF16: bf16_to_f32(p, dst, n); return;
    default:           break;
    }
    for (uint64_t i = 0; i < n; i++) {
        switch (t) {
        case LT_DTYPE_I32:  dst[i] = (float)(int32_t)lt__load_u32(p + 4 * i); break;
        case LT_DTYPE_I8:   dst[i] = (float)(int8_t)p[i]; break;
        default:            LT_ASSERT(false && "a dtype of one element a block");
        }
    }
}
