/* The host side of the CUDA attention, which needs no card: how lists are cut into items, and level tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attend.h"
#include "kernels/cuda/attend_levels.h"

enum { IMAGE_BYTES = 1 << 20, PAGE = 9216 };

static const cuda_attend_shape eight_heads = {.d = 128, .q_heads = 32, .kv_heads = 8, .multiprocessors = 132};
static const cuda_attend_policy defaults = {0};
static _Alignas(64) char image[IMAGE_BYTES];
static krn_span spans[16384];

static cuda_attend_list pages(int n, int n_variants)
{
    for (int i = 0; i < n; i++) {
        spans[i] = (krn_span){.kind = KRN_SPAN_PAGE,
                .rows = i == n - 1 ? 77 : 128,
                .variant = i % n_variants,
                .k = (const void *)(uintptr_t)(0x10000 + i * PAGE)};
    }
    return (cuda_attend_list){spans, n};
}

static const attend_item *items_of(void)
{
    return (const attend_item *)(const void *)image;
}

static const attend_tile *tiles_of(const cuda_attend_plan *plan)
{
    return (const attend_tile *)(const void *)(image + plan->tiles_at);
}

static cuda_attend_plan make(const cuda_attend_shape *s, const cuda_attend_list *lists, int n, bool shared)
{
    cuda_attend_plan plan;
    err e = {0};
    if (cuda_attend_plan_make(s, &defaults, lists, n, shared, image, sizeof image, &plan, &e) != ST_OK) {
        fail_msg("%s", e.text);
    }
    return plan;
}

/* Every tile of every list in exactly one item per pass, chunks in order, partial results apart from each other. */
static void check_cover(
        const cuda_attend_shape *s, const cuda_attend_plan *plan, int n_lists, int64_t tiles_each)
{
    int group = s->q_heads / s->kv_heads, each = attend_heads_per_pass(s->d, group),
        passes = (group + each - 1) / each;
    static uint8_t partial_used[1 << 16];
    memset(partial_used, 0, sizeof partial_used);
    for (int list = 0; list < n_lists; list++) {
        for (int pass = 0; pass < passes; pass++) {
            int64_t tiles = 0;
            uint32_t end = 0;
            int chunks = 0, expected = -1;
            for (int chunk = 0; chunk != expected; chunk = chunks) {
                const attend_item *found = NULL;
                for (int i = 0; i < plan->n_blocks; i++) {
                    const attend_item *item = &items_of()[i];
                    if (item->n_heads == 0) {
                        continue;
                    }
                    int number = (int)item->sequence * s->kv_heads + item->kv_head;
                    if (number == list && item->first_head == pass * each && item->chunk == chunk) {
                        assert_null(found);
                        found = item;
                    }
                }
                assert_non_null(found);
                assert_true(chunk == 0 || found->first_tile == end);
                end = found->first_tile + found->n_tiles;
                tiles += found->n_tiles;
                expected = found->n_chunks;
                chunks += (int)found->n_own;
                assert_int_equal(found->counter, list * passes + pass);
                assert_true(found->n_heads >= 1 && found->n_heads <= each);
                for (uint32_t own = 0; found->n_chunks > 1 && own < found->n_own; own++) {
                    uint32_t partial = found->first_partial + found->chunk + own;
                    assert_int_equal(partial_used[partial]++, 0);
                    assert_true(plan->partials_at + (partial + 1) * (uint64_t)(each * (s->d + 2)) * 4 <=
                            plan->workspace_bytes);
                }
            }
            assert_int_equal(tiles, tiles_each);
            assert_int_equal(chunks, expected);
        }
    }
}

static void one_long_list(void **state)
{
    (void)state;
    cuda_attend_list list = pages(800, 1);
    cuda_attend_plan plan = make(&eight_heads, &list, 1, true);
    assert_int_equal(plan.n_items, 32 * 8); /* two on each of 132 multiprocessors, 8 heads */
    assert_int_equal(plan.n_blocks, 32 * 8);
    assert_int_equal(plan.cluster, 1); /* more chunks than a cluster holds */
    assert_int_equal(items_of()[0].n_tiles, 25);
    check_cover(&eight_heads, &plan, 8, 800);
    assert_int_equal(tiles_of(&plan)[799].rows, 77);
    assert_int_equal(tiles_of(&plan)[799].at, 0x10000 + 799 * PAGE);
}

static void short_and_empty_lists(void **state)
{
    (void)state;
    cuda_attend_list lists[2] = {pages(9, 1), {NULL, 0}};
    cuda_attend_plan plan = make(&eight_heads, lists, 2, true);
    assert_int_equal(plan.n_items, (2 + 1) * 8);
    assert_int_equal(plan.cluster, 2);
    assert_int_equal(plan.n_blocks, 2 * 2 * 8);
    int empty = 0;
    uint32_t before = UINT32_MAX;
    for (int i = 0; i < plan.n_blocks; i++) {
        const attend_item *item = &items_of()[i];
        if (item->n_heads > 0) {
            empty += item->n_tiles == 0 && item->sequence == 1 && item->n_chunks == 1 && item->n_heads == 4;
            assert_true(item->chunk_tiles <= before); /* lists of long chunks first */
            before = item->chunk_tiles;
            assert_int_equal(i % 2, item->chunk); /* a list has a cluster */
            assert_int_equal(items_of()[i - i % 2].counter, item->counter);
        }
    }
    assert_int_equal(empty, 8);
}

static void cut_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    static const cuda_attend_list none = {NULL, 0};
    cuda_attend_list list = pages(333, 3), many[5] = {none, list, none, list, none};
    cuda_attend_plan plan = make(&eight_heads, &list, 1, true);
    uint32_t alone[64];
    int n_alone = 0;
    for (int i = 0; i < plan.n_blocks; i++) {
        if (items_of()[i].n_heads > 0 && items_of()[i].kv_head == 0) {
            alone[items_of()[i].chunk] = items_of()[i].n_tiles;
            assert_int_equal(items_of()[i].n_own, 1);
            n_alone++;
        }
    }
    plan = make(&eight_heads, many, 5, true);
    assert_true(plan.gathers && plan.cluster == 1); /* more chunks than blocks at once */
    int same = 0;
    for (int i = 0; i < plan.n_blocks; i++) {
        const attend_item *item = &items_of()[i];
        for (uint32_t own = 0; item->n_heads > 0 && item->sequence % 2 == 1 && own < item->n_own; own++) {
            uint32_t left = item->n_tiles - own * item->chunk_tiles;
            assert_int_equal(left < item->chunk_tiles ? left : item->chunk_tiles, alone[item->chunk + own]);
            assert_int_equal(item->n_chunks, n_alone);
            same++;
        }
    }
    assert_int_equal(same, 2 * 8 * n_alone);
    assert_true(plan.n_items < same);
}

static void variants_end_items(void **state)
{
    (void)state;
    cuda_attend_list list = pages(100, 100);
    cuda_attend_plan plan = make(&eight_heads, &list, 1, true);
    check_cover(&eight_heads, &plan, 8, 100);
    for (int i = 0; i < plan.n_blocks; i++) {
        const attend_item *item = &items_of()[i];
        assert_true(item->n_variants <= ATTEND_LOCAL_VARIANTS);
        for (uint32_t t = 0; t < item->n_tiles; t++) {
            const attend_tile *tile = &tiles_of(&plan)[item->first_tile + t];
            assert_true(tile->variant < item->n_variants);
            assert_int_equal(item->variants[tile->variant], (tile->at - 0x10000) / PAGE);
        }
    }
}

static void groups_take_passes(void **state)
{
    (void)state;
    static const int groups[][3] = {{4, 1, 4}, {8, 1, 8}, {9, 2, 5}, {16, 2, 8}};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        cuda_attend_shape s = {.d = 64, .q_heads = 2 * groups[i][0], .kv_heads = 2, .multiprocessors = 20};
        cuda_attend_list lists[2] = {pages(40, 1), pages(40, 1)};
        cuda_attend_plan plan = make(&s, lists, 1, false);
        assert_int_equal(attend_heads_per_pass(64, groups[i][0]), groups[i][2]);
        check_cover(&s, &plan, 2, 40);
        assert_int_equal(plan.n_items % groups[i][1], 0);
    }
    assert_int_equal(attend_heads_per_pass(256, 8), 4);
}

static void bf16_rows_become_tiles_of_16(void **state)
{
    (void)state;
    spans[0] = (krn_span){
            .kind = KRN_SPAN_BF16, .rows = 37, .k = (const void *)0x2000, .v = (const void *)0x1000};
    cuda_attend_list list = {spans, 1};
    cuda_attend_plan plan = make(&eight_heads, &list, 1, true);
    const attend_tile *t = tiles_of(&plan);
    assert_int_equal(items_of()[0].n_tiles, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i].kind, ATTEND_TILE_BF16);
        assert_int_equal(t[i].at, 0x2000 + i * 16 * 256);
        assert_int_equal(t[i].v_after16, -0x100);
        assert_int_equal(t[i].rows, i < 2 ? 16 : 5);
    }
}

static void capacity_leaves_empty_items(void **state)
{
    (void)state;
    cuda_attend_list list = pages(20, 1);
    cuda_attend_policy policy = {.items_capacity = 64};
    cuda_attend_plan plan;
    err e = {0};
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &policy, &list, 1, true, image, sizeof image, &plan, &e),
            ST_OK);
    assert_int_equal(plan.n_blocks, 64);
    assert_int_equal(plan.n_items, 24);
    int empty = 0;
    for (int i = 0; i < 64; i++) {
        empty += items_of()[i].n_heads == 0;
    }
    assert_int_equal(empty, 64 - 24);
    policy.items_capacity = 23;
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &policy, &list, 1, true, image, sizeof image, &plan, &e),
            ST_ERR_LIMIT);
}

static void image_of_the_asked_size_fits(void **state)
{
    (void)state;
    cuda_attend_list list = pages(500, 1);
    int64_t tiles = 500, items = cuda_attend_items(&eight_heads, &defaults, &tiles, 1) * 8;
    size_t bytes = cuda_attend_image_bytes(&eight_heads, 8, items, tiles);
    cuda_attend_plan plan;
    err e = {0};
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &defaults, &list, 1, true, image, bytes, &plan, &e), ST_OK);
    assert_int_equal(plan.n_items, items);
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &defaults, &list, 1, true, image, bytes - 128, &plan, &e),
            ST_ERR_LIMIT);
}

static void refuses_what_the_kernel_cannot_take(void **state)
{
    (void)state;
    cuda_attend_plan plan;
    err e = {0};
    cuda_attend_list list = pages(2, 1);
    static const cuda_attend_shape bad[] = {{.d = 96, .q_heads = 8, .kv_heads = 8, .multiprocessors = 1},
            {.d = 128, .q_heads = 17, .kv_heads = 1, .multiprocessors = 1},
            {.d = 128, .q_heads = 9, .kv_heads = 2, .multiprocessors = 1},
            {.d = 128, .q_heads = 8, .kv_heads = 8, .multiprocessors = 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(
                cuda_attend_plan_make(&bad[i], &defaults, &list, 1, true, image, sizeof image, &plan, &e),
                ST_ERR_UNSUPPORTED);
    }
    spans[1].k = (const void *)0x1008;
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &defaults, &list, 1, true, image, sizeof image, &plan, &e),
            ST_ERR_UNSUPPORTED);
    list = pages(2, 1);
    spans[0].rows = 129;
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &defaults, &list, 1, true, image, sizeof image, &plan, &e),
            ST_ERR_ARG);
    spans[0] = (krn_span){
            .kind = KRN_SPAN_BF16, .rows = 1, .k = (const void *)0x1000, .v = (const void *)0xffffffff00000};
    assert_int_equal(
            cuda_attend_plan_make(&eight_heads, &defaults, &list, 1, true, image, sizeof image, &plan, &e),
            ST_ERR_UNSUPPORTED);
}

/* unit * n + base is the level, whichever form was chosen. */
static void levels_come_back(void **state)
{
    (void)state;
    static const struct {
        float level[4];
        bool is_table;
    } cases[] = {{{-1.5f, -0.5f, 0.5f, 1.5f}, false}, {{0.0f, 1.0f, 2.0f, 3.0f}, false},
            {{-1.5f, -0.45f, 0.45f, 1.5f}, true}, {{-1.0f, -0.92f, 0.5f, 1.55f}, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        krn_page_format f = {.d = 128, .k_planes = 1};
        attend_levels got;
        err e = {0};
        memcpy(f.k_level, cases[i].level, sizeof f.k_level);
        memcpy(f.v_level, cases[i].level, sizeof f.v_level);
        assert_int_equal(attend_levels_set(&f, &got, &e), ST_OK);
        assert_int_equal(got.k_is_table, cases[i].is_table);
        assert_int_equal(got.v_is_table, cases[i].is_table);
        for (int c = 0; c < 4; c++) {
            int n = got.k_is_table ? (int8_t)(got.k_table >> (8 * c) & 0xff) : c;
            float k = got.k_unit * ((float)n + got.k_base), v = got.v_unit * (float)n + got.v_base;
            assert_float_equal(k, f.k_level[c], 2e-6f);
            assert_float_equal(v, f.v_level[c], 2e-6f);
        }
    }
}

static void levels_off_the_grid_are_refused(void **state)
{
    (void)state;
    static const float bad[][4] = {{-1.0f, -0.31234567f, 0.2718281f, 1.0f}, {1.0f, 1.0f, 1.0f, 1.0f},
            {3.0f, 2.0f, 1.0f, 0.0f}, {0.0f, 2.0f, 1.0f, 3.0f}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        krn_page_format f = {.d = 128, .k_planes = 1, .v_level = {0.0f, 1.0f, 2.0f, 3.0f}};
        attend_levels got;
        err e = {0};
        memcpy(f.k_level, bad[i], sizeof f.k_level);
        assert_int_equal(attend_levels_set(&f, &got, &e), ST_ERR_UNSUPPORTED);
    }
}

static void one_table_makes_both_sides_tables(void **state)
{
    (void)state;
    krn_page_format f = {.d = 128,
            .k_planes = 1,
            .k_level = {0.0f, 1.0f, 2.0f, 3.0f},
            .v_level = {-1.5f, -0.45f, 0.45f, 1.5f}};
    attend_levels got;
    err e = {0};
    assert_int_equal(attend_levels_set(&f, &got, &e), ST_OK);
    assert_true(got.k_is_table && got.v_is_table);
    assert_int_equal(got.k_table, 0x03020100);
    f.k_planes = 2;
    assert_int_equal(attend_levels_set(&f, &got, &e), ST_OK);
    assert_true(!got.k_is_table && got.v_is_table && got.k_base == -7.5f);
    f.k_planes = 1;
    f.has_zero = true;
    assert_int_equal(attend_levels_set(&f, &got, &e), ST_OK);
    assert_true(!got.k_is_table && !got.v_is_table && got.v_base == -1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(one_long_list),
            cmocka_unit_test(short_and_empty_lists),
            cmocka_unit_test(cut_does_not_depend_on_the_batch),
            cmocka_unit_test(variants_end_items),
            cmocka_unit_test(groups_take_passes),
            cmocka_unit_test(bf16_rows_become_tiles_of_16),
            cmocka_unit_test(capacity_leaves_empty_items),
            cmocka_unit_test(image_of_the_asked_size_fits),
            cmocka_unit_test(refuses_what_the_kernel_cannot_take),
            cmocka_unit_test(levels_come_back),
            cmocka_unit_test(levels_off_the_grid_are_refused),
            cmocka_unit_test(one_table_makes_both_sides_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
