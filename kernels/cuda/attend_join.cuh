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

/* Partial result of a chunk: outputs [heads][D], then maximum and total [heads][2]. */
template <class C> static __device__ __forceinline__ float *partial_of(const parameters &p, uint32_t index)
{
    return p.partials + static_cast<size_t>(index) * (p.heads_per_pass * (C::D + 2));
}

/* Joins the block's warps, not divided by the total: into `partial`, or sh.scratch and sh.ends when that is nullptr.
 * `space` is free by now. Ends without a barrier. */
template <class C>
static __device__ void join_warps(const parameters &p,
        const attend_item &item,
        fixed_shared<C> &sh,
        state<C> &st,
        float *space,
        float *partial,
        int warp,
        int lane)
{
    const int g = lane >> 2, t = lane & 3, n_heads = item.n_heads;
    float *const outputs = partial != nullptr ? partial : &sh.scratch[0][0];
    float2 *const ends =
            partial != nullptr ? reinterpret_cast<float2 *>(partial + p.heads_per_pass * C::D) : sh.ends;
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        if (g == 0) {
            sh.top[warp][4 * nt + t] = st.top[nt];
            sh.total[warp][4 * nt + t] = st.total[nt];
        }
    }
    __syncthreads(); /* nobody reads the ring any more */
    if (threadIdx.x < n_heads) {
        float top = LOWEST, total = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            top = fmaxf(top, sh.top[w][threadIdx.x]);
        }
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            total = fmaf(sh.total[w][threadIdx.x], exp2_approximate(sh.top[w][threadIdx.x] - top), total);
        }
        ends[threadIdx.x] = make_float2(top, total);
    }
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        float top = LOWEST;
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++) {
            top = fmaxf(top, sh.top[w][4 * nt + t]);
        }
        const float factor = exp2_approximate(st.top[nt] - top);
        float *mine = space + (warp * 4 + t) * C::COLUMN + g;
        if (nt > 0) {
            __syncthreads(); /* the column tile before has been summed */
        }
#pragma unroll
        for (int slab = 0; slab < C::SLABS; slab++) {
            mine[16 * slab] = st.o[nt][slab][0] * factor;
            mine[16 * slab + 8] = st.o[nt][slab][1] * factor;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 4 * C::D; i += THREADS) {
            const int head = i / C::D, channel = i % C::D;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < ATTEND_WARPS; w++) {
                sum += space[(w * 4 + head) * C::COLUMN + channel];
            }
            if (4 * nt + head < n_heads) {
                outputs[4 * nt * C::D + i] = sum;
            }
        }
    }
}

/* Counts the item's chunks as done; true in the block that counted the list's last one. The counter is zero again then. */
template <class C>
static __device__ bool is_last_chunk(const parameters &p, const attend_item &item, fixed_shared<C> &sh)
{
    __syncthreads();
    if (item.n_own == item.n_chunks) {
        return true;
    }
    if (threadIdx.x == 0) {
        __threadfence(); /* the block's partial result before its count */
        const uint32_t before = atomicAdd(p.counters + item.counter, item.n_own);
        sh.is_last = before + item.n_own == item.n_chunks;
        if (sh.is_last) {
            p.counters[item.counter] = 0;
            __threadfence(); /* the count before the others' partial results */
        }
    }
    __syncthreads();
    return sh.is_last != 0;
}

/* A warp: what the n chunks of a head count in its result; ends_of(c) is chunk c's maximum and total. Returns the weight
 * of chunk number lane, and where n > 32 stores those of the others in weights[n]. */
template <class F>
static __device__ __forceinline__ float chunk_weights(int n, int lane, F ends_of, float *weights = nullptr)
{
    const float2 mine = lane < n ? ends_of(lane) : make_float2(LOWEST, 0.0f);
    float top = mine.x;
    for (int c = lane + LANES; c < n; c += LANES) {
        top = fmaxf(top, ends_of(c).x);
    }
    top = warp_max(top);
    const float weight = exp2_approximate(mine.x - top);
    float total = weight * mine.y;
    for (int c = lane + LANES; c < n; c += LANES) {
        const float2 ends = ends_of(c);
        total = fmaf(exp2_approximate(ends.x - top), ends.y, total);
    }
    total = warp_sum(total);
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    for (int c = lane + LANES; c < n; c += LANES) {
        weights[c] = exp2_approximate(ends_of(c).x - top) * inverse;
    }
    return weight * inverse;
}

enum { JOIN_BATCH = 32 };

/* Two neighbouring outputs, number i, of chunks [base, base + 32); zeros past the n-th. */
template <class C>
static __device__ __forceinline__ void load_chunks(
        const parameters &p, const attend_item &item, int i, int base, float2 (&o)[JOIN_BATCH])
{
#pragma unroll
    for (int c = 0; c < JOIN_BATCH; c++) {
        o[c] = make_float2(0.0f, 0.0f);
        if (base + c < item.n_chunks) {
            o[c] = __ldcg(
                    reinterpret_cast<const float2 *>(partial_of<C>(p, item.first_partial + base + c) + i));
        }
    }
}

/* Joins the list's chunks in list order, from global memory: rows[head][channel], divided by the total. */
template <class C>
static __device__ void join_chunks(
        const parameters &p, const attend_item &item, float (*rows)[C::D], float *weights, int warp, int lane)
{
    const int n = item.n_chunks, heads_floats = p.heads_per_pass * C::D, all = item.n_heads * C::D;
    float2 o[JOIN_BATCH];
    int i = threadIdx.x * 2;
    load_chunks<C>(p, item, i < all ? i : 0, 0, o); /* on their way while the weights are made */
    if (warp < item.n_heads) {                      /* weights[head][chunk] */
        float *const mine = weights + warp * n;
        const float weight = chunk_weights(
                n, lane,
                [&](int c) {
                    return __ldcg(reinterpret_cast<const float2 *>(
                                          partial_of<C>(p, item.first_partial + c) + heads_floats) +
                            warp);
                },
                mine);
        if (lane < n) {
            mine[lane] = weight;
        }
    }
    __syncthreads();
    for (int first = i; i < all; i += THREADS * 2) {
        const int head = i / C::D;
        float2 sum = make_float2(0.0f, 0.0f);
        for (int base = 0; base < n; base += JOIN_BATCH) {
            if (base > 0 || i > first) {
                load_chunks<C>(p, item, i, base, o);
            }
#pragma unroll
            for (int c = 0; c < JOIN_BATCH; c++) {
                if (base + c < n) {
                    const float weight = weights[head * n + base + c];
                    sum.x = fmaf(o[c].x, weight, sum.x);
                    sum.y = fmaf(o[c].y, weight, sum.y);
                }
            }
        }
        *reinterpret_cast<float2 *>(&rows[head][i % C::D]) = sum;
    }
    __syncthreads();
}

/* The same from the shared memory of the cluster's blocks, one row, by a warp. The sums are those of join_chunks, bit for
 * bit: how blocks are launched does not show in the result. */
template <class C>
static __device__ __forceinline__ void join_cluster_row(
        const fixed_shared<C> &sh, int n, int row, float *out, int lane)
{
    constexpr int EACH = C::D / LANES, BATCH = 8;
    const uint32_t ends = shared_address(&sh.ends[row]), outputs = shared_address(&sh.scratch[row][lane]);
    float weight = 0.0f, sum[EACH] = {};
#pragma unroll
    for (int base = 0; base < ATTEND_CLUSTER_MAX; base += BATCH) {
        float o[BATCH][EACH];
        if (base >= n) {
            break;
        }
#pragma unroll
        for (int c = 0; c < BATCH; c++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                o[c][i] = base + c < n ? load_cluster(outputs + i * LANES * 4, base + c) : 0.0f;
            }
        }
        if (base == 0) { /* while these are on their way */
            weight = chunk_weights(n, lane,
                    [&](int c) { return make_float2(load_cluster(ends, c), load_cluster(ends + 4, c)); });
        }
#pragma unroll
        for (int c = 0; c < BATCH; c++) {
            const float w = __shfl_sync(~0u, weight, base + c);
            if (base + c < n) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    sum[i] = fmaf(o[c][i], w, sum[i]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        out[lane + LANES * i] = sum[i];
    }
}

/* Joins the list's chunks through the cluster. The rows are divided among its blocks, or all in the first one where a
 * matrix turns them back; returns the row that this warp has in rows, -1 for none. */
template <class C>
static __device__ int join_cluster(const parameters &p,
        const attend_item &item,
        const fixed_shared<C> &sh,
        float (*rows)[C::D],
        int warp,
        int lane)
{
    const int n = item.n_chunks, chunk = item.chunk, n_heads = item.n_heads;
    int row = p.v_rotation == ROTATION_MATRIX ? (chunk == 0 ? warp : n_heads) : warp * n + chunk;
    cluster_arrive();
    cluster_wait();
    stamp(p, STAMP_COUNTED);
    if (row < n_heads) {
        join_cluster_row<C>(sh, n, row, rows[row], lane);
    } else {
        row = -1;
    }
    cluster_arrive(); /* has read the others' shared memory; they wait for that before they end */
    return row;
}

/* Divides by the total where the list has one chunk. */
template <class C> static __device__ void divide_by_total(const attend_item &item, fixed_shared<C> &sh)
{
    __syncthreads();
    for (int i = threadIdx.x; i < item.n_heads * C::D; i += THREADS) {
        const float total = sh.ends[i / C::D].y;
        sh.scratch[i / C::D][i % C::D] *= total > 0.0f ? 1.0f / total : 0.0f;
    }
    __syncthreads();
}

/* Back to model space, and out: the warp's row of rows, if it has one. With a matrix, the whole block. */
template <class C>
static __device__ void store_output(
        const parameters &p, const attend_item &item, float (*rows)[C::D], int row, int warp, int lane)
{
    if (p.v_rotation == ROTATION_MATRIX) {
        times_matrix<C::D>(rows, p.v_matrix + static_cast<size_t>(item.kv_head) * C::D * C::D, warp, lane);
    }
    if (row < 0 || row >= item.n_heads) {
        return;
    }
    float x[C::D / LANES];
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        x[i] = rows[row][lane + LANES * i];
    }
    if (p.v_rotation == ROTATION_HADAMARD) {
        hadamard<C::D>(x, lane);
    }
    const int head = item.kv_head * p.group + item.first_head + row;
    float *out = p.out + (static_cast<size_t>(item.sequence) * p.q_heads + head) * C::D;
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        const int c = lane + LANES * i;
        out[c] = x[i] + (p.v_mean != nullptr ? p.v_mean[item.kv_head * C::D + c] : 0.0f);
    }
}

} // namespace attend

#endif
