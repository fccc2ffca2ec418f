/* The JSON-lines helper: what is refused, what passes, and one answer line for every input line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/jsonl_internal.h"

static void expect_wrong(const char *text, const char *word)
{
    err e = {0};
    cJSON *value = NULL;
    status s = jsonl_parse(text, strlen(text), &value, &e);
    if (s != ST_ERR_FORMAT || strstr(e.text, word) == NULL) {
        fail_msg("%s: %s, \"%s\" does not say \"%s\"", text, status_name(s), e.text, word);
    }
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    expect_wrong("", "a value was expected");
    expect_wrong("{", "member name");
    expect_wrong("{\"a\":1,}", "member name");
    expect_wrong("{\"a\" 1}", "':'");
    expect_wrong("[1,]", "a value was expected");
    expect_wrong("[1 2]", "','");
    expect_wrong("[1}", "','");
    expect_wrong("[1", "ends inside");
    expect_wrong("[] x", "after the value");
    expect_wrong("{} {}", "after the value");
    expect_wrong("01", "after the value");
    expect_wrong("1.", "digits");
    expect_wrong("1e", "digits");
    expect_wrong("+1", "a value was expected");
    expect_wrong("nul", "a value was expected");
    expect_wrong("NaN", "a value was expected");
    expect_wrong("\"a", "without an end");
    expect_wrong("\"\\x\"", "unknown escape");
    expect_wrong("\"\\u12g4\"", "four hex");
    expect_wrong("\"\t\"", "control character");
    expect_wrong("\"\\ud800\"", "surrogate");
    expect_wrong("\"\\ud800\\u0041\"", "surrogate");
    expect_wrong("\"\\udc00\"", "surrogate");
    expect_wrong("\"a\\u0000b\"", "\\u0000");
    expect_wrong("\"\xff\"", "UTF-8");
    expect_wrong("\"\xed\xa0\x80\"", "UTF-8");
    expect_wrong("{\"a\":1,\"a\":2}", "twice");
    expect_wrong("[{\"x\":{\"a\":1,\"b\":0,\"a\":2}}]", "twice");
    expect_wrong("// c\n1", "a value was expected");
}

static void parse_ok(const char *text)
{
    err e = {0};
    cJSON *value = NULL;
    if (jsonl_parse(text, strlen(text), &value, &e) != ST_OK) {
        fail_msg("%s: %s", text, e.text);
    }
    cJSON_Delete(value);
}

static void takes_what_is_json(void **state)
{
    (void)state;
    parse_ok(" {\"a\" : [ 1 , -0.5e+3, true,false ,null , \"\\u00e9\\ud83d\\ude00\\n\\\"\" , {} , [] ] } \r");
    parse_ok("0");
    parse_ok("\"\x7f\xf0\x9f\x98\x80\"");
}

static void depth_is_bounded(void **state)
{
    char text[2 * JSONL_DEPTH_MAX + 3];
    (void)state;
    memset(text, '[', JSONL_DEPTH_MAX);
    memset(text + JSONL_DEPTH_MAX, ']', JSONL_DEPTH_MAX);
    text[2 * JSONL_DEPTH_MAX] = '\0';
    parse_ok(text);
    memset(text, '[', JSONL_DEPTH_MAX + 1);
    memset(text + JSONL_DEPTH_MAX + 1, ']', JSONL_DEPTH_MAX + 1);
    text[2 * JSONL_DEPTH_MAX + 2] = '\0';
    expect_wrong(text, "deeper than 64");
}

static void base64(void **state)
{
    static const char *const bad[] = {
            "A", "AB", "AB=", "A===", "====", "AB=C", "A*==", "AB==AB==", "AC==", "AAC=", "QQ==\n"};
    (void)state;
    base_buf b = {.max = 100};
    err e;
    assert_int_equal(jsonl_base64_decode("", 0, &b, &e), ST_OK);
    assert_int_equal(b.size, 0);
    assert_int_equal(jsonl_base64_decode("AP+/YQ==", 8, &b, &e), ST_OK);
    assert_int_equal(b.size, 4);
    assert_memory_equal(b.data, "\x00\xff\xbf\x61", 4);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(jsonl_base64_decode(bad[i], strlen(bad[i]), &b, &e), ST_ERR_FORMAT);
    }
    base_buf_free(&b);
}

static void getters_name_the_member(void **state)
{
    (void)state;
    static const char text[] =
            "{\"n\":3,\"f\":1.5,\"big\":1e300,\"b\":true,\"ids\":[0,9],\"bad\":[1,10],\"neg\":[-1],"
            "\"text\":\"x\",\"frac\":[0.5],\"word\":[\"1\"]}";
    err e = {0};
    cJSON *o = NULL;
    int64_t n = 0;
    bool b = false;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    base_buf buf = {0};
    assert_int_equal(jsonl_parse(text, sizeof text - 1, &o, &e), ST_OK);
    assert_int_equal(jsonl_get_int(o, "n", 0, 0, 3, &n, &e), ST_OK);
    assert_int_equal(n, 3);
    assert_int_equal(jsonl_get_int(o, "N", 7, 0, 3, &n, &e), ST_OK); /* another name */
    assert_int_equal(n, 7);
    assert_int_equal(jsonl_get_int(o, "n", 0, 0, 2, &n, &e), ST_ERR_FORMAT);
    assert_non_null(strstr(e.text, "n: must be a whole number from 0 to 2"));
    assert_int_equal(jsonl_get_int(o, "f", 0, 0, 3, &n, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_int(o, "big", 0, 0, INT64_MAX, &n, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_bool(o, "b", false, &b, &e), ST_OK);
    assert_true(b);
    assert_int_equal(jsonl_get_bool(o, "n", false, &b, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_ids(o, "ids", 10, &ids, &n_ids, &e), ST_OK);
    assert_int_equal(n_ids, 2);
    assert_int_equal(ids[1], 9);
    base_free(ids);
    assert_int_equal(jsonl_get_ids(o, "bad", 10, &ids, &n_ids, &e), ST_ERR_FORMAT);
    assert_non_null(strstr(e.text, "bad[1] is 10"));
    assert_int_equal(jsonl_get_ids(o, "neg", 10, &ids, &n_ids, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_ids(o, "frac", 10, &ids, &n_ids, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_ids(o, "word", 10, &ids, &n_ids, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_ids(o, "none", 10, &ids, &n_ids, &e), ST_ERR_FORMAT);
    assert_int_equal(jsonl_get_text(o, &buf, &e), ST_OK);
    assert_int_equal(buf.size, 1);
    base_buf_free(&buf);
    cJSON_Delete(o);
}

static status echo(void *ctx, const cJSON *request, cJSON *reply, err *e)
{
    base_buf text = {0};
    (void)ctx;
    status s = jsonl_get_text(request, &text, e);
    if (s == ST_OK) {
        s = jsonl_add_text(reply, "text", text.data, text.size);
    }
    base_buf_free(&text);
    return s;
}

static int run(const char *in_text, size_t in_bytes, char *out_text, size_t out_bytes)
{
    FILE *in = tmpfile();
    FILE *out = tmpfile();
    assert_non_null(in);
    assert_non_null(out);
    assert_int_equal(fwrite(in_text, 1, in_bytes, in), in_bytes);
    rewind(in);
    int exit_status = jsonl_run(in, out, echo, NULL);
    rewind(out);
    out_text[fread(out_text, 1, out_bytes - 1, out)] = '\0';
    (void)fclose(in);
    (void)fclose(out);
    return exit_status;
}

static void one_answer_per_line(void **state)
{
    (void)state;
    char out[1000];
    static const char good[] = "{\"text\":\"a\\\"\\\\\\n\\u00e9\"}\n{\"b64\":\"YQD/Yg==\"}";
    assert_int_equal(run(good, sizeof good - 1, out, sizeof out), 0);
    assert_string_equal(out,
            "{\"text\":\"a\\u0022\\u005c\\u000a\xc3\xa9\"}\n{\"text\":\"a\\u0000\xef\xbf\xbd"
            "b\"}\n");
    static const char mixed[] = "[]\n\n{\"text\":\"b\"}\n{\"text\":1}\n{}\n";
    assert_int_equal(run(mixed, sizeof mixed - 1, out, sizeof out), 1);
    int lines = 0;
    int errors = 0;
    for (const char *p = out; *p != '\0'; p++) {
        lines += *p == '\n';
        errors += strncmp(p, "{\"error\":", 9) == 0;
    }
    assert_int_equal(lines, 5);
    assert_int_equal(errors, 4);
    assert_int_equal(run("", 0, out, sizeof out), 0);
    assert_string_equal(out, "");
}

static void a_line_too_long_is_skipped_whole(void **state)
{
    (void)state;
    char out[1000];
    size_t bytes = JSONL_LINE_BYTES_MAX + 100;
    static const char next[] = "\n{\"text\":\"next\"}\n";
    char *in = base_alloc(bytes + sizeof next);
    assert_non_null(in);
    memset(in, 'x', bytes);
    memcpy(in + bytes, next, sizeof next);
    assert_int_equal(run(in, bytes + sizeof next - 1, out, sizeof out), 1);
    assert_non_null(strstr(out, "longer than 16777216 bytes"));
    assert_non_null(strstr(out, "\n{\"text\":\"next\"}\n"));
    base_free(in);
}

static void numbers_are_written_exactly(void **state)
{
    (void)state;
    const float x[3] = {0.1f, -1e-30f, 1.0f / 0.0f};
    const int32_t ids[2] = {0, 49151};
    cJSON *o = cJSON_CreateObject();
    assert_int_equal(jsonl_add_floats(o, "x", x, 3), ST_OK);
    assert_int_equal(jsonl_add_ids(o, "ids", ids, 2), ST_OK);
    assert_int_equal(jsonl_add_ids(o, "none", NULL, 0), ST_OK);
    char *text = cJSON_PrintUnformatted(o);
    assert_string_equal(text, "{\"x\":[0.100000001,-1e-30,null],\"ids\":[0,49151],\"none\":[]}");
    cJSON_free(text);
    cJSON_Delete(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(refuses_what_is_not_json),
            cmocka_unit_test(takes_what_is_json),
            cmocka_unit_test(depth_is_bounded),
            cmocka_unit_test(base64),
            cmocka_unit_test(getters_name_the_member),
            cmocka_unit_test(one_answer_per_line),
            cmocka_unit_test(a_line_too_long_is_skipped_whole),
            cmocka_unit_test(numbers_are_written_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
