/* Requests of the line protocol: a table of operations, and per operation the members it takes. */
#include "api/parse_internal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

status parse_refuse(parse_fault *f, const char *code, const char *format, ...)
{
    va_list args;
    f->code = code;
    f->at.param[0] = '\0';
    va_start(args, format);
    (void)vsnprintf(f->at.message, sizeof f->at.message, format, args);
    va_end(args);
    return ST_ERR_ARG;
}

void parse_line_deinit(parse_line *p)
{
    if (p->request != NULL) {
        agent_request_free(p->request);
    }
    base_free(p->id_json);
    base_free(p->target_json);
    *p = (parse_line){.kind = PARSE_PING};
}

/* An optional text into a string that the request owns. */
static status take_text(const json_place *at,
        const char *name,
        json_need need,
        size_t bytes_min,
        size_t bytes_max,
        char **out)
{
    const char *text = NULL;
    TRY(json_get_text(at, name, need, bytes_min, bytes_max, &text));
    if (text == NULL) {
        return ST_OK;
    }
    *out = base_strdup(text);
    return *out != NULL ? ST_OK : ST_ERR_MEMORY;
}

static status take_session(const json_place *at, json_need need, agent_request *r)
{
    return take_text(at, "session", need, 1, PARSE_NAME_BYTES_MAX, &r->session);
}

/* A string of at most 128 bytes or an integer within 2^53, as the JSON text it is echoed as. */
static status take_id(const json_place *at, const char *name, char **out)
{
    const cJSON *item = json_find(at->object, name);
    int64_t number;
    if (item == NULL) {
        return json_refuse(at, name, "is missing");
    }
    if (cJSON_IsString(item)) {
        size_t bytes = strlen(item->valuestring);
        if (bytes > PARSE_ID_BYTES_MAX) {
            return json_refuse(at, name, "has %zu bytes, at most %d are allowed", bytes, PARSE_ID_BYTES_MAX);
        }
        base_buf b = {.max = (size_t)PARSE_ID_BYTES_MAX * 6 + 16};
        status st = json_write_text(&b, item->valuestring, bytes);
        st = st == ST_OK ? base_buf_append(&b, "", 1) : st;
        if (st != ST_OK) {
            base_buf_free(&b);
            return ST_ERR_MEMORY;
        }
        *out = (char *)b.data;
        return ST_OK;
    }
    if (!json_exact_integer(item, &number)) {
        return json_refuse(at, name, "must be a string or an integer within 2^53");
    }
    *out = base_strdup(item->valuestring);
    return *out != NULL ? ST_OK : ST_ERR_MEMORY;
}

static status parse_stop_item(const json_place *at, const cJSON *item, const char *name, char **out)
{
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0' ||
            strlen(item->valuestring) > PARSE_REF_BYTES_MAX) {
        return json_refuse(at, name, "must be a string of 1 to %d bytes", PARSE_REF_BYTES_MAX);
    }
    *out = base_strdup(item->valuestring);
    return *out != NULL ? ST_OK : ST_ERR_MEMORY;
}

/* A string, or a list of strings. */
static status parse_stop(const json_place *at, agent_request *r)
{
    const cJSON *stop = json_find(at->object, "stop"), *item;
    if (stop == NULL) {
        return ST_OK;
    }
    int n = cJSON_IsArray(stop) ? cJSON_GetArraySize(stop) : 1;
    if (n > PARSE_STOPS_MAX) {
        return json_refuse(at, "stop", "has %d strings, at most %d are allowed", n, PARSE_STOPS_MAX);
    }
    r->stop = base_zalloc((size_t)n + 1, sizeof *r->stop);
    if (r->stop == NULL) {
        return ST_ERR_MEMORY;
    }
    r->n_stop = n;
    if (!cJSON_IsArray(stop)) {
        return parse_stop_item(at, stop, "stop", &r->stop[0]);
    }
    int i = 0;
    cJSON_ArrayForEach (item, stop) {
        char name[24];
        (void)snprintf(name, sizeof name, "stop[%d]", i);
        TRY(parse_stop_item(at, item, name, &r->stop[i++]));
    }
    return ST_OK;
}

/* "auto", "off" or a token budget. */
static status parse_recall(const json_place *at, agent_request *r)
{
    const cJSON *recall = json_find(at->object, "recall");
    int64_t budget;
    if (recall == NULL) {
        return ST_OK;
    }
    if (cJSON_IsString(recall) && strcmp(recall->valuestring, "auto") == 0) {
        r->recall = AGENT_RECALL_AUTO;
    } else if (cJSON_IsString(recall) && strcmp(recall->valuestring, "off") == 0) {
        r->recall = AGENT_RECALL_OFF;
    } else if (json_exact_integer(recall, &budget) && budget >= 0 && budget <= INT_MAX) {
        r->recall = budget;
    } else {
        return json_refuse(at, "recall", "must be \"auto\", \"off\" or a number of tokens");
    }
    return ST_OK;
}

static status parse_sampling(const json_place *at, agent_sampling *s)
{
    int64_t top_k = s->top_k, seed = -1;
    TRY(json_get_real(at, "temperature", 0, 2, &s->temperature));
    TRY(json_get_real(at, "top_p", 0, 1, &s->top_p));
    TRY(json_get_real(at, "min_p", 0, 1, &s->min_p));
    TRY(json_get_real(at, "repeat_penalty", 0.01, 10, &s->repeat_penalty));
    TRY(json_get_integer(at, "top_k", 0, INT_MAX, &top_k));
    TRY(json_get_integer(at, "seed", 0, JSON_EXACT_MAX, &seed));
    s->top_k = (int)top_k;
    s->seed = seed >= 0 ? (uint64_t)seed : s->seed;
    return ST_OK;
}

static status parse_chat(const json_place *at, agent_request *r)
{
    int64_t max_tokens = r->max_tokens;
    TRY(take_session(at, JSON_OPTIONAL, r));
    TRY(parse_messages(at, false, r));
    if (strcmp(r->messages[r->n_messages - 1].role, "user") != 0) {
        char path[48];
        (void)snprintf(path, sizeof path, "messages[%d]", r->n_messages - 1);
        json_place last = {.object = NULL, .path = path, .fault = at->fault};
        return json_refuse(&last, "role", "must be user: the last message is the one that is answered");
    }
    TRY(json_get_integer(at, "max_tokens", 1, INT_MAX, &max_tokens));
    r->max_tokens = (int)max_tokens;
    TRY(parse_sampling(at, &r->sampling));
    TRY(parse_stop(at, r));
    TRY(json_get_bool(at, "store", &r->store));
    TRY(parse_recall(at, r));
    return take_text(at, "key", JSON_OPTIONAL, 1, PARSE_NAME_BYTES_MAX, &r->key);
}

static status parse_ingest(const json_place *at, agent_request *r)
{
    TRY(take_session(at, JSON_REQUIRED, r));
    TRY(parse_messages(at, true, r));
    return take_text(at, "key", JSON_OPTIONAL, 1, PARSE_NAME_BYTES_MAX, &r->key);
}

static status parse_match(const json_place *at, agent_request *r)
{
    TRY(take_session(at, JSON_REQUIRED, r));
    TRY(take_text(at, "text", JSON_REQUIRED, 1, SIZE_MAX, &r->text));
    return json_get_integer(at, "budget", 1, INT_MAX, &r->budget);
}

static status parse_session_create(const json_place *at, agent_request *r)
{
    TRY(take_session(at, JSON_REQUIRED, r));
    TRY(take_text(at, "system", JSON_OPTIONAL, 0, SIZE_MAX, &r->system));
    return json_get_integer(at, "ttl_s", 1, INT_MAX, &r->ttl_s);
}

static status parse_session_get(const json_place *at, agent_request *r)
{
    TRY(take_session(at, JSON_REQUIRED, r));
    return json_get_bool(at, "messages", &r->with_messages);
}

static status parse_session_list(const json_place *at, agent_request *r)
{
    int64_t limit = r->limit;
    TRY(take_text(at, "prefix", JSON_OPTIONAL, 0, PARSE_NAME_BYTES_MAX, &r->prefix));
    TRY(json_get_integer(at, "limit", 1, PARSE_LIST_MAX, &limit));
    r->limit = (int)limit;
    return take_text(at, "after", JSON_OPTIONAL, 0, PARSE_NAME_BYTES_MAX, &r->after);
}

static status parse_session_only(const json_place *at, agent_request *r)
{
    return take_session(at, JSON_REQUIRED, r);
}

static status parse_nothing(const json_place *at, agent_request *r)
{
    (void)at;
    (void)r;
    return ST_OK;
}

typedef struct operation {
    const char *name;
    parse_kind kind;
    agent_op op;
    status (*parse)(const json_place *at, agent_request *r);
} operation;

/* A new operation is one line here, one function above, and its example in docs/protocol.md. */
static const operation operations[] = {
        {"hello", PARSE_HELLO, AGENT_STATS, NULL},
        {"ping", PARSE_PING, AGENT_STATS, NULL},
        {"cancel", PARSE_CANCEL, AGENT_STATS, NULL},
        {"chat", PARSE_ENGINE, AGENT_CHAT, parse_chat},
        {"ingest", PARSE_ENGINE, AGENT_INGEST, parse_ingest},
        {"match", PARSE_ENGINE, AGENT_MATCH, parse_match},
        {"session.create", PARSE_ENGINE, AGENT_SESSION_CREATE, parse_session_create},
        {"session.get", PARSE_ENGINE, AGENT_SESSION_GET, parse_session_get},
        {"session.list", PARSE_ENGINE, AGENT_SESSION_LIST, parse_session_list},
        {"session.erase", PARSE_ENGINE, AGENT_SESSION_ERASE, parse_session_only},
        {"episode.list", PARSE_ENGINE, AGENT_EPISODE_LIST, parse_session_only},
        {"stats", PARSE_ENGINE, AGENT_STATS, parse_nothing},
};

static const operation *find_operation(const char *name)
{
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        if (strcmp(operations[i].name, name) == 0) {
            return &operations[i];
        }
    }
    return NULL;
}

static status refuse_unknown_op(const char *name, parse_fault *f)
{
    char names[192] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof operations / sizeof operations[0]; i++) {
        int n = snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ", operations[i].name);
        used += n > 0 ? (size_t)n : 0;
        used = used < sizeof names ? used : sizeof names - 1;
    }
    (void)parse_refuse(f, "unknown_op", "\"%.32s\" is no operation; there are %s", name, names);
    (void)snprintf(f->at.param, sizeof f->at.param, "op");
    return ST_ERR_ARG;
}

static status parse_engine(const operation *op, const json_place *at, parse_line *out)
{
    out->request = agent_request_create(op->op);
    if (out->request == NULL) {
        return ST_ERR_MEMORY;
    }
    if (out->request->tenant == NULL) {
        out->request->tenant = base_strdup(PARSE_TENANT);
        if (out->request->tenant == NULL) {
            return ST_ERR_MEMORY;
        }
    }
    return op->parse(at, out->request);
}

static status parse_object(const json_place *at, parse_line *out, parse_fault *fault)
{
    const char *name = NULL, *key = NULL;
    TRY(take_id(at, "id", &out->id_json));
    TRY(json_get_text(at, "op", JSON_REQUIRED, 1, SIZE_MAX, &name));
    const operation *op = find_operation(name);
    if (op == NULL) {
        return refuse_unknown_op(name, fault);
    }
    out->kind = op->kind;
    switch (op->kind) {
    case PARSE_HELLO:
        return json_get_text(
                at, "key", JSON_OPTIONAL, 0, SIZE_MAX, &key); /* the server has no keys: any will do */
    case PARSE_PING:
        return ST_OK;
    case PARSE_CANCEL:
        return take_id(at, "target", &out->target_json);
    case PARSE_ENGINE:
        break;
    }
    return parse_engine(op, at, out);
}

status parse_request(const void *text, size_t bytes, parse_line *out, parse_fault *fault)
{
    err e = {.code = ST_OK};
    cJSON *root = NULL;
    *out = (parse_line){.kind = PARSE_PING};
    *fault = (parse_fault){.code = "bad_request"};
    status st = json_parse(text, bytes, &json_line_limits, &root, &e);
    if (st == ST_OK) {
        json_place at = {.object = root, .path = "", .fault = &fault->at};
        st = cJSON_IsObject(root) ? parse_object(&at, out, fault)
                                  : parse_refuse(fault, "bad_request", "a line must be one JSON object");
        cJSON_Delete(root);
    } else if (st != ST_ERR_MEMORY) {
        (void)parse_refuse(fault, "bad_json", "%s", e.text);
    }
    if (st == ST_ERR_MEMORY) {
        (void)parse_refuse(fault, "internal", "out of memory while reading the request");
    }
    if (st != ST_OK && out->request != NULL) {
        agent_request_free(out->request);
        out->request = NULL;
    }
    return st;
}
