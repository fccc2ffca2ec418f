/* exact: the specification of the matrix product. Slow and obvious, but for going through eight rows at a time so
 * that each weight is dequantised once for them. */
#include "kernels/kernels.h"

enum {
    PART_MAX = 256, /* the largest block */
    CHUNK = 8
};

/* y[t] = sum_i w[i] x[t][i] for one output of up to CHUNK rows */
static void output(
        krn_type type, const uint8_t *w, int64_t cols, const float *x, int64_t n, double sum[CHUNK])
{
    int elements = krn_type_block_elements(type);
    int bytes = krn_type_block_bytes(type);
    for (int t = 0; t < CHUNK; t++) {
        sum[t] = 0.0;
    }
    for (int64_t first = 0; first < cols; first += elements, w += bytes) {
        float part[PART_MAX];
        krn_dequantize(type, w, part, elements);
        for (int k = 0; k < elements; k++) {
            for (int64_t t = 0; t < n; t++) {
                sum[t] += (double)part[k] * (double)x[t * cols + first + k];
            }
        }
    }
}

void krn_matmul_exact(
        krn_type type, const void *w, int64_t rows, int64_t cols, const float *x, int64_t n, float *y)
{
    int64_t row_bytes = cols / krn_type_block_elements(type) * krn_type_block_bytes(type);
    REQUIRE(cols % krn_type_block_elements(type) == 0);
    for (int64_t o = 0; o < rows; o++) {
        for (int64_t first = 0; first < n; first += CHUNK) {
            double sum[CHUNK];
            int64_t chunk = n - first < CHUNK ? n - first : CHUNK;
            output(type, (const uint8_t *)w + o * row_bytes, cols, x + first * cols, chunk, sum);
            for (int64_t t = 0; t < chunk; t++) {
                y[(first + t) * rows + o] = (float)sum[t];
            }
        }
    }
}
