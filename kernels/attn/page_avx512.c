/*
 * Packed pages in place, AVX-512 with VNNI. Products of bytes are exact integers, so how queries are grouped and how
 * lines are summed cannot change a bit; floats enter per query only.
 *
 *   scores   q = step (128 high + low), 15 bits; a code is looked up as its level's integer n (0..255), two codes of a
 *            nibble from two tables by one byte shuffle each; sum over channels of n * high and n * low by vpdpbusd.
 *            Error of a logit: |q - q'| <= step / 2 per channel, so at most factor * step / 2 * sum |k|.
 *   values   w = p * row scale = step' (256 high + low), 16 bits against the largest of the chunk; sum over tokens of
 *            w * n the same way, with signed n. Error: at most step' / 2 per row, times |level|.
 *
 * Bytes, operations, roof (d 64, one KV head, group g, 128 tokens): 4,608 bytes. Per query 512 vpdpbusd, 208 to sum
 * lines, about 220 for the softmax; per page 576 to unpack. At two 512-bit operations a cycle that is 470 + 288 / g
 * cycles per query: with g = 3 a core takes in 4,608 bytes per 1,700 cycles, 8 GB/s at 3 GHz. So the arithmetic bounds it
 * as long as memory gives a core that much.
 *
 * Tried, 59 full pages of 3 KV heads, 9 query heads, d 64, one thread, microseconds a layer (the same 59 pages with 25 rows
 * each in brackets); least of some hundred runs on a server core with two 512-bit ports:
 *
 *   two sums per line, added after shifting the high one              187 (140)
 *   low terms summed onto the shifted high sum                        173
 *   half a softmax for up to 64 rows, underflow masked in 2^x         162 (98)    an underflowing lane costs 100 cycles
 *   lanes dealt without looking at rows (attend.c)                    153 (89)
 *
 * Not tried: vpdpwssd on codes widened to 16 bits (as many products an instruction as two byte terms, twice the
 * unpacking); one byte term of q where the logits are small.
 */
#include <string.h>

#include "kernels/attn/softmax_avx512.h"
#include "kernels/fragment.h"

enum { JOBS = 8, TERMS = 2, SHIFTS = 4, LINES = 4 /* of 64 bytes, unpacked at a time */ };

/* Levels of the lower and of the upper two bits of a nibble. */
typedef struct tables {
    __m512i lower, upper;
} tables;

static inline tables load_tables(const uint8_t nibble[2][16])
{
    return (tables){.lower = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)nibble[0])),
            .upper = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)nibble[1]))};
}

/* What jobs share and what each carries from scores to values. */
typedef struct page_work {
    __m512i term[JOBS][TERMS * SHIFTS]; /* of q, then of w: high of each shift, then low */
    __m512i sum[JOBS][VECTORS];         /* integer scores in the order of lines */
    __m512 k_scale[VECTORS], v_scale[VECTORS], k_zero[VECTORS], v_zero[VECTORS];
    blend blended[JOBS];
    float value_step[JOBS], value_base[JOBS];
} page_work;

static inline __attribute__((always_inline)) void unpack(__m512i w, const tables *t, __m512i c[SHIFTS])
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    __m512i a = _mm512_and_si512(w, nibble), b = _mm512_and_si512(_mm512_srli_epi16(w, 4), nibble);
    c[0] = _mm512_shuffle_epi8(t->lower, a);
    c[1] = _mm512_shuffle_epi8(t->upper, a);
    c[2] = _mm512_shuffle_epi8(t->lower, b);
    c[3] = _mm512_shuffle_epi8(t->upper, b);
}

/* 128-bit lane k of the result is the sum of the lanes of v[k]. */
static inline __attribute__((always_inline)) __m512i sum_lanes(const __m512i v[LINES])
{
    __m512i a =
            _mm512_add_epi32(_mm512_shuffle_i32x4(v[0], v[1], 0x88), _mm512_shuffle_i32x4(v[0], v[1], 0xdd));
    __m512i b =
            _mm512_add_epi32(_mm512_shuffle_i32x4(v[2], v[3], 0x88), _mm512_shuffle_i32x4(v[2], v[3], 0xdd));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Four lines of codes against one job: 2^bits times the high sums plus the low ones. */
static inline __attribute__((always_inline)) __m512i dot_lines(
        __m512i c[LINES][SHIFTS], const __m512i *term, int shifts, bool keys)
{
    __m512i sum[LINES];
    for (int l = 0; l < LINES; l++) {
        sum[l] = _mm512_setzero_si512();
    }
    for (int i = 0; i < shifts; i++) {
        for (int l = 0; l < LINES; l++) {
            sum[l] = keys ? _mm512_dpbusd_epi32(sum[l], c[l][i], term[i])
                          : _mm512_dpbusd_epi32(sum[l], term[i], c[l][i]);
        }
    }
    for (int l = 0; l < LINES; l++) {
        sum[l] = _mm512_slli_epi32(sum[l], keys ? 7 : 8);
    }
    for (int i = 0; i < shifts; i++) {
        __m512i low = term[SHIFTS + i];
        for (int l = 0; l < LINES; l++) {
            sum[l] = keys ? _mm512_dpbusd_epi32(sum[l], c[l][i], low)
                          : _mm512_dpbusd_epi32(sum[l], low, c[l][i]);
        }
    }
    return sum_lanes(sum);
}

/* A block of 512 bytes whose dwords j and j + 2 of a lane belong together (keys of d 128 and more; values): lane k
 * then holds lines k (two results) and k + 4 (two results). See natural_index. */
static inline __attribute__((always_inline)) void dot_block(const uint8_t *block,
        const tables *t,
        int shifts,
        bool keys,
        const page_work *w,
        int n,
        __m512i out[JOBS])
{
    __m512i c[LINES][SHIFTS];
    for (int half = 0; half < 2; half++) {
        for (int l = 0; l < LINES; l++) {
            unpack(_mm512_loadu_si512(block + 256 * half + 64 * l), t, c[l]);
        }
        for (int j = 0; j < n; j++) {
            __m512i s = dot_lines(c, w->term[j], shifts, keys);
            __m512i first = half == 0 ? s : out[j];
            out[j] = half == 0
                    ? s
                    : _mm512_add_epi32(_mm512_unpacklo_epi64(first, s), _mm512_unpackhi_epi64(first, s));
        }
    }
}

/* Where result i of a block of sixteen lies after dot_block: line i mod 8, its first or second result. */
static inline __m512i natural_index(void)
{
    return _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
}

/* ---- keys ---- */

/* Sixteen bytes in every 128-bit lane, plus 2 t in lane t. */
static inline __m512i in_lanes(__m128i bytes)
{
    const __m512i t = _mm512_setr_epi32(0, 0, 0, 0, 0x02020202, 0x02020202, 0x02020202, 0x02020202,
            0x04040404, 0x04040404, 0x04040404, 0x04040404, 0x06060606, 0x06060606, 0x06060606, 0x06060606);
    return _mm512_add_epi8(_mm512_broadcast_i32x4(bytes), t);
}

/* One term of q for the four shifts, as lines hold their channels: channel 16 i + 8 j1 + 2 t + e is in lane t. For d 64,
 * after regrouping, any dword, byte 2 j1 + e; else dword j0 + 2 j1, byte 2 e + upper (0x80 makes a zero). */
static inline void spread_query(const int8_t *q, int d, __m512i term[SHIFTS])
{
    const char no = (char)0x80;
    const __m512i of_64 = in_lanes(_mm_setr_epi8(0, 1, 8, 9, 0, 1, 8, 9, 0, 1, 8, 9, 0, 1, 8, 9));
    const __m512i even = in_lanes(_mm_setr_epi8(0, no, 1, no, 0, no, 1, no, 8, no, 9, no, 8, no, 9, no));
    const __m512i odd = in_lanes(_mm_setr_epi8(no, 0, no, 1, no, 0, no, 1, no, 8, no, 9, no, 8, no, 9));
    for (int i = 0; i < SHIFTS; i++) {
        __m512i lower = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(q + 16 * i)));
        if (d == 64) {
            term[i] = _mm512_shuffle_epi8(lower, of_64);
        } else {
            __m512i upper = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(q + 64 + 16 * i)));
            term[i] = _mm512_or_si512(_mm512_shuffle_epi8(lower, even), _mm512_shuffle_epi8(upper, odd));
        }
    }
}

static void spread_queries(const attn_job *jobs, int n, int d, int half, page_work *w)
{
    for (int j = 0; j < n; j++) {
        const int8_t *high = attn_query_high(jobs[j].query, d) + 128 * half;
        spread_query(high, d, w->term[j]);
        spread_query(high + d, d, w->term[j] + SHIFTS);
    }
}

/* d 64: a line holds four tokens of 64 channels, their bytes interleaved; a byte shuffle makes each a dword of every
 * lane: dword 2 upper + j0, which is token g + 8 j0 + 16 upper of the block. */
static inline __attribute__((always_inline)) void keys_64(
        const uint8_t *plane, const tables *t, int tokens, bool add, page_work *w, int n)
{
    const __m512i regroup =
            _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15));
    __m512i c[LINES][SHIFTS];
    for (int half_block = 0; half_block < 2 * ((tokens + 31) / 32); half_block++) {
        for (int l = 0; l < LINES; l++) {
            __m512i line = _mm512_loadu_si512(plane + 256 * half_block + 64 * l);
            unpack(_mm512_shuffle_epi8(line, regroup), t, c[l]);
        }
        for (int j = 0; j < n; j++) {
            __m512i s = dot_lines(c, w->term[j], SHIFTS, true);
            w->sum[j][half_block] = add ? _mm512_add_epi32(w->sum[j][half_block], s) : s;
        }
    }
}

static inline __attribute__((always_inline)) void keys_128(
        const uint8_t *plane, int blocks_per_tile, const tables *t, int tokens, bool add, page_work *w, int n)
{
    __m512i s[JOBS];
    for (int tile = 0; tile < (tokens + 15) / 16; tile++) {
        dot_block(plane + 512 * blocks_per_tile * tile, t, SHIFTS, true, w, n, s);
        for (int j = 0; j < n; j++) {
            w->sum[j][tile] = add ? _mm512_add_epi32(w->sum[j][tile], s[j]) : s[j];
        }
    }
}

static void integer_scores(const attn_chunk *c, const attn_job *jobs, int n, int tokens, page_work *w)
{
    const uint8_t *page = c->k;
    int halves = c->d == 256 ? 2 : 1;
    bool add = false;
    memset(w->sum, 0, (size_t)n * sizeof w->sum[0]);
    for (int half = 0; half < halves; half++) {
        spread_queries(jobs, n, c->d, half, w);
        for (int plane = 0; plane < c->format->k_planes; plane++) {
            tables t = load_tables(c->levels->k_nibble[plane]);
            const uint8_t *codes = page + c->format->k_plane_at[plane] + 512 * half;
            if (c->d == 64) {
                keys_64(codes, &t, tokens, add, w, n);
            } else {
                keys_128(codes, halves, &t, tokens, add, w, n);
            }
            add = true;
        }
    }
}

/* Sums in the order of tokens. */
static inline __attribute__((always_inline)) void natural_sums(
        int d, int vectors, const __m512i sum[VECTORS], __m512i out[VECTORS])
{
    if (d != 64) {
        const __m512i at = natural_index();
        for (int k = 0; k < vectors; k++) {
            out[k] = _mm512_permutexvar_epi32(at, sum[k]);
        }
        return;
    }
    const __m512i a = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i b = _mm512_add_epi32(a, _mm512_set1_epi32(2));
    for (int k = 0; k < vectors; k += 2) {
        out[k] = _mm512_permutex2var_epi32(sum[k], a, sum[k + 1]);
        out[k + 1] = _mm512_permutex2var_epi32(sum[k], b, sum[k + 1]);
    }
}

static inline __attribute__((always_inline)) void scores(
        const attn_chunk *c, const attn_query *q, int vectors, const page_work *w, int j, __m512 x[VECTORS])
{
    float unit = q->factor * q->step;
    const __m512 slope = _mm512_set1_ps(unit * c->levels->k_unit);
    const __m512 base = _mm512_set1_ps(unit * c->levels->k_base * q->sum);
    const __m512 zero = _mm512_set1_ps(-unit * q->sum), offset = _mm512_set1_ps(q->offset);
    __m512i sum[VECTORS];
    natural_sums(c->d, vectors, w->sum[j], sum);
    for (int k = 0; k < vectors; k++) {
        __m512 dot = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[k]), slope, base);
        if (c->format->has_zero) {
            dot = _mm512_fmadd_ps(w->k_zero[k], zero, dot);
        }
        x[k] = _mm512_fmadd_ps(w->k_scale[k], dot, offset);
    }
}

/* ---- values ---- */

/*
 * Weights to bytes, as lines of the V plane hold their tokens: dword (lane t, j0 + 2 j1) of shift i has bytes
 * 2 e + upper for token 64 upper + 16 i + 8 j1 + 2 t + e, the same for both j0.
 */
static inline __attribute__((always_inline)) void spread_weights(
        const __m512 p[VECTORS], int vectors, float inverse_step, __m512i term[TERMS * SHIFTS])
{
    const __m512i bytes =
            _mm512_broadcast_i32x4(_mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14));
    /* dword (t, j): the high bytes of the pair of tokens 4 j1 + t */
    const __m512i high = _mm512_setr_epi32(0, 0, 8, 8, 2, 2, 10, 10, 4, 4, 12, 12, 6, 6, 14, 14);
    const __m512i low = _mm512_add_epi32(high, _mm512_set1_epi32(1));
    const __m512 inverse = _mm512_set1_ps(inverse_step);
    for (int i = 0; i < SHIFTS; i++) {
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(p[i], inverse));
        if (vectors > SHIFTS) {
            __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(p[i + SHIFTS], inverse));
            a = _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
        }
        __m512i both = _mm512_shuffle_epi8(a, bytes);
        term[i] = _mm512_permutexvar_epi32(high, both);
        term[SHIFTS + i] = _mm512_permutexvar_epi32(low, both);
    }
}

static inline __attribute__((always_inline)) float weighted_zeros(
        const __m512 p[VECTORS], int vectors, const __m512 zero[VECTORS], int visible)
{
    __m512 x[VECTORS];
    for (int k = 0; k < vectors; k++) {
        x[k] = _mm512_maskz_mul_ps(first_lanes(visible - 16 * k), p[k], zero[k]);
    }
    return sum_512(x, vectors);
}

/* Scores to weights of values; the weights go where q was. Four vectors do for up to 64 rows. */
static inline __attribute__((always_inline)) void weigh(
        const attn_chunk *c, const attn_job *job, int vectors, int j, page_work *w)
{
    __m512 x[VECTORS];
    scores(c, job->query, vectors, w, j, x);
    w->blended[j] = soften_512(x, vectors, job->visible, job->state);
    for (int k = 0; k < vectors; k++) {
        x[k] = _mm512_maskz_mul_ps(first_lanes(job->visible - 16 * k), x[k], w->v_scale[k]);
    }
    float largest = max_512(x, vectors);
    bool any = largest > 1e-30f; /* below, the chunk adds nothing that a float could hold beside another */
    spread_weights(x, vectors, any ? 65535.0f / largest : 0.0f, w->term[j]);
    w->value_step[j] = any ? largest / 65535.0f * c->levels->v_unit : 0.0f;
    w->value_base[j] = 0.0f;
    if (c->format->has_zero) {
        w->value_base[j] = -weighted_zeros(x, vectors, w->v_zero, job->visible);
    } else if (c->levels->v_base != 0.0f) {
        w->value_base[j] = c->levels->v_base * sum_512(x, vectors);
    }
}

static void weights(const attn_chunk *c, const attn_job *jobs, int n, page_work *w)
{
    for (int j = 0; j < n; j++) {
        if (jobs[j].visible <= 64) {
            weigh(c, &jobs[j], 4, j, w);
        } else {
            weigh(c, &jobs[j], VECTORS, j, w);
        }
    }
}

static inline __attribute__((always_inline)) void add_values(
        const attn_chunk *c, const tables *t, int shifts, const attn_job *jobs, int n, const page_work *w)
{
    const uint8_t *plane = (const uint8_t *)c->k + c->format->v_plane_at;
    const __m512i at = natural_index();
    __m512i s[JOBS];
    for (int slab = 0; slab < c->d / 16; slab++) {
        dot_block(plane + 512 * slab, t, shifts, false, w, n, s);
        for (int j = 0; j < n; j++) {
            float *o = jobs[j].state->o + 16 * slab;
            const blend b = w->blended[j];
            __m512 sum = _mm512_cvtepi32_ps(_mm512_permutexvar_epi32(at, s[j]));
            __m512 part = _mm512_fmadd_ps(sum, _mm512_set1_ps(w->value_step[j] * b.weight),
                    _mm512_set1_ps(w->value_base[j] * b.weight));
            _mm512_storeu_ps(o, _mm512_fmadd_ps(_mm512_loadu_ps(o), _mm512_set1_ps(b.shrink), part));
        }
    }
}

static void values(const attn_chunk *c, const attn_job *jobs, int n, int tokens, const page_work *w)
{
    tables t = load_tables(c->levels->v_nibble);
    if (tokens <= 16) {
        add_values(c, &t, 1, jobs, n, w);
    } else if (tokens <= 32) {
        add_values(c, &t, 2, jobs, n, w);
    } else if (tokens <= 48) {
        add_values(c, &t, 3, jobs, n, w);
    } else {
        add_values(c, &t, 4, jobs, n, w);
    }
}

/* ---- pages ---- */

static void load_halves(const uint8_t *page, uint32_t at, __m512 x[VECTORS])
{
    for (int k = 0; k < VECTORS; k++) {
        x[k] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(page + at + 32 * k)));
    }
}

static void page_avx512(const attn_chunk *c, const attn_job *jobs, int n)
{
    const krn_page_format *f = c->format;
    page_work w;
    load_halves(c->k, f->k_scale_at, w.k_scale);
    load_halves(c->k, f->v_scale_at, w.v_scale);
    if (f->has_zero) {
        load_halves(c->k, f->k_zero_at, w.k_zero);
        load_halves(c->k, f->v_zero_at, w.v_zero);
    }
    for (int first = 0; first < n; first += JOBS) {
        int count = n - first < JOBS ? n - first : JOBS, tokens = 0;
        for (int j = 0; j < count; j++) {
            tokens = jobs[first + j].visible > tokens ? jobs[first + j].visible : tokens;
        }
        integer_scores(c, jobs + first, count, tokens, &w);
        weights(c, jobs + first, count, &w);
        values(c, jobs + first, count, tokens, &w);
    }
}

static void pack_avx512(attn_query *q, int d)
{
    const float *x = q->x;
    int8_t *high = (int8_t *)(q->x + d), *low = high + d;
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < d; i += 16) {
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    }
    float largest = _mm512_reduce_max_ps(most);
    bool any = largest > 1e-30f; /* below, every logit is 0 to single precision */
    const __m512 inverse = _mm512_set1_ps(any ? (float)ATTN_Q_MAX / largest : 0.0f);
    __m512i sum = _mm512_setzero_si512();
    for (int i = 0; i < d; i += 16) {
        __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), inverse));
        __m512i h = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(64)), 7);
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((__m128i *)(high + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128(
                (__m128i *)(low + i), _mm512_cvtepi32_epi8(_mm512_sub_epi32(v, _mm512_slli_epi32(h, 7))));
    }
    q->step = any ? largest / (float)ATTN_Q_MAX : 0.0f;
    q->sum = (float)_mm512_reduce_add_epi32(sum);
}

static void merge_avx512(attn_state *into, const attn_state *from, int d)
{
    const float *x = from->o;
    float *o = into->o;
    blend b = blend_tops(&into->top, from->top);
    into->total = into->total * b.shrink + from->total * b.weight;
    for (int i = 0; i < d; i += 16) {
        __m512 part = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(b.weight));
        _mm512_storeu_ps(o + i, _mm512_fmadd_ps(_mm512_loadu_ps(o + i), _mm512_set1_ps(b.shrink), part));
    }
}

void attn_bf16_avx512(const attn_chunk *c, const attn_job *jobs, int n);

const attn_ops attn_ops_avx512 = {
        .pack = pack_avx512, .page = page_avx512, .bf16 = attn_bf16_avx512, .merge = merge_avx512};
