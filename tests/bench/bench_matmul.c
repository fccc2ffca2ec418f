/*
 * bench_matmul: time of the matrix products of the default model's shapes, beside the machine's own roofs measured in
 * the same program: reading memory, 8-bit multiply-adds and float multiply-adds.
 *
 *   bench_matmul [--threads N] [--repeats R] [--isa scalar|avx2|avx512] [--rows 1,8,64,512] [--type Q4_1]
 *
 * One line a case: median and spread over the repeats of time, bytes a second, operations a second. Weights are as
 * many copies of the matrix as fill COPIES_BYTES, used in turn, so that a row product streams them from where the
 * model's would come.
 */
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 101, CASES_MAX = 16 };
#define COPIES_BYTES (96 << 20) /* what one token of the default model reads */

typedef struct options {
    int threads, repeats;
    int64_t n[CASES_MAX];
    int n_count;
    const char *type;
} options;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double now_s(void)
{
    return (double)base_monotonic_us() * 1e-6;
}

/* Small bytes that are neither an infinity nor a subnormal in any of the types. */
static void *filled(size_t bytes)
{
    uint8_t *p = base_alloc(bytes);
    uint32_t x = 12345;
    REQUIRE(p != NULL);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (uint8_t)(32 + (x >> 27));
    }
    return p;
}

/* ---- roofs ---- */

typedef struct read_work {
    const uint64_t *data;
    size_t words_per_task;
    _Atomic uint64_t sum;
} read_work;

static void read_task(void *ctx, int task)
{
    read_work *w = ctx;
    const uint64_t *p = w->data + (size_t)task * w->words_per_task;
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < w->words_per_task; i += 16) {
        for (size_t k = 0; k < 16; k++) {
            sum[k] += p[i + k];
        }
    }
    for (size_t k = 1; k < 16; k++) {
        sum[0] += sum[k];
    }
    w->sum += sum[0];
}

static void bench_read(krn_pool *pool, int repeats)
{
    enum { TASKS = 96 };
    double gigabytes[REPEATS_MAX];
    void *data = filled(COPIES_BYTES);
    for (int i = 0; i < repeats; i++) {
        read_work w = {data, COPIES_BYTES / 8 / TASKS, 0};
        double start = now_s();
        krn_pool_run(pool, read_task, &w, TASKS);
        gigabytes[i] = COPIES_BYTES / (now_s() - start) * 1e-9;
    }
    qsort(gigabytes, (size_t)repeats, sizeof *gigabytes, by_value);
    printf("%-24s %8.1f GB/s (%.1f to %.1f), 96 MiB read in turn\n", "roof: read", gigabytes[repeats / 2],
            gigabytes[0], gigabytes[repeats - 1]);
    base_free(data);
}

/* ---- products ---- */

typedef struct shape {
    krn_type type;
    int64_t rows, cols;
    const char *where;
} shape;

static const shape shapes[] = {
        {KRN_Q4_1, 576, 576, "q, o"},
        {KRN_Q4_1, 192, 576, "k, v"},
        {KRN_Q4_1, 1536, 576, "gate, up"},
        {KRN_Q4_1, 576, 1536, "down"},
        {KRN_Q8_0, 49152, 576, "output"},
        {KRN_Q4_0, 1536, 576, ""},
        {KRN_Q5_0, 1536, 576, ""},
        {KRN_Q5_1, 1536, 576, ""},
        {KRN_Q4_K, 1536, 768, ""},
        {KRN_Q5_K, 1536, 768, ""},
        {KRN_Q6_K, 1536, 768, ""},
        {KRN_Q2_K, 1536, 768, "through a tile"},
        {KRN_F32, 1536, 384, "encoder"},
        {KRN_F32, 384, 1536, "encoder"},
        {KRN_F16, 1536, 576, ""},
        {KRN_BF16, 1536, 576, ""},
};

static void bench_case(krn_pool *pool, const shape *s, int64_t n, int repeats)
{
    enum { COPIES_MAX = 1024 };
    static krn_matrix *copy[COPIES_MAX]; /* a program of one thread */
    double seconds[REPEATS_MAX];
    krn_rows *rows = NULL;
    size_t bytes = (size_t)(s->rows * s->cols / krn_type_block_elements(s->type)) *
            (size_t)krn_type_block_bytes(s->type);
    size_t copies = COPIES_BYTES / bytes < 1 ? 1 : COPIES_BYTES / bytes;
    copies = copies > COPIES_MAX ? COPIES_MAX : copies;
    copies = n > 1 && copies > 4 ? 4 : copies;
    void *data = filled(bytes);
    float *x = filled((size_t)(n * s->cols) * sizeof *x);
    float *y = filled((size_t)(n * s->rows) * sizeof *y);
    for (int64_t i = 0; i < n * s->cols; i++) {
        x[i] = (float)(i * 7919 % 2003) / 1000.0f - 1.0f;
    }
    double open_start = now_s();
    for (size_t i = 0; i < copies; i++) {
        REQUIRE(krn_matrix_open(pool, s->type, s->rows, s->cols, data, &copy[i], NULL) == ST_OK);
    }
    double open_s = now_s() - open_start;
    REQUIRE(krn_rows_open(n, s->cols, &rows, NULL) == ST_OK);
    krn_rows_load(pool, rows, x, s->cols, n, s->cols);
    for (int i = -1; i < repeats; i++) {
        double start = now_s();
        for (size_t k = 0; k < copies; k++) {
            krn_matmul(pool, copy[k], rows, y, s->rows);
        }
        seconds[i < 0 ? 0 : i] = (now_s() - start) / (double)copies;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
    double median = seconds[repeats / 2];
    printf("%-7s %6lld x %-5lld n %-4lld %10.1f us (%.1f to %.1f) %7.1f GB/s %8.1f GMAC/s  open %6.2f GB/s  "
           "%s\n",
            krn_type_name(s->type), (long long)s->rows, (long long)s->cols, (long long)n, median * 1e6,
            seconds[0] * 1e6, seconds[repeats - 1] * 1e6, (double)bytes / median * 1e-9,
            (double)(s->rows * s->cols * n) / median * 1e-9, (double)(bytes * copies) / open_s * 1e-9,
            s->where);
    for (size_t i = 0; i < copies; i++) {
        krn_matrix_close(copy[i]);
    }
    krn_rows_close(rows);
    base_free(data);
    base_free(x);
    base_free(y);
}

static void parse_rows(const char *text, options *o)
{
    char *end;
    o->n_count = 0;
    while (o->n_count < CASES_MAX) {
        o->n[o->n_count++] = strtoll(text, &end, 10);
        if (*end != ',') {
            break;
        }
        text = end + 1;
    }
}

static bool parse(int argc, char **argv, options *o)
{
    *o = (options){.threads = 0, .repeats = 11, .n = {1, 8, 64, 512}, .n_count = 4};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0) {
            o->threads = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--repeats") == 0) {
            o->repeats = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--rows") == 0) {
            parse_rows(argv[i + 1], o);
        } else if (strcmp(argv[i], "--type") == 0) {
            o->type = argv[i + 1];
        } else if (strcmp(argv[i], "--isa") == 0) {
            krn_isa isa = 0;
            while (isa < KRN_ISA_COUNT && strcmp(krn_isa_name(isa), argv[i + 1]) != 0) {
                isa++;
            }
            if (isa > krn_isa_best()) {
                return false;
            }
            krn_isa_set(isa);
        } else {
            return false;
        }
    }
    return argc % 2 == 1 && o->repeats > 0 && o->repeats <= REPEATS_MAX;
}

int main(int argc, char **argv)
{
    options o;
    krn_pool *pool = NULL;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: bench_matmul [--threads N] [--repeats R] [--isa NAME] [--rows 1,8,...] [--type "
                "NAME]\n");
        return 2;
    }
    REQUIRE(krn_pool_open(o.threads, &pool, NULL) == ST_OK);
    printf("%s, %d threads, median of %d (least to most)\n", krn_numeric_abi(), krn_pool_threads(pool),
            o.repeats);
    bench_read(pool, o.repeats);
    for (int k = 0; k < o.n_count; k++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            bool wanted = o.type == NULL || strcmp(o.type, krn_type_name(shapes[i].type)) == 0;
            if (wanted && (shapes[i].rows < 40000 || o.n[k] <= 64)) {
                bench_case(pool, &shapes[i], o.n[k], o.repeats);
            }
        }
    }
    krn_pool_close(pool);
    return 0;
}
