/* The device's operations against their CPU twins, on random, odd and outlier-bearing shapes; and each against itself: a
 * row's bits do not depend on the rows beside it. Skipped where there is no CUDA device. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"

enum { ROWS_MAX = 130, POISON = 0xff };

static cuda_device *device;
static uint64_t seed = 1;

static float uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(seed >> 40) / 8388608.0f - 1.0f;
}

static float *random_floats(size_t n, bool outliers)
{
    float *x = base_alloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        float u = uniform();
        x[i] = outliers && i % 97 == 5 ? 3000.0f * u : outliers && i % 13 == 2 ? 1e-6f * u : u;
    }
    return x;
}

static void *to_device(const void *data, size_t bytes)
{
    err e = {0};
    void *p = NULL;
    assert_int_equal(cuda_take(device, bytes, "a test", &p, &e), ST_OK);
    assert_int_equal(cuda_copy_in(device, p, data, bytes, &e), ST_OK);
    return p;
}

/* Poisoned, so that what is not written is seen. */
static void *room(size_t bytes)
{
    uint8_t *poison = base_alloc(bytes);
    assert_non_null(poison);
    memset(poison, POISON, bytes);
    void *p = to_device(poison, bytes);
    base_free(poison);
    return p;
}

static void from_device(const void *p, void *out, size_t bytes)
{
    err e = {0};
    void *pinned = NULL;
    assert_int_equal(cuda_take_pinned(device, bytes, &pinned, &e), ST_OK);
    assert_int_equal(cuda_copy_out_pinned(device, pinned, p, bytes, &e), ST_OK);
    if (cuda_device_wait(device, &e) != ST_OK) {
        fail_msg("%s", e.text);
    }
    memcpy(out, pinned, bytes);
    cuda_release_pinned(device, pinned);
}

/* ---- products ---- */

/* Byte offsets of a block's fp16 numbers, -1 for none; what is random elsewhere is any code. */
typedef struct weight_type {
    krn_type type;
    int half_at[2];
} weight_type;
static const weight_type weight_types[] = {{KRN_F32, {-1, -1}}, {KRN_F16, {-1, -1}}, {KRN_BF16, {-1, -1}},
        {KRN_Q4_0, {0, -1}}, {KRN_Q4_1, {0, 2}}, {KRN_Q5_0, {0, -1}}, {KRN_Q5_1, {0, 2}}, {KRN_Q8_0, {0, -1}},
        {KRN_Q4_K, {0, 2}}, {KRN_Q5_K, {0, 2}}, {KRN_Q6_K, {208, -1}}, {KRN_IQ4_NL, {0, -1}}};

static uint8_t *random_weights(const weight_type *w, int64_t rows, int64_t cols)
{
    int64_t elements = krn_type_block_elements(w->type), bytes = krn_type_block_bytes(w->type);
    int64_t blocks = rows * cols / elements;
    uint8_t *data = base_alloc((size_t)(blocks * bytes));
    assert_non_null(data);
    for (int64_t i = 0; i < blocks; i++) {
        uint8_t *block = data + i * bytes;
        float x = uniform() * (i % 31 == 3 ? 0.9f : 0.05f);
        uint16_t half = w->type == KRN_BF16 ? base_f32_to_bf16(x) : base_f32_to_f16(x);
        if (elements == 1) {
            memcpy(block, w->type == KRN_F32 ? (void *)&x : (void *)&half, (size_t)bytes);
            continue;
        }
        for (int64_t j = 0; j < bytes; j++) {
            block[j] = (uint8_t)((uniform() + 1.0f) * 128.0f);
        }
        for (int j = 0; j < 2; j++) {
            half = base_f32_to_f16(uniform() * 0.01f);
            if (w->half_at[j] >= 0) {
                memcpy(block + w->half_at[j], &half, sizeof half);
            }
        }
    }
    return data;
}

typedef struct product_case {
    const weight_type *w;
    int64_t rows, cols;
    uint8_t *weights;
    float *x, *bias, *exact, *magnitude; /* magnitude: sum |w| |x| of each result */
} product_case;

static product_case make_case(const weight_type *w, int64_t rows, int64_t cols)
{
    product_case c = {.w = w, .rows = rows, .cols = cols, .weights = random_weights(w, rows, cols)};
    size_t n = (size_t)(rows * cols);
    c.x = random_floats((size_t)(ROWS_MAX * cols), true);
    c.bias = random_floats((size_t)rows, false);
    c.exact = base_alloc((size_t)(ROWS_MAX * rows) * sizeof *c.exact);
    c.magnitude = base_alloc((size_t)(ROWS_MAX * rows) * sizeof *c.magnitude);
    float *plain = base_alloc(n * sizeof *plain), *x = base_alloc((size_t)(ROWS_MAX * cols) * sizeof *x);
    assert_true(c.exact != NULL && c.magnitude != NULL && plain != NULL && x != NULL);
    krn_matmul_exact(w->type, c.weights, rows, cols, c.x, ROWS_MAX, c.exact);
    krn_dequantize(w->type, c.weights, plain, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        plain[i] = fabsf(plain[i]);
    }
    for (size_t i = 0; i < (size_t)(ROWS_MAX * cols); i++) {
        x[i] = fabsf(c.x[i]);
    }
    krn_matmul_exact(KRN_F32, plain, rows, cols, x, ROWS_MAX, c.magnitude);
    base_free(plain);
    base_free(x);
    return c;
}

static void free_case(product_case *c)
{
    base_free(c->weights);
    base_free(c->x);
    base_free(c->bias);
    base_free(c->exact);
    base_free(c->magnitude);
}

/* Weights that are kept as they are: only float sums differ. Codes of Q6_K times their scales may be rounded to halves, of
 * the other types the weights are. */
static double bound_of(krn_type type)
{
    bool kept = type == KRN_Q4_0 || type == KRN_Q4_1 || type == KRN_Q8_0 || type == KRN_F16 ||
            type == KRN_BF16 || type == KRN_Q4_K || type == KRN_Q5_K;
    return kept ? 4e-6 : 4e-6 + 1.0 / 2048.0;
}

static void check_product(const product_case *c, cuda_matrix *m, cuda_rows *rows, int n, const float *all)
{
    err e = {0};
    size_t count = (size_t)n * (size_t)c->rows;
    float *x = to_device(c->x, (size_t)(n * c->cols) * sizeof *x), *y = room(count * sizeof *y);
    float *bias = to_device(c->bias, (size_t)c->rows * sizeof *bias);
    float *got = base_alloc(count * sizeof *got), *twice = base_alloc(count * sizeof *twice);
    cuda_product p = {.matrix = m, .bias = bias, .y = y};
    assert_int_equal(cuda_rows_load(device, rows, x, n, c->cols, &e), ST_OK);
    assert_int_equal(cuda_matmul(device, rows, &p, 1, &e), ST_OK);
    from_device(y, got, count * sizeof *got);
    p.add = true;
    assert_int_equal(cuda_matmul(device, rows, &p, 1, &e), ST_OK);
    from_device(y, twice, count * sizeof *twice);
    for (size_t i = 0; i < count; i++) {
        double expected = (double)c->exact[i] + (double)c->bias[i % (size_t)c->rows];
        double allowed = bound_of(c->w->type) * ((double)c->magnitude[i] + 1.0);
        if (!(fabs((double)got[i] - expected) <= allowed)) {
            fail_msg("%s %lld x %lld, %d rows: result %zu is %.9g, expected %.9g within %.3g",
                    krn_type_name(c->w->type), (long long)c->rows, (long long)c->cols, n, i, (double)got[i],
                    expected, allowed);
        }
        assert_true(twice[i] == got[i] + got[i]);
    }
    if (all != NULL) { /* bits of the same rows among ROWS_MAX */
        assert_memory_equal(got, all, count * sizeof *got);
    }
    base_free(got);
    base_free(twice);
    cuda_release(device, x);
    cuda_release(device, y);
    cuda_release(device, bias);
}

static float *product_of_all(const product_case *c, cuda_matrix *m, cuda_rows *rows)
{
    err e = {0};
    size_t count = (size_t)(ROWS_MAX * c->rows);
    float *x = to_device(c->x, (size_t)(ROWS_MAX * c->cols) * sizeof *x), *y = room(count * sizeof *y);
    float *bias = to_device(c->bias, (size_t)c->rows * sizeof *bias), *got = base_alloc(count * sizeof *got);
    cuda_product p = {.matrix = m, .bias = bias, .y = y};
    assert_int_equal(cuda_rows_load(device, rows, x, ROWS_MAX, c->cols, &e), ST_OK);
    assert_int_equal(cuda_matmul(device, rows, &p, 1, &e), ST_OK);
    from_device(y, got, count * sizeof *got);
    cuda_release(device, x);
    cuda_release(device, y);
    cuda_release(device, bias);
    return got;
}

static void products(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {
            {16, 256}, {1, 768}, {33, 256}, {200, 1536}, {576, 576}, {17, 32}, {40, 96}};
    static const int counts[] = {1, 3, 8, 9, 17, 32, 33, 64, 65, ROWS_MAX};
    for (size_t t = 0; t < sizeof weight_types / sizeof *weight_types; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            err e = {0};
            cuda_matrix *m = NULL;
            cuda_rows *rows = NULL;
            const weight_type *w = &weight_types[t];
            if (shapes[s][1] % krn_type_block_elements(w->type) != 0) {
                continue;
            }
            product_case c = make_case(w, shapes[s][0], shapes[s][1]);
            if (cuda_matrix_open(device, NULL, w->type, c.rows, c.cols, c.weights, &m, &e) != ST_OK ||
                    cuda_rows_open(device, ROWS_MAX, c.cols + 32, &rows, &e) != ST_OK) {
                fail_msg("%s", e.text);
            }
            float *all = product_of_all(&c, m, rows);
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                check_product(&c, m, rows, counts[i], all);
            }
            base_free(all);
            cuda_matrix_close(device, m);
            cuda_rows_close(device, rows);
            free_case(&c);
        }
    }
}

/* Three matrices of two kinds in one call, as q, k and v of some files are. */
static void products_share_a_launch(void **state)
{
    (void)state;
    err e = {0};
    enum { COLS = 256, N = 40 };
    static const int64_t rows_of[3] = {130, 16, 50};
    const weight_type *types[3] = {&weight_types[4], &weight_types[7], &weight_types[4]};
    product_case c[3];
    cuda_matrix *m[3] = {0};
    cuda_rows *rows = NULL;
    cuda_product p[3];
    assert_int_equal(cuda_rows_open(device, ROWS_MAX, COLS, &rows, &e), ST_OK);
    for (int i = 0; i < 3; i++) {
        c[i] = make_case(types[i], rows_of[i], COLS);
        assert_int_equal(
                cuda_matrix_open(device, NULL, types[i]->type, c[i].rows, COLS, c[i].weights, &m[i], &e),
                ST_OK);
        p[i] = (cuda_product){.matrix = m[i], .y = room((size_t)(N * c[i].rows) * sizeof(float))};
    }
    for (int n = 1; n <= N; n += N - 1) {
        float *x = to_device(c[0].x, (size_t)(n * COLS) * sizeof *x);
        assert_int_equal(cuda_rows_load(device, rows, x, n, COLS, &e), ST_OK);
        assert_int_equal(cuda_matmul(device, rows, p, 3, &e), ST_OK);
        for (int i = 0; i < 3; i++) {
            size_t count = (size_t)(n * c[i].rows);
            float *got = base_alloc(count * sizeof *got), *exact = base_alloc(count * sizeof *exact);
            from_device(p[i].y, got, count * sizeof *got);
            krn_matmul_exact(types[i]->type, c[i].weights, c[i].rows, COLS, c[0].x, n, exact);
            for (size_t j = 0; j < count; j++) {
                assert_true(fabs((double)got[j] - (double)exact[j]) <= 0.02 + 1e-4 * fabs((double)exact[j]));
            }
            base_free(got);
            base_free(exact);
        }
        cuda_release(device, x);
    }
    for (int i = 0; i < 3; i++) {
        cuda_release(device, p[i].y);
        cuda_matrix_close(device, m[i]);
        free_case(&c[i]);
    }
    cuda_rows_close(device, rows);
}

/* ---- rows ---- */

static void near(const float *got, const float *expected, size_t n, double bound, const char *what)
{
    for (size_t i = 0; i < n; i++) {
        if (!(fabs((double)got[i] - (double)expected[i]) <= bound * (1.0 + fabs((double)expected[i])))) {
            fail_msg("%s: number %zu is %.9g, expected %.9g", what, i, (double)got[i], (double)expected[i]);
        }
    }
}

/* What cuda_rows_load_* made of rows, read back by a product with the identity. */
static void read_back(cuda_rows *rows, int n, int64_t cols, float *out)
{
    err e = {0};
    uint16_t *identity = base_zalloc((size_t)(cols * cols), sizeof *identity);
    cuda_matrix *m = NULL;
    assert_non_null(identity);
    for (int64_t i = 0; i < cols; i++) {
        identity[i * cols + i] = 0x3c00;
    }
    float *y = room((size_t)(n * cols) * sizeof *y);
    assert_int_equal(cuda_matrix_open(device, NULL, KRN_F16, cols, cols, identity, &m, &e), ST_OK);
    cuda_product p = {.matrix = m, .y = y};
    assert_int_equal(cuda_matmul(device, rows, &p, 1, &e), ST_OK);
    from_device(y, out, (size_t)(n * cols) * sizeof *y);
    cuda_release(device, y);
    cuda_matrix_close(device, m);
    base_free(identity);
}

static void loading_with_norm_and_swiglu(void **state)
{
    (void)state;
    static const int64_t widths[] = {32, 100, 576, 1000};
    enum { N = 5 };
    static const int32_t which[N] = {4, 0, 3, 3, 1};
    int32_t *device_which = to_device(which, sizeof which);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        err e = {0};
        int64_t cols = widths[i];
        size_t n = (size_t)(N * cols), bytes = n * sizeof(float);
        cuda_rows *rows = NULL;
        float *x = random_floats(n, true), *w = random_floats(n, false), *got = base_alloc(bytes);
        float *expected = base_alloc(bytes), *dx = to_device(x, bytes), *dw = to_device(w, bytes);
        assert_int_equal(cuda_rows_open(device, N, cols, &rows, &e), ST_OK);
        assert_int_equal(cuda_rows_load_norm(device, rows, dx, device_which, dw, 1e-5f, N, cols, &e), ST_OK);
        read_back(rows, N, cols, got);
        for (int r = 0; r < N; r++) {
            krn_rmsnorm(x + which[r] * cols, w, 1e-5f, expected + r * cols, 1, cols);
        }
        near(got, expected, n, 2e-5, "norm");
        assert_int_equal(cuda_rows_load_swiglu(device, rows, dx, dw, N, cols, &e), ST_OK);
        read_back(rows, N, cols, got);
        krn_swiglu(x, w, expected, (int64_t)n);
        near(got, expected, n, 1e-3, "swiglu"); /* rows hold 22 bits of their largest number */
        cuda_release(device, dx);
        cuda_release(device, dw);
        cuda_rows_close(device, rows);
        base_free(x);
        base_free(w);
        base_free(got);
        base_free(expected);
    }
    cuda_release(device, device_which);
}

static void norm_and_argmax(void **state)
{
    (void)state;
    err e = {0};
    enum { N = 7, D = 96 };
    float *x = random_floats(N * D, true), *w = random_floats(D, false), got[N * D], expected[N * D];
    float *dx = to_device(x, sizeof got), *dw = to_device(w, D * sizeof *w);
    float *dk = to_device(x, 2 * D * sizeof *x);
    cuda_head_norms norms = {dx, dk, dw, dw, N, 2, D, 1e-6f};
    assert_int_equal(cuda_norm_heads(device, &norms, &e), ST_OK);
    from_device(dx, got, sizeof got);
    krn_rmsnorm(x, w, 1e-6f, expected, N, D);
    near(got, expected, N * D, 1e-5, "norm of q");
    from_device(dk, got, 2 * D * sizeof *got);
    near(got, expected, 2 * D, 1e-5, "norm of k");
    cuda_release(device, dk);
    x[2 * D + 5] = x[2 * D + 90] = 9999.0f; /* equals: the lower one */
    x[3 * D + 1] = NAN;
    cuda_release(device, dx);
    dx = to_device(x, sizeof got);
    int32_t *place = room(N * sizeof *place), found[N];
    assert_int_equal(cuda_argmax(device, dx, N, D, place, &e), ST_OK);
    from_device(place, found, sizeof found);
    for (int i = 0; i < N; i++) {
        assert_int_equal(found[i], krn_argmax(x + i * D, D));
    }
    cuda_release(device, dx);
    cuda_release(device, dw);
    cuda_release(device, place);
    base_free(x);
    base_free(w);
}

static void angles(void **state)
{
    (void)state;
    err e = {0};
    enum { DIMS = 64, N = 3, VARIANTS = 2 };
    double inv_freq[DIMS / 2];
    int64_t position[N] = {0, 100001, 1048575}, shift[2][VARIANTS] = {{0, 77}, {-5, 90000}};
    int32_t run[N] = {0, 1, 1};
    float own[N][DIMS], views[N][VARIANTS][DIMS], expected[DIMS];
    for (int i = 0; i < DIMS / 2; i++) {
        inv_freq[i] = pow(1e6, -2.0 * i / DIMS);
    }
    krn_rope rope = {.dims = DIMS, .inv_freq = inv_freq, .magnitude = 1.25f};
    void *parts[] = {to_device(inv_freq, sizeof inv_freq), to_device(position, sizeof position),
            to_device(run, sizeof run), to_device(shift, sizeof shift), room(sizeof own), room(sizeof views)};
    cuda_angles a = {DIMS, VARIANTS, 1.25f, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]};
    assert_int_equal(cuda_rope_angles(device, &a, N, &e), ST_OK);
    from_device(parts[4], own, sizeof own);
    from_device(parts[5], views, sizeof views);
    for (int i = 0; i < N; i++) {
        krn_rope_angles(&rope, position[i], expected);
        near(own[i], expected, DIMS, 2e-7, "own angles");
        for (int v = 0; v < VARIANTS; v++) {
            krn_rope_angles(&rope, position[i] - shift[run[i]][v], expected);
            near(views[i][v], expected, DIMS, 2e-7, "angles of a variant");
        }
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        cuda_release(device, parts[i]);
    }
}

/* ---- new keys and values ---- */

enum { STORE_ROWS = 5, STORE_HEADS = 2, STORE_LAYERS = 3, STORE_LAYER = 1 };

/* Everything that krn_rotate and krn_rope_apply do, rounded to bf16; one unit in the last place apart at most. */
static void check_stored(
        const krn_rotation *space, int d, float *x, uint16_t got, int channel, const char *what)
{
    float rotated[256];
    krn_rotate(space, d, x, rotated);
    double expected = (double)rotated[channel], value = (double)base_bf16_to_f32(got);
    if (!(fabs(value - expected) <= 1e-5 + fabs(expected) / 250.0)) {
        fail_msg("%s, channel %d: %.6g, expected %.6g", what, channel, value, expected);
    }
}

static void store_case(int d, krn_rope_pairing pairing, int dims, krn_rotation_kind kind, bool has_mean)
{
    err e = {0};
    size_t n = (size_t)(STORE_ROWS * STORE_HEADS * d), packed_n = n * 2 * STORE_LAYERS;
    size_t page = (size_t)(2 * 64 * d) * sizeof(uint16_t), unit_bytes = page * STORE_HEADS * STORE_LAYERS;
    float *k = random_floats(n, true), *v = random_floats(n, false),
          *angle = random_floats((size_t)(STORE_ROWS * dims), false);
    float *matrix = random_floats((size_t)(STORE_HEADS * d * d), false),
          *mean = random_floats((size_t)(STORE_HEADS * d), false);
    uint16_t *packed = base_alloc(packed_n * sizeof *packed);
    uint8_t *unit = base_alloc(unit_bytes), *unit_at = room(unit_bytes);
    uint64_t addresses[STORE_ROWS];
    for (int r = 0; r < STORE_ROWS; r++) {
        addresses[r] = (uint64_t)(uintptr_t)unit_at + (uint64_t)((r * 7 + 3) * d) * sizeof(uint16_t);
    }
    void *parts[] = {to_device(k, n * 4), to_device(v, n * 4),
            to_device(angle, (size_t)(STORE_ROWS * dims) * 4),
            to_device(matrix, (size_t)(STORE_HEADS * d * d) * 4),
            to_device(mean, (size_t)(STORE_HEADS * d) * 4), to_device(addresses, sizeof addresses),
            room(packed_n * sizeof *packed)};
    cuda_attend_rotation space = {kind, parts[3], has_mean ? parts[4] : NULL};
    cuda_new_rows a = {d, STORE_HEADS, STORE_LAYER, STORE_LAYERS, pairing, dims, parts[2], space, space,
            parts[0], parts[1], parts[5], page * STORE_HEADS * STORE_LAYER, page, page / 2, parts[6]};
    assert_int_equal(cuda_store_rows(device, &a, STORE_ROWS, &e), ST_OK);
    from_device(parts[6], packed, packed_n * sizeof *packed);
    from_device(unit_at, unit, unit_bytes);
    krn_rope rope = {.pairing = pairing, .dims = dims};
    for (int i = 0; i < STORE_ROWS * STORE_HEADS; i++) {
        int row = i / STORE_HEADS, head = i % STORE_HEADS;
        krn_rotation r = {kind, matrix + head * d * d, has_mean ? mean + head * d : NULL};
        const uint16_t *got = packed + ((row * STORE_LAYERS + STORE_LAYER) * STORE_HEADS + head) * 2 * d;
        const uint8_t *in_unit =
                unit + page * (size_t)(STORE_HEADS * STORE_LAYER + head) + (size_t)((row * 7 + 3) * d) * 2;
        krn_rope_apply(&rope, angle + row * dims, k + i * d);
        for (int c = 0; c < d; c++) {
            check_stored(&r, d, k + i * d, got[c], c, "key");
            check_stored(&r, d, v + i * d, got[d + c], c, "value");
        }
        assert_memory_equal(in_unit, got, (size_t)d * 2);
        assert_memory_equal(in_unit + page / 2, got + d, (size_t)d * 2);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        cuda_release(device, parts[i]);
    }
    void *host[] = {k, v, angle, matrix, mean, packed, unit};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        base_free(host[i]);
    }
    cuda_release(device, unit_at);
}

static void new_rows(void **state)
{
    (void)state;
    store_case(64, KRN_ROPE_ADJACENT, 64, KRN_ROTATION_HADAMARD, false);
    store_case(128, KRN_ROPE_HALVES, 128, KRN_ROTATION_HADAMARD, true);
    store_case(256, KRN_ROPE_HALVES, 128, KRN_ROTATION_NONE, false);
    store_case(64, KRN_ROPE_HALVES, 32, KRN_ROTATION_MATRIX, true);
    store_case(128, KRN_ROPE_ADJACENT, 128, KRN_ROTATION_MATRIX, false);
}

/* ---- memory ---- */

static void the_budget_holds(void **state)
{
    (void)state;
    err e = {0};
    void *p = NULL;
    uint64_t left = cuda_device_left(device);
    assert_int_equal(cuda_take(device, left + 1, "too much", &p, &e), ST_ERR_MEMORY);
    assert_non_null(strstr(e.text, "too much"));
    assert_int_equal(cuda_take(device, 1 << 20, "a little", &p, &e), ST_OK);
    assert_true(cuda_device_left(device) == left - (1 << 20));
    cuda_release(device, p);
    assert_true(cuda_device_left(device) == left);
}

/* Bytes through the ring, more than its slots hold, and pieces of rows. */
static void copies(void **state)
{
    (void)state;
    err e = {0};
    size_t bytes = (20u << 20) + 12345;
    uint8_t *data = base_alloc(bytes), *back = base_alloc(bytes);
    assert_true(data != NULL && back != NULL);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)((i * 2654435761u) >> 13);
    }
    void *p = to_device(data, bytes);
    from_device(p, back, bytes);
    assert_memory_equal(data, back, bytes);
    assert_int_equal(cuda_copy_in_rows(device, p, 1000, data, 3000, 700, 5000, &e), ST_OK);
    from_device(p, back, bytes);
    for (size_t i = 0; i < 5000; i++) {
        assert_memory_equal(back + 1000 * i, data + 3000 * i, 700);
        assert_memory_equal(back + 1000 * i + 700, data + 1000 * i + 700, 300);
    }
    cuda_release(device, p);
    base_free(data);
    base_free(back);
}

int main(void)
{
    err e = {0};
    if (cuda_device_open(2ull << 30, &device, &e) != ST_OK) {
        (void)printf("skipped: %s\n", e.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(copies),
            cmocka_unit_test(the_budget_holds),
            cmocka_unit_test(norm_and_argmax),
            cmocka_unit_test(angles),
            cmocka_unit_test(new_rows),
            cmocka_unit_test(loading_with_norm_and_swiglu),
            cmocka_unit_test(products),
            cmocka_unit_test(products_share_a_launch),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda_device_close(device);
    return failed;
}
