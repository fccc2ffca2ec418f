/*
 * product_avx512: a panel's sixteen rows in the lanes of one register. Unpacked weights of a block stay in eight
 * registers while up to ROWS_MAX activation rows go by; their codes come as four-byte broadcasts that vpdpbusd reads from
 * memory. Each function below is compiled for each form and row count it is called with, the branches on them gone, and
 * the loops over registers are unrolled by request: only then does the compiler keep the arrays in registers.
 */
#include "kernels/matmul/product.h"

#include <immintrin.h>
#include <string.h>

enum {
    ROWS_MAX =
            ROWS_GROUP, /* float sums; with 8 weights, scales and a batch's integer sums 32 registers are full */
    BATCH_MAX = 6       /* rows whose integer sums are open at once */
};

#define INLINE static inline __attribute__((always_inline))

typedef struct scale_lanes {
    __m512 scale, min, low, high;
} scale_lanes;

INLINE __m512 halves_to_floats(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

INLINE __m512 unsigned_bytes_to_floats(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE __m512 signed_bytes_to_floats(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

INLINE void unpack(panel_codes kind, const uint8_t *block, __m512i quad[8])
{
    const __m512i low_bits = _mm512_set1_epi8(15);
    if (kind == CODES_8) {
#pragma GCC unroll 16
        for (int q = 0; q < 8; q++) {
            quad[q] = _mm512_loadu_si512(block + q * PANEL_VECTOR_BYTES);
        }
        return;
    }
#pragma GCC unroll 16
    for (int v = 0; v < 4; v++) {
        __m512i both = _mm512_loadu_si512(block + v * PANEL_VECTOR_BYTES);
        quad[v] = _mm512_and_si512(both, low_bits);
        quad[v + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_bits);
    }
    if (kind == CODES_5) {
#pragma GCC unroll 16
        for (int q = 0; q < 8; q++) {
            __mmask64 fifth;
            memcpy(&fifth, block + 256 + 8 * q, sizeof fifth);
            quad[q] = _mm512_mask_add_epi8(quad[q], fifth, quad[q], _mm512_set1_epi8(16));
        }
    } else if (kind == CODES_6) {
        const __m512i high_bits = _mm512_set1_epi8(48);
#pragma GCC unroll 16
        for (int h = 0; h < 2; h++) {
            __m512i bits = _mm512_loadu_si512(block + 256 + h * PANEL_VECTOR_BYTES);
            __m512i *four = quad + 4 * h;
            four[0] = _mm512_or_si512(four[0], _mm512_and_si512(_mm512_slli_epi16(bits, 4), high_bits));
            four[1] = _mm512_or_si512(four[1], _mm512_and_si512(_mm512_slli_epi16(bits, 2), high_bits));
            four[2] = _mm512_or_si512(four[2], _mm512_and_si512(bits, high_bits));
            four[3] = _mm512_or_si512(four[3], _mm512_and_si512(_mm512_srli_epi16(bits, 2), high_bits));
        }
    }
}

INLINE scale_lanes scales_of(panel_scales kind, const uint8_t *scales, int64_t b)
{
    scale_lanes s = {0};
    const uint8_t *record = scales + b / GROUP_BLOCKS * panel_scale_bytes(kind, GROUP_BLOCKS);
    switch (kind) {
    case SCALES_PLAIN:
        s.scale = halves_to_floats(scales + 32 * b);
        break;
    case SCALES_AFFINE:
        s.scale = halves_to_floats(scales + 64 * b);
        s.min = halves_to_floats(scales + 64 * b + 32);
        break;
    case SCALES_GROUPS: {
        const uint8_t *group = record + 64 + b % GROUP_BLOCKS * 32;
        s.scale = _mm512_mul_ps(halves_to_floats(record), unsigned_bytes_to_floats(group));
        s.min = _mm512_mul_ps(halves_to_floats(record + 32), unsigned_bytes_to_floats(group + 16));
        s.min = _mm512_xor_ps(s.min, _mm512_set1_ps(-0.0f));
        break;
    }
    case SCALES_HALVES: {
        const uint8_t *group = record + 32 + b % GROUP_BLOCKS * 32;
        s.scale = halves_to_floats(record);
        s.low = signed_bytes_to_floats(group);
        s.high = signed_bytes_to_floats(group + 16);
        break;
    }
    }
    return s;
}

/* sum[t] += for `quads` of four weight bytes times four codes from element `first`, per lane. Row by row within a quad:
 * one row's chain of eight dependent additions would fill the scheduler with waiting instructions. */
INLINE void dots(__m512i *sum, const __m512i *quad, const act_block *a, int first, int quads, int n)
{
#pragma GCC unroll 16
    for (int q = 0; q < quads; q++) {
#pragma GCC unroll 16
        for (int t = 0; t < n; t++) {
            int32_t four;
            memcpy(&four, a[t].code + first + 4 * q, sizeof four);
            sum[t] = _mm512_dpbusd_epi32(sum[t], quad[q], _mm512_set1_epi32(four));
        }
    }
}

/* The formulas of product.h for one block of n rows: scales other than HALVES. */
INLINE void add_block(panel_scales kind,
        int zero_shift,
        const scale_lanes *s,
        const __m512i quad[8],
        const act_block *a,
        int n,
        __m512 *y)
{
    __m512i sum[BATCH_MAX];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        sum[t] = _mm512_setzero_si512();
        if (kind == SCALES_PLAIN) {
            sum[t] = _mm512_slli_epi32(_mm512_set1_epi32(a[t].minus_all), (unsigned)zero_shift);
        }
    }
    dots(sum, quad, a, 0, 8, n);
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        __m512 scale = _mm512_mul_ps(s->scale, _mm512_set1_ps(a[t].scale));
        y[t] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum[t]), y[t]);
        if (kind != SCALES_PLAIN) {
            y[t] = _mm512_fmadd_ps(s->min, _mm512_set1_ps(a[t].sum), y[t]);
        }
    }
}

INLINE void add_block_halves(
        int zero_shift, const scale_lanes *s, const __m512i quad[8], const act_block *a, int n, __m512 *y)
{
    __m512i low[BATCH_MAX];
    __m512i high[BATCH_MAX];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        low[t] = _mm512_slli_epi32(_mm512_set1_epi32(a[t].minus_low), (unsigned)zero_shift);
        high[t] = _mm512_slli_epi32(_mm512_set1_epi32(a[t].minus_high), (unsigned)zero_shift);
    }
    dots(low, quad, a, 0, 4, n);
    dots(high, quad + 4, a, 16, 4, n);
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        __m512 scale = _mm512_mul_ps(s->scale, _mm512_set1_ps(a[t].scale));
        __m512 sum = _mm512_mul_ps(s->low, _mm512_cvtepi32_ps(low[t]));
        sum = _mm512_fmadd_ps(s->high, _mm512_cvtepi32_ps(high[t]), sum);
        y[t] = _mm512_fmadd_ps(scale, sum, y[t]);
    }
}

INLINE void integer_rows(const integer_work *w,
        panel_codes codes_kind,
        panel_scales scales_kind,
        int zero_shift,
        int64_t first,
        int n)
{
    const act_block *acts = rows_blocks(w->rows, first);
    int64_t stride = rows_group_size(w->rows, first);
    __m512 y[ROWS_MAX];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        y[t] = _mm512_setzero_ps();
    }
    for (int64_t b = 0; b < w->blocks; b++, acts += stride) {
        __m512i quad[8];
        unpack(codes_kind, w->codes + b * panel_code_bytes(codes_kind), quad);
        scale_lanes s = scales_of(scales_kind, w->scales, b);
        int most = scales_kind == SCALES_HALVES ? BATCH_MAX / 2 : BATCH_MAX; /* two sums a row */
        if (n <= 2) {
            prefetch_next_panel(w, codes_kind, scales_kind, b);
        }
#pragma GCC unroll 16
        for (int t = 0; t < n; t += most) {
            int batch = n - t < most ? n - t : most;
            if (scales_kind == SCALES_HALVES) {
                add_block_halves(zero_shift, &s, quad, acts + t, batch, y + t);
            } else {
                add_block(scales_kind, zero_shift, &s, quad, acts + t, batch, y + t);
            }
        }
    }
    __mmask16 lanes = (__mmask16)((1u << w->out.lanes) - 1);
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        _mm512_mask_storeu_ps(w->out.y + (first + t) * w->out.y_stride, lanes, y[t]);
    }
}

/* Rows in twelves, then the rest by eight, four, two and one. */
INLINE void integer_form(const integer_work *w, panel_codes codes, panel_scales scales, int zero_shift)
{
    int64_t n = w->rows->n;
    int64_t t = 0;
    for (; n - t >= 12; t += 12) {
        integer_rows(w, codes, scales, zero_shift, t, 12);
    }
    if (n - t >= 8) {
        integer_rows(w, codes, scales, zero_shift, t, 8);
        t += 8;
    }
    if (n - t >= 4) {
        integer_rows(w, codes, scales, zero_shift, t, 4);
        t += 4;
    }
    if (n - t >= 2) {
        integer_rows(w, codes, scales, zero_shift, t, 2);
        t += 2;
    }
    if (n - t >= 1) {
        integer_rows(w, codes, scales, zero_shift, t, 1);
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

INLINE __m512 weights_at(krn_type type, const uint8_t *weights, int64_t k)
{
    if (type == KRN_F32) {
        return _mm512_loadu_ps(weights + 64 * k);
    }
    if (type == KRN_F16) {
        return halves_to_floats(weights + 32 * k);
    }
    __m256i bf16 = _mm256_loadu_si256((const __m256i *)(const void *)(weights + 32 * k));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

INLINE void real_rows(const float_work *w, krn_type type, int64_t first, int n)
{
    const float *x = w->x + first * w->x_stride;
    float *out = w->out.y + first * w->out.y_stride;
    __mmask16 lanes = (__mmask16)((1u << w->out.lanes) - 1);
    __m512 y[ROWS_MAX];
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        y[t] = w->add ? _mm512_maskz_loadu_ps(lanes, out + t * w->out.y_stride) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < w->cols; k++) {
        __m512 weights = weights_at(type, w->weights, k);
#pragma GCC unroll 16
        for (int t = 0; t < n; t++) {
            y[t] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[t * w->x_stride + k]), y[t]);
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < n; t++) {
        _mm512_mask_storeu_ps(out + t * w->out.y_stride, lanes, y[t]);
    }
}

INLINE void real_form(const float_work *w, krn_type type)
{
    int64_t t = 0;
    for (; w->n - t >= 12; t += 12) {
        real_rows(w, type, t, 12);
    }
    if (w->n - t >= 8) {
        real_rows(w, type, t, 8);
        t += 8;
    }
    if (w->n - t >= 4) {
        real_rows(w, type, t, 4);
        t += 4;
    }
    if (w->n - t >= 2) {
        real_rows(w, type, t, 2);
        t += 2;
    }
    if (w->n - t >= 1) {
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

const product_ops product_ops_avx512 = {.integer = integer, .real = real};
