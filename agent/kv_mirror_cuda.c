/* Copies of KV on the device: two pools of equal slots, one for columns and one for units. See kv_mirror_internal.h. */
#include "agent/kv_mirror_internal.h"

#include <string.h>

enum { SLAB_BYTES = 64 << 20, BUCKETS_MIN = 1024, NONE = -1 };

typedef struct slot {
    uint64_t id; /* 0: free */
    int unit, next;
    int rows, rows_after; /* filled; and when the pass has written its own */
    uint64_t pass;        /* that attended to it last */
    uint64_t at;
} slot;

typedef struct pool {
    const char *what;
    uint64_t slot_bytes;
    slot *slots;
    size_t n_slots, slots_cap;
    int *buckets; /* first slot of each chain */
    size_t n_buckets;
    void **slabs;
    size_t n_slabs, slabs_cap;
} pool;

struct kv_mirror {
    cuda_device *device;
    int layers, kv_heads, d;
    uint64_t pass;
    pool columns, units;
    uint64_t page_hits, page_misses, bytes_sent;
};

/* ---- pools ---- */

static void empty_pool(cuda_device *device, pool *p)
{
    for (size_t i = 0; i < p->n_slabs; i++) {
        cuda_release(device, p->slabs[i]);
    }
    base_free(p->slabs);
    base_free(p->slots);
    base_free(p->buckets);
    *p = (pool){.what = p->what, .slot_bytes = p->slot_bytes};
}

static size_t bucket_of(const pool *p, uint64_t id, int unit)
{
    uint64_t h = (id * 64 + (uint64_t)unit) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32) % p->n_buckets;
}

static slot *find(const pool *p, uint64_t id, int unit)
{
    for (int i = p->n_buckets == 0 ? NONE : p->buckets[bucket_of(p, id, unit)]; i != NONE;
            i = p->slots[i].next) {
        if (p->slots[i].id == id && p->slots[i].unit == unit) {
            return &p->slots[i];
        }
    }
    return NULL;
}

static void link_slot(pool *p, int index)
{
    int *first = &p->buckets[bucket_of(p, p->slots[index].id, p->slots[index].unit)];
    p->slots[index].next = *first;
    *first = index;
}

static void unlink_slot(pool *p, int index)
{
    int *link = &p->buckets[bucket_of(p, p->slots[index].id, p->slots[index].unit)];
    while (*link != index) {
        link = &p->slots[*link].next;
    }
    *link = p->slots[index].next;
    p->slots[index].id = 0;
}

/* Buckets for as many slots as there are. */
static status rehash(pool *p)
{
    size_t n = p->n_buckets == 0 ? BUCKETS_MIN : p->n_buckets * 2;
    int *buckets = base_alloc(n * sizeof *buckets);
    if (buckets == NULL) {
        return ST_ERR_MEMORY;
    }
    for (size_t i = 0; i < n; i++) {
        buckets[i] = NONE;
    }
    base_free(p->buckets);
    p->buckets = buckets;
    p->n_buckets = n;
    for (size_t i = 0; i < p->n_slots; i++) {
        if (p->slots[i].id != 0) {
            link_slot(p, (int)i);
        }
    }
    return ST_OK;
}

/* More slots from the device: a slab, or what is left of the budget. */
static status grow(cuda_device *device, pool *p, err *e)
{
    uint64_t n = SLAB_BYTES / p->slot_bytes, left = cuda_device_left(device) / p->slot_bytes;
    n = n < 1 ? 1 : n;
    n = n > left && left > 0 ? left : n;
    void *slabs = p->slabs, *slots = p->slots, *memory = NULL;
    if (base_grow(&slabs, &p->slabs_cap, p->n_slabs + 1, SIZE_MAX / 64, sizeof *p->slabs) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the list of %s", p->what);
    }
    p->slabs = slabs;
    if (base_grow(&slots, &p->slots_cap, p->n_slots + (size_t)n, INT32_MAX / 2, sizeof *p->slots) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the list of %s", p->what);
    }
    p->slots = slots;
    TRY(cuda_take(device, n * p->slot_bytes, p->what, &memory, e));
    p->slabs[p->n_slabs++] = memory;
    for (uint64_t i = 0; i < n; i++) {
        p->slots[p->n_slots++] = (slot){.at = (uint64_t)(uintptr_t)memory + i * p->slot_bytes};
    }
    while (p->n_buckets < p->n_slots) {
        if (rehash(p) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for the list of %s", p->what);
        }
    }
    return ST_OK;
}

/* The free slot, or the one least recently attended to; NONE when the pass needs all. */
static int oldest(const pool *p, uint64_t pass)
{
    int best = NONE;
    for (size_t i = 0; i < p->n_slots; i++) {
        if (p->slots[i].id == 0) {
            return (int)i;
        }
        if (p->slots[i].pass < pass && (best == NONE || p->slots[i].pass < p->slots[best].pass)) {
            best = (int)i;
        }
    }
    return best;
}

static bool has_free(const pool *p)
{
    for (size_t i = p->n_slots; i > 0; i--) {
        if (p->slots[i - 1].id == 0) {
            return true;
        }
    }
    return false;
}

/* A slot for (id, unit), empty. */
static status take_slot(kv_mirror *m, pool *p, uint64_t id, int unit, slot **out, err *e)
{
    err why = {0};
    status st = has_free(p) ? ST_OK : grow(m->device, p, &why);
    int index = st == ST_OK || st == ST_ERR_MEMORY ? oldest(p, m->pass) : NONE;
    if (index == NONE) {
        return FAIL(e, st, "%s", why.text);
    }
    if (p->slots[index].id != 0) {
        unlink_slot(p, index);
    }
    slot *s = &p->slots[index];
    *s = (slot){.id = id, .unit = unit, .at = s->at, .pass = m->pass};
    link_slot(p, index);
    *out = s;
    return ST_OK;
}

/* ---- columns and units ---- */

status kv_mirror_column(kv_mirror *m, const model_kv_part *part, uint64_t *at, err *e)
{
    pool *p = &m->columns;
    if (p->slot_bytes != part->bytes) { /* another codec */
        empty_pool(m->device, p);
        p->slot_bytes = part->bytes;
    }
    slot *s = find(p, part->id, 0);
    if (s != NULL) {
        m->page_hits++;
    } else {
        TRY(take_slot(m, p, part->id, 0, &s, e));
        status st = cuda_copy_in(m->device, (void *)(uintptr_t)s->at, part->k, part->bytes, e);
        if (st != ST_OK) {
            unlink_slot(p, (int)(s - p->slots));
            return st;
        }
        m->page_misses++;
        m->bytes_sent += part->bytes;
    }
    s->pass = m->pass;
    *at = s->at;
    return ST_OK;
}

uint64_t kv_mirror_unit_page_bytes(const kv_mirror *m)
{
    return 2 * (uint64_t)MIRROR_UNIT_ROWS * (uint64_t)m->d * sizeof(uint16_t);
}

/* Rows [from, to) of a unit, K and V of all layers and heads. */
static status send_rows(kv_mirror *m, const model_kv_part *part, const slot *s, int from, int to, err *e)
{
    uint64_t row = (uint64_t)m->d * sizeof(uint16_t), pages = (uint64_t)m->layers * (uint64_t)m->kv_heads;
    uint64_t bytes = (uint64_t)(to - from) * row,
             source = (uint64_t)(s->unit * MIRROR_UNIT_ROWS + from) * row;
    uint64_t target = s->at + (uint64_t)from * row, stride = kv_mirror_unit_page_bytes(m);
    TRY(cuda_copy_in_rows(m->device, (void *)(uintptr_t)target, stride, (const uint8_t *)part->k + source,
            part->bytes, bytes, pages, e));
    m->bytes_sent += 2 * pages * bytes;
    return cuda_copy_in_rows(m->device, (void *)(uintptr_t)(target + stride / 2), stride,
            (const uint8_t *)part->v + source, part->bytes, bytes, pages, e);
}

status kv_mirror_unit(
        kv_mirror *m, const model_kv_part *part, int unit, int known, int filled, uint64_t *at, err *e)
{
    int first = unit * MIRROR_UNIT_ROWS;
    int has = known - first < MIRROR_UNIT_ROWS ? known - first : MIRROR_UNIT_ROWS;
    int after = filled - first < MIRROR_UNIT_ROWS ? filled - first : MIRROR_UNIT_ROWS;
    slot *s = find(&m->units, part->id, unit);
    if (s == NULL) {
        TRY(take_slot(m, &m->units, part->id, unit, &s, e));
    }
    if (s->rows < has) {
        TRY(send_rows(m, part, s, s->rows, has, e));
        s->rows = has;
    }
    s->rows_after = after;
    s->pass = m->pass;
    *at = s->at;
    return ST_OK;
}

void kv_mirror_begin(kv_mirror *m)
{
    m->pass++;
}

void kv_mirror_commit(kv_mirror *m)
{
    for (size_t i = 0; i < m->units.n_slots; i++) {
        slot *s = &m->units.slots[i];
        if (s->pass == m->pass && s->rows_after > s->rows) {
            s->rows = s->rows_after;
        }
    }
}

void kv_mirror_add_usage(const kv_mirror *m, model_device_usage *usage)
{
    usage->cache_bytes += m->columns.n_slots * m->columns.slot_bytes + m->units.n_slots * m->units.slot_bytes;
    usage->page_hits += m->page_hits;
    usage->page_misses += m->page_misses;
    usage->bytes_sent += m->bytes_sent;
}

status kv_mirror_open(cuda_device *device, int layers, int kv_heads, int d, kv_mirror **out, err *e)
{
    kv_mirror *m = base_zalloc(1, sizeof *m);
    if (m == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the cache of a device");
    }
    m->device = device;
    m->layers = layers;
    m->kv_heads = kv_heads;
    m->d = d;
    m->columns.what = "coded pages";
    m->units.what = "exact rows";
    m->units.slot_bytes = (uint64_t)layers * (uint64_t)kv_heads * kv_mirror_unit_page_bytes(m);
    *out = m;
    return ST_OK;
}

void kv_mirror_close(kv_mirror *m)
{
    if (m != NULL) {
        empty_pool(m->device, &m->columns);
        empty_pool(m->device, &m->units);
        base_free(m);
    }
}
