/*
 * What the planner (attend_plan.c) writes and the attention kernel reads: lists of tiles, and work items over them.
 * Included by C and CUDA; plain structs with fixed sizes.
 */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_LAYOUT_H
#define EPIMEM_KERNELS_CUDA_ATTEND_LAYOUT_H

#include <stdint.h>

enum {
    ATTEND_WARPS = 8,          /* of a block; a warp takes every eighth tile of its item */
    ATTEND_LOCAL_VARIANTS = 8, /* query variants that one item may meet: they are prepared in shared memory */
    ATTEND_BF16_ROWS = 16,     /* rows of a BF16 tile: about as many bytes as a coded page */
    ATTEND_STAGES_MAX = 32,    /* tiles in flight or being read in one block */
    ATTEND_HEADS_MAX = 8,      /* query heads of a group that ride together */
    ATTEND_CHUNKS_MAX = 1024,
    ATTEND_CLUSTER_MAX = 16 /* blocks of one list that may join without going through global memory */
};

enum attend_tile_kind { ATTEND_TILE_PAGE, ATTEND_TILE_BF16 };

/* A coded page, or up to 16 BF16 rows: about the same number of bytes either way. */
typedef struct attend_tile {
    uint64_t at; /* device address of the page, or of the first K row; the launch may add a per-head offset */
    int32_t v_after16; /* BF16: from the first K row to the first V row, in 16-byte units */
    uint8_t rows;      /* filled rows, 1..128 */
    uint8_t kind;      /* attend_tile_kind */
    uint8_t variant;   /* index into the item's variants */
    uint8_t pad;
} attend_tile;

/* One block's work: one chunk or more of one (sequence, KV head), for some of its query heads. Where the plan has
 * clusters, a list's chunk c is item c of a cluster; items without heads fill it up. */
typedef struct attend_item {
    uint32_t first_tile, n_tiles;
    uint32_t sequence;
    uint32_t counter;       /* of chunks that are done, one per (sequence, KV head, pass) */
    uint32_t first_partial; /* partial result of chunk 0 of the same list */
    uint16_t chunk, n_chunks;
    uint16_t kv_head, first_head, n_heads; /* query heads kv_head * group + first_head .. + n_heads */
    uint16_t n_variants;
    uint16_t variants[ATTEND_LOCAL_VARIANTS];
    uint32_t chunk_tiles; /* of the list's longest chunk */
    uint32_t
            n_own; /* chunks of this item, from `chunk` on: each has chunk_tiles tiles, the last one the rest */
    uint32_t has_rows; /* BF16 tiles among its own */
    uint32_t pad;
} attend_item;

/* Query heads of one pass: larger groups take several passes, each an item of its own that reads the tiles again. With
 * d 256, registers hold the outputs of four heads. */
static inline int attend_heads_per_pass(int d, int group)
{
    int most = d == 256 ? ATTEND_HEADS_MAX / 2 : ATTEND_HEADS_MAX, passes = (group + most - 1) / most;
    return (group + passes - 1) / passes;
}

#ifndef __cplusplus
_Static_assert(sizeof(attend_tile) == 16, "read as one vector");
_Static_assert(sizeof(attend_item) == 64, "read as four vectors");
#endif

#endif
