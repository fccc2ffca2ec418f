/*
 * Calibration inside kvq: how rotations come about.
 *
 * With q the query rows (after RoPE) that read one KV head, C = mean of q q^T in double, and U its eigenvectors in columns,
 * eigenvalues rising: the head's rotation is U H with H the normalised Hadamard matrix in Sylvester order. So every
 * channel of a rotated key matters alike to the logits (OSCAR, arXiv 2605.17757, section 3: diag(H^T Lambda H) is flat).
 * OSCAR itself shares one matrix between the heads of a layer: U_Q of the mean of C over heads, times H P, P the order of
 * bit-reversed indices by falling eigenvalue; and for values U_V H P, where U_V belongs to the moment of v weighted by
 * k^T C k, the mean squared logit of the token's key, scaled to mean 1 over a text.
 *
 * Eigenvectors have no sign: each column's largest component (the first among equals) is made positive.
 */
#ifndef EPIMEM_KVQ_CALIBRATION_H
#define EPIMEM_KVQ_CALIBRATION_H

#include "kvq/kvq.h"

/* Which codec reads the file: gives c->calibration, or refuses a missing path or another shape by name. */
struct kvq_codec;
status kvq_calibration_for_codec(struct kvq_codec *c, const char *path, err *e);

/* |R R^T - I| at most 1e-4 everywhere, and so no NaN. */
bool kvq_is_orthogonal(const float *r, size_t d);

/* Eigenvectors of the symmetric d x d matrix a (destroyed) in columns of u, eigenvalues rising; signs as above. */
status kvq_eigenbasis(int d, double *a, double *u, double *eigenvalues, err *e);
/* r = u H (bit_reversed false) or u H P, in float. */
void kvq_basis_times_hadamard(int d, const double *u, bool bit_reversed, float *r);

#endif
