/*
 * Host plan of the CUDA attention: lists of spans -> tiles and items (attend_layout.h).
 *
 * Image, from its start: items [n_blocks], counters (zero), tiles. Items that are not used have no heads. The long items
 * come first, so that the last blocks to start are short ones; that order decides where work runs, not what comes out.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attend.h"

enum {
    TILES_MIN_DEFAULT = 8, /* one for each warp of a block */
    GROUP_MAX = 16,
    ALIGNMENT = 128
};

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- how a group of query heads is divided into passes ---- */

static int group_of(const cuda_attend_shape *s)
{
    return s->q_heads / s->kv_heads;
}

static int heads_per_pass(const cuda_attend_shape *s)
{
    return attend_heads_per_pass(s->d, group_of(s));
}

static int passes_of(const cuda_attend_shape *s)
{
    return (group_of(s) + heads_per_pass(s) - 1) / heads_per_pass(s);
}

/* ---- how a list is cut: a function of its length and its variants ---- */

/* Tiles of an item at most. */
static int64_t item_tiles(const cuda_attend_shape *s, const cuda_attend_policy *p, int64_t n_tiles)
{
    int tiles_min = p->tiles_min > 0 ? p->tiles_min : TILES_MIN_DEFAULT;
    int each = p->items_per_multiprocessor > 0 ? p->items_per_multiprocessor
            : n_tiles > ATTEND_LONG_TILES      ? 2
                                               : 1;
    int64_t slots = (int64_t)each * s->multiprocessors / (s->kv_heads * passes_of(s));
    slots = slots < 1 ? 1 : slots > ATTEND_CHUNKS_MAX ? ATTEND_CHUNKS_MAX : slots;
    int64_t even = (n_tiles + slots - 1) / slots;
    return even < tiles_min ? tiles_min : even;
}

int64_t cuda_attend_items(
        const cuda_attend_shape *s, const cuda_attend_policy *policy, const int64_t *tiles, int n_lists)
{
    int64_t items = 0;
    for (int i = 0; i < n_lists; i++) {
        int64_t each = item_tiles(s, policy, tiles[i]);
        items += tiles[i] == 0 ? 1 : (tiles[i] + each - 1) / each;
    }
    return items * passes_of(s);
}

size_t cuda_attend_image_bytes(const cuda_attend_shape *s, int64_t n_lists, int64_t n_items, int64_t n_tiles)
{
    return (size_t)(aligned((uint64_t)n_items * sizeof(attend_item)) +
            aligned((uint64_t)(n_lists * passes_of(s)) * sizeof(uint32_t)) +
            aligned((uint64_t)n_tiles * sizeof(attend_tile)));
}

/* ---- building ---- */

typedef struct builder {
    const cuda_attend_shape *shape;
    const cuda_attend_policy *policy;
    attend_item *items;
    attend_tile *tiles;
    int64_t n_items, items_max, n_tiles, tiles_max;
    uint32_t n_partials;
    err *e;
} builder;

/* Variants that an item has met, in the order in which it met them. */
typedef struct variant_set {
    uint16_t id[ATTEND_LOCAL_VARIANTS];
    int n;
} variant_set;

/* Index in the set, added if need be; -1 when it is full. */
static int variant_index(variant_set *set, int variant)
{
    for (int i = 0; i < set->n; i++) {
        if (set->id[i] == variant) {
            return i;
        }
    }
    if (set->n == ATTEND_LOCAL_VARIANTS) {
        return -1;
    }
    set->id[set->n] = (uint16_t)variant;
    return set->n++;
}

/* A chunk of a list while it grows. */
typedef struct chunk {
    int64_t first_tile, n_tiles;
    variant_set variants;
} chunk;

/* Takes one more tile into the chunk and says its variant's index; -1 when the chunk must end before that tile. */
static int take_tile(chunk *c, int64_t tiles_max, int variant)
{
    int local = c->n_tiles < tiles_max ? variant_index(&c->variants, variant) : -1;
    c->n_tiles += local >= 0 ? 1 : 0;
    return local;
}

static int64_t span_tiles(const krn_span *span)
{
    if (span->kind == KRN_SPAN_PAGE) {
        return span->rows > 0 ? 1 : 0;
    }
    return (span->rows + ATTEND_BF16_ROWS - 1) / ATTEND_BF16_ROWS;
}

static status check_span(const builder *b, const krn_span *span)
{
    bool is_page = span->kind == KRN_SPAN_PAGE;
    if (span->rows < 0 || (is_page && span->rows > KRN_PAGE_ROWS) || span->variant < 0 ||
            span->variant > UINT16_MAX) {
        return FAIL(b->e, ST_ERR_ARG, "attention span of %d rows, variant %d", span->rows, span->variant);
    }
    int64_t apart = (int64_t)((uint64_t)(uintptr_t)span->v - (uint64_t)(uintptr_t)span->k);
    if ((uintptr_t)span->k % 16 != 0 || (!is_page && (uintptr_t)span->v % 16 != 0)) {
        return FAIL(b->e, ST_ERR_UNSUPPORTED, "attention span at %p is not aligned to 16 bytes", span->k);
    }
    if (!is_page && (apart / 16 > INT32_MAX || apart / 16 < INT32_MIN)) {
        return FAIL(b->e, ST_ERR_UNSUPPORTED, "values %lld bytes from their keys; 32 GiB are possible",
                (long long)apart);
    }
    return ST_OK;
}

/* Tile number `index` of a span; its variant is left to the caller. */
static attend_tile tile_of(const krn_span *span, int64_t index, int d)
{
    attend_tile t = {
            .at = (uint64_t)(uintptr_t)span->k, .rows = (uint8_t)span->rows, .kind = ATTEND_TILE_PAGE};
    if (span->kind == KRN_SPAN_BF16) {
        int64_t first = index * ATTEND_BF16_ROWS, rows = span->rows - first;
        t.at += (uint64_t)(first * d * 2);
        t.v_after16 = (int32_t)((int64_t)((uint64_t)(uintptr_t)span->v - (uint64_t)(uintptr_t)span->k) / 16);
        t.rows = (uint8_t)(rows < ATTEND_BF16_ROWS ? rows : ATTEND_BF16_ROWS);
        t.kind = ATTEND_TILE_BF16;
    }
    return t;
}

/* Writes the items of a finished chunk, one per pass; list, chunk count and partials are filled in by finish_list. */
static status add_chunk(builder *b, const chunk *c, int number)
{
    int passes = passes_of(b->shape);
    if (b->n_items + passes > b->items_max) {
        return FAIL(b->e, ST_ERR_LIMIT, "attention plan needs more than %lld items", (long long)b->items_max);
    }
    if (number >= ATTEND_CHUNKS_MAX) {
        return FAIL(b->e, ST_ERR_LIMIT, "attention list needs more than %d items", (int)ATTEND_CHUNKS_MAX);
    }
    for (int pass = 0; pass < passes; pass++) {
        int each = heads_per_pass(b->shape), left = group_of(b->shape) - pass * each;
        attend_item *item = &b->items[b->n_items++];
        *item = (attend_item){.first_tile = (uint32_t)c->first_tile,
                .n_tiles = (uint32_t)c->n_tiles,
                .chunk = (uint16_t)number,
                .first_head = (uint16_t)(pass * each),
                .n_heads = (uint16_t)(left < each ? left : each),
                .n_variants = (uint16_t)c->variants.n};
        memcpy(item->variants, c->variants.id, sizeof item->variants);
    }
    return ST_OK;
}

static int64_t list_tiles(const cuda_attend_list *list)
{
    int64_t total = 0;
    for (int i = 0; i < list->n_spans; i++) {
        total += span_tiles(&list->spans[i]);
    }
    return total;
}

/* Chunks that cut_list will make of a list. */
static int64_t count_chunks(
        const cuda_attend_shape *s, const cuda_attend_policy *p, const cuda_attend_list *list)
{
    int64_t each = item_tiles(s, p, list_tiles(list)), chunks = 1;
    chunk c = {0};
    for (int i = 0; i < list->n_spans; i++) {
        for (int64_t t = 0; t < span_tiles(&list->spans[i]); t++) {
            if (take_tile(&c, each, list->spans[i].variant) < 0) {
                c = (chunk){0};
                (void)take_tile(&c, each, list->spans[i].variant);
                chunks++;
            }
        }
    }
    return chunks;
}

/* Cuts one list into chunks of `each` tiles, fewer where one would meet too many variants. */
static status cut_list(builder *b, const cuda_attend_list *list, int *n_chunks)
{
    for (int i = 0; i < list->n_spans; i++) {
        TRY(check_span(b, &list->spans[i]));
    }
    int64_t total = list_tiles(list), each = item_tiles(b->shape, b->policy, total);
    if (total > b->tiles_max - b->n_tiles) {
        return FAIL(b->e, ST_ERR_LIMIT, "attention plan needs more than %lld tiles", (long long)b->tiles_max);
    }
    chunk c = {.first_tile = b->n_tiles};
    *n_chunks = 0;
    for (int i = 0; i < list->n_spans; i++) {
        const krn_span *span = &list->spans[i];
        for (int64_t t = 0; t < span_tiles(span); t++) {
            int local = take_tile(&c, each, span->variant);
            if (local < 0) {
                TRY(add_chunk(b, &c, (*n_chunks)++));
                c = (chunk){.first_tile = b->n_tiles};
                local = take_tile(&c, each, span->variant);
            }
            attend_tile *tile = &b->tiles[b->n_tiles++];
            *tile = tile_of(span, t, b->shape->d);
            tile->variant = (uint8_t)local;
        }
    }
    return add_chunk(b, &c, (*n_chunks)++);
}

/* Gives the items [first, b->n_items) of one list their sequence, head, counter and room for partial results. */
static void finish_list(builder *b, int64_t first, int n_chunks, int sequence, int kv_head, uint32_t list)
{
    int passes = passes_of(b->shape);
    for (int64_t i = first; i < b->n_items; i++) {
        attend_item *item = &b->items[i];
        uint32_t pass = (uint32_t)((i - first) % passes);
        item->sequence = (uint32_t)sequence;
        item->kv_head = (uint16_t)kv_head;
        item->n_chunks = (uint16_t)n_chunks;
        item->counter = list * (uint32_t)passes + pass;
        item->first_partial = b->n_partials + pass * (uint32_t)n_chunks;
    }
    b->n_partials += n_chunks > 1 ? (uint32_t)(passes * n_chunks) : 0;
}

/* A shared list's items once more, for another head. */
static status repeat_items(builder *b, int64_t first, int64_t n)
{
    if (b->n_items + n > b->items_max) {
        return FAIL(b->e, ST_ERR_LIMIT, "attention plan needs more than %lld items", (long long)b->items_max);
    }
    memcpy(&b->items[b->n_items], &b->items[first], (size_t)n * sizeof *b->items);
    b->n_items += n;
    return ST_OK;
}

static status build_sequence(builder *b, const cuda_attend_list *lists, int sequence, bool shared)
{
    int heads = b->shape->kv_heads, n_chunks = 0;
    int64_t first = b->n_items, each = 0;
    for (int head = 0; head < heads; head++) {
        int64_t before = b->n_items;
        uint32_t list = (uint32_t)(sequence * heads + head);
        if (head == 0 || !shared) {
            TRY(cut_list(b, &lists[shared ? sequence : sequence * heads + head], &n_chunks));
            each = b->n_items - before;
        } else {
            TRY(repeat_items(b, first, each));
        }
        finish_list(b, before, n_chunks, sequence, head, list);
    }
    return ST_OK;
}

static int longer_first(const void *a, const void *b)
{
    const attend_item *x = a, *y = b;
    if (x->n_tiles != y->n_tiles) {
        return x->n_tiles > y->n_tiles ? -1 : 1;
    }
    if (x->counter != y->counter) {
        return x->counter < y->counter ? -1 : 1;
    }
    return (int)x->chunk - (int)y->chunk;
}

static status check_shape(const cuda_attend_shape *s, int n_sequences, err *e)
{
    bool good = (s->d == 64 || s->d == 128 || s->d == 256) && s->kv_heads > 0 && s->kv_heads <= UINT16_MAX &&
            s->q_heads > 0 && s->q_heads % s->kv_heads == 0 && group_of(s) <= GROUP_MAX &&
            s->multiprocessors > 0 && n_sequences > 0;
    if (!good) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "attention of %d query heads on %d KV heads of %d channels (64, 128 or 256; groups of 1 to "
                "%d)",
                s->q_heads, s->kv_heads, s->d, (int)GROUP_MAX);
    }
    return ST_OK;
}

status cuda_attend_plan_make(const cuda_attend_shape *s,
        const cuda_attend_policy *policy,
        const cuda_attend_list *lists,
        int n_sequences,
        bool shared,
        void *image,
        size_t image_bytes,
        cuda_attend_plan *out,
        err *e)
{
    TRY(check_shape(s, n_sequences, e));
    uint64_t counters = (uint64_t)n_sequences * (uint64_t)s->kv_heads * (uint64_t)passes_of(s);
    uint64_t counter_bytes = aligned(counters * sizeof(uint32_t));
    int64_t blocks = policy->items_capacity > 0 ? policy->items_capacity : 0;
    for (int i = 0; policy->items_capacity <= 0 && i < n_sequences * (shared ? 1 : s->kv_heads); i++) {
        blocks += count_chunks(s, policy, &lists[i]) * passes_of(s) * (shared ? s->kv_heads : 1);
    }
    uint64_t item_bytes = aligned((uint64_t)blocks * sizeof(attend_item));
    if (image_bytes < item_bytes + counter_bytes) {
        return FAIL(e, ST_ERR_LIMIT, "attention plan: %zu bytes hold no image of %lld items", image_bytes,
                (long long)blocks);
    }
    char *base = image;
    builder b = {.shape = s, .policy = policy, .items = image, .items_max = blocks, .e = e};
    b.tiles = (attend_tile *)(void *)(base + item_bytes + counter_bytes);
    b.tiles_max = (int64_t)((image_bytes - item_bytes - counter_bytes) / sizeof(attend_tile));
    for (int i = 0; i < n_sequences; i++) {
        TRY(build_sequence(&b, lists, i, shared));
    }
    memset(&b.items[b.n_items], 0, (size_t)(blocks - b.n_items) * sizeof *b.items);
    memset(base + item_bytes, 0, counter_bytes);
    qsort(b.items, (size_t)b.n_items, sizeof *b.items, longer_first);

    cuda_attend_plan plan = {
            .n_items = (int)b.n_items, .n_blocks = (int)blocks, .n_sequences = n_sequences, .shared = shared};
    plan.counters_at = item_bytes;
    plan.tiles_at = item_bytes + counter_bytes;
    plan.image_bytes = plan.tiles_at + (uint64_t)b.n_tiles * sizeof(attend_tile);
    plan.partials_at = aligned(plan.tiles_at + (uint64_t)b.tiles_max * sizeof(attend_tile));
    uint64_t partial_bytes = (uint64_t)heads_per_pass(s) * (uint64_t)(s->d + 2) * sizeof(float);
    plan.workspace_bytes = plan.partials_at + (uint64_t)b.n_partials * partial_bytes;
    *out = plan;
    return ST_OK;
}
