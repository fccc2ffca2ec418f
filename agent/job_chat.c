/* job_chat: one turn of conversation.
 *
 * START    find or make the session, render the new messages onto the log, choose the view (match, plan)
 * REBUILD  only when KV of the log is missing
 * PREFILL  compute the new tokens, block by block
 * DECODE   sample, stream, compute, until an end token, a stop text, the limit, or a cancellation
 * (commit) log on disk, then DONE
 * TAIL     the last tokens of the answer, sentence vectors, KV to the writer
 *
 * Whatever fails before the commit leaves the stored session as it was: it is dropped from memory and read again. */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- which messages are new ---- */

static const char *message_role(const agent_message *m)
{
    return m->speaker != NULL ? m->speaker : m->role != NULL ? m->role : "user";
}

static bool same_message(const session_turn *t, const agent_message *m)
{
    return strcmp(session_turn_role_name(t), message_role(m)) == 0 && t->text_bytes == m->content_bytes &&
            memcmp(t->text, m->content, m->content_bytes) == 0;
}

/* How many leading messages repeat the session's turns. The template's own system prompt need not be repeated. */
static int repeated(const session *s, const agent_request *r, size_t *turns)
{
    bool starts_with_system = strcmp(message_role(&r->messages[0]), "system") == 0;
    size_t turn = starts_with_system ? 0 : 1;
    int i = 0;
    while (i < r->n_messages && turn < s->n_turns && same_message(&s->turns[turn], &r->messages[i])) {
        i++;
        turn++;
    }
    *turns = turn;
    return i;
}

/* A named session. A request that repeats it whole continues behind it; one that holds an earlier answer but departs from
 * the session rewrites it from there; any other brings new messages only. */
static status find_new_messages(job *j, int *first_new, err *e)
{
    session *s = j->session;
    const agent_request *r = j->request;
    *first_new = 0;
    if (s->n_turns == 0) {
        return ST_OK;
    }
    size_t turns;
    int same = repeated(s, r, &turns);
    if (same > 0 && turns == s->n_turns) {
        *first_new = same;
        return ST_OK;
    }
    bool has_answer = false;
    for (int i = 0; i < r->n_messages; i++) {
        has_answer = has_answer || strcmp(message_role(&r->messages[i]), "assistant") == 0;
    }
    if (same > 0 && has_answer) {
        if (same == r->n_messages) {
            same--; /* the last message is asked again */
            turns--;
        }
        TRY(session_cut(s, turns, e));
        *first_new = same;
    }
    return ST_OK;
}

/* A nameless request continues a stored nameless session only when the whole of that is its beginning. */
static status find_nameless(job *j, int *first_new, err *e)
{
    agent_engine *g = j->engine;
    agent_request *r = j->request;
    const char *system = chat_template_default_system(g->x.template);
    uint64_t chain = 0;
    const char *found = NULL;
    if (strcmp(message_role(&r->messages[0]), "system") != 0) {
        chain = session_chain_add(
                0, "system", system != NULL ? system : "", system != NULL ? strlen(system) : 0);
    }
    *first_new = 0;
    for (int i = 0; i + 1 < r->n_messages; i++) {
        const agent_message *m = &r->messages[i];
        chain = session_chain_add(chain, message_role(m), m->content, m->content_bytes);
        const char *name = sessions_find_chain(g->sessions, r->tenant, chain);
        found = name != NULL ? name : found;
        *first_new = name != NULL ? i + 1 : *first_new;
    }
    session *s;
    status st = found != NULL ? sessions_take(g->sessions, r->tenant, found, &s, NULL) : ST_ERR_NOT_FOUND;
    if (st == ST_ERR_BUSY) {
        return st; /* its last answer is still being finished: which tokens continue it must not depend on timing */
    }
    if (st == ST_OK) {
        size_t turns;
        if (repeated(s, r, &turns) == *first_new && turns == s->n_turns) {
            j->session = s;
            return ST_OK;
        }
        sessions_give(g->sessions, s, true); /* equal hashes, other text */
    }
    char name[40];
    sessions_fresh_name(g->sessions, name);
    *first_new = 0;
    TRY(sessions_make(g->sessions, r->tenant, name, true, &j->session, e));
    j->session_is_new = true;
    return ST_OK;
}

/* ---- the log ---- */

static status append_generation_prompt(session *s, err *e)
{
    marked_text m;
    token_list ids = {0};
    marked_text_init(&m);
    status st = chat_template_extend(s->x->template, "user", NULL, 0, true, &m, e);
    st = st == ST_OK ? tokenizer_encode_marked(s->x->tokenizer, &m, &ids, e) : st;
    st = st == ST_OK ? session_append_tokens(s, ids.ids, ids.n, e) : st;
    token_list_free(&ids);
    marked_text_free(&m);
    return st;
}

static status append_messages(job *j, int first_new, err *e)
{
    session *s = j->session;
    const agent_request *r = j->request;
    j->turn_start = (int64_t)s->n_tokens;
    j->first_new_turn = s->n_turns;
    for (int i = first_new; i < r->n_messages; i++) {
        TRY(session_append_message(s, &r->messages[i], e));
    }
    TRY(session_close_transcript(s, e));
    session_turn *last = &s->turns[s->n_turns - 1]; /* the closing belongs to the last message */
    last->n_tokens = (int32_t)((int64_t)s->n_tokens - last->first_token);
    TRY(append_generation_prompt(s, e));
    j->prompt_end = (int64_t)s->n_tokens;
    return ST_OK;
}

/* ---- the view ---- */

/* The last message, asked with what the previous turn was about, for short questions. */
static ep_query query_of(const job *j, int64_t budget, int64_t attended_before, int64_t attended_from)
{
    const session *s = j->session;
    const agent_message *last = &j->request->messages[j->request->n_messages - 1];
    const session_turn *before = NULL;
    for (size_t i = j->first_new_turn; i-- > 1 && before == NULL;) {
        before = s->turns[i].role != TURN_ASSISTANT ? &s->turns[i] : NULL;
    }
    return (ep_query){.text = last->content,
            .text_bytes = last->content_bytes,
            .budget_tokens = budget,
            .context = before != NULL ? before->text : NULL,
            .context_bytes = before != NULL ? before->text_bytes : 0,
            .attended_before = attended_before,
            .attended_from = attended_from,
            .has_now = last->has_time,
            .now_us = last->time_us};
}

/* plain: everything is attended anyway, the match only says what the message is about. */
static status match(job *j, int64_t budget, bool plain, tiers_view *v, err *e)
{
    int64_t start = base_monotonic_us();
    int64_t pinned = v->pinned_end > TIERS_SINK_TOKENS ? v->pinned_end : TIERS_SINK_TOKENS;
    ep_query q = plain ? query_of(j, budget, 0, INT64_MAX) : query_of(j, budget, pinned, v->window_from);
    status st = plain ? session_match(j->session, &q, &j->match, e)
                      : session_recall(j->session, &q, v, &j->match, e);
    j->match_us = base_monotonic_us() - start;
    j->matched = st == ST_OK;
    return st;
}

/* Everything while it fits the plain limit; else pinned rows, the exact window, and what matches. */
static status choose_view(job *j, err *e)
{
    agent_engine *g = j->engine;
    session *s = j->session;
    const agent_request *r = j->request;
    tiers_view v = {.window_from = tiers_exact_from(j->turn_start),
            .pinned_end = s->system_end,
            .sharpness = g->x.sharpness};
    bool has_index = s->index != NULL && ep_index_utterances(s->index) > 0;
    bool plain = r->recall == AGENT_RECALL_AUTO && j->prompt_end <= s->plain_tokens;
    j->miss_reason = r->recall == AGENT_RECALL_OFF ? "off" : !has_index ? "empty" : NULL;
    if (plain) {
        v.window_from = TIERS_SINK_TOKENS;
    }
    int64_t room = g->context_tokens - tiers_view_position(&v, j->prompt_end);
    if (room < 1) {
        return FAIL(e, ST_ERR_LIMIT,
                "the messages and the answer take %lld tokens of context, the model has %lld",
                (long long)(g->context_tokens - room + 1), (long long)g->context_tokens);
    }
    j->max_tokens = r->max_tokens > 0 ? r->max_tokens : ENGINE_MAX_TOKENS;
    if (has_index && r->recall != AGENT_RECALL_OFF) {
        int64_t budget = r->recall > 0 ? r->recall : g->recall_tokens, most = room - j->max_tokens;
        budget = budget < most ? budget : most;
        if (plain || budget > 0) {
            TRY(match(j, plain ? g->recall_tokens : budget, plain, &v, e));
        }
        j->miss_reason = j->match.n_used == 0 ? "nothing_relevant" : NULL;
    }
    tiers_view_free(&s->live_view);
    s->live_view = v;
    int64_t left = g->context_tokens - tiers_view_position(&v, j->prompt_end);
    j->max_tokens = j->max_tokens < left ? j->max_tokens : (int)left;
    for (size_t i = j->first_new_turn; i < s->n_turns; i++) {
        if (tiers_view_copy(&v, &s->turns[i].view) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for a view");
        }
        s->turns[i].has_view = true;
    }
    return ST_OK;
}

/* A new session whose log begins like a stored one takes over that one's KV up to a block start. */
static void try_fork(job *j)
{
    agent_engine *g = j->engine;
    session *s = j->session, *donor;
    const char *name;
    if (j->turn_start > 0 || !tiers_view_is_plain(&s->live_view)) {
        return;
    }
    int64_t at = sessions_find_fork(g->sessions, s->tenant, s->tokens, (int64_t)s->n_tokens, &name);
    if (at == 0 || sessions_take(g->sessions, s->tenant, name, &donor, NULL) != ST_OK) {
        return;
    }
    err e = {0};
    if ((int64_t)donor->n_tokens >= at &&
            memcmp(donor->tokens, s->tokens, (size_t)at * sizeof *s->tokens) == 0) {
        if (tiers_fork(s->tiers, donor->tiers, at, &e) == ST_OK) {
            g->counters.forked_sessions++;
        } else {
            session_forget_kv(s);
        }
    }
    sessions_give(g->sessions, donor, true);
}

/* ---- START ---- */

/* The finished turn of an idempotency key, replayed. */
static bool replay(job *j)
{
    session *s = j->session;
    const char *key = j->request->key;
    for (size_t i = s->n_turns; key != NULL && i-- > 0;) {
        const session_turn *t = &s->turns[i];
        if (t->key != NULL && strcmp(t->key, key) == 0) {
            (void)base_buf_append(&j->text, t->text, t->text_bytes);
            j->finish = (agent_finish)t->finish;
            j->miss_reason = "replayed";
            j->prompt_end = j->turn_start = (int64_t)s->n_tokens;
            j->first_new_turn = i;
            job_send_done(j, report_chat(j));
            return true;
        }
    }
    return false;
}

static status check_messages(const job *j, int *bad, err *e)
{
    const agent_request *r = j->request;
    for (*bad = 0; *bad < r->n_messages; ++*bad) {
        TRY(tokenizer_check(
                j->engine->tokenizer, r->messages[*bad].content, r->messages[*bad].content_bytes, e));
    }
    return ST_OK;
}

status job_check_messages(job *j)
{
    err e = {0};
    int bad;
    status st = check_messages(j, &bad, &e);
    if (st != ST_OK) {
        char param[48];
        (void)snprintf(param, sizeof param, "messages[%d].content", bad);
        job_fail(j, &e, param);
    }
    return st;
}

static status begin_turn(job *j, int first_new, err *e)
{
    TRY(append_messages(j, first_new, e));
    TRY(choose_view(j, e));
    try_fork(j);
    j->cached_tokens = 0;
    j->prompt_tokens = tiers_view_position(&j->session->live_view, j->prompt_end);
    int64_t fresh = j->prompt_end - tiers_tokens(j->session->tiers);
    j->cached_tokens = j->prompt_tokens - fresh;
    return ST_OK;
}

static job_state start(job *j)
{
    agent_request *r = j->request;
    err e = {0};
    int first_new = 0;
    if (j->session == NULL) {
        if (job_check_messages(j) != ST_OK) {
            return JOB_ENDED;
        }
        if (r->session == NULL) {
            status found = find_nameless(j, &first_new, &e);
            if (found == ST_ERR_BUSY) {
                return JOB_WAITS;
            }
            if (found != ST_OK) {
                job_fail(j, &e, NULL);
                return JOB_ENDED;
            }
        } else {
            job_state st = job_take_session(j, true);
            if (st != JOB_WORKED) {
                return st;
            }
            if (replay(j)) {
                job_release_session(j, true);
                return JOB_ENDED;
            }
        }
    }
    session *s = j->session;
    if (tiers_tokens(s->tiers) < (int64_t)s->n_tokens) {
        return job_rebuild(j, (int64_t)s->n_tokens, JOB_START);
    }
    status st = r->session != NULL ? find_new_messages(j, &first_new, &e) : ST_OK;
    if (st == ST_OK && r->session == NULL && !j->session_is_new) {
        size_t turns;
        first_new = repeated(s, r, &turns);
    }
    if (st == ST_OK && tiers_tokens(s->tiers) < (int64_t)s->n_tokens) {
        return job_rebuild(j, (int64_t)s->n_tokens, JOB_START); /* the session was cut */
    }
    if (st == ST_OK && first_new >= r->n_messages) {
        st = FAIL(&e, ST_ERR_ARG, "there is no new message behind what the session holds");
    }
    st = st == ST_OK ? begin_turn(j, first_new, &e) : st;
    if (st != ST_OK) {
        job_fail(j, &e, st == ST_ERR_LIMIT || st == ST_ERR_ARG ? "messages" : NULL);
        return JOB_ENDED;
    }
    j->phase = JOB_PREFILL;
    return JOB_WORKED;
}

/* ---- the answer ---- */

/* Bytes of text that can be sent: whole characters, and nothing that may be the beginning of a stop text. */
static size_t sendable(const job *j)
{
    const uint8_t *t = j->text.data;
    size_t n = j->text.size, at = j->text_sent;
    while (at < n) {
        uint32_t c;
        size_t step = base_utf8_next(t + at, n - at, &c);
        if (step == 0) {
            if (n - at >= 4) {
                step = 1; /* ill-formed for good: replaced when sent */
            } else {
                break;
            }
        }
        at += step;
    }
    for (int i = 0; i < j->request->n_stop; i++) {
        size_t length = strlen(j->request->stop[i]);
        for (size_t keep = length - 1; keep > 0; keep--) {
            if (keep <= n && n - keep >= j->text_sent &&
                    memcmp(t + n - keep, j->request->stop[i], keep) == 0) {
                at = at < n - keep ? at : n - keep;
                break;
            }
        }
    }
    return at;
}

/* Replaces what is not UTF-8 by U+FFFD from `from` on. Answers are text for JSON; the log keeps the tokens. */
static void repair_utf8(base_buf *b, size_t from)
{
    base_buf fixed = {.max = b->max};
    size_t at = from;
    bool good = base_buf_append(&fixed, b->data, from) == ST_OK;
    while (good && at < b->size) {
        uint32_t c;
        size_t step = base_utf8_next(b->data + at, b->size - at, &c);
        good = base_buf_append(&fixed, step > 0 ? b->data + at : (const uint8_t *)"\xef\xbf\xbd",
                       step > 0 ? step : 3) == ST_OK;
        at += step > 0 ? step : 1;
    }
    base_buf_free(b);
    *b = fixed;
}

static void stream(job *j, bool all)
{
    size_t to = all ? j->text.size : sendable(j);
    if (to > j->text_sent && !base_utf8_valid(j->text.data + j->text_sent, to - j->text_sent)) {
        repair_utf8(&j->text, j->text_sent);
        to = all ? j->text.size : sendable(j);
    }
    if (to <= j->text_sent) {
        return;
    }
    agent_event ev = {.kind = AGENT_EVENT_TOKEN,
            .text = (const char *)j->text.data + j->text_sent,
            .text_bytes = to - j->text_sent};
    j->text_sent = to;
    j->request->on_event(j->request->user, &ev);
}

/* Cuts the text at the first stop text. */
static bool hit_stop(job *j)
{
    size_t cut = SIZE_MAX;
    for (int i = 0; i < j->request->n_stop; i++) {
        size_t length = strlen(j->request->stop[i]);
        for (size_t at = 0; at + length <= j->text.size && at < cut; at++) {
            if (memcmp(j->text.data + at, j->request->stop[i], length) == 0) {
                cut = at;
            }
        }
    }
    j->text.size = cut == SIZE_MAX ? j->text.size : cut;
    return cut != SIZE_MAX;
}

/* Takes the next token from the logits; true when the answer has ended. */
static bool take_token(job *j)
{
    agent_engine *g = j->engine;
    session *s = j->session;
    const agent_sampling *o = &j->request->sampling;
    sampler_options so = {.temperature = o->temperature,
            .top_k = o->top_k,
            .top_p = o->top_p,
            .min_p = o->min_p,
            .repeat_penalty = o->repeat_penalty,
            .seed = o->seed};
    int recent = s->n_tokens < 64 ? (int)s->n_tokens : 64;
    int32_t id = sampler_pick(&so, j->logits, model_get_config(g->model)->vocab,
            s->tokens + s->n_tokens - recent, recent, (uint64_t)j->n_answer);
    err e = {0};
    if (session_append_tokens(s, &id, 1, &e) != ST_OK) {
        job_fail(j, &e, NULL);
        return true;
    }
    j->n_answer++;
    g->counters.decoded_tokens++;
    j->end_token_seen = tokenizer_is_end(g->tokenizer, id);
    if (j->end_token_seen) {
        j->finish = FINISH_STOP;
        return true;
    }
    const char *piece;
    size_t bytes;
    tokenizer_piece(g->tokenizer, id, &piece, &bytes);
    if (tokenizer_is_special(g->tokenizer, id)) {
        bytes = 0; /* control tokens are not text */
    }
    if (base_buf_append(&j->text, piece, bytes) != ST_OK) {
        job_fail_code(j, "internal", NULL, "no memory for the answer");
        return true;
    }
    if (hit_stop(j)) {
        j->finish = FINISH_STOP;
        return true;
    }
    stream(j, false);
    j->finish = FINISH_LENGTH;
    return j->n_answer >= j->max_tokens;
}

/* ---- the end ---- */

static status append_answer_turn(job *j, err *e)
{
    session *s = j->session;
    marked_text m;
    token_list ids = {0};
    marked_text_init(&m);
    status st = chat_template_after_answer(s->x->template, j->end_token_seen, &m, e);
    st = st == ST_OK ? tokenizer_encode_marked(s->x->tokenizer, &m, &ids, e) : st;
    st = st == ST_OK ? session_append_tokens(s, ids.ids, ids.n, e) : st;
    session_turn t = {
            .role = TURN_ASSISTANT, .text_bytes = j->text.size, .finish = (int)j->finish, .has_view = true};
    t.text = base_strndup(j->text.data != NULL ? (const char *)j->text.data : "", j->text.size);
    t.key = j->request->key != NULL ? base_strdup(j->request->key) : NULL;
    if (st == ST_OK &&
            (t.text == NULL || (j->request->key != NULL && t.key == NULL) ||
                    tiers_view_copy(&s->live_view, &t.view) != ST_OK)) {
        st = FAIL(e, ST_ERR_MEMORY, "no memory for the answer");
    }
    st = st == ST_OK ? session_append_turn(s, &t, e) : st;
    session_turn_free(&t);
    token_list_free(&ids);
    marked_text_free(&m);
    return st;
}

static job_state finish_answer(job *j)
{
    err e = {0};
    stream(j, true);
    status st = append_answer_turn(j, &e);
    if (st == ST_OK && j->request->store) {
        st = session_save_log(j->session, &e);
    }
    if (st != ST_OK) {
        job_fail(j, &e, NULL);
        return JOB_ENDED;
    }
    agent_engine *g = j->engine;
    g->counters.prompt_tokens += (uint64_t)j->prompt_tokens;
    g->counters.cached_tokens += (uint64_t)j->cached_tokens;
    g->counters.recalled_tokens += (uint64_t)j->session->live_view.piece_rows;
    if (j->request->store) {
        sessions_note_saved(
                g->sessions, j->session); /* continues from now on, even while the tail is computed */
    }
    job_send_done(j, report_chat(j));
    if (!j->request->store) {
        job_release_session(j, false);
        return JOB_ENDED;
    }
    j->phase = JOB_TAIL;
    return JOB_WORKED;
}

/* Cancelled: the client has what was streamed; nothing is stored. */
static job_state end_cancelled(job *j)
{
    j->finish = FINISH_CANCELLED;
    j->engine->counters.cancelled++;
    cJSON *members = report_chat(j);
    job_release_session(j, false);
    job_send_done(j, members);
    return JOB_ENDED;
}

static job_state tail(job *j)
{
    session *s = j->session;
    err e = {0};
    job_state st = job_offer_run(j, false);
    if (st != JOB_WORKED) {
        return st;
    }
    size_t left;
    status done = session_index_turns(s, 8, &left, &e);
    if (done == ST_OK && left > 0) {
        return JOB_WORKED;
    }
    if (done == ST_OK) {
        int64_t keep = tiers_exact_from(j->prompt_end > 0 ? j->prompt_end - 1 : 0);
        s->keep_exact_from = keep;
        done = session_save_kv(s, true, &e);
    }
    if (done != ST_OK) {
        job_fail(j, &e, NULL);
        return JOB_ENDED;
    }
    session_rest(s);
    sessions_note_saved(j->engine->sessions, s);
    job_release_session(j, true);
    return JOB_ENDED;
}

job_state job_chat_advance(job *j)
{
    if (atomic_load(&j->cancelled) && !atomic_load(&j->answered)) {
        return end_cancelled(j);
    }
    switch (j->phase) {
    case JOB_START:
        return start(j);
    case JOB_REBUILD:
        return job_advance_rebuild(j);
    case JOB_PREFILL:
        job_progress(
                j, "prefill", tiers_tokens(j->session->tiers) - j->turn_start, j->prompt_end - j->turn_start);
        return job_offer_run(j, true);
    case JOB_DECODE:
        if (j->n_answer > 0 && tiers_tokens(j->session->tiers) < (int64_t)j->session->n_tokens) {
            return job_offer_run(j, true);
        }
        return JOB_WORKED;
    case JOB_INDEX:
        return finish_answer(j);
    default:
        return tail(j);
    }
}

void job_chat_computed(job *j)
{
    session *s = j->session;
    if (j->request->op != AGENT_CHAT || tiers_tokens(s->tiers) < (int64_t)s->n_tokens) {
        return;
    }
    if (j->phase == JOB_PREFILL) {
        j->loaded_bytes = tiers_take_costs(s->tiers).loaded_bytes;
        j->engine->counters.loaded_bytes += j->loaded_bytes;
        j->first_token_us = base_monotonic_us();
    }
    bool ended = take_token(j);
    if (j->phase != JOB_OVER) {
        j->phase = ended ? JOB_INDEX : JOB_DECODE;
    }
}
