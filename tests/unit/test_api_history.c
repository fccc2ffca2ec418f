/* History files of three layouts, and what is said about lines that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/history_internal.h"
#include "test_api_fake_engine.h"

typedef struct faults {
    int n;
    long line[8];
    char what[8][128];
} faults;

static void on_fault(void *user, long line, const char *what)
{
    faults *f = user;
    assert_true(f->n < 8);
    f->line[f->n] = line;
    (void)snprintf(f->what[f->n++], sizeof f->what[0], "%s", what);
}

static cJSON *read_text(const char *text, size_t bytes, faults *f)
{
    cJSON *messages = NULL;
    err e = {.text = ""};
    *f = (faults){.n = 0};
    if (history_read(text, bytes, on_fault, f, &messages, &e) != ST_OK) {
        fail_msg("%s", e.text);
    }
    return messages;
}

static void expect(const cJSON *messages, const char *json)
{
    char *text = cJSON_PrintUnformatted(messages);
    assert_string_equal(text, json);
    cJSON_free(text);
}

static void json_lines(void **state)
{
    static const char text[] = "{\"role\":\"assistant\",\"content\":\"a\"}\r\n"
                               "\n"
                               "{\"speaker\":\"Ana\",\"content\":\"b\",\"time\":\"2025-03-02T10:00:00Z\","
                               "\"ref\":\"m1\",\"x\":[]}\n"
                               "{\"op\":\"ping\",\"id\":\"eins\"}\n"
                               "{\"content\":\"caf\xe9\"}\n"
                               "{\"content\":\"c\"}{\"content\":\"d\"}\n"
                               "  {\"content\":\"e\",\"time\":\"soon\"}\n"
                               "{\"content\":\"both\",\"role\":\"user\",\"speaker\":\"Ben\"}\n"
                               "[]\n"
                               "{\"content\":\"last\"}";
    (void)state;
    faults f;
    cJSON *messages = read_text(text, sizeof text - 1, &f);
    expect(messages,
            "[{\"content\":\"a\",\"role\":\"assistant\"},"
            "{\"speaker\":\"Ana\",\"content\":\"b\",\"time\":\"2025-03-02T10:00:00Z\",\"ref\":\"m1\"},"
            "{\"speaker\":\"Ben\",\"content\":\"both\"},{\"content\":\"last\"}]");
    cJSON_Delete(messages);
    assert_int_equal(f.n, 5);
    static const long lines[] = {4, 5, 6, 7, 9};
    static const char *const whats[] = {"content is missing", "byte 15: not UTF-8",
            "byte 15: text after the end of the value", "time is not a time like 2023-05-08T13:56:00Z",
            "not a JSON object"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(f.line[i], lines[i]);
        assert_string_equal(f.what[i], whats[i]);
    }
}

static void one_line_is_a_history(void **state)
{
    static const char text[] = "{\"content\":\"only\"}";
    (void)state;
    faults f;
    cJSON *messages = read_text(text, sizeof text - 1, &f);
    expect(messages, "[{\"content\":\"only\"}]");
    cJSON_Delete(messages);
    messages = read_text("", 0, &f);
    expect(messages, "[]");
    cJSON_Delete(messages);
}

static void locomo(void **state)
{
    static const char text[] =
            "{\"qa\":[],\"conversation\":{\"speaker_a\":\"A\",\"session_10_date_time\":\"3:00 pm on 1 June, "
            "2023\","
            "\"session_10\":[{\"speaker\":\"A\",\"dia_id\":\"D10:1\",\"text\":\"ten\"}],"
            "\"session_2_date_time\":\"2:00 pm on 1 May, "
            "2023\",\n\"session_2\":[{\"speaker\":\"B\",\"dia_id\":\"D2:1\",\"text\":\"two\","
            "\"blip_caption\":\"c\"},{\"speaker\":\"A\",\"dia_id\":\"D2:2\"}],\"session_3_date_time\":\"2:00 "
            "pm on 2 May, 2023\","
            "\"session_1_date_time\":\"1:00 pm on 1 May, "
            "2023\",\"session_1\":[{\"speaker\":\"A\",\"dia_id\":\"D1:1\",\"text\":\"one\"}],"
            "\"a\":0,\"b\":0,\"c\":0,\"d\":0}}";
    (void)state;
    faults f;
    cJSON *messages = read_text(text, sizeof text - 1, &f);
    expect(messages,
            "[{\"speaker\":\"A\",\"content\":\"one\",\"time\":\"1:00 pm on 1 May, 2023\",\"ref\":\"D1:1\"},"
            "{\"speaker\":\"B\",\"content\":\"two\",\"time\":\"2:00 pm on 1 May, 2023\",\"ref\":\"D2:1\"},"
            "{\"speaker\":\"A\",\"content\":\"ten\",\"time\":\"3:00 pm on 1 June, "
            "2023\",\"ref\":\"D10:1\"}]");
    cJSON_Delete(messages);
    assert_int_equal(f.n, 1);
    assert_string_equal(f.what[0], "D2:2: content is missing");
}

static void realtalk(void **state)
{
    static const char text[] =
            "{\"name\":{\"speaker_1\":\"Emi\"},\"session_1\":[{\"clean_text\":\"Hey!\",\"speaker\":\"Emi\","
            "\"date_time\":\"29.12.2023, "
            "22:42:04\",\"dia_id\":\"D1:1\"}],\"events_session_1\":{},\"session_2\":[]}";
    (void)state;
    faults f;
    cJSON *messages = read_text(text, sizeof text - 1, &f);
    expect(messages,
            "[{\"speaker\":\"Emi\",\"content\":\"Hey!\",\"time\":\"29.12.2023, "
            "22:42:04\",\"ref\":\"D1:1\"}]");
    cJSON_Delete(messages);
    assert_int_equal(f.n, 0);
}

static void refused_whole(void **state)
{
    static const char *const texts[] = {"[{\"content\":\"a\"}]", "{\"session_1\":{}}"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        cJSON *messages = NULL;
        faults f = {.n = 0};
        err e = {.text = ""};
        assert_int_equal(
                history_read(texts[i], strlen(texts[i]), on_fault, &f, &messages, &e), ST_ERR_FORMAT);
        assert_null(messages);
    }
}

static void memory_runs_out_cleanly(void **state)
{
    static const char text[] = "{\"session_1_date_time\":\"1:00 pm on 1 May, "
                               "2023\",\"session_1\":[{\"speaker\":\"A\",\"text\":\"one\"}]}";
    (void)state;
    json_use_base_memory();
    for (long i = 0; i < 1000; i++) {
        cJSON *messages = NULL;
        faults f = {.n = 0};
        err e;
        base_fail_allocation(i);
        status st = history_read(text, sizeof text - 1, on_fault, &f, &messages, &e);
        base_fail_allocation(-1);
        if (st == ST_OK) {
            cJSON_Delete(messages);
            assert_true(i > 20);
            return;
        }
        assert_int_equal(st, ST_ERR_MEMORY);
    }
    fail_msg("it never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(json_lines),
            cmocka_unit_test(one_line_is_a_history),
            cmocka_unit_test(locomo),
            cmocka_unit_test(realtalk),
            cmocka_unit_test(refused_whole),
            cmocka_unit_test(memory_runs_out_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
