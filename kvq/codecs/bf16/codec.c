/* bf16: rows as they are. What every other codec is measured against. */
#include "kvq/codec.h"

status kvq_open_bf16(kvq_codec *c, const char *calibration_path, err *e)
{
    TRY(kvq_refuse_calibration(c, calibration_path, e));
    kvq_codec_store_bf16(c);
    kvq_codec_rotate_all(c, KRN_ROTATION_NONE);
    return ST_OK;
}
