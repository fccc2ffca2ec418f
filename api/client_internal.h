/*
 * A client of the line protocol for the programs: one connection, blocking. With a model instead of a socket it starts
 * a private server (this program again, on a socket in a temporary folder) and stops it at the end.
 */
#ifndef EPIMEM_API_CLIENT_INTERNAL_H
#define EPIMEM_API_CLIENT_INTERNAL_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "api/config_internal.h"

/* Where the server is, or what to start. Every program has these flags; client_flags lists them. */
typedef struct client_options {
    const char *socket, *host;
    int64_t port;
    const char *model, *encoder, *data, *codec, *calibration, *chat_template,
            *device; /* of a private server */
    int64_t threads, context_tokens, recall_tokens;
} client_options;

#define CLIENT_OPTIONS_DEFAULT \
    {                          \
        .port = 8080           \
    }
/* The flags of these options, to head a program's own list. */
#define CLIENT_FLAGS(o)                                                                                     \
    {"--socket", NULL, "PATH", FLAG_TEXT, &(o).socket, "socket of the server"},                             \
            {"--host", NULL, "HOST", FLAG_TEXT, &(o).host, "or its TCP address"},                           \
            {"--port", NULL, "N", FLAG_INTEGER, &(o).port, "and port; default 8080"},                       \
            {"--model", "-m", "FILE", FLAG_TEXT, &(o).model, "or a model: a server of its own is started"}, \
            {"--encoder", "-e", "FOLDER", FLAG_TEXT, &(o).encoder, "with this encoder"},                    \
            {"--data", NULL, "FOLDER", FLAG_TEXT, &(o).data, "and this data folder"},                       \
            {"--codec", NULL, "NAME", FLAG_TEXT, &(o).codec, "and codec"},                                  \
            {"--calibration", NULL, "FILE", FLAG_TEXT, &(o).calibration, "and calibration"},                \
            {"--chat-template", NULL, "NAME", FLAG_TEXT, &(o).chat_template, "and chat template"},          \
            {"--threads", "-t", "N", FLAG_INTEGER, &(o).threads, "and threads"},                            \
            {"--device", NULL, "NAME", FLAG_TEXT, &(o).device, "and device: cpu, cuda or auto"},            \
            {"--context", "-c", "N", FLAG_INTEGER, &(o).context_tokens, "and context in tokens"},           \
    {                                                                                                       \
        "--recall-tokens", NULL, "N", FLAG_INTEGER, &(o).recall_tokens, "and tokens recalled per question"  \
    }

typedef struct client client;

status client_open(const client_options *o, client **out, err *e);
void client_close(client *c);

/* Sends one request, its id set to a fresh number (taken over; NULL is out of memory). */
status client_send(client *c, cJSON *request, int64_t *id, err *e);
/* The next event, of whatever request; the caller's. ST_ERR_CANCELLED when a signal came in between: call again. */
status client_receive(client *c, cJSON **event, err *e);

/* Token and progress events of a request. */
typedef void (*client_on_event)(void *user, const cJSON *event);
/* Sends and waits for the end: *done is the caller's. An error event is ST_ERR_ARG with code and message in e
 * (ST_ERR_NOT_FOUND for a session that does not exist). SIGINT after client_watch_interrupt cancels the request: it
 * then ends with done. */
status client_ask(client *c, cJSON *request, client_on_event on_event, void *user, cJSON **done, err *e);
/* SIGINT no longer ends the process but the request under way. */
void client_watch_interrupt(void);
bool client_was_interrupted(void); /* since the last call */

/* {"op":op}; session may be NULL. NULL when memory is out. */
cJSON *client_request(const char *op, const char *session);

/* Members of an event, with what to take when they are absent. */
int64_t client_integer(const cJSON *object, const char *name);
double client_real(const cJSON *object, const char *name);
const char *client_text(const cJSON *object, const char *name);

/* At most `columns` characters of the text on one line, "..." where it was cut. */
void client_print_cut(FILE *out, const char *text, int columns);
void client_print_json(const cJSON *object);

/* One line per episode: title, date, score, tokens. only_used: those that an answer was decoded on. */
void client_print_episodes(
        FILE *out, const cJSON *episodes, bool only_used, const char *before, const char *after);

/* ---- client_spawn.c ---- */
typedef struct private_server private_server;
status private_server_start(const client_options *o, private_server **out, err *e);
const char *private_server_socket(const private_server *p);
void private_server_stop(private_server *p);

#endif
