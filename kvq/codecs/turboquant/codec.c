/*
 * turboquant (Zandieh et al., arXiv 2504.19874, section 3.1, TurboQuant_mse): rotate, divide by the norm, code each
 * coordinate with the scalar quantiser that is best for the coordinates of a random unit vector. Needs no calibration.
 * As the fast ports do, the random rotation is a Hadamard transform. Two bits a value and one fp16 scale a row.
 *
 * turboquant-k4 keeps keys at four bits: two planes that the same kernel reads, with evenly spaced levels, since the
 * planes must add up (best even step: 16 % more distortion than the best 16 levels, 8 times less than two bits).
 */
#include "kvq/codec.h"

static krn_page_format two_bit_format(int d)
{
    static const float levels[4] = {
            -KVQ_LLOYD_MAX_OUTER, -KVQ_LLOYD_MAX_INNER, KVQ_LLOYD_MAX_INNER, KVQ_LLOYD_MAX_OUTER};
    krn_page_format f = {.d = d, .k_planes = 1};
    for (int i = 0; i < 4; i++) {
        f.k_level[i] = f.v_level[i] = levels[i];
    }
    return f;
}

status kvq_open_turboquant(kvq_codec *c, const char *calibration_path, err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    kvq_codec_rotate_all(c, KRN_ROTATION_HADAMARD);
    kvq_codec_set_layers(
            c, two_bit_format(c->shape.d), kvq_row_lloyd_max_least_squares, kvq_row_lloyd_max_least_squares);
    return ST_OK;
}

status kvq_open_turboquant_k4(kvq_codec *c, const char *calibration_path, err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    kvq_codec_rotate_all(c, KRN_ROTATION_HADAMARD);
    krn_page_format format = two_bit_format(c->shape.d);
    format.k_planes = 2;
    kvq_codec_set_layers(c, format, kvq_row_uniform16_norm, kvq_row_lloyd_max_unbiased);
    return ST_OK;
}
