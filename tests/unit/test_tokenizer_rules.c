/* The pre-tokenizers against the published regular expressions (tests/golden-tools/tokenizer_goldens.py). */
#include "test_tokenizer_util.h"

static void check_line(void *ctx, const cJSON *line)
{
    pretokenizer rule;
    (void)ctx;
    const char *name = text_member(line, "rule");
    assert_true(pretokenizer_find(name, strlen(name), &rule));
    assert_string_equal(pretokenizer_name(rule), name);
    base_buf text = bytes_of(line);
    const cJSON *piece = member(line, "pieces")->child;
    for (size_t at = 0; at < text.size;) {
        size_t n = pretokenizer_next(rule, text.data + at, text.size - at);
        if (piece == NULL || n != (size_t)piece->valueint) {
            fail_msg("%s, %s: piece of %zu bytes at %zu, expected %d", name, text_member(line, "b64"), n, at,
                    piece == NULL ? 0 : piece->valueint);
        }
        at += n;
        piece = piece->next;
    }
    assert_null(piece);
    base_buf_free(&text);
}

static void follows_the_published_rules(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/pretokenize.jsonl", 800, check_line, NULL);
}

static void knows_four_names(void **state)
{
    pretokenizer rule;
    (void)state;
    assert_false(pretokenizer_find("tekken", 6, &rule));
    assert_false(pretokenizer_find("smollm2", 7, &rule));
    assert_false(pretokenizer_find("gpt-", 4, &rule));
    assert_false(pretokenizer_find("", 0, &rule));
    assert_true(pretokenizer_find("gpt-2 and more", 5, &rule));
    assert_int_equal(rule, PRETOKENIZER_GPT2);
}

/* Megabytes of one class: a scanner that looks at the rest of the text for every piece would not end. */
static void takes_linear_time(void **state)
{
    static const char *const units[] = {" ", "\n", " \n", "a", "5", "!", "'", " 5", "\xe3\x80\x80", " x\n"};
    enum { BYTES = 2 << 20 };
    (void)state;
    uint8_t *text = base_alloc(BYTES);
    assert_non_null(text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t unit = strlen(units[u]), bytes = BYTES / unit * unit;
        for (size_t at = 0; at < bytes; at += unit) {
            memcpy(text + at, units[u], unit);
        }
        for (int rule = PRETOKENIZER_SMOLLM; rule <= PRETOKENIZER_QWEN2; rule++) {
            int64_t start = base_monotonic_us();
            for (size_t at = 0; at < bytes;) {
                size_t n = pretokenizer_next((pretokenizer)rule, text + at, bytes - at);
                assert_true(n > 0 && n <= bytes - at);
                at += n;
            }
            assert_true(base_monotonic_us() - start < 5000000);
        }
    }
    base_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(follows_the_published_rules),
            cmocka_unit_test(knows_four_names),
            cmocka_unit_test(takes_linear_time),
    };
    return cmocka_run_group_tests_name("tokenizer_rules", tests, NULL, NULL);
}
