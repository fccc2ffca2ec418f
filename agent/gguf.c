/* Reading a GGUF file (v2 and v3, little-endian).
 *
 * Layout: magic, version u32, tensor count u64, key count u64; then the keys (name, value type, value), the tensor
 * directory (name, rank, sizes, type, offset), padding to the alignment, and the tensor data that the offsets count
 * from. Strings are a u64 length and the bytes. Nothing is believed before it is compared with the bytes left: a
 * count is first checked against the fewest bytes its items can take, so no allocation exceeds a small multiple of
 * the file's size; products and sums are checked; arrays in arrays are refused. */
#include "agent/gguf_layout_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 24,
    KEY_BYTES_MIN = 8 + 1 + 4 + 1,            /* name length, name, type, value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* name length, name, rank, one size, type, offset */
    NAME_BYTES_MAX = 65535,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8, /* what the format asks for; floats are read in place */
    ALIGNMENT_MAX = 65536
};

typedef struct cursor {
    const uint8_t *data;
    uint64_t at, size;
    const char *file;
    err *e;
} cursor;

static uint64_t left(const cursor *c)
{
    return c->size - c->at;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t u64_at(const uint8_t *p)
{
    return u32_at(p) | (uint64_t)u32_at(p + 4) << 32;
}

gguf_shown gguf_show(gguf_string s)
{
    gguf_shown shown;
    size_t n = s.bytes < 64 ? s.bytes : 64;
    for (size_t i = 0; i < n; i++) {
        char c = s.data[i];
        shown.text[i] = c > 0x20 && c < 0x7f ? c : '?';
    }
    memcpy(shown.text + n, n < s.bytes ? "..." : "", n < s.bytes ? 4 : 1);
    return shown;
}

int gguf_compare(gguf_string a, gguf_string b)
{
    size_t n = a.bytes < b.bytes ? a.bytes : b.bytes;
    int order = n == 0 ? 0 : memcmp(a.data, b.data, n);
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

const char *gguf_value_type_name(gguf_value_type type)
{
    static const char *const names[GGUF_TYPE_COUNT] = {
            "U8", "I8", "U16", "I16", "U32", "I32", "F32", "BOOL", "string", "array", "U64", "I64", "F64"};
    return names[type];
}

static unsigned scalar_bytes(gguf_value_type type)
{
    static const uint8_t bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[type];
}

/* ---- keys ---- */

/* A name: of a key or a tensor (`kind`), number `index` in its list. */
static status read_name(cursor *c, const char *kind, uint64_t index, gguf_string *out)
{
    if (left(c) < 8) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: truncated: %s %" PRIu64 " should begin at offset %" PRIu64 ", the file has %" PRIu64
                " bytes",
                c->file, kind, index, c->at, c->size);
    }
    uint64_t bytes = u64_at(c->data + c->at);
    if (bytes == 0 || bytes > NAME_BYTES_MAX || bytes > left(c) - 8) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: the name of %s %" PRIu64 " has length %" PRIu64 " at offset %" PRIu64
                ", must be 1 to %" PRIu64,
                c->file, kind, index, bytes, c->at,
                left(c) - 8 < NAME_BYTES_MAX ? left(c) - 8 : (uint64_t)NAME_BYTES_MAX);
    }
    *out = (gguf_string){(const char *)c->data + c->at + 8, (size_t)bytes};
    c->at += 8 + bytes;
    return ST_OK;
}

static status value_truncated(const cursor *c, const gguf_key *key, uint64_t needed)
{
    return FAIL(c->e, ST_ERR_FORMAT,
            "%s: key %s: its value needs %" PRIu64 " bytes at offset %" PRIu64 ", %" PRIu64 " are left",
            c->file, gguf_show(key->name).text, needed, c->at, left(c));
}

static status read_value_type(cursor *c, const gguf_key *key, gguf_value_type *out)
{
    if (left(c) < 4) {
        return value_truncated(c, key, 4);
    }
    uint32_t type = u32_at(c->data + c->at);
    if (type >= GGUF_TYPE_COUNT) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: key %s: value type is %u, must be 0 to 12", c->file,
                gguf_show(key->name).text, type);
    }
    *out = (gguf_value_type)type;
    c->at += 4;
    return ST_OK;
}

static status read_string_value(cursor *c, const gguf_key *key, gguf_string *out)
{
    if (left(c) < 8) {
        return value_truncated(c, key, 8);
    }
    uint64_t bytes = u64_at(c->data + c->at);
    c->at += 8;
    if (bytes > left(c)) {
        return value_truncated(c, key, bytes);
    }
    *out = (gguf_string){(const char *)c->data + c->at, (size_t)bytes};
    c->at += bytes;
    return ST_OK;
}

static status no_memory(const cursor *c, const char *what)
{
    return FAIL(c->e, ST_ERR_MEMORY, "%s: out of memory for %s", c->file, what);
}

static status read_string_items(cursor *c, gguf_key *key)
{
    if (key->count > left(c) / 8) {
        return value_truncated(c, key, key->count > UINT64_MAX / 8 ? UINT64_MAX : key->count * 8);
    }
    gguf_string *items = base_zalloc((size_t)key->count, sizeof *items);
    if (items == NULL) {
        return no_memory(c, gguf_show(key->name).text);
    }
    key->items = items;
    for (uint64_t i = 0; i < key->count; i++) {
        TRY(read_string_value(c, key, &items[i]));
    }
    return ST_OK;
}

static status read_array_value(cursor *c, gguf_key *key)
{
    TRY(read_value_type(c, key, &key->item_type));
    if (key->item_type == GGUF_ARRAY) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: key %s: an array of arrays, must be an array of plain values",
                c->file, gguf_show(key->name).text);
    }
    if (left(c) < 8) {
        return value_truncated(c, key, 8);
    }
    key->count = u64_at(c->data + c->at);
    c->at += 8;
    key->value = c->data + c->at;
    if (key->item_type == GGUF_STRING) {
        return read_string_items(c, key);
    }
    unsigned item_bytes = scalar_bytes(key->item_type);
    if (key->count > left(c) / item_bytes) {
        return value_truncated(c, key, key->count > UINT64_MAX / 8 ? UINT64_MAX : key->count * item_bytes);
    }
    if (item_bytes == 4) {
        uint32_t *items = base_alloc((size_t)key->count * 4);
        if (items == NULL) {
            return no_memory(c, gguf_show(key->name).text);
        }
        for (uint64_t i = 0; i < key->count; i++) {
            items[i] = u32_at(key->value + 4 * i);
        }
        key->items = items;
    }
    c->at += key->count * item_bytes;
    return ST_OK;
}

static status read_key(cursor *c, uint64_t index, gguf_key *key)
{
    TRY(read_name(c, "key", index, &key->name));
    TRY(read_value_type(c, key, &key->type));
    if (key->type == GGUF_ARRAY) {
        return read_array_value(c, key);
    }
    if (key->type == GGUF_STRING) {
        gguf_string text = {0};
        TRY(read_string_value(c, key, &text));
        key->value = (const uint8_t *)text.data;
        key->count = text.bytes;
        return ST_OK;
    }
    unsigned bytes = scalar_bytes(key->type);
    if (bytes > left(c)) {
        return value_truncated(c, key, bytes);
    }
    key->value = c->data + c->at;
    c->at += bytes;
    return ST_OK;
}

static int compare_keys(const void *a, const void *b)
{
    return gguf_compare(((const gguf_key *)a)->name, ((const gguf_key *)b)->name);
}

static status read_keys(gguf *g, cursor *c, uint64_t count)
{
    if (count > left(c) / KEY_BYTES_MIN) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: key count is %" PRIu64 ", the %" PRIu64 " bytes that follow hold at most %" PRIu64,
                c->file, count, left(c), left(c) / KEY_BYTES_MIN);
    }
    g->keys = base_zalloc((size_t)count, sizeof *g->keys);
    if (g->keys == NULL) {
        return no_memory(c, "the keys");
    }
    g->n_keys = (size_t)count; /* zeroed ones close cleanly */
    for (uint64_t i = 0; i < count; i++) {
        TRY(read_key(c, i, &g->keys[i]));
    }
    qsort(g->keys, g->n_keys, sizeof *g->keys, compare_keys);
    for (size_t i = 1; i < g->n_keys; i++) {
        if (gguf_compare(g->keys[i - 1].name, g->keys[i].name) == 0) {
            return FAIL(c->e, ST_ERR_FORMAT, "%s: key %s is there twice", c->file,
                    gguf_show(g->keys[i].name).text);
        }
    }
    return ST_OK;
}

/* ---- tensors ---- */

static status read_alignment(const gguf *g, err *e, uint64_t *out)
{
    err ignored;
    *out = ALIGNMENT_DEFAULT;
    if (!gguf_has(g, "general.alignment")) {
        return ST_OK;
    }
    if (gguf_get_u64(g, "general.alignment", out, &ignored) != ST_OK) {
        return FAIL(e, ST_ERR_FORMAT, "%s: general.alignment is no unsigned integer", g->name);
    }
    if (*out < ALIGNMENT_MIN || *out > ALIGNMENT_MAX || (*out & (*out - 1)) != 0) {
        return FAIL(e, ST_ERR_FORMAT,
                "%s: general.alignment is %" PRIu64 ", must be a power of two from %d to %d", g->name, *out,
                ALIGNMENT_MIN, ALIGNMENT_MAX);
    }
    return ST_OK;
}

/* Checks type and sizes and computes the bytes. */
static status measure_tensor(const cursor *c, gguf_tensor *t, uint32_t type)
{
    gguf_shown name = gguf_show(t->name);
    uint64_t elements = 1;
    if (!krn_type_known(type)) {
        return FAIL(c->e, ST_ERR_UNSUPPORTED, "%s: tensor %s: type %u is not one this program reads", c->file,
                name.text, type);
    }
    t->type = (krn_type)type;
    for (int i = 0; i < t->rank; i++) {
        if (t->size[i] <= 0) {
            return FAIL(c->e, ST_ERR_FORMAT, "%s: tensor %s: size %d is %" PRId64 ", must be positive",
                    c->file, name.text, i, t->size[i]);
        }
        if (!base_mul(elements, (uint64_t)t->size[i], &elements) || elements > INT64_MAX) {
            return FAIL(c->e, ST_ERR_FORMAT, "%s: tensor %s: the product of its sizes is past 2^63", c->file,
                    name.text);
        }
    }
    int block = krn_type_block_elements(t->type);
    if (t->size[0] % block != 0) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: tensor %s: rows of %" PRId64 " elements, %s needs a multiple of %d", c->file, name.text,
                t->size[0], krn_type_name(t->type), block);
    }
    if (!base_mul(elements / (uint64_t)block, (uint64_t)krn_type_block_bytes(t->type), &t->bytes)) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: tensor %s: its bytes are past 2^64", c->file, name.text);
    }
    return ST_OK;
}

static status tensor_truncated(const cursor *c, const gguf_tensor *t)
{
    return FAIL(c->e, ST_ERR_FORMAT, "%s: truncated: the directory ends inside tensor %s", c->file,
            gguf_show(t->name).text);
}

/* The offset, relative to the start of the data, waits in *offset: where the data start is known at the end only. */
static status read_tensor(cursor *c, uint64_t index, gguf_tensor *t, uint64_t *offset)
{
    TRY(read_name(c, "tensor", index, &t->name));
    if (left(c) < 4) {
        return tensor_truncated(c, t);
    }
    uint32_t rank = u32_at(c->data + c->at);
    c->at += 4;
    if (rank < 1 || rank > 4) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: tensor %s: rank is %u, must be 1 to 4", c->file,
                gguf_show(t->name).text, rank);
    }
    if (left(c) < 8u * rank + 12) {
        return tensor_truncated(c, t);
    }
    t->rank = (int)rank;
    for (int i = 0; i < 4; i++) {
        t->size[i] = 1;
        if (i < t->rank) {
            uint64_t size = u64_at(c->data + c->at);
            t->size[i] = size > INT64_MAX ? -1 : (int64_t)size;
            c->at += 8;
        }
    }
    uint32_t type = u32_at(c->data + c->at);
    *offset = u64_at(c->data + c->at + 4);
    c->at += 12;
    return measure_tensor(c, t, type);
}

static status place_tensor(
        const cursor *c, gguf_tensor *t, uint64_t offset, uint64_t start, uint64_t alignment)
{
    uint64_t data_bytes = c->size > start ? c->size - start : 0;
    gguf_shown name = gguf_show(t->name);
    if (offset % alignment != 0) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, c->file,
                name.text, offset, alignment);
    }
    if (offset > data_bytes || t->bytes > data_bytes - offset) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: tensor %s: truncated: %" PRIu64 " bytes at offset %" PRIu64
                " of the data, which has %" PRIu64 " bytes",
                c->file, name.text, t->bytes, offset, data_bytes);
    }
    t->data = c->data + start + offset;
    return ST_OK;
}

/* Heap sort would do; a merge keeps this file free of a comparator with context. */
static void sort_by_name(const gguf_tensor *tensors, uint32_t *order, uint32_t *spare, size_t n)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t from = 0; from < n; from += 2 * width) {
            size_t middle = from + width < n ? from + width : n;
            size_t to = from + 2 * width < n ? from + 2 * width : n;
            size_t a = from;
            size_t b = middle;
            for (size_t i = from; i < to; i++) {
                bool take_a = a < middle &&
                        (b == to || gguf_compare(tensors[order[a]].name, tensors[order[b]].name) <= 0);
                spare[i] = take_a ? order[a++] : order[b++];
            }
        }
        memcpy(order, spare, n * sizeof *order);
    }
}

static status index_tensors(gguf *g, err *e)
{
    uint32_t *spare = base_alloc(g->n_tensors * sizeof *spare);
    g->by_name = base_alloc(g->n_tensors * sizeof *g->by_name);
    if (spare == NULL || g->by_name == NULL) {
        base_free(spare);
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory for the tensor index", g->name);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        g->by_name[i] = (uint32_t)i;
    }
    sort_by_name(g->tensors, g->by_name, spare, g->n_tensors);
    base_free(spare);
    for (size_t i = 1; i < g->n_tensors; i++) {
        gguf_string name = g->tensors[g->by_name[i]].name;
        if (gguf_compare(g->tensors[g->by_name[i - 1]].name, name) == 0) {
            return FAIL(e, ST_ERR_FORMAT, "%s: tensor %s is there twice", g->name, gguf_show(name).text);
        }
    }
    return ST_OK;
}

static status place_tensors(const gguf *g, const cursor *c, const uint64_t *offsets)
{
    uint64_t alignment = 0;
    TRY(read_alignment(g, c->e, &alignment));
    uint64_t start = (c->at + alignment - 1) / alignment * alignment; /* at <= size of a map: no wrap */
    for (size_t i = 0; i < g->n_tensors; i++) {
        TRY(place_tensor(c, &g->tensors[i], offsets[i], start, alignment));
    }
    return ST_OK;
}

static status read_tensors(gguf *g, cursor *c, uint64_t count)
{
    if (count > left(c) / TENSOR_BYTES_MIN || count > UINT32_MAX) {
        return FAIL(c->e, ST_ERR_FORMAT,
                "%s: tensor count is %" PRIu64 ", the %" PRIu64 " bytes that follow hold at most %" PRIu64,
                c->file, count, left(c), left(c) / TENSOR_BYTES_MIN);
    }
    uint64_t *offsets = base_alloc((size_t)count * sizeof *offsets);
    g->tensors = base_zalloc((size_t)count, sizeof *g->tensors);
    status s = offsets == NULL || g->tensors == NULL ? no_memory(c, "the tensor directory") : ST_OK;
    g->n_tensors = (size_t)count;
    for (uint64_t i = 0; s == ST_OK && i < count; i++) {
        s = read_tensor(c, i, &g->tensors[i], &offsets[i]);
    }
    if (s == ST_OK) {
        s = index_tensors(g, c->e);
    }
    if (s == ST_OK) {
        s = place_tensors(g, c, offsets);
    }
    base_free(offsets);
    return s;
}

/* ---- the whole ---- */

static status read_header(cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    if (c->size == 0) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: empty file, a GGUF header has %d bytes", c->file, HEADER_BYTES);
    }
    if (c->size < 4 || memcmp(c->data, "GGUF", 4) != 0) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: no model: the magic at its start is not GGUF", c->file);
    }
    if (c->size < HEADER_BYTES) {
        return FAIL(c->e, ST_ERR_FORMAT, "%s: truncated: a GGUF header has %d bytes, the file has %" PRIu64,
                c->file, HEADER_BYTES, c->size);
    }
    uint32_t version = u32_at(c->data + 4);
    if (version != 0 && (version & 0xffff) == 0) {
        return FAIL(c->e, ST_ERR_UNSUPPORTED,
                "%s: GGUF version reads as %u: a big-endian file, must be little-endian", c->file, version);
    }
    if (version != 2 && version != 3) {
        return FAIL(c->e, ST_ERR_UNSUPPORTED, "%s: GGUF version is %u, must be 2 or 3", c->file, version);
    }
    *n_tensors = u64_at(c->data + 8);
    *n_keys = u64_at(c->data + 16);
    c->at = HEADER_BYTES;
    return ST_OK;
}

static status read_all(gguf *g, const void *data, size_t bytes, err *e)
{
    cursor c = {.data = data, .size = bytes, .file = g->name, .e = e};
    uint64_t n_tensors = 0;
    uint64_t n_keys = 0;
    TRY(read_header(&c, &n_tensors, &n_keys));
    TRY(read_keys(g, &c, n_keys));
    return read_tensors(g, &c, n_tensors);
}

static status create(const char *path, gguf **out, err *e)
{
    const char *slash = strrchr(path, '/');
    gguf *g = base_zalloc(1, sizeof *g);
    if (g == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory", path);
    }
    g->path = base_strdup(path);
    g->name = base_strdup(slash != NULL && slash[1] != '\0' ? slash + 1 : path);
    if (g->path == NULL || g->name == NULL) {
        gguf_close(g);
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory", path);
    }
    *out = g;
    return ST_OK;
}

status gguf_open_memory(const void *data, size_t bytes, const char *name, gguf **out, err *e)
{
    gguf *g = NULL;
    TRY(create(name, &g, e));
    status s = read_all(g, data, bytes, e);
    if (s != ST_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

status gguf_open(const char *path, gguf **out, err *e)
{
    gguf *g = NULL;
    TRY(create(path, &g, e));
    status s = base_map_open(path, &g->map, e);
    if (s == ST_OK) {
        s = read_all(g, g->map.data, g->map.size, e);
    }
    if (s != ST_OK) {
        gguf_close(g);
        return s;
    }
    *out = g;
    return ST_OK;
}

void gguf_close(gguf *g)
{
    if (g == NULL) {
        return;
    }
    for (size_t i = 0; i < g->n_keys; i++) {
        base_free(g->keys[i].items);
    }
    base_free(g->keys);
    base_free(g->tensors);
    base_free(g->by_name);
    base_map_close(&g->map);
    base_free(g->name);
    base_free(g->path);
    base_free(g);
}
