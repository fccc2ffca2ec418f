/* One blocking connection to a server; the contract is in client_internal.h. */
#include "api/client_internal.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "api/json_internal.h"

enum { RECEIVE_BYTES = 64 * 1024 };
#define EVENT_BYTES_MAX ((size_t)256 << 20)

struct client {
    int fd;
    private_server *own;
    base_buf in;
    size_t taken; /* of in: events already given out */
    int64_t last_id;
};

/* Set by the signal handler; a program has one terminal, so one flag is enough. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void client_watch_interrupt(void)
{
    struct sigaction a = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads return */
    (void)sigaction(SIGINT, &a, NULL);
}

bool client_was_interrupted(void)
{
    bool was = interrupted != 0;
    interrupted = 0;
    return was;
}

static status connect_path(const char *path, int *out, err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    TRY(api_socket_path_check(path, e));
    memcpy(a.sun_path, path, strlen(path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) != 0) {
        int why = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return FAIL_OS(e, ST_ERR_IO, why, "%s: %s (is a server running there?)", path, strerror(why));
    }
    *out = fd;
    return ST_OK;
}

static status connect_host(const char *host, int64_t port, int *out, err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[24];
    (void)snprintf(service, sizeof service, "%lld", (long long)port);
    int rc = getaddrinfo(host, service, &hints, &found), fd = -1;
    if (rc != 0) {
        return FAIL(e, ST_ERR_ARG, "%s: %s", host, gai_strerror(rc));
    }
    for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            rc = errno;
            (void)close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd < 0) {
        return FAIL_OS(
                e, ST_ERR_IO, rc, "%s:%s: %s (is a server running there?)", host, service, strerror(rc));
    }
    *out = fd;
    return ST_OK;
}

static bool is_path(const char *host)
{
    size_t n = strlen(host);
    return strchr(host, '/') != NULL || (n > 5 && strcmp(host + n - 5, ".sock") == 0);
}

static status connect_somewhere(const client_options *o, client *c, err *e)
{
    if (o->socket != NULL) {
        return connect_path(o->socket, &c->fd, e);
    }
    if (o->host != NULL) {
        return is_path(o->host) ? connect_path(o->host, &c->fd, e)
                                : connect_host(o->host, o->port, &c->fd, e);
    }
    if (o->model == NULL) {
        return FAIL(e, ST_ERR_ARG, "which server? give --socket PATH, or -m MODEL to start one");
    }
    TRY(private_server_start(o, &c->own, e));
    return connect_path(private_server_socket(c->own), &c->fd, e);
}

status client_open(const client_options *o, client **out, err *e)
{
    client *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    c->fd = -1;
    c->in.max = EVENT_BYTES_MAX;
    status st = connect_somewhere(o, c, e);
    if (st != ST_OK) {
        client_close(c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void client_close(client *c)
{
    if (c == NULL) {
        return;
    }
    if (c->fd >= 0) {
        (void)close(c->fd);
    }
    private_server_stop(c->own);
    base_buf_free(&c->in);
    base_free(c);
}

/* ---- sending and receiving ---- */

static status send_all(client *c, const char *data, size_t bytes, err *e)
{
    while (bytes > 0) {
        ssize_t n = send(c->fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return FAIL_OS(e, ST_ERR_IO, errno, "the server is gone: %s", strerror(errno));
        }
        data += n;
        bytes -= (size_t)n;
    }
    return ST_OK;
}

status client_send(client *c, cJSON *request, int64_t *id, err *e)
{
    int64_t number = ++c->last_id;
    char *text = NULL;
    if (request != NULL && cJSON_AddNumberToObject(request, "id", (double)number) != NULL) {
        text = cJSON_PrintUnformatted(request);
    }
    cJSON_Delete(request);
    if (text == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of its NUL */
    status st = send_all(c, text, bytes + 1, e);
    cJSON_free(text);
    *id = number;
    return st;
}

static status receive_more(client *c, err *e)
{
    if (c->taken > 0) {
        memmove(c->in.data, c->in.data + c->taken, c->in.size - c->taken);
        c->in.size -= c->taken;
        c->taken = 0;
    }
    status st = base_buf_reserve(&c->in, RECEIVE_BYTES);
    if (st != ST_OK) {
        return FAIL(e, st, "an event of the server is too large: %s", status_text(st));
    }
    ssize_t n = recv(c->fd, c->in.data + c->in.size, RECEIVE_BYTES, 0);
    if (n < 0 && errno == EINTR) {
        return ST_ERR_CANCELLED;
    }
    if (n <= 0) {
        return FAIL(e, ST_ERR_IO, "the server has closed the connection");
    }
    c->in.size += (size_t)n;
    return ST_OK;
}

status client_receive(client *c, cJSON **event, err *e)
{
    for (;;) {
        const uint8_t *from = c->in.data + c->taken;
        size_t left = c->in.size - c->taken;
        const uint8_t *newline = left > 0 ? memchr(from, '\n', left) : NULL;
        if (newline != NULL) {
            c->taken += (size_t)(newline - from) + 1;
            err why = {.code = ST_OK};
            if (json_parse(from, (size_t)(newline - from), &json_file_limits, event, &why) != ST_OK) {
                return FAIL(e, ST_ERR_FORMAT, "the server sent no JSON: %s", why.text);
            }
            return ST_OK;
        }
        TRY(receive_more(c, e));
    }
}

static status error_of(const cJSON *event, err *e)
{
    const char *code = client_text(event, "code");
    status st = strcmp(code, "session_not_found") == 0 ? ST_ERR_NOT_FOUND : ST_ERR_ARG;
    return FAIL(e, st, "%s: %.300s", code, client_text(event, "message"));
}

static status send_cancel(client *c, int64_t target, err *e)
{
    int64_t id;
    cJSON *request = client_request("cancel", NULL);
    if (request == NULL || cJSON_AddNumberToObject(request, "target", (double)target) == NULL) {
        cJSON_Delete(request);
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    return client_send(c, request, &id, e);
}

/* Waits for the last event of request `id`. */
static status wait_for(client *c, int64_t id, client_on_event on_event, void *user, cJSON **done, err *e)
{
    bool cancelled = false;
    for (;;) {
        cJSON *event = NULL;
        if (interrupted != 0 && !cancelled) { /* the signal may have come while an event was shown */
            TRY(send_cancel(c, id, e));
            cancelled = true;
        }
        status st = client_receive(c, &event, e);
        if (st == ST_ERR_CANCELLED) {
            continue;
        }
        TRY(st);
        const char *kind = client_text(event, "event");
        const cJSON *whose = json_find(event, "id");
        bool mine = client_integer(event, "id") == id || cJSON_IsNull(whose);
        if (mine && strcmp(kind, "done") == 0) {
            *done = event;
            return ST_OK;
        }
        if (mine && strcmp(kind, "error") == 0) {
            st = error_of(event, e);
        } else if (mine && on_event != NULL) {
            on_event(user, event);
        }
        cJSON_Delete(event);
        TRY(st);
    }
}

status client_ask(client *c, cJSON *request, client_on_event on_event, void *user, cJSON **done, err *e)
{
    int64_t id;
    TRY(client_send(c, request, &id, e));
    return wait_for(c, id, on_event, user, done, e);
}
