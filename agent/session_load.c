/* session_load: a session read back from the store. The log must be whole; KV that is missing or damaged is left out
 * and computed again by the engine. */
#include "agent/session_internal.h"

#include <string.h>

status session_header_parse(const void *data, size_t bytes, session_header *out)
{
    wire_reader r = {.data = data, .bytes = bytes};
    bool version_known = wire_get_u64(&r) == SESSION_RECORD_VERSION;
    session_header h = {.created_us = wire_get_i64(&r)};
    h.last_used_us = wire_get_i64(&r);
    h.ttl_s = wire_get_i64(&r);
    h.plain_tokens = wire_get_i64(&r);
    h.nameless = wire_get_u64(&r) != 0;
    h.n_turns = wire_get_u64(&r);
    h.n_tokens = wire_get_u64(&r);
    h.transcript_open = wire_get_u64(&r) != 0;
    h.system_end = wire_get_i64(&r);
    h.chain = wire_get_u64(&r);
    if (!version_known || !wire_done(&r)) {
        return ST_ERR_CORRUPT;
    }
    *out = h;
    return ST_OK;
}

status session_state_parse(const void *data,
        size_t bytes,
        int64_t *tokens,
        int64_t *columns,
        int64_t *exact_from,
        session_fork_point points[SESSION_FORK_POINTS_MAX],
        size_t *n_points)
{
    wire_reader r = {.data = data, .bytes = bytes};
    bool version_known = wire_get_u64(&r) == SESSION_RECORD_VERSION;
    *tokens = wire_get_i64(&r);
    *columns = wire_get_i64(&r);
    *exact_from = wire_get_i64(&r);
    uint64_t n = wire_get_u64(&r);
    if (!version_known || r.failed || n > SESSION_FORK_POINTS_MAX || *tokens < 0 || *columns < 0 ||
            *exact_from < 0) {
        return ST_ERR_CORRUPT;
    }
    for (size_t i = 0; i < n; i++) {
        points[i].tokens = wire_get_i64(&r);
        points[i].hash = wire_get_u64(&r);
    }
    *n_points = (size_t)n;
    return wire_done(&r) ? ST_OK : ST_ERR_CORRUPT;
}

static bool get_view(wire_reader *r, tiers_view *v)
{
    v->window_from = wire_get_i64(r);
    v->pinned_end = wire_get_i64(r);
    v->sharpness = wire_get_f32(r);
    uint64_t n = wire_get_u64(r);
    if (r->failed || n > (r->bytes - r->at) / 24) {
        return false;
    }
    v->pieces = n == 0 ? NULL : base_zalloc((size_t)n, sizeof *v->pieces);
    if (n > 0 && v->pieces == NULL) {
        return false;
    }
    v->n_pieces = (int)n;
    for (uint64_t i = 0; i < n; i++) {
        v->pieces[i].first_token = wire_get_i64(r);
        v->pieces[i].rows = (int32_t)wire_get_i64(r);
        v->pieces[i].at = wire_get_i64(r);
        v->piece_rows += v->pieces[i].rows;
        if (v->pieces[i].rows < 1 || v->pieces[i].rows > TIERS_COLUMN_TOKENS ||
                v->pieces[i].first_token < TIERS_SINK_TOKENS) {
            return false;
        }
    }
    return !r->failed && v->window_from >= TIERS_SINK_TOKENS;
}

/* One TURN record onto the log. */
static status append_record(session *s, const void *data, size_t bytes, err *e)
{
    wire_reader r = {.data = data, .bytes = bytes};
    session_turn t = {0};
    size_t ignored;
    bool good = wire_get_u64(&r) == SESSION_RECORD_VERSION;
    int64_t first = wire_get_i64(&r), n = wire_get_i64(&r);
    t.lead_tokens = (int32_t)wire_get_i64(&r);
    uint64_t role = wire_get_u64(&r);
    t.role = (turn_role)role;
    t.finish = (int)wire_get_i64(&r);
    t.has_time = wire_get_u64(&r) != 0;
    t.time_us = wire_get_i64(&r);
    t.text = wire_get_text(&r, &t.text_bytes);
    t.speaker = wire_get_text(&r, &ignored);
    t.ref = wire_get_text(&r, &ignored);
    t.key = wire_get_text(&r, &ignored);
    t.has_view = wire_get_u64(&r) != 0;
    good = good && (!t.has_view || get_view(&r, &t.view));
    good = good && !r.failed && role <= TURN_SPEAKER && first == (int64_t)s->n_tokens && n >= 0 &&
            (uint64_t)n == (r.bytes - r.at) / 8 && t.text != NULL &&
            (t.role != TURN_SPEAKER || t.speaker != NULL);
    status st = good ? ST_OK : ST_ERR_CORRUPT;
    for (int64_t i = 0; st == ST_OK && i < n; i++) {
        int64_t id = wire_get_i64(&r);
        int32_t token = (int32_t)id;
        st = id >= 0 && id < tokenizer_vocab_size(s->x->tokenizer) ? session_append_tokens(s, &token, 1, e)
                                                                   : ST_ERR_CORRUPT;
    }
    st = st == ST_OK && !wire_done(&r) ? ST_ERR_CORRUPT : st;
    st = st == ST_OK ? session_append_turn(s, &t, e) : st;
    session_turn_free(&t);
    return st;
}

static status visit_turn(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    session *s = ctx;
    if (data == NULL || key->number != s->n_turns) {
        return ST_ERR_CORRUPT;
    }
    return append_record(s, data, bytes, NULL);
}

static status load_log(session *s, const session_header *h, err *e)
{
    s->created_us = h->created_us;
    s->last_used_us = h->last_used_us;
    s->ttl_s = h->ttl_s;
    s->plain_tokens = h->plain_tokens;
    s->nameless = h->nameless;
    s->system_end = h->system_end;
    status st = store_walk(s->x->store, STORE_TURN, s->tenant, s->name, NULL, NULL, visit_turn, s, e);
    if (st == ST_OK && (s->n_turns != h->n_turns || s->n_tokens != h->n_tokens || s->chain != h->chain)) {
        st = ST_ERR_CORRUPT;
    }
    if (st != ST_OK) {
        return FAIL(e, st, "session %s: the log is damaged at message %zu of %llu", s->name, s->n_turns,
                (unsigned long long)h->n_turns);
    }
    s->transcript_open = h->transcript_open;
    s->saved_turns = s->n_turns;
    return ST_OK;
}

/* ---- derived state ---- */

typedef struct piece_read {
    session *s;
    int64_t piece;
} piece_read;

static status import_piece(void *ctx, const void *data, size_t bytes)
{
    piece_read *r = ctx;
    if (bytes != tiers_piece_bytes(r->s->tiers)) {
        return ST_ERR_CORRUPT;
    }
    tiers_import_piece(r->s->tiers, r->piece, data);
    return ST_OK;
}

static status load_pieces(session *s, int64_t from, int64_t to)
{
    for (int64_t piece = from; piece < to; piece++) {
        piece_read r = {.s = s, .piece = piece};
        store_key key = {
                .kind = STORE_TAIL, .tenant = s->tenant, .session = s->name, .number = (uint64_t)piece};
        TRY(store_read(s->x->store, &key, import_piece, &r, NULL));
    }
    return ST_OK;
}

static status load_tiers(session *s)
{
    store_key key = {.kind = STORE_SESSION, .tenant = s->tenant, .session = s->name, .number = 1};
    void *data;
    size_t bytes, n_points;
    TRY(store_read_copy(s->x->store, &key, &data, &bytes, NULL));
    int64_t tokens, columns, exact_from;
    session_fork_point points[SESSION_FORK_POINTS_MAX];
    status st = session_state_parse(data, bytes, &tokens, &columns, &exact_from, points, &n_points);
    base_free(data);
    TRY(st);
    if (tokens > (int64_t)s->n_tokens) {
        return ST_ERR_CORRUPT;
    }
    TRY(tiers_restore(s->tiers, tokens, columns, exact_from, NULL));
    int64_t sinks = tokens < TIERS_SINK_TOKENS ? tokens : TIERS_SINK_TOKENS;
    TRY(load_pieces(s, 0, (sinks + TIERS_PIECE_TOKENS - 1) / TIERS_PIECE_TOKENS));
    int64_t from = exact_from > TIERS_SINK_TOKENS ? exact_from : TIERS_SINK_TOKENS;
    TRY(load_pieces(s, from / TIERS_PIECE_TOKENS, (tokens + TIERS_PIECE_TOKENS - 1) / TIERS_PIECE_TOKENS));
    s->saved_tokens = tokens;
    s->saved_columns = columns;
    s->saved_exact_from = s->keep_exact_from = exact_from;
    return ST_OK;
}

static status visit_vectors(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    session *s = ctx;
    size_t dim_bytes = (size_t)s->vectors.dim * sizeof(uint16_t);
    (void)key;
    wire_reader r = {.data = data, .bytes = bytes};
    while (data != NULL && r.at < r.bytes) {
        uint64_t hash = wire_get_u64(&r);
        const uint8_t *vector = wire_get(&r, dim_bytes);
        if (vector == NULL) {
            return ST_ERR_CORRUPT;
        }
        uint16_t copy[4096];
        memcpy(copy, vector, dim_bytes);
        TRY(vector_cache_add(&s->vectors, hash, copy));
    }
    return data == NULL ? ST_ERR_CORRUPT : ST_OK;
}

/* Vectors are a cache: what is missing or damaged is embedded again, and the pieces written anew. */
static void load_vectors(session *s)
{
    status st =
            store_walk(s->x->store, STORE_VECTORS, s->tenant, s->name, NULL, NULL, visit_vectors, s, NULL);
    if (st == ST_OK) {
        s->vectors.saved = s->vectors.n;
        return;
    }
    s->corrupt_seen++;
    vector_cache_free(&s->vectors);
}

status session_load(const session_context *x, const char *tenant, const char *name, session **out, err *e)
{
    store_key key = {.kind = STORE_SESSION, .tenant = tenant, .session = name, .number = 0};
    void *data;
    size_t bytes;
    writer_flush(x->writer); /* what an earlier life of this session queued */
    TRY(store_read_copy(x->store, &key, &data, &bytes, e));
    session_header h;
    status st = session_header_parse(data, bytes, &h);
    base_free(data);
    if (st != ST_OK) {
        return FAIL(e, st, "session %s: the header is damaged", name);
    }
    session *s;
    TRY(session_new(x, tenant, name, h.nameless, &s, e));
    st = load_log(s, &h, e);
    if (st != ST_OK) {
        session_close(s);
        return st;
    }
    st = load_tiers(s);
    if (st != ST_OK) {
        s->corrupt_seen += st == ST_ERR_CORRUPT ? 1 : 0;
        session_forget_kv(s);
    }
    load_vectors(s);
    size_t left = 1;
    while (left > 0) {
        st = session_index_turns(s, 256, &left, e);
        if (st != ST_OK) {
            session_close(s);
            return st;
        }
    }
    *out = s;
    return ST_OK;
}
