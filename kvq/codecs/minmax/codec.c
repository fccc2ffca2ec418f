/*
 * naive: four levels from the smallest to the largest value of a row as it is. hadamard: the same after a Hadamard
 * transform, as QuaRot (Ashkboos et al., arXiv 2404.00456) stores its cache. Both are here to be compared with: two
 * fp16 numbers a row, no calibration.
 */
#include "kvq/codec.h"

static status open_min_max(kvq_codec *c, krn_rotation_kind kind, const char *calibration_path, err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    kvq_codec_rotate_all(c, kind);
    krn_page_format format = {.d = c->shape.d, .k_planes = 1, .has_zero = true};
    kvq_codec_set_layers(c, format, kvq_row_min_max, kvq_row_min_max);
    return ST_OK;
}

status kvq_open_naive(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_min_max(c, KRN_ROTATION_NONE, calibration_path, e);
}

status kvq_open_hadamard(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_min_max(c, KRN_ROTATION_HADAMARD, calibration_path, e);
}
