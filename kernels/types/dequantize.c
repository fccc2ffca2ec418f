/*
 * dequantize: stored blocks to float32. Each line does the multiplications and additions in ggml's order, so the
 * values are the same to the last bit.
 */
#include "kernels/types/blocks.h"

/* The sixteen levels of IQ4_NL and IQ4_XS, from ggml's format definition. */
static const int8_t iq4_level[16] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* Q4_0, Q5_0, Q8_0: d (code - zero) */
static void symmetric_32(krn_type type, int zero, const uint8_t *block, float *dst)
{
    uint8_t codes[32];
    float d = blk_f16(block);
    blk_codes(type, block, 0, codes);
    for (int j = 0; j < 32; j++) {
        dst[j] = (float)(codes[j] - zero) * d;
    }
}

/* Q4_1, Q5_1: d code + m */
static void affine_32(krn_type type, const uint8_t *block, float *dst)
{
    uint8_t codes[32];
    float d = blk_f16(block);
    float m = blk_f16(block + 2);
    blk_codes(type, block, 0, codes);
    for (int j = 0; j < 32; j++) {
        dst[j] = (float)codes[j] * d + m;
    }
}

static void iq4_nl(const uint8_t *block, float *dst)
{
    float d = blk_f16(block);
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)iq4_level[block[2 + j] & 15];
        dst[j + 16] = d * (float)iq4_level[block[2 + j] >> 4];
    }
}

static void q2_k(const uint8_t *block, float *dst)
{
    float d = blk_f16(block + 80);
    float dmin = blk_f16(block + 82);
    for (int group = 0; group < 16; group++) {
        float scale = d * (float)(block[group] & 15);
        float min = dmin * (float)(block[group] >> 4);
        const uint8_t *bytes = block + 16 + group / 8 * 32 + group % 2 * 16;
        int shift = group % 8 / 2 * 2;
        for (int j = 0; j < 16; j++) {
            dst[16 * group + j] = scale * (float)(bytes[j] >> shift & 3) - min;
        }
    }
}

/* Six-bit scale of group g (of 16) of Q3_K: low four bits in eight bytes, high two in four. */
static int q3_k_scale(const uint8_t *scales, int g)
{
    int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
    int high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

static void q3_k(const uint8_t *block, float *dst)
{
    float d = blk_f16(block + 108);
    for (int group = 0; group < 16; group++) {
        float scale = d * (float)q3_k_scale(block + 96, group);
        const uint8_t *high = block + group % 2 * 16;
        const uint8_t *low = block + 32 + group / 8 * 32 + group % 2 * 16;
        int shift = group % 8 / 2 * 2;
        for (int j = 0; j < 16; j++) {
            int minus = (high[j] >> (group / 2) & 1) != 0 ? 0 : 4;
            dst[16 * group + j] = scale * (float)((low[j] >> shift & 3) - minus);
        }
    }
}

/* Q4_K, Q5_K: d scale code - dmin min */
static void affine_256(krn_type type, const uint8_t *block, float *dst)
{
    float d = blk_f16(block);
    float dmin = blk_f16(block + 2);
    for (int g = 0; g < 8; g++) {
        uint8_t codes[32];
        uint8_t sc;
        uint8_t mn;
        blk_codes(type, block, g, codes);
        blk_scale_min(block + 4, g, &sc, &mn);
        float scale = d * (float)sc;
        float min = dmin * (float)mn;
        for (int j = 0; j < 32; j++) {
            dst[32 * g + j] = scale * (float)codes[j] - min;
        }
    }
}

static void q6_k(const uint8_t *block, float *dst)
{
    float d = blk_f16(block + 208);
    for (int g = 0; g < 8; g++) {
        uint8_t codes[32];
        blk_codes(KRN_Q6_K, block, g, codes);
        for (int j = 0; j < 32; j++) {
            float scale = d * (float)(int8_t)block[192 + 2 * g + j / 16];
            dst[32 * g + j] = scale * (float)(codes[j] - 32);
        }
    }
}

static void iq4_xs(const uint8_t *block, float *dst)
{
    float d = blk_f16(block);
    uint32_t scales_high = blk_u16(block + 2);
    for (int g = 0; g < 8; g++) {
        int low = block[4 + g / 2] >> (g % 2 * 4) & 15;
        int high = (int)(scales_high >> (2 * g) & 3);
        float scale = d * (float)((low | high << 4) - 32);
        const uint8_t *bytes = block + 8 + 16 * g;
        for (int j = 0; j < 16; j++) {
            dst[32 * g + j] = scale * (float)iq4_level[bytes[j] & 15];
            dst[32 * g + j + 16] = scale * (float)iq4_level[bytes[j] >> 4];
        }
    }
}

static void block_to_floats(krn_type type, const uint8_t *block, float *dst)
{
    switch (type) {
    case KRN_F32:
        memcpy(dst, block, sizeof *dst);
        break;
    case KRN_F16:
        *dst = blk_f16(block);
        break;
    case KRN_BF16:
        *dst = base_bf16_to_f32(blk_u16(block));
        break;
    case KRN_Q4_0:
        symmetric_32(type, 8, block, dst);
        break;
    case KRN_Q5_0:
        symmetric_32(type, 16, block, dst);
        break;
    case KRN_Q8_0:
        symmetric_32(type, 128, block, dst);
        break;
    case KRN_Q4_1:
    case KRN_Q5_1:
        affine_32(type, block, dst);
        break;
    case KRN_IQ4_NL:
        iq4_nl(block, dst);
        break;
    case KRN_Q2_K:
        q2_k(block, dst);
        break;
    case KRN_Q3_K:
        q3_k(block, dst);
        break;
    case KRN_Q4_K:
    case KRN_Q5_K:
        affine_256(type, block, dst);
        break;
    case KRN_Q6_K:
        q6_k(block, dst);
        break;
    case KRN_IQ4_XS:
        iq4_xs(block, dst);
        break;
    }
}

void krn_dequantize(krn_type type, const void *src, float *dst, int64_t n)
{
    int elements = krn_type_block_elements(type);
    int bytes = krn_type_block_bytes(type);
    REQUIRE(n >= 0 && n % elements == 0);
    if (type == KRN_F32) {
        memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    const uint8_t *block = src;
    for (int64_t i = 0; i < n; i += elements, block += bytes) {
        block_to_floats(type, block, dst + i);
    }
}
