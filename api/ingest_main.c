/* epimem ingest: a history file into a session, in batches, with a progress bar. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "api/client_internal.h"
#include "api/history_internal.h"

enum {
    BATCH_MESSAGES_MAX = 512,
    BATCH_BYTES_MAX =
            1024 * 1024, /* of text: far below the limit of a line even when every byte is escaped */
    FAULTS_SHOWN_MAX = 20,
    BAR_COLUMNS = 30,
    STAGES = 4
};

static const char *const stage_names[STAGES] = {"prefill", "coding", "embed", "commit"};

typedef struct ingest {
    client *to;
    const char *file, *session;
    long n_faults;
    int n_messages, n_sent; /* n_sent: acknowledged */
    int n_batch;
    int64_t turns, tokens, segments, episodes; /* turns: not stored before */
    int64_t start_us;
    double stage_ms[STAGES];
    bool bar;
} ingest;

static void show_fault(void *user, long line, const char *what)
{
    ingest *g = user;
    if (++g->n_faults > FAULTS_SHOWN_MAX) {
        return;
    }
    if (line > 0) {
        (void)fprintf(stderr, "epimem: %s:%ld: %s\n", g->file, line, what);
    } else {
        (void)fprintf(stderr, "epimem: %s: %s\n", g->file, what);
    }
}

static double seconds(const ingest *g)
{
    double s = (double)(base_monotonic_us() - g->start_us) / 1e6;
    return s > 1e-6 ? s : 1e-6;
}

static void show_bar(const ingest *g, double batch_share, int64_t batch_tokens)
{
    if (!g->bar) {
        return;
    }
    char bar[BAR_COLUMNS + 1];
    double share = ((double)g->n_sent + batch_share * g->n_batch) / g->n_messages;
    int filled = (int)(share * BAR_COLUMNS);
    for (int i = 0; i < BAR_COLUMNS; i++) {
        bar[i] = i < filled ? '#' : '.';
    }
    bar[BAR_COLUMNS] = '\0';
    int64_t tokens = g->tokens + batch_tokens;
    (void)fprintf(stderr, "\r[%s] %3d%%  %lld tokens  %.0f tokens/s ", bar, (int)(share * 100),
            (long long)tokens, (double)tokens / seconds(g));
}

/* A batch is first read by the model, then embedded; that is about a tenth of it. */
static void on_progress(void *user, const cJSON *event)
{
    double done = client_real(event, "done_tokens"), total = client_real(event, "total_tokens");
    double share = total > 0 && done <= total ? done / total : 0;
    if (strcmp(client_text(event, "phase"), "embed") == 0) {
        show_bar(user, 0.9 + share / 10, (int64_t)total);
    } else if (strcmp(client_text(event, "phase"), "prefill") == 0) {
        show_bar(user, 0.9 * share, (int64_t)done);
    }
}

/* Names the batch by what it holds and where it goes (FNV-1a): a run that was cut short and is started again does not
 * store a batch twice. */
static void batch_key(const char *session, const cJSON *batch, int first, char *out, size_t out_bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    const cJSON *m, *member;
    const char *text = session;
    cJSON_ArrayForEach (m, batch) {
        cJSON_ArrayForEach (member, m) {
            for (; *text != '\0'; text++) {
                hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
            }
            hash = (hash ^ 0xffu) * 0x100000001b3u; /* between the texts: no UTF-8 has it */
            text = cJSON_IsString(member) ? member->valuestring : "";
        }
    }
    (void)snprintf(out, out_bytes, "ingest-%d-%016llx", first, (unsigned long long)hash);
}

/* The next messages, taken off the list. */
static cJSON *take_batch(cJSON *messages, err *e)
{
    cJSON *batch = cJSON_CreateArray();
    size_t bytes = 0;
    if (batch == NULL) {
        (void)FAIL(e, ST_ERR_MEMORY, "out of memory");
        return NULL;
    }
    for (int n = 0; n < BATCH_MESSAGES_MAX && messages->child != NULL; n++) {
        bytes += strlen(client_text(messages->child, "content"));
        if (n > 0 && bytes > BATCH_BYTES_MAX) {
            break;
        }
        (void)cJSON_AddItemToArray(batch, cJSON_DetachItemViaPointer(messages, messages->child));
    }
    return batch;
}

static status send_batch(ingest *g, cJSON *messages, err *e)
{
    char key[64];
    cJSON *batch = take_batch(messages, e), *done = NULL;
    if (batch == NULL) {
        return ST_ERR_MEMORY;
    }
    g->n_batch = cJSON_GetArraySize(batch);
    batch_key(g->session, batch, g->n_sent, key, sizeof key);
    cJSON *request = client_request("ingest", g->session);
    if (request == NULL || cJSON_AddStringToObject(request, "key", key) == NULL ||
            !cJSON_AddItemToObject(request, "messages", batch)) {
        cJSON_Delete(batch);
        cJSON_Delete(request);
        return FAIL(e, ST_ERR_MEMORY, "out of memory");
    }
    show_bar(g, 0, 0);
    TRY(client_ask(g->to, request, on_progress, g, &done, e));
    g->n_sent += g->n_batch;
    g->tokens += client_integer(done, "tokens");
    g->turns += client_integer(done, "turns");
    g->segments = client_integer(done, "segments");
    g->episodes = client_integer(done, "episodes");
    g->n_batch = 0;
    const cJSON *timing = cJSON_GetObjectItemCaseSensitive(done, "timing");
    for (int i = 0; i < STAGES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "%s_ms", stage_names[i]);
        g->stage_ms[i] += client_real(timing, name);
    }
    cJSON_Delete(done);
    show_bar(g, 0, 0);
    return ST_OK;
}

static void print_stages(const ingest *g)
{
    double total = 0;
    for (int i = 0; i < STAGES; i++) {
        total += g->stage_ms[i];
    }
    for (int i = 0; i < STAGES && total > 0; i++) {
        (void)printf("%s%s %.1f %%", i == 0 ? "time: " : ", ", stage_names[i], 100 * g->stage_ms[i] / total);
    }
    (void)printf("\n");
}

static status send_all(ingest *g, cJSON *messages, err *e)
{
    g->start_us = base_monotonic_us();
    while (messages->child != NULL) {
        status st = send_batch(g, messages, e);
        if (st != ST_OK) {
            if (g->bar) {
                (void)fputs("\n", stderr);
            }
            (void)fprintf(stderr, "epimem: %d of %d messages are stored\n", g->n_sent, g->n_messages);
            return st;
        }
    }
    if (g->bar) {
        (void)fputs("\n", stderr);
    }
    if (g->turns == 0) {
        (void)printf("%s: %d messages, all stored before\n", g->session, g->n_sent);
        return ST_OK;
    }
    (void)printf("%s: %d messages, %lld tokens, %lld segments, %lld episodes, %.1f s, %.0f tokens/s\n",
            g->session, g->n_sent, (long long)g->tokens, (long long)g->segments, (long long)g->episodes,
            seconds(g), (double)g->tokens / seconds(g));
    print_stages(g);
    return ST_OK;
}

/* All of a file, or of stdin for "-". */
static status read_file(const char *path, base_buf *out, err *e)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (f == NULL) {
        return FAIL_OS(e, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    status st = ST_OK;
    size_t n = 1;
    while (st == ST_OK && n > 0) {
        st = base_buf_reserve(out, 64 * 1024);
        if (st != ST_OK) {
            st = FAIL(e, st, "%s: more than %zu bytes", path, out->max);
        } else {
            n = fread(out->data + out->size, 1, 64 * 1024, f);
            out->size += n;
        }
    }
    if (st == ST_OK && ferror(f)) {
        st = FAIL_OS(e, ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    if (f != stdin) {
        (void)fclose(f);
    }
    return st;
}

static status read_history(ingest *g, cJSON **messages, err *e)
{
    base_buf data = {.max = json_file_limits.bytes_max};
    err why = {.code = ST_OK};
    status st = read_file(g->file, &data, e);
    if (st == ST_OK) {
        st = history_read(data.data, data.size, show_fault, g, messages, &why);
        if (st != ST_OK) {
            st = FAIL(e, st, "%s: %.300s", g->file, why.text);
        }
    }
    base_buf_free(&data);
    if (g->n_faults > FAULTS_SHOWN_MAX) {
        (void)fprintf(stderr, "epimem: %s: and %ld more\n", g->file, g->n_faults - FAULTS_SHOWN_MAX);
    }
    return st;
}

static status run(ingest *g, const client_options *o, err *e)
{
    cJSON *messages = NULL;
    TRY(read_history(g, &messages, e));
    g->n_messages = cJSON_GetArraySize(messages);
    status st = ST_OK;
    if (g->n_messages == 0) {
        st = FAIL(e, ST_ERR_FORMAT, "%s: no message in it", g->file);
    } else {
        st = client_open(o, &g->to, e);
        st = st == ST_OK ? send_all(g, messages, e) : st;
    }
    cJSON_Delete(messages);
    client_close(g->to);
    return st;
}

int api_ingest_main(int argc, char **argv)
{
    client_options o = CLIENT_OPTIONS_DEFAULT;
    ingest g = {.file = NULL};
    const flag flags[] = {
            CLIENT_FLAGS(o),
            {"--session", "-s", "NAME", FLAG_TEXT, &g.session, "session that gets the history"},
    };
    program p = {.name = "ingest",
            .usage = "ingest FILE --session NAME --socket PATH | -m MODEL --data FOLDER [options]",
            .about = "Puts a history into a session. FILE (- is stdin) has one message a line,\n"
                     "{\"role\" or \"speaker\",\"content\",\"time\",\"ref\"}, or is a conversation of LoCoMo "
                     "or REALTALK.\n"
                     "Messages that cannot be read are named and left out; the exit status is then 1.\n",
            .flags = flags,
            .n_flags = sizeof flags / sizeof flags[0],
            .words = &g.file,
            .words_max = 1};
    int exit_status;
    err e = {.code = ST_OK};
    if (!config_ready(&p, argc, argv, &exit_status)) {
        return exit_status;
    }
    g.bar = isatty(STDERR_FILENO) != 0;
    if (g.file == NULL || g.session == NULL) {
        (void)FAIL(&e, ST_ERR_ARG, "ingest needs a file and --session NAME");
        (void)config_fault(&e);
        return EXIT_USAGE;
    }
    if (run(&g, &o, &e) != ST_OK) {
        return config_fault(&e);
    }
    return g.n_faults > 0 ? EXIT_FAULT : EXIT_GOOD;
}
