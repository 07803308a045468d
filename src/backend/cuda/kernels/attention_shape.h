/* attention_shape.h - shared memory of attention_f16_*: keys of a page in rows 16 bytes longer, so that threads that
 * each read a row meet no bank twice; then its values, or, where both do not fit, the values over the keys. */
#ifndef LT_CUDA_ATTENTION_SHAPE_H
#define LT_CUDA_ATTENTION_SHAPE_H

#define LT_ATTENTION_DIM 256 /* largest head */
#define LT_ATTENTION_PITCH(dim) (2 * (dim) + 16)
#define LT_ATTENTION_V(dim) ((dim) <= 192 ? 256 * LT_ATTENTION_PITCH(dim) : 0)
#define LT_ATTENTION_BYTES(dim) (256 * LT_ATTENTION_PITCH(dim) + ((dim) <= 192 ? 512 * (dim) : 0))

#endif
