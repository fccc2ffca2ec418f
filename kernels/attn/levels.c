/* Level tables as small integers, so that byte products can sum them without rounding. */
#include "kernels/attn/levels.h"

#include <math.h>
#include <string.h>

enum { GRID_MAX = 255 };

/* Finds the coarsest even grid that holds the four levels: level[c] = unit * n[c] + level[0], n[3] the largest. */
static bool find_grid(const float level[4], uint8_t n[4], float *unit)
{
    double range = (double)level[3] - (double)level[0];
    for (int steps = 3; steps <= GRID_MAX && range > 0.0; steps++) {
        bool fits = true;
        for (int c = 0; c < 4; c++) {
            double at = ((double)level[c] - (double)level[0]) / range * steps, nearest = floor(at + 0.5);
            fits = fits && fabs(at - nearest) <= 1e-6 * steps && nearest >= 0.0 && nearest <= steps;
            n[c] = fits ? (uint8_t)nearest : 0;
        }
        if (fits) {
            *unit = (float)(range / steps);
            return true;
        }
    }
    return false;
}

static void set_k(const krn_page_format *f, attn_levels *out)
{
    static const uint8_t code[4] = {0, 1, 2, 3}, high[4] = {0, 4, 8, 12};
    if (f->k_planes == 2) {
        memcpy(out->k[0], high, sizeof high);
        memcpy(out->k[1], code, sizeof code);
        out->k_unit = 1.0f;
        out->k_base = -7.5f;
    } else if (f->has_zero) {
        memcpy(out->k[0], code, sizeof code);
        out->k_unit = 1.0f;
        out->k_base = 0.0f;
    } else {
        REQUIRE(find_grid(f->k_level, out->k[0], &out->k_unit));
        out->k_base = f->k_level[0];
    }
}

/* Values are signed bytes; doubling the grid puts zero in its middle, so that symmetric levels have no base. */
static void set_v(const krn_page_format *f, attn_levels *out)
{
    uint8_t n[4] = {0, 1, 2, 3};
    float unit = 1.0f, first = 0.0f;
    if (!f->has_zero) {
        REQUIRE(find_grid(f->v_level, n, &unit));
        first = f->v_level[0];
    }
    int centre = n[3] <= 127 && !f->has_zero ? n[3] : 0;
    for (int c = 0; c < 4; c++) {
        out->v[c] = (int8_t)(centre != 0 ? 2 * n[c] - centre : n[3] <= 127 ? n[c] : n[c] - 128);
    }
    out->v_unit = centre != 0 ? 0.5f * unit : unit;
    out->v_base = centre != 0 ? 0.5f * (f->v_level[0] + f->v_level[3])
            : n[3] <= 127     ? first
                              : first + 128.0f * unit;
}

static void spread(const void *levels, uint8_t nibble[2][16])
{
    const uint8_t *n = levels;
    for (int i = 0; i < 16; i++) {
        nibble[0][i] = n[i & 3];
        nibble[1][i] = n[i >> 2];
    }
}

void attn_levels_set(const krn_page_format *f, attn_levels *out)
{
    memset(out, 0, sizeof *out);
    set_k(f, out);
    set_v(f, out);
    spread(out->k[0], out->k_nibble[0]);
    spread(out->k[1], out->k_nibble[1]);
    spread(out->v, out->v_nibble);
}
