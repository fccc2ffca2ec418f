/* Arguments of the measuring programs: what they share beyond getopt_long. */
#ifndef EPIMEM_AGENT_ARGUMENTS_INTERNAL_H
#define EPIMEM_AGENT_ARGUMENTS_INTERNAL_H

#include <getopt.h>

#include "kernels/base.h"

enum { ARGUMENTS_WORD = 1 }; /* the option that a word without one counts as */
/* Takes one option into `options`: -1 to go on, else the exit status. '?' is one that getopt_long has complained of. */
typedef int (*arguments_take)(void *options, int option, char *value);
/* Hands over every option, then every word that is left. -1, or the first exit status. */
int arguments_read(int argc,
        char **argv,
        const char *letters,
        const struct option *list,
        arguments_take take,
        void *options);
/* Says on stderr what is wrong with the arguments of `epimem PROGRAM`; the exit status for it, 2. */
int arguments_mistake(const char *program, const char *what);

/* Whole numbers from min to max: one, and up to list_max with commas between them. */
bool arguments_number(const char *text, int64_t min, int64_t max, int64_t *out);
bool arguments_numbers(const char *text, int64_t min, int64_t max, int64_t *list, int list_max, int *n);
/* The same as an int; *out stays when it is none. */
bool arguments_int(const char *text, int min, int max, int *out);

#endif
