/* GGUF v2 and v3 reader over a map: believes no length, count, offset, type or rank before it has compared it with
 * the bytes that are left. Every error names the file, the key or tensor, what was read and what was expected. */
#ifndef EPIMEM_AGENT_GGUF_INTERNAL_H
#define EPIMEM_AGENT_GGUF_INTERNAL_H

#include "kernels/kernels.h"

typedef struct gguf gguf;
typedef struct gguf_string {
    const char *data; /* into the map, not NUL-terminated */
    size_t bytes;
} gguf_string;
typedef struct gguf_tensor {
    gguf_string name;
    krn_type type;
    int rank;        /* 1 to 4 */
    int64_t size[4]; /* size[0] is the contiguous axis (cols); unused ones are 1 */
    const void *data;
    uint64_t bytes;
} gguf_tensor;

status gguf_open(const char *path, gguf **out, err *e);
status gguf_open_memory(
        const void *data, size_t bytes, const char *name, gguf **out, err *e); /* borrowed; fuzzing */
void gguf_close(gguf *g);
const char *gguf_path(const gguf *g);

/* Getters: ST_ERR_NOT_FOUND when the key is missing, ST_ERR_FORMAT when its type is another (named in e). */
status gguf_get_u64(const gguf *g, const char *key, uint64_t *out, err *e); /* any integer type, >= 0 */
status gguf_get_f64(const gguf *g, const char *key, double *out, err *e);   /* F32 or F64 */
status gguf_get_bool(const gguf *g, const char *key, bool *out, err *e);
status gguf_get_string(const gguf *g, const char *key, gguf_string *out, err *e);
status gguf_get_string_array(
        const gguf *g, const char *key, const gguf_string **out, size_t *n, err *e); /* owned by g */
status gguf_get_i32_array(
        const gguf *g, const char *key, const int32_t **out, size_t *n, err *e); /* owned by g */
status gguf_get_f32_array(const gguf *g, const char *key, const float **out, size_t *n, err *e);
bool gguf_has(const gguf *g, const char *key);
const gguf_tensor *gguf_find(const gguf *g, const char *name); /* NULL when missing */
size_t gguf_tensor_count(const gguf *g);
const gguf_tensor *gguf_tensor_at(const gguf *g, size_t i);

#endif
