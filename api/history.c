/* The three layouts; the contract is in history_internal.h. */
#include "api/history_internal.h"

#include <stdio.h>
#include <string.h>

#include "api/parse_internal.h"

typedef struct history {
    cJSON *messages;
    history_on_fault on_fault;
    void *user;
} history;

static status no_memory(err *e)
{
    return FAIL(e, ST_ERR_MEMORY, "out of memory while reading the history");
}

/* What the server would say to this message, said here, where its line is known. */
static status check(const cJSON *message, json_fault *fault)
{
    agent_request *r = agent_request_create(AGENT_INGEST);
    if (r == NULL) {
        return ST_ERR_MEMORY;
    }
    r->messages = base_zalloc(1, sizeof *r->messages);
    status st = ST_ERR_MEMORY;
    if (r->messages != NULL) {
        r->n_messages = 1;
        json_place at = {.object = message, .path = "", .fault = fault};
        st = parse_message(&at, true, &r->messages[0]);
    }
    agent_request_free(r);
    return st;
}

/* Takes the message over. */
static status add(history *h, cJSON *message, long line, const char *name, err *e)
{
    json_fault fault = {.param = ""};
    status st = message != NULL ? check(message, &fault) : ST_ERR_MEMORY;
    if (st == ST_OK) {
        (void)cJSON_AddItemToArray(h->messages, message);
        return ST_OK;
    }
    cJSON_Delete(message);
    if (st == ST_ERR_MEMORY) {
        return no_memory(e);
    }
    char what[400];
    (void)snprintf(what, sizeof what, "%s%s%s", name, name[0] != '\0' ? ": " : "", fault.message);
    h->on_fault(h->user, line, what);
    return ST_OK;
}

/* A message out of members that may be absent or of any type: what is wrong is found by check(). */
static cJSON *make_message(const cJSON *speaker, const cJSON *content, const cJSON *time, const cJSON *ref)
{
    const struct {
        const char *name;
        const cJSON *value;
    } members[] = {{"speaker", speaker}, {"content", content}, {"time", time}, {"ref", ref}};
    cJSON *m = cJSON_CreateObject();
    for (size_t i = 0; m != NULL && i < sizeof members / sizeof members[0]; i++) {
        if (members[i].value == NULL) {
            continue;
        }
        cJSON *copy = cJSON_Duplicate(members[i].value, true);
        if (copy == NULL || !cJSON_AddItemToObject(m, members[i].name, copy)) {
            cJSON_Delete(copy);
            cJSON_Delete(m);
            return NULL;
        }
    }
    return m;
}

/* ---- LoCoMo and REALTALK ---- */

static const cJSON *session_of(const cJSON *conversation, int number, const char *suffix)
{
    char name[48];
    (void)snprintf(name, sizeof name, "session_%d%s", number, suffix);
    return json_find(conversation, name);
}

static status read_session(history *h, const cJSON *utterances, const cJSON *session_time, err *e)
{
    const cJSON *u;
    cJSON_ArrayForEach (u, utterances) {
        const cJSON *text = json_find(u, "text"), *time = json_find(u, "date_time"),
                    *ref = json_find(u, "dia_id");
        text = text != NULL ? text : json_find(u, "clean_text");
        time = time != NULL ? time : session_time;
        const char *name = cJSON_IsString(ref) ? ref->valuestring : "an utterance";
        TRY(add(h, make_message(json_find(u, "speaker"), text, time, ref), 0, name, e));
    }
    return ST_OK;
}

/* Sessions by number: the members of a file may come in any order. Some numbers have a date and no utterances. */
static status read_conversation(history *h, const cJSON *conversation, err *e)
{
    int n_members = cJSON_GetArraySize(conversation);
    for (int number = 1; number <= n_members; number++) {
        const cJSON *utterances = session_of(conversation, number, "");
        if (utterances != NULL && !cJSON_IsArray(utterances)) {
            return FAIL(e, ST_ERR_FORMAT, "session_%d is no list", number);
        }
        TRY(read_session(h, utterances, session_of(conversation, number, "_date_time"), e));
    }
    return ST_OK;
}

static const cJSON *find_conversation(const cJSON *root)
{
    const cJSON *inside = json_find(root, "conversation");
    const cJSON *conversation = cJSON_IsObject(inside) ? inside : root;
    return cJSON_IsObject(conversation) && session_of(conversation, 1, "") != NULL ? conversation : NULL;
}

/* ---- JSON lines ---- */

static status read_line(history *h, const uint8_t *line, size_t bytes, long number, err *e)
{
    cJSON *o = NULL;
    err why = {.code = ST_OK};
    status st = json_parse(line, bytes, &json_line_limits, &o, &why);
    if (st == ST_ERR_MEMORY) {
        return no_memory(e);
    }
    if (st != ST_OK || !cJSON_IsObject(o)) {
        h->on_fault(h->user, number, st != ST_OK ? why.text : "not a JSON object");
        cJSON_Delete(o);
        return ST_OK;
    }
    const cJSON *role = json_find(o, "role"), *speaker = json_find(o, "speaker");
    cJSON *m = make_message(speaker, json_find(o, "content"), json_find(o, "time"), json_find(o, "ref"));
    if (m != NULL && speaker == NULL && role != NULL) { /* with both, the name says more */
        cJSON *copy = cJSON_Duplicate(role, true);
        if (copy == NULL || !cJSON_AddItemToObject(m, "role", copy)) {
            cJSON_Delete(copy);
            cJSON_Delete(m);
            m = NULL;
        }
    }
    cJSON_Delete(o);
    return add(h, m, number, "", e);
}

static bool is_blank(const uint8_t *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') {
            return false;
        }
    }
    return true;
}

static status read_lines(history *h, const uint8_t *data, size_t bytes, err *e)
{
    for (long number = 1; bytes > 0; number++) {
        const uint8_t *newline = memchr(data, '\n', bytes);
        size_t n = newline != NULL ? (size_t)(newline - data) : bytes;
        if (!is_blank(data, n)) {
            TRY(read_line(h, data, n, number, e));
        }
        n += newline != NULL ? 1 : 0;
        data += n;
        bytes -= n;
    }
    return ST_OK;
}

status history_read(
        const void *data, size_t bytes, history_on_fault on_fault, void *user, cJSON **messages, err *e)
{
    history h = {.messages = cJSON_CreateArray(), .on_fault = on_fault, .user = user};
    cJSON *root = NULL;
    err not_one_value;
    if (h.messages == NULL) {
        return no_memory(e);
    }
    status st = json_parse(data, bytes, &json_file_limits, &root, &not_one_value);
    const cJSON *conversation = st == ST_OK ? find_conversation(root) : NULL;
    if (conversation != NULL) {
        st = read_conversation(&h, conversation, e);
    } else if (st == ST_OK && cJSON_IsArray(root)) {
        st = FAIL(e, ST_ERR_FORMAT, "a list; one conversation, or one message a line, is expected");
    } else if (st == ST_ERR_MEMORY) {
        st = no_memory(e);
    } else {
        st = read_lines(&h, data, bytes, e);
    }
    cJSON_Delete(root);
    if (st != ST_OK) {
        cJSON_Delete(h.messages);
        return st;
    }
    *messages = h.messages;
    return ST_OK;
}
