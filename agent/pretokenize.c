/*
 * The four pre-tokenizer rules as explicit scanners. Each is defined by a regular expression whose alternatives are tried
 * in order at the end of the last piece; the scanners do the same without a regex engine, in one pass.
 *
 * gpt-2      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * smollm     every \p{N} character alone, then gpt-2 inside each stretch between them
 * llama-bpe  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+
 *            |\s+(?!\S)|\s+
 * qwen2      as llama-bpe with \p{N} instead of \p{N}{1,3}
 *
 * \s+(?!\S): a run of spaces leaves its last one to the word behind it. In smollm the look-ahead ends at a numeric
 * character, since the pattern runs inside the stretch: "a   b" is "a", "  ", " b" but "a   5" is "a", "   ", "5".
 */
#include <string.h>

#include "agent/tokenizer_parts_internal.h"
#include "agent/unicode_internal.h"

static const struct {
    const char *name;
    pretokenizer rule;
} names[] = {
        {"smollm", PRETOKENIZER_SMOLLM},
        {"gpt-2", PRETOKENIZER_GPT2},
        {"llama-bpe", PRETOKENIZER_LLAMA_BPE},
        {"qwen2", PRETOKENIZER_QWEN2},
};

bool pretokenizer_find(const char *name, size_t bytes, pretokenizer *out)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i].name) == bytes && memcmp(names[i].name, name, bytes) == 0) {
            *out = names[i].rule;
            return true;
        }
    }
    return false;
}

const char *pretokenizer_name(pretokenizer p)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].rule == p) {
            return names[i].name;
        }
    }
    return "";
}

/* Length and class of the character at s; length 0 at the end, with a class that is no run's. */
static size_t peek(const uint8_t *s, size_t n, unicode_class *class)
{
    uint32_t c = 0;
    size_t length = base_utf8_next(s, n, &c);
    REQUIRE(length > 0 || n == 0);
    *class = length > 0 ? unicode_class_of(c) : UNICODE_SPACE;
    return length;
}

/* End of the run of characters of one class that starts at `at`. */
static size_t run_end(const uint8_t *s, size_t n, size_t at, unicode_class wanted)
{
    unicode_class class;
    size_t length;
    while ((length = peek(s + at, n - at, &class)) > 0 && class == wanted) {
        at += length;
    }
    return at;
}

static bool is_newline(uint8_t c)
{
    return c == '\r' || c == '\n';
}

/* 's 't 're 've 'm 'll 'd. With any_case also their capitals and U+017F, whose case folding is s. */
static size_t contraction(const uint8_t *s, size_t n, bool any_case)
{
    if (n < 2 || s[0] != '\'') {
        return 0;
    }
    if (any_case && n >= 3 && s[1] == 0xc5 && s[2] == 0xbf) {
        return 3;
    }
    uint8_t fold = any_case
            ? 0x20
            : 0; /* folds ASCII letters; what is no letter does not become one of those below */
    uint8_t first = (uint8_t)(s[1] | fold), second = n > 2 ? (uint8_t)(s[2] | fold) : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') {
        return 2;
    }
    bool two = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return two ? 3 : 0;
}

/* A run of white space: its end, the start of its last character, the end of its last newline (0: none). */
typedef struct space_run {
    size_t end, last, newline_end;
} space_run;

static space_run spaces(const uint8_t *s, size_t n)
{
    space_run r = {0};
    unicode_class class;
    size_t length;
    while ((length = peek(s + r.end, n - r.end, &class)) > 0 && class == UNICODE_SPACE) {
        r.last = r.end;
        r.end += length;
        if (is_newline(s[r.last])) {
            r.newline_end = r.end;
        }
    }
    return r;
}

/* \s+(?!\S)|\s+ */
static size_t spaces_before_word(space_run r, bool text_ends)
{
    return text_ends || r.last == 0 ? r.end : r.last;
}

/* gpt-2, and smollm when each number stands alone. */
static size_t next_gpt2(const uint8_t *s, size_t n, bool numbers_alone)
{
    size_t length = contraction(s, n, false);
    if (length > 0) {
        return length;
    }
    unicode_class class, second;
    size_t lead = 0;
    length = peek(s, n, &class);
    if (s[0] == ' ' && peek(s + 1, n - 1, &second) > 0 && !(numbers_alone && second == UNICODE_NUMBER)) {
        lead = second == UNICODE_SPACE ? 0 : 1;
        class = second;
    }
    if (class == UNICODE_NUMBER && numbers_alone) {
        return length;
    }
    if (class != UNICODE_SPACE) {
        return run_end(s, n, lead, class);
    }
    space_run r = spaces(s, n);
    unicode_class behind;
    bool text_ends = peek(s + r.end, n - r.end, &behind) == 0 || (numbers_alone && behind == UNICODE_NUMBER);
    return spaces_before_word(r, text_ends);
}

static size_t next_llama3(const uint8_t *s, size_t n, int digits_max)
{
    size_t length = contraction(s, n, true);
    if (length > 0) {
        return length;
    }
    unicode_class class, second;
    length = peek(s, n, &class);
    if (class == UNICODE_LETTER) {
        return run_end(s, n, length, UNICODE_LETTER);
    }
    if (class == UNICODE_NUMBER) {
        size_t at = length;
        for (int i = 1;
                i < digits_max && (length = peek(s + at, n - at, &second)) > 0 && second == UNICODE_NUMBER;
                i++) {
            at += length;
        }
        return at;
    }
    bool followed = peek(s + length, n - length, &second) > 0;
    if (followed && second == UNICODE_LETTER && !is_newline(s[0])) {
        return run_end(s, n, length, UNICODE_LETTER);
    }
    if (class == UNICODE_OTHER || (s[0] == ' ' && followed && second == UNICODE_OTHER)) {
        size_t at = run_end(s, n, s[0] == ' ' ? 1 : 0, UNICODE_OTHER);
        while (at < n && is_newline(s[at])) {
            at++;
        }
        return at;
    }
    space_run r = spaces(s, n);
    return r.newline_end > 0 ? r.newline_end : spaces_before_word(r, r.end == n);
}

size_t pretokenizer_next(pretokenizer p, const uint8_t *text, size_t bytes)
{
    switch (p) {
    case PRETOKENIZER_SMOLLM:
        return next_gpt2(text, bytes, true);
    case PRETOKENIZER_GPT2:
        return next_gpt2(text, bytes, false);
    case PRETOKENIZER_LLAMA_BPE:
        return next_llama3(text, bytes, 3);
    case PRETOKENIZER_QWEN2:
        return next_llama3(text, bytes, 1);
    }
    return bytes;
}
