/* Bytes to lines; the contract is in frame_internal.h. */
#include "api/frame_internal.h"

#include <string.h>

enum { KEPT_BYTES_MAX = 64 * 1024 }; /* an idle connection holds on to no more than this */

void frame_init(frame *f, size_t line_bytes_max)
{
    *f = (frame){.held = {.max = line_bytes_max + 1}}; /* one more: the CR that does not count */
}

void frame_deinit(frame *f)
{
    base_buf_free(&f->held);
}

static void drop_held(frame *f)
{
    size_t max = f->held.max;
    f->held.size = 0;
    if (f->held.cap > KEPT_BYTES_MAX) {
        base_buf_free(&f->held);
        f->held = (base_buf){.max = max};
    }
}

static bool report(const frame *f, const uint8_t *line, size_t bytes, frame_on_line on_line, void *user)
{
    if (bytes > 0 && line[bytes - 1] == '\r') {
        bytes--;
    }
    if (bytes == 0) {
        return true;
    }
    if (bytes > f->held.max - 1) {
        return on_line(user, FRAME_TOO_LONG, NULL, 0);
    }
    return on_line(user, FRAME_LINE, line, bytes);
}

/* Keeps the beginning of a line; over the limit it says so once and keeps nothing. */
static status hold(
        frame *f, const uint8_t *data, size_t bytes, bool *go_on, frame_on_line on_line, void *user)
{
    if (f->skipping) {
        return ST_OK;
    }
    if (bytes > f->held.max - f->held.size) {
        drop_held(f);
        f->skipping = true;
        *go_on = on_line(user, FRAME_TOO_LONG, NULL, 0);
        return ST_OK;
    }
    return base_buf_append(&f->held, data, bytes);
}

status frame_feed(frame *f, const uint8_t *data, size_t bytes, frame_on_line on_line, void *user)
{
    bool go_on = true;
    while (bytes > 0 && go_on) {
        const uint8_t *newline = memchr(data, '\n', bytes);
        size_t piece = newline != NULL ? (size_t)(newline - data) : bytes;
        bool whole = newline != NULL && f->held.size == 0 && !f->skipping;
        if (whole) {
            go_on = report(f, data, piece, on_line, user);
        } else {
            TRY(hold(f, data, piece, &go_on, on_line, user));
        }
        if (newline == NULL) {
            return ST_OK;
        }
        if (!whole && !f->skipping && go_on) {
            go_on = report(f, f->held.data, f->held.size, on_line, user);
        }
        f->skipping = false;
        drop_held(f);
        data += piece + 1;
        bytes -= piece + 1;
    }
    return ST_OK;
}

void frame_skip(frame *f)
{
    drop_held(f);
    f->skipping = true;
}

void frame_finish(frame *f, frame_on_line on_line, void *user)
{
    if (!f->skipping) {
        (void)report(f, f->held.data, f->held.size, on_line, user);
    }
    f->skipping = false;
    drop_held(f);
}
