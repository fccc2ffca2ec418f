/* The server: its loop, what it answers by itself, signals, and the end. server_internal.h has the picture. */
#include <signal.h>
#include <string.h>

#include "api/reply_internal.h"
#include "api/server_internal.h"

enum { PROTOCOL_VERSION = 1 };

/* ---- answers of the loop thread ---- */

/* Takes the members over; NULL when memory was out. */
static void send_done(conn *c, const char *id_json, cJSON *members)
{
    base_buf line = {.max = REPLY_BYTES_MAX};
    status st = members != NULL ? reply_done(&line, id_json, members) : ST_ERR_MEMORY;
    cJSON_Delete(members);
    if (st != ST_OK) {
        base_buf_free(&line);
        conn_send_error(c, id_json, "internal", "out of memory while answering", NULL, 0);
        return;
    }
    conn_send(c, &line);
}

static cJSON *hello_members(const api_server *s)
{
    const struct {
        const char *name, *value;
    } texts[] = {{"server", "epimem"}, {"version", s->info.version}, {"model", s->info.model},
            {"encoder", s->info.encoder}, {"codec", s->info.codec}, {"tenant", PARSE_TENANT}};
    cJSON *o = cJSON_CreateObject();
    bool good = o != NULL;
    for (size_t i = 0; good && i < sizeof texts / sizeof texts[0]; i++) {
        good = cJSON_AddStringToObject(o, texts[i].name, texts[i].value != NULL ? texts[i].value : "") !=
                NULL;
    }
    good = good && cJSON_AddNumberToObject(o, "protocol", PROTOCOL_VERSION) != NULL &&
            cJSON_AddNumberToObject(o, "context_tokens", (double)s->info.context_tokens) != NULL;
    if (!good) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

static cJSON *ping_members(void)
{
    char now[32];
    agent_time_format(base_wall_us(), now);
    cJSON *o = cJSON_CreateObject();
    if (o != NULL && cJSON_AddStringToObject(o, "time", now) == NULL) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

static cJSON *cancel_members(conn *c, const char *target_json)
{
    cJSON *o = cJSON_CreateObject();
    if (o != NULL && cJSON_AddBoolToObject(o, "cancelled", call_cancel(c, target_json)) == NULL) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

void server_on_line(conn *c, const uint8_t *text, size_t bytes)
{
    parse_line line;
    parse_fault fault;
    if (parse_request(text, bytes, &line, &fault) != ST_OK) {
        conn_send_error(c, line.id_json, fault.code, fault.at.message, fault.at.param, 0);
        parse_line_deinit(&line);
        return;
    }
    switch (line.kind) {
    case PARSE_HELLO:
        send_done(c, line.id_json, hello_members(c->server));
        break;
    case PARSE_PING:
        send_done(c, line.id_json, ping_members());
        break;
    case PARSE_CANCEL:
        send_done(c, line.id_json, cancel_members(c, line.target_json));
        break;
    case PARSE_ENGINE:
        if (c->server->stopping) {
            conn_send_error(c, line.id_json, "busy", "the server is stopping", NULL, RETRY_MS_MAX);
        } else {
            call_start(c, &line);
        }
        break;
    }
    parse_line_deinit(&line);
}

/* ---- the end ---- */

void server_close_if_done(api_server *s)
{
    if (!s->stopping || s->closed || s->n_conns > 0 || s->n_calls > 0) {
        return;
    }
    s->closed = true;
    uv_close((uv_handle_t *)&s->mail.wake, NULL);
    uv_close((uv_handle_t *)&s->on_term, NULL);
    uv_close((uv_handle_t *)&s->on_int, NULL);
    uv_close((uv_handle_t *)&s->hangups, NULL);
}

static void close_listeners(api_server *s)
{
    listener_close(&s->listeners[0]);
    listener_close(&s->listeners[1]);
}

static void server_stop(api_server *s)
{
    s->stopping = true;
    close_listeners(s);
    for (conn *c = s->conns; c != NULL; c = c->next) {
        conn_close_if_done(c);
    }
    server_close_if_done(s);
}

/* The first drains. The second is for somebody who will not wait: acknowledged turns are on disk, so the process may
 * simply end, by the signal itself. */
static void on_signal(uv_signal_t *handle, int number)
{
    api_server *s = handle->data;
    if (!s->stopping) {
        LOG_I("stopping: %d requests are finished first; a second signal ends them", s->n_calls);
        server_stop(s);
        return;
    }
    LOG_W("ended by a second signal with %d requests unfinished", s->n_calls);
    (void)uv_signal_stop(handle);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void on_hangup_timer(uv_timer_t *timer)
{
    api_server *s = timer->data;
    for (conn *c = s->conns; c != NULL; c = c->next) {
        if (c->counted_half_closed) {
            conn_check_hangup(c);
        }
    }
}

/* ---- the beginning ---- */

static status start_handles(api_server *s, err *e)
{
    int rc = uv_signal_init(&s->loop, &s->on_term);
    rc = rc != 0 ? rc : uv_signal_init(&s->loop, &s->on_int);
    REQUIRE(rc == 0); /* the loop made its signal pipe at its own start */
    rc = uv_timer_init(&s->loop, &s->hangups);
    REQUIRE(rc == 0); /* initialises memory alone */
    s->on_term.data = s->on_int.data = s->hangups.data = s;
    rc = uv_signal_start(&s->on_term, on_signal, SIGTERM);
    rc = rc != 0 ? rc : uv_signal_start(&s->on_int, on_signal, SIGINT);
    rc = rc != 0 ? rc : uv_timer_start(&s->hangups, on_hangup_timer, HANGUP_CHECK_MS, HANGUP_CHECK_MS);
    (void)uv_timer_stop(&s->hangups); /* its period stays set */
    if (rc != 0) {
        return FAIL_OS(e, ST_ERR_IO, rc, "signal handlers: %s", uv_strerror(rc));
    }
    return ST_OK;
}

static status start_listening(api_server *s, const api_server_options *o, err *e)
{
    if (o->socket_path == NULL && o->host == NULL) {
        return FAIL(e, ST_ERR_ARG, "nothing to listen on");
    }
    if (o->socket_path != NULL) {
        TRY(listen_on_path(s, &s->listeners[0], o->socket_path, e));
    }
    if (o->host != NULL) {
        TRY(listen_on_host(s, &s->listeners[1], o->host, o->port, e));
    }
    return ST_OK;
}

static status server_run(api_server *s, const api_server_options *o, err *e)
{
    int rc = uv_loop_init(&s->loop);
    if (rc != 0) {
        return FAIL_OS(e, ST_ERR_IO, rc, "event loop: %s", uv_strerror(rc));
    }
    if (mailbox_init(&s->mail, &s->loop) != ST_OK) {
        (void)uv_loop_close(&s->loop);
        return FAIL(e, ST_ERR_IO, "event loop: no wake-up from other threads");
    }
    status st = start_handles(s, e);
    st = st == ST_OK ? start_listening(s, o, e) : st;
    if (st == ST_OK) {
        notify_ready(o->notify_socket);
    } else {
        server_stop(s);
    }
    (void)uv_run(&s->loop, UV_RUN_DEFAULT);
    REQUIRE(uv_loop_close(&s->loop) == 0);
    mailbox_deinit(&s->mail);
    return st;
}

status api_serve(agent_engine *g, const api_server_options *o, err *e)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    api_server *s = base_zalloc(1, sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    s->engine = g;
    s->connections_max = o->connections_max > 0 ? o->connections_max : CONNECTIONS_MAX_DEFAULT;
    s->line_bytes_max = o->line_bytes_max > 0 ? o->line_bytes_max : json_line_limits.bytes_max;
    s->mean_call_us = 1e6;
    agent_engine_info(g, &s->info);
    (void)sigaction(SIGPIPE, &ignore, NULL); /* a client that is gone is an error of write, not the end */
    status st = server_run(s, o, e);
    base_free(s);
    return st;
}
