/* Requests of the line protocol: every operation, every refusal by code and member. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/parse_internal.h"
#include "api/reply_internal.h"
#include "test_api_fake_engine.h"

static void read_good(const char *text, parse_line *out)
{
    parse_fault fault;
    if (parse_request(text, strlen(text), out, &fault) != ST_OK) {
        fail_msg("%s: %s", text, fault.at.message);
    }
}

static void every_operation(void **state)
{
    static const struct {
        const char *text;
        parse_kind kind;
        agent_op op;
    } cases[] = {
            {"{\"id\":1,\"op\":\"hello\",\"key\":\"k\"}", PARSE_HELLO, AGENT_STATS},
            {"{\"id\":1,\"op\":\"ping\",\"unknown\":12345678901234567890}", PARSE_PING, AGENT_STATS},
            {"{\"id\":1,\"op\":\"cancel\",\"target\":\"x\"}", PARSE_CANCEL, AGENT_STATS},
            {"{\"id\":1,\"op\":\"chat\",\"messages\":[{\"content\":\"hi\"}]}", PARSE_ENGINE, AGENT_CHAT},
            {"{\"id\":1,\"op\":\"ingest\",\"session\":\"a\",\"messages\":[{\"speaker\":\"Ana\",\"content\":"
             "\"\"}]}",
                    PARSE_ENGINE, AGENT_INGEST},
            {"{\"id\":1,\"op\":\"match\",\"session\":\"a\",\"text\":\"t\",\"budget\":5}", PARSE_ENGINE,
                    AGENT_MATCH},
            {"{\"id\":1,\"op\":\"session.create\",\"session\":\"a\",\"system\":\"s\",\"ttl_s\":60}",
                    PARSE_ENGINE, AGENT_SESSION_CREATE},
            {"{\"id\":1,\"op\":\"session.get\",\"session\":\"a\",\"messages\":true}", PARSE_ENGINE,
                    AGENT_SESSION_GET},
            {"{\"id\":1,\"op\":\"session.list\",\"prefix\":\"\",\"limit\":3,\"after\":\"a\"}", PARSE_ENGINE,
                    AGENT_SESSION_LIST},
            {"{\"id\":1,\"op\":\"session.erase\",\"session\":\"a\"}", PARSE_ENGINE, AGENT_SESSION_ERASE},
            {"{\"id\":1,\"op\":\"episode.list\",\"session\":\"a\"}", PARSE_ENGINE, AGENT_EPISODE_LIST},
            {"{\"id\":1,\"op\":\"stats\"}", PARSE_ENGINE, AGENT_STATS},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parse_line p;
        read_good(cases[i].text, &p);
        assert_int_equal(p.kind, cases[i].kind);
        assert_int_equal(p.request != NULL, cases[i].kind == PARSE_ENGINE);
        if (p.request != NULL) {
            assert_int_equal(p.request->op, cases[i].op);
            assert_string_equal(p.request->tenant, "default");
        }
        parse_line_deinit(&p);
    }
}

static void members_of_a_chat(void **state)
{
    parse_line p;
    (void)state;
    read_good("{\"op\":\"chat\",\"id\":\"\\u00e9\\n\",\"session\":\"ana\",\"messages\":[{\"role\":\"system\","
              "\"content\":\"s\"},"
              "{\"content\":\"hi\",\"time\":\"2023-05-08T13:56:00Z\",\"ref\":\"D1:3\"}],\"max_tokens\":5,"
              "\"temperature\":0.5,"
              "\"top_p\":0.9,\"top_k\":40,\"min_p\":0.1,\"seed\":9007199254740991,\"repeat_penalty\":1.1,"
              "\"stop\":[\"a\",\"b\"],"
              "\"store\":false,\"recall\":77,\"key\":\"k\"}",
            &p);
    const agent_request *r = p.request;
    assert_string_equal(p.id_json, "\"\xc3\xa9\\n\"");
    assert_string_equal(r->session, "ana");
    assert_int_equal(r->n_messages, 2);
    assert_string_equal(r->messages[0].role, "system");
    assert_string_equal(r->messages[1].role, "user");
    assert_string_equal(r->messages[1].content, "hi");
    assert_int_equal(r->messages[1].content_bytes, 2);
    assert_string_equal(r->messages[1].ref, "D1:3");
    assert_true(r->messages[1].has_time && !r->messages[0].has_time);
    assert_int_equal(r->max_tokens, 5);
    assert_true(r->sampling.temperature == 0.5f && r->sampling.top_p == 0.9f && r->sampling.min_p == 0.1f);
    assert_true(r->sampling.repeat_penalty == 1.1f && r->sampling.top_k == 40);
    assert_true(r->sampling.seed == 9007199254740991u);
    assert_int_equal(r->n_stop, 2);
    assert_string_equal(r->stop[1], "b");
    assert_false(r->store);
    assert_int_equal(r->recall, 77);
    assert_string_equal(r->key, "k");
    parse_line_deinit(&p);
    read_good("{\"op\":\"chat\",\"id\":-7,\"messages\":[{\"content\":\"hi\"}],\"recall\":\"off\",\"stop\":"
              "\"x\"}",
            &p);
    assert_string_equal(p.id_json, "-7");
    assert_int_equal(p.request->recall, AGENT_RECALL_OFF);
    assert_int_equal(p.request->n_stop, 1);
    assert_null(p.request->session);
    assert_true(p.request->store);
    parse_line_deinit(&p);
}

#define LONG_ID                                                                                              \
    "012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901" \
    "2345678901234567890123456789"
#define CHAT(members) "{\"id\":5,\"op\":\"chat\",\"messages\":[{\"content\":\"x\"}]," members "}"
#define INGEST(message) \
    "{\"id\":5,\"op\":\"ingest\",\"session\":\"s\",\"messages\":[{\"content\":\"x\"}," message "]}"

static const struct {
    const char *text, *id, *code, *param;
} cases[] = {
        {"{\"id\":1,\"op\":\"ping\"", NULL, "bad_json", ""},
        {"{\"id\":1,\"op\":\"ping\"}{}", NULL, "bad_json", ""},
        {"{\"id\":\"caf\xe9\",\"op\":\"ping\"}", NULL, "bad_json", ""},
        {"{\"id\":1,\"id\":1,\"op\":\"ping\"}", NULL, "bad_json", ""},
        {"[]", NULL, "bad_request", ""},
        {"{\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":null,\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":1.5,\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":1.0,\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":9007199254740993,\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":\"" LONG_ID "\",\"op\":\"ping\"}", NULL, "bad_request", "id"},
        {"{\"id\":5}", "5", "bad_request", "op"},
        {"{\"id\":5,\"op\":7}", "5", "bad_request", "op"},
        {"{\"id\":5,\"op\":\"Ping\"}", "5", "unknown_op", "op"},
        {"{\"id\":5,\"op\":\"cancel\"}", "5", "bad_request", "target"},
        {"{\"id\":5,\"op\":\"chat\"}", "5", "bad_request", "messages"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":[]}", "5", "bad_request", "messages"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":{}}", "5", "bad_request", "messages"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":[5]}", "5", "bad_request", "messages[0]"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":[{}]}", "5", "bad_request", "messages[0].content"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}]}", "5",
                "bad_request", "messages[0].role"},
        {"{\"id\":5,\"op\":\"chat\",\"messages\":[{\"speaker\":\"Ana\",\"content\":\"x\"}]}", "5",
                "bad_request", "messages[0].speaker"},
        {CHAT("\"session\":\"\""), "5", "bad_request", "session"},
        {CHAT("\"session\":7"), "5", "bad_request", "session"},
        {CHAT("\"session\":\"" LONG_ID "\""), "5", "bad_request", "session"},
        {CHAT("\"max_tokens\":0"), "5", "bad_request", "max_tokens"},
        {CHAT("\"max_tokens\":\"5\""), "5", "bad_request", "max_tokens"},
        {CHAT("\"max_tokens\":1.5"), "5", "bad_request", "max_tokens"},
        {CHAT("\"max_tokens\":3000000000"), "5", "bad_request", "max_tokens"},
        {CHAT("\"temperature\":-0.1"), "5", "bad_request", "temperature"},
        {CHAT("\"temperature\":1e999"), "5", "bad_request", "temperature"},
        {CHAT("\"temperature\":null"), "5", "bad_request", "temperature"},
        {CHAT("\"top_p\":1.1"), "5", "bad_request", "top_p"},
        {CHAT("\"min_p\":\"a\""), "5", "bad_request", "min_p"},
        {CHAT("\"top_k\":-1"), "5", "bad_request", "top_k"},
        {CHAT("\"seed\":9007199254740993"), "5", "bad_request", "seed"},
        {CHAT("\"repeat_penalty\":0"), "5", "bad_request", "repeat_penalty"},
        {CHAT("\"stop\":5"), "5", "bad_request", "stop"},
        {CHAT("\"stop\":[\"a\",\"\"]"), "5", "bad_request", "stop[1]"},
        {CHAT("\"store\":1"), "5", "bad_request", "store"},
        {CHAT("\"recall\":\"some\""), "5", "bad_request", "recall"},
        {CHAT("\"recall\":-1"), "5", "bad_request", "recall"},
        {CHAT("\"key\":\"\""), "5", "bad_request", "key"},
        {INGEST("{\"role\":\"tool\",\"content\":\"x\"}"), "5", "bad_request", "messages[1].role"},
        {INGEST("{\"role\":\"user\",\"speaker\":\"Ana\",\"content\":\"x\"}"), "5", "bad_request",
                "messages[1].speaker"},
        {INGEST("{\"content\":\"x\",\"time\":\"yesterday\"}"), "5", "bad_request", "messages[1].time"},
        {INGEST("{\"content\":\"x\",\"time\":1700000000}"), "5", "bad_request", "messages[1].time"},
        {INGEST("{\"content\":\"x\",\"ref\":5}"), "5", "bad_request", "messages[1].ref"},
        {INGEST("{\"content\":\"x\",\"ref\":\"" LONG_ID LONG_ID "\"}"), "5", "bad_request",
                "messages[1].ref"},
        {"{\"id\":5,\"op\":\"ingest\",\"messages\":[{\"content\":\"x\"}]}", "5", "bad_request", "session"},
        {"{\"id\":5,\"op\":\"match\",\"session\":\"s\"}", "5", "bad_request", "text"},
        {"{\"id\":5,\"op\":\"match\",\"session\":\"s\",\"text\":\"t\",\"budget\":0}", "5", "bad_request",
                "budget"},
        {"{\"id\":5,\"op\":\"session.create\",\"session\":\"s\",\"ttl_s\":0}", "5", "bad_request", "ttl_s"},
        {"{\"id\":5,\"op\":\"session.get\",\"session\":\"s\",\"messages\":\"yes\"}", "5", "bad_request",
                "messages"},
        {"{\"id\":5,\"op\":\"session.list\",\"limit\":1001}", "5", "bad_request", "limit"},
        {"{\"id\":5,\"op\":\"session.erase\"}", "5", "bad_request", "session"},
        {"{\"id\":5,\"op\":\"episode.list\"}", "5", "bad_request", "session"},
};

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parse_line p;
        parse_fault f;
        if (parse_request(cases[i].text, strlen(cases[i].text), &p, &f) == ST_OK) {
            fail_msg("taken: %s", cases[i].text);
        }
        if (strcmp(f.code, cases[i].code) != 0 || strcmp(f.at.param, cases[i].param) != 0) {
            fail_msg("%s: %s %s (%s)", cases[i].text, f.code, f.at.param, f.at.message);
        }
        assert_true(f.at.message[0] != '\0');
        assert_null(p.request);
        assert_int_equal(p.id_json == NULL, cases[i].id == NULL);
        if (cases[i].id != NULL) {
            assert_string_equal(p.id_json, cases[i].id);
        }
        parse_line_deinit(&p);
    }
}

static void memory_runs_out_cleanly(void **state)
{
    static const char text[] = CHAT("\"session\":\"s\",\"stop\":[\"a\"],\"key\":\"k\"");
    (void)state;
    json_use_base_memory();
    for (long i = 0; i < 1000; i++) {
        parse_line p;
        parse_fault f;
        base_fail_allocation(i);
        status st = parse_request(text, sizeof text - 1, &p, &f);
        base_fail_allocation(-1);
        parse_line_deinit(&p);
        if (st == ST_OK) {
            assert_true(i > 20);
            return;
        }
        assert_int_equal(st, ST_ERR_MEMORY);
        assert_string_equal(f.code, "internal");
    }
    fail_msg("it never succeeded");
}

static void expect_reply(const agent_event *ev, const char *id, const char *line)
{
    base_buf b = {.max = 1000};
    assert_int_equal(reply_event(&b, id, ev), ST_OK);
    assert_int_equal(base_buf_append(&b, "", 1), ST_OK);
    assert_string_equal((char *)b.data, line);
    base_buf_free(&b);
}

static void replies(void **state)
{
    (void)state;
    agent_event token = {.kind = AGENT_EVENT_TOKEN, .text = "a\"\nbc", .text_bytes = 4};
    expect_reply(&token, "7", "{\"id\":7,\"event\":\"token\",\"text\":\"a\\\"\\nb\"}\n");
    agent_event progress = {
            .kind = AGENT_EVENT_PROGRESS, .phase = "prefill", .done_tokens = 5, .total_tokens = 1LL << 40};
    expect_reply(&progress, "\"x\"",
            "{\"id\":\"x\",\"event\":\"progress\",\"phase\":\"prefill\",\"done_tokens\":5,\"total_tokens\":"
            "1099511627776}\n");
    agent_event done = {.kind = AGENT_EVENT_DONE, .members = cJSON_CreateObject()};
    expect_reply(&done, NULL, "{\"id\":null,\"event\":\"done\"}\n");
    cJSON_AddStringToObject(done.members, "text", "l1\nl2");
    expect_reply(&done, "7", "{\"id\":7,\"event\":\"done\",\"text\":\"l1\\nl2\"}\n");
    cJSON_Delete(done.members);
    agent_event busy = {
            .kind = AGENT_EVENT_ERROR, .code = "busy", .message = "m", .param = "p", .retry_after_ms = 50};
    expect_reply(&busy, "7",
            "{\"id\":7,\"event\":\"error\",\"code\":\"busy\",\"message\":\"m\",\"param\":\"p\",\"retry_after_"
            "ms\":50}\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(every_operation),
            cmocka_unit_test(members_of_a_chat),
            cmocka_unit_test(refusals),
            cmocka_unit_test(memory_runs_out_cleanly),
            cmocka_unit_test(replies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
