/*
 * BF16 rows, AVX2: as bf16_avx512.c, with eight partial sums a score (channels equal mod 8) and one row at a time.
 */
#include "kernels/attn/softmax_avx2.h"

enum { JOBS = 8, STRIP = 16 /* channels whose sums stay in registers */, QUERIES = 4 };

void attn_bf16_avx2(const attn_chunk *c, const attn_job *jobs, int n);

static inline __m256 widen(const uint16_t *x)
{
    __m256i v = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
}

static void score_all(
        const attn_chunk *c, const attn_job *jobs, int n, int rows, float scores[JOBS][ATTN_CHUNK])
{
    for (int r = 0; r < rows; r++) {
        const uint16_t *row = (const uint16_t *)c->k + (size_t)r * (size_t)c->d;
        float k[ATTN_D_MAX];
        for (int i = 0; i < c->d; i += 8) {
            _mm256_storeu_ps(k + i, widen(row + i));
        }
        for (int j = 0; j < n; j++) {
            const attn_query *query = jobs[j].query;
            const float *q = query->x;
            __m256 even = _mm256_mul_ps(_mm256_loadu_ps(q), _mm256_loadu_ps(k));
            __m256 odd = _mm256_mul_ps(_mm256_loadu_ps(q + 8), _mm256_loadu_ps(k + 8));
            for (int i = 16; i < c->d; i += 16) {
                even = _mm256_fmadd_ps(_mm256_loadu_ps(q + i), _mm256_loadu_ps(k + i), even);
                odd = _mm256_fmadd_ps(_mm256_loadu_ps(q + i + 8), _mm256_loadu_ps(k + i + 8), odd);
            }
            scores[j][r] = sum_256(_mm256_add_ps(even, odd)) * query->factor + query->offset;
        }
    }
}

/* Adds p v of rows [from, to) to a strip of channels of `count` outputs. */
static inline __attribute__((always_inline)) void add_rows(const uint16_t *v,
        int d,
        int from,
        int to,
        float (*p)[ATTN_CHUNK],
        int count,
        __m256 sum[QUERIES][STRIP / 8])
{
    for (int r = from; r < to; r++) {
        __m256 x[STRIP / 8];
        for (int i = 0; i < STRIP / 8; i++) {
            x[i] = widen(v + (size_t)r * (size_t)d + 8 * i);
        }
        for (int j = 0; j < count; j++) {
            __m256 weight = _mm256_set1_ps(p[j][r]);
            for (int i = 0; i < STRIP / 8; i++) {
                sum[j][i] = _mm256_fmadd_ps(weight, x[i], sum[j][i]);
            }
        }
    }
}

/* Outputs of up to four jobs: rows that all see together, then each job's further rows. */
static inline __attribute__((always_inline)) void add_values(
        const attn_chunk *c, const attn_job *jobs, int count, float (*p)[ATTN_CHUNK], const blend *blended)
{
    int shared = jobs[0].visible;
    for (int j = 1; j < count; j++) {
        shared = jobs[j].visible < shared ? jobs[j].visible : shared;
    }
    for (int strip = 0; strip < c->d; strip += STRIP) {
        const uint16_t *v = (const uint16_t *)c->v + strip;
        __m256 sum[QUERIES][STRIP / 8];
        for (int j = 0; j < count; j++) {
            sum[j][0] = sum[j][1] = _mm256_setzero_ps();
        }
        add_rows(v, c->d, 0, shared, p, count, sum);
        for (int j = 0; j < count; j++) {
            add_rows(v, c->d, shared, jobs[j].visible, p + j, 1, sum + j);
            float *o = jobs[j].state->o + strip;
            for (int i = 0; i < STRIP / 8; i++) {
                __m256 part = _mm256_mul_ps(sum[j][i], _mm256_set1_ps(blended[j].weight));
                __m256 old = _mm256_loadu_ps(o + 8 * i);
                _mm256_storeu_ps(o + 8 * i, _mm256_fmadd_ps(old, _mm256_set1_ps(blended[j].shrink), part));
            }
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
    if (n - j == 3) {
        add_values(c, jobs + j, 3, scores + j, blended + j);
    } else if (n - j == 2) {
        add_values(c, jobs + j, 2, scores + j, blended + j);
    } else if (n - j == 1) {
        add_values(c, jobs + j, 1, scores + j, blended + j);
    }
}

void attn_bf16_avx2(const attn_chunk *c, const attn_job *jobs, int n)
{
    for (int j = 0; j < n; j += JOBS) {
        bf16_jobs(c, jobs + j, n - j < JOBS ? n - j : JOBS);
    }
}
