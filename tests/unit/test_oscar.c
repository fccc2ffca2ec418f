/* The codec oscar: the published method's vectors bit for bit, golden pages, codes of an independent version, refusals. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "kernels/fragment.h"
#include "kvq/codecs/oscar/rows.h"
#include "kvq/page.h"
#include "tests/unit/calibration_scene.h"
#include "tests/unit/kvq_scene.h"

/* Rows as the release packs them: byte j holds the codes of channels j, j + d/4, j + d/2 and j + 3 d/4. */
static void pack(const uint8_t *codes, int d, uint8_t *bytes)
{
    for (int j = 0; j < d / 4; j++) {
        bytes[j] = (uint8_t)(codes[j] | codes[j + d / 4] << 2 | codes[j + d / 2] << 4 |
                codes[j + 3 * d / 4] << 6);
    }
}

static uint32_t fnv1a(const uint8_t *bytes, int n)
{
    uint32_t h = 2166136261u;
    for (int i = 0; i < n; i++) {
        h = (h ^ bytes[i]) * 16777619u;
    }
    return h;
}

/* ---- the row that the method's description gives results for ---- */

static void vector_row(float x[128])
{
    uint32_t s = 12345;
    for (int i = 0; i < 128; i++) {
        int sum = 0;
        for (int draw = 0; draw < 4; draw++) {
            s = s * 1664525u + 1013904223u;
            sum += (int)(s >> 16);
        }
        x[i] = (float)(sum - 131070) / 32768.0f;
    }
    assert_true(x[0] == -1.56994629f && x[1] == 0.133453369f && x[127] == 0.993011475f);
}

static void check_histogram(const kvq_oscar_row *row, const int expected[4])
{
    int count[4] = {0};
    for (int c = 0; c < 128; c++) {
        assert_in_range(row->codes[c], 0, 3);
        count[row->codes[c]]++;
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(count[i], expected[i]);
    }
}

static void codes_are_those_of_the_published_method(void **state)
{
    (void)state;
    typedef float (*clip_rule)(const float *x, int d, double ratio);
    static const struct {
        clip_rule clip;
        double ratio;
        float threshold, scale, zero;
        int histogram[4];
        double nmse;
        uint32_t hash;
    } cases[] = {
            {kvq_oscar_clip_by_sort, .96, 1.85241699f, 1.2349447f, 1.5f, {18, 41, 54, 15}, .115484,
                    0x38e2cfbb},
            {kvq_oscar_clip_by_sort, .92, 1.72143555f, 1.14762366f, 1.5f, {19, 40, 53, 16}, .102353,
                    0x541c849b},
            {NULL, 0, INFINITY, 1.49064124f, 1.32985067f, {18, 55, 49, 6}, .190598, 0xf06438d2},
            {kvq_oscar_clip_by_bisection, .96, 1.80884528f, 1.20589685f, 1.5f, {18, 41, 54, 15}, .110009,
                    0x38e2cfbb},
            {kvq_oscar_clip_by_bisection, .92, 1.67269564f, 1.11513042f, 1.5f, {19, 40, 51, 18}, .098989,
                    0x2ced6538},
    };
    float x[128];
    uint8_t bytes[32];
    kvq_oscar_row row;
    vector_row(x);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        float clip = cases[i].clip != NULL ? cases[i].clip(x, 128, cases[i].ratio) : INFINITY;
        assert_true(clip == cases[i].threshold);
        kvq_oscar_min_max(x, 128, clip, &row);
        assert_true(row.scale == cases[i].scale && row.zero == cases[i].zero);
        check_histogram(&row, cases[i].histogram);
        double off = 0.0, size = 0.0;
        for (int c = 0; c < 128; c++) {
            double error = (double)((row.codes[c] - row.zero) * row.scale - x[c]);
            off += error * error;
            size += (double)x[c] * (double)x[c];
        }
        assert_true(fabs(off / size - cases[i].nmse) < 1e-6);
        pack(row.codes, 128, bytes);
        assert_int_equal(fnv1a(bytes, 32), cases[i].hash);
    }
    static const char spelled[] = "980a9aba570699a4826993925265e256fa959a366bfb2a45ae8da65a6ad505b6";
    char hex[65];
    kvq_oscar_min_max(x, 128, kvq_oscar_clip_by_sort(x, 128, .96), &row);
    pack(row.codes, 128, bytes);
    for (size_t i = 0; i < 32; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    }
    assert_string_equal(hex, spelled);
}

static void lloyd_max_option_is_the_published_one(void **state)
{
    (void)state;
    static const int histogram[4] = {24, 35, 46, 23};
    float x[128];
    kvq_oscar_row row;
    vector_row(x);
    kvq_oscar_lloyd_max(x, 128, kvq_oscar_clip_by_sort(x, 128, .96), &row);
    check_histogram(&row, histogram);
    assert_true(fabs((double)row.scale - 1.143625) < 1e-6 && fabs((double)row.zero - 1.454707) < 1e-6);
}

static void rows_of_zeros_have_the_smallest_step(void **state)
{
    (void)state;
    static const float x[64] = {0};
    kvq_oscar_row row;
    kvq_oscar_min_max(x, 64, kvq_oscar_clip_by_sort(x, 64, .96), &row);
    assert_true(row.scale == 1e-8f / 3.0f && row.zero == 0.0f);
    for (int c = 0; c < 64; c++) {
        assert_int_equal(row.codes[c], 0);
    }
}

/* ---- pages ---- */

static void pages_are_the_golden_ones_byte_for_byte(void **state)
{
    (void)state;
    static const struct {
        const char *codec;
        int d, rows;
    } goldens[] = {{"oscar", 64, 128}, {"oscar", 128, 77}, {"oscar-bisect", 64, 128}, {"oscar-lm", 64, 128}};
    static uint8_t expected[32768], page[32768];
    static uint16_t k[128 * 128], v[128 * 128];
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        int d = goldens[i].d, rows = goldens[i].rows;
        char name[64];
        err e;
        kvq_calibration c = scene_calibration(2, 2, d);
        kvq_codec *codec = scene_open(goldens[i].codec, &c);
        random_bits random = {.state = (uint64_t)(1000 * d + rows)};
        input_rows(&random, rows, d, k);
        input_rows(&random, rows, d, v);
        assert_int_equal(kvq_encode_page(codec, 1, 1, k, v, rows, page, &e), ST_OK);
        (void)snprintf(name, sizeof name, "%s-%d-%d.page", goldens[i].codec, d, rows);
        size_t bytes = kvq_page_format(codec, 1)->bytes;
        assert_int_equal(read_data(name, expected, sizeof expected), bytes);
        for (size_t b = 0; b < bytes; b++) {
            if (expected[b] != page[b]) {
                fail_msg("%s: byte %zu is %02x, expected %02x", name, b, page[b], expected[b]);
            }
        }
        kvq_codec_close(codec);
        kvq_calibration_free(&c);
    }
}

/* ---- rotations and codes together, beside tests/golden-tools/oscar_goldens.py ---- */

enum { HEADS = 3, TOKENS = 64, D = 64, QUERIES = 256 };

static void make_queries(float q[HEADS][QUERIES][D])
{
    random_bits random = {.state = 77};
    for (int h = 0; h < HEADS; h++) {
        for (int t = 0; t < QUERIES; t++) {
            int row[D];
            for (int c = 0; c < D; c++) {
                row[c] = -8190;
                for (int i = 0; i < 4; i++) {
                    row[c] += (int)(random_next(&random) % 4096);
                }
            }
            for (int c = 0; c < D; c++) {
                q[h][t][c] = (float)(row[c] * (1 + (7 * c + h) % 13) + 3 * row[0]) / 4096.0f;
            }
        }
    }
}

static float rows_of[2][HEADS][TOKENS][D]; /* recorded keys and values */

static kvq_calibration calibrate(void)
{
    static float q[HEADS][QUERIES][D];
    static uint16_t raw[2][HEADS][TOKENS][D];
    kvq_shape shape = {.layers = 1, .kv_heads = HEADS, .d = D};
    kvq_moments *m;
    kvq_calibration c = {0};
    err e;
    make_queries(q);
    assert_int_equal(read_data("recorded-k-v.bf16", raw, sizeof raw), sizeof raw);
    for (int i = 0; i < 2 * HEADS * TOKENS * D; i++) {
        (&rows_of[0][0][0][0])[i] = base_bf16_to_f32((&raw[0][0][0][0])[i]);
    }
    assert_int_equal(kvq_moments_open(&shape, &m, &e), ST_OK);
    for (int h = 0; h < HEADS; h++) {
        kvq_moments_add_queries(m, 0, h, q[h][0], QUERIES);
        kvq_moments_add_text(m, 0, h, rows_of[0][h][0], rows_of[1][h][0], TOKENS);
    }
    assert_int_equal(kvq_moments_finish(m, &c, &e), ST_OK);
    kvq_moments_close(m);
    return c;
}

/* Rows of one head and side in stored space. */
static void turn(const krn_rotation *space, float rows[TOKENS][D], uint16_t x[TOKENS][D])
{
    for (int t = 0; t < TOKENS; t++) {
        float turned[D];
        krn_rotate(space, D, rows[t], turned);
        for (int c = 0; c < D; c++) {
            x[t][c] = base_f32_to_bf16(turned[c]);
        }
    }
}

/* Where they differ, bf16 rounding of the rotated row (2^-8 of the value or of the clip threshold) moved x / s + z across a border. */
static bool is_near_border(const uint16_t *x, int c, double ratio)
{
    float row[D];
    kvq_oscar_row coded;
    for (int i = 0; i < D; i++) {
        row[i] = base_bf16_to_f32(x[i]);
    }
    kvq_oscar_min_max(row, D, kvq_oscar_clip_by_sort(row, D, ratio), &coded);
    double at = (double)row[c] / (double)coded.scale + (double)coded.zero + 0.5;
    return fabs(at - round(at)) <= 3.0 * 0x1p-8;
}

static void codes_are_those_of_an_independent_version(void **state)
{
    (void)state;
    static const char *const names[] = {"oscar", "oscar-bisect", "oscar-lm"};
    static uint8_t golden[3][2][HEADS][TOKENS][D / 4], page[8192];
    static uint16_t x[2][TOKENS][D];
    kvq_calibration c = calibrate();
    assert_int_equal(read_data("oscar-recorded.codes", golden, sizeof golden), sizeof golden);
    for (int i = 0; i < 3; i++) {
        kvq_codec *codec = scene_open(names[i], &c);
        const krn_page_format *f = kvq_page_format(codec, 0);
        int different = 0;
        for (int h = 0; h < HEADS; h++) {
            err e;
            turn(kvq_k_rotation(codec, 0, h), rows_of[0][h], x[0]);
            turn(kvq_v_rotation(codec, 0, h), rows_of[1][h], x[1]);
            assert_int_equal(kvq_encode_page(codec, 0, h, x[0][0], x[1][0], TOKENS, page, &e), ST_OK);
            for (int at = 0; at < 2 * TOKENS * D; at++) {
                int side = at / (TOKENS * D), t = at / D % TOKENS, channel = at % D;
                uint32_t expected =
                        golden[i][side][h][t][channel % (D / 4)] >> (2 * (channel / (D / 4))) & 3u;
                uint32_t code = side == 0 ? krn_fragment_get_k(page + f->k_plane_at[0], D, t, channel)
                                          : krn_fragment_get_v(page + f->v_plane_at, t, channel);
                if (code != expected) {
                    different++;
                    assert_true(i == 2 || is_near_border(x[side][t], channel, side == 0 ? .96 : .92));
                }
            }
        }
        print_message("%s: %d of %d codes differ\n", names[i], different, 2 * HEADS * TOKENS * D);
        assert_true(different <= 2 * HEADS * TOKENS * D / 1000);
        kvq_codec_close(codec);
    }
    kvq_calibration_free(&c);
}

/* ---- refusals ---- */

static void refusals_say_why(void **state)
{
    (void)state;
    char path[128];
    kvq_codec *codec = NULL;
    kvq_calibration heads = {0};
    kvq_shape shape = {.layers = 1, .kv_heads = 2, .d = 64};
    err e;
    assert_int_equal(kvq_codec_open("oscar", &shape, NULL, &codec, &e), ST_ERR_ARG);
    assert_non_null(strstr(e.text, "epimem calibrate"));
    kvq_calibration all = scene_calibration(1, 2, 64);
    assert_int_equal(kvq_calibration_create(&shape, KVQ_CALIBRATION_HEADS, &heads, &e), ST_OK);
    memcpy(heads.k_rotation, all.k_rotation, 2 * 64 * 64 * sizeof(float));
    assert_int_equal(kvq_calibration_write(&heads, scene_path(path), &e), ST_OK);
    assert_int_equal(kvq_codec_open("oscar", &shape, path, &codec, &e), ST_ERR_MISMATCH);
    assert_non_null(strstr(e.text, "shared"));
    (void)unlink(path);
    kvq_calibration_free(&heads);
    kvq_calibration_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(codes_are_those_of_the_published_method),
            cmocka_unit_test(lloyd_max_option_is_the_published_one),
            cmocka_unit_test(rows_of_zeros_have_the_smallest_step),
            cmocka_unit_test(pages_are_the_golden_ones_byte_for_byte),
            cmocka_unit_test(codes_are_those_of_an_independent_version),
            cmocka_unit_test(refusals_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
