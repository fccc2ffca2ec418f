/* rows: the public row operations, each a call through the table of the instruction set in use. */
#include "kernels/rows/row_ops.h"

#include <math.h>

const row_ops *row_ops_current(void)
{
    /* AVX2 takes the baseline's SSE2 code: gcc 12 makes a poor job of 64-byte vectors with 32-byte registers (twice the
     * time, measured), and the bits are the same. */
    static const row_ops *const tables[KRN_ISA_COUNT] = {&row_ops_scalar, &row_ops_scalar, &row_ops_avx512};
    return tables[krn_isa_current()];
}

void krn_rmsnorm(const float *x, const float *w, float eps, float *y, int64_t n, int64_t cols)
{
    const row_ops *ops = row_ops_current();
    for (int64_t t = 0; t < n; t++) {
        ops->rmsnorm(x + t * cols, w, eps, y + t * cols, cols);
    }
}

void krn_layernorm(
        const float *x, const float *w, const float *b, float eps, float *y, int64_t n, int64_t cols)
{
    const row_ops *ops = row_ops_current();
    for (int64_t t = 0; t < n; t++) {
        ops->layernorm(x + t * cols, w, b, eps, y + t * cols, cols);
    }
}

void krn_add(float *x, const float *y, int64_t count)
{
    row_ops_current()->add(x, y, count);
}

void krn_add_bias(float *x, const float *bias, int64_t n, int64_t cols)
{
    const row_ops *ops = row_ops_current();
    for (int64_t t = 0; t < n; t++) {
        ops->add(x + t * cols, bias, cols);
    }
}

void krn_swiglu(const float *gate, const float *up, float *y, int64_t count)
{
    row_ops_current()->swiglu(gate, up, y, count);
}

void krn_gelu(float *x, int64_t count)
{
    row_ops_current()->gelu(x, count);
}

int64_t krn_argmax(const float *x, int64_t count)
{
    return row_ops_current()->argmax(x, count);
}

/* y = x - max - log(sum e^(x - max)), the sum and what is subtracted in double */
void krn_log_softmax(const float *x, float *y, int64_t count)
{
    const row_ops *ops = row_ops_current();
    if (count <= 0) {
        return;
    }
    float top = x[ops->argmax(x, count)];
    double subtracted = (double)top + log(ops->sum_of_exp(x, top, count));
    for (int64_t i = 0; i < count; i++) {
        y[i] = (float)((double)x[i] - subtracted);
    }
}
