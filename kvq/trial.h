/*
 * A TRIAL is a codec that is measured and not stored: its bytes would not fit the packed page. Its pages are BF16 rows,
 * already coded and decoded, so whatever takes a codec can run on it; its bits are those that a real store of it would
 * take (kvq_column_bytes counts the BF16 rows), counted for full pages of 128 tokens. Groups of tokens lie inside one page, so they never cross a sequence.
 */
#ifndef EPIMEM_KVQ_TRIAL_H
#define EPIMEM_KVQ_TRIAL_H

#include "kvq/codec.h"

#define X(name, opener) status opener(kvq_codec *c, const char *calibration_path, err *e);
#include "kvq/trials.def"
#undef X

/* Makes the codec a trial: rows turned by `kind`, pages through `coder`, bits of K and V per element as stated. */
status kvq_open_trial(kvq_codec *c,
        const char *calibration_path,
        krn_rotation_kind kind,
        kvq_page_coder coder,
        double k_bits,
        double v_bits,
        err *e);

/* What is left of a number after it was stored as fp16; past fp16's range the largest there is. */
static inline double kvq_trial_half(double x)
{
    double most = x > 65504.0 ? 65504.0 : x < -65504.0 ? -65504.0 : x;
    return (double)base_f16_to_f32(base_f32_to_f16((float)most));
}

/* Codes n values, `stride` apart, to 2^bits levels from the smallest to the largest, fp16 step and start, and decodes. */
void kvq_trial_min_max(float *x, int n, int stride, int bits);

#endif
