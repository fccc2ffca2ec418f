/*
 * kv_mirror: copies of sessions' KV on the device. The host's tiers stay the truth; what a pass attends to is looked up
 * here by the id of its memory and sent when it is not there. Coded columns are kept whole, BF16 rows in UNITS of 64
 * rows, [layer][head][K, V][64][d], to which rows are added as they are computed. Within the device's budget; the least
 * recently attended goes first, never what the pass in hand attends to.
 */
#ifndef EPIMEM_AGENT_KV_MIRROR_INTERNAL_H
#define EPIMEM_AGENT_KV_MIRROR_INTERNAL_H

#include "agent/model_internal.h"
#include "kernels/cuda/cuda.h"

enum { MIRROR_UNIT_ROWS = 64 };

typedef struct kv_mirror kv_mirror;
status kv_mirror_open(cuda_device *device, int layers, int kv_heads, int d, kv_mirror **out, err *e);
void kv_mirror_close(kv_mirror *m);
/* A pass begins: what was attended before may go. */
void kv_mirror_begin(kv_mirror *m);
/* Device address of a coded column. ST_ERR_MEMORY when what one pass attends to does not fit the budget. */
status kv_mirror_column(kv_mirror *m, const model_kv_part *part, uint64_t *at, err *e);
/* Device address of unit `unit` (rows from 64 unit on) of a BF16 part, whose first `known` rows the host has; those of
 * the unit are sent if need be. The pass will write the rows from there to `filled`. */
status kv_mirror_unit(
        kv_mirror *m, const model_kv_part *part, int unit, int known, int filled, uint64_t *at, err *e);
/* The pass has written its rows. Without it they count as not there. */
void kv_mirror_commit(kv_mirror *m);
uint64_t kv_mirror_unit_page_bytes(const kv_mirror *m); /* from one (layer, head) of a unit to the next */
void kv_mirror_add_usage(const kv_mirror *m, model_device_usage *usage);

#endif
