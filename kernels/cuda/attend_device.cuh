/* Instructions that the attention kernel is made of, one function each. */
#ifndef EPIMEM_KERNELS_CUDA_ATTEND_DEVICE_CUH
#define EPIMEM_KERNELS_CUDA_ATTEND_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/* Bulk copies (TMA) on compute capability 9.x; elsewhere, and where a build asks for it to test that path, cp.async. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000 && !defined(ATTEND_NO_BULK)
#define ATTEND_BULK 1
#else
#define ATTEND_BULK 0
#endif

/* Thread block clusters, whose blocks read each other's shared memory. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ATTEND_CLUSTERS 1
#else
#define ATTEND_CLUSTERS 0
#endif

namespace attend {

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* ---- matrix products ---- */

/* d = a b + c; a: 16 rows of 32 bytes (unsigned or signed), b: 32 x 8 bytes. */
template <bool A_SIGNED, bool B_SIGNED>
static __device__ __forceinline__ void mma_bytes(int (&d)[4],
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
#define ATTEND_MMA_BYTES(A, B)                                        \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." A "." B              \
        ".s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};" \
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])          \
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c0), "r"(c1), "r"(c2), "r"(c3))
    if (A_SIGNED && B_SIGNED) {
        ATTEND_MMA_BYTES("s8", "s8");
    } else if (A_SIGNED) {
        ATTEND_MMA_BYTES("s8", "u8");
    } else if (B_SIGNED) {
        ATTEND_MMA_BYTES("u8", "s8");
    } else {
        ATTEND_MMA_BYTES("u8", "u8");
    }
#undef ATTEND_MMA_BYTES
}

static __device__ __forceinline__ void mma_bf16(
        float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory into fragments. */
static __device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&a)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
}

/* An 8 x 8 matrix of 16-bit elements across the warp, transposed. */
static __device__ __forceinline__ uint32_t transpose(uint32_t x)
{
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- numbers ---- */

/* 2^x, relative error at most 2^-22, results under 2^-126 are 0. */
static __device__ __forceinline__ float exp2_approximate(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float reciprocal_approximate(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the warp, of numbers that are not negative. */
static __device__ __forceinline__ float warp_max_positive(float x)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

static __device__ __forceinline__ int warp_sum_integer(int x)
{
    return __reduce_add_sync(~0u, x);
}

static __device__ __forceinline__ float rounded_to_bf16(float x)
{
    return __bfloat162float(__float2bfloat16(x));
}

/* low and high half of the word */
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

static __device__ __forceinline__ float half_at(const uint8_t *p)
{
    return __half2float(*reinterpret_cast<const __half *>(p));
}

/* ---- shared memory by address ---- */

static __device__ __forceinline__ void store_shared(uint32_t address, uint32_t x)
{
    asm volatile("st.shared.u32 [%0],%1;" ::"r"(address), "r"(x) : "memory");
}

static __device__ __forceinline__ uint32_t load_shared(uint32_t address)
{
    uint32_t x;
    asm volatile("ld.shared.u32 %0,[%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}

/* Waits until another thread has stored this byte there. */
static __device__ __forceinline__ void wait_shared_byte(uint32_t address, uint32_t byte)
{
    uint32_t x;
    do {
        asm volatile("ld.volatile.shared.u8 %0,[%1];" : "=r"(x) : "r"(address) : "memory");
    } while (x != byte);
}

/* ---- copies into shared memory, completion on a barrier there ---- */

static __device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    do {
#if ATTEND_BULK
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#else
        asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
#endif
    } while (done == 0);
}

#if ATTEND_BULK
/* Barriers that this thread initialised are there for the copy engine. */
static __device__ __forceinline__ void fence_barrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void copy_bulk(uint32_t dst, uint64_t src, uint32_t bytes, uint32_t barrier)
{
    asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(dst),
            "l"(src), "r"(bytes), "r"(barrier)
            : "memory");
}
#else
static __device__ __forceinline__ void copy_16(uint32_t dst, uint64_t src)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(dst), "l"(src) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("{.reg .b64 t; mbarrier.arrive.shared.b64 t,[%0];}" ::"r"(barrier) : "memory");
}

/* This thread arrives at the barrier when its copies so far are done. */
static __device__ __forceinline__ void barrier_arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
#endif

/* ---- clusters of blocks; without them every block is a cluster of its own ---- */

static __device__ __forceinline__ int cluster_size()
{
    uint32_t n = 1;
#if ATTEND_CLUSTERS
    asm("mov.u32 %0,%%cluster_nctaid.x;" : "=r"(n));
#endif
    return static_cast<int>(n);
}

/* Every thread of the cluster's blocks that have not ended comes to both; what they wrote before they arrived is seen
 * after the wait. */
static __device__ __forceinline__ void cluster_arrive()
{
#if ATTEND_CLUSTERS
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait()
{
#if ATTEND_CLUSTERS
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* A float of the same place in shared memory as `address`, in the cluster's block number `rank`. */
static __device__ __forceinline__ float load_cluster(uint32_t address, int rank)
{
    float x = 0.0f;
#if ATTEND_CLUSTERS
    asm volatile("{.reg .b32 a; mapa.shared::cluster.u32 a,%1,%2; ld.shared::cluster.f32 %0,[a];}"
                 : "=f"(x)
                 : "r"(address), "r"(rank)
                 : "memory");
#else
    (void)address;
    (void)rank;
#endif
    return x;
}

/* Makes the compiler load x here. */
static __device__ __forceinline__ void keep(uint32_t x)
{
    asm volatile("" ::"r"(x));
}

static __device__ __forceinline__ void prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* ---- programmatic dependent launch ---- */

static __device__ __forceinline__ void let_next_kernel_start()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void wait_for_previous_kernel()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace attend

#endif
