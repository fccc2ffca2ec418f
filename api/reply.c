/* Event lines; the contract is in reply_internal.h. Members of `done` come as a cJSON object and are spliced in. */
#include "api/reply_internal.h"

#include <stdio.h>
#include <string.h>

#include "api/json_internal.h"

static status write_raw(base_buf *b, const char *text)
{
    return base_buf_append(b, text, strlen(text));
}

static status write_start(base_buf *b, const char *id_json, const char *event)
{
    TRY(write_raw(b, "{\"id\":"));
    TRY(write_raw(b, id_json != NULL ? id_json : "null"));
    TRY(write_raw(b, ",\"event\":\""));
    TRY(write_raw(b, event));
    return write_raw(b, "\"");
}

static status write_member(base_buf *b, const char *name, const char *text, size_t bytes)
{
    TRY(write_raw(b, ",\""));
    TRY(write_raw(b, name));
    TRY(write_raw(b, "\":"));
    return json_write_text(b, text, bytes);
}

static status write_number(base_buf *b, const char *name, int64_t value)
{
    char text[96];
    (void)snprintf(text, sizeof text, ",\"%s\":%lld", name, (long long)value);
    return write_raw(b, text);
}

static status write_end(base_buf *b)
{
    return write_raw(b, "}\n");
}

status reply_error(base_buf *b,
        const char *id_json,
        const char *code,
        const char *message,
        const char *param,
        int retry_after_ms)
{
    TRY(write_start(b, id_json, "error"));
    TRY(write_member(b, "code", code, strlen(code)));
    TRY(write_member(b, "message", message, strlen(message)));
    if (param != NULL && param[0] != '\0') {
        TRY(write_member(b, "param", param, strlen(param)));
    }
    if (retry_after_ms > 0) {
        TRY(write_number(b, "retry_after_ms", retry_after_ms));
    }
    return write_end(b);
}

status reply_done(base_buf *b, const char *id_json, const cJSON *members)
{
    TRY(write_start(b, id_json, "done"));
    if (members == NULL || members->child == NULL) {
        return write_end(b);
    }
    char *text = cJSON_PrintUnformatted(members);
    if (text == NULL) {
        return ST_ERR_MEMORY;
    }
    text[0] = ','; /* its opening brace: the event's own is already written */
    status st = write_raw(b, text);
    cJSON_free(text);
    return st == ST_OK ? write_raw(b, "\n") : st;
}

static status write_token(base_buf *b, const char *id_json, const agent_event *event)
{
    TRY(write_start(b, id_json, "token"));
    TRY(write_member(b, "text", event->text, event->text_bytes));
    return write_end(b);
}

static status write_progress(base_buf *b, const char *id_json, const agent_event *event)
{
    const char *phase = event->phase != NULL ? event->phase : "";
    TRY(write_start(b, id_json, "progress"));
    TRY(write_member(b, "phase", phase, strlen(phase)));
    TRY(write_number(b, "done_tokens", event->done_tokens));
    TRY(write_number(b, "total_tokens", event->total_tokens));
    return write_end(b);
}

status reply_event(base_buf *b, const char *id_json, const agent_event *event)
{
    switch (event->kind) {
    case AGENT_EVENT_TOKEN:
        return write_token(b, id_json, event);
    case AGENT_EVENT_PROGRESS:
        return write_progress(b, id_json, event);
    case AGENT_EVENT_DONE:
        return reply_done(b, id_json, event->members);
    case AGENT_EVENT_ERROR:
        break;
    }
    return reply_error(b, id_json, event->code != NULL ? event->code : "internal",
            event->message != NULL ? event->message : "", event->param, event->retry_after_ms);
}
