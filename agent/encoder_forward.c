/*
 * The sentence encoder's forward pass: texts -> unit vectors (BERT; Devlin et al. 2018, post-norm layers).
 *
 * Texts are packed one behind the other without padding, as many as fit ENCODER_ROWS_MAX, so that the matrix products
 * are large. Everything but attention and pooling works on single rows; those two on single texts. So a text's vector
 * does not depend on what is packed beside it, bit for bit, provided the krn_ operations keep their promise.
 */
#include <math.h>
#include <string.h>

#include "agent/encoder_parts_internal.h"

enum { BLOCK_ROWS = 32, TOKENS_TOTAL_MAX = 1 << 28 };

/* One pass: texts [first, first + count) of the request. */
typedef struct pass {
    encoder *n;
    const encoder_layer *layer;
    int texts, rows;
    int row_at[ENCODER_ROWS_MAX / ENCODER_KEY_PAD + 1]; /* first row of each text, and the end */
    int key_at[ENCODER_ROWS_MAX / ENCODER_KEY_PAD + 1]; /* the same with each text rounded up */
    const int32_t *ids;
    float *out;
} pass;

static int padded(int tokens)
{
    return (tokens + ENCODER_KEY_PAD - 1) / ENCODER_KEY_PAD * ENCODER_KEY_PAD;
}

static float *at(float *base, int64_t row, int64_t cols)
{
    return base + row * cols;
}

/* ---- tasks of blocks of rows ---- */

typedef struct block {
    int first, rows;
} block;

static block block_of(const pass *p, int task)
{
    int first = task * BLOCK_ROWS;
    return (block){first, p->rows - first < BLOCK_ROWS ? p->rows - first : BLOCK_ROWS};
}

static void run_blocks(pass *p, void (*fn)(void *ctx, int task))
{
    krn_pool_run(p->n->pool, fn, p, (p->rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
}

static void embed_rows(void *ctx, int task)
{
    pass *p = ctx;
    encoder *n = p->n;
    int64_t width = n->config.width;
    block b = block_of(p, task);
    int text = 0;
    for (int row = b.first; row < b.first + b.rows; row++) {
        while (row >= p->row_at[text + 1]) {
            text++;
        }
        float *x = at(n->x, row, width);
        const safetensor *words = &n->word_embedding;
        size_t row_bytes = (size_t)words->bytes / (size_t)words->size[0];
        krn_dequantize(words->type, (const char *)words->data + (size_t)p->ids[row] * row_bytes, x, width);
        krn_add(x, at(n->position_embedding, row - p->row_at[text], width), width);
    }
    float *x = at(n->x, b.first, width);
    krn_layernorm(x, n->after_embedding.weight, n->after_embedding.bias, n->config.eps, x, b.rows, width);
}

static void bias_qkv(void *ctx, int task)
{
    pass *p = ctx;
    int64_t cols = 3 * (int64_t)p->n->config.width;
    block b = block_of(p, task);
    krn_add_bias(at(p->n->qkv, b.first, cols), p->layer->qkv_bias, b.rows, cols);
}

static void bias_gelu(void *ctx, int task)
{
    pass *p = ctx;
    int64_t cols = p->n->config.ffn;
    block b = block_of(p, task);
    float *x = at(p->n->ffn, b.first, cols);
    krn_add_bias(x, p->layer->up.bias, b.rows, cols);
    krn_gelu(x, b.rows * cols);
}

/* x = norm(x + y + bias) */
static void join(pass *p, int task, const float *bias, const encoder_norm *norm)
{
    encoder *n = p->n;
    int64_t width = n->config.width;
    block b = block_of(p, task);
    float *x = at(n->x, b.first, width), *y = at(n->y, b.first, width);
    krn_add_bias(y, bias, b.rows, width);
    krn_add(x, y, b.rows * width);
    krn_layernorm(x, norm->weight, norm->bias, n->config.eps, x, b.rows, width);
}

static void join_attention(void *ctx, int task)
{
    pass *p = ctx;
    join(p, task, p->layer->attention_out.bias, &p->layer->after_attention);
}

static void join_ffn(void *ctx, int task)
{
    pass *p = ctx;
    join(p, task, p->layer->down.bias, &p->layer->after_ffn);
}

/* ---- tasks of texts ---- */

static void attend_head(void *ctx, int task)
{
    pass *p = ctx;
    encoder *n = p->n;
    int text = task / n->config.heads, head = task % n->config.heads;
    int64_t width = n->config.width, d = width / n->config.heads;
    int tokens = p->row_at[text + 1] - p->row_at[text];
    const float *qkv = at(n->qkv, p->row_at[text], 3 * width) + head * d;
    encoder_attend_args a = {.q = qkv,
            .k = qkv + width,
            .v = qkv + 2 * width,
            .keys = n->keys + p->key_at[text] * width + head * d * padded(tokens),
            .out = at(n->y, p->row_at[text], width) + head * d,
            .stride = 3 * width,
            .out_stride = width,
            .tokens = tokens,
            .d = (int)d,
            .scale = 1.0f / sqrtf((float)d)};
    switch (krn_isa_current()) {
    case KRN_ISA_AVX512:
        encoder_attend_avx512(&a);
        break;
    case KRN_ISA_AVX2:
        encoder_attend_avx2(&a);
        break;
    default:
        encoder_attend(&a);
        break;
    }
}

/* Mean over the text's rows, then unit length, as sentence-transformers does (its norm is at least 1e-12). */
static void pool_text(void *ctx, int text)
{
    pass *p = ctx;
    int64_t width = p->n->config.width;
    float *out = p->out + text * width;
    double square = 0.0;
    for (int64_t c = 0; c < width; c++) {
        double sum = 0.0;
        for (int row = p->row_at[text]; row < p->row_at[text + 1]; row++) {
            sum += (double)p->n->x[row * width + c];
        }
        sum /= p->row_at[text + 1] - p->row_at[text];
        out[c] = (float)sum;
        square += sum * sum;
    }
    double length = sqrt(square);
    for (int64_t c = 0; c < width; c++) {
        out[c] = (float)((double)out[c] / (length < 1e-12 ? 1e-12 : length));
    }
}

/* ---- one pass ---- */

static void load_rows(pass *p, const float *x, int64_t cols)
{
    krn_rows_load(p->n->pool, p->n->rows, x, cols, p->rows, cols);
}

static void run_layer(pass *p)
{
    encoder *n = p->n;
    const encoder_layer *layer = p->layer;
    int64_t width = n->config.width, ffn = n->config.ffn;
    load_rows(p, n->x, width);
    krn_matmul(n->pool, layer->q, n->rows, n->qkv, 3 * width);
    krn_matmul(n->pool, layer->k, n->rows, n->qkv + width, 3 * width);
    krn_matmul(n->pool, layer->v, n->rows, n->qkv + 2 * width, 3 * width);
    run_blocks(p, bias_qkv);
    krn_pool_run(n->pool, attend_head, p, p->texts * n->config.heads);

    load_rows(p, n->y, width);
    krn_matmul(n->pool, layer->attention_out.matrix, n->rows, n->y, width);
    run_blocks(p, join_attention);

    load_rows(p, n->x, width);
    krn_matmul(n->pool, layer->up.matrix, n->rows, n->ffn, ffn);
    run_blocks(p, bias_gelu);

    load_rows(p, n->ffn, ffn);
    krn_matmul(n->pool, layer->down.matrix, n->rows, n->y, width);
    run_blocks(p, join_ffn);
}

static void run_pass(pass *p)
{
    run_blocks(p, embed_rows);
    for (int i = 0; i < p->n->config.layers; i++) {
        p->layer = &p->n->layers[i];
        run_layer(p);
    }
    krn_pool_run(p->n->pool, pool_text, p, p->texts);
}

/* Takes as many texts as fit, at least one; returns how many. */
static int fill_pass(pass *p, const int *ids_each, int count)
{
    p->texts = 0;
    p->row_at[0] = 0;
    p->key_at[0] = 0;
    while (p->texts < count && p->key_at[p->texts] + padded(ids_each[p->texts]) <= ENCODER_ROWS_MAX) {
        int tokens = ids_each[p->texts];
        p->row_at[p->texts + 1] = p->row_at[p->texts] + tokens;
        p->key_at[p->texts + 1] = p->key_at[p->texts] + padded(tokens);
        p->texts++;
    }
    p->rows = p->row_at[p->texts];
    return p->texts;
}

/* ---- public ---- */

static status check_ids(const encoder *n, const int32_t *ids, const int *ids_each, int count, err *e)
{
    int limit = n->config.positions < ENCODER_IDS_MAX ? n->config.positions : ENCODER_IDS_MAX;
    for (int text = 0; text < count; text++) {
        if (ids_each[text] < 1 || ids_each[text] > limit) {
            return FAIL(e, ST_ERR_ARG, "%s: text %d has %d word pieces; 1 to %d can be embedded", n->name,
                    text, ids_each[text], limit);
        }
        for (int i = 0; i < ids_each[text]; i++, ids++) {
            if (*ids < 0 || *ids >= n->config.vocab) {
                return FAIL(e, ST_ERR_ARG, "%s: text %d: id %ld is outside the vocabulary of %d", n->name,
                        text, (long)*ids, n->config.vocab);
            }
        }
    }
    return ST_OK;
}

status encoder_embed_ids(encoder *n, const int32_t *ids, const int *ids_each, int count, float *out, err *e)
{
    TRY(check_ids(n, ids, ids_each, count, e));
    for (int done = 0; done < count;) {
        pass p = {.n = n, .ids = ids, .out = out + (int64_t)done * n->config.width};
        done += fill_pass(&p, ids_each + done, count - done);
        run_pass(&p);
        ids += p.rows;
    }
    return ST_OK;
}

status encoder_tokenize(
        const encoder *n, const void *text, size_t bytes, int max_ids, token_list *ids, err *e)
{
    int limit = n->config.positions < ENCODER_IDS_MAX ? n->config.positions : ENCODER_IDS_MAX;
    int wanted = max_ids == 0 ? n->config.ids_max : max_ids;
    if (wanted < 2 || wanted > limit) {
        return FAIL(
                e, ST_ERR_ARG, "%s: a limit of %d word pieces; 2 to %d are possible", n->name, wanted, limit);
    }
    return wordpiece_encode(n->words, text, bytes, wanted, ids, e);
}

static status tokenize_all(const encoder *n,
        const char *const *texts,
        const size_t *bytes,
        int count,
        int max_ids,
        token_list *ids,
        int *ids_each,
        err *e)
{
    for (int i = 0; i < count; i++) {
        size_t before = ids->n;
        TRY(encoder_tokenize(n, texts[i], bytes[i], max_ids, ids, e));
        if (ids->n > TOKENS_TOTAL_MAX) {
            return FAIL(e, ST_ERR_LIMIT, "%s: more than %d word pieces in one call", n->name,
                    (int)TOKENS_TOTAL_MAX);
        }
        ids_each[i] = (int)(ids->n - before);
    }
    return ST_OK;
}

status encoder_embed(
        encoder *n, const char *const *texts, const size_t *bytes, int count, int max_ids, float *out, err *e)
{
    token_list ids = {0};
    if (count < 0) {
        return FAIL(e, ST_ERR_ARG, "%s: %d texts", n->name, count);
    }
    int *ids_each = base_zalloc((size_t)count, sizeof *ids_each);
    status result =
            ids_each == NULL ? FAIL(e, ST_ERR_MEMORY, "%s: no memory for %d texts", n->name, count) : ST_OK;
    if (result == ST_OK) {
        result = tokenize_all(n, texts, bytes, count, max_ids, &ids, ids_each, e);
    }
    if (result == ST_OK) {
        result = encoder_embed_ids(n, ids.ids, ids_each, count, out, e);
    }
    token_list_free(&ids);
    base_free(ids_each);
    return result;
}
