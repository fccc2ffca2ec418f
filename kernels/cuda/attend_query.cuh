/* The block's prologue: query heads turned, rotated into stored space and made operands of byte products. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_QUERY_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_QUERY_CUH

#include "kernels/cuda/attend_types.cuh"

namespace attend {

/* x H / sqrt(D) of one vector across a warp, element lane + 32 i in x[i]: butterflies over the bits of the index. */
template <int D> static __device__ __forceinline__ void hadamard(float (&x)[D / LANES], int lane)
{
#pragma unroll
    for (int bit = 1; bit < LANES; bit *= 2) {
#pragma unroll
        for (int i = 0; i < D / LANES; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], bit);
            x[i] = lane & bit ? other - x[i] : x[i] + other;
        }
    }
#pragma unroll
    for (int bit = 1; bit < D / LANES; bit *= 2) {
#pragma unroll
        for (int i = 0; i < D / LANES; i++) {
            if ((i & bit) == 0) {
                const float a = x[i], b = x[i | bit];
                x[i] = a + b;
                x[i | bit] = a - b;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < D / LANES; i++) {
        x[i] *= D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
    }
}

/* The whole block: rows[r] = rows[r] M for eight rows in shared memory, M [D][D] in global memory. A warp makes an
 * eighth of the columns; sums run in one fixed order. */
template <int D>
static __device__ void times_matrix(float (*rows)[D], const float *matrix, int warp, int lane)
{
    constexpr int VECTORS = D / LANES; /* float4s of a warp's columns */
    const int column = warp * (D / ATTEND_WARPS) + lane % VECTORS * 4;
    float sum[ATTEND_WARPS][4] = {};
#pragma unroll 4
    for (int i = lane / VECTORS; i < D; i += LANES / VECTORS) {
        const float4 m = *reinterpret_cast<const float4 *>(matrix + i * D + column);
#pragma unroll
        for (int r = 0; r < ATTEND_WARPS; r++) {
            const float x = rows[r][i];
            sum[r][0] = fmaf(x, m.x, sum[r][0]);
            sum[r][1] = fmaf(x, m.y, sum[r][1]);
            sum[r][2] = fmaf(x, m.z, sum[r][2]);
            sum[r][3] = fmaf(x, m.w, sum[r][3]);
        }
    }
#pragma unroll
    for (int r = 0; r < ATTEND_WARPS; r++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int step = VECTORS; step < LANES; step *= 2) {
                sum[r][j] += __shfl_xor_sync(~0u, sum[r][j], step);
            }
        }
    }
    __syncthreads(); /* everybody has read */
#pragma unroll
    for (int r = 0; r < ATTEND_WARPS; r++) {
        if (lane < VECTORS) {
            *reinterpret_cast<float4 *>(&rows[r][column]) =
                    make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        }
    }
    __syncthreads();
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step);
    }
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    }
    return x;
}

/* What a warp makes one (variant, head) of an item from; row is where q lies, nullptr when there is no such pair. */
struct query_source {
    const float *q, *cos_sin, *sharpness;
    int variant, slot;
};

static __device__ __forceinline__ query_source query_of(
        const parameters &p, const attend_item &item, int d, int pair)
{
    query_source s = {nullptr, nullptr, nullptr, 0, 0};
    if (pair < item.n_variants * item.n_heads) {
        s.variant = pair / item.n_heads;
        s.slot = pair - s.variant * item.n_heads;
        const int head = item.kv_head * p.group + item.first_head + s.slot;
        const size_t row = static_cast<size_t>(item.sequence) * p.n_variants + item.variants[s.variant];
        s.q = p.q + (static_cast<size_t>(item.sequence) * p.q_heads + head) * d;
        s.cos_sin = p.cos_sin + row * p.rope_dims;
        s.sharpness = p.sharpness + row;
    }
    return s;
}

/* Has the addresses translated before the data may be read. */
static __device__ __forceinline__ void prefetch_query(const query_source &s, int d, int lane)
{
    if (s.q != nullptr && lane * 32 < d) { /* a line of 128 bytes each */
        prefetch(s.q + lane * 32);
        prefetch(s.cos_sin);
        prefetch(s.sharpness);
    }
}

/* A query head after RoPE: element lane + 32 i in x[i]. All loads are under way before one is needed. */
template <int D>
static __device__ __forceinline__ void load_turned(
        const parameters &p, const query_source &s, float (&x)[D / LANES], int lane)
{
    constexpr int EACH = D / LANES;
    const int half = p.rope_dims / 2;
    float partner[EACH] = {};
    float2 turn[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int e = lane + LANES * i;
        x[i] = s.q[e];
        turn[i] = make_float2(1.0f, 0.0f);
        if (e < p.rope_dims) {
            const bool second = p.rope_halves ? e >= half : (e & 1) != 0;
            const int pair = p.rope_halves ? (second ? e - half : e) : e >> 1;
            partner[i] = s.q[p.rope_halves ? (second ? e - half : e + half) : e ^ 1];
            turn[i] = *reinterpret_cast<const float2 *>(s.cos_sin + 2 * pair);
            turn[i].y = second ? turn[i].y : -turn[i].y;
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        x[i] = x[i] * turn[i].x + partner[i] * turn[i].y;
    }
}

/* Register and byte of a channel in the stored query fragment; the same words that `operand` makes of codes. */
template <class C> static __device__ __forceinline__ int fragment_byte(int c, int column)
{
    const int i = c >> 4 & 3, upper = c >> 6 & 1, half = c >> 3 & 1, t = c >> 1 & 3, e = c & 1, part = c >> 7;
    const int product = C::K_TABLE ? 2 * (i & 1) + e : i;
    const int byte = C::K_TABLE ? (i >> 1) + 2 * upper : 2 * e + upper;
    const int reg = 8 * part + 2 * product + half;
    return (reg >> 2) * (16 * LANES) + (4 * column + t) * 16 + (reg & 3) * 4 + byte;
}

/* x to integers: writes the fragment bytes and the constants of head slot `slot` for local variant `variant`. */
template <class C>
static __device__ __forceinline__ void store_query(const parameters &p,
        fixed_shared<C> &sh,
        const float (&x)[C::D / LANES],
        float of_mean,
        float scale,
        int variant,
        int slot,
        int lane)
{
    float largest = 0.0f;
    int integer_sum = 0;
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
    }
    largest = warp_max_positive(largest);
    const float step = largest > 0.0f ? largest / QUERY_MAX : 1.0f;
    const float inverse = largest > 0.0f ? QUERY_MAX / largest : 0.0f;
    uint8_t *fragment = sh.fragments[variant][slot >> 2];
#pragma unroll
    for (int i = 0; i < C::D / LANES; i++) {
        const int integer = __float2int_rn(x[i] * inverse), high = (integer + 128) >> 8,
                  low = integer - 256 * high;
        const int at = fragment_byte<C>(lane + LANES * i, 2 * (slot & 3));
        constexpr int NEXT_COLUMN = 4 * 16;
        constexpr int TWIN = C::K_TABLE ? 2 : 1; /* d 64: the same byte for the other tile of a block */
        fragment[at] = static_cast<uint8_t>(high);
        fragment[at + NEXT_COLUMN] = static_cast<uint8_t>(low);
        if (C::D == 64) {
            fragment[at + TWIN] = static_cast<uint8_t>(high);
            fragment[at + NEXT_COLUMN + TWIN] = static_cast<uint8_t>(low);
        }
        integer_sum += integer;
    }
    const float sum = static_cast<float>(warp_sum_integer(integer_sum));
    if (lane == 0) {
        query_constants k;
        k.factor = step * scale * p.k_unit;
        k.added = of_mean * scale;
        k.offset = (C::ZERO ? 0.0f : p.k_base * sum) - C::K_BIAS;
        k.bf16_or_sum = C::ZERO ? sum : step * scale;
        sh.constants[variant][slot] = k;
    }
}

/* The whole block: every (variant, head) of the item turned, rotated and stored; a warp each, eight at a time. `first` is
 * the warp's first. */
template <class C>
static __device__ void prepare_queries(const parameters &p,
        const attend_item &item,
        query_source first,
        fixed_shared<C> &sh,
        int warp,
        int lane)
{
    constexpr int EACH = C::D / LANES;
    const int pairs = item.n_variants * item.n_heads;
    for (int base = 0; base < pairs; base += ATTEND_WARPS) {
        const query_source source = base == 0 ? first : query_of(p, item, C::D, base + warp);
        const bool mine = source.q != nullptr;
        float x[EACH] = {}, of_mean = 0.0f, scale = 0.0f;
        if (mine) {
            scale = p.score_scale * *source.sharpness;
            load_turned<C::D>(p, source, x, lane);
            if (p.k_mean != nullptr) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    of_mean = fmaf(x[i], p.k_mean[item.kv_head * C::D + lane + LANES * i], of_mean);
                }
                of_mean = warp_sum(of_mean);
            }
        }
        stamp(p, STAMP_QUERY_LOADED);
        if (p.k_rotation == ROTATION_HADAMARD) {
            hadamard<C::D>(x, lane);
        } else if (p.k_rotation == ROTATION_MATRIX) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                sh.scratch[warp][lane + LANES * i] = x[i];
            }
            __syncthreads();
            times_matrix<C::D>(
                    sh.scratch, p.k_matrix + static_cast<size_t>(item.kv_head) * C::D * C::D, warp, lane);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                x[i] = sh.scratch[warp][lane + LANES * i];
            }
        }
        if (mine) {
            store_query<C>(p, sh, x, of_mean, scale, source.variant, source.slot, lane);
        }
        stamp(p, STAMP_QUERY_STORED);
        __syncwarp();
    }
}

/* The stored fragment and constants of a local variant into registers. */
template <class C>
static __device__ __forceinline__ void load_query(const fixed_shared<C> &sh,
        int variant,
        int lane,
        uint32_t (&b)[C::NT][C::HELD],
        query_constants (&k)[C::NT])
{
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        k[nt] = sh.constants[variant][4 * nt + (lane & 3)];
#pragma unroll
        for (int quad = 0; quad < C::STORED / 4; quad++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(
                    sh.fragments[variant][nt] + quad * 16 * LANES + lane * 16);
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if (C::D == 64) {
                    constexpr uint32_t EVEN = C::K_TABLE ? 0x0000FFFFu : 0x00FF00FFu;
                    b[nt][4 * quad + j] = words[j] & EVEN;
                    b[nt][8 + 4 * quad + j] = words[j] & ~EVEN;
                } else {
                    b[nt][4 * quad + j] = words[j];
                }
            }
        }
    }
}

} // namespace attend

#endif
