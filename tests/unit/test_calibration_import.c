/* RotationZoo files: rotations come out as they went in, everything else is refused, nothing is executed. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvq/calibration.h"
#include "kvq/calibration_import.h"

static const kvq_shape shape = {.layers = 2, .kv_heads = 3, .d = 64};

static const char *data_path(const char *name, char path[512])
{
    (void)snprintf(path, 512, "%s/tests/data/rotationzoo/%s", EPIMEM_SOURCE_DIR, name);
    return path;
}

static status import(const char *k, const char *v, const kvq_shape *s, kvq_calibration *out, err *e)
{
    char k_path[512], v_path[512];
    return kvq_calibration_import(data_path(k, k_path), data_path(v, v_path), s, out, e);
}

static void rotations_are_those_of_the_files(void **state)
{
    (void)state;
    char path[512];
    kvq_calibration c = {0};
    err e;
    float expected = 0.0f;
    assert_int_equal(import("k.pt", "v.pt", &shape, &c, &e), ST_OK);
    FILE *f = fopen(data_path("k-first-row.txt", path), "r");
    assert_non_null(f);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(fscanf(f, "%f", &expected), 1);
        assert_true(c.shared_k_rotation[64 * 64 + i] == expected);
    }
    (void)fclose(f);
    assert_null(c.k_rotation);
    assert_int_equal(c.k_bits[0], 2);
    assert_true(memcmp(c.shared_k_rotation, c.shared_v_rotation, 64 * 64 * sizeof(float)) != 0);
    kvq_calibration_free(&c);
}

static void refuse(const char *k, const char *v, const kvq_shape *s, status expected, const char *said)
{
    kvq_calibration c = {0};
    err e;
    assert_int_equal(import(k, v, s, &c, &e), expected);
    if (strstr(e.text, said) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", e.text, said);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const kvq_shape three = {.layers = 3, .kv_heads = 3, .d = 64},
                           wide = {.layers = 2, .kv_heads = 3, .d = 128};
    refuse("v.pt", "k.pt", &shape, ST_ERR_FORMAT, "the other one of K and V");
    refuse("k.pt", "v.pt", &three, ST_ERR_MISMATCH, "2 layers, the model has 3");
    refuse("k.pt", "v.pt", &wide, ST_ERR_FORMAT, "head size");
    refuse("bent.pt", "v.pt", &shape, ST_ERR_FORMAT, "layer 1 is not orthogonal");
    refuse("k.pt", "no-such.pt", &shape, ST_ERR_NOT_FOUND, "no-such.pt");
    refuse("k-first-row.txt", "v.pt", &shape, ST_ERR_FORMAT, "no zip archive");
}

static void a_pickle_that_calls_is_refused(void **state)
{
    (void)state;
    refuse("call.pt", "v.pt", &shape, ST_ERR_FORMAT, "which is not done");
}

static void read_pickle(const char *bytes, size_t n, status expected)
{
    pickle p = {0};
    err e;
    assert_int_equal(kvq_pickle_read((const uint8_t *)bytes, n, &p, &e), expected);
    kvq_pickle_free(&p);
}
#define READ(text, expected) read_pickle(text, sizeof text - 1, expected)

static void bad_pickles_are_refused(void **state)
{
    (void)state;
    READ("\x80\x02}.", ST_OK);
    READ("\x80\x02}(K\1K\2K\3K\4u.", ST_OK);
    READ("\x80\x02K\1K\2\x86.", ST_OK);
    READ("", ST_ERR_FORMAT);
    READ("\x80\x03}.", ST_ERR_FORMAT);
    READ("\x80\x02}", ST_ERR_FORMAT);            /* no end */
    READ("\x80\x02.", ST_ERR_FORMAT);            /* nothing to give */
    READ("\x80\x02}}.", ST_ERR_FORMAT);          /* something left */
    READ("\x80\x02}(K\1u.", ST_ERR_FORMAT);      /* a key without value */
    READ("\x80\x02K\1(K\1K\1u.", ST_ERR_FORMAT); /* items for a number */
    READ("\x80\x02t.", ST_ERR_FORMAT);           /* no mark */
    READ("\x80\x02(R.", ST_ERR_FORMAT);          /* below the mark */
    READ("\x80\x02h\7.", ST_ERR_FORMAT);         /* memo never put */
    READ("\x80\x02X\xff\xff\xff\xff.", ST_ERR_FORMAT);
    READ("\x80\x02"
         "cos\nsystem\nX\4\0\0\0true\x85R.",
            ST_ERR_FORMAT);
    READ("\x80\x02"
         "cos",
            ST_ERR_FORMAT);
    READ("\x80\x02\x93.", ST_ERR_FORMAT);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    char path[512];
    base_map map = {0};
    err e;
    assert_int_equal(base_map_open(data_path("call.pt", path), &map, &e), ST_OK);
    for (size_t cut = 0; cut < map.size; cut++) {
        uint8_t *part = malloc(cut + 1);
        const uint8_t *data = NULL;
        size_t size = 0;
        memcpy(part, map.data, cut);
        assert_int_equal(kvq_zip_find(part, cut, "data.pkl", &data, &size, &e), ST_ERR_FORMAT);
        free(part);
    }
    base_map_close(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(rotations_are_those_of_the_files),
            cmocka_unit_test(what_does_not_fit_is_refused),
            cmocka_unit_test(a_pickle_that_calls_is_refused),
            cmocka_unit_test(bad_pickles_are_refused),
            cmocka_unit_test(every_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
