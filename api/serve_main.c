/* epimem serve: opens the engine and serves it until a signal. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/config_internal.h"
#include "api/server_internal.h"

enum { LAYERS_UNSAID = INT_MIN };

typedef struct serve_options {
    agent_options agent;
    const char *socket, *listen, *host;
    int64_t port, threads, queue, parallel, connections, layers;
    char listen_host[256];
} serve_options;

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* "127.0.0.1:8080", "[::1]:8080" */
static status split_listen(serve_options *o, err *e)
{
    const char *text = o->listen, *colon = strrchr(text, ':');
    int port = 0, used = 0;
    size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    if (bytes == 0 || bytes >= sizeof o->listen_host || sscanf(colon + 1, "%5d%n", &port, &used) != 1 ||
            colon[1 + used] != '\0' || port < 0) {
        return FAIL(e, ST_ERR_ARG, "--listen: \"%.64s\" is not HOST:PORT", text);
    }
    if (text[0] == '[' && bytes > 2 && text[bytes - 1] == ']') {
        text++;
        bytes -= 2;
    }
    memcpy(o->listen_host, text, bytes);
    o->listen_host[bytes] = '\0';
    o->host = o->listen_host;
    o->port = port;
    return ST_OK;
}

/* Where to listen. --host takes a socket path too, as llama-server's does. */
static status resolve_listening(serve_options *o, err *e)
{
    bool host_is_path = o->host != NULL && (strchr(o->host, '/') != NULL || ends_with(o->host, ".sock"));
    if (host_is_path && o->socket != NULL) {
        return FAIL(e, ST_ERR_ARG, "--socket and --host both name a socket file");
    }
    if (host_is_path) {
        o->socket = o->host;
        o->host = NULL;
    }
    if (o->listen != NULL && o->host != NULL) {
        return FAIL(e, ST_ERR_ARG, "--listen and --host both name an address");
    }
    if (o->listen != NULL) {
        TRY(split_listen(o, e));
    }
    if (o->socket == NULL && o->host == NULL) {
        return FAIL(e, ST_ERR_ARG, "nothing to listen on: give --socket PATH or --listen HOST:PORT");
    }
    if (o->port < 0 || o->port > 65535) {
        return FAIL(e, ST_ERR_ARG, "--port: %lld is no port", (long long)o->port);
    }
    return o->socket != NULL ? listen_path_probe(o->socket, e) : ST_OK;
}

static status check_range(const char *name, int64_t value, int64_t max, err *e)
{
    if (value < 0 || value > max) {
        return FAIL(e, ST_ERR_ARG, "%s: %lld is not from 0 to %lld", name, (long long)value, (long long)max);
    }
    return ST_OK;
}

static status check_options(serve_options *o, err *e)
{
    if (o->agent.model_path == NULL) {
        return FAIL(e, ST_ERR_ARG, "serve needs a model: -m FILE.gguf");
    }
    TRY(check_range("--context", o->agent.context_tokens, INT_MAX, e));
    TRY(check_range("--recall-tokens", o->agent.recall_tokens, INT_MAX, e));
    TRY(check_range("--threads", o->threads, 1024, e));
    TRY(check_range("--queue", o->queue, 1 << 20, e));
    TRY(check_range("--parallel", o->parallel, 1 << 16, e));
    TRY(check_range("--connections", o->connections, 1 << 20, e));
    if (o->layers != LAYERS_UNSAID && o->agent.device == NULL) {
        o->agent.device = o->layers == 0 ? "cpu" : "auto";
    }
    o->agent.threads = (int)o->threads;
    o->agent.queue_max = (int)o->queue;
    o->agent.parallel_max = (int)o->parallel;
    return resolve_listening(o, e);
}

static status serve(const serve_options *o, err *e)
{
    agent_engine *engine = NULL;
    if (o->agent.data_path == NULL) {
        LOG_W("no --data: what is remembered is gone when the server ends");
    }
    TRY(agent_engine_open(&o->agent, &engine, e));
    api_server_options server = {.socket_path = o->socket,
            .host = o->host,
            .port = (int)o->port,
            .connections_max = (int)o->connections,
            .notify_socket = config_environment("NOTIFY_SOCKET")};
    status st = api_serve(engine, &server, e);
    agent_engine_close(engine, true);
    return st;
}

int api_serve_main(int argc, char **argv)
{
    serve_options o = {.port = 8080, .layers = LAYERS_UNSAID};
    agent_options_default(&o.agent);
    const flag flags[] = {
            {"--model", "-m", "FILE", FLAG_TEXT, &o.agent.model_path, "language model, GGUF"},
            {"--encoder", "-e", "FOLDER", FLAG_TEXT, &o.agent.encoder_path,
                    "sentence encoder; default all-MiniLM-L6-v2 beside the model"},
            {"--data", NULL, "FOLDER", FLAG_TEXT, &o.agent.data_path,
                    "what is remembered; default a temporary folder, removed at the end"},
            {"--socket", NULL, "PATH", FLAG_TEXT, &o.socket, "listen on a Unix-domain socket"},
            {"--listen", NULL, "HOST:PORT", FLAG_TEXT, &o.listen, "listen on TCP; port 0 is any free one"},
            {"--host", NULL, "HOST", FLAG_TEXT, &o.host, "listen on TCP, or on a socket when it is a path"},
            {"--port", NULL, "N", FLAG_INTEGER, &o.port, "port of --host; default 8080"},
            {"--context", "-c", "N", FLAG_INTEGER, &o.agent.context_tokens,
                    "context in tokens; default the model's"},
            {"--threads", "-t", "N", FLAG_INTEGER, &o.threads, "threads; default one per core"},
            {"--device", NULL, "NAME", FLAG_TEXT, &o.agent.device,
                    "cpu, cuda or auto; default auto, which is cuda if there is one"},
            {"--device-memory", NULL, "SIZE", FLAG_SIZE, &o.agent.device_bytes,
                    "of the device, for weights and cache; default nine tenths of what is free"},
            {"--n-gpu-layers", "-ngl", "N", FLAG_INTEGER, &o.layers, "as in llama.cpp: 0 is --device cpu"},
            {"--recall-tokens", NULL, "N", FLAG_INTEGER, &o.agent.recall_tokens,
                    "tokens recalled for a question, and up to how many a session is attended whole; default "
                    "512, and a quarter of the context"},
            {"--floor", NULL, "X", FLAG_REAL, &o.agent.recall_floor,
                    "cosine under which nothing is recalled; default the encoder's own"},
            {"--codec", NULL, "NAME", FLAG_TEXT, &o.agent.codec,
                    "how the cache is stored; default that of the data folder, for a new one oscar+ if there "
                    "is a "
                    "calibration, else turboquant"},
            {"--calibration", NULL, "FILE", FLAG_TEXT, &o.agent.calibration_path,
                    "of epimem calibrate; default MODEL.calibration.safetensors beside the model, if it is "
                    "there"},
            {"--chat-template", NULL, "NAME", FLAG_TEXT, &o.agent.chat_template,
                    "chatml, llama3, mistral, gemma, phi3 or zephyr; default recognised"},
            {"--alias", NULL, "NAME", FLAG_TEXT, &o.agent.alias, "model name shown to clients"},
            {"--store-cap", NULL, "SIZE", FLAG_SIZE, &o.agent.store_cap_bytes,
                    "most bytes on disk; default none"},
            {"--host-cache", NULL, "SIZE", FLAG_SIZE, &o.agent.host_cache_bytes,
                    "memory for sessions that are idle; default 1G"},
            {"--queue", NULL, "N", FLAG_INTEGER, &o.queue, "waiting requests before busy; default 64"},
            {"--parallel", NULL, "N", FLAG_INTEGER, &o.parallel, "requests that run at once; default 16"},
            {"--connections", NULL, "N", FLAG_INTEGER, &o.connections, "clients at once; default 256"},
    };
    program p = {.name = "serve",
            .usage = "serve -m MODEL [-e ENCODER] [--data FOLDER] --socket PATH | --listen HOST:PORT "
                     "[options]",
            .about = "Serves a model with memory. Clients speak lines of JSON; docs/protocol.md describes "
                     "them.\n"
                     "SIGTERM finishes what runs, a second one ends at once. Sizes take K, M and G.\n",
            .flags = flags,
            .n_flags = sizeof flags / sizeof flags[0]};
    int exit_status;
    err e = {.code = ST_OK};
    if (!config_ready(&p, argc, argv, &exit_status)) {
        return exit_status;
    }
    if (check_options(&o, &e) != ST_OK || serve(&o, &e) != ST_OK) {
        return config_fault(&e);
    }
    return EXIT_GOOD;
}
