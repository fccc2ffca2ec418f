/*
 * From ranks to a match: candidates best first, the floor, the budget, the reasons, the episodes.
 *
 * Two floors, both on plain cosines. When no utterance that could be recalled reaches the encoder's floor, nothing is:
 * the question is about something else. When one does, an utterance is used only from row_share of the floor on: below
 * that it is no evidence (measured: dropping those rows costs no recall at any budget), but people see it, and every
 * token pays for it.
 */
#include "episodes/match_internal.h"

#include <string.h>

enum {
    UNUSED_HITS_MAX = 32,
    GATE_CANDIDATES = 256, /* the best by rank, among which the floor is looked for */
    FRUITLESS_MAX = 1024   /* candidates in a row that could not be used: the rest will not either */
};
static const float row_share = 0.65f;

const char *ep_reason_text(ep_reason r)
{
    switch (r) {
    case EP_USED:
        return "used";
    case EP_BELOW_FLOOR:
        return "below the floor";
    case EP_OVER_BUDGET:
        return "over the token budget";
    case EP_ATTENDED:
        return "attended anyway";
    case EP_OUT_OF_TIME:
        return "not of the time the question names";
    }
    return "unknown";
}

/* ---- one match at work ---- */

typedef struct work {
    const ep_index *x;
    const ep_query *q;
    ep_probes *probes;
    float *ranks, *scratch; /* [n], [EP_RANK_SCRATCH n] */
    int64_t *order;         /* [n] */
    ep_heap left;
    ep_hit gate[GATE_CANDIDATES];
    int n_gate;
    bool by_time; /* rows out of the named time are left out */
    ep_hit *used;
    size_t used_cap;
    ep_hit unused[UNUSED_HITS_MAX];
    int n_used, n_unused;
    int64_t used_tokens;
    float best;
} work;

/* Rows of utterance i that are not attended anyway, from *first on. */
static int64_t rows_of(const work *w, int64_t i, int64_t *first)
{
    const ep_item *u = &w->x->items[i];
    int64_t from = u->first_token, to = from + u->tokens;
    from = from < w->q->attended_before ? w->q->attended_before : from;
    to = to > w->q->attended_from ? w->q->attended_from : to;
    *first = from;
    return to > from ? to - from : 0;
}

/* The hit of utterance i with the rows that are not attended anyway. */
static ep_hit hit_of(const work *w, int64_t i)
{
    const ep_item *u = &w->x->items[i];
    int64_t from = 0, rows = rows_of(w, i, &from);
    ep_hit h = {.utterance = i,
            .turn = u->turn,
            .first_token = from,
            .tokens = (int32_t)rows,
            .episode = w->x->segments[u->segment].episode,
            .score = ep_score_of(w->x, w->probes, i),
            .rank = w->ranks[i]};
    if (u->tokens > 0 && h.tokens == 0) {
        h.first_token = u->first_token;
        h.tokens = u->tokens;
        h.reason = EP_ATTENDED;
    }
    return h;
}

static bool is_out_of_time(const work *w, const ep_hit *h)
{
    const ep_item *u = &w->x->items[h->utterance];
    return w->by_time && u->has_time &&
            !(ep_time_weight(w->probes->spans, w->probes->n_spans, u->time_us) > 0);
}

/* Looks at the best candidates: whether anything matches at all, and whether the named time has something to say. A
 * time that nothing matching is of narrows nothing. */
static void open_gate(work *w)
{
    w->best = -1;
    for (; w->n_gate < GATE_CANDIDATES && w->left.n > 0; w->n_gate++) {
        w->gate[w->n_gate] = hit_of(w, ep_heap_pop(&w->left));
    }
    w->by_time = w->probes->strict_time;
    bool timely = false;
    for (int k = 0; k < w->n_gate; k++) {
        const ep_hit *h = &w->gate[k];
        timely = timely ||
                (h->reason != EP_ATTENDED && h->score >= w->x->ops.floor &&
                        w->x->items[h->utterance].has_time && !is_out_of_time(w, h));
    }
    w->by_time = w->by_time && timely;
    for (int k = 0; k < w->n_gate; k++) {
        const ep_hit *h = &w->gate[k];
        if (h->reason != EP_ATTENDED && !is_out_of_time(w, h) && h->score > w->best) {
            w->best = h->score;
        }
    }
}

static ep_reason judge(const work *w, const ep_hit *h)
{
    if (h->reason == EP_ATTENDED) {
        return EP_ATTENDED;
    }
    if (w->best < w->x->ops.floor || h->score < row_share * w->x->ops.floor) {
        return EP_BELOW_FLOOR;
    }
    if (is_out_of_time(w, h)) {
        return EP_OUT_OF_TIME;
    }
    return h->tokens > w->q->budget_tokens - w->used_tokens ? EP_OVER_BUDGET : EP_USED;
}

static status take(work *w, ep_hit h)
{
    h.reason = judge(w, &h);
    h.used = h.reason == EP_USED;
    if (!h.used) {
        if (w->n_unused < UNUSED_HITS_MAX) {
            w->unused[w->n_unused++] = h;
        }
        return ST_OK;
    }
    void *used = w->used;
    TRY(base_grow(&used, &w->used_cap, (size_t)w->n_used + 1, INT32_MAX, sizeof *w->used));
    w->used = used;
    w->used[w->n_used++] = h;
    w->used_tokens += h.tokens;
    return ST_OK;
}

/* Units are taken whole, best first; one that does not fit leaves its place to the next. */
static status fill_budget(work *w)
{
    int fruitless = 0;
    for (int k = 0; fruitless < FRUITLESS_MAX; k++) {
        if (k >= w->n_gate && w->left.n == 0) {
            break;
        }
        bool full = w->used_tokens >= w->q->budget_tokens || w->best < w->x->ops.floor;
        if (full && w->n_unused == UNUSED_HITS_MAX) {
            break;
        }
        int before_n = w->n_used;
        if (k < w->n_gate) {
            TRY(take(w, w->gate[k]));
        } else {
            int64_t i = ep_heap_pop(&w->left);
            int64_t first = 0, left = w->q->budget_tokens - w->used_tokens;
            bool tells = w->n_unused < UNUSED_HITS_MAX || rows_of(w, i, &first) <= left;
            if (tells) { /* others are not used and not shown: their score is nobody's business */
                TRY(take(w, hit_of(w, i)));
            }
        }
        fruitless = w->n_used > before_n ? 0 : fruitless + 1;
    }
    return ST_OK;
}

/* ---- the result ---- */

static status add_episode(const work *w, ep_match *m, const ep_hit *h, size_t *cap)
{
    for (int i = 0; i < m->n_episodes; i++) {
        ep_episode *known = &m->episodes[i];
        if (known->id == h->episode) {
            known->score = h->score > known->score ? h->score : known->score;
            known->used = known->used || h->used;
            return ST_OK;
        }
    }
    void *episodes = m->episodes;
    TRY(base_grow(&episodes, cap, (size_t)m->n_episodes + 1, INT32_MAX, sizeof *m->episodes));
    m->episodes = episodes;
    int g = ep_group_find(w->x, h->episode);
    ep_episode *e = &m->episodes[m->n_episodes++];
    REQUIRE(ep_index_episode(w->x, g >= 0 ? g : w->x->n_groups, e) == ST_OK);
    e->score = h->score;
    e->used = h->used;
    return ST_OK;
}

/* Episodes in the order of their best-ranked hit, those of used hits in front. */
static status add_episodes(const work *w, ep_match *m)
{
    size_t cap = 0;
    for (int i = 0; i < m->n_hits; i++) {
        TRY(add_episode(w, m, &m->hits[i], &cap));
    }
    return ST_OK;
}

static status finish(work *w, ep_match *m)
{
    m->best_score = w->best;
    m->floor = w->x->ops.floor;
    m->n_used = w->n_used;
    m->n_hits = w->n_used + w->n_unused;
    m->used_tokens = w->used_tokens;
    if (m->n_hits == 0) {
        return ST_OK;
    }
    m->hits = base_zalloc((size_t)m->n_hits, sizeof *m->hits);
    if (m->hits == NULL) {
        return ST_ERR_MEMORY;
    }
    if (w->n_used > 0) {
        memcpy(m->hits, w->used, (size_t)w->n_used * sizeof *m->hits);
    }
    memcpy(m->hits + w->n_used, w->unused, (size_t)w->n_unused * sizeof *m->hits);
    return add_episodes(w, m);
}

static status run(work *w, ep_match *m, err *e)
{
    size_t n = (size_t)w->x->n_items;
    w->probes = base_zalloc(1, sizeof *w->probes);
    w->ranks = base_zalloc(n, sizeof *w->ranks);
    w->scratch = base_zalloc(n, EP_RANK_SCRATCH * sizeof *w->scratch);
    w->order = base_zalloc(n, sizeof *w->order);
    if (w->probes == NULL || w->ranks == NULL || w->scratch == NULL || w->order == NULL) {
        return ST_ERR_MEMORY;
    }
    TRY(ep_probes_make(w->x, w->q, w->probes, e));
    ep_rank_all(w->x, w->q, w->probes, w->ranks, w->scratch, w->order);
    ep_heap_fill(&w->left, w->ranks, w->order, w->x->n_items);
    open_gate(w);
    TRY(fill_budget(w));
    return finish(w, m);
}

status ep_match_run(const ep_index *x, const ep_query *q, ep_match *out, err *e)
{
    ep_match m = {.floor = x->ops.floor, .best_score = -1};
    if (q->text == NULL || q->text_bytes == 0 || x->n_items == 0) {
        *out = m;
        return ST_OK;
    }
    work *w = base_zalloc(1, sizeof *w);
    if (w == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a match");
    }
    w->x = x;
    w->q = q;
    status s = run(w, &m, e);
    base_free(w->probes);
    base_free(w->ranks);
    base_free(w->scratch);
    base_free(w->order);
    base_free(w->used);
    base_free(w);
    if (s != ST_OK) {
        ep_match_free(&m);
        return s == ST_ERR_MEMORY ? FAIL(e, s, "no memory for a match") : s;
    }
    *out = m;
    return ST_OK;
}

void ep_match_free(ep_match *m)
{
    base_free(m->hits);
    base_free(m->episodes);
    *m = (ep_match){0};
}
