/* The row operations for avx512: see rows_body.h. */
#define ROW_OPS_TABLE row_ops_avx512
#include "kernels/rows/rows_body.h"
