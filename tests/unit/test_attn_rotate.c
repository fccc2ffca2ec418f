/* Rotations: against the definition in doubles, forth and back, in place, and lengths kept. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

enum { D_MAX = 256 };

static float some(int i)
{
    return (float)sin(i * 12.9898 + 1.0) * (i % 17 == 3 ? 40.0f : 1.0f);
}

/* An orthogonal matrix that is not symmetric: Householder of a vector, its rows moved round. */
static void fill_matrix(int d, float *m)
{
    double u[D_MAX], size = 0.0;
    for (int i = 0; i < d; i++) {
        u[i] = (double)some(3 * i);
        size += u[i] * u[i];
    }
    for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
            m[i * d + j] = (float)(((i + 1) % d == j ? 1.0 : 0.0) - 2.0 * u[(i + 1) % d] * u[j] / size);
        }
    }
}

static double entry(const krn_rotation *r, int d, int i, int j)
{
    switch (r->kind) {
    case KRN_ROTATION_NONE:
        return i == j ? 1.0 : 0.0;
    case KRN_ROTATION_HADAMARD:
        return (__builtin_parity((unsigned)(i & j)) ? -1.0 : 1.0) / sqrt(d);
    case KRN_ROTATION_MATRIX:
        return (double)r->matrix[i * d + j];
    }
    return 0.0;
}

static void check(const krn_rotation *r, int d)
{
    float x[D_MAX] = {0}, y[D_MAX], back[D_MAX];
    double size = 0.0;
    for (int i = 0; i < d; i++) {
        x[i] = some(i);
        size += (double)x[i] * (double)x[i];
    }
    krn_rotate(r, d, x, y);
    for (int j = 0; j < d; j++) {
        double exact = 0.0;
        for (int i = 0; i < d; i++) {
            double mean = r->mean != NULL ? (double)r->mean[i] : 0.0;
            exact += ((double)x[i] - mean) * entry(r, d, i, j);
        }
        assert_true(fabs((double)y[j] - exact) <
                2e-6 * sqrt(size)); /* 256 roundings of 6e-8, some of them cancelling */
    }
    krn_rotate_inverse(r, d, y, back);
    for (int i = 0; i < d; i++) {
        assert_true(fabs((double)back[i] - (double)x[i]) < 2e-6 * sqrt(size));
    }
    memcpy(back, x, sizeof back);
    krn_rotate(r, d, back, back);
    assert_memory_equal(back, y, (size_t)d * sizeof *y);
    krn_rotate_inverse(r, d, y, back);
    krn_rotate_inverse(r, d, y, y);
    assert_memory_equal(back, y, (size_t)d * sizeof *y);
}

static void rotations_do_what_they_say(void **state)
{
    (void)state;
    static float matrix[D_MAX * D_MAX];
    float mean[D_MAX] = {0};
    for (int d = 64; d <= D_MAX; d *= 2) {
        fill_matrix(d, matrix);
        for (int i = 0; i < d; i++) {
            mean[i] = some(1000 + i);
        }
        for (int kind = KRN_ROTATION_NONE; kind <= KRN_ROTATION_MATRIX; kind++) {
            krn_rotation r = {.kind = (krn_rotation_kind)kind, .matrix = matrix};
            check(&r, d);
            r.mean = mean;
            check(&r, d);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rotations_do_what_they_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
