/* The searches' specification, and what both versions share: see search.h. */
#include "kvq/codecs/oscar_plus/search.h"

#include <math.h>

#include "kvq/row_parts.h"

enum { LANES = KVQ_ROW_LANES, TRIES4 = KVQ_SEARCH_TRIES4, TRIES16 = KVQ_SEARCH_TRIES16 };

/* ---- four levels ---- */

/* Thresholds are 0.72 + 0.04 (n - 1) RMS: 25 magnitude / RMS - 17 reaches n from there on. */
double kvq_search4_per_unit(double x_x, int d)
{
    return x_x > 0.0 ? 25.0 / sqrt(x_x / d) : 0.0;
}

int kvq_search4_choose(int d, double all, const double outer[TRIES4], const int count[TRIES4], kvq_sums *best)
{
    int chosen = TRIES4 + 1;
    double best_score = -1.0;
    best->x_c = 0.0;
    best->c_c = 1;
    for (int n = TRIES4; n >= 1; n--) { /* codes are outer from n reached thresholds on */
        double x_c = all + 2.0 * outer[n - 1];
        int c_c = d + 8 * count[n - 1];
        double score = x_c * x_c / c_c;
        if (score > best_score) {
            best_score = score;
            best->x_c = x_c;
            best->c_c = c_c;
            chosen = n;
        }
    }
    return chosen;
}

static kvq_sums four(const uint16_t *x, int d, uint8_t *codes)
{
    kvq_sums sums = {.x_x = kvq_sum_of_squares(x, d)};
    double per_unit = kvq_search4_per_unit(sums.x_x, d), all[LANES] = {0}, outer[TRIES4][LANES] = {{0}};
    double reached[KVQ_SEARCH_D_MAX], outer_sums[TRIES4];
    int count[TRIES4] = {0};
    for (int c = 0; c < d; c++) {
        double magnitude = (double)base_bf16_to_f32(x[c] & 0x7fffu);
        reached[c] = magnitude * per_unit - 17.0;
        all[c % LANES] += magnitude;
        for (int n = 1; n <= TRIES4 && reached[c] >= n; n++) {
            outer[n - 1][c % LANES] += magnitude;
            count[n - 1]++;
        }
    }
    for (int n = 0; n < TRIES4; n++) {
        outer_sums[n] = kvq_add_lanes(outer[n]);
    }
    int from = kvq_search4_choose(d, kvq_add_lanes(all), outer_sums, count, &sums);
    for (int c = 0; c < d; c++) {
        unsigned is_outer = reached[c] >= from, negative = x[c] >> 15;
        codes[c] = (uint8_t)(negative != 0 ? 1u - is_outer : 2u + is_outer);
    }
    return sums;
}

/* ---- sixteen levels ---- */

float kvq_search16_per_step(double x_x, int d, int i)
{
    float per_step = (float)(1.0 / (sqrt(x_x / d) * KVQ_UNIFORM16_STEP * (0.75 + 0.07 * i)));
    return per_step < 1e37f ? per_step : 1e37f; /* rows of subnormal numbers */
}

static int magnitude_code(float magnitude, float per_step)
{
    float at = magnitude * per_step;
    return at >= 7.0f ? 7 : (int)at;
}

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
    *x_c = kvq_add_lanes(lanes);
    *c_c = squares;
}

static kvq_sums sixteen(const uint16_t *x, int d, uint8_t *codes)
{
    kvq_sums best = {.x_x = kvq_sum_of_squares(x, d), .c_c = 1};
    double best_score = -1.0;
    float magnitude[KVQ_SEARCH_D_MAX], best_per_step = 0.0f;
    for (int c = 0; c < d; c++) {
        magnitude[c] = base_bf16_to_f32(x[c] & 0x7fffu);
    }
    for (int i = 0; i < TRIES16 && best.x_x > 0.0; i++) {
        float per_step = kvq_search16_per_step(best.x_x, d, i);
        double x_c;
        int c_c;
        sums16(magnitude, d, per_step, &x_c, &c_c);
        if (x_c * x_c / c_c > best_score) {
            best_score = x_c * x_c / c_c;
            best_per_step = per_step;
            best.x_c = x_c;
            best.c_c = c_c;
        }
    }
    for (int c = 0; c < d; c++) {
        int code = magnitude_code(magnitude[c], best_per_step);
        codes[c] = (uint8_t)((x[c] >> 15) != 0 ? 7 - code : 8 + code);
    }
    return best;
}

const kvq_search kvq_search_scalar = {.four = four, .sixteen = sixteen};
