/* The tokenizer's part of a GGUF: which keys, which are optional, what is refused. */
#include <inttypes.h>
#include <string.h>

#include "agent/tokenizer_parts_internal.h"

static bool is_text(gguf_string s, const char *text)
{
    return s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

/* For messages: at most 40 bytes of a string from the file. */
static int shown(gguf_string s)
{
    return s.bytes < 40 ? (int)s.bytes : 40;
}

static status optional_id(const gguf *g, const char *key, int64_t *out, err *e)
{
    uint64_t id;
    *out = -1;
    if (!gguf_has(g, key)) {
        return ST_OK;
    }
    TRY(gguf_get_u64(g, key, &id, e));
    *out = id > INT32_MAX ? INT32_MAX : (int64_t)id; /* outside every vocabulary */
    return ST_OK;
}

static status read_rule(const gguf *g, tokenizer_source *s, err *e)
{
    gguf_string kind, pre;
    TRY(gguf_get_string(g, "tokenizer.ggml.model", &kind, e));
    if (!is_text(kind, "gpt2")) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: tokenizer '%.*s' is not supported; expected 'gpt2' (byte-level BPE)", s->name,
                shown(kind), kind.data);
    }
    s->rule = PRETOKENIZER_GPT2;
    if (!gguf_has(g, "tokenizer.ggml.pre")) {
        return ST_OK;
    }
    TRY(gguf_get_string(g, "tokenizer.ggml.pre", &pre, e));
    if (!pretokenizer_find(pre.data, pre.bytes, &s->rule)) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: pre-tokenizer '%.*s' is not supported; expected smollm, gpt-2, llama-bpe or qwen2",
                s->name, shown(pre), pre.data);
    }
    return ST_OK;
}

static status read_types(const gguf *g, tokenizer_source *s, err *e)
{
    size_t n = 0;
    if (!gguf_has(g, "tokenizer.ggml.token_type")) {
        return ST_OK;
    }
    TRY(gguf_get_i32_array(g, "tokenizer.ggml.token_type", &s->types, &n, e));
    if (n != s->n_tokens) {
        return FAIL(e, ST_ERR_FORMAT,
                "%s: tokenizer.ggml.token_type has %zu entries; expected %zu, one a token", s->name, n,
                s->n_tokens);
    }
    return ST_OK;
}

status tokenizer_open(const gguf *g, tokenizer **out, err *e)
{
    tokenizer_source s = {.name = gguf_path(g)};
    TRY(read_rule(g, &s, e));
    TRY(gguf_get_string_array(g, "tokenizer.ggml.tokens", &s.tokens, &s.n_tokens, e));
    TRY(gguf_get_string_array(g, "tokenizer.ggml.merges", &s.merges, &s.n_merges, e));
    TRY(read_types(g, &s, e));
    TRY(optional_id(g, "tokenizer.ggml.bos_token_id", &s.bos, e));
    TRY(optional_id(g, "tokenizer.ggml.eos_token_id", &s.eos, e));
    TRY(optional_id(g, "tokenizer.ggml.eot_token_id", &s.eot, e));
    TRY(optional_id(g, "tokenizer.ggml.eom_token_id", &s.eom, e));
    s.adds_bos = s.rule == PRETOKENIZER_LLAMA_BPE; /* Llama 3 files made before the key existed meant it */
    if (gguf_has(g, "tokenizer.ggml.add_bos_token")) {
        TRY(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &s.adds_bos, e));
    }
    return tokenizer_build(&s, out, e);
}
