/* Where a model's forward passes run, and ids of the memory that devices copy. */
#include "agent/model_parts_internal.h"

#include <stdatomic.h>
#include <string.h>

uint64_t model_kv_next_id(void)
{
    static atomic_uint_fast64_t last;
    return (uint64_t)atomic_fetch_add(&last, 1) + 1;
}

static void forget_matrix(model_matrix *w)
{
    krn_matrix_close(w->opened);
    w->opened = NULL;
}

/* What only passes here read: on a device it would be in memory twice. */
static void forget_opened(model *m)
{
    for (int i = 0; i < m->config.layers; i++) {
        model_layer *l = &m->layers[i];
        model_matrix *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            forget_matrix(all[j]);
        }
    }
    forget_matrix(&m->output);
}

status model_set_device(model *m, const char *device, uint64_t budget_bytes, err *e)
{
    bool is_auto = device == NULL || strcmp(device, "auto") == 0;
    REQUIRE(m->device == NULL);
    if (!is_auto && strcmp(device, "cpu") == 0) {
        return ST_OK;
    }
    if (!is_auto && strcmp(device, "cuda") != 0) {
        return FAIL(e, ST_ERR_ARG, "unknown device %.40s; there are cpu, cuda and auto", device);
    }
    err why = {0};
    status st = model_device_open(m, budget_bytes, &m->device, &why);
    if (st == ST_OK) {
        forget_opened(m);
        LOG_I("running on %s", model_device_name(m->device));
        return ST_OK;
    }
    if (is_auto && (st == ST_ERR_NOT_FOUND || st == ST_ERR_UNSUPPORTED)) {
        LOG_I("running on the CPU: %s", why.text);
        return ST_OK;
    }
    return FAIL(e, st, "%s", why.text);
}

const char *model_arithmetic(const model *m)
{
    return m->device != NULL ? "cuda-1" : krn_numeric_abi();
}

model_device_usage model_get_device_usage(const model *m)
{
    return m->device != NULL ? model_device_get_usage(m->device) : (model_device_usage){0};
}
