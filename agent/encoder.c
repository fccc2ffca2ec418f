/* The sentence encoder's life: opens configuration, vocabulary and weights, checks that they fit each other, closes. */
#include "agent/encoder_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "agent/encoder_parts_internal.h"

enum { NAME_BYTES_MAX = 160, PATH_BYTES_MAX = 4096 };

/* Cosine under which an utterance has nothing to do with the question, measured for all-MiniLM-L6-v2
 * (episodes/README.md), not for other encoders. */
static const float match_floor = 0.32f;

/* ---- tensors by name ---- */

/* Finds a tensor and checks its shape; cols 0 means a vector. The name may stand behind "bert.". */
static status find_tensor(
        const encoder *n, int64_t rows, int64_t cols, safetensor *out, err *e, const char *format, ...)
        __attribute__((format(printf, 6, 7)));
static status find_tensor(
        const encoder *n, int64_t rows, int64_t cols, safetensor *out, err *e, const char *format, ...)
{
    char name[NAME_BYTES_MAX] = "bert.";
    safetensor t;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(name + 5, sizeof name - 5, format, args);
    va_end(args);
    if (safetensors_find(n->file, name, &t, NULL) != ST_OK) {
        TRY(safetensors_find(n->file, name + 5, &t, e));
    }
    bool fits = cols == 0 ? t.rank == 1 && t.size[0] == rows
                          : t.rank == 2 && t.size[0] == rows && t.size[1] == cols;
    if (!fits) {
        return FAIL(e, ST_ERR_MISMATCH,
                "%s: tensor \"%s\" has %d axes [%lld, %lld]; config.json asks for [%lld%s%.0lld]", n->name,
                name + 5, t.rank, (long long)t.size[0], (long long)t.size[1], (long long)rows,
                cols == 0 ? "" : ", ", (long long)cols);
    }
    *out = t;
    return ST_OK;
}

static status no_memory(const encoder *n, err *e)
{
    return FAIL(e, ST_ERR_MEMORY, "%s: no memory for the encoder", n->name);
}

/* Converts a found tensor to float32, appended at dst. */
static void tensor_to_f32(const safetensor *t, float *dst)
{
    krn_dequantize(t->type, t->data, dst, t->size[0] * t->size[1]);
}

static status load_vector(
        const encoder *n, int64_t size, const char *prefix, const char *name, float **out, err *e)
{
    safetensor t;
    TRY(find_tensor(n, size, 0, &t, e, "%s%s", prefix, name));
    *out = base_alloc((size_t)size * sizeof(float));
    if (*out == NULL) {
        return no_memory(n, e);
    }
    tensor_to_f32(&t, *out);
    return ST_OK;
}

/* The weights as Q8_0 blocks, kept until close. */
static status code_matrix(
        encoder *n, const safetensor *t, int64_t rows, int64_t cols, krn_matrix **out, err *e)
{
    size_t row_bytes =
            (size_t)(cols / krn_type_block_elements(KRN_Q8_0)) * (size_t)krn_type_block_bytes(KRN_Q8_0);
    size_t element = t->type == KRN_F32 ? 4 : 2;
    uint8_t *code = base_alloc((size_t)rows * row_bytes);
    float *row = base_zalloc((size_t)cols, sizeof *row);
    void *list = n->code;
    status st = code == NULL || row == NULL
            ? ST_ERR_MEMORY
            : base_grow(&list, &n->code_cap, n->n_code + 1, 4096, sizeof *n->code);
    n->code = list;
    if (st != ST_OK) {
        base_free(code);
        base_free(row);
        return no_memory(n, e);
    }
    for (int64_t r = 0; r < rows; r++) {
        krn_dequantize(t->type, (const uint8_t *)t->data + (size_t)(r * cols) * element, row, cols);
        krn_quantize_q8_0(row, code + (size_t)r * row_bytes, cols);
    }
    base_free(row);
    n->code[n->n_code++] = code;
    return krn_matrix_open(n->pool, KRN_Q8_0, rows, cols, code, out, e);
}

static status load_matrix(encoder *n,
        int64_t rows,
        int64_t cols,
        const char *prefix,
        const char *name,
        krn_matrix **out,
        err *e)
{
    safetensor t;
    TRY(find_tensor(n, rows, cols, &t, e, "%s%s.weight", prefix, name));
    return n->coded && cols % krn_type_block_elements(KRN_Q8_0) == 0
            ? code_matrix(n, &t, rows, cols, out, e)
            : krn_matrix_open(n->pool, t.type, rows, cols, t.data, out, e);
}

static status load_norm(const encoder *n, const char *prefix, const char *name, encoder_norm *out, err *e)
{
    char full[NAME_BYTES_MAX];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    TRY(load_vector(n, n->config.width, full, ".weight", &out->weight, e));
    return load_vector(n, n->config.width, full, ".bias", &out->bias, e);
}

static status load_linear(encoder *n,
        int64_t rows,
        int64_t cols,
        const char *prefix,
        const char *name,
        encoder_linear *out,
        err *e)
{
    char full[NAME_BYTES_MAX];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    TRY(load_matrix(n, rows, cols, prefix, name, &out->matrix, e));
    return load_vector(n, rows, full, ".bias", &out->bias, e);
}

/* ---- parts ---- */

static status load_embeddings(encoder *n, err *e)
{
    const encoder_config *c = &n->config;
    safetensor positions, types;
    TRY(find_tensor(n, c->vocab, c->width, &n->word_embedding, e, "embeddings.word_embeddings.weight"));
    TRY(find_tensor(n, c->positions, c->width, &positions, e, "embeddings.position_embeddings.weight"));
    TRY(find_tensor(n, c->types, c->width, &types, e, "embeddings.token_type_embeddings.weight"));
    TRY(load_norm(n, "embeddings.", "LayerNorm", &n->after_embedding, e));

    float *type = base_zalloc((size_t)c->types * (size_t)c->width, sizeof(float));
    n->position_embedding = base_zalloc((size_t)c->positions * (size_t)c->width, sizeof(float));
    if (type == NULL || n->position_embedding == NULL) {
        base_free(type);
        return no_memory(n, e);
    }
    tensor_to_f32(&types, type);
    tensor_to_f32(&positions, n->position_embedding);
    krn_add_bias(n->position_embedding, type, c->positions, c->width);
    base_free(type);
    return ST_OK;
}

static status load_qkv_bias(encoder *n, const char *prefix, encoder_layer *layer, err *e)
{
    static const char *const names[] = {"query", "key", "value"};
    int64_t width = n->config.width;
    layer->qkv_bias = base_zalloc(3 * (size_t)width, sizeof(float));
    if (layer->qkv_bias == NULL) {
        return no_memory(n, e);
    }
    for (int i = 0; i < 3; i++) {
        safetensor t;
        TRY(find_tensor(n, width, 0, &t, e, "%sattention.self.%s.bias", prefix, names[i]));
        tensor_to_f32(&t, layer->qkv_bias + i * width);
    }
    return ST_OK;
}

static status load_layer(encoder *n, int index, encoder_layer *layer, err *e)
{
    int64_t width = n->config.width, ffn = n->config.ffn;
    char prefix[NAME_BYTES_MAX];
    (void)snprintf(prefix, sizeof prefix, "encoder.layer.%d.", index);
    TRY(load_matrix(n, width, width, prefix, "attention.self.query", &layer->q, e));
    TRY(load_matrix(n, width, width, prefix, "attention.self.key", &layer->k, e));
    TRY(load_matrix(n, width, width, prefix, "attention.self.value", &layer->v, e));
    TRY(load_qkv_bias(n, prefix, layer, e));
    TRY(load_linear(n, width, width, prefix, "attention.output.dense", &layer->attention_out, e));
    TRY(load_norm(n, prefix, "attention.output.LayerNorm", &layer->after_attention, e));
    TRY(load_linear(n, ffn, width, prefix, "intermediate.dense", &layer->up, e));
    TRY(load_linear(n, width, ffn, prefix, "output.dense", &layer->down, e));
    return load_norm(n, prefix, "output.LayerNorm", &layer->after_ffn, e);
}

/* The forms of activations that the layers' products read. */
static unsigned forms_read(const encoder *n)
{
    unsigned forms = 0;
    for (int i = 0; i < n->config.layers; i++) {
        const encoder_layer *layer = &n->layers[i];
        const krn_matrix *const all[] = {layer->q, layer->k, layer->v, layer->attention_out.matrix,
                layer->up.matrix, layer->down.matrix};
        for (size_t m = 0; m < sizeof all / sizeof all[0]; m++) {
            forms |= krn_matrix_reads(all[m]);
        }
    }
    return forms;
}

static status open_scratch(encoder *n, err *e)
{
    size_t width = (size_t)n->config.width, ffn = (size_t)n->config.ffn;
    n->x = base_zalloc(ENCODER_ROWS_MAX * width, sizeof(float));
    n->y = base_zalloc(ENCODER_ROWS_MAX * width, sizeof(float));
    n->qkv = base_zalloc(ENCODER_ROWS_MAX * width, 3 * sizeof(float));
    n->ffn = base_zalloc(ENCODER_ROWS_MAX * ffn, sizeof(float));
    n->keys = base_zalloc(ENCODER_ROWS_MAX * width, sizeof(float));
    if (n->x == NULL || n->y == NULL || n->qkv == NULL || n->ffn == NULL || n->keys == NULL) {
        return no_memory(n, e);
    }
    TRY(krn_rows_open(ENCODER_ROWS_MAX, (int64_t)(width > ffn ? width : ffn), &n->rows, e));
    krn_rows_keep(n->rows, forms_read(n));
    return ST_OK;
}

/* Over everything that changes an embedding: weights, configuration, vocabulary, and this file's own version. */
static status take_fingerprint(encoder *n, const char *vocab_path, err *e)
{
    base_map vocab = {0};
    const encoder_config *c = &n->config;
    uint64_t parts[12] = {1 /* raise when the same files would give other embeddings */};
    size_t bytes;
    const void *weights = safetensors_bytes(n->file, &bytes);
    TRY(base_map_open(vocab_path, &vocab, e));
    parts[1] = XXH3_64bits(weights, bytes);
    parts[2] = XXH3_64bits(vocab.data, vocab.size);
    base_map_close(&vocab);
    const int numbers[7] = {c->layers, c->width, c->heads, c->ffn, c->vocab, c->positions, c->ids_max};
    for (int i = 0; i < 7; i++) {
        parts[3 + i] = (uint64_t)numbers[i];
    }
    uint32_t eps_bits;
    memcpy(&eps_bits, &c->eps, sizeof eps_bits);
    parts[10] = eps_bits;
    parts[11] = n->coded;
    n->fingerprint = XXH3_64bits(parts, sizeof parts);
    return ST_OK;
}

/* The folder's own name, which people know the model by. */
static char *folder_name(const char *folder)
{
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/') {
        end--;
    }
    size_t start = end;
    while (start > 0 && folder[start - 1] != '/') {
        start--;
    }
    return base_strndup(folder + start, end - start);
}

static status path_in(const char *folder, const char *name, char out[PATH_BYTES_MAX], err *e)
{
    int length = snprintf(out, PATH_BYTES_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_BYTES_MAX) {
        return FAIL(e, ST_ERR_LIMIT, "path of the encoder is longer than %d bytes", (int)PATH_BYTES_MAX);
    }
    return ST_OK;
}

static status open_parts(encoder *n, const char *folder, err *e)
{
    char path[PATH_BYTES_MAX];
    TRY(encoder_config_read(folder, &n->config, e));
    TRY(path_in(folder, "model.safetensors", path, e));
    TRY(safetensors_open(path, &n->file, e));
    TRY(path_in(folder, "vocab.txt", path, e));
    TRY(wordpiece_open(path, &n->words, e));
    TRY(take_fingerprint(n, path, e));
    TRY(load_embeddings(n, e));
    n->layers = base_zalloc((size_t)n->config.layers, sizeof *n->layers);
    if (n->layers == NULL) {
        return no_memory(n, e);
    }
    for (int i = 0; i < n->config.layers; i++) {
        TRY(load_layer(n, i, &n->layers[i], e));
    }
    return open_scratch(n, e);
}

/* ---- public ---- */

static status open_encoder(krn_pool *pool, const char *folder, bool coded, encoder **out, err *e)
{
    encoder *n = base_zalloc(1, sizeof *n);
    if (n == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: no memory for the encoder", folder);
    }
    n->pool = pool;
    n->coded = coded;
    n->name = folder_name(folder);
    status result = n->name == NULL ? FAIL(e, ST_ERR_MEMORY, "%s: no memory for the encoder", folder)
                                    : open_parts(n, folder, e);
    if (result != ST_OK) {
        encoder_close(n);
        return result;
    }
    *out = n;
    return ST_OK;
}

status encoder_open(krn_pool *pool, const char *folder, encoder **out, err *e)
{
    return open_encoder(pool, folder, false, out, e);
}

status encoder_open_coded(krn_pool *pool, const char *folder, encoder **out, err *e)
{
    return open_encoder(pool, folder, true, out, e);
}

static void close_linear(encoder_linear *l)
{
    krn_matrix_close(l->matrix);
    base_free(l->bias);
}

static void close_norm(encoder_norm *m)
{
    base_free(m->weight);
    base_free(m->bias);
}

static void close_layer(encoder_layer *layer)
{
    krn_matrix_close(layer->q);
    krn_matrix_close(layer->k);
    krn_matrix_close(layer->v);
    base_free(layer->qkv_bias);
    close_linear(&layer->attention_out);
    close_linear(&layer->up);
    close_linear(&layer->down);
    close_norm(&layer->after_attention);
    close_norm(&layer->after_ffn);
}

void encoder_close(encoder *n)
{
    if (n == NULL) {
        return;
    }
    for (int i = 0; n->layers != NULL && i < n->config.layers; i++) {
        close_layer(&n->layers[i]);
    }
    for (size_t i = 0; i < n->n_code; i++) {
        base_free(n->code[i]);
    }
    base_free(n->code);
    base_free(n->layers);
    base_free(n->position_embedding);
    close_norm(&n->after_embedding);
    krn_rows_close(n->rows);
    base_free(n->x);
    base_free(n->y);
    base_free(n->qkv);
    base_free(n->ffn);
    base_free(n->keys);
    wordpiece_close(n->words);
    safetensors_close(n->file);
    base_free(n->name);
    base_free(n);
}

int encoder_dim(const encoder *n)
{
    return n->config.width;
}

const char *encoder_name(const encoder *n)
{
    return n->name;
}

float encoder_floor(const encoder *n)
{
    (void)n;
    return match_floor;
}

uint64_t encoder_fingerprint(const encoder *n)
{
    return n->fingerprint;
}

int encoder_ids_max(const encoder *n)
{
    return n->config.ids_max;
}
