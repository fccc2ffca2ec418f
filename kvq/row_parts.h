/* What row quantisers have in common: the one order of summation, fp16 scales, one spelling of zero rows. */
#ifndef EPIMEM_KVQ_ROW_PARTS_H
#define EPIMEM_KVQ_ROW_PARTS_H

#include <string.h>

#include "kernels/base.h"
#include "kvq/rows.h"

enum { KVQ_ROW_LANES = 8 };

/* Partial sums over channels equal mod 8, then halves together. */
static inline double kvq_add_lanes(const double s[KVQ_ROW_LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static inline double kvq_sum_of_squares(const uint16_t *x, int d)
{
    double s[KVQ_ROW_LANES] = {0};
    for (int c = 0; c < d; c += KVQ_ROW_LANES) {
        for (int i = 0; i < KVQ_ROW_LANES; i++) {
            double v = (double)base_bf16_to_f32(x[c + i]);
            s[i] += v * v; /* the product is exact */
        }
    }
    return kvq_add_lanes(s);
}

/* To fp16, saturating: an infinite scale would poison every sum it enters. */
static inline uint16_t kvq_scale_to_half(double scale)
{
    float f = (float)scale;
    return f < 65504.0f ? base_f32_to_f16(f) : (uint16_t)0x7bff;
}

/* No zero; and rows that decode to nothing but zeros have no codes. */
static inline void kvq_row_without_zero(int d, kvq_row *out)
{
    out->zero = 0;
    if (out->scale == 0) {
        memset(out->codes, 0, (size_t)d);
    }
}

#endif
