/* The codec oscar+: golden pages, scale rules, any input, codes that stay, what it takes from a calibration. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <string.h>

#include "kvq/codecs/oscar_plus/rows.h"
#include "kvq/codecs/oscar_plus/search.h"
#include "kvq/page.h"
#include "tests/unit/calibration_scene.h"

static kvq_codec *open_codec(const char *name, int d)
{
    kvq_calibration c = scene_calibration(2, 2, d);
    kvq_codec *codec = scene_open(name, &c);
    kvq_calibration_free(&c);
    return codec;
}

/* The rows of tests/golden-tools/oscar_plus_goldens.py: keys, then values. */
static uint64_t input_rows(uint64_t state, int rows, int d, uint16_t *x)
{
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < d; c++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t u = (uint32_t)(state >> 33), sign = (u & 1) << 15, mantissa = (u >> 1) & 127;
            uint32_t bits = sign | (118 + (u >> 8) % 9) << 7 | mantissa;
            bits = r == 3    ? 0
                    : r == 5 ? (c == 17 ? 0x7180 : 0)
                    : r == 7 ? (sign | mantissa)
                    : r == 9 ? 0x3f80
                             : bits;
            x[r * d + c] = (uint16_t)bits;
        }
    }
    return state;
}

static size_t read_golden(int d, int rows, int k_bits, uint8_t *to, size_t most)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/data/kvq/oscar+%s-%d-%d.page", EPIMEM_SOURCE_DIR,
            k_bits == 4 ? "k4" : "", d, rows);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(to, 1, most, f);
    (void)fclose(f);
    return n;
}

static void pages_are_the_golden_ones_byte_for_byte(void **state)
{
    (void)state;
    static uint8_t expected[32768], page[32768];
    static uint16_t k[128 * 128], v[128 * 128];
    static const int shapes[][2] = {{64, 128}, {128, 77}};
    for (int i = 0; i < 4; i++) {
        int d = shapes[i / 2][0], rows = shapes[i / 2][1], layer = i % 2;
        err e;
        kvq_codec *c = open_codec("oscar+", d);
        uint64_t next = input_rows((uint64_t)(7 * d + rows), rows, d, k);
        (void)input_rows(next, rows, d, v);
        assert_int_equal(kvq_encode_page(c, layer, 1, k, v, rows, page, &e), ST_OK);
        size_t bytes = kvq_page_format(c, layer)->bytes;
        assert_int_equal(read_golden(d, rows, layer == 1 ? 4 : 2, expected, sizeof expected), bytes);
        for (size_t b = 0; b < bytes; b++) {
            if (expected[b] != page[b]) {
                fail_msg("d %d layer %d: byte %zu is %02x, expected %02x", d, layer, b, page[b], expected[b]);
            }
        }
        kvq_codec_close(c);
    }
}

/* ---- rows ---- */

static void normal_row(uint64_t seed, int d, uint16_t *x)
{
    for (int c = 0; c < d; c++) {
        double sum = 0.0;
        for (int i = 0; i < 12; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(seed >> 40) / 16777216.0;
        }
        x[c] = base_f32_to_bf16((float)(sum - 6.0));
    }
}

typedef struct fit {
    double x_x, x_y, y_y; /* y is what the row decodes to */
} fit;

static fit fit_row(kvq_row_encoder encode, double middle, const uint16_t *x, int d)
{
    kvq_row row;
    fit f = {0};
    encode(x, d, &row);
    for (int c = 0; c < d; c++) {
        double value = (double)base_bf16_to_f32(x[c]);
        double decoded = (double)base_f16_to_f32(row.scale) * ((double)row.codes[c] - middle);
        f.x_x += value * value;
        f.x_y += value * decoded;
        f.y_y += decoded * decoded;
    }
    return f;
}

/* fp16 scales are off by 2^-11 at most. */
static void scales_keep_what_they_promise(void **state)
{
    (void)state;
    uint16_t x[128];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        normal_row(seed, 128, x);
        fit v = fit_row(kvq_row_uniform4_unbiased, 1.5, x, 128);
        assert_true(fabs(v.x_y / v.x_x - 1.0) < 1e-3); /* <x,y> = <x,x> */
        fit k = fit_row(kvq_row_uniform4_norm, 1.5, x, 128);
        assert_true(fabs(k.y_y / k.x_x - 1.0) < 2e-3); /* |y| = |x| */
        fit k4 = fit_row(kvq_row_uniform16_search_norm, 7.5, x, 128);
        assert_true(fabs(k4.y_y / k4.x_x - 1.0) < 2e-3);
    }
}

/* 1 - cos^2 between a row and its codes: 0.1188 and 0.01154 for the best even steps on normal numbers without search. */
static void distortion_is_that_of_the_best_even_levels(void **state)
{
    (void)state;
    uint16_t x[128];
    double two = 0.0, four = 0.0;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        normal_row(seed, 128, x);
        fit k = fit_row(kvq_row_uniform4_norm, 1.5, x, 128),
            k4 = fit_row(kvq_row_uniform16_search_norm, 7.5, x, 128);
        two += 1.0 - k.x_y * k.x_y / (k.x_x * k.y_y);
        four += 1.0 - k4.x_y * k4.x_y / (k4.x_x * k4.y_y);
    }
    assert_true(two / 2000 > 0.105 && two / 2000 < 0.1188);
    assert_true(four / 2000 > 0.0085 && four / 2000 < 0.01154);
}

/* ---- the AVX2 searches beside their specification ---- */

static void assert_same_sums(kvq_sums a, kvq_sums b)
{
    assert_memory_equal(&a.x_x, &b.x_x, sizeof a.x_x);
    assert_memory_equal(&a.x_c, &b.x_c, sizeof a.x_c);
    assert_int_equal(a.c_c, b.c_c);
}

static void compare_searches(const uint16_t *x, int d)
{
    uint8_t codes[2][256];
    kvq_sums expected = kvq_search_scalar.four(x, d, codes[0]);
    assert_same_sums(kvq_search_avx2.four(x, d, codes[1]), expected);
    assert_memory_equal(codes[0], codes[1], (size_t)d);
    expected = kvq_search_scalar.sixteen(x, d, codes[0]);
    assert_same_sums(kvq_search_avx2.sixteen(x, d, codes[1]), expected);
    assert_memory_equal(codes[0], codes[1], (size_t)d);
}

/* Bell-shaped rows, rows of any finite bits (magnitudes 76 powers of ten apart, where the order of a sum shows), and the
 * special rows of the golden pages. */
static void searches_give_the_same_bits_on_avx2(void **state)
{
    (void)state;
    static uint16_t x[128 * 256];
    uint64_t random = 9;
    if (krn_isa_best() < KRN_ISA_AVX2) {
        skip();
    }
    for (int d = 64; d <= 256; d *= 2) {
        for (uint64_t seed = 1; seed <= 1000; seed++) {
            normal_row(seed, d, x);
            compare_searches(x, d);
            for (int c = 0; c < d; c++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                uint32_t bits = (uint32_t)(random >> 48);
                x[c] = (uint16_t)((bits & 0x7f80u) == 0x7f80u ? bits & 0x8001u : bits);
            }
            compare_searches(x, d);
        }
        (void)input_rows((uint64_t)d, 128, d, x);
        for (int r = 0; r < 128; r++) {
            compare_searches(x + r * d, d);
        }
    }
}

/* ---- any input ---- */

static void decoded_rows_get_the_same_codes_again(void **state)
{
    (void)state;
    static uint16_t k[128 * 64], v[128 * 64];
    static uint8_t page[8192], again[8192];
    static float decoded_k[128 * 64], decoded_v[128 * 64];
    err e;
    kvq_codec *c = open_codec("oscar+", 64);
    uint64_t next = input_rows(5, 128, 64, k);
    (void)input_rows(next, 128, 64, v);
    for (int i = 0; i < 64; i++) {
        k[5 * 64 + i] = v[5 * 64 + i] = 0x3f80; /* the huge row saturates, so its codes need not stay */
    }
    for (int layer = 0; layer < 2; layer++) {
        size_t planes = kvq_page_format(c, layer)->k_scale_at;
        assert_int_equal(kvq_encode_page(c, layer, 0, k, v, 128, page, &e), ST_OK);
        kvq_decode_page(c, layer, 0, page, decoded_k, decoded_v);
        for (int i = 0; i < 128 * 64; i++) {
            k[i] = base_f32_to_bf16(decoded_k[i]);
            v[i] = base_f32_to_bf16(decoded_v[i]);
        }
        assert_int_equal(kvq_encode_page(c, layer, 0, k, v, 128, again, &e), ST_OK);
        size_t different = 0;
        for (size_t b = 0; b < planes; b++) {
            different += page[b] != again[b];
        }
        assert_int_equal(different, 0);
    }
    kvq_codec_close(c);
}

static void errors_stay_within_the_row(void **state)
{
    (void)state;
    static uint16_t k[128 * 128], v[128 * 128];
    static uint8_t page[32768];
    static float decoded_k[128 * 128], decoded_v[128 * 128];
    err e;
    kvq_codec *c = open_codec("oscar+", 128);
    uint64_t next = input_rows(11, 128, 128, k);
    (void)input_rows(next, 128, 128, v);
    assert_int_equal(kvq_encode_page(c, 0, 0, k, v, 128, page, &e), ST_OK);
    kvq_decode_page(c, 0, 0, page, decoded_k, decoded_v);
    for (int r = 0; r < 128; r++) {
        double x_x = 0.0, error = 0.0;
        for (int i = 0; i < 128; i++) {
            double x = (double)base_bf16_to_f32(k[r * 128 + i]), y = (double)decoded_k[r * 128 + i];
            assert_true(isfinite(y));
            x_x += x * x;
            error += (x - y) * (x - y);
        }
        /* |x - y|^2 = 2 |x|^2 (1 - cos), and codes have the signs of x, so cos is at least 0. */
        assert_true(r == 5 || error <= 2.01 * x_x + 1e-12);
        assert_true(r != 3 || error == 0.0);
    }
    k[3 * 128 + 4] = 0x7fc0;
    assert_int_equal(kvq_encode_page(c, 0, 0, k, v, 128, page, &e), ST_ERR_ARG);
    assert_non_null(strstr(e.text, "row 3"));
    kvq_codec_close(c);
}

/* ---- what it takes from a calibration ---- */

static void calibration_decides_rotations_and_planes(void **state)
{
    (void)state;
    kvq_calibration c = scene_calibration(4, 2, 64);
    kvq_codec *codec = scene_open("oscar+", &c), *k4 = scene_open("oscar+k4", &c);
    assert_true(fabs(kvq_codec_bits(codec) - (2.25 + 0.5)) < 1e-12); /* half of the layers */
    assert_true(fabs(kvq_codec_bits(k4) - 3.25) < 1e-12);
    assert_int_equal(kvq_page_format(codec, 0)->k_planes, 1);
    assert_int_equal(kvq_page_format(codec, 1)->k_planes, 2);
    const krn_rotation *k = kvq_k_rotation(codec, 3, 1), *v = kvq_v_rotation(codec, 3, 1);
    assert_int_equal(k->kind, KRN_ROTATION_MATRIX);
    assert_memory_equal(k->matrix, c.k_rotation + 7 * 64 * 64, 64 * 64 * sizeof(float));
    assert_memory_equal(k->mean, c.k_mean + 7 * 64, 64 * sizeof(float));
    assert_int_equal(v->kind, KRN_ROTATION_HADAMARD);
    assert_null(v->mean);
    assert_true(kvq_codec_fingerprint(codec) != kvq_codec_fingerprint(k4));
    c.k_mean[5] += 1.0f;
    kvq_codec *other = scene_open("oscar+", &c);
    assert_true(kvq_codec_fingerprint(codec) != kvq_codec_fingerprint(other));
    kvq_codec_close(other);
    kvq_codec_close(codec);
    kvq_codec_close(k4);
    kvq_calibration_free(&c);
}

static void shared_rotations_serve_all_heads(void **state)
{
    (void)state;
    kvq_calibration c = {0}, full = scene_calibration(2, 2, 64);
    err e;
    assert_int_equal(kvq_calibration_create(&full.shape, KVQ_CALIBRATION_SHARED, &c, &e), ST_OK);
    memcpy(c.shared_k_rotation, full.shared_k_rotation, 2 * 64 * 64 * sizeof(float));
    memcpy(c.shared_v_rotation, full.shared_v_rotation, 2 * 64 * 64 * sizeof(float));
    kvq_codec *codec = scene_open("oscar+", &c);
    for (int head = 0; head < 2; head++) {
        assert_memory_equal(kvq_k_rotation(codec, 1, head)->matrix, c.shared_k_rotation + 64 * 64,
                64 * 64 * sizeof(float));
        assert_null(kvq_k_rotation(codec, 1, head)->mean);
    }
    kvq_codec_close(codec);
    kvq_calibration_free(&c);
    kvq_calibration_free(&full);
}

static void refusals_say_why(void **state)
{
    (void)state;
    char path[128];
    kvq_codec *codec = NULL;
    kvq_calibration c = scene_calibration(2, 2, 64);
    kvq_shape other = {.layers = 3, .kv_heads = 2, .d = 64};
    err e;
    assert_int_equal(kvq_codec_open("oscar+", &c.shape, NULL, &codec, &e), ST_ERR_ARG);
    assert_non_null(strstr(e.text, "epimem calibrate"));
    assert_int_equal(kvq_calibration_write(&c, scene_path(path), &e), ST_OK);
    assert_int_equal(kvq_codec_open("oscar+", &other, path, &codec, &e), ST_ERR_MISMATCH);
    assert_non_null(strstr(e.text, "scene"));
    for (long n = 0;; n++) {
        base_fail_allocation(n);
        status s = kvq_codec_open("oscar+", &c.shape, path, &codec, &e);
        base_fail_allocation(-1);
        if (s == ST_OK) {
            assert_true(n > 5);
            break;
        }
        assert_int_equal(s, ST_ERR_MEMORY);
    }
    kvq_codec_close(codec);
    (void)unlink(path);
    kvq_calibration_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(pages_are_the_golden_ones_byte_for_byte),
            cmocka_unit_test(scales_keep_what_they_promise),
            cmocka_unit_test(distortion_is_that_of_the_best_even_levels),
            cmocka_unit_test(searches_give_the_same_bits_on_avx2),
            cmocka_unit_test(decoded_rows_get_the_same_codes_again),
            cmocka_unit_test(errors_stay_within_the_row),
            cmocka_unit_test(calibration_decides_rotations_and_planes),
            cmocka_unit_test(shared_rotations_serve_all_heads),
            cmocka_unit_test(refusals_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
