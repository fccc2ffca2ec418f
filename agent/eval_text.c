/* Texts for measurements: files and conversations as the tokens of one sequence. */
#include <stdio.h>
#include <string.h>

#include "agent/eval_internal.h"
#include "agent/eval_layout_internal.h"

static const char system_text[] = "You are a helpful AI assistant";

/* ---- LoCoMo and REALTALK ---- */

static status add_text(base_buf *text, const char *s)
{
    return s == NULL ? ST_OK : base_buf_append(text, s, strlen(s));
}

static status add_utterance(base_buf *text, const cJSON *utterance)
{
    TRY(add_text(text, text->size > 0 ? "\n" : NULL));
    TRY(add_text(text, eval_layout_text(utterance, "speaker")));
    TRY(add_text(text, ": "));
    return add_text(text, eval_layout_said(utterance));
}

static status add_session(base_buf *text, const cJSON *utterances, const cJSON *date)
{
    const cJSON *u;
    if (cJSON_GetArraySize(utterances) > 0) {
        TRY(add_text(text, text->size > 0 ? "\n[" : "["));
        TRY(add_text(text, cJSON_IsString(date) ? date->valuestring : ""));
        TRY(add_text(text, "]"));
    }
    cJSON_ArrayForEach (u, utterances) {
        TRY(add_utterance(text, u));
    }
    return ST_OK;
}

status eval_text_conversation(const char *json, size_t bytes, base_buf *text, bool *found, err *e)
{
    err why;
    cJSON *root = NULL;
    *found = false;
    status s = eval_layout_parse(json, bytes, &root, &why);
    if (s != ST_OK) { /* a plain text, unless memory was short */
        return s == ST_ERR_MEMORY ? FAIL(e, s, "%s", why.text) : ST_OK;
    }
    const cJSON *conversation = eval_layout_conversation(root);
    for (int number = 1; s == ST_OK; number++) {
        const cJSON *utterances = eval_layout_session(conversation, number, "");
        if (!cJSON_IsArray(utterances)) {
            break;
        }
        *found = true;
        s = add_session(text, utterances, eval_layout_session(conversation, number, "_date_time"));
    }
    cJSON_Delete(root);
    return s == ST_OK ? ST_OK : FAIL(e, s, "a conversation of more than %d bytes", EVAL_TEXT_BYTES_MAX);
}

/* ---- tokens ---- */

/* [system message as the template writes it] + text. */
static status mark(const model_tool *t, const char *text, size_t bytes, marked_text *m, err *e)
{
    const chat_template *template = NULL;
    err unknown;
    if (chat_template_open(model_gguf(t->m), NULL, &template, &unknown) == ST_OK) {
        chat_message system = {
                .role = "system", .content = system_text, .content_bytes = sizeof system_text - 1};
        status s = chat_template_render(template, &system, 1, true, false, m, e);
        chat_template_close(template);
        TRY(s);
    }
    status s = marked_text_add(m, text, bytes, false);
    return s == ST_OK ? ST_OK : FAIL(e, s, "a text of %zu bytes", bytes);
}

status eval_text_encode(
        const model_tool *t, const char *text, size_t bytes, int64_t max_tokens, token_list *out, err *e)
{
    if (t->tok == NULL) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "this model file has no vocabulary, so texts cannot be read");
    }
    /* No token is longer than 64 bytes on average over a text: the rest of a long file need not be tokenized. */
    size_t enough = (size_t)max_tokens * 64;
    if (bytes > enough) {
        for (bytes = enough; bytes > 0 && ((unsigned char)text[bytes] & 0xc0u) == 0x80u; bytes--) {
        }
    }
    size_t before = out->n;
    marked_text m;
    marked_text_init(&m);
    status s = mark(t, text, bytes, &m, e);
    if (s == ST_OK) {
        s = tokenizer_encode_marked(t->tok, &m, out, e);
    }
    marked_text_free(&m);
    if (s == ST_OK && out->n - before > (size_t)max_tokens) {
        out->n = before + (size_t)max_tokens;
    }
    return s;
}

status eval_text_load(const char *path, base_buf *text, err *e)
{
    base_map map = {0};
    bool is_conversation = false;
    TRY(base_map_open(path, &map, e));
    status s = eval_text_conversation((const char *)map.data, map.size, text, &is_conversation, e);
    if (s == ST_OK && !is_conversation && base_buf_append(text, map.data, map.size) != ST_OK) {
        s = FAIL(e, ST_ERR_LIMIT, "%.300s is too long", path);
    }
    base_map_close(&map);
    return s;
}

status eval_text_read(const model_tool *t, const char *path, int64_t max_tokens, token_list *out, err *e)
{
    base_buf text = {.max = EVAL_TEXT_BYTES_MAX};
    status s = eval_text_load(path, &text, e);
    if (s == ST_OK) {
        s = eval_text_encode(t, (const char *)text.data, text.size, max_tokens, out, e);
    }
    base_buf_free(&text);
    return s;
}
