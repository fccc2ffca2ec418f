/*
 * A cache made of captured rows: sinks and the last context tokens in BF16, the middle through a codec, and BF16 room
 * for new tokens. Spans of a head: sinks, coded pages, the last tokens with the new ones behind them.
 */
#include <string.h>

#include "agent/eval_internal.h"

struct eval_kv {
    model_kv view;
    const kvq_codec *codec;
    int layers, kv_heads, d;
    int64_t context, middle_from, middle_to; /* tokens of the capture; the middle is coded */
    int n_columns, n_spans;
    size_t column_bytes;
    uint8_t *columns;   /* [column][page of (layer, head)] */
    int64_t exact_rows; /* of a head: sinks, last tokens, new ones */
    uint16_t *k, *v;    /* [layer][head][exact_rows][d], stored space */
    int one_layer;      /* its middle keys are coded and decoded, all else exact; -1: everything in pages */
    uint16_t *middle_k, *middle_v; /* one_layer >= 0: [layer][head][middle][d] */
    krn_span *spans;               /* [head][n_spans]; valid until the next layer asks */
    int new_tokens;                /* computed so far */
    int run_tokens;                /* of the run being prepared */
    double encode_us;
    int64_t shift;
    float sharpness;
};

static size_t head_of(const eval_kv *kv, int layer, int head)
{
    return (size_t)layer * (size_t)kv->kv_heads + (size_t)head;
}

static size_t exact_at(const eval_kv *kv, int layer, int head, int64_t row)
{
    return (head_of(kv, layer, head) * (size_t)kv->exact_rows + (size_t)row) * (size_t)kv->d;
}

static int64_t middle_tokens(const eval_kv *kv)
{
    return kv->middle_to - kv->middle_from;
}

static size_t middle_at(const eval_kv *kv, int layer, int head, int64_t row)
{
    return (head_of(kv, layer, head) * (size_t)middle_tokens(kv) + (size_t)row) * (size_t)kv->d;
}

/* ---- filling ---- */

typedef struct fill_job {
    eval_kv *kv;
    const eval_capture *c;
    status *failed; /* [layer * head] */
} fill_job;

static void to_stored(const krn_rotation *space, int d, const float *x, int64_t n, uint16_t *stored)
{
    for (int64_t row = 0; row < n; row++) {
        krn_rotate_to_bf16(space, d, x + row * d, stored + row * d);
    }
}

static void rotate_rows(
        const fill_job *job, int layer, int head, int64_t first, int64_t n, uint16_t *k, uint16_t *v)
{
    const eval_kv *kv = job->kv;
    size_t at = eval_capture_at(job->c, layer, head, first);
    to_stored(kvq_k_rotation(kv->codec, layer, head), kv->d, job->c->k + at, n, k);
    to_stored(kvq_v_rotation(kv->codec, layer, head), kv->d, job->c->v + at, n, v);
}

static int column_rows(const eval_kv *kv, int column)
{
    int64_t left = middle_tokens(kv) - (int64_t)column * KRN_PAGE_ROWS;
    return left < KRN_PAGE_ROWS ? (int)left : KRN_PAGE_ROWS;
}

typedef struct page_rows {
    uint16_t k[KRN_PAGE_ROWS * 256], v[KRN_PAGE_ROWS * 256];
    float decoded_k[KRN_PAGE_ROWS * 256], decoded_v[KRN_PAGE_ROWS * 256];
} page_rows;

static status code_column(const fill_job *job, page_rows *rows, int layer, int head, int column)
{
    const eval_kv *kv = job->kv;
    int n = column_rows(kv, column);
    int64_t first = kv->middle_from + (int64_t)column * KRN_PAGE_ROWS;
    err e;
    rotate_rows(job, layer, head, first, n, rows->k, rows->v);
    if (kv->one_layer < 0) {
        uint8_t *page = kv->columns + (size_t)column * kv->column_bytes + kvq_page_at(kv->codec, layer, head);
        return kvq_encode_page(kv->codec, layer, head, rows->k, rows->v, n, page, &e);
    }
    size_t at = middle_at(kv, layer, head, (int64_t)column * KRN_PAGE_ROWS);
    size_t count = (size_t)n * (size_t)kv->d;
    if (layer == kv->one_layer) {
        uint8_t *page = kv->columns + (size_t)head * kv->column_bytes;
        TRY(kvq_encode_page(kv->codec, layer, head, rows->k, rows->v, n, page, &e));
        kvq_decode_page(kv->codec, layer, head, page, rows->decoded_k, rows->decoded_v);
        for (size_t i = 0; i < count; i++) {
            rows->k[i] = base_f32_to_bf16(rows->decoded_k[i]);
        }
    }
    memcpy(kv->middle_k + at, rows->k, count * sizeof *rows->k);
    memcpy(kv->middle_v + at, rows->v, count * sizeof *rows->v);
    return ST_OK;
}

static void fill_head(void *ctx, int task)
{
    fill_job *job = ctx;
    eval_kv *kv = job->kv;
    int layer = task / kv->kv_heads, head = task % kv->kv_heads;
    page_rows *rows = base_alloc(sizeof *rows);
    status s = rows == NULL ? ST_ERR_MEMORY : ST_OK;
    for (int column = 0; s == ST_OK && column < kv->n_columns; column++) {
        s = code_column(job, rows, layer, head, column);
    }
    base_free(rows);
    size_t sinks = exact_at(kv, layer, head, 0), last = exact_at(kv, layer, head, kv->middle_from);
    rotate_rows(job, layer, head, 0, kv->middle_from, kv->k + sinks, kv->v + sinks);
    rotate_rows(job, layer, head, kv->middle_to, kv->context - kv->middle_to, kv->k + last, kv->v + last);
    job->failed[task] = s;
}

/* fn for every (layer, head), and the time taken. */
static status for_heads(const model_tool *t,
        eval_kv *kv,
        const eval_capture *c,
        void (*fn)(void *ctx, int task),
        double *us,
        err *e)
{
    int tasks = kv->layers * kv->kv_heads;
    fill_job job = {.kv = kv, .c = c, .failed = base_zalloc((size_t)tasks, sizeof(status))};
    if (job.failed == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a coded cache");
    }
    int64_t start = base_monotonic_us();
    krn_pool_run(t->pool, fn, &job, tasks);
    *us = (double)(base_monotonic_us() - start);
    status s = ST_OK;
    for (int task = 0; s == ST_OK && task < tasks; task++) {
        s = job.failed[task];
    }
    base_free(job.failed);
    return s == ST_OK ? ST_OK : FAIL(e, s, "codec %s: coding failed", kvq_codec_name(kv->codec));
}

/* ---- what the forward pass asks for ---- */

static void kv_space(
        void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format)
{
    const eval_kv *kv = ctx;
    *k = *kvq_k_rotation(kv->codec, layer, head);
    *v = *kvq_v_rotation(kv->codec, layer, head);
    *format = *kvq_page_format(kv->codec, layer);
}

static int64_t new_row(const eval_kv *kv)
{
    return kv->middle_from + kv->context - kv->middle_to + kv->new_tokens;
}

static void kv_new_rows(void *ctx, int layer, int head, uint16_t **k, uint16_t **v)
{
    eval_kv *kv = ctx;
    size_t at = exact_at(kv, layer, head, new_row(kv));
    *k = kv->k + at;
    *v = kv->v + at;
}

static krn_span bf16_span(const uint16_t *k, const uint16_t *v, int64_t rows, int64_t first)
{
    return (krn_span){.kind = KRN_SPAN_BF16, .rows = (int)rows, .k = k, .v = v, .first_position = first};
}

static void kv_spans(void *ctx, int layer, int head, const krn_span **spans, int *n)
{
    eval_kv *kv = ctx;
    krn_span *out = kv->spans + (size_t)head * (size_t)kv->n_spans;
    size_t sinks = exact_at(kv, layer, head, 0), last = exact_at(kv, layer, head, kv->middle_from);
    *spans = out;
    *out++ = bf16_span(kv->k + sinks, kv->v + sinks, kv->middle_from, 0);
    for (int column = 0; kv->one_layer < 0 && column < kv->n_columns; column++) {
        const uint8_t *data = kv->columns + (size_t)column * kv->column_bytes;
        *out = kvq_span(kv->codec, layer, head, data, column_rows(kv, column));
        out->first_position = kv->middle_from + (int64_t)column * KRN_PAGE_ROWS;
        out++;
    }
    if (kv->one_layer >= 0 && middle_tokens(kv) > 0) {
        size_t at = middle_at(kv, layer, head, 0);
        *out++ = bf16_span(kv->middle_k + at, kv->middle_v + at, middle_tokens(kv), kv->middle_from);
    }
    *out++ = bf16_span(kv->k + last, kv->v + last,
            kv->context - kv->middle_to + kv->new_tokens + kv->run_tokens, kv->middle_to);
    *n = (int)(out - *spans);
}

/* ---- open and close ---- */

static status reserve(eval_kv *kv)
{
    size_t heads = (size_t)kv->layers * (size_t)kv->kv_heads;
    size_t exact = heads * (size_t)kv->exact_rows * (size_t)kv->d;
    kv->k = base_zalloc(exact, sizeof *kv->k);
    kv->v = base_zalloc(exact, sizeof *kv->v);
    kv->spans = base_zalloc((size_t)kv->kv_heads * (size_t)kv->n_spans, sizeof *kv->spans);
    bool ok = kv->k != NULL && kv->v != NULL && kv->spans != NULL;
    size_t columns = (size_t)kv->n_columns;
    if (kv->one_layer >= 0) {
        size_t middle = heads * (size_t)middle_tokens(kv) * (size_t)kv->d;
        kv->middle_k = base_zalloc(middle, sizeof *kv->middle_k);
        kv->middle_v = base_zalloc(middle, sizeof *kv->middle_v);
        ok = ok && kv->middle_k != NULL && kv->middle_v != NULL;
        columns = (size_t)kv->kv_heads;
    }
    kv->columns = base_zalloc(columns + 1, kv->column_bytes); /* one more: never an empty array */
    return ok && kv->columns != NULL ? ST_OK : ST_ERR_MEMORY;
}

static status open_kv(const model_tool *t,
        const kvq_codec *codec,
        const eval_capture *c,
        int layer,
        int n_more,
        eval_kv **out,
        err *e)
{
    eval_kv *kv = base_zalloc(1, sizeof *kv);
    if (kv == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a coded cache");
    }
    kv->codec = codec;
    kv->one_layer = layer;
    kv->layers = c->layers;
    kv->kv_heads = c->kv_heads;
    kv->d = c->d;
    kv->context = c->tokens;
    kv->middle_from = c->tokens < EVAL_SINK_TOKENS ? c->tokens : EVAL_SINK_TOKENS;
    kv->middle_to = c->tokens - EVAL_RECENT_TOKENS;
    kv->middle_to = kv->middle_to < kv->middle_from ? kv->middle_from : kv->middle_to;
    kv->exact_rows = kv->middle_from + kv->context - kv->middle_to + n_more;
    kv->n_columns = (int)((middle_tokens(kv) + KRN_PAGE_ROWS - 1) / KRN_PAGE_ROWS);
    kv->n_spans = kv->n_columns + 3;
    kv->column_bytes = kvq_column_bytes(codec);
    kv->sharpness = 1.0f;
    kv->view = (model_kv){.ctx = kv,
            .space = kv_space,
            .new_rows = kv_new_rows,
            .spans = kv_spans,
            .n_variants = 1,
            .shift = &kv->shift,
            .sharpness = &kv->sharpness};
    status s = reserve(kv);
    s = s == ST_OK ? for_heads(t, kv, c, fill_head, &kv->encode_us, e)
                   : FAIL(e, s, "out of memory for a coded cache");
    if (s != ST_OK) {
        eval_kv_close(kv);
        return s;
    }
    *out = kv;
    return ST_OK;
}

status eval_kv_open(
        const model_tool *t, const kvq_codec *codec, const eval_capture *c, int n_more, eval_kv **out, err *e)
{
    return open_kv(t, codec, c, -1, n_more, out, e);
}

status eval_kv_open_one_layer(const model_tool *t,
        const kvq_codec *codec,
        const eval_capture *c,
        int layer,
        int n_more,
        eval_kv **out,
        err *e)
{
    return open_kv(t, codec, c, layer, n_more, out, e);
}

void eval_kv_close(eval_kv *kv)
{
    if (kv == NULL) {
        return;
    }
    base_free(kv->columns);
    base_free(kv->k);
    base_free(kv->v);
    base_free(kv->middle_k);
    base_free(kv->middle_v);
    base_free(kv->spans);
    base_free(kv);
}

double eval_kv_encode_us(const eval_kv *kv)
{
    return kv->encode_us;
}

int64_t eval_kv_coded_tokens(const eval_kv *kv)
{
    return middle_tokens(kv);
}

int64_t eval_kv_context(const eval_kv *kv)
{
    return kv->context;
}

/* ---- decoding ---- */

static void decode_head(void *ctx, int task)
{
    const fill_job *job = ctx;
    const eval_kv *kv = job->kv;
    int layer = task / kv->kv_heads, head = task % kv->kv_heads;
    page_rows *rows = base_alloc(sizeof *rows);
    for (int column = 0; rows != NULL && column < kv->n_columns; column++) {
        const uint8_t *page =
                kv->columns + (size_t)column * kv->column_bytes + kvq_page_at(kv->codec, layer, head);
        kvq_decode_page(kv->codec, layer, head, page, rows->decoded_k, rows->decoded_v);
    }
    job->failed[task] = rows == NULL ? ST_ERR_MEMORY : ST_OK;
    base_free(rows);
}

status eval_kv_decode_us(const model_tool *t, eval_kv *kv, double *us, err *e)
{
    REQUIRE(kv->one_layer < 0);
    return for_heads(t, kv, NULL, decode_head, us, e);
}

/* ---- running ---- */

static status run_blocks(const model_tool *t,
        eval_kv *kv,
        const int32_t *ids,
        int n,
        float *logits,
        eval_on_logits on_logits,
        void *ctx,
        err *e)
{
    while (kv->new_tokens < n) {
        int left = n - kv->new_tokens;
        kv->run_tokens = left < EVAL_BLOCK_ROWS ? left : EVAL_BLOCK_ROWS;
        model_run run = {.ids = ids + kv->new_tokens,
                .n = kv->run_tokens,
                .first_position = kv->context + kv->new_tokens,
                .kv = &kv->view,
                .n_logits = kv->run_tokens,
                .logits = logits};
        TRY(model_forward(t->m, t->scratch, &run, 1, e));
        on_logits(ctx, kv->new_tokens, run.n, logits);
        kv->new_tokens += run.n;
    }
    return ST_OK;
}

const model_kv *eval_kv_prepare(eval_kv *kv, int n)
{
    kv->new_tokens = 0;
    kv->run_tokens = n;
    REQUIRE(new_row(kv) + n <= kv->exact_rows);
    return &kv->view;
}

status eval_kv_run(const model_tool *t,
        eval_kv *kv,
        const int32_t *ids,
        int n,
        eval_on_logits on_logits,
        void *ctx,
        err *e)
{
    REQUIRE(new_row(kv) - kv->new_tokens + n <= kv->exact_rows);
    float *logits =
            base_zalloc((size_t)EVAL_BLOCK_ROWS * (size_t)model_get_config(t->m)->vocab, sizeof *logits);
    if (logits == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for logits");
    }
    kv->new_tokens = 0;
    status s = run_blocks(t, kv, ids, n, logits, on_logits, ctx, e);
    base_free(logits);
    return s;
}
