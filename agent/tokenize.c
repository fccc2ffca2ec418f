/* epimem tokenize: JSON lines of text in, JSON lines of token ids out. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/jsonl_internal.h"
#include "agent/tokenizer_internal.h"

static const char help[] =
        "Usage: epimem tokenize -m MODEL < REQUESTS > ANSWERS\n"
        "\n"
        "Turns text into the token ids of a model. One JSON object a line on standard input:\n"
        "  {\"text\": \"Hello\"}                  text to encode, or\n"
        "  {\"b64\": \"SGVsbG8=\"}                its bytes in base64 (for what JSON cannot carry)\n"
        "  \"parse_special\": true              control words in the text become their tokens (default "
        "false)\n"
        "One line on standard output for each, in order: {\"ids\":[...]} or {\"error\":\"...\"}.\n"
        "No begin-of-text token is added. Exit status 1 when there was an error.\n"
        "\n"
        "  -m, --model FILE   GGUF file (only its vocabulary is read)\n"
        "  -h, --help         show this help\n";

static status answer(void *ctx, const cJSON *request, cJSON *reply, err *e)
{
    const tokenizer *t = ctx;
    bool parse_special = false;
    base_buf text = {0};
    token_list ids = {0};
    status s = jsonl_get_bool(request, "parse_special", false, &parse_special, e);
    if (s == ST_OK) {
        s = jsonl_get_text(request, &text, e);
    }
    if (s == ST_OK) {
        s = tokenizer_encode(t, text.data, text.size, parse_special, &ids, e);
    }
    if (s == ST_OK && jsonl_add_ids(reply, "ids", ids.ids, ids.n) != ST_OK) {
        s = FAIL(e, ST_ERR_MEMORY, "no memory for an answer of %zu ids", ids.n);
    }
    token_list_free(&ids);
    base_buf_free(&text);
    return s;
}

static int run(const char *path)
{
    gguf *g = NULL;
    tokenizer *t = NULL;
    err e = {0};
    int exit_status = 1;
    if (gguf_open(path, &g, &e) != ST_OK || tokenizer_open(g, &t, &e) != ST_OK) {
        (void)fprintf(stderr, "epimem tokenize: %s\n", e.text);
    } else {
        exit_status = jsonl_run(stdin, stdout, answer, t);
    }
    tokenizer_close(t);
    gguf_close(g);
    return exit_status;
}

int agent_tokenize_main(int argc, char **argv)
{
    static const struct option options[] = {
            {"model", required_argument, NULL, 'm'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *model = NULL;
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, "m:h", options, NULL)) != -1) {
        if (option == 'h') {
            return fputs(help, stdout) < 0 ? 1 : 0;
        }
        if (option != 'm') {
            return 2; /* getopt has said why */
        }
        model = optarg;
    }
    if (model == NULL || optind != argc) {
        (void)fprintf(stderr, "epimem tokenize: %s; see epimem tokenize --help\n",
                model == NULL ? "-m MODEL is missing" : "too many arguments");
        return 2;
    }
    return run(model);
}
