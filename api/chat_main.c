/* epimem chat: a conversation in the terminal, or over pipes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "api/client_internal.h"
#include "api/json_internal.h"

typedef struct chat {
    client *to;
    const char *session;
    char *session_owned; /* after /session NAME */
    int64_t max_tokens, seed;
    float temperature;
    bool prompts, colours;
    bool any_fault;
} chat;

static const char dim[] = "\033[2m", plain[] = "\033[0m";

static void show_token(void *user, const cJSON *event)
{
    (void)user;
    if (strcmp(client_text(event, "event"), "token") == 0) {
        (void)fputs(client_text(event, "text"), stdout);
        (void)fflush(stdout);
    }
}

static void show_fault(chat *c, const err *e)
{
    c->any_fault = true;
    (void)fflush(stdout);
    (void)config_fault(e);
}

static cJSON *chat_request(const chat *c, const char *text)
{
    cJSON *o = client_request("chat", c->session), *messages, *m = NULL;
    bool good = o != NULL && (messages = cJSON_AddArrayToObject(o, "messages")) != NULL &&
            (m = cJSON_CreateObject()) != NULL && cJSON_AddItemToArray(messages, m) &&
            cJSON_AddStringToObject(m, "role", "user") != NULL &&
            cJSON_AddStringToObject(m, "content", text) != NULL;
    if (good && c->max_tokens > 0) {
        good = cJSON_AddNumberToObject(o, "max_tokens", (double)c->max_tokens) != NULL;
    }
    if (good && c->temperature >= 0) {
        good = cJSON_AddNumberToObject(o, "temperature", (double)c->temperature) != NULL;
    }
    if (good && c->seed >= 0) {
        good = cJSON_AddNumberToObject(o, "seed", (double)c->seed) != NULL;
    }
    if (!good) {
        cJSON_Delete(o);
        return NULL;
    }
    return o;
}

static status say(chat *c, const char *text, err *e)
{
    cJSON *done = NULL;
    status st = client_ask(c->to, chat_request(c, text), show_token, NULL, &done, e);
    (void)fputs("\n", stdout);
    if (st != ST_OK) {
        return st;
    }
    if (strcmp(client_text(done, "finish_reason"), "cancelled") == 0) {
        (void)fputs("(cancelled)\n", stdout);
    }
    client_print_episodes(stdout, json_find(json_find(done, "memory"), "episodes"), true,
            c->colours ? "\033[2m  recalled: " : "  recalled: ", c->colours ? plain : "");
    cJSON_Delete(done);
    return ST_OK;
}

static status show_episodes(const chat *c, err *e)
{
    cJSON *done = NULL;
    TRY(client_ask(c->to, client_request("episode.list", c->session), NULL, NULL, &done, e));
    const cJSON *episodes = json_find(done, "episodes");
    if (cJSON_GetArraySize(episodes) == 0) {
        (void)fputs("no episodes yet\n", stdout);
    }
    client_print_episodes(stdout, episodes, false, "  ", "");
    cJSON_Delete(done);
    return ST_OK;
}

/* Without a name: what the session holds. */
static status change_session(chat *c, const char *name, err *e)
{
    if (name[0] != '\0') {
        char *copy = base_strdup(name);
        if (copy == NULL) {
            return FAIL(e, ST_ERR_MEMORY, "out of memory");
        }
        base_free(c->session_owned);
        c->session_owned = copy;
        c->session = copy;
    }
    cJSON *done = NULL;
    status st = client_ask(c->to, client_request("session.get", c->session), NULL, NULL, &done, e);
    if (st == ST_ERR_NOT_FOUND) {
        (void)printf("%s: new\n", c->session);
        return ST_OK;
    }
    TRY(st);
    (void)printf("%s: %lld turns, %lld tokens, %lld episodes\n", c->session,
            (long long)client_integer(done, "turns"), (long long)client_integer(done, "tokens"),
            (long long)client_integer(done, "episodes"));
    cJSON_Delete(done);
    return ST_OK;
}

/* The rest of the line when it is this command (NULL when it is not). */
static const char *after_command(const char *line, const char *name)
{
    size_t n = strlen(name);
    if (strncmp(line, name, n) != 0 || (line[n] != '\0' && line[n] != ' ')) {
        return NULL;
    }
    return line + n + strspn(line + n, " ");
}

/* False at the end. */
static bool command(chat *c, const char *line)
{
    err e = {.code = ST_OK};
    status st = ST_OK;
    const char *rest;
    if (after_command(line, "/quit") != NULL || after_command(line, "/exit") != NULL) {
        return false;
    }
    if (after_command(line, "/episodes") != NULL) {
        st = show_episodes(c, &e);
    } else if ((rest = after_command(line, "/session")) != NULL) {
        st = change_session(c, rest, &e);
    } else {
        if (after_command(line, "/help") == NULL) {
            (void)printf("%s is no command.\n", line);
        }
        (void)fputs("/episodes        what the session remembers\n"
                    "/session [NAME]  the session, or another one\n"
                    "/quit            the end (Ctrl-D too); Ctrl-C stops an answer\n",
                stdout);
    }
    if (st == ST_ERR_NOT_FOUND) {
        (void)fputs("nothing has been said yet\n", stdout);
    } else if (st != ST_OK) {
        show_fault(c, &e);
    }
    return st != ST_ERR_IO;
}

static bool one_line(chat *c, char *line)
{
    err e = {.code = ST_OK};
    size_t n = strlen(line);
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
        line[--n] = '\0';
    }
    if (line[strspn(line, " \t")] == '\0') {
        return true;
    }
    if (line[0] == '/') {
        return command(c, line);
    }
    status st = say(c, line, &e);
    if (st != ST_OK) {
        show_fault(c, &e);
    }
    return st != ST_ERR_IO;
}

static void talk(chat *c)
{
    char *line = NULL;
    size_t cap = 0;
    bool go_on = true;
    while (go_on) {
        if (c->prompts) {
            (void)fputs("> ", stdout);
            (void)fflush(stdout);
        }
        if (getline(&line, &cap, stdin) < 0) {
            if (c->prompts) {
                (void)fputs("\n", stdout);
            }
            break;
        }
        go_on = one_line(c, line);
        (void)fflush(stdout);
        (void)client_was_interrupted(); /* it has ended an answer, not the conversation */
    }
    free(line); /* getline's own */
}

static void greet(chat *c)
{
    err e = {.code = ST_OK};
    if (!c->prompts) {
        return;
    }
    (void)printf("%sepimem chat, session ", c->colours ? dim : "");
    (void)change_session(c, "", &e);
    (void)printf("/help lists the commands%s\n", c->colours ? plain : "");
}

int api_chat_main(int argc, char **argv)
{
    client_options o = CLIENT_OPTIONS_DEFAULT;
    chat c = {.session = "terminal", .seed = -1, .temperature = -1};
    const flag flags[] = {
            CLIENT_FLAGS(o),
            {"--session", "-s", "NAME", FLAG_TEXT, &c.session, "session to go on with; default terminal"},
            {"--max-tokens", NULL, "N", FLAG_INTEGER, &c.max_tokens, "longest answer; default the server's"},
            {"--temperature", NULL, "X", FLAG_REAL, &c.temperature, "0 is greedy; default the server's"},
            {"--seed", NULL, "N", FLAG_INTEGER, &c.seed, "of the sampler"},
    };
    program p = {.name = "chat",
            .usage = "chat --socket PATH | -m MODEL [-e ENCODER] [--data FOLDER] [options]",
            .about = "Talks to a server in the terminal; with -m it starts one of its own and stops it at "
                     "the end.\n"
                     "After each answer come the episodes it was decoded on.\n",
            .flags = flags,
            .n_flags = sizeof flags / sizeof flags[0]};
    int exit_status;
    err e = {.code = ST_OK};
    if (!config_ready(&p, argc, argv, &exit_status)) {
        return exit_status;
    }
    bool terminal = isatty(STDOUT_FILENO) != 0;
    c.prompts = terminal && isatty(STDIN_FILENO) != 0;
    c.colours = terminal && config_environment("NO_COLOR") == NULL;
    if (client_open(&o, &c.to, &e) != ST_OK) {
        return config_fault(&e);
    }
    greet(&c);
    client_watch_interrupt();
    talk(&c);
    client_close(c.to);
    base_free(c.session_owned);
    return c.any_fault ? EXIT_FAULT : EXIT_GOOD;
}
