/* Options and opening for the programs that run the model on JSON lines. */
#include <inttypes.h>
#include <stdio.h>

#include "agent/arguments_internal.h"
#include "agent/model_tool_internal.h"

typedef struct tool_arguments {
    model_tool *t;
    const char *help;
} tool_arguments;

static int take_option(void *options, int option, char *value)
{
    const tool_arguments *a = options;
    model_tool *t = a->t;
    switch (option) {
    case 'm':
        t->model_path = value;
        return -1;
    case 'x':
        t->exact = true;
        return -1;
    case 'c':
        t->template_name = value;
        return -1;
    case 'd':
        t->device = value;
        return -1;
    case 't':
        return arguments_int(value, 0, 1024, &t->threads)
                ? -1
                : arguments_mistake(t->program, "--threads must be a whole number from 0 to 1024");
    case 'h':
        return fputs(a->help, stdout) < 0 ? 1 : 0;
    case ARGUMENTS_WORD:
        return arguments_mistake(t->program, "too many arguments");
    default:
        return 2; /* getopt has said why */
    }
}

int model_tool_arguments(model_tool *t, int argc, char **argv, const char *help)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"exact", no_argument, NULL, 'x'}, {"threads", required_argument, NULL, 't'},
            {"chat-template", required_argument, NULL, 'c'}, {"device", required_argument, NULL, 'd'},
            {"help", no_argument, NULL, 'h'}, {0}};
    tool_arguments a = {.t = t, .help = help};
    int exit_status = arguments_read(argc, argv, "m:t:h", options, take_option, &a);
    if (exit_status >= 0) {
        return exit_status;
    }
    return t->model_path == NULL ? arguments_mistake(t->program, "-m MODEL is missing") : -1;
}

static status open_parts(model_tool *t, int max_rows, err *e)
{
    TRY(krn_pool_open(t->threads, &t->pool, e));
    TRY(t->float_activations ? model_open_float(t->pool, t->model_path, &t->m, e)
                             : model_open(t->pool, t->model_path, &t->m, e));
    if (gguf_has(model_gguf(t->m), "tokenizer.ggml.tokens")) {
        TRY(tokenizer_open(model_gguf(t->m), &t->tok, e));
    }
    TRY(model_set_device(t->m, t->exact || t->device == NULL ? "cpu" : t->device, 0, e));
    return t->exact ? ST_OK : model_scratch_open(t->m, max_rows, &t->scratch, e);
}

status model_tool_open(model_tool *t, int max_rows)
{
    err e = {0};
    status s = open_parts(t, max_rows, &e);
    if (s != ST_OK) {
        (void)fprintf(stderr, "epimem %s: %s\n", t->program, e.text);
    }
    return s;
}

void model_tool_close(model_tool *t)
{
    model_scratch_close(t->scratch);
    tokenizer_close(t->tok);
    model_close(t->m);
    krn_pool_close(t->pool);
}

status model_tool_check_length(const model_tool *t, int64_t n, err *e)
{
    int64_t context = model_get_config(t->m)->context;
    if (n > context) {
        return FAIL(e, ST_ERR_LIMIT, "%" PRId64 " tokens, the model's context is %" PRId64, n, context);
    }
    return ST_OK;
}
