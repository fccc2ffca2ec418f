/* time: the spellings of a time that conversations come with, and what is refused. Expected values by GNU date. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent.h"

static void assert_time(const char *text, int64_t seconds)
{
    int64_t us = -1;
    if (agent_time_parse(text, &us) != ST_OK) {
        fail_msg("%s is refused", text);
    }
    assert_int_equal(us, seconds * 1000000);
}

static void spellings(void **state)
{
    (void)state;
    assert_time("2023-05-08T13:56:00Z", 1683554160);
    assert_time("2023-05-08T13:56:00+02:00", 1683546960);
    assert_time("2023-05-08t13:56:00-05:30", 1683573960);
    assert_time("2023-05-08 13:56", 1683554160);
    assert_time("2023-05-08", 1683504000);
    assert_time("2024-02-29", 1709164800);
    assert_time("1:56 pm on 8 May, 2023", 1683554160);
    assert_time("12:05 am on 1 January, 2024", 1704067500);
    assert_time("12:30 pm on 1 January, 2024", 1704112200);
    assert_time("29.12.2023, 22:42:04", 1703889724);
    assert_time("1969-12-31T23:59:59Z", -1);
    int64_t us;
    assert_int_equal(agent_time_parse("2023-05-08T13:56:00.25Z", &us), ST_OK);
    assert_int_equal(us, 1683554160250000);
}

static void refusals(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "yesterday", "2023-13-01", "2023-02-29", "2023-05-08T25:00:00Z",
            "2023-05-08T13:56:00Zz", "2023-05-08T13:56:00+2", "13:56 pm on 8 May, 2023",
            "1:56 pm on 8 Mai, 2023", "31.11.2023, 10:00:00", "2023-5-8"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t us = 7;
        if (agent_time_parse(bad[i], &us) == ST_OK) {
            fail_msg("%s is taken", bad[i]);
        }
        assert_int_equal(us, 7);
    }
}

static void round_trip(void **state)
{
    (void)state;
    char text[32];
    agent_time_format(1683554160000000, text);
    assert_string_equal(text, "2023-05-08T13:56:00Z");
    agent_time_format(-1, text);
    assert_string_equal(text, "1969-12-31T23:59:59Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(spellings),
            cmocka_unit_test(refusals),
            cmocka_unit_test(round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
