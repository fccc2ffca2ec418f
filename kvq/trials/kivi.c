/*
 * kivi (Liu et al., arXiv 2402.02750, section 3.2): keys by channel over 32 tokens, values by token over 32 channels, two
 * bits between the smallest and the largest of a group, fp16 step and start. No rotation: a key's outliers stay in their
 * channels, where they have groups of their own. The last group of keys is short when rows are no multiple of 32 (the
 * paper keeps those tokens in fp16).
 *
 * No page holds it: 2 * 16 bits for every 32 values are twice the scales that pages have, and the attention kernel
 * applies one scale to a row of keys, not to a channel.
 */
#include "kvq/trial.h"

enum { GROUP = 32, BITS = 2 };

static status code_kivi(const kvq_codec *c, float *k, float *v, int rows, err *e)
{
    (void)e;
    int d = c->shape.d;
    for (int first = 0; first < rows; first += GROUP) {
        int n = rows - first < GROUP ? rows - first : GROUP;
        for (int channel = 0; channel < d; channel++) {
            kvq_trial_min_max(k + first * d + channel, n, d, BITS);
        }
    }
    for (int group = 0; group < rows * d / GROUP; group++) {
        kvq_trial_min_max(v + group * GROUP, GROUP, 1, BITS);
    }
    return ST_OK;
}

status kvq_open_kivi(kvq_codec *c, const char *calibration_path, err *e)
{
    const double bits = BITS + 32.0 / GROUP;
    return kvq_open_trial(c, calibration_path, KRN_ROTATION_NONE, code_kivi, bits, bits, e);
}
