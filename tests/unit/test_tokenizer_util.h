/* Reading golden files of the tokenizers: one JSON object a line, text as "text" or "b64". */
#ifndef EPIMEM_TESTS_TOKENIZER_UTIL_H
#define EPIMEM_TESTS_TOKENIZER_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/jsonl_internal.h"
#include "agent/tokenizer_parts_internal.h"

#define DATA           EPIMEM_SOURCE_DIR "/tests/data/"
#define MODEL_FILE     EPIMEM_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define ENCODER_FOLDER EPIMEM_SOURCE_DIR "/models/all-MiniLM-L6-v2"

#define ASSERT_OK(call)                        \
    do {                                       \
        e.text[0] = '\0';                      \
        if ((call) != ST_OK) {                 \
            fail_msg("%s: %s", #call, e.text); \
        }                                      \
    } while (0)

/* Every object of a JSON-lines file, in turn; fails the test when there are fewer than `least`. */
typedef void (*each_object)(void *ctx, const cJSON *object);
static inline void for_each_line(const char *path, int least, each_object visit, void *ctx)
{
    base_map map;
    err e;
    int n = 0;
    ASSERT_OK(base_map_open(path, &map, &e));
    for (size_t at = 0; at < map.size; n++) {
        const uint8_t *end = memchr(map.data + at, '\n', map.size - at);
        size_t bytes = end == NULL ? map.size - at : (size_t)(end - (map.data + at));
        cJSON *object = cJSON_ParseWithLength((const char *)map.data + at, bytes);
        assert_non_null(object);
        visit(ctx, object);
        cJSON_Delete(object);
        at += bytes + 1;
    }
    base_map_close(&map);
    assert_true(n >= least);
}

/* A JSON file that is an array. Freed by the caller. */
static inline cJSON *read_json(const char *path)
{
    base_map map;
    err e;
    ASSERT_OK(base_map_open(path, &map, &e));
    cJSON *value = cJSON_ParseWithLength((const char *)map.data, map.size);
    base_map_close(&map);
    assert_non_null(value);
    return value;
}

static inline const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static inline const char *text_member(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(member(object, name));
    assert_non_null(text);
    return text;
}

/* Bytes of "text" or "b64"; freed by the caller. */
static inline base_buf bytes_of(const cJSON *object)
{
    base_buf out = {.max = 1 << 24};
    err e;
    if (member(object, "b64") != NULL) {
        const char *code = text_member(object, "b64");
        ASSERT_OK(jsonl_base64_decode(code, strlen(code), &out, &e));
    } else {
        const char *text = text_member(object, "text");
        assert_int_equal(base_buf_append(&out, text, strlen(text)), ST_OK);
    }
    return out;
}

/* The ids are those of the array; `what` is for the message. */
static inline void expect_ids(const token_list *got, const cJSON *wanted, const char *what)
{
    assert_true(cJSON_IsArray(wanted));
    int n = cJSON_GetArraySize(wanted);
    const cJSON *id = wanted->child;
    for (int i = 0; i < n; i++, id = id->next) {
        if ((size_t)i >= got->n || got->ids[i] != id->valueint) {
            fail_msg("%s: id %d is %d of %zu, expected %d of %d", what, i,
                    (size_t)i < got->n ? got->ids[i] : -1, got->n, id->valueint, n);
        }
    }
    if (got->n != (size_t)n) {
        fail_msg("%s: %zu ids, expected %d", what, got->n, n);
    }
}

/* The bytes of the ids are these. */
static inline void expect_bytes(const tokenizer *t, const token_list *ids, const void *bytes, size_t n)
{
    base_buf text = {.max = 1 << 26};
    for (size_t i = 0; i < ids->n; i++) {
        const char *piece;
        size_t length;
        tokenizer_piece(t, ids->ids[i], &piece, &length);
        assert_int_equal(base_buf_append(&text, piece, length), ST_OK);
    }
    assert_int_equal(text.size, n);
    assert_true(n == 0 || memcmp(text.data, bytes, n) == 0);
    base_buf_free(&text);
}

static inline tokenizer *open_tokenizer(const char *path)
{
    gguf *g = NULL;
    tokenizer *t = NULL;
    err e;
    ASSERT_OK(gguf_open(path, &g, &e));
    ASSERT_OK(tokenizer_open(g, &t, &e));
    gguf_close(g); /* the tokenizer keeps nothing of it */
    return t;
}

#endif
