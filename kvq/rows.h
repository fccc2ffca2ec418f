/*
 * Row quantisers: from the d bf16 values of one row, in stored space, to codes, an fp16 scale and perhaps an fp16 zero.
 * A quantiser sees nothing but its row, and its result does not depend on the processor: sums are doubles in one fixed
 * order (eight partial sums over channels equal mod 8, then halves together), comparisons are on exact values.
 *
 * Values must be finite. A scale past fp16 saturates at 65504, so rows with an RMS beyond that are cut off.
 */
#ifndef EPIMEM_KVQ_ROWS_H
#define EPIMEM_KVQ_ROWS_H

#include <stdint.h>

typedef struct kvq_row {
    uint8_t codes[256]; /* [d] */
    uint16_t scale, zero;
} kvq_row;

typedef void (*kvq_row_encoder)(const uint16_t *x, int d, kvq_row *out);

/*
 * Levels of the two-bit Lloyd-Max quantiser of a unit normal, -+1.5104 and -+0.4528 (TurboQuant, arXiv 2504.19874,
 * section 3.1), on the grid 10 : 3, which byte products can hold exactly. The optimum for a unit vector of d channels
 * has the ratio 0.3014 (d 64), 0.3006 (d 128), 0.2998 (d to infinity): 0.3 costs at most 3e-5 of the distortion.
 */
#define KVQ_LLOYD_MAX_OUTER 1.51f
#define KVQ_LLOYD_MAX_INNER 0.453f
/* Best step of evenly spaced 16 levels for a unit normal. */
#define KVQ_UNIFORM16_STEP 0.3352

/*
 * Codes by Lloyd-Max in units of the row's RMS, value = scale * level[code]. The two differ in the scale: <x,c>/<c,c>, which has the
 * least error and shrinks a row by its distortion (11 % of its energy), as the conditional means of TurboQuant do; or <x,x>/<x,c>,
 * which is unbiased along the row.
 */
void kvq_row_lloyd_max_least_squares(const uint16_t *x, int d, kvq_row *out);
void kvq_row_lloyd_max_unbiased(const uint16_t *x, int d, kvq_row *out);
/* 16 even levels, value = scale * (code - 7.5), codes by the best step for the row's RMS, norm kept. */
void kvq_row_uniform16_norm(const uint16_t *x, int d, kvq_row *out);
/* 4 levels between the smallest and the largest value, value = scale * (code - zero). */
void kvq_row_min_max(const uint16_t *x, int d, kvq_row *out);

#endif
