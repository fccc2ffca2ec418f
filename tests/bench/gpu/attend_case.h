/* Random attention problems with their answers, for checks of the CUDA kernel on a card and of its code without one. */
#ifndef EPIMEM_TESTS_GPU_ATTEND_CASE_H
#define EPIMEM_TESTS_GPU_ATTEND_CASE_H

#include "kernels/cuda/attend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum attend_case_levels {
    CASE_UNIFORM,
    CASE_TABLE,
    CASE_WIDE_TABLE,
    CASE_ZERO,
    CASE_PLANES,
    CASE_PLANES_TABLE
};

typedef struct attend_case_options {
    const char *name;
    int d, group, kv_heads, sequences;
    enum attend_case_levels levels;
    krn_rotation_kind rotation;
    bool means, rope_halves, constant_values;
    int rope_dims;
    int pages;     /* of the longest list; others are shorter, one of several lists is empty */
    int bf16_rows; /* of the longest list */
    int variants;
    float outlier; /* factor on a few channels of queries and keys */
    bool shared;   /* one list for all heads of a sequence, pages and rows `stride` apart */
    int repeats;   /* lists hold their spans so many times (0: once), which leaves the answer as it is */
} attend_case_options;

typedef struct attend_case {
    attend_case_options o;
    krn_page_format format;
    krn_rope rope;
    double inv_freq[128];
    int q_heads, n_lists;
    uint8_t *blob; /* all pages and rows; list addresses point into it */
    size_t blob_bytes;
    cuda_attend_list *lists; /* [sequences][kv_heads], or [sequences] when shared */
    krn_span *spans;
    size_t head_stride; /* shared */
    float *q, *cos_sin, *sharpness;
    float *k_matrix, *v_matrix, *v_transposed, *k_mean, *v_mean; /* per KV head */
    float *expected;                                             /* float64 softmax */
    float *same_width; /* the same with query, and weight times value scale, rounded to half precision */
    uint64_t seed;
} attend_case;

void attend_case_make(const attend_case_options *o, uint64_t seed, attend_case *out);
void attend_case_free(attend_case *c);
cuda_attend_shape attend_case_shape(const attend_case *c, int multiprocessors);
/* Device pointers are the caller's; everything else is filled in. */
cuda_attend_call attend_case_call(const attend_case *c, int multiprocessors);
size_t attend_case_spans(const attend_case *c); /* room of a list in `spans` */
int64_t attend_case_tiles(const attend_case *c);

/* Relative errors of the worst head: of `got` and of the half-precision version. NaN counts as infinite. */
void attend_case_errors(const attend_case *c, const float *got, double *error, double *same_width_error);

extern const attend_case_options attend_case_list[];
extern const int attend_case_count;

#ifdef __cplusplus
}
#endif

#endif
