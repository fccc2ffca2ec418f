/* epimem eval: a table of measurements. */
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/eval_internal.h"

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} programs[] = {
        {"codec", "what a coded cache costs in words, on your text", eval_codec_main},
        {"needle", "what is left of a fact, by its place in the context", eval_needle_main},
        {"memory", "what memory is worth, on conversations with annotated questions", eval_memory_main},
};
enum { N_PROGRAMS = sizeof programs / sizeof programs[0] };

static int help(FILE *to)
{
    (void)fprintf(to, "usage: epimem eval WHAT [options]\n\n");
    for (int i = 0; i < N_PROGRAMS; i++) {
        (void)fprintf(to, "  %-8s %s\n", programs[i].name, programs[i].about);
    }
    (void)fprintf(to, "\nepimem eval WHAT --help says more.\n");
    return to == stdout ? 0 : 2;
}

int agent_eval_main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return help(stdout);
    }
    for (int i = 0; i < N_PROGRAMS; i++) {
        if (strcmp(name, programs[i].name) == 0) {
            return programs[i].run(argc - 1, argv + 1);
        }
    }
    if (name[0] != '\0') {
        (void)fprintf(stderr, "epimem eval: there is no \"%.40s\"\n", name);
    }
    return help(stderr);
}
