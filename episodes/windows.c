/*
 * The vectors of an utterance and its surroundings, and where they lie.
 *
 * Four for each utterance: of itself and of the five utterances around it, with the speakers' names; of its bare text and
 * of the three around it, without. (Which ones is measured: README.md.) All inside its run. An utterance is embedded by
 * itself, once with and once without its speaker's name; the vector of a window is the mean of its utterances' vectors,
 * of unit length. The window of three around i is the one that ends with i + 1; at the ends of a run the window reaches
 * further to the one side instead. A long message is also embedded in pieces of one to three sentences.
 */
#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

#include <string.h>

enum {
    BATCH_TEXTS_MAX = 64,
    LONG_WORDS_MIN = EP_CHUNK_WORDS_MAX + 1, /* more than one piece holds */
    UTTERANCE_WORDS_MAX = 180                /* about 256 word pieces: what a sentence encoder reads */
};

/* Utterances in the wider window that ends with an item. */
enum { NAMED_LENGTH = 5, BARE_LENGTH = 3 };

int ep_windows_ending_at(const ep_item *u)
{
    return u->run_at > 0 ? 2 : 1;
}

/* The wider window around i that is `ahead_max` utterances ahead of it, or as many as the run has. */
static int64_t wider_window(const ep_index *x, int64_t i, int ahead_max)
{
    const ep_item *end = &x->items[i];
    for (int ahead = 1; ahead <= ahead_max && i + ahead < x->n_items && x->items[i + ahead].run_at > 0;
            ahead++) {
        end = &x->items[i + ahead];
    }
    return end->first_window + ep_windows_ending_at(end) - 1;
}

int64_t ep_window_named(const ep_index *x, int64_t i)
{
    return wider_window(x, i, NAMED_LENGTH / 2);
}

int64_t ep_window_bare(const ep_index *x, int64_t i)
{
    return wider_window(x, i, BARE_LENGTH / 2);
}

/* ---- making vectors ---- */

typedef enum target { TO_NAMED, TO_BARE, TO_PARTS } target;

typedef struct batch {
    ep_index *x;
    base_buf text; /* the texts one after the other */
    size_t at[BATCH_TEXTS_MAX], bytes[BATCH_TEXTS_MAX];
    target to[BATCH_TEXTS_MAX];
    int64_t owner[BATCH_TEXTS_MAX];
    int n;
    float *vectors; /* [BATCH_TEXTS_MAX][dim] as the encoder gives them */
    float *rotated; /* one of them */
} batch;

/* The mean of the vectors of up to `length` utterances that end with item i, behind its own vector. */
static void store_window(ep_index *x, ep_vectors *pool, int64_t i, int length, float *mean)
{
    int back = length - 1 < x->items[i].run_at ? length - 1 : x->items[i].run_at;
    memset(mean, 0, (size_t)x->dim * sizeof *mean);
    for (int64_t k = i - back; k <= i; k++) {
        ep_vectors_accumulate(pool, x->items[k].first_window, 1, mean);
    }
    (void)ep_unit(mean, x->dim);
    (void)ep_vectors_add(pool, mean);
}

/* An utterance's own vector and that of the window that ends with it. v is written over. */
static status store_utterance(ep_index *x, target to, int64_t i, float *v)
{
    ep_vectors *pool = to == TO_NAMED ? &x->named : &x->bare;
    int n = ep_windows_ending_at(&x->items[i]);
    TRY(ep_vectors_reserve(pool, n));
    x->items[i].first_window = pool->count; /* the two pools grow in step */
    (void)ep_vectors_add(pool, v);
    if (n > 1) {
        store_window(x, pool, i, to == TO_NAMED ? NAMED_LENGTH : BARE_LENGTH, v);
    }
    return ST_OK;
}

static status store_part(ep_index *x, int64_t i, const float *v)
{
    void *owners = x->part_owners;
    TRY(ep_vectors_reserve(&x->parts, 1));
    TRY(base_grow(
            &owners, &x->part_owners_cap, (size_t)x->parts.count + 1, SIZE_MAX / 8, sizeof *x->part_owners));
    x->part_owners = owners;
    x->part_owners[x->parts.count] = i;
    (void)ep_vectors_add(&x->parts, v);
    return ST_OK;
}

static status flush(batch *b, err *e)
{
    const char *texts[BATCH_TEXTS_MAX];
    ep_index *x = b->x;
    for (int i = 0; i < b->n; i++) {
        texts[i] = (const char *)b->text.data + b->at[i];
    }
    if (b->n > 0) {
        TRY(x->ops.embed(x->ops.ctx, texts, b->bytes, b->n, b->vectors, e));
    }
    for (int i = 0; i < b->n; i++) {
        float *v = b->vectors + (size_t)i * (size_t)x->ops.dim;
        if (!ep_unit(v, x->ops.dim)) {
            return FAIL(e, ST_ERR_FORMAT, "the sentence encoder gave a vector that is not finite");
        }
        ep_rotate(v, x->ops.dim, b->rotated);
        TRY(b->to[i] == TO_PARTS ? store_part(x, b->owner[i], b->rotated)
                                 : store_utterance(x, b->to[i], b->owner[i], b->rotated));
    }
    b->n = 0;
    b->text.size = 0;
    return ST_OK;
}

/* Appends the first `words_max` words of a text. */
static status put_words(batch *b, const char *text, size_t bytes, int words_max)
{
    size_t at = 0, end = 0;
    ep_word word;
    int n = 0;
    while (n < words_max && ep_word_next(text, bytes, &at, &word)) {
        n++;
        end = at;
    }
    return base_buf_append(&b->text, text, n < words_max ? bytes : end);
}

static status begin_text(batch *b, target to, int64_t owner, err *e)
{
    if (b->n == BATCH_TEXTS_MAX) {
        TRY(flush(b, e));
    }
    b->at[b->n] = b->text.size;
    b->to[b->n] = to;
    b->owner[b->n] = owner;
    return ST_OK;
}

/* A NUL behind each text, for encoders that like one; not counted. */
static status end_text(batch *b)
{
    b->bytes[b->n] = b->text.size - b->at[b->n];
    TRY(base_buf_append(&b->text, "", 1));
    b->n++;
    return ST_OK;
}

/* An utterance, from its speaker's name on or without. */
static status put_utterance(batch *b, target to, int64_t i, err *e)
{
    const ep_item *u = &b->x->items[i];
    size_t from = to == TO_BARE ? u->text_at : 0;
    TRY(begin_text(b, to, i, e));
    TRY(put_words(b, u->line + from, u->line_bytes - from, UTTERANCE_WORDS_MAX));
    return end_text(b);
}

static bool is_long(const ep_item *u)
{
    return ep_text_words(u->line + u->text_at, u->line_bytes - u->text_at, LONG_WORDS_MIN) == LONG_WORDS_MIN;
}

static status put_parts(batch *b, int64_t i, err *e)
{
    ep_item *u = &b->x->items[i];
    size_t bytes = 0, at = 0;
    const char *text = ep_item_text(u, &bytes);
    ep_slice piece;
    while (is_long(u) && ep_chunk_next(text, bytes, &at, &piece)) {
        TRY(begin_text(b, TO_PARTS, i, e));
        TRY(base_buf_append(&b->text, u->line, u->text_at));
        TRY(base_buf_append(&b->text, text + piece.at, piece.bytes));
        TRY(end_text(b));
        u->parts++;
    }
    return ST_OK;
}

static status put_item(batch *b, int64_t i, err *e)
{
    TRY(put_utterance(b, TO_NAMED, i, e));
    TRY(put_utterance(b, TO_BARE, i, e));
    return put_parts(b, i, e);
}

status ep_windows_embed(ep_index *x, int64_t from, int n, err *e)
{
    batch b = {.x = x, .text = {.max = SIZE_MAX / 2}};
    b.vectors = base_alloc(BATCH_TEXTS_MAX * (size_t)x->ops.dim * sizeof *b.vectors);
    b.rotated = base_alloc((size_t)x->dim * sizeof *b.rotated);
    status s = b.vectors == NULL || b.rotated == NULL ? ST_ERR_MEMORY : ST_OK;
    for (int64_t i = from; s == ST_OK && i < from + n; i++) {
        s = put_item(&b, i, e);
    }
    if (s == ST_OK) {
        s = flush(&b, e);
    }
    base_buf_free(&b.text);
    base_free(b.vectors);
    base_free(b.rotated);
    return s;
}
