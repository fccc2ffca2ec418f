/* Parameters, shapes and shared state of the attention kernel. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_TYPES_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_TYPES_CUH

#include "kernels/cuda/attend_device.cuh"
#include "kernels/cuda/attend_layout.h"

namespace attend {

enum rotation { ROTATION_NONE, ROTATION_HADAMARD, ROTATION_MATRIX };
enum mode { MODE_K_TABLE = 1, MODE_V_TABLE = 2, MODE_ZERO = 4, MODE_PLANES = 8 };
enum { LANES = 32, THREADS = ATTEND_WARPS * LANES };

static constexpr float QUERY_MAX = 32639.0f;  /* 127 * 256 + 127: high and low are signed bytes */
static constexpr float WEIGHT_MAX = 65535.0f; /* unsigned bytes */
static constexpr float LOWEST = -1e30f;       /* score of what is not there */
static constexpr int BIAS_BITS = 0x4B400000;  /* 1.5 * 2^23 */
static constexpr float BIAS = 12582912.0f;
static constexpr float BIAS_TWICE = 15728640.0f; /* bias + bias / 4 */

struct parameters {
    const attend_item *items;
    const attend_tile *tiles;
    uint32_t *counters;
    float *partials;
    const float *q, *cos_sin, *sharpness;
    const float *k_matrix, *k_mean, *v_matrix, *v_mean;
    float *out;
    int64_t page_offset, page_head_stride, row_offset, row_head_stride;
    int q_heads, group, heads_per_pass, n_variants;
    int rope_dims, rope_halves, k_rotation, v_rotation;
    float score_scale;                    /* scale * log2(e) */
    float k_unit, k_base, v_unit, v_base; /* k_base in units */
    uint32_t k_table, v_table;
    uint32_t k_plane_at[2], v_plane_at, k_scale_at, v_scale_at, k_zero_at, v_zero_at;
    uint32_t page_bytes, stage_bytes;
    int stages;
    uint32_t join_at; /* where warps join, from the ring's start: 0 when the ring is free by then */
#ifdef ATTEND_STAMPS
    int64_t *stamps; /* [blocks][STAMPS] */
#endif
};

/* Builds with ATTEND_STAMPS (bench_attend phases) note when the first thread of each block comes to a place. */
enum stamp {
    STAMP_START,
    STAMP_ASKED,
    STAMP_PREVIOUS_ENDED,
    STAMP_QUERY_LOADED,
    STAMP_QUERY_STORED,
    STAMP_QUERY,
    STAMP_TILE_THERE,
    STAMP_TILE_SCORED,
    STAMP_TILE_WEIGHED,
    STAMP_TILE_READ,
    STAMP_TILES_READ,
    STAMP_WARPS_JOINED,
    STAMP_COUNTED, /* or all blocks of the cluster have come */
    STAMP_JOINED,
    STAMP_END,
    STAMP_TIME_PREVIOUS_ENDED, /* in ns, the same clock everywhere */
    STAMP_TIME_END,
    STAMPS
};

static __device__ __forceinline__ void stamp(const parameters &p, enum stamp place)
{
#ifdef ATTEND_STAMPS
    if (threadIdx.x == 0) {
        int64_t time;
        if (place == STAMP_TIME_PREVIOUS_ENDED || place == STAMP_TIME_END) {
            asm volatile("mov.u64 %0,%%globaltimer;" : "=l"(time));
        } else {
            time = clock64();
        }
        p.stamps[blockIdx.x * STAMPS + place] = time;
    }
#else
    (void)p;
    (void)place;
#endif
}

template <int D_, int NT_, int MODE_> struct config {
    static constexpr int D = D_;
    static constexpr int NT = NT_;       /* column tiles of a product: four heads each */
    static constexpr int SLOTS = 4 * NT; /* heads */
    static constexpr bool K_TABLE = (MODE_ & MODE_K_TABLE) != 0;
    static constexpr bool V_TABLE = (MODE_ & MODE_V_TABLE) != 0;
    static constexpr bool ZERO = (MODE_ & MODE_ZERO) != 0;
    static constexpr bool PLANES = (MODE_ & MODE_PLANES) != 0;
    static constexpr int SLABS = D / 16;
    static constexpr int STORED =
            D == 256 ? 16 : 8;                     /* query fragment registers of a column tile, as stored */
    static constexpr int HELD = D == 128 ? 8 : 16; /* and as held: d 64 keeps a set for each of two tiles */
    static constexpr int ROW_BYTES =
            2 * D + 16;                  /* of a BF16 row in a stage: 16 more, against bank conflicts */
    static constexpr int COLUMN = D + 8; /* floats of a head when warps join, padded likewise */
    static constexpr float K_BIAS = K_TABLE ? BIAS : BIAS_TWICE;
    static constexpr float V_BIAS = V_TABLE ? BIAS : BIAS_TWICE;
    static constexpr int BLOCKS = NT == 1 && D <= 128 ? 2 : 1; /* per multiprocessor, by registers */
};

/* Of a query head as it meets a variant: score = factor * (scale_k (t + offset)) + added. */
struct query_constants {
    float factor;
    float added;       /* of the mean of keys */
    float offset;      /* base times the sum of X, less the bias that t carries */
    float bf16_or_sum; /* factor for BF16 rows; with zeros, where that is the same, the sum of X */
};

/* Shared memory in front of the ring. */
template <class C> struct fixed_shared {
    alignas(16) attend_item item;
    uint64_t page_add, row_add; /* to addresses of tiles, for the item's head */
    uint64_t full[ATTEND_STAGES_MAX];
    uint32_t meta[ATTEND_STAGES_MAX]; /* rows, kind << 8, variant << 16 of the tile in a stage */
    query_constants constants[ATTEND_LOCAL_VARIANTS][C::SLOTS];
    float top[ATTEND_WARPS][C::SLOTS], total[ATTEND_WARPS][C::SLOTS];
    float2 ends[C::SLOTS]; /* of the block, when its warps have joined: maximum and total */
    uint32_t is_last;
    alignas(16) uint8_t fragments[ATTEND_LOCAL_VARIANTS][C::NT][C::STORED * 4 * LANES];
    alignas(16) float scratch[ATTEND_WARPS][C::D];
};

/* Bytes in front of the ring. */
template <class C> __host__ __device__ constexpr size_t fixed_bytes()
{
    return (sizeof(fixed_shared<C>) + 127) / 128 * 128;
}

/* A warp's softmax so far, of the lane's head t of each column tile: maximum of scores, sum of weights of the lane's
 * tokens, the same times what base or zero multiplies, and outputs of channels 16 slab + g and + 8. */
template <class C> struct state {
    float top[C::NT], total[C::NT], based[C::NT];
    float o[C::NT][C::SLABS][2];
};

} // namespace attend

#endif
