/*
 * Rows into the space in which they are stored, and back: y = (x - mean) R and y = x R^T + mean. Every sum has one
 * order whatever the processor: butterflies for Hadamard, for a matrix the index order (forward) or sixteen partial sums
 * over columns equal mod 16 (inverse).
 */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

enum { D_MAX = 256, LANES = 16 };

/* x H in place: H[i][j] = (-1)^popcount(i & j) / sqrt(d). It is its own inverse. */
static void hadamard(int d, float *x)
{
    for (int stride = d / 2; stride >= 1; stride /= 2) {
        for (int base = 0; base < d; base += 2 * stride) {
            for (int i = base; i < base + stride; i++) {
                float a = x[i], b = x[i + stride];
                x[i] = a + b;
                x[i + stride] = a - b;
            }
        }
    }
    float scale = (float)(1.0 / sqrt((double)d));
    for (int i = 0; i < d; i++) {
        x[i] *= scale;
    }
}

static void times_matrix(int d, const float *matrix, float *x)
{
    float y[D_MAX] = {0};
    for (int i = 0; i < d; i++) {
        const float *row = matrix + (size_t)i * (size_t)d;
        for (int j = 0; j < d; j++) {
            y[j] += x[i] * row[j];
        }
    }
    memcpy(x, y, (size_t)d * sizeof *x);
}

static void times_transposed(int d, const float *matrix, float *x)
{
    float y[D_MAX];
    for (int i = 0; i < d; i++) {
        const float *row = matrix + (size_t)i * (size_t)d;
        float s[LANES] = {0};
        for (int j = 0; j < d; j += LANES) {
            for (int l = 0; l < LANES; l++) {
                s[l] += x[j + l] * row[j + l];
            }
        }
        for (int half = LANES / 2; half >= 1; half /= 2) {
            for (int l = 0; l < half; l++) {
                s[l] += s[l + half];
            }
        }
        y[i] = s[0];
    }
    memcpy(x, y, (size_t)d * sizeof *x);
}

void krn_rotate(const krn_rotation *r, int d, const float *x, float *y)
{
    REQUIRE(d == 64 || d == 128 || d == 256);
    for (int i = 0; i < d; i++) {
        y[i] = r->mean != NULL ? x[i] - r->mean[i] : x[i];
    }
    if (r->kind == KRN_ROTATION_HADAMARD) {
        hadamard(d, y);
    } else if (r->kind == KRN_ROTATION_MATRIX) {
        times_matrix(d, r->matrix, y);
    }
}

void krn_rotate_inverse(const krn_rotation *r, int d, const float *x, float *y)
{
    REQUIRE(d == 64 || d == 128 || d == 256);
    memmove(y, x, (size_t)d * sizeof *y);
    if (r->kind == KRN_ROTATION_HADAMARD) {
        hadamard(d, y);
    } else if (r->kind == KRN_ROTATION_MATRIX) {
        times_transposed(d, r->matrix, y);
    }
    for (int i = 0; i < d && r->mean != NULL; i++) {
        y[i] += r->mean[i];
    }
}
