/* block.h - a quantised block seen 32 elements at a time, the same way for every dtype.
 *
 * Element i of a group is  d * sc[i/16] * w[i]  +  m * mn[i/16],  in that order, with d * sc
 * and m * mn exact in f32. That one form is both the dequantiser (dtype.c) and the
 * reference product (docs/arithmetic.md, LINEAR); the fast kernels decode the same fields. */
#ifndef LT_GRAPH_BLOCK_H
#define LT_GRAPH_BLOCK_H

#include <stdbool.h>

#include "graph/half.h"
#include "lowtide/dtype.h"

#define LT_GROUP 32 /* elements; also the run of activations that share a scale */

typedef struct lt__qgroup {
    float   d, m;
    int32_t sc[2], mn[2]; /* of elements 0-15 and 16-31; 1 where the dtype has none */
    bool    has_min;
    int8_t  w[LT_GROUP];
} lt__qgroup;

/* Group `index` (0 .. block_elems/32 - 1) of a block of a QUANT dtype. */
void lt__qgroup_decode(lt_dtype t, const void *block, uint32_t index, lt__qgroup *out);

/* Nibble to weight. MXFP4 is doubled: E2M1 has halves, and the scale is halved for it. */
extern const int8_t lt__iq4_values[16], lt__mxfp4_values[16];

/* Half of the scale 2^(e-127). 255 is NaN in the OCP format. */
static inline float lt__e8m0_half(uint8_t e)
{
    if (e == 255)
        return lt__bits_f32(0x7fc00000u);
    return lt__bits_f32(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

/* 6-bit scale and minimum j (0..7) of the 12 bytes in Q4_K and Q5_K. */
static inline void lt__k4_scale_min(const uint8_t *s, uint32_t j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *min = (uint8_t)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* 6-bit scale j (0..15) of the 12 bytes in Q3_K, less 32. */
static inline int32_t lt__q3k_scale(const uint8_t *s, uint32_t j)
{
    int32_t low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    int32_t high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
    return (low | high << 4) - 32;
}

#endif
