#include "episodes/lexical_internal.h"

#include <math.h>
#include <string.h>

/* Saturation of repeated words and weight of the length: the usual values, as in the reference measurements. */
static const double saturation = 1.2, length_weight = 0.75;

static size_t slot_of(const ep_term *terms, size_t slots, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (slots - 1);
    while (terms[i].key != 0 && terms[i].key != key) {
        i = (i + 1) & (slots - 1);
    }
    return i;
}

static status grow_terms(ep_lexical *x, size_t need)
{
    size_t slots = x->slots < 64 ? 64 : x->slots;
    while (slots < 2 * need) {
        slots *= 2;
    }
    if (slots == x->slots) {
        return ST_OK;
    }
    ep_term *terms = base_zalloc(slots, sizeof *terms);
    if (terms == NULL) {
        return ST_ERR_MEMORY;
    }
    for (size_t i = 0; i < x->slots; i++) {
        if (x->terms[i].key != 0) {
            terms[slot_of(terms, slots, x->terms[i].key)] = x->terms[i];
        }
    }
    base_free(x->terms);
    x->terms = terms;
    x->slots = slots;
    return ST_OK;
}

status ep_lexical_reserve(ep_lexical *x, size_t documents, size_t pairs)
{
    TRY(grow_terms(x, x->n_terms + pairs));
    void *postings = x->postings, *words = x->words;
    TRY(base_grow(&postings, &x->postings_cap, x->n_postings + pairs, UINT32_MAX - 1, sizeof *x->postings));
    x->postings = postings;
    TRY(base_grow(&words, &x->documents_cap, x->documents + documents, UINT32_MAX, sizeof *x->words));
    x->words = words;
    return ST_OK;
}

void ep_lexical_add(ep_lexical *x, const uint64_t *keys, const uint16_t *counts, int n, int total)
{
    REQUIRE(x->documents < x->documents_cap && x->n_postings + (size_t)n <= x->postings_cap);
    for (int i = 0; i < n; i++) {
        ep_term *term = &x->terms[slot_of(x->terms, x->slots, keys[i])];
        if (term->key == 0) {
            term->key = keys[i];
            x->n_terms++;
            REQUIRE(2 * x->n_terms <= x->slots);
        }
        x->postings[x->n_postings] = (ep_posting){(uint32_t)x->documents, term->last, counts[i]};
        term->last = (uint32_t)++x->n_postings;
        term->documents++;
    }
    x->words[x->documents++] = (uint32_t)total;
    x->total_words += (uint64_t)total;
}

static double idf_of(const ep_lexical *x, uint32_t documents)
{
    return log(1 + ((double)x->documents - documents + 0.5) / (documents + 0.5));
}

double ep_lexical_idf(const ep_lexical *x, uint64_t key)
{
    return idf_of(x, x->slots == 0 ? 0 : x->terms[slot_of(x->terms, x->slots, key)].documents);
}

void ep_lexical_score(const ep_lexical *x, const uint64_t *keys, int n, float *scores)
{
    memset(scores, 0, x->documents * sizeof *scores);
    if (x->total_words == 0) {
        return;
    }
    float length_share = (float)(length_weight * (double)x->documents / (double)x->total_words);
    for (int i = 0; i < n; i++) {
        const ep_term *term = &x->terms[slot_of(x->terms, x->slots, keys[i])];
        float gain = (float)(idf_of(x, term->documents) * (saturation + 1));
        for (uint32_t p = term->last; p != 0; p = x->postings[p - 1].before) {
            const ep_posting *posting = &x->postings[p - 1];
            float length = (float)(1 - length_weight) + length_share * (float)x->words[posting->document];
            float count = posting->count;
            scores[posting->document] += gain * count / (count + (float)saturation * length);
        }
    }
}

void ep_lexical_free(ep_lexical *x)
{
    base_free(x->terms);
    base_free(x->postings);
    base_free(x->words);
    *x = (ep_lexical){0};
}
