/* wire: the little-endian fields of stored records. A writer grows a buffer; a reader refuses what does not fit and
 * stays failed, so a record is checked once at its end. */
#ifndef EPIMEM_AGENT_WIRE_INTERNAL_H
#define EPIMEM_AGENT_WIRE_INTERNAL_H

#include <string.h>

#include "kernels/base.h"

typedef struct wire_writer {
    base_buf buf;
    status st; /* first failure */
} wire_writer;

static inline void wire_put(wire_writer *w, const void *data, size_t bytes)
{
    if (w->st == ST_OK) {
        w->st = base_buf_append(&w->buf, data, bytes);
    }
}

static inline void wire_put_u64(wire_writer *w, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++) {
        b[i] = (uint8_t)(v >> (8 * i));
    }
    wire_put(w, b, sizeof b);
}

static inline void wire_put_i64(wire_writer *w, int64_t v)
{
    wire_put_u64(w, (uint64_t)v);
}

static inline void wire_put_f32(wire_writer *w, float v)
{
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    wire_put_u64(w, u);
}

/* NULL and "" are kept apart. */
static inline void wire_put_text(wire_writer *w, const char *text, size_t bytes)
{
    wire_put_u64(w, text == NULL ? UINT64_MAX : bytes);
    if (text != NULL) {
        wire_put(w, text, bytes);
    }
}

typedef struct wire_reader {
    const uint8_t *data;
    size_t bytes, at;
    bool failed;
} wire_reader;

static inline const uint8_t *wire_get(wire_reader *r, size_t bytes)
{
    if (r->failed || bytes > r->bytes - r->at) {
        r->failed = true;
        return NULL;
    }
    const uint8_t *p = r->data + r->at;
    r->at += bytes;
    return p;
}

static inline uint64_t wire_get_u64(wire_reader *r)
{
    const uint8_t *p = wire_get(r, 8);
    uint64_t v = 0;
    for (int i = 0; p != NULL && i < 8; i++) {
        v |= (uint64_t)p[i] << (8 * i);
    }
    return v;
}

static inline int64_t wire_get_i64(wire_reader *r)
{
    return (int64_t)wire_get_u64(r);
}

static inline float wire_get_f32(wire_reader *r)
{
    uint32_t u = (uint32_t)wire_get_u64(r);
    float v;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* A heap copy, NUL-terminated; NULL for a stored NULL, and on failure (failed is set, also when memory is out). */
static inline char *wire_get_text(wire_reader *r, size_t *bytes)
{
    uint64_t n = wire_get_u64(r);
    *bytes = 0;
    if (r->failed || n == UINT64_MAX) {
        return NULL;
    }
    const uint8_t *p = n <= r->bytes ? wire_get(r, (size_t)n) : NULL;
    char *copy = p == NULL ? NULL : base_strndup((const char *)p, (size_t)n);
    r->failed = r->failed || copy == NULL;
    *bytes = copy == NULL ? 0 : (size_t)n;
    return copy;
}

/* True when everything was read and nothing is left. */
static inline bool wire_done(const wire_reader *r)
{
    return !r->failed && r->at == r->bytes;
}

#endif
