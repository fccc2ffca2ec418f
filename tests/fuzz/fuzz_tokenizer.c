/*
 * Tokenizer and chat templates on arbitrary bytes. The first byte chooses:
 *   0 to 3 (mod 8)  text through a fixed vocabulary that has all bytes, with that rule: nothing is lost, marks as promised
 *   4 to 6          a vocabulary from the input (tokens, merges, text; parted by 0xFF, entries by newlines)
 *   7               a Jinja text, then messages: chunks concatenate
 */
#include <string.h>

#include "agent/tokenizer_parts_internal.h"
#include "agent/unicode_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ENTRIES_MAX = 512 };

/* ---- a vocabulary with every byte, some merges, some special tokens ---- */

typedef struct fixed {
    char text[256][3];
    gguf_string tokens[256 + 16];
    int32_t types[256 + 16];
    size_t n;
} fixed;

static void add(fixed *f, const char *text, int32_t type)
{
    f->tokens[f->n] = (gguf_string){.data = text, .bytes = strlen(text)};
    f->types[f->n++] = type;
}

static tokenizer *build_fixed(pretokenizer rule)
{
    static const char *const words[] = {"ab", "abc",
            ("\xc4\xa0"
             "a"),
            "\xc4\xa0\xc4\xa0", "aa", "aaaa", "11", "\xc4\x8a\xc4\x8a"};
    const gguf_string merges[] = {{"a b", 3}, {"ab c", 4}, {"\xc4\xa0 a", 4}, {"\xc4\xa0 \xc4\xa0", 5},
            {"a a", 3}, {"aa aa", 5}, {"1 1", 3}, {"\xc4\x8a \xc4\x8a", 5}};
    fixed f = {.n = 0};
    int other = 0x100;
    tokenizer *t = NULL;
    for (int b = 0; b < 256; b++) { /* GPT-2's alphabet, written out a second time on purpose */
        int c = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++;
        f.text[b][0] = (char)(c < 0x80 ? c : 0xc0 | c >> 6);
        f.text[b][1] = (char)(c < 0x80 ? 0 : 0x80 | (c & 0x3f));
        add(&f, f.text[b], TOKEN_NORMAL);
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        add(&f, words[i], TOKEN_NORMAL);
    }
    add(&f, "<s>", TOKEN_CONTROL);
    add(&f, "<s><s", TOKEN_CONTROL);
    add(&f, "aab", TOKEN_USER_DEFINED);
    tokenizer_source s = {.name = "fixed",
            .rule = rule,
            .tokens = f.tokens,
            .n_tokens = f.n,
            .types = f.types,
            .merges = merges,
            .n_merges = sizeof merges / sizeof merges[0],
            .bos = 0,
            .eos = -1,
            .eot = -1,
            .eom = -1};
    REQUIRE(tokenizer_build(&s, &t, NULL) == ST_OK && t->bytes_missing == 0);
    return t;
}

/* The pieces of the ids are the text, each ill-formed sequence replaced by U+FFFD. */
static void require_lossless(const tokenizer *t, const token_list *ids, const uint8_t *text, size_t bytes)
{
    base_buf got = {.max = 1 << 24}, wanted = {.max = 1 << 24};
    for (size_t i = 0; i < ids->n; i++) {
        const char *piece;
        size_t n;
        tokenizer_piece(t, ids->ids[i], &piece, &n);
        REQUIRE(base_buf_append(&got, piece, n) == ST_OK);
    }
    for (size_t at = 0; at < bytes;) {
        uint32_t c;
        size_t n = base_utf8_next(text + at, bytes - at, &c),
               bad = n > 0 ? 0 : unicode_ill_formed_bytes(text + at, bytes - at);
        REQUIRE(base_buf_append(&wanted, n > 0 ? (const char *)text + at : "\xef\xbf\xbd", n > 0 ? n : 3) ==
                ST_OK);
        at += n + bad;
    }
    REQUIRE(got.size == wanted.size && (got.size == 0 || memcmp(got.data, wanted.data, got.size) == 0));
    base_buf_free(&got);
    base_buf_free(&wanted);
}

static bool equal(const token_list *a, const token_list *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static void encode_fixed(pretokenizer rule, const uint8_t *text, size_t bytes)
{
    tokenizer *t = build_fixed(rule);
    token_list plain = {0}, special = {0}, message = {0}, template = {0}, mixed = {0};
    marked_text m[3];
    size_t cut = bytes > 0 ? text[0] % (bytes + 1) : 0;
    const char *s = (const char *)text;
    for (int i = 0; i < 3; i++) {
        marked_text_init(&m[i]);
        REQUIRE(marked_text_add(&m[i], s, cut, i >= 1) == ST_OK);
        REQUIRE(marked_text_add(&m[i], bytes > 0 ? s + cut : s, bytes - cut, i == 1) == ST_OK);
    }
    REQUIRE(tokenizer_encode(t, text, bytes, false, &plain, NULL) == ST_OK);
    REQUIRE(tokenizer_encode(t, text, bytes, true, &special, NULL) == ST_OK);
    REQUIRE(tokenizer_encode_marked(t, &m[0], &message, NULL) == ST_OK);
    REQUIRE(tokenizer_encode_marked(t, &m[1], &template, NULL) == ST_OK);
    REQUIRE(tokenizer_encode_marked(t, &m[2], &mixed, NULL) == ST_OK);
    REQUIRE(equal(&plain, &message) && equal(&special, &template));
    for (size_t i = 0; i < plain.n; i++) {
        REQUIRE(!tokenizer_is_special(t, plain.ids[i]));
    }
    require_lossless(t, &plain, text, bytes);
    require_lossless(t, &special, text, bytes);
    require_lossless(t, &mixed, text, bytes);
    token_list *lists[] = {&plain, &special, &message, &template, &mixed};
    for (int i = 0; i < 5; i++) {
        token_list_free(lists[i]);
    }
    for (int i = 0; i < 3; i++) {
        marked_text_free(&m[i]);
    }
    tokenizer_close(t);
}

/* ---- a vocabulary from the input ---- */

typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

/* The bytes up to 0xFF, which is taken off. */
static cursor next_part(cursor *c)
{
    const uint8_t *end = c->left == 0 ? NULL : memchr(c->at, 0xff, c->left);
    cursor part = {.at = c->at, .left = end == NULL ? c->left : (size_t)(end - c->at)};
    size_t used = part.left + (end == NULL ? 0 : 1);
    c->at += used;
    c->left -= used;
    return part;
}

static size_t entries(cursor c, gguf_string out[ENTRIES_MAX])
{
    size_t n = 0;
    while (c.left > 0 && n < ENTRIES_MAX) {
        const uint8_t *end = memchr(c.at, '\n', c.left);
        size_t bytes = end == NULL ? c.left : (size_t)(end - c.at), used = bytes + (end == NULL ? 0 : 1);
        out[n++] = (gguf_string){.data = (const char *)c.at, .bytes = bytes};
        c.at += used;
        c.left -= used;
    }
    return n;
}

static void encode_with_any_vocabulary(uint8_t choice, cursor c)
{
    gguf_string tokens[ENTRIES_MAX], merges[ENTRIES_MAX];
    int32_t types[ENTRIES_MAX];
    size_t n = entries(next_part(&c), tokens), n_merges = entries(next_part(&c), merges);
    tokenizer *t = NULL;
    token_list ids = {0};
    err e = {0};
    for (size_t i = 0; i < n; i++) {
        types[i] = tokens[i].bytes > 2 && tokens[i].data[0] == '<' ? tokens[i].data[1] % 9 - 1 : TOKEN_NORMAL;
    }
    tokenizer_source s = {.name = "input",
            .rule = (pretokenizer)(choice >> 3 & 3),
            .tokens = tokens,
            .n_tokens = n,
            .types = choice & 0x80 ? NULL : types,
            .merges = merges,
            .n_merges = n_merges,
            .bos = choice >> 5,
            .eos = (int64_t)n - 1,
            .eot = -1,
            .eom = 0,
            .adds_bos = true};
    status built = tokenizer_build(&s, &t, &e);
    REQUIRE(built == ST_OK || (built == ST_ERR_FORMAT && t == NULL && e.text[0] != '\0'));
    if (built == ST_OK) {
        status checked = tokenizer_check(t, c.at, c.left, &e);
        status encoded = tokenizer_encode(t, c.at, c.left, false, &ids, &e);
        REQUIRE(checked == encoded && (encoded == ST_OK || encoded == ST_ERR_UNENCODABLE));
        for (size_t i = 0; i < ids.n; i++) {
            REQUIRE(!tokenizer_is_special(t, ids.ids[i]));
        }
        REQUIRE(encoded == ST_OK || ids.n == 0);
        (void)tokenizer_encode(t, c.at, c.left, true, &ids, &e);
    }
    token_list_free(&ids);
    tokenizer_close(t);
}

/* ---- templates ---- */

static void render(cursor c)
{
    static const char *const roles[] = {"system", "user", "assistant"};
    cursor jinja = next_part(&c);
    const chat_template *t = NULL;
    chat_message m[8];
    int n = 0;
    while (c.left > 0 && n < 8) {
        cursor content = next_part(&c);
        const char *role = roles[content.left > 0 ? content.at[0] % 3 : 1];
        m[n++] = (chat_message){
                .role = role, .content = (const char *)content.at, .content_bytes = content.left};
    }
    status s = chat_template_build(NULL, (const char *)jinja.at, jinja.left, "<s>", "</s>", &t, NULL);
    REQUIRE(s == ST_OK || s == ST_ERR_UNSUPPORTED || s == ST_ERR_LIMIT);
    for (int cut = 1; s == ST_OK && cut <= n; cut++) {
        marked_text whole, chunks;
        marked_text_init(&whole);
        marked_text_init(&chunks);
        REQUIRE(chat_template_render(t, m, n, true, true, &whole, NULL) == ST_OK);
        REQUIRE(chat_template_render(t, m, cut, true, false, &chunks, NULL) == ST_OK);
        REQUIRE(chat_template_extend(t, m[cut - 1].role, m + cut, n - cut, true, &chunks, NULL) == ST_OK);
        REQUIRE(whole.text.size == chunks.text.size);
        REQUIRE(whole.text.size == 0 ||
                (memcmp(whole.text.data, chunks.text.data, whole.text.size) == 0 &&
                        memcmp(whole.is_template.data, chunks.is_template.data, whole.text.size) == 0));
        marked_text_free(&whole);
        marked_text_free(&chunks);
    }
    chat_template_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    uint8_t choice = data[0] & 7;
    if (choice <= PRETOKENIZER_QWEN2) {
        encode_fixed((pretokenizer)choice, data + 1, size - 1);
    } else if (choice < 7) {
        encode_with_any_vocabulary(data[0], (cursor){.at = data + 1, .left = size - 1});
    } else {
        render((cursor){.at = data + 1, .left = size - 1});
    }
    return 0;
}
