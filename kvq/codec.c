/* Codecs by name: what they are made of, where pages lie in a column, and the fingerprint of it all. */
#include "kvq/codec.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "kvq/trial.h"

enum { LAYERS_MAX = 4096, HEADS_MAX = 4096 };

typedef struct codec_entry {
    const char *name;
    kvq_codec_opener open;
} codec_entry;

static const codec_entry registry[] = {
#define X(name, opener) {name, opener},
#include "kvq/codecs.def"
#undef X
};

static const codec_entry trials[] = {
#define X(name, opener) {name, opener},
#include "kvq/trials.def"
#undef X
};

enum { N_CODECS = sizeof registry / sizeof registry[0], N_TRIALS = sizeof trials / sizeof trials[0] };

static const codec_entry *find_codec(const codec_entry *list, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            return &list[i];
        }
    }
    return NULL;
}

static void append_names(char *text, size_t size, const codec_entry *list, int n)
{
    size_t at = strlen(text);
    for (int i = 0; i < n && at < size; i++) {
        int added = snprintf(text + at, size - at, "%s%s", at == 0 ? "" : ", ", list[i].name);
        at += added > 0 ? (size_t)added : 0;
    }
}

static status refuse_name(const char *name, bool with_trials, err *e)
{
    char list[400] = "";
    append_names(list, sizeof list, registry, N_CODECS);
    if (find_codec(trials, N_TRIALS, name) != NULL) {
        return FAIL(e, ST_ERR_ARG,
                "codec %s can be measured (epimem eval codec) but not stored; these can: %s", name, list);
    }
    if (with_trials) {
        append_names(list, sizeof list, trials, N_TRIALS);
    }
    return FAIL(e, ST_ERR_ARG, "no codec is called \"%.40s\"; there are: %s", name, list);
}

/* ---- fingerprint: numbers one by one, so that padding and pointers stay out ---- */

static uint64_t hash_int(uint64_t seed, int64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)((uint64_t)value >> (8 * i));
    }
    return XXH3_64bits_withSeed(bytes, sizeof bytes, seed);
}

static uint64_t hash_floats(uint64_t seed, const float *x, size_t n)
{
    return x == NULL ? hash_int(seed, 0) : XXH3_64bits_withSeed(x, n * sizeof *x, seed);
}

static uint64_t hash_rotation(uint64_t h, const krn_rotation *r, int d)
{
    size_t n = (size_t)d;
    h = hash_int(h, r->kind);
    h = hash_floats(h, r->kind == KRN_ROTATION_MATRIX ? r->matrix : NULL, n * n);
    return hash_floats(h, r->mean, n);
}

static uint64_t hash_format(uint64_t h, const krn_page_format *f)
{
    h = hash_int(h, f->d);
    h = hash_int(h, f->k_planes);
    h = hash_int(h, f->has_zero);
    h = hash_int(h, f->bytes);
    h = hash_floats(h, f->k_level, 4);
    return hash_floats(h, f->v_level, 4);
}

static uint64_t fingerprint_of(const kvq_codec *c)
{
    uint64_t h = XXH3_64bits(c->name, strlen(c->name));
    h = hash_int(h, KVQ_PAGE_VERSION);
    h = hash_int(h, c->shape.layers);
    h = hash_int(h, c->shape.kv_heads);
    for (int layer = 0; layer < c->shape.layers; layer++) {
        h = hash_format(h, &c->layers[layer].format);
        for (int head = 0; head < c->shape.kv_heads; head++) {
            h = hash_rotation(h, kvq_k_rotation(c, layer, head), c->shape.d);
            h = hash_rotation(h, kvq_v_rotation(c, layer, head), c->shape.d);
        }
    }
    return h;
}

/* ---- for the codecs' folders ---- */

void kvq_codec_rotate_all(kvq_codec *c, krn_rotation_kind kind)
{
    for (int i = 0; i < c->shape.layers * c->shape.kv_heads; i++) {
        c->k_rotations[i] = c->v_rotations[i] = (krn_rotation){.kind = kind};
    }
}

void kvq_codec_set_layers(kvq_codec *c, krn_page_format format, kvq_row_encoder k, kvq_row_encoder v)
{
    kvq_page_lay_out(&format);
    for (int layer = 0; layer < c->shape.layers; layer++) {
        c->layers[layer] = (kvq_layer){.format = format, .encode_k = k, .encode_v = v};
    }
}

void kvq_codec_store_bf16(kvq_codec *c)
{
    c->is_bf16 = true;
    for (int layer = 0; layer < c->shape.layers; layer++) {
        c->layers[layer].format =
                (krn_page_format){.d = c->shape.d, .bytes = kvq_page_bf16_bytes(c->shape.d)};
    }
}

status kvq_refuse_calibration(const kvq_codec *c, const char *calibration_path, err *e)
{
    if (calibration_path != NULL) {
        return FAIL(e, ST_ERR_ARG, "codec %s takes no calibration file (%.200s)", c->name, calibration_path);
    }
    return ST_OK;
}

/* ---- open and close ---- */

static status refuse_shape(const kvq_shape *s, err *e)
{
    if (s->d != 64 && s->d != 128 && s->d != 256) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "head size %d: pages are made for 64, 128 and 256", s->d);
    }
    if (s->layers < 1 || s->layers > LAYERS_MAX || s->kv_heads < 1 || s->kv_heads > HEADS_MAX) {
        return FAIL(e, ST_ERR_ARG, "%d layers of %d KV heads: 1 to %d and 1 to %d are possible", s->layers,
                s->kv_heads, LAYERS_MAX, HEADS_MAX);
    }
    return ST_OK;
}

static status fill(kvq_codec *c, kvq_codec_opener open, const char *calibration_path, err *e)
{
    size_t layers = (size_t)c->shape.layers, heads = layers * (size_t)c->shape.kv_heads;
    c->layers = base_zalloc(layers, sizeof *c->layers);
    c->k_rotations = base_zalloc(heads, sizeof *c->k_rotations);
    c->v_rotations = base_zalloc(heads, sizeof *c->v_rotations);
    c->layer_at = base_zalloc(layers + 1, sizeof *c->layer_at);
    if (c->layers == NULL || c->k_rotations == NULL || c->v_rotations == NULL || c->layer_at == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for codec %s", c->name);
    }
    TRY(open(c, calibration_path, e));
    for (size_t layer = 0; layer < layers; layer++) {
        size_t page = c->layers[layer].format.bytes;
        c->layer_at[layer + 1] = c->layer_at[layer] + page * (size_t)c->shape.kv_heads;
    }
    c->fingerprint = fingerprint_of(c);
    return ST_OK;
}

static status open_entry(const codec_entry *entry,
        const kvq_shape *shape,
        const char *calibration_path,
        kvq_codec **out,
        err *e)
{
    TRY(refuse_shape(shape, e));
    kvq_codec *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for codec %s", entry->name);
    }
    c->name = entry->name;
    c->shape = *shape;
    status s = fill(c, entry->open, calibration_path, e);
    if (s != ST_OK) {
        kvq_codec_close(c);
        return s;
    }
    *out = c;
    return ST_OK;
}

status kvq_codec_open(
        const char *name, const kvq_shape *shape, const char *calibration_path, kvq_codec **out, err *e)
{
    const codec_entry *entry = find_codec(registry, N_CODECS, name);
    return entry != NULL ? open_entry(entry, shape, calibration_path, out, e) : refuse_name(name, false, e);
}

status kvq_codec_open_measured(
        const char *name, const kvq_shape *shape, const char *calibration_path, kvq_codec **out, err *e)
{
    const codec_entry *entry = find_codec(registry, N_CODECS, name);
    entry = entry != NULL ? entry : find_codec(trials, N_TRIALS, name);
    return entry != NULL ? open_entry(entry, shape, calibration_path, out, e) : refuse_name(name, true, e);
}

void kvq_codec_close(kvq_codec *c)
{
    if (c != NULL) {
        if (c->calibration != NULL) {
            kvq_calibration_free(c->calibration);
            base_free(c->calibration);
        }
        base_free(c->layers);
        base_free(c->k_rotations);
        base_free(c->v_rotations);
        base_free(c->layer_at);
        base_free(c);
    }
}

/* ---- what it is ---- */

const char *kvq_codec_name(const kvq_codec *c)
{
    return c->name;
}

uint64_t kvq_codec_fingerprint(const kvq_codec *c)
{
    return c->fingerprint;
}

static double elements_of_token(const kvq_codec *c)
{
    return 2.0 * c->shape.d * c->shape.layers * c->shape.kv_heads;
}

double kvq_codec_token_bytes(const kvq_codec *c)
{
    return c->trial_coder != NULL ? c->trial_bits * elements_of_token(c) / 8.0
                                  : (double)kvq_column_bytes(c) / KRN_PAGE_ROWS;
}

double kvq_codec_bits(const kvq_codec *c)
{
    return 8.0 * kvq_codec_token_bytes(c) / elements_of_token(c);
}

static size_t head_index(const kvq_codec *c, int layer, int head)
{
    REQUIRE(layer >= 0 && layer < c->shape.layers && head >= 0 && head < c->shape.kv_heads);
    return (size_t)layer * (size_t)c->shape.kv_heads + (size_t)head;
}

const krn_rotation *kvq_k_rotation(const kvq_codec *c, int layer, int head)
{
    return &c->k_rotations[head_index(c, layer, head)];
}

const krn_rotation *kvq_v_rotation(const kvq_codec *c, int layer, int head)
{
    return &c->v_rotations[head_index(c, layer, head)];
}

const krn_page_format *kvq_page_format(const kvq_codec *c, int layer)
{
    REQUIRE(layer >= 0 && layer < c->shape.layers);
    return &c->layers[layer].format;
}

size_t kvq_column_bytes(const kvq_codec *c)
{
    return c->layer_at[c->shape.layers];
}

size_t kvq_page_at(const kvq_codec *c, int layer, int head)
{
    (void)head_index(c, layer, head);
    return c->layer_at[layer] + (size_t)head * c->layers[layer].format.bytes;
}

krn_span kvq_span(const kvq_codec *c, int layer, int head, const uint8_t *column, int rows)
{
    const uint8_t *page = column + kvq_page_at(c, layer, head);
    krn_span span = {.kind = KRN_SPAN_PAGE, .rows = rows, .k = page};
    if (c->is_bf16) {
        span.kind = KRN_SPAN_BF16;
        span.v = page + kvq_page_bf16_bytes(c->shape.d) / 2;
    }
    return span;
}
