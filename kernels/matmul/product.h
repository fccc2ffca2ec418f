/*
 * product: what the matrix product's files share: the packed panel and the kernels of one instruction set.
 *
 * A panel is 16 output rows of the weight matrix, one vector lane each, so that the sum of an output runs down its
 * own lane in index order and depends on nothing beside it. Two kinds:
 *
 * INTEGER panel (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K), columns in blocks of 32. All code blocks come first, then
 * all scale records. Element 4 q + i of row r (quad q of 0..7) lies in byte 4 r + i of a 64-byte vector:
 *   four low bits   4 vectors: vector v holds quad v in the low nibbles and quad v + 4 in the high ones
 *   fifth bits      8 words of 64 bits, one per quad: bit 4 r + i
 *   bits 5 and 6    2 vectors: vector h holds quad 4 h + j in bits 2 j, 2 j + 1
 *   eight bits      8 vectors, one per quad (Q8_0: code + 128)
 * Scale records, fp16 unless named otherwise:
 *   PLAIN      scale[16]                                          per block
 *   AFFINE     scale[16] min[16]                                  per block
 *   GROUPS     scale[16] min[16], then 8 times u8 scale[16] u8 min[16]     per 8 blocks
 *   HALVES     scale[16], then 8 times i8 scale_low[16] i8 scale_high[16]  per 8 blocks (low: elements 0..15)
 *
 * With activations x = a code_x (a per block) an output is, block after block in index order, in float32:
 *   PLAIN          y = fma(scale a, sum (code - zero) code_x, y)
 *   AFFINE         y = fma(scale a, sum code code_x, y), then y = fma(min, a sum code_x, y)
 *   GROUPS         as AFFINE with scale = scale u8, min = -(min u8), both exact in float
 *   HALVES         y = fma(scale a, scale_low sum_low + scale_high sum_high, y), the second factor an exact integer
 * The integer sums are exact, each float step is one rounding: scalar, AVX2 and AVX-512 agree to the last bit.
 *
 * FLOAT panel (F32 F16 BF16): element of row r and column k at [k][r], in the stored type. y = fma(w, x, y) over k in
 * index order. Types without a packed form (TILE) are dequantised 256 columns at a time into a float panel on the stack.
 */
#ifndef EPIMEM_KERNELS_MATMUL_PRODUCT_H
#define EPIMEM_KERNELS_MATMUL_PRODUCT_H

#include "kernels/rows/row_ops.h"

enum {
    PANEL_ROWS = 16,
    PANEL_VECTOR_BYTES = 64,
    PANEL_TILE_COLS = 256, /* one block of the largest block type */
    GROUP_BLOCKS = 8
};

typedef enum panel_codes { CODES_4, CODES_5, CODES_6, CODES_8 } panel_codes;
typedef enum panel_scales { SCALES_PLAIN, SCALES_AFFINE, SCALES_GROUPS, SCALES_HALVES } panel_scales;
typedef enum panel_kind { PANEL_INTEGER, PANEL_FLOAT, PANEL_TILE } panel_kind;

typedef struct panel_form {
    krn_type type;
    panel_kind kind;
    panel_codes codes;
    panel_scales scales;
    int zero_shift; /* PLAIN and HALVES: the zero point is 1 << zero_shift */
} panel_form;

const panel_form *panel_form_of(krn_type type);

static inline int64_t panel_code_bytes(panel_codes codes)
{
    static const int bytes[4] = {256, 256 + 64, 256 + 128, 512};
    return bytes[codes];
}

static inline int64_t panel_scale_bytes(panel_scales scales, int64_t blocks)
{
    switch (scales) {
    case SCALES_PLAIN:
        return blocks * 32;
    case SCALES_AFFINE:
        return blocks * 64;
    case SCALES_GROUPS:
        return blocks / GROUP_BLOCKS * (64 + GROUP_BLOCKS * 32);
    case SCALES_HALVES:
        return blocks / GROUP_BLOCKS * (32 + GROUP_BLOCKS * 32);
    }
    return 0;
}

struct krn_matrix {
    const panel_form *form;
    int64_t rows, cols, blocks; /* blocks of 32 columns; 0 unless INTEGER */
    int64_t panels, panel_bytes;
    uint8_t *packed;    /* [panels][panel_bytes]; NULL for TILE */
    const uint8_t *raw; /* TILE: the stored rows */
    int64_t raw_row_bytes;
};

struct krn_rows {
    int64_t max_rows, max_cols, max_blocks;
    int64_t n, cols, blocks;
    unsigned forms;
    float *x;         /* [n][cols] */
    act_block *coded; /* see rows_block */
};

/* Rows are coded in groups of as many as one pass over a panel takes, block by block: [group][block][row of the group].
 * A pass then walks straight ahead, with its rows at fixed distances. The last group has the rows that are left. */
enum { ROWS_GROUP = 12 };

static inline int64_t rows_group_size(const krn_rows *r, int64_t t)
{
    int64_t left = r->n - t / ROWS_GROUP * ROWS_GROUP;
    return left < ROWS_GROUP ? left : ROWS_GROUP;
}

/* First block of row t; block b follows at b * rows_group_size. */
static inline act_block *rows_blocks(const krn_rows *r, int64_t t)
{
    return r->coded + t / ROWS_GROUP * ROWS_GROUP * r->blocks + t % ROWS_GROUP;
}

/* One panel times all rows: y[t * y_stride + r] for r < lanes. `add` goes on from what y holds (same bits as one sum). */
typedef struct product_out {
    float *y;
    int64_t y_stride;
    int lanes;
} product_out;

typedef struct integer_work {
    const panel_form *form;
    const uint8_t *codes, *scales;
    int64_t blocks, panel_bytes;
    const krn_rows *rows;
    product_out out;
} integer_work;

/* Asks for the bytes of the next panel that stand where block b's would if all were in one line: a row product waits for
 * memory, and the hardware's own prefetch stops at the end of a page. Past the last panel the address is not ours; a
 * prefetch does not fault. */
static inline void prefetch_next_panel(
        const integer_work *w, panel_codes codes, panel_scales scales, int64_t b)
{
    int64_t bytes = panel_code_bytes(codes) + panel_scale_bytes(scales, GROUP_BLOCKS) / GROUP_BLOCKS;
    uintptr_t next = (uintptr_t)w->codes + (uintptr_t)(w->panel_bytes + b * bytes);
    for (int64_t line = 0; line < bytes; line += 64) {
        __builtin_prefetch((const void *)(next + (uintptr_t)line));
    }
}

typedef struct float_work {
    krn_type type;       /* F32, F16 or BF16: of the panel */
    const void *weights; /* [cols][16] */
    int64_t cols;
    const float *x; /* row 0, column 0 of this part */
    int64_t x_stride, n;
    bool add;
    product_out out;
} float_work;

typedef struct product_ops {
    void (*integer)(const integer_work *w);
    void (*real)(const float_work *w);
} product_ops;

extern const product_ops product_ops_scalar;
extern const product_ops product_ops_avx2;
extern const product_ops product_ops_avx512;

/* Packs 16 rows (those past the last as zeros) from stored bytes. */
void panel_pack(const krn_matrix *m, const uint8_t *data, int64_t panel);
/* Dequantises columns [first, first + cols) of a TILE panel to tile [cols][16]. */
void panel_tile(const krn_matrix *m, int64_t panel, int64_t first, int64_t cols, float *tile);

#endif
