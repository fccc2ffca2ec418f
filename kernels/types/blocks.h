/*
 * The bytes of a stored block, by offset, little-endian as GGUF defines them. Offsets and not structs, since stored
 * tensors need not be aligned for anything. Half floats are fp16.
 *
 * Blocks of 32 elements: value = d * (code - zero), or d * code + m.
 *   Q4_0  d[2] codes[16]            zero 8     code of element j: low nibble of byte j, j < 16; of j + 16: high nibble
 *   Q4_1  d[2] m[2] codes[16]
 *   Q5_0  d[2] high[4] codes[16]    zero 16    fifth bit of element j: bit j of `high`
 *   Q5_1  d[2] m[2] high[4] codes[16]
 *   Q8_0  d[2] codes[32]            signed bytes
 *   IQ4_NL as Q4_0, value = d * level[code]
 * Blocks of 256 elements, in groups of 16 or 32 with scales of their own: value = d * scale * code - dmin * min.
 *   Q2_K  scales[16] (scale | min << 4) codes[64] d[2] dmin[2]
 *   Q3_K  high[32] codes[64] scales[12] (six bits, less 32) d[2]    code - 4
 *   Q4_K  d[2] dmin[2] scales[12] (six-bit scales and mins) codes[128]
 *   Q5_K  d[2] dmin[2] scales[12] high[32] codes[128]
 *   Q6_K  low[128] high[64] scales[16] (signed) d[2]                code - 32
 *   IQ4_XS d[2] scales_high[2] scales_low[4] codes[128]             scale less 32, value = d * scale * level[code]
 */
#ifndef EPIMEM_KERNELS_TYPES_BLOCKS_H
#define EPIMEM_KERNELS_TYPES_BLOCKS_H

#include "kernels/kernels.h"

#include <string.h>

static inline uint16_t blk_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t blk_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline float blk_f16(const uint8_t *p)
{
    return base_f16_to_f32(blk_u16(p));
}

/* Scale and min of group g (of 8) of Q4_K and Q5_K: six bits each in twelve bytes. */
static inline void blk_scale_min(const uint8_t *scales, int g, uint8_t *scale, uint8_t *min)
{
    if (g < 4) {
        *scale = scales[g] & 63;
        *min = scales[g + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4);
        *min = (uint8_t)(scales[g + 4] >> 4 | (scales[g] >> 6) << 4);
    }
}

/* Codes of 32 consecutive elements as unsigned bytes: elements 32 g .. 32 g + 31 of the block (g is 0 where a block
 * has 32). Only for the types that multiply in integers: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 (plus 128), Q4_K, Q5_K, Q6_K. */
void blk_codes(krn_type type, const uint8_t *block, int g, uint8_t codes[32]);

#endif
