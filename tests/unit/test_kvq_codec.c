/* Codecs by name: what they report, columns, fingerprints, refusals, and memory that runs out. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <string.h>

#include "kvq/kvq.h"

static const char *const names[] = {"turboquant", "turboquant-k4", "hadamard", "naive", "bf16"};
#define FINGERPRINT_TURBOQUANT_30_3_64 0x9066892990977c5au

enum { N_NAMES = sizeof names / sizeof names[0] };

static kvq_codec *open_codec(const char *name, int layers, int kv_heads, int d)
{
    kvq_codec *c = NULL;
    kvq_shape shape = {.layers = layers, .kv_heads = kv_heads, .d = d};
    err e;
    assert_int_equal(kvq_codec_open(name, &shape, NULL, &c, &e), ST_OK);
    return c;
}

static void bits_are_those_of_the_page(void **state)
{
    (void)state;
    static const double of_64[N_NAMES] = {2.25, 3.25, 2.5, 2.5, 16.0},
                        of_128[N_NAMES] = {2.125, 3.125, 2.25, 2.25, 16.0};
    for (int i = 0; i < N_NAMES; i++) {
        kvq_codec *c = open_codec(names[i], 30, 3, 64);
        assert_string_equal(kvq_codec_name(c), names[i]);
        assert_true(fabs(kvq_codec_bits(c) - of_64[i]) < 1e-12);
        kvq_codec_close(c);
        c = open_codec(names[i], 2, 8, 128);
        assert_true(fabs(kvq_codec_bits(c) - of_128[i]) < 1e-12);
        kvq_codec_close(c);
    }
}

static void columns_hold_pages_back_to_back(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        kvq_codec *c = open_codec(names[i], 4, 3, 64);
        size_t at = 0;
        for (int layer = 0; layer < 4; layer++) {
            for (int head = 0; head < 3; head++) {
                assert_int_equal(kvq_page_at(c, layer, head), at);
                at += kvq_page_format(c, layer)->bytes;
            }
        }
        assert_int_equal(kvq_column_bytes(c), at);
        kvq_codec_close(c);
    }
    kvq_codec *c = open_codec("turboquant", 30, 3, 64);
    assert_int_equal(kvq_page_format(c, 0)->bytes, 4608);
    kvq_codec_close(c);
}

static void spans_point_into_the_column(void **state)
{
    (void)state;
    static uint8_t column[1 << 20];
    kvq_codec *c = open_codec("turboquant", 2, 2, 64);
    krn_span s = kvq_span(c, 1, 1, column, 77);
    assert_int_equal(s.kind, KRN_SPAN_PAGE);
    assert_int_equal(s.rows, 77);
    assert_ptr_equal(s.k, column + kvq_page_at(c, 1, 1));
    kvq_codec_close(c);
    c = open_codec("bf16", 2, 2, 64);
    s = kvq_span(c, 1, 0, column, 5);
    assert_int_equal(s.kind, KRN_SPAN_BF16);
    assert_ptr_equal(s.k, column + kvq_page_at(c, 1, 0));
    assert_ptr_equal(s.v, column + kvq_page_at(c, 1, 0) + 128 * 64 * 2);
    kvq_codec_close(c);
}

static void fingerprints_tell_codecs_and_shapes_apart(void **state)
{
    (void)state;
    uint64_t seen[64];
    int n = 0;
    static const int shapes[][3] = {{30, 3, 64}, {30, 3, 128}, {29, 3, 64}, {30, 4, 64}};
    for (int i = 0; i < N_NAMES; i++) {
        for (int s = 0; s < 4; s++) {
            kvq_codec *c = open_codec(names[i], shapes[s][0], shapes[s][1], shapes[s][2]);
            kvq_codec *again = open_codec(names[i], shapes[s][0], shapes[s][1], shapes[s][2]);
            seen[n] = kvq_codec_fingerprint(c);
            assert_int_equal(seen[n], kvq_codec_fingerprint(again));
            for (int j = 0; j < n; j++) {
                assert_true(seen[j] != seen[n]);
            }
            n++;
            kvq_codec_close(c);
            kvq_codec_close(again);
        }
    }
}

/* What earlier releases wrote must still be found: raise KVQ_PAGE_VERSION when this has to change. */
static void fingerprints_do_not_drift(void **state)
{
    (void)state;
    kvq_codec *c = open_codec("turboquant", 30, 3, 64);
    assert_int_equal(kvq_codec_fingerprint(c), FINGERPRINT_TURBOQUANT_30_3_64);
    kvq_codec_close(c);
}

static void refusals_say_why(void **state)
{
    (void)state;
    kvq_codec *c = NULL;
    err e;
    kvq_shape shape = {.layers = 2, .kv_heads = 2, .d = 64};
    assert_int_equal(kvq_codec_open("turbo", &shape, NULL, &c, &e), ST_ERR_ARG);
    for (int i = 0; i < N_NAMES; i++) {
        assert_non_null(strstr(e.text, names[i]));
        assert_int_equal(kvq_codec_open(names[i], &shape, "some.safetensors", &c, &e), ST_ERR_ARG);
        assert_non_null(strstr(e.text, "some.safetensors"));
        assert_int_equal(kvq_codec_open("", &shape, NULL, &c, &e), ST_ERR_ARG);
    }
    shape.d = 96;
    assert_int_equal(kvq_codec_open("turboquant", &shape, NULL, &c, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "96"));
    shape = (kvq_shape){.layers = 0, .kv_heads = 2, .d = 64};
    assert_int_equal(kvq_codec_open("turboquant", &shape, NULL, &c, &e), ST_ERR_ARG);
    shape = (kvq_shape){.layers = 2, .kv_heads = 1 << 30, .d = 64};
    assert_int_equal(kvq_codec_open("turboquant", &shape, NULL, &c, &e), ST_ERR_ARG);
    assert_null(c);
    kvq_codec_close(NULL);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    kvq_shape shape = {.layers = 3, .kv_heads = 2, .d = 64};
    for (int i = 0; i < N_NAMES; i++) {
        int failures = 0;
        for (long n = 0;; n++) {
            kvq_codec *c = NULL;
            err e;
            base_fail_allocation(n);
            status s = kvq_codec_open(names[i], &shape, NULL, &c, &e);
            base_fail_allocation(-1);
            if (s == ST_OK) {
                kvq_codec_close(c);
                break;
            }
            assert_int_equal(s, ST_ERR_MEMORY);
            assert_null(c);
            failures++;
        }
        assert_true(failures >= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(bits_are_those_of_the_page),
            cmocka_unit_test(columns_hold_pages_back_to_back),
            cmocka_unit_test(spans_point_into_the_column),
            cmocka_unit_test(fingerprints_tell_codecs_and_shapes_apart),
            cmocka_unit_test(fingerprints_do_not_drift),
            cmocka_unit_test(refusals_say_why),
            cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
