/* tiers: storage of a session's KV and the spans of a run. See tiers_internal.h for the model. */
#include "agent/tiers_internal.h"

#include <stdatomic.h>
#include <string.h>

struct tiers_column {
    atomic_int refs;
    uint64_t id; /* model_kv_next_id */
    size_t bytes;
    uint8_t *data;
};

enum { VARIANT_WINDOW, VARIANT_PINNED, VARIANT_FIRST_PIECE };

typedef struct exact_block {
    uint16_t *rows; /* [layer][head][K, V][256][d] */
    uint64_t id;    /* model_kv_next_id */
} exact_block;

struct tiers {
    const kvq_codec *codec;
    kvq_shape shape;
    krn_pool *pool;
    tiers_load_column load;
    void *load_ctx;

    int64_t tokens;
    uint16_t *sinks; /* [layer][head][K, V][64][d] */
    uint64_t sinks_id;
    exact_block *blocks; /* BF16 blocks first_block .. first_block + n_blocks */
    int64_t first_block;
    size_t n_blocks, blocks_cap;
    tiers_column **columns; /* coded ones; NULL when only stored */
    size_t n_columns, columns_cap;

    tiers_view view;
    tiers_column **gathered; /* one per piece of the view */
    tiers_costs costs;

    model_kv kv;
    int run_rows;
    int64_t *shift;
    float *sharpness;
    size_t shift_cap, sharpness_cap;
    krn_span *spans; /* [head][spans_max] */
    size_t spans_cap, spans_max;
    model_kv_part *parts;
    size_t parts_cap;
    int n_parts;
};

/* ---- columns ---- */

tiers_column *tiers_column_create(size_t bytes)
{
    tiers_column *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->data = base_zalloc(1, bytes);
    if (c->data == NULL) {
        base_free(c);
        return NULL;
    }
    atomic_init(&c->refs, 1);
    c->id = model_kv_next_id();
    c->bytes = bytes;
    return c;
}

tiers_column *tiers_column_ref(tiers_column *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void tiers_column_unref(tiers_column *c)
{
    if (c != NULL && atomic_fetch_sub(&c->refs, 1) == 1) {
        base_free(c->data);
        base_free(c);
    }
}

uint8_t *tiers_column_data(tiers_column *c)
{
    return c->data;
}

/* ---- life ---- */

status tiers_open(const kvq_codec *codec,
        const kvq_shape *shape,
        krn_pool *pool,
        tiers_load_column load,
        void *load_ctx,
        tiers **out,
        err *e)
{
    tiers *t = base_zalloc(1, sizeof *t);
    if (t == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a session's cache");
    }
    t->codec = codec;
    t->shape = *shape;
    t->pool = pool;
    t->load = load;
    t->load_ctx = load_ctx;
    t->view.window_from = TIERS_SINK_TOKENS;
    t->sinks_id = model_kv_next_id();
    t->sinks = base_zalloc((size_t)shape->layers * (size_t)shape->kv_heads * 2 * TIERS_SINK_TOKENS,
            (size_t)shape->d * sizeof *t->sinks);
    if (t->sinks == NULL) {
        tiers_close(t);
        return FAIL(e, ST_ERR_MEMORY, "no memory for a session's cache");
    }
    *out = t;
    return ST_OK;
}

static void free_list(tiers_column **list, int n)
{
    for (int i = 0; list != NULL && i < n; i++) {
        tiers_column_unref(list[i]);
    }
    base_free(list);
}

static void drop_gathered(tiers *t)
{
    free_list(t->gathered, t->view.n_pieces);
    t->gathered = NULL;
}

void tiers_forget_view(tiers *t)
{
    drop_gathered(t);
    tiers_view_free(&t->view);
    t->view.window_from = TIERS_SINK_TOKENS;
}

void tiers_reset(tiers *t)
{
    tiers_forget_view(t);
    for (size_t i = 0; i < t->n_blocks; i++) {
        base_free(t->blocks[i].rows);
    }
    for (size_t i = 0; i < t->n_columns; i++) {
        tiers_column_unref(t->columns[i]);
    }
    t->n_blocks = t->n_columns = 0;
    t->first_block = t->tokens = 0;
    t->sinks_id = model_kv_next_id();
}

void tiers_close(tiers *t)
{
    if (t == NULL) {
        return;
    }
    tiers_reset(t);
    base_free(t->blocks);
    base_free(t->columns);
    base_free(t->sinks);
    base_free(t->shift);
    base_free(t->sharpness);
    base_free(t->spans);
    base_free(t->parts);
    base_free(t);
}

int64_t tiers_tokens(const tiers *t)
{
    return t->tokens;
}

int64_t tiers_columns(const tiers *t)
{
    return (int64_t)t->n_columns;
}

int64_t tiers_exact_kept(const tiers *t)
{
    return tiers_block_start(t->first_block);
}

static size_t pages_of(const tiers *t)
{
    return (size_t)t->shape.layers * (size_t)t->shape.kv_heads;
}

static size_t head_elements(const tiers *t, int rows)
{
    return 2 * (size_t)rows * (size_t)t->shape.d;
}

static size_t block_bytes(const tiers *t)
{
    return pages_of(t) * head_elements(t, TIERS_BLOCK_TOKENS) * sizeof(uint16_t);
}

size_t tiers_resident_bytes(const tiers *t)
{
    size_t bytes = pages_of(t) * head_elements(t, TIERS_SINK_TOKENS) * sizeof(uint16_t) +
            t->n_blocks * block_bytes(t);
    for (size_t i = 0; i < t->n_columns; i++) {
        bytes += t->columns[i] != NULL ? t->columns[i]->bytes : 0;
    }
    return bytes + (t->gathered != NULL ? (size_t)t->view.n_pieces * kvq_column_bytes(t->codec) : 0);
}

void tiers_add_usage(const tiers *t, tiers_usage *sum)
{
    int64_t kept = tiers_exact_kept(t), sinks = t->tokens < TIERS_SINK_TOKENS ? t->tokens : TIERS_SINK_TOKENS;
    int64_t exact = sinks + (t->tokens > kept ? t->tokens - kept : 0);
    sum->pinned_bytes += pages_of(t) * head_elements(t, TIERS_SINK_TOKENS) * sizeof(uint16_t);
    sum->recent_bytes += t->n_blocks * block_bytes(t);
    for (size_t i = 0; i < t->n_columns; i++) {
        sum->coded_bytes += t->columns[i] != NULL ? t->columns[i]->bytes : 0;
    }
    sum->tokens += t->tokens;
    sum->exact_tokens += exact < t->tokens ? exact : t->tokens;
}

/* Start of K (v false) or V rows of one head in a BF16 area of `rows` rows. */
static uint16_t *head_rows(const tiers *t, uint16_t *area, int rows, int layer, int head, bool v)
{
    size_t page = (size_t)layer * (size_t)t->shape.kv_heads + (size_t)head;
    return area + page * head_elements(t, rows) + (v ? (size_t)rows * (size_t)t->shape.d : 0);
}

/* ---- coding ---- */

typedef struct encode_job {
    const tiers *t;
    uint16_t *block;
    tiers_column *column[2];
    atomic_int failed; /* the page index + 1 of a failing page */
} encode_job;

static void encode_page(void *ctx, int task)
{
    encode_job *job = ctx;
    const tiers *t = job->t;
    int half = task & 1, page = task >> 1;
    int layer = page / t->shape.kv_heads, head = page % t->shape.kv_heads;
    size_t skip = (size_t)half * TIERS_COLUMN_TOKENS * (size_t)t->shape.d;
    const uint16_t *k = head_rows(t, job->block, TIERS_BLOCK_TOKENS, layer, head, false) + skip;
    const uint16_t *v = head_rows(t, job->block, TIERS_BLOCK_TOKENS, layer, head, true) + skip;
    uint8_t *out = job->column[half]->data + kvq_page_at(t->codec, layer, head);
    if (kvq_encode_page(t->codec, layer, head, k, v, TIERS_COLUMN_TOKENS, out, NULL) != ST_OK) {
        atomic_store(&job->failed, task + 1);
    }
}

/* Codes BF16 block `block` into two columns at the end of the list. */
static status seal_block(tiers *t, int64_t block, err *e)
{
    void *columns = t->columns;
    if (base_grow(&columns, &t->columns_cap, t->n_columns + 2, SIZE_MAX / 64, sizeof *t->columns) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the page list");
    }
    t->columns = columns;
    REQUIRE((int64_t)t->n_columns == 2 * block && block >= t->first_block);
    encode_job job = {.t = t, .block = t->blocks[block - t->first_block].rows};
    job.column[0] = tiers_column_create(kvq_column_bytes(t->codec));
    job.column[1] = tiers_column_create(kvq_column_bytes(t->codec));
    int failed = -1; /* no memory */
    if (job.column[0] != NULL && job.column[1] != NULL) {
        t->costs.encode_us -= base_monotonic_us();
        krn_pool_run(t->pool, encode_page, &job, (int)pages_of(t) * 2);
        t->costs.encode_us += base_monotonic_us();
        failed = atomic_load(&job.failed);
    }
    if (failed != 0) {
        tiers_column_unref(job.column[0]);
        tiers_column_unref(job.column[1]);
        return failed < 0
                ? FAIL(e, ST_ERR_MEMORY, "no memory for coded pages")
                : FAIL(e, ST_ERR_ARG, "layer %d, KV head %d: a key or value is not finite near token %lld",
                          (failed - 1) / 2 / t->shape.kv_heads, (failed - 1) / 2 % t->shape.kv_heads,
                          (long long)tiers_block_start(block));
    }
    t->columns[t->n_columns++] = job.column[0];
    t->columns[t->n_columns++] = job.column[1];
    return ST_OK;
}

/* ---- views ---- */

/* The column, loaded when it is not in memory, borrowed. */
static status need_column(tiers *t, int64_t column, err *e)
{
    REQUIRE(column >= 0 && column < (int64_t)t->n_columns);
    if (t->columns[column] == NULL) {
        TRY(t->load(t->load_ctx, column, &t->columns[column], e));
        t->costs.loaded_bytes += t->columns[column]->bytes;
    }
    return ST_OK;
}

static status need_columns(tiers *t, int64_t from, int64_t to, err *e)
{
    to = to < (int64_t)t->n_columns ? to : (int64_t)t->n_columns;
    for (int64_t i = from; i < to; i++) {
        TRY(need_column(t, i, e));
    }
    return ST_OK;
}

typedef struct gather_job {
    const tiers *t;
    const ep_piece *pieces;
    tiers_column *const *sources; /* [piece][2]: the columns its rows lie in */
    tiers_column **out;
} gather_job;

static void gather_piece(void *ctx, int task)
{
    const gather_job *job = ctx;
    const tiers *t = job->t;
    const ep_piece *piece = &job->pieces[task];
    int64_t column = (piece->first_token - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
    int row = (int)(piece->first_token - tiers_column_start(column)), done = 0;
    for (int part = 0; done < piece->rows; part++, row = 0) {
        int n = TIERS_COLUMN_TOKENS - row < piece->rows - done ? TIERS_COLUMN_TOKENS - row
                                                               : piece->rows - done;
        for (int layer = 0; layer < t->shape.layers; layer++) {
            for (int head = 0; head < t->shape.kv_heads; head++) {
                size_t at = kvq_page_at(t->codec, layer, head);
                kvq_gather_rows(t->codec, layer, job->sources[task * 2 + part]->data + at, row,
                        job->out[task]->data + at, done, n);
            }
        }
        done += n;
    }
}

/* References to the columns of each piece. Loaded ones are not kept: what is recalled does not stay resident. */
static status piece_sources(tiers *t, const tiers_view *v, tiers_column **sources, err *e)
{
    for (int i = 0; i < v->n_pieces; i++) {
        const ep_piece *piece = &v->pieces[i];
        REQUIRE(piece->rows >= 1 && piece->rows <= TIERS_COLUMN_TOKENS);
        int64_t first = (piece->first_token - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
        int64_t last = (piece->first_token + piece->rows - 1 - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
        if (piece->first_token < TIERS_SINK_TOKENS || last >= (int64_t)t->n_columns) {
            return FAIL(e, ST_ERR_CORRUPT, "recalled rows %lld..%lld are not coded",
                    (long long)piece->first_token, (long long)piece->first_token + piece->rows);
        }
        for (int64_t c = first; c <= last; c++) {
            tiers_column **slot = &sources[i * 2 + (int)(c - first)];
            if (t->columns[c] != NULL) {
                *slot = tiers_column_ref(t->columns[c]);
            } else {
                TRY(t->load(t->load_ctx, c, slot, e));
                t->costs.loaded_bytes += (*slot)->bytes;
            }
        }
    }
    return ST_OK;
}

static status gather(tiers *t, const tiers_view *v, tiers_column ***out, err *e)
{
    *out = NULL;
    if (v->n_pieces == 0) {
        return ST_OK;
    }
    size_t n = (size_t)v->n_pieces;
    tiers_column **pages = base_zalloc(n, sizeof *pages);
    tiers_column **sources = base_zalloc(n * 2, sizeof *sources);
    status st = pages == NULL || sources == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory to gather recalled rows")
                                                 : piece_sources(t, v, sources, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        pages[i] = tiers_column_create(kvq_column_bytes(t->codec));
        if (pages[i] == NULL) {
            st = FAIL(e, ST_ERR_MEMORY, "no memory to gather recalled rows");
        }
    }
    if (st == ST_OK) {
        gather_job job = {.t = t, .pieces = v->pieces, .sources = sources, .out = pages};
        krn_pool_run(t->pool, gather_piece, &job, v->n_pieces);
        *out = pages;
        pages = NULL;
    }
    free_list(sources, v->n_pieces * 2);
    free_list(pages, v->n_pieces);
    return st;
}

status tiers_seal(tiers *t, err *e)
{
    while ((int64_t)t->n_columns < 2 * (tiers_block_of(t->tokens) - 1)) {
        TRY(seal_block(t, (int64_t)t->n_columns / 2, e));
    }
    return ST_OK;
}

status tiers_set_view(tiers *t, const tiers_view *v, err *e)
{
    TRY(tiers_seal(t, e));
    int64_t window_column = (v->window_from - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
    int64_t pinned_columns =
            (tiers_view_pinned(v) - TIERS_SINK_TOKENS + TIERS_COLUMN_TOKENS - 1) / TIERS_COLUMN_TOKENS;
    if (!tiers_view_is_plain(v)) {
        TRY(need_columns(t, 0, pinned_columns < window_column ? pinned_columns : window_column, e));
    }
    TRY(need_columns(t, window_column < 0 ? 0 : window_column, INT64_MAX, e));
    tiers_column **gathered;
    TRY(gather(t, v, &gathered, e));
    tiers_view copy;
    if (tiers_view_copy(v, &copy) != ST_OK) {
        free_list(gathered, v->n_pieces);
        return FAIL(e, ST_ERR_MEMORY, "no memory for a view");
    }
    drop_gathered(t);
    tiers_view_free(&t->view);
    t->view = copy;
    t->gathered = gathered;
    return ST_OK;
}

const tiers_view *tiers_get_view(const tiers *t)
{
    return &t->view;
}

tiers_costs tiers_take_costs(tiers *t)
{
    tiers_costs costs = t->costs;
    t->costs = (tiers_costs){0};
    return costs;
}

/* ---- a run ---- */

int tiers_run_room(const tiers *t)
{
    int64_t end = tiers_block_start(tiers_block_of(t->tokens) + 1);
    return (int)(end - t->tokens);
}

static void space_of_head(
        void *ctx, int layer, int head, krn_rotation *k, krn_rotation *v, krn_page_format *format)
{
    const tiers *t = ctx;
    *k = *kvq_k_rotation(t->codec, layer, head);
    *v = *kvq_v_rotation(t->codec, layer, head);
    *format = *kvq_page_format(t->codec, layer);
}

static void rows_of_run(void *ctx, int layer, int head, uint16_t **k, uint16_t **v)
{
    const tiers *t = ctx;
    int64_t block = tiers_block_of(t->tokens);
    uint16_t *area = block < 0 ? t->sinks : t->blocks[block - t->first_block].rows;
    int rows = block < 0 ? TIERS_SINK_TOKENS : TIERS_BLOCK_TOKENS;
    int64_t first = block < 0 ? t->tokens : t->tokens - tiers_block_start(block);
    size_t skip = (size_t)first * (size_t)t->shape.d;
    *k = head_rows(t, area, rows, layer, head, false) + skip;
    *v = head_rows(t, area, rows, layer, head, true) + skip;
}

/* BF16 rows [first, first + rows) in an area of `area_rows`. */
static model_kv_part exact_part(
        const tiers *t, uint64_t id, uint16_t *area, int area_rows, int64_t rows, int64_t first, int variant)
{
    return (model_kv_part){.id = id,
            .kind = KRN_SPAN_BF16,
            .rows = (int)rows,
            .variant = variant,
            .first_position = first,
            .k = area,
            .v = head_rows(t, area, area_rows, 0, 0, true),
            .bytes = head_elements(t, area_rows) * sizeof *area};
}

static model_kv_part coded_part(const tiers *t, const tiers_column *c, int64_t rows, int variant)
{
    krn_span span = kvq_span(t->codec, 0, 0, c->data, (int)rows);
    return (model_kv_part){.id = c->id,
            .kind = span.kind,
            .rows = (int)rows,
            .variant = variant,
            .visible_to_all = true,
            .k = c->data,
            .v = span.v,
            .bytes = span.kind == KRN_SPAN_PAGE ? c->bytes : c->bytes / pages_of(t)};
}

/* Order in the softmax: sinks, rest of the system prompt, recalled pieces, coded window, exact blocks. */
static int list_parts(tiers *t)
{
    model_kv_part *parts = t->parts;
    size_t n = 0;
    int64_t end = t->tokens + t->run_rows, block = tiers_block_of(t->tokens);
    bool plain = tiers_view_is_plain(&t->view);
    int64_t sinks = end < TIERS_SINK_TOKENS ? end : TIERS_SINK_TOKENS;
    parts[n++] = exact_part(
            t, t->sinks_id, t->sinks, TIERS_SINK_TOKENS, sinks, 0, plain ? VARIANT_WINDOW : VARIANT_PINNED);
    int64_t window_column = (t->view.window_from - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
    if (!plain) {
        int64_t pinned = tiers_view_pinned(&t->view);
        for (int64_t c = 0; c < window_column && tiers_column_start(c) < pinned; c++) {
            int64_t rows = pinned - tiers_column_start(c);
            rows = rows < TIERS_COLUMN_TOKENS ? rows : TIERS_COLUMN_TOKENS;
            parts[n++] = coded_part(t, t->columns[c], rows, VARIANT_PINNED);
        }
        for (int i = 0; i < t->view.n_pieces; i++) {
            parts[n++] = coded_part(t, t->gathered[i], t->view.pieces[i].rows, VARIANT_FIRST_PIECE + i);
        }
    }
    for (int64_t c = window_column < 0 ? 0 : window_column; c < 2 * (block - 1); c++) {
        parts[n++] = coded_part(t, t->columns[c], TIERS_COLUMN_TOKENS, VARIANT_WINDOW);
    }
    for (int64_t b = block < 1 ? 0 : block - 1; b <= block; b++) {
        int64_t first = tiers_block_start(b), rows = end - first;
        const exact_block *exact = &t->blocks[b - t->first_block];
        parts[n++] = exact_part(t, exact->id, exact->rows, TIERS_BLOCK_TOKENS,
                rows < TIERS_BLOCK_TOKENS ? rows : TIERS_BLOCK_TOKENS, first, VARIANT_WINDOW);
    }
    REQUIRE(n <= t->spans_max);
    return (int)n;
}

static void parts_of_run(void *ctx, const model_kv_part **out, int *n_out)
{
    tiers *t = ctx;
    *out = t->parts;
    *n_out = t->n_parts;
}

static size_t page_of_head(void *ctx, int layer, int head)
{
    const tiers *t = ctx;
    return kvq_page_at(t->codec, layer, head);
}

static void spans_of_head(void *ctx, int layer, int head, const krn_span **out, int *n_out)
{
    tiers *t = ctx;
    krn_span *spans = t->spans + (size_t)head * t->spans_max;
    size_t page = (size_t)layer * (size_t)t->shape.kv_heads + (size_t)head;
    for (int i = 0; i < t->n_parts; i++) {
        const model_kv_part *p = &t->parts[i];
        if (p->visible_to_all) {
            spans[i] = kvq_span(t->codec, layer, head, p->k, p->rows);
        } else {
            size_t at = page * p->bytes;
            spans[i] = (krn_span){.kind = KRN_SPAN_BF16,
                    .rows = p->rows,
                    .k = (const uint8_t *)p->k + at,
                    .v = (const uint8_t *)p->v + at,
                    .first_position = p->first_position};
        }
        spans[i].variant = p->variant;
        spans[i].visible_to_all = p->visible_to_all;
    }
    *out = spans;
    *n_out = t->n_parts;
}

/* Variant table of the current view: shifts derived in tiers_internal.h. */
static status fill_variants(tiers *t, err *e)
{
    const tiers_view *v = &t->view;
    size_t n = tiers_view_is_plain(v) ? 1 : VARIANT_FIRST_PIECE + (size_t)v->n_pieces;
    void *shift = t->shift, *sharpness = t->sharpness;
    status st = base_grow(&shift, &t->shift_cap, n, 1u << 20, sizeof *t->shift);
    t->shift = shift;
    if (st == ST_OK) {
        st = base_grow(&sharpness, &t->sharpness_cap, n, 1u << 20, sizeof *t->sharpness);
        t->sharpness = sharpness;
    }
    if (st != ST_OK) {
        return FAIL(e, st, "no memory for %zu query variants", n);
    }
    t->shift[VARIANT_WINDOW] = 0;
    t->sharpness[VARIANT_WINDOW] = 1.0f;
    if (n > 1) {
        t->shift[VARIANT_PINNED] = v->window_from - tiers_view_pinned(v) - v->piece_rows;
        t->sharpness[VARIANT_PINNED] = 1.0f;
    }
    for (int i = 0; n > 1 && i < v->n_pieces; i++) {
        t->shift[VARIANT_FIRST_PIECE + i] =
                v->window_from - v->piece_rows - v->pieces[i].first_token + v->pieces[i].at;
        t->sharpness[VARIANT_FIRST_PIECE + i] = v->sharpness;
    }
    t->kv.n_variants = (int)n;
    t->kv.shift = t->shift;
    t->kv.sharpness = t->sharpness;
    return ST_OK;
}

static status need_block(tiers *t, int64_t block, err *e)
{
    if (t->n_blocks == 0) {
        t->first_block = block;
    }
    void *blocks = t->blocks;
    if (base_grow(&blocks, &t->blocks_cap, (size_t)(block - t->first_block + 1), 1u << 24,
                sizeof *t->blocks) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the block list");
    }
    t->blocks = blocks;
    while (t->first_block + (int64_t)t->n_blocks <= block) {
        uint16_t *area = base_zalloc(1, block_bytes(t));
        if (area == NULL) {
            return FAIL(e, ST_ERR_MEMORY, "no memory for a block of %zu bytes", block_bytes(t));
        }
        t->blocks[t->n_blocks++] = (exact_block){.rows = area, .id = model_kv_next_id()};
    }
    return ST_OK;
}

status tiers_prepare(tiers *t, int n, const model_kv **out, err *e)
{
    REQUIRE(n >= 1 && n <= tiers_run_room(t));
    int64_t block = tiers_block_of(t->tokens);
    if (block >= 0) {
        TRY(need_block(t, block, e));
    }
    TRY(tiers_seal(t, e));
    TRY(fill_variants(t, e));
    /* sinks, two exact blocks, pinned and window columns (a column is in at most one of them), pieces */
    size_t most = 3 + t->n_columns + (size_t)t->view.n_pieces, heads = (size_t)t->shape.kv_heads;
    void *spans = t->spans;
    if (base_grow(&spans, &t->spans_cap, most * heads, 1u << 26, sizeof *t->spans) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for %zu spans", most * heads);
    }
    t->spans = spans;
    t->spans_max = t->spans_cap / heads;
    void *parts = t->parts;
    if (base_grow(&parts, &t->parts_cap, most, 1u << 24, sizeof *t->parts) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for %zu parts", most);
    }
    t->parts = parts;
    t->run_rows = n;
    t->n_parts = list_parts(t);
    t->kv.ctx = t;
    t->kv.space = space_of_head;
    t->kv.new_rows = rows_of_run;
    t->kv.spans = spans_of_head;
    t->kv.parts = parts_of_run;
    t->kv.page_at = page_of_head;
    t->kv.space_id = kvq_codec_fingerprint(t->codec);
    *out = &t->kv;
    return ST_OK;
}

void tiers_advance(tiers *t, int n)
{
    REQUIRE(n == t->run_rows);
    t->tokens += n;
    t->run_rows = 0;
}

void tiers_rewind(tiers *t, int64_t tokens)
{
    int64_t block = tokens < TIERS_SINK_TOKENS ? 0 : tiers_block_of(tokens);
    REQUIRE(tokens <= t->tokens && (int64_t)t->n_columns <= 2 * block && t->first_block < block + !block);
    for (size_t i = 0; i < t->n_blocks; i++) {
        t->blocks[i].id = model_kv_next_id(); /* rows behind the new end will be others */
    }
    t->sinks_id = model_kv_next_id();
    t->tokens = tokens;
}

/* ---- what is stored ---- */

tiers_column *tiers_get_column(tiers *t, int64_t column)
{
    if (column < 0 || column >= (int64_t)t->n_columns || t->columns[column] == NULL) {
        return NULL;
    }
    return tiers_column_ref(t->columns[column]);
}

void tiers_drop_columns(tiers *t, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to && i < (int64_t)t->n_columns; i++) {
        tiers_column_unref(t->columns[i]);
        t->columns[i] = NULL;
    }
}

void tiers_drop_exact(tiers *t, int64_t before_token)
{
    int64_t last = tiers_block_of(t->tokens > 0 ? t->tokens - 1 : 0);
    while (t->n_blocks > 2 && t->first_block < last - 1 &&
            tiers_block_start(t->first_block + 1) <= before_token &&
            (int64_t)t->n_columns >= 2 * (t->first_block + 1)) {
        base_free(t->blocks[0].rows);
        memmove(t->blocks, t->blocks + 1, (t->n_blocks - 1) * sizeof *t->blocks);
        t->n_blocks--;
        t->first_block++;
    }
}

size_t tiers_piece_bytes(const tiers *t)
{
    return pages_of(t) * head_elements(t, TIERS_PIECE_TOKENS) * sizeof(uint16_t);
}

/* The BF16 area that holds a piece, its rows and the piece's first row in it. */
static uint16_t *piece_area(const tiers *t, int64_t piece, int *rows, int64_t *row)
{
    int64_t token = piece * TIERS_PIECE_TOKENS, block = tiers_block_of(token);
    if (block < 0) {
        *rows = TIERS_SINK_TOKENS;
        *row = token;
        return t->sinks;
    }
    REQUIRE(block >= t->first_block && block < t->first_block + (int64_t)t->n_blocks);
    *rows = TIERS_BLOCK_TOKENS;
    *row = token - tiers_block_start(block);
    return t->blocks[block - t->first_block].rows;
}

static void move_piece(const tiers *t, int64_t piece, uint8_t *bytes, bool export)
{
    int rows;
    int64_t row;
    uint16_t *area = piece_area(t, piece, &rows, &row);
    size_t part = (size_t)TIERS_PIECE_TOKENS * (size_t)t->shape.d * sizeof(uint16_t);
    for (int layer = 0; layer < t->shape.layers; layer++) {
        for (int head = 0; head < t->shape.kv_heads; head++) {
            for (int v = 0; v < 2; v++) {
                uint16_t *at =
                        head_rows(t, area, rows, layer, head, v == 1) + (size_t)row * (size_t)t->shape.d;
                memcpy(export ? (void *)bytes : (void *)at, export ? (void *)at : (void *)bytes, part);
                bytes += part;
            }
        }
    }
}

void tiers_export_piece(const tiers *t, int64_t piece, uint8_t *out)
{
    move_piece(t, piece, out, true);
}

void tiers_import_piece(tiers *t, int64_t piece, const uint8_t *in)
{
    move_piece(t, piece, (uint8_t *)(uintptr_t)in, false);
}

status tiers_restore(tiers *t, int64_t tokens, int64_t columns, int64_t exact_from, err *e)
{
    tiers_reset(t);
    int64_t next = tiers_block_of(tokens), first = tiers_block_of(exact_from);
    if (next < 0) {
        t->tokens = tokens;
        return ST_OK;
    }
    if (first < 0 || first > (next >= 1 ? next - 1 : 0) || columns < 2 * first || columns > 2 * next) {
        return FAIL(e, ST_ERR_CORRUPT,
                "a cache of %lld tokens cannot have %lld columns and exact rows from token %lld",
                (long long)tokens, (long long)columns, (long long)exact_from);
    }
    void *list = t->columns;
    if (base_grow(&list, &t->columns_cap, (size_t)columns, SIZE_MAX / 64, sizeof *t->columns) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the page list");
    }
    t->columns = list;
    for (int64_t i = 0; i < columns; i++) {
        t->columns[i] = NULL;
    }
    t->n_columns = (size_t)columns;
    t->first_block = first;
    for (int64_t b = first; b <= tiers_block_of(tokens > TIERS_SINK_TOKENS ? tokens - 1 : tokens); b++) {
        TRY(need_block(t, b, e));
    }
    t->tokens = tokens;
    return ST_OK;
}

status tiers_fork(tiers *t, tiers *from, int64_t tokens, err *e)
{
    int64_t block = tiers_block_of(tokens), before = block < 1 ? 0 : block - 1;
    REQUIRE(block >= 0 && tokens == tiers_block_start(block) && tokens <= from->tokens);
    if (block >= 1 && before < from->first_block) {
        return FAIL(e, ST_ERR_NOT_FOUND, "exact rows before token %lld are gone", (long long)tokens);
    }
    if ((int64_t)from->n_columns < 2 * before) {
        return FAIL(e, ST_ERR_NOT_FOUND, "pages before token %lld are not coded yet", (long long)tokens);
    }
    TRY(tiers_restore(t, tokens, 2 * before, tiers_block_start(before), e));
    memcpy(t->sinks, from->sinks, pages_of(t) * head_elements(t, TIERS_SINK_TOKENS) * sizeof(uint16_t));
    for (int64_t b = before; b < block; b++) {
        memcpy(t->blocks[b - t->first_block].rows, from->blocks[b - from->first_block].rows, block_bytes(t));
    }
    for (size_t i = 0; i < t->n_columns; i++) {
        TRY(need_column(from, (int64_t)i, e));
        t->columns[i] = tiers_column_ref(from->columns[i]);
    }
    return ST_OK;
}
