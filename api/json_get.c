/* Getters that name what they refuse, and the string writer. */
#include "api/json_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const cJSON *json_find(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

status json_refuse(const json_place *at, const char *name, const char *format, ...)
{
    json_fault *f = at->fault;
    const char *dot = at->path[0] != '\0' && name[0] != '\0' ? "." : "";
    va_list args;
    char what[160];
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    (void)snprintf(f->param, sizeof f->param, "%s%s%s", at->path, dot, name);
    (void)snprintf(f->message, sizeof f->message, "%.90s %s", f->param, what);
    return ST_ERR_ARG;
}

status json_get_text(const json_place *at,
        const char *name,
        json_need need,
        size_t bytes_min,
        size_t bytes_max,
        const char **out)
{
    const cJSON *item = json_find(at->object, name);
    if (item == NULL) {
        return need == JSON_REQUIRED ? json_refuse(at, name, "is missing") : ST_OK;
    }
    if (!cJSON_IsString(item)) {
        return json_refuse(at, name, "must be a string");
    }
    size_t bytes = strlen(item->valuestring);
    if (bytes < bytes_min) {
        return json_refuse(at, name, "must not be empty");
    }
    if (bytes > bytes_max) {
        return json_refuse(at, name, "has %zu bytes, at most %zu are allowed", bytes, bytes_max);
    }
    *out = item->valuestring;
    return ST_OK;
}

bool json_exact_integer(const cJSON *number, int64_t *out)
{
    if (!cJSON_IsNumber(number) || number->valuestring == NULL) {
        return false;
    }
    const char *text = number->valuestring;
    size_t bytes = strlen(text);
    if (strspn(text, "-0123456789") != bytes || bytes > 17) { /* 2^53 has 16 digits: no overflow below */
        return false;
    }
    long long value = strtoll(text, NULL, 10);
    if (value > JSON_EXACT_MAX || value < -JSON_EXACT_MAX) {
        return false;
    }
    *out = value;
    return true;
}

status json_get_integer(const json_place *at, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const cJSON *item = json_find(at->object, name);
    int64_t value;
    if (item == NULL) {
        return ST_OK;
    }
    if (!json_exact_integer(item, &value) || value < min || value > max) {
        return json_refuse(at, name, "must be an integer from %lld to %lld", (long long)min, (long long)max);
    }
    *out = value;
    return ST_OK;
}

status json_get_real(const json_place *at, const char *name, double min, double max, float *out)
{
    const cJSON *item = json_find(at->object, name);
    if (item == NULL) {
        return ST_OK;
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= min && item->valuedouble <= max)) {
        return json_refuse(at, name, "must be a number from %g to %g", min, max);
    }
    *out = (float)item->valuedouble;
    return ST_OK;
}

status json_get_bool(const json_place *at, const char *name, bool *out)
{
    const cJSON *item = json_find(at->object, name);
    if (item == NULL) {
        return ST_OK;
    }
    if (!cJSON_IsBool(item)) {
        return json_refuse(at, name, "must be true or false");
    }
    *out = cJSON_IsTrue(item) != 0;
    return ST_OK;
}

/* One character that JSON wants escaped. */
static status write_escape(base_buf *b, uint8_t c)
{
    static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    char escape[8];
    const char *name = c != 0 ? strchr(names, c) : NULL;
    if (name != NULL) {
        escape[0] = '\\';
        escape[1] = letters[name - names];
        return base_buf_append(b, escape, 2);
    }
    (void)snprintf(escape, sizeof escape, "\\u%04x", c);
    return base_buf_append(b, escape, 6);
}

status json_write_text(base_buf *b, const char *text, size_t bytes)
{
    size_t at = 0, plain = 0;
    TRY(base_buf_append(b, "\"", 1));
    while (at < bytes) {
        uint32_t c;
        size_t n = base_utf8_next(text + at, bytes - at, &c);
        if (n > 0 && c >= 0x20 && c != '"' && c != '\\') {
            at += n;
            continue;
        }
        TRY(base_buf_append(b, text + plain, at - plain));
        TRY(n > 0 ? write_escape(b, (uint8_t)c) : base_buf_append(b, "\xef\xbf\xbd", 3));
        at += n > 0 ? n : 1;
        plain = at;
    }
    TRY(base_buf_append(b, text + plain, at - plain));
    return base_buf_append(b, "\"", 1);
}
