/* One exact pass over a text, with all keys and values kept in float. */
#include <string.h>

#include "agent/eval_internal.h"

status eval_capture_open(const model *m, int64_t max_tokens, eval_capture *out, err *e)
{
    const model_config *c = model_get_config(m);
    uint64_t floats = 0, bytes = 0;
    eval_capture capture = {.layers = c->layers,
            .kv_heads = c->kv_heads,
            .q_heads = c->q_heads,
            .d = c->d,
            .max_tokens = max_tokens};
    bool fits = max_tokens > 0 &&
            base_mul((uint64_t)c->layers * (uint64_t)c->kv_heads * (uint64_t)c->d, (uint64_t)max_tokens,
                    &floats) &&
            base_mul(floats, sizeof(float), &bytes);
    if (fits) {
        capture.k = base_alloc((size_t)bytes);
        capture.v = base_alloc((size_t)bytes);
    }
    if (capture.k == NULL || capture.v == NULL) {
        eval_capture_close(&capture);
        return FAIL(
                e, ST_ERR_MEMORY, "out of memory for keys and values of %lld tokens", (long long)max_tokens);
    }
    *out = capture;
    return ST_OK;
}

void eval_capture_close(eval_capture *c)
{
    base_free(c->k);
    base_free(c->v);
    *c = (eval_capture){0};
}

typedef struct tap_state {
    eval_capture *c;
    int64_t first;
    int n;
    eval_on_queries on_queries;
    void *ctx;
} tap_state;

static void take_rows(void *tap_ctx, int layer, const float *q, const float *k, const float *v)
{
    tap_state *s = tap_ctx;
    eval_capture *c = s->c;
    size_t d = (size_t)c->d;
    for (int row = 0; row < s->n; row++) {
        for (int head = 0; head < c->kv_heads; head++) {
            size_t from = ((size_t)row * (size_t)c->kv_heads + (size_t)head) * d;
            size_t to = eval_capture_at(c, layer, head, s->first + row);
            memcpy(c->k + to, k + from, d * sizeof *k);
            memcpy(c->v + to, v + from, d * sizeof *v);
        }
    }
    if (s->on_queries != NULL) {
        s->on_queries(s->ctx, layer, s->first, s->n, q);
    }
}

static status run_blocks(
        const model_tool *t, const int32_t *ids, int64_t n, plain_kv *kv, tap_state *s, err *e)
{
    for (int64_t at = 0; at < n; at += s->n) {
        s->first = at;
        s->n = n - at < EVAL_BLOCK_ROWS ? (int)(n - at) : EVAL_BLOCK_ROWS;
        model_kv view = *plain_kv_prepare(kv, s->n);
        view.tap = take_rows;
        view.tap_ctx = s;
        model_run run = {.ids = ids + at, .n = s->n, .first_position = at, .kv = &view};
        TRY(model_forward(t->m, t->scratch, &run, 1, e));
    }
    return ST_OK;
}

status eval_capture_run(const model_tool *t,
        const int32_t *ids,
        int64_t n,
        eval_capture *c,
        eval_on_queries on_queries,
        void *ctx,
        err *e)
{
    REQUIRE(n > 0 && n <= c->max_tokens);
    plain_kv *kv = NULL;
    tap_state s = {.c = c, .on_queries = on_queries, .ctx = ctx};
    TRY(plain_kv_open(t->m, n, &kv, e));
    status st = run_blocks(t, ids, n, kv, &s, e);
    plain_kv_close(kv);
    c->tokens = st == ST_OK ? n : 0;
    return st;
}
