#include "kernels/cuda/attend_levels.h"

#include <math.h>

enum { STEPS_MAX = 255, SIGNED_MAX = 127 };

/* The coarsest even grid that holds the four levels: level[c] = unit * n[c] + level[0]. */
static bool find_grid(const float level[4], int n[4], double *unit)
{
    double range = (double)level[3] - (double)level[0];
    for (int steps = 3; steps <= STEPS_MAX && range > 0.0; steps++) {
        bool fits = true;
        for (int c = 0; c < 4; c++) {
            double at = ((double)level[c] - (double)level[0]) / range * steps;
            n[c] = (int)lround(at);
            fits = fits && fabs(at - n[c]) <= 1e-6 * steps && n[c] >= (c == 0 ? 0 : n[c - 1]) &&
                    n[c] <= steps;
        }
        if (fits) {
            *unit = range / steps;
            return true;
        }
    }
    return false;
}

typedef struct side {
    bool is_table;
    uint32_t table;
    double unit, base;
} side;

static status set_side(const float level[4], const char *name, side *out, err *e)
{
    int n[4];
    if (!isfinite(level[0]) || !isfinite(level[3]) || !find_grid(level, n, &out->unit)) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "%s levels %g %g %g %g do not lie on an even grid of %d steps",
                name, (double)level[0], (double)level[1], (double)level[2], (double)level[3], (int)STEPS_MAX);
    }
    int shift = n[3] > SIGNED_MAX ? SIGNED_MAX + 1 : 0;
    out->is_table = n[1] != 1 || n[2] != 2 || n[3] != 3;
    out->table = 0;
    for (int c = 0; c < 4; c++) {
        out->table |= (uint32_t)((n[c] - shift) & 0xff) << (8 * c);
    }
    out->base = (double)level[0] + shift * out->unit;
    return ST_OK;
}

status attend_levels_set(const krn_page_format *f, attend_levels *out, err *e)
{
    side k = {.unit = 1.0, .base = f->k_planes == 2 ? -7.5 : 0.0}, v = {.unit = 1.0, .base = -1.0};
    if (!f->has_zero && f->k_planes == 1) {
        TRY(set_side(f->k_level, "key", &k, e));
    }
    if (!f->has_zero) {
        TRY(set_side(f->v_level, "value", &v, e));
    }
    /* one kernel serves a table on either side: codes are a table too */
    bool both = f->k_planes == 1 && !f->has_zero && (k.is_table || v.is_table);
    *out = (attend_levels){.k_is_table = both,
            .v_is_table = both || v.is_table,
            .k_table = k.table,
            .v_table = v.table,
            .k_unit = (float)k.unit,
            .k_base = (float)(k.base / k.unit),
            .v_unit = (float)v.unit,
            .v_base = (float)v.base};
    return ST_OK;
}
