/* tiers: the same tokens give the same columns however they arrive; what is stored restores the same state; recalled
 * pieces hold the rows they name; positions and shifts follow the formula in tiers_internal.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/tiers_internal.h"

enum { LAYERS = 2, HEADS = 2, DIM = 64 };
static const kvq_shape shape = {.layers = LAYERS, .kv_heads = HEADS, .d = DIM};

/* A value that depends on the place alone. */
static uint16_t value_at(int layer, int head, bool v, int64_t token, int channel)
{
    uint32_t x = (uint32_t)(token * 2654435761u) ^
            (uint32_t)(layer * 977 + head * 131 + (v ? 7919 : 0) + channel * 40503);
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return base_f32_to_bf16(((float)(x & 0xffff) / 32768.0f - 1.0f) * (channel == 5 ? 8.0f : 1.0f));
}

static void compute(tiers *t, int n)
{
    const model_kv *kv;
    err e = {0};
    int64_t first = tiers_tokens(t);
    assert_int_equal(tiers_prepare(t, n, &kv, &e), ST_OK);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int head = 0; head < HEADS; head++) {
            uint16_t *k, *v;
            kv->new_rows(kv->ctx, layer, head, &k, &v);
            for (int i = 0; i < n * DIM; i++) {
                k[i] = value_at(layer, head, false, first + i / DIM, i % DIM);
                v[i] = value_at(layer, head, true, first + i / DIM, i % DIM);
            }
        }
    }
    tiers_advance(t, n);
}

static void fill(tiers *t, int64_t until, int most)
{
    while (tiers_tokens(t) < until) {
        int room = tiers_run_room(t), left = (int)(until - tiers_tokens(t));
        int n = room < left ? room : left;
        compute(t, n < most ? n : most);
    }
}

typedef struct fixture {
    kvq_codec *codec;
    tiers *whole; /* what the loader reads from */
    int loads;
    bool damaged;
} fixture;

static status load(void *ctx, int64_t column, tiers_column **out, err *e)
{
    fixture *f = ctx;
    f->loads++;
    if (f->damaged) {
        return FAIL(e, ST_ERR_CORRUPT, "column %lld", (long long)column);
    }
    *out = tiers_get_column(f->whole, column);
    return *out != NULL ? ST_OK : ST_ERR_NOT_FOUND;
}

static tiers *open_tiers(fixture *f)
{
    tiers *t;
    err e = {0};
    assert_int_equal(tiers_open(f->codec, &shape, NULL, load, f, &t, &e), ST_OK);
    return t;
}

static int setup(void **state)
{
    static fixture f;
    f = (fixture){0};
    assert_int_equal(kvq_codec_open("turboquant", &shape, NULL, &f.codec, NULL), ST_OK);
    f.whole = open_tiers(&f);
    fill(f.whole, 1500, 256);
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tiers_close(f->whole);
    kvq_codec_close(f->codec);
    return 0;
}

static void assert_same_columns(tiers *a, tiers *b, const kvq_codec *codec)
{
    assert_int_equal(tiers_columns(a), tiers_columns(b));
    for (int64_t i = 0; i < tiers_columns(a); i++) {
        tiers_column *p = tiers_get_column(a, i), *q = tiers_get_column(b, i);
        assert_non_null(p);
        assert_non_null(q);
        assert_memory_equal(tiers_column_data(p), tiers_column_data(q), kvq_column_bytes(codec));
        tiers_column_unref(p);
        tiers_column_unref(q);
    }
}

static void chopping_changes_nothing(void **state)
{
    fixture *f = *state;
    static const int sizes[] = {1, 7, 100};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tiers *t = open_tiers(f);
        fill(t, 1500, sizes[i]);
        assert_same_columns(t, f->whole, f->codec);
        tiers_close(t);
    }
}

static void which_tokens_are_coded_follows_from_the_position(void **state)
{
    fixture *f = *state;
    tiers *t = open_tiers(f);
    for (int64_t tokens = 1; tokens <= 1200; tokens++) {
        fill(t, tokens, 1);
        int64_t block = tiers_block_of(tokens - 1);
        assert_int_equal(tiers_columns(t), block >= 1 ? 2 * (block - 1) : 0);
    }
    tiers_close(t);
}

/* Spans of a run at the current end, as the attention would read them: kind, rows, first position and contents. */
static uint64_t digest(tiers *t, const kvq_codec *codec)
{
    const model_kv *kv;
    err e = {0};
    uint64_t h = 1469598103934665603u;
    assert_int_equal(tiers_prepare(t, 1, &kv, &e), ST_OK);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int head = 0; head < HEADS; head++) {
            const krn_span *spans;
            int n;
            kv->spans(kv->ctx, layer, head, &spans, &n);
            for (int i = 0; i < n; i++) {
                const krn_span *s = &spans[i];
                size_t bytes = s->kind == KRN_SPAN_PAGE ? kvq_page_format(codec, layer)->bytes
                                                        : (size_t)s->rows * DIM * 2;
                h = (h ^ (uint64_t)s->kind ^ (uint64_t)s->rows << 8 ^ (uint64_t)s->variant << 20) *
                        1099511628211u;
                for (size_t b = 0; b + 2 * DIM < bytes;
                        b++) { /* the row of the run itself is not computed yet */
                    h = (h ^ ((const uint8_t *)s->k)[b]) * 1099511628211u;
                }
            }
        }
    }
    return h;
}

static void what_is_stored_restores_the_same_state(void **state)
{
    fixture *f = *state;
    static const int64_t ends[] = {40, 64, 65, 320, 576, 577, 1000, 1344, 1500};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        tiers *a = open_tiers(f), *b = open_tiers(f);
        fill(a, ends[i], 256);
        assert_int_equal(tiers_seal(a, NULL), ST_OK);
        int64_t from = tiers_exact_from(ends[i]);
        assert_int_equal(tiers_restore(b, ends[i], tiers_columns(a), from, NULL), ST_OK);
        uint8_t *piece = base_alloc(tiers_piece_bytes(a));
        for (int64_t p = 0; p * TIERS_PIECE_TOKENS < ends[i]; p++) {
            if (p * TIERS_PIECE_TOKENS < TIERS_SINK_TOKENS || p * TIERS_PIECE_TOKENS >= from) {
                tiers_export_piece(a, p, piece);
                tiers_import_piece(b, p, piece);
            }
        }
        base_free(piece);
        tiers_view plain = {.window_from = TIERS_SINK_TOKENS};
        assert_int_equal(tiers_set_view(a, &plain, NULL), ST_OK);
        assert_int_equal(tiers_set_view(b, &plain, NULL), ST_OK);
        assert_int_equal(digest(a, f->codec), digest(b, f->codec));
        tiers_close(a);
        tiers_close(b);
    }
}

static void a_fork_has_the_state_of_its_block_start(void **state)
{
    fixture *f = *state;
    for (int64_t block = 1; block <= 5; block++) {
        int64_t at = tiers_block_start(block);
        tiers *own = open_tiers(f), *fork = open_tiers(f);
        fill(own, at, 256);
        assert_int_equal(tiers_fork(fork, f->whole, at, NULL), ST_OK);
        tiers_view plain = {.window_from = TIERS_SINK_TOKENS};
        assert_int_equal(tiers_set_view(own, &plain, NULL), ST_OK);
        assert_int_equal(tiers_set_view(fork, &plain, NULL), ST_OK);
        assert_int_equal(digest(own, f->codec), digest(fork, f->codec));
        fill(own, 1500, 256);
        fill(fork, 1500, 256);
        assert_same_columns(own, fork, f->codec);
        tiers_close(own);
        tiers_close(fork);
    }
    tiers_drop_exact(f->whole, tiers_exact_from(1500));
    tiers *late = open_tiers(f);
    assert_int_equal(tiers_fork(late, f->whole, tiers_block_start(2), NULL), ST_ERR_NOT_FOUND);
    tiers_close(late);
}

/* Decoded K rows of a gathered piece equal the decoded rows of the columns they come from. */
static void pieces_hold_the_rows_they_name(void **state)
{
    fixture *f = *state;
    ep_piece pieces[] = {{.first_token = 64 + 100, .rows = 60, .at = 0},
            {.first_token = 64 + 300, .rows = 128, .at = 60}, {.first_token = 64, .rows = 1, .at = 188}};
    tiers_view v = {.window_from = tiers_exact_from(1500),
            .pinned_end = 70,
            .sharpness = 1.15f,
            .pieces = pieces,
            .n_pieces = 3,
            .piece_rows = 189};
    err e = {0};
    assert_int_equal(tiers_set_view(f->whole, &v, &e), ST_OK);
    const model_kv *kv;
    assert_int_equal(tiers_prepare(f->whole, 1, &kv, &e), ST_OK);
    assert_int_equal(kv->n_variants, 2 + 3);
    int64_t p = 1500, at = tiers_view_position(&v, p);
    assert_int_equal(at, p - v.window_from + 70 + 189);
    assert_int_equal(p - kv->shift[1], at); /* pinned rows stay where they are: the query comes to them */
    for (int i = 0; i < 3; i++) {
        /* distance to the piece's first key as laid out = distance with its own phase after the shift */
        assert_int_equal(p - kv->shift[2 + i] - pieces[i].first_token, at - (70 + pieces[i].at));
    }
    const krn_span *spans;
    int n;
    kv->spans(kv->ctx, 1, 1, &spans, &n);
    static float got[KRN_PAGE_ROWS * DIM], want[KRN_PAGE_ROWS * DIM], ignored[KRN_PAGE_ROWS * DIM];
    for (int i = 0; i < 3; i++) {
        const krn_span *s = &spans[2 + i]; /* behind sinks and the pinned column */
        assert_int_equal(s->rows, pieces[i].rows);
        kvq_decode_page(f->codec, 1, 1, s->k, got, ignored);
        for (int r = 0; r < s->rows; r++) {
            int64_t token = pieces[i].first_token + r - TIERS_SINK_TOKENS;
            tiers_column *c = tiers_get_column(f->whole, token / KRN_PAGE_ROWS);
            kvq_decode_page(
                    f->codec, 1, 1, tiers_column_data(c) + kvq_page_at(f->codec, 1, 1), want, ignored);
            assert_memory_equal(got + r * DIM, want + token % KRN_PAGE_ROWS * DIM, DIM * sizeof(float));
            tiers_column_unref(c);
        }
    }
}

static void a_damaged_column_leaves_the_state_as_it_was(void **state)
{
    fixture *f = *state;
    tiers *t = open_tiers(f);
    fill(t, 1500, 256);
    tiers_drop_columns(t, 0, 4);
    f->damaged = true;
    tiers_view plain = {.window_from = TIERS_SINK_TOKENS};
    err e = {0};
    tiers_view before = *tiers_get_view(t);
    assert_int_equal(tiers_set_view(t, &plain, &e), ST_ERR_CORRUPT);
    assert_int_equal(tiers_tokens(t), 1500);
    assert_true(tiers_view_equal(&before, tiers_get_view(t)));
    f->damaged = false;
    assert_int_equal(tiers_set_view(t, &plain, &e), ST_OK);
    assert_same_columns(t, f->whole, f->codec);
    tiers_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(chopping_changes_nothing, setup, teardown),
            cmocka_unit_test_setup_teardown(
                    which_tokens_are_coded_follows_from_the_position, setup, teardown),
            cmocka_unit_test_setup_teardown(what_is_stored_restores_the_same_state, setup, teardown),
            cmocka_unit_test_setup_teardown(a_fork_has_the_state_of_its_block_start, setup, teardown),
            cmocka_unit_test_setup_teardown(pieces_hold_the_rows_they_name, setup, teardown),
            cmocka_unit_test_setup_teardown(a_damaged_column_leaves_the_state_as_it_was, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
