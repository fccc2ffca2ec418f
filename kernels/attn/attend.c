/*
 * krn_attend: from query rows and spans to outputs. See attn_internal.h for chunks, jobs and states.
 *
 * 1. The chunks that a row sees are dealt to LANES in turn: its n-th visible chunk goes to lane n mod 16. A lane adds
 *    its chunks up in order, and the lanes are added up in order. So the order of a row's sums follows from the row and
 *    the rows it sees, and nothing else.
 * 2. With few rows (decode) a task is one lane of one KV head, and the states of all lanes are kept. With many rows
 *    (prefill) a task is a tile of rows of one KV head, which walks through the lanes one after the other. Both run
 *    the same jobs in the same order for each query, so both give the same bits.
 * 3. Rows are taken 64 at a time, so that the workspace stays small for any n_rows.
 */
#include <math.h>
#include <string.h>

#include "kernels/attn/attn_internal.h"
#include "kernels/attn/levels.h"

enum {
    LANES = 16,
    TILE_ROWS = 8,
    BLOCK_ROWS = 64,
    GROUP_MAX = 16,
    PREPARED_ALONE_MAX = 32,
    FINISHED_ALONE_MAX = 16
};

typedef struct attend {
    const krn_attend_args *a;
    const attn_ops *ops;
    int first_row, rows; /* of this block */
    int group;
    int lanes;           /* that can have a chunk */
    bool keep_lanes;     /* states are [row][head][LANES]; else [row][head][2]: sum of lanes, this lane */
    attn_levels *levels; /* [kv head] */
    uint8_t *queries;    /* [row][variant][head] */
    uint8_t *states;
} attend;

static size_t round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t levels_bytes(int n_kv_heads)
{
    return round64((size_t)n_kv_heads * sizeof(attn_levels));
}

static size_t queries_bytes(int n_rows, int n_q_heads, int d, int n_variants)
{
    size_t rows = smaller((size_t)n_rows, BLOCK_ROWS);
    return round64(rows * (size_t)n_q_heads * (size_t)n_variants * attn_query_bytes(d));
}

size_t krn_attend_workspace_bytes(int n_rows, int n_q_heads, int d, int n_variants)
{
    size_t rows = smaller((size_t)n_rows, BLOCK_ROWS), tile = smaller((size_t)n_rows, TILE_ROWS);
    size_t kept = tile * LANES > rows * 2 ? tile * LANES : rows * 2;
    return 64 + levels_bytes(n_q_heads) + queries_bytes(n_rows, n_q_heads, d, n_variants) +
            kept * (size_t)n_q_heads * attn_state_bytes(d);
}

static attn_query *query_at(const attend *w, int row, int variant, int head)
{
    size_t index = ((size_t)row * (size_t)w->a->n_variants + (size_t)variant) * (size_t)w->a->n_q_heads +
            (size_t)head;
    return (attn_query *)(void *)(w->queries + index * attn_query_bytes(w->a->d));
}

static attn_state *state_at(const attend *w, int row, int head, int which)
{
    size_t each = w->keep_lanes ? LANES : 2;
    size_t index = ((size_t)row * (size_t)w->a->n_q_heads + (size_t)head) * each + (size_t)which;
    return (attn_state *)(void *)(w->states + index * attn_state_bytes(w->a->d));
}

static void clear_state(attn_state *s, int d)
{
    memset(s, 0, attn_state_bytes(d));
    s->top = -INFINITY;
}

/* ---- queries: turned to each variant's position, into the space of the stored keys ---- */

static void prepare_query(const attend *w, int row, int variant, int head)
{
    const krn_attend_args *a = w->a;
    const krn_rotation *space = &a->heads[head / w->group].k_rotation;
    const krn_rotation turn_only = {.kind = space->kind, .matrix = space->matrix};
    size_t at = (size_t)(w->first_row + row);
    attn_query *q = query_at(w, row, variant, head);
    float *x = q->x, turned[ATTN_D_MAX];
    memcpy(turned, a->q + (at * (size_t)a->n_q_heads + (size_t)head) * (size_t)a->d,
            (size_t)a->d * sizeof *x);
    krn_rope_apply(a->rope,
            a->cos_sin + (at * (size_t)a->n_variants + (size_t)variant) * (size_t)a->rope->dims, turned);
    q->factor = (float)((double)a->scale * (double)a->sharpness[variant] * 1.4426950408889634);
    q->offset = 0.0f;
    for (int c = 0; c < a->d && space->mean != NULL; c++) {
        q->offset += turned[c] * space->mean[c];
    }
    q->offset *= q->factor;
    krn_rotate(&turn_only, a->d, turned, x);
    w->ops->pack(q, a->d);
}

static void prepare_task(void *ctx, int task)
{
    const attend *w = ctx;
    int row = task / w->a->n_q_heads, head = task % w->a->n_q_heads;
    for (int variant = 0; variant < w->a->n_variants; variant++) {
        prepare_query(w, row, variant, head);
    }
}

/* ---- chunks ---- */

/* How many rows of a chunk that starts at `start` in its span the query at `position` sees. */
static int visible_rows(const krn_span *s, int start, int rows, int64_t position)
{
    if (s->visible_to_all) {
        return rows;
    }
    int64_t seen = position - s->first_position - start + 1;
    return seen < 0 ? 0 : seen > rows ? rows : (int)seen;
}

/* One lane's walk over the spans for a tile of rows. */
typedef struct walk {
    const attend *w;
    const krn_attend_head *head;
    int kv_head, lane, row0, rows, which;
    int64_t lowest;     /* position of the tile's rows */
    int met_by_all;     /* chunks up to the first that some row does not see */
    int met[TILE_ROWS]; /* visible chunks of each row from there on */
} walk;

/* `dealt`: all rows see the chunk, and for all of them it is this lane's. */
static void run_chunk(walk *k, const krn_span *s, int start, int rows, bool dealt)
{
    const attend *w = k->w;
    attn_job jobs[TILE_ROWS * GROUP_MAX];
    int n = 0;
    for (int r = 0; r < k->rows; r++) {
        int row = k->row0 + r;
        int visible = visible_rows(s, start, rows, w->a->position[w->first_row + row]);
        if (visible == 0 || (!dealt && (k->met_by_all + k->met[r]++) % LANES != k->lane)) {
            continue;
        }
        for (int i = 0; i < w->group; i++) {
            int head = k->kv_head * w->group + i;
            jobs[n++] = (attn_job){.query = query_at(w, row, s->variant, head),
                    .state = state_at(w, row, head, k->which),
                    .visible = visible};
        }
    }
    if (n == 0) {
        return;
    }
    size_t skipped = (size_t)start * (size_t)w->a->d;
    attn_chunk c = {.d = w->a->d, .rows = rows, .format = &k->head->format, .levels = &w->levels[k->kv_head]};
    if (s->kind == KRN_SPAN_PAGE) {
        c.k = s->k;
        w->ops->page(&c, jobs, n);
    } else {
        c.k = (const uint16_t *)s->k + skipped;
        c.v = (const uint16_t *)s->v + skipped;
        w->ops->bf16(&c, jobs, n);
    }
}

static bool has_pages(const krn_attend_head *head)
{
    for (int i = 0; i < head->n_spans; i++) {
        if (head->spans[i].kind == KRN_SPAN_PAGE) {
            return true;
        }
    }
    return false;
}

static void start_walk(walk *k, const attend *w, int kv_head, int row0, int rows)
{
    const int64_t *position = w->a->position + w->first_row + row0;
    *k = (walk){.w = w, .head = &w->a->heads[kv_head], .kv_head = kv_head, .row0 = row0, .rows = rows};
    k->lowest = position[0];
    for (int r = 1; r < rows; r++) {
        k->lowest = position[r] < k->lowest ? position[r] : k->lowest;
    }
}

/* Runs one lane into the states `which` of the tile's rows. */
static void walk_lane(walk *k, int lane, int which)
{
    k->lane = lane;
    k->which = which;
    k->met_by_all = 0;
    memset(k->met, 0, sizeof k->met);
    for (int r = 0; r < k->rows; r++) {
        for (int i = 0; i < k->w->group; i++) {
            clear_state(state_at(k->w, k->row0 + r, k->kv_head * k->w->group + i, which), k->w->a->d);
        }
    }
    bool alike = true; /* all rows have seen every chunk */
    for (int i = 0; i < k->head->n_spans; i++) {
        const krn_span *s = &k->head->spans[i];
        for (int start = 0; start < s->rows; start += ATTN_CHUNK) {
            alike = alike && (s->visible_to_all || k->lowest - s->first_position >= start);
            if (alike && k->met_by_all++ % LANES != lane) {
                continue;
            }
            run_chunk(k, s, start, s->rows - start < ATTN_CHUNK ? s->rows - start : ATTN_CHUNK, alike);
        }
    }
}

/* ---- results ---- */

static void finish_query(const attend *w, int row, int head, const attn_state *s)
{
    const krn_attend_args *a = w->a;
    const float *o = s->o;
    float mean[ATTN_D_MAX], scale = s->total > 0.0f ? 1.0f / s->total : 0.0f;
    for (int c = 0; c < a->d; c++) {
        mean[c] = o[c] * scale;
    }
    size_t at = (size_t)(w->first_row + row) * (size_t)a->n_q_heads + (size_t)head;
    krn_rotate_inverse(&a->heads[head / w->group].v_rotation, a->d, mean, a->out + at * (size_t)a->d);
}

/* Prefill: a tile of rows of one KV head, all lanes. */
static void tile_task(void *ctx, int task)
{
    const attend *w = ctx;
    int kv_head = task % w->a->n_kv_heads, row0 = task / w->a->n_kv_heads * TILE_ROWS;
    int d = w->a->d, rows = w->rows - row0 < TILE_ROWS ? w->rows - row0 : TILE_ROWS;
    walk k;
    start_walk(&k, w, kv_head, row0, rows);
    for (int lane = 0; lane < w->lanes; lane++) {
        walk_lane(&k, lane, lane == 0 ? 0 : 1);
        for (int i = 0; i < rows * w->group && lane > 0; i++) {
            int row = row0 + i / w->group, head = kv_head * w->group + i % w->group;
            w->ops->merge(state_at(w, row, head, 0), state_at(w, row, head, 1), d);
        }
    }
    for (int i = 0; i < rows * w->group; i++) {
        int row = row0 + i / w->group, head = kv_head * w->group + i % w->group;
        finish_query(w, row, head, state_at(w, row, head, 0));
    }
}

/* Decode: one lane of one KV head. */
static void lane_task(void *ctx, int task)
{
    const attend *w = ctx;
    int lane = task / w->a->n_kv_heads;
    walk k;
    start_walk(&k, w, task % w->a->n_kv_heads, 0, w->rows);
    walk_lane(&k, lane, lane);
}

static void merge_task(void *ctx, int task)
{
    const attend *w = ctx;
    int row = task / w->a->n_q_heads, head = task % w->a->n_q_heads;
    attn_state *s = state_at(w, row, head, 0);
    for (int lane = 1; lane < w->lanes; lane++) {
        w->ops->merge(s, state_at(w, row, head, lane), w->a->d);
    }
    finish_query(w, row, head, s);
}

/* ---- the call ---- */

static void run_tasks(krn_pool *pool, void (*fn)(void *, int), attend *w, int tasks, int alone_max)
{
    if (tasks > alone_max) {
        krn_pool_run(pool, fn, w, tasks);
        return;
    }
    for (int i = 0; i < tasks; i++) {
        fn(w, i);
    }
}

static void run_block(krn_pool *pool, attend *w)
{
    int queries = w->rows * w->a->n_q_heads, variants = w->a->n_variants;
    run_tasks(pool, prepare_task, w, queries, queries * variants > PREPARED_ALONE_MAX ? 0 : queries);
    if (w->keep_lanes) {
        krn_pool_run(pool, lane_task, w, w->lanes * w->a->n_kv_heads);
        run_tasks(pool, merge_task, w, queries, FINISHED_ALONE_MAX);
    } else {
        int tiles = (w->rows + TILE_ROWS - 1) / TILE_ROWS;
        krn_pool_run(pool, tile_task, w, tiles * w->a->n_kv_heads);
    }
}

static const attn_ops *current_ops(void)
{
#if defined(__x86_64__)
    if (krn_isa_current() == KRN_ISA_AVX512) {
        return &attn_ops_avx512;
    }
    if (krn_isa_current() == KRN_ISA_AVX2) {
        return &attn_ops_avx2;
    }
#endif
    return &attn_ops_scalar;
}

static int lanes_used(const krn_attend_args *a)
{
    int most = 1;
    for (int h = 0; h < a->n_kv_heads; h++) {
        int chunks = 0;
        for (int i = 0; i < a->heads[h].n_spans && chunks < LANES; i++) {
            chunks += (a->heads[h].spans[i].rows + ATTN_CHUNK - 1) / ATTN_CHUNK;
        }
        most = chunks > most ? chunks : most;
    }
    return most < LANES ? most : LANES;
}

void krn_attend(krn_pool *pool, const krn_attend_args *a, void *workspace)
{
    REQUIRE(a->d == 64 || a->d == 128 || a->d == 256);
    REQUIRE(a->n_kv_heads > 0 && a->n_q_heads % a->n_kv_heads == 0 &&
            a->n_q_heads / a->n_kv_heads <= GROUP_MAX);
    attend w = {.a = a, .ops = current_ops(), .group = a->n_q_heads / a->n_kv_heads, .lanes = lanes_used(a)};
    w.levels = (attn_levels *)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    w.queries = (uint8_t *)w.levels + levels_bytes(a->n_kv_heads);
    w.states = w.queries + queries_bytes(a->n_rows, a->n_q_heads, a->d, a->n_variants);
    for (int h = 0; h < a->n_kv_heads; h++) {
        if (has_pages(&a->heads[h])) {
            attn_levels_set(&a->heads[h].format, &w.levels[h]);
        }
    }
    for (int row = 0; row < a->n_rows; row += BLOCK_ROWS) {
        w.first_row = row;
        w.rows = a->n_rows - row < BLOCK_ROWS ? a->n_rows - row : BLOCK_ROWS;
        w.keep_lanes = w.rows <= TILE_ROWS;
        run_block(pool, &w);
    }
}
