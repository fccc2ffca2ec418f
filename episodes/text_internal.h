/*
 * text: words and sentences of a message, for the lexical index and for cutting long messages into windows.
 *
 * A word is a run of letters and digits, folded to lower case (ASCII, Latin-1, Latin Extended-A, Greek, Cyrillic) and,
 * when it is ASCII, stripped of common English endings, so that "painted" meets "painting". Scripts written without
 * spaces give one word per character. Function words yield nothing. Ill-formed UTF-8 separates words.
 *
 * Everything here is a pure function of its arguments.
 */
#ifndef EPIMEM_EPISODES_TEXT_INTERNAL_H
#define EPIMEM_EPISODES_TEXT_INTERNAL_H

#include "kernels/base.h"

enum {
    EP_WORD_BYTES_MAX = 64,  /* longer words are cut; arbitrary, longer than any real word */
    EP_CHUNK_WORDS_MAX = 90, /* about 128 word pieces of English */
    EP_CHUNK_SENTENCES_MAX = 3
};

/* One word as it stands in the text and as it is compared. */
typedef struct ep_word {
    size_t at, bytes;               /* in the text */
    char folded[EP_WORD_BYTES_MAX]; /* lower case, not stemmed, not terminated */
    size_t folded_bytes;
} ep_word;

/* Reads the next word at or after *at and moves *at behind it; false at the end of the text. */
bool ep_word_next(const char *text, size_t bytes, size_t *at, ep_word *out);
/* The word's stem as a 64-bit key; 0 for a function word or a single letter, which are not indexed. */
uint64_t ep_word_key(const ep_word *w);
/* Key of the folded word as it is, for comparing names. */
uint64_t ep_word_hash(const ep_word *w);
/* Distinct keys of a text in order of first appearance, at most `max`; counts[i] is how often keys[i] stands in it.
 * Returns how many; *total counts all indexed words, also those past max. Quadratic in max. */
int ep_text_keys(const char *text, size_t bytes, uint64_t *keys, uint16_t *counts, int max, int *total);

/* A part of a text. */
typedef struct ep_slice {
    size_t at, bytes;
} ep_slice;
/* The next piece of a long message: up to three sentences and 90 words; a longer sentence is cut between words, text
 * without spaces at character borders. Pieces overlap by one sentence where that fits. False at the end of the text. */
bool ep_chunk_next(const char *text, size_t bytes, size_t *at, ep_slice *out);
/* Words in the text, at most `max` of them counted. */
int ep_text_words(const char *text, size_t bytes, int max);
/* Largest prefix of at most `max` bytes that ends at a character border. */
size_t ep_text_cut(const char *text, size_t bytes, size_t max);

#endif
