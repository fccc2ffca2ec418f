/* A stand-in sentence encoder and a dump of an index's whole logical state, for the tests of episodes. */
#ifndef EPIMEM_TEST_EPISODES_UTIL_H
#define EPIMEM_TEST_EPISODES_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

enum { DIM = 384 };

/* Counts calls; fails at the fail_at-th text (0: never). Words become random signs over the dimensions, so texts that
 * share content words have a cosine. */
typedef struct stand_in {
    int calls, texts, fail_at;
    size_t longest;
} stand_in;

static inline status stand_in_embed(
        void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    stand_in *s = ctx;
    s->calls++;
    for (int i = 0; i < n; i++) {
        float *v = out + (size_t)i * DIM;
        size_t at = 0;
        ep_word word;
        memset(v, 0, DIM * sizeof *v);
        if (++s->texts == s->fail_at) {
            return FAIL(e, ST_ERR_DEVICE, "the stand-in was told to fail");
        }
        s->longest = bytes[i] > s->longest ? bytes[i] : s->longest;
        while (ep_word_next(texts[i], bytes[i], &at, &word)) {
            uint64_t key = ep_word_key(&word);
            for (int d = 0; key != 0 && d < DIM; d++) {
                uint64_t z = key + (uint64_t)d * 0x9e3779b97f4a7c15u;
                z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
                z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
                v[d] += (z >> 63) != 0 ? 1.0f : -1.0f;
            }
        }
        (void)ep_unit(v, DIM);
    }
    return ST_OK;
}

static inline ep_model_ops stand_in_ops(stand_in *s)
{
    return (ep_model_ops){.ctx = s, .dim = DIM, .floor = 0.3f, .embed = stand_in_embed};
}

static inline ep_index *index_with(stand_in *s, const ep_options *o)
{
    ep_options defaults;
    ep_model_ops ops = stand_in_ops(s);
    ep_index *x = NULL;
    err e = {0};
    ep_options_default(&defaults);
    assert_int_equal(ep_index_open(o != NULL ? o : &defaults, &ops, &x, &e), ST_OK);
    return x;
}

static inline ep_utterance said(const char *speaker, const char *text)
{
    return (ep_utterance){.speaker = speaker, .text = text, .text_bytes = strlen(text), .tokens = 10};
}

/* Appends one; rows and turns follow the last utterance. */
static inline void tell(ep_index *x, const char *speaker, const char *text, int64_t day)
{
    ep_utterance u = said(speaker, text);
    err e = {0};
    u.has_time = day >= 0;
    u.time_us = day * 86400000000;
    u.turn = ep_index_utterances(x);
    u.first_token = u.turn * 10;
    assert_int_equal(ep_index_append(x, &u, 1, &e), ST_OK);
}

static inline void dump_bytes(base_buf *b, const void *p, size_t n)
{
    assert_int_equal(base_buf_append(b, p, n), ST_OK);
}

static inline void dump_number(base_buf *b, int64_t n)
{
    dump_bytes(b, &n, sizeof n);
}

static inline void dump_vectors(base_buf *b, const ep_vectors *p)
{
    dump_number(b, p->count);
    dump_bytes(b, p->levels, (size_t)p->count * ((size_t)p->dim / 2));
    dump_bytes(b, p->rests, (size_t)p->count * ((size_t)p->dim / 2));
    dump_bytes(b, p->scales, (size_t)p->count * sizeof *p->scales);
}

static inline void dump_items(base_buf *b, const ep_index *x)
{
    dump_number(b, x->n_items);
    for (int64_t i = 0; i < x->n_items; i++) {
        const ep_item *u = &x->items[i];
        const int64_t fields[] = {(int64_t)u->text_at, u->speaker, u->has_time, u->time_us, u->turn,
                u->first_token, u->tokens, u->run_at, u->first_window, u->first_part, u->parts, u->segment};
        dump_bytes(b, u->line, u->line_bytes);
        dump_bytes(b, fields, sizeof fields);
    }
    dump_bytes(b, x->part_owners, (size_t)x->parts.count * sizeof *x->part_owners);
    dump_number(b, x->n_speakers);
    for (int32_t i = 0; i < x->n_speakers; i++) {
        dump_number(b, (int64_t)x->speakers[i].name);
        dump_number(b, x->speakers[i].n_words);
    }
}

static inline void dump_lexical(base_buf *b, const ep_lexical *l)
{
    dump_number(b, (int64_t)l->n_terms);
    dump_number(b, (int64_t)l->total_words);
    for (size_t i = 0; i < l->n_postings; i++) {
        dump_number(b, l->postings[i].document);
        dump_number(b, l->postings[i].before);
        dump_number(b, l->postings[i].count);
    }
    dump_bytes(b, l->words, l->documents * sizeof *l->words);
}

static inline void dump_episodes(base_buf *b, const ep_index *x)
{
    dump_number(b, x->n_segments);
    for (int64_t s = 0; s < x->n_segments; s++) {
        const ep_segment *seg = &x->segments[s];
        const int64_t fields[] = {seg->first, seg->utterances, seg->tokens, seg->episode};
        dump_bytes(b, fields, sizeof fields);
    }
    dump_number(b, x->next_id);
    dump_number(b, x->n_groups);
    for (int g = 0; g < x->n_groups; g++) {
        const ep_group *group = &x->groups[g];
        dump_number(b, group->id);
        dump_bytes(b, group->members, (size_t)group->n_members * sizeof *group->members);
        dump_bytes(b, group->title, strlen(group->title));
    }
    dump_bytes(b, x->centroids, (size_t)x->n_groups * (size_t)x->dim * sizeof *x->centroids);
    dump_bytes(b, x->tail_title, strlen(x->tail_title));
}

static inline void dump_index(base_buf *b, const ep_index *x)
{
    *b = (base_buf){.max = (size_t)1 << 30};
    dump_items(b, x);
    dump_vectors(b, &x->named);
    dump_vectors(b, &x->bare);
    dump_vectors(b, &x->parts);
    dump_vectors(b, &x->segment_vectors);
    dump_lexical(b, &x->lexical);
    dump_episodes(b, x);
}

static inline void assert_same_state(const ep_index *a, const ep_index *b)
{
    base_buf da, db;
    dump_index(&da, a);
    dump_index(&db, b);
    assert_int_equal(da.size, db.size);
    assert_memory_equal(da.data, db.data, da.size);
    base_buf_free(&da);
    base_buf_free(&db);
}

#endif
