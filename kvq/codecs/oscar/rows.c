/* The specification and the only version: see rows.h. */
#include "kvq/codecs/oscar/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/base.h"

enum { D_MAX = 256, ABOVE_MAX = 64 };

/* ---- clipping ---- */

static int rank_of(int d, double ratio)
{
    int rank = (int)(ratio * d);
    return rank < d - 1 ? rank : d - 1;
}

static float smaller(float a, float b)
{
    return a < b ? a : b;
}

static float larger(float a, float b)
{
    return a > b ? a : b;
}

/* Rank from below is d - rank from above: the few largest magnitudes are kept sorted, falling. */
float kvq_oscar_clip_by_sort(const float *x, int d, double ratio)
{
    float largest[ABOVE_MAX];
    int wanted = d - rank_of(d, ratio), n = 0;
    REQUIRE(wanted >= 1 && wanted <= ABOVE_MAX);
    for (int c = 0; c < d; c++) {
        float magnitude = fabsf(x[c]);
        if (n == wanted && magnitude <= largest[n - 1]) {
            continue;
        }
        int at = n < wanted ? n++ : n - 1;
        for (; at > 0 && largest[at - 1] < magnitude; at--) {
            largest[at] = largest[at - 1];
        }
        largest[at] = magnitude;
    }
    return largest[wanted - 1];
}

float kvq_oscar_clip_by_bisection(const float *x, int d, double ratio)
{
    int allowed = d - rank_of(d, ratio);
    float low = 0.0f, high = 0.0f;
    for (int c = 0; c < d; c++) {
        high = larger(high, fabsf(x[c]));
    }
    for (int halves = d; halves > 1; halves /= 2) {
        float middle = (low + high) * 0.5f;
        int above = 0;
        for (int c = 0; c < d; c++) {
            above += fabsf(x[c]) > middle;
        }
        *(above > allowed ? &low : &high) = middle;
    }
    return high;
}

static float clipped(float x, float clip)
{
    return smaller(larger(x, -clip), clip);
}

/* ---- codes ---- */

void kvq_oscar_min_max(const float *x, int d, float clip, kvq_oscar_row *out)
{
    float low = INFINITY, high = -INFINITY;
    for (int c = 0; c < d; c++) {
        float v = clipped(x[c], clip);
        low = smaller(low, v);
        high = larger(high, v);
    }
    out->scale = larger(high - low, 1e-8f) / 3.0f;
    out->zero = -low / out->scale;
    for (int c = 0; c < d; c++) {
        float code = clipped(x[c], clip) / out->scale + out->zero + 0.5f;
        out->codes[c] =
                (uint8_t)(code < 3.0f ? (int)code : 3); /* the sum is in [0.5, 3.5] but for rounding */
    }
}

void kvq_oscar_lloyd_max(const float *x, int d, float clip, kvq_oscar_row *out)
{
    const float decision = 0.98106527f, outer_level = 1.50955856f, ratio = 1.16f;
    double sum = 0.0, squares = 0.0;
    for (int c = 0; c < d; c++) {
        sum += (double)clipped(x[c], clip);
    }
    float mean = (float)(sum / d);
    for (int c = 0; c < d; c++) {
        double off = (double)(clipped(x[c], clip) - mean);
        squares += off * off;
    }
    float deviation = sqrtf((float)(squares / d) + 1e-8f);
    for (int c = 0; c < d; c++) {
        float at = (clipped(x[c], clip) - mean) / deviation;
        out->codes[c] = (uint8_t)((at >= -decision) + (at >= 0.0f) + (at >= decision));
    }
    out->scale = 2.0f * outer_level / 3.0f * ratio * deviation;
    out->zero = 1.5f - mean / out->scale;
}

/* ---- rows of pages ---- */

typedef float (*clip_rule)(const float *x, int d, double ratio);
typedef void (*code_rule)(const float *x, int d, float clip, kvq_oscar_row *out);

static void encode(const uint16_t *x, int d, clip_rule clip, double ratio, code_rule rule, kvq_row *out)
{
    const float smallest_step = 0x1p-14f, largest = 65504.0f; /* normal numbers of fp16 */
    float row[D_MAX];
    kvq_oscar_row coded;
    for (int c = 0; c < d; c++) {
        row[c] = base_bf16_to_f32(x[c]);
    }
    rule(row, d, clip(row, d, ratio), &coded);
    if (coded.scale >= smallest_step && coded.scale < largest && fabsf(coded.zero) < largest) {
        memcpy(out->codes, coded.codes, (size_t)d);
        out->scale = base_f32_to_f16(coded.scale);
        out->zero = base_f32_to_f16(coded.zero);
    } else {
        kvq_row_min_max(x, d, out);
    }
}

void kvq_row_oscar_k(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_sort, KVQ_OSCAR_K_CLIP, kvq_oscar_min_max, out);
}

void kvq_row_oscar_v(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_sort, KVQ_OSCAR_V_CLIP, kvq_oscar_min_max, out);
}

void kvq_row_oscar_k_bisection(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_bisection, KVQ_OSCAR_K_CLIP, kvq_oscar_min_max, out);
}

void kvq_row_oscar_v_bisection(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_bisection, KVQ_OSCAR_V_CLIP, kvq_oscar_min_max, out);
}

void kvq_row_oscar_k_lloyd_max(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_sort, KVQ_OSCAR_K_CLIP, kvq_oscar_lloyd_max, out);
}

void kvq_row_oscar_v_lloyd_max(const uint16_t *x, int d, kvq_row *out)
{
    encode(x, d, kvq_oscar_clip_by_sort, KVQ_OSCAR_V_CLIP, kvq_oscar_lloyd_max, out);
}
