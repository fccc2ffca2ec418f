/* What the tokenizer's files share: pre-tokenizer, hash tables, the tokenizer itself.
 *
 *   tokenizer_open (GGUF) -> tokenizer_build (tokens, merges) -> tokenizer
 *   text -> repair of ill-formed UTF-8 -> special tokens cut out -> pre-tokenizer -> merges -> ids
 */
#ifndef EPIMEM_AGENT_TOKENIZER_PARTS_INTERNAL_H
#define EPIMEM_AGENT_TOKENIZER_PARTS_INTERNAL_H

#include "agent/tokenizer_internal.h"

/* ---- pre-tokenizer: cuts text into the pieces inside which merges happen ---- */

typedef enum pretokenizer {
    PRETOKENIZER_SMOLLM,
    PRETOKENIZER_GPT2,
    PRETOKENIZER_LLAMA_BPE,
    PRETOKENIZER_QWEN2
} pretokenizer;

bool pretokenizer_find(const char *name, size_t bytes, pretokenizer *out);
const char *pretokenizer_name(pretokenizer p);
/* Bytes of the first piece of well-formed UTF-8 text that has at least one byte. The whole rest of the text must be
 * handed over: the rules look ahead. */
size_t pretokenizer_next(pretokenizer p, const uint8_t *text, size_t bytes);

/* ---- byte strings to ids; the strings are borrowed ---- */

typedef struct string_slot {
    const uint8_t *bytes;
    uint32_t n;
    int32_t id; /* -1: free */
} string_slot;
typedef struct string_table {
    string_slot *slots;
    size_t n_slots; /* a power of two, at most half of them taken */
} string_table;
status string_table_init(string_table *s, size_t strings_max);
void string_table_free(string_table *s);
void string_table_add(
        string_table *s, const uint8_t *bytes, size_t n, int32_t id); /* the first of equals stays */
int32_t string_table_find(const string_table *s, const uint8_t *bytes, size_t n); /* -1: not there */

/* ---- merges ---- */

#define MERGE_NONE UINT32_MAX
typedef struct merge_slot {
    int32_t left, right; /* left -1: free */
    uint32_t rank;
} merge_slot;
typedef struct merge_table {
    merge_slot *slots;
    size_t n_slots;
    int32_t *result; /* by rank */
} merge_table;
status merge_table_init(merge_table *m, size_t merges);
void merge_table_free(merge_table *m);
void merge_table_add(merge_table *m, int32_t left, int32_t right, uint32_t rank, int32_t result);
uint32_t merge_table_rank(
        const merge_table *m, int32_t left, int32_t right); /* MERGE_NONE: they do not merge */

/* ---- tokenizer ---- */

typedef enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER_DEFINED = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
} token_type;

typedef struct special_token {
    const uint8_t *bytes;
    size_t n;
    int32_t id;
} special_token;

enum { TOKENIZER_ENDS_MAX = 16 };

struct tokenizer {
    pretokenizer rule;
    bool whole_pieces; /* a piece that is a token stays whole, whatever the merges say (Llama 3) */
    bool adds_bos;
    int32_t n, bos, eos;
    int32_t ends[TOKENIZER_ENDS_MAX];
    int n_ends;
    uint8_t *types;     /* [n] token_type */
    uint8_t *bytes;     /* all pieces, one behind the other */
    size_t *offsets;    /* [n + 1] */
    string_table words; /* what text can become: the normal tokens */
    merge_table merges;
    int32_t byte_ids[256]; /* -1: the vocabulary lacks this byte */
    int bytes_missing;
    special_token *specials; /* sorted by bytes */
    size_t n_specials;
    bool special_starts[256]; /* first bytes of the specials */
    uint64_t fingerprint;
};

/* A vocabulary as a model file gives it; all borrowed. */
typedef struct tokenizer_source {
    const char *name; /* for messages */
    pretokenizer rule;
    const gguf_string *tokens;
    size_t n_tokens;
    const int32_t *types; /* NULL: all normal */
    const gguf_string *merges;
    size_t n_merges;
    int64_t bos, eos, eot, eom; /* -1: none */
    bool adds_bos;
} tokenizer_source;
status tokenizer_build(const tokenizer_source *s, tokenizer **out, err *e);

/* Reusable memory of the merge loop. */
typedef struct bpe_symbol {
    int32_t id; /* -1: merged into the one before */
    int32_t previous, next;
    uint32_t rank; /* of the merge with next */
} bpe_symbol;
typedef struct bpe_work {
    bpe_symbol *symbols;
    uint64_t *heap; /* rank << 32 | index: lowest rank first, leftmost of equals */
    size_t symbols_cap, heap_cap, heap_n;
} bpe_work;
void bpe_work_free(bpe_work *w);
/* One piece, whose bytes all have a token, to ids; appended. */
status bpe_encode(const tokenizer *t, bpe_work *w, const uint8_t *piece, size_t n, token_list *out);

/* The longest special token at the start of the text; -1: none. */
int32_t tokenizer_special_at(const tokenizer *t, const uint8_t *text, size_t bytes, size_t *length);

/* ---- chat templates: the same without a GGUF ---- */

/* name NULL: recognised. jinja NULL: none. bos and eos: texts of these tokens, "" for none. */
status chat_template_build(const char *name,
        const char *jinja,
        size_t jinja_bytes,
        const char *bos,
        const char *eos,
        const chat_template **out,
        err *e);

/* ---- WordPiece: the same from memory ---- */
status wordpiece_build(const void *vocab, size_t bytes, const char *name, wordpiece **out, err *e);

#endif
