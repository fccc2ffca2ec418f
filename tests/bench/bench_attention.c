/*
 * Times attention over tiers: bench_attention [threads] [repeats]. Shapes of the default model (9 query heads, 3 KV heads,
 * d 64) and of a larger one (32, 8, 128); decode is one row, prefill 256, behind pages of so many rows.
 * Prints microseconds per call (median, least, most), per layer, and bytes of pages per second.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/attn_scene.h"

typedef struct bench_case {
    const char *codec;
    int d, group, kv_heads, pages, filled, bf16_rows, n_rows;
} bench_case;

static const bench_case cases[] = {
        {"turboquant", 64, 3, 3, 59, 128, 0, 1},
        {"turboquant", 64, 3, 3, 57, 128, 320, 1},
        {"turboquant", 64, 3, 3, 32, 128, 320, 1},
        {"turboquant", 64, 3, 3, 59, 25, 320, 1},
        {"turboquant-k4", 64, 3, 3, 57, 128, 320, 1},
        {"turboquant", 64, 3, 3, 0, 0, 512, 1},
        {"turboquant", 64, 3, 3, 32, 128, 0, 256},
        {"turboquant", 64, 3, 3, 0, 0, 512, 256},
        {"turboquant", 128, 4, 8, 64, 128, 0, 1},
        {"turboquant", 128, 4, 8, 0, 0, 512, 1},
        {"turboquant", 128, 4, 8, 32, 128, 0, 64},
};

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void run_case(const bench_case *b, krn_pool *pool, int repeats)
{
    static int64_t us[1000];
    scene s;
    scene_open(&s, b->codec, b->d, b->group, b->kv_heads);
    for (int i = 0; i < b->pages; i++) {
        scene_add(&s, KRN_SPAN_PAGE, b->filled, 0, true);
    }
    if (b->bf16_rows > 0) {
        scene_add(&s, KRN_SPAN_BF16, b->bf16_rows, 0, false);
    }
    krn_attend_args a = scene_args(&s, b->n_rows);
    for (int r = 0; r < b->n_rows && b->bf16_rows == 0; r++) {
        ((int64_t *)(uintptr_t)a.position)[r] = 0;
    }
    a.n_variants = 1;
    size_t bytes = krn_attend_workspace_bytes(a.n_rows, a.n_q_heads, a.d, a.n_variants);
    uint8_t *workspace = scene_own(&s, bytes);
    for (int i = 0; i < repeats + 2; i++) {
        int64_t start = base_monotonic_us();
        krn_attend(pool, &a, workspace);
        us[i < 2 ? 0 : i - 2] = base_monotonic_us() - start;
    }
    qsort(us, (size_t)repeats, sizeof us[0], ascending);
    double page_bytes = (double)b->pages * b->kv_heads * kvq_page_format(s.codec, 0)->bytes;
    double us_middle = (double)us[repeats / 2];
    printf("%-13s d %3d heads %2d/%d pages %2d x %3d bf16 %3d rows %3d: %8.0f us (%lld to %lld)  %6.2f "
           "GB/s\n",
            b->codec, b->d, b->group * b->kv_heads, b->kv_heads, b->pages, b->filled, b->bf16_rows, b->n_rows,
            us_middle, (long long)us[0], (long long)us[repeats - 1], page_bytes / us_middle / 1000.0);
    scene_close(&s);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    int repeats = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 20;
    krn_pool *pool;
    err e;
    if (krn_pool_open(threads, &pool, &e) != ST_OK || repeats < 1 || repeats > 998) {
        return 1;
    }
    printf("%s, %d threads\n", krn_isa_name(krn_isa_current()), krn_pool_threads(pool));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_case(&cases[i], pool, repeats);
    }
    krn_pool_close(pool);
    return 0;
}
