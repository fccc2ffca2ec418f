/* The row operations for avx2: see rows_body.h. */
#define ROW_OPS_TABLE row_ops_avx2
#include "kernels/rows/rows_body.h"
