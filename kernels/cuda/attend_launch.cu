/* Host side of the attention launch: picks the kernel, divides shared memory, fills the parameters. */
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* C11 words in the headers that C++ spells otherwise. */
#define _Noreturn [[noreturn]]
#define _Static_assert static_assert
extern "C" {
#include "kernels/cuda/attend.h"
#include "kernels/cuda/attend_levels.h"
}
#undef _Noreturn
#undef _Static_assert

#include "kernels/cuda/attend_kernel.cuh"

#ifdef ATTEND_STAMPS
extern "C" int64_t *attend_stamps; /* of the next launch; set by the benchmark */
#endif

namespace {

using attend::kernel_entry;
using attend::parameters;

static_assert(static_cast<int>(attend::ROTATION_NONE) == KRN_ROTATION_NONE &&
                static_cast<int>(attend::ROTATION_HADAMARD) == KRN_ROTATION_HADAMARD &&
                static_cast<int>(attend::ROTATION_MATRIX) == KRN_ROTATION_MATRIX,
        "the kernel sees rotations by number");

status cuda_failed(err *e, cudaError_t code, const char *what)
{
    return FAIL_OS(e, ST_ERR_DEVICE, static_cast<int>(code), "%s: %s", what, cudaGetErrorString(code));
}

#define TRY_CUDA(call)                           \
    do {                                         \
        const cudaError_t code_ = (call);        \
        if (code_ != cudaSuccess) {              \
            return cuda_failed(e, code_, #call); \
        }                                        \
    } while (0)

struct division {
    int stages;
    size_t shared_bytes, stage_bytes, join_at;
};

size_t rounded(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Stages for `blocks` blocks on a multiprocessor; none when they do not fit. */
division divide(const kernel_entry &entry,
        size_t stage_bytes,
        bool gathers,
        int blocks,
        int per_multiprocessor,
        int per_block)
{
    const size_t reserved = 1024; /* by the system, for each block */
    const size_t weights = sizeof(float) * ATTEND_HEADS_MAX * ATTEND_CHUNKS_MAX;
    size_t budget = static_cast<size_t>(per_multiprocessor) / static_cast<size_t>(blocks) - reserved;
    budget = budget < static_cast<size_t>(per_block) ? budget : static_cast<size_t>(per_block);
    division d = {0, 0, stage_bytes, 0};
    const size_t beside = entry.fixed_bytes + (gathers ? entry.join_bytes : 0);
    if (budget > beside) {
        const size_t stages = (budget - beside) / stage_bytes, most = ATTEND_STAGES_MAX;
        d.stages = static_cast<int>(stages < most ? stages : most);
    }
    const size_t ring = static_cast<size_t>(d.stages) * stage_bytes;
    if (d.stages < 2 || ring < entry.join_bytes || ring < weights) {
        d.stages = 0;
    }
    d.join_at = gathers ? ring : 0;
    d.shared_bytes = beside + ring;
    return d;
}

int device_attribute(cudaDeviceAttr attribute)
{
    int device = 0, value = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) {
        return 0;
    }
    return value;
}

int mode_of(const krn_page_format &f, const attend_levels &levels)
{
    return (levels.k_is_table ? attend::MODE_K_TABLE : 0) | (levels.v_is_table ? attend::MODE_V_TABLE : 0) |
            (f.has_zero ? attend::MODE_ZERO : 0) | (f.k_planes == 2 ? attend::MODE_PLANES : 0);
}

int heads_per_pass(const cuda_attend_shape &s)
{
    return attend_heads_per_pass(s.d, s.q_heads / s.kv_heads);
}

status find_kernel(const cuda_attend_call &c, const attend_levels &levels, kernel_entry *out, err *e)
{
    const int nt = heads_per_pass(c.shape) <= 4 ? 1 : 2, mode = mode_of(c.format, levels), d = c.shape.d;
    kernel_entry entry = {nullptr, 0, 0, 0};
    if (d == 64) {
        entry = attend::kernel_for_64(nt, mode);
    } else if (d == 128) {
        entry = attend::kernel_for_128(nt, mode);
    } else if (d == 256) {
        entry = attend::kernel_for_256(nt, mode);
    }
    if (entry.kernel == nullptr) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "no attention kernel for %d channels, %d K planes%s", d,
                c.format.k_planes, c.format.has_zero ? ", zeros" : "");
    }
    *out = entry;
    return ST_OK;
}

status check_call(const cuda_attend_plan &plan, const cuda_attend_call &c, err *e)
{
    const krn_page_format &f = c.format;
    const bool aligned = f.bytes % 16 == 0 && f.k_plane_at[0] % 16 == 0 && f.k_plane_at[1] % 16 == 0 &&
            f.v_plane_at % 16 == 0 && c.page_offset % 16 == 0 && c.page_head_stride % 16 == 0 &&
            c.row_offset % 16 == 0 && c.row_head_stride % 16 == 0;
    if (f.d != c.shape.d || !aligned || c.rope_dims < 0 || c.rope_dims > c.shape.d || c.rope_dims % 2 != 0) {
        return FAIL(e, ST_ERR_ARG,
                "attention call: format of %d channels for %d, %d of them turned, or not aligned", f.d,
                c.shape.d, c.rope_dims);
    }
    if (plan.n_blocks < 1 || c.shape.q_heads % c.shape.kv_heads != 0) {
        return FAIL(e, ST_ERR_ARG, "attention call: %d blocks, %d query heads on %d KV heads", plan.n_blocks,
                c.shape.q_heads, c.shape.kv_heads);
    }
    return ST_OK;
}

parameters fill_parameters(
        const cuda_attend_plan &plan, const cuda_attend_call &c, const attend_levels &levels, char *workspace)
{
    const krn_page_format &f = c.format;
    parameters p = {};
    p.items = reinterpret_cast<const attend_item *>(workspace);
    p.tiles = reinterpret_cast<const attend_tile *>(workspace + plan.tiles_at);
    p.counters = reinterpret_cast<uint32_t *>(workspace + plan.counters_at);
    p.partials = reinterpret_cast<float *>(workspace + plan.partials_at);
    p.q = c.q;
    p.cos_sin = c.cos_sin;
    p.sharpness = c.sharpness;
    p.k_matrix = c.k.matrix;
    p.k_mean = c.k.mean;
    p.v_matrix = c.v.matrix;
    p.v_mean = c.v.mean;
    p.out = c.out;
    p.page_offset = c.page_offset;
    p.page_head_stride = c.page_head_stride;
    p.row_offset = c.row_offset;
    p.row_head_stride = c.row_head_stride;
    p.q_heads = c.shape.q_heads;
    p.group = c.shape.q_heads / c.shape.kv_heads;
    p.heads_per_pass = heads_per_pass(c.shape);
    p.n_variants = c.n_variants;
    p.rope_dims = c.rope_dims;
    p.rope_halves = c.pairing == KRN_ROPE_HALVES;
    p.k_rotation = static_cast<int>(c.k.kind);
    p.v_rotation = static_cast<int>(c.v.kind);
    p.score_scale = c.scale * 1.44269504f;
    p.k_unit = levels.k_unit;
    p.k_base = levels.k_base;
    p.v_unit = levels.v_unit;
    p.v_base = levels.v_base;
    p.k_table = levels.k_table;
    p.v_table = levels.v_table;
    p.k_plane_at[0] = f.k_plane_at[0];
    p.k_plane_at[1] = f.k_plane_at[1];
    p.v_plane_at = f.v_plane_at;
    p.k_scale_at = f.k_scale_at;
    p.v_scale_at = f.v_scale_at;
    p.k_zero_at = f.k_zero_at;
    p.v_zero_at = f.v_zero_at;
    p.page_bytes = f.bytes;
#ifdef ATTEND_STAMPS
    p.stamps = attend_stamps;
    attend_stamps += static_cast<int64_t>(plan.n_blocks) * attend::STAMPS;
#endif
    return p;
}

/* Whether at least one cluster of the launch can run. */
bool clusters_fit(const cudaLaunchConfig_t &config, const void *kernel)
{
    int n = 0;
    const bool asked = cudaOccupancyMaxActiveClusters(&n, kernel, &config) == cudaSuccess;
    if (!asked) {
        (void)cudaGetLastError();
    }
    return asked && n > 0;
}

status launch(const kernel_entry &entry,
        const division &d,
        const cuda_attend_plan &plan,
        bool overlap,
        bool clusters,
        parameters p,
        cudaStream_t stream,
        err *e)
{
    p.stages = d.stages;
    p.stage_bytes = static_cast<uint32_t>(d.stage_bytes);
    p.join_at = static_cast<uint32_t>(d.join_at);
    const void *kernel = reinterpret_cast<const void *>(entry.kernel);
    TRY_CUDA(cudaFuncSetAttribute(
            kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(d.shared_bytes)));
    TRY_CUDA(cudaFuncSetAttribute(
            kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = static_cast<unsigned>(plan.cluster);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(plan.n_blocks));
    config.blockDim = dim3(attend::THREADS);
    config.dynamicSmemBytes = d.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 1;
    bool clustered = clusters && plan.cluster > 1;
    if (clustered) {
        TRY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        clustered = clusters_fit(config, kernel);
    }
    config.attrs = clustered ? attributes : attributes + 1;
    config.numAttrs = (clustered ? 1 : 0) + (overlap ? 1 : 0);
    TRY_CUDA(cudaLaunchKernelEx(&config, entry.kernel, p));
    return ST_OK;
}

} // namespace

extern "C" status cuda_attend_upload(
        const cuda_attend_plan *plan, const void *image, void *workspace, void *stream, err *e)
{
    TRY_CUDA(cudaMemcpyAsync(
            workspace, image, plan->image_bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)));
    return ST_OK;
}

extern "C" status cuda_attend_launch(
        const cuda_attend_plan *plan, const cuda_attend_call *call, void *workspace, void *stream, err *e)
{
    attend_levels levels;
    kernel_entry entry = {nullptr, 0, 0, 0};
    TRY(check_call(*plan, *call, e));
    TRY(attend_levels_set(&call->format, &levels, e));
    TRY(find_kernel(*call, levels, &entry, e));
    const int per_multiprocessor = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    const int per_block = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    const int major = device_attribute(cudaDevAttrComputeCapabilityMajor);
    const size_t bf16_bytes = 2 * ATTEND_BF16_ROWS * static_cast<size_t>(2 * call->shape.d + 16);
    const size_t stage_bytes =
            rounded(call->format.bytes > bf16_bytes ? call->format.bytes : bf16_bytes, 128);
    int blocks = call->blocks_per_multiprocessor > 0 ? call->blocks_per_multiprocessor : entry.blocks;
    division d = divide(entry, stage_bytes, plan->gathers, blocks, per_multiprocessor, per_block);
    while (d.stages == 0 && blocks > 1) {
        d = divide(entry, stage_bytes, plan->gathers, --blocks, per_multiprocessor, per_block);
    }
    if (d.stages == 0) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "attention needs more shared memory than the device's %d bytes",
                per_block);
    }
    const parameters p = fill_parameters(*plan, *call, levels, static_cast<char *>(workspace));
    return launch(entry, d, *plan, call->overlap && major >= 9, major >= 9, p,
            static_cast<cudaStream_t>(stream), e);
}
