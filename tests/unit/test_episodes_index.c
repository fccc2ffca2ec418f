/* Appending: the state is a function of the sequence, whatever fails and however it is chopped. */
#include "test_episodes_util.h"
#include "tests/unit/text_append.h"

enum { MANY = 400 };

/* Utterances about eight topics in turn, with gaps, times missing, long and empty texts in between. */
static void make_talk(ep_utterance *u, char (*text)[4096])
{
    static const char *const topics[] = {"garden tomato seedling compost", "brake mechanic car inspection",
            "train sleeper vienna station", "cello suite recital teacher", "dog leash puppy walk",
            "bread oven flour yeast", "visa passport embassy form", "chess opening tournament clock"};
    int64_t now = 1700000000000000;
    for (int i = 0; i < MANY; i++) {
        now += i % 9 == 8 ? (int64_t)86400000000 : 60000000;
        text[i][0] = '\0';
        text_append(text[i], sizeof text[i], "%s number%d talk%d", topics[i / 9 % 8], i, i % 17);
        if (i % 50 == 20) {
            for (int k = 0; k < 40; k++) {
                text_append(text[i], sizeof text[i], ". Sentence %d of the long message%d goes here", k, i);
            }
        }
        if (i % 60 == 33) {
            text[i][0] = '\0';
        }
        u[i] = (ep_utterance){.text = text[i],
                .text_bytes = strlen(text[i]),
                .speaker = i % 3 ? "Ada"
                        : i % 5  ? "Bo Li"
                                 : NULL,
                .has_time = i % 31 != 30,
                .time_us = now,
                .turn = i,
                .first_token = i * 30,
                .tokens = 30};
    }
}

static ep_utterance talk[MANY];
static char talk_text[MANY][4096];

static int set_up(void **state)
{
    (void)state;
    make_talk(talk, talk_text);
    return 0;
}

static void append_in(ep_index *x, int first, int n, int step)
{
    err e = {0};
    for (int i = first; i < first + n; i += step) {
        int left = first + n - i;
        assert_int_equal(ep_index_append(x, talk + i, left < step ? left : step, &e), ST_OK);
    }
}

static void chopping_does_not_matter(void **state)
{
    static const int steps[] = {1, 2, 7, 64, 399};
    stand_in s = {0};
    ep_index *whole = index_with(&s, NULL);
    (void)state;
    append_in(whole, 0, MANY, MANY);
    assert_true(ep_index_episodes(whole) >= 4);
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        ep_index *x = index_with(&s, NULL);
        append_in(x, 0, MANY, steps[k]);
        assert_same_state(whole, x);
        ep_index_close(x);
    }
    ep_index_close(whole);
}

static void every_prefix_is_the_same_too(void **state)
{
    stand_in s = {0};
    ep_index *grown = index_with(&s, NULL);
    (void)state;
    for (int n = 1; n <= 60; n++) {
        ep_index *fresh = index_with(&s, NULL);
        append_in(grown, n - 1, 1, 1);
        append_in(fresh, 0, n, n);
        assert_same_state(fresh, grown);
        ep_index_close(fresh);
    }
    ep_index_close(grown);
}

static void each_text_is_embedded_once(void **state)
{
    stand_in s = {0}, t = {0};
    ep_index *x = index_with(&s, NULL), *y = index_with(&t, NULL);
    (void)state;
    append_in(x, 0, 100, 100);
    append_in(y, 0, 100, 1);
    assert_int_equal(s.texts, t.texts);
    assert_true(s.texts <= 4 * 100 + 200 && s.calls <= s.texts / 64 + 1);
    ep_index_close(x);
    ep_index_close(y);
}

static void a_failing_encoder_leaves_no_trace(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL), *reference = index_with(&(stand_in){0}, NULL);
    err e = {0};
    (void)state;
    append_in(x, 0, 100, 100);
    append_in(reference, 0, 100, 100);
    for (int at = 1; at < 500; at += 23) {
        s.fail_at = s.texts + at;
        if (ep_index_append(x, talk + 100, 100, &e) == ST_OK) {
            break;
        }
        assert_int_equal(e.code, ST_ERR_DEVICE);
        assert_same_state(reference, x);
        assert_true(at < 450);
    }
    append_in(reference, 100, 100, 100);
    assert_same_state(reference, x);
    ep_index_close(x);
    ep_index_close(reference);
}

static void memory_running_out_leaves_no_trace(void **state)
{
    stand_in s = {0};
    err e = {0};
    status st = ST_ERR_MEMORY;
    (void)state;
    for (long countdown = 0; st != ST_OK; countdown++) {
        ep_index *x = index_with(&s, NULL);
        append_in(x, 0, 20, 20);
        base_fail_allocation(countdown);
        st = ep_index_append(x, talk + 20, 60, &e);
        base_fail_allocation(-1);
        if (st != ST_OK) {
            assert_int_equal(st, ST_ERR_MEMORY);
            assert_int_equal(e.code, ST_ERR_MEMORY);
            append_in(x, 20, 60, 60);
        }
        ep_index *reference = index_with(&s, NULL);
        append_in(reference, 0, 80, 80);
        assert_same_state(reference, x);
        ep_index_close(reference);
        ep_index_close(x);
        assert_true(countdown < 1000);
    }
    ep_index *none = NULL;
    ep_options o;
    ep_model_ops ops = stand_in_ops(&s);
    ep_options_default(&o);
    st = ST_ERR_MEMORY;
    for (long countdown = 0; st != ST_OK; countdown++) {
        base_fail_allocation(countdown);
        st = ep_index_open(&o, &ops, &none, &e);
        base_fail_allocation(-1);
        assert_true(st == ST_OK ? countdown >= 2 : st == ST_ERR_MEMORY && none == NULL);
    }
    ep_index_close(none);
}

static void bad_utterances_are_refused_whole(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    err e = {0};
    ep_utterance u[2] = {said("Ada", "one"), said("Ada", "two")};
    (void)state;
    u[1].tokens = -1;
    assert_int_equal(ep_index_append(x, u, 2, &e), ST_ERR_ARG);
    assert_int_equal(ep_index_utterances(x), 0);
    u[1].tokens = 5;
    u[1].first_token = INT64_MAX - 2;
    assert_int_equal(ep_index_append(x, u, 2, &e), ST_ERR_ARG);
    assert_int_equal(ep_index_append(x, u, -1, &e), ST_ERR_ARG);
    assert_int_equal(ep_index_append(x, u, 0, &e), ST_OK);
    assert_int_equal(ep_index_utterances(x), 0);
    assert_int_equal(ep_index_episodes(x), 0);
    ep_index_close(x);
    ep_options o;
    ep_model_ops ops = stand_in_ops(&s);
    ep_options_default(&o);
    ops.dim = 0;
    assert_int_equal(ep_index_open(&o, &ops, &x, &e), ST_ERR_ARG);
    ops.dim = DIM;
    o.segment_utterances_max = 0;
    assert_int_equal(ep_index_open(&o, &ops, &x, &e), ST_ERR_ARG);
}

static void segments_end_where_they_should(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    (void)state;
    for (int i = 0; i < 9; i++) {
        tell(x, "Ada", "tomato", i < 6 ? 100 : 101); /* 4, then 2 up to the gap, then 3 */
    }
    assert_int_equal(ep_index_segments(x), 3);
    assert_int_equal(x->segments[1].utterances, 2);
    assert_int_equal(x->items[6].run_at, 0);
    tell(x, "Ada", "tomato", 90); /* a clock that jumps back is a gap */
    assert_int_equal(ep_index_segments(x), 4);
    tell(x, "Ada", "tomato", -1); /* no time: no gap */
    assert_int_equal(ep_index_segments(x), 4);
    ep_index_close(x);
    x = index_with(&s, NULL);
    ep_utterance u[3] = {said("A", "x y"), said("A", "x y"), said("A", "x y")};
    u[0].tokens = u[1].tokens = 300;
    err e = {0};
    assert_int_equal(ep_index_append(x, u, 3, &e), ST_OK);
    assert_int_equal(ep_index_segments(x), 2); /* by tokens: 300, 300 + 10 */
    ep_index_close(x);
}

static void windows_keep_inside_the_run(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    (void)state;
    for (int i = 0; i < 5; i++) {
        tell(x, "Ada", "tomato", 100);
    }
    tell(x, "Ada", "brake", 105);
    /* Windows of 1, 2, 3, 4 and 5 utterances end with the first five; the last opens a run. */
    assert_int_equal(x->named.count, 1 + 2 * 4 + 1);
    assert_int_equal(x->items[5].first_window, 9);
    assert_int_equal(ep_window_named(x, 5), 9);
    assert_int_equal(ep_window_named(x, 4), x->items[4].first_window + 1);
    assert_int_equal(ep_window_named(x, 0), x->items[2].first_window + 1);
    assert_int_equal(ep_window_bare(x, 0), x->items[1].first_window + 1);
    assert_int_equal(ep_window_bare(x, 4), x->items[4].first_window + 1);
    ep_index_close(x);
}

static void texts_to_embed_are_bounded(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    static char text[60000];
    (void)state;
    text[0] = '\0';
    for (int i = 0; i < 6000; i++) {
        text_append(text, sizeof text, "%s", i % 40 == 39 ? "abc. " : "abc ");
    }
    for (int i = 0; i < 5; i++) {
        tell(x, "Ada", text, 100);
    }
    assert_true(s.longest < 5 * 90 * 5 + 200);
    assert_int_equal(x->parts.count, 5 * x->items[0].parts);
    assert_true(x->items[0].parts >= 6000 / 90);
    ep_index_close(x);
}

/* ---- episodes ---- */

static void topics_become_episodes(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    ep_episode ep;
    (void)state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            tell(x, "Ada",
                    i == 0 ? "The tomato seedlings in my garden need compost" : "tomato garden compost",
                    100 + round * 2);
        }
        for (int i = 0; i < 4; i++) {
            tell(x, "Bo", "The brake of my car squeaks, says the mechanic", 101 + round * 2);
        }
    }
    assert_int_equal(ep_index_segments(x), 6);
    assert_int_equal(ep_index_episodes(x), 2);
    assert_int_equal(ep_index_episode(x, 0, &ep), ST_OK);
    assert_int_equal(ep.utterances, 12);
    assert_int_equal(ep.segments, 3);
    assert_int_equal(ep.tokens, 120);
    assert_int_equal(ep.first_turn, 0);
    assert_int_equal(ep.last_turn, 19);
    assert_true(ep.has_time && ep.from_us == 100 * 86400000000 && ep.to_us == 104 * 86400000000);
    assert_string_equal(ep.title, "The tomato seedlings in my garden need compost");
    assert_int_equal(ep_index_episode(x, 1, &ep), ST_OK); /* its last segment is still open */
    assert_int_equal(ep.segments, 3);
    assert_int_equal(ep.utterances, 12);
    assert_int_equal(ep_index_episode(x, 2, &ep), ST_ERR_NOT_FOUND);
    assert_int_equal(ep_index_episode(x, -1, &ep), ST_ERR_NOT_FOUND);
    ep_index_close(x);
}

static void the_open_segment_counts_at_once(void **state)
{
    stand_in s = {0};
    ep_index *x = index_with(&s, NULL);
    ep_episode ep;
    (void)state;
    tell(x, "Ada", "tomato garden", 100);
    assert_int_equal(ep_index_episodes(x), 1);
    assert_int_equal(ep_index_episode(x, 0, &ep), ST_OK);
    assert_string_equal(ep.title, "tomato garden");
    assert_int_equal(ep.utterances, 1);
    int id = ep.id;
    tell(x, "Ada", "brake car", 110);
    assert_int_equal(ep_index_episodes(x), 2);
    assert_int_equal(ep_index_episode(x, 0, &ep), ST_OK);
    assert_int_equal(ep.id, id); /* keeps the id that it was shown under */
    ep_index_close(x);
}

static void check_membership(const ep_index *x)
{
    int64_t members = 0;
    for (int g = 0; g < x->n_groups; g++) {
        const ep_group *group = &x->groups[g];
        assert_true(group->n_members >= 1 && group->n_members <= EP_EPISODE_SEGMENTS_MAX);
        assert_true(g == 0 || group->id > x->groups[g - 1].id);
        for (int m = 0; m < group->n_members; m++) {
            assert_int_equal(x->segments[group->members[m]].episode, group->id);
            assert_true(m == 0 || group->members[m] > group->members[m - 1]);
        }
        members += group->n_members;
    }
    assert_int_equal(members, x->n_segments > 0 ? x->n_segments - 1 : 0);
}

static void equal_segments_are_split_by_size(void **state)
{
    stand_in s = {0};
    ep_options o;
    ep_options_default(&o);
    o.segment_utterances_max = 1;
    ep_index *x = index_with(&s, &o);
    (void)state;
    for (int i = 0; i < 300; i++) {
        tell(x, "Ada", "tomato garden", 100);
        check_membership(x);
    }
    assert_true(ep_index_episodes(x) >= 300 / EP_EPISODE_SEGMENTS_MAX);
    ep_index_close(x);
}

static void empty_texts_stay_with_their_predecessor(void **state)
{
    stand_in s = {0};
    ep_options o;
    ep_options_default(&o);
    o.segment_utterances_max = 1;
    ep_index *x = index_with(&s, &o);
    (void)state;
    for (int i = 0; i < 5; i++) {
        tell(x, NULL, "", 100); /* nothing but empty ones */
    }
    check_membership(x);
    assert_int_equal(ep_index_episodes(x), 1);
    tell(x, NULL, "tomato garden", 100);
    tell(x, NULL, "", 100);
    tell(x, NULL, "...", 100);
    check_membership(x);
    assert_int_equal(x->segments[6].episode, x->segments[5].episode);
    assert_int_equal(x->segments[7].episode, x->segments[5].episode);
    ep_index_close(x);
}

static void episodes_merge_when_they_meet(void **state)
{
    stand_in s = {0};
    ep_options o;
    ep_options_default(&o);
    o.segment_utterances_max = 1;
    o.join_threshold = 0.6f;
    ep_index *x = index_with(&s, &o);
    (void)state;
    /* Two episodes that share half of their words, drift towards each other, then what lies between them. */
    tell(x, NULL, "alpha beta gamma delta", 100);
    tell(x, NULL, "gamma delta epsilon zeta", 100);
    tell(x, NULL, "alpha gamma delta epsilon zeta", 100);
    tell(x, NULL, "alpha beta gamma delta epsilon", 100);
    tell(x, NULL, "alpha beta gamma delta epsilon zeta", 100);
    int before = x->n_groups;
    for (int i = 0; i < 20; i++) {
        tell(x, NULL, "alpha beta gamma delta epsilon zeta", 100);
        check_membership(x);
    }
    assert_int_equal(before, 2);
    assert_int_equal(x->n_groups, 1);
    assert_int_equal(x->groups[0].id, 0); /* the older id stays */
    ep_index_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chopping_does_not_matter),
            cmocka_unit_test(every_prefix_is_the_same_too), cmocka_unit_test(each_text_is_embedded_once),
            cmocka_unit_test(a_failing_encoder_leaves_no_trace),
            cmocka_unit_test(memory_running_out_leaves_no_trace),
            cmocka_unit_test(bad_utterances_are_refused_whole),
            cmocka_unit_test(segments_end_where_they_should), cmocka_unit_test(windows_keep_inside_the_run),
            cmocka_unit_test(texts_to_embed_are_bounded), cmocka_unit_test(topics_become_episodes),
            cmocka_unit_test(the_open_segment_counts_at_once),
            cmocka_unit_test(equal_segments_are_split_by_size),
            cmocka_unit_test(empty_texts_stay_with_their_predecessor),
            cmocka_unit_test(episodes_merge_when_they_meet)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
