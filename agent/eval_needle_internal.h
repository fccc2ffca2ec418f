/* The parts of `epimem eval needle`. */
#ifndef EPIMEM_AGENT_EVAL_NEEDLE_INTERNAL_H
#define EPIMEM_AGENT_EVAL_NEEDLE_INTERNAL_H

#include "agent/eval_internal.h"

enum { NEEDLE_CONTEXTS_MAX = 8, NEEDLE_DEPTHS_MAX = 16, NEEDLE_LIST_MAX = 16, NEEDLE_FACTS = 24 };

typedef struct needle_options {
    model_tool tool;
    const char **texts; /* filler; none: the built-in texts */
    int n_texts;
    const char *calibration_path, *codecs, *plot_path;
    int contexts[NEEDLE_CONTEXTS_MAX]; /* tokens */
    int depths[NEEDLE_DEPTHS_MAX];     /* percent of the coded part of the context, rising */
    int n_contexts, n_depths, repeats;
    bool json;
} needle_options;

/* Sums over repeats. */
typedef struct needle_cell {
    double nll, added_nll, added_squared;
    int facts;
} needle_cell;
typedef struct needle_result {
    needle_cell cells[NEEDLE_CONTEXTS_MAX][NEEDLE_DEPTHS_MAX];
} needle_result;

typedef struct needle_run {
    const needle_options *o;
    eval_codecs codecs;
    kvq_codec *exact_codec;
    needle_result exact, *results; /* [codecs.n] */
    token_list filler;             /* as long as the longest context */
    eval_capture capture;
} needle_run;

/* ---- facts: the same ones in every run ---- */

/* Tokens of a fact: the words before what is asked for, and that. */
typedef struct needle_fact {
    token_list question, answer;
} needle_fact;
/* Fact `number` of repeat `repeat`: facts of one context differ in subject and in answer. Appends. */
status needle_fact_make(const model_tool *t, int number, int repeat, needle_fact *out, err *e);
void needle_fact_free(needle_fact *f);
/* A context of exactly `tokens` tokens: filler with fact i of this repeat at depth i, all within the coded part, each after
 * the end of a line where there is one. */
status needle_context(const needle_run *r, int tokens, int repeat, token_list *out, err *e);

/* ---- results ---- */

static inline double needle_mean(const needle_cell *c, double sum)
{
    return c->facts > 0 ? sum / c->facts : 0.0;
}
/* All cells of a result as one. */
needle_cell needle_total(const needle_options *o, const needle_result *r);
double needle_error(const needle_cell *c); /* standard error of the mean added NLL */
status needle_report(const needle_run *r, err *e);
status needle_plot(const needle_run *r, err *e);

#endif
