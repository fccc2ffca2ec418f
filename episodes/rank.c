/*
 * How much each utterance has to do with a question.
 *
 *   rank = z(dense) + 0.4 z(BM25 + half of the neighbours' BM25) + 1 [said by the one speaker named]
 *          + 3 (weight of its time, when the question names one) + 0.3 (mean of the best three of its run, above 0)
 *
 * z is the z-score over the session. dense is the sum of cosines over the windows: itself and the five around it as they
 * stand, with the question as it stands; bare text (twice) and the three around it bare, with the question bare of
 * speakers' names. Cosines add up, so one product with the mean vector of the windows gives their sum. Every weight was
 * measured (README.md); all are flat around the chosen value.
 */
#include "episodes/match_internal.h"
#include "episodes/text_internal.h"

#include <math.h>
#include <string.h>

static const float named_weight = 2, bare_weight = 3; /* windows in each mean */
static const float lexical_weight = 0.4f, neighbour_share = 0.5f, context_share = 0.5f;
static const float speaker_bonus = 1, time_bonus = 3, run_share = 0.3f;
enum { RUN_BEST = 3 };

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

static status embed_texts(
        const ep_index *x, const char *const *texts, const size_t *bytes, int n, float *v, err *e)
{
    TRY(x->ops.embed(x->ops.ctx, texts, bytes, n, v, e));
    for (int i = 0; i < n; i++) {
        if (!ep_unit(v + (size_t)i * (size_t)x->ops.dim, x->ops.dim)) {
            return FAIL(e, ST_ERR_FORMAT, "the sentence encoder gave a vector that is not finite");
        }
    }
    return ST_OK;
}

static status make_probes(const ep_index *x, const ep_query *q, ep_probes *p, char *bare, float *v, err *e)
{
    size_t bare_bytes = 0, dim = (size_t)x->ops.dim;
    p->speaker = ep_speaker_named(x, q->text, q->text_bytes, bare, &bare_bytes);
    bool names = bare_bytes != q->text_bytes && ep_text_words(bare, bare_bytes, 1) > 0;
    p->has_context = q->context != NULL && q->context_bytes > 0 && is_short(bare, bare_bytes);
    const char *texts[3] = {q->text};
    size_t bytes[3] = {q->text_bytes};
    int n = 1;
    if (names) {
        texts[n] = bare;
        bytes[n++] = bare_bytes;
    }
    if (p->has_context) {
        texts[n] = q->context;
        bytes[n++] = q->context_bytes;
    }
    TRY(embed_texts(x, texts, bytes, n, v, e));
    ep_probe_set(&p->whole, v, x->ops.dim);
    ep_probe_set(&p->bare, names ? v + dim : v, x->ops.dim);
    if (p->has_context) {
        ep_probe_set(&p->context, v + (size_t)(n - 1) * dim, x->ops.dim);
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

static void dense_of(
        const ep_index *x, const ep_probe *whole, const ep_probe *bare, float *dense, float *scratch)
{
    ep_vectors_scan(&x->named_means, x->n_items, whole, dense);
    ep_vectors_scan(&x->bare_means, x->n_items, bare, scratch);
    for (int64_t i = 0; i < x->n_items; i++) {
        dense[i] = named_weight * dense[i] + bare_weight * scratch[i];
    }
    /* A long message counts by its best piece, as if all its windows were that piece. */
    for (int64_t k = 0; k < x->parts.count; k++) {
        float s = (named_weight + bare_weight) * ep_vectors_dot(&x->parts, k, whole);
        int64_t i = x->part_owners[k];
        dense[i] = s > dense[i] ? s : dense[i];
    }
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

/* ranks += weight * z-score of values */
static void add_standardized(float *ranks, const float *values, int64_t n, float weight)
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
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        ranks[i] += weight * (float)(((double)values[i] - mean) / deviation);
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

void ep_rank_all(const ep_index *x, const ep_query *q, const ep_probes *p, float *ranks, float *scratch)
{
    int64_t n = x->n_items;
    float *values = scratch, *more = scratch + n, *context = scratch + 2 * n;
    memset(ranks, 0, (size_t)n * sizeof *ranks);
    dense_of(x, &p->whole, &p->bare, values, more);
    if (p->has_context) {
        dense_of(x, &p->context, &p->context, context, more);
        for (int64_t i = 0; i < n; i++) {
            values[i] += context[i];
        }
    }
    add_standardized(ranks, values, n, 1);
    score_lexical(x, q, p->has_context, values, more);
    add_standardized(ranks, values, n, lexical_weight);
    for (int64_t i = 0; i < n; i++) {
        const ep_item *u = &x->items[i];
        ranks[i] += p->speaker >= 0 && u->speaker == p->speaker ? speaker_bonus : 0;
        ranks[i] += u->has_time ? time_bonus * ep_time_weight(p->spans, p->n_spans, u->time_us) : 0;
    }
    add_runs(x, ranks);
}
