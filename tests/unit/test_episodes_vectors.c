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

static double dot(const float *a, const float *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static void the_rotation_keeps_cosines(void **state)
{
    static const int dims[] = {1, 3, 96, 128, 384, 1000, EP_DIM_MAX};
    (void)state;
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        int dim = dims[k], wide = ep_rotated_dim(dim);
        float v[EP_DIM_MAX], q[EP_DIM_MAX], rv[EP_DIM_MAX], rq[EP_DIM_MAX];
        random_unit(v, dim);
        random_unit(q, dim);
        ep_rotate(v, dim, rv);
        ep_rotate(q, dim, rq);
        assert_true(wide >= dim && wide % EP_ROTATION_BLOCK == 0 && wide <= EP_DIM_MAX);
        assert_true(fabs(dot(rv, rv, wide) - 1) < 1e-5);
        assert_true(fabs(dot(rv, rq, wide) - dot(v, q, dim)) < 1e-5);
    }
    float spike[384] = {0}, turned[384];
    spike[7] = 1; /* after two rounds no component holds much of it */
    ep_rotate(spike, 384, turned);
    for (int i = 0; i < 384; i++) {
        assert_true(fabsf(turned[i]) < 0.3f);
    }
}

/* One coded vector against the float one. The cosine's error is at most the length of the coding error (Cauchy-Schwarz)
 * and the probe's rounding, 1 / 32766 sqrt(dim). */
static void check_coding(const ep_vectors *p, int64_t at, const float *v, const float *q, double longest)
{
    int dim = p->dim;
    float decoded[EP_DIM_MAX] = {0};
    double exact = dot(v, q, dim), squares = 0;
    ep_probe *probe = base_zalloc(1, sizeof *probe);
    float *scanned = base_alloc((size_t)p->count * sizeof *scanned);
    ep_probe_set(probe, q, dim);
    ep_vectors_accumulate(p, at, 1, decoded);
    for (int i = 0; i < dim; i++) {
        squares += ((double)decoded[i] - (double)v[i]) * ((double)decoded[i] - (double)v[i]);
    }
    assert_true(sqrt(squares) < longest);
    double rounding = sqrt((double)dim) / 32766 + 1e-5;
    assert_true(fabs((double)ep_vectors_dot(p, at, probe) - dot(decoded, q, dim)) <= rounding);
    assert_true(fabs((double)ep_vectors_dot(p, at, probe) - exact) <= sqrt(squares) + rounding);
    ep_vectors_scan(p, probe, scanned);
    assert_true(
            fabs((double)scanned[at] - exact) <= 0.14); /* sqrt(0.0095) for 16 levels, and the 8-bit probe */
    size_t row = (size_t)at * ((size_t)dim / 2);
    if (__builtin_cpu_supports("avx2")) {
        int32_t one[64], other[64];
        ep_scan_scalar(p->levels, (int)p->count, probe->coarse, dim, one);
        ep_scan_avx2(p->levels, (int)p->count, probe->coarse, dim, other);
        assert_memory_equal(one, other, (size_t)p->count * sizeof *one);
        assert_int_equal(ep_fine_scalar(p->levels + row, p->rests + row, probe->fine, dim),
                ep_fine_avx2(p->levels + row, p->rests + row, probe->fine, dim));
    }
    base_free(scanned);
    base_free(probe);
}

static void coded_cosines_are_within_their_bounds(void **state)
{
    static const int dims[] = {1, 3, 96, 384, 1000, EP_DIM_MAX};
    (void)state;
    for (size_t k = 0; k < sizeof dims / sizeof *dims; k++) {
        int dim = dims[k], wide = ep_rotated_dim(dim);
        ep_vectors p = {.dim = wide};
        float v[EP_DIM_MAX], q[EP_DIM_MAX], rv[EP_DIM_MAX], rq[EP_DIM_MAX];
        for (int round = 0; round < 20; round++) {
            random_unit(v, dim);
            random_unit(q, dim);
            ep_rotate(v, dim, rv);
            ep_rotate(round == 0 ? v : q, dim, rq);
            assert_int_equal(ep_vectors_reserve(&p, 1), ST_OK);
            check_coding(&p, ep_vectors_add(&p, rv), rv, rq, 0.03);
        }
        memset(rv, 0, sizeof rv);
        assert_int_equal(ep_vectors_reserve(&p, 1), ST_OK);
        check_coding(&p, ep_vectors_add(&p, rv), rv, rq, 1e-9); /* the zero vector is exact */
        ep_vectors_free(&p);
    }
}

/* Mean square error of the cosine over random vectors: what the levels are worth. 16 levels leave 0.0095 of a normal
 * distribution's variance (Max 1960), so a cosine in 384 dimensions is off by sqrt(0.0095 / 384) = 0.005. */
static void coding_errors_are_as_small_as_they_should_be(void **state)
{
    enum { N = 500, D = 384 };
    ep_vectors p = {.dim = D};
    float v[N][D], q[D], scanned[N];
    double coarse = 0, fine = 0;
    ep_probe *probe = base_zalloc(1, sizeof *probe);
    (void)state;
    assert_int_equal(ep_vectors_reserve(&p, N), ST_OK);
    for (int i = 0; i < N; i++) {
        random_unit(q, D);
        ep_rotate(q, D, v[i]);
        (void)ep_vectors_add(&p, v[i]);
    }
    random_unit(q, D);
    ep_probe_set(probe, q, D);
    ep_vectors_scan(&p, probe, scanned);
    for (int i = 0; i < N; i++) {
        double exact = dot(v[i], q, D);
        coarse += ((double)scanned[i] - exact) * ((double)scanned[i] - exact) / N;
        fine += ((double)ep_vectors_dot(&p, i, probe) - exact) *
                ((double)ep_vectors_dot(&p, i, probe) - exact) / N;
    }
    assert_true(sqrt(coarse) < 1.15 * sqrt(0.0095 / D) && sqrt(coarse) > 0.8 * sqrt(0.0095 / D));
    assert_true(sqrt(fine) < 0.0005);
    base_free(probe);
    ep_vectors_free(&p);
}

static void the_largest_sum_fits(void **state)
{
    float v[EP_DIM_MAX];
    ep_vectors p = {.dim = EP_DIM_MAX};
    ep_probe *probe = base_zalloc(1, sizeof *probe);
    (void)state;
    assert_int_equal(ep_vectors_reserve(&p, 1), ST_OK);
    for (int i = 0; i < EP_DIM_MAX; i++) {
        v[i] = 1.0f / 64; /* the whole length along the query */
    }
    (void)ep_vectors_add(&p, v);
    ep_probe_set(probe, v, EP_DIM_MAX);
    assert_true(fabs((double)ep_vectors_dot(&p, 0, probe) - 1) < 1e-3);
    for (int i = 0; i < EP_DIM_MAX / 2; i++) {
        assert_int_equal(p.levels[i], p.levels[0]);
    }
    int32_t sum = ep_fine_scalar(p.levels, p.rests, probe->fine, EP_DIM_MAX);
    assert_int_equal(sum, (int64_t)(sum / EP_DIM_MAX) * EP_DIM_MAX); /* equal terms, none wrapped round */
    base_free(probe);
    ep_vectors_free(&p);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_rotation_keeps_cosines),
            cmocka_unit_test(coded_cosines_are_within_their_bounds),
            cmocka_unit_test(coding_errors_are_as_small_as_they_should_be),
            cmocka_unit_test(the_largest_sum_fits), cmocka_unit_test(what_is_not_finite_is_refused),
            cmocka_unit_test(bm25_is_the_formula), cmocka_unit_test(many_words_are_found_again),
            cmocka_unit_test(kmeans_finds_what_is_apart), cmocka_unit_test(kmeans_of_degenerate_input)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
