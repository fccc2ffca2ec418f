/*
 * How much each utterance has to do with a question.
 *
 *   rank = z(dense) + 0.4 z(BM25 + half of the neighbours' BM25) + 1 [said by the one speaker named]
 *          + 3 (weight of its time, when the question names one) + 0.3 (mean of the best three of its run, above 0)
 *
 * z is the z-score over the session. dense is the sum of cosines over the windows: itself and the five around it as they
 * stand, with the question as it stands; bare text (twice) and the three around it bare, with the question bare of
 * speakers' names. All utterances are scored by the first plane of their vectors, the best of them again by both. Every
 * weight was measured (README.md); all are flat around the chosen value.
 */
#include "episodes/match_internal.h"
#include "episodes/text_internal.h"

#include <math.h>
#include <string.h>

static const float lexical_weight = 0.4f, neighbour_share = 0.5f, context_share = 0.5f;
static const float speaker_bonus = 1, time_bonus = 3, run_share = 0.3f;
enum {
    RUN_BEST = 3,
    LOOKED_AT_AGAIN = 256 /* twice what a budget of 4,096 tokens holds */
};

/* ---- the question ---- */

/* Words that point back at what was said. */
static bool points_back(const ep_word *w)
{
    static const char *const words[] = {"it", "its", "that", "this", "those", "these", "they", "them",
            "their", "theirs", "he", "him", "his", "she", "her", "hers", "one", "ones", "there", "then",
            "same", "other", "others", "and", "but", "else", "also"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i]) == w->folded_bytes && memcmp(words[i], w->folded, w->folded_bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* "Why?", "and what about hers?", "how old is she?": too little to search with. */
static bool is_short(const char *text, size_t bytes)
{
    size_t at = 0;
    int content = 0;
    bool back = false;
    ep_word word;
    while (content <= 3 && ep_word_next(text, bytes, &at, &word)) {
        content += ep_word_key(&word) != 0;
        back = back || points_back(&word);
    }
    return content == 0 || (content <= 3 && back);
}

static void read_time(const ep_index *x, const ep_query *q, ep_probes *p)
{
    ep_time_frame frame = {.has_now = q->has_now, .now_us = q->now_us};
    bool any = false;
    for (int64_t i = 0; i < x->n_items; i++) {
        const ep_item *u = &x->items[i];
        if (u->has_time) {
            frame.log_from_us = !any || u->time_us < frame.log_from_us ? u->time_us : frame.log_from_us;
            frame.log_to_us = !any || u->time_us > frame.log_to_us ? u->time_us : frame.log_to_us;
            any = true;
        }
    }
    p->n_spans = any ? ep_time_spans(q->text, q->text_bytes, &frame, p->spans) : 0;
    p->strict_time = p->n_spans > 0;
    for (int i = 0; i < p->n_spans; i++) {
        p->strict_time = p->strict_time && p->spans[i].strict;
    }
}

/* v [n][ops.dim] is what the encoder gives, probes [n] what is compared. */
static status embed_texts(const ep_index *x,
        const char *const *texts,
        const size_t *bytes,
        int n,
        float *v,
        ep_probe *const *probes,
        err *e)
{
    float rotated[EP_DIM_MAX];
    TRY(x->ops.embed(x->ops.ctx, texts, bytes, n, v, e));
    for (int i = 0; i < n; i++) {
        float *one = v + (size_t)i * (size_t)x->ops.dim;
        if (!ep_unit(one, x->ops.dim)) {
            return FAIL(e, ST_ERR_FORMAT, "the sentence encoder gave a vector that is not finite");
        }
        ep_rotate(one, x->ops.dim, rotated);
        ep_probe_set(probes[i], rotated, x->dim);
    }
    return ST_OK;
}

static status make_probes(const ep_index *x, const ep_query *q, ep_probes *p, char *bare, float *v, err *e)
{
    size_t bare_bytes = 0;
    p->speaker = ep_speaker_named(x, q->text, q->text_bytes, bare, &bare_bytes);
    bool names = bare_bytes != q->text_bytes && ep_text_words(bare, bare_bytes, 1) > 0;
    p->has_context = q->context != NULL && q->context_bytes > 0 && is_short(bare, bare_bytes);
    const char *texts[3] = {q->text};
    size_t bytes[3] = {q->text_bytes};
    ep_probe *probes[3] = {&p->whole};
    int n = 1;
    if (names) {
        probes[n] = &p->bare;
        texts[n] = bare;
        bytes[n++] = bare_bytes;
    }
    if (p->has_context) {
        probes[n] = &p->context;
        texts[n] = q->context;
        bytes[n++] = q->context_bytes;
    }
    TRY(embed_texts(x, texts, bytes, n, v, probes, e));
    if (!names) {
        p->bare = p->whole;
    }
    read_time(x, q, p);
    return ST_OK;
}

status ep_probes_make(const ep_index *x, const ep_query *q, ep_probes *p, err *e)
{
    char *bare = base_alloc(q->text_bytes + 1);
    float *v = base_alloc(3 * (size_t)x->ops.dim * sizeof *v);
    status s = bare == NULL || v == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory for a match")
                                         : make_probes(x, q, p, bare, v, e);
    base_free(bare);
    base_free(v);
    return s;
}

/* ---- dense ---- */

/* What two probes make of one utterance: 2 windows with names, 3 shares of bare ones (the bare text counts twice). */
static float mixed(float named, float named_wide, float bare, float bare_wide)
{
    return named + named_wide + 2 * bare + bare_wide;
}
static const float windows_mixed = 5;

/* dense [n_items] by the first plane of the vectors; scratch [2 * n_items], since an utterance ends at most two windows
 * of a kind. */
static void dense_of(
        const ep_index *x, const ep_probe *whole, const ep_probe *bare, float *dense, float *scratch)
{
    ep_vectors_scan(&x->named, whole, scratch);
    for (int64_t i = 0; i < x->n_items; i++) {
        dense[i] = mixed(scratch[x->items[i].first_window], scratch[ep_window_named(x, i)], 0, 0);
    }
    ep_vectors_scan(&x->bare, bare, scratch);
    for (int64_t i = 0; i < x->n_items; i++) {
        dense[i] += mixed(0, 0, scratch[x->items[i].first_window], scratch[ep_window_bare(x, i)]);
    }
    /* A long message counts by its best piece, as if all its windows were that piece. */
    for (int64_t k = 0; k < x->parts.count; k++) {
        float s = windows_mixed * ep_vectors_dot(&x->parts, k, whole);
        int64_t i = x->part_owners[k];
        dense[i] = s > dense[i] ? s : dense[i];
    }
}

/* The same of one utterance, by both planes. */
static float dense_exactly(const ep_index *x, const ep_probe *whole, const ep_probe *bare, int64_t i)
{
    const ep_item *u = &x->items[i];
    float best = mixed(ep_vectors_dot(&x->named, u->first_window, whole),
            ep_vectors_dot(&x->named, ep_window_named(x, i), whole),
            ep_vectors_dot(&x->bare, u->first_window, bare),
            ep_vectors_dot(&x->bare, ep_window_bare(x, i), bare));
    for (int32_t k = 0; k < u->parts; k++) {
        float s = windows_mixed * ep_vectors_dot(&x->parts, u->first_part + k, whole);
        best = s > best ? s : best;
    }
    return best;
}

float ep_score_of(const ep_index *x, const ep_probes *p, int64_t i)
{
    const ep_item *u = &x->items[i];
    float best = -1;
    for (int c = 0; c < (p->has_context ? 2 : 1); c++) {
        const ep_probe *whole = c == 0 ? &p->whole : &p->context, *bare = c == 0 ? &p->bare : &p->context;
        float scores[4] = {ep_vectors_dot(&x->named, u->first_window, whole),
                ep_vectors_dot(&x->named, ep_window_named(x, i), whole),
                ep_vectors_dot(&x->bare, u->first_window, bare),
                ep_vectors_dot(&x->bare, ep_window_bare(x, i), bare)};
        for (int k = 0; k < 4; k++) {
            best = scores[k] > best ? scores[k] : best;
        }
        for (int32_t k = 0; k < u->parts; k++) {
            float s = ep_vectors_dot(&x->parts, u->first_part + k, whole);
            best = s > best ? s : best;
        }
    }
    return best;
}

/* ---- lexical ---- */

static void score_words(const ep_index *x, const char *text, size_t bytes, float *scores)
{
    uint64_t keys[EP_DISTINCT_WORDS_MAX];
    uint16_t counts[EP_DISTINCT_WORDS_MAX];
    int total = 0;
    int n = ep_text_keys(text, bytes, keys, counts, EP_DISTINCT_WORDS_MAX, &total);
    ep_lexical_score(&x->lexical, keys, n, scores);
}

static void score_lexical(
        const ep_index *x, const ep_query *q, bool with_context, float *near, float *scratch)
{
    score_words(x, q->text, q->text_bytes, near);
    if (with_context) {
        score_words(x, q->context, q->context_bytes, scratch);
        for (int64_t i = 0; i < x->n_items; i++) {
            near[i] += context_share * scratch[i];
        }
    }
    memcpy(scratch, near, (size_t)x->n_items * sizeof *near);
    for (int64_t i = 1; i < x->n_items; i++) {
        if (x->items[i].run_at > 0) {
            near[i] += neighbour_share * scratch[i - 1];
            near[i - 1] += neighbour_share * scratch[i];
        }
    }
}

/* ---- together ---- */

/* ranks += weight * z-score of values. Returns what a unit of the values adds to a rank. */
static float add_standardized(float *ranks, const float *values, int64_t n, float weight)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)values[i];
    }
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    }
    double deviation = sqrt(squares / (double)n);
    if (deviation < 1e-9) {
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        ranks[i] += weight * (float)(((double)values[i] - mean) / deviation);
    }
    return weight / (float)deviation;
}

/* Takes the coding error of the scan out of what ranks in front. */
static void look_again(
        const ep_index *x, const ep_probes *p, float *ranks, const float *dense, float gain, int64_t *order)
{
    int64_t n = ep_heap_best(ranks, order, x->n_items, LOOKED_AT_AGAIN);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = order[k];
        float exact = dense_exactly(x, &p->whole, &p->bare, i) +
                (p->has_context ? dense_exactly(x, &p->context, &p->context, i) : 0);
        ranks[i] += gain * (exact - dense[i]);
    }
}

/* An utterance gains from the best of its run: what was talked about around it, beyond the windows. */
static void add_runs(const ep_index *x, float *ranks)
{
    for (int64_t from = 0, to = 0; from < x->n_items; from = to) {
        float best[RUN_BEST] = {0};
        for (to = from; to == from || (to < x->n_items && x->items[to].run_at > 0); to++) {
            float r = ranks[to];
            for (int k = 0; k < RUN_BEST; k++) {
                if (r > best[k]) {
                    float swap = best[k];
                    best[k] = r;
                    r = swap;
                }
            }
        }
        float gain = 0;
        for (int k = 0; k < RUN_BEST; k++) {
            gain += run_share * best[k] / RUN_BEST;
        }
        for (int64_t i = from; i < to; i++) {
            ranks[i] += gain;
        }
    }
}

void ep_rank_all(const ep_index *x,
        const ep_query *q,
        const ep_probes *p,
        float *ranks,
        float *scratch,
        int64_t *order)
{
    int64_t n = x->n_items;
    float *dense = scratch, *values = scratch + n, *more = scratch + 2 * n;
    memset(ranks, 0, (size_t)n * sizeof *ranks);
    dense_of(x, &p->whole, &p->bare, dense, more);
    if (p->has_context) {
        dense_of(x, &p->context, &p->context, values, more);
        for (int64_t i = 0; i < n; i++) {
            dense[i] += values[i];
        }
    }
    float gain = add_standardized(ranks, dense, n, 1);
    score_lexical(x, q, p->has_context, values, more);
    (void)add_standardized(ranks, values, n, lexical_weight);
    for (int64_t i = 0; i < n; i++) {
        const ep_item *u = &x->items[i];
        ranks[i] += p->speaker >= 0 && u->speaker == p->speaker ? speaker_bonus : 0;
        ranks[i] += u->has_time ? time_bonus * ep_time_weight(p->spans, p->n_spans, u->time_us) : 0;
    }
    look_again(x, p, ranks, dense, gain, order);
    add_runs(x, ranks);
}
