/*
 * Damaged pages: whatever the bytes, decoding, gathering and attending must stay inside their arrays and never trap. (The
 * store's checksum keeps such pages away; this is the second line.) First bytes choose codec, head size and rows.
 */
#include <string.h>

#include "tests/unit/attn_scene.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGES = 3 };

/* Fills a page from the input, repeated as often as needed. */
static void fill(uint8_t *page, size_t bytes, const uint8_t *data, size_t size, size_t start)
{
    for (size_t i = 0; i < bytes; i++) {
        page[i] = size == 0 ? 0 : data[(start + i) % size];
    }
}

static void attend(scene *s, krn_pool *pool, int n_rows)
{
    krn_attend_args a = scene_args(s, n_rows);
    for (int isa = KRN_ISA_SCALAR; isa <= (int)krn_isa_best(); isa++) {
        krn_isa_set((krn_isa)isa);
        scene_run(s, pool, &a);
    }
    krn_attend_exact(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const codecs[] = {"turboquant", "turboquant-k4", "naive", "hadamard"};
    if (size < 4) {
        return 0;
    }
    scene s;
    krn_pool *pool;
    err e;
    if (krn_pool_open(1, &pool, &e) != ST_OK) {
        return 0;
    }
    int d = 64 << (data[1] % 3);
    scene_open(&s, codecs[data[0] % 4], d, 1 + data[2] % 3, 1);
    uint8_t *pages[PAGES];
    for (int i = 0; i < PAGES; i++) {
        int rows = 1 + (data[3] * (i + 1)) % 128;
        scene_add(&s, KRN_SPAN_PAGE, rows, i % SCENE_VARIANTS, i != 1);
        pages[i] = scene_own(&s, kvq_column_bytes(s.codec));
        fill(pages[i], kvq_column_bytes(s.codec), data + 4, size - 4, (size_t)i * 97);
        s.spans[i].k = pages[i];
    }
    kvq_gather_rows(s.codec, 0, pages[0], data[3] % 64, pages[2], data[2] % 64, 1 + data[1] % 64);
    float *k = scene_own(&s, 128 * (size_t)d * sizeof *k), *v = scene_own(&s, 128 * (size_t)d * sizeof *v);
    kvq_decode_page(s.codec, 0, 0, pages[2], k, v);
    attend(&s, pool, 1 + data[0] % 12);
    scene_close(&s);
    krn_pool_close(pool);
    return 0;
}
