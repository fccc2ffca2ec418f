/* pack: stored rows to panels of sixteen, 32-bit words at a time. See product.h for the layout. */
#include "kernels/matmul/product.h"
#include "kernels/types/blocks.h"

static const panel_form forms[] = {
        {KRN_Q4_0, PANEL_INTEGER, CODES_4, SCALES_PLAIN, 3},
        {KRN_Q4_1, PANEL_INTEGER, CODES_4, SCALES_AFFINE, 0},
        {KRN_Q5_0, PANEL_INTEGER, CODES_5, SCALES_PLAIN, 4},
        {KRN_Q5_1, PANEL_INTEGER, CODES_5, SCALES_AFFINE, 0},
        {KRN_Q8_0, PANEL_INTEGER, CODES_8, SCALES_PLAIN, 7},
        {KRN_Q4_K, PANEL_INTEGER, CODES_4, SCALES_GROUPS, 0},
        {KRN_Q5_K, PANEL_INTEGER, CODES_5, SCALES_GROUPS, 0},
        {KRN_Q6_K, PANEL_INTEGER, CODES_6, SCALES_HALVES, 5},
        {KRN_F32, PANEL_FLOAT, 0, 0, 0},
        {KRN_F16, PANEL_FLOAT, 0, 0, 0},
        {KRN_BF16, PANEL_FLOAT, 0, 0, 0},
        {KRN_Q2_K, PANEL_TILE, 0, 0, 0},
        {KRN_Q3_K, PANEL_TILE, 0, 0, 0},
        {KRN_IQ4_NL, PANEL_TILE, 0, 0, 0},
        {KRN_IQ4_XS, PANEL_TILE, 0, 0, 0},
};

const panel_form *panel_form_of(krn_type type)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (forms[i].type == type) {
            return &forms[i];
        }
    }
    return NULL;
}

static void put_word(uint8_t *vector, int row, uint32_t word)
{
    memcpy(vector + 4 * row, &word, sizeof word);
}

static void put_four_bits(uint8_t *codes, int row, const uint32_t quad[8])
{
    for (int v = 0; v < 4; v++) {
        uint32_t word = (quad[v] & 0x0f0f0f0fu) | (quad[v + 4] & 0x0f0f0f0fu) << 4;
        put_word(codes + v * PANEL_VECTOR_BYTES, row, word);
    }
}

/* Bit 4 of each byte of a quad, gathered to four bits by one multiplication. */
static void put_fifth_bits(uint8_t *bits, int row, const uint32_t quad[8])
{
    for (int q = 0; q < 8; q++) {
        uint32_t nibble = (quad[q] >> 4 & 0x01010101u) * 0x10204080u >> 28;
        uint8_t *byte = bits + 8 * q + row / 2;
        *byte = (uint8_t)(*byte | nibble << (row % 2 * 4));
    }
}

static void put_bits_five_and_six(uint8_t *bits, int row, const uint32_t quad[8])
{
    for (int h = 0; h < 2; h++) {
        uint32_t word = 0;
        for (int j = 0; j < 4; j++) {
            word |= (quad[4 * h + j] >> 4 & 0x03030303u) << (2 * j);
        }
        put_word(bits + h * PANEL_VECTOR_BYTES, row, word);
    }
}

static void put_codes(const panel_form *form, uint8_t *to, int row, const uint8_t codes[32])
{
    uint32_t quad[8];
    memcpy(quad, codes, sizeof quad);
    if (form->codes == CODES_8) {
        for (int q = 0; q < 8; q++) {
            put_word(to + q * PANEL_VECTOR_BYTES, row, quad[q]);
        }
        return;
    }
    put_four_bits(to, row, quad);
    if (form->codes == CODES_5) {
        put_fifth_bits(to + 256, row, quad);
    } else if (form->codes == CODES_6) {
        put_bits_five_and_six(to + 256, row, quad);
    }
}

/* Scale record of one block, or of the 256-element block that starts at `block`. */
static void put_scales(const panel_form *form, uint8_t *to, int row, const uint8_t *block)
{
    switch (form->scales) {
    case SCALES_PLAIN:
        memcpy(to + 2 * row, block, 2);
        break;
    case SCALES_AFFINE:
        memcpy(to + 2 * row, block, 2);
        memcpy(to + 32 + 2 * row, block + 2, 2);
        break;
    case SCALES_GROUPS:
        memcpy(to + 2 * row, block, 2);
        memcpy(to + 32 + 2 * row, block + 2, 2);
        for (int g = 0; g < GROUP_BLOCKS; g++) {
            blk_scale_min(block + 4, g, to + 64 + 32 * g + row, to + 64 + 32 * g + 16 + row);
        }
        break;
    case SCALES_HALVES:
        memcpy(to + 2 * row, block + 208, 2);
        for (int g = 0; g < 2 * GROUP_BLOCKS; g++) {
            to[32 + 16 * g + row] = block[192 + g];
        }
        break;
    }
}

static void pack_integer_row(const krn_matrix *m, uint8_t *panel, int row, const uint8_t *data)
{
    const panel_form *form = m->form;
    int64_t code_bytes = panel_code_bytes(form->codes);
    int group = krn_type_block_elements(form->type) / 32;
    int block_bytes = krn_type_block_bytes(form->type);
    int64_t record_bytes = panel_scale_bytes(form->scales, group);
    uint8_t *scales = panel + m->blocks * code_bytes;
    for (int64_t b = 0; b < m->blocks; b += group, data += block_bytes, scales += record_bytes) {
        for (int g = 0; g < group; g++) {
            uint8_t codes[32];
            blk_codes(form->type, data, g, codes);
            put_codes(form, panel + (b + g) * code_bytes, row, codes);
        }
        put_scales(form, scales, row, data);
    }
}

static void pack_float_row(const krn_matrix *m, uint8_t *panel, int row, const uint8_t *data)
{
    if (m->form->type == KRN_F32) {
        for (int64_t k = 0; k < m->cols; k++) {
            memcpy(panel + 4 * (k * PANEL_ROWS + row), data + 4 * k, 4);
        }
    } else {
        for (int64_t k = 0; k < m->cols; k++) {
            memcpy(panel + 2 * (k * PANEL_ROWS + row), data + 2 * k, 2);
        }
    }
}

void panel_pack(const krn_matrix *m, const uint8_t *data, int64_t panel)
{
    uint8_t *to = m->packed + panel * m->panel_bytes;
    memset(to, 0, (size_t)m->panel_bytes);
    for (int row = 0; row < PANEL_ROWS && panel * PANEL_ROWS + row < m->rows; row++) {
        const uint8_t *from = data + (panel * PANEL_ROWS + row) * m->raw_row_bytes;
        if (m->form->kind == PANEL_INTEGER) {
            pack_integer_row(m, to, row, from);
        } else {
            pack_float_row(m, to, row, from);
        }
    }
}

void panel_tile(const krn_matrix *m, int64_t panel, int64_t first, int64_t cols, float *tile)
{
    float row_values[PANEL_TILE_COLS];
    int elements = krn_type_block_elements(m->form->type);
    int bytes = krn_type_block_bytes(m->form->type);
    for (int row = 0; row < PANEL_ROWS; row++) {
        int64_t o = panel * PANEL_ROWS + row;
        if (o < m->rows) {
            const uint8_t *from = m->raw + o * m->raw_row_bytes + first / elements * bytes;
            krn_dequantize(m->form->type, from, row_values, cols);
        } else {
            memset(row_values, 0, sizeof row_values);
        }
        for (int64_t k = 0; k < cols; k++) {
            tile[k * PANEL_ROWS + row] = row_values[k];
        }
    }
}
