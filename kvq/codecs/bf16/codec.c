/* bf16: rows as they are. What every other codec is measured against. */
#include "kvq/codec.h"

status kvq_open_bf16(kvq_codec *c, const char *calibration_path, err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    c->is_bf16 = true;
    kvq_codec_rotate_all(c, KRN_ROTATION_NONE);
    for (int layer = 0; layer < c->shape.layers; layer++) {
        c->layers[layer].format =
                (krn_page_format){.d = c->shape.d, .bytes = kvq_page_bf16_bytes(c->shape.d)};
    }
    return ST_OK;
}
