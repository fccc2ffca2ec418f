/*
 * Sixteen floats at a time in the compiler's vector types: the same source becomes SSE2 or AVX-512 code. Every
 * operation here is one IEEE operation per lane (no fused multiply-add, no reciprocal estimate), so all of them
 * give the same bits.
 */
#ifndef EPIMEM_KERNELS_ROWS_LANES_H
#define EPIMEM_KERNELS_ROWS_LANES_H

#include "kernels/kernels.h"

#include <string.h>

enum { LANES = 16 };

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t lanes_i32 __attribute__((vector_size(64)));

/* Macros where a vector would be an argument by value, whose ABI differs between instruction sets. */
#define LANES_OF(x)   ((lanes){(x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x), (x)})
#define LANES_BITS(v) ((lanes_i32)(v))
/* mask ? a : b, bit by bit */
#define LANES_SELECT(mask, a, b) ((lanes)(((mask) & (lanes_i32)(a)) | (~(mask) & (lanes_i32)(b))))
#define LANES_CLAMP(v, low, high) \
    LANES_SELECT((v) < LANES_OF(low), LANES_OF(low), LANES_SELECT((v) > LANES_OF(high), LANES_OF(high), (v)))

static inline void lanes_load(lanes *v, const float *p)
{
    memcpy(v, p, sizeof *v);
}

/* The first n of sixteen; the others are `fill`. */
static inline void lanes_load_part(lanes *v, const float *p, int64_t n, float fill)
{
    float part[LANES];
    for (int64_t i = 0; i < LANES; i++) {
        part[i] = i < n ? p[i] : fill;
    }
    memcpy(v, part, sizeof *v);
}

static inline void lanes_store(const lanes *v, float *p)
{
    memcpy(p, v, sizeof *v);
}

static inline void lanes_store_part(const lanes *v, float *p, int64_t n)
{
    memcpy(p, v, (size_t)n * sizeof *p);
}

/* Sum of the lanes: halves added to halves, 8 4 2 1, whatever the instruction set. */
static inline float lanes_sum(const lanes *v)
{
    float part[LANES];
    memcpy(part, v, sizeof part);
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            part[i] += part[i + half];
        }
    }
    return part[0];
}

/*
 * e^x by x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor series of e^r to r^7 (its remainder is below 6e-9), in
 * place. Relative error below 3e-7 on [-87, 88] (tested); outside it the end's value; NaN stays NaN.
 */
static inline void lanes_exp(lanes *v)
{
    const float to_integer =
            12582912.0f; /* 1.5 * 2^23: adding it rounds to nearest even and leaves n in the low bits */
    lanes x = LANES_CLAMP(*v, -87.0f, 88.0f);
    lanes shifted = x * LANES_OF(1.44269504f) + LANES_OF(to_integer);
    lanes n = shifted - LANES_OF(to_integer);
    /* ln 2 in two parts, the first with so few bits that its product with n is exact. */
    lanes r = x - n * LANES_OF(0.693359375f) - n * LANES_OF(-2.12194440e-4f);
    lanes sum = LANES_OF(1.0f / 5040);
    sum = sum * r + LANES_OF(1.0f / 720);
    sum = sum * r + LANES_OF(1.0f / 120);
    sum = sum * r + LANES_OF(1.0f / 24);
    sum = sum * r + LANES_OF(1.0f / 6);
    sum = sum * r + LANES_OF(0.5f);
    sum = sum * r + LANES_OF(1.0f);
    sum = sum * r + LANES_OF(1.0f);
    lanes_i32 exponent = (LANES_BITS(shifted) - LANES_BITS(LANES_OF(to_integer)) + 127) << 23;
    *v = sum * (lanes)exponent;
}

#endif
