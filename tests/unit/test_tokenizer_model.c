/* The default model's tokenizer against the shared vectors and the reported faults: exact ids. */
#include "test_tokenizer_util.h"

static tokenizer *tok;

static int open_model(void **state)
{
    (void)state;
    tok = open_tokenizer(MODEL_FILE);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    tokenizer_close(tok);
    return 0;
}

static const char *title(const cJSON *line)
{
    return text_member(line, member(line, "name") != NULL ? "name" : "why");
}

static void check_line(void *ctx, const cJSON *line)
{
    token_list ids = {0};
    err e;
    (void)ctx;
    base_buf text = bytes_of(line);
    ASSERT_OK(tokenizer_encode(
            tok, text.data, text.size, cJSON_IsTrue(member(line, "parse_special")), &ids, &e));
    expect_ids(&ids, member(line, "ids"), title(line));
    if (member(line, "lossless") == NULL || cJSON_IsTrue(member(line, "lossless"))) {
        expect_bytes(tok, &ids, text.data, text.size);
    }
    token_list_free(&ids);
    base_buf_free(&text);
}

static void encodes_the_shared_vectors(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/tokenizer.jsonl", 167, check_line, NULL);
}

static void encodes_the_corners(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/corners.jsonl", 81, check_line, NULL);
}

/* What the reference drops is refused here; what it repairs is repaired alike. */
static void check_edge(void *ctx, const cJSON *line)
{
    token_list ids = {0};
    err e;
    (void)ctx;
    base_buf text = bytes_of(line);
    status s = tokenizer_encode(tok, text.data, text.size, false, &ids, &e);
    if (strncmp(title(line), "byte without token", 18) == 0) {
        assert_int_equal(s, ST_ERR_UNENCODABLE);
        assert_int_equal(tokenizer_check(tok, text.data, text.size, &e), ST_ERR_UNENCODABLE);
        assert_int_equal(ids.n, 0);
    } else {
        assert_int_equal(s, ST_OK);
        expect_ids(&ids, member(line, "ids"), title(line));
        assert_int_equal(tokenizer_check(tok, text.data, text.size, &e), ST_OK);
    }
    token_list_free(&ids);
    base_buf_free(&text);
}

static void repairs_or_refuses_at_the_edges(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/tokenizer_edge.jsonl", 16, check_edge, NULL);
}

static void lacks_twenty_one_bytes(void **state)
{
    static const uint8_t missing[] = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, 0xf5, 0xff};
    (void)state;
    assert_int_equal(tok->bytes_missing, 21);
    for (size_t i = 0; i < sizeof missing; i++) {
        assert_int_equal(tok->byte_ids[missing[i]], -1);
    }
    assert_int_equal(tokenizer_bos(tok), 1);
    assert_int_equal(tokenizer_eos(tok), 2);
    assert_false(tokenizer_adds_bos(tok));
    assert_int_equal(tokenizer_vocab_size(tok), 49152);
    assert_true(tokenizer_is_end(tok, 2) && tokenizer_is_end(tok, 0) && !tokenizer_is_end(tok, 1));
    assert_int_equal(tokenizer_special_id(tok, "<|im_end|>"), 2);
    assert_int_equal(tokenizer_special_id(tok, "<|im_end|"), -1);
    assert_int_equal(tokenizer_special_id(tok, "<|im_end|>>"), -1);
}

static void refuses_by_name_and_place(void **state)
{
    (void)state;
    cJSON *file = read_json(DATA "tokenizer/unencodable.json");
    const cJSON *request;
    err e;
    int n = 0;
    cJSON_ArrayForEach (request, member(file, "unencodable")) {
        token_list ids = {0};
        const char *text = text_member(request, "text");
        assert_int_equal(tokenizer_encode(tok, text, strlen(text), true, &ids, &e), ST_ERR_UNENCODABLE);
        assert_non_null(strstr(e.text, text_member(request, "names")));
        token_list_free(&ids);
        n++;
    }
    assert_int_equal(n, 9);
    token_list ids = {0};
    assert_int_equal(tokenizer_encode(tok, "\xc3\xa9\xff\x04z", 5, false, &ids, &e), ST_ERR_UNENCODABLE);
    assert_string_equal(e.text, "U+0004 at character 2 cannot be encoded by this model");
    cJSON_Delete(file);
}

/* Every code point alone: refused or spelled, but never by a special token. */
static void never_yields_a_special_token(void **state)
{
    token_list ids = {0};
    err e;
    int refused = 0;
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 61) {
        char text[4];
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        for (size_t i = n; i-- > 1;) {
            text[i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
        }
        text[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xf0) | c >> 6 * (n - 1));
        ids.n = 0;
        status s = tokenizer_encode(tok, text, n, false, &ids, &e);
        refused += s == ST_ERR_UNENCODABLE ? 1 : 0;
        assert_true(s == ST_OK || s == ST_ERR_UNENCODABLE);
        for (size_t i = 0; i < ids.n; i++) {
            assert_false(tokenizer_is_special(tok, ids.ids[i]));
        }
    }
    assert_true(refused >= 6 && refused < 10000);
    token_list_free(&ids);
}

/* ---- chats ---- */

static void render(const chat_template *c, const cJSON *messages, bool ask, marked_text *out)
{
    chat_message list[16];
    err e;
    int n = 0;
    const cJSON *m;
    cJSON_ArrayForEach (m, messages) {
        const char *content = text_member(m, "content");
        list[n++] = (chat_message){
                .role = text_member(m, "role"), .content = content, .content_bytes = strlen(content)};
    }
    ASSERT_OK(chat_template_render(c, list, n, true, ask, out, &e));
}

static const chat_template *open_template(void)
{
    gguf *g = NULL;
    const chat_template *c = NULL;
    err e;
    ASSERT_OK(gguf_open(MODEL_FILE, &g, &e));
    ASSERT_OK(chat_template_open(g, NULL, &c, &e));
    gguf_close(g);
    assert_string_equal(chat_template_name(c), "chatml");
    assert_string_equal(chat_template_default_system(c),
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    return c;
}

/* The reference parses special tokens in contents too; ours equals it where contents hold none. */
static void renders_and_encodes_the_shared_chats(void **state)
{
    (void)state;
    const chat_template *c = open_template();
    cJSON *file = read_json(DATA "tokenizer/chat.json");
    const cJSON *chat;
    err e;
    int n = 0, same = 0;
    cJSON_ArrayForEach (chat, file) {
        marked_text text;
        token_list ids = {0}, parsed = {0};
        marked_text_init(&text);
        render(c, member(chat, "messages"), cJSON_IsTrue(member(chat, "add_generation_prompt")), &text);
        const char *wanted = text_member(chat, "text");
        assert_int_equal(text.text.size, strlen(wanted));
        assert_memory_equal(text.text.data, wanted, text.text.size);
        ASSERT_OK(tokenizer_encode(tok, text.text.data, text.text.size, true, &parsed, &e));
        expect_ids(&parsed, member(chat, "ids"), title(chat));
        ASSERT_OK(tokenizer_encode_marked(tok, &text, &ids, &e));
        if (strstr(title(chat), "special tokens") == NULL) {
            expect_ids(&ids, member(chat, "ids"), title(chat));
            same++;
        } else {
            assert_true(ids.n > parsed.n);
            expect_bytes(tok, &ids, text.text.data, text.text.size);
        }
        n++;
        token_list_free(&ids);
        token_list_free(&parsed);
        marked_text_free(&text);
    }
    assert_int_equal(n, 28 - 2);
    assert_int_equal(same, n - 2);
    cJSON_Delete(file);
    chat_template_close(c);
}

static void keeps_control_words_in_messages_letters(void **state)
{
    (void)state;
    const chat_template *c = open_template();
    cJSON *file = read_json(DATA "tokenizer/control_words.json");
    const cJSON *request;
    err e;
    int n = 0;
    cJSON_ArrayForEach (request, file) {
        marked_text text;
        token_list ids = {0};
        marked_text_init(&text);
        render(c, member(request, "messages"), true, &text);
        ASSERT_OK(tokenizer_encode_marked(tok, &text, &ids, &e));
        expect_ids(&ids, member(request, "ids"), title(request));
        token_list_free(&ids);
        marked_text_free(&text);
        n++;
    }
    assert_int_equal(n, 10);
    cJSON_Delete(file);
    chat_template_close(c);
}

/* One MiB without a break in it, and one of ordinary text. */
static void is_fast(void **state)
{
    enum { BYTES = 1 << 20 };
    static const char *const units[] = {
            "a", "ab", "= ", "the quick brown fox, isn't it? 2024\n", "\xe4\xbd\xa0\xe5\xa5\xbd"};
    (void)state;
    char *text = base_alloc(BYTES);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        token_list ids = {0};
        err e;
        size_t unit = strlen(units[u]), bytes = BYTES / unit * unit;
        for (size_t at = 0; at < bytes; at += unit) {
            memcpy(text + at, units[u], unit);
        }
        int64_t start = base_monotonic_us();
        ASSERT_OK(tokenizer_encode(tok, text, bytes, true, &ids, &e));
        double us = (double)(base_monotonic_us() - start);
        print_message("%.1f MB/s, %zu ids: %.12s\n", (double)bytes / us, ids.n, units[u]);
        assert_true(us < 5e6);
        expect_bytes(tok, &ids, text, bytes);
        token_list_free(&ids);
    }
    base_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(encodes_the_shared_vectors),
            cmocka_unit_test(encodes_the_corners),
            cmocka_unit_test(repairs_or_refuses_at_the_edges),
            cmocka_unit_test(lacks_twenty_one_bytes),
            cmocka_unit_test(refuses_by_name_and_place),
            cmocka_unit_test(never_yields_a_special_token),
            cmocka_unit_test(renders_and_encodes_the_shared_chats),
            cmocka_unit_test(keeps_control_words_in_messages_letters),
            cmocka_unit_test(is_fast),
    };
    return cmocka_run_group_tests_name("tokenizer_model", tests, open_model, close_model);
}
