/*
 * The CUDA attention on a card: `check` compares all cases with their answers, `time` measures the shape of an 8B model
 * (32 query heads, 8 KV heads, d 128) beside a plain read of the same bytes.
 *
 *   bench_attend check [NAME]
 *   bench_attend time [KEY=VALUE ...]   context= sequences= layers= rows= columns= blocks= items= tiles= overlap= once=
 *                                         cluster=
 *   bench_attend suite
 *   bench_attend phases [KEY=VALUE ...]   where a block's time goes; of a build with -DATTEND_STAMPS only
 */
#include <cuda_runtime.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#define _Noreturn [[noreturn]]
#define _Static_assert static_assert
extern "C" {
#include "kvq/page.h"
#include "tests/bench/gpu/attend_case.h"
}
#undef _Noreturn
#undef _Static_assert

#ifdef ATTEND_STAMPS
#include "kernels/cuda/attend_types.cuh"
extern "C" {
int64_t *attend_stamps;
}
#endif

#define CUDA(call)                                                                                    \
    do {                                                                                              \
        const cudaError_t code_ = (call);                                                             \
        if (code_ != cudaSuccess) {                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_)); \
            exit(2);                                                                                  \
        }                                                                                             \
    } while (0)

#define OK(call)                                                        \
    do {                                                                \
        if ((call) != ST_OK) {                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, e.text); \
            exit(2);                                                    \
        }                                                               \
    } while (0)

namespace {

int multiprocessors()
{
    int device = 0, n = 0;
    CUDA(cudaGetDevice(&device));
    CUDA(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device));
    return n;
}

template <class T> T *to_device(const T *host, size_t n)
{
    void *p = nullptr;
    CUDA(cudaMalloc(&p, n * sizeof(T) + 16));
    CUDA(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T *>(p);
}

/* ---- check ---- */

/* One case on the card. */
struct device_case {
    attend_case c;
    uint8_t *blob;
    std::vector<krn_span> spans;
    std::vector<cuda_attend_list> lists;
    cuda_attend_call call;
    std::vector<void *> all;
};

template <class T> T *put(device_case &d, const T *host, size_t n)
{
    T *p = to_device(host, n);
    d.all.push_back(p);
    return p;
}

const void *moved(const device_case &d, const void *host)
{
    return host == nullptr ? nullptr : d.blob + (static_cast<const uint8_t *>(host) - d.c.blob);
}

void put_case(const attend_case_options &o, uint64_t seed, int processors, device_case &d)
{
    attend_case_make(&o, seed, &d.c);
    const attend_case &c = d.c;
    const size_t dim = static_cast<size_t>(o.d), heads = static_cast<size_t>(o.kv_heads);
    const size_t rows = static_cast<size_t>(o.sequences) * o.variants;
    d.blob = put(d, c.blob, c.blob_bytes);
    d.spans.assign(c.spans, c.spans + c.n_lists * attend_case_spans(&c));
    for (krn_span &s : d.spans) {
        s.k = moved(d, s.k);
        s.v = moved(d, s.v);
    }
    for (int i = 0; i < c.n_lists; i++) {
        d.lists.push_back({d.spans.data() + (c.lists[i].spans - c.spans), c.lists[i].n_spans});
    }
    d.call = attend_case_call(&c, processors);
    d.call.q = put(d, c.q, static_cast<size_t>(o.sequences) * c.q_heads * dim);
    d.call.cos_sin = put(d, c.cos_sin, rows * o.rope_dims);
    d.call.sharpness = put(d, c.sharpness, rows);
    d.call.k.matrix = put(d, c.k_matrix, heads * dim * dim);
    d.call.v.matrix = put(d, c.v_transposed, heads * dim * dim);
    d.call.k.mean = put(d, c.k_mean, heads * dim);
    d.call.v.mean = put(d, c.v_mean, heads * dim);
}

/* Sequences [first, first + n) of the case, three launches in a row (the counters must come back, overlapping launches
 * must not disturb each other); false when they differ. */
bool run_case(device_case &d,
        int first,
        int n,
        const cuda_attend_policy &policy,
        int blocks,
        bool overlap,
        std::vector<float> &out)
{
    const attend_case &c = d.c;
    const size_t floats = static_cast<size_t>(c.q_heads) * c.o.d;
    const int lists_each = c.o.shared ? 1 : c.o.kv_heads;
    err e = {};
    cuda_attend_plan plan;
    std::vector<char> image(
            cuda_attend_image_bytes(&d.call.shape, n * c.o.kv_heads, 65536, attend_case_tiles(&c)));
    OK(cuda_attend_plan_make(&d.call.shape, &policy, d.lists.data() + first * lists_each, n, c.o.shared,
            image.data(), image.size(), &plan, &e));
    void *workspace = nullptr, *outs = nullptr;
    CUDA(cudaMalloc(&workspace, plan.workspace_bytes));
    CUDA(cudaMemset(workspace, 0xff, plan.workspace_bytes));
    CUDA(cudaMalloc(&outs, 3 * n * floats * sizeof(float)));
    CUDA(cudaMemset(outs, 0xff, 3 * n * floats * sizeof(float)));
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    OK(cuda_attend_upload(&plan, image.data(), workspace, stream, &e));
    cuda_attend_call call = d.call;
    call.q += first * floats;
    call.cos_sin += static_cast<size_t>(first) * c.o.variants * c.o.rope_dims;
    call.sharpness += static_cast<size_t>(first) * c.o.variants;
    call.blocks_per_multiprocessor = blocks;
    call.overlap = overlap;
    for (int i = 0; i < 3; i++) {
        call.out = static_cast<float *>(outs) + i * n * floats;
        OK(cuda_attend_launch(&plan, &call, workspace, stream, &e));
    }
    CUDA(cudaStreamSynchronize(stream));
    std::vector<float> all(3 * n * floats);
    CUDA(cudaMemcpy(all.data(), outs, all.size() * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaFree(workspace));
    CUDA(cudaFree(outs));
    out.assign(all.begin(), all.begin() + n * floats);
    return memcmp(all.data(), all.data() + n * floats, n * floats * sizeof(float)) == 0 &&
            memcmp(all.data(), all.data() + 2 * n * floats, n * floats * sizeof(float)) == 0;
}

bool check_case(const attend_case_options &o, uint64_t seed)
{
    const int processors = 6; /* few, so that lists are cut */
    device_case d;
    put_case(o, seed, processors, d);
    const int last = o.sequences - 1;
    const size_t floats = static_cast<size_t>(d.c.q_heads) * o.d;
    const cuda_attend_policy policy = {4, 2, 0, 0}, no_clusters = {4, 2, 0, 1};
    std::vector<float> out, other, alone;
    bool repeats = run_case(d, 0, o.sequences, no_clusters, 0, false, out);
    repeats &= run_case(d, 0, o.sequences, policy, 1, true, other);
    const bool same = memcmp(out.data(), other.data(), out.size() * sizeof(float)) == 0;
    repeats &= run_case(d, last, 1, policy, 0, true, alone);
    const bool same_alone = memcmp(alone.data(), out.data() + last * floats, floats * sizeof(float)) == 0;
    double error, same_width;
    attend_case_errors(&d.c, out.data(), &error, &same_width);
    const bool good = error <= 2 * same_width + 2e-6 && repeats && same && same_alone;
    printf("%-28s error %.2e  half precision %.2e  %s%s%s%s\n", o.name, error, same_width,
            good ? "ok" : "WRONG", repeats ? "" : ", does not repeat", same ? "" : ", depends on the launch",
            same_alone ? "" : ", differs alone");
    fflush(stdout);
    for (void *p : d.all) {
        CUDA(cudaFree(p));
    }
    attend_case_free(&d.c);
    return good;
}

int check(const char *name)
{
    int wrong = 0;
    for (int i = 0; i < attend_case_count; i++) {
        if (name == nullptr || strstr(attend_case_list[i].name, name) != nullptr) {
            wrong += check_case(attend_case_list[i], 77 + static_cast<uint64_t>(i)) ? 0 : 1;
        }
    }
    printf("%d of %d cases wrong\n", wrong, attend_case_count);
    return wrong == 0 ? 0 : 1;
}

/* ---- time ---- */

struct time_options {
    int64_t context = 102400;
    int sequences = 1, layers = 36, rows = 0, columns = 0, blocks = 0, items = 0, tiles = 0, overlap = 1,
        once = 0, cluster = 0;
};

enum { D = 128, Q_HEADS = 32, KV_HEADS = 8, REPEATS = 25 };

__global__ void fill_random(uint4 *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
            i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        uint64_t z = seed + i * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        const uint64_t w = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        p[i] = make_uint4(static_cast<uint32_t>(z), static_cast<uint32_t>(z >> 32), static_cast<uint32_t>(w),
                static_cast<uint32_t>(w >> 32));
    }
}

/* Row scales of a page: fp16 from 0.0625 to 0.125. */
__global__ void fill_scales(uint8_t *pages, size_t n_pages, size_t page_bytes, uint32_t at)
{
    for (size_t i = blockIdx.x; i < n_pages; i += gridDim.x) {
        reinterpret_cast<uint16_t *>(pages + i * page_bytes + at)[threadIdx.x] =
                static_cast<uint16_t>(0x2c00u + (threadIdx.x * 7 + i) % 1024u);
    }
}

__global__ void fill_bf16(uint16_t *p, size_t n)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < n;
            i += static_cast<size_t>(gridDim.x) * blockDim.x) {
        p[i] = static_cast<uint16_t>(0x3e00u + (i * 2654435761u >> 24) + (i & 1u) * 0x8000u);
    }
}

__global__ void read_all(const uint4 *p, size_t n, uint32_t *out)
{
    const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    uint32_t x = 0;
    size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                    d = __ldcs(p + i + 3 * step);
        x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
    }
    for (; i < n; i += step) {
        const uint4 a = __ldcs(p + i);
        x ^= a.x ^ a.y ^ a.z ^ a.w;
    }
    if (x == 0x12345678u) {
        *out = x;
    }
}

/* Median, least and most of REPEATS timings in microseconds, after three that do not count. */
struct timing {
    float median, least, most;
};

template <class F> timing time_many(cudaStream_t stream, F work)
{
    cudaEvent_t start, stop;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&stop));
    std::vector<float> us;
    for (int i = 0; i < REPEATS + 3; i++) {
        CUDA(cudaEventRecord(start, stream));
        work();
        CUDA(cudaEventRecord(stop, stream));
        CUDA(cudaStreamSynchronize(stream));
        float ms = 0;
        CUDA(cudaEventElapsedTime(&ms, start, stop));
        if (i >= 3) {
            us.push_back(ms * 1e3f);
        }
    }
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(stop));
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us.front(), us.back()};
}

template <class F> cudaGraphExec_t capture(cudaStream_t stream, F work)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    work();
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return executable;
}

/* Pages of all layers in one allocation, and the lists over them: shared by the heads. Layout by layer: [layer][sequence]
 * [page][head]; by column, as they are stored: [sequence][page][layer][head]. */
struct pages {
    uint8_t *data;
    uint16_t *rows; /* [layer][sequence][head][K rows, V rows] */
    size_t page_bytes, layer_stride, head_stride, row_layer_stride, row_head_stride;
    std::vector<krn_span> spans;
    std::vector<cuda_attend_list> lists;
};

void make_pages(const time_options &o, const krn_page_format &f, pages &g)
{
    const size_t per_list = static_cast<size_t>(o.context) / 128, page = f.bytes, n_sequences = o.sequences;
    const size_t count = per_list * n_sequences * KV_HEADS * o.layers;
    const size_t column = o.columns ? page * KV_HEADS * o.layers : page * KV_HEADS;
    g.page_bytes = page;
    g.head_stride = page;
    g.layer_stride = o.columns ? page * KV_HEADS : column * per_list * n_sequences;
    CUDA(cudaMalloc(reinterpret_cast<void **>(&g.data), count * page));
    fill_random<<<1320, 256>>>(reinterpret_cast<uint4 *>(g.data), count * page / 16, 12345);
    fill_scales<<<1320, 128>>>(g.data, count, page, f.k_scale_at);
    fill_scales<<<1320, 128>>>(g.data, count, page, f.v_scale_at);
    const size_t rows = static_cast<size_t>(o.rows) * D;
    g.row_head_stride = 2 * rows * sizeof(uint16_t);
    g.row_layer_stride = g.row_head_stride * KV_HEADS * n_sequences;
    CUDA(cudaMalloc(reinterpret_cast<void **>(&g.rows), g.row_layer_stride * o.layers + 16));
    fill_bf16<<<1320, 256>>>(g.rows, g.row_layer_stride / 2 * o.layers);
    CUDA(cudaDeviceSynchronize());
    g.spans.reserve(n_sequences * (per_list + 1));
    for (size_t s = 0; s < n_sequences; s++) {
        const size_t first = g.spans.size();
        for (size_t i = 0; i < per_list; i++) {
            krn_span span = {};
            span.kind = KRN_SPAN_PAGE;
            span.rows = 128;
            span.k = g.data + (s * per_list + i) * column;
            g.spans.push_back(span);
        }
        if (o.rows > 0) {
            krn_span span = {};
            span.kind = KRN_SPAN_BF16;
            span.rows = o.rows;
            span.k = g.rows + s * KV_HEADS * 2 * rows;
            span.v = g.rows + s * KV_HEADS * 2 * rows + rows;
            g.spans.push_back(span);
        }
        g.lists.push_back({g.spans.data() + first, static_cast<int>(g.spans.size() - first)});
    }
}

/* One K plane and four evenly spaced levels: what the default codec stores at two bits. */
krn_page_format two_bit_format()
{
    krn_page_format f = {};
    f.d = D;
    f.k_planes = 1;
    for (int i = 0; i < 4; i++) {
        f.k_level[i] = f.v_level[i] = static_cast<float>(i) - 1.5f;
    }
    kvq_page_lay_out(&f);
    return f;
}

/* Queries, angles and room for the outputs, on the device. */
void make_queries(const time_options &o, cuda_attend_call &call)
{
    const size_t floats = static_cast<size_t>(o.sequences) * Q_HEADS * D;
    std::vector<float> q(floats), cos_sin(static_cast<size_t>(o.sequences) * D), sharpness(o.sequences, 1.0f);
    for (size_t i = 0; i < floats; i++) {
        q[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16 & 2047u) - 1024) / 700.0f;
    }
    for (size_t i = 0; i < cos_sin.size(); i += 2) {
        cos_sin[i] = cosf(static_cast<float>(i));
        cos_sin[i + 1] = sinf(static_cast<float>(i));
    }
    call.q = to_device(q.data(), q.size());
    call.cos_sin = to_device(cos_sin.data(), cos_sin.size());
    call.sharpness = to_device(sharpness.data(), sharpness.size());
    CUDA(cudaMalloc(reinterpret_cast<void **>(&call.out), floats * sizeof(float)));
}

/* The time of only reading the same bytes, with as many layers in the graph. */
timing measure_reading(
        const time_options &o, const pages &g, size_t read_bytes, float *out, cudaStream_t stream)
{
    cudaGraphExec_t reading = capture(stream, [&] {
        for (int layer = 0; layer < o.layers; layer++) {
            read_all<<<multiprocessors() * 8, 256, 0, stream>>>(
                    reinterpret_cast<const uint4 *>(g.data + layer * read_bytes), read_bytes / 16,
                    reinterpret_cast<uint32_t *>(out));
        }
    });
    const timing r = time_many(stream, [&] { CUDA(cudaGraphLaunch(reading, stream)); });
    CUDA(cudaGraphExecDestroy(reading));
    return r;
}

#ifdef ATTEND_STAMPS

const char *const phase_names[] = {"ask for first tiles", "wait for previous kernel", "query loaded",
        "query stored", "query of others", "last tile comes", "its scores", "its weights", "its values",
        "tiles read", "warps join", "counted, or cluster there", "chunks join", "output"};

/* Mean, least and most cycles between places, over the blocks of one layer; places that a block does not come to are 0. */
void print_phases(const std::vector<int64_t> &stamps, int n_blocks, int layer)
{
    const int64_t *all = stamps.data() + static_cast<int64_t>(layer) * n_blocks * attend::STAMPS;
    for (int place = 1; place <= attend::STAMP_END; place++) {
        int64_t sum = 0, least = INT64_MAX, most = 0, n = 0;
        for (int block = 0; block < n_blocks; block++) {
            const int64_t *s = all + block * attend::STAMPS;
            int before = place - 1;
            while (before > 0 && s[before] == 0) {
                before--;
            }
            if (s[place] != 0) {
                const int64_t cycles = s[place] - s[before];
                sum += cycles;
                least = std::min(least, cycles);
                most = std::max(most, cycles);
                n++;
            }
        }
        if (n > 0) {
            printf("    %-26s %4lld blocks %7lld cycles (%lld-%lld)\n", phase_names[place - 1], (long long)n,
                    (long long)(sum / n), (long long)least, (long long)most);
        }
    }
    int64_t ended = 0, seen = INT64_MAX, end = 0;
    for (int block = 0; block < n_blocks; block++) {
        const int64_t *s = all + block * attend::STAMPS, *next = s + n_blocks * attend::STAMPS;
        ended = std::max(ended, s[attend::STAMP_TIME_END]);
        seen = std::min(seen, next[attend::STAMP_TIME_PREVIOUS_ENDED]);
        end = std::max(end, next[attend::STAMP_TIME_END]);
    }
    printf("    end to the next kernel's sight of it %lld ns, from there to its end %lld ns\n",
            (long long)(seen - ended), (long long)(end - seen));
}
#endif

/* The call for layer 0. */
cuda_attend_call make_call(const time_options &o, const krn_page_format &f, const pages &g)
{
    cuda_attend_call call = {};
    call.shape = {D, Q_HEADS, KV_HEADS, multiprocessors()};
    call.format = f;
    call.k.kind = call.v.kind = KRN_ROTATION_HADAMARD;
    call.scale = 0.0883883f;
    call.pairing = KRN_ROPE_HALVES;
    call.rope_dims = D;
    call.n_variants = 1;
    call.page_head_stride = static_cast<int64_t>(g.head_stride);
    call.row_head_stride = static_cast<int64_t>(g.row_head_stride);
    call.overlap = o.overlap != 0;
    call.blocks_per_multiprocessor = o.blocks;
    make_queries(o, call);
    return call;
}

/* Stamps of all layers' blocks, where the build takes them. */
struct stamping {
    int layers, n_blocks;
#ifdef ATTEND_STAMPS
    int64_t *stamps = nullptr;
    size_t n() const
    {
        return static_cast<size_t>(layers) * n_blocks * attend::STAMPS;
    }
    void start()
    {
        CUDA(cudaMalloc(reinterpret_cast<void **>(&stamps), n() * sizeof *stamps));
        attend_stamps = stamps;
    }
    /* Of one more replay: blocks do not come to all places, and what an earlier one left there must not count. */
    void print(cudaGraphExec_t graph, cudaStream_t stream)
    {
        CUDA(cudaMemsetAsync(stamps, 0, n() * sizeof *stamps, stream));
        CUDA(cudaGraphLaunch(graph, stream));
        CUDA(cudaStreamSynchronize(stream));
        std::vector<int64_t> host(n());
        CUDA(cudaMemcpy(host.data(), stamps, n() * sizeof *stamps, cudaMemcpyDeviceToHost));
        CUDA(cudaFree(stamps));
        print_phases(host, n_blocks, layers / 2);
    }
#else
    void start() {}
    void print(cudaGraphExec_t, cudaStream_t) {}
#endif
};

void measure(const time_options &o)
{
    err e = {};
    const krn_page_format f = two_bit_format();
    pages g;
    make_pages(o, f, g);
    const cuda_attend_call call = make_call(o, f, g);
    const cuda_attend_policy policy = {o.tiles, o.items, 0, o.cluster};
    int64_t tiles = 0;
    for (const krn_span &s : g.spans) {
        tiles += s.kind == KRN_SPAN_PAGE ? 1 : (s.rows + 15) / 16;
    }
    std::vector<char> image(cuda_attend_image_bytes(&call.shape, o.sequences * KV_HEADS, 1 << 16, tiles));
    cuda_attend_plan plan;
    OK(cuda_attend_plan_make(
            &call.shape, &policy, g.lists.data(), o.sequences, true, image.data(), image.size(), &plan, &e));
    void *workspace = nullptr;
    CUDA(cudaMalloc(&workspace, plan.workspace_bytes));
    cudaStream_t stream;
    CUDA(cudaStreamCreate(&stream));
    OK(cuda_attend_upload(&plan, image.data(), workspace, stream, &e));
    CUDA(cudaStreamSynchronize(stream));
    stamping stamps = {o.layers, plan.n_blocks};
    stamps.start();
    const auto layers = [&] {
        for (int layer = 0; layer < o.layers; layer++) {
            cuda_attend_call c = call;
            c.page_offset = static_cast<int64_t>(layer * g.layer_stride);
            c.row_offset = static_cast<int64_t>(layer * g.row_layer_stride);
            OK(cuda_attend_launch(&plan, &c, workspace, stream, &e));
        }
    };
    if (o.once) {
        layers();
        CUDA(cudaStreamSynchronize(stream));
        exit(0);
    }
    cudaGraphExec_t graph = capture(stream, layers);
    const timing t = time_many(stream, [&] { CUDA(cudaGraphLaunch(graph, stream)); });
    stamps.print(graph, stream);
    CUDA(cudaGraphExecDestroy(graph));

    const size_t layer_bytes =
            static_cast<size_t>(o.context) / 128 * o.sequences * KV_HEADS * g.page_bytes + g.row_layer_stride;
    const size_t read_bytes = layer_bytes - g.row_layer_stride;
    const timing r = measure_reading(o, g, read_bytes, call.out, stream);
    const float n = static_cast<float>(o.layers);
    printf("%8lld x%-2d %s%s blocks %d items %d tiles %2d overlap %d: %4d items, clusters of %2d %7.2f us "
           "(%.2f-%.2f) %5.0f "
           "GB/s; read %7.2f us "
           "%5.0f GB/s\n",
            static_cast<long long>(o.context), o.sequences, o.columns ? "columns " : "",
            o.rows > 0 ? "+bf16 rows " : "", o.blocks, o.items, o.tiles, o.overlap, plan.n_items,
            plan.cluster, t.median / n, t.least / n, t.most / n,
            static_cast<double>(layer_bytes) / (t.median / n) * 1e-3, r.median / n,
            static_cast<double>(read_bytes) / (r.median / n) * 1e-3);
    fflush(stdout);
    for (void *p : {static_cast<void *>(g.data), static_cast<void *>(g.rows), workspace,
                 static_cast<void *>(call.out), const_cast<void *>(static_cast<const void *>(call.q))}) {
        CUDA(cudaFree(p));
    }
    CUDA(cudaStreamDestroy(stream));
}

void measure_read()
{
    const size_t bytes = static_cast<size_t>(8) << 30;
    uint4 *p = nullptr;
    uint32_t *out = nullptr;
    cudaStream_t stream;
    CUDA(cudaMalloc(reinterpret_cast<void **>(&p), bytes));
    CUDA(cudaMalloc(reinterpret_cast<void **>(&out), 4));
    CUDA(cudaStreamCreate(&stream));
    fill_random<<<1320, 256>>>(p, bytes / 16, 7);
    CUDA(cudaDeviceSynchronize());
    for (int blocks : {4, 8, 16}) {
        const timing t = time_many(stream,
                [&] { read_all<<<multiprocessors() * blocks, 512, 0, stream>>>(p, bytes / 16, out); });
        printf("plain read of 8 GiB, %d blocks each: %.0f GB/s (%.0f-%.0f)\n", blocks,
                static_cast<double>(bytes) / t.median * 1e-3, static_cast<double>(bytes) / t.most * 1e-3,
                static_cast<double>(bytes) / t.least * 1e-3);
    }
    CUDA(cudaFree(p));
    CUDA(cudaFree(out));
}

time_options with(int64_t context, int sequences, int layers)
{
    time_options o;
    o.context = context;
    o.sequences = sequences;
    o.layers = layers;
    return o;
}

/* What the issue asks for, and how the choices change it. */
void suite()
{
    cudaDeviceProp properties;
    CUDA(cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
    measure_read();
    const int64_t contexts[] = {8192, 32768, 102400, 131072, 1048576};
    for (const int64_t context : contexts) {
        const int layers = 36;
        measure(with(context, 1, layers));
        for (int variation = 0; variation < 7; variation++) {
            time_options o = with(context, 1, layers);
            o.overlap = variation != 0;
            o.blocks = variation == 1 || variation == 2 ? 1 : 0;
            o.items = variation == 1 || variation == 3 ? 1 : variation == 2 || variation == 4 ? 2 : 0;
            o.tiles = variation == 5 ? 4 : variation == 6 ? 16 : 0;
            o.columns = 0;
            if ((variation < 5) || context <= 32768) {
                measure(o);
            }
        }
    }
    for (const int64_t context : {static_cast<int64_t>(102400), static_cast<int64_t>(1048576)}) {
        time_options o = with(context, 1, 36);
        o.columns = 1;
        measure(o);
    }
    for (const int64_t context : {static_cast<int64_t>(8192), static_cast<int64_t>(102400)}) {
        time_options o = with(context, 1, 36);
        o.rows = 576;
        measure(o);
    }
    for (int tiles : {0, 16, 32, 64}) {
        time_options o = with(8192, 32, 36);
        o.tiles = tiles;
        measure(o);
        o.overlap = 0;
        measure(o);
    }
}

bool parse(const char *argument, time_options &o)
{
    const char *equals = strchr(argument, '=');
    if (equals == nullptr) {
        return false;
    }
    const std::string name(argument, static_cast<size_t>(equals - argument));
    if (name == "context") {
        o.context = strtoll(equals + 1, nullptr, 10);
        return true;
    }
    const std::vector<std::pair<const char *, int *>> numbers = {{"sequences", &o.sequences},
            {"layers", &o.layers}, {"rows", &o.rows}, {"columns", &o.columns}, {"blocks", &o.blocks},
            {"items", &o.items}, {"tiles", &o.tiles}, {"overlap", &o.overlap}, {"once", &o.once},
            {"cluster", &o.cluster}};
    for (const auto &number : numbers) {
        if (name == number.first) {
            *number.second = static_cast<int>(strtol(equals + 1, nullptr, 10));
            return true;
        }
    }
    return false;
}

} // namespace

int main(int argc, char **argv)
{
    const std::string command = argc > 1 ? argv[1] : "";
    if (command == "check") {
        return check(argc > 2 ? argv[2] : nullptr);
    }
    if (command == "suite") {
        suite();
        return 0;
    }
    if (command == "time" || command == "phases") {
        time_options o;
        for (int i = 2; i < argc; i++) {
            if (!parse(argv[i], o)) {
                fprintf(stderr, "bench_attend: what is %s?\n", argv[i]);
                return 2;
            }
        }
        measure(o);
        return 0;
    }
    fprintf(stderr, "usage: bench_attend check [NAME] | time [KEY=VALUE ...] | suite\n");
    return 2;
}
