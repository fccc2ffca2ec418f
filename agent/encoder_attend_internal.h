/*
 * The body of the encoder's attention, compiled once per instruction set by the files that include it.
 *
 * Bidirectional softmax attention of one head over one text. Four query rows go together; keys are transposed first, so
 * that a vector holds neighbouring keys (scores) or channels (output), as many as ENCODER_LANES says, and every sum runs
 * in one fixed order: over channels, over keys, and for the softmax's denominator over keys j, j+16, j+32... for each of
 * 16 partial sums, then over those.
 * Products and sums are not contracted (-ffp-contract=off), so each instruction set gives the same bits, and a row's
 * result depends neither on its three companions nor on anything outside its text.
 */
#ifndef EPIMEM_AGENT_ENCODER_ATTEND_INTERNAL_H
#define EPIMEM_AGENT_ENCODER_ATTEND_INTERNAL_H

#include <string.h>

#include "agent/encoder_parts_internal.h"

#ifndef ENCODER_LANES
#define ENCODER_LANES \
    16 /* floats of a register, for whoever includes this; wider ones, gcc 12 keeps in memory */
#endif
enum { LANES = ENCODER_LANES, PARTIAL_SUMS = 16, QUERIES = 4 };
typedef float lanes_f __attribute__((vector_size(LANES * 4)));
typedef uint32_t lanes_u __attribute__((vector_size(LANES * 4)));

#define LANES_LOAD(dst, src)  memcpy(&(dst), (src), sizeof(dst))
#define LANES_STORE(dst, src) memcpy((dst), &(src), sizeof(src))

/* x = e^x for x <= 0, relative error below 2e-7; under -87 it yields about 1e-38 instead of a smaller number. Cody and
 * Waite's reduction to |f| <= ln(2)/2, then the Taylor polynomial of degree 7. */
static inline void exp_lanes(lanes_f *x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const lanes_f lowest = (lanes_f){0} - 87.0f;
    lanes_u tiny = (lanes_u)(*x < lowest);
    lanes_f v = (lanes_f)((tiny & (lanes_u)lowest) | (~tiny & (lanes_u)*x));
    lanes_f shifted = v * 1.44269504f + magic;
    lanes_f n = shifted - magic;
    lanes_f f = (v - n * 0.693359375f) + n * 2.12194440e-4f;
    lanes_f p = f * (1.0f / 5040.0f) + (1.0f / 720.0f);
    p = p * f + (1.0f / 120.0f);
    p = p * f + (1.0f / 24.0f);
    p = p * f + (1.0f / 6.0f);
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    lanes_u exponent = (lanes_u)shifted << 23; /* the magic's own bits leave at the top */
    *x = (lanes_f)((lanes_u)p + exponent);
}

static inline void transpose_keys(const encoder_attend_args *a, int padded)
{
    for (int c = 0; c < a->d; c++) {
        float *row = a->keys + (size_t)c * (size_t)padded;
        for (int j = 0; j < padded; j++) {
            row[j] = j < a->tokens ? a->k[j * a->stride + c] : 0.0f;
        }
    }
}

/* scores[i][j] = sum over c of q[i][c] keys[c][j] */
static inline void score_rows(
        const encoder_attend_args *a, int padded, float q[QUERIES][ENCODER_HEAD_DIM_MAX], float *scores)
{
    for (int j = 0; j < padded; j += 2 * LANES) {
        lanes_f sum[QUERIES][2] = {{{0}}};
        for (int c = 0; c < a->d; c++) {
            const float *row = a->keys + (size_t)c * (size_t)padded + j;
            lanes_f k0, k1;
            LANES_LOAD(k0, row);
            LANES_LOAD(k1, row + LANES);
#pragma GCC unroll 4
            for (int i = 0; i < QUERIES; i++) {
                sum[i][0] += k0 * q[i][c];
                sum[i][1] += k1 * q[i][c];
            }
        }
        for (int i = 0; i < QUERIES; i++) {
            LANES_STORE(scores + i * ENCODER_IDS_MAX + j, sum[i][0]);
            LANES_STORE(scores + i * ENCODER_IDS_MAX + j + LANES, sum[i][1]);
        }
    }
}

/* Eight running maxima, so that they do not wait for each other. */
static inline float largest(const float *scores, int n)
{
    float top[8];
    for (int i = 0; i < 8; i++) {
        top[i] = scores[i < n ? i : 0];
    }
    int j = 8;
    for (; j + 8 <= n; j += 8) {
        for (int i = 0; i < 8; i++) {
            top[i] = scores[j + i] > top[i] ? scores[j + i] : top[i];
        }
    }
    for (; j < n; j++) {
        top[0] = scores[j] > top[0] ? scores[j] : top[0];
    }
    for (int i = 1; i < 8; i++) {
        top[0] = top[i] > top[0] ? top[i] : top[0];
    }
    return top[0];
}

/* scores -> e^(score - max), zero in the padding; returns 1 / sum. */
static inline float softmax_row(float *scores, int tokens, int padded)
{
    float top = largest(scores, tokens), total = 0.0f;
    for (int j = 0; j < padded; j += LANES) {
        lanes_f x;
        LANES_LOAD(x, scores + j);
        x -= top;
        exp_lanes(&x);
        LANES_STORE(scores + j, x);
    }
    for (int j = tokens; j < padded; j++) {
        scores[j] = 0.0f;
    }
    lanes_f sum[PARTIAL_SUMS / LANES] = {{0}};
    for (int j = 0; j < padded; j += PARTIAL_SUMS) {
        for (int i = 0; i < PARTIAL_SUMS / LANES; i++) {
            lanes_f x;
            LANES_LOAD(x, scores + j + i * LANES);
            sum[i] += x;
        }
    }
    for (int l = 0; l < PARTIAL_SUMS; l++) {
        total += sum[l / LANES][l % LANES];
    }
    return 1.0f / total;
}

/* out[i][c] = inverse[i] * sum over j of scores[i][j] v[j][c], for `rows` of the four */
static inline void weigh_values(
        const encoder_attend_args *a, const float *scores, const float inverse[QUERIES], float *out, int rows)
{
    for (int c = 0; c < a->d; c += 2 * LANES) {
        lanes_f sum[QUERIES][2] = {{{0}}};
        for (int j = 0; j < a->tokens; j++) {
            lanes_f v0, v1;
            LANES_LOAD(v0, a->v + j * a->stride + c);
            LANES_LOAD(v1, a->v + j * a->stride + c + LANES);
#pragma GCC unroll 4
            for (int i = 0; i < QUERIES; i++) {
                sum[i][0] += v0 * scores[i * ENCODER_IDS_MAX + j];
                sum[i][1] += v1 * scores[i * ENCODER_IDS_MAX + j];
            }
        }
        for (int i = 0; i < rows; i++) {
            sum[i][0] *= inverse[i];
            sum[i][1] *= inverse[i];
            LANES_STORE(out + i * a->out_stride + c, sum[i][0]);
            LANES_STORE(out + i * a->out_stride + c + LANES, sum[i][1]);
        }
    }
}

static inline void attend_body(const encoder_attend_args *a)
{
    float scores[QUERIES * ENCODER_IDS_MAX];
    float q[QUERIES][ENCODER_HEAD_DIM_MAX];
    float inverse[QUERIES];
    int padded = (a->tokens + ENCODER_KEY_PAD - 1) / ENCODER_KEY_PAD * ENCODER_KEY_PAD;
    transpose_keys(a, padded);
    for (int first = 0; first < a->tokens; first += QUERIES) {
        int rows = a->tokens - first < QUERIES ? a->tokens - first : QUERIES;
        for (int i = 0; i < QUERIES; i++) { /* missing rows repeat the last one */
            const float *row = a->q + (first + (i < rows ? i : rows - 1)) * a->stride;
            for (int c = 0; c < a->d; c++) {
                q[i][c] = row[c] * a->scale;
            }
        }
        score_rows(a, padded, q, scores);
        for (int i = 0; i < QUERIES; i++) {
            inverse[i] = softmax_row(scores + i * ENCODER_IDS_MAX, a->tokens, padded);
        }
        weigh_values(a, scores, inverse, a->out + first * a->out_stride, rows);
    }
}

#endif
