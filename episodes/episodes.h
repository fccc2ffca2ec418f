/*
 * episodes: which part of a long conversation a question needs. Pure decisions over arrays: no transformer, no
 * tokens' content, no disk. The model is reached through ep_model_ops alone.
 *
 * An UTTERANCE is one message: the unit of recall, scored with its surroundings, attended alone. A SEGMENT is a few
 * consecutive utterances (at most 4, at most 512 tokens, never across a gap of hours). An EPISODE is a cluster of
 * segments about one topic, with a unit-norm centroid, a title (its most central utterance), times and counters. It
 * bounds the search when the history is large, and is what people are shown.
 *
 * The state of an index is a function of the sequence of utterances appended, and of nothing else: not of how they
 * were chopped into calls, of time, or of chance (seeds are fixed). So a rebuild from the token log reproduces it.
 * Scores that leave this folder are plain cosines in [-1, 1], comparable from query to query.
 *
 * Threads: an index belongs to one thread at a time; matching does not change it.
 */
#ifndef EPIMEM_EPISODES_EPISODES_H
#define EPIMEM_EPISODES_EPISODES_H

#include "kernels/base.h"

/* The sentence encoder. embed: n texts -> out [n][dim], unit vectors (zero vector for an empty text). Deterministic
 * per text. `floor` is the plain cosine under which nothing matches, a property of the encoder. */
typedef struct ep_model_ops {
    void *ctx;
    int dim;
    float floor;
    status (*embed)(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e);
} ep_model_ops;

typedef struct ep_utterance {
    const char *text; /* bare content, UTF-8, copied by the index */
    size_t text_bytes;
    const char *speaker; /* name or role; copied */
    bool has_time;
    int64_t time_us;     /* Unix time */
    int64_t turn;        /* the caller's number */
    int64_t first_token; /* rows [first_token, first_token + tokens) of the session */
    int32_t tokens;
} ep_utterance;

typedef struct ep_options {
    int segment_utterances_max; /* 4 */
    int segment_tokens_max;     /* 512 */
    int64_t segment_gap_us;     /* 4 hours */
    float join_threshold;       /* cosine at which a segment joins an episode instead of founding one */
    uint64_t seed;
} ep_options;
void ep_options_default(ep_options *o);

typedef struct ep_index ep_index;
status ep_index_open(const ep_options *o, const ep_model_ops *ops, ep_index **out, err *e);
void ep_index_close(ep_index *x);

/* Appends in conversation order. On error nothing of the call is kept. */
status ep_index_append(ep_index *x, const ep_utterance *u, int n, err *e);
int64_t ep_index_utterances(const ep_index *x);
int64_t ep_index_segments(const ep_index *x);
int ep_index_episodes(const ep_index *x);
/* Id of the episode with the row of a token; -1 where no utterance has it. */
int ep_index_episode_at(const ep_index *x, int64_t token);

typedef struct ep_episode { /* a view: pointers live until the next append or close */
    int id;
    const char *title; /* the most central utterance, cut at a character border to 80 bytes */
    bool has_time;
    int64_t from_us, to_us;
    int64_t utterances, segments, tokens;
    int64_t first_turn, last_turn;
    float score; /* cosine of the query to its best window; set by matching only */
    bool used;
} ep_episode;
status ep_index_episode(const ep_index *x, int i, ep_episode *out); /* i in [0, episodes) */

typedef enum ep_reason {
    EP_USED,
    EP_BELOW_FLOOR, /* nothing that could be recalled reaches the floor, or this one is far under it */
    EP_OVER_BUDGET, /* ranked behind what filled the budget */
    EP_ATTENDED,    /* its rows are in the pinned or recent tier already */
    EP_OUT_OF_TIME  /* the question names a time and this is not of it */
} ep_reason;
const char *ep_reason_text(ep_reason r);

typedef struct ep_hit {
    int64_t utterance, turn, first_token;
    int32_t tokens;
    int episode; /* id */
    float score; /* plain cosine of its best window */
    float rank;  /* what ordered it: fused dense and lexical score, comparable inside this match only */
    bool used;
    ep_reason reason;
} ep_hit;

typedef struct ep_query {
    const char *text; /* the bare question */
    size_t text_bytes;
    const char *context; /* what the previous turns were about, for short questions; NULL for none */
    size_t context_bytes;
    int64_t budget_tokens;
    int64_t attended_before,
            attended_from; /* rows < attended_before or >= attended_from are attended anyway */
    bool has_now;
    int64_t now_us; /* when the question is asked, for words like "yesterday" */
} ep_query;

/* hits: best first, all used ones and then up to 32 that were not; a hit's rows leave out those that are attended
 * anyway. episodes: those with a hit, in the order of their first one. best_score: of what could be recalled, -1 when
 * there is nothing. Ties go to the later utterance. Freed with ep_match_free. */
typedef struct ep_match {
    ep_hit *hits;
    int n_hits, n_used;
    ep_episode *episodes; /* titles live as the index's */
    int n_episodes;
    int64_t used_tokens;
    float best_score, floor;
} ep_match;
status ep_match_run(const ep_index *x, const ep_query *q, ep_match *out, err *e);
void ep_match_free(ep_match *m);

/* ---- the plan: how recalled rows are laid out ---- */

/* One run of rows that moves together: a gathered page holds one piece (at most 128 rows, so a long utterance is
 * several pieces in its own order). `at` is the position its first row takes, counted from the first recalled row. */
typedef struct ep_piece {
    int64_t first_token;
    int32_t rows;
    int64_t at;
} ep_piece;
/* Lays out the used hits of a match: best match last (nearest to the question), rows of one utterance in order.
 * *pieces is freed by the caller with base_free. */
status ep_plan(const ep_match *m, ep_piece **pieces, int *n_pieces, err *e);

#endif
