/* Byte-level BPE of the model (vocabulary and merges from the GGUF), chat templates, and MiniLM's WordPiece.
 *
 * Text carries a mark per byte: template text or message text. Special tokens are recognised in template bytes only,
 * before the pre-tokenizer runs; what lies between two special tokens is one string for the pre-tokenizer whatever
 * its marks. A character that the vocabulary cannot spell is refused by name and place, never dropped. */
#ifndef EPIMEM_AGENT_TOKENIZER_INTERNAL_H
#define EPIMEM_AGENT_TOKENIZER_INTERNAL_H

#include "agent/gguf_internal.h"

typedef struct tokenizer tokenizer;

typedef struct token_list {
    int32_t *ids;
    size_t n, cap;
} token_list;
void token_list_free(token_list *t);
status token_list_push(token_list *t, int32_t id);

/* Text with marks: byte i is template text iff is_template[i]. */
typedef struct marked_text {
    base_buf text, is_template;
} marked_text;
void marked_text_init(marked_text *m); /* limit 64 MiB */
void marked_text_free(marked_text *m);
status marked_text_add(marked_text *m, const char *text, size_t bytes, bool is_template);

/* Names the pre-tokenizer in e when it is not one of smollm, gpt-2 (default for a missing key), llama-bpe, qwen2. */
status tokenizer_open(const gguf *g, tokenizer **out, err *e);
void tokenizer_close(tokenizer *t);
int32_t tokenizer_vocab_size(const tokenizer *t);
int32_t tokenizer_bos(const tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
bool tokenizer_is_end(const tokenizer *t, int32_t id);     /* ends a turn: eos, eot, <|im_end|>... */
bool tokenizer_is_special(const tokenizer *t, int32_t id); /* control or user-defined */
uint64_t tokenizer_fingerprint(const tokenizer *t); /* vocabulary, merges, rule, and ids of a probe text */

/* Plain text; parse_special: special tokens are recognised everywhere. ST_ERR_UNENCODABLE says "U+0004 at character
 * 1 cannot be encoded by this model"; ill-formed UTF-8 becomes U+FFFD as in the reference (shared vectors). Appends. */
status tokenizer_encode(
        const tokenizer *t, const void *text, size_t bytes, bool parse_special, token_list *out, err *e);
status tokenizer_encode_marked(const tokenizer *t, const marked_text *m, token_list *out, err *e);
/* The same refusal without encoding: names the first character of a message's text that the vocabulary cannot spell.
 * Characters count from 0; tokenizer_encode_marked counts them from the start of the run of message bytes. */
status tokenizer_check(const tokenizer *t, const void *text, size_t bytes, err *e);
/* Bytes of one token (special ones as their text); the pointer lives as long as t. */
void tokenizer_piece(const tokenizer *t, int32_t id, const char **bytes, size_t *n);
/* The special token with exactly this text, -1 when there is none. */
int32_t tokenizer_special_id(const tokenizer *t, const char *text);

/* ---- chat templates ---- */

typedef struct chat_template chat_template;
/* name NULL: recognised from tokenizer.chat_template by what it contains; an unknown one is ST_ERR_UNSUPPORTED and
 * lists the names. Names: chatml, llama3, mistral, gemma, phi3, zephyr. */
status chat_template_open(const gguf *g, const char *name, const chat_template **out, err *e);
void chat_template_close(const chat_template *c); /* holds the model's own default prompt and end token */
const char *chat_template_name(const chat_template *c);
uint64_t chat_template_fingerprint(const chat_template *c);
/* The template's own system prompt, used when a session starts without one; NULL when it has none. */
const char *chat_template_default_system(const chat_template *c);

typedef struct chat_message {
    const char *role; /* system, user, assistant */
    const char *content;
    size_t content_bytes;
} chat_message;
/* The pieces a session is made of. render = [first piece of the sequence] + messages + [generation prompt]; a session
 * is extended by rendering only the new messages with `first` false, and the concatenation equals the whole render.
 * The first piece is BOS where the template writes it, and the default system prompt when m[0] is no system message
 * (nothing at all when n is 0, as the templates do). Another role than the three is ST_ERR_ARG. */
status chat_template_render(const chat_template *c,
        const chat_message *m,
        int n,
        bool first,
        bool generation_prompt,
        marked_text *out,
        err *e);
/* Mistral and Gemma have no system turn: the text becomes the head of the next user message. There the first message
 * after a system one has to know it: same as render with `first` false, after a message of previous_role (NULL: of
 * another chunk that did not end in a system message). */
status chat_template_extend(const chat_template *c,
        const char *previous_role,
        const chat_message *m,
        int n,
        bool generation_prompt,
        marked_text *out,
        err *e);
/* Opening and closing of a message around content added by the caller (transcripts, generated text). With `first` the
 * first piece comes before it, the default system prompt included when role is not system. */
status chat_template_open_message(
        const chat_template *c, const char *role, bool first, marked_text *out, err *e);
status chat_template_close_message(const chat_template *c, const char *role, marked_text *out, err *e);
/* After a generated answer: what follows the model's end token up to the next message ("\n" for ChatML). When the model
 * stopped at the limit, the end token itself comes first. */
status chat_template_after_answer(const chat_template *c, bool end_token_seen, marked_text *out, err *e);

/* ---- WordPiece of the sentence encoder ---- */

typedef struct wordpiece wordpiece;
status wordpiece_open(const char *vocab_path, wordpiece **out, err *e);
void wordpiece_close(wordpiece *w);
/* [CLS] ... [SEP], at most max_ids ids in all; the rest of the text is cut as the reference does. */
status wordpiece_encode(
        const wordpiece *w, const void *text, size_t bytes, int max_ids, token_list *out, err *e);

#endif
