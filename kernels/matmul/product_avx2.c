/*
 * product_avx2: a panel's sixteen rows as two halves of eight lanes, one half after the other. Without a four-byte dot
 * product, weight bytes times codes go through 16-bit pairs (vpmaddubsw), of which as many are added before widening as
 * cannot overflow: 8 x 2 x 15 x 127 for four bits, 4 x 2 x 31 x 127 for five, 2 x 2 x 63 x 127 for six, all below 2^15.
 * Eight-bit weights lose their zero point first: |w| <= 128 times the code with w's sign gives at most 2 x 128 x 127.
 */
#include "kernels/matmul/product.h"

#include <immintrin.h>
#include <string.h>

enum {
    ROWS_MAX = 4,      /* with 8 registers of weights, sixteen are full */
    REAL_ROWS_MAX = 6, /* both halves at once: 12 accumulators, 2 weights, 1 broadcast */
    HALF_BYTES = 32
};

#define INLINE static inline __attribute__((always_inline))

typedef struct scale_lanes {
    __m256 scale, min, low, high;
} scale_lanes;

INLINE __m256i load_half(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m256 halves_to_floats(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256 unsigned_bytes_to_floats(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

INLINE __m256 signed_bytes_to_floats(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* 16 in each byte whose bit is set */
INLINE __m256i fifth_bits(const uint8_t *p)
{
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    __m256i spread = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of), bit_of);
    return _mm256_and_si256(_mm256_cmpeq_epi8(spread, bit_of), _mm256_set1_epi8(16));
}

INLINE void unpack(panel_codes kind, const uint8_t *block, int half, __m256i quad[8])
{
    const __m256i low_bits = _mm256_set1_epi8(15);
    const __m256i high_bits = _mm256_set1_epi8(48);
    if (kind == CODES_8) {
#pragma GCC unroll 16
        for (int q = 0; q < 8; q++) {
            __m256i code = load_half(block + q * PANEL_VECTOR_BYTES + half * HALF_BYTES);
            quad[q] = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
        }
        return;
    }
#pragma GCC unroll 16
    for (int v = 0; v < 4; v++) {
        __m256i both = load_half(block + v * PANEL_VECTOR_BYTES + half * HALF_BYTES);
        quad[v] = _mm256_and_si256(both, low_bits);
        quad[v + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low_bits);
    }
    if (kind == CODES_5) {
#pragma GCC unroll 16
        for (int q = 0; q < 8; q++) {
            quad[q] = _mm256_or_si256(quad[q], fifth_bits(block + 256 + 8 * q + 4 * half));
        }
    } else if (kind == CODES_6) {
#pragma GCC unroll 16
        for (int h = 0; h < 2; h++) {
            __m256i bits = load_half(block + 256 + h * PANEL_VECTOR_BYTES + half * HALF_BYTES);
            __m256i *four = quad + 4 * h;
            four[0] = _mm256_or_si256(four[0], _mm256_and_si256(_mm256_slli_epi16(bits, 4), high_bits));
            four[1] = _mm256_or_si256(four[1], _mm256_and_si256(_mm256_slli_epi16(bits, 2), high_bits));
            four[2] = _mm256_or_si256(four[2], _mm256_and_si256(bits, high_bits));
            four[3] = _mm256_or_si256(four[3], _mm256_and_si256(_mm256_srli_epi16(bits, 2), high_bits));
        }
    }
}

INLINE scale_lanes scales_of(panel_scales kind, const uint8_t *scales, int64_t b, int half)
{
    scale_lanes s = {0};
    const uint8_t *record = scales + b / GROUP_BLOCKS * panel_scale_bytes(kind, GROUP_BLOCKS);
    switch (kind) {
    case SCALES_PLAIN:
        s.scale = halves_to_floats(scales + 32 * b + 16 * half);
        break;
    case SCALES_AFFINE:
        s.scale = halves_to_floats(scales + 64 * b + 16 * half);
        s.min = halves_to_floats(scales + 64 * b + 32 + 16 * half);
        break;
    case SCALES_GROUPS: {
        const uint8_t *group = record + 64 + b % GROUP_BLOCKS * 32 + 8 * half;
        s.scale = _mm256_mul_ps(halves_to_floats(record + 16 * half), unsigned_bytes_to_floats(group));
        s.min = _mm256_mul_ps(
                halves_to_floats(record + 32 + 16 * half), unsigned_bytes_to_floats(group + 16));
        s.min = _mm256_xor_ps(s.min, _mm256_set1_ps(-0.0f));
        break;
    }
    case SCALES_HALVES: {
        const uint8_t *group = record + 32 + b % GROUP_BLOCKS * 32 + 8 * half;
        s.scale = halves_to_floats(record + 16 * half);
        s.low = signed_bytes_to_floats(group);
        s.high = signed_bytes_to_floats(group + 16);
        break;
    }
    }
    return s;
}

/* Sum over `quads` of four weight bytes times four codes, per lane; `pairs` are added in 16 bits between widenings. */
INLINE __m256i dot(panel_codes kind, const __m256i *quad, const int8_t *codes, int quads)
{
    const __m256i ones = _mm256_set1_epi16(1);
    int pairs = kind == CODES_4 ? 8 : kind == CODES_5 ? 4 : kind == CODES_6 ? 2 : 1;
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int q = 0; q < quads; q += pairs) {
        __m256i sum16 = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int k = 0; k < pairs; k++) {
            int32_t four;
            memcpy(&four, codes + 4 * (q + k), sizeof four);
            __m256i x = _mm256_set1_epi32(four);
            __m256i w = quad[q + k];
            if (kind == CODES_8) {
                x = _mm256_sign_epi8(x, w);
                w = _mm256_abs_epi8(w);
            }
            sum16 = _mm256_add_epi16(sum16, _mm256_maddubs_epi16(w, x));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(sum16, ones));
    }
    return sum;
}

/* The formulas of product.h for one block of one row. */
INLINE __m256 add_block(panel_codes codes_kind,
        panel_scales kind,
        int zero_shift,
        const scale_lanes *s,
        const __m256i quad[8],
        const act_block *a,
        __m256 y)
{
    __m256 scale = _mm256_mul_ps(s->scale, _mm256_set1_ps(a->scale));
    if (kind == SCALES_HALVES) {
        __m256i low = _mm256_slli_epi32(_mm256_set1_epi32(a->minus_low), zero_shift);
        __m256i high = _mm256_slli_epi32(_mm256_set1_epi32(a->minus_high), zero_shift);
        low = _mm256_add_epi32(low, dot(codes_kind, quad, a->code, 4));
        high = _mm256_add_epi32(high, dot(codes_kind, quad + 4, a->code + 16, 4));
        __m256 low_sum = _mm256_mul_ps(s->low, _mm256_cvtepi32_ps(low));
        return _mm256_fmadd_ps(scale, _mm256_fmadd_ps(s->high, _mm256_cvtepi32_ps(high), low_sum), y);
    }
    __m256i sum = dot(codes_kind, quad, a->code, 8);
    if (kind == SCALES_PLAIN && codes_kind != CODES_8) {
        sum = _mm256_add_epi32(sum, _mm256_slli_epi32(_mm256_set1_epi32(a->minus_all), zero_shift));
    }
    y = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum), y);
    if (kind == SCALES_AFFINE || kind == SCALES_GROUPS) {
        y = _mm256_fmadd_ps(s->min, _mm256_set1_ps(a->sum), y);
    }
    return y;
}

/* All ones in the lanes of a half that the panel has. */
INLINE __m256i lanes_of(int lanes, int half)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes - 8 * half), index);
}

INLINE void integer_rows(const integer_work *w,
        panel_codes codes_kind,
        panel_scales scales_kind,
        int zero_shift,
        int half,
        int64_t first,
        int n)
{
    const act_block *acts = rows_blocks(w->rows, first);
    int64_t stride = rows_group_size(w->rows, first);
    __m256 y[ROWS_MAX];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        y[t] = _mm256_setzero_ps();
    }
    for (int64_t b = 0; b < w->blocks; b++, acts += stride) {
        __m256i quad[8];
        unpack(codes_kind, w->codes + b * panel_code_bytes(codes_kind), half, quad);
        scale_lanes s = scales_of(scales_kind, w->scales, b, half);
        if (n == 1 && half == 0) {
            prefetch_next_panel(w, codes_kind, scales_kind, b);
        }
#pragma GCC unroll 16
        for (int t = 0; t < n; t++) {
            y[t] = add_block(codes_kind, scales_kind, zero_shift, &s, quad, acts + t, y[t]);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        float *out = w->out.y + (first + t) * w->out.y_stride + 8 * half;
        _mm256_maskstore_ps(out, lanes_of(w->out.lanes, half), y[t]);
    }
}

INLINE void integer_form(const integer_work *w, panel_codes codes, panel_scales scales, int zero_shift)
{
    int64_t n = w->rows->n;
    for (int half = 0; half < 2; half++) {
        int64_t t = 0;
        for (; n - t >= 4; t += 4) {
            integer_rows(w, codes, scales, zero_shift, half, t, 4);
        }
        for (; n - t >= 1; t++) {
            integer_rows(w, codes, scales, zero_shift, half, t, 1);
        }
    }
}

static void integer(const integer_work *w)
{
    switch (w->form->type) {
    case KRN_Q4_0:
        integer_form(w, CODES_4, SCALES_PLAIN, 3);
        break;
    case KRN_Q4_1:
        integer_form(w, CODES_4, SCALES_AFFINE, 0);
        break;
    case KRN_Q5_0:
        integer_form(w, CODES_5, SCALES_PLAIN, 4);
        break;
    case KRN_Q5_1:
        integer_form(w, CODES_5, SCALES_AFFINE, 0);
        break;
    case KRN_Q8_0:
        integer_form(w, CODES_8, SCALES_PLAIN, 7);
        break;
    case KRN_Q4_K:
        integer_form(w, CODES_4, SCALES_GROUPS, 0);
        break;
    case KRN_Q5_K:
        integer_form(w, CODES_5, SCALES_GROUPS, 0);
        break;
    case KRN_Q6_K:
        integer_form(w, CODES_6, SCALES_HALVES, 5);
        break;
    default:
        REQUIRE(false && "a form with integer codes");
    }
}

INLINE __m256 weights_at(krn_type type, const uint8_t *weights, int64_t k, int half)
{
    if (type == KRN_F32) {
        return _mm256_loadu_ps((const float *)(const void *)(weights + 64 * k + 32 * half));
    }
    const uint8_t *p = weights + 32 * k + 16 * half;
    if (type == KRN_F16) {
        return halves_to_floats(p);
    }
    __m128i bf16 = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bf16), 16));
}

INLINE void real_rows(const float_work *w, krn_type type, int64_t first, int n)
{
    const float *x = w->x + first * w->x_stride;
    float *out = w->out.y + first * w->out.y_stride;
    __m256i lanes[2] = {lanes_of(w->out.lanes, 0), lanes_of(w->out.lanes, 1)};
    __m256 y[2 * REAL_ROWS_MAX];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * n; i++) {
        float *at = out + i / 2 * w->out.y_stride + i % 2 * 8;
        y[i] = w->add ? _mm256_maskload_ps(at, lanes[i % 2]) : _mm256_setzero_ps();
    }
    for (int64_t k = 0; k < w->cols; k++) {
        __m256 low = weights_at(type, w->weights, k, 0);
        __m256 high = weights_at(type, w->weights, k, 1);
#pragma GCC unroll 16
        for (int t = 0; t < n; t++) {
            __m256 value = _mm256_set1_ps(x[t * w->x_stride + k]);
            y[2 * t] = _mm256_fmadd_ps(low, value, y[2 * t]);
            y[2 * t + 1] = _mm256_fmadd_ps(high, value, y[2 * t + 1]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2 * n; i++) {
        _mm256_maskstore_ps(out + i / 2 * w->out.y_stride + i % 2 * 8, lanes[i % 2], y[i]);
    }
}

INLINE void real_form(const float_work *w, krn_type type)
{
    int64_t t = 0;
    for (; w->n - t >= 6; t += 6) {
        real_rows(w, type, t, 6);
    }
    if (w->n - t >= 3) {
        real_rows(w, type, t, 3);
        t += 3;
    }
    for (; w->n - t >= 1; t++) {
        real_rows(w, type, t, 1);
    }
}

static void real(const float_work *w)
{
    switch (w->type) {
    case KRN_F16:
        real_form(w, KRN_F16);
        break;
    case KRN_BF16:
        real_form(w, KRN_BF16);
        break;
    default:
        real_form(w, KRN_F32);
        break;
    }
}

const product_ops product_ops_avx2 = {.integer = integer, .real = real};
