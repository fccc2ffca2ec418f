/* activations: the rows that products read, in float32 and in 8-bit codes. */
#include "kernels/matmul/product.h"

#include <string.h>

status krn_rows_open(int64_t max_rows, int64_t max_cols, krn_rows **out, err *e)
{
    uint64_t cells;
    if (max_rows <= 0 || max_cols <= 0) {
        return FAIL(e, ST_ERR_ARG, "activation rows need a positive size");
    }
    int64_t max_blocks = max_cols / ACT_BLOCK + (max_cols % ACT_BLOCK != 0);
    if (!base_mul((uint64_t)max_rows, (uint64_t)max_blocks * ACT_BLOCK, &cells) ||
            cells > SIZE_MAX / sizeof(float)) {
        return FAIL(e, ST_ERR_LIMIT, "activation rows are too large");
    }
    krn_rows *r = base_zalloc(1, sizeof *r);
    if (r == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for activation rows");
    }
    r->max_rows = max_rows;
    r->max_cols = max_cols;
    r->max_blocks = max_blocks;
    r->forms = KRN_ROWS_FLOAT | KRN_ROWS_CODES;
    r->x = base_alloc((size_t)cells * sizeof *r->x);
    r->coded = base_alloc((size_t)cells / ACT_BLOCK * sizeof *r->coded);
    if (r->x == NULL || r->coded == NULL) {
        krn_rows_close(r);
        return FAIL(e, ST_ERR_MEMORY, "no memory for %lld activations", (long long)cells);
    }
    *out = r;
    return ST_OK;
}

void krn_rows_close(krn_rows *r)
{
    if (r != NULL) {
        base_free(r->x);
        base_free(r->coded);
        base_free(r);
    }
}

void krn_rows_keep(krn_rows *r, unsigned forms)
{
    REQUIRE(forms != 0 && (forms & ~(unsigned)(KRN_ROWS_FLOAT | KRN_ROWS_CODES)) == 0);
    r->forms = forms;
    r->n = 0;
}

typedef struct load_work {
    krn_rows *rows;
    const row_ops *ops;
    const float *x;
    int64_t x_stride, rows_per_task;
} load_work;

static void load_task(void *ctx, int task)
{
    const load_work *w = ctx;
    krn_rows *r = w->rows;
    int64_t end = (task + 1) * w->rows_per_task < r->n ? (task + 1) * w->rows_per_task : r->n;
    for (int64_t t = task * w->rows_per_task; t < end; t++) {
        const float *x = w->x + t * w->x_stride;
        if ((r->forms & KRN_ROWS_FLOAT) != 0) {
            memcpy(r->x + t * r->cols, x, (size_t)r->cols * sizeof *x);
        }
        if ((r->forms & KRN_ROWS_CODES) != 0) {
            w->ops->quantize(x, r->cols, rows_blocks(r, t), rows_group_size(r, t));
        }
    }
}

void krn_rows_load(krn_pool *pool, krn_rows *r, const float *x, int64_t x_stride, int64_t n, int64_t cols)
{
    REQUIRE(n >= 0 && n <= r->max_rows && cols > 0 && cols <= r->max_cols);
    r->n = n;
    r->cols = cols;
    r->blocks = (cols + ACT_BLOCK - 1) / ACT_BLOCK;
    /* Some twenty microseconds of work a task; a single row is not worth waking anybody. */
    int64_t rows_per_task = 32768 / cols + 1;
    load_work w = {r, row_ops_current(), x, x_stride, rows_per_task};
    krn_pool_run(pool, load_task, &w, (int)((n + rows_per_task - 1) / rows_per_task));
}
