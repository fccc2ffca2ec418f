/*
 * Random pages have all codes, scales over two decades, and partly filled last pages; lists are ragged, one is empty.
 * The answer comes from a float64 softmax over decoded rows, written here from the page's description alone.
 */
#include "tests/bench/gpu/attend_case.h"

#include <math.h>
#include <string.h>

#include "kernels/fragment.h"
#include "kvq/page.h"

static uint64_t next(attend_case *c)
{
    c->seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = c->seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float uniform(attend_case *c)
{
    return (float)(next(c) >> 40) * 0x1p-24f;
}

static float normal(attend_case *c)
{
    float u = uniform(c) + 0x1p-25f, v = uniform(c);
    return sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v);
}

/* ---- building ---- */

static void set_format(attend_case *c)
{
    static const float even[4] = {-1.5f, -0.5f, 0.5f, 1.5f}, table[4] = {-1.5f, -0.45f, 0.45f, 1.5f},
                       wide[4] = {-1.0f, -0.2f, 0.012f, 1.55f}; /* 250 steps of 0.0102: bytes past 127 */
    krn_page_format *f = &c->format;
    bool is_table = c->o.levels == CASE_TABLE || c->o.levels == CASE_PLANES_TABLE,
         is_wide = c->o.levels == CASE_WIDE_TABLE;
    f->d = c->o.d;
    f->k_planes = c->o.levels == CASE_PLANES || c->o.levels == CASE_PLANES_TABLE ? 2 : 1;
    f->has_zero = c->o.levels == CASE_ZERO;
    for (int i = 0; i < 4; i++) {
        float grid = -1.0f + (float)(int)lroundf((wide[i] + 1.0f) * 98.0f) / 98.0f;
        f->k_level[i] = is_wide ? grid : is_table ? table[i] : even[i];
        f->v_level[i] = f->k_level[i];
    }
    kvq_page_lay_out(f);
}

static void fill_page(attend_case *c, uint8_t *page, int rows)
{
    const krn_page_format *f = &c->format;
    memset(page, 0, f->bytes);
    for (int row = 0; row < rows; row++) {
        for (int channel = 0; channel < f->d; channel++) {
            uint32_t code = (uint32_t)next(c);
            krn_fragment_set_k(page + f->k_plane_at[0], f->d, row, channel, code & 3u);
            if (f->k_planes == 2) {
                krn_fragment_set_k(page + f->k_plane_at[1], f->d, row, channel, code >> 2 & 3u);
            }
            krn_fragment_set_v(
                    page + f->v_plane_at, row, channel, c->o.constant_values ? 2u : code >> 4 & 3u);
        }
        float planes = f->k_planes == 2 ? 0.25f : 1.0f;
        kvq_page_set_half(
                page, f->k_scale_at, row, base_f32_to_f16(planes * 0.3f * powf(10.0f, uniform(c) - 0.7f)));
        kvq_page_set_half(page, f->v_scale_at, row,
                base_f32_to_f16(c->o.constant_values ? 0.75f : 0.2f * powf(10.0f, 2.0f * uniform(c) - 1.0f)));
        if (f->has_zero) {
            kvq_page_set_half(page, f->k_zero_at, row, base_f32_to_f16(1.5f + 0.8f * (uniform(c) - 0.5f)));
            kvq_page_set_half(page, f->v_zero_at, row,
                    base_f32_to_f16(c->o.constant_values ? 1.5f : 1.5f + 0.8f * (uniform(c) - 0.5f)));
        }
    }
}

/* The value that every element has in a case of constant values. */
static float constant_value(const attend_case *c)
{
    return 0.75f * (c->format.has_zero ? 0.5f : c->format.v_level[2]);
}

static void fill_rows(attend_case *c, uint16_t *k, uint16_t *v, int rows)
{
    for (int i = 0; i < rows * c->o.d; i++) {
        float outlier = i % c->o.d == 5 ? c->o.outlier : 1.0f;
        k[i] = base_f32_to_bf16(0.4f * outlier * normal(c));
        v[i] = base_f32_to_bf16(c->o.constant_values ? constant_value(c) : 0.4f * normal(c));
    }
}

static float *numbers(attend_case *c, size_t n, float scale)
{
    float *x = base_zalloc(n, sizeof *x);
    REQUIRE(x != NULL);
    for (size_t i = 0; i < n; i++) {
        x[i] = scale * normal(c);
    }
    return x;
}

/* A product of reflections is orthogonal: I - 2 u u^T / u^T u, twice. */
static void random_orthogonal(attend_case *c, float *m)
{
    int d = c->o.d;
    double r[256][256] = {{0}};
    for (int i = 0; i < d; i++) {
        r[i][i] = 1.0;
    }
    for (int times = 0; times < 2; times++) {
        double u[256], square = 0.0;
        for (int i = 0; i < d; i++) {
            u[i] = (double)normal(c);
            square += u[i] * u[i];
        }
        for (int i = 0; i < d; i++) {
            double dot = 0.0;
            for (int j = 0; j < d; j++) {
                dot += r[i][j] * u[j];
            }
            for (int j = 0; j < d; j++) {
                r[i][j] -= 2.0 * dot * u[j] / square;
            }
        }
    }
    for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
            m[i * d + j] = (float)r[i][j];
        }
    }
}

static void make_rotations(attend_case *c)
{
    size_t d = (size_t)c->o.d, heads = (size_t)c->o.kv_heads;
    c->k_matrix = numbers(c, heads * d * d, 0.0f);
    c->v_matrix = numbers(c, heads * d * d, 0.0f);
    c->v_transposed = numbers(c, heads * d * d, 0.0f);
    c->k_mean = numbers(c, heads * d, c->o.means ? 0.3f : 0.0f);
    c->v_mean = numbers(c, heads * d, c->o.means && !c->o.constant_values ? 0.3f : 0.0f);
    for (size_t h = 0; h < heads && c->o.rotation == KRN_ROTATION_MATRIX; h++) {
        random_orthogonal(c, c->k_matrix + h * d * d);
        random_orthogonal(c, c->v_matrix + h * d * d);
        for (size_t i = 0; i < d; i++) {
            for (size_t j = 0; j < d; j++) {
                c->v_transposed[h * d * d + j * d + i] = c->v_matrix[h * d * d + i * d + j];
            }
        }
    }
}

static void make_queries(attend_case *c)
{
    size_t rows = (size_t)c->o.sequences, d = (size_t)c->o.d;
    c->q = numbers(c, rows * (size_t)c->q_heads * d, 1.2f);
    for (size_t i = 5; i < rows * (size_t)c->q_heads * d; i += d) {
        c->q[i] *= c->o.outlier;
    }
    c->rope = (krn_rope){.pairing = c->o.rope_halves ? KRN_ROPE_HALVES : KRN_ROPE_ADJACENT,
            .dims = c->o.rope_dims,
            .inv_freq = c->inv_freq,
            .magnitude = 1.0f};
    size_t variants = (size_t)c->o.variants, dims = (size_t)c->o.rope_dims;
    c->cos_sin = numbers(c, rows * variants * dims, 0.0f);
    c->sharpness = numbers(c, rows * variants, 0.0f);
    for (size_t i = 0; i < rows * variants; i++) {
        c->sharpness[i] = i % variants == 0 ? 1.0f : 1.0f + 0.3f * uniform(c);
        for (size_t pair = 0; pair < dims / 2; pair++) {
            double angle = (double)(1000 + 17 * i) * pow(10000.0, -2.0 * (double)pair / (double)dims);
            c->cos_sin[i * dims + 2 * pair] = (float)cos(angle);
            c->cos_sin[i * dims + 2 * pair + 1] = (float)sin(angle);
        }
    }
}

static int repeats_of(const attend_case *c)
{
    return c->o.repeats > 0 ? c->o.repeats : 1;
}

/* Lengths of list number i: the first is longest, the last of several empty. */
static void list_lengths(const attend_case *c, int i, int *pages, int *last_rows, int *rows)
{
    bool empty = c->n_lists > 2 && i == c->n_lists - 1;
    *pages = empty ? 0 : i == 0 ? c->o.pages : c->o.pages * (2 + i % 3) / 5;
    *last_rows = i % 2 == 0 ? 128 - 37 % (i + 2) * 11 : 1;
    *rows = empty ? 0 : i == 0 ? c->o.bf16_rows : c->o.bf16_rows * (1 + i % 4) / 4;
}

static void make_lists(attend_case *c)
{
    size_t d = (size_t)c->o.d, page = c->format.bytes, row = 2 * d;
    int copies = c->o.shared ? c->o.kv_heads : 1;
    c->n_lists = c->o.sequences * (c->o.shared ? 1 : c->o.kv_heads);
    c->lists = base_zalloc((size_t)c->n_lists, sizeof *c->lists);
    c->spans = base_zalloc((size_t)c->n_lists * attend_case_spans(c), sizeof *c->spans);
    size_t bytes_each = (size_t)c->o.pages * page + 2 * ((size_t)c->o.bf16_rows * row + 64);
    c->head_stride = bytes_each * (size_t)c->n_lists;
    c->blob_bytes = c->head_stride * (size_t)copies;
    c->blob = base_zalloc(c->blob_bytes + 64, 1);
    REQUIRE(c->lists != NULL && c->spans != NULL && c->blob != NULL);
    for (int i = 0; i < c->n_lists; i++) {
        int pages, last_rows, rows, n = 0;
        krn_span *spans = c->spans + (size_t)i * attend_case_spans(c);
        list_lengths(c, i, &pages, &last_rows, &rows);
        for (int copy = 0; copy < copies; copy++) {
            uint8_t *at = c->blob + (size_t)copy * c->head_stride + (size_t)i * bytes_each;
            n = 0;
            for (int k = 0; k < pages; k++, at += page) {
                int filled = k == pages - 1 ? last_rows : 128;
                fill_page(c, at, filled);
                if (copy == 0) {
                    spans[n] = (krn_span){
                            .kind = KRN_SPAN_PAGE, .rows = filled, .variant = k % c->o.variants, .k = at};
                }
                n++;
            }
            uint8_t *v = at + (size_t)rows * row;
            fill_rows(c, (uint16_t *)(void *)at, (uint16_t *)(void *)v, rows);
            if (copy == 0) {
                spans[n] = (krn_span){.kind = KRN_SPAN_BF16, .rows = rows, .variant = 0, .k = at, .v = v};
            }
            n++;
        }
        int repeats = repeats_of(c);
        for (int k = n; k < n * repeats; k++) {
            spans[k] = spans[k - n];
        }
        c->lists[i] = (cuda_attend_list){spans, n * repeats};
    }
}

/* ---- the answer ---- */

static double half_at(const uint8_t *page, uint32_t at, int row)
{
    return (double)base_f16_to_f32(kvq_page_get_half(page, at, row));
}

static double to_half(double x)
{
    return (double)base_f16_to_f32(base_f32_to_f16((float)x));
}

/* Element of a row before its scale, and that scale. */
static double k_element(const attend_case *c, const uint8_t *page, int row, int channel)
{
    const krn_page_format *f = &c->format;
    uint32_t code = krn_fragment_get_k(page + f->k_plane_at[0], f->d, row, channel);
    if (f->k_planes == 2) {
        return 4.0 * code + krn_fragment_get_k(page + f->k_plane_at[1], f->d, row, channel) - 7.5;
    }
    return f->has_zero ? (double)code - half_at(page, f->k_zero_at, row) : (double)f->k_level[code];
}

static double v_element(const attend_case *c, const uint8_t *page, int row, int channel)
{
    const krn_page_format *f = &c->format;
    uint32_t code = krn_fragment_get_v(page + f->v_plane_at, row, channel);
    return f->has_zero ? (double)code - half_at(page, f->v_zero_at, row) : (double)f->v_level[code];
}

typedef struct answer {
    double top, total, o[256];
} answer;

/* One row into a running softmax. v_scale is rounded together with the weight in the half-precision version. */
static void add_row(answer *a, double score, double v_scale, const double *v, int d, bool rounded)
{
    if (score > a->top) {
        double f = exp(a->top - score);
        a->total *= f;
        for (int i = 0; i < d; i++) {
            a->o[i] *= f;
        }
        a->top = score;
    }
    double p = exp(score - a->top), weight = p * v_scale;
    weight = rounded ? to_half(weight) : weight;
    a->total += p;
    for (int i = 0; i < d; i++) {
        a->o[i] += weight * v[i];
    }
}

typedef struct turned {
    double q[256], of_mean, factor;
} turned;

static void turn_query(const attend_case *c, int sequence, int head, int variant, bool rounded, turned *out)
{
    int d = c->o.d, kv = head / c->o.group;
    size_t row = (size_t)sequence * (size_t)c->o.variants + (size_t)variant;
    float x[256];
    memcpy(x, c->q + ((size_t)sequence * (size_t)c->q_heads + (size_t)head) * (size_t)d,
            (size_t)d * sizeof(float));
    krn_rope_apply(&c->rope, c->cos_sin + row * (size_t)c->o.rope_dims, x);
    out->of_mean = 0.0;
    for (int i = 0; i < d; i++) {
        out->of_mean += (double)x[i] * (double)c->k_mean[kv * d + i];
    }
    for (int j = 0; j < d; j++) {
        double sum = 0.0;
        for (int i = 0; i < d && c->o.rotation != KRN_ROTATION_NONE; i++) {
            double m = __builtin_parity((unsigned)(i & j)) ? -1.0 / sqrt(d) : 1.0 / sqrt(d);
            m = c->o.rotation == KRN_ROTATION_MATRIX ? (double)c->k_matrix[(kv * d + i) * d + j] : m;
            sum += (double)x[i] * m;
        }
        out->q[j] = c->o.rotation == KRN_ROTATION_NONE ? (double)x[j] : sum;
        out->q[j] = rounded ? to_half(out->q[j]) : out->q[j];
    }
    out->factor = (double)c->sharpness[row] / sqrt((double)d);
}

static void add_span(
        const attend_case *c, const krn_span *s, size_t offset, const turned *q, bool rounded, answer *a)
{
    int d = c->o.d;
    const uint8_t *k = (const uint8_t *)s->k + offset;
    const uint16_t *rows_k = (const void *)k, *rows_v = (const void *)((const uint8_t *)s->v + offset);
    for (int row = 0; row < s->rows; row++) {
        double v[256], dot = 0.0, k_scale = 1.0, v_scale = 1.0;
        if (s->kind == KRN_SPAN_PAGE) {
            k_scale = half_at(k, c->format.k_scale_at, row);
            v_scale = half_at(k, c->format.v_scale_at, row);
        }
        for (int i = 0; i < d; i++) {
            bool page = s->kind == KRN_SPAN_PAGE;
            v[i] = page ? v_element(c, k, row, i) : (double)base_bf16_to_f32(rows_v[row * d + i]);
            dot += q->q[i] * (page ? k_element(c, k, row, i) : (double)base_bf16_to_f32(rows_k[row * d + i]));
        }
        add_row(a, (dot * k_scale + q->of_mean) * q->factor, v_scale, v, d, rounded);
    }
}

static void rotate_back(const attend_case *c, int kv, const answer *a, float *out)
{
    int d = c->o.d;
    for (int i = 0; i < d; i++) {
        double sum = c->o.rotation == KRN_ROTATION_NONE ? a->o[i] : 0.0;
        for (int j = 0; j < d && c->o.rotation != KRN_ROTATION_NONE; j++) {
            double m = __builtin_parity((unsigned)(i & j)) ? -1.0 / sqrt(d) : 1.0 / sqrt(d);
            sum += a->o[j] *
                    (c->o.rotation == KRN_ROTATION_MATRIX ? (double)c->v_matrix[(kv * d + i) * d + j] : m);
        }
        out[i] = (float)((a->total > 0.0 ? sum / a->total : 0.0) + (double)c->v_mean[kv * d + i]);
    }
}

static void make_answer(const attend_case *c, bool rounded, float *out)
{
    int d = c->o.d;
    turned *q = base_zalloc((size_t)c->o.variants, sizeof *q);
    REQUIRE(q != NULL);
    for (int i = 0; i < c->o.sequences * c->q_heads; i++) {
        int sequence = i / c->q_heads, head = i % c->q_heads, kv = head / c->o.group;
        const cuda_attend_list *list = &c->lists[c->o.shared ? sequence : sequence * c->o.kv_heads + kv];
        answer a = {.top = -1e300};
        for (int variant = 0; variant < c->o.variants; variant++) {
            turn_query(c, sequence, head, variant, rounded, &q[variant]);
        }
        for (int s = 0; s < list->n_spans / repeats_of(c); s++) { /* once is enough */
            size_t offset = c->o.shared ? c->head_stride * (size_t)kv : 0;
            add_span(c, &list->spans[s], offset, &q[list->spans[s].variant], rounded, &a);
        }
        rotate_back(c, kv, &a, out + (size_t)i * (size_t)d);
    }
    base_free(q);
}

/* ---- public ---- */

void attend_case_make(const attend_case_options *o, uint64_t seed, attend_case *out)
{
    attend_case *c = out;
    *c = (attend_case){.o = *o, .seed = seed, .q_heads = o->group * o->kv_heads};
    set_format(c);
    make_rotations(c);
    make_queries(c);
    make_lists(c);
    size_t n = (size_t)o->sequences * (size_t)c->q_heads * (size_t)o->d;
    c->expected = base_zalloc(n, sizeof(float));
    c->same_width = base_zalloc(n, sizeof(float));
    REQUIRE(c->expected != NULL && c->same_width != NULL);
    make_answer(c, false, c->expected);
    make_answer(c, true, c->same_width);
}

size_t attend_case_spans(const attend_case *c)
{
    return (size_t)(c->o.pages + 2) * (size_t)repeats_of(c);
}

void attend_case_free(attend_case *c)
{
    void *all[] = {c->blob, c->lists, c->spans, c->q, c->cos_sin, c->sharpness, c->k_matrix, c->v_matrix,
            c->v_transposed, c->k_mean, c->v_mean, c->expected, c->same_width};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        base_free(all[i]);
    }
    *c = (attend_case){0};
}

cuda_attend_shape attend_case_shape(const attend_case *c, int multiprocessors)
{
    return (cuda_attend_shape){.d = c->o.d,
            .q_heads = c->q_heads,
            .kv_heads = c->o.kv_heads,
            .multiprocessors = multiprocessors};
}

cuda_attend_call attend_case_call(const attend_case *c, int multiprocessors)
{
    cuda_attend_call call = {.shape = attend_case_shape(c, multiprocessors), .format = c->format};
    call.k.kind = c->o.rotation;
    call.v.kind = c->o.rotation;
    call.scale = (float)(1.0 / sqrt((double)c->o.d));
    call.pairing = c->rope.pairing;
    call.rope_dims = c->rope.dims;
    call.n_variants = c->o.variants;
    call.page_head_stride = c->o.shared ? (int64_t)c->head_stride : 0;
    call.row_head_stride = call.page_head_stride;
    return call;
}

int64_t attend_case_tiles(const attend_case *c)
{
    int64_t tiles = 0;
    for (int i = 0; i < c->n_lists; i++) {
        for (int s = 0; s < c->lists[i].n_spans; s++) {
            const krn_span *span = &c->lists[i].spans[s];
            tiles += span->kind == KRN_SPAN_PAGE ? 1 : (span->rows + ATTEND_BF16_ROWS - 1) / ATTEND_BF16_ROWS;
        }
    }
    return tiles;
}

static double relative_error(const float *got, const float *expected, int d)
{
    double square = 0.0, norm = 0.0;
    for (int i = 0; i < d; i++) {
        double difference = (double)got[i] - (double)expected[i];
        square += difference * difference;
        norm += (double)expected[i] * (double)expected[i];
    }
    double error = norm > 0.0 ? sqrt(square / norm) : sqrt(square);
    return isnan(error) ? INFINITY : error;
}

void attend_case_errors(const attend_case *c, const float *got, double *error, double *same_width_error)
{
    *error = *same_width_error = 0.0;
    for (int i = 0; i < c->o.sequences * c->q_heads; i++) {
        size_t at = (size_t)i * (size_t)c->o.d;
        *error = fmax(*error, relative_error(got + at, c->expected + at, c->o.d));
        *same_width_error =
                fmax(*same_width_error, relative_error(c->same_width + at, c->expected + at, c->o.d));
    }
}

#define HADAMARD KRN_ROTATION_HADAMARD
#define MATRIX   KRN_ROTATION_MATRIX
#define NONE     KRN_ROTATION_NONE
/* name, d, group, KV heads, sequences, levels, rotation, means, halves, constant, RoPE dims, pages, rows, variants,
 * outlier, shared, repeats */
const attend_case_options attend_case_list[] = {
        {"d128 plain", 128, 4, 2, 1, CASE_UNIFORM, NONE, false, true, false, 128, 9, 0, 1, 1.0f, false, 0},
        {"d128 hadamard, tiers", 128, 4, 2, 1, CASE_UNIFORM, HADAMARD, true, true, false, 128, 21, 50, 3,
                1.0f, false, 0},
        {"d128 matrix, outliers", 128, 3, 2, 2, CASE_UNIFORM, MATRIX, true, false, false, 128, 10, 17, 2,
                20.0f, false, 0},
        {"d128 table", 128, 4, 2, 1, CASE_TABLE, HADAMARD, false, true, false, 96, 12, 33, 2, 4.0f, false, 0},
        {"d128 wide table", 128, 2, 2, 1, CASE_WIDE_TABLE, NONE, false, true, false, 128, 10, 5, 1, 1.0f,
                false, 0},
        {"d128 zeros", 128, 4, 2, 1, CASE_ZERO, HADAMARD, true, true, false, 128, 11, 20, 2, 4.0f, false, 0},
        {"d128 planes", 128, 4, 2, 1, CASE_PLANES, MATRIX, true, true, false, 128, 11, 20, 2, 4.0f, false, 0},
        {"d128 planes, table", 128, 1, 2, 1, CASE_PLANES_TABLE, HADAMARD, true, true, false, 128, 9, 20, 2,
                1.0f, false, 0},
        {"d128 group 8", 128, 8, 1, 2, CASE_UNIFORM, HADAMARD, true, true, false, 128, 10, 20, 2, 4.0f, false,
                0},
        {"d128 group 16", 128, 16, 1, 1, CASE_UNIFORM, MATRIX, true, true, false, 128, 10, 20, 2, 4.0f, false,
                0},
        {"d128 group 5, table", 128, 5, 1, 1, CASE_TABLE, HADAMARD, true, true, false, 128, 10, 20, 2, 4.0f,
                false, 0},
        {"d128 group 12, zeros", 128, 12, 1, 1, CASE_ZERO, NONE, true, true, false, 128, 9, 20, 2, 4.0f,
                false, 0},
        {"d128 many variants", 128, 4, 1, 1, CASE_UNIFORM, HADAMARD, true, true, false, 128, 25, 40, 21, 4.0f,
                false, 0},
        {"d128 rows only", 128, 4, 2, 2, CASE_UNIFORM, HADAMARD, true, true, false, 128, 0, 130, 1, 4.0f,
                false, 0},
        {"d128 constant values", 128, 4, 2, 2, CASE_UNIFORM, NONE, true, true, true, 128, 20, 70, 3, 4.0f,
                false, 0},
        {"d128 constant, table", 128, 8, 1, 1, CASE_TABLE, NONE, true, true, true, 128, 12, 33, 3, 4.0f,
                false, 0},
        {"d128 constant, zeros", 128, 4, 1, 1, CASE_ZERO, NONE, true, true, true, 128, 12, 33, 3, 4.0f, false,
                0},
        {"d128 shared lists", 128, 4, 3, 2, CASE_UNIFORM, HADAMARD, true, true, false, 128, 12, 40, 2, 4.0f,
                true, 0},
        {"d128 103,424 tokens", 128, 4, 1, 1, CASE_UNIFORM, HADAMARD, true, true, false, 128, 8, 10, 2, 4.0f,
                false, 101},
        {"d128 1,049,600 tokens", 128, 4, 2, 1, CASE_UNIFORM, HADAMARD, true, true, false, 128, 8, 0, 2, 4.0f,
                true, 1025},
        {"d64 group 3", 64, 3, 3, 1, CASE_UNIFORM, HADAMARD, true, false, false, 64, 18, 50, 2, 4.0f, false,
                0},
        {"d64 table", 64, 3, 3, 1, CASE_TABLE, HADAMARD, false, false, false, 64, 12, 50, 2, 4.0f, false, 0},
        {"d64 wide table, group 8", 64, 8, 1, 1, CASE_WIDE_TABLE, NONE, false, false, false, 64, 12, 50, 2,
                4.0f, false, 0},
        {"d64 zeros", 64, 4, 2, 1, CASE_ZERO, MATRIX, true, false, false, 32, 12, 50, 2, 4.0f, false, 0},
        {"d64 planes", 64, 4, 2, 1, CASE_PLANES, HADAMARD, true, false, false, 64, 12, 50, 2, 4.0f, false, 0},
        {"d64 planes, table, group 6", 64, 6, 2, 1, CASE_PLANES_TABLE, NONE, true, false, false, 64, 12, 50,
                2, 4.0f, false, 0},
        {"d256 group 4", 256, 4, 1, 1, CASE_UNIFORM, HADAMARD, true, true, false, 256, 10, 20, 2, 4.0f, false,
                0},
        {"d256 group 8, table", 256, 8, 1, 1, CASE_TABLE, MATRIX, true, true, false, 256, 9, 20, 2, 4.0f,
                false, 0},
        {"d256 wide table", 256, 2, 1, 1, CASE_WIDE_TABLE, NONE, true, true, false, 256, 9, 20, 2, 4.0f,
                false, 0},
        {"d256 zeros", 256, 4, 1, 1, CASE_ZERO, HADAMARD, true, true, false, 64, 9, 20, 2, 4.0f, false, 0},
        {"d256 planes, table", 256, 5, 1, 1, CASE_PLANES_TABLE, HADAMARD, true, true, false, 256, 9, 20, 2,
                4.0f, false, 0},
};
const int attend_case_count = (int)(sizeof attend_case_list / sizeof attend_case_list[0]);
