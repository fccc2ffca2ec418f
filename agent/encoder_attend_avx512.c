#define ENCODER_LANES 16
#include "agent/encoder_attend_internal.h"

void encoder_attend_avx512(const encoder_attend_args *a)
{
    attend_body(a);
}
