/* JSON lines for the small programs (tokenize, score, generate, embed): one request a line in, one answer a line out,
 * in order, flushed per line. A bad line is answered by {"error": "..."} on its own line and the exit status becomes 1.
 *
 * Outside JSON is checked here before cJSON sees it (cJSON takes trailing bytes, bad UTF-8, and lets \u0000 cut a
 * string): what passes jsonl_parse is one well-formed RFC 8259 value and nothing after it. */
#ifndef EPIMEM_AGENT_JSONL_INTERNAL_H
#define EPIMEM_AGENT_JSONL_INTERNAL_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "kernels/base.h"

enum { JSONL_LINE_BYTES_MAX = 16 << 20, JSONL_DEPTH_MAX = 64, JSONL_MEMBERS_MAX = 64 };

/* Answers one request: fills `reply`, an empty object. On failure the reply is dropped and e becomes the error line. */
typedef status (*jsonl_answer)(void *ctx, const cJSON *request, cJSON *reply, err *e);

/* Reads requests until the end of input; returns the process's exit status: 0, or 1 after any error line or when the
 * output cannot be written. Every input line gets one output line, an empty one too (it is not JSON). */
int jsonl_run(FILE *in, FILE *out, jsonl_answer answer, void *ctx);

/* Strict: UTF-8, the whole grammar, one value, depth at most 64, objects of at most 64 members with no name twice, no
 * \u0000 and no half surrogate pair. ST_ERR_FORMAT says what and at which byte. The caller frees with cJSON_Delete. */
status jsonl_parse(const char *text, size_t bytes, cJSON **out, err *e);
/* The grammar alone, without building anything; jsonl_parse's first step. */
status jsonl_check(const char *text, size_t bytes, err *e);

/* Getters of a request's members. Names are matched exactly; ST_ERR_FORMAT names the member. A missing member yields
 * the default where there is one. */
status jsonl_get_bool(const cJSON *o, const char *name, bool missing, bool *out, err *e);
status jsonl_get_int(
        const cJSON *o, const char *name, int64_t missing, int64_t min, int64_t max, int64_t *out, err *e);
bool jsonl_has(const cJSON *o, const char *name);
/* The text of a request: member "text", or "b64" for bytes that JSON cannot carry; exactly one of them. Replaces the
 * content of `out`, which the caller frees; out->max is set when it is 0. */
status jsonl_get_text(const cJSON *o, base_buf *out, err *e);
/* An array of whole numbers in [0, limit): appended to *ids, which the caller frees with base_free. */
status jsonl_get_ids(const cJSON *o, const char *name, int32_t limit, int32_t **ids, size_t *n, err *e);

/* Standard alphabet, padding required, nothing else allowed. Appends. */
status jsonl_base64_decode(const char *text, size_t bytes, base_buf *out, err *e);

/* Members of a reply. ST_ERR_MEMORY is the only failure. Text may hold any bytes: ill-formed UTF-8 becomes U+FFFD. */
status jsonl_add_text(cJSON *reply, const char *name, const void *text, size_t bytes);
status jsonl_add_ids(cJSON *reply, const char *name, const int32_t *ids, size_t n);
status jsonl_add_floats(
        cJSON *reply, const char *name, const float *x, size_t n); /* 9 digits: exact; NaN as null */

#endif
