/* job_simple: requests answered in one step: match, session.*, episode.list, stats. */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <string.h>

static job_state done(job *j, cJSON *members)
{
    job_release_session(j, true);
    job_send_done(j, members);
    return JOB_ENDED;
}

static job_state fail(job *j, const err *e, const char *param)
{
    job_fail(j, e, param);
    return JOB_ENDED;
}

static job_state match(job *j)
{
    session *s = j->session;
    const agent_request *r = j->request;
    err e = {0};
    ep_query q = {.text = r->text,
            .text_bytes = strlen(r->text),
            .budget_tokens = r->budget > 0 ? r->budget : j->engine->recall_tokens,
            .attended_from = INT64_MAX};
    if (s->index == NULL) {
        return done(j, report_match(j));
    }
    s->embedding_query = true;
    status st = ep_match_run(s->index, &q, &j->match, &e);
    s->embedding_query = false;
    if (st != ST_OK) {
        return fail(j, &e, NULL);
    }
    j->matched = true;
    return done(j, report_match(j));
}

static job_state create(job *j)
{
    agent_request *r = j->request;
    err e = {0};
    status st = sessions_take(j->engine->sessions, r->tenant, r->session, &j->session, &e);
    if (st == ST_OK || st == ST_ERR_BUSY) {
        job_release_session(j, true);
        job_fail_code(j, "bad_request", "session", "a session of this name exists already");
        return JOB_ENDED;
    }
    if (st == ST_ERR_NOT_FOUND) {
        st = sessions_make(j->engine->sessions, r->tenant, r->session, false, &j->session, &e);
    }
    if (st == ST_OK && r->system != NULL) {
        st = tokenizer_check(j->engine->tokenizer, r->system, strlen(r->system), &e);
        if (st != ST_OK) {
            return fail(j, &e, "system");
        }
    }
    if (st == ST_OK) {
        j->session->ttl_s = r->ttl_s;
        st = session_open_log(j->session, r->system, r->system != NULL ? strlen(r->system) : 0, &e);
    }
    st = st == ST_OK ? session_save_log(j->session, &e) : st;
    if (st != ST_OK) {
        return fail(j, &e, NULL);
    }
    sessions_note_saved(j->engine->sessions, j->session);
    return done(j, report_session(j->session, false));
}

static job_state erase(job *j)
{
    const agent_request *r = j->request;
    agent_engine *g = j->engine;
    err e = {0};
    store_stats before, after;
    for (const job *o = g->active; o != NULL; o = o->next) {
        if (o != j && o->session != NULL && strcmp(o->session->name, r->session) == 0 &&
                strcmp(o->session->tenant, r->tenant) == 0) {
            return JOB_WAITS;
        }
    }
    store_key key = {.kind = STORE_SESSION, .tenant = r->tenant, .session = r->session};
    session_header h = {0};
    void *data;
    size_t bytes;
    if (store_read_copy(g->store, &key, &data, &bytes, NULL) == ST_OK) {
        if (session_header_parse(data, bytes, &h) != ST_OK) {
            h = (session_header){0};
        }
        base_free(data);
    }
    store_get_stats(g->store, &before);
    if (sessions_erase(g->sessions, r->tenant, r->session, &e) != ST_OK) {
        return fail(j, &e, "session");
    }
    store_get_stats(g->store, &after);
    uint64_t held = before.index_bytes + before.blob_bytes, left = after.index_bytes + after.blob_bytes;
    cJSON *o = cJSON_CreateObject();
    (void)cJSON_AddNumberToObject(o, "turns", (double)(h.n_turns > 0 ? h.n_turns - 1 : 0));
    (void)cJSON_AddNumberToObject(o, "bytes_freed", held > left ? (double)(held - left) : 0);
    return done(j, o);
}

/* ---- list ---- */

typedef struct list_walk {
    job *j;
    cJSON *sessions;
    int n;
    char next[160];
} list_walk;

static status visit_session(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    list_walk *w = ctx;
    session_header h;
    if (key->number != 0 || key->session[0] == '~') {
        return ST_OK; /* KV states, and sessions without a name */
    }
    if (data == NULL || session_header_parse(data, bytes, &h) != ST_OK) {
        h = (session_header){0};
    }
    if (w->n == w->j->request->limit) {
        return ST_ERR_LIMIT;
    }
    (void)snprintf(w->next, sizeof w->next, "%s", key->session);
    (void)cJSON_AddItemToArray(w->sessions, report_header(key->session, &h, w->j->engine));
    w->n++;
    return ST_OK;
}

static job_state list(job *j)
{
    const agent_request *r = j->request;
    err e = {0};
    cJSON *o = cJSON_CreateObject();
    list_walk w = {.j = j, .sessions = cJSON_AddArrayToObject(o, "sessions")};
    status st = store_walk(
            j->engine->store, STORE_SESSION, r->tenant, NULL, r->prefix, r->after, visit_session, &w, &e);
    if (st != ST_OK && st != ST_ERR_LIMIT) {
        cJSON_Delete(o);
        return fail(j, &e, NULL);
    }
    (void)(st == ST_ERR_LIMIT ? cJSON_AddStringToObject(o, "next", w.next)
                              : cJSON_AddNullToObject(o, "next"));
    return done(j, o);
}

job_state job_answer_at_once(job *j)
{
    switch (j->request->op) {
    case AGENT_STATS:
        return done(j, report_stats(j->engine));
    case AGENT_SESSION_LIST:
        return list(j);
    case AGENT_SESSION_CREATE:
        return create(j);
    case AGENT_SESSION_ERASE:
        return erase(j);
    default:
        break;
    }
    job_state st = job_take_session(j, false);
    if (st != JOB_WORKED) {
        return st;
    }
    switch (j->request->op) {
    case AGENT_MATCH:
        return match(j);
    case AGENT_SESSION_GET:
        return done(j, report_session(j->session, j->request->with_messages));
    default:
        return done(j, report_episodes(j->session));
    }
}
