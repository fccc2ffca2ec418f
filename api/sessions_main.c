/* epimem sessions list | show ID | erase ID, and epimem match. */
#include <string.h>

#include "api/api.h"
#include "api/client_internal.h"
#include "api/json_internal.h"

enum { PAGE_SESSIONS = 100 };

static void print_json(const cJSON *done)
{
    char *text = cJSON_PrintUnformatted(done);
    (void)printf("%s\n", text != NULL ? text : "{}");
    cJSON_free(text);
}

static void print_session_line(const cJSON *s)
{
    (void)printf("%-24s %8lld %10lld  %s\n", client_text(s, "session"), (long long)client_integer(s, "turns"),
            (long long)client_integer(s, "tokens"), client_text(s, "last_used"));
}

static cJSON *list_request(const char *after)
{
    cJSON *request = client_request("session.list", NULL);
    bool good = request != NULL && cJSON_AddNumberToObject(request, "limit", PAGE_SESSIONS) != NULL &&
            (after[0] == '\0' || cJSON_AddStringToObject(request, "after", after) != NULL);
    if (!good) {
        cJSON_Delete(request);
        return NULL;
    }
    return request;
}

/* Page by page. *next is the name to go on after; "" at the end. */
static status list_page(client *c, bool json, char **next, err *e)
{
    cJSON *done = NULL;
    const cJSON *s;
    TRY(client_ask(c, list_request(*next != NULL ? *next : ""), NULL, NULL, &done, e));
    cJSON_ArrayForEach(s, json_find(done, "sessions"))
    {
        if (json) {
            print_json(s);
        } else {
            print_session_line(s);
        }
    }
    char *copy = base_strdup(client_text(done, "next"));
    cJSON_Delete(done);
    if (copy == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    base_free(*next);
    *next = copy;
    return ST_OK;
}

static status list(client *c, bool json, err *e)
{
    char *next = NULL;
    status st = ST_OK;
    if (!json) {
        (void)printf("%-24s %8s %10s  %s\n", "SESSION", "TURNS", "TOKENS", "LAST USED");
    }
    do {
        st = list_page(c, json, &next, e);
    } while (st == ST_OK && next[0] != '\0');
    base_free(next);
    return st;
}

static void print_session(const cJSON *s)
{
    const cJSON *bytes = json_find(s, "bytes");
    (void)printf(
            "session    %s\ncreated    %s\nlast used  %s\nturns      %lld\ntokens     %lld\nsegments   %lld\n"
            "episodes   %lld\nbytes      %lld pinned, %lld coded, %lld recent\nmodel      %s\ncodec      "
            "%s\n",
            client_text(s, "session"), client_text(s, "created"), client_text(s, "last_used"),
            (long long)client_integer(s, "turns"), (long long)client_integer(s, "tokens"),
            (long long)client_integer(s, "segments"), (long long)client_integer(s, "episodes"),
            (long long)client_integer(bytes, "pinned"), (long long)client_integer(bytes, "coded"),
            (long long)client_integer(bytes, "recent"), client_text(s, "model"), client_text(s, "codec"));
    if (client_text(s, "expires")[0] != '\0') {
        (void)printf("expires    %s\n", client_text(s, "expires"));
    }
}

static status show(client *c, const char *session, bool json, err *e)
{
    cJSON *done = NULL, *episodes = NULL;
    TRY(client_ask(c, client_request("session.get", session), NULL, NULL, &done, e));
    status st = client_ask(c, client_request("episode.list", session), NULL, NULL, &episodes, e);
    if (st == ST_OK && json) {
        print_json(done);
        print_json(episodes);
    } else if (st == ST_OK) {
        print_session(done);
        (void)printf("\n");
        client_print_episodes(stdout, json_find(episodes, "episodes"), false, "  ", "");
    }
    cJSON_Delete(done);
    cJSON_Delete(episodes);
    return st;
}

static status erase(client *c, const char *session, bool json, err *e)
{
    cJSON *done = NULL;
    TRY(client_ask(c, client_request("session.erase", session), NULL, NULL, &done, e));
    if (json) {
        print_json(done);
    } else {
        (void)printf("%s: %lld turns erased, %lld bytes freed\n", session,
                (long long)client_integer(done, "turns"), (long long)client_integer(done, "bytes_freed"));
    }
    cJSON_Delete(done);
    return ST_OK;
}

int api_sessions_main(int argc, char **argv)
{
    client_options o = CLIENT_OPTIONS_DEFAULT;
    const char *words[2] = {NULL, NULL};
    bool json = false;
    const flag flags[] = {
            CLIENT_FLAGS(o), {"--json", NULL, NULL, FLAG_SWITCH, &json, "answers as the server sends them"}};
    program p = {.name = "sessions",
            .usage = "sessions list | show ID | erase ID  --socket PATH | -m MODEL --data FOLDER",
            .about = "Lists the sessions of a server, shows one with its episodes, or erases one with all it "
                     "held.\n",
            .flags = flags,
            .n_flags = sizeof flags / sizeof flags[0],
            .words = words,
            .words_max = 2};
    int exit_status;
    err e = {.code = ST_OK};
    if (!config_ready(&p, argc, argv, &exit_status)) {
        return exit_status;
    }
    const char *what = words[0] != NULL ? words[0] : "list";
    bool is_list = strcmp(what, "list") == 0, is_show = strcmp(what, "show") == 0,
         is_erase = strcmp(what, "erase") == 0;
    if ((!is_list && !is_show && !is_erase) || is_list != (words[1] == NULL)) {
        (void)FAIL(&e, ST_ERR_ARG, "sessions takes list, show ID or erase ID");
        (void)config_fault(&e);
        return EXIT_USAGE;
    }
    client *c = NULL;
    status st = client_open(&o, &c, &e);
    if (st == ST_OK) {
        st = is_list      ? list(c, json, &e)
                : is_show ? show(c, words[1], json, &e)
                          : erase(c, words[1], json, &e);
    }
    client_close(c);
    return st == ST_OK ? EXIT_GOOD : config_fault(&e);
}

/* ---- match ---- */

static status match(client *c, const char *session, const char *text, int64_t budget, bool json, err *e)
{
    cJSON *request = client_request("match", session), *done = NULL;
    if (request == NULL || cJSON_AddStringToObject(request, "text", text) == NULL ||
            (budget > 0 && cJSON_AddNumberToObject(request, "budget", (double)budget) == NULL)) {
        cJSON_Delete(request);
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    TRY(client_ask(c, request, NULL, NULL, &done, e));
    if (json) {
        print_json(done);
    } else {
        const cJSON *used = json_find(done, "used"), *u;
        (void)printf("%lld tokens would be recalled (floor %.2f)\n",
                (long long)client_integer(done, "recalled_tokens"), client_real(done, "floor"));
        client_print_episodes(stdout, json_find(done, "episodes"), true, "  ", "");
        cJSON_ArrayForEach(u, used)
        {
            (void)printf("    turn %lld%s%s · score %.2f · %lld tokens\n",
                    (long long)client_integer(u, "turn"), client_text(u, "ref")[0] != '\0' ? " · " : "",
                    client_text(u, "ref"), client_real(u, "score"), (long long)client_integer(u, "tokens"));
        }
    }
    cJSON_Delete(done);
    return ST_OK;
}

int api_match_main(int argc, char **argv)
{
    client_options o = CLIENT_OPTIONS_DEFAULT;
    const char *text = NULL, *session = NULL;
    int64_t budget = 0;
    bool json = false;
    const flag flags[] = {
            CLIENT_FLAGS(o),
            {"--session", "-s", "NAME", FLAG_TEXT, &session, "session that is asked"},
            {"--budget", NULL, "N", FLAG_INTEGER, &budget, "tokens to recall at most; default the server's"},
            {"--json", NULL, NULL, FLAG_SWITCH, &json, "the answer as the server sends it"},
    };
    program p = {.name = "match",
            .usage = "match TEXT --session NAME --socket PATH | -m MODEL --data FOLDER",
            .about = "Shows what a session would recall for a text, without an answer.\n",
            .flags = flags,
            .n_flags = sizeof flags / sizeof flags[0],
            .words = &text,
            .words_max = 1};
    int exit_status;
    err e = {.code = ST_OK};
    if (!config_ready(&p, argc, argv, &exit_status)) {
        return exit_status;
    }
    if (text == NULL || session == NULL) {
        (void)FAIL(&e, ST_ERR_ARG, "match needs a text and --session NAME");
        (void)config_fault(&e);
        return EXIT_USAGE;
    }
    client *c = NULL;
    status st = client_open(&o, &c, &e);
    st = st == ST_OK ? match(c, session, text, budget, json, &e) : st;
    client_close(c);
    return st == ST_OK ? EXIT_GOOD : config_fault(&e);
}
