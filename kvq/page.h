/*
 * The bytes of a packed page, and the only place that knows them: 128 tokens of one (layer, KV head), K and V.
 *
 *   K code plane, or the high one of two   32 d bytes, fragment order (kernels/fragment.h)
 *   low K code plane (two planes only)     32 d
 *   V code plane                           32 d
 *   K row scales                           128 x fp16, little-endian
 *   K row zeros (has_zero only)            128 x fp16
 *   V row scales                           128 x fp16
 *   V row zeros (has_zero only)            128 x fp16
 *
 * Rows past the filled ones are all zero bytes. A row's value is scale * level[code]; with two planes
 * scale * (4 high + low - 7.5); with zeros scale * (code - zero). A `bf16` page has no codes: K [128][d], then
 * V [128][d], as bf16.
 */
#ifndef EPIMEM_KVQ_PAGE_H
#define EPIMEM_KVQ_PAGE_H

#include "kernels/fragment.h"
#include "kernels/kernels.h"

enum {
    /* Part of every codec's fingerprint: raise it when anything moves here or in fragment.h, or a rule of rows.h
     * gives other bytes. */
    KVQ_PAGE_VERSION = 2,
    KVQ_PAGE_SCALES_BYTES = KRN_PAGE_ROWS * 2
};
_Static_assert((int)KRN_PAGE_ROWS == (int)KRN_FRAGMENT_TOKENS, "a page is one plane of tokens");

/* Fills the offsets and the size from d, k_planes and has_zero. */
static inline void kvq_page_lay_out(krn_page_format *f)
{
    uint32_t plane = krn_fragment_plane_bytes(f->d), at = 0;
    f->k_plane_at[0] = at;
    f->k_plane_at[1] = f->k_planes == 2 ? plane : 0;
    at += plane * (uint32_t)f->k_planes;
    f->v_plane_at = at;
    at += plane;
    f->k_scale_at = at;
    at += KVQ_PAGE_SCALES_BYTES;
    f->k_zero_at = f->has_zero ? at : 0;
    at += f->has_zero ? KVQ_PAGE_SCALES_BYTES : 0;
    f->v_scale_at = at;
    at += KVQ_PAGE_SCALES_BYTES;
    f->v_zero_at = f->has_zero ? at : 0;
    at += f->has_zero ? KVQ_PAGE_SCALES_BYTES : 0;
    f->bytes = at;
}

static inline uint32_t kvq_page_bf16_bytes(int d)
{
    return 2u * KRN_PAGE_ROWS * (uint32_t)d * 2u;
}

/* fp16 number `row` of the array at `at`. */
static inline uint16_t kvq_page_get_half(const uint8_t *page, uint32_t at, int row)
{
    const uint8_t *p = page + at + 2 * row;
    return (uint16_t)(p[0] | (p[1] << 8));
}

static inline void kvq_page_set_half(uint8_t *page, uint32_t at, int row, uint16_t half)
{
    uint8_t *p = page + at + 2 * row;
    p[0] = (uint8_t)half;
    p[1] = (uint8_t)(half >> 8);
}

#endif
