/* What the files of the language model share: the open weights, and the steps of opening. Only agent/model*.c and
 * agent/forward*.c include this. */
#ifndef EPIMEM_AGENT_MODEL_PARTS_INTERNAL_H
#define EPIMEM_AGENT_MODEL_PARTS_INTERNAL_H

#include "agent/model_internal.h"

/* A weight matrix twice: as the product's kernels read it, and as it lies in the file (the specification). Biases are
 * optional everywhere: Qwen2 has them on q, k and v, llama may have them on all. */
typedef struct model_matrix {
    const gguf_tensor *stored; /* size[0] columns, size[1] rows */
    krn_matrix *opened;
    uint16_t *widened; /* the weights as fp16 when they were opened so, else NULL */
    float *bias;       /* [rows] or NULL */
} model_matrix;

typedef struct model_layer {
    model_matrix q, k, v, o, gate, up, down;
    float *attention_norm, *ffn_norm; /* [width] */
    float *q_norm, *k_norm;           /* [d]; both NULL without QK norm */
} model_layer;

struct model {
    gguf *file;
    krn_pool *pool; /* borrowed */
    bool float_activations;
    model_config config;
    const gguf_tensor *embedding; /* [vocab][width] as stored; a row is dequantised when it is needed */
    model_matrix output;          /* the embedding again when they are tied */
    float *output_norm;           /* [width] */
    model_layer *layers;
    double *inv_freq; /* config.rope.inv_freq */
    uint64_t fingerprint;
    struct model_device *device; /* where forward passes run; NULL: here */
};

/* ---- the model on a CUDA device: model_cuda.c, or model_nocuda.c that knows no device ---- */

typedef struct model_device model_device;
typedef struct device_scratch device_scratch;
status model_device_open(const model *m, uint64_t budget_bytes, model_device **out, err *e);
void model_device_close(model_device *d);
const char *model_device_name(const model_device *d);
model_device_usage model_device_get_usage(const model_device *d);
status device_scratch_open(const model *m, int max_rows, device_scratch **out, err *e);
void device_scratch_close(device_scratch *s);
/* As model_forward; the runs have been checked and have n >= 1 rows. */
status device_forward(device_scratch *s, const model_run *runs, int n_runs, int n, err *e);

/* Elements of the widest row that a product reads. */
static inline int model_widest_row(const model_config *c)
{
    int attention = c->q_heads * c->d;
    int width = c->width > c->ffn ? c->width : c->ffn;
    return width > attention ? width : attention;
}

/* Fills config but for what the tensors say (vocab, tied_output, qkv_bias, qk_norm) and rope. */
status model_read_config(const gguf *g, model_config *config, err *e);
/* "llama.rope.freq_base" for suffix "rope.freq_base". */
void model_key(const model_config *config, const char *suffix, char key[96]);
/* Integer, or `missing` when the key is not there; checked against [min, max]. */
status model_key_int(const gguf *g,
        const model_config *config,
        const char *suffix,
        int64_t missing,
        int64_t min,
        int64_t max,
        int64_t *out,
        err *e);
status model_key_double(
        const gguf *g, const model_config *config, const char *suffix, double missing, double *out, err *e);
/* Inverse frequencies with the file's scaling applied; *inv_freq is owned by the caller. */
status model_read_rope(const gguf *g, const model_config *config, krn_rope *rope, double **inv_freq, err *e);

#endif
