/* The device: its stream, its memory and the budget of it, copies. The only file that allocates device memory. */
#include "kernels/cuda/device.cuh"

#include <stdio.h>
#include <string.h>

struct taken {
    taken *next;
    void *memory;
    uint64_t bytes;
};

namespace {

/* The first device's properties, or why there is none. */
status find_device(cuda_device_info *info, err *e)
{
    int n = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    if (code != cudaSuccess || n == 0) {
        (void)cudaGetLastError();
        return FAIL_OS(e, ST_ERR_NOT_FOUND, static_cast<int>(code), "no CUDA device: %s",
                code == cudaSuccess ? "the driver knows none" : cudaGetErrorString(code));
    }
    cudaDeviceProp p;
    TRY_CUDA(cudaSetDevice(0));
    TRY_CUDA(cudaGetDeviceProperties(&p, 0));
    (void)snprintf(info->name, sizeof info->name, "%.95s", p.name);
    info->major = p.major;
    info->minor = p.minor;
    info->multiprocessors = p.multiProcessorCount;
    info->memory_bytes = p.totalGlobalMem;
    return ST_OK;
}

status set_budget(cuda_device_info *info, uint64_t wanted, err *e)
{
    size_t free_bytes = 0, total = 0;
    TRY_CUDA(cudaMemGetInfo(&free_bytes, &total));
    info->budget_bytes = wanted > 0 ? wanted : free_bytes / 10 * 9;
    if (info->budget_bytes > free_bytes) {
        return FAIL(e, ST_ERR_LIMIT, "%s: %llu MiB asked for, %llu MiB of %llu MiB are free", info->name,
                static_cast<unsigned long long>(wanted >> 20),
                static_cast<unsigned long long>(free_bytes >> 20),
                static_cast<unsigned long long>(total >> 20));
    }
    return ST_OK;
}

status open_parts(cuda_device *d, uint64_t budget, err *e)
{
    TRY(find_device(&d->info, e));
    TRY(set_budget(&d->info, budget, e));
    TRY_CUDA(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    void *ring = nullptr;
    TRY_CUDA(cudaHostAlloc(&ring, static_cast<size_t>(RING_SLOTS) * RING_SLOT_BYTES, cudaHostAllocDefault));
    d->ring = static_cast<char *>(ring);
    for (cudaEvent_t &event : d->ring_free) {
        TRY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    return ST_OK;
}

/* The next slot of the ring, once its last copy has happened. */
status next_slot(cuda_device *d, char **slot, cudaEvent_t *free_event, err *e)
{
    const int i = d->ring_next;
    d->ring_next = (i + 1) % RING_SLOTS;
    TRY_CUDA(cudaEventSynchronize(d->ring_free[i]));
    *slot = d->ring + static_cast<size_t>(i) * RING_SLOT_BYTES;
    *free_event = d->ring_free[i];
    return ST_OK;
}

} // namespace

extern "C" status cuda_device_open(uint64_t budget_bytes, cuda_device **out, err *e)
{
    cuda_device *d = static_cast<cuda_device *>(base_zalloc(1, sizeof *d));
    if (d == nullptr) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a CUDA device");
    }
    const status st = open_parts(d, budget_bytes, e);
    if (st != ST_OK) {
        cuda_device_close(d);
        return st;
    }
    *out = d;
    return ST_OK;
}

extern "C" void cuda_device_close(cuda_device *d)
{
    if (d == nullptr) {
        return;
    }
    REQUIRE(d->taken == nullptr);
    for (cudaEvent_t event : d->ring_free) {
        if (event != nullptr) {
            (void)cudaEventDestroy(event);
        }
    }
    if (d->ring != nullptr) {
        (void)cudaFreeHost(d->ring);
    }
    if (d->stream != nullptr) {
        (void)cudaStreamDestroy(d->stream);
    }
    base_free(d);
}

extern "C" const cuda_device_info *cuda_device_get_info(const cuda_device *d)
{
    return &d->info;
}

extern "C" uint64_t cuda_device_left(const cuda_device *d)
{
    return d->info.budget_bytes - d->used_bytes;
}

extern "C" void *cuda_device_stream(cuda_device *d)
{
    return d->stream;
}

extern "C" status cuda_device_wait(cuda_device *d, err *e)
{
    TRY_CUDA(cudaStreamSynchronize(d->stream));
    return ST_OK;
}

/* ---- memory ---- */

extern "C" status cuda_take(cuda_device *d, uint64_t bytes, const char *what, void **out, err *e)
{
    taken *t = static_cast<taken *>(base_zalloc(1, sizeof *t));
    cudaError_t code = cudaErrorMemoryAllocation;
    if (t != nullptr && bytes <= cuda_device_left(d)) {
        code = cudaMalloc(&t->memory, bytes > 0 ? bytes : 1);
    }
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        base_free(t);
        return FAIL_OS(e, ST_ERR_MEMORY, static_cast<int>(code),
                "%s: no room for %s of %llu KiB: %llu KiB of the budget of %llu KiB are left", d->info.name,
                what, static_cast<unsigned long long>(bytes >> 10),
                static_cast<unsigned long long>(cuda_device_left(d) >> 10),
                static_cast<unsigned long long>(d->info.budget_bytes >> 10));
    }
    t->bytes = bytes;
    t->next = d->taken;
    d->taken = t;
    d->used_bytes += bytes;
    *out = t->memory;
    return ST_OK;
}

extern "C" void cuda_release(cuda_device *d, void *memory)
{
    for (taken **link = &d->taken; memory != nullptr && *link != nullptr; link = &(*link)->next) {
        taken *t = *link;
        if (t->memory == memory) {
            (void)cudaStreamSynchronize(d->stream);
            (void)cudaFree(memory);
            d->used_bytes -= t->bytes;
            *link = t->next;
            base_free(t);
            return;
        }
    }
    REQUIRE(memory == nullptr);
}

extern "C" status cuda_take_pinned(cuda_device *d, uint64_t bytes, void **out, err *e)
{
    (void)d;
    const cudaError_t code = cudaHostAlloc(out, bytes > 0 ? bytes : 1, cudaHostAllocDefault);
    if (code != cudaSuccess) {
        (void)cudaGetLastError();
        return FAIL_OS(e, ST_ERR_MEMORY, static_cast<int>(code), "no pinned host memory of %llu KiB: %s",
                static_cast<unsigned long long>(bytes >> 10), cudaGetErrorString(code));
    }
    return ST_OK;
}

extern "C" void cuda_release_pinned(cuda_device *d, void *memory)
{
    if (memory != nullptr) {
        (void)cudaStreamSynchronize(d->stream);
        (void)cudaFreeHost(memory);
    }
}

/* ---- copies ---- */

extern "C" status cuda_copy_in(cuda_device *d, void *to, const void *from, uint64_t bytes, err *e)
{
    const uint64_t most = RING_SLOT_BYTES;
    for (uint64_t at = 0; at < bytes; at += most) {
        const uint64_t n = bytes - at < most ? bytes - at : most;
        char *slot = nullptr;
        cudaEvent_t free_event = nullptr;
        TRY(next_slot(d, &slot, &free_event, e));
        memcpy(slot, static_cast<const char *>(from) + at, n);
        TRY_CUDA(cudaMemcpyAsync(static_cast<char *>(to) + at, slot, n, cudaMemcpyHostToDevice, d->stream));
        TRY_CUDA(cudaEventRecord(free_event, d->stream));
    }
    return ST_OK;
}

extern "C" status cuda_copy_in_rows(cuda_device *d,
        void *to,
        uint64_t to_stride,
        const void *from,
        uint64_t from_stride,
        uint64_t row_bytes,
        uint64_t rows,
        err *e)
{
    REQUIRE(row_bytes > 0 && row_bytes <= RING_SLOT_BYTES);
    const uint64_t most = RING_SLOT_BYTES / row_bytes;
    for (uint64_t at = 0; at < rows; at += most) {
        const uint64_t n = rows - at < most ? rows - at : most;
        char *slot = nullptr;
        cudaEvent_t free_event = nullptr;
        TRY(next_slot(d, &slot, &free_event, e));
        for (uint64_t i = 0; i < n; i++) {
            memcpy(slot + i * row_bytes, static_cast<const char *>(from) + (at + i) * from_stride, row_bytes);
        }
        TRY_CUDA(cudaMemcpy2DAsync(static_cast<char *>(to) + at * to_stride, to_stride, slot, row_bytes,
                row_bytes, n, cudaMemcpyHostToDevice, d->stream));
        TRY_CUDA(cudaEventRecord(free_event, d->stream));
    }
    return ST_OK;
}

extern "C" status cuda_copy_in_pinned(cuda_device *d, void *to, const void *pinned, uint64_t bytes, err *e)
{
    TRY_CUDA(cudaMemcpyAsync(to, pinned, bytes, cudaMemcpyHostToDevice, d->stream));
    return ST_OK;
}

extern "C" status cuda_copy_out_pinned(cuda_device *d, void *pinned, const void *from, uint64_t bytes, err *e)
{
    TRY_CUDA(cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, d->stream));
    return ST_OK;
}

/* ---- graphs ---- */

struct cuda_graph {
    cudaGraphExec_t exec;
};

extern "C" status cuda_graph_begin(cuda_device *d, err *e)
{
    TRY_CUDA(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal));
    return ST_OK;
}

extern "C" status cuda_graph_end(cuda_device *d, cuda_graph **out, err *e)
{
    cudaGraph_t recorded = nullptr;
    *out = nullptr;
    TRY_CUDA(cudaStreamEndCapture(d->stream, &recorded));
    if (recorded == nullptr) {
        return ST_OK;
    }
    cuda_graph *g = static_cast<cuda_graph *>(base_zalloc(1, sizeof *g));
    const cudaError_t code =
            g != nullptr ? cudaGraphInstantiate(&g->exec, recorded, 0) : cudaErrorMemoryAllocation;
    (void)cudaGraphDestroy(recorded);
    if (code != cudaSuccess) {
        base_free(g);
        return cuda::failed(e, code, "a graph of a pass");
    }
    *out = g;
    return ST_OK;
}

extern "C" status cuda_graph_run(cuda_device *d, const cuda_graph *g, err *e)
{
    TRY_CUDA(cudaGraphLaunch(g->exec, d->stream));
    return ST_OK;
}

extern "C" void cuda_graph_close(cuda_graph *g)
{
    if (g != nullptr) {
        (void)cudaGraphExecDestroy(g->exec);
        base_free(g);
    }
}
