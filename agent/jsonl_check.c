/* The strict JSON grammar (RFC 8259) over bytes that have been checked to be UTF-8. Nothing is built: a cursor walks,
 * with the open brackets kept in a fixed array, so depth costs no stack. */
#include "agent/jsonl_internal.h"

#include <string.h>

typedef struct cursor {
    const char *text;
    size_t at, bytes;
    err *e;
} cursor;

static status wrong(const cursor *c, const char *what)
{
    return FAIL(c->e, ST_ERR_FORMAT, "not valid JSON at byte %zu: %s", c->at, what);
}

static void skip_space(cursor *c)
{
    while (c->at < c->bytes && c->text[c->at] != '\0' && strchr(" \t\n\r", c->text[c->at]) != NULL) {
        c->at++;
    }
}

static bool is_at(const cursor *c, char wanted)
{
    return c->at < c->bytes && c->text[c->at] == wanted;
}

static bool is_digit_at(const cursor *c)
{
    return c->at < c->bytes && c->text[c->at] >= '0' && c->text[c->at] <= '9';
}

static bool hex4(const cursor *c, size_t at, unsigned *out)
{
    unsigned value = 0;
    if (at + 4 > c->bytes) {
        return false;
    }
    for (size_t i = at; i < at + 4; i++) {
        char h = c->text[i];
        unsigned digit;
        if (h >= '0' && h <= '9') {
            digit = (unsigned)(h - '0');
        } else if (h >= 'a' && h <= 'f') {
            digit = (unsigned)(h - 'a') + 10;
        } else if (h >= 'A' && h <= 'F') {
            digit = (unsigned)(h - 'A') + 10;
        } else {
            return false;
        }
        value = value * 16 + digit;
    }
    *out = value;
    return true;
}

/* The cursor is at the 'u' of an escape. */
static status unicode_escape(cursor *c)
{
    unsigned unit;
    unsigned low;
    if (!hex4(c, c->at + 1, &unit)) {
        return wrong(c, "\\u needs four hex digits");
    }
    if (unit == 0) {
        return wrong(c, "\\u0000 is not taken in text (send the bytes as \"b64\")");
    }
    if (unit >= 0xdc00 && unit <= 0xdfff) {
        return wrong(c, "second half of a surrogate pair without the first");
    }
    c->at += 5;
    if (unit >= 0xd800 && unit <= 0xdbff) {
        bool paired = is_at(c, '\\') && c->at + 1 < c->bytes && c->text[c->at + 1] == 'u' &&
                hex4(c, c->at + 2, &low) && low >= 0xdc00 && low <= 0xdfff;
        if (!paired) {
            return wrong(c, "first half of a surrogate pair without the second");
        }
        c->at += 6;
    }
    return ST_OK;
}

static status check_string(cursor *c)
{
    c->at++;
    while (c->at < c->bytes) {
        unsigned char b = (unsigned char)c->text[c->at];
        if (b == '"') {
            c->at++;
            return ST_OK;
        }
        if (b < 0x20) {
            return wrong(c, "control character in a string");
        }
        c->at++;
        if (b != '\\') {
            continue;
        }
        if (is_at(c, 'u')) {
            TRY(unicode_escape(c));
        } else if (c->at < c->bytes && c->text[c->at] != '\0' &&
                strchr("\"\\/bfnrt", c->text[c->at]) != NULL) {
            c->at++;
        } else {
            return wrong(c, "unknown escape");
        }
    }
    return wrong(c, "string without an end");
}

static status check_number(cursor *c)
{
    if (is_at(c, '-')) {
        c->at++;
    }
    if (!is_digit_at(c)) {
        return wrong(c, "a value was expected");
    }
    if (is_at(c, '0')) {
        c->at++;
    } else {
        while (is_digit_at(c)) {
            c->at++;
        }
    }
    if (is_at(c, '.')) {
        c->at++;
        if (!is_digit_at(c)) {
            return wrong(c, "digits were expected after the point");
        }
        while (is_digit_at(c)) {
            c->at++;
        }
    }
    if (is_at(c, 'e') || is_at(c, 'E')) {
        c->at++;
        if (is_at(c, '+') || is_at(c, '-')) {
            c->at++;
        }
        if (!is_digit_at(c)) {
            return wrong(c, "digits were expected in the exponent");
        }
        while (is_digit_at(c)) {
            c->at++;
        }
    }
    return ST_OK;
}

static status check_scalar(cursor *c)
{
    static const char *const words[] = {"true", "false", "null"};
    if (is_at(c, '"')) {
        return check_string(c);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (c->bytes - c->at >= n && memcmp(c->text + c->at, words[i], n) == 0) {
            c->at += n;
            return ST_OK;
        }
    }
    return check_number(c);
}

static status check_name(cursor *c)
{
    skip_space(c);
    if (!is_at(c, '"')) {
        return wrong(c, "a member name in quotes was expected");
    }
    TRY(check_string(c));
    skip_space(c);
    if (!is_at(c, ':')) {
        return wrong(c, "':' was expected after a member name");
    }
    c->at++;
    return ST_OK;
}

/* After a value: closes what ends here. Leaves the cursor where the next value starts, or *depth at 0. */
static status after_value(cursor *c, const char *closing, int *depth)
{
    while (*depth > 0) {
        skip_space(c);
        if (is_at(c, closing[*depth - 1])) {
            c->at++;
            --*depth;
        } else if (is_at(c, ',')) {
            c->at++;
            return closing[*depth - 1] == '}' ? check_name(c) : ST_OK;
        } else {
            return wrong(c,
                    c->at == c->bytes ? "the line ends inside a value"
                                      : "',' or a closing bracket was expected");
        }
    }
    return ST_OK;
}

status jsonl_check(const char *text, size_t bytes, err *e)
{
    cursor c = {.text = text, .bytes = bytes, .e = e};
    char closing[JSONL_DEPTH_MAX];
    int depth = 0;
    if (!base_utf8_valid(text, bytes)) {
        return FAIL(e, ST_ERR_FORMAT, "not valid JSON: the line is not UTF-8");
    }
    do {
        skip_space(&c);
        if (is_at(&c, '{') || is_at(&c, '[')) {
            bool is_object = is_at(&c, '{');
            if (depth == JSONL_DEPTH_MAX) {
                return wrong(&c, "nested deeper than 64");
            }
            closing[depth++] = is_object ? '}' : ']';
            c.at++;
            skip_space(&c);
            if (!is_at(&c, closing[depth - 1])) {
                if (is_object) {
                    TRY(check_name(&c));
                }
                continue;
            }
        } else {
            TRY(check_scalar(&c));
        }
        TRY(after_value(&c, closing, &depth));
    } while (depth > 0);
    skip_space(&c);
    return c.at == bytes ? ST_OK : wrong(&c, "nothing was expected after the value");
}
