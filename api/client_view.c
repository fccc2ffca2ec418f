/* Requests made and events shown: what the programs share besides the connection. */
#include <string.h>

#include "api/client_internal.h"
#include "api/json_internal.h"

cJSON *client_request(const char *op, const char *session)
{
    cJSON *o = cJSON_CreateObject();
    bool good = o != NULL && cJSON_AddStringToObject(o, "op", op) != NULL &&
            (session == NULL || cJSON_AddStringToObject(o, "session", session) != NULL);
    if (!good) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

int64_t client_integer(const cJSON *object, const char *name)
{
    int64_t value = 0;
    return json_exact_integer(json_find(object, name), &value) ? value : 0;
}

double client_real(const cJSON *object, const char *name)
{
    const cJSON *item = json_find(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

const char *client_text(const cJSON *object, const char *name)
{
    const cJSON *item = json_find(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* Bytes of the text that fit into `columns` characters, not cutting one. */
static int cut_bytes(const char *text, int columns)
{
    size_t at = 0, all = strlen(text), n;
    uint32_t c;
    while (columns-- > 0 && (n = base_utf8_next(text + at, all - at, &c)) > 0) {
        at += n;
    }
    return (int)at;
}

void client_print_cut(FILE *out, const char *text, int columns)
{
    int n = cut_bytes(text, columns);
    for (int i = 0; i < n; i++) {
        (void)fputc((unsigned char)text[i] < ' ' ? ' ' : text[i], out);
    }
    (void)fputs(text[n] != '\0' ? "..." : "", out);
}

void client_print_json(const cJSON *object)
{
    char *text = cJSON_PrintUnformatted(object);
    (void)printf("%s\n", text != NULL ? text : "{}");
    cJSON_free(text);
}

void client_print_episodes(
        FILE *out, const cJSON *episodes, bool only_used, const char *before, const char *after)
{
    enum { TITLE_COLUMNS = 60, DATE_BYTES = 10 };
    const cJSON *item;
    cJSON_ArrayForEach (item, episodes) {
        const cJSON *used = json_find(item, "used"), *score = json_find(item, "score");
        const char *title = client_text(item, "title"), *from = client_text(item, "from");
        if (only_used && used != NULL && !cJSON_IsTrue(used)) {
            continue;
        }
        (void)fputs(before, out);
        client_print_cut(out, title, TITLE_COLUMNS);
        if (from[0] != '\0') {
            (void)fprintf(out, " · %.*s", DATE_BYTES, from);
        }
        if (cJSON_IsNumber(score)) {
            (void)fprintf(out, " · score %.2f", score->valuedouble);
        }
        (void)fprintf(out, " · %lld tokens%s\n", (long long)client_integer(item, "tokens"), after);
    }
}
