/* Times named in questions. */
#include "test_episodes_util.h"

#include "episodes/dates_internal.h"

static const int64_t day_us = (int64_t)86400 * 1000000;

static int64_t days(int year, int month, int day) /* since 1970, by counting */
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t n = 0;
    for (int y = 1970; y < year; y++) {
        n += 365 + ((y % 4 == 0 && y % 100 != 0) || y % 400 == 0);
    }
    for (int m = 1; m < month; m++) {
        n += lengths[m - 1] + (m == 2 && ((year % 4 == 0 && year % 100 != 0) || year % 400 == 0));
    }
    return n + day - 1;
}

/* Now is Wednesday, 14 June 2023; the log runs from March 2022 to June 2023. */
static int spans_of(const char *text, bool has_now, ep_time_span *out)
{
    ep_time_frame f = {.has_now = has_now,
            .now_us = days(2023, 6, 14) * day_us + 3600000000,
            .log_from_us = days(2022, 3, 1) * day_us,
            .log_to_us = days(2023, 6, 13) * day_us};
    return ep_time_spans(text, strlen(text), &f, out);
}

static void is_span(const char *text, int64_t from, int64_t to)
{
    ep_time_span s[EP_TIME_SPANS_MAX];
    int n = spans_of(text, true, s);
    if (n != 1 || s[0].from_us != from * day_us || s[0].to_us != to * day_us) {
        print_message("%s: %d spans, %lld to %lld, wanted %lld to %lld\n", text, n,
                n > 0 ? (long long)(s[0].from_us / day_us) : 0, n > 0 ? (long long)(s[0].to_us / day_us) : 0,
                (long long)from, (long long)to);
    }
    assert_int_equal(n, 1);
    assert_int_equal(s[0].from_us, from * day_us);
    assert_int_equal(s[0].to_us, to * day_us);
}

static void days_are_read(void **state)
{
    int64_t d = days(2023, 5, 8);
    (void)state;
    is_span("What happened on 8 May 2023?", d, d + 1);
    is_span("What happened on May 8, 2023?", d, d + 1);
    is_span("on the 8th of May, 2023", d, d + 1);
    is_span("On 2023-05-08", d, d + 1);
    is_span("On 08.05.2023 she", d, d + 1);
    is_span("On 8/5/2023", d, d + 1);
    is_span("On 5/23/2023", days(2023, 5, 23), days(2023, 5, 24));
    is_span("29 February 2024", days(2024, 2, 29), days(2024, 3, 1));
}

static void months_and_years_are_read(void **state)
{
    (void)state;
    is_span("in June 2022", days(2022, 6, 1), days(2022, 7, 1));
    is_span("during Dec of 2022", days(2022, 12, 1), days(2023, 1, 1));
    is_span("in 2022", days(2022, 1, 1), days(2023, 1, 1));
    is_span("the summer of 2022", days(2022, 6, 1), days(2022, 9, 1));
    is_span("in winter 2023", days(2022, 12, 1), days(2023, 3, 1));
}

static void relative_times_are_read(void **state)
{
    int64_t now = days(2023, 6, 14);
    (void)state;
    is_span("what did I say yesterday?", now - 1, now);
    is_span("today", now, now + 1);
    is_span("two weeks ago", now - 17, now - 10);
    is_span("3 days ago", now - 3, now - 2);
    is_span("last week", days(2023, 6, 5), days(2023, 6, 12));
    is_span("this week", days(2023, 6, 12), days(2023, 6, 19));
    is_span("last month", days(2023, 5, 1), days(2023, 6, 1));
    is_span("last year", days(2022, 1, 1), days(2023, 1, 1));
    is_span("last May", days(2023, 5, 1), days(2023, 6, 1));
    is_span("last July", days(2022, 7, 1), days(2022, 8, 1));
    is_span("last summer", days(2022, 6, 1), days(2022, 9, 1));
    is_span("last Friday", days(2023, 6, 9), days(2023, 6, 10));
    is_span("last Wednesday", days(2023, 6, 7), days(2023, 6, 8));
    is_span("last weekend", days(2023, 6, 10), days(2023, 6, 12));
}

static void a_month_alone_is_of_every_year(void **state)
{
    ep_time_span s[EP_TIME_SPANS_MAX];
    (void)state;
    assert_int_equal(spans_of("When did she camp in May?", true, s), 2);
    assert_int_equal(s[0].from_us, days(2022, 5, 1) * day_us);
    assert_int_equal(s[1].from_us, days(2023, 5, 1) * day_us);
    assert_int_equal(spans_of("on 30 May", true, s), 2);
    assert_int_equal(spans_of("on 29 February", true, s), 0); /* neither year has one */
}

static void what_is_no_time(void **state)
{
    static const char *const texts[] = {"May I march with you?", "", "version 2023 of it", "room 8",
            "12.5.2 release", "before June 2023", "as of 2022", "31 June 2023", "a ago", "the last straw",
            "99999 days ago", "45.13.2023"};
    ep_time_span s[EP_TIME_SPANS_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (spans_of(texts[i], true, s) != 0) {
            print_message("%s\n", texts[i]);
        }
        assert_int_equal(spans_of(texts[i], true, s), 0);
    }
    assert_int_equal(spans_of("yesterday, last week, two days ago", false, s), 0); /* now is unknown */
}

static void a_day_behind_before_is_not_strict(void **state)
{
    ep_time_span s[EP_TIME_SPANS_MAX];
    (void)state;
    assert_int_equal(spans_of("the weekend before 10 April 2023", true, s), 1);
    assert_false(s[0].strict);
    assert_int_equal(spans_of("on 10 April 2023", true, s), 1);
    assert_true(s[0].strict);
}

static void weight_falls_over_the_margin(void **state)
{
    ep_time_span s[EP_TIME_SPANS_MAX];
    int n = spans_of("on 10 April 2023", true, s);
    int64_t d = days(2023, 4, 10) * day_us;
    (void)state;
    assert_true(ep_time_weight(s, n, d) >= 1 && ep_time_weight(s, n, d + 2 * day_us) >= 1);
    float later = ep_time_weight(s, n, d + 5 * day_us), much_later = ep_time_weight(s, n, d + 7 * day_us);
    assert_true(later < 1 && much_later < later && much_later > 0);
    assert_true(ep_time_weight(s, n, d + 9 * day_us) <= 0 && ep_time_weight(s, n, d - 8 * day_us) <= 0);
    assert_true(ep_time_weight(s, n, INT64_MAX) <= 0 && ep_time_weight(s, n, INT64_MIN) <= 0);
    assert_true(ep_time_weight(s, 0, d) <= 0);
}

static void extreme_clocks_are_harmless(void **state)
{
    static const int64_t times[] = {INT64_MIN, INT64_MIN + 1, -1, 0, INT64_MAX};
    ep_time_span s[EP_TIME_SPANS_MAX];
    const char *text =
            "yesterday, last May, in May, 30 years ago, last week, this month, last summer, in 2199";
    (void)state;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        ep_time_frame f = {true, times[i], INT64_MIN, INT64_MAX};
        int n = ep_time_spans(text, strlen(text), &f, s);
        assert_true(n > 0 && n <= EP_TIME_SPANS_MAX);
        (void)ep_time_weight(s, n, times[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(days_are_read),
            cmocka_unit_test(months_and_years_are_read), cmocka_unit_test(relative_times_are_read),
            cmocka_unit_test(a_month_alone_is_of_every_year), cmocka_unit_test(what_is_no_time),
            cmocka_unit_test(a_day_behind_before_is_not_strict),
            cmocka_unit_test(weight_falls_over_the_margin), cmocka_unit_test(extreme_clocks_are_harmless)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
