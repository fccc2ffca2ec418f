/*
 * oscar: OSCAR as published (arXiv 2605.17757), to be compared with. One rotation for all heads of a layer, U_Q H P for keys and
 * U_V H P for values (kvq/calibration.h), no means; rows clipped and coded from their smallest to their largest
 * value (rows.h). oscar-bisect clips by bisection as the release does while decoding, oscar-lm takes its Lloyd-Max option.
 *
 * Where this departs from the release: rotations stay float32 (there bf16, whose rounding makes them not quite orthogonal),
 * scale and zero are fp16, and a token's codes come from one of the two clips whatever way it took into the cache.
 * P moves channels only, and with one scale a row it changes no value; it is kept so that codes are the release's.
 */
#include "kvq/codec.h"
#include "kvq/calibration.h"
#include "kvq/codecs/oscar/rows.h"

static status open_with(
        kvq_codec *c, const char *calibration_path, kvq_row_encoder k, kvq_row_encoder v, err *e)
{
    TRY(kvq_calibration_for_codec(c, calibration_path, e));
    const kvq_calibration *from = c->calibration;
    if (from->shared_k_rotation == NULL || from->shared_v_rotation == NULL) {
        return FAIL(e, ST_ERR_MISMATCH, "%.150s has no rotations shared by a layer's heads, which %s needs",
                calibration_path, c->name);
    }
    size_t size = (size_t)c->shape.d * (size_t)c->shape.d, heads = (size_t)c->shape.kv_heads;
    for (size_t i = 0; i < (size_t)c->shape.layers * heads; i++) {
        size_t at = i / heads * size;
        c->k_rotations[i] =
                (krn_rotation){.kind = KRN_ROTATION_MATRIX, .matrix = from->shared_k_rotation + at};
        c->v_rotations[i] =
                (krn_rotation){.kind = KRN_ROTATION_MATRIX, .matrix = from->shared_v_rotation + at};
    }
    kvq_codec_set_layers(c, (krn_page_format){.d = c->shape.d, .k_planes = 1, .has_zero = true}, k, v);
    return ST_OK;
}

status kvq_open_oscar(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_with(c, calibration_path, kvq_row_oscar_k, kvq_row_oscar_v, e);
}

status kvq_open_oscar_bisect(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_with(c, calibration_path, kvq_row_oscar_k_bisection, kvq_row_oscar_v_bisection, e);
}

status kvq_open_oscar_lm(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_with(c, calibration_path, kvq_row_oscar_k_lloyd_max, kvq_row_oscar_v_lloyd_max, e);
}
