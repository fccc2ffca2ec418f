/* The server over real sockets, with a stand-in for the engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/api.h"
#include "api/server_internal.h"
#include "test_api_fake_engine.h"

typedef struct fixture {
    char folder[64], path[96];
    agent_engine *engine;
    pthread_t thread;
    api_server_options options;
    status ended;
    err e;
    bool running;
} fixture;

static void *serve_thread(void *user)
{
    fixture *f = user;
    f->ended = api_serve(f->engine, &f->options, &f->e);
    return NULL;
}

static void wait_a_little(void)
{
    struct timespec t = {.tv_nsec = 2000000};
    (void)nanosleep(&t, NULL);
}

static int connect_to(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void start(fixture *f, int jobs_max, int connections_max, int port)
{
    agent_options o;
    agent_options_default(&o);
    o.queue_max = jobs_max;
    assert_int_equal(agent_engine_open(&o, &f->engine, NULL), ST_OK);
    f->options = (api_server_options){.socket_path = f->path,
            .connections_max = connections_max,
            .host = port > 0 ? "127.0.0.1" : NULL,
            .port = port};
    assert_int_equal(pthread_create(&f->thread, NULL, serve_thread, f), 0);
    f->running = true;
    for (int i = 0; i < 2500 && listen_path_probe(f->path, &f->e) != ST_ERR_EXISTS; i++) {
        wait_a_little();
    }
}

static void stop(fixture *f)
{
    if (f->running) {
        kill(getpid(), SIGTERM);
        pthread_join(f->thread, NULL);
        agent_engine_close(f->engine, true);
        f->running = false;
        assert_int_equal(f->ended, ST_OK);
        assert_int_equal(access(f->path, F_OK), -1);
    }
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    (void)snprintf(f->folder, sizeof f->folder, "/tmp/epimem-test-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    (void)snprintf(f->path, sizeof f->path, "%s/s", f->folder);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    stop(f);
    (void)unlink(f->path);
    assert_int_equal(rmdir(f->folder), 0);
    free(f);
    return 0;
}

/* ---- a client ---- */

typedef struct talk {
    int fd;
    char *text;
    size_t size;
} talk;

static talk *talk_open(const fixture *f)
{
    talk *t = calloc(1, sizeof *t);
    t->fd = connect_to(f->path);
    assert_true(t->fd >= 0);
    return t;
}

static void talk_close(talk *t)
{
    close(t->fd);
    free(t->text);
    free(t);
}

static void say(talk *t, const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(send(t->fd, text, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* The next line; NULL at the end. Valid until the next call. */
static char *hear(talk *t)
{
    static char *line;
    free(line);
    line = NULL;
    for (;;) {
        char *newline = t->size > 0 ? memchr(t->text, '\n', t->size) : NULL;
        if (newline != NULL) {
            size_t n = (size_t)(newline - t->text);
            line = strndup(t->text, n);
            t->size -= n + 1;
            memmove(t->text, newline + 1, t->size);
            return line;
        }
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        t->text = realloc(t->text, t->size + 65536);
        ssize_t got = recv(t->fd, t->text + t->size, 65536, 0);
        if (got <= 0) {
            return NULL;
        }
        t->size += (size_t)got;
    }
}

static void expect(talk *t, const char *line)
{
    const char *got = hear(t);
    assert_non_null(got);
    assert_string_equal(got, line);
}

static bool starts_with(const char *text, const char *start_text)
{
    return text != NULL && strncmp(text, start_text, strlen(start_text)) == 0;
}

/* The last event of a request, over its progress and tokens. */
static char *hear_end(talk *t)
{
    char *line;
    do {
        line = hear(t);
    } while (line != NULL &&
            (strstr(line, "\"event\":\"progress\"") != NULL || strstr(line, "\"event\":\"token\"") != NULL));
    return line;
}

static void wait_until(const atomic_int *value, int at_least)
{
    for (int i = 0; i < 60000 && atomic_load(value) < at_least; i++) { /* a minute: the machine may be busy */
        wait_a_little();
    }
    assert_true(atomic_load(value) >= at_least);
}

#define CHAT(id, text) "{\"id\":" id ",\"op\":\"chat\",\"messages\":[{\"content\":\"" text "\"}]}\n"

/* ---- tests ---- */

static void answers_of_the_loop(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    say(t, "{\"id\":\"a\\u00e9\",\"op\":\"ping\"}\n{\"id\":9007199254740992,\"op\":\"hello\"}\r\n\n[]\n");
    assert_true(starts_with(hear(t), "{\"id\":\"aé\",\"event\":\"done\",\"time\":\""));
    expect(t,
            "{\"id\":9007199254740992,\"event\":\"done\",\"server\":\"epimem\",\"version\":\"0\",\"model\":"
            "\"fake\","
            "\"encoder\":\"none\",\"codec\":\"bf16\",\"tenant\":\"default\",\"protocol\":1,\"context_"
            "tokens\":64}");
    expect(t,
            "{\"id\":null,\"event\":\"error\",\"code\":\"bad_request\",\"message\":\"a line must be one JSON "
            "object\"}");
    say(t,
            "{\"id\":7,\"op\":\"chat\",\"messages\":[{\"content\":5}]}\n{\"id\":9007199254740993,\"op\":"
            "\"ping\"}\n");
    expect(t,
            "{\"id\":7,\"event\":\"error\",\"code\":\"bad_request\",\"message\":\"messages[0].content must "
            "be a "
            "string\",\"param\":\"messages[0].content\"}");
    assert_true(starts_with(
            hear(t), "{\"id\":null,\"event\":\"error\",\"code\":\"bad_request\",\"message\":\"id must"));
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    talk_close(t);
}

static void events_in_order(void **state)
{
    enum { REQUESTS = 20, TOKENS = 50 };
    fixture *f = *state;
    int seen[REQUESTS] = {0}, ends = 0;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    for (int i = 0; i < REQUESTS; i++) {
        char line[128];
        (void)snprintf(line, sizeof line, CHAT("%d", "echo %d"), i, TOKENS);
        say(t, line);
    }
    while (ends < REQUESTS) {
        int id = -1, token = -1;
        const char *line = hear(t);
        assert_non_null(line);
        if (sscanf(line, "{\"id\":%d,\"event\":\"token\",\"text\":\"t%d \"}", &id, &token) == 2) {
            assert_int_equal(token, seen[id]++);
        } else {
            assert_int_equal(sscanf(line, "{\"id\":%d,\"event\":\"done\"", &id), 1);
            assert_int_equal(seen[id], TOKENS);
            ends++;
        }
    }
    say(t, CHAT("1", "fail"));
    expect(t,
            "{\"id\":1,\"event\":\"error\",\"code\":\"store_full\",\"message\":\"no "
            "room\",\"param\":\"messages\"}");
    talk_close(t);
}

static void busy_and_cancel(void **state)
{
    fixture *f = *state;
    start(f, 2, 0, 0);
    talk *t = talk_open(f), *other = talk_open(f);
    say(t, CHAT("1", "hold") CHAT("2", "hold") CHAT("3", "echo 1"));
    char *line;
    do {
        line = hear(t);
    } while (!starts_with(line, "{\"id\":3"));
    assert_true(starts_with(line,
            "{\"id\":3,\"event\":\"error\",\"code\":\"busy\",\"message\":\"full\",\"retry_after_ms\":"));
    say(other, "{\"id\":0,\"op\":\"cancel\",\"target\":1}\n"); /* of another connection: not to be reached */
    expect(other, "{\"id\":0,\"event\":\"done\",\"cancelled\":false}");
    say(t, "{\"id\":\"c\",\"op\":\"cancel\",\"target\":2}\n");
    int ends = 0;
    while (ends < 2) {
        line = hear_end(t);
        bool ack = starts_with(line, "{\"id\":\"c\",\"event\":\"done\",\"cancelled\":true}");
        bool end = starts_with(
                line, "{\"id\":2,\"event\":\"done\",\"text\":\"\",\"finish_reason\":\"cancelled\"}");
        assert_true(ack || end);
        ends++;
    }
    say(t, "{\"id\":\"d\",\"op\":\"cancel\",\"target\":2}\n");
    assert_string_equal(hear_end(t), "{\"id\":\"d\",\"event\":\"done\",\"cancelled\":false}");
    fake_release(f->engine);
    assert_true(starts_with(hear_end(t), "{\"id\":1,\"event\":\"done\",\"text\":\"all\""));
    talk_close(t);
    talk_close(other);
}

static void half_close_delivers(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    say(t, CHAT("1", "hold") "{\"id\":2,\"op\":\"ping\"}"); /* the last line without its end */
    shutdown(t->fd, SHUT_WR);
    char *line;
    do {
        line = hear(t);
    } while (!starts_with(line, "{\"id\":2,\"event\":\"done\""));
    for (int i = 0; i < 200; i++) {
        assert_int_equal(
                atomic_load(&f->engine->n_cancelled), 0); /* longer than a check for hang-ups takes */
        wait_a_little();
    }
    fake_release(f->engine);
    assert_true(starts_with(hear_end(t), "{\"id\":1,\"event\":\"done\",\"text\":\"all\""));
    assert_null(hear(t));
    talk_close(t);
}

static void vanished_clients_cancel(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    say(t, CHAT("1", "hold") CHAT("2", "hold"));
    assert_non_null(hear(t));
    talk_close(t);
    wait_until(&f->engine->n_cancelled, 2);
    t = talk_open(f);
    say(t, CHAT("1", "hold"));
    assert_non_null(hear(t));
    shutdown(t->fd, SHUT_WR); /* first no more requests, then gone */
    wait_a_little();
    talk_close(t);
    wait_until(&f->engine->n_cancelled, 3);
}

/* A request that goes on forever, a client that does not read: closed, cancelled, and not much was kept. */
static void unread_answers_end_the_connection(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f), *healthy = talk_open(f);
    say(t, CHAT("1", "flood"));
    wait_until(&f->engine->n_cancelled, 1);
    say(healthy, "{\"id\":1,\"op\":\"ping\"}\n");
    assert_true(starts_with(hear(healthy), "{\"id\":1,\"event\":\"done\""));
    assert_true(atomic_load(&f->engine->n_flooded) < 400000);
    talk_close(t);
    talk_close(healthy);
}

/* Pings without reading the answers: no longer read from once a megabyte waits, served on when it reads again. */
static void unread_pings_pause(void **state)
{
    enum { BATCH = 500, BATCHES_MAX = 1000 };
    static const char ping[] = "{\"id\":1,\"op\":\"ping\"}\n";
    fixture *f = *state;
    char *many = calloc(BATCH, sizeof ping);
    start(f, 0, 0, 0);
    for (int i = 0; i < BATCH; i++) {
        memcpy(many + (size_t)i * (sizeof ping - 1), ping, sizeof ping - 1);
    }
    talk *t = talk_open(f);
    size_t all = 0, bytes = BATCH * (sizeof ping - 1);
    bool full = false;
    for (int i = 0; i < BATCHES_MAX && !full; i++) {
        size_t sent = 0;
        while (sent < bytes && !full) {
            struct pollfd p = {.fd = t->fd, .events = POLLOUT};
            full = poll(&p, 1, 1000) == 0;
            ssize_t n = full ? 0 : send(t->fd, many + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            assert_true(n > 0 || full || errno == EAGAIN);
            sent += n > 0 ? (size_t)n : 0;
        }
        all += sent;
    }
    assert_true(full);
    for (size_t i = 0; i < all / (sizeof ping - 1); i++) {
        assert_true(starts_with(hear(t), "{\"id\":1,\"event\":\"done\""));
    }
    free(many);
    talk_close(t);
}

static void long_answer_arrives_whole(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    say(t, CHAT("1", "big 20000000"));
    for (int i = 0; i < 50; i++) {
        wait_a_little();
    }
    assert_int_equal(strlen(hear(t)),
            strlen("{\"id\":1,\"event\":\"done\",\"text\":\"\",\"finish_reason\":\"stop\"}") + 20000000);
    say(t, "{\"id\":1,\"op\":\"ping\"}\n");
    assert_true(starts_with(hear(t), "{\"id\":1,\"event\":\"done\""));
    talk_close(t);
}

static void line_over_the_limit(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    char *text = malloc(1000001);
    memset(text, 'x', 1000000);
    text[1000000] = '\0';
    for (int i = 0; i < 17; i++) {
        say(t, text);
    }
    say(t, "\n{\"id\":1,\"op\":\"ping\"}\n");
    expect(t,
            "{\"id\":null,\"event\":\"error\",\"code\":\"line_too_long\",\"message\":\"the line is longer "
            "than 16777216 bytes\"}");
    assert_true(starts_with(hear(t), "{\"id\":1,\"event\":\"done\""));
    free(text);
    talk_close(t);
}

/* A round of the server's loop: what other clients did before is seen. */
static void ping(talk *t)
{
    say(t, "{\"id\":0,\"op\":\"ping\"}\n");
    assert_true(starts_with(hear(t), "{\"id\":0,\"event\":\"done\""));
}

static void many_connections(void **state)
{
    enum { CLIENTS = 200 };
    fixture *f = *state;
    talk *t[CLIENTS];
    start(f, 0, CLIENTS, 0);
    for (int i = 0; i < CLIENTS; i++) {
        t[i] = talk_open(f);
        ping(t[i]); /* the connection that start() probed with is gone after a few of these */
        say(t[i], CHAT("1", "echo 3"));
    }
    for (int i = 0; i < CLIENTS; i++) {
        assert_true(starts_with(hear_end(t[i]), "{\"id\":1,\"event\":\"done\""));
    }
    talk *late = talk_open(f);
    expect(late,
            "{\"id\":null,\"event\":\"error\",\"code\":\"busy\",\"message\":\"too many "
            "connections\",\"retry_after_ms\":10000}");
    assert_null(hear(late));
    talk_close(late);
    for (int i = 1; i < CLIENTS; i++) {
        talk_close(t[i]);
    }
    ping(t[0]);
    ping(t[0]);
    late = talk_open(f);
    ping(late);
    talk_close(late);
    talk_close(t[0]);
}

static void the_signal_drains(void **state)
{
    fixture *f = *state;
    start(f, 0, 0, 0);
    talk *t = talk_open(f), *idle = talk_open(f);
    say(t, CHAT("1", "hold"));
    assert_non_null(hear(t));
    kill(getpid(), SIGTERM);
    assert_null(hear(idle));
    assert_int_equal(connect_to(f->path), -1);
    say(t, CHAT("2", "echo 1"));
    assert_true(starts_with(hear_end(t), "{\"id\":2,\"event\":\"error\",\"code\":\"busy\""));
    fake_release(f->engine);
    assert_true(starts_with(hear_end(t), "{\"id\":1,\"event\":\"done\",\"text\":\"all\""));
    assert_null(hear(t));
    pthread_join(f->thread, NULL);
    assert_int_equal(f->ended, ST_OK);
    agent_engine_close(f->engine, true);
    f->running = false;
    talk_close(t);
    talk_close(idle);
}

static void tcp_beside_the_socket_file(void **state)
{
    fixture *f = *state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof a;
    int probe = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(probe, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(probe, (struct sockaddr *)&a, &bytes), 0);
    close(probe);
    start(f, 0, 0, ntohs(a.sin_port));
    talk *t = calloc(1, sizeof *t);
    t->fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 500 && connect(t->fd, (struct sockaddr *)&a, sizeof a) != 0; i++) {
        wait_a_little(); /* the port is opened after the file */
    }
    say(t, CHAT("1", "echo 2"));
    expect(t, "{\"id\":1,\"event\":\"token\",\"text\":\"t0 \"}");
    assert_true(starts_with(hear_end(t), "{\"id\":1,\"event\":\"done\""));
    say(t, CHAT("1", "hold")); /* a reset cancels */
    assert_non_null(hear(t));
    struct linger now = {.l_onoff = 1};
    setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    talk_close(t);
    wait_until(&f->engine->n_cancelled, 1);
}

static void socket_files(void **state)
{
    fixture *f = *state;
    err e;
    /* of a dead server: replaced */
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", f->path);
    int dead = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(dead, (struct sockaddr *)&a, sizeof a), 0);
    close(dead);
    start(f, 0, 0, 0);
    talk *t = talk_open(f);
    /* of a live one: refused, and left alone */
    assert_int_equal(api_serve(f->engine, &f->options, &e), ST_ERR_EXISTS);
    say(t, "{\"id\":1,\"op\":\"ping\"}\n");
    assert_true(starts_with(hear(t), "{\"id\":1,\"event\":\"done\""));
    talk_close(t);
    stop(f);
    /* no socket at all: refused, and left alone */
    FILE *file = fopen(f->path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(listen_path_probe(f->path, &e), ST_ERR_EXISTS);
    assert_int_equal(unlink(f->path), 0);
    /* too long */
    char path[120];
    memset(path, 'x', sizeof path);
    path[108] = '\0';
    assert_int_equal(api_socket_path_check(path, &e), ST_ERR_LIMIT);
    assert_string_equal(e.text, "socket path has 108 bytes, the system allows 107");
    path[107] = '\0';
    assert_int_equal(api_socket_path_check(path, &e), ST_OK);
}

static void the_service_manager_is_told(void **state)
{
    fixture *f = *state;
    char path[96], word[32];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    (void)snprintf(path, sizeof path, "%s/notify", f->folder);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    notify_ready(path);
    ssize_t n = recv(fd, word, sizeof word, MSG_DONTWAIT);
    close(fd);
    unlink(path);
    assert_int_equal(n, 8);
    assert_memory_equal(word, "READY=1\n", 8);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
            cmocka_unit_test_setup_teardown(answers_of_the_loop, setup, teardown),
            cmocka_unit_test_setup_teardown(events_in_order, setup, teardown),
            cmocka_unit_test_setup_teardown(busy_and_cancel, setup, teardown),
            cmocka_unit_test_setup_teardown(half_close_delivers, setup, teardown),
            cmocka_unit_test_setup_teardown(vanished_clients_cancel, setup, teardown),
            cmocka_unit_test_setup_teardown(unread_answers_end_the_connection, setup, teardown),
            cmocka_unit_test_setup_teardown(unread_pings_pause, setup, teardown),
            cmocka_unit_test_setup_teardown(long_answer_arrives_whole, setup, teardown),
            cmocka_unit_test_setup_teardown(line_over_the_limit, setup, teardown),
            cmocka_unit_test_setup_teardown(many_connections, setup, teardown),
            cmocka_unit_test_setup_teardown(the_signal_drains, setup, teardown),
            cmocka_unit_test_setup_teardown(tcp_beside_the_socket_file, setup, teardown),
            cmocka_unit_test_setup_teardown(socket_files, setup, teardown),
            cmocka_unit_test_setup_teardown(the_service_manager_is_told, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
