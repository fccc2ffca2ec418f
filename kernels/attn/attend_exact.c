/*
 * krn_attend_exact: what attention over tiers means. One query head at a time: all rows it sees are decoded to doubles,
 * scored, put through one softmax and summed. Nothing here is shared with the tuned versions but the order of codes.
 */
#include <math.h>

#include "kernels/fragment.h"
#include "kernels/kernels.h"

enum { D_MAX = 256 };

static double half_at(const uint8_t *page, uint32_t at, int row)
{
    const uint8_t *p = page + at + 2 * row;
    return (double)base_f16_to_f32((uint16_t)(p[0] | (p[1] << 8)));
}

static double decoded(const krn_page_format *f, const float *level, uint32_t code, double scale, double zero)
{
    return f->has_zero ? scale * ((double)code - zero) : scale * (double)level[code];
}

static void read_k(const krn_attend_head *head, const krn_span *s, int d, int row, double *k)
{
    if (s->kind == KRN_SPAN_BF16) {
        const uint16_t *x = (const uint16_t *)s->k + (size_t)row * (size_t)d;
        for (int c = 0; c < d; c++) {
            k[c] = (double)base_bf16_to_f32(x[c]);
        }
        return;
    }
    const krn_page_format *f = &head->format;
    const uint8_t *page = s->k;
    double scale = half_at(page, f->k_scale_at, row);
    double zero = f->has_zero ? half_at(page, f->k_zero_at, row) : 0.0;
    for (int c = 0; c < d; c++) {
        uint32_t code = krn_fragment_get_k(page + f->k_plane_at[0], d, row, c);
        if (f->k_planes == 2) {
            code = 4 * code + krn_fragment_get_k(page + f->k_plane_at[1], d, row, c);
            k[c] = scale * ((double)code - 7.5);
        } else {
            k[c] = decoded(f, f->k_level, code, scale, zero);
        }
    }
}

static void read_v(const krn_attend_head *head, const krn_span *s, int d, int row, double *v)
{
    if (s->kind == KRN_SPAN_BF16) {
        const uint16_t *x = (const uint16_t *)s->v + (size_t)row * (size_t)d;
        for (int c = 0; c < d; c++) {
            v[c] = (double)base_bf16_to_f32(x[c]);
        }
        return;
    }
    const krn_page_format *f = &head->format;
    const uint8_t *page = s->k;
    double scale = half_at(page, f->v_scale_at, row);
    double zero = f->has_zero ? half_at(page, f->v_zero_at, row) : 0.0;
    for (int c = 0; c < d; c++) {
        v[c] = decoded(f, f->v_level, krn_fragment_get_v(page + f->v_plane_at, row, c), scale, zero);
    }
}

/* y = x R, or x R^T, in doubles; H is its own transpose. */
static void rotate(const krn_rotation *r, int d, bool transposed, double *x)
{
    double y[D_MAX];
    if (r->kind == KRN_ROTATION_NONE) {
        return;
    }
    for (int j = 0; j < d; j++) {
        y[j] = 0.0;
        for (int i = 0; i < d; i++) {
            double entry = __builtin_parity((unsigned)(i & j)) ? -1.0 / sqrt(d) : 1.0 / sqrt(d);
            if (r->kind == KRN_ROTATION_MATRIX) {
                entry = (double)(transposed ? r->matrix[j * d + i] : r->matrix[i * d + j]);
            }
            y[j] += x[i] * entry;
        }
    }
    for (int j = 0; j < d; j++) {
        x[j] = y[j];
    }
}

static bool sees(const krn_attend_args *a, int row, const krn_span *s, int span_row)
{
    return s->visible_to_all || s->first_position + span_row <= a->position[row];
}

/* A query as it meets the rows of one variant: in stored space, and its product with the mean of keys. */
typedef struct exact_query {
    double q[D_MAX], of_mean, factor;
} exact_query;

static void turn_query(
        const krn_attend_args *a, int row, int h, int variant, const krn_attend_head *head, exact_query *out)
{
    int d = a->d;
    float turned[D_MAX];
    for (int c = 0; c < d; c++) {
        turned[c] = a->q[((size_t)row * (size_t)a->n_q_heads + (size_t)h) * (size_t)d + (size_t)c];
    }
    size_t angles = ((size_t)row * (size_t)a->n_variants + (size_t)variant) * (size_t)a->rope->dims;
    krn_rope_apply(a->rope, a->cos_sin + angles, turned);
    out->of_mean = 0.0;
    for (int c = 0; c < d; c++) {
        out->q[c] = (double)turned[c];
        out->of_mean += head->k_rotation.mean != NULL ? out->q[c] * (double)head->k_rotation.mean[c] : 0.0;
    }
    rotate(&head->k_rotation, d, false, out->q);
    out->factor = (double)a->scale * (double)a->sharpness[variant];
}

static double logit(const exact_query *q, int d, const krn_attend_head *head, const krn_span *s, int r)
{
    double k[D_MAX], sum = q->of_mean;
    read_k(head, s, d, r, k);
    for (int c = 0; c < d; c++) {
        sum += q->q[c] * k[c];
    }
    return sum * q->factor;
}

/* Fills logits of all stored rows, -infinity where invisible, and returns the largest. */
static double all_logits(
        const krn_attend_args *a, int row, const exact_query *q, const krn_attend_head *head, double *logits)
{
    double top = -INFINITY;
    size_t n = 0;
    for (int i = 0; i < head->n_spans; i++) {
        const krn_span *s = &head->spans[i];
        for (int r = 0; r < s->rows; r++, n++) {
            logits[n] = sees(a, row, s, r) ? logit(&q[s->variant], a->d, head, s, r) : -INFINITY;
            top = logits[n] > top ? logits[n] : top;
        }
    }
    return top;
}

static void attend_one(const krn_attend_args *a, int row, int h, exact_query *q, double *logits)
{
    const krn_attend_head *head = &a->heads[h / (a->n_q_heads / a->n_kv_heads)];
    int d = a->d;
    for (int variant = 0; variant < a->n_variants; variant++) {
        turn_query(a, row, h, variant, head, &q[variant]);
    }
    double top = all_logits(a, row, q, head, logits), total = 0.0, o[D_MAX] = {0}, v[D_MAX];
    size_t n = 0;
    for (int i = 0; i < head->n_spans; i++) {
        for (int r = 0; r < head->spans[i].rows; r++, n++) {
            double p = logits[n] > -INFINITY ? exp(logits[n] - top) : 0.0;
            read_v(head, &head->spans[i], d, r, v);
            total += p;
            for (int c = 0; c < d && p > 0.0; c++) { /* what is not seen may be anything */
                o[c] += p * v[c];
            }
        }
    }
    for (int c = 0; c < d && total > 0.0; c++) {
        o[c] /= total;
    }
    rotate(&head->v_rotation, d, true, o);
    float *out = a->out + ((size_t)row * (size_t)a->n_q_heads + (size_t)h) * (size_t)d;
    for (int c = 0; c < d; c++) {
        double mean = head->v_rotation.mean != NULL ? (double)head->v_rotation.mean[c] : 0.0;
        out[c] = (float)(o[c] + mean);
    }
}

void krn_attend_exact(const krn_attend_args *a)
{
    size_t rows = 1;
    for (int i = 0; i < a->n_kv_heads; i++) {
        size_t n = 0;
        for (int s = 0; s < a->heads[i].n_spans; s++) {
            n += (size_t)a->heads[i].spans[s].rows;
        }
        rows = n > rows ? n : rows;
    }
    double *logits = base_zalloc(rows, sizeof *logits);
    exact_query *q = base_zalloc((size_t)a->n_variants, sizeof *q);
    REQUIRE(logits != NULL && q != NULL);
    for (int row = 0; row < a->n_rows; row++) {
        for (int h = 0; h < a->n_q_heads; h++) {
            attend_one(a, row, h, q, logits);
        }
    }
    base_free(logits);
    base_free(q);
}
