/* Requests in flight and the way of their events from the engine thread to the loop thread. */
#include <string.h>

#include "api/reply_internal.h"
#include "api/server_internal.h"

/* ---- engine thread ---- */

/* Woken under the lock: once the loop thread has seen the last letter of the last call it may take the mailbox down. */
static void mailbox_put(mailbox *m, letter *l)
{
    l->next = NULL;
    uv_mutex_lock(&m->lock);
    *m->tail = l;
    m->tail = &l->next;
    (void)uv_async_send(&m->wake);
    uv_mutex_unlock(&m->lock);
}

static void put_last(call *c, const agent_event *event)
{
    c->last.line = (base_buf){.max = REPLY_BYTES_MAX};
    if (reply_event(&c->last.line, c->id_json, event) != ST_OK) {
        base_buf_free(&c->last.line);
        c->last.line = (base_buf){.max = REPLY_BYTES_MAX};
    }
    if (event->kind == AGENT_EVENT_DONE) {
        cJSON_Delete(event->members);
    }
    c->last.to = c;
    c->last.last = true;
    mailbox_put(&c->server->mail, &c->last);
}

/* A token that cannot be queued must not be left out of the middle of a stream: the connection goes. */
static void put_one(call *c, const agent_event *event)
{
    bool progress = event->kind == AGENT_EVENT_PROGRESS;
    if (atomic_load(&c->overrun) || (progress && atomic_load(&c->progress_waits))) {
        return;
    }
    letter *l = base_zalloc(1, sizeof *l);
    if (l != NULL) {
        l->line.max = CALL_QUEUED_BYTES_MAX;
    }
    if (l == NULL || reply_event(&l->line, c->id_json, event) != ST_OK ||
            atomic_load(&c->queued_bytes) + l->line.size > CALL_QUEUED_BYTES_MAX) {
        if (l != NULL) {
            base_buf_free(&l->line);
            base_free(l);
        }
        atomic_store(&c->overrun, true);
        return;
    }
    l->to = c;
    l->progress = progress;
    if (progress) {
        atomic_store(&c->progress_waits, true);
    }
    (void)atomic_fetch_add(&c->queued_bytes, l->line.size);
    mailbox_put(&c->server->mail, l);
}

static void call_on_event(void *user, const agent_event *event)
{
    call *c = user;
    if (event->kind == AGENT_EVENT_DONE || event->kind == AGENT_EVENT_ERROR) {
        put_last(c, event); /* c may be gone from here on */
    } else {
        put_one(c, event);
    }
}

/* ---- loop thread ---- */

static void call_unlink(call *c)
{
    if (c->conn == NULL) {
        return;
    }
    if (c->previous != NULL) {
        c->previous->next = c->next;
    } else {
        c->conn->calls = c->next;
    }
    if (c->next != NULL) {
        c->next->previous = c->previous;
    }
    c->conn = NULL;
}

static void call_free(call *c)
{
    c->server->n_calls--;
    base_free(c->id_json);
    base_free(c);
}

static void deliver_last(call *c)
{
    api_server *s = c->server;
    conn *to = c->conn;
    double took_us = (double)(base_monotonic_us() - c->start_us);
    s->mean_call_us += (took_us - s->mean_call_us) / 8; /* 8: about the last dozen count; arbitrary */
    call_unlink(c);
    if (to == NULL) {
        base_buf_free(&c->last.line);
    } else if (atomic_load(&c->overrun)) {
        base_buf_free(&c->last.line);
        conn_close(to, "events of a request piled up");
    } else if (c->last.line.size == 0) {
        conn_send_error(to, c->id_json, "internal", "out of memory while writing the answer", NULL, 0);
        conn_close_if_done(to);
    } else {
        conn_send(to, &c->last.line);
        conn_close_if_done(to);
    }
    call_free(c);
    server_close_if_done(s);
}

static void deliver(letter *l)
{
    call *c = l->to;
    if (l->last) {
        deliver_last(c); /* the letter is part of the call and gone */
        return;
    }
    (void)atomic_fetch_sub(&c->queued_bytes, l->line.size);
    if (l->progress) {
        atomic_store(&c->progress_waits, false);
    }
    if (c->conn == NULL) {
        base_buf_free(&l->line);
    } else if (atomic_load(&c->overrun)) {
        base_buf_free(&l->line);
        conn_close(c->conn, "events of a request piled up");
    } else {
        conn_send(c->conn, &l->line);
    }
    base_free(l);
}

static void mailbox_empty(uv_async_t *wake)
{
    mailbox *m = wake->data;
    uv_mutex_lock(&m->lock);
    letter *l = m->head;
    m->head = NULL;
    m->tail = &m->head;
    uv_mutex_unlock(&m->lock);
    while (l != NULL) {
        letter *next = l->next;
        deliver(l);
        l = next;
    }
}

status mailbox_init(mailbox *m, uv_loop_t *loop)
{
    m->head = NULL;
    m->tail = &m->head;
    if (uv_mutex_init(&m->lock) != 0) {
        return ST_ERR_MEMORY;
    }
    if (uv_async_init(loop, &m->wake, mailbox_empty) != 0) {
        uv_mutex_destroy(&m->lock);
        return ST_ERR_IO;
    }
    m->wake.data = m;
    return ST_OK;
}

void mailbox_deinit(mailbox *m)
{
    uv_mutex_destroy(&m->lock);
}

static int retry_after_ms(const api_server *s)
{
    double ms = s->mean_call_us / 1000;
    return ms < RETRY_MS_MIN ? RETRY_MS_MIN : ms > RETRY_MS_MAX ? RETRY_MS_MAX : (int)ms;
}

static void refuse(conn *to, const char *id_json, status st, const err *e)
{
    if (st == ST_ERR_BUSY) {
        conn_send_error(to, id_json, "busy", e->text[0] != '\0' ? e->text : "the queue is full", NULL,
                retry_after_ms(to->server));
    } else {
        conn_send_error(to, id_json, "internal", e->text[0] != '\0' ? e->text : status_text(st), NULL, 0);
    }
}

void call_start(conn *to, parse_line *line)
{
    api_server *s = to->server;
    agent_request *request = line->request;
    err e = {.code = ST_OK};
    call *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        conn_send_error(to, line->id_json, "internal", "out of memory", NULL, 0);
        return;
    }
    c->server = s;
    c->start_us = base_monotonic_us();
    c->id_json = line->id_json;
    line->id_json = NULL;
    c->conn = to;
    c->next = to->calls;
    if (c->next != NULL) {
        c->next->previous = c;
    }
    to->calls = c;
    s->n_calls++;
    request->on_event = call_on_event;
    request->user = c;
    status st = agent_submit(s->engine, request, &c->ticket, &e);
    if (st == ST_OK) {
        line->request = NULL;
        return;
    }
    call_unlink(c);
    refuse(to, c->id_json, st, &e);
    call_free(c);
}

bool call_cancel(conn *from, const char *target_json)
{
    bool any = false;
    for (call *c = from->calls; c != NULL; c = c->next) {
        if (strcmp(c->id_json, target_json) == 0 && agent_cancel(from->server->engine, c->ticket)) {
            any = true;
        }
    }
    return any;
}

void call_leave_all(conn *from)
{
    while (from->calls != NULL) {
        call *c = from->calls;
        call_unlink(c);
        (void)agent_cancel(from->server->engine, c->ticket);
    }
}
