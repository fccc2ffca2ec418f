/*
 * Stored bytes belong to the rows: whole pages, blocks and single tokens make the same page; rows that were decoded get
 * their codes again; a bit order that encoder and decoder have wrong alike is seen in golden pages.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "kvq/page.h"
#include "tests/unit/kvq_scene.h"

static const char *const stored[] = {"turboquant", "turboquant-k4", "hadamard", "naive", "bf16"};
enum { N_STORED = sizeof stored / sizeof stored[0], ROWS = 128, D_MAX = 256, PAGE_MAX = 4 * ROWS * D_MAX };

static uint16_t x[2][ROWS * D_MAX];
static float y[2][ROWS * D_MAX];

static void encode(const kvq_codec *c, const uint16_t *k, const uint16_t *v, int rows, uint8_t *page)
{
    err e;
    assert_int_equal(kvq_encode_page(c, 0, 1, k, v, rows, page, &e), ST_OK);
}

static void blocks_and_single_tokens_make_the_same_page(void **state)
{
    (void)state;
    static uint8_t whole[PAGE_MAX], parts[PAGE_MAX], part[PAGE_MAX];
    static const int blocks[] = {1, 7, 64, ROWS};
    for (int i = 0; i < N_STORED; i++) {
        for (int d = 64; d <= D_MAX; d *= 2) {
            kvq_codec *c = open_codec(stored[i], d);
            size_t bytes = kvq_page_format(c, 0)->bytes;
            random_bits random = {.state = (uint64_t)d + 5};
            input_rows(&random, ROWS, d, x[0]);
            input_rows(&random, ROWS, d, x[1]);
            encode(c, x[0], x[1], 100, whole);
            for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
                memset(parts, 0, bytes);
                for (int row = 0; row < 100; row += blocks[b]) {
                    int n = 100 - row < blocks[b] ? 100 - row : blocks[b];
                    encode(c, x[0] + row * d, x[1] + row * d, n, part);
                    kvq_gather_rows(c, 0, part, 0, parts, row, n);
                }
                assert_memory_equal(parts, whole, bytes);
            }
            kvq_codec_close(c);
        }
    }
}

/* Rows as a model has them: normal, each of its own size. */
static void normal_rows(uint64_t seed, int d, uint16_t *out)
{
    random_bits random = {.state = seed};
    for (int i = 0; i < ROWS * d; i++) {
        double radius = sqrt(-2.0 * log((random_next(&random) + 0.5) * 0x1p-31)), size = 0.1 + 0.3 * (i / d);
        out[i] = base_f32_to_bf16(
                (float)(size * radius * cos(6.283185307179586 * random_next(&random) * 0x1p-31)));
    }
}

/* Codes of all rows of a side, from the planes. */
static void read_codes(const krn_page_format *f, const uint8_t *page, int side, uint8_t *codes)
{
    for (int i = 0; i < ROWS * f->d; i++) {
        int row = i / f->d, channel = i % f->d;
        uint32_t code = side == 0 ? krn_fragment_get_k(page + f->k_plane_at[0], f->d, row, channel)
                                  : krn_fragment_get_v(page + f->v_plane_at, row, channel);
        if (side == 0 && f->k_planes == 2) {
            code = 4 * code + krn_fragment_get_k(page + f->k_plane_at[1], f->d, row, channel);
        }
        codes[i] = (uint8_t)code;
    }
}

typedef void (*row_maker)(uint64_t seed, int d, uint16_t *out);

static int codes_that_changed(const char *name, row_maker make, int side, int d)
{
    static uint8_t page[PAGE_MAX], codes[ROWS * D_MAX], again[ROWS * D_MAX];
    kvq_codec *c = open_codec(name, d);
    const krn_page_format *f = kvq_page_format(c, 0);
    make((uint64_t)d, d, x[0]);
    make((uint64_t)d + 1, d, x[1]);
    encode(c, x[0], x[1], ROWS, page);
    read_codes(f, page, side, codes);
    kvq_decode_page(c, 0, 1, page, y[0], y[1]);
    for (int i = 0; i < ROWS * d; i++) {
        x[0][i] = base_f32_to_bf16(y[0][i]);
        x[1][i] = base_f32_to_bf16(y[1][i]);
    }
    encode(c, x[0], x[1], ROWS, page);
    read_codes(f, page, side, again);
    kvq_codec_close(c);
    int changed = 0;
    for (int i = 0; i < ROWS * d; i++) {
        changed += codes[i] != again[i];
    }
    return changed;
}

static void lone_values(uint64_t seed, int d, uint16_t *out)
{
    memset(out, 0, (size_t)(ROWS * d) * sizeof *out);
    for (int row = 0; row < ROWS; row++) {
        out[row * d + (int)(seed + (uint64_t)row) % d] = 0x4120; /* 10 */
    }
}

/*
 * Two-bit rows: the threshold of a decoded row, 0.98 of its RMS, lies between the two levels as long as some 1 in 250 of
 * its values is an outer one; with min-max the ends of a row are its levels. The 16 even levels of turboquant-k4 promise
 * less: the scale keeps the norm, and codes are chosen by another step, which agrees with it for rows that look normal
 * but not for a row whose norm is that of one value.
 */
static void decoded_rows_get_their_codes_again(void **state)
{
    (void)state;
    for (int d = 64; d <= D_MAX; d *= 2) {
        for (int side = 0; side < 2; side++) {
            assert_int_equal(codes_that_changed("turboquant", normal_rows, side, d), 0);
            assert_int_equal(codes_that_changed("turboquant-k4", normal_rows, side, d), 0);
            assert_int_equal(codes_that_changed("naive", normal_rows, side, d), 0);
        }
        assert_int_equal(codes_that_changed("naive", lone_values, 0, d), 0);
        assert_true(codes_that_changed("turboquant-k4", lone_values, 0, d) > 0);
    }
    assert_int_equal(codes_that_changed("turboquant", lone_values, 0, 64), 0);
}

/* The planted error: code pairs of a byte in reverse order. */
static void reverse_pairs(uint8_t *plane, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t b = plane[i];
        plane[i] = (uint8_t)((b & 3u) << 6 | (b & 12u) << 2 | (b & 48u) >> 2 | b >> 6);
    }
}

/* In the encoder alone a round trip sees it. In both it does not, since the decoder would reverse the pairs again; the
 * bytes that such an encoder writes are not the golden ones, whatever the decoder does. */
static void a_wrong_bit_order_is_not_golden(void **state)
{
    (void)state;
    static uint8_t page[PAGE_MAX], golden[PAGE_MAX];
    static float wrong[2][ROWS * D_MAX];
    kvq_codec *c = open_codec("turboquant", 64);
    const krn_page_format *f = kvq_page_format(c, 0);
    size_t codes = f->k_scale_at; /* planes come first */
    random_bits random = {.state = 1000 * 64 + ROWS};
    input_rows(&random, ROWS, 64, x[0]);
    input_rows(&random, ROWS, 64, x[1]);
    assert_int_equal(read_data("turboquant-64-128.page", golden, sizeof golden), f->bytes);
    encode(c, x[0], x[1], ROWS, page);
    assert_memory_equal(page, golden, f->bytes);
    kvq_decode_page(c, 0, 1, page, y[0], y[1]);
    reverse_pairs(page, codes);
    kvq_decode_page(c, 0, 1, page, wrong[0], wrong[1]);
    assert_true(memcmp(wrong[0], y[0], ROWS * 64 * sizeof(float)) != 0);
    assert_true(memcmp(wrong[1], y[1], ROWS * 64 * sizeof(float)) != 0);
    assert_true(memcmp(page + f->k_plane_at[0], golden + f->k_plane_at[0], 32 * 64) != 0);
    assert_true(memcmp(page + f->v_plane_at, golden + f->v_plane_at, 32 * 64) != 0);
    kvq_codec_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(blocks_and_single_tokens_make_the_same_page),
            cmocka_unit_test(decoded_rows_get_their_codes_again),
            cmocka_unit_test(a_wrong_bit_order_is_not_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
