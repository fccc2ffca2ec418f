/* Level tables of a page format as the attention kernel takes them. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_LEVELS_H
#define EPIMEM_KERNELS_CUDA_ATTEND_LEVELS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* value = scale * (unit * n + base), n the code itself or a signed byte from a table; with zeros scale * (code - zero).
 * For keys base is given in units. */
typedef struct attend_levels {
    bool k_is_table, v_is_table;
    uint32_t k_table, v_table; /* four signed bytes, code 0 lowest */
    float k_unit, k_base, v_unit, v_base;
} attend_levels;

/* ST_ERR_UNSUPPORTED when levels do not rise on an even grid of at most 255 steps (the contract of krn_page_format). */
status attend_levels_set(const krn_page_format *f, attend_levels *out, err *e);

#ifdef __cplusplus
}
#endif

#endif
