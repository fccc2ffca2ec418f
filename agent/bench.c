/* bench: prefill and decode speed of a model behind a given depth of coded history, as llama-bench measures it. The
 * history is attended whole (plain view), coded as sessions code it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/arguments_internal.h"
#include "agent/engine_internal.h"

enum { LIST_MAX = 16, REPEATS_MAX = 100, SEQUENCES_MAX = 64 };

static const char help[] =
        "usage: epimem bench -m MODEL [options]\n\n"
        "Measures prefill and decode behind a history of coded keys and values.\n\n"
        "  -m, --model FILE       GGUF\n"
        "  -t, --threads N        threads; default one per core\n"
        "      --device NAME      cpu, cuda or auto; default auto, which is cuda if there is one\n"
        "  -p, --prefill N        tokens of a prefill test; default 512\n"
        "  -n, --decode N         tokens of a decode test; default 64\n"
        "  -d, --depth A,B,...    tokens of history; default 0\n"
        "      --sequences A,B,.. sequences that decode side by side, all with the same history; default 1\n"
        "  -r, --repeat N         runs of each test; default 5\n"
        "      --codec NAME       default oscar+ if there is a calibration, else turboquant\n"
        "      --calibration FILE default the one beside the model\n"
        "      --json             a line of JSON per test\n";

typedef struct bench_options {
    const char *model, *codec, *calibration, *device;
    int threads, prefill, decode, repeats, n_depths, n_sequences;
    int64_t depth[LIST_MAX], sequences[LIST_MAX];
    bool json;
} bench_options;

typedef struct bench {
    bench_options o;
    krn_pool *pool;
    model *model;
    kvq_codec *codec;
    kvq_shape shape;
    model_scratch *scratch;
    float *logits;
} bench;

static status no_column(void *ctx, int64_t column, tiers_column **out, err *e)
{
    (void)ctx;
    (void)out;
    return FAIL(e, ST_ERR_NOT_FOUND, "column %lld is not in memory", (long long)column);
}

/* Any ids do: time does not depend on them. */
static int32_t token_at(const bench *b, int64_t position)
{
    uint64_t x = (uint64_t)position * 0x9e3779b97f4a7c15u;
    return (int32_t)((x >> 33) % (uint64_t)model_get_config(b->model)->vocab);
}

/* A run of up to `most` tokens at the end of a history, of the n that are left. ids has room for a block. */
static status next_run(bench *b, tiers *t, int64_t n, int most, int32_t *ids, model_run *out, err *e)
{
    int room = tiers_run_room(t), rows = room < most ? room : most;
    rows = rows < n ? rows : (int)n;
    for (int i = 0; i < rows; i++) {
        ids[i] = token_at(b, tiers_tokens(t) + i);
    }
    *out = (model_run){.ids = ids, .n = rows, .first_position = tiers_tokens(t)};
    return tiers_prepare(t, rows, &out->kv, e);
}

static status run_tokens(bench *b, tiers *t, int64_t n, bool logits, err *e)
{
    while (n > 0) {
        int32_t ids[TIERS_BLOCK_TOKENS];
        model_run run;
        TRY(next_run(b, t, n, TIERS_BLOCK_TOKENS, ids, &run, e));
        run.n_logits = logits && run.n == n ? 1 : 0;
        run.logits = b->logits;
        TRY(model_forward(b->model, b->scratch, &run, 1, e));
        tiers_advance(t, run.n);
        tiers_drop_exact(t, tiers_tokens(t));
        n -= run.n;
    }
    return ST_OK;
}

/* n tokens of each of the sequences, one of each at a time. */
static status decode_tokens(bench *b, tiers **t, int sequences, int64_t n, err *e)
{
    model_run runs[SEQUENCES_MAX];
    int32_t ids[SEQUENCES_MAX];
    size_t vocab = (size_t)model_get_config(b->model)->vocab;
    for (; n > 0; n--) {
        for (int i = 0; i < sequences; i++) {
            TRY(next_run(b, t[i], 1, 1, &ids[i], &runs[i], e));
            runs[i].n_logits = 1;
            runs[i].logits = b->logits + (size_t)i * vocab;
        }
        TRY(model_forward(b->model, b->scratch, runs, sequences, e));
        for (int i = 0; i < sequences; i++) {
            tiers_advance(t[i], 1);
        }
    }
    return ST_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(
        const bench *b, const char *test, int64_t depth, int sequences, const tiers *history, double *speed)
{
    int n = b->o.repeats;
    qsort(speed, (size_t)n, sizeof *speed, by_value);
    double median = n % 2 == 1 ? speed[n / 2] : (speed[n / 2 - 1] + speed[n / 2]) / 2;
    model_device_usage device = model_get_device_usage(b->model);
    if (b->o.json) {
        (void)printf("{\"test\":\"%s\",\"depth\":%lld,\"sequences\":%d,\"tokens_per_s_median\":%.1f,"
                     "\"tokens_per_s_min\":%.1f,\"tokens_per_s_max\":%.1f,\"threads\":%d,\"codec\":\"%s\","
                     "\"arithmetic\":\"%s\",\"session_bytes\":%zu",
                test, (long long)depth, sequences, median, speed[0], speed[n - 1], krn_pool_threads(b->pool),
                kvq_codec_name(b->codec), model_arithmetic(b->model), tiers_resident_bytes(history));
        if (device.budget_bytes > 0) {
            (void)printf(
                    ",\"device_bytes\":%llu,\"weight_bytes\":%llu,\"page_hits\":%llu,\"page_misses\":%llu",
                    (unsigned long long)device.used_bytes, (unsigned long long)device.weight_bytes,
                    (unsigned long long)device.page_hits, (unsigned long long)device.page_misses);
        }
        (void)printf("}\n");
    } else {
        (void)printf("%-8s depth %6lld  %2d sequences  %8.1f tokens/s  (%.1f to %.1f)\n", test,
                (long long)depth, sequences, median, speed[0], speed[n - 1]);
    }
    (void)fflush(stdout);
}

static void close_sequences(tiers **t, int sequences)
{
    for (int i = 0; i < sequences; i++) {
        tiers_close(t[i]);
    }
}

/* A sequence of `depth` tokens: the whole blocks are the history's, whose pages it shares; the rest is computed. */
static status open_sequence(bench *b, tiers *history, int64_t depth, tiers **out, err *e)
{
    tiers *t;
    int64_t shared = tiers_tokens(history);
    TRY(tiers_open(b->codec, &b->shape, b->pool, no_column, NULL, &t, e));
    status st = shared > 0 ? tiers_fork(t, history, shared, e) : ST_OK;
    st = st == ST_OK ? run_tokens(b, t, depth - shared, false, e) : st;
    if (st != ST_OK) {
        tiers_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

static status open_sequences(bench *b, tiers *history, int64_t depth, tiers **t, int sequences, err *e)
{
    for (int i = 0; i < sequences; i++) {
        status st = open_sequence(b, history, depth, &t[i], e);
        if (st != ST_OK) {
            close_sequences(t, i);
            return st;
        }
    }
    return ST_OK;
}

/* One test `repeats` times: prefill (sequences 0), or decoding side by side. */
static status measure(bench *b, tiers *history, int64_t depth, int tokens, int sequences, err *e)
{
    double speed[REPEATS_MAX];
    int n = sequences > 0 ? sequences : 1;
    for (int r = 0; r < b->o.repeats; r++) {
        tiers *t[SEQUENCES_MAX];
        TRY(open_sequences(b, history, depth, t, n, e));
        int64_t start = base_monotonic_us();
        status st = sequences > 0 ? decode_tokens(b, t, n, tokens, e) : run_tokens(b, t[0], tokens, true, e);
        int64_t us = base_monotonic_us() - start;
        close_sequences(t, n);
        TRY(st);
        speed[r] = (double)n * tokens * 1e6 / (double)(us > 0 ? us : 1);
    }
    report(b, sequences > 0 ? "decode" : "prefill", depth, n, history, speed);
    return ST_OK;
}

static status run_depth(bench *b, int64_t depth, err *e)
{
    const model_config *c = model_get_config(b->model);
    int64_t block = tiers_block_of(depth);
    int most = b->o.prefill > b->o.decode ? b->o.prefill : b->o.decode;
    if (depth + most > c->context) {
        return FAIL(e, ST_ERR_ARG, "depth %lld and %d tokens are more than the model's context of %lld",
                (long long)depth, most, (long long)c->context);
    }
    tiers *history;
    TRY(tiers_open(b->codec, &b->shape, b->pool, no_column, NULL, &history, e));
    status st = run_tokens(b, history, block < 0 ? 0 : tiers_block_start(block), false, e);
    st = st == ST_OK ? tiers_seal(history, e) : st;
    if (st == ST_OK && b->o.prefill > 0) {
        st = measure(b, history, depth, b->o.prefill, 0, e);
    }
    for (int i = 0; st == ST_OK && b->o.decode > 0 && i < b->o.n_sequences; i++) {
        st = measure(b, history, depth, b->o.decode, (int)b->o.sequences[i], e);
    }
    tiers_close(history);
    return st;
}

static status run(bench *b, err *e)
{
    TRY(krn_pool_open(b->o.threads, &b->pool, e));
    TRY(model_open(b->pool, b->o.model, &b->model, e));
    TRY(model_set_device(b->model, b->o.device, 0, e));
    const model_config *c = model_get_config(b->model);
    b->shape = (kvq_shape){.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    agent_options chosen;
    agent_options_default(&chosen);
    chosen.model_path = b->o.model;
    chosen.codec = b->o.codec;
    chosen.calibration_path = b->o.calibration;
    TRY(codec_open_chosen(&chosen, b->model, &b->codec, e));
    TRY(model_scratch_open(b->model, TIERS_BLOCK_TOKENS, &b->scratch, e));
    b->logits = base_zalloc((size_t)c->vocab * SEQUENCES_MAX, sizeof *b->logits);
    if (b->logits == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for logits");
    }
    for (int i = 0; i < b->o.n_depths; i++) {
        TRY(run_depth(b, b->o.depth[i], e));
    }
    return ST_OK;
}

/* ---- options ---- */

static bool parse_option(int c, const char *value, bench_options *o)
{
    bool good = true;
    switch (c) {
    case 'm':
        o->model = value;
        break;
    case 'k':
        o->codec = value;
        break;
    case 'b':
        o->calibration = value;
        break;
    case 'v':
        o->device = value;
        break;
    case 's':
        good = arguments_numbers(value, 1, SEQUENCES_MAX, o->sequences, LIST_MAX, &o->n_sequences);
        break;
    case 'j':
        o->json = true;
        break;
    case 't':
        good = arguments_int(value, 1, 1024, &o->threads);
        break;
    case 'p':
        good = arguments_int(value, 0, 1 << 20, &o->prefill);
        break;
    case 'n':
        good = arguments_int(value, 0, 1 << 20, &o->decode);
        break;
    case 'r':
        good = arguments_int(value, 1, REPEATS_MAX, &o->repeats);
        break;
    default:
        good = c == 'd' && arguments_numbers(value, 0, INT64_MAX, o->depth, LIST_MAX, &o->n_depths);
        break;
    }
    return good;
}

int agent_bench_main(int argc, char **argv)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"threads", required_argument, NULL, 't'}, {"prefill", required_argument, NULL, 'p'},
            {"decode", required_argument, NULL, 'n'}, {"depth", required_argument, NULL, 'd'},
            {"repeat", required_argument, NULL, 'r'}, {"codec", required_argument, NULL, 'k'},
            {"calibration", required_argument, NULL, 'b'}, {"json", no_argument, NULL, 'j'},
            {"device", required_argument, NULL, 'v'}, {"sequences", required_argument, NULL, 's'},
            {"help", no_argument, NULL, 'h'}, {0}};
    bench b = {.o = {.prefill = 512,
                       .decode = 64,
                       .repeats = 5,
                       .n_depths = 1,
                       .sequences = {1},
                       .n_sequences = 1}};
    int c;
    while ((c = getopt_long(argc, argv, "m:t:p:n:d:r:h", options, NULL)) !=
            -1) { /* NOLINT(concurrency-mt-unsafe) */
        if (c == 'h') {
            (void)fputs(help, stdout);
            return 0;
        }
        if (!parse_option(c, optarg, &b.o)) {
            (void)fputs(help, stderr);
            return 2;
        }
    }
    if (b.o.model == NULL || optind != argc) {
        (void)fputs(help, stderr);
        return 2;
    }
    err e = {0};
    status st = run(&b, &e);
    if (st != ST_OK) {
        (void)fprintf(stderr, "epimem: %s\n", e.text);
    }
    base_free(b.logits);
    model_scratch_close(b.scratch);
    kvq_codec_close(b.codec);
    model_close(b.model);
    krn_pool_close(b.pool);
    return st == ST_OK ? 0 : 1;
}
