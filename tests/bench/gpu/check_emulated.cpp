/* Runs the attention kernel's code on the emulated device over all cases; exit status 1 when one is wrong. */
#define _Noreturn [[noreturn]]
#define _Static_assert static_assert
extern "C" {
#include "kernels/cuda/attend_levels.h"
#include "tests/bench/gpu/attend_case.h"
}
#undef _Noreturn
#undef _Static_assert

#include <vector>

#include "tests/bench/gpu/emulated_device.h"
/* the guard of attend_device.cuh is taken */
#include "kernels/cuda/attend_kernel.cuh"

namespace {

enum { MULTIPROCESSORS = 6, TOO_LONG = 200 };

template <int D, int NT, int MODE> void body(const void *p)
{
    attend::attend_kernel<D, NT, MODE>(*static_cast<const attend::parameters *>(p));
}

using body_function = void (*)(const void *);
struct choice {
    body_function body;
    size_t fixed_bytes, join_bytes;
};

template <int D, int NT, int MODE> choice choice_of()
{
    const attend::kernel_entry entry = attend::entry_of<D, NT, MODE>();
    return {body<D, NT, MODE>, entry.fixed_bytes, entry.join_bytes};
}

template <int D, int NT> choice choose_mode(int mode)
{
    switch (mode) {
    case 0:
        return choice_of<D, NT, 0>();
    case 3:
        return choice_of<D, NT, 3>();
    case 4:
        return choice_of<D, NT, 4>();
    case 8:
        return choice_of<D, NT, 8>();
    case 10:
        return choice_of<D, NT, 10>();
    default:
        return {nullptr, 0, 0};
    }
}

choice choose(int d, int nt, int mode)
{
    if (d == 64) {
        return nt == 1 ? choose_mode<64, 1>(mode) : choose_mode<64, 2>(mode);
    }
    if (d == 128) {
        return nt == 1 ? choose_mode<128, 1>(mode) : choose_mode<128, 2>(mode);
    }
    return choose_mode<256, 1>(mode);
}

/* Plans `lists` of `sequences` sequences into fresh workspace memory; nullptr when the planner refuses. */
char *make_workspace(
        const attend_case &c, const cuda_attend_list *lists, int sequences, cuda_attend_plan *plan)
{
    const cuda_attend_shape shape = attend_case_shape(&c, MULTIPROCESSORS);
    const cuda_attend_policy policy = {4, 2, 0, 0};
    err e = {};
    std::vector<char> image(
            cuda_attend_image_bytes(&shape, sequences * c.o.kv_heads, 4096, attend_case_tiles(&c)));
    if (cuda_attend_plan_make(&shape, &policy, lists, sequences, c.o.shared, image.data(), image.size(), plan,
                &e) != ST_OK) {
        printf("%s: %s\n", c.o.name, e.text);
        return nullptr;
    }
    char *workspace = static_cast<char *>(base_zalloc(plan->workspace_bytes, 1));
    memset(workspace, 0xff, plan->workspace_bytes);
    memcpy(workspace, image.data(), plan->image_bytes);
    return workspace;
}

/* The launcher's work, with host pointers and few stages, so that the ring goes round. */
attend::parameters parameters_of(
        const attend_case &c, const cuda_attend_plan &plan, char *workspace, int *mode, float *out)
{
    attend_levels levels;
    err e = {};
    if (attend_levels_set(&c.format, &levels, &e) != ST_OK) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    *mode = (levels.k_is_table ? 1 : 0) | (levels.v_is_table ? 2 : 0) | (c.format.has_zero ? 4 : 0) |
            (c.format.k_planes == 2 ? 8 : 0);
    const cuda_attend_call call = attend_case_call(&c, MULTIPROCESSORS);
    attend::parameters p = {};
    p.items = reinterpret_cast<attend_item *>(workspace);
    p.tiles = reinterpret_cast<attend_tile *>(workspace + plan.tiles_at);
    p.counters = reinterpret_cast<uint32_t *>(workspace + plan.counters_at);
    p.partials = reinterpret_cast<float *>(workspace + plan.partials_at);
    p.q = c.q;
    p.cos_sin = c.cos_sin;
    p.sharpness = c.sharpness;
    p.k_matrix = c.k_matrix;
    p.v_matrix = c.v_transposed;
    p.k_mean = c.k_mean;
    p.v_mean = c.v_mean;
    p.out = out;
    p.page_head_stride = call.page_head_stride;
    p.row_head_stride = call.row_head_stride;
    p.q_heads = c.q_heads;
    p.group = c.o.group;
    p.heads_per_pass = attend_heads_per_pass(c.o.d, c.o.group);
    p.n_variants = c.o.variants;
    p.rope_dims = c.o.rope_dims;
    p.rope_halves = c.o.rope_halves;
    p.k_rotation = p.v_rotation = static_cast<int>(c.o.rotation);
    p.score_scale = call.scale * 1.44269504f;
    p.k_unit = levels.k_unit;
    p.k_base = levels.k_base;
    p.v_unit = levels.v_unit;
    p.v_base = levels.v_base;
    p.k_table = levels.k_table;
    p.v_table = levels.v_table;
    p.k_plane_at[0] = c.format.k_plane_at[0];
    p.k_plane_at[1] = c.format.k_plane_at[1];
    p.v_plane_at = c.format.v_plane_at;
    p.k_scale_at = c.format.k_scale_at;
    p.v_scale_at = c.format.v_scale_at;
    p.k_zero_at = c.format.k_zero_at;
    p.v_zero_at = c.format.v_zero_at;
    p.page_bytes = c.format.bytes;
    const uint32_t bf16 = 2 * ATTEND_BF16_ROWS * static_cast<uint32_t>(2 * c.o.d + 16);
    p.stage_bytes = ((p.page_bytes > bf16 ? p.page_bytes : bf16) + 127) / 128 * 128;
    p.stages = c.o.d == 64 ? 9 : 5; /* more and fewer than warps */
    return p;
}

/* Runs sequences [first, first + sequences) of the case into `out`, without clusters and with them: the counters must be
 * as they were, and the results the same. */
bool run(const attend_case &c, int first, int sequences, float *out, int *n_items)
{
    const int lists_each = c.o.shared ? 1 : c.o.kv_heads;
    const size_t floats = static_cast<size_t>(c.q_heads) * c.o.d;
    cuda_attend_plan plan;
    char *workspace = make_workspace(c, c.lists + first * lists_each, sequences, &plan);
    if (workspace == nullptr) {
        return false;
    }
    int mode = 0;
    std::vector<float> before(sequences * floats, NAN);
    attend::parameters p = parameters_of(c, plan, workspace, &mode, before.data());
    p.q += first * floats;
    p.cos_sin += static_cast<size_t>(first) * c.o.variants * c.o.rope_dims;
    p.sharpness += static_cast<size_t>(first) * c.o.variants;
    const choice chosen = choose(c.o.d, p.heads_per_pass <= 4 ? 1 : 2, mode);
    const size_t beside = chosen.fixed_bytes + (plan.gathers ? chosen.join_bytes : 0);
    const int most = static_cast<int>((emulated::SHARED_BYTES - beside) / p.stage_bytes);
    p.stages = p.stages < most ? p.stages : most;
    p.join_at = plan.gathers ? p.stages * p.stage_bytes : 0;
    emulated::run(plan.n_blocks, 1, chosen.body, &p, attend::shared);
    bool zero = true;
    for (uint64_t at = plan.counters_at; at < plan.tiles_at; at++) {
        zero = zero && workspace[at] == 0;
    }
    p.out = out;
    emulated::run(plan.n_blocks, plan.cluster, chosen.body, &p, attend::shared);
    base_free(workspace);
    *n_items = plan.n_items;
    return zero && memcmp(before.data(), out, before.size() * sizeof(float)) == 0;
}

bool check(const attend_case_options &options, uint64_t seed)
{
    attend_case c;
    attend_case_make(&options, seed, &c);
    const int last = c.o.sequences - 1;
    const size_t floats = static_cast<size_t>(c.q_heads) * c.o.d;
    std::vector<float> out(c.o.sequences * floats, NAN), alone(floats, NAN);
    int items = 0, items_alone = 0;
    const bool repeats =
            run(c, 0, c.o.sequences, out.data(), &items) && run(c, last, 1, alone.data(), &items_alone);
    const bool same_alone = memcmp(alone.data(), out.data() + last * floats, floats * sizeof(float)) == 0;
    double error, same_width;
    attend_case_errors(&c, out.data(), &error, &same_width);
    const bool good = error <= 2 * same_width + 2e-6 && repeats && same_alone;
    printf("%-28s %4d items  error %.2e  half precision %.2e  %s%s%s\n", options.name, items, error,
            same_width, good ? "ok" : "WRONG", repeats ? "" : ", does not repeat",
            same_alone ? "" : ", differs alone");
    attend_case_free(&c);
    return good;
}

} // namespace

int main(int argc, char **argv)
{
    int wrong = 0;
    for (int i = 0; i < attend_case_count; i++) {
        const attend_case_options &o = attend_case_list[i];
        if (o.repeats <= TOO_LONG && (argc < 2 || strstr(o.name, argv[1]) != nullptr)) {
            wrong += check(o, 1000 + static_cast<uint64_t>(i)) ? 0 : 1;
            fflush(stdout);
        }
    }
    return wrong == 0 ? 0 : 1;
}
