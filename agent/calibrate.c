/* epimem calibrate: moments of queries, keys and values over text, the rotations they give, and which layers' keys deserve
 * four bits, as one file for the oscar codecs. */
#include "agent/calibrate_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/arguments_internal.h"

static const char help[] =
        "Usage: epimem calibrate -m MODEL [options]\n"
        "\n"
        "Runs the model over text and writes what the codecs oscar+ and oscar need to "
        "know of it. The file works\n"
        "with this model alone.\n"
        "\n"
        "  -m, --model FILE     GGUF file\n"
        "  -o, --output FILE    calibration file to write (default: MODEL.calibration.safetensors beside the "
        "model,\n"
        "                       where epimem looks for it)\n"
        "      --text FILE...   texts or LoCoMo/REALTALK conversations (default: texts "
        "that come with epimem)\n"
        "      --tokens N       tokens of each text, at most (default 2048)\n"
        "      --bits B         stored bits per element, mean of K and V (default 2.4 at "
        "head size 64, else 2.3)\n"
        "      --import K.pt V.pt  take OSCAR's published rotations for this model instead of running it; "
        "they\n"
        "                       are shared by the heads of a layer, uncentred, all keys at two bits\n"
        "  -t, --threads N      threads (default: one per core)\n"
        "  -h, --help           show this help\n";

typedef struct calibration_run {
    const calibrate_options *o;
    token_list *texts;
    int n_texts;
    kvq_moments *moments;
    double *k_before; /* [L][K][d] sum of keys before RoPE */
    int64_t tokens;
    eval_capture captures[CALIBRATE_TEXTS_RANKED + 1]; /* of the texts that are ranked on, and of any other */
    float *rotated;                                    /* [block rows * queries of a KV head][d] */
    kvq_calibration calibration;
    double *damage; /* [L] */
} calibration_run;

/* ---- arguments ---- */

static int usage_error(const char *what)
{
    return arguments_mistake("calibrate", what);
}

static bool read_bits(const char *text, double *out)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 2.0 && value <= 4.0)) {
        return false;
    }
    *out = value;
    return true;
}

static int take_option(void *options, int option, char *value)
{
    calibrate_options *o = options;
    switch (option) {
    case 'm':
        o->tool.model_path = value;
        return -1;
    case 'o':
        o->out_path = value;
        return -1;
    case 'i':
        o->import_k = value; /* and V.pt is the word after it */
        return -1;
    case ARGUMENTS_WORD:
        if (o->import_k != NULL && o->import_v == NULL) {
            o->import_v = value;
            return -1;
        }
        o->texts[o->n_texts++] = value;
        return -1;
    case 'f':
        o->texts[o->n_texts++] = value;
        return -1;
    case 'n':
        return arguments_int(value, 640, 1 << 20, &o->tokens) ? -1
                                                              : usage_error("--tokens must be 640 at least");
    case 'b':
        return read_bits(value, &o->bits) ? -1 : usage_error("--bits must be from 2 to 4");
    case 't':
        return arguments_int(value, 0, 1024, &o->tool.threads) ? -1
                                                               : usage_error("--threads must be 0 to 1024");
    case 'h':
        return fputs(help, stdout) < 0 ? 1 : 0;
    default:
        return 2; /* getopt has said why */
    }
}

static int read_arguments(calibrate_options *o, int argc, char **argv)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"output", required_argument, NULL, 'o'}, {"text", required_argument, NULL, 'f'},
            {"tokens", required_argument, NULL, 'n'}, {"bits", required_argument, NULL, 'b'},
            {"import", required_argument, NULL, 'i'}, {"threads", required_argument, NULL, 't'},
            {"help", no_argument, NULL, 'h'}, {0}};
    int exit_status = arguments_read(argc, argv, "m:o:t:h", options, take_option, o);
    if (exit_status >= 0) {
        return exit_status;
    }
    if (o->import_k != NULL && o->import_v == NULL) {
        return usage_error("--import takes two files, K.pt and V.pt");
    }
    if (o->tool.model_path == NULL) {
        return usage_error("-m MODEL is missing");
    }
    if (o->out_path == NULL) {
        agent_calibration_path(o->tool.model_path, o->out_default, sizeof o->out_default);
        o->out_path = o->out_default;
    }
    return -1;
}

/* ---- moments ---- */

static void add_queries(void *ctx, int layer, int64_t first, int n, const float *q)
{
    calibration_run *r = ctx;
    const model_config *c = model_get_config(r->o->tool.m);
    int group = c->q_heads / c->kv_heads;
    size_t d = (size_t)c->d;
    float angles[256];
    for (int head = 0; head < c->kv_heads; head++) {
        int rows = 0;
        for (int row = 0; row < n; row++) {
            if (first + row < EVAL_SINK_TOKENS) {
                continue; /* sinks attend and are attended unlike all others */
            }
            krn_rope_angles(&c->rope, first + row, angles);
            for (int i = head * group; i < (head + 1) * group; i++) {
                float *to = r->rotated + (size_t)rows++ * d;
                memcpy(to, q + ((size_t)row * (size_t)c->q_heads + (size_t)i) * d, d * sizeof *to);
                krn_rope_apply(&c->rope, angles, to);
            }
        }
        kvq_moments_add_queries(r->moments, layer, head, r->rotated, rows);
    }
}

/* Keys as they were before RoPE, summed: it is a rotation, so the opposite position undoes it (but for the magnitude). */
static void add_before(calibration_run *r, int layer, int head, const float *k, int64_t n)
{
    const model_config *c = model_get_config(r->o->tool.m);
    size_t d = (size_t)c->d;
    double *sum = r->k_before + ((size_t)layer * (size_t)c->kv_heads + (size_t)head) * d;
    float angles[256], before[256];
    for (int64_t row = 0; row < n; row++) {
        memcpy(before, k + (size_t)row * d, d * sizeof *before);
        krn_rope_angles(&c->rope, -(row + EVAL_SINK_TOKENS), angles);
        krn_rope_apply(&c->rope, angles, before);
        for (size_t i = 0; i < d; i++) {
            sum[i] += (double)before[i] / ((double)c->rope.magnitude * (double)c->rope.magnitude);
        }
    }
}

static status add_text(calibration_run *r, int i, err *e)
{
    const model_config *c = model_get_config(r->o->tool.m);
    const token_list *text = &r->texts[i];
    eval_capture *capture = &r->captures[i < CALIBRATE_TEXTS_RANKED ? i : CALIBRATE_TEXTS_RANKED];
    eval_capture_close(capture);
    TRY(eval_capture_open(r->o->tool.m, (int64_t)text->n, capture, e));
    int n = (int)text->n - EVAL_SINK_TOKENS;
    TRY(eval_capture_run(&r->o->tool, text->ids, (int64_t)text->n, capture, add_queries, r, e));
    for (int layer = 0; layer < c->layers; layer++) {
        for (int head = 0; head < c->kv_heads; head++) {
            size_t at = eval_capture_at(capture, layer, head, EVAL_SINK_TOKENS);
            kvq_moments_add_text(r->moments, layer, head, capture->k + at, capture->v + at, n);
            add_before(r, layer, head, capture->k + at, n);
        }
    }
    r->tokens += n;
    return ST_OK;
}

/* Mean of R_p x over all positions p of the context: what a constant offset can stand for wherever the key lies. */
static void steady_means(calibration_run *r)
{
    const model_config *c = model_get_config(r->o->tool.m);
    size_t d = (size_t)c->d, heads = (size_t)c->layers * (size_t)c->kv_heads;
    enum { STEPS = 4096 };
    float angles[256];
    double mean[256] = {0}; /* of the angles' cosines and sines, as krn_rope_angles lays them out */
    for (int i = 0; i < STEPS; i++) {
        krn_rope_angles(&c->rope, (int64_t)((double)c->context * (i + 0.5) / STEPS), angles);
        for (int k = 0; k < c->rope.dims; k++) {
            mean[k] += (double)angles[k] / STEPS;
        }
    }
    for (int k = 0; k < c->rope.dims; k++) {
        angles[k] = (float)mean[k];
    }
    for (size_t i = 0; i < heads; i++) {
        float *to = r->calibration.k_mean + i * d;
        for (size_t k = 0; k < d; k++) {
            to[k] = (float)(r->k_before[i * d + k] / (double)r->tokens);
        }
        krn_rope_apply(&c->rope, angles, to); /* linear in cosines and sines, so means of them serve */
    }
}

/* ---- layers ---- */

static void on_layer(int done, int all)
{
    (void)fprintf(stderr, "\rranking layers: %d of %d%s", done, all, done == all ? "\n" : "");
}

/* With all keys at two bits. It goes through a file of another name, as every user reads one, so that what lies at
 * out_path is never half of a calibration. */
static status open_unranked_codec(const calibration_run *r, kvq_codec **codec, err *e)
{
    char path[sizeof r->o->out_default + 16];
    int n = snprintf(path, sizeof path, "%s.unranked", r->o->out_path);
    if (n < 0 || (size_t)n >= sizeof path) {
        return FAIL(e, ST_ERR_ARG, "the name of the output file is too long");
    }
    TRY(kvq_calibration_write(&r->calibration, path, e));
    status s = kvq_codec_open("oscar+", &r->calibration.shape, path, codec, e);
    (void)unlink(path);
    return s;
}

static status rank(calibration_run *r, err *e)
{
    const model_config *c = model_get_config(r->o->tool.m);
    kvq_codec *codec = NULL;
    double bits = r->o->bits > 0.0 ? r->o->bits : c->d == 64 ? 2.4 : 2.3;
    TRY(open_unranked_codec(r, &codec, e));
    status s = ST_OK;
    for (int i = 0; s == ST_OK && i < r->n_texts && i < CALIBRATE_TEXTS_RANKED; i++) {
        s = calibrate_rank_layers(&r->o->tool, codec, &r->texts[i], &r->captures[i], r->damage, on_layer, e);
    }
    kvq_codec_close(codec);
    TRY(s);
    calibrate_assign_bits(&r->calibration, r->damage, bits);
    return kvq_calibration_write(&r->calibration, r->o->out_path, e);
}

static double print_table(const calibration_run *r)
{
    const kvq_calibration *c = &r->calibration;
    double bits = 0.0;
    (void)printf("%5s %4s %14s %12s %14s %10s %6s\n", "layer", "head", "participation", "condition",
            "mean/spread K", "damage", "K bits");
    for (int layer = 0; layer < c->shape.layers; layer++) {
        bits += 0.5 * (2.0 + c->k_bits[layer]) + 16.0 / c->shape.d;
        for (int head = 0; head < c->shape.kv_heads; head++) {
            kvq_head_figures f = kvq_moments_figures(r->moments, c, layer, head);
            (void)printf("%5d %4d %14.1f %12.0f %14.2f", layer, head, f.participation, f.condition,
                    f.mean_to_spread);
            if (head == 0) {
                (void)printf(" %10.5f %6d",
                        r->damage[layer] /
                                (r->n_texts < CALIBRATE_TEXTS_RANKED ? r->n_texts : CALIBRATE_TEXTS_RANKED),
                        c->k_bits[layer]);
            }
            (void)printf("\n");
        }
    }
    return bits / c->shape.layers;
}

/* ---- all of it ---- */

static status read_texts(calibration_run *r, err *e)
{
    const calibrate_options *o = r->o;
    int most = o->tokens;
    int64_t context = model_get_config(o->tool.m)->context;
    most = most > context ? (int)context : most;
    r->n_texts = o->n_texts > 0 ? o->n_texts : CALIBRATE_TEXTS;
    r->texts = base_zalloc((size_t)r->n_texts, sizeof *r->texts);
    if (r->texts == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for texts");
    }
    for (int i = 0; i < r->n_texts; i++) {
        if (o->n_texts > 0) {
            TRY(eval_text_read(&o->tool, o->texts[i], most, &r->texts[i], e));
        } else {
            TRY(eval_text_encode(
                    &o->tool, calibrate_texts[i], strlen(calibrate_texts[i]), most, &r->texts[i], e));
        }
        if (r->texts[i].n <= EVAL_SINK_TOKENS + EVAL_RECENT_TOKENS) {
            return FAIL(e, ST_ERR_ARG, "%s has %zu tokens, more than %d are needed",
                    o->n_texts > 0 ? o->texts[i] : "a text", r->texts[i].n,
                    EVAL_SINK_TOKENS + EVAL_RECENT_TOKENS);
        }
    }
    return ST_OK;
}

static status calibrate(calibration_run *r, err *e)
{
    const model_config *c = model_get_config(r->o->tool.m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    size_t heads = (size_t)c->layers * (size_t)c->kv_heads, d = (size_t)c->d;
    r->k_before = base_zalloc(heads * d, sizeof *r->k_before);
    r->damage = base_zalloc((size_t)c->layers, sizeof *r->damage);
    r->rotated =
            base_zalloc((size_t)EVAL_BLOCK_ROWS * (size_t)(c->q_heads / c->kv_heads) * d, sizeof *r->rotated);
    if (r->k_before == NULL || r->damage == NULL || r->rotated == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for sums over %zu heads", heads);
    }
    TRY(read_texts(r, e));
    TRY(kvq_moments_open(&shape, &r->moments, e));
    for (int i = 0; i < r->n_texts; i++) {
        (void)fprintf(
                stderr, "\rreading text %d of %d%s", i + 1, r->n_texts, i + 1 == r->n_texts ? "\n" : "");
        TRY(add_text(r, i, e));
    }
    TRY(kvq_moments_finish(r->moments, &r->calibration, e));
    (void)snprintf(r->calibration.model, sizeof r->calibration.model, "%s", c->name);
    r->calibration.weights = model_fingerprint(r->o->tool.m);
    r->calibration.tokens = r->tokens;
    steady_means(r);
    return rank(r, e);
}

static void close_run(calibration_run *r)
{
    for (int i = 0; r->texts != NULL && i < r->n_texts; i++) {
        token_list_free(&r->texts[i]);
    }
    base_free(r->texts);
    kvq_moments_close(r->moments);
    kvq_calibration_free(&r->calibration);
    for (int i = 0; i <= CALIBRATE_TEXTS_RANKED; i++) {
        eval_capture_close(&r->captures[i]);
    }
    base_free(r->k_before);
    base_free(r->damage);
    base_free(r->rotated);
}

static status import(const calibrate_options *o, err *e)
{
    const model_config *c = model_get_config(o->tool.m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    kvq_calibration calibration = {0};
    TRY(kvq_calibration_import(o->import_k, o->import_v, &shape, &calibration, e));
    (void)snprintf(calibration.model, sizeof calibration.model, "%s", c->name);
    calibration.weights = model_fingerprint(o->tool.m);
    status s = kvq_calibration_write(&calibration, o->out_path, e);
    kvq_calibration_free(&calibration);
    return s;
}

static int run_options(calibrate_options *o)
{
    err e = {0};
    calibration_run r = {.o = o};
    if (model_tool_open(&o->tool, EVAL_BLOCK_ROWS) != ST_OK) {
        return 1;
    }
    int64_t start = base_monotonic_us();
    status s = o->import_k != NULL ? import(o, &e) : calibrate(&r, &e);
    if (s == ST_OK && o->import_k == NULL) {
        double bits = print_table(&r);
        (void)printf("%s: %lld tokens, oscar+ stores %.3f bits, %.1f s\n", o->out_path, (long long)r.tokens,
                bits, (double)(base_monotonic_us() - start) * 1e-6);
    } else if (s != ST_OK) {
        (void)fprintf(stderr, "epimem calibrate: %s\n", e.text);
    }
    close_run(&r);
    return s == ST_OK ? 0 : 1;
}

int agent_calibrate_main(int argc, char **argv)
{
    calibrate_options o = {.tool = {.program = "calibrate", .float_activations = true}, .tokens = 2048};
    o.texts = base_zalloc((size_t)argc, sizeof *o.texts);
    if (o.texts == NULL) {
        (void)fprintf(stderr, "epimem calibrate: out of memory\n");
        return 1;
    }
    int exit_status = read_arguments(&o, argc, argv);
    if (exit_status < 0) {
        exit_status = run_options(&o);
        model_tool_close(&o.tool);
    }
    base_free(o.texts);
    return exit_status;
}
