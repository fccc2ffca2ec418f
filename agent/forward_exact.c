/* The specification of the forward pass: float32, weights dequantised as they are needed, one layer after the other
 * over all new tokens. Llama-family decoder (Touvron et al. 2023, arXiv:2302.13971): RMS norm, grouped-query attention
 * with rotary positions, SwiGLU, residuals. Written apart from the product's kernels on purpose: only dequantisation
 * and the thread pool are shared, so that a fault in one path shows against the other.
 *
 * Every sum runs in an order fixed by its length: a token gives the same bits appended alone or in a block, with any
 * number of threads. Speed is that of plain loops; a weight tile is dequantised once for all tokens. */
#include "agent/model_parts_internal.h"

#include <math.h>
#include <string.h>

enum {
    LANES = 8,         /* partial sums of a product */
    TILE_ROWS = 32,    /* weight rows dequantised together */
    SLICE_ROWS = 2048, /* weight rows in memory as float at a time */
    LOGIT_ROWS = 16    /* tokens whose logits are held at a time */
};

struct model_exact {
    const model *m;
    int64_t n_tokens, max_tokens;
    float *k, *v;   /* [layer][max_tokens][K][d] */
    float *weights; /* [SLICE_ROWS][widest] */
    float *scores;  /* [threads][max_tokens] */
    float *logits;  /* [LOGIT_ROWS][vocab] */
};

/* Activations of one append, n rows each. */
typedef struct rows {
    int n;
    float *x, *normed;   /* [width] */
    float *q, *attended; /* [H][d] */
    float *gate, *up;    /* [ffn] */
    float *delta;        /* [width] */
} rows;

/* ---- y[t][o] = sum_i w[o][i] x[t][i] ---- */

static float dot(const float *a, const float *b, int64_t n)
{
    float lane[LANES] = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            lane[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < n; i++) {
        rest += a[i] * b[i];
    }
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) + ((lane[2] + lane[6]) + (lane[3] + lane[7])) + rest;
}

typedef struct product {
    const gguf_tensor *w;
    int64_t first_row, n_rows; /* of the slice */
    float *weights;
    const float *x;
    float *y;
    int64_t n, y_stride;
} product;

static void product_tile(void *ctx, int task)
{
    const product *p = ctx;
    int64_t cols = p->w->size[0];
    int64_t from = (int64_t)task * TILE_ROWS;
    int64_t to = from + TILE_ROWS < p->n_rows ? from + TILE_ROWS : p->n_rows;
    int64_t row_bytes = cols / krn_type_block_elements(p->w->type) * krn_type_block_bytes(p->w->type);
    const uint8_t *stored = (const uint8_t *)p->w->data + (p->first_row + from) * row_bytes;
    krn_dequantize(p->w->type, stored, p->weights + from * cols, (to - from) * cols);
    for (int64_t t = 0; t < p->n; t++) {
        for (int64_t o = from; o < to; o++) {
            p->y[t * p->y_stride + p->first_row + o] = dot(p->weights + o * cols, p->x + t * cols, cols);
        }
    }
}

static void add(float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}

static void multiply(const model_exact *x, const model_matrix *w, const float *in, int n, float *out)
{
    int64_t all_rows = w->stored->size[1];
    for (int64_t first = 0; first < all_rows; first += SLICE_ROWS) {
        int64_t n_rows = all_rows - first < SLICE_ROWS ? all_rows - first : SLICE_ROWS;
        product p = {w->stored, first, n_rows, x->weights, in, out, n, all_rows};
        krn_pool_run(x->m->pool, product_tile, &p, (int)((n_rows + TILE_ROWS - 1) / TILE_ROWS));
    }
    for (int t = 0; t < n && w->bias != NULL; t++) {
        add(out + (size_t)t * (size_t)all_rows, w->bias, (size_t)all_rows);
    }
}

/* ---- row operations ---- */

/* y = w x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4) */
static void rms_norm(const float *x, const float *w, float eps, float *y, int n)
{
    double squares = 0.0;
    for (int i = 0; i < n; i++) {
        squares += (double)x[i] * (double)x[i];
    }
    float factor = (float)(1.0 / sqrt(squares / n + (double)eps));
    for (int i = 0; i < n; i++) {
        y[i] = w[i] * (x[i] * factor);
    }
}

static void rms_norm_rows(const model_exact *x, const float *in, const float *w, float *out, int n)
{
    const model_config *c = &x->m->config;
    for (int t = 0; t < n; t++) {
        rms_norm(in + (size_t)t * (size_t)c->width, w, c->rms_eps, out + (size_t)t * (size_t)c->width,
                c->width);
    }
}

/* One head: pair i turns by position * theta_i. */
static void rotate_position(const krn_rope *rope, int64_t position, float *x)
{
    int half = rope->dims / 2;
    for (int i = 0; i < half; i++) {
        double angle = (double)position * rope->inv_freq[i];
        float cosine = (float)cos(angle) * rope->magnitude;
        float sine = (float)sin(angle) * rope->magnitude;
        int first = rope->pairing == KRN_ROPE_ADJACENT ? 2 * i : i;
        int second = rope->pairing == KRN_ROPE_ADJACENT ? 2 * i + 1 : i + half;
        float a = x[first];
        float b = x[second];
        x[first] = a * cosine - b * sine;
        x[second] = a * sine + b * cosine;
    }
}

/* QK norm and position of `heads` heads in each of n rows. */
static void finish_heads(
        const model *m, float *x, int n, int heads, const float *norm, int64_t first_position)
{
    int d = m->config.d;
    for (int t = 0; t < n; t++) {
        float *row = x + (size_t)t * (size_t)(heads * d);
        for (int h = 0; h < heads; h++) {
            if (norm != NULL) {
                rms_norm(row + h * d, norm, m->config.rms_eps, row + h * d, d);
            }
            rotate_position(&m->config.rope, first_position + t, row + h * d);
        }
    }
}

/* ---- attention ---- */

typedef struct attention {
    const model_exact *x;
    const float *q, *k, *v; /* q [n][H][d]; k, v [tokens][K][d] of this layer */
    float *out;
    int n, workers;
} attention;

static void attend_head(const attention *a, int row, int head, float *score)
{
    const model_config *c = &a->x->m->config;
    int64_t n_keys = a->x->n_tokens + row + 1; /* the token sees itself and what came before */
    int kv_head = head / (c->q_heads / c->kv_heads);
    size_t stride = (size_t)(c->kv_heads * c->d);
    const float *q = a->q + (size_t)(row * c->q_heads + head) * (size_t)c->d;
    const float *k = a->k + kv_head * c->d;
    const float *v = a->v + kv_head * c->d;
    float *out = a->out + (size_t)(row * c->q_heads + head) * (size_t)c->d;
    float largest = -INFINITY;
    double total = 0.0;
    for (int64_t j = 0; j < n_keys; j++) {
        score[j] = dot(q, k + (size_t)j * stride, c->d) * c->attention_scale;
        largest = score[j] > largest ? score[j] : largest;
    }
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (int64_t j = 0; j < n_keys; j++) {
        float weight = expf(score[j] - largest);
        const float *value = v + (size_t)j * stride;
        total += (double)weight;
        for (int i = 0; i < c->d; i++) {
            out[i] += weight * value[i];
        }
    }
    for (int i = 0; i < c->d; i++) {
        out[i] = (float)((double)out[i] / total);
    }
}

static void attend_worker(void *ctx, int task)
{
    const attention *a = ctx;
    for (int row = task; row < a->n; row += a->workers) {
        for (int head = 0; head < a->x->m->config.q_heads; head++) {
            attend_head(a, row, head, a->x->scores + (size_t)task * (size_t)a->x->max_tokens);
        }
    }
}

/* ---- one layer ---- */

static void copy_taps(const model_exact *x,
        int layer,
        const float *k,
        const float *v,
        const rows *r,
        const model_taps *taps,
        int n_taps)
{
    const model_config *c = &x->m->config;
    size_t kv = (size_t)r->n * (size_t)(c->kv_heads * c->d) * sizeof(float);
    for (int i = 0; i < n_taps; i++) {
        if (taps[i].layer != layer) {
            continue;
        }
        if (taps[i].k != NULL) {
            memcpy(taps[i].k, k, kv);
        }
        if (taps[i].v != NULL) {
            memcpy(taps[i].v, v, kv);
        }
        if (taps[i].hidden != NULL) {
            memcpy(taps[i].hidden, r->x, (size_t)r->n * (size_t)c->width * sizeof(float));
        }
    }
}

static void run_layer(model_exact *x, int layer, rows *r, const model_taps *taps, int n_taps)
{
    const model *m = x->m;
    const model_config *c = &m->config;
    const model_layer *l = &m->layers[layer];
    size_t kv_cols = (size_t)(c->kv_heads * c->d);
    size_t layer_at = (size_t)layer * (size_t)x->max_tokens * kv_cols;
    float *k = x->k + layer_at + (size_t)x->n_tokens * kv_cols;
    float *v = x->v + layer_at + (size_t)x->n_tokens * kv_cols;

    rms_norm_rows(x, r->x, l->attention_norm, r->normed, r->n);
    multiply(x, &l->q, r->normed, r->n, r->q);
    multiply(x, &l->k, r->normed, r->n, k);
    multiply(x, &l->v, r->normed, r->n, v);
    finish_heads(m, r->q, r->n, c->q_heads, l->q_norm, x->n_tokens);
    finish_heads(m, k, r->n, c->kv_heads, l->k_norm, x->n_tokens);
    attention a = {x, r->q, x->k + layer_at, x->v + layer_at, r->attended, r->n, krn_pool_threads(m->pool)};
    krn_pool_run(m->pool, attend_worker, &a, a.workers);
    multiply(x, &l->o, r->attended, r->n, r->delta);
    add(r->x, r->delta, (size_t)r->n * (size_t)c->width);

    rms_norm_rows(x, r->x, l->ffn_norm, r->normed, r->n);
    multiply(x, &l->gate, r->normed, r->n, r->gate);
    multiply(x, &l->up, r->normed, r->n, r->up);
    for (size_t i = 0; i < (size_t)r->n * (size_t)c->ffn; i++) {
        r->gate[i] = r->gate[i] / (1.0f + expf(-r->gate[i])) * r->up[i]; /* silu(gate) * up */
    }
    multiply(x, &l->down, r->gate, r->n, r->delta);
    add(r->x, r->delta, (size_t)r->n * (size_t)c->width);
    copy_taps(x, layer, k, v, r, taps, n_taps);
}

/* ---- whole pass ---- */

static status check_ids(const model *m, const int32_t *ids, int n, err *e)
{
    for (int i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= m->config.vocab) {
            return FAIL(e, ST_ERR_ARG, "token id %d is outside the vocabulary, must be 0 to %d", ids[i],
                    m->config.vocab - 1);
        }
    }
    return ST_OK;
}

static void free_rows(rows *r)
{
    float *all[] = {r->x, r->normed, r->q, r->attended, r->gate, r->up, r->delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        base_free(all[i]);
    }
}

static bool alloc_rows(const model_config *c, int n, rows *r)
{
    size_t count = (size_t)n;
    size_t q_cols = (size_t)(c->q_heads * c->d);
    *r = (rows){.n = n};
    r->x = base_zalloc(count * (size_t)c->width, sizeof(float));
    r->normed = base_zalloc(count * (size_t)c->width, sizeof(float));
    r->delta = base_zalloc(count * (size_t)c->width, sizeof(float));
    r->q = base_zalloc(count * q_cols, sizeof(float));
    r->attended = base_zalloc(count * q_cols, sizeof(float));
    r->gate = base_zalloc(count * (size_t)c->ffn, sizeof(float));
    r->up = base_zalloc(count * (size_t)c->ffn, sizeof(float));
    return r->x != NULL && r->normed != NULL && r->delta != NULL && r->q != NULL && r->attended != NULL &&
            r->gate != NULL && r->up != NULL;
}

static void embed(const model *m, const int32_t *ids, rows *r)
{
    const gguf_tensor *w = m->embedding;
    int64_t row_bytes = w->size[0] / krn_type_block_elements(w->type) * krn_type_block_bytes(w->type);
    for (int t = 0; t < r->n; t++) {
        krn_dequantize(w->type, (const uint8_t *)w->data + ids[t] * row_bytes,
                r->x + (size_t)t * (size_t)w->size[0], w->size[0]);
    }
}

static void report_logits(model_exact *x, rows *r, int n_logits, model_on_row on_row, void *ctx)
{
    const model_config *c = &x->m->config;
    rms_norm_rows(x, r->x, x->m->output_norm, r->normed, r->n);
    for (int from = r->n - n_logits; from < r->n; from += LOGIT_ROWS) {
        int n = r->n - from < LOGIT_ROWS ? r->n - from : LOGIT_ROWS;
        multiply(x, &x->m->output, r->normed + (size_t)from * (size_t)c->width, n, x->logits);
        for (int i = 0; i < n; i++) {
            on_row(ctx, from + i, x->logits + (size_t)i * (size_t)c->vocab);
        }
    }
}

status model_exact_append(model_exact *x,
        const int32_t *ids,
        int n,
        int n_logits,
        model_on_row on_row,
        void *ctx,
        const model_taps *taps,
        int n_taps,
        err *e)
{
    rows r = {0};
    REQUIRE(n >= 0 && n_logits >= 0 && n_logits <= n);
    TRY(check_ids(x->m, ids, n, e));
    if (n > x->max_tokens - x->n_tokens) {
        return FAIL(e, ST_ERR_LIMIT, "%d tokens behind %lld, room for %lld in all", n, (long long)x->n_tokens,
                (long long)x->max_tokens);
    }
    if (!alloc_rows(&x->m->config, n, &r)) {
        free_rows(&r);
        return FAIL(e, ST_ERR_MEMORY, "out of memory for %d tokens", n);
    }
    embed(x->m, ids, &r);
    for (int layer = 0; layer < x->m->config.layers; layer++) {
        run_layer(x, layer, &r, taps, n_taps);
    }
    report_logits(x, &r, n_logits, on_row, ctx);
    x->n_tokens += n;
    free_rows(&r);
    return ST_OK;
}

status model_exact_open(const model *m, int64_t max_tokens, model_exact **out, err *e)
{
    const model_config *c = &m->config;
    size_t kv = (size_t)c->layers * (size_t)max_tokens * (size_t)(c->kv_heads * c->d);
    size_t widest = (size_t)model_widest_row(c);
    model_exact *x = base_zalloc(1, sizeof *x);
    if (x != NULL) {
        x->m = m;
        x->max_tokens = max_tokens;
        x->k = base_alloc(kv * sizeof(float));
        x->v = base_alloc(kv * sizeof(float));
        x->weights = base_alloc(SLICE_ROWS * widest * sizeof(float));
        x->scores = base_zalloc((size_t)krn_pool_threads(m->pool) * (size_t)max_tokens, sizeof(float));
        x->logits = base_zalloc(LOGIT_ROWS * (size_t)c->vocab, sizeof(float));
    }
    if (x == NULL || x->k == NULL || x->v == NULL || x->weights == NULL || x->scores == NULL ||
            x->logits == NULL) {
        model_exact_close(x);
        return FAIL(
                e, ST_ERR_MEMORY, "out of memory for a float32 cache of %lld tokens", (long long)max_tokens);
    }
    *out = x;
    return ST_OK;
}

void model_exact_close(model_exact *x)
{
    if (x == NULL) {
        return;
    }
    base_free(x->k);
    base_free(x->v);
    base_free(x->weights);
    base_free(x->scores);
    base_free(x->logits);
    base_free(x);
}

typedef struct row_copy {
    float *logits;
    size_t vocab;
} row_copy;

static void copy_row(void *ctx, int row, const float *logits)
{
    const row_copy *c = ctx;
    memcpy(c->logits + (size_t)row * c->vocab, logits, c->vocab * sizeof *logits);
}

status model_forward_exact(
        const model *m, const int32_t *ids, int n, float *logits, const model_taps *taps, int n_taps, err *e)
{
    model_exact *x = NULL;
    row_copy copy = {logits, (size_t)m->config.vocab};
    TRY(model_exact_open(m, n, &x, e));
    status s = model_exact_append(x, ids, n, logits == NULL ? 0 : n, copy_row, &copy, taps, n_taps, e);
    model_exact_close(x);
    return s;
}
