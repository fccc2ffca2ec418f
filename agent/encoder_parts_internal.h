/* What the encoder's files share: its configuration, weights, scratch, and the attention of one head. */
#ifndef EPIMEM_AGENT_ENCODER_PARTS_INTERNAL_H
#define EPIMEM_AGENT_ENCODER_PARTS_INTERNAL_H

#include "agent/encoder_internal.h"

enum {
    ENCODER_IDS_MAX = 512, /* of one text; bounds the attention's score rows, which live on the stack */
    ENCODER_ROWS_MAX =
            1024, /* rows of one pass, each text rounded up to ENCODER_KEY_PAD: large products, small scratch */
    ENCODER_KEY_PAD = 32,
    ENCODER_HEAD_DIM_MAX = 128
};

typedef struct encoder_config {
    int layers, width, heads, ffn, vocab, positions, types;
    int ids_max; /* where the reference cuts a text */
    float eps;
} encoder_config;
/* Reads and checks config.json, 1_Pooling/config.json and sentence_bert_config.json (the last two may be missing). */
status encoder_config_read(const char *folder, encoder_config *out, err *e);

typedef struct encoder_linear {
    krn_matrix *matrix;
    float *bias;
} encoder_linear;

typedef struct encoder_norm {
    float *weight, *bias;
} encoder_norm;

typedef struct encoder_layer {
    krn_matrix *q, *k, *v;
    float *qkv_bias; /* [3 width] */
    encoder_linear attention_out, up, down;
    encoder_norm after_attention, after_ffn;
} encoder_layer;

struct encoder {
    krn_pool *pool;
    encoder_config config;
    bool coded;  /* 8-bit products */
    void **code; /* Q8_0 weights of coded matrices, owned */
    size_t n_code, code_cap;
    char *name;
    wordpiece *words;
    safetensors *file;
    uint64_t fingerprint;
    safetensor word_embedding; /* rows are converted as they are looked up */
    float *position_embedding; /* [positions][width], with the embedding of token type 0 added */
    encoder_norm after_embedding;
    encoder_layer *layers;
    /* scratch of one pass */
    krn_rows *rows;
    float *x, *y; /* [ENCODER_ROWS_MAX][width] */
    float *qkv;   /* [ENCODER_ROWS_MAX][3 width] */
    float *ffn;   /* [ENCODER_ROWS_MAX][ffn] */
    float *keys;  /* [width][ENCODER_ROWS_MAX]: keys of each (text, head), transposed and padded */
};

/* Attention of one head over one text, every query row meeting every key row. */
typedef struct encoder_attend_args {
    const float *q, *k, *v; /* [tokens][d], rows `stride` apart */
    float *keys;            /* scratch [d][tokens rounded up to ENCODER_KEY_PAD] */
    float *out;             /* [tokens][d], rows `out_stride` apart */
    int64_t stride, out_stride;
    int tokens, d; /* d a multiple of 32 */
    float scale;
} encoder_attend_args;
/* The same sums in the same order without contraction: the three give the same bits. */
void encoder_attend(const encoder_attend_args *a);
void encoder_attend_avx2(const encoder_attend_args *a);
void encoder_attend_avx512(const encoder_attend_args *a);

#endif
