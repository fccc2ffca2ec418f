/* The sentence encoder: BERT layers from safetensors, mean pooling, unit length (all-MiniLM-L6-v2). */
#ifndef EPIMEM_AGENT_ENCODER_INTERNAL_H
#define EPIMEM_AGENT_ENCODER_INTERNAL_H

#include "agent/tokenizer_internal.h"
#include "kernels/kernels.h"

/* ---- safetensors: header JSON and a map; nothing believed unchecked ---- */
typedef struct safetensors safetensors;
typedef struct safetensor {
    krn_type type; /* F32, F16 or BF16 */
    int rank;
    int64_t size[4]; /* size[0] is the slowest axis, as the file writes it */
    const void *data;
    uint64_t bytes;
} safetensor;
status safetensors_open(const char *path, safetensors **out, err *e);
status safetensors_open_memory(const void *data, size_t bytes, const char *name, safetensors **out, err *e);
void safetensors_close(safetensors *s);
status safetensors_find(const safetensors *s, const char *name, safetensor *out, err *e);

typedef struct encoder encoder;
status encoder_open(krn_pool *pool, const char *folder, encoder **out, err *e);
void encoder_close(encoder *n);
int encoder_dim(const encoder *n);
const char *encoder_name(const encoder *n);
float encoder_floor(const encoder *n); /* cosine under which nothing matches: 0.25 for all-MiniLM-L6-v2 */
uint64_t encoder_fingerprint(const encoder *n);
/* n texts -> out [n][dim]. A row depends on its text alone, bit for bit. ids_out may be NULL. */
status encoder_embed(encoder *n, const char *const *texts, const size_t *bytes, int count, int max_ids, float *out, err *e);

#endif
