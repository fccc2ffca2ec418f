/*
 * Attention over tiers: against the double-precision specification, and the promise that a row's bits depend on nothing
 * but the row and what it sees.
 */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>

#include "tests/unit/attn_scene.h"

typedef struct shape {
    const char *codec;
    int d, group, kv_heads;
} shape;

static const shape shapes[] = {
        {"turboquant", 64, 3, 3},
        {"turboquant", 128, 4, 2},
        {"turboquant", 256, 1, 1},
        {"turboquant", 64, 16, 1},
        {"turboquant-k4", 64, 8, 1},
        {"turboquant-k4", 128, 1, 2},
        {"turboquant-k4", 256, 2, 1},
        {"naive", 64, 3, 2},
        {"naive", 128, 2, 1},
        {"hadamard", 256, 1, 1},
        {"hadamard", 64, 1, 1},
        {"bf16", 64, 3, 1},
        {"bf16", 128, 5, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

/* Every kind of span, of odd sizes, the last one causal and longer than a chunk. */
static void add_everything(scene *s)
{
    static const int filled[] = {128, 1, 25, 64, 127, 16, 17, 33, 2, 49, 96, 5, 80, 31, 7, 9};
    scene_add(s, KRN_SPAN_BF16, 64, 0, true);
    for (size_t i = 0; i < sizeof filled / sizeof filled[0]; i++) {
        scene_add(s, KRN_SPAN_PAGE, filled[i], (int)(i % SCENE_VARIANTS), true);
    }
    scene_add(s, KRN_SPAN_PAGE, 128, 0, false);
    scene_add(s, KRN_SPAN_BF16, 200, 0, false);
}

typedef struct difference {
    double rms, max;
} difference;

static difference compare(const krn_attend_args *a, const float *exact)
{
    size_t n = (size_t)a->n_rows * (size_t)a->n_q_heads * (size_t)a->d;
    difference r = {0};
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a->out[i] - (double)exact[i]);
        assert_true(e == e);
        r.rms += e * e;
        r.max = e > r.max ? e : r.max;
    }
    r.rms = sqrt(r.rms / (double)n);
    return r;
}

static float *exact_of(scene *s, const krn_attend_args *a)
{
    krn_attend_args copy = *a;
    copy.out = scene_own(s, (size_t)a->n_rows * (size_t)a->n_q_heads * (size_t)a->d * sizeof(float));
    krn_attend_exact(&copy);
    return copy.out;
}

/* A head's rows as floats, with the page they are in and its row scale of v. */
typedef struct decoded {
    float *k, *v;
    const krn_span **span;
    int *row;
    int rows;
} decoded;

static decoded decode_head(scene *s, int head)
{
    decoded all = {0};
    size_t most = (size_t)s->n_spans * 512, d = (size_t)s->d;
    all.k = scene_own(s, most * d * sizeof(float));
    all.v = scene_own(s, most * d * sizeof(float));
    all.span = scene_own(s, most * sizeof *all.span);
    all.row = scene_own(s, most * sizeof *all.row);
    for (int i = 0; i < s->n_spans; i++) {
        const krn_span *span = &s->spans[head * SCENE_SPANS_MAX + i];
        float *k = all.k + (size_t)all.rows * d, *v = all.v + (size_t)all.rows * d;
        if (span->kind == KRN_SPAN_PAGE) {
            kvq_decode_page(s->codec, 0, head, span->k, k, v); /* rows past the filled ones are overwritten */
        }
        for (int r = 0; r < span->rows; r++) {
            for (size_t c = 0; c < d && span->kind == KRN_SPAN_BF16; c++) {
                k[(size_t)r * d + c] = base_bf16_to_f32(((const uint16_t *)span->k)[(size_t)r * d + c]);
                v[(size_t)r * d + c] = base_bf16_to_f32(((const uint16_t *)span->v)[(size_t)r * d + c]);
            }
            all.span[all.rows] = span;
            all.row[all.rows++] = r;
        }
    }
    return all;
}

/* Probabilities of one query over a head's rows, in doubles, and for each row the error of its logit that rounding q
 * to steps of max|q'| / 16256 makes: factor * step / sqrt(12) * |k'|, since the roundings are independent. */
static void soften(
        const scene *s, const krn_attend_args *a, int row, int h, const decoded *all, double *p, double *slip)
{
    int d = s->d;
    double top = -INFINITY, total = 0.0;
    float turned[SCENE_VARIANTS][256];
    for (int variant = 0; variant < SCENE_VARIANTS; variant++) {
        float q[256];
        memcpy(q, a->q + (row * a->n_q_heads + h) * d, (size_t)d * sizeof *q);
        krn_rope_apply(a->rope, a->cos_sin + (row * a->n_variants + variant) * d, q);
        krn_rotate(&a->heads[h / s->group].k_rotation, d, q, turned[variant]);
    }
    for (int t = 0; t < all->rows; t++) {
        const krn_span *span = all->span[t];
        const float *q = turned[span->variant];
        double dot = 0.0, kk = 0.0, most = 0.0,
               factor = (double)a->scale * (double)a->sharpness[span->variant];
        for (int c = 0; c < d; c++) {
            double k = (double)all->k[t * d + c];
            dot += k * (double)q[c];
            kk += k * k;
            most = fmax(most, fabs((double)q[c]));
        }
        bool seen = span->visible_to_all || span->first_position + all->row[t] <= a->position[row];
        p[t] = seen ? factor * dot : -INFINITY;
        slip[t] = span->kind == KRN_SPAN_PAGE ? factor * most / 16256.0 / sqrt(12.0) * sqrt(kk) : 0.0;
        top = fmax(top, p[t]);
    }
    for (int t = 0; t < all->rows; t++) {
        p[t] = exp(p[t] - top);
        total += p[t];
    }
    for (int t = 0; t < all->rows; t++) {
        p[t] /= total;
    }
}

/*
 * RMS error that 15 bits of q and 16 bits of the weights of values make, derived to first order for one query: an
 * output moves by p * slip * (v - o) for each row; and a weight w = p * row scale is off by its largest of the page
 * / 65535 / sqrt(12), times a level of at most 3 (1.51 where there is no zero).
 */
static double split_error(scene *s, const krn_attend_args *a, int row, int h)
{
    int d = s->d;
    decoded all = decode_head(s, h / s->group);
    double *p = scene_own(s, (size_t)all.rows * sizeof *p),
           *slip = scene_own(s, (size_t)all.rows * sizeof *slip);
    double squares = 0.0, largest = 0.0, o[256] = {0};
    soften(s, a, row, h, &all, p, slip);
    for (int t = 0; t < all.rows; t++) {
        for (int c = 0; c < d; c++) {
            o[c] += p[t] * (double)all.v[t * d + c];
        }
    }
    for (int t = 0; t < all.rows; t++) {
        const krn_page_format *f = &a->heads[0].format;
        const uint8_t *page = all.span[t]->k;
        double level = f->has_zero ? 3.0 : 1.51;
        for (int c = 0; c < d; c++) {
            double move = p[t] * slip[t] * ((double)all.v[t * d + c] - o[c]);
            squares += move * move / d;
        }
        if (all.span[t]->kind == KRN_SPAN_PAGE) {
            uint16_t scale;
            memcpy(&scale, page + f->v_scale_at + 2 * all.row[t], 2);
            largest = fmax(all.row[t] == 0 ? 0.0 : largest, p[t] * (double)base_f16_to_f32(scale));
            if (all.row[t] == all.span[t]->rows - 1) {
                double off = largest / 65535.0 * level;
                squares += off * off / 12.0 * all.span[t]->rows;
            }
        }
    }
    return sqrt(squares);
}

/* Split error of a sample of the queries. */
static double split_rms(scene *s, const krn_attend_args *a)
{
    double squares = 0.0;
    for (int i = 0; i < a->n_rows; i++) {
        double one = split_error(s, a, i, i % a->n_q_heads);
        squares += one * one / a->n_rows;
    }
    return sqrt(squares);
}

static void check_accuracy(const shape *p, krn_pool *pool)
{
    scene s;
    scene_open(&s, p->codec, p->d, p->group, p->kv_heads);
    add_everything(&s);
    krn_attend_args a = scene_args(&s, 9);
    const float *exact = exact_of(&s, &a);
    double split = split_rms(&s, &a);
    difference plain = {0};
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        scene_run(&s, pool, &a);
        difference r = compare(&a, exact);
        plain = isa == KRN_ISA_SCALAR ? r : plain;
        print_message("%-14s d %3d group %2d %-7s rms %.2e max %.2e, of the split %.2e\n", p->codec, p->d,
                p->group, krn_isa_name((krn_isa)isa), r.rms, r.max, split);
        assert_true(plain.max < 1e-3);
        assert_true(r.rms <= 2.0 * plain.rms + 1.5 * split);
        assert_true(
                r.max <= 2.0 * plain.max + 30.0 * split); /* some queries are off by more than the mean one */
    }
    scene_close(&s);
    krn_isa_set(krn_isa_best());
}

static void every_version_is_close_to_the_specification(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int i = 0; i < N_SHAPES; i++) {
        check_accuracy(&shapes[i], pool);
    }
    krn_pool_close(pool);
}

static void assert_same_bits(const float *x, const float *y, size_t n)
{
    assert_memory_equal(x, y, n * sizeof *x);
}

/* A row alone, in a block, on any number of threads. */
static void check_bits(const shape *p, krn_isa isa, int n_rows)
{
    krn_pool *one, *three;
    err e;
    scene s;
    krn_isa_set(isa);
    assert_int_equal(krn_pool_open(1, &one, &e), ST_OK);
    assert_int_equal(krn_pool_open(3, &three, &e), ST_OK);
    scene_open(&s, p->codec, p->d, p->group, p->kv_heads);
    add_everything(&s);
    krn_attend_args a = scene_args(&s, n_rows), b = a;
    size_t values = (size_t)a.n_q_heads * (size_t)a.d;
    b.out = scene_own(&s, (size_t)n_rows * values * sizeof(float));
    scene_run(&s, one, &a);
    scene_run(&s, three, &b);
    assert_same_bits(a.out, b.out, (size_t)n_rows * values);
    for (int row = 0; row < n_rows; row += row % 3 + 1) {
        krn_attend_args alone = scene_one_row(&s, &a, row);
        scene_run(&s, row % 2 == 0 ? one : three, &alone);
        assert_same_bits(alone.out, a.out + (size_t)row * values, values);
    }
    krn_pool_close(one);
    krn_pool_close(three);
    scene_close(&s);
    krn_isa_set(krn_isa_best());
}

static void a_row_has_the_same_bits_alone_and_in_a_block(void **state)
{
    (void)state;
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        check_bits(&shapes[0], (krn_isa)isa, 67); /* two blocks, the second with a short tail */
        check_bits(&shapes[1], (krn_isa)isa, 9);
        check_bits(&shapes[2], (krn_isa)isa, 3);
        check_bits(&shapes[4], (krn_isa)isa, 20);
        check_bits(&shapes[7], (krn_isa)isa, 17);
        check_bits(&shapes[11], (krn_isa)isa, 12);
    }
}

/* A page like another, but with NaN scales and other codes past the filled rows: where a reader must not look. */
static const uint8_t *loud_page(scene *s, const krn_span *span)
{
    const krn_page_format *f = kvq_page_format(s->codec, 0);
    uint8_t *page = scene_own(s, f->bytes), *loud = scene_own(s, f->bytes);
    memset(page, 0xff, f->bytes);
    memcpy(loud, span->k, f->bytes);
    kvq_gather_rows(s->codec, 0, page, 0, loud, span->rows, KRN_PAGE_ROWS - span->rows);
    return loud;
}

/* Rows that a query does not see, behind or between those it sees, filled with values that would show. */
static void invisible_rows_change_nothing(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        scene s;
        scene_open(&s, "turboquant", 64, 3, 2);
        add_everything(&s);
        krn_attend_args a = scene_args(&s, 9), b = a;
        size_t values = (size_t)a.n_q_heads * (size_t)a.d;
        scene_run(&s, pool, &a);
        krn_attend_head heads[2];
        for (int h = 0; h < 2; h++) {
            krn_span *longer = scene_own(&s, (size_t)(s.n_spans + 3) * sizeof *longer);
            uint16_t *loud = scene_own(&s, 200 * 64 * sizeof *loud);
            memset(loud, 0x7f, 200 * 64 * sizeof *loud); /* NaN */
            krn_span unseen = {
                    .kind = KRN_SPAN_BF16, .rows = 200, .k = loud, .v = loud, .first_position = 1 << 20};
            krn_span page = s.spans[h * SCENE_SPANS_MAX + 1];
            page.visible_to_all = false;
            page.first_position = s.next_position;
            longer[0] = unseen;
            longer[1] = page;
            memcpy(longer + 2, s.heads[h].spans, (size_t)s.n_spans * sizeof *longer);
            longer[s.n_spans + 2] = unseen;
            for (int i = 2; i < s.n_spans + 2; i++) {
                longer[i].k = longer[i].kind == KRN_SPAN_PAGE ? loud_page(&s, &longer[i]) : longer[i].k;
            }
            heads[h] = s.heads[h];
            heads[h].spans = longer;
            heads[h].n_spans = s.n_spans + 3;
        }
        b.heads = heads;
        b.out = scene_own(&s, 9 * values * sizeof(float));
        scene_run(&s, pool, &b);
        assert_same_bits(a.out, b.out, 9 * values);
        /* the last of them alone, and the last causal rows cut away from an earlier one */
        krn_attend_args alone = scene_one_row(&s, &b, 8);
        scene_run(&s, pool, &alone);
        assert_same_bits(a.out + 8 * values, alone.out, values);
        alone = scene_one_row(&s, &a, 2);
        for (int h = 0; h < 2; h++) {
            s.spans[h * SCENE_SPANS_MAX + s.n_spans - 1].rows -= 6;
        }
        scene_run(&s, pool, &alone);
        assert_same_bits(a.out + 2 * values, alone.out, values);
        scene_close(&s);
    }
    krn_isa_set(krn_isa_best());
    krn_pool_close(pool);
}

/* Weights add up to one over all tiers, splits and partly filled pages: a constant comes back as it is. */
static void constant_values_come_back(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        for (int d = 64; d <= 256; d *= 2) {
            scene s;
            scene_open(&s, "naive", d, 3, 2);
            s.constant_v = 1.5f; /* min-max codes hold it exactly enough: one step is 1.5 / 60000 */
            add_everything(&s);
            krn_attend_args a = scene_args(&s, 10);
            scene_run(&s, pool, &a);
            for (int i = 0; i < 10 * a.n_q_heads * d; i++) {
                assert_true(fabsf(a.out[i] - 1.5f) < 2e-3f);
            }
            scene_close(&s);
        }
    }
    krn_isa_set(krn_isa_best());
    krn_pool_close(pool);
}

static float *random_rotation(scene *s)
{
    int d = s->d;
    float *m = scene_own(s, (size_t)d * (size_t)d * sizeof *m);
    for (int i = 0; i < d; i++) {
        m[i * d + i] = 1.0f;
    }
    for (int turn = 0; turn < 40 * d; turn++) { /* planar rotations of rows */
        int i = (int)(scene_bits(s) % (uint32_t)d), j = (int)(scene_bits(s) % (uint32_t)d);
        float angle = 6.28f * scene_uniform(s), c = cosf(angle), n = sinf(angle);
        for (int k = 0; k < d && i != j; k++) {
            float x = m[i * d + k], y = m[j * d + k];
            m[i * d + k] = c * x - n * y;
            m[j * d + k] = n * x + c * y;
        }
    }
    return m;
}

/* A calibrated space: matrices and means, against the specification. */
static void matrices_and_means(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        for (int d = 64; d <= 256; d *= 2) {
            scene s;
            scene_open(&s, "turboquant", d, 2, 2);
            s.matrix = random_rotation(&s);
            s.mean = scene_own(&s, (size_t)d * sizeof(float));
            for (int c = 0; c < d; c++) {
                s.mean[c] = scene_normal(&s);
            }
            add_everything(&s);
            krn_attend_args a = scene_args(&s, 5);
            const float *exact = exact_of(&s, &a);
            scene_run(&s, pool, &a);
            difference r = compare(&a, exact);
            assert_true(r.max < 2e-3 && r.rms < 3e-4);
            scene_close(&s);
        }
    }
    krn_isa_set(krn_isa_best());
    krn_pool_close(pool);
}

/* Tables that no codec here uses: lopsided, on grids of 46 and 255 steps. */
static void any_level_table(void **state)
{
    (void)state;
    static const float tables[2][4] = {{-1.0f, -0.3f, 0.25f, 1.3f}, {-1.28f, -0.27f, 0.5f, 1.27f}};
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        for (int i = 0; i < 4; i++) {
            scene s;
            scene_open(&s, "turboquant", i < 2 ? 64 : 128, 3, 1);
            add_everything(&s);
            krn_attend_args a = scene_args(&s, 3);
            memcpy(s.heads[0].format.k_level, tables[i % 2], sizeof tables[0]);
            memcpy(s.heads[0].format.v_level, tables[1 - i % 2], sizeof tables[0]);
            scene_run(&s, pool, &a);
            difference r = compare(&a, exact_of(&s, &a));
            assert_true(r.max < 5e-3 && r.rms < 5e-4);
            scene_close(&s);
        }
    }
    krn_isa_set(krn_isa_best());
    krn_pool_close(pool);
}

static void a_query_that_sees_nothing_gets_the_mean(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    scene s;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    scene_open(&s, "turboquant", 64, 3, 1);
    s.mean = scene_own(&s, 64 * sizeof(float));
    s.mean[5] = 2.0f;
    scene_add(&s, KRN_SPAN_BF16, 4, 0, false);
    scene_add(&s, KRN_SPAN_PAGE, 4, 0, false);
    krn_attend_args a = scene_args(&s, 20); /* the first twelve are before everything */
    scene_run(&s, pool, &a);
    const float *exact = exact_of(&s, &a);
    for (int i = 0; i < 12 * 3 * 64; i++) {
        assert_true(fabsf(a.out[i] - s.mean[i % 64]) < 1e-6f && fabsf(exact[i] - s.mean[i % 64]) < 1e-6f);
    }
    assert_true(compare(&a, exact).max < 5e-3);
    a.heads = s.heads;
    s.heads[0].n_spans = 0;
    scene_run(&s, pool, &a);
    for (int i = 0; i < 20 * 3 * 64; i++) {
        assert_true(a.out[i] == s.mean[i % 64]);
    }
    scene_close(&s);
    krn_pool_close(pool);
}

/* Far-apart logits: one row takes all, and no weight overflows or turns into NaN. */
static void extreme_logits(void **state)
{
    (void)state;
    krn_pool *pool;
    err e;
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_OK);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        scene s;
        scene_open(&s, "turboquant", 64, 3, 1);
        add_everything(&s);
        krn_attend_args a = scene_args(&s, 9);
        a.scale = 30.0f;
        scene_run(&s, pool, &a);
        for (int i = 0; i < 9 * 3 * 64; i++) {
            assert_true(isfinite(a.out[i]) && fabsf(a.out[i]) < 1000.0f);
        }
        a.scale = 0.0f; /* plain mean of all visible values */
        scene_run(&s, pool, &a);
        assert_true(compare(&a, exact_of(&s, &a)).max < 1e-4);
        scene_close(&s);
    }
    krn_isa_set(krn_isa_best());
    krn_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(every_version_is_close_to_the_specification),
            cmocka_unit_test(a_row_has_the_same_bits_alone_and_in_a_block),
            cmocka_unit_test(invisible_rows_change_nothing),
            cmocka_unit_test(constant_values_come_back),
            cmocka_unit_test(matrices_and_means),
            cmocka_unit_test(any_level_table),
            cmocka_unit_test(a_query_that_sees_nothing_gets_the_mean),
            cmocka_unit_test(extreme_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
