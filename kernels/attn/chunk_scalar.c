/*
 * Chunks without vector instructions: decode a row, meet it with every job, in single precision. The plain version,
 * and the only one on processors without AVX2.
 */
#include <math.h>
#include <string.h>

#include "kernels/attn/attn_internal.h"
#include "kernels/fragment.h"

enum { JOBS = 8 };

/* 2^x for x <= 0, or NaN. */
static float exp2_poly(float x)
{
    if (!(x > ATTN_EXP2_LEAST)) {
        return 0.0f;
    }
    float n = floorf(x + 0.5f), f = x - n;
    float p = ATTN_EXP2_6;
    p = p * f + ATTN_EXP2_5;
    p = p * f + ATTN_EXP2_4;
    p = p * f + ATTN_EXP2_3;
    p = p * f + ATTN_EXP2_2;
    p = p * f + ATTN_EXP2_1;
    p = p * f + 1.0f;
    return ldexpf(p, (int)n);
}

static float half_at(const uint8_t *page, uint32_t at, int row)
{
    const uint8_t *p = page + at + 2 * row;
    return base_f16_to_f32((uint16_t)(p[0] | (p[1] << 8)));
}

static void page_k(const attn_chunk *c, int row, float *k)
{
    const krn_page_format *f = c->format;
    const uint8_t *page = c->k;
    float scale = half_at(page, f->k_scale_at, row);
    float zero = f->has_zero ? half_at(page, f->k_zero_at, row) : 0.0f;
    for (int i = 0; i < c->d; i++) {
        uint32_t code = krn_fragment_get_k(page + f->k_plane_at[0], c->d, row, i);
        if (f->k_planes == 2) {
            code = 4 * code + krn_fragment_get_k(page + f->k_plane_at[1], c->d, row, i);
            k[i] = scale * ((float)code - 7.5f);
        } else {
            k[i] = f->has_zero ? scale * ((float)code - zero) : scale * f->k_level[code];
        }
    }
}

static void page_v(const attn_chunk *c, int row, float *v)
{
    const krn_page_format *f = c->format;
    const uint8_t *page = c->k;
    float scale = half_at(page, f->v_scale_at, row);
    float zero = f->has_zero ? half_at(page, f->v_zero_at, row) : 0.0f;
    for (int i = 0; i < c->d; i++) {
        uint32_t code = krn_fragment_get_v(page + f->v_plane_at, row, i);
        v[i] = f->has_zero ? scale * ((float)code - zero) : scale * f->v_level[code];
    }
}

static void bf16_row(const void *rows, int d, int row, float *x)
{
    const uint16_t *p = (const uint16_t *)rows + (size_t)row * (size_t)d;
    for (int i = 0; i < d; i++) {
        x[i] = base_bf16_to_f32(p[i]);
    }
}

static void bf16_k(const attn_chunk *c, int row, float *k)
{
    bf16_row(c->k, c->d, row, k);
}

static void bf16_v(const attn_chunk *c, int row, float *v)
{
    bf16_row(c->v, c->d, row, v);
}

typedef void (*row_reader)(const attn_chunk *c, int row, float *x);

/* Turns scores into p in place; returns how far the state shrinks, and takes top and total into it. */
static float soften(attn_state *s, float *scores, int n, float *weight)
{
    /* NOLINTBEGIN(clang-analyzer-core.*): at least one row is visible, and as many scores are set */
    float top = scores[0], total = 0.0f;
    for (int r = 1; r < n; r++) {
        top = scores[r] > top ? scores[r] : top;
    }
    /* NOLINTEND(clang-analyzer-core.*) */
    for (int r = 0; r < n; r++) {
        scores[r] = exp2_poly(scores[r] - top);
        total += scores[r];
    }
    float both = s->top > top ? s->top : top;
    float shrink = exp2_poly(s->top - both);
    *weight = exp2_poly(top - both);
    s->total = s->total * shrink + total * *weight;
    s->top = both;
    return shrink;
}

static void chunk_jobs(const attn_chunk *c, const attn_job *jobs, int n, row_reader read_k, row_reader read_v)
{
    float scores[JOBS][ATTN_CHUNK], sums[JOBS][ATTN_D_MAX], x[ATTN_D_MAX];
    for (int r = 0; r < c->rows; r++) {
        read_k(c, r, x);
        for (int j = 0; j < n; j++) {
            const float *q = jobs[j].query->x;
            float dot = 0.0f;
            for (int i = 0; i < c->d; i++) {
                dot += q[i] * x[i];
            }
            scores[j][r] = jobs[j].query->factor * dot + jobs[j].query->offset;
        }
    }
    float shrink[JOBS], weight[JOBS];
    for (int j = 0; j < n; j++) {
        shrink[j] = soften(jobs[j].state, scores[j], jobs[j].visible, &weight[j]);
        memset(sums[j], 0, sizeof sums[j]);
    }
    for (int r = 0; r < c->rows; r++) {
        read_v(c, r, x);
        for (int j = 0; j < n; j++) {
            for (int i = 0; i < c->d && r < jobs[j].visible; i++) {
                sums[j][i] += scores[j][r] * x[i];
            }
        }
    }
    for (int j = 0; j < n; j++) {
        float *o = jobs[j].state->o;
        for (int i = 0; i < c->d; i++) {
            o[i] = o[i] * shrink[j] + sums[j][i] * weight[j];
        }
    }
}

static void page_scalar(const attn_chunk *c, const attn_job *jobs, int n)
{
    for (int j = 0; j < n; j += JOBS) {
        chunk_jobs(c, jobs + j, n - j < JOBS ? n - j : JOBS, page_k, page_v);
    }
}

static void bf16_scalar(const attn_chunk *c, const attn_job *jobs, int n)
{
    for (int j = 0; j < n; j += JOBS) {
        chunk_jobs(c, jobs + j, n - j < JOBS ? n - j : JOBS, bf16_k, bf16_v);
    }
}

static void pack_scalar(attn_query *q, int d)
{
    (void)q; /* this version reads the floats */
    (void)d;
}

static void merge_scalar(attn_state *into, const attn_state *from, int d)
{
    const float *x = from->o;
    float *o = into->o;
    float both = into->top > from->top ? into->top : from->top;
    float shrink = exp2_poly(into->top - both), weight = exp2_poly(from->top - both);
    into->total = into->total * shrink + from->total * weight;
    into->top = both;
    for (int i = 0; i < d; i++) {
        o[i] = o[i] * shrink + x[i] * weight;
    }
}

const attn_ops attn_ops_scalar = {
        .pack = pack_scalar, .page = page_scalar, .bf16 = bf16_scalar, .merge = merge_scalar};
