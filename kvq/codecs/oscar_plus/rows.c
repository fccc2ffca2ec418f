/* Scale rules over the searches of search.h: see rows.h. */
#include "kvq/codecs/oscar_plus/rows.h"

#include <math.h>

#include "kernels/kernels.h"
#include "kvq/codecs/oscar_plus/search.h"
#include "kvq/row_parts.h"

static const kvq_search *search(void)
{
    return krn_isa_current() >= KRN_ISA_AVX2 ? &kvq_search_avx2 : &kvq_search_scalar;
}

void kvq_row_uniform4_unbiased(const uint16_t *x, int d, kvq_row *out)
{
    kvq_sums s = search()->four(x, d, out->codes);
    out->scale = kvq_scale_to_half(s.x_c > 0.0 ? 2.0 * s.x_x / s.x_c : 0.0);
    kvq_row_without_zero(d, out);
}

void kvq_row_uniform4_norm(const uint16_t *x, int d, kvq_row *out)
{
    kvq_sums s = search()->four(x, d, out->codes);
    out->scale = kvq_scale_to_half(2.0 * sqrt(s.x_x / s.c_c));
    kvq_row_without_zero(d, out);
}

void kvq_row_uniform16_search_norm(const uint16_t *x, int d, kvq_row *out)
{
    kvq_sums s = search()->sixteen(x, d, out->codes);
    out->scale = kvq_scale_to_half(2.0 * sqrt(s.x_x / s.c_c));
    kvq_row_without_zero(d, out);
}
