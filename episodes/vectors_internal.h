/*
 * vectors: unit vectors in 8 bits, and their cosines in integers.
 *
 * A vector is int8 components and one float step: v[i] = step * code[i], step = max |v| / 127. For 384 components of a
 * sentence encoder that moves a cosine by about 0.0004 (standard deviation), far under what separates two utterances.
 * A query is kept in 15 bits. The sum of products is an integer, hence the same on every processor and in every order,
 * so a stored and restored vector scores the same to the last bit.
 *
 * The pool is append-only but for ep_vectors_set; everything reads it through the functions here, so that another coding
 * can replace this file alone.
 */
#ifndef EPIMEM_EPISODES_VECTORS_INTERNAL_H
#define EPIMEM_EPISODES_VECTORS_INTERNAL_H

#include "kernels/base.h"

enum {
    EP_DIM_MAX = 4096
}; /* 4096 * 127 * 32767 would pass 2^31 only for vectors that are not unit; see vectors.c */

typedef struct ep_vectors {
    int dim;
    int64_t count;
    size_t code_cap, step_cap;
    int8_t *codes; /* [count][dim] */
    float *steps;  /* [count] */
} ep_vectors;

/* A unit vector to compare with, [dim] in units of 1 / 32767. */
typedef struct ep_probe {
    int dim;
    int16_t code[EP_DIM_MAX];
} ep_probe;

/* Scales v [dim] to unit length; the zero vector stays zero. False when a component is not finite. */
bool ep_unit(float *v, int dim);
void ep_probe_set(ep_probe *p, const float *v, int dim); /* v of unit length or shorter */

void ep_vector_code(const float *v, int dim, int8_t *codes, float *step);
status ep_vectors_reserve(ep_vectors *p, int64_t more);
/* Room must have been reserved. Returns the place. */
int64_t ep_vectors_add(ep_vectors *p, const int8_t *codes, float step);
void ep_vectors_set(ep_vectors *p, int64_t i, const int8_t *codes, float step);
/* out += weight * vector i */
void ep_vectors_accumulate(const ep_vectors *p, int64_t i, float weight, float *out);
float ep_vectors_dot(const ep_vectors *p, int64_t i, const ep_probe *q);
/* out[i] = cosine of vector i with q, for the first n vectors. */
void ep_vectors_scan(const ep_vectors *p, int64_t n, const ep_probe *q, float *out);
void ep_vectors_free(ep_vectors *p);

/* The integer sum of products; the variants give the same number (see vectors_avx2.c). */
int32_t ep_dot_scalar(const int8_t *a, const int16_t *b, int dim);
int32_t ep_dot_avx2(const int8_t *a, const int16_t *b, int dim);

#endif
