/* From warps to the result: warps of a block, blocks of a list, back into model space. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_JOIN_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_JOIN_CUH

#include "kernels/cuda/attend_query.cuh"
#include "kernels/cuda/attend_tile.cuh"

namespace attend {

/* A warp's totals, and its outputs as values: base or zero taken care of. */
template <class C> static __device__ __forceinline__ void finish_warp(const parameters &p, state<C> &st)
{
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        st.total[nt] = sum_over_rows(st.total[nt]);
        st.based[nt] = sum_over_rows(st.based[nt]) * p.v_base;
#pragma unroll
        for (int slab = 0; slab < C::SLABS; slab++) {
            st.o[nt][slab][0] = fmaf(st.o[nt][slab][0], p.v_unit, st.based[nt]);
            st.o[nt][slab][1] = fmaf(st.o[nt][slab][1], p.v_unit, st.based[nt]);
        }
    }
}

/* Largest maximum of a head's warps. */
template <class C> static __device__ __forceinline__ float top_of(const fixed_shared<C> &sh, int slot)
{
    float top = sh.top[0][slot];
#pragma unroll
    for (int w = 1; w < ATTEND_WARPS; w++) {
        top = fmaxf(top, sh.top[w][slot]);
    }
    return top;
}

template <class C>
static __device__ __forceinline__ float total_of(const fixed_shared<C> &sh, int slot, float top)
{
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < ATTEND_WARPS; w++) {
        total = fmaf(sh.total[w][slot], exp2_approximate(sh.top[w][slot] - top), total);
    }
    return total;
}

/* Joins the block's warps: sh.scratch[slot][channel], not divided by the total. `space` is the ring, free by now. */
template <class C>
static __device__ void join_warps(fixed_shared<C> &sh, const state<C> &st, float *space, int warp, int lane)
{
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        if (g == 0) {
            sh.top[warp][4 * nt + t] = st.top[nt];
            sh.total[warp][4 * nt + t] = st.total[nt];
        }
    }
    __syncthreads(); /* nobody reads the ring any more */
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        float *mine = space + (warp * 4 + t) * C::COLUMN + g;
#pragma unroll
        for (int slab = 0; slab < C::SLABS; slab++) {
            mine[16 * slab] = st.o[nt][slab][0];
            mine[16 * slab + 8] = st.o[nt][slab][1];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 4 * C::D; i += THREADS) {
            const int head = i / C::D, channel = i % C::D, slot = 4 * nt + head;
            const float top = top_of<C>(sh, slot);
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < ATTEND_WARPS; w++) {
                sum = fmaf(space[(w * 4 + head) * C::COLUMN + channel],
                        exp2_approximate(sh.top[w][slot] - top), sum);
            }
            sh.scratch[slot][channel] = sum;
        }
        __syncthreads();
    }
}

/* Partial result of a chunk: outputs [heads][D], then maximum and total [heads][2]. */
template <class C> static __device__ __forceinline__ float *partial_of(const parameters &p, uint32_t index)
{
    return p.partials + static_cast<size_t>(index) * (p.heads_per_pass * (C::D + 2));
}

template <class C>
static __device__ void store_partial(const parameters &p, const attend_item &item, const fixed_shared<C> &sh)
{
    float *partial = partial_of<C>(p, item.first_partial + item.chunk);
    for (int i = threadIdx.x; i < item.n_heads * C::D; i += THREADS) {
        partial[i] = sh.scratch[i / C::D][i % C::D];
    }
    if (threadIdx.x < item.n_heads) {
        const float top = top_of<C>(sh, threadIdx.x);
        float *ends = partial + p.heads_per_pass * C::D + 2 * threadIdx.x;
        ends[0] = top;
        ends[1] = total_of<C>(sh, threadIdx.x, top);
    }
}

/* Counts this chunk as done; true in the block that counted the list's last one. The counter is zero again then. */
template <class C>
static __device__ bool is_last_chunk(const parameters &p, const attend_item &item, fixed_shared<C> &sh)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); /* the block's partial result before its count */
        const uint32_t before = atomicAdd(p.counters + item.counter, 1u);
        sh.is_last = before + 1 == item.n_chunks;
        if (sh.is_last) {
            p.counters[item.counter] = 0;
            __threadfence(); /* the count before the others' partial results */
        }
    }
    __syncthreads();
    return sh.is_last != 0;
}

/* Joins the list's chunks in list order: sh.scratch[head][channel], divided by the total. */
template <class C>
static __device__ void join_chunks(
        const parameters &p, const attend_item &item, fixed_shared<C> &sh, float *space, int warp, int lane)
{
    const int n = item.n_chunks, heads_floats = p.heads_per_pass * C::D;
    if (warp < item.n_heads) { /* weights of the chunks: space[head][chunk] */
        float top = LOWEST, total = 0.0f;
        for (int c = lane; c < n; c += LANES) {
            top = fmaxf(top, __ldcg(partial_of<C>(p, item.first_partial + c) + heads_floats + 2 * warp));
        }
        top = warp_max(top);
        for (int c = lane; c < n; c += LANES) {
            const float2 ends = __ldcg(reinterpret_cast<const float2 *>(
                    partial_of<C>(p, item.first_partial + c) + heads_floats + 2 * warp));
            const float weight = exp2_approximate(ends.x - top);
            space[warp * n + c] = weight;
            total = fmaf(weight, ends.y, total);
        }
        total = warp_sum(total);
        const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
        for (int c = lane; c < n; c += LANES) {
            space[warp * n + c] *= inverse;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x * 2; i < item.n_heads * C::D; i += THREADS * 2) {
        const int head = i / C::D;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 8
        for (int c = 0; c < n; c++) {
            const float2 o =
                    __ldcg(reinterpret_cast<const float2 *>(partial_of<C>(p, item.first_partial + c) + i));
            const float weight = space[head * n + c];
            sum.x = fmaf(o.x, weight, sum.x);
            sum.y = fmaf(o.y, weight, sum.y);
        }
        *reinterpret_cast<float2 *>(&sh.scratch[head][i % C::D]) = sum;
    }
    __syncthreads();
}

/* Divides by the total where the list has one chunk. */
template <class C> static __device__ void divide_by_total(const attend_item &item, fixed_shared<C> &sh)
{
    for (int i = threadIdx.x; i < item.n_heads * C::D; i += THREADS) {
        const int slot = i / C::D;
        const float total = total_of<C>(sh, slot, top_of<C>(sh, slot));
        sh.scratch[slot][i % C::D] *= total > 0.0f ? 1.0f / total : 0.0f;
    }
    __syncthreads();
}

/* Back to model space, and out. */
template <class C>
static __device__ void store_output(
        const parameters &p, const attend_item &item, fixed_shared<C> &sh, int warp, int lane)
{
    if (p.v_rotation == ROTATION_MATRIX) {
        times_matrix<C::D>(
                sh.scratch, p.v_matrix + static_cast<size_t>(item.kv_head) * C::D * C::D, warp, lane);
    }
    if (warp >= item.n_heads) {
        return;
    }
    float x[C::D / LANES];
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        x[i] = sh.scratch[warp][lane + LANES * i];
    }
    if (p.v_rotation == ROTATION_HADAMARD) {
        hadamard<C::D>(x, lane);
    }
    const int head = item.kv_head * p.group + item.first_head + warp;
    float *out = p.out + (static_cast<size_t>(item.sequence) * p.q_heads + head) * C::D;
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        const int c = lane + LANES * i;
        out[c] = x[i] + (p.v_mean != nullptr ? p.v_mean[item.kv_head * C::D + c] : 0.0f);
    }
}

} // namespace attend

#endif
