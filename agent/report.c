/* report: results as the JSON members of docs/protocol.md. A NULL return means that memory ran out. */
#include "agent/engine_internal.h"

#include <string.h>

static void add_number(cJSON *o, const char *name, double v)
{
    (void)cJSON_AddNumberToObject(o, name, v);
}

static void add_text(cJSON *o, const char *name, const char *text)
{
    (void)(text != NULL ? cJSON_AddStringToObject(o, name, text) : cJSON_AddNullToObject(o, name));
}

static void add_time(cJSON *o, const char *name, bool has_time, int64_t time_us)
{
    char text[32];
    agent_time_format(time_us, text);
    add_text(o, name, has_time ? text : NULL);
}

/* Four decimals: the encoder's scores are good to fewer. */
static void add_score(cJSON *o, const char *name, float score)
{
    add_number(o, name, (double)(int64_t)(score * 10000.0f + (score < 0 ? -0.5f : 0.5f)) / 10000.0);
}

/* Stored bytes of that many coded tokens. */
static double coded_bytes(const kvq_codec *codec, int64_t tokens)
{
    return (double)(tokens * (int64_t)(kvq_column_bytes(codec) / TIERS_COLUMN_TOKENS));
}

static cJSON *episode_object(const ep_episode *ep, const kvq_codec *codec)
{
    cJSON *o = cJSON_CreateObject();
    add_number(o, "id", ep->id);
    add_text(o, "title", ep->title);
    add_time(o, "from", ep->has_time, ep->from_us);
    add_time(o, "to", ep->has_time, ep->to_us);
    add_number(o, "first_turn", (double)ep->first_turn);
    add_number(o, "last_turn", (double)ep->last_turn);
    add_number(o, "utterances", (double)ep->utterances);
    add_number(o, "segments", (double)ep->segments);
    add_number(o, "tokens", (double)ep->tokens);
    add_number(o, "bytes", coded_bytes(codec, ep->tokens));
    return o;
}

/* Used tokens of a match in one episode. */
static int64_t tokens_used(const ep_match *m, int episode)
{
    int64_t tokens = 0;
    for (int i = 0; i < m->n_hits; i++) {
        tokens += m->hits[i].used && m->hits[i].episode == episode ? m->hits[i].tokens : 0;
    }
    return tokens;
}

static void add_matched_episodes(cJSON *o, const ep_match *m, const kvq_codec *codec, bool used_only)
{
    cJSON *list = cJSON_AddArrayToObject(o, "episodes");
    for (int i = 0; i < m->n_episodes; i++) {
        const ep_episode *ep = &m->episodes[i];
        if (used_only && !ep->used) {
            continue;
        }
        cJSON *item = episode_object(ep, codec);
        int64_t recalled = tokens_used(m, ep->id);
        add_score(item, "score", ep->score);
        (void)cJSON_AddBoolToObject(item, "used", ep->used);
        add_number(item, "recalled_tokens", (double)recalled);
        add_number(item, "recalled_bytes", coded_bytes(codec, recalled));
        (void)cJSON_AddItemToArray(list, item);
    }
}

static cJSON *hit_object(const ep_hit *hit, const session *s, bool explain)
{
    cJSON *o = cJSON_CreateObject();
    const session_turn *t = &s->turns[hit->turn];
    add_text(o, "ref", t->ref);
    add_number(o, "turn", (double)hit->turn);
    add_number(o, "episode", hit->episode);
    add_score(o, "score", hit->score);
    add_number(o, "tokens", hit->tokens);
    if (explain) {
        add_score(o, "rank", hit->rank);
        add_text(o, "why", ep_reason_text(hit->reason));
        add_text(o, "speaker", session_turn_role_name(t));
        add_time(o, "time", t->has_time, t->time_us);
        add_text(o, "text", t->text);
    }
    return o;
}

static void add_hits(cJSON *o, const char *name, const ep_match *m, const session *s, bool used, bool explain)
{
    cJSON *list = cJSON_AddArrayToObject(o, name);
    for (int i = 0; i < m->n_hits; i++) {
        if (m->hits[i].used == used) {
            (void)cJSON_AddItemToArray(list, hit_object(&m->hits[i], s, explain));
        }
    }
}

/* ---- chat ---- */

static const char *finish_name(agent_finish f)
{
    return f == FINISH_STOP ? "stop" : f == FINISH_LENGTH ? "length" : "cancelled";
}

static void add_usage(cJSON *o, const job *j)
{
    cJSON *u = cJSON_AddObjectToObject(o, "usage");
    add_number(u, "prompt_tokens", (double)j->prompt_tokens);
    add_number(u, "completion_tokens", j->n_answer);
    add_number(u, "total_tokens", (double)(j->prompt_tokens + j->n_answer));
    cJSON *d = cJSON_AddObjectToObject(u, "prompt_tokens_details");
    add_number(d, "cached_tokens", (double)j->cached_tokens);
}

/* Bytes of the cache rows an answer is decoded on: exact rows in BF16, the others as coded. */
static double attended_bytes(const job *j)
{
    const kvq_shape *shape = &j->engine->x.shape;
    int64_t exact = j->prompt_end - tiers_exact_from(j->prompt_end) + TIERS_SINK_TOKENS;
    exact = exact < j->prompt_tokens ? exact : j->prompt_tokens;
    return (double)exact * shape->layers * shape->kv_heads * shape->d * 4 +
            coded_bytes(j->engine->codec, j->prompt_tokens - exact);
}

static void add_memory(cJSON *o, const job *j)
{
    const session *s = j->session;
    cJSON *m = cJSON_AddObjectToObject(o, "memory");
    add_matched_episodes(m, &j->match, j->engine->codec, true);
    add_hits(m, "used", &j->match, s, true, false);
    add_number(m, "recalled_tokens", s != NULL ? (double)s->live_view.piece_rows : 0);
    add_number(m, "cached_tokens", (double)j->cached_tokens);
    add_number(m, "history_tokens", (double)j->turn_start);
    (void)cJSON_AddBoolToObject(m, "attended_all", s != NULL && tiers_view_is_plain(&s->live_view));
    add_number(m, "attended_bytes", attended_bytes(j));
    add_number(m, "loaded_bytes", (double)j->loaded_bytes);
    add_number(m, "match_ms", (double)j->match_us / 1000.0);
    add_number(m, "load_ms", (double)j->load_us / 1000.0);
    add_text(m, "miss_reason", j->miss_reason);
}

static void add_timing(cJSON *o, const job *j)
{
    int64_t now = base_monotonic_us();
    cJSON *t = cJSON_AddObjectToObject(o, "timing");
    add_number(t, "first_token_ms",
            (double)((j->first_token_us > 0 ? j->first_token_us : now) - j->started_us) / 1000.0);
    add_number(t, "total_ms", (double)(now - j->started_us) / 1000.0);
    add_number(t, "computed_tokens", (double)j->computed_tokens);
}

cJSON *report_chat(const job *j)
{
    cJSON *o = cJSON_CreateObject();
    const session *s = j->session;
    char *text = base_strndup(j->text.data != NULL ? (const char *)j->text.data : "", j->text.size);
    if (o == NULL || text == NULL) {
        cJSON_Delete(o);
        base_free(text);
        return NULL;
    }
    add_text(o, "text", text);
    base_free(text);
    add_text(o, "finish_reason", finish_name(j->finish));
    add_usage(o, j);
    add_memory(o, j);
    add_timing(o, j);
    if (s != NULL && j->finish != FINISH_CANCELLED) { /* a cancelled turn is not stored */
        add_text(o, "session", s->name);
        add_number(o, "turn", s->n_turns > 0 ? (double)(s->n_turns - 1) : 0);
    }
    return o;
}

/* ---- others ---- */

cJSON *report_ingest(const job *j, int64_t started_us)
{
    const session *s = j->session;
    cJSON *o = cJSON_CreateObject();
    add_number(o, "turns", (double)j->n_ingested);
    add_number(o, "tokens", (double)j->total_tokens);
    add_number(o, "segments", s->index != NULL ? (double)ep_index_segments(s->index) : 0);
    add_number(o, "episodes", s->index != NULL ? ep_index_episodes(s->index) : 0);
    add_number(o, "bytes", (double)s->saved_columns * (double)kvq_column_bytes(j->engine->codec));
    add_number(o, "ms", (double)(base_monotonic_us() - started_us) / 1000.0);
    cJSON *t = cJSON_AddObjectToObject(o, "timing");
    add_number(t, "prefill_ms", (double)j->prefill_us / 1000.0);
    add_number(t, "coding_ms", (double)j->coding_us / 1000.0);
    add_number(t, "embed_ms", (double)j->embed_us / 1000.0);
    add_number(t, "commit_ms", (double)j->commit_us / 1000.0);
    add_number(o, "last_turn", s->n_turns > 0 ? (double)(s->n_turns - 1) : 0);
    return o;
}

cJSON *report_match(const job *j)
{
    cJSON *o = cJSON_CreateObject();
    add_matched_episodes(o, &j->match, j->engine->codec, false);
    add_hits(o, "used", &j->match, j->session, true, true);
    add_hits(o, "unused", &j->match, j->session, false, true);
    add_number(o, "recalled_tokens", (double)j->match.used_tokens);
    add_score(o, "best_score", j->match.best_score);
    add_score(o, "floor", j->engine->x.floor);
    return o;
}

static void add_messages(cJSON *o, const session *s)
{
    cJSON *list = cJSON_AddArrayToObject(o, "messages");
    for (size_t i = 1; i < s->n_turns; i++) {
        const session_turn *t = &s->turns[i];
        cJSON *item = cJSON_CreateObject();
        add_number(item, "turn", (double)i);
        add_text(item, t->role == TURN_SPEAKER ? "speaker" : "role", session_turn_role_name(t));
        add_text(item, "content", t->text);
        add_time(item, "time", t->has_time, t->time_us);
        add_text(item, "ref", t->ref);
        add_number(item, "tokens", t->n_tokens);
        (void)cJSON_AddItemToArray(list, item);
    }
}

cJSON *report_session(const session *s, bool messages)
{
    cJSON *o = cJSON_CreateObject();
    add_text(o, "session", s->name);
    add_time(o, "created", true, s->created_us);
    add_time(o, "last_used", true, s->last_used_us);
    add_number(o, "turns", s->n_turns > 0 ? (double)(s->n_turns - 1) : 0);
    add_number(o, "tokens", (double)s->n_tokens);
    add_number(o, "segments", s->index != NULL ? (double)ep_index_segments(s->index) : 0);
    add_number(o, "episodes", s->index != NULL ? ep_index_episodes(s->index) : 0);
    int64_t exact = tiers_tokens(s->tiers) - tiers_exact_kept(s->tiers);
    double row = (double)s->x->shape.layers * s->x->shape.kv_heads * s->x->shape.d * 4; /* K and V in BF16 */
    cJSON *b = cJSON_AddObjectToObject(o, "bytes");
    add_number(b, "pinned",
            row *
                    (tiers_tokens(s->tiers) < TIERS_SINK_TOKENS ? (double)tiers_tokens(s->tiers)
                                                                : TIERS_SINK_TOKENS));
    add_number(b, "coded", (double)tiers_columns(s->tiers) * (double)kvq_column_bytes(s->x->codec));
    add_number(b, "recent", exact > 0 ? row * (double)exact : 0);
    add_text(o, "model", model_get_config(s->x->model)->name);
    add_text(o, "codec", kvq_codec_name(s->x->codec));
    add_time(o, "expires", s->ttl_s > 0, s->last_used_us + s->ttl_s * 1000000);
    if (messages) {
        add_messages(o, s);
    }
    return o;
}

cJSON *report_header(const char *name, const session_header *h, const agent_engine *g)
{
    cJSON *o = cJSON_CreateObject();
    add_text(o, "session", name);
    add_time(o, "created", h->created_us > 0, h->created_us);
    add_time(o, "last_used", h->last_used_us > 0, h->last_used_us);
    add_number(o, "turns", h->n_turns > 0 ? (double)(h->n_turns - 1) : 0);
    add_number(o, "tokens", (double)h->n_tokens);
    add_text(o, "model", g->model_name);
    add_text(o, "codec", kvq_codec_name(g->codec));
    add_time(o, "expires", h->ttl_s > 0, h->last_used_us + h->ttl_s * 1000000);
    return o;
}

/* [largest id + 1] the last turn whose view recalled rows of the episode of that id, 0 for none; NULL: out of memory. */
static size_t *last_recalls(const session *s, int n_episodes)
{
    int largest = -1;
    ep_episode ep;
    for (int i = 0; i < n_episodes; i++) {
        largest = ep_index_episode(s->index, i, &ep) == ST_OK && ep.id > largest ? ep.id : largest;
    }
    size_t *last = base_zalloc((size_t)largest + 2, sizeof *last);
    for (size_t turn = 0; last != NULL && turn < s->n_turns; turn++) {
        const tiers_view *v = &s->turns[turn].view;
        for (int i = 0; s->turns[turn].has_view && i < v->n_pieces; i++) {
            int id = ep_index_episode_at(s->index, v->pieces[i].first_token);
            if (id >= 0 && id <= largest) {
                last[id] = turn;
            }
        }
    }
    return last;
}

cJSON *report_episodes(const session *s)
{
    int n = s->index != NULL ? ep_index_episodes(s->index) : 0;
    size_t *last = last_recalls(s, n);
    cJSON *o = last != NULL ? cJSON_CreateObject() : NULL;
    cJSON *list = cJSON_AddArrayToObject(o, "episodes");
    for (int i = 0; last != NULL && i < n; i++) {
        ep_episode ep;
        if (ep_index_episode(s->index, i, &ep) == ST_OK) {
            cJSON *item = episode_object(&ep, s->x->codec);
            if (last[ep.id] > 0) {
                add_number(item, "last_recalled", (double)last[ep.id]);
            } else {
                add_text(item, "last_recalled", NULL);
            }
            (void)cJSON_AddItemToArray(list, item);
        }
    }
    base_free(last);
    return o;
}

cJSON *report_stats(agent_engine *g)
{
    const engine_counters *c = &g->counters;
    store_stats st;
    store_get_stats(g->store, &st);
    cJSON *o = cJSON_CreateObject();
    add_number(o, "uptime_ms", (double)(base_monotonic_us() - g->started_us) / 1000.0);
    add_number(o, "requests", (double)c->requests);
    add_number(o, "errors", (double)c->errors);
    add_number(o, "cancelled", (double)c->cancelled);
    add_number(o, "prompt_tokens", (double)c->prompt_tokens);
    add_number(o, "cached_tokens", (double)c->cached_tokens);
    add_number(o, "computed_tokens", (double)c->computed_tokens);
    add_number(o, "decoded_tokens", (double)c->decoded_tokens);
    add_number(o, "recalled_tokens", (double)c->recalled_tokens);
    add_number(o, "loaded_bytes", (double)c->loaded_bytes);
    add_number(o, "forked_sessions", (double)c->forked_sessions);
    cJSON *m = cJSON_AddObjectToObject(o, "resident");
    add_number(m, "sessions", (double)sessions_resident_count(g->sessions));
    add_number(m, "bytes", (double)sessions_resident_bytes(g->sessions));
    tiers_usage u = sessions_usage(g->sessions);
    add_number(m, "pinned_bytes", (double)u.pinned_bytes);
    add_number(m, "coded_bytes", (double)u.coded_bytes);
    add_number(m, "recent_bytes", (double)u.recent_bytes);
    add_number(m, "exact_share", u.tokens > 0 ? (double)u.exact_tokens / (double)u.tokens : 0);
    add_number(m, "cap_bytes", (double)g->options.host_cache_bytes);
    cJSON *s = cJSON_AddObjectToObject(o, "store");
    add_number(s, "index_bytes", (double)st.index_bytes);
    add_number(s, "blob_bytes", (double)st.blob_bytes);
    add_number(s, "cap_bytes", (double)st.cap_bytes);
    add_number(s, "records", (double)st.records);
    add_number(s, "blobs", (double)st.blobs);
    add_number(s, "dropped_at_open", (double)st.dropped_at_open);
    add_number(s, "commits", (double)st.commits);
    add_number(s, "failed_writes", (double)writer_failures(g->writer));
    add_number(o, "checksum_failures", (double)st.checksum_failures);
    add_number(o, "corrupt_values", (double)c->corrupt_values);
    add_number(o, "rebuilds", (double)c->rebuilds);
    add_number(o, "rebuilt_tokens", (double)c->rebuilt_tokens);
    uint64_t columns = c->rebuilt_tokens / TIERS_COLUMN_TOKENS;
    add_number(o, "rebuilt_pages", (double)columns * g->x.shape.layers * g->x.shape.kv_heads);
    return o;
}
