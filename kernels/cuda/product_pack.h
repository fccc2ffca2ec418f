/*
 * How weights lie on the device: what product_pack.c writes and product.cu reads.
 *
 * A TILE is 16 rows, a UNIT 64 columns of a tile, in two halves of 32. Rows and columns are filled up with zeros. The
 * units of a tile follow each other, tile after tile; so do the units' scales in an array of their own.
 *
 * In the product m16n8k16 lane 4 g + t holds rows g and g + 8. Which columns one product takes is ours to choose, as long
 * as weights and activations agree: of a half the lane has columns 8 t .. 8 t + 7, the first product takes the lanes' first
 * four of them, the second the other four. So a lane reads 16 bytes of activations and of halves at once.
 *
 *   PRODUCT_HALVES  4 x 512 bytes: half of the unit and row half r (rows g, g + 8) in the order (0, 0) (0, 1) (1, 0)
 *                   (1, 1); in each 16 bytes a lane, its 8 columns as fp16
 *   PRODUCT_BYTES   2 x 512 bytes, one for each half: 16 bytes a lane, 8 codes of row g, 8 of row g + 8
 *   PRODUCT_NIBBLES 512 bytes: 16 bytes a lane, words (half 0, row g) (half 0, g + 8) (half 1, g) (half 1, g + 8); of a
 *                   word column c of 8 is at bit 16 (c mod 2) + 4 (c / 2)
 *   scales          8 x 8 bytes a unit: for each g fp16 of (half 0, row g) (half 0, g + 8) (half 1, g) (half 1, g + 8);
 *                   mins as many behind the tensor's scales
 *
 * Blocks of 256 columns have scales of scales; these lie where the mins would, 64 bytes for each four units.
 *   PRODUCT_NIBBLES_K, PRODUCT_BYTES_K (Q4_K; Q5_K)  scales: for each g bytes scale and min of (half 0, row g)
 *                   (half 0, g + 8) (half 1, g) (half 1, g + 8); above them for each g fp16 d and dmin of row g and of g + 8
 *   PRODUCT_BYTES_16 (Q6_K)  scales: for each g the signed bytes of row g for 16 columns each, then those of g + 8; above
 *                   them for each g fp16 d and nothing of row g and of g + 8
 */
#ifndef EPIMEM_KERNELS_CUDA_PRODUCT_PACK_H
#define EPIMEM_KERNELS_CUDA_PRODUCT_PACK_H

#include "kernels/kernels.h"

enum {
    PRODUCT_TILE_ROWS = 16,
    PRODUCT_UNIT_COLS = 64,
    PRODUCT_SCALE_BYTES = 64, /* of a unit */
    PRODUCT_SUPER_UNITS = 4,  /* of a block of 256 columns */
    PRODUCT_PARTS = 8         /* of the columns, summed one by one and then in order */
};

typedef enum product_kind {
    PRODUCT_HALVES,
    PRODUCT_BYTES,
    PRODUCT_NIBBLES,
    PRODUCT_NIBBLES_MIN,
    PRODUCT_NIBBLES_K,
    PRODUCT_BYTES_K,
    PRODUCT_BYTES_16
} product_kind;

typedef struct product_layout {
    product_kind kind;
    int zero; /* taken off every code */
    int64_t rows, cols, tiles, units;
    uint64_t scales_at, mins_at, bytes; /* from the start; 0 where there are none */
} product_layout;

product_layout product_lay_out(krn_type type, int64_t rows, int64_t cols);
/* Fills `out` (layout bytes) on the pool. *factor: what the halves have to be multiplied with. ST_ERR_MEMORY. */
status product_pack(krn_pool *pool,
        krn_type type,
        const product_layout *l,
        const void *data,
        uint8_t *out,
        float *factor);

#endif
