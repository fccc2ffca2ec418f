/* See eval_layout_internal.h. */
#include "agent/eval_layout_internal.h"

#include <stdio.h>

#include "agent/jsonl_internal.h"

status eval_layout_parse(const char *json, size_t bytes, cJSON **root, err *e)
{
    TRY(jsonl_check(json, bytes, e));
    *root = cJSON_ParseWithLength(json, bytes);
    return *root != NULL ? ST_OK : FAIL(e, ST_ERR_MEMORY, "out of memory for a conversation");
}

const cJSON *eval_layout_conversation(const cJSON *root)
{
    const cJSON *inside = cJSON_GetObjectItemCaseSensitive(root, "conversation");
    return cJSON_IsObject(inside) ? inside : root;
}

const cJSON *eval_layout_session(const cJSON *conversation, int number, const char *suffix)
{
    char name[48];
    (void)snprintf(name, sizeof name, "session_%d%s", number, suffix);
    return cJSON_GetObjectItemCaseSensitive(conversation, name);
}

const char *eval_layout_text(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

const char *eval_layout_said(const cJSON *utterance)
{
    const char *clean = eval_layout_text(utterance, "clean_text");
    return clean != NULL ? clean : eval_layout_text(utterance, "text");
}
