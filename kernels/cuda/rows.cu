/* Row operations: activations into the form that products read, with what comes before a product (norm, SwiGLU) done on
 * the way; norms in place, angles, new keys and values into their tier, argmax. Each row is one block's work and is
 * summed in an order that its length fixes. */
#include "kernels/cuda/rows.cuh"

#include <cuda_bf16.h>
#include <float.h>

namespace {

enum { LOAD_PLAIN_BYTES = 32 << 10 };
enum {
    LOAD_THREADS = 256,
    LOAD_THREADS_MAX = 1024,
    UNIT_COLS = 64,
    SUM_COLS = 32,
    TOKENS_ALIGNED = 64,
    HEAD_MAX = 256
};

struct sum_of {
    __device__ static float identity()
    {
        return 0.0f;
    }
    __device__ float operator()(float a, float b) const
    {
        return a + b;
    }
};

/* NaN stays: a row with one must give NaN, not a number. */
struct largest_of {
    __device__ static float identity()
    {
        return 0.0f;
    }
    __device__ float operator()(float a, float b) const
    {
        return a > b || a != a ? a : b;
    }
};

template <class Op> __device__ inline float reduce_warp(float x, Op op)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}

/* Over the block, in a fixed order; all threads get it. */
template <class Op> __device__ inline float reduce_block(float x, Op op)
{
    __shared__ float of_warp[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = static_cast<int>(blockDim.x) / 32;
    x = reduce_warp(x, op);
    __syncthreads();
    if (lane == 0) {
        of_warp[warp] = x;
    }
    __syncthreads();
    x = lane < warps ? of_warp[lane] : Op::identity();
    return reduce_warp(x, op);
}

/* ---- loading ---- */

/* A source puts a row's numbers into shared memory, each thread those that it takes from there again. */
struct plain_source {
    const float *x;
    __device__ void fill(float *values, int64_t row, int64_t cols) const
    {
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
            values[i] = x[row * cols + i];
        }
    }
};

struct norm_source {
    const float *x, *weight;
    const int32_t *which;
    float eps;
    __device__ void fill(float *values, int64_t row, int64_t cols) const
    {
        const float *from = x + (which != nullptr ? which[row] : row) * cols;
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
            values[i] = from[i];
            sum += values[i] * values[i];
        }
        sum = reduce_block(sum, sum_of());
        const float factor = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
            values[i] = values[i] * factor * weight[i];
        }
    }
};

struct swiglu_source {
    const float *gate, *up;
    __device__ void fill(float *values, int64_t row, int64_t cols) const
    {
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) {
            const float g = gate[row * cols + i];
            values[i] = g / (1.0f + expf(-g)) * up[row * cols + i];
        }
    }
};

struct load_args {
    __half *high, *low;
    float *scale, *sums;
    int64_t cols, stride, sum_stride;
};

template <class Source>
__global__ void __launch_bounds__(LOAD_THREADS_MAX) load_rows(const Source source, const load_args a)
{
    extern __shared__ float values[];
    const int row = static_cast<int>(blockIdx.x);
    cuda::let_next_begin();
    cuda::wait_for_previous();
    source.fill(values, row, a.cols);
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < a.cols; i += blockDim.x) {
        largest = largest_of()(fabsf(values[i]), largest);
    }
    largest = reduce_block(largest, largest_of());
    int exponent = 0;
    if (largest > 0.0f && largest <= FLT_MAX) {
        exponent = 13 - ilogbf(largest);
        exponent = exponent > 120 ? 120 : exponent;
    }
    const float up = ldexpf(1.0f, exponent);
    if (threadIdx.x == 0) {
        a.scale[row] = ldexpf(1.0f, -exponent);
    }
    for (int64_t i = threadIdx.x; i < a.stride; i += blockDim.x) {
        const float x = i < a.cols ? values[i] * up : 0.0f;
        const __half high = __float2half_rn(x), low = __float2half_rn(x - __half2float(high));
        a.high[row * a.stride + i] = high;
        a.low[row * a.stride + i] = low;
        const float sum = reduce_warp(__half2float(high) + __half2float(low), sum_of());
        if (i % SUM_COLS == 0) {
            a.sums[i / SUM_COLS * a.sum_stride + row] = sum;
        }
    }
}

template <class Source> status load(cuda_device *d, cuda_rows *r, Source source, int n, int64_t cols, err *e)
{
    REQUIRE(n >= 1 && n <= r->max_rows && cols >= 1 && cols <= r->max_cols);
    r->n = n;
    r->cols = cols;
    r->stride = (cols + UNIT_COLS - 1) / UNIT_COLS * UNIT_COLS;
    const load_args a = {r->high, r->low, r->scale, r->sums, cols, r->stride, r->sum_stride};
    const unsigned threads = cols > LOAD_THREADS ? LOAD_THREADS_MAX : LOAD_THREADS; /* by the length alone */
    const size_t bytes = static_cast<size_t>(cols) * sizeof(float);
    if (bytes > LOAD_PLAIN_BYTES) {
        TRY_CUDA(cudaFuncSetAttribute(
                load_rows<Source>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    }
    TRY_CUDA(cuda::launch_chained(
            d, load_rows<Source>, dim3(static_cast<unsigned>(n)), threads, bytes, source, a));
    return ST_OK;
}

/* ---- in place ---- */

/* Heads of q, then heads of k, each a block. */
__global__ void norm_heads(const cuda_head_norms a)
{
    cuda::let_next_begin();
    cuda::wait_for_previous();
    const bool is_q = blockIdx.x < a.q_rows;
    const int64_t at = is_q ? blockIdx.x : blockIdx.x - a.q_rows;
    float *row = (is_q ? a.q : a.k) + at * a.cols;
    const int i = static_cast<int>(threadIdx.x);
    const float v = i < a.cols ? row[i] : 0.0f;
    const float sum = reduce_block(v * v, sum_of());
    if (i < a.cols) {
        const float *weight = is_q ? a.q_weight : a.k_weight;
        row[i] = v * (1.0f / sqrtf(sum / static_cast<float>(a.cols) + a.eps)) * weight[i];
    }
}

__global__ void angles(const cuda_angles a, int n)
{
    const int half = a.dims / 2, each = (a.n_variants + 1) * half;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t row = i / each;
    if (row >= n) {
        return;
    }
    const int variant = static_cast<int>(i % each) / half - 1, pair = static_cast<int>(i % half);
    int64_t position = a.position[row];
    float *to = a.own + row * a.dims + 2 * pair;
    if (variant >= 0) {
        position -= a.shift[static_cast<int64_t>(a.run[row]) * a.n_variants + variant];
        to = a.cos_sin + ((row * a.n_variants + variant) * half + pair) * 2;
    }
    double sine, cosine;
    sincos(static_cast<double>(position) * a.inv_freq[pair], &sine, &cosine);
    to[0] = static_cast<float>(cosine * static_cast<double>(a.magnitude));
    to[1] = static_cast<float>(sine * static_cast<double>(a.magnitude));
}

/* ---- new keys and values ---- */

/* x [d] in shared memory -> (x - mean) R, one thread a channel; `other` is as large. */
__device__ float rotate(const cuda_attend_rotation &r, int head, int d, float *x, float *other)
{
    const int i = static_cast<int>(threadIdx.x);
    if (r.mean != nullptr) {
        x[i] -= r.mean[head * d + i];
    }
    __syncthreads();
    if (r.kind == KRN_ROTATION_HADAMARD) {
        for (int stride = d / 2; stride >= 1; stride /= 2) {
            const float near = x[i], far = x[i ^ stride];
            other[i] = (i & stride) == 0 ? near + far : far - near;
            float *swap = x;
            x = other;
            other = swap;
            __syncthreads();
        }
        return x[i] * (1.0f / sqrtf(static_cast<float>(d)));
    }
    if (r.kind != KRN_ROTATION_MATRIX) {
        return x[i];
    }
    const float *matrix = r.matrix + static_cast<int64_t>(head) * d * d;
    float sum = 0.0f;
    for (int j = 0; j < d; j++) {
        sum += x[j] * matrix[j * d + i];
    }
    return sum;
}

/* One block per (row, KV head), one thread per channel. */
__global__ void store_rows(const cuda_new_rows a)
{
    __shared__ float x[HEAD_MAX], other[HEAD_MAX];
    const int head = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x), d = a.d;
    cuda::let_next_begin();
    cuda::wait_for_previous();
    const int64_t row = blockIdx.y, at = (row * a.kv_heads + head) * d + i;
    x[i] = a.k[at];
    __syncthreads();
    float k = x[i];
    if (i < a.rope_dims) {
        const bool halves = a.pairing == KRN_ROPE_HALVES;
        const int half = a.rope_dims / 2, pair = halves ? i % half : i / 2;
        const bool second = halves ? i >= half : i % 2 == 1;
        const int partner = halves ? (second ? i - half : i + half) : i ^ 1;
        const float *angle = a.own_angles + row * a.rope_dims + 2 * pair;
        k = second ? x[partner] * angle[1] + x[i] * angle[0] : x[i] * angle[0] - x[partner] * angle[1];
    }
    a.k[at] = k;
    __syncthreads();
    x[i] = k;
    const __nv_bfloat16 key = __float2bfloat16(rotate(a.k_space, head, d, x, other));
    __syncthreads();
    x[i] = a.v[at];
    const __nv_bfloat16 value = __float2bfloat16(rotate(a.v_space, head, d, x, other));
    char *to = reinterpret_cast<char *>(a.unit[row]) + a.layer_offset + head * a.head_stride;
    reinterpret_cast<__nv_bfloat16 *>(to)[i] = key;
    reinterpret_cast<__nv_bfloat16 *>(to + a.v_offset)[i] = value;
    __nv_bfloat16 *packed = reinterpret_cast<__nv_bfloat16 *>(a.packed) +
            ((row * a.layers + a.layer) * a.kv_heads + head) * 2 * d;
    packed[i] = key;
    packed[d + i] = value;
}

/* ---- argmax ---- */

__global__ void find_largest(const float *x, int64_t cols, int32_t *out)
{
    __shared__ float values[LOAD_THREADS];
    __shared__ int64_t places[LOAD_THREADS];
    const float *row = x + static_cast<int64_t>(blockIdx.x) * cols;
    const int t = static_cast<int>(threadIdx.x);
    float best = -INFINITY;
    int64_t place = cols;
    for (int64_t i = t; i < cols; i += LOAD_THREADS) {
        if (row[i] > best) {
            best = row[i];
            place = i;
        }
    }
    values[t] = best;
    places[t] = place;
    __syncthreads();
    for (int step = LOAD_THREADS / 2; step > 0; step /= 2) {
        if (t < step &&
                (values[t + step] > values[t] ||
                        (values[t + step] == values[t] && places[t + step] < places[t]))) {
            values[t] = values[t + step];
            places[t] = places[t + step];
        }
        __syncthreads();
    }
    if (t == 0) {
        out[blockIdx.x] = places[0] < cols ? static_cast<int32_t>(places[0]) : 0;
    }
}

status take_parts(cuda_device *d, cuda_rows *r, err *e)
{
    const uint64_t rows = static_cast<uint64_t>(r->max_rows);
    const uint64_t cols = static_cast<uint64_t>((r->max_cols + UNIT_COLS - 1) / UNIT_COLS * UNIT_COLS);
    const uint64_t sums = cols / SUM_COLS * static_cast<uint64_t>(r->sum_stride) * sizeof(float);
    void *p = nullptr;
    TRY(cuda_take(d, rows * cols * sizeof(__half), "activations", &p, e));
    r->high = static_cast<__half *>(p);
    TRY(cuda_take(d, rows * cols * sizeof(__half), "activations", &p, e));
    r->low = static_cast<__half *>(p);
    TRY(cuda_take(d, rows * sizeof(float), "activations", &p, e));
    r->scale = static_cast<float *>(p);
    TRY(cuda_take(d, sums, "activations", &p, e));
    r->sums = static_cast<float *>(p);
    TRY_CUDA(cudaMemsetAsync(r->sums, 0, sums, d->stream)); /* products read past the last row */
    return ST_OK;
}

} // namespace

extern "C" status cuda_rows_open(cuda_device *d, int max_rows, int64_t max_cols, cuda_rows **out, err *e)
{
    cuda_rows *r = static_cast<cuda_rows *>(base_zalloc(1, sizeof *r));
    if (r == nullptr) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for activations");
    }
    r->max_rows = max_rows;
    r->max_cols = max_cols;
    r->sum_stride = (static_cast<int64_t>(max_rows) + TOKENS_ALIGNED - 1) / TOKENS_ALIGNED * TOKENS_ALIGNED;
    const status st = take_parts(d, r, e);
    if (st != ST_OK) {
        cuda_rows_close(d, r);
        return st;
    }
    *out = r;
    return ST_OK;
}

extern "C" void cuda_rows_close(cuda_device *d, cuda_rows *r)
{
    if (r != nullptr) {
        cuda_release(d, r->high);
        cuda_release(d, r->low);
        cuda_release(d, r->scale);
        cuda_release(d, r->sums);
        base_free(r);
    }
}

extern "C" status cuda_rows_load(cuda_device *d, cuda_rows *r, const float *x, int n, int64_t cols, err *e)
{
    return load(d, r, plain_source{x}, n, cols, e);
}

extern "C" status cuda_rows_load_norm(cuda_device *d,
        cuda_rows *r,
        const float *x,
        const int32_t *which,
        const float *weight,
        float eps,
        int n,
        int64_t cols,
        err *e)
{
    return load(d, r, norm_source{x, weight, which, eps}, n, cols, e);
}

extern "C" status cuda_rows_load_swiglu(
        cuda_device *d, cuda_rows *r, const float *gate, const float *up, int n, int64_t cols, err *e)
{
    return load(d, r, swiglu_source{gate, up}, n, cols, e);
}

extern "C" status cuda_norm_heads(cuda_device *d, const cuda_head_norms *a, err *e)
{
    REQUIRE(a->cols >= 1 && a->cols <= LOAD_THREADS_MAX && a->q_rows >= 0 && a->k_rows >= 0);
    const unsigned threads = cuda::blocks_for(a->cols, 32) * 32;
    TRY_CUDA(cuda::launch_chained(
            d, norm_heads, dim3(static_cast<unsigned>(a->q_rows + a->k_rows)), threads, 0, *a));
    return ST_OK;
}

extern "C" status cuda_rope_angles(cuda_device *d, const cuda_angles *a, int n, err *e)
{
    const int64_t all = static_cast<int64_t>(n) * (a->n_variants + 1) * (a->dims / 2);
    angles<<<cuda::blocks_for(all, LOAD_THREADS), LOAD_THREADS, 0, d->stream>>>(*a, n);
    TRY_CUDA(cudaGetLastError());
    return ST_OK;
}

extern "C" status cuda_store_rows(cuda_device *d, const cuda_new_rows *a, int n, err *e)
{
    REQUIRE(a->d <= HEAD_MAX && a->d % 32 == 0);
    const dim3 blocks(static_cast<unsigned>(a->kv_heads), static_cast<unsigned>(n));
    TRY_CUDA(cuda::launch_chained(d, store_rows, blocks, static_cast<unsigned>(a->d), 0, *a));
    return ST_OK;
}

extern "C" status cuda_argmax(cuda_device *d, const float *x, int n, int64_t cols, int32_t *out, err *e)
{
    find_largest<<<static_cast<unsigned>(n), LOAD_THREADS, 0, d->stream>>>(x, cols, out);
    TRY_CUDA(cudaGetLastError());
    return ST_OK;
}
