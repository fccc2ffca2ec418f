/* Moments of queries, keys and values of all heads, summed in double. Single-threaded: sums have one order. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "kvq/calibration.h"

typedef struct head_moments {
    double *q;        /* [d][d] lower triangle: sum of q q^T of finished texts */
    double *q_text;   /* of the text being added */
    double *v;        /* sum of w v v^T */
    double *k_sum;    /* [d] */
    double k_squares; /* sum of |k|^2 */
    double q_rows, q_text_rows, tokens;
} head_moments;

struct kvq_moments {
    kvq_shape shape;
    head_moments *heads; /* [L][K] */
    double *numbers;     /* all arrays */
    double *rows;        /* [ROWS][d] */
};

enum { ROWS = 256 };

static head_moments *head_at(const kvq_moments *m, int layer, int head)
{
    REQUIRE(layer >= 0 && layer < m->shape.layers && head >= 0 && head < m->shape.kv_heads);
    return &m->heads[(size_t)layer * (size_t)m->shape.kv_heads + (size_t)head];
}

status kvq_moments_open(const kvq_shape *shape, kvq_moments **out, err *e)
{
    size_t heads = (size_t)shape->layers * (size_t)shape->kv_heads, d = (size_t)shape->d;
    size_t each = 3 * d * d + d;
    kvq_moments *m = base_zalloc(1, sizeof *m);
    if (m != NULL) {
        m->shape = *shape;
        m->heads = base_zalloc(heads, sizeof *m->heads);
        m->numbers = base_zalloc(heads * each, sizeof *m->numbers);
        m->rows = base_zalloc(ROWS * d, sizeof *m->rows);
    }
    if (m == NULL || m->heads == NULL || m->numbers == NULL || m->rows == NULL) {
        kvq_moments_close(m);
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the moments of %zu heads", heads);
    }
    for (size_t i = 0; i < heads; i++) {
        double *at = m->numbers + i * each;
        m->heads[i] =
                (head_moments){.q = at, .q_text = at + d * d, .v = at + 2 * d * d, .k_sum = at + 3 * d * d};
    }
    openblas_set_num_threads(
            1); /* products are small, and their sums must not depend on the machine's cores */
    *out = m;
    return ST_OK;
}

void kvq_moments_close(kvq_moments *m)
{
    if (m != NULL) {
        base_free(m->heads);
        base_free(m->numbers);
        base_free(m->rows);
        base_free(m);
    }
}

/* c += sum of w r r^T over n rows, lower triangle; w NULL: 1 each, else square roots of weights. */
static void add_outer(kvq_moments *m, double *c, const float *x, const double *root_weight, int n)
{
    int d = m->shape.d;
    for (int from = 0; from < n; from += ROWS) {
        int rows = n - from < ROWS ? n - from : ROWS;
        for (int row = 0; row < rows; row++) {
            double w = root_weight != NULL ? root_weight[from + row] : 1.0;
            for (int i = 0; i < d; i++) {
                m->rows[row * d + i] = w * (double)x[(size_t)(from + row) * (size_t)d + (size_t)i];
            }
        }
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasTrans, d, rows, 1.0, m->rows, d, 1.0, c, d);
    }
}

void kvq_moments_add_queries(kvq_moments *m, int layer, int head, const float *q, int n)
{
    head_moments *h = head_at(m, layer, head);
    add_outer(m, h->q_text, q, NULL, n);
    h->q_text_rows += n;
}

/* k^T C k with the lower triangle of C. */
static double quadratic(int d, const double *c, const float *k)
{
    double sum = 0.0;
    for (int i = 0; i < d; i++) {
        double row = 0.0;
        for (int j = 0; j < i; j++) {
            row += c[i * d + j] * (double)k[j];
        }
        sum += (double)k[i] * (2.0 * row + c[i * d + i] * (double)k[i]);
    }
    return sum;
}

void kvq_moments_add_text(kvq_moments *m, int layer, int head, const float *k, const float *v, int n)
{
    head_moments *h = head_at(m, layer, head);
    size_t d = (size_t)m->shape.d;
    double sum = 0.0, roots[ROWS];
    for (int row = 0; row < n; row++) {
        sum += quadratic((int)d, h->q_text, k + (size_t)row * d);
    }
    for (int from = 0; from < n; from += ROWS) {
        int rows = n - from < ROWS ? n - from : ROWS;
        for (int row = 0; row < rows; row++) {
            double w = quadratic((int)d, h->q_text, k + (size_t)(from + row) * d);
            roots[row] = sum > 0.0 ? sqrt(w > 0.0 ? w * n / sum : 0.0) : 1.0; /* mean weight 1 */
        }
        add_outer(m, h->v, v + (size_t)from * d, roots, rows);
    }
    for (size_t row = 0; row < (size_t)n; row++) {
        for (size_t i = 0; i < d; i++) {
            double key = k[row * d + i];
            h->k_sum[i] += key;
            h->k_squares += key * key;
        }
    }
    for (size_t i = 0; i < d * d; i++) {
        h->q[i] += h->q_text[i];
        h->q_text[i] = 0.0;
    }
    h->q_rows += h->q_text_rows;
    h->q_text_rows = 0.0;
    h->tokens += n;
}

/* ---- rotations ---- */

/* sum += the lower triangle of c, mirrored, over its count. */
static void add_scaled(int d, const double *c, double count, double *sum)
{
    for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
            double value = i >= j ? c[i * d + j] : c[j * d + i];
            sum[i * d + j] += count > 0.0 ? value / count : 0.0;
        }
    }
}

typedef struct workspace {
    double *a, *u, *values; /* [d][d], [d][d], [d] */
} workspace;

static status finish_head(const kvq_moments *m, int layer, int head, workspace *w, kvq_calibration *c, err *e)
{
    const head_moments *h = head_at(m, layer, head);
    size_t d = (size_t)m->shape.d, at = (size_t)layer * (size_t)m->shape.kv_heads + (size_t)head;
    memset(w->a, 0, d * d * sizeof *w->a);
    add_scaled((int)d, h->q, h->q_rows, w->a);
    TRY(kvq_eigenbasis((int)d, w->a, w->u, w->values, e));
    kvq_basis_times_hadamard((int)d, w->u, false, c->k_rotation + at * d * d);
    for (size_t i = 0; i < d; i++) {
        c->q_eigenvalues[at * d + i] = (float)w->values[i];
    }
    return ST_OK;
}

static status finish_shared(const kvq_moments *m, int layer, workspace *w, kvq_calibration *c, err *e)
{
    size_t d = (size_t)m->shape.d, at = (size_t)layer * d * d;
    for (int values = 0; values < 2; values++) {
        memset(w->a, 0, d * d * sizeof *w->a);
        for (int head = 0; head < m->shape.kv_heads; head++) {
            const head_moments *h = head_at(m, layer, head);
            add_scaled((int)d, values != 0 ? h->v : h->q, values != 0 ? h->tokens : h->q_rows, w->a);
        }
        TRY(kvq_eigenbasis((int)d, w->a, w->u, w->values, e));
        kvq_basis_times_hadamard(
                (int)d, w->u, true, (values != 0 ? c->shared_v_rotation : c->shared_k_rotation) + at);
    }
    return ST_OK;
}

static status finish_all(const kvq_moments *m, workspace *w, kvq_calibration *c, err *e)
{
    for (int layer = 0; layer < m->shape.layers; layer++) {
        for (int head = 0; head < m->shape.kv_heads; head++) {
            TRY(finish_head(m, layer, head, w, c, e));
        }
        TRY(finish_shared(m, layer, w, c, e));
    }
    return ST_OK;
}

status kvq_moments_finish(const kvq_moments *m, kvq_calibration *out, err *e)
{
    size_t d = (size_t)m->shape.d;
    kvq_calibration c = {0};
    TRY(kvq_calibration_create(&m->shape, KVQ_CALIBRATION_HEADS | KVQ_CALIBRATION_SHARED, &c, e));
    workspace w = {.a = base_zalloc(d * d, sizeof(double)),
            .u = base_zalloc(d * d, sizeof(double)),
            .values = base_zalloc(d, sizeof(double))};
    status s = w.a != NULL && w.u != NULL && w.values != NULL
            ? finish_all(m, &w, &c, e)
            : FAIL(e, ST_ERR_MEMORY, "out of memory for eigenvectors");
    base_free(w.a);
    base_free(w.u);
    base_free(w.values);
    if (s != ST_OK) {
        kvq_calibration_free(&c);
        return s;
    }
    *out = c;
    return ST_OK;
}

kvq_head_figures kvq_moments_figures(const kvq_moments *m, const kvq_calibration *c, int layer, int head)
{
    const head_moments *h = head_at(m, layer, head);
    size_t d = (size_t)m->shape.d, at = ((size_t)layer * (size_t)m->shape.kv_heads + (size_t)head) * d;
    double sum = 0.0, squares = 0.0, mean_squared = 0.0;
    for (size_t i = 0; i < d; i++) {
        double value = c->q_eigenvalues[at + i];
        double mean = h->tokens > 0.0 ? h->k_sum[i] / h->tokens : 0.0;
        sum += value;
        squares += value * value;
        mean_squared += mean * mean;
    }
    double smallest = c->q_eigenvalues[at], largest = c->q_eigenvalues[at + d - 1];
    double variance = h->tokens > 0.0 ? h->k_squares / h->tokens - mean_squared : 0.0;
    return (kvq_head_figures){
            .participation = squares > 0.0 ? sum * sum / squares : 0.0,
            .condition = smallest > 0.0 ? largest / smallest : INFINITY,
            .mean_to_spread = variance > 0.0 ? sqrt(mean_squared / variance) : 0.0,
    };
}
