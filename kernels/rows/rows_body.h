/*
 * The row operations, written once in sixteen lanes and compiled by rows_scalar.c (SSE2 on x86-64) and
 * rows_avx512.c, with ROW_OPS_TABLE naming the table to define. Every sum runs down the lanes in index
 * order and then over the lanes by lanes_sum, so all sets give the same bits. The specification of each is its
 * formula in double (tests/unit/test_kernels_rows.c).
 */
#include "kernels/rows/lanes.h"
#include "kernels/rows/row_ops.h"

#include <math.h>

static void load_up_to(lanes *v, const float *p, int64_t left, float fill)
{
    if (left >= LANES) {
        lanes_load(v, p);
    } else {
        lanes_load_part(v, p, left, fill);
    }
}

static void store_up_to(const lanes *v, float *p, int64_t left)
{
    if (left >= LANES) {
        lanes_store(v, p);
    } else {
        lanes_store_part(v, p, left);
    }
}

/* y = x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich 2019, eq. 4, with eps inside the root as models do) */
static void rmsnorm(const float *x, const float *w, float eps, float *y, int64_t cols)
{
    lanes squares = LANES_OF(0.0f);
    lanes v;
    for (int64_t i = 0; i < cols; i += LANES) {
        load_up_to(&v, x + i, cols - i, 0.0f);
        squares += v * v;
    }
    float scale = 1.0f / sqrtf(lanes_sum(&squares) / (float)cols + eps);
    for (int64_t i = 0; i < cols; i += LANES) {
        lanes weight;
        load_up_to(&v, x + i, cols - i, 0.0f);
        load_up_to(&weight, w + i, cols - i, 0.0f);
        v = v * LANES_OF(scale) * weight;
        store_up_to(&v, y + i, cols - i);
    }
}

/* y = (x - mean) / sqrt(variance + eps) * w + b (Ba, Kiros, Hinton 2016, eq. 4); the variance from the differences */
static void layernorm(const float *x, const float *w, const float *b, float eps, float *y, int64_t cols)
{
    lanes sum = LANES_OF(0.0f);
    lanes squares = LANES_OF(0.0f);
    lanes v;
    for (int64_t i = 0; i < cols; i += LANES) {
        load_up_to(&v, x + i, cols - i, 0.0f);
        sum += v;
    }
    float mean = lanes_sum(&sum) / (float)cols;
    for (int64_t i = 0; i < cols; i += LANES) {
        load_up_to(&v, x + i, cols - i, mean);
        v -= LANES_OF(mean);
        squares += v * v;
    }
    float scale = 1.0f / sqrtf(lanes_sum(&squares) / (float)cols + eps);
    for (int64_t i = 0; i < cols; i += LANES) {
        lanes weight;
        lanes bias;
        load_up_to(&v, x + i, cols - i, 0.0f);
        load_up_to(&weight, w + i, cols - i, 0.0f);
        load_up_to(&bias, b + i, cols - i, 0.0f);
        v = (v - LANES_OF(mean)) * LANES_OF(scale) * weight + bias;
        store_up_to(&v, y + i, cols - i);
    }
}

static void add(float *x, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] += y[i];
    }
}

/* silu(g) u = g / (1 + e^-g) u */
static void swiglu(const float *gate, const float *up, float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANES) {
        lanes g;
        lanes u;
        load_up_to(&g, gate + i, count - i, 0.0f);
        load_up_to(&u, up + i, count - i, 0.0f);
        lanes e = -g;
        lanes_exp(&e);
        g = g / (LANES_OF(1.0f) + e) * u;
        store_up_to(&g, y + i, count - i);
    }
}

/*
 * gelu(x) = x/2 (1 + erf(x / sqrt 2)) (Hendrycks and Gimpel 2016), with 1 + erf(u) = erfc(-u) = 2 - erfc(u) so that
 * nothing cancels for negative x. erfc(|x| / sqrt 2) = t P(t) e^(-x^2 / 2), t = 1 / (1 + 0.3 |x|), the form of
 * Abramowitz and Stegun 7.1.26 with our own P: a minimax fit of degree 9 for |x| <= 14, relative error 1.1e-8 with
 * the coefficients rounded to float. The error of the result is below 2e-7 max(|x|, |gelu|) (tested).
 */
static void gelu(float *x, int64_t count)
{
    static const float p[10] = {0.23937327f, 0.23914568f, 0.22045465f, 0.15685119f, 0.19211559f, -0.15849455f,
            0.38316324f, -0.45613495f, 0.22475152f, -0.041225653f};
    for (int64_t i = 0; i < count; i += LANES) {
        lanes v;
        load_up_to(&v, x + i, count - i, 0.0f);
        lanes size = (lanes)(LANES_BITS(v) & 0x7fffffff);
        lanes t = LANES_OF(1.0f) / (LANES_OF(1.0f) + LANES_OF(0.3f) * size);
        lanes poly = LANES_OF(p[9]);
        for (int k = 8; k >= 0; k--) {
            poly = poly * t + LANES_OF(p[k]);
        }
        lanes e = v * v * LANES_OF(-0.5f);
        lanes_exp(&e);
        lanes erfc = t * poly * e;
        lanes one_plus_erf = LANES_SELECT(v < LANES_OF(0.0f), erfc, LANES_OF(2.0f) - erfc);
        v = LANES_OF(0.5f) * v * one_plus_erf;
        store_up_to(&v, x + i, count - i);
    }
}

static int64_t first_number(const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!isnan(x[i])) {
            return i;
        }
    }
    return 0;
}

/* Each lane keeps its first greatest value; the winner among lanes is the greatest, then the lowest index. */
static int64_t argmax(const float *x, int64_t count)
{
    lanes best = LANES_OF(-INFINITY);
    lanes_i32 at = (lanes_i32){0} - 1;
    for (int64_t i = 0; i < count; i += LANES) {
        lanes v;
        load_up_to(&v, x + i, count - i, -INFINITY);
        lanes_i32 better = v > best;
        best = LANES_SELECT(better, v, best);
        at = (better & ((lanes_i32){0} + (int32_t)(i / LANES))) | (~better & at);
    }
    int64_t winner = -1;
    for (int k = 0; k < LANES; k++) {
        int64_t i = (int64_t)at[k] * LANES + k;
        if (at[k] >= 0 && (winner < 0 || best[k] > x[winner] || (best[k] >= x[winner] && i < winner))) {
            winner = i;
        }
    }
    return winner >= 0 ? winner : first_number(x, count);
}

static double sum_of_exp(const float *x, float shift, int64_t count)
{
    double sum[LANES] = {0};
    for (int64_t i = 0; i < count; i += LANES) {
        lanes v;
        load_up_to(&v, x + i, count - i, -INFINITY);
        /* a masked-out logit adds nothing; NaN shows */
        lanes_i32 counted = (v > LANES_OF(-INFINITY)) | (v != v); /* NOLINT(misc-redundant-expression) */
        v -= LANES_OF(shift);
        lanes_exp(&v);
        v = LANES_SELECT(counted, v, LANES_OF(0.0f));
        for (int k = 0; k < LANES; k++) {
            sum[k] += (double)v[k];
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) {
            sum[k] += sum[k + half];
        }
    }
    return sum[0];
}

/* Rotation by position, RoFormer (Su et al. 2021, eq. 34): pairs (2i, 2i+1). */
static void rotate_adjacent(const float *cos_sin, float *x, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        float c = cos_sin[2 * i];
        float s = cos_sin[2 * i + 1];
        float a = x[2 * i];
        float b = x[2 * i + 1];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = a * s + b * c;
    }
}

/* The same with pairs (i, i + pairs). */
static void rotate_halves(const float *cos_sin, float *x, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        float c = cos_sin[2 * i];
        float s = cos_sin[2 * i + 1];
        float a = x[i];
        float b = x[i + pairs];
        x[i] = a * c - b * s;
        x[i + pairs] = a * s + b * c;
    }
}

/* Greatest magnitude as float bits: as integers they order as the numbers do, with infinity and NaN on top. */
static float greatest_of(const float x[ACT_BLOCK])
{
    int32_t bits[ACT_BLOCK];
    int32_t greatest = 0;
    float value;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < ACT_BLOCK; i++) {
        int32_t size = bits[i] & 0x7fffffff;
        greatest = greatest > size ? greatest : size;
    }
    memcpy(&value, &greatest, sizeof value);
    return value;
}

/* Sums of two vectors of codes at once, folding eight lanes each to four, two and one. */
static void sums_of_codes(const lanes_i32 code[2], int32_t sum[2])
{
#define FRONT 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define BACK  8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define BY_4  4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11
#define BY_2  2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13
#define BY_1  1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
    lanes_i32 s = __builtin_shufflevector(code[0], code[1], FRONT) +
            __builtin_shufflevector(code[0], code[1], BACK);
    s += __builtin_shufflevector(s, s, BY_4);
    s += __builtin_shufflevector(s, s, BY_2);
    s += __builtin_shufflevector(s, s, BY_1);
    sum[0] = s[0];
    sum[1] = s[8];
}

/* Nearest codes, ties to even; see act_block. */
static void quantize_block(const float x[ACT_BLOCK], act_block *block)
{
    const float tiny = 1e-30f; /* 127 / tiny is still finite; smaller blocks count as zero */
    const float to_integer = 12582912.0f;
    typedef int8_t lanes_i8 __attribute__((vector_size(LANES)));
    float greatest = greatest_of(x);
    if (!(greatest >= tiny) || isinf(greatest)) {
        float scale = greatest < tiny ? 0.0f : NAN;
        *block = (act_block){.scale = scale, .sum = scale};
        return;
    }
    float inverse = 127.0f / greatest;
    lanes_i32 code[2];
    int32_t sum[2];
    for (int half = 0; half < 2; half++) {
        lanes v;
        lanes_load(&v, x + half * LANES);
        lanes shifted = v * LANES_OF(inverse) + LANES_OF(to_integer);
        code[half] = LANES_BITS(shifted) - LANES_BITS(LANES_OF(to_integer));
        lanes_i8 bytes = __builtin_convertvector(code[half], lanes_i8);
        memcpy(block->code + half * LANES, &bytes, sizeof bytes);
    }
    sums_of_codes(code, sum);
    block->scale = greatest / 127.0f;
    block->sum = block->scale * (float)(sum[0] + sum[1]);
    block->minus_low = -sum[0];
    block->minus_high = -sum[1];
    block->minus_all = -(sum[0] + sum[1]);
}

static void quantize(const float *x, int64_t cols, act_block *blocks, int64_t stride)
{
    int64_t i = 0;
    for (; cols - i >= ACT_BLOCK; i += ACT_BLOCK, blocks += stride) {
        quantize_block(x + i, blocks);
    }
    if (i < cols) {
        float last[ACT_BLOCK] = {0};
        memcpy(last, x + i, (size_t)(cols - i) * sizeof *x);
        quantize_block(last, blocks);
    }
}

const row_ops ROW_OPS_TABLE = {
        .rmsnorm = rmsnorm,
        .layernorm = layernorm,
        .add = add,
        .swiglu = swiglu,
        .gelu = gelu,
        .argmax = argmax,
        .sum_of_exp = sum_of_exp,
        .rotate_adjacent = rotate_adjacent,
        .rotate_halves = rotate_halves,
        .quantize = quantize,
};
