/*
 * Vectors as bytes, so that a session comes back without its texts being embedded again. The bytes hold vectors alone:
 * which texts they belong to follows from the utterances. Little-endian; one record per utterance range:
 *
 *   u32 version | u32 dim | per utterance: named, bare, pieces | each: f32 step, int8 codes[dim]
 */
#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored vectors are little-endian");

enum { STORED_VERSION = 1, HEADER_BYTES = 8 };

static status put_vector(const ep_vectors *pool, int64_t i, base_buf *out)
{
    TRY(base_buf_append(out, &pool->steps[i], sizeof *pool->steps));
    return base_buf_append(out, pool->codes + (size_t)i * (size_t)pool->dim, (size_t)pool->dim);
}

static status put_item_vectors(const ep_index *x, int64_t i, base_buf *out)
{
    const ep_item *u = &x->items[i];
    for (int w = 0; w < ep_windows_ending_at(u); w++) {
        TRY(put_vector(&x->named, u->first_window + w, out));
        TRY(put_vector(&x->bare, u->first_window + w, out));
    }
    for (int p = 0; p < u->parts; p++) {
        TRY(put_vector(&x->parts, u->first_part + p, out));
    }
    return ST_OK;
}

status ep_index_vectors(const ep_index *x, int64_t first, int64_t n, base_buf *out, err *e)
{
    if (first < 0 || n < 0 || n > x->n_items - first) {
        return FAIL(e, ST_ERR_ARG, "utterances %lld to %lld of %lld", (long long)first, (long long)(first + n),
                (long long)x->n_items);
    }
    uint32_t header[2] = {STORED_VERSION, (uint32_t)x->ops.dim};
    size_t old = out->size;
    status s = base_buf_append(out, header, sizeof header);
    for (int64_t i = first; s == ST_OK && i < first + n; i++) {
        s = put_item_vectors(x, i, out);
    }
    if (s != ST_OK) {
        out->size = old;
        return FAIL(e, s, "no room for the vectors of %lld utterances", (long long)n);
    }
    return ST_OK;
}

typedef struct reader {
    const uint8_t *at, *end;
} reader;

static status take_vector(ep_index *x, reader *r, ep_target to, int64_t owner)
{
    float step = 0;
    if ((size_t)(r->end - r->at) < sizeof step + (size_t)x->ops.dim) {
        return ST_ERR_CORRUPT;
    }
    memcpy(&step, r->at, sizeof step);
    /* A unit vector has no component above 1. -128 is never written. */
    if (!(step >= 0 && step <= 1.001f / 127)) {
        return ST_ERR_CORRUPT;
    }
    const int8_t *codes = (const int8_t *)(r->at + sizeof step);
    TRY(ep_vector_store(x, to, owner, codes, step));
    r->at += sizeof step + (size_t)x->ops.dim;
    return ST_OK;
}

static status take_item(ep_index *x, reader *r, int64_t i)
{
    ep_item *u = &x->items[i];
    size_t bytes = 0, at = 0;
    const char *text = ep_item_text(u, &bytes);
    ep_slice piece;
    for (int w = 0; w < ep_windows_ending_at(u); w++) {
        TRY(take_vector(x, r, EP_TO_NAMED, i));
        TRY(take_vector(x, r, EP_TO_BARE, i));
    }
    while (ep_is_long(u) && ep_chunk_next(text, bytes, &at, &piece)) {
        TRY(take_vector(x, r, EP_TO_PARTS, i));
        u->parts++;
    }
    return ST_OK;
}

status ep_windows_restore(ep_index *x, int64_t from, int n, const uint8_t *stored, size_t bytes, err *e)
{
    uint32_t header[2] = {0, 0};
    if (bytes < HEADER_BYTES) {
        return FAIL(e, ST_ERR_CORRUPT, "stored vectors: %zu bytes are no header", bytes);
    }
    memcpy(header, stored, HEADER_BYTES);
    if (header[0] != STORED_VERSION || header[1] != (uint32_t)x->ops.dim) {
        return FAIL(e, ST_ERR_MISMATCH, "stored vectors: version %u, dimension %u; expected %d and %d", header[0],
                header[1], STORED_VERSION, x->ops.dim);
    }
    reader r = {stored + HEADER_BYTES, stored + bytes};
    status s = ST_OK;
    for (int64_t i = from; s == ST_OK && i < from + n; i++) {
        s = take_item(x, &r, i);
    }
    if (s == ST_OK && r.at != r.end) {
        s = ST_ERR_CORRUPT;
    }
    return s == ST_OK || s == ST_ERR_MEMORY ? s : FAIL(e, s, "stored vectors do not fit the utterances");
}
