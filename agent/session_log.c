/* session_log: messages become tokens of the log.
 *
 * A message with a role is rendered by the chat template. Utterances of people ("speaker") are lines "Name: text" of one
 * open user message, the transcript; a line "[8 May 2023]" stands before the first utterance of a day. Template text and
 * message text are marked, so that a message never yields a control token. */
#include "agent/session_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { SESSION_TOKENS_MAX = 1 << 30, SESSION_TURNS_MAX = 1 << 28 };

uint64_t session_chain_add(uint64_t chain, const char *role, const char *content, size_t bytes)
{
    uint64_t parts[3] = {chain, XXH3_64bits(role, strlen(role)), XXH3_64bits(content, bytes)};
    return XXH3_64bits(parts, sizeof parts);
}

status session_append_tokens(session *s, const int32_t *ids, size_t n, err *e)
{
    void *tokens = s->tokens;
    status st = base_grow(&tokens, &s->tokens_cap, s->n_tokens + n, SESSION_TOKENS_MAX, sizeof *s->tokens);
    s->tokens = tokens;
    if (st != ST_OK) {
        return FAIL(e, st, "the token log of session %s cannot grow past %zu tokens", s->name, s->n_tokens);
    }
    memcpy(s->tokens + s->n_tokens, ids, n * sizeof *ids);
    s->n_tokens += n;
    return ST_OK;
}

status session_append_turn(session *s, session_turn *t, err *e)
{
    void *turns = s->turns;
    status st = base_grow(&turns, &s->turns_cap, s->n_turns + 1, SESSION_TURNS_MAX, sizeof *s->turns);
    s->turns = turns;
    if (st != ST_OK) {
        return FAIL(e, st, "session %s cannot hold more than %zu messages", s->name, s->n_turns);
    }
    const session_turn *last = s->n_turns > 0 ? &s->turns[s->n_turns - 1] : NULL;
    t->first_token = last != NULL ? last->first_token + last->n_tokens : 0;
    t->n_tokens = (int32_t)((int64_t)s->n_tokens - t->first_token);
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): base_grow made room */
    s->turns[s->n_turns++] = *t;
    s->chain = session_chain_add(
            s->chain, session_turn_role_name(t), t->text != NULL ? t->text : "", t->text_bytes);
    *t = (session_turn){0};
    return ST_OK;
}

/* Tokenizes marked text onto the log. */
static status append_marked(session *s, const marked_text *m, err *e)
{
    token_list ids = {0};
    status st = tokenizer_encode_marked(s->x->tokenizer, m, &ids, e);
    if (st == ST_OK && ids.n > 0) {
        st = session_append_tokens(s, ids.ids, ids.n, e);
    }
    token_list_free(&ids);
    return st;
}

static status append_rendered(session *s, const char *role, const char *content, size_t bytes, err *e)
{
    marked_text m;
    marked_text_init(&m);
    chat_message message = {.role = role, .content = content, .content_bytes = bytes};
    static const char *const roles[] = {"system", "user", "assistant", "user"};
    const char *previous = s->n_turns > 0 ? roles[s->turns[s->n_turns - 1].role] : NULL;
    status st = s->n_tokens == 0 ? chat_template_render(s->x->template, &message, 1, true, false, &m, e)
                                 : chat_template_extend(s->x->template, previous, &message, 1, false, &m, e);
    if (st == ST_OK) {
        st = append_marked(s, &m, e);
    }
    marked_text_free(&m);
    return st;
}

status session_open_log(session *s, const char *system, size_t bytes, err *e)
{
    if (s->n_turns > 0) {
        return ST_OK;
    }
    const char *text = system != NULL ? system : chat_template_default_system(s->x->template);
    bytes = text == NULL ? 0 : system != NULL ? bytes : strlen(text);
    if (text != NULL) {
        TRY(append_rendered(s, "system", text, bytes, e));
        s->system_end = (int64_t)s->n_tokens;
    }
    session_turn turn = {
            .role = TURN_SYSTEM, .text = base_strndup(text != NULL ? text : "", bytes), .text_bytes = bytes};
    status st = turn.text == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory for a message")
                                  : session_append_turn(s, &turn, e);
    session_turn_free(&turn);
    return st;
}

status session_close_transcript(session *s, err *e)
{
    if (!s->transcript_open) {
        return ST_OK;
    }
    marked_text m;
    marked_text_init(&m);
    status st = chat_template_close_message(s->x->template, "user", &m, e);
    if (st == ST_OK) {
        st = append_marked(s, &m, e);
    }
    marked_text_free(&m);
    s->transcript_open = s->transcript_open && st != ST_OK;
    return st;
}

/* "[8 May 2023]\n" when the utterance is the first of its day; empty otherwise. UTC. */
static void day_line(const session *s, const agent_message *m, char out[40])
{
    out[0] = '\0';
    if (!m->has_time) {
        return;
    }
    const int64_t day_us = 86400LL * 1000000;
    for (size_t i = s->n_turns; i-- > 0;) {
        if (s->turns[i].role == TURN_SPEAKER && s->turns[i].has_time) {
            if (s->turns[i].time_us / day_us == m->time_us / day_us) {
                return;
            }
            break;
        }
    }
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July",
            "August", "September", "October", "November", "December"};
    time_t seconds = (time_t)(m->time_us / 1000000);
    struct tm tm;
    if (gmtime_r(&seconds, &tm) != NULL) {
        (void)snprintf(out, 40, "[%d %s %d]\n", tm.tm_mday, months[tm.tm_mon], tm.tm_year + 1900);
    }
}

/* The line of an utterance; *lead counts the tokens before it. */
static status append_utterance(session *s, const agent_message *m, int32_t *lead, err *e)
{
    size_t before = s->n_tokens;
    marked_text text;
    marked_text_init(&text);
    status st = ST_OK;
    if (!s->transcript_open) {
        st = chat_template_open_message(s->x->template, "user", s->n_tokens == 0, &text, e);
    }
    char day[40];
    day_line(s, m, day);
    if (st == ST_OK) {
        st = marked_text_add(&text, day, strlen(day), false);
    }
    if (st == ST_OK && text.text.size > 0) {
        st = append_marked(s, &text, e);
    }
    *lead = (int32_t)(s->n_tokens - before);
    marked_text_free(&text);
    marked_text_init(&text);
    if (st == ST_OK &&
            (marked_text_add(&text, m->speaker, strlen(m->speaker), false) != ST_OK ||
                    marked_text_add(&text, ": ", 2, false) != ST_OK ||
                    marked_text_add(&text, m->content, m->content_bytes, false) != ST_OK ||
                    marked_text_add(&text, "\n", 1, false) != ST_OK)) {
        st = FAIL(e, ST_ERR_LIMIT, "the message is too long");
    }
    if (st == ST_OK) {
        st = append_marked(s, &text, e);
    }
    marked_text_free(&text);
    s->transcript_open = s->transcript_open || st == ST_OK;
    return st;
}

static turn_role role_of(const char *role)
{
    return strcmp(role, "system") == 0       ? TURN_SYSTEM
            : strcmp(role, "assistant") == 0 ? TURN_ASSISTANT
                                             : TURN_USER;
}

static status copy_text(const char *from, char **to, err *e)
{
    if (from != NULL) {
        *to = base_strdup(from);
        if (*to == NULL) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for a message");
        }
    }
    return ST_OK;
}

status session_append_message(session *s, const agent_message *m, err *e)
{
    const char *role = m->role != NULL ? m->role : "user";
    if (s->n_turns == 0) {
        bool is_system = m->speaker == NULL && strcmp(role, "system") == 0;
        TRY(session_open_log(s, is_system ? m->content : NULL, m->content_bytes, e));
        if (is_system) {
            return ST_OK;
        }
    }
    session_turn turn = {.role = m->speaker != NULL ? TURN_SPEAKER : role_of(role),
            .has_time = m->has_time,
            .time_us = m->time_us,
            .text_bytes = m->content_bytes};
    size_t before = s->n_tokens;
    status st;
    if (m->speaker != NULL) {
        st = append_utterance(s, m, &turn.lead_tokens, e);
    } else {
        st = session_close_transcript(s, e);
        turn.lead_tokens = (int32_t)(s->n_tokens - before);
        if (st == ST_OK) {
            st = append_rendered(s, role, m->content, m->content_bytes, e);
        }
    }
    turn.text = base_strndup(m->content, m->content_bytes);
    if (st == ST_OK && turn.text == NULL) {
        st = FAIL(e, ST_ERR_MEMORY, "no memory for a message");
    }
    st = st == ST_OK ? copy_text(m->speaker, &turn.speaker, e) : st;
    st = st == ST_OK ? copy_text(m->ref, &turn.ref, e) : st;
    st = st == ST_OK ? session_append_turn(s, &turn, e) : st;
    session_turn_free(&turn);
    return st;
}
