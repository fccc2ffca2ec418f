/*
 * safetensors: an 8-byte header length, a JSON header that names every tensor, then the tensors' bytes.
 *
 * The header is read by a scanner of its own, which knows just this grammar: it is strict (whole header consumed,
 * UTF-8, no name twice, whole numbers exact) and bounded (header bytes, name bytes, rank). Before any tensor is
 * handed out: its type is known, shape times element size is the length of its range, and all ranges together cover
 * the data without a gap or an overlap. Every error names the file and, where there is one, the tensor.
 *
 * Not read: tensors of more than four axes or of integer, bool, F64 or F8 type are checked like the others, but
 * safetensors_find answers ST_ERR_UNSUPPORTED for them.
 */
#include <stdlib.h>
#include <string.h>

#include "agent/encoder_internal.h"

enum {
    HEADER_BYTES_MAX = 16 << 20, /* arbitrary; the format's own limit is 100 MB */
    NAME_BYTES_MAX = 256,
    RANK_MAX = 8,
    READABLE_RANK_MAX = 4,
    TENSORS_MAX = 1 << 16
};

typedef struct dtype {
    const char *name;
    uint32_t bytes;
    bool readable;
    krn_type type;
} dtype;

static const dtype dtypes[] = {{"F32", 4, true, KRN_F32}, {"F16", 2, true, KRN_F16},
        {"BF16", 2, true, KRN_BF16}, {"F64", 8, false, KRN_F32}, {"I64", 8, false, KRN_F32},
        {"I32", 4, false, KRN_F32}, {"I16", 2, false, KRN_F32}, {"I8", 1, false, KRN_F32},
        {"U64", 8, false, KRN_F32}, {"U32", 4, false, KRN_F32}, {"U16", 2, false, KRN_F32},
        {"U8", 1, false, KRN_F32}, {"BOOL", 1, false, KRN_F32}, {"F8_E4M3", 1, false, KRN_F32},
        {"F8_E5M2", 1, false, KRN_F32}};

typedef struct entry {
    char *name;
    const dtype *type;
    int rank;
    uint64_t size[RANK_MAX];
    uint64_t begin, end; /* bytes from the start of the data */
} entry;

struct safetensors {
    base_map map; /* data NULL when opened from memory */
    char *file;
    const uint8_t *bytes;
    size_t n_bytes;
    const uint8_t *data;
    uint64_t data_bytes;
    entry *entries; /* sorted by name */
    size_t n_entries, entries_cap;
};

/* ---- scanner ---- */

typedef struct scan {
    const char *text;
    size_t size, at;
    const char *file;
    const char *tensor; /* "" before the first */
    err *e;
} scan;

static status scan_fail(const scan *s, const char *what)
{
    if (s->tensor[0] != '\0') {
        return FAIL(s->e, ST_ERR_FORMAT, "%s: tensor \"%s\": %s at byte %zu of the header", s->file,
                s->tensor, what, s->at);
    }
    return FAIL(s->e, ST_ERR_FORMAT, "%s: %s at byte %zu of the header", s->file, what, s->at);
}

static void skip_space(scan *s)
{
    while (s->at < s->size &&
            (s->text[s->at] == ' ' || s->text[s->at] == '\t' || s->text[s->at] == '\n' ||
                    s->text[s->at] == '\r')) {
        s->at++;
    }
}

/* Takes the character c when it comes next, after white space. */
static bool scan_take(scan *s, char c)
{
    skip_space(s);
    if (s->at < s->size && s->text[s->at] == c) {
        s->at++;
        return true;
    }
    return false;
}

static status scan_expect(scan *s, char c)
{
    char what[] = "expected ' '";
    what[10] = c;
    return scan_take(s, c) ? ST_OK : scan_fail(s, what);
}

static status scan_hex4(scan *s, uint32_t *out)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = s->at < s->size ? s->text[s->at] : '\0';
        uint32_t digit;
        if (c >= '0' && c <= '9') {
            digit = (uint32_t)(c - '0');
        } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            digit = ((uint32_t)c & 0x1fu) + 9;
        } else {
            return scan_fail(s, "expected four hexadecimal digits");
        }
        value = value * 16 + digit;
    }
    *out = value;
    return ST_OK;
}

/* The code point after "\u", a surrogate pair joined. */
static status scan_code_point(scan *s, uint32_t *out)
{
    uint32_t high = 0;
    TRY(scan_hex4(s, &high));
    if (high >= 0xd800 && high < 0xdc00) {
        uint32_t low = 0;
        if (s->at + 2 > s->size || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u') {
            return scan_fail(s, "half a surrogate pair");
        }
        s->at += 2;
        TRY(scan_hex4(s, &low));
        if (low < 0xdc00 || low >= 0xe000) {
            return scan_fail(s, "half a surrogate pair");
        }
        high = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    } else if (high >= 0xdc00 && high < 0xe000) {
        return scan_fail(s, "half a surrogate pair");
    }
    if (high == 0) {
        return scan_fail(s, "a NUL in a string");
    }
    *out = high;
    return ST_OK;
}

static size_t put_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) {
        out[i] = (char)(0x80 | (c & 0x3f));
    }
    out[0] = (char)((0xf00u >> n) | c);
    return n;
}

/* What follows a backslash. */
static status scan_escape(scan *s, char out[4], size_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->size ? s->text[s->at] : '\0';
    if (c == 'u') {
        uint32_t code_point = 0;
        s->at++;
        TRY(scan_code_point(s, &code_point));
        *n = put_utf8(code_point, out);
        return ST_OK;
    }
    const char *found = c == '\0' ? NULL : strchr(names, c);
    if (found == NULL) {
        return scan_fail(s, "unknown escape");
    }
    s->at++;
    out[0] = values[found - names];
    *n = 1;
    return ST_OK;
}

/* A string, NUL-terminated. `out` NULL: any length, thrown away. */
static status scan_string(scan *s, char *out, size_t cap)
{
    TRY(scan_expect(s, '"'));
    for (size_t used = 0;;) {
        if (s->at >= s->size) {
            return scan_fail(s, "unterminated string");
        }
        char piece[4] = {s->text[s->at++]};
        size_t n = 1;
        if (piece[0] == '"') {
            if (out != NULL) {
                out[used] = '\0';
            }
            return ST_OK;
        }
        if ((unsigned char)piece[0] < 0x20) {
            return scan_fail(s, "control character in a string");
        }
        if (piece[0] == '\\') {
            TRY(scan_escape(s, piece, &n));
        }
        if (out != NULL) {
            if (used + n >= cap) {
                return scan_fail(s, "string too long");
            }
            memcpy(out + used, piece, n);
            used += n;
        }
    }
}

static status scan_u64(scan *s, uint64_t *out)
{
    uint64_t value = 0;
    skip_space(s);
    size_t start = s->at;
    for (; s->at < s->size && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++) {
        if (!base_mul(value, 10, &value) || !base_add(value, (uint64_t)(s->text[s->at] - '0'), &value)) {
            return scan_fail(s, "number too large");
        }
    }
    if (s->at == start || (s->text[start] == '0' && s->at > start + 1)) {
        return scan_fail(s, "expected a whole number, zero or more");
    }
    *out = value;
    return ST_OK;
}

/* [n, n, ...] of at most `max` numbers. */
static status scan_numbers(scan *s, uint64_t *out, int max, int *n)
{
    *n = 0;
    TRY(scan_expect(s, '['));
    if (scan_take(s, ']')) {
        return ST_OK;
    }
    do {
        if (*n == max) {
            return scan_fail(s, "too many numbers");
        }
        TRY(scan_u64(s, &out[*n]));
        (*n)++;
    } while (scan_take(s, ','));
    return scan_expect(s, ']');
}

/* ---- header ---- */

static const dtype *dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

static status scan_dtype(scan *s, entry *t)
{
    char name[16];
    TRY(scan_string(s, name, sizeof name));
    t->type = dtype_find(name);
    return t->type != NULL ? ST_OK : scan_fail(s, "unknown dtype");
}

static status scan_offsets(scan *s, entry *t)
{
    uint64_t range[2] = {0};
    int n;
    TRY(scan_numbers(s, range, 2, &n));
    if (n != 2) {
        return scan_fail(s, "data_offsets needs two numbers");
    }
    t->begin = range[0];
    t->end = range[1];
    return ST_OK;
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, each once, in any order. */
static status scan_tensor(scan *s, entry *t)
{
    static const char *const members[] = {"dtype", "shape", "data_offsets"};
    bool seen[3] = {false, false, false};
    TRY(scan_expect(s, '{'));
    do {
        char member[16];
        int which = 0;
        TRY(scan_string(s, member, sizeof member));
        TRY(scan_expect(s, ':'));
        while (which < 3 && strcmp(member, members[which]) != 0) {
            which++;
        }
        if (which == 3 || seen[which]) {
            return scan_fail(s, which == 3 ? "unknown member" : "the same member twice");
        }
        seen[which] = true;
        if (which == 0) {
            TRY(scan_dtype(s, t));
        } else if (which == 1) {
            TRY(scan_numbers(s, t->size, RANK_MAX, &t->rank));
        } else {
            TRY(scan_offsets(s, t));
        }
    } while (scan_take(s, ','));
    TRY(scan_expect(s, '}'));
    if (!seen[0] || !seen[1] || !seen[2]) {
        return scan_fail(s, "needs dtype, shape and data_offsets, but it ends");
    }
    return ST_OK;
}

/* Free text by name; read for its grammar alone. */
static status scan_metadata(scan *s)
{
    TRY(scan_expect(s, '{'));
    if (scan_take(s, '}')) {
        return ST_OK;
    }
    do {
        TRY(scan_string(s, NULL, 0));
        TRY(scan_expect(s, ':'));
        TRY(scan_string(s, NULL, 0));
    } while (scan_take(s, ','));
    return scan_expect(s, '}');
}

static status check_tensor(const safetensors *st, const entry *t, err *e)
{
    uint64_t bytes = t->type->bytes;
    for (int i = 0; i < t->rank; i++) {
        if (!base_mul(bytes, t->size[i], &bytes) || t->size[i] > INT64_MAX) {
            return FAIL(e, ST_ERR_FORMAT, "%s: tensor \"%s\": its sizes multiply past 64 bits", st->file,
                    t->name);
        }
    }
    if (t->end < t->begin || t->end > st->data_bytes) {
        return FAIL(e, ST_ERR_FORMAT, "%s: tensor \"%s\": data_offsets [%llu, %llu] in %llu bytes of data",
                st->file, t->name, (unsigned long long)t->begin, (unsigned long long)t->end,
                (unsigned long long)st->data_bytes);
    }
    if (t->end - t->begin != bytes) {
        return FAIL(e, ST_ERR_FORMAT,
                "%s: tensor \"%s\": shape and dtype need %llu bytes, data_offsets give %llu", st->file,
                t->name, (unsigned long long)bytes, (unsigned long long)(t->end - t->begin));
    }
    return ST_OK;
}

static status add_entry(safetensors *st, entry *t, const char *name)
{
    void *entries = st->entries;
    TRY(base_grow(&entries, &st->entries_cap, st->n_entries + 1, TENSORS_MAX, sizeof *t));
    st->entries = entries;
    t->name = base_strdup(name);
    if (t->name == NULL) {
        return ST_ERR_MEMORY;
    }
    st->entries[st->n_entries++] = *t;
    return ST_OK;
}

static status scan_header(safetensors *st, scan *s)
{
    char name[NAME_BYTES_MAX + 1] = "";
    bool metadata_seen = false;
    s->tensor = name;
    TRY(scan_expect(s, '{'));
    if (!scan_take(s, '}')) {
        do {
            entry t = {0};
            name[0] = '\0';
            TRY(scan_string(s, name, sizeof name));
            TRY(scan_expect(s, ':'));
            if (strcmp(name, "__metadata__") == 0) {
                if (metadata_seen) {
                    return scan_fail(s, "found twice");
                }
                metadata_seen = true;
                TRY(scan_metadata(s));
                continue;
            }
            TRY(scan_tensor(s, &t));
            TRY(add_entry(st, &t, name));
            TRY(check_tensor(st, &t, s->e));
        } while (scan_take(s, ','));
        name[0] = '\0';
        TRY(scan_expect(s, '}'));
    }
    skip_space(s);
    return s->at == s->size ? ST_OK : scan_fail(s, "something after the end");
}

static int by_begin(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Ranges cover the data exactly (the format's own rule); no name twice. Leaves the entries sorted by name. */
static status check_layout(safetensors *st, err *e)
{
    uint64_t expected = 0;
    if (st->n_entries > 0) {
        qsort(st->entries, st->n_entries, sizeof(entry), by_begin);
    }
    for (size_t i = 0; i < st->n_entries; i++) {
        const entry *t = &st->entries[i];
        if (t->begin != expected) {
            return FAIL(e, ST_ERR_FORMAT,
                    "%s: tensor \"%s\" starts at %llu, but the one before it ends at %llu", st->file, t->name,
                    (unsigned long long)t->begin, (unsigned long long)expected);
        }
        expected = t->end;
    }
    if (expected != st->data_bytes) {
        return FAIL(e, ST_ERR_FORMAT, "%s: tensors end at %llu, but there are %llu bytes of data", st->file,
                (unsigned long long)expected, (unsigned long long)st->data_bytes);
    }
    if (st->n_entries > 0) {
        qsort(st->entries, st->n_entries, sizeof(entry), by_name);
    }
    for (size_t i = 1; i < st->n_entries; i++) {
        if (strcmp(st->entries[i - 1].name, st->entries[i].name) == 0) {
            return FAIL(e, ST_ERR_FORMAT, "%s: tensor \"%s\" is there twice", st->file, st->entries[i].name);
        }
    }
    return ST_OK;
}

static status read_file(safetensors *st, err *e)
{
    uint64_t header_bytes = 0;
    if (st->n_bytes < 8) {
        return FAIL(e, ST_ERR_FORMAT, "%s: %zu bytes are too short for a safetensors file", st->file,
                st->n_bytes);
    }
    for (int i = 7; i >= 0; i--) {
        header_bytes = header_bytes << 8 | st->bytes[i];
    }
    if (header_bytes > st->n_bytes - 8 || header_bytes > HEADER_BYTES_MAX) {
        return FAIL(e, ST_ERR_FORMAT, "%s: header of %llu bytes in a file of %zu (at most %d are read)",
                st->file, (unsigned long long)header_bytes, st->n_bytes, (int)HEADER_BYTES_MAX);
    }
    st->data = st->bytes + 8 + header_bytes;
    st->data_bytes = st->n_bytes - 8 - header_bytes;
    scan s = {(const char *)st->bytes + 8, (size_t)header_bytes, 0, st->file, "", e};
    if (!base_utf8_valid(s.text, s.size)) {
        return scan_fail(&s, "the header is not UTF-8, read");
    }
    status result = scan_header(st, &s);
    if (result == ST_ERR_MEMORY || result == ST_ERR_LIMIT) { /* add_entry leaves no words */
        return FAIL(e, result, "%s: no room for a list of %zu tensors", st->file, st->n_entries + 1);
    }
    return result != ST_OK ? result : check_layout(st, e);
}

/* ---- public ---- */

static status open_checked(
        base_map map, const void *data, size_t bytes, const char *name, safetensors **out, err *e)
{
    status result = ST_ERR_MEMORY;
    safetensors *st = base_zalloc(1, sizeof *st);
    char *file = base_strdup(name);
    if (st == NULL || file == NULL) {
        base_free(st);
        base_free(file);
        base_map_close(&map);
        return FAIL(e, ST_ERR_MEMORY, "%s: no memory to open it", name);
    }
    st->map = map;
    st->file = file;
    st->bytes = data;
    st->n_bytes = bytes;
    result = read_file(st, e);
    if (result != ST_OK) {
        safetensors_close(st);
        return result;
    }
    *out = st;
    return ST_OK;
}

status safetensors_open(const char *path, safetensors **out, err *e)
{
    base_map map = {0};
    TRY(base_map_open(path, &map, e));
    return open_checked(map, map.data, map.size, path, out, e);
}

status safetensors_open_memory(const void *data, size_t bytes, const char *name, safetensors **out, err *e)
{
    return open_checked((base_map){0}, data, bytes, name, out, e);
}

void safetensors_close(safetensors *s)
{
    if (s == NULL) {
        return;
    }
    for (size_t i = 0; i < s->n_entries; i++) {
        base_free(s->entries[i].name);
    }
    base_free(s->entries);
    base_free(s->file);
    base_map_close(&s->map);
    base_free(s);
}

const void *safetensors_bytes(const safetensors *s, size_t *bytes)
{
    *bytes = s->n_bytes;
    return s->bytes;
}

status safetensors_find(const safetensors *s, const char *name, safetensor *out, err *e)
{
    size_t low = 0, high = s->n_entries;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(s->entries[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const entry *t = low < s->n_entries ? &s->entries[low] : NULL;
    if (t == NULL || strcmp(t->name, name) != 0) {
        return FAIL(e, ST_ERR_NOT_FOUND, "%s: there is no tensor \"%s\"", s->file, name);
    }
    if (!t->type->readable || t->rank > READABLE_RANK_MAX) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: tensor \"%s\" has type %s and %d axes; F32, F16, BF16 and at most %d "
                "axes can be read",
                s->file, name, t->type->name, t->rank, (int)READABLE_RANK_MAX);
    }
    if ((uintptr_t)(s->data + t->begin) % t->type->bytes != 0) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: tensor \"%s\" does not start at a multiple of its element size", s->file, name);
    }
    safetensor found = {t->type->type, t->rank, {1, 1, 1, 1}, s->data + t->begin, t->end - t->begin};
    for (int i = 0; i < t->rank; i++) {
        found.size[i] = (int64_t)t->size[i];
    }
    *out = found;
    return ST_OK;
}
