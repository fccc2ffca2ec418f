/* Softmax of one chunk in 512-bit registers, for the AVX-512 files of this folder only. */
#ifndef EPIMEM_KERNELS_ATTN_SOFTMAX_AVX512_H
#define EPIMEM_KERNELS_ATTN_SOFTMAX_AVX512_H

#include <immintrin.h>

#include "kernels/attn/attn_internal.h"

enum { VECTORS = ATTN_CHUNK / 16 };

/*
 * 2^x for x <= 0; 0 below ATTN_EXP2_LEAST and for NaN, which is what (-infinity) - (-infinity) of an empty state gives.
 * Masked so that no lane underflows: that takes the processor a hundred cycles.
 */
static inline __m512 exp2_512(__m512 x)
{
    const __m512 least = _mm512_set1_ps(ATTN_EXP2_LEAST);
    __mmask16 some = _mm512_cmp_ps_mask(x, least, _CMP_GT_OQ);
    x = _mm512_max_ps(x, least);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(ATTN_EXP2_6);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ATTN_EXP2_5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ATTN_EXP2_4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ATTN_EXP2_3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ATTN_EXP2_2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(ATTN_EXP2_1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(some, p, n);
}

/* Lanes below n. */
static inline __mmask16 first_lanes(int n)
{
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

/* Sum of the first 4 or 8 vectors; the rest count as zeros, which change no bit of a sum of weights. */
static inline __attribute__((always_inline)) float sum_512(const __m512 v[VECTORS], int vectors)
{
    __m512 a = _mm512_add_ps(_mm512_add_ps(v[0], v[1]), _mm512_add_ps(v[2], v[3]));
    if (vectors > 4) {
        a = _mm512_add_ps(a, _mm512_add_ps(_mm512_add_ps(v[4], v[5]), _mm512_add_ps(v[6], v[7])));
    }
    return _mm512_reduce_add_ps(a);
}

static inline __attribute__((always_inline)) float max_512(const __m512 v[VECTORS], int vectors)
{
    __m512 a = _mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3]));
    if (vectors > 4) {
        a = _mm512_max_ps(a, _mm512_max_ps(_mm512_max_ps(v[4], v[5]), _mm512_max_ps(v[6], v[7])));
    }
    return _mm512_reduce_max_ps(a);
}

/* How a state and a new part come together: state * shrink + part * weight. */
typedef struct blend {
    float shrink, weight;
} blend;

static inline blend blend_tops(float *top, float other)
{
    float both = *top > other ? *top : other;
    __m512 x = _mm512_castps128_ps512(_mm_setr_ps(*top - both, other - both, 0.0f, 0.0f));
    __m512 e = exp2_512(_mm512_insertf32x4(_mm512_setzero_ps(), _mm512_castps512_ps128(x), 0));
    float pair[16];
    _mm512_storeu_ps(pair, e);
    *top = both;
    return (blend){.shrink = pair[0], .weight = pair[1]};
}

/* Scores of the first `visible` rows to p, the others to 0; top and total go into the state. `vectors` is 4 or 8 and
 * holds all visible rows. */
static inline __attribute__((always_inline)) blend soften_512(
        __m512 x[VECTORS], int vectors, int visible, attn_state *s)
{
    const __m512 low = _mm512_set1_ps(-__builtin_inff());
    for (int k = 0; k < vectors; k++) {
        x[k] = _mm512_mask_blend_ps(first_lanes(visible - 16 * k), low, x[k]);
    }
    float top = max_512(x, vectors);
    __m512 t = _mm512_set1_ps(top);
    for (int k = 0; k < vectors; k++) { /* -infinity gives 0 */
        x[k] = exp2_512(_mm512_sub_ps(x[k], t));
    }
    blend b = blend_tops(&s->top, top);
    s->total = s->total * b.shrink + sum_512(x, vectors) * b.weight;
    return b;
}

#endif
