/* rope: angles of a position and their application to one head. See row_ops.h for the rotations themselves. */
#include "kernels/rows/row_ops.h"

#include <math.h>

void krn_rope_angles(const krn_rope *rope, int64_t position, float *cos_sin)
{
    for (int i = 0; i < rope->dims / 2; i++) {
        double angle = (double)position * rope->inv_freq[i];
        cos_sin[2 * i] = (float)(cos(angle) * (double)rope->magnitude);
        cos_sin[2 * i + 1] = (float)(sin(angle) * (double)rope->magnitude);
    }
}

void krn_rope_apply(const krn_rope *rope, const float *cos_sin, float *x)
{
    const row_ops *ops = row_ops_current();
    if (rope->pairing == KRN_ROPE_ADJACENT) {
        ops->rotate_adjacent(cos_sin, x, rope->dims / 2);
    } else {
        ops->rotate_halves(cos_sin, x, rope->dims / 2);
    }
}
