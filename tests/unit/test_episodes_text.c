/* Words, stems, sentences and pieces. */
#include "test_episodes_util.h"
#include "tests/unit/text_append.h"

static uint64_t key_of(const char *word)
{
    size_t at = 0;
    ep_word w;
    assert_true(ep_word_next(word, strlen(word), &at, &w));
    return ep_word_key(&w);
}

static void folded_is(const char *text, const char *wanted)
{
    size_t at = 0;
    char all[256] = "";
    ep_word w;
    while (ep_word_next(text, strlen(text), &at, &w)) {
        text_append(all, sizeof all, "%.*s|", (int)w.folded_bytes, w.folded);
    }
    assert_string_equal(all, wanted);
}

static void words_are_folded_and_separated(void **state)
{
    (void)state;
    folded_is("Hello, WORLD! it's 8th.", "hello|world|it|s|8th|");
    folded_is("ÀÉÎõ÷ß ŁÓDŹ", "àéîõ|ß|łódź|");
    folded_is("ΑΒΣ ΌΣΟΣ Ώ ΈΉΊ Ά", "αβσ|όσοσ|ώ|έήί|ά|");
    folded_is("ПРИВЕТ Ёлка Ґ", "привет|ёлка|ґ|");
    folded_is("東京 tower", "東|京|tower|");
    folded_is("well…done—yes 🙂 \xe2\x80\x9cquote\xe2\x80\x9d", "well|done|yes|quote|");
    folded_is("", "");
}

static void ill_formed_bytes_separate_words(void **state)
{
    (void)state;
    folded_is("a\xff"
              "b\xc3",
            "a|b|");
    folded_is("ab\xed\xa0\x80"
              "cd",
            "ab|cd|");
}

static void endings_are_stripped(void **state)
{
    (void)state;
    assert_true(key_of("painted") == key_of("painting") && key_of("paints") == key_of("painting"));
    assert_true(key_of("running") == key_of("runs"));
    assert_true(key_of("hobby") == key_of("hobbi"));
    assert_true(key_of("camping") == key_of("Camp"));
    assert_true(key_of("bus") == key_of("BUS") && key_of("sing") != key_of("s1"));
    assert_true(key_of("cat") != key_of("dog"));
    assert_true(key_of("2023") != 0 && key_of("2023") != key_of("2024"));
    assert_true(key_of("straße") != 0);
}

static void function_words_yield_nothing(void **state)
{
    static const char *const words[] = {"a", "about", "The", "yourselves", "don", "WOULD", "x", "i", "with"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        assert_int_equal(key_of(words[i]), 0);
    }
    assert_true(key_of("aboute") != 0 && key_of("abou") != 0 && key_of("yourselvesx") != 0);
}

static void keys_are_counted(void **state)
{
    const char *text = "Dogs like dogs; cats like the dog, cats!";
    uint64_t keys[8];
    uint16_t counts[8];
    int total = 0;
    (void)state;
    assert_int_equal(ep_text_keys(text, strlen(text), keys, counts, 8, &total), 3);
    assert_int_equal(total, 7);
    assert_true(keys[0] == key_of("dog") && counts[0] == 3 && counts[1] == 2 && counts[2] == 2);
    assert_int_equal(ep_text_keys(text, strlen(text), keys, counts, 1, &total), 1);
    assert_int_equal(total, 7);
}

static void a_very_long_word_is_cut(void **state)
{
    char text[1000];
    size_t at = 0;
    ep_word w;
    (void)state;
    memset(text, 'z', sizeof text);
    assert_true(ep_word_next(text, sizeof text, &at, &w));
    assert_int_equal(at, sizeof text);
    assert_int_equal(w.bytes, sizeof text);
    assert_true(w.folded_bytes <= EP_WORD_BYTES_MAX && ep_word_key(&w) != 0);
}

/* Every word of a long text lies in a piece, and no piece is too long. */
static void pieces_cover(const char *text, size_t bytes, int wanted_least)
{
    size_t at = 0, covered = 0;
    int pieces = 0;
    ep_slice piece;
    while (ep_chunk_next(text, bytes, &at, &piece)) {
        assert_true(piece.at + piece.bytes <= bytes);
        assert_true(ep_text_words(text + piece.at, piece.bytes, 1000) <= EP_CHUNK_WORDS_MAX);
        assert_int_equal(ep_text_words(text + covered, piece.at > covered ? piece.at - covered : 0, 1), 0);
        covered = piece.at + piece.bytes > covered ? piece.at + piece.bytes : covered;
        pieces++;
        assert_true(pieces < 10000);
    }
    assert_int_equal(ep_text_words(text + covered, bytes - covered, 1), 0);
    assert_true(pieces >= wanted_least);
}

static void pieces_are_whole_sentences(void **state)
{
    const char *text = "One two. Three four! Five six? Seven eight.\nNine";
    size_t at = 0;
    ep_slice p;
    (void)state;
    assert_true(ep_chunk_next(text, strlen(text), &at, &p));
    assert_int_equal(p.at, 0);
    assert_memory_equal(text, "One two. Three four! Five six?", p.bytes);
    assert_true(ep_chunk_next(text, strlen(text), &at, &p));
    assert_memory_equal(text + p.at, "Five six? Seven eight.\nNine", p.bytes);
    assert_false(ep_chunk_next(text, strlen(text), &at, &p));
    assert_false(ep_chunk_next("...", 3, &(size_t){0}, &p));
}

static void long_text_is_covered(void **state)
{
    char text[40000] = "";
    (void)state;
    for (int i = 0; i < 400; i++) {
        text_append(text, sizeof text, "word%d%s", i, i % 13 == 12 ? ". " : " ");
    }
    pieces_cover(text, strlen(text), 10);
    text[0] = '\0';
    for (int i = 0; i < 1000; i++) {
        text_append(text, sizeof text, "word%d ", i);
    }
    pieces_cover(text, strlen(text), 11); /* one sentence of a thousand words */
    text[0] = '\0';
    for (int i = 0; i < 3000; i++) {
        text_append(text, sizeof text, "\xe6\x9d\xb1");
    }
    pieces_cover(text, strlen(text), 30); /* no spaces at all */
}

static void cut_at_character_border(void **state)
{
    (void)state;
    assert_int_equal(ep_text_cut("abc", 3, 80), 3);
    assert_int_equal(ep_text_cut("ab\xc3\xa9", 4, 3), 2);
    assert_int_equal(ep_text_cut("ab\xc3\xa9", 4, 4), 4);
    assert_int_equal(ep_text_cut("\xf0\x9f\x99\x82x", 5, 3), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_are_folded_and_separated),
            cmocka_unit_test(ill_formed_bytes_separate_words), cmocka_unit_test(endings_are_stripped),
            cmocka_unit_test(function_words_yield_nothing), cmocka_unit_test(keys_are_counted),
            cmocka_unit_test(a_very_long_word_is_cut), cmocka_unit_test(pieces_are_whole_sentences),
            cmocka_unit_test(long_text_is_covered), cmocka_unit_test(cut_at_character_border)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
