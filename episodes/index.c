#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

#include <string.h>

/* An append that fails must leave no trace: what it may have to take back. */
typedef struct mark {
    int64_t named, bare, parts;
} mark;

void ep_options_default(ep_options *o)
{
    *o = (ep_options){
            .segment_utterances_max = 4,
            .segment_tokens_max = 512,
            .segment_gap_us = (int64_t)4 * 3600 * 1000000,
            /* A dozen episodes for a conversation of 150 segments; shapes what people see, not what is recalled. */
            .join_threshold = 0.47f,
            .seed = 0x657069736f6465,
    };
}

status ep_index_open(const ep_options *o, const ep_model_ops *ops, ep_index **out, err *e)
{
    if (ops->dim <= 0 || ops->dim > EP_DIM_MAX || ops->embed == NULL) {
        return FAIL(
                e, ST_ERR_ARG, "a sentence encoder of dimension %d; expected 1 to %d", ops->dim, EP_DIM_MAX);
    }
    if (o->segment_utterances_max <= 0 || o->segment_tokens_max <= 0 || o->segment_gap_us < 0) {
        return FAIL(e, ST_ERR_ARG, "segment limits must be positive");
    }
    ep_index *x = base_zalloc(1, sizeof *x);
    if (x == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for an episode index");
    }
    x->options = *o;
    x->ops = *ops;
    x->dim = ep_rotated_dim(ops->dim);
    x->named.dim = x->bare.dim = x->parts.dim = x->segment_vectors.dim = x->dim;
    x->workspace = base_zalloc(ep_cluster_workspace_floats(x->dim), sizeof *x->workspace);
    if (x->workspace == NULL) {
        ep_index_close(x);
        return FAIL(e, ST_ERR_MEMORY, "no memory for an episode index");
    }
    *out = x;
    return ST_OK;
}

void ep_index_close(ep_index *x)
{
    if (x == NULL) {
        return;
    }
    for (int64_t i = 0; i < x->n_items; i++) {
        base_free(x->items[i].line);
    }
    base_free(x->items);
    ep_vectors_free(&x->named);
    ep_vectors_free(&x->parts);
    ep_vectors_free(&x->bare);
    base_free(x->part_owners);
    ep_lexical_free(&x->lexical);
    base_free(x->speakers);
    base_free(x->segments);
    ep_vectors_free(&x->segment_vectors);
    base_free(x->groups);
    base_free(x->centroids);
    base_free(x->workspace);
    base_free(x);
}

/* ---- appending ---- */

static status check_utterance(const ep_utterance *u, err *e)
{
    if (u->tokens < 0 || u->first_token < 0 || u->first_token > INT64_MAX - u->tokens) {
        return FAIL(e, ST_ERR_ARG, "an utterance of rows %lld + %d", (long long)u->first_token, u->tokens);
    }
    if (u->text == NULL && u->text_bytes > 0) {
        return FAIL(e, ST_ERR_ARG, "an utterance without its text");
    }
    return ST_OK;
}

/* Copies one utterance into *item, its line on the heap. */
static status copy_utterance(const ep_utterance *u, ep_item *item)
{
    size_t speaker = u->speaker == NULL ? 0 : strlen(u->speaker), lead = speaker == 0 ? 0 : speaker + 2;
    char *line = base_alloc(lead + u->text_bytes + 1);
    if (line == NULL) {
        return ST_ERR_MEMORY;
    }
    if (speaker > 0) {
        memcpy(line, u->speaker, speaker);
        memcpy(line + speaker, ": ", 2);
    }
    if (u->text_bytes > 0) {
        memcpy(line + lead, u->text, u->text_bytes);
    }
    line[lead + u->text_bytes] = '\0';
    *item = (ep_item){.line = line,
            .line_bytes = lead + u->text_bytes,
            .text_at = lead,
            .speaker = -1,
            .has_time = u->has_time,
            .time_us = u->time_us,
            .turn = u->turn,
            .first_token = u->first_token,
            .tokens = u->tokens};
    return ST_OK;
}

/* Room for everything that n more utterances can add, but for their vectors, which make it themselves. */
static status reserve(ep_index *x, int n, size_t pairs)
{
    size_t more = (size_t)n;
    void *items = x->items, *segments = x->segments, *groups = x->groups, *centroids = x->centroids;
    TRY(base_grow(
            &items, &x->items_cap, (size_t)x->n_items + more, SIZE_MAX / sizeof *x->items, sizeof *x->items));
    x->items = items;
    TRY(base_grow(&segments, &x->segments_cap, (size_t)x->n_segments + more, SIZE_MAX / sizeof *x->segments,
            sizeof *x->segments));
    x->segments = segments;
    /* A closed segment founds at most one episode, by founding or by a split. */
    TRY(base_grow(&groups, &x->groups_cap, (size_t)x->n_groups + more, INT32_MAX, sizeof *x->groups));
    x->groups = groups;
    TRY(base_grow(&centroids, &x->centroids_cap, (size_t)x->n_groups + more, INT32_MAX,
            (size_t)x->dim * sizeof *x->centroids));
    x->centroids = centroids;
    void *speakers = x->speakers;
    TRY(base_grow(&speakers, &x->speakers_cap, (size_t)x->n_speakers + more, INT32_MAX, sizeof *x->speakers));
    x->speakers = speakers;
    TRY(ep_vectors_reserve(&x->segment_vectors, n));
    return ep_lexical_reserve(&x->lexical, more, pairs);
}

static size_t count_pairs(const ep_item *u)
{
    uint64_t keys[EP_DISTINCT_WORDS_MAX];
    uint16_t counts[EP_DISTINCT_WORDS_MAX];
    int total = 0;
    return (size_t)ep_text_keys(u->line, u->line_bytes, keys, counts, EP_DISTINCT_WORDS_MAX, &total);
}

static void index_words(ep_index *x, const ep_item *u)
{
    uint64_t keys[EP_DISTINCT_WORDS_MAX];
    uint16_t counts[EP_DISTINCT_WORDS_MAX];
    int total = 0;
    int n = ep_text_keys(u->line, u->line_bytes, keys, counts, EP_DISTINCT_WORDS_MAX, &total);
    ep_lexical_add(&x->lexical, keys, counts, n, total);
}

/* Everything fallible: lines, room, vectors. Items lie behind n_items, which stays. *copied counts lines to free. */
static status stage(ep_index *x, const ep_utterance *u, int n, int *copied, err *e)
{
    size_t pairs = 0;
    TRY(reserve(x, n, 0));
    for (int i = 0; i < n; i++) {
        ep_item *item = &x->items[x->n_items + i];
        TRY(check_utterance(&u[i], e));
        TRY(copy_utterance(&u[i], item));
        ++*copied;
        item->run_at = ep_run_at(x, x->n_items + i);
        pairs += count_pairs(item);
    }
    TRY(ep_lexical_reserve(&x->lexical, (size_t)n, pairs));
    int64_t part = x->parts.count;
    TRY(ep_windows_embed(x, x->n_items, n, e));
    for (int i = 0; i < n; i++) {
        ep_item *item = &x->items[x->n_items + i];
        item->first_part = part;
        part += item->parts;
    }
    return ST_OK;
}

/* Cannot fail. */
static void commit(ep_index *x, int n)
{
    int64_t from = x->n_items;
    x->n_items += n;
    for (int64_t i = from; i < x->n_items; i++) {
        ep_item *u = &x->items[i];
        bool closed = false;
        u->speaker = u->text_at < 2 ? -1 : ep_speaker_add(x, u->line, u->text_at - 2);
        index_words(x, u);
        ep_segment_add(x, i, &closed);
        if (closed) {
            ep_cluster_add(x, x->n_segments - 2);
        }
    }
    ep_cluster_tail(x);
}

status ep_index_append(ep_index *x, const ep_utterance *u, int n, err *e)
{
    if (n <= 0) {
        return n == 0 ? ST_OK : FAIL(e, ST_ERR_ARG, "%d utterances", n);
    }
    mark m = {x->named.count, x->bare.count, x->parts.count};
    int copied = 0;
    status s = stage(x, u, n, &copied, e);
    if (s == ST_OK) {
        commit(x, n);
        return ST_OK;
    }
    for (int i = 0; i < copied; i++) {
        base_free(x->items[x->n_items + i].line);
    }
    x->named.count = m.named;
    x->bare.count = m.bare;
    x->parts.count = m.parts;
    return s == ST_ERR_MEMORY ? FAIL(e, s, "no memory for %d utterances", n) : s;
}

/* ---- views ---- */

int64_t ep_index_utterances(const ep_index *x)
{
    return x->n_items;
}

int64_t ep_index_segments(const ep_index *x)
{
    return x->n_segments;
}

int ep_index_episode_at(const ep_index *x, int64_t token)
{
    int64_t low = 0, high = x->n_items;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (x->items[mid].first_token + x->items[mid].tokens <= token) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    bool inside = low < x->n_items && x->items[low].first_token <= token;
    return inside ? x->segments[x->items[low].segment].episode : -1;
}

static const ep_segment *tail_of(const ep_index *x)
{
    return x->n_segments > 0 ? &x->segments[x->n_segments - 1] : NULL;
}

static bool tail_stands_alone(const ep_index *x)
{
    const ep_segment *tail = tail_of(x);
    return tail != NULL && ep_group_find(x, tail->episode) < 0;
}

int ep_index_episodes(const ep_index *x)
{
    return x->n_groups + (tail_stands_alone(x) ? 1 : 0);
}

static void view_segment(const ep_index *x, const ep_segment *s, ep_episode *out)
{
    for (int64_t i = s->first; i < s->first + s->utterances; i++) {
        const ep_item *u = &x->items[i];
        if (u->has_time) {
            out->from_us = !out->has_time || u->time_us < out->from_us ? u->time_us : out->from_us;
            out->to_us = !out->has_time || u->time_us > out->to_us ? u->time_us : out->to_us;
            out->has_time = true;
        }
        out->first_turn = out->utterances == 0 || u->turn < out->first_turn ? u->turn : out->first_turn;
        out->last_turn = out->utterances == 0 || u->turn > out->last_turn ? u->turn : out->last_turn;
        out->utterances++;
    }
    out->segments++;
    out->tokens += s->tokens;
}

status ep_index_episode(const ep_index *x, int i, ep_episode *out)
{
    if (i < 0 || i >= ep_index_episodes(x)) {
        return ST_ERR_NOT_FOUND;
    }
    const ep_segment *tail = tail_of(x);
    const ep_group *group = i < x->n_groups ? &x->groups[i] : NULL;
    ep_episode view = {.id = group != NULL ? group->id : tail->episode};
    for (int m = 0; group != NULL && m < group->n_members; m++) {
        view_segment(x, &x->segments[group->members[m]], &view);
    }
    view.title = view.id == tail->episode ? x->tail_title : group->title;
    if (view.id == tail->episode) {
        view_segment(x, tail, &view);
    }
    *out = view;
    return ST_OK;
}
