/*
 * Where the two-bit code of (token, channel) lies in a plane of a packed page: the order in which the registers of the
 * tensor-core product m16n8k16 consume it, so that one 16-byte load per lane feeds eight products and the CPU finds all
 * channels of a token in one or two 64-byte lines. A plane is 128 tokens x d channels, d = 64, 128 or 256: 32 d bytes
 * in blocks of 512.
 *
 *   512-byte block = 32 lanes x 16 bytes; lane = 4 g + t; 16 bytes = words j 0..3; word = bytes (half e of a pair) *
 *   2 + (upper four products or lower four); byte = 4 codes at bits 2 i, product i of the four.
 *
 *   K plane (rows are tokens, the sum runs over channels)    V plane (rows are channels, the sum runs over tokens)
 *     g = token mod 8        j bit 0 = token bit 3             g = channel mod 8      j bit 0 = channel bit 3
 *     t = channel bits 1-2   j bit 1 = channel bit 3           t = token bits 1-2     j bit 1 = token bit 3
 *     e = channel bit 0      i = channel bits 4-5              e = token bit 0        i = token bits 4-5
 *     upper: d 64: token bit 4; else channel bit 6             upper: token bit 6
 *     block: d 64: token / 32; d 128: token / 16;              block: channel / 16
 *            d 256: 2 (token / 16) + channel / 128
 *
 * Changing anything here changes stored pages: the golden pages under tests/data/kvq notice.
 */
#ifndef EPIMEM_KERNELS_FRAGMENT_H
#define EPIMEM_KERNELS_FRAGMENT_H

#include <stdint.h>

enum { KRN_FRAGMENT_TOKENS = 128, KRN_FRAGMENT_BLOCK_BYTES = 512 };

/* Byte inside a block from the five fields above. */
#define KRN_FRAGMENT_BYTE(g, t, j0, j1, e, upper) \
    (64 * (g) + 16 * (t) + 8 * (j1) + 4 * (j0) + 2 * (e) + (upper))

#define KRN_FRAGMENT_K_BLOCK(d, token, channel) \
    ((d) == 64 ? (token) >> 5 : (d) == 128 ? (token) >> 4 : 2 * ((token) >> 4) + ((channel) >> 7))
#define KRN_FRAGMENT_K_UPPER(d, token, channel) ((d) == 64 ? ((token) >> 4) & 1 : ((channel) >> 6) & 1)
#define KRN_FRAGMENT_K_BYTE(d, token, channel)                                                           \
    (KRN_FRAGMENT_BLOCK_BYTES * KRN_FRAGMENT_K_BLOCK(d, token, channel) +                                \
            KRN_FRAGMENT_BYTE((token)&7, ((channel) >> 1) & 3, ((token) >> 3) & 1, ((channel) >> 3) & 1, \
                    (channel)&1, KRN_FRAGMENT_K_UPPER(d, token, channel)))
#define KRN_FRAGMENT_K_SHIFT(channel) (2 * (((channel) >> 4) & 3))

#define KRN_FRAGMENT_V_BYTE(token, channel)                                                              \
    (KRN_FRAGMENT_BLOCK_BYTES * ((channel) >> 4) +                                                       \
            KRN_FRAGMENT_BYTE((channel)&7, ((token) >> 1) & 3, ((channel) >> 3) & 1, ((token) >> 3) & 1, \
                    (token)&1, ((token) >> 6) & 1))
#define KRN_FRAGMENT_V_SHIFT(token) (2 * (((token) >> 4) & 3))

/* Spot checks against the lane and register numbers of the matrix product; the bijection is a unit test. */
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 0, 0) == 0, "first code in the first byte");
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 8, 0) == 4, "register a1 holds token g + 8");
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 0, 8) == 8, "register a2 holds channels + 8");
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 0, 1) == 2, "the second of a pair is the upper half-word");
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 1, 6) == 16 * (4 * 1 + 3), "lane 4 g + t");
_Static_assert(KRN_FRAGMENT_K_BYTE(128, 0, 64) == 1 && KRN_FRAGMENT_K_SHIFT(64 + 48) == 6,
        "products 4..7 in odd bytes");
_Static_assert(KRN_FRAGMENT_K_BYTE(64, 16, 0) == 1, "d 64: two tiles share a block");
_Static_assert(KRN_FRAGMENT_K_BYTE(256, 16, 128) == 3 * 512, "d 256: two blocks a tile");
_Static_assert(KRN_FRAGMENT_V_BYTE(8, 0) == 8 && KRN_FRAGMENT_V_BYTE(0, 8) == 4, "value registers");
_Static_assert(KRN_FRAGMENT_V_BYTE(127, 255) == 32 * 256 - 1, "the last code in the last byte");

static inline uint32_t krn_fragment_plane_bytes(int d)
{
    return 32u * (uint32_t)d;
}

/* The two-bit code of (token, channel). */
static inline uint32_t krn_fragment_get_k(const uint8_t *plane, int d, int token, int channel)
{
    return ((uint32_t)plane[KRN_FRAGMENT_K_BYTE(d, token, channel)] >> KRN_FRAGMENT_K_SHIFT(channel)) & 3u;
}

static inline uint32_t krn_fragment_get_v(const uint8_t *plane, int token, int channel)
{
    return ((uint32_t)plane[KRN_FRAGMENT_V_BYTE(token, channel)] >> KRN_FRAGMENT_V_SHIFT(token)) & 3u;
}

/* Replaces the code of (token, channel). */
static inline void krn_fragment_set_k(uint8_t *plane, int d, int token, int channel, uint32_t code)
{
    uint8_t *b = plane + KRN_FRAGMENT_K_BYTE(d, token, channel);
    int shift = KRN_FRAGMENT_K_SHIFT(channel);
    *b = (uint8_t)((*b & ~(3u << shift)) | (code << shift));
}

static inline void krn_fragment_set_v(uint8_t *plane, int token, int channel, uint32_t code)
{
    uint8_t *b = plane + KRN_FRAGMENT_V_BYTE(token, channel);
    int shift = KRN_FRAGMENT_V_SHIFT(token);
    *b = (uint8_t)((*b & ~(3u << shift)) | (code << shift));
}

#endif
