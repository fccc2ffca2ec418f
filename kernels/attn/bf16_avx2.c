/*
 * BF16 rows, AVX2: as bf16_avx512.c. Eight rows are widened once for all jobs of a call; a score is eight partial sums
 * (channels equal mod 8) over the channels in order, and the eight rows' sums are added up together.
 */
#include "kernels/attn/softmax_avx2.h"

enum {
    JOBS = 24, /* a tile of eight rows of three heads */
    ROWS = 8,
    STRIP = 16, /* channels whose sums stay in registers, of up to so many jobs: */
    QUERIES = 6
};

#define INLINE static inline __attribute__((always_inline))

/* Sums stay in registers, in the order written: gcc 12 would otherwise do all products first. */
#define IN_ORDER(sum) __asm__("" : "+x"(sum))

void attn_bf16_avx2(const attn_chunk *c, const attn_job *jobs, int n);

INLINE __m256 widen(const uint16_t *x)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

/* ---- keys ---- */

/* Rows [first, first + 8) as floats; those past the last are zero. */
static void widen_rows(const attn_chunk *c, int first, int rows, float *k)
{
    for (int r = 0; r < ROWS; r++) {
        const uint16_t *row = (const uint16_t *)c->k + (size_t)(first + r) * (size_t)c->d;
        for (int i = 0; i < c->d; i += 8) {
            __m256 x = first + r < rows ? widen(row + i) : _mm256_setzero_ps();
            _mm256_store_ps(k + r * c->d + i, x);
        }
    }
}

/* The sum of each of eight vectors. */
INLINE __m256 sum_each(const __m256 s[ROWS])
{
    __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

static void score_rows(const attn_query *query, const float *k, int d, float *scores)
{
    const float *q = query->x;
    __m256 s[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        s[r] = _mm256_setzero_ps();
    }
    for (int i = 0; i < d; i += 8) {
        __m256 x = _mm256_loadu_ps(q + i);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            s[r] = _mm256_fmadd_ps(x, _mm256_load_ps(k + r * d + i), s[r]);
        }
    }
    __m256 factor = _mm256_set1_ps(query->factor), offset = _mm256_set1_ps(query->offset);
    _mm256_storeu_ps(scores, _mm256_fmadd_ps(sum_each(s), factor, offset));
}

static void score_all(
        const attn_chunk *c, const attn_job *jobs, int n, int rows, float scores[JOBS][ATTN_CHUNK])
{
    _Alignas(32) float k[ROWS * ATTN_D_MAX];
    for (int first = 0; first < rows; first += ROWS) {
        widen_rows(c, first, rows, k);
        for (int j = 0; j < n; j++) {
            if (first < jobs[j].visible) {
                score_rows(jobs[j].query, k, c->d, scores[j] + first);
            }
        }
    }
}

/* ---- values ---- */

/* Adds p v of rows [from, to) to a strip of channels of `count` outputs. */
INLINE void add_rows(const uint16_t *v,
        int d,
        int from,
        int to,
        float (*p)[ATTN_CHUNK],
        int count,
        __m256 sum[QUERIES][STRIP / 8])
{
    for (int r = from; r < to; r++) {
        __m256 low = widen(v + (size_t)r * (size_t)d), high = widen(v + (size_t)r * (size_t)d + 8);
#pragma GCC unroll 6
        for (int j = 0; j < count; j++) {
            __m256 weight = _mm256_broadcast_ss(&p[j][r]);
            sum[j][0] = _mm256_fmadd_ps(weight, low, sum[j][0]);
            sum[j][1] = _mm256_fmadd_ps(weight, high, sum[j][1]);
            IN_ORDER(sum[j][0]);
            IN_ORDER(sum[j][1]);
        }
    }
}

INLINE void blend_strip(float *o, const __m256 sum[STRIP / 8], const blend *b)
{
    for (int i = 0; i < STRIP / 8; i++) {
        __m256 part = _mm256_mul_ps(sum[i], _mm256_set1_ps(b->weight));
        __m256 old = _mm256_loadu_ps(o + 8 * i);
        _mm256_storeu_ps(o + 8 * i, _mm256_fmadd_ps(old, _mm256_set1_ps(b->shrink), part));
    }
}

/* Outputs of `count` jobs: rows that all see together, then each job's further rows. */
INLINE void add_values(
        const attn_chunk *c, const attn_job *jobs, int count, float (*p)[ATTN_CHUNK], const blend *blended)
{
    int shared = jobs[0].visible;
    for (int j = 1; j < count; j++) {
        shared = jobs[j].visible < shared ? jobs[j].visible : shared;
    }
    for (int strip = 0; strip < c->d; strip += STRIP) {
        const uint16_t *v = (const uint16_t *)c->v + strip;
        __m256 sum[QUERIES][STRIP / 8];
#pragma GCC unroll 6
        for (int j = 0; j < count; j++) {
            sum[j][0] = sum[j][1] = _mm256_setzero_ps();
        }
        add_rows(v, c->d, 0, shared, p, count, sum);
#pragma GCC unroll 6
        for (int j = 0; j < count; j++) {
            if (shared < jobs[j].visible) {
                add_rows(v, c->d, shared, jobs[j].visible, p + j, 1, sum + j);
            }
            blend_strip(jobs[j].state->o + strip, sum[j], &blended[j]);
        }
    }
}

static void bf16_jobs(const attn_chunk *c, const attn_job *jobs, int n)
{
    float scores[JOBS][ATTN_CHUNK];
    blend blended[JOBS];
    int rows = 0, j = 0;
    for (int i = 0; i < n; i++) {
        rows = jobs[i].visible > rows ? jobs[i].visible : rows;
    }
    score_all(c, jobs, n, rows, scores);
    for (int i = 0; i < n; i++) {
        blended[i] = soften_256(scores[i], jobs[i].visible, jobs[i].state);
    }
    for (; j + QUERIES <= n; j += QUERIES) {
        add_values(c, jobs + j, QUERIES, scores + j, blended + j);
    }
    for (; j + QUERIES / 2 <= n; j += QUERIES / 2) {
        add_values(c, jobs + j, QUERIES / 2, scores + j, blended + j);
    }
    for (; j < n; j++) {
        add_values(c, jobs + j, 1, scores + j, blended + j);
    }
}

void attn_bf16_avx2(const attn_chunk *c, const attn_job *jobs, int n)
{
    for (int j = 0; j < n; j += JOBS) {
        bf16_jobs(c, jobs + j, n - j < JOBS ? n - j : JOBS);
    }
}
