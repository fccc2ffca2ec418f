/* The strict reader of JSON: what it takes, what it refuses, and that it agrees with cJSON where both take a text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json_internal.h"

typedef struct text {
    const char *data;
    size_t bytes;
} text;
#define T(literal)                   \
    {                                \
        literal, sizeof(literal) - 1 \
    }

/* On a heap block of exactly that size: reading past its end is seen by the sanitizer. */
static status parse(const text *t, const json_limits *limits, cJSON **out, err *e)
{
    uint8_t *exact = malloc(t->bytes > 0 ? t->bytes : 1);
    memcpy(exact, t->data, t->bytes);
    status st = json_parse(exact, t->bytes, limits, out, e);
    free(exact);
    return st;
}

static void taken_as_cjson_takes_it(void **state)
{
    static const text texts[] = {T("0"), T("-0"), T("12.5e-3"), T("true"), T("false"), T("null"), T("\"\""),
            T("[]"), T("{}"), T(" \t\r\n{ \"a\" : [ 1 , -2 , { } ] } \n"),
            T("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), T("\"\\u00e9\\ud83e\\udd37\""), T("\"\xf0\x9f\xa4\xb7\""),
            T("{\"\":{\"\":[[[]]]}}"), T("[1E5,1e+5,1e-5,0.1]"), T("{\"a\":1,\"A\":2}"), T("\"\x7f\"")};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cJSON *ours = NULL, *theirs = cJSON_ParseWithLength(texts[i].data, texts[i].bytes);
        err e = {.text = ""};
        if (parse(&texts[i], &json_line_limits, &ours, &e) != ST_OK) {
            fail_msg("%s: %s", texts[i].data, e.text);
        }
        assert_true(cJSON_Compare(ours, theirs, true));
        cJSON_Delete(ours);
        cJSON_Delete(theirs);
    }
}

static void refused(void **state)
{
    static const text texts[] = {T(""), T(" "), T("{"), T("}"), T("[1,]"), T("[,1]"), T("{\"a\":1,}"),
            T("{a:1}"), T("{\"a\" 1}"), T("01"), T("+1"), T("1."), T(".5"), T("1e"), T("-"), T("--1"),
            T("0x10"), T("NaN"), T("Infinity"), T("tru"), T("nul"), T("truex"), T("1 2"), T("{}{}"),
            T("{}\0"), T("\0"), T("\"a"), T("\"\\"), T("\"\\x\""), T("\"\\u12\""), T("\"\\u12g4\""),
            T("\"\\u0000\""), T("\"\0\""), T("\"\\ud800\""), T("\"\\ud800x\""), T("\"\\ud800\\u0041\""),
            T("\"\\udc00\""), T("\"a\tb\""), T("\"a\nb\""), T("\"\xe9\""), T("\"\xc0\x80\""),
            T("\"\xed\xa0\x80\""), T("\"\xf5\x80\x80\x80\""), T("\xef\xbb\xbf{}"), T("{\"a\":1,\"a\":2}"),
            T("{\"a\":1,\"\\u0061\":2}"), T("\x01{}"), T("[1 2]"), T("'a'"), T("// c\n1"), T("{\"a\":}"),
            T("[\"a\":1]"), T("{1:2}")};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cJSON *root = NULL;
        err e = {.text = ""};
        if (parse(&texts[i], &json_line_limits, &root, &e) != ST_ERR_FORMAT) {
            fail_msg("taken: %s", texts[i].data);
        }
        assert_null(root);
        assert_true(e.text[0] != '\0');
    }
}

static void limits_hold(void **state)
{
    const json_limits small = {.bytes_max = 40, .depth_max = 3, .values_max = 6, .members_max = 2};
    static const text inside[] = {T("[[[1]]]"), T("[1,2,3,4,5]"), T("{\"a\":1,\"b\":2}")};
    static const text outside[] = {T("[[[[1]]]]"), T("[1,2,3,4,5,6]"), T("{\"a\":1,\"b\":2,\"c\":3}"),
            T("\"12345678901234567890123456789012345678901\""),
            T("11111111111111111111111111111111111111111111111111111111111111111")};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        cJSON *root = NULL;
        assert_int_equal(parse(&inside[i], &small, &root, NULL), ST_OK);
        cJSON_Delete(root);
    }
    for (size_t i = 0; i < 5; i++) {
        cJSON *root = NULL;
        assert_int_equal(parse(&outside[i], i < 4 ? &small : &json_line_limits, &root, NULL), ST_ERR_LIMIT);
    }
}

static void integers_are_exact(void **state)
{
    static const struct {
        const char *text;
        bool exact;
        int64_t value;
    } cases[] = {{"0", true, 0}, {"-7", true, -7}, {"9007199254740992", true, JSON_EXACT_MAX},
            {"9007199254740993", false, 0}, {"-9007199254740992", true, -JSON_EXACT_MAX},
            {"-9007199254740993", false, 0}, {"18446744073709551617", false, 0}, {"1.0", false, 0},
            {"1e3", false, 0}, {"1.0000000000000000001", false, 0}, {"\"1\"", false, 0}, {"null", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cJSON *root = NULL;
        int64_t value = -1;
        assert_int_equal(
                json_parse(cases[i].text, strlen(cases[i].text), &json_line_limits, &root, NULL), ST_OK);
        assert_int_equal(json_exact_integer(root, &value), cases[i].exact);
        assert_int_equal(value, cases[i].exact ? cases[i].value : -1);
        cJSON_Delete(root);
    }
}

static void getters_name_the_member(void **state)
{
    static const char source[] = "{\"s\":\"text\",\"n\":3,\"r\":0.5,\"b\":true,\"z\":null,\"S\":1}";
    cJSON *root = NULL;
    json_fault fault;
    const json_place at = {.path = "messages[2]", .fault = &fault};
    (void)state;
    assert_int_equal(json_parse(source, sizeof source - 1, &json_line_limits, &root, NULL), ST_OK);
    json_place place = at;
    place.object = root;
    const char *s = NULL;
    int64_t n = -1;
    float r = -1;
    bool b = false;
    assert_int_equal(json_get_text(&place, "s", JSON_REQUIRED, 1, 4, &s), ST_OK);
    assert_string_equal(s, "text");
    assert_int_equal(json_get_text(&place, "absent", JSON_OPTIONAL, 1, 4, &s), ST_OK);
    assert_int_equal(json_get_integer(&place, "n", 0, 3, &n), ST_OK);
    assert_int_equal(n, 3);
    assert_int_equal(json_get_integer(&place, "absent", 0, 3, &n), ST_OK);
    assert_int_equal(json_get_real(&place, "r", 0, 1, &r), ST_OK);
    assert_true(r == 0.5f);
    assert_int_equal(json_get_bool(&place, "b", &b), ST_OK);
    assert_true(b);

    assert_int_equal(json_get_text(&place, "s", JSON_REQUIRED, 1, 3, &s), ST_ERR_ARG);
    assert_string_equal(fault.param, "messages[2].s");
    assert_string_equal(fault.message, "messages[2].s has 4 bytes, at most 3 are allowed");
    assert_int_equal(json_get_text(&place, "absent", JSON_REQUIRED, 1, 3, &s), ST_ERR_ARG);
    assert_string_equal(fault.message, "messages[2].absent is missing");
    assert_int_equal(json_get_text(&place, "S", JSON_REQUIRED, 1, 3, &s), ST_ERR_ARG);
    assert_int_equal(json_get_text(&place, "z", JSON_OPTIONAL, 0, 3, &s), ST_ERR_ARG);
    assert_int_equal(json_get_integer(&place, "n", 4, 9, &n), ST_ERR_ARG);
    assert_string_equal(fault.message, "messages[2].n must be an integer from 4 to 9");
    assert_int_equal(json_get_integer(&place, "r", 0, 9, &n), ST_ERR_ARG);
    assert_int_equal(json_get_real(&place, "r", 0.6, 1, &r), ST_ERR_ARG);
    assert_int_equal(json_get_real(&place, "s", 0, 1, &r), ST_ERR_ARG);
    assert_int_equal(json_get_bool(&place, "n", &b), ST_ERR_ARG);
    cJSON_Delete(root);
}

static void written_text_is_always_json(void **state)
{
    static const char raw[] = "a\"b\\c\n\t\x01\x7f\xff\xc3\xa9\xe2\x82";
    base_buf b = {.max = 1000};
    (void)state;
    assert_int_equal(json_write_text(&b, raw, sizeof raw - 1), ST_OK);
    static const char want[] = "\"a\\\"b\\\\c\\n\\t\\u0001\x7f\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd\"";
    assert_int_equal(b.size, sizeof want - 1);
    assert_memory_equal(b.data, want, sizeof want - 1);
    b.size = 0;
    assert_int_equal(json_write_text(&b, "", 0), ST_OK);
    assert_memory_equal(b.data, "\"\"", 2);
    base_buf_free(&b);
}

/* Every allocation fails once; the address sanitizer sees what is not given back. */
static void memory_runs_out_cleanly(void **state)
{
    static const char source[] = "{\"a\":[1,\"two\",{\"b\":null}],\"c\":\"\\u00e9\",\"d\":-1.5}";
    (void)state;
    json_use_base_memory();
    for (long i = 0; i < 1000; i++) {
        cJSON *root = NULL;
        err e;
        base_fail_allocation(i);
        status st = json_parse(source, sizeof source - 1, &json_line_limits, &root, &e);
        base_fail_allocation(-1);
        if (st == ST_OK) {
            cJSON_Delete(root);
            assert_true(i > 10);
            return;
        }
        assert_int_equal(st, ST_ERR_MEMORY);
    }
    fail_msg("it never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(taken_as_cjson_takes_it),
            cmocka_unit_test(refused),
            cmocka_unit_test(limits_hold),
            cmocka_unit_test(integers_are_exact),
            cmocka_unit_test(getters_name_the_member),
            cmocka_unit_test(written_text_is_always_json),
            cmocka_unit_test(memory_runs_out_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
