/*
 * Moving coded rows between pages. A row's codes keep their two bits and change their place only, so nothing is decoded:
 * a key's are whole bytes (d 64) or words (d 128 and more) of its lines, a value's are one two-bit column of a plane, two
 * channels of which share an eight-byte word.
 */
#include <string.h>

#include "kvq/codec.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of a page are read as they lie in memory");

/* One key row: the bytes of channel pairs 2 t + 8 j1, which hold all channels equal to them mod 16. */
static void move_k_row(int d, const uint8_t *src, int src_row, uint8_t *dst, int dst_row)
{
    for (int half = 0; half < d; half += 128) {
        for (int pair = 0; pair < 16; pair += 2) {
            const uint8_t *from = src + KRN_FRAGMENT_K_BYTE(d, src_row, half + pair);
            uint8_t *to = dst + KRN_FRAGMENT_K_BYTE(d, dst_row, half + pair);
            if (d == 64) { /* the other two bytes belong to the row 16 away */
                to[0] = from[0];
                to[2] = from[2];
            } else {
                memcpy(to, from, 4);
            }
        }
    }
}

/* Where a token's codes of channels g and g + 8 lie in a line of the V plane: an eight-byte word and bits in it. */
typedef struct v_column {
    int word_at, shift;
} v_column;

static v_column column_of(int token)
{
    int byte = KRN_FRAGMENT_V_BYTE(token, 0);
    return (v_column){.word_at = byte & ~7, .shift = 8 * (byte & 3) + KRN_FRAGMENT_V_SHIFT(token)};
}
_Static_assert(KRN_FRAGMENT_V_BYTE(0, 8) == 4 && KRN_FRAGMENT_V_BYTE(0, 1) == 64,
        "the two share a word; lines of 64");

static void move_v_row(int d, const uint8_t *src, int src_row, uint8_t *dst, int dst_row)
{
    const uint64_t both = 0x0000000300000003u;
    const v_column from = column_of(src_row), to = column_of(dst_row);
    for (int line = 0; line < 32 * d; line += 64) {
        uint64_t a, b;
        memcpy(&a, src + line + from.word_at, sizeof a);
        memcpy(&b, dst + line + to.word_at, sizeof b);
        b = (b & ~(both << to.shift)) | (((a >> from.shift) & both) << to.shift);
        memcpy(dst + line + to.word_at, &b, sizeof b);
    }
}

static void move_halves(uint32_t at, const uint8_t *src, int src_row, uint8_t *dst, int dst_row, int n)
{
    memcpy(dst + at + 2 * dst_row, src + at + 2 * src_row, 2 * (size_t)n);
}

static void gather_bf16_rows(int d, const uint8_t *src, int src_row, uint8_t *dst, int dst_row, int n)
{
    size_t half = kvq_page_bf16_bytes(d) / 2, row = 2 * (size_t)d;
    for (size_t at = 0; at < 2 * half; at += half) {
        memcpy(dst + at + (size_t)dst_row * row, src + at + (size_t)src_row * row, (size_t)n * row);
    }
}

static void gather_coded_rows(
        const krn_page_format *f, const uint8_t *src, int src_row, uint8_t *dst, int dst_row, int n)
{
    for (int i = 0; i < n; i++) {
        for (int plane = 0; plane < f->k_planes; plane++) {
            uint32_t at = f->k_plane_at[plane];
            move_k_row(f->d, src + at, src_row + i, dst + at, dst_row + i);
        }
        move_v_row(f->d, src + f->v_plane_at, src_row + i, dst + f->v_plane_at, dst_row + i);
    }
    move_halves(f->k_scale_at, src, src_row, dst, dst_row, n);
    move_halves(f->v_scale_at, src, src_row, dst, dst_row, n);
    if (f->has_zero) {
        move_halves(f->k_zero_at, src, src_row, dst, dst_row, n);
        move_halves(f->v_zero_at, src, src_row, dst, dst_row, n);
    }
}

void kvq_gather_rows(
        const kvq_codec *c, int layer, const uint8_t *src, int src_row, uint8_t *dst, int dst_row, int n)
{
    const krn_page_format *f = kvq_page_format(c, layer);
    REQUIRE(n >= 0 && src_row >= 0 && dst_row >= 0 && src_row + n <= KRN_PAGE_ROWS &&
            dst_row + n <= KRN_PAGE_ROWS);
    if (c->is_bf16) {
        gather_bf16_rows(f->d, src, src_row, dst, dst_row, n);
    } else {
        gather_coded_rows(f, src, src_row, dst, dst_row, n);
    }
}
