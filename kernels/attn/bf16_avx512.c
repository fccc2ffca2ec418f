/*
 * BF16 rows, AVX-512: keys and values widened to float32 by a shift, products fused in single precision.
 *
 * A score is sixteen partial sums over channels equal mod 16, added in one fixed tree; an output channel is summed over
 * rows in order. Sixteen rows are scored at a time, so that the trees of sixteen scores share their shuffles.
 */
#include "kernels/attn/softmax_avx512.h"

enum { JOBS = 8, ROWS = 16, STRIP = 64 /* channels whose sums stay in registers */, QUERIES = 4 };

void attn_bf16_avx512(const attn_chunk *c, const attn_job *jobs, int n);

static inline __m512 widen(const uint16_t *x)
{
    __m512i v = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
}

/* Lane i of the result is the sum of the lanes of v[i]: halves are merged pairwise, four times. */
static inline __attribute__((always_inline)) __m512 sum_each(const __m512 v[ROWS])
{
    __m512 a[8], b[4], d[2];
    for (int i = 0; i < 8; i++) { /* lanes 0-7: row i, 8-15: row i + 8 */
        a[i] = _mm512_add_ps(
                _mm512_shuffle_f32x4(v[i], v[i + 8], 0x44), _mm512_shuffle_f32x4(v[i], v[i + 8], 0xee));
    }
    for (int i = 0; i < 4; i++) { /* 128-bit lanes: rows i, i + 4, i + 8, i + 12 */
        __m512 x = _mm512_add_ps(
                _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
        b[i] = _mm512_shuffle_f32x4(x, x, 0xd8);
    }
    for (int i = 0; i < 2; i++) {
        d[i] = _mm512_add_ps(_mm512_unpacklo_ps(b[i], b[i + 2]), _mm512_unpackhi_ps(b[i], b[i + 2]));
    }
    return _mm512_add_ps(_mm512_unpacklo_ps(d[0], d[1]), _mm512_unpackhi_ps(d[0], d[1]));
}

/* Scores of sixteen rows for all jobs. `k` holds them widened, [16][d]. */
static inline __attribute__((always_inline)) void score_rows(
        const float *k, int d, const attn_job *jobs, int n, int group, float scores[JOBS][ATTN_CHUNK])
{
    for (int j = 0; j < n; j++) {
        const attn_query *query = jobs[j].query;
        const float *q = query->x;
        __m512 sum[ROWS];
        for (int r = 0; r < ROWS; r++) {
            sum[r] = _mm512_mul_ps(_mm512_loadu_ps(q), _mm512_loadu_ps(k + r * d));
        }
        for (int i = 16; i < d; i += 16) {
            __m512 x = _mm512_loadu_ps(q + i);
            for (int r = 0; r < ROWS; r++) {
                sum[r] = _mm512_fmadd_ps(x, _mm512_loadu_ps(k + r * d + i), sum[r]);
            }
        }
        __m512 s =
                _mm512_fmadd_ps(sum_each(sum), _mm512_set1_ps(query->factor), _mm512_set1_ps(query->offset));
        _mm512_storeu_ps(scores[j] + ROWS * group, s);
    }
}

static void score_all(
        const attn_chunk *c, const attn_job *jobs, int n, int rows, float scores[JOBS][ATTN_CHUNK])
{
    float k[ROWS * ATTN_D_MAX];
    for (int first = 0; first < rows; first += ROWS) {
        for (int r = 0; r < ROWS;
                r++) { /* rows past the last are the last again: their scores are not used */
            size_t row = (size_t)(first + r < rows ? first + r : rows - 1);
            const uint16_t *x = (const uint16_t *)c->k + row * (size_t)c->d;
            for (int i = 0; i < c->d; i += 16) {
                _mm512_storeu_ps(k + r * c->d + i, widen(x + i));
            }
        }
        if (c->d == 64) {
            score_rows(k, 64, jobs, n, first / ROWS, scores);
        } else {
            score_rows(k, c->d, jobs, n, first / ROWS, scores);
        }
    }
}

/* Adds p v of rows [from, to) to a strip of 64 channels of `count` outputs. */
static inline __attribute__((always_inline)) void add_rows(const uint16_t *v,
        int d,
        int from,
        int to,
        float (*p)[ATTN_CHUNK],
        int count,
        __m512 sum[QUERIES][STRIP / 16])
{
    for (int r = from; r < to; r++) {
        __m512 x[STRIP / 16];
        for (int i = 0; i < STRIP / 16; i++) {
            x[i] = widen(v + (size_t)r * (size_t)d + 16 * i);
        }
        for (int j = 0; j < count; j++) {
            __m512 weight = _mm512_set1_ps(p[j][r]);
            for (int i = 0; i < STRIP / 16; i++) {
                sum[j][i] = _mm512_fmadd_ps(weight, x[i], sum[j][i]);
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
        __m512 sum[QUERIES][STRIP / 16];
        for (int j = 0; j < count; j++) {
            for (int i = 0; i < STRIP / 16; i++) {
                sum[j][i] = _mm512_setzero_ps();
            }
        }
        add_rows(v, c->d, 0, shared, p, count, sum);
        for (int j = 0; j < count; j++) {
            add_rows(v, c->d, shared, jobs[j].visible, p + j, 1, sum + j);
            float *o = jobs[j].state->o + strip;
            for (int i = 0; i < STRIP / 16; i++) {
                __m512 part = _mm512_mul_ps(sum[j][i], _mm512_set1_ps(blended[j].weight));
                __m512 old = _mm512_loadu_ps(o + 16 * i);
                _mm512_storeu_ps(o + 16 * i, _mm512_fmadd_ps(old, _mm512_set1_ps(blended[j].shrink), part));
            }
        }
    }
}

static void bf16_jobs(const attn_chunk *c, const attn_job *jobs, int n)
{
    float scores[JOBS][ATTN_CHUNK];
    blend blended[JOBS];
    int rows = 0;
    for (int j = 0; j < n; j++) {
        rows = jobs[j].visible > rows ? jobs[j].visible : rows;
    }
    score_all(c, jobs, n, rows, scores);
    for (int j = 0; j < n; j++) {
        __m512 x[VECTORS];
        for (int k = 0; k < VECTORS; k++) {
            x[k] = _mm512_maskz_loadu_ps(first_lanes(jobs[j].visible - 16 * k), scores[j] + 16 * k);
        }
        blended[j] = soften_512(x, VECTORS, jobs[j].visible, jobs[j].state);
        for (int k = 0; k < VECTORS; k++) {
            _mm512_storeu_ps(scores[j] + 16 * k, x[k]);
        }
    }
    int j = 0;
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

void attn_bf16_avx512(const attn_chunk *c, const attn_job *jobs, int n)
{
    for (int j = 0; j < n; j += JOBS) {
        bf16_jobs(c, jobs + j, n - j < JOBS ? n - j : JOBS);
    }
}
