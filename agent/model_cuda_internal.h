/* The model on a CUDA device: weights (model_cuda.c), the forward pass over them (forward_cuda.c) and what it attends to
 * (attention_cuda.c). */
#ifndef EPIMEM_AGENT_MODEL_CUDA_INTERNAL_H
#define EPIMEM_AGENT_MODEL_CUDA_INTERNAL_H

#include "agent/kv_mirror_internal.h"
#include "agent/model_parts_internal.h"

typedef struct device_matrix {
    cuda_matrix *weights;
    float *bias; /* or NULL */
} device_matrix;

typedef struct device_layer {
    device_matrix q, k, v, o, gate, up, down;
    float *attention_norm, *ffn_norm, *q_norm, *k_norm;
} device_layer;

/* Stored spaces and page format of a layer, as the device reads them. */
typedef struct device_space {
    cuda_attend_rotation k, v, store_v; /* store_v: R of V, where v has its transpose */
    krn_page_format format;
    int64_t page_at; /* of head 0 in a column */
} device_space;

struct model_device {
    const model *m;
    cuda_device *device;
    device_layer *layers;
    device_matrix output;
    float *output_norm;
    double *inv_freq;
    uint64_t weight_bytes;
    kv_mirror *mirror;
    device_space *spaces; /* [layers], of space_id */
    uint64_t space_id;
    bool has_spaces;
    void **space_memory;
    size_t n_space_memory, space_memory_cap;
};

/* The spaces that a run's KV is stored in: are they those of the last pass? And sending them: what was recorded
 * with the old ones cannot be repeated then. */
bool device_has_spaces(const model_device *d, const model_kv *kv);
status device_set_spaces(model_device *d, const model_kv *kv, err *e);

/* What the rows of a pass attend to: a plan for groups of rows. */
typedef struct attention_plan {
    cuda_attend_plan plan;
    uint64_t image_at; /* in the image and on the device */
    int first_row, n_rows;
} attention_plan;
enum { DEVICE_RECORDED_ROWS = 64 }; /* passes of at most so many rows are recorded and repeated */
typedef struct device_attention device_attention;
status device_attention_open(model_device *d, int max_rows, device_attention **out, err *e);
void device_attention_close(device_attention *a);
/* Looks everything up that the runs attend to, sends what is missing, plans and sends the plan. unit [n]: device address
 * of each new row's K in layer 0, head 0. */
status device_attention_plan(device_attention *a, const model_run *runs, int n_runs, uint64_t *unit, err *e);
/* The plan when it is one, else NULL. */
const attention_plan *device_attention_single(const device_attention *a);
/* One layer's attention of all rows: q [n][H][d] before RoPE -> out [n][H][d]. */
status device_attention_run(device_attention *a,
        int layer,
        int n_variants,
        const float *cos_sin,
        const float *sharpness,
        const float *q,
        float *out,
        err *e);

#endif
