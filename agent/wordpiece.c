/*
 * WordPiece as BERT's uncased models use it (Devlin et al. 2018), in one pass over the text and with memory for one word:
 * control characters and U+FFFD dropped, ideographs set apart, canonical decomposition with nonspacing marks dropped,
 * lower case, words split at white space and punctuation, each word cut by longest match from the left.
 *
 * Special tokens written in the text ([SEP] and the like) are taken as such, as the reference does: they carry no
 * structure for an encoder of single texts.
 */
#include <string.h>
#include <utf8proc.h>

#include "agent/tokenizer_parts_internal.h"
#include "agent/unicode_internal.h"
#include "agent/wordpiece_internal.h"

enum {
    WORD_CHARACTERS_MAX = 100, /* of the reference: a longer word is [UNK] */
    SPECIALS = 5,
    VOCABULARY_MAX = 1 << 22,
};
enum { CLS, SEP, UNK, PAD, MASK };
static const char *const special_names[SPECIALS] = {"[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"};

struct wordpiece {
    uint8_t *vocab;               /* the file */
    string_table starts;          /* pieces that start a word */
    string_table rests;           /* pieces that go on, without their ## */
    size_t starts_max, rests_max; /* bytes of the longest */
    int32_t special[SPECIALS];    /* -1: not in the vocabulary */
};

/* ---- vocabulary: one piece a line, ids count lines ---- */

static void add_piece(wordpiece *w, const uint8_t *piece, size_t n, int32_t id)
{
    bool rest = n > 2 && piece[0] == '#' && piece[1] == '#';
    size_t skip = rest ? 2 : 0, *longest = rest ? &w->rests_max : &w->starts_max;
    string_table_add(rest ? &w->rests : &w->starts, piece + skip, n - skip, id);
    *longest = n - skip > *longest ? n - skip : *longest;
    for (int i = 0; i < SPECIALS; i++) {
        if (strlen(special_names[i]) == n && memcmp(special_names[i], piece, n) == 0) {
            w->special[i] = id;
        }
    }
}

static status read_vocab(wordpiece *w, const void *vocab, size_t bytes, const char *name, err *e)
{
    size_t lines = 1;
    for (size_t i = 0; i < bytes; i++) {
        lines += ((const uint8_t *)vocab)[i] == '\n' ? 1 : 0;
    }
    if (lines > VOCABULARY_MAX) {
        return FAIL(e, ST_ERR_LIMIT, "%s: %zu lines; expected at most %d", name, lines, (int)VOCABULARY_MAX);
    }
    w->vocab = base_alloc(bytes + 1);
    if (w->vocab == NULL || string_table_init(&w->starts, lines) != ST_OK ||
            string_table_init(&w->rests, lines) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "%s: no memory for %zu word pieces", name, lines);
    }
    if (bytes > 0) {
        memcpy(w->vocab, vocab, bytes);
    }
    memset(w->special, 0xff, sizeof w->special);
    int32_t id = 0;
    for (size_t at = 0; at < bytes; id++) {
        const uint8_t *end = memchr(w->vocab + at, '\n', bytes - at);
        size_t n = end == NULL ? bytes - at : (size_t)(end - (w->vocab + at));
        if (n > 0) {
            add_piece(w, w->vocab + at, n, id);
        }
        at += n + 1;
    }
    for (int i = CLS; i <= UNK; i++) {
        if (w->special[i] < 0) {
            return FAIL(e, ST_ERR_FORMAT, "%s: no line says %s; expected a WordPiece vocabulary", name,
                    special_names[i]);
        }
    }
    return ST_OK;
}

status wordpiece_build(const void *vocab, size_t bytes, const char *name, wordpiece **out, err *e)
{
    wordpiece *w = base_zalloc(1, sizeof *w);
    if (w == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a WordPiece tokenizer");
    }
    status s = read_vocab(w, vocab, bytes, name, e);
    if (s != ST_OK) {
        wordpiece_close(w);
        return s;
    }
    *out = w;
    return ST_OK;
}

status wordpiece_open(const char *vocab_path, wordpiece **out, err *e)
{
    base_map map;
    TRY(base_map_open(vocab_path, &map, e));
    status s = wordpiece_build(map.data, map.size, vocab_path, out, e);
    base_map_close(&map);
    return s;
}

void wordpiece_close(wordpiece *w)
{
    if (w == NULL) {
        return;
    }
    base_free(w->vocab);
    string_table_free(&w->starts);
    string_table_free(&w->rests);
    base_free(w);
}

/* ---- encoding ---- */

typedef struct encoding {
    const wordpiece *w;
    token_list *out;
    size_t ids_max; /* of out, [SEP] not counted */
    uint8_t word[WORD_CHARACTERS_MAX * 4];
    size_t word_bytes;
    int word_characters; /* may exceed the maximum by one: then the bytes are not the word any more */
} encoding;

static bool is_full(const encoding *x)
{
    return x->out->n >= x->ids_max;
}

static status push(encoding *x, int32_t id)
{
    return is_full(x) ? ST_OK : token_list_push(x->out, id);
}

/* The longest piece at word[at]; its end, 0 when there is none. */
static size_t longest_piece(const encoding *x, size_t at, int32_t *id)
{
    const string_table *pieces = at == 0 ? &x->w->starts : &x->w->rests;
    size_t longest = at == 0 ? x->w->starts_max : x->w->rests_max;
    size_t end = x->word_bytes - at > longest ? at + longest : x->word_bytes;
    for (; end > at; end--) {
        *id = string_table_find(pieces, x->word + at, end - at);
        if (*id >= 0) {
            return end;
        }
    }
    return 0;
}

/* Ends the word: its pieces, or [UNK] for the whole of it. */
static status end_word(encoding *x)
{
    int32_t ids[WORD_CHARACTERS_MAX * 4];
    size_t n = 0, at = 0;
    bool known = x->word_characters <= WORD_CHARACTERS_MAX;
    while (known && at < x->word_bytes) {
        at = longest_piece(x, at, &ids[n]);
        known = at > 0;
        n++;
    }
    if (!known) {
        ids[0] = x->w->special[UNK];
        n = 1;
    }
    x->word_bytes = 0;
    x->word_characters = 0;
    for (size_t i = 0; i < n; i++) {
        TRY(push(x, ids[i]));
    }
    return ST_OK;
}

static void add_to_word(encoding *x, utf8proc_int32_t c)
{
    if (x->word_characters >= WORD_CHARACTERS_MAX) {
        x->word_characters = WORD_CHARACTERS_MAX + 1;
        return;
    }
    x->word_bytes += (size_t)utf8proc_encode_char(c, x->word + x->word_bytes);
    x->word_characters++;
}

/* One character of the decomposed text. */
static status add_decomposed(encoding *x, utf8proc_int32_t c)
{
    if (wordpiece_drops_mark((uint32_t)c)) {
        return ST_OK;
    }
    c = utf8proc_tolower(c);
    if (unicode_is_space((uint32_t)c)) {
        return end_word(x);
    }
    if (!wordpiece_is_punctuation((uint32_t)c)) {
        add_to_word(x, c);
        return ST_OK;
    }
    TRY(end_word(x));
    add_to_word(x, c);
    return end_word(x);
}

static status add_character(encoding *x, uint32_t c)
{
    /* No canonical ordering of marks: those that have an order are dropped, but for a few that no vocabulary has. */
    utf8proc_int32_t parts[16];
    int boundary = 0;
    if (wordpiece_drops(c)) {
        return ST_OK;
    }
    if (unicode_is_space(c)) {
        return end_word(x);
    }
    bool apart = wordpiece_is_ideograph(c);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, parts,
            (utf8proc_ssize_t)(sizeof parts / sizeof parts[0]), UTF8PROC_DECOMPOSE, &boundary);
    REQUIRE(n >= 0 && (size_t)n <= sizeof parts / sizeof parts[0]); /* Unicode: at most 4 */
    if (apart) {
        TRY(end_word(x));
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        TRY(add_decomposed(x, parts[i]));
    }
    return apart ? end_word(x) : ST_OK;
}

/* Length of the special token written here, 0 when there is none. */
static size_t special_at(const wordpiece *w, const uint8_t *text, size_t bytes, int32_t *id)
{
    for (int i = 0; i < SPECIALS && text[0] == '['; i++) {
        size_t n = strlen(special_names[i]);
        if (w->special[i] >= 0 && bytes >= n && memcmp(text, special_names[i], n) == 0) {
            *id = w->special[i];
            return n;
        }
    }
    return 0;
}

static status encode(encoding *x, const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && !is_full(x)) {
        uint32_t c;
        int32_t id;
        size_t special = special_at(x->w, text + at, bytes - at, &id);
        if (special > 0) {
            TRY(end_word(x));
            TRY(push(x, id));
            at += special;
            continue;
        }
        size_t n = base_utf8_next(text + at, bytes - at, &c);
        if (n > 0) {
            TRY(add_character(x, c));
        } /* an ill-formed sequence is U+FFFD, which is dropped */
        at += n > 0 ? n : unicode_ill_formed_bytes(text + at, bytes - at);
    }
    return end_word(x);
}

status wordpiece_encode(
        const wordpiece *w, const void *text, size_t bytes, int max_ids, token_list *out, err *e)
{
    size_t before = out->n;
    if (max_ids < 2) {
        return FAIL(e, ST_ERR_ARG, "at most %d ids: expected 2 or more", max_ids);
    }
    encoding x = {.w = w, .out = out, .ids_max = before + (size_t)max_ids - 1};
    status s = push(&x, w->special[CLS]);
    s = s == ST_OK ? encode(&x, text, bytes) : s;
    s = s == ST_OK ? token_list_push(out, w->special[SEP]) : s;
    if (s != ST_OK) {
        out->n = before;
        return FAIL(e, s, "no memory for %d ids", max_ids);
    }
    return ST_OK;
}
