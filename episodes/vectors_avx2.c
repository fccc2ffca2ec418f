/* The dot product of vectors.c, sixteen components at a time. Integers: the same number as the scalar loop. */
#include "episodes/vectors_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

int32_t ep_dot_avx2(const int8_t *a, const int16_t *b, int dim)
{
    __m256i sum = _mm256_setzero_si256();
    int i = 0;
    for (; i + 16 <= dim; i += 16) {
        __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(a + i)));
        __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)(b + i));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
    }
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half) + ep_dot_scalar(a + i, b + i, dim - i);
}
#endif
