/*
 * api: sockets. One libuv loop thread reads lines, checks and parses them, submits requests to the agent, and writes
 * events back; it never waits for disk or the model. Parsers are pure functions in files that never include uv.h.
 *
 * The programs of the `epimem` command live here too: serve, and the clients that talk to a server (chat, ingest,
 * sessions, match). api sees agent alone. docs/protocol.md is the contract of the socket.
 */
#ifndef EPIMEM_API_API_H
#define EPIMEM_API_API_H

#include "agent/agent.h"

typedef struct api_server_options {
    const char *socket_path;   /* Unix-domain socket, or NULL */
    const char *host;          /* TCP, or NULL */
    int port;                  /* 0: any free one, printed at start */
    int connections_max;       /* 0: 256 */
    size_t line_bytes_max;     /* 0: 16 MiB */
    const char *notify_socket; /* of the service manager, told when the server is ready; or NULL */
} api_server_options;

/* A socket path the system would cut is refused with both numbers, before anything is created. */
status api_socket_path_check(const char *path, err *e);
/* Serves until SIGTERM or SIGINT (drains; a second signal exits at once). Owns the loop; the caller's thread is the
 * loop thread. */
status api_serve(agent_engine *g, const api_server_options *o, err *e);

/* Programs: argv[0] is the subcommand's name; each returns the process's exit status. */
int api_serve_main(int argc, char **argv);
int api_chat_main(int argc, char **argv);
int api_ingest_main(int argc, char **argv);
int api_sessions_main(int argc, char **argv);
int api_match_main(int argc, char **argv);

#endif
