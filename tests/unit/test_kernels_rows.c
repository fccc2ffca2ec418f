/* Row operations and rotary positions against their formulas in double, and the same bits under each instruction set. */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT_MAX = 2048 };

static uint64_t seed = 1234567;

static float random_between(float low, float high)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    return low + (high - low) * (float)(seed >> 40) / 16777216.0f;
}

static void fill(float *x, int count, float size)
{
    for (int i = 0; i < count; i++) {
        x[i] = random_between(-size, size);
    }
}

static const int counts[] = {1, 7, 16, 31, 64, 576, 1000, COUNT_MAX};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static void check(const char *what, int i, double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound)) {
        fail_msg("%s %s[%d]: %.9g instead of %.9g, bound %g", krn_isa_name(krn_isa_current()), what, i, got,
                want, bound);
    }
}

static void for_each_isa(void (*test)(void))
{
    for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        test();
    }
    krn_isa_set(krn_isa_best());
}

/* A sum of n squares in sixteen lanes has at most n/16 + 5 roundings in a row; half of that counts after the root. */
static double norm_error(int cols)
{
    return ((double)cols / 16 + 5) * 0x1p-24 + 4 * 0x1p-24;
}

static void check_norms(void)
{
    static float x[COUNT_MAX];
    static float w[COUNT_MAX];
    static float b[COUNT_MAX];
    static float y[COUNT_MAX];
    for (int k = 0; k < COUNTS; k++) {
        int cols = counts[k];
        double squares = 0.0;
        double sum = 0.0;
        fill(x, cols, 3.0f);
        fill(w, cols, 2.0f);
        fill(b, cols, 1.0f);
        x[cols / 2] = 4000.0f; /* the first token of a model has such values */
        for (int i = 0; i < cols; i++) {
            squares += (double)x[i] * (double)x[i];
            sum += (double)x[i];
        }
        krn_rmsnorm(x, w, 1e-5f, y, 1, cols);
        for (int i = 0; i < cols; i++) {
            double want = (double)x[i] / sqrt(squares / cols + 1e-5) * (double)w[i];
            check("rmsnorm", i, (double)y[i], want, fabs(want) * norm_error(cols) + 1e-30);
        }
        double mean = sum / cols;
        double variance = 0.0;
        for (int i = 0; i < cols; i++) {
            variance += ((double)x[i] - mean) * ((double)x[i] - mean) / cols;
        }
        krn_layernorm(x, w, b, 1e-5f, y, 1, cols);
        for (int i = 0; i < cols && cols > 1; i++) {
            double scale = (double)w[i] / sqrt(variance + 1e-5);
            double want = ((double)x[i] - mean) * scale + (double)b[i];
            /* the mean's own rounding comes on top, in proportion to the largest value */
            double bound = (fabs(want - (double)b[i]) + 4000.0 * fabs(scale)) * norm_error(cols) +
                    fabs(want) * 0x1p-23;
            check("layernorm", i, (double)y[i], want, bound);
        }
    }
}

static void norms_follow_their_formula(void **state)
{
    (void)state;
    for_each_isa(check_norms);
}

static void check_rows_are_independent(void)
{
    float x[3 * 40];
    float w[40];
    float all[3 * 40];
    float one[40];
    fill(x, 3 * 40, 1.0f);
    fill(w, 40, 1.0f);
    krn_rmsnorm(x, w, 1e-6f, all, 3, 40);
    krn_rmsnorm(x + 40, w, 1e-6f, one, 1, 40);
    assert_memory_equal(all + 40, one, sizeof one);
    krn_layernorm(x, w, w, 1e-6f, all, 3, 40);
    krn_layernorm(x + 80, w, w, 1e-6f, one, 1, 40);
    assert_memory_equal(all + 80, one, sizeof one);
    krn_rmsnorm(x, w, 1e-6f, all, 3, 40);
    krn_rmsnorm(x, w, 1e-6f, x, 3, 40);
    assert_memory_equal(all, x, sizeof x);
}

static void rows_are_independent_and_in_place(void **state)
{
    (void)state;
    for_each_isa(check_rows_are_independent);
}

/* Values on a grid and at the ends, where exp would overflow and where it vanishes. */
static void check_activations(void)
{
    static float x[COUNT_MAX];
    static float up[COUNT_MAX];
    static float y[COUNT_MAX];
    for (int i = 0; i < COUNT_MAX; i++) {
        x[i] = (float)(i - COUNT_MAX / 2) / 64.0f;
        up[i] = i % 2 == 0 ? 1.0f : -2.5f;
    }
    x[0] = -1e30f;
    x[1] = 1e30f;
    x[2] = -100.0f;
    x[3] = 100.0f;
    krn_swiglu(x, up, y, COUNT_MAX);
    for (int i = 0; i < COUNT_MAX; i++) {
        double want = (double)x[i] / (1.0 + exp(-(double)x[i])) * (double)up[i];
        /* 3e-7 of the exponential and four roundings; below -87 it stays e^-87 of x */
        double bound = fabs(want) * (3e-7 + 4 * 0x1p-24) + fabs((double)x[i]) * 1e-37;
        check("swiglu", i, (double)y[i], want, bound);
    }
    memcpy(y, x, sizeof y);
    krn_gelu(y, COUNT_MAX);
    for (int i = 0; i < COUNT_MAX; i++) {
        double want = 0.5 * (double)x[i] * erfc(-(double)x[i] / sqrt(2.0));
        check("gelu", i, (double)y[i], want, 2e-7 * fabs((double)x[i]));
        if (x[i] < 0 && x[i] > -9.0f) { /* nothing cancels for negative values */
            check("gelu, relative", i, (double)y[i], want, fabs(want) * 4e-6);
        }
    }
    float odd[3] = {NAN, -0.0f, 0.0f};
    krn_gelu(odd, 3);
    assert_true(isnan(odd[0]) && odd[1] == 0.0f && odd[2] == 0.0f);
    odd[0] = NAN;
    krn_swiglu(odd, up, y, 3);
    assert_true(isnan(y[0]) && y[1] == 0.0f);
}

static void activations_follow_their_formula(void **state)
{
    (void)state;
    for_each_isa(check_activations);
}

static void check_additions(void)
{
    float x[40];
    float y[40];
    float rows[2 * 20];
    fill(x, 40, 1.0f);
    fill(y, 40, 1.0f);
    memcpy(rows, x, sizeof rows);
    krn_add_bias(rows, y, 2, 20);
    for (int i = 0; i < 40; i++) {
        assert_true(rows[i] == x[i] + y[i % 20]);
    }
    memcpy(rows, x, sizeof rows);
    krn_add(rows, y, 39);
    for (int i = 0; i < 40; i++) {
        assert_true(rows[i] == (i < 39 ? x[i] + y[i] : x[i]));
    }
}

static void additions_are_exact(void **state)
{
    (void)state;
    for_each_isa(check_additions);
}

static void check_argmax(void)
{
    static float x[COUNT_MAX];
    for (int k = 0; k < COUNTS; k++) {
        int count = counts[k];
        for (int trial = 0; trial < 50; trial++) {
            int want = 0;
            for (int i = 0; i < count; i++) {
                x[i] = floorf(random_between(-20.0f, 20.0f)); /* many equals */
                x[i] = trial % 5 == 0 && i % 3 != 1 ? NAN : x[i];
            }
            while (want < count && isnan(x[want])) {
                want++;
            }
            want = want == count ? 0 : want;
            for (int i = want + 1; i < count; i++) {
                want = x[i] > x[want] ? i : want;
            }
            assert_int_equal(krn_argmax(x, count), want);
        }
    }
    for (int i = 0; i < 40; i++) {
        x[i] = i < 3 ? NAN : -INFINITY;
    }
    assert_int_equal(krn_argmax(x, 40), 3);
    x[39] = -1e38f;
    assert_int_equal(krn_argmax(x, 40), 39);
}

static void argmax_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    for_each_isa(check_argmax);
}

static void check_log_softmax(void)
{
    static float x[COUNT_MAX];
    static float y[COUNT_MAX];
    for (int k = 0; k < COUNTS; k++) {
        int count = counts[k];
        double sum = 0.0;
        fill(x, count, 20.0f);
        if (count > 16) {
            x[3] = -INFINITY; /* a forbidden token */
        }
        for (int i = 0; i < count; i++) {
            sum += exp((double)x[i]);
        }
        krn_log_softmax(x, y, count);
        for (int i = 0; i < count; i++) {
            if (isinf(x[i])) {
                assert_true(isinf(y[i]) && y[i] < 0);
                continue;
            }
            double want = (double)x[i] - log(sum);
            check("log_softmax", i, (double)y[i], want, 4e-7 + fabs(want) * 0x1p-24);
        }
    }
    krn_log_softmax(x, y, 0);
}

static void log_softmax_follows_its_formula(void **state)
{
    (void)state;
    for_each_isa(check_log_softmax);
}

static void check_rope(void)
{
    enum { D = 64, DIMS = 48 };
    double inv_freq[DIMS / 2];
    float cos_sin[DIMS];
    float x[D];
    for (int i = 0; i < DIMS / 2; i++) {
        inv_freq[i] = pow(10000.0, -2.0 * i / DIMS);
    }
    for (int pairing = 0; pairing < 2; pairing++) {
        krn_rope rope = {(krn_rope_pairing)pairing, DIMS, inv_freq, 1.25f};
        int64_t position = 100003;
        float before[D];
        fill(x, D, 1.0f);
        memcpy(before, x, sizeof x);
        krn_rope_angles(&rope, position, cos_sin);
        krn_rope_apply(&rope, cos_sin, x);
        for (int i = 0; i < DIMS / 2; i++) {
            int a = pairing == KRN_ROPE_ADJACENT ? 2 * i : i;
            int b = pairing == KRN_ROPE_ADJACENT ? 2 * i + 1 : i + DIMS / 2;
            double c = 1.25 * cos((double)position * inv_freq[i]);
            double s = 1.25 * sin((double)position * inv_freq[i]);
            double want_a = (double)before[a] * c - (double)before[b] * s;
            double want_b = (double)before[a] * s + (double)before[b] * c;
            check("rope", a, (double)x[a], want_a, 2.5 * 3 * 0x1p-24);
            check("rope", b, (double)x[b], want_b, 2.5 * 3 * 0x1p-24);
        }
        assert_memory_equal(x + DIMS, before + DIMS, (D - DIMS) * sizeof *x);
    }
}

static void rope_rotates_pairs(void **state)
{
    (void)state;
    for_each_isa(check_rope);
}

typedef struct results {
    float norm[333], layer[333], gated[333], gelu[333], soft[333];
} results;

static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    static results of[KRN_ISA_COUNT];
    float x[333];
    float w[333];
    fill(x, 333, 6.0f);
    fill(w, 333, 2.0f);
    for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        krn_rmsnorm(x, w, 1e-5f, of[isa].norm, 1, 333);
        krn_layernorm(x, w, x, 1e-5f, of[isa].layer, 1, 333);
        krn_swiglu(x, w, of[isa].gated, 333);
        memcpy(of[isa].gelu, x, sizeof x);
        krn_gelu(of[isa].gelu, 333);
        krn_log_softmax(x, of[isa].soft, 333);
        assert_memory_equal(&of[isa], &of[0], sizeof of[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(norms_follow_their_formula),
            cmocka_unit_test(rows_are_independent_and_in_place),
            cmocka_unit_test(activations_follow_their_formula),
            cmocka_unit_test(additions_are_exact),
            cmocka_unit_test(argmax_takes_the_lowest_of_equals),
            cmocka_unit_test(log_softmax_follows_its_formula),
            cmocka_unit_test(rope_rotates_pairs),
            cmocka_unit_test(bits_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
