/* The picture of `epimem eval codec`. */
#include "agent/eval_codec_internal.h"

status eval_codec_plot(const eval_codec_run *r, err *e)
{
    (void)r;
    return FAIL(e, ST_ERR_UNSUPPORTED, "--plot: pictures are not drawn yet");
}
