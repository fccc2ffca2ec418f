/*
 * Outside JSON, read strictly into cJSON trees.
 *
 * cJSON's own parser is not used on outside bytes: it takes trailing text, ill-formed UTF-8, NUL escapes that cut
 * strings, control characters as blanks, "01" as a number, keys twice, and rounds long integers without a word. This
 * reader accepts RFC 8259 and nothing else, within limits on depth and on the number of values (a 16 MiB line of
 * "[0,0,0..." would otherwise cost a gigabyte). The tree, its memory and its printer are cJSON's.
 *
 * A number node keeps the text it was read from in valuestring (cJSON_Delete frees it), so that an integer is exact or
 * refused. Getters are case-sensitive and name the member at fault by its path: messages[0].content.
 *
 * Pure functions; no state.
 */
#ifndef EPIMEM_API_JSON_INTERNAL_H
#define EPIMEM_API_JSON_INTERNAL_H

#include <cjson/cJSON.h>

#include "kernels/base.h"

typedef struct json_limits {
    size_t bytes_max;
    int depth_max;   /* nested arrays and objects */
    int values_max;  /* in the whole text */
    int members_max; /* of one object: each new key is compared with those before it */
} json_limits;

extern const json_limits json_line_limits; /* of a protocol line */
extern const json_limits json_file_limits; /* of a file that a person gives */

#define JSON_EXACT_MAX ((int64_t)1 << 53) /* largest magnitude of an integer that every JSON reader keeps */

/* cJSON takes its memory from base_alloc from here on; before the first tree is made, once. */
void json_use_base_memory(void);

/* One value and nothing after it but blanks. *out is the caller's (cJSON_Delete). ST_ERR_FORMAT names the byte,
 * ST_ERR_LIMIT the limit, ST_ERR_MEMORY when memory is out. */
status json_parse(const void *text, size_t bytes, const json_limits *limits, cJSON **out, err *e);

/* What is wrong with a member, for the client. */
typedef struct json_fault {
    char param[128]; /* "messages[0].content" */
    char message[256];
} json_fault;

/* An object and its path ("" for the outermost), and where a fault goes. */
typedef struct json_place {
    const cJSON *object;
    const char *path;
    json_fault *fault;
} json_place;

/* Fills the fault with "<path> <what>" and returns ST_ERR_ARG. */
status json_refuse(const json_place *at, const char *name, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

typedef enum json_need { JSON_OPTIONAL, JSON_REQUIRED } json_need;

/* Each leaves *out untouched when an optional member is absent; a member of another type or out of range is refused
 * (null too: it is no string and no number). Text belongs to the tree and holds no NUL. */
status json_get_text(const json_place *at,
        const char *name,
        json_need need,
        size_t bytes_min,
        size_t bytes_max,
        const char **out);
status json_get_integer(const json_place *at, const char *name, int64_t min, int64_t max, int64_t *out);
status json_get_real(const json_place *at, const char *name, double min, double max, float *out);
status json_get_bool(const json_place *at, const char *name, bool *out);

/* Case-sensitive; NULL when absent. */
const cJSON *json_find(const cJSON *object, const char *name);
/* The exact value of a number written as an integer within 2^53. */
bool json_exact_integer(const cJSON *number, int64_t *out);

/* Appends text as a JSON string; bytes that are not UTF-8 become U+FFFD, so that the output is always valid. */
status json_write_text(base_buf *b, const char *text, size_t bytes);

#endif
