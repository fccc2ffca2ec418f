/*
 * Caches cut down to a budget while the history is read, as the literature does it, at the token count that the product
 * attends to. Every (layer, KV head) keeps its own tokens, `budget` of them, in BF16 at the positions they were computed
 * at; after each block of the history the worst go.
 *
 *   streaming  the first 4 and the latest (StreamingLLM, arXiv 2309.17453, section 3.2; positions as computed)
 *   h2o        half the latest, half those with the largest attention summed over all queries so far (H2O,
 *              arXiv 2306.14048, equation 2 and algorithm 1)
 *   snapkv     the latest 32 and those with the largest attention from these 32, mean over them, smoothed by a maximum
 *              over 7 neighbours (SnapKV, arXiv 2404.14469, equations 1 to 4), block by block
 *   keydiff    those whose key is least like the mean of all unit keys (KeyDiff, arXiv 2504.15364, algorithm 1)
 *
 * Attention of grouped queries is summed over the queries of a KV head.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agent/eval_memory_run_internal.h"

enum { STREAMING_SINKS = 4, SNAPKV_WINDOW = 32, SNAPKV_KERNEL = 7, D_MAX = 256 };

struct eval_evicted {
    eval_bench *b;
    eval_evict_method method;
    int64_t budget, room, tokens; /* tokens: read so far; room: rows of a head */
    int layers, heads, q_heads, d, run_rows;
    int *rows;       /* [layer * head] kept */
    uint16_t *k, *v; /* [layer * head][room][d], model space */
    int32_t *token;  /* [layer * head][room] */
    float *score;    /* [layer * head][room], of h2o and snapkv */
    krn_span *spans; /* [head][2] */
    float *turned;   /* [TIERS_BLOCK_TOKENS][q_heads][d] queries after RoPE */
    float *cos_sin;
    model_kv view;
    int64_t shift;
    float sharpness;
    bool reading; /* the history: scores are wanted */
};

static size_t row_at(const eval_evicted *x, int layer, int head, int row)
{
    return ((size_t)(layer * x->heads + head) * (size_t)x->room + (size_t)row) * (size_t)x->d;
}

/* ---- what the forward pass asks for ---- */

static void new_rows(void *ctx, int layer, int head, uint16_t **k, uint16_t **v)
{
    eval_evicted *x = ctx;
    size_t at = row_at(x, layer, head, x->rows[layer * x->heads + head]);
    *k = x->k + at;
    *v = x->v + at;
}

static void spans_of(void *ctx, int layer, int head, const krn_span **spans, int *n)
{
    eval_evicted *x = ctx;
    krn_span *out = x->spans + (size_t)head * 2;
    int kept = x->rows[layer * x->heads + head];
    size_t old = row_at(x, layer, head, 0), new = row_at(x, layer, head, kept);
    *spans = out;
    if (kept > 0) {
        *out++ = (krn_span){.kind = KRN_SPAN_BF16,
                .rows = kept,
                .k = x->k + old,
                .v = x->v + old,
                .visible_to_all = true};
    }
    *out++ = (krn_span){.kind = KRN_SPAN_BF16,
            .rows = x->run_rows,
            .k = x->k + new,
            .v = x->v + new,
            .first_position = x->tokens};
    *n = (int)(out - *spans);
}

/* ---- scores by attention ---- */

typedef struct score_job {
    eval_evicted *x;
    int layer;
    const float *new_k; /* [run][heads][d] after RoPE */
    float *keys;        /* [head][room][d] */
    float *weights;     /* [head][room] */
} score_job;

static void load_keys(const score_job *work, int head, int kept, float *keys)
{
    const eval_evicted *x = work->x;
    const uint16_t *old = x->k + row_at(x, work->layer, head, 0);
    size_t d = (size_t)x->d;
    for (size_t i = 0; i < (size_t)kept * d; i++) {
        keys[i] = base_bf16_to_f32(old[i]);
    }
    for (int i = 0; i < x->run_rows; i++) {
        memcpy(keys + ((size_t)kept + (size_t)i) * d,
                work->new_k + ((size_t)i * (size_t)x->heads + (size_t)head) * d, d * sizeof *keys);
    }
}

/* One query's attention over its n visible rows, added to their scores. */
static void add_attention(
        const float *q, const float *keys, int n, int d, float scale, float *weights, float *score)
{
    float largest = -INFINITY, sum = 0.0f;
    for (int i = 0; i < n; i++) {
        float dot = 0.0f;
        for (int j = 0; j < d; j++) {
            dot += q[j] * keys[(size_t)i * (size_t)d + (size_t)j];
        }
        weights[i] = dot * scale;
        largest = weights[i] > largest ? weights[i] : largest;
    }
    for (int i = 0; i < n; i++) {
        weights[i] = expf(weights[i] - largest);
        sum += weights[i];
    }
    for (int i = 0; i < n; i++) {
        score[i] += weights[i] / sum;
    }
}

static void score_head(void *ctx, int head)
{
    const score_job *work = ctx;
    eval_evicted *x = work->x;
    int kept = x->rows[work->layer * x->heads + head], group = x->q_heads / x->heads;
    float *keys = work->keys + (size_t)head * (size_t)x->room * (size_t)x->d;
    float *weights = work->weights + (size_t)head * (size_t)x->room;
    float *score = x->score + (size_t)(work->layer * x->heads + head) * (size_t)x->room;
    int first = x->method == EVAL_SNAPKV && x->run_rows > SNAPKV_WINDOW ? x->run_rows - SNAPKV_WINDOW : 0;
    load_keys(work, head, kept, keys);
    memset(score + kept, 0, (size_t)x->run_rows * sizeof *score);
    if (x->method == EVAL_SNAPKV) { /* of these queries alone, not of earlier blocks' */
        memset(score, 0, (size_t)kept * sizeof *score);
    }
    float scale = model_get_config(x->b->engine->model)->attention_scale;
    for (int row = first; row < x->run_rows; row++) {
        for (int g = 0; g < group; g++) {
            const float *q = x->turned +
                    ((size_t)row * (size_t)x->q_heads + (size_t)(head * group + g)) * (size_t)x->d;
            add_attention(q, keys, kept + row + 1, x->d, scale, weights, score);
        }
    }
}

static void on_rows(void *ctx, int layer, const float *q, const float *k, const float *v)
{
    eval_evicted *x = ctx;
    (void)v;
    size_t head_room = (size_t)x->heads * (size_t)x->room;
    score_job work = {.x = x, .layer = layer, .new_k = k};
    if (!x->reading || (x->method != EVAL_H2O && x->method != EVAL_SNAPKV)) {
        return;
    }
    work.keys = base_alloc(head_room * (size_t)x->d * sizeof *work.keys);
    work.weights = base_alloc(head_room * sizeof *work.weights);
    REQUIRE(work.keys != NULL && work.weights != NULL);
    const krn_rope *rope = &model_get_config(x->b->engine->model)->rope;
    size_t width = (size_t)x->q_heads * (size_t)x->d;
    memcpy(x->turned, q, (size_t)x->run_rows * width * sizeof *q);
    for (int row = 0; row < x->run_rows; row++) {
        krn_rope_angles(rope, x->tokens + row, x->cos_sin);
        for (int h = 0; h < x->q_heads; h++) {
            krn_rope_apply(rope, x->cos_sin, x->turned + (size_t)row * width + (size_t)h * (size_t)x->d);
        }
    }
    krn_pool_run(x->b->engine->pool, score_head, &work, x->heads);
    base_free(work.keys);
    base_free(work.weights);
}

/* ---- eviction ---- */

typedef struct ranked {
    float value;
    int row;
} ranked;

/* Larger values first; the later row among equals. */
static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->value > y->value ? -1 : x->value < y->value ? 1 : y->row - x->row;
}

/* -cos(key, mean of unit keys). */
static void rank_keydiff(const eval_evicted *x, int layer, int head, int n, ranked *out)
{
    float mean[D_MAX] = {0}, norm = 0.0f;
    const uint16_t *keys = x->k + row_at(x, layer, head, 0);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            float key[D_MAX], length = 0.0f, dot = 0.0f;
            for (int j = 0; j < x->d; j++) {
                key[j] = base_bf16_to_f32(keys[(size_t)i * (size_t)x->d + (size_t)j]);
                length += key[j] * key[j];
            }
            length = sqrtf(length) + 1e-20f;
            for (int j = 0; j < x->d; j++) {
                mean[j] += pass == 0 ? key[j] / length : 0.0f;
                dot += key[j] / length * mean[j];
            }
            out[i] = (ranked){.value = -dot / norm, .row = i}; /* the second pass's stay */
        }
        norm = 0.0f;
        for (int j = 0; j < x->d; j++) {
            norm += mean[j] * mean[j];
        }
        norm = sqrtf(norm) + 1e-20f;
    }
}

static void rank_attention(const eval_evicted *x, int layer, int head, int n, ranked *out)
{
    const float *score = x->score + (size_t)(layer * x->heads + head) * (size_t)x->room;
    int reach = x->method == EVAL_SNAPKV ? SNAPKV_KERNEL / 2 : 0;
    for (int i = 0; i < n; i++) {
        float best = score[i];
        for (int j = i - reach > 0 ? i - reach : 0; j <= i + reach && j < n; j++) {
            best = score[j] > best ? score[j] : best;
        }
        out[i] = (ranked){.value = best, .row = i};
    }
}

static void rank_rows(const eval_evicted *x, int layer, int head, int n, ranked *out)
{
    int budget = (int)x->budget, latest = 0, first = 0;
    switch (x->method) {
    case EVAL_STREAMING:
        first = STREAMING_SINKS;
        latest = budget - STREAMING_SINKS;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int i = 0; i < n; i++) {
            out[i].row = i;
        }
        break;
    case EVAL_H2O:
        latest = budget / 2;
        rank_attention(x, layer, head, n, out);
        break;
    case EVAL_SNAPKV:
        latest = SNAPKV_WINDOW;
        rank_attention(x, layer, head, n, out);
        break;
    default:
        rank_keydiff(x, layer, head, n, out);
        break;
    }
    for (int i = 0; i < n; i++) {
        out[i].value = i < first || i >= n - latest ? INFINITY : out[i].value;
    }
}

static int compare_rows(const void *a, const void *b)
{
    return ((const ranked *)a)->row - ((const ranked *)b)->row;
}

static void evict_head(eval_evicted *x, int layer, int head, ranked *list)
{
    int n = x->rows[layer * x->heads + head], keep = (int)x->budget;
    size_t first = (size_t)(layer * x->heads + head) * (size_t)x->room, bytes = (size_t)x->d * sizeof *x->k;
    if (n <= keep) {
        return;
    }
    rank_rows(x, layer, head, n, list);
    qsort(list, (size_t)n, sizeof *list, compare_ranked);
    qsort(list, (size_t)keep, sizeof *list, compare_rows);
    for (int i = 0; i < keep; i++) {
        size_t to = row_at(x, layer, head, i), from = row_at(x, layer, head, list[i].row);
        memmove(x->k + to, x->k + from, bytes);
        memmove(x->v + to, x->v + from, bytes);
        x->token[first + (size_t)i] = x->token[first + (size_t)list[i].row];
        x->score[first + (size_t)i] = x->score[first + (size_t)list[i].row];
    }
    x->rows[layer * x->heads + head] = keep;
}

static status evict(eval_evicted *x, err *e)
{
    ranked *list = base_alloc((size_t)x->room * sizeof *list);
    if (list == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a cache");
    }
    for (int page = 0; page < x->layers * x->heads; page++) {
        evict_head(x, page / x->heads, page % x->heads, list);
    }
    base_free(list);
    return ST_OK;
}

/* ---- runs ---- */

static status run(eval_evicted *x, const int32_t *ids, int n, int n_logits, float *logits, err *e)
{
    x->run_rows = n;
    model_run run = {.ids = ids,
            .n = n,
            .first_position = x->tokens,
            .kv = &x->view,
            .n_logits = n_logits,
            .logits = logits};
    TRY(model_forward(x->b->engine->model, x->b->engine->scratch, &run, 1, e));
    for (int page = 0; page < x->layers * x->heads; page++) {
        for (int i = 0; i < n; i++) {
            x->token[(size_t)page * (size_t)x->room + (size_t)(x->rows[page] + i)] = (int32_t)x->tokens + i;
        }
        x->rows[page] += n;
    }
    x->tokens += n;
    return ST_OK;
}

static status append(void *ctx, const int32_t *ids, int n, int n_logits, float *logits, err *e)
{
    for (int at = 0, rows; at < n; at += rows) {
        rows = n - at < EVAL_MEMORY_ROWS ? n - at : EVAL_MEMORY_ROWS;
        int behind = n - at - rows, wanted = n_logits - behind < rows ? n_logits - behind : rows;
        wanted = wanted < 0 ? 0 : wanted;
        float *out = wanted == 0
                ? NULL
                : logits + (size_t)(n_logits - behind - wanted) * (size_t)((eval_evicted *)ctx)->b->vocab;
        TRY(run(ctx, ids + at, rows, wanted, out, e));
    }
    return ST_OK;
}

static void forget(void *ctx, int64_t tokens)
{
    eval_evicted *x = ctx;
    for (int page = 0; page < x->layers * x->heads; page++) {
        x->rows[page] -= (int)(x->tokens - tokens);
    }
    x->tokens = tokens;
}

/* ---- life ---- */

static status reserve(eval_evicted *x, err *e)
{
    size_t pages = (size_t)x->layers * (size_t)x->heads, rows = pages * (size_t)x->room;
    x->rows = base_zalloc(pages, sizeof *x->rows);
    x->k = base_zalloc(rows, (size_t)x->d * sizeof *x->k);
    x->v = base_zalloc(rows, (size_t)x->d * sizeof *x->v);
    x->token = base_zalloc(rows, sizeof *x->token);
    x->score = base_zalloc(rows, sizeof *x->score);
    x->spans = base_zalloc((size_t)x->heads * 2, sizeof *x->spans);
    x->turned =
            base_zalloc((size_t)TIERS_BLOCK_TOKENS * (size_t)x->q_heads, (size_t)x->d * sizeof *x->turned);
    x->cos_sin = base_zalloc((size_t)x->d, sizeof *x->cos_sin);
    bool ok = x->rows != NULL && x->k != NULL && x->v != NULL && x->token != NULL && x->score != NULL;
    ok = ok && x->spans != NULL && x->turned != NULL && x->cos_sin != NULL;
    return ok ? ST_OK : FAIL(e, ST_ERR_MEMORY, "out of memory for a cache");
}

status eval_evicted_open(eval_bench *b,
        eval_evict_method method,
        int64_t budget,
        const int32_t *ids,
        int64_t n,
        eval_evicted **out,
        err *e)
{
    const model_config *c = model_get_config(b->engine->model);
    eval_evicted *x = base_zalloc(1, sizeof *x);
    if (x == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a cache");
    }
    REQUIRE(c->d <= D_MAX && budget > SNAPKV_WINDOW);
    *x = (eval_evicted){.b = b, .method = method, .budget = budget, .sharpness = 1.0f, .reading = true};
    x->room = budget + 2 * TIERS_BLOCK_TOKENS;
    x->layers = c->layers;
    x->heads = c->kv_heads;
    x->q_heads = c->q_heads;
    x->d = c->d;
    x->view = (model_kv){.ctx = x,
            .space = model_kv_plain_space,
            .new_rows = new_rows,
            .spans = spans_of,
            .n_variants = 1,
            .shift = &x->shift,
            .sharpness = &x->sharpness,
            .tap = on_rows,
            .tap_ctx = x};
    status st = reserve(x, e);
    while (st == ST_OK && x->tokens < n) {
        int64_t left = n - x->tokens;
        st = run(x, ids + x->tokens, left < TIERS_BLOCK_TOKENS ? (int)left : TIERS_BLOCK_TOKENS, 0, NULL, e);
        st = st == ST_OK ? evict(x, e) : st;
    }
    x->reading = false;
    if (st != ST_OK) {
        eval_evicted_close(x);
        return st;
    }
    *out = x;
    return ST_OK;
}

void eval_evicted_close(eval_evicted *x)
{
    if (x == NULL) {
        return;
    }
    base_free(x->rows);
    base_free(x->k);
    base_free(x->v);
    base_free(x->token);
    base_free(x->score);
    base_free(x->spans);
    base_free(x->turned);
    base_free(x->cos_sin);
    base_free(x);
}

eval_memory eval_evicted_memory(eval_evicted *x)
{
    return (eval_memory){.ctx = x, .tokens = x->tokens, .append = append, .rewind = forget};
}

int64_t eval_evicted_shares(const eval_evicted *x, float *shares)
{
    int pages = x->layers * x->heads;
    int64_t entries = 0;
    for (int page = 0; page < pages; page++) {
        for (int i = 0; i < x->rows[page]; i++) {
            shares[x->token[(size_t)page * (size_t)x->room + (size_t)i]] += 1.0f / (float)pages;
        }
        entries += x->rows[page];
    }
    return entries;
}
