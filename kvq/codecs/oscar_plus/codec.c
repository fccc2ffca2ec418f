/*
 * oscar+: OSCAR's calibrated rotation (arXiv 2605.17757) with the rest chosen by what it costs in words. Keys and values are
 * centred; K is rotated per KV head by U_Q H of its queries, V by a Hadamard matrix; levels are even and symmetric, one
 * fp16 scale a row is found by search (rows.h); keys of the layers that calibration found most sensitive have four bits.
 *
 *   oscar+           as above
 *   oscar+steady     K centred by that part of its mean only which RoPE leaves standing at all positions
 *   oscar+uncentred  K not centred
 *   oscar+k4         steady, four bits for the keys of all layers
 *
 * An imported calibration has rotations shared by a layer's heads and no means: it is used so, uncentred.
 */
#include "kvq/codec.h"
#include "kvq/calibration.h"
#include "kvq/codecs/oscar_plus/rows.h"

typedef enum centring { CENTRING_FULL, CENTRING_STEADY, CENTRING_NONE } centring;

static krn_page_format layer_format(int d, int k_bits)
{
    krn_page_format f = {.d = d, .k_planes = k_bits == 4 ? 2 : 1};
    for (int i = 0; i < 4; i++) {
        f.k_level[i] = f.v_level[i] = (float)i - 1.5f;
    }
    kvq_page_lay_out(&f);
    return f;
}

static void set_rotations(kvq_codec *c, centring how)
{
    const kvq_calibration *from = c->calibration;
    size_t d = (size_t)c->shape.d, heads = (size_t)c->shape.kv_heads;
    const float *mean = how == CENTRING_FULL ? from->k_mean
            : how == CENTRING_STEADY         ? from->k_mean_steady
                                             : NULL;
    for (size_t i = 0; i < (size_t)c->shape.layers * heads; i++) {
        c->k_rotations[i] = (krn_rotation){.kind = KRN_ROTATION_MATRIX,
                .matrix = from->k_rotation != NULL ? from->k_rotation + i * d * d
                                                   : from->shared_k_rotation + i / heads * d * d,
                .mean = mean != NULL ? mean + i * d : NULL};
        c->v_rotations[i] = (krn_rotation){
                .kind = KRN_ROTATION_HADAMARD, .mean = from->v_mean != NULL ? from->v_mean + i * d : NULL};
    }
}

static status open_variant(kvq_codec *c, const char *calibration_path, centring how, bool all_k4, err *e)
{
    TRY(kvq_calibration_for_codec(c, calibration_path, e));
    set_rotations(c, how);
    for (int layer = 0; layer < c->shape.layers; layer++) {
        int bits = all_k4 ? 4 : c->calibration->k_bits[layer];
        c->layers[layer] = (kvq_layer){.format = layer_format(c->shape.d, bits),
                .encode_k = bits == 4 ? kvq_row_uniform16_search_norm : kvq_row_uniform4_norm,
                .encode_v = kvq_row_uniform4_least_squares};
    }
    return ST_OK;
}

status kvq_open_oscar_plus(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_variant(c, calibration_path, CENTRING_FULL, false, e);
}

status kvq_open_oscar_plus_steady(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_variant(c, calibration_path, CENTRING_STEADY, false, e);
}

status kvq_open_oscar_plus_uncentred(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_variant(c, calibration_path, CENTRING_NONE, false, e);
}

status kvq_open_oscar_plus_k4(kvq_codec *c, const char *calibration_path, err *e)
{
    return open_variant(c, calibration_path, CENTRING_STEADY, true, e);
}
