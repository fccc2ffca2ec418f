/*
 * Rendering: messages to text in which every byte is marked as the template's or a message's.
 *
 * A sequence is [BOS, default system prompt] message... [generation prompt], and each message is rendered from itself
 * alone, so chunks concatenate. The exception are templates without a system turn: there a system text opens the user
 * message that the next message completes, and `joined` says that one is open.
 */
#include <string.h>

#include "agent/template_internal.h"
#include "agent/unicode_internal.h"

const char *chat_template_name(const chat_template *c)
{
    return c->name;
}

const char *chat_template_default_system(const chat_template *c)
{
    return c->default_system;
}

static status add(marked_text *out, const char *text)
{
    return marked_text_add(out, text, strlen(text), true);
}

static bool is_stripped(uint32_t c)
{
    return unicode_is_space(c) || (c >= 0x1c && c <= 0x1f); /* what Python's str.strip takes off */
}

static void trim(const char **text, size_t *bytes)
{
    uint32_t c;
    size_t n, end = 0;
    while ((n = base_utf8_next(*text, *bytes, &c)) > 0 && is_stripped(c)) {
        *text += n;
        *bytes -= n;
    }
    for (size_t at = 0; at < *bytes; at += n) {
        n = base_utf8_next(*text + at, *bytes - at, &c);
        bool stripped = n > 0 && is_stripped(c);
        n = n > 0 ? n : 1;
        end = stripped ? end : at + n;
    }
    *bytes = end;
}

static status add_content(const template_part *p, const chat_message *m, marked_text *out)
{
    const char *text = m->content == NULL ? "" : m->content;
    size_t bytes = m->content == NULL ? 0 : m->content_bytes;
    if (p->trim) {
        trim(&text, &bytes);
    }
    return marked_text_add(out, text, bytes, false);
}

static status add_close(const template_part *p, marked_text *out)
{
    TRY(add(out, p->end));
    return add(out, p->tail);
}

static status role_of(const char *name, template_role *out, err *e)
{
    static const char *const names[ROLE_COUNT] = {"system", "user", "assistant"};
    for (int r = 0; r < ROLE_COUNT; r++) {
        if (name != NULL && strcmp(name, names[r]) == 0) {
            *out = (template_role)r;
            return ST_OK;
        }
    }
    return FAIL(e, ST_ERR_ARG, "role '%.40s' is not known; expected system, user or assistant",
            name == NULL ? "" : name);
}

/* BOS, and the default system prompt unless a system message follows. */
static status add_first(const chat_template *c, template_role next, marked_text *out)
{
    const template_part *system = &c->part[ROLE_SYSTEM];
    TRY(add(out, c->bos));
    if (next == ROLE_SYSTEM || c->default_system == NULL) {
        return ST_OK;
    }
    TRY(add(out, system->open));
    TRY(add(out, c->system_head));
    TRY(add(out, c->default_system));
    return add_close(system, out);
}

static status add_message(const chat_template *c,
        template_role role,
        const chat_message *m,
        bool first,
        bool *joined,
        marked_text *out)
{
    const template_part *p = &c->part[role];
    if (*joined && role == ROLE_ASSISTANT) { /* a system text that no user message followed */
        TRY(add_close(&c->part[ROLE_USER], out));
        *joined = false;
    }
    if (!*joined) {
        TRY(add(out, p->open));
    }
    if (first && role == ROLE_SYSTEM) {
        TRY(add(out, c->system_head));
    }
    TRY(add_content(p, m, out));
    *joined = c->system_joins_user && role == ROLE_SYSTEM;
    return *joined ? add(out, "\n\n") : add_close(p, out);
}

static status render(const chat_template *c,
        const chat_message *m,
        int n,
        bool first,
        bool joined,
        bool generation_prompt,
        marked_text *out)
{
    template_role role = ROLE_USER;
    for (int i = 0; i < n; i++) {
        TRY(role_of(m[i].role, &role, NULL));
        if (first && i == 0) {
            TRY(add_first(c, role, out));
        }
        TRY(add_message(c, role, &m[i], first && i == 0, &joined, out));
    }
    if (generation_prompt && joined) {
        TRY(add_close(&c->part[ROLE_USER], out));
    }
    return generation_prompt ? add(out, c->generation) : ST_OK;
}

/* What failed half-way leaves nothing behind. */
static status settle(status s, size_t bytes_before, marked_text *out, err *e)
{
    if (s != ST_OK) {
        out->text.size = out->is_template.size = bytes_before;
        return FAIL(e, s,
                s == ST_ERR_LIMIT ? "the rendered prompt is over %zu bytes"
                                  : "no memory for a prompt of %zu bytes",
                s == ST_ERR_LIMIT ? out->text.max : bytes_before);
    }
    return ST_OK;
}

static status render_checked(const chat_template *c,
        const chat_message *m,
        int n,
        bool first,
        bool joined,
        bool generation_prompt,
        marked_text *out,
        err *e)
{
    template_role role = ROLE_USER;
    size_t before = out->text.size;
    for (int i = 0; i < n; i++) {
        TRY(role_of(m[i].role, &role, e));
    }
    return settle(render(c, m, n, first, joined, generation_prompt, out), before, out, e);
}

status chat_template_render(const chat_template *c,
        const chat_message *m,
        int n,
        bool first,
        bool generation_prompt,
        marked_text *out,
        err *e)
{
    return render_checked(c, m, n, first, false, generation_prompt, out, e);
}

status chat_template_extend(const chat_template *c,
        const char *previous_role,
        const chat_message *m,
        int n,
        bool generation_prompt,
        marked_text *out,
        err *e)
{
    template_role previous = ROLE_USER;
    if (previous_role != NULL) {
        TRY(role_of(previous_role, &previous, e));
    }
    bool joined = c->system_joins_user && previous == ROLE_SYSTEM;
    return render_checked(c, m, n, false, joined, generation_prompt, out, e);
}

static status open_message(const chat_template *c, template_role role, bool first, marked_text *out)
{
    if (first) {
        TRY(add_first(c, role, out));
    }
    TRY(add(out, c->part[role].open));
    return first && role == ROLE_SYSTEM ? add(out, c->system_head) : ST_OK;
}

status chat_template_open_message(
        const chat_template *c, const char *role, bool first, marked_text *out, err *e)
{
    template_role r = ROLE_USER;
    size_t before = out->text.size;
    TRY(role_of(role, &r, e));
    return settle(open_message(c, r, first, out), before, out, e);
}

status chat_template_close_message(const chat_template *c, const char *role, marked_text *out, err *e)
{
    template_role r = ROLE_USER;
    size_t before = out->text.size;
    TRY(role_of(role, &r, e));
    return settle(add_close(&c->part[r], out), before, out, e);
}

status chat_template_after_answer(const chat_template *c, bool end_token_seen, marked_text *out, err *e)
{
    const template_part *p = &c->part[ROLE_ASSISTANT];
    size_t before = out->text.size;
    return settle(end_token_seen ? add(out, p->tail) : add_close(p, out), before, out, e);
}
