/* epimem score: how probable the model finds a text. JSON lines of ids or text in, log probabilities out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/model_tool_internal.h"

enum {
    BLOCK_ROWS = 64, /* rows in a forward pass; logits of all of them are held */
    TOP = 20
};

static const char help[] =
        "Usage: epimem score -m MODEL [--exact] < REQUESTS > ANSWERS\n"
        "\n"
        "Says how probable the model finds each token given those before it. One JSON object a line on "
        "standard input:\n"
        "  {\"ids\": [29, 4093]}              token ids, or\n"
        "  {\"text\": \"Hello\"}                text (or \"b64\": its bytes in base64); \"parse_special\": "
        "true lets\n"
        "                                   control words in it become their tokens\n"
        "  \"argmax\": true                   also the most probable next token of every position\n"
        "One line on standard output for each, in order:\n"
        "  {\"mean_nll\": 2.61,               mean of the next; null for a single token\n"
        "   \"nll\": [...],                   -log p(token i+1 | tokens 0 to i), natural logarithm\n"
        "   \"top20\": [[id, logprob], ...]}  the most probable tokens after the last one\n"
        "or {\"error\": \"...\"}. Exit status 1 when there was an error.\n"
        "\n"
        "  -m, --model FILE    GGUF file\n"
        "      --exact         float32 reference pass instead of the quantised one with a BF16 cache (slow)\n"
        "      --device NAME   cpu (default), cuda or auto\n"
        "  -t, --threads N     threads (default: one per core)\n"
        "  -h, --help          show this help\n";

/* One request. Row i is the position after token i. */
typedef struct scoring {
    const int32_t *ids;
    int n, vocab;
    int first_row; /* of the block */
    float *nll;    /* [n] */
    int32_t *best; /* [n] */
    int32_t top_ids[TOP];
    float top[TOP]; /* log probabilities, falling */
    int n_top;
} scoring;

static double log_sum_exp(const float *x, int n)
{
    double largest = (double)x[krn_argmax(x, n)];
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += (double)expf((float)((double)x[i] - largest));
    }
    return largest + log(sum);
}

/* The largest TOP logits in falling order, the lower id first among equals. */
static void take_top(scoring *s, const float *logits, double norm)
{
    s->n_top = 0;
    for (int id = 0; id < s->vocab; id++) {
        int at = s->n_top;
        float value = (float)((double)logits[id] - norm);
        if (at == TOP && !(value > s->top[TOP - 1])) {
            continue;
        }
        at = at == TOP ? TOP - 1 : at;
        for (; at > 0 && value > s->top[at - 1]; at--) {
            s->top[at] = s->top[at - 1];
            s->top_ids[at] = s->top_ids[at - 1];
        }
        s->top[at] = value;
        s->top_ids[at] = id;
        s->n_top += s->n_top < TOP;
    }
}

static void score_row(void *ctx, int row, const float *logits)
{
    scoring *s = ctx;
    int at = s->first_row + row;
    double norm = log_sum_exp(logits, s->vocab);
    s->best[at] = (int32_t)krn_argmax(logits, s->vocab);
    if (at + 1 < s->n) {
        s->nll[at] = (float)(norm - (double)logits[s->ids[at + 1]]);
    } else {
        take_top(s, logits, norm);
    }
}

static status run_exact(const model_tool *t, scoring *s, err *e)
{
    model_exact *x = NULL;
    TRY(model_exact_open(t->m, s->n, &x, e));
    status st = model_exact_append(x, s->ids, s->n, s->n, score_row, s, NULL, 0, e);
    model_exact_close(x);
    return st;
}

static status run_blocks(const model_tool *t, scoring *s, plain_kv *kv, float *logits, err *e)
{
    for (s->first_row = 0; s->first_row < s->n; s->first_row += BLOCK_ROWS) {
        int n = s->n - s->first_row < BLOCK_ROWS ? s->n - s->first_row : BLOCK_ROWS;
        model_run run = {.ids = s->ids + s->first_row,
                .n = n,
                .first_position = s->first_row,
                .kv = plain_kv_prepare(kv, n),
                .n_logits = n,
                .logits = logits};
        TRY(model_forward(t->m, t->scratch, &run, 1, e));
        for (int i = 0; i < n; i++) {
            score_row(s, i, logits + (size_t)i * (size_t)s->vocab);
        }
    }
    return ST_OK;
}

static status run_product(const model_tool *t, scoring *s, err *e)
{
    plain_kv *kv = NULL;
    float *logits = base_zalloc((size_t)BLOCK_ROWS * (size_t)s->vocab, sizeof *logits);
    status st = logits == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for logits")
                               : plain_kv_open(t->m, s->n, &kv, e);
    if (st == ST_OK) {
        st = run_blocks(t, s, kv, logits, e);
    }
    plain_kv_close(kv);
    base_free(logits);
    return st;
}

static status add_top(cJSON *reply, const scoring *s)
{
    cJSON *list = cJSON_AddArrayToObject(reply, "top20");
    for (int i = 0; i < s->n_top; i++) {
        double pair[2] = {s->top_ids[i], (double)s->top[i]};
        cJSON *item = cJSON_CreateDoubleArray(pair, 2);
        if (list == NULL || item == NULL || !cJSON_AddItemToArray(list, item)) {
            cJSON_Delete(item);
            return ST_ERR_MEMORY;
        }
    }
    return ST_OK;
}

static status add_scores(cJSON *reply, const scoring *s, bool with_argmax)
{
    double sum = 0.0;
    for (int i = 0; i + 1 < s->n; i++) {
        sum += (double)s->nll[i];
    }
    const cJSON *mean = s->n > 1 && isfinite(sum)
            ? cJSON_AddNumberToObject(reply, "mean_nll", sum / (s->n - 1))
            : cJSON_AddNullToObject(reply, "mean_nll");
    if (mean == NULL) {
        return ST_ERR_MEMORY;
    }
    TRY(jsonl_add_floats(reply, "nll", s->nll, (size_t)s->n - 1));
    TRY(add_top(reply, s));
    return with_argmax ? jsonl_add_ids(reply, "argmax", s->best, (size_t)s->n) : ST_OK;
}

static status score_ids(
        const model_tool *t, const int32_t *ids, size_t n, bool with_argmax, cJSON *reply, err *e)
{
    if (n == 0) {
        return FAIL(e, ST_ERR_FORMAT, "nothing to score: at least one token is needed");
    }
    TRY(model_tool_check_length(t, (int64_t)n, e));
    scoring s = {.ids = ids, .n = (int)n, .vocab = model_get_config(t->m)->vocab};
    s.nll = base_zalloc(n, sizeof *s.nll);
    s.best = base_zalloc(n, sizeof *s.best);
    status st = s.nll == NULL || s.best == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for %zu scores", n)
                                                : ST_OK;
    if (st == ST_OK) {
        st = t->exact ? run_exact(t, &s, e) : run_product(t, &s, e);
    }
    if (st == ST_OK && add_scores(reply, &s, with_argmax) != ST_OK) {
        st = FAIL(e, ST_ERR_MEMORY, "out of memory for an answer of %zu scores", n);
    }
    base_free(s.nll);
    base_free(s.best);
    return st;
}

/* As a text begins for this model: with its begin-of-text token where the file asks for one. */
static status encode(const model_tool *t, const cJSON *request, token_list *out, err *e)
{
    bool parse_special = false;
    base_buf text = {0};
    if (t->tok == NULL) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "text: this model file has no vocabulary, send \"ids\"");
    }
    TRY(jsonl_get_bool(request, "parse_special", false, &parse_special, e));
    status s = jsonl_get_text(request, &text, e);
    if (s == ST_OK && tokenizer_adds_bos(t->tok) && tokenizer_bos(t->tok) >= 0) {
        s = token_list_push(out, tokenizer_bos(t->tok));
    }
    if (s == ST_OK) {
        s = tokenizer_encode(t->tok, text.data, text.size, parse_special, out, e);
    }
    base_buf_free(&text);
    return s;
}

static status answer(void *ctx, const cJSON *request, cJSON *reply, err *e)
{
    const model_tool *t = ctx;
    bool with_argmax = false;
    token_list list = {0};
    status s = jsonl_get_bool(request, "argmax", false, &with_argmax, e);
    if (s == ST_OK && jsonl_has(request, "ids")) {
        bool has_text = jsonl_has(request, "text") || jsonl_has(request, "b64");
        s = has_text ? FAIL(e, ST_ERR_FORMAT, "ids: given beside a text, one of them is needed")
                     : jsonl_get_ids(request, "ids", model_get_config(t->m)->vocab, &list.ids, &list.n, e);
    } else if (s == ST_OK) {
        s = encode(t, request, &list, e);
    }
    if (s == ST_OK) {
        s = score_ids(t, list.ids, list.n, with_argmax, reply, e);
    }
    token_list_free(&list);
    return s;
}

int agent_score_main(int argc, char **argv)
{
    model_tool t = {.program = "score"};
    int exit_status = model_tool_arguments(&t, argc, argv, help);
    if (exit_status >= 0) {
        return exit_status;
    }
    exit_status = 1;
    if (model_tool_open(&t, BLOCK_ROWS) == ST_OK) {
        exit_status = jsonl_run(stdin, stdout, answer, &t);
    }
    model_tool_close(&t);
    return exit_status;
}
