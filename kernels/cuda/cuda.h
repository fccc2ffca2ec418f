/*
 * The CUDA side of kernels, as plain C: a device with its memory budget, copies, and the twins of the operations that
 * kernels.h declares. Attention is in attend.h.
 *
 * One cuda_device is one stream: everything called on it happens in the order of the calls, on the device's own time;
 * cuda_device_wait waits for it. Memory is counted against a budget that is set at open; device.cu is the only file that
 * allocates it. One thread at a time. No CUDA type appears, so that callers are C.
 *
 * As on the CPU, THE RESULT OF A ROW IS A FUNCTION OF THAT ROW ALONE, bit for bit: products add up in an order that the
 * length fixes, whichever kernel the number of rows picks. The bits differ from the CPU's in the last places: products
 * here take float activations (as pairs of halves, 22 bits), the CPU's take 8-bit ones for most types.
 */
#ifndef EPIMEM_KERNELS_CUDA_CUDA_H
#define EPIMEM_KERNELS_CUDA_CUDA_H

#include "kernels/cuda/attend.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device ---- */

typedef struct cuda_device cuda_device;
typedef struct cuda_device_info {
    char name[96];
    int major, minor, multiprocessors;
    uint64_t memory_bytes, budget_bytes;
} cuda_device_info;

/* The first device. budget_bytes 0: nine tenths of what is free. ST_ERR_NOT_FOUND, with the reason, when there is no
 * driver or no device; ST_ERR_LIMIT when less than the budget is free. */
status cuda_device_open(uint64_t budget_bytes, cuda_device **out, err *e);
void cuda_device_close(cuda_device *d); /* after everything that was made with it */
const cuda_device_info *cuda_device_get_info(const cuda_device *d);
uint64_t cuda_device_left(const cuda_device *d); /* bytes of the budget that are not taken */
void *cuda_device_stream(cuda_device *d);        /* for cuda_attend_* */
status cuda_device_wait(cuda_device *d, err *e); /* also tells of faults of earlier launches */

/* Device memory, aligned to 256 bytes, not cleared. ST_ERR_MEMORY names `what` and the numbers. Release takes NULL. */
status cuda_take(cuda_device *d, uint64_t bytes, const char *what, void **out, err *e);
void cuda_release(cuda_device *d, void *memory);
/* Host memory that the device reads and writes directly; not counted against the budget. */
status cuda_take_pinned(cuda_device *d, uint64_t bytes, void **out, err *e);
void cuda_release_pinned(cuda_device *d, void *memory);

/* Any host memory to the device, through a pinned ring: the source is free when the call returns. `rows` pieces of
 * row_bytes, `*_stride` bytes apart. */
status cuda_copy_in(cuda_device *d, void *to, const void *from, uint64_t bytes, err *e);
status cuda_copy_in_rows(cuda_device *d,
        void *to,
        uint64_t to_stride,
        const void *from,
        uint64_t from_stride,
        uint64_t row_bytes,
        uint64_t rows,
        err *e);
/* Pinned host memory, which must stay until the copy has happened (cuda_device_wait). */
status cuda_copy_in_pinned(cuda_device *d, void *to, const void *pinned, uint64_t bytes, err *e);
status cuda_copy_out_pinned(cuda_device *d, void *pinned, const void *from, uint64_t bytes, err *e);

/* What is called between begin and end is recorded instead of done (launches alone: no allocation, no wait, no pageable
 * copy), to be repeated with the same addresses and counts at a fraction of the launches' cost. */
typedef struct cuda_graph cuda_graph;
status cuda_graph_begin(cuda_device *d, err *e);
/* Also ends a recording that failed in between: then *out is NULL when the call succeeds. */
status cuda_graph_end(cuda_device *d, cuda_graph **out, err *e);
status cuda_graph_run(cuda_device *d, const cuda_graph *g, err *e);
void cuda_graph_close(cuda_graph *g);

/* ---- products: y[t][o] = sum_i w[o][i] x[t][i] ---- */

/* Q4_0, Q4_1, Q8_0, Q4_K, Q5_K and Q6_K keep their codes and scales, reordered (five and six bits take eight); F16 and BF16
 * are halves (BF16 times a power of two for the matrix, exact but for weights 2^-30 of the largest); the rest is
 * dequantised to halves. */
typedef struct cuda_matrix cuda_matrix;
uint64_t cuda_matrix_bytes(krn_type type, int64_t rows, int64_t cols); /* on the device */
status cuda_matrix_open(cuda_device *d,
        krn_pool *pool,
        krn_type type,
        int64_t rows,
        int64_t cols,
        const void *data,
        cuda_matrix **out,
        err *e);
void cuda_matrix_close(cuda_device *d, cuda_matrix *m);

/* Activations in the form that products read: pairs of halves with a power of two for each row. */
typedef struct cuda_rows cuda_rows;
status cuda_rows_open(cuda_device *d, int max_rows, int64_t max_cols, cuda_rows **out, err *e);
void cuda_rows_close(cuda_device *d, cuda_rows *r);
/* All pointers are of the device from here on. x [n][cols]; `which` [n] picks the rows of x, NULL: the first n. */
status cuda_rows_load(cuda_device *d, cuda_rows *r, const float *x, int n, int64_t cols, err *e);
status cuda_rows_load_norm(cuda_device *d,
        cuda_rows *r,
        const float *x,
        const int32_t *which,
        const float *weight,
        float eps,
        int n,
        int64_t cols,
        err *e);
status cuda_rows_load_swiglu(
        cuda_device *d, cuda_rows *r, const float *gate, const float *up, int n, int64_t cols, err *e);

enum { CUDA_PRODUCTS_MAX = 3 };
typedef struct cuda_product {
    const cuda_matrix *matrix;
    const float *bias; /* [rows] or NULL */
    float *y;          /* [n][rows] */
    bool add;          /* to what y holds */
} cuda_product;
/* Products of the loaded rows; those whose weights are kept in the same way share a launch. */
status cuda_matmul(cuda_device *d, const cuda_rows *r, const cuda_product *products, int n_products, err *e);

/* ---- row operations ---- */

/* RMSNorm in place of q_rows rows of q and k_rows of k, of `cols` (at most 1024) each: QK norm. */
typedef struct cuda_head_norms {
    float *q, *k;
    const float *q_weight, *k_weight;
    int64_t q_rows, k_rows;
    int cols;
    float eps;
} cuda_head_norms;
status cuda_norm_heads(cuda_device *d, const cuda_head_norms *a, err *e);

/* Angles of query variants, in double like krn_rope_angles: cos_sin [n][n_variants][dims/2][2] for
 * position[t] - shift[run[t]][v], and own [n][dims/2][2] for position[t]. */
typedef struct cuda_angles {
    int dims, n_variants;
    float magnitude;
    const double *inv_freq;  /* [dims/2] */
    const int64_t *position; /* [n] */
    const int32_t *run;      /* [n] */
    const int64_t *shift;    /* [runs][n_variants] */
    float *own, *cos_sin;
} cuda_angles;
status cuda_rope_angles(cuda_device *d, const cuda_angles *a, int n, err *e);

/* New keys and values of one layer: RoPE at the own position (k changes in place), the stored space, bf16. Written to
 * where they are attended, unit[t] + layer_offset + head * head_stride (v v_offset bytes behind k), and packed for the
 * host: packed [n][layers][K][K, V][d]. */
typedef struct cuda_new_rows {
    int d, kv_heads, layer, layers;
    krn_rope_pairing pairing;
    int rope_dims;
    const float *own_angles;
    cuda_attend_rotation k_space, v_space; /* v_space.matrix is R here, not its transpose */
    float *k;                              /* [n][K][d] */
    const float *v;
    const uint64_t *unit; /* [n] device address of the row's K in layer 0, head 0 */
    uint64_t layer_offset, head_stride, v_offset;
    uint16_t *packed;
} cuda_new_rows;
status cuda_store_rows(cuda_device *d, const cuda_new_rows *a, int n, err *e);

/* Lowest index of the largest of each row's cols values; NaN never wins. */
status cuda_argmax(cuda_device *d, const float *x, int n, int64_t cols, int32_t *out, err *e);

#ifdef __cplusplus
}
#endif

#endif
