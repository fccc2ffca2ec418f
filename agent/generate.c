/* epimem generate: continues a chat or a list of tokens, without sessions or memory. JSON lines in, JSON lines out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/model_tool_internal.h"

enum {
    BLOCK_ROWS = 256, /* prompt tokens in a forward pass */
    TOKENS_DEFAULT = 256,
    MESSAGES_MAX = 4096,
    RECENT_MAX = 256 /* tokens that the repetition penalty looks back on */
};

static const char help[] =
        "Usage: epimem generate -m MODEL [--exact] < REQUESTS > ANSWERS\n"
        "\n"
        "Continues a chat, greedily unless a request asks otherwise. One JSON object a line on standard "
        "input:\n"
        "  {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}  a chat to answer, or\n"
        "  {\"ids\": [29, 4093]}       token ids to continue\n"
        "  \"max_tokens\": 256         at most so many new tokens\n"
        "  \"ignore_eos\": true        go on after the model has ended its turn\n"
        "  \"temperature\": 0.8, \"top_k\": 40, \"top_p\": 0.95, \"min_p\": 0.05, \"repeat_penalty\": 1.1, "
        "\"seed\": 1\n"
        "                            sampling; the same seed gives the same answer\n"
        "One line on standard output for each, in order:\n"
        "  {\"ids\": [...], \"text\": \"...\", \"prompt_tokens\": 30, \"finish_reason\": \"stop\" or "
        "\"length\"}\n"
        "(without the token that ends the turn) or {\"error\": \"...\"}. Exit status 1 when there was an "
        "error.\n"
        "\n"
        "  -m, --model FILE          GGUF file\n"
        "      --exact               float32 reference pass instead of the quantised one (slow)\n"
        "      --chat-template NAME  chatml, llama3, mistral, gemma, phi3 or zephyr (default: what the file "
        "holds)\n"
        "      --device NAME         cpu (default), cuda or auto\n"
        "  -t, --threads N           threads (default: one per core)\n"
        "  -h, --help                show this help\n";

typedef struct generator {
    model_tool tool;
    const chat_template
            *chat; /* NULL: the file has none that is known; messages are refused with chat_error */
    err chat_error;
    float *logits; /* [vocab] */
} generator;

/* One request. */
typedef struct job {
    token_list tokens; /* prompt, then what was generated */
    size_t n_prompt;
    int64_t max_tokens;
    bool ignore_eos, stopped;
    sampler_options sampling;
    plain_kv *kv;       /* product's pass */
    model_exact *exact; /* specification's */
} job;

/* ---- the request ---- */

static status read_float(
        const cJSON *o, const char *name, double missing, double min, double max, float *out, err *e)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(o, name);
    double value = m == NULL ? missing : m->valuedouble;
    if (m != NULL && (!cJSON_IsNumber(m) || !(value >= min && value <= max))) {
        return FAIL(e, ST_ERR_FORMAT, "%s: must be a number from %g to %g", name, min, max);
    }
    *out = (float)value;
    return ST_OK;
}

static status read_options(const cJSON *request, job *j, err *e)
{
    int64_t top_k = 0;
    int64_t seed = 0;
    sampler_options *o = &j->sampling;
    TRY(jsonl_get_int(request, "max_tokens", TOKENS_DEFAULT, 1, INT32_MAX, &j->max_tokens, e));
    TRY(jsonl_get_bool(request, "ignore_eos", false, &j->ignore_eos, e));
    TRY(read_float(request, "temperature", 0.0, 0.0, 100.0, &o->temperature, e));
    TRY(read_float(request, "top_p", 1.0, 0.0, 1.0, &o->top_p, e));
    TRY(read_float(request, "min_p", 0.0, 0.0, 1.0, &o->min_p, e));
    TRY(read_float(request, "repeat_penalty", 1.0, 0.01, 100.0, &o->repeat_penalty, e));
    TRY(jsonl_get_int(request, "top_k", 0, 0, INT32_MAX, &top_k, e));
    TRY(jsonl_get_int(request, "seed", 0, 0, (int64_t)1 << 53, &seed, e));
    o->top_k = (int)top_k;
    o->seed = (uint64_t)seed;
    return ST_OK;
}

static status read_message(const generator *g, const cJSON *item, int index, chat_message *out, err *e)
{
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(item, "role");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
    err inner = {0};
    if (!cJSON_IsString(role) || !cJSON_IsString(content)) {
        return FAIL(e, ST_ERR_FORMAT, "messages[%d]: must have a role and a content, both strings", index);
    }
    *out = (chat_message){role->valuestring, content->valuestring, strlen(content->valuestring)};
    status s = tokenizer_check(g->tool.tok, out->content, out->content_bytes, &inner);
    return s == ST_OK ? s : FAIL(e, s, "messages[%d].content: %s", index, inner.text);
}

static status render(const generator *g, const chat_message *messages, int n, token_list *out, err *e)
{
    marked_text text;
    marked_text_init(&text);
    status s = chat_template_render(g->chat, messages, n, true, true, &text, e);
    if (s == ST_OK) {
        s = tokenizer_encode_marked(g->tool.tok, &text, out, e);
    }
    marked_text_free(&text);
    return s;
}

static status read_messages(const generator *g, const cJSON *request, token_list *out, err *e)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(request, "messages");
    const cJSON *item;
    int n = cJSON_GetArraySize(list);
    int i = 0;
    if (!cJSON_IsArray(list) || n == 0 || n > MESSAGES_MAX) {
        return FAIL(e, ST_ERR_FORMAT, "messages: must be an array of 1 to %d messages", MESSAGES_MAX);
    }
    if (g->chat == NULL) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "messages: %s", g->chat_error.text);
    }
    chat_message *messages = base_zalloc((size_t)n, sizeof *messages);
    status s = messages == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for %d messages", n) : ST_OK;
    cJSON_ArrayForEach (item, list) {
        if (s == ST_OK) {
            s = read_message(g, item, i, &messages[i], e);
            i++;
        }
    }
    if (s == ST_OK) {
        s = render(g, messages, n, out, e);
    }
    base_free(messages);
    return s;
}

static status read_prompt(const generator *g, const cJSON *request, job *j, err *e)
{
    bool has_ids = jsonl_has(request, "ids");
    if (has_ids == jsonl_has(request, "messages")) {
        return FAIL(e, ST_ERR_FORMAT, "messages: one of \"messages\" and \"ids\" is needed%s",
                has_ids ? ", not both" : "");
    }
    if (has_ids) {
        TRY(jsonl_get_ids(
                request, "ids", model_get_config(g->tool.m)->vocab, &j->tokens.ids, &j->tokens.n, e));
        j->tokens.cap = j->tokens.n;
    } else {
        TRY(read_messages(g, request, &j->tokens, e));
    }
    j->n_prompt = j->tokens.n;
    if (j->n_prompt == 0) {
        return FAIL(e, ST_ERR_FORMAT, "ids: at least one token is needed");
    }
    return model_tool_check_length(&g->tool, (int64_t)j->n_prompt + 1, e); /* room for one answer token */
}

/* ---- the pass ---- */

static void copy_logits(void *ctx, int row, const float *logits)
{
    const generator *g = ctx;
    (void)row;
    memcpy(g->logits, logits, (size_t)model_get_config(g->tool.m)->vocab * sizeof *logits);
}

/* Appends tokens [from, from + n) to the cache; logits of the last are in g->logits when `wants_logits`. */
static status append(generator *g, job *j, size_t from, int n, bool wants_logits, err *e)
{
    const int32_t *ids = j->tokens.ids + from;
    if (j->exact != NULL) {
        return model_exact_append(j->exact, ids, n, wants_logits, copy_logits, g, NULL, 0, e);
    }
    model_run run = {.ids = ids,
            .n = n,
            .first_position = (int64_t)from,
            .kv = plain_kv_prepare(j->kv, n),
            .n_logits = wants_logits,
            .logits = g->logits};
    return model_forward(g->tool.m, g->tool.scratch, &run, 1, e);
}

static status read_in(generator *g, job *j, err *e)
{
    for (size_t from = 0; from < j->n_prompt; from += BLOCK_ROWS) {
        size_t n = j->n_prompt - from < BLOCK_ROWS ? j->n_prompt - from : BLOCK_ROWS;
        TRY(append(g, j, from, (int)n, from + n == j->n_prompt, e));
    }
    return ST_OK;
}

static status generate(generator *g, job *j, err *e)
{
    int vocab = model_get_config(g->tool.m)->vocab;
    TRY(read_in(g, j, e));
    for (int64_t step = 0; step < j->max_tokens; step++) {
        size_t n_recent = j->tokens.n < RECENT_MAX ? j->tokens.n : RECENT_MAX;
        int32_t id = sampler_pick(&j->sampling, g->logits, vocab, j->tokens.ids + j->tokens.n - n_recent,
                (int)n_recent, (uint64_t)step);
        j->stopped = !j->ignore_eos && g->tool.tok != NULL && tokenizer_is_end(g->tool.tok, id);
        if (j->stopped) {
            break;
        }
        TRY(token_list_push(&j->tokens, id));
        if (step + 1 < j->max_tokens) {
            TRY(append(g, j, j->tokens.n - 1, 1, true, e));
        }
    }
    return ST_OK;
}

static status open_cache(const generator *g, job *j, err *e)
{
    int64_t context = model_get_config(g->tool.m)->context;
    int64_t room = context - (int64_t)j->n_prompt;
    j->max_tokens = j->max_tokens < room ? j->max_tokens : room;
    int64_t tokens = (int64_t)j->n_prompt + j->max_tokens;
    return g->tool.exact ? model_exact_open(g->tool.m, tokens, &j->exact, e)
                         : plain_kv_open(g->tool.m, tokens, &j->kv, e);
}

/* ---- the answer ---- */

static status add_answer(const generator *g, const job *j, cJSON *reply)
{
    base_buf text = {.max = SIZE_MAX / 4};
    status s = jsonl_add_ids(reply, "ids", j->tokens.ids + j->n_prompt, j->tokens.n - j->n_prompt);
    for (size_t i = j->n_prompt; s == ST_OK && g->tool.tok != NULL && i < j->tokens.n; i++) {
        const char *piece = NULL;
        size_t bytes = 0;
        tokenizer_piece(g->tool.tok, j->tokens.ids[i], &piece, &bytes);
        s = base_buf_append(&text, piece, bytes);
    }
    if (s == ST_OK && g->tool.tok != NULL) {
        s = jsonl_add_text(reply, "text", text.data, text.size);
    }
    base_buf_free(&text);
    bool ok = s == ST_OK && cJSON_AddNumberToObject(reply, "prompt_tokens", (double)j->n_prompt) != NULL &&
            cJSON_AddStringToObject(reply, "finish_reason", j->stopped ? "stop" : "length") != NULL;
    return ok ? ST_OK : ST_ERR_MEMORY;
}

static status answer(void *ctx, const cJSON *request, cJSON *reply, err *e)
{
    generator *g = ctx;
    job j = {0};
    status s = read_options(request, &j, e);
    if (s == ST_OK) {
        s = read_prompt(g, request, &j, e);
    }
    if (s == ST_OK) {
        s = open_cache(g, &j, e);
    }
    if (s == ST_OK) {
        s = generate(g, &j, e);
    }
    if (s == ST_OK && add_answer(g, &j, reply) != ST_OK) {
        s = FAIL(e, ST_ERR_MEMORY, "out of memory for an answer");
    }
    token_list_free(&j.tokens);
    plain_kv_close(j.kv);
    model_exact_close(j.exact);
    return s;
}

/* A template that was asked for by name has to exist; one that is not recognised only makes messages impossible. */
static status open_generator(generator *g)
{
    TRY(model_tool_open(&g->tool, BLOCK_ROWS));
    g->logits = base_zalloc((size_t)model_get_config(g->tool.m)->vocab, sizeof *g->logits);
    if (g->logits == NULL) {
        (void)fprintf(stderr, "epimem generate: out of memory\n");
        return ST_ERR_MEMORY;
    }
    if (g->tool.tok == NULL) {
        (void)FAIL(&g->chat_error, ST_ERR_UNSUPPORTED, "this model file has no vocabulary, send \"ids\"");
        return ST_OK;
    }
    status s = chat_template_open(model_gguf(g->tool.m), g->tool.template_name, &g->chat, &g->chat_error);
    if (s != ST_OK && g->tool.template_name != NULL) {
        (void)fprintf(stderr, "epimem generate: %s\n", g->chat_error.text);
        return s;
    }
    return ST_OK;
}

int agent_generate_main(int argc, char **argv)
{
    generator g = {.tool = {.program = "generate"}};
    int exit_status = model_tool_arguments(&g.tool, argc, argv, help);
    if (exit_status >= 0) {
        return exit_status;
    }
    exit_status = 1;
    if (open_generator(&g) == ST_OK) {
        exit_status = jsonl_run(stdin, stdout, answer, &g);
    }
    chat_template_close(g.chat);
    base_free(g.logits);
    model_tool_close(&g.tool);
    return exit_status;
}
