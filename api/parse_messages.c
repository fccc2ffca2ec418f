/* The messages of a chat or an ingest. */
#include "api/parse_internal.h"

#include <stdio.h>
#include <string.h>

/* Role or speaker; the role defaults to user. */
static status parse_author(const json_place *at, bool allow_speaker, agent_message *m)
{
    const char *role = NULL, *speaker = NULL;
    TRY(json_get_text(at, "role", JSON_OPTIONAL, 1, 16, &role));
    TRY(json_get_text(at, "speaker", JSON_OPTIONAL, 1, PARSE_NAME_BYTES_MAX, &speaker));
    if (speaker != NULL && !allow_speaker) {
        return json_refuse(at, "speaker", "is for ingest; a message of a chat has a role");
    }
    if (speaker != NULL && role != NULL) {
        return json_refuse(at, "speaker", "and role exclude each other");
    }
    role = role == NULL && speaker == NULL ? "user" : role;
    if (role != NULL && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 &&
            strcmp(role, "system") != 0) {
        return json_refuse(at, "role", "must be system, user or assistant");
    }
    m->role = role != NULL ? base_strdup(role) : NULL;
    m->speaker = speaker != NULL ? base_strdup(speaker) : NULL;
    return m->role != NULL || m->speaker != NULL ? ST_OK : ST_ERR_MEMORY;
}

status parse_message(const json_place *at, bool allow_speaker, agent_message *m)
{
    const char *content = NULL, *ref = NULL, *when = NULL;
    TRY(parse_author(at, allow_speaker, m));
    TRY(json_get_text(at, "content", JSON_REQUIRED, 0, SIZE_MAX, &content));
    TRY(json_get_text(at, "ref", JSON_OPTIONAL, 1, PARSE_REF_BYTES_MAX, &ref));
    TRY(json_get_text(at, "time", JSON_OPTIONAL, 1, 64, &when));
    if (when != NULL) {
        if (agent_time_parse(when, &m->time_us) != ST_OK) {
            return json_refuse(at, "time", "is not a time like 2023-05-08T13:56:00Z");
        }
        m->has_time = true;
    }
    m->content = base_strdup(content);
    m->content_bytes = strlen(content);
    m->ref = ref != NULL ? base_strdup(ref) : NULL;
    return m->content != NULL && (ref == NULL || m->ref != NULL) ? ST_OK : ST_ERR_MEMORY;
}

status parse_messages(const json_place *at, bool allow_speaker, agent_request *r)
{
    const cJSON *list = json_find(at->object, "messages"), *item;
    if (list == NULL) {
        return json_refuse(at, "messages", "is missing");
    }
    int n = cJSON_GetArraySize(list), i = 0;
    if (!cJSON_IsArray(list) || n < 1 || n > PARSE_MESSAGES_MAX) {
        return json_refuse(at, "messages", "must be a list of 1 to %d messages", PARSE_MESSAGES_MAX);
    }
    r->messages = base_zalloc((size_t)n, sizeof *r->messages);
    if (r->messages == NULL) {
        return ST_ERR_MEMORY;
    }
    r->n_messages = n;
    cJSON_ArrayForEach (item, list) {
        char path[48];
        (void)snprintf(path, sizeof path, "messages[%d]", i);
        json_place place = {.object = item, .path = path, .fault = at->fault};
        if (!cJSON_IsObject(item)) {
            return json_refuse(&place, "", "must be an object");
        }
        TRY(parse_message(&place, allow_speaker, &r->messages[i++]));
    }
    return ST_OK;
}
