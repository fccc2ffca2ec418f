/* One warp against one tile: scores, softmax, values. attend_kernel.cuh tells the arithmetic. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_TILE_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_TILE_CUH

#include "kernels/cuda/attend_types.cuh"

namespace attend {

/* ---- one tile of 16 tokens against the query, one slab of 16 channels against the weights ---- */

/* The four words of a 16-byte fragment as operand number m of four. */
template <bool TABLE>
static __device__ __forceinline__ void operand(const uint4 &w, uint32_t table, int m, uint32_t (&a)[4])
{
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (TABLE) {
            uint32_t nibbles = (m & 2 ? words[j] >> 2 : words[j]) & 0x33333333u;
            a[j] = __byte_perm(table, 0, m & 1 ? nibbles >> 16 : nibbles);
        } else {
            a[j] = (m & 2 ? words[j] >> 4 : words[j]) & (m & 1 ? 0x0C0C0C0Cu : 0x03030303u);
        }
    }
}

/* x = bias + sum: high and low of rows g (x[0], x[1]) and g + 8 (x[2], x[3]). */
template <class C>
static __device__ __forceinline__ void key_products(const uint8_t *plane,
        int tile,
        int lane,
        uint32_t table,
        const uint32_t (&b)[C::NT][C::HELD],
        float (&x)[C::NT][4])
{
    int first[C::NT][4], second[C::NT][4];
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            first[nt][j] = second[nt][j] = BIAS_BITS;
        }
    }
#pragma unroll
    for (int part = 0; part < (C::D == 256 ? 2 : 1); part++) {
        const int block = C::D == 64 ? tile >> 1 : C::D == 128 ? tile : 2 * tile + part;
        const int held = C::D == 64 ? 8 * (tile & 1) : 8 * part;
        const uint4 w = *reinterpret_cast<const uint4 *>(plane + block * 512 + lane * 16);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t a[4];
            operand<C::K_TABLE>(w, table, m, a);
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++) {
                int(&d)[4] = !C::K_TABLE && (m & 1) ? second[nt] : first[nt];
                mma_bytes<C::K_TABLE, true>(d, a[0], a[1], a[2], a[3], b[nt][held + 2 * m],
                        b[nt][held + 2 * m + 1], d[0], d[1], d[2], d[3]);
            }
        }
    }
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[nt][j] = C::K_TABLE ? __int_as_float(first[nt][j])
                                  : fmaf(__int_as_float(second[nt][j]), 0.25f, __int_as_float(first[nt][j]));
        }
    }
}

/* Scores of all 128 tokens of the lane's rows before `factor`: s[tile][nt][token g or g + 8]. Returns the page's
 * maximum over the lane's tokens in top. */
template <class C>
static __device__ __forceinline__ void key_scores(const parameters &p,
        const uint8_t *page,
        int lane,
        const uint32_t (&b)[C::NT][C::HELD],
        const query_constants (&k)[C::NT],
        float (&s)[8][C::NT][2])
{
    const int g = lane >> 2;
#pragma unroll
    for (int tile = 0; tile < 8; tile++) {
        float x[C::NT][4], y[C::NT][4];
        key_products<C>(page + p.k_plane_at[0], tile, lane, p.k_table, b, x);
        if (C::PLANES) {
            key_products<C>(page + p.k_plane_at[1], tile, lane, p.k_table, b, y);
            __syncwarp(); /* else the compiler loads all tiles first and runs out of registers */
        }
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int at = 2 * (16 * tile + 8 * row + g);
            const float scale = half_at(page + p.k_scale_at + at);
            const float zero = C::ZERO ? half_at(page + p.k_zero_at + at) : 0.0f;
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++) {
                float high = x[nt][2 * row] - C::K_BIAS, low = x[nt][2 * row + 1];
                if (C::PLANES) {
                    high = fmaf(high, 4.0f, y[nt][2 * row] - C::K_BIAS);
                    low = fmaf(low - C::K_BIAS, 4.0f, y[nt][2 * row + 1]);
                }
                float t = fmaf(high, 256.0f, low) + k[nt].offset;
                if (C::ZERO) {
                    t = fmaf(-zero, k[nt].bf16_or_sum, t);
                }
                s[tile][nt][row] = t * scale;
            }
        }
    }
}

/* Maximum over the eight lanes that share a head. */
static __device__ __forceinline__ float max_over_rows(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

static __device__ __forceinline__ float sum_over_rows(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

/* Raises the running maximum to include `top` (the tile's, in log2) and rescales what was summed under the old one. */
template <class C> static __device__ __forceinline__ void raise_top(state<C> &st, const float (&top)[C::NT])
{
    bool raised = false;
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        raised |= top[nt] > st.top[nt];
    }
    if (__any_sync(~0u, raised)) {
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++) {
            const float next = fmaxf(st.top[nt], top[nt]), f = exp2_approximate(st.top[nt] - next);
            st.top[nt] = next;
            st.total[nt] *= f;
            st.based[nt] *= f;
#pragma unroll
            for (int slab = 0; slab < C::SLABS; slab++) {
                st.o[nt][slab][0] *= f;
                st.o[nt][slab][1] *= f;
            }
        }
    }
}

/* Two tokens' 16-bit weights, of tiles a and b, as B operand bytes of tokens 2t and 2t + 1: column 2h the high bytes of
 * head h, column 2h + 1 the low ones. */
static __device__ __forceinline__ uint32_t weight_operand(float a, float b)
{
    return transpose(__byte_perm(__float_as_uint(a), __float_as_uint(b), 0x4051));
}

/* Scores to weights: raises the maximum, sums, and makes the operands w of the value product. `step` is what one unit
 * of a weight counts. */
template <class C>
static __device__ __forceinline__ void weights(const parameters &p,
        const uint8_t *page,
        int rows,
        int lane,
        const query_constants (&k)[C::NT],
        float (&s)[8][C::NT][2],
        state<C> &st,
        uint32_t (&w)[C::NT][8],
        float (&step)[C::NT])
{
    const int g = lane >> 2;
    float top[C::NT], largest[C::NT];
    if (rows < 128) {
#pragma unroll
        for (int tile = 0; tile < 8; tile++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
#pragma unroll
                for (int nt = 0; nt < C::NT; nt++) {
                    s[tile][nt][row] = 16 * tile + 8 * row + g < rows ? s[tile][nt][row] : LOWEST;
                }
            }
        }
    }
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        top[nt] = LOWEST;
#pragma unroll
        for (int tile = 0; tile < 8; tile++) {
            top[nt] = fmaxf(top[nt], fmaxf(s[tile][nt][0], s[tile][nt][1]));
        }
        top[nt] = fmaf(max_over_rows(top[nt]), k[nt].factor, k[nt].added);
    }
    raise_top<C>(st, top);
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        const float added = k[nt].added - st.top[nt];
        largest[nt] = 1e-30f;
#pragma unroll
        for (int tile = 0; tile < 8; tile++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int at = 2 * (16 * tile + 8 * row + g);
                const float probability = exp2_approximate(fmaf(s[tile][nt][row], k[nt].factor, added));
                const float weight = probability * half_at(page + p.v_scale_at + at);
                st.total[nt] += probability;
                st.based[nt] = C::ZERO ? fmaf(weight, half_at(page + p.v_zero_at + at), st.based[nt])
                                       : st.based[nt] + weight;
                largest[nt] = fmaxf(largest[nt], weight);
                s[tile][nt][row] = weight;
            }
        }
        largest[nt] = max_over_rows(largest[nt]);
        step[nt] = largest[nt] * (1.0f / WEIGHT_MAX);
        const float inverse = WEIGHT_MAX * reciprocal_approximate(largest[nt]);
#pragma unroll
        for (int tile = 0; tile < 8; tile++) {
#pragma unroll
            for (int row = 0; row < 2; row++) { /* 2^23 + integer: the integer in the low bits */
                s[tile][nt][row] = fmaf(s[tile][nt][row], inverse, 8388608.0f);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                if (C::V_TABLE) {
                    const uint32_t x = weight_operand(s[i][nt][row], s[i + 2][nt][row]);
                    const uint32_t y = weight_operand(s[i + 4][nt][row], s[i + 6][nt][row]);
                    w[nt][4 * i + row] = __byte_perm(x, y, 0x5410);
                    w[nt][4 * i + 2 + row] = __byte_perm(x, y, 0x7632);
                } else {
                    w[nt][4 * i + row] = weight_operand(s[2 * i][nt][row], s[2 * i + 4][nt][row]);
                    w[nt][4 * i + 2 + row] = weight_operand(s[2 * i + 1][nt][row], s[2 * i + 5][nt][row]);
                }
            }
        }
    }
}

/* o += weights times values, all channels. */
template <class C>
static __device__ __forceinline__ void value_products(const parameters &p,
        const uint8_t *page,
        int lane,
        const uint32_t (&w)[C::NT][8],
        const float (&step)[C::NT],
        state<C> &st)
{
#pragma unroll
    for (int slab = 0; slab < C::SLABS; slab++) {
        const uint4 v = *reinterpret_cast<const uint4 *>(page + p.v_plane_at + slab * 512 + lane * 16);
        int first[C::NT][4], second[C::NT][4];
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                first[nt][j] = second[nt][j] = BIAS_BITS;
            }
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t a[4];
            operand<C::V_TABLE>(v, p.v_table, m, a);
#pragma unroll
            for (int nt = 0; nt < C::NT; nt++) {
                int(&d)[4] = !C::V_TABLE && (m & 1) ? second[nt] : first[nt];
                mma_bytes<C::V_TABLE, false>(
                        d, a[0], a[1], a[2], a[3], w[nt][2 * m], w[nt][2 * m + 1], d[0], d[1], d[2], d[3]);
            }
        }
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float x[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[j] = __int_as_float(first[nt][2 * row + j]);
                    if (!C::V_TABLE) {
                        x[j] = fmaf(__int_as_float(second[nt][2 * row + j]), 0.25f, x[j]);
                    }
                    x[j] -= C::V_BIAS;
                }
                st.o[nt][slab][row] = fmaf(fmaf(x[0], 256.0f, x[1]), step[nt], st.o[nt][slab][row]);
            }
        }
    }
}

/* ---- BF16 rows ---- */

static __device__ __forceinline__ float signed_byte(uint32_t word, int byte)
{
    return __uint_as_float(
                   __byte_perm(word ^ 0x80808080u, 0x4B000000u, 0x7650u + static_cast<uint32_t>(byte))) -
            8388736.0f; /* 2^23 + 128 */
}

/* The query fragment's bytes of 16 channels as BF16, which holds them exactly: operand register `half` (channels 0..7 or
 * 8..15) of BF16 product number kb. */
template <class C>
static __device__ __forceinline__ uint32_t query_bf16(const uint32_t (&b)[C::HELD], int kb, int half)
{
    const int i = kb & 3, upper = (kb >> 2) & 1, part = 8 * (kb >> 3);
    if (C::K_TABLE) {
        const int reg = part + 4 * (i & 1) + half, byte = (i >> 1) + 2 * upper;
        return pack_bf16(signed_byte(b[reg], byte), signed_byte(b[reg + 2], byte));
    }
    const int reg = part + 2 * i + half;
    return pack_bf16(signed_byte(b[reg], upper), signed_byte(b[reg], 2 + upper));
}

/* Up to 16 BF16 rows, in the same softmax. Scores are again 256 high + low; weights are split into two BF16 numbers in
 * neighbouring columns, 16 bits of precision together. */
template <class C>
static __device__ __forceinline__ void bf16_tile(const parameters &p,
        const uint8_t *stage,
        int rows,
        int lane,
        const uint32_t (&b)[C::NT][C::HELD],
        const query_constants (&k)[C::NT],
        state<C> &st)
{
    const int g = lane >> 2, matrix = lane >> 3, line = lane & 7;
    const uint32_t keys =
            shared_address(stage) + ((matrix & 1) * 8 + line) * C::ROW_BYTES + (matrix >> 1) * 16;
    const uint32_t values =
            shared_address(stage) + (16 + (matrix >> 1) * 8 + line) * C::ROW_BYTES + (matrix & 1) * 16;
    float s[C::NT][4];
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        s[nt][0] = s[nt][1] = s[nt][2] = s[nt][3] = 0.0f;
    }
#pragma unroll
    for (int kb = 0; kb < C::D / 16; kb++) {
        uint32_t a[4];
        load_matrices(a, keys + kb * 32);
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++) {
            mma_bf16(s[nt], a, query_bf16<C>(b[nt], kb, 0), query_bf16<C>(b[nt], kb, 1));
        }
    }
    float x[C::NT][2], factor[C::NT], top[C::NT];
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
        factor[nt] = C::ZERO ? k[nt].factor : k[nt].bf16_or_sum;
        x[nt][0] = g < rows ? fmaf(s[nt][0], 256.0f, s[nt][1]) : LOWEST;
        x[nt][1] = g + 8 < rows ? fmaf(s[nt][2], 256.0f, s[nt][3]) : LOWEST;
        top[nt] = fmaf(max_over_rows(fmaxf(x[nt][0], x[nt][1])), factor[nt], k[nt].added);
    }
    raise_top<C>(st, top);
    uint32_t w[C::NT][2];
#pragma unroll
    for (int nt = 0; nt < C::NT; nt++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float weight = exp2_approximate(fmaf(x[nt][row], factor[nt], k[nt].added - st.top[nt]));
            const float high = rounded_to_bf16(weight);
            st.total[nt] += weight;
            w[nt][row] = transpose(pack_bf16(high, weight - high));
        }
    }
    const float inverse = 1.0f / p.v_unit; /* o counts units */
#pragma unroll
    for (int slab = 0; slab < C::SLABS; slab++) {
        uint32_t a[4];
        load_matrices_transposed(a, values + slab * 32);
#pragma unroll
        for (int nt = 0; nt < C::NT; nt++) {
            float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            mma_bf16(d, a, w[nt][0], w[nt][1]);
            st.o[nt][slab][0] = fmaf(d[0] + d[1], inverse, st.o[nt][slab][0]);
            st.o[nt][slab][1] = fmaf(d[2] + d[3], inverse, st.o[nt][slab][1]);
        }
    }
}

} // namespace attend

#endif
