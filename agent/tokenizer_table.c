/* The two hash tables behind the tokenizers: open addressing, built once, at most half full, never resized. */
#include <string.h>
#include <xxhash.h>

#include "agent/tokenizer_parts_internal.h"

/* Slots for that many entries: a power of two, twice as many or more. 0: too many. */
static size_t slots_for(size_t entries)
{
    size_t n = 16;
    if (entries > (size_t)1 << 30) {
        return 0;
    }
    while (n < entries * 2) {
        n *= 2;
    }
    return n;
}

status string_table_init(string_table *s, size_t strings_max)
{
    *s = (string_table){.n_slots = slots_for(strings_max)};
    if (s->n_slots == 0) {
        return ST_ERR_LIMIT;
    }
    s->slots = base_zalloc(s->n_slots, sizeof *s->slots);
    if (s->slots == NULL) {
        return ST_ERR_MEMORY;
    }
    for (size_t i = 0; i < s->n_slots; i++) {
        s->slots[i].id = -1;
    }
    return ST_OK;
}

void string_table_free(string_table *s)
{
    base_free(s->slots);
    *s = (string_table){0};
}

/* The slot of that string, or the free one where it belongs. */
static string_slot *string_slot_of(const string_table *s, const uint8_t *bytes, size_t n)
{
    size_t i = (size_t)XXH3_64bits(bytes, n) & (s->n_slots - 1);
    for (;; i = (i + 1) & (s->n_slots - 1)) {
        string_slot *slot = &s->slots[i];
        if (slot->id < 0 || (slot->n == n && memcmp(slot->bytes, bytes, n) == 0)) {
            return slot;
        }
    }
}

void string_table_add(string_table *s, const uint8_t *bytes, size_t n, int32_t id)
{
    string_slot *slot = string_slot_of(s, bytes, n);
    if (slot->id < 0 && n <= UINT32_MAX) {
        *slot = (string_slot){.bytes = bytes, .n = (uint32_t)n, .id = id};
    }
}

int32_t string_table_find(const string_table *s, const uint8_t *bytes, size_t n)
{
    return string_slot_of(s, bytes, n)->id;
}

status merge_table_init(merge_table *m, size_t merges)
{
    *m = (merge_table){.n_slots = slots_for(merges)};
    if (m->n_slots == 0) {
        return ST_ERR_LIMIT;
    }
    m->slots = base_zalloc(m->n_slots, sizeof *m->slots);
    m->result = base_zalloc(merges + 1, sizeof *m->result);
    if (m->slots == NULL || m->result == NULL) {
        return ST_ERR_MEMORY;
    }
    for (size_t i = 0; i < m->n_slots; i++) {
        m->slots[i].left = -1;
    }
    return ST_OK;
}

void merge_table_free(merge_table *m)
{
    base_free(m->slots);
    base_free(m->result);
    *m = (merge_table){0};
}

static merge_slot *merge_slot_of(const merge_table *m, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    /* Fibonacci hashing: the upper bits of the product depend on all bits of the pair. */
    size_t i = (size_t)((pair ^ pair >> 29) * 0x9e3779b97f4a7c15u >> 32) & (m->n_slots - 1);
    for (;; i = (i + 1) & (m->n_slots - 1)) {
        merge_slot *slot = &m->slots[i];
        if (slot->left < 0 || (slot->left == left && slot->right == right)) {
            return slot;
        }
    }
}

void merge_table_add(merge_table *m, int32_t left, int32_t right, uint32_t rank, int32_t result)
{
    merge_slot *slot = merge_slot_of(m, left, right);
    if (slot->left < 0) {
        *slot = (merge_slot){.left = left, .right = right, .rank = rank};
        m->result[rank] = result;
    }
}

uint32_t merge_table_rank(const merge_table *m, int32_t left, int32_t right)
{
    const merge_slot *slot = merge_slot_of(m, left, right);
    return slot->left < 0 ? MERGE_NONE : slot->rank;
}
