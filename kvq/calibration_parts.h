/* The tensors of a calibration file, in file order: one table for the writer and the reader. */
#ifndef EPIMEM_KVQ_CALIBRATION_PARTS_H
#define EPIMEM_KVQ_CALIBRATION_PARTS_H

#include "kvq/calibration.h"

#define KVQ_CALIBRATION_FORMAT "epimem calibration 1"

enum { KVQ_PART_COUNT = 6, KVQ_PART_RANK_MAX = 4 };

typedef struct kvq_part {
    const char *name, *type; /* F32 or I32, four bytes each */
    int rank;
    int64_t size[KVQ_PART_RANK_MAX];
    void **data;     /* the field of the calibration */
    unsigned group;  /* KVQ_CALIBRATION_HEADS, _SHARED, or 0: always there */
    bool orthogonal; /* [..][d][d] */
} kvq_part;

/* k_bits first, so that a reader knows the number of layers early. */
static inline void kvq_calibration_parts(kvq_calibration *c, kvq_part out[KVQ_PART_COUNT])
{
    const int64_t layers = c->shape.layers, heads = c->shape.kv_heads, d = c->shape.d;
    const kvq_part parts[KVQ_PART_COUNT] = {
            {"k_bits", "I32", 1, {layers}, (void **)&c->k_bits, 0, false},
            {"k_rotation", "F32", 4, {layers, heads, d, d}, (void **)&c->k_rotation, KVQ_CALIBRATION_HEADS,
                    true},
            {"k_mean", "F32", 3, {layers, heads, d}, (void **)&c->k_mean, KVQ_CALIBRATION_HEADS, false},
            {"q_eigenvalues", "F32", 3, {layers, heads, d}, (void **)&c->q_eigenvalues, KVQ_CALIBRATION_HEADS,
                    false},
            {"shared_k_rotation", "F32", 3, {layers, d, d}, (void **)&c->shared_k_rotation,
                    KVQ_CALIBRATION_SHARED, true},
            {"shared_v_rotation", "F32", 3, {layers, d, d}, (void **)&c->shared_v_rotation,
                    KVQ_CALIBRATION_SHARED, true},
    };
    for (int i = 0; i < KVQ_PART_COUNT; i++) {
        out[i] = parts[i];
    }
}

static inline size_t kvq_part_elements(const kvq_part *p)
{
    size_t n = 1;
    for (int i = 0; i < p->rank; i++) {
        n *= (size_t)p->size[i];
    }
    return n;
}

#endif
