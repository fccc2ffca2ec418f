/*
 * Reads a calibration file. The scanner knows the JSON that safetensors headers are made of: one object of objects, strings
 * without escapes, whole numbers, lists of whole numbers. Members may come in any order; tensors that are not ours are
 * skipped after the same checks. Sizes are bounded before anything is allocated by them.
 */
#include <math.h>
#include <string.h>

#include "kvq/calibration_parts.h"

enum {
    NAME_BYTES_MAX = 128,
    LAYERS_MAX = 4096,
    HEADS_MAX = 4096,
    TENSORS_MAX = 64,
    HEADER_BYTES_MAX = 1 << 20
};

typedef struct scan {
    const char *at, *end;
} scan;

typedef struct entry {
    char name[NAME_BYTES_MAX], type[16];
    int rank;
    uint64_t size[KVQ_PART_RANK_MAX], begin, end;
} entry;

typedef struct file {
    const char *name; /* for messages */
    const uint8_t *data;
    uint64_t data_bytes;
    entry entries[TENSORS_MAX];
    int n_entries;
    char format[NAME_BYTES_MAX], model[NAME_BYTES_MAX];
    uint64_t weights, tokens, layers, kv_heads, d;
} file;

/* ---- scanner: each returns false on anything unexpected ---- */

static void skip_space(scan *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')) {
        s->at++;
    }
}

static bool take(scan *s, char wanted)
{
    skip_space(s);
    if (s->at < s->end && *s->at == wanted) {
        s->at++;
        return true;
    }
    return false;
}

static bool take_string(scan *s, char *out, size_t room)
{
    size_t n = 0;
    if (!take(s, '"')) {
        return false;
    }
    for (; s->at < s->end && *s->at != '"'; s->at++) {
        if (*s->at == '\\' || (unsigned char)*s->at < 0x20 || n + 1 >= room) {
            return false;
        }
        out[n++] = *s->at;
    }
    out[n] = '\0';
    return take(s, '"');
}

static bool take_number(scan *s, uint64_t *out)
{
    uint64_t value = 0;
    skip_space(s);
    const char *from = s->at;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9' && s->at - from < 15; s->at++) {
        value = 10 * value + (uint64_t)(*s->at - '0');
    }
    *out = value;
    return s->at > from;
}

static bool take_list(scan *s, uint64_t *out, int room, int *n)
{
    *n = 0;
    if (!take(s, '[')) {
        return false;
    }
    if (take(s, ']')) {
        return true;
    }
    do {
        if (*n == room || !take_number(s, &out[(*n)++])) {
            return false;
        }
    } while (take(s, ','));
    return take(s, ']');
}

static bool take_tensor(scan *s, entry *t)
{
    char member[NAME_BYTES_MAX];
    uint64_t range[2] = {1, 0};
    int n_range = 0;
    t->rank = -1;
    if (!take(s, '{')) {
        return false;
    }
    do {
        bool good = take_string(s, member, sizeof member) && take(s, ':');
        if (good && strcmp(member, "dtype") == 0) {
            good = take_string(s, t->type, sizeof t->type);
        } else if (good && strcmp(member, "shape") == 0) {
            good = take_list(s, t->size, KVQ_PART_RANK_MAX, &t->rank);
        } else {
            good = good && strcmp(member, "data_offsets") == 0 && take_list(s, range, 2, &n_range);
        }
        if (!good) {
            return false;
        }
    } while (take(s, ','));
    t->begin = range[0];
    t->end = range[1];
    return take(s, '}') && t->rank >= 0 && n_range == 2 && t->type[0] != '\0' && t->begin <= t->end;
}

static bool number_of(const char *text, unsigned base, uint64_t *out)
{
    uint64_t value = 0;
    const char *digits = "0123456789abcdef";
    if (text[0] == '\0' || strlen(text) > 16) {
        return false;
    }
    for (const char *c = text; *c != '\0'; c++) {
        const char *digit = strchr(digits, *c);
        if (digit == NULL || (unsigned)(digit - digits) >= base) {
            return false;
        }
        value = base * value + (uint64_t)(digit - digits);
    }
    *out = value;
    return true;
}

static bool take_metadata(scan *s, file *f)
{
    char member[NAME_BYTES_MAX], value[NAME_BYTES_MAX];
    if (!take(s, '{')) {
        return false;
    }
    do {
        if (!take_string(s, member, sizeof member) || !take(s, ':') || !take_string(s, value, sizeof value)) {
            return false;
        }
        const struct {
            const char *name;
            unsigned base;
            uint64_t *out;
        } numbers[] = {{"weights", 16, &f->weights}, {"tokens", 10, &f->tokens}, {"layers", 10, &f->layers},
                {"kv_heads", 10, &f->kv_heads}, {"d", 10, &f->d}};
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
            if (strcmp(member, numbers[i].name) == 0 && !number_of(value, numbers[i].base, numbers[i].out)) {
                return false;
            }
        }
        if (strcmp(member, "format") == 0) {
            memcpy(f->format, value, sizeof value);
        } else if (strcmp(member, "model") == 0) {
            memcpy(f->model, value, sizeof value);
        }
    } while (take(s, ','));
    return take(s, '}');
}

static bool take_header(scan *s, file *f)
{
    if (!take(s, '{')) {
        return false;
    }
    do {
        if (f->n_entries == TENSORS_MAX) {
            return false;
        }
        entry *t = &f->entries[f->n_entries];
        if (!take_string(s, t->name, sizeof t->name) || !take(s, ':')) {
            return false;
        }
        if (strcmp(t->name, "__metadata__") == 0) {
            if (!take_metadata(s, f)) {
                return false;
            }
        } else if (!take_tensor(s, t) || t->end > f->data_bytes) {
            return false;
        } else {
            f->n_entries++;
        }
    } while (take(s, ','));
    bool closed = take(s, '}');
    skip_space(s);
    return closed && s->at == s->end;
}

/* ---- from the header to arrays ---- */

static const entry *find(const file *f, const char *name)
{
    for (int i = 0; i < f->n_entries; i++) {
        if (strcmp(f->entries[i].name, name) == 0) {
            return &f->entries[i];
        }
    }
    return NULL;
}

static status wrong(const file *f, const char *name, const char *what, err *e)
{
    return FAIL(e, ST_ERR_FORMAT, "%.200s: %s%s%s", f->name, name, name[0] != '\0' ? " " : "", what);
}

static bool fits_table(const entry *t, const kvq_part *p)
{
    bool fits = strcmp(t->type, p->type) == 0 && t->rank == p->rank &&
            t->end - t->begin == 4 * (uint64_t)kvq_part_elements(p);
    for (int i = 0; fits && i < p->rank; i++) {
        fits = t->size[i] == (uint64_t)p->size[i];
    }
    return fits;
}

static status check_numbers(const file *f, const kvq_part *p, size_t d, err *e)
{
    size_t n = kvq_part_elements(p);
    if (strcmp(p->type, "I32") == 0) {
        const int32_t *bits = *p->data;
        for (size_t i = 0; i < n; i++) {
            if (bits[i] != 2 && bits[i] != 4) {
                return wrong(f, p->name, "holds a number of bits that is neither 2 nor 4", e);
            }
        }
        return ST_OK;
    }
    const float *x = *p->data;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return wrong(f, p->name, "holds a number that is not finite", e);
        }
    }
    for (size_t at = 0; p->orthogonal && at < n; at += d * d) {
        if (!kvq_is_orthogonal(x + at, d)) {
            return wrong(f, p->name, "holds a matrix that is not orthogonal", e);
        }
    }
    return ST_OK;
}

static status read_parts(const file *f, unsigned groups, kvq_calibration *c, err *e)
{
    kvq_part parts[KVQ_PART_COUNT];
    kvq_calibration_parts(c, parts);
    for (int i = 0; i < KVQ_PART_COUNT; i++) {
        const kvq_part *p = &parts[i];
        if (p->group != 0 && (p->group & groups) == 0) {
            continue;
        }
        const entry *t = find(f, p->name);
        if (t == NULL || !fits_table(t, p)) {
            return wrong(f, p->name, t == NULL ? "is missing" : "has another type, shape or length", e);
        }
        memcpy(*p->data, f->data + t->begin, (size_t)(t->end - t->begin));
        TRY(check_numbers(f, p, (size_t)c->shape.d, e));
    }
    return ST_OK;
}

static status check_shape(const file *f, err *e)
{
    if (strcmp(f->format, KVQ_CALIBRATION_FORMAT) != 0) {
        return wrong(f, "", "is no calibration file of this version (its metadata say so)", e);
    }
    bool good = f->layers >= 1 && f->layers <= LAYERS_MAX && f->kv_heads >= 1 && f->kv_heads <= HEADS_MAX &&
            (f->d == 64 || f->d == 128 || f->d == 256);
    /* The arrays are allocated by these numbers: the file must be long enough to fill the smallest of them. */
    const entry *bits = find(f, "k_bits");
    good = good && bits != NULL && bits->end - bits->begin == 4 * f->layers;
    return good ? ST_OK : wrong(f, "", "has an impossible shape", e);
}

status kvq_calibration_read_memory(
        const void *data, size_t bytes, const char *name, kvq_calibration *out, err *e)
{
    file f = {.name = name};
    uint64_t header_bytes = 0;
    const uint8_t *raw = data;
    for (int i = 0; bytes >= 8 && i < 8; i++) {
        header_bytes |= (uint64_t)raw[i] << (8 * i);
    }
    if (bytes < 8 || header_bytes > bytes - 8 || header_bytes > HEADER_BYTES_MAX) {
        return wrong(&f, "", "is no safetensors file", e);
    }
    f.data = raw + 8 + header_bytes;
    f.data_bytes = bytes - 8 - header_bytes;
    scan s = {.at = (const char *)raw + 8, .end = (const char *)f.data};
    if (!take_header(&s, &f)) {
        return wrong(&f, "", "has a header that is not a safetensors header", e);
    }
    TRY(check_shape(&f, e));
    unsigned groups = (find(&f, "k_rotation") != NULL ? KVQ_CALIBRATION_HEADS : 0u) |
            (find(&f, "shared_k_rotation") != NULL ? KVQ_CALIBRATION_SHARED : 0u);
    if (groups == 0) {
        return wrong(&f, "", "holds no rotations", e);
    }
    uint64_t d = f.d, heads = f.layers * f.kv_heads;
    uint64_t least = ((groups & KVQ_CALIBRATION_HEADS) != 0 ? 4 * heads * d * d : 0) +
            ((groups & KVQ_CALIBRATION_SHARED) != 0 ? 8 * f.layers * d * d : 0);
    if (least > f.data_bytes) {
        return wrong(&f, "", "is cut off", e);
    }
    kvq_shape shape = {.layers = (int)f.layers, .kv_heads = (int)f.kv_heads, .d = (int)d};
    kvq_calibration c = {0};
    TRY(kvq_calibration_create(&shape, groups, &c, e));
    memcpy(c.model, f.model, sizeof c.model);
    c.model[sizeof c.model - 1] = '\0';
    c.weights = f.weights;
    c.tokens = (int64_t)(f.tokens & INT64_MAX);
    status st = read_parts(&f, groups, &c, e);
    if (st != ST_OK) {
        kvq_calibration_free(&c);
        return st;
    }
    *out = c;
    return ST_OK;
}

status kvq_calibration_read(const char *path, kvq_calibration *out, err *e)
{
    base_map map = {0};
    TRY(base_map_open(path, &map, e));
    status s = kvq_calibration_read_memory(map.data, map.size, path, out, e);
    base_map_close(&map);
    return s;
}
