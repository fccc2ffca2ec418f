/* Weights as they lie in the file -> as the device's products read them. See product_pack.h. */
#include "kernels/cuda/product_pack.h"

#include <math.h>
#include <string.h>

#include "kernels/types/blocks.h"

typedef struct packing {
    const product_layout *l;
    krn_type type;
    const uint8_t *data;
    uint8_t *out;
    float scale;    /* of halves */
    float *largest; /* [tiles] */
} packing;

static bool is_bytes(product_kind kind)
{
    return kind == PRODUCT_BYTES || kind == PRODUCT_BYTES_K || kind == PRODUCT_BYTES_16;
}

static bool has_supers(product_kind kind)
{
    return kind == PRODUCT_NIBBLES_K || kind == PRODUCT_BYTES_K || kind == PRODUCT_BYTES_16;
}

static uint64_t unit_bytes(product_kind kind)
{
    return kind == PRODUCT_HALVES ? 2048 : is_bytes(kind) ? 1024 : 512;
}

product_layout product_lay_out(krn_type type, int64_t rows, int64_t cols)
{
    static const struct {
        krn_type type;
        product_kind kind;
        int zero;
    } kept[] = {{KRN_Q8_0, PRODUCT_BYTES, 128}, {KRN_Q4_0, PRODUCT_NIBBLES, 8},
            {KRN_Q4_1, PRODUCT_NIBBLES_MIN, 0}, {KRN_Q4_K, PRODUCT_NIBBLES_K, 0},
            {KRN_Q5_K, PRODUCT_BYTES_K, 0}, {KRN_Q6_K, PRODUCT_BYTES_16, 32}};
    product_layout l = {.kind = PRODUCT_HALVES,
            .rows = rows,
            .cols = cols,
            .tiles = (rows + PRODUCT_TILE_ROWS - 1) / PRODUCT_TILE_ROWS,
            .units = (cols + PRODUCT_UNIT_COLS - 1) / PRODUCT_UNIT_COLS};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (kept[i].type == type) {
            l.kind = kept[i].kind;
            l.zero = kept[i].zero;
        }
    }
    uint64_t n = (uint64_t)(l.tiles * l.units);
    l.bytes = n * unit_bytes(l.kind);
    if (l.kind != PRODUCT_HALVES) {
        l.scales_at = l.bytes;
        l.bytes += n * PRODUCT_SCALE_BYTES;
    }
    if (l.kind == PRODUCT_NIBBLES_MIN) {
        l.mins_at = l.bytes;
        l.bytes += n * PRODUCT_SCALE_BYTES;
    }
    if (has_supers(l.kind)) {
        l.mins_at = l.bytes;
        l.bytes += n / PRODUCT_SUPER_UNITS * PRODUCT_SCALE_BYTES;
    }
    return l;
}

/* The stored block with column `col` of a row. */
static const uint8_t *block_at(const packing *p, int64_t row, int64_t col)
{
    int64_t elements = krn_type_block_elements(p->type);
    return p->data + (row * p->l->cols + col) / elements * krn_type_block_bytes(p->type);
}

/* Columns [32 half, 32 half + 32) of a row's unit as floats, zeros past the end. */
static void floats_of(const packing *p, int64_t row, int64_t col, float x[32])
{
    float block[256];
    int64_t elements = krn_type_block_elements(p->type), left = p->l->cols - col;
    memset(x, 0, 32 * sizeof *x);
    if (row >= p->l->rows || left <= 0) {
        return;
    }
    int n = left < 32 ? (int)left : 32;
    if (elements > 32) {
        krn_dequantize(p->type, block_at(p, row, col), block, elements);
        memcpy(x, block + col % elements, (size_t)n * sizeof *x);
    } else {
        krn_dequantize(p->type, block_at(p, row, col), x, n);
    }
}

/* ---- halves ---- */

static void find_largest(void *ctx, int tile)
{
    packing *p = ctx;
    float x[32], largest = 0.0f;
    for (int64_t row = (int64_t)tile * PRODUCT_TILE_ROWS; row < (int64_t)(tile + 1) * PRODUCT_TILE_ROWS;
            row++) {
        for (int64_t col = 0; col < p->l->cols; col += 32) {
            floats_of(p, row, col, x);
            for (int i = 0; i < 32; i++) {
                float a = fabsf(x[i]);
                largest = a > largest ? a : largest;
            }
        }
    }
    p->largest[tile] = largest;
}

static void pack_halves(void *ctx, int tile)
{
    packing *p = ctx;
    for (int64_t unit = 0; unit < p->l->units; unit++) {
        uint8_t *out = p->out + (uint64_t)(tile * p->l->units + unit) * unit_bytes(PRODUCT_HALVES);
        for (int half = 0; half < 2; half++) {
            for (int r = 0; r < PRODUCT_TILE_ROWS; r++) {
                float x[32];
                floats_of(p, (int64_t)tile * PRODUCT_TILE_ROWS + r, unit * PRODUCT_UNIT_COLS + half * 32, x);
                uint8_t *rows = out + (half * 2 + r / 8) * 512 + r % 8 * 64; /* four lanes of 16 bytes */
                for (int c = 0; c < 32; c++) {
                    uint16_t h = base_f32_to_f16(x[c] * p->scale);
                    memcpy(rows + 2 * c, &h, sizeof h);
                }
            }
        }
    }
}

/* A power of two that brings the largest weight below 2^15: bf16 then fits halves without loss. */
static status choose_scale(krn_pool *pool, packing *p, float *factor)
{
    p->scale = *factor = 1.0f;
    if (p->type == KRN_F16) {
        return ST_OK;
    }
    p->largest = base_zalloc((size_t)p->l->tiles, sizeof *p->largest);
    if (p->largest == NULL) {
        return ST_ERR_MEMORY;
    }
    krn_pool_run(pool, find_largest, p, (int)p->l->tiles);
    float largest = 0.0f;
    for (int64_t i = 0; i < p->l->tiles; i++) {
        largest = p->largest[i] > largest ? p->largest[i] : largest;
    }
    base_free(p->largest);
    if (largest > 0.0f && isfinite(largest)) {
        int exponent = 14 - ilogbf(largest);
        exponent = exponent > 100 ? 100 : exponent;
        p->scale = ldexpf(1.0f, exponent);
        *factor = ldexpf(1.0f, -exponent);
    }
    return ST_OK;
}

/* ---- codes ---- */

static void put_scale(
        const packing *p, uint64_t base, uint64_t unit_index, int half, int r, const uint8_t *stored)
{
    memcpy(p->out + base + unit_index * PRODUCT_SCALE_BYTES + r % 8 * 8 + half * 4 + r / 8 * 2, stored, 2);
}

static void put_codes(const packing *p, uint8_t *unit, int half, int r, const uint8_t codes[32])
{
    for (int lane = 0; lane < 4; lane++) {
        const uint8_t *own = codes + 8 * lane;
        if (is_bytes(p->l->kind)) {
            memcpy(unit + half * 512 + (4 * (r % 8) + lane) * 16 + r / 8 * 8, own, 8);
            continue;
        }
        uint32_t word = 0;
        for (int c = 0; c < 8; c++) {
            word |= (uint32_t)(own[c] & 15) << (16 * (c % 2) + 4 * (c / 2));
        }
        memcpy(unit + (4 * (r % 8) + lane) * 16 + half * 8 + r / 8 * 4, &word, sizeof word);
    }
}

/* Scales of a row's 32 columns in a block of 256, and those above them. */
static void put_super_scales(
        const packing *p, uint64_t unit_index, int half, int r, int64_t col, const uint8_t *block)
{
    int group = (int)(col % 256 / 32), g = r % 8, lower = r / 8;
    uint8_t *scales = p->out + p->l->scales_at + unit_index * PRODUCT_SCALE_BYTES + g * 8;
    uint8_t *super = p->out + p->l->mins_at + unit_index / PRODUCT_SUPER_UNITS * PRODUCT_SCALE_BYTES + g * 8 +
            lower * 4;
    if (p->l->kind == PRODUCT_BYTES_16) {
        memcpy(scales + lower * 4 + half * 2, block + 192 + 2 * group, 2);
        memcpy(super, block + 208, 2);
        return;
    }
    blk_scale_min(block + 4, group, &scales[half * 4 + lower * 2], &scales[half * 4 + lower * 2 + 1]);
    memcpy(super, block, 4);
}

static void put_scales(
        const packing *p, uint64_t unit_index, int half, int r, int64_t col, const uint8_t *block)
{
    if (has_supers(p->l->kind)) {
        put_super_scales(p, unit_index, half, r, col, block);
        return;
    }
    put_scale(p, p->l->scales_at, unit_index, half, r, block);
    if (p->l->mins_at != 0) {
        put_scale(p, p->l->mins_at, unit_index, half, r, block + 2);
    }
}

static void pack_codes(void *ctx, int tile)
{
    packing *p = ctx;
    for (int64_t unit = 0; unit < p->l->units; unit++) {
        uint64_t index = (uint64_t)(tile * p->l->units + unit);
        uint8_t *out = p->out + index * unit_bytes(p->l->kind);
        for (int i = 0; i < 2 * PRODUCT_TILE_ROWS; i++) {
            int half = i / PRODUCT_TILE_ROWS, r = i % PRODUCT_TILE_ROWS;
            int64_t row = (int64_t)tile * PRODUCT_TILE_ROWS + r, col = unit * PRODUCT_UNIT_COLS + half * 32;
            if (row >= p->l->rows || col >= p->l->cols) {
                continue; /* zeros: no scale */
            }
            uint8_t codes[32];
            const uint8_t *block = block_at(p, row, col);
            blk_codes(p->type, block, (int)(col % krn_type_block_elements(p->type) / 32), codes);
            put_codes(p, out, half, r, codes);
            put_scales(p, index, half, r, col, block);
        }
    }
}

status product_pack(
        krn_pool *pool, krn_type type, const product_layout *l, const void *data, uint8_t *out, float *factor)
{
    packing p = {.l = l, .type = type, .data = data, .out = out};
    *factor = 1.0f;
    if (l->kind == PRODUCT_HALVES) {
        TRY(choose_scale(pool, &p, factor));
        krn_pool_run(pool, pack_halves, &p, (int)l->tiles);
    } else {
        memset(out, 0, (size_t)l->bytes);
        krn_pool_run(pool, pack_codes, &p, (int)l->tiles);
    }
    return ST_OK;
}
