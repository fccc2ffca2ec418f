/*
 * Measuring memory: what `epimem eval memory` is made of, and what other measurements may use.
 *
 * A TALK is a conversation with annotated questions (LoCoMo or REALTALK layout). It is ingested into a session by the
 * product's own code: log, tiers, codec, index. A question is asked behind it under a chosen view and forgotten again; its
 * gold answer is scored token by token, and an answer may be decoded greedily. So every figure is of the code that serves.
 *
 * What a question is asked of is a MEMORY: something that tokens can be computed behind and that can be rewound. Sessions
 * are one kind, caches cut down by an eviction method another (eval_evict.c).
 */
#ifndef EPIMEM_AGENT_EVAL_MEMORY_INTERNAL_H
#define EPIMEM_AGENT_EVAL_MEMORY_INTERNAL_H

#include "agent/engine_internal.h"

/* ---- conversations ---- */

typedef struct eval_utterance { /* strings live in the talk */
    const char *speaker, *text, *id;
    bool has_time;
    int64_t time_us;
} eval_utterance;

typedef struct eval_question {
    const char *text;
    char *answer;  /* owned */
    int category;  /* of the file; 0: none */
    int *evidence; /* utterances, rising */
    int n_evidence;
} eval_question;

typedef struct eval_talk {
    char name[64];
    cJSON *json;
    eval_utterance *utterances;
    eval_question *questions; /* with evidence in the conversation; those of LoCoMo's category 5 have none */
    int n_utterances, n_questions;
    size_t utterances_cap, questions_cap;
} eval_talk;
status eval_talk_read(const char *path, eval_talk *out, err *e);
void eval_talk_close(eval_talk *t);
/* Thins the questions out to at most n, evenly over the file. */
void eval_talk_thin(eval_talk *t, int n);
/* Ends the conversation after n utterances; questions whose evidence lies behind them leave. */
void eval_talk_cut(eval_talk *t, int n);

/* ---- the bench: an engine without requests, whose parts are used on this thread ---- */

typedef struct eval_bench_options {
    const char *model_path, *encoder_path, *codec, *calibration_path;
    int threads;
    const char *keep_path; /* data folder in which ingested conversations stay for the next run; NULL: none */
    float floor;           /* cosine under which nothing is recalled; < 0: the encoder's */
    int64_t plain_tokens;  /* a history is attended whole up to here; 0: as the server does */
} eval_bench_options;

typedef struct eval_bench {
    agent_engine *engine;
    session_context coded; /* the product's sessions */
    session_context exact; /* sessions whose cache is BF16 and attended whole: references */
    kvq_codec *exact_codec;
    int vocab;
    float *logits;  /* [EVAL_MEMORY_ROWS][vocab] */
    float *pending; /* [vocab] after the last token of the prompt */
    int n_sessions;
} eval_bench;
enum { EVAL_MEMORY_ROWS = 64, EVAL_ANSWER_TOKENS = 32 };
status eval_bench_open(const eval_bench_options *o, eval_bench *out, err *e);
void eval_bench_close(eval_bench *b);

/* A session of utterances, each a message of its speaker; those that are empty or that the vocabulary cannot spell are left
 * out. turn_of, when not NULL, gets the turn of each utterance or -1. Nothing is computed yet. */
status eval_session_open(eval_bench *b,
        const session_context *x,
        const eval_utterance *u,
        int n,
        int *turn_of,
        session **out,
        err *e);
/* The same in the coded context under a name: what an earlier run has kept of it is loaded. */
status eval_session_open_kept(
        eval_bench *b, const char *name, const eval_utterance *u, int n, int *turn_of, session **out, err *e);
/* Puts log, index and what is computed into the store. */
status eval_session_keep(session *s, err *e);
/* Computes the keys and values of what lacks them. on_tokens may be NULL. Columns of a session of `coded` go to the store. */
typedef void (*eval_on_tokens)(void *ctx, int64_t done, int64_t total);
status eval_session_compute(eval_bench *b, session *s, eval_on_tokens on_tokens, void *ctx, err *e);
status eval_session_index(session *s, err *e);
/* The view of the server for this question with that many tokens recalled; *m is freed with ep_match_free. */
status eval_session_view(const eval_bench *b,
        session *s,
        const char *question,
        int64_t budget,
        tiers_view *v,
        ep_match *m,
        err *e);

/* ---- asking ---- */

typedef struct eval_memory {
    void *ctx;
    int64_t tokens; /* of the history */
    /* Computes n tokens behind what is there; logits [n_logits][vocab] of the last n_logits. */
    status (*append)(void *ctx, const int32_t *ids, int n, int n_logits, float *logits, err *e);
    /* Forgets the tokens appended last, so that `tokens` of them remain. */
    void (*rewind)(void *ctx, int64_t tokens);
    bool open_message; /* the history is an open user message, to be closed first */
} eval_memory;

typedef struct eval_answer {
    double nll; /* of the gold answer, mean over its tokens */
    double f1;  /* of the greedy answer; with_answer only */
    double first_token_ms, turn_ms;
    int prompt_tokens, answer_tokens;
    base_buf text; /* with_answer: what was decoded; freed by the caller */
} eval_answer;
/* Leaves the memory as it was. */
status eval_ask(eval_bench *b,
        const eval_memory *m,
        const eval_question *q,
        bool with_answer,
        eval_answer *out,
        err *e);

typedef struct eval_session_memory {
    eval_bench *b;
    session *s;
} eval_session_memory;
/* A computed session under a view, which is taken over. eval_session_leave rests the session. */
eval_memory eval_session_memory_of(eval_session_memory *m, eval_bench *b, session *s, tiers_view *v);
void eval_session_leave(eval_session_memory *m);

/* Token F1 as question answering measures it: lower case, no punctuation, no articles. */
double eval_token_f1(const char *answer, const char *gold);

#endif
