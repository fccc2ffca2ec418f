/*
 * What coding costs beside computing: a block of 512 tokens of a model is prefilled and then coded by each codec.
 *
 *   bench_encode MODEL.gguf [--calibration FILE] [--threads N]
 *
 * Prints per codec the milliseconds for rotating new keys and values into stored space, for coding their rows into pages
 * (both on one thread), and the sum as a share of the prefill (on N threads; default: one per core), the best of five
 * rounds each. Codecs that need a calibration are left out without one.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/model_internal.h"
#include "kvq/kvq.h"

enum { TOKENS = 512, ROUNDS = 5, PAGES = TOKENS / KRN_PAGE_ROWS };

static void die(const err *e)
{
    fprintf(stderr, "bench_encode: %s\n", e->text);
    exit(1);
}

static double best_of(double best, double ms)
{
    return best == 0.0 || ms < best ? ms : best;
}

static double prefill_ms(const model *m)
{
    const model_config *c = model_get_config(m);
    err e;
    plain_kv *kv = NULL;
    model_scratch *scratch = NULL;
    int32_t ids[TOKENS];
    float *logits = base_alloc((size_t)c->vocab * sizeof *logits);
    if (plain_kv_open(m, TOKENS, &kv, &e) != ST_OK || model_scratch_open(m, TOKENS, &scratch, &e) != ST_OK) {
        die(&e);
    }
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (int32_t)(((unsigned)i * 2654435761u) % (unsigned)c->vocab);
    }
    double best = 0.0;
    for (int round = 0; round < ROUNDS; round++) {
        plain_kv_reset(kv);
        int64_t start = base_monotonic_us();
        model_run run = {.ids = ids,
                .n = TOKENS,
                .first_position = 0,
                .kv = plain_kv_prepare(kv, TOKENS),
                .n_logits = 1,
                .logits = logits};
        if (model_forward(m, scratch, &run, 1, &e) != ST_OK) {
            die(&e);
        }
        best = best_of(best, (double)(base_monotonic_us() - start) / 1e3);
    }
    model_scratch_close(scratch);
    plain_kv_close(kv);
    base_free(logits);
    return best;
}

/* Rows of one head: bell-shaped numbers, as rotated rows of models are. */
static void make_rows(size_t n, float *x)
{
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int part = 0; part < 4; part++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(state >> 40) / 16777216.0f;
        }
        x[i] = sum - 2.0f;
    }
}

typedef struct head_rows {
    float *raw, *turned;
    uint16_t *stored; /* [TOKENS][d] */
} head_rows;

static double rotate_ms(const kvq_codec *codec, const kvq_shape *s, const head_rows *rows)
{
    int64_t start = base_monotonic_us();
    for (int i = 0; i < s->layers * s->kv_heads; i++) {
        const krn_rotation *spaces[2] = {kvq_k_rotation(codec, i / s->kv_heads, i % s->kv_heads),
                kvq_v_rotation(codec, i / s->kv_heads, i % s->kv_heads)};
        for (int side = 0; side < 2; side++) {
            for (size_t t = 0; t < TOKENS; t++) {
                size_t at = t * (size_t)s->d;
                krn_rotate(spaces[side], s->d, rows->raw + at, rows->turned + at);
            }
        }
    }
    return (double)(base_monotonic_us() - start) / 1e3;
}

static double code_ms(const kvq_codec *codec, const kvq_shape *s, const head_rows *rows, uint8_t *column)
{
    err e;
    int64_t start = base_monotonic_us();
    for (int page = 0; page < PAGES; page++) {
        const uint16_t *x = rows->stored + (size_t)page * KRN_PAGE_ROWS * (size_t)s->d;
        for (int i = 0; i < s->layers * s->kv_heads; i++) {
            int layer = i / s->kv_heads, head = i % s->kv_heads;
            uint8_t *to = column + kvq_page_at(codec, layer, head);
            if (kvq_encode_page(codec, layer, head, x, x, KRN_PAGE_ROWS, to, &e) != ST_OK) {
                die(&e);
            }
        }
    }
    return (double)(base_monotonic_us() - start) / 1e3;
}

static void bench_codec(
        const char *name, const kvq_shape *s, const char *calibration, const head_rows *rows, double prefill)
{
    kvq_codec *codec;
    err e;
    if (kvq_codec_open(name, s, kvq_codec_is_calibrated(name) ? calibration : NULL, &codec, &e) != ST_OK) {
        die(&e);
    }
    uint8_t *column = base_alloc(kvq_column_bytes(codec));
    double rotate = 0.0, code = 0.0;
    for (int round = 0; round < ROUNDS; round++) {
        rotate = best_of(rotate, rotate_ms(codec, s, rows));
        code = best_of(code, code_ms(codec, s, rows, column));
    }
    printf("%-14s rotate %7.2f ms   code %7.2f ms   %5.1f %% of prefilling\n", name, rotate, code,
            100.0 * (rotate + code) / prefill);
    base_free(column);
    kvq_codec_close(codec);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
            {"calibration", required_argument, NULL, 'c'}, {"threads", required_argument, NULL, 't'}, {0}};
    const char *calibration = NULL;
    int threads = 0, option;
    while ((option = getopt_long(argc, argv, "c:t:", options, NULL)) != -1) {
        if (option == 'c') {
            calibration = optarg;
        } else if (option == 't') {
            threads = (int)strtol(optarg, NULL, 10);
        } else {
            return 2;
        }
    }
    if (optind != argc - 1) {
        fprintf(stderr, "usage: bench_encode MODEL.gguf [--calibration FILE] [--threads N]\n");
        return 2;
    }
    err e;
    krn_pool *pool = NULL;
    model *m = NULL;
    if (krn_pool_open(threads, &pool, &e) != ST_OK || model_open(pool, argv[optind], &m, &e) != ST_OK) {
        die(&e);
    }
    const model_config *c = model_get_config(m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    size_t n = (size_t)TOKENS * (size_t)c->d;
    head_rows rows = {.raw = base_alloc(n * sizeof(float)),
            .turned = base_alloc(n * sizeof(float)),
            .stored = base_alloc(n * sizeof(uint16_t))};
    make_rows(n, rows.raw);
    for (size_t i = 0; i < n; i++) {
        rows.stored[i] = base_f32_to_bf16(rows.raw[i]);
    }
    double prefill = prefill_ms(m);
    printf("%s, %s, %d threads: prefill of %d tokens %.0f ms (%.0f tok/s)\n", c->name,
            krn_isa_name(krn_isa_current()), krn_pool_threads(pool), TOKENS, prefill, TOKENS / prefill * 1e3);
    static const char *const names[] = {
            "turboquant", "turboquant-k4", "naive", "oscar+", "oscar+k4", "oscar"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (calibration != NULL || !kvq_codec_is_calibrated(names[i])) {
            bench_codec(names[i], &shape, calibration, &rows, prefill);
        }
    }
    base_free(rows.raw);
    base_free(rows.turned);
    base_free(rows.stored);
    model_close(m);
    krn_pool_close(pool);
    return 0;
}
