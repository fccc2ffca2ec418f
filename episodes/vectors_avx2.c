/* The sums of vectors.c, 64 and 16 components at a time. Integers: the same numbers as the scalar loops. */
#include "episodes/vectors_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* A prefetch never faults, so the end of the pool needs no care. The processor's own prefetching stops at a page's end. */
enum { PREFETCH_BYTES = 4096 };

static __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static int32_t sum_of(__m256i sums)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
    return _mm_cvtsi128_si32(half);
}

/* Levels are below 128, so a pair's sum stays within 16 bits: 2 * 127 * 127 < 2^15. */
void ep_scan_avx2(const uint8_t *levels, int n, const int8_t *q, int dim, int32_t *sums)
{
    const __m256i table =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)ep_level_table.level));
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    for (int k = 0; k < n; k++, levels += dim / 2) {
        __m256i total = _mm256_setzero_si256();
        for (int i = 0; i < dim; i += 64) {
            __m256i both = load(levels + i / 2);
            _mm_prefetch((const char *)levels + i / 2 + PREFETCH_BYTES, _MM_HINT_T0);
            __m256i a = _mm256_shuffle_epi8(table, _mm256_and_si256(both, low));
            __m256i b = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(both, 4), low));
            __m256i pa = _mm256_madd_epi16(_mm256_maddubs_epi16(a, load(q + i)), ones);
            __m256i pb = _mm256_madd_epi16(_mm256_maddubs_epi16(b, load(q + i + 32)), ones);
            total = _mm256_add_epi32(total, _mm256_add_epi32(pa, pb));
        }
        sums[k] = sum_of(total);
    }
}

/* Sixteen 16-bit entries looked up by sixteen nibbles: low and high bytes apart, then woven together. */
static __m256i look_up(const int16_t *table, __m128i nibbles)
{
    const __m128i even = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    const __m128i *t = (const __m128i *)(const void *)table;
    __m128i a = _mm_loadu_si128(t), b = _mm_loadu_si128(t + 1);
    __m128i lows = _mm_unpacklo_epi64(_mm_shuffle_epi8(a, even), _mm_shuffle_epi8(b, even));
    const __m128i odd = _mm_add_epi8(even, _mm_set1_epi8(1));
    __m128i highs = _mm_unpacklo_epi64(_mm_shuffle_epi8(a, odd), _mm_shuffle_epi8(b, odd));
    __m128i x = _mm_shuffle_epi8(lows, nibbles), y = _mm_shuffle_epi8(highs, nibbles);
    return _mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y));
}

/* edge + (width * (2 rest + 1) >> 5), where the shift is taken out of a multiplication's upper half. */
static __m256i fine_values(__m128i levels, __m128i rests)
{
    __m256i rest = _mm256_slli_epi16(_mm256_cvtepu8_epi16(rests), 1);
    rest = _mm256_slli_epi16(_mm256_add_epi16(rest, _mm256_set1_epi16(1)), 11);
    __m256i inside = _mm256_mulhi_epu16(look_up(ep_level_table.width, levels), rest);
    return _mm256_add_epi16(look_up(ep_level_table.edge, levels), inside);
}

int32_t ep_fine_avx2(const uint8_t *levels, const uint8_t *rests, const int16_t *q, int dim)
{
    const __m128i low = _mm_set1_epi8(15);
    __m256i sums = _mm256_setzero_si256();
    for (int i = 0; i < dim; i += 64) {
        for (int k = 0; k < 32; k += 16) {
            __m128i l = _mm_loadu_si128((const __m128i *)(const void *)(levels + i / 2 + k));
            __m128i r = _mm_loadu_si128((const __m128i *)(const void *)(rests + i / 2 + k));
            __m256i a = fine_values(_mm_and_si128(l, low), _mm_and_si128(r, low));
            __m256i b = fine_values(
                    _mm_and_si128(_mm_srli_epi16(l, 4), low), _mm_and_si128(_mm_srli_epi16(r, 4), low));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(a, load(q + i + k)));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(b, load(q + i + k + 32)));
        }
    }
    return sum_of(sums);
}
#endif
