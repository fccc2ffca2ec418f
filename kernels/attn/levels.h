#ifndef EPIMEM_KERNELS_ATTN_LEVELS_H
#define EPIMEM_KERNELS_ATTN_LEVELS_H

#include "kernels/attn/attn_internal.h"

/* Integer form of a format's levels. REQUIREs that they rise with the code and lie on an even grid of at most 255
 * steps, which is part of the contract of krn_page_format. */
void attn_levels_set(const krn_page_format *f, attn_levels *out);

#endif
