/* all-MiniLM-L6-v2's ids: the shared vectors, and the corners of tests/golden-tools/wordpiece_goldens.py. */
#include "test_tokenizer_util.h"

static wordpiece *pieces;

static int open_model(void **state)
{
    err e;
    (void)state;
    ASSERT_OK(wordpiece_open(ENCODER_FOLDER "/vocab.txt", &pieces, &e));
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    wordpiece_close(pieces);
    return 0;
}

static void check_line(void *ctx, const cJSON *line)
{
    token_list ids = {0};
    err e;
    (void)ctx;
    base_buf text = bytes_of(line);
    ASSERT_OK(wordpiece_encode(pieces, text.data, text.size, 256, &ids, &e));
    expect_ids(&ids, member(line, "ids"),
            text.size == 0 ? "" : (const char *)text_member(line, member(line, "b64") ? "b64" : "text"));
    token_list_free(&ids);
    base_buf_free(&text);
}

static void encodes_the_shared_vectors(void **state)
{
    (void)state;
    for_each_line(DATA "minilm/minilm.jsonl", 40, check_line, NULL);
}

static void encodes_the_corners(void **state)
{
    (void)state;
    for_each_line(DATA "tokenizer/wordpiece.jsonl", 120, check_line, NULL);
}

/* The ids of a shorter maximum are the longer ones' head. */
static void cuts_as_the_reference(void **state)
{
    static const char text[] =
            "The unbelievable caf\xc3\xa9, isn't it? [MASK] \xe4\xbd\xa0\xe5\xa5\xbd supercalifragilistic";
    token_list all = {0}, some = {0};
    err e;
    (void)state;
    ASSERT_OK(wordpiece_encode(pieces, text, sizeof text - 1, 256, &all, &e));
    for (int max = 2; max < (int)all.n; max++) {
        some.n = 0;
        ASSERT_OK(wordpiece_encode(pieces, text, sizeof text - 1, max, &some, &e));
        assert_int_equal(some.n, max);
        assert_memory_equal(some.ids, all.ids, (size_t)(max - 1) * sizeof *some.ids);
        assert_int_equal(some.ids[max - 1], 102);
    }
    token_list_free(&all);
    token_list_free(&some);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(encodes_the_shared_vectors),
            cmocka_unit_test(encodes_the_corners),
            cmocka_unit_test(cuts_as_the_reference),
    };
    return cmocka_run_group_tests_name("wordpiece_model", tests, open_model, close_model);
}
