/* Row quantisers of oscar+: even levels around zero, the row's scale found by search. */
#ifndef EPIMEM_KVQ_CODECS_OSCAR_PLUS_ROWS_H
#define EPIMEM_KVQ_CODECS_OSCAR_PLUS_ROWS_H

#include "kvq/rows.h"

/*
 * Four levels, -3 -1 1 3 halves of the scale. With even levels the codes c of a row are its signs and which magnitudes pass one
 * threshold, and the squared error at the best scale is <x,x> - <x,c>^2 / <c,c>: of the 16 thresholds 0.72, 0.76 ...
 * 1.32 times the row's RMS, the one with the largest <x,c>^2 / <c,c> is taken (the highest among equals).
 *
 * Then the scale. The least-squares one, <x,c> / <c,c>, shrinks a row by its distortion (11 % of its energy at two bits).
 *   V  <x,x> / <x,c>, which is unbiased along the row: attention averages values, noise averages out, a bias stays.
 *   K  |x| / |c|, the geometric mean of the two: shrunken keys flatten the logits, unbiased ones are noisier.
 * Both saturate at fp16's 65504.
 */
void kvq_row_uniform4_unbiased(const uint16_t *x, int d, kvq_row *out);
void kvq_row_uniform4_norm(const uint16_t *x, int d, kvq_row *out);
/* Sixteen levels, value = scale * (code - 7.5), scale |x| / |c|: of the steps 0.75, 0.82 ... 1.31 times the best one for a
 * normal row, that with the largest <x,c>^2 / <c,c>, the first among equals. */
void kvq_row_uniform16_search_norm(const uint16_t *x, int d, kvq_row *out);

#endif
