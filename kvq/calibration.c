/* Rotations from moments, and the arrays of a calibration. */
#include "kvq/calibration.h"

#include <lapacke.h>
#include <math.h>
#include <string.h>

#include "kvq/codec.h"

/* ---- arrays ---- */

static status reserve_heads(kvq_calibration *c, size_t heads, size_t d)
{
    c->k_rotation = base_zalloc(heads * d * d, sizeof(float));
    c->k_mean = base_zalloc(heads * d, sizeof(float));
    c->q_eigenvalues = base_zalloc(heads * d, sizeof(float));
    bool ok = c->k_rotation != NULL && c->k_mean != NULL && c->q_eigenvalues != NULL;
    return ok ? ST_OK : ST_ERR_MEMORY;
}

static status reserve_shared(kvq_calibration *c, size_t layers, size_t d)
{
    c->shared_k_rotation = base_zalloc(layers * d * d, sizeof(float));
    c->shared_v_rotation = base_zalloc(layers * d * d, sizeof(float));
    return c->shared_k_rotation != NULL && c->shared_v_rotation != NULL ? ST_OK : ST_ERR_MEMORY;
}

status kvq_calibration_create(const kvq_shape *shape, unsigned parts, kvq_calibration *out, err *e)
{
    size_t layers = (size_t)shape->layers, heads = layers * (size_t)shape->kv_heads, d = (size_t)shape->d;
    kvq_calibration c = {.shape = *shape};
    c.k_bits = base_zalloc(layers, sizeof *c.k_bits);
    status s = c.k_bits != NULL ? ST_OK : ST_ERR_MEMORY;
    if (s == ST_OK && (parts & KVQ_CALIBRATION_HEADS) != 0) {
        s = reserve_heads(&c, heads, d);
    }
    if (s == ST_OK && (parts & KVQ_CALIBRATION_SHARED) != 0) {
        s = reserve_shared(&c, layers, d);
    }
    if (s != ST_OK) {
        kvq_calibration_free(&c);
        return FAIL(e, s, "out of memory for a calibration of %d layers", shape->layers);
    }
    for (size_t layer = 0; layer < layers; layer++) {
        c.k_bits[layer] = 2;
    }
    *out = c;
    return ST_OK;
}

void kvq_calibration_free(kvq_calibration *c)
{
    base_free(c->k_rotation);
    base_free(c->k_mean);
    base_free(c->shared_k_rotation);
    base_free(c->shared_v_rotation);
    base_free(c->q_eigenvalues);
    base_free(c->k_bits);
    *c = (kvq_calibration){0};
}

/* ---- rotations ---- */

static void fix_sign(int d, double *u, int column)
{
    double largest = 0.0;
    for (int i = 0; i < d; i++) {
        double value = u[i * d + column];
        largest = fabs(value) > fabs(largest) ? value : largest;
    }
    for (int i = 0; largest < 0.0 && i < d; i++) {
        u[i * d + column] = -u[i * d + column];
    }
}

status kvq_eigenbasis(int d, double *a, double *u, double *eigenvalues, err *e)
{
    for (int i = 0; i < d; i++) {
        for (int j = 0; j <= i; j++) {
            u[i * d + j] = u[j * d + i] = 0.5 * (a[i * d + j] + a[j * d + i]);
        }
    }
    int info = (int)LAPACKE_dsyevd(LAPACK_ROW_MAJOR, 'V', 'L', d, u, d, eigenvalues);
    if (info != 0) {
        return FAIL(e, info < 0 && info > -1000 ? ST_ERR_ARG : ST_ERR_MEMORY,
                "eigenvectors of a %d x %d moment could not be found (LAPACK says %d)", d, d, info);
    }
    for (int column = 0; column < d; column++) {
        fix_sign(d, u, column);
    }
    return ST_OK;
}

static int reverse_bits(int i, int d)
{
    int reversed = 0;
    for (int bit = 1; bit < d; bit <<= 1) {
        reversed = (reversed << 1) | ((i & bit) != 0);
    }
    return reversed;
}

void kvq_basis_times_hadamard(int d, const double *u, bool bit_reversed, float *r)
{
    double scale = 1.0 / sqrt((double)d);
    for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
            /* P: eigenvalues rise, so the i-th largest is d - 1 - i and column j of U H P is column d - 1 - rev(j). */
            int column = bit_reversed ? d - 1 - reverse_bits(j, d) : j;
            double sum = 0.0;
            for (int k = 0; k < d; k++) {
                double term = u[i * d + k];
                sum += __builtin_parity((unsigned)(k & column)) != 0 ? -term : term;
            }
            r[i * d + j] = (float)(sum * scale);
        }
    }
}

bool kvq_is_orthogonal(const float *r, size_t d)
{
    for (size_t i = 0; i < d; i++) {
        for (size_t j = 0; j <= i; j++) {
            double sum = i == j ? -1.0 : 0.0;
            for (size_t k = 0; k < d; k++) {
                sum += (double)r[i * d + k] * (double)r[j * d + k];
            }
            if (!(fabs(sum) <= 1e-4)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- for codecs ---- */

status kvq_calibration_for_codec(kvq_codec *c, const char *path, err *e)
{
    if (path == NULL) {
        return FAIL(e, ST_ERR_ARG, "codec %s needs a calibration file; epimem calibrate makes one", c->name);
    }
    c->calibration = base_zalloc(1, sizeof *c->calibration);
    if (c->calibration == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for codec %s", c->name);
    }
    TRY(kvq_calibration_read(path, c->calibration, e));
    const kvq_shape *has = &c->calibration->shape, *need = &c->shape;
    if (has->layers != need->layers || has->kv_heads != need->kv_heads || has->d != need->d) {
        return FAIL(e, ST_ERR_MISMATCH,
                "%.150s was made for %s with %d layers of %d KV heads of %d; this model has %d of %d of %d",
                path, c->calibration->model, has->layers, has->kv_heads, has->d, need->layers, need->kv_heads,
                need->d);
    }
    return ST_OK;
}

bool kvq_codec_is_calibrated(const char *name)
{
    return strncmp(name, "oscar", 5) == 0;
}

status kvq_calibration_check(const char *path, const char *model, uint64_t weights, err *e)
{
    kvq_calibration c = {0};
    TRY(kvq_calibration_read(path, &c, e));
    status s = ST_OK;
    if (c.weights != weights) {
        s = FAIL(e, ST_ERR_MISMATCH,
                "%.150s was made for model %s (weights %016llx); this is %.63s (weights %016llx): run epimem "
                "calibrate",
                path, c.model, (unsigned long long)c.weights, model, (unsigned long long)weights);
    }
    kvq_calibration_free(&c);
    return s;
}
