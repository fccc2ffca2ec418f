/*
 * The attention kernel: one block per item, one warp per tile, everything in one pass over the bytes.
 *
 * Data flow. Tiles (coded pages, or 16 BF16 rows) stream through a ring of stages in shared memory. Tile number p of the
 * item lives in stage p mod stages and is read by warp p mod 8; the warp that has read it refills its stage, so no warp
 * waits for another. Meanwhile the block turns the query: RoPE, rotation into stored space, 16-bit integers. Warps keep
 * their own softmax (running maximum) and output; the block joins its warps. A list's blocks are joined in list order,
 * within a cluster through shared memory, else by the last of them through global memory; the output is rotated back and
 * written.
 *
 * Arithmetic. Codes never become floats. A masked word holds four codes as bytes (attend_layout of fragment.h: the four
 * bytes of a word are one k group of m16n8k32), so keys are products of bytes: the query is a 16-bit integer X with one
 * step per head, X = 256 high + low, and high and low ride in neighbouring columns of the product. Per lane that leaves
 * exactly one head and two tokens of a tile, no idle columns for groups of four heads, and an error of 2^-16 of the
 * query's largest element. Probabilities times value scales become 16-bit integers too, relative to the page's largest,
 * again high and low in neighbouring columns. Accumulators start at 1.5 * 2^23: their bits, read as a float, are that
 * plus the sum, so no conversion is needed. Masks 0x03 and 0x0C are used in place, the latter giving four times the code:
 * a second accumulator that counts a quarter.
 *
 *   s = scale_k * (sum X (code + base)) * step * unit;  p = 2^(s - max);  o = sum p scale_v (unit code + base)
 *
 * About 1,080 instructions for a page and warp (d 128, groups up to 4; a profile counted them), 64 of them products. With
 * enough pages memory bounds it, with few the latency of prologue, page and joins: what was measured and tried stands in
 * kernels/README.md, "Decode attention on CUDA".
 *
 * Modes: bit 0 K level table, bit 1 V level table, bit 2 zero per row, bit 3 two K planes.
 * Rows past a tile's last one get weight 0; their scales must be finite.
 */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_KERNEL_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_KERNEL_CUH

#include "kernels/cuda/attend_join.cuh"
#include "kernels/cuda/attend_query.cuh"
#include "kernels/cuda/attend_ring.cuh"
#include "kernels/cuda/attend_tile.cuh"

namespace attend {

template <class C>
static __device__ __forceinline__ void read_tile(const parameters &p,
        const ring &r,
        int stage,
        uint32_t meta,
        int lane,
        const uint32_t (&b)[C::NT][C::HELD],
        const query_constants (&k)[C::NT],
        state<C> &st)
{
    const uint8_t *tile = r.stages + static_cast<size_t>(stage) * r.stage_bytes;
    const int rows = static_cast<int>(meta & 0xffu);
    if ((meta >> 8 & 0xffu) == ATTEND_TILE_PAGE) {
        float s[8][C::NT][2], step[C::NT];
        uint32_t w[C::NT][8];
        key_scores<C>(p, tile, lane, b, k, s);
        stamp(p, STAMP_TILE_SCORED);
        weights<C>(p, tile, rows, lane, k, s, st, w, step);
        stamp(p, STAMP_TILE_WEIGHED);
        value_products<C>(p, tile, lane, w, step, st);
    } else {
        bf16_tile<C>(p, tile, rows, lane, b, k, st);
    }
}

/* Every eighth tile of the item's tiles [first, end), from the ring. */
template <class C>
static __device__ __forceinline__ void read_tiles(const parameters &p,
        const attend_item &item,
        const ring &r,
        const fixed_shared<C> &sh,
        int first,
        int end,
        int warp,
        int lane,
        state<C> &st)
{
    const uint4 *tiles = reinterpret_cast<const uint4 *>(p.tiles + item.first_tile);
    const int n = static_cast<int>(item.n_tiles);
    uint32_t b[C::NT][C::HELD];
    query_constants k[C::NT];
    int stage = first + warp, variant = -1;
    uint32_t parity = 0;
    if (first > 0) {
        parity = static_cast<uint32_t>(stage / p.stages & 1);
        stage %= p.stages;
    }
    for (int i = first + warp; i < end; i += ATTEND_WARPS) {
        while (stage >= p.stages) {
            stage -= p.stages;
            parity ^= 1u;
        }
        const bool refill = i + p.stages < n;
#if ATTEND_BULK /* early, to hide the latency; elsewhere registers are too short */
        const uint4 next = refill ? __ldg(tiles + i + p.stages) : make_uint4(0, 0, 0, 0);
#endif
        const uint32_t meta = wait_for_tile(r, stage, i, parity);
        stamp(p, STAMP_TILE_THERE);
        const int wanted = static_cast<int>(meta >> 16 & 0xffu);
        if (wanted != variant) {
            variant = wanted;
            load_query<C>(sh, variant, lane, b, k);
        }
        read_tile<C>(p, r, stage, meta, lane, b, k, st);
        __syncwarp(); /* all lanes have read the stage */
        stamp(p, STAMP_TILE_READ);
        if (refill) {
#if !ATTEND_BULK
            const uint4 next = __ldg(tiles + i + p.stages);
#endif
            ring own = r;
            own.page_add = sh.page_add;
            own.row_add = sh.row_add;
            fill<C>(own, stage, next, i + p.stages, lane);
        }
        stage += ATTEND_WARPS;
    }
}

/* Asks for the first tiles: coded pages at once (early), BF16 rows after the kernel before this one has ended. */
template <class C>
static __device__ __forceinline__ void fill_first(
        const parameters &p, const attend_item &item, const ring &r, int warp, int lane, bool early)
{
    const uint4 *tiles = reinterpret_cast<const uint4 *>(p.tiles + item.first_tile);
    const int n = static_cast<int>(item.n_tiles) < p.stages ? static_cast<int>(item.n_tiles) : p.stages;
#if ATTEND_BULK
    if (warp != 0) {
        return;
    }
    const uint4 mine = lane < n ? __ldg(tiles + lane) : make_uint4(0, 0, 0, 0);
    if (early) {
        if (lane < n && tile_kind(mine) == ATTEND_TILE_PAGE) {
            fill_page(r, lane, mine, lane);
        }
        return;
    }
    uint32_t late = __ballot_sync(~0u, lane < n && tile_kind(mine) == ATTEND_TILE_BF16);
    for (; late != 0; late &= late - 1) {
        const int stage = __ffs(static_cast<int>(late)) - 1;
        const uint4 t = make_uint4(__shfl_sync(~0u, mine.x, stage), __shfl_sync(~0u, mine.y, stage),
                __shfl_sync(~0u, mine.z, stage), __shfl_sync(~0u, mine.w, stage));
        fill<C>(r, stage, t, stage, lane);
    }
#else
    for (int stage = warp; stage < n; stage += ATTEND_WARPS) {
        const uint4 t = __ldg(tiles + stage);
        if ((tile_kind(t) == ATTEND_TILE_PAGE) == early) {
            fill<C>(r, stage, t, stage, lane);
        }
    }
#endif
}

template <class C>
static __device__ __forceinline__ void init_ring(const ring &r, int stages, int lane, int warp)
{
    if (warp == 0 && lane < stages) {
        barrier_init(r.full + 8 * lane, ATTEND_BULK ? 1 : LANES + 1);
    }
#if ATTEND_BULK
    if (warp == 0) { /* the same warp asks for the first copies */
        fence_barrier_init();
        __syncwarp();
    }
#else
    __syncthreads();
#endif
}

template <class C> static __device__ __forceinline__ void clear(state<C> &st)
{
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        st.top[nt] = LOWEST;
        st.total[nt] = st.based[nt] = 0.0f;
#pragma unroll
        for (int slab = 0; slab < C::SLABS; slab++) {
            st.o[nt][slab][0] = st.o[nt][slab][1] = 0.0f;
        }
    }
}

/* Up to the queries in shared memory: what does not depend on the kernel before this one is done before it ends. */
template <class C>
static __device__ __forceinline__ void prepare_block(const parameters &p,
        const attend_item *planned,
        fixed_shared<C> &sh,
        const ring &r,
        int warp,
        int lane)
{
    if (threadIdx.x < static_cast<int>(sizeof sh.item / 16)) { /* for later; registers are short */
        reinterpret_cast<uint4 *>(&sh.item)[threadIdx.x] =
                reinterpret_cast<const uint4 *>(planned)[threadIdx.x];
        sh.page_add = r.page_add;
        sh.row_add = r.row_add;
    }
    /* brings all lines of the parameters near, where nothing waits for them yet */
    keep(static_cast<uint32_t>(p.group));
    keep(static_cast<uint32_t>(p.k_rotation));
    keep(p.v_table);
    keep(p.v_scale_at);
    keep(static_cast<uint32_t>(p.row_offset));
    init_ring<C>(r, p.stages, lane, warp);
    fill_first<C>(p, *planned, r, warp, lane, true);
    stamp(p, STAMP_ASKED);
    /* heads that are not there: zero operands, constants that make harmless scores */
    for (int i = threadIdx.x; i < static_cast<int>(sizeof sh.fragments / 16); i += THREADS) {
        reinterpret_cast<uint4 *>(sh.fragments)[i] = make_uint4(0, 0, 0, 0);
    }
    for (int i = threadIdx.x; i < ATTEND_LOCAL_VARIANTS * C::SLOTS; i += THREADS) {
        sh.constants[i / C::SLOTS][i % C::SLOTS] = query_constants{0.0f, 0.0f, 0.0f, 0.0f};
    }
    __syncthreads();
    const query_source source = query_of(p, sh.item, C::D, warp);
    prefetch_query(source, C::D, lane);
    wait_for_previous_kernel();
    stamp(p, STAMP_PREVIOUS_ENDED);
    stamp(p, STAMP_TIME_PREVIOUS_ENDED);
    if (sh.item.has_rows) {
        fill_first<C>(p, sh.item, r, warp, lane, false);
    }
    prepare_queries<C>(p, sh.item, source, sh, warp, lane);
    __syncthreads();
    stamp(p, STAMP_QUERY);
}

/* The item's chunks, each to its partial result; the last one's stays in shared memory where it is wanted directly. */
template <class C>
static __device__ __forceinline__ void read_chunks(
        const parameters &p, const ring &r, fixed_shared<C> &sh, bool direct, int warp, int lane)
{
    const attend_item &item = sh.item;
    const int n = static_cast<int>(item.n_tiles), each = static_cast<int>(item.chunk_tiles),
              n_own = static_cast<int>(item.n_own);
    float *const space = reinterpret_cast<float *>(r.stages + p.join_at);
    for (int own = 0; own < n_own; own++) {
        state<C> st;
        clear<C>(st);
        read_tiles<C>(
                p, item, r, sh, own * each, (own + 1) * each < n ? (own + 1) * each : n, warp, lane, st);
        stamp(p, STAMP_TILES_READ);
        finish_warp<C>(p, st);
        float *const partial = direct ? nullptr : partial_of<C>(p, item.first_partial + item.chunk + own);
        join_warps<C>(p, item, sh, st, space, partial, warp, lane);
    }
    stamp(p, STAMP_WARPS_JOINED);
}

/* Joins the list's chunks. False where other blocks do the rest; else the warp's row of rows is `row`. */
template <class C>
static __device__ __forceinline__ bool join_list(const parameters &p,
        fixed_shared<C> &sh,
        float *space,
        bool direct,
        float (*&rows)[C::D],
        int &row,
        int warp,
        int lane)
{
    const attend_item &item = sh.item;
    rows = sh.scratch;
    row = warp;
    if (item.n_chunks == 1) {
        divide_by_total<C>(item, sh);
    } else if (direct) {
        rows = reinterpret_cast<float(*)[C::D]>(space);
        row = join_cluster<C>(p, item, sh, rows, warp, lane);
        if (p.v_rotation == ROTATION_MATRIX) {
            __syncthreads();
            return item.chunk == 0;
        }
    } else {
        if (!is_last_chunk<C>(p, item, sh)) {
            return false;
        }
        stamp(p, STAMP_COUNTED);
        join_chunks<C>(p, item, rows, space, warp, lane);
    }
    return true;
}

template <int D, int NT, int MODE>
__global__ void __launch_bounds__(THREADS, config<D, NT, MODE>::BLOCKS)
        attend_kernel(const __grid_constant__ parameters p)
{
    using C = config<D, NT, MODE>;
    extern __shared__ __align__(128) uint8_t shared[];
    fixed_shared<C> &sh = *reinterpret_cast<fixed_shared<C> *>(shared);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    stamp(p, STAMP_START);
    let_next_kernel_start();
    const attend_item *const planned = p.items + blockIdx.x;
    if (planned->n_heads == 0) {
        return;
    }
    ring r;
    r.stages = shared + fixed_bytes<C>();
    r.full = shared_address(sh.full);
    r.meta = shared_address(sh.meta);
    r.stage_bytes = p.stage_bytes;
    r.page_bytes = p.page_bytes;
    r.page_add = static_cast<uint64_t>(p.page_offset + planned->kv_head * p.page_head_stride);
    r.row_add = static_cast<uint64_t>(p.row_offset + planned->kv_head * p.row_head_stride);
    prepare_block<C>(p, planned, sh, r, warp, lane);

    const bool direct = sh.item.n_chunks == 1 || cluster_size() > 1; /* nothing goes through global memory */
    read_chunks<C>(p, r, sh, direct, warp, lane);
    float(*rows)[C::D];
    int row;
    if (join_list<C>(p, sh, reinterpret_cast<float *>(r.stages), direct, rows, row, warp, lane)) {
        stamp(p, STAMP_JOINED);
        store_output<C>(p, sh.item, rows, row, warp, lane);
        stamp(p, STAMP_END);
    }
    if (sh.item.n_chunks > 1 && direct) {
        cluster_wait();
    }
    stamp(p, STAMP_TIME_END);
}

/* A compiled kernel and what its launch needs to know. */
struct kernel_entry {
    void (*kernel)(parameters);
    size_t fixed_bytes, join_bytes; /* the ring must hold join_bytes at least */
    int blocks;                     /* per multiprocessor, by registers */
};

template <int D, int NT, int MODE> kernel_entry entry_of()
{
    using C = config<D, NT, MODE>;
    return {attend_kernel<D, NT, MODE>, fixed_bytes<C>(),
            static_cast<size_t>(ATTEND_WARPS) * 4 * C::COLUMN * sizeof(float), C::BLOCKS};
}

/* The kernel of one D; nullptr for a mode that no format has. */
template <int D> kernel_entry kernel_for(int nt, int mode)
{
    switch (mode * 4 + nt) {
#define ATTEND_CASES(MODE)               \
    case (MODE)*4 + 1:                   \
        return entry_of<D, 1, (MODE)>(); \
    case (MODE)*4 + 2:                   \
        return entry_of < D, D == 256 ? 1 : 2, (MODE) > ();
        ATTEND_CASES(0)
        ATTEND_CASES(MODE_K_TABLE | MODE_V_TABLE)
        ATTEND_CASES(MODE_ZERO)
        ATTEND_CASES(MODE_PLANES)
        ATTEND_CASES(MODE_PLANES | MODE_V_TABLE)
#undef ATTEND_CASES
    default:
        return {nullptr, 0, 0, 0};
    }
}

kernel_entry kernel_for_64(int nt, int mode);
kernel_entry kernel_for_128(int nt, int mode);
kernel_entry kernel_for_256(int nt, int mode);

} // namespace attend

#endif
