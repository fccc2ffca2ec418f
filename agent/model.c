/* Opening a model: settings, then every tensor the architecture has, found by name and checked by shape. A tensor
 * that no layer would use is refused too: leaving a bias out gives plausible nonsense. */
#include "agent/model_parts_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Walks the tensors of a model while it opens. `used` counts what was taken, to find what was not. */
typedef struct opening {
    model *m;
    bool *used; /* [tensor count] */
    int layer;  /* -1 outside the layers */
    err *e;
} opening;

static void full_name(const opening *o, const char *name, char out[96])
{
    if (o->layer < 0) {
        (void)snprintf(out, 96, "%s", name);
    } else {
        (void)snprintf(out, 96, "blk.%d.%s", o->layer, name);
    }
}

/* The tensor, or NULL when it is missing. */
static const gguf_tensor *look_up(opening *o, const char *name)
{
    char full[96];
    full_name(o, name, full);
    const gguf_tensor *t = gguf_find(o->m->file, full);
    if (t != NULL) {
        o->used[t - gguf_tensor_at(o->m->file, 0)] = true;
    }
    return t;
}

/* A tensor of `rows` x `cols`; rank 1 when rows is 0. */
static status take(opening *o, const char *name, int64_t rows, int64_t cols, const gguf_tensor **out)
{
    char full[96];
    full_name(o, name, full);
    const gguf_tensor *t = look_up(o, name);
    if (t == NULL) {
        return FAIL(o->e, ST_ERR_NOT_FOUND, "%s: tensor %s is missing", gguf_path(o->m->file), full);
    }
    if (t->rank != (rows == 0 ? 1 : 2) || t->size[0] != cols || (rows != 0 && t->size[1] != rows)) {
        char wanted[48];
        (void)snprintf(wanted, sizeof wanted, rows == 0 ? "[%" PRId64 "]" : "[%" PRId64 ", %" PRId64 "]",
                cols, rows);
        return FAIL(o->e, ST_ERR_FORMAT,
                "%s: tensor %s has rank %d and sizes [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                "], must be %s",
                gguf_path(o->m->file), full, t->rank, t->size[0], t->size[1], t->size[2], t->size[3], wanted);
    }
    *out = t;
    return ST_OK;
}

static status take_vector(opening *o, const char *name, int64_t n, float **out)
{
    const gguf_tensor *t = NULL;
    TRY(take(o, name, 0, n, &t));
    *out = base_alloc((size_t)n * sizeof **out);
    if (*out == NULL) {
        return FAIL(o->e, ST_ERR_MEMORY, "%s: out of memory", gguf_path(o->m->file));
    }
    krn_dequantize(t->type, t->data, *out, n);
    return ST_OK;
}

/* The weights as fp16, whose products take float activations. */
static status widen(opening *o, const gguf_tensor *t, uint16_t **out)
{
    enum { STEP = 8192 }; /* a multiple of every block */
    float x[STEP];
    int64_t n = t->size[0] * t->size[1], block = krn_type_block_elements(t->type);
    uint16_t *half = base_alloc((size_t)n * sizeof *half);
    if (half == NULL) {
        return FAIL(o->e, ST_ERR_MEMORY, "%s: out of memory for weights as fp16", gguf_path(o->m->file));
    }
    for (int64_t at = 0; at < n; at += STEP) {
        int64_t count = n - at < STEP ? n - at : STEP;
        const uint8_t *from = (const uint8_t *)t->data + at / block * krn_type_block_bytes(t->type);
        krn_dequantize(t->type, from, x, count);
        for (int64_t i = 0; i < count; i++) {
            half[at + i] = base_f32_to_f16(x[i]);
        }
    }
    *out = half;
    return ST_OK;
}

static status open_matrix(opening *o, const gguf_tensor *t, model_matrix *out)
{
    out->stored = t;
    if (o->m->float_activations) {
        TRY(widen(o, t, &out->widened));
        return krn_matrix_open(o->m->pool, KRN_F16, t->size[1], t->size[0], out->widened, &out->opened, o->e);
    }
    return krn_matrix_open(o->m->pool, t->type, t->size[1], t->size[0], t->data, &out->opened, o->e);
}

/* NAME.weight, and NAME.bias when it is there or has to be. */
static status take_matrix(
        opening *o, const char *name, int64_t rows, int64_t cols, bool needs_bias, model_matrix *out)
{
    const gguf_tensor *t = NULL;
    char part[64];
    (void)snprintf(part, sizeof part, "%s.weight", name);
    TRY(take(o, part, rows, cols, &t));
    TRY(open_matrix(o, t, out));
    (void)snprintf(part, sizeof part, "%s.bias", name);
    return needs_bias || look_up(o, part) != NULL ? take_vector(o, part, rows, &out->bias) : ST_OK;
}

static status take_attention(opening *o, model_layer *l)
{
    model_config *c = &o->m->config;
    int64_t q_cols = (int64_t)c->q_heads * c->d;
    int64_t kv_cols = (int64_t)c->kv_heads * c->d;
    TRY(take_vector(o, "attn_norm.weight", c->width, &l->attention_norm));
    TRY(take_matrix(o, "attn_q", q_cols, c->width, c->qkv_bias, &l->q));
    TRY(take_matrix(o, "attn_k", kv_cols, c->width, c->qkv_bias, &l->k));
    TRY(take_matrix(o, "attn_v", kv_cols, c->width, c->qkv_bias, &l->v));
    TRY(take_matrix(o, "attn_output", c->width, q_cols, false, &l->o));
    if (c->qk_norm) {
        TRY(take_vector(o, "attn_q_norm.weight", c->d, &l->q_norm));
        TRY(take_vector(o, "attn_k_norm.weight", c->d, &l->k_norm));
    }
    return ST_OK;
}

static status take_layer(opening *o, model_layer *l)
{
    const model_config *c = &o->m->config;
    TRY(take_attention(o, l));
    TRY(take_vector(o, "ffn_norm.weight", c->width, &l->ffn_norm));
    TRY(take_matrix(o, "ffn_gate", c->ffn, c->width, false, &l->gate));
    TRY(take_matrix(o, "ffn_up", c->ffn, c->width, false, &l->up));
    return take_matrix(o, "ffn_down", c->width, c->ffn, false, &l->down);
}

static status take_embedding(opening *o)
{
    model_config *c = &o->m->config;
    const gguf_tensor *t = look_up(o, "token_embd.weight");
    int64_t vocab = t == NULL ? 0 : t->size[1];
    const gguf_string *tokens;
    size_t n_tokens;
    err ignored;
    TRY(take(o, "token_embd.weight", vocab, c->width, &o->m->embedding));
    if (vocab > INT32_MAX / 2) {
        return FAIL(o->e, ST_ERR_FORMAT,
                "%s: tensor token_embd.weight has %" PRId64 " rows, must be below 2^30",
                gguf_path(o->m->file), vocab);
    }
    if (gguf_get_string_array(o->m->file, "tokenizer.ggml.tokens", &tokens, &n_tokens, &ignored) == ST_OK &&
            n_tokens > (size_t)vocab) {
        return FAIL(o->e, ST_ERR_FORMAT,
                "%s: the vocabulary has %zu tokens, tensor token_embd.weight %" PRId64 " rows",
                gguf_path(o->m->file), n_tokens, vocab);
    }
    c->vocab = (int)vocab;
    TRY(take_vector(o, "output_norm.weight", c->width, &o->m->output_norm));
    c->tied_output = gguf_find(o->m->file, "output.weight") == NULL;
    if (c->tied_output) {
        return open_matrix(o, o->m->embedding, &o->m->output);
    }
    return take_matrix(o, "output", vocab, c->width, false, &o->m->output);
}

static status refuse_unused(const opening *o)
{
    for (size_t i = 0; i < gguf_tensor_count(o->m->file); i++) {
        if (!o->used[i]) {
            const gguf_tensor *t = gguf_tensor_at(o->m->file, i);
            return FAIL(o->e, ST_ERR_UNSUPPORTED,
                    "%s: tensor %.*s has no place in architecture %s with %d layers", gguf_path(o->m->file),
                    (int)(t->name.bytes < 64 ? t->name.bytes : 64), t->name.data, o->m->config.architecture,
                    o->m->config.layers);
        }
    }
    return ST_OK;
}

static status take_all(opening *o)
{
    model *m = o->m;
    model_config *c = &m->config;
    /* Qwen2 always has QKV biases; llama and qwen3 files carry them when they were trained with. */
    c->qkv_bias = strcmp(c->architecture, "qwen2") == 0 || gguf_find(m->file, "blk.0.attn_q.bias") != NULL;
    (void)look_up(o, "rope_freqs.weight"); /* model_read_rope has read it */
    TRY(take_embedding(o));
    m->layers = base_zalloc((size_t)c->layers, sizeof *m->layers);
    if (m->layers == NULL) {
        return FAIL(o->e, ST_ERR_MEMORY, "%s: out of memory", gguf_path(m->file));
    }
    for (int i = 0; i < c->layers; i++) {
        o->layer = i;
        TRY(take_layer(o, &m->layers[i]));
    }
    return refuse_unused(o);
}

/* ---- fingerprint ---- */

typedef struct hashing {
    const model *m;
    uint64_t *hash; /* [tensor count] */
} hashing;

static void hash_tensor(void *ctx, int task)
{
    hashing *h = ctx;
    const gguf_tensor *t = gguf_tensor_at(h->m->file, (size_t)task);
    h->hash[task] = XXH3_64bits(t->data, (size_t)t->bytes);
}

static status append_tensor(base_buf *about, const gguf_tensor *t, uint64_t hash)
{
    uint64_t numbers[6] = {hash, (uint64_t)t->type, (uint64_t)t->size[0], (uint64_t)t->size[1],
            (uint64_t)t->size[2], (uint64_t)t->size[3]};
    TRY(base_buf_append(about, t->name.data, t->name.bytes));
    return base_buf_append(about, numbers, sizeof numbers);
}

static status append_settings(base_buf *about, const model *m)
{
    const model_config *c = &m->config;
    int32_t counts[8] = {c->layers, c->width, c->q_heads, c->kv_heads, c->d, c->ffn, (int32_t)c->rope.pairing,
            c->rope.dims};
    float floats[3] = {c->rms_eps, c->attention_scale, c->rope.magnitude};
    TRY(base_buf_append(about, c->architecture, strlen(c->architecture)));
    TRY(base_buf_append(about, counts, sizeof counts));
    TRY(base_buf_append(about, floats, sizeof floats));
    return base_buf_append(about, m->inv_freq, (size_t)c->rope.dims / 2 * sizeof *m->inv_freq);
}

/* A hash over the tensors' hashes (made in parallel), names, types and sizes, and over the settings that change
 * what is computed from them. */
static status fingerprint(model *m, err *e)
{
    size_t n = gguf_tensor_count(m->file);
    base_buf about = {.max = SIZE_MAX / 4};
    hashing h = {.m = m, .hash = base_alloc(n * sizeof *h.hash)};
    status s = h.hash == NULL || n > INT32_MAX ? ST_ERR_MEMORY : ST_OK;
    if (s == ST_OK) {
        krn_pool_run(m->pool, hash_tensor, &h, (int)n);
    }
    for (size_t i = 0; s == ST_OK && i < n; i++) {
        s = append_tensor(&about, gguf_tensor_at(m->file, i), h.hash[i]);
    }
    if (s == ST_OK) {
        s = append_settings(&about, m);
    }
    if (s == ST_OK) {
        m->fingerprint = XXH3_64bits(about.data, about.size);
    }
    base_buf_free(&about);
    base_free(h.hash);
    return s == ST_OK ? s : FAIL(e, s, "%s: out of memory", gguf_path(m->file));
}

/* ---- lifetime ---- */

static status open_parts(model *m, const char *path, err *e)
{
    TRY(gguf_open(path, &m->file, e));
    TRY(model_read_config(m->file, &m->config, e));
    TRY(model_read_rope(m->file, &m->config, &m->config.rope, &m->inv_freq, e));
    opening o = {.m = m, .used = base_zalloc(gguf_tensor_count(m->file), sizeof(bool)), .layer = -1, .e = e};
    if (o.used == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory", path);
    }
    status s = take_all(&o);
    base_free(o.used);
    return s == ST_OK ? fingerprint(m, e) : s;
}

static status open_model(krn_pool *pool, const char *path, bool float_activations, model **out, err *e)
{
    model *m = base_zalloc(1, sizeof *m);
    if (m == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory", path);
    }
    m->pool = pool;
    m->float_activations = float_activations;
    status s = open_parts(m, path, e);
    if (s != ST_OK) {
        model_close(m);
        return s;
    }
    *out = m;
    return ST_OK;
}

status model_open(krn_pool *pool, const char *path, model **out, err *e)
{
    return open_model(pool, path, false, out, e);
}

status model_open_float(krn_pool *pool, const char *path, model **out, err *e)
{
    return open_model(pool, path, true, out, e);
}

static void close_matrix(model_matrix *w)
{
    krn_matrix_close(w->opened);
    base_free(w->widened);
    base_free(w->bias);
}

static void close_layer(model_layer *l)
{
    model_matrix *matrices[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        close_matrix(matrices[i]);
    }
    base_free(l->attention_norm);
    base_free(l->ffn_norm);
    base_free(l->q_norm);
    base_free(l->k_norm);
}

void model_close(model *m)
{
    if (m == NULL) {
        return;
    }
    for (int i = 0; m->layers != NULL && i < m->config.layers; i++) {
        close_layer(&m->layers[i]);
    }
    close_matrix(&m->output);
    model_device_close(m->device);
    base_free(m->layers);
    base_free(m->output_norm);
    base_free(m->inv_freq);
    gguf_close(m->file);
    base_free(m);
}

const model_config *model_get_config(const model *m)
{
    return &m->config;
}

const gguf *model_gguf(const model *m)
{
    return m->file;
}

uint64_t model_fingerprint(const model *m)
{
    return m->fingerprint;
}
