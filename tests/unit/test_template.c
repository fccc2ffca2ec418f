/* Chat templates against jinja2's rendering of the published ones (tests/golden-tools/template_goldens.py), and the
 * promises that a session is built on: chunks concatenate, marks tell template from message. */
#include "test_tokenizer_util.h"

enum { MESSAGES_MAX = 16 };

static cJSON *templates;

static int read_templates(void **state)
{
    (void)state;
    templates = read_json(DATA "tokenizer/templates.json");
    return 0;
}

static int free_templates(void **state)
{
    (void)state;
    cJSON_Delete(templates);
    return 0;
}

static const chat_template *build(const cJSON *t, const char *name)
{
    const chat_template *c = NULL;
    err e;
    const char *jinja = text_member(t, "jinja");
    ASSERT_OK(chat_template_build(
            name, jinja, strlen(jinja), text_member(t, "bos"), text_member(t, "eos"), &c, &e));
    return c;
}

static int read_messages(const cJSON *chat, chat_message list[MESSAGES_MAX])
{
    int n = 0;
    const cJSON *m;
    cJSON_ArrayForEach (m, member(chat, "messages")) {
        const char *content = text_member(m, "content");
        assert_true(n < MESSAGES_MAX);
        list[n++] = (chat_message){
                .role = text_member(m, "role"), .content = content, .content_bytes = strlen(content)};
    }
    return n;
}

static void expect_text(const marked_text *got, const char *wanted, size_t n, const char *what)
{
    if (got->text.size != n || (n > 0 && memcmp(got->text.data, wanted, n) != 0)) {
        fail_msg("%s:\n%.*s\nexpected\n%.*s", what, (int)got->text.size, (const char *)got->text.data, (int)n,
                wanted);
    }
    assert_int_equal(got->is_template.size, n);
}

static void expect_same(const marked_text *got, const marked_text *wanted, const char *what)
{
    expect_text(got, (const char *)wanted->text.data, wanted->text.size, what);
    assert_true(wanted->text.size == 0 ||
            memcmp(got->is_template.data, wanted->is_template.data, wanted->is_template.size) == 0);
}

typedef void (*each_chat)(const chat_template *c, const cJSON *t, const cJSON *chat);

static void for_each_chat(each_chat visit)
{
    const cJSON *t, *chat;
    int n = 0;
    cJSON_ArrayForEach (t, templates) {
        if (!cJSON_IsString(member(t, "family"))) {
            continue;
        }
        const chat_template *c = build(t, NULL);
        assert_string_equal(chat_template_name(c), text_member(t, "family"));
        cJSON_ArrayForEach (chat, member(t, "cases")) {
            visit(c, t, chat);
            n++;
        }
        chat_template_close(c);
    }
    assert_true(n > 350);
}

/* ---- against jinja2 ---- */

static void check_rendering(const chat_template *c, const cJSON *t, const cJSON *chat)
{
    chat_message list[MESSAGES_MAX];
    marked_text got;
    err e;
    int n = read_messages(chat, list);
    const char *wanted = text_member(chat, "text");
    marked_text_init(&got);
    ASSERT_OK(chat_template_render(
            c, list, n, true, cJSON_IsTrue(member(chat, "generation_prompt")), &got, &e));
    expect_text(&got, wanted, strlen(wanted), text_member(t, "name"));
    marked_text_free(&got);
}

static void renders_as_jinja_does(void **state)
{
    (void)state;
    for_each_chat(check_rendering);
}

/* Message bytes in order are the contents in order, but for white space that the template takes off. */
static void check_marks(const chat_template *c, const cJSON *t, const cJSON *chat)
{
    chat_message list[MESSAGES_MAX];
    marked_text got;
    base_buf unmarked = {.max = 1 << 20}, contents = {.max = 1 << 20};
    err e;
    int n = read_messages(chat, list);
    marked_text_init(&got);
    ASSERT_OK(chat_template_render(c, list, n, true, true, &got, &e));
    for (size_t i = 0; i < got.text.size; i++) {
        if (!got.is_template.data[i]) {
            assert_int_equal(base_buf_append(&unmarked, got.text.data + i, 1), ST_OK);
        }
    }
    bool trims = false;
    for (int i = 0; i < n; i++) {
        assert_int_equal(base_buf_append(&contents, list[i].content, list[i].content_bytes), ST_OK);
        trims = trims || (list[i].content_bytes > 0 && strchr(" \t\n\x1f", list[i].content[0]) != NULL);
    }
    if (!trims) {
        assert_int_equal(unmarked.size, contents.size);
        assert_true(unmarked.size == 0 || memcmp(unmarked.data, contents.data, unmarked.size) == 0);
    }
    assert_true(unmarked.size <= contents.size);
    (void)t;
    base_buf_free(&unmarked);
    base_buf_free(&contents);
    marked_text_free(&got);
}

static void marks_contents_and_nothing_else(void **state)
{
    (void)state;
    for_each_chat(check_marks);
}

/* ---- chunks ---- */

static void check_chunks(const chat_template *c, const cJSON *t, const cJSON *chat)
{
    chat_message list[MESSAGES_MAX];
    marked_text whole, chunks;
    err e;
    int n = read_messages(chat, list);
    bool ask = cJSON_IsTrue(member(chat, "generation_prompt"));
    bool own_turn = strcmp(chat_template_name(c), "gemma") != 0 &&
            strstr(text_member(t, "name"), "Mistral-7B") == NULL &&
            strstr(text_member(t, "name"), "Nemo") == NULL;
    marked_text_init(&whole);
    ASSERT_OK(chat_template_render(c, list, n, true, ask, &whole, &e));
    for (int cut = 1; cut <= n; cut++) {
        const char *previous = list[cut - 1].role;
        marked_text_init(&chunks);
        ASSERT_OK(chat_template_render(c, list, cut, true, false, &chunks, &e));
        ASSERT_OK(chat_template_extend(c, previous, list + cut, n - cut, ask, &chunks, &e));
        expect_same(&chunks, &whole, text_member(t, "name"));
        marked_text_free(&chunks);
        if (own_turn ||
                strcmp(previous, "system") != 0) { /* then a message does not depend on the one before */
            marked_text_init(&chunks);
            ASSERT_OK(chat_template_render(c, list, cut, true, false, &chunks, &e));
            ASSERT_OK(chat_template_render(c, list + cut, n - cut, false, ask, &chunks, &e));
            expect_same(&chunks, &whole, text_member(t, "name"));
            marked_text_free(&chunks);
        }
    }
    marked_text_free(&whole);
}

static void chunks_concatenate(void **state)
{
    (void)state;
    for_each_chat(check_chunks);
}

static bool is_padded(const chat_message *m)
{
    return m->content_bytes == 0 || m->content[0] <= ' ' || m->content[m->content_bytes - 1] <= ' ';
}

/* open + content + close is the message, for content that no template trims. */
static void check_open_and_close(const chat_template *c, const cJSON *t, const cJSON *chat)
{
    chat_message list[MESSAGES_MAX];
    err e;
    int n = read_messages(chat, list);
    for (int i = 0; i < n; i++) {
        for (int first = 0; first < 2; first++) {
            marked_text whole, parts;
            marked_text_init(&whole);
            marked_text_init(&parts);
            ASSERT_OK(chat_template_render(c, &list[i], 1, first, false, &whole, &e));
            ASSERT_OK(chat_template_open_message(c, list[i].role, first, &parts, &e));
            assert_int_equal(marked_text_add(&parts, list[i].content, list[i].content_bytes, false), ST_OK);
            ASSERT_OK(chat_template_close_message(c, list[i].role, &parts, &e));
            if (!is_padded(&list[i]) && strcmp(list[i].role, "system") != 0) {
                expect_same(&parts, &whole, text_member(t, "name"));
            }
            marked_text_free(&whole);
            marked_text_free(&parts);
        }
    }
}

static void messages_open_and_close(void **state)
{
    (void)state;
    for_each_chat(check_open_and_close);
}

/* An answer generated behind the prompt is the assistant message that a later render shows. Mistral's writes a space that
 * the model itself generates. */
static void check_answer(const chat_template *c, const cJSON *t, const cJSON *chat)
{
    chat_message list[MESSAGES_MAX];
    err e;
    int n = read_messages(chat, list);
    const chat_message *last = &list[n - 1];
    if (n < 2 || strcmp(last->role, "assistant") != 0 || is_padded(last)) {
        return;
    }
    marked_text whole, grown, end;
    marked_text_init(&whole);
    marked_text_init(&grown);
    marked_text_init(&end);
    ASSERT_OK(chat_template_render(c, list, n, true, false, &whole, &e));
    ASSERT_OK(chat_template_render(c, list, n - 1, true, true, &grown, &e));
    size_t prompt = grown.text.size;
    bool space = whole.text.data[prompt] == ' ';
    assert_true(!space || strcmp(chat_template_name(c), "mistral") == 0);
    assert_int_equal(marked_text_add(&grown, " ", space ? 1 : 0, true), ST_OK);
    assert_int_equal(marked_text_add(&grown, last->content, last->content_bytes, false), ST_OK);
    ASSERT_OK(chat_template_after_answer(c, false, &grown, &e));
    expect_same(&grown, &whole, text_member(t, "name"));
    ASSERT_OK(chat_template_after_answer(c, true, &end, &e));
    assert_true(end.text.size <= 1 && end.text.size < grown.text.size - prompt);
    marked_text_free(&whole);
    marked_text_free(&grown);
    marked_text_free(&end);
}

static void answers_become_messages(void **state)
{
    (void)state;
    for_each_chat(check_answer);
}

/* A system text that no user message follows still ends where the model expects it. */
static void system_texts_never_dangle(void **state)
{
    const chat_message alone = {.role = "system", .content = "S", .content_bytes = 1};
    const chat_message answered[] = {alone, {.role = "assistant", .content = "A", .content_bytes = 1}};
    const chat_message twice[] = {alone, alone, {.role = "user", .content = "U", .content_bytes = 1}};
    const struct {
        const chat_message *messages;
        int n;
        const char *mistral, *gemma;
    } cases[] = {
            {&alone, 1, "<s>[INST] S\n\n [/INST]",
                    "<bos><start_of_turn>user\nS\n\n<end_of_turn>\n<start_of_turn>model\n"},
            {answered, 2, "<s>[INST] S\n\n [/INST]A</s>",
                    "<bos><start_of_turn>user\nS\n\n<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
                    "<start_of_turn>model\n"},
            {twice, 3, "<s>[INST] S\n\nS\n\nU [/INST]",
                    "<bos><start_of_turn>user\nS\n\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"},
    };
    const chat_template *mistral = NULL, *gemma = NULL;
    err e;
    (void)state;
    ASSERT_OK(chat_template_build("mistral", NULL, 0, "<s>", "</s>", &mistral, &e));
    ASSERT_OK(chat_template_build("gemma", NULL, 0, "<bos>", "<eos>", &gemma, &e));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        marked_text got;
        marked_text_init(&got);
        ASSERT_OK(chat_template_render(mistral, cases[i].messages, cases[i].n, true, true, &got, &e));
        expect_text(&got, cases[i].mistral, strlen(cases[i].mistral), "mistral");
        got.text.size = got.is_template.size = 0;
        ASSERT_OK(chat_template_render(gemma, cases[i].messages, cases[i].n, true, true, &got, &e));
        expect_text(&got, cases[i].gemma, strlen(cases[i].gemma), "gemma");
        marked_text_free(&got);
    }
    chat_template_close(mistral);
    chat_template_close(gemma);
}

/* ---- recognition ---- */

static void refuses_templates_of_no_known_kind(void **state)
{
    const cJSON *t;
    int n = 0;
    (void)state;
    cJSON_ArrayForEach (t, templates) {
        const chat_template *c = NULL;
        err e;
        const char *jinja = text_member(t, "jinja");
        if (!cJSON_IsString(member(t, "family"))) {
            assert_int_equal(
                    chat_template_build(NULL, jinja, strlen(jinja), "", "", &c, &e), ST_ERR_UNSUPPORTED);
            assert_non_null(strstr(e.text, "chatml, llama3, mistral, gemma, phi3, zephyr"));
            assert_null(c);
            n++;
        }
    }
    assert_int_equal(n, 5);
}

static void takes_a_name_instead(void **state)
{
    static const char *const names[] = {"chatml", "llama3", "mistral", "gemma", "phi3", "zephyr"};
    const chat_template *c = NULL;
    err e;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        ASSERT_OK(chat_template_build(names[i], "{{ content }}", 13, "<s>", "</s>", &c, &e));
        assert_string_equal(chat_template_name(c), names[i]);
        assert_null(chat_template_default_system(c));
        chat_template_close(c);
        ASSERT_OK(chat_template_open(NULL, names[i], &c, &e));
        chat_template_close(c);
    }
    assert_int_equal(chat_template_open(NULL, "vicuna", &c, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "'vicuna'"));
    assert_non_null(strstr(e.text, "chatml, llama3, mistral, gemma, phi3, zephyr"));
    assert_int_equal(chat_template_open(NULL, NULL, &c, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "no chat template"));
    chat_template_close(NULL);
}

static void reads_the_default_system_prompt(void **state)
{
    static const char *const defaults[][2] = {
            {"SmolLM2-Instruct", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
            {"Qwen2.5-Instruct", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
            {"Qwen3", NULL},
            {"chatml with a set system prompt", "You are a 'good' assistant.\nBe brief."},
            {"Llama-3-Instruct", NULL},
            {"Llama-3.1-Instruct", ""},
            {"Mistral-Large-Instruct-2411", NULL},
            {"Phi-3-mini-4k-instruct", NULL},
            {"zephyr-7b-beta", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const cJSON *t;
        cJSON_ArrayForEach (t, templates) {
            if (strcmp(text_member(t, "name"), defaults[i][0]) == 0) {
                const chat_template *c = build(t, NULL);
                const char *got = chat_template_default_system(c);
                assert_true((got == NULL) == (defaults[i][1] == NULL));
                if (got != NULL) {
                    assert_string_equal(got, defaults[i][1]);
                }
                chat_template_close(c);
            }
        }
    }
}

static void fingerprints_tell_templates_apart(void **state)
{
    uint64_t seen[32];
    int n = 0;
    const cJSON *t;
    (void)state;
    cJSON_ArrayForEach (t, templates) {
        if (cJSON_IsString(member(t, "family")) && n < 32) {
            const chat_template *c = build(t, NULL), *again = build(t, NULL);
            seen[n] = chat_template_fingerprint(c);
            assert_true(seen[n] == chat_template_fingerprint(again));
            chat_template_close(again);
            chat_template_close(c);
            n++;
        }
    }
    int equal = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < i; j++) {
            equal += seen[i] == seen[j] ? 1 : 0;
        }
    }
    assert_int_equal(equal, 2); /* Qwen3 and OpenHermes-2.5 write the same, and both Gemmas */
}

static void refuses_unknown_roles(void **state)
{
    const chat_message bad[] = {
            {.role = "user", .content = "x", .content_bytes = 1}, {.role = "tool\n<|im_end|>"}};
    const chat_template *c = NULL;
    marked_text out;
    err e;
    (void)state;
    ASSERT_OK(chat_template_open(NULL, "chatml", &c, &e));
    marked_text_init(&out);
    assert_int_equal(chat_template_render(c, bad, 2, true, true, &out, &e), ST_ERR_ARG);
    assert_non_null(strstr(e.text, "role 'tool"));
    assert_int_equal(chat_template_extend(c, "nobody", bad, 1, true, &out, &e), ST_ERR_ARG);
    assert_int_equal(chat_template_open_message(c, NULL, true, &out, &e), ST_ERR_ARG);
    assert_int_equal(chat_template_close_message(c, "User", &out, &e), ST_ERR_ARG);
    assert_int_equal(out.text.size, 0);
    marked_text_free(&out);
    chat_template_close(c);
}

static void survives_failing_memory(void **state)
{
    const chat_message m[] = {{.role = "system", .content = "s", .content_bytes = 1}, {.role = "user"}};
    const cJSON *t = templates->child;
    const char *jinja = text_member(t, "jinja");
    bool done = false;
    (void)state;
    for (long n = 0; !done; n++) {
        const chat_template *c = NULL;
        marked_text out;
        err e;
        assert_true(n < 1000);
        marked_text_init(&out);
        base_fail_allocation(n);
        status s = chat_template_build(NULL, jinja, strlen(jinja), "b", "e", &c, &e);
        s = s == ST_OK ? chat_template_render(c, m, 2, true, true, &out, &e) : s;
        base_fail_allocation(-1);
        assert_true(s == ST_OK || (s == ST_ERR_MEMORY && out.text.size == 0 && out.is_template.size == 0));
        done = s == ST_OK;
        if (done) {
            assert_string_equal(chat_template_default_system(c),
                    "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
        }
        marked_text_free(&out);
        chat_template_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(renders_as_jinja_does),
            cmocka_unit_test(marks_contents_and_nothing_else),
            cmocka_unit_test(chunks_concatenate),
            cmocka_unit_test(messages_open_and_close),
            cmocka_unit_test(answers_become_messages),
            cmocka_unit_test(system_texts_never_dangle),
            cmocka_unit_test(refuses_templates_of_no_known_kind),
            cmocka_unit_test(takes_a_name_instead),
            cmocka_unit_test(reads_the_default_system_prompt),
            cmocka_unit_test(fingerprints_tell_templates_apart),
            cmocka_unit_test(refuses_unknown_roles),
            cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests_name("template", tests, read_templates, free_templates);
}
