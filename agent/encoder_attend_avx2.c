#define ENCODER_LANES 8
#include "agent/encoder_attend_internal.h"

void encoder_attend_avx2(const encoder_attend_args *a)
{
    attend_body(a);
}
