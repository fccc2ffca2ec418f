/* A model's weights on the device. Opening counts first what they need, so that a model that does not fit is refused with
 * the numbers before anything is sent. */
#include "agent/model_cuda_internal.h"

#include <string.h>

/* ---- sizes ---- */

static uint64_t matrix_bytes(const model_matrix *w)
{
    uint64_t rows = (uint64_t)w->stored->size[1];
    return cuda_matrix_bytes(w->stored->type, w->stored->size[1], w->stored->size[0]) +
            (w->bias != NULL ? rows * sizeof(float) : 0);
}

static uint64_t weight_bytes(const model *m)
{
    uint64_t bytes = matrix_bytes(&m->output);
    for (int i = 0; i < m->config.layers; i++) {
        const model_layer *l = &m->layers[i];
        const model_matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            bytes += matrix_bytes(all[j]);
        }
    }
    return bytes;
}

/* ---- sending ---- */

static status send(model_device *d, const void *data, size_t bytes, const char *what, void **out, err *e)
{
    if (data == NULL) {
        *out = NULL;
        return ST_OK;
    }
    TRY(cuda_take(d->device, bytes, what, out, e));
    return cuda_copy_in(d->device, *out, data, bytes, e);
}

static status send_floats(model_device *d, const float *data, int64_t n, float **out, err *e)
{
    void *memory = NULL;
    TRY(send(d, data, (size_t)n * sizeof *data, "weights", &memory, e));
    *out = memory;
    return ST_OK;
}

static status send_matrix(model_device *d, const model_matrix *w, device_matrix *out, err *e)
{
    TRY(send_floats(d, w->bias, w->stored->size[1], &out->bias, e));
    return cuda_matrix_open(d->device, d->m->pool, w->stored->type, w->stored->size[1], w->stored->size[0],
            w->stored->data, &out->weights, e);
}

static status send_layer(model_device *d, const model_layer *l, device_layer *out, err *e)
{
    const model_config *c = &d->m->config;
    TRY(send_floats(d, l->attention_norm, c->width, &out->attention_norm, e));
    TRY(send_floats(d, l->ffn_norm, c->width, &out->ffn_norm, e));
    TRY(send_floats(d, l->q_norm, c->d, &out->q_norm, e));
    TRY(send_floats(d, l->k_norm, c->d, &out->k_norm, e));
    TRY(send_matrix(d, &l->q, &out->q, e));
    TRY(send_matrix(d, &l->k, &out->k, e));
    TRY(send_matrix(d, &l->v, &out->v, e));
    TRY(send_matrix(d, &l->o, &out->o, e));
    TRY(send_matrix(d, &l->gate, &out->gate, e));
    TRY(send_matrix(d, &l->up, &out->up, e));
    return send_matrix(d, &l->down, &out->down, e);
}

static status send_all(model_device *d, err *e)
{
    const model *m = d->m;
    const model_config *c = &m->config;
    void *memory = NULL;
    d->weight_bytes = weight_bytes(m);
    if (d->weight_bytes > cuda_device_left(d->device)) {
        return FAIL(e, ST_ERR_MEMORY, "%s needs %llu MiB for weights, the budget of %s is %llu MiB", c->name,
                (unsigned long long)(d->weight_bytes >> 20), cuda_device_get_info(d->device)->name,
                (unsigned long long)(cuda_device_left(d->device) >> 20));
    }
    d->layers = base_zalloc((size_t)c->layers, sizeof *d->layers);
    d->spaces = base_zalloc((size_t)c->layers, sizeof *d->spaces);
    if (d->layers == NULL || d->spaces == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the layers of a device");
    }
    for (int i = 0; i < c->layers; i++) {
        TRY(send_layer(d, &m->layers[i], &d->layers[i], e));
    }
    TRY(send_matrix(d, &m->output, &d->output, e));
    TRY(send_floats(d, m->output_norm, c->width, &d->output_norm, e));
    TRY(send(d, m->inv_freq, (size_t)c->rope.dims / 2 * sizeof *m->inv_freq, "angles", &memory, e));
    d->inv_freq = memory;
    TRY(kv_mirror_open(d->device, c->layers, c->kv_heads, c->d, &d->mirror, e));
    return cuda_device_wait(d->device, e);
}

status model_device_open(const model *m, uint64_t budget_bytes, model_device **out, err *e)
{
    model_device *d = base_zalloc(1, sizeof *d);
    if (d == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a device");
    }
    d->m = m;
    status st = cuda_device_open(budget_bytes, &d->device, e);
    st = st == ST_OK ? send_all(d, e) : st;
    if (st != ST_OK) {
        model_device_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

/* ---- spaces ---- */

static void forget_spaces(model_device *d)
{
    for (size_t i = 0; i < d->n_space_memory; i++) {
        cuda_release(d->device, d->space_memory[i]);
    }
    d->n_space_memory = 0;
    d->has_spaces = false;
}

static status send_space(model_device *d, const float *data, size_t n, const float **out, err *e)
{
    void *list = d->space_memory, *memory = NULL;
    if (base_grow(&list, &d->space_memory_cap, d->n_space_memory + 1, 1u << 20, sizeof *d->space_memory) !=
            ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the spaces of a device");
    }
    d->space_memory = list;
    TRY(cuda_take(d->device, n * sizeof *data, "rotations", &memory, e));
    d->space_memory[d->n_space_memory++] = memory;
    *out = memory;
    return cuda_copy_in(d->device, memory, data, n * sizeof *data, e);
}

/* Matrices of all heads, one after the other; turned round for the way back. */
static void gather_matrices(const krn_rotation *of_head, int heads, int d, bool transposed, float *out)
{
    for (int h = 0; h < heads; h++) {
        for (int i = 0; i < d; i++) {
            for (int j = 0; j < d; j++) {
                out[((size_t)h * (size_t)d + (size_t)i) * (size_t)d + (size_t)j] =
                        of_head[h].matrix[transposed ? j * d + i : i * d + j];
            }
        }
    }
}

/* of_head [K]; buffer [K][d][d] is scratch. */
static status set_rotation(model_device *d,
        const krn_rotation *of_head,
        bool transposed,
        float *buffer,
        cuda_attend_rotation *out,
        err *e)
{
    const model_config *c = &d->m->config;
    size_t heads = (size_t)c->kv_heads, channels = (size_t)c->d;
    bool has_mean = false;
    *out = (cuda_attend_rotation){.kind = of_head[0].kind};
    for (int h = 0; h < c->kv_heads; h++) {
        has_mean = has_mean || of_head[h].mean != NULL;
        if (of_head[h].kind != out->kind) {
            return FAIL(e, ST_ERR_UNSUPPORTED, "heads of one layer with rotations of different kinds");
        }
    }
    if (out->kind == KRN_ROTATION_MATRIX) {
        gather_matrices(of_head, c->kv_heads, c->d, transposed, buffer);
        TRY(send_space(d, buffer, heads * channels * channels, &out->matrix, e));
    }
    if (has_mean) {
        memset(buffer, 0, heads * channels * sizeof *buffer);
        for (size_t h = 0; h < heads; h++) {
            if (of_head[h].mean != NULL) {
                memcpy(buffer + h * channels, of_head[h].mean, channels * sizeof *buffer);
            }
        }
        TRY(send_space(d, buffer, heads * channels, &out->mean, e));
    }
    return ST_OK;
}

/* A format for layers without pages: the attention wants one that it could read. */
static krn_page_format no_pages(int d)
{
    return (krn_page_format){.d = d,
            .k_planes = 1,
            .k_level = {-1.5f, -0.5f, 0.5f, 1.5f},
            .v_level = {-1.5f, -0.5f, 0.5f, 1.5f}};
}

static status set_layer_space(
        model_device *d, const model_kv *kv, int layer, krn_rotation *of_head, float *buffer, err *e)
{
    const model_config *c = &d->m->config;
    device_space *s = &d->spaces[layer];
    for (int h = 0; h < c->kv_heads; h++) {
        kv->space(kv->ctx, layer, h, &of_head[h], &of_head[c->kv_heads + h], &s->format);
    }
    s->page_at = (int64_t)kv->page_at(kv->ctx, layer, 0);
    if (s->format.bytes == 0 || s->format.k_planes == 0) {
        s->format = no_pages(c->d);
    }
    TRY(set_rotation(d, of_head, false, buffer, &s->k, e));
    TRY(set_rotation(d, of_head + c->kv_heads, true, buffer, &s->v, e));
    s->store_v = s->v;
    if (s->v.kind == KRN_ROTATION_MATRIX) {
        gather_matrices(of_head + c->kv_heads, c->kv_heads, c->d, false, buffer);
        TRY(send_space(d, buffer, (size_t)c->kv_heads * (size_t)c->d * (size_t)c->d, &s->store_v.matrix, e));
    }
    return ST_OK;
}

bool device_has_spaces(const model_device *d, const model_kv *kv)
{
    return d->has_spaces && d->space_id == kv->space_id;
}

status device_set_spaces(model_device *d, const model_kv *kv, err *e)
{
    const model_config *c = &d->m->config;
    forget_spaces(d);
    krn_rotation *of_head = base_zalloc(2 * (size_t)c->kv_heads, sizeof *of_head);
    float *buffer = base_zalloc((size_t)c->kv_heads * (size_t)c->d * (size_t)c->d, sizeof *buffer);
    status st =
            of_head != NULL && buffer != NULL ? ST_OK : FAIL(e, ST_ERR_MEMORY, "out of memory for rotations");
    for (int layer = 0; st == ST_OK && layer < c->layers; layer++) {
        st = set_layer_space(d, kv, layer, of_head, buffer, e);
    }
    base_free(of_head);
    base_free(buffer);
    d->has_spaces = st == ST_OK;
    d->space_id = kv->space_id;
    return st;
}

/* ---- the end ---- */

static void close_matrix(model_device *d, device_matrix *w)
{
    cuda_matrix_close(d->device, w->weights);
    cuda_release(d->device, w->bias);
}

static void close_layer(model_device *d, device_layer *l)
{
    device_matrix *matrices[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    float *vectors[] = {l->attention_norm, l->ffn_norm, l->q_norm, l->k_norm};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        close_matrix(d, matrices[i]);
    }
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        cuda_release(d->device, vectors[i]);
    }
}

void model_device_close(model_device *d)
{
    if (d == NULL) {
        return;
    }
    for (int i = 0; d->layers != NULL && i < d->m->config.layers; i++) {
        close_layer(d, &d->layers[i]);
    }
    if (d->device != NULL) {
        forget_spaces(d);
        kv_mirror_close(d->mirror);
        close_matrix(d, &d->output);
        cuda_release(d->device, d->output_norm);
        cuda_release(d->device, d->inv_freq);
        cuda_device_close(d->device);
    }
    base_free(d->layers);
    base_free(d->spaces);
    base_free(d->space_memory);
    base_free(d);
}

const char *model_device_name(const model_device *d)
{
    return cuda_device_get_info(d->device)->name;
}

model_device_usage model_device_get_usage(const model_device *d)
{
    uint64_t budget = cuda_device_get_info(d->device)->budget_bytes;
    model_device_usage usage = {.budget_bytes = budget,
            .used_bytes = budget - cuda_device_left(d->device),
            .weight_bytes = d->weight_bytes};
    kv_mirror_add_usage(d->mirror, &usage);
    return usage;
}
