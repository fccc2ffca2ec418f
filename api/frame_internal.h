/*
 * Framing: bytes as the network cuts them -> lines. Split at 0x0A first (it never occurs inside a UTF-8 sequence);
 * decoding comes later, on whole lines. A CR before it is dropped, empty lines are skipped. A line over the limit is
 * reported once and skipped to its end without being kept. Pure: no socket, no clock.
 */
#ifndef EPIMEM_API_FRAME_INTERNAL_H
#define EPIMEM_API_FRAME_INTERNAL_H

#include "kernels/base.h"

typedef struct frame {
    base_buf held; /* the beginning of a line whose end has not come yet; its max is the limit of a line */
    bool skipping; /* over the limit: until the next newline */
} frame;

typedef enum frame_event { FRAME_LINE, FRAME_TOO_LONG } frame_event;
/* line is valid during the call only; NULL for FRAME_TOO_LONG. False ends the feeding: the rest is dropped. */
typedef bool (*frame_on_line)(void *user, frame_event event, const uint8_t *line, size_t bytes);

void frame_init(frame *f, size_t line_bytes_max);
void frame_deinit(frame *f);
/* Reports each line that these bytes complete. ST_ERR_MEMORY leaves the frame fit for frame_deinit only. */
status frame_feed(frame *f, const uint8_t *data, size_t bytes, frame_on_line on_line, void *user);
/* Gives up the line that has begun: what is held is freed, its rest will be skipped. */
void frame_skip(frame *f);
/* The stream has ended: what is held is reported as a line. */
void frame_finish(frame *f, frame_on_line on_line, void *user);

#endif
