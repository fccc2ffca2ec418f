/* codes: the integer part of a quantised block, one byte an element. See blocks.h for the layouts. */
#include "kernels/types/blocks.h"

static void nibbles(const uint8_t *bytes, uint8_t codes[32])
{
    for (int j = 0; j < 16; j++) {
        codes[j] = bytes[j] & 15;
        codes[j + 16] = (uint8_t)(bytes[j] >> 4);
    }
}

static void nibbles_and_fifth(const uint8_t *bytes, uint32_t high, uint8_t codes[32])
{
    nibbles(bytes, codes);
    for (int j = 0; j < 32; j++) {
        codes[j] = (uint8_t)(codes[j] | (high >> j & 1) << 4);
    }
}

static void codes_of_q4_k(const uint8_t *bytes, int g, uint8_t codes[32])
{
    int shift = g % 2 * 4;
    for (int j = 0; j < 32; j++) {
        codes[j] = bytes[g / 2 * 32 + j] >> shift & 15;
    }
}

static void codes_of_q5_k(const uint8_t *high, const uint8_t *bytes, int g, uint8_t codes[32])
{
    codes_of_q4_k(bytes, g, codes);
    for (int j = 0; j < 32; j++) {
        codes[j] = (uint8_t)(codes[j] | (high[j] >> g & 1) << 4);
    }
}

static void codes_of_q6_k(const uint8_t *block, int g, uint8_t codes[32])
{
    const uint8_t *low = block + g / 4 * 64 + g % 2 * 32;
    const uint8_t *high = block + 128 + g / 4 * 32;
    int low_shift = g % 4 / 2 * 4;
    int high_shift = g % 4 * 2;
    for (int j = 0; j < 32; j++) {
        codes[j] = (uint8_t)((low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4);
    }
}

void blk_codes(krn_type type, const uint8_t *block, int g, uint8_t codes[32])
{
    switch (type) {
    case KRN_Q4_0:
        nibbles(block + 2, codes);
        break;
    case KRN_Q4_1:
        nibbles(block + 4, codes);
        break;
    case KRN_Q5_0:
        nibbles_and_fifth(block + 6, blk_u32(block + 2), codes);
        break;
    case KRN_Q5_1:
        nibbles_and_fifth(block + 8, blk_u32(block + 4), codes);
        break;
    case KRN_Q8_0:
        for (int j = 0; j < 32; j++) {
            codes[j] = block[2 + j] ^ 0x80;
        }
        break;
    case KRN_Q4_K:
        codes_of_q4_k(block + 16, g, codes);
        break;
    case KRN_Q5_K:
        codes_of_q5_k(block + 16, block + 48, g, codes);
        break;
    case KRN_Q6_K:
        codes_of_q6_k(block, g, codes);
        break;
    default:
        REQUIRE(false && "a type with integer codes");
    }
}
