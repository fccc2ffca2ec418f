/* product_scalar: the arithmetic of product.h, one output at a time: the specification of the tuned versions' bits. */
#include "kernels/matmul/product.h"
#include "kernels/types/blocks.h"

#include <math.h>

/* Codes of one packed block as [row][element]. */
static void unpack(const panel_form *form, const uint8_t *block, uint8_t codes[PANEL_ROWS][32])
{
    for (int row = 0; row < PANEL_ROWS; row++) {
        for (int k = 0; k < 32; k++) {
            int quad = k / 4;
            int byte = 4 * row + k % 4;
            int code = block[quad % 4 * 64 + byte] >> (quad / 4 * 4) & 15;
            if (form->codes == CODES_8) {
                code = block[quad * 64 + byte];
            } else if (form->codes == CODES_5) {
                code |= (block[256 + 8 * quad + byte / 8] >> (byte % 8) & 1) << 4;
            } else if (form->codes == CODES_6) {
                code |= (block[256 + quad / 4 * 64 + byte] >> (quad % 4 * 2) & 3) << 4;
            }
            codes[row][k] = (uint8_t)code;
        }
    }
}

typedef struct row_scale {
    float scale, min;
    float low, high; /* HALVES */
} row_scale;

static row_scale scale_of(const panel_form *form, const uint8_t *scales, int64_t b, int row)
{
    row_scale s = {0};
    const uint8_t *record = scales;
    int64_t group_bytes = panel_scale_bytes(form->scales, GROUP_BLOCKS);
    int64_t group = b / GROUP_BLOCKS;
    int64_t in_group = b % GROUP_BLOCKS;
    switch (form->scales) {
    case SCALES_PLAIN:
        s.scale = blk_f16(scales + 32 * b + 2 * row);
        break;
    case SCALES_AFFINE:
        s.scale = blk_f16(scales + 64 * b + 2 * row);
        s.min = blk_f16(scales + 64 * b + 32 + 2 * row);
        break;
    case SCALES_GROUPS:
        record += group * group_bytes;
        s.scale = blk_f16(record + 2 * row) * (float)record[64 + 32 * in_group + row];
        s.min = -(blk_f16(record + 32 + 2 * row) * (float)record[64 + 32 * in_group + 16 + row]);
        break;
    case SCALES_HALVES:
        record += group * group_bytes;
        s.scale = blk_f16(record + 2 * row);
        s.low = (float)(int8_t)record[32 + 32 * in_group + row];
        s.high = (float)(int8_t)record[32 + 32 * in_group + 16 + row];
        break;
    }
    return s;
}

static int32_t dot16(const uint8_t *codes, const int8_t *x)
{
    int32_t sum = 0;
    for (int k = 0; k < 16; k++) {
        sum += codes[k] * x[k];
    }
    return sum;
}

static float add_block(const panel_form *form, row_scale s, const uint8_t *codes, const act_block *a, float y)
{
    int32_t low = dot16(codes, a->code);
    int32_t high = dot16(codes + 16, a->code + 16);
    int32_t zero = 1 << form->zero_shift;
    switch (form->scales) {
    case SCALES_PLAIN:
        return fmaf(s.scale * a->scale, (float)(low + high + zero * a->minus_all), y);
    case SCALES_AFFINE:
    case SCALES_GROUPS:
        y = fmaf(s.scale * a->scale, (float)(low + high), y);
        return fmaf(s.min, a->sum, y);
    case SCALES_HALVES:
        low += zero * a->minus_low;
        high += zero * a->minus_high;
        return fmaf(s.scale * a->scale, s.low * (float)low + s.high * (float)high, y);
    }
    return y;
}

static void integer(const integer_work *w)
{
    const krn_rows *rows = w->rows;
    int64_t code_bytes = panel_code_bytes(w->form->codes);
    for (int64_t b = 0; b < w->blocks; b++) {
        uint8_t codes[PANEL_ROWS][32];
        unpack(w->form, w->codes + b * code_bytes, codes);
        for (int row = 0; row < w->out.lanes; row++) {
            row_scale s = scale_of(w->form, w->scales, b, row);
            for (int64_t t = 0; t < rows->n; t++) {
                const act_block *a = rows_blocks(rows, t) + b * rows_group_size(rows, t);
                float *y = w->out.y + t * w->out.y_stride + row;
                *y = add_block(w->form, s, codes[row], a, b == 0 ? 0.0f : *y);
            }
        }
    }
}

static float weight(const float_work *w, int64_t i)
{
    const uint8_t *p = w->weights;
    float value;
    switch (w->type) {
    case KRN_F16:
        return blk_f16(p + 2 * i);
    case KRN_BF16:
        return base_bf16_to_f32(blk_u16(p + 2 * i));
    default:
        memcpy(&value, p + 4 * i, sizeof value);
        return value;
    }
}

static void real(const float_work *w)
{
    for (int64_t t = 0; t < w->n; t++) {
        for (int row = 0; row < w->out.lanes; row++) {
            float *y = w->out.y + t * w->out.y_stride + row;
            float sum = w->add ? *y : 0.0f;
            for (int64_t k = 0; k < w->cols; k++) {
                sum = fmaf(weight(w, k * PANEL_ROWS + row), w->x[t * w->x_stride + k], sum);
            }
            *y = sum;
        }
    }
}

const product_ops product_ops_scalar = {.integer = integer, .real = real};
