/* session_save: what of a session is written, and in which order.
 *
 * Records (number in brackets): SESSION [0] header, SESSION [1] KV state, TURN [i] message and tokens, VECTORS [i] 32
 * sentence vectors; blobs COLUMN [i] and TAIL [i] = BF16 rows [16 i, 16 i + 16). The log (header, turns) is committed on
 * the engine thread before a request is answered; everything else follows through the writer. The KV state names
 * what is usable, and is written in the same batch as the tail it names: columns that a crash left behind it
 * are written again with the same bytes. */
#include "agent/session_internal.h"

#include <string.h>
#include <xxhash.h>

enum { RECORD_MAX_BYTES = 256 << 20 };

static store_key key_of(const session *s, store_kind kind, uint64_t number)
{
    return (store_key){.kind = kind, .tenant = s->tenant, .session = s->name, .number = number};
}

/* ---- records ---- */

static void put_header(const session *s, wire_writer *w)
{
    wire_put_u64(w, SESSION_RECORD_VERSION);
    wire_put_i64(w, s->created_us);
    wire_put_i64(w, s->last_used_us);
    wire_put_i64(w, s->ttl_s);
    wire_put_i64(w, s->plain_tokens);
    wire_put_u64(w, s->nameless);
    wire_put_u64(w, s->n_turns);
    wire_put_u64(w, s->n_tokens);
    wire_put_u64(w, s->transcript_open);
    wire_put_i64(w, s->system_end);
    wire_put_u64(w, s->chain);
}

static void put_view(const tiers_view *v, wire_writer *w)
{
    wire_put_i64(w, v->window_from);
    wire_put_i64(w, v->pinned_end);
    wire_put_f32(w, v->sharpness);
    wire_put_i64(w, v->n_pieces);
    for (int i = 0; i < v->n_pieces; i++) {
        wire_put_i64(w, v->pieces[i].first_token);
        wire_put_i64(w, v->pieces[i].rows);
        wire_put_i64(w, v->pieces[i].at);
    }
}

static void put_turn(const session *s, const session_turn *t, wire_writer *w)
{
    wire_put_u64(w, SESSION_RECORD_VERSION);
    wire_put_i64(w, t->first_token);
    wire_put_i64(w, t->n_tokens);
    wire_put_i64(w, t->lead_tokens);
    wire_put_u64(w, t->role);
    wire_put_i64(w, t->finish);
    wire_put_u64(w, t->has_time);
    wire_put_i64(w, t->time_us);
    wire_put_text(w, t->text, t->text_bytes);
    wire_put_text(w, t->speaker, t->speaker == NULL ? 0 : strlen(t->speaker));
    wire_put_text(w, t->ref, t->ref == NULL ? 0 : strlen(t->ref));
    wire_put_text(w, t->key, t->key == NULL ? 0 : strlen(t->key));
    wire_put_u64(w, t->has_view);
    if (t->has_view) {
        put_view(&t->view, w);
    }
    for (int32_t i = 0; i < t->n_tokens; i++) {
        wire_put_i64(w, s->tokens[t->first_token + i]);
    }
}

/* ---- the log ---- */

status session_save_log(session *s, err *e)
{
    size_t n = s->n_turns - s->saved_turns + 1;
    wire_writer *records = base_zalloc(n, sizeof *records);
    store_batch *batch = store_batch_create();
    status st = records == NULL || batch == NULL ? ST_ERR_MEMORY : ST_OK;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        wire_writer *w = &records[i];
        w->buf.max = RECORD_MAX_BYTES;
        store_key key = i + 1 < n ? key_of(s, STORE_TURN, s->saved_turns + i) : key_of(s, STORE_SESSION, 0);
        if (i + 1 < n) {
            put_turn(s, &s->turns[s->saved_turns + i], w);
        } else {
            put_header(s, w);
        }
        st = w->st == ST_OK ? store_batch_put(batch, &key, w->buf.data, w->buf.size) : w->st;
    }
    store_key behind = key_of(s, STORE_TURN, s->n_turns); /* turns a cut left on disk */
    st = st == ST_OK ? store_batch_delete_from(batch, &behind) : st;
    if (st != ST_OK) {
        st = FAIL(e, st, "cannot write the log of session %s: %s", s->name, status_text(st));
    } else {
        st = store_commit(s->x->store, batch, e);
    }
    if (st == ST_OK) {
        s->saved_turns = s->n_turns;
    }
    for (size_t i = 0; records != NULL && i < n; i++) {
        base_buf_free(&records[i].buf);
    }
    base_free(records);
    store_batch_free(batch);
    return st;
}

/* ---- KV ---- */

/* What a queued batch borrows. */
typedef struct save_parts {
    tiers_column **columns;
    size_t n_columns;
    uint8_t *pieces;
    wire_writer state;
    wire_writer *vectors;
    size_t n_vectors;
} save_parts;

static void release_parts(void *owned)
{
    save_parts *p = owned;
    for (size_t i = 0; p->columns != NULL && i < p->n_columns; i++) {
        tiers_column_unref(p->columns[i]);
    }
    for (size_t i = 0; p->vectors != NULL && i < p->n_vectors; i++) {
        base_buf_free(&p->vectors[i].buf);
    }
    base_free(p->columns);
    base_free(p->pieces);
    base_free(p->vectors);
    base_buf_free(&p->state.buf);
    base_free(p);
}

static status add_columns(session *s, save_parts *p, store_batch *batch)
{
    int64_t to = tiers_columns(s->tiers);
    p->columns = base_zalloc((size_t)(to - s->saved_columns) + 1, sizeof *p->columns);
    if (p->columns == NULL) {
        return ST_ERR_MEMORY;
    }
    for (int64_t c = s->saved_columns; c < to; c++) {
        tiers_column *column = tiers_get_column(s->tiers, c);
        REQUIRE(column != NULL); /* a column leaves memory only after it was queued */
        p->columns[p->n_columns++] = column;
        store_key key = key_of(s, STORE_COLUMN, (uint64_t)c);
        TRY(store_batch_put(batch, &key, tiers_column_data(column), kvq_column_bytes(s->x->codec)));
    }
    return ST_OK;
}

/* BF16 pieces that changed since the last state: the sinks while they fill, and rows from exact_from on. */
static status add_pieces(session *s, int64_t exact_from, save_parts *p, store_batch *batch)
{
    int64_t tokens = tiers_tokens(s->tiers), sink_pieces = TIERS_SINK_TOKENS / TIERS_PIECE_TOKENS;
    int64_t end = (tokens + TIERS_PIECE_TOKENS - 1) / TIERS_PIECE_TOKENS;
    int64_t first = s->saved_tokens / TIERS_PIECE_TOKENS;
    size_t bytes = tiers_piece_bytes(s->tiers), n = 0;
    if (end <= first) {
        return ST_OK;
    }
    p->pieces = base_alloc((size_t)(end - first) * bytes);
    if (p->pieces == NULL) {
        return ST_ERR_MEMORY;
    }
    for (int64_t i = first; i < end; i++) {
        if (i >= sink_pieces && i * TIERS_PIECE_TOKENS < exact_from) {
            continue;
        }
        uint8_t *out = p->pieces + n++ * bytes;
        tiers_export_piece(s->tiers, i, out);
        store_key key = key_of(s, STORE_TAIL, (uint64_t)i);
        TRY(store_batch_put(batch, &key, out, bytes));
    }
    int64_t from = s->saved_exact_from > TIERS_SINK_TOKENS ? s->saved_exact_from : TIERS_SINK_TOKENS;
    for (int64_t i = from / TIERS_PIECE_TOKENS; i < exact_from / TIERS_PIECE_TOKENS; i++) {
        store_key key = key_of(s, STORE_TAIL, (uint64_t)i);
        TRY(store_batch_delete(batch, &key));
    }
    return ST_OK;
}

static status add_vectors(session *s, save_parts *p, store_batch *batch)
{
    const vector_cache *c = &s->vectors;
    size_t first = c->saved / VECTOR_PIECE, end = (c->n + VECTOR_PIECE - 1) / VECTOR_PIECE;
    if (c->n == c->saved) {
        return ST_OK;
    }
    p->vectors = base_zalloc(end - first, sizeof *p->vectors);
    if (p->vectors == NULL) {
        return ST_ERR_MEMORY;
    }
    for (size_t piece = first; piece < end; piece++) {
        wire_writer *w = &p->vectors[p->n_vectors++];
        w->buf.max = RECORD_MAX_BYTES;
        for (size_t i = piece * VECTOR_PIECE; i < c->n && i < (piece + 1) * VECTOR_PIECE; i++) {
            wire_put_u64(w, c->hash[i]);
            wire_put(w, c->vectors + i * (size_t)c->dim, (size_t)c->dim * sizeof *c->vectors);
        }
        store_key key = key_of(s, STORE_VECTORS, piece);
        TRY(w->st == ST_OK ? store_batch_put(batch, &key, w->buf.data, w->buf.size) : w->st);
    }
    return ST_OK;
}

/* The state, and the hashes of the log's beginnings at which another session can fork from this one. */
static status add_state(session *s, int64_t exact_from, save_parts *p, store_batch *batch)
{
    wire_writer *w = &p->state;
    w->buf.max = 1 << 20;
    wire_put_u64(w, SESSION_RECORD_VERSION);
    wire_put_i64(w, tiers_tokens(s->tiers));
    wire_put_i64(w, tiers_columns(s->tiers));
    wire_put_i64(w, exact_from);
    session_fork_point points[SESSION_FORK_POINTS_MAX];
    size_t n = session_fork_points(s, points);
    wire_put_u64(w, n);
    for (size_t i = 0; i < n; i++) {
        wire_put_i64(w, points[i].tokens);
        wire_put_u64(w, points[i].hash);
    }
    store_key key = key_of(s, STORE_SESSION, 1);
    return w->st == ST_OK ? store_batch_put(batch, &key, w->buf.data, w->buf.size) : w->st;
}

size_t session_fork_points(const session *s, session_fork_point out[SESSION_FORK_POINTS_MAX])
{
    int64_t plain = session_plain_prefix(s), tokens = tiers_tokens(s->tiers),
            kept = tiers_exact_kept(s->tiers);
    plain = plain < tokens ? plain : tokens;
    size_t n = 0;
    for (int64_t b = tiers_block_of(plain); b >= 1 && n < SESSION_FORK_POINTS_MAX; b--) {
        int64_t at = tiers_block_start(b);
        if (tiers_block_start(b - 1) < kept || tiers_columns(s->tiers) < 2 * (b - 1)) {
            break;
        }
        out[n++] = (session_fork_point){
                .tokens = at, .hash = XXH3_64bits(s->tokens, (size_t)at * sizeof *s->tokens)};
    }
    return n;
}

status session_save_kv(session *s, bool state, err *e)
{
    int64_t tokens = tiers_tokens(s->tiers), exact_from = tiers_exact_from(tokens);
    TRY(tiers_seal(s->tiers, e));
    if (s->keep_exact_from > 0 && s->keep_exact_from < exact_from &&
            tokens - s->keep_exact_from <= SESSION_KEEP_TOKENS_MAX) {
        exact_from = s->keep_exact_from;
    }
    exact_from = exact_from > tiers_exact_kept(s->tiers) ? exact_from : tiers_exact_kept(s->tiers);
    save_parts *p = base_zalloc(1, sizeof *p);
    store_batch *batch = store_batch_create();
    status st = p == NULL || batch == NULL ? ST_ERR_MEMORY : add_columns(s, p, batch);
    if (st == ST_OK && state) {
        st = add_pieces(s, exact_from, p, batch);
        st = st == ST_OK ? add_vectors(s, p, batch) : st;
        st = st == ST_OK ? add_state(s, exact_from, p, batch) : st;
    }
    if (st != ST_OK) {
        if (p != NULL) {
            release_parts(p);
        }
        store_batch_free(batch);
        return FAIL(e, st, "cannot queue the cache of session %s: %s", s->name, status_text(st));
    }
    writer_submit(s->x->writer, &(writer_job){.batch = batch, .release = release_parts, .owned = p});
    s->saved_columns = tiers_columns(s->tiers);
    if (state) {
        s->saved_tokens = tokens;
        s->saved_exact_from = exact_from;
        s->vectors.saved = s->vectors.n;
        tiers_drop_exact(s->tiers, exact_from);
    }
    return ST_OK;
}
