/*
 * Text to ids: ill-formed UTF-8 repaired, special tokens cut out where they are allowed, the stretches between them
 * handed to the pre-tokenizer as one string each, whatever their marks.
 */
#include <inttypes.h>
#include <string.h>

#include "agent/tokenizer_parts_internal.h"
#include "agent/unicode_internal.h"

enum { TEXT_BYTES_MAX = 64 << 20 };

static const uint8_t replacement[3] = {0xef, 0xbf, 0xbd}; /* U+FFFD */

void token_list_free(token_list *t)
{
    base_free(t->ids);
    *t = (token_list){0};
}

status token_list_push(token_list *t, int32_t id)
{
    if (t->n == t->cap) {
        void *ids = t->ids;
        TRY(base_grow(&ids, &t->cap, t->n + 1, (size_t)4 * TEXT_BYTES_MAX, sizeof *t->ids));
        t->ids = ids;
    }
    t->ids[t->n++] = id;
    return ST_OK;
}

void marked_text_init(marked_text *m)
{
    *m = (marked_text){.text.max = TEXT_BYTES_MAX, .is_template.max = TEXT_BYTES_MAX};
}

void marked_text_free(marked_text *m)
{
    base_buf_free(&m->text);
    base_buf_free(&m->is_template);
}

status marked_text_add(marked_text *m, const char *text, size_t bytes, bool is_template)
{
    if (bytes == 0) {
        return ST_OK;
    }
    TRY(base_buf_reserve(&m->is_template, bytes)); /* first both reserves, so that neither grows alone */
    TRY(base_buf_append(&m->text, text, bytes));
    memset(m->is_template.data + m->is_template.size, is_template, bytes);
    m->is_template.size += bytes;
    return ST_OK;
}

/* The text being encoded: well-formed, marks or NULL. */
typedef struct input {
    const uint8_t *text, *marks;
    size_t bytes;
    bool parse_special; /* without marks: everywhere */
} input;

/* Replaces ill-formed sequences by U+FFFD; a replacement takes the mark of the first byte it replaces. */
static status repair(input *in, base_buf *text, base_buf *marks)
{
    if (base_utf8_valid(in->text, in->bytes)) {
        return ST_OK;
    }
    text->max = marks->max = (size_t)3 * TEXT_BYTES_MAX; /* one byte becomes three at most */
    size_t at = 0;
    while (at < in->bytes) {
        uint32_t c;
        size_t n = base_utf8_next(in->text + at, in->bytes - at, &c);
        const uint8_t *from = n > 0 ? in->text + at : replacement;
        size_t length = n > 0 ? n : sizeof replacement;
        TRY(base_buf_append(text, from, length));
        if (in->marks != NULL) {
            TRY(base_buf_reserve(marks, length));
            memset(marks->data + marks->size, in->marks[at], length);
            marks->size += length;
        }
        at += n > 0 ? n : unicode_ill_formed_bytes(in->text + at, in->bytes - at);
    }
    in->text = text->data;
    in->bytes = text->size;
    in->marks = in->marks == NULL ? NULL : marks->data;
    return ST_OK;
}

static bool is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Names the character that holds byte `at`, counted from the start of the run of equal marks it is in. */
static status refuse(const input *in, size_t at, err *e)
{
    while (at > 0 && is_continuation(in->text[at])) {
        at--;
    }
    uint32_t code_point = 0;
    (void)base_utf8_next(in->text + at, in->bytes - at, &code_point);
    size_t index = 0;
    for (size_t i = at; i > 0 && (in->marks == NULL || in->marks[i - 1] == in->marks[at]); i--) {
        index += is_continuation(in->text[i - 1]) ? 0 : 1;
    }
    return FAIL(e, ST_ERR_UNENCODABLE, "U+%04" PRIX32 " at character %zu cannot be encoded by this model",
            code_point, index);
}

static status check_stretch(const tokenizer *t, const input *in, size_t from, size_t to, err *e)
{
    if (t->bytes_missing == 0) {
        return ST_OK;
    }
    for (size_t i = from; i < to; i++) {
        if (t->byte_ids[in->text[i]] < 0) {
            return refuse(in, i, e);
        }
    }
    return ST_OK;
}

static status encode_stretch(
        const tokenizer *t, bpe_work *w, const input *in, size_t from, size_t to, token_list *out, err *e)
{
    TRY(check_stretch(t, in, from, to, e));
    while (from < to) {
        size_t n = pretokenizer_next(t->rule, in->text + from, to - from);
        status s = bpe_encode(t, w, in->text + from, n, out);
        if (s != ST_OK) {
            return FAIL(e, s,
                    s == ST_ERR_LIMIT ? "a word of %zu bytes is too long"
                                      : "no memory for a word of %zu bytes",
                    n);
        }
        from += n;
    }
    return ST_OK;
}

/* The next place from `at` on where a special token is allowed to be and is; in->bytes when there is none. */
static size_t find_special(const tokenizer *t, const input *in, size_t at, size_t *length, int32_t *id)
{
    if (in->marks == NULL && !in->parse_special) {
        return in->bytes;
    }
    size_t run = at; /* a special token that starts at `at` must end by here */
    for (; at < in->bytes; at++) {
        if (!t->special_starts[in->text[at]]) {
            continue;
        }
        if (in->marks == NULL) {
            run = in->bytes;
        } else if (run <= at) { /* nothing in a message, the end of the run in the template */
            const uint8_t *end = memchr(in->marks + at, 0, in->bytes - at);
            run = end == NULL ? in->bytes : (size_t)(end - in->marks);
        }
        *id = tokenizer_special_at(t, in->text + at, run - at, length);
        if (*id >= 0) {
            return at;
        }
    }
    return in->bytes;
}

static status encode_all(const tokenizer *t, bpe_work *w, const input *in, token_list *out, err *e)
{
    size_t at = 0;
    while (at < in->bytes) {
        size_t length = 0;
        int32_t id = -1;
        size_t special = find_special(t, in, at, &length, &id);
        TRY(encode_stretch(t, w, in, at, special, out, e));
        if (id >= 0 && token_list_push(out, id) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for %zu token ids", out->n);
        }
        at = special + length;
    }
    return ST_OK;
}

static status encode(const tokenizer *t, input in, token_list *out, err *e)
{
    if (in.bytes > TEXT_BYTES_MAX) {
        return FAIL(e, ST_ERR_LIMIT, "a text of %zu bytes is over the limit of %d", in.bytes,
                (int)TEXT_BYTES_MAX);
    }
    base_buf text = {0}, marks = {0};
    bpe_work work = {0};
    size_t before = out->n;
    status s = repair(&in, &text, &marks);
    if (s != ST_OK) {
        (void)FAIL(e, s, "no memory to repair %zu bytes of ill-formed UTF-8", in.bytes);
    } else {
        s = encode_all(t, &work, &in, out, e);
    }
    if (s != ST_OK) {
        out->n = before;
    }
    bpe_work_free(&work);
    base_buf_free(&text);
    base_buf_free(&marks);
    return s;
}

status tokenizer_encode(
        const tokenizer *t, const void *text, size_t bytes, bool parse_special, token_list *out, err *e)
{
    return encode(t, (input){.text = text, .bytes = bytes, .parse_special = parse_special}, out, e);
}

status tokenizer_encode_marked(const tokenizer *t, const marked_text *m, token_list *out, err *e)
{
    REQUIRE(m->text.size == m->is_template.size);
    return encode(
            t, (input){.text = m->text.data, .marks = m->is_template.data, .bytes = m->text.size}, out, e);
}

status tokenizer_check(const tokenizer *t, const void *text, size_t bytes, err *e)
{
    /* U+FFFD, which an ill-formed sequence becomes, has to be spelled as well; without it the repair is not needed. */
    input in = {.text = text, .bytes = bytes};
    base_buf repaired = {0}, marks = {0};
    if (t->bytes_missing == 0) {
        return ST_OK;
    }
    status s = bytes > TEXT_BYTES_MAX ? ST_ERR_LIMIT : repair(&in, &repaired, &marks);
    s = s == ST_OK ? check_stretch(t, &in, 0, in.bytes, e)
                   : FAIL(e, s, "cannot check a text of %zu bytes", bytes);
    base_buf_free(&repaired);
    base_buf_free(&marks);
    return s;
}
