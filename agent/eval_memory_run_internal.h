/* The parts of `epimem eval memory`: options, modes, results. */
#ifndef EPIMEM_AGENT_EVAL_MEMORY_RUN_INTERNAL_H
#define EPIMEM_AGENT_EVAL_MEMORY_RUN_INTERNAL_H

#include <stdio.h>

#include "agent/eval_memory_internal.h"

enum { EVAL_BUDGETS_MAX = 16, EVAL_FILES_MAX = 256, EVAL_CATEGORIES = 8 };

typedef struct eval_memory_options {
    eval_bench_options bench;
    char *paths[EVAL_FILES_MAX]; /* owned */
    int n_paths;
    const char *modes; /* names with commas */
    int64_t budgets[EVAL_BUDGETS_MAX];
    int n_budgets;
    int questions;   /* of each file at most; 0: all */
    int64_t history; /* tokens of each file at most; 0: all */
    bool no_generate, selection_only, missed, json;
} eval_memory_options;

/* ---- caches cut down to a budget (eval_evict.c says how) ---- */

typedef enum eval_evict_method { EVAL_STREAMING, EVAL_H2O, EVAL_SNAPKV, EVAL_KEYDIFF } eval_evict_method;
typedef struct eval_evicted eval_evicted;
/* Reads a history of n tokens, keeping `budget` (more than 32) of them for each (layer, KV head). */
status eval_evicted_open(eval_bench *b,
        eval_evict_method method,
        int64_t budget,
        const int32_t *ids,
        int64_t n,
        eval_evicted **out,
        err *e);
void eval_evicted_close(eval_evicted *x);
eval_memory eval_evicted_memory(eval_evicted *x); /* borrowed; open_message is the caller's to set */
/* Adds to shares[token] the share of (layer, KV head) that keep it; gives the number of entries kept. */
int64_t eval_evicted_shares(const eval_evicted *x, float *shares);

/* One question asked of one mode. Bytes are of keys and values. */
typedef struct eval_result {
    double recall, precision, tokens_attended, nll, f1;
    double bytes_held;     /* kept from turn to turn so that any question can be answered */
    double bytes_attended; /* read for every token of this answer */
    double bytes_loaded;   /* from the store for this question */
    double match_ms, first_token_ms, turn_ms;
    double gap_evidence, gap_none; /* nll minus that of the references */
} eval_result;

/* A conversation being measured. */
typedef struct eval_case {
    const eval_memory_options *o;
    eval_bench *b;
    eval_talk talk;
    session *
            s; /* of the coded context: its log and index, and its keys and values once a mode asked for them */
    bool computed;
    int *turn_of;    /* [utterances] */
    float *attended; /* [tokens of the history]: share of (layer, KV head) in which the token was attended */
    double *nll_none, *nll_evidence; /* [questions] */
    session *whole;                  /* the exact one of mode full */
    eval_evicted *evicted;           /* of the method and budget asked for last */
    eval_evict_method evicted_method;
    int64_t evicted_budget;
    double ingest_s;
} eval_case;

typedef struct eval_mode {
    const char *name, *about;
    bool has_budget;
    status (*ask)(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e);
} eval_mode;
const eval_mode *eval_mode_find(const char *name, size_t bytes);
void eval_mode_print_all(FILE *to);
/* Fills nll_none and nll_evidence. */
status eval_case_references(eval_case *c, err *e);
/* Asks general questions that no conversation is about; adds to the counts of those asked and those that recall something. */
status eval_count_unrelated(const eval_case *c, int *asked, int *recalled, err *e);
/* Bytes of one token's BF16 rows in all layers and heads. */
double eval_exact_bytes(const eval_bench *b);

/* Sums over questions. */
typedef struct eval_sums {
    int questions;
    eval_result sum;
} eval_sums;

/* A mode at a budget. */
typedef struct eval_row {
    const eval_mode *mode;
    int64_t budget;
    eval_sums all, category[EVAL_CATEGORIES], file[EVAL_FILES_MAX];
    char skipped[160]; /* why there is nothing for a file */
} eval_row;

typedef struct eval_memory_run {
    eval_memory_options *o;
    eval_bench bench;
    eval_row *rows;
    int n_rows;
    char (*files)[64];
    int n_files;
    int64_t history_tokens;
    int n_utterances, n_segments, n_episodes;
    int n_unrelated, n_unrelated_recalled; /* general questions asked, and those that recall something */
} eval_memory_run;
double eval_mean(const eval_sums *s, double sum);
status eval_memory_report(const eval_memory_run *r, err *e);

#endif
