/* The sentence encoder against the reference's vectors, and a text's independence from everything around it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/encoder_internal.h"
#include "agent/jsonl_internal.h"

enum { TEXTS = 40, DIM = 384 };

static const char folder[] = EPIMEM_SOURCE_DIR "/models/all-MiniLM-L6-v2";

typedef struct golden {
    char *text[TEXTS];
    size_t bytes[TEXTS];
    token_list ids[TEXTS];
    float vector[TEXTS][DIM];
} golden;

static golden want;

static void load_line(const char *line, size_t bytes, int row)
{
    cJSON *json = NULL;
    base_buf text = {0};
    err e = {0};
    assert_int_equal(jsonl_parse(line, bytes, &json, &e), ST_OK);
    assert_int_equal(jsonl_get_text(json, &text, &e), ST_OK);
    want.text[row] = base_strndup(text.size == 0 ? "" : (const char *)text.data, text.size);
    want.bytes[row] = text.size;
    assert_int_equal(jsonl_get_ids(json, "ids", INT32_MAX, &want.ids[row].ids, &want.ids[row].n, &e), ST_OK);
    base_buf_free(&text);
    cJSON_Delete(json);
}

static int load_golden(void **state)
{
    (void)state;
    base_map map = {0};
    err e = {0};
    assert_int_equal(base_map_open(EPIMEM_SOURCE_DIR "/tests/data/minilm/minilm.f32", &map, &e), ST_OK);
    assert_int_equal(map.size, sizeof want.vector);
    memcpy(want.vector, map.data, map.size);
    base_map_close(&map);

    assert_int_equal(base_map_open(EPIMEM_SOURCE_DIR "/tests/data/minilm/minilm.jsonl", &map, &e), ST_OK);
    const char *at = (const char *)map.data, *end = at + map.size;
    for (int row = 0; row < TEXTS; row++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        assert_non_null(newline);
        load_line(at, (size_t)(newline - at), row);
        at = newline + 1;
    }
    assert_ptr_equal(at, end);
    base_map_close(&map);
    return 0;
}

static int free_golden(void **state)
{
    (void)state;
    for (int row = 0; row < TEXTS; row++) {
        base_free(want.text[row]);
        token_list_free(&want.ids[row]);
    }
    return 0;
}

static encoder *open_encoder(int threads, krn_pool **pool)
{
    encoder *n = NULL;
    err e = {0};
    assert_int_equal(krn_pool_open(threads, pool, &e), ST_OK);
    if (encoder_open(*pool, folder, &n, &e) != ST_OK) {
        fail_msg("%s", e.text);
    }
    return n;
}

/* `count` texts in one call: the golden ones, over and over. */
static float *embed_many(encoder *n, int count)
{
    const char *texts[TEXTS * 3];
    size_t bytes[TEXTS * 3];
    err e = {0};
    float *out = base_zalloc((size_t)count * DIM, sizeof *out);
    for (int i = 0; i < count; i++) {
        texts[i] = want.text[i % TEXTS];
        bytes[i] = want.bytes[i % TEXTS];
    }
    assert_int_equal(encoder_embed(n, texts, bytes, count, 0, out, &e), ST_OK);
    return out;
}

/* 8-bit products: a text's vector stays within a cosine of 0.99 of its exact one, cosines between texts within 0.03, and
 * the same text gives the same bits alone and in a batch. */
static void coded_vectors_stay_close(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *exact = open_encoder(2, &pool), *coded = NULL;
    assert_int_equal(encoder_open_coded(pool, folder, &coded, NULL), ST_OK);
    assert_true(encoder_fingerprint(exact) != encoder_fingerprint(coded));
    float *a = embed_many(exact, TEXTS), *b = embed_many(coded, TEXTS), *one = embed_many(coded, 1);
    double worst = 1.0, apart = 0.0;
    for (int i = 0; i < TEXTS; i++) {
        for (int j = 0; j < TEXTS; j++) {
            double same = 0.0, aa = 0.0, bb = 0.0;
            for (int c = 0; c < DIM; c++) {
                same += (double)a[i * DIM + c] * (double)b[i * DIM + c];
                aa += (double)a[i * DIM + c] * (double)a[j * DIM + c];
                bb += (double)b[i * DIM + c] * (double)b[j * DIM + c];
            }
            double norm = 0.0;
            for (int c = 0; c < DIM; c++) {
                norm += (double)a[i * DIM + c] * (double)a[i * DIM + c];
            }
            worst = norm > 0.5 && same < worst ? same : worst;
            double d = aa > bb ? aa - bb : bb - aa;
            apart = d > apart ? d : apart;
        }
    }
    print_message(
            "coded against exact: cosine at least %.4f, cosines between texts within %.4f\n", worst, apart);
    assert_true(worst > 0.99);
    assert_true(apart < 0.03);
    assert_memory_equal(one, b, DIM * sizeof *one);
    base_free(a);
    base_free(b);
    base_free(one);
    encoder_close(exact);
    encoder_close(coded);
    krn_pool_close(pool);
}

static void ids_are_the_references(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *n = open_encoder(1, &pool);
    assert_int_equal(encoder_ids_max(n), 256);
    for (int row = 0; row < TEXTS; row++) {
        token_list ids = {0};
        err e = {0};
        assert_int_equal(encoder_tokenize(n, want.text[row], want.bytes[row], 0, &ids, &e), ST_OK);
        assert_int_equal(ids.n, want.ids[row].n);
        assert_memory_equal(ids.ids, want.ids[row].ids, ids.n * sizeof *ids.ids);
        token_list_free(&ids);
    }
    encoder_close(n);
    krn_pool_close(pool);
}

static void vectors_are_the_references(void **state)
{
    (void)state;
    krn_isa best = krn_isa_best();
    for (int isa = KRN_ISA_SCALAR; isa <= (int)best; isa++) {
        krn_pool *pool = NULL;
        krn_isa_set((krn_isa)isa);
        encoder *n = open_encoder(2, &pool);
        assert_int_equal(encoder_dim(n), DIM);
        assert_string_equal(encoder_name(n), "all-MiniLM-L6-v2");
        int count = isa == KRN_ISA_SCALAR ? 12 : TEXTS; /* plain C takes half a minute for all */
        float *got = embed_many(n, count);
        float worst = 0;
        for (int i = 0; i < count * DIM; i++) {
            float distance = got[i] - want.vector[i / DIM][i % DIM];
            distance = distance < 0 ? -distance : distance;
            worst = distance > worst || distance != distance ? distance : worst;
        }
        print_message("%s: at most %.2g from the reference\n", krn_isa_name((krn_isa)isa), (double)worst);
        /* The reference is 1.6e-7 from float64; another order of float32 sums may add as much again and a little. */
        assert_true(worst < 1e-6f);
        base_free(got);
        encoder_close(n);
        krn_pool_close(pool);
    }
    krn_isa_set(best);
}

static void vector_does_not_depend_on_the_batch(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *n = open_encoder(2, &pool);
    float *together = embed_many(n, TEXTS * 3);
    for (int i = TEXTS; i < TEXTS * 3; i++) {
        assert_memory_equal(together + i * DIM, together + i % TEXTS * DIM, DIM * sizeof(float));
    }
    encoder_close(n);
    krn_pool_close(pool);

    n = open_encoder(1, &pool);
    for (int row = 0; row < TEXTS; row++) {
        float alone[DIM];
        err e = {0};
        const char *text = want.text[row];
        assert_int_equal(encoder_embed(n, &text, &want.bytes[row], 1, 0, alone, &e), ST_OK);
        assert_memory_equal(alone, together + row * DIM, sizeof alone);
    }
    base_free(together);
    encoder_close(n);
    krn_pool_close(pool);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *n = open_encoder(1, &pool);
    float out[DIM];
    err e = {0};
    const int32_t ids[3] = {101, 30522, 102};
    const int32_t negative[3] = {101, -1, 102};
    int three = 3, none = 0, many = 513;
    assert_int_equal(encoder_embed_ids(n, ids, &three, 1, out, &e), ST_ERR_ARG);
    assert_non_null(strstr(e.text, "30522"));
    assert_int_equal(encoder_embed_ids(n, negative, &three, 1, out, &e), ST_ERR_ARG);
    assert_int_equal(encoder_embed_ids(n, ids, &none, 1, out, &e), ST_ERR_ARG);
    assert_int_equal(encoder_embed_ids(n, ids, &many, 1, out, &e), ST_ERR_ARG);
    assert_int_equal(encoder_embed_ids(n, ids, &three, 0, out, &e), ST_OK);
    const char *text = "hello";
    size_t bytes = 5;
    assert_int_equal(encoder_embed(n, &text, &bytes, 1, 1, out, &e), ST_ERR_ARG);
    assert_int_equal(encoder_embed(n, &text, &bytes, 1, 513, out, &e), ST_ERR_ARG);
    assert_int_equal(encoder_embed(n, &text, &bytes, 1, 512, out, &e), ST_OK);
    encoder_close(n);
    krn_pool_close(pool);
}

static void longest_text_fills_the_positions(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *n = open_encoder(2, &pool);
    enum { LONG = 512 };
    int32_t ids[2 * LONG];
    int each[2] = {LONG, LONG};
    float out[2 * DIM];
    err e = {0};
    for (int i = 0; i < 2 * LONG; i++) {
        ids[i] = 1000 + i % LONG * 7;
    }
    assert_int_equal(encoder_embed_ids(n, ids, each, 2, out, &e), ST_OK);
    assert_memory_equal(out, out + DIM, DIM * sizeof(float));
    encoder_close(n);
    krn_pool_close(pool);
}

/* ---- folders that are not what they say ---- */

typedef struct damage {
    const char *file; /* replaced by `content`; NULL content: left out */
    const char *content;
    status expected;
    const char *word;
} damage;

#define CONFIG(type, act, width, heads, ffn, vocab)                                         \
    "{\"model_type\":\"" type "\",\"hidden_act\":\"" act "\",\"hidden_size\":" width        \
    ",\"num_attention_heads\":" heads ",\"num_hidden_layers\":6,\"intermediate_size\":" ffn \
    ",\"vocab_size\":" vocab ",\"max_position_embeddings\":512,\"layer_norm_eps\":1e-12}"

static const damage damages[] = {
        {"config.json", NULL, ST_ERR_NOT_FOUND, "config.json"},
        {"config.json", "", ST_ERR_FORMAT, "config.json"},
        {"config.json", "[]", ST_ERR_FORMAT, "not a JSON object"},
        {"config.json", "{}", ST_ERR_FORMAT, "model_type"},
        {"config.json", CONFIG("roberta", "gelu", "384", "12", "1536", "30522"), ST_ERR_UNSUPPORTED,
                "roberta"},
        {"config.json", CONFIG("bert", "gelu_new", "384", "12", "1536", "30522"), ST_ERR_UNSUPPORTED,
                "gelu_new"},
        {"config.json", CONFIG("bert", "gelu", "384", "7", "1536", "30522"), ST_ERR_UNSUPPORTED, "7 heads"},
        {"config.json", CONFIG("bert", "gelu", "384", "0", "1536", "30522"), ST_ERR_FORMAT,
                "num_attention_heads"},
        {"config.json", CONFIG("bert", "gelu", "256", "8", "1536", "30522"), ST_ERR_MISMATCH,
                "word_embeddings"},
        {"config.json", CONFIG("bert", "gelu", "384", "12", "1024", "30522"), ST_ERR_MISMATCH,
                "intermediate"},
        {"config.json", CONFIG("bert", "gelu", "384", "12", "1e99", "30522"), ST_ERR_FORMAT,
                "intermediate_size"},
        {"config.json", CONFIG("bert", "gelu", "384", "12", "1536", "30000"), ST_ERR_MISMATCH,
                "word_embeddings"},
        {"1_Pooling/config.json", "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":false}",
                ST_ERR_UNSUPPORTED, "pooling"},
        {"sentence_bert_config.json", "{\"max_seq_length\":1}", ST_ERR_FORMAT, "max_seq_length"},
        {"model.safetensors", NULL, ST_ERR_NOT_FOUND, "model.safetensors"},
        {"model.safetensors", "\2\0\0\0\0\0\0\0{}", ST_ERR_FORMAT, NULL},
        {"vocab.txt", NULL, ST_ERR_NOT_FOUND, "vocab.txt"},
};

static void write_file(const char *path, const char *content)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, strlen(content), f), strlen(content));
    assert_int_equal(fclose(f), 0);
}

/* A folder of links to the model's files, but for one. */
static void damaged_folder_is_refused(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "1_Pooling/config.json", "sentence_bert_config.json",
            "model.safetensors", "vocab.txt"};
    char base[] = "/tmp/epimem-encoder-XXXXXX", path[512], target[512];
    krn_pool *pool = NULL;
    err e = {0};
    assert_non_null(mkdtemp(base));
    (void)snprintf(path, sizeof path, "%s/1_Pooling", base);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(krn_pool_open(1, &pool, &e), ST_OK);
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        encoder *n = NULL;
        for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
            (void)snprintf(path, sizeof path, "%s/%s", base, files[f]);
            (void)snprintf(target, sizeof target, "%s/%s", folder, files[f]);
            (void)unlink(path);
            if (strcmp(files[f], damages[i].file) != 0) {
                assert_int_equal(symlink(target, path), 0);
            } else if (damages[i].content != NULL) {
                write_file(path, damages[i].content);
            }
        }
        status got = encoder_open(pool, base, &n, &e);
        if (damages[i].expected == ST_ERR_NOT_FOUND ? got == ST_OK : got != damages[i].expected) {
            fail_msg("damage %zu gave %s: %s", i, status_name(got), e.text);
        }
        if (damages[i].word != NULL && strstr(e.text, damages[i].word) == NULL) {
            fail_msg("damage %zu: \"%s\" does not say \"%s\"", i, e.text, damages[i].word);
        }
    }
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        (void)snprintf(path, sizeof path, "%s/%s", base, files[f]);
        (void)unlink(path);
    }
    (void)snprintf(path, sizeof path, "%s/1_Pooling", base);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(base), 0);
    krn_pool_close(pool);
}

static void fingerprint_repeats(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    encoder *n = open_encoder(1, &pool);
    uint64_t first = encoder_fingerprint(n);
    encoder_close(n);
    krn_pool_close(pool);
    n = open_encoder(2, &pool);
    assert_true(first != 0 && encoder_fingerprint(n) == first);
    encoder_close(n);
    krn_pool_close(pool);
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    err e = {0};
    status result = ST_ERR_MEMORY;
    assert_int_equal(krn_pool_open(1, &pool, &e), ST_OK);
    /* The layers repeat themselves: after the first ones every ninth allocation. */
    for (long n = 0; result != ST_OK; n += n < 40 ? 1 : 9) {
        assert_true(n < 1000);
        encoder *opened = NULL;
        base_fail_allocation(n);
        result = encoder_open(pool, folder, &opened, &e);
        base_fail_allocation(-1);
        assert_true(result == ST_OK || result == ST_ERR_MEMORY);
        encoder_close(opened);
    }
    krn_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(coded_vectors_stay_close),
            cmocka_unit_test(ids_are_the_references),
            cmocka_unit_test(vectors_are_the_references),
            cmocka_unit_test(vector_does_not_depend_on_the_batch),
            cmocka_unit_test(bad_requests_are_refused),
            cmocka_unit_test(longest_text_fills_the_positions),
            cmocka_unit_test(damaged_folder_is_refused),
            cmocka_unit_test(fingerprint_repeats),
            cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, load_golden, free_golden);
}
