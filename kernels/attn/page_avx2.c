/*
 * Packed pages in place, AVX2: the products of page_avx512.c with vpmaddubsw and vpmaddwd, one 64-byte line at a time, its
 * two halves of 32 bytes added together. Sums of bytes are exact here too, as long as the levels are small: two
 * halves of a product stay below 2^15 for levels up to LEVEL_MAX. Pages with finer levels go the plain way.
 */
#include <string.h>

#include "kernels/attn/softmax_avx2.h"
#include "kernels/fragment.h"

enum {
    JOBS = 8,
    SHIFTS = 4,
    LEVEL_MAX = 32 /* 4 products of at most 255 * 32 are 32,640 */
};

typedef struct terms {
    uint8_t high[SHIFTS][64], low[SHIFTS][64]; /* of q, then of w, in the order of a line's bytes */
} terms;

typedef struct page_work {
    terms term[JOBS];
    int32_t sum[JOBS][ATTN_CHUNK]; /* integer scores, in the order of tokens */
    float weight[JOBS][ATTN_CHUNK];
    float k_scale[ATTN_CHUNK], v_scale[ATTN_CHUNK], k_zero[ATTN_CHUNK], v_zero[ATTN_CHUNK];
    blend blended[JOBS];
    float value_step[JOBS], value_base[JOBS];
} page_work;

typedef struct tables {
    __m256i lower, upper;
} tables;

static inline tables load_tables(const uint8_t nibble[2][16])
{
    return (tables){.lower = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)nibble[0])),
            .upper = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)nibble[1]))};
}

/* Codes of half a line, as levels, for the four shifts. */
static inline __attribute__((always_inline)) void unpack(__m256i w, const tables *t, __m256i c[SHIFTS])
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    __m256i a = _mm256_and_si256(w, nibble), b = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
    c[0] = _mm256_shuffle_epi8(t->lower, a);
    c[1] = _mm256_shuffle_epi8(t->upper, a);
    c[2] = _mm256_shuffle_epi8(t->lower, b);
    c[3] = _mm256_shuffle_epi8(t->upper, b);
}

static inline __attribute__((always_inline)) __m256i dot_term(
        __m256i c[2][SHIFTS], const uint8_t term[SHIFTS][64], bool keys)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < SHIFTS; i++) {
        __m256i a = _mm256_loadu_si256((const __m256i *)term[i]);
        __m256i b = _mm256_loadu_si256((const __m256i *)(term[i] + 32));
        __m256i x = keys ? _mm256_maddubs_epi16(c[0][i], a) : _mm256_maddubs_epi16(a, c[0][i]);
        __m256i y = keys ? _mm256_maddubs_epi16(c[1][i], b) : _mm256_maddubs_epi16(b, c[1][i]);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(x, y), ones));
    }
    return sum;
}

/* One line against one job: dword j of the lanes. */
static inline __attribute__((always_inline)) void dot_line(
        __m256i c[2][SHIFTS], const terms *t, bool keys, int32_t out[4])
{
    __m256i high = dot_term(c, t->high, keys), low = dot_term(c, t->low, keys);
    __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high, keys ? 7 : 8), low);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    _mm_storeu_si128((__m128i *)out, s);
}

/* ---- keys ---- */

/* Both terms of q in the order of a line's bytes: lane t; d 64, after regrouping, any dword, byte 2 j1 + e; else dword
 * j0 + 2 j1, byte 2 e + upper; of channel 64 upper + 16 i + 8 j1 + 2 t + e. */
static void spread_query(const int8_t *high, const int8_t *low, int d, terms *out)
{
    for (int i = 0; i < SHIFTS; i++) {
        for (int b = 0; b < 64; b++) {
            int t = b >> 4, j1 = d == 64 ? (b >> 1) & 1 : (b >> 3) & 1;
            int e = d == 64 ? b & 1 : (b >> 1) & 1, upper = d == 64 ? 0 : b & 1;
            int channel = 64 * upper + 16 * i + 8 * j1 + 2 * t + e;
            out->high[i][b] = (uint8_t)high[channel];
            out->low[i][b] = (uint8_t)low[channel];
        }
    }
}

static void keys_64(const uint8_t *plane, const tables *t, int tokens, page_work *w, int n)
{
    /* a line holds four tokens: make each a dword of every lane, dword 2 upper + j0 */
    const __m256i regroup =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15));
    for (int line = 0; line < 8 * ((tokens + 31) / 32); line++) {
        __m256i c[2][SHIFTS];
        for (int half = 0; half < 2; half++) {
            __m256i x = _mm256_loadu_si256((const __m256i *)(plane + 64 * line + 32 * half));
            unpack(_mm256_shuffle_epi8(x, regroup), t, c[half]);
        }
        for (int j = 0; j < n; j++) {
            int32_t s[4], *sum = w->sum[j] + 32 * (line / 8) + line % 8;
            dot_line(c, &w->term[j], true, s);
            for (int i = 0; i < 4; i++) {
                sum[8 * i] += s[i];
            }
        }
    }
}

static void keys_128(
        const uint8_t *plane, int blocks_per_tile, const tables *t, int tokens, page_work *w, int n)
{
    for (int line = 0; line < 8 * ((tokens + 15) / 16); line++) {
        const uint8_t *at = plane + 512 * blocks_per_tile * (line / 8) + 64 * (line % 8);
        __m256i c[2][SHIFTS];
        unpack(_mm256_loadu_si256((const __m256i *)at), t, c[0]);
        unpack(_mm256_loadu_si256((const __m256i *)(at + 32)), t, c[1]);
        for (int j = 0; j < n; j++) {
            int32_t s[4], *sum = w->sum[j] + 16 * (line / 8) + line % 8;
            dot_line(c, &w->term[j], true, s);
            sum[0] += s[0] + s[2];
            sum[8] += s[1] + s[3];
        }
    }
}

static void integer_scores(const attn_chunk *c, const attn_job *jobs, int n, int tokens, page_work *w)
{
    int halves = c->d == 256 ? 2 : 1;
    memset(w->sum, 0, (size_t)n * sizeof w->sum[0]);
    for (int half = 0; half < halves; half++) {
        for (int j = 0; j < n; j++) {
            const int8_t *high = attn_query_high(jobs[j].query, c->d) + 128 * half;
            spread_query(high, high + c->d, c->d, &w->term[j]);
        }
        for (int plane = 0; plane < c->format->k_planes; plane++) {
            tables t = load_tables(c->levels->k_nibble[plane]);
            const uint8_t *codes = (const uint8_t *)c->k + c->format->k_plane_at[plane] + 512 * half;
            if (c->d == 64) {
                keys_64(codes, &t, tokens, w, n);
            } else {
                keys_128(codes, halves, &t, tokens, w, n);
            }
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

/* Weights to bytes, as lines of the V plane hold their tokens, the same for both channels of a line. */
static void spread_weights(const float *p, float inverse_step, terms *out)
{
    int32_t whole[ATTN_CHUNK];
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(p + t), _mm256_set1_ps(inverse_step));
        _mm256_storeu_si256((__m256i *)(whole + t), _mm256_cvtps_epi32(x));
    }
    for (int token = 0; token < ATTN_CHUNK; token++) {
        int b = KRN_FRAGMENT_V_BYTE(token, 0), i = KRN_FRAGMENT_V_SHIFT(token) / 2;
        out->high[i][b] = out->high[i][b + 4] = (uint8_t)(whole[token] >> 8);
        out->low[i][b] = out->low[i][b + 4] = (uint8_t)whole[token];
    }
}

static float weighted_sum(const float *p, const float *zero)
{
    __m256 sum = _mm256_setzero_ps();
    for (int t = 0; t < ATTN_CHUNK; t += 8) {
        __m256 x = _mm256_loadu_ps(p + t);
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
    spread_weights(x, any ? 65535.0f / largest : 0.0f, &w->term[j]);
    w->value_step[j] = any ? largest / 65535.0f * c->levels->v_unit : 0.0f;
    w->value_base[j] = 0.0f;
    if (c->format->has_zero) {
        w->value_base[j] = -weighted_sum(x, w->v_zero);
    } else if (c->levels->v_base != 0.0f) {
        w->value_base[j] = c->levels->v_base * weighted_sum(x, NULL);
    }
}

static void blend_values(const attn_job *job, int slab, const int32_t *sum, const page_work *w, int j)
{
    const __m256 step = _mm256_set1_ps(w->value_step[j] * w->blended[j].weight);
    const __m256 base = _mm256_set1_ps(w->value_base[j] * w->blended[j].weight);
    for (int i = 0; i < 16; i += 8) {
        float *o = job->state->o + 16 * slab + i;
        __m256 x = _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(sum + i)));
        __m256 part = _mm256_fmadd_ps(x, step, base);
        _mm256_storeu_ps(o, _mm256_fmadd_ps(_mm256_loadu_ps(o), _mm256_set1_ps(w->blended[j].shrink), part));
    }
}

static void add_values(const attn_chunk *c, const attn_job *jobs, int n, const page_work *w)
{
    const uint8_t *plane = (const uint8_t *)c->k + c->format->v_plane_at;
    const tables t = load_tables(c->levels->v_nibble);
    for (int slab = 0; slab < c->d / 16; slab++) {
        int32_t sum[JOBS][16];
        for (int line = 0; line < 8; line++) {
            const uint8_t *at = plane + 512 * slab + 64 * line;
            __m256i codes[2][SHIFTS];
            unpack(_mm256_loadu_si256((const __m256i *)at), &t, codes[0]);
            unpack(_mm256_loadu_si256((const __m256i *)(at + 32)), &t, codes[1]);
            for (int j = 0; j < n; j++) {
                int32_t s[4];
                dot_line(codes, &w->term[j], false, s);
                sum[j][line] = s[0] + s[2];
                sum[j][line + 8] = s[1] + s[3];
            }
        }
        for (int j = 0; j < n; j++) {
            blend_values(&jobs[j], slab, sum[j], w, j);
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

static bool levels_are_small(const attn_levels *l)
{
    int most = 0;
    for (int c = 0; c < 4; c++) {
        most = l->k[0][c] > most ? l->k[0][c] : most;
        most = l->v[c] > most ? l->v[c] : -l->v[c] > most ? -l->v[c] : most;
    }
    return most <= LEVEL_MAX;
}

static void page_avx2(const attn_chunk *c, const attn_job *jobs, int n)
{
    const krn_page_format *f = c->format;
    if (!levels_are_small(c->levels)) {
        attn_ops_scalar.page(c, jobs, n);
        return;
    }
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
    int8_t *high = (int8_t *)(q->x + d), *low = high + d;
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 most = _mm256_setzero_ps();
    for (int i = 0; i < d; i += 8) {
        most = _mm256_max_ps(most, _mm256_and_ps(no_sign, _mm256_loadu_ps(x + i)));
    }
    float largest = max_256(most);
    bool any = largest > 1e-30f; /* below, every logit is 0 to single precision */
    const __m256 inverse = _mm256_set1_ps(any ? (float)ATTN_Q_MAX / largest : 0.0f);
    int32_t sum = 0;
    for (int i = 0; i < d; i += 8) {
        int32_t whole[8];
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
        _mm256_storeu_si256((__m256i *)whole, v);
        for (int c = 0; c < 8; c++) {
            int32_t h = (int32_t)((uint32_t)whole[c] + 64u) >> 7;
            high[i + c] = (int8_t)h;
            low[i + c] = (int8_t)(whole[c] - (int32_t)((uint32_t)h << 7));
            sum = (int32_t)((uint32_t)sum + (uint32_t)whole[c]);
        }
    }
    q->step = any ? largest / (float)ATTN_Q_MAX : 0.0f;
    q->sum = (float)sum;
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
