/* job_ingest: history enters a session. START appends the messages to the log, PREFILL computes their KV block by
 * block, then the log is committed, INDEX embeds and clusters, and DONE follows. Coded columns go to the writer on the
 * way, so memory does not grow with the history. */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <string.h>

enum { INDEX_TURNS_AT_ONCE = 16 };

static job_state fail(job *j, const err *e, const char *param)
{
    job_fail(j, e, param);
    return JOB_ENDED;
}

static bool replayed(const job *j)
{
    const char *key = j->request->key;
    for (size_t i = j->session->n_turns; key != NULL && i-- > 0;) {
        if (j->session->turns[i].key != NULL && strcmp(j->session->turns[i].key, key) == 0) {
            return true;
        }
    }
    return false;
}

static status append_all(job *j, int *bad, err *e)
{
    session *s = j->session;
    const agent_request *r = j->request;
    j->turn_start = (int64_t)s->n_tokens;
    j->first_new_turn = s->n_turns;
    for (*bad = 0; *bad < r->n_messages; ++*bad) {
        TRY(session_append_message(s, &r->messages[*bad], e));
    }
    if (r->key != NULL) {
        s->turns[s->n_turns - 1].key = base_strdup(r->key);
        if (s->turns[s->n_turns - 1].key == NULL) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for a message");
        }
    }
    j->total_tokens = (int64_t)s->n_tokens - j->turn_start;
    j->n_ingested = (size_t)r->n_messages;
    return ST_OK;
}

static job_state start(job *j)
{
    err e = {0};
    if (j->session == NULL) {
        if (job_check_messages(j) != ST_OK) {
            return JOB_ENDED;
        }
        job_state st = job_take_session(j, true);
        if (st != JOB_WORKED) {
            return st;
        }
    }
    session *s = j->session;
    if (tiers_tokens(s->tiers) < (int64_t)s->n_tokens) {
        return job_rebuild(j, (int64_t)s->n_tokens, JOB_START);
    }
    if (replayed(j)) {
        job_send_done(j, report_ingest(j, j->started_us));
        job_release_session(j, true);
        return JOB_ENDED;
    }
    int bad;
    if (append_all(j, &bad, &e) != ST_OK) {
        char param[48];
        (void)snprintf(param, sizeof param, "messages[%d].content", bad);
        return fail(j, &e, param);
    }
    (void)tiers_take_costs(s->tiers);
    j->prefill_started_us = base_monotonic_us();
    j->phase = JOB_PREFILL;
    return JOB_WORKED;
}

static job_state prefill(job *j)
{
    err e = {0};
    job_progress(j, "prefill", tiers_tokens(j->session->tiers) - j->turn_start, j->total_tokens);
    job_state st = job_offer_run(j, false);
    if (st != JOB_WORKED || j->phase != JOB_PREFILL) {
        return st;
    }
    int64_t computed_us = base_monotonic_us();
    j->coding_us = tiers_take_costs(j->session->tiers).encode_us;
    j->prefill_us = computed_us - j->prefill_started_us - j->coding_us;
    if (session_save_log(j->session, &e) != ST_OK) {
        return fail(j, &e, NULL);
    }
    j->commit_us = base_monotonic_us() - computed_us;
    sessions_note_saved(j->engine->sessions, j->session);
    j->phase = JOB_INDEX;
    return JOB_WORKED;
}

static job_state embed(job *j)
{
    session *s = j->session;
    err e = {0};
    size_t left;
    int64_t start_us = base_monotonic_us();
    if (session_index_turns(s, INDEX_TURNS_AT_ONCE, &left, &e) != ST_OK) {
        return fail(j, &e, NULL);
    }
    int64_t embedded_us = base_monotonic_us();
    j->embed_us += embedded_us - start_us;
    if (left > 0) {
        int64_t done = left < s->n_turns ? s->turns[s->n_turns - left].first_token - j->turn_start : 0;
        job_progress(j, "embed", done > 0 ? done : 0, j->total_tokens);
        return JOB_WORKED;
    }
    if (session_save_kv(s, true, &e) != ST_OK) {
        return fail(j, &e, NULL);
    }
    int64_t last_us = tiers_take_costs(s->tiers).encode_us; /* columns made for the state that is stored */
    j->coding_us += last_us;
    j->commit_us += base_monotonic_us() - embedded_us - last_us;
    session_rest(s);
    sessions_note_saved(j->engine->sessions, s);
    job_send_done(j, report_ingest(j, j->started_us));
    job_release_session(j, true);
    return JOB_ENDED;
}

job_state job_ingest_advance(job *j)
{
    switch (j->phase) {
    case JOB_START:
        return start(j);
    case JOB_REBUILD:
        return job_advance_rebuild(j);
    case JOB_PREFILL:
        return prefill(j);
    default:
        return embed(j);
    }
}
