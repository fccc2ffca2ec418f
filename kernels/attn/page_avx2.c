/*
 * Packed pages in place, AVX2. Codes become levels in 16 bits, eight lines at a time, and meet queries and weights of 16
 * bits in vpmaddwd, whose pairs are the two codes that a line holds side by side (e of fragment.h). Sums are exact
 * integers, so the order of products is free: below 255 * 32767 * 256 channels < 2^31 for any table of levels.
 * A block of eight lines is expanded once for all jobs of a call.
 */
#include <string.h>

#include "kernels/attn/softmax_avx2.h"
#include "kernels/fragment.h"

enum {
    JOBS = 24, /* a tile of eight rows of three heads; what belongs to them fits the first cache */
    SHIFTS = 4,
    LINES = 8,         /* of a 512-byte block */
    LINE_VECTORS = 16, /* a line's 256 codes in 16 bits: 8 upper + 2 shift + half of the line */
    WORD_MAX = 32767
};

#define INLINE static inline __attribute__((always_inline))

typedef struct words {
    __m256i x[LINE_VECTORS]; /* of q, then of p, in the order of a line's vectors */
} words;

typedef struct page_work {
    __m256i level[LINES * LINE_VECTORS];
    words word[JOBS];
    int32_t sum[JOBS][ATTN_CHUNK]; /* integer scores */
    float weight[JOBS][ATTN_CHUNK];
    float k_scale[ATTN_CHUNK], v_scale[ATTN_CHUNK], k_zero[ATTN_CHUNK], v_zero[ATTN_CHUNK];
    blend blended[JOBS];
    float value_step[JOBS], value_base[JOBS];
} page_work;

/* In which order lines are expanded, so that four sums that come out together are neighbours (see reduce). Keys of d 64
 * have two tokens more in a line: a pair of lines is enough. */
static const uint8_t pairs[LINES] = {0, 4, 1, 5, 2, 6, 3, 7}, fours[LINES] = {0, 1, 4, 5, 2, 3, 6, 7};

/* ---- codes to levels ---- */

/* Bytes of both parities to 16 bits; levels of values have a sign. */
INLINE void widen(__m256i c, bool has_sign, __m256i *even, __m256i *odd)
{
    *even = has_sign ? _mm256_srai_epi16(_mm256_slli_epi16(c, 8), 8)
                     : _mm256_and_si256(c, _mm256_set1_epi16(0xff));
    *odd = has_sign ? _mm256_srai_epi16(c, 8) : _mm256_srli_epi16(c, 8);
}

INLINE __m256i load_table(const uint8_t nibble[16])
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)nibble));
}

INLINE void expand(const uint8_t *block,
        const uint8_t order[LINES],
        const uint8_t nibble[2][16],
        bool has_sign,
        __m256i *level)
{
    const __m256i low = _mm256_set1_epi8(0x0f);
    const __m256i first = load_table(nibble[0]), second = load_table(nibble[1]);
    for (int line = 0; line < LINES; line++) {
        for (int half = 0; half < 2; half++) {
            __m256i *to = level + LINE_VECTORS * line + half;
            __m256i w = _mm256_loadu_si256((const __m256i *)(block + 64 * order[line] + 32 * half));
            __m256i a = _mm256_and_si256(w, low), b = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
            widen(_mm256_shuffle_epi8(first, a), has_sign, to, to + 8);
            widen(_mm256_shuffle_epi8(second, a), has_sign, to + 2, to + 10);
            widen(_mm256_shuffle_epi8(first, b), has_sign, to + 4, to + 12);
            widen(_mm256_shuffle_epi8(second, b), has_sign, to + 6, to + 14);
        }
    }
}

/* ---- products ---- */

/* Sixteen numbers that belong to a shift, channels or tokens 8 j1 + 2 t + e as packs leaves them (lanes by bit 2), to the
 * two vectors of a line's halves: lane t, pairs (j1, j0), the same for both j0. */
INLINE void spread(__m256i x, __m256i to[2])
{
    to[0] = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 0, 2, 2, 1, 1, 3, 3));
    to[1] = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(4, 4, 6, 6, 5, 5, 7, 7));
}

/* Four sums of vectors with dwords (t, j1, j0), added over t and j1: a0 a1 b0 b1 c0 c1 d0 d1, the digit being j0. */
INLINE __m256i reduce(const __m256i s[4])
{
    __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi64(s[0], s[1]), _mm256_unpackhi_epi64(s[0], s[1]));
    __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi64(s[2], s[3]), _mm256_unpackhi_epi64(s[2], s[3]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(ab, cd, 0x20), _mm256_permute2x128_si256(ab, cd, 0x31));
}

/* Four runs of `count` vectors of levels, end to end, against `n` jobs. */
INLINE void dot_four(const __m256i *level, const words *word, int count, int n, __m256i out[])
{
    __m256i sum[2][4];
#pragma GCC unroll 8
    for (int i = 0; i < 4 * n; i++) {
        sum[i / 4][i % 4] = _mm256_setzero_si256();
    }
#pragma GCC unroll 1 /* whole, it would keep everything in memory */
    for (int k = 0; k < count; k++) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m256i x = level[i * count + k];
#pragma GCC unroll 2
            for (int j = 0; j < n; j++) {
                sum[j][i] = _mm256_add_epi32(sum[j][i], _mm256_madd_epi16(x, word[j].x[k]));
                __asm__("" : "+x"(sum[j][i])); /* in order: gcc 12 would sum last, with sums in memory */
            }
        }
    }
#pragma GCC unroll 2
    for (int j = 0; j < n; j++) {
        out[j] = reduce(sum[j]);
    }
}

/* A block against `n` jobs: sums of j0 0 and 1, eight lines each. */
INLINE void dot_block(const __m256i *level, const words *word, int n, __m256i out[][2])
{
    __m256i a[2], b[2];
    dot_four(level, word, LINE_VECTORS, n, a);
    dot_four(level + 4 * LINE_VECTORS, word, LINE_VECTORS, n, b);
#pragma GCC unroll 2
    for (int j = 0; j < n; j++) {
        __m256 x = _mm256_castsi256_ps(a[j]), y = _mm256_castsi256_ps(b[j]);
        out[j][0] = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88));
        out[j][1] = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd));
    }
}

/* ---- keys ---- */

INLINE void add_to(int32_t *sum, __m256i x)
{
    __m256i *to = (__m256i *)(void *)sum;
    _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), x));
}

/* The 32 tokens of a block of d 64 against `n` jobs: 8 tokens of each (upper, j0) are the columns of four results. */
INLINE void keys_64(page_work *w, int job, int block, int n)
{
    __m256i line[4][2];
#pragma GCC unroll 4
    for (int p = 0; p < 4; p++) {
        dot_four(w->level + 2 * LINE_VECTORS * p, w->word + job, LINE_VECTORS / 2, n, line[p]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < n; j++) {
        int32_t *sum = w->sum[job + j] + 32 * block;
        __m256i a = _mm256_unpacklo_epi32(line[0][j], line[1][j]);
        __m256i b = _mm256_unpacklo_epi32(line[2][j], line[3][j]);
        __m256i c = _mm256_unpackhi_epi32(line[0][j], line[1][j]);
        __m256i d = _mm256_unpackhi_epi32(line[2][j], line[3][j]);
        add_to(sum, _mm256_unpacklo_epi64(a, b));
        add_to(sum + 8, _mm256_unpackhi_epi64(a, b));
        add_to(sum + 16, _mm256_unpacklo_epi64(c, d));
        add_to(sum + 24, _mm256_unpackhi_epi64(c, d));
    }
}

/* The 16 tokens of a block of d 128, or of half the channels of d 256. */
INLINE void keys_128(page_work *w, int job, int tile, int n)
{
    __m256i out[2][2];
    dot_block(w->level, w->word + job, n, out);
#pragma GCC unroll 2
    for (int j = 0; j < n; j++) {
        add_to(w->sum[job + j] + 16 * tile, out[j][0]);
        add_to(w->sum[job + j] + 16 * tile + 8, out[j][1]);
    }
}

static void spread_query(const int16_t *q, int channels, words *out)
{
    for (int i = 0; i < channels / 16; i++) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)(q + 16 * i));
        spread(_mm256_permute4x64_epi64(x, 0xd8), out->x + 2 * i);
    }
}

static void keys_plane(const attn_chunk *c, int plane, int half, int n, int tokens, page_work *w)
{
    int halves = c->d == 256 ? 2 : 1, tokens_a_block = c->d == 64 ? 32 : 16;
    const uint8_t *codes = (const uint8_t *)c->k + c->format->k_plane_at[plane] + 512 * half;
    for (int block = 0; block * tokens_a_block < tokens; block++) {
        int job = 0;
        expand(codes + 512 * halves * block, c->d == 64 ? pairs : fours, c->levels->k_nibble[plane], false,
                w->level);
        for (; c->d == 64 && job + 2 <= n; job += 2) {
            keys_64(w, job, block, 2);
        }
        for (; c->d != 64 && job + 2 <= n; job += 2) {
            keys_128(w, job, block, 2);
        }
        if (job < n && c->d == 64) {
            keys_64(w, job, block, 1);
        } else if (job < n) {
            keys_128(w, job, block, 1);
        }
    }
}

static void integer_scores(const attn_chunk *c, const attn_job *jobs, int n, int tokens, page_work *w)
{
    int halves = c->d == 256 ? 2 : 1, channels = c->d / halves;
    memset(w->sum, 0, (size_t)n * sizeof w->sum[0]);
    for (int half = 0; half < halves; half++) {
        for (int j = 0; j < n; j++) {
            spread_query(attn_query_words(jobs[j].query, c->d) + channels * half, channels, &w->word[j]);
        }
        for (int plane = 0; plane < c->format->k_planes; plane++) {
            keys_plane(c, plane, half, n, tokens, w);
        }
    }
}

static void scores(const attn_chunk *c, const attn_query *q, const page_work *w, int j, float *x)
{
    float unit = q->factor * q->step;
    const __m256 slope = _mm256_set1_ps(unit * c->levels->k_unit);
    const __m256 base = _mm256_set1_ps(unit * c->levels->k_base * q->sum);
    const __m256 zero = _mm256_set1_ps(-unit * q->sum), offset = _mm256_set1_ps(q->offset);
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        __m256 sum = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(w->sum[j] + t)));
        __m256 dot = _mm256_fmadd_ps(sum, slope, base);
        if (c->format->has_zero) {
            dot = _mm256_fmadd_ps(_mm256_loadu_ps(w->k_zero + t), zero, dot);
        }
        _mm256_storeu_ps(x + t, _mm256_fmadd_ps(_mm256_loadu_ps(w->k_scale + t), dot, offset));
    }
}

/* ---- values ---- */

static void spread_weights(const float *p, float inverse_step, words *out)
{
    const __m256 inverse = _mm256_set1_ps(inverse_step);
    for (int i = 0; i < ATTN_CHUNK / 16; i++) {
        __m256 low = _mm256_mul_ps(_mm256_loadu_ps(p + 16 * i), inverse);
        __m256 high = _mm256_mul_ps(_mm256_loadu_ps(p + 16 * i + 8), inverse);
        spread(_mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high)), out->x + 2 * i);
    }
}

/* Sum of the weights as they are rounded, or of their products with zeros: what is rounded stays small then. */
static float weighted_sum(const float *p, float inverse_step, const float *zero)
{
    const __m256 inverse = _mm256_set1_ps(inverse_step);
    __m256 sum = _mm256_setzero_ps();
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(p + t), inverse);
        x = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        sum = zero != NULL ? _mm256_fmadd_ps(x, _mm256_loadu_ps(zero + t), sum) : _mm256_add_ps(sum, x);
    }
    return sum_256(sum);
}

/* Scores to weights of values; the weights go where q was. */
static void weigh(const attn_chunk *c, const attn_job *job, int j, page_work *w)
{
    float *x = w->weight[j];
    scores(c, job->query, w, j, x);
    w->blended[j] = soften_256(x, job->visible, job->state);
    __m256 most = _mm256_setzero_ps();
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        __m256 p = _mm256_mul_ps(_mm256_loadu_ps(x + t), _mm256_loadu_ps(w->v_scale + t));
        most = _mm256_max_ps(most, p);
        _mm256_storeu_ps(x + t, p);
    }
    float largest = max_256(most);
    bool any = largest > 1e-30f; /* below, the chunk adds nothing that a float could hold beside another */
    float inverse = any ? (float)WORD_MAX / largest : 0.0f, step = any ? largest / (float)WORD_MAX : 0.0f;
    spread_weights(x, inverse, &w->word[j]);
    w->value_step[j] = step * c->levels->v_unit;
    w->value_base[j] = 0.0f;
    if (c->format->has_zero) {
        w->value_base[j] = -step * weighted_sum(x, inverse, w->v_zero);
    } else if (c->levels->v_base != 0.0f) {
        w->value_base[j] = step * c->levels->v_base * weighted_sum(x, inverse, NULL);
    }
}

INLINE void blend_values(float *o, __m256i sum, const page_work *w, int j)
{
    const __m256 step = _mm256_set1_ps(w->value_step[j] * w->blended[j].weight);
    const __m256 base = _mm256_set1_ps(w->value_base[j] * w->blended[j].weight);
    __m256 part = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), step, base);
    _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_loadu_ps(o), _mm256_set1_ps(w->blended[j].shrink), part));
}

INLINE void values_of(const attn_job *jobs, int job, int block, int n, const page_work *w)
{
    __m256i out[2][2];
    dot_block(w->level, w->word + job, n, out);
#pragma GCC unroll 2
    for (int j = job; j < job + n; j++) {
        float *o = jobs[j].state->o + 16 * block;
        blend_values(o, out[j - job][0], w, j);
        blend_values(o + 8, out[j - job][1], w, j);
    }
}

static void add_values(const attn_chunk *c, const attn_job *jobs, int n, page_work *w)
{
    const uint8_t *plane = (const uint8_t *)c->k + c->format->v_plane_at;
    for (int block = 0; block < c->d / 16; block++) {
        int job = 0;
        expand(plane + 512 * block, fours, c->levels->v_nibble, true, w->level);
        for (; job + 2 <= n; job += 2) {
            values_of(jobs, job, block, 2, w);
        }
        if (job < n) {
            values_of(jobs, job, block, 1, w);
        }
    }
}

/* ---- pages ---- */

/* Scales or zeros of the filled rows; 0 for the others, whatever is there. */
static void load_halves(const uint8_t *page, uint32_t at, int rows, float x[ATTN_CHUNK])
{
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        _mm256_storeu_ps(x + t, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(page + at + 2 * t))));
    }
    for (int t = rows; t < ATTN_CHUNK; t++) {
        x[t] = 0.0f;
    }
}

static void page_avx2(const attn_chunk *c, const attn_job *jobs, int n)
{
    const krn_page_format *f = c->format;
    page_work w;
    load_halves(c->k, f->k_scale_at, c->rows, w.k_scale);
    load_halves(c->k, f->v_scale_at, c->rows, w.v_scale);
    if (f->has_zero) {
        load_halves(c->k, f->k_zero_at, c->rows, w.k_zero);
        load_halves(c->k, f->v_zero_at, c->rows, w.v_zero);
    }
    for (int first = 0; first < n; first += JOBS) {
        int count = n - first < JOBS ? n - first : JOBS, tokens = 0;
        for (int j = 0; j < count; j++) {
            tokens = jobs[first + j].visible > tokens ? jobs[first + j].visible : tokens;
        }
        integer_scores(c, jobs + first, count, tokens, &w);
        for (int j = 0; j < count; j++) {
            weigh(c, &jobs[first + j], j, &w);
        }
        add_values(c, jobs + first, count, &w);
    }
}

static void pack_avx2(attn_query *q, int d)
{
    const float *x = q->x;
    int16_t *to = (int16_t *)(void *)(q->x + d);
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < d; i += 8) {
        most = _mm256_max_ps(most, _mm256_and_ps(no_sign, _mm256_loadu_ps(x + i)));
    }
    float largest = max_256(most);
    bool any = largest > 1e-30f; /* below, every logit is 0 to single precision */
    const __m256 inverse = _mm256_set1_ps(any ? (float)WORD_MAX / largest : 0.0f);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < d; i += 8) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
        __m128i both = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storeu_si128((__m128i *)(void *)(to + i), both);
        sum = _mm256_add_epi32(sum, v);
    }
    q->step = any ? largest / (float)WORD_MAX : 0.0f;
    q->sum = sum_256(_mm256_cvtepi32_ps(sum));
}

static void merge_avx2(attn_state *into, const attn_state *from, int d)
{
    const float *x = from->o;
    float *o = into->o;
    blend b = blend_tops(&into->top, from->top);
    into->total = into->total * b.shrink + from->total * b.weight;
    for (int i = 0; i < d; i += 8) {
        __m256 part = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(b.weight));
        _mm256_storeu_ps(o + i, _mm256_fmadd_ps(_mm256_loadu_ps(o + i), _mm256_set1_ps(b.shrink), part));
    }
}

void attn_bf16_avx2(const attn_chunk *c, const attn_job *jobs, int n);

const attn_ops attn_ops_avx2 = {
        .pack = pack_avx2, .page = page_avx2, .bf16 = attn_bf16_avx2, .merge = merge_avx2};
