/*
 * Episodes over time. A closed segment joins the episode with the nearest centroid when their cosine reaches
 * join_threshold, and founds one otherwise. An episode that has grown too large or too loose is split in two by k-means;
 * two episodes whose centroids have met become one. Each step looks at the segments so far alone, so the result is a
 * function of the order of the segments; ids are given in the order of founding and never used twice.
 *
 * Degenerate input: a segment without content (zero vector) stays with its predecessor; an episode that k-means cannot
 * divide (all vectors equal) is cut in the middle of its time.
 */
#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

#include <math.h>
#include <string.h>

/* Chosen by looking at the episodes of three conversations; they shape what people see, not what is recalled. */
enum { LOOSE_SEGMENTS_MIN = 16, SPLIT_RESTARTS = 4, MERGED_SEGMENTS_MAX = EP_EPISODE_SEGMENTS_MAX * 3 / 4 };
static const double loose_mean_cosine = 0.62; /* mean cosine of the members to their centroid */
static const double merge_cosine = 0.85;

static float *centroid(const ep_index *x, int g)
{
    return x->centroids + (size_t)g * (size_t)x->dim;
}

static double cosine(const float *a, const float *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static bool is_zero(const float *v, int dim)
{
    for (int i = 0; i < dim; i++) {
        if (v[i] < 0 || v[i] > 0) {
            return false;
        }
    }
    return true;
}

int ep_group_find(const ep_index *x, int id)
{
    int lo = 0, hi = x->n_groups;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (x->groups[mid].id < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < x->n_groups && x->groups[lo].id == id ? lo : -1;
}

static int nearest_group(const ep_index *x, const float *v, double *most)
{
    int best = -1;
    *most = -2;
    for (int g = 0; g < x->n_groups; g++) {
        double s = cosine(centroid(x, g), v, x->dim);
        if (s > *most) {
            *most = s;
            best = g;
        }
    }
    return best;
}

/* Where a segment vector belongs, or -1: nowhere yet. `before` is the segment in front of it or -1. */
static int group_for(const ep_index *x, const float *v, int64_t before)
{
    if (is_zero(v, x->dim)) {
        return before >= 0 ? ep_group_find(x, x->segments[before].episode) : -1;
    }
    double most = 0;
    int g = nearest_group(x, v, &most);
    return most >= (double)x->options.join_threshold ? g : -1;
}

/* ---- titles ---- */

enum { TITLE_WORDS_MAX = 12 };

/* How much an utterance tells, in the rarity of its first words: "Sounds good, thanks!" is near every centroid. */
static double told_by(const ep_index *x, int64_t i)
{
    uint64_t keys[TITLE_WORDS_MAX];
    uint16_t counts[TITLE_WORDS_MAX];
    size_t bytes = 0;
    int total = 0;
    double told = 0;
    const char *text = ep_item_text(&x->items[i], &bytes);
    bytes = ep_text_cut(text, bytes, 2 * EP_TITLE_BYTES_MAX);
    int n = ep_text_keys(text, bytes, keys, counts, TITLE_WORDS_MAX, &total);
    for (int k = 0; k < n; k++) {
        told += ep_lexical_idf(&x->lexical, keys[k]);
    }
    return log(1 + told);
}

typedef struct title_pick {
    int64_t best;
    double score;
    double told_most; /* no utterance tells more: every word a new one */
} title_pick;

/* Centrality times what is told. Of nearly equals the first: a topic is named where it is opened. Words are read only of
 * utterances that could still win. */
static void title_visit(const ep_index *x, const ep_segment *s, const ep_probe *probe, title_pick *pick)
{
    static const double clearly_better = 1.03;
    for (int64_t i = s->first; i < s->first + s->utterances; i++) {
        double centrality = (double)ep_vectors_dot(&x->bare, x->items[i].first_window, probe);
        if (pick->best >= 0 && centrality * pick->told_most <= pick->score * clearly_better &&
                pick->score >= 0) {
            continue;
        }
        double score = centrality * told_by(x, i);
        if (pick->best < 0 || score > pick->score * clearly_better) {
            pick->best = i;
            pick->score = score;
        }
    }
}

static void write_title(const ep_index *x, int64_t item, char *title)
{
    size_t bytes = 0;
    const char *text = ep_item_text(&x->items[item], &bytes);
    bytes = ep_text_cut(text, bytes, EP_TITLE_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++) {
        title[i] = (unsigned char)text[i] < ' ' ? ' ' : text[i]; /* one line, and no text is cut at a NUL */
    }
    title[bytes] = '\0';
}

/* The most central utterance of the members and of `more` (may be NULL). */
static void set_title(
        const ep_index *x, const ep_group *group, const float *centre, const ep_segment *more, char *title)
{
    ep_probe probe;
    title_pick pick = {-1, 0, log(1 + TITLE_WORDS_MAX * ep_lexical_idf(&x->lexical, 0))};
    ep_probe_set(&probe, centre, x->dim);
    for (int m = 0; group != NULL && m < group->n_members; m++) {
        title_visit(x, &x->segments[group->members[m]], &probe, &pick);
    }
    if (more != NULL) {
        title_visit(x, more, &probe, &pick);
    }
    write_title(x, pick.best, title);
}

/* ---- founding, splitting, merging ---- */

/* Returns the mean cosine of the members to the new centroid. */
static double refresh(ep_index *x, int g)
{
    ep_group *group = &x->groups[g];
    float *centre = centroid(x, g);
    int dim = x->dim;
    memset(centre, 0, (size_t)dim * sizeof *centre);
    for (int m = 0; m < group->n_members; m++) {
        ep_vectors_accumulate(&x->segment_vectors, group->members[m], 1, centre);
        x->segments[group->members[m]].episode = group->id;
    }
    double length = sqrt(cosine(centre, centre, dim));
    REQUIRE(ep_unit(centre, dim));
    set_title(x, group, centre, NULL, group->title);
    return length / group->n_members;
}

static int found_group(ep_index *x)
{
    REQUIRE((size_t)x->n_groups < x->groups_cap && (size_t)x->n_groups < x->centroids_cap);
    x->groups[x->n_groups] = (ep_group){.id = x->next_id++};
    return x->n_groups++;
}

static void remove_group(ep_index *x, int g)
{
    size_t after = (size_t)(x->n_groups - 1 - g);
    memmove(x->groups + g, x->groups + g + 1, after * sizeof *x->groups);
    memmove(centroid(x, g), centroid(x, g + 1), after * (size_t)x->dim * sizeof *x->centroids);
    x->n_groups--;
}

size_t ep_cluster_workspace_floats(int dim)
{
    enum { SEGMENTS = EP_EPISODE_SEGMENTS_MAX + 1 };
    return (size_t)SEGMENTS * (size_t)dim + ep_kmeans_floats(SEGMENTS, dim, 2);
}

/* The part with the episode's first segment keeps its id. */
static void split_group(ep_index *x, int g)
{
    int dim = x->dim, n = x->groups[g].n_members, assign[EP_EPISODE_SEGMENTS_MAX + 1];
    float *v = x->workspace;
    memset(v, 0, (size_t)n * (size_t)dim * sizeof *v);
    for (int m = 0; m < n; m++) {
        ep_vectors_accumulate(&x->segment_vectors, x->groups[g].members[m], 1, v + (size_t)m * (size_t)dim);
    }
    uint64_t seed = x->options.seed + (uint64_t)x->groups[g].id;
    if (ep_kmeans(v, n, dim, 2, SPLIT_RESTARTS, seed, assign, v + (size_t)n * (size_t)dim) < 2) {
        for (int m = 0; m < n; m++) {
            assign[m] = m >= n / 2;
        }
    }
    int other = found_group(x), kept = 0;
    ep_group *from = &x->groups[g], *to = &x->groups[other];
    for (int m = 0; m < n; m++) {
        if (assign[m] == 0) {
            from->members[kept++] = from->members[m];
        } else {
            to->members[to->n_members++] = from->members[m];
        }
    }
    from->n_members = kept;
    (void)refresh(x, g);
    (void)refresh(x, other);
}

static void merge_into(ep_index *x, int g, int other)
{
    ep_group *to = &x->groups[g];
    const ep_group *from = &x->groups[other];
    int64_t merged[EP_EPISODE_SEGMENTS_MAX + 1] = {0};
    int n = 0, a = 0, b = 0;
    while (a < to->n_members || b < from->n_members) {
        bool first = b >= from->n_members || (a < to->n_members && to->members[a] < from->members[b]);
        merged[n++] = first ? to->members[a++] : from->members[b++];
    }
    memcpy(to->members, merged, (size_t)n * sizeof *merged);
    to->n_members = n;
    (void)refresh(x, g);
    remove_group(x, other);
}

/* Joins group g with the nearest other one if they have met; the older id stays. */
static void merge_if_met(ep_index *x, int g)
{
    int best = -1;
    double most = merge_cosine;
    for (int o = 0; o < x->n_groups; o++) {
        if (o != g && x->groups[o].n_members + x->groups[g].n_members <= MERGED_SEGMENTS_MAX) {
            double s = cosine(centroid(x, o), centroid(x, g), x->dim);
            if (s >= most && (best < 0 || s > most)) {
                most = s;
                best = o;
            }
        }
    }
    if (best >= 0) {
        merge_into(x, best < g ? best : g, best < g ? g : best);
    }
}

void ep_cluster_add(ep_index *x, int64_t s)
{
    float *v = x->workspace;
    ep_segment_vector(x, &x->segments[s], v);
    REQUIRE(ep_vectors_add(&x->segment_vectors, v) == s);
    int g = group_for(x, v, s - 1);
    g = g >= 0 ? g : found_group(x);
    ep_group *group = &x->groups[g];
    group->members[group->n_members++] = s;
    double mean = refresh(x, g);
    bool loose = group->n_members >= LOOSE_SEGMENTS_MIN && mean < loose_mean_cosine;
    if (loose || group->n_members > EP_EPISODE_SEGMENTS_MAX) {
        split_group(x, g);
    } else {
        merge_if_met(x, g);
    }
}

void ep_cluster_tail(ep_index *x)
{
    ep_segment *tail = &x->segments[x->n_segments - 1];
    float *v = x->workspace;
    ep_segment_vector(x, tail, v);
    int g = group_for(x, v, x->n_segments - 2);
    tail->episode = g >= 0 ? x->groups[g].id : x->next_id;
    set_title(x, g >= 0 ? &x->groups[g] : NULL, g >= 0 ? centroid(x, g) : v, tail, x->tail_title);
}
