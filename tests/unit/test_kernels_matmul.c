/*
 * Matrix products against krn_matmul_exact, for every stored type and odd shapes, with a bound derived from the step of
 * the 8-bit activations; and the promise that a row's bits depend on nothing but the row.
 */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const krn_type all_types[] = {KRN_F32, KRN_F16, KRN_BF16, KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1,
        KRN_Q8_0, KRN_Q2_K, KRN_Q3_K, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS};
enum { TYPES = sizeof all_types / sizeof all_types[0], N_MAX = 33 };

/* xorshift64* (Vigna 2016): the same numbers everywhere */
static uint64_t seed = 88172645463325252u;

static uint32_t random_u32(void)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)(seed * 0x2545f4914f6cdd1du >> 32);
}

static float random_between(float low, float high)
{
    return low + (high - low) * (float)(random_u32() >> 8) / 16777216.0f;
}

static void put_f16(uint8_t *at, float value)
{
    uint16_t h = base_f32_to_f16(value);
    memcpy(at, &h, sizeof h);
}

/* Where a block keeps its fp16 scales; -1 for none. */
static void scale_offsets(krn_type type, int at[2])
{
    at[0] = 0;
    at[1] = -1;
    switch (type) {
    case KRN_Q4_1:
    case KRN_Q5_1:
    case KRN_Q4_K:
    case KRN_Q5_K:
        at[1] = 2;
        break;
    case KRN_Q2_K:
        at[0] = 80;
        at[1] = 82;
        break;
    case KRN_Q3_K:
        at[0] = 108;
        break;
    case KRN_Q6_K:
        at[0] = 208;
        break;
    default:
        break;
    }
}

/* Random codes, scales of the size that models have. */
static uint8_t *random_weights(krn_type type, int64_t rows, int64_t cols)
{
    int64_t blocks = rows * cols / krn_type_block_elements(type);
    int bytes = krn_type_block_bytes(type);
    uint8_t *w = base_alloc((size_t)(blocks * bytes));
    assert_non_null(w);
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t *block = w + b * bytes;
        float value = random_between(-0.1f, 0.1f);
        uint16_t bf16 = base_f32_to_bf16(value);
        int at[2];
        for (int i = 0; i < bytes; i++) {
            block[i] = (uint8_t)random_u32();
        }
        scale_offsets(type, at);
        if (type == KRN_F32) {
            memcpy(block, &value, sizeof value);
        } else if (type == KRN_BF16) {
            memcpy(block, &bf16, sizeof bf16);
        } else {
            put_f16(block + at[0], value);
            if (at[1] >= 0) {
                put_f16(block + at[1], random_between(-0.2f, 0.2f));
            }
        }
    }
    return w;
}

/* About normal, with an outlier of a hundred times the rest, a row of zeros and blocks too small to code. */
static float *random_rows(int64_t n, int64_t cols)
{
    float *x = base_alloc((size_t)(n * cols) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n * cols; i++) {
        x[i] = random_between(-1, 1) + random_between(-1, 1) + random_between(-1, 1);
    }
    for (int64_t t = 0; t < n; t++) {
        x[t * cols + (int64_t)random_u32() % cols] *= 100.0f;
        for (int64_t i = 0; i < cols && t % 5 == 3; i++) {
            x[t * cols + i] = i < 32 ? 1e-35f : x[t * cols + i];
        }
    }
    memset(x + (n - 1) * cols, 0, (size_t)cols * sizeof *x);
    return x;
}

static bool reads_codes(krn_type type)
{
    return type == KRN_Q4_0 || type == KRN_Q4_1 || type == KRN_Q5_0 || type == KRN_Q5_1 || type == KRN_Q8_0 ||
            type == KRN_Q4_K || type == KRN_Q5_K || type == KRN_Q6_K;
}

/* Greatest |value of code 0| in a row: the products of the two terms of an affine type may be larger than their sum. */
static double offset_of(krn_type type, const uint8_t *row, int64_t cols)
{
    double most = 0.0;
    bool affine = type == KRN_Q4_1 || type == KRN_Q5_1 || type == KRN_Q4_K || type == KRN_Q5_K;
    for (int64_t i = 0; affine && i < cols; i += krn_type_block_elements(type)) {
        uint16_t h;
        memcpy(&h, row + i / krn_type_block_elements(type) * krn_type_block_bytes(type) + 2, sizeof h);
        double offset = fabs((double)base_f16_to_f32(h)) * (krn_type_block_elements(type) == 256 ? 63 : 1);
        most = offset > most ? offset : most;
    }
    return most;
}

/*
 * The activations a product with 8-bit codes stands for: code * greatest / 127, 32 at a time, codes by rounding. Where
 * x * 127 / greatest is so close to a tie that a rounding of the quotient may tip it, `unsure` holds one step.
 */
static void quantise_row(const float *x, int64_t cols, float *coded, double *unsure)
{
    for (int64_t first = 0; first < cols; first += 32) {
        double greatest = 0.0;
        for (int64_t i = first; i < first + 32; i++) {
            greatest = fmax(greatest, fabs((double)x[i]));
        }
        for (int64_t i = first; i < first + 32; i++) {
            double steps = greatest < 1e-30 ? 0.0 : (double)x[i] / greatest * 127.0;
            double tie = fabs(fabs(steps - trunc(steps)) - 0.5);
            coded[i] = (float)(rint(steps) * greatest / 127.0);
            unsure[i] = tie < 127 * 0x1p-22 ? greatest / 127.0 : 0.0;
        }
    }
}

/* Float32 error of a product with codes: at most 4 roundings a block of 32, 2^-24 each of the sum of magnitudes. */
static double rounding_bound(const float *w, const float *x, int64_t cols, double offset)
{
    double magnitudes = 1e-30;
    for (int64_t i = 0; i < cols; i++) {
        magnitudes += (fabs((double)w[i]) + 2.0 * offset) * fabs((double)x[i]);
    }
    return magnitudes * (double)(4 * (cols / 32) + 4) * 0x1p-24;
}

/* And of a product that adds element by element. */
static double real_bound(const float *w, const float *x, int64_t cols)
{
    double magnitudes = 1e-30;
    for (int64_t i = 0; i < cols; i++) {
        magnitudes += fabs((double)w[i] * (double)x[i]);
    }
    return magnitudes * (double)(cols + 1) * 0x1p-24;
}

/*
 * What coding the activations may cost: half a step, greatest / 127 / 2, for each element (and 127 * 2^-23 of a step for
 * the roundings of the quotient and the scale); a block below 1e-30 counts as zero.
 */
static double step_bound(const float *w, const float *x, int64_t cols)
{
    double steps = 0.0;
    for (int64_t first = 0; first < cols; first += 32) {
        double greatest = 0.0;
        for (int64_t i = first; i < first + 32; i++) {
            greatest = fmax(greatest, fabs((double)x[i]));
        }
        for (int64_t i = first; i < first + 32; i++) {
            steps += fabs((double)w[i]) * (greatest < 1e-30 ? greatest : greatest / 127.0 * 0.5001);
        }
    }
    return steps;
}

static void product(
        krn_pool *pool, const krn_matrix *m, const float *x, int64_t n, float *y, int64_t y_stride)
{
    krn_rows *r = NULL;
    assert_int_equal(krn_rows_open(n, krn_matrix_cols(m), &r, NULL), ST_OK);
    krn_rows_keep(r, krn_matrix_reads(m));
    krn_rows_load(pool, r, x, krn_matrix_cols(m), n, krn_matrix_cols(m));
    krn_matmul(pool, m, r, y, y_stride);
    krn_rows_close(r);
}

typedef struct problem {
    krn_type type;
    int64_t rows, cols, n, row_bytes;
    uint8_t *w;
    float *x, *coded; /* coded: what the activations are worth after coding; x where they are not coded */
    double *unsure;
    float *got, *exact, *exact_coded;
} problem;

static void problem_make(problem *p, krn_type type, int64_t rows, int64_t cols, int64_t n)
{
    *p = (problem){.type = type, .rows = rows, .cols = cols, .n = n};
    p->row_bytes = cols / krn_type_block_elements(type) * krn_type_block_bytes(type);
    p->w = random_weights(type, rows, cols);
    p->x = random_rows(n, cols);
    p->coded = base_alloc((size_t)(n * cols) * sizeof *p->coded);
    p->unsure = base_zalloc((size_t)(n * cols), sizeof *p->unsure);
    p->got = base_zalloc((size_t)(n * rows), sizeof *p->got);
    p->exact = base_zalloc((size_t)(n * rows), sizeof *p->exact);
    p->exact_coded = base_zalloc((size_t)(n * rows), sizeof *p->exact_coded);
    memcpy(p->coded, p->x, (size_t)(n * cols) * sizeof *p->coded);
    for (int64_t t = 0; t < n && reads_codes(type); t++) {
        quantise_row(p->x + t * cols, cols, p->coded + t * cols, p->unsure + t * cols);
    }
    krn_matmul_exact(type, p->w, rows, cols, p->x, n, p->exact);
    krn_matmul_exact(type, p->w, rows, cols, p->coded, n, p->exact_coded);
}

static void problem_free(problem *p)
{
    base_free(p->w);
    base_free(p->x);
    base_free(p->coded);
    base_free(p->unsure);
    base_free(p->got);
    base_free(p->exact);
    base_free(p->exact_coded);
}

/* Against the exact product of the coded activations (float rounding alone) and of the given ones (and coding). */
static void check_output(const problem *p, int64_t t, int64_t o, const float *w)
{
    const float *x = p->x + t * p->cols;
    const float *coded = p->coded + t * p->cols;
    double rounding = real_bound(w, x, p->cols);
    double step = 0.0;
    if (reads_codes(p->type)) {
        rounding = rounding_bound(w, coded, p->cols, offset_of(p->type, p->w + o * p->row_bytes, p->cols));
        for (int64_t i = 0; i < p->cols; i++) {
            rounding += fabs((double)w[i]) * p->unsure[t * p->cols + i];
        }
        step = step_bound(w, x, p->cols);
    }
    double got = (double)p->got[t * p->rows + o];
    double off_coded = fabs(got - (double)p->exact_coded[t * p->rows + o]);
    double off = fabs(got - (double)p->exact[t * p->rows + o]);
    if (!(off_coded <= rounding && off <= rounding + step)) {
        fail_msg("%s %s [%lld][%lld], row %lld of %lld, output %lld: %g, %g from its codes' product (bound "
                 "%g), %g from "
                 "the exact one (bound %g)",
                krn_isa_name(krn_isa_current()), krn_type_name(p->type), (long long)p->rows,
                (long long)p->cols, (long long)t, (long long)p->n, (long long)o, got, off_coded, rounding,
                off, rounding + step);
    }
}

static void check_against_exact(krn_type type, int64_t rows, int64_t cols, int64_t n)
{
    problem p;
    krn_matrix *m = NULL;
    float *w = base_zalloc((size_t)cols, sizeof *w);
    problem_make(&p, type, rows, cols, n);
    assert_int_equal(krn_matrix_open(NULL, type, rows, cols, p.w, &m, NULL), ST_OK);
    product(NULL, m, p.x, n, p.got, rows);
    for (int64_t o = 0; o < rows; o++) {
        krn_dequantize(type, p.w + o * p.row_bytes, w, cols);
        for (int64_t t = 0; t < n; t++) {
            check_output(&p, t, o, w);
        }
    }
    krn_matrix_close(m);
    problem_free(&p);
    base_free(w);
}

static void products_are_within_the_activation_step(void **state)
{
    (void)state;
    static const int64_t row_counts[] = {1, 15, 16, 17, 40};
    static const int64_t n_counts[] = {1, 2, 7, N_MAX};
    for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        for (int i = 0; i < TYPES; i++) {
            int block = krn_type_block_elements(all_types[i]);
            for (int k = 0; k < 5; k++) {
                int64_t few = block == 1 ? 1 + k : block;
                int64_t more = block == 1 ? 333 : block == 32 ? 576 : 768;
                check_against_exact(all_types[i], row_counts[k], few, n_counts[k % 4]);
                check_against_exact(all_types[i], row_counts[k], more, n_counts[(k + 1) % 4]);
            }
        }
    }
    krn_isa_set(krn_isa_best());
}

/* All ways to compute the first n of N_MAX rows must give the bits of the scalar run of all rows by one thread. */
static void check_bits(krn_type type, int64_t rows, int64_t cols, krn_pool *pools[3])
{
    krn_matrix *m = NULL;
    int64_t stride = rows + 3;
    uint8_t *w = random_weights(type, rows, cols);
    float *x = random_rows(N_MAX, cols);
    float *want = base_zalloc((size_t)(N_MAX * stride), sizeof *want);
    float *got = base_zalloc((size_t)(N_MAX * stride), sizeof *got);
    krn_isa_set(KRN_ISA_SCALAR);
    assert_int_equal(krn_matrix_open(pools[1], type, rows, cols, w, &m, NULL), ST_OK);
    product(NULL, m, x, N_MAX, want, stride);
    for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        for (int64_t n = 1; n <= N_MAX; n += n < 14 ? 1 : 19) {
            memset(got, 0, (size_t)(N_MAX * stride) * sizeof *got);
            product(pools[n % 3], m, x, n, got, stride);
            if (memcmp(got, want, (size_t)(n * stride) * sizeof *got) != 0) {
                fail_msg("%s %s [%lld][%lld]: %lld rows differ from %d rows in scalar code",
                        krn_isa_name(isa), krn_type_name(type), (long long)rows, (long long)cols,
                        (long long)n, N_MAX);
            }
        }
        /* and a row alone, not the first */
        product(pools[1], m, x + 5 * cols, 1, got, stride);
        assert_memory_equal(got, want + 5 * stride, (size_t)stride * sizeof *got);
    }
    krn_matrix_close(m);
    base_free(w);
    base_free(x);
    base_free(want);
    base_free(got);
}

static void bits_depend_on_the_row_alone(void **state)
{
    (void)state;
    krn_pool *pools[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(krn_pool_open(i + 1, &pools[i], NULL), ST_OK);
    }
    for (int i = 0; i < TYPES; i++) {
        int block = krn_type_block_elements(all_types[i]);
        check_bits(all_types[i], 83, block == 256 ? 512 : 320, pools);
        check_bits(all_types[i], 16, block == 256 ? 256 : 32, pools);
    }
    check_bits(KRN_F32, 200, 77, pools);
    for (int i = 0; i < 3; i++) {
        krn_pool_close(pools[i]);
    }
}

/* All codes and all activations at their ends: nothing overflows on the way to 32 bits. */
static void extreme_codes_do_not_overflow(void **state)
{
    (void)state;
    enum { ROWS = 16, COLS = 256 };
    static const uint8_t bytes[3] = {0x00, 0x80, 0xff};
    float x[2 * COLS];
    float of[KRN_ISA_COUNT][2 * ROWS];
    for (int i = 0; i < 2 * COLS; i++) {
        x[i] = i < COLS ? 127.0f : -127.0f;
    }
    for (int i = 0; i < 3 * TYPES; i++) {
        krn_type type = all_types[i / 3];
        krn_matrix *m = NULL;
        int at[2];
        if (!reads_codes(type)) {
            continue;
        }
        uint8_t *w = random_weights(type, ROWS, COLS);
        scale_offsets(type, at);
        for (int64_t b = 0; b < ROWS * COLS / krn_type_block_elements(type); b++) {
            uint8_t *block = w + b * krn_type_block_bytes(type);
            memset(block, bytes[i % 3], (size_t)krn_type_block_bytes(type));
            put_f16(block + at[0], 0.5f);
            if (at[1] >= 0) {
                put_f16(block + at[1], 0.25f);
            }
        }
        assert_int_equal(krn_matrix_open(NULL, type, ROWS, COLS, w, &m, NULL), ST_OK);
        for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
            krn_isa_set(isa);
            product(NULL, m, x, 2, of[isa], ROWS);
            assert_memory_equal(of[isa], of[0], sizeof of[0]);
        }
        krn_matrix_close(m);
        base_free(w);
    }
}

/* A token that is not a number must show, not turn into a plausible one; its neighbours keep their bits. */
static void not_a_number_shows_in_its_row_only(void **state)
{
    (void)state;
    enum { ROWS = 20, COLS = 64 };
    krn_matrix *m = NULL;
    uint8_t *w = random_weights(KRN_Q4_1, ROWS, COLS);
    float *x = random_rows(3, COLS);
    float clean[3 * ROWS];
    float y[3 * ROWS];
    assert_int_equal(krn_matrix_open(NULL, KRN_Q4_1, ROWS, COLS, w, &m, NULL), ST_OK);
    for (krn_isa isa = 0; isa <= krn_isa_best(); isa++) {
        krn_isa_set(isa);
        x[COLS + 40] = 0.5f;
        product(NULL, m, x, 3, clean, ROWS);
        for (int k = 0; k < 2; k++) {
            x[COLS + 40] = k == 0 ? NAN : INFINITY;
            product(NULL, m, x, 3, y, ROWS);
            for (int o = 0; o < ROWS; o++) {
                assert_true(isnan(y[ROWS + o]));
            }
            assert_memory_equal(y, clean, ROWS * sizeof *y);
            assert_memory_equal(y + 2 * ROWS, clean + 2 * ROWS, ROWS * sizeof *y);
        }
    }
    krn_matrix_close(m);
    base_free(w);
    base_free(x);
}

static void bad_sizes_are_refused(void **state)
{
    (void)state;
    krn_matrix *m = NULL;
    krn_rows *r = NULL;
    err e;
    static const uint8_t bytes[256] = {0};
    assert_int_equal(krn_matrix_open(NULL, KRN_Q4_1, 1, 33, bytes, &m, &e), ST_ERR_FORMAT);
    assert_int_equal(krn_matrix_open(NULL, KRN_Q4_K, 1, 32, bytes, &m, &e), ST_ERR_FORMAT);
    assert_int_equal(krn_matrix_open(NULL, KRN_Q4_1, 0, 32, bytes, &m, &e), ST_ERR_ARG);
    assert_int_equal(krn_matrix_open(NULL, KRN_Q4_1, 1, -32, bytes, &m, &e), ST_ERR_ARG);
    assert_int_equal(krn_matrix_open(NULL, (krn_type)9, 1, 32, bytes, &m, &e), ST_ERR_UNSUPPORTED);
    assert_int_equal(krn_rows_open(0, 32, &r, &e), ST_ERR_ARG);
    assert_int_equal(krn_rows_open(INT64_MAX, 32, &r, &e), ST_ERR_LIMIT);
    assert_null(m);
    assert_null(r);
}

static void memory_failures_leave_nothing_behind(void **state)
{
    (void)state;
    krn_matrix *m = NULL;
    krn_rows *r = NULL;
    err e;
    static const uint8_t bytes[20] = {0};
    long refused = 0;
    status s = ST_ERR_MEMORY;
    for (; s == ST_ERR_MEMORY; refused++) {
        base_fail_allocation(refused);
        s = krn_matrix_open(NULL, KRN_Q4_1, 1, 32, bytes, &m, &e);
        assert_true((s == ST_OK) == (m != NULL));
    }
    assert_int_equal(s, ST_OK);
    assert_true(refused >= 3);
    s = ST_ERR_MEMORY;
    for (refused = 0; s == ST_ERR_MEMORY; refused++) {
        base_fail_allocation(refused);
        s = krn_rows_open(2, 32, &r, &e);
        assert_true((s == ST_OK) == (r != NULL));
    }
    assert_int_equal(s, ST_OK);
    assert_true(refused >= 4);
    base_fail_allocation(-1);
    krn_matrix_close(m);
    krn_rows_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(products_are_within_the_activation_step),
            cmocka_unit_test(bits_depend_on_the_row_alone),
            cmocka_unit_test(extreme_codes_do_not_overflow),
            cmocka_unit_test(not_a_number_shows_in_its_row_only),
            cmocka_unit_test(bad_sizes_are_refused),
            cmocka_unit_test(memory_failures_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
