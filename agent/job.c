/* job: what all requests share: life, events, errors, taking a session and offering runs. */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <string.h>

enum { PROGRESS_PERIOD_US = 500000 };

job *job_create(agent_engine *g, agent_request *r)
{
    job *j = base_zalloc(1, sizeof *j);
    if (j == NULL) {
        return NULL;
    }
    j->engine = g;
    j->request = r;
    j->started_us = base_monotonic_us();
    j->text.max = 64u << 20;
    atomic_init(&j->cancelled, false);
    atomic_init(&j->answered, false);
    return j;
}

void job_free(job *j)
{
    if (j == NULL) {
        return;
    }
    ep_match_free(&j->match);
    base_buf_free(&j->text);
    base_free(j->logits);
    agent_request_free(j->request);
    base_free(j);
}

/* ---- events ---- */

static void send_event(job *j, const agent_event *ev)
{
    if (ev->kind == AGENT_EVENT_DONE || ev->kind == AGENT_EVENT_ERROR) {
        REQUIRE(!atomic_load(&j->answered));
        atomic_store(&j->answered, true);
    }
    j->request->on_event(j->request->user, ev);
}

void job_send_done(job *j, cJSON *members)
{
    if (members == NULL) {
        job_fail_code(j, "internal", NULL, "no memory for the answer");
        return;
    }
    j->engine->counters.requests++;
    send_event(j, &(agent_event){.kind = AGENT_EVENT_DONE, .members = members});
}

void job_progress(job *j, const char *phase, int64_t done, int64_t total)
{
    int64_t now = base_monotonic_us();
    if (now - (j->progress_us > 0 ? j->progress_us : j->started_us) < PROGRESS_PERIOD_US) {
        return;
    }
    j->progress_us = now;
    send_event(j,
            &(agent_event){.kind = AGENT_EVENT_PROGRESS,
                    .phase = phase,
                    .done_tokens = done,
                    .total_tokens = total});
}

void job_fail_code(job *j, const char *code, const char *param, const char *message)
{
    job_release_session(j, false);
    j->phase = JOB_OVER;
    if (!atomic_load(&j->answered)) {
        j->engine->counters.errors++;
        send_event(j,
                &(agent_event){.kind = AGENT_EVENT_ERROR,
                        .code = code,
                        .message = message,
                        .param = param,
                        .retry_after_ms =
                                strcmp(code, "busy") == 0 || strcmp(code, "session_busy") == 0 ? 1000 : 0});
    } else {
        LOG_E("after the answer of a request: %s", message);
    }
}

static const char *code_of(status s)
{
    switch (s) {
    case ST_ERR_ARG:
    case ST_ERR_FORMAT:
    case ST_ERR_EXISTS:
    case ST_ERR_UNSUPPORTED:
        return "bad_request";
    case ST_ERR_NOT_FOUND:
        return "session_not_found";
    case ST_ERR_LIMIT:
        return "context_length_exceeded";
    case ST_ERR_BUSY:
        return "session_busy";
    case ST_ERR_FULL:
        return "store_full";
    case ST_ERR_IO:
    case ST_ERR_CORRUPT:
        return "store_error";
    case ST_ERR_MISMATCH:
        return "model_mismatch";
    case ST_ERR_CANCELLED:
        return "cancelled";
    case ST_ERR_UNENCODABLE:
        return "unencodable_text";
    default:
        return "internal";
    }
}

void job_fail(job *j, const err *e, const char *param)
{
    job_fail_code(j, code_of(e->code), param, e->text);
}

/* ---- sessions ---- */

void job_release_session(job *j, bool keep)
{
    if (j->session != NULL) {
        sessions_give(j->engine->sessions, j->session, keep);
        j->session = NULL;
    }
}

static bool other_job_holds(const job *j)
{
    for (const job *o = j->engine->active; o != NULL; o = o->next) {
        if (o != j && o->session != NULL && strcmp(o->session->name, j->request->session) == 0 &&
                strcmp(o->session->tenant, j->request->tenant) == 0) {
            return true;
        }
    }
    return false;
}

/* Requests of the same session that came before this one and have not got it yet go first. */
static int waiters_before(const job *j)
{
    int n = 0;
    for (const job *o = j->engine->active; o != j; o = o->next) {
        if (o->phase == JOB_START && o->session == NULL && o->request->session != NULL &&
                strcmp(o->request->session, j->request->session) == 0 &&
                strcmp(o->request->tenant, j->request->tenant) == 0) {
            n++;
        }
    }
    return n;
}

job_state job_take_session(job *j, bool make)
{
    const agent_request *r = j->request;
    if (j->session != NULL) {
        return JOB_WORKED;
    }
    int before = waiters_before(j);
    if (before >= ENGINE_SESSION_WAITERS_MAX) {
        job_fail_code(j, "session_busy", "session", "too many requests wait for this session");
        return JOB_ENDED;
    }
    if (before > 0 || other_job_holds(j)) {
        return JOB_WAITS;
    }
    err e = {0};
    status st = sessions_take(j->engine->sessions, r->tenant, r->session, &j->session, &e);
    if (st == ST_ERR_BUSY) {
        return JOB_WAITS;
    }
    if (st == ST_ERR_NOT_FOUND && make && r->session[0] == '~') {
        job_fail_code(j, "bad_request", "session", "names that begin with ~ are the server's own");
        return JOB_ENDED;
    }
    if (st == ST_ERR_NOT_FOUND && make) {
        st = sessions_make(j->engine->sessions, r->tenant, r->session, false, &j->session, &e);
        j->session_is_new = st == ST_OK;
    }
    if (st != ST_OK) {
        job_fail(j, &e, "session");
        return JOB_ENDED;
    }
    j->session->last_used_us = base_wall_us();
    return JOB_WORKED;
}

/* ---- runs ---- */

job_state job_rebuild(job *j, int64_t until, job_phase then)
{
    j->rebuild_until = until;
    j->after_rebuild = then;
    j->phase = JOB_REBUILD;
    return JOB_WORKED;
}

/* A page of the view is damaged; nothing of it has been used. Computes the KV of the log again, then goes on. */
static job_state start_over(job *j, const err *e)
{
    session *s = j->session;
    if (++j->n_rebuilds > 2) {
        job_fail(j, e, NULL);
        return JOB_ENDED;
    }
    LOG_W("session %s: %s; computing its cache again from the token log", s->name, e->text);
    j->engine->counters.rebuilds++;
    int64_t until = tiers_tokens(s->tiers);
    session_forget_kv(s);
    return j->phase == JOB_REBUILD ? JOB_WORKED : job_rebuild(j, until, j->phase);
}

job_state job_offer_run(job *j, bool want_logits)
{
    session *s = j->session;
    const model_kv *kv;
    err e = {0};
    int64_t at = tiers_tokens(s->tiers);
    int n = 0, most = j->run.n;
    if (j->phase == JOB_REBUILD) {
        most = j->rebuild_until - at < most ? (int)(j->rebuild_until - at) : most;
    }
    int64_t start = base_monotonic_us();
    status st = most > 0 ? session_next_run(s, most, &n, &kv, &e) : ST_OK;
    j->load_us += j->phase == JOB_PREFILL && j->computed_tokens == 0 ? base_monotonic_us() - start : 0;
    if (st == ST_ERR_CORRUPT) {
        return start_over(j, &e);
    }
    if (st != ST_OK) {
        job_fail(j, &e, NULL);
        return JOB_ENDED;
    }
    if (n == 0) {
        return JOB_WORKED;
    }
    bool last = at + n == (int64_t)s->n_tokens;
    if (want_logits && last && j->logits == NULL) {
        j->logits = base_zalloc((size_t)model_get_config(j->engine->model)->vocab, sizeof *j->logits);
        if (j->logits == NULL) {
            job_fail_code(j, "internal", NULL, "no memory for logits");
            return JOB_ENDED;
        }
    }
    j->run = (model_run){.ids = s->tokens + at,
            .n = n,
            .first_position = at,
            .kv = kv,
            .n_logits = want_logits && last ? 1 : 0,
            .logits = want_logits && last ? j->logits : NULL};
    return JOB_WANTS_RUN;
}

/* Columns that no later token of this view reads leave memory once queued, so that a long history stays bounded. */
static void shed(job *j)
{
    session *s = j->session;
    int64_t stored = tiers_columns(s->tiers), next = tiers_tokens(s->tiers);
    err e = {0};
    if (!j->request->store || stored - s->saved_columns < 16) {
        return;
    }
    if (session_save_kv(s, false, &e) != ST_OK) {
        LOG_W("%s", e.text);
        return;
    }
    const tiers_view *v = tiers_get_view(s->tiers);
    if (!tiers_view_is_plain(v)) {
        int64_t pinned = (s->system_end - TIERS_SINK_TOKENS + TIERS_COLUMN_TOKENS - 1) / TIERS_COLUMN_TOKENS;
        int64_t window = (v->window_from - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
        tiers_drop_columns(s->tiers, pinned > 0 ? pinned : 0, window);
        tiers_drop_exact(s->tiers, tiers_exact_from(next));
    }
}

void job_computed(job *j)
{
    session *s = j->session;
    tiers_advance(s->tiers, j->run.n);
    j->computed_tokens += j->phase == JOB_REBUILD ? 0 : j->run.n;
    j->engine->counters.computed_tokens += (uint64_t)j->run.n;
    if (j->phase == JOB_REBUILD) {
        j->engine->counters.rebuilt_tokens += (uint64_t)j->run.n;
    }
    shed(j);
    if (j->phase == JOB_DECODE || j->phase == JOB_PREFILL) {
        job_chat_computed(j);
    }
}

/* ---- dispatch ---- */

static bool is_cancelled(const job *j)
{
    return atomic_load(&j->cancelled) && !atomic_load(&j->answered);
}

job_state job_advance_rebuild(job *j)
{
    job_state st = job_offer_run(j, false);
    if (st == JOB_ENDED) {
        return st;
    }
    job_progress(j, "rebuild", tiers_tokens(j->session->tiers), j->rebuild_until);
    if (st == JOB_WORKED && tiers_tokens(j->session->tiers) >= j->rebuild_until) {
        err e = {0};
        if (session_save_kv(j->session, true, &e) != ST_OK) { /* whatever becomes of the request */
            LOG_W("%s", e.text);
        }
        j->phase = j->after_rebuild;
    }
    return st;
}

job_state job_advance(job *j)
{
    if (j->phase == JOB_OVER) {
        return JOB_ENDED;
    }
    if (is_cancelled(j) && j->request->op != AGENT_CHAT) {
        j->engine->counters.cancelled++;
        job_fail_code(j, "cancelled", NULL, "the request was cancelled; nothing of it is stored");
        return JOB_ENDED;
    }
    switch (j->request->op) {
    case AGENT_CHAT:
        return job_chat_advance(j);
    case AGENT_INGEST:
        return job_ingest_advance(j);
    default:
        return job_answer_at_once(j);
    }
}
