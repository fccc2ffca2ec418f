/* What coding does to attention itself: its outputs over a coded cache against those over the exact one, layer by layer,
 * for the same queries. Nothing propagates from layer to layer here, unlike in KL. */
#include <string.h>

#include "agent/eval_internal.h"

struct eval_probe {
    int n, layers, q_heads, kv_heads, d;
    float *q, *k, *v;     /* [layer][n][H or K][d]: queries before RoPE, keys after it */
    float *exact, *coded; /* [layer][n][H][d], [n][H][d]: outputs */
    float *angles;        /* [n][dims / 2][2] */
    int64_t *position;    /* [n] */
    krn_attend_head *heads;
    void *workspace;
};

static size_t queries_of_layer(const eval_probe *p)
{
    return (size_t)p->n * (size_t)p->q_heads * (size_t)p->d;
}

static size_t keys_of_layer(const eval_probe *p)
{
    return (size_t)p->n * (size_t)p->kv_heads * (size_t)p->d;
}

static void take_rows(void *tap_ctx, int layer, const float *q, const float *k, const float *v)
{
    eval_probe *p = tap_ctx;
    memcpy(p->q + (size_t)layer * queries_of_layer(p), q, queries_of_layer(p) * sizeof *q);
    memcpy(p->k + (size_t)layer * keys_of_layer(p), k, keys_of_layer(p) * sizeof *k);
    memcpy(p->v + (size_t)layer * keys_of_layer(p), v, keys_of_layer(p) * sizeof *v);
}

/* The probe's own rows in the cache's stored space, behind the context. */
static void store_rows(const eval_probe *p, const model_kv *kv, int layer)
{
    for (int head = 0; head < p->kv_heads; head++) {
        krn_attend_head *h = &p->heads[head];
        uint16_t *k = NULL, *v = NULL;
        kv->space(kv->ctx, layer, head, &h->k_rotation, &h->v_rotation, &h->format);
        kv->new_rows(kv->ctx, layer, head, &k, &v);
        for (int row = 0; row < p->n; row++) {
            size_t from = (size_t)layer * keys_of_layer(p) +
                    ((size_t)row * (size_t)p->kv_heads + (size_t)head) * (size_t)p->d;
            krn_rotate_to_bf16(&h->k_rotation, p->d, p->k + from, k + (size_t)row * (size_t)p->d);
            krn_rotate_to_bf16(&h->v_rotation, p->d, p->v + from, v + (size_t)row * (size_t)p->d);
        }
    }
    for (int head = 0; head < p->kv_heads; head++) {
        kv->spans(kv->ctx, layer, head, &p->heads[head].spans, &p->heads[head].n_spans);
    }
}

/* Rows [from, n) of the probe; out [n - from][H][d]. */
static void attend(
        const model_tool *t, const eval_probe *p, const model_kv *kv, int layer, int from, float *out)
{
    const model_config *c = model_get_config(t->m);
    size_t at = (size_t)from * (size_t)p->q_heads * (size_t)p->d;
    krn_attend_args args = {
            .n_rows = p->n - from,
            .n_q_heads = p->q_heads,
            .n_kv_heads = p->kv_heads,
            .d = p->d,
            .q = p->q + (size_t)layer * queries_of_layer(p) + at,
            .position = p->position + from,
            .scale = c->attention_scale,
            .rope = &c->rope,
            .n_variants = kv->n_variants,
            .cos_sin = p->angles + (size_t)from * (size_t)c->rope.dims,
            .sharpness = kv->sharpness,
            .heads = p->heads,
            .out = out,
    };
    krn_attend(t->pool, &args, p->workspace);
}

static status reserve(eval_probe *p, const model_config *c)
{
    size_t layers = (size_t)p->layers;
    p->q = base_zalloc(layers * queries_of_layer(p), sizeof *p->q);
    p->exact = base_zalloc(layers * queries_of_layer(p), sizeof *p->exact);
    p->coded = base_zalloc(queries_of_layer(p), sizeof *p->coded);
    p->k = base_zalloc(layers * keys_of_layer(p), sizeof *p->k);
    p->v = base_zalloc(layers * keys_of_layer(p), sizeof *p->v);
    p->angles = base_zalloc((size_t)p->n * (size_t)c->rope.dims, sizeof *p->angles);
    p->position = base_zalloc((size_t)p->n, sizeof *p->position);
    p->heads = base_zalloc((size_t)p->kv_heads, sizeof *p->heads);
    p->workspace = base_alloc(krn_attend_workspace_bytes(p->n, p->q_heads, p->d, 1));
    bool ok = p->q != NULL && p->exact != NULL && p->coded != NULL && p->k != NULL && p->v != NULL &&
            p->angles != NULL && p->position != NULL && p->heads != NULL && p->workspace != NULL;
    return ok ? ST_OK : ST_ERR_MEMORY;
}

static status fill(const model_tool *t, eval_probe *p, eval_kv *exact, const int32_t *ids, err *e)
{
    const model_config *c = model_get_config(t->m);
    int64_t context = eval_kv_context(exact);
    model_kv view = *eval_kv_prepare(exact, p->n);
    view.tap = take_rows;
    view.tap_ctx = p;
    model_run run = {.ids = ids, .n = p->n, .first_position = context, .kv = &view};
    TRY(model_forward(t->m, t->scratch, &run, 1, e));
    for (int row = 0; row < p->n; row++) {
        p->position[row] = context + row;
        krn_rope_angles(&c->rope, context + row, p->angles + (size_t)row * (size_t)c->rope.dims);
    }
    for (int layer = 0; layer < p->layers; layer++) {
        store_rows(p, &view, layer);
        attend(t, p, &view, layer, 0, p->exact + (size_t)layer * queries_of_layer(p));
    }
    return ST_OK;
}

status eval_probe_open(
        const model_tool *t, eval_kv *exact, const int32_t *ids, int n, eval_probe **out, err *e)
{
    const model_config *c = model_get_config(t->m);
    eval_probe *p = base_zalloc(1, sizeof *p);
    if (p == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for attention outputs");
    }
    *p = (eval_probe){.n = n < EVAL_BLOCK_ROWS ? n : EVAL_BLOCK_ROWS,
            .layers = c->layers,
            .q_heads = c->q_heads,
            .kv_heads = c->kv_heads,
            .d = c->d};
    status s = reserve(p, c);
    s = s == ST_OK ? fill(t, p, exact, ids, e) : FAIL(e, s, "out of memory for attention outputs");
    if (s != ST_OK) {
        eval_probe_close(p);
        return s;
    }
    *out = p;
    return ST_OK;
}

void eval_probe_close(eval_probe *p)
{
    if (p == NULL) {
        return;
    }
    base_free(p->q);
    base_free(p->exact);
    base_free(p->coded);
    base_free(p->k);
    base_free(p->v);
    base_free(p->angles);
    base_free(p->position);
    base_free(p->heads);
    base_free(p->workspace);
    base_free(p);
}

void eval_probe_compare(const model_tool *t, const eval_probe *p, eval_kv *kv, eval_attention *sum)
{
    const model_kv *view = eval_kv_prepare(kv, p->n);
    size_t count = queries_of_layer(p);
    for (int layer = 0; layer < p->layers; layer++) {
        const float *exact = p->exact + (size_t)layer * count;
        store_rows(p, view, layer);
        int64_t start = base_monotonic_us();
        attend(t, p, view, layer, p->n - 1, p->coded);
        sum->token_us += (double)(base_monotonic_us() - start);
        attend(t, p, view, layer, 0, p->coded);
        for (size_t i = 0; i < count; i++) {
            double difference = (double)p->coded[i] - (double)exact[i];
            sum->noise[layer] += difference * difference;
            sum->power[layer] += (double)exact[i] * (double)exact[i];
        }
    }
    sum->tokens_timed++;
}
