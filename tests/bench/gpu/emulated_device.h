/*
 * The attention kernel's instructions on the CPU, so that its code can be run and debugged without a card. Included in
 * place of kernels/cuda/attend_device.cuh, whose guard it takes.
 *
 * A block's 256 threads are fibres. At each warp or block operation a fibre leaves its operands and yields until its
 * companions have come; the last one computes for all. Fibres that meet at different operations are reported: that is
 * a divergence which would hang or garble on a card. Barriers count as the real ones do. Warps run at uneven speeds and
 * bulk copies take a while, both pseudo-random: what holds only when warps keep step fails here too.
 */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_DEVICE_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_DEVICE_CUH

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __device__
#define __host__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__

#ifndef ATTEND_BULK
#define ATTEND_BULK 1
#endif

struct uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

namespace emulated {

enum {
    LANES = 32,
    THREADS = 256,
    WARPS = THREADS / LANES,
    STACK_BYTES = 64 * 1024,
    SHARED_BYTES = 256 * 1024,
    LONGEST_SLEEP = 1500 /* sweeps */
};

/* A meeting of `expected` fibres. */
struct meeting {
    int arrived, generation, operation;
    uint64_t in[THREADS][8];
    uint64_t out[THREADS][4];
};

struct dim {
    int x;
};

/* A bulk copy on its way. */
struct copy {
    uint32_t dst, bytes, barrier;
    uint64_t src;
    int due;
};

struct block_state {
    ucontext_t main, fibres[THREADS];
    char *stacks;
    bool ended[THREADS];
    int current;
    dim block;
    uint8_t *kept; /* shared memory while another block runs */
    int able;      /* to go on: threads in the last sweep */
    meeting warps[WARPS], all;
    bool (*may_go_on[THREADS])(const void *argument); /* of threads that wait */
    const void *argument[THREADS];
    int arrived_in[THREADS];        /* generation of the cluster's barrier */
    int sweep, asleep_until[WARPS]; /* a sweep lets every thread go on once */
    uint64_t random;
    std::vector<copy> copies;
    void (*body)(const void *parameters);
    const void *parameters;
};

/* The block that runs; all blocks of its cluster. */
inline block_state *now;
inline std::vector<block_state *> cluster;
inline int cluster_now, cluster_generation, cluster_arrived;

inline void yield_fibre()
{
    swapcontext(&now->fibres[now->current], &now->main);
}

/* The current thread waits until condition() holds. */
template <class F> void wait_until(F condition)
{
    const int thread = now->current;
    if (condition()) {
        return;
    }
    now->argument[thread] = &condition;
    now->may_go_on[thread] = [](const void *argument) { return (*static_cast<const F *>(argument))(); };
    yield_fibre();
    now->may_go_on[thread] = nullptr;
}

inline void failed(const char *what)
{
    fprintf(stderr, "emulated device: block %d, thread %d: %s\n", now->block.x, now->current, what);
    abort();
}

/* Meets the others; `compute` runs once, in the last to arrive. */
template <class F> void meet(meeting &m, int first, int expected, int operation, F compute)
{
    if (m.arrived > 0 && m.operation != operation) {
        failed("threads meet at different operations");
    }
    m.operation = operation;
    (void)first;
    const int generation = m.generation;
    if (++m.arrived == expected) {
        compute();
        m.arrived = 0;
        m.generation++;
    } else {
        wait_until([&m, generation] { return m.generation != generation; });
    }
}

inline int lane()
{
    return now->current % LANES;
}

inline meeting &my_warp()
{
    return now->warps[now->current / LANES];
}

template <class F> void in_warp(int operation, F compute)
{
    meet(my_warp(), 0, LANES, operation, compute);
}

inline uint32_t &word(uint64_t (&row)[8], int i)
{
    return reinterpret_cast<uint32_t *>(row)[i];
}

inline void entry()
{
    now->body(now->parameters);
    now->ended[now->current] = true;
    yield_fibre();
}

inline int random_below(int n)
{
    now->random = now->random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((now->random >> 33) % static_cast<uint64_t>(n));
}

void finish_copies();

inline void run_sweep()
{
    now->sweep++;
    now->able = 0;
    finish_copies();
    for (int warp = 0; warp < WARPS; warp++) {
        if (random_below(1000) == 0) {
            now->asleep_until[warp] = now->sweep + random_below(LONGEST_SLEEP);
        }
    }
    for (int t = 0; t < THREADS; t++) {
        if (now->ended[t] || (now->may_go_on[t] != nullptr && !now->may_go_on[t](now->argument[t]))) {
            continue;
        }
        now->able++;
        if (now->asleep_until[t / LANES] <= now->sweep) {
            now->current = t;
            swapcontext(&now->main, &now->fibres[t]);
        }
    }
}

inline int threads_left(const block_state &b)
{
    int left = 0;
    for (int t = 0; t < THREADS; t++) {
        left += b.ended[t] ? 0 : 1;
    }
    return left;
}

inline void start_block(block_state &b, int index, void (*body)(const void *), const void *parameters)
{
    if (b.stacks == nullptr) {
        b.stacks = static_cast<char *>(malloc(static_cast<size_t>(THREADS) * STACK_BYTES));
        b.kept = static_cast<uint8_t *>(malloc(SHARED_BYTES));
    }
    memset(b.kept, 0xff, SHARED_BYTES);
    b.body = body;
    b.parameters = parameters;
    b.block.x = index;
    for (int t = 0; t < THREADS; t++) {
        getcontext(&b.fibres[t]);
        b.fibres[t].uc_stack.ss_sp = b.stacks + static_cast<size_t>(t) * STACK_BYTES;
        b.fibres[t].uc_stack.ss_size = STACK_BYTES;
        b.fibres[t].uc_link = nullptr;
        makecontext(&b.fibres[t], entry, 0);
        b.ended[t] = false;
        b.may_go_on[t] = nullptr;
    }
}

/* Runs a block until its threads have ended or wait for other blocks. */
inline void run_block(block_state &b, uint8_t *shared)
{
    now = &b;
    memcpy(shared, b.kept, SHARED_BYTES);
    do {
        run_sweep();
    } while (b.able > 0 || !b.copies.empty());
    memcpy(b.kept, shared, SHARED_BYTES);
}

/* Runs `body` as a grid of blocks in clusters, one cluster after the other. */
inline void run(
        int blocks, int cluster_size, void (*body)(const void *), const void *parameters, uint8_t *shared)
{
    while (static_cast<int>(cluster.size()) < cluster_size) {
        cluster.push_back(new block_state());
    }
    cluster_now = cluster_size;
    for (int first = 0; first < blocks; first += cluster_size) {
        cluster_arrived = 0;
        for (int i = 0; i < cluster_size; i++) {
            start_block(*cluster[i], first + i, body, parameters);
        }
        for (int left = 1; left > 0;) {
            left = 0;
            for (int i = 0; i < cluster_size; i++) {
                run_block(*cluster[i], shared);
                left += threads_left(*cluster[i]);
            }
            if (cluster_arrived != left) {
                failed("threads wait for ever");
            }
            cluster_arrived = 0;
            cluster_generation++;
        }
    }
}

} // namespace emulated

/* ---- CUDA's own ---- */

struct emulated_thread_index {
    int x;
};
#define threadIdx (emulated_thread_index{emulated::now->current})
#define blockIdx  (emulated::now->block)

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
inline float2 make_float2(float x, float y)
{
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
template <class T> T __ldg(const T *p)
{
    return *p;
}
template <class T> T __ldcg(const T *p)
{
    return *p;
}
template <class To, class From> To emulated_bits(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "bits");
    memcpy(&y, &x, sizeof y);
    return y;
}
inline float __uint_as_float(uint32_t x)
{
    return emulated_bits<float>(x);
}
inline float __int_as_float(int x)
{
    return emulated_bits<float>(x);
}
inline uint32_t __float_as_uint(float x)
{
    return emulated_bits<uint32_t>(x);
}
inline int __float2int_rn(float x)
{
    return static_cast<int>(lrintf(x));
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t y = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = selector >> (4 * i) & 0xfu;
        if (nibble & 8u) {
            emulated::failed("byte permutation with sign replication");
        }
        y |= static_cast<uint32_t>(bytes >> (8 * nibble) & 0xffu) << (8 * i);
    }
    return y;
}
inline void __threadfence() {}
inline uint32_t atomicAdd(uint32_t *p, uint32_t x)
{
    const uint32_t before = *p;
    *p += x;
    return before;
}
inline void __syncwarp()
{
    emulated::in_warp(1, [] {});
}
inline void __syncthreads()
{
    emulated::meet(emulated::now->all, 0, emulated::THREADS, 2, [] {});
}
template <class T> T emulated_shuffle(T x, int from)
{
    emulated::meeting &m = emulated::my_warp();
    const int lane = emulated::lane();
    memcpy(m.in[lane], &x, sizeof x);
    m.in[lane][1] = static_cast<uint64_t>(from);
    emulated::in_warp(3, [&m] {
        for (int i = 0; i < emulated::LANES; i++) {
            m.out[i][0] = m.in[m.in[i][1]][0];
        }
    });
    memcpy(&x, m.out[lane], sizeof x);
    return x;
}
template <class T> T __shfl_xor_sync(uint32_t, T x, int mask)
{
    return emulated_shuffle(x, emulated::lane() ^ mask);
}
template <class T> T __shfl_sync(uint32_t, T x, int from)
{
    return emulated_shuffle(x, from);
}
inline uint32_t __ballot_sync(uint32_t, bool x)
{
    emulated::meeting &m = emulated::my_warp();
    m.in[emulated::lane()][0] = x ? 1 : 0;
    emulated::in_warp(4, [&m] {
        uint32_t mask = 0;
        for (int i = 0; i < emulated::LANES; i++) {
            mask |= static_cast<uint32_t>(m.in[i][0]) << i;
        }
        for (int i = 0; i < emulated::LANES; i++) {
            m.out[i][0] = mask;
        }
    });
    return static_cast<uint32_t>(m.out[emulated::lane()][0]);
}
inline bool __any_sync(uint32_t mask, bool x)
{
    return __ballot_sync(mask, x) != 0;
}

namespace attend {

alignas(128) inline uint8_t shared[emulated::SHARED_BYTES];

inline uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(static_cast<const uint8_t *>(p) - shared);
}

/* ---- products ---- */

/* Fragments of m16n8k32 (bytes) and m16n8k16 (16 bits): PTX ISA, "Matrix fragments". Element (row, k) of A lies in lane
 * 4 (row mod 8) + (k / EACH) mod 4, register row / 8 + 2 (k / (4 EACH)), place k mod EACH; B (k, column) likewise. */
template <int EACH, class Load>
float_t emulated_dot(const emulated::meeting &m, int row, int column, Load load)
{
    double sum = 0;
    for (int k = 0; k < 8 * EACH; k++) {
        const int lane_k = k / EACH % 4, upper = k / (4 * EACH), place = k % EACH;
        const uint32_t a =
                reinterpret_cast<const uint32_t *>(m.in[4 * (row % 8) + lane_k])[row / 8 + 2 * upper];
        const uint32_t b = reinterpret_cast<const uint32_t *>(m.in[4 * column + lane_k])[4 + upper];
        sum += load(a, place, true) * load(b, place, false);
    }
    return static_cast<float_t>(sum);
}

template <bool A_SIGNED, bool B_SIGNED>
void mma_bytes(int (&d)[4],
        uint32_t a0,
        uint32_t a1,
        uint32_t a2,
        uint32_t a3,
        uint32_t b0,
        uint32_t b1,
        int c0,
        int c1,
        int c2,
        int c3)
{
    emulated::meeting &m = emulated::my_warp();
    const int lane = emulated::lane();
    const uint32_t in[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(m.in[lane], in, sizeof in);
    emulated::in_warp(5, [&m] {
        for (int i = 0; i < emulated::LANES; i++) {
            for (int j = 0; j < 4; j++) {
                const int row = i / 4 + 8 * (j / 2), column = 2 * (i % 4) + j % 2;
                double sum = 0;
                for (int k = 0; k < 32; k++) {
                    const int lane_k = k / 4 % 4, upper = k / 16, shift = 8 * (k % 4);
                    const uint32_t a =
                            reinterpret_cast<uint32_t *>(m.in[4 * (row % 8) + lane_k])[row / 8 + 2 * upper];
                    const uint32_t b = reinterpret_cast<uint32_t *>(m.in[4 * column + lane_k])[4 + upper];
                    const int x = static_cast<int>(a >> shift & 0xffu),
                              y = static_cast<int>(b >> shift & 0xffu);
                    sum += (A_SIGNED ? static_cast<int8_t>(x) : x) * (B_SIGNED ? static_cast<int8_t>(y) : y);
                }
                reinterpret_cast<int32_t *>(m.out[i])[j] = static_cast<int32_t>(sum);
            }
        }
    });
    const int c[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; j++) {
        d[j] = c[j] + reinterpret_cast<int32_t *>(m.out[lane])[j];
    }
}

inline float emulated_bf16(uint32_t word, int upper)
{
    return __uint_as_float(upper ? word & 0xffff0000u : word << 16);
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emulated::meeting &m = emulated::my_warp();
    const int lane = emulated::lane();
    const uint32_t in[6] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(m.in[lane], in, sizeof in);
    emulated::in_warp(6, [&m] {
        for (int i = 0; i < emulated::LANES; i++) {
            for (int j = 0; j < 4; j++) {
                const int row = i / 4 + 8 * (j / 2), column = 2 * (i % 4) + j % 2;
                double sum = 0;
                for (int k = 0; k < 16; k++) {
                    const int lane_k = k / 2 % 4, upper = k / 8;
                    const uint32_t x =
                            reinterpret_cast<uint32_t *>(m.in[4 * (row % 8) + lane_k])[row / 8 + 2 * upper];
                    const uint32_t y = reinterpret_cast<uint32_t *>(m.in[4 * column + lane_k])[4 + upper];
                    sum += static_cast<double>(emulated_bf16(x, k % 2)) *
                            static_cast<double>(emulated_bf16(y, k % 2));
                }
                const float result = static_cast<float>(sum);
                memcpy(reinterpret_cast<float *>(m.out[i]) + j, &result, sizeof result);
            }
        }
    });
    for (int j = 0; j < 4; j++) {
        d[j] += reinterpret_cast<float *>(m.out[lane])[j];
    }
}

inline void emulated_load_matrices(uint32_t (&a)[4], uint32_t address, bool transposed)
{
    emulated::meeting &m = emulated::my_warp();
    const int lane = emulated::lane();
    if (address % 16 != 0) {
        emulated::failed("matrix row not aligned");
    }
    m.in[lane][0] = address;
    emulated::in_warp(transposed ? 8 : 7, [&m, transposed] {
        for (int i = 0; i < emulated::LANES; i++) {
            for (int matrix = 0; matrix < 4; matrix++) {
                uint16_t pair[2];
                for (int e = 0; e < 2; e++) {
                    const int row = transposed ? 2 * (i % 4) + e : i / 4,
                              column = transposed ? i / 4 : 2 * (i % 4) + e;
                    memcpy(&pair[e], shared + m.in[8 * matrix + row][0] + 2 * column, 2);
                }
                memcpy(reinterpret_cast<uint32_t *>(m.out[i]) + matrix, pair, 4);
            }
        }
    });
    memcpy(a, m.out[lane], 16);
}

inline void load_matrices(uint32_t (&a)[4], uint32_t address)
{
    emulated_load_matrices(a, address, false);
}

inline void load_matrices_transposed(uint32_t (&a)[4], uint32_t address)
{
    emulated_load_matrices(a, address, true);
}

inline uint32_t transpose(uint32_t x)
{
    emulated::meeting &m = emulated::my_warp();
    const int lane = emulated::lane();
    m.in[lane][0] = x;
    emulated::in_warp(9, [&m] {
        for (int i = 0; i < emulated::LANES; i++) {
            uint32_t y = 0;
            for (int e = 0; e < 2; e++) {
                const int row = 2 * (i % 4) + e, column = i / 4;
                const uint64_t word = m.in[4 * row + column / 2][0];
                y |= static_cast<uint32_t>(word >> (16 * (column % 2)) & 0xffffu) << (16 * e);
            }
            m.out[i][0] = y;
        }
    });
    return static_cast<uint32_t>(m.out[lane][0]);
}

/* ---- numbers ---- */

inline float exp2_approximate(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

inline float reciprocal_approximate(float x)
{
    return 1.0f / x;
}

inline float warp_max_positive(float x)
{
    for (int step = 16; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    }
    return x;
}

inline int warp_sum_integer(int x)
{
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(~0u, x, step);
    }
    return x;
}

inline float rounded_to_bf16(float x)
{
    uint32_t u = __float_as_uint(x);
    u += 0x7fffu + (u >> 16 & 1u);
    return __uint_as_float(u & 0xffff0000u);
}

inline uint32_t pack_bf16(float low, float high)
{
    return __float_as_uint(rounded_to_bf16(low)) >> 16 | __float_as_uint(rounded_to_bf16(high));
}

inline float half_at(const uint8_t *p)
{
    const uint32_t h = static_cast<uint32_t>(p[0] | p[1] << 8), exponent = h >> 10 & 31u,
                   fraction = h & 0x3ffu;
    const float x = exponent == 0
            ? ldexpf(static_cast<float>(fraction), -24)
            : ldexpf(static_cast<float>(fraction | 0x400u), static_cast<int>(exponent) - 25);
    return h & 0x8000u ? -x : x;
}

/* ---- shared memory, copies, barriers: {arrivals of a phase, arrivals left, bytes left, phase} in 16 bits each ---- */

inline void store_shared(uint32_t address, uint32_t x)
{
    memcpy(shared + address, &x, sizeof x);
}

inline uint32_t load_shared(uint32_t address)
{
    uint32_t x;
    memcpy(&x, shared + address, sizeof x);
    return x;
}

struct emulated_barrier {
    uint8_t arrivals, left, phase, pad;
    int32_t bytes;
};

inline emulated_barrier &barrier_at(uint32_t address)
{
    return *reinterpret_cast<emulated_barrier *>(shared + address);
}

inline void emulated_complete(emulated_barrier &b)
{
    if (b.left == 0 && b.bytes == 0) {
        b.phase ^= 1;
        b.left = b.arrivals;
    }
}

inline void barrier_init(uint32_t barrier, int arrivals)
{
    barrier_at(barrier) = {static_cast<uint8_t>(arrivals), static_cast<uint8_t>(arrivals), 0, 0, 0};
}

inline void barrier_arrive(uint32_t barrier)
{
    emulated_barrier &b = barrier_at(barrier);
    b.left--;
    emulated_complete(b);
}

inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    emulated::wait_until([barrier, parity] { return barrier_at(barrier).phase != parity; });
}

inline void fence_barrier_init() {}

inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    emulated_barrier &b = barrier_at(barrier);
    b.bytes += static_cast<int32_t>(bytes);
    barrier_arrive(barrier);
}

inline void copy_bulk(uint32_t dst, uint64_t src, uint32_t bytes, uint32_t barrier)
{
    if (dst % 16 != 0 || src % 16 != 0 || bytes % 16 != 0) {
        emulated::failed("bulk copy not aligned");
    }
    emulated::now->copies.push_back(
            {dst, bytes, barrier, src, emulated::now->sweep + emulated::random_below(300)});
}

inline void copy_16(uint32_t dst, uint64_t src)
{
    if (dst % 16 != 0 || src % 16 != 0) {
        emulated::failed("copy not aligned");
    }
    memcpy(shared + dst, reinterpret_cast<const void *>(src), 16);
}

inline void barrier_arrive_after_copies(uint32_t barrier)
{
    barrier_arrive(barrier);
}

inline void wait_shared_byte(uint32_t address, uint32_t byte)
{
    emulated::wait_until([address, byte] { return shared[address] == byte; });
}

inline void keep(uint32_t) {}

inline void prefetch(const void *) {}

inline int cluster_size()
{
    return emulated::cluster_now;
}

inline void cluster_arrive()
{
    emulated::now->arrived_in[emulated::now->current] = emulated::cluster_generation;
    emulated::cluster_arrived++;
}

inline void cluster_wait()
{
    const int generation = emulated::now->arrived_in[emulated::now->current];
    emulated::wait_until([generation] { return emulated::cluster_generation != generation; });
}

inline float load_cluster(uint32_t address, int rank)
{
    const emulated::block_state *b = emulated::cluster[static_cast<size_t>(rank)];
    float x;
    memcpy(&x, (b == emulated::now ? shared : b->kept) + address, sizeof x);
    return x;
}

inline void let_next_kernel_start() {}

inline void wait_for_previous_kernel() {}

} // namespace attend

inline void emulated::finish_copies()
{
    std::vector<copy> later;
    for (const copy &c : now->copies) {
        if (c.due > now->sweep) {
            later.push_back(c);
            continue;
        }
        memcpy(attend::shared + c.dst, reinterpret_cast<const void *>(c.src), c.bytes);
        attend::emulated_barrier &b = attend::barrier_at(c.barrier);
        b.bytes -= static_cast<int32_t>(c.bytes);
        attend::emulated_complete(b);
    }
    now->copies.swap(later);
}

#endif
