/* One client: reading lines, writing answers with back-pressure, and the four ways to end. */
#include <poll.h>
#include <string.h>

#include "api/reply_internal.h"
#include "api/server_internal.h"

/* Many connections that each hold a long unfinished line could take the memory together: above this share each, the
 * sum counts. */
enum { HELD_SHARE_BYTES = 1024 * 1024 };

static void count_held(conn *c, size_t bytes)
{
    c->server->held_bytes = c->server->held_bytes - c->held_bytes + bytes;
    c->held_bytes = bytes;
}

static void on_closed(uv_handle_t *handle)
{
    conn *c = handle->data;
    api_server *s = c->server;
    if (c->previous != NULL) {
        c->previous->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next != NULL) {
        c->next->previous = c->previous;
    }
    s->n_conns--;
    count_held(c, 0);
    frame_deinit(&c->in);
    base_free(c);
    server_close_if_done(s);
}

static void count_half_closed(conn *c, bool half_closed)
{
    api_server *s = c->server;
    if (c->counted_half_closed == half_closed) {
        return;
    }
    c->counted_half_closed = half_closed;
    s->n_half_closed += half_closed ? 1 : -1;
    if (s->n_half_closed == 0) {
        (void)uv_timer_stop(&s->hangups);
    } else {
        (void)uv_timer_again(&s->hangups);
    }
}

void conn_close(conn *c, const char *reason)
{
    if (c->closing) {
        return;
    }
    c->closing = true;
    if (reason != NULL) {
        LOG_W("client %llu closed: %s", (unsigned long long)c->number, reason);
    }
    count_half_closed(c, false);
    call_leave_all(c);
    uv_close((uv_handle_t *)&c->io.stream, on_closed);
}

void conn_close_if_done(conn *c)
{
    bool no_more = c->read_ended || c->server->stopping;
    if (no_more && c->calls == NULL && c->unsent_bytes == 0) {
        conn_close(c, NULL);
    }
}

/* A Unix-domain peer that is gone for good hangs up; one that has only ended its requests does not. Over TCP the two
 * look alike until something is written. */
void conn_check_hangup(conn *c)
{
    uv_os_fd_t fd;
    if (c->closing || uv_fileno((uv_handle_t *)&c->io.stream, &fd) != 0) {
        return;
    }
    struct pollfd p = {.fd = fd, .events = 0};
    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) {
        conn_close(c, NULL);
    }
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    conn *c = handle->data;
    (void)suggested;
    *buf = uv_buf_init((char *)c->server->read_buffer, READ_BYTES); /* used up before the next read */
}

static bool on_frame(void *user, frame_event event, const uint8_t *line, size_t bytes)
{
    conn *c = user;
    if (event == FRAME_TOO_LONG) {
        char text[96];
        (void)snprintf(text, sizeof text, "the line is longer than %zu bytes", c->server->line_bytes_max);
        conn_send_error(c, NULL, "line_too_long", text, NULL, 0);
    } else {
        server_on_line(c, line, bytes);
    }
    return !c->closing;
}

static void on_bytes(conn *c, const uint8_t *data, size_t bytes)
{
    api_server *s = c->server;
    if (frame_feed(&c->in, data, bytes, on_frame, c) != ST_OK) {
        conn_close(c, "out of memory while reading a line");
        return;
    }
    count_held(c, c->in.held.cap);
    if (s->held_bytes > HELD_BYTES_MAX && c->held_bytes > HELD_SHARE_BYTES) {
        frame_skip(&c->in);
        count_held(c, c->in.held.cap);
        conn_send_error(c, NULL, "busy", "too many long lines are under way at once", NULL, RETRY_MS_MIN);
    }
}

static void on_end(conn *c)
{
    c->read_ended = true;
    (void)uv_read_stop(&c->io.stream);
    frame_finish(&c->in, on_frame, c);
    if (c->closing) {
        return;
    }
    count_half_closed(c, true);
    conn_check_hangup(c);
    conn_close_if_done(c);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    conn *c = stream->data;
    if (n > 0) {
        on_bytes(c, (const uint8_t *)buf->base, (size_t)n);
    } else if (n == UV_EOF) {
        on_end(c);
    } else if (n < 0) {
        conn_close(c, NULL);
    }
}

/* ---- writing ---- */

typedef struct outgoing {
    uv_write_t request;
    conn *to;
    base_buf line;
} outgoing;

static void set_paused(conn *c, bool paused)
{
    if (c->paused == paused || c->read_ended || c->closing) {
        return;
    }
    c->paused = paused;
    if (paused) {
        (void)uv_read_stop(&c->io.stream);
    } else if (uv_read_start(&c->io.stream, on_alloc, on_read) != 0) {
        conn_close(c, "cannot read on");
    }
}

static void on_written(uv_write_t *request, int st)
{
    outgoing *o = request->data;
    conn *c = o->to;
    c->unsent_bytes -= o->line.size;
    base_buf_free(&o->line);
    base_free(o);
    if (st < 0) {
        conn_close(c, NULL); /* gone */
        return;
    }
    if (c->unsent_bytes <= PAUSE_BYTES / 2) {
        set_paused(c, false);
    }
    conn_close_if_done(c);
}

void conn_send(conn *c, base_buf *line)
{
    if (c->closing) {
        base_buf_free(line);
        return;
    }
    if (c->unsent_bytes > UNSENT_BYTES_MAX) { /* one answer of any size is always let in */
        base_buf_free(line);
        conn_close(c, "it does not read its answers");
        return;
    }
    outgoing *o = base_zalloc(1, sizeof *o);
    if (o == NULL) {
        base_buf_free(line);
        conn_close(c, "out of memory while answering");
        return;
    }
    o->to = c;
    o->line = *line;
    o->request.data = o;
    *line = (base_buf){.max = 0};
    uv_buf_t buf = uv_buf_init((char *)o->line.data, (unsigned)o->line.size);
    c->unsent_bytes += o->line.size;
    if (uv_write(&o->request, &c->io.stream, &buf, 1, on_written) != 0) {
        c->unsent_bytes -= o->line.size;
        base_buf_free(&o->line);
        base_free(o);
        conn_close(c, NULL);
        return;
    }
    if (c->unsent_bytes > PAUSE_BYTES) {
        set_paused(c, true);
    }
}

void conn_send_error(conn *c,
        const char *id_json,
        const char *code,
        const char *message,
        const char *param,
        int retry_after_ms)
{
    base_buf line = {.max = 64 * 1024};
    if (reply_error(&line, id_json, code, message, param, retry_after_ms) != ST_OK) {
        base_buf_free(&line);
        conn_close(c, "out of memory while answering");
        return;
    }
    conn_send(c, &line);
}

/* ---- the beginning ---- */

static int open_stream(conn *c, listener *l)
{
    uv_loop_t *loop = &c->server->loop;
    int rc = l->is_pipe ? uv_pipe_init(loop, &c->io.pipe, 0) : uv_tcp_init(loop, &c->io.tcp);
    if (rc == 0) {
        c->io.stream.data = c;
    }
    return rc;
}

void conn_accept(api_server *s, listener *l)
{
    conn *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        LOG_W("a client was not let in: out of memory");
        return;
    }
    c->server = s;
    c->number = ++s->n_accepted;
    frame_init(&c->in, s->line_bytes_max);
    if (open_stream(c, l) != 0) {
        base_free(c);
        return;
    }
    c->next = s->conns;
    if (c->next != NULL) {
        c->next->previous = c;
    }
    s->conns = c;
    s->n_conns++;
    if (uv_accept(&l->io.stream, &c->io.stream) != 0) {
        conn_close(c, "it could not be accepted");
        return;
    }
    if (!l->is_pipe) {
        (void)uv_tcp_nodelay(&c->io.tcp, 1);
        (void)uv_tcp_keepalive(&c->io.tcp, 1, 60);
    }
    if (s->n_conns > s->connections_max) {
        c->read_ended = true; /* closed once the error is sent */
        conn_send_error(c, NULL, "busy", "too many connections", NULL, RETRY_MS_MAX);
        LOG_W("client %llu refused: %d connections are the most", (unsigned long long)c->number,
                s->connections_max);
        return;
    }
    if (uv_read_start(&c->io.stream, on_alloc, on_read) != 0) {
        conn_close(c, "it cannot be read from");
    }
}
