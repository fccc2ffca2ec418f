/* A KV cache that keeps every token in BF16, in model space: one span per (layer, head), one query variant. */
#include "agent/model_internal.h"

#include <string.h>

struct plain_kv {
    model_kv view; /* ctx is this object */
    int kv_heads, d;
    int64_t tokens, new_from, max_tokens;
    uint16_t *k, *v; /* [layer][head][max_tokens][d] */
    krn_span *spans; /* [head]; valid until the next layer asks */
    model_kv_part part;
    int64_t shift;
    float sharpness;
};

static size_t row_at(const plain_kv *p, int layer, int head, int64_t token)
{
    return (((size_t)layer * (size_t)p->kv_heads + (size_t)head) * (size_t)p->max_tokens + (size_t)token) *
            (size_t)p->d;
}

void model_kv_plain_space(
        void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format)
{
    (void)ctx;
    (void)layer;
    (void)head;
    *k = *v = (krn_rotation){.kind = KRN_ROTATION_NONE};
    *format = (krn_page_format){0};
}

static void plain_new_rows(void *ctx, int layer, int head, uint16_t **k, uint16_t **v)
{
    plain_kv *p = ctx;
    *k = p->k + row_at(p, layer, head, p->new_from);
    *v = p->v + row_at(p, layer, head, p->new_from);
}

static void plain_spans(void *ctx, int layer, int head, const krn_span **spans, int *n)
{
    plain_kv *p = ctx;
    p->spans[head] = (krn_span){
            .kind = KRN_SPAN_BF16,
            .rows = (int)p->tokens,
            .k = p->k + row_at(p, layer, head, 0),
            .v = p->v + row_at(p, layer, head, 0),
    };
    *spans = &p->spans[head];
    *n = 1;
}

static void plain_parts(void *ctx, const model_kv_part **parts, int *n)
{
    plain_kv *p = ctx;
    p->part.kind = KRN_SPAN_BF16;
    p->part.rows = (int)p->tokens;
    p->part.k = p->k;
    p->part.v = p->v;
    p->part.bytes = row_at(p, 0, 1, 0) * sizeof *p->k;
    *parts = &p->part;
    *n = 1;
}

static size_t plain_page_at(void *ctx, int layer, int head)
{
    (void)ctx;
    (void)layer;
    (void)head;
    return 0;
}

status plain_kv_open(const model *m, int64_t max_tokens, plain_kv **out, err *e)
{
    const model_config *c = model_get_config(m);
    uint64_t bytes;
    plain_kv *p = base_zalloc(1, sizeof *p);
    bool fits = max_tokens > 0 && max_tokens <= INT32_MAX &&
            base_mul((uint64_t)c->layers * (uint64_t)c->kv_heads * (uint64_t)c->d * sizeof(uint16_t),
                    (uint64_t)max_tokens, &bytes);
    if (p != NULL && fits) {
        p->spans = base_zalloc((size_t)c->kv_heads, sizeof *p->spans);
        p->k = base_alloc((size_t)bytes);
        p->v = base_alloc((size_t)bytes);
    }
    if (p == NULL || p->spans == NULL || p->k == NULL || p->v == NULL) {
        plain_kv_close(p);
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a cache of %lld tokens", (long long)max_tokens);
    }
    p->kv_heads = c->kv_heads;
    p->d = c->d;
    p->max_tokens = max_tokens;
    p->sharpness = 1.0f;
    p->part.id = model_kv_next_id();
    p->view = (model_kv){
            .ctx = p,
            .space = model_kv_plain_space,
            .new_rows = plain_new_rows,
            .spans = plain_spans,
            .parts = plain_parts,
            .page_at = plain_page_at,
            .n_variants = 1,
            .shift = &p->shift,
            .sharpness = &p->sharpness,
    };
    *out = p;
    return ST_OK;
}

void plain_kv_close(plain_kv *p)
{
    if (p == NULL) {
        return;
    }
    base_free(p->k);
    base_free(p->v);
    base_free(p->spans);
    base_free(p);
}

const model_kv *plain_kv_prepare(plain_kv *p, int n_new)
{
    if (n_new < 0 || n_new > p->max_tokens - p->tokens) {
        return NULL;
    }
    p->new_from = p->tokens;
    p->tokens += n_new;
    return &p->view;
}

void plain_kv_reset(plain_kv *p)
{
    p->tokens = p->new_from = 0;
    p->part.id = model_kv_next_id();
}

int64_t plain_kv_tokens(const plain_kv *p)
{
    return p->tokens;
}
