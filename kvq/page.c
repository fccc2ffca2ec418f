/* Pages: encode and decode. Positions of codes come from kernels/fragment.h, of everything else from kvq/page.h. */
#include "kvq/page.h"

#include <string.h>

#include "kvq/codec.h"

/* ---- encode ---- */

static status refuse_nonfinite(const uint16_t *x, int rows, int d, const char *what, err *e)
{
    for (int row = 0; row < rows; row++) {
        uint32_t bad = 0;
        for (int c = 0; c < d; c++) {
            bad |= (x[(size_t)row * (size_t)d + (size_t)c] & 0x7f80u) == 0x7f80u;
        }
        if (bad != 0) {
            return FAIL(e, ST_ERR_ARG, "%s of row %d is not finite", what, row);
        }
    }
    return ST_OK;
}

/* A byte of a plane holds four codes of one pair of bits: of channels 16 apart (keys), of tokens 16 apart (values). */
static inline uint8_t four_codes(const uint8_t *codes, size_t stride, int down)
{
    return (uint8_t)((codes[0] >> down & 3) | (codes[stride] >> down & 3) << 2 |
            (codes[2 * stride] >> down & 3) << 4 | (codes[3 * stride] >> down & 3) << 6);
}

/* One key row; `down` picks the pair of bits of a code that goes to this plane. */
static void pack_k_row(uint8_t *plane, int d, int row, const uint8_t *codes, int down)
{
    for (int from = 0; from < d; from += 64) {
        for (int c = from; c < from + 16; c++) {
            plane[KRN_FRAGMENT_K_BYTE(d, row, c)] = four_codes(codes + c, 16, down);
        }
    }
}

/* All value rows, codes [KRN_PAGE_ROWS][d]. */
static void pack_v(uint8_t *plane, int d, const uint8_t *codes)
{
    for (int from = 0; from < KRN_PAGE_ROWS; from += 64) {
        for (int token = from; token < from + 16; token++) {
            const uint8_t *row = codes + token * d;
            for (int c = 0; c < d; c++) {
                plane[KRN_FRAGMENT_V_BYTE(token, c)] = four_codes(row + c, 16 * (size_t)d, 0);
            }
        }
    }
}

static void encode_rows(const kvq_layer *layer, const uint16_t *k, const uint16_t *v, int rows, uint8_t *page)
{
    const krn_page_format *f = &layer->format;
    size_t d = (size_t)f->d;
    uint8_t v_codes[KRN_PAGE_ROWS * 256] = {0};
    kvq_row row;
    memset(page, 0, f->bytes);
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * d;
        layer->encode_k(k + at, f->d, &row);
        pack_k_row(page + f->k_plane_at[0], f->d, r, row.codes, f->k_planes == 2 ? 2 : 0);
        if (f->k_planes == 2) {
            pack_k_row(page + f->k_plane_at[1], f->d, r, row.codes, 0);
        }
        kvq_page_set_half(page, f->k_scale_at, r, row.scale);
        if (f->has_zero) {
            kvq_page_set_half(page, f->k_zero_at, r, row.zero);
        }
        layer->encode_v(v + at, f->d, &row);
        memcpy(v_codes + at, row.codes, d);
        kvq_page_set_half(page, f->v_scale_at, r, row.scale);
        if (f->has_zero) {
            kvq_page_set_half(page, f->v_zero_at, r, row.zero);
        }
    }
    pack_v(page + f->v_plane_at, f->d, v_codes);
}

static void copy_bf16_rows(int d, const uint16_t *k, const uint16_t *v, int rows, uint8_t *page)
{
    size_t half = kvq_page_bf16_bytes(d) / 2, filled = (size_t)rows * (size_t)d * sizeof *k;
    memset(page, 0, 2 * half);
    memcpy(page, k, filled);
    memcpy(page + half, v, filled);
}

static status code_trial(
        const kvq_codec *c, const uint16_t *k, const uint16_t *v, int rows, uint8_t *page, err *e)
{
    size_t n = (size_t)rows * (size_t)c->shape.d;
    uint16_t *stored = base_alloc(2 * (n + 1) * sizeof *stored);
    float *x = base_alloc(2 * (n + 1) * sizeof *x);
    status s = stored != NULL && x != NULL ? ST_OK : FAIL(e, ST_ERR_MEMORY, "out of memory for a page");
    if (s == ST_OK) {
        for (size_t i = 0; i < n; i++) {
            x[i] = base_bf16_to_f32(k[i]);
            x[n + i] = base_bf16_to_f32(v[i]);
        }
        s = rows > 0 ? c->trial_coder(c, x, x + n, rows, e) : ST_OK;
    }
    if (s == ST_OK) {
        for (size_t i = 0; i < 2 * n; i++) {
            stored[i] = base_f32_to_bf16(x[i]);
        }
        copy_bf16_rows(c->shape.d, stored, stored + n, rows, page);
    }
    base_free(stored);
    base_free(x);
    return s;
}

status kvq_encode_page(const kvq_codec *c,
        int layer,
        int head,
        const uint16_t *k,
        const uint16_t *v,
        int rows,
        uint8_t *page,
        err *e)
{
    (void)kvq_page_at(c, layer, head);
    REQUIRE(rows >= 0 && rows <= KRN_PAGE_ROWS);
    TRY(refuse_nonfinite(k, rows, c->shape.d, "the key", e));
    TRY(refuse_nonfinite(v, rows, c->shape.d, "the value", e));
    if (c->trial_coder != NULL) {
        return code_trial(c, k, v, rows, page, e);
    }
    if (c->is_bf16) {
        copy_bf16_rows(c->shape.d, k, v, rows, page);
    } else {
        encode_rows(&c->layers[layer], k, v, rows, page);
    }
    return ST_OK;
}

/* ---- decode ---- */

static float value_of(const krn_page_format *f, const float *level, uint32_t code, float scale, float zero)
{
    return f->has_zero ? scale * ((float)code - zero) : scale * level[code];
}

static void decode_k_row(const krn_page_format *f, const uint8_t *page, int row, float *k)
{
    float scale = base_f16_to_f32(kvq_page_get_half(page, f->k_scale_at, row));
    float zero = f->has_zero ? base_f16_to_f32(kvq_page_get_half(page, f->k_zero_at, row)) : 0.0f;
    for (int c = 0; c < f->d; c++) {
        uint32_t code = krn_fragment_get_k(page + f->k_plane_at[0], f->d, row, c);
        if (f->k_planes == 2) {
            code = 4 * code + krn_fragment_get_k(page + f->k_plane_at[1], f->d, row, c);
            k[c] = scale * ((float)code - 7.5f);
        } else {
            k[c] = value_of(f, f->k_level, code, scale, zero);
        }
    }
}

static void decode_v_row(const krn_page_format *f, const uint8_t *page, int row, float *v)
{
    float scale = base_f16_to_f32(kvq_page_get_half(page, f->v_scale_at, row));
    float zero = f->has_zero ? base_f16_to_f32(kvq_page_get_half(page, f->v_zero_at, row)) : 0.0f;
    for (int c = 0; c < f->d; c++) {
        v[c] = value_of(f, f->v_level, krn_fragment_get_v(page + f->v_plane_at, row, c), scale, zero);
    }
}

static void expand_bf16(const uint8_t *bytes, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = base_bf16_to_f32((uint16_t)(bytes[2 * i] | (bytes[2 * i + 1] << 8)));
    }
}

void kvq_decode_page(const kvq_codec *c, int layer, int head, const uint8_t *page, float *k, float *v)
{
    (void)kvq_page_at(c, layer, head);
    const krn_page_format *f = &c->layers[layer].format;
    size_t d = (size_t)f->d;
    if (c->is_bf16) {
        expand_bf16(page, KRN_PAGE_ROWS * d, k);
        expand_bf16(page + f->bytes / 2, KRN_PAGE_ROWS * d, v);
        return;
    }
    for (int row = 0; row < KRN_PAGE_ROWS; row++) {
        decode_k_row(f, page, row, k + (size_t)row * d);
        decode_v_row(f, page, row, v + (size_t)row * d);
    }
}
