/* check: verifies a data folder without a model: every record and blob, and that each session's log is whole. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "agent/session_internal.h"

static const char help[] = "usage: epimem check --data DIR\n"
                           "Verifies a data folder: the checksum of every record and page, and that the log "
                           "of every session is whole.\n"
                           "Changes nothing, and may run while a server uses the folder. Exit status 0: "
                           "clean; 1: something is damaged\n"
                           "(named on stdout); 2: the folder cannot be read.\n";

static void print_line(void *ctx, const char *line)
{
    (void)ctx;
    (void)printf("%s\n", line);
}

typedef struct log_check {
    store *store;
    uint64_t sessions, turns, broken;
    uint64_t expected, seen; /* of the session being walked */
} log_check;

static status count_turn(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    log_check *c = ctx;
    (void)bytes;
    c->seen += data != NULL && key->number == c->seen ? 1 : 0;
    return ST_OK;
}

static status check_session(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    log_check *c = ctx;
    session_header h;
    if (key->number != 0 || data == NULL) {
        return ST_OK; /* damaged records are named by the store's own check */
    }
    c->sessions++;
    if (session_header_parse(data, bytes, &h) != ST_OK) {
        c->broken++;
        (void)printf("session %s: the header cannot be read\n", key->session);
        return ST_OK;
    }
    c->seen = 0;
    err e = {0};
    TRY(store_walk(c->store, STORE_TURN, key->tenant, key->session, NULL, NULL, count_turn, c, &e));
    if (c->seen != h.n_turns) {
        c->broken++;
        (void)printf("session %s: %llu messages of %llu are readable\n", key->session,
                (unsigned long long)c->seen, (unsigned long long)h.n_turns);
    }
    c->turns += c->seen;
    return ST_OK;
}

static int check_folder(const char *path)
{
    char fingerprint[1024];
    err e = {0};
    store *s = NULL;
    store_check_result r = {0};
    log_check c = {0};
    status st = store_peek_fingerprint(path, fingerprint, sizeof fingerprint, &e);
    store_options o = {.path = path, .fingerprint = fingerprint, .read_only = true};
    st = st == ST_OK ? store_open(&o, &s, &e) : st;
    st = st == ST_OK ? store_check(s, print_line, NULL, &r, &e) : st;
    c.store = s;
    st = st == ST_OK ? store_walk(s, STORE_SESSION, NULL, NULL, NULL, NULL, check_session, &c, &e) : st;
    store_close(s);
    if (st != ST_OK) {
        (void)fprintf(stderr, "epimem: %s\n", e.text);
        return 2;
    }
    (void)printf("%llu sessions, %llu messages, %llu records, %llu blobs: %llu damaged; %llu left over from "
                 "interrupted writes, dropped at the next start\n",
            (unsigned long long)c.sessions, (unsigned long long)c.turns, (unsigned long long)r.records,
            (unsigned long long)r.blobs, (unsigned long long)(r.damaged + c.broken),
            (unsigned long long)r.orphans);
    return r.damaged + c.broken == 0 ? 0 : 1;
}

int agent_check_main(int argc, char **argv)
{
    static const struct option options[] = {
            {"data", required_argument, NULL, 'd'}, {"help", no_argument, NULL, 'h'}, {0}};
    const char *path = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "d:h", options, NULL)) != -1) {
        if (c == 'h') {
            (void)fputs(help, stdout);
            return 0;
        }
        if (c != 'd') {
            (void)fputs(help, stderr);
            return 2;
        }
        path = optarg;
    }
    if (path == NULL || optind != argc) {
        (void)fputs(help, stderr);
        return 2;
    }
    return check_folder(path);
}
