/* What tests of kvq share: rows of any kind, codecs of a small shape, files of golden data. */
#ifndef EPIMEM_TESTS_KVQ_SCENE_H
#define EPIMEM_TESTS_KVQ_SCENE_H

#include <stdio.h>

#include "kvq/kvq.h"

typedef struct random_bits {
    uint64_t state;
} random_bits;

static inline uint32_t random_next(random_bits *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 33);
}

/* The rows of tests/golden-tools/kvq_goldens.py. */
static inline void input_rows(random_bits *random, int rows, int d, uint16_t *x)
{
    for (int r = 0; r < rows; r++) {
        uint32_t spread = random_next(random) % 8;
        for (int c = 0; c < d; c++) {
            uint32_t u = random_next(random), sign = (u & 1) << 15, mantissa = (u >> 1) & 127;
            uint32_t bits = sign | (118 + spread + (u >> 8) % 6) << 7 | mantissa;
            switch (r) {
            case 3:
                bits = 0;
                break;
            case 5:
                bits = c == 17 ? 0x7180 : 0;
                break;
            case 7:
                bits = sign | mantissa;
                break;
            case 9:
                bits = 0x3f80;
                break;
            case 11:
                bits = c % 2 != 0 ? 0x4700 : 0xb000;
                break;
            default:
                break;
            }
            x[r * d + c] = (uint16_t)bits;
        }
    }
}

/* Any codec that needs no calibration, of 2 layers and 3 KV heads. */
static inline kvq_codec *open_codec(const char *name, int d)
{
    kvq_codec *c = NULL;
    kvq_shape shape = {.layers = 2, .kv_heads = 3, .d = d};
    err e;
    assert_int_equal(kvq_codec_open_measured(name, &shape, NULL, &c, &e), ST_OK);
    return c;
}

static inline size_t read_data(const char *name, void *to, size_t most)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tests/data/kvq/%s", EPIMEM_SOURCE_DIR, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(to, 1, most, f);
    (void)fclose(f);
    return n;
}

#endif
