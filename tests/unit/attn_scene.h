/*
 * Scenes for the tests and the benchmark of attention: random spans of every kind over random keys and values with
 * outlier channels, stored by a codec, and the arguments of one call over them.
 */
#ifndef EPIMEM_TESTS_ATTN_SCENE_H
#define EPIMEM_TESTS_ATTN_SCENE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kvq/kvq.h"

enum { SCENE_SPANS_MAX = 96, SCENE_VARIANTS = 3 };

typedef struct scene {
    int d, group, kv_heads;
    kvq_codec *codec;
    double inv_freq[128];
    krn_rope rope;
    krn_attend_head *heads;
    krn_span *spans; /* [kv_heads][SCENE_SPANS_MAX] */
    int n_spans;
    int64_t next_position; /* of rows that are not visible to all */
    float *mean;           /* [d] or NULL: given to every rotation */
    float *matrix;         /* [d][d] or NULL */
    float constant_v;      /* every value, where not NAN */
    uint64_t seed;
    void *owned[4096];
    int n_owned;
} scene;

static inline uint32_t scene_bits(scene *s)
{
    s->seed = s->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s->seed >> 33);
}

static inline float scene_uniform(scene *s)
{
    return (float)scene_bits(s) / 2147483648.0f;
}

static inline float scene_normal(scene *s)
{
    float u = scene_uniform(s) + 1e-9f;
    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * scene_uniform(s));
}

static inline void *scene_own(scene *s, size_t bytes)
{
    void *p = base_alloc(bytes);
    REQUIRE(p != NULL && s->n_owned < (int)(sizeof s->owned / sizeof s->owned[0]));
    memset(p, 0, bytes);
    s->owned[s->n_owned++] = p;
    return p;
}

static inline void scene_open(scene *s, const char *codec, int d, int group, int kv_heads)
{
    *s = (scene){.d = d, .group = group, .kv_heads = kv_heads, .constant_v = NAN, .seed = 7};
    err e;
    kvq_shape shape = {.layers = 1, .kv_heads = kv_heads, .d = d};
    REQUIRE(kvq_codec_open(codec, &shape, NULL, &s->codec, &e) == ST_OK);
    for (int i = 0; i < d / 2; i++) {
        s->inv_freq[i] = pow(10000.0, -2.0 * i / d);
    }
    s->rope = (krn_rope){.pairing = KRN_ROPE_ADJACENT, .dims = d, .inv_freq = s->inv_freq, .magnitude = 1.0f};
    s->spans = scene_own(s, (size_t)kv_heads * SCENE_SPANS_MAX * sizeof *s->spans);
    s->heads = scene_own(s, (size_t)kv_heads * sizeof *s->heads);
}

static inline void scene_close(scene *s)
{
    kvq_codec_close(s->codec);
    for (int i = 0; i < s->n_owned; i++) {
        base_free(s->owned[i]);
    }
}

/* Rows in stored space: normal, some channels five times as large, row lengths spread. */
static inline uint16_t *scene_rows(scene *s, int rows, float constant)
{
    uint16_t *x = scene_own(s, (size_t)rows * (size_t)s->d * sizeof *x + 64);
    for (int r = 0; r < rows; r++) {
        float length = 0.25f + 2.0f * scene_uniform(s);
        for (int c = 0; c < s->d; c++) {
            float v = length * scene_normal(s) * (c % 29 == 3 ? 5.0f : 1.0f);
            x[r * s->d + c] = base_f32_to_bf16(isnan(constant) ? v : constant);
        }
    }
    return x;
}

/* Appends a span to every head. Rows not visible to all take the next positions. */
static inline void scene_add(scene *s, krn_span_kind kind, int rows, int variant, bool to_all)
{
    REQUIRE(s->n_spans < SCENE_SPANS_MAX);
    for (int h = 0; h < s->kv_heads; h++) {
        uint16_t *k = scene_rows(s, rows, NAN), *v = scene_rows(s, rows, s->constant_v);
        krn_span *span = &s->spans[h * SCENE_SPANS_MAX + s->n_spans];
        *span = (krn_span){.kind = KRN_SPAN_BF16, .rows = rows, .k = k, .v = v};
        if (kind == KRN_SPAN_PAGE) {
            uint8_t *column = scene_own(s, kvq_column_bytes(s->codec));
            err e;
            REQUIRE(kvq_encode_page(s->codec, 0, h, k, v, rows, column + kvq_page_at(s->codec, 0, h), &e) ==
                    ST_OK);
            *span = kvq_span(s->codec, 0, h, column, rows);
        }
        span->variant = variant;
        span->visible_to_all = to_all;
        span->first_position = s->next_position;
    }
    s->n_spans++;
    s->next_position += to_all ? 0 : rows;
}

/* Arguments for n rows whose positions end at the last one of the scene's causal rows. */
static inline krn_attend_args scene_args(scene *s, int n_rows)
{
    int heads = s->kv_heads * s->group;
    size_t values = (size_t)n_rows * (size_t)heads * (size_t)s->d;
    float *q = scene_own(s, values * sizeof *q), *out = scene_own(s, values * sizeof *out);
    int64_t *position = scene_own(s, (size_t)n_rows * sizeof *position);
    float *cos_sin = scene_own(s, (size_t)n_rows * SCENE_VARIANTS * (size_t)s->d * sizeof *cos_sin);
    float *sharpness = scene_own(s, SCENE_VARIANTS * sizeof *sharpness);
    for (size_t i = 0; i < values; i++) {
        q[i] = scene_normal(s);
    }
    for (int r = 0; r < n_rows; r++) {
        position[r] = s->next_position - n_rows + r;
        for (int v = 0; v < SCENE_VARIANTS; v++) {
            krn_rope_angles(&s->rope, position[r] - 37 * v, cos_sin + (r * SCENE_VARIANTS + v) * s->d);
        }
    }
    for (int v = 0; v < SCENE_VARIANTS; v++) {
        sharpness[v] = 1.0f + 0.15f * (float)v;
    }
    for (int h = 0; h < s->kv_heads; h++) {
        s->heads[h] = (krn_attend_head){.k_rotation = *kvq_k_rotation(s->codec, 0, h),
                .v_rotation = *kvq_v_rotation(s->codec, 0, h),
                .format = *kvq_page_format(s->codec, 0),
                .spans = s->spans + h * SCENE_SPANS_MAX,
                .n_spans = s->n_spans};
        s->heads[h].k_rotation.mean = s->heads[h].v_rotation.mean = s->mean;
        if (s->matrix != NULL) {
            s->heads[h].k_rotation.kind = s->heads[h].v_rotation.kind = KRN_ROTATION_MATRIX;
            s->heads[h].k_rotation.matrix = s->heads[h].v_rotation.matrix = s->matrix;
        }
    }
    return (krn_attend_args){.n_rows = n_rows,
            .n_q_heads = heads,
            .n_kv_heads = s->kv_heads,
            .d = s->d,
            .q = q,
            .position = position,
            .scale = (float)(1.0 / sqrt(s->d)),
            .rope = &s->rope,
            .n_variants = SCENE_VARIANTS,
            .cos_sin = cos_sin,
            .sharpness = sharpness,
            .heads = s->heads,
            .out = out};
}

/* The arguments of one row of a call, alone. */
static inline krn_attend_args scene_one_row(scene *s, const krn_attend_args *a, int row)
{
    krn_attend_args one = *a;
    size_t values = (size_t)a->n_q_heads * (size_t)a->d;
    one.n_rows = 1;
    one.q = a->q + (size_t)row * values;
    one.position = a->position + row;
    one.cos_sin = a->cos_sin + (size_t)row * (size_t)a->n_variants * (size_t)a->rope->dims;
    one.out = scene_own(s, values * sizeof(float));
    return one;
}

static inline void scene_run(scene *s, krn_pool *pool, const krn_attend_args *a)
{
    size_t bytes = krn_attend_workspace_bytes(a->n_rows, a->n_q_heads, a->d, a->n_variants);
    uint8_t *workspace = scene_own(s, bytes);
    memset(workspace, 0x7f, bytes); /* 0x7f7f7f7f is a huge float: nothing may rely on what is there */
    krn_attend(pool, a, workspace);
}

#endif
