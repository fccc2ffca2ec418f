/*
 * The searches behind rows.h, each as a scalar specification and for AVX2, bit for bit alike. A sum over channels is eight partial
 * sums over channels equal mod 8, in double, then ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)); d is a multiple of 8. A
 * candidate that a channel does not belong to gets +0.0 from it, which changes no sum of magnitudes.
 */
#ifndef EPIMEM_KVQ_CODECS_OSCAR_PLUS_SEARCH_H
#define EPIMEM_KVQ_CODECS_OSCAR_PLUS_SEARCH_H

#include <stdint.h>

enum { KVQ_SEARCH_TRIES4 = 16, KVQ_SEARCH_TRIES16 = 9, KVQ_SEARCH_D_MAX = 256 };

/* <x,x>, and <x,c> and <c,c> of odd numbers c: 2 code - 3 with four levels, 2 code - 15 with sixteen. */
typedef struct kvq_sums {
    double x_x, x_c;
    int c_c;
} kvq_sums;

/* From all = sum |x| and, of the channels whose magnitude reaches threshold n + 1, the sum of magnitudes and the number: the
 * best threshold, counted from 1, and its sums. */
int kvq_search4_choose(int d,
        double all,
        const double outer[KVQ_SEARCH_TRIES4],
        const int count[KVQ_SEARCH_TRIES4],
        kvq_sums *best);
/* Factor from magnitudes to thresholds: a magnitude reaches n where magnitude * factor - 17 >= n. */
double kvq_search4_per_unit(double x_x, int d);
/* The i-th of the steps that sixteen levels try, as its reciprocal. */
float kvq_search16_per_step(double x_x, int d, int i);

typedef struct kvq_search {
    kvq_sums (*four)(const uint16_t *x, int d, uint8_t *codes);
    kvq_sums (*sixteen)(const uint16_t *x, int d, uint8_t *codes);
} kvq_search;
extern const kvq_search kvq_search_scalar, kvq_search_avx2;

#endif
