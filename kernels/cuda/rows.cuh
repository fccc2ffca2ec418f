/* Activations as products read them: rows.cu fills, product.cu reads. */
#pragma once

#include "kernels/cuda/device.cuh"

#include <cuda_fp16.h>

/* x = 2^-s (high + low) with the row's largest |x| 2^s in [2^13, 2^14): 22 bits of it. */
struct cuda_rows {
    int max_rows;
    int64_t max_cols;
    int n;
    int64_t cols, stride; /* of what is loaded; stride: cols filled up with zeros to whole units */
    __half *high, *low;   /* [n][stride] */
    float *scale;         /* [n] 2^-s */
    float *sums;          /* [stride / 32][sum_stride] of high + low over 32 columns */
    int64_t sum_stride;
};
