/* What trials share; see trial.h. */
#include "kvq/trial.h"

#include <math.h>

status kvq_open_trial(kvq_codec *c,
        const char *calibration_path,
        krn_rotation_kind kind,
        kvq_page_coder coder,
        double k_bits,
        double v_bits,
        err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    kvq_codec_store_bf16(c);
    kvq_codec_rotate_all(c, kind);
    c->trial_coder = coder;
    c->trial_bits = 0.5 * (k_bits + v_bits);
    return ST_OK;
}

void kvq_trial_min_max(float *x, int n, int stride, int bits)
{
    double low = (double)x[0], high = low;
    for (int i = 1; i < n; i++) {
        double v = (double)x[i * stride];
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    int last = (1 << bits) - 1;
    double step = kvq_trial_half((high - low) / last), start = kvq_trial_half(low);
    for (int i = 0; i < n; i++) {
        double code = step > 0.0 ? floor(((double)x[i * stride] - start) / step + 0.5) : 0.0;
        code = code < 0.0 ? 0.0 : code > last ? last : code;
        x[i * stride] = (float)(start + step * code);
    }
}
