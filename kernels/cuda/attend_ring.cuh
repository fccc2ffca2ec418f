/* The ring of stages in shared memory through which a block's tiles stream. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_RING_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_RING_CUH

#include "kernels/cuda/attend_types.cuh"

namespace attend {

struct ring {
    uint8_t *stages;
    uint32_t full, meta; /* shared addresses of the barriers and of the tiles' meta words (below) */
    uint32_t stage_bytes, page_bytes;
    uint64_t page_add, row_add;
};

/* What a stage holds: the tile's last word (rows, kind, variant), and in its spare byte the low bits of the tile's number.
 * A stage's tiles have different readers. A reader that is ahead may find the stage several phases behind, which the
 * parity of the barrier's phase does not show: so it waits for its tile's number first, then for the phase. The number
 * is stored only after the tile before it has been read, so the phase is the tile's own then. */
static __device__ __forceinline__ uint32_t meta_word(const uint4 &t, int number)
{
    return t.w | static_cast<uint32_t>(number) << 24;
}

/* Waits for tile `number` in its stage; the meta word. */
static __device__ __forceinline__ uint32_t wait_for_tile(
        const ring &r, int stage, int number, uint32_t parity)
{
    wait_shared_byte(r.meta + 4 * stage + 3, static_cast<uint32_t>(number) & 0xffu);
    barrier_wait(r.full + 8 * stage, parity);
    return load_shared(r.meta + 4 * stage);
}

static __device__ __forceinline__ uint64_t tile_address(const uint4 &t)
{
    return static_cast<uint64_t>(t.x) | static_cast<uint64_t>(t.y) << 32;
}

static __device__ __forceinline__ int tile_kind(const uint4 &t)
{
    return static_cast<int>(t.w >> 8 & 0xffu);
}

#if ATTEND_BULK
/* One thread: a page into a stage. */
static __device__ __forceinline__ void fill_page(const ring &r, int stage, const uint4 &t, int number)
{
    store_shared(r.meta + 4 * stage, meta_word(t, number));
    barrier_expect(r.full + 8 * stage, r.page_bytes);
    copy_bulk(shared_address(r.stages) + stage * r.stage_bytes, tile_address(t) + r.page_add, r.page_bytes,
            r.full + 8 * stage);
}
#endif

/* A whole warp: tile t (the same in all lanes), of this number, into a stage that nobody reads. Missing BF16 rows repeat the last one. */
template <class C>
static __device__ __forceinline__ void fill(const ring &r, int stage, const uint4 &t, int number, int lane)
{
    const uint32_t barrier = r.full + 8 * stage, dst = shared_address(r.stages) + stage * r.stage_bytes;
    const bool is_page = tile_kind(t) == ATTEND_TILE_PAGE;
    const int last = static_cast<int>(t.w & 0xffu) - 1;
    const uint64_t keys = tile_address(t) + r.row_add;
    const uint64_t values =
            keys + static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(t.z)) * 16);
#if ATTEND_BULK
    if (is_page) {
        if (lane == 0) {
            fill_page(r, stage, t, number);
        }
        return;
    }
    if (lane == 0) {
        store_shared(r.meta + 4 * stage, meta_word(t, number));
        barrier_expect(barrier, 32 * 2 * C::D);
    }
    __syncwarp();
    const int row = (lane & 15) < last ? lane & 15 : last;
    copy_bulk(dst + lane * C::ROW_BYTES, (lane < 16 ? keys : values) + row * (2 * C::D), 2 * C::D, barrier);
#else
    if (lane == 0) {
        store_shared(r.meta + 4 * stage, meta_word(t, number));
    }
    if (is_page) {
        for (uint32_t at = lane * 16; at < r.page_bytes; at += LANES * 16) {
            copy_16(dst + at, tile_address(t) + r.page_add + at);
        }
    } else {
        for (int i = lane; i < 32 * C::D / 8; i += LANES) {
            const int line = i / (C::D / 8), at = i % (C::D / 8) * 16;
            const int row = (line & 15) < last ? line & 15 : last;
            copy_16(dst + line * C::ROW_BYTES + at, (line < 16 ? keys : values) + row * (2 * C::D) + at);
        }
    }
    barrier_arrive_after_copies(barrier);
    if (lane == 0) {
        barrier_arrive(barrier); /* releases the meta word */
    }
#endif
}

} // namespace attend

#endif
