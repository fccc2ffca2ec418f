/* What the CUDA sources of this folder share: the device behind the handle, and errors. */
#pragma once

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* C11 words in the headers that C++ spells otherwise. */
#define _Noreturn [[noreturn]]
#define _Static_assert static_assert
extern "C" {
#include "kernels/cuda/cuda.h"
}
#undef _Noreturn
#undef _Static_assert

enum { RING_SLOTS = 4, RING_SLOT_BYTES = 4 << 20 };

struct cuda_device {
    cuda_device_info info;
    cudaStream_t stream;
    uint64_t used_bytes;
    struct taken *taken; /* list of what was allocated, with sizes */
    char *ring;
    cudaEvent_t ring_free[RING_SLOTS]; /* the copy from that slot has happened */
    int ring_next;
};

namespace cuda {

inline status failed(err *e, cudaError_t code, const char *what)
{
    return FAIL_OS(e, ST_ERR_DEVICE, static_cast<int>(code), "%s: %s", what, cudaGetErrorString(code));
}

inline unsigned blocks_for(int64_t n, int64_t each)
{
    return static_cast<unsigned>((n + each - 1) / each);
}

/* A launch that may begin while the kernel before it still runs (programmatic dependent launch, from compute capability
 * 9.0 on). RULES of such a chain: every kernel calls wait_for_previous before it reads what an earlier one wrote or writes
 * anything, all its blocks do; only what no kernel writes (weights) may be read before. The first of a chain is launched
 * plainly. */
template <class... Parameters, class... Arguments>
cudaError_t launch_chained(const cuda_device *d,
        void (*kernel)(Parameters...),
        dim3 blocks,
        unsigned threads,
        size_t shared_bytes,
        Arguments... arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = d->stream;
    config.attrs = &attribute;
    config.numAttrs = d->info.major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/* The next kernel may be started, up to its own wait. */
__device__ inline void let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ inline void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

} // namespace cuda

#define TRY_CUDA(call)                            \
    do {                                          \
        const cudaError_t code_ = (call);         \
        if (code_ != cudaSuccess) {               \
            return cuda::failed(e, code_, #call); \
        }                                         \
    } while (0)
