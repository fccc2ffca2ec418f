/* epimem sessions list | show ID | erase ID. */
#include <string.h>

#include "api/api.h"
#include "api/client_internal.h"
#include "api/json_internal.h"

enum { PAGE_SESSIONS = 100 };

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
    cJSON_ArrayForEach (s, json_find(done, "sessions")) {
        if (json) {
            client_print_json(s);
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

/* ---- the map: one line an episode ---- */

/* Where in the session an episode's turns lie, from its first to its last. */
static void print_strip(int64_t first, int64_t last, int64_t turns)
{
    enum { COLUMNS = 24 };
    for (int64_t c = 0; c < COLUMNS; c++) {
        /* column c stands for turns from, from + 1, ... below to */
        int64_t from = 1 + c * turns / COLUMNS, to = 1 + (c + 1) * turns / COLUMNS;
        to = to > from ? to : from + 1;
        (void)fputs(first < to && last >= from ? "\xe2\x96\x86" : "\xc2\xb7", stdout);
    }
}

static void print_episode(const cJSON *ep, int64_t turns)
{
    enum { TITLE_COLUMNS = 48, DATE_BYTES = 10 };
    int64_t first = client_integer(ep, "first_turn"), last = client_integer(ep, "last_turn");
    int64_t recalled = client_integer(ep, "last_recalled");
    print_strip(first, last, turns);
    (void)printf(" %5lld-%-5lld %.*s to %.*s %7lld %8.1f ", (long long)first, (long long)last, DATE_BYTES,
            client_text(ep, "from")[0] != '\0' ? client_text(ep, "from") : "         -", DATE_BYTES,
            client_text(ep, "to")[0] != '\0' ? client_text(ep, "to") : "-         ",
            (long long)client_integer(ep, "tokens"), client_real(ep, "bytes") / 1024);
    if (recalled > 0) {
        (void)printf("turn %-6lld ", (long long)recalled);
    } else {
        (void)printf("%-11s ", "never");
    }
    client_print_cut(stdout, client_text(ep, "title"), TITLE_COLUMNS);
    (void)printf("\n");
}

static void print_map(const cJSON *episodes, int64_t turns)
{
    const cJSON *ep;
    (void)printf("%-24s %-11s %-24s %7s %8s %-11s %s\n", "WHERE IN THE SESSION", "    TURNS", "WHEN",
            "TOKENS", "KIB", "RECALLED", "EPISODE");
    cJSON_ArrayForEach (ep, episodes) {
        print_episode(ep, turns);
    }
}

static status show(client *c, const char *session, bool json, err *e)
{
    cJSON *done = NULL, *episodes = NULL;
    TRY(client_ask(c, client_request("session.get", session), NULL, NULL, &done, e));
    status st = client_ask(c, client_request("episode.list", session), NULL, NULL, &episodes, e);
    if (st == ST_OK && json) {
        client_print_json(done);
        client_print_json(episodes);
    } else if (st == ST_OK) {
        print_session(done);
        (void)printf("\n");
        print_map(json_find(episodes, "episodes"), client_integer(done, "turns"));
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
        client_print_json(done);
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
