/*
 * Inside attention over tiers: what the driver (attend.c) hands to the versions for each processor.
 *
 * Spans are cut into CHUNKS: a page is one, BF16 rows are cut every 128 from the start of their span. A JOB is one query
 * (row, head) against one chunk: it makes a softmax over the rows the query sees (always the first `visible` ones) and
 * merges it into the query's STATE. All that a job computes depends on its query, its visible rows and its state.
 */
#ifndef EPIMEM_KERNELS_ATTN_INTERNAL_H
#define EPIMEM_KERNELS_ATTN_INTERNAL_H

#include "kernels/kernels.h"

enum {
    ATTN_CHUNK = KRN_PAGE_ROWS,
    ATTN_D_MAX = 256,
    ATTN_Q_MAX = 16256 /* of a query in 15 bits: 128 * 127, so that the high byte stays in -127..127 */
};

/* A table of four levels as integers, for byte products: level[c] = unit * n[c] + base. */
typedef struct attn_levels {
    uint8_t k[2][4]; /* of each plane, 0..255 */
    int8_t v[4];
    uint8_t k_nibble[2][2][16], v_nibble[2][16]; /* n of the lower and of the upper code of a nibble */
    float k_unit, k_base, v_unit, v_base;
} attn_levels;

/* A query in the space of stored keys, x ~ step * n with n in ATTN_Q_MAX (AVX-512, as 128 high + low) or 15 bits. */
typedef struct attn_query {
    float factor; /* score = factor * <x, k> + offset, in powers of two */
    float offset; /* of the mean of keys */
    float step;
    float sum; /* of n */
    float pad[12];
    float x[]; /* [d], then n: int8_t high[d] and low[d] (AVX-512), int16_t [d] (AVX2) or nothing (scalar) */
} attn_query;
_Static_assert(sizeof(attn_query) == 64, "arrays behind it stay aligned");

static inline size_t attn_query_bytes(int d)
{
    return sizeof(attn_query) + 6 * (size_t)d;
}

static inline const int8_t *attn_query_high(const attn_query *q, int d)
{
    return (const int8_t *)(q->x + d);
}

static inline const int16_t *attn_query_words(const attn_query *q, int d)
{
    return (const int16_t *)(const void *)(q->x + d);
}

/* Sum so far: of p = 2^(score - top), and of p times the value. */
typedef struct attn_state {
    float top, total;
    float pad[14];
    float o[]; /* [d] */
} attn_state;
_Static_assert(sizeof(attn_state) == 64, "the array behind it stays aligned");

static inline size_t attn_state_bytes(int d)
{
    return sizeof(attn_state) + 4 * (size_t)d;
}

typedef struct attn_chunk {
    int d;
    int rows;          /* filled rows; a job's `visible` is at most that */
    const void *k, *v; /* BF16: the first row of the chunk; PAGE: k is the page */
    const krn_page_format *format;
    const attn_levels *levels;
} attn_chunk;

typedef struct attn_job {
    const attn_query *query;
    attn_state *state;
    int visible; /* 1..rows */
} attn_job;

typedef struct attn_ops {
    void (*pack)(attn_query *q, int d); /* x to n, step and sum */
    void (*page)(const attn_chunk *c, const attn_job *jobs, int n);
    void (*bf16)(const attn_chunk *c, const attn_job *jobs, int n);
    void (*merge)(attn_state *into, const attn_state *from, int d);
} attn_ops;

extern const attn_ops attn_ops_scalar;
#if defined(__x86_64__)
extern const attn_ops attn_ops_avx2;
extern const attn_ops attn_ops_avx512;
#endif

/* 2^x for x <= 0 is 2^n times a polynomial of x - n in [-1/2, 1/2]: error of the polynomial 1.6e-8 (found by weighted
 * least squares, iterated to equal ripples), 2 units in the last place with rounding. */
#define ATTN_EXP2_LEAST (-100.0f) /* less weighs nothing, and would make subnormal numbers on its way */
#define ATTN_EXP2_1     0x1.62e430p-1f
#define ATTN_EXP2_2     0x1.ebfbdcp-3f
#define ATTN_EXP2_3     0x1.c6aee8p-5f
#define ATTN_EXP2_4     0x1.3b2d4cp-7f
#define ATTN_EXP2_5     0x1.5f3e52p-10f
#define ATTN_EXP2_6     0x1.41fbbcp-13f

#endif
