/*
 * gear (Kang et al., arXiv 2403.05527, section 3): x = quantised + low rank + sparse. Of every channel of keys (along a
 * page's tokens) and every row of values (along its channels) the largest and the smallest 1 %, at least one each, are
 * kept as fp16 with a 16-bit place; the rest is coded at two bits in groups of 64 along the same direction; the error
 * that remains gets a rank-2 approximation A B^T by power iteration (algorithm 2), A and B in fp16. Rank 2 is what
 * the paper takes for blocks made while decoding, which a page of 128 tokens is nearest to.
 *
 * The low-rank part costs 16 r (T + d) bits for T d values: 0.75 of a bit at T 128, d 64.
 */
#include <math.h>
#include <string.h>

#include "kvq/trial.h"

enum { GROUP = 64, BITS = 2, RANK = 2, ITERATIONS = 3, PAGE = KRN_PAGE_ROWS, D_MAX = 256 };

/* n vectors of `length` values: of keys the channels, of values the rows. */
typedef struct direction {
    int n, length, step, stride; /* vector v's i-th value is at v * step + i * stride */
} direction;

typedef struct gear_space {
    float whole[PAGE * D_MAX]; /* the rows as they were */
    bool kept[PAGE * D_MAX];   /* outliers */
    double a[PAGE][RANK], b[D_MAX][RANK];
} gear_space;

static int outliers_of(int length)
{
    int n = (length + 50) / 100;
    return n < 1 ? 1 : n;
}

/* Marks the largest (sign 1) or smallest (sign -1) `n` values that are not yet marked. */
static void mark_outliers(gear_space *s, const float *x, const direction *a, int at, int n, float sign)
{
    for (int round = 0; round < n; round++) {
        int best = -1;
        for (int i = 0; i < a->length; i++) {
            int j = at + i * a->stride;
            if (!s->kept[j] && (best < 0 || sign * x[j] > sign * x[best])) {
                best = j;
            }
        }
        if (best >= 0) {
            s->kept[best] = true;
        }
    }
}

/* Outliers give way to the mean of their vector, so that groups have the range of the rest. */
static void code_vector(gear_space *s, float *x, const direction *a, int vector)
{
    int at = vector * a->step, n = outliers_of(a->length);
    double mean = 0.0;
    for (int i = 0; i < a->length; i++) {
        mean += (double)x[at + i * a->stride] / a->length;
    }
    mark_outliers(s, x, a, at, n, 1.0f);
    mark_outliers(s, x, a, at, n, -1.0f);
    for (int i = 0; i < a->length; i++) {
        int j = at + i * a->stride;
        x[j] = s->kept[j] ? (float)mean : x[j];
    }
    for (int first = 0; first < a->length; first += GROUP) {
        int left = a->length - first;
        kvq_trial_min_max(x + at + first * a->stride, left < GROUP ? left : GROUP, a->stride, BITS);
    }
}

/* ---- the error's low-rank part ---- */

static void orthonormalise(double (*m)[RANK], int n)
{
    for (int r = 0; r < RANK; r++) {
        for (int before = 0; before < r; before++) {
            double dot = 0.0;
            for (int i = 0; i < n; i++) {
                dot += m[i][r] * m[i][before];
            }
            for (int i = 0; i < n; i++) {
                m[i][r] -= dot * m[i][before];
            }
        }
        double size = 0.0;
        for (int i = 0; i < n; i++) {
            size += m[i][r] * m[i][r];
        }
        double scale = size > 0.0 ? 1.0 / sqrt(size) : 0.0;
        for (int i = 0; i < n; i++) {
            m[i][r] *= scale;
        }
    }
}

static double error_at(const gear_space *s, const float *x, int j)
{
    return s->kept[j] ? 0.0 : (double)s->whole[j] - (double)x[j];
}

static void times_error(gear_space *s, const float *x, int rows, int d, bool transposed)
{
    if (transposed) {
        memset(s->b, 0, sizeof s->b);
    } else {
        memset(s->a, 0, sizeof s->a);
    }
    for (int t = 0; t < rows; t++) {
        for (int i = 0; i < d; i++) {
            double error = error_at(s, x, t * d + i);
            for (int r = 0; r < RANK; r++) {
                if (transposed) {
                    s->b[i][r] += error * s->a[t][r];
                } else {
                    s->a[t][r] += error * s->b[i][r];
                }
            }
        }
    }
}

/* A = E B and B = E^T A in turn; A is orthonormal when B is computed, so A B^T is E projected. */
static void approximate_error(gear_space *s, const float *x, int rows, int d)
{
    for (int i = 0; i < d; i++) {
        for (int r = 0; r < RANK; r++) {
            s->b[i][r] = (double)((i * 7 + r * 11) % 13) -
                    6.0; /* any start that is not orthogonal to the answer */
        }
    }
    for (int round = 0; round < ITERATIONS; round++) {
        times_error(s, x, rows, d, false);
        orthonormalise(s->a, rows);
        times_error(s, x, rows, d, true);
    }
}

static void code_side(gear_space *s, float *x, int rows, int d, direction a)
{
    memset(s->kept, 0, sizeof s->kept);
    memcpy(s->whole, x, (size_t)rows * (size_t)d * sizeof *x);
    for (int vector = 0; vector < a.n; vector++) {
        code_vector(s, x, &a, vector);
    }
    approximate_error(s, x, rows, d);
    for (int t = 0; t < rows; t++) {
        for (int i = 0; i < d; i++) {
            int j = t * d + i;
            double low_rank = 0.0;
            for (int r = 0; r < RANK; r++) {
                low_rank += kvq_trial_half(s->a[t][r]) * kvq_trial_half(s->b[i][r]);
            }
            x[j] = s->kept[j] ? (float)kvq_trial_half((double)s->whole[j]) : (float)((double)x[j] + low_rank);
        }
    }
}

static status code_gear(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    int d = c->shape.d;
    gear_space *s = base_alloc(sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for gear");
    }
    code_side(s, k, rows, d, (direction){.n = d, .length = rows, .step = 1, .stride = d});
    code_side(s, v, rows, d, (direction){.n = rows, .length = d, .step = d, .stride = 1});
    base_free(s);
    return ST_OK;
}

status kvq_open_gear(kvq_codec *c, const char *calibration_path, err *e)
{
    double d = c->shape.d, base = BITS + 32.0 / GROUP + 16.0 * RANK * (PAGE + d) / (PAGE * d);
    double k_bits = base + 2.0 * outliers_of(PAGE) * 32.0 / PAGE,
           v_bits = base + 2.0 * outliers_of(c->shape.d) * 32.0 / d;
    return kvq_open_trial(c, calibration_path, KRN_ROTATION_NONE, code_gear, k_bits, v_bits, e);
}
