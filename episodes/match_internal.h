/*
 * match: from a question to ranked utterances. rank.c scores all utterances, select.c takes the best within the budget.
 */
#ifndef EPIMEM_EPISODES_MATCH_INTERNAL_H
#define EPIMEM_EPISODES_MATCH_INTERNAL_H

#include "episodes/dates_internal.h"
#include "episodes/index_internal.h"

/* A question as it is compared. A short one that leans on what was said before brings its context as a second query. */
typedef struct ep_probes {
    ep_probe whole, bare; /* with and without the speakers' names */
    ep_probe context;
    bool has_context;
    int32_t speaker; /* the one the question names, or -1 */
    ep_time_span spans[EP_TIME_SPANS_MAX];
    int n_spans;
    bool strict_time;
} ep_probes;

/* Embeds the question. *p is large: keep it on the heap. */
status ep_probes_make(const ep_index *x, const ep_query *q, ep_probes *p, err *e);
/* ranks [n_items] of all utterances; scratch [EP_RANK_SCRATCH * n_items], order [n_items]. */
enum { EP_RANK_SCRATCH = 4 };
void ep_rank_all(const ep_index *x,
        const ep_query *q,
        const ep_probes *p,
        float *ranks,
        float *scratch,
        int64_t *order);
/* Plain cosine of the best window around utterance i. */
float ep_score_of(const ep_index *x, const ep_probes *p, int64_t i);

/* ---- heap.c: items best first, ties to the later one; a heap, since a few of many are wanted ---- */

typedef struct ep_heap {
    const float *ranks; /* borrowed; must not change while the heap is in use */
    int64_t *items;     /* [n] */
    int64_t n;
    bool worst_first;
} ep_heap;
void ep_heap_fill(ep_heap *h, const float *ranks, int64_t *items, int64_t n);
int64_t ep_heap_pop(ep_heap *h); /* n must not be 0 */
/* The best `most` of n items, in no order, into items [n]; gives how many. Cheaper than a heap of all when few are wanted:
 * most items are compared once, in the order in which their ranks lie in memory. */
int64_t ep_heap_best(const float *ranks, int64_t *items, int64_t n, int64_t most);

#endif
