/*
 * Rows into the space in which they are stored, and back: y = (x - mean) R and y = x R^T + mean. Every sum has one
 * order whatever the processor: butterflies for Hadamard, for a matrix the index order (forward) or sixteen partial sums
 * over columns equal mod 16 (inverse).
 */
#include <string.h>

#include "kernels/kernels.h"

enum { D_MAX = 256, LANES = 16 };

/* Four floats: what every 64-bit processor has. One IEEE operation a lane, so the same bits as one by one. */
typedef float quad __attribute__((vector_size(16)));

/* Butterflies of neighbours in a quad, two apart and then one apart: a + b and a - b, b's sign flipped exactly. */
static inline quad inner_butterflies(quad v)
{
    const quad far = {1.0f, 1.0f, -1.0f, -1.0f}, near = {1.0f, -1.0f, 1.0f, -1.0f};
    v = __builtin_shufflevector(v, v, 0, 1, 0, 1) + far * __builtin_shufflevector(v, v, 2, 3, 2, 3);
    return __builtin_shufflevector(v, v, 0, 0, 2, 2) + near * __builtin_shufflevector(v, v, 1, 1, 3, 3);
}

/* x H in place, quads outside in: H[i][j] = (-1)^popcount(i & j) / sqrt(d). It is its own inverse. */
static inline void butterflies(int quads, float scale, float *x)
{
    quad v[D_MAX / 4];
    memcpy(v, x, (size_t)quads * sizeof *v);
    for (int stride = quads / 2; stride >= 1; stride /= 2) {
        for (int base = 0; base < quads; base += 2 * stride) {
            for (int i = base; i < base + stride; i++) {
                quad a = v[i], b = v[i + stride];
                v[i] = a + b;
                v[i + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < quads; i++) {
        v[i] = inner_butterflies(v[i]) * (quad){scale, scale, scale, scale};
    }
    memcpy(x, v, (size_t)quads * sizeof *v);
}

static void hadamard(int d, float *x)
{
    if (d == 64) {
        butterflies(16, 0.125f, x);
    } else if (d == 128) {
        butterflies(32, 0.088388347648318447f, x); /* 1 / sqrt(128) */
    } else {
        butterflies(64, 0.0625f, x);
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

void krn_rotate_to_bf16(const krn_rotation *r, int d, const float *x, uint16_t *y)
{
    float rotated[256];
    krn_rotate(r, d, x, rotated);
    for (int i = 0; i < d; i++) {
        y[i] = base_f32_to_bf16(rotated[i]);
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
