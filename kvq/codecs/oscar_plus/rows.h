/* Row quantisers of oscar+: even levels around zero, the row's scale found by search. */
#ifndef EPIMEM_KVQ_CODECS_OSCAR_PLUS_ROWS_H
#define EPIMEM_KVQ_CODECS_OSCAR_PLUS_ROWS_H

#include "kvq/rows.h"

/*
 * Four levels, -3 -1 1 3 halves of the scale. With even levels the codes of a row are a threshold on magnitudes and signs, so
 * the squared error at the best scale is <x,x> - <x,c>^2 / <c,c>: of 16 thresholds, 0.72 to 1.32 times the row's RMS,
 * the one with the largest <x,c>^2 / <c,c> is taken (the first among equals). The scale is then
 *   V  <x,c> / <c,c>, the least squares one;
 *   K  |x| / |c|, its geometric mean with the unbiased <x,x> / <x,c>: the first shrinks a key by its distortion, which
 *      flattens logits, the second overshoots.
 */
void kvq_row_uniform4_least_squares(const uint16_t *x, int d, kvq_row *out);
void kvq_row_uniform4_norm(const uint16_t *x, int d, kvq_row *out);
/* Sixteen levels, value = scale * (code - 7.5): the best of 9 steps, 0.75 to 1.31 times the one for a normal row. */
void kvq_row_uniform16_search_norm(const uint16_t *x, int d, kvq_row *out);

#endif
