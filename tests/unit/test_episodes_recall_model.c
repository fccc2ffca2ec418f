/* With the real sentence encoder: questions about what was said find it, others find nothing. The conversation is
 * tests/data/episodes/transcript.ndjson (four topics on four days), the questions are queries.jsonl. */
#include "test_episodes_util.h"

#include <cjson/cJSON.h>

#include "agent/agent.h"
#include "agent/encoder_internal.h"
#include "tests/unit/text_append.h"

static krn_pool *pool;
static encoder *enc;

static int open_encoder(void **state)
{
    err e = {0};
    (void)state;
    if (krn_pool_open(2, &pool, &e) != ST_OK ||
            encoder_open(pool, EPIMEM_SOURCE_DIR "/models/all-MiniLM-L6-v2", &enc, &e) != ST_OK) {
        print_message("%s\n", e.text);
        return -1;
    }
    return 0;
}

static int close_encoder(void **state)
{
    (void)state;
    encoder_close(enc);
    krn_pool_close(pool);
    return 0;
}

static status embed(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    (void)ctx;
    return encoder_embed(enc, texts, bytes, n, 0, out, e);
}

static ep_index *open_index(void)
{
    ep_model_ops ops = {.dim = encoder_dim(enc), .floor = encoder_floor(enc), .embed = embed};
    ep_options o;
    ep_index *x = NULL;
    err e = {0};
    ep_options_default(&o);
    assert_int_equal(ep_index_open(&o, &ops, &x, &e), ST_OK);
    return x;
}

/* Calls visit with each line of a JSON lines file. */
static void each_line(const char *path, void (*visit)(void *ctx, const cJSON *o), void *ctx)
{
    base_map m;
    err e = {0};
    assert_int_equal(base_map_open(path, &m, &e), ST_OK);
    char *text = base_strndup((const char *)m.data, m.size), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *o = cJSON_Parse(line);
        assert_non_null(o);
        visit(ctx, o);
        cJSON_Delete(o);
    }
    base_free(text);
    base_map_close(&m);
}

static const char *string_of(const cJSON *o, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
}

static void hear(void *ctx, const cJSON *o)
{
    ep_index *x = ctx;
    err e = {0};
    ep_utterance u = said(string_of(o, "role"), string_of(o, "content"));
    u.turn = ep_index_utterances(x);
    u.first_token = u.turn * 20;
    u.tokens = 20;
    u.has_time = agent_time_parse(string_of(o, "time"), &u.time_us) == ST_OK;
    assert_true(u.has_time);
    assert_int_equal(ep_index_append(x, &u, 1, &e), ST_OK);
}

static void ask(void *ctx, const cJSON *o)
{
    static const char *const topics[][2] = {
            {"garden", "tomato"}, {"car", "brake"}, {"trip", "Vienna"}, {"music", "cello"}};
    const char *recall = string_of(o, "recall"), *text = string_of(o, "text");
    ep_query q = {
            .text = text, .text_bytes = strlen(text), .budget_tokens = 2048, .attended_from = INT64_MAX};
    ep_match m;
    err e = {0};
    assert_int_equal(ep_match_run(ctx, &q, &m, &e), ST_OK);
    print_message("  best %.3f, %2d used: %s\n", (double)m.best_score, m.n_used, text);
    if (recall == NULL) {
        assert_int_equal(m.n_used, 0);
        for (int i = 0; i < m.n_episodes; i++) {
            assert_false(m.episodes[i].used);
        }
    }
    for (size_t i = 0; recall != NULL && i < sizeof topics / sizeof *topics; i++) {
        if (strcmp(topics[i][0], recall) == 0) {
            assert_true(m.n_used >= 1 && m.hits[0].utterance / 4 == (int64_t)i);
            assert_true(m.episodes[0].used);
            assert_non_null(strstr(m.episodes[0].title, topics[i][1]));
        }
    }
    ep_match_free(&m);
}

static void topics_are_found_and_nothing_else(void **state)
{
    ep_index *x = open_index();
    (void)state;
    each_line(EPIMEM_SOURCE_DIR "/tests/data/episodes/transcript.ndjson", hear, x);
    assert_int_equal(ep_index_episodes(x), 4);
    each_line(EPIMEM_SOURCE_DIR "/tests/data/episodes/queries.jsonl", ask, x);
    ep_index_close(x);
}

static void a_fact_at_the_end_of_400_words_is_found(void **state)
{
    static const char *const filler[] = {
            "The committee met on the second floor and went through the minutes. ",
            "Nobody objected to the new opening hours of the library. ",
            "The heating bill was higher than in the year before. ",
            "We talked about the parking spaces behind the school. ",
            "There will be a sale of old furniture next month. "};
    ep_index *x = open_index();
    char text[4096] = "";
    (void)state;
    for (int i = 0; i < 40; i++) {
        text_append(text, sizeof text, "%s", filler[i % 5]);
    }
    text_append(text, sizeof text, "By the way, my sister's parrot is called Gunther.");
    for (int i = 0; i < 30; i++) {
        tell(x, "Ada", i == 12 ? text : filler[i % 5], 100 + i / 6);
    }
    const char *question = "What is the name of the parrot?";
    ep_query q = {.text = question,
            .text_bytes = strlen(question),
            .budget_tokens = 1000,
            .attended_from = INT64_MAX};
    ep_match m;
    err e = {0};
    assert_int_equal(ep_match_run(x, &q, &m, &e), ST_OK);
    print_message("  best %.3f\n", (double)m.best_score);
    assert_true(m.n_used > 0 && m.hits[0].utterance == 12);
    ep_match_free(&m);
    ep_index_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(topics_are_found_and_nothing_else),
            cmocka_unit_test(a_fact_at_the_end_of_400_words_is_found)};
    return cmocka_run_group_tests(tests, open_encoder, close_encoder);
}
