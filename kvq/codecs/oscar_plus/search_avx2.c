/* The searches, eight channels at a time: two vectors of four doubles are the eight partial sums of search.h. No fused
 * multiply-adds: every product and sum is rounded as in search.c. */
#include <immintrin.h>
#include <string.h>

#include "kvq/codecs/oscar_plus/search.h"
#include "kvq/row_parts.h"

enum { LANES = KVQ_ROW_LANES, TRIES4 = KVQ_SEARCH_TRIES4, TRIES16 = KVQ_SEARCH_TRIES16, AT_ONCE = 4 };

typedef struct octet {
    __m256d low, high; /* lanes 0..3 and 4..7 */
} octet;

static inline octet zero(void)
{
    return (octet){.low = _mm256_setzero_pd(), .high = _mm256_setzero_pd()};
}

static inline octet widen(__m256 x)
{
    return (octet){.low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
            .high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1))};
}

static inline octet add(octet a, octet b)
{
    return (octet){.low = _mm256_add_pd(a.low, b.low), .high = _mm256_add_pd(a.high, b.high)};
}

static inline octet multiply(octet a, octet b)
{
    return (octet){.low = _mm256_mul_pd(a.low, b.low), .high = _mm256_mul_pd(a.high, b.high)};
}

static inline octet load(const double *p)
{
    return (octet){.low = _mm256_loadu_pd(p), .high = _mm256_loadu_pd(p + 4)};
}

static inline void store(double *p, octet x)
{
    _mm256_storeu_pd(p, x.low);
    _mm256_storeu_pd(p + 4, x.high);
}

static inline double sum_lanes(octet x)
{
    __m256d four = _mm256_add_pd(x.low, x.high);
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
}

/* Eight bf16 numbers as the bits of floats. */
static inline __m256i load_bits(const uint16_t *x)
{
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16);
}

static inline __m256 magnitude_of(__m256i bits)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
}

/* ---- four levels ---- */

/* Sums and counts of the magnitudes that reach thresholds first, first + 1 ... */
static inline void sum_outer(
        const double *magnitude, const double *reached, int d, int first, double *outer, int *count)
{
    octet sum[AT_ONCE], hits[AT_ONCE];
    __m256d threshold[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        sum[i] = hits[i] = zero();
        threshold[i] = _mm256_set1_pd((double)(first + i));
    }
    for (int c = 0; c < d; c += LANES) {
        octet m = load(magnitude + c), at = load(reached + c);
        for (int i = 0; i < AT_ONCE; i++) {
            octet in = {.low = _mm256_cmp_pd(at.low, threshold[i], _CMP_GE_OQ),
                    .high = _mm256_cmp_pd(at.high, threshold[i], _CMP_GE_OQ)};
            sum[i].low = _mm256_add_pd(sum[i].low, _mm256_and_pd(in.low, m.low));
            sum[i].high = _mm256_add_pd(sum[i].high, _mm256_and_pd(in.high, m.high));
            hits[i].low = _mm256_castsi256_pd(
                    _mm256_sub_epi64(_mm256_castpd_si256(hits[i].low), _mm256_castpd_si256(in.low)));
            hits[i].low = _mm256_castsi256_pd(
                    _mm256_sub_epi64(_mm256_castpd_si256(hits[i].low), _mm256_castpd_si256(in.high)));
        }
    }
    for (int i = 0; i < AT_ONCE; i++) {
        int64_t lane[4];
        _mm256_storeu_si256((__m256i *)lane, _mm256_castpd_si256(hits[i].low));
        outer[i] = sum_lanes(sum[i]);
        count[i] = (int)(lane[0] + lane[1] + lane[2] + lane[3]);
    }
}

/* Eight bits to eight bytes of 0 or 1. */
static inline uint64_t spread_bits(unsigned bits)
{
    uint64_t own = bits * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    return (own + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
}

static void write_codes4(const uint16_t *x, int d, const double *reached, int from, uint8_t *codes)
{
    const __m256d threshold = _mm256_set1_pd((double)from);
    for (int c = 0; c < d; c += LANES) {
        octet at = load(reached + c);
        int low = _mm256_movemask_pd(_mm256_cmp_pd(at.low, threshold, _CMP_GE_OQ));
        int high = _mm256_movemask_pd(_mm256_cmp_pd(at.high, threshold, _CMP_GE_OQ));
        int negative = _mm256_movemask_ps(_mm256_castsi256_ps(load_bits(x + c)));
        uint64_t outer = spread_bits((unsigned)(low | high << 4));
        uint64_t eight = (UINT64_C(0x0202020202020202) | outer) ^ (3 * spread_bits((unsigned)negative));
        memcpy(codes + c, &eight, sizeof eight);
    }
}

static kvq_sums four(const uint16_t *x, int d, uint8_t *codes)
{
    double magnitude[KVQ_SEARCH_D_MAX], reached[KVQ_SEARCH_D_MAX], outer[TRIES4];
    int count[TRIES4];
    octet all = zero(), squares = zero();
    for (int c = 0; c < d; c += LANES) {
        octet m = widen(magnitude_of(load_bits(x + c)));
        store(magnitude + c, m);
        all = add(all, m);
        squares = add(squares, multiply(m, m));
    }
    kvq_sums sums = {.x_x = sum_lanes(squares)};
    const __m256d per_unit = _mm256_set1_pd(kvq_search4_per_unit(sums.x_x, d));
    for (int c = 0; c < d; c += LANES) {
        octet at = multiply(load(magnitude + c), (octet){.low = per_unit, .high = per_unit});
        const __m256d minus = _mm256_set1_pd(-17.0);
        store(reached + c, add(at, (octet){.low = minus, .high = minus}));
    }
    for (int n = 0; n < TRIES4; n += AT_ONCE) {
        sum_outer(magnitude, reached, d, n + 1, outer + n, count + n);
    }
    int from = kvq_search4_choose(d, sum_lanes(all), outer, count, &sums);
    write_codes4(x, d, reached, from, codes);
    return sums;
}

/* ---- sixteen levels ---- */

static inline __m256i magnitude_code(__m256 magnitude, __m256 per_step)
{
    return _mm256_cvttps_epi32(_mm256_min_ps(_mm256_mul_ps(magnitude, per_step), _mm256_set1_ps(7.0f)));
}

static void sums16(const uint16_t *x, int d, float per_step, double *x_c, int *c_c)
{
    const __m256 factor = _mm256_set1_ps(per_step);
    octet sum = zero();
    __m256i squares = _mm256_setzero_si256();
    for (int c = 0; c < d; c += LANES) {
        __m256 m = magnitude_of(load_bits(x + c));
        __m256i code = magnitude_code(m, factor);
        __m256i odd = _mm256_add_epi32(_mm256_add_epi32(code, code), _mm256_set1_epi32(1));
        octet wide = {.low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(odd)),
                .high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(odd, 1))};
        sum = add(sum, multiply(wide, widen(m)));
        squares = _mm256_add_epi32(squares, _mm256_madd_epi16(odd, odd));
    }
    int32_t lane[LANES];
    _mm256_storeu_si256((__m256i *)lane, squares);
    *x_c = sum_lanes(sum);
    *c_c = lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
}

static void write_codes16(const uint16_t *x, int d, float per_step, uint8_t *codes)
{
    const __m256 factor = _mm256_set1_ps(per_step);
    for (int c = 0; c < d; c += LANES) {
        __m256i bits = load_bits(x + c);
        __m256i code = _mm256_add_epi32(magnitude_code(magnitude_of(bits), factor), _mm256_set1_epi32(8));
        code = _mm256_xor_si256(code, _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(15)));
        __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((__m128i *)(codes + c), _mm_packus_epi16(words, words));
    }
}

static kvq_sums sixteen(const uint16_t *x, int d, uint8_t *codes)
{
    octet squares = zero();
    for (int c = 0; c < d; c += LANES) {
        octet m = widen(magnitude_of(load_bits(x + c)));
        squares = add(squares, multiply(m, m));
    }
    kvq_sums best = {.x_x = sum_lanes(squares), .c_c = 1};
    double best_score = -1.0;
    float best_per_step = 0.0f;
    for (int i = 0; i < TRIES16 && best.x_x > 0.0; i++) {
        float per_step = kvq_search16_per_step(best.x_x, d, i);
        double x_c;
        int c_c;
        sums16(x, d, per_step, &x_c, &c_c);
        if (x_c * x_c / c_c > best_score) {
            best_score = x_c * x_c / c_c;
            best_per_step = per_step;
            best.x_c = x_c;
            best.c_c = c_c;
        }
    }
    write_codes16(x, d, best_per_step, codes);
    return best;
}

const kvq_search kvq_search_avx2 = {.four = four, .sixteen = sixteen};
