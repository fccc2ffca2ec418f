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

#include <immintrin.h>
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

enum { PREFETCH_AHEAD_WORDS = 512 }; /* a page: the hardware's prefetchers stop at its end */

static void read_task(void *ctx, int task)
{
    read_work *w = ctx;
    const uint64_t *p = w->data + (size_t)task * w->words_per_task;
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < w->words_per_task; i += 16) {
        __builtin_prefetch(p + i + PREFETCH_AHEAD_WORDS);
        __builtin_prefetch(p + i + PREFETCH_AHEAD_WORDS + 8);
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

/* Multiply-adds on registers alone, in as many chains as hide their latency. */
typedef struct compute_work {
    int64_t rounds;
    _Atomic int32_t kept; /* a use for the result */
} compute_work;

enum { CHAINS = 12 };

__attribute__((target("avx512f,avx512vnni"))) static void vnni_task(void *ctx, int task)
{
    compute_work *w = ctx;
    __m512i sum[CHAINS];
    __m512i a = _mm512_set1_epi8(1);
    for (int k = 0; k < CHAINS; k++) {
        sum[k] = _mm512_set1_epi32(task + k);
    }
    for (int64_t i = 0; i < w->rounds; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < CHAINS; k++) {
            sum[k] = _mm512_dpbusd_epi32(sum[k], a, a);
        }
    }
    for (int k = 1; k < CHAINS; k++) {
        sum[0] = _mm512_xor_si512(sum[0], sum[k]);
    }
    w->kept += _mm512_reduce_add_epi32(sum[0]) & 1;
}

__attribute__((target("avx512f"))) static void fma_task(void *ctx, int task)
{
    compute_work *w = ctx;
    __m512 sum[CHAINS];
    __m512 a = _mm512_set1_ps(0.5f);
    for (int k = 0; k < CHAINS; k++) {
        sum[k] = _mm512_set1_ps((float)(task + k));
    }
    for (int64_t i = 0; i < w->rounds; i++) {
#pragma GCC unroll 16
        for (int k = 0; k < CHAINS; k++) {
            sum[k] = _mm512_fmadd_ps(sum[k], a, a);
        }
    }
    for (int k = 1; k < CHAINS; k++) {
        sum[0] = _mm512_add_ps(sum[0], sum[k]);
    }
    w->kept += _mm512_reduce_add_ps(sum[0]) > 1.0f;
}

static void bench_compute(
        krn_pool *pool, int repeats, const char *what, void (*task)(void *, int), int mac_per_op)
{
    double rate[REPEATS_MAX];
    if (krn_isa_best() != KRN_ISA_AVX512) {
        return;
    }
    for (int i = 0; i < repeats; i++) {
        compute_work w = {200000, 0};
        int tasks = krn_pool_threads(pool);
        double start = now_s();
        krn_pool_run(pool, task, &w, tasks);
        rate[i] = (double)(w.rounds * CHAINS * mac_per_op) * tasks / (now_s() - start) * 1e-9;
    }
    qsort(rate, (size_t)repeats, sizeof *rate, by_value);
    printf("%-24s %8.1f GMAC/s (%.1f to %.1f)\n", what, rate[repeats / 2], rate[0], rate[repeats - 1]);
}

static void nothing(void *ctx, int task)
{
    (void)ctx;
    (void)task;
}

/* What starting a call costs when the workers are awake. */
static void bench_call(krn_pool *pool, int repeats)
{
    enum { CALLS = 2000 };
    double us[REPEATS_MAX];
    for (int i = 0; i < repeats; i++) {
        double start = now_s();
        for (int k = 0; k < CALLS; k++) {
            krn_pool_run(pool, nothing, NULL, 2 * krn_pool_threads(pool));
        }
        us[i] = (now_s() - start) * 1e6 / CALLS;
    }
    qsort(us, (size_t)repeats, sizeof *us, by_value);
    printf("%-24s %8.2f us (%.2f to %.2f)\n", "an empty call", us[repeats / 2], us[0], us[repeats - 1]);
}

/* ---- row operations, one thread, 64 rows of 1536 ---- */

enum { ROW_COLS = 1536, ROW_N = 64, ROW_COUNT = ROW_COLS * ROW_N };

typedef struct row_data {
    float *x, *y, *w;
    krn_rows *rows;
} row_data;

static void row_rmsnorm(row_data *d)
{
    krn_rmsnorm(d->x, d->w, 1e-5f, d->y, ROW_N, ROW_COLS);
}

static void row_swiglu(row_data *d)
{
    krn_swiglu(d->x, d->w, d->y, ROW_COUNT);
}

static void row_gelu(row_data *d)
{
    krn_gelu(d->y, ROW_COUNT);
}

static void row_argmax(row_data *d)
{
    d->w[0] += (float)krn_argmax(d->x, ROW_COUNT) * 1e-9f;
}

static void row_log_softmax(row_data *d)
{
    krn_log_softmax(d->x, d->y, ROW_COUNT);
}

static void row_codes(row_data *d)
{
    krn_rows_keep(d->rows, KRN_ROWS_CODES);
    krn_rows_load(NULL, d->rows, d->x, ROW_COLS, ROW_N, ROW_COLS);
}

static void bench_rows(int repeats)
{
    static const struct {
        const char *name;
        void (*run)(row_data *);
    } ops[] = {{"rmsnorm", row_rmsnorm}, {"swiglu", row_swiglu}, {"gelu", row_gelu}, {"argmax", row_argmax},
            {"log_softmax", row_log_softmax}, {"8-bit codes", row_codes}};
    row_data d = {filled(ROW_COUNT * 4), filled(ROW_COUNT * 4), filled(ROW_COUNT * 4), NULL};
    REQUIRE(krn_rows_open(ROW_N, ROW_COLS, &d.rows, NULL) == ST_OK);
    for (int i = 0; i < ROW_COUNT; i++) {
        d.x[i] = (float)(i * 7919 % 2003) / 200.0f - 5.0f;
        d.w[i] = 1.0f;
    }
    for (size_t k = 0; k < sizeof ops / sizeof ops[0]; k++) {
        double ns[REPEATS_MAX];
        for (int i = 0; i < repeats; i++) {
            double start = now_s();
            ops[k].run(&d);
            ns[i] = (now_s() - start) * 1e9 / ROW_COUNT;
        }
        qsort(ns, (size_t)repeats, sizeof *ns, by_value);
        printf("%-24s %8.3f ns an element (%.3f to %.3f)\n", ops[k].name, ns[repeats / 2], ns[0],
                ns[repeats - 1]);
    }
    krn_rows_close(d.rows);
    base_free(d.x);
    base_free(d.y);
    base_free(d.w);
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
            o->threads = (int)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--repeats") == 0) {
            o->repeats = (int)strtol(argv[i + 1], NULL, 10);
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
    bench_compute(pool, o.repeats, "roof: vpdpbusd", vnni_task, 64);
    bench_compute(pool, o.repeats, "roof: float fma", fma_task, 16);
    bench_call(pool, o.repeats);
    bench_rows(o.repeats);
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
