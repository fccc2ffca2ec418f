/* quantize: float32 to Q8_0, for weights that come as floats and are to be multiplied as 8-bit codes. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 32, BLOCK_BYTES = 2 + BLOCK };

/* Per 32 values one fp16 scale, max |x| / 127, and the nearest code: the largest error is half a scale. */
void krn_quantize_q8_0(const float *src, void *dst, int64_t n)
{
    uint8_t *out = dst;
    for (int64_t at = 0; at < n; at += BLOCK, out += BLOCK_BYTES) {
        float most = 0.0f;
        for (int i = 0; i < BLOCK; i++) {
            most = fmaxf(most, fabsf(src[at + i]));
        }
        uint16_t half = base_f32_to_f16(most / 127.0f);
        float scale = base_f16_to_f32(half);
        memcpy(out, &half, sizeof half);
        for (int i = 0; i < BLOCK; i++) {
            float code = scale > 0.0f ? roundf(src[at + i] / scale) : 0.0f;
            out[2 + i] = (uint8_t)(int8_t)fmaxf(-127.0f, fminf(127.0f, code));
        }
    }
}
