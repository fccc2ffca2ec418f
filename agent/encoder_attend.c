#define ENCODER_LANES 4
#include "agent/encoder_attend_internal.h"

void encoder_attend(const encoder_attend_args *a)
{
    attend_body(a);
}
