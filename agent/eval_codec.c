/* epimem eval codec: what a coded cache costs in words. The protocol is in eval_internal.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/arguments_internal.h"
#include "agent/eval_codec_internal.h"

static const char help[] =
        "Usage: epimem eval codec -m MODEL --text FILE... [options]\n"
        "\n"
        "Measures codecs on your text: each file's first tokens are computed exactly, all but the first 64 "
        "and\n"
        "the last 256 of them are coded, and the next tokens are predicted from that cache. KL is the\n"
        "divergence of the predicted distributions from those of the exact cache, in nats, mean over "
        "tokens.\n"
        "Attention error is |coded - exact| / |exact| of attention outputs for the same queries (64 rows a\n"
        "text), mean over layers. Times are of all threads: to encode and to decode the keys and values of "
        "a\n"
        "token, and to attend from one token to the whole cache.\n"
        "Files are plain text, or conversations in the LoCoMo or REALTALK layout.\n"
        "\n"
        "  -m, --model FILE        GGUF file\n"
        "      --text FILE...      texts, one context each\n"
        "      --calibration FILE  of `epimem calibrate`, for the codecs that need one\n"
        "      --codecs LIST       names with commas (default: bf16, turboquant-k4, turboquant, hadamard and "
        "naive;\n"
        "                          with --calibration also oscar+k4 and oscar+)\n"
        "      --context N         tokens of context (default 4096)\n"
        "      --tokens N          tokens predicted (default 512)\n"
        "      --served            products with 8-bit activations, as the server computes them, instead of "
        "float\n"
        "                          ones: their rounding adds about 0.003 to every KL\n"
        "      --json              one JSON object a line instead of the table\n"
        "      --plot FILE.svg     picture: KL against bits, attention error by layer\n"
        "  -t, --threads N         threads (default: one per core)\n"
        "  -h, --help              show this help\n";

/* ---- arguments ---- */

static int usage_error(const char *what)
{
    return arguments_mistake("eval codec", what);
}

static int take_option(void *options, int option, char *value)
{
    eval_codec_options *o = options;
    switch (option) {
    case 'm':
        o->tool.model_path = value;
        return -1;
    case 'f':
    case ARGUMENTS_WORD:
        o->texts[o->n_texts++] = value;
        return -1;
    case 'c':
        o->calibration_path = value;
        return -1;
    case 'l':
        o->codecs = value;
        return -1;
    case 'j':
        o->json = true;
        return -1;
    case 's':
        o->tool.float_activations = false;
        return -1;
    case 'p':
        o->plot_path = value;
        return eval_svg_accepts(value) ? -1 : usage_error("--plot draws SVG: the name must end in .svg");
    case 'n':
        return arguments_int(value, EVAL_SINK_TOKENS, 1 << 20, &o->context)
                ? -1
                : usage_error("--context must be a whole number, 64 at least");
    case 'k':
        return arguments_int(value, 2, 1 << 16, &o->tokens) ? -1 : usage_error("--tokens must be 2 to 65536");
    case 't':
        return arguments_int(value, 0, 1024, &o->tool.threads) ? -1
                                                               : usage_error("--threads must be 0 to 1024");
    case 'h':
        return fputs(help, stdout) < 0 ? 1 : 0;
    default:
        return 2; /* getopt has said why */
    }
}

static int read_arguments(eval_codec_options *o, int argc, char **argv)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"text", required_argument, NULL, 'f'}, {"calibration", required_argument, NULL, 'c'},
            {"codecs", required_argument, NULL, 'l'}, {"context", required_argument, NULL, 'n'},
            {"tokens", required_argument, NULL, 'k'}, {"json", no_argument, NULL, 'j'},
            {"served", no_argument, NULL, 's'}, {"plot", required_argument, NULL, 'p'},
            {"threads", required_argument, NULL, 't'}, {"help", no_argument, NULL, 'h'}, {0}};
    int exit_status = arguments_read(argc, argv, "m:t:h", options, take_option, o);
    if (exit_status >= 0) {
        return exit_status;
    }
    if (o->tool.model_path == NULL) {
        return usage_error("-m MODEL is missing");
    }
    return o->n_texts == 0 ? usage_error("--text FILE is missing") : -1;
}

/* ---- one text ---- */

static status measure_kv(const eval_codec_run *r,
        const eval_reference *reference,
        const eval_probe *probe,
        eval_kv *kv,
        eval_codec_result *result,
        err *e)
{
    const model_tool *t = &r->o->tool;
    double us = 0.0;
    TRY(eval_kv_decode_us(t, kv, &us, e));
    result->decode_us += us;
    result->encode_us += eval_kv_encode_us(kv);
    result->coded_tokens += eval_kv_coded_tokens(kv);
    eval_probe_compare(t, probe, kv, &result->attention);
    return eval_compare(t, kv, reference, &result->damage, e);
}

static status measure(eval_codec_run *r,
        const eval_reference *reference,
        const eval_probe *probe,
        eval_codec_result *result,
        err *e)
{
    const model_tool *t = &r->o->tool;
    eval_kv *kv = NULL;
    TRY(eval_kv_open(t, result->codec, &r->capture, r->o->tokens, &kv, e));
    status s = measure_kv(r, reference, probe, kv, result, e);
    eval_kv_close(kv);
    return s;
}

static void progress(const eval_codec_run *r, const char *path, const char *what)
{
    const char *name = strrchr(path, '/');
    if (!r->o->json) {
        (void)fprintf(stderr, "%s: %s\n", name != NULL ? name + 1 : path, what);
    }
}

static status measure_text(eval_codec_run *r, const char *path, const int32_t *ids, err *e)
{
    const model_tool *t = &r->o->tool;
    eval_kv *exact = NULL;
    eval_probe *probe = NULL;
    eval_reference reference = {0};
    progress(r, path, "exact cache");
    TRY(eval_capture_run(t, ids, r->o->context, &r->capture, NULL, NULL, e));
    status s = eval_kv_open(t, r->exact, &r->capture, r->o->tokens, &exact, e);
    if (s == ST_OK) {
        s = eval_reference_open(t, exact, ids + r->o->context, r->o->tokens, &reference, e);
    }
    if (s == ST_OK) {
        s = eval_probe_open(t, exact, ids + r->o->context, r->o->tokens, &probe, e);
    }
    for (int i = 0; s == ST_OK && i < r->codecs.n; i++) {
        progress(r, path, kvq_codec_name(r->results[i].codec));
        s = measure(r, &reference, probe, &r->results[i], e);
    }
    eval_probe_close(probe);
    eval_reference_close(&reference);
    eval_kv_close(exact);
    return s;
}

static status read_and_measure(eval_codec_run *r, const char *path, err *e)
{
    token_list list = {0};
    int64_t need = (int64_t)r->o->context + r->o->tokens;
    status s = eval_text_read(&r->o->tool, path, need, &list, e);
    if (s == ST_OK && (int64_t)list.n < need) {
        s = FAIL(e, ST_ERR_ARG, "%s has %zu tokens, --context and --tokens ask for %lld", path, list.n,
                (long long)need);
    }
    if (s == ST_OK) {
        s = measure_text(r, path, list.ids, e);
    }
    token_list_free(&list);
    return s;
}

/* ---- all of it ---- */

static status run_all(eval_codec_run *r, err *e)
{
    eval_codec_options *o = r->o;
    const model_config *c = model_get_config(o->tool.m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    TRY(model_tool_check_length(&o->tool, (int64_t)o->context + o->tokens, e));
    if (c->layers > EVAL_LAYERS_MAX) {
        return FAIL(e, ST_ERR_LIMIT, "more than %d layers", EVAL_LAYERS_MAX);
    }
    TRY(eval_codecs_open(&o->tool, o->codecs, o->calibration_path, &r->codecs, e));
    r->layers = c->layers;
    r->results = base_zalloc((size_t)r->codecs.n, sizeof *r->results);
    if (r->results == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for results");
    }
    for (int i = 0; i < r->codecs.n; i++) {
        r->results[i].codec = r->codecs.codec[i];
    }
    TRY(kvq_codec_open("bf16", &shape, NULL, &r->exact, e));
    TRY(eval_capture_open(o->tool.m, o->context, &r->capture, e));
    for (int i = 0; i < o->n_texts; i++) {
        TRY(read_and_measure(r, o->texts[i], e));
    }
    TRY(eval_codec_report(r, e));
    return o->plot_path != NULL ? eval_codec_plot(r, e) : ST_OK;
}

static void close_all(eval_codec_run *r)
{
    eval_codecs_close(&r->codecs);
    kvq_codec_close(r->exact);
    eval_capture_close(&r->capture);
    base_free(r->results);
}

static int run_options(eval_codec_options *o)
{
    err e = {0};
    eval_codec_run r = {.o = o};
    int exit_status = 1;
    if (model_tool_open(&o->tool, EVAL_BLOCK_ROWS) == ST_OK) {
        status s = run_all(&r, &e);
        if (s != ST_OK) {
            (void)fprintf(stderr, "epimem eval codec: %s\n", e.text);
        }
        exit_status = s == ST_OK ? 0 : 1;
    }
    close_all(&r);
    model_tool_close(&o->tool);
    return exit_status;
}

int eval_codec_main(int argc, char **argv)
{
    eval_codec_options o = {
            .tool = {.program = "eval codec", .float_activations = true}, .context = 4096, .tokens = 512};
    o.texts = base_zalloc((size_t)argc, sizeof *o.texts);
    if (o.texts == NULL) {
        (void)fprintf(stderr, "epimem eval codec: out of memory\n");
        return 1;
    }
    int exit_status = read_arguments(&o, argc, argv);
    if (exit_status < 0) {
        exit_status = run_options(&o);
    }
    base_free(o.texts);
    return exit_status;
}
