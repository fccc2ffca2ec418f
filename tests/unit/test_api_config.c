/* Flags, their twins in the environment, sizes and suggestions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "api/config_internal.h"

typedef struct settings {
    const char *model, *word;
    int64_t tokens;
    uint64_t cap;
    float floor;
    bool json;
} settings;

static status read_flags(settings *s, int argc, const char *const *argv, err *e)
{
    const flag flags[] = {{"--model", "-m", "FILE", FLAG_TEXT, &s->model, ""},
            {"--recall-tokens", NULL, "N", FLAG_INTEGER, &s->tokens, ""},
            {"--store-cap", NULL, "SIZE", FLAG_SIZE, &s->cap, ""},
            {"--floor", NULL, "X", FLAG_REAL, &s->floor, ""},
            {"--json", NULL, NULL, FLAG_SWITCH, &s->json, ""}};
    program p = {.name = "test",
            .usage = "",
            .about = "",
            .flags = flags,
            .n_flags = 5,
            .words = &s->word,
            .words_max = 1};
    return config_read(&p, argc, (char **)(uintptr_t)argv, e);
}

static void flags_are_read(void **state)
{
    const char *argv[] = {"test", "-m", "a.gguf", "--recall-tokens=512", "--store-cap", "20G", "--json",
            "word", "--floor", "-0.5"};
    settings s = {.model = NULL};
    (void)state;
    assert_int_equal(read_flags(&s, 10, argv, NULL), ST_OK);
    assert_string_equal(s.model, "a.gguf");
    assert_string_equal(s.word, "word");
    assert_int_equal(s.tokens, 512);
    assert_true(s.cap == 20ull << 30);
    assert_true(s.floor == -0.5f);
    assert_true(s.json);
}

static void the_environment_comes_first_and_loses(void **state)
{
    const char *argv[] = {"test", "--recall-tokens", "7"};
    settings s = {.model = NULL};
    err e;
    (void)state;
    setenv("EPIMEM_RECALL_TOKENS", "5", 1);
    setenv("EPIMEM_MODEL", "env.gguf", 1);
    setenv("EPIMEM_JSON", "on", 1);
    setenv("EPIMEM_FLOOR", "", 1);
    assert_int_equal(read_flags(&s, 1, argv, NULL), ST_OK);
    assert_int_equal(s.tokens, 5);
    assert_string_equal(s.model, "env.gguf");
    assert_true(s.json);
    assert_int_equal(read_flags(&s, 3, argv, NULL), ST_OK);
    assert_int_equal(s.tokens, 7);
    setenv("EPIMEM_RECALL_TOKENS", "many", 1);
    assert_int_equal(read_flags(&s, 1, argv, &e), ST_ERR_ARG);
    assert_string_equal(e.text, "EPIMEM_RECALL_TOKENS: \"many\" is no whole number");
    unsetenv("EPIMEM_RECALL_TOKENS");
    unsetenv("EPIMEM_MODEL");
    unsetenv("EPIMEM_JSON");
    unsetenv("EPIMEM_FLOOR");
}

static void faults_say_what(void **state)
{
    static const struct {
        const char *argv[4];
        const char *says;
    } cases[] = {
            {{"test", "--modle", "x", NULL}, "test: unknown option --modle; did you mean --model?"},
            {{"test", "--zzzzzzzzzz", NULL, NULL},
                    "test: unknown option --zzzzzzzzzz; see epimem test --help"},
            {{"test", "-m", NULL, NULL}, "test: --model needs FILE"},
            {{"test", "--recall-tokens", "5x", NULL}, "--recall-tokens: \"5x\" is no whole number"},
            {{"test", "--store-cap", "5Q", NULL}, "--store-cap: \"5Q\" is no size; 512M and 20G are"},
            {{"test", "--floor=nan", NULL, NULL}, "--floor: \"nan\" is no number"},
            {{"test", "--json=maybe", NULL, NULL}, "--json: \"maybe\" is neither on nor off"},
            {{"test", "a", "b", NULL}, "test: what is \"b\" for? see epimem test --help"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        settings s = {.model = NULL};
        err e = {.text = ""};
        int argc = 0;
        while (cases[i].argv[argc] != NULL) {
            argc++;
        }
        assert_int_equal(read_flags(&s, argc, cases[i].argv, &e), ST_ERR_ARG);
        assert_string_equal(e.text, cases[i].says);
    }
}

static void sizes(void **state)
{
    static const struct {
        const char *text;
        bool good;
        uint64_t bytes;
    } cases[] = {{"0", true, 0}, {"12", true, 12}, {"1K", true, 1024}, {"3m", true, 3 << 20},
            {"2GiB", true, 2ull << 30}, {"1T", true, 1ull << 40}, {"16777216T", false, 0},
            {"99999999999999999999", false, 0}, {"", false, 0}, {"-1", false, 0}, {"K", false, 0},
            {"1KK", false, 0}, {"1.5G", false, 0}, {" 1", false, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = 0;
        if (config_parse_size(cases[i].text, &bytes) != cases[i].good || bytes != cases[i].bytes) {
            fail_msg("%s: %llu", cases[i].text, (unsigned long long)bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(flags_are_read),
            cmocka_unit_test(the_environment_comes_first_and_loses),
            cmocka_unit_test(faults_say_what),
            cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
