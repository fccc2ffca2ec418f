/* Coded vectors, the lexical index, k-means. */
#include "test_episodes_util.h"

#include <math.h>

static uint64_t random_state = 7;

static float random_float(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(random_state >> 11) * 0x1p-52 - 1);
}

static void random_unit(float *v, int dim)
{
    for (int i = 0; i < dim; i++) {
        v[i] = random_float() + random_float() + random_float();
    }
    assert_true(ep_unit(v, dim));
}

/* The step is max|v|/127 and each component off by at most half a step, so the cosine is off by at most
 * step / 2 * sum |q_i|; the query's own rounding adds 1 / 65534 * sum |v_i|. */
static void coded_cosine_is_within_its_bound(void **state)
{
    static const int dims[] = {1, 3, 15, 16, 17, 96, 384, 1000, EP_DIM_MAX};
    (void)state;
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        int dim = dims[k];
        ep_vectors p = {.dim = dim};
        float *v = base_alloc((size_t)dim * 4), *q = base_alloc((size_t)dim * 4), step = 0;
        int8_t *codes = base_alloc((size_t)dim);
        ep_probe *probe = base_zalloc(1, sizeof *probe);
        for (int round = 0; round < 20; round++) {
            double exact = 0, sum_q = 0, sum_v = 0;
            random_unit(v, dim);
            random_unit(q, dim);
            ep_vector_code(v, dim, codes, &step);
            assert_int_equal(ep_vectors_reserve(&p, 1), ST_OK);
            int64_t at = ep_vectors_add(&p, codes, step);
            ep_probe_set(probe, q, dim);
            for (int i = 0; i < dim; i++) {
                exact += (double)v[i] * (double)q[i];
                sum_q += fabs((double)q[i]);
                sum_v += fabs((double)v[i]) + (double)step;
            }
            double bound = (double)step / 2 * sum_q + sum_v / 65534 + 1e-6;
            assert_true(fabs((double)ep_vectors_dot(&p, at, probe) - exact) <= bound);
            assert_int_equal(ep_dot_scalar(codes, probe->code, dim),
                    __builtin_cpu_supports("avx2") ? ep_dot_avx2(codes, probe->code, dim)
                                                   : ep_dot_scalar(codes, probe->code, dim));
        }
        ep_vectors_free(&p);
        base_free(v);
        base_free(q);
        base_free(codes);
        base_free(probe);
    }
}

static void the_largest_sum_fits(void **state)
{
    int8_t *a = base_alloc(EP_DIM_MAX);
    int16_t *b = base_alloc(EP_DIM_MAX * sizeof *b);
    float *v = base_alloc(EP_DIM_MAX * sizeof *v), step = 0;
    ep_probe *probe = base_zalloc(1, sizeof *probe);
    (void)state;
    for (int i = 0; i < EP_DIM_MAX; i++) {
        v[i] = 1.0f / 64; /* all components equal: the largest codes a unit vector can have */
    }
    ep_vector_code(v, EP_DIM_MAX, a, &step);
    ep_probe_set(probe, v, EP_DIM_MAX);
    int32_t sum = ep_dot_scalar(a, probe->code, EP_DIM_MAX);
    assert_int_equal(sum, (int64_t)a[0] * probe->code[0] * EP_DIM_MAX);
    assert_true(fabs((double)sum * (double)step / 32767 - 1) < 1e-3);
    base_free(a);
    base_free(b);
    base_free(v);
    base_free(probe);
}

static void what_is_not_finite_is_refused(void **state)
{
    float v[4] = {1, NAN, 0, 0}, w[4] = {0}, u[4] = {3, 0, 4, 0};
    (void)state;
    assert_false(ep_unit(v, 4));
    v[1] = INFINITY;
    assert_false(ep_unit(v, 4));
    assert_true(ep_unit(w, 4) && fabsf(w[0]) <= 0);
    assert_true(ep_unit(u, 4) && fabsf(u[0] - 0.6f) < 1e-6f && fabsf(u[2] - 0.8f) < 1e-6f);
}

/* BM25 written out for three documents of lengths 2, 1, 1. */
static void bm25_is_the_formula(void **state)
{
    ep_lexical x = {0};
    const uint64_t cat = 11, dog = 12, keys[] = {cat, dog, 99};
    float s[3];
    (void)state;
    assert_int_equal(ep_lexical_reserve(&x, 3, 3), ST_OK);
    ep_lexical_add(&x, &cat, (const uint16_t[]){2}, 1, 2);
    ep_lexical_add(&x, &dog, (const uint16_t[]){1}, 1, 1);
    ep_lexical_add(&x, &cat, (const uint16_t[]){1}, 1, 1);
    ep_lexical_score(&x, keys, 3, s);
    double mean = 4.0 / 3, idf_cat = log(1 + 1.5 / 2.5), idf_dog = log(1 + 2.5 / 1.5);
    double long_one = 1.2 * (0.25 + 0.75 * 2 / mean), short_one = 1.2 * (0.25 + 0.75 * 1 / mean);
    assert_true(fabs((double)s[0] - idf_cat * 2 * 2.2 / (2 + long_one)) < 1e-6);
    assert_true(fabs((double)s[1] - idf_dog * 2.2 / (1 + short_one)) < 1e-6);
    assert_true(fabs((double)s[2] - idf_cat * 2.2 / (1 + short_one)) < 1e-6);
    ep_lexical_free(&x);
}

static void many_words_are_found_again(void **state)
{
    enum { N = 5000 };
    ep_lexical x = {0};
    float *s = base_alloc(N * sizeof *s);
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t keys[2] = {i + 1, ((i % 7) + 1) << 40};
        assert_int_equal(ep_lexical_reserve(&x, 1, 2), ST_OK);
        ep_lexical_add(&x, keys, (const uint16_t[]){1, 1}, 2, 2);
    }
    for (uint64_t i = 0; i < N; i += 97) {
        ep_lexical_score(&x, &(const uint64_t){i + 1}, 1, s);
        for (uint64_t k = 0; k < N; k++) {
            assert_int_equal(s[k] > 0, k == i);
        }
    }
    ep_lexical_free(&x);
    base_free(s);
}

static int kmeans(const float *v, int n, int dim, int k, int *assign)
{
    float *w = base_alloc(ep_kmeans_floats(n, dim, k < n ? k : n) * sizeof *w + 64);
    int got = ep_kmeans(v, n, dim, k, 4, 3, assign, w);
    base_free(w);
    return got;
}

static void kmeans_finds_what_is_apart(void **state)
{
    enum { N = 60, D = 32 };
    float v[N * D], centre[3 * D];
    int assign[N], again[N];
    (void)state;
    for (int c = 0; c < 3; c++) {
        random_unit(centre + c * D, D);
    }
    for (int i = 0; i < N; i++) {
        for (int d = 0; d < D; d++) {
            v[i * D + d] = centre[i % 3 * D + d] + 0.05f * random_float();
        }
        assert_true(ep_unit(v + i * D, D));
    }
    assert_int_equal(kmeans(v, N, D, 3, assign), 3);
    for (int i = 0; i < N; i++) {
        assert_int_equal(assign[i], i % 3); /* clusters are numbered by first member */
    }
    assert_int_equal(kmeans(v, N, D, 3, again), 3);
    assert_memory_equal(assign, again, sizeof assign);
}

static void kmeans_of_degenerate_input(void **state)
{
    float same[5 * 4] = {0}, zero[3 * 4] = {0}, two[2 * 4] = {1, 0, 0, 0, 0, 1, 0, 0};
    int assign[5];
    (void)state;
    for (int i = 0; i < 5; i++) {
        same[i * 4] = 1;
    }
    assert_int_equal(kmeans(same, 5, 4, 2, assign), 1); /* all equal */
    assert_int_equal(assign[4], 0);
    (void)kmeans(zero, 3, 4, 2, assign);
    for (int i = 0; i < 3; i++) {
        assert_true(assign[i] == 0 || assign[i] == 1);
    }
    assert_int_equal(kmeans(two, 2, 4, 7, assign), 2); /* more clusters than vectors */
    assert_int_equal(kmeans(two, 1, 4, 2, assign), 1); /* one vector */
    assert_int_equal(ep_kmeans(two, 0, 4, 2, 1, 1, assign, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(coded_cosine_is_within_its_bound),
            cmocka_unit_test(the_largest_sum_fits), cmocka_unit_test(what_is_not_finite_is_refused),
            cmocka_unit_test(bm25_is_the_formula), cmocka_unit_test(many_words_are_found_again),
            cmocka_unit_test(kmeans_finds_what_is_apart), cmocka_unit_test(kmeans_of_degenerate_input)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
