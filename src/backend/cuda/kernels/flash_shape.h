/* flash_shape.h - shared memory of the kernels of prompt attention, for those who write and who launch them. */
#ifndef LT_CUDA_FLASH_SHAPE_H
#define LT_CUDA_FLASH_SHAPE_H

/* flash.cu: rows of 2 D + 16 bytes; two tiles of K and V in flight; queries that do not fit the registers. */
#define LT_FLASH_HALF(D, BN) ((BN) * (2 * (D) + 16))
#define LT_FLASH_BYTES(D, BN, ROWS, QREG) (4 * LT_FLASH_HALF(D, BN) + ((QREG) ? 0 : (ROWS) * (2 * (D) + 16)))

/* flash_sm90a.cu: panels of 64 columns; barriers, queries, stages of K, stages of V; 1024 to align. */
#define LT_FLASH90_PANEL(D, ROWS) (((D) + 63) / 64 * (ROWS) * 128)
#define LT_FLASH90_BYTES(D, BN, ROWS, STAGES) (2048 + LT_FLASH90_PANEL(D, ROWS) + 2 * (STAGES) * LT_FLASH90_PANEL(D, BN))

/* With int8 keys: their rows padded to panels of 128, as many for the queries, and a scale a key in each stage. */
#define LT_SAGE_PITCH(D) (((D) + 127) / 128 * 128)

/* Where a block an SM takes blocks of rows one after the other (flash_items.cuh): 12 places of 16 KiB, f32 rows on their way,
 * barriers and the item, the scales of the keys, scales and positions of the rows. */
#define LT_SAGE_ITEMS(D) ((D) == 128)
#define LT_SAGE_PLACE 16384
#define LT_SAGE_ASKED (3 * 4 * 2048) /* warps, each with four rows four times */
#define LT_SAGE_ITEMS_BYTES(BN, ROWS, STAGES) (1024 + 12 * LT_SAGE_PLACE + LT_SAGE_ASKED + 256 + 4 * (STAGES) * (BN) + 8 * (ROWS))

#define LT_SAGE90_BYTES(D, BN, ROWS, STAGES)                                                                           \
    (LT_SAGE_ITEMS(D) ? LT_SAGE_ITEMS_BYTES(BN, ROWS, STAGES)                                                          \
                      : 2048 + LT_SAGE_PITCH(D) * ((ROWS) + (STAGES) * (BN)) + (STAGES) * (LT_FLASH90_PANEL(D, BN) + 4 * (BN)))

#endif
