/* The product's forward pass: runs of several sequences as the rows of one batch, through the quantised matrix
 * products, while each run writes its own new K/V rows and attends to its own spans.
 *
 * 1. A row's result depends on the row and on what it attends to, never on the batch: every kernel here has that
 *    property (kernels.h), and the work between them is row by row. Tasks only cut the rows.
 * 2. New keys get the position's rotation, then the stored space's (krn_rotate), then bf16; the queries meet them
 *    there, so a token reads its own K/V as rounded as every later token will.
 * 3. Nothing is allocated after model_scratch_open. Large tables are sized for the worst case and cost memory only
 *    where they are touched. */
#include "agent/model_parts_internal.h"

#include <inttypes.h>
#include <string.h>

enum {
    ROWS_PER_TASK = 8,
    LOGIT_ROWS = 32 /* rows of several runs whose logits share a product */
};

struct model_scratch {
    const model *m;
    int max_rows;
    float *x, *normed, *delta; /* [rows][width] */
    float *q, *attended;       /* [rows][H][d] */
    float *k, *v;              /* [rows][K][d] */
    float *gate, *up;          /* [rows][ffn] */
    float *logits;             /* [LOGIT_ROWS][vocab] */
    float *own_angles;         /* [rows][dims / 2][2] at the token's position */
    float *variant_angles;     /* [run][row of run][variant of run][dims / 2][2] */
    int64_t *position;         /* [rows] */
    krn_rows *in;
    krn_attend_head *heads;    /* [K] */
    uint16_t **new_k, **new_v; /* [K] */
    void *workspace;
    device_scratch *on_device; /* instead of all the others; NULL: the model runs here */
};

/* What the row tasks of one step need. */
typedef struct step {
    model_scratch *s;
    const model_layer *layer;
    const float *norm; /* weights of the norm after a residual; NULL: none */
    const model_run *run;
    int first_row, n; /* of the batch, or of the run */
    size_t angles_at; /* of the run in variant_angles */
} step;

static void for_rows(const model *m, void (*fn)(void *ctx, int task), step *st)
{
    int tasks = (st->n + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    krn_pool_run(tasks > 1 ? m->pool : NULL, fn, st, tasks);
}

/* The rows of a task: [*from, *from + result), counted within the batch. */
static int task_rows(const step *st, int task, int *from)
{
    int left = st->n - task * ROWS_PER_TASK;
    *from = st->first_row + task * ROWS_PER_TASK;
    return left < ROWS_PER_TASK ? left : ROWS_PER_TASK;
}

static float *row_at(float *rows, int row, int cols)
{
    return rows + (size_t)row * (size_t)cols;
}

/* ---- steps between the products ---- */

static void residual_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    const model_config *c = &s->m->config;
    int from = 0;
    int n = task_rows(st, task, &from);
    float *x = row_at(s->x, from, c->width);
    krn_add(x, row_at(s->delta, from, c->width), (int64_t)n * c->width);
    if (st->norm != NULL) {
        krn_rmsnorm(x, st->norm, c->rms_eps, row_at(s->normed, from, c->width), n, c->width);
    }
}

static void norm_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    const model_config *c = &s->m->config;
    int from = 0;
    int n = task_rows(st, task, &from);
    krn_rmsnorm(row_at(s->x, from, c->width), st->norm, c->rms_eps, row_at(s->normed, from, c->width), n,
            c->width);
}

static void qk_norm_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    const model_config *c = &s->m->config;
    int from = 0;
    int n = task_rows(st, task, &from);
    float *q = row_at(s->q, from, c->q_heads * c->d);
    float *k = row_at(s->k, from, c->kv_heads * c->d);
    krn_rmsnorm(q, st->layer->q_norm, c->rms_eps, q, (int64_t)n * c->q_heads, c->d);
    krn_rmsnorm(k, st->layer->k_norm, c->rms_eps, k, (int64_t)n * c->kv_heads, c->d);
}

static void swiglu_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    int ffn = s->m->config.ffn;
    int from = 0;
    int n = task_rows(st, task, &from);
    float *gate = row_at(s->gate, from, ffn);
    krn_swiglu(gate, row_at(s->up, from, ffn), gate, (int64_t)n * ffn);
}

static void angles_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    const krn_rope *rope = &s->m->config.rope;
    const model_kv *kv = st->run->kv;
    int from = 0;
    int n = task_rows(st, task, &from);
    for (int row = from; row < from + n; row++) {
        size_t row_of_run = (size_t)(row - st->first_row);
        float *angles =
                s->variant_angles + st->angles_at + row_of_run * (size_t)kv->n_variants * (size_t)rope->dims;
        krn_rope_angles(rope, s->position[row], row_at(s->own_angles, row, rope->dims));
        for (int i = 0; i < kv->n_variants; i++) {
            krn_rope_angles(rope, s->position[row] - kv->shift[i], angles + (size_t)i * (size_t)rope->dims);
        }
    }
}

/* New rows of all KV heads of a run: position, stored space, bf16. */
static void store_task(void *ctx, int task)
{
    const step *st = ctx;
    model_scratch *s = st->s;
    const model_config *c = &s->m->config;
    int from = 0;
    int n = task_rows(st, task, &from);
    for (int row = from; row < from + n; row++) {
        size_t stored_at = (size_t)(row - st->first_row) * (size_t)c->d;
        for (int head = 0; head < c->kv_heads; head++) {
            float *k = row_at(s->k, row, c->kv_heads * c->d) + head * c->d;
            const float *v = row_at(s->v, row, c->kv_heads * c->d) + head * c->d;
            krn_rope_apply(&c->rope, row_at(s->own_angles, row, c->rope.dims), k);
            krn_rotate_to_bf16(&s->heads[head].k_rotation, c->d, k, s->new_k[head] + stored_at);
            krn_rotate_to_bf16(&s->heads[head].v_rotation, c->d, v, s->new_v[head] + stored_at);
        }
    }
}

/* ---- attention of one run in one layer ---- */

static void attend(model_scratch *s, step *st, int layer)
{
    const model_config *c = &s->m->config;
    const model_kv *kv = st->run->kv;
    for (int head = 0; head < c->kv_heads; head++) {
        krn_attend_head *h = &s->heads[head];
        kv->space(kv->ctx, layer, head, &h->k_rotation, &h->v_rotation, &h->format);
        kv->new_rows(kv->ctx, layer, head, &s->new_k[head], &s->new_v[head]);
    }
    for_rows(s->m, store_task, st);
    if (kv->tap != NULL) {
        kv->tap(kv->tap_ctx, layer, row_at(s->q, st->first_row, c->q_heads * c->d),
                row_at(s->k, st->first_row, c->kv_heads * c->d),
                row_at(s->v, st->first_row, c->kv_heads * c->d));
    }
    for (int head = 0; head < c->kv_heads; head++) {
        kv->spans(kv->ctx, layer, head, &s->heads[head].spans, &s->heads[head].n_spans);
    }
    krn_attend_args args = {
            .n_rows = st->n,
            .n_q_heads = c->q_heads,
            .n_kv_heads = c->kv_heads,
            .d = c->d,
            .q = row_at(s->q, st->first_row, c->q_heads * c->d),
            .position = s->position + st->first_row,
            .scale = c->attention_scale,
            .rope = &c->rope,
            .n_variants = kv->n_variants,
            .cos_sin = s->variant_angles + st->angles_at,
            .sharpness = kv->sharpness,
            .heads = s->heads,
            .out = row_at(s->attended, st->first_row, c->q_heads * c->d),
    };
    krn_attend(s->m->pool, &args, s->workspace);
}

/* Calls fn for each run, with the run's rows in the step. */
static void for_runs(model_scratch *s,
        const model_run *runs,
        int n_runs,
        void (*fn)(model_scratch *, step *, int),
        int layer)
{
    step st = {.s = s};
    for (int i = 0; i < n_runs; i++) {
        st.run = &runs[i];
        st.n = runs[i].n;
        fn(s, &st, layer);
        st.first_row += st.n;
        st.angles_at += (size_t)st.n * (size_t)runs[i].kv->n_variants * (size_t)s->m->config.rope.dims;
    }
}

static void compute_angles(model_scratch *s, step *st, int layer)
{
    (void)layer;
    for (int i = 0; i < st->n; i++) {
        s->position[st->first_row + i] = st->run->first_position + i;
    }
    for_rows(s->m, angles_task, st);
}

/* ---- products ---- */

/* Loads rows in the forms that the matrices read; those of one input may differ in type. */
static void
load(model_scratch *s, const float *x, int n, int cols, const model_matrix *const *matrices, int n_matrices)
{
    unsigned forms = 0;
    for (int i = 0; i < n_matrices; i++) {
        forms |= krn_matrix_reads(matrices[i]->opened);
    }
    krn_rows_keep(s->in, forms);
    krn_rows_load(s->m->pool, s->in, x, cols, n, cols);
}

/* All loaded rows, n of them. */
static void multiply(model_scratch *s, const model_matrix *w, float *y, int n)
{
    int64_t cols = krn_matrix_rows(w->opened);
    krn_matmul(s->m->pool, w->opened, s->in, y, cols);
    if (w->bias != NULL) {
        krn_add_bias(y, w->bias, n, cols);
    }
}

static void run_layer(model_scratch *s, const model_run *runs, int n_runs, int n, int layer)
{
    const model *m = s->m;
    const model_config *c = &m->config;
    const model_layer *l = &m->layers[layer];
    step st = {.s = s, .layer = l, .n = n};

    load(s, s->normed, n, c->width, (const model_matrix *[]){&l->q, &l->k, &l->v}, 3);
    multiply(s, &l->q, s->q, n);
    multiply(s, &l->k, s->k, n);
    multiply(s, &l->v, s->v, n);
    if (l->q_norm != NULL) {
        for_rows(m, qk_norm_task, &st);
    }
    for_runs(s, runs, n_runs, attend, layer);
    load(s, s->attended, n, c->q_heads * c->d, (const model_matrix *[]){&l->o}, 1);
    multiply(s, &l->o, s->delta, n);
    st.norm = l->ffn_norm;
    for_rows(m, residual_task, &st);

    load(s, s->normed, n, c->width, (const model_matrix *[]){&l->gate, &l->up}, 2);
    multiply(s, &l->gate, s->gate, n);
    multiply(s, &l->up, s->up, n);
    for_rows(m, swiglu_task, &st);
    load(s, s->gate, n, c->ffn, (const model_matrix *[]){&l->down}, 1);
    multiply(s, &l->down, s->delta, n);
    st.norm = layer + 1 < c->layers ? m->layers[layer + 1].attention_norm : NULL;
    for_rows(m, residual_task, &st);
}

/* ---- in and out ---- */

static void embed(model_scratch *s, const model_run *runs, int n_runs)
{
    const gguf_tensor *w = s->m->embedding;
    int64_t row_bytes = w->size[0] / krn_type_block_elements(w->type) * krn_type_block_bytes(w->type);
    float *x = s->x;
    for (int i = 0; i < n_runs; i++) {
        for (int t = 0; t < runs[i].n; t++) {
            krn_dequantize(w->type, (const uint8_t *)w->data + runs[i].ids[t] * row_bytes, x, w->size[0]);
            x += w->size[0];
        }
    }
}

/* Logits of `n` consecutive rows straight into place: [n][vocab] at out. */
static void logits_of_rows(model_scratch *s, int first_row, int n, float *out)
{
    const model_config *c = &s->m->config;
    step st = {.s = s, .norm = s->m->output_norm, .first_row = first_row, .n = n};
    for_rows(s->m, norm_task, &st);
    load(s, row_at(s->normed, first_row, c->width), n, c->width, (const model_matrix *[]){&s->m->output}, 1);
    multiply(s, &s->m->output, out, n);
}

/* One wanted row of each of the runs [first, end), gathered in the head of `normed`: the weights are read once. */
static void logits_of_runs(model_scratch *s, const model_run *runs, int n_runs)
{
    const model_config *c = &s->m->config;
    float *to[LOGIT_ROWS];
    int n = 0;
    int row = 0;
    for (int i = 0; i < n_runs; i++) {
        row += runs[i].n;
        if (runs[i].n_logits == 1) {
            krn_rmsnorm(row_at(s->x, row - 1, c->width), s->m->output_norm, c->rms_eps,
                    row_at(s->normed, n, c->width), 1, c->width);
            to[n++] = runs[i].logits;
        }
        if (n == LOGIT_ROWS || (n > 0 && i + 1 == n_runs)) {
            load(s, s->normed, n, c->width, (const model_matrix *[]){&s->m->output}, 1);
            multiply(s, &s->m->output, s->logits, n);
            for (int j = 0; j < n; j++) {
                memcpy(to[j], row_at(s->logits, j, c->vocab), (size_t)c->vocab * sizeof(float));
            }
            n = 0;
        }
    }
}

static void logits_of_all(model_scratch *s, const model_run *runs, int n_runs)
{
    int with_one = 0;
    int row = 0;
    for (int i = 0; i < n_runs; i++) {
        with_one += runs[i].n_logits == 1;
    }
    for (int i = 0; i < n_runs; i++) {
        row += runs[i].n;
        if (runs[i].n_logits > 1 || (runs[i].n_logits == 1 && with_one == 1)) {
            logits_of_rows(s, row - runs[i].n_logits, runs[i].n_logits, runs[i].logits);
        }
    }
    if (with_one > 1) {
        logits_of_runs(s, runs, n_runs);
    }
}

static status check_runs(const model_scratch *s, const model_run *runs, int n_runs, int *rows, err *e)
{
    *rows = 0;
    for (int i = 0; i < n_runs; i++) {
        const model_run *r = &runs[i];
        REQUIRE(r->n >= 0 && r->n_logits >= 0 && r->n_logits <= r->n && r->kv->n_variants > 0);
        if (r->n > s->max_rows - *rows || r->kv->n_variants > MODEL_VARIANTS_MAX) {
            return FAIL(e, ST_ERR_LIMIT, "a forward pass of more than %d rows or %d query variants",
                    s->max_rows, MODEL_VARIANTS_MAX);
        }
        *rows += r->n;
        for (int t = 0; t < r->n; t++) {
            if (r->ids[t] < 0 || r->ids[t] >= s->m->config.vocab) {
                return FAIL(e, ST_ERR_ARG, "token id %d is outside the vocabulary, must be 0 to %d",
                        r->ids[t], s->m->config.vocab - 1);
            }
        }
    }
    return ST_OK;
}

status model_forward(const model *m, model_scratch *s, const model_run *runs, int n_runs, err *e)
{
    int n = 0;
    REQUIRE(s->m == m);
    TRY(check_runs(s, runs, n_runs, &n, e));
    if (n == 0) {
        return ST_OK;
    }
    if (s->on_device != NULL) {
        return device_forward(s->on_device, runs, n_runs, n, e);
    }
    step st = {.s = s, .norm = m->layers[0].attention_norm, .n = n};
    embed(s, runs, n_runs);
    for_runs(s, runs, n_runs, compute_angles, 0);
    for_rows(m, norm_task, &st);
    for (int layer = 0; layer < m->config.layers; layer++) {
        run_layer(s, runs, n_runs, n, layer);
    }
    logits_of_all(s, runs, n_runs);
    return ST_OK;
}

/* ---- scratch ---- */

static status open_buffers(model_scratch *s)
{
    const model_config *c = &s->m->config;
    size_t rows = (size_t)s->max_rows;
    size_t logit_rows = rows < LOGIT_ROWS ? rows : LOGIT_ROWS;
    size_t variants = rows * (size_t)MODEL_VARIANTS_MAX;
    struct wanted {
        float **buffer;
        size_t rows, cols;
    } all[] = {
            {&s->x, rows, (size_t)c->width},
            {&s->normed, rows, (size_t)c->width},
            {&s->delta, rows, (size_t)c->width},
            {&s->q, rows, (size_t)(c->q_heads * c->d)},
            {&s->attended, rows, (size_t)(c->q_heads * c->d)},
            {&s->k, rows, (size_t)(c->kv_heads * c->d)},
            {&s->v, rows, (size_t)(c->kv_heads * c->d)},
            {&s->gate, rows, (size_t)c->ffn},
            {&s->up, rows, (size_t)c->ffn},
            {&s->logits, logit_rows, (size_t)c->vocab},
            {&s->own_angles, rows, (size_t)c->rope.dims},
            {&s->variant_angles, variants, (size_t)c->rope.dims},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t bytes;
        if (!base_mul(all[i].rows, all[i].cols * sizeof(float), &bytes)) {
            return ST_ERR_LIMIT;
        }
        *all[i].buffer = base_alloc((size_t)bytes);
        if (*all[i].buffer == NULL) {
            return ST_ERR_MEMORY;
        }
    }
    s->position = base_zalloc(rows, sizeof *s->position);
    s->heads = base_zalloc((size_t)c->kv_heads, sizeof *s->heads);
    s->new_k = base_zalloc((size_t)c->kv_heads, sizeof *s->new_k);
    s->new_v = base_zalloc((size_t)c->kv_heads, sizeof *s->new_v);
    s->workspace = base_alloc(krn_attend_workspace_bytes(s->max_rows, c->q_heads, c->d, MODEL_VARIANTS_MAX));
    bool ok = s->position != NULL && s->heads != NULL && s->new_k != NULL && s->new_v != NULL &&
            s->workspace != NULL;
    return ok ? ST_OK : ST_ERR_MEMORY;
}

status model_scratch_open(const model *m, int max_rows, model_scratch **out, err *e)
{
    REQUIRE(max_rows > 0);
    model_scratch *s = base_zalloc(1, sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a forward pass");
    }
    s->m = m;
    s->max_rows = max_rows;
    status st = ST_OK;
    if (m->device != NULL) {
        st = device_scratch_open(m, max_rows, &s->on_device, e);
    } else {
        st = krn_rows_open(max_rows, model_widest_row(&m->config), &s->in, e);
        if (st == ST_OK && (st = open_buffers(s)) != ST_OK) {
            st = FAIL(e, st, "out of memory for a forward pass of %d rows", max_rows);
        }
    }
    if (st != ST_OK) {
        model_scratch_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void model_scratch_close(model_scratch *s)
{
    if (s == NULL) {
        return;
    }
    float *buffers[] = {s->x, s->normed, s->delta, s->q, s->attended, s->k, s->v, s->gate, s->up, s->logits,
            s->own_angles, s->variant_angles};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        base_free(buffers[i]);
    }
    base_free(s->position);
    base_free(s->heads);
    base_free(s->new_k);
    base_free(s->new_v);
    base_free(s->workspace);
    krn_rows_close(s->in);
    device_scratch_close(s->on_device);
    base_free(s);
}
