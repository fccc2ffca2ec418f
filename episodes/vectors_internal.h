/*
 * vectors: unit vectors at four bits, with four more where it counts, and their cosines in integers.
 *
 * A vector is rotated by a fixed orthogonal matrix (two rounds of random signs and Hadamard transforms over 128
 * components), after which its components look like draws from a normal distribution, and each is coded with the 16
 * levels that are best for that (TurboQuant_mse, Zandieh et al., arXiv 2504.19874, section 3.1; levels of Max 1960).
 * A second plane says where inside its level's cell a component lies, in 16 equal parts. Searching reads the first plane
 * alone; what it puts in front is scored again with both. Cosines are off by 0.005 with one plane and by 0.0003 with two
 * (standard deviation, 384 components; README.md says what that does to a ranking).
 *
 * Everything inside this folder lives in the rotated space, [ep_rotated_dim] components, since sums and cosines are the
 * same there. Sums of products are integers, hence the same on every processor and in every order.
 *
 * The pool is append-only; everything reads it through the functions here.
 */
#ifndef EPIMEM_EPISODES_VECTORS_INTERNAL_H
#define EPIMEM_EPISODES_VECTORS_INTERNAL_H

#include "kernels/base.h"

enum {
    EP_DIM_MAX = 4096,      /* of the encoder; keeps the sums of vectors.c within 32 bits */
    EP_ROTATION_BLOCK = 128 /* the rotated space has a multiple of that many components */
};

typedef struct ep_vectors {
    int dim; /* rotated */
    int64_t count;
    size_t plane_cap, rest_cap, scale_cap;
    /* [count][dim / 2] each. Of every 64 components, byte k holds component k low and component k + 32 high. */
    uint8_t *levels, *rests;
    float *scales; /* [count]; 0 for the zero vector */
} ep_vectors;

/* A unit vector to compare with: coarse for the scan, fine for the second look. */
typedef struct ep_probe {
    int dim;
    float coarse_step;
    int32_t coarse_sum;
    int8_t coarse[EP_DIM_MAX];
    int16_t fine[EP_DIM_MAX]; /* in units of 1 / 16383 */
} ep_probe;

/* Scales v [dim] to unit length; the zero vector stays zero. False when a component is not finite. */
bool ep_unit(float *v, int dim);
int ep_rotated_dim(int dim);
/* v [dim] -> out [ep_rotated_dim(dim)], same length and cosines. */
void ep_rotate(const float *v, int dim, float *out);

/* The following take rotated vectors. */
void ep_probe_set(ep_probe *p, const float *v, int dim); /* v of unit length or shorter */
status ep_vectors_reserve(ep_vectors *p, int64_t more);
/* Codes v [dim] of unit length or zero. Room must have been reserved. Returns the place. */
int64_t ep_vectors_add(ep_vectors *p, const float *v);
/* out += weight * vector i, both planes */
void ep_vectors_accumulate(const ep_vectors *p, int64_t i, float weight, float *out);
/* Cosine of vector i with q, both planes. */
float ep_vectors_dot(const ep_vectors *p, int64_t i, const ep_probe *q);
/* out[i] = cosine of vector i with q by the first plane, for all vectors of the pool. */
void ep_vectors_scan(const ep_vectors *p, const ep_probe *q, float *out);
size_t ep_vectors_bytes(const ep_vectors *p); /* held */
void ep_vectors_free(ep_vectors *p);

/* ---- the integer sums; the variants give the same number ---- */

/* Per level: 7 bits for the scan, the lower edge of its cell and its width in units of 1/1024 of the standard deviation. */
typedef struct ep_levels {
    uint8_t level[16];
    int16_t edge[16], width[16];
} ep_levels;
extern const ep_levels ep_level_table;

/* sums[n] of n rows */
void ep_scan_scalar(const uint8_t *levels, int n, const int8_t *q, int dim, int32_t *sums);
void ep_scan_avx2(const uint8_t *levels, int n, const int8_t *q, int dim, int32_t *sums);
int32_t ep_fine_scalar(const uint8_t *levels, const uint8_t *rests, const int16_t *q, int dim);
int32_t ep_fine_avx2(const uint8_t *levels, const uint8_t *rests, const int16_t *q, int dim);

#endif
