/*
 * Fused decode attention on CUDA: one query token per sequence against two-bit pages and BF16 rows, in one softmax and
 * one launch per layer. The CUDA twin of krn_attend for n_rows = 1 per sequence; it reads the same page bytes.
 *
 * A LIST is the spans of one (sequence, KV head), as krn_span with device addresses. The planner cuts lists into TILES
 * (a page, or 16 BF16 rows) and CHUNKS (a run of tiles) on the host, once per step. How a list is cut is a function of
 * that list and the device alone, and partial results of chunks are joined in list order: so a sequence's result is the
 * same bits alone and beside others. An ITEM is what one block reads: a chunk, or several where lists are many.
 *
 * Nothing here allocates. cuda_attend_plan writes into host memory given by the caller, cuda_attend_upload copies it to
 * the device workspace, cuda_attend_launch only launches and may be captured in a graph. No CUDA type appears: a stream
 * is the `void *` that cudaStream_t is.
 */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_H
#define EPIMEM_KERNELS_CUDA_ATTEND_H

#include "kernels/cuda/attend_layout.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cuda_attend_shape {
    int d, q_heads, kv_heads; /* d 64, 128 or 256; 1 to 16 query heads per KV head */
    int multiprocessors;      /* of the device */
} cuda_attend_shape;

/* Spans of one (sequence, KV head), in the order in which they are summed. Addresses are device addresses, pages and
 * rows aligned to 16 bytes. BF16 V rows lie within 32 GiB of their K rows. Visibility is ignored: a decoding token
 * sees everything before it. */
typedef struct cuda_attend_list {
    const krn_span *spans;
    int n_spans;
} cuda_attend_list;

/* How lists are cut; zeros give the defaults. A constant of the engine: part of what makes results repeat. */
typedef struct cuda_attend_policy {
    int tiles_min;                /* of an item, as far as the list has them; 0: 8 */
    int items_per_multiprocessor; /* of one sequence at most; 0: 1, and 2 for lists of more than ATTEND_LONG_TILES */
    int items_capacity; /* blocks of the launch, so that a captured one fits later plans; 0: as many as there are items */
    int cluster; /* blocks of a list that join directly, a power of two up to 16; 1: none; 0: as fits the lists. Shows in
                  * no result. Ignored where it does not fit or the device has no clusters */
} cuda_attend_policy;
enum { ATTEND_LONG_TILES = 128 };

/* A plan's parts, in bytes from the start of the workspace. The image (items, tiles, counters) is what is uploaded. */
typedef struct cuda_attend_plan {
    int n_items, n_blocks, n_sequences;
    int cluster; /* of the launch: 1, or a divisor of n_blocks */
    bool gathers; /* blocks with several chunks of a list: they keep room to join their warps while tiles stream */
    bool shared;
    uint64_t counters_at, tiles_at, image_bytes, partials_at, workspace_bytes;
} cuda_attend_plan;

/* Host bytes of an image for at most so many items and tiles: a page is one tile, a BF16 span rows/16 rounded up. */
size_t cuda_attend_image_bytes(const cuda_attend_shape *s, int64_t n_lists, int64_t n_items, int64_t n_tiles);
/* Blocks that lists of these lengths [n_lists] need, items and what fills up clusters, when no item would meet more than 8 variants (each time one would,
 * there is an item more); multiply by kv_heads when the lists are shared. */
int64_t cuda_attend_items(
        const cuda_attend_shape *s, const cuda_attend_policy *policy, const int64_t *tiles, int n_lists);

/* lists [n_sequences][kv_heads]; shared: [n_sequences], each list for all heads, whose addresses are those of head 0 and
 * get the strides of cuda_attend_call. ST_ERR_LIMIT when `image` is too small, ST_ERR_UNSUPPORTED for shapes and
 * addresses that the kernel does not take. O(tiles). */
status cuda_attend_plan_make(const cuda_attend_shape *s,
        const cuda_attend_policy *policy,
        const cuda_attend_list *lists,
        int n_sequences,
        bool shared,
        void *image,
        size_t image_bytes,
        cuda_attend_plan *out,
        err *e);

typedef struct cuda_attend_rotation {
    krn_rotation_kind kind;
    const float *matrix; /* device, MATRIX only, [kv_heads][d][d]: R of K; of V its transpose */
    const float *mean;   /* device, [kv_heads][d] or NULL */
} cuda_attend_rotation;

typedef struct cuda_attend_call {
    cuda_attend_shape shape;
    krn_page_format format; /* the same for all heads of the layer */
    cuda_attend_rotation k, v;
    float scale; /* 1/sqrt(d) unless the model says otherwise */
    krn_rope_pairing pairing;
    int rope_dims;
    int n_variants;         /* stride of the next two */
    const float *cos_sin;   /* device [n_sequences][n_variants][rope_dims/2][2] */
    const float *sharpness; /* device [n_sequences][n_variants] */
    const float *q;         /* device [n_sequences][q_heads][d] before RoPE */
    float *out;             /* device [n_sequences][q_heads][d] model space */
    int64_t page_offset,
            page_head_stride; /* shared lists: bytes added to page addresses, per layer and per head */
    int64_t row_offset, row_head_stride; /* the same for BF16 rows */
    /* The launch may begin while the kernel before it in the stream still runs (programmatic dependent launch): it
     * reads the plan and coded pages early, q and BF16 rows only after that kernel ended. Pages and plan must have been
     * written before the first kernel of such a chain. Needs compute capability 9.0; ignored elsewhere. */
    bool overlap;
    int blocks_per_multiprocessor; /* shared memory is divided for so many; 0: 2 where registers allow, else 1 */
} cuda_attend_call;

/* Copies the image; `image` must stay until the copy is done. */
status cuda_attend_upload(
        const cuda_attend_plan *plan, const void *image, void *workspace, void *stream, err *e);
/* One launch of plan->n_blocks blocks. Where a later plan has the same n_blocks, cluster, gathers, tiles_at, counters_at and
 * partials_at (the same capacities), uploading it and replaying the captured launch is enough: blocks without an item end at once. */
status cuda_attend_launch(
        const cuda_attend_plan *plan, const cuda_attend_call *call, void *workspace, void *stream, err *e);

#ifdef __cplusplus
}
#endif

#endif
