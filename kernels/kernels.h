/*
 * kernels: compute. Each operation has a scalar CPU version that is the specification, tuned CPU versions chosen
 * once at run time by what the processor has, and a CUDA twin. No model, no codec name, no file is known here.
 *
 * The rule that everything above relies on: THE RESULT OF A ROW IS A FUNCTION OF THAT ROW ALONE, bit for bit:
 * never of how many rows are in the call, of the number of threads, or of the place of the row in the batch.
 * So a token computed in a prefill block, alone in decode, or beside other sessions gives the same bits, and
 * greedy answers repeat cold, warm, crowded and restarted. Sums run in an order fixed by their length alone.
 * Different instruction sets may differ in the last bits; krn_numeric_abi() names the bits at hand.
 *
 * Shapes: T rows (tokens), H query heads, K KV heads, d head_dim. Row-major, last axis contiguous.
 * Nothing here allocates except *_open. Threads: one caller at a time per krn_pool; everything else is pure.
 */
#ifndef EPIMEM_KERNELS_KERNELS_H
#define EPIMEM_KERNELS_KERNELS_H

#include "kernels/base.h"

/* ---- processor and threads ---- */

typedef enum krn_isa { KRN_ISA_SCALAR, KRN_ISA_AVX2, KRN_ISA_AVX512, KRN_ISA_COUNT } krn_isa;

krn_isa krn_isa_best(void);    /* what this processor offers (AVX512 means F, BW, VL, DQ and VNNI) */
krn_isa krn_isa_current(void); /* what the operations use now */
void krn_isa_set(krn_isa isa); /* before any *_open; REQUIREs isa <= best */
const char *krn_isa_name(krn_isa isa);
const char *krn_numeric_abi(
        void); /* e.g. "cpu-avx512-1": another name whenever results have other bits; for reports */

typedef struct krn_pool krn_pool;
/* A pool of `threads` workers, the caller counted in. threads <= 0 means one per core. */
status krn_pool_open(int threads, krn_pool **out, err *e);
void krn_pool_close(krn_pool *pool);
int krn_pool_threads(const krn_pool *pool);
/* Runs fn(ctx, i) for i in [0, tasks), spread over the workers, and returns when all are done. pool NULL: the caller
 * alone does all. fn must not call krn_pool_run on the same pool. */
void krn_pool_run(krn_pool *pool, void (*fn)(void *ctx, int task), void *ctx, int tasks);

/* ---- stored tensors ---- */

/* Numbers are the GGUF tensor type ids. */
typedef enum krn_type {
    KRN_F32 = 0,
    KRN_F16 = 1,
    KRN_Q4_0 = 2,
    KRN_Q4_1 = 3,
    KRN_Q5_0 = 6,
    KRN_Q5_1 = 7,
    KRN_Q8_0 = 8,
    KRN_Q2_K = 10,
    KRN_Q3_K = 11,
    KRN_Q4_K = 12,
    KRN_Q5_K = 13,
    KRN_Q6_K = 14,
    KRN_IQ4_NL = 20,
    KRN_IQ4_XS = 23,
    KRN_BF16 = 30
} krn_type;

bool krn_type_known(uint32_t type);
const char *krn_type_name(krn_type type);   /* "Q4_1" */
int krn_type_block_elements(krn_type type); /* 1, 32 or 256 */
int krn_type_block_bytes(krn_type type);
/* n elements (a multiple of the block) to float32, the same values as ggml's. */
void krn_dequantize(krn_type type, const void *src, float *dst, int64_t n);
/* n floats (a multiple of 32) to Q8_0 blocks, 34 bytes per 32. */
void krn_quantize_q8_0(const float *src, void *dst, int64_t n);

/* ---- matrix products: y[t][o] = sum_i w[o][i] x[t][i] ---- */

/* A weight matrix [rows][cols], opened from stored bytes that must stay mapped until close. May repack. Q4_0 Q4_1 Q5_0
 * Q5_1 Q8_0 Q4_K Q5_K Q6_K multiply 8-bit activations (one scale per 32); F32, F16 and BF16 multiply float32 ones, and so
 * do the rarer types (Q2_K Q3_K IQ4_NL IQ4_XS), which are dequantised on the way: right, but slower. */
typedef struct krn_matrix krn_matrix;
status krn_matrix_open(krn_pool *pool,
        krn_type type,
        int64_t rows,
        int64_t cols,
        const void *data,
        krn_matrix **out,
        err *e);
void krn_matrix_close(krn_matrix *m);
int64_t krn_matrix_rows(const krn_matrix *m);
int64_t krn_matrix_cols(const krn_matrix *m);

/* Activations of up to max_rows x max_cols, held in whatever forms the products read; filled once, used by
 * several matrices with the same input (q, k, v; gate, up). */
typedef struct krn_rows krn_rows;
status krn_rows_open(int64_t max_rows, int64_t max_cols, krn_rows **out, err *e);
void krn_rows_close(krn_rows *r);
/* Which forms krn_rows_load fills (both after open): bits of krn_rows_form, what krn_matrix_reads answers for the
 * matrices to come. Saves the copy of the other form; a product that finds its form missing is a REQUIRE. */
enum krn_rows_form { KRN_ROWS_FLOAT = 1, KRN_ROWS_CODES = 2 };
void krn_rows_keep(krn_rows *r, unsigned forms);
unsigned krn_matrix_reads(const krn_matrix *m);
void krn_rows_load(krn_pool *pool, krn_rows *r, const float *x, int64_t x_stride, int64_t n, int64_t cols);
/* y[t*y_stride + o], all loaded rows; cols must agree (REQUIRE). */
void krn_matmul(krn_pool *pool, const krn_matrix *m, const krn_rows *r, float *y, int64_t y_stride);

/* The specification of the above: dequantise, then a double sum in index order. x [n][cols], y [n][rows]. */
void krn_matmul_exact(
        krn_type type, const void *w, int64_t rows, int64_t cols, const float *x, int64_t n, float *y);

/* ---- row operations (float32, in place where dst == src) ---- */

void krn_rmsnorm(const float *x, const float *w, float eps, float *y, int64_t n, int64_t cols);
void krn_layernorm(
        const float *x, const float *w, const float *b, float eps, float *y, int64_t n, int64_t cols);
void krn_add(float *x, const float *y, int64_t count);                        /* x += y */
void krn_add_bias(float *x, const float *bias, int64_t n, int64_t cols);      /* x[t] += bias */
void krn_swiglu(const float *gate, const float *up, float *y, int64_t count); /* silu(gate) * up */
void krn_gelu(float *x, int64_t count);            /* 0.5 x (1 + erf(x / sqrt 2)) */
int64_t krn_argmax(const float *x, int64_t count); /* lowest index among equals; NaN never wins */
void krn_log_softmax(const float *x, float *y, int64_t count);

/* ---- rotary positions ---- */

typedef enum krn_rope_pairing {
    KRN_ROPE_ADJACENT,
    KRN_ROPE_HALVES
} krn_rope_pairing; /* (2i,2i+1) or (i,i+dims/2) */
typedef struct krn_rope {
    krn_rope_pairing pairing;
    int dims;               /* rotated channels of a head, even, <= d; the rest pass through */
    const double *inv_freq; /* [dims/2] radians per position, scaling already applied */
    float magnitude;        /* factor on cos and sin (YaRN's attention factor), 1 otherwise */
} krn_rope;
/* cos_sin [dims/2][2] of one position; angles in double, since float is off by 4e-3 rad at 100,000. */
void krn_rope_angles(const krn_rope *rope, int64_t position, float *cos_sin);
void krn_rope_apply(const krn_rope *rope, const float *cos_sin, float *x /* [d] in place */);

/* ---- attention over tiers, one softmax ---- */

/* The space in which one KV head's keys and values are stored: k' = (k - k_mean) R_k, v' = (v - v_mean) R_v with R
 * orthogonal. Queries go to q R_k; k_mean enters as one score offset per query variant; outputs come back by
 * R_v^T and + v_mean. Rotation: none, Hadamard (Sylvester order, / sqrt d), or a matrix [d][d] (row-major). */
typedef enum krn_rotation_kind {
    KRN_ROTATION_NONE,
    KRN_ROTATION_HADAMARD,
    KRN_ROTATION_MATRIX
} krn_rotation_kind;
typedef struct krn_rotation {
    krn_rotation_kind kind;
    const float *matrix; /* MATRIX only */
    const float *mean;   /* [d] or NULL */
} krn_rotation;
void krn_rotate(const krn_rotation *r, int d, const float *x, float *y);            /* y = (x - mean) R */
void krn_rotate_to_bf16(const krn_rotation *r, int d, const float *x, uint16_t *y); /* the same, rounded */
void krn_rotate_inverse(const krn_rotation *r, int d, const float *x, float *y);    /* y = x R^T + mean */

/* How to read a coded page of one KV head. Codes lie in fragment order (kernels/fragment.h); a row's value is
 * scale * level[code]. With two K planes code = 4 hi + lo of 0..15 and the value scale * (code - 7.5). Levels rise with
 * the code and lie on an even grid of at most 255 steps (REQUIRE), so that byte products hold them exactly. Scales are
 * not negative.
 * kvq/page.h composes pages; this only tells where things are, in bytes from the page. */
enum { KRN_PAGE_ROWS = 128 };
typedef struct krn_page_format {
    int d;            /* 64, 128 or 256 */
    int k_planes;     /* 1 or 2 */
    float k_level[4]; /* one plane: value of each code, in scales */
    float v_level[4];
    bool has_zero; /* rows carry an fp16 zero: value = scale * (code - zero), levels unused */
    uint32_t k_plane_at[2], v_plane_at, k_scale_at, v_scale_at, k_zero_at, v_zero_at;
    uint32_t bytes; /* of the whole page */
} krn_page_format;

typedef enum krn_span_kind { KRN_SPAN_BF16, KRN_SPAN_PAGE } krn_span_kind;
/* Consecutive rows of one KV head, in stored space. */
typedef struct krn_span {
    krn_span_kind kind;
    int rows;               /* filled rows; a PAGE has at most 128 */
    int variant;            /* index of the query variant that meets these rows */
    const void *k;          /* BF16: [rows][d] uint16; PAGE: the page */
    const void *v;          /* BF16: [rows][d] uint16; PAGE: ignored */
    int64_t first_position; /* row r is visible to a query at p iff first_position + r <= p */
    bool visible_to_all;    /* or to everybody */
} krn_span;

/* One KV head's work for a run of query rows. */
typedef struct krn_attend_head {
    krn_rotation k_rotation, v_rotation;
    krn_page_format format; /* of this layer's pages; unused when there is none */
    const krn_span *spans;
    int n_spans;
} krn_attend_head;

typedef struct krn_attend_args {
    int n_rows, n_q_heads, n_kv_heads, d;
    const float *q;          /* [n_rows][H][d] before RoPE, after any QK norm */
    const int64_t *position; /* [n_rows] the token's own position, for visibility */
    float scale;             /* 1/sqrt(d) unless the model says otherwise */
    const krn_rope *rope;
    int n_variants;
    const float *cos_sin;         /* [n_rows][n_variants][dims/2][2]: query angles of each variant */
    const float *sharpness;       /* [n_variants] factor on the logits of the variant's rows */
    const krn_attend_head *heads; /* [K]; query head h reads KV head h / (H/K) */
    float *out;                   /* [n_rows][H][d] model space */
} krn_attend_args;

/* Bytes of workspace that krn_attend needs for these sizes; a function of the counts alone, not less for more rows. */
size_t krn_attend_workspace_bytes(int n_rows, int n_q_heads, int d, int n_variants);
/* Pages are read in place, never expanded to memory. A query that sees no row gets zeros (plus v_mean). */
void krn_attend(krn_pool *pool, const krn_attend_args *a, void *workspace);
void krn_attend_exact(
        const krn_attend_args *a); /* specification: double softmax over decoded rows, allocates */

#endif
