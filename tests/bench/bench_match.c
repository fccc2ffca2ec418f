/*
 * Time of ep_match_run on one core as a session grows: 1,000 to 30,000 utterances of 24 words out of 8,000, the
 * most frequent one in every fourth utterance, both speakers named in every line. The encoder is a stand-in (hashed words, dimension 384), so its own time is left out.
 *
 *   bench_match [UTTERANCES...]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "episodes/episodes.h"

enum { DIM = 384, WORDS = 24, VOCABULARY = 8000, ROUNDS = 31, BATCH = 500 };

static uint64_t random_state = 1;

static uint64_t next_random(void)
{
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static status embed(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    (void)ctx;
    (void)e;
    for (int i = 0; i < n; i++) {
        uint64_t hash = 0;
        float *v = out + (size_t)i * DIM;
        memset(v, 0, DIM * sizeof *v);
        for (size_t k = 0; k < bytes[i]; k++) {
            hash = texts[i][k] == ' ' ? 0 : (hash + (unsigned char)texts[i][k]) * 0x9e3779b97f4a7c15u;
            v[hash >> 55 < DIM ? hash >> 55 : hash % DIM] += 1;
        }
    }
    return ST_OK;
}

static void sentence(char *out, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < WORDS; i++) {
        double u = (double)(next_random() >> 11) * 0x1p-53;
        int word = (int)(VOCABULARY * u * u);
        at += (size_t)snprintf(out + at, size - at, "w%dq ", word);
    }
}

static void build(ep_index *x, int utterances)
{
    static char text[BATCH][WORDS * 8];
    ep_utterance u[BATCH];
    err e = {0};
    for (int from = 0; from < utterances; from += BATCH) {
        int n = utterances - from < BATCH ? utterances - from : BATCH;
        for (int i = 0; i < n; i++) {
            sentence(text[i], sizeof text[i]);
            u[i] = (ep_utterance){.text = text[i],
                    .text_bytes = strlen(text[i]),
                    .speaker = i % 2 ? "Ada" : "Bo",
                    .has_time = true,
                    .time_us = (int64_t)(from + i) / 20 * 86400000000,
                    .turn = from + i,
                    .first_token = (int64_t)(from + i) * 35,
                    .tokens = 35};
        }
        if (ep_index_append(x, u, n, &e) != ST_OK) {
            fprintf(stderr, "bench_match: %s\n", e.text);
            exit(1);
        }
    }
}

/* Processor time of this thread: what other programs do meanwhile is not in it. */
static int64_t cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure(int utterances)
{
    ep_model_ops ops = {.dim = DIM, .floor = 0.25f, .embed = embed};
    ep_options o;
    ep_index *x = NULL;
    err e = {0};
    char text[WORDS * 8];
    int64_t us[ROUNDS];
    ep_options_default(&o);
    if (ep_index_open(&o, &ops, &x, &e) != ST_OK) {
        exit(1);
    }
    int64_t start = cpu_us();
    build(x, utterances);
    int64_t built = cpu_us() - start;
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(text, "What did Ada say of ", 20);
        sentence(text + 20, 60);
        ep_query q = {
                .text = text, .text_bytes = strlen(text), .budget_tokens = 4096, .attended_from = INT64_MAX};
        ep_match m;
        start = cpu_us();
        if (ep_match_run(x, &q, &m, &e) != ST_OK) {
            exit(1);
        }
        us[i] = cpu_us() - start;
        ep_match_free(&m);
    }
    qsort(us, ROUNDS, sizeof *us, compare);
    printf("%6d utterances: match %6.2f ms (fastest %.2f, slowest %.2f of %d)  %d episodes  append %.1f us "
           "each\n",
            utterances, (double)us[ROUNDS / 2] / 1000, (double)us[0] / 1000, (double)us[ROUNDS - 1] / 1000,
            ROUNDS, ep_index_episodes(x), (double)built / utterances);
    (void)fflush(stdout);
    ep_index_close(x);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1000, 3000, 10000, 30000};
    for (int i = 1; i < argc; i++) {
        measure((int)strtol(argv[i], NULL, 10));
    }
    for (size_t i = 0; argc < 2 && i < sizeof sizes / sizeof *sizes; i++) {
        measure(sizes[i]);
    }
    return 0;
}
