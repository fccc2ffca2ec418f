/* A conversation and a question out of arbitrary bytes: appended at once and one by one it gives the same match, which
 * keeps its promises. Layout: 4 bytes of options, then per utterance 4 bytes (text bytes, tokens, hours since the last one,
 * speaker) and the text; the last text is also the question. */
#include "episodes/episodes.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DIM = 16, UTTERANCES_MAX = 64 };

static status embed(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    (void)ctx;
    (void)e;
    for (int i = 0; i < n; i++) {
        memset(out + i * DIM, 0, DIM * sizeof *out);
        for (size_t k = 0; k < bytes[i]; k++) {
            out[i * DIM + (unsigned char)texts[i][k] % DIM] += 1;
        }
    }
    return ST_OK;
}

static int read_talk(const uint8_t *data, size_t size, ep_utterance *u)
{
    static const char *const speakers[] = {"Ada", "Bo Li", "user", NULL};
    int n = 0;
    int64_t now = 0, row = 0;
    for (size_t at = 0; n < UTTERANCES_MAX && size - at >= 4;) {
        const uint8_t *head = data + at;
        at += 4;
        size_t bytes = (size_t)head[0] * (head[3] & 8 ? 16 : 1);
        bytes = bytes < size - at ? bytes : size - at;
        now += (int64_t)head[2] % 8 * 3600000000;
        u[n] = (ep_utterance){.text = (const char *)data + at,
                .text_bytes = bytes,
                .speaker = speakers[head[3] % 4],
                .has_time = (head[3] & 16) == 0,
                .time_us = now,
                .turn = n,
                .first_token = row,
                .tokens = head[1]};
        row += u[n++].tokens;
        at += bytes;
    }
    return n;
}

static ep_index *build(const uint8_t *options, const ep_utterance *u, int n, int step)
{
    ep_model_ops ops = {.dim = DIM, .floor = (float)(options[0] % 16) / 16, .embed = embed};
    ep_options o;
    ep_index *x = NULL;
    err e;
    ep_options_default(&o);
    o.segment_utterances_max = options[1] % 4 + 1;
    o.join_threshold = (float)(options[2] % 8) / 8;
    REQUIRE(ep_index_open(&o, &ops, &x, &e) == ST_OK);
    for (int i = 0; i < n; i += step) {
        REQUIRE(ep_index_append(x, u + i, n - i < step ? n - i : step, &e) == ST_OK);
    }
    return x;
}

static void check(const ep_match *m, const ep_query *q)
{
    int64_t tokens = 0;
    for (int i = 0; i < m->n_hits; i++) {
        const ep_hit *h = &m->hits[i];
        REQUIRE(h->used == (i < m->n_used) && h->used == (h->reason == EP_USED));
        REQUIRE(h->score >= -1.01f && h->score <= 1.01f && h->tokens >= 0);
        tokens += h->used ? h->tokens : 0;
        REQUIRE(!h->used || h->tokens == 0 ||
                (h->first_token >= q->attended_before && h->first_token + h->tokens <= q->attended_from));
    }
    REQUIRE(tokens == m->used_tokens && tokens <= q->budget_tokens);
}

static void check_plan(const ep_match *m)
{
    ep_piece *pieces = NULL;
    int n = 0;
    int64_t at = 0;
    err e;
    REQUIRE(ep_plan(m, &pieces, &n, &e) == ST_OK);
    for (int i = 0; i < n; i++) {
        REQUIRE(pieces[i].at == at && pieces[i].rows > 0 && pieces[i].rows <= 128);
        at += pieces[i].rows;
    }
    REQUIRE(at == m->used_tokens);
    base_free(pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ep_utterance u[UTTERANCES_MAX];
    if (size < 8) {
        return 0;
    }
    int n = read_talk(data + 4, size - 4, u);
    ep_index *whole = build(data, u, n, n > 0 ? n : 1), *grown = build(data, u, n, 1);
    ep_query q = {.text = n > 0 ? u[n - 1].text : "",
            .text_bytes = n > 0 ? u[n - 1].text_bytes : 0,
            .context = n > 0 ? u[0].text : NULL,
            .context_bytes = n > 0 ? u[0].text_bytes : 0,
            .budget_tokens = data[3] * 8,
            .attended_before = data[3] % 32,
            .attended_from = 4000,
            .has_now = true,
            .now_us = (int64_t)1 << 50};
    ep_match a, b;
    err e;
    REQUIRE(ep_match_run(whole, &q, &a, &e) == ST_OK && ep_match_run(grown, &q, &b, &e) == ST_OK);
    REQUIRE(a.n_hits == b.n_hits && a.n_used == b.n_used && a.n_episodes == b.n_episodes);
    for (int i = 0; i < a.n_hits; i++) {
        REQUIRE(memcmp(&a.hits[i].rank, &b.hits[i].rank, sizeof a.hits[i].rank) == 0);
        REQUIRE(a.hits[i].utterance == b.hits[i].utterance && a.hits[i].episode == b.hits[i].episode);
    }
    check(&a, &q);
    check_plan(&a);
    ep_match_free(&a);
    ep_match_free(&b);
    ep_index_close(whole);
    ep_index_close(grown);
    return 0;
}
