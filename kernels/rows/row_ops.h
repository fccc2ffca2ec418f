/* The row operations of one instruction set. rows_body.h is compiled once per table; rows.c chooses. */
#ifndef EPIMEM_KERNELS_ROWS_ROW_OPS_H
#define EPIMEM_KERNELS_ROWS_ROW_OPS_H

#include "kernels/kernels.h"

enum { ACT_BLOCK = 32 };

/* 32 activations as a product reads them: value = scale * code. The sums are stored negated: a product starts from
 * minus_all << zero_shift, so that the zero point of the weights costs one shift. Codes and what belongs to them lie
 * together, so that one pointer leads a product through a row. */
typedef struct act_block {
    int8_t code[ACT_BLOCK]; /* -127 .. 127 */
    float scale;
    float sum;          /* scale * sum of the codes: what a constant offset of the weights multiplies */
    int32_t minus_low;  /* - sum of codes 0..15 */
    int32_t minus_high; /* - sum of codes 16..31 */
    int32_t minus_all;  /* both */
} act_block;

typedef struct row_ops {
    void (*rmsnorm)(const float *x, const float *w, float eps, float *y, int64_t cols);
    void (*layernorm)(const float *x, const float *w, const float *b, float eps, float *y, int64_t cols);
    void (*add)(float *x, const float *y, int64_t count);
    void (*swiglu)(const float *gate, const float *up, float *y, int64_t count);
    void (*gelu)(float *x, int64_t count);
    int64_t (*argmax)(const float *x, int64_t count);
    double (*sum_of_exp)(const float *x, float shift, int64_t count); /* sum of e^(x - shift) */
    void (*rotate_adjacent)(const float *cos_sin, float *x, int pairs);
    void (*rotate_halves)(const float *cos_sin, float *x, int pairs);
    /* ceil(cols / 32) blocks, the last filled up with zeros, to blocks[0], blocks[stride], ... */
    void (*quantize)(const float *x, int64_t cols, act_block *blocks, int64_t stride);
} row_ops;

extern const row_ops row_ops_scalar;
extern const row_ops row_ops_avx512;

const row_ops *row_ops_current(void);

#endif
