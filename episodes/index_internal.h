/*
 * index: the arrays behind ep_index, shared by the files of this folder.
 *
 * Data flow of an append: windows.c makes the texts to embed and codes their vectors, lexical.c files the words,
 * segment.c cuts segments, cluster.c gives closed segments to episodes. match.c reads it all.
 *
 * Invariants
 * 1. Arrays only grow at the end, but for the episodes.
 * 2. A window is named by the utterance it ends with, so no vector waits for a later utterance: what looks ahead is
 *    resolved at reading time (ep_window_named).
 * 3. Of an append everything that can fail comes before the first change that could not be taken back by resetting
 *    counts (ep_index_append).
 */
#ifndef EPIMEM_EPISODES_INDEX_INTERNAL_H
#define EPIMEM_EPISODES_INDEX_INTERNAL_H

#include "episodes/episodes.h"
#include "episodes/lexical_internal.h"
#include "episodes/vectors_internal.h"

enum {
    EP_TITLE_BYTES_MAX = 80,
    EP_EPISODE_SEGMENTS_MAX = 64, /* a larger episode is split */
    EP_DISTINCT_WORDS_MAX = 1024, /* of one utterance; further ones are not indexed */
    EP_RUN_BACK_MAX = 4           /* the widest window reaches that far back */
};

/* An utterance. Its vectors lie in x->named and x->bare from first_window: of itself, and, unless it opens its run, of
 * the window of five (named) or three (bare) utterances that ends with it. */
typedef struct ep_item {
    char *line; /* "speaker: text", or the bare text when there is no speaker */
    size_t line_bytes, text_at;
    int32_t speaker; /* in x->speakers, or -1 */
    bool has_time;
    int64_t time_us, turn, first_token;
    int32_t tokens;
    int32_t run_at; /* utterances of its run before it, at most EP_RUN_BACK_MAX; a run has no gap of hours in it */
    int64_t first_window;
    int64_t first_part;
    int32_t parts; /* pieces of a long message, 0 for others */
    int64_t segment;
} ep_item;

/* A distinct speaker. A question that says a word of the name that is nobody else's is about that person. */
enum { EP_NAME_WORDS_MAX = 4 };
typedef struct ep_speaker {
    uint64_t name; /* hash of the whole name */
    uint64_t words[EP_NAME_WORDS_MAX];
    int n_words; /* 0 for roles such as "user" */
} ep_speaker;

typedef struct ep_segment {
    int64_t first, utterances, tokens;
    int episode; /* id; of the open last segment: where it would go now */
} ep_segment;

typedef struct ep_group {
    int id;
    int n_members;
    int64_t members[EP_EPISODE_SEGMENTS_MAX + 1]; /* closed segments in order */
    char title[EP_TITLE_BYTES_MAX + 1];
} ep_group;

struct ep_index {
    ep_options options;
    ep_model_ops ops;
    int dim; /* of the rotated space, in which all vectors here are */

    ep_item *items;
    size_t items_cap;
    int64_t n_items;
    ep_vectors named, bare, parts;
    int64_t *part_owners; /* [parts.count] utterance */
    size_t part_owners_cap;
    ep_lexical lexical;
    ep_speaker *speakers;
    size_t speakers_cap;
    int32_t n_speakers;

    ep_segment *segments;
    size_t segments_cap;
    int64_t n_segments;
    ep_vectors segment_vectors; /* of closed segments */

    ep_group *groups; /* ascending ids */
    size_t groups_cap;
    int n_groups;
    float *centroids; /* [n_groups][dim], unit length */
    size_t centroids_cap;
    int next_id;
    char tail_title[EP_TITLE_BYTES_MAX + 1]; /* of the episode that the open segment would join, with it */
    float *workspace;                        /* for splitting one episode */
};

static inline const char *ep_item_text(const ep_item *u, size_t *bytes)
{
    *bytes = u->line_bytes - u->text_at;
    return u->line + u->text_at;
}

/* ---- windows.c ---- */

/* Places in x->named and x->bare of the windows of five and of three around utterance i. */
int64_t ep_window_named(const ep_index *x, int64_t i);
int64_t ep_window_bare(const ep_index *x, int64_t i);
int ep_windows_ending_at(const ep_item *u); /* how many vectors it has in x->named, and in x->bare */
/* Embeds the texts of items [from, from + n), which lie behind n_items in x->items, in the order of the items, and
 * counts their parts. On failure the pools hold surplus vectors: the caller resets the counts. */
status ep_windows_embed(ep_index *x, int64_t from, int n, err *e);

/* ---- names.c ---- */

/* The speaker's place in x->speakers, added when new (room was reserved); -1 for no name. */
int32_t ep_speaker_add(ep_index *x, const char *name, size_t bytes);
/* The one speaker a question names, or -1 for none or several. bare [bytes + 1] gets the question without speakers'
 * names, *bare_bytes its length; *bare_bytes == bytes when nothing was taken out. */
int32_t ep_speaker_named(const ep_index *x, const char *text, size_t bytes, char *bare, size_t *bare_bytes);

/* ---- segment.c ---- */

/* Puts item i into the last segment or opens one; *closed is true when the last one was closed by that. */
void ep_segment_add(ep_index *x, int64_t i, bool *closed);
/* Utterances of its run before item i (its predecessor's fields must be set). */
int32_t ep_run_at(const ep_index *x, int64_t i);
/* Unit mean of the bare vectors of a segment; zero when there is nothing in it. */
void ep_segment_vector(const ep_index *x, const ep_segment *s, float *out);

/* ---- cluster.c: never fails, room was reserved ---- */

/* Gives closed segment s to its episode; splits and merges as needed. */
void ep_cluster_add(ep_index *x, int64_t s);
/* Places the open segment provisionally. */
void ep_cluster_tail(ep_index *x);
size_t ep_cluster_workspace_floats(int dim);
/* Place of an episode in groups, or -1: the provisional one of the open segment. */
int ep_group_find(const ep_index *x, int id);

/* ---- kmeans.c ---- */

/* Spherical k-means++ (Arthur and Vassilvitskii 2007; Dhillon and Modha 2001): v [n][dim] unit or zero vectors ->
 * assign [n] in [0, result). Greatest sum of cosines of `restarts` runs; ties go to the lower index and the earlier
 * run. Empty clusters are left out, so the result may be below k: 1 when all vectors are equal, at most n.
 * workspace: ep_kmeans_floats(n, dim, k) floats. */
int ep_kmeans(
        const float *v, int n, int dim, int k, int restarts, uint64_t seed, int *assign, float *workspace);
size_t ep_kmeans_floats(int n, int dim, int k);

#endif
