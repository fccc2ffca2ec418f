/*
 * Dequantisation against values made by gguf-py's numpy code (tests/data/dequant: raw blocks and the floats they
 * stand for; random bytes with finite scales, quantised normal values, rows of a real model). Every multiplication
 * and addition is in the format's own order, so the bits agree.
 */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct vector_file {
    const char *name;
    krn_type type;
} vector_file;

static const vector_file files[] = {
        {"f32", KRN_F32},
        {"f16", KRN_F16},
        {"bf16", KRN_BF16},
        {"q4_0_quantized", KRN_Q4_0},
        {"q4_0_random", KRN_Q4_0},
        {"q4_1_quantized", KRN_Q4_1},
        {"q4_1_random", KRN_Q4_1},
        {"q5_0_quantized", KRN_Q5_0},
        {"q5_0_random", KRN_Q5_0},
        {"q5_1_quantized", KRN_Q5_1},
        {"q5_1_random", KRN_Q5_1},
        {"q8_0_quantized", KRN_Q8_0},
        {"q8_0_random", KRN_Q8_0},
        {"q2_k_random", KRN_Q2_K},
        {"q3_k_random", KRN_Q3_K},
        {"q4_k_random", KRN_Q4_K},
        {"q5_k_random", KRN_Q5_K},
        {"q6_k_random", KRN_Q6_K},
        {"iq4_nl_random", KRN_IQ4_NL},
        {"iq4_xs_random", KRN_IQ4_XS},
        {"model_token_embd_row1000", KRN_Q8_0},
        {"model_blk_0_attn_k_row5", KRN_Q4_1},
        {"model_blk_29_ffn_down_row17", KRN_Q4_1},
};

static void open_vector(const char *name, const char *ending, base_map *map)
{
    char path[512];
    err e;
    (void)snprintf(path, sizeof path, "%s/tests/data/dequant/%s.%s", EPIMEM_SOURCE_DIR, name, ending);
    assert_int_equal(base_map_open(path, map, &e), ST_OK);
}

static void check_file(const vector_file *file)
{
    base_map raw;
    base_map expected;
    float got[1536];
    open_vector(file->name, "bin", &raw);
    open_vector(file->name, "f32", &expected);
    int64_t n = (int64_t)(expected.size / sizeof(float));
    assert_true(n > 0 && n <= (int64_t)(sizeof got / sizeof got[0]));
    assert_int_equal(
            raw.size, (size_t)(n / krn_type_block_elements(file->type) * krn_type_block_bytes(file->type)));
    krn_dequantize(file->type, raw.data, got, n);
    for (int64_t i = 0; i < n; i++) {
        float want;
        memcpy(&want, expected.data + 4 * i, 4);
        if (memcmp(&want, &got[i], 4) != 0) {
            fail_msg("%s element %lld: %.9g, expected %.9g", file->name, (long long)i, (double)got[i],
                    (double)want);
        }
    }
    base_map_close(&raw);
    base_map_close(&expected);
}

static void values_are_the_formats(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        check_file(&files[i]);
    }
}

/* Stored tensors may start at any byte. */
static void unaligned_blocks_are_read(void **state)
{
    (void)state;
    base_map raw;
    float straight[512];
    float shifted[512];
    uint8_t bytes[512];
    open_vector("q5_1_random", "bin", &raw);
    assert_true(raw.size < sizeof bytes);
    memcpy(bytes + 1, raw.data, raw.size);
    krn_dequantize(KRN_Q5_1, raw.data, straight, 512);
    krn_dequantize(KRN_Q5_1, bytes + 1, shifted, 512);
    assert_memory_equal(straight, shifted, sizeof straight);
    base_map_close(&raw);
}

static void names_and_sizes(void **state)
{
    (void)state;
    assert_true(krn_type_known(3) && krn_type_known(30) && krn_type_known(0));
    assert_false(krn_type_known(9));
    assert_false(krn_type_known(4));
    assert_false(krn_type_known(UINT32_MAX));
    assert_string_equal(krn_type_name(KRN_Q4_1), "Q4_1");
    assert_string_equal(krn_type_name(KRN_IQ4_XS), "IQ4_XS");
    assert_int_equal(krn_type_block_elements(KRN_Q6_K), 256);
    assert_int_equal(krn_type_block_bytes(KRN_Q6_K), 210);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(values_are_the_formats),
            cmocka_unit_test(unaligned_blocks_are_read),
            cmocka_unit_test(names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
