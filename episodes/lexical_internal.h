/*
 * lexical: an inverted index of the words of all utterances, scored by BM25 (Robertson and Zaragoza 2009, eq. 3.15, with
 * the idf of Lucene, which is never negative).
 *
 * Postings of one word are a chain through a pool in order of arrival, newest first, so that adding an utterance
 * writes only at the end of two arrays: after ep_lexical_reserve it cannot fail.
 */
#ifndef EPIMEM_EPISODES_LEXICAL_INTERNAL_H
#define EPIMEM_EPISODES_LEXICAL_INTERNAL_H

#include "kernels/base.h"

typedef struct ep_posting {
    uint32_t document;
    uint32_t before; /* place of the word's previous posting + 1; 0 at the end of the chain */
    uint16_t count;
} ep_posting;

typedef struct ep_term {
    uint64_t key;  /* 0: free slot */
    uint32_t last; /* place of the newest posting + 1 */
    uint32_t documents;
} ep_term;

typedef struct ep_lexical {
    ep_term *terms; /* open addressing, a power of two of slots, at most half full */
    size_t n_terms, slots;
    ep_posting *postings;
    size_t n_postings, postings_cap;
    uint32_t *words; /* [documents] indexed words of each */
    size_t documents, documents_cap;
    uint64_t total_words;
} ep_lexical;

/* Room for that many more documents and (document, word) pairs. */
status ep_lexical_reserve(ep_lexical *x, size_t documents, size_t pairs);
/* Adds the next document: n distinct keys with counts, `total` words in all. */
void ep_lexical_add(ep_lexical *x, const uint64_t *keys, const uint16_t *counts, int n, int total);
/* Inverse document frequency of a word: how much it tells. */
double ep_lexical_idf(const ep_lexical *x, uint64_t key);
/* scores[documents] = BM25 of the n distinct keys. */
void ep_lexical_score(const ep_lexical *x, const uint64_t *keys, int n, float *scores);
void ep_lexical_free(ep_lexical *x);

#endif
