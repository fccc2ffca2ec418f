/* WordPiece on arbitrary bytes: a vocabulary up to the first 0xFF, then the text. */
#include <string.h>

#include "agent/tokenizer_parts_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode(const wordpiece *w, const uint8_t *text, size_t bytes)
{
    token_list all = {0}, some = {0};
    REQUIRE(wordpiece_encode(w, text, bytes, 256, &all, NULL) == ST_OK);
    REQUIRE(all.n >= 2 && all.n <= 256);
    int max = (int)(bytes % 16) + 2;
    REQUIRE(wordpiece_encode(w, text, bytes, max, &some, NULL) == ST_OK);
    REQUIRE(some.n == (all.n < (size_t)max ? all.n : (size_t)max));
    REQUIRE(memcmp(some.ids, all.ids, (some.n - 1) * sizeof *some.ids) ==
            0); /* cut, but otherwise the same */
    token_list_free(&all);
    token_list_free(&some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char fallback[] =
            "[CLS]\n[SEP]\n[UNK]\na\n##a\nab\n##b\nthe\n##ing\n!\n\xc3\xa9\n\xe4\xbd\xa0\n[MASK]\n";
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0xff, size);
    size_t vocab = end == NULL ? 0 : (size_t)(end - data), skip = end == NULL ? 0 : vocab + 1;
    wordpiece *w = NULL;
    err e = {0};
    status s = wordpiece_build(data, vocab, "input", &w, &e);
    REQUIRE(s == ST_OK || (s == ST_ERR_FORMAT && w == NULL && e.text[0] != '\0'));
    if (s != ST_OK) {
        REQUIRE(wordpiece_build(fallback, sizeof fallback - 1, "fallback", &w, &e) == ST_OK);
    }
    encode(w, data + skip, size - skip);
    wordpiece_close(w);
    return 0;
}
