/* Looking up keys and tensors of an open GGUF file, by binary search. */
#include "agent/gguf_layout_internal.h"

#include <string.h>

const char *gguf_path(const gguf *g)
{
    return g->path;
}

static const gguf_key *find_key(const gguf *g, const char *name)
{
    gguf_string wanted = {name, strlen(name)};
    size_t low = 0;
    size_t high = g->n_keys;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = gguf_compare(g->keys[middle].name, wanted);
        if (order == 0) {
            return &g->keys[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

bool gguf_has(const gguf *g, const char *key)
{
    return find_key(g, key) != NULL;
}

static status not_found(const gguf *g, const char *key, err *e)
{
    return FAIL(e, ST_ERR_NOT_FOUND, "%s: key %s is missing", g->name, key);
}

static status other_type(const gguf *g, const gguf_key *key, const char *name, const char *wanted, err *e)
{
    bool is_array = key->type == GGUF_ARRAY;
    return FAIL(e, ST_ERR_FORMAT, "%s: key %s is %s%s, must be %s", g->name, name,
            is_array ? "an array of " : "", gguf_value_type_name(is_array ? key->item_type : key->type),
            wanted);
}

static uint64_t raw_value(const gguf_key *key, unsigned bytes)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < bytes; i++) {
        bits |= (uint64_t)key->value[i] << (8 * i);
    }
    return bits;
}

status gguf_get_u64(const gguf *g, const char *name, uint64_t *out, err *e)
{
    const gguf_key *key = find_key(g, name);
    if (key == NULL) {
        return not_found(g, name, e);
    }
    int64_t value;
    switch (key->type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        *out = raw_value(key,
                key->type == GGUF_U8            ? 1
                        : key->type == GGUF_U16 ? 2
                        : key->type == GGUF_U32 ? 4
                                                : 8);
        return ST_OK;
    case GGUF_I8:
        value = (int8_t)raw_value(key, 1); /* NOLINT(bugprone-signed-char-misuse): the sign is wanted */
        break;
    case GGUF_I16:
        value = (int16_t)raw_value(key, 2);
        break;
    case GGUF_I32:
        value = (int32_t)raw_value(key, 4);
        break;
    case GGUF_I64:
        value = (int64_t)raw_value(key, 8);
        break;
    default:
        return other_type(g, key, name, "an integer", e);
    }
    if (value < 0) {
        return FAIL(e, ST_ERR_FORMAT, "%s: key %s is %lld, must not be negative", g->name, name,
                (long long)value);
    }
    *out = (uint64_t)value;
    return ST_OK;
}

status gguf_get_f64(const gguf *g, const char *name, double *out, err *e)
{
    const gguf_key *key = find_key(g, name);
    if (key == NULL) {
        return not_found(g, name, e);
    }
    if (key->type == GGUF_F32) {
        float x;
        memcpy(&x, key->value, sizeof x);
        *out = (double)x;
        return ST_OK;
    }
    if (key->type == GGUF_F64) {
        memcpy(out, key->value, sizeof *out);
        return ST_OK;
    }
    return other_type(g, key, name, "F32 or F64", e);
}

status gguf_get_bool(const gguf *g, const char *name, bool *out, err *e)
{
    const gguf_key *key = find_key(g, name);
    if (key == NULL) {
        return not_found(g, name, e);
    }
    if (key->type != GGUF_BOOL) {
        return other_type(g, key, name, "BOOL", e);
    }
    *out = key->value[0] != 0;
    return ST_OK;
}

status gguf_get_string(const gguf *g, const char *name, gguf_string *out, err *e)
{
    const gguf_key *key = find_key(g, name);
    if (key == NULL) {
        return not_found(g, name, e);
    }
    if (key->type != GGUF_STRING) {
        return other_type(g, key, name, "a string", e);
    }
    *out = (gguf_string){(const char *)key->value, (size_t)key->count};
    return ST_OK;
}

static status get_array(const gguf *g,
        const char *name,
        gguf_value_type a,
        gguf_value_type b,
        const char *wanted,
        const gguf_key **out,
        err *e)
{
    const gguf_key *key = find_key(g, name);
    if (key == NULL) {
        return not_found(g, name, e);
    }
    if (key->type != GGUF_ARRAY || (key->item_type != a && key->item_type != b)) {
        return other_type(g, key, name, wanted, e);
    }
    *out = key;
    return ST_OK;
}

status gguf_get_string_array(const gguf *g, const char *name, const gguf_string **out, size_t *n, err *e)
{
    const gguf_key *key = NULL;
    TRY(get_array(g, name, GGUF_STRING, GGUF_STRING, "an array of strings", &key, e));
    *out = key->items;
    *n = (size_t)key->count;
    return ST_OK;
}

status gguf_get_i32_array(const gguf *g, const char *name, const int32_t **out, size_t *n, err *e)
{
    const gguf_key *key = NULL;
    TRY(get_array(g, name, GGUF_I32, GGUF_U32, "an array of 32-bit integers", &key, e));
    *out = key->items;
    *n = (size_t)key->count;
    return ST_OK;
}

status gguf_get_f32_array(const gguf *g, const char *name, const float **out, size_t *n, err *e)
{
    const gguf_key *key = NULL;
    TRY(get_array(g, name, GGUF_F32, GGUF_F32, "an array of F32", &key, e));
    *out = key->items;
    *n = (size_t)key->count;
    return ST_OK;
}

const gguf_tensor *gguf_find(const gguf *g, const char *name)
{
    gguf_string wanted = {name, strlen(name)};
    size_t low = 0;
    size_t high = g->n_tensors;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const gguf_tensor *t = &g->tensors[g->by_name[middle]];
        int order = gguf_compare(t->name, wanted);
        if (order == 0) {
            return t;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

size_t gguf_tensor_count(const gguf *g)
{
    return g->n_tensors;
}

const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i)
{
    REQUIRE(i < g->n_tensors);
    return &g->tensors[i];
}
