/* Lines out of bytes, however they are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "api/frame_internal.h"

enum { LIMIT = 10, LINES_MAX = 64 };

typedef struct seen {
    char lines[LINES_MAX][LIMIT + 2]; /* "!" for one that is too long */
    int n;
    int stop_after;
} seen;

static bool on_line(void *user, frame_event event, const uint8_t *line, size_t bytes)
{
    seen *s = user;
    assert_true(s->n < LINES_MAX);
    if (event == FRAME_TOO_LONG) {
        memcpy(s->lines[s->n++], "!", sizeof "!");
    } else {
        assert_true(bytes > 0 && bytes <= LIMIT);
        memcpy(s->lines[s->n], line, bytes);
        s->lines[s->n++][bytes] = '\0';
    }
    return s->stop_after == 0 || s->n < s->stop_after;
}

static const char source[] = "one\ntwo\r\n\n\r\n0123456789\n0123456789\r\n01234567890\n0123456789ab\r\nlong "
                             "long long long\nend\r\n\xc3\xa9\n\rx\nlast";
static const char *const lines[] = {
        "one", "two", "0123456789", "0123456789", "!", "!", "!", "end", "\xc3\xa9", "\rx", "last"};
enum { N_LINES = sizeof lines / sizeof lines[0] };

static void expect_all(const seen *s, const char *how, size_t where)
{
    if (s->n != N_LINES) {
        fail_msg("%s %zu: %d lines", how, where, s->n);
    }
    for (int i = 0; i < N_LINES; i++) {
        assert_string_equal(s->lines[i], lines[i]);
    }
}

static void feed(frame *f, const char *data, size_t bytes, seen *s)
{
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1);
    memcpy(exact, data, bytes);
    assert_int_equal(frame_feed(f, exact, bytes, on_line, s), ST_OK);
    free(exact);
}

static void cut_in_two_anywhere(void **state)
{
    (void)state;
    for (size_t cut = 0; cut < sizeof source; cut++) {
        frame f;
        seen s = {.n = 0};
        frame_init(&f, LIMIT);
        feed(&f, source, cut, &s);
        feed(&f, source + cut, sizeof source - 1 - cut, &s);
        frame_finish(&f, on_line, &s);
        frame_deinit(&f);
        expect_all(&s, "cut at", cut);
    }
}

static void cut_in_pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < sizeof source; piece++) {
        frame f;
        seen s = {.n = 0};
        frame_init(&f, LIMIT);
        for (size_t at = 0; at < sizeof source - 1; at += piece) {
            size_t left = sizeof source - 1 - at;
            feed(&f, source + at, left < piece ? left : piece, &s);
            assert_true(f.held.size <= LIMIT + 1);
        }
        frame_finish(&f, on_line, &s);
        frame_deinit(&f);
        expect_all(&s, "pieces of", piece);
    }
}

static void a_reader_can_stop(void **state)
{
    frame f;
    seen s = {.stop_after = 2};
    (void)state;
    frame_init(&f, LIMIT);
    feed(&f, "a\nb\nc\nd", 7, &s);
    assert_int_equal(s.n, 2);
    frame_deinit(&f);
}

static void a_given_up_line_is_skipped(void **state)
{
    frame f;
    seen s = {.n = 0};
    (void)state;
    frame_init(&f, LIMIT);
    feed(&f, "a\nbeg", 5, &s);
    frame_skip(&f);
    feed(&f, "inning\nb\n", 9, &s);
    assert_int_equal(s.n, 2);
    assert_string_equal(s.lines[1], "b");
    frame_deinit(&f);
}

/* A connection that once had a long line does not keep its memory. */
static void long_lines_are_given_back(void **state)
{
    frame f;
    seen s = {.n = 0};
    char *text = malloc(200000);
    (void)state;
    memset(text, 'x', 200000);
    frame_init(&f, 150000);
    assert_int_equal(frame_feed(&f, (uint8_t *)text, 140000, on_line, &s), ST_OK);
    assert_true(f.held.cap >= 140000);
    assert_int_equal(frame_feed(&f, (uint8_t *)text, 60000, on_line, &s), ST_OK);
    assert_int_equal(s.n, 1);
    assert_int_equal(f.held.cap, 0);
    frame_deinit(&f);
    free(text);
}

static void memory_runs_out_cleanly(void **state)
{
    frame f;
    seen s = {.n = 0};
    (void)state;
    frame_init(&f, LIMIT);
    base_fail_allocation(0);
    assert_int_equal(frame_feed(&f, (const uint8_t *)"abc", 3, on_line, &s), ST_ERR_MEMORY);
    base_fail_allocation(-1);
    frame_deinit(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(cut_in_two_anywhere),
            cmocka_unit_test(cut_in_pieces_of_any_size),
            cmocka_unit_test(a_reader_can_stop),
            cmocka_unit_test(a_given_up_line_is_skipped),
            cmocka_unit_test(long_lines_are_given_back),
            cmocka_unit_test(memory_runs_out_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
