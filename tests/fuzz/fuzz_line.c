/*
 * A connection's bytes: framing, JSON, requests, and the history importer. The first byte says how the rest is cut into
 * reads; a line must come out the same however it was cut.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "api/frame_internal.h"
#include "api/history_internal.h"
#include "api/parse_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LINE_BYTES_MAX = 512 };

typedef struct digest {
    uint64_t hash;
    int lines;
} digest;

static void mix(digest *d, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        d->hash = (d->hash ^ at[i]) * 0x100000001b3u;
    }
    d->hash = (d->hash ^ 0x100u) * 0x100000001b3u;
}

static bool on_line(void *user, frame_event event, const uint8_t *line, size_t bytes)
{
    digest *d = user;
    parse_line p;
    parse_fault f;
    d->lines++;
    if (event == FRAME_TOO_LONG) {
        mix(d, "too long", 8);
        return true;
    }
    REQUIRE(bytes > 0 && bytes <= LINE_BYTES_MAX && memchr(line, '\n', bytes) == NULL);
    status st = parse_request(line, bytes, &p, &f);
    if (st == ST_OK) {
        REQUIRE(p.id_json != NULL && (p.kind == PARSE_ENGINE) == (p.request != NULL));
    } else {
        REQUIRE(f.code[0] != '\0' && f.at.message[0] != '\0' && p.request == NULL);
        mix(d, f.at.message, strlen(f.at.message));
    }
    parse_line_deinit(&p);
    mix(d, line, bytes);
    return true;
}

static digest digest_in_pieces(const uint8_t *data, size_t size, size_t piece)
{
    frame f;
    digest d = {.hash = 0xcbf29ce484222325u};
    frame_init(&f, LINE_BYTES_MAX);
    for (size_t at = 0; at < size; at += piece) {
        REQUIRE(frame_feed(&f, data + at, size - at < piece ? size - at : piece, on_line, &d) == ST_OK);
    }
    frame_finish(&f, on_line, &d);
    frame_deinit(&f);
    return d;
}

static void ignore_fault(void *user, long line, const char *what)
{
    (void)user;
    REQUIRE(line >= 0 && what[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    digest whole = digest_in_pieces(data + 1, size - 1, size);
    digest cut = digest_in_pieces(data + 1, size - 1, (size_t)data[0] % 16 + 1);
    REQUIRE(whole.hash == cut.hash && whole.lines == cut.lines);
    cJSON *messages = NULL;
    err e;
    if (history_read(data + 1, size - 1, ignore_fault, NULL, &messages, &e) == ST_OK) {
        cJSON_Delete(messages);
    }
    return 0;
}
