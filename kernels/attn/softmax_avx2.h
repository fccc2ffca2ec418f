/* Softmax of one chunk in 256-bit registers, for the AVX2 files of this folder only. */
#ifndef EPIMEM_KERNELS_ATTN_SOFTMAX_AVX2_H
#define EPIMEM_KERNELS_ATTN_SOFTMAX_AVX2_H

#include <immintrin.h>

#include "kernels/attn/attn_internal.h"

/* 2^x for x <= 0; 0 below ATTN_EXP2_LEAST and for NaN, which is what (-infinity) - (-infinity) of an empty state gives. */
static inline __m256 exp2_256(__m256 x)
{
    const __m256 least = _mm256_set1_ps(ATTN_EXP2_LEAST);
    __m256 some = _mm256_cmp_ps(x, least, _CMP_GT_OQ);
    x = _mm256_max_ps(x, least);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_set1_ps(ATTN_EXP2_6);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ATTN_EXP2_5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ATTN_EXP2_4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ATTN_EXP2_3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ATTN_EXP2_2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(ATTN_EXP2_1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_and_ps(some, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power)));
}

static inline float sum_256(__m256 v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1)));
}

static inline float max_256(__m256 v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps(a, a, 1)));
}

/* How a state and a new part come together: state * shrink + part * weight. */
typedef struct blend {
    float shrink, weight;
} blend;

static inline blend blend_tops(float *top, float other)
{
    float both = *top > other ? *top : other, pair[8];
    _mm256_storeu_ps(pair, exp2_256(_mm256_setr_ps(*top - both, other - both, 0, 0, 0, 0, 0, 0)));
    *top = both;
    return (blend){.shrink = pair[0], .weight = pair[1]};
}

/* Scores of the first `visible` rows to p, the others to 0; top and total go into the state. */
static inline blend soften_256(float x[ATTN_CHUNK], int visible, attn_state *s)
{
    const float low = -__builtin_inff();
    for (int t = visible; t < ATTN_CHUNK; t++) {
        x[t] = low;
    }
    __m256 most = _mm256_set1_ps(low), total = _mm256_setzero_ps();
    for (int t = 0; t < visible; t += 8) {
        most = _mm256_max_ps(most, _mm256_loadu_ps(x + t));
    }
    float top = max_256(most);
    for (int t = 0; t < ATTN_CHUNK; t += 8) { /* -infinity gives 0 */
        __m256 p = exp2_256(_mm256_sub_ps(_mm256_loadu_ps(x + t), _mm256_set1_ps(top)));
        total = _mm256_add_ps(total, p);
        _mm256_storeu_ps(x + t, p);
    }
    blend b = blend_tops(&s->top, top);
    s->total = s->total * b.shrink + sum_256(total) * b.weight;
    return b;
}

#endif
