/*
 * Attention of a pass on the device. Every row, of a prefill block too, is a sequence of its own for the kernel, with lists
 * that end at the row itself: so a token's result is the same bits in a block, alone and beside others (attend.h).
 *
 * A list is shared by all heads and layers: addresses are those of layer 0 and head 0, the launch adds the layer's and
 * the head's offset. Where partial results of all rows do not fit their room, rows are planned in groups.
 */
#include <string.h>

#include "agent/model_cuda_internal.h"

enum {
    IMAGE_BYTES_MIN = 4 << 20,
    PARTIAL_BYTES_MIN = 64 << 20,
    TILE_BYTES = 16,
    ITEM_BYTES = 64,
    ALIGNED = 256,
    CAPACITY_STEP = 32
};

struct device_attention {
    model_device *d;
    int max_rows;
    cuda_attend_shape shape;
    krn_span *spans; /* of all rows */
    size_t n_spans, spans_cap;
    krn_span *run_spans; /* of one run, whole */
    size_t n_run_spans, run_spans_cap;
    size_t *first_span;      /* [max_rows + 1] of each row */
    cuda_attend_list *lists; /* [max_rows] */
    int capacity; /* of items, of small passes: kept from step to step, so that recorded launches fit */
    attention_plan *groups; /* [max_rows] */
    int n_groups;
    void *image; /* pinned */
    uint64_t image_bytes, partial_bytes;
    char *workspace; /* device: image, then partial results, which the groups use one after the other */
};

/* ---- lists ---- */

static status add_span(device_attention *a, const krn_span *span, err *e)
{
    void *list = a->run_spans;
    if (base_grow(&list, &a->run_spans_cap, a->n_run_spans + 1, 1u << 28, sizeof *a->run_spans) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for %zu spans", a->n_run_spans + 1);
    }
    a->run_spans = list;
    a->run_spans[a->n_run_spans++] = *span;
    return ST_OK;
}

/* Spans of a part; of a BF16 one, unit by unit. n_new: how many of its rows the pass computes. */
static status add_part(device_attention *a, const model_kv_part *part, int n_new, err *e)
{
    kv_mirror *mirror = a->d->mirror;
    krn_span span = {.kind = part->kind,
            .rows = part->rows,
            .variant = part->variant,
            .first_position = part->first_position,
            .visible_to_all = part->visible_to_all};
    uint64_t at = 0;
    if (part->kind == KRN_SPAN_PAGE) {
        TRY(kv_mirror_column(mirror, part, &at, e));
        span.k = (const void *)(uintptr_t)at;
        return add_span(a, &span, e);
    }
    for (int first = 0; first < part->rows; first += MIRROR_UNIT_ROWS) {
        int left = part->rows - first;
        TRY(kv_mirror_unit(mirror, part, first / MIRROR_UNIT_ROWS, part->rows - n_new, part->rows, &at, e));
        span.rows = left < MIRROR_UNIT_ROWS ? left : MIRROR_UNIT_ROWS;
        span.first_position = part->first_position + first;
        span.k = (const void *)(uintptr_t)at;
        span.v = (const void *)(uintptr_t)(at + kv_mirror_unit_page_bytes(mirror) / 2);
        TRY(add_span(a, &span, e));
    }
    return ST_OK;
}

/* The spans that the row at `position` sees, at the end of a->spans. */
static status add_row(device_attention *a, int row, int64_t position, err *e)
{
    void *list = a->spans;
    if (base_grow(&list, &a->spans_cap, a->n_spans + a->n_run_spans, 1u << 28, sizeof *a->spans) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for %zu spans", a->n_spans + a->n_run_spans);
    }
    a->spans = list;
    a->first_span[row] = a->n_spans;
    for (size_t i = 0; i < a->n_run_spans; i++) {
        krn_span span = a->run_spans[i];
        int64_t seen = position - span.first_position + 1;
        if (!span.visible_to_all && seen < span.rows) {
            span.rows = seen > 0 ? (int)seen : 0;
        }
        if (span.rows > 0) {
            a->spans[a->n_spans++] = span;
        }
    }
    a->first_span[row + 1] = a->n_spans;
    return ST_OK;
}

/* Addresses of the run's new rows: the last of its last part. */
static void find_units(
        const device_attention *a, const model_run *run, const model_kv_part *last, uint64_t *unit)
{
    int first = last->rows - run->n;
    size_t units = (size_t)(last->rows + MIRROR_UNIT_ROWS - 1) / MIRROR_UNIT_ROWS;
    const krn_span *spans = a->run_spans + a->n_run_spans - units;
    for (int i = 0; i < run->n; i++) {
        int row = first + i;
        uint64_t at = (uint64_t)(uintptr_t)spans[row / MIRROR_UNIT_ROWS].k;
        unit[i] = at + (uint64_t)(row % MIRROR_UNIT_ROWS) * (uint64_t)a->shape.d * sizeof(uint16_t);
    }
}

static status add_run(device_attention *a, const model_run *run, int row, uint64_t *unit, err *e)
{
    const model_kv_part *parts = NULL;
    int n_parts = 0;
    if (run->kv->parts == NULL) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "this kind of cache has no copies on a device: use the CPU");
    }
    run->kv->parts(run->kv->ctx, &parts, &n_parts);
    REQUIRE(n_parts > 0 && parts[n_parts - 1].kind == KRN_SPAN_BF16 && parts[n_parts - 1].rows >= run->n);
    a->n_run_spans = 0;
    for (int i = 0; i < n_parts; i++) {
        TRY(add_part(a, &parts[i], i + 1 == n_parts ? run->n : 0, e));
    }
    find_units(a, run, &parts[n_parts - 1], unit);
    for (int i = 0; i < run->n; i++) {
        TRY(add_row(a, row + i, run->first_position + i, e));
    }
    return ST_OK;
}

/* ---- plan ---- */

/* Plans `n` rows from `first` on into the image from `at`; ST_ERR_LIMIT when they do not fit. */
static status plan_group(device_attention *a, int first, int n, uint64_t at, attention_plan *out, err *e)
{
    cuda_attend_policy policy = {.items_capacity = n <= DEVICE_RECORDED_ROWS ? a->capacity : 0};
    size_t room = (size_t)(a->image_bytes - at);
    TRY(cuda_attend_plan_make(
            &a->shape, &policy, a->lists + first, n, true, (char *)a->image + at, room, &out->plan, e));
    uint64_t partials = out->plan.workspace_bytes - out->plan.partials_at;
    if (partials > a->partial_bytes) {
        return FAIL(e, ST_ERR_LIMIT, "attention of %d rows needs %llu MiB for partial results", n,
                (unsigned long long)(partials >> 20));
    }
    out->plan.partials_at = a->image_bytes - at; /* the same room for all groups */
    out->image_at = at;
    out->first_row = first;
    out->n_rows = n;
    return ST_OK;
}

/* All rows of a small pass in one plan whose room for items stays the same from step to step, while they fit and it is
 * not much too large. */
static status plan_small(device_attention *a, int n, err *e)
{
    attention_plan *plan = &a->groups[0];
    a->n_groups = 1;
    if (a->capacity > 0 && plan_group(a, 0, n, 0, plan, e) == ST_OK &&
            a->capacity <= 2 * plan->plan.n_items + CAPACITY_STEP) {
        return ST_OK;
    }
    a->capacity = 0;
    TRY(plan_group(a, 0, n, 0, plan, e));
    int wanted = plan->plan.n_items + plan->plan.n_items / 4;
    a->capacity = (wanted + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
    return plan_group(a, 0, n, 0, plan, e);
}

static status plan_rows(device_attention *a, int n, err *e)
{
    if (n <= DEVICE_RECORDED_ROWS) {
        status st = plan_small(a, n, e);
        if (st != ST_ERR_LIMIT) {
            return st;
        }
        a->capacity = 0; /* in groups, then */
    }
    uint64_t at = 0;
    a->n_groups = 0;
    for (int first = 0, each = n; first < n;) {
        each = each < n - first ? each : n - first;
        attention_plan *group = &a->groups[a->n_groups];
        status st = plan_group(a, first, each, at, group, e);
        if (st == ST_ERR_LIMIT && each > 1) {
            each /= 2;
            continue;
        }
        TRY(st);
        at += (group->plan.image_bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
        a->n_groups++;
        first += each;
    }
    return ST_OK;
}

status device_attention_plan(device_attention *a, const model_run *runs, int n_runs, uint64_t *unit, err *e)
{
    int n = 0;
    kv_mirror_begin(a->d->mirror);
    a->n_spans = 0;
    for (int i = 0; i < n_runs; i++) {
        if (runs[i].n > 0) {
            TRY(add_run(a, &runs[i], n, unit + n, e));
            n += runs[i].n;
        }
    }
    for (int i = 0; i < n; i++) {
        a->lists[i] = (cuda_attend_list){.spans = a->spans + a->first_span[i],
                .n_spans = (int)(a->first_span[i + 1] - a->first_span[i])};
    }
    TRY(plan_rows(a, n, e));
    void *stream = cuda_device_stream(a->d->device);
    for (int i = 0; i < a->n_groups; i++) {
        const attention_plan *g = &a->groups[i];
        TRY(cuda_attend_upload(
                &g->plan, (const char *)a->image + g->image_at, a->workspace + g->image_at, stream, e));
    }
    return ST_OK;
}

const attention_plan *device_attention_single(const device_attention *a)
{
    return a->n_groups == 1 ? &a->groups[0] : NULL;
}

status device_attention_run(device_attention *a,
        int layer,
        int n_variants,
        const float *cos_sin,
        const float *sharpness,
        const float *q,
        float *out,
        err *e)
{
    const model_config *c = &a->d->m->config;
    const device_space *space = &a->d->spaces[layer];
    uint64_t unit_page = kv_mirror_unit_page_bytes(a->d->mirror);
    cuda_attend_call call = {.shape = a->shape,
            .format = space->format,
            .k = space->k,
            .v = space->v,
            .scale = c->attention_scale,
            .pairing = c->rope.pairing,
            .rope_dims = c->rope.dims,
            .n_variants = n_variants,
            .page_offset = space->page_at,
            .overlap = true, /* pages and plan are copied before the pass's first kernel */
            .page_head_stride = space->format.bytes,
            .row_offset = (int64_t)(unit_page * (uint64_t)c->kv_heads) * layer,
            .row_head_stride = (int64_t)unit_page};
    for (int i = 0; i < a->n_groups; i++) {
        const attention_plan *g = &a->groups[i];
        size_t row = (size_t)g->first_row, heads = (size_t)c->q_heads * (size_t)c->d;
        call.cos_sin = cos_sin + row * (size_t)n_variants * (size_t)c->rope.dims;
        call.sharpness = sharpness + row * (size_t)n_variants;
        call.q = q + row * heads;
        call.out = out + row * heads;
        TRY(cuda_attend_launch(
                &g->plan, &call, a->workspace + g->image_at, cuda_device_stream(a->d->device), e));
    }
    return ST_OK;
}

/* ---- life ---- */

/* Room for plans: every row may attend to the whole context, in pages, and to two blocks and the sinks in tiles of 16 rows.
 * A row becomes about two items for each multiprocessor at most, but for those that many variants make. */
static uint64_t image_bytes_for(const device_attention *a)
{
    const model_config *c = &a->d->m->config;
    uint64_t tiles = (uint64_t)c->context / KRN_PAGE_ROWS + 64, rows = (uint64_t)a->max_rows;
    uint64_t heads = (uint64_t)c->kv_heads, items = (tiles / 8 + 1) * heads;
    uint64_t most = 2 * (uint64_t)a->shape.multiprocessors + 8 * heads;
    items = items < most ? items : most;
    uint64_t bytes = rows * (tiles * TILE_BYTES + items * ITEM_BYTES + heads * sizeof(uint32_t));
    return (bytes > IMAGE_BYTES_MIN ? bytes : IMAGE_BYTES_MIN) / ALIGNED * ALIGNED;
}

static status take_memory(device_attention *a, err *e)
{
    size_t rows = (size_t)a->max_rows;
    void *memory = NULL;
    a->first_span = base_zalloc(rows + 1, sizeof *a->first_span);
    a->lists = base_zalloc(rows, sizeof *a->lists);
    a->groups = base_zalloc(rows, sizeof *a->groups);
    if (a->first_span == NULL || a->lists == NULL || a->groups == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for attention");
    }
    a->image_bytes = image_bytes_for(a);
    a->partial_bytes = cuda_device_left(a->d->device) / 32;
    a->partial_bytes = a->partial_bytes > PARTIAL_BYTES_MIN ? a->partial_bytes : PARTIAL_BYTES_MIN;
    a->partial_bytes = a->partial_bytes < (512u << 20) ? a->partial_bytes : 512u << 20;
    TRY(cuda_take_pinned(a->d->device, a->image_bytes, &a->image, e));
    TRY(cuda_take(a->d->device, a->image_bytes + a->partial_bytes, "attention", &memory, e));
    a->workspace = memory;
    return ST_OK;
}

status device_attention_open(model_device *d, int max_rows, device_attention **out, err *e)
{
    const model_config *c = &d->m->config;
    device_attention *a = base_zalloc(1, sizeof *a);
    if (a == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for attention");
    }
    a->d = d;
    a->max_rows = max_rows;
    a->shape = (cuda_attend_shape){.d = c->d,
            .q_heads = c->q_heads,
            .kv_heads = c->kv_heads,
            .multiprocessors = cuda_device_get_info(d->device)->multiprocessors};
    status st = take_memory(a, e);
    if (st != ST_OK) {
        device_attention_close(a);
        return st;
    }
    *out = a;
    return ST_OK;
}

void device_attention_close(device_attention *a)
{
    if (a != NULL) {
        cuda_release_pinned(a->d->device, a->image);
        cuda_release(a->d->device, a->workspace);
        base_free(a->spans);
        base_free(a->run_spans);
        base_free(a->first_span);
        base_free(a->lists);
        base_free(a->groups);
        base_free(a);
    }
}
