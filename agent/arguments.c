/* See arguments_internal.h. */
#include "agent/arguments_internal.h"

#include <stdio.h>
#include <stdlib.h>

int arguments_read(int argc,
        char **argv,
        const char *letters,
        const struct option *list,
        arguments_take take,
        void *options)
{
    int option;
    optind = 1;
    while ((option = getopt_long(argc, argv, letters, list, NULL)) != -1) {
        int exit_status = take(options, option, optarg);
        if (exit_status >= 0) {
            return exit_status;
        }
    }
    for (; optind < argc; optind++) {
        int exit_status = take(options, ARGUMENTS_WORD, argv[optind]);
        if (exit_status >= 0) {
            return exit_status;
        }
    }
    return -1;
}

int arguments_mistake(const char *program, const char *what)
{
    (void)fprintf(stderr, "epimem %s: %s; see epimem %s --help\n", program, what, program);
    return 2;
}

bool arguments_numbers(const char *text, int64_t min, int64_t max, int64_t *list, int list_max, int *n)
{
    for (*n = 0; *n < list_max; text++) {
        char *end;
        long long value = strtoll(text, &end, 10);
        if (end == text || value < min || value > max || (*end != ',' && *end != '\0')) {
            return false;
        }
        list[(*n)++] = value;
        text = end;
        if (*text == '\0') {
            return true;
        }
    }
    return false;
}

bool arguments_number(const char *text, int64_t min, int64_t max, int64_t *out)
{
    int n;
    return arguments_numbers(text, min, max, out, 1, &n);
}

bool arguments_int(const char *text, int min, int max, int *out)
{
    int64_t value;
    if (!arguments_number(text, min, max, &value)) {
        return false;
    }
    *out = (int)value;
    return true;
}
