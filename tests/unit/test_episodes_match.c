/* Matching: floor, budget, reasons, time, names, context, ties; the plan. */
#include "test_episodes_util.h"
#include "tests/unit/text_append.h"

static ep_match match(const ep_index *x, const char *text, int64_t budget)
{
    ep_query q = {
            .text = text, .text_bytes = strlen(text), .budget_tokens = budget, .attended_from = INT64_MAX};
    ep_match m;
    err e = {0};
    assert_int_equal(ep_match_run(x, &q, &m, &e), ST_OK);
    return m;
}

static ep_match match_query(const ep_index *x, ep_query q)
{
    ep_match m;
    err e = {0};
    q.text_bytes = strlen(q.text);
    q.context_bytes = q.context != NULL ? strlen(q.context) : 0;
    assert_int_equal(ep_match_run(x, &q, &m, &e), ST_OK);
    return m;
}

static bool uses(const ep_match *m, int64_t utterance)
{
    for (int i = 0; i < m->n_used; i++) {
        if (m->hits[i].utterance == utterance) {
            return true;
        }
    }
    return false;
}

static const ep_hit *hit_of(const ep_match *m, int64_t utterance)
{
    for (int i = 0; i < m->n_hits; i++) {
        if (m->hits[i].utterance == utterance) {
            return &m->hits[i];
        }
    }
    return NULL;
}

static void check_match(const ep_match *m, int64_t budget)
{
    int64_t tokens = 0;
    for (int i = 0; i < m->n_hits; i++) {
        const ep_hit *h = &m->hits[i];
        assert_int_equal(h->used, i < m->n_used);
        assert_int_equal(h->used, h->reason == EP_USED);
        assert_true(h->score >= -1.001f && h->score <= 1.001f);
        assert_true(i == 0 || i == m->n_used || h->rank <= m->hits[i - 1].rank);
        tokens += h->used ? h->tokens : 0;
        bool known = false;
        for (int k = 0; k < m->n_episodes; k++) {
            known = known || m->episodes[k].id == h->episode;
        }
        assert_true(known);
    }
    assert_int_equal(tokens, m->used_tokens);
    assert_true(tokens <= budget);
    assert_true(m->n_hits - m->n_used <= 32);
}

/* Four topics on four days, four utterances each. */
static ep_index *four_topics(stand_in *s)
{
    static const char *const lines[] = {"the tomato seedlings on the balcony",
            "tomato seedlings like compost", "balcony lamp for seedlings", "frost harms tomato plants",
            "the brake pads of the car", "the mechanic checks the brake", "car inspection by the mechanic",
            "brake cable and pads", "night train to Vienna", "a sleeper on the train",
            "Vienna station luggage", "train breakfast in the sleeper", "the cello suite",
            "my teacher plays cello", "recital of the suite", "cello recital on Thursday"};
    ep_index *x = index_with(s, NULL);
    for (int i = 0; i < 16; i++) {
        tell(x, i % 2 ? "assistant" : "user", lines[i], 100 + i / 4 * 4);
    }
    return x;
}

static void the_topic_is_found_and_the_rest_left(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    ep_match m = match(x, "Which brake pads does the mechanic want?", 1000);
    (void)state;
    check_match(&m, 1000);
    assert_true(m.n_used >= 3 && m.n_used <= 4);
    for (int i = 0; i < m.n_used; i++) {
        assert_true(m.hits[i].utterance >= 4 && m.hits[i].utterance < 8);
    }
    assert_true(m.episodes[0].used && strstr(m.episodes[0].title, "brake") != NULL);
    assert_true(m.n_episodes > 1 && !m.episodes[1].used);
    assert_true(m.best_score >= m.floor);
    ep_match_free(&m);
    ep_index_close(x);
}

static void an_unrelated_question_uses_nothing(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    ep_match m = match(x, "Explain quantum chromodynamics", 1000);
    (void)state;
    check_match(&m, 1000);
    assert_int_equal(m.n_used, 0);
    assert_true(m.n_hits > 0 && m.best_score < m.floor);
    for (int i = 0; i < m.n_hits; i++) {
        assert_int_equal(m.hits[i].reason, EP_BELOW_FLOOR);
    }
    for (int i = 0; i < m.n_episodes; i++) {
        assert_false(m.episodes[i].used);
    }
    ep_match_free(&m);
    ep_index_close(x);
}

static void the_budget_holds(void **state)
{
    static const int64_t budgets[] = {-5, 0, 9, 10, 25, 40, 1000};
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    (void)state;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        ep_match m = match(x, "brake pads mechanic car", budgets[i]);
        check_match(&m, budgets[i] < 0 ? 0 : budgets[i]);
        int fit = budgets[i] < 0 ? 0 : (int)(budgets[i] / 10);
        assert_int_equal(m.n_used, fit < 4 ? fit : 4);
        if (fit < 4) {
            assert_int_equal(m.hits[m.n_used].reason, EP_OVER_BUDGET);
        }
        ep_match_free(&m);
    }
    ep_index_close(x);
}

static void one_that_does_not_fit_leaves_its_place(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    ep_utterance u[2] = {said("Ada", "tomato garden frost"), said("Ada", "tomato")};
    err e = {0};
    (void)state;
    u[0].tokens = 500;
    assert_int_equal(ep_index_append(x, u, 2, &e), ST_OK);
    ep_match m = match(x, "tomato garden frost", 100);
    check_match(&m, 100);
    assert_true(uses(&m, 1) && !uses(&m, 0));
    assert_int_equal(hit_of(&m, 0)->reason, EP_OVER_BUDGET);
    ep_match_free(&m);
    ep_index_close(x);
}

static void attended_rows_are_not_taken_twice(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    (void)state;
    /* Utterance i has rows [10 i, 10 i + 10): 4 is pinned, half of 5, and 7 is recent. */
    ep_match m = match_query(x,
            (ep_query){.text = "brake pads mechanic car",
                    .budget_tokens = 1000,
                    .attended_before = 55,
                    .attended_from = 70});
    check_match(&m, 1000);
    assert_int_equal(hit_of(&m, 4)->reason, EP_ATTENDED);
    assert_int_equal(hit_of(&m, 7)->reason, EP_ATTENDED);
    assert_int_equal(hit_of(&m, 15)->reason, EP_ATTENDED);
    assert_true(uses(&m, 5) && uses(&m, 6));
    assert_int_equal(hit_of(&m, 5)->first_token, 55);
    assert_int_equal(hit_of(&m, 5)->tokens, 5);
    ep_match_free(&m);
    /* What only recent rows are about recalls nothing old. */
    m = match_query(x,
            (ep_query){.text = "brake pads mechanic car seedlings",
                    .budget_tokens = 1000,
                    .attended_before = 0,
                    .attended_from = 40});
    assert_true(m.best_score > 0.65f * m.floor && m.best_score < m.floor);
    assert_int_equal(m.n_used, 0);
    ep_match_free(&m);
    ep_index_close(x);
}

static void ties_go_to_the_later(void **state)
{
    stand_in s = {0};
    ep_options o;
    ep_options_default(&o);
    ep_index *x = index_with(&s, &o);
    (void)state;
    for (int i = 0; i < 40; i++) {
        tell(x, "Ada", i % 2 ? "tomato garden" : "unlike words here", 100 + i); /* each its own run */
    }
    ep_match m = match(x, "tomato garden", 60);
    check_match(&m, 60);
    assert_int_equal(m.n_used, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(m.hits[i].utterance, 39 - 2 * i);
    }
    ep_match_free(&m);
    ep_index_close(x);
}

static void matching_changes_nothing_and_repeats(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s), *y = four_topics(&s);
    ep_match a = match(x, "brake train tomato", 70), b = match(x, "brake train tomato", 70);
    (void)state;
    assert_same_state(x, y);
    assert_int_equal(a.n_hits, b.n_hits);
    for (int i = 0; i < a.n_hits; i++) {
        assert_int_equal(a.hits[i].utterance, b.hits[i].utterance);
        assert_true(a.hits[i].rank >= b.hits[i].rank && a.hits[i].rank <= b.hits[i].rank);
    }
    ep_match_free(&a);
    ep_match_free(&b);
    ep_index_close(x);
    ep_index_close(y);
}

static void nothing_to_match(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    ep_match m = match(x, "anything", 100);
    (void)state;
    assert_true(m.n_hits == 0 && m.n_episodes == 0);
    ep_match_free(&m);
    tell(x, "Ada", "tomato", 100);
    m = match(x, "", 100);
    assert_int_equal(m.n_used, 0);
    ep_match_free(&m);
    m = match(x, "???", 100);
    assert_int_equal(m.n_used, 0);
    ep_match_free(&m);
    ep_index_close(x);
}

/* ---- time ---- */

enum { DAY_2021_05_08 = 18755, DAY_2023_05_08 = 19485 };

static ep_index *two_marathons(stand_in *s)
{
    ep_index *x = index_with(s, NULL);
    tell(x, "Ada", "I ran the marathon in Berlin", DAY_2021_05_08);
    tell(x, "Ada", "the marathon medal hangs here", DAY_2021_05_08);
    tell(x, "Bo", "my new bread oven", DAY_2021_05_08 + 300);
    tell(x, "Bo", "I ran the marathon in Porto", DAY_2023_05_08);
    tell(x, "Bo", "the marathon shoes are worn", DAY_2023_05_08);
    return x;
}

static void a_named_time_narrows(void **state)
{
    static const struct {
        const char *text;
        bool early;
    } cases[] = {{"Who ran the marathon in 2021?", true}, {"Who ran the marathon in 2023?", false},
            {"Who ran the marathon on 8 May 2021?", true}, {"Who ran the marathon in May 2023?", false},
            {"Who ran the marathon last month?", false}, {"Who ran the marathon two years ago?", true}};
    stand_in s = {0};
    ep_index *x = two_marathons(&s);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ep_match m = match_query(x,
                (ep_query){.text = cases[i].text,
                        .budget_tokens = 1000,
                        .attended_from = INT64_MAX,
                        .has_now = true,
                        .now_us = (int64_t)(DAY_2023_05_08 + 30) * 86400000000});
        check_match(&m, 1000);
        assert_true(uses(&m, cases[i].early ? 0 : 3));
        assert_false(uses(&m, cases[i].early ? 3 : 0));
        assert_int_equal(hit_of(&m, cases[i].early ? 3 : 0)->reason, EP_OUT_OF_TIME);
        ep_match_free(&m);
    }
    ep_index_close(x);
}

/* Two people, one topic, two years: the date asked for decides. */
static void years_tell_two_people_apart(void **state)
{
    static const char *const asked[] = {
            "Who bought a red bicycle in 2021?", "Who bought a red bicycle in 2023?"};
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    const int64_t spring_2021 = 18750, spring_2023 = 19480; /* days since 1970 */
    (void)state;
    tell(x, "Ana", "I bought a red bicycle yesterday", spring_2021);
    tell(x, "Ben", "Nice weather in the mountains", spring_2021);
    tell(x, "Ben", "I bought a red bicycle yesterday", spring_2023);
    tell(x, "Ana", "Dinner with friends tonight", spring_2023);
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        ep_query q = {.text = asked[k],
                .text_bytes = strlen(asked[k]),
                .budget_tokens = 100,
                .attended_from = INT64_MAX};
        ep_match m;
        err e = {0};
        assert_int_equal(ep_match_run(x, &q, &m, &e), ST_OK);
        assert_true(m.n_used >= 1);
        for (int h = 0; h < m.n_hits; h++) {
            bool bicycle = m.hits[h].utterance == 0 || m.hits[h].utterance == 2;
            bool right = m.hits[h].utterance == (k == 0 ? 0 : 2);
            assert_int_equal(m.hits[h].used && bicycle, right);
            assert_true(!bicycle || right || m.hits[h].reason == EP_OUT_OF_TIME);
        }
        ep_match_free(&m);
    }
    ep_index_close(x);
}

static void a_time_without_matches_narrows_nothing(void **state)
{
    static const char *const texts[] = {"Who ran the marathon in 1999?",
            "Who ran the marathon in March 2022?", "Who ran the marathon before 2023?",
            "Who ran the marathon yesterday?"};
    stand_in s = {0};
    ep_index *x = two_marathons(&s);
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ep_match m = match(x, texts[i], 1000);
        assert_true(uses(&m, 0) && uses(&m, 3));
        ep_match_free(&m);
    }
    ep_index_close(x);
}

/* ---- names, context, long messages ---- */

static void a_named_speaker_comes_first(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    (void)state;
    tell(x, "Carla Lopez", "my hobby is climbing", 100);
    tell(x, "Bo", "what a dull evening", 101);
    tell(x, "Bo", "my hobby is climbing", 102);
    tell(x, "Carla Lopez", "what a dull evening", 103);
    ep_match m = match(x, "What is Carla's hobby?", 10);
    assert_true(uses(&m, 0) && hit_of(&m, 0)->rank - hit_of(&m, 2)->rank > 1.4f);
    ep_match_free(&m);
    m = match(x, "What is bo's hobby?", 10);
    assert_true(uses(&m, 2) && hit_of(&m, 2)->rank - hit_of(&m, 0)->rank > 1.4f);
    ep_match_free(&m);
    ep_index_close(x);
}

static void names_are_taken_out(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    char bare[64];
    size_t n = 0;
    const char *one = "What is Carla's hobby, LOPEZ?", *both = "Do Bo and Carla\xe2\x80\x99s dogs get on?";
    (void)state;
    tell(x, "Carla Lopez", "a", 100);
    tell(x, "Bo", "b", 100);
    tell(x, "user", "c", 100);
    tell(x, "Eva Lopez-Bo", "d", 100);
    assert_int_equal(ep_speaker_named(x, one, strlen(one), bare, &n), 0);
    assert_string_equal(bare, "What is  hobby, LOPEZ?"); /* two have that name */
    assert_int_equal(n, strlen(bare));
    assert_int_equal(ep_speaker_named(x, both, strlen(both), bare, &n), 0); /* so have two the name Bo */
    assert_string_equal(bare, "Do Bo and  dogs get on?");
    assert_int_equal(ep_speaker_named(x, "the user", 8, bare, &n), -1);
    assert_string_equal(bare, "the user");
    assert_int_equal(ep_speaker_named(x, "Eva, Carla", 10, bare, &n), -1);
    assert_string_equal(bare, ", ");
    ep_index_close(x);
}

static void a_short_question_leans_on_its_context(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    (void)state;
    ep_match m = match_query(x,
            (ep_query){
                    .text = "And what about that one?", .budget_tokens = 1000, .attended_from = INT64_MAX});
    assert_int_equal(m.n_used, 0);
    ep_match_free(&m);
    m = match_query(x,
            (ep_query){.text = "And what about that one?",
                    .context = "brake pads of the car",
                    .budget_tokens = 1000,
                    .attended_from = INT64_MAX});
    check_match(&m, 1000);
    assert_true(uses(&m, 4));
    ep_match_free(&m);
    /* A question that stands on its own does not. */
    m = match_query(x,
            (ep_query){.text = "Explain quantum chromodynamics and gluon confinement",
                    .context = "brake pads of the car",
                    .budget_tokens = 1000,
                    .attended_from = INT64_MAX});
    assert_int_equal(m.n_used, 0);
    ep_match_free(&m);
    ep_index_close(x);
}

static void a_fact_at_the_end_of_a_long_message_is_found(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    char text[8192] = "";
    (void)state;
    for (int i = 0; i < 400; i++) {
        text_append(text, sizeof text, "filler%d%s", i, i % 11 == 10 ? ". " : " ");
    }
    text_append(text, sizeof text, ". The spare key hides beneath the blue flowerpot.");
    for (int i = 0; i < 6; i++) {
        tell(x, "Ada", i == 3 ? text : "something different altogether", 100);
    }
    ep_match m = match(x, "Where does the spare key hide?", 1000);
    check_match(&m, 1000);
    assert_int_equal(m.n_used > 0 ? m.hits[0].utterance : -1, 3);
    assert_true(m.hits[0].score > 0.35f);
    assert_true(m.hits[0].rank > 3); /* its windows start with the filler: the piece must count for them */
    ep_match_free(&m);
    ep_index_close(x);
}

/* ---- errors ---- */

static void memory_running_out_is_reported(void **state)
{
    stand_in s = {0};
    ep_index *x = four_topics(&s);
    status st = ST_ERR_MEMORY;
    (void)state;
    for (long countdown = 0; st != ST_OK; countdown++) {
        ep_query q = {.text = "brake pads of Ada",
                .text_bytes = 17,
                .budget_tokens = 1000,
                .attended_from = INT64_MAX};
        ep_match m = {.n_hits = -7};
        err e = {0};
        base_fail_allocation(countdown);
        st = ep_match_run(x, &q, &m, &e);
        base_fail_allocation(-1);
        if (st == ST_OK) {
            ep_match_free(&m);
        } else {
            assert_int_equal(st, ST_ERR_MEMORY);
            assert_int_equal(e.code, ST_ERR_MEMORY);
            assert_int_equal(m.n_hits, -7); /* results are written on success only */
        }
        assert_true(countdown < 100);
    }
    s.fail_at = s.texts + 1;
    ep_query q = {.text = "brake", .text_bytes = 5, .budget_tokens = 1000, .attended_from = INT64_MAX};
    ep_match m;
    err e = {0};
    assert_int_equal(ep_match_run(x, &q, &m, &e), ST_ERR_DEVICE);
    ep_index_close(x);
}

/* ---- plan ---- */

static void the_plan_puts_the_best_last(void **state)
{
    ep_hit hits[3] = {{.first_token = 1000, .tokens = 300, .used = true},
            {.first_token = 50, .tokens = 0, .used = true}, {.first_token = 7, .tokens = 128, .used = true}};
    ep_match m = {.hits = hits, .n_hits = 3, .n_used = 3};
    ep_piece *p = NULL;
    int n = 0;
    err e = {0};
    static const ep_piece wanted[] = {{7, 128, 0}, {1000, 128, 128}, {1128, 128, 256}, {1256, 44, 384}};
    (void)state;
    assert_int_equal(ep_plan(&m, &p, &n, &e), ST_OK);
    assert_int_equal(n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(p[i].first_token, wanted[i].first_token);
        assert_int_equal(p[i].rows, wanted[i].rows);
        assert_int_equal(p[i].at, wanted[i].at);
    }
    base_free(p);
    m.n_used = 0;
    assert_int_equal(ep_plan(&m, &p, &n, &e), ST_OK);
    assert_true(n == 0 && p == NULL);
    m.n_used = 3;
    base_fail_allocation(0);
    assert_int_equal(ep_plan(&m, &p, &n, &e), ST_ERR_MEMORY);
    base_fail_allocation(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_topic_is_found_and_the_rest_left),
            cmocka_unit_test(an_unrelated_question_uses_nothing), cmocka_unit_test(the_budget_holds),
            cmocka_unit_test(one_that_does_not_fit_leaves_its_place),
            cmocka_unit_test(attended_rows_are_not_taken_twice), cmocka_unit_test(ties_go_to_the_later),
            cmocka_unit_test(matching_changes_nothing_and_repeats), cmocka_unit_test(nothing_to_match),
            cmocka_unit_test(a_named_time_narrows), cmocka_unit_test(years_tell_two_people_apart),
            cmocka_unit_test(a_time_without_matches_narrows_nothing),
            cmocka_unit_test(a_named_speaker_comes_first), cmocka_unit_test(names_are_taken_out),
            cmocka_unit_test(a_short_question_leans_on_its_context),
            cmocka_unit_test(a_fact_at_the_end_of_a_long_message_is_found),
            cmocka_unit_test(memory_running_out_is_reported), cmocka_unit_test(the_plan_puts_the_best_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
