/* session_index: sentence vectors and the episode index of a session. Vectors are kept as fp16 from the moment they are
 * made, so that an index rebuilt from stored vectors scores exactly as the one that made them. */
#include "agent/session_internal.h"

#include <string.h>
#include <xxhash.h>

enum { ENCODER_IDS_MAX = 256, VECTORS_MAX = 1 << 28 };

void vector_cache_free(vector_cache *c)
{
    base_free(c->hash);
    base_free(c->vectors);
    base_free(c->slots);
    *c = (vector_cache){.dim = c->dim};
}

static void slot_put(vector_cache *c, size_t index)
{
    size_t at = c->hash[index] & (c->n_slots - 1);
    while (c->slots[at] != 0) {
        at = (at + 1) & (c->n_slots - 1);
    }
    c->slots[at] = (uint32_t)(index + 1);
}

const uint16_t *vector_cache_find(const vector_cache *c, uint64_t hash)
{
    for (size_t at = hash & (c->n_slots - 1); c->n_slots > 0 && c->slots[at] != 0;
            at = (at + 1) & (c->n_slots - 1)) {
        if (c->hash[c->slots[at] - 1] == hash) {
            return c->vectors + (size_t)(c->slots[at] - 1) * (size_t)c->dim;
        }
    }
    return NULL;
}

static status grow_slots(vector_cache *c)
{
    if ((c->n + 1) * 2 <= c->n_slots) {
        return ST_OK;
    }
    size_t bigger = c->n_slots == 0 ? 256 : c->n_slots * 2;
    uint32_t *slots = base_zalloc(bigger, sizeof *slots);
    if (slots == NULL) {
        return ST_ERR_MEMORY;
    }
    base_free(c->slots);
    c->slots = slots;
    c->n_slots = bigger;
    for (size_t i = 0; i < c->n; i++) {
        slot_put(c, i);
    }
    return ST_OK;
}

status vector_cache_add(vector_cache *c, uint64_t hash, const uint16_t *vector)
{
    if (vector_cache_find(c, hash) != NULL) {
        return ST_OK;
    }
    TRY(grow_slots(c));
    void *hashes = c->hash, *vectors = c->vectors;
    status st = base_grow(&hashes, &c->hash_cap, c->n + 1, VECTORS_MAX, sizeof *c->hash);
    c->hash = hashes;
    TRY(st);
    st = base_grow(&vectors, &c->vectors_cap, (c->n + 1) * (size_t)c->dim, SIZE_MAX / 4, sizeof *c->vectors);
    c->vectors = vectors;
    TRY(st);
    c->hash[c->n] = hash;
    memcpy(c->vectors + c->n * (size_t)c->dim, vector, (size_t)c->dim * sizeof *vector);
    slot_put(c, c->n++);
    return ST_OK;
}

/* ---- the encoder as episodes see it ---- */

typedef struct missing_texts {
    const char **texts;
    size_t *bytes;
    int *row; /* of the output */
    uint64_t *hash;
    float *vectors;
    int n;
} missing_texts;

static void missing_free(missing_texts *m)
{
    base_free(m->texts);
    base_free(m->bytes);
    base_free(m->row);
    base_free(m->hash);
    base_free(m->vectors);
}

static status missing_alloc(missing_texts *m, int n, int dim, err *e)
{
    size_t count = (size_t)n;
    m->texts = base_zalloc(count, sizeof *m->texts);
    m->bytes = base_zalloc(count, sizeof *m->bytes);
    m->row = base_zalloc(count, sizeof *m->row);
    m->hash = base_zalloc(count, sizeof *m->hash);
    m->vectors = base_zalloc(count, (size_t)dim * sizeof *m->vectors);
    if (m->texts == NULL || m->bytes == NULL || m->row == NULL || m->hash == NULL || m->vectors == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory to embed %d texts", n);
    }
    return ST_OK;
}

static status embed(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    session *s = ctx;
    size_t dim = (size_t)s->vectors.dim;
    missing_texts m = {0};
    status st = missing_alloc(&m, n, s->vectors.dim, e);
    for (int i = 0; st == ST_OK && i < n; i++) {
        uint64_t hash = XXH3_64bits(texts[i], bytes[i]);
        const uint16_t *known = vector_cache_find(&s->vectors, hash);
        for (size_t j = 0; known != NULL && j < dim; j++) {
            out[(size_t)i * dim + j] = base_f16_to_f32(known[j]);
        }
        if (known == NULL) {
            m.texts[m.n] = texts[i];
            m.bytes[m.n] = bytes[i];
            m.row[m.n] = i;
            m.hash[m.n++] = hash;
        }
    }
    if (st == ST_OK && m.n > 0) {
        st = encoder_embed(s->x->encoder, m.texts, m.bytes, m.n, ENCODER_IDS_MAX, m.vectors, e);
    }
    uint16_t *half = st == ST_OK && m.n > 0 ? base_zalloc(dim, sizeof *half) : NULL;
    if (st == ST_OK && m.n > 0 && half == NULL) {
        st = FAIL(e, ST_ERR_MEMORY, "no memory for a vector");
    }
    for (int i = 0; st == ST_OK && i < m.n; i++) {
        for (size_t j = 0; j < dim; j++) {
            half[j] = base_f32_to_f16(m.vectors[(size_t)i * dim + j]);
            out[(size_t)m.row[i] * dim + j] = base_f16_to_f32(half[j]);
        }
        if (!s->embedding_query && vector_cache_add(&s->vectors, m.hash[i], half) != ST_OK) {
            st = FAIL(e, ST_ERR_MEMORY, "no memory for a vector");
        }
    }
    base_free(half);
    missing_free(&m);
    return st;
}

static status open_index(session *s, err *e)
{
    if (s->index != NULL) {
        return ST_OK;
    }
    s->ops = (ep_model_ops){.ctx = s, .dim = s->vectors.dim, .floor = s->x->floor, .embed = embed};
    ep_options o;
    ep_options_default(&o);
    return ep_index_open(&o, &s->ops, &s->index, e);
}

/* The system prompt is pinned and never recalled; empty messages have nothing to recall. */
static bool is_recallable(const session_turn *t)
{
    return t->role != TURN_SYSTEM && t->text_bytes > 0 && t->n_tokens > t->lead_tokens;
}

status session_index_turns(session *s, int most, size_t *left, err *e)
{
    TRY(open_index(s, e));
    ep_utterance *u = base_zalloc((size_t)most + 1, sizeof *u);
    if (u == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory to index messages");
    }
    size_t turn = s->indexed_turns;
    int n = 0;
    for (; turn < s->n_turns && n < most; turn++) {
        const session_turn *t = &s->turns[turn];
        if (is_recallable(t)) {
            u[n++] = (ep_utterance){.text = t->text,
                    .text_bytes = t->text_bytes,
                    .speaker = session_turn_role_name(t),
                    .has_time = t->has_time,
                    .time_us = t->time_us,
                    .turn = (int64_t)turn,
                    .first_token = t->first_token + t->lead_tokens,
                    .tokens = t->n_tokens - t->lead_tokens};
        }
    }
    status st = n > 0 ? ep_index_append(s->index, u, n, e) : ST_OK;
    if (st == ST_OK) {
        s->indexed_turns = turn;
    }
    base_free(u);
    *left = s->n_turns - s->indexed_turns;
    return st;
}

status session_match(session *s, const ep_query *q, ep_match *out, err *e)
{
    s->embedding_query = true;
    status st = ep_match_run(s->index, q, out, e);
    s->embedding_query = false;
    return st;
}

status session_recall(session *s, const ep_query *q, tiers_view *v, ep_match *out, err *e)
{
    ep_query smaller = *q;
    for (;; smaller.budget_tokens /= 2) {
        TRY(session_match(s, &smaller, out, e));
        status st = ep_plan(out, &v->pieces, &v->n_pieces, e);
        if (st != ST_OK) {
            ep_match_free(out);
            return st;
        }
        if (v->n_pieces <= TIERS_PIECES_MAX) {
            break;
        }
        base_free(v->pieces);
        v->pieces = NULL;
        v->n_pieces = 0;
        ep_match_free(out);
    }
    for (int i = 0; i < v->n_pieces; i++) {
        v->piece_rows += v->pieces[i].rows;
    }
    return ST_OK;
}
