/*
 * oscar+: OSCAR's calibrated rotation (arXiv 2605.17757), and everything else chosen by what it costs in words.
 *   K  centred by that part of its mean which RoPE leaves standing at every position, rotated per KV head by U_Q H
 *   V  rotated by a Hadamard matrix, not centred
 *   two bits, even levels around zero, one fp16 scale a row found by search (rows.h); keys of the layers that calibration
 *   found most sensitive have four bits. oscar+k4 gives four bits to the keys of all layers.
 * What was tried beside this, with figures: README.md beside this file.
 *
 * An imported calibration has rotations shared by a layer's heads and no means: it is used so, uncentred.
 */
#include <string.h>

#include "kvq/calibration.h"
#include "kvq/codec.h"
#include "kvq/codecs/oscar_plus/rows.h"

static krn_page_format layer_format(int d, int k_bits)
{
    krn_page_format f = {.d = d, .k_planes = k_bits == 4 ? 2 : 1};
    for (int i = 0; i < 4; i++) {
        f.k_level[i] = f.v_level[i] = (float)i - 1.5f;
    }
    kvq_page_lay_out(&f);
    return f;
}

static void set_rotations(kvq_codec *c)
{
    const kvq_calibration *from = c->calibration;
    size_t d = (size_t)c->shape.d, heads = (size_t)c->shape.kv_heads;
    kvq_codec_rotate_all(c, KRN_ROTATION_HADAMARD); /* V's */
    for (size_t i = 0; i < (size_t)c->shape.layers * heads; i++) {
        bool own = from->k_rotation != NULL;
        c->k_rotations[i] = (krn_rotation){
                .kind = KRN_ROTATION_MATRIX,
                .matrix = own ? from->k_rotation + i * d * d : from->shared_k_rotation + i / heads * d * d,
                .mean = own ? from->k_mean + i * d : NULL,
        };
    }
}

status kvq_open_oscar_plus(kvq_codec *c, const char *calibration_path, err *e)
{
    bool all_at_four = strcmp(c->name, "oscar+k4") == 0;
    TRY(kvq_calibration_for_codec(c, calibration_path, e));
    set_rotations(c);
    for (int layer = 0; layer < c->shape.layers; layer++) {
        int k_bits = all_at_four ? 4 : c->calibration->k_bits[layer];
        c->layers[layer] = (kvq_layer){
                .format = layer_format(c->shape.d, k_bits),
                .encode_k = k_bits == 4 ? kvq_row_uniform16_search_norm : kvq_row_uniform4_norm,
                .encode_v = kvq_row_uniform4_unbiased,
        };
    }
    return ST_OK;
}
