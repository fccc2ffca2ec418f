/* The row operations for scalar: see rows_body.h. */
#define ROW_OPS_TABLE row_ops_scalar
#include "kernels/rows/rows_body.h"
