/*
 * Settings of the programs: flags, and for each flag a twin in the environment (--recall-tokens is EPIMEM_RECALL_TOKENS;
 * the command line wins). config.c is the one file that reads the environment.
 */
#ifndef EPIMEM_API_CONFIG_INTERNAL_H
#define EPIMEM_API_CONFIG_INTERNAL_H

#include "kernels/base.h"

enum { EXIT_GOOD = 0, EXIT_FAULT = 1, EXIT_USAGE = 2 };

typedef enum flag_kind {
    FLAG_TEXT,    /* const char * */
    FLAG_INTEGER, /* int64_t */
    FLAG_SIZE,    /* uint64_t; K, M, G, T are powers of 1024 */
    FLAG_REAL,    /* float */
    FLAG_SWITCH   /* bool */
} flag_kind;

typedef struct flag {
    const char *name;     /* "--model" */
    const char *letter;   /* "-m", or NULL */
    const char *argument; /* "FILE"; NULL for a switch */
    flag_kind kind;
    void *value;
    const char *help;
} flag;

typedef struct program {
    const char *name;  /* "serve" */
    const char *usage; /* "serve -m MODEL --socket PATH [options]", a line or several */
    const char *about; /* what it does; ends with a newline */
    const flag *flags;
    size_t n_flags;
    const char **words; /* what is no flag, in order */
    int words_max;
    int n_words;
} program;

/* Reads environment and command line. ST_ERR_CANCELLED: help was asked for and printed. ST_ERR_ARG: e says what. */
status config_read(program *p, int argc, char **argv, err *e);
/* config_read for a main function: true to go on; else *exit_status is what it returns (the fault is printed). */
bool config_ready(program *p, int argc, char **argv, int *exit_status);
/* "epimem: ..." on stderr; returns EXIT_FAULT. */
int config_fault(const err *e);
/* NULL when unset or empty. */
const char *config_environment(const char *name);
/* "64M" -> 67108864. False when it is no size. */
bool config_parse_size(const char *text, uint64_t *bytes);
/* The candidate most like the word, NULL when none is close. */
const char *config_suggest(const char *word, const char *const *candidates, size_t n);

#endif
