/*
 * Quantised products on the tensor cores, fp16 pairs in and float out, from weights laid out by product_pack.c.
 *
 * The order in which a result is summed is fixed by the columns alone: they are cut into PRODUCT_PARTS parts, a part's
 * units are added up in turn (of coded weights each 32 columns by themselves, then times their scale), then the parts in
 * turn. Two kernels do it in that same order, so that their results are the same bits: `narrow` gives each part to a warp,
 * which reads weights once for up to 32 rows of activations and is bound by memory; `wide` walks through the parts with a
 * tile of 128 weight rows by 64 activation rows and is bound by the tensor cores.
 */
#include "kernels/cuda/rows.cuh"

extern "C" {
#define _Static_assert static_assert
#include "kernels/cuda/product_pack.h"
#undef _Static_assert
}

struct cuda_matrix {
    product_layout layout;
    uint8_t *data;
    float factor;
};

namespace {

enum {
    WARPS = PRODUCT_PARTS,
    THREADS = 32 * WARPS,
    WIDE_TOKENS = 64,
    STAGES = 3,
    BATCH = 4,
    NARROW_ROWS_MAX = 64
};

struct matrix_view {
    const uint8_t *codes, *scales, *mins;
    const float *bias;
    float *y;
    int64_t rows, tiles;
    float factor;
    bool add;
};

struct launch_args {
    matrix_view m[CUDA_PRODUCTS_MAX];
    int n_matrices, n; /* n: rows of activations */
    int64_t units, stride, sum_stride;
    const __half *high, *low;
    const float *row_scale, *sums;
    uint32_t zero; /* 1024 + what is taken off a code, twice, as fp16 */
};

__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline uint32_t subtract(uint32_t a, uint32_t b)
{
    const __half2 r = __hsub2(*reinterpret_cast<const __half2 *>(&a), *reinterpret_cast<const __half2 *>(&b));
    return *reinterpret_cast<const uint32_t *>(&r);
}

__device__ inline float low_half(uint32_t w)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(w & 0xffffu)));
}

__device__ inline float high_half(uint32_t w)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(w >> 16)));
}

/* Four codes of a word, offset by 1024 as fp16 subtracts it again: pairs (0, 1) and (2, 3). */
__device__ inline void bytes_to_halves(uint32_t w, uint32_t zero, uint32_t &first, uint32_t &second)
{
    first = subtract(__byte_perm(w, 0x64646464u, 0x4140), zero);
    second = subtract(__byte_perm(w, 0x64646464u, 0x4342), zero);
}

/* ---- a lane's part of a unit, as it is kept ---- */

template <int kind> struct fragment;

template <> struct fragment<PRODUCT_HALVES> {
    static constexpr bool coded = false, has_min = false;
    uint4 w[4];

    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(m.codes) + unit * 128 + lane;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = __ldcs(from + 32 * i);
        }
    }
    __device__ void unpack(int half, uint32_t, uint32_t (&a)[2][4]) const
    {
        const uint4 top = w[2 * half], bottom = w[2 * half + 1];
        a[0][0] = top.x;
        a[0][1] = bottom.x;
        a[0][2] = top.y;
        a[0][3] = bottom.y;
        a[1][0] = top.z;
        a[1][1] = bottom.z;
        a[1][2] = top.w;
        a[1][3] = bottom.w;
    }
    __device__ void scales(int, float &top, float &bottom) const
    {
        top = bottom = 1.0f;
    }
    __device__ void mins(int, float &top, float &bottom) const
    {
        top = bottom = 0.0f;
    }
};

template <> struct fragment<PRODUCT_BYTES> {
    static constexpr bool coded = true, has_min = false;
    uint4 w[2];
    uint2 s;

    __device__ void load_codes(const matrix_view &m, int64_t unit, int lane)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(m.codes) + unit * 64 + lane;
        w[0] = __ldcs(from);
        w[1] = __ldcs(from + 32);
    }
    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        load_codes(m, unit, lane);
        s = __ldcs(reinterpret_cast<const uint2 *>(m.scales) + unit * 8 + lane / 4);
    }
    __device__ void unpack(int half, uint32_t zero, uint32_t (&a)[2][4]) const
    {
        bytes_to_halves(w[half].x, zero, a[0][0], a[0][2]);
        bytes_to_halves(w[half].y, zero, a[1][0], a[1][2]);
        bytes_to_halves(w[half].z, zero, a[0][1], a[0][3]);
        bytes_to_halves(w[half].w, zero, a[1][1], a[1][3]);
    }
    __device__ void scales(int half, float &top, float &bottom) const
    {
        const uint32_t both = half == 0 ? s.x : s.y;
        top = low_half(both);
        bottom = high_half(both);
    }
    __device__ void mins(int, float &top, float &bottom) const
    {
        top = bottom = 0.0f;
    }
};

template <> struct fragment<PRODUCT_NIBBLES> {
    static constexpr bool coded = true, has_min = false;
    uint4 w;
    uint2 s;

    __device__ void load_codes(const matrix_view &m, int64_t unit, int lane)
    {
        w = __ldcs(reinterpret_cast<const uint4 *>(m.codes) + unit * 32 + lane);
    }
    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        load_codes(m, unit, lane);
        s = __ldcs(reinterpret_cast<const uint2 *>(m.scales) + unit * 8 + lane / 4);
    }
    __device__ static uint32_t pair(uint32_t word, int shift, uint32_t zero)
    {
        return subtract(((word >> shift) & 0x000f000fu) | 0x64006400u, zero);
    }
    __device__ void unpack(int half, uint32_t zero, uint32_t (&a)[2][4]) const
    {
        const uint32_t top = half == 0 ? w.x : w.z, bottom = half == 0 ? w.y : w.w;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[i][0] = pair(top, 8 * i, zero);
            a[i][1] = pair(bottom, 8 * i, zero);
            a[i][2] = pair(top, 8 * i + 4, zero);
            a[i][3] = pair(bottom, 8 * i + 4, zero);
        }
    }
    __device__ void scales(int half, float &top, float &bottom) const
    {
        const uint32_t both = half == 0 ? s.x : s.y;
        top = low_half(both);
        bottom = high_half(both);
    }
    __device__ void mins(int, float &top, float &bottom) const
    {
        top = bottom = 0.0f;
    }
};

template <> struct fragment<PRODUCT_NIBBLES_MIN> : fragment<PRODUCT_NIBBLES> {
    static constexpr bool has_min = true;
    uint2 low;

    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        fragment<PRODUCT_NIBBLES>::load(m, unit, lane);
        low = __ldcs(reinterpret_cast<const uint2 *>(m.mins) + unit * 8 + lane / 4);
    }
    __device__ void mins(int half, float &top, float &bottom) const
    {
        const uint32_t both = half == 0 ? low.x : low.y;
        top = low_half(both);
        bottom = high_half(both);
    }
};

/* Scales and mins of 32 columns, times those of their block of 256. */
struct super_scales {
    uint2 s, above;

    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        s = __ldcs(reinterpret_cast<const uint2 *>(m.scales) + unit * 8 + lane / 4);
        above = __ldg(reinterpret_cast<const uint2 *>(m.mins) + unit / PRODUCT_SUPER_UNITS * 8 + lane / 4);
    }
    __device__ void scales(int half, float &top, float &bottom) const
    {
        const uint32_t w = half == 0 ? s.x : s.y;
        top = low_half(above.x) * static_cast<float>(w & 0xffu);
        bottom = low_half(above.y) * static_cast<float>((w >> 16) & 0xffu);
    }
    __device__ void mins(int half, float &top, float &bottom) const
    {
        const uint32_t w = half == 0 ? s.x : s.y;
        top = -high_half(above.x) * static_cast<float>((w >> 8) & 0xffu);
        bottom = -high_half(above.y) * static_cast<float>(w >> 24);
    }
};

template <int codes> struct super_fragment {
    static constexpr bool coded = true, has_min = true;
    fragment<codes> of;
    super_scales s;

    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        of.load_codes(m, unit, lane);
        s.load(m, unit, lane);
    }
    __device__ void unpack(int half, uint32_t zero, uint32_t (&a)[2][4]) const
    {
        of.unpack(half, zero, a);
    }
    __device__ void scales(int half, float &top, float &bottom) const
    {
        s.scales(half, top, bottom);
    }
    __device__ void mins(int half, float &top, float &bottom) const
    {
        s.mins(half, top, bottom);
    }
};

template <> struct fragment<PRODUCT_NIBBLES_K> : super_fragment<PRODUCT_NIBBLES> {
};

template <> struct fragment<PRODUCT_BYTES_K> : super_fragment<PRODUCT_BYTES> {
};

/* A lane's eight columns of a half have one scale of 16 columns, which its codes are multiplied with: below 2,048 halves
 * hold the product, above they round it to even. */
template <> struct fragment<PRODUCT_BYTES_16> {
    static constexpr bool coded = true, has_min = false;
    fragment<PRODUCT_BYTES> of;
    super_scales s;
    int shift; /* to the lane's scale in the first half's pair */

    __device__ void load(const matrix_view &m, int64_t unit, int lane)
    {
        of.load_codes(m, unit, lane);
        s.load(m, unit, lane);
        shift = lane % 4 / 2 * 8;
    }
    __device__ static uint32_t scaled(uint32_t pair, uint32_t scale)
    {
        const __half2 r = __hmul2(
                *reinterpret_cast<const __half2 *>(&pair), *reinterpret_cast<const __half2 *>(&scale));
        return *reinterpret_cast<const uint32_t *>(&r);
    }
    __device__ static uint32_t twice(uint32_t scales, int at)
    {
        const __half2 r = __half2half2(__int2half_rn(static_cast<int8_t>(scales >> at)));
        return *reinterpret_cast<const uint32_t *>(&r);
    }
    __device__ void unpack(int half, uint32_t zero, uint32_t (&a)[2][4]) const
    {
        const uint32_t top = twice(s.s.x, shift + 16 * half), bottom = twice(s.s.y, shift + 16 * half);
        of.unpack(half, zero, a);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            a[i / 4][i % 4] = scaled(a[i / 4][i % 4], i % 2 == 0 ? top : bottom);
        }
    }
    __device__ void scales(int, float &top, float &bottom) const
    {
        top = low_half(s.above.x);
        bottom = low_half(s.above.y);
    }
    __device__ void mins(int, float &top, float &bottom) const
    {
        top = bottom = 0.0f;
    }
};

/* ---- 32 columns of a unit times eight rows of activations ---- */

/* One lane's weights of a half, ready to multiply. */
template <int kind> struct half_unit {
    uint32_t a[2][4];
    float scale[2], low[2];

    __device__ void take(const fragment<kind> &f, int half, uint32_t zero)
    {
        f.unpack(half, zero, a);
        f.scales(half, scale[0], scale[1]);
        f.mins(half, low[0], low[1]);
    }
    /* sums: of the 32 columns, for the lane's two rows of activations. */
    __device__ void add_to(float (&acc)[4], uint4 high, uint4 small, float2 sums) const
    {
        float fresh[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        float(&d)[4] = fragment<kind>::coded ? fresh : acc;
        multiply(d, a[0], high.x, high.y);
        multiply(d, a[1], high.z, high.w);
        multiply(d, a[0], small.x, small.y);
        multiply(d, a[1], small.z, small.w);
        if (fragment<kind>::coded) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                acc[i] = __fmaf_rn(scale[i / 2], d[i], acc[i]);
            }
        }
        if (fragment<kind>::has_min) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                acc[i] = __fmaf_rn(low[i / 2], i % 2 == 0 ? sums.x : sums.y, acc[i]);
            }
        }
    }
};

__device__ inline int64_t part_start(int64_t units, int part)
{
    return units * part / PRODUCT_PARTS;
}

/* The matrix that block `block` of `per_block` tiles works on, and its first tile there. */
__device__ inline const matrix_view &find_matrix(
        const launch_args &p, int per_block, int64_t block, int64_t &tile)
{
    int i = 0;
    int64_t blocks = (p.m[0].tiles + per_block - 1) / per_block;
    while (block >= blocks && i + 1 < p.n_matrices) {
        block -= blocks;
        i++;
        blocks = (p.m[i].tiles + per_block - 1) / per_block;
    }
    tile = block * per_block;
    return p.m[i];
}

__device__ inline void finish(const launch_args &p, const matrix_view &m, int64_t row, int token, float sum)
{
    if (row < m.rows && token < p.n) {
        float *y = m.y + static_cast<int64_t>(token) * m.rows + row;
        float value = sum * (p.row_scale[token] * m.factor);
        value += m.bias != nullptr ? m.bias[row] : 0.0f;
        *y = m.add ? *y + value : value;
    }
}

/* ---- narrow ---- */

template <int kind, int groups>
__device__ inline void add_unit(const launch_args &p,
        const fragment<kind> &f,
        int64_t unit,
        int first_token,
        int lane,
        float (&acc)[groups][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        half_unit<kind> w;
        w.take(f, half, p.zero);
#pragma unroll
        for (int i = 0; i < groups; i++) {
            const int token = first_token + 8 * i + lane / 4;
            const int64_t at = token * p.stride + unit * PRODUCT_UNIT_COLS + half * 32 + lane % 4 * 8;
            uint4 high = make_uint4(0, 0, 0, 0), low = high;
            if (token < p.n) {
                high = *reinterpret_cast<const uint4 *>(p.high + at);
                low = *reinterpret_cast<const uint4 *>(p.low + at);
            }
            float2 sums = make_float2(0.0f, 0.0f);
            if (fragment<kind>::has_min) {
                sums = *reinterpret_cast<const float2 *>(
                        p.sums + (2 * unit + half) * p.sum_stride + first_token + 8 * i + lane % 4 * 2);
            }
            w.add_to(acc[i], high, low, sums);
        }
    }
}

template <int kind>
__device__ inline void load_batch(
        const matrix_view &m, int64_t unit, int64_t end, int lane, fragment<kind> (&f)[BATCH])
{
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        if (unit + i < end) {
            f[i].load(m, unit + i, lane);
        }
    }
}

/* A block has one tile, a warp one part of its columns. */
template <int kind, int groups> __global__ void __launch_bounds__(THREADS, 2) narrow(const launch_args p)
{
    __shared__ float partial[PRODUCT_PARTS][groups][32][4];
    const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
    const int first_token = static_cast<int>(blockIdx.y) * 8 * groups;
    if (groups == 1) {
        cuda::let_next_begin();
    }
    int64_t tile;
    const matrix_view &m = find_matrix(p, 1, blockIdx.x, tile);
    const int64_t base = tile * p.units, end = part_start(p.units, part + 1);
    float acc[groups][4] = {};
    fragment<kind> f[BATCH];
    if (groups ==
            1) { /* the first weights come while the kernel before ends; with more rows registers are too few */
        load_batch<kind>(m, base + part_start(p.units, part), base + end, lane, f);
    }
    cuda::wait_for_previous();
    for (int64_t unit = part_start(p.units, part); unit < end; unit += BATCH) {
        if (groups > 1) {
            load_batch<kind>(m, base + unit, base + end, lane, f);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (unit + i < end) {
                add_unit<kind, groups>(p, f[i], unit + i, first_token, lane, acc);
            }
        }
        if (groups == 1) {
            load_batch<kind>(m, base + unit + BATCH, base + end, lane, f);
        }
    }
    if (groups > 1) {
        cuda::let_next_begin();
    }
#pragma unroll
    for (int i = 0; i < groups; i++) {
        *reinterpret_cast<float4 *>(partial[part][i][lane]) =
                make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < groups * 128; i += THREADS) {
        const int row = i % 16, token = i / 16, in_group = token % 8;
        const int from_lane = row % 8 * 4 + in_group / 2, from = row / 8 * 2 + in_group % 2;
        float sum = partial[0][token / 8][from_lane][from];
#pragma unroll
        for (int j = 1; j < PRODUCT_PARTS; j++) {
            sum += partial[j][token / 8][from_lane][from];
        }
        finish(p, m, tile * PRODUCT_TILE_ROWS + row, first_token + token, sum);
    }
}

/* ---- wide ---- */

__device__ inline void copy_async(void *to, const void *from, bool there)
{
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    const int bytes = there ? 16 : 0; /* the rest is filled with zeros */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
}

/* [high, low][token][64 columns], 16-byte pieces of odd tokens exchanged by halves so that no two lanes meet in a bank */
struct stage {
    uint4 piece[2][WIDE_TOKENS][8];
};

__device__ inline void fetch_stage(const launch_args &p, stage &s, int64_t unit, int first_token)
{
    if (unit < p.units) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = static_cast<int>(threadIdx.x) + i * THREADS, piece = at % 8,
                      token = at / 8 % WIDE_TOKENS;
            const bool small = at >= 8 * WIDE_TOKENS, there = first_token + token < p.n;
            const __half *from = small ? p.low : p.high;
            const int64_t row = there ? first_token + token : 0;
            copy_async(&s.piece[small][token][piece ^ ((token & 1) << 2)],
                    from + row * p.stride + unit * PRODUCT_UNIT_COLS + piece * 8, there);
        }
    }
    asm volatile("cp.async.commit_group;");
}

template <int kind>
__device__ inline void add_wide(const launch_args &p,
        const stage &s,
        const fragment<kind> &f,
        int64_t unit,
        int first_token,
        int lane,
        float (&acc)[8][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        half_unit<kind> w;
        w.take(f, half, p.zero);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int token = 8 * i + lane / 4, piece = (4 * half + lane % 4) ^ ((token & 1) << 2);
            float2 sums = make_float2(0.0f, 0.0f);
            if (fragment<kind>::has_min) {
                sums = *reinterpret_cast<const float2 *>(
                        p.sums + (2 * unit + half) * p.sum_stride + first_token + 8 * i + lane % 4 * 2);
            }
            w.add_to(acc[i], s.piece[0][token][piece], s.piece[1][token][piece], sums);
        }
    }
}

/* A warp has one tile, a block eight of them and 64 tokens. */
template <int kind> __global__ void __launch_bounds__(THREADS, 2) wide(const launch_args p)
{
    __shared__ stage stages[STAGES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int token_blocks = (p.n + WIDE_TOKENS - 1) / WIDE_TOKENS;
    const int first_token = static_cast<int>(blockIdx.x % token_blocks) * WIDE_TOKENS;
    int64_t tile;
    const matrix_view &m = find_matrix(p, WARPS, blockIdx.x / token_blocks, tile);
    tile += warp;
    const bool idle = tile >= m.tiles;
    const int64_t base = (idle ? 0 : tile) * p.units;
    float acc[8][4] = {}, total[8][4] = {};
    fragment<kind> next;
    next.load(m, base, lane);
    cuda::wait_for_previous();
    for (int i = 0; i < STAGES - 1; i++) {
        fetch_stage(p, stages[i], i, first_token);
    }
    int part = 0;
    for (int64_t unit = 0; unit < p.units; unit++) {
        const fragment<kind> now = next;
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        if (unit + 1 < p.units) {
            next.load(m, base + unit + 1, lane);
        }
        fetch_stage(p, stages[(unit + STAGES - 1) % STAGES], unit + STAGES - 1, first_token);
        add_wide<kind>(p, stages[unit % STAGES], now, unit, first_token, lane, acc);
        while (part < PRODUCT_PARTS && part_start(p.units, part + 1) <= unit + 1) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                total[i / 4][i % 4] = part == 0 ? acc[i / 4][i % 4] : total[i / 4][i % 4] + acc[i / 4][i % 4];
                acc[i / 4][i % 4] = 0.0f;
            }
            part++;
        }
    }
    cuda::let_next_begin(); /* not earlier: blocks that wait would take this kernel's place on a multiprocessor */
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int64_t row = tile * PRODUCT_TILE_ROWS + lane / 4 + i % 4 / 2 * 8;
        if (!idle) {
            finish(p, m, row, first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, total[i / 4][i % 4]);
        }
    }
}

/* ---- launch ---- */

template <int kind, int groups> cudaError_t launch_narrow(const cuda_device *d, const launch_args &p)
{
    unsigned tiles = 0;
    for (int i = 0; i < p.n_matrices; i++) {
        tiles += static_cast<unsigned>(p.m[i].tiles);
    }
    return cuda::launch_chained(
            d, narrow<kind, groups>, dim3(tiles, cuda::blocks_for(p.n, 8 * groups)), THREADS, 0, p);
}

template <int kind> cudaError_t launch_kind(const cuda_device *d, const launch_args &p)
{
    if (p.n <= 8) {
        return launch_narrow<kind, 1>(d, p);
    }
    if (p.n <= 16) {
        return launch_narrow<kind, 2>(d, p);
    }
    if (p.n <= NARROW_ROWS_MAX) {
        return launch_narrow<kind, 4>(d, p);
    }
    unsigned blocks = 0;
    for (int i = 0; i < p.n_matrices; i++) {
        blocks += cuda::blocks_for(p.m[i].tiles, WARPS);
    }
    return cuda::launch_chained(
            d, wide<kind>, dim3(blocks * cuda::blocks_for(p.n, WIDE_TOKENS)), THREADS, 0, p);
}

cudaError_t launch(const cuda_device *d, int kind, const launch_args &p)
{
    using launcher = cudaError_t (*)(const cuda_device *, const launch_args &);
    static const launcher of_kind[] = {launch_kind<PRODUCT_HALVES>, launch_kind<PRODUCT_BYTES>,
            launch_kind<PRODUCT_NIBBLES>, launch_kind<PRODUCT_NIBBLES_MIN>, launch_kind<PRODUCT_NIBBLES_K>,
            launch_kind<PRODUCT_BYTES_K>, launch_kind<PRODUCT_BYTES_16>};
    return of_kind[kind](d, p);
}

matrix_view view_of(const cuda_product &product)
{
    const cuda_matrix *m = product.matrix;
    matrix_view v = {};
    v.codes = m->data;
    v.scales = m->data + m->layout.scales_at;
    v.mins = m->data + m->layout.mins_at;
    v.bias = product.bias;
    v.y = product.y;
    v.rows = m->layout.rows;
    v.tiles = m->layout.tiles;
    v.factor = m->factor;
    v.add = product.add;
    return v;
}

uint32_t zero_of(const product_layout &l)
{
    const unsigned short h = __half_as_ushort(__float2half(1024.0f + static_cast<float>(l.zero)));
    return static_cast<uint32_t>(h) << 16 | h;
}

status fill_matrix(cuda_device *d, krn_pool *pool, krn_type type, const void *data, cuda_matrix *m, err *e)
{
    uint8_t *packed = static_cast<uint8_t *>(base_alloc(m->layout.bytes));
    if (packed == nullptr) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for weights on their way to the device");
    }
    status st = product_pack(pool, type, &m->layout, data, packed, &m->factor);
    if (st != ST_OK) {
        st = FAIL(e, st, "out of memory for weights on their way to the device");
    } else {
        st = cuda_copy_in(d, m->data, packed, m->layout.bytes, e);
    }
    base_free(packed);
    return st;
}

} // namespace

extern "C" uint64_t cuda_matrix_bytes(krn_type type, int64_t rows, int64_t cols)
{
    return product_lay_out(type, rows, cols).bytes;
}

extern "C" status cuda_matrix_open(cuda_device *d,
        krn_pool *pool,
        krn_type type,
        int64_t rows,
        int64_t cols,
        const void *data,
        cuda_matrix **out,
        err *e)
{
    cuda_matrix *m = static_cast<cuda_matrix *>(base_zalloc(1, sizeof *m));
    if (m == nullptr) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a matrix");
    }
    void *memory = nullptr;
    m->layout = product_lay_out(type, rows, cols);
    status st = cuda_take(d, m->layout.bytes, "weights", &memory, e);
    m->data = static_cast<uint8_t *>(memory);
    st = st == ST_OK ? fill_matrix(d, pool, type, data, m, e) : st;
    if (st != ST_OK) {
        cuda_matrix_close(d, m);
        return st;
    }
    *out = m;
    return ST_OK;
}

extern "C" void cuda_matrix_close(cuda_device *d, cuda_matrix *m)
{
    if (m != nullptr) {
        cuda_release(d, m->data);
        base_free(m);
    }
}

extern "C" status cuda_matmul(
        cuda_device *d, const cuda_rows *r, const cuda_product *products, int n_products, err *e)
{
    REQUIRE(n_products >= 1 && n_products <= CUDA_PRODUCTS_MAX);
    bool done[CUDA_PRODUCTS_MAX] = {};
    for (int first = 0; first < n_products; first++) {
        if (done[first]) {
            continue;
        }
        const product_layout &l = products[first].matrix->layout;
        launch_args p = {};
        p.n = r->n;
        p.units = l.units;
        p.stride = r->stride;
        p.sum_stride = r->sum_stride;
        p.high = r->high;
        p.low = r->low;
        p.row_scale = r->scale;
        p.sums = r->sums;
        p.zero = zero_of(l);
        for (int i = first; i < n_products; i++) {
            const product_layout &other = products[i].matrix->layout;
            if (!done[i] && other.kind == l.kind && other.zero == l.zero) {
                REQUIRE(other.cols == r->cols);
                p.m[p.n_matrices++] = view_of(products[i]);
                done[i] = true;
            }
        }
        TRY_CUDA(launch(d, l.kind, p));
    }
    return ST_OK;
}
