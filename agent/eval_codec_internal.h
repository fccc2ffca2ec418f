/* The parts of `epimem eval codec`. */
#ifndef EPIMEM_AGENT_EVAL_CODEC_INTERNAL_H
#define EPIMEM_AGENT_EVAL_CODEC_INTERNAL_H

#include "agent/eval_internal.h"

enum { EVAL_CODECS_MAX = 32 };

typedef struct eval_codec_options {
    model_tool tool;
    const char **texts;
    int n_texts;
    const char *calibration_path, *codecs, *plot_path;
    int context, tokens;
    bool json;
} eval_codec_options;

typedef struct eval_codec_result {
    char name[48];
    kvq_codec *codec;
    eval_damage damage;
    double encode_us; /* of coded_tokens */
    int64_t coded_tokens;
} eval_codec_result;

typedef struct eval_codec_run {
    eval_codec_options *o;
    kvq_codec *exact;
    eval_capture capture;
    eval_codec_result *results; /* [EVAL_CODECS_MAX] */
    int n_codecs;
} eval_codec_run;

/* Prints the table, or the JSON lines. */
status eval_codec_report(const eval_codec_run *r, err *e);
/* Writes the picture. */
status eval_codec_plot(const eval_codec_run *r, err *e);

#endif
