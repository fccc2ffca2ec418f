/* What `epimem score` and `epimem generate` share: their options, and the open model. */
#ifndef EPIMEM_AGENT_MODEL_TOOL_INTERNAL_H
#define EPIMEM_AGENT_MODEL_TOOL_INTERNAL_H

#include "agent/jsonl_internal.h"
#include "agent/model_internal.h"
#include "agent/tokenizer_internal.h"

typedef struct model_tool {
    const char *program; /* "score" */
    const char *model_path, *template_name;
    bool exact;             /* the specification's pass instead of the product's */
    bool float_activations; /* model_open_float instead of model_open */
    const char *device;     /* as for model_set_device, but that NULL is the CPU */
    int threads;
    krn_pool *pool;
    model *m;
    tokenizer *tok;         /* NULL: the file has no vocabulary, so requests and answers are ids only */
    model_scratch *scratch; /* product's pass only */
} model_tool;

/* Reads the arguments. Returns -1 to go on, or the exit status: 0 after --help, 2 after a mistake (said on stderr). */
int model_tool_arguments(model_tool *t, int argc, char **argv, const char *help);
/* Opens pool, model and tokenizer, and scratch of max_rows unless exact. Says what failed on stderr. */
status model_tool_open(model_tool *t, int max_rows);
void model_tool_close(model_tool *t);
/* ST_ERR_LIMIT when n tokens do not fit the model's context. */
status model_tool_check_length(const model_tool *t, int64_t n, err *e);

#endif
