/*
 * Evidence recall of ep_match_run on conversations with annotated questions (LoCoMo and REALTALK layouts).
 *
 *   bench_recall MODEL.gguf ENCODER-FOLDER [-c VECTOR-CACHE] [-f FLOOR] [-v] FILE.json...
 *
 * Prints one line per file and one over all: the share of a question's evidence utterances that are used, mean over
 * questions, at budgets of 1,024, 2,048 and 4,096 tokens of the model ("speaker: text" and a line break each); questions
 * of LoCoMo's category 5 (no answer in the conversation) are left out. -v lists what was missed. With a cache file,
 * vectors are read from it and new ones appended, so that a second run takes seconds.
 */
#define _DEFAULT_SOURCE
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/encoder_internal.h"
#include "episodes/episodes.h"

enum { BUDGETS = 3, CATEGORIES = 6, EVIDENCE_MAX = 64, UTTERANCES_MAX = 1 << 16 };
static const int64_t budgets[BUDGETS] = {1024, 2048, 4096};

static void die(const char *what, const err *e)
{
    fprintf(stderr, "bench_recall: %s: %s\n", what, e != NULL ? e->text : "failed");
    exit(1);
}

/* ---- vectors, cached by text ---- */

typedef struct cache {
    encoder *enc;
    FILE *file;
    int dim;
    size_t n, cap, slots;
    uint64_t *keys;
    float *vectors;
    uint32_t *slot; /* place + 1 */
} cache;

static uint64_t text_key(const char *s, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
    }
    return h;
}

static uint32_t *cache_slot(const cache *c, uint64_t key)
{
    size_t i = (size_t)(key >> 20) & (c->slots - 1);
    while (c->slot[i] != 0 && c->keys[c->slot[i] - 1] != key) {
        i = (i + 1) & (c->slots - 1);
    }
    return &c->slot[i];
}

static void cache_add(cache *c, uint64_t key, const float *v)
{
    if (c->n == c->cap) {
        size_t cap = c->cap * 2, dim = (size_t)c->dim;
        c->keys = base_realloc(c->keys, c->cap * sizeof *c->keys, cap * sizeof *c->keys);
        c->vectors = base_realloc(c->vectors, c->cap * dim * sizeof *v, cap * dim * sizeof *v);
        c->cap = cap;
    }
    c->keys[c->n] = key;
    memcpy(c->vectors + c->n * (size_t)c->dim, v, (size_t)c->dim * sizeof *v);
    *cache_slot(c, key) = (uint32_t)++c->n;
}

static void cache_open(cache *c, encoder *enc, const char *path)
{
    *c = (cache){.enc = enc, .dim = encoder_dim(enc), .cap = 1024, .slots = (size_t)1 << 20};
    float *v = base_alloc((size_t)c->dim * sizeof *v);
    uint64_t key = 0;
    c->keys = base_alloc(c->cap * sizeof *c->keys);
    c->vectors = base_alloc(c->cap * (size_t)c->dim * sizeof *v);
    c->slot = base_zalloc(c->slots, sizeof *c->slot);
    if (path != NULL) {
        c->file = fopen(path, "a+b");
        if (c->file == NULL) {
            die(path, NULL);
        }
        rewind(c->file);
        while (fread(&key, sizeof key, 1, c->file) == 1 &&
                fread(v, sizeof *v, (size_t)c->dim, c->file) == (size_t)c->dim) {
            cache_add(c, key, v);
        }
    }
    base_free(v);
}

static void cache_close(cache *c)
{
    if (c->file != NULL) {
        (void)fclose(c->file);
    }
    base_free(c->keys);
    base_free(c->vectors);
    base_free(c->slot);
}

static status embed(void *ctx, const char *const *texts, const size_t *bytes, int n, float *out, err *e)
{
    cache *c = ctx;
    size_t dim = (size_t)c->dim;
    for (int i = 0; i < n; i++) {
        uint64_t key = text_key(texts[i], bytes[i]);
        float *v = out + (size_t)i * dim;
        uint32_t place = *cache_slot(c, key);
        if (place != 0) {
            memcpy(v, c->vectors + (size_t)(place - 1) * dim, dim * sizeof *v);
            continue;
        }
        TRY(encoder_embed(c->enc, &texts[i], &bytes[i], 1, 0, v, e));
        cache_add(c, key, v);
        if (c->file != NULL) {
            (void)fwrite(&key, sizeof key, 1, c->file);
            (void)fwrite(v, sizeof *v, dim, c->file);
        }
    }
    return ST_OK;
}

/* ---- conversations ---- */

typedef struct talk {
    cJSON *json;
    ep_utterance *u; /* points into json */
    const char **ids;
    int n;
} talk;

static char *read_file(const char *path)
{
    base_map m;
    err e = {0};
    if (base_map_open(path, &m, &e) != ST_OK) {
        die(path, &e);
    }
    char *text = base_strndup((const char *)m.data, m.size);
    base_map_close(&m);
    return text;
}

static const char *string_of(const cJSON *o, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, name));
}

static int32_t tokens_of(const tokenizer *tok, const char *speaker, const char *text)
{
    token_list ids = {0};
    base_buf line = {.max = (size_t)1 << 26};
    err e = {0};
    (void)base_buf_append(&line, speaker, strlen(speaker));
    (void)base_buf_append(&line, ": ", 2);
    (void)base_buf_append(&line, text, strlen(text));
    (void)base_buf_append(&line, "\n", 1);
    int32_t n = (int32_t)(line.size / 3); /* for text the vocabulary cannot spell */
    if (tokenizer_encode(tok, line.data, line.size, false, &ids, &e) == ST_OK) {
        n = (int32_t)ids.n;
    }
    token_list_free(&ids);
    base_buf_free(&line);
    return n;
}

static void add_turns(talk *t, const tokenizer *tok, const cJSON *session, const char *date)
{
    const cJSON *turn = NULL;
    cJSON_ArrayForEach(turn, session)
    {
        const char *text = string_of(turn, "clean_text"), *speaker = string_of(turn, "speaker");
        const char *when = string_of(turn, "date_time");
        text = text != NULL ? text : string_of(turn, "text");
        text = text != NULL ? text : "";
        ep_utterance *u = &t->u[t->n];
        *u = (ep_utterance){.text = text,
                .text_bytes = strlen(text),
                .speaker = speaker,
                .turn = t->n,
                .tokens = tokens_of(tok, speaker, text)};
        u->first_token = t->n == 0 ? 0 : t->u[t->n - 1].first_token + t->u[t->n - 1].tokens;
        u->has_time = (when != NULL && agent_time_parse(when, &u->time_us) == ST_OK) ||
                (date != NULL && agent_time_parse(date, &u->time_us) == ST_OK);
        t->ids[t->n++] = string_of(turn, "dia_id");
    }
}

static talk talk_open(const char *path, const tokenizer *tok)
{
    char *text = read_file(path);
    talk t = {.json = cJSON_Parse(text)};
    base_free(text);
    const cJSON *c = cJSON_GetObjectItemCaseSensitive(t.json, "conversation");
    c = c != NULL ? c : t.json;
    t.u = base_zalloc(UTTERANCES_MAX, sizeof *t.u);
    t.ids = base_zalloc(UTTERANCES_MAX, sizeof *t.ids);
    for (int k = 1;; k++) {
        char name[64], date[64];
        (void)snprintf(name, sizeof name, "session_%d", k);
        (void)snprintf(date, sizeof date, "session_%d_date_time", k);
        const cJSON *session = cJSON_GetObjectItemCaseSensitive(c, name);
        if (session == NULL) {
            return t;
        }
        add_turns(&t, tok, session, string_of(c, date));
    }
}

static void talk_close(talk *t)
{
    cJSON_Delete(t->json);
    base_free(t->u);
    base_free(t->ids);
}

/* Utterances named in the question's evidence: every "D<digits>:<digits>" in its strings, once each, if it exists. */
static int evidence_of(const talk *t, const cJSON *question, int *out)
{
    const cJSON *item = NULL;
    int n = 0;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(question, "evidence"))
    {
        const char *s = cJSON_GetStringValue(item);
        for (; s != NULL && (s = strchr(s, 'D')) != NULL; s++) {
            size_t bytes = 1 + strspn(s + 1, "0123456789");
            if (s[bytes] != ':') {
                continue;
            }
            bytes += 1 + strspn(s + bytes + 1, "0123456789");
            for (int i = 0; i < t->n; i++) {
                bool same = strlen(t->ids[i]) == bytes && memcmp(t->ids[i], s, bytes) == 0, known = false;
                for (int k = 0; k < n; k++) {
                    known = known || out[k] == i;
                }
                if (same && !known && n < EVIDENCE_MAX) {
                    out[n++] = i;
                }
            }
        }
    }
    return n;
}

/* ---- measuring ---- */

typedef struct tally {
    double recall[BUDGETS], by_category[CATEGORIES], tokens, best_least;
    int questions, in_category[CATEGORIES], refused;
} tally;

static double recall_of(const ep_match *m, const int *evidence, int n)
{
    int found = 0;
    for (int k = 0; k < n; k++) {
        for (int i = 0; i < m->n_used; i++) {
            found += m->hits[i].utterance == evidence[k];
        }
    }
    return (double)found / n;
}

static void show_missed(const talk *t, const cJSON *question, const ep_match *m, const int *evidence, int n)
{
    printf("  ? %s (best %.3f)\n", string_of(question, "question"), (double)m->best_score);
    for (int k = 0; k < n; k++) {
        bool found = false;
        for (int i = 0; i < m->n_used; i++) {
            found = found || m->hits[i].utterance == evidence[k];
        }
        if (!found) {
            printf("      %s %s: %.120s\n", t->ids[evidence[k]], t->u[evidence[k]].speaker,
                    t->u[evidence[k]].text);
        }
    }
}

static void ask(const ep_index *x, const talk *t, const cJSON *question, bool verbose, tally *sum)
{
    int evidence[EVIDENCE_MAX], n = evidence_of(t, question, evidence);
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(question, "category");
    int category = cJSON_IsNumber(number) ? number->valueint : 0;
    if (n == 0 || category == 5) {
        return;
    }
    sum->questions++;
    for (int b = 0; b < BUDGETS; b++) {
        const char *text = string_of(question, "question");
        ep_query q = {.text = text,
                .text_bytes = strlen(text),
                .budget_tokens = budgets[b],
                .attended_from = INT64_MAX};
        ep_match m;
        err e = {0};
        if (ep_match_run(x, &q, &m, &e) != ST_OK) {
            die("match", &e);
        }
        double recall = recall_of(&m, evidence, n);
        sum->recall[b] += recall;
        if (b == BUDGETS - 1) {
            sum->tokens += (double)m.used_tokens;
            sum->refused += m.n_used == 0;
            sum->best_least = (double)m.best_score < sum->best_least ? (double)m.best_score : sum->best_least;
            if (category > 0 && category < CATEGORIES) {
                sum->by_category[category] += recall;
                sum->in_category[category]++;
            }
            if (verbose && recall < 1) {
                show_missed(t, question, &m, evidence, n);
            }
        }
        ep_match_free(&m);
    }
}

static void add_tally(tally *to, const tally *from)
{
    for (int b = 0; b < BUDGETS; b++) {
        to->recall[b] += from->recall[b];
    }
    for (int c = 0; c < CATEGORIES; c++) {
        to->by_category[c] += from->by_category[c];
        to->in_category[c] += from->in_category[c];
    }
    to->tokens += from->tokens;
    to->questions += from->questions;
    to->refused += from->refused;
    to->best_least = from->best_least < to->best_least ? from->best_least : to->best_least;
}

static void show(const char *name, const tally *t)
{
    printf("%-28s %4d questions  recall", name, t->questions);
    for (int b = 0; b < BUDGETS; b++) {
        printf(" %.3f", t->recall[b] / t->questions);
    }
    printf("  mean tokens %.0f  refused %d  lowest best %.3f  category", t->tokens / t->questions, t->refused,
            t->best_least);
    for (int c = 1; c < CATEGORIES; c++) {
        if (t->in_category[c] > 0) {
            printf(" %d: %.3f", c, t->by_category[c] / t->in_category[c]);
        }
    }
    printf("\n");
    (void)fflush(stdout);
}

static int unrelated_used(const ep_index *x)
{
    static const char *const questions[] = {"How do I convert a PDF into plain text on the command line?",
            "What is the boiling point of ammonia?", "Explain the offside rule in football.",
            "Which year did the Peace of Westphalia end the war?",
            "Write a regular expression that matches IPv4 addresses.", "What is the capital of Mongolia?",
            "How does a transistor amplify a signal?", "What is the integral of x squared?",
            "How many moons does Jupiter have?", "Give me the chemical formula of sulfuric acid.",
            "What does the HTTP status code 418 mean?", "What is the exchange rate of the yen?",
            "Difference between TCP and UDP?", "List the kings of Sweden in the 17th century."};
    int used = 0;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        ep_query q = {.text = questions[i],
                .text_bytes = strlen(questions[i]),
                .budget_tokens = 4096,
                .attended_from = INT64_MAX};
        ep_match m;
        err e = {0};
        if (ep_match_run(x, &q, &m, &e) != ST_OK) {
            die("match", &e);
        }
        used += m.n_used > 0;
        ep_match_free(&m);
    }
    return used;
}

static void measure(const char *path, const tokenizer *tok, const ep_model_ops *ops, bool verbose, tally *all)
{
    talk t = talk_open(path, tok);
    ep_options o;
    ep_index *x = NULL;
    err e = {0};
    tally sum = {.best_least = 1};
    ep_options_default(&o);
    if (ep_index_open(&o, ops, &x, &e) != ST_OK || ep_index_append(x, t.u, t.n, &e) != ST_OK) {
        die(path, &e);
    }
    const cJSON *question = NULL;
    cJSON_ArrayForEach(question, cJSON_GetObjectItemCaseSensitive(t.json, "qa"))
    {
        ask(x, &t, question, verbose, &sum);
    }
    const char *name = strrchr(path, '/');
    show(name != NULL ? name + 1 : path, &sum);
    printf("    %d utterances, %lld segments, %d episodes; of 14 unrelated questions %d recall something\n",
            t.n, (long long)ep_index_segments(x), ep_index_episodes(x), unrelated_used(x));
    for (int i = 0; verbose && i < ep_index_episodes(x); i++) {
        ep_episode ep;
        if (ep_index_episode(x, i, &ep) == ST_OK) {
            printf("    episode %3d: %3lld segments %4lld utterances  %s\n", ep.id, (long long)ep.segments,
                    (long long)ep.utterances, ep.title);
        }
    }
    add_tally(all, &sum);
    ep_index_close(x);
    talk_close(&t);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr,
                "usage: bench_recall MODEL.gguf ENCODER-FOLDER [-c CACHE] [-f FLOOR] [-v] FILE.json...\n");
        return 2;
    }
    gguf *g = NULL;
    tokenizer *tok = NULL;
    krn_pool *pool = NULL;
    encoder *enc = NULL;
    err e = {0};
    if (gguf_open(argv[1], &g, &e) != ST_OK || tokenizer_open(g, &tok, &e) != ST_OK ||
            krn_pool_open(1, &pool, &e) != ST_OK || encoder_open(pool, argv[2], &enc, &e) != ST_OK) {
        die("opening", &e);
    }
    const char *cache_path = NULL;
    float floor = encoder_floor(enc);
    bool verbose = false;
    int at = 3;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (strcmp(argv[at], "-c") == 0 && at + 1 < argc) {
            cache_path = argv[++at];
        } else if (strcmp(argv[at], "-f") == 0 && at + 1 < argc) {
            floor = strtof(argv[++at], NULL);
        } else {
            verbose = true;
        }
    }
    cache c;
    cache_open(&c, enc, cache_path);
    ep_model_ops ops = {.ctx = &c, .dim = c.dim, .floor = floor, .embed = embed};
    tally all = {.best_least = 1};
    for (; at < argc; at++) {
        measure(argv[at], tok, &ops, verbose, &all);
    }
    show("all", &all);
    cache_close(&c);
    encoder_close(enc);
    krn_pool_close(pool);
    tokenizer_close(tok);
    gguf_close(g);
    return 0;
}
