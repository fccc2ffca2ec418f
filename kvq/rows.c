/* Row quantisers: the specification, and quick enough to be the only version: see rows.h for the rules. */
#include "kvq/rows.h"

#include <math.h>

#include "kvq/row_parts.h"

/* Sums that the scale rules need, of codes whose levels are -10, -3, 3, 10. */
typedef struct lloyd_max_sums {
    double x_x, x_c; /* <x,x> and <x,c> */
    int c_c;         /* <c,c> */
} lloyd_max_sums;

static lloyd_max_sums lloyd_max_codes(const uint16_t *x, int d, uint8_t *codes)
{
    const double midpoint = 0.5 * ((double)KVQ_LLOYD_MAX_OUTER + (double)KVQ_LLOYD_MAX_INNER);
    lloyd_max_sums sums = {.x_x = kvq_sum_of_squares(x, d)};
    float threshold = (float)(midpoint * sqrt(sums.x_x / d));
    double inner[KVQ_ROW_LANES] = {0};
    int outer_count = 0;
    for (int c = 0; c < d; c += KVQ_ROW_LANES) {
        for (int i = 0; i < KVQ_ROW_LANES; i++) {
            uint32_t negative = x[c + i] >> 15;
            float magnitude = base_bf16_to_f32(x[c + i] & 0x7fffu);
            uint32_t outer = magnitude >= threshold ? 1u : 0u;
            codes[c + i] = (uint8_t)(negative != 0 ? 1u - outer : 2u + outer);
            outer_count += (int)outer;
            inner[i] += (outer != 0 ? 10.0 : 3.0) * (double)magnitude;
        }
    }
    sums.x_c = kvq_add_lanes(inner);
    sums.c_c = 9 * d + 91 * outer_count;
    return sums;
}

/* The grid step of the levels: level = step * {-10, -3, 3, 10}. */
static const double lloyd_max_step = (double)KVQ_LLOYD_MAX_OUTER / 10.0;

void kvq_row_lloyd_max_least_squares(const uint16_t *x, int d, kvq_row *out)
{
    lloyd_max_sums s = lloyd_max_codes(x, d, out->codes);
    out->scale = kvq_scale_to_half(s.x_c / ((double)s.c_c * lloyd_max_step));
    kvq_row_without_zero(d, out);
}

void kvq_row_lloyd_max_unbiased(const uint16_t *x, int d, kvq_row *out)
{
    lloyd_max_sums s = lloyd_max_codes(x, d, out->codes);
    out->scale = kvq_scale_to_half(s.x_c > 0.0 ? s.x_x / (s.x_c * lloyd_max_step) : 0.0);
    kvq_row_without_zero(d, out);
}

void kvq_row_uniform16_norm(const uint16_t *x, int d, kvq_row *out)
{
    double x_x = kvq_sum_of_squares(x, d);
    double step = KVQ_UNIFORM16_STEP * sqrt(x_x / d);
    int c_c = 0; /* <c,c> of twice the levels: odd numbers */
    for (int c = 0; c < d; c++) {
        double at = step > 0.0 ? (double)base_bf16_to_f32(x[c]) / step + 8.0 : 0.0;
        int code = at <= 0.0 ? 0 : at >= 15.0 ? 15 : (int)at;
        out->codes[c] = (uint8_t)code;
        c_c += (2 * code - 15) * (2 * code - 15);
    }
    out->scale = kvq_scale_to_half(2.0 * sqrt(x_x / (double)c_c));
    kvq_row_without_zero(d, out);
}

/*
 * The step is at least |smallest| / 60000, so that the zero fits fp16 (a row of equal values has no range of its own);
 * codes are chosen against the rounded scale and zero.
 */
void kvq_row_min_max(const uint16_t *x, int d, kvq_row *out)
{
    float low = base_bf16_to_f32(x[0]), high = low;
    for (int c = 1; c < d; c++) {
        float v = base_bf16_to_f32(x[c]);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    double step = ((double)high - (double)low) / 3.0, floor_step = fabs((double)low) / 60000.0;
    out->scale = kvq_scale_to_half(step > floor_step ? step : floor_step);
    if (out->scale == 0 && (low < 0.0f || high > 0.0f)) {
        out->scale = 1; /* 2^-24, the smallest there is */
    }
    kvq_row_without_zero(d, out);
    if (out->scale == 0) {
        return;
    }
    double s = (double)base_f16_to_f32(out->scale), zero = -(double)low / s;
    zero = zero > 65504.0 ? 65504.0 : zero < -65504.0 ? -65504.0 : zero;
    out->zero = base_f32_to_f16((float)zero);
    zero = (double)base_f16_to_f32(out->zero);
    for (int c = 0; c < d; c++) {
        double at = floor((double)base_bf16_to_f32(x[c]) / s + zero + 0.5);
        out->codes[c] = (uint8_t)(at <= 0.0 ? 0 : at >= 3.0 ? 3 : (int)at);
    }
}
