/*
 * Host plan of the CUDA attention: lists of spans -> tiles and items (attend_layout.h).
 *
 * Image, from its start: items [n_blocks], counters (zero), tiles. Items that are not used have no heads. Lists of long
 * items come first, so that the last blocks to start are short ones; that order decides where work runs, not what comes
 * out. With clusters, a (list, pass) has plan.cluster items to itself.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/attend.h"

enum {
    TILES_MIN_DEFAULT = 8, /* one for each warp of a block */
    BLOCKS_AT_ONCE = 2,    /* on a multiprocessor */
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

/* Blocks of a cluster for lists of at most so many chunks; 1 for none. */
static int cluster_of(const cuda_attend_policy *p, int64_t chunks)
{
    int cluster = 1, most = p->cluster > 0 ? p->cluster : ATTEND_CLUSTER_MAX;
    while (cluster < chunks && cluster <= ATTEND_CLUSTER_MAX) {
        cluster *= 2;
    }
    return cluster <= most && cluster <= ATTEND_CLUSTER_MAX ? cluster : 1;
}

int64_t cuda_attend_items(
        const cuda_attend_shape *s, const cuda_attend_policy *policy, const int64_t *tiles, int n_lists)
{
    int64_t items = 0, longest = 1;
    for (int i = 0; i < n_lists; i++) {
        int64_t each = item_tiles(s, policy, tiles[i]),
                chunks = tiles[i] == 0 ? 1 : (tiles[i] + each - 1) / each;
        items += chunks;
        longest = chunks > longest ? chunks : longest;
    }
    int cluster = cluster_of(policy, longest);
    return (cluster > 1 ? (int64_t)n_lists * cluster : items) * passes_of(s);
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
    int gather; /* chunks of an item at most */
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
    bool has_rows;
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
                .n_own = 1,
                .has_rows = c->has_rows,
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
static status cut_list(builder *b, const cuda_attend_list *list, int64_t each, int *n_chunks)
{
    for (int i = 0; i < list->n_spans; i++) {
        TRY(check_span(b, &list->spans[i]));
    }
    int64_t total = list_tiles(list);
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
            c.has_rows |= span->kind == KRN_SPAN_BF16;
        }
    }
    return add_chunk(b, &c, (*n_chunks)++);
}

/* Takes chunk `next` (its passes' items) into the items `to` before it, if their tiles are in full chunks of `each` and
 * an item's variants can hold those of both. */
static bool gather_chunk(builder *b, attend_item *to, const attend_item *next, int64_t each)
{
    variant_set set = {.n = to->n_variants};
    int map[ATTEND_LOCAL_VARIANTS];
    memcpy(set.id, to->variants, sizeof set.id);
    if (to->n_own >= (uint32_t)b->gather || (int64_t)to->n_tiles != each * (int64_t)to->n_own) {
        return false;
    }
    for (int i = 0; i < next->n_variants; i++) {
        map[i] = variant_index(&set, next->variants[i]);
        if (map[i] < 0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < next->n_tiles; i++) {
        attend_tile *tile = &b->tiles[next->first_tile + i];
        tile->variant = (uint8_t)map[tile->variant];
    }
    for (int pass = 0; pass < passes_of(b->shape); pass++) {
        to[pass].n_tiles += next->n_tiles;
        to[pass].n_own++;
        to[pass].has_rows |= next->has_rows;
        to[pass].n_variants = (uint16_t)set.n;
        memcpy(to[pass].variants, set.id, sizeof set.id);
    }
    return true;
}

/* Gathers neighbouring chunks of the items [first, b->n_items) of one list into fewer items. */
static void gather_chunks(builder *b, int64_t first, int64_t each)
{
    int64_t passes = passes_of(b->shape), to = first;
    for (int64_t i = first + passes; i < b->n_items; i += passes) {
        if (!gather_chunk(b, &b->items[to], &b->items[i], each)) {
            to += passes;
            memmove(&b->items[to], &b->items[i], (size_t)passes * sizeof *b->items);
        }
    }
    b->n_items = to + passes;
}

/* Gives the items [first, b->n_items) of one list their sequence, head, counter and room for partial results. */
static void finish_list(builder *b,
        int64_t first,
        int64_t chunk_tiles,
        int n_chunks,
        int sequence,
        int kv_head,
        uint32_t list)
{
    int passes = passes_of(b->shape);
    for (int64_t i = first; i < b->n_items; i++) {
        attend_item *item = &b->items[i];
        item->chunk_tiles = (uint32_t)chunk_tiles;
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
    int64_t first = b->n_items, n = 0;
    for (int head = 0; head < heads; head++) {
        int64_t before = b->n_items;
        uint32_t list = (uint32_t)(sequence * heads + head);
        const cuda_attend_list *spans = &lists[shared ? sequence : sequence * heads + head];
        int64_t total = list_tiles(spans), each = item_tiles(b->shape, b->policy, total);
        if (head == 0 || !shared) {
            TRY(cut_list(b, spans, each, &n_chunks));
            gather_chunks(b, before, each);
            n = b->n_items - before;
        } else {
            TRY(repeat_items(b, first, n));
        }
        finish_list(b, before, each < total ? each : total, n_chunks, sequence, head, list);
    }
    return ST_OK;
}

static int longer_first(const void *a, const void *b)
{
    const attend_item *x = a, *y = b;
    if (x->chunk_tiles != y->chunk_tiles) {
        return x->chunk_tiles > y->chunk_tiles ? -1 : 1;
    }
    if (x->counter != y->counter) {
        return x->counter < y->counter ? -1 : 1;
    }
    return (int)x->chunk - (int)y->chunk;
}

/* Moves the items, sorted and side by side, to their places: (list, pass) number g has [g * cluster, (g + 1) * cluster). */
static void spread_clusters(builder *b, int cluster, int64_t n_groups)
{
    int64_t group = n_groups, end = n_groups * cluster;
    uint32_t counter = UINT32_MAX; /* of the group; no group has this one */
    for (int64_t i = b->n_items - 1; i >= 0; i--) {
        attend_item item = b->items[i];
        group -= item.counter != counter ? 1 : 0;
        counter = item.counter;
        int64_t to = group * cluster + item.chunk;
        memset(&b->items[to + 1], 0, (size_t)(end - to - 1) * sizeof item);
        b->items[to] = item;
        end = to;
    }
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

/* What the lists come to. */
typedef struct extent {
    int64_t lists, items, tiles, longest; /* (list, pass); items of all; tiles of all; chunks of one list */
} extent;

static extent measure(const cuda_attend_shape *s,
        const cuda_attend_policy *policy,
        const cuda_attend_list *lists,
        int n_sequences,
        bool shared)
{
    extent x = {.lists = (int64_t)n_sequences * s->kv_heads * passes_of(s), .longest = 1};
    for (int i = 0; i < n_sequences * (shared ? 1 : s->kv_heads); i++) {
        int64_t chunks = count_chunks(s, policy, &lists[i]);
        x.items += chunks * passes_of(s) * (shared ? s->kv_heads : 1);
        x.tiles += list_tiles(&lists[i]);
        x.longest = chunks > x.longest ? chunks : x.longest;
    }
    return x;
}

/* Chunks of an item: more than one where there are more than all blocks at once can take. */
static int gather_of(const cuda_attend_shape *s, const extent *x)
{
    int64_t at_once = (int64_t)BLOCKS_AT_ONCE * s->multiprocessors;
    return (int)((x->items + at_once - 1) / at_once);
}

/* Divides the image: items, counters, tiles, as far as these are known. Clusters are dropped where there is no room for
 * them, or where more than half of their blocks would be idle. */
static void divide_image(const cuda_attend_shape *s,
        const extent *x,
        const cuda_attend_policy *policy,
        size_t image_bytes,
        cuda_attend_plan *plan)
{
    int cluster = gather_of(s, x) > 1 ? 1 : cluster_of(policy, x->longest);
    for (;; cluster = 1) {
        int64_t needed = cluster > 1 ? x->lists * cluster : x->items;
        int64_t blocks = policy->items_capacity > 0 ? policy->items_capacity : needed;
        plan->cluster = cluster;
        plan->n_blocks = (int)blocks;
        plan->counters_at = aligned((uint64_t)blocks * sizeof(attend_item));
        plan->tiles_at = plan->counters_at + aligned((uint64_t)x->lists * sizeof(uint32_t));
        bool fits = needed <= blocks && blocks % cluster == 0 &&
                plan->tiles_at + (uint64_t)x->tiles * sizeof(attend_tile) <= image_bytes;
        if (cluster == 1 || (fits && needed <= 2 * x->items)) {
            return;
        }
    }
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
    extent x = measure(s, policy, lists, n_sequences, shared);
    cuda_attend_plan plan = {.n_sequences = n_sequences, .shared = shared};
    divide_image(s, &x, policy, image_bytes, &plan);
    if (image_bytes < plan.tiles_at) {
        return FAIL(e, ST_ERR_LIMIT, "attention plan: %zu bytes hold no image of %d items", image_bytes,
                plan.n_blocks);
    }
    builder b = {.shape = s,
            .policy = policy,
            .items = image,
            .items_max = plan.n_blocks,
            .gather = gather_of(s, &x),
            .e = e};
    b.tiles = (attend_tile *)(void *)((char *)image + plan.tiles_at);
    b.tiles_max = (int64_t)((image_bytes - plan.tiles_at) / sizeof(attend_tile));
    for (int i = 0; i < n_sequences; i++) {
        TRY(build_sequence(&b, lists, i, shared));
    }
    int64_t filled = plan.cluster > 1 ? x.lists * plan.cluster : b.n_items;
    qsort(b.items, (size_t)b.n_items, sizeof *b.items, longer_first);
    if (plan.cluster > 1) {
        spread_clusters(&b, plan.cluster, x.lists);
    }
    memset(&b.items[filled], 0, (size_t)(plan.n_blocks - filled) * sizeof *b.items);
    memset((char *)image + plan.counters_at, 0, plan.tiles_at - plan.counters_at);

    plan.n_items = (int)b.n_items;
    plan.gathers = b.gather > 1;
    plan.n_blocks = policy->items_capacity <= 0 && plan.cluster == 1 ? plan.n_items : plan.n_blocks;
    plan.image_bytes = plan.tiles_at + (uint64_t)b.n_tiles * sizeof(attend_tile);
    plan.partials_at = aligned(plan.tiles_at + (uint64_t)b.tiles_max * sizeof(attend_tile));
    uint64_t partial_bytes = (uint64_t)heads_per_pass(s) * (uint64_t)(s->d + 2) * sizeof(float);
    plan.workspace_bytes = plan.partials_at + (uint64_t)b.n_partials * partial_bytes;
    *out = plan;
    return ST_OK;
}
