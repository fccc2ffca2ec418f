/* The language model: weights from GGUF, the forward pass over runs of tokens, and its exact specification. */
#ifndef EPIMEM_AGENT_MODEL_INTERNAL_H
#define EPIMEM_AGENT_MODEL_INTERNAL_H

#include "agent/gguf_internal.h"
#include "kernels/kernels.h"
#include "kvq/kvq.h"

typedef struct model model; /* immutable once open and placed; shared */

typedef struct model_config {
    char architecture[16]; /* llama, qwen2, qwen3 */
    char name[64];
    int layers, width, q_heads, kv_heads, d, ffn, vocab;
    int64_t context;
    float rms_eps;
    bool tied_output, qkv_bias, qk_norm;
    krn_rope rope;
    float attention_scale; /* 1/sqrt(d) */
} model_config;

status model_open(krn_pool *pool, const char *path, model **out, err *e);
/* For measurements: all weights as fp16 (twice the bytes of the parameters), so that products take float activations
 * instead of 8-bit ones, whose rounding would be measured too. The fingerprint is that of the file, as always. */
status model_open_float(krn_pool *pool, const char *path, model **out, err *e);
void model_close(model *m);
const model_config *model_get_config(const model *m);
const gguf *model_gguf(const model *m);     /* for the tokenizer and the template */
uint64_t model_fingerprint(const model *m); /* XXH3 over all weights and RoPE settings, computed at open */

/* Memory that spans lie in, for a device that keeps copies of it. */
typedef struct model_kv_part {
    uint64_t id; /* of this memory and what is in it: never used again; rows are only added */
    krn_span_kind kind;
    int rows;    /* filled, a run's new ones counted in: they are the last ones of the last part */
    int variant; /* as in krn_span, like the next two */
    int64_t first_position;
    bool visible_to_all;
    const void *k, *v; /* PAGE: k is a column (kvq.h); BF16: rows [rows][d] of layer 0, head 0 */
    size_t bytes;      /* PAGE: of the column; BF16: from one (layer, head) to the next */
} model_kv_part;
uint64_t model_kv_next_id(void); /* any thread */

/* What the forward pass needs of a session's KV. The session decides tiers; the model only writes the new rows and
 * attends. Called by the forward pass, on its thread. */
typedef struct model_kv {
    void *ctx;
    /* Space of (layer, head) in which rows are stored and attended. */
    void (*space)(void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format);
    /* Where the n new rows of this run go: bf16 [n][d], in stored space; written before spans() is asked for. */
    void (*new_rows)(void *ctx, int layer, int head, uint16_t **k, uint16_t **v);
    /* All spans that the rows of this run attend to, the new rows included. Asked for head by head; all heads' answers
     * of a layer are read together, so they stay valid until the next layer asks. */
    void (*spans)(void *ctx, int layer, int head, const krn_span **spans, int *n);
    /* The same spans by the memory they lie in, in the same order; valid until the next call. */
    void (*parts)(void *ctx, const model_kv_part **parts, int *n);
    /* Where the page of (layer, head) begins in a column; the heads of a layer follow each other. */
    size_t (*page_at)(void *ctx, int layer, int head);
    uint64_t
            space_id; /* the same where space() answers the same; 0: model space everywhere (model_kv_plain_space) */
    /* Query variants of this run: shift[i] is taken off the position, sharpness multiplies the logits. */
    int n_variants;
    const int64_t *shift;
    const float *sharpness;
    /* NULL, or told the run's rows of each layer before they are attended, in model space: q [n][H][d] before the
     * rotary position, k [n][K][d] after it, v [n][K][d]. For tools that measure (calibrate, eval). */
    void (*tap)(void *tap_ctx, int layer, const float *q, const float *k, const float *v);
    void *tap_ctx;
} model_kv;
enum { MODEL_VARIANTS_MAX = 256 }; /* of one run; more is ST_ERR_LIMIT */

/* Consecutive new tokens of one sequence. */
typedef struct model_run {
    const int32_t *ids;
    int n;
    int64_t first_position;
    const model_kv *kv;
    int n_logits;  /* logits are wanted for the last n_logits rows */
    float *logits; /* [n_logits][vocab] */
} model_run;

/* Chooses where forward passes run, before the first scratch is opened: "cpu", "cuda", or "auto" (also NULL), which takes
 * the CUDA device if there is one and says so in the log if there is none. budget_bytes of device memory for weights,
 * scratch and copies of KV; 0: nine tenths of what is free. ST_ERR_NOT_FOUND, ST_ERR_UNSUPPORTED: no such device, or a
 * build without CUDA; ST_ERR_MEMORY with the numbers when the model does not fit. */
status model_set_device(model *m, const char *device, uint64_t budget_bytes, err *e);
const char *model_arithmetic(const model *m); /* what KV is computed with: krn_numeric_abi(), or "cuda-1" */
/* Device memory in use, and what became of KV copies there; zeros on the CPU. */
typedef struct model_device_usage {
    uint64_t budget_bytes, used_bytes, weight_bytes;
    uint64_t cache_bytes;            /* of copies of KV */
    uint64_t page_hits, page_misses; /* columns that a pass attended to: already there, or sent */
    uint64_t bytes_sent;             /* of KV to the device */
} model_device_usage;
model_device_usage model_get_device_usage(const model *m);

/* Scratch for forward passes of up to max_rows rows in all runs together. */
typedef struct model_scratch model_scratch;
status model_scratch_open(const model *m, int max_rows, model_scratch **out, err *e);
void model_scratch_close(model_scratch *s);
/* Runs of different sequences side by side; a row's result does not depend on what is beside it. Allocates nothing.
 * ST_ERR_ARG names an id outside the vocabulary, ST_ERR_LIMIT says too many rows or variants: nothing was written. */
status model_forward(const model *m, model_scratch *s, const model_run *runs, int n_runs, err *e);

/* A model_kv.space that rotates nothing. */
void model_kv_plain_space(
        void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format);

/* A KV that keeps everything in BF16 in model space, for the tools (score, generate, calibration) and tests. */
typedef struct plain_kv plain_kv;
status plain_kv_open(const model *m, int64_t max_tokens, plain_kv **out, err *e);
void plain_kv_close(plain_kv *p);
/* Room for the next n tokens, counted from now on; a view for one model_forward. NULL past max_tokens. */
const model_kv *plain_kv_prepare(plain_kv *p, int n_new);
void plain_kv_reset(plain_kv *p);
int64_t plain_kv_tokens(const plain_kv *p);

/* ---- the specification: fp32, weights dequantised, one obviously right pass over a whole sequence ---- */
typedef struct model_taps {
    int layer;             /* which */
    float *k, *v, *hidden; /* [n][K][d], [n][K][d], [n][width]; NULL to skip */
} model_taps;
/* A pass that can go on: keeps float32 K and V. One thread at a time; uses the model's pool. */
typedef struct model_exact model_exact;
typedef void (*model_on_row)(void *ctx, int row, const float *logits); /* row counts within this append */
status model_exact_open(const model *m, int64_t max_tokens, model_exact **out, err *e);
void model_exact_close(model_exact *x);
/* Appends n tokens; on_row is told the logits [vocab] of the last n_logits rows, in order. ST_ERR_LIMIT past max_tokens. */
status model_exact_append(model_exact *x,
        const int32_t *ids,
        int n,
        int n_logits,
        model_on_row on_row,
        void *ctx,
        const model_taps *taps,
        int n_taps,
        err *e);
/* logits [n][vocab]; taps may be NULL. */
status model_forward_exact(
        const model *m, const int32_t *ids, int n, float *logits, const model_taps *taps, int n_taps, err *e);

/* ---- sampling ---- */
typedef struct sampler_options {
    float temperature;
    int top_k;
    float top_p, min_p, repeat_penalty;
    uint64_t seed;
} sampler_options;
/* Draw number `step` of the stream `seed`: the same answer after a restart. logits are changed in place. */
int32_t sampler_pick(const sampler_options *o,
        float *logits,
        int vocab,
        const int32_t *recent,
        int n_recent,
        uint64_t step);

#endif
