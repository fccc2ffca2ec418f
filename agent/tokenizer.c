/*
 * The tokenizer's vocabulary: read from a GGUF, checked, turned into tables.
 *
 * 1. Text can become normal tokens only: what special tokens spell is letters unless they are asked for, so neither a
 *    merge nor a whole piece yields one.
 * 2. "Byte-level BPE can spell everything" is not true of every vocabulary: SmolLM2's lacks 21 of the 256 bytes. They
 *    are found here; characters that need them are refused when text is encoded.
 *
 * Immutable once built; any thread.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "agent/tokenizer_parts_internal.h"

enum { VOCABULARY_MAX = 1 << 24 };

/* ---- GPT-2's alphabet: every byte as a printable character ---- */

/* Bytes that are printable in Latin-1 stand for themselves; the others, in order, are U+0100 and up. */
static bool prints_itself(int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

enum { ALPHABET_MAX = 0x100 + 68 };

static void alphabet_init(int16_t byte_of[ALPHABET_MAX])
{
    int next = 0x100;
    memset(byte_of, 0xff, ALPHABET_MAX * sizeof byte_of[0]); /* -1: no character of the alphabet */
    for (int byte = 0; byte < 256; byte++) {
        byte_of[prints_itself(byte) ? byte : next++] = (int16_t)byte;
    }
}

/* Writes the bytes that the text spells, at most as many as it has. False: it is not written in the alphabet. */
static bool alphabet_decode(const int16_t byte_of[ALPHABET_MAX], gguf_string text, uint8_t *out, size_t *n)
{
    size_t at = 0;
    *n = 0;
    while (at < text.bytes) {
        uint32_t c;
        size_t length = base_utf8_next(text.data + at, text.bytes - at, &c);
        if (length == 0 || c >= ALPHABET_MAX || byte_of[c] < 0) {
            return false;
        }
        out[(*n)++] = (uint8_t)byte_of[c];
        at += length;
    }
    return true;
}

/* ---- building ---- */

static const uint8_t *piece_of(const tokenizer *t, int32_t id, size_t *n)
{
    *n = t->offsets[id + 1] - t->offsets[id];
    return t->bytes + t->offsets[id];
}

static bool is_special_type(uint8_t type)
{
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED || type == TOKEN_UNKNOWN;
}

static status allocate(tokenizer *t, const tokenizer_source *s, err *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_tokens; i++) {
        if (!base_add(bytes, s->tokens[i].bytes, &bytes)) {
            return FAIL(e, ST_ERR_FORMAT, "%s: token texts are too long", s->name);
        }
    }
    t->types = base_zalloc(s->n_tokens, sizeof *t->types);
    t->offsets = base_zalloc(s->n_tokens + 1, sizeof *t->offsets);
    t->bytes = base_zalloc((size_t)bytes + 1, 1);
    t->specials = base_zalloc(s->n_tokens, sizeof *t->specials);
    if (t->types == NULL || t->offsets == NULL || t->bytes == NULL || t->specials == NULL ||
            string_table_init(&t->words, s->n_tokens) != ST_OK ||
            merge_table_init(&t->merges, s->n_merges) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "%s: no memory for a vocabulary of %zu tokens and %zu merges", s->name,
                s->n_tokens, s->n_merges);
    }
    return ST_OK;
}

/* Pieces, types, and the table of what text can become. */
static void add_tokens(tokenizer *t, const tokenizer_source *s, const int16_t byte_of[ALPHABET_MAX])
{
    size_t used = 0;
    for (size_t i = 0; i < s->n_tokens; i++) {
        int32_t type = s->types == NULL ? TOKEN_NORMAL : s->types[i];
        gguf_string text = s->tokens[i];
        size_t n = 0;
        t->types[i] = (uint8_t)(type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? type : TOKEN_UNUSED);
        bool spelled = t->types[i] == TOKEN_NORMAL && alphabet_decode(byte_of, text, t->bytes + used, &n);
        if (!spelled &&
                text.bytes > 0) { /* special tokens, and padding that no text can become: as written */
            n = text.bytes;
            memcpy(t->bytes + used, text.data, n);
        }
        if (spelled && n > 0) {
            string_table_add(&t->words, t->bytes + used, n, (int32_t)i);
        }
        used += n;
        t->offsets[i + 1] = used;
    }
    for (int byte = 0; byte < 256; byte++) {
        uint8_t one = (uint8_t)byte;
        t->byte_ids[byte] = string_table_find(&t->words, &one, 1);
        t->bytes_missing += t->byte_ids[byte] < 0 ? 1 : 0;
    }
}

static int compare_specials(const void *a, const void *b)
{
    const special_token *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order != 0) {
        return order;
    }
    if (x->n != y->n) {
        return x->n < y->n ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static void add_specials(tokenizer *t)
{
    for (int32_t id = 0; id < t->n; id++) {
        special_token s = {.id = id};
        s.bytes = piece_of(t, id, &s.n);
        if (is_special_type(t->types[id]) && s.n > 0) {
            t->specials[t->n_specials++] = s;
            t->special_starts[s.bytes[0]] = true;
        }
    }
    qsort(t->specials, t->n_specials, sizeof *t->specials, compare_specials);
}

/* Splits "left right" at its first space behind the first byte; the alphabet holds no space. */
static bool split_merge(gguf_string merge, gguf_string *left, gguf_string *right)
{
    const char *space = merge.bytes < 3 ? NULL : memchr(merge.data + 1, ' ', merge.bytes - 2);
    if (space == NULL) {
        return false;
    }
    *left = (gguf_string){.data = merge.data, .bytes = (size_t)(space - merge.data)};
    *right = (gguf_string){.data = space + 1, .bytes = merge.bytes - left->bytes - 1};
    return true;
}

/* `scratch` has room for the longest merge. A merge whose outcome is a special token is left out (rule 1). */
static status add_merge(tokenizer *t,
        const tokenizer_source *s,
        const int16_t byte_of[ALPHABET_MAX],
        size_t rank,
        uint8_t *scratch,
        err *e)
{
    gguf_string left, right;
    size_t a = 0, b = 0;
    if (!split_merge(s->merges[rank], &left, &right) || !alphabet_decode(byte_of, left, scratch, &a) ||
            !alphabet_decode(byte_of, right, scratch + a, &b)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: merge %zu is not two tokens of the byte alphabet", s->name, rank);
    }
    int32_t left_id = string_table_find(&t->words, scratch, a),
            right_id = string_table_find(&t->words, scratch + a, b);
    int32_t result = string_table_find(&t->words, scratch, a + b);
    if (left_id >= 0 && right_id >= 0 && result >= 0) {
        merge_table_add(&t->merges, left_id, right_id, (uint32_t)rank, result);
        return ST_OK;
    }
    size_t length;
    if (result < 0 && tokenizer_special_at(t, scratch, a + b, &length) >= 0 && length == a + b) {
        return ST_OK;
    }
    return FAIL(e, ST_ERR_FORMAT, "%s: merge %zu names a token that the vocabulary lacks", s->name, rank);
}

static status add_merges(tokenizer *t, const tokenizer_source *s, const int16_t byte_of[ALPHABET_MAX], err *e)
{
    size_t longest = 0;
    for (size_t i = 0; i < s->n_merges; i++) {
        longest = s->merges[i].bytes > longest ? s->merges[i].bytes : longest;
    }
    uint8_t *scratch = base_alloc(longest + 1);
    if (scratch == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: no memory for a merge of %zu bytes", s->name, longest);
    }
    status result = ST_OK;
    for (size_t i = 0; i < s->n_merges && result == ST_OK; i++) {
        result = add_merge(t, s, byte_of, i, scratch, e);
    }
    base_free(scratch);
    return result;
}

/* ---- ends of a turn ---- */

static void add_end(tokenizer *t, int64_t id)
{
    if (id >= 0 && t->n_ends < TOKENIZER_ENDS_MAX && !tokenizer_is_end(t, (int32_t)id)) {
        t->ends[t->n_ends++] = (int32_t)id;
    }
}

/* Model files often name one end token of several, so the well-known names count as well. */
static void add_ends(tokenizer *t, const tokenizer_source *s)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
            "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>"};
    add_end(t, s->eos);
    add_end(t, s->eot);
    add_end(t, s->eom);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        add_end(t, tokenizer_special_id(t, names[i]));
    }
}

/* ---- fingerprint ---- */

static uint64_t fingerprint(const tokenizer *t)
{
    /* Touches what a rule or a Unicode table can do differently: digits, spaces, case, scripts, marks, symbols. */
    static const char probe[] =
            "I'd say: it's 1980's   5\tTHEY'LL\r\n\r\n  \xc2\xbd cup, na\xc3\xafve cafe\xcc\x81 "
            "\xe4\xbd\xa0\xe5\xa5\xbd \xd9\xa3 \xe2\x80\x83x \xf0\x9f\x98\x80!!! <|im_end|>  ";
    XXH64_hash_t h = XXH3_64bits(pretokenizer_name(t->rule), strlen(pretokenizer_name(t->rule)));
    h = XXH3_64bits_withSeed(t->types, (size_t)t->n, h);
    h = XXH3_64bits_withSeed(t->offsets, ((size_t)t->n + 1) * sizeof *t->offsets, h);
    h = XXH3_64bits_withSeed(t->bytes, t->offsets[t->n], h);
    h = XXH3_64bits_withSeed(t->merges.slots, t->merges.n_slots * sizeof *t->merges.slots, h);
    int32_t marks[4] = {t->bos, t->eos, t->adds_bos, t->whole_pieces};
    h = XXH3_64bits_withSeed(marks, sizeof marks, h);
    token_list ids = {0};
    status s = tokenizer_encode(
            t, probe, sizeof probe - 1, true, &ids, NULL); /* a small vocabulary may refuse it */
    h = s == ST_OK ? XXH3_64bits_withSeed(ids.ids, ids.n * sizeof *ids.ids, h) : h;
    token_list_free(&ids);
    return h;
}

static status check_id(const tokenizer_source *s, const char *what, int64_t id, err *e)
{
    if (id >= (int64_t)s->n_tokens) {
        return FAIL(e, ST_ERR_FORMAT, "%s: %s token %" PRId64 " is outside the vocabulary of %zu", s->name,
                what, id, s->n_tokens);
    }
    return ST_OK;
}

static status build(tokenizer *t, const tokenizer_source *s, err *e)
{
    int16_t byte_of[ALPHABET_MAX];
    if (s->n_tokens == 0 || s->n_tokens > VOCABULARY_MAX || s->n_merges > VOCABULARY_MAX) {
        return FAIL(e, ST_ERR_FORMAT, "%s: a vocabulary of %zu tokens and %zu merges; expected 1 to %d",
                s->name, s->n_tokens, s->n_merges, (int)VOCABULARY_MAX);
    }
    TRY(check_id(s, "bos", s->bos, e));
    TRY(check_id(s, "eos", s->eos, e));
    TRY(check_id(s, "eot", s->eot, e));
    TRY(check_id(s, "eom", s->eom, e));
    t->rule = s->rule;
    t->whole_pieces = s->rule == PRETOKENIZER_LLAMA_BPE;
    t->n = (int32_t)s->n_tokens;
    t->bos = (int32_t)s->bos;
    t->eos = (int32_t)s->eos;
    t->adds_bos = s->adds_bos && s->bos >= 0;
    TRY(allocate(t, s, e));
    alphabet_init(byte_of);
    add_tokens(t, s, byte_of);
    add_specials(t);
    TRY(add_merges(t, s, byte_of, e));
    add_ends(t, s);
    t->fingerprint = fingerprint(t);
    return ST_OK;
}

status tokenizer_build(const tokenizer_source *s, tokenizer **out, err *e)
{
    tokenizer *t = base_zalloc(1, sizeof *t);
    if (t == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a tokenizer");
    }
    status result = build(t, s, e);
    if (result != ST_OK) {
        tokenizer_close(t);
        return result;
    }
    *out = t;
    return ST_OK;
}

void tokenizer_close(tokenizer *t)
{
    if (t == NULL) {
        return;
    }
    base_free(t->types);
    base_free(t->bytes);
    base_free(t->offsets);
    base_free(t->specials);
    string_table_free(&t->words);
    merge_table_free(&t->merges);
    base_free(t);
}

/* ---- asking ---- */

int32_t tokenizer_special_at(const tokenizer *t, const uint8_t *text, size_t bytes, size_t *length)
{
    size_t low = 0, high = t->n_specials;
    int32_t best = -1;
    for (size_t k = 0; k < bytes && low < high; k++) {
        /* All of [low, high) start with text[0, k); keep those that go on with text[k]. */
        size_t from = low, to = high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            const special_token *s = &t->specials[middle];
            bool before = s->n <= k || s->bytes[k] < text[k];
            from = before ? middle + 1 : from;
            to = before ? to : middle;
        }
        low = from;
        to = high;
        while (from < to) {
            size_t middle = from + (to - from) / 2;
            bool inside = t->specials[middle].bytes[k] == text[k];
            from = inside ? middle + 1 : from;
            to = inside ? to : middle;
        }
        high = from;
        if (low < high && t->specials[low].n == k + 1) {
            best = t->specials[low].id;
            *length = k + 1;
        }
    }
    return best;
}

int32_t tokenizer_special_id(const tokenizer *t, const char *text)
{
    size_t length = 0, bytes = strlen(text);
    int32_t id = tokenizer_special_at(t, (const uint8_t *)text, bytes, &length);
    return length == bytes ? id : -1;
}

int32_t tokenizer_vocab_size(const tokenizer *t)
{
    return t->n;
}

int32_t tokenizer_bos(const tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const tokenizer *t)
{
    return t->adds_bos;
}

bool tokenizer_is_end(const tokenizer *t, int32_t id)
{
    for (int i = 0; i < t->n_ends; i++) {
        if (t->ends[i] == id) {
            return true;
        }
    }
    return false;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n && is_special_type(t->types[id]);
}

uint64_t tokenizer_fingerprint(const tokenizer *t)
{
    return t->fingerprint;
}

void tokenizer_piece(const tokenizer *t, int32_t id, const char **bytes, size_t *n)
{
    bool known = id >= 0 && id < t->n;
    *n = known ? t->offsets[id + 1] - t->offsets[id] : 0;
    *bytes = known ? (const char *)t->bytes + t->offsets[id] : "";
}
