/* Words, pieces and times of arbitrary bytes: everything stays inside the text, moves on, and covers it. */
#include "episodes/dates_internal.h"
#include "episodes/text_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_words(const char *text, size_t size)
{
    size_t at = 0, before = 0;
    ep_word w;
    while (ep_word_next(text, size, &at, &w)) {
        REQUIRE(at > before && w.at >= before && w.at + w.bytes == at && at <= size);
        REQUIRE(w.folded_bytes <= EP_WORD_BYTES_MAX && base_utf8_valid(w.folded, w.folded_bytes));
        (void)ep_word_key(&w);
        before = at;
    }
}

static void read_pieces(const char *text, size_t size)
{
    size_t at = 0, before = 0, covered = 0;
    ep_slice p;
    while (ep_chunk_next(text, size, &at, &p)) {
        REQUIRE(at > before && at <= size && p.at + p.bytes <= size);
        REQUIRE(p.at <= covered || ep_text_words(text + covered, p.at - covered, 1) == 0);
        covered = p.at + p.bytes > covered ? p.at + p.bytes : covered;
        before = at;
    }
    REQUIRE(ep_text_words(text + covered, size - covered, 1) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    uint64_t keys[16];
    uint16_t counts[16];
    int total = 0;
    ep_time_span spans[EP_TIME_SPANS_MAX];
    ep_time_frame frame = {.has_now = size % 2 == 0,
            .now_us = (int64_t)1686700800 * 1000000,
            .log_from_us = (int64_t)1577836800 * 1000000,
            .log_to_us = (int64_t)1686700800 * 1000000};
    read_words(text, size);
    read_pieces(text, size);
    int n = ep_text_keys(text, size, keys, counts, 16, &total);
    REQUIRE(n <= 16 && total >= n);
    n = ep_time_spans(text, size, &frame, spans);
    REQUIRE(n >= 0 && n <= EP_TIME_SPANS_MAX);
    for (int i = 0; i < n; i++) {
        REQUIRE(spans[i].from_us < spans[i].to_us && spans[i].full_us < spans[i].zero_us);
    }
    REQUIRE(ep_text_cut(text, size, 80) <= 80);
    return 0;
}
