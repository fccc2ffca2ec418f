/* The specification, and quick enough to be the only version: see rows.h. Sums are doubles, exact comparisons, one order. */
#include "kvq/codecs/oscar_plus/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/base.h"

enum { LANES = 8, TRIES4 = 16, TRIES16 = 9 };

static double add_lanes(const double s[LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static double sum_of_squares(const uint16_t *x, int d)
{
    double s[LANES] = {0};
    for (int c = 0; c < d; c += LANES) {
        for (int i = 0; i < LANES; i++) {
            double v = (double)base_bf16_to_f32(x[c + i]);
            s[i] += v * v;
        }
    }
    return add_lanes(s);
}

/* To fp16, saturating: an infinite scale would poison every sum it enters. */
static uint16_t scale_to_half(double scale)
{
    float f = (float)scale;
    return f < 65504.0f ? base_f32_to_f16(f) : (uint16_t)0x7bff;
}

static void clear_if_zero(int d, kvq_row *out)
{
    out->zero = 0;
    if (out->scale == 0) {
        memset(out->codes, 0, (size_t)d); /* rows that decode to zero have one spelling */
    }
}

/* ---- four levels ---- */

/* <x,x>, and <x,c> and <c,c> of c = 2 code - 3, odd numbers. */
typedef struct sums {
    double x_x, x_c;
    int c_c;
} sums;

/* Which of the thresholds 0.72 + 0.04 i RMS a magnitude reaches: their number. */
static int reached(double magnitude, double per_unit)
{
    double at = magnitude * per_unit - 17.0; /* 18 - 1: at threshold 0 it is 1 */
    return at < 1.0 ? 0 : at >= (double)TRIES4 ? TRIES4 : (int)at;
}

static sums search4(const uint16_t *x, int d, kvq_row *out)
{
    sums best = {.x_x = sum_of_squares(x, d), .c_c = 1};
    double per_unit = best.x_x > 0.0 ? 25.0 / sqrt(best.x_x / d) : 0.0;
    double sum_of[TRIES4 + 1] = {0}; /* of the magnitudes that reach so many thresholds */
    int count_of[TRIES4 + 1] = {0};
    for (int c = 0; c < d; c++) {
        double magnitude = (double)base_bf16_to_f32(x[c] & 0x7fffu);
        int n = reached(magnitude, per_unit);
        out->codes[c] = (uint8_t)n;
        sum_of[n] += magnitude;
        count_of[n]++;
    }
    double all = 0.0, outer = 0.0;
    for (int n = 0; n <= TRIES4; n++) {
        all += sum_of[n];
    }
    int outer_count = 0, from = TRIES4 + 1;
    double best_score = -1.0;
    for (int n = TRIES4; n >= 1; n--) { /* codes are outer from n reached thresholds on */
        outer += sum_of[n];
        outer_count += count_of[n];
        double x_c = all + 2.0 * outer;
        int c_c = d + 8 * outer_count;
        double score = x_c * x_c / c_c;
        if (score > best_score) {
            best_score = score;
            best.x_c = x_c;
            best.c_c = c_c;
            from = n;
        }
    }
    for (int c = 0; c < d; c++) {
        unsigned is_outer = out->codes[c] >= from, negative = x[c] >> 15;
        out->codes[c] = (uint8_t)(negative != 0 ? 1u - is_outer : 2u + is_outer);
    }
    return best;
}

void kvq_row_uniform4_unbiased(const uint16_t *x, int d, kvq_row *out)
{
    sums s = search4(x, d, out);
    out->scale = scale_to_half(s.x_c > 0.0 ? 2.0 * s.x_x / s.x_c : 0.0);
    clear_if_zero(d, out);
}

void kvq_row_uniform4_norm(const uint16_t *x, int d, kvq_row *out)
{
    sums s = search4(x, d, out);
    out->scale = scale_to_half(2.0 * sqrt(s.x_x / s.c_c));
    clear_if_zero(d, out);
}

/* ---- sixteen levels ---- */

static int magnitude_code(float magnitude, float per_step)
{
    float at = magnitude * per_step;
    return at >= 7.0f ? 7 : (int)at;
}

/* <x,c> and <c,c> of c = 2 code - 15, for one step. */
static void sums16(const float *magnitude, int d, float per_step, double *x_c, int *c_c)
{
    double lanes[LANES] = {0};
    int squares = 0;
    for (int c = 0; c < d; c += LANES) {
        for (int i = 0; i < LANES; i++) {
            /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): d is whole lanes, every magnitude is set */
            int odd = 2 * magnitude_code(magnitude[c + i], per_step) + 1;
            lanes[i] += (double)odd * (double)magnitude[c + i];
            squares += odd * odd;
        }
    }
    *x_c = add_lanes(lanes);
    *c_c = squares;
}

void kvq_row_uniform16_search_norm(const uint16_t *x, int d, kvq_row *out)
{
    double x_x = sum_of_squares(x, d), rms = sqrt(x_x / d), best_score = -1.0;
    float magnitude[256], best_per_step = 0.0f;
    int best_c_c = 1;
    for (int c = 0; c < d; c++) {
        magnitude[c] = base_bf16_to_f32(x[c] & 0x7fffu);
    }
    for (int i = 0; i < TRIES16 && rms > 0.0; i++) {
        float per_step = (float)(1.0 / (rms * KVQ_UNIFORM16_STEP * (0.75 + 0.07 * i)));
        per_step = per_step < 1e37f ? per_step : 1e37f; /* rows of subnormal numbers */
        double x_c;
        int c_c;
        sums16(magnitude, d, per_step, &x_c, &c_c);
        if (x_c * x_c / c_c > best_score) {
            best_score = x_c * x_c / c_c;
            best_per_step = per_step;
            best_c_c = c_c;
        }
    }
    for (int c = 0; c < d; c++) {
        int code = magnitude_code(magnitude[c], best_per_step);
        out->codes[c] = (uint8_t)((x[c] >> 15) != 0 ? 7 - code : 8 + code);
    }
    out->scale = scale_to_half(2.0 * sqrt(x_x / best_c_c));
    clear_if_zero(d, out);
}
