/* Codecs that are measured and not stored: refusal by the server's call, bits, golden rows, any input, what papers promise. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "tests/unit/kvq_scene.h"

static const char *const names[] = {
        "kivi", "turboquant-3", "turboquant-4", "turboquant-qjl", "turboquant-3-qjl", "gear", "int4", "int8"};
enum { N_NAMES = sizeof names / sizeof names[0], ROWS = 128, D_MAX = 256 };

static uint16_t x[2][ROWS * D_MAX];
static float y[2][ROWS * D_MAX];
static uint8_t page[4 * ROWS * D_MAX];

static void code(const char *name, int d, int rows)
{
    err e;
    kvq_codec *c = open_codec(name, d);
    assert_int_equal(kvq_encode_page(c, 1, 2, x[0], x[1], rows, page, &e), ST_OK);
    kvq_decode_page(c, 1, 2, page, y[0], y[1]);
    kvq_codec_close(c);
}

static void a_store_is_refused_by_name(void **state)
{
    (void)state;
    kvq_shape shape = {.layers = 2, .kv_heads = 2, .d = 64};
    kvq_codec *c = NULL;
    err e;
    for (int i = 0; i < N_NAMES; i++) {
        assert_int_equal(kvq_codec_open(names[i], &shape, NULL, &c, &e), ST_ERR_ARG);
        assert_null(c);
        assert_non_null(strstr(e.text, names[i]));
        assert_non_null(strstr(e.text, "not stored"));
        assert_non_null(strstr(e.text, "turboquant-k4"));
        assert_int_equal(kvq_codec_open_measured(names[i], &shape, "file", &c, &e), ST_ERR_ARG);
    }
    assert_int_equal(kvq_codec_open_measured("turbo", &shape, NULL, &c, &e), ST_ERR_ARG);
    for (int i = 0; i < N_NAMES; i++) {
        assert_non_null(strstr(e.text, names[i]));
    }
}

static void bits_count_all_that_a_store_would_take(void **state)
{
    (void)state;
    static const double of_64[N_NAMES] = {3.0, 3.25, 4.25, 2.375, 3.375, 4.0, 4.5, 8.5},
                        of_128[N_NAMES] = {3.0, 3.125, 4.125, 2.1875, 3.1875, 3.5, 4.5, 8.5};
    for (int i = 0; i < N_NAMES; i++) {
        kvq_codec *c = open_codec(names[i], 64);
        assert_true(fabs(kvq_codec_bits(c) - of_64[i]) < 1e-12);
        assert_true(fabs(kvq_codec_token_bytes(c) - of_64[i] / 8.0 * 2 * 64 * 2 * 3) < 1e-9);
        kvq_codec_close(c);
        c = open_codec(names[i], 128);
        assert_true(fabs(kvq_codec_bits(c) - of_128[i]) < 1e-12);
        kvq_codec_close(c);
    }
}

static void rows_are_the_golden_ones(void **state)
{
    (void)state;
    static const char *const exact[] = {"kivi", "int4", "int8", "turboquant-3", "turboquant-4"};
    static const int shapes[][2] = {{64, 77}, {128, 32}};
    static uint16_t expected[2 * ROWS * D_MAX];
    for (size_t i = 0; i < 2 * sizeof exact / sizeof exact[0]; i++) {
        int d = shapes[i % 2][0], rows = shapes[i % 2][1], n = rows * d;
        char name[64];
        random_bits random = {.state = (uint64_t)(1000 * d + rows)};
        input_rows(&random, rows, d, x[0]);
        input_rows(&random, rows, d, x[1]);
        code(exact[i / 2], d, rows);
        (void)snprintf(name, sizeof name, "%s-%d-%d.rows", exact[i / 2], d, rows);
        assert_int_equal(read_data(name, expected, sizeof expected), 4 * n);
        for (int j = 0; j < 2 * n; j++) {
            uint16_t got = base_f32_to_bf16(y[j / n][j % n]);
            if (got != expected[j]) {
                fail_msg("%s: value %d is %04x, expected %04x", name, j, got, expected[j]);
            }
        }
    }
}

static void gear_rows_are_the_golden_ones(void **state)
{
    (void)state;
    static uint16_t expected[2 * ROWS * 64];
    enum { SPECIAL = 12, N = ROWS * 64 };
    random_bits random = {.state = 140};
    for (int side = 0; side < 2; side++) {
        input_rows(&random, SPECIAL + ROWS, 64, x[side]);
        memmove(x[side], x[side] + SPECIAL * 64, N * sizeof(uint16_t));
    }
    code("gear", 64, ROWS);
    assert_int_equal(read_data("gear-64-128.rows", expected, sizeof expected), sizeof expected);
    for (int i = 0; i < 2 * N; i++) {
        assert_int_equal(base_f32_to_bf16(y[i / N][i % N]), expected[i]);
    }
}

static void any_row_comes_back_finite_and_rows_beyond_stay_zero(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        for (int d = 64; d <= D_MAX; d *= 2) {
            random_bits random = {.state = (uint64_t)d};
            input_rows(&random, 50, d, x[0]);
            input_rows(&random, 50, d, x[1]);
            code(names[i], d, 50);
            for (int j = 0; j < ROWS * d; j++) {
                assert_true(isfinite(y[0][j]) && isfinite(y[1][j]));
                assert_true(j < 50 * d || (y[0][j] == 0.0f && y[1][j] == 0.0f));
            }
        }
    }
}

/* The farthest a value may be from its level: half a step, the rounding of the fp16 step and start, and that of bf16. */
static double bound_of(double low, double high, int last)
{
    double most = fmax(fabs(low), fabs(high)), step = (high - low) / last;
    return 0.5 * step + most * (0x1p-10 + 0x1p-8) + step * last * 0x1p-11 + 0x1p-23 * last;
}

static void check_group(const char *name, const uint16_t *in, const float *out, int n, int stride, int last)
{
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < n; i++) {
        low = fmin(low, (double)base_bf16_to_f32(in[i * stride]));
        high = fmax(high, (double)base_bf16_to_f32(in[i * stride]));
    }
    if (high > 65504.0 || low < -65504.0) {
        return; /* past what fp16 scales hold: cut off */
    }
    for (int i = 0; i < n; i++) {
        double value = (double)base_bf16_to_f32(in[i * stride]), got = (double)out[i * stride];
        if (fabs(value - got) > bound_of(low, high, last)) {
            fail_msg("%s: %.9g became %.9g in a group from %g to %g", name, value, got, low, high);
        }
    }
}

static void any_row_comes_back_within_half_a_step(void **state)
{
    (void)state;
    for (int d = 64; d <= D_MAX; d *= 2) {
        random_bits random = {.state = (uint64_t)d + 1};
        input_rows(&random, ROWS, d, x[0]);
        input_rows(&random, ROWS, d, x[1]);
        code("kivi", d, ROWS);
        for (int group = 0; group < ROWS * d / 32; group++) {
            int key = group / d * 32 * d + group % d;
            check_group("kivi keys", x[0] + key, y[0] + key, 32, d, 3);
            check_group("kivi values", x[1] + group * 32, y[1] + group * 32, 32, 1, 3);
        }
        code("int8", d, ROWS);
        for (int group = 0; group < ROWS * d / 32;
                group++) { /* 127 steps of at most the range each side of zero */
            check_group("int8", x[0] + group * 32, y[0] + group * 32, 32, 1, 63);
        }
    }
}

static void values_that_are_not_finite_are_refused_by_row(void **state)
{
    (void)state;
    memset(x, 0, sizeof x);
    x[0][37 * 64 + 63] = 0x7fc0;
    for (int i = 0; i < N_NAMES; i++) {
        err e;
        kvq_codec *c = open_codec(names[i], 64);
        assert_int_equal(kvq_encode_page(c, 0, 0, x[0], x[1], 38, page, &e), ST_ERR_ARG);
        assert_non_null(strstr(e.text, "key of row 37"));
        assert_int_equal(kvq_encode_page(c, 0, 0, x[1], x[0], 38, page, &e), ST_ERR_ARG);
        assert_non_null(strstr(e.text, "value of row 37"));
        kvq_codec_close(c);
    }
}

static void groups_of_keys_are_32_tokens_and_no_more(void **state)
{
    (void)state;
    static float before[ROWS * 64];
    random_bits random = {.state = 9};
    input_rows(&random, ROWS, 64, x[0]);
    memset(x[1], 0, sizeof x[1]);
    code("kivi", 64, ROWS);
    memcpy(before, y[0], sizeof before);
    for (int i = 64 * 64; i < 96 * 64; i++) {
        x[0][i] = 0x4100; /* 8 */
    }
    code("kivi", 64, ROWS);
    assert_memory_equal(before, y[0], 64 * 64 * sizeof before[0]);
    assert_memory_equal(before + 96 * 64, y[0] + 96 * 64, 32 * 64 * sizeof before[0]);
    assert_true(memcmp(before + 64 * 64, y[0] + 64 * 64, 32 * 64 * sizeof before[0]) != 0);
}

/* ---- what papers promise, on normal rows: distortions of unit vectors of 128 channels ---- */

static void normal_rows(uint64_t seed, int n, uint16_t *out)
{
    random_bits random = {.state = seed};
    for (int i = 0; i < n; i++) {
        double radius = sqrt(-2.0 * log((random_next(&random) + 0.5) * 0x1p-31));
        out[i] = base_f32_to_bf16((float)(radius * cos(6.283185307179586 * random_next(&random) * 0x1p-31)));
    }
}

/* |x - y|^2 / |x|^2 and <x, y> / |x|^2 of all rows together. */
static void compare(const uint16_t *in, const float *out, int n, double *error, double *slope)
{
    double size = 0.0, off = 0.0, dot = 0.0;
    for (int i = 0; i < n; i++) {
        double a = (double)base_bf16_to_f32(in[i]), b = (double)out[i];
        size += a * a;
        off += (a - b) * (a - b);
        dot += a * b;
    }
    *error = off / size;
    *slope = dot / size;
}

static void distortion_is_what_theory_says(void **state)
{
    (void)state;
    double error, slope;
    normal_rows(1, ROWS * 128, x[0]);
    normal_rows(2, ROWS * 128, x[1]);
    code("turboquant-3", 128, ROWS);
    compare(x[0], y[0], ROWS * 128, &error, &slope);
    assert_true(fabs(error - 0.0340) < 0.001 && fabs(slope - (1.0 - error)) < 0.002);
    code("turboquant-4", 128, ROWS);
    compare(x[1], y[1], ROWS * 128, &error, &slope);
    assert_true(fabs(error - 0.0093) < 0.0005);
}

/* One bit leaves 0.363 of a normal row's energy; the sketch makes keys unbiased and adds (pi / 2) 0.363 of noise. */
static void a_sketch_is_unbiased_and_noisy(void **state)
{
    (void)state;
    double error, slope;
    normal_rows(3, ROWS * 128, x[0]);
    normal_rows(4, ROWS * 128, x[1]);
    code("turboquant-qjl", 128, ROWS);
    compare(x[0], y[0], ROWS * 128, &error, &slope);
    assert_true(fabs(slope - 1.0) < 0.02 && fabs(error - 0.57) < 0.03);
    compare(x[1], y[1], ROWS * 128, &error, &slope);
    assert_true(fabs(error - 0.1149) < 0.003); /* values have both bits as levels */
}

static void gear_keeps_outliers_and_what_is_of_low_rank(void **state)
{
    (void)state;
    double with_parts, without, slope;
    normal_rows(5, ROWS * 64, x[0]);
    normal_rows(6, ROWS * 64, x[1]);
    for (int channel = 0; channel < 64; channel++) {
        x[0][(channel * 29 % ROWS) * 64 + channel] = 0x42c8; /* 100 */
    }
    code("kivi", 64, ROWS);
    compare(x[0], y[0], ROWS * 64, &without, &slope);
    code("gear", 64, ROWS);
    compare(x[0], y[0], ROWS * 64, &with_parts, &slope);
    assert_true(with_parts < 0.2 * without);
    for (int channel = 0; channel < 64; channel++) {
        assert_true(y[0][(channel * 29 % ROWS) * 64 + channel] == 100.0f);
    }
}

static void memory_may_run_out(void **state)
{
    (void)state;
    memset(x, 0, sizeof x);
    for (int i = 0; i < N_NAMES; i++) {
        kvq_codec *c = open_codec(names[i], 64);
        int failures = 0;
        for (long n = 0;; n++) {
            err e;
            base_fail_allocation(n);
            status s = kvq_encode_page(c, 0, 0, x[0], x[1], 5, page, &e);
            base_fail_allocation(-1);
            if (s == ST_OK) {
                break;
            }
            assert_int_equal(s, ST_ERR_MEMORY);
            failures++;
        }
        assert_true(failures >= 2);
        kvq_codec_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(a_store_is_refused_by_name),
            cmocka_unit_test(bits_count_all_that_a_store_would_take),
            cmocka_unit_test(rows_are_the_golden_ones),
            cmocka_unit_test(gear_rows_are_the_golden_ones),
            cmocka_unit_test(any_row_comes_back_finite_and_rows_beyond_stay_zero),
            cmocka_unit_test(any_row_comes_back_within_half_a_step),
            cmocka_unit_test(values_that_are_not_finite_are_refused_by_row),
            cmocka_unit_test(groups_of_keys_are_32_tokens_and_no_more),
            cmocka_unit_test(distortion_is_what_theory_says),
            cmocka_unit_test(a_sketch_is_unbiased_and_noisy),
            cmocka_unit_test(gear_keeps_outliers_and_what_is_of_low_rank),
            cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
