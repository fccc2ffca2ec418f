#include "episodes/vectors_internal.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK = EP_ROTATION_BLOCK,
    FINE_ONE = 1024,
    PROBE_ONE = 16383,
    COARSE_MAX = 127,
    GROUP = 64,
    ROWS_AT_ONCE = 256
};

/* Best 16 levels for a normal distribution (Max 1960, table 1): 0.1284 0.3881 0.6568 0.9424 1.2562 1.618 2.069 2.7326,
 * and the borders between them; the outermost cells end at 4.2. `level` is 63.5 + x * 63.5 / 2.7326, rounded. */
static const double level_unit = 2.7326 / 63.5;
const ep_levels ep_level_table = {.level = {0, 15, 26, 34, 42, 48, 54, 61, 66, 73, 79, 85, 93, 101, 112, 127},
        .edge = {-4301, -2458, -1888, -1472, -1126, -819, -535, -264, 0, 264, 535, 819, 1126, 1472, 1888,
                2458},
        .width = {1843, 570, 416, 346, 307, 284, 271, 264, 264, 271, 284, 307, 346, 416, 570, 1843}};

bool ep_unit(float *v, int dim)
{
    double norm = 0;
    for (int i = 0; i < dim; i++) {
        norm += (double)v[i] * (double)v[i];
    }
    if (!isfinite(norm)) {
        return false;
    }
    double scale = norm > 0 ? 1 / sqrt(norm) : 0;
    for (int i = 0; i < dim; i++) {
        v[i] = (float)((double)v[i] * scale);
    }
    return true;
}

/* ---- the rotation ---- */

int ep_rotated_dim(int dim)
{
    return (dim + BLOCK - 1) / BLOCK * BLOCK;
}

/* Signs from the bits of splitmix64 (Steele et al. 2014), then an orthonormal Hadamard transform of each block. */
static void turn_blocks(float *v, int dim, uint64_t seed)
{
    static const float shrink = 0.08838834764831845f; /* 1 / sqrt(128) */
    for (int i = 0; i < dim; i++) {
        uint64_t z = seed + (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        v[i] = (z >> 63) != 0 ? -shrink * v[i] : shrink * v[i];
    }
    for (int from = 0; from < dim; from += BLOCK) {
        for (int half = 1; half < BLOCK; half *= 2) {
            for (int i = from; i < from + BLOCK; i += 2 * half) {
                for (int k = i; k < i + half; k++) {
                    float a = v[k], b = v[k + half];
                    v[k] = a + b;
                    v[k + half] = a - b;
                }
            }
        }
    }
}

void ep_rotate(const float *v, int dim, float *out)
{
    float turned[EP_DIM_MAX];
    int wide = ep_rotated_dim(dim), blocks = wide / BLOCK;
    memcpy(turned, v, (size_t)dim * sizeof *v);
    memset(turned + dim, 0, (size_t)(wide - dim) * sizeof *v);
    turn_blocks(turned, wide, 1);
    /* Each block gets a share of every block, so the second round mixes all components. */
    for (int i = 0; i < wide; i++) {
        out[i] = turned[i % blocks * BLOCK + i / blocks];
    }
    turn_blocks(out, wide, 2);
}

/* ---- coding ---- */

void ep_probe_set(ep_probe *p, const float *v, int dim)
{
    float largest = 0;
    REQUIRE(dim <= EP_DIM_MAX && dim % BLOCK == 0);
    p->dim = dim;
    p->coarse_sum = 0;
    for (int i = 0; i < dim; i++) {
        largest = fabsf(v[i]) > largest ? fabsf(v[i]) : largest;
        long x = lrintf(v[i] * PROBE_ONE);
        p->fine[i] = (int16_t)(x > PROBE_ONE ? PROBE_ONE : x < -PROBE_ONE ? -PROBE_ONE : x);
    }
    p->coarse_step = largest / COARSE_MAX;
    for (int i = 0; i < dim; i++) {
        p->coarse[i] = (int8_t)(largest > 0 ? lrintf(v[i] / largest * COARSE_MAX) : 0);
        p->coarse_sum += p->coarse[i];
    }
}

/* Where component i of a row lies: its byte, and whether in the high half of it. */
static size_t byte_of(int i, int *shift)
{
    int in_group = i % GROUP;
    *shift = in_group >= GROUP / 2 ? 4 : 0;
    return (size_t)(i / GROUP * (GROUP / 2) + in_group % (GROUP / 2));
}

static int fine_value(int level, int rest)
{
    return ep_level_table.edge[level] + ((ep_level_table.width[level] * (2 * rest + 1)) >> 5);
}

status ep_vectors_reserve(ep_vectors *p, int64_t more)
{
    void *levels = p->levels, *rests = p->rests, *scales = p->scales;
    size_t need = (size_t)(p->count + more), row = (size_t)p->dim / 2;
    TRY(base_grow(&levels, &p->plane_cap, need, SIZE_MAX / row, row));
    p->levels = levels;
    TRY(base_grow(&rests, &p->rest_cap, need, SIZE_MAX / row, row));
    p->rests = rests;
    TRY(base_grow(&scales, &p->scale_cap, need, SIZE_MAX / sizeof *p->scales, sizeof *p->scales));
    p->scales = scales;
    return ST_OK;
}

int64_t ep_vectors_add(ep_vectors *p, const float *v)
{
    size_t room = (size_t)p->count, row = (size_t)p->dim / 2;
    REQUIRE(room < p->plane_cap && room < p->rest_cap && room < p->scale_cap);
    uint8_t *levels = p->levels + room * row, *rests = p->rests + room * row;
    float spread = sqrtf((float)p->dim) * FINE_ONE; /* a component's standard deviation is 1 / sqrt(dim) */
    double along = 0, squares = 0;
    memset(levels, 0, row);
    memset(rests, 0, row);
    for (int i = 0; i < p->dim; i++) {
        float x = v[i] * spread;
        int level = 15, shift = 0;
        while (level > 0 && x < ep_level_table.edge[level]) {
            level--;
        }
        int rest = (int)floorf((x - ep_level_table.edge[level]) * 16 / ep_level_table.width[level]);
        rest = rest < 0 ? 0 : rest > 15 ? 15 : rest;
        size_t at = byte_of(i, &shift);
        levels[at] = (uint8_t)(levels[at] | (unsigned)level << shift);
        rests[at] = (uint8_t)(rests[at] | (unsigned)rest << shift);
        double fine = fine_value(level, rest);
        along += (double)v[i] * fine;
        squares += fine * fine;
    }
    /* Least squares; 0 for the zero vector. No code is zero, so squares is not. */
    p->scales[room] = (float)(along / squares);
    return p->count++;
}

void ep_vectors_accumulate(const ep_vectors *p, int64_t i, float weight, float *out)
{
    size_t row = (size_t)p->dim / 2;
    const uint8_t *levels = p->levels + (size_t)i * row, *rests = p->rests + (size_t)i * row;
    float w = weight * p->scales[i];
    for (int d = 0; d < p->dim; d++) {
        int shift = 0;
        size_t at = byte_of(d, &shift);
        out[d] += w * (float)fine_value((levels[at] >> shift) & 15, (rests[at] >> shift) & 15);
    }
}

/* ---- comparing ---- */

void ep_scan_scalar(const uint8_t *levels, int n, const int8_t *q, int dim, int32_t *sums)
{
    for (int k = 0; k < n; k++) {
        sums[k] = 0; /* at most 4096 * 127 * 127 */
        for (int i = 0; i < dim; i++) {
            int shift = 0;
            size_t at = (size_t)k * ((size_t)dim / 2) + byte_of(i, &shift);
            sums[k] += ep_level_table.level[(levels[at] >> shift) & 15] * q[i];
        }
    }
}

/* |sum| <= |a| |b| = 1024 sqrt(dim) * 16383 (1 + what coding adds, some percent) < 2^31 for dim <= 4096. */
int32_t ep_fine_scalar(const uint8_t *levels, const uint8_t *rests, const int16_t *q, int dim)
{
    int32_t sum = 0;
    for (int i = 0; i < dim; i++) {
        int shift = 0;
        size_t at = byte_of(i, &shift);
        sum += fine_value((levels[at] >> shift) & 15, (rests[at] >> shift) & 15) * q[i];
    }
    return sum;
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

#if !defined(__x86_64__)
#define ep_scan_avx2 ep_scan_scalar
#define ep_fine_avx2 ep_fine_scalar
#endif

float ep_vectors_dot(const ep_vectors *p, int64_t i, const ep_probe *q)
{
    size_t at = (size_t)i * ((size_t)p->dim / 2);
    int32_t sum = has_avx2() ? ep_fine_avx2(p->levels + at, p->rests + at, q->fine, p->dim)
                             : ep_fine_scalar(p->levels + at, p->rests + at, q->fine, p->dim);
    return (float)((double)sum * (double)p->scales[i] / PROBE_ONE);
}

void ep_vectors_scan(const ep_vectors *p, const ep_probe *q, float *out)
{
    bool wide = has_avx2();
    size_t row = (size_t)p->dim / 2;
    float unit = (float)(level_unit * FINE_ONE) * q->coarse_step, middle = 63.5f * (float)q->coarse_sum;
    int32_t sums[ROWS_AT_ONCE];
    for (int64_t from = 0; from < p->count; from += ROWS_AT_ONCE) {
        int n = p->count - from < ROWS_AT_ONCE ? (int)(p->count - from) : ROWS_AT_ONCE;
        (wide ? ep_scan_avx2 : ep_scan_scalar)(p->levels + (size_t)from * row, n, q->coarse, p->dim, sums);
        for (int k = 0; k < n; k++) {
            out[from + k] = ((float)sums[k] - middle) * unit * p->scales[from + k];
        }
    }
}

size_t ep_vectors_bytes(const ep_vectors *p)
{
    return (p->plane_cap + p->rest_cap) * ((size_t)p->dim / 2) + p->scale_cap * sizeof *p->scales;
}

void ep_vectors_free(ep_vectors *p)
{
    base_free(p->levels);
    base_free(p->rests);
    base_free(p->scales);
    *p = (ep_vectors){.dim = p->dim};
}
