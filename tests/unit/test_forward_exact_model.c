/* The specification of the forward pass against transformers in float32 on the default model: logits, log
 * probabilities, keys, values and hidden states within the tolerances that independent float32 code needs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/model_internal.h"
#include "tests/unit/vectors.h"

#define MODEL EPIMEM_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
#define DATA  EPIMEM_SOURCE_DIR "/tests/data/forward/"

typedef struct fixture {
    krn_pool *pool;
    model *m;
    cJSON *prompts;
} fixture;

static int open_fixture(void **state)
{
    static fixture f;
    err e = {0};
    f.prompts = vectors_json(DATA "forward.json");
    if (f.prompts == NULL || krn_pool_open(0, &f.pool, &e) != ST_OK ||
            model_open(f.pool, MODEL, &f.m, &e) != ST_OK) {
        print_error("%s (the model is fetched by ./quickstart)\n", e.text);
        return -1;
    }
    *state = &f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    model_close(f->m);
    krn_pool_close(f->pool);
    cJSON_Delete(f->prompts);
    return 0;
}

static double log_sum_exp(const float *x, int n)
{
    double largest = (double)x[0];
    double sum = 0.0;
    for (int i = 1; i < n; i++) {
        largest = fmax(largest, (double)x[i]);
    }
    for (int i = 0; i < n; i++) {
        sum += exp((double)x[i] - largest);
    }
    return largest + log(sum);
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double largest = 0.0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        largest = difference <= largest ? largest : difference; /* NaN counts */
    }
    return largest;
}

static void check_prompt(const fixture *f, const char *name)
{
    const cJSON *prompt = vectors_named(f->prompts, name);
    int vocab = model_get_config(f->m)->vocab;
    int n;
    char path[512];
    err e = {0};
    int32_t *ids = vectors_ids(prompt, "ids", &n);
    float *logits = base_alloc((size_t)n * (size_t)vocab * sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(model_forward_exact(f->m, ids, n, logits, NULL, 0, &e), ST_OK);
    if (n > 1) {
        (void)snprintf(path, sizeof path, DATA "%s.nll.f32", name);
        float *nll = vectors_f32(path, (size_t)n - 1);
        assert_non_null(nll);
        for (int i = 0; i + 1 < n; i++) {
            const float *row = logits + (size_t)i * (size_t)vocab;
            double got = log_sum_exp(row, vocab) - (double)row[ids[i + 1]];
            if (!(fabs(got - (double)nll[i]) <= 1e-3)) {
                fail_msg("%s: nll[%d] is %.6f, expected %.6f", name, i, got, (double)nll[i]);
            }
        }
        base_free(nll);
    }
    const float *last = logits + (size_t)(n - 1) * (size_t)vocab;
    double norm = log_sum_exp(last, vocab);
    const cJSON *pair;
    cJSON_ArrayForEach (pair, cJSON_GetObjectItemCaseSensitive(prompt, "top20")) {
        int id = cJSON_GetArrayItem(pair, 0)->valueint;
        double expected = cJSON_GetArrayItem(pair, 1)->valuedouble;
        if (!(fabs((double)last[id] - norm - expected) <= 1e-3)) {
            fail_msg("%s: log p(%d) is %.6f, expected %.6f", name, id, (double)last[id] - norm, expected);
        }
    }
    if (n == 64) {
        float *expected = vectors_f32(DATA "p0064.logits.f32", (size_t)vocab);
        assert_non_null(expected);
        assert_true(largest_difference(last, expected, (size_t)vocab) <= 1e-3);
        base_free(expected);
    }
    base_free(logits);
    base_free(ids);
}

static void short_prompts(void **state)
{
    check_prompt(*state, "p0001");
    check_prompt(*state, "p0007");
    check_prompt(*state, "p0064");
}

static void prompt_of_300(void **state)
{
    check_prompt(*state, "p0300");
}

static void compare_file(const char *file, const float *got, size_t n, double bound)
{
    char path[512];
    (void)snprintf(path, sizeof path, DATA "%s", file);
    float *expected = vectors_f32(path, n);
    assert_non_null(expected);
    double difference = largest_difference(got, expected, n);
    if (!(difference <= bound)) {
        fail_msg("%s: %g apart, allowed %g", file, difference, bound);
    }
    base_free(expected);
}

static void layer_taps(void **state)
{
    const fixture *f = *state;
    const model_config *c = model_get_config(f->m);
    int n;
    err e = {0};
    int32_t *ids = vectors_ids(vectors_named(f->prompts, "p0064"), "ids", &n);
    size_t kv = (size_t)n * (size_t)(c->kv_heads * c->d);
    size_t hidden = (size_t)n * (size_t)c->width;
    float *x = base_zalloc(5 * kv + hidden, sizeof *x);
    assert_non_null(x);
    model_taps taps[3] = {{.layer = 0, .k = x}, {.layer = 14, .k = x + kv, .v = x + 2 * kv},
            {.layer = 29, .k = x + 3 * kv, .v = x + 4 * kv, .hidden = x + 5 * kv}};
    assert_int_equal(model_forward_exact(f->m, ids, n, NULL, taps, 3, &e), ST_OK);
    compare_file("p0064.L00.k.f32", taps[0].k, kv, 1e-4);
    compare_file("p0064.L14.k.f32", taps[1].k, kv, 1e-4);
    compare_file("p0064.L14.v.f32", taps[1].v, kv, 1e-4);
    compare_file("p0064.L29.k.f32", taps[2].k, kv, 1e-4);
    compare_file("p0064.L29.v.f32", taps[2].v, kv, 1e-4);
    float *expected = vectors_f32(DATA "p0064.L29.hidden.f32", hidden);
    assert_non_null(expected);
    for (int t = 0; t < n;
            t++) { /* a bound per token: the first one's values are hundreds of times the others' */
        const float *row = expected + (size_t)t * (size_t)c->width;
        double largest = 0.0;
        for (int i = 0; i < c->width; i++) {
            largest = fmax(largest, fabs((double)row[i]));
        }
        double difference =
                largest_difference(taps[2].hidden + (size_t)t * (size_t)c->width, row, (size_t)c->width);
        if (!(difference <= 2e-5 * largest)) {
            fail_msg("hidden state of token %d: %g of its largest value apart", t, difference / largest);
        }
    }
    base_free(expected);
    base_free(x);
    base_free(ids);
}

typedef struct collected {
    float *logits;
    size_t vocab;
    int from;
} collected;

static void collect(void *ctx, int row, const float *logits)
{
    const collected *c = ctx;
    memcpy(c->logits + (size_t)(c->from + row) * c->vocab, logits, c->vocab * sizeof *logits);
}

static void pieces_give_the_same_bits(void **state)
{
    const fixture *f = *state;
    size_t vocab = (size_t)model_get_config(f->m)->vocab;
    static const int pieces[] = {1, 5, 1, 23, 34};
    int n;
    err e = {0};
    int32_t *ids = vectors_ids(vectors_named(f->prompts, "p0064"), "ids", &n);
    float *whole = base_alloc((size_t)n * vocab * sizeof *whole);
    collected c = {base_alloc((size_t)n * vocab * sizeof *whole), vocab, 0};
    model_exact *x = NULL;
    assert_non_null(whole);
    assert_non_null(c.logits);
    assert_int_equal(model_forward_exact(f->m, ids, n, whole, NULL, 0, &e), ST_OK);
    assert_int_equal(model_exact_open(f->m, n, &x, &e), ST_OK);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        assert_int_equal(
                model_exact_append(x, ids + c.from, pieces[i], pieces[i], collect, &c, NULL, 0, &e), ST_OK);
        c.from += pieces[i];
    }
    assert_int_equal(c.from, n);
    assert_memory_equal(whole, c.logits, (size_t)n * vocab * sizeof *whole);
    assert_int_equal(model_exact_append(x, ids, 1, 0, collect, &c, NULL, 0, &e), ST_ERR_LIMIT);
    model_exact_close(x);
    base_free(whole);
    base_free(c.logits);
    base_free(ids);
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    const fixture *f = *state;
    const int32_t bad[] = {49152, -1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        assert_int_equal(model_forward_exact(f->m, &bad[i], 1, NULL, NULL, 0, &e), ST_ERR_ARG);
        assert_non_null(strstr(e.text, "49151"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(short_prompts),
            cmocka_unit_test(prompt_of_300),
            cmocka_unit_test(layer_taps),
            cmocka_unit_test(pieces_give_the_same_bits),
            cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
