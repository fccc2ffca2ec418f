/* Where the server listens: socket files, TCP ports, and the word to the service manager. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/server_internal.h"

enum { BACKLOG = 256, SOCKET_MODE = 0600 };

/* libuv before 1.46 cuts a longer path without a word and listens under another name. */
status api_socket_path_check(const char *path, err *e)
{
    size_t bytes = strlen(path), max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    if (bytes == 0) {
        return FAIL(e, ST_ERR_ARG, "socket path is empty");
    }
    if (bytes > max) {
        return FAIL(e, ST_ERR_LIMIT, "socket path has %zu bytes, the system allows %zu", bytes, max);
    }
    return ST_OK;
}

static void fill_address(const char *path, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path, path, strlen(path));
}

/* Whether somebody accepts there. */
static bool somebody_answers(const char *path)
{
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    fill_address(path, &a);
    bool answers = connect(fd, (const struct sockaddr *)&a, sizeof a) == 0 || errno == EAGAIN;
    (void)close(fd);
    return answers;
}

status listen_path_probe(const char *path, err *e)
{
    struct stat st;
    TRY(api_socket_path_check(path, e));
    if (lstat(path, &st) != 0) {
        return ST_OK;
    }
    if (!S_ISSOCK(st.st_mode)) {
        return FAIL(e, ST_ERR_EXISTS, "%s exists and is no socket", path);
    }
    if (somebody_answers(path)) {
        return FAIL(e, ST_ERR_EXISTS, "%s: a server is listening there already", path);
    }
    return ST_OK;
}

/* The mode is set before the name exists: at no moment can another user connect. */
static int bind_path(const char *path)
{
    struct sockaddr_un a;
    fill_address(path, &a);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    if (fchmod(fd, SOCKET_MODE) != 0 || bind(fd, (const struct sockaddr *)&a, sizeof a) != 0) {
        int why = errno;
        (void)close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

static void on_connection(uv_stream_t *stream, int st)
{
    listener *l = (listener *)stream; /* io is its first member */
    if (st == 0) {
        conn_accept(stream->data, l);
    } else {
        LOG_W("a connection could not be taken: %s", uv_strerror(st));
    }
}

status listen_on_path(api_server *s, listener *l, const char *path, err *e)
{
    struct stat st;
    TRY(listen_path_probe(path, e));
    (void)unlink(path); /* of a dead server, or nothing */
    int fd = bind_path(path);
    if (fd < 0) {
        return FAIL_OS(e, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    if (lstat(path, &st) != 0) {
        (void)close(fd);
        return FAIL_OS(e, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    l->path = path;
    l->device = (uint64_t)st.st_dev;
    l->inode = (uint64_t)st.st_ino;
    l->is_pipe = true;
    int rc = uv_pipe_init(&s->loop, &l->io.pipe, 0);
    REQUIRE(rc == 0); /* initialises memory alone */
    l->open = true;
    rc = uv_pipe_open(&l->io.pipe, fd);
    if (rc != 0) {
        (void)close(fd);
    } else {
        l->io.stream.data = s;
        rc = uv_listen(&l->io.stream, BACKLOG, on_connection);
    }
    if (rc != 0) {
        listener_close(l);
        return FAIL_OS(e, ST_ERR_IO, rc, "%s: %s", path, uv_strerror(rc));
    }
    LOG_I("listening on %s", path);
    return ST_OK;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    }
    return a->sa_family == AF_INET6 &&
            IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static void log_address(const uv_tcp_t *tcp, const char *host)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    int bytes = sizeof a;
    (void)uv_tcp_getsockname(tcp, (struct sockaddr *)&a, &bytes);
    int port = a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)(void *)&a)->sin6_port)
                                       : ntohs(((struct sockaddr_in *)(void *)&a)->sin_port);
    LOG_I("listening on %s:%d", host, port);
    if (!is_loopback((const struct sockaddr *)&a)) {
        LOG_W("%s is open to other machines, and whoever can connect can read every session", host);
    }
}

status listen_on_host(api_server *s, listener *l, const char *host, int port, err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    int rc = getaddrinfo(host, service, &hints, &found);
    if (rc != 0) {
        return FAIL(e, ST_ERR_ARG, "%s: %s", host, gai_strerror(rc));
    }
    rc = uv_tcp_init(&s->loop, &l->io.tcp);
    if (rc == 0) {
        l->open = true;
        l->io.stream.data = s;
        rc = uv_tcp_bind(&l->io.tcp, found->ai_addr, 0);
        rc = rc != 0 ? rc : uv_listen(&l->io.stream, BACKLOG, on_connection);
    }
    freeaddrinfo(found);
    if (rc != 0) {
        listener_close(l);
        return FAIL_OS(e, ST_ERR_IO, rc, "%s:%d: %s", host, port, uv_strerror(rc));
    }
    log_address(&l->io.tcp, host);
    return ST_OK;
}

void listener_close(listener *l)
{
    struct stat st;
    if (!l->open) {
        return;
    }
    l->open = false;
    uv_close((uv_handle_t *)&l->io.stream, NULL);
    if (l->path != NULL && lstat(l->path, &st) == 0 && (uint64_t)st.st_dev == l->device &&
            (uint64_t)st.st_ino == l->inode) {
        (void)unlink(l->path);
    }
}

/* sd_notify(3): one datagram; a leading @ means the abstract namespace. */
void notify_ready(const char *notify_socket)
{
    static const char word[] = "READY=1\n";
    struct sockaddr_un a;
    err e;
    if (notify_socket == NULL || api_socket_path_check(notify_socket, &e) != ST_OK) {
        return;
    }
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    fill_address(notify_socket, &a);
    if (a.sun_path[0] == '@') {
        a.sun_path[0] = '\0';
    }
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(notify_socket));
    if (sendto(fd, word, sizeof word - 1, MSG_NOSIGNAL, (const struct sockaddr *)&a, bytes) < 0) {
        LOG_W("the service manager could not be told: %s", strerror(errno));
    }
    (void)close(fd);
}
