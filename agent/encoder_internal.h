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
const void *safetensors_bytes(const safetensors *s, size_t *bytes); /* the whole file; for fingerprints */

/* Immutable but for its scratch: one caller at a time. The folder holds config.json, vocab.txt, model.safetensors and
 * may hold sentence_bert_config.json (how many ids a text may have) and 1_Pooling/config.json (must say mean). */
typedef struct encoder encoder;
status encoder_open(krn_pool *pool, const char *folder, encoder **out, err *e);
/* The same with 8-bit weights and activations in the layers' products: three times faster, unit vectors within a cosine
 * of 0.99 of the exact ones (tested), which matching does not notice. Another fingerprint. */
status encoder_open_coded(krn_pool *pool, const char *folder, encoder **out, err *e);
void encoder_close(encoder *n);
int encoder_dim(const encoder *n);
const char *encoder_name(const encoder *n);
float encoder_floor(const encoder *n); /* cosine under which nothing matches: 0.32 for all-MiniLM-L6-v2 */
uint64_t encoder_fingerprint(const encoder *n);
int encoder_ids_max(
        const encoder *n); /* ids of a text beyond which the reference cuts it: 256 for all-MiniLM-L6-v2 */
/* count texts -> out [count][dim], each cut at max_ids (0: encoder_ids_max). A row depends on its text alone, bit for
 * bit, not on the batch or the threads. */
status encoder_embed(encoder *n,
        const char *const *texts,
        const size_t *bytes,
        int count,
        int max_ids,
        float *out,
        err *e);
/* The two halves of encoder_embed: [CLS] ids [SEP], appended; and count runs of ids back to back -> out [count][dim]. */
status encoder_tokenize(
        const encoder *n, const void *text, size_t bytes, int max_ids, token_list *ids, err *e);
status encoder_embed_ids(encoder *n, const int32_t *ids, const int *ids_each, int count, float *out, err *e);

#endif
