/* session: life, views and runs. The log's text side is session_log.c, disk session_save.c and session_load.c, the
 * episode index session_index.c. */
#include "agent/session_internal.h"

#include <string.h>

static status load_column(void *ctx, int64_t column, tiers_column **out, err *e);

void session_turn_free(session_turn *t)
{
    base_free(t->speaker);
    base_free(t->text);
    base_free(t->ref);
    base_free(t->key);
    tiers_view_free(&t->view);
    *t = (session_turn){0};
}

const char *session_turn_role_name(const session_turn *t)
{
    static const char *const names[] = {"system", "user", "assistant", "user"};
    return t->role == TURN_SPEAKER && t->speaker != NULL ? t->speaker : names[t->role];
}

void session_close(session *s)
{
    if (s == NULL) {
        return;
    }
    ep_index_close(s->index);
    tiers_close(s->tiers);
    for (size_t i = 0; i < s->n_turns; i++) {
        session_turn_free(&s->turns[i]);
    }
    tiers_view_free(&s->live_view);
    vector_cache_free(&s->vectors);
    base_free(s->turns);
    base_free(s->tokens);
    base_free(s->tenant);
    base_free(s->name);
    base_free(s);
}

size_t session_resident_bytes(const session *s)
{
    return sizeof *s + s->tokens_cap * sizeof *s->tokens + s->turns_cap * sizeof *s->turns +
            tiers_resident_bytes(s->tiers) + s->vectors.vectors_cap * sizeof *s->vectors.vectors;
}

status session_new(
        const session_context *x, const char *tenant, const char *name, bool nameless, session **out, err *e)
{
    session *s = base_zalloc(1, sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a session");
    }
    s->x = x;
    s->tenant = base_strdup(tenant);
    s->name = base_strdup(name);
    s->nameless = nameless;
    s->created_us = s->last_used_us = base_wall_us();
    s->plain_tokens = x->plain_tokens;
    s->live_view.window_from = TIERS_SINK_TOKENS;
    s->vectors.dim = encoder_dim(x->encoder);
    status st =
            s->tenant == NULL || s->name == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory for a session") : ST_OK;
    if (st == ST_OK) {
        st = tiers_open(x->codec, &x->shape, x->pool, load_column, s, &s->tiers, e);
    }
    if (st != ST_OK) {
        session_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

/* ---- columns from the store ---- */

typedef struct column_read {
    tiers_column *column;
    size_t bytes;
} column_read;

static status copy_column(void *ctx, const void *data, size_t bytes)
{
    column_read *r = ctx;
    if (bytes != r->bytes) {
        return ST_ERR_CORRUPT;
    }
    memcpy(tiers_column_data(r->column), data, bytes);
    return ST_OK;
}

static status load_column(void *ctx, int64_t column, tiers_column **out, err *e)
{
    session *s = ctx;
    column_read r = {.bytes = kvq_column_bytes(s->x->codec)};
    r.column = tiers_column_create(r.bytes);
    if (r.column == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a page column of %zu bytes", r.bytes);
    }
    store_key key = {
            .kind = STORE_COLUMN, .tenant = s->tenant, .session = s->name, .number = (uint64_t)column};
    status st = store_read(s->x->store, &key, copy_column, &r, e);
    if (st == ST_ERR_NOT_FOUND && column < s->saved_columns) {
        writer_flush(s->x->writer); /* queued, not yet written */
        st = store_read(s->x->store, &key, copy_column, &r, e);
    }
    if (st != ST_OK) {
        tiers_column_unref(r.column);
        s->corrupt_seen += st == ST_ERR_CORRUPT ? 1 : 0;
        /* either way the page cannot be used and has to be computed again */
        return st == ST_ERR_NOT_FOUND
                ? FAIL(e, ST_ERR_CORRUPT, "page column %lld is missing", (long long)column)
                : st;
    }
    *out = r.column;
    return ST_OK;
}

/* ---- views ---- */

/* Index of the turn that holds a token, n_turns when it lies behind the last one. */
static size_t turn_of(const session *s, int64_t token)
{
    size_t low = 0, high = s->n_turns;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->turns[mid].first_token + s->turns[mid].n_tokens <= token) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* Ingested tokens: everything while the block ends within the plain limit, then pinned rows and the exact window. */
static tiers_view ingest_view(const session *s, int64_t token)
{
    int64_t block = tiers_block_of(token), end = tiers_block_start(block < 0 ? 0 : block + 1);
    return (tiers_view){.window_from = end <= s->plain_tokens ? TIERS_SINK_TOKENS : tiers_exact_from(token),
            .pinned_end = s->system_end,
            .sharpness = 1.0f};
}

tiers_view session_view_at(const session *s, int64_t token)
{
    size_t turn = turn_of(s, token);
    if (turn == s->n_turns) {
        return s->live_view;
    }
    return s->turns[turn].has_view ? s->turns[turn].view : ingest_view(s, token);
}

int64_t session_plain_prefix(const session *s)
{
    for (size_t i = 0; i < s->n_turns; i++) {
        const session_turn *t = &s->turns[i];
        if (t->has_view && !tiers_view_is_plain(&t->view)) {
            return t->first_token;
        }
        if (!t->has_view && t->first_token + t->n_tokens > s->plain_tokens) {
            /* the ingest rule turns windowed at a block start */
            int64_t block = tiers_block_of(s->plain_tokens), end = tiers_block_start(block < 0 ? 0 : block);
            return end > t->first_token ? end : t->first_token;
        }
    }
    return (int64_t)s->n_tokens;
}

/* ---- runs ---- */

/* End of the stretch of tokens from `token` on that share its view, as far as turns decide. */
static int64_t view_end(const session *s, int64_t token)
{
    size_t i = turn_of(s, token);
    if (i == s->n_turns) {
        return (int64_t)s->n_tokens;
    }
    bool has_view = s->turns[i].has_view;
    tiers_view view = s->turns[i].view;
    for (; i < s->n_turns; i++) {
        const session_turn *t = &s->turns[i];
        if (t->has_view != has_view || (has_view && !tiers_view_equal(&t->view, &view))) {
            return t->first_token;
        }
    }
    const session_turn *last = &s->turns[s->n_turns - 1];
    if (has_view && tiers_view_equal(&s->live_view, &view)) {
        return (int64_t)s->n_tokens;
    }
    return last->first_token + last->n_tokens;
}

status session_next_run(session *s, int most, int *n, const model_kv **kv, err *e)
{
    int64_t at = tiers_tokens(s->tiers), left = (int64_t)s->n_tokens - at;
    *n = 0;
    if (left <= 0) {
        return ST_OK;
    }
    int64_t room = tiers_run_room(s->tiers), same = view_end(s, at) - at;
    left = left < room ? left : room;
    left = left < same ? left : same;
    left = left < most ? left : most;
    tiers_view view = session_view_at(s, at);
    if (!s->view_set || !tiers_view_equal(&view, tiers_get_view(s->tiers))) {
        TRY(tiers_set_view(s->tiers, &view, e));
        s->view_set = true;
    }
    TRY(tiers_prepare(s->tiers, (int)left, kv, e));
    *n = (int)left;
    return ST_OK;
}

void session_rest(session *s)
{
    if (!tiers_view_is_plain(tiers_get_view(s->tiers))) {
        tiers_drop_columns(s->tiers, 0, s->saved_columns);
    }
    tiers_forget_view(s->tiers);
    s->view_set = false;
}

void session_forget_kv(session *s)
{
    tiers_reset(s->tiers);
    s->view_set = false;
    s->saved_columns = 0;
    s->saved_tokens = 0;
    s->saved_exact_from = TIERS_SINK_TOKENS;
    s->keep_exact_from = 0;
}

status session_cut(session *s, size_t turn, err *e)
{
    REQUIRE(turn > 0 && turn <= s->n_turns);
    writer_flush(s->x->writer); /* a queued KV state must not land behind the cut */
    store_batch *batch = store_batch_create();
    store_key state = {.kind = STORE_SESSION, .tenant = s->tenant, .session = s->name, .number = 1};
    status st = batch == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory to cut session %s", s->name)
                              : store_batch_delete(batch, &state);
    st = st == ST_OK ? store_commit(s->x->store, batch, e) : st;
    store_batch_free(batch);
    TRY(st);
    int64_t end = s->turns[turn - 1].first_token + s->turns[turn - 1].n_tokens;
    for (size_t i = turn; i < s->n_turns; i++) {
        session_turn_free(&s->turns[i]);
    }
    s->n_turns = turn;
    s->n_tokens = (size_t)end;
    s->transcript_open = s->turns[turn - 1].role == TURN_SPEAKER;
    s->chain = 0;
    for (size_t i = 0; i < turn; i++) {
        const session_turn *t = &s->turns[i];
        s->chain = session_chain_add(s->chain, session_turn_role_name(t), t->text, t->text_bytes);
    }
    s->saved_turns = s->saved_turns < turn ? s->saved_turns : turn;
    session_forget_kv(s);
    ep_index_close(s->index);
    s->index = NULL;
    s->indexed_turns = 0;
    return session_save_log(s, e);
}
