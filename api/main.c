/* The epimem command: a table of programs. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "api/config_internal.h"
#include "api/json_internal.h"

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    (void)printf("epimem %s\n", EPIMEM_VERSION);
    return EXIT_GOOD;
}

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} programs[] = {
        {"serve", "serve a model with memory over a socket", api_serve_main},
        {"chat", "talk to it in the terminal", api_chat_main},
        {"ingest", "put a history into a session", api_ingest_main},
        {"sessions", "list, show and erase sessions", api_sessions_main},
        {"match", "what a session would recall for a text", api_match_main},
        {"check", "verify a data folder", agent_check_main},
        {"tokenize", "text to token ids, JSON lines", agent_tokenize_main},
        {"score", "log-probabilities of a text, JSON lines", agent_score_main},
        {"generate", "greedy text without a server, JSON lines", agent_generate_main},
        {"embed", "sentence embeddings, JSON lines", agent_embed_main},
        {"bench", "prefill and decode speed", agent_bench_main},
        {"calibrate", "learn a model's rotations for the oscar codecs", agent_calibrate_main},
        {"eval", "measure codecs on your own text", agent_eval_main},
        {"version", "print the version", version_main},
};
enum { N_PROGRAMS = sizeof programs / sizeof programs[0] };

static int help(void)
{
    (void)printf("usage: epimem COMMAND [options]\n\nA memory engine for conversational agents.\n\n");
    for (int i = 0; i < N_PROGRAMS; i++) {
        (void)printf("  %-10s %s\n", programs[i].name, programs[i].about);
    }
    (void)printf("\nepimem COMMAND --help says more.\n");
    return EXIT_GOOD;
}

static int unknown(const char *word)
{
    const char *names[N_PROGRAMS];
    for (int i = 0; i < N_PROGRAMS; i++) {
        names[i] = programs[i].name;
    }
    const char *near = config_suggest(word, names, N_PROGRAMS);
    (void)fprintf(stderr, "epimem: unknown command \"%s\"%s%s%s\n", word,
            near != NULL ? "; did you mean " : "; epimem --help lists them", near != NULL ? near : "",
            near != NULL ? "?" : "");
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    json_use_base_memory();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
            strcmp(argv[1], "help") == 0) {
        return help();
    }
    if (strcmp(argv[1], "--version") == 0) {
        return version_main(argc, argv);
    }
    for (int i = 0; i < N_PROGRAMS; i++) {
        if (strcmp(argv[1], programs[i].name) == 0) {
            return programs[i].run(argc - 1, argv + 1);
        }
    }
    return unknown(argv[1]);
}
