/* epimem match: what a session would recall for a text, and why. */
#include "api/api.h"
#include "api/client_internal.h"
#include "api/json_internal.h"

enum { SHOWN_MAX = 12, TEXT_COLUMNS = 64, DATE_BYTES = 10 };

/* One candidate. The score is the cosine of its best window, the rank what ordered it. */
static void print_hit(const cJSON *hit, bool with_reason)
{
    const char *time = client_text(hit, "time"), *ref = client_text(hit, "ref");
    (void)printf("  %5.2f %6.2f %6lld %5lld  %-*.*s  ", client_real(hit, "score"), client_real(hit, "rank"),
            (long long)client_integer(hit, "turn"), (long long)client_integer(hit, "tokens"), DATE_BYTES,
            DATE_BYTES, time[0] != '\0' ? time : "-");
    if (ref[0] != '\0') {
        (void)printf("%s ", ref);
    }
    if (with_reason) {
        (void)printf("[%s] ", client_text(hit, "why"));
    }
    (void)printf("%s: ", client_text(hit, "speaker"));
    client_print_cut(stdout, client_text(hit, "text"), TEXT_COLUMNS);
    (void)printf("\n");
}

static void print_hits(const cJSON *hits, bool with_reason)
{
    int shown = 0, all = cJSON_GetArraySize(hits);
    const cJSON *hit;
    if (all > 0) {
        (void)printf("  score   rank   turn   tok  when        said\n");
    }
    cJSON_ArrayForEach (hit, hits) {
        if (shown++ == SHOWN_MAX) {
            (void)printf("  and %d more\n", all - SHOWN_MAX);
            return;
        }
        print_hit(hit, with_reason);
    }
}

static void print_match(const cJSON *done)
{
    const cJSON *used = json_find(done, "used"), *unused = json_find(done, "unused");
    double best = client_real(done, "best_score"), floor = client_real(done, "floor");
    int n = cJSON_GetArraySize(used);
    (void)printf("recalled: %lld tokens, %d utterance%s, best match first\n",
            (long long)client_integer(done, "recalled_tokens"), n, n == 1 ? "" : "s");
    print_hits(used, false);
    if (n == 0) {
        (void)printf("  nothing: the best score is %.2f, and below %.2f nothing is about the question\n",
                best, floor);
    }
    if (cJSON_GetArraySize(unused) > 0) {
        (void)printf("\nlooked at and left out (floor %.2f)\n", floor);
        print_hits(unused, true);
    }
    (void)printf("\nepisodes they belong to\n");
    client_print_episodes(stdout, json_find(done, "episodes"), true, "  ", "");
}

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
        client_print_json(done);
    } else {
        print_match(done);
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
