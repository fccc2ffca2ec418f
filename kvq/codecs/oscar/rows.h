/*
 * Row quantisers of OSCAR (arXiv 2605.17757) as its released code computes them: float32, one IEEE operation at a time, so that
 * codes can be compared bit for bit. x is a rotated row, d values.
 *
 *   clip    t from the magnitudes of the row, x <- min(max(x, -t), t)
 *   step    s = max(max - min, 1e-8) / 3, zero z = -min / s, both of the clipped row
 *   code    trunc(x / s + z + 1/2), value (code - z) s
 *
 * The release has two ways to find t which do not agree, and a row gets one or the other as it was written at prefill
 * (a sort) or left the window of recent tokens while decoding (bisection).
 */
#ifndef EPIMEM_KVQ_CODECS_OSCAR_ROWS_H
#define EPIMEM_KVQ_CODECS_OSCAR_ROWS_H

#include "kvq/rows.h"

#define KVQ_OSCAR_K_CLIP 0.96
#define KVQ_OSCAR_V_CLIP 0.92

typedef struct kvq_oscar_row {
    uint8_t codes[256]; /* [d] */
    float scale, zero;  /* before they are rounded for storing; codes are chosen against these */
} kvq_oscar_row;

/* The magnitude of rank min(trunc(ratio d), d - 1), counted from 0. */
float kvq_oscar_clip_by_sort(const float *x, int d, double ratio);
/* log2(d) halvings of [0, largest magnitude], keeping the upper end while at most d - rank magnitudes exceed it. */
float kvq_oscar_clip_by_bisection(const float *x, int d, double ratio);

/* The quantiser above; clip INFINITY leaves the row as it is. */
void kvq_oscar_min_max(const float *x, int d, float clip, kvq_oscar_row *out);
/* Its "Lloyd-Max" option: codes by the decision points of a normal row, 0 and -+0.981 standard deviations around the mean of the
 * clipped row; but evenly spaced values, 1.16 times as far apart as a third of the outer Lloyd-Max levels' distance. */
void kvq_oscar_lloyd_max(const float *x, int d, float clip, kvq_oscar_row *out);

/*
 * For pages: rows of bf16, scale and zero rounded to fp16 (the release's option; its default keeps them in float32). Rows whose
 * step or zero fp16 cannot hold (equal values, ranges below 1e-4 or beyond 65504) go to kvq_row_min_max.
 */
void kvq_row_oscar_k(const uint16_t *x, int d, kvq_row *out);
void kvq_row_oscar_v(const uint16_t *x, int d, kvq_row *out);
void kvq_row_oscar_k_bisection(const uint16_t *x, int d, kvq_row *out);
void kvq_row_oscar_v_bisection(const uint16_t *x, int d, kvq_row *out);
void kvq_row_oscar_k_lloyd_max(const uint16_t *x, int d, kvq_row *out);
void kvq_row_oscar_v_lloyd_max(const uint16_t *x, int d, kvq_row *out);

#endif
