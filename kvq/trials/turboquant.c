/*
 * turboquant-3, turboquant-4 (Zandieh et al., arXiv 2504.19874, section 3.1): turboquant at three and four bits, 8 and 16
 * Lloyd-Max levels of a unit normal after a Hadamard rotation, fp16 least-squares scale. Keys and values alike, which no
 * page holds: its value plane has two bits.
 *
 * turboquant-qjl, turboquant-3-qjl: TurboQuant_prod of section 3.2 for the keys, with b = 2 and b = 3. One of the b bits
 * goes to the residual r = x - x': the signs z of S r, S a d x d matrix of unit normals, and |r| as fp16. The estimate of
 * <q, r>, sqrt(pi / 2) / d |r| <S q, z>, is <q, r'> with r' = sqrt(pi / 2) / d |r| S^T z, which is what is added here.
 * It makes scores unbiased, and noisier. Values, which are not multiplied by a query, get all b bits as levels.
 */
#include <math.h>

#include "kvq/trial.h"

enum { LEVELS_MAX = 8 };

/* Positive halves, by b; the negative ones mirror them. Fixed point of Lloyd's conditions for a unit normal. */
static const double levels_of[5][LEVELS_MAX] = {{0}, {0.797885}, {0.452780, 1.510418},
        {0.245094, 0.756005, 1.343909, 2.151946},
        {0.128395, 0.388048, 0.656759, 0.942340, 1.256231, 1.618046, 2.069017, 2.732590}};

static double nearest_level(double magnitude, int bits)
{
    const double *level = levels_of[bits];
    int i = 0, last = (1 << (bits - 1)) - 1;
    while (i < last && magnitude >= 0.5 * (level[i] + level[i + 1])) {
        i++;
    }
    return level[i];
}

/* One row becomes scale * level; two passes, since the least-squares scale <x,c> / <c,c> is known after the levels are. */
static void code_row(const float *x, int d, int bits, float *y)
{
    double x_x = 0.0, x_c = 0.0, c_c = 0.0;
    for (int i = 0; i < d; i++) {
        x_x += (double)x[i] * (double)x[i];
    }
    double rms = sqrt(x_x / d);
    for (int i = 0; i < d; i++) {
        double level = rms > 0.0 ? nearest_level(fabs((double)x[i]) / rms, bits) : 0.0;
        x_c += fabs((double)x[i]) * level;
        c_c += level * level;
        y[i] = (float)copysign(level, (double)x[i]);
    }
    double scale = c_c > 0.0 ? kvq_trial_half(x_c / c_c) : 0.0;
    for (int i = 0; i < d; i++) {
        y[i] = (float)(scale * (double)y[i]);
    }
}

static void code_rows(float *x, int d, int rows, int bits)
{
    for (int row = 0; row < rows; row++) {
        code_row(x + row * d, d, bits, x + row * d);
    }
}

static status code_3(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    (void)e;
    code_rows(k, c->shape.d, rows, 3);
    code_rows(v, c->shape.d, rows, 3);
    return ST_OK;
}

static status code_4(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    (void)e;
    code_rows(k, c->shape.d, rows, 4);
    code_rows(v, c->shape.d, rows, 4);
    return ST_OK;
}

/* ---- with a sketch of the residual ---- */

/* Unit normals by Box and Muller, from a generator with a fixed seed: every page sees the same matrix. */
static void fill_sketch(float *s, int n)
{
    uint64_t state = 1;
    for (int i = 0; i < n; i += 2) {
        double u[2];
        for (int j = 0; j < 2; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            u[j] = ((double)(state >> 33) + 0.5) * 0x1p-31;
        }
        double radius = sqrt(-2.0 * log(u[0])), angle = 6.283185307179586 * u[1];
        s[i] = (float)(radius * cos(angle));
        s[i + 1] = (float)(radius * sin(angle));
    }
}

static void code_key_with_sketch(const float *sketch, float *x, int d, int bits)
{
    float y[256], r[256];
    double added[256] = {0}, r_r = 0.0;
    code_row(x, d, bits, y);
    for (int i = 0; i < d; i++) {
        r[i] = x[i] - y[i];
        r_r += (double)r[i] * (double)r[i];
    }
    double size = kvq_trial_half(sqrt(r_r)) * sqrt(1.5707963267948966) / d;
    for (int j = 0; j < d; j++) {
        const float *row = sketch + j * d;
        double dot = 0.0;
        for (int i = 0; i < d; i++) {
            dot += (double)row[i] * (double)r[i];
        }
        for (int i = 0; i < d; i++) {
            added[i] += dot < 0.0 ? -(double)row[i] : (double)row[i];
        }
    }
    for (int i = 0; i < d; i++) {
        x[i] = (float)((double)y[i] + size * added[i]);
    }
}

static status code_with_sketch(const kvq_codec *c, float *k, float *v, int rows, int bits, err *e)
{
    int d = c->shape.d;
    float *sketch = base_alloc((size_t)d * (size_t)d * sizeof *sketch);
    if (sketch == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a sketch");
    }
    fill_sketch(sketch, d * d);
    for (int row = 0; row < rows; row++) {
        code_key_with_sketch(sketch, k + row * d, d, bits - 1);
    }
    base_free(sketch);
    code_rows(v, d, rows, bits);
    return ST_OK;
}

static status code_qjl(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    return code_with_sketch(c, k, v, rows, 2, e);
}

static status code_3_qjl(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    return code_with_sketch(c, k, v, rows, 3, e);
}

/* ---- open ---- */

static status open_rotated(
        kvq_codec *c, const char *calibration_path, kvq_page_coder coder, int bits, bool sketch, err *e)
{
    double scale = 16.0 / c->shape.d;
    return kvq_open_trial(c, calibration_path, KRN_ROTATION_HADAMARD, coder, bits + (sketch ? 2 : 1) * scale,
            bits + scale, e);
}

status kvq_open_turboquant_3(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_rotated(c, calibration_path, code_3, 3, false, e);
}

status kvq_open_turboquant_4(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_rotated(c, calibration_path, code_4, 4, false, e);
}

status kvq_open_turboquant_qjl(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_rotated(c, calibration_path, code_qjl, 2, true, e);
}

status kvq_open_turboquant_3_qjl(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_rotated(c, calibration_path, code_3_qjl, 3, true, e);
}
