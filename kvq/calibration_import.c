/* Rotations from OSCAR's RotationZoo: {"objective", "layers": {0: {"rotation": [d][d], ...}, ...}}, one file for K, one for V.
 * Rows are x R there as here. */
#include "kvq/calibration_import.h"

#include <stdio.h>
#include <string.h>

#include "kvq/calibration.h"

typedef struct zoo_file {
    const char *path;
    base_map map;
    pickle p;
} zoo_file;

static status wrong(const zoo_file *f, const char *what, err *e)
{
    return FAIL(e, ST_ERR_FORMAT, "%.200s: %s", f->path, what);
}

/* Adds the file's name to what a reader said. */
static status named(const zoo_file *f, status s, const err *inner, err *e)
{
    return s == ST_OK ? ST_OK : FAIL(e, s, "%.150s: %.200s", f->path, inner->text);
}

static status open_file(zoo_file *f, const char *not_objective, err *e)
{
    const uint8_t *data = NULL;
    size_t bytes = 0;
    err inner = {0};
    TRY(base_map_open(f->path, &f->map, e));
    TRY(named(f, kvq_zip_find(f->map.data, f->map.size, "data.pkl", &data, &bytes, &inner), &inner, e));
    TRY(named(f, kvq_pickle_read(data, bytes, &f->p, &inner), &inner, e));
    const pickle_value *objective = kvq_pickle_member(&f->p, &f->p.values[f->p.root], "objective");
    if (objective != NULL && objective->kind == PICKLE_STRING && objective->text_bytes >= 3 &&
            memcmp(objective->text, not_objective, 3) == 0) {
        return wrong(f, "holds the rotations of the other one of K and V", e);
    }
    return ST_OK;
}

static void close_file(zoo_file *f)
{
    kvq_pickle_free(&f->p);
    base_map_close(&f->map);
}

static status copy_tensor(const zoo_file *f, const pickle_value *t, int d, float *to, err *e)
{
    char name[64];
    const uint8_t *data = NULL;
    size_t bytes = 0;
    err inner = {0};
    if (t == NULL || t->kind != PICKLE_TENSOR || t->rank != 2 || t->size[0] != d || t->size[1] != d ||
            t->stride[0] != d || t->stride[1] != 1) {
        return wrong(f, "a layer has no rotation of the model's head size", e);
    }
    const pickle_value *storage = &f->p.values[t->first];
    (void)snprintf(name, sizeof name, "data/%.*s", storage->text_bytes < 40 ? (int)storage->text_bytes : 40,
            storage->text);
    TRY(named(f, kvq_zip_find(f->map.data, f->map.size, name, &data, &bytes, &inner), &inner, e));
    size_t need = (size_t)d * (size_t)d * sizeof *to;
    if (bytes < need || (uint64_t)t->number > (bytes - need) / sizeof *to) {
        return wrong(f, "a rotation is cut off", e);
    }
    memcpy(to, data + (size_t)t->number * sizeof *to, need);
    return ST_OK;
}

static status copy_layers(const zoo_file *f, const kvq_shape *shape, float *to, err *e)
{
    const pickle_value *layers = kvq_pickle_member(&f->p, &f->p.values[f->p.root], "layers");
    int64_t n = layers != NULL ? kvq_pickle_count(&f->p, layers) : -1;
    if (n < 0) {
        return wrong(f, "has no layers", e);
    }
    if (n != shape->layers) {
        return FAIL(e, ST_ERR_MISMATCH, "%.200s: rotations of %lld layers, the model has %d", f->path,
                (long long)n, shape->layers);
    }
    for (int layer = 0; layer < shape->layers; layer++) {
        const pickle_value *entry = kvq_pickle_entry(&f->p, layers, layer);
        if (entry == NULL) {
            return wrong(f, "a layer is missing", e);
        }
        TRY(copy_tensor(f, kvq_pickle_member(&f->p, entry, "rotation"), shape->d,
                to + (size_t)layer * (size_t)shape->d * (size_t)shape->d, e));
    }
    return ST_OK;
}

static status import_file(
        const char *path, const char *not_objective, const kvq_shape *shape, float *to, err *e)
{
    zoo_file f = {.path = path};
    status s = open_file(&f, not_objective, e);
    if (s == ST_OK) {
        s = copy_layers(&f, shape, to, e);
    }
    close_file(&f);
    size_t size = (size_t)shape->d * (size_t)shape->d;
    for (size_t layer = 0; s == ST_OK && layer < (size_t)shape->layers; layer++) {
        if (!kvq_is_orthogonal(to + layer * size, (size_t)shape->d)) {
            s = FAIL(e, ST_ERR_FORMAT, "%.200s: the rotation of layer %zu is not orthogonal", path, layer);
        }
    }
    return s;
}

status kvq_calibration_import(
        const char *k_path, const char *v_path, const kvq_shape *shape, kvq_calibration *out, err *e)
{
    kvq_calibration c = {0};
    TRY(kvq_calibration_create(shape, KVQ_CALIBRATION_SHARED, &c, e));
    status s = import_file(k_path, "sst", shape, c.shared_k_rotation, e);
    if (s == ST_OK) {
        s = import_file(v_path, "qqt", shape, c.shared_v_rotation, e);
    }
    if (s != ST_OK) {
        kvq_calibration_free(&c);
        return s;
    }
    *out = c;
    return ST_OK;
}
