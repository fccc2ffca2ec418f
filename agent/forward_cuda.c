/* The forward pass on the device: the steps of forward.c with the device's operations. The host looks up embeddings,
 * plans the attention and gets back logits and new rows, which it writes to where the session keeps them.
 *
 * Everything of a pass goes into one stream; the host waits once, at the end. Pinned buffers are rewritten by the next
 * pass, after that wait. */
#include <string.h>

#include "agent/model_cuda_internal.h"

enum { LOGIT_ROWS = 64, CONTROL_ALIGNED = 16, GRAPHS = 8, POOL_ROWS = 16 };

/* What a recorded pass depends on beside fixed addresses. */
typedef struct graph_key {
    uint64_t space_id, tiles_at, counters_at, partials_at;
    int n, variants, wanted, n_blocks, cluster;
    bool gathers;
} graph_key;
typedef struct graph_slot {
    graph_key key;
    cuda_graph *graph; /* NULL: seen once */
    uint64_t used;
} graph_slot;

/* Small inputs of a pass, one pinned block and its copy on the device, at the same offsets. */
typedef struct control {
    uint64_t position_at, run_at, which_at, unit_at, shift_at, sharpness_at, bytes;
    char *host, *device;
} control;

/* Where a run's new rows of one layer and head go. */
typedef struct head_target {
    uint16_t *k, *v;
} head_target;

struct device_scratch {
    model_device *d;
    int max_rows;
    cuda_rows *in;
    float *x, *q, *k, *v, *attended, *gate, *up, *logits;
    float *own_angles, *variant_angles;
    uint16_t *packed; /* new rows [rows][layers][K][K, V][d] */
    device_attention *attention;
    control control;
    float *host_x;         /* pinned [rows][width] */
    float *host_logits;    /* pinned [LOGIT_ROWS][vocab] */
    uint16_t *host_packed; /* pinned */
    head_target *targets;  /* [layers][K] */
    graph_slot graphs[GRAPHS];
    uint64_t passes;
};

static size_t packed_row(const model_config *c)
{
    return (size_t)c->layers * (size_t)c->kv_heads * 2 * (size_t)c->d;
}

/* ---- inputs ---- */

static status embed(device_scratch *s, const model_run *runs, int n_runs, int n, err *e)
{
    const gguf_tensor *w = s->d->m->embedding;
    int64_t row_bytes = w->size[0] / krn_type_block_elements(w->type) * krn_type_block_bytes(w->type);
    float *x = s->host_x;
    for (int i = 0; i < n_runs; i++) {
        for (int t = 0; t < runs[i].n; t++) {
            krn_dequantize(w->type, (const uint8_t *)w->data + runs[i].ids[t] * row_bytes, x, w->size[0]);
            x += w->size[0];
        }
    }
    return cuda_copy_in_pinned(
            s->d->device, s->x, s->host_x, (uint64_t)n * (uint64_t)w->size[0] * sizeof *x, e);
}

/* Rows whose logits are wanted, in the order of the runs. */
static int list_wanted(const model_run *runs, int n_runs, int32_t *which)
{
    int n = 0, row = 0;
    for (int i = 0; i < n_runs; i++) {
        row += runs[i].n;
        for (int j = runs[i].n_logits; j > 0; j--) {
            which[n++] = row - j;
        }
    }
    return n;
}

static int widest_view(const model_run *runs, int n_runs)
{
    int n = 1;
    for (int i = 0; i < n_runs; i++) {
        n = runs[i].kv->n_variants > n ? runs[i].kv->n_variants : n;
    }
    return n;
}

static uint64_t place(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at += (bytes + CONTROL_ALIGNED - 1) / CONTROL_ALIGNED * CONTROL_ALIGNED;
    return here;
}

static void lay_out_control(control *c, uint64_t rows, uint64_t variants)
{
    uint64_t at = 0;
    c->position_at = place(&at, rows * sizeof(int64_t));
    c->run_at = place(&at, rows * sizeof(int32_t));
    c->which_at = place(&at, rows * sizeof(int32_t));
    c->unit_at = place(&at, rows * sizeof(uint64_t));
    c->shift_at = place(&at, rows * variants * sizeof(int64_t));
    c->sharpness_at = place(&at, rows * variants * sizeof(float));
    c->bytes = at;
}

/* Fills and sends the control block; the attention's plan goes with it. */
static status send_control(
        device_scratch *s, const model_run *runs, int n_runs, int n, int variants, int *wanted, err *e)
{
    control *c = &s->control;
    lay_out_control(c, (uint64_t)n, (uint64_t)variants);
    int64_t *position = (void *)(c->host + c->position_at), *shift = (void *)(c->host + c->shift_at);
    int32_t *run_of = (void *)(c->host + c->run_at);
    float *sharpness = (void *)(c->host + c->sharpness_at);
    *wanted = list_wanted(runs, n_runs, (void *)(c->host + c->which_at));
    TRY(device_attention_plan(s->attention, runs, n_runs, (void *)(c->host + c->unit_at), e));
    memset(shift, 0, (size_t)n * (size_t)variants * sizeof *shift);
    memset(sharpness, 0, (size_t)n * (size_t)variants * sizeof *sharpness);
    for (int i = 0, row = 0, used = 0; i < n_runs; i++) {
        const model_kv *kv = runs[i].kv;
        if (runs[i].n == 0) {
            continue;
        }
        size_t views = (size_t)kv->n_variants;
        memcpy(shift + (size_t)used * (size_t)variants, kv->shift, views * sizeof *shift);
        for (int t = 0; t < runs[i].n; t++, row++) {
            position[row] = runs[i].first_position + t;
            run_of[row] = used;
            memcpy(sharpness + (size_t)row * (size_t)variants, kv->sharpness, views * sizeof *sharpness);
        }
        used++;
    }
    return cuda_copy_in_pinned(s->d->device, c->device, c->host, c->bytes, e);
}

static status compute_angles(device_scratch *s, int n, int variants, err *e)
{
    const krn_rope *rope = &s->d->m->config.rope;
    const control *c = &s->control;
    cuda_angles a = {.dims = rope->dims,
            .n_variants = variants,
            .magnitude = rope->magnitude,
            .inv_freq = s->d->inv_freq,
            .position = (void *)(c->device + c->position_at),
            .run = (void *)(c->device + c->run_at),
            .shift = (void *)(c->device + c->shift_at),
            .own = s->own_angles,
            .cos_sin = s->variant_angles};
    return cuda_rope_angles(s->d->device, &a, n, e);
}

/* ---- layers ---- */

static bool has_taps(const model_run *runs, int n_runs)
{
    bool any = false;
    for (int i = 0; i < n_runs; i++) {
        any = any || runs[i].kv->tap != NULL;
    }
    return any;
}

/* Tells the taps of the runs their rows of the layer. */
static status tell_taps(device_scratch *s, const model_run *runs, int n_runs, int n, int layer, err *e)
{
    const model_config *c = &s->d->m->config;
    size_t q_cols = (size_t)c->q_heads * (size_t)c->d, kv_cols = (size_t)c->kv_heads * (size_t)c->d, row = 0;
    if (!has_taps(runs, n_runs)) {
        return ST_OK;
    }
    size_t rows = (size_t)n;
    void *pinned = NULL;
    TRY(cuda_take_pinned(s->d->device, rows * (q_cols + 2 * kv_cols) * sizeof(float), &pinned, e));
    float *q = pinned, *k = q + rows * q_cols, *v = k + rows * kv_cols;
    status st = cuda_copy_out_pinned(s->d->device, q, s->q, rows * q_cols * sizeof *q, e);
    st = st == ST_OK ? cuda_copy_out_pinned(s->d->device, k, s->k, rows * kv_cols * sizeof *k, e) : st;
    st = st == ST_OK ? cuda_copy_out_pinned(s->d->device, v, s->v, rows * kv_cols * sizeof *v, e) : st;
    st = st == ST_OK ? cuda_device_wait(s->d->device, e) : st;
    for (int i = 0; st == ST_OK && i < n_runs; i++) {
        if (runs[i].kv->tap != NULL) {
            runs[i].kv->tap(
                    runs[i].kv->tap_ctx, layer, q + row * q_cols, k + row * kv_cols, v + row * kv_cols);
        }
        row += (size_t)runs[i].n;
    }
    cuda_release_pinned(s->d->device, pinned);
    return st;
}

static status store_rows(device_scratch *s, int n, int layer, err *e)
{
    const model_config *c = &s->d->m->config;
    const device_space *space = &s->d->spaces[layer];
    uint64_t page = kv_mirror_unit_page_bytes(s->d->mirror);
    cuda_new_rows a = {.d = c->d,
            .kv_heads = c->kv_heads,
            .layer = layer,
            .layers = c->layers,
            .pairing = c->rope.pairing,
            .rope_dims = c->rope.dims,
            .own_angles = s->own_angles,
            .k_space = space->k,
            .v_space = space->store_v,
            .k = s->k,
            .v = s->v,
            .unit = (void *)(s->control.device + s->control.unit_at),
            .layer_offset = page * (uint64_t)c->kv_heads * (uint64_t)layer,
            .head_stride = page,
            .v_offset = page / 2,
            .packed = s->packed};
    return cuda_store_rows(s->d->device, &a, n, e);
}

static cuda_product product(const device_matrix *w, float *y, bool add)
{
    return (cuda_product){.matrix = w->weights, .bias = w->bias, .y = y, .add = add};
}

static status attend(
        device_scratch *s, const model_run *runs, int n_runs, int n, int variants, int layer, err *e)
{
    const model_config *c = &s->d->m->config;
    const device_layer *l = &s->d->layers[layer];
    cuda_device *device = s->d->device;
    cuda_product qkv[] = {
            product(&l->q, s->q, false), product(&l->k, s->k, false), product(&l->v, s->v, false)};
    TRY(cuda_rows_load_norm(device, s->in, s->x, NULL, l->attention_norm, c->rms_eps, n, c->width, e));
    TRY(cuda_matmul(device, s->in, qkv, 3, e));
    if (l->q_norm != NULL) {
        cuda_head_norms norms = {.q = s->q,
                .k = s->k,
                .q_weight = l->q_norm,
                .k_weight = l->k_norm,
                .q_rows = (int64_t)n * c->q_heads,
                .k_rows = (int64_t)n * c->kv_heads,
                .cols = c->d,
                .eps = c->rms_eps};
        TRY(cuda_norm_heads(device, &norms, e));
    }
    TRY(store_rows(s, n, layer, e));
    TRY(tell_taps(s, runs, n_runs, n, layer, e));
    TRY(device_attention_run(s->attention, layer, variants, s->variant_angles,
            (void *)(s->control.device + s->control.sharpness_at), s->q, s->attended, e));
    TRY(cuda_rows_load(device, s->in, s->attended, n, (int64_t)c->q_heads * c->d, e));
    cuda_product o = product(&l->o, s->x, true);
    return cuda_matmul(device, s->in, &o, 1, e);
}

static status feed_forward(device_scratch *s, int n, int layer, err *e)
{
    const model_config *c = &s->d->m->config;
    const device_layer *l = &s->d->layers[layer];
    cuda_device *device = s->d->device;
    cuda_product gate_up[] = {product(&l->gate, s->gate, false), product(&l->up, s->up, false)};
    TRY(cuda_rows_load_norm(device, s->in, s->x, NULL, l->ffn_norm, c->rms_eps, n, c->width, e));
    TRY(cuda_matmul(device, s->in, gate_up, 2, e));
    TRY(cuda_rows_load_swiglu(device, s->in, s->gate, s->up, n, c->ffn, e));
    cuda_product down = product(&l->down, s->x, true);
    return cuda_matmul(device, s->in, &down, 1, e);
}

/* ---- outputs ---- */

/* Where the wanted row number `index` goes. */
static float *logits_place(const model_run *runs, int n_runs, int index, int vocab)
{
    for (int i = 0; i < n_runs; i++) {
        if (index < runs[i].n_logits) {
            return runs[i].logits + (size_t)index * (size_t)vocab;
        }
        index -= runs[i].n_logits;
    }
    return NULL;
}

/* Logits of n wanted rows from number `first` on, at most LOGIT_ROWS. */
static status compute_logits(device_scratch *s, int first, int n, err *e)
{
    const model_config *c = &s->d->m->config;
    const int32_t *which = (void *)(s->control.device + s->control.which_at);
    cuda_product output = product(&s->d->output, s->logits, false);
    TRY(cuda_rows_load_norm(
            s->d->device, s->in, s->x, which + first, s->d->output_norm, c->rms_eps, n, c->width, e));
    return cuda_matmul(s->d->device, s->in, &output, 1, e);
}

typedef struct logits_copy {
    const device_scratch *s;
    const model_run *runs;
    int n_runs, first;
} logits_copy;

static void copy_logits(void *ctx, int task)
{
    const logits_copy *job = ctx;
    int vocab = job->s->d->m->config.vocab;
    memcpy(logits_place(job->runs, job->n_runs, job->first + task, vocab),
            job->s->host_logits + (size_t)task * (size_t)vocab, (size_t)vocab * sizeof(float));
}

/* The first LOGIT_ROWS of them have been computed. */
static status bring_logits(device_scratch *s, const model_run *runs, int n_runs, int wanted, err *e)
{
    const model_config *c = &s->d->m->config;
    size_t row_bytes = (size_t)c->vocab * sizeof(float);
    for (int first = 0; first < wanted; first += LOGIT_ROWS) {
        int n = wanted - first < LOGIT_ROWS ? wanted - first : LOGIT_ROWS;
        if (first > 0) {
            TRY(compute_logits(s, first, n, e));
        }
        TRY(cuda_copy_out_pinned(s->d->device, s->host_logits, s->logits, (size_t)n * row_bytes, e));
        TRY(cuda_device_wait(s->d->device, e));
        logits_copy job = {.s = s, .runs = runs, .n_runs = n_runs, .first = first};
        krn_pool_run(n > 1 ? s->d->m->pool : NULL, copy_logits, &job, n);
    }
    return ST_OK;
}

/* Rows of one run, from the packed ones to where the session keeps them. */
typedef struct scatter {
    const device_scratch *s;
    const uint16_t *from;
    int n;
} scatter;

static void scatter_head(void *ctx, int task)
{
    const scatter *job = ctx;
    size_t d = (size_t)job->s->d->m->config.d, each = packed_row(&job->s->d->m->config);
    const head_target *to = &job->s->targets[task];
    const uint16_t *from = job->from + (size_t)task * 2 * d;
    for (size_t t = 0; t < (size_t)job->n; t++) {
        memcpy(to->k + t * d, from + t * each, d * sizeof *from);
        memcpy(to->v + t * d, from + t * each + d, d * sizeof *from);
    }
}

static void scatter_rows(const device_scratch *s, const model_run *runs, int n_runs)
{
    const model_config *c = &s->d->m->config;
    const uint16_t *from = s->host_packed;
    for (int i = 0; i < n_runs; i++) {
        int heads = c->layers * c->kv_heads;
        if (runs[i].n == 0) {
            continue;
        }
        for (int h = 0; h < heads; h++) {
            runs[i].kv->new_rows(
                    runs[i].kv->ctx, h / c->kv_heads, h % c->kv_heads, &s->targets[h].k, &s->targets[h].v);
        }
        scatter job = {.s = s, .from = from, .n = runs[i].n};
        krn_pool_run(runs[i].n >= POOL_ROWS ? s->d->m->pool : NULL, scatter_head, &job, heads);
        from += (size_t)runs[i].n * packed_row(c);
    }
}

static const model_kv *first_kv(const model_run *runs, int n_runs)
{
    const model_kv *kv = NULL;
    for (int i = 0; i < n_runs; i++) {
        if (runs[i].n > 0) {
            REQUIRE(kv == NULL || kv->space_id == runs[i].kv->space_id);
            kv = kv == NULL ? runs[i].kv : kv;
        }
    }
    return kv;
}

/* ---- a pass ---- */

static void forget_graphs(device_scratch *s)
{
    for (int i = 0; i < GRAPHS; i++) {
        cuda_graph_close(s->graphs[i].graph);
        s->graphs[i] = (graph_slot){0};
    }
}

/* All launches of a pass, up to the first LOGIT_ROWS rows of logits. */
static status compute(device_scratch *s, const model_run *runs, int n_runs, const graph_key *k, err *e)
{
    TRY(compute_angles(s, k->n, k->variants, e));
    for (int layer = 0; layer < s->d->m->config.layers; layer++) {
        TRY(attend(s, runs, n_runs, k->n, k->variants, layer, e));
        TRY(feed_forward(s, k->n, layer, e));
    }
    int first = k->wanted < LOGIT_ROWS ? k->wanted : LOGIT_ROWS;
    return first > 0 ? compute_logits(s, 0, first, e) : ST_OK;
}

static bool keys_equal(const graph_key *a, const graph_key *b)
{
    return a->space_id == b->space_id && a->tiles_at == b->tiles_at && a->counters_at == b->counters_at &&
            a->partials_at == b->partials_at && a->n == b->n && a->variants == b->variants &&
            a->wanted == b->wanted && a->n_blocks == b->n_blocks && a->cluster == b->cluster &&
            a->gathers == b->gathers;
}

/* The slot of this key, or the one longest not used, emptied for it. */
static graph_slot *find_graph(device_scratch *s, const graph_key *k, bool *seen)
{
    graph_slot *oldest = &s->graphs[0];
    for (int i = 0; i < GRAPHS; i++) {
        graph_slot *g = &s->graphs[i];
        if (g->used > 0 && keys_equal(&g->key, k)) {
            *seen = true;
            return g;
        }
        oldest = g->used < oldest->used ? g : oldest;
    }
    cuda_graph_close(oldest->graph);
    *oldest = (graph_slot){.key = *k};
    *seen = false;
    return oldest;
}

static status record(device_scratch *s, const model_run *runs, int n_runs, graph_slot *g, err *e)
{
    TRY(cuda_graph_begin(s->d->device, e));
    status st = compute(s, runs, n_runs, &g->key, e);
    status ended = cuda_graph_end(s->d->device, &g->graph, st == ST_OK ? e : NULL);
    return st == ST_OK ? ended : st;
}

/* Small passes are recorded when they come a second time: a decode step is hundreds of short launches. */
static status compute_or_repeat(device_scratch *s, const model_run *runs, int n_runs, graph_key *k, err *e)
{
    const attention_plan *plan = device_attention_single(s->attention);
    if (k->n > DEVICE_RECORDED_ROWS || plan == NULL || has_taps(runs, n_runs)) {
        return compute(s, runs, n_runs, k, e);
    }
    bool seen = false;
    k->tiles_at = plan->plan.tiles_at;
    k->counters_at = plan->plan.counters_at;
    k->partials_at = plan->plan.partials_at;
    k->n_blocks = plan->plan.n_blocks;
    k->cluster = plan->plan.cluster;
    k->gathers = plan->plan.gathers;
    graph_slot *g = find_graph(s, k, &seen);
    g->used = ++s->passes;
    if (!seen) {
        return compute(s, runs, n_runs, k, e);
    }
    if (g->graph == NULL) {
        TRY(record(s, runs, n_runs, g, e));
    }
    return cuda_graph_run(s->d->device, g->graph, e);
}

status device_forward(device_scratch *s, const model_run *runs, int n_runs, int n, err *e)
{
    const model_config *c = &s->d->m->config;
    const model_kv *kv = first_kv(runs, n_runs);
    graph_key k = {.space_id = kv->space_id, .n = n, .variants = widest_view(runs, n_runs)};
    if (!device_has_spaces(s->d, kv)) {
        forget_graphs(s);
        TRY(device_set_spaces(s->d, kv, e));
    }
    TRY(embed(s, runs, n_runs, n, e));
    TRY(send_control(s, runs, n_runs, n, k.variants, &k.wanted, e));
    TRY(compute_or_repeat(s, runs, n_runs, &k, e));
    uint64_t bytes = (uint64_t)n * packed_row(c) * sizeof(uint16_t);
    TRY(cuda_copy_out_pinned(s->d->device, s->host_packed, s->packed, bytes, e));
    TRY(bring_logits(s, runs, n_runs, k.wanted, e));
    TRY(cuda_device_wait(s->d->device, e));
    scatter_rows(s, runs, n_runs);
    kv_mirror_commit(s->d->mirror);
    return ST_OK;
}

/* ---- scratch ---- */

static status take_device_memory(device_scratch *s, err *e)
{
    const model_config *c = &s->d->m->config;
    size_t rows = (size_t)s->max_rows, dims = (size_t)c->rope.dims, variants = MODEL_VARIANTS_MAX;
    struct wanted {
        float **buffer;
        size_t rows, cols;
    } all[] = {
            {&s->x, rows, (size_t)c->width},
            {&s->q, rows, (size_t)(c->q_heads * c->d)},
            {&s->attended, rows, (size_t)(c->q_heads * c->d)},
            {&s->k, rows, (size_t)(c->kv_heads * c->d)},
            {&s->v, rows, (size_t)(c->kv_heads * c->d)},
            {&s->gate, rows, (size_t)c->ffn},
            {&s->up, rows, (size_t)c->ffn},
            {&s->logits, LOGIT_ROWS, (size_t)c->vocab},
            {&s->own_angles, rows, dims},
            {&s->variant_angles, rows * variants, dims},
    };
    void *memory = NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        TRY(cuda_take(s->d->device, all[i].rows * all[i].cols * sizeof(float), "a forward pass", &memory, e));
        *all[i].buffer = memory;
    }
    TRY(cuda_take(s->d->device, rows * packed_row(c) * sizeof(uint16_t), "new rows", &memory, e));
    s->packed = memory;
    lay_out_control(&s->control, rows, variants);
    TRY(cuda_take(s->d->device, s->control.bytes, "a forward pass", &memory, e));
    s->control.device = memory;
    return ST_OK;
}

static status take_host_memory(device_scratch *s, err *e)
{
    const model_config *c = &s->d->m->config;
    size_t rows = (size_t)s->max_rows;
    void *memory = NULL;
    s->targets = base_zalloc((size_t)c->layers * (size_t)c->kv_heads, sizeof *s->targets);
    if (s->targets == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a forward pass");
    }
    TRY(cuda_take_pinned(s->d->device, s->control.bytes, &memory, e));
    s->control.host = memory;
    TRY(cuda_take_pinned(s->d->device, rows * (size_t)c->width * sizeof(float), &memory, e));
    s->host_x = memory;
    TRY(cuda_take_pinned(s->d->device, LOGIT_ROWS * (size_t)c->vocab * sizeof(float), &memory, e));
    s->host_logits = memory;
    TRY(cuda_take_pinned(s->d->device, rows * packed_row(c) * sizeof(uint16_t), &memory, e));
    s->host_packed = memory;
    return ST_OK;
}

status device_scratch_open(const model *m, int max_rows, device_scratch **out, err *e)
{
    device_scratch *s = base_zalloc(1, sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a forward pass");
    }
    s->d = m->device;
    s->max_rows = max_rows;
    int in_rows = max_rows > LOGIT_ROWS ? max_rows : LOGIT_ROWS;
    status st = cuda_rows_open(s->d->device, in_rows, model_widest_row(&m->config), &s->in, e);
    st = st == ST_OK ? take_device_memory(s, e) : st;
    st = st == ST_OK ? take_host_memory(s, e) : st;
    st = st == ST_OK ? device_attention_open(s->d, max_rows, &s->attention, e) : st;
    if (st != ST_OK) {
        device_scratch_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void device_scratch_close(device_scratch *s)
{
    if (s == NULL) {
        return;
    }
    cuda_device *device = s->d->device;
    forget_graphs(s);
    void *on_device[] = {s->x, s->q, s->attended, s->k, s->v, s->gate, s->up, s->logits, s->own_angles,
            s->variant_angles, s->packed, s->control.device};
    void *on_host[] = {s->control.host, s->host_x, s->host_logits, s->host_packed};
    for (size_t i = 0; i < sizeof on_device / sizeof *on_device; i++) {
        cuda_release(device, on_device[i]);
    }
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++) {
        cuda_release_pinned(device, on_host[i]);
    }
    cuda_rows_close(device, s->in);
    device_attention_close(s->attention);
    base_free(s->targets);
    base_free(s);
}
