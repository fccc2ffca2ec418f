/* epimem eval needle: what is left of a fact, by its place in the context and by codec. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/arguments_internal.h"
#include "agent/calibrate_internal.h"
#include "agent/eval_needle_internal.h"

static const char help[] =
        "Usage: epimem eval needle -m MODEL [options]\n"
        "\n"
        "Plants facts (\"The password of the bakery is walnut.\") in contexts, one at "
        "each depth, and asks for\n"
        "each behind the context: the negative log probability of the last word, in nats "
        "a token, from an exact\n"
        "cache, and what each codec adds to it. Depths are those of the coded part: the "
        "first 64 and the last\n"
        "256 tokens are exact for all.\n"
        "\n"
        "  -m, --model FILE        GGUF file\n"
        "      --contexts LIST     tokens, with commas (default 1024,2048,4096)\n"
        "      --depths LIST       percent, rising, with commas (default 0,25,50,75,100)\n"
        "      --repeats N         contexts of each length, with other facts (default 2)\n"
        "      --text FILE...      what lies between the facts, texts or LoCoMo/REALTALK "
        "conversations, repeated\n"
        "                          as needed (default: texts that come with epimem)\n"
        "      --calibration FILE  of `epimem calibrate`, for the codecs that need one\n"
        "      --codecs LIST       names with commas (default: bf16, turboquant-k4, turboquant, hadamard "
        "and naive;\n"
        "                          with --calibration also oscar+k4 and oscar+)\n"
        "      --json              one JSON object a line instead of the table\n"
        "      --plot FILE.svg     picture: a heat map for each codec\n"
        "  -t, --threads N         threads (default: one per core)\n"
        "  -h, --help              show this help\n";

/* ---- arguments ---- */

static int usage_error(const char *what)
{
    return arguments_mistake("eval needle", what);
}

/* Rising whole numbers with commas. */
static bool read_rising(const char *text, int64_t min, int64_t max, int *list, int list_max, int *n)
{
    int64_t numbers[NEEDLE_LIST_MAX];
    if (!arguments_numbers(text, min, max, numbers, list_max, n)) {
        return false;
    }
    for (int i = 0; i < *n; i++) {
        if (i > 0 && numbers[i] <= numbers[i - 1]) {
            return false;
        }
        list[i] = (int)numbers[i];
    }
    return true;
}

static int take_option(void *options, int option, char *value)
{
    needle_options *o = options;
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
    case 'p':
        o->plot_path = value;
        return eval_svg_accepts(value) ? -1 : usage_error("--plot draws SVG: the name must end in .svg");
    case 'n':
        return read_rising(value, 1, 1 << 20, o->contexts, NEEDLE_CONTEXTS_MAX, &o->n_contexts)
                ? -1
                : usage_error("--contexts must be rising whole numbers with commas, 8 at most");
    case 'd':
        return read_rising(value, 0, 100, o->depths, NEEDLE_DEPTHS_MAX, &o->n_depths)
                ? -1
                : usage_error("--depths must be rising whole numbers from 0 to 100 with commas, 16 at most");
    case 'r':
        return arguments_int(value, 1, 1000, &o->repeats) ? -1 : usage_error("--repeats must be 1 to 1000");
    case 't':
        return arguments_int(value, 0, 1024, &o->tool.threads) ? -1
                                                               : usage_error("--threads must be 0 to 1024");
    case 'h':
        return fputs(help, stdout) < 0 ? 1 : 0;
    default:
        return 2; /* getopt has said why */
    }
}

static int read_arguments(needle_options *o, int argc, char **argv)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"text", required_argument, NULL, 'f'}, {"calibration", required_argument, NULL, 'c'},
            {"codecs", required_argument, NULL, 'l'}, {"contexts", required_argument, NULL, 'n'},
            {"depths", required_argument, NULL, 'd'}, {"repeats", required_argument, NULL, 'r'},
            {"json", no_argument, NULL, 'j'}, {"plot", required_argument, NULL, 'p'},
            {"threads", required_argument, NULL, 't'}, {"help", no_argument, NULL, 'h'}, {0}};
    int exit_status = arguments_read(argc, argv, "m:t:h", options, take_option, o);
    if (exit_status >= 0) {
        return exit_status;
    }
    if (o->tool.model_path == NULL) {
        return usage_error("-m MODEL is missing");
    }
    int least = EVAL_SINK_TOKENS + EVAL_RECENT_TOKENS + 40 * o->n_depths;
    char text[80];
    (void)snprintf(text, sizeof text, "--contexts must be %d at least with %d depths", least, o->n_depths);
    return o->contexts[0] < least ? usage_error(text) : -1;
}

/* ---- asking ---- */

typedef struct asking {
    const int32_t *ids;
    int n, from, vocab; /* tokens, the first of them that is scored */
    float *log_p;       /* [vocab] */
    double nll;         /* sum */
} asking;

static void score_rows(void *ctx, int first, int n, const float *logits)
{
    asking *a = ctx;
    for (int i = 0; i < n; i++) {
        int next = first + i + 1;
        if (next >= a->from && next < a->n) {
            krn_log_softmax(logits + (size_t)i * (size_t)a->vocab, a->log_p, a->vocab);
            a->nll -= (double)a->log_p[a->ids[next]];
        }
    }
}

/* Nats a token of the answer. */
static status ask(const needle_run *r, eval_kv *kv, int number, int repeat, double *nll, err *e)
{
    const model_tool *t = &r->o->tool;
    needle_fact fact = {0};
    token_list ids = {0};
    asking a = {.vocab = model_get_config(t->m)->vocab};
    a.log_p = base_zalloc((size_t)a.vocab, sizeof *a.log_p);
    status s = a.log_p == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for a distribution")
                               : tokenizer_encode(t->tok, "\n", 1, false, &ids, e);
    s = s == ST_OK ? needle_fact_make(t, number, repeat, &fact, e) : s;
    for (size_t i = 0; s == ST_OK && i < fact.question.n; i++) {
        s = token_list_push(&ids, fact.question.ids[i]);
    }
    a.from = (int)ids.n;
    for (size_t i = 0; s == ST_OK && i < fact.answer.n; i++) {
        s = token_list_push(&ids, fact.answer.ids[i]);
    }
    if (s == ST_OK) {
        a.ids = ids.ids;
        a.n = (int)ids.n;
        s = eval_kv_run(t, kv, ids.ids, a.n, score_rows, &a, e);
        *nll = a.nll / (a.n - a.from);
    }
    needle_fact_free(&fact);
    token_list_free(&ids);
    base_free(a.log_p);
    return s;
}

/* ---- measuring ---- */

enum { QUESTION_TOKENS_MAX = 64 };

/* exact [depths] are the NLLs of the exact cache; NULL: this is the exact one, and they go to `nll`. */
static status measure(needle_run *r,
        const kvq_codec *codec,
        int context,
        int repeat,
        const double *exact,
        double *nll,
        needle_result *to,
        err *e)
{
    eval_kv *kv = NULL;
    TRY(eval_kv_open(&r->o->tool, codec, &r->capture, QUESTION_TOKENS_MAX, &kv, e));
    status s = ST_OK;
    for (int i = 0; s == ST_OK && i < r->o->n_depths; i++) {
        needle_cell *cell = &to->cells[context][i];
        s = ask(r, kv, i, repeat, &nll[i], e);
        double added = exact != NULL ? nll[i] - exact[i] : 0.0;
        cell->facts += s == ST_OK;
        cell->nll += nll[i];
        cell->added_nll += added;
        cell->added_squared += added * added;
    }
    eval_kv_close(kv);
    return s;
}

static status measure_context(needle_run *r, int context, int repeat, err *e)
{
    const needle_options *o = r->o;
    token_list ids = {0};
    double exact[NEEDLE_DEPTHS_MAX] = {0}, nll[NEEDLE_DEPTHS_MAX] = {0};
    status s = needle_context(r, o->contexts[context], repeat, &ids, e);
    s = s == ST_OK ? eval_capture_run(&o->tool, ids.ids, (int64_t)ids.n, &r->capture, NULL, NULL, e) : s;
    s = s == ST_OK ? measure(r, r->exact_codec, context, repeat, NULL, exact, &r->exact, e) : s;
    for (int i = 0; s == ST_OK && i < r->codecs.n; i++) {
        s = measure(r, r->codecs.codec[i], context, repeat, exact, nll, &r->results[i], e);
    }
    token_list_free(&ids);
    return s;
}

/* ---- filler ---- */

static status add_all_texts(const needle_options *o, base_buf *text, err *e)
{
    int n = o->n_texts > 0 ? o->n_texts : CALIBRATE_TEXTS;
    for (int i = 0; i < n; i++) {
        status s = ST_OK;
        if (o->n_texts > 0) {
            TRY(eval_text_load(o->texts[i], text, e));
        } else {
            s = base_buf_append(text, calibrate_texts[i], strlen(calibrate_texts[i]));
        }
        s = s == ST_OK ? base_buf_append(text, "\n", 1) : s;
        if (s != ST_OK) {
            return FAIL(e, s, "filler of more than %d bytes", EVAL_TEXT_BYTES_MAX);
        }
    }
    return ST_OK;
}

/* The texts once, twice, four times... until they are long enough. */
static status make_filler(needle_run *r, err *e)
{
    enum { BYTES_MIN = 256 };
    size_t need = (size_t)r->o->contexts[r->o->n_contexts - 1];
    base_buf text = {.max = EVAL_TEXT_BYTES_MAX};
    status s = add_all_texts(r->o, &text, e);
    if (s == ST_OK && text.size < BYTES_MIN) {
        s = FAIL(e, ST_ERR_ARG, "filler of %zu bytes is too short, %d are needed", text.size, BYTES_MIN);
    }
    for (int more = 1; s == ST_OK && r->filler.n < need; more *= 2) {
        r->filler.n = 0;
        s = eval_text_encode(&r->o->tool, (const char *)text.data, text.size, (int64_t)need, &r->filler, e);
        for (int i = 0; s == ST_OK && r->filler.n < need && i < more; i++) {
            s = add_all_texts(r->o, &text, e);
        }
    }
    base_buf_free(&text);
    return s;
}

/* ---- all of it ---- */

static status run_all(needle_run *r, err *e)
{
    const needle_options *o = r->o;
    const model_config *c = model_get_config(o->tool.m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    int longest = o->contexts[o->n_contexts - 1];
    TRY(model_tool_check_length(&o->tool, (int64_t)longest + QUESTION_TOKENS_MAX, e));
    TRY(eval_codecs_open(&o->tool, o->codecs, o->calibration_path, &r->codecs, e));
    TRY(kvq_codec_open("bf16", &shape, NULL, &r->exact_codec, e));
    r->results = base_zalloc((size_t)r->codecs.n, sizeof *r->results);
    if (r->results == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for results");
    }
    TRY(make_filler(r, e));
    TRY(eval_capture_open(o->tool.m, longest, &r->capture, e));
    for (int context = 0; context < o->n_contexts; context++) {
        for (int repeat = 0; repeat < o->repeats; repeat++) {
            (void)fprintf(
                    stderr, "%d tokens, context %d of %d\n", o->contexts[context], repeat + 1, o->repeats);
            TRY(measure_context(r, context, repeat, e));
        }
    }
    TRY(needle_report(r, e));
    return o->plot_path != NULL ? needle_plot(r, e) : ST_OK;
}

static int run_options(needle_options *o)
{
    err e = {0};
    needle_run r = {.o = o};
    int exit_status = 1;
    if (model_tool_open(&o->tool, EVAL_BLOCK_ROWS) == ST_OK) {
        status s = run_all(&r, &e);
        if (s != ST_OK) {
            (void)fprintf(stderr, "epimem eval needle: %s\n", e.text);
        }
        exit_status = s == ST_OK ? 0 : 1;
    }
    eval_codecs_close(&r.codecs);
    kvq_codec_close(r.exact_codec);
    token_list_free(&r.filler);
    eval_capture_close(&r.capture);
    base_free(r.results);
    model_tool_close(&o->tool);
    return exit_status;
}

int eval_needle_main(int argc, char **argv)
{
    needle_options o = {.tool = {.program = "eval needle", .float_activations = true},
            .contexts = {1024, 2048, 4096},
            .n_contexts = 3,
            .depths = {0, 25, 50, 75, 100},
            .n_depths = 5,
            .repeats = 2};
    o.texts = base_zalloc((size_t)argc, sizeof *o.texts);
    if (o.texts == NULL) {
        (void)fprintf(stderr, "epimem eval needle: out of memory\n");
        return 1;
    }
    int exit_status = read_arguments(&o, argc, argv);
    if (exit_status < 0) {
        exit_status = run_options(&o);
    }
    base_free(o.texts);
    return exit_status;
}
