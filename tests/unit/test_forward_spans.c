/* The forward pass over a session's KV as sessions keep it: rows stored in a rotated, centred space, history in spans
 * of their own, moved by a position shift. What it computes must be what plain contiguous attention computes, but for
 * the rounding of BF16: its error against transformers in float32 may be at most twice that of the plain cache. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/model_internal.h"
#include "tests/unit/vectors.h"

#define DATA EPIMEM_SOURCE_DIR "/tests/data/tiny/"

enum { TOKENS = 40, HISTORY = 23, AWAY = 300 };

/* History [0, HISTORY) at its own positions; what follows AWAY positions later, with the history shifted up to it. */
typedef struct moved_kv {
    const model_config *c;
    krn_rotation_kind kind;
    uint16_t *k, *v; /* [layer][head][TOKENS][d] */
    float *mean;     /* [d] */
    krn_span spans[16][2];
    int from, to; /* new rows of the run */
    int64_t shift[2];
    float sharpness[2];
    model_kv view;
} moved_kv;

static uint16_t *row_of(const moved_kv *m, uint16_t *rows, int layer, int head, int token)
{
    return rows +
            (((size_t)layer * (size_t)m->c->kv_heads + (size_t)head) * TOKENS + (size_t)token) *
            (size_t)m->c->d;
}

static void space(void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format)
{
    const moved_kv *m = ctx;
    *k = (krn_rotation){.kind = m->kind, .mean = (layer + head) % 2 == 0 ? m->mean : NULL};
    *v = (krn_rotation){.kind = m->kind, .mean = head % 2 == 0 ? m->mean : NULL};
    *format = (krn_page_format){0};
}

static void new_rows(void *ctx, int layer, int head, uint16_t **k, uint16_t **v)
{
    const moved_kv *m = ctx;
    *k = row_of(m, m->k, layer, head, m->from);
    *v = row_of(m, m->v, layer, head, m->from);
}

static void spans(void *ctx, int layer, int head, const krn_span **out, int *n)
{
    moved_kv *m = ctx;
    int old = m->from < HISTORY ? 0 : HISTORY;
    krn_span *s = m->spans[head];
    s[0] = (krn_span){.kind = KRN_SPAN_BF16,
            .rows = m->to - old,
            .variant = 0,
            .k = row_of(m, m->k, layer, head, old),
            .v = row_of(m, m->v, layer, head, old),
            .first_position = old == 0 ? 0 : old + AWAY};
    s[1] = (krn_span){.kind = KRN_SPAN_BF16,
            .rows = old,
            .variant = 1,
            .k = row_of(m, m->k, layer, head, 0),
            .v = row_of(m, m->v, layer, head, 0),
            .visible_to_all = true};
    *out = s;
    *n = old == 0 ? 1 : 2;
}

static void open_moved(moved_kv *m, const model_config *c, krn_rotation_kind kind)
{
    size_t count = (size_t)c->layers * (size_t)c->kv_heads * TOKENS * (size_t)c->d;
    *m = (moved_kv){.c = c, .kind = kind, .shift = {0, AWAY}, .sharpness = {1.0f, 1.0f}};
    m->k = base_zalloc(count, sizeof *m->k);
    m->v = base_zalloc(count, sizeof *m->v);
    m->mean = base_zalloc((size_t)c->d, sizeof *m->mean);
    assert_true(m->k != NULL && m->v != NULL && m->mean != NULL);
    for (int i = 0; i < c->d; i++) {
        m->mean[i] = 0.1f * (float)sin(1.0 + i);
    }
    m->view = (model_kv){.ctx = m,
            .space = space,
            .new_rows = new_rows,
            .spans = spans,
            .n_variants = 2,
            .shift = m->shift,
            .sharpness = m->sharpness};
}

static void close_moved(moved_kv *m)
{
    base_free(m->k);
    base_free(m->v);
    base_free(m->mean);
}

/* Root mean square error of the logits after the history. */
static double error_of(const float *logits, const float *reference, int vocab)
{
    double sum = 0.0;
    for (int i = HISTORY * vocab; i < TOKENS * vocab; i++) {
        double difference = (double)logits[i] - (double)reference[i];
        sum += difference * difference;
    }
    return sqrt(sum / ((TOKENS - HISTORY) * vocab));
}

static void run_block(const model *m,
        model_scratch *s,
        const model_kv *kv,
        const int32_t *ids,
        int from,
        int n,
        int64_t position,
        float *logits)
{
    err e = {0};
    int vocab = model_get_config(m)->vocab;
    model_run run = {ids + from, n, position, kv, n, logits + (size_t)from * (size_t)vocab};
    assert_int_equal(model_forward(m, s, &run, 1, &e), ST_OK);
}

static void check_model(krn_pool *pool, const cJSON *about)
{
    char path[512];
    err e = {0};
    int n;
    model *m = NULL;
    model_scratch *s = NULL;
    plain_kv *plain = NULL;
    const char *name = cJSON_GetObjectItemCaseSensitive(about, "name")->valuestring;
    int32_t *ids = vectors_ids(about, "ids", &n);
    assert_int_equal(n, TOKENS);
    (void)snprintf(path, sizeof path, DATA "%s.gguf", name);
    assert_int_equal(model_open(pool, path, &m, &e), ST_OK);
    assert_int_equal(model_scratch_open(m, TOKENS, &s, &e), ST_OK);
    assert_int_equal(plain_kv_open(m, TOKENS, &plain, &e), ST_OK);
    const model_config *c = model_get_config(m);
    size_t count = (size_t)TOKENS * (size_t)c->vocab;
    (void)snprintf(path, sizeof path, DATA "%s.logits.f32", name);
    float *reference = vectors_f32(path, count);
    float *logits = base_zalloc(count, sizeof *logits);
    assert_true(reference != NULL && logits != NULL);
    run_block(m, s, plain_kv_prepare(plain, TOKENS), ids, 0, TOKENS, 0, logits);
    double plain_error = error_of(logits, reference, c->vocab);
    for (int kind = KRN_ROTATION_NONE; kind <= KRN_ROTATION_HADAMARD; kind++) {
        moved_kv moved;
        open_moved(&moved, c, (krn_rotation_kind)kind);
        memset(logits, 0, count * sizeof *logits);
        static const int blocks[] = {HISTORY, 9, 1, 7};
        for (int b = 0, from = 0; b < 4; from += blocks[b++]) {
            moved.from = from;
            moved.to = from + blocks[b];
            run_block(m, s, &moved.view, ids, from, blocks[b], from == 0 ? 0 : from + AWAY, logits);
        }
        double moved_error = error_of(logits, reference, c->vocab);
        if (!(moved_error <= 2.0 * plain_error + 1e-5)) {
            fail_msg("%s, rotation %d: error %g, the plain cache has %g", name, kind, moved_error,
                    plain_error);
        }
        close_moved(&moved);
    }
    base_free(reference);
    base_free(logits);
    base_free(ids);
    plain_kv_close(plain);
    model_scratch_close(s);
    model_close(m);
}

static void history_elsewhere_is_attended_as_in_place(void **state)
{
    (void)state;
    err e = {0};
    krn_pool *pool = NULL;
    cJSON *list = vectors_json(DATA "models.json");
    const cJSON *about;
    assert_non_null(list);
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    cJSON_ArrayForEach (about, list) {
        check_model(pool, about);
    }
    krn_pool_close(pool);
    cJSON_Delete(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(history_elsewhere_is_attended_as_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
