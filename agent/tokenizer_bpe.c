/*
 * Byte pair merges of one piece (Sennrich et al. 2016, algorithm 1): again and again the neighbouring pair of lowest rank
 * is merged, the leftmost of equal ones first. The symbols are a linked list in an array; a heap holds the possible
 * merges, so a piece of n bytes takes O(n log n) however long it is. A heap entry whose symbol has merged otherwise
 * since then is recognised by its rank and skipped.
 */
#include "agent/tokenizer_parts_internal.h"

/* A piece longer than this would take over half a GiB of working memory. */
enum { PIECE_BYTES_MAX = 16 << 20 };

void bpe_work_free(bpe_work *w)
{
    base_free(w->symbols);
    base_free(w->heap);
    *w = (bpe_work){0};
}

static status heap_push(bpe_work *w, uint64_t entry)
{
    if (w->heap_n == w->heap_cap) {
        void *heap = w->heap;
        TRY(base_grow(&heap, &w->heap_cap, w->heap_n + 1, (size_t)3 * PIECE_BYTES_MAX, sizeof *w->heap));
        w->heap = heap;
    }
    size_t at = w->heap_n++;
    while (at > 0 && w->heap[(at - 1) / 2] > entry) {
        w->heap[at] = w->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    w->heap[at] = entry;
    return ST_OK;
}

static uint64_t heap_pop(bpe_work *w)
{
    uint64_t top = w->heap[0], entry = w->heap[--w->heap_n];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= w->heap_n) {
            break;
        }
        if (child + 1 < w->heap_n && w->heap[child + 1] < w->heap[child]) {
            child++;
        }
        if (w->heap[child] >= entry) {
            break;
        }
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = entry;
    return top;
}

/* Looks up the merge of symbol i with its next one and puts it on the heap. */
static status offer(const tokenizer *t, bpe_work *w, int32_t i)
{
    bpe_symbol *s = &w->symbols[i];
    s->rank = s->next < 0 ? MERGE_NONE : merge_table_rank(&t->merges, s->id, w->symbols[s->next].id);
    return s->rank == MERGE_NONE ? ST_OK : heap_push(w, (uint64_t)s->rank << 32 | (uint32_t)i);
}

static status prepare(const tokenizer *t, bpe_work *w, const uint8_t *piece, size_t n)
{
    void *symbols = w->symbols;
    TRY(base_grow(&symbols, &w->symbols_cap, n, PIECE_BYTES_MAX, sizeof *w->symbols));
    w->symbols = symbols;
    for (size_t i = 0; i < n; i++) {
        w->symbols[i] = (bpe_symbol){.id = t->byte_ids[piece[i]],
                .previous = (int32_t)i - 1,
                .next = i + 1 < n ? (int32_t)i + 1 : -1};
        REQUIRE(w->symbols[i].id >= 0);
    }
    w->heap_n = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        TRY(offer(t, w, (int32_t)i));
    }
    return ST_OK;
}

static status merge_all(const tokenizer *t, bpe_work *w)
{
    while (w->heap_n > 0) {
        uint64_t entry = heap_pop(w);
        int32_t i = (int32_t)(entry & UINT32_MAX);
        uint32_t rank = (uint32_t)(entry >> 32);
        bpe_symbol *left = &w->symbols[i];
        if (left->id < 0 || left->rank != rank) {
            continue;
        }
        bpe_symbol *right = &w->symbols[left->next];
        left->id = t->merges.result[rank];
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            w->symbols[left->next].previous = i;
        }
        TRY(offer(t, w, i));
        if (left->previous >= 0) {
            TRY(offer(t, w, left->previous));
        }
    }
    return ST_OK;
}

status bpe_encode(const tokenizer *t, bpe_work *w, const uint8_t *piece, size_t n, token_list *out)
{
    if (n == 1) {
        return token_list_push(out, t->byte_ids[piece[0]]);
    }
    if (t->whole_pieces) {
        int32_t id = string_table_find(&t->words, piece, n);
        if (id >= 0) {
            return token_list_push(out, id);
        }
    }
    TRY(prepare(t, w, piece, n));
    TRY(merge_all(t, w));
    for (int32_t i = 0; i >= 0; i = w->symbols[i].next) {
        TRY(token_list_push(out, w->symbols[i].id));
    }
    return ST_OK;
}
