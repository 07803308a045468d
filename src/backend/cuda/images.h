/* images.h - the embedded kernels: a generated table, cmake/cuda.cmake. */
#ifndef LT_CUDA_IMAGES_H
#define LT_CUDA_IMAGES_H

typedef struct lt_cuda_image {
    const char          *family;
    const unsigned char *data, *end; /* a fat binary */
} lt_cuda_image;

/* Both end with a zero row; both are empty in a build without nvcc. */
extern const lt_cuda_image lt__cuda_images[];
extern const int lt__cuda_image_archs[]; /* 75: compute capability 7.5; the last is there as PTX too */
extern const int lt__cuda_image_toolkit; /* 13000: compiled by CUDA 13.0; 0 without images */

#endif
