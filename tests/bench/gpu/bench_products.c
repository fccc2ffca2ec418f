/* Speed of the device's products at the shapes of an 8B model, as read by a decode step (few rows: bytes of weights per
 * second) and by prefill (many: operations per second). Several copies of each matrix take turns, so that the cache does
 * not answer. bench_products [ROWS,...] prints a line of JSON per case. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

enum { COPIES_MAX = 16, REPEATS = 7, COPIED_BYTES = 400 << 20 };

typedef struct shape {
    const char *name;
    int64_t rows, cols;
} shape;
static const shape shapes[] = {
        {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 24576, 4096}, {"down", 4096, 12288}};
static const krn_type types[] = {KRN_Q8_0, KRN_BF16, KRN_Q4_0, KRN_Q4_1, KRN_Q4_K, KRN_Q6_K};

typedef struct bench {
    cuda_device *d;
    cuda_rows *in;
    float *x, *y;
    cuda_matrix *copies[COPIES_MAX];
    int n_copies;
} bench;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status record(bench *b, int n, int64_t cols, cuda_graph **g, err *e)
{
    TRY(cuda_rows_load(b->d, b->in, b->x, n, cols, e));
    TRY(cuda_graph_begin(b->d, e));
    for (int i = 0; i < b->n_copies; i++) {
        cuda_product p = {.matrix = b->copies[i], .y = b->y};
        TRY(cuda_matmul(b->d, b->in, &p, 1, e));
    }
    return cuda_graph_end(b->d, g, e);
}

static status measure(bench *b, const shape *s, krn_type type, int n, err *e)
{
    cuda_graph *g = NULL;
    double us[REPEATS];
    TRY(record(b, n, s->cols, &g, e));
    for (int r = -2; r < REPEATS; r++) { /* two to warm up */
        TRY(cuda_device_wait(b->d, e));
        int64_t start = base_monotonic_us();
        for (int i = 0; i < 4; i++) {
            TRY(cuda_graph_run(b->d, g, e));
        }
        TRY(cuda_device_wait(b->d, e));
        us[r < 0 ? 0 : r] = (double)(base_monotonic_us() - start) / 4 / b->n_copies;
    }
    cuda_graph_close(g);
    qsort(us, REPEATS, sizeof *us, by_value);
    double stored = (double)(s->rows * s->cols) / krn_type_block_elements(type) * krn_type_block_bytes(type);
    double operations = 2.0 * (double)s->rows * (double)s->cols * n;
    (void)printf(
            "{\"product\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"us\":%.2f,\"us_min\":%.2f,\"us_max\":%.2f,"
            "\"stored_gb_per_s\":%.0f,\"tflops\":%.1f}\n",
            s->name, krn_type_name(type), n, us[REPEATS / 2], us[0], us[REPEATS - 1],
            stored / us[REPEATS / 2] / 1e3, operations / us[REPEATS / 2] / 1e6);
    return ST_OK;
}

/* Random codes; scales as they come, but finite: no exponent of all ones. */
static void fill(uint8_t *data, size_t bytes)
{
    uint64_t x = 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        data[i] = (uint8_t)((x >> 33) & 0x3b);
    }
}

static status run_shape(
        bench *b, krn_pool *pool, const shape *s, krn_type type, const int *counts, int n, err *e)
{
    size_t bytes = (size_t)(s->rows * s->cols / krn_type_block_elements(type) * krn_type_block_bytes(type));
    uint8_t *data = base_alloc(bytes);
    if (data == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a matrix");
    }
    fill(data, bytes);
    int wanted = (int)(COPIED_BYTES / bytes) + 1;
    status st = ST_OK;
    for (b->n_copies = 0; st == ST_OK && b->n_copies < wanted && b->n_copies < COPIES_MAX; b->n_copies++) {
        st = cuda_matrix_open(b->d, pool, type, s->rows, s->cols, data, &b->copies[b->n_copies], e);
    }
    for (int i = 0; st == ST_OK && i < n; i++) {
        st = measure(b, s, type, counts[i], e);
    }
    for (int i = 0; i < b->n_copies; i++) {
        cuda_matrix_close(b->d, b->copies[i]);
    }
    base_free(data);
    return st;
}

static status run(bench *b, krn_pool *pool, const int *counts, int n, err *e)
{
    enum { ROWS_MAX = 1024, COLS_MAX = 12288, OUT_MAX = 24576 };
    void *memory = NULL;
    TRY(cuda_device_open(0, &b->d, e));
    TRY(cuda_rows_open(b->d, ROWS_MAX, COLS_MAX, &b->in, e));
    float *x = base_alloc((size_t)ROWS_MAX * COLS_MAX * sizeof *x);
    if (x == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for activations");
    }
    for (size_t i = 0; i < (size_t)ROWS_MAX * COLS_MAX; i++) {
        x[i] = (float)(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    }
    TRY(cuda_take(b->d, (uint64_t)ROWS_MAX * COLS_MAX * sizeof(float), "activations", &memory, e));
    b->x = memory;
    TRY(cuda_copy_in(b->d, b->x, x, (uint64_t)ROWS_MAX * COLS_MAX * sizeof(float), e));
    TRY(cuda_take(b->d, (uint64_t)ROWS_MAX * OUT_MAX * sizeof(float), "results", &memory, e));
    b->y = memory;
    base_free(x);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            TRY(run_shape(b, pool, &shapes[s], types[t], counts, n, e));
        }
    }
    return ST_OK;
}

int main(int argc, char **argv)
{
    int counts[16] = {1, 8, 32, 256}, n = 4;
    if (argc > 1) {
        n = 0;
        for (char *at = argv[1]; n < 16 && *at != '\0'; at += *at == ',' ? 1 : 0) {
            counts[n++] = (int)strtol(at, &at, 10);
        }
    }
    err e = {0};
    bench b = {0};
    krn_pool *pool = NULL;
    status st = krn_pool_open(0, &pool, &e);
    st = st == ST_OK ? run(&b, pool, counts, n, &e) : st;
    if (st != ST_OK) {
        (void)fprintf(stderr, "%s\n", e.text);
    }
    krn_pool_close(pool);
    cuda_rows_close(b.d, b.in);
    if (b.d != NULL) {
        cuda_release(b.d, b.x);
        cuda_release(b.d, b.y);
        cuda_device_close(b.d);
    }
    return st == ST_OK ? 0 : 1;
}
