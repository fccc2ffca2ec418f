/* Flags and their twins in the environment; the contract is in config_internal.h. */
#include "api/config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES_MAX = 64, WORD_BYTES_MAX = 32 };

const char *config_environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* "--recall-tokens" -> "EPIMEM_RECALL_TOKENS" */
static void twin_name(const flag *f, char out[NAME_BYTES_MAX])
{
    int n = snprintf(out, NAME_BYTES_MAX, "EPIMEM_%s", f->name + 2);
    for (int i = 0; i < n && i < NAME_BYTES_MAX - 1; i++) {
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    }
}

bool config_parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || errno != 0) {
        return false;
    }
    unsigned shift = 0;
    const char *unit = *end != '\0' ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit != NULL) {
        shift = 10u * (unsigned)(unit - units + 1);
        end++;
        end += *end == 'i' ? 1 : 0;
        end += *end == 'B' || *end == 'b' ? 1 : 0;
    }
    if (*end != '\0' || number > UINT64_MAX >> shift) {
        return false;
    }
    *bytes = (uint64_t)number << shift;
    return true;
}

static bool parse_integer(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || isspace((unsigned char)text[0])) {
        return false;
    }
    *out = value;
    return true;
}

static bool parse_real(const char *text, float *out)
{
    char *end;
    float value = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

static bool parse_switch(const char *text, bool *out)
{
    bool on = strcmp(text, "1") == 0 || strcmp(text, "true") == 0 || strcmp(text, "on") == 0;
    if (!on && strcmp(text, "0") != 0 && strcmp(text, "false") != 0 && strcmp(text, "off") != 0) {
        return false;
    }
    *out = on;
    return true;
}

/* `from` is how the user gave it: a flag or a variable. */
static status set_flag(const flag *f, const char *from, const char *text, err *e)
{
    switch (f->kind) {
    case FLAG_TEXT:
        *(const char **)f->value = text;
        return ST_OK;
    case FLAG_INTEGER:
        return parse_integer(text, f->value)
                ? ST_OK
                : FAIL(e, ST_ERR_ARG, "%s: \"%.64s\" is no whole number", from, text);
    case FLAG_SIZE:
        return config_parse_size(text, f->value)
                ? ST_OK
                : FAIL(e, ST_ERR_ARG, "%s: \"%.64s\" is no size; 512M and 20G are", from, text);
    case FLAG_REAL:
        return parse_real(text, f->value) ? ST_OK
                                          : FAIL(e, ST_ERR_ARG, "%s: \"%.64s\" is no number", from, text);
    case FLAG_SWITCH:
        break;
    }
    return parse_switch(text, f->value)
            ? ST_OK
            : FAIL(e, ST_ERR_ARG, "%s: \"%.64s\" is neither on nor off", from, text);
}

static status read_environment(const program *p, err *e)
{
    for (size_t i = 0; i < p->n_flags; i++) {
        char name[NAME_BYTES_MAX];
        twin_name(&p->flags[i], name);
        const char *text = config_environment(name);
        if (text != NULL) {
            TRY(set_flag(&p->flags[i], name, text, e));
        }
    }
    return ST_OK;
}

/* A flag by its word, up to '=' where it has one. */
static const flag *find_flag(const program *p, const char *word, size_t bytes)
{
    for (size_t i = 0; i < p->n_flags; i++) {
        const flag *f = &p->flags[i];
        bool by_name = strlen(f->name) == bytes && memcmp(f->name, word, bytes) == 0;
        bool by_letter =
                f->letter != NULL && strlen(f->letter) == bytes && memcmp(f->letter, word, bytes) == 0;
        if (by_name || by_letter) {
            return f;
        }
    }
    return NULL;
}

/* Levenshtein distance of short words; long ones are as far as can be. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[WORD_BYTES_MAX + 1];
    if (n > WORD_BYTES_MAX || m > WORD_BYTES_MAX) {
        return SIZE_MAX;
    }
    for (size_t j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = corner + (a[i - 1] != b[j - 1]);
            size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            corner = row[j];
            row[j] = change < shorter ? change : shorter;
        }
    }
    return row[m];
}

const char *config_suggest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t least = strlen(word) / 3 + 2; /* a third of the letters wrong, and one */
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, candidates[i]);
        if (d < least) {
            least = d;
            best = candidates[i];
        }
    }
    return best;
}

static status unknown_flag(const program *p, const char *word, err *e)
{
    const char *names[64];
    size_t n = p->n_flags < 64 ? p->n_flags : 64;
    for (size_t i = 0; i < n; i++) {
        names[i] = p->flags[i].name;
    }
    const char *near = config_suggest(word, names, n);
    if (near != NULL) {
        return FAIL(e, ST_ERR_ARG, "%s: unknown option %.64s; did you mean %s?", p->name, word, near);
    }
    return FAIL(e, ST_ERR_ARG, "%s: unknown option %.64s; see epimem %s --help", p->name, word, p->name);
}

static void print_help(const program *p)
{
    (void)printf("usage: epimem %s\n\n%s\noptions:\n", p->usage, p->about);
    for (size_t i = 0; i < p->n_flags; i++) {
        const flag *f = &p->flags[i];
        char left[NAME_BYTES_MAX], twin[NAME_BYTES_MAX];
        (void)snprintf(left, sizeof left, "%s%s%s%s%s", f->letter != NULL ? f->letter : "  ",
                f->letter != NULL ? ", " : "  ", f->name, f->argument != NULL ? " " : "",
                f->argument != NULL ? f->argument : "");
        twin_name(f, twin);
        (void)printf("  %-28s %s [%s]\n", left, f->help, twin);
    }
    (void)printf("  -h, --help                   this text\n");
}

static status take_word(program *p, const char *word, err *e)
{
    if (p->n_words == p->words_max) {
        return FAIL(e, ST_ERR_ARG, "%s: what is \"%.64s\" for? see epimem %s --help", p->name, word, p->name);
    }
    p->words[p->n_words++] = word;
    return ST_OK;
}

/* argv[*i] is a flag; steps over its argument. */
static status take_flag(const program *p, int argc, char **argv, int *i, err *e)
{
    const char *word = argv[*i], *equals = strchr(word, '=');
    const flag *f = find_flag(p, word, equals != NULL ? (size_t)(equals - word) : strlen(word));
    if (f == NULL) {
        return unknown_flag(p, word, e);
    }
    if (equals != NULL) {
        return set_flag(f, f->name, equals + 1, e);
    }
    if (f->kind == FLAG_SWITCH) {
        *(bool *)f->value = true;
        return ST_OK;
    }
    if (*i + 1 >= argc) {
        return FAIL(e, ST_ERR_ARG, "%s: %s needs %s", p->name, f->name, f->argument);
    }
    *i += 1;
    return set_flag(f, f->name, argv[*i], e);
}

status config_read(program *p, int argc, char **argv, err *e)
{
    bool flags_over = false;
    TRY(read_environment(p, e));
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (flags_over || word[0] != '-' || word[1] == '\0') {
            TRY(take_word(p, word, e));
        } else if (strcmp(word, "--") == 0) {
            flags_over = true;
        } else if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
            print_help(p);
            return ST_ERR_CANCELLED;
        } else {
            TRY(take_flag(p, argc, argv, &i, e));
        }
    }
    return ST_OK;
}

bool config_ready(program *p, int argc, char **argv, int *exit_status)
{
    err e = {.code = ST_OK};
    status st = config_read(p, argc, argv, &e);
    if (st == ST_OK) {
        return true;
    }
    *exit_status = EXIT_GOOD;
    if (st != ST_ERR_CANCELLED) {
        (void)config_fault(&e);
        *exit_status = EXIT_USAGE;
    }
    return false;
}

int config_fault(const err *e)
{
    (void)fprintf(stderr, "epimem: %s\n", e->text[0] != '\0' ? e->text : status_text(e->code));
    return EXIT_FAULT;
}
