/* WordPiece with a vocabulary of a dozen pieces: the rules one by one, damaged vocabularies, failing memory. */
#include "test_tokenizer_util.h"

/* ids:                       0      1      2      3      4       5    6    7      8    9    10    11 12 13 14 */
static const char vocab[] =
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##a\n##ble\nab\n##\xc3\xa9\n!\n\xe4\xbd\xa0\na\n##x\n#\n";

static wordpiece *open_small(void)
{
    wordpiece *w = NULL;
    err e;
    ASSERT_OK(wordpiece_build(vocab, sizeof vocab - 1, "small", &w, &e));
    return w;
}

static void expect(
        const wordpiece *w, const char *text, size_t bytes, int max_ids, const int32_t *ids, size_t n)
{
    token_list got = {0};
    err e;
    ASSERT_OK(wordpiece_encode(w, text, bytes, max_ids, &got, &e));
    bool same = got.n == n && memcmp(got.ids, ids, n * sizeof *ids) == 0;
    if (!same) {
        fail_msg("'%s' (%02x%02x%02x%02x): %zu ids, expected %zu", text, (uint8_t)text[0],
                bytes > 1 ? (uint8_t)text[1] : 0, bytes > 2 ? (uint8_t)text[2] : 0,
                bytes > 3 ? (uint8_t)text[3] : 0, got.n, n);
    }
    token_list_free(&got);
}

#define EXPECT(text, ...)                                                       \
    expect(w, text, sizeof text - 1, 256, (const int32_t[]){2, __VA_ARGS__, 3}, \
            sizeof((const int32_t[]){2, __VA_ARGS__, 3}) / sizeof(int32_t))

static void splits_words(void **state)
{
    wordpiece *w = open_small();
    (void)state;
    expect(w, "", 0, 256, (const int32_t[]){2, 3}, 2);
    expect(w, " \t\n ", 4, 256, (const int32_t[]){2, 3}, 2);
    EXPECT("unable", 5, 6, 7);
    EXPECT("UnAble", 5, 6, 7);
    EXPECT("un\tAB\r\nab", 5, 8, 8);
    EXPECT("un!ab", 5, 10, 8);
    EXPECT("ab!!", 8, 10, 10);
    EXPECT("able", 1);           /* "ab" and then nothing fits: the whole word is unknown */
    EXPECT("un zz ab", 5, 1, 8); /* and only that word */
    EXPECT("a\xc3\xa1", 12, 6);  /* the accent is taken off */
    EXPECT("a\xcc\x81"
           "a",
            12, 6);
    EXPECT("a\xe4\xbd\xa0"
           "a",
            12, 11, 12); /* ideographs stand alone */
    EXPECT("a\xc2\xad"
           "a",
            12, 6); /* a soft hyphen is no character */
    EXPECT("a\0"
           "a",
            12, 6);
    EXPECT("a\xff\xfe"
           "a",
            12, 6);
    EXPECT("a\xc2\xa0"
           "ab",
            12, 8);
    EXPECT("##a", 14, 14, 12); /* a # in the text is a word, not the mark of a piece */
    wordpiece_close(w);
}

/* Every code point between two digits, as the reference takes it: runs of equal kind from wordpiece_goldens.py. */
static void knows_every_character(void **state)
{
    static const char digits[] = "[CLS]\n[SEP]\n[UNK]\n1\n2\n##2\n";
    static const char *const kinds[] = {
            "dropped", "plain", "space", "apart"}; /* 1##2, [UNK], 1 2, 1 [UNK] 2 */
    static const int32_t ids[][5] = {{0, 3, 5, 1}, {0, 2, 1}, {0, 3, 4, 1}, {0, 3, 2, 4, 1}};
    static const size_t n_ids[] = {4, 3, 4, 5};
    wordpiece *w = NULL;
    err e;
    (void)state;
    ASSERT_OK(wordpiece_build(digits, sizeof digits - 1, "digits", &w, &e));
    cJSON *runs = read_json(DATA "tokenizer/wordpiece_kinds.json");
    uint32_t c = 0x80;
    const cJSON *run;
    cJSON_ArrayForEach (run, runs) {
        size_t kind = 0;
        while (strcmp(kinds[kind], text_member(run, "kind")) != 0) {
            assert_true(++kind < 4);
        }
        for (uint32_t end = c + (uint32_t)member(run, "n")->valueint; c < end; c++) {
            char text[8] = "1"; /* digits: nothing decomposes into them */
            size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
            for (size_t i = n; i-- > 1;) {
                text[1 + i] = (char)(0x80 | (c >> 6 * (n - 1 - i) & 0x3f));
            }
            text[1] = (char)((0xf00u >> n & 0xf0) | c >> 6 * (n - 1));
            text[1 + n] = '2';
            if (c < 0xd800 || c > 0xdfff) {
                expect(w, text, n + 2, 16, ids[kind], n_ids[kind]);
            }
        }
    }
    assert_int_equal(c, 0x110000);
    cJSON_Delete(runs);
    wordpiece_close(w);
}

static void takes_special_tokens_as_written(void **state)
{
    wordpiece *w = open_small();
    (void)state;
    EXPECT("ab[SEP]ab", 8, 3, 8);
    EXPECT("[MASK][PAD]", 4, 0);
    EXPECT("un[CLS]", 5, 2);
    EXPECT("[UNK]", 1);
    EXPECT("[sep]", 1, 1, 1);
    EXPECT("[SEP", 1, 1);
    wordpiece_close(w);
}

static void cuts_at_the_maximum(void **state)
{
    wordpiece *w = open_small();
    token_list got = {0};
    err e;
    (void)state;
    expect(w, "unable ab", 9, 2, (const int32_t[]){2, 3}, 2);
    expect(w, "unable ab", 9, 3, (const int32_t[]){2, 5, 3}, 3);
    expect(w, "unable ab", 9, 6, (const int32_t[]){2, 5, 6, 7, 8, 3}, 6);
    expect(w, "un[MASK]", 8, 3, (const int32_t[]){2, 5, 3}, 3);
    expect(w, "[SEP][SEP]", 10, 3, (const int32_t[]){2, 3, 3}, 3);
    assert_int_equal(wordpiece_encode(w, "ab", 2, 1, &got, &e), ST_ERR_ARG);
    assert_int_equal(got.n, 0);
    ASSERT_OK(wordpiece_encode(w, "ab", 2, 8, &got, &e)); /* appends */
    ASSERT_OK(wordpiece_encode(w, "un", 2, 8, &got, &e));
    assert_int_equal(got.n, 6);
    assert_int_equal(got.ids[4], 5);
    token_list_free(&got);
    wordpiece_close(w);
}

static void knows_words_of_a_hundred_characters(void **state)
{
    wordpiece *w = open_small();
    char text[3 * 101];
    token_list got = {0};
    err e;
    (void)state;
    for (size_t i = 0; i < 101; i++) {
        memcpy(text + 2 * i, "\xc3\xa1", 2); /* two bytes, one character after the accent is gone */
    }
    ASSERT_OK(wordpiece_encode(w, text, 2 * 100, 256, &got, &e));
    assert_int_equal(got.n, 102);
    assert_int_equal(got.ids[100], 6);
    got.n = 0;
    ASSERT_OK(wordpiece_encode(w, text, 2 * 101, 256, &got, &e));
    assert_int_equal(got.n, 3);
    assert_int_equal(got.ids[1], 1);
    token_list_free(&got);
    wordpiece_close(w);
}

static void refuses_other_files(void **state)
{
    static const char *const bad[] = {
            "", "\n", "a\nb\n", "[CLS]\n[SEP]\n", "[CLS][SEP][UNK]", "[CLS]\r\n[SEP]\r\n[UNK]\r\n"};
    wordpiece *w = NULL;
    err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(wordpiece_build(bad[i], strlen(bad[i]), "bad.txt", &w, &e), ST_ERR_FORMAT);
        assert_non_null(strstr(e.text, "bad.txt"));
        assert_null(w);
    }
    assert_int_equal(wordpiece_open(DATA "tokenizer/no such file", &w, &e), ST_ERR_NOT_FOUND);
    ASSERT_OK(wordpiece_build("[CLS]\n[SEP]\n[UNK]", 17, "short", &w, &e)); /* the last line need not end */
    wordpiece_close(w);
    wordpiece_close(NULL);
}

static void survives_failing_memory(void **state)
{
    bool done = false;
    (void)state;
    for (long n = 0; !done; n++) {
        wordpiece *w = NULL;
        token_list got = {0};
        err e;
        assert_true(n < 100);
        base_fail_allocation(n);
        status s = wordpiece_build(vocab, sizeof vocab - 1, "small", &w, &e);
        s = s == ST_OK ? wordpiece_encode(w, "unable [SEP] ab", 15, 256, &got, &e) : s;
        base_fail_allocation(-1);
        assert_true(s == ST_OK || (s == ST_ERR_MEMORY && got.n == 0));
        done = s == ST_OK;
        token_list_free(&got);
        wordpiece_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(splits_words),
            cmocka_unit_test(knows_every_character),
            cmocka_unit_test(takes_special_tokens_as_written),
            cmocka_unit_test(cuts_at_the_maximum),
            cmocka_unit_test(knows_words_of_a_hundred_characters),
            cmocka_unit_test(refuses_other_files),
            cmocka_unit_test(survives_failing_memory),
    };
    return cmocka_run_group_tests_name("wordpiece", tests, NULL, NULL);
}
