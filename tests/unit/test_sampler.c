/* The sampler: each filter keeps what it promises, draws follow the probabilities, and draw n of a stream is always
 * the same. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/model_internal.h"

enum { VOCAB = 7 };
/* Probabilities at temperature 1: .4 .25 .15 .1 .06 .03 .01 of ids 3 0 5 1 6 2 4. */
static const double probability[VOCAB] = {.25, .1, .03, .4, .01, .15, .06};
static const int32_t by_rank[VOCAB] = {3, 0, 5, 1, 6, 2, 4};

static const sampler_options plain = {.temperature = 1.0f, .top_p = 1.0f, .repeat_penalty = 1.0f, .seed = 7};

static void fill(float *logits)
{
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = (float)log(probability[i]) + 3.0f;
    }
}

static void count_draws(const sampler_options *o, int draws, int *counts)
{
    memset(counts, 0, VOCAB * sizeof *counts);
    for (int step = 0; step < draws; step++) {
        float logits[VOCAB];
        fill(logits);
        int32_t id = sampler_pick(o, logits, VOCAB, NULL, 0, (uint64_t)step);
        assert_in_range(id, 0, VOCAB - 1);
        counts[id]++;
    }
}

/* Draws are spread as `expected` says (sums to 1), within five standard deviations. */
static void expect_spread(const sampler_options *o, const double *expected)
{
    enum { DRAWS = 20000 };
    int counts[VOCAB];
    count_draws(o, DRAWS, counts);
    for (int i = 0; i < VOCAB; i++) {
        double deviation = sqrt(DRAWS * expected[i] * (1.0 - expected[i]));
        if (!(fabs(counts[i] - DRAWS * expected[i]) <= 5.0 * deviation)) {
            fail_msg("id %d came %d times, expected %.0f", i, counts[i], DRAWS * expected[i]);
        }
    }
}

/* As above, for the `kept` most probable ids alone. */
static void expect_kept(const sampler_options *o, int kept)
{
    double expected[VOCAB] = {0};
    double mass = 0.0;
    for (int i = 0; i < kept; i++) {
        mass += probability[by_rank[i]];
    }
    for (int i = 0; i < kept; i++) {
        expected[by_rank[i]] = probability[by_rank[i]] / mass;
    }
    expect_spread(o, expected);
}

static void draws_follow_the_probabilities(void **state)
{
    (void)state;
    expect_spread(&plain, probability);
    sampler_options o = plain;
    double expected[VOCAB];
    double mass = 0.0;
    o.temperature = 0.5f;
    for (int i = 0; i < VOCAB; i++) {
        mass += probability[i] * probability[i];
    }
    for (int i = 0; i < VOCAB; i++) {
        expected[i] = probability[i] * probability[i] / mass;
    }
    expect_spread(&o, expected);
}

static void filters_keep_what_they_promise(void **state)
{
    (void)state;
    sampler_options o = plain;
    o.top_k = 3;
    expect_kept(&o, 3);
    o.top_k = 1;
    expect_kept(&o, 1);
    o = plain;
    o.top_k = 100;
    expect_kept(&o, VOCAB);
    o = plain;
    o.top_p = 0.7f; /* .4 + .25 is not enough */
    expect_kept(&o, 3);
    o.top_p = 0.64f;
    expect_kept(&o, 2);
    o.top_p = 0.0001f;
    expect_kept(&o, 1);
    o = plain;
    o.min_p = 0.2f; /* of .4: at least .08 */
    expect_kept(&o, 4);
    o = plain;
    o.top_k = 4;     /* .9 in all */
    o.top_p = 0.75f; /* .675 of it */
    expect_kept(&o, 3);
}

static void ties_keep_the_lower_ids(void **state)
{
    (void)state;
    sampler_options o = plain;
    o.top_k = 2;
    for (int step = 0; step < 200; step++) {
        float logits[4] = {1.0f, 2.0f, 2.0f, 2.0f};
        int32_t id = sampler_pick(&o, logits, 4, NULL, 0, (uint64_t)step);
        assert_true(id == 1 || id == 2);
    }
    float logits[4] = {1.0f, 2.0f, 2.0f, 2.0f};
    o.temperature = 0.0f;
    assert_int_equal(sampler_pick(&o, logits, 4, NULL, 0, 0), 1);
}

static void a_stream_repeats_itself(void **state)
{
    (void)state;
    int same = 0;
    for (uint64_t step = 0; step < 500; step++) {
        float a[VOCAB];
        float b[VOCAB];
        float c[VOCAB];
        sampler_options other = plain;
        other.seed = 8;
        fill(a);
        fill(b);
        fill(c);
        int32_t first = sampler_pick(&plain, a, VOCAB, NULL, 0, step);
        assert_int_equal(first, sampler_pick(&plain, b, VOCAB, NULL, 0, step));
        same += first == sampler_pick(&other, c, VOCAB, NULL, 0, step);
    }
    assert_true(same < 250); /* streams of neighbouring seeds are not alike: 129 would agree by chance */
}

static void penalty_applies_once_per_id(void **state)
{
    (void)state;
    sampler_options o = plain;
    const int32_t recent[] = {1, 1, 1, 2, 99, -1};
    o.temperature = 0.0f;
    o.repeat_penalty = 2.0f;
    float logits[4] = {1.9f, 4.0f, -1.0f, 1.0f};
    assert_int_equal(sampler_pick(&o, logits, 4, recent, 6, 0), 1); /* 2.0: three times would be 0.5 */
    assert_true(logits[1] == 2.0f);
    assert_true(logits[2] == -2.0f);
    assert_true(logits[0] == 1.9f);
}

static void odd_logits_are_survived(void **state)
{
    (void)state;
    float nan_among[4] = {NAN, 1.0f, NAN, -INFINITY};
    assert_int_equal(sampler_pick(&plain, nan_among, 4, NULL, 0, 0), 1);
    float infinite[4] = {0.0f, 1.0f, INFINITY, 2.0f};
    assert_int_equal(sampler_pick(&plain, infinite, 4, NULL, 0, 0), 2);
    float all_nan[4] = {NAN, NAN, NAN, NAN};
    assert_in_range(sampler_pick(&plain, all_nan, 4, NULL, 0, 0), 0, 3);
    sampler_options cold = plain;
    cold.temperature = 1e-30f;
    float far[4] = {-1e30f, 3.0f, 1e30f, 0.0f};
    assert_int_equal(sampler_pick(&cold, far, 4, NULL, 0, 5), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(draws_follow_the_probabilities),
            cmocka_unit_test(filters_keep_what_they_promise),
            cmocka_unit_test(ties_keep_the_lower_ids),
            cmocka_unit_test(a_stream_repeats_itself),
            cmocka_unit_test(penalty_applies_once_per_id),
            cmocka_unit_test(odd_logits_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
