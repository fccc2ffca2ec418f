/* The strict reader; json_internal.h says why it exists. One recursive descent, bounded by the depth limit. */
#include "api/json_internal.h"

#include <stdlib.h>
#include <string.h>

const json_limits json_line_limits = {
        .bytes_max = (size_t)16 << 20, .depth_max = 32, .values_max = 1 << 18, .members_max = 256};
const json_limits json_file_limits = {
        .bytes_max = (size_t)256 << 20, .depth_max = 64, .values_max = 1 << 23, .members_max = 4096};

enum { NUMBER_BYTES_MAX = 64 };

typedef struct reader {
    const uint8_t *text;
    size_t at, bytes;
    const json_limits *limits;
    int depth, values;
    base_buf scratch; /* the string being read */
    err *e;
} reader;

void json_use_base_memory(void)
{
    cJSON_Hooks hooks = {.malloc_fn = base_alloc, .free_fn = base_free};
    cJSON_InitHooks(&hooks);
}

static status read_value(reader *r, cJSON **out);

static status malformed(const reader *r, const char *what)
{
    return FAIL(r->e, ST_ERR_FORMAT, "byte %zu: %s", r->at, what);
}

static status no_memory(const reader *r)
{
    return FAIL(r->e, ST_ERR_MEMORY, "out of memory while reading JSON");
}

static int peek(const reader *r)
{
    return r->at < r->bytes ? r->text[r->at] : -1;
}

static void skip_blanks(reader *r)
{
    int c = peek(r);
    while (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        r->at++;
        c = peek(r);
    }
}

static status append(reader *r, const void *data, size_t bytes)
{
    return base_buf_append(&r->scratch, data, bytes) == ST_OK ? ST_OK : no_memory(r);
}

static status append_code_point(reader *r, uint32_t c)
{
    uint8_t u[4];
    size_t n;
    if (c < 0x80) {
        u[0] = (uint8_t)c;
        n = 1;
    } else if (c < 0x800) {
        u[0] = (uint8_t)(0xc0 | c >> 6);
        u[1] = (uint8_t)(0x80 | (c & 0x3f));
        n = 2;
    } else if (c < 0x10000) {
        u[0] = (uint8_t)(0xe0 | c >> 12);
        u[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        u[2] = (uint8_t)(0x80 | (c & 0x3f));
        n = 3;
    } else {
        u[0] = (uint8_t)(0xf0 | c >> 18);
        u[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
        u[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        u[3] = (uint8_t)(0x80 | (c & 0x3f));
        n = 4;
    }
    return append(r, u, n);
}

static bool read_hex4(reader *r, uint32_t *out)
{
    uint32_t value = 0;
    if (r->bytes - r->at < 4) {
        return false;
    }
    for (size_t i = 0; i < 4; i++) {
        int c = r->text[r->at + i];
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            digit = (uint32_t)(c - 'a' + 10);
        } else if (c >= 'A' && c <= 'F') {
            digit = (uint32_t)(c - 'A' + 10);
        } else {
            return false;
        }
        value = value << 4 | digit;
    }
    r->at += 4;
    *out = value;
    return true;
}

/* After "\u". A high surrogate needs its low half: alone it is no character and has no UTF-8. */
static status read_unicode_escape(reader *r)
{
    uint32_t c, low;
    if (!read_hex4(r, &c)) {
        return malformed(r, "\\u needs four hexadecimal digits");
    }
    if (c == 0) {
        return malformed(r, "\\u0000 is not accepted in a string");
    }
    if (c >= 0xdc00 && c <= 0xdfff) {
        return malformed(r, "second half of a surrogate pair without the first");
    }
    if (c >= 0xd800 && c <= 0xdbff) {
        if (r->bytes - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') {
            return malformed(r, "first half of a surrogate pair without the second");
        }
        r->at += 2;
        if (!read_hex4(r, &low) || low < 0xdc00 || low > 0xdfff) {
            return malformed(r, "first half of a surrogate pair without the second");
        }
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    return append_code_point(r, c);
}

static status read_escape(reader *r)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = peek(r);
    if (c == 'u') {
        r->at++;
        return read_unicode_escape(r);
    }
    const char *name = c > 0 ? strchr(names, c) : NULL;
    if (name == NULL) {
        return malformed(r, "unknown escape in a string");
    }
    r->at++;
    return append(r, &values[name - names], 1);
}

/* Into scratch, NUL-terminated. */
static status read_text(reader *r)
{
    r->scratch.size = 0;
    r->at++;
    for (;;) {
        size_t from = r->at;
        while (r->at < r->bytes && r->text[r->at] >= 0x20 && r->text[r->at] != '"' &&
                r->text[r->at] != '\\') {
            r->at++;
        }
        TRY(append(r, r->text + from, r->at - from));
        int c = peek(r);
        if (c == '"') {
            r->at++;
            return append(r, "", 1);
        }
        if (c != '\\') {
            return malformed(r, c < 0 ? "a string that does not end" : "a control character in a string");
        }
        r->at++;
        TRY(read_escape(r));
    }
}

static bool skip_digits(reader *r)
{
    size_t from = r->at;
    while (peek(r) >= '0' && peek(r) <= '9') {
        r->at++;
    }
    return r->at > from;
}

static status read_number(reader *r, cJSON **out)
{
    char copy[NUMBER_BYTES_MAX + 1];
    size_t from = r->at;
    if (peek(r) == '-') {
        r->at++;
    }
    if (peek(r) == '0') {
        r->at++;
    } else if (!skip_digits(r)) {
        return malformed(r, "a value was expected");
    }
    if (peek(r) == '.') {
        r->at++;
        if (!skip_digits(r)) {
            return malformed(r, "digits were expected after the point");
        }
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        r->at++;
        if (peek(r) == '+' || peek(r) == '-') {
            r->at++;
        }
        if (!skip_digits(r)) {
            return malformed(r, "digits were expected in the exponent");
        }
    }
    size_t n = r->at - from;
    if (n > NUMBER_BYTES_MAX) {
        return FAIL(
                r->e, ST_ERR_LIMIT, "byte %zu: a number of more than %d characters", from, NUMBER_BYTES_MAX);
    }
    memcpy(copy, r->text + from, n);
    copy[n] = '\0';
    cJSON *node = cJSON_CreateNumber(strtod(copy, NULL));
    char *kept = cJSON_malloc(n + 1);
    if (node == NULL || kept == NULL) {
        cJSON_Delete(node);
        cJSON_free(kept);
        return no_memory(r);
    }
    memcpy(kept, copy, n + 1);
    node->valuestring = kept;
    *out = node;
    return ST_OK;
}

static status read_word(reader *r, cJSON **out)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (r->bytes - r->at >= n && memcmp(r->text + r->at, words[i], n) == 0) {
            r->at += n;
            *out = i == 2 ? cJSON_CreateNull() : cJSON_CreateBool(i == 0);
            return *out != NULL ? ST_OK : no_memory(r);
        }
    }
    return malformed(r, "a value was expected");
}

/* NOLINTBEGIN(misc-no-recursion): read_container counts the depth */

/* Reads key, colon and value, and adds them to the object. */
static status read_member(reader *r, cJSON *object, int n_before)
{
    if (peek(r) != '"') {
        return malformed(r, "a member name was expected");
    }
    if (n_before == r->limits->members_max) {
        return FAIL(r->e, ST_ERR_LIMIT, "byte %zu: an object with more than %d members", r->at, n_before);
    }
    TRY(read_text(r));
    const char *name = (const char *)r->scratch.data;
    if (json_find(object, name) != NULL) {
        return FAIL(r->e, ST_ERR_FORMAT, "byte %zu: the member \"%.64s\" comes twice", r->at, name);
    }
    char *key = base_strdup(name);
    if (key == NULL) {
        return no_memory(r);
    }
    cJSON *value = NULL;
    skip_blanks(r);
    status st = peek(r) == ':' ? ST_OK : malformed(r, "a colon was expected after the member name");
    if (st == ST_OK) {
        r->at++;
        st = read_value(r, &value);
    }
    if (st == ST_OK && !cJSON_AddItemToObject(object, key, value)) {
        cJSON_Delete(value);
        st = no_memory(r);
    }
    base_free(key);
    return st;
}

static status read_element(reader *r, cJSON *array)
{
    cJSON *value = NULL;
    TRY(read_value(r, &value));
    (void)cJSON_AddItemToArray(array, value); /* cannot fail: both exist */
    return ST_OK;
}

static status read_items(reader *r, cJSON *parent, int close, bool is_object)
{
    r->at++;
    skip_blanks(r);
    if (peek(r) == close) {
        r->at++;
        return ST_OK;
    }
    for (int n = 0;; n++) {
        TRY(is_object ? read_member(r, parent, n) : read_element(r, parent));
        skip_blanks(r);
        int c = peek(r);
        if (c == close) {
            r->at++;
            return ST_OK;
        }
        if (c != ',') {
            return malformed(r, is_object ? "a comma or } was expected" : "a comma or ] was expected");
        }
        r->at++;
        skip_blanks(r);
    }
}

static status read_container(reader *r, bool is_object, cJSON **out)
{
    if (r->depth == r->limits->depth_max) {
        return FAIL(r->e, ST_ERR_LIMIT, "byte %zu: nested deeper than %d", r->at, r->depth);
    }
    cJSON *node = is_object ? cJSON_CreateObject() : cJSON_CreateArray();
    if (node == NULL) {
        return no_memory(r);
    }
    r->depth++;
    status st = read_items(r, node, is_object ? '}' : ']', is_object);
    r->depth--;
    if (st != ST_OK) {
        cJSON_Delete(node);
        return st;
    }
    *out = node;
    return ST_OK;
}

static status read_value(reader *r, cJSON **out)
{
    skip_blanks(r);
    if (r->values++ == r->limits->values_max) {
        return FAIL(r->e, ST_ERR_LIMIT, "byte %zu: more than %d values", r->at, r->limits->values_max);
    }
    int c = peek(r);
    if (c == '{' || c == '[') {
        return read_container(r, c == '{', out);
    }
    if (c == '"') {
        TRY(read_text(r));
        *out = cJSON_CreateString((const char *)r->scratch.data);
        return *out != NULL ? ST_OK : no_memory(r);
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        return read_number(r, out);
    }
    return read_word(r, out);
}
/* NOLINTEND(misc-no-recursion) */

/* Where the first ill-formed sequence starts. */
static size_t utf8_fault(const uint8_t *text, size_t bytes)
{
    size_t at = 0, n;
    uint32_t c;
    while (at < bytes && (n = base_utf8_next(text + at, bytes - at, &c)) > 0) {
        at += n;
    }
    return at;
}

status json_parse(const void *text, size_t bytes, const json_limits *limits, cJSON **out, err *e)
{
    reader r = {.text = text, .bytes = bytes, .limits = limits, .e = e};
    r.scratch.max = bytes + 1;
    if (bytes > limits->bytes_max) {
        return FAIL(e, ST_ERR_LIMIT, "%zu bytes of JSON, at most %zu are read", bytes, limits->bytes_max);
    }
    if (!base_utf8_valid(text, bytes)) {
        return FAIL(e, ST_ERR_FORMAT, "byte %zu: not UTF-8", utf8_fault(text, bytes));
    }
    cJSON *root = NULL;
    status st = read_value(&r, &root);
    if (st == ST_OK) {
        skip_blanks(&r);
        if (r.at != bytes) {
            st = malformed(&r, "text after the end of the value");
        }
    }
    base_buf_free(&r.scratch);
    if (st != ST_OK) {
        cJSON_Delete(root);
        return st;
    }
    *out = root;
    return ST_OK;
}
