/* The parts of `epimem eval codec`. */
#ifndef EPIMEM_AGENT_EVAL_CODEC_INTERNAL_H
#define EPIMEM_AGENT_EVAL_CODEC_INTERNAL_H

#include "agent/eval_internal.h"

typedef struct eval_codec_options {
    model_tool tool;
    const char **texts;
    int n_texts;
    const char *calibration_path, *codecs, *plot_path;
    int context, tokens;
    bool json;
} eval_codec_options;

typedef struct eval_codec_result {
    const kvq_codec *codec;
    eval_damage damage;
    eval_attention attention;
    double encode_us, decode_us; /* of coded_tokens */
    int64_t coded_tokens;
} eval_codec_result;

typedef struct eval_codec_run {
    eval_codec_options *o;
    kvq_codec *exact;
    eval_capture capture;
    eval_codecs codecs;
    eval_codec_result *results; /* [codecs.n] */
    int layers;
} eval_codec_run;
/* |coded - exact| / |exact| of attention outputs in a layer. */
double eval_attention_error(const eval_attention *a, int layer);

/* Prints the table, or the JSON lines. */
status eval_codec_report(const eval_codec_run *r, err *e);
/* Writes the picture. */
status eval_codec_plot(const eval_codec_run *r, err *e);

#endif
