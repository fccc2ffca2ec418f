/* The request loop of the small programs, and what goes in and out of its JSON objects. */
#include "agent/jsonl_internal.h"

#include <math.h>
#include <string.h>

/* ---- parse ---- */

/* NOLINTNEXTLINE(misc-no-recursion): as deep as jsonl_check let it be */
static status check_members(const cJSON *value, err *e)
{
    int members = 0;
    for (const cJSON *child = value->child; child != NULL; child = child->next) {
        if (cJSON_IsObject(value)) {
            if (++members > JSONL_MEMBERS_MAX) {
                return FAIL(e, ST_ERR_FORMAT, "an object has more than %d members", JSONL_MEMBERS_MAX);
            }
            for (const cJSON *other = value->child; other != child; other = other->next) {
                if (strcmp(other->string, child->string) == 0) {
                    return FAIL(e, ST_ERR_FORMAT, "member \"%.64s\" is given twice", child->string);
                }
            }
        }
        TRY(check_members(child, e));
    }
    return ST_OK;
}

status jsonl_parse(const char *text, size_t bytes, cJSON **out, err *e)
{
    TRY(jsonl_check(text, bytes, e));
    cJSON *value = cJSON_ParseWithLength(text, bytes);
    if (value == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a line of %zu bytes", bytes);
    }
    status s = check_members(value, e);
    if (s != ST_OK) {
        cJSON_Delete(value);
        return s;
    }
    *out = value;
    return ST_OK;
}

/* ---- getters ---- */

bool jsonl_has(const cJSON *o, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(o, name) != NULL;
}

status jsonl_get_bool(const cJSON *o, const char *name, bool missing, bool *out, err *e)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(o, name);
    if (m != NULL && !cJSON_IsBool(m)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: must be true or false", name);
    }
    *out = m == NULL ? missing : cJSON_IsTrue(m) != 0;
    return ST_OK;
}

static bool whole_number(const cJSON *m, int64_t min, int64_t max, int64_t *out)
{
    if (!cJSON_IsNumber(m) || !(fabs(m->valuedouble) <= 0x1p53) || floor(m->valuedouble) != m->valuedouble) {
        return false;
    }
    int64_t value = (int64_t)m->valuedouble;
    if (value < min || value > max) {
        return false;
    }
    *out = value;
    return true;
}

status jsonl_get_int(
        const cJSON *o, const char *name, int64_t missing, int64_t min, int64_t max, int64_t *out, err *e)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(o, name);
    if (m == NULL) {
        *out = missing;
        return ST_OK;
    }
    if (!whole_number(m, min, max, out)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: must be a whole number from %lld to %lld", name, (long long)min,
                (long long)max);
    }
    return ST_OK;
}

status jsonl_get_text(const cJSON *o, base_buf *out, err *e)
{
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(o, "text");
    const cJSON *b64 = cJSON_GetObjectItemCaseSensitive(o, "b64");
    if ((text == NULL) == (b64 == NULL)) {
        return FAIL(e, ST_ERR_FORMAT, "text: one of \"text\" and \"b64\" is needed%s",
                text == NULL ? "" : ", not both");
    }
    const cJSON *given = text != NULL ? text : b64;
    if (!cJSON_IsString(given)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: must be a string", text != NULL ? "text" : "b64");
    }
    if (out->max == 0) {
        out->max = JSONL_LINE_BYTES_MAX;
    }
    out->size = 0;
    if (text != NULL) {
        return base_buf_append(out, given->valuestring, strlen(given->valuestring));
    }
    return jsonl_base64_decode(given->valuestring, strlen(given->valuestring), out, e);
}

status jsonl_get_ids(const cJSON *o, const char *name, int32_t limit, int32_t **ids, size_t *n, err *e)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(o, name);
    if (!cJSON_IsArray(array)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: must be an array of token ids", name);
    }
    size_t count = (size_t)cJSON_GetArraySize(array);
    int32_t *list = base_alloc(count * sizeof *list);
    if (list == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for %zu token ids", count);
    }
    size_t i = 0;
    for (const cJSON *m = array->child; m != NULL; m = m->next, i++) {
        int64_t id;
        if (!whole_number(m, 0, (int64_t)limit - 1, &id)) {
            base_free(list);
            if (cJSON_IsNumber(m)) {
                return FAIL(e, ST_ERR_FORMAT, "%s[%zu] is %.17g, must be a whole number from 0 to %d", name,
                        i, m->valuedouble, limit - 1);
            }
            return FAIL(
                    e, ST_ERR_FORMAT, "%s[%zu] is no number, must be one from 0 to %d", name, i, limit - 1);
        }
        list[i] = (int32_t)id;
    }
    *ids = list;
    *n = count;
    return ST_OK;
}

/* ---- base64 (RFC 4648, section 4) ---- */

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

status jsonl_base64_decode(const char *text, size_t bytes, base_buf *out, err *e)
{
    size_t padding = 0;
    while (padding < 2 && padding < bytes && text[bytes - 1 - padding] == '=') {
        padding++;
    }
    if (bytes % 4 != 0) {
        return FAIL(e, ST_ERR_FORMAT, "b64: length %zu is not a multiple of 4", bytes);
    }
    for (size_t at = 0; at < bytes; at += 4) {
        size_t digits = at + 4 == bytes ? 4 - padding : 4;
        uint32_t bits = 0;
        for (size_t i = 0; i < 4; i++) {
            int digit = i < digits ? base64_digit(text[at + i]) : 0;
            if (digit < 0) {
                return FAIL(e, ST_ERR_FORMAT, "b64: byte %zu is not a base64 digit", at + i);
            }
            bits = bits << 6 | (uint32_t)digit;
        }
        if ((digits == 2 && (bits & 0xffff) != 0) || (digits == 3 && (bits & 0xff) != 0)) {
            return FAIL(e, ST_ERR_FORMAT, "b64: bits are left over at the end");
        }
        uint8_t three[3] = {(uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits};
        TRY(base_buf_append(out, three, digits - 1));
    }
    return ST_OK;
}

/* ---- members of a reply ---- */

static bool append_escaped(base_buf *b, uint32_t code_point, const uint8_t *utf8, size_t bytes)
{
    char escape[8];
    if (code_point >= 0x20 && code_point != '"' && code_point != '\\' && code_point != 0x7f) {
        return base_buf_append(b, utf8, bytes) == ST_OK;
    }
    int n = snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code_point);
    return base_buf_append(b, escape, (size_t)n) == ST_OK;
}

status jsonl_add_text(cJSON *reply, const char *name, const void *text, size_t bytes)
{
    /* Raw, because cJSON's own strings end at the first NUL. */
    base_buf b = {.max = 6 * bytes + 3};
    const uint8_t *s = text;
    bool ok = base_buf_append(&b, "\"", 1) == ST_OK;
    for (size_t at = 0; ok && at < bytes;) {
        uint32_t code_point;
        size_t n = base_utf8_next(s + at, bytes - at, &code_point);
        if (n == 0) {
            ok = base_buf_append(&b, "\xef\xbf\xbd", 3) == ST_OK;
            at++;
        } else {
            ok = append_escaped(&b, code_point, s + at, n);
            at += n;
        }
    }
    ok = ok && base_buf_append(&b, "\"", 2) == ST_OK &&
            cJSON_AddRawToObject(reply, name, (char *)b.data) != NULL;
    base_buf_free(&b);
    return ok ? ST_OK : ST_ERR_MEMORY;
}

/* Numbers go in as one raw text: a cJSON node for each would take twenty times the memory. */
static status add_raw_list(cJSON *reply, const char *name, base_buf *b, bool ok)
{
    ok = ok && base_buf_append(b, "]", 2) == ST_OK &&
            cJSON_AddRawToObject(reply, name, (char *)b->data) != NULL;
    base_buf_free(b);
    return ok ? ST_OK : ST_ERR_MEMORY;
}

status jsonl_add_ids(cJSON *reply, const char *name, const int32_t *ids, size_t n)
{
    base_buf b = {.max = 16 * n + 3};
    bool ok = base_buf_append(&b, "[", 1) == ST_OK;
    for (size_t i = 0; ok && i < n; i++) {
        char number[16];
        int length = snprintf(number, sizeof number, "%s%d", i == 0 ? "" : ",", ids[i]);
        ok = base_buf_append(&b, number, (size_t)length) == ST_OK;
    }
    return add_raw_list(reply, name, &b, ok);
}

status jsonl_add_floats(cJSON *reply, const char *name, const float *x, size_t n)
{
    base_buf b = {.max = 24 * n + 3};
    bool ok = base_buf_append(&b, "[", 1) == ST_OK;
    for (size_t i = 0; ok && i < n; i++) {
        char number[32];
        int length = isfinite(x[i])
                ? snprintf(number, sizeof number, "%s%.9g", i == 0 ? "" : ",", (double)x[i])
                : snprintf(number, sizeof number, "%snull", i == 0 ? "" : ",");
        ok = base_buf_append(&b, number, (size_t)length) == ST_OK;
    }
    return add_raw_list(reply, name, &b, ok);
}

/* ---- the loop ---- */

/* One line without its end. ST_ERR_NOT_FOUND at the end of input; ST_ERR_LIMIT after skipping one that is too long. */
static status read_line(FILE *in, base_buf *line)
{
    status s = ST_OK;
    bool any = false;
    int c;
    line->size = 0;
    while ((c = getc(in)) != EOF && c != '\n') {
        uint8_t byte = (uint8_t)c;
        any = true;
        if (s == ST_OK) {
            s = base_buf_append(line, &byte, 1);
        }
    }
    return c == EOF && !any ? ST_ERR_NOT_FOUND : s;
}

static bool write_line(FILE *out, const cJSON *reply)
{
    char *text = cJSON_PrintUnformatted(reply);
    bool ok = text != NULL && fputs(text, out) >= 0 && putc('\n', out) != EOF && fflush(out) == 0;
    cJSON_free(text);
    return ok;
}

static status answer_line(const base_buf *line, jsonl_answer answer, void *ctx, cJSON *reply, err *e)
{
    cJSON *request = NULL;
    TRY(jsonl_parse((const char *)line->data, line->size, &request, e));
    status s = cJSON_IsObject(request) ? answer(ctx, request, reply, e)
                                       : FAIL(e, ST_ERR_FORMAT, "a line must hold a JSON object");
    cJSON_Delete(request);
    return s;
}

int jsonl_run(FILE *in, FILE *out, jsonl_answer answer, void *ctx)
{
    base_buf line = {.max = JSONL_LINE_BYTES_MAX};
    int exit_status = 0;
    status s;
    while ((s = read_line(in, &line)) != ST_ERR_NOT_FOUND) {
        err e = {0};
        cJSON *reply = cJSON_CreateObject();
        if (s == ST_ERR_LIMIT) {
            (void)FAIL(&e, s, "the line is longer than %d bytes", JSONL_LINE_BYTES_MAX);
        } else if (s == ST_OK) {
            s = answer_line(&line, answer, ctx, reply, &e);
        }
        if (s != ST_OK) {
            const char *text = e.text[0] != '\0' ? e.text : status_text(s);
            cJSON_Delete(reply);
            reply = cJSON_CreateObject();
            (void)jsonl_add_text(reply, "error", text, strlen(text));
            exit_status = 1;
        }
        bool written = write_line(out, reply);
        cJSON_Delete(reply);
        if (!written) {
            exit_status = 1;
            break;
        }
    }
    base_buf_free(&line);
    return exit_status;
}
