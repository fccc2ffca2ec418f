/* Both forward passes on tiny random models of every architecture and RoPE scaling, against transformers; and the
 * product pass against itself: the same bits whatever the batch. (Data: tests/golden-tools/make_tiny_models.py.) */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/model_internal.h"
#include "tests/unit/vectors.h"

#define DATA EPIMEM_SOURCE_DIR "/tests/data/tiny/"

enum { TOKENS = 40, MODELS = 6 };

typedef struct tiny {
    char name[64];
    model *m;
    int32_t *ids;
    int n, vocab;
} tiny;

static krn_pool *pool;
static cJSON *list;

static tiny open_tiny(int index)
{
    tiny t;
    char path[512];
    err e = {0};
    const cJSON *about = cJSON_GetArrayItem(list, index);
    (void)snprintf(t.name, sizeof t.name, "%s", cJSON_GetObjectItemCaseSensitive(about, "name")->valuestring);
    (void)snprintf(path, sizeof path, DATA "%s.gguf", t.name);
    t.ids = vectors_ids(about, "ids", &t.n);
    assert_int_equal(t.n, TOKENS);
    if (model_open(pool, path, &t.m, &e) != ST_OK) {
        fail_msg("%s", e.text);
    }
    const model_config *c = model_get_config(t.m);
    t.vocab = c->vocab;
    assert_int_equal(t.vocab, cJSON_GetObjectItemCaseSensitive(about, "vocab")->valueint);
    assert_int_equal(c->q_heads, cJSON_GetObjectItemCaseSensitive(about, "q_heads")->valueint);
    assert_int_equal(c->kv_heads, cJSON_GetObjectItemCaseSensitive(about, "kv_heads")->valueint);
    assert_int_equal(c->d, cJSON_GetObjectItemCaseSensitive(about, "d")->valueint);
    return t;
}

static void close_tiny(tiny *t)
{
    model_close(t->m);
    base_free(t->ids);
}

static void compare(const tiny *t, const char *kind, const float *got, double bound)
{
    char path[512];
    (void)snprintf(path, sizeof path, DATA "%s.%s.f32", t->name, kind);
    float *expected = vectors_f32(path, (size_t)TOKENS * (size_t)t->vocab);
    assert_non_null(expected);
    for (int i = 0; i < TOKENS * t->vocab; i++) {
        double difference = fabs((double)got[i] - (double)expected[i]);
        if (!(difference <= bound)) {
            fail_msg("%s, %s: logit %d of token %d is %.5f, expected %.5f", t->name, kind, i % t->vocab,
                    i / t->vocab, (double)got[i], (double)expected[i]);
        }
    }
    base_free(expected);
}

static float *logits_for(const tiny *t)
{
    float *logits = base_zalloc((size_t)TOKENS * (size_t)t->vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static void exact_pass_matches_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        err e = {0};
        tiny t = open_tiny(i);
        float *logits = logits_for(&t);
        assert_int_equal(model_forward_exact(t.m, t.ids, t.n, logits, NULL, 0, &e), ST_OK);
        compare(&t, "logits", logits,
                2e-5); /* the contract is 1e-3; float32 sums of so few terms are this near */
        base_free(logits);
        close_tiny(&t);
    }
}

/* The whole prompt in blocks of these sizes. */
static void forward_in_blocks(const tiny *t, int block, float *logits)
{
    err e = {0};
    plain_kv *kv = NULL;
    model_scratch *s = NULL;
    assert_int_equal(plain_kv_open(t->m, TOKENS, &kv, &e), ST_OK);
    assert_int_equal(model_scratch_open(t->m, TOKENS, &s, &e), ST_OK);
    for (int from = 0; from < TOKENS; from += block) {
        int n = TOKENS - from < block ? TOKENS - from : block;
        model_run run = {
                t->ids + from, n, from, plain_kv_prepare(kv, n), n, logits + (size_t)from * (size_t)t->vocab};
        assert_non_null(run.kv);
        assert_int_equal(model_forward(t->m, s, &run, 1, &e), ST_OK);
    }
    assert_int_equal(plain_kv_tokens(kv), TOKENS);
    assert_null(plain_kv_prepare(kv, 1));
    model_scratch_close(s);
    plain_kv_close(kv);
}

static void product_pass_matches_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        tiny t = open_tiny(i);
        float *logits = logits_for(&t);
        forward_in_blocks(&t, TOKENS, logits);
        /* Against transformers with a BF16 cache. A K or V at the middle between two BF16 values may round to the
         * other side here; one such flip moves a logit by less than this. */
        compare(&t, "bf16kv", logits, 1e-3);
        base_free(logits);
        close_tiny(&t);
    }
}

static void blocks_give_the_same_bits(void **state)
{
    (void)state;
    static const int blocks[] = {1, 3, 7, 8, 16, 33};
    for (int i = 0; i < MODELS; i++) {
        tiny t = open_tiny(i);
        float *whole = logits_for(&t);
        float *parts = logits_for(&t);
        forward_in_blocks(&t, TOKENS, whole);
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
            memset(parts, 0, (size_t)TOKENS * (size_t)t.vocab * sizeof *parts);
            forward_in_blocks(&t, blocks[b], parts);
            assert_memory_equal(whole, parts, (size_t)TOKENS * (size_t)t.vocab * sizeof *parts);
        }
        base_free(whole);
        base_free(parts);
        close_tiny(&t);
    }
}

/* Three sequences (the prompt, its end, its first token over and over) in one batch, uneven blocks, with logits wanted
 * of one, several and no rows: each as when it runs alone. */
static void a_batch_gives_the_same_bits(void **state)
{
    (void)state;
    tiny t = open_tiny(5);
    size_t vocab = (size_t)t.vocab;
    err e = {0};
    int32_t ids[3][TOKENS];
    plain_kv *kv[3] = {0};
    float *alone[3];
    float *beside[3];
    model_scratch *s = NULL;
    assert_int_equal(model_scratch_open(t.m, 3 * TOKENS, &s, &e), ST_OK);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < TOKENS; j++) {
            ids[i][j] = t.ids[i == 0 ? j : i == 1 ? (j + 11) % TOKENS : 0];
        }
        alone[i] = logits_for(&t);
        beside[i] = logits_for(&t);
        tiny other = t;
        other.ids = ids[i];
        forward_in_blocks(&other, TOKENS, alone[i]);
        assert_int_equal(plain_kv_open(t.m, TOKENS, &kv[i], &e), ST_OK);
    }
    int at[3] = {0, 0, 0};
    for (int round = 0; at[0] < TOKENS || at[1] < TOKENS || at[2] < TOKENS; round++) {
        model_run runs[3];
        int n_runs = 0;
        for (int i = 0; i < 3; i++) {
            int n = (round + i) % 4 == 0 ? 1 : (round + 2 * i) % 3 * 5 + 1;
            n = n < TOKENS - at[i] ? n : TOKENS - at[i];
            int wanted = (round + i) % 3 == 0 ? n : n > 0 && i != 1 ? 1 : 0;
            if (n > 0) {
                runs[n_runs++] = (model_run){ids[i] + at[i], n, at[i], plain_kv_prepare(kv[i], n), wanted,
                        beside[i] + (size_t)(at[i] + n - wanted) * vocab};
            }
            at[i] += n;
        }
        assert_int_equal(model_forward(t.m, s, runs, n_runs, &e), ST_OK);
    }
    int compared = 0;
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < TOKENS; j++) {
            const float *row = beside[i] + (size_t)j * vocab;
            if (row[0] != 0.0f || row[1] != 0.0f) {
                assert_memory_equal(row, alone[i] + (size_t)j * vocab, vocab * sizeof *row);
                compared++;
            }
        }
        plain_kv_close(kv[i]);
        base_free(alone[i]);
        base_free(beside[i]);
    }
    assert_true(compared > 40);
    model_scratch_close(s);
    close_tiny(&t);
}

static void nothing_is_allocated_after_open(void **state)
{
    (void)state;
    tiny t = open_tiny(2);
    float *logits = logits_for(&t);
    err e = {0};
    plain_kv *kv = NULL;
    model_scratch *s = NULL;
    assert_int_equal(plain_kv_open(t.m, TOKENS, &kv, &e), ST_OK);
    assert_int_equal(model_scratch_open(t.m, TOKENS, &s, &e), ST_OK);
    long before = base_allocation_count();
    for (int i = 0; i < TOKENS; i++) {
        model_run run = {t.ids + i, 1, i, plain_kv_prepare(kv, 1), 1, logits};
        assert_int_equal(model_forward(t.m, s, &run, 1, &e), ST_OK);
    }
    assert_int_equal(base_allocation_count(), before);
    model_scratch_close(s);
    plain_kv_close(kv);
    base_free(logits);
    close_tiny(&t);
}

static void limits_are_errors(void **state)
{
    (void)state;
    tiny t = open_tiny(0);
    err e = {0};
    plain_kv *kv = NULL;
    model_scratch *s = NULL;
    assert_int_equal(plain_kv_open(t.m, TOKENS, &kv, &e), ST_OK);
    assert_int_equal(model_scratch_open(t.m, 4, &s, &e), ST_OK);
    model_run run = {t.ids, 5, 0, plain_kv_prepare(kv, 5), 0, NULL};
    assert_int_equal(model_forward(t.m, s, &run, 1, &e), ST_ERR_LIMIT);
    const int32_t bad[] = {t.vocab, -1};
    for (int i = 0; i < 2; i++) {
        plain_kv_reset(kv);
        run = (model_run){&bad[i], 1, 0, plain_kv_prepare(kv, 1), 0, NULL};
        assert_int_equal(model_forward(t.m, s, &run, 1, &e), ST_ERR_ARG);
        assert_non_null(strstr(e.text, "must be 0 to 82"));
    }
    model_scratch_close(s);
    plain_kv_close(kv);
    close_tiny(&t);
}

static void memory_running_out_is_an_error(void **state)
{
    (void)state;
    long i = 0;
    for (;; i++) {
        model *m = NULL;
        plain_kv *kv = NULL;
        model_scratch *s = NULL;
        model_exact *x = NULL;
        err e = {0};
        base_fail_allocation(i);
        status st = model_open(pool, DATA "llama_gqa4_d128_bias.gguf", &m, &e);
        st = st == ST_OK ? plain_kv_open(m, TOKENS, &kv, &e) : st;
        st = st == ST_OK ? model_scratch_open(m, TOKENS, &s, &e) : st;
        st = st == ST_OK ? model_exact_open(m, TOKENS, &x, &e) : st;
        base_fail_allocation(-1);
        model_exact_close(x);
        model_scratch_close(s);
        plain_kv_close(kv);
        model_close(m);
        if (st == ST_OK) {
            break;
        }
        assert_int_equal(st, ST_ERR_MEMORY);
        assert_true(e.text[0] != '\0');
    }
    assert_true(i > 40);
}

/* ---- a model file that lacks or adds something ---- */

static void expect_refusal(const uint8_t *bytes, size_t size, const char *word)
{
    char path[] = "/tmp/epimem-test-model-XXXXXX";
    err e = {0};
    model *m = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    status s = model_open(pool, path, &m, &e);
    (void)remove(path);
    if (s == ST_OK || strstr(e.text, word) == NULL) {
        model_close(m);
        fail_msg("\"%s\" does not name %s", e.text, word);
    }
}

/* Replaces the first occurrence of a text by another of the same length and expects a refusal that says `word`. */
static void expect_refusal_after(
        const char *file, const char *text, const char *replacement, const char *word)
{
    char path[512];
    base_map map;
    err e = {0};
    (void)snprintf(path, sizeof path, DATA "%s", file);
    assert_int_equal(base_map_open(path, &map, &e), ST_OK);
    uint8_t *copy = base_alloc(map.size);
    assert_non_null(copy);
    memcpy(copy, map.data, map.size);
    size_t n = strlen(text);
    assert_int_equal(n, strlen(replacement));
    size_t at = 0;
    while (at + n <= map.size && memcmp(copy + at, text, n) != 0) {
        at++;
    }
    assert_true(at + n <= map.size);
    memcpy(copy + at, replacement, n);
    expect_refusal(copy, map.size, word);
    base_free(copy);
    base_map_close(&map);
}

static void other_models_are_refused_by_name(void **state)
{
    (void)state;
    static const char llama[] = "llama_gqa1_linear.gguf";
    static const char qwen2[] = "qwen2_gqa4_yarn.gguf";

    expect_refusal_after(
            llama, "blk.1.ffn_up.weight", "blk.1.ffn_uq.weight", "blk.1.ffn_up.weight is missing");
    expect_refusal_after(llama, "token_embd.weight", "token_embe.weight", "token_embd.weight is missing");
    expect_refusal_after(llama, "output_norm.weight", "output_norm.weighs", "output_norm.weight is missing");
    expect_refusal_after(llama, "llama.block_count", "llama.block_cound", "llama.block_count is missing");
    expect_refusal_after("llama_gqa3_llama3.gguf", "llama.attention.head_count_kv",
            "llama.attention.head_count_kw", "blk.0.attn_k");
    expect_refusal_after(llama, "llama.attention.key_length", "llama.attention.key_lengtg", "channels");
    expect_refusal_after(llama, "linear", "lineal", "rope.scaling.type");
    expect_refusal_after(qwen2, "blk.1.attn_k.bias", "blk.1.attn_k.biat", "blk.1.attn_k.bias is missing");
    expect_refusal_after("qwen3_gqa3_d64.gguf", "blk.0.attn_q_norm.weight", "blk.0.attn_q_norm.weighs",
            "blk.0.attn_q_norm.weight is missing");
    expect_refusal_after(
            "llama_gqa3_llama3.gguf", "rope_freqs.weight", "rope_freqs.weighs", "rope_freqs.weighs");
}

static void fingerprint_sees_every_weight_and_setting(void **state)
{
    (void)state;
    uint64_t seen[MODELS];
    for (int i = 0; i < MODELS; i++) {
        tiny t = open_tiny(i);
        tiny again = open_tiny(i);
        seen[i] = model_fingerprint(t.m);
        assert_true(seen[i] == model_fingerprint(again.m));
        for (int j = 0; j < i; j++) {
            assert_true(seen[i] != seen[j]);
        }
        close_tiny(&t);
        close_tiny(&again);
    }
}

static int open_all(void **state)
{
    err e = {0};
    (void)state;
    list = vectors_json(DATA "models.json");
    return list != NULL && cJSON_GetArraySize(list) == MODELS && krn_pool_open(2, &pool, &e) == ST_OK ? 0
                                                                                                      : -1;
}

static int close_all(void **state)
{
    (void)state;
    krn_pool_close(pool);
    cJSON_Delete(list);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(exact_pass_matches_transformers),
            cmocka_unit_test(product_pass_matches_transformers),
            cmocka_unit_test(blocks_give_the_same_bits),
            cmocka_unit_test(a_batch_gives_the_same_bits),
            cmocka_unit_test(nothing_is_allocated_after_open),
            cmocka_unit_test(limits_are_errors),
            cmocka_unit_test(memory_running_out_is_an_error),
            cmocka_unit_test(other_models_are_refused_by_name),
            cmocka_unit_test(fingerprint_sees_every_weight_and_setting),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
