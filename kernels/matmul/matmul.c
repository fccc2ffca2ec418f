/* matmul: weight matrices and their products with loaded rows, panels spread over the pool. */
#include "kernels/matmul/product.h"

static status check_size(const panel_form *form, int64_t rows, int64_t cols, err *e)
{
    if (form == NULL) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "a matrix of an unknown tensor type");
    }
    /* The upper bound keeps every product of sizes below in range. */
    if (rows <= 0 || cols <= 0 || rows > INT32_MAX || cols > INT32_MAX) {
        return FAIL(e, ST_ERR_ARG, "a matrix of %lld by %lld", (long long)rows, (long long)cols);
    }
    if (cols % krn_type_block_elements(form->type) != 0) {
        return FAIL(e, ST_ERR_FORMAT, "%lld columns are no multiple of the %s block of %d", (long long)cols,
                krn_type_name(form->type), krn_type_block_elements(form->type));
    }
    return ST_OK;
}

static int64_t bytes_of_panel(const krn_matrix *m)
{
    int64_t bytes = 0;
    if (m->form->kind == PANEL_INTEGER) {
        bytes = m->blocks * panel_code_bytes(m->form->codes) + panel_scale_bytes(m->form->scales, m->blocks);
    } else if (m->form->kind == PANEL_FLOAT) {
        bytes = m->cols * PANEL_ROWS * krn_type_block_bytes(m->form->type);
    }
    return (bytes + PANEL_VECTOR_BYTES - 1) / PANEL_VECTOR_BYTES * PANEL_VECTOR_BYTES;
}

typedef struct pack_work {
    const krn_matrix *matrix;
    const uint8_t *data;
    int64_t panels_per_task;
} pack_work;

static void pack_task(void *ctx, int task)
{
    const pack_work *w = ctx;
    int64_t end = (task + 1) * w->panels_per_task;
    for (int64_t p = task * w->panels_per_task; p < end && p < w->matrix->panels; p++) {
        panel_pack(w->matrix, w->data, p);
    }
}

status krn_matrix_open(
        krn_pool *pool, krn_type type, int64_t rows, int64_t cols, const void *data, krn_matrix **out, err *e)
{
    const panel_form *form = panel_form_of(type);
    uint64_t packed_bytes;
    TRY(check_size(form, rows, cols, e));
    krn_matrix *m = base_zalloc(1, sizeof *m);
    if (m == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a matrix");
    }
    m->form = form;
    m->rows = rows;
    m->cols = cols;
    m->blocks = form->kind == PANEL_INTEGER ? cols / ACT_BLOCK : 0;
    m->panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    m->panel_bytes = bytes_of_panel(m);
    m->raw = data;
    m->raw_row_bytes = cols / krn_type_block_elements(type) * krn_type_block_bytes(type);
    if (form->kind != PANEL_TILE) {
        bool fits = base_mul((uint64_t)m->panels, (uint64_t)m->panel_bytes, &packed_bytes);
        m->packed = fits ? base_alloc((size_t)packed_bytes) : NULL;
        if (m->packed == NULL) {
            krn_matrix_close(m);
            return FAIL(e, ST_ERR_MEMORY, "no memory for a %s matrix of %lld by %lld", krn_type_name(type),
                    (long long)rows, (long long)cols);
        }
        /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every form but PANEL_TILE has bytes */
        pack_work w = {m, data, (65536 + m->panel_bytes) / m->panel_bytes};
        krn_pool_run(pool, pack_task, &w, (int)((m->panels + w.panels_per_task - 1) / w.panels_per_task));
        m->raw = NULL;
    }
    *out = m;
    return ST_OK;
}

void krn_matrix_close(krn_matrix *m)
{
    if (m != NULL) {
        base_free(m->packed);
        base_free(m);
    }
}

int64_t krn_matrix_rows(const krn_matrix *m)
{
    return m->rows;
}

int64_t krn_matrix_cols(const krn_matrix *m)
{
    return m->cols;
}

unsigned krn_matrix_reads(const krn_matrix *m)
{
    return m->form->kind == PANEL_INTEGER ? KRN_ROWS_CODES : KRN_ROWS_FLOAT;
}

typedef struct product_work {
    const krn_matrix *matrix;
    const krn_rows *rows;
    const product_ops *ops;
    float *y;
    int64_t y_stride;
    int64_t panels_per_task;
} product_work;

static void tile_panel(const product_work *w, int64_t panel, product_out out)
{
    const krn_matrix *m = w->matrix;
    float tile[PANEL_TILE_COLS * PANEL_ROWS];
    for (int64_t first = 0; first < m->cols; first += PANEL_TILE_COLS) {
        int64_t cols = m->cols - first < PANEL_TILE_COLS ? m->cols - first : PANEL_TILE_COLS;
        panel_tile(m, panel, first, cols, tile);
        float_work work = {
                KRN_F32, tile, cols, w->rows->x + first, w->rows->cols, w->rows->n, first > 0, out};
        w->ops->real(&work);
    }
}

static void product_panel(const product_work *w, int64_t panel)
{
    const krn_matrix *m = w->matrix;
    const krn_rows *r = w->rows;
    const uint8_t *packed = m->packed + panel * m->panel_bytes;
    int64_t left = m->rows - panel * PANEL_ROWS;
    product_out out = {w->y + panel * PANEL_ROWS, w->y_stride, left < PANEL_ROWS ? (int)left : PANEL_ROWS};
    if (m->form->kind == PANEL_INTEGER) {
        const uint8_t *scales = packed + m->blocks * panel_code_bytes(m->form->codes);
        integer_work work = {m->form, packed, scales, m->blocks, m->panel_bytes, r, out};
        w->ops->integer(&work);
    } else if (m->form->kind == PANEL_FLOAT) {
        float_work work = {m->form->type, packed, m->cols, r->x, r->cols, r->n, false, out};
        w->ops->real(&work);
    } else {
        tile_panel(w, panel, out);
    }
}

static void product_task(void *ctx, int task)
{
    const product_work *w = ctx;
    int64_t end = (task + 1) * w->panels_per_task;
    for (int64_t p = task * w->panels_per_task; p < end && p < w->matrix->panels; p++) {
        product_panel(w, p);
    }
}

static const product_ops *product_ops_current(void)
{
    static const product_ops *const tables[KRN_ISA_COUNT] = {
            &product_ops_scalar, &product_ops_avx2, &product_ops_avx512};
    return tables[krn_isa_current()];
}

/* Four tasks a thread, so that threads end together though one is disturbed, but not below some 8 KB of weights times
 * rows (about a microsecond), where claiming a task would show. */
static int64_t share_of_panels(const krn_matrix *m, int64_t n, int threads)
{
    int64_t share = m->panels / (4 * (int64_t)threads);
    int64_t least = 8192 / (PANEL_ROWS * m->raw_row_bytes) / n + 1;
    return share > least ? share : least;
}

void krn_matmul(krn_pool *pool, const krn_matrix *m, const krn_rows *r, float *y, int64_t y_stride)
{
    REQUIRE(r->n == 0 || (r->cols == m->cols && (r->forms & krn_matrix_reads(m)) != 0));
    if (r->n == 0) {
        return;
    }
    int64_t panels_per_task = share_of_panels(m, r->n, krn_pool_threads(pool));
    product_work w = {m, r, product_ops_current(), y, y_stride, panels_per_task};
    krn_pool_run(pool, product_task, &w, (int)((m->panels + panels_per_task - 1) / panels_per_task));
}
