/* Calibrations: eigenvectors, rotations, moments, the file and everything it refuses. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "kvq/calibration.h"
#include "tests/unit/calibration_scene.h"

/* ---- rotations ---- */

static double next_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) / 9007199254740992.0 - 0.5;
}

static void eigenvectors_are_found_with_their_signs(void **state)
{
    (void)state;
    enum { D = 64 };
    static float r[D * D];
    static double a[D * D], u[D * D], values[D];
    err e;
    scene_reflection(D, 3, r); /* columns are the eigenvectors, values 1, 2, ... D */
    for (int i = 0; i < D; i++) {
        for (int j = 0; j < D; j++) {
            for (int k = 0; k < D; k++) {
                a[i * D + j] += (double)r[i * D + k] * (double)r[j * D + k] * (k + 1);
            }
        }
    }
    assert_int_equal(kvq_eigenbasis(D, a, u, values, &e), ST_OK);
    for (int k = 0; k < D; k++) {
        double dot = 0.0, largest = 0.0;
        assert_true(fabs(values[k] - (k + 1)) < 1e-4);
        for (int i = 0; i < D; i++) {
            dot += u[i * D + k] * (double)r[i * D + k];
            largest = fabs(u[i * D + k]) > fabs(largest) ? u[i * D + k] : largest;
        }
        assert_true(fabs(fabs(dot) - 1.0) < 1e-5);
        assert_true(largest > 0.0);
    }
}

static void hadamard_flattens_what_channels_matter(void **state)
{
    (void)state;
    enum { D = 64 };
    static double u[D * D];
    static float r[D * D], p[D * D];
    for (int i = 0; i < D; i++) {
        u[i * D + i] = 1.0;
    }
    kvq_basis_times_hadamard(D, u, false, r);
    kvq_basis_times_hadamard(D, u, true, p);
    for (int j = 0; j < D; j++) {
        double importance = 0.0; /* diag(R^T Lambda R) with Lambda = 1, 2, ... */
        int reversed = 0;
        for (int i = 0; i < D; i++) {
            importance += (double)r[i * D + j] * (double)r[i * D + j] * (i + 1);
        }
        assert_true(fabs(importance - (D + 1) / 2.0) < 1e-4);
        for (int bit = 0; bit < 6; bit++) {
            reversed |= ((j >> bit) & 1) << (5 - bit);
        }
        for (int i = 0; i < D; i++) { /* column j of U H P is column d - 1 - reversed(j) of U H */
            assert_true(p[i * D + j] == r[i * D + D - 1 - reversed]);
        }
    }
    assert_true(r[1 * D + 1] == -0.125f && r[0] == 0.125f && r[3 * D + 3] == 0.125f);
}

/* ---- moments ---- */

enum { ROWS = 300, D = 64 };

static void moments_are_those_of_the_rows(void **state)
{
    (void)state;
    static float q[2 * ROWS * D], k[ROWS * D], v[ROWS * D];
    static double c[D * D], u[D * D], values[D];
    kvq_shape shape = {.layers = 2, .kv_heads = 1, .d = D};
    kvq_moments *m = NULL;
    kvq_calibration out = {0};
    uint64_t seed = 9;
    err e;
    for (int i = 0; i < ROWS * D; i++) {
        q[i] = (float)(next_number(&seed) * (1 + i % D));
        q[ROWS * D + i] = (float)(next_number(&seed) * (1 + i % D));
        k[i] = (float)(next_number(&seed) + 1.0);
        v[i] = (float)next_number(&seed);
    }
    assert_int_equal(kvq_moments_open(&shape, &m, &e), ST_OK);
    kvq_moments_add_queries(m, 1, 0, q, ROWS);
    kvq_moments_add_queries(m, 1, 0, q + ROWS * D, ROWS);
    kvq_moments_add_text(m, 1, 0, k, v, ROWS);
    assert_int_equal(kvq_moments_finish(m, &out, &e), ST_OK);
    for (int row = 0; row < 2 * ROWS; row++) {
        for (int i = 0; i < D; i++) {
            for (int j = 0; j < D; j++) {
                c[i * D + j] += (double)q[row * D + i] * (double)q[row * D + j] / (2 * ROWS);
            }
        }
    }
    assert_int_equal(kvq_eigenbasis(D, c, u, values, &e), ST_OK);
    static float expected[D * D];
    kvq_basis_times_hadamard(D, u, false, expected);
    for (int i = 0; i < D * D; i++) {
        assert_true(fabsf(out.k_rotation[D * D + i] - expected[i]) < 1e-4f);
    }
    kvq_head_figures f = kvq_moments_figures(m, &out, 1, 0);
    assert_true(fabs(f.condition - values[D - 1] / values[0]) < 1e-3 * f.condition);
    assert_true(f.participation > 1.0 && f.participation < D);
    assert_true(fabs(f.mean_to_spread - sqrt(12.0)) < 0.1); /* mean 1, uniform of width 1 */
    kvq_calibration_free(&out);
    kvq_moments_close(m);
}

/* Values of tokens whose keys no query looks at weigh nothing in the shared rotation of V. */
static void values_are_weighted_by_their_logits(void **state)
{
    (void)state;
    static float q[ROWS * D], k[ROWS * D], v[ROWS * D];
    kvq_shape shape = {.layers = 1, .kv_heads = 1, .d = D};
    kvq_moments *m = NULL;
    kvq_calibration out = {0};
    err e;
    for (int row = 0; row < ROWS; row++) {
        q[row * D] = 1.0f;           /* all queries along channel 0 */
        k[row * D + row % 2] = 2.0f; /* even rows are seen, odd ones are not */
        v[row * D + 5 + row % 2] = row % 2 == 0 ? 1.0f : 100.0f;
    }
    assert_int_equal(kvq_moments_open(&shape, &m, &e), ST_OK);
    kvq_moments_add_queries(m, 0, 0, q, ROWS);
    kvq_moments_add_text(m, 0, 0, k, v, ROWS);
    assert_int_equal(kvq_moments_finish(m, &out, &e), ST_OK);
    /* The largest eigenvalue belongs to channel 5, so its row of U H P is a row of H P: all +-1/8. */
    for (int j = 0; j < D; j++) {
        assert_true(fabsf(fabsf(out.shared_v_rotation[5 * D + j]) - 0.125f) < 1e-5f);
    }
    assert_true(out.shared_v_rotation[5 * D + 63] == 0.125f); /* reversed(63) = 63: column 0 of H */
    int negative = 0;
    for (int j = 0; j < D; j++) { /* the last column of U meets row 63 of H */
        negative += out.shared_v_rotation[5 * D + j] < 0.0f;
    }
    assert_int_equal(negative, 32);
    kvq_calibration_free(&out);
    kvq_moments_close(m);
}

/* ---- the file ---- */

static uint8_t *file_bytes(const kvq_calibration *c, size_t *n)
{
    char path[128];
    err e;
    base_map map = {0};
    assert_int_equal(kvq_calibration_write(c, scene_path(path), &e), ST_OK);
    assert_int_equal(base_map_open(path, &map, &e), ST_OK);
    uint8_t *bytes = base_alloc(map.size);
    assert_non_null(bytes);
    memcpy(bytes, map.data, map.size);
    *n = map.size;
    base_map_close(&map);
    (void)unlink(path);
    return bytes;
}

static status read_bytes(const void *bytes, size_t n, err *e)
{
    kvq_calibration out = {0};
    status s = kvq_calibration_read_memory(bytes, n, "scene.file", &out, e);
    kvq_calibration_free(&out);
    return s;
}

static void a_file_gives_back_what_was_written(void **state)
{
    (void)state;
    kvq_calibration c = scene_calibration(3, 2, 64), back = {0};
    size_t n = 0, again_n = 0;
    err e;
    uint8_t *bytes = file_bytes(&c, &n);
    assert_int_equal(kvq_calibration_read_memory(bytes, n, "x", &back, &e), ST_OK);
    assert_string_equal(back.model, "scene");
    assert_int_equal(back.weights, c.weights);
    assert_int_equal(back.tokens, c.tokens);
    assert_memory_equal(back.k_rotation, c.k_rotation, 6 * 64 * 64 * sizeof(float));
    assert_memory_equal(back.shared_v_rotation, c.shared_v_rotation, 3 * 64 * 64 * sizeof(float));
    assert_memory_equal(back.k_bits, c.k_bits, 3 * sizeof(int32_t));
    uint8_t *again = file_bytes(&back, &again_n);
    assert_int_equal(n, again_n);
    assert_memory_equal(bytes, again, n);
    base_free(again);
    base_free(bytes);
    kvq_calibration_free(&back);
    kvq_calibration_free(&c);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    kvq_calibration c = scene_calibration(2, 1, 64);
    size_t n = 0;
    err e;
    uint8_t *bytes = file_bytes(&c, &n);
    for (size_t cut = 0; cut < n; cut += cut < 1200 ? 1 : 997) {
        uint8_t *part = malloc(cut + 1); /* its own block, so that reading past it is seen */
        memcpy(part, bytes, cut);
        assert_int_equal(read_bytes(part, cut, &e), ST_ERR_FORMAT);
        assert_non_null(strstr(e.text, "scene.file"));
        free(part);
    }
    base_free(bytes);
    kvq_calibration_free(&c);
}

static void refuse_changed(const char *find, const char *put, const char *said)
{
    kvq_calibration c = scene_calibration(2, 1, 64);
    size_t n = 0;
    err e;
    uint8_t *bytes = file_bytes(&c, &n);
    uint8_t *at = NULL;
    for (size_t i = 8; at == NULL && i < 2000; i++) {
        at = memcmp(bytes + i, find, strlen(find)) == 0 ? bytes + i : NULL;
    }
    assert_non_null(at);
    memcpy(at, put, strlen(put));
    assert_int_equal(read_bytes(bytes, n, &e), ST_ERR_FORMAT);
    if (strstr(e.text, said) == NULL) {
        fail_msg("%s -> %s: \"%s\" does not say \"%s\"", find, put, e.text, said);
    }
    base_free(bytes);
    kvq_calibration_free(&c);
}

static void damaged_headers_are_refused(void **state)
{
    (void)state;
    refuse_changed("calibration 1", "calibration 2", "version");
    refuse_changed("\"k_mean\"", "\"k_meen\"", "k_mean is missing");
    refuse_changed("\"I32\"", "\"F32\"", "k_bits");
    refuse_changed("\"layers\":\"2\"", "\"layers\":\"9\"", "impossible shape");
    refuse_changed("\"d\":\"64\"", "\"d\":\"63\"", "impossible shape");
    refuse_changed("\"kv_heads\":\"1\"", "\"kv_heads\":\"x\"", "header");
    refuse_changed("[2,1,64,64]", "[2,2,32,64]", "k_rotation");
    refuse_changed("\"shape\":[2]", "\"shape\":{2]", "header");
    refuse_changed("\"k_bits\"", "\"k\\bits\"", "header");
}

static void refuse_numbers(void (*change)(kvq_calibration *c), const char *said)
{
    kvq_calibration c = scene_calibration(2, 1, 64);
    size_t n = 0;
    err e;
    change(&c);
    uint8_t *bytes = file_bytes(&c, &n);
    assert_int_equal(read_bytes(bytes, n, &e), ST_ERR_FORMAT);
    assert_non_null(strstr(e.text, said));
    base_free(bytes);
    kvq_calibration_free(&c);
}

static void put_nan(kvq_calibration *c)
{
    c->k_mean[70] = NAN;
}
static void bend(kvq_calibration *c)
{
    c->k_rotation[64 * 64 + 3] += 0.01f;
}
static void put_three_bits(kvq_calibration *c)
{
    c->k_bits[1] = 3;
}

static void damaged_numbers_are_refused(void **state)
{
    (void)state;
    refuse_numbers(put_nan, "k_mean holds a number that is not finite");
    refuse_numbers(bend, "k_rotation holds a matrix that is not orthogonal");
    refuse_numbers(put_three_bits, "neither 2 nor 4");
}

static void another_model_is_refused_by_name(void **state)
{
    (void)state;
    char path[128];
    kvq_calibration c = scene_calibration(2, 1, 64);
    err e;
    assert_int_equal(kvq_calibration_write(&c, scene_path(path), &e), ST_OK);
    assert_int_equal(kvq_calibration_check(path, "other", c.weights, &e), ST_OK);
    assert_int_equal(kvq_calibration_check(path, "other", c.weights + 1, &e), ST_ERR_MISMATCH);
    assert_non_null(strstr(e.text, "scene"));
    assert_non_null(strstr(e.text, "other"));
    (void)unlink(path);
    assert_int_equal(kvq_calibration_check(path, "other", c.weights, &e), ST_ERR_NOT_FOUND);
    assert_int_equal(kvq_calibration_write(&c, "/no/such/folder/file", &e), ST_ERR_IO);
    kvq_calibration_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(eigenvectors_are_found_with_their_signs),
            cmocka_unit_test(hadamard_flattens_what_channels_matter),
            cmocka_unit_test(moments_are_those_of_the_rows),
            cmocka_unit_test(values_are_weighted_by_their_logits),
            cmocka_unit_test(a_file_gives_back_what_was_written),
            cmocka_unit_test(every_cut_is_refused),
            cmocka_unit_test(damaged_headers_are_refused),
            cmocka_unit_test(damaged_numbers_are_refused),
            cmocka_unit_test(another_model_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
