/* The tokenizer with small vocabularies (tests/golden-tools/tokenizer_goldens.py): ids of all four rules, marks, refusals,
 * damaged files, failing memory. */
#include "test_tokenizer_util.h"

enum { RULES = 4 };
static const char *const rules[RULES] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
static tokenizer *small[RULES];

static const char *path_of(const char *rule)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%stokenizer/small_%s.gguf", DATA, rule);
    return path;
}

static int open_all(void **state)
{
    (void)state;
    for (int i = 0; i < RULES; i++) {
        small[i] = open_tokenizer(path_of(rules[i]));
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < RULES; i++) {
        tokenizer_close(small[i]);
    }
    return 0;
}

static void check_line(void *ctx, const cJSON *line)
{
    int rule = 0;
    err e;
    token_list ids = {0};
    (void)ctx;
    while (rule < RULES - 1 && strcmp(rules[rule], text_member(line, "rule")) != 0) {
        rule++;
    }
    base_buf text = bytes_of(line);
    ASSERT_OK(tokenizer_encode(
            small[rule], text.data, text.size, cJSON_IsTrue(member(line, "parse_special")), &ids, &e));
    expect_ids(&ids, member(line, "ids"), text_member(line, "b64"));
    expect_bytes(small[rule], &ids, text.data, text.size);
    token_list_free(&ids);
    base_buf_free(&text);
}

static void encodes_as_the_reference(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/small_ids.jsonl", 1000, check_line, NULL);
}

/* ---- marks ---- */

static void expect_list(const token_list *got, const int32_t *wanted, size_t n)
{
    assert_int_equal(got->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(got->ids[i], wanted[i]);
    }
}

static void encode_marked(const tokenizer *t, const char *text, const char *marks, token_list *ids)
{
    marked_text m;
    err e;
    marked_text_init(&m);
    for (size_t i = 0; i < strlen(text); i++) {
        assert_int_equal(marked_text_add(&m, text + i, 1, marks[i] == 't'), ST_OK);
    }
    ASSERT_OK(tokenizer_encode_marked(t, &m, ids, &e));
    marked_text_free(&m);
}

static void takes_special_tokens_from_template_bytes_only(void **state)
{
    const tokenizer *t = small[0];
    token_list ids = {0}, letters = {0};
    err e;
    (void)state;
    encode_marked(t, "<|im_end|>", "tttttttttt", &ids);
    expect_list(&ids, (const int32_t[]){2}, 1);
    ids.n = 0;
    ASSERT_OK(tokenizer_encode(t, "<|im_end|>", 10, false, &letters, &e));
    assert_true(letters.n > 1);
    encode_marked(t, "<|im_end|>", "mmmmmmmmmm", &ids);
    expect_list(&ids, letters.ids, letters.n);
    ids.n = 0;
    encode_marked(
            t, "<|im_end|>", "tttttttttm", &ids); /* "<|im" is a special token too, the longest that fits */
    assert_int_equal(ids.ids[0], 3);
    ids.n = 0;
    encode_marked(t, "<|im_end|>", "mttttttttt", &ids);
    expect_list(&ids, letters.ids, letters.n);
    ids.n = 0;
    encode_marked(t, "<think><think>", "tttttttmmmmmmm", &ids); /* user-defined: the same rule */
    assert_int_equal(ids.ids[0], 5);
    assert_true(ids.n > 2);
    token_list_free(&ids);
    token_list_free(&letters);
}

static void takes_the_longest_special_token(void **state)
{
    token_list ids = {0};
    err e;
    (void)state;
    ASSERT_OK(tokenizer_encode(small[1], "<|im_start|>user<|im_start|>", 28, true, &ids, &e));
    expect_list(&ids, (const int32_t[]){4, 1}, 2);
    ids.n = 0;
    ASSERT_OK(tokenizer_encode(small[1], "<|im<|im_st", 11, true, &ids, &e));
    assert_int_equal(ids.ids[0], 3);
    assert_int_equal(ids.ids[1], 3);
    token_list_free(&ids);
}

/* Marks change what a control word is, never where the text between two of them is cut. */
static void joins_template_and_message_into_one_run(void **state)
{
    static const char text[] = "\n\n\nfoo 12 \t bar's";
    (void)state;
    for (int r = 0; r < RULES; r++) {
        token_list plain = {0};
        err e;
        ASSERT_OK(tokenizer_encode(small[r], text, sizeof text - 1, false, &plain, &e));
        for (size_t cut = 0; cut < sizeof text; cut++) {
            char marks[sizeof text];
            token_list ids = {0};
            memset(marks, 't', cut);
            memset(marks + cut, 'm', sizeof text - cut);
            encode_marked(small[r], text, marks, &ids);
            expect_list(&ids, plain.ids, plain.n);
            token_list_free(&ids);
        }
        token_list_free(&plain);
    }
}

static void appends_and_leaves_nothing_behind_a_failure(void **state)
{
    token_list ids = {0};
    err e;
    (void)state;
    ASSERT_OK(tokenizer_encode(small[0], "ab", 2, false, &ids, &e));
    size_t n = ids.n;
    ASSERT_OK(tokenizer_encode(small[0], "", 0, false, &ids, &e));
    ASSERT_OK(tokenizer_encode(small[0], NULL, 0, true, &ids, &e));
    assert_int_equal(ids.n, n);
    ASSERT_OK(tokenizer_encode(small[0], "ab", 2, false, &ids, &e));
    assert_int_equal(ids.n, 2 * n);
    token_list_free(&ids);
}

/* ---- ill-formed UTF-8: the maximal subpart becomes one U+FFFD, as everywhere in the Unicode standard ---- */

static void repairs_ill_formed_text(void **state)
{
    static const struct {
        const char *bytes, *repaired;
    } cases[] = {
            {"\xff", "\xef\xbf\xbd"},
            {"a\xe2\x82z", "a\xef\xbf\xbdz"},
            {"\xf0\x9f\x98", "\xef\xbf\xbd"},
            {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
            {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
            {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
            {"\xe2\x28\xa1", "\xef\xbf\xbd(\xef\xbf\xbd"},
            {"\xf1\x80\x80\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        token_list ids = {0}, marked = {0};
        err e;
        const char *bytes = cases[i].bytes;
        ASSERT_OK(tokenizer_encode(small[3], bytes, strlen(bytes), false, &ids, &e));
        expect_bytes(small[3], &ids, cases[i].repaired, strlen(cases[i].repaired));
        encode_marked(small[3], bytes, "mmmmmmmm", &marked);
        expect_list(&marked, ids.ids, ids.n);
        token_list_free(&ids);
        token_list_free(&marked);
    }
}

/* ---- vocabularies that lack something ---- */

static gguf_string string_of(const char *text)
{
    return (gguf_string){.data = text, .bytes = strlen(text)};
}

/* a, b, c, "ab", "abc", a control token spelled "bc", and merges that make them. */
static void build_tiny(const char *last_merge, tokenizer **out, status expected)
{
    const gguf_string tokens[] = {string_of("a"), string_of("b"), string_of("c"), string_of("ab"),
            string_of("abc"), string_of("bc"), string_of("\xc4\xa0"), string_of("not \xe2\x82\xac spelled")};
    const int32_t types[] = {1, 1, 1, 1, 1, 3, 1, 1};
    const gguf_string merges[] = {string_of("b c"), string_of("a b"), string_of(last_merge)};
    tokenizer_source s = {.name = "tiny",
            .rule = PRETOKENIZER_GPT2,
            .tokens = tokens,
            .n_tokens = 8,
            .types = types,
            .merges = merges,
            .n_merges = 3,
            .bos = -1,
            .eos = 5,
            .eot = -1,
            .eom = -1,
            .adds_bos = true};
    err e;
    assert_int_equal(tokenizer_build(&s, out, &e), expected);
    s.eos = 8;
    tokenizer *none = NULL;
    assert_true(tokenizer_build(&s, &none, &e) == ST_ERR_FORMAT && none == NULL);
}

static void merges_never_make_a_special_token(void **state)
{
    tokenizer *t = NULL;
    token_list ids = {0};
    err e;
    (void)state;
    build_tiny("ab c", &t, ST_OK);
    ASSERT_OK(tokenizer_encode(t, "bc abcb", 7, false, &ids, &e));
    expect_list(&ids, (const int32_t[]){1, 2, 6, 4, 1}, 5);
    assert_int_equal(t->bytes_missing, 252);
    assert_false(tokenizer_adds_bos(t)); /* there is none */
    assert_true(tokenizer_is_end(t, 5));
    assert_int_equal(tokenizer_encode(t, "ab\nc", 4, false, &ids, &e), ST_ERR_UNENCODABLE);
    assert_string_equal(e.text, "U+000A at character 2 cannot be encoded by this model");
    assert_int_equal(tokenizer_encode(t, "\xf0\x9f\x98\x80", 4, false, &ids, &e), ST_ERR_UNENCODABLE);
    assert_string_equal(e.text, "U+1F600 at character 0 cannot be encoded by this model");
    assert_int_equal(tokenizer_check(t, "ab d", 4, &e), ST_ERR_UNENCODABLE);
    assert_string_equal(e.text, "U+0064 at character 3 cannot be encoded by this model");
    assert_int_equal(tokenizer_check(t, "ab c", 4, &e), ST_OK);
    assert_int_equal(tokenizer_check(t, "\xff", 1, &e), ST_ERR_UNENCODABLE);
    assert_int_equal(tokenizer_encode(t, "abbc\n", 5, true, &ids, &e),
            ST_ERR_UNENCODABLE); /* behind a special token */
    assert_int_equal(ids.n, 5);
    token_list_free(&ids);
    tokenizer_close(t);
}

/* In a rendered prompt the place counts from the start of the message's own text. */
static void counts_characters_of_the_message(void **state)
{
    tokenizer *t = NULL;
    token_list ids = {0};
    marked_text m;
    err e;
    (void)state;
    build_tiny("ab c", &t, ST_OK);
    marked_text_init(&m);
    assert_int_equal(marked_text_add(&m, "aaa", 3, true), ST_OK);
    assert_int_equal(marked_text_add(&m, "b\xc3\xa9", 3, false), ST_OK);
    assert_int_equal(tokenizer_encode_marked(t, &m, &ids, &e), ST_ERR_UNENCODABLE);
    assert_string_equal(e.text, "U+00E9 at character 1 cannot be encoded by this model");
    marked_text_free(&m);
    token_list_free(&ids);
    tokenizer_close(t);
}

static void refuses_merges_of_unknown_tokens(void **state)
{
    static const char *const bad[] = {"c a", "abc", "", " ", "a ", "z a", "\xe2\x82\xac a", "a b c"};
    tokenizer *t = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        build_tiny(bad[i], &t, ST_ERR_FORMAT);
        assert_null(t);
    }
}

/* ---- files ---- */

/* Opens the small file with one text in it replaced by another of the same length. */
static status open_changed(const char *from, const char *to, tokenizer **t, err *e)
{
    base_map map;
    gguf *g = NULL;
    size_t n = strlen(from);
    assert_int_equal(n, strlen(to));
    assert_int_equal(base_map_open(path_of("smollm"), &map, e), ST_OK);
    uint8_t *copy = base_alloc(map.size);
    assert_non_null(copy);
    memcpy(copy, map.data, map.size);
    bool found = false;
    for (size_t i = 0; i + n <= map.size && !found; i++) {
        if (memcmp(copy + i, from, n) == 0) {
            memcpy(copy + i, to, n);
            found = true;
        }
    }
    assert_true(found);
    assert_int_equal(gguf_open_memory(copy, map.size, "small", &g, e), ST_OK);
    status s = tokenizer_open(g, t, e);
    gguf_close(g);
    base_free(copy);
    base_map_close(&map);
    return s;
}

static void names_what_it_does_not_support(void **state)
{
    tokenizer *t = NULL;
    err e;
    (void)state;
    assert_int_equal(open_changed("smollm", "tekken", &t, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "'tekken'"));
    assert_int_equal(open_changed("gpt2", "bert", &t, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "'bert'"));
    assert_int_equal(
            open_changed("tokenizer.ggml.tokens", "tokenizer.ggml.takens", &t, &e), ST_ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "tokenizer.ggml.tokens"));
    assert_int_equal(
            open_changed("tokenizer.ggml.merges", "tokenizer.ggml.marges", &t, &e), ST_ERR_NOT_FOUND);
    assert_null(t);
}

static void does_without_optional_keys(void **state)
{
    static const char *const keys[][2] = {{"tokenizer.ggml.pre", "tokenizer.ggml.prx"},
            {"tokenizer.ggml.token_type", "tokenizer.ggml.token_typx"},
            {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.bos_token_ix"},
            {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eos_token_ix"}};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        tokenizer *t = NULL;
        err e;
        ASSERT_OK(open_changed(keys[i][0], keys[i][1], &t, &e));
        assert_int_equal(t->rule, i == 0 ? PRETOKENIZER_GPT2 : PRETOKENIZER_SMOLLM);
        assert_int_equal(tokenizer_bos(t), i == 2 ? -1 : 1);
        assert_int_equal(tokenizer_eos(t), i == 3 ? -1 : 2);
        assert_int_equal(tokenizer_is_special(t, 0), i != 1);
        tokenizer_close(t);
    }
}

static void fingerprints_tell_tokenizers_apart(void **state)
{
    tokenizer *t = open_tokenizer(path_of("smollm"));
    err e;
    (void)state;
    assert_true(tokenizer_fingerprint(t) == tokenizer_fingerprint(small[0]));
    tokenizer_close(t);
    for (int i = 0; i < RULES; i++) {
        for (int j = 0; j < i; j++) {
            assert_true(tokenizer_fingerprint(small[i]) != tokenizer_fingerprint(small[j]));
        }
    }
    ASSERT_OK(open_changed("<think>", "<thank>", &t, &e));
    assert_true(tokenizer_fingerprint(t) != tokenizer_fingerprint(small[0]));
    tokenizer_close(t);
}

static void answers_for_ids_outside_the_vocabulary(void **state)
{
    static const int32_t outside[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
    (void)state;
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        const char *bytes = NULL;
        size_t n = 1;
        tokenizer_piece(small[0], outside[i], &bytes, &n);
        assert_true(n == 0 && bytes != NULL);
        assert_false(tokenizer_is_special(small[0], outside[i]));
        assert_false(tokenizer_is_end(small[0], outside[i]));
    }
}

/* Every allocation of opening and encoding fails once. */
static void survives_failing_memory(void **state)
{
    bool done = false;
    (void)state;
    for (long n = 0; !done; n++) {
        gguf *g = NULL;
        tokenizer *t = NULL;
        token_list ids = {0};
        err e;
        assert_true(n < 1000);
        base_fail_allocation(n);
        status s = gguf_open(path_of("qwen2"), &g, &e);
        s = s == ST_OK ? tokenizer_open(g, &t, &e) : s;
        s = s == ST_OK ? tokenizer_encode(t, "the theing\xff and", 15, true, &ids, &e) : s;
        base_fail_allocation(-1);
        assert_true(s == ST_OK || s == ST_ERR_MEMORY);
        assert_true(s == ST_OK || (ids.n == 0 && e.text[0] != '\0'));
        done = s == ST_OK;
        token_list_free(&ids);
        tokenizer_close(t);
        gguf_close(g);
    }
}

static void refuses_texts_over_the_limit(void **state)
{
    token_list ids = {0};
    marked_text m;
    err e;
    static const char chunk[1 << 16];
    (void)state;
    assert_int_equal(
            tokenizer_encode(small[0], chunk, (size_t)65 << 20, false, &ids, &e), ST_ERR_LIMIT); /* unread */
    marked_text_init(&m);
    status s = ST_OK;
    for (int i = 0; i < 1024 && s == ST_OK; i++) {
        s = marked_text_add(&m, chunk, sizeof chunk, true);
    }
    assert_int_equal(s, ST_OK);
    assert_int_equal(marked_text_add(&m, "x", 1, true), ST_ERR_LIMIT);
    assert_int_equal(m.text.size, m.is_template.size);
    marked_text_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(encodes_as_the_reference),
            cmocka_unit_test(takes_special_tokens_from_template_bytes_only),
            cmocka_unit_test(takes_the_longest_special_token),
            cmocka_unit_test(joins_template_and_message_into_one_run),
            cmocka_unit_test(appends_and_leaves_nothing_behind_a_failure),
            cmocka_unit_test(repairs_ill_formed_text),
            cmocka_unit_test(merges_never_make_a_special_token),
            cmocka_unit_test(counts_characters_of_the_message),
            cmocka_unit_test(refuses_merges_of_unknown_tokens),
            cmocka_unit_test(names_what_it_does_not_support),
            cmocka_unit_test(does_without_optional_keys),
            cmocka_unit_test(fingerprints_tell_tokenizers_apart),
            cmocka_unit_test(answers_for_ids_outside_the_vocabulary),
            cmocka_unit_test(survives_failing_memory),
            cmocka_unit_test(refuses_texts_over_the_limit),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, open_all, close_all);
}
