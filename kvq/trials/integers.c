/*
 * int8 and int4: signed integers, one fp16 scale for 32 channels of a row (largest magnitude over 127 or 7), as runtimes
 * store an 8-bit or 4-bit cache. Rows are not rotated. Here to be compared with.
 */
#include <math.h>

#include "kvq/trial.h"

enum { GROUP = 32 };

static void code_groups(float *x, int n, int largest)
{
    for (int group = 0; group < n; group += GROUP) {
        double most = 0.0;
        for (int i = 0; i < GROUP; i++) {
            most = fmax(most, fabs((double)x[group + i]));
        }
        double scale = kvq_trial_half(most / largest);
        for (int i = 0; i < GROUP; i++) {
            double code = scale > 0.0 ? floor((double)x[group + i] / scale + 0.5) : 0.0;
            x[group + i] = (float)(scale * fmax(-largest, fmin(largest, code)));
        }
    }
}

static status code_int8(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    (void)e;
    code_groups(k, rows * c->shape.d, 127);
    code_groups(v, rows * c->shape.d, 127);
    return ST_OK;
}

static status code_int4(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    (void)e;
    code_groups(k, rows * c->shape.d, 7);
    code_groups(v, rows * c->shape.d, 7);
    return ST_OK;
}

status kvq_open_int8(kvq_codec *c, const char *calibration_path, err *e)
{
    const double bits = 8.0 + 16.0 / GROUP;
    return kvq_open_trial(c, calibration_path, KRN_ROTATION_NONE, code_int8, bits, bits, e);
}

status kvq_open_int4(kvq_codec *c, const char *calibration_path, err *e)
{
    const double bits = 4.0 + 16.0 / GROUP;
    return kvq_open_trial(c, calibration_path, KRN_ROTATION_NONE, code_int4, bits, bits, e);
}
