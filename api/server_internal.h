/*
 * Inside of the server. Threads: everything runs on the loop thread, but for call_on_event, which the engine thread
 * enters, and the mailbox, which both touch under its lock.
 *
 *   CALL: one request in flight. Made on the loop thread when its line is read, given to the engine as `user`, freed on
 *   the loop thread after its last event. It outlives its connection: a connection that ends leaves its calls (conn =
 *   NULL) and cancels them; their events are then dropped one by one until the last.
 *
 *   CONN: one client. Closed when its answers are through and it has sent FIN, when it is gone, when it does not read,
 *   or when the server stops. Freed in libuv's close callback.
 *
 *   MAILBOX: events from the engine thread, as finished lines, in order. Bounded: a call whose undelivered bytes pass
 *   CALL_QUEUED_BYTES_MAX loses its connection; progress is merged (at most one per call waits). The last event of a
 *   call always fits: its node is part of the call.
 */
#ifndef EPIMEM_API_SERVER_INTERNAL_H
#define EPIMEM_API_SERVER_INTERNAL_H

#include <stdatomic.h>
#include <uv.h>

#include "api/api.h"
#include "api/frame_internal.h"
#include "api/parse_internal.h"

enum {
    CONNECTIONS_MAX_DEFAULT = 256,
    READ_BYTES = 64 * 1024,
    PAUSE_BYTES = 1024 * 1024,           /* unsent answers above which no more requests are read */
    UNSENT_BYTES_MAX = 8 * 1024 * 1024,  /* unsent answers above which the client is given up */
    CALL_QUEUED_BYTES_MAX = 1024 * 1024, /* of one call, between the threads */
    HANGUP_CHECK_MS = 250,               /* how soon a half-closed client that then vanishes is noticed */
    RETRY_MS_MIN = 100,
    RETRY_MS_MAX = 10000
};
#define HELD_BYTES_MAX ((size_t)256 << 20) /* unfinished lines of all connections together */

typedef struct api_server api_server;
typedef struct conn conn;
typedef struct call call;

typedef struct letter {
    struct letter *next;
    call *to;
    base_buf line; /* empty: memory was out; the loop thread writes the error */
    bool last, progress;
} letter;

typedef struct mailbox {
    uv_mutex_t lock;
    uv_async_t wake; /* wake-ups merge: the reader empties the list */
    letter *head, **tail;
} mailbox;

struct call {
    api_server *server;
    conn *conn; /* NULL once the client is gone */
    call *previous, *next;
    char *id_json;
    uint64_t ticket;
    int64_t start_us;
    letter last;
    atomic_bool progress_waits; /* in the mailbox */
    atomic_bool overrun;        /* queued too much: the connection is to be closed */
    atomic_size_t queued_bytes; /* in the mailbox */
};

struct conn {
    union {
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    } io;
    api_server *server;
    conn *previous, *next;
    call *calls;
    frame in;
    size_t unsent_bytes;
    size_t held_bytes; /* counted in server->held_bytes */
    uint64_t number;   /* for the log */
    bool paused, read_ended, closing, counted_half_closed;
};

typedef struct listener {
    union {
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    } io;
    bool open, is_pipe;
    /* Unix: the file that is ours to remove */
    const char *path;
    uint64_t device, inode;
} listener;

struct api_server {
    agent_engine *engine;
    agent_info info;
    uv_loop_t loop;
    mailbox mail;
    uv_signal_t on_term, on_int;
    uv_timer_t hangups; /* runs while some client is half closed */
    listener listeners[2];
    conn *conns;
    int n_conns, connections_max, n_half_closed, n_calls;
    size_t line_bytes_max, held_bytes;
    uint64_t n_accepted;
    double mean_call_us; /* moving mean: what a busy client is told to wait */
    bool stopping, closed;
    uint8_t read_buffer[READ_BYTES];
};

/* listen.c: each fails before anything is created. */
status listen_on_path(api_server *s, listener *l, const char *path, err *e);
status listen_on_host(api_server *s, listener *l, const char *host, int port, err *e);
void listener_close(listener *l);
/* Nobody must be listening there; a dead server's file may be. ST_ERR_EXISTS when a server answers. */
status listen_path_probe(const char *path, err *e);
void notify_ready(const char *notify_socket);

/* conn.c */
void conn_accept(api_server *s, listener *l);
/* Queues bytes (taken over, also on failure). */
void conn_send(conn *c, base_buf *line);
void conn_send_error(conn *c,
        const char *id_json,
        const char *code,
        const char *message,
        const char *param,
        int retry_after_ms);
void conn_close(conn *c, const char *reason); /* cancels its calls; NULL reason: nothing to log */
void conn_close_if_done(conn *c);
void conn_check_hangup(conn *c);

/* call.c */
status mailbox_init(mailbox *m, uv_loop_t *loop);
void mailbox_deinit(mailbox *m);            /* after its async handle is closed */
void call_start(conn *c, parse_line *line); /* takes the request and the id over */
bool call_cancel(conn *c, const char *target_json);
void call_leave_all(conn *c);

/* server.c */
void server_on_line(conn *c, const uint8_t *line, size_t bytes);
void server_close_if_done(api_server *s);

#endif
